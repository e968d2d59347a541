//! The builder describes a cache before it is made.

mod build;
mod policies;

use std::hash::BuildHasher;
use std::time::Duration;

use floe_policy::QdClock;

use crate::admission::Template;
use crate::cache::Cache;
use crate::cause::Cause;
use crate::clock::Clock;
use crate::frozen::options::Freezing;
use crate::hash::DefaultHasher;
use crate::inner::{Keeper, Listener, Weigher};

/// Builds a cache with settings that differ from the defaults. [`Cache::builder`] makes one.
///
/// A cache needs a limit: a [`capacity`](Self::capacity), a
/// [`weight_capacity`](Self::weight_capacity) with a [`weigher`](Self::weigher), or both. All else
/// has a default. Each method takes the builder and returns it, and [`build`](Self::build) makes
/// the cache.
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
    ahead: Option<Duration>,
    shards: Option<usize>,
    clock: Clock,
    freezing: Option<Freezing>,
    keeper: Option<Keeper<K, V>>,
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
            idle: None,
            ahead: None,
            shards: None,
            clock: Clock::system(),
            freezing: None,
            keeper: None,
        }
    }
}

impl<K, V, P, S> Builder<K, V, P, S> {
    /// Sets the limit of entries. With 0 the cache is off: it holds nothing, and still loads. At
    /// most 2³¹ − 1.
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

    /// Sets the limit of weight, in the unit of the [`weigher`](Self::weigher), which it needs. It
    /// may be combined with a [`capacity`](Self::capacity): the cache then keeps both limits.
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

    /// Sets the function that weighs an entry, in a unit of your choice: bytes, mostly. It is
    /// called once for each insertion, outside of locks. A weight of 0 counts as 1.
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

    /// Sets the listener, which is called with key, value and [`Cause`] for each entry that leaves,
    /// soon after it has left.
    ///
    /// The call comes from the thread that made the entry leave, or from the library's thread that
    /// removes expired entries. It comes outside of locks, and in no order that is promised between
    /// threads. The listener may use the cache. It is not called for the entries that a cache has
    /// when it is dropped.
    ///
    /// A listener may insert again, so that more entries leave, of which it is told. Calls beyond
    /// the fourth within each other come after the outer one has returned, so a chain of any length
    /// takes little stack. A listener that always inserts again never ends.
    ///
    /// If the listener panics, so does the call that made the entry leave, after that has done its
    /// work and the listener has got the other entries that left.
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
            ahead,
            shards,
            clock,
            freezing,
            keeper,
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
            ahead,
            shards,
            clock,
            freezing,
            keeper,
        }
    }

    /// Sets the time after its insertion at which an entry expires: at that time or up to 25 ms
    /// later. It is not found from then on, and freed within a second or two, by a thread of the
    /// library's; where the system has no thread to give, by inserting threads. A value that guards
    /// keep then is freed as soon after the last of them.
    ///
    /// Times of more than 62 days end up to 6 s late. Those of more than 174 years are for ever,
    /// such as [`Duration::MAX`].
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

    /// Sets the time before the end of an entry's time to live in which it is refreshed: the first
    /// [load](Cache::get_or_insert_with) that asks for it then loads, while others go on with the
    /// old value, and nobody waits for an entry that is asked for often enough. If that fails, its
    /// caller gets the old value, too, and the next one tries. `get` and its sisters load nothing.
    ///
    /// To have the load run elsewhere, use
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

    /// Sets the number of parts of the cache, each with a lock and an order of its own, that hits
    /// of FIFO-like policies never take: a power of two. By default four a core, more (up to 1024)
    /// where they would have more than 32,768 entries, and fewer where they would have less than
    /// 256. An insertion takes longest where its shard grows or sweeps all its entries: under a
    /// millisecond with 32,768. A cache that has no limit but one of weight is taken
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

    /// Sets the clock by which entries expire: the system's by default. A [manual](Clock::manual)
    /// one is for tests.
    pub fn clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    /// Has the cache freeze its hottest entries as long as that makes it faster: see [`Freezing`].
    /// A thread of the library decides, one for all caches of the process.
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

    /// Sets the function that is asked before an entry is freed.
    pub(crate) fn keeper(self, keeper: Keeper<K, V>) -> Self {
        Self { keeper: Some(keeper), ..self }
    }
}
