//! Opening the flash again after a failure, without closing the cache.
//!
//! While the flash has failed, a key that is changed leaves the index in memory, but the log cannot
//! take its removal. So the index says which objects on flash are valid, and flash says which of
//! these it still has: the segments are read as after a crash, and the index keeps the objects
//! whose records are in a segment of both. Every other object that a crash would bring back gets a
//! removal in the log, before the call returns.
//!
//! Changes of keys go on meanwhile. The store notes the hashes of those that the log cannot take,
//! until the log continues.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use crate::flash::{Flash, FlashSwitch};
use crate::format::{
    DriveSet, PAGE_BYTES, RECORD_HEADER_BYTES, SegmentId, Superblock, UNIT_BYTES, seconds_now,
};
use crate::index::Index;
use crate::log::{EMPTY_AHEAD, Refused, SEGMENTS_IN_MEMORY};
use crate::recovery::{
    OpenFailure, SuperblockWriter, find_segments, read_segments, read_superblock, records_in, units,
};
use crate::store::{Store, read_entries};

/// The result of [`Hybrid::reopen_flash`](crate::Hybrid::reopen_flash).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reopened {
    /// The flash has not failed; nothing was done.
    Working,
    /// The cache on flash is in use again.
    Restored {
        /// Objects that were on flash before the call and are not any more: the drive has lost
        /// them, or they had not been written yet.
        lost: u64,
        /// Objects on flash that were outdated, because their keys were changed during the failure.
        /// They were removed.
        outdated: u64,
    },
    /// The file was missing or empty. A new cache was created in it.
    New {
        /// Objects that were on flash before the failure.
        lost: u64,
    },
}

impl Reopened {
    /// Adds the result for another drive.
    pub(crate) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Working, one) | (one, Self::Working) => one,
            (Self::New { lost }, Self::New { lost: more }) => Self::New { lost: lost + more },
            (one, other) => {
                let parts = |it| match it {
                    Self::Working => (0, 0),
                    Self::New { lost } => (lost, 0),
                    Self::Restored { lost, outdated } => (lost, outdated),
                };
                let ((lost, outdated), (more, others)) = (parts(one), parts(other));
                Self::Restored { lost: lost + more, outdated: outdated + others }
            }
        }
    }
}

/// A store whose log has continued and does not run yet.
#[derive(Debug)]
pub(crate) struct Revived {
    /// Hashes of keys whose removal the log does not have.
    unlogged: Vec<u64>,
    /// Number of the first valid segment.
    first_segment: u64,
    lost: u64,
    is_new: bool,
    /// The set of drives, if this one took the place of another drive.
    pub(crate) new_set: Option<DriveSet>,
    /// The old opening of the file. Dropping it waits for the reads in flight.
    old: Arc<dyn Flash>,
}

/// Reads the cache on `flash`, a new opening of the file, and continues the log there. The log has
/// failed and does not run. If this fails, all stays as it was. A new drive in a set gets the
/// identity `new_id`, so that the lost one is known to be outdated.
pub(crate) fn revive<T>(
    store: &Store<T>,
    superblock: &SuperblockWriter,
    switch: &FlashSwitch,
    flash: Arc<dyn Flash>,
    new_id: u64,
) -> Result<Revived, OpenFailure> {
    let (geometry, last) = (store.log.geometry, superblock.current());
    let (expected, actual) = (geometry.total_bytes(), flash.size_bytes());
    if expected > actual {
        return Err(OpenFailure::Short { expected, actual });
    }
    let found = read_superblock(&*flash)?;
    let session = last.session.max(found.map_or(0, |block| block.session)) + 1;
    let block = match found {
        Some(block) if block.id != last.id || block.geometry != geometry => {
            return Err(OpenFailure::OtherCache);
        }
        Some(block) => {
            let first_segment = block.first_segment.max(last.first_segment);
            // The set in memory is at least as new as that on flash.
            Superblock { first_segment, set: last.set, ..block }
        }
        None if last.set.drives > 0 => {
            let mut set = last.set;
            set.members[set.place as usize].id = new_id;
            set.generation += 1;
            Superblock { id: new_id, set, ..last }
        }
        None => last,
    };
    let new_set = (block.set != last.set).then_some(block.set);
    let result = Comparison { store, flash: &*flash, block: &block, is_new: found.is_none() }.run();
    let noted = |store: &Store<T>| {
        let mut unlogged = store.unlogged.lock().unwrap_or_else(PoisonError::into_inner);
        unlogged.take().unwrap_or_default()
    };
    let Found { known, next, mut unlogged, lost } = match result {
        Ok(found) => found,
        Err(error) => {
            drop(noted(store));
            return Err(error.into());
        }
    };
    // The log is ahead of its newest segment on flash by a bounded number of segments, which a
    // later recovery relies on. So the first segment is on flash before the log continues.
    let id = SegmentId { cache: block.id, number: next, session };
    let mut page = flash.buffers().take(PAGE_BYTES);
    page.fill(0);
    id.encode(&mut page, seconds_now());
    let begun = flash.write(&page, geometry.segment_start(next)).and_then(|()| flash.sync());
    if let Err(error) = begun {
        drop(noted(store));
        return Err(error.into());
    }
    let stripes = store.stripes.all();
    unlogged.extend(noted(store));
    // Nothing on flash is valid: one number says so, in place of many removals.
    let is_empty = store.index.len() == 0;
    if is_empty {
        unlogged.clear();
    }
    let first_segment = if is_empty { next } else { block.first_segment };
    superblock.adopt(Superblock { session: session - 1, ..block });
    let old = switch.replace(flash);
    store.log.revive((block.id, session), next, &known);
    drop(stripes);
    Ok(Revived { unlogged, first_segment, lost, is_new: found.is_none(), new_set, old })
}

