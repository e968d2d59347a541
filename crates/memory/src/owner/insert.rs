//! Insertion into a shard: over the entry with the same key, into the slot of an evicted entry, or
//! into a free slot. The fast path is short; the rest is in separate functions.

use floe_policy::{Access, Eviction, Priority, Slot};

use super::{Gone, Owner, Position, Tenant, marks_of_readers};
use crate::budget::{Amount, Budget};
use crate::clock::{Clock, Moment};
use crate::entry::{Candidate, Entry, Head, Unplaced};
use crate::index::{Index, Lane, Table, told_weight};
use crate::renewal::Renewal;
use crate::retired::Retired;
use crate::shard::{SLOTS_PER_LOCK, Shard};
use crate::slab::Slab;
use crate::stats::Cause;
use crate::sync::{Arc, Ordering};

impl<K, V, P: Eviction> Owner<K, V, P> {
    /// Inserts an entry, and replaces the one with the same key, if any. Key and value can be
    /// large, so they leave `candidate` only when their place is found.
    ///
    /// # Errors
    /// Returns the room that is lacking, if the shard cannot make it by itself, or need not because
    /// of `asks_others`. The shard has then dropped its entry of that key.
    #[inline(always)]
    pub(crate) fn insert(
        &mut self,
        shard: &Shard<K, V, P>,
        budget: &Budget,
        clock: &Clock,
        candidate: &mut Candidate<'_, K, V>,
        asks_others: bool,
        gone: &mut Gone,
    ) -> Result<(), Amount>
    where
        K: Eq,
    {
        self.make_memory(shard);
        if candidate.expiry.renewal != Renewal::NONE {
            make_renewals(self, shard);
        }
        let (hash, need) = (candidate.unplaced.hash.in_shard(), Amount::of(candidate.weight));
        let access = candidate.unplaced.hash.access(candidate.weight);
        match self.look_up(shard.table(), hash, candidate.unplaced.key()) {
            Some(before) => {
                // SAFETY: places in the index are those of live entries, and entries are taken out
                // under this lock only.
                let state = unsafe { &*self.slab.entry(before.place) }.head.state();
                let slot = state.slot();
                let is_as_usual = state.is_plain()
                    && !self.slots[slot].is_pinned()
                    && self.slots.weight(slot) == candidate.weight
                    && !(candidate.yields || candidate.pinned);
                if is_as_usual {
                    self.replace_plainly(slot, before, candidate, &access, gone);
                    Ok(())
                } else {
                    self.replace(shard, budget, clock, slot, candidate, asks_others, gone)
                }
            }
            None if self.admission.is_some() => {
                self.offer(shard, budget, candidate, asks_others, gone)
            }
            None if self.room.meets(budget, need) && self.room.take(budget, need).is_some() => {
                self.insert_new(shard, &access, candidate);
                Ok(())
            }
            None => {
                let here = self.room.is_made_here(budget, need, need, asks_others);
                let Some((victim, _)) = here.then(|| self.choose_victim(Some(&access))).flatten()
                else {
                    return Err(self.room.lacks(need));
                };
                if self.slots.weight(victim.0) == candidate.weight {
                    self.exchange(shard, victim, candidate, &access, gone);
                    return Ok(());
                }
                self.take_out(shard.table(), victim.0, Cause::Evicted, gone);
                self.make_room(shard, budget, None, candidate, asks_others, gone)
            }
        }
    }

