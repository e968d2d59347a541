//! Where an entry of a shard stands in the index, and where it lies.

use equivalent::Equivalent;
use floe_policy::Eviction;

use super::{Owner, TableOf};
use crate::entry::Entry;
use crate::index::{Hash32, Index, Spot};
use crate::table::Table;

/// The spot of an entry that is in, until it leaves or the index is replaced.
#[derive(Debug, Clone, Copy)]
pub(super) struct Standing<'t> {
    pub(super) index: &'t Index,
    pub(super) spot: Spot,
    /// Where the entry lies.
    pub(super) place: u32,
}

impl<K, V, P: Eviction> Owner<K, V, P> {
    /// The entry of a key.
    pub(crate) fn find<Q>(&self, table: &TableOf<P>, hash: Hash32, key: &Q) -> Option<&Entry<K, V>>
    where
        Q: Equivalent<K> + ?Sized,
    {
        let found = self.look_up(table, hash, key)?;
        // SAFETY: places in the index are those of live entries, and entries are taken out under
        // this lock only.
        Some(unsafe { &*self.slab.entry(found.place) })
    }

    /// Where the entry of a key stands.
    #[inline(always)]
    pub(super) fn look_up<'t, Q>(
        &self,
        table: &'t TableOf<P>,
        hash: Hash32,
        key: &Q,
    ) -> Option<Standing<'t>>
    where
        Q: Equivalent<K> + ?Sized,
    {
        // SAFETY: as in `find`.
        let is_key = |place| key.equivalent(unsafe { &(*self.slab.entry(place)).key });
        if table.old.is_some() {
            return look_up_in_both(table, hash, &is_key);
        }
        let (spot, place) = table.index.find(hash, is_key)?;
        Some(Standing { index: &table.index, spot, place })
    }

    /// Where the entry in a slot stands. There is one.
    #[inline(always)]
    pub(super) fn standing<'t>(&self, table: &'t TableOf<P>, slot: u32) -> Standing<'t> {
        let tenant = &self.slots[slot];
        let index = self.growth.index_of(tenant, table);
        // SAFETY: as in `find`.
        let is_it = |place| unsafe { &*self.slab.entry(place) }.slot() == slot;
        let (spot, place) = index.spot(tenant.hash, tenant.lane, is_it);
        Standing { index, spot, place }
    }

    /// The entry in a slot, for walks over all of them.
    pub(crate) fn entry(&self, table: &TableOf<P>, slot: u32) -> Option<*mut Entry<K, V>> {
        self.slots.get(slot)?;
        Some(self.slab.entry(self.standing(table, slot).place))
    }

    /// Returns whether this entry, which the caller keeps from being freed, is in a slot, which
    /// need not have been in use.
    pub(super) fn is_in(&self, table: &TableOf<P>, slot: u32, entry: *const Entry<K, V>) -> bool {
        self.entry(table, slot).is_some_and(|there| std::ptr::eq(there, entry))
    }
}

/// Looks a key up while keys are being moved from one index to another.
#[cold]
#[inline(never)]
fn look_up_in_both<'t, M>(
    table: &'t Table<M>,
    hash: Hash32,
    is_key: &impl Fn(u32) -> bool,
) -> Option<Standing<'t>> {
    table.indexes().find_map(|index| {
        let (spot, place) = index.find(hash, is_key)?;
        Some(Standing { index, spot, place })
    })
}
