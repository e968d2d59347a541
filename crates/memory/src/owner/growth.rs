//! Growth of a shard: more slots, and an index with room for more keys.

use floe_policy::Eviction;

use super::{MOVED_AT_ONCE, Owner};
use crate::index::Index;
use crate::shard::Shard;
use crate::table::Table;

impl<K, V, P: Eviction> Owner<K, V, P> {
    /// Makes room for more slots when all are in use, and so for more keys.
    ///
    /// Marks that grow move, and readers that are late with a table have those of fewer slots. They
    /// never see an entry in another slot, as new keys come to the new index only, which their
    /// table does not have.
    #[cold]
    pub(crate) fn grow(&mut self, shard: &Shard<K, V, P>) {
        // A quarter at least, so that keys move to an index that has room for more than arrive
        // meanwhile, also where the limit is raised little by little.
        let least = self.reserved + self.reserved.div_ceil(4);
        let enough = self.slots.filter(|&slots| slots > self.reserved);
        let enough = enough.map_or(usize::MAX, |slots| slots.max(least));
        let slots = (self.reserved * 2).min(enough);
        self.order.reserve(slots);
        self.reserved = slots;
        if let Some(admission) = &mut self.admission {
            admission.reserve(slots, self.capacity);
        }
        debug_assert_eq!(
            self.keys_max, self.held.entries as usize,
            "all slots that there were are in use"
        );
        self.begin_moving(shard);
    }

    /// Publishes another table in the place of the present one.
    fn publish(&mut self, shard: &Shard<K, V, P>, index: Index, old: Option<Index>) {
        let before = shard.replace_table(Table { index, old, marks: self.order.marks().clone() });
        self.limbo.push_table(before);
    }

    /// Begins to move all keys to an index that has room for twice as many.
    #[cold]
    #[inline(never)]
    pub(crate) fn begin_moving(&mut self, shard: &Shard<K, V, P>) {
        // Over by now, but for a shard with many more slots than keys.
        while self.is_moving {
            self.move_some(shard);
        }
        self.keys_max = (self.keys_max * 2).min(self.reserved);
        self.era = !self.era;
        (self.is_moving, self.moved) = (true, 0);
        self.publish(shard, Index::with_room(self.keys_max), Some(shard.table().index.clone()));
    }

    /// Moves the keys of a few slots from the old index to the new one; after the last of them
    /// there is no old index.
    #[cold]
    #[inline(never)]
    pub(crate) fn move_some(&mut self, shard: &Shard<K, V, P>) {
        let table = shard.table();
        let old = table.index_of(true);
        let end = self.tenants.len().min(self.moved + MOVED_AT_ONCE);
        for tenant in &mut self.tenants[self.moved..end] {
            if tenant.is_some() && tenant.era != self.era {
                let lane = table.index.insert(tenant.hash, tenant.entry.expose_provenance());
                // after it has come to the new one: see `table`
                old.remove(tenant.hash, tenant.lane);
                (tenant.lane, tenant.era) = (lane, self.era);
            }
        }
        self.moved = end;
        if end == self.tenants.len() {
            self.is_moving = false;
            old.give_back(); // a thread that rests may name the table for long
            self.publish(shard, table.index.clone(), None);
        }
    }
}
