//! Measures caches: they are warmed up one after the other, and then run in turn, repetition after
//! repetition.
//!
//! The speed of a machine varies: other work slows all runs of a repetition. So two caches are
//! compared pair by pair, on runs right after each other, and the order within a pair changes with
//! every repetition.
//!
//! Parts of a trace differ by more than caches do. Caches *in step* begin each repetition at the
//! same position in the load: those behind run up to it, uncounted.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use floe_memory::AdmissionStats;
use floe_policy::registry::Choice;
use serde::Serialize;

use super::competitor::{Competitor, Plan, Warmed};
use super::disturbance::{Stolen, TRIES};
use super::load::{Load, PassOrder};
use super::warm_up::{Sample, Watch};
use super::worker::{WorkerCounts, reading_ns};
use crate::simulate::objects::{Run, simulate};
use crate::simulate::stream::Stream;

/// Longest time for which a cache runs to reach the furthest position, in lengths of a repetition.
/// After that, the rest of the way is skipped.
const PLAY_ON: f64 = 4.0;

/// Throughput and processor time of a cache in one repetition.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Repetition {
    /// Operations a second on all threads together.
    pub ops_per_second: f64,
    /// Processor time of all threads per operation, in nanoseconds.
    pub cpu_ns_per_op: f64,
    /// Share of the run's time that other work on the machine took: the time that its threads
    /// waited for a processor, and the time stolen by a hypervisor.
    pub disturbed_share: f64,
}

/// Measurements of one cache over all repetitions.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Result of the warm-up.
    pub warmed: Warmed,
    /// Results of each repetition.
    pub repetitions: Vec<Repetition>,
    /// Number of runs that do not count because other work on the machine took too much of them.
    pub disturbed_runs: usize,
    /// Counters of all repetitions and threads together.
    pub total: WorkerCounts,
    /// Nanoseconds of reading the clock, which are subtracted from each latency.
    pub clock_ns: u64,
    /// Observations of the cache over time, and the decisions of the freeze controller.
    pub watch: Watch,
    /// Counters of the admission policy, warm-up included; `None` without such a policy.
    pub admission: Option<AdmissionStats>,
    /// Number of caches built one after the other for these results, each with another hash seed.
    pub hash_seeds: usize,
}

impl Measured {
    /// Adds the results of a cache with the same settings that was built anew.
    pub fn join(&mut self, later: Self) {
        let Warmed { seconds, settled } = later.warmed;
        self.warmed = Warmed {
            seconds: self.warmed.seconds.max(seconds),
            settled: self.warmed.settled && settled,
        };
        self.repetitions.extend(later.repetitions);
        self.disturbed_runs += later.disturbed_runs;
        self.total.add(&later.total);
        self.watch.join(later.watch);
        if let (Some(sum), Some(later)) = (&mut self.admission, later.admission) {
            sum.offered += later.offered;
            sum.admitted += later.admitted;
            sum.bypassed += later.bypassed;
        }
        self.hash_seeds += later.hash_seeds;
    }
}

/// A step of a measurement, for reports of progress.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MeasureStep {
    /// Warm-up of the cache at this index.
    WarmingUp(usize),
    /// Caches that are behind run up to the same position in the load.
    PlayingOn,
    /// Number of runs done, and of all runs.
    Run(usize, usize),
}

/// Measures caches against each other.
///
/// # Panics
/// When a cache panics.
pub fn measure(
    load: &Load,
    competitors: &[Box<dyn Competitor>],
    plan: &Plan,
    progress: impl FnMut(MeasureStep),
) -> Vec<Measured> {
    measure_from(load, competitors, plan, 0, progress)
}

