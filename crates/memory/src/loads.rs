//! Loads with options: the lifetime of the loaded value, a limit on waiting, a refresh elsewhere.

use std::borrow::Borrow;
use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::hash::{BuildHasher, Hash};
use std::pin::Pin;
use std::time::{Duration, Instant};

use equivalent::Equivalent;
use floe_policy::Replacement;

use crate::cache::Cache;
use crate::guard::Ref;
use crate::loader::{Asked, Borrowed, LoadError, Loader, Lookup, Sharing, failed, plain, polled};
use crate::options::InsertOptions;
use crate::sync::{Arc, lock};

/// A key whose value is looked up, and made if it is absent, as [`Cache::entry`] and
/// [`Loads::entry_ref`](crate::Loads::entry_ref) return it. `A` is the owned or borrowed key.
#[must_use = "nothing is looked up before one of its methods"]
pub struct KeyEntry<'a, K, V, P: Replacement, S, A> {
    cache: &'a Cache<K, V, P, S>,
    key: A,
}

impl<'a, K, V, P, S, A> KeyEntry<'a, K, V, P, S, A>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
    A: Asked<K>,
{
    pub(super) fn new(cache: &'a Cache<K, V, P, S>, key: A) -> Self {
        Self { cache, key }
    }

    /// Returns the key's value; if it is absent, inserts and returns `value`.
    ///
    /// # Panics
    /// As [`Cache::get_or_insert_with`].
    pub fn or_insert(self, value: V) -> Ref<'a, V> {
        self.or_insert_with(|| value)
    }

    /// Returns the key's value; if it is absent, inserts and returns the default value.
    ///
    /// # Panics
    /// As [`Cache::get_or_insert_with`].
    pub fn or_default(self) -> Ref<'a, V>
    where
        V: Default,
    {
        self.or_insert_with(V::default)
    }

    /// Returns the key's value; if it is absent, inserts and returns the result of `make`. See
    /// [`Cache::get_with`].
    ///
    /// # Panics
    /// As [`Cache::get_or_insert_with`].
    pub fn or_insert_with(self, make: impl FnOnce() -> V) -> Ref<'a, V> {
        match self.or_try_insert_with(|| Ok::<_, Infallible>(make())) {
            Ok(value) => value,
            Err(never) => match never {},
        }
    }

    /// Returns the key's value; if it is absent, inserts and returns the result of `load`. See
    /// [`Cache::get_or_insert_with`].
    ///
    /// # Errors
    /// The error of `load`, for the caller that ran it.
    ///
    /// # Panics
    /// As [`Cache::get_or_insert_with`].
    pub fn or_try_insert_with<E>(
        self,
        load: impl FnOnce() -> Result<V, E>,
    ) -> Result<Ref<'a, V>, E> {
        Loader::of(self.cache).load(self.key, || load().map(plain), &Sharing::none())
    }

    /// Returns the key's value; if it is absent, awaits `load`, then inserts and returns its
    /// result. See [`Cache::get_or_insert_async`].
    ///
    /// # Errors
    /// The error of `load`, for the caller that ran it.
    ///
    /// # Panics
    /// As [`Cache::get_or_insert_with`].
    pub async fn or_try_insert_async<E>(
        self,
        load: impl Future<Output = Result<V, E>>,
    ) -> Result<Ref<'a, V>, E> {
        let load = async { load.await.map(plain) };
        Loader::of(self.cache).load_async(self.key, load, Sharing::none()).await
    }
}

impl<K, V, P: Replacement, S, A> fmt::Debug for KeyEntry<'_, K, V, P, S, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyEntry").finish_non_exhaustive()
    }
}

/// A refresh to be run on a thread, as [`Loads::get_in_background`] hands it out. If the job is
/// dropped instead, the refresh fails, and a later load tries again.
pub type RefreshJob = Box<dyn FnOnce() + Send>;

/// A refresh to be run by a runtime, as [`Loads::get_in_background_async`] hands it out. If the
/// task is dropped before its end, the refresh fails, and a later load tries again.
pub type RefreshTask = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Loads with options: the lifetime of the loaded value, a limit on waiting, or a refresh
/// elsewhere. [`Cache::loads`] returns it. As with [`Cache::get_or_insert_with`], a key has one
/// load at a time.
pub struct Loads<'a, K, V, P: Replacement, S> {
    cache: &'a Cache<K, V, P, S>,
}

impl<K, V, P: Replacement, S> Clone for Loads<'_, K, V, P, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, V, P: Replacement, S> Copy for Loads<'_, K, V, P, S> {}

impl<K, V, P: Replacement, S> fmt::Debug for Loads<'_, K, V, P, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loads").field("cache", self.cache).finish()
    }
}

impl<'a, K, V, P, S> Loads<'a, K, V, P, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
{
    pub(super) fn of(cache: &'a Cache<K, V, P, S>) -> Self {
        Self { cache }
    }

