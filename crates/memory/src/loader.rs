//! Loads of absent keys: a caller looks the key up, waits for the load of another caller, or loads.

use std::borrow::Borrow;
use std::fmt;
use std::future::{Future, poll_fn};
use std::hash::{BuildHasher, Hash};
use std::mem::ManuallyDrop;
use std::pin::pin;
use std::time::Instant;

use equivalent::Equivalent;
use floe_policy::Replacement;

use crate::cache::Cache;
use crate::entry::{Candidate, Entry, Unplaced};
use crate::guard::{Keep, Ref};
use crate::hazard::RESERVED;
use crate::index::KeyHash;
use crate::options::InsertOptions;
use crate::owner::Owner;
use crate::pending::{Failure, LoadRun, PendingLoad, PendingLoads, Wait};
use crate::shard::Shard;
use crate::stats::Cause;
use crate::sync::{Arc, Ordering, lock};
use crate::user_code::FirstPanic;

/// A key that may have to be loaded, owned or borrowed. Not to be implemented by users.
pub trait Asked<K> {
    /// The type by which the key is looked up.
    type Query: Hash + Equivalent<K> + ?Sized;

    /// Returns the key in the form used for lookups. Must not be called after [`take`](Self::take).
    fn query(&self) -> &Self::Query;

    /// Makes the key that the cache keeps, unless it was made already. May run the user's code.
    fn make(&mut self);

    /// Returns the key that [`make`](Self::make) made.
    fn take(&mut self) -> K;
}

/// A borrowed key, from which an owned one is made if it has to be inserted.
#[derive(Debug)]
pub struct Borrowed<'q, K, Q: ?Sized> {
    query: &'q Q,
    made: Option<K>,
}

impl<'q, K, Q: ?Sized> Borrowed<'q, K, Q> {
    pub(super) fn new(query: &'q Q) -> Self {
        Self { query, made: None }
    }
}

impl<K, Q> Asked<K> for Borrowed<'_, K, Q>
where
    Q: Hash + Equivalent<K> + ToOwned<Owned: Into<K>> + ?Sized,
{
    type Query = Q;

    fn query(&self) -> &Q {
        self.query
    }

    fn make(&mut self) {
        if self.made.is_none() {
            self.made = Some(self.query.to_owned().into());
        }
    }

    fn take(&mut self) -> K {
        self.made.take().expect("it was made")
    }
}

/// A key that the caller has given away; `None` once it was taken.
#[derive(Debug)]
pub struct Owned<K>(Option<K>);

impl<K> Owned<K> {
    pub(super) fn new(key: K) -> Self {
        Self(Some(key))
    }
}

impl<K: Hash + Eq> Asked<K> for Owned<K> {
    type Query = K;

    fn query(&self) -> &K {
        self.0.as_ref().expect("not taken yet")
    }

    fn make(&mut self) {}

    fn take(&mut self) -> K {
        self.0.take().expect("it was made")
    }
}

/// The error of [`Loads::get_within`](crate::Loads::get_within).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadError<E> {
    /// The load failed with this error.
    Failed(E),
    /// The load of another caller did not end in time. That load goes on.
    TimedOut,
}

impl<E: fmt::Display> fmt::Display for LoadError<E> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(value) => value.fmt(formatter),
            Self::TimedOut => {
                formatter.write_str("another caller's load of the key has not ended in time")
            }
        }
    }
}

impl<E: std::error::Error> std::error::Error for LoadError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Failed(error) => error.source(),
            Self::TimedOut => None,
        }
    }
}

impl<E> From<E> for LoadError<E> {
    fn from(error: E) -> Self {
        Self::Failed(error)
    }
}

