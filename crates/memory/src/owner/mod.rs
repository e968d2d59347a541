//! The owner's side of a shard, which one thread changes at a time: its entries, their policy
//! order, and victims.
//!
//! It is not the [owner of slots](floe_policy::owner) that simulations use. Entries share a budget
//! with other shards, may be pinned or frozen, and are published to readers without locks. So a hit
//! or an insertion through the general owner would execute more instructions. A test of `floe-lab`
//! (`simulate_is_cache`) drives both with the same requests and compares all victims.

use std::ops::Range;

use equivalent::Equivalent;
use floe_policy::{Access, Cursor, Eviction, Marks, Priority, Slot};

use self::slots::{IndexGrowth, Slots};
use crate::admission::ShardAdmission;
use crate::budget::{Amount, Budget, Room, Share};
use crate::entry::{Entry, Head};
use crate::frozen::index::FrozenIndex;
use crate::index::{Hash32, Index, KeyHash, Places, Renewals, Spot, Table, TableOf, told_weight};
use crate::limbo::Limbo;
use crate::renewal::Renewal;
use crate::retired::{Departures, Retired};
use crate::slab::Slab;
use crate::stats::{Cause, ShardCounts};
use crate::sync::Arc;

pub(crate) use self::insert::{move_more, shrink_index};
pub(crate) use self::slots::Tenant;
pub(crate) use crate::budget::Shape;

mod insert;
pub(crate) mod slots;

/// The owner's side of a shard. All methods are called under the shard's lock, with the shard's
/// present table.
///
/// Replacing a value writes the first two cache lines of this struct, including the lock, and no
/// others. Each further line would have to be fetched from the core that changed the shard before.
#[repr(C)]
pub(crate) struct Owner<K, V, P: Eviction> {
    pub(crate) limbo: Limbo,
    pub(crate) counts: ShardCounts,
    pub(crate) slab: Slab<Entry<K, V>>,
    pub(crate) slots: Slots,
    pub(crate) growth: IndexGrowth,
    /// The admission of new keys. Boxed, because most caches have none.
    pub(crate) admission: Option<Box<ShardAdmission>>,
    pub(crate) room: Room,
    pub(crate) order: P,
    pub(crate) frozen: FrozenEntries<K, V>,
    /// The capacity reported to the policy.
    capacity: u64,
    pub(crate) renewals: Renewals,
    /// Replaced tables. They are freed with the shard, as readers may use them until then.
    pub(crate) replaced_tables: Vec<*mut TableOf<P>>,
}

/// Returns a handle to a policy's marks for a table. It can be the user's, and panic.
fn marks_of_readers<P: Eviction>(order: &P) -> P::Marks {
    if P::BY_PLACE { order.marks().of_readers() } else { order.marks().clone() }
}

/// Returns the bytes of replaced tables, and of the marks and renewals that only they have.
pub(crate) fn replaced_bytes<K, V, P: Eviction>(owner: &Owner<K, V, P>) -> usize {
    let mut bytes = owner.replaced_tables.len() * size_of::<TableOf<P>>();
    let marks = marks_of_readers(&owner.order);
    let mut next = [marks.memory_bytes(), owner.renewals.memory_bytes()];
    for &table in owner.replaced_tables.iter().rev() {
        // SAFETY: tables live as long as the shard, and nobody changes them.
        let table = unsafe { &*table };
        let theirs = [table.marks.memory_bytes(), table.renewals.memory_bytes()];
        // What a table has in common with the next one is of the same size: it only grows.
        bytes += theirs
            .iter()
            .zip(&next)
            .filter(|(own, next)| own != next)
            .map(|(own, _)| own)
            .sum::<usize>();
        next = theirs;
    }
    bytes
}

