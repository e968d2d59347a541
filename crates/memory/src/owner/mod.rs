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
mod standing;
mod tenant;
mod usual;

use floe_policy::{Access, Eviction, Priority, Slot};

use self::frozen::FrozenEntries;
pub(crate) use self::gone::Gone;
use self::index_growth::IndexGrowth;
use self::room::Room;
pub(crate) use self::shape::Shape;
use self::slots::Slots;
use self::standing::Standing;
pub(crate) use self::tenant::Tenant;
use crate::admission::ShardAdmission;
use crate::budget::{Amount, Budget, Share};
use crate::cause::Cause;
use crate::entry::Entry;
use crate::hash::KeyHash;
use crate::limbo::Limbo;
use crate::retired::Retired;
use crate::slab::Slab;
use crate::stats::ShardCounts;
use crate::sync::Arc;
use crate::table::Table;

/// The table of a shard ordered by a policy.
pub(crate) type TableOf<P> = Table<<P as Eviction>::Marks>;

/// The owner's side of a shard. All methods are called under the shard's lock, with the shard's
/// present table.
///
/// Replacing a value writes the first two cache lines of this, the lock's included, and no other:
/// each is one more to fetch from the core that has changed the shard before.
#[repr(C)]
pub(crate) struct Owner<K, V, P: Eviction> {
    pub(crate) limbo: Limbo,
    pub(crate) counts: ShardCounts,
    pub(crate) slab: Slab<Entry<K, V>>,
    pub(crate) slots: Slots,
    pub(crate) growth: IndexGrowth,
    /// The admission, asked about candidates. Apart: most caches have none.
    pub(crate) admission: Option<Box<ShardAdmission>>,
    pub(crate) room: Room,
    order: P,
    pub(crate) frozen: FrozenEntries<K, V>,
    /// Tells what the policy was told that the shard holds.
    capacity: u64,
    /// Freed with the shard: readers may look at them until then.
    pub(crate) replaced_tables: Vec<*mut TableOf<P>>,
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
            admission.reserve(shape.told_first(), shape.capacity);
        }
        order.expect(shape.told_first());
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
            replaced_tables: Vec::new(),
        };
        (owner, table)
    }

    /// Bytes of all but the table.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.order.memory_bytes()
            + self.slab.memory_bytes()
            + self.slots.memory_bytes()
            + self.limbo.memory_bytes()
            + self.growth.kept_bytes()
            + self.replaced_tables.len() * size_of::<TableOf<P>>()
            + self.admission.as_ref().map_or(0, |admission| admission.memory_bytes())
    }

    /// The shard's share of the limits has changed.
    pub(crate) fn reshape(&mut self, budget: &Budget, shape: Shape) {
        self.order.set_capacity(shape.capacity.max(1));
        self.capacity = shape.capacity;
        self.slots.set_limit(shape.slots);
        self.room.reshape(budget, &shape, self.slots.weights_in());
        if let Some(admission) = &mut self.admission {
            admission.reserve(self.slots.reserved(), shape.capacity);
        }
        self.limbo.set_batch(shape.batch, shape.batch_weight);
    }

    /// The entries of all slots and those that wait, for the end.
    pub(crate) fn take_entries(&mut self, table: &TableOf<P>) -> Vec<*mut Entry<K, V>> {
        let waiting = self.limbo.take_all();
        let at = |retired: Retired| self.slab.entry(retired.place);
        let mut entries: Vec<_> = waiting.into_iter().map(at).collect();
        entries.extend(self.slots.used().filter_map(|slot| self.entry(table, slot)));
        self.slots.clear();
        entries
    }

    /// Pays for a hit on an entry that the caller keeps from being freed, if it is still in.
    pub(crate) fn promote(&mut self, table: &TableOf<P>, slot: u32, entry: *const Entry<K, V>) {
        if !self.is_in(table, slot, entry) {
            return;
        }
        self.order.promote(Slot(slot));
        self.counts.seldom.promotions += 1;
        if let Some(admission) = &mut self.admission {
            admission.used(slot, self.slots.weight(slot));
        }
    }

    /// Tells the order of the priority of an entry that the caller keeps from being freed, if it is
    /// still in and may be evicted.
    pub(crate) fn prioritize(
        &mut self,
        table: &TableOf<P>,
        slot: u32,
        entry: *const Entry<K, V>,
        priority: Priority,
    ) {
        if self.is_in(table, slot, entry) && self.slots[slot].is_in_reach() {
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
        gone: &mut Gone,
    ) -> Amount {
        let (is_pinned, weight) = (self.slots[slot].pinned, self.slots.weight(slot));
        // First, as the policy and the admission can be the user's: if they panic, the entry is
        // still in.
        if is_pinned {
        } else if cause != Cause::Evicted {
            self.order.remove(Slot(slot)); // what was evicted has left it
        } else if let Some(admission) = &mut self.admission {
            admission.evicted(slot, weight);
        }
        let Standing { index, spot, place } = self.standing(table, slot);
        let tenant = self.slots.vacate(slot);
        self.frozen.left(&tenant, place);
        index.remove(tenant.hash, spot);
        let room = self.room.left(weight);
        self.counts.note(cause);
        self.let_go(place, weight, cause, gone);
        room
    }

    /// An entry was taken out: the listener is to hear of it, or it waits in limbo.
    #[inline(always)]
    fn let_go(&mut self, place: u32, weight: u32, cause: Cause, gone: &mut Gone) {
        let retired = Retired { place, weight };
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
        gone: &mut Gone,
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
    pub(crate) fn set_pinned(
        &mut self,
        table: &TableOf<P>,
        slot: u32,
        hash: KeyHash,
        pinned: bool,
    ) -> bool {
        if self.slots[slot].pinned == pinned {
            return false;
        }
        // It leaves the order, and comes back as one that is not frozen.
        let place = self.standing(table, slot).place;
        self.frozen.melt(&mut self.slots[slot], place);
        let access = hash.access(self.slots.weight(slot));
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