/// The next action of a caller that asks for an absent key.
pub(super) enum Turn<'a, K, V, P, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
{
    /// The key has been inserted in the meantime: look it up again.
    LookAgain,
    /// Another caller loads the key: wait for that load.
    Wait(Arc<PendingLoad<K, V>>),
    /// Load the key.
    Load(LoadingHere<'a, K, V, P, S>),
}

/// A load that borrows the cache, so it ends while its caller still uses the cache.
pub(super) type LoadingHere<'a, K, V, P, S> = Loading<K, V, P, S, &'a Cache<K, V, P, S>>;

/// A load that one caller has taken on. If it is dropped before it is finished, it fails, and
/// another caller may try. `C` is a handle or a reference to the cache.
pub(super) struct Loading<K, V, P, S, C>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
    C: Borrow<Cache<K, V, P, S>>,
{
    cache: C,
    hash: KeyHash,
    pub(super) pending_load: Arc<PendingLoad<K, V>>,
    /// True if the key has a value, which the loaded one is to replace.
    refreshes: bool,
    finished: bool,
    /// Error that waiting callers get if the load does not finish.
    failure: Failure,
    of: std::marker::PhantomData<Cache<K, V, P, S>>,
}

impl<K, V, P, S, C> Loading<K, V, P, S, C>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
    C: Borrow<Cache<K, V, P, S>>,
{
    /// Creates the load of a pending load that is attached to its shard and counted there.
    pub(super) fn new(
        cache: C,
        hash: KeyHash,
        pending_load: Arc<PendingLoad<K, V>>,
        refreshes: bool,
    ) -> Self {
        let of = std::marker::PhantomData;
        Self { cache, hash, pending_load, refreshes, finished: false, failure: None, of }
    }

    /// Returns true if the key has a value, which the loaded one is to replace.
    pub(super) fn refreshes(&self) -> bool {
        self.refreshes
    }

    /// Ends the load with an error, and passes that to the waiting callers.
    pub(super) fn fail(mut self, failure: Failure) {
        self.failure = failure;
    }

    /// Hands the value to the cache and to all waiting callers, without returning a guard.
    pub(super) fn arrive(mut self, value: V, options: &InsertOptions) {
        let (pending_load, finished) = (&self.pending_load, &mut self.finished);
        let cache = self.cache.borrow();
        drop(complete(cache, self.hash, pending_load, self.refreshes, finished, (value, options)));
    }
}

impl<'a, K, V, P, S> LoadingHere<'a, K, V, P, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Hands the value to the cache and to all waiting callers, and returns a guard for it.
    pub(super) fn finish(mut self, value: V, options: &InsertOptions) -> Ref<'a, V> {
        let (pending_load, finished) = (&self.pending_load, &mut self.finished);
        complete(self.cache, self.hash, pending_load, self.refreshes, finished, (value, options))
    }

    /// Returns the key's present value if this load refreshes it; `None` for the load of an absent
    /// key.
    pub(super) fn refreshed(&self) -> Option<Ref<'a, V>> {
        if !self.refreshes {
            return None;
        }
        // SAFETY: this caller is the one that loads.
        let key = unsafe { self.pending_load.key() };
        let inner = &*self.cache.inner;
        let found = inner.peek(inner.record(), self.hash, key, true)?;
        Some(Ref::new(found.entry, Keep::new(found.cell)))
    }

    /// Turns the load into one that owns a handle to the cache, so it may outlive the call and move
    /// to another thread.
    pub(super) fn travel(mut self) -> Loading<K, V, P, S, Cache<K, V, P, S>> {
        self.finished = true; // by the one that is returned
        let pending_load = Arc::clone(&self.pending_load);
        Loading::new(self.cache.clone(), self.hash, pending_load, self.refreshes)
    }
}

