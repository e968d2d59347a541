//! Insertion into a shard: in place of the predecessor, of an evicted entry, or in a free slot. The
//! usual path is short; the rest is in separate functions.

use floe_policy::{Access, Eviction, Slot};

use crate::budget::{Amount, Budget};
use crate::candidate::Candidate;
use crate::cause::Cause;
use crate::clock::Clock;
use crate::index::Lane;
use crate::owner::{Gone, Owner, Tenant};
use crate::shard::Shard;
use crate::sync::Ordering;

impl<K, V, P: Eviction> Owner<K, V, P> {
    /// Inserts an entry, in place of one with the same key if there is one. Takes it out of
    /// `candidate`, where it can be large, only when it has its place.
    ///
    /// # Errors
    /// The room it lacks, when the shard alone cannot make it, or with `asks_others` need not. The
    /// shard has dropped its entry of that key then.
    #[inline(always)]
    pub(crate) fn insert(
        &mut self,
        shard: &Shard<K, V, P>,
        budget: &Budget,
        clock: &Clock,
        candidate: &mut Candidate<'_, K, V>,
        asks_others: bool,
        gone: &mut Gone<K, V>,
    ) -> Result<(), Amount>
    where
        K: Eq,
    {
        let (hash, need) = (candidate.hash.in_shard(), Amount::of(candidate.weight));
        let access = candidate.hash.access(candidate.weight);
        let before = self.find(shard.table(), hash, candidate.key());
        match before.map(|before| (before.slot(), before.expiry.is_set())) {
            Some((slot, expires)) => {
                let tenant = &self.tenants[slot as usize];
                if !expires
                    && !tenant.pinned
                    && tenant.weight == candidate.weight
                    && candidate.guard.is_none()
                {
                    self.succeed(shard, slot, candidate, &access, gone);
                    Ok(())
                } else {
                    self.replace(shard, budget, clock, slot, candidate, asks_others, gone)
                }
            }
            None if self.admission.is_some() => {
                self.offer(shard, budget, candidate, asks_others, gone)
            }
            None if self.has_room(budget, need) && self.take_room(budget, need).is_some() => {
                self.settle(shard, &access, candidate);
                Ok(())
            }
            None => {
                let here = self.makes_room(budget, need, need, asks_others);
                let Some(victim) = here.then(|| self.choose_victim(Some(&access))).flatten() else {
                    return Err(self.spare.lacks(need));
                };
                if self.tenants[victim.index()].weight == candidate.weight {
                    self.exchange(shard, victim, candidate, &access, gone);
                    return Ok(());
                }
                self.take_out(shard.table(), victim.0, Cause::Evicted, gone);
                self.make_room(shard, budget, None, candidate, asks_others, gone)
            }
        }
    }

    /// [`insert`](Self::insert) of an absent key into a shard with an admission. A rejected
    /// candidate is dropped, or passes through to the callers that wait for it.
    #[cold] // for those without one: nothing of it weighs on their way
    #[inline(never)]
    fn offer(
        &mut self,
        shard: &Shard<K, V, P>,
        budget: &Budget,
        candidate: &mut Candidate<'_, K, V>,
        asks_others: bool,
        gone: &mut Gone<K, V>,
    ) -> Result<(), Amount> {
        let need = Amount::of(candidate.weight);
        let taken = self.take_room(budget, need);
        if !candidate.is_admitted && !candidate.pinned && budget.could_hold(need) {
            let access = candidate.hash.access(candidate.weight);
            let fits = taken.is_some();
            // The victim of another shard is not known before it leaves.
            let leaves_elsewhere = asks_others && self.is_owed(budget, need, need);
            let victim =
                if fits || leaves_elsewhere { None } else { self.order.victim(Some(&access)) };
            // the order can be the user's
            let victim = victim.filter(|victim| self.is_in_reach(*victim));
            let admission = self.admission.as_mut().expect("the caller has seen it");
            admission.look_back(&self.counts, self.held);
            candidate.is_admitted = admission.admits(&access, fits, victim);
            if !candidate.is_admitted {
                self.release(budget, taken.unwrap_or_default());
                if candidate.guard.is_some() || gone.has_listener() {
                    self.pass_through(candidate, Cause::Bypassed, gone);
                }
                return Ok(());
            }
        }
        self.make_room(shard, budget, None, candidate, asks_others, gone)
    }

