//! Growth of a shard: more slots, and an index with room for more keys.

use floe_policy::Eviction;

use super::Owner;
use crate::index::Index;
use crate::shard::Shard;
use crate::sync::Arc;
use crate::table::Table;

impl<K, V, P: Eviction> Owner<K, V, P> {
    /// Makes room for more slots when all are in use, and so for more keys.
    ///
    /// Marks that grow move, and readers that are late with a table have those of fewer slots. They
    /// never see an entry in another slot, as new keys come to the new index only, which their
    /// table does not have.
    #[cold]
    pub(super) fn grow(&mut self, shard: &Shard<K, V, P>) {
        debug_assert_eq!(
            self.growth.keys_max(),
            self.room.held().entries as usize,
            "all slots that there were are in use"
        );
        let slots = self.slots.reserved_next();
        // The policy and the admission can be the user's, and panic: nothing has changed then.
        self.order.reserve(slots);
        if let Some(admission) = &mut self.admission {
            admission.reserve(self.slots.within_limit(slots), self.capacity);
        }
        let marks = self.order.marks().clone();
        self.slots.set_reserved(slots);
        self.begin_moving_with(shard, marks);
    }

    /// Publishes another table in the place of the present one.
    fn publish(
        &mut self,
        shard: &Shard<K, V, P>,
        index: Index,
        old: Option<Index>,
        marks: P::Marks,
    ) {
        let places = Arc::clone(self.slab.places());
        let before = shard.replace_table(Table { index, places, old, marks });
        self.replaced_tables.push(before);
    }

    /// Begins to move all keys to an index that has room for twice as many.
    #[cold]
    #[inline(never)]
    pub(super) fn begin_moving(&mut self, shard: &Shard<K, V, P>) {
        let marks = self.order.marks().clone(); // it can be the user's, and panic
        self.begin_moving_with(shard, marks);
    }

    fn begin_moving_with(&mut self, shard: &Shard<K, V, P>, marks: P::Marks) {
        // Over by now, but for a shard with many more slots than keys.
        while self.growth.is_moving() {
            self.move_some(shard);
        }
        let index = self.growth.begin(self.slots.reserved());
        self.publish(shard, index, Some(shard.table().index.clone()), marks);
    }

    /// Moves the keys of a few slots from the old index to the new one; after the last of them
    /// there is no old index.
    #[cold]
    #[inline(never)]
    pub(super) fn move_some(&mut self, shard: &Shard<K, V, P>) {
        let table = shard.table();
        let slab = &self.slab;
        // SAFETY: places in the index are those of live entries, and entries are taken out under
        // this lock only.
        let slot_at = |place| unsafe { &*slab.entry(place) }.slot();
        if self.growth.advance(self.slots.all_mut(), table, slot_at) {
            // Where this panics, the table keeps the old index, which is empty.
            let marks = self.order.marks().clone();
            self.publish(shard, table.index.clone(), None, marks);
        }
    }
}