/// Inserts a loaded value and passes it to the waiting callers. Sets `finished` once the pending
/// load is over.
fn complete<'a, K, V, P, S>(
    cache: &'a Cache<K, V, P, S>,
    hash: KeyHash,
    pending_load: &Arc<PendingLoad<K, V>>,
    refreshes: bool,
    finished: &mut bool,
    (value, options): (V, &InsertOptions),
) -> Ref<'a, V>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
{
    let inner = &*cache.inner;
    let shard = inner.shards.of(hash);
    // The user's code, outside of the lock. SAFETY: this caller is the one that loads.
    let loaded_key = unsafe { pending_load.key() };
    let weight = inner.weigh(loaded_key, &value);
    let options = options.with_live(inner.live_with.as_ref(), loaded_key, &value);
    let expiry = inner.lifetimes.expiry(&cache.inner, &options);
    let cell = inner.record().cell();
    // comparing keys is the user's code and may need cells, too
    cell.store(RESERVED, Ordering::Relaxed);
    let keep = Keep::new(cell);
    let mut afters = Vec::new();
    let mut value = ManuallyDrop::new(value);
    let mut key;
    {
        let mut pending_loads = lock(&shard.pending_loads);
        let is_attached = pending_loads.complete(hash.whole(), pending_load);
        // SAFETY: as above, and just detached.
        key = ManuallyDrop::new(unsafe { pending_load.take_key() });
        let mut candidate = Candidate::new(Unplaced::new(hash, &mut key, &mut value));
        (candidate.weight, candidate.pinned) = (weight, options.pinned);
        candidate.priority = options.told_priority(inner.tells_low);
        if let Some((expiry, due)) = expiry {
            (candidate.expiry, candidate.due) = (expiry, due);
        }
        candidate.guard = Some(cell);
        // While the pending load is attached nothing replaces what a refresh has found.
        (candidate.yields, candidate.refreshes) = (!refreshes, refreshes);
        // Until the entry is in, no caller may find that the pending load has gone. The lock is
        // released before the candidate is dropped, even by a panic.
        let pending_loads = pending_loads;
        if is_attached {
            inner.put(shard, &mut candidate, |after| afters.push(after));
        } else {
            let pass = |owner: &mut Owner<K, V, P>, gone: &mut _| {
                owner.pass_through(shard, &mut candidate, Cause::Rejected, gone)
            };
            let ((), after) = inner.change(shard, shard.owner(), pass);
            afters.push(after);
        }
        drop(pending_loads);
    }
    let entry = std::ptr::with_exposed_provenance::<Entry<K, V>>(cell.load(Ordering::Relaxed));
    // SAFETY: the cell was filled with the address of the entry before that could be taken out, and
    // keeps it.
    let entry = unsafe { &*entry };
    if Arc::strong_count(pending_load) > 1 {
        // Waiting callers still have their pending load; no caller can join any more.
        pending_load.complete(entry, inner.threads.records.hold(&raw const *entry as usize));
    }
    *finished = true;
    shard.ends_loading(pending_load.is_counted());
    inner.note_insertion(hash);
    let mut panic = FirstPanic::none(); // the others are told of all the same
    for after in afters {
        panic.catch(|| inner.finish(after));
    }
    panic.raise();
    Ref::new(entry, keep)
}

impl<K, V, P, S, C> Drop for Loading<K, V, P, S, C>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
    C: Borrow<Cache<K, V, P, S>>,
{
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        let inner = &*self.cache.borrow().inner;
        let shard = inner.shards.of(self.hash);
        lock(&shard.pending_loads).complete(self.hash.whole(), &self.pending_load);
        shard.ends_loading(self.pending_load.is_counted());
        inner.loads.failed.fetch_add(1, Ordering::Relaxed); // a count
        self.pending_load.fail(self.failure.take());
    }
}

/// Failed loads of others that a caller waits for before it loads beside them. So a recovered
/// source is asked once, and callers do not queue for a source that keeps failing.
pub(super) const WAITS: u32 = 2;

/// Conversion of a load's error into the error that waiting callers get, and back.
pub(super) struct Sharing<E> {
    share: fn(&E) -> Failure,
    receive: fn(Failure) -> Option<E>,
}

impl<E> Sharing<E> {
    /// Creates a rule by which only the loading caller gets the error.
    pub(super) fn none() -> Self {
        Self { share: |_| None, receive: |_| None }
    }
}

