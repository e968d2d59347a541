//! QD-CLOCK: quick demotion before a CLOCK, set for loads that stay the same as well as for those
//! that change.
//!
//! QDLP (one hit in the small FIFO is enough to stay; Yang et al., HotOS '23) with four settings,
//! three of which its quick_cache has too: a cache fills its main queue first, has fewer ghosts and
//! a smaller small queue; counters go up to 7, as a generalised CLOCK may (Smith, TODS '78).
//!
//! - Until something has to leave, new entries go to the main queue while it has room: what fills
//!   an empty cache need not prove itself in a queue through which all of it passes at once.
//! - The small queue has 5 %: what is popular has more of the cache.
//! - Ghosts are two fifths of the cache: of what comes back later, most is no more popular than
//!   what it would replace.
//! - Counters of three bits tell popular entries apart that two bits take for equal.
//!
//! On Zipf's law each of the last three means fewer misses than S3-FIFO has, and on traces the
//! first one does (docs/results/policies.md).
//!
//! Not to be used where entries come in bursts of two: S3-FIFO keeps those out.

use crate::quick_demotion::named_quick_demotion;
use crate::{Parameter, Parameters, Policy, PolicyInfo};

const SMALL_SHARE: Parameter = Parameter::share("small", 0.05, "share of the small queue");
const GHOST_SHARE: Parameter = Parameter::share("ghosts", 0.4, "ghosts for each entry");
const BITS: Parameter = Parameter::count("bits", 3, 1..=7, "bits of the hit counter");

named_quick_demotion! {
    /// QD-CLOCK (`qd-clock`), the default of the cache in memory: a small FIFO demotes entries that
    /// were not hit before they reach the main queue, a CLOCK, which is filled first. FIFO-like.
    QdClock, true
}

impl Policy for QdClock {
    const INFO: PolicyInfo = PolicyInfo::new(
        "qd-clock",
        "QDLP that fills its main queue first, with fewer ghosts and longer counters",
        "Yang et al., HotOS '23; quick_cache",
    )
    .with(&[SMALL_SHARE, GHOST_SHARE, BITS]);

    fn new(parameters: &Parameters) -> Self {
        let hits_max = (1u8 << parameters.count(BITS.name)) - 1;
        Self::with(parameters.get(SMALL_SHARE.name), parameters.get(GHOST_SHARE.name), hits_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Access, Eviction, Slot};

    /// Four entries, of which the small queue has one, and two ghosts; worked out by hand.
    #[test]
    fn the_main_queue_fills_first_and_ghosts_come_back_to_it() {
        let mut order = QdClock::with(0.25, 0.5, 7);
        order.reserve(4);
        for slot in 0..4 {
            order.insert(Slot(slot), &Access::new(slot.into())); // 0, 1 and 2 fill the main queue
        }
        assert_eq!(
            order.evict(None),
            Some(Slot(3)),
            "the small queue is at its size and was not hit"
        );
        order.insert(Slot(3), &Access::new(4));
        assert_eq!(order.evict(None), Some(Slot(3)));
        order.insert(Slot(3), &Access::new(3)); // a ghost: the small queue is empty now
        assert_eq!(order.evict(None), Some(Slot(0)), "the oldest of the main queue");
        order.insert(Slot(0), &Access::new(5)); // the small queue has a claim to this place
        order.access(Slot(1));
        assert_eq!(order.evict(None), Some(Slot(0)));
        order.insert(Slot(0), &Access::new(6));
        order.access(Slot(0)); // one hit is enough to stay
        assert_eq!(order.evict(None), Some(Slot(2)), "1 was hit and goes round");
    }

    #[test]
    fn an_order_that_stays_below_its_capacity_still_has_a_small_queue() {
        let mut order = QdClock::with(0.25, 0.5, 7);
        order.reserve(8);
        (0..4).for_each(|slot| order.insert(Slot(slot), &Access::new(slot.into())));
        assert_eq!(order.evict(None), Some(Slot(0)), "others have the rest of the capacity");
        order.insert(Slot(0), &Access::new(4));
        assert_eq!(order.evict(None), Some(Slot(1)));
        order.insert(Slot(1), &Access::new(5));
        assert_eq!(
            order.evict(None),
            Some(Slot(0)),
            "two came to the small queue, which is its share"
        );
    }
}
