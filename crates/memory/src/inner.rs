//! State that clones of a cache share, and the steps of every operation on it.
//!
//! # Lookups of frozen entries
//!
//! Where some entries are frozen, lookups search the frozen index first, and then the shard.
//!
//! These are separate functions: with their code in it, a lookup where nothing is frozen would need
//! twice as many registers, and be too long to be inlined. The usual one, [`look_up_frozen`], calls
//! the others last, so that it saves no register.

use std::any::TypeId;
use std::hash::{BuildHasher, Hash};
use std::time::Instant;

use equivalent::Equivalent;
use floe_policy::{Eviction, HitKind, Marks, PolicyInfo, Replacement, Touch};

use crate::budget::{Budget, WEIGHT_MAX};
use crate::clock::{Clock, Sweep, TICK_US, Ticks};
use crate::entry::Entry;
use crate::fork;
use crate::fork::{Forks, Locks};
use crate::frozen::freezer::{FreezeJob, Freezer, FrozenState};
use crate::frozen::index::FrozenIndex;
use crate::frozen::timing::{self, TimedResult};
use crate::guard::{Found, Keep};
use crate::hazard::{Cell, Record};
use crate::index::{DefaultHasher, KeyHash};
use crate::lifetimes::Lifetimes;
use crate::local::{self, Threads};
use crate::options::LiveWith;
use crate::owner::{Owner, Shape};
use crate::pending::PendingLoads;
use crate::records::RecordLocks;
use crate::shard::{FastLookup, Mark, Shard, Shards};
use crate::stats::{AdmissionStats, Cause, LoadCounts, Stats};
use crate::sync::{Arc, MutexGuard, Ordering, lock, lock_until};
use crate::user_code::FirstPanic;
use floe_freeze::FreezeStats;

/// Function that returns the weight of an entry.
pub(crate) type Weigher<K, V> = Box<dyn Fn(&K, &V) -> u64 + Send + Sync>;
/// Function called for each entry that leaves, with the cause.
pub(crate) type Listener<K, V> = Box<dyn Fn(&K, &V, Cause) + Send + Sync>;
/// Check of a removed entry before it is freed. The flag is true if a cell or a hold names the
/// entry. Returns true if the entry must be kept.
pub(crate) type KeepCheck<K, V> = Box<dyn Fn(&Entry<K, V>, bool) -> bool + Send + Sync>;

/// The shared state of a cache.
pub(crate) struct Inner<K, V, P: Replacement, S> {
    pub(crate) shards: Shards<K, V, P>,
    pub(crate) hasher: S,
    /// Serial number of the cache, a copy of that in `threads`.
    pub(crate) serial: u64,
    pub(crate) threads: Arc<Threads>,
    pub(crate) frozen: FrozenState<K, V>,
    pub(crate) budget: Budget,
    /// True if insertions may take the fast path: there is no listener, weigher, admission,
    /// lifetime or pool for low priority.
    pub(crate) inserts_usually: bool,
    /// True if the policy is to be told of low priority.
    pub(crate) tells_low: bool,
    pub(crate) weigher: Option<Weigher<K, V>>,
    pub(crate) listener: Option<Listener<K, V>>,
    pub(crate) lifetimes: Lifetimes,
    pub(crate) live_with: Option<LiveWith<K, V>>,
    pub(crate) policy_info: &'static PolicyInfo,
    /// Name of the admission, if there is one.
    pub(crate) admission: Option<String>,
    pub(crate) loads: LoadCounts,
    /// Check that runs before entries are freed. Dropped last, because entries may refer to its
    /// state.
    pub(crate) keep_check: Option<KeepCheck<K, V>>,
}

impl<K, V, P: Replacement, S> Inner<K, V, P, S> {
    /// Returns the calling thread's record.
    #[inline(always)]
    pub(crate) fn record(&self) -> &Record {
        // SAFETY: this cache is borrowed for as long.
        match unsafe { local::last_record(self.serial) } {
            Some(record) => record,
            None => other_record(self),
        }
    }

    pub(crate) fn weigh(&self, key: &K, value: &V) -> u64 {
        self.weigher.as_ref().map_or(1, |weigh| weigh(key, value).clamp(1, WEIGHT_MAX))
    }

