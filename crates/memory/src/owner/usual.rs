//! The usual insertion into a shard, in few instructions: of an entry that weighs 1, neither
//! expires nor is pinned, into a cache without listener, weigher, admission and lifetimes. It
//! replaces such an entry, or one that leaves for it. All else is [`insert`](Owner::insert)'s.

use floe_policy::{Eviction, Slot};

use super::{Owner, Standing, Tenant};
use crate::budget::{Amount, Budget};
use crate::entry::{Entry, Head};
use crate::retired::Retired;
use crate::shard::Shard;
use crate::slab::Slab;
use crate::unplaced::Unplaced;

impl<K: Eq, V, P: Eviction> Owner<K, V, P> {
    /// Inserts an entry if that is done in one of the usual ways, and returns whether it is.
    #[inline(always)]
    pub(crate) fn insert_usually(
        &mut self,
        shard: &Shard<K, V, P>,
        budget: &Budget,
        unplaced: &mut Unplaced<'_, K, V>,
        asks_others: bool,
    ) -> bool {
        let table = shard.table();
        if table.old.is_some() {
            return false; // the insertion is to move some keys
        }
        // SAFETY: places in the index are those of live entries, and entries are taken out under
        // this lock only.
        let entry = |place| unsafe { &*self.slab.entry(place) };
        let is_key = |place| *unplaced.key() == entry(place).key;
        let Some((spot, before)) = table.index.find(unplaced.hash.in_shard(), is_key) else {
            return self.exchange_usually(shard, budget, unplaced, asks_others);
        };
        let state = entry(before).head.state();
        let slot = state.slot();
        if !state.is_plain() || self.slots[slot].pinned {
            return false;
        }
        debug_assert_eq!(self.slots.weight(slot), 1, "there is no weigher");
        let place = place(&mut self.slab, slot, unplaced);
        table.index.replace(spot, place);
        self.counts.insertions += 1;
        self.counts.replacements += 1;
        self.limbo.push(Retired { place: before, weight: 1 });
        self.order.access(Slot(slot)); // last: it can be the user's, and panic
        true
    }

    /// [`insert_usually`](Self::insert_usually) for a key that is absent, in place of an entry that
    /// leaves.
    #[inline(always)]
    fn exchange_usually(
        &mut self,
        shard: &Shard<K, V, P>,
        budget: &Budget,
        unplaced: &mut Unplaced<'_, K, V>,
        asks_others: bool,
    ) -> bool {
        let need = Amount::of(1);
        if self.room.meets(budget, need) || !self.room.is_made_here(budget, need, need, asks_others)
        {
            return false;
        }
        let (table, access) = (shard.table(), unplaced.hash.access(1));
        let Some(victim) = self.choose_victim(Some(&access)) else { return false };
        let Standing { index, spot, place: before } = self.standing(table, victim.0);
        debug_assert!(std::ptr::eq(index, &raw const table.index), "no keys move");
        let hash = unplaced.hash.in_shard();
        let place = place(&mut self.slab, victim.0, unplaced);
        let tenant = &mut self.slots[victim.0];
        debug_assert!(!tenant.frozen && !tenant.pinned, "such are out of reach");
        index.remove(tenant.hash, spot);
        let lane = table.index.insert(hash, place);
        *tenant = Tenant { hash, lane, pinned: false, frozen: false, era: tenant.era };
        self.counts.insertions += 1;
        self.counts.evictions += 1;
        self.limbo.push(Retired { place: before, weight: 1 });
        self.order.insert(victim, &access); // last: it can be the user's, and panic
        true
    }
}

/// Puts an entry into unused memory, and returns where; it is not in the index yet.
#[inline(always)]
fn place<K, V>(slab: &mut Slab<Entry<K, V>>, slot: u32, unplaced: &mut Unplaced<'_, K, V>) -> u32 {
    let (place, entry) = slab.take();
    // SAFETY: memory for an entry that holds none: it is new, or what was there has been freed.
    unsafe { unplaced.settle(Head::never().at(slot), entry) };
    place
}
