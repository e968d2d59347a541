//! The side of a shard that one thread changes at a time: its entries, their order, and victims.
//!
//! It is not the [owner of slots](floe_policy::owner) that simulations run. Entries share a budget
//! with other shards, may be pinned or frozen, and are published to readers that take no lock, so
//! a hit or an insertion through the general owner would execute more instructions. A test of
//! `floe-lab` (`simulate_is_cache`) drives both with the same requests and compares all victims.

mod freezing;
mod gone;
mod growth;
mod shape;
mod tenant;

use std::ops::Range;

use floe_policy::{Access, Eviction, Slot};

pub(crate) use self::gone::Gone;
pub(crate) use self::shape::Shape;
pub(crate) use self::tenant::Tenant;
use crate::admission::ShardAdmission;
use crate::budget::{Amount, Budget, Share};
use crate::cause::Cause;
use crate::entry::Entry;
use crate::frozen::index::FrozenIndex;
use crate::hash::KeyHash;
use crate::index::{Hash32, Index};
use crate::limbo::{Batch, Limbo, Retired};
use crate::slab::Slab;
use crate::stats::ShardCounts;
use crate::sync::Arc;
use crate::table::Table;

/// Keys that an index has room for at first.
const KEYS_FIRST: usize = 1024;
/// Slots whose keys an insertion moves while the index grows.
pub(crate) const MOVED_AT_ONCE: usize = 16;

/// Holds what a shard frees at once.
pub(crate) type BatchOf<K, V, P> = Batch<Entry<K, V>, TableOf<P>>;

/// The table of a shard ordered by a policy.
pub(crate) type TableOf<P> = Table<<P as Eviction>::Marks>;

