//! Bringing entries in, with the help of other shards where one cannot make the room, and taking
//! many out.

use floe_policy::Replacement;

use crate::budget::Amount;
use crate::candidate::Candidate;
use crate::cause::Cause;
use crate::entry::Entry;
use crate::inner::Inner;
use crate::owner::Owner;
use crate::owner::room::Lent;
use crate::reclaim::After;
use crate::shard::Shard;
use crate::shards::SLOTS_PER_LOCK;
use crate::thrown::FirstPanic;

/// Holds of a lock between two rests of what goes through all entries.
const HOLDS_PER_REST: u32 = 16;

impl<K, V, P: Replacement, S> Inner<K, V, P, S> {
    /// Puts an entry in, making room in other shards if need be. Its guard keeps it for the caller
    /// in any case. `then` gets what is left to do in each shard, which [`settle`](Self::settle)
    /// does.
    #[inline(always)]
    pub(crate) fn put<'a>(
        &'a self,
        shard: &'a Shard<K, V, P>,
        candidate: &mut Candidate<'_, K, V>,
        mut then: impl FnMut(After<'a, K, V, P>),
    ) where
        K: Eq,
    {
        // Where all is frozen no shard can make room.
        let all_frozen = self.frozen.is_all();
        let asks_others = self.shards.len() > 1 && !all_frozen;
        // at the end, after it came in: see `Upkeep`
        let _asks = candidate.due.map(|due| self.lifetimes.upkeep().asks(due));
        if let Err(lacking) = self.try_put(shard, candidate, asks_others, &mut then) {
            self.put_with_help(shard, candidate, lacking, all_frozen, &mut then);
        }
    }

    /// [`put`](Self::put) if `decide`, which gets what is there under the key and has not expired,
    /// agrees with the lock held.
    #[inline(never)]
    pub(crate) fn put_if<'a>(
        &'a self,
        shard: &'a Shard<K, V, P>,
        candidate: &mut Candidate<'_, K, V>,
        decide: impl FnOnce(Option<&Entry<K, V>>) -> bool,
        mut then: impl FnMut(After<'a, K, V, P>),
    ) -> bool
    where
        K: Eq,
    {
        let all_frozen = self.frozen.is_all();
        let asks_others = self.shards.len() > 1 && !all_frozen;
        let clock = self.lifetimes.clock();
        // as in `put`
        let _asks = candidate.due.map(|due| self.lifetimes.upkeep().asks(due));
        let owner = self.owner_past_loads(shard, candidate.unplaced.hash, candidate.unplaced.key());
        let (result, after) = self.change(shard, owner, |owner, gone| {
            let hash = candidate.unplaced.hash.in_shard();
            let there = owner.find(shard.table(), hash, candidate.unplaced.key());
            decide(there.filter(|entry| !entry.head.is_over(clock)))
                .then(|| owner.insert(shard, &self.budget, clock, candidate, asks_others, gone))
        });
        then(after);
        if let Some(Err(lacking)) = result {
            // The entry that was there has left for it; one that comes now does not know of it.
            candidate.yields = true;
            self.put_with_help(shard, candidate, lacking, all_frozen, &mut then);
        }
        result.is_some()
    }

    /// Puts an entry in if its shard can make room for it.
    #[inline(always)]
    fn try_put<'a>(
        &'a self,
        shard: &'a Shard<K, V, P>,
        candidate: &mut Candidate<'_, K, V>,
        asks_others: bool,
        then: &mut impl FnMut(After<'a, K, V, P>),
    ) -> Result<(), Amount>
    where
        K: Eq,
    {
        // A loaded value has no load of its key to outdate any more, and its caller has the
        // flights' lock. What is put in for a guard otherwise has outdated loads before this.
        let owner = if candidate.guard.is_some() {
            shard.owner()
        } else {
            self.owner_past_loads(shard, candidate.unplaced.hash, candidate.unplaced.key())
        };
        let (result, after) = self.change(shard, owner, |owner, gone| {
            owner.insert(shard, &self.budget, self.lifetimes.clock(), candidate, asks_others, gone)
        });
        then(after);
        result
    }

