//! Freezing in a shard: entries that leave the order and stand in the frozen index, and their way
//! back.

use std::ops::Range;

use floe_policy::{Cursor, Eviction};

use super::Owner;

impl<K, V, P: Eviction> Owner<K, V, P> {
    /// Puts the frozen ones among some slots into the frozen index.
    pub(crate) fn index_frozen(&mut self, slots: Range<u32>) {
        self.frozen.fill_index(self.slots.range_mut(slots));
    }

    /// Freezes the entries most worth keeping until `goal` are, as far as one look at the ranking
    /// goes, and puts them into the frozen index if there is one. The next look goes on where this
    /// one ended.
    pub(crate) fn freeze_best(&mut self, goal: usize, from: Cursor) -> Cursor {
        let mut slots = Vec::with_capacity(Cursor::BATCH);
        let next = self.order.rank(from, &mut slots);
        // an order that does not get on ends here
        let next = if next == from { Cursor::END } else { next };
        // The order can be the user's and name anything.
        slots.retain(|&slot| {
            self.slots.in_reach(slot).is_some_and(|tenant| self.frozen.admits(tenant))
        });
        slots.truncate(goal.saturating_sub(self.frozen.count()));
        self.order.freeze(&slots);
        slots.iter().for_each(|slot| self.frozen.freeze(&mut self.slots[slot.0]));
        next
    }

    /// Lets hits on the entries in some slots count again. They are out of reach until the order
    /// [thaws](Self::thaw).
    pub(crate) fn unfreeze(&mut self, slots: Range<u32>) {
        let tenants = self.slots.range_mut(slots);
        tenants.iter_mut().for_each(|tenant| self.frozen.melt(tenant));
    }

    /// Puts what was frozen back into the order.
    pub(crate) fn thaw(&mut self) {
        self.order.thaw();
    }
}