/// Measures caches against each other after `first` earlier repetitions with caches of the same
/// settings. The alternation of the order in which caches run continues.
///
/// # Panics
/// When a cache panics.
pub fn measure_from(
    load: &Load,
    competitors: &[Box<dyn Competitor>],
    plan: &Plan,
    first: usize,
    mut progress: impl FnMut(MeasureStep),
) -> Vec<Measured> {
    let clock_ns = reading_ns();
    let mut measured: Vec<Measured> = Vec::new();
    for (at, competitor) in competitors.iter().enumerate() {
        progress(MeasureStep::WarmingUp(at));
        let warmed = competitor.warm_up(load, plan);
        measured.push(Measured {
            warmed,
            repetitions: Vec::new(),
            disturbed_runs: 0,
            total: WorkerCounts::default(),
            clock_ns,
            watch: Watch::default(),
            admission: None,
            hash_seeds: 1,
        });
    }
    let (count, mut done) = (competitors.len(), 0);
    // Who was warm sooner has more to play.
    let mut longest = plan.warm_up_seconds_max;
    for repetition in 0..plan.repetitions {
        if plan.in_step {
            progress(MeasureStep::PlayingOn);
            play_level(load, competitors, Duration::from_secs_f64(longest));
            longest = PLAY_ON * plan.seconds;
        }
        let mut runs = Vec::new();
        for turn in 0..count {
            let at = if (first + repetition).is_multiple_of(2) { turn } else { count - 1 - turn };
            progress(MeasureStep::Run(done, plan.repetitions * count));
            let run = || {
                let stolen = Stolen::now();
                let counts = competitors[at].run(load, plan.seconds, clock_ns);
                (Repetition::of(&counts, stolen.share()), counts)
            };
            let calm = |(repetition, _): &(Repetition, _)| {
                plan.disturbed_max.is_none_or(|most| repetition.disturbed_share <= most)
            };
            let mut tries = std::iter::repeat_with(run).take(TRIES);
            let mut disturbed = 0;
            let kept = tries.find(|tried| {
                disturbed += usize::from(!calm(tried));
                calm(tried)
            });
            measured[at].disturbed_runs += disturbed;
            runs.extend(kept.map(|(repetition, counts)| (at, repetition, counts)));
            done += 1;
        }
        // A repetition counts for all caches or for none, since they are compared pair by pair.
        if runs.len() < count {
            for (at, ..) in runs {
                measured[at].disturbed_runs += 1;
            }
            continue;
        }
        for (at, repetition, counts) in runs {
            measured[at].repetitions.push(repetition);
            counts.iter().for_each(|counted| measured[at].total.add(counted));
        }
    }
    for (competitor, measured) in competitors.iter().zip(&mut measured) {
        measured.watch = competitor.watch();
        measured.admission = competitor.admission();
    }
    measured
}

/// Runs all caches, uncounted, up to the position of the cache that is furthest in the load.
fn play_level(load: &Load, competitors: &[Box<dyn Competitor>], longest: Duration) {
    let furthest = competitors.iter().map(|competitor| competitor.place()).max();
    for competitor in competitors {
        competitor.play_on(load, furthest.unwrap_or_default(), longest);
    }
}

impl Repetition {
    fn of(counts: &[WorkerCounts], stolen_share: f64) -> Self {
        // Each thread has seen its own beginning and end.
        let ops_per_second = counts
            .iter()
            .map(|counted| counted.operations() as f64 / (counted.wall_ns.max(1) as f64 / 1e9))
            .sum();
        let operations: u64 = counts.iter().map(WorkerCounts::operations).sum();
        let cpu_ns: u64 = counts.iter().map(|counted| counted.cpu_ns).sum();
        let sum = |of: fn(&WorkerCounts) -> u64| counts.iter().map(of).sum::<u64>() as f64;
        let waited = sum(|counted| counted.waited_ns) / sum(|counted| counted.wall_ns).max(1.0);
        Self {
            ops_per_second,
            cpu_ns_per_op: cpu_ns as f64 / operations.max(1) as f64,
            disturbed_share: waited + stolen_share,
        }
    }
}

/// Deficit of the hit ratio below the mean at which frozen entries count as outdated by a change of
/// the load.
const FEWER_HITS: f64 = 0.02;

/// Sums over all parts of a measurement in one phase of the freeze controller, warm-up included.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PhaseTime {
    /// Name of the phase, with ", fewer hits" where frozen entries hit less than usual.
    pub phase: String,
    /// Seconds spent in the phase.
    pub seconds: f64,
    /// Number of operations in the phase.
    pub operations: f64,
    /// Operations a second in the phase.
    pub ops_per_second: f64,
    /// Share of the phase's lookups that hit.
    pub hit_ratio: f64,
    /// Share of the phase's hits that were on frozen entries.
    pub frozen_share: f64,
}