    /// [`put`](Self::put) for an entry for which its shard lacks room. Shards that have more than
    /// their share give that first; if the shard cannot make room by itself either, all others do
    /// in turns.
    #[inline(never)]
    fn put_with_help<'a>(
        &'a self,
        shard: &'a Shard<K, V, P>,
        candidate: &mut Candidate<'_, K, V>,
        mut lacking: Amount,
        all_frozen: bool,
        then: &mut impl FnMut(After<'a, K, V, P>),
    ) where
        K: Eq,
    {
        let mut asks_others = self.shards.len() > 1 && !all_frozen;
        let weight = candidate.weight;
        loop {
            let could = !all_frozen && self.budget.could_hold(Amount::of(weight));
            let made = could && self.borrow(shard, weight, lacking, asks_others, then);
            if !made && !asks_others {
                break;
            }
            asks_others &= made;
            match self.try_put(shard, candidate, asks_others, then) {
                Ok(()) => return,
                Err(still) => lacking = still,
            }
        }
        let ((), after) = self.change(shard, shard.owner(), |owner, gone| {
            owner.room.give_back(&self.budget);
            owner.pass_through(candidate, Cause::Rejected, gone);
        });
        then(after);
    }

    /// Brings room for an entry of some weight from other shards to one that lacks it, of those
    /// with more than their share or of all; false if there is none.
    fn borrow<'a>(
        &'a self,
        borrower: &'a Shard<K, V, P>,
        weight: u32,
        lacking: Amount,
        beyond: bool,
        then: &mut impl FnMut(After<'a, K, V, P>),
    ) -> bool {
        let _coming = self.budget.makes_room_for(weight.into(), self.shards.len());
        let mut lent = Lent::none(&self.budget);
        let first = self.budget.lender();
        let mut came = true;
        // One entry of a shard at a time, so that all give alike what all have to give.
        while std::mem::take(&mut came) {
            for step in 0..self.shards.len() {
                let number = (first + step) % self.shards.len();
                let lender = &self.shards[number];
                let wanted = lent.amount().lacks(lacking);
                if std::ptr::eq(lender, borrower) || wanted.is_nothing() {
                    continue;
                }
                let lend = |owner: &mut Owner<K, V, P>, gone: &mut _| {
                    let amount = owner.lend(lender.table(), wanted, beyond, gone);
                    lent.add(amount); // at once: the user's code, which comes next, may panic
                    !amount.is_nothing()
                };
                let (lends, after) = self.change(lender, lender.owner(), lend);
                then(after);
                if lends {
                    came = true;
                    // The same again as long as it has more than its share, else each in turn.
                    self.budget.set_lender(if beyond { number } else { number + 1 });
                }
            }
            came &= !lent.amount().lacks(lacking).is_nothing();
        }
        let made = !lent.amount().is_nothing();
        lent.arrive(&mut borrower.owner().room);
        made
    }

    /// Evicts until the limits are kept, after they were lowered: first from shards with more than
    /// a share. Pinned entries stay.
    pub(crate) fn shrink(&self) {
        let mut panic = FirstPanic::none();
        let (mut evicted, mut beyond) = (true, true);
        while self.budget.is_exceeded() {
            if !evicted && !std::mem::take(&mut beyond) {
                let mut freezer = self.frozen.freezer();
                if !freezer.is_frozen() {
                    break; // what is left is pinned
                }
                // It was frozen after it had thawed for this.
                self.freezing().thaw(freezer.by_hand());
            }
            evicted = false;
            for shard in self.shards.iter() {
                let (lends, after) = self.change(shard, shard.owner(), |owner, gone| {
                    let amount = owner.lend(shard.table(), self.budget.excess(), beyond, gone);
                    self.budget.give(amount);
                    !amount.is_nothing()
                });
                evicted |= lends;
                panic.catch(|| self.settle(after)); // the limits are kept all the same
                if !self.budget.is_exceeded() {
                    break;
                }
            }
        }
        panic.raise();
    }

    /// Takes out all entries for which `leaves` gives a cause, some slots at a time.
    pub(crate) fn retain(
        &self,
        shard: &Shard<K, V, P>,
        panic: &mut FirstPanic,
        leaves: impl Fn(&Entry<K, V>) -> Option<Cause>,
    ) {
        let (mut next, mut holds) = (0, 0);
        loop {
            if holds == HOLDS_PER_REST {
                crate::shards::rest();
                holds = 0;
            }
            holds += 1;
            let quiet = crate::quiet::quiet();
            let (seen_all, after) = self.change(shard, shard.owner(), |owner, gone| {
                let end = owner.slots.len().min(next + SLOTS_PER_LOCK);
                for slot in next..end {
                    let Some(entry) = owner.entry(shard.table(), slot) else { continue };
                    // SAFETY: it is in, and is taken out under this lock only.
                    if let Some(cause) = leaves(unsafe { &*entry }) {
                        let room = owner.take_out(shard.table(), slot, cause, gone);
                        owner.room.release(&self.budget, room);
                    }
                }
                next = end;
                end == owner.slots.len()
            });
            drop(quiet);
            panic.catch(|| self.settle(after));
            if seen_all {
                return;
            }
        }
    }
}
