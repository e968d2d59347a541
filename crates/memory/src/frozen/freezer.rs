//! Freezing and thawing of a cache, its indexes, and the driver of its controller.
//!
//! One thread at a time freezes or thaws, while readers and the owners of the shards go on.
//!
//! To freeze, it removes entries from the reach of eviction shard by shard, a batch under each
//! lock. It puts them into a frozen index that only the owners see, and publishes that by one
//! pointer. From the first entry on, an owner that removes or replaces an entry does so in that
//! index, too.
//!
//! To thaw, it unpublishes the index and [poisons](FrozenIndex::poison) it, so that late readers
//! find nothing valid in it. Then the owners drop it and put the entries back into their policy
//! orders. It is freed when no reader names it.

use std::time::{Duration, Instant};

use equivalent::Equivalent;
use floe_freeze::{
    Action, Controller, Done, FreezeStats, Freezing, Latencies, Observations, Phase, Wake,
};
use floe_policy::{Cursor, Replacement};

use super::timing;
use crate::barrier;
use crate::budget::Budget;
use crate::frozen::index::FrozenIndex;
use crate::guard::{Found, Keep};
use crate::hazard::{Cell, Record};
use crate::index::KeyHash;
use crate::local::{self, Threads};
use crate::records::Records;
use crate::shard::{Shards, for_slots, rest};
use crate::sync::{
    Arc, AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Mutex, MutexGuard, Ordering, lock,
    lock_until,
};

/// The frozen part of a cache: its indexes and its controller.
#[derive(Debug)]
pub(crate) struct Freezer<K, V> {
    /// The index in use, published or not.
    pub(crate) index: Option<Arc<FrozenIndex<K, V>>>,
    /// Unpublished indexes that a reader may still use.
    pub(crate) retired: Vec<Arc<FrozenIndex<K, V>>>,
    /// True if any entry may be frozen.
    pub(crate) is_frozen: bool,
    /// True if freezing publishes its index to readers.
    pub(crate) is_published: bool,
    /// The driver of the controller; `None` without [`Freezing`].
    pub(crate) driver: Option<Driver>,
}

/// The result of [`Cache::freeze`](crate::Cache::freeze).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Frozen {
    /// Number of entries in the index.
    pub entries: usize,
    /// Memory of the index in bytes.
    pub index_bytes: usize,
    /// Time that freezing took.
    pub took: Duration,
}

impl<K, V> Freezer<K, V> {
    pub(crate) fn new(options: Option<Freezing>) -> Self {
        Self {
            index: None,
            retired: Vec::new(),
            is_frozen: false,
            is_published: options.is_none_or(|options| options.has_index()),
            driver: options.map(Driver::new),
        }
    }

    /// Returns the freezer for a caller that freezes or thaws the cache itself, and notes that for
    /// the controller.
    pub(crate) fn by_hand(&mut self) -> &mut Self {
        if let Some(driver) = &mut self.driver {
            driver.restart();
        }
        self
    }

    /// Returns true if any entry may be frozen.
    pub(crate) fn is_frozen(&self) -> bool {
        self.is_frozen
    }

    /// Returns the bytes of the index in use and of those that wait to be freed.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.index.iter().chain(&self.retired).map(|index| index.memory_bytes()).sum()
    }
}

/// Counts of a cache since it was made.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Totals {
    pub(crate) lookups: u64,
    pub(crate) misses: u64,
    pub(crate) dynamic_hits: u64,
    pub(crate) insertions: u64,
    pub(crate) evictions: u64,
    pub(crate) latencies: Latencies,
}

/// The controller of a cache, and the counts that it has seen so far.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) options: Freezing,
    pub(crate) controller: Controller,
    /// Origin of the controller's time.
    pub(crate) began: Duration,
    pub(crate) wake: Wake,
    pub(crate) seen: Totals,
    pub(crate) done: Option<Done>,
    /// True if a caller may have frozen entries without the controller.
    pub(crate) by_hand: bool,
}

