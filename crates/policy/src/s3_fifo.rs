//! S3-FIFO: a small queue filters out keys that are requested once before they reach the main
//! queue.
//!
//! New entries go to a small FIFO. Entries that were hit there more than once move on to the main
//! FIFO; the others leave and are remembered as ghosts. A ghost that comes back enters the main
//! queue at once. The main queue is a CLOCK with two bits (Yang et al., "FIFO Queues are All You
//! Need for Cache Eviction", SOSP '23, algorithm 1).
//!
//! With `fill=small`, as in the paper, the entries that fill an empty cache all enter the small
//! queue, and have to pass its end once the cache is full. With `fill=main`, as in the code of its
//! author since December 2024 (libCacheSim, S3FIFO.c), the small queue takes entries up to its
//! share, and the others enter the main queue until the first eviction.
//!
//! Its queues are those of [quick demotion](crate::quick_demotion), which asks for one hit.
//!
//! Do not use S3-FIFO where entries are hit twice in a burst and never again: the burst passes the
//! filter.

use crate::quick_demotion::{FixedRules, QuickDemotion, SMALL_SHARE, TWO_BITS};
use crate::{Parameter, Parameters, Policy, PolicyInfo};

/// Number of hits in the small queue that earn a place in the main one (algorithm 1).
const HITS_TO_STAY: u8 = 2;

/// The queue that takes the entries that fill an empty cache.
const FILL: Parameter = Parameter::choice(
    "fill",
    &["small", "main"],
    "queue that new entries join until the cache is full, once the small one has its share",
);

/// S3-FIFO (`s3-fifo`): a small FIFO filters which entries reach the main queue; keys with a ghost
/// enter it at once. FIFO-like.
pub type S3Fifo = QuickDemotion<FixedRules<HITS_TO_STAY, false>>;

impl Policy for S3Fifo {
    const INFO: PolicyInfo = PolicyInfo::new(
        "s3-fifo",
        "a small FIFO filters the main one; keys with a ghost enter the main one at once",
        "Yang et al., SOSP '23",
    )
    .with(&[SMALL_SHARE, FILL]);

    fn new(parameters: &Parameters) -> Self {
        let small_share = parameters.get(SMALL_SHARE.name);
        // As many ghosts as the main queue has entries.
        Self::with(FixedRules, small_share, 1.0 - small_share, TWO_BITS)
            .overflowing(parameters.count(FILL.name) == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::S3Fifo;
    use crate::registry::Choice;
    use crate::{Access, Eviction, Policy, Slot};

    fn order(choice: &str, capacity: u64) -> S3Fifo {
        let choice: Choice = choice.parse().expect("the choice is valid");
        let mut order = S3Fifo::new(choice.parameters());
        order.set_capacity(capacity);
        order.reserve(8);
        order
    }

    fn insert(order: &mut S3Fifo, slot: u32, key: u64, weight: u32) {
        order.insert(Slot(slot), &Access { weight, ..Access::new(key) });
    }

    /// Four entries, one of them in the small queue. Worked out by hand: of the first four, 0 is
    /// in the small queue and 1, 2 and 3 in the main one, or all are in the small one.
    #[test]
    fn the_rest_of_an_empty_cache_is_filled_by_the_queue_that_was_chosen() {
        for (choice, expected) in [
            // 0 is alone in the small queue, then 4, 5 and 6 pass through it; 1, 2 and 3 stay.
            ("s3-fifo:small=0.25:fill=main", [0, 4, 5, 6]),
            // All are in the small queue, in which only 1, hit twice, earns the main one. The
            // others leave in the order of insertion.
            ("s3-fifo:small=0.25:fill=small", [0, 2, 3, 4]),
            ("s3-fifo:small=0.25", [0, 2, 3, 4]),
        ] {
            let mut order = order(choice, 4);
            let mut held = [0, 1, 2, 3u64];
            (0..4).for_each(|slot| insert(&mut order, slot, u64::from(slot), 1));
            (0..2).for_each(|_| order.access(Slot(1)));
            let mut left = Vec::new();
            for key in 4..8 {
                let slot = order.evict(None).expect("the cache is full");
                left.push(std::mem::replace(&mut held[slot.index()], key));
                insert(&mut order, slot.0, key, 1);
            }
            assert_eq!(left, expected, "{choice}");
        }
    }

    /// The small queue has a share of 10: entries of 6 and 6 exceed it, so the third enters the
    /// main queue, and a fourth after an eviction the small one.
    #[test]
    fn shares_are_filled_by_weight() {
        let mut order = order("s3-fifo:small=0.25:fill=main", 40);
        for slot in 0..3 {
            insert(&mut order, slot, u64::from(slot), 6);
        }
        assert_eq!(order.evict(None), Some(Slot(0)));
        insert(&mut order, 0, 3, 6);
        assert_eq!(order.evict(None), Some(Slot(1)), "the small queue holds 12 again");
        assert_eq!(order.evict(None), Some(Slot(2)), "the small queue is below its share");
        assert_eq!(order.evict(None), Some(Slot(0)));
    }

    #[test]
    fn an_order_that_has_been_emptied_fills_as_a_new_one() {
        let mut order = order("s3-fifo:small=0.25:fill=main", 4);
        (0..4).for_each(|slot| insert(&mut order, slot, u64::from(slot), 1));
        while order.evict(None).is_some() {}
        (0..4).for_each(|slot| insert(&mut order, slot, 10 + u64::from(slot), 1));
        order.access(Slot(1));
        assert_eq!(order.evict(None), Some(Slot(0)), "the only one in the small queue");
        assert_eq!(order.evict(None), Some(Slot(2)), "one hit is enough in the main queue");
    }
}
