//! A policy chosen at run time behaves as the same one chosen by type: same victims, same rankings,
//! same debts.

use floe_policy::registry::{Choice, Visitor};
use floe_policy::{
    Access, AnyPolicy, Cursor, Marks, POLICIES, Policy, Replacement, Slot, mix, with,
};
use proptest::prelude::*;

const SLOTS: u32 = 24;
const KEYS: u64 = 60;
const STEPS: u8 = 23;

/// What a request does and to which slot, and a number for the rest.
type Step = (u8, u32, u64);

/// Everything that an order answers to the steps.
fn answers<P: Replacement>(mut order: P, steps: &[Step]) -> Vec<String> {
    let mut held = [false; SLOTS as usize];
    order.reserve(SLOTS as usize / 2);
    order.reserve(SLOTS as usize);
    order.set_capacity(3 * u64::from(SLOTS));
    let marks = order.marks().clone();
    let answer = |&(step, slot, number): &Step| {
        let access = Access {
            weight: 1 + (number >> 32) as u32 % 5,
            in_a_row: number % KEYS,
            ahead: number.is_multiple_of(7),
            next_use: number >> 8,
            ..Access::new(mix(number % KEYS))
        };
        let (slot, other) = (Slot(slot), Slot(number as u32 % SLOTS));
        let mut ranked = Vec::new();
        let answer = match step {
            0..9 if !held[slot.index()] => {
                held[slot.index()] = true;
                format!("{:?}", order.insert(slot, &access))
            }
            0..9 => format!("{:?}", order.hit(slot, &access)),
            9 => format!("{:?}", order.access(slot)),
            10 => format!("{:?}", marks.touch(slot)),
            11 => format!("{:?}", order.promote(slot)),
            12 => {
                held[slot.index()] = false;
                format!("{:?}", order.remove(slot))
            }
            13 if !held[other.index()] => {
                held.swap(slot.index(), other.index());
                format!("{:?}", order.transfer(slot, other))
            }
            14 => format!("{:?}", order.freeze(&[slot, other])),
            15 => format!("{:?}", order.thaw()),
            16 => format!("{:?}", order.fetches_ahead()),
            17 => format!("{:?}", order.set_capacity(number % 100)),
            18 => format!("{:?}", order.reweigh(slot, access.weight)),
            _ => {
                let victim = order.evict((number % 3 > 0).then_some(&access));
                if let Some(victim) = victim {
                    held[victim.index()] = false;
                }
                format!("{victim:?}")
            }
        };
        let end = order.rank(Cursor::START, &mut ranked);
        format!("{answer}, then {} of {ranked:?} {end:?}", order.len())
    };
    steps.iter().map(answer).collect()
}

struct Compare<'a>(&'a Choice, &'a [Step]);

impl Visitor for Compare<'_> {
    type Out = ();

    fn visit<P: Policy>(self, make: impl Fn() -> P) {
        let Self(choice, steps) = self;
        let any = AnyPolicy::new(choice);
        assert_eq!(any.info().name, P::INFO.name);
        for (at, (any, typed)) in
            answers(any, steps).into_iter().zip(answers(make(), steps)).enumerate()
        {
            assert_eq!(any, typed, "{choice}: step {at}, {:?}", steps[at]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_policy_chosen_at_run_time_answers_as_by_type(
        steps in proptest::collection::vec((0..STEPS, 0..SLOTS, any::<u64>()), 0..200),
    ) {
        for entry in POLICIES {
            let choice = Choice::of(&entry.info);
            with(&choice, Compare(&choice, &steps));
        }
    }
}

#[test]
fn parameters_reach_a_policy_chosen_at_run_time() {
    let steps: Vec<Step> =
        (0..400).map(|at| (mix(at) as u8 % STEPS, mix(at) as u32 % SLOTS, mix(mix(at)))).collect();
    let of = |text: &str| answers(text.parse::<AnyPolicy>().expect("the choice is valid"), &steps);
    assert!(of("clock:bits=3") != of("clock"), "the steps do not tell parameters apart");
    let choice: Choice = "clock:bits=3".parse().expect("the choice is valid");
    with(&choice, Compare(&choice, &steps));
}

#[test]
fn an_unknown_name_is_answered_like_any_choice() {
    let error = "mru".parse::<AnyPolicy>().expect_err("there is no such policy");
    let expected = "no policy is called `mru`; did you mean `lru`? there are: fifo, ";
    assert!(error.to_string().starts_with(expected), "{error}");
}
