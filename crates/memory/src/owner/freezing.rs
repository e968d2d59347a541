//! Freezing in a shard: entries that leave the order and stand in the frozen index, and their way
//! back.

use std::ops::Range;

use floe_policy::{Cursor, Eviction};

use super::Owner;
use crate::frozen::index::FrozenIndex;
use crate::sync::Arc;

impl<K, V, P: Eviction> Owner<K, V, P> {
    /// Returns how many entries are frozen.
    pub(crate) fn frozen(&self) -> usize {
        self.frozen
    }

    /// From now on, or no longer, frozen entries stand in this index, too.
    pub(crate) fn set_frozen_index(&mut self, index: Option<Arc<FrozenIndex<K, V>>>) {
        self.frozen_index = index;
    }

    /// Puts the frozen ones among some slots into the frozen index.
    pub(crate) fn index_frozen(&self, slots: Range<u32>) {
        let index = self.frozen_index.as_ref().expect("set before");
        for tenant in &self.tenants[slots.start as usize..slots.end as usize] {
            if tenant.frozen && index.reaches(tenant.entry.expose_provenance()) {
                index.insert(tenant.hash, tenant.entry.expose_provenance());
            }
        }
    }

    /// Freezes the entries most worth keeping until `goal` are, as far as one look at the ranking
    /// goes, and puts them into the frozen index if there is one. The next look goes on where this
    /// one ended.
    pub(crate) fn freeze_best(&mut self, goal: usize, from: Cursor) -> Cursor {
        let mut slots = Vec::with_capacity(Cursor::BATCH);
        let next = self.order.rank(from, &mut slots);
        // an order that does not get on ends here
        let next = if next == from { Cursor::END } else { next };
        let index = self.frozen_index.as_deref();
        // The order can be the user's and name anything.
        slots.retain(|slot| {
            let Some(tenant) = self.tenants.get(slot.index()).filter(|tenant| tenant.is_in_reach())
            else {
                return false;
            };
            // SAFETY: it is in, and is taken out under this lock only.
            let goes_idle = || unsafe { &*tenant.entry }.expiry.goes_idle();
            index.is_none_or(|index| index.reaches(tenant.entry.expose_provenance()))
                && !goes_idle() // each hit of such an entry writes to it
        });
        slots.truncate(goal.saturating_sub(self.frozen));
        self.order.freeze(&slots);
        for slot in &slots {
            let tenant = &mut self.tenants[slot.index()];
            if std::mem::replace(&mut tenant.frozen, true) {
                continue; // named twice, and must not be in the index twice
            }
            self.frozen += 1;
            // SAFETY: as above.
            unsafe { &*tenant.entry }.set_frozen(true);
            if let Some(index) = index {
                index.insert(tenant.hash, tenant.entry.expose_provenance());
            }
        }
        next
    }

    /// Lets hits on the entries in some slots count again. They are out of reach until the order
    /// [thaws](Self::thaw).
    pub(crate) fn unfreeze(&mut self, slots: Range<u32>) {
        for tenant in &mut self.tenants[slots.start as usize..slots.end as usize] {
            if std::mem::take(&mut tenant.frozen) {
                self.frozen -= 1;
                // SAFETY: it is in, and is taken out under this lock only.
                unsafe { &*tenant.entry }.set_frozen(false);
            }
        }
    }

    /// Has an entry be like one that was never frozen, but for the order, which the caller sees to.
    pub(crate) fn melt(&mut self, slot: u32) {
        let tenant = &mut self.tenants[slot as usize];
        if std::mem::take(&mut tenant.frozen) {
            self.frozen -= 1;
            if let Some(index) = &self.frozen_index {
                index.take_out(tenant.hash, tenant.entry.expose_provenance());
            }
            // SAFETY: it is in, and is taken out under this lock only.
            unsafe { &*tenant.entry }.set_frozen(false);
        }
    }

    /// Puts what was frozen back into the order.
    pub(crate) fn thaw(&mut self) {
        self.order.thaw();
    }
}
