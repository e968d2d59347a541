//! [`Builder`]: the settings of a cache before it is made.

use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::time::Duration;

use floe_policy::admission::{AdmissionFactory, Admissions};
use floe_policy::registry::ChoiceError;
use floe_policy::{AnyPolicy, PriorityPools, QdClock, Replacement};

use crate::admission::{ShardAdmission, Template};
use crate::budget::Budget;
use crate::cache::Cache;
use crate::clock::Clock;
use crate::fork;
use crate::frozen::freezer::FrozenState;
use crate::index::DefaultHasher;
use crate::inner::{Inner, KeepCheck, Listener, Weigher, shape};
use crate::lifetimes::Lifetimes;
use crate::local::Threads;
use crate::options::LiveWith;
use crate::owner::Owner;
use crate::records::Records;
use crate::renewal::Unused;
use crate::shard::Shards;
use crate::stats::{Cause, LoadCounts};
use crate::sync::{Arc, Weak};
use floe_freeze::Freezing;

/// Builds a cache with settings that differ from the defaults. [`Cache::builder`] makes one.
///
/// A cache needs a limit: a [`capacity`](Self::capacity), a
/// [`weight_capacity`](Self::weight_capacity) with a [`weigher`](Self::weigher), or both. Every
/// other setting has a default. Each method takes the builder and returns it, and
/// [`build`](Self::build) makes the cache.
///
/// ```
/// # use floe_memory as floe;
/// use std::time::Duration;
/// use floe::Cache;
///
/// let cache: Cache<String, Vec<u8>> = Cache::builder()
///     .weight_capacity(64 << 20)
///     .weigher(|key: &String, value: &Vec<u8>| (key.len() + value.len()) as u64)
///     .capacity(1_000_000)
///     .time_to_live(Duration::from_secs(600))
///     .build();
/// cache.insert("key".into(), vec![0; 100]);
/// assert_eq!(cache.stats().weight, 103);
/// ```
#[must_use = "nothing is made before `build`"]
pub struct Builder<K, V, P = QdClock, S = DefaultHasher> {
    entries: Option<usize>,
    weight: Option<u64>,
    weigher: Option<Weigher<K, V>>,
    listener: Option<Listener<K, V>>,
    admission: Option<Box<dyn Template>>,
    policy: P,
    hasher: S,
    live: Option<Duration>,
    live_with: Option<LiveWith<K, V>>,
    idle: Option<Duration>,
    ahead: Option<Duration>,
    shards: Option<usize>,
    clock: Clock,
    freezing: Option<Freezing>,
    keep_check: Option<KeepCheck<K, V>>,
}

impl<K, V> Cache<K, V> {
    /// Returns a [`Builder`], for a cache with limits and settings of your own.
    ///
    /// The builder needs a limit of entries or of weight before [`build`](Builder::build).
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::builder().capacity(1000).shards(1).build();
    /// cache.insert("key", 1);
    /// ```
    pub fn builder() -> Builder<K, V> {
        Builder::default()
    }
}

impl<K, V> Default for Builder<K, V> {
    fn default() -> Self {
        Self {
            entries: None,
            weight: None,
            weigher: None,
            listener: None,
            admission: None,
            policy: QdClock::default(),
            hasher: DefaultHasher::default(),
            live: None,
            live_with: None,
            idle: None,
            ahead: None,
            shards: None,
            clock: Clock::system(),
            freezing: None,
            keep_check: None,
        }
    }
}

impl<K, V, P, S> Builder<K, V, P, S> {
    /// Sets the limit of entries, at most 2³¹ − 1. With 0 the cache is off: it holds nothing, but
    /// still loads.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::builder().capacity(2).build();
    /// (0..5).for_each(|key| cache.insert(key, key));
    /// assert_eq!(cache.len(), 2);
    /// ```
    pub fn capacity(self, entries: usize) -> Self {
        Self { entries: Some(entries), ..self }
    }

