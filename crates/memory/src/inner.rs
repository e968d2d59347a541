//! State that clones of a cache share, and the steps of every operation on it.

use std::borrow::Borrow;
use std::cell::Cell;
use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use floe_policy::{PolicyInfo, Replacement};

use crate::budget::Budget;
use crate::cause::Cause;
use crate::clock::{Clock, TICK_US, Ticks};
use crate::entry::{Entry, Expiry};
use crate::frozen::freezer::Freezer;
use crate::frozen::index::FrozenIndex;
use crate::frozen::options::FreezeStats;
use crate::hash::KeyHash;
use crate::hazard::Record;
use crate::local::{self, Threads};
use crate::maintenance;
use crate::options::InsertOptions;
use crate::owner::{Owner, Shape};
use crate::shard::Shard;
use crate::sweep::Sweep;
use crate::sync::{
    Arc, AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering,
    Weak, lock,
};
use crate::upkeep::Upkeep;

/// Slots looked at under one lock when something goes through all of them.
pub(crate) const SLOTS_PER_LOCK: u32 = 256;

/// Weighs an entry.
pub(crate) type Weigher<K, V> = Box<dyn Fn(&K, &V) -> u32 + Send + Sync>;
/// Is told of each entry that leaves.
pub(crate) type Listener<K, V> = Box<dyn Fn(&K, &V, Cause) + Send + Sync>;

/// The cache itself.
pub(crate) struct Inner<K, V, P: Replacement, S> {
    pub(crate) shards: Box<[Shard<K, V, P>]>,
    pub(crate) shard_shift: u32,
    pub(crate) hasher: S,
    pub(crate) threads: Arc<Threads>,
    /// The frozen index that readers are to use; null for none. Freed by the freezer.
    pub(crate) frozen: AtomicPtr<FrozenIndex<K, V>>,
    /// One lookup in so many is timed; 0 for none.
    pub(crate) timed_one_in: AtomicU32,
    /// True if nothing can be evicted, as all is frozen.
    pub(crate) all_frozen: AtomicBool,
    pub(crate) freezer: Mutex<Freezer<K, V>>,
    /// Bytes of the freezer's indexes.
    pub(crate) index_bytes: AtomicUsize,
    /// Tells what the controller of freezing tells, if there is one. Apart from the freezer, which
    /// can be busy for long.
    pub(crate) freeze_stats: Mutex<Option<FreezeStats>>,
    pub(crate) budget: Budget,
    pub(crate) weigher: Option<Weigher<K, V>>,
    pub(crate) listener: Option<Listener<K, V>>,
    pub(crate) clock: Clock,
    pub(crate) live: Option<Duration>,
    pub(crate) idle: Option<Duration>,
    pub(crate) about: &'static PolicyInfo,
    /// The name of the admission, if there is one.
    pub(crate) admission: Option<String>,
    /// Entries can expire, so that a thread has to sweep them.
    pub(crate) expires: AtomicBool,
    /// Tells what the library's threads do for it.
    pub(crate) upkeep: Upkeep,
    /// Requests of threads that the last tick has seen.
    pub(crate) requests_seen: AtomicU64,
    pub(crate) loads: AtomicU64,
    pub(crate) failed_loads: AtomicU64,
}

impl<K, V, P: Replacement, S> Inner<K, V, P, S> {
    /// The calling thread's record.
    #[inline(always)]
    pub(crate) fn record(&self) -> &Record {
        local::record(&self.threads)
    }

    #[inline(always)]
    pub(crate) fn shard(&self, hash: KeyHash) -> &Shard<K, V, P> {
        let number = hash.shard(self.shard_shift);
        debug_assert!(number < self.shards.len());
        // SAFETY: the shift leaves as many bits as the number of shards, a power of two, has
        // numbers.
        unsafe { self.shards.get_unchecked(number) }
    }

    pub(crate) fn weigh(&self, key: &K, value: &V) -> u32 {
        self.weigher.as_ref().map_or(1, |weigh| weigh(key, value).max(1))
    }

    /// The share of a shard, by the present limits.
    pub(crate) fn shape(&self) -> Shape {
        shape::<K, V>(&self.budget, self.weigher.is_some(), self.shards.len())
    }

    /// Returns the expiry of an entry made now with these options, if it expires, and the time of
    /// the sweep for it.
    #[inline(always)]
    pub(crate) fn expiry(
        self: &Arc<Self>,
        options: &InsertOptions,
    ) -> Option<(Expiry, Option<NonZeroU64>)>
    where
        Self: Sweep + 'static,
    {
        if self.upkeep.is_kept() && maintenance::is_alone() {
            self.see_to_it();
        }
        let (live, idle) = (options.live.or(self.live), options.idle.or(self.idle));
        (live.is_some() || idle.is_some()).then(|| self.expiry_of(live, idle))
    }

