//! The way of a caller that asks for what may not be there: look, wait for the load of another, or
//! load.

use std::borrow::Borrow;
use std::future::{Future, poll_fn};
use std::hash::{BuildHasher, Hash};
use std::pin::pin;
use std::time::Instant;

use floe_policy::Replacement;

use super::load_error::LoadError;
use super::loading::{Loading, LoadingHere, Turn};
use crate::cache::Cache;
use crate::flight::{Aboard, Failure, Flight, Flights};
use crate::guard::{Keep, Ref};
use crate::hash::KeyHash;
use crate::options::InsertOptions;
use crate::shard::Shard;
use crate::sync::{Arc, Ordering, lock};

/// Loads of others that one caller waits for, as long as they fail: then it loads beside them. So a
/// source that is there again is asked once, and one that keeps failing does not make its callers
/// queue.
pub(super) const WAITS: u32 = 2;

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

/// Tells what a caller that would load has found.
pub(super) enum Lookup<'a, K, V, P, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
{
    /// A value that is fresh, or that another refreshes.
    Fresh(Ref<'a, V>),
    /// One that this caller is to refresh.
    Due(Ref<'a, V>, LoadingHere<'a, K, V, P, S>),
    Absent,
}

/// The error of a load that waits as long as it takes.
pub(super) fn failed<E>(error: LoadError<E>) -> E {
    match error {
        LoadError::Failed(error) => error,
        LoadError::TimedOut => unreachable!("it waits as long as it takes"),
    }
}

/// Polls the load of a flight, aboard of it.
pub(super) async fn polled<K, V, T>(
    flight: &Arc<Flight<K, V>>,
    load: impl Future<Output = T>,
) -> T {
    let mut load = pin!(load);
    let poll = poll_fn(|context| {
        let _aboard = Aboard::new(flight);
        load.as_mut().poll(context)
    });
    poll.await
}

/// Runs a load that the caller has taken on.
fn run<'a, K, V, P, S, Q, E>(
    loading: LoadingHere<'a, K, V, P, S>,
    key: &Q,
    load: impl FnOnce() -> Result<(V, InsertOptions), E>,
    errors: &Sharing<E>,
) -> Result<Ref<'a, V>, E>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
    Q: ToOwned<Owned = K> + ?Sized,
{
    let aboard = Aboard::new(&loading.flight);
    let loaded = load();
    drop(aboard);
    match loaded {
        Ok((value, options)) => Ok(loading.finish(|| key.to_owned(), value, &options)),
        Err(error) => {
            loading.fail((errors.share)(&error));
            Err(error)
        }
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
        load: impl FnOnce() -> Result<(V, InsertOptions), E>,
        errors: &Sharing<E>,
    ) -> Result<Ref<'a, V>, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.load_until(key, None, load, errors).map_err(failed)
    }

    /// [`load`](Self::load) that waits for others until a time.
    pub(super) fn load_until<Q, E>(
        &self,
        key: &Q,
        until: Option<Instant>,
        load: impl FnOnce() -> Result<(V, InsertOptions), E>,
        errors: &Sharing<E>,
    ) -> Result<Ref<'a, V>, LoadError<E>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        match self.look(key) {
            (_, Lookup::Fresh(value)) => Ok(value),
            (_, Lookup::Due(value, loading)) => {
                Ok(run(loading, key, load, errors).unwrap_or(value)) // the error is counted
            }
            (hash, Lookup::Absent) => self.load_absent(hash, key, until, load, errors),
        }
    }

    /// [`load_until`](Self::load_until) for a key that has been looked up.
    pub(super) fn load_absent<Q, E>(
        &self,
        hash: KeyHash,
        key: &Q,
        until: Option<Instant>,
        load: impl FnOnce() -> Result<(V, InsertOptions), E>,
        errors: &Sharing<E>,
    ) -> Result<Ref<'a, V>, LoadError<E>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let mut waited = 0;
        loop {
            if let Some(value) = self.present(hash, key) {
                return Ok(value);
            }
            match self.turn(hash, key, waited < WAITS) {
                Turn::LookAgain => {}
                Turn::Load(loading) => {
                    return run(loading, key, load, errors).map_err(LoadError::Failed);
                }
                Turn::Wait(flight) => {
                    if until.is_some_and(|until| !flight.is_over_by(until)) {
                        return Err(LoadError::TimedOut);
                    }
                    match self.landed(&flight) {
                        Ok(value) => return Ok(value),
                        Err(failure) => {
                            if let Some(error) = (errors.receive)(failure) {
                                return Err(LoadError::Failed(error));
                            }
                            waited += 1;
                        }
                    }
                }
            }
        }
    }

    /// [`load`](Self::load) for a future.
    pub(super) async fn load_async<Q, E>(
        &self,
        key: &Q,
        load: impl Future<Output = Result<(V, InsertOptions), E>>,
        errors: Sharing<E>,
    ) -> Result<Ref<'a, V>, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        // No guard may be alive across an `await`.
        let (hash, taken) = match self.look(key) {
            (_, Lookup::Fresh(value)) => return Ok(value),
            (hash, Lookup::Due(value, loading)) => {
                drop(value);
                (hash, Some(loading))
            }
            (hash, Lookup::Absent) => (hash, None),
        };
        self.load_async_as(hash, key, taken, load, errors).await
    }

    /// [`load_async`](Self::load_async) for a key that has been looked up, by a load that was taken
    /// on if it is there.
    pub(super) async fn load_async_as<Q, E>(
        &self,
        hash: KeyHash,
        key: &Q,
        taken: Option<LoadingHere<'a, K, V, P, S>>,
        load: impl Future<Output = Result<(V, InsertOptions), E>>,
        errors: Sharing<E>,
    ) -> Result<Ref<'a, V>, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let (mut taken, mut waited) = (taken, 0);
        let loading = loop {
            if let Some(loading) = taken.take() {
                break loading;
            }
            let flight = match self.turn(hash, key, waited < WAITS) {
                Turn::LookAgain => None,
                Turn::Wait(flight) => Some(flight),
                Turn::Load(loading) => break loading,
            };
            if let Some(flight) = flight {
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
            if let Some(value) = self.present(hash, key) {
                return Ok(value);
            }
        };
        match polled(&loading.flight, load).await {
            Ok((value, options)) => Ok(loading.finish(|| key.to_owned(), value, &options)),
            Err(error) => {
                let refreshes = loading.refreshes();
                loading.fail((errors.share)(&error));
                let before = if refreshes { self.present(hash, key) } else { None };
                before.ok_or(error)
            }
        }
    }

    /// Looks a key up, and takes its refresh on if that is due and nobody has.
    pub(super) fn look<Q>(&self, key: &Q) -> (KeyHash, Lookup<'a, K, V, P, S>)
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let inner = &*self.cache.inner;
        let hash = inner.hash(key);
        let Some(found) = inner.look_up(inner.record(), hash, key) else {
            return (hash, Lookup::Absent);
        };
        let value = Ref::new(found.entry, Keep::new(found.cell));
        let expiry = &found.entry.head;
        if expiry.is_set()
            && expiry.is_due(inner.lifetimes.clock())
            && let Some(loading) = self.refresh(hash, key, &value)
        {
            return (hash, Lookup::Due(value, loading));
        }
        (hash, Lookup::Fresh(value))
    }

    /// Takes on the load that refreshes a key with this value, unless another has it or is done.
    #[cold]
    fn refresh<Q>(&self, hash: KeyHash, key: &Q, value: &V) -> Option<LoadingHere<'a, K, V, P, S>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let shard: &Shard<K, V, P> = self.cache.inner.shards.of(hash);
        let owned = key.to_owned(); // the user's code, outside of the lock
        let mut flights = lock(&shard.flights);
        if flights.find(hash.whole(), |found| found.borrow() == key).is_some() {
            return None;
        }
        self.present(hash, key).filter(|there| std::ptr::eq(&raw const **there, value))?;
        Some(self.begin(&mut flights, hash, owned, true))
    }

    /// Takes a load on.
    fn begin(
        &self,
        flights: &mut Flights<K, V>,
        hash: KeyHash,
        key: K,
        refreshes: bool,
    ) -> LoadingHere<'a, K, V, P, S> {
        let flight = Flight::new();
        flights.attach(hash.whole(), key, &flight);
        let inner = &*self.cache.inner;
        // before the load reads anything: see `Inner::owner_past_loads`
        inner.shards.of(hash).begins_loading();
        inner.loads.begun.fetch_add(1, Ordering::Relaxed); // a count
        Loading::new(self.cache, hash, flight, refreshes)
    }

    /// Decides which caller loads an absent key: this one, if no other loads it or it does not
    /// wait.
    ///
    /// # Panics
    /// When it would wait for itself.
    pub(super) fn turn<Q>(&self, hash: KeyHash, key: &Q, waits: bool) -> Turn<'a, K, V, P, S>
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
        Turn::Load(self.begin(&mut flights, hash, owned, false))
    }

    /// A guard for a key without a trace, but that the entry was used.
    pub(super) fn present<Q>(&self, hash: KeyHash, key: &Q) -> Option<Ref<'a, V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let inner = &*self.cache.inner;
        let found = inner.peek(inner.record(), hash, key, true)?;
        Some(Ref::new(found.entry, Keep::new(found.cell)))
    }

    /// Returns what a flight has brought, when it is over.
    pub(super) fn landed(&self, flight: &Flight<K, V>) -> Result<Ref<'a, V>, Failure> {
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
