//! Insertion: first in the usual way, for caches to which nothing else is to be told or asked (see
//! [`Owner::insert_usually`](crate::owner::Owner::insert_usually)), then in any other.

use std::hash::{BuildHasher, Hash};
use std::mem::ManuallyDrop;

use floe_policy::Replacement;

use crate::candidate::Candidate;
use crate::hash::KeyHash;
use crate::inner::Inner;
use crate::maintenance;
use crate::options::InsertOptions;
use crate::sync::Arc;
use crate::thrown::FirstPanic;
use crate::unplaced::Unplaced;

/// Inserts an entry where that is done in a usual way; gives it back otherwise.
#[inline(always)]
fn put<'u, K: Eq, V, P: Replacement, S>(
    inner: &Inner<K, V, P, S>,
    mut unplaced: Unplaced<'u, K, V>,
) -> Option<Unplaced<'u, K, V>> {
    // Where the library has no threads, insertions sweep the entries that expire.
    let sweeps = inner.lifetimes.upkeep().is_kept() && maintenance::is_alone();
    if !inner.inserts_usually || sweeps || inner.frozen.is_all() {
        return Some(unplaced);
    }
    let shard = inner.shards.of(unplaced.hash);
    shard.prefetch_to_write(unplaced.hash.in_shard());
    let mut owner = shard.owner();
    if shard.is_loading() {
        return Some(unplaced); // the load is to be detached
    }
    let asks_others = inner.shards.len() > 1;
    let is_in = owner.insert_usually(shard, &inner.budget, &mut unplaced, asks_others);
    let batch = if owner.limbo.is_due() { inner.due(shard, &mut owner) } else { None };
    drop(owner);
    inner.threads.records.answer(inner.record());
    if let Some(batch) = batch {
        inner.free(shard, batch);
    }
    if is_in { None } else { Some(unplaced) }
}

/// [`Cache::insert`](crate::Cache::insert) of what the caller neither uses nor drops any more.
#[inline(never)]
pub(crate) fn usually<K, V, P, S>(
    inner: &Arc<Inner<K, V, P, S>>,
    hash: KeyHash,
    key: &mut ManuallyDrop<K>,
    value: &mut ManuallyDrop<V>,
) where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
{
    let unplaced = Unplaced::new(hash, key, value);
    let is_in = put(inner, unplaced).map(Unplaced::hand_back).is_none();
    if !is_in {
        return unusually(inner, hash, key, value, InsertOptions::new());
    }
    inner.note_insertion(hash);
}

/// [`Cache::insert_with`](crate::Cache::insert_with) what the caller gives up.
#[inline(never)]
pub(crate) fn unusually<K, V, P, S>(
    inner: &Arc<Inner<K, V, P, S>>,
    hash: KeyHash,
    key: &mut ManuallyDrop<K>,
    value: &mut ManuallyDrop<V>,
    options: InsertOptions,
) where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
{
    let mut candidate = candidate(inner, hash, key, value, &options);
    let mut panic = FirstPanic::none(); // the entry comes in all the same
    let then = |after| _ = panic.catch(|| inner.settle(after));
    inner.put(inner.shards.of(hash), &mut candidate, then);
    drop(candidate);
    inner.note_insertion(hash);
    panic.raise();
}

/// Returns a candidate that takes over key and value.
#[inline(always)]
pub(crate) fn candidate<'a, K, V, P, S>(
    inner: &Arc<Inner<K, V, P, S>>,
    hash: KeyHash,
    key: &'a mut ManuallyDrop<K>,
    value: &'a mut ManuallyDrop<V>,
    options: &InsertOptions,
) -> Candidate<'a, K, V>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
{
    let mut candidate = Candidate::new(Unplaced::new(hash, key, value));
    if let Some((expiry, due)) = inner.lifetimes.expiry(inner, options) {
        (candidate.expiry, candidate.due) = (expiry, due);
    }
    candidate.weight = inner.weigh(candidate.unplaced.key(), candidate.unplaced.value());
    candidate.pinned = options.pinned;
    candidate
}
