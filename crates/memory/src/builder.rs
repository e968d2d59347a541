//! The builder describes a cache before it is made.

use std::hash::{BuildHasher, Hash};
use std::time::Duration;

use floe_policy::admission::{AdmissionFactory, Admissions};
use floe_policy::registry::ChoiceError;
use floe_policy::{AnyPolicy, QdClock, Replacement};

use crate::admission::{ShardAdmission, Template};
use crate::budget::Budget;
use crate::build_error::{BuildError, SHARDS_MAX};
use crate::cache::Cache;
use crate::cause::Cause;
use crate::clock::Clock;
use crate::frozen::freezer::Freezer;
use crate::frozen::options::{FreezeStats, Freezing};
use crate::hash::DefaultHasher;
use crate::inner::{Inner, Listener, Weigher, shape};
use crate::local::Threads;
use crate::owner::Owner;
use crate::records::Records;
use crate::shard::Shard;
use crate::sync::{Arc, AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Mutex};
use crate::upkeep::Upkeep;

/// Entries that a shard is to have at least: smaller ones decide worse which leave. On the traces
/// of docs/results/policies.md 256 mean 0.03 % more misses than 1024 do, and 128 0.07 %.
const SHARE_MIN: u64 = 256;
/// The weight of an entry, as far as the number of shards depends on it, where no limit of entries
/// tells: a page. A cache of heavier entries still has dozens a shard.
const WEIGHT_ASSUMED: u64 = 4096;
/// Shards for each core, so that threads seldom meet at one.
const SHARDS_PER_CORE: usize = 4;

/// Describes a cache: a limit of entries or of weight, and whatever else is to differ from the
/// default.
///
/// ```
/// # use floe_memory as floe;
/// use std::time::Duration;
/// use floe::Cache;
///
/// let cache: Cache<String, Vec<u8>> = Cache::builder()
///     .weight_capacity(64 << 20)
///     .weigher(|key: &String, value: &Vec<u8>| (key.len() + value.len()) as u32)
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
    idle: Option<Duration>,
    shards: Option<usize>,
    clock: Clock,
    freezing: Option<Freezing>,
}

impl<K, V> Cache<K, V> {
    /// A description to be filled in: see [`Builder`].
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
            idle: None,
            shards: None,
            clock: Clock::system(),
            freezing: None,
        }
    }
}

impl<K, V, P, S> Builder<K, V, P, S> {
    /// The most entries it holds.
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

    /// The most weight it holds, in whatever the [`weigher`](Self::weigher) measures. May be
    /// combined with a [`capacity`](Self::capacity): both are kept.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let text = |_: &u64, text: &String| text.len() as u32;
    /// let cache = floe::Cache::builder().weight_capacity(10).weigher(text).build();
    /// cache.insert(1, "four".to_string());
    /// cache.insert(2, "more than ten".to_string()); // does not come in
    /// assert_eq!((cache.len(), cache.stats().weight), (1, 4));
    /// ```
    pub fn weight_capacity(self, weight: u64) -> Self {
        Self { weight: Some(weight), ..self }
    }

    /// Sets the function that weighs an entry: in bytes, mostly. Called once for each insertion,
    /// outside of locks; 0 counts as 1.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::builder()
    ///     .weight_capacity(1 << 20)
    ///     .weigher(|key: &String, value: &Vec<u8>| (key.len() + value.len()) as u32)
    ///     .build();
    /// cache.insert("key".to_string(), vec![0; 97]);
    /// assert_eq!(cache.stats().weight, 100);
    /// ```
    pub fn weigher(self, weigh: impl Fn(&K, &V) -> u32 + Send + Sync + 'static) -> Self {
        Self { weigher: Some(Box::new(weigh)), ..self }
    }

    /// Is told of each entry that leaves, with the cause, soon after it has left: by the thread
    /// whose call made it leave, or by that of the library which takes out what has expired;
    /// outside of locks, and with no order promised between threads. It may use the cache. It is
    /// not told of what is in the cache when that is dropped.
    ///
    /// If it panics, so does the call, after the listener has got the other entries that left.
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

