//! The way of a caller that asks for what may not be there: look, wait for the load of another, or
//! load.

use std::borrow::Borrow;
use std::future::{Future, poll_fn};
use std::hash::{BuildHasher, Hash};
use std::pin::pin;

use floe_policy::Replacement;

use super::loading::{Loading, Turn};
use crate::cache::Cache;
use crate::flight::{Aboard, Failure, Flight};
use crate::guard::{Keep, Ref};
use crate::hash::KeyHash;
use crate::shard::Shard;
use crate::sync::{Arc, Ordering, lock};

/// Loads of others that one caller waits for, as long as they fail: then it loads beside them. So a
/// source that is there again is asked once, and one that keeps failing does not make its callers
/// queue.
const WAITS: u32 = 2;

/// The passing of an error from the loading caller to the waiting ones.
pub(super) struct Sharing<E> {
    share: fn(&E) -> Failure,
    receive: fn(Failure) -> Option<E>,
}

impl<E> Sharing<E> {
    /// It stays where it is.
    pub(super) fn none() -> Self {
        Self { share: |_| None, receive: |_| None }
    }
}

impl<E: Send + Sync + 'static> Sharing<Arc<E>> {
    /// All get it, if they expect one of its type.
    pub(super) fn all() -> Self {
        let share: fn(&Arc<E>) -> Failure = |error| Some(Arc::clone(error) as _);
        Self { share, receive: |failure| failure?.downcast().ok() }
    }
}

/// A caller of a cache that loads.
pub(super) struct Loader<'a, K, V, P: Replacement, S> {
    cache: &'a Cache<K, V, P, S>,
}

impl<'a, K, V, P, S> Loader<'a, K, V, P, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
{
    pub(super) fn of(cache: &'a Cache<K, V, P, S>) -> Self {
        Self { cache }
    }

    /// Returns the value that is there, or what this or another caller loads.
    pub(super) fn load<Q, E>(
        &self,
        key: &Q,
        load: impl FnOnce() -> Result<V, E>,
        errors: &Sharing<E>,
    ) -> Result<Ref<'a, V>, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        if let Some(value) = self.cache.get(key) {
            return Ok(value);
        }
        let hash = self.cache.inner.hash(key);
        let mut waited = 0;
        loop {
            if let Some(value) = self.present(hash, key) {
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

    /// [`load`](Self::load) for a future.
    pub(super) async fn load_async<Q, E>(
        &self,
        key: &Q,
        load: impl Future<Output = Result<V, E>>,
        errors: Sharing<E>,
    ) -> Result<Ref<'a, V>, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let hash = self.cache.inner.hash(key);
        let (mut counted, mut waited) = (false, 0);
        loop {
            let present = if counted {
                self.present(hash, key).is_some()
            } else {
                self.cache.get(key).is_some()
            };
            counted = true;
            if present {
                if let Some(value) = self.present(hash, key) {
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

    /// Decides which caller loads an absent key: this one, if no other loads it or it does not
    /// wait.
    ///
    /// # Panics
    /// When it would wait for itself.
    fn turn<Q>(&self, hash: KeyHash, key: &Q, waits: bool) -> Turn<'a, K, V, P, S>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let inner = &*self.cache.inner;
        let shard: &Shard<K, V, P> = inner.shards.of(hash);
        let owned = key.to_owned(); // the user's code, outside of the lock
        let mut flights = lock(&shard.flights);
        let found = flights.find(hash.whole(), |found| found.borrow() == key);
        if let Some(flight) = found.filter(|flight| waits || flight.is_own()) {
            drop(flights);
            assert!(!flight.is_own(), "a load asks for the key that it loads");
            return Turn::Wait(flight);
        }
        if self.present(hash, key).is_some() {
            return Turn::LookAgain;
        }
        let flight = Flight::new();
        flights.attach(hash.whole(), owned, &flight);
        shard.begins_loading(); // before the load reads anything: see `Inner::owner_past_loads`
        inner.loads.fetch_add(1, Ordering::Relaxed); // a count
        Turn::Load(Loading { cache: self.cache, hash, flight, finished: false, failure: None })
    }

    /// A guard for a key without a trace, but that the entry was used.
    fn present<Q>(&self, hash: KeyHash, key: &Q) -> Option<Ref<'a, V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let inner = &*self.cache.inner;
        let found = inner.peek(inner.record(), hash, key, true)?;
        Some(Ref::new(found.entry, Keep::new(found.cell)))
    }

    /// Returns what a flight has brought, when it is over.
    fn landed(&self, flight: &Flight<K, V>) -> Result<Ref<'a, V>, Failure> {
        let entry = flight.wait()?;
        // The flight's hold keeps the entry while the cell is filled.
        let cell = self
            .cache
            .inner
            .threads
            .records
            .adopt(self.cache.inner.record(), entry.as_ptr() as usize);
        // SAFETY: kept by the cell; entries of a cache live as long as it does.
        Ok(Ref::new(unsafe { entry.as_ref() }, Keep::new(cell)))
    }
}
