//! Getting what is not there yet: one load per key, however many ask.

mod asked;
pub(crate) mod key_entry;
pub(crate) mod load_error;
mod loader;
mod loading;
pub(crate) mod loads;
mod many;

use std::borrow::Borrow;
use std::convert::Infallible;
use std::future::Future;
use std::hash::{BuildHasher, Hash};

use floe_policy::Replacement;

use self::asked::{Borrowed, Owned};
use self::key_entry::KeyEntry;
use self::loader::{Loader, Sharing};
use self::loads::Loads;
use crate::cache::Cache;
use crate::guard::Ref;
use crate::options::InsertOptions;
use crate::sync::Arc;

impl<K, V, P, S> Cache<K, V, P, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Looks a key up, calls `load` for its value if it is absent, and returns a guard for the
    /// value.
    ///
    /// A key has one load at a time: other threads that ask for it wait for that load and get its
    /// value. When a load fails or panics, the next waiting caller loads. A caller waits for two
    /// failing loads at most, and then loads beside others. With
    /// [`try_get_with`](Self::try_get_with) all waiting callers fail with the first.
    ///
    /// The guard has the loaded value even where the cache does not take it. If the key is removed
    /// or inserted, or the cache cleared, while it is loaded, the loaded value may be out of date
    /// and does not enter the cache.
    ///
    /// Loads may ask for other keys, and each other's: where a wait would close a circle of loads
    /// that wait for each other, its caller loads by itself and does not wait. This covers threads
    /// and futures, in any number of caches. A thread that has polled a load's future does not
    /// block on that either. It is not noticed, and waits for ever, when a load has another thread
    /// or task ask for its key and waits for that.
    ///
    /// # Errors
    /// The error of `load`, for the caller that ran it.
    ///
    /// # Panics
    /// When `load` asks for its own key, as it would without end. And when `load` panics.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::new(10);
    /// let load = |key: u64| if key < 100 { Ok(key * 2) } else { Err("no such page") };
    /// assert_eq!(*cache.get_or_insert_with(&7, || load(7))?, 14);
    /// assert_eq!(*cache.get_or_insert_with(&7, || Err("not called"))?, 14);
    /// assert_eq!(cache.get_or_insert_with(&200, || load(200)).unwrap_err(), "no such page");
    /// # Ok::<(), &str>(())
    /// ```
    pub fn get_or_insert_with<Q, E>(
        &self,
        key: &Q,
        load: impl FnOnce() -> Result<V, E>,
    ) -> Result<Ref<'_, V>, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        Loader::of(self).load(Borrowed::new(key), || load().map(plain), &Sharing::none())
    }

    /// Does as [`get_or_insert_with`](Self::get_or_insert_with), but callers that wait for a
    /// failing load get its error, too. A source that does not answer is asked once for all of
    /// them. Later callers ask again: errors are not kept.
    ///
    /// Waiting callers with another error type than the loading one try for themselves, as do those
    /// that wait for a load that panics.
    ///
    /// # Errors
    /// The error of `load`, be it the caller's or that for which it waited.
    ///
    /// # Panics
    /// As `get_or_insert_with`.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::<u64, u64>::new(10);
    /// assert_eq!(*cache.try_get_with(&7, || Err("no such page")).unwrap_err(), "no such page");
    /// assert_eq!(*cache.try_get_with(&7, || Ok::<_, &str>(14)).unwrap(), 14);
    /// ```
    pub fn try_get_with<Q, E>(
        &self,
        key: &Q,
        load: impl FnOnce() -> Result<V, E>,
    ) -> Result<Ref<'_, V>, Arc<E>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        E: Send + Sync + 'static,
    {
        Loader::of(self).load(
            Borrowed::new(key),
            || load().map(plain).map_err(Arc::new),
            &Sharing::all(),
        )
    }

    /// Looks a key up and makes its value if it is absent, by a function that cannot fail.
    /// Otherwise as [`get_or_insert_with`](Self::get_or_insert_with).
    ///
    /// # Panics
    /// As `get_or_insert_with`.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::new(10);
    /// assert_eq!(*cache.get_with(&7, || "seven".to_string()), "seven");
    /// assert_eq!(*cache.get_with(&7, || unreachable!("it is there")), "seven");
    /// ```
    pub fn get_with<Q>(&self, key: &Q, make: impl FnOnce() -> V) -> Ref<'_, V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        match self.get_or_insert_with(key, || Ok::<_, Infallible>(make())) {
            Ok(value) => value,
            Err(never) => match never {},
        }
    }

    /// Looks a key up and, if it is absent, awaits `load` for its value. A key has one load at a
    /// time: other callers await that load. It needs no runtime. When the loading caller's future
    /// is dropped, the next waiting caller loads.
    ///
    /// The guard belongs to the thread that polled last; to hold a value across an `await`, clone
    /// it or [`hold`](Self::hold) it.
    ///
    /// # Errors
    /// The error of `load`, for the caller that ran it.
    ///
    /// # Panics
    /// When `load`, as it is polled, asks for its own key, as it would without end.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// # use std::{future::Future, pin::pin, task::{Context, Poll, Waker}};
    /// # fn block_on<F: Future>(future: F) -> F::Output {
    /// #     let mut future = pin!(future);
    /// #     loop {
    /// #         let mut context = Context::from_waker(Waker::noop());
    /// #         if let Poll::Ready(out) = future.as_mut().poll(&mut context) { return out }
    /// #     }
    /// # }
    /// let cache = floe::Cache::new(10);
    /// let load = async { Ok::<_, std::io::Error>("seven") };
    /// let value = block_on(cache.get_or_insert_async(&7, load))?;
    /// assert_eq!(*value, "seven");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn get_or_insert_async<Q, E>(
        &self,
        key: &Q,
        load: impl Future<Output = Result<V, E>>,
    ) -> Result<Ref<'_, V>, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        Loader::of(self)
            .load_async(Borrowed::new(key), async { load.await.map(plain) }, Sharing::none())
            .await
    }

    /// Does as [`get_or_insert_async`](Self::get_or_insert_async), but callers that wait for a
    /// failing load get its error, too; see [`try_get_with`](Self::try_get_with).
    ///
    /// # Errors
    /// The error of `load`, be it the caller's or that for which it waited.
    ///
    /// # Panics
    /// As `get_or_insert_async`.
    pub async fn try_get_async<Q, E>(
        &self,
        key: &Q,
        load: impl Future<Output = Result<V, E>>,
    ) -> Result<Ref<'_, V>, Arc<E>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        E: Send + Sync + 'static,
    {
        Loader::of(self)
            .load_async(
                Borrowed::new(key),
                async { load.await.map(plain).map_err(Arc::new) },
                Sharing::all(),
            )
            .await
    }

    /// Does as [`get_or_insert_async`](Self::get_or_insert_async), and returns a clone of the value
    /// in place of a guard. It may be kept across an `await`. Large values are best in an `Arc`.
    ///
    /// # Errors
    /// The error of `load`, for the caller that ran it.
    ///
    /// # Panics
    /// As `get_or_insert_async`.
    pub async fn get_or_insert_async_cloned<Q, E>(
        &self,
        key: &Q,
        load: impl Future<Output = Result<V, E>>,
    ) -> Result<V, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        V: Clone,
    {
        self.get_or_insert_async(key, load).await.map(|value| V::clone(&value))
    }

    /// Takes a key, whose value is made if it is absent: for keys that cannot be cloned, and for
    /// callers that have one anyway. [`get_with`](Self::get_with) and others make a
    /// key of a borrowed one, and only where the value is not there.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// #[derive(PartialEq, Eq, Hash)]
    /// struct Page(u64); // no `Clone`
    ///
    /// let cache = floe::Cache::new(10);
    /// assert_eq!(*cache.entry(Page(7)).or_insert_with(|| "seven"), "seven");
    /// assert_eq!(*cache.entry(Page(7)).or_insert("another"), "seven");
    /// ```
    pub fn entry(&self, key: K) -> KeyEntry<'_, K, V, P, S, Owned<K>> {
        KeyEntry::new(self, Owned::new(key))
    }

    /// Returns [`Loads`]: loads with options, such as the lifetime of the value, the time to wait
    /// for the load of another caller, or the place where a refresh runs.
    pub fn loads(&self) -> Loads<'_, K, V, P, S> {
        Loads::of(self)
    }
}

/// A loaded value that lives as long as others of the cache.
fn plain<V>(value: V) -> (V, InsertOptions) {
    (value, InsertOptions::new())
}