    /// Sets the limit of weight, in the unit of the [`weigher`](Self::weigher), which it requires.
    /// It may be combined with a [`capacity`](Self::capacity): the cache then keeps both limits.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let text = |_: &u64, text: &String| text.len() as u64;
    /// let cache = floe::Cache::builder().weight_capacity(10).weigher(text).build();
    /// cache.insert(1, "four".to_string());
    /// cache.insert(2, "more than ten".to_string()); // does not come in
    /// assert_eq!((cache.len(), cache.stats().weight), (1, 4));
    /// ```
    pub fn weight_capacity(self, weight: u64) -> Self {
        Self { weight: Some(weight), ..self }
    }

    /// Sets the function that weighs an entry, in a unit of your choice: bytes, mostly. It is
    /// called once for each insertion, outside of locks. It returns a `u32` or a `u64`. A weight of
    /// 0 counts as 1, and one of more than 2⁴⁸ as 2⁴⁸.
    ///
    /// The limit of weight is kept exactly; without one, it is 2⁶². Policies and admissions see
    /// 2³² − 1 in place of larger weights. Choose a unit in which few entries are that heavy:
    /// otherwise the queues of a policy have other shares than it says.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::builder()
    ///     .weight_capacity(1 << 20)
    ///     .weigher(|key: &String, value: &Vec<u8>| (key.len() + value.len()) as u64)
    ///     .build();
    /// cache.insert("key".to_string(), vec![0; 97]);
    /// assert_eq!(cache.stats().weight, 100);
    /// ```
    pub fn weigher<W: Into<u64>>(
        self,
        weigh: impl Fn(&K, &V) -> W + Send + Sync + 'static,
    ) -> Self {
        let weigher = move |key: &K, value: &V| weigh(key, value).into();
        Self { weigher: Some(Box::new(weigher)), ..self }
    }

    /// Sets the listener, which is called with key, value and [`Cause`] for each entry that leaves,
    /// soon after it has left.
    ///
    /// The call comes from the thread that made the entry leave, or from the library's thread that
    /// removes expired entries. It runs outside of locks. The order of calls on different threads
    /// is not defined. The listener may use the cache. It is not called for the entries that a
    /// cache still has when it is dropped.
    ///
    /// A listener may insert again, so that more entries leave and it is called for those, too.
    /// Calls nested more than four deep run after the outer one has returned, so a chain of any
    /// length takes little stack. A listener that always inserts again never ends.
    ///
    /// If the listener panics, the call that made the entry leave panics, too. Before that, it
    /// completes its work and calls the listener for the other entries that left.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// use std::sync::{Arc, Mutex};
    /// use floe::{Cache, Cause};
    ///
    /// let left = Arc::new(Mutex::new(Vec::new()));
    /// let log = Arc::clone(&left);
    /// let cache = Cache::builder()
    ///     .capacity(10)
    ///     .listener(move |key: &u64, value: &&str, cause| {
    ///         log.lock().unwrap().push((*key, *value, cause));
    ///     })
    ///     .build();
    /// cache.insert(1, "one");
    /// cache.insert(1, "uno");
    /// cache.remove(&1);
    /// let left = left.lock().unwrap();
    /// assert_eq!(*left, [(1, "one", Cause::Replaced), (1, "uno", Cause::Removed)]);
    /// ```
    pub fn listener(self, listen: impl Fn(&K, &V, Cause) + Send + Sync + 'static) -> Self {
        Self { listener: Some(Box::new(listen)), ..self }
    }

    /// Sets the hasher of keys. Any hasher will do, because the cache mixes its result once more.
    /// With a predictable one, such as an identity, an attacker that chooses keys can make lookups
    /// slow.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// use std::hash::RandomState; // SipHash
    ///
    /// let cache = floe::Cache::builder().capacity(100).hasher(RandomState::new()).build();
    /// cache.insert("key", 1);
    /// assert_eq!(cache.get_cloned("key"), Some(1));
    /// ```
    pub fn hasher<S2: BuildHasher>(self, hasher: S2) -> Builder<K, V, P, S2> {
        self.with(|policy, _| (policy, hasher))
    }

