//! Bringing entries in, with the help of other shards where one cannot make the room, and taking many out.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use floe_policy::Replacement;

use crate::budget::Amount;
use crate::cause::Cause;
use crate::entry::Entry;
use crate::inner::{Inner, SLOTS_PER_LOCK};
use crate::newcomer::Newcomer;
use crate::owner::{Gone, Owner};
use crate::reclaim::After;
use crate::shard::Shard;
use crate::sync::{Ordering, lock};

impl<K, V, P: Replacement, S> Inner<K, V, P, S> {
    /// Puts an entry in, making room in other shards if need be. Its guard keeps it for the caller in any case. `then`
    /// gets what is left to do in each shard, which [`settle`](Self::settle) does.
    #[inline(always)]
    pub(crate) fn put<'a>(
        &'a self,
        shard: &'a Shard<K, V, P>,
        newcomer: &mut Newcomer<'_, K, V>,
        mut then: impl FnMut(After<'a, K, V, P>),
    ) where
        K: Eq,
    {
        // Where all is frozen nobody can make room.
        let all_frozen = self.all_frozen.load(Ordering::Relaxed); // late by a moment does no harm
        let asks_others = self.shards.len() > 1 && !all_frozen;
        if let Err(lacking) = self.try_put(shard, newcomer, asks_others, &mut then) {
            self.put_with_help(shard, newcomer, lacking, all_frozen, &mut then);
        }
    }

    /// Puts an entry in if its shard can make room for it.
    #[inline(always)]
    fn try_put<'a>(
        &'a self,
        shard: &'a Shard<K, V, P>,
        newcomer: &mut Newcomer<'_, K, V>,
        asks_others: bool,
        then: &mut impl FnMut(After<'a, K, V, P>),
    ) -> Result<(), Amount>
    where
        K: Eq,
    {
        // What was loaded has no load of its key to outdate any more, and its caller has the flights' lock.
        let mut owner = match newcomer.guard {
            Some(_) => shard.owner(),
            None => self.owner_past_loads(shard, newcomer.hash, newcomer.key()),
        };
        let mut gone = Gone::new(self.listener.is_some());
        let result = owner.insert(shard, &self.budget, &self.clock, newcomer, asks_others, &mut gone);
        then(self.leave(shard, owner, gone));
        result
    }

    /// [`put`](Self::put) for an entry for which its shard could not make the room that is lacking.
    #[inline(never)]
    fn put_with_help<'a>(
        &'a self,
        shard: &'a Shard<K, V, P>,
        newcomer: &mut Newcomer<'_, K, V>,
        mut lacking: Amount,
        all_frozen: bool,
        then: &mut impl FnMut(After<'a, K, V, P>),
    ) where
        K: Eq,
    {
        let mut asks_others = self.shards.len() > 1 && !all_frozen;
        loop {
            let made = !all_frozen && self.make_room(shard, lacking, then);
            if !made && !asks_others {
                break;
            }
            asks_others &= made;
            match self.try_put(shard, newcomer, asks_others, then) {
                Ok(()) => return,
                Err(still) => lacking = still,
            }
        }
        let pass =
            |owner: &mut Owner<K, V, P>, gone: &mut _| owner.pass_through(newcomer, Cause::Rejected, gone);
        let ((), after) = self.change(shard, shard.owner(), pass);
        then(after);
    }

    /// Has the other shards make room; false if they cannot.
    fn make_room<'a>(
        &'a self,
        except: &Shard<K, V, P>,
        lacking: Amount,
        then: &mut impl FnMut(After<'a, K, V, P>),
    ) -> bool {
        let mut made = Amount::default();
        if self.budget.could_hold(lacking) {
            for shard in self.shards.iter().filter(|shard| !std::ptr::eq(*shard, except)) {
                while !made.lacks(lacking).is_nothing() {
                    let (room, after) = self.evict(shard);
                    then(after);
                    let Some(room) = room else { break };
                    made += room;
                }
            }
        }
        !made.is_nothing()
    }

    /// Has a shard evict whoever is worth least there, and gives the room back at once: the user's code, which comes next,
    /// may panic.
    fn evict<'a>(&self, shard: &'a Shard<K, V, P>) -> (Option<Amount>, After<'a, K, V, P>) {
        self.change(shard, shard.owner(), |owner, gone| {
            owner.evict(shard.table(), gone).inspect(|&room| self.budget.give(room))
        })
    }

    /// Evicts until the limits are kept, after they were lowered. What is pinned stays.
    pub(crate) fn shrink(&self) {
        let mut panicked = None;
        let mut evicted = true;
        while self.budget.is_exceeded() {
            if !evicted {
                let mut freezer = lock(&self.freezer);
                if !freezer.is_frozen() {
                    break; // what is left is pinned
                }
                self.thaw(freezer.by_hand()); // somebody froze it after it had thawed for this
            }
            evicted = false;
            for shard in &self.shards {
                let (room, after) = self.evict(shard);
                evicted |= room.is_some();
                // The limits are kept all the same.
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.settle(after))) {
                    panicked.get_or_insert(panic);
                }
                if !self.budget.is_exceeded() {
                    break;
                }
            }
        }
        if let Some(panic) = panicked {
            resume_unwind(panic);
        }
    }

    /// Takes out all entries for which `leaves` gives a cause, some slots at a time.
    pub(crate) fn retain(&self, shard: &Shard<K, V, P>, leaves: impl Fn(&Entry<K, V>) -> Option<Cause>) {
        let mut next = 0;
        loop {
            let seen_all = self.with_owner(shard, shard.owner(), |owner, gone| {
                let end = owner.slots().min(next + SLOTS_PER_LOCK);
                for slot in next..end {
                    let Some(entry) = owner.tenant(slot) else { continue };
                    // SAFETY: it is in, and is taken out under this lock only.
                    if let Some(cause) = leaves(unsafe { &*entry }) {
                        let room = owner.take_out(shard.table(), slot, cause, gone);
                        self.budget.give(room);
                    }
                }
                next = end;
                end == owner.slots()
            });
            if seen_all {
                return;
            }
        }
    }
}
