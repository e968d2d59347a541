//! The frozen index as readers find it, and the freezer, which makes and frees it.

use std::time::Instant;

use equivalent::Equivalent;

use crate::barrier;
use crate::cell::Cell;
use crate::frozen::freezer::Freezer;
use crate::frozen::index::FrozenIndex;
use crate::frozen::options::{FreezeStats, Freezing};
use crate::guard::Keep;
use crate::hash::KeyHash;
use crate::hazard::Record;
use crate::records::Records;
use crate::search::Found;
use crate::shards::rest;
use crate::sync::{
    Arc, AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Mutex, MutexGuard, Ordering, lock,
    lock_until,
};

/// Cells that are read under one lock, where threads have many.
const CELLS_AT_ONCE: usize = 1024;

/// The state of freezing in a cache.
pub(crate) struct FrozenState<K, V> {
    /// The frozen index that readers are to use; null for none. Freed by the freezer.
    published: AtomicPtr<FrozenIndex<K, V>>,
    /// One lookup in so many is timed; 0 for none.
    timed_one_in: AtomicU32,
    /// True if nothing can be evicted, as all is frozen.
    is_all: AtomicBool,
    freezer: Mutex<Freezer<K, V>>,
    /// Bytes of the freezer's indexes.
    index_bytes: AtomicUsize,
    /// The last report of the controller, if there is one. Apart from the freezer, which can be
    /// busy for long.
    stats: Mutex<Option<FreezeStats>>,
}

impl<K, V> FrozenState<K, V> {
    /// Nothing is frozen.
    pub(crate) fn new(options: Option<Freezing>) -> Self {
        Self {
            published: AtomicPtr::default(),
            timed_one_in: AtomicU32::new(options.map_or(0, |options| options.sample_one_in)),
            is_all: AtomicBool::new(false),
            freezer: Mutex::new(Freezer::new(options)),
            index_bytes: AtomicUsize::new(0),
            stats: Mutex::new(options.map(|_| FreezeStats::default())),
        }
    }

