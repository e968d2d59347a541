//! CLOCK: FIFO with a second chance for what was hit.
//!
//! A hit counts in a few bits beside the slot and moves nothing. The hand looks at the oldest entry: one with a count
//! loses one and goes round again, one without leaves. New entries start at 0 (Corbató, "A Paging Experiment with
//! the Multics System", 1968; with more bits: the generalised CLOCK of Smith, TODS '78).
//!
//! Not to be used where scans are common: an entry that is never hit stays for a whole round.

use crate::lists::ordered_by_lists;
use crate::{About, Access, Counters, Eviction, List, Parameter, Parameters, Policy, Slot};

/// FIFO with a second chance.
#[derive(Debug, Clone)]
pub struct Clock {
    ring: List,
    chances: Counters,
}

impl Clock {
    /// Moves the hand to the first entry without a chance.
    #[inline(always)]
    fn advance(&mut self) -> Option<Slot> {
        loop {
            let hand = self.ring.tail()?;
            let chances = self.chances.get(hand);
            if chances == 0 {
                return Some(hand);
            }
            self.chances.set(hand, chances - 1);
            self.ring.move_to_head(hand);
        }
    }

    fn moved(&mut self, from: Slot, to: Slot) {
        self.chances.set(to, self.chances.get(from));
    }
}

impl Policy for Clock {
    const ABOUT: About = About::new("clock", "FIFO, but what was hit goes round again", "Corbató '68")
        .with(&[Parameter::count("bits", 1, 1..=7, "bits of the hit counter")]);

    fn new(parameters: &Parameters) -> Self {
        let limit = (1u8 << parameters.count("bits")) - 1;
        Self { ring: List::named("ring"), chances: Counters::new(limit) }
    }
}

impl Eviction for Clock {
    type Marks = Counters;

    #[inline]
    fn marks(&self) -> &Counters {
        &self.chances
    }

    fn promote(&mut self, _: Slot) {}

    #[inline]
    fn insert(&mut self, slot: Slot, _: &Access) {
        self.chances.set(slot, 0);
        self.ring.push_head(slot);
    }

    #[inline]
    fn evict(&mut self, _: Option<&Access>) -> Option<Slot> {
        self.advance()?;
        self.ring.pop_tail()
    }

    fn victim(&mut self, _: Option<&Access>) -> Option<Slot> {
        self.advance()
    }

    ordered_by_lists! { order: ring, hottest: |_this| [0], counters: chances, moved: moved }
}
