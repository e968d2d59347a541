//! What every registered policy promises, checked on random sequences of calls: no slot is lost or
//! returned twice, frozen ones stay until they thaw, and nothing that is not in the order has any
//! effect.

use std::collections::{BTreeSet, HashMap};

use floe_policy::owner::SlotOwner;
use floe_policy::registry::{Choice, Entry, Visitor};
use floe_policy::{
    Access, AnyPolicy, Cursor, Direction, Eviction, HitKind, Marks, POLICIES, Policy, Priority,
    PriorityPools, Replacement, Slot, Touch, mix, tag_of, with,
};
use proptest::prelude::*;

mod frozen;

const SLOTS: u32 = 24;
const KEYS: u64 = 60;
/// Policies of different kinds, which are checked below pools for priorities, too.
const BELOW_POOLS: [&str; 4] = ["lru", "qd-clock", "arc", "lfu"];

#[derive(Debug, Clone)]
enum Step {
    Insert { slot: u32, key: u64, weight: u32 },
    Hit(u32),
    StalePromotion(u32),
    Prioritize { slot: u32, priority: Priority },
    Remove(u32),
    Evict(Option<u64>),
    Transfer { from: u32, to: u32 },
    Reweigh { slot: u32, weight: u32 },
    Freeze(usize),
    Thaw,
    ThawSome(usize),
    Capacity(u64),
}

fn steps(weight_max: u32) -> impl Strategy<Value = Vec<Step>> {
    let slot = 0..SLOTS;
    let step = prop_oneof![
        6 => (slot.clone(), 0..KEYS, 1..=weight_max)
            .prop_map(|(slot, key, weight)| Step::Insert { slot, key, weight }),
        6 => slot.clone().prop_map(Step::Hit),
        1 => slot.clone().prop_map(Step::StalePromotion),
        3 => (slot.clone(), prop_oneof![Just(Priority::High), Just(Priority::Low)])
            .prop_map(|(slot, priority)| Step::Prioritize { slot, priority }),
        1 => slot.clone().prop_map(Step::Remove),
        4 => proptest::option::of(0..KEYS).prop_map(Step::Evict),
        1 => (slot.clone(), slot.clone()).prop_map(|(from, to)| Step::Transfer { from, to }),
        1 => (slot, 1..=weight_max).prop_map(|(slot, weight)| Step::Reweigh { slot, weight }),
        1 => (0..SLOTS as usize).prop_map(Step::Freeze),
        1 => Just(Step::Thaw),
        1 => (0..SLOTS as usize).prop_map(Step::ThawSome),
        1 => (1..2 * u64::from(SLOTS)).prop_map(Step::Capacity),
    ];
    proptest::collection::vec(step, 0..300)
}

fn access(key: u64, weight: u32) -> Access {
    Access {
        weight,
        position: key,
        next_use: key,
        direction: Direction::Read,
        ..Access::new(mix(key))
    }
}

fn ranked(order: &impl Eviction) -> Vec<Slot> {
    let (mut cursor, mut slots) = (Cursor::START, Vec::new());
    while cursor != Cursor::END {
        cursor = order.rank(cursor, &mut slots);
    }
    slots
}

/// Something that every policy promises.
trait Check {
    fn check<P: Replacement>(&self, name: &str, make: impl Fn() -> P);
}

struct ByType<'a, C>(&'a C);

impl<C: Check> Visitor for ByType<'_, C> {
    type Out = ();

    fn visit<P: Policy>(self, make: impl Fn() -> P) {
        self.0.check(P::INFO.name, make);
    }
}

/// Runs a check on every registered policy, chosen by type and at run time.
fn every_policy(check: &impl Check) {
    for Entry { info, .. } in POLICIES {
        let choice = Choice::of(info);
        with(&choice, ByType(check));
        check.check(&format!("{choice} chosen at run time"), || AnyPolicy::new(&choice));
        if BELOW_POOLS.contains(&info.name) {
            check.check(&format!("{choice} below pools"), || {
                PriorityPools::new(AnyPolicy::new(&choice), 0.2, 0.3)
            });
        }
    }
}

struct KeepsTrack<'a>(&'a [Step]);

