//! What every registered policy promises, checked on random sequences of calls: no slot is lost or returned twice,
//! frozen ones stay until they thaw, and nothing that is not in the order has any effect.

use std::collections::BTreeSet;

use floe_policy::registry::{Choice, Entry, Visitor};
use floe_policy::{
    Access, Cursor, Direction, Eviction, Kind, Marks, POLICIES, Policy, Slot, Tick, Touch, mix, with,
};
use proptest::prelude::*;

const SLOTS: u32 = 24;
const KEYS: u64 = 60;

#[derive(Debug, Clone)]
enum Step {
    Insert { slot: u32, key: u64, weight: u32 },
    Hit(u32),
    StalePromotion(u32),
    Remove(u32),
    Evict(Option<u64>),
    Transfer { from: u32, to: u32 },
    Freeze(usize),
    Thaw,
    Capacity(u64),
}

fn steps(weight_max: u32) -> impl Strategy<Value = Vec<Step>> {
    let slot = 0..SLOTS;
    let step = prop_oneof![
        6 => (slot.clone(), 0..KEYS, 1..=weight_max).prop_map(|(slot, key, weight)| Step::Insert { slot, key, weight }),
        6 => slot.clone().prop_map(Step::Hit),
        1 => slot.clone().prop_map(Step::StalePromotion),
        1 => slot.clone().prop_map(Step::Remove),
        4 => proptest::option::of(0..KEYS).prop_map(Step::Evict),
        1 => (slot.clone(), slot).prop_map(|(from, to)| Step::Transfer { from, to }),
        1 => (0..SLOTS as usize).prop_map(Step::Freeze),
        1 => Just(Step::Thaw),
        1 => (1..2 * u64::from(SLOTS)).prop_map(Step::Capacity),
    ];
    proptest::collection::vec(step, 0..300)
}

fn access(key: u64, weight: u32) -> Access {
    Access { weight, position: key, next_use: key, direction: Direction::Read, ..Access::new(mix(key)) }
}

fn ranked(order: &impl Eviction) -> Vec<Slot> {
    let (mut cursor, mut slots) = (Cursor::START, Vec::new());
    while cursor != Cursor::END {
        cursor = order.rank(cursor, &mut slots);
    }
    slots
}

/// Runs a check on every registered policy.
fn every_policy<V: Visitor + Clone>(visitor: &V) {
    for Entry { about, .. } in POLICIES {
        with(&Choice::of(about), visitor.clone());
    }
}

#[derive(Clone)]
struct KeepsTrack<'a>(&'a [Step]);

impl Visitor for KeepsTrack<'_> {
    type Out = ();

    fn visit<P: Policy>(self, make: impl Fn() -> P) {
        let name = P::ABOUT.name;
        let mut order = make();
        let (mut present, mut frozen) = (BTreeSet::new(), BTreeSet::new());
        order.reserve(SLOTS as usize / 2);
        order.reserve(SLOTS as usize);
        for step in self.0 {
            match *step {
                Step::Insert { slot, key, weight } if !present.contains(&slot) => {
                    order.insert(Slot(slot), &access(key, weight));
                    present.insert(slot);
                }
                Step::Insert { slot, key, weight } => order.hit(Slot(slot), &access(key, weight)),
                Step::Hit(slot) => order.access(Slot(slot)),
                Step::StalePromotion(slot) => order.promote(Slot(slot)),
                Step::Remove(slot) => {
                    order.remove(Slot(slot));
                    present.remove(&slot);
                    frozen.remove(&slot);
                }
                Step::Evict(incoming) => {
                    let incoming = incoming.map(|key| access(key, 1));
                    let victim = order.evict(incoming.as_ref());
                    assert_eq!(
                        victim.is_none(),
                        present.len() == frozen.len(),
                        "{name}: {step:?} gave {victim:?}"
                    );
                    if let Some(Slot(victim)) = victim {
                        assert!(!frozen.contains(&victim), "{name} evicted frozen slot {victim}");
                        assert!(present.remove(&victim), "{name} evicted absent slot {victim}");
                    }
                }
                Step::Transfer { from, to } if !present.contains(&to) => {
                    order.transfer(Slot(from), Slot(to));
                    for set in [&mut present, &mut frozen] {
                        if set.remove(&from) {
                            set.insert(to);
                        }
                    }
                }
                Step::Transfer { .. } => {}
                Step::Freeze(count) => {
                    let slots: Vec<Slot> = ranked(&order).into_iter().take(count).collect();
                    order.freeze(&slots);
                    frozen.extend(slots.iter().map(|slot| slot.0));
                }
                Step::Thaw => {
                    order.thaw();
                    frozen.clear();
                }
                Step::Capacity(weight) => order.set_capacity(weight),
            }
            order.tick(Tick(order.len() as u64));
            assert_eq!(order.len(), present.len(), "{name}: length after {step:?}");
            let mut in_reach = ranked(&order);
            in_reach.sort();
            let expected: Vec<Slot> = present.difference(&frozen).map(|&slot| Slot(slot)).collect();
            assert_eq!(in_reach, expected, "{name}: ranking after {step:?}");
        }
        order.thaw();
        let mut left = BTreeSet::new();
        while let Some(Slot(slot)) = order.evict(None) {
            assert!(left.insert(slot), "{name} evicted slot {slot} twice");
        }
        assert_eq!(left, present, "{name}: what was left");
        assert!(order.is_empty(), "{name} is empty after all slots have left");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_policy_loses_a_slot_or_returns_one_twice(steps in steps(1)) {
        every_policy(&KeepsTrack(&steps));
    }

    #[test]
    fn no_policy_loses_a_weighted_slot(steps in steps(9)) {
        every_policy(&KeepsTrack(&steps));
    }
}