    /// Sets the time to live of entries: an entry expires this long after its insertion, or up to
    /// 25 ms later.
    ///
    /// Lookups do not find an expired entry. A thread of the library frees it within a second or
    /// two; where the system cannot start a thread, inserting threads do. A value that guards keep
    /// is freed as soon after the last guard is dropped.
    ///
    /// Times of more than 62 days end up to 6 s late. Those of more than 174 years, such as
    /// [`Duration::MAX`], mean that the entry never expires.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// use std::time::Duration;
    /// use floe::{Cache, Clock};
    ///
    /// let clock = Clock::manual();
    /// let cache = Cache::builder()
    ///     .capacity(10)
    ///     .time_to_live(Duration::from_secs(60))
    ///     .clock(clock.clone())
    ///     .build();
    /// cache.insert(1, "one");
    /// clock.advance(Duration::from_secs(61));
    /// assert!(cache.get(&1).is_none());
    /// ```
    pub fn time_to_live(self, time: Duration) -> Self {
        Self { live: Some(time), ..self }
    }

    /// Sets the closure that returns an entry's time to live, for entries inserted or loaded
    /// without a [time](crate::InsertOptions::time_to_live) of their own; `None` means that of the
    /// cache. It is called outside of locks. Less than a tick of 5 ms counts as one tick.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// use std::time::Duration;
    ///
    /// let clock = floe::Clock::manual();
    /// let cache = floe::Cache::builder()
    ///     .capacity(10)
    ///     .time_to_live_with(|_, &(_, seconds)| Some(Duration::from_secs(seconds)))
    ///     .clock(clock.clone())
    ///     .build();
    /// cache.insert("a.example", ("192.0.2.1", 60));
    /// clock.advance(Duration::from_secs(61));
    /// assert!(cache.get("a.example").is_none());
    /// ```
    pub fn time_to_live_with(
        self,
        live: impl Fn(&K, &V) -> Option<Duration> + Send + Sync + 'static,
    ) -> Self {
        Self { live_with: Some(Box::new(live)), ..self }
    }

    /// Sets the time to idle of entries: an entry expires this long after its last use. It
    /// otherwise works as [`time_to_live`](Self::time_to_live). Every hit of such an entry reads
    /// the coarse time, and one hit a tick writes it.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// use std::time::Duration;
    /// use floe::{Cache, Clock};
    ///
    /// let clock = Clock::manual();
    /// let cache = Cache::builder()
    ///     .capacity(10)
    ///     .time_to_idle(Duration::from_secs(60))
    ///     .clock(clock.clone())
    ///     .build();
    /// cache.insert(1, "one");
    /// clock.advance(Duration::from_secs(40));
    /// assert!(cache.get(&1).is_some());
    /// clock.advance(Duration::from_secs(40));
    /// assert!(cache.get(&1).is_some());
    /// clock.advance(Duration::from_secs(61));
    /// assert!(cache.get(&1).is_none());
    /// ```
    pub fn time_to_idle(self, time: Duration) -> Self {
        Self { idle: Some(time), ..self }
    }