impl<K, V, P: Eviction> Owner<K, V, P> {
    /// Creates an empty shard and its table.
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
        order.leave_tags_to_owner();
        order.expect(shape.told_first());
        order.reserve(slots.reserved());
        if P::BY_PLACE {
            order.reserve_places(0);
        }
        order.set_capacity(shape.capacity.max(1));
        let (index, places) = (growth.index(), Arc::clone(slab.places()));
        let (marks, renewals) = (marks_of_readers(&order), Renewals::none());
        let table = Table { index, places, old: None, marks, renewals: renewals.clone() };
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
            renewals,
            replaced_tables: Vec::new(),
        };
        (owner, table)
    }

    /// Returns the bytes of memory held, without the table.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.order.memory_bytes()
            + self.slab.memory_bytes()
            + self.slots.memory_bytes()
            + self.limbo.memory_bytes()
            + self.growth.kept_bytes()
            + self.renewals.memory_bytes()
            + replaced_bytes(self)
            + self.admission.as_ref().map_or(0, |admission| admission.memory_bytes())
    }

    /// Applies a change of the shard's share of the limits.
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

    /// Takes the entries of all slots and those in limbo, at the end of the cache.
    pub(crate) fn take_entries(&mut self, table: &TableOf<P>) -> Vec<*mut Entry<K, V>> {
        let waiting = self.limbo.take_all();
        let at = |retired: Retired| self.slab.entry(retired.place);
        let mut entries: Vec<_> = waiting.into_iter().map(at).collect();
        entries.extend(self.slots.used().filter_map(|slot| self.entry(table, slot)));
        self.slots.clear();
        entries
    }

    /// Promotes an entry after a hit, if it is still in the shard. The caller must keep it from
    /// being freed.
    pub(crate) fn promote(&mut self, table: &TableOf<P>, slot: u32, entry: *const Entry<K, V>) {
        if !self.is_in(table, slot, entry) {
            return;
        }
        self.order.promote(Slot(slot));
        self.counts.seldom.promotions += 1;
        if let Some(admission) = &mut self.admission {
            admission.used(slot, told_weight(self.slots.weight(slot)));
        }
    }

    /// Removes an entry, also from the policy order, and returns its size, which the shard then has
    /// to spare.
    pub(crate) fn take_out(
        &mut self,
        table: &TableOf<P>,
        slot: u32,
        cause: Cause,
        gone: &mut Gone,
    ) -> Amount {
        let (is_pinned, weight) = (self.slots[slot].is_pinned(), self.slots.weight(slot));
        // First, as the policy and the admission can be the user's: if they panic, the entry is
        // still in.
        if is_pinned {
        } else if cause != Cause::Evicted {
            self.order.remove(Slot(slot)); // what was evicted has left it
        } else if let Some(admission) = &mut self.admission {
            admission.evicted(slot, told_weight(weight));
        }
        let Position { index, spot, place } = self.position(table, slot);
        let tenant = self.slots.vacate(slot);
        self.frozen.left(&tenant, place);
        index.remove(spot);
        let room = self.room.left(weight);
        self.counts.note(cause);
        self.let_go(place, weight, cause, gone);
        room
    }

    /// Passes on a removed entry: to the listener if there is one, or else to limbo.
    #[inline(always)]
    fn let_go(&mut self, place: u32, weight: u64, cause: Cause, gone: &mut Gone) {
        let retired = Retired { place, weight: told_weight(weight) };
        match &mut gone.to_tell {
            Some(to_tell) => to_tell.push((retired, cause)),
            None => self.limbo.push(retired),
        }
    }

    /// Asks the policy for a victim, and returns it with its record. The policy can be the user's
    /// code, so memory safety must not depend on its answer.
    ///
    /// # Panics
    /// When the policy names a slot without an entry that it may evict.
    #[inline(always)]
    fn choose_victim(&mut self, incoming: Option<&Access>) -> Option<(Slot, Tenant)> {
        let victim = self.order.evict(incoming)?;
        let Some(&tenant) = self.slots.in_reach(victim) else { wrong_victim(victim) };
        self.order.departed({ tenant.hash }.0);
        Some((victim, tenant))
    }

    /// Gives up room for another shard, at most as much as is wanted, and returns it. Evicts one
    /// entry if the spare room is too small. With `beyond` it only gives up room beyond its share.
    pub(crate) fn lend(
        &mut self,
        table: &TableOf<P>,
        wanted: Amount,
        beyond: bool,
        gone: &mut Gone,
    ) -> Amount {
        let wanted = if beyond { wanted.min(self.room.beyond()) } else { wanted };
        if !self.room.lacks(wanted).is_nothing()
            && let Some((victim, _)) = self.choose_victim(None)
        {
            self.take_out(table, victim.0, Cause::Evicted, gone);
        }
        self.room.lend(wanted)
    }

    /// Pins or unpins an entry. Returns false if nothing changes. `priority` is that of an unpinned
    /// entry, as it is told to the policy.
    pub(crate) fn set_pinned(
        &mut self,
        table: &TableOf<P>,
        slot: u32,
        hash: KeyHash,
        pinned: bool,
        priority: Option<Priority>,
    ) -> bool {
        if self.slots[slot].is_pinned() == pinned {
            return false;
        }
        // It leaves the order, and comes back as one that is not frozen.
        let place = self.position(table, slot).place;
        self.frozen.melt(&mut self.slots[slot], place);
        let access = hash.access(self.slots.weight(slot));
        self.slots.set_pinned(slot, pinned);
        if pinned {
            // out of the order: many pinned entries make no eviction slower
            self.order.remove(Slot(slot));
        } else {
            self.lies_at(slot, place, false);
            self.order.insert(Slot(slot), &access);
            self.prioritize(slot, priority);
        }
        true
    }

    /// Returns the entry of a key.
    pub(crate) fn find<Q>(&self, table: &TableOf<P>, hash: Hash32, key: &Q) -> Option<&Entry<K, V>>
    where
        Q: Equivalent<K> + ?Sized,
    {
        let found = self.look_up(table, hash, key)?;
        // SAFETY: places in the index are those of live entries, and entries are taken out under
        // this lock only.
        Some(unsafe { &*self.slab.entry(found.place) })
    }

    /// Returns the position of a key's entry.
    #[inline(always)]
    fn look_up<'t, Q>(&self, table: &'t TableOf<P>, hash: Hash32, key: &Q) -> Option<Position<'t>>
    where
        Q: Equivalent<K> + ?Sized,
    {
        // SAFETY: as in `find`.
        let is_key = |place| key.equivalent(unsafe { &(*self.slab.entry(place)).key });
        if table.old.is_some() {
            return look_up_in_both(table, hash, &is_key);
        }
        let (spot, place) = table.index.find(hash, is_key)?;
        Some(Position { index: &table.index, spot, place })
    }

    /// Returns the position of the entry in a slot that is in use.
    #[inline(always)]
    fn position<'t>(&self, table: &'t TableOf<P>, slot: u32) -> Position<'t> {
        let tenant = &self.slots[slot];
        let index = self.growth.index_of(tenant, table);
        // SAFETY: as in `find`.
        let is_it = |place| unsafe { &*self.slab.entry(place) }.slot() == slot;
        let (spot, place) = index.spot(tenant.hash, tenant.lane(), is_it);
        Position { index, spot, place }
    }

    /// Returns the entry in a slot, if there is one. For walks over all slots.
    pub(crate) fn entry(&self, table: &TableOf<P>, slot: u32) -> Option<*mut Entry<K, V>> {
        self.slots.get(slot)?;
        Some(self.slab.entry(self.position(table, slot).place))
    }

    /// Returns true if this entry is in the slot, which may be empty. The caller must keep the
    /// entry from being freed.
    fn is_in(&self, table: &TableOf<P>, slot: u32, entry: *const Entry<K, V>) -> bool {
        self.entry(table, slot).is_some_and(|there| std::ptr::eq(there, entry))
    }

    /// Inserts the frozen entries of some slots into the frozen index.
    pub(crate) fn index_frozen(&mut self, table: &TableOf<P>, slots: Range<u32>) {
        let frozen = slots.filter(|&slot| self.slots[slot].is_frozen());
        let place = |slot| (self.slots[slot].hash, self.position(table, slot).place);
        self.frozen.fill_index(frozen.map(place));
    }

    /// Freezes the entries most worth keeping until `goal` are frozen, as far as one batch of the
    /// ranking reaches. Inserts them into the frozen index if there is one. Returns the position at
    /// which the next call continues.
    pub(crate) fn freeze_best(&mut self, table: &TableOf<P>, goal: usize, from: Cursor) -> Cursor {
        let mut slots = Vec::with_capacity(Cursor::BATCH);
        let next = self.order.rank(from, &mut slots);
        // an order that does not get on ends here
        let next = if next == from { Cursor::END } else { next };
        // The order can be the user's and name anything.
        slots.retain(|&slot| {
            if self.slots.in_reach(slot).is_none() {
                return false;
            }
            let place = self.position(table, slot.0).place;
            let renewal = || Renewal::of_bits(self.renewals.bits(slot.0));
            // Each hit of an entry that goes idle writes to it.
            let goes_idle = self.frozen.head(place).is_set() && renewal().goes_idle();
            !goes_idle && self.frozen.reaches(place)
        });
        slots.truncate(goal.saturating_sub(self.frozen.count()));
        self.order.freeze(&slots);
        for slot in slots {
            let place = self.position(table, slot.0).place;
            self.frozen.freeze(&mut self.slots[slot.0], place);
        }
        next
    }

    /// Clears the frozen marks of entries in some slots, so that hits on them count again. They
    /// cannot be evicted until the policy order [thaws](Self::thaw_some).
    pub(crate) fn unfreeze(&mut self, table: &TableOf<P>, slots: Range<u32>) {
        for slot in slots {
            if self.slots[slot].is_frozen() {
                let place = self.position(table, slot).place;
                self.frozen.melt(&mut self.slots[slot], place);
            }
        }
    }

    /// Puts some frozen entries back into the policy order. Returns true if all are back.
    pub(crate) fn thaw_some(&mut self) -> bool {
        self.order.thaw_some(Cursor::BATCH)
    }
}

