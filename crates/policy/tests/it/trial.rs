//! Trials on machines that are simulated: slow drift, noise that lasts, stalls of milliseconds.

use std::time::Duration;

use floe_policy::mix;
use floe_policy::trial::{Mode, Seen, Sums, Trial, TrialOptions, TrialOrder};
use proptest::prelude::*;

const SECOND: Duration = Duration::from_secs(1);
/// Sampled requests in a second.
const SAMPLES: f64 = 20_000.0;

struct Machine {
    state: u64,
    now: Duration,
    /// Nanoseconds in the baseline.
    baseline: f64,
    /// The variant's, as a share of the baseline's.
    ratio: f64,
    /// By how much a window differs from the next for reasons of its own, as a share.
    noise: f64,
    /// Stalls of 4 ms per second of requests.
    stalls: f64,
    drift: f64,
    level: f64,
    /// Time in which the mode was not the one decided for.
    in_other: Duration,
}

impl Machine {
    fn new(seed: u64, ratio: f64) -> Self {
        let state = mix(seed);
        let quiet = Self {
            state,
            now: Duration::ZERO,
            baseline: 200.0,
            ratio,
            noise: 0.0,
            stalls: 0.0,
            drift: 0.0,
            level: 0.9,
            in_other: Duration::ZERO,
        };
        Self { noise: 0.03, stalls: 2.0, ..quiet }
    }

