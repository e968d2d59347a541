//! The usual insertion, for caches to which nothing else is to be told or asked: see
//! [`Owner::insert_usually`](crate::owner::Owner::insert_usually).

use floe_policy::Replacement;

use crate::inner::Inner;
use crate::maintenance;
use crate::owner::Unplaced;

/// Inserts an entry where that is done in a usual way; gives it back otherwise.
#[inline(always)]
pub(crate) fn put<'u, K: Eq, V, P: Replacement, S>(
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
        inner.free(shard, *batch);
    }
    if is_in { None } else { Some(unplaced) }
}
