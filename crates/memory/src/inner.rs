//! State that clones of a cache share, and the steps of every operation on it.

use std::cell::Cell;

use equivalent::Equivalent;
use floe_policy::{PolicyInfo, Replacement};

use crate::budget::Budget;
use crate::cause::Cause;
use crate::clock::{Clock, TICK_US, Ticks};
use crate::entry::Entry;
use crate::fork;
use crate::frozen::freeze::FreezeJob;
use crate::frozen::state::FrozenState;
use crate::hash::KeyHash;
use crate::hazard::Record;
use crate::lifetimes::Lifetimes;
use crate::local::{self, Threads};
use crate::owner::{Owner, Shape};
use crate::shard::Shard;
use crate::shards::Shards;
use crate::stats::LoadCounts;
use crate::sweep::Sweep;
use crate::sync::{Arc, MutexGuard, lock};
use crate::thrown::FirstPanic;

/// Weighs an entry.
pub(crate) type Weigher<K, V> = Box<dyn Fn(&K, &V) -> u32 + Send + Sync>;
/// Is told of each entry that leaves.
pub(crate) type Listener<K, V> = Box<dyn Fn(&K, &V, Cause) + Send + Sync>;
/// Is asked of each entry that has left and would be freed, and told whether a cell or a hold names
/// it; says whether it is to be kept.
pub(crate) type Keeper<K, V> = Box<dyn Fn(&Entry<K, V>, bool) -> bool + Send + Sync>;

/// The cache itself.
pub(crate) struct Inner<K, V, P: Replacement, S> {
    pub(crate) shards: Shards<K, V, P>,
    pub(crate) hasher: S,
    /// The number of `threads`.
    pub(crate) serial: u64,
    pub(crate) threads: Arc<Threads>,
    pub(crate) frozen: FrozenState<K, V>,
    pub(crate) budget: Budget,
    /// True if an insertion has nothing to ask and nobody to tell: there is neither listener nor
    /// weigher, admission or lifetime.
    pub(crate) inserts_usually: bool,
    pub(crate) weigher: Option<Weigher<K, V>>,
    pub(crate) listener: Option<Listener<K, V>>,
    pub(crate) lifetimes: Lifetimes,
    pub(crate) about: &'static PolicyInfo,
    /// The name of the admission, if there is one.
    pub(crate) admission: Option<String>,
    pub(crate) loads: LoadCounts,
    /// Last: entries may refer to what it has.
    pub(crate) keeper: Option<Keeper<K, V>>,
}

impl<K, V, P: Replacement, S> Inner<K, V, P, S> {
    /// The calling thread's record.
    #[inline(always)]
    pub(crate) fn record(&self) -> &Record {
        local::record_by(self.serial, &self.threads)
    }

    pub(crate) fn weigh(&self, key: &K, value: &V) -> u32 {
        self.weigher.as_ref().map_or(1, |weigh| weigh(key, value).max(1))
    }

    /// The parts that freezing works on.
    pub(crate) fn freezing(&self) -> FreezeJob<'_, K, V, P> {
        let Self { shards, frozen: state, threads, budget, .. } = self;
        FreezeJob { shards, state, threads, budget }
    }

    /// The share of a shard, by the present limits.
    pub(crate) fn shape(&self) -> Shape {
        shape::<K, V>(&self.budget, self.weigher.is_some(), self.shards.len())
    }

    /// Takes out what has expired in all shards. Returns in how many ticks something will have, if
    /// it is not used, and when that was.
    pub(crate) fn sweep_all(&self, panic: &mut FirstPanic) -> (Option<u64>, u64) {
        let now_us = self.lifetimes.clock().micros();
        let (now, first) = (Ticks(now_us / TICK_US), Cell::new(None));
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

    /// An insertion is over, and perhaps with it a miss that is timed.
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

    /// A shard's lock, for what makes a load of a key that is under way out of date: no such load
    /// brings anything in from now on. A load that begins later reads what the caller has changed
    /// before this.
    ///
    /// A thread that loads is counted under the same lock before it reads anything (see
    /// `Cache::turn`). So where no thread is counted, any load of the key takes the lock after
    /// this, and the lock orders its reads after the new data.
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

    /// Makes all loads that are under way out of date: none of them brings anything in from now on.
    pub(crate) fn outdate_loads(&self) {
        for shard in self.shards.iter() {
            let detached = lock(&shard.flights).clear();
            drop(detached); // the user's code, outside of the lock
        }
    }

    /// Detaches the load of a key and takes the lock again. A load attached in between begins after
    /// this.
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
        drop(owner); // it comes after that of the flights
        let mut detached = Vec::new(); // dropped outside of the locks: keys are the user's code
        lock(&shard.flights).detach(hash.whole(), |found| key.equivalent(found), &mut detached);
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

/// Returns what each of some shards is to be, by the limits of the cache.
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
    let batch_min = if std::mem::needs_drop::<Entry<K, V>>() { 16 } else { 32 };
    let batch =
        entries.map_or(256, |entries| (entries / shards / 32).clamp(batch_min, 4096)) as usize;
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