    /// Returns the parts of the cache that freezing works on.
    pub(crate) fn freezing(&self) -> FreezeJob<'_, K, V, P> {
        let Self { shards, frozen: state, threads, budget, .. } = self;
        FreezeJob { shards, state, threads, budget }
    }

    /// Returns the size of a shard by the present limits.
    pub(crate) fn shape(&self) -> Shape {
        shape::<K, V>(&self.budget, self.weigher.is_some(), self.shards.len())
    }

    /// Removes expired entries from all shards. Returns the ticks until the next expiry if no entry
    /// is used, and the time of the sweep in microseconds.
    pub(crate) fn sweep_all(&self, panic: &mut FirstPanic) -> (Option<u64>, u64) {
        let now_us = self.lifetimes.clock().micros();
        let (now, first) = (Ticks(now_us / TICK_US), std::cell::Cell::new(None));
        for shard in self.shards.iter() {
            self.retain(shard, panic, |entry| {
                let left = entry.head.left(now)?;
                if left == 0 {
                    return Some(Cause::Expired);
                }
                first.set(first.get().into_iter().chain([left]).min());
                None
            });
        }
        (first.get(), now_us)
    }

    /// Records the end of an insertion, which may complete a timed miss.
    #[inline(always)]
    pub(crate) fn note_insertion(&self, hash: KeyHash) {
        if self.frozen.timed_one_in() != 0 {
            // whether it is 0 never changes
            let timings = &self.record().timings;
            if timings.waits_for_insertion() {
                timings.inserted(hash);
            }
        }
    }

    /// Locks a shard for a change that makes a pending load of the key out of date: no such load
    /// inserts its value from now on. A load that begins later sees the changes that the caller has
    /// made before.
    ///
    /// A loading thread is counted under this lock before it reads anything (see `Cache::turn`). So
    /// where no thread is counted, any load of the key takes the lock after this call, and the lock
    /// orders its reads after the new data.
    #[inline(always)]
    pub(crate) fn owner_past_loads<'a, Q>(
        &self,
        shard: &'a Shard<K, V, P>,
        hash: KeyHash,
        key: &Q,
    ) -> MutexGuard<'a, Owner<K, V, P>>
    where
        Q: Equivalent<K> + ?Sized,
    {
        let owner = shard.owner();
        if shard.is_loading() { self.detach(shard, owner, hash, key) } else { owner }
    }

    /// Makes all pending loads out of date: none of them inserts its value from now on.
    pub(crate) fn outdate_loads(&self) {
        for shard in self.shards.iter() {
            let detached = lock(&shard.pending_loads).clear();
            drop(detached); // the user's code, outside of the lock
        }
    }

    /// Detaches the load of a key and takes the lock again. A load attached in between begins after
    /// the change.
    #[cold]
    fn detach<'a, Q>(
        &self,
        shard: &'a Shard<K, V, P>,
        owner: MutexGuard<'a, Owner<K, V, P>>,
        hash: KeyHash,
        key: &Q,
    ) -> MutexGuard<'a, Owner<K, V, P>>
    where
        Q: Equivalent<K> + ?Sized,
    {
        drop(owner); // it comes after that of the pending loads
        let mut detached = Vec::new(); // dropped outside of the locks: keys are the user's code
        lock(&shard.pending_loads).detach(
            hash.whole(),
            |found| key.equivalent(found),
            &mut detached,
        );
        drop(detached);
        shard.owner()
    }
}

impl<K: Send + Sync, V: Send + Sync, P: Replacement, S: Send + Sync> Sweep for Inner<K, V, P, S> {
    fn tick(&self) -> bool {
        self.freezing().drive();
        self.lifetimes.upkeep().sees_more(self.threads.records.counted().lookups)
    }

    fn sweep(&self) -> Option<u64> {
        let (upkeep, mut panic) = (self.lifetimes.upkeep(), FirstPanic::none());
        let now_us = Clock::system_us();
        // A manual clock has no other time than this.
        if upkeep.is_to_sweep(now_us) || self.lifetimes.clock().is_manual() {
            upkeep.begin_sweep(now_us);
            if let (Some(ticks), now_us) = self.sweep_all(&mut panic) {
                upkeep.end_sweep((now_us / TICK_US + ticks) * TICK_US);
            }
        }
        // Nobody may use the cache again.
        let waits = self.reclaim(&mut panic);
        panic.raise();
        let again = waits.then(|| upkeep.reclaim_again(now_us));
        upkeep.next_sweep().into_iter().chain(again).min()
    }
}