    /// Sets the time before the end of an entry's time to live from which the entry is refreshed.
    ///
    /// The first [load](Cache::get_or_insert_with) that asks for the entry in that time loads it
    /// anew, while other callers get the old value. So no caller waits for an entry that is
    /// requested often enough. If the refresh fails, its caller gets the old value, too, and the
    /// next caller tries again. `get` and other plain lookups load nothing.
    ///
    /// To run the refresh elsewhere, use
    /// [`Loads::get_in_background`](crate::Loads::get_in_background).
    ///
    /// ```
    /// # use floe_memory as floe;
    /// use std::time::Duration;
    /// use floe::{Cache, Clock};
    ///
    /// let clock = Clock::manual();
    /// let cache = Cache::builder()
    ///     .capacity(10)
    ///     .time_to_live(Duration::from_secs(60))
    ///     .refresh_ahead(Duration::from_secs(10))
    ///     .clock(clock.clone())
    ///     .build();
    /// assert_eq!(*cache.get_with("price", || 100), 100);
    /// clock.advance(Duration::from_secs(49));
    /// assert_eq!(*cache.get_with("price", || 101), 100);
    /// clock.advance(Duration::from_secs(2));
    /// assert_eq!(*cache.get_with("price", || 101), 101);
    /// ```
    pub fn refresh_ahead(self, time: Duration) -> Self {
        Self { ahead: Some(time), ..self }
    }

    /// Sets the number of shards, a power of two. A shard is a part of the cache with its own lock
    /// and policy order; hits of FIFO-like policies never take the lock.
    ///
    /// The default is four shards a core. There are more (up to 1024) where a shard would have more
    /// than 32,768 entries, and fewer where it would have less than 256. An insertion takes longest
    /// where its shard grows or sweeps all its entries: under a millisecond with 32,768. A cache
    /// with a limit of weight only is assumed to hold entries of weight 4096, so it has at most one
    /// shard for each 1 MiB. Where that is far from the truth, set the number of shards. With one
    /// shard, a cache decides exactly as `floe simulate` says.
    ///
    /// Shards have equal shares of the limits. For an entry that weighs a sixteenth of a share or
    /// more, all shards make room alike, at one lock each. Most entries should be lighter.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::builder().capacity(1000).shards(4).build();
    /// cache.insert(1, 1);
    /// assert_eq!(cache.stats().shards, 4);
    /// ```
    pub fn shards(self, shards: usize) -> Self {
        Self { shards: Some(shards), ..self }
    }

    /// Sets the clock by which entries expire. The default is the system's; a
    /// [manual](Clock::manual) one is for tests.
    pub fn clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    /// Makes the cache freeze its hottest entries as long as that makes it faster: see
    /// [`Freezing`]. One thread of the library decides for all caches of the process.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// use floe::{Cache, Freezing};
    ///
    /// let cache = Cache::builder().capacity(1000).freezing(Freezing::adaptive()).build();
    /// cache.insert(1, "one");
    /// println!("{}", cache.stats().freezing.unwrap().phase);
    /// ```
    pub fn freezing(self, freezing: Freezing) -> Self {
        Self { freezing: Some(freezing), ..self }
    }

    /// Sets the check that runs before an entry is freed.
    pub(crate) fn keep_check(self, keep_check: KeepCheck<K, V>) -> Self {
        Self { keep_check: Some(keep_check), ..self }
    }

    /// Sets the eviction policy by its type; the code of hits is compiled for that type. All
    /// policies are in [`policy`](crate::policy), the less common ones with the feature `policies`.
    /// Each shard gets a copy of the given one.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// use floe::{Cache, policy::Lru};
    ///
    /// let cache = Cache::builder().capacity(2).policy(Lru::default()).build();
    /// cache.insert(1, "a");
    /// cache.insert(2, "b");
    /// cache.get(&1);
    /// cache.insert(3, "c");
    /// assert!(cache.contains_key(&1) && !cache.contains_key(&2));
    /// ```
    pub fn policy<P2: Replacement>(self, policy: P2) -> Builder<K, V, P2, S> {
        self.policy_over(|_| policy)
    }