impl Check for KeepsTrack<'_> {
    fn check<P: Replacement>(&self, name: &str, make: impl Fn() -> P) {
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
                Step::Prioritize { slot, .. } if frozen.contains(&slot) => {}
                Step::Prioritize { slot, priority } => order.prioritize(Slot(slot), priority),
                Step::Remove(slot) => {
                    order.remove(Slot(slot));
                    present.remove(&slot);
                    frozen.remove(&slot);
                }
                Step::Evict(incoming) => {
                    let incoming = incoming.map(|key| access(key, 1));
                    let said = order.victim(incoming.as_ref());
                    let victim = order.evict(incoming.as_ref());
                    assert!(
                        said.is_none() || said == victim,
                        "{name} said {said:?}, then {victim:?} left"
                    );
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
                Step::Reweigh { slot, weight } => order.reweigh(Slot(slot), weight),
                Step::Freeze(count) => {
                    let slots: Vec<Slot> = ranked(&order).into_iter().take(count).collect();
                    order.freeze(&slots);
                    frozen.extend(slots.iter().map(|slot| slot.0));
                }
                Step::Thaw => {
                    order.thaw();
                    frozen.clear();
                }
                Step::ThawSome(most) => {
                    let before = frozen.len();
                    let all = order.thaw_some(most);
                    for Slot(slot) in ranked(&order) {
                        frozen.remove(&slot);
                    }
                    let came = before - frozen.len();
                    assert!(if all { frozen.is_empty() } else { came == most }, "{name}: {came}");
                }
                Step::Capacity(weight) => order.set_capacity(weight),
            }
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

struct GivesNothing;

impl Check for GivesNothing {
    fn check<P: Replacement>(&self, name: &str, make: impl Fn() -> P) {
        let mut order = make();
        assert_eq!(order.evict(None), None, "{name} without room");
        order.reserve(4);
        assert_eq!(order.evict(Some(&access(1, 1))), None, "{name} with room");
        order.remove(Slot(2));
        order.promote(Slot(3));
        order.transfer(Slot(1), Slot(2));
        order.freeze(&[Slot(0)]);
        order.thaw();
        assert_eq!(order.len(), 0, "{name}");
    }
}

#[test]
fn an_empty_order_has_no_victim_and_ignores_absent_slots() {
    every_policy(&GivesNothing);
}

/// The order in which slots leave after `prepare`.
fn drained(mut order: impl Eviction) -> Vec<Slot> {
    std::iter::from_fn(|| order.evict(None)).collect()
}

/// An order of `SLOTS` entries some of which were hit.
fn warm<P: Replacement>(make: impl Fn() -> P, reserve_first: usize) -> P {
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

struct SaysWhoLeaves;

impl Check for SaysWhoLeaves {
    fn check<P: Replacement>(&self, name: &str, make: impl Fn() -> P) {
        let mut asked = warm(&make, SLOTS as usize);
        let mut said = Vec::new();
        let ask = || {
            said.push(asked.victim(None));
            asked.evict(None)
        };
        let left: Vec<Slot> = std::iter::from_fn(ask).collect();
        assert_eq!(left, drained(warm(&make, SLOTS as usize)), "{name}: asking changed who leaves");
        assert_eq!(said.pop(), Some(None), "{name}: nobody was left");
        let says = said.iter().filter(|said| said.is_some()).count();
        assert!(
            says == 0 || says == left.len(),
            "{name} says who leaves {says} times of {}",
            left.len()
        );
        assert_eq!(
            says > 0,
            SAY_WHO_LEAVES.contains(&make().info().name),
            "{name} says who leaves"
        );
    }
}

/// Policies that name a victim before it leaves.
const SAY_WHO_LEAVES: [&str; 18] = [
    "fifo",
    "lru",
    "relaxed-lru",
    "prob-lru",
    "clock",
    "slru",
    "2q",
    "s3-fifo",
    "sieve",
    "lfu",
    "qdlp",
    "qd-clock",
    "clock2q-plus",
    "car",
    "clock-pro",
    "s4-fifo",
    "auto",
    "mq",
];

#[test]
fn some_policies_say_who_leaves_and_are_not_changed_by_it() {
    every_policy(&SaysWhoLeaves);
}

struct MarksByPlace;

impl Check for MarksByPlace {
    /// Two orders get the same requests. The owner of one says where entries lie: at another place
    /// with each insertion and replacement, as in the cache in memory. Both evict alike.
    fn check<P: Replacement>(&self, name: &str, make: impl Fn() -> P) {
        const ROOM: u32 = SLOTS / 2;
        if !P::BY_PLACE {
            return;
        }
        let (mut by_slot, mut by_place) = (make(), make());
        for order in [&mut by_slot, &mut by_place] {
            order.reserve(4);
            order.set_capacity(ROOM.into());
        }
        by_place.reserve_places(0);
        let (mut keys, mut lies_at) = (vec![None; ROOM as usize], vec![None; ROOM as usize]);
        let (mut free, mut places): (Vec<u32>, u32) = (Vec::new(), 0);
        for step in 0..4000_u64 {
            let random = mix(step);
            let key = random % 40;
            let known = keys.iter().position(|&there| there == Some(key));
            if free.is_empty() {
                by_place.reserve_places(places as usize + 8);
                free.extend(places..places + 8);
                places += 8;
            }
            let mut moves = |slot: u32, order: &mut P, is_in: bool| {
                let place = free.swap_remove(random as usize % free.len());
                order.place(Slot(slot), place, is_in);
                free.extend(lies_at[slot as usize].replace(place));
            };
            match known {
                Some(slot) if random >> 32 & 3 == 0 => {
                    moves(slot as u32, &mut by_place, true); // its value is replaced
                    by_slot.access(Slot(slot as u32));
                    by_place.access(Slot(slot as u32));
                }
                Some(slot) => {
                    let place = lies_at[slot].expect("it was placed");
                    let slot = Slot(slot as u32);
                    let owed = by_slot.marks().touch(slot);
                    assert_eq!(by_place.marks().touch_at(|| slot, || place), owed, "{name}");
                    if owed != Touch::Noted {
                        by_slot.promote(slot);
                        by_place.promote(slot);
                    }
                }
                None => {
                    let access = access(key, 1);
                    let slot = match keys.iter().position(Option::is_none) {
                        Some(free) => Slot(free as u32),
                        None => {
                            let victim = by_slot.evict(Some(&access)).expect("it is full");
                            assert_eq!(by_place.evict(Some(&access)), Some(victim), "{name}");
                            victim
                        }
                    };
                    if slot.index() == 4 {
                        by_slot.reserve(ROOM as usize);
                        by_place.reserve(ROOM as usize);
                    }
                    keys[slot.index()] = Some(key);
                    moves(slot.0, &mut by_place, false);
                    by_slot.insert(slot, &access);
                    by_place.insert(slot, &access);
                }
            }
        }
        // A late reader has marks of fewer places.
        by_place.marks().touch_at(|| Slot(0), || places + 100);
    }
}

#[test]
fn hits_marked_by_place_count_as_those_by_slot() {
    every_policy(&MarksByPlace);
}

struct TagsOfOwner;

impl Check for TagsOfOwner {
    /// Two orders get the same requests. The owner of one keeps the tags of keys. Both evict alike.
    fn check<P: Replacement>(&self, name: &str, make: impl Fn() -> P) {
        const ROOM: u32 = SLOTS / 2;
        let (mut with, mut without) = (make(), make());
        without.leave_tags_to_owner();
        for order in [&mut with, &mut without] {
            order.reserve(ROOM as usize);
            order.set_capacity(ROOM.into());
        }
        let mut keys = vec![None; ROOM as usize];
        for step in 0..8000_u64 {
            // Some keys come back soon after they have left.
            let key = mix(step) % 60 * (mix(step) >> 32) % 60;
            if let Some(slot) = keys.iter().position(|&there| there == Some(key)) {
                let slot = Slot(slot as u32);
                if mix(step) >> 16 & 7 == 0 {
                    with.remove(slot);
                    without.remove(slot);
                    keys[slot.index()] = None;
                } else {
                    with.access(slot);
                    without.access(slot);
                }
                continue;
            }
            let access = access(key, 1);
            let slot = keys.iter().position(Option::is_none).map(|free| Slot(free as u32));
            let slot = slot.unwrap_or_else(|| {
                let victim = with.evict(Some(&access)).expect("it is full");
                assert_eq!(without.evict(Some(&access)), Some(victim), "{name}");
                let left = keys[victim.index()].expect("it is in the order");
                without.departed(tag_of(self::access(left, 1).hash));
                victim
            });
            keys[slot.index()] = Some(key);
            with.insert(slot, &access);
            without.insert(slot, &access);
        }
    }
}

#[test]
fn orders_evict_alike_whoever_keeps_the_tags() {
    every_policy(&TagsOfOwner);
}

struct KeepsPlaces;

impl Check for KeepsPlaces {
    fn check<P: Replacement>(&self, name: &str, make: impl Fn() -> P) {
        let few = SLOTS as usize / 2;
        let as_it_was = drained(warm(&make, few));
        let mut grown = warm(&make, few);
        grown.reserve(few * 10);
        assert_eq!(drained(grown), as_it_was, "{name}: growing changed the order");

        let mut moved = warm(&make, few);
        moved.reserve(few * 10);
        moved.transfer(Slot(3), Slot(77));
        let expected: Vec<Slot> =
            as_it_was.iter().map(|&slot| if slot == Slot(3) { Slot(77) } else { slot }).collect();
        assert_eq!(drained(moved), expected, "{name}: a transfer changed the order");
    }
}

#[test]
fn growing_and_moving_keep_the_order() {
    every_policy(&KeepsPlaces);
}

struct IsFifoLike;

impl Check for IsFifoLike {
    fn check<P: Replacement>(&self, name: &str, make: impl Fn() -> P) {
        let order = warm(&make, SLOTS as usize);
        let marks = order.marks().clone();
        let owes = (0..1000).any(|hit| marks.touch(Slot(hit % SLOTS)) != Touch::Noted);
        let entry = POLICIES.iter().find(|entry| entry.info.name == order.info().name);
        assert_eq!(entry.expect("it is registered").kind == HitKind::LruLike, owes, "{name}");
        assert!(<P::Marks as Marks>::KIND == HitKind::LruLike || !owes, "{name}");
    }
}

#[test]
fn only_lru_like_policies_ever_owe_a_promotion() {
    every_policy(&IsFifoLike);
}

struct Repeats;

impl Check for Repeats {
    fn check<P: Replacement>(&self, name: &str, make: impl Fn() -> P) {
        let run = || drained(warm(&make, SLOTS as usize));
        assert_eq!(run(), run(), "{name}");
    }
}

#[test]
fn the_same_calls_give_the_same_victims() {
    every_policy(&Repeats);
}

struct RanksInBatches;

impl Check for RanksInBatches {
    fn check<P: Replacement>(&self, name: &str, make: impl Fn() -> P) {
        let order = warm(&make, 3 * Cursor::BATCH + 5);
        let (mut cursor, mut slots) = (Cursor::START, Vec::new());
        while cursor != Cursor::END {
            let before = slots.len();
            cursor = order.rank(cursor, &mut slots);
            assert!(slots.len() - before <= Cursor::BATCH, "{name}: a batch is too long");
        }
        slots.sort();
        slots.dedup();
        assert_eq!(slots.len(), order.len(), "{name}");
    }
}

#[test]
fn a_ranking_comes_in_bounded_batches() {
    every_policy(&RanksInBatches);
}

#[test]
fn what_was_hit_ranks_before_what_was_not_where_hits_only_leave_marks() {
    struct HitsFirst;
    impl Check for HitsFirst {
        fn check<P: Replacement>(&self, name: &str, make: impl Fn() -> P) {
            let marking = [
                "clock",
                "sieve",
                "s3-fifo",
                "qdlp",
                "qd-clock",
                "clock2q-plus",
                "car",
                "clock-pro",
                "s4-fifo",
                "auto",
            ];
            if !marking.contains(&make().info().name) {
                return;
            }
            let mut order = make();
            order.set_capacity(64);
            order.reserve(64);
            (0..64).for_each(|slot| order.insert(Slot(slot), &access(slot.into(), 1)));
            let hit = [3, 17, 40, 63].map(Slot);
            hit.iter().for_each(|&slot| order.access(slot));
            let mut best = ranked(&order)[..4].to_vec();
            best.sort();
            assert_eq!(best, hit, "{name}");
        }
    }
    every_policy(&HitsFirst);
}

#[test]
fn segments_are_sized_by_weight() {
    let mut order = floe_policy::Slru::default();
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
struct MakesRoom<'a> {
    capacity: u64,
    requests: &'a [(u64, u32)],
}

impl Check for MakesRoom<'_> {
    fn check<P: Replacement>(&self, name: &str, make: impl Fn() -> P) {
        let mut order = make();
        order.set_capacity(self.capacity);
        order.reserve(SLOTS as usize);
        let mut held: Vec<Option<(u64, u32)>> = vec![None; KEYS as usize];
        let mut weight = 0;
        order.reserve(KEYS as usize);
        for &(key, size) in self.requests {
            let access = access(key, size);
            if let Some(slot) =
                held.iter().position(|entry| entry.is_some_and(|entry| entry.0 == key))
            {
                order.hit(Slot(slot as u32), &access);
                continue;
            }
            if u64::from(size) > self.capacity {
                continue;
            }
            while weight + u64::from(size) > self.capacity {
                let victim =
                    order.evict(Some(&access)).unwrap_or_else(|| panic!("{name} frees no room"));
                let (_, left) =
                    held[victim.index()].take().unwrap_or_else(|| panic!("{name} evicts twice"));
                weight -= u64::from(left);
            }
            let slot =
                held.iter().position(Option::is_none).expect("there are as many slots as keys");
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

/// A full cache of `SLOTS` entries and its victims.
struct Filled<P> {
    owner: SlotOwner<P, HashMap<u64, Slot>>,
    victims: Vec<Slot>,
}

impl<P: Replacement> Filled<P> {
    fn new(order: P) -> Self {
        let owner = SlotOwner::new(order, HashMap::new(), u64::from(SLOTS), SLOTS as usize);
        Self { owner, victims: Vec::new() }
    }

    fn request(&mut self, request: u64) {
        // A few keys are asked for often.
        let key = mix(request) % KEYS * (mix(request) >> 32) % KEYS;
        let access = access(key, 1);
        match self.owner.find(key) {
            Some(slot) => self.owner.hit(slot, &access),
            None => {
                let slot = self.owner.insert(key, &access, |slot, _, _| self.victims.push(slot));
                assert!(slot.is_some(), "a full order has a victim");
            }
        }
    }

    fn victims(mut self, requests: impl Iterator<Item = u64>) -> Vec<Slot> {
        requests.for_each(|request| self.request(request));
        self.victims
    }
}

struct ClonesAreApart;

impl Check for ClonesAreApart {
    fn check<P: Replacement>(&self, name: &str, make: impl Fn() -> P) {
        const REQUESTS: u64 = 1000;
        let alone = Filled::new(make()).victims(0..REQUESTS);
        assert!(alone.len() > 100, "{name}: few victims prove nothing");

        let template = make();
        let (mut one, mut other) = (Filled::new(template.clone()), Filled::new(template.clone()));
        for request in 0..REQUESTS {
            one.request(request);
            // The other one lives faster and with other keys.
            (0..3).for_each(|more| other.request(REQUESTS + request * 3 + more));
        }
        assert_eq!(
            one.victims, alone,
            "{name}: a clone of its template is disturbed by another one"
        );
        let alone = Filled::new(template).victims(REQUESTS..4 * REQUESTS);
        assert_eq!(
            other.victims, alone,
            "{name}: a clone of its template is disturbed by another one"
        );
    }
}

#[test]
fn clones_of_an_order_without_room_share_nothing() {
    every_policy(&ClonesAreApart);
}

struct Defaults;

impl Visitor for Defaults {
    type Out = ();

    fn visit<P: Policy>(self, make: impl Fn() -> P) {
        let victims = |order| Filled::new(order).victims(0..1000);
        assert_eq!(victims(P::default()), victims(make()), "{}", P::INFO.name);
    }
}

#[test]
fn the_default_of_a_policy_has_the_parameters_of_the_registry() {
    for entry in POLICIES {
        with(&Choice::of(&entry.info), Defaults);
    }
}
