//! Changes that depend on the value that is there: decided outside of locks, and made if nothing
//! has changed meanwhile.
//!
//! A guard for the old value keeps its memory, so no other value can have its address. The change
//! is made under the lock of the shard if the value under the key still has that address, and
//! decided anew otherwise. So the user's code runs outside of locks here, too, and may use the
//! cache.

use std::hash::{BuildHasher, Hash};
use std::mem::ManuallyDrop;

use equivalent::Equivalent;
use floe_policy::Replacement;

use crate::cache::Cache;
use crate::cause::Cause;
use crate::cell::Cell;
use crate::entry::Entry;
use crate::guard::{Keep, RESERVED, Ref};
use crate::hash::KeyHash;
use crate::insert;
use crate::options::InsertOptions;
use crate::sync::Ordering;
use crate::thrown::FirstPanic;

impl<K, V, P, S> Cache<K, V, P, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
{
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
    /// expires as one that is [inserted](Self::insert), and is not pinned.
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
    /// A load of the key that is under way will not enter the cache, whatever the closure says: it
    /// was not asked about what that brings.
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
    /// The closure sees each entry that was there before and still is; it may miss entries that
    /// other threads insert meanwhile, which stay. It runs outside of locks. Each entry that is
    /// removed costs two locks, each that stays one.
    ///
    /// Loads that are under way when it begins will not enter the cache: the closure was not asked
    /// about what they bring.
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
}

/// Inserts an entry if `decide` agrees to the one that is there under its key. `guard` is filled as
/// that of a [candidate](crate::candidate::Candidate).
///
/// # Errors
/// Key and value, if it does not agree.
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
    let mut candidate = insert::candidate(&cache.inner, hash, &mut key, &mut value, options);
    candidate.guard = guard;
    let mut panic = FirstPanic::none(); // the entry comes in all the same
    let then = |after| _ = panic.catch(|| inner.settle(after));
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

/// Removes a key's entry if it still has this value, which a guard of the caller's keeps, and has
/// not expired.
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