impl<K, V, P: Replacement, S> Drop for Inner<K, V, P, S> {
    fn drop(&mut self) {
        fork::forget(self.serial);
        self.lifetimes.upkeep().forget();
        self.drop_entries();
    }
}

/// Bytes of removed entries that may wait to be freed in a whole cache. More would be out of the
/// processor's caches by the time their memory is used again.
const WAITING_BYTES: usize = 1 << 20;
/// Bytes that an entry counts as beside its own, if it needs to be dropped: keys and values may own
/// memory, and do not say how much.
const OWNED_BYTES: usize = 1 << 10;

/// Returns the size of each of `shards` shards by the limits of the cache.
pub(crate) fn shape<K, V>(budget: &Budget, weighed: bool, shards: usize) -> Shape {
    let number = shards;
    let shards = shards as u64;
    let share = budget.share(shards);
    let entries = budget.entries_limit();
    let weight = budget.weight_limit();
    // Keys fall unevenly: four standard deviations more than the share are ready at once.
    let slots = entries.map(|entries| {
        let share = entries.div_ceil(shards);
        if shards == 1 { share } else { share + 4 * share.isqrt() + 8 }.min(entries) as usize
    });
    // Freeing has a cost for each batch. Entries that own nothing may wait a little longer in small
    // shards: they occupy only the cache's own memory.
    let owns = std::mem::needs_drop::<Entry<K, V>>();
    let (batch_min, owned) = if owns { (16, OWNED_BYTES) } else { (32, 0) };
    // Two batches of each shard wait.
    let waiting_max = WAITING_BYTES / (size_of::<Entry<K, V>>() + owned);
    let batch_max = (waiting_max / (2 * number)).clamp(batch_min, 4096);
    let batch = entries.map_or(256, |entries| (entries / shards / 32) as usize);
    let batch = batch.clamp(batch_min, batch_max);
    let batch_weight = if weighed {
        weight.map_or(u64::MAX / 2, |weight| (weight / shards / 48).max(1))
    } else {
        u64::MAX / 2
    };
    let capacity = if weighed { weight.or(entries) } else { entries };
    let capacity = capacity.unwrap_or(u64::MAX).div_ceil(shards);
    Shape {
        slots,
        shards: number,
        batch,
        batch_weight,
        capacity,
        unlimited: budget.unlimited(share),
    }
}

/// Number of lookups that [`Inner::look_up_many`] runs at once.
pub(crate) const BATCH: usize = 16;
/// Size in bytes up to which all indexes count as resident in the processor's cache.
const NEAR_BYTES: usize = 64 << 10;

impl<K, V, P: Replacement, S> Inner<K, V, P, S> {
    /// Records a hit in the policy's marks, and in its order where the marks require that.
    #[inline(always)]
    fn note_hit(
        &self,
        hash: KeyHash,
        record: &Record,
        found: &Found<'_, K, V>,
        mark: &Mark<'_, P>,
    ) {
        record.dynamic_hits.add(1);
        let touch = if <P::Marks as Marks>::PLAIN.is_some() {
            mark.touch(|| found.entry.slot())
        } else {
            touch_with_care(found, mark)
        };
        if <P::Marks as Marks>::KIND == HitKind::LruLike && touch != Touch::Noted {
            self.promote(self.shards.of(hash), record, found.entry, touch);
        }
    }

    #[inline(never)]
    fn promote(&self, shard: &Shard<K, V, P>, record: &Record, entry: &Entry<K, V>, touch: Touch) {
        let owner = if touch == Touch::Promote { Some(shard.owner()) } else { shard.try_owner() };
        match owner {
            Some(mut owner) => owner.promote(shard.table(), entry.slot(), entry),
            None => record.promotions_skipped.add(1),
        }
    }
}

