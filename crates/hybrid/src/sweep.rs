//! A sweep: a visit of all keys on flash, in the order of the log.
//!
//! The index has no keys, so the records are read. Records that were replaced or removed are left
//! out, and of large records only the heads are read.
//!
//! A record may move during the sweep: when its segment is evicted, it is appended again. Until the
//! place is overwritten, the old copy is there and is visited. If the log overwrites a place before
//! the sweep has reached it, the sweep continues to the log's new end. A sweep for a removal lets
//! no record be kept from then on, so every record that was on flash at the start is visited or
//! evicted. A sweep that only reads changes nothing: it continues once for each place that was
//! overwritten, up to the number of all places.

use std::io;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use crate::format::{FooterEntry, RecordKind};
use crate::heads::visit_heads;
use crate::store::{Store, count, hash_key, read_entries};

/// The purpose of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The keys are removed: none may be missed.
    Removal,
    /// The keys are read.
    Read,
}

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
    purpose: Purpose,
    mut visit: impl FnMut(u64, &[u8]),
    mut progress: impl FnMut(u64, u64) -> ControlFlow<()>,
) -> Swept {
    let mut swept = Swept::default();
    let mut segments = store.log.segments();
    let most = segments.len() + store.log.geometry.segments as usize;
    let mut unmoving = None;
    let mut at = 0;
    while let Some(&number) = segments.get(at) {
        at += 1;
        match visit_segment(store, number, &mut visit) {
            Ok(true) => {}
            Ok(false) if unmoving.is_none() && segments.len() < most => {
                if purpose == Purpose::Removal {
                    unmoving = Some(Unmoving::begin(store));
                }
                let last = *segments.last().expect("there is this one");
                segments.extend(store.log.segments().into_iter().filter(|later| *later > last));
            }
            Ok(false) => {} // evicted, and nothing of it was kept
            Err(_) => {
                count(&store.counters.failed_reads);
                swept.unreadable_segments += 1;
                if purpose == Purpose::Removal {
                    // What it holds is a miss from now on.
                    store.forget_place(number % store.log.geometry.segments);
                }
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
    visit_heads(&*store.log.flash, geometry, id, &entries, |entry, head| {
        // The hash is a checksum of the key.
        if hash_key(store.hash_seed, head.key) == entry.hash {
            visit(entry.hash, head.key);
        }
    })?;
    // The pages were intact if they are not another segment's by now.
    Ok(store.log.segment_in(place) == id)
}
