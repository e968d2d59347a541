//! The heads and keys of a segment's records, read from flash without the values where these are
//! large.

use std::io;

use floe_memory::Cause;

use crate::flash::Flash;
use crate::format::{FooterEntry, Geometry, PAGE_BYTES, SegmentId, key_range, u32_at};
use crate::left::evicted_or_expired;

/// Bytes read at a time.
const READ_BYTES: usize = 1 << 20;
/// Gap between two heads up to which they are read together, in bytes.
const READ_GAP: usize = 32 << 10;
/// Bytes read of a large record. A longer key is read on its own.
const HEAD_BYTES: usize = 1024;

/// The part of a record before its value. Nothing says that it is intact but the key's hash.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head<'a> {
    pub(crate) key: &'a [u8],
    /// Second since 1970 from which the object is expired; 0 for never.
    expires: u32,
}

impl Head<'_> {
    /// Returns the cause for which the object leaves flash at this second since 1970.
    pub(crate) fn cause_at(&self, now: u64) -> Cause {
        evicted_or_expired(self.expires != 0 && u64::from(self.expires) <= now)
    }
}

/// Reads the heads of records of a segment, in the order of their offsets, and passes them to
/// `visit`.
///
/// # Errors
/// When a read fails.
pub(crate) fn visit_heads(
    flash: &dyn Flash,
    geometry: Geometry,
    id: SegmentId,
    entries: &[FooterEntry],
    mut visit: impl FnMut(&FooterEntry, &Head<'_>),
) -> io::Result<()> {
    let mut rest = entries;
    while !rest.is_empty() {
        rest = visit_run(flash, geometry, id, rest, &mut visit)?;
    }
    Ok(())
}

/// Reads the heads of the first records, as far as they are near to each other, and visits them.
/// Returns the other records.
fn visit_run<'a>(
    flash: &dyn Flash,
    geometry: Geometry,
    id: SegmentId,
    entries: &'a [FooterEntry],
    visit: &mut impl FnMut(&FooterEntry, &Head<'_>),
) -> io::Result<&'a [FooterEntry]> {
    let end = |entry: &FooterEntry| entry.offset + entry.length.bytes().min(HEAD_BYTES);
    let from = entries[0].offset / PAGE_BYTES * PAGE_BYTES;
    let mut until = end(&entries[0]);
    let near = entries.iter().take_while(|entry| {
        let joins = entry.offset <= until + READ_GAP && end(entry) <= from + READ_BYTES;
        until = if joins { until.max(end(entry)) } else { until };
        joins
    });
    let (these, others) = entries.split_at(near.count());
    let read = |from: usize, until: usize| {
        let until = until.next_multiple_of(PAGE_BYTES).min(geometry.segment_bytes as usize);
        let mut buffer = flash.buffers().take(until - from);
        let start = geometry.segment_start(id.number) + from as u64;
        flash.read(&mut buffer, start).map(|()| buffer)
    };
    let buffer = read(from, until)?;
    for entry in these {
        let record = &buffer[entry.offset - from..];
        let (range, expires) = (key_range(record), u32_at(record, 12));
        let (begin, end) = (entry.offset + range.start, entry.offset + range.end);
        let long;
        let key = if end - from <= buffer.len() {
            &buffer[begin - from..end - from]
        } else if end <= geometry.segment_bytes as usize {
            let first = begin / PAGE_BYTES * PAGE_BYTES;
            long = read(first, end)?;
            &long[begin - first..end - first]
        } else {
            continue; // damaged: no lookup finds the record either
        };
        visit(entry, &Head { key, expires });
    }
    Ok(others)
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use crate::format::{RecordHeader, RecordKind};
    use crate::store::hash_key;
    use crate::sweep::{Purpose, sweep};
    use crate::tests::simulated::SimulatedFlash;
    use crate::tests::store::Rig;

    #[test]
    fn a_sweep_visits_long_keys_and_large_objects_and_ends_when_told() {
        let rig = Rig::open(SimulatedFlash::new(4 << 20, 1));
        let mut random = SmallRng::seed_from_u64(5);
        let mut keys = Vec::new();
        for at in 0..150u32 {
            let mut key = vec![at as u8; random.random_range(4..3_000)];
            key[..4].copy_from_slice(&at.to_le_bytes());
            let most = random.random_range(1..50_000);
            let value = vec![7; random.random_range(0..most)];
            let hash = hash_key(rig.store.hash_seed, &key);
            let header = RecordHeader::new(RecordKind::Object, &key, &value);
            let encoded = header.encode(&key, &value);
            while rig.store.append_object(hash, &header, &encoded, &key, &value).is_err() {
                rig.store.log.wait_for_room(header.log_bytes());
            }
            keys.push(key);
        }
        assert!(rig.sync());
        keys.retain(|key| rig.store.index.peek(hash_key(rig.store.hash_seed, key)).is_some());
        assert!(keys.len() > 50);
        let mut visited = Vec::new();
        let swept = sweep(
            &rig.store,
            Purpose::Removal,
            |_, key| visited.push(key.to_vec()),
            |_, _| ControlFlow::Continue(()),
        );
        visited.sort_unstable();
        keys.sort_unstable();
        assert!(visited == keys, "{} of {} keys visited", visited.len(), keys.len());
        assert_eq!((swept.unreadable_segments, swept.cancelled), (0, false));
        let mut steps = Vec::new();
        let swept = sweep(
            &rig.store,
            Purpose::Read,
            |_, _| {},
            |done, of| {
                steps.push((done, of));
                if done == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            },
        );
        let segments = rig.store.log.segments().len() as u64;
        assert_eq!(
            (swept.cancelled, steps),
            (true, (1..=3).map(|done| (done, segments)).collect())
        );
        // The segment of the first key cannot be read: its objects are misses.
        let place = rig.store.log.segments()[0] % rig.store.log.geometry.segments;
        let size = rig.store.log.geometry.segment_bytes as usize;
        rig.flash.spoil((64 << 10) + place as usize * size, size);
        visited.clear();
        let swept = sweep(
            &rig.store,
            Purpose::Removal,
            |_, key| visited.push(key.to_vec()),
            |_, _| ControlFlow::Continue(()),
        );
        assert_eq!(swept.unreadable_segments, 1);
        assert!(visited.len() < keys.len());
        assert_eq!(rig.store.index.len(), visited.len() as u64);
    }
}
