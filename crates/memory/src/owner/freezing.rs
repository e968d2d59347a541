//! Freezing in a shard: entries that leave the order and stand in the frozen index, and their way
//! back.

use std::ops::Range;

use floe_policy::{Cursor, Eviction};

use super::{Owner, TableOf};

impl<K, V, P: Eviction> Owner<K, V, P> {
    /// Puts the frozen ones among some slots into the frozen index.
    pub(crate) fn index_frozen(&mut self, table: &TableOf<P>, slots: Range<u32>) {
        let frozen = slots.filter(|&slot| self.slots[slot].frozen);
        let place = |slot| (self.slots[slot].hash, self.standing(table, slot).place);
        self.frozen.fill_index(frozen.map(place));
    }

    /// Freezes the entries most worth keeping until `goal` are, as far as one look at the ranking
    /// goes, and puts them into the frozen index if there is one. The next look goes on where this
    /// one ended.
    pub(crate) fn freeze_best(&mut self, table: &TableOf<P>, goal: usize, from: Cursor) -> Cursor {
        let mut slots = Vec::with_capacity(Cursor::BATCH);
        let next = self.order.rank(from, &mut slots);
        // an order that does not get on ends here
        let next = if next == from { Cursor::END } else { next };
        // The order can be the user's and name anything.
        slots.retain(|&slot| {
            let is_in_reach = self.slots.in_reach(slot).is_some();
            is_in_reach && self.frozen.admits(self.standing(table, slot.0).place)
        });
        slots.truncate(goal.saturating_sub(self.frozen.count()));
        self.order.freeze(&slots);
        for slot in slots {
            let place = self.standing(table, slot.0).place;
            self.frozen.freeze(&mut self.slots[slot.0], place);
        }
        next
    }

    /// Lets hits on the entries in some slots count again. They are out of reach until the order
    /// [thaws](Self::thaw_some).
    pub(crate) fn unfreeze(&mut self, table: &TableOf<P>, slots: Range<u32>) {
        for slot in slots {
            if self.slots[slot].frozen {
                let place = self.standing(table, slot).place;
                self.frozen.melt(&mut self.slots[slot], place);
            }
        }
    }

    /// Puts some of what was frozen back into the order. Returns whether all is back.
    pub(crate) fn thaw_some(&mut self) -> bool {
        self.order.thaw_some(Cursor::BATCH)
    }
}
