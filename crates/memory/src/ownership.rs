//! Guards that become more than guards: holds, which outlive the cache, and the values themselves.
//!
//! # Moving a value out
//!
//! A value can be moved out of its entry when nobody else can reach the entry: neither readers, nor
//! the index, nor a thread that is to free it.
//!
//! - The entry waits in [limbo](crate::limbo). So it has left the index, and the listener, if there
//!   is one, has been called for it. It is taken out of limbo, so no reclaimer frees it.
//! - After that, no thread but the caller names it in a cell or a hold. The check is that of
//!   reclaimers: a round, or the [barrier](crate::barrier), and then all cells and the holds. What
//!   others read of the value comes before, because they clear their cells with Release.
//!
//! An entry that has left the index is named anew only by a thread that names it already, so one
//! check is enough. If it fails, the entry goes back to limbo.

use std::hash::{BuildHasher, Hash};
use std::ptr::NonNull;

use equivalent::Equivalent;
use floe_policy::Replacement;

use crate::cache::Cache;
use crate::entry::Entry;
use crate::guard::{Held, Keep, Ref};
use crate::inner::Inner;
use crate::maintenance;
use crate::retired::{Retired, Waiting};
use crate::shard::Shard;
use crate::user_code::FirstPanic;

impl<K, V, P, S> Cache<K, V, P, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Looks a key up and returns a guard that may travel between threads and outlive the cache.
    /// Takes a lock, unlike [`get`](Self::get). [`Ref::hold`] turns an ordinary guard into such a
    /// one.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::new(10);
    /// cache.insert(1, "one".to_string());
    /// let value = cache.hold(&1).unwrap();
    /// assert_eq!(std::thread::spawn(move || value.len()).join().unwrap(), 3);
    /// ```
    pub fn hold<Q>(&self, key: &Q) -> Option<Held<V>>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let inner = &*self.inner;
        let found = inner.look_up(inner.record(), inner.hash(key), key)?;
        let value = (&found.entry.value).into();
        Some(hold_kept(inner, value, &Keep::new(found.cell)))
    }
}

impl<V> Ref<'_, V> {
    /// Turns the guard into one that may travel between threads and outlive the cache. It needs no
    /// lookup, so it also works for a value that has left the cache. Takes a lock.
    ///
    /// # Panics
    /// When the guard is not of this cache.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::new(10);
    /// cache.insert(1, "one".to_string());
    /// let value = cache.get(&1).unwrap();
    /// cache.remove(&1);
    /// let held = value.hold(&cache);
    /// assert_eq!(std::thread::spawn(move || held.len()).join().unwrap(), 3);
    /// ```
    pub fn hold<K, P, S>(self, cache: &Cache<K, V, P, S>) -> Held<V>
    where
        K: Send + Sync + 'static,
        V: Send + Sync + 'static,
        P: Replacement,
    {
        let inner = &*cache.inner;
        let (value, keep) = self.into_parts();
        check_cache(inner, &keep);
        hold_kept(inner, value, &keep)
    }

    /// Moves the value out, without a clone, if its entry has left the cache and no other guard for
    /// it exists: as `Arc::try_unwrap`. The entry may have been removed, replaced, evicted or
    /// rejected. Its key is dropped.
    ///
    /// It takes some locks and a barrier for all threads, and time in proportion to the guards that
    /// exist and to the removed entries of the shard that wait to be dropped. It does not wait for
    /// other guards.
    ///
    /// # Errors
    /// Returns the guard
    /// - if its entry is in the cache,
    /// - if another guard for the entry exists, also one of a lookup that is under way,
    /// - before the [listener](crate::Builder::listener) has returned from its call for the entry,
    /// - while a thread drops removed entries and has yet to examine this one. The next call can
    ///   succeed once the listeners and destructors that the thread runs have returned. So do not
    ///   try again and again inside of one of them.
    ///
    /// # Panics
    /// When the guard is not of this cache, and when hashing or dropping the key panics. The guard
    /// or the value is dropped then.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// struct Connection(u32); // it has no `Clone`
    ///
    /// let cache = floe::Cache::new(10);
    /// cache.insert("db", Connection(7));
    /// let seen = cache.get("db").unwrap();
    /// let removed = cache.remove("db").unwrap();
    /// let Err(removed) = removed.try_into_inner(&cache) else { panic!("`seen` is in use") };
    /// drop(seen);
    /// let Ok(connection) = removed.try_into_inner(&cache) else { panic!("no guard is left") };
    /// assert_eq!(connection.0, 7);
    /// ```
    pub fn try_into_inner<K, P, S>(self, cache: &Cache<K, V, P, S>) -> Result<V, Self>
    where
        K: Hash + Eq + Send + Sync + 'static,
        V: Send + Sync + 'static,
        P: Replacement,
        S: BuildHasher + Send + Sync + 'static,
    {
        let inner = &*cache.inner;
        let (value, keep) = self.into_parts();
        check_cache(inner, &keep);
        let entry = std::ptr::with_exposed_provenance_mut::<Entry<K, V>>(keep.address());
        // SAFETY: an entry of this cache, which the guard keeps. If the user's hash of the key has
        // changed, the entry is not found below.
        let shard = inner.shards.of(inner.hash(unsafe { &(*entry).key }));
        let Some(taken) = Taken::out_of(inner, shard, entry) else {
            return Err(Ref::of_parts(value, keep));
        };
        let mut panic = FirstPanic::none();
        // SAFETY: `taken` is the only access to the entry. The value moves out here, and the key is
        // dropped; `taken` only takes the memory back.
        let value = unsafe {
            let value = (&raw const (*entry).value).read();
            panic.catch(|| (&raw mut (*entry).key).drop_in_place());
            value
        };
        drop(keep); // the place may get another entry next
        taken.give_back();
        panic.raise();
        Ok(value)
    }
}

