//! Making the cache that a builder describes.

use std::hash::{BuildHasher, Hash};
use std::time::Duration;

use floe_policy::Replacement;

use super::Builder;
use crate::admission::{ShardAdmission, Template};
use crate::budget::Budget;
use crate::build_error::{BuildError, SHARDS_MAX};
use crate::cache::Cache;
use crate::entry::Unused;
use crate::fork;
use crate::frozen::state::FrozenState;
use crate::inner::{Inner, shape};
use crate::lifetimes::Lifetimes;
use crate::local::Threads;
use crate::owner::Owner;
use crate::records::Records;
use crate::shards::Shards;
use crate::stats::LoadCounts;
use crate::sync::{Arc, Weak};

/// Entries that a shard is to have at least. Smaller shards decide worse which leave: on the traces
/// of docs/results/policies.md 256 mean 0.03 % more misses than 1024 do, and 128 0.07 %. In fewer
/// shards, threads that replace values meet more often.
const SHARE_MIN: u64 = 160;

/// The same where the number of entries is but assumed: they may be heavier.
const SHARE_MIN_BY_WEIGHT: u64 = 256;

/// Most entries of a shard by default: an insertion that makes a shard grow, or sweep all of its
/// entries, takes time in proportion to them.
const SHARE_MAX: u64 = 1 << 15;

/// Most shards by default that a large capacity alone makes.
const SHARDS_FOR_CAPACITY: u64 = 1 << 10;

/// The weight of an entry, as far as the number of shards depends on it, where no limit of entries
/// tells: a page. A cache of heavier entries still has dozens a shard.
const WEIGHT_ASSUMED: u64 = 4096;
/// Shards for each core, so that threads seldom meet at one.
const SHARDS_PER_CORE: usize = 4;

impl<K, V, P, S> Builder<K, V, P, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Makes the cache.
    ///
    /// # Panics
    /// When no cache can have these settings; [`try_build`](Self::try_build) returns the error
    /// instead.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::builder().capacity(10).build();
    /// cache.insert("key", 1);
    /// ```
    pub fn build(self) -> Cache<K, V, P, S> {
        self.try_build().unwrap_or_else(|error| panic!("no such cache: {error}"))
    }

    /// Makes the cache, or returns the reason why no cache can have these settings.
    ///
    /// # Errors
    /// See [`BuildError`].
    ///
    /// ```
    /// # use floe_memory as floe;
    /// use floe::{BuildError, Cache};
    ///
    /// let error = Cache::<u64, u64>::builder().try_build().unwrap_err();
    /// assert_eq!(error, BuildError::NoLimit);
    /// ```
    pub fn try_build(self) -> Result<Cache<K, V, P, S>, BuildError> {
        self.check()?;
        crate::barrier::settle();
        let budget = Budget::new(self.entries.map(|entries| entries as u64), self.weight);
        let weighed = self.weigher.is_some();
        let shards = self.shards.unwrap_or_else(|| {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            let by_weight = || {
                let weight = budget.weight_limit().unwrap_or(u64::MAX);
                weight / WEIGHT_ASSUMED / SHARE_MIN_BY_WEIGHT
            };
            let shares = budget.entries_limit().map_or_else(by_weight, |limit| limit / SHARE_MIN);
            let most = shares.max(1).ilog2();
            let of_bounded_size = match budget.entries_limit() {
                Some(entries) => entries.div_ceil(SHARE_MAX).min(SHARDS_FOR_CAPACITY) as usize,
                None => 1,
            };
            let wanted = (cores * SHARDS_PER_CORE).max(of_bounded_size);
            wanted.next_power_of_two().min(1 << most.min(16)).min(SHARDS_MAX)
        });
        let shape = shape::<K, V>(&budget, weighed, shards);
        let about = self.policy.info();
        let threads = Threads::new(Records::new(self.freezing.is_some()));
        // A loop, and no chain of iterators: their frames are deep in a debug build, and loom's
        // threads have a small stack.
        let mut made = Vec::with_capacity(shards);
        for (number, slab) in shape.slabs(shards).enumerate() {
            let admission = |template: &dyn Template| {
                Box::new(ShardAdmission::new(template, number, shards, Arc::clone(&threads)))
            };
            let admission = self.admission.as_deref().map(admission);
            let (owner, table) =
                Owner::new(self.policy.clone(), shape, budget.share_of(shards), slab, admission);
            budget.take(shape.unlimited);
            made.push((owner, table));
        }
        let idle = self.idle.map(Unused::Expires);
        let unused = idle.or(self.ahead.map(Unused::Refreshes));
        let is_told = self.listener.is_some() || self.keeper.is_some();
        let is_asked = weighed || self.admission.is_some();
        let lives = self.live.is_some() || unused.is_some();
        let inner = Inner {
            shards: Shards::new(made),
            hasher: self.hasher,
            serial: threads.serial(),
            threads: Arc::clone(&threads),
            frozen: FrozenState::new(self.freezing),
            budget,
            inserts_usually: !(is_told || is_asked || lives),
            weigher: self.weigher,
            listener: self.listener,
            lifetimes: Lifetimes::new(self.clock, self.live, unused),
            about,
            admission: self.admission.as_ref().map(|template| template.name()),
            loads: LoadCounts::default(),
            keeper: self.keeper,
        };
        let inner = Arc::new(inner);
        let forks: Weak<_> = Arc::downgrade(&inner);
        fork::keep(inner.serial, forks);
        if self.freezing.is_some() {
            let kept = inner.lifetimes.keep_house(&inner, true);
            kept.map_err(|error| BuildError::Thread(error.to_string()))?;
        }
        Ok(Cache { inner })
    }

    fn check(&self) -> Result<(), BuildError> {
        match (self.entries, self.weight) {
            (None, None) => return Err(BuildError::NoLimit),
            (Some(entries), _) if entries > u32::MAX as usize / 2 => {
                return Err(BuildError::TooManyEntries(entries));
            }
            (_, Some(_)) if self.weigher.is_none() => return Err(BuildError::NoWeigher),
            _ => {}
        }
        if let Some(shards) =
            self.shards.filter(|shards| !shards.is_power_of_two() || *shards > SHARDS_MAX)
        {
            return Err(BuildError::Shards(shards));
        }
        for (name, time) in [
            ("time_to_live", self.live),
            ("time_to_idle", self.idle),
            ("refresh_ahead", self.ahead),
        ] {
            if time == Some(Duration::ZERO) {
                return Err(BuildError::ZeroTime(name));
            }
        }
        if self.ahead.is_some() && (self.live.is_none() || self.idle.is_some()) {
            return Err(BuildError::RefreshAhead);
        }
        if let Some(template) = &self.admission
            && let Some(needs) = template.is_refused()
        {
            return Err(BuildError::Admission { admission: template.name(), needs });
        }
        let about = self.policy.info();
        let needs = match (about.next_uses, about.streams) {
            (true, _) => "needs to know the future",
            (_, true) => "goes by the position of blocks and fetches ahead",
            _ => return Ok(()),
        };
        Err(BuildError::Policy { policy: about.name, needs })
    }
}