/// Logs the removals that the log lacks, and begins the session. The log runs.
pub(crate) fn complete<T>(
    store: &Store<T>,
    superblock: &SuperblockWriter,
    revived: Revived,
) -> io::Result<Reopened> {
    let Revived { unlogged, first_segment, lost, is_new, new_set: _, old } = revived;
    drop(old);
    for &hash in &unlogged {
        loop {
            let stripe = store.stripes.of(hash);
            // A newer object in the log is after the outdated one, and must stay.
            let appended = match store.index.peek(hash) {
                Some(_) => Ok(()),
                None => store.append_removal(hash),
            };
            drop(stripe);
            match appended {
                Ok(()) => break,
                Err(Refused::Full) => store.log.wait_for_room(RECORD_HEADER_BYTES * 2),
                Err(Refused::Ended) => return Err(failed(store)),
            }
        }
    }
    store.log.sync_until(store.log.end())?;
    superblock.begin_session(&*store.log.flash, first_segment)?;
    Ok(match is_new {
        true => Reopened::New { lost },
        false => Reopened::Restored { lost, outdated: unlogged.len() as u64 },
    })
}

fn failed<T>(store: &Store<T>) -> io::Error {
    io::Error::other(store.log.failure().unwrap_or_else(|| "the cache is closed".to_owned()))
}

/// The comparison of the index with the content of the flash.
struct Comparison<'a, T> {
    store: &'a Store<T>,
    flash: &'a dyn Flash,
    block: &'a Superblock,
    is_new: bool,
}

/// The result of the comparison.
struct Found {
    /// Numbers and sessions of the valid segments.
    known: Vec<(u64, u64)>,
    /// Number of the segment at which the log continues.
    next: u64,
    unlogged: Vec<u64>,
    lost: u64,
}

impl<T> Comparison<'_, T> {
    /// Removes the objects from the index that flash does not have, and finds those on flash that
    /// the index does not have. From here on the store notes the changes that it cannot log.
    fn run(&self) -> io::Result<Found> {
        let (store, geometry) = (self.store, self.store.log.geometry);
        let open = store.log.open_number();
        *store.unlogged.lock().unwrap_or_else(PoisonError::into_inner) = Some(Vec::new());
        if self.is_new {
            let lost = store.index.retain(|_| false);
            return Ok(Found { known: Vec::new(), next: open + 1, unlogged: Vec::new(), lost });
        }
        // The log continues behind all numbers that it has used, so that an old position is known.
        let (found, newest) = find_segments(self.flash, self.block, open)?;
        let next = newest + 1;
        let oldest = next + EMPTY_AHEAD + 1 + SEGMENTS_IN_MEMORY as u64;
        debug_assert!(found.iter().all(|it| it.id.number + geometry.segments >= oldest));
        // End of the records of each place that the index may point to, in units.
        let mut ends = vec![0u64; geometry.segments as usize];
        let on_flash = Index::new(units(geometry), records_in(geometry, &found));
        let damaged =
            read_segments(self.flash, self.block, &found, &on_flash, |found, entries| {
                if store.log.segment_in(found.place) == found.id {
                    let last = entries.last().map_or(0, |entry| entry.offset / UNIT_BYTES + 1);
                    ends[found.place as usize] = last as u64;
                }
            })?;
        let lost = store.index.retain(|place| {
            let (at, offset) = geometry.locate(place.address);
            ((offset / UNIT_BYTES) as u64) < ends[at as usize]
        });
        let mut unlogged = Vec::new();
        for found in &found {
            let of = (geometry, self.block.hash_seed);
            // No crash brings the objects of an unreadable segment back.
            let entries = read_entries(self.flash, of, found.place, found.id).unwrap_or_default();
            for entry in entries.iter().filter(|entry| entry.kind.is_indexed()) {
                let address = Some(geometry.address(found.place, entry.offset));
                let in_index = |index: &Index| index.peek(entry.hash).map(|place| place.address);
                if in_index(&on_flash) == address && in_index(&store.index) != address {
                    store.index.remove(entry.hash);
                    unlogged.push(entry.hash);
                }
            }
        }
        store.counters.failed_reads.fetch_add(damaged, Ordering::Relaxed); // a statistic
        let is_known = |number: u64| ends[(number % geometry.segments) as usize] > 0;
        let known = found.iter().map(|found| (found.id.number, found.id.session));
        let known = known.filter(|(number, _)| is_known(*number)).collect();
        Ok(Found { known, next, unlogged, lost })
    }
}
