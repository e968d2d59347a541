//! A sweep: a visit of all keys on flash, in the order of the log.
//!
//! The index has no keys, so the records are read. Records that were replaced or removed are left
//! out, and of large records only the heads are read.
//!
//! A record may move during the sweep: when its segment is evicted, it is appended again. Until the
//! place is overwritten, the old copy is there and is visited. If the log overwrites a place before
//! the sweep has reached it, the sweep continues to the log's new end, and no record is kept from
//! then on. So every record that was on flash at the start is visited or evicted.

use std::io;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use crate::format::{FooterEntry, PAGE_BYTES, RecordKind, SegmentId, key_range};
use crate::store::{Store, count, hash_key, read_entries};

/// Bytes read at a time.
const READ_BYTES: usize = 1 << 20;
/// Gap between two heads up to which they are read together, in bytes.
const READ_GAP: usize = 32 << 10;
/// Bytes read of a large record. A longer key is read on its own.
const HEAD_BYTES: usize = 1024;

/// The result of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Swept {
    /// Segments that could not be read.
    pub(crate) unreadable_segments: u64,
    /// True if `progress` ended the sweep.
    pub(crate) cancelled: bool,
}

/// Visits the keys on flash with their hashes, each at least once. `progress` gets the number of
/// segments visited and the number of all segments, and may end the sweep.
pub(crate) fn sweep<T>(
    store: &Store<T>,
    mut visit: impl FnMut(u64, &[u8]),
    mut progress: impl FnMut(u64, u64) -> ControlFlow<()>,
) -> Swept {
    let mut swept = Swept::default();
    let mut segments = store.log.segments();
    let mut unmoving = None;
    let mut at = 0;
    while let Some(&number) = segments.get(at) {
        at += 1;
        match visit_segment(store, number, &mut visit) {
            Ok(true) => {}
            Ok(false) if unmoving.is_none() => {
                unmoving = Some(Unmoving::begin(store));
                let last = *segments.last().expect("there is this one");
                segments.extend(store.log.segments().into_iter().filter(|later| *later > last));
            }
            Ok(false) => {} // evicted, and nothing of it was kept
            Err(_) => {
                // What it holds is a miss from now on.
                count(&store.counters.failed_reads);
                swept.unreadable_segments += 1;
                store.forget_place(number % store.log.geometry.segments);
            }
        }
        if progress(at as u64, segments.len() as u64).is_break() {
            swept.cancelled = at < segments.len();
            break;
        }
    }
    swept
}

/// While it exists, no record is kept when its segment is evicted.
struct Unmoving<'a, T>(&'a Store<T>);

impl<'a, T> Unmoving<'a, T> {
    fn begin(store: &'a Store<T>) -> Self {
        store.sweeps.fetch_add(1, Ordering::Relaxed);
        // Whoever keeps a record holds its stripe: after this, all of them see the number.
        drop(store.stripes.all());
        Self(store)
    }
}

impl<T> Drop for Unmoving<'_, T> {
    fn drop(&mut self) {
        self.0.sweeps.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Visits the keys of a segment. Returns false if its place was overwritten meanwhile.
fn visit_segment<T>(
    store: &Store<T>,
    number: u64,
    visit: &mut impl FnMut(u64, &[u8]),
) -> io::Result<bool> {
    let in_memory = store.log.visit_resident(number, |kind, key| {
        let hash = hash_key(store.hash_seed, key);
        if kind == RecordKind::Object && store.index.peek(hash).is_some() {
            visit(hash, key);
        }
    });
    if in_memory {
        return Ok(true);
    }
    let geometry = store.log.geometry;
    let place = number % geometry.segments;
    let id = store.log.segment_in(place);
    if id.number != number {
        return Ok(false);
    }
    let entries = read_entries(&*store.log.flash, (geometry, store.hash_seed), place, id)?;
    let is_wanted = |entry: &FooterEntry| {
        entry.kind == RecordKind::Object && store.index.peek(entry.hash).is_some()
    };
    let entries: Vec<FooterEntry> = entries.into_iter().filter(is_wanted).collect();
    let mut rest = &entries[..];
    while !rest.is_empty() {
        rest = visit_run(store, id, rest, visit)?;
    }
    // The pages were intact if they are not another segment's by now.
    Ok(store.log.segment_in(place) == id)
}

/// Reads the heads of the first records, as far as they are near to each other, and visits their
/// keys. Returns the other records.
fn visit_run<'a, T>(
    store: &Store<T>,
    id: SegmentId,
    entries: &'a [FooterEntry],
    visit: &mut impl FnMut(u64, &[u8]),
) -> io::Result<&'a [FooterEntry]> {
    let geometry = store.log.geometry;
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
        let mut buffer = store.log.flash.buffers().take(until - from);
        let start = geometry.segment_start(id.number) + from as u64;
        store.log.flash.read(&mut buffer, start).map(|()| buffer)
    };
    let buffer = read(from, until)?;
    for entry in these {
        let range = key_range(&buffer[entry.offset - from..]);
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
        // The hash is a checksum of the key.
        if hash_key(store.hash_seed, key) == entry.hash {
            visit(entry.hash, key);
        }
    }
    Ok(others)
}