impl<K, V, P: Replacement, S: BuildHasher + 'static> Inner<K, V, P, S> {
    #[inline(always)]
    pub(crate) fn hash<Q: Hash + ?Sized>(&self, key: &Q) -> KeyHash {
        let raw = self.hasher.hash_one(key);
        // Known when this is compiled.
        if TypeId::of::<S>() == TypeId::of::<DefaultHasher>() {
            KeyHash::of_mixed(raw)
        } else {
            KeyHash::of_any(raw)
        }
    }

    /// Looks a key up, unless its entry has expired. Counts and marks nothing. Defers the expiry of
    /// an entry with a time to idle only if `is_use`.
    pub(crate) fn peek<'a, Q>(
        &'a self,
        record: &'a Record,
        hash: KeyHash,
        key: &Q,
        is_use: bool,
    ) -> Option<Found<'a, K, V>>
    where
        Q: Equivalent<K> + ?Sized,
    {
        let (found, _) = self.shards.of(hash).slow_lookup(record, hash.in_shard(), key, false)?;
        let expiry = &found.entry.head;
        if !expiry.is_set() {
            return Some(found);
        }
        if is_use {
            return self.unless_expired(hash, found);
        }
        let keep = Keep::new(found.cell);
        (!expiry.has_expired(self.lifetimes.clock().now())).then(|| {
            keep.into_cell();
            found
        })
    }

    /// Looks a key up and counts the hit or the miss.
    #[inline(always)]
    pub(crate) fn look_up<'a, Q>(
        &'a self,
        record: &'a Record,
        hash: KeyHash,
        key: &Q,
    ) -> Option<Found<'a, K, V>>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        if record.lookups.next() >= record.usual_below.get() {
            return self.look_up_unusually(record, hash, key);
        }
        let frozen = self.frozen.published();
        if !frozen.is_null() {
            return look_up_frozen(self, frozen, record, hash, key);
        }
        let table = self.shards.table(hash);
        match Shard::<K, V, P>::fast_lookup::<true, Q>(table, record, hash.in_shard(), key) {
            FastLookup::Hit((found, mark)) => self.count(hash, record, found, mark, key),
            FastLookup::Miss => {
                record.misses.add(1);
                None
            }
            FastLookup::Unsure => self.look_up_further(record, key),
        }
    }

    /// Looks a key up for a lookup that is timed, or for a thread that has to use fences.
    #[cold]
    fn look_up_unusually<'a, Q>(
        &'a self,
        record: &'a Record,
        hash: KeyHash,
        key: &Q,
    ) -> Option<Found<'a, K, V>>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let is_timed = record.lookups.get() >= record.timings.next.get();
        if is_timed {
            let one_in = self.frozen.timed_one_in();
            record.timings.next.set(record.lookups.get() + record.timings.draw(one_in));
        }
        if record.does_without_fences() {
            record.usual_below.set(record.timings.next.get());
        }
        let (began, dynamic_hits) = (is_timed.then(timing::now), record.dynamic_hits.get());
        let found = look_up_beside_guards(self, record, key);
        if let Some(began) = began {
            let outcome = match &found {
                None => TimedResult::Miss,
                Some(_) if record.dynamic_hits.get() == dynamic_hits => TimedResult::Frozen,
                Some(_) => TimedResult::Dynamic,
            };
            record.timings.note(outcome, hash, began);
        }
        found
    }

    /// Looks up to [`BATCH`] keys up, and prefetches their memory together. Calls `found` for those
    /// that are present, in order.
    #[inline]
    pub(crate) fn look_up_many<'a, Q>(
        &'a self,
        record: &'a Record,
        hashes: &[KeyHash],
        keys: &[Q],
        mut found: impl FnMut(usize, Found<'a, K, V>),
    ) where
        Q: Hash + Equivalent<K>,
    {
        let Some(first) = hashes.first() else { return };
        if !record.does_without_fences() || self.shards.index_bytes(*first) <= NEAR_BYTES {
            for (at, (key, hash)) in keys.iter().zip(hashes).enumerate() {
                if let Some(hit) = self.look_up(record, *hash, key) {
                    found(at, hit);
                }
            }
            return;
        }
        let mut likely = [None; BATCH];
        let index = self.frozen.keep(record);
        let index = index.as_ref().map(|(index, _)| *index);
        if let Some(index) = index {
            hashes.iter().for_each(|hash| index.prefetch(hash.in_shard()));
            for (likely, hash) in likely.iter_mut().zip(hashes) {
                *likely = index.likely_further(hash.in_shard());
                likely.iter().for_each(|&likely| index.prefetch_entry(likely));
            }
        } else {
            for hash in hashes {
                self.shards.table(*hash).table().index.prefetch(hash.in_shard());
            }
            for hash in hashes {
                let table = self.shards.table(*hash).table();
                crate::hints::span(Shard::<K, V, P>::likely_address(table, hash.in_shard()));
            }
        }
        for (at, (key, hash)) in keys.iter().zip(hashes).enumerate() {
            // By the usual way, which times it.
            let is_timed = record.lookups.get() + 1 >= record.usual_below.get();
            let likely = likely[at].filter(|_| !is_timed);
            let frozen = likely.zip(index).and_then(|(likely, index)| {
                if !record.does_without_fences() {
                    return None; // this thread may have told so by now, between two keys
                }
                let (entry, keep) = index.keep(likely, record.first_cell()?)?;
                if !key.equivalent(&entry.key) {
                    return None;
                }
                self.unless_expired(*hash, Found { entry, cell: keep.into_cell() })
            });
            if let Some(hit) = frozen {
                record.lookups.add(1);
                found(at, hit);
            } else if let Some(hit) = self.look_up(record, *hash, key) {
                found(at, hit);
            }
        }
    }

    /// Returns the found entry, unless it has expired.
    #[inline(always)]
    fn unless_expired<'a>(&self, hash: KeyHash, found: Found<'a, K, V>) -> Option<Found<'a, K, V>> {
        if found.entry.head.is_set() && self.drop_expired(hash, found.entry, found.cell) {
            return None;
        }
        Some(found)
    }

    /// Releases the cell of a found entry if the entry has expired. Returns false if it has not.
    #[cold]
    #[inline(never)]
    fn drop_expired(&self, hash: KeyHash, entry: &Entry<K, V>, cell: &Cell) -> bool {
        let renewal = self.shards.renewal(hash, entry.slot());
        let is_over = !self.lifetimes.is_alive(&entry.head, renewal);
        if is_over {
            drop(Keep::new(cell));
        }
        is_over
    }

    /// Looks a key up in its shard after the two fast lookups have failed, which happens for one
    /// key in twenty. The key is hashed again, so that other lookups need not keep its hash.
    #[inline(never)]
    fn look_up_further<'a, Q>(&'a self, record: &'a Record, key: &Q) -> Option<Found<'a, K, V>>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let hash = self.hash(key);
        // Comparing and hashing keys is the user's code: the thread may know by now that it has to
        // fence.
        if !record.does_without_fences() {
            return self.look_up_slowly(record, key);
        }
        let table = self.shards.table(hash);
        match Shard::<K, V, P>::fast_lookup::<false, Q>(table, record, hash.in_shard(), key) {
            FastLookup::Hit((found, mark)) => self.count(hash, record, found, mark, key),
            FastLookup::Miss => {
                record.misses.add(1);
                None
            }
            FastLookup::Unsure => self.look_up_slowly(record, key),
        }
    }

    /// Looks a key up by a slow lookup, where [`look_up_further`](Self::look_up_further) was
    /// unsure.
    #[cold]
    #[inline(never)]
    fn look_up_slowly<'a, Q>(&'a self, record: &'a Record, key: &Q) -> Option<Found<'a, K, V>>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let hash = self.hash(key);
        match self.shards.of(hash).slow_lookup(record, hash.in_shard(), key, true) {
            Some((found, mark)) => self.count(hash, record, found, mark, key),
            None => {
                record.misses.add(1);
                None
            }
        }
    }

    /// Counts and marks a hit, or counts a miss if the entry has expired.
    #[inline(always)]
    fn count<'a, Q>(
        &self,
        hash: KeyHash,
        record: &Record,
        found: Found<'a, K, V>,
        mark: Mark<'_, P>,
        key: &Q,
    ) -> Option<Found<'a, K, V>>
    where
        Q: Hash + ?Sized,
    {
        if !found.entry.head.state().is_plain() {
            return self.count_with_care(key, record, found, mark.place());
        }
        self.note_hit(hash, record, &found, &mark);
        Some(found)
    }

    /// Works as [`count`](Self::count), for an entry that can expire or is frozen. The key is
    /// hashed again, and all arguments fit into registers, so that the usual case keeps nothing for
    /// this one.
    #[cold]
    #[inline(never)]
    fn count_with_care<'a, Q>(
        &self,
        key: &Q,
        record: &Record,
        found: Found<'a, K, V>,
        place: u32,
    ) -> Option<Found<'a, K, V>>
    where
        Q: Hash + ?Sized,
    {
        let keep = Keep::new(found.cell); // hashing is the user's code and may panic
        let hash = self.hash(key);
        keep.into_cell();
        let mark = Mark::new(self.shards.table(hash).table(), place);
        let state = found.entry.head.state();
        let Some(found) = self.unless_expired(hash, found) else {
            record.misses.add(1);
            return None;
        };
        // A hit on a frozen entry is what remains of all lookups, so that the usual case there
        // counts once.
        if !state.is_frozen() {
            self.note_hit(hash, record, &found, &mark);
        }
        Some(found)
    }
}