#[derive(Clone)]
struct GivesNothing;

impl Visitor for GivesNothing {
    type Out = ();

    fn visit<P: Policy>(self, make: impl Fn() -> P) {
        let mut order = make();
        assert_eq!(order.evict(None), None, "{} without room", P::ABOUT.name);
        order.reserve(4);
        assert_eq!(order.evict(Some(&access(1, 1))), None, "{} with room", P::ABOUT.name);
        order.remove(Slot(2));
        order.promote(Slot(3));
        order.transfer(Slot(1), Slot(2));
        order.freeze(&[Slot(0)]);
        order.thaw();
        assert_eq!(order.len(), 0, "{}", P::ABOUT.name);
    }
}

#[test]
fn an_empty_order_has_no_victim_and_ignores_absent_slots() {
    every_policy(&GivesNothing);
}

/// The order in which slots leave after `prepare`.
fn drained<P: Policy>(mut order: P) -> Vec<Slot> {
    std::iter::from_fn(|| order.evict(None)).collect()
}

/// An order of `SLOTS` entries some of which were hit.
fn warm<P: Policy>(make: impl Fn() -> P, reserve_first: usize) -> P {
    let mut order = make();
    order.set_capacity(u64::from(SLOTS));
    order.reserve(reserve_first);
    for slot in 0..reserve_first as u32 {
        order.insert(Slot(slot), &access(u64::from(slot), 1));
    }
    for slot in 0..reserve_first as u32 {
        for _ in 0..mix(u64::from(slot)) % 3 {
            order.access(Slot(slot));
        }
    }
    order
}

#[derive(Clone)]
struct KeepsPlaces;

impl Visitor for KeepsPlaces {
    type Out = ();

    fn visit<P: Policy>(self, make: impl Fn() -> P) {
        let few = SLOTS as usize / 2;
        let as_it_was = drained(warm(&make, few));
        let mut grown = warm(&make, few);
        grown.reserve(few * 10);
        assert_eq!(drained(grown), as_it_was, "{}: growing changed the order", P::ABOUT.name);

        let mut moved = warm(&make, few);
        moved.reserve(few * 10);
        moved.transfer(Slot(3), Slot(77));
        let expected: Vec<Slot> =
            as_it_was.iter().map(|&slot| if slot == Slot(3) { Slot(77) } else { slot }).collect();
        assert_eq!(drained(moved), expected, "{}: a transfer changed the order", P::ABOUT.name);
    }
}

#[test]
fn growing_and_moving_keep_the_order() {
    every_policy(&KeepsPlaces);
}

#[derive(Clone)]
struct IsFifoLike;

impl Visitor for IsFifoLike {
    type Out = ();

