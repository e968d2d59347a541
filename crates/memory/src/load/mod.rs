//! Getting what is not there yet: one load per key, however many ask.

mod loading;

use std::borrow::Borrow;
use std::future::{Future, poll_fn};
use std::hash::{BuildHasher, Hash};
use std::pin::pin;

use floe_policy::Replacement;

use self::loading::Turn;
use crate::cache::Cache;
use crate::flight::{Aboard, Failure};
use crate::guard::Ref;
use crate::sync::Arc;

/// Loads of others that one caller waits for, as long as they fail: then it loads beside them. So a
/// source that is there again is asked once, and one that keeps failing does not make its callers
/// queue.
const WAITS: u32 = 2;

/// The passing of an error from the loading caller to the waiting ones.
struct Sharing<E> {
    share: fn(&E) -> Failure,
    receive: fn(Failure) -> Option<E>,
}

impl<E> Sharing<E> {
    /// It stays where it is.
    fn none() -> Self {
        Self { share: |_| None, receive: |_| None }
    }
}

impl<E: Send + Sync + 'static> Sharing<Arc<E>> {
    /// All get it, if they expect one of its type.
    fn all() -> Self {
        let share: fn(&Arc<E>) -> Failure = |error| Some(Arc::clone(error) as _);
        Self { share, receive: |failure| failure?.downcast().ok() }
    }
}

impl<K, V, P, S> Cache<K, V, P, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Looks a key up and, if it is not there, loads it, once for all threads that ask at the same
    /// time: the others wait for that load and get its value. One that fails or panics wakes them,
    /// and the next of them tries. A caller waits for two loads that fail at most, and then loads
    /// beside others; with [`try_get_with`](Self::try_get_with) all waiting callers fail with the
    /// first.
    ///
    /// A loaded value is handed out even where the cache does not take it. If the key is removed or
    /// inserted, or the cache cleared, while it is loaded, what the load brings may be out of date
    /// and does not enter the cache.
    ///
    /// # Errors
    /// The error of `load`, for the caller that ran it.
    ///
    /// # Panics
    /// When `load` asks for its own key: it would wait for itself. And when `load` panics.
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
        self.get_or_load_once(key, load, &Sharing::none())
    }

    /// [`get_or_insert_with`](Self::get_or_insert_with) in which callers that wait for a failing
    /// load get its error, too. A source that does not answer is asked once for all of them. Later
    /// callers ask again: errors are not kept.
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
        self.get_or_load_once(key, || load().map_err(Arc::new), &Sharing::all())
    }

    fn get_or_load_once<Q, E>(
        &self,
        key: &Q,
        load: impl FnOnce() -> Result<V, E>,
        errors: &Sharing<E>,
    ) -> Result<Ref<'_, V>, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        if let Some(value) = self.get(key) {
            return Ok(value);
        }
        let hash = self.inner.hash(key);
        let mut waited = 0;
        loop {
            if let Some(value) = self.peek(hash, key) {
                return Ok(value);
            }
            match self.turn(hash, key, waited < WAITS) {
                Turn::LookAgain => {}
                Turn::Wait(flight) => match self.landed(&flight) {
                    Ok(value) => return Ok(value),
                    Err(failure) => {
                        if let Some(error) = (errors.receive)(failure) {
                            return Err(error);
                        }
                        waited += 1;
                    }
                },
                Turn::Load(loading) => {
                    let aboard = Aboard::new(&loading.flight);
                    let loaded = load();
                    drop(aboard);
                    return match loaded {
                        Ok(value) => Ok(loading.finish(|| key.to_owned(), value)),
                        Err(error) => {
                            loading.fail((errors.share)(&error));
                            Err(error)
                        }
                    };
                }
            }
        }
    }

    /// [`get_or_insert_with`](Self::get_or_insert_with) for a future: the value if it is there, or
    /// else the one that the first asking caller loads. Needs no runtime. When the loading caller's
    /// future is dropped, the next one loads.
    ///
    /// The guard belongs to the thread that polled last; to hold a value across an `await`, clone
    /// it or [`hold`](Self::hold) it.
    ///
    /// # Errors
    /// The error of `load`, for the caller that ran it.
    ///
    /// # Panics
    /// When `load`, as it is polled, asks for its own key: it would wait for itself. It is not
    /// noticed, and waits for ever, when it awaits another task that does.
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
        self.get_or_load_async_once(key, load, Sharing::none()).await
    }

    /// [`try_get_with`](Self::try_get_with) for a future, as
    /// [`get_or_insert_async`](Self::get_or_insert_async) otherwise.
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
        self.get_or_load_async_once(key, async { load.await.map_err(Arc::new) }, Sharing::all())
            .await
    }

    async fn get_or_load_async_once<Q, E>(
        &self,
        key: &Q,
        load: impl Future<Output = Result<V, E>>,
        errors: Sharing<E>,
    ) -> Result<Ref<'_, V>, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let hash = self.inner.hash(key);
        let (mut counted, mut waited) = (false, 0);
        loop {
            let present =
                if counted { self.peek(hash, key).is_some() } else { self.get(key).is_some() };
            counted = true;
            if present {
                if let Some(value) = self.peek(hash, key) {
                    return Ok(value);
                }
                continue;
            }
            // No guard may be alive across an `await`.
            let flight = match self.turn(hash, key, waited < WAITS) {
                Turn::LookAgain => continue,
                Turn::Wait(flight) => flight,
                Turn::Load(loading) => {
                    let mut load = pin!(load);
                    let loaded = poll_fn(|context| {
                        let _aboard = Aboard::new(&loading.flight);
                        load.as_mut().poll(context)
                    });
                    return match loaded.await {
                        Ok(value) => Ok(loading.finish(|| key.to_owned(), value)),
                        Err(error) => {
                            loading.fail((errors.share)(&error));
                            Err(error)
                        }
                    };
                }
            };
            flight.landing().await;
            match self.landed(&flight) {
                Ok(value) => return Ok(value),
                Err(failure) => {
                    if let Some(error) = (errors.receive)(failure) {
                        return Err(error);
                    }
                    waited += 1;
                }
            }
        }
    }
}
