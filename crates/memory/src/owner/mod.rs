//! The side of a shard that one thread changes at a time: its entries, their order, and victims.
//!
//! It is not the [owner of slots](floe_policy::owner) that simulations run. Entries share a budget
//! with other shards, may be pinned or frozen, and are published to readers that take no lock, so
//! a hit or an insertion through the general owner would execute more instructions. A test of
//! `floe-lab` (`simulate_is_cache`) drives both with the same requests and compares all victims.

mod arrival;
mod freezing;
mod frozen;
mod gone;
mod growth;
pub(crate) mod index_growth;
pub(crate) mod room;
mod shape;
mod slots;
mod tenant;

use equivalent::Equivalent;
use floe_policy::{Access, Eviction, Priority, Slot};

use self::frozen::FrozenEntries;
pub(crate) use self::gone::Gone;
use self::index_growth::IndexGrowth;
use self::room::Room;
pub(crate) use self::shape::Shape;
use self::slots::Slots;
pub(crate) use self::tenant::Tenant;
use crate::admission::ShardAdmission;
use crate::budget::{Amount, Budget, Share};
use crate::cause::Cause;
use crate::entry::Entry;
use crate::hash::KeyHash;
use crate::index::Hash32;
use crate::limbo::{Batch, Limbo, Retired};
use crate::slab::Slab;
use crate::stats::ShardCounts;
use crate::sync::Arc;
use crate::table::Table;

/// Holds what a shard frees at once.
pub(crate) type BatchOf<K, V, P> = Batch<Entry<K, V>, TableOf<P>>;

/// The table of a shard ordered by a policy.
pub(crate) type TableOf<P> = Table<<P as Eviction>::Marks>;

/// The owner's side of a shard. All methods are called under the shard's lock, with the shard's
/// present table.
pub(crate) struct Owner<K, V, P: Eviction> {
    order: P,
    pub(crate) slots: Slots,
    pub(crate) growth: IndexGrowth,
    pub(crate) slab: Slab<Entry<K, V>>,
    pub(crate) room: Room,
    /// Tells what the policy was told that the shard holds.
    capacity: u64,
    pub(crate) frozen: FrozenEntries<K, V>,
    pub(crate) limbo: Limbo<Entry<K, V>, TableOf<P>>,
    pub(crate) counts: ShardCounts,
    /// The admission, asked about candidates. Apart: most caches have none.
    pub(crate) admission: Option<Box<ShardAdmission>>,
}

impl<K, V, P: Eviction> Owner<K, V, P> {
    /// An empty shard and its table.
    pub(crate) fn new(
        mut order: P,
        shape: Shape,
        share: Share,
        slab: Slab<Entry<K, V>>,
        mut admission: Option<Box<ShardAdmission>>,
    ) -> (Self, TableOf<P>) {
        let slots = Slots::new(&shape);
        let growth = IndexGrowth::new(slots.reserved());
        if let Some(admission) = &mut admission {
            admission.reserve(slots.reserved(), shape.capacity);
        }
        order.reserve(slots.reserved());
        order.set_capacity(shape.capacity.max(1));
        let (index, places) = (growth.index(), Arc::clone(slab.places()));
        let table = Table { index, places, old: None, marks: order.marks().clone() };
        let owner = Self {
            order,
            slots,
            growth,
            room: Room::new(shape.unlimited, share),
            capacity: shape.capacity,
            frozen: FrozenEntries::none(slab.places()),
            slab,
            limbo: Limbo::new(shape.batch, shape.batch_weight),
            counts: ShardCounts::default(),
            admission,
        };
        (owner, table)
    }