    /// Inserts an absent key into a shard with an admission. A rejected candidate is dropped, or
    /// passed to the callers that wait for it.
    #[cold] // for those without one: nothing of it weighs on their way
    #[inline(never)]
    fn offer(
        &mut self,
        shard: &Shard<K, V, P>,
        budget: &Budget,
        candidate: &mut Candidate<'_, K, V>,
        asks_others: bool,
        gone: &mut Gone,
    ) -> Result<(), Amount> {
        let need = Amount::of(candidate.weight);
        let taken = self.room.take(budget, need);
        if !candidate.is_admitted && !candidate.pinned && budget.could_hold(need) {
            let access = candidate.unplaced.hash.access(candidate.weight);
            let fits = taken.is_some();
            // The victim of another shard is not known before it leaves.
            let leaves_elsewhere = asks_others && self.room.is_owed(budget, need, need);
            let victim =
                if fits || leaves_elsewhere { None } else { self.order.victim(Some(&access)) };
            // the order can be the user's
            let victim = victim.filter(|&victim| self.slots.in_reach(victim).is_some());
            let admission = self.admission.as_mut().expect("the caller has seen it");
            admission.look_back(&self.counts, self.room.held());
            candidate.is_admitted = admission.admits(&access, fits, victim);
            if !candidate.is_admitted {
                self.room.release(budget, taken.unwrap_or_default());
                if candidate.guard.is_some() || gone.has_listener() {
                    self.pass_through(shard, candidate, Cause::Bypassed, gone);
                }
                return Ok(());
            }
        }
        self.make_room(shard, budget, None, candidate, asks_others, gone)
    }

    /// Replaces the entry of a key in the general case: weight, expiry, pin and frozen mark may
    /// change.
    #[inline(never)]
    #[expect(clippy::too_many_arguments)] // what `insert` has
    fn replace(
        &mut self,
        shard: &Shard<K, V, P>,
        budget: &Budget,
        clock: &Clock,
        slot: u32,
        candidate: &mut Candidate<'_, K, V>,
        asks_others: bool,
        gone: &mut Gone,
    ) -> Result<(), Amount> {
        let is_pinned = self.slots[slot].is_pinned();
        let place = self.position(shard.table(), slot).place;
        // SAFETY: it is in, and entries are taken out under this lock only.
        if unsafe { &*self.slab.entry(place) }.head.is_over(clock) {
            let room = self.take_out(shard.table(), slot, Cause::Expired, gone);
            self.room.release(budget, room);
            if self.admission.is_some() {
                return self.offer(shard, budget, candidate, asks_others, gone);
            }
        } else if candidate.yields {
            // A value inserted during the load is newer.
            self.pass_through(shard, candidate, Cause::Rejected, gone);
            return Ok(());
        } else if is_pinned && budget.is_exceeded() {
            // Beyond the limits nothing comes in; only what was pinned when they were lowered may
            // stay.
            candidate.is_admitted = true;
            let room = self.take_out(shard.table(), slot, Cause::Replaced, gone);
            self.room.release(budget, room);
        } else {
            candidate.is_admitted = true;
            candidate.pinned |= candidate.refreshes && is_pinned;
            return self.make_room(shard, budget, Some(slot), candidate, asks_others, gone);
        }
        self.make_room(shard, budget, None, candidate, asks_others, gone)
    }

    /// Makes room for an insertion. It uses the spare room and that of the entry to be replaced;
    /// the rest is taken from the budget or evicted.
    #[inline(never)]
    fn make_room(
        &mut self,
        shard: &Shard<K, V, P>,
        budget: &Budget,
        mut replaced: Option<u32>,
        candidate: &mut Candidate<'_, K, V>,
        asks_others: bool,
        gone: &mut Gone,
    ) -> Result<(), Amount> {
        let need = Amount::of(candidate.weight);
        let access = candidate.unplaced.hash.access(candidate.weight);
        loop {
            let mut more = need;
            if let Some(slot) = replaced {
                more -= Amount::of(self.slots.weight(slot));
            }
            if self.room.take(budget, more).is_some() {
                break;
            }
            let here = self.room.is_made_here(budget, need, more, asks_others);
            let Some((victim, _)) = here.then(|| self.choose_victim(Some(&access))).flatten()
            else {
                if let Some(slot) = replaced {
                    self.take_out(shard.table(), slot, Cause::Replaced, gone);
                }
                self.room.give_back(budget);
                return Err(self.room.lacks(need));
            };
            if replaced == Some(victim.0) {
                // Its room is counted already, and its successor comes in as any other.
                self.take_out(shard.table(), victim.0, Cause::Replaced, gone);
                replaced = None;
            } else {
                self.take_out(shard.table(), victim.0, Cause::Evicted, gone);
            }
        }
        match replaced {
            Some(slot) => {
                let lighter = Amount::of(self.slots.weight(slot)).weight - need.weight;
                self.succeed(shard, slot, candidate, &access, gone);
                if lighter > 0 {
                    self.room.release(budget, Amount { entries: 0, weight: lighter });
                }
            }
            None => {
                let slot = self.insert_new(shard, &access, candidate);
                if let Some(admission) = &mut self.admission {
                    admission.came_in(slot, &access);
                }
            }
        }
        self.room.give_back(budget);
        Ok(())
    }