    /// Detaches all loads under way: their callers get the results, which do not enter the cache.
    /// Call it after the source has changed for keys that are not known.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::new(10);
    /// let value = cache.get_with(&7, || {
    ///     cache.loads().detach(); // another thread, as a rule
    ///     "seven"
    /// });
    /// assert_eq!(*value, "seven");
    /// assert!(!cache.contains_key(&7));
    /// ```
    pub fn detach(self) {
        for shard in self.cache.inner.shards.iter() {
            let detached = lock(&shard.pending_loads).clear();
            drop(detached);
        }
    }

    /// Looks a key up and loads an absent value as [`Cache::get_or_insert_with`] does. The load
    /// returns [`InsertOptions`] with its value, such as a time to live or a pin.
    ///
    /// # Errors
    /// The error of `load`, for the caller that ran it.
    ///
    /// # Panics
    /// As `get_or_insert_with`.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// use std::time::Duration;
    /// use floe::{Cache, Clock, InsertOptions};
    ///
    /// fn fetch() -> Result<(&'static str, Duration), std::io::Error> {
    ///     Ok(("token", Duration::from_secs(300))) // and how long it is valid
    /// }
    ///
    /// let clock = Clock::manual();
    /// let cache = Cache::builder().capacity(10).clock(clock.clone()).build();
    /// let token = cache.loads().get("user", || {
    ///     let (token, valid) = fetch()?;
    ///     Ok::<_, std::io::Error>((token, InsertOptions::new().time_to_live(valid)))
    /// })?;
    /// assert_eq!(*token, "token");
    /// clock.advance(Duration::from_secs(301));
    /// assert!(cache.get("user").is_none());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn get<Q, E>(
        self,
        key: &Q,
        load: impl FnOnce() -> Result<(V, InsertOptions), E>,
    ) -> Result<Ref<'a, V>, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        Loader::of(self.cache).load(Borrowed::new(key), load, &Sharing::none())
    }

    /// Takes a borrowed key, as [`Cache::entry`] takes an owned one. The cache's own key is made
    /// only if the value is absent.
    ///
    /// The key is made by way of the owned form: a `String` from `str`, and an `Arc<str>` or
    /// `Box<str>` from that. [`Cache::get_with`] does not take such keys, since it infers the type
    /// of keys from their borrowed form.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// use std::sync::Arc;
    ///
    /// let cache = floe::Cache::<Arc<str>, usize>::new(10);
    /// assert_eq!(*cache.loads().entry_ref("floe").or_insert_with(|| 4), 4);
    /// assert_eq!(cache.get_cloned("floe"), Some(4));
    /// ```
    pub fn entry_ref<'q, Q>(self, key: &'q Q) -> KeyEntry<'a, K, V, P, S, Borrowed<'q, K, Q>>
    where
        Q: Hash + Equivalent<K> + ToOwned<Owned: Into<K>> + ?Sized,
    {
        KeyEntry::new(self.cache, Borrowed::new(key))
    }

    /// Loads as [`get`](Self::get) does, with a load that is a future; see
    /// [`Cache::get_or_insert_async`].
    ///
    /// # Errors
    /// The error of `load`, for the caller that ran it.
    ///
    /// # Panics
    /// As `get_or_insert_async`.
    pub async fn get_async<Q, E>(
        self,
        key: &Q,
        load: impl Future<Output = Result<(V, InsertOptions), E>>,
    ) -> Result<Ref<'a, V>, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        Loader::of(self.cache).load_async(Borrowed::new(key), load, Sharing::none()).await
    }

    /// Loads as [`get`](Self::get) does, but callers that wait for a failing load get its error,
    /// too; see [`Cache::try_get_with`].
    ///
    /// # Errors
    /// The error of the caller's own `load`, or of the load for which the caller waited.
    ///
    /// # Panics
    /// As `get_or_insert_with`.
    pub fn try_get<Q, E>(
        self,
        key: &Q,
        load: impl FnOnce() -> Result<(V, InsertOptions), E>,
    ) -> Result<Ref<'a, V>, Arc<E>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        E: Send + Sync + 'static,
    {
        let load = || load().map_err(Arc::new);
        Loader::of(self.cache).load(Borrowed::new(key), load, &Sharing::all())
    }

    /// Loads as [`try_get`](Self::try_get) does, with a load that is a future.
    ///
    /// # Errors
    /// The error of the caller's own `load`, or of the load for which the caller waited.
    ///
    /// # Panics
    /// As `get_or_insert_async`.
    pub async fn try_get_async<Q, E>(
        self,
        key: &Q,
        load: impl Future<Output = Result<(V, InsertOptions), E>>,
    ) -> Result<Ref<'a, V>, Arc<E>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        E: Send + Sync + 'static,
    {
        let load = async { load.await.map_err(Arc::new) };
        Loader::of(self.cache).load_async(Borrowed::new(key), load, Sharing::all()).await
    }

    /// Loads as [`get`](Self::get) does, but waits for the load of another caller no longer than a
    /// given time. The time does not limit the caller's own load. To limit a future, have the
    /// runtime drop it: another waiting caller then loads.
    ///
    /// # Errors
    /// The error of `load`, for the caller that ran it, or [`LoadError::TimedOut`].
    ///
    /// # Panics
    /// As `get_or_insert_with`.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// use std::time::Duration;
    /// use floe::{Cache, InsertOptions, LoadError};
    ///
    /// let cache = &Cache::new(10);
    /// let soon = Duration::from_millis(1);
    /// let late = cache.get_or_insert_with(&7, || {
    ///     // Another thread asks while this one loads.
    ///     let asked = std::thread::scope(|scope| {
    ///         let ask = || Ok::<_, ()>(("not loaded", InsertOptions::new()));
    ///         scope.spawn(move || cache.loads().get_within(&7, soon, ask).err()).join().unwrap()
    ///     });
    ///     assert_eq!(asked, Some(LoadError::TimedOut));
    ///     Ok::<_, ()>("seven")
    /// });
    /// assert_eq!(*late.unwrap(), "seven");
    /// ```
    pub fn get_within<Q, E>(
        self,
        key: &Q,
        wait: Duration,
        load: impl FnOnce() -> Result<(V, InsertOptions), E>,
    ) -> Result<Ref<'a, V>, LoadError<E>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let until = Instant::now().checked_add(wait); // else it is as good as for ever
        Loader::of(self.cache).load_until(Borrowed::new(key), until, load, &Sharing::none())
    }

    /// Loads as [`get`](Self::get) does, but hands a [refresh](crate::Builder::refresh_ahead) to
    /// `spawn`, to be run elsewhere, and returns the old value at once. This call itself loads a
    /// value that is absent. The error of a refresh is dropped, and
    /// [counted](crate::Stats::failed_loads).
    ///
    /// # Errors
    /// The error of `load`, for the caller that ran it.
    ///
    /// # Panics
    /// As `get_or_insert_with`.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// use std::time::Duration;
    /// use floe::{Cache, Clock, InsertOptions};
    ///
    /// let (fresh, stale) = (Duration::from_secs(60), Duration::from_secs(30));
    /// let clock = Clock::manual();
    /// let cache = Cache::builder().capacity(10).clock(clock.clone()).build();
    /// let ask = |version| {
    ///     let options = InsertOptions::new().stale_while_revalidate(fresh, stale);
    ///     let mut refresh = None;
    ///     let load = move || Ok::<_, std::io::Error>((version, options));
    ///     let spawn = |job| refresh = Some(std::thread::spawn(job));
    ///     let value = *cache.loads().get_in_background("page", load, spawn).unwrap();
    ///     refresh.map(|thread| thread.join().unwrap());
    ///     value
    /// };
    /// assert_eq!(ask(1), 1);
    /// clock.advance(Duration::from_secs(70));
    /// assert_eq!(ask(2), 1); // and has it refreshed
    /// assert_eq!(ask(3), 2);
    /// ```
    pub fn get_in_background<Q, E>(
        self,
        key: &Q,
        load: impl FnOnce() -> Result<(V, InsertOptions), E> + Send + 'static,
        spawn: impl FnOnce(RefreshJob),
    ) -> Result<Ref<'a, V>, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let (loader, mut key) = (Loader::of(self.cache), Borrowed::new(key));
        match loader.look(&mut key) {
            (_, Lookup::Fresh(value)) => Ok(value),
            (hash, Lookup::Absent) => {
                let loaded = loader.load_absent(hash, key, None, load, &Sharing::none());
                loaded.map_err(failed)
            }
            (_, Lookup::Due(value, loading)) => {
                let loading = loading.travel();
                spawn(Box::new(move || {
                    let inside = loading.pending_load.run().enter();
                    let loaded = load();
                    drop(inside);
                    if let Ok((value, options)) = loaded {
                        loading.arrive(value, &options);
                    }
                }));
                Ok(value)
            }
        }
    }

    /// Loads as [`get_in_background`](Self::get_in_background) does, with a load that is a future.
    /// `spawn` may be `tokio::spawn`, for example.
    ///
    /// # Errors
    /// The error of `load`, for the caller that ran it.
    ///
    /// # Panics
    /// As `get_or_insert_async`.
    pub async fn get_in_background_async<Q, E>(
        self,
        key: &Q,
        load: impl Future<Output = Result<(V, InsertOptions), E>> + Send + 'static,
        spawn: impl FnOnce(RefreshTask),
    ) -> Result<Ref<'a, V>, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let (loader, mut key) = (Loader::of(self.cache), Borrowed::new(key));
        let hash = match loader.look(&mut key) {
            (_, Lookup::Fresh(value)) => return Ok(value),
            (hash, Lookup::Absent) => hash,
            (_, Lookup::Due(value, loading)) => {
                let loading = loading.travel();
                spawn(Box::pin(async move {
                    if let Ok((value, options)) = polled(loading.pending_load.run(), load).await {
                        loading.arrive(value, &options);
                    }
                }));
                return Ok(value);
            }
        };
        loader.load_async_as(hash, key, None, load, Sharing::none()).await
    }
}