/// Returns the calling thread's record where the thread has just used another cache. Lookups call
/// it with the address that they have anyway.
#[cold]
#[inline(never)]
fn other_record<K, V, P: Replacement, S>(inner: &Inner<K, V, P, S>) -> &Record {
    local::record(&inner.threads)
}

/// Records a hit in marks that are code of the user, which may use this cache.
#[inline(never)]
fn touch_with_care<K, V, P: Eviction>(found: &Found<'_, K, V>, mark: &Mark<'_, P>) -> Touch {
    let keep = Keep::new(found.cell); // it may panic
    let touch = mark.touch(|| found.entry.slot());
    keep.into_cell();
    touch
}

/// Looks a key up as [`Inner::look_up`] does, where some entries are frozen.
#[inline(never)]
fn look_up_frozen<'a, K, V, P: Replacement, S: BuildHasher + 'static, Q>(
    inner: &'a Inner<K, V, P, S>,
    index: *const FrozenIndex<K, V>,
    record: &'a Record,
    hash: KeyHash,
    key: &Q,
) -> Option<Found<'a, K, V>>
where
    Q: Hash + Equivalent<K> + ?Sized,
{
    let Some(cell) = record.first_cell() else { return look_up_beside_guards(inner, record, key) };
    match inner.frozen.find(index, record, cell, hash, key) {
        None => inner.look_up_further(record, key),
        Some(found) if found.entry.head.is_set() => {
            look_up_expiring(inner, record, hash, found, key)
        }
        found => found,
    }
}