/// The owner's side of a shard. All methods are called under the shard's lock, with the shard's
/// present table.
pub(crate) struct Owner<K, V, P: Eviction> {
    pub(crate) order: P,
    pub(crate) tenants: Vec<Tenant<K, V>>,
    pub(crate) vacant: Vec<u32>,
    /// Slots that the order has room for.
    pub(crate) reserved: usize,
    /// Slots that it is to have room for, if that is known.
    slots: Option<usize>,
    /// Keys that the index has room for: it grows with what is in, as every line that it is larger
    /// is one more to miss.
    pub(crate) keys_max: usize,
    /// Keys are being moved from an old index to a new one. Changes with each new one.
    pub(crate) era: bool,
    pub(crate) is_moving: bool,
    /// Slots before this have been moved.
    pub(crate) moved: usize,
    pub(crate) slab: Slab<Entry<K, V>>,
    /// Tells what the entries take.
    pub(crate) held: Amount,
    /// Tells what the shard may fill besides: with `held`, its room. See `budget`.
    pub(crate) spare: Amount,
    pub(crate) share: Share,
    /// Tells what the policy was told that the shard holds.
    pub(crate) capacity: u64,
    pub(crate) pinned: usize,
    pub(crate) frozen: usize,
    /// The frozen index that has, or is to have, entries of this shard.
    pub(crate) frozen_index: Option<Arc<FrozenIndex<K, V>>>,
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
        let reserved = shape.slots_first();
        if let Some(admission) = &mut admission {
            admission.reserve(reserved, shape.capacity);
        }
        order.reserve(reserved);
        order.set_capacity(shape.capacity.max(1));
        // So that it is as many as slots after some doublings: see `grow`.
        let keys_max = reserved.div_ceil(reserved.div_ceil(KEYS_FIRST).next_power_of_two());
        let table =
            Table { index: Index::with_room(keys_max), old: None, marks: order.marks().clone() };
        let owner = Self {
            order,
            tenants: Vec::new(),
            vacant: Vec::new(),
            reserved,
            slots: shape.slots,
            keys_max,
            era: false,
            is_moving: false,
            moved: 0,
            slab,
            held: Amount::default(),
            spare: shape.unlimited,
            share,
            capacity: shape.capacity,
            pinned: 0,
            frozen: 0,
            frozen_index: None,
            limbo: Limbo::new(shape.batch, shape.batch_weight),
            counts: ShardCounts::default(),
            admission,
        };
        (owner, table)
    }

    /// Returns what is in the shard.
    pub(crate) fn held(&self) -> Amount {
        self.held
    }

    /// Returns how many of its entries are pinned.
    pub(crate) fn pinned(&self) -> usize {
        self.pinned
    }

    /// Slots that are or were in use.
    pub(crate) fn slots(&self) -> u32 {
        self.tenants.len() as u32
    }

    /// Bytes of all but the table.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.order.memory_bytes()
            + self.slab.memory_bytes()
            + self.tenants.capacity() * size_of::<Tenant<K, V>>()
            + self.vacant.capacity() * size_of::<u32>()
            + self.limbo.len() * size_of::<Retired<Entry<K, V>>>()
            + self.admission.as_ref().map_or(0, |admission| admission.memory_bytes())
    }

    /// The shard's share of the limits has changed. Spare room goes back, as the limits may be
    /// lower.
    pub(crate) fn reshape(&mut self, budget: &Budget, shape: Shape) {
        self.order.set_capacity(shape.capacity.max(1));
        (self.capacity, self.slots) = (shape.capacity, shape.slots);
        let held = self.tenants.iter().filter(|tenant| tenant.is_some());
        self.share
            .reshape(budget.share_of(shape.shards), held.map(|tenant| i64::from(tenant.weight)));
        let kept = shape.unlimited.min(self.spare);
        let mut given = self.spare;
        given -= kept;
        self.release(budget, given);
        if let Some(admission) = &mut self.admission {
            admission.reserve(self.reserved, shape.capacity);
        }
        self.limbo.set_batch(shape.batch, shape.batch_weight);
    }

    /// The entry of a key.
    pub(crate) fn find<Q>(&self, table: &TableOf<P>, hash: Hash32, key: &Q) -> Option<&Entry<K, V>>
    where
        K: std::borrow::Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let entry = |address| std::ptr::with_exposed_provenance::<Entry<K, V>>(address);
        // SAFETY: addresses in the index are those of live entries, and entries are taken out under
        // this lock only.
        let is_key = |address| unsafe { &*entry(address) }.key.borrow() == key;
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
        is_key: &impl Fn(usize) -> bool,
    ) -> Option<usize> {
        table.indexes().find_map(|index| index.find(hash, is_key))
    }

    /// Returns the entry in a slot, for walks over all of them.
    pub(crate) fn tenant(&self, slot: u32) -> Option<*mut Entry<K, V>> {
        Some(self.tenants.get(slot as usize)?.entry).filter(|entry| !entry.is_null())
    }

    /// The entries of all slots, for the end.
    pub(crate) fn tenants(&self) -> impl Iterator<Item = *mut Entry<K, V>> + '_ {
        self.tenants.iter().filter(|tenant| tenant.is_some()).map(|tenant| tenant.entry)
    }

    /// The entries of all slots and those that wait, for the end.
    pub(crate) fn take_entries(&mut self) -> Vec<*mut Entry<K, V>> {
        let (waiting, tables) = self.limbo.take_all();
        tables.into_iter().for_each(|table| self.limbo.push_table(table));
        let mut entries: Vec<_> = waiting.into_iter().map(|retired| retired.entry).collect();
        entries.extend(self.tenants());
        self.tenants.clear();
        entries
    }

    /// Pays for a hit on an entry that the caller keeps from being freed, if it is still in.
    pub(crate) fn promote(&mut self, slot: u32, entry: *const Entry<K, V>) {
        let Some(tenant) =
            self.tenants.get(slot as usize).filter(|tenant| std::ptr::eq(tenant.entry, entry))
        else {
            return;
        };
        self.order.promote(Slot(slot));
        self.counts.promotions += 1;
        if let Some(admission) = &mut self.admission {
            admission.used(slot, tenant.weight);
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
        let tenant = &self.tenants[slot as usize];
        // First, as the policy and the admission can be the user's: if they panic, the entry is
        // still in.
        if tenant.pinned {
        } else if cause != Cause::Evicted {
            self.order.remove(Slot(slot)); // what was evicted has left it
        } else if let Some(admission) = &mut self.admission {
            admission.evicted(slot, tenant.weight);
        }
        let tenant = std::mem::replace(&mut self.tenants[slot as usize], Tenant::NONE);
        self.pinned -= usize::from(tenant.pinned);
        if tenant.frozen {
            self.frozen -= 1;
            if let Some(index) = &self.frozen_index {
                index.take_out(tenant.hash, tenant.entry.expose_provenance());
            }
        }
        table.index_of(tenant.era != self.era).remove(tenant.hash, tenant.lane);
        self.vacant.push(slot);
        let room = Amount::of(tenant.weight);
        self.held -= room;
        self.spare += room;
        self.share.left(room.weight);
        self.counts.note(cause);
        self.let_go(tenant.retire(), cause, gone);
        room
    }

    #[inline(always)]
    pub(crate) fn let_go(
        &mut self,
        retired: Retired<Entry<K, V>>,
        cause: Cause,
        gone: &mut Gone<K, V>,
    ) {
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
    pub(crate) fn choose_victim(&mut self, incoming: Option<&Access>) -> Option<Slot> {
        let victim = self.order.evict(incoming)?;
        if self.is_in_reach(victim) { Some(victim) } else { wrong_victim(victim) }
    }

    /// Returns whether the order may evict or freeze the entry in a slot, and there is one.
    #[inline(always)]
    pub(crate) fn is_in_reach(&self, slot: Slot) -> bool {
        self.tenants.get(slot.index()).is_some_and(Tenant::is_in_reach)
    }

    /// Keeps an entry from being evicted, or no longer; false when that is so already.
    pub(crate) fn set_pinned(&mut self, slot: u32, hash: KeyHash, pinned: bool) -> bool {
        if self.tenants[slot as usize].pinned == pinned {
            return false;
        }
        self.melt(slot); // it leaves the order, and comes back as one that is not frozen
        let tenant = &mut self.tenants[slot as usize];
        tenant.pinned = pinned;
        if pinned {
            self.pinned += 1;
            // out of the order: many pinned entries make no eviction slower
            self.order.remove(Slot(slot));
        } else {
            self.pinned -= 1;
            let access = hash.access(tenant.weight);
            self.order.insert(Slot(slot), &access);
        }
        true
    }

    /// Where entries lie.
    pub(crate) fn memory(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.slab.memory()
    }

    /// Memory in which nothing lives any more.
    pub(crate) fn reuse(&mut self, entries: impl Iterator<Item = *mut Entry<K, V>>) {
        self.slab.give_back(entries);
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