    /// Has the library's threads look after the cache from now on, if there are any or one can be
    /// started.
    pub(crate) fn keep_house(self: &Arc<Self>, ticks: bool) -> std::io::Result<()>
    where
        Self: Sweep + 'static,
    {
        let this: Weak<Self> = Arc::downgrade(self);
        self.upkeep.keep(this, ticks);
        maintenance::start()
    }

    /// Does what is due, where the library has no thread for that and still cannot start one.
    #[cold]
    fn see_to_it(self: &Arc<Self>)
    where
        Self: Sweep + 'static,
    {
        if maintenance::start().is_err() && self.upkeep.is_due(Clock::system_us()) {
            self.sweep();
        }
    }

    /// When an entry expires that does. Starts maintenance with the first.
    #[cold]
    fn expiry_of(
        self: &Arc<Self>,
        live: Option<Duration>,
        idle: Option<Duration>,
    ) -> (Expiry, Option<NonZeroU64>)
    where
        Self: Sweep + 'static,
    {
        let is_manual = self.clock.is_manual();
        if !self.expires.swap(true, Ordering::Relaxed) {
            if is_manual {
                let this: Weak<Self> = Arc::downgrade(self);
                self.clock.sweeps(this);
            } else if !self.upkeep.is_kept() {
                let _ = self.keep_house(false); // else those who insert see to it
            }
        }
        let now_us = self.clock.micros();
        let next = Ticks(now_us.div_ceil(TICK_US) as u32);
        let (live, idle) = (live.map(Ticks::at_least), idle.map(Ticks::at_least));
        let span = live.into_iter().chain(idle).map(|span| span.0).min().unwrap_or(0);
        let due = NonZeroU64::new((now_us.div_ceil(TICK_US) + u64::from(span)) * TICK_US);
        (Expiry::new(next, live, idle), due.filter(|_| !is_manual))
    }

    /// Takes out what has expired in all shards, also where the user's code panics for some.
    /// Returns in how many ticks something will have, if it is not used, and when that was.
    pub(crate) fn sweep_all(&self) -> (Option<u32>, u64) {
        let now_us = self.clock.micros();
        let (now, first, mut panicked) = (Ticks((now_us / TICK_US) as u32), Cell::new(None), None);
        for shard in &self.shards {
            let sweep = || {
                self.retain(shard, |entry| {
                    let left = entry.expiry.left(now)?;
                    if now.is_past(now.0.wrapping_add(left)) {
                        return Some(Cause::Expired);
                    }
                    first.set(first.get().into_iter().chain([left]).min());
                    None
                })
            };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(sweep)) {
                crate::thrown::keep_first(&mut panicked, panic);
            }
        }
        if let Some(panic) = panicked {
            resume_unwind(panic);
        }
        (first.get(), now_us)
    }

    /// An insertion is over, and perhaps with it a miss that is timed.
    #[inline(always)]
    pub(crate) fn note_insertion(&self, hash: KeyHash) {
        if self.timed_one_in.load(Ordering::Relaxed) != 0 {
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
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let owner = shard.owner();
        if shard.is_loading() { self.detach(shard, owner, hash, key) } else { owner }
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
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        drop(owner); // it comes after that of the flights
        let mut detached = Vec::new(); // dropped outside of the locks: keys are the user's code
        lock(&shard.flights).detach(hash.whole(), |found| found.borrow() == key, &mut detached);
        drop(detached);
        shard.owner()
    }
}

impl<K: Send + Sync, V: Send + Sync, P: Replacement, S: Send + Sync> Sweep for Inner<K, V, P, S> {
    fn tick(&self) -> bool {
        self.drive();
        let requests = self.threads.records.counted().lookups;
        // a number that only ticks look at
        self.requests_seen.swap(requests, Ordering::Relaxed) != requests
    }

    fn sweep(&self) -> Option<u64> {
        self.upkeep.begin_sweep(Clock::system_us());
        let (first, now_us) = self.sweep_all();
        first.map(|ticks| self.upkeep.end_sweep((now_us / TICK_US + u64::from(ticks)) * TICK_US))
    }
}

impl<K, V, P: Replacement, S> Drop for Inner<K, V, P, S> {
    fn drop(&mut self) {
        self.upkeep.forget();
        self.leave_held();
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