    fn visit<P: Policy>(self, make: impl Fn() -> P) {
        let order = warm(&make, SLOTS as usize);
        let marks = order.marks().clone();
        let owes = (0..1000).any(|hit| marks.touch(Slot(hit % SLOTS)) != Touch::Noted);
        assert_eq!(<P::Marks as Marks>::KIND == Kind::LruLike, owes, "{}", P::ABOUT.name);
    }
}

#[test]
fn only_lru_like_policies_ever_owe_a_promotion() {
    every_policy(&IsFifoLike);
}

#[derive(Clone)]
struct Repeats;

impl Visitor for Repeats {
    type Out = ();

    fn visit<P: Policy>(self, make: impl Fn() -> P) {
        let run = || drained(warm(&make, SLOTS as usize));
        assert_eq!(run(), run(), "{}", P::ABOUT.name);
    }
}

#[test]
fn the_same_calls_give_the_same_victims() {
    every_policy(&Repeats);
}

#[derive(Clone)]
struct RanksInBatches;

impl Visitor for RanksInBatches {
    type Out = ();

    fn visit<P: Policy>(self, make: impl Fn() -> P) {
        let order = warm(&make, 3 * Cursor::BATCH + 5);
        let (mut cursor, mut slots) = (Cursor::START, Vec::new());
        while cursor != Cursor::END {
            let before = slots.len();
            cursor = order.rank(cursor, &mut slots);
            assert!(slots.len() - before <= Cursor::BATCH, "{}: a batch is too long", P::ABOUT.name);
        }
        slots.sort();
        slots.dedup();
        assert_eq!(slots.len(), order.len(), "{}", P::ABOUT.name);
    }
}

#[test]
fn a_ranking_comes_in_bounded_batches() {
    every_policy(&RanksInBatches);
}

#[test]
fn segments_are_sized_by_weight() {
    let mut order = floe_policy::Slru::new(&floe_policy::Parameters::defaults(&floe_policy::Slru::ABOUT));
    order.reserve(5);
    order.set_capacity(100);
    // Four segments of 25: two entries of weight 20 do not fit into one, five of weight 5 do.
    for (slot, weight) in [(0, 20), (1, 20), (2, 5)] {
        order.insert(Slot(slot), &access(u64::from(slot), weight));
    }
    order.access(Slot(0));
    order.access(Slot(1));
    order.insert(Slot(3), &access(3, 5));
    // Slot 1 has pushed slot 0 back into the lowest segment, above slot 2 and below slot 3.
    assert_eq!(drained(order), [2, 0, 3, 1].map(Slot));
}

/// A cache that holds keys with weights, as an owner keeps its promises.
#[derive(Clone)]
struct MakesRoom<'a> {
    capacity: u64,
    requests: &'a [(u64, u32)],
}

impl Visitor for MakesRoom<'_> {
    type Out = ();

    fn visit<P: Policy>(self, make: impl Fn() -> P) {
        let name = P::ABOUT.name;
        let mut order = make();
        order.set_capacity(self.capacity);
        order.reserve(SLOTS as usize);
        let mut held: Vec<Option<(u64, u32)>> = vec![None; KEYS as usize];
        let mut weight = 0;
        order.reserve(KEYS as usize);
        for &(key, size) in self.requests {
            let access = access(key, size);
            if let Some(slot) = held.iter().position(|entry| entry.is_some_and(|entry| entry.0 == key)) {
                order.hit(Slot(slot as u32), &access);
                continue;
            }
            if u64::from(size) > self.capacity {
                continue;
            }
            while weight + u64::from(size) > self.capacity {
                let victim = order.evict(Some(&access)).unwrap_or_else(|| panic!("{name} frees no room"));
                let (_, left) = held[victim.index()].take().unwrap_or_else(|| panic!("{name} evicts twice"));
                weight -= u64::from(left);
            }
            let slot = held.iter().position(Option::is_none).expect("there are as many slots as keys");
            held[slot] = Some((key, size));
            weight += u64::from(size);
            order.insert(Slot(slot as u32), &access);
            assert_eq!(order.len(), held.iter().flatten().count(), "{name}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_policy_makes_room_by_weight(
        capacity in 1..60u64,
        requests in proptest::collection::vec((0..KEYS, prop_oneof![1..4u32, 1..40u32]), 0..300),
    ) {
        every_policy(&MakesRoom { capacity, requests: &requests });
    }
}
