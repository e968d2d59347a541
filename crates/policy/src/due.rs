//! An order by a policy of which some are to leave, and have not left yet.
//!
//! Who would leave has to be known before anybody does: an [admission](crate::admission) compares
//! it with who comes, and a block that is dirty has to be cleaned first, and may be in use when it
//! is its turn. A policy that is no list cannot be asked in advance: whom it evicts it may have
//! drawn, or sent to its ghosts. So whom it evicts is *due*: out of its order and still held, until
//! somebody takes its place, and found in use it keeps its turn while another is asked for. If it
//! is used meanwhile, it is inserted again, as one that has come back.
//!
//! Invariant: a slot that is due is not in the policy's order; every other is.

use crate::{Access, Cursor, Eviction, Slot};

/// An order, and who is due.
#[derive(Debug)]
pub struct Due<P> {
    policy: P,
    /// Those that are to leave, in their turn.
    due: Vec<Slot>,
}

impl<P: Eviction> Due<P> {
    /// With nobody due.
    pub fn new(policy: P) -> Self {
        Self { policy, due: Vec::new() }
    }

    /// The order of all but those that are due.
    pub fn policy(&self) -> &P {
        &self.policy
    }

    /// The same, for what does not concern those that are due: to [insert](Eviction::insert), to
    /// [reserve](Eviction::reserve), and to note a hit on a slot that is known not to be.
    pub fn policy_mut(&mut self) -> &mut P {
        &mut self.policy
    }

    /// How many are held.
    pub fn len(&self) -> usize {
        self.policy.len() + self.due.len()
    }

    /// Whether nobody is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes a slot that is due so no longer; false where it is not. It is out of the order then:
    /// used, it is to be inserted again.
    #[inline]
    pub fn forgo(&mut self, slot: Slot) -> bool {
        let at = self.due.iter().position(|&due| due == slot);
        at.map(|at| self.due.remove(at)).is_some()
    }

    /// Takes a slot out, due or not.
    pub fn remove(&mut self, slot: Slot) {
        if !self.forgo(slot) {
            self.policy.remove(slot);
        }
    }

    /// Who is to leave for `incoming`, where that is known, of those that are not in use: due from
    /// now on. No more than `most` are, and if all of them are in use, nobody can leave.
    pub fn next(
        &mut self,
        incoming: Option<&Access>,
        most: usize,
        in_use: impl Fn(Slot) -> bool,
    ) -> Option<Slot> {
        if let Some(&free) = self.due.iter().find(|&&due| !in_use(due)) {
            return Some(free);
        }
        while self.due.len() < most {
            let due = self.policy.evict(incoming)?;
            self.due.push(due);
            if !in_use(due) {
                return Some(due);
            }
        }
        None
    }

    /// Who [`evict`](Self::evict), called next with the same `incoming`, takes out: as the policy
    /// [says](Eviction::victim), and due where it does not say.
    pub fn victim(&mut self, incoming: Option<&Access>) -> Option<Slot> {
        let said = if self.due.is_empty() { self.policy.victim(incoming) } else { None };
        said.or_else(|| self.next(incoming, 1, |_| false))
    }

    /// Takes out who is due, or else whom the policy evicts.
    pub fn evict(&mut self, incoming: Option<&Access>) -> Option<Slot> {
        if self.due.is_empty() { self.policy.evict(incoming) } else { Some(self.due.remove(0)) }
    }

    /// All slots, the next to leave first.
    pub fn coldest_first(&self) -> Vec<Slot> {
        let (mut slots, mut at) = (Vec::with_capacity(self.len()), Cursor::START);
        while at != Cursor::END {
            at = self.policy.rank(at, &mut slots);
        }
        slots.extend(self.due.iter().rev());
        slots.reverse();
        slots
    }

    /// Bytes of memory held.
    pub fn memory_bytes(&self) -> usize {
        self.policy.memory_bytes() + self.due.capacity() * size_of::<Slot>()
    }
}
