//! Freezing and thawing, carried out: one thread at a time, beside the readers and the owners of
//! the shards.
//!
//! To freeze, entries are taken out of the reach of eviction shard by shard, a batch under each
//! lock, and put into a frozen index that only their owners see; then it is published by one
//! pointer. From the first entry on, an owner that removes or replaces one does so in that index,
//! too.
//!
//! To thaw, the index is unpublished and [poisoned](FrozenIndex::poison), so that a reader that is
//! late finds nothing valid in it; after that the owners forget it and their orders take the
//! entries back. It is freed when no reader names it.

use std::time::Instant;

use floe_policy::{Cursor, Replacement};

use crate::budget::Budget;
use crate::frozen::freezer::{Freezer, Frozen};
use crate::frozen::index::FrozenIndex;
use crate::frozen::state::FrozenState;
use crate::local::{self, Threads};
use crate::shards::{Shards, for_slots, rest};
use crate::sync::Arc;

/// The parts of a cache that freezing and its controller work on.
pub(crate) struct FreezeJob<'a, K, V, P: Replacement> {
    pub(crate) shards: &'a Shards<K, V, P>,
    pub(crate) state: &'a FrozenState<K, V>,
    pub(crate) threads: &'a Arc<Threads>,
    pub(crate) budget: &'a Budget,
}

impl<K, V, P: Replacement> FreezeJob<'_, K, V, P> {
    /// Freezes this share of each shard's entries, those most worth keeping, and publishes an index
    /// of them.
    pub(crate) fn freeze(&self, freezer: &mut Freezer<K, V>, share: f64) -> Frozen {
        let began = Instant::now();
        if share < 1.0 {
            self.thaw(freezer); // to rank them all anew
        } else {
            self.retire_index(freezer);
        }
        let (mut entries, mut memory) = (0, Vec::new());
        for shard in self.shards.iter() {
            let owner = shard.owner();
            entries += goal(share, owner.room.held().entries as usize);
            memory.extend(owner.slab.memory());
        }
        let index = Arc::new(FrozenIndex::with_room(entries, &memory));
        freezer.index = Some(Arc::clone(&index));
        self.state.count_index_bytes(freezer);
        for shard in self.shards.iter() {
            shard.owner().frozen.set_index(Some(Arc::clone(&index)));
            for_slots(shard, |owner, slots| owner.index_frozen(shard.table(), slots));
        }
        self.extend(freezer, share);
        self.state.set_all(share >= 1.0);
        self.state.publish(freezer, true);
        Frozen { entries: index.len(), index_bytes: index.memory_bytes(), took: began.elapsed() }
    }

    /// Freezes more entries until this share of each shard's are.
    pub(crate) fn extend(&self, freezer: &mut Freezer<K, V>, share: f64) {
        freezer.is_frozen = true;
        for shard in self.shards.iter() {
            let (mut from, mut before) = (Cursor::START, shard.owner().frozen.count());
            while from != Cursor::END {
                let mut owner = shard.owner();
                let goal = goal(share, owner.room.held().entries as usize);
                if owner.frozen.count() >= goal {
                    break;
                }
                from = owner.freeze_best(shard.table(), goal, from);
                if from == Cursor::END && owner.frozen.count() > before {
                    // Entries that moved meanwhile were passed over.
                    (from, before) = (Cursor::START, owner.frozen.count());
                }
                drop(owner);
                if from != Cursor::END {
                    rest();
                }
            }
        }
    }

    /// Makes everything as if nothing had been frozen, but for the order, where what was frozen
    /// comes back as just used.
    pub(crate) fn thaw(&self, freezer: &mut Freezer<K, V>) {
        self.retire_index(freezer);
        if !std::mem::take(&mut freezer.is_frozen) {
            return;
        }
        self.state.set_all(false);
        for shard in self.shards.iter() {
            for_slots(shard, |owner, slots| owner.unfreeze(shard.table(), slots));
            while !shard.owner().thaw_some() {
                rest();
            }
        }
    }

    /// Unpublishes the index for ever, and frees retired ones that no thread reads.
    fn retire_index(&self, freezer: &mut Freezer<K, V>) {
        self.state.publish(freezer, false);
        if let Some(index) = freezer.index.take() {
            index.poison();
            // Only now may an entry leave without its being told: what a reader finds here late is
            // not valid.
            for shard in self.shards.iter() {
                shard.owner().frozen.set_index(None);
            }
            freezer.retired.push(index);
        }
        self.free_retired(freezer);
    }

    /// Frees retired indexes that no thread reads any more.
    pub(crate) fn free_retired(&self, freezer: &mut Freezer<K, V>) {
        let record = local::record(self.threads);
        self.state.free_retired(freezer, &self.threads.records, record);
    }
}

/// Returns how many entries a share of them is.
fn goal(share: f64, entries: usize) -> usize {
    (share * entries as f64).round() as usize
}