/// Looks a key up for a lookup that is timed, or for a thread that holds a guard. Searches the
/// frozen index if there is one.
#[inline(never)]
fn look_up_beside_guards<'a, K, V, P: Replacement, S: BuildHasher + 'static, Q>(
    inner: &'a Inner<K, V, P, S>,
    record: &'a Record,
    key: &Q,
) -> Option<Found<'a, K, V>>
where
    Q: Hash + Equivalent<K> + ?Sized,
{
    let hash = inner.hash(key);
    if !record.does_without_fences() {
        return inner.look_up_slowly(record, key); // as in `look_up_further`
    }
    let index = inner.frozen.published();
    inner
        .frozen
        .find(index, record, record.cell(), hash, key)
        .and_then(|found| inner.unless_expired(hash, found))
        .or_else(|| inner.look_up_further(record, key))
}

/// Returns a frozen entry that can expire. If it has expired, looks the key up in its shard.
#[inline(never)]
fn look_up_expiring<'a, K, V, P: Replacement, S: BuildHasher + 'static, Q>(
    inner: &'a Inner<K, V, P, S>,
    record: &'a Record,
    hash: KeyHash,
    found: Found<'a, K, V>,
    key: &Q,
) -> Option<Found<'a, K, V>>
where
    Q: Hash + Equivalent<K> + ?Sized,
{
    match inner.unless_expired(hash, found) {
        None => inner.look_up_further(record, key),
        found => found,
    }
}