    /// Inserts an entry into a free slot, and returns the slot.
    #[inline(never)]
    fn insert_new(
        &mut self,
        shard: &Shard<K, V, P>,
        access: &Access,
        candidate: &mut Candidate<'_, K, V>,
    ) -> u32 {
        if self.slots.are_all_in_use() {
            self.grow(shard);
        }
        let slot = self.slots.claim();
        if self.room.held().entries as usize == self.growth.keys_max() {
            self.begin_moving(shard);
        }
        let place = self.place(slot, candidate);
        let lane = shard.table().index.insert(candidate.unplaced.hash.in_shard(), place);
        let (weight, pinned) = (candidate.weight, candidate.pinned);
        self.room.entered(weight);
        self.slots.put(slot, self.tenant(candidate, lane), weight);
        self.counts.insertions += 1;
        if self.growth.is_moving() {
            self.move_some(shard);
        }
        self.lies_at(slot, place, false);
        if !pinned {
            self.order.insert(Slot(slot), access); // last: it can be the user's, and panic
        }
        self.prioritize(slot, candidate.priority);
        slot
    }

    /// Inserts an entry into the slot of one with the same weight that has just been evicted.
    #[inline(always)]
    fn exchange(
        &mut self,
        shard: &Shard<K, V, P>,
        victim: Slot,
        candidate: &mut Candidate<'_, K, V>,
        access: &Access,
        gone: &mut Gone,
    ) {
        if self.growth.is_moving() {
            self.move_some(shard);
        }
        let table = shard.table();
        debug_assert!(!self.slots[victim.0].is_frozen(), "what is frozen is out of reach");
        let Position { index, spot, place: before } = self.position(table, victim.0);
        let place = self.place(victim.0, candidate);
        index.remove(spot);
        let lane = table.index.insert(candidate.unplaced.hash.in_shard(), place);
        let pinned = candidate.pinned;
        // It is as heavy.
        self.slots.put(victim.0, self.tenant(candidate, lane), candidate.weight);
        self.counts.insertions += 1;
        self.counts.evictions += 1;
        self.let_go(before, candidate.weight, Cause::Evicted, gone);
        self.lies_at(victim.0, place, false);
        if !pinned {
            self.order.insert(victim, access); // last: it can be the user's, and panic
        }
        self.prioritize(victim.0, candidate.priority);
    }

    /// Replaces an entry with one of the same key and weight, where neither expires, is pinned or
    /// frozen. Only the place in the index changes.
    #[inline(always)]
    fn replace_plainly(
        &mut self,
        slot: u32,
        before: Position<'_>,
        candidate: &mut Candidate<'_, K, V>,
        access: &Access,
        gone: &mut Gone,
    ) {
        let place = self.place(slot, candidate);
        before.index.replace(before.spot, place);
        self.counts.insertions += 1;
        self.counts.replacements += 1;
        self.let_go(before.place, candidate.weight, Cause::Replaced, gone);
        self.lies_at(slot, place, true);
        self.order.access(Slot(slot)); // last: it can be the user's, and panic
        self.prioritize(slot, candidate.priority);
        if let Some(admission) = &mut self.admission {
            admission.replaced(access);
        }
    }

