//! Going through the entries of a cache.

use floe_policy::Replacement;

use crate::guard::{Item, Keep};
use crate::inner::Inner;
use crate::shards::SLOTS_PER_LOCK;

/// An iterator over the entries of a cache: see [`Cache::iter`](crate::Cache::iter).
pub struct Iter<'a, K, V, P: Replacement, S> {
    inner: &'a Inner<K, V, P, S>,
    shard: usize,
    slot: u32,
    /// Entries until the next rest.
    left: u32,
}

/// Entries between two rests.
const ENTRIES_PER_REST: u32 = 1024;

impl<'a, K, V, P: Replacement, S> Iter<'a, K, V, P, S> {
    pub(crate) fn new(inner: &'a Inner<K, V, P, S>) -> Self {
        Self { inner, shard: 0, slot: 0, left: ENTRIES_PER_REST }
    }
}

impl<K, V, P: Replacement, S> std::fmt::Debug for Iter<'_, K, V, P, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Iter")
            .field("shard", &self.shard)
            .field("slot", &self.slot)
            .finish_non_exhaustive()
    }
}

impl<'a, K, V, P: Replacement, S> Iterator for Iter<'a, K, V, P, S> {
    type Item = Item<'a, K, V>;

    fn next(&mut self) -> Option<Item<'a, K, V>> {
        let inner = self.inner;
        if self.left == 0 {
            crate::shards::rest(); // for threads that wait for the same locks
            self.left = ENTRIES_PER_REST;
        }
        self.left -= 1;
        let keep = Keep::new(inner.record().cell()); // before the lock: there may be none yet
        while let Some(shard) = inner.shards.get(self.shard) {
            let owner = shard.owner();
            let end = owner.slots.len().min(self.slot.saturating_add(SLOTS_PER_LOCK));
            while self.slot < end {
                let slot = self.slot;
                self.slot += 1;
                let Some(entry) = owner.entry(shard.table(), slot) else { continue };
                // SAFETY: it is in, and is taken out under the lock only.
                if unsafe { &*entry }.head.is_over(inner.lifetimes.clock()) {
                    continue;
                }
                keep.name(entry as usize); // before it can be taken out: see `hazard`
                // SAFETY: kept by the cell from now on, until the guard that takes the cell over is
                // dropped.
                return Some(Item::new(unsafe { &*entry }, keep));
            }
            if self.slot >= owner.slots.len() {
                (self.shard, self.slot) = (self.shard + 1, 0);
            }
        }
        None
    }
}
