//! Entries that are frozen stay out of reach of evictions, leave no memory behind, and come back
//! best first.

use std::collections::BTreeSet;

use floe_policy::{Cursor, Eviction, Priority, Replacement, Slot};

use super::{Check, access, drained, every_policy, ranked, warm};

/// Freezes the best until so many are frozen, as a cache does it: a batch at a time, going on where
/// the last one ended.
fn freeze_until(order: &mut impl Eviction, frozen: &mut Vec<Slot>, goal: usize) {
    let (mut cursor, mut before) = (Cursor::START, frozen.len());
    while frozen.len() < goal {
        let mut batch = Vec::new();
        cursor = order.rank(cursor, &mut batch);
        batch.truncate(goal - frozen.len());
        order.freeze(&batch);
        frozen.extend(batch);
        if cursor == Cursor::END {
            assert!(
                frozen.len() > before,
                "{} of {goal} were frozen and no more are to be had",
                frozen.len()
            );
            (cursor, before) = (Cursor::START, frozen.len());
        }
    }
}

struct FreezesInSteps;

impl Check for FreezesInSteps {
    fn check<P: Replacement>(&self, name: &str, make: impl Fn() -> P) {
        let count = 2 * Cursor::BATCH + 100;
        let mut order = warm(&make, count);
        let mut frozen = Vec::new();
        for percent in (2..=100).step_by(14) {
            freeze_until(&mut order, &mut frozen, count * percent / 100);
            let in_reach = ranked(&order);
            assert_eq!(in_reach.len(), count - frozen.len(), "{name} at {percent} %");
        }
        let distinct: BTreeSet<Slot> = frozen.iter().copied().collect();
        assert_eq!((frozen.len(), distinct.len()), (count, count), "{name}: each is frozen once");
        assert_eq!(order.evict(None), None, "{name}: all are frozen");

        // Replaced, removed, and hit while frozen.
        order.reserve(count + 2);
        order.transfer(frozen[0], Slot(count as u32));
        order.remove(frozen[1]);
        frozen.iter().for_each(|&slot| order.access(slot));
        assert_eq!((order.evict(None), ranked(&order)), (None, vec![]), "{name}");
        // What comes in now can leave.
        let newcomer = Slot(count as u32 + 1);
        order.insert(newcomer, &access(u64::from(newcomer.0), 1));
        assert_eq!(ranked(&order), [newcomer], "{name}");
        assert_eq!(order.evict(None), Some(newcomer), "{name}");

        order.thaw();
        assert_eq!(ranked(&order).len(), count - 1, "{name} thawed");
        let left: BTreeSet<Slot> = drained(order).into_iter().collect();
        assert!(left.len() == count - 1 && left.contains(&Slot(count as u32)), "{name}");
    }
}

#[test]
fn more_and_more_can_be_frozen_until_nothing_is_left_to_evict_and_all_thaws() {
    every_policy(&FreezesInSteps);
}

struct StaysSmall;

impl Check for StaysSmall {
    fn check<P: Replacement>(&self, name: &str, make: impl Fn() -> P) {
        let mut order = warm(&make, 100);
        order.reserve(101);
        freeze_until(&mut order, &mut Vec::new(), 50);
        let before = order.memory_bytes();
        let mut free = 100;
        for round in 0..10_000u32 {
            // Values of frozen entries are replaced, and move.
            let replaced = if free == round % 100 { 100 } else { round % 100 };
            order.transfer(Slot(replaced), Slot(free));
            free = replaced;
        }
        for round in 0..10_000u32 {
            // Entries leave, come back, and are frozen again.
            let slot = Slot(if free == round % 100 { 100 } else { round % 100 });
            order.remove(slot);
            order.insert(slot, &access(u64::from(slot.0), 1));
            order.freeze(&[slot]);
        }
        assert!(
            order.memory_bytes() < before + 8192,
            "{name}: from {before} to {} bytes",
            order.memory_bytes()
        );
        assert_eq!(order.len(), 100, "{name}");
    }
}