impl Driver {
    pub(crate) fn new(options: Freezing) -> Self {
        Self {
            options,
            controller: Controller::new(options),
            began: timing::now(),
            wake: Wake { at: Duration::ZERO, lookups: u64::MAX },
            seen: Totals::default(),
            done: None,
            by_hand: false,
        }
    }

    /// Starts the controller again, after a caller has frozen or thawed the cache.
    pub(crate) fn restart(&mut self) {
        *self = Self { seen: self.seen, by_hand: true, ..Self::new(self.options) };
    }
}

/// Number of cells that are read under one lock, where threads have many.
const CELLS_AT_ONCE: usize = 1024;

/// State of freezing in a cache, shared by readers, owners and the freezer.
pub(crate) struct FrozenState<K, V> {
    /// The frozen index that readers are to use; null for none. The freezer frees it.
    published: AtomicPtr<FrozenIndex<K, V>>,
    /// N if one lookup in N is timed; 0 if none is.
    timed_one_in: AtomicU32,
    /// True if all entries are frozen, so that nothing can be evicted.
    is_all: AtomicBool,
    freezer: Mutex<Freezer<K, V>>,
    /// Bytes of the freezer's indexes.
    index_bytes: AtomicUsize,
    /// Last report of the controller, if there is one. It has its own lock, because the freezer can
    /// be busy for long.
    stats: Mutex<Option<FreezeStats>>,
}

impl<K, V> FrozenState<K, V> {
    /// Creates the state of a cache in which nothing is frozen.
    pub(crate) fn new(options: Option<Freezing>) -> Self {
        Self {
            published: AtomicPtr::default(),
            timed_one_in: AtomicU32::new(
                options.map_or(0, |options| options.requests_per_sample()),
            ),
            is_all: AtomicBool::new(false),
            freezer: Mutex::new(Freezer::new(options)),
            index_bytes: AtomicUsize::new(0),
            stats: Mutex::new(options.map(|_| FreezeStats::default())),
        }
    }

    /// Locks the freezer for a fork; `None` if it is not free until the given time.
    pub(crate) fn freezer_until(&self, until: Instant) -> Option<MutexGuard<'_, Freezer<K, V>>> {
        lock_until(&self.freezer, until)
    }

    /// Locks the report for a fork; `None` if it is not free until the given time.
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

    /// Returns the published index, if there is one, and protects it while this thread does other
    /// work with the cache.
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
    /// fences](Record::does_without_fences). Needs a free cell of the thread's record. A key that
    /// is not found here may still be in the cache.
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

    /// Returns N if one lookup in N is timed; 0 if none is.
    #[inline(always)]
    pub(crate) fn timed_one_in(&self) -> u32 {
        self.timed_one_in.load(Ordering::Relaxed) // a number, and any recent one will do
    }

    /// Sets the share of timed lookups: one in `lookups`.
    pub(crate) fn time_one_in(&self, lookups: u32) {
        self.timed_one_in.store(lookups, Ordering::Relaxed); // as above
    }

    /// Returns true if all entries are frozen, so that nothing can be evicted.
    #[inline(always)]
    pub(crate) fn is_all(&self) -> bool {
        self.is_all.load(Ordering::Relaxed) // late by a moment does no harm
    }

    /// Sets whether all entries are frozen.
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

    /// Publishes the index, or hides it from readers, which then find frozen entries through their
    /// shards.
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

    /// Updates the byte count of the freezer's indexes.
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

    /// Stores the controller's report.
    pub(crate) fn report(&self, stats: FreezeStats) {
        *lock(&self.stats) = Some(stats);
    }
}

/// The parts of a cache that freezing and its controller work on.
pub(crate) struct FreezeJob<'a, K, V, P: Replacement> {
    pub(crate) shards: &'a Shards<K, V, P>,
    pub(crate) state: &'a FrozenState<K, V>,
    pub(crate) threads: &'a Arc<Threads>,
    pub(crate) budget: &'a Budget,
}

