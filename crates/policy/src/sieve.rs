//! SIEVE: FIFO whose hand spares entries that were hit and leaves them in place.
//!
//! A hit sets a bit. The hand walks from the oldest entry to the newest. An entry whose bit is set
//! loses the bit and stays where it is; one without leaves. New entries are inserted ahead of the
//! hand, so the unpopular ones among them are sifted out quickly (Zhang et al., "SIEVE is Simpler
//! than LRU", NSDI '24).
//!
//! The hand is the cut between two lists: entries still ahead of it, and entries it has passed.
//! When none are left ahead, the lists change roles, which is the hand going back to the tail.
//!
//! Do not use SIEVE for block storage with scans: every block of a scan that is touched twice stays
//! for a round.

use crate::listed::Listed;
use crate::{Access, Counters, Lists, Marks, Parameters, Policy, PolicyInfo, Slot};

/// SIEVE (`sieve`): FIFO, but a moving hand spares entries that were hit. FIFO-like.
#[derive(Debug, Clone)]
pub struct Sieve {
    order: Lists<2>,
    /// Number of the list ahead of the hand, 0 or 1; the other list has been passed.
    ahead: usize,
    visited: Counters,
}

impl Sieve {
    fn passed(&self) -> usize {
        1 - self.ahead
    }

    /// Moves the hand to the first entry without a hit since the hand last passed.
    #[inline(always)]
    fn advance(&mut self) -> Option<Slot> {
        loop {
            self.turn_back_at_the_head();
            let hand = self.order.tail(self.ahead)?;
            if self.visited.get(hand) == 0 {
                return Some(hand);
            }
            self.visited.set(hand, 0);
            self.order.move_to_head(self.passed(), hand);
        }
    }

    #[inline]
    fn turn_back_at_the_head(&mut self) {
        if self.order.head(self.ahead).is_none() {
            self.ahead = self.passed();
        }
    }
}

impl Policy for Sieve {
    const INFO: PolicyInfo = PolicyInfo::new(
        "sieve",
        "FIFO whose hand passes over entries that were hit, which stay in place",
        "Zhang et al., NSDI '24",
    );

    fn new(_: &Parameters) -> Self {
        // Both parts are one queue with a hand in it.
        Self { order: Lists::named(["queue"; 2]), ahead: 0, visited: Counters::new(1) }
    }
}

impl Listed for Sieve {
    type Marks = Counters;
    type Lists = Lists<2>;

    const BY_PLACE: bool = true;

    fn lists(&self) -> &Lists<2> {
        &self.order
    }

    fn lists_mut(&mut self) -> &mut Lists<2> {
        &mut self.order
    }

    #[inline]
    fn marks(&self) -> &Counters {
        &self.visited
    }

    fn reserve_places(&mut self, places: usize) {
        self.visited.reserve_places(places);
    }

    fn promote(&mut self, _: Slot) {}

    #[inline]
    fn insert(&mut self, slot: Slot, _: &Access) {
        self.turn_back_at_the_head();
        self.visited.set(slot, 0);
        self.order.push_head(self.ahead, slot);
    }

    #[inline]
    fn evict(&mut self, _: Option<&Access>) -> Option<Slot> {
        self.advance()?;
        self.order.pop_tail(self.ahead)
    }

    fn victim(&mut self, _: Option<&Access>) -> Option<Slot> {
        self.advance()
    }

    fn hottest_first(&self) -> impl AsRef<[usize]> {
        [self.ahead, self.passed()]
    }

    fn hits(&self) -> Option<&Counters> {
        Some(&self.visited)
    }
    fn resized(&mut self) {
        self.visited.reserve(self.order.slots());
    }

    fn moved(&mut self, from: Slot, to: Slot) {
        self.visited.set(to, self.visited.get(from));
    }

    fn other_memory_bytes(&self) -> usize {
        self.visited.memory_bytes()
    }
}
