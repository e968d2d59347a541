//! Operations of a cache that run code of the caller: changes that depend on the present value, and
//! loads of absent keys.
//!
//! The caller's code runs outside of locks and may use the cache. A change that depends on a value
//! is applied under the lock of the shard if the key still has that value; otherwise the caller's
//! code decides again. A guard keeps the old value's memory, so no other value can have its
//! address.

use std::borrow::Borrow;
use std::cmp::Reverse;
use std::convert::Infallible;
use std::future::Future;
use std::hash::{BuildHasher, Hash};
use std::mem::ManuallyDrop;

use equivalent::Equivalent;
use floe_policy::Replacement;

use crate::cache::Cache;
use crate::change;
use crate::entry::Entry;
use crate::guard::{Item, Keep, Ref};
use crate::hazard::{Cell, RESERVED};
use crate::index::KeyHash;
use crate::loader::{Borrowed, Loader, Lookup, Owned, Sharing, Turn, WAITS, plain};
use crate::loads::{KeyEntry, Loads};
use crate::options::InsertOptions;
use crate::owner::hottest as hottest_of;
use crate::pending::{LoadRun, Wait};
use crate::stats::Cause;
use crate::sync::{Arc, Ordering};
use crate::user_code::FirstPanic;

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
    /// The guard has the loaded value even where the cache does not take it. The loaded value does
    /// not enter the cache if the key is removed or inserted, or the cache cleared, during the
    /// load: the value may be out of date then.
    ///
    /// Loads may ask for other keys, and for each other's. Where a wait would close a cycle of
    /// loads that wait for each other, the caller loads by itself and does not wait. This covers
    /// threads and futures, in any number of caches. A thread that has polled a load's future does
    /// not block on that load either. One deadlock is not detected: a load that has another thread
    /// or task ask for its own key, and waits for that.
    ///
    /// # Errors
    /// The error of `load`, for the caller that ran it.
    ///
    /// # Panics
    /// When `load` asks for its own key, which would never end, and when `load` panics.
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

    /// Loads as [`get_or_insert_with`](Self::get_or_insert_with) does, but callers that wait for a
    /// failing load get its error, too. A source that does not answer is asked once for all of
    /// them. Later callers ask again: errors are not kept.
    ///
    /// A waiting caller whose error type differs from the loading caller's loads by itself. So do
    /// callers that wait for a load that panics.
    ///
    /// # Errors
    /// The error of the caller's own `load`, or of the load for which the caller waited.
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

    /// Looks a key up and makes its value if it is absent, by a function that cannot fail. It
    /// otherwise works as [`get_or_insert_with`](Self::get_or_insert_with).
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
    /// time: other callers await that load. It needs no particular runtime. When the loading
    /// caller's future is dropped, the next waiting caller loads.
    ///
    /// The guard belongs to the thread that polled last; to hold a value across an `await`, clone
    /// it or [`hold`](Self::hold) it.
    ///
    /// # Errors
    /// The error of `load`, for the caller that ran it.
    ///
    /// # Panics
    /// When `load` asks for its own key while it is polled, which would never end.
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

    /// Loads as [`get_or_insert_async`](Self::get_or_insert_async) does, but callers that wait for
    /// a failing load get its error, too; see [`try_get_with`](Self::try_get_with).
    ///
    /// # Errors
    /// The error of the caller's own `load`, or of the load for which the caller waited.
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

    /// Loads as [`get_or_insert_async`](Self::get_or_insert_async) does, and returns a clone of the
    /// value instead of a guard. The clone may be kept across an `await`. Large values are best in
    /// an `Arc`.
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

    /// Takes a key, to return its value or to make one if it is absent. This is for keys that
    /// cannot be cloned, and for callers that own one anyway. Methods such as
    /// [`get_with`](Self::get_with) make a key from a borrowed one, and only where the value is
    /// absent.
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

    /// Returns [`Loads`]: loads with options, such as the lifetime of the value, a limit on the
    /// wait for another caller's load, or the place where a refresh runs.
    pub fn loads(&self) -> Loads<'_, K, V, P, S> {
        Loads::of(self)
    }

    /// Looks many keys up, loads all absent ones by one call of `load`, and returns a guard for
    /// each key, in the order of `keys`.
    ///
    /// `load` gets the absent keys. It returns their values in the same order, with `None` for a
    /// key that the source does not have; a shorter list means `None` for the rest. For keys that
    /// another caller loads already, the call waits after its own load. `load` is called again only
    /// where the load of another caller fails.
    ///
    /// # Errors
    /// The error of `load`, unless all its keys have values already and were only to be
    /// [refreshed](crate::Builder::refresh_ahead).
    ///
    /// # Panics
    /// When `load` asks for one of its own keys, and when it panics.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::new(10);
    /// cache.insert(2, "two".to_string());
    /// let query = |keys: &[&u64]| {
    ///     assert_eq!(keys, [&1, &3, &400]); // SELECT … WHERE key IN (1, 3, 400)
    ///     Ok::<_, std::io::Error>(vec![Some("one".to_string()), Some("three".to_string()), None])
    /// };
    /// let rows = cache.get_or_load_many(&[1, 2, 3, 400], query)?;
    /// assert_eq!(rows[0].as_deref().unwrap(), "one");
    /// assert_eq!(rows[1].as_deref().unwrap(), "two");
    /// assert!(rows[3].is_none());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn get_or_load_many<Q, E>(
        &self,
        keys: &[Q],
        mut load: impl FnMut(&[&Q]) -> Result<Vec<Option<V>>, E>,
    ) -> Result<Vec<Option<Ref<'_, V>>>, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K>,
    {
        let loader = Loader::of(self);
        let mut found = Vec::with_capacity(keys.len());
        let (mut absent, mut own) = (Vec::new(), Vec::new());
        let mut run = LoadRun::new(); // one for all keys of a call of `load`
        for (at, key) in keys.iter().enumerate() {
            let (hash, value) = loader.look_in(Some(&run), &mut Borrowed::new(key));
            found.push(match value {
                Lookup::Fresh(value) => Some(value),
                Lookup::Due(value, loading) => {
                    own.push((at, loading));
                    Some(value)
                }
                Lookup::Absent => {
                    absent.push((at, hash));
                    None
                }
            });
        }
        let mut waits = WAITS;
        loop {
            let mut others = Vec::new();
            for (at, hash) in absent.drain(..) {
                let mut key = Borrowed::new(&keys[at]);
                while found[at].is_none() {
                    match loader.turn_in(&run, hash, &mut key, waits > 0) {
                        Turn::LookAgain => found[at] = loader.present(hash, &keys[at]),
                        Turn::Load(loading) => {
                            own.push((at, loading));
                            break;
                        }
                        Turn::Wait(pending_load) => {
                            others.push((at, hash, pending_load));
                            break;
                        }
                    }
                }
            }
            if !own.is_empty() {
                let asked: Vec<_> = own.iter().map(|(at, _)| &keys[*at]).collect();
                let inside = run.enter();
                let loaded = load(&asked);
                drop(inside);
                let loaded = match loaded {
                    Err(error) if own.iter().any(|(_, own)| !own.refreshes()) => return Err(error),
                    loaded => loaded.unwrap_or_default(),
                };
                let mut loaded = loaded.into_iter();
                for (at, loading) in own.drain(..) {
                    // Those without a value fail, by being dropped.
                    if let Some(value) = loaded.next().flatten() {
                        found[at] = Some(loading.finish(value, &InsertOptions::new()));
                    }
                }
            }
            waits -= u32::from(waits > 0);
            for (at, hash, pending_load) in others {
                let Some(_wait) = Wait::block(pending_load.run()) else {
                    (waits, _) = (0, absent.push((at, hash))); // it would have no end
                    continue;
                };
                match loader.completed(&pending_load) {
                    Ok(value) => found[at] = Some(value),
                    // The same key twice: the source does not have it.
                    Err(_) if *pending_load.run() == run => {}
                    Err(_) => absent.push((at, hash)),
                }
            }
            if absent.is_empty() {
                return Ok(found);
            }
            run = LoadRun::new();
        }
    }

    /// Inserts a value as [`insert`](Self::insert) does, and returns a guard for the value that it
    /// replaced; `None` if the key was absent.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::new(10);
    /// assert!(cache.swap(1, "one").is_none());
    /// assert_eq!(*cache.swap(1, "uno").unwrap(), "one");
    /// ```
    pub fn swap(&self, key: K, value: V) -> Option<Ref<'_, V>> {
        let record = self.inner.record();
        let mut before = None;
        let swap = |there: Option<&Entry<K, V>>| {
            before = there.map(|entry| {
                let (entry, cell) = (&raw const *entry, record.cell());
                // before it is taken out: see `hazard`
                cell.store(entry as usize, Ordering::Release);
                // SAFETY: it is in, and from now on kept by the cell, until the guard that takes
                // the cell over is dropped.
                Ref::new(unsafe { &*entry }, Keep::new(cell))
            });
            true
        };
        let hash = self.inner.hash(&key);
        let placed = place(self, (key, value), hash, &InsertOptions::new(), None, swap);
        debug_assert!(placed.is_ok(), "it agrees to any value");
        before
    }

    /// Inserts the value that a closure makes of the present one, and returns a guard for the new
    /// one. The closure gets `None` if the key is absent.
    ///
    /// The closure runs outside of locks, and again if another thread changes the key meanwhile: no
    /// change is lost. The guard has the new value even where the cache does not take it. The entry
    /// expires like an [inserted](Self::insert) one, and is not pinned.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::new(10);
    /// for word in ["ice", "floe", "ice"] {
    ///     cache.upsert_with(word, |count| count.map_or(1, |count| count + 1));
    /// }
    /// assert_eq!(cache.get_cloned("ice"), Some(2));
    /// ```
    pub fn upsert_with(&self, mut key: K, mut make: impl FnMut(Option<&V>) -> V) -> Ref<'_, V> {
        let inner = &*self.inner;
        let hash = inner.hash(&key);
        loop {
            let before = self.peek(&key);
            let value = make(before.as_deref());
            let is_before = |there: Option<&Entry<K, V>>| {
                there.map(|entry| &raw const entry.value)
                    == before.as_deref().map(std::ptr::from_ref)
            };
            let cell = inner.record().another_cell();
            // comparing keys is the user's code and may need cells, too
            cell.store(RESERVED, Ordering::Relaxed);
            let keep = Keep::new(cell);
            let options = InsertOptions::new();
            match place(self, (key, value), hash, &options, Some(cell), is_before) {
                Ok(()) => {
                    let address = cell.load(Ordering::Relaxed);
                    let entry = std::ptr::with_exposed_provenance::<Entry<K, V>>(address);
                    // SAFETY: the cell was filled with the address of the entry before that could
                    // be taken out, and keeps it.
                    return Ref::new(unsafe { &*entry }, keep);
                }
                Err((same, _)) => key = same,
            }
        }
    }

    /// Replaces a key's value if a closure returns true for the present one, and returns a guard
    /// for the old one. The closure runs outside of locks, and again if another thread changes the
    /// key meanwhile.
    ///
    /// # Errors
    /// Returns the new value if the key is absent or the closure returns false.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::new(10);
    /// assert_eq!(cache.replace_if("version", 1, |_| true).unwrap_err(), 1); // nothing there
    /// cache.insert("version", 7);
    /// assert_eq!(cache.replace_if("version", 6, |&old| old < 6).unwrap_err(), 6);
    /// assert_eq!(*cache.replace_if("version", 8, |&old| old < 8).unwrap(), 7);
    /// assert_eq!(cache.get_cloned("version"), Some(8));
    /// ```
    pub fn replace_if(
        &self,
        mut key: K,
        mut value: V,
        mut replaces: impl FnMut(&V) -> bool,
    ) -> Result<Ref<'_, V>, V> {
        let hash = self.inner.hash(&key);
        loop {
            let Some(before) = self.peek(&key).filter(|before| replaces(before)) else {
                return Err(value);
            };
            let is_before = |there: Option<&Entry<K, V>>| {
                there.is_some_and(|entry| std::ptr::eq(&raw const entry.value, &raw const *before))
            };
            let options = InsertOptions::new();
            match place(self, (key, value), hash, &options, None, is_before) {
                Ok(()) => return Ok(before),
                Err(same) => (key, value) = same,
            }
        }
    }

    /// Removes a key if a closure returns true for its value, and returns a guard for the value;
    /// `None` if nothing was removed. The closure runs outside of locks, and again if another
    /// thread changes the key meanwhile.
    ///
    /// A load of the key that is under way will not enter the cache, whatever the closure returns:
    /// the closure has not seen the loaded value.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::new(10);
    /// cache.insert("page", 3);
    /// assert!(cache.remove_if("page", |&version| version < 3).is_none());
    /// assert_eq!(*cache.remove_if("page", |&version| version < 4).unwrap(), 3);
    /// assert!(cache.is_empty());
    /// ```
    pub fn remove_if<Q>(&self, key: &Q, mut removes: impl FnMut(&V) -> bool) -> Option<Ref<'_, V>>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let inner = &*self.inner;
        let hash = inner.hash(key);
        drop(inner.owner_past_loads(inner.shards.of(hash), hash, key));
        loop {
            let value = self.peek(key).filter(|value| removes(value))?;
            if take_out(self, key, &value) {
                return Some(value);
            }
        }
    }

    /// Keeps the entries for which a closure returns true, and removes all others.
    ///
    /// The closure sees each entry that was in the cache before the call and still is. It may miss
    /// entries that other threads insert meanwhile; these stay. It runs outside of locks. Removing
    /// an entry takes two locks, keeping one takes one.
    ///
    /// Loads that are under way when the call begins will not enter the cache: the closure has not
    /// seen their values.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::new(10);
    /// (0..10).for_each(|key| cache.insert(key, key * key));
    /// cache.retain(|key, square| key % 2 == 0 && *square < 50);
    /// assert_eq!(cache.len(), 4);
    /// ```
    pub fn retain(&self, mut keeps: impl FnMut(&K, &V) -> bool) {
        self.inner.outdate_loads();
        let mut panic = FirstPanic::none(); // of a destructor or a listener
        for item in self {
            if !keeps(item.key(), item.value()) {
                panic.catch(|| take_out(self, item.key(), item.value()));
            }
        }
        panic.raise();
    }

    /// Returns up to `count` of the hottest entries, the hottest first, to find out which keys a
    /// load concentrates on.
    ///
    /// Hot is an entry that the policy holds most worth keeping: under the default policy one that
    /// was hit several times since the policy last looked at it, under LRU the one used last.
    /// Frozen entries come first. Pinned entries are not ranked and are left out. Each shard ranks
    /// its own entries. Those of different shards are ordered by the hits that the policy
    /// remembers, up to 7 by default, and then by their rank in their shard. Where some shards have
    /// far more of the hottest than others, some of theirs may be missing.
    ///
    /// The call locks one shard after the other. Under a lock it walks through the shard's order,
    /// several times at most. It counts no hits and defers no expiry.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::new(100);
    /// (0..100).for_each(|key| cache.insert(key, key));
    /// (0..10).for_each(|_| assert!(cache.get(&42).is_some()));
    /// assert_eq!(*cache.hottest(1)[0].key(), 42);
    /// ```
    pub fn hottest(&self, count: usize) -> Vec<Item<'_, K, V>> {
        let (inner, shards) = (&*self.inner, self.inner.shards.len());
        let share = count / shards;
        // Hot keys fall unevenly on shards: four standard deviations more than a share.
        let quota = if shards == 1 { count } else { share + 4 * share.isqrt() + 8 }.min(count);
        let mut hottest = Vec::new();
        for shard in inner.shards.iter() {
            let owner = shard.owner();
            for (rank, (slot, hits)) in hottest_of(&owner, quota).into_iter().enumerate() {
                let Some(entry) = owner.entry(shard.table(), slot) else { continue };
                // SAFETY: it is in, and is taken out under the lock only.
                if unsafe { &*entry }.head.is_over(inner.lifetimes.clock()) {
                    continue;
                }
                let keep = Keep::new(inner.record().another_cell());
                keep.name(entry as usize); // before it can be taken out: see `hazard`
                // SAFETY: kept by the cell from now on, until the guard that takes the cell over
                // is dropped.
                let item = Item::new(unsafe { &*entry }, keep);
                hottest.push((Reverse(hits), rank, item));
            }
        }
        hottest.sort_by_key(|&(hits, rank, _)| (hits, rank));
        hottest.truncate(count);
        hottest.into_iter().map(|(.., item)| item).collect()
    }
}