/// Returns up to `most` slots, hottest first, and the hits that the policy remembers of each:
/// frozen ones, which count as most hits, and then those that may be evicted.
pub(crate) fn hottest<K, V, P: Eviction>(owner: &Owner<K, V, P>, most: usize) -> Vec<(u32, u32)> {
    let Owner { slots, order, frozen, .. } = owner;
    let (mut hottest, mut ranked) = (Vec::new(), Vec::new());
    if frozen.count() > 0 {
        let frozen_slots = (0..slots.len()).filter(|&slot| slots[slot].is_frozen());
        hottest.extend(frozen_slots.map(|slot| (slot, u32::MAX)).take(most));
    }
    let mut at = Cursor::START;
    while hottest.len() < most && at != Cursor::END {
        let next = order.rank(at, &mut ranked);
        // An order that does not get on ends here: it can be the user's, and name anything.
        at = if next == at { Cursor::END } else { next };
        let in_reach = ranked.drain(..).filter(|&slot| slots.in_reach(slot).is_some());
        let with_hits = in_reach.map(|slot| (slot.0, order.remembered_hits(slot)));
        hottest.extend(with_hits.take(most - hottest.len()));
    }
    hottest
}

#[cold]
#[inline(never)]
fn wrong_victim(slot: Slot) -> ! {
    panic!(
        "the policy evicted slot {}, which holds no entry in reach of `Eviction::evict`",
        slot.0
    );
}

