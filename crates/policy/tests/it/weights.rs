//! Weights that change while an entry is in the order: a value was replaced by a larger or a
//! smaller one.

use floe_policy::registry::{Choice, Visitor};
use floe_policy::{Access, Cursor, Eviction, Lists, POLICIES, Policy, Slot, mix, with};
use proptest::prelude::*;

const SLOTS: u32 = 120;
const KEYS: u64 = 240;
const CAPACITY: u64 = 400;
const WEIGHT_MAX: u64 = 5;
/// How much more the entries weigh that change their weight.
const LARGE: u32 = 4;
/// Repetitions with other random numbers.
const ROUNDS: u64 = 10;

/// Policies that look at weights. To all others entries count one each, and so they do to SARC
/// where nothing is sequential.
const WEIGHING: &[&str] = &[
    "slru",
    "2q",
    "arc",
    "s3-fifo",
    "s4-fifo",
    "gdsf",
    "qdlp",
    "qd-clock",
    "lirs",
    "w-tinylfu",
    "lhd",
    "cacheus",
    "clock2q-plus",
    "car",
    "clock-pro",
];

fn weight(number: u64) -> u32 {
    (1 + mix(number) % WEIGHT_MAX) as u32
}

fn access(key: u64, weight: u32) -> Access {
    Access { weight, next_use: mix(key), ..Access::new(mix(key)) }
}

/// How a slot comes by its weight.
#[derive(Clone, Copy, PartialEq)]
enum Learns {
    WithTheInsertion,
    Later,
    Never,
}

/// Whom an order evicts that had some entries when it was small to them, each with one weight in
/// the end.
fn victims<P: Policy>(mut order: P, round: u64, learns: Learns) -> Vec<Slot> {
    order.reserve(SLOTS as usize);
    // While there is room for everything, no policy decides anything by weight.
    order.set_capacity(u64::from(SLOTS) * WEIGHT_MAX * 1000);
    let first = SLOTS / 4;
    let final_weight = |slot: u32| LARGE * weight(round << 32 | u64::from(slot));
    for slot in 0..first {
        let weight = if learns == Learns::WithTheInsertion { final_weight(slot) } else { 1 };
        order.insert(Slot(slot), &access(u64::from(slot), weight));
    }
    (0..2 * first).for_each(|hit| order.access(Slot(mix(round + u64::from(hit)) as u32 % first)));
    let frozen: Vec<Slot> = (0..first).step_by(3).map(Slot).collect();
    order.freeze(&frozen);
    for slot in (0..first).rev() {
        if learns == Learns::Later {
            order.reweigh(Slot(slot), weight(u64::from(slot)));
            order.reweigh(Slot(slot), final_weight(slot));
        }
    }
    order.thaw();
    order.reweigh(Slot(SLOTS - 1), 7);
    order.set_capacity(CAPACITY);

    let mut held: Vec<Option<(u64, u32)>> = (0..SLOTS)
        .map(|slot| (slot < first).then(|| (u64::from(slot), final_weight(slot))))
        .collect();
    let mut victims = Vec::new();
    for request in 0..600 {
        let random = mix(round << 32 | request);
        // Low keys are asked for often.
        let key = random % KEYS * (random >> 32 & 0xff) / 0x100;
        let access = access(key, weight(random));
        if let Some(slot) = held.iter().position(|held| held.is_some_and(|held| held.0 == key)) {
            order.hit(Slot(slot as u32), &access);
            continue;
        }
        let used = |held: &[Option<(u64, u32)>]| {
            held.iter().flatten().map(|held| u64::from(held.1)).sum::<u64>()
        };
        while used(&held) + u64::from(access.weight) > CAPACITY || held.iter().all(Option::is_some)
        {
            let victim = order.evict(Some(&access)).expect("entries hold the room");
            held[victim.index()] = None;
            victims.push(victim);
        }
        let slot = held.iter().position(Option::is_none).expect("there is a slot");
        held[slot] = Some((key, access.weight));
        order.insert(Slot(slot as u32), &access);
    }
    victims
}

struct Relearns;

impl Visitor for Relearns {
    type Out = ();