impl<K, V, P: Replacement, S> Inner<K, V, P, S> {
    pub(crate) fn stats(&self) -> Stats {
        let mut stats = Stats {
            loads: self.loads.begun.load(Ordering::Relaxed), // counts, as all of these
            failed_loads: self.loads.failed.load(Ordering::Relaxed),
            capacity: self.budget.entries_limit(),
            weight_capacity: self.budget.weight_limit(),
            policy: self.policy_info.name,
            shards: self.shards.len() as u64,
            admission: self
                .admission
                .clone()
                .map(|name| AdmissionStats { name, ..AdmissionStats::default() }),
            freezing: self.frozen.stats(),
            memory_bytes: self.frozen.index_bytes() as u64,
            ..Stats::default()
        };
        stats = self.threads.records.fold(stats, |stats, record| Stats {
            hits: stats.hits + record.hits(),
            frozen_hits: stats.frozen_hits + record.frozen_hits(),
            misses: stats.misses + record.misses.get(),
            promotions_skipped: stats.promotions_skipped + record.promotions_skipped.get(),
            ..stats
        });
        for shard in self.shards.iter() {
            let owner = shard.owner();
            let (counts, seldom) = (&owner.counts, &owner.counts.seldom);
            stats.insertions += counts.insertions;
            stats.replacements += counts.replacements;
            stats.rejections += seldom.rejections;
            stats.evictions += counts.evictions;
            stats.expirations += seldom.expirations;
            stats.removals += seldom.removals;
            stats.promotions += seldom.promotions;
            if let (Some(sum), Some(admission)) = (&mut stats.admission, &owner.admission) {
                let (offered, bypassed) = admission.offers();
                sum.offered += offered;
                sum.admitted += offered - bypassed;
                sum.bypassed += bypassed;
            }
            if let Some(part) = owner.order.adaptation() {
                stats.adaptation.get_or_insert_default().add(&part);
            }
            stats.entries += owner.room.held().entries as u64;
            stats.weight += owner.room.held().weight as u64;
            stats.frozen += owner.frozen.count() as u64;
            stats.pinned += owner.slots.pinned() as u64;
            stats.waiting += owner.limbo.len() as u64;
            stats.memory_bytes += (owner.memory_bytes()
                + shard.table().memory_bytes()
                + size_of::<Shard<K, V, P>>()) as u64;
        }
        stats
    }
}

/// The locks of a shard, for a fork.
struct ShardLocks<'a, K, V, P: Replacement> {
    shard: &'a Shard<K, V, P>,
    pending_loads: Option<MutexGuard<'a, PendingLoads<K, V>>>,
    _owner: Option<MutexGuard<'a, Owner<K, V, P>>>,
}

/// The locks of a cache, for a fork.
struct CacheLocks<'a, K, V, P: Replacement> {
    shards: Vec<ShardLocks<'a, K, V, P>>,
    _freezer: Option<MutexGuard<'a, Freezer<K, V>>>,
    _report: Option<MutexGuard<'a, Option<FreezeStats>>>,
    _records: RecordLocks<'a>,
}

impl<K, V, P: Replacement> Locks for CacheLocks<'_, K, V, P> {
    fn in_the_child(&mut self) {
        for locks in &mut self.shards {
            if let Some(pending_loads) = &mut locks.pending_loads {
                locks.shard.loads_only(pending_loads.keep_own());
            }
        }
    }
}

impl<K: Send + Sync, V: Send + Sync, P: Replacement, S: Send + Sync> Forks for Inner<K, V, P, S> {
    fn locks(&self, until: Instant) -> Box<dyn Locks + '_> {
        // First those of all pending loads: whoever completes a load holds that of its shard while
        // it asks other shards for room.
        let loads = self.shards.iter().map(|shard| lock_until(&shard.pending_loads, until));
        let loads: Vec<_> = loads.collect();
        let _freezer = self.frozen.freezer_until(until);
        let shards = self.shards.iter().zip(loads).map(|(shard, pending_loads)| ShardLocks {
            shard,
            pending_loads,
            _owner: shard.owner_until(until),
        });
        let shards = shards.collect();
        let _records = self.threads.records.locks(until);
        let _report = self.frozen.stats_until(until);
        Box::new(CacheLocks { shards, _freezer, _report, _records })
    }
}