impl<K, V, P: Replacement> FreezeJob<'_, K, V, P> {
    /// Freezes this share of each shard's entries, those that are most worth keeping, and publishes
    /// an index of them.
    pub(crate) fn freeze(&self, freezer: &mut Freezer<K, V>, share: f64) -> Frozen {
        let began = Instant::now();
        if share < 1.0 {
            self.thaw(freezer); // to rank them all anew
        } else {
            self.retire_index(freezer);
        }
        let (mut entries, mut memory) = (0, Vec::new());
        for shard in self.shards.iter() {
            let owner = shard.owner();
            entries += goal(share, owner.room.held().entries as usize);
            memory.extend(owner.slab.memory());
        }
        let index = Arc::new(FrozenIndex::with_room(entries, &memory));
        freezer.index = Some(Arc::clone(&index));
        self.state.count_index_bytes(freezer);
        for shard in self.shards.iter() {
            shard.owner().frozen.set_index(Some(Arc::clone(&index)));
            for_slots(shard, |owner, slots| owner.index_frozen(shard.table(), slots));
        }
        self.extend(freezer, share);
        self.state.set_all(share >= 1.0);
        self.state.publish(freezer, true);
        Frozen { entries: index.len(), index_bytes: index.memory_bytes(), took: began.elapsed() }
    }

    /// Freezes more entries until this share of each shard's entries is frozen.
    pub(crate) fn extend(&self, freezer: &mut Freezer<K, V>, share: f64) {
        freezer.is_frozen = true;
        for shard in self.shards.iter() {
            let (mut from, mut before) = (Cursor::START, shard.owner().frozen.count());
            while from != Cursor::END {
                let mut owner = shard.owner();
                let goal = goal(share, owner.room.held().entries as usize);
                if owner.frozen.count() >= goal {
                    break;
                }
                from = owner.freeze_best(shard.table(), goal, from);
                if from == Cursor::END && owner.frozen.count() > before {
                    // Entries that moved meanwhile were passed over.
                    (from, before) = (Cursor::START, owner.frozen.count());
                }
                drop(owner);
                if from != Cursor::END {
                    rest();
                }
            }
        }
    }

    /// Thaws all entries. Only the policy order shows afterwards that they were frozen: they return
    /// to it as just used.
    pub(crate) fn thaw(&self, freezer: &mut Freezer<K, V>) {
        self.retire_index(freezer);
        if !std::mem::take(&mut freezer.is_frozen) {
            return;
        }
        self.state.set_all(false);
        for shard in self.shards.iter() {
            for_slots(shard, |owner, slots| owner.unfreeze(shard.table(), slots));
            while !shard.owner().thaw_some() {
                rest();
            }
        }
    }

    /// Unpublishes the index for good, and frees retired ones that no thread reads.
    fn retire_index(&self, freezer: &mut Freezer<K, V>) {
        self.state.publish(freezer, false);
        if let Some(index) = freezer.index.take() {
            index.poison();
            // Only now may an entry leave without its being told: what a reader finds here late is
            // not valid.
            for shard in self.shards.iter() {
                shard.owner().frozen.set_index(None);
            }
            freezer.retired.push(index);
        }
        self.free_retired(freezer);
    }

    /// Frees retired indexes that no thread reads any more.
    pub(crate) fn free_retired(&self, freezer: &mut Freezer<K, V>) {
        let record = local::record(self.threads);
        self.state.free_retired(freezer, &self.threads.records, record);
    }

    /// Steps the controller if a step is due, and carries out its action.
    pub(crate) fn drive(&self) {
        let Some(mut freezer) = self.state.free_freezer() else { return };
        self.free_retired(&mut freezer);
        let Some(mut driver) = freezer.driver.take() else { return };
        for _ in 0..STEPS_AT_ONCE {
            if !self.step(&mut driver, &mut freezer) {
                break;
            }
        }
        freezer.driver = Some(driver);
    }

    /// Makes one step of the controller, if it is due. Returns true if the next step is due, too.
    fn step(&self, driver: &mut Driver, freezer: &mut Freezer<K, V>) -> bool {
        let now = timing::now() - driver.began;
        let lookups = self.threads.records.counted().lookups;
        let is_time = now >= driver.wake.at || lookups - driver.seen.lookups >= driver.wake.lookups;
        if !is_time && driver.done.is_none() {
            return false;
        }
        let seen = self.observe(driver, now);
        let step = driver.controller.step(&seen);
        driver.wake = step.wake;
        self.state.time_one_in(driver.controller.timed_one_in());
        self.state.report(driver.controller.stats());
        if driver.by_hand && driver.controller.stats().phase != Phase::WarmingUp {
            driver.by_hand = false;
            self.thaw(freezer); // what is measured from here on is the cache without
        }
        driver.done = match step.action {
            Action::Keep => None,
            Action::Bypass | Action::Resume => {
                self.state.publish(freezer, step.action == Action::Resume);
                None
            }
            Action::Thaw => {
                self.thaw(freezer);
                Some(Done::Thawed)
            }
            Action::Extend { to } => {
                self.extend(freezer, to);
                let (entries, frozen) = self.entries_and_frozen();
                Some(Done::Extended { share: frozen as f64 / entries.max(1) as f64 })
            }
            Action::Freeze { ratio } => Some(self.construct(freezer, ratio)),
            Action::FreezeAll => Some(self.construct(freezer, 1.0)),
        };
        driver.done.is_some()
    }

    fn construct(&self, freezer: &mut Freezer<K, V>, ratio: f64) -> Done {
        let frozen = self.freeze(freezer, ratio);
        Done::Constructed { took: frozen.took, entries: frozen.entries as u64 }
    }

    fn entries_and_frozen(&self) -> (u64, u64) {
        let shards = self.shards.iter().map(|shard| {
            let owner = shard.owner();
            (owner.room.held().entries as u64, owner.frozen.count() as u64)
        });
        shards.fold((0, 0), |sum, shard| (sum.0 + shard.0, sum.1 + shard.1))
    }

    /// Returns the observations since the last step.
    fn observe(&self, driver: &mut Driver, now: Duration) -> Observations {
        let mut totals = Totals::default();
        let mut threads = 0;
        self.threads.records.fold((), |(), record| {
            let lookups = record.lookups.get();
            threads += u32::from(lookups > record.lookups_seen.get());
            record.lookups_seen.set(lookups);
            totals.lookups += lookups;
            totals.misses += record.misses.get();
            totals.dynamic_hits += record.dynamic_hits.get();
            totals.latencies.add(&record.timings.latencies());
        });
        let (mut entries, mut weight, mut frozen) = (0, 0, 0);
        for shard in self.shards.iter() {
            let owner = shard.owner();
            totals.insertions += owner.counts.insertions - owner.counts.replacements;
            totals.evictions += owner.counts.evictions;
            entries += owner.room.held().entries as u64;
            weight += owner.room.held().weight as u64;
            frozen += owner.frozen.count() as u64;
        }
        let by_weight = self.budget.weight_limit().map(|limit| {
            if weight == 0 {
                u64::MAX
            } else {
                (u128::from(limit) * u128::from(entries) / u128::from(weight)) as u64
            }
        });
        let seen = std::mem::replace(&mut driver.seen, totals);
        let misses = totals.misses - seen.misses;
        let dynamic_hits = totals.dynamic_hits - seen.dynamic_hits;
        Observations {
            now,
            frozen_hits: (totals.lookups - seen.lookups).saturating_sub(misses + dynamic_hits),
            dynamic_hits,
            misses,
            insertions: totals.insertions.saturating_sub(seen.insertions),
            evictions: totals.evictions - seen.evictions,
            latencies: totals.latencies.since(&seen.latencies),
            entries,
            frozen,
            capacity: self
                .budget
                .entries_limit()
                .into_iter()
                .chain(by_weight)
                .min()
                .unwrap_or(u64::MAX),
            threads,
            done: driver.done.take(),
        }
    }
}

/// Returns the number of entries that a share of them makes.
fn goal(share: f64, entries: usize) -> usize {
    (share * entries as f64).round() as usize
}

/// Maximum number of steps of the controller in a row. Further ones wait for the next tick, so that
/// other caches have their turn.
const STEPS_AT_ONCE: usize = 16;