/// Entries removed by an operation, for which the listener is still to be called. Without a
/// listener, removed entries go to limbo at once.
#[derive(Debug)]
pub(crate) struct Gone {
    // Boxed for the sake of caches without a listener: it is handed around on every insertion.
    to_tell: Option<Box<Departures>>,
}

impl Gone {
    pub(crate) fn new(has_listener: bool) -> Self {
        Self { to_tell: has_listener.then(Box::default) }
    }

    /// Returns true if there is a listener.
    #[inline(always)]
    pub(crate) fn has_listener(&self) -> bool {
        self.to_tell.is_some()
    }

    /// Returns true if the listener need not be called.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.to_tell.as_ref().is_none_or(|to_tell| to_tell.is_empty())
    }

    /// Takes the entries for which the listener is to be called.
    pub(crate) fn take_all(&mut self) -> Departures {
        self.to_tell.take().map(|to_tell| *to_tell).unwrap_or_default()
    }
}

/// The position of an entry in an index. It is valid until the entry leaves or the index is
/// replaced.
#[derive(Debug, Clone, Copy)]
struct Position<'t> {
    index: &'t Index,
    spot: Spot,
    /// Place of the entry in memory.
    place: u32,
}

/// Looks a key up in the old and the new index while keys are being moved.
#[cold]
#[inline(never)]
fn look_up_in_both<'t, M>(
    table: &'t Table<M>,
    hash: Hash32,
    is_key: &impl Fn(u32) -> bool,
) -> Option<Position<'t>> {
    table.indexes().find_map(|index| {
        let (spot, place) = index.find(hash, is_key)?;
        Some(Position { index, spot, place })
    })
}