    /// Reserves shares of the capacity, from 0 to 1, for entries of high and of low
    /// [priority](crate::InsertOptions::priority), in front of the policy that was set before: see
    /// [`PriorityPools`]. Entries leave their pool, oldest first, when it is full. Only then may
    /// the policy evict them.
    ///
    /// Entries have low priority unless they are inserted with another one. So with a share of 0
    /// for low priority, all but those of high priority go to the policy at once. A policy that is
    /// set later replaces the pools.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// use floe::{Cache, InsertOptions, policy::Priority};
    ///
    /// let cache = Cache::builder().capacity(1000).priority_pools(0.2, 0.0).build();
    /// let high = InsertOptions::new().priority(Priority::High);
    /// (0..100).for_each(|key| cache.insert_with(key, "index", high));
    /// (1000..50_000).for_each(|key| cache.insert(key, "data"));
    /// assert!((0..100).all(|key| cache.contains_key(&key)));
    /// ```
    ///
    /// # Panics
    /// When a share is negative, or both are more than 1 together.
    pub fn priority_pools(self, high: f64, low: f64) -> Builder<K, V, PriorityPools<P>, S>
    where
        P: Replacement,
    {
        self.policy_over(|policy| PriorityPools::new(policy, high, low))
    }

    /// Replaces the policy by one that `make` builds from it.
    fn policy_over<P2>(self, make: impl FnOnce(P) -> P2) -> Builder<K, V, P2, S> {
        self.with(|policy, hasher| (make(policy), hasher))
    }

    /// Replaces the policy and the hasher, on which the builder's type depends.
    fn with<P2, S2>(self, make: impl FnOnce(P, S) -> (P2, S2)) -> Builder<K, V, P2, S2> {
        let Self {
            entries,
            weight,
            weigher,
            listener,
            admission,
            policy,
            hasher,
            live,
            live_with,
            idle,
            ahead,
            shards,
            clock,
            freezing,
            keep_check,
        } = self;
        let (policy, hasher) = make(policy, hasher);
        Builder {
            entries,
            weight,
            weigher,
            listener,
            admission,
            policy,
            hasher,
            live,
            live_with,
            idle,
            ahead,
            shards,
            clock,
            freezing,
            keep_check,
        }
    }

    /// Sets the eviction policy by name, with optional parameters as in `floe simulate`: `lru`,
    /// `slru:segments=2`. The cache's type becomes [`Cache<K, V, AnyPolicy>`](crate::Cache),
    /// whatever the name, for use in fields and arguments.
    ///
    /// The feature `policies` adds the less common ones.
    ///
    /// # Errors
    /// When there is no such policy or parameter; the error lists the valid ones. A policy that
    /// needs the feature is reported as such.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::builder().capacity(100).policy_named("slru:segments=2")?.build();
    /// cache.insert(1, 1);
    /// assert_eq!(cache.stats().policy, "slru");
    /// # Ok::<(), floe::policy::registry::ChoiceError>(())
    /// ```
    pub fn policy_named(self, name: &str) -> Result<Builder<K, V, AnyPolicy, S>, ChoiceError> {
        Ok(self.policy::<AnyPolicy>(name.parse()?))
    }