    /// Gives an entry the slot, the lane in the index and the policy history of its predecessor.
    #[inline(never)]
    fn succeed(
        &mut self,
        shard: &Shard<K, V, P>,
        slot: u32,
        candidate: &mut Candidate<'_, K, V>,
        access: &Access,
        gone: &mut Gone,
    ) {
        let melts = self.slots[slot].is_frozen()
            && (candidate.pinned || candidate.expiry.renewal.goes_idle());
        let Position { index, spot, place: before } = self.position(shard.table(), slot);
        if melts {
            self.frozen.melt(&mut self.slots[slot], before); // such entries are not frozen
        }
        let place = self.place(slot, candidate);
        let replace = || index.replace(spot, place);
        if self.slots[slot].is_frozen() {
            // The hash by which the predecessor was frozen: a faulty `Hash` may give another now.
            self.frozen.succeed(self.slots[slot].hash, before, place, replace);
        } else {
            replace();
        }
        let (weight_before, pinned_before) =
            (self.slots.weight(slot), self.slots[slot].is_pinned());
        let (weight, pinned) = (candidate.weight, candidate.pinned);
        self.slots.set_pinned(slot, pinned);
        if weight_before != weight {
            self.slots.set_weight(slot, weight);
            self.room.left(weight_before);
            self.room.entered(weight);
        }
        self.counts.insertions += 1;
        self.counts.note(Cause::Replaced);
        self.let_go(before, weight_before, Cause::Replaced, gone);
        // Last: the policy and the admission can be the user's, and panic.
        self.lies_at(slot, place, true);
        match (pinned_before, pinned) {
            (false, false) if melts => {
                self.order.remove(Slot(slot));
                self.order.insert(Slot(slot), access);
            }
            (false, false) => {
                if weight_before != weight {
                    self.order.reweigh(Slot(slot), told_weight(weight));
                }
                self.order.access(Slot(slot));
            }
            (true, true) => {}
            (false, true) => self.order.remove(Slot(slot)),
            (true, false) => self.order.insert(Slot(slot), access),
        }
        self.prioritize(slot, candidate.priority);
        if let Some(admission) = &mut self.admission {
            admission.replaced(access);
        }
    }

    /// Tells the policy the priority of the entry that has just come into a slot, if there is one
    /// to tell and the policy may evict the entry. The policy can be the user's, and panic.
    #[inline(always)]
    pub(super) fn prioritize(&mut self, slot: u32, priority: Option<Priority>) {
        if let Some(priority) = priority
            && self.slots[slot].is_in_reach()
        {
            self.order.prioritize(Slot(slot), priority);
        }
    }

    /// Says to the policy where an entry lies that is about to enter the order, or has moved within
    /// it. The policy can be the user's, and panic.
    #[inline(always)]
    pub(super) fn lies_at(&mut self, slot: u32, place: u32, moves: bool) {
        if P::BY_PLACE {
            self.order.place(Slot(slot), self.slab.places().in_order(place), moves);
        }
    }

    /// Makes sure that there is memory for another entry, and a mark for its place.
    #[inline(always)]
    fn make_memory(&mut self, shard: &Shard<K, V, P>) {
        if !self.slab.has_room() {
            take_memory(self, shard);
        }
    }

    /// Writes an entry to free memory, and returns its place. The entry is not in the index yet.
    /// There must be memory: see [`make_memory`](Self::make_memory).
    #[inline(always)]
    fn place(&mut self, slot: u32, candidate: &mut Candidate<'_, K, V>) -> u32 {
        let (place, entry) = self.slab.take();
        if let Some(guard) = candidate.guard {
            // as in `hazard`; and the entry is not shared yet
            guard.store(entry.expose_provenance(), Ordering::Release);
        }
        if !self.renewals.is_empty() {
            self.renewals.set(slot, candidate.expiry.renewal.bits());
        }
        // SAFETY: memory for an entry that holds none: it is new, or what was there has been freed.
        unsafe { candidate.write(slot, entry) };
        place
    }