    /// Bytes of all but the table.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.order.memory_bytes()
            + self.slab.memory_bytes()
            + self.slots.memory_bytes()
            + self.limbo.len() * size_of::<Retired<Entry<K, V>>>()
            + self.admission.as_ref().map_or(0, |admission| admission.memory_bytes())
    }

    /// The shard's share of the limits has changed.
    pub(crate) fn reshape(&mut self, budget: &Budget, shape: Shape) {
        self.order.set_capacity(shape.capacity.max(1));
        self.capacity = shape.capacity;
        self.slots.set_limit(shape.slots);
        self.room.reshape(budget, &shape, self.slots.tenants().map(|tenant| tenant.weight));
        if let Some(admission) = &mut self.admission {
            admission.reserve(self.slots.reserved(), shape.capacity);
        }
        self.limbo.set_batch(shape.batch, shape.batch_weight);
    }

    /// The entry of a key.
    pub(crate) fn find<Q>(&self, table: &TableOf<P>, hash: Hash32, key: &Q) -> Option<&Entry<K, V>>
    where
        Q: Equivalent<K> + ?Sized,
    {
        let entry = |place| {
            let address = table.places.address::<Entry<K, V>>(place);
            std::ptr::with_exposed_provenance::<Entry<K, V>>(address)
        };
        // SAFETY: places in the index are those of live entries, and entries are taken out under
        // this lock only.
        let is_key = |place| key.equivalent(unsafe { &(*entry(place)).key });
        let found = match &table.old {
            None => table.index.find(hash, is_key)?,
            Some(_) => Self::find_in_both(table, hash, &is_key)?,
        };
        // SAFETY: as above.
        Some(unsafe { &*entry(found) })
    }

    /// Looks a key up while keys are being moved from one index to another.
    #[cold]
    #[inline(never)]
    fn find_in_both(
        table: &TableOf<P>,
        hash: Hash32,
        is_key: &impl Fn(u32) -> bool,
    ) -> Option<u32> {
        table.indexes().find_map(|index| index.find(hash, is_key))
    }

    /// The entries of all slots and those that wait, for the end.
    pub(crate) fn take_entries(&mut self) -> Vec<*mut Entry<K, V>> {
        let (waiting, tables) = self.limbo.take_all();
        tables.into_iter().for_each(|table| self.limbo.push_table(table));
        let mut entries: Vec<_> = waiting.into_iter().map(|retired| retired.entry).collect();
        entries.extend(self.slots.tenants().map(|tenant| self.slab.entry(tenant.place)));
        self.slots.clear();
        entries
    }

    /// The entry in a slot, for walks over all of them.
    pub(crate) fn entry(&self, slot: u32) -> Option<*mut Entry<K, V>> {
        self.slots.get(slot).map(|tenant| self.slab.entry(tenant.place))
    }

    /// Returns whether this entry, which the caller keeps from being freed, is in a slot, which
    /// need not have been in use.
    fn is_in(&self, slot: u32, entry: *const Entry<K, V>) -> bool {
        let is_it = |tenant: &Tenant| std::ptr::eq(self.slab.entry(tenant.place), entry);
        self.slots.get(slot).is_some_and(is_it)
    }

    /// Pays for a hit on an entry that the caller keeps from being freed, if it is still in.
    pub(crate) fn promote(&mut self, slot: u32, entry: *const Entry<K, V>) {
        if !self.is_in(slot, entry) {
            return;
        }
        self.order.promote(Slot(slot));
        self.counts.promotions += 1;
        if let Some(admission) = &mut self.admission {
            admission.used(slot, self.slots[slot].weight);
        }
    }

    /// Tells the order of the priority of an entry that the caller keeps from being freed, if it is
    /// still in and may be evicted.
    pub(crate) fn prioritize(&mut self, slot: u32, entry: *const Entry<K, V>, priority: Priority) {
        if self.is_in(slot, entry) && self.slots[slot].is_in_reach() {
            self.order.prioritize(Slot(slot), priority);
        }
    }

    /// Takes an entry out, from the order as well, and says what it took. The shard has that to
    /// spare then.
    pub(crate) fn take_out(
        &mut self,
        table: &TableOf<P>,
        slot: u32,
        cause: Cause,
        gone: &mut Gone<K, V>,
    ) -> Amount {
        let tenant = &self.slots[slot];
        // First, as the policy and the admission can be the user's: if they panic, the entry is
        // still in.
        if tenant.pinned {
        } else if cause != Cause::Evicted {
            self.order.remove(Slot(slot)); // what was evicted has left it
        } else if let Some(admission) = &mut self.admission {
            admission.evicted(slot, tenant.weight);
        }
        let tenant = self.slots.vacate(slot);
        self.frozen.left(&tenant);
        let index = self.growth.index_of(&tenant, table);
        index.remove(tenant.hash, tenant.lane, tenant.place);
        let room = self.room.left(tenant.weight);
        self.counts.note(cause);
        self.let_go(&tenant, cause, gone);
        room
    }

    /// An entry was taken out: the listener is to hear of it, or it waits in limbo.
    #[inline(always)]
    fn let_go(&mut self, tenant: &Tenant, cause: Cause, gone: &mut Gone<K, V>) {
        let Tenant { place, weight, .. } = *tenant;
        let retired = Retired { entry: self.slab.entry(place), place, weight };
        match &mut gone.to_tell {
            Some(to_tell) => to_tell.push((retired, cause)),
            None => self.limbo.push(retired),
        }
    }

    /// Has the order say which entry leaves. The order can be the user's, so memory safety must not
    /// depend on its answer.
    ///
    /// # Panics
    /// When the order names a slot without an entry that it may evict.
    #[inline(always)]
    fn choose_victim(&mut self, incoming: Option<&Access>) -> Option<Slot> {
        let victim = self.order.evict(incoming)?;
        if self.slots.in_reach(victim).is_some() { Some(victim) } else { wrong_victim(victim) }
    }

    /// Gives up room for another shard, as much as is wanted, and evicts one entry if it has less
    /// to spare. With `beyond` it gives up only what it has beyond its share. Nothing if it cannot.
    pub(crate) fn lend(
        &mut self,
        table: &TableOf<P>,
        wanted: Amount,
        beyond: bool,
        gone: &mut Gone<K, V>,
    ) -> Amount {
        let wanted = if beyond { wanted.min(self.room.beyond()) } else { wanted };
        if !self.room.lacks(wanted).is_nothing()
            && let Some(victim) = self.choose_victim(None)
        {
            self.take_out(table, victim.0, Cause::Evicted, gone);
        }
        self.room.lend(wanted)
    }

    /// Keeps an entry from being evicted, or no longer; false when that is so already.
    pub(crate) fn set_pinned(&mut self, slot: u32, hash: KeyHash, pinned: bool) -> bool {
        if self.slots[slot].pinned == pinned {
            return false;
        }
        let tenant = &mut self.slots[slot];
        self.frozen.melt(tenant); // it leaves the order, and comes back as one that is not frozen
        let access = hash.access(tenant.weight);
        self.slots.set_pinned(slot, pinned);
        if pinned {
            // out of the order: many pinned entries make no eviction slower
            self.order.remove(Slot(slot));
        } else {
            self.order.insert(Slot(slot), &access);
        }
        true
    }
}

#[cold]
#[inline(never)]
fn wrong_victim(slot: Slot) -> ! {
    panic!(
        "the policy evicted slot {}, which holds no entry in reach of `Eviction::evict`",
        slot.0
    );
}