impl PhaseTime {
    /// Sums samples by phase, in the order in which phases first occurred. A sample counts for the
    /// phase at its end.
    pub fn of(samples: &[Sample]) -> Vec<PhaseTime> {
        let mut all: Vec<PhaseTime> = Vec::new();
        let done = |sample: &Sample| sample.ops_per_second * sample.span;
        let operations: f64 = samples.iter().map(done).sum();
        let hits: f64 = samples.iter().map(|sample| sample.hit_ratio * done(sample)).sum();
        for sample in samples {
            let Some(phase) = sample.phase else { continue };
            let is_stale =
                sample.frozen_ratio > 0.0 && sample.hit_ratio < hits / operations - FEWER_HITS;
            let phase = format!("{phase}{}", if is_stale { ", fewer hits" } else { "" });
            let known = all.iter().position(|known| known.phase == phase);
            let at = known.unwrap_or_else(|| {
                all.push(PhaseTime {
                    phase: phase.clone(),
                    seconds: 0.0,
                    operations: 0.0,
                    ops_per_second: 0.0,
                    hit_ratio: 0.0,
                    frozen_share: 0.0,
                });
                all.len() - 1
            });
            let sum = &mut all[at];
            let operations = done(sample);
            sum.seconds += sample.span;
            sum.operations += operations;
            sum.hit_ratio += sample.hit_ratio * operations;
            sum.frozen_share += sample.frozen_share * sample.hit_ratio * operations;
        }
        for sum in &mut all {
            let share = |part: f64, all: f64| if all > 0.0 { part / all } else { 0.0 };
            sum.frozen_share = share(sum.frozen_share, sum.hit_ratio);
            sum.hit_ratio = share(sum.hit_ratio, sum.operations);
            sum.ops_per_second = share(sum.operations, sum.seconds);
        }
        all
    }
}

/// Minimum probability with which a confidence interval should hold the true median.
const CONFIDENCE: f64 = 0.95;

/// A median, and a confidence interval for the true median.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// The median of the measurements.
    pub median: f64,
    /// Lower end of the confidence interval.
    pub low: f64,
    /// Upper end of the confidence interval.
    pub high: f64,
    /// The probability that the interval holds the true median: 0.95 or more, or less with too few
    /// measurements.
    pub confidence: f64,
}

impl Estimate {
    /// Estimates the median of measurements, given in any order.
    ///
    /// # Panics
    /// Without measurements, or with one that is not a number.
    pub fn of(measurements: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = measurements.into_iter().collect();
        assert!(
            sorted.iter().all(|measurement| !measurement.is_nan()),
            "a measurement is a number"
        );
        sorted.sort_unstable_by(f64::total_cmp);
        let (count, middle) = (sorted.len(), sorted.len() / 2);
        assert!(count > 0, "a median is one of measurements");
        let median = if count % 2 == 1 {
            sorted[middle]
        } else {
            (sorted[middle - 1] + sorted[middle]) / 2.0
        };
        let (cut, confidence) = cut(count);
        Self { median, low: sorted[cut], high: sorted[count - 1 - cut], confidence }
    }

    /// Estimates the median ratio of measurements to those paired with them.
    ///
    /// # Panics
    /// Without measurements, or where the two slices differ in length.
    pub fn of_ratios(measurements: &[f64], beside: &[f64]) -> Self {
        assert_eq!(measurements.len(), beside.len(), "ratios are of pairs");
        Self::of(measurements.iter().zip(beside).map(|(measurement, other)| measurement / other))
    }
}

/// Returns the number of measurements to leave off at each end, and the probability that the rest
/// encloses the true median.
fn cut(count: usize) -> (usize, f64) {
    // Each measurement is as likely below the median as above: the number of those below is
    // binomial.
    let halves = 0.5f64.powi(count.min(1000) as i32);
    let (mut exactly, mut outside) = (halves, halves);
    let confidence = |outside: f64| (1.0 - 2.0 * outside).max(0.0);
    let mut best = (0, confidence(outside));
    for below in 1..count.min(1000) / 2 {
        exactly *= (count.min(1000) - below + 1) as f64 / below as f64;
        outside += exactly;
        if confidence(outside) < CONFIDENCE {
            break;
        }
        best = (below, confidence(outside));
    }
    best
}