impl<E: Send + Sync + 'static> Sharing<Arc<E>> {
    /// Creates a rule by which all waiting callers that expect this error type get the error.
    pub(super) fn all() -> Self {
        let share: fn(&Arc<E>) -> Failure = |error| Some(Arc::clone(error) as _);
        Self { share, receive: |failure| failure?.downcast().ok() }
    }
}

/// The result of the lookup that precedes a load.
pub(super) enum Lookup<'a, K, V, P, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
{
    /// A value that is fresh, or that another caller refreshes.
    Fresh(Ref<'a, V>),
    /// A value that this caller is to refresh.
    Due(Ref<'a, V>, LoadingHere<'a, K, V, P, S>),
    Absent,
}

/// Returns the error of a load without a time limit, which cannot time out.
pub(super) fn failed<E>(error: LoadError<E>) -> E {
    match error {
        LoadError::Failed(error) => error,
        LoadError::TimedOut => unreachable!("it waits as long as it takes"),
    }
}

/// Polls a load as part of `run`, so that loads asked for inside it belong to that run.
pub(super) async fn polled<T>(run: &LoadRun, load: impl Future<Output = T>) -> T {
    let mut load = pin!(load);
    let poll = poll_fn(|context| {
        let _inside = run.poll();
        load.as_mut().poll(context)
    });
    poll.await
}

/// Runs a load that the caller has taken on.
fn run<'a, K, V, P, S, E>(
    loading: LoadingHere<'a, K, V, P, S>,
    load: impl FnOnce() -> Result<(V, InsertOptions), E>,
    errors: &Sharing<E>,
) -> Result<Ref<'a, V>, E>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
{
    let inside = loading.pending_load.run().enter();
    let loaded = load();
    drop(inside);
    match loaded {
        Ok((value, options)) => Ok(loading.finish(value, &options)),
        Err(error) => {
            loading.fail((errors.share)(&error));
            Err(error)
        }
    }
}

