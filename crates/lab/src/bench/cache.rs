//! Floe's cache as a [`Subject`]: `u64` keys, and values of any size that begin with their key.
//!
//! A hit reads the first word of its value, so that the value is fetched, and checks it: another
//! key's value ends the measurement. Small values lie in their entry. Others are in a box of their
//! own, as pages would be, and a fill pays for allocating it.

use std::marker::PhantomData;

use floe_memory::{AdmissionStats, BuildError};
use floe_policy::Replacement;
use floe_policy::admission::Admissions;
use floe_policy::registry::Choice;

use super::competitor::{CacheCompetitor, Competitor, Setup};
use super::subject::{Freezes, Freezing, Subject};

/// Settings of a Floe cache to be built for a measurement.
#[derive(Debug, Clone, Copy)]
pub struct Cache<'a> {
    /// The eviction policy.
    pub policy: &'a Choice,
    /// The admission policy; `None` to admit everything.
    pub admission: Option<&'a Admissions>,
    /// Number of shards; `None` for the cache's default.
    pub shards: Option<usize>,
    /// Capacity in entries.
    pub capacity: u64,
    /// Bytes of a value, at least 8. Values of 8 or 64 bytes lie in the entry.
    pub value_bytes: usize,
    /// Settings for freezing hot entries.
    pub freezing: Freezing,
}

/// A cache that is ready to be measured, and its number of shards.
pub type Built = (Box<dyn Competitor>, usize);

impl Cache<'_> {
    /// Builds an empty cache. With the feature `compiled-policies` the cache is compiled for its
    /// policy; otherwise the policy is an [`AnyPolicy`](floe_policy::AnyPolicy).
    ///
    /// # Errors
    /// When the cache does not support these settings.
    pub fn build(&self, setup: Setup) -> Result<Built, BuildError> {
        self.filled(setup, &Filling::default())
    }

    /// Builds a cache and fills it.
    ///
    /// # Errors
    /// When the cache does not support these settings.
    pub(super) fn filled(&self, setup: Setup, filling: &Filling) -> Result<Built, BuildError> {
        match self.value_bytes {
            8 => self.holding::<[u64; 1]>(setup, filling),
            64 => self.holding::<[u64; 8]>(setup, filling),
            _ => self.holding::<Box<[u8]>>(setup, filling),
        }
    }

    fn holding<V: Value>(&self, setup: Setup, filling: &Filling) -> Result<Built, BuildError> {
        let build = Build::<V>(*self, setup, filling, PhantomData);
        #[cfg(feature = "compiled-policies")]
        return floe_policy::with(self.policy, build);
        #[cfg(not(feature = "compiled-policies"))]
        build.build(floe_policy::AnyPolicy::new(self.policy))
    }
}

/// Initial contents of a cache, and the computing time of its clients.
#[derive(Debug, Clone, Default)]
pub(super) struct Filling {
    /// Keys inserted before the measurement.
    pub(super) keys: std::ops::Range<u64>,
    /// True to freeze all keys permanently.
    pub(super) frozen: bool,
    /// Rounds of arithmetic after each operation.
    pub(super) pause: u32,
}

/// Builds a cache with values of type `V`.
struct Build<'a, V>(Cache<'a>, Setup, &'a Filling, PhantomData<V>);

#[cfg(feature = "compiled-policies")]
impl<V: Value> floe_policy::registry::Visitor for Build<'_, V> {
    type Out = Result<Built, BuildError>;

    fn visit<P: floe_policy::Policy>(self, make: impl Fn() -> P + Send + Sync) -> Self::Out {
        self.build(make())
    }
}

impl<V: Value> Build<'_, V> {
    fn build<P: Replacement>(self, policy: P) -> Result<Built, BuildError> {
        let Self(
            Cache { admission, shards, capacity, value_bytes, freezing, .. },
            setup,
            filling,
            _,
        ) = self;
        let builder =
            floe_memory::Cache::<u64, V>::builder().capacity(capacity as usize).policy(policy);
        let builder = match shards {
            Some(shards) => builder.shards(shards),
            None => builder,
        };
        let builder = match freezing.options() {
            Some(options) => builder.freezing(options),
            None => builder,
        };
        let builder = match admission {
            Some(admission) => builder.admission(admission.clone()),
            None => builder,
        };
        let cache = builder.try_build()?;
        filling.keys.clone().for_each(|key| cache.insert(key, V::of(key, value_bytes)));
        if filling.frozen {
            cache.freeze(1.0);
        }
        let shards = cache.stats().shards as usize;
        let is_freezing = freezing.options().is_some();
        let competitor =
            CacheCompetitor::new(Cached { cache, value_bytes, is_freezing }, capacity, setup);
        Ok((Box::new(competitor.pausing(filling.pause)), shards))
    }
}

struct Cached<V, P: Replacement> {
    cache: floe_memory::Cache<u64, V, P>,
    value_bytes: usize,
    is_freezing: bool,
}

impl<V: Value, P: Replacement> Subject for Cached<V, P> {
    #[inline]
    fn lookup(&self, key: u64) -> bool {
        let found = self.cache.get(&key);
        found
            .map(|value| assert_eq!(value.key(), key, "the cache found another key's value"))
            .is_some()
    }

    fn fill(&self, key: u64) {
        self.cache.insert(key, V::of(key, self.value_bytes));
    }

    fn update(&self, key: u64) {
        self.cache.insert(key, V::of(key, self.value_bytes));
    }

    fn freezes(&self) -> Option<Freezes> {
        let stats = self.is_freezing.then(|| self.cache.stats())?;
        Some(Freezes {
            hits: stats.hits,
            frozen_hits: stats.frozen_hits,
            entries: stats.entries,
            frozen: stats.frozen,
            stats: stats.freezing?,
        })
    }

    fn admission(&self) -> Option<AdmissionStats> {
        self.cache.stats().admission
    }

    fn forget(&self) {
        if self.is_freezing {
            // By hand, which has the controller begin anew. On a thread that ends: one that has
            // used a cache and then does nothing costs those who evict a barrier for each batch.
            std::thread::scope(|scope| {
                scope.spawn(|| self.cache.thaw());
            });
        }
    }
}

/// A value that begins with its key.
trait Value: Send + Sync + 'static {
    fn of(key: u64, bytes: usize) -> Self;
    fn key(&self) -> u64;
}

impl<const WORDS: usize> Value for [u64; WORDS] {
    #[inline]
    fn of(key: u64, _: usize) -> Self {
        [key; WORDS]
    }

    #[inline]
    fn key(&self) -> u64 {
        self[0]
    }
}

impl Value for Box<[u8]> {
    #[inline]
    fn of(key: u64, bytes: usize) -> Self {
        let mut value = vec![0; bytes];
        value[..8].copy_from_slice(&key.to_le_bytes());
        value.into()
    }

    #[inline]
    fn key(&self) -> u64 {
        u64::from_le_bytes(*self.first_chunk().expect("a value has 8 bytes"))
    }
}