    /// Sets the eviction policy by type: hits are compiled for it. The order given is a template,
    /// without room.
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
        let Self {
            entries,
            weight,
            weigher,
            listener,
            admission,
            policy: _,
            hasher,
            live,
            idle,
            shards,
            clock,
            freezing,
        } = self;
        Builder {
            entries,
            weight,
            weigher,
            listener,
            admission,
            policy,
            hasher,
            live,
            idle,
            shards,
            clock,
            freezing,
        }
    }

    /// Sets the eviction policy by name, with parameters if need be: `lru`, `slru:segments=2`, as
    /// `floe simulate` takes them.
    ///
    /// # Errors
    /// When there is no such policy or parameter; says which there are.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::builder().capacity(100).policy_named("slru:segments=2")?.build();
    /// cache.insert(1, 1);
    /// assert_eq!(cache.stats().policy, "slru");
    /// # Ok::<(), floe::policy::registry::ChoiceError>(())
    /// ```
    pub fn policy_named(self, name: &str) -> Result<Builder<K, V, AnyPolicy, S>, ChoiceError> {
        let policy = name.parse()?;
        Ok(self.policy::<AnyPolicy>(policy))
    }

    /// Sets the admission, asked whenever a key is inserted that is not there. By default
    /// everything comes in, and such a cache does nothing for this. The one given is a template,
    /// without room; each shard has its own.
    ///
    /// A rejected key is not kept: `insert` returns, the value is dropped, and the
    /// [listener](Self::listener) is told with [`Cause::Bypassed`]. `get_or_insert_with` and its
    /// sisters return the loaded value all the same, to all waiting callers. A value inserted under
    /// a key that is there replaces the other without a question, and pinned entries always come
    /// in.
    ///
    /// - [`Duel`](floe_policy::admission::Duel) compares with the victim, so it needs a policy that
    ///   [names](floe_policy::Eviction::victim) it: fifo, lru, relaxed-lru, prob-lru, clock, slru,
    ///   2q, s3-fifo, sieve, lfu, qdlp, qd-clock. With others it admits everything.
    /// - An admission hears of hits in LRU-like orders, with each promotion. Of hits that change no
    ///   order (those of FIFO-like policies, and on frozen entries) it only gets the count. So with
    ///   a FIFO-like policy `duel` compares how often keys were *inserted*, and `small-bypass` does
    ///   not see keys that are only hit.
    /// - [`Obp`](floe_policy::admission::Obp) keeps insertions and removals to a share of lookups
    ///   with `get` and its sisters; an insertion looks nothing up. While it forbids evictions
    ///   ([`Orders::hold`](floe_policy::admission::Orders::hold)), it rejects all keys that would
    ///   need one.
    /// - Admissions that need the position of blocks (`sequential`), or that fetch admitted blocks
    ///   (`fussy`), are refused when the cache is built.
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

    /// Sets the admission by name, with parameters if need be, and with `+` between several that
    /// have to agree: `obp:target=0.2`, `second-access + obp`, as `floe simulate --admit` takes
    /// them. See [`admission`](Self::admission).
    ///
    /// # Errors
    /// When there is no such admission or parameter; says which there are.
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

    /// Sets the hasher of keys. Any hasher will do, because its result is mixed once more; but with
    /// a predictable one, such as an identity, an attacker that chooses keys can make lookups slow.
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
        let Self {
            entries,
            weight,
            weigher,
            listener,
            admission,
            policy,
            hasher: _,
            live,
            idle,
            shards,
            clock,
            freezing,
        } = self;
        Builder {
            entries,
            weight,
            weigher,
            listener,
            admission,
            policy,
            hasher,
            live,
            idle,
            shards,
            clock,
            freezing,
        }
    }

    /// Sets the time after its insertion at which an entry expires: at that time or up to 25 ms
    /// later. It is not found from then on, and freed within a second or two, by a thread of the
    /// library's; where the system has no thread to give, by inserting threads. Times over 124 days
    /// count as 124 days.
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

    /// Sets the time after its last use at which an entry expires, as
    /// [`time_to_live`](Self::time_to_live) otherwise. Every hit of such an entry reads the coarse
    /// time, and one a tick writes it.
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

    /// Sets the number of parts of the cache, each with a lock and an order of its own, that hits
    /// of FIFO-like policies never take: a power of two. By default four a core, and fewer where
    /// they would have less than 256 entries. A cache that has no limit but one of weight is taken
    /// to hold entries of 4096, so it has a shard for each 1 MiB at most; where that is far from
    /// the truth, give the number of shards. With one, a cache decides exactly as `floe simulate`
    /// says.
    ///
    /// Shards have equal shares of the limits. All shards make room alike for an entry that weighs
    /// a sixteenth of a share or more, and take one lock each for it: most entries should be
    /// lighter.
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

    /// Where the time comes from, if not from the system: see [`Clock`].
    pub fn clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    /// Has the hottest entries frozen, as far as that pays: see [`Freezing`]. A thread of the
    /// library, one for all caches of the process, sees to it.
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
}

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
    /// When it cannot be as described; [`try_build`](Self::try_build) says so otherwise.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::builder().capacity(10).build();
    /// cache.insert("key", 1);
    /// ```
    pub fn build(self) -> Cache<K, V, P, S> {
        self.try_build().unwrap_or_else(|error| panic!("no such cache: {error}"))
    }

    /// Makes the cache.
    ///
    /// # Errors
    /// When it cannot be as described; says why.
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
            let by_weight = || budget.weight_limit().map(|weight| weight / WEIGHT_ASSUMED);
            let entries = budget.entries_limit().or_else(by_weight).unwrap_or(u64::MAX);
            let most = (entries / SHARE_MIN).max(1).ilog2();
            (cores * SHARDS_PER_CORE).next_power_of_two().min(1 << most.min(16)).min(SHARDS_MAX)
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
            made.push(Shard::new(owner, table));
        }
        let inner = Inner {
            shards: made.into(),
            shard_shift: 32 - shards.ilog2(),
            hasher: self.hasher,
            threads: Arc::clone(&threads),
            frozen: AtomicPtr::default(),
            timed_one_in: AtomicU32::new(
                self.freezing.map_or(0, |freezing| freezing.sample_one_in),
            ),
            all_frozen: AtomicBool::new(false),
            freezer: Mutex::new(Freezer::new(self.freezing)),
            index_bytes: AtomicUsize::new(0),
            freeze_stats: Mutex::new(self.freezing.map(|_| FreezeStats::default())),
            budget,
            weigher: self.weigher,
            listener: self.listener,
            clock: self.clock,
            live: self.live,
            idle: self.idle,
            about,
            admission: self.admission.as_ref().map(|template| template.name()),
            expires: AtomicBool::new(false),
            upkeep: Upkeep::new(),
            requests_seen: AtomicU64::new(0),
            loads: AtomicU64::new(0),
            failed_loads: AtomicU64::new(0),
        };
        let inner = Arc::new(inner);
        if self.freezing.is_some() {
            inner.keep_house(true).map_err(|error| BuildError::Thread(error.to_string()))?;
        }
        Ok(Cache::from_inner(inner))
    }

    fn check(&self) -> Result<(), BuildError> {
        match (self.entries, self.weight) {
            (None, None) => return Err(BuildError::NoLimit),
            (Some(0), _) => return Err(BuildError::ZeroLimit("capacity")),
            (_, Some(0)) => return Err(BuildError::ZeroLimit("weight_capacity")),
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
        for (name, time) in [("time_to_live", self.live), ("time_to_idle", self.idle)] {
            if time == Some(Duration::ZERO) {
                return Err(BuildError::ZeroTime(name));
            }
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
