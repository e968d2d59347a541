//! Describes a host's cache before it is made.

use std::hash::{BuildHasher, Hash};

use floe_policy::registry::ChoiceError;
use floe_policy::{AnyPolicy, PriorityPools, QdClock, Replacement};

use super::limits::Limits;
use super::node::Node;
use super::{HostCache, Keeper};
use crate::build_error::BuildError;
use crate::builder::Builder;
use crate::frozen::options::Freezing;
use crate::hash::DefaultHasher;
use crate::sync::Arc;

/// Builds a [`HostCache`] with settings that differ from the defaults.
///
/// ```
/// # use floe_memory as floe;
/// use floe::host::{HostBuilder, HostCache};
///
/// let cache: HostCache<u64, Vec<u8>> = HostBuilder::new(1 << 20).strict(true).build();
/// assert_eq!(cache.capacity(), 1 << 20);
/// ```
#[must_use = "nothing is made before `build`"]
pub struct HostBuilder<K, V, P = QdClock, S = DefaultHasher> {
    capacity: usize,
    strict: bool,
    tells_low: bool,
    cache: Builder<K, Node<V>, P, S>,
}

impl<K, V> HostBuilder<K, V> {
    /// Begins with a capacity: the limit of the sum of all charges, in their unit, mostly bytes.
    pub fn new(capacity: usize) -> Self {
        Self { capacity, strict: false, tells_low: false, cache: Builder::default() }
    }
}

impl<K, V, P, S> HostBuilder<K, V, P, S> {
    /// Has insertions fail that would exceed the capacity because of values that have handles. By
    /// default they go over it.
    pub fn strict(self, strict: bool) -> Self {
        Self { strict, ..self }
    }

    /// Sets the eviction policy by type: see [`Builder::policy`].
    pub fn policy<P2: Replacement>(self, policy: P2) -> HostBuilder<K, V, P2, S> {
        let Self { capacity, strict, tells_low, cache } = self;
        HostBuilder { capacity, strict, tells_low, cache: cache.policy(policy) }
    }

    /// Sets the eviction policy by name: see [`Builder::policy_named`].
    ///
    /// # Errors
    /// When there is no such policy or parameter; the error names those that there are.
    pub fn policy_named(self, name: &str) -> Result<HostBuilder<K, V, AnyPolicy, S>, ChoiceError> {
        let Self { capacity, strict, tells_low, cache } = self;
        Ok(HostBuilder { capacity, strict, tells_low, cache: cache.policy_named(name)? })
    }

    /// Keeps shares of the capacity for entries of high and of low priority, above the policy set
    /// before: see [`PriorityPools`]. Without them an entry of high priority counts as used once,
    /// and low and bottom priority are the same.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// use floe::host::{HostBuilder, Insertion, Priority};
    ///
    /// let cache = HostBuilder::new(1000).shards(1).priority_pools(0.5, 0.0).build();
    /// let high = Insertion::new().priority(Priority::High);
    /// cache.insert("index", "", 300, high).unwrap();
    /// (0..100).for_each(|_| cache.insert("data", "", 300, Insertion::new()).unwrap());
    /// assert!(cache.contains_key("index"));
    /// ```
    ///
    /// # Panics
    /// When a share is negative, or both are more than 1 together.
    pub fn priority_pools(self, high: f64, low: f64) -> HostBuilder<K, V, PriorityPools<P>, S>
    where
        P: Replacement,
    {
        let Self { capacity, strict, cache, .. } = self;
        let cache = cache.policy_over(|policy| PriorityPools::new(policy, high, low));
        HostBuilder { capacity, strict, tells_low: low > 0.0, cache }
    }

    /// Sets the hasher: see [`Builder::hasher`].
    pub fn hasher<S2: BuildHasher>(self, hasher: S2) -> HostBuilder<K, V, P, S2> {
        let Self { capacity, strict, tells_low, cache } = self;
        HostBuilder { capacity, strict, tells_low, cache: cache.hasher(hasher) }
    }

    /// Sets the number of parts, each with a lock of its own: see [`Builder::shards`].
    pub fn shards(self, shards: usize) -> Self {
        Self { cache: self.cache.shards(shards), ..self }
    }

    /// Has the hottest entries frozen: see [`Builder::freezing`].
    pub fn freezing(self, freezing: Freezing) -> Self {
        Self { cache: self.cache.freezing(freezing), ..self }
    }
}

impl<K, V, P, S> HostBuilder<K, V, P, S>
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
    pub fn build(self) -> HostCache<K, V, P, S> {
        self.try_build().unwrap_or_else(|error| panic!("no such cache: {error}"))
    }

    /// Makes the cache.
    ///
    /// # Errors
    /// When no cache can have these settings.
    pub fn try_build(self) -> Result<HostCache<K, V, P, S>, BuildError> {
        let limits = Arc::new(Limits::new(self.capacity, self.strict));
        let sums = Arc::clone(&limits);
        let keeper: Keeper<K, Node<V>> = Box::new(move |entry, is_named| {
            let _keeps = &sums; // entries refer to them: the cache has them to its end
            entry.value.is_kept(is_named)
        });
        let cache = self
            .cache
            .weight_capacity(limits.for_cache() as u64)
            .weigher(|_, node| node.weight())
            .keeper(keeper)
            .try_build()?;
        Ok(HostCache { cache, limits, tells_low: self.tells_low })
    }
}

impl<K, V, P, S> std::fmt::Debug for HostBuilder<K, V, P, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostBuilder")
            .field("capacity", &self.capacity)
            .field("strict", &self.strict)
            .finish_non_exhaustive()
    }
}