/// Distance to the target hit ratio at which a search ends.
const CLOSE: f64 = 0.0005;

/// A capacity, and the hit ratio of a cache of that capacity.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Found {
    /// Capacity in entries.
    pub capacity: u64,
    /// Share of lookups that hit once the cache is warm.
    pub hit_ratio: f64,
}

/// Known hit ratios of a policy on a load, by capacity. Searches start from these and add their
/// own.
pub type Curve = BTreeMap<u64, f64>;

/// Finds the capacity at which a policy comes nearest to a hit ratio on a looped load. A simulation
/// of a million keys takes a second or two, and a search needs a handful of them.
pub fn capacity_for(hit_ratio: f64, policy: &Choice, load: &Looped, known: &mut Curve) -> Found {
    search(hit_ratio, load.before.distinct as u64, known, |capacity| {
        load.hit_ratio(policy, capacity)
    })
}

/// A load repeated in several passes, for simulations of its hit ratio.
#[derive(Debug)]
pub struct Looped {
    before: Stream,
    all: Stream,
}

/// Number of passes before the counted one: one to fill the cache, and another to settle.
const PASSES: u64 = 2;

impl Looped {
    /// Creates the passes over a load.
    pub fn new(stream: &Stream, order: PassOrder) -> Self {
        let requests = stream.keys.len();
        let mut places: Vec<usize> =
            (0..PASSES).flat_map(|pass| order.places(pass, requests)).collect();
        let before = stream.rearranged(places.iter().copied());
        places.extend(order.places(PASSES, requests));
        Self { before, all: stream.rearranged(places.iter().copied()) }
    }

    /// Returns the hit ratio of a policy in the third pass.
    pub fn hit_ratio(&self, policy: &Choice, capacity: u64) -> f64 {
        let run = Run { policy: policy.clone(), size: capacity, admit: Vec::new() };
        let hits = |stream: &Stream| simulate("", stream, &run, None, &AtomicU64::new(0)).hits;
        let (before, all) = std::thread::scope(|scope| {
            let before = scope.spawn(|| hits(&self.before));
            let all = hits(&self.all);
            (before.join().expect("a simulation does not panic"), all)
        });
        (all - before) as f64 / (self.all.keys.len() - self.before.keys.len()) as f64
    }
}

/// Returns the capacity from 1 to `most` with the hit ratio nearest to `target`, among known and
/// tried capacities.
pub fn search(
    target: f64,
    most: u64,
    known: &mut Curve,
    mut hit_ratio: impl FnMut(u64) -> f64,
) -> Found {
    for end in [1, most.max(1)] {
        known.entry(end).or_insert_with(|| hit_ratio(end));
    }
    let mut halve = false;
    loop {
        let found = |(&capacity, &hit_ratio)| Found { capacity, hit_ratio };
        let distance = |found: &Found| (found.hit_ratio - target).abs();
        let best = known.iter().map(found).min_by(|a, b| distance(a).total_cmp(&distance(b)));
        let best = best.expect("both ends are known");
        let high = known.iter().map(found).find(|found| found.hit_ratio >= target);
        let low = high.and_then(|high| known.range(..high.capacity).next_back().map(found));
        let (Some(low), Some(high)) = (low, high) else { return best };
        if distance(&best) <= CLOSE || high.capacity - low.capacity <= 1 {
            return best;
        }
        // Hit ratios go about with the logarithm of the capacity. Every other step halves, and none
        // comes near to either end, or a line that bends would creep along.
        let share =
            if halve { 0.5 } else { (target - low.hit_ratio) / (high.hit_ratio - low.hit_ratio) };
        halve = !halve;
        let (from, to) = ((low.capacity as f64).ln(), (high.capacity as f64).ln());
        let middle = (from + share.clamp(0.05, 0.95) * (to - from)).exp() as u64;
        let middle = middle.clamp(low.capacity + 1, high.capacity - 1);
        known.insert(middle, hit_ratio(middle));
    }
}

#[cfg(test)]
mod phases_tests {
    use floe_memory::Phase;