    fn uniform(&mut self) -> f64 {
        self.state = mix(self.state);
        (self.state >> 11) as f64 / (1u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }

    /// Lives as ordered and answers what was seen.
    fn live(&mut self, order: TrialOrder, decided: Mode) -> Seen {
        let span = order.until.saturating_sub(self.now).max(Duration::from_micros(100));
        self.now += span;
        if order.mode != decided {
            self.in_other += span;
        }
        // A drift of some per cent within a second, the same for both modes.
        let seconds = span.as_secs_f64();
        self.drift +=
            -self.drift * (seconds / 5.0).min(1.0) + 0.05 * seconds.min(1.0).sqrt() * self.normal();
        let ratio = if order.mode == Mode::Variant { self.ratio } else { 1.0 };
        let mean = self.baseline * ratio * (1.0 + self.drift) * (1.0 + self.noise * self.normal());
        let count = (SAMPLES * seconds * (0.8 + 0.4 * self.uniform())).ceil();
        let mut sum = count * mean + count.sqrt() * mean * self.normal();
        if self.uniform() < self.stalls * seconds {
            sum += 4e6;
        }
        let sums = Sums { count: count as u64, sum, squares: sum * sum / count };
        let level = Some(self.level + 0.005 * self.normal());
        Seen { now: self.now, sums, level }
    }

    /// Runs a trial until a time; how often it changed the mode.
    fn run(&mut self, trial: &mut Trial, until: Duration) -> u32 {
        let (mut seen, mut changes) = (Seen { now: self.now, ..Seen::default() }, 0);
        while self.now < until {
            let before = trial.mode();
            let order = trial.step(&seen);
            changes += u32::from(trial.mode() != before);
            seen = self.live(order, trial.mode());
        }
        changes
    }
}

fn trial() -> Trial {
    Trial::new(Mode::Baseline, TrialOptions::default())
}

#[test]
fn modes_that_do_not_differ_are_not_changed_by_noise_and_trials_become_rare() {
    let changes: u32 = (0..200)
        .map(|seed| {
            let (mut machine, mut trial) = (Machine::new(seed, 1.0), trial());
            let changes = machine.run(&mut trial, 3600 * SECOND);
            let share = machine.in_other.as_secs_f64() / 3600.0;
            assert!(share < 0.01, "{share} of the time went to trials");
            changes
        })
        .sum();
    // 200 hours with about 20 trials each.
    assert!(changes <= 8, "the mode was changed {changes} times");
}

#[test]
fn a_gain_of_a_few_per_cent_is_found_through_noise_and_stalls_and_kept() {
    let mut kept = 0;
    for seed in 0..100 {
        let (mut machine, mut trial) = (Machine::new(seed, 0.95), trial());
        machine.run(&mut trial, 60 * SECOND);
        let found = trial.mode() == Mode::Variant;
        let changes = machine.run(&mut trial, 1200 * SECOND);
        kept += u32::from(found && changes == 0);
    }
    assert!(kept >= 97, "found and kept {kept} times of 100");
}

#[test]
fn a_variant_that_plainly_loses_is_tried_for_no_longer_than_it_takes_to_be_sure() {
    // Rounds of the first trial: the median of many.
    let rounds = |ratio: f64| {
        let mut rounds: Vec<usize> = (0..100)
            .map(|seed| {
                let (mut machine, mut trial) = (Machine::new(seed, ratio), trial());
                let mut seen = Seen::default();
                loop {
                    if let Some(decision) = trial.decisions().last() {
                        assert_eq!(
                            decision.mode,
                            Mode::Baseline,
                            "seed {seed}: {}",
                            decision.reason
                        );
                        break decision.difference.expect("rounds").windows;
                    }
                    let order = trial.step(&seen);
                    seen = machine.live(order, trial.mode());
                }
            })
            .collect();
        rounds.sort_unstable();
        rounds[rounds.len() / 2]
    };
    assert_eq!((rounds(1.0), rounds(1.3), rounds(2.0)), (24, 12, 6));
}

#[test]
fn a_gain_below_the_margin_is_not_worth_a_change() {
    let entered = (0..100).filter(|&seed| {
        let (mut machine, mut trial) = (Machine::new(seed, 0.998), trial());
        machine.run(&mut trial, 600 * SECOND) > 0
    });
    assert!(entered.count() <= 2);
}

#[test]
fn a_variant_that_has_become_worse_is_left_soon_after_the_level_shifts() {
    for seed in 0..50 {
        let (mut machine, mut trial) = (Machine::new(seed, 0.8), trial());
        machine.run(&mut trial, 1800 * SECOND);
        assert_eq!(trial.mode(), Mode::Variant, "seed {seed}");
        (machine.ratio, machine.level) = (1.2, 0.6);
        machine.run(&mut trial, 1800 * SECOND + 30 * SECOND);
        assert_eq!(trial.mode(), Mode::Baseline, "seed {seed}: {:?}", trial.decisions().last());
    }
}

#[test]
fn a_variant_that_has_become_worse_is_left_in_the_end_even_if_nothing_tells() {
    for seed in 0..20 {
        let (mut machine, mut trial) = (Machine::new(seed, 0.8), trial());
        machine.run(&mut trial, 3600 * SECOND);
        machine.ratio = 1.05;
        // The longest interval between trials is 5 minutes.
        machine.run(&mut trial, 3600 * SECOND + 700 * SECOND);
        assert_eq!(trial.mode(), Mode::Baseline, "seed {seed}");
    }
}

#[test]
fn an_idle_machine_is_left_as_it_is() {
    let mut trial = trial();
    let (mut now, mut steps) = (Duration::ZERO, 0u32);
    while now < 3600 * SECOND {
        let order = trial.step(&Seen { now, ..Seen::default() });
        assert!(order.until > now);
        (now, steps) = (order.until, steps + 1);
    }
    assert_eq!(trial.mode(), Mode::Baseline);
    assert!(steps < 10_000, "{steps} steps in an hour of nothing");
}

#[test]
fn every_decision_is_recorded_with_its_reason_and_records_are_bounded() {
    let (mut machine, mut trial) = (Machine::new(3, 0.7), trial());
    machine.run(&mut trial, 10 * SECOND);
    let first = trial.decisions().iter().next().expect("it decided");
    assert!(first.changed && first.mode == Mode::Variant);
    assert!(
        first.reason.starts_with("the variant is better: ") && first.reason.contains("against"),
        "{}",
        first.reason
    );
    for later in 0..100 {
        trial.notice();
        machine.run(&mut trial, (12 + 2 * later) * SECOND);
    }
    assert_eq!(trial.decisions().iter().len(), 32);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn observations_that_make_no_sense_do_no_harm(
        steps in proptest::collection::vec((
            0u64..100_000, 0u64..1000,
            prop_oneof![Just(f64::NAN), Just(f64::INFINITY), Just(-1.0), Just(0.0), 0.0..1e300],
            prop_oneof![Just(f64::NAN), Just(f64::NEG_INFINITY), Just(0.0), 0.0..1e300],
            proptest::option::of(prop_oneof![Just(f64::NAN), Just(f64::INFINITY), -1.0..2.0]),
        ), 0..500),
    ) {
        let mut trial = trial();
        for (micros, count, sum, squares, level) in steps {
            let now = Duration::from_micros(micros); // back and forth
            let order = trial.step(&Seen { now, sums: Sums { count, sum, squares }, level });
            prop_assert!(order.until >= now);
        }
        // What is left of it works.
        let mut machine = Machine::new(1, 0.7);
        machine.now = SECOND;
        machine.run(&mut trial, 60 * SECOND);
        prop_assert_eq!(trial.mode(), Mode::Variant);
    }
}