impl<V> Held<V> {
    /// Moves the value out, without a clone, if its entry has left the cache and no other guard for
    /// it exists: see [`Ref::try_into_inner`].
    ///
    /// # Errors
    /// Returns the guard, for the reasons that are given there.
    ///
    /// # Panics
    /// As [`Ref::try_into_inner`].
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::new(10);
    /// cache.insert(1, "one".to_string());
    /// let held = cache.hold(&1).unwrap();
    /// cache.remove(&1);
    /// let own = std::thread::scope(|scope| {
    ///     scope.spawn(|| held.try_into_inner(&cache)).join().unwrap()
    /// });
    /// assert_eq!(own.unwrap(), "one");
    /// ```
    pub fn try_into_inner<K, P, S>(self, cache: &Cache<K, V, P, S>) -> Result<V, Self>
    where
        K: Hash + Eq + Send + Sync + 'static,
        V: Send + Sync + 'static,
        P: Replacement,
        S: BuildHasher + Send + Sync + 'static,
    {
        let inner = &*cache.inner;
        let records = &inner.threads.records;
        let (value, hold) = self.into_parts();
        assert!(hold.is_of(records.holds()), "{OTHER_CACHE}");
        let keep = Keep::new(records.adopt(inner.record(), hold.address()));
        drop(hold);
        Ref::of_parts(value, keep).try_into_inner(cache).map_err(|guard| guard.hold(cache))
    }
}

/// Message of the panic where a guard and a cache do not belong together.
const OTHER_CACHE: &str = "the guard is of another cache";

/// Panics if a guard's cell is not one of this cache.
fn check_cache<K, V, P: Replacement, S>(inner: &Inner<K, V, P, S>, keep: &Keep<'_>) {
    assert!(inner.threads.records.has(inner.record(), keep.cell()), "{OTHER_CACHE}");
}

/// Makes a [`Held`] of a value whose entry `keep` protects during the call.
fn hold_kept<K, V, P: Replacement, S>(
    inner: &Inner<K, V, P, S>,
    value: NonNull<V>,
    keep: &Keep<'_>,
) -> Held<V> {
    Held::new(value, inner.threads.records.hold(keep.address()))
}

/// A removed entry that only its owner can reach. Its place returns to the slab by
/// [`give_back`](Self::give_back).
struct Taken<'a, K, V, P: Replacement> {
    shard: &'a Shard<K, V, P>,
    retired: Retired,
}

impl<'a, K, V, P: Replacement> Taken<'a, K, V, P> {
    /// Takes an entry out of limbo, if it is there and nobody names it but one cell of the
    /// caller's.
    fn out_of<S>(
        inner: &Inner<K, V, P, S>,
        shard: &'a Shard<K, V, P>,
        entry: *const Entry<K, V>,
    ) -> Option<Self> {
        let _quiet = maintenance::quiet();
        let is_it = |retired: &Retired| std::ptr::eq(shard.entry(retired.place), entry);
        let retired = shard.owner().limbo.take(is_it)?;
        let records = &inner.threads.records;
        let asked = records.ask();
        if records.named_since(inner.record(), asked, entry.addr()) == 1 {
            return Some(Self { shard, retired });
        }
        shard.owner().limbo.keep(std::iter::once(Waiting { retired, asked }));
        None
    }

    /// Gives the entry's place back, after the entry was moved out or dropped.
    fn give_back(self) {
        let _quiet = maintenance::quiet();
        self.shard.owner().slab.give_back(std::iter::once(self.retired.place));
    }
}