    use super::*;

    #[test]
    fn phases_are_summed_up_by_their_operations() {
        let sample = |phase, span, ops_per_second, hit_ratio, frozen_share| Sample {
            seconds: 0.0,
            span,
            ops_per_second,
            hit_ratio,
            frozen_share,
            frozen_ratio: frozen_share,
            phase,
        };
        let samples = [
            sample(None, 1.0, 7.0, 0.5, 0.0),
            sample(Some(Phase::Measuring), 1.0, 100.0, 0.5, 0.0),
            sample(Some(Phase::Frozen), 2.0, 200.0, 1.0, 0.5),
            sample(Some(Phase::Measuring), 3.0, 100.0, 0.9, 0.0),
            sample(Some(Phase::Frozen), 1.0, 50.0, 0.5, 0.5),
        ];
        let found = PhaseTime::of(&samples);
        assert_eq!(found.iter().map(|of| of.seconds).collect::<Vec<_>>(), [4.0, 2.0, 1.0]);
        assert_eq!(found[2].phase, "frozen, fewer hits");
        assert!((found[0].hit_ratio - 0.8).abs() < 1e-9);
        assert_eq!((found[1].ops_per_second, found[1].frozen_share), (200.0, 0.5));
    }
}

#[cfg(test)]
mod statistics_tests {
    use super::*;

    #[test]
    fn intervals_are_those_of_the_tables() {
        // Ranks from tables of the binomial distribution with p = 1/2.
        for (count, low, high, confidence) in [
            (1, 1.0, 1.0, 0.0),
            (5, 1.0, 5.0, 0.9375),
            (6, 1.0, 6.0, 0.96875),
            (8, 1.0, 8.0, 0.9921875),
            (9, 2.0, 8.0, 0.9609375),
            (12, 3.0, 10.0, 0.961_425_781_25),
            (30, 10.0, 21.0, 0.957_226_054_7),
        ] {
            let estimate = Estimate::of((1..=count).rev().map(f64::from));
            assert_eq!((estimate.low, estimate.high), (low, high), "{count}");
            assert!(
                (estimate.confidence - confidence).abs() < 1e-9,
                "{count}: {}",
                estimate.confidence
            );
            assert_eq!(estimate.median, f64::from(count + 1) / 2.0);
        }
    }

    #[test]
    fn the_interval_holds_the_true_median_as_often_as_it_says() {
        let mut state = 1u64;
        let mut draw = || {
            state += 1;
            (floe_policy::mix(state) >> 11) as f64 / (1u64 << 53) as f64
        };
        let (mut held, runs) = (0, 20_000);
        let mut confidence = 0.0;
        for _ in 0..runs {
            let estimate = Estimate::of((0..15).map(|_| draw().powi(3)));
            confidence = estimate.confidence;
            held += u32::from((estimate.low..=estimate.high).contains(&0.125));
        }
        let share = f64::from(held) / f64::from(runs);
        assert!((share - confidence).abs() < 0.006, "{share} {confidence}"); // four standard errors
    }

    #[test]
    fn ratios_are_of_pairs_and_not_of_medians() {
        // A machine that slows down threefold between the pairs leaves their ratios alone.
        let estimate = Estimate::of_ratios(&[2.0, 4.0, 6.0], &[1.0, 2.0, 3.0]);
        assert_eq!((estimate.median, estimate.low, estimate.high), (2.0, 2.0, 2.0));
    }

    #[test]
    fn thousands_of_measurements_are_no_trouble() {
        let estimate = Estimate::of((0..5000).map(f64::from));
        assert!(estimate.low < estimate.median && estimate.median < estimate.high);
        assert!(estimate.confidence >= CONFIDENCE);
    }
}

#[cfg(test)]
mod capacity_tests {
    use super::*;
    use crate::simulate::stream::{Builder, Keep};
    use floe_trace::{Kind, Op, Request};

    fn looped(keys: impl Iterator<Item = u64>) -> Looped {
        let mut builder =
            Builder::new(Kind::Key, Keep { rate: 1.0, sizes: false, next_use: false }, 4096);
        for key in keys {
            builder.add(&Request { time_ns: 0, key, bytes: 1, volume: 0, op: Op::Read }).unwrap();
        }
        Looped::new(&builder.finish().unwrap(), PassOrder::AsIs)
    }