    /// [`insert`](Self::insert) in the place of an entry with the same key, whatever that is like.
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
        gone: &mut Gone<K, V>,
    ) -> Result<(), Amount> {
        let tenant = &self.tenants[slot as usize];
        // SAFETY: it is in, and entries are taken out under this lock only.
        if unsafe { &*tenant.entry }.expiry.is_over(clock) {
            let room = self.take_out(shard.table(), slot, Cause::Expired, gone);
            self.release(budget, room);
            if self.admission.is_some() {
                return self.offer(shard, budget, candidate, asks_others, gone);
            }
        } else if candidate.guard.is_some() {
            // A value inserted during the load is newer.
            self.pass_through(candidate, Cause::Rejected, gone);
            return Ok(());
        } else if tenant.pinned && budget.is_exceeded() {
            // Beyond the limits nothing comes in; only what was pinned when they were lowered may
            // stay.
            candidate.is_admitted = true;
            let room = self.take_out(shard.table(), slot, Cause::Replaced, gone);
            self.release(budget, room);
        } else {
            candidate.is_admitted = true;
            return self.make_room(shard, budget, Some(slot), candidate, asks_others, gone);
        }
        self.make_room(shard, budget, None, candidate, asks_others, gone)
    }

    /// [`insert`](Self::insert) with what the shard has to spare, the entry to be replaced
    /// included; the rest is taken or made.
    #[inline(never)]
    fn make_room(
        &mut self,
        shard: &Shard<K, V, P>,
        budget: &Budget,
        mut replaced: Option<u32>,
        candidate: &mut Candidate<'_, K, V>,
        asks_others: bool,
        gone: &mut Gone<K, V>,
    ) -> Result<(), Amount> {
        let need = Amount::of(candidate.weight);
        let access = candidate.hash.access(candidate.weight);
        loop {
            let mut more = need;
            if let Some(slot) = replaced {
                more -= Amount::of(self.tenants[slot as usize].weight);
            }
            let lacking = self.spare.lacks(more);
            if lacking.is_nothing() {
                break;
            }
            if budget.take(lacking) {
                self.spare += lacking;
                break;
            }
            let here = self.makes_room(budget, need, more, asks_others);
            let Some(victim) = here.then(|| self.choose_victim(Some(&access))).flatten() else {
                if let Some(slot) = replaced {
                    self.take_out(shard.table(), slot, Cause::Replaced, gone);
                }
                self.give_back(budget);
                return Err(self.spare.lacks(need));
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
                let lighter = Amount::of(self.tenants[slot as usize].weight).weight - need.weight;
                self.succeed(shard, slot, candidate, &access, gone);
                if lighter > 0 {
                    self.release(budget, Amount { entries: 0, weight: lighter });
                }
            }
            None => {
                let slot = self.settle(shard, &access, candidate);
                if let Some(admission) = &mut self.admission {
                    admission.came_in(slot, &access);
                }
            }
        }
        self.give_back(budget);
        Ok(())
    }

    /// Returns whether the shard is to evict its own entries for a need, which takes so much more
    /// than there is: not for what can never be in, nor for what others owe it.
    #[inline(always)]
    fn makes_room(&self, budget: &Budget, need: Amount, more: Amount, asks_others: bool) -> bool {
        let fits = self.share.fits(need.weight) || budget.could_hold(need);
        fits && !(asks_others && self.is_owed(budget, need, more))
    }

    /// An entry takes a slot for itself, which is returned.
    #[inline(never)]
    fn settle(
        &mut self,
        shard: &Shard<K, V, P>,
        access: &Access,
        candidate: &mut Candidate<'_, K, V>,
    ) -> u32 {
        let slot = self.vacant.pop().unwrap_or_else(|| {
            if self.tenants.len() == self.reserved {
                self.grow(shard);
            }
            self.tenants.push(Tenant::NONE);
            self.tenants.len() as u32 - 1
        });
        if self.held.entries as usize == self.keys_max {
            self.begin_moving(shard);
        }
        let mut placed = self.place(slot, candidate);
        placed.lane = shard.table().index.insert(placed.hash, placed.entry.expose_provenance());
        self.held += Amount::of(placed.weight);
        self.spare -= Amount::of(placed.weight);
        self.share.came(placed.weight.into());
        let pinned = placed.pinned;
        self.tenants[slot as usize] = placed;
        self.counts.insertions += 1;
        if self.is_moving {
            self.move_some(shard);
        }
        if pinned {
            self.pinned += 1;
        } else {
            self.order.insert(Slot(slot), access); // last: it can be the user's, and panic
        }
        slot
    }

    /// An entry takes the slot of one as heavy that has just been evicted.
    #[inline(always)]
    fn exchange(
        &mut self,
        shard: &Shard<K, V, P>,
        victim: Slot,
        candidate: &mut Candidate<'_, K, V>,
        access: &Access,
        gone: &mut Gone<K, V>,
    ) {
        if self.is_moving {
            self.move_some(shard);
        }
        let table = shard.table();
        let mut placed = self.place(victim.0, candidate);
        let tenant = &mut self.tenants[victim.index()];
        debug_assert!(!tenant.frozen, "what is frozen is out of reach");
        table.index_of(tenant.era != self.era).remove(tenant.hash, tenant.lane);
        placed.lane = table.index.insert(placed.hash, placed.entry.expose_provenance());
        let pinned = placed.pinned;
        let before = std::mem::replace(tenant, placed);
        self.counts.insertions += 1;
        self.counts.evictions += 1;
        self.let_go(before.retire(), Cause::Evicted, gone);
        if pinned {
            self.pinned += 1;
        } else {
            self.order.insert(victim, access); // last: it can be the user's, and panic
        }
    }

    /// An entry takes the slot, the lane and the history of its predecessor.
    #[inline(never)]
    fn succeed(
        &mut self,
        shard: &Shard<K, V, P>,
        slot: u32,
        candidate: &mut Candidate<'_, K, V>,
        access: &Access,
        gone: &mut Gone<K, V>,
    ) {
        let melts = self.tenants[slot as usize].frozen
            && (candidate.pinned || candidate.expiry.goes_idle());
        if melts {
            self.melt(slot); // such entries are not frozen
        }
        let mut placed = self.place(slot, candidate);
        let Tenant { entry: before, lane, frozen, era, .. } = self.tenants[slot as usize];
        (placed.lane, placed.frozen, placed.era) = (lane, frozen, era);
        let after = placed.entry.expose_provenance();
        let index = shard.table().index_of(era != self.era);
        let replace = || index.replace(lane, after);
        if frozen {
            // SAFETY: just made, and not shared yet.
            unsafe { &*placed.entry }.set_frozen(true);
        }
        match self.frozen_index.as_deref().filter(|_| frozen) {
            Some(index) => index.replace(placed.hash, before.expose_provenance(), after, replace),
            None => replace(),
        }
        let (weight, pinned) = (placed.weight, placed.pinned);
        let before = std::mem::replace(&mut self.tenants[slot as usize], placed);
        self.held -= Amount::of(before.weight);
        self.spare += Amount::of(before.weight);
        self.held += Amount::of(weight);
        self.spare -= Amount::of(weight);
        self.share.left(before.weight.into());
        self.share.came(weight.into());
        self.pinned = self.pinned + usize::from(pinned) - usize::from(before.pinned);
        self.counts.insertions += 1;
        self.counts.note(Cause::Replaced);
        let (weight_before, pinned_before) = (before.weight, before.pinned);
        self.let_go(before.retire(), Cause::Replaced, gone);
        // Last: the policy and the admission can be the user's, and panic.
        match (pinned_before, pinned) {
            (false, false) if melts => {
                self.order.remove(Slot(slot));
                self.order.insert(Slot(slot), access);
            }
            (false, false) => {
                if weight_before != weight {
                    self.order.reweigh(Slot(slot), weight);
                }
                self.order.access(Slot(slot));
            }
            (true, true) => {}
            (false, true) => self.order.remove(Slot(slot)),
            (true, false) => self.order.insert(Slot(slot), access),
        }
        if let Some(admission) = &mut self.admission {
            admission.replaced(access);
        }
    }

    /// Puts an entry into unused memory; its lane is still to be found.
    #[inline(always)]
    fn place(&mut self, slot: u32, candidate: &mut Candidate<'_, K, V>) -> Tenant<K, V> {
        let entry = self.slab.take();
        if let Some(guard) = candidate.guard {
            // as in `hazard`; and the entry is not shared yet
            guard.store(entry.expose_provenance(), Ordering::Release);
        }
        // SAFETY: memory for an entry that holds none: it is new, or what was there has been freed.
        unsafe { candidate.settle(slot, entry) };
        let Candidate { hash, weight, pinned, .. } = *candidate;
        Tenant {
            entry,
            hash: hash.in_shard(),
            lane: Lane::NONE,
            weight,
            pinned,
            frozen: false,
            era: self.era,
        }
    }

    /// Puts an entry into memory for the sake of a guard that the caller holds then, and out at
    /// once.
    pub(crate) fn pass_through(
        &mut self,
        candidate: &mut Candidate<'_, K, V>,
        cause: Cause,
        gone: &mut Gone<K, V>,
    ) {
        let placed = self.place(u32::MAX, candidate);
        self.counts.note(cause);
        self.let_go(placed.retire(), cause, gone);
    }
}