    /// Takes the freezer for a fork.
    pub(crate) fn freezer_until(&self, until: Instant) -> Option<MutexGuard<'_, Freezer<K, V>>> {
        lock_until(&self.freezer, until)
    }

    /// Takes the report for a fork.
    pub(crate) fn stats_until(
        &self,
        until: Instant,
    ) -> Option<MutexGuard<'_, Option<FreezeStats>>> {
        lock_until(&self.stats, until)
    }

    /// Returns the published index, or null. [`find`](Self::find) reads it again before it is used.
    #[inline(always)]
    pub(crate) fn published(&self) -> *const FrozenIndex<K, V> {
        self.published.load(Ordering::Relaxed) // not used before it is read again
    }

    /// The frozen index, if there is one, kept whatever else this thread does with the cache
    /// meanwhile.
    #[inline]
    pub(crate) fn keep<'a>(
        &'a self,
        record: &'a Record,
    ) -> Option<(&'a FrozenIndex<K, V>, Keep<'a>)> {
        let index = self.published();
        if index.is_null() || !record.does_without_fences() {
            return None;
        }
        let cell = record.another_cell();
        cell.store(index as usize, Ordering::Release); // see `Record::looked_at`
        barrier::light_if_asymmetric();
        let keep = Keep::new(cell);
        // Acquire: what is in the index was written before it was published. SAFETY: the cell names
        // the index, and it was published after the cell did. Used as long as the cell is kept.
        (self.published.load(Ordering::Acquire).cast_const() == index)
            .then(|| (unsafe { &*index }, keep))
    }

    /// Looks a key up at its likely place in the frozen index, for a thread that [does without
    /// fences](Record::does_without_fences), with a free cell of its record; not to find it there
    /// says nothing.
    #[inline(always)]
    pub(crate) fn find<'a, Q>(
        &self,
        index: *const FrozenIndex<K, V>,
        record: &Record,
        cell: &'a Cell,
        hash: KeyHash,
        key: &Q,
    ) -> Option<Found<'a, K, V>>
    where
        Q: Equivalent<K> + ?Sized,
    {
        record.probe(index as usize);
        barrier::light_if_asymmetric();
        // Acquire: what is in the index was written before it was published.
        let is_published =
            !index.is_null() && self.published.load(Ordering::Acquire).cast_const() == index;
        let kept = if is_published {
            // SAFETY: the record names the index, and it was published after the record did.
            let index = unsafe { &*index };
            index.likely(hash.in_shard()).and_then(|likely| index.keep(likely, cell))
        } else {
            None
        };
        // Before the key is compared, by the user's code, which may use this cache and panic. A
        // thread at rest would keep an index that is gone.
        record.probed_out();
        let (entry, keep) = kept?;
        key.equivalent(&entry.key).then(|| Found { entry, cell: keep.into_cell() })
    }

    /// Returns how rarely a lookup is timed: one in so many, or none for 0.
    #[inline(always)]
    pub(crate) fn timed_one_in(&self) -> u32 {
        self.timed_one_in.load(Ordering::Relaxed) // a number, and any recent one will do
    }

    /// Has one lookup in so many be timed.
    pub(crate) fn time_one_in(&self, lookups: u32) {
        self.timed_one_in.store(lookups, Ordering::Relaxed); // as above
    }

    /// Returns whether nothing can be evicted, as all is frozen.
    #[inline(always)]
    pub(crate) fn is_all(&self) -> bool {
        self.is_all.load(Ordering::Relaxed) // late by a moment does no harm
    }

    /// Notes whether all is frozen.
    pub(crate) fn set_all(&self, is_all: bool) {
        self.is_all.store(is_all, Ordering::Relaxed); // as above
    }

    /// Locks the freezer, for a caller that freezes or thaws the cache.
    pub(crate) fn freezer(&self) -> MutexGuard<'_, Freezer<K, V>> {
        lock(&self.freezer)
    }

    /// Locks the freezer, unless a caller is freezing or thawing the cache.
    pub(crate) fn free_freezer(&self) -> Option<MutexGuard<'_, Freezer<K, V>>> {
        self.freezer.try_lock().ok()
    }

    /// Publishes the index, or hides it from readers, which then find frozen entries in the index
    /// of all entries.
    pub(crate) fn publish(&self, freezer: &Freezer<K, V>, publish: bool) {
        // Where each hit passes a fence, the shorter way is not worth another test on the way
        // there; that frozen entries are not promoted remains.
        let is_published = publish && freezer.is_published && barrier::is_asymmetric();
        let index = freezer.index.as_ref().filter(|_| is_published);
        let index = index.map_or(std::ptr::null_mut(), |index| Arc::as_ptr(index).cast_mut());
        self.published.store(index, Ordering::Release); // who sees the index sees it whole
    }

    /// Frees retired indexes that no thread reads any more. `record` is the calling thread's.
    pub(crate) fn free_retired(
        &self,
        freezer: &mut Freezer<K, V>,
        records: &Records,
        record: &Record,
    ) {
        if freezer.retired.is_empty() {
            return;
        }
        let asked = records.ask();
        let address = |index: &Arc<FrozenIndex<K, V>>| Arc::as_ptr(index) as usize;
        if let Some(protected) = records.protected(record, asked, std::iter::empty()) {
            freezer.retired.retain(|index| protected.binary_search(&address(index)).is_ok());
        } else {
            while !records.advance(record, CELLS_AT_ONCE, asked) {
                rest();
            }
            let is_cleared =
                |index: &Arc<_>| records.are_cleared(&[(address(index), asked)]) == [true];
            freezer.retired.retain(|index| !is_cleared(index));
        }
        self.count_index_bytes(freezer);
    }

    /// Counts the freezer's indexes anew.
    pub(crate) fn count_index_bytes(&self, freezer: &Freezer<K, V>) {
        self.index_bytes.store(freezer.memory_bytes(), Ordering::Relaxed); // a count
    }

    /// Returns the bytes of the freezer's indexes.
    pub(crate) fn index_bytes(&self) -> usize {
        self.index_bytes.load(Ordering::Relaxed) // a count
    }

    /// Returns the controller's last report, if there is a controller.
    pub(crate) fn stats(&self) -> Option<FreezeStats> {
        lock(&self.stats).clone()
    }

    /// Notes the controller's report.
    pub(crate) fn report(&self, stats: FreezeStats) {
        *lock(&self.stats) = Some(stats);
    }
}