    /// Sets the admission, which decides whether a new key is inserted. Without one every key is
    /// admitted, at no cost. Each shard gets a copy of the given one.
    ///
    /// A rejected key is not kept: `insert` returns, the value is dropped, and the
    /// [listener](Self::listener) is called with [`Cause::Bypassed`].
    /// `get_or_insert_with` and other loads still return the loaded value to all waiting callers.
    /// The admission is not asked about a value that replaces the value of a present key, nor about
    /// pinned entries.
    ///
    /// - [`Duel`](floe_policy::admission::Duel) compares a new key with the victim, so it needs a
    ///   policy that [names](floe_policy::Eviction::victim) the victim: fifo, lru, relaxed-lru,
    ///   prob-lru, clock, slru, 2q, s3-fifo, s4-fifo, sieve, lfu, qdlp, qd-clock, clock2q-plus,
    ///   car, clock-pro, mq, auto. With others it admits everything.
    /// - An admission sees the hits of LRU-like policies, with each promotion. Of hits that change
    ///   no order (those of FIFO-like policies, and on frozen entries) it only gets the count. So
    ///   with a FIFO-like policy `duel` compares how often keys were *inserted*, and `small-bypass`
    ///   does not see keys that are only hit.
    /// - [`Obp`](floe_policy::admission::Obp) limits insertions and removals to a share of the
    ///   lookups by `get` and similar methods; an insertion is no lookup. While it forbids
    ///   evictions ([`Orders::hold`](floe_policy::admission::Orders::hold)), it rejects all keys
    ///   that would need one.
    /// - Admissions that need the position of blocks (`sequential`), or that fetch admitted blocks
    ///   (`fussy`), need the feature `policies` and are refused when the cache is built.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// use floe::{Cache, policy::Lru, policy::admission::Duel};
    ///
    /// // TinyLFU: a candidate must have been asked for more often than the victim.
    /// let cache = Cache::builder()
    ///     .capacity(2)
    ///     .shards(1)
    ///     .policy(Lru::default())
    ///     .admission(Duel::default())
    ///     .build();
    /// for key in ["a", "b"] {
    ///     cache.insert(key, 1);
    ///     cache.get(key);
    /// }
    /// cache.insert("passes by", 1);
    /// assert!(cache.contains_key("a") && cache.contains_key("b"));
    /// assert!(!cache.contains_key("passes by"));
    /// let admission = cache.stats().admission.unwrap();
    /// assert_eq!((admission.offered, admission.admitted, admission.bypassed), (3, 2, 1));
    /// ```
    pub fn admission(self, admission: impl AdmissionFactory) -> Self {
        Self { admission: Some(Box::new(admission)), ..self }
    }

    /// Sets the admission by name, with optional parameters as in `floe simulate --admit`:
    /// `obp:target=0.2`. Several names joined by `+` must all admit a key: `second-access + obp`.
    /// See [`admission`](Self::admission).
    ///
    /// # Errors
    /// When there is no such admission or parameter; the error lists the valid ones.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::builder().capacity(100).admission_named("second-access")?.build();
    /// cache.insert("a", 1);
    /// assert!(!cache.contains_key("a"));
    /// cache.insert("a", 1);
    /// assert!(cache.contains_key("a"));
    /// # Ok::<(), floe::policy::registry::ChoiceError>(())
    /// ```
    pub fn admission_named(self, text: &str) -> Result<Self, ChoiceError> {
        let admission: Admissions = text.parse()?;
        Ok(self.admission(admission))
    }
}

/// Minimum number of entries of a shard by default. Smaller shards choose victims worse. On the
/// traces of docs/results/policies.md, shards of 256 have 0.03 % more misses than shards of 1024,
/// and shards of 128 have 0.07 % more. With fewer shards, threads that replace values contend more
/// often.
const SHARE_MIN: u64 = 160;

/// Minimum number of entries of a shard by default, where the number of entries is estimated from
/// the limit of weight.
const SHARE_MIN_BY_WEIGHT: u64 = 256;

/// Maximum number of entries of a shard by default. An insertion that makes a shard grow, or sweep
/// all of its entries, takes time in proportion to them.
const SHARE_MAX: u64 = 1 << 15;

/// Maximum number of shards that a large capacity alone makes by default.
const SHARDS_FOR_CAPACITY: u64 = 1 << 10;