    /// Returns the slot's record for an entry in a lane of the newest index.
    #[inline(always)]
    fn tenant(&self, candidate: &Candidate<'_, K, V>, lane: Lane) -> Tenant {
        let (hash, pinned) = (candidate.unplaced.hash.in_shard(), candidate.pinned);
        Tenant::new(hash, lane, self.growth.era()).pinned(pinned)
    }

    /// Writes an entry to memory and removes it at once, so that the caller's guard can keep it.
    pub(crate) fn pass_through(
        &mut self,
        shard: &Shard<K, V, P>,
        candidate: &mut Candidate<'_, K, V>,
        cause: Cause,
        gone: &mut Gone,
    ) {
        self.make_memory(shard);
        let place = self.place(u32::MAX, candidate);
        self.counts.note(cause);
        self.let_go(place, candidate.weight, cause, gone);
    }

    /// Makes room for more slots, and so for more keys, when all slots are in use.
    ///
    /// Growing marks move, and late readers with an old table use the marks of fewer slots. They
    /// never see an entry in another slot: new keys only enter the new index, which their table
    /// does not have.
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
        let marks = marks_of_readers(&self.order);
        self.slots.set_reserved(slots);
        if !self.renewals.is_empty() {
            self.renewals = self.renewals.grown(slots);
        }
        let keys = self.growth.doubled(self.slots.reserved());
        self.begin_moving_with(shard, marks, keys);
    }

    /// Publishes a table in place of the present one.
    fn publish(
        &mut self,
        shard: &Shard<K, V, P>,
        index: Index,
        old: Option<Index>,
        marks: P::Marks,
    ) {
        let (places, renewals) = (Arc::clone(self.slab.places()), self.renewals.clone());
        let before = shard.replace_table(Table { index, places, old, marks, renewals });
        self.replaced_tables.push(before);
    }

    /// Begins to move all keys to an index with room for twice as many.
    #[cold]
    #[inline(never)]
    pub(super) fn begin_moving(&mut self, shard: &Shard<K, V, P>) {
        let marks = marks_of_readers(&self.order); // it can be the user's, and panic
        let keys = self.growth.doubled(self.slots.reserved());
        self.begin_moving_with(shard, marks, keys);
    }

    fn begin_moving_with(&mut self, shard: &Shard<K, V, P>, marks: P::Marks, keys_max: usize) {
        // Over by now, but for a shard with many more slots than keys.
        while self.growth.is_moving() {
            self.move_some(shard);
        }
        let index = self.growth.begin(keys_max);
        self.publish(shard, index, Some(shard.table().index.clone()), marks);
    }

    /// Moves the keys of a few slots from the old index to the new one. After the last slot, a
    /// table without the old index is published.
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
            let marks = marks_of_readers(&self.order);
            self.publish(shard, table.index.clone(), None, marks);
        }
    }
}

/// Takes memory for further entries from the system, and has the policy keep marks for them.
#[cold]
#[inline(never)]
fn take_memory<K, V, P: Eviction>(owner: &mut Owner<K, V, P>, shard: &Shard<K, V, P>) {
    if P::BY_PLACE {
        // The policy can be the user's, and panic: nothing has changed then.
        owner.order.reserve_places(owner.slab.len_grown());
        let (table, marks) = (shard.table(), marks_of_readers(&owner.order));
        owner.publish(shard, table.index.clone(), table.old.clone(), marks);
    }
    owner.slab.grow();
}

