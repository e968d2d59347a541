//! An order by a policy, and victims that it has named and that still hold their slots.
//!
//! Owners need to know a victim before it leaves: an [admission](crate::admission) compares it with
//! the candidate, and a dirty block is cleaned first and may be in use when its turn comes. A
//! policy that is no list cannot be asked in advance, because it may have drawn its victim or sent
//! it to its ghosts. So a victim that was taken from such a policy is *pending*: it is out of the
//! order and still held until another entry takes its place. A pending victim that is in use keeps
//! its turn while another is asked for. One that is used is inserted again, as an entry that has
//! come back.
//!
//! Invariant: a pending slot is not in the policy's order; every other held slot is.

use crate::{Access, Cursor, Eviction, Slot};

/// An order and its pending victims.
#[derive(Debug)]
pub struct PendingVictims<P> {
    policy: P,
    /// Victims in the order in which they leave.
    pending: Vec<Slot>,
}

impl<P: Eviction> PendingVictims<P> {
    /// An order without pending victims.
    pub fn new(policy: P) -> Self {
        Self { policy, pending: Vec::new() }
    }

    /// The order of all slots but pending ones.
    pub fn policy(&self) -> &P {
        &self.policy
    }

    /// The order, to [insert](Eviction::insert), to [reserve](Eviction::reserve), and to note a hit
    /// on a slot that is known not to be pending.
    #[inline]
    pub fn policy_mut(&mut self) -> &mut P {
        &mut self.policy
    }

    /// The number of slots held.
    pub fn len(&self) -> usize {
        self.policy.len() + self.pending.len()
    }

    /// Returns whether no slot is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Withdraws a pending victim; false where the slot is not pending. The slot is out of the
    /// order then: if it was used, the caller inserts it again.
    #[inline]
    pub fn forgo(&mut self, slot: Slot) -> bool {
        let at = self.pending.iter().position(|&pending| pending == slot);
        at.map(|at| self.pending.remove(at)).is_some()
    }

    /// Takes a slot out, pending or not.
    pub fn remove(&mut self, slot: Slot) {
        if !self.forgo(slot) {
            self.policy.remove(slot);
        }
    }

    /// The first victim that is not in use, which is pending from now on. `incoming` is the
    /// candidate, where it is known. At most `most` victims are pending; if all of them are in use,
    /// the answer is `None`.
    pub fn next(
        &mut self,
        incoming: Option<&Access>,
        most: usize,
        in_use: impl Fn(Slot) -> bool,
    ) -> Option<Slot> {
        if let Some(&free) = self.pending.iter().find(|&&pending| !in_use(pending)) {
            return Some(free);
        }
        while self.pending.len() < most {
            let victim = self.policy.evict(incoming)?;
            self.pending.push(victim);
            if !in_use(victim) {
                return Some(victim);
            }
        }
        None
    }

    /// The slot that [`evict`](Self::evict), called next with the same `incoming`, takes out. The
    /// policy [says](Eviction::victim) it, or its victim becomes pending.
    pub fn victim(&mut self, incoming: Option<&Access>) -> Option<Slot> {
        let said = if self.pending.is_empty() { self.policy.victim(incoming) } else { None };
        said.or_else(|| self.next(incoming, 1, |_| false))
    }

    /// Takes out the first pending victim, or else the policy's next one.
    #[inline]
    pub fn evict(&mut self, incoming: Option<&Access>) -> Option<Slot> {
        if self.pending.is_empty() {
            self.policy.evict(incoming)
        } else {
            Some(self.pending.remove(0))
        }
    }

    /// All slots, the next to leave first.
    pub fn coldest_first(&self) -> Vec<Slot> {
        let (mut slots, mut at) = (Vec::with_capacity(self.len()), Cursor::START);
        while at != Cursor::END {
            at = self.policy.rank(at, &mut slots);
        }
        slots.extend(self.pending.iter().rev());
        slots.reverse();
        slots
    }

    /// Bytes of memory held.
    pub fn memory_bytes(&self) -> usize {
        self.policy.memory_bytes() + self.pending.capacity() * size_of::<Slot>()
    }
}