    #[test]
    fn a_capacity_is_found_in_few_steps() {
        for target in [0.0001, 0.01, 0.3, 0.5, 0.77, 0.95, 0.9999] {
            let mut steps = 0;
            let found = search(target, 1_000_000, &mut Curve::new(), |capacity| {
                steps += 1;
                (capacity as f64 / 1e6).powf(0.3)
            });
            assert!(
                (found.hit_ratio - target).abs() <= CLOSE || found.capacity < 3,
                "{target}: {found:?}"
            );
            assert!(steps <= 30, "{target}: {steps} steps");
        }
    }

    #[test]
    fn what_is_known_is_not_tried_again() {
        let (mut known, mut steps) = (Curve::new(), 0);
        let mut steps_for = |target| {
            let before = steps;
            let found = search(target, 1_000_000, &mut known, |capacity| {
                steps += 1;
                (capacity as f64 / 1e6).powf(0.3)
            });
            assert!((found.hit_ratio - target).abs() <= CLOSE, "{target}: {found:?}");
            steps - before
        };
        let first = steps_for(0.8);
        assert_eq!(steps_for(0.8), 0);
        assert!(steps_for(0.85) < first);
    }

    #[test]
    fn what_cannot_be_had_gives_the_nearest_end() {
        let hit_ratio = |capacity: u64| 0.2 + 0.5 * capacity as f64 / 100.0;
        assert_eq!(search(0.1, 100, &mut Curve::new(), hit_ratio).capacity, 1);
        assert_eq!(search(0.9, 100, &mut Curve::new(), hit_ratio).capacity, 100);
        assert_eq!(
            search(0.5, 1, &mut Curve::new(), |_| 0.7),
            Found { capacity: 1, hit_ratio: 0.7 }
        );
    }

    #[test]
    fn a_step_leaves_the_nearer_side() {
        let found =
            search(0.4, 1000, &mut Curve::new(), |capacity| if capacity < 500 { 0.1 } else { 0.6 });
        assert_eq!(found, Found { capacity: 500, hit_ratio: 0.6 });
    }

    #[test]
    fn the_first_pass_over_a_load_does_not_count() {
        let load = looped(0..100);
        let policy: Choice = "lru".parse().unwrap();
        assert_eq!(load.hit_ratio(&policy, 100), 1.0);
        assert_eq!(load.hit_ratio(&policy, 99), 0.0);
    }

    #[test]
    fn a_drawn_load_has_no_cliff_at_its_end() {
        // All keys are as likely at any time, so half of them in the cache are half of the lookups
        // hit; in the same order again and again LRU would hit nothing before it holds all.
        let mut builder =
            Builder::new(Kind::Key, Keep { rate: 1.0, sizes: false, next_use: false }, 4096);
        for key in 0..1_000_000 {
            builder.add(&Request { time_ns: 0, key, bytes: 1, volume: 0, op: Op::Read }).unwrap();
        }
        let load = Looped::new(&builder.finish().unwrap(), PassOrder::Drawn);
        let hit_ratio = load.hit_ratio(&"lru".parse().unwrap(), 500_000);
        // four standard errors of two thousand chunks
        assert!((hit_ratio - 0.5).abs() < 0.05, "{hit_ratio}");
    }

    #[test]
    fn every_policy_gets_the_hit_ratio_asked_for() {
        let load = looped((0..50_000u64).map(|at| {
            // About as popular as 1/rank.
            let share = (floe_policy::mix(at) >> 11) as f64 / (1u64 << 53) as f64;
            2000f64.powf(share) as u64
        }));
        for policy in ["fifo", "lru", "s3-fifo", "sieve", "arc", "w-tinylfu"] {
            let policy: Choice = policy.parse().unwrap();
            for target in [0.5, 0.9] {
                let found = capacity_for(target, &policy, &load, &mut Curve::new());
                assert!((found.hit_ratio - target).abs() < 0.01, "{policy}: {found:?}");
                assert_eq!(found.hit_ratio, load.hit_ratio(&policy, found.capacity));
            }
        }
    }
}