#[test]
fn what_is_replaced_or_removed_while_frozen_leaves_no_memory_behind() {
    every_policy(&StaysSmall);
}

#[test]
fn what_thaws_comes_back_best_first_above_the_rest() {
    fn check(name: &str, mut order: impl Eviction) {
        order.reserve(6);
        (0..6).for_each(|slot| order.insert(Slot(slot), &access(slot.into(), 1)));
        order.freeze(&[Slot(2), Slot(0)]);
        order.freeze(&[Slot(5)]);
        order.thaw();
        assert_eq!(ranked(&order)[..3], [Slot(2), Slot(0), Slot(5)], "{name}");
        assert_eq!(drained(order), [1, 3, 4, 5, 0, 2].map(Slot), "{name}");
    }
    check("fifo", floe_policy::Fifo::default());
    check("lru", floe_policy::Lru::default());
    check("lfu", floe_policy::Lfu::default());
}

#[test]
fn a_frozen_part_ordered_by_frequency_is_lifted_above_the_rest_and_keeps_its_order() {
    let mut order = floe_policy::Lfu::default();
    order.reserve(4);
    (0..4).for_each(|slot| order.insert(Slot(slot), &access(slot.into(), 1)));
    (0..9).for_each(|_| order.access(Slot(0)));
    (0..5).for_each(|_| order.access(Slot(1)));
    order.freeze(&[Slot(0), Slot(1)]);
    (0..20).for_each(|_| order.access(Slot(2)));
    order.thaw();
    assert_eq!(ranked(&order), [0, 1, 2, 3].map(Slot));
    // 2 was hit 20 times, which lifts 1 from 6 to 27 and 0 from 10 to 31: what is hit more often
    // now overtakes.
    (0..7).for_each(|_| order.access(Slot(2)));
    assert_eq!(ranked(&order), [0, 2, 1, 3].map(Slot));
    (0..4).for_each(|_| order.access(Slot(2)));
    assert_eq!(ranked(&order), [2, 0, 1, 3].map(Slot));
}

#[test]
fn what_thaws_in_parts_comes_back_in_the_order_of_a_whole_thaw() {
    struct SameOrder;
    impl Check for SameOrder {
        fn check<P: Replacement>(&self, name: &str, make: impl Fn() -> P) {
            let thawed = |thaw: &dyn Fn(&mut P)| {
                let mut order = make();
                order.set_capacity(40);
                order.reserve(40);
                for slot in 0..40 {
                    order.insert(Slot(slot), &access(slot.into(), 1));
                    if slot % 5 == 0 {
                        order.prioritize(Slot(slot), Priority::High);
                    }
                }
                (0..40).for_each(|slot| order.access(Slot(slot * slot % 37)));
                let best = ranked(&order);
                order.freeze(&best[..25]);
                [3, 7, 24, 30].into_iter().for_each(|at| order.remove(best[at]));
                thaw(&mut order);
                ranked(&order)
            };
            let whole = thawed(&|order| order.thaw());
            assert_eq!(thawed(&|order| while !order.thaw_some(4) {}), whole, "{name}");
        }
    }
    every_policy(&SameOrder);
}

#[test]
fn what_thaws_has_to_be_hit_again_to_rank_first_where_hits_only_leave_marks() {
    let mut order = floe_policy::QdClock::default();
    order.set_capacity(8);
    order.reserve(8);
    (0..8).for_each(|slot| order.insert(Slot(slot), &access(slot.into(), 1)));
    (0..7).for_each(|_| order.access(Slot(2)));
    order.freeze(&[Slot(2)]);
    order.thaw();
    (0..2).for_each(|_| order.access(Slot(5)));
    assert_eq!(ranked(&order)[..2], [Slot(5), Slot(2)], "hits before the thaw count as one");
}
