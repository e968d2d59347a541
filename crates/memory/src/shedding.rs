//! Load shedding: past p*, a share of the requests goes to the source as if there were no cache.
//!
//! Where hits wait for each other, a request that touches no list makes room for others, and
//! throughput stays where it was highest ([`floe_policy::shedder`]; "Can Increasing the Hit Ratio
//! Hurt Cache Throughput?", section 5.2). That needs a source that is as new as the cache, which
//! only its user can promise, and requests that do not ask for a guard on an entry: so it is for
//! caches that are told to, and for [`Cache::get_or_load`].
//!
//! The library's thread has [`Shedder`] decide by what threads count anyway, requests, and the time
//! that has passed. A request draws from its thread's own numbers; while nothing is shed it only
//! reads the share.

use std::borrow::Borrow;
use std::fmt;
use std::future::Future;
use std::hash::{BuildHasher, Hash};
use std::ops::Deref;
use std::time::Duration;

use floe_policy::Replacement;
use floe_policy::shedder::Shedder;
use floe_policy::shedding::{Decision, SheddingOptions};

use crate::cache::Cache;
use crate::frozen::timing;
use crate::guard::Ref;
use crate::inner::Inner;
use crate::sync::{AtomicU32, Mutex, Ordering, lock};

/// What a cache sheds, and what decides that.
#[derive(Debug)]
pub(crate) struct Valve {
    /// Of 2³² requests.
    share: AtomicU32,
    /// Without, nothing is ever shed. Apart, as it is large and seldom needed.
    driven: Option<Box<Driven>>,
}

/// What decides.
#[derive(Debug)]
struct Driven {
    began: Duration,
    shedder: Mutex<Shedder>,
}

/// What load shedding does, of a cache that was made with [`shedding`](crate::Builder::shedding).
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct SheddingStats {
    /// Requests that went past the cache.
    pub shed: u64,
    /// The share of requests that was decided for.
    pub share: f64,
    /// The share at this moment: another one while that is tried.
    pub share_now: f64,
    /// The last decisions, newest last, by the time since the cache was made.
    pub decisions: Vec<Decision>,
}

impl Valve {
    pub(crate) fn new(options: Option<&SheddingOptions>) -> Self {
        let driven = |options: &SheddingOptions| {
            let shedder = Mutex::new(Shedder::new(*options));
            Box::new(Driven { began: timing::now(), shedder })
        };
        Self { share: AtomicU32::new(0), driven: options.map(driven) }
    }

    /// Whether there is something to be stepped.
    pub(crate) fn is_driven(&self) -> bool {
        self.driven.is_some()
    }

    /// What is told of it, after so many requests were shed.
    pub(crate) fn stats(&self, shed: u64) -> Option<SheddingStats> {
        let shedder = lock(&self.driven.as_ref()?.shedder);
        Some(SheddingStats {
            shed,
            share: shedder.share(),
            share_now: shedder.share_now(),
            decisions: shedder.decisions().iter().cloned().collect(),
        })
    }

    pub(crate) fn set(&self, share: f64) {
        // a number that nothing else goes by
        self.share.store((share * f64::from(u32::MAX)) as u32, Ordering::Relaxed);
    }
}

impl<K, V, P: Replacement, S> Inner<K, V, P, S> {
    /// Whether this request is to go past the cache. It is counted as that.
    #[inline(always)]
    fn is_shed(&self) -> bool {
        // a number, and any recent one will do
        let share = self.valve.share.load(Ordering::Relaxed);
        share != 0 && self.draws_shed(share)
    }

    #[inline(never)]
    fn draws_shed(&self, share: u32) -> bool {
        let record = self.record();
        let is_shed = record.timings.random.next() < share;
        record.shed.add(u64::from(is_shed));
        is_shed
    }

    /// Decides what to shed, if there is something to decide and it is time.
    pub(crate) fn step_shedding(&self) {
        let Some(driven) = &self.valve.driven else { return };
        let mut shedder = lock(&driven.shedder);
        let now = timing::now().saturating_sub(driven.began);
        if now >= shedder.due() {
            let counted = self.threads.records.counted();
            self.valve.set(shedder.step(now, counted.lookups + counted.shed, now));
        }
    }
}

/// What [`Cache::get_or_load`] brings: derefs to the value.
pub enum Loaded<'a, V> {
    /// It is in the cache, or was when it was found.
    Cached(Ref<'a, V>),
    /// It was loaded past the cache, which knows nothing of it.
    Shed(V),
}

impl<V> Deref for Loaded<'_, V> {
    type Target = V;

    #[inline(always)]
    fn deref(&self) -> &V {
        match self {
            Self::Cached(value) => value,
            Self::Shed(value) => value,
        }
    }
}

impl<V: fmt::Debug> fmt::Debug for Loaded<'_, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<V: fmt::Display> fmt::Display for Loaded<'_, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<K, V, P, S> Cache<K, V, P, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
{
    /// [`get_or_insert_with`](Self::get_or_insert_with) for what the source always has as new: a
    /// cache that was made with [`shedding`](crate::Builder::shedding) may send this request there
    /// as if it had no such key, where that serves all requests together faster. Then `load` runs
    /// beside any other load of the key, nothing is looked up, counted as a hit or a miss, or
    /// inserted, and the value is the caller's. Other caches do as `get_or_insert_with` does.
    ///
    /// # Errors
    /// What `load` fails with, to the caller whose `load` it was.
    ///
    /// # Panics
    /// As `get_or_insert_with`.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::builder().capacity(10).shedding(Default::default()).build();
    /// let read = |page: u64| Ok::<_, std::io::Error>(page * 2);
    /// assert_eq!(*cache.get_or_load(&7, || read(7))?, 14);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[inline]
    pub fn get_or_load<Q, E>(
        &self,
        key: &Q,
        load: impl FnOnce() -> Result<V, E>,
    ) -> Result<Loaded<'_, V>, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        if self.inner.is_shed() {
            return load().map(Loaded::Shed);
        }
        self.get_or_insert_with(key, load).map(Loaded::Cached)
    }

    /// [`get_or_load`](Self::get_or_load) for a future, as
    /// [`get_or_insert_async`](Self::get_or_insert_async) otherwise.
    ///
    /// # Errors
    /// What `load` fails with, to the caller whose `load` it was.
    pub async fn get_or_load_async<Q, E>(
        &self,
        key: &Q,
        load: impl Future<Output = Result<V, E>>,
    ) -> Result<Loaded<'_, V>, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        if self.inner.is_shed() {
            return load.await.map(Loaded::Shed);
        }
        self.get_or_insert_async(key, load).await.map(Loaded::Cached)
    }
}