/// Begins to move all keys to a smaller index, if half of the present size is enough. Returns true
/// if keys are to be [moved](move_more).
pub(crate) fn shrink_index<K, V, P: Eviction>(
    owner: &mut Owner<K, V, P>,
    shard: &Shard<K, V, P>,
) -> bool {
    let keys = owner.slots.keys_for(owner.room.held().entries as usize);
    if 2 * keys <= owner.growth.keys_max() {
        let marks = marks_of_readers(&owner.order); // it can be the user's, and panic
        owner.begin_moving_with(shard, marks, keys);
    }
    owner.growth.is_moving()
}

/// Moves keys to the new index, more than an insertion does. Returns true while some are left.
pub(crate) fn move_more<K, V, P: Eviction>(
    owner: &mut Owner<K, V, P>,
    shard: &Shard<K, V, P>,
) -> bool {
    for _ in 0..SLOTS_PER_LOCK {
        if !owner.growth.is_moving() {
            return false;
        }
        owner.move_some(shard);
    }
    true
}

/// Makes sure that the renewals of entries can be stored.
#[cold]
#[inline(never)]
fn make_renewals<K, V, P: Eviction>(owner: &mut Owner<K, V, P>, shard: &Shard<K, V, P>) {
    if owner.renewals.is_empty() {
        // The policy can be the user's, and panic: nothing has changed then.
        let (table, marks) = (shard.table(), marks_of_readers(&owner.order));
        owner.renewals = owner.renewals.grown(owner.slots.reserved());
        owner.publish(shard, table.index.clone(), table.old.clone(), marks);
    }
}

impl<K: Eq, V, P: Eviction> Owner<K, V, P> {
    /// Inserts an entry on the fast path, if that covers the case. Returns true if the entry was
    /// inserted.
    #[inline(always)]
    pub(crate) fn insert_usually(
        &mut self,
        shard: &Shard<K, V, P>,
        budget: &Budget,
        unplaced: &mut Unplaced<'_, K, V>,
        asks_others: bool,
    ) -> bool {
        let table = shard.table();
        if table.old.is_some() || !self.slab.has_room() {
            return false; // the insertion is to move some keys, or to take new memory
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
        if !state.is_plain() || self.slots[slot].is_pinned() {
            return false;
        }
        debug_assert_eq!(self.slots.weight(slot), 1, "there is no weigher");
        let place = place(&mut self.slab, slot, unplaced);
        table.index.replace(spot, place);
        self.counts.insertions += 1;
        self.counts.replacements += 1;
        self.limbo.push(Retired { place: before, weight: 1 });
        self.lies_at(slot, place, true);
        self.order.access(Slot(slot)); // last: it can be the user's, and panic
        true
    }

    /// Inserts an absent key on the fast path, in place of an evicted entry.
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
        let Some((victim, tenant)) = self.choose_victim(Some(&access)) else { return false };
        debug_assert!(table.old.is_none(), "no keys move");
        // SAFETY: as in `insert_usually`.
        let is_it = |place| unsafe { &*self.slab.entry(place) }.slot() == victim.0;
        let (spot, before) = table.index.spot(tenant.hash, tenant.lane(), is_it);
        let hash = unplaced.hash.in_shard();
        let place = place(&mut self.slab, victim.0, unplaced);
        table.index.remove(spot);
        let lane = table.index.insert(hash, place);
        self.slots[victim.0] = Tenant::new(hash, lane, tenant.era());
        self.counts.insertions += 1;
        self.counts.evictions += 1;
        self.limbo.push(Retired { place: before, weight: 1 });
        self.lies_at(victim.0, place, false);
        self.order.insert(victim, &access); // last: it can be the user's, and panic
        true
    }
}

/// Writes an entry to free memory, and returns its place. The entry is not in the index yet.
#[inline(always)]
fn place<K, V>(slab: &mut Slab<Entry<K, V>>, slot: u32, unplaced: &mut Unplaced<'_, K, V>) -> u32 {
    let (place, entry) = slab.take();
    // SAFETY: memory for an entry that holds none: it is new, or what was there has been freed.
    unsafe { unplaced.write(Head::new(slot, Moment::NEVER), entry) };
    place
}