/// The frozen entries of a shard.
///
/// Every change is made under the shard's lock, so an entry that is present stays so meanwhile.
#[derive(Debug)]
pub(crate) struct FrozenEntries<K, V> {
    count: usize,
    /// The addresses of entries.
    places: Arc<Places>,
    /// The frozen index that has, or will have, entries of this shard.
    index: Option<Arc<FrozenIndex<K, V>>>,
}

impl<K, V> FrozenEntries<K, V> {
    fn none(places: &Arc<Places>) -> Self {
        Self { count: 0, places: Arc::clone(places), index: None }
    }

    fn address(&self, place: u32) -> usize {
        self.places.address::<Entry<K, V>>(place)
    }

    /// Returns the head of an entry that is in the shard, or was just created.
    fn head(&self, place: u32) -> &Head {
        let entry = std::ptr::with_exposed_provenance::<Entry<K, V>>(self.address(place));
        // SAFETY: entries are taken out under the shard's lock only, and a new one is not shared.
        unsafe { &(*entry).head }
    }

    /// Returns the number of frozen entries.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Sets the index into which frozen entries are inserted from now on; `None` for no index.
    pub(crate) fn set_index(&mut self, index: Option<Arc<FrozenIndex<K, V>>>) {
        self.index = index;
    }

    /// Inserts frozen entries, given by hash and place, into the index.
    fn fill_index(&self, entries: impl Iterator<Item = (Hash32, u32)>) {
        let index = self.index.as_ref().expect("set before");
        for (hash, place) in entries {
            if index.reaches(self.address(place)) {
                index.insert(hash, self.address(place));
            }
        }
    }

    /// Returns true if the frozen index, if there is one, can have an entry of the shard.
    fn reaches(&self, place: u32) -> bool {
        self.index.as_deref().is_none_or(|index| index.reaches(self.address(place)))
    }

    /// Freezes an entry, and inserts it into the index if there is one.
    fn freeze(&mut self, tenant: &mut Tenant, place: u32) {
        if tenant.is_frozen() {
            return; // named twice, and must not be in the index twice
        }
        tenant.set_frozen(true);
        self.count += 1;
        self.head(place).set_frozen(true);
        if let Some(index) = &self.index {
            index.insert(tenant.hash, self.address(place));
        }
    }

    /// Thaws an entry, except for its place in the policy order, which the caller restores.
    fn melt(&mut self, tenant: &mut Tenant, place: u32) {
        self.left(tenant, place);
        if tenant.is_frozen() {
            tenant.set_frozen(false);
            self.head(place).set_frozen(false);
        }
    }

    /// Records the removal of an entry, frozen or not: no later lookup finds it by the frozen
    /// index.
    #[inline(always)]
    fn left(&mut self, tenant: &Tenant, place: u32) {
        if tenant.is_frozen() {
            self.left_frozen(tenant.hash, place);
        }
    }

    #[cold]
    fn left_frozen(&mut self, hash: Hash32, place: u32) {
        self.count -= 1;
        if let Some(index) = &self.index {
            index.take_out(hash, self.address(place));
        }
    }

    /// Replaces a frozen entry by a new entry of the same key, which is not published yet, and
    /// freezes the new one. `replace` updates the shard's index.
    fn succeed(&self, hash: Hash32, from: u32, to: u32, replace: impl FnOnce()) {
        self.head(to).set_frozen(true);
        match &self.index {
            Some(index) => index.replace(hash, self.address(from), self.address(to), replace),
            None => replace(),
        }
    }
}
