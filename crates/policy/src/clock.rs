//! CLOCK: FIFO with a second chance for entries that were hit.
//!
//! A hit raises a counter of a few bits in the marks and moves nothing. The hand looks at the
//! oldest entry: if its counter is above 0, the counter is lowered and the entry goes round again;
//! otherwise the entry leaves. New entries start at 0 (Corbató, "A Paging Experiment with the
//! Multics System", 1968; with more bits: the generalised CLOCK of Smith, TODS '78).
//!
//! Do not use CLOCK where scans are common: an entry that is never hit stays for a whole round.

use crate::listed::Listed;
use crate::{Access, Counters, Lists, Marks, Parameter, Parameters, Policy, PolicyInfo, Slot};

const RING: usize = 0;

/// CLOCK (`clock`): FIFO, but an entry that was hit goes round again. FIFO-like.
#[derive(Debug, Clone)]
pub struct Clock {
    ring: Lists<1>,
    chances: Counters,
}

impl Clock {
    /// Moves the hand to the first entry whose counter is 0.
    #[inline(always)]
    fn advance(&mut self) -> Option<Slot> {
        loop {
            let hand = self.ring.tail(RING)?;
            let chances = self.chances.get(hand);
            if chances == 0 {
                return Some(hand);
            }
            self.chances.set(hand, chances - 1);
            self.ring.move_to_head(RING, hand);
        }
    }
}

impl Policy for Clock {
    const INFO: PolicyInfo =
        PolicyInfo::new("clock", "FIFO that reinserts entries that were hit", "Corbató '68")
            .with(&[Parameter::count("bits", 1, 1..=7, "bits of the hit counter")]);

    fn new(parameters: &Parameters) -> Self {
        let limit = (1u8 << parameters.count("bits")) - 1;
        Self { ring: Lists::named(["ring"]), chances: Counters::new(limit) }
    }
}

impl Listed for Clock {
    type Marks = Counters;
    type Lists = Lists<1>;

    const BY_PLACE: bool = true;

    fn lists(&self) -> &Lists<1> {
        &self.ring
    }

    fn lists_mut(&mut self) -> &mut Lists<1> {
        &mut self.ring
    }

    #[inline]
    fn marks(&self) -> &Counters {
        &self.chances
    }

    fn reserve_places(&mut self, places: usize) {
        self.chances.reserve_places(places);
    }

    fn promote(&mut self, _: Slot) {}

    #[inline]
    fn insert(&mut self, slot: Slot, _: &Access) {
        self.chances.set(slot, 0);
        self.ring.push_head(RING, slot);
    }

    #[inline]
    fn evict(&mut self, _: Option<&Access>) -> Option<Slot> {
        self.advance()?;
        self.ring.pop_tail(RING)
    }

    fn victim(&mut self, _: Option<&Access>) -> Option<Slot> {
        self.advance()
    }

    fn hits(&self) -> Option<&Counters> {
        Some(&self.chances)
    }
    fn resized(&mut self) {
        self.chances.reserve(self.ring.slots());
    }

    fn moved(&mut self, from: Slot, to: Slot) {
        self.chances.set(to, self.chances.get(from));
    }

    fn other_memory_bytes(&self) -> usize {
        self.chances.memory_bytes()
    }
}
