//! Measuring: caches are warmed up one after the other, and then run in turn, repetition after
//! repetition.
//!
//! Machines wander: what runs beside makes all of a repetition slower, so two caches are compared
//! pair by pair, on what they did right after each other, and the order within a pair changes with
//! every repetition.
//!
//! Parts of a trace differ by more than caches do. Caches *in step* begin each repetition at the
//! same place of the load: who is behind plays on until there, uncounted.

use std::time::Duration;

use floe_memory::AdmissionStats;

use super::clock::reading_ns;
use super::competitor::{Competitor, Warmed};
use super::load::Load;
use super::plan::Plan;
use super::tally::Tally;
use super::watch::Watch;

/// So many times the length of a repetition is played on at most; then the rest is left out.
const PLAY_ON: f64 = 4.0;

/// The results of one repetition.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Repetition {
    /// Operations a second on all threads together.
    pub ops_per_second: f64,
    /// Processor time of all threads for each operation.
    pub cpu_ns_per_op: f64,
}

/// The results of one cache.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Its warm-up.
    pub warmed: Warmed,
    /// Each repetition.
    pub repetitions: Vec<Repetition>,
    /// All repetitions and threads together.
    pub total: Tally,
    /// The time of reading the clock, which is subtracted from each latency.
    pub clock_ns: u64,
    /// Its course, and the decisions of freezing.
    pub watch: Watch,
    /// The fate of offers with those of the warm-up, where there is an admission.
    pub admission: Option<AdmissionStats>,
    /// Caches that were built for this, one after the other, each with a hash seed of its own.
    pub hash_seeds: usize,
}

impl Measured {
    /// Adds the repetitions of a cache of the same settings that was built anew.
    pub fn join(&mut self, later: Self) {
        let Warmed { seconds, settled } = later.warmed;
        self.warmed = Warmed {
            seconds: self.warmed.seconds.max(seconds),
            settled: self.warmed.settled && settled,
        };
        self.repetitions.extend(later.repetitions);
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

/// The progress of a measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MeasureStep {
    /// The cache of this number is being warmed up.
    WarmingUp(usize),
    /// All play on to the same place of the load.
    PlayingOn,
    /// Runs done, of how many.
    Run(usize, usize),
}

/// Measures caches against each other.
///
/// # Panics
/// When a cache does.
pub fn measure(
    load: &Load,
    competitors: &[Box<dyn Competitor>],
    plan: &Plan,
    progress: impl FnMut(MeasureStep),
) -> Vec<Measured> {
    measure_from(load, competitors, plan, 0, progress)
}

/// Measures caches against each other, after `first` repetitions with caches of the same settings:
/// the order of turns goes on.
///
/// # Panics
/// When a cache does.
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
            total: Tally::default(),
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
        for turn in 0..count {
            let at = if (first + repetition).is_multiple_of(2) { turn } else { count - 1 - turn };
            progress(MeasureStep::Run(done, plan.repetitions * count));
            let tallies = competitors[at].run(load, plan.seconds, clock_ns);
            measured[at].repetitions.push(Repetition::of(&tallies));
            tallies.iter().for_each(|tally| measured[at].total.add(tally));
            done += 1;
        }
    }
    for (competitor, measured) in competitors.iter().zip(&mut measured) {
        measured.watch = competitor.watch();
        measured.admission = competitor.admission();
    }
    measured
}

/// Has all play on to the place of the one that is furthest.
fn play_level(load: &Load, competitors: &[Box<dyn Competitor>], longest: Duration) {
    let furthest = competitors.iter().map(|competitor| competitor.place()).max();
    for competitor in competitors {
        competitor.play_on(load, furthest.unwrap_or_default(), longest);
    }
}

impl Repetition {
    fn of(tallies: &[Tally]) -> Self {
        // Each thread has seen its own beginning and end.
        let ops_per_second = tallies
            .iter()
            .map(|tally| tally.operations() as f64 / (tally.wall_ns.max(1) as f64 / 1e9))
            .sum();
        let operations: u64 = tallies.iter().map(Tally::operations).sum();
        let cpu_ns: u64 = tallies.iter().map(|tally| tally.cpu_ns).sum();
        Self { ops_per_second, cpu_ns_per_op: cpu_ns as f64 / operations.max(1) as f64 }
    }
}
