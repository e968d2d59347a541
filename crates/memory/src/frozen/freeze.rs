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

use std::ops::Range;
use std::time::Instant;

use floe_policy::{Cursor, Replacement};

use crate::barrier;
use crate::frozen::freezer::{Freezer, Frozen};
use crate::frozen::index::FrozenIndex;
use crate::inner::{Inner, SLOTS_PER_LOCK};
use crate::owner::Owner;
use crate::shard::Shard;
use crate::sync::{Arc, Ordering};

impl<K, V, P: Replacement, S> Inner<K, V, P, S> {
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
        for shard in &self.shards {
            let owner = shard.owner();
            entries += goal(share, owner.held().entries as usize);
            memory.extend(owner.memory());
        }
        let index = Arc::new(FrozenIndex::with_room(entries, &memory));
        freezer.index = Some(Arc::clone(&index));
        self.count_index_bytes(freezer);
        for shard in &self.shards {
            shard.owner().set_frozen_index(Some(Arc::clone(&index)));
            self.for_slots(shard, |owner, slots| owner.index_frozen(slots));
        }
        self.extend(freezer, share);
        self.all_frozen.store(share >= 1.0, Ordering::Relaxed); // late by a moment does no harm
        self.publish(freezer, true);
        Frozen { entries: index.len(), index_bytes: index.memory_bytes(), took: began.elapsed() }
    }

    /// Freezes more entries until this share of each shard's are.
    pub(crate) fn extend(&self, freezer: &mut Freezer<K, V>, share: f64) {
        freezer.is_frozen = true;
        for shard in &self.shards {
            let (mut from, mut before) = (Cursor::START, shard.owner().frozen());
            while from != Cursor::END {
                let mut owner = shard.owner();
                let goal = goal(share, owner.held().entries as usize);
                if owner.frozen() >= goal {
                    break;
                }
                from = owner.freeze_best(goal, from);
                if from == Cursor::END && owner.frozen() > before {
                    // Entries that moved meanwhile were passed over.
                    (from, before) = (Cursor::START, owner.frozen());
                }
            }
        }
    }

    /// Publishes the index, or hides it from readers, which then find frozen entries in the index
    /// of all entries.
    pub(crate) fn publish(&self, freezer: &Freezer<K, V>, publish: bool) {
        // Where each hit passes a fence, the shorter way is not worth another test on the way
        // there; that frozen entries are not promoted remains.
        let is_published = publish && freezer.is_published && barrier::is_asymmetric();
        let index = freezer.index.as_ref().filter(|_| is_published);
        let index = index.map_or(std::ptr::null_mut(), |index| Arc::as_ptr(index).cast_mut());
        self.frozen.store(index, Ordering::Release); // who sees the index sees it whole
    }

    /// Makes everything as if nothing had been frozen, but for the order, where what was frozen
    /// comes back as just used.
    pub(crate) fn thaw(&self, freezer: &mut Freezer<K, V>) {
        self.retire_index(freezer);
        if !std::mem::take(&mut freezer.is_frozen) {
            return;
        }
        self.all_frozen.store(false, Ordering::Relaxed); // as in `freeze`
        for shard in &self.shards {
            self.for_slots(shard, |owner, slots| owner.unfreeze(slots));
            shard.owner().thaw();
        }
    }

    /// Unpublishes the index for ever, and frees retired ones that no thread reads.
    fn retire_index(&self, freezer: &mut Freezer<K, V>) {
        self.publish(freezer, false);
        if let Some(index) = freezer.index.take() {
            index.poison();
            // Only now may an entry leave without its being told: what a reader finds here late is
            // not valid.
            for shard in &self.shards {
                shard.owner().set_frozen_index(None);
            }
            freezer.retired.push(index);
        }
        self.free_retired(freezer);
    }

    /// Frees retired indexes that no thread reads any more.
    pub(crate) fn free_retired(&self, freezer: &mut Freezer<K, V>) {
        if freezer.retired.is_empty() {
            return;
        }
        let records = &self.threads.records;
        let protected = records.protected(self.record(), records.ask());
        let is_looked_at = |index: &Arc<FrozenIndex<K, V>>| {
            protected.binary_search(&(Arc::as_ptr(index) as usize)).is_ok()
        };
        freezer.retired.retain(is_looked_at);
        self.count_index_bytes(freezer);
    }

    fn count_index_bytes(&self, freezer: &Freezer<K, V>) {
        self.index_bytes.store(freezer.memory_bytes(), Ordering::Relaxed); // a count
    }

    /// Goes through the slots of a shard, some under each lock. Slots that come in meanwhile may be
    /// left out.
    fn for_slots(
        &self,
        shard: &Shard<K, V, P>,
        mut change: impl FnMut(&mut Owner<K, V, P>, Range<u32>),
    ) {
        let mut next = 0;
        loop {
            let mut owner = shard.owner();
            let end = owner.slots().min(next + SLOTS_PER_LOCK);
            if next >= end {
                return;
            }
            change(&mut owner, next..end);
            drop(owner);
            next = end;
        }
    }
}

/// Returns how many entries a share of them is.
fn goal(share: f64, entries: usize) -> usize {
    (share * entries as f64).round() as usize
}