/// Access to a cache for callers that load absent keys.
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

    /// Returns the key's value; if it is absent, loads it or waits for the load of another caller.
    pub(super) fn load<E>(
        &self,
        key: impl Asked<K>,
        load: impl FnOnce() -> Result<(V, InsertOptions), E>,
        errors: &Sharing<E>,
    ) -> Result<Ref<'a, V>, E> {
        self.load_until(key, None, load, errors).map_err(failed)
    }

    /// Loads a key like [`load`](Self::load), but waits for other callers only until a given time.
    pub(super) fn load_until<E>(
        &self,
        mut key: impl Asked<K>,
        until: Option<Instant>,
        load: impl FnOnce() -> Result<(V, InsertOptions), E>,
        errors: &Sharing<E>,
    ) -> Result<Ref<'a, V>, LoadError<E>> {
        match self.look(&mut key) {
            (_, Lookup::Fresh(value)) => Ok(value),
            (_, Lookup::Due(value, loading)) => {
                Ok(run(loading, load, errors).unwrap_or(value)) // the error is counted
            }
            (hash, Lookup::Absent) => self.load_absent(hash, key, until, load, errors),
        }
    }

    /// Works as [`load_until`](Self::load_until), for a key that was looked up and found absent.
    pub(super) fn load_absent<E>(
        &self,
        hash: KeyHash,
        mut key: impl Asked<K>,
        until: Option<Instant>,
        load: impl FnOnce() -> Result<(V, InsertOptions), E>,
        errors: &Sharing<E>,
    ) -> Result<Ref<'a, V>, LoadError<E>> {
        let mut waits = WAITS;
        loop {
            if let Some(value) = self.present(hash, key.query()) {
                return Ok(value);
            }
            match self.turn(hash, &mut key, waits > 0) {
                Turn::LookAgain => {}
                Turn::Load(loading) => {
                    return run(loading, load, errors).map_err(LoadError::Failed);
                }
                Turn::Wait(pending_load) => {
                    let Some(_wait) = Wait::block(pending_load.run()) else {
                        waits = 0; // it would have no end
                        continue;
                    };
                    if until.is_some_and(|until| !pending_load.is_over_by(until)) {
                        return Err(LoadError::TimedOut);
                    }
                    match self.completed(&pending_load) {
                        Ok(value) => return Ok(value),
                        Err(failure) => {
                            if let Some(error) = (errors.receive)(failure) {
                                return Err(LoadError::Failed(error));
                            }
                            waits -= 1;
                        }
                    }
                }
            }
        }
    }

    /// Works as [`load`](Self::load), with a load that is a future.
    pub(super) async fn load_async<E>(
        &self,
        mut key: impl Asked<K>,
        load: impl Future<Output = Result<(V, InsertOptions), E>>,
        errors: Sharing<E>,
    ) -> Result<Ref<'a, V>, E> {
        // No guard may be alive across an `await`.
        let (hash, taken) = match self.look(&mut key) {
            (_, Lookup::Fresh(value)) => return Ok(value),
            (hash, Lookup::Due(value, loading)) => {
                drop(value);
                (hash, Some(loading))
            }
            (hash, Lookup::Absent) => (hash, None),
        };
        self.load_async_as(hash, key, taken, load, errors).await
    }

    /// Works as [`load_async`](Self::load_async), for a key that was looked up already. The caller
    /// may pass a load that it has taken on.
    pub(super) async fn load_async_as<E>(
        &self,
        hash: KeyHash,
        mut key: impl Asked<K>,
        taken: Option<LoadingHere<'a, K, V, P, S>>,
        load: impl Future<Output = Result<(V, InsertOptions), E>>,
        errors: Sharing<E>,
    ) -> Result<Ref<'a, V>, E> {
        let (mut taken, mut waits) = (taken, WAITS);
        let loading = loop {
            if let Some(loading) = taken.take() {
                break loading;
            }
            let pending_load = match self.turn(hash, &mut key, waits > 0) {
                Turn::LookAgain => None,
                Turn::Wait(pending_load) => Some(pending_load),
                Turn::Load(loading) => break loading,
            };
            if let Some(pending_load) = pending_load {
                if !pending_load.completion().await {
                    waits = 0; // the wait would have no end
                    continue;
                }
                match self.completed(&pending_load) {
                    Ok(value) => return Ok(value),
                    Err(failure) => {
                        if let Some(error) = (errors.receive)(failure) {
                            return Err(error);
                        }
                        waits -= 1;
                    }
                }
            }
            if let Some(value) = self.present(hash, key.query()) {
                return Ok(value);
            }
        };
        match polled(loading.pending_load.run(), load).await {
            Ok((value, options)) => Ok(loading.finish(value, &options)),
            Err(error) => {
                let before = loading.refreshed();
                loading.fail((errors.share)(&error));
                before.ok_or(error)
            }
        }
    }

    /// Looks a key up, and takes its refresh on if one is due and no other caller has taken it.
    pub(super) fn look(&self, key: &mut impl Asked<K>) -> (KeyHash, Lookup<'a, K, V, P, S>) {
        self.look_in(None, key)
    }

    /// Works as [`look`](Self::look), for a run that loads other keys as well.
    pub(super) fn look_in(
        &self,
        run: Option<&LoadRun>,
        key: &mut impl Asked<K>,
    ) -> (KeyHash, Lookup<'a, K, V, P, S>) {
        let inner = &*self.cache.inner;
        let hash = inner.hash(key.query());
        let Some(found) = inner.look_up(inner.record(), hash, key.query()) else {
            return (hash, Lookup::Absent);
        };
        let value = Ref::new(found.entry, Keep::new(found.cell));
        let head = &found.entry.head;
        if head.is_set()
            && let now = inner.lifetimes.clock().now()
            && inner.shards.renewal(hash, found.entry.slot()).is_due(head.left(now))
            && let Some(loading) = self.refresh(run, hash, key, &value)
        {
            return (hash, Lookup::Due(value, loading));
        }
        (hash, Lookup::Fresh(value))
    }

    /// Takes on the refresh of a key with this value, unless another caller loads the key or has
    /// refreshed it.
    #[cold]
    fn refresh(
        &self,
        run: Option<&LoadRun>,
        hash: KeyHash,
        key: &mut impl Asked<K>,
        value: &V,
    ) -> Option<LoadingHere<'a, K, V, P, S>> {
        let shard: &Shard<K, V, P> = self.cache.inner.shards.of(hash);
        key.make(); // the user's code, outside of the lock
        let run = run.map_or_else(LoadRun::new, LoadRun::clone);
        let mut pending_loads = lock(&shard.pending_loads);
        if pending_loads.find(hash.whole(), |found| key.query().equivalent(found)).is_some() {
            return None;
        }
        self.present(hash, key.query()).filter(|there| std::ptr::eq(&raw const **there, value))?;
        Some(self.begin(&mut pending_loads, hash, key.take(), run, true))
    }

    /// Registers a pending load of a key, to be carried out by `run`.
    fn begin(
        &self,
        pending_loads: &mut PendingLoads<K, V>,
        hash: KeyHash,
        key: K,
        run: LoadRun,
        refreshes: bool,
    ) -> LoadingHere<'a, K, V, P, S> {
        let pending_load = PendingLoad::new(key, run);
        pending_loads.attach(hash.whole(), &pending_load);
        let inner = &*self.cache.inner;
        // before the load reads anything: see `Inner::owner_past_loads`
        inner.shards.of(hash).begins_loading();
        inner.loads.begun.fetch_add(1, Ordering::Relaxed); // a count
        Loading::new(self.cache, hash, pending_load, refreshes)
    }

    /// Decides the next action for an absent key. The caller loads if no other caller does, or if
    /// it must not wait.
    ///
    /// # Panics
    /// When the caller would wait for itself.
    pub(super) fn turn(
        &self,
        hash: KeyHash,
        key: &mut impl Asked<K>,
        waits: bool,
    ) -> Turn<'a, K, V, P, S> {
        self.turn_in(&LoadRun::new(), hash, key, waits)
    }

    /// Works as [`turn`](Self::turn), for a run that loads other keys as well.
    pub(super) fn turn_in(
        &self,
        run: &LoadRun,
        hash: KeyHash,
        key: &mut impl Asked<K>,
        waits: bool,
    ) -> Turn<'a, K, V, P, S> {
        let inner = &*self.cache.inner;
        let shard: &Shard<K, V, P> = inner.shards.of(hash);
        key.make(); // the user's code, outside of the lock
        let mut pending_loads = lock(&shard.pending_loads);
        let found = pending_loads.find(hash.whole(), |found| key.query().equivalent(found));
        // The same key twice in a batch waits for the batch's own load, which is yet to run.
        if let Some(pending_load) =
            found.filter(|pending_load| waits || pending_load.is_own() || pending_load.run() == run)
        {
            drop(pending_loads);
            assert!(!pending_load.is_own(), "a load asks for the key that it loads");
            return Turn::Wait(pending_load);
        }
        if self.present(hash, key.query()).is_some() {
            return Turn::LookAgain;
        }
        Turn::Load(self.begin(&mut pending_loads, hash, key.take(), run.clone(), false))
    }

    /// Returns a guard for a present key. Records the use of the entry for its time to idle, but no
    /// hit.
    pub(super) fn present<Q>(&self, hash: KeyHash, key: &Q) -> Option<Ref<'a, V>>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let inner = &*self.cache.inner;
        let found = inner.peek(inner.record(), hash, key, true)?;
        Some(Ref::new(found.entry, Keep::new(found.cell)))
    }

    /// Returns the result of a pending load once it is over.
    pub(super) fn completed(
        &self,
        pending_load: &PendingLoad<K, V>,
    ) -> Result<Ref<'a, V>, Failure> {
        let entry = pending_load.wait()?;
        // The pending load's hold keeps the entry while the cell is filled.
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

/// Returns a loaded value with default options.
pub(crate) fn plain<V>(value: V) -> (V, InsertOptions) {
    (value, InsertOptions::new())
}