    fn visit<P: Policy>(self, make: impl Fn() -> P) {
        let name = P::INFO.name;
        if name == "auto" {
            // Its ghost caches make room when they are told the weight, not before the insertion.
            return;
        }
        let mut matters = false;
        for round in 0..ROUNDS {
            let told_at_once = victims(make(), round, Learns::WithTheInsertion);
            assert_eq!(
                victims(make(), round, Learns::Later),
                told_at_once,
                "{name}, round {round}"
            );
            matters |= victims(make(), round, Learns::Never) != told_at_once;
        }
        assert_eq!(matters, WEIGHING.contains(&name), "{name}: whether weights matter");
    }
}

#[test]
fn a_weight_told_later_counts_as_if_told_with_the_insertion() {
    for entry in POLICIES {
        with(&Choice::of(&entry.info), Relearns);
    }
}

#[test]
fn a_segment_that_grows_by_weight_spills_at_once() {
    let mut order = floe_policy::Slru::default();
    order.reserve(4);
    order.set_capacity(40);
    for slot in [0, 1, 2].map(Slot) {
        order.insert(slot, &access(u64::from(slot.0), 1));
    }
    order.access(Slot(0));
    order.access(Slot(1));
    // Segments of 10: slot 0, the coldest of the second one, falls back above slot 2, which was
    // never hit.
    order.reweigh(Slot(1), 10);
    order.insert(Slot(3), &access(3, 1));
    let left: Vec<Slot> = std::iter::from_fn(|| order.evict(None)).collect();
    assert_eq!(left, [2, 0, 3, 1].map(Slot));
}

const LISTS: usize = 3;

/// A slot of the model: its list, its weight and whether it is frozen.
type Known = Option<(usize, u32, bool)>;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sizes_of_lists_are_the_sums_of_the_weights_in_them(
        steps in proptest::collection::vec((0..8u8, 0..SLOTS, 0..SLOTS, 0..LISTS, 1..9u32), 0..300),
    ) {
        let mut lists = Lists::<LISTS>::default();
        lists.reserve(SLOTS as usize);
        lists.set_capacity(1000);
        let mut model: Vec<Known> = vec![None; SLOTS as usize];
        for (step, slot, other, list, weight) in steps {
            let (at, to) = (slot as usize, other as usize);
            match (step, model[at]) {
                (0 | 1, None) => {
                    lists.set_weight(Slot(slot), weight);
                    lists.push_head(list, Slot(slot));
                    model[at] = Some((list, weight, false));
                }
                (0..=3, known) => {
                    prop_assert_eq!(lists.reweigh(Slot(slot), weight), known.is_some());
                    model[at] = known.map(|(list, _, frozen)| (list, weight, frozen));
                }
                (4, known) => {
                    lists.delink(Slot(slot));
                    model[at] = None;
                    prop_assert_eq!(lists.contains(Slot(slot)), false, "{:?}", known);
                }
                (5, known) => {
                    lists.move_to_head(list, Slot(slot));
                    let moved = |known: (usize, u32, bool)| {
                        if known.2 { known } else { (list, known.1, false) }
                    };
                    model[at] = known.map(moved);
                }
                (6, known) if model[to].is_none() => {
                    lists.transfer(Slot(slot), Slot(other));
                    model[at] = None;
                    model[to] = known;
                }
                (6, _) => {
                    lists.thaw();
                    model.iter_mut().flatten().for_each(|known| known.2 = false);
                }
                (_, known) => {
                    lists.freeze(&[Slot(slot)]);
                    model[at] = known.map(|(list, weight, _)| (list, weight, true));
                }
            }
            let sum = |of: &dyn Fn((usize, u32, bool)) -> bool| -> u64 {
                let those = model.iter().flatten().filter(|&&known| of(known));
                those.map(|known| u64::from(known.1)).sum()
            };
            for list in 0..LISTS {
                prop_assert_eq!(lists.size(list), sum(&|known| known.0 == list && !known.2));
                let mut listed = Vec::new();
                lists.rank(&[list], Cursor::START, &mut listed);
                let weight: u64 = listed.iter().map(|&slot| lists.weight(slot)).sum();
                prop_assert_eq!(weight, lists.size(list));
            }
            prop_assert_eq!(lists.capacity(), 1000 - sum(&|known| known.2));
        }
    }
}