/// Assumed weight of an entry where no limit of entries is set: a page. It only determines the
/// default number of shards. A cache of heavier entries still has dozens a shard.
const WEIGHT_ASSUMED: u64 = 4096;
/// Default number of shards for each core, so that threads seldom contend for one.
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
    /// When the settings are invalid; [`try_build`](Self::try_build) returns the error instead.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::builder().capacity(10).build();
    /// cache.insert("key", 1);
    /// ```
    pub fn build(self) -> Cache<K, V, P, S> {
        self.try_build().unwrap_or_else(|error| panic!("no such cache: {error}"))
    }

    /// Makes the cache, or returns the reason why the settings are invalid.
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
        crate::barrier::choose();
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
        let (policy_info, tells_low) = (self.policy.info(), self.policy.tells_low_from_bottom());
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
        let is_told = self.listener.is_some() || self.keep_check.is_some();
        let is_asked = weighed || self.admission.is_some();
        let lives = self.live.is_some() || self.live_with.is_some() || unused.is_some();
        let inner = Inner {
            shards: Shards::new(made),
            hasher: self.hasher,
            serial: threads.serial(),
            threads: Arc::clone(&threads),
            frozen: FrozenState::new(self.freezing),
            budget,
            inserts_usually: !(is_told || is_asked || lives || tells_low),
            tells_low,
            weigher: self.weigher,
            listener: self.listener,
            lifetimes: Lifetimes::new(self.clock, self.live, unused),
            live_with: self.live_with,
            policy_info,
            admission: self.admission.as_ref().map(|template| template.name()),
            loads: LoadCounts::default(),
            keep_check: self.keep_check,
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
        let lives = self.live.is_some() || self.live_with.is_some();
        if self.ahead.is_some() && (!lives || self.idle.is_some()) {
            return Err(BuildError::RefreshAhead);
        }
        if let Some(template) = &self.admission
            && let Some(needs) = template.is_refused()
        {
            return Err(BuildError::Admission { admission: template.name(), needs });
        }
        let policy_info = self.policy.info();
        let needs = match (policy_info.next_uses, policy_info.streams) {
            (true, _) => "needs to know the future",
            (_, true) => "depends on the positions of blocks and fetches ahead",
            _ => return Ok(()),
        };
        Err(BuildError::Policy { policy: policy_info.name, needs })
    }
}

/// Maximum number of shards of a cache: sixteen bits of the hash choose the shard.
pub(crate) const SHARDS_MAX: usize = 1 << 16;

/// The reason why the settings of a [`Builder`] are invalid.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// No limit is set, neither of entries nor of weight.
    NoLimit,
    /// The limit of entries is 2³¹ or more.
    TooManyEntries(usize),
    /// A limit of weight is set without a weigher.
    NoWeigher,
    /// The number of shards is not a power of two, or too large.
    Shards(usize),
    /// A time to live, time to idle or refresh time is 0; the value names the setting.
    ZeroTime(&'static str),
    /// A refresh time is set without a time to live, or together with a time to idle.
    RefreshAhead,
    /// Freezing needs a thread of the library, and the system cannot start one; the value is the
    /// system's error.
    Thread(String),
    /// The policy needs information that a cache in memory does not have.
    Policy {
        /// Name of the policy.
        policy: &'static str,
        /// The missing information.
        needs: &'static str,
    },
    /// The admission needs an operation that a cache in memory does not have.
    Admission {
        /// Name of the admission.
        admission: String,
        /// The missing operation.
        needs: &'static str,
    },
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLimit => {
                f.write_str("a cache needs a limit: give it a capacity or a weight_capacity")
            }
            Self::TooManyEntries(value) => write!(
                f,
                "a capacity of {value} is more than the {max} entries a cache can hold",
                max = u32::MAX / 2
            ),
            Self::NoWeigher => f.write_str("a weight_capacity needs a weigher"),
            Self::Shards(value) => {
                write!(f, "{value} shards: it has to be a power of two, at most {SHARDS_MAX}")
            }
            Self::ZeroTime(value) => write!(f, "a cache with a {value} of 0 could hold nothing"),
            Self::RefreshAhead => {
                f.write_str("refresh_ahead needs a time_to_live, and no time_to_idle")
            }
            Self::Thread(value) => {
                write!(f, "freezing needs a thread, and none can be started: {value}")
            }
            Self::Policy { policy, needs } => {
                write!(f, "policy {policy} {needs}; it works in simulations only")
            }
            Self::Admission { admission, needs } => {
                write!(f, "admission {admission} {needs}")
            }
        }
    }
}

impl std::error::Error for BuildError {}