/// Inserts an entry if `decide` accepts the entry that the key has. `guard` is filled like that of
/// a [candidate](crate::entry::Candidate).
///
/// # Errors
/// Returns key and value if `decide` refuses.
pub(crate) fn place<K, V, P, S>(
    cache: &Cache<K, V, P, S>,
    (key, value): (K, V),
    hash: KeyHash,
    options: &InsertOptions,
    guard: Option<&Cell>,
    decide: impl FnOnce(Option<&Entry<K, V>>) -> bool,
) -> Result<(), (K, V)>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
{
    let inner = &*cache.inner;
    let shard = inner.shards.of(hash);
    let (mut key, mut value) = (ManuallyDrop::new(key), ManuallyDrop::new(value));
    let mut candidate = change::candidate(&cache.inner, hash, &mut key, &mut value, options);
    candidate.guard = guard;
    let mut panic = FirstPanic::none(); // the entry comes in all the same
    let then = |after| _ = panic.catch(|| inner.finish(after));
    if !inner.put_if(shard, &mut candidate, decide, then) {
        candidate.hand_back();
        panic.raise();
        return Err((ManuallyDrop::into_inner(key), ManuallyDrop::into_inner(value)));
    }
    drop(candidate);
    inner.note_insertion(hash);
    panic.raise();
    Ok(())
}

/// Removes a key's entry if it still has this value and has not expired. A guard of the caller's
/// must keep the value.
pub(crate) fn take_out<K, V, P, S, Q>(cache: &Cache<K, V, P, S>, key: &Q, value: &V) -> bool
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
    Q: Hash + Equivalent<K> + ?Sized,
{
    let inner = &*cache.inner;
    let hash = inner.hash(key);
    let shard = inner.shards.of(hash);
    let owner = inner.owner_past_loads(shard, hash, key);
    inner.with_owner(shard, owner, |owner, gone| {
        let found = owner.find(shard.table(), hash.in_shard(), key);
        let same = found.filter(|entry| std::ptr::eq(&raw const entry.value, value));
        let Some(slot) = same.map(Entry::slot) else { return false };
        let expired = same.is_some_and(|entry| entry.head.is_over(inner.lifetimes.clock()));
        let cause = if expired { Cause::Expired } else { Cause::Removed };
        let room = owner.take_out(shard.table(), slot, cause, gone);
        owner.room.release(&inner.budget, room);
        !expired
    })
}
