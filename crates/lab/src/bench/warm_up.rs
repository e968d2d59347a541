//! Detects when a cache is warm: its hit ratio and throughput no longer drift.
//!
//! Ten windows are compared, the earlier five with the later five: hit ratio and throughput must
//! agree up to a small bound, or up to chance. The windows must be long enough, because a large
//! cache settles so slowly that it looks steady for a while. After a first pass over the load, five
//! windows together hold as many misses as the cache has entries, or a whole pass. Each holds
//! enough operations that chance hides no drift. The caller's time limit ends the warm-up for loads
//! and machines that never settle.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use floe_memory::{FreezeDecision, FreezeStats, Phase};

use super::subject::Freezes;

/// Number of windows in each of the two halves that are compared.
const HALF: usize = 5;

/// Largest difference of hit ratios that count as equal.
const HIT_RATIO_BOUND: f64 = 0.002;

/// Largest relative difference of throughputs that count as equal.
const THROUGHPUT_BOUND: f64 = 0.03;

/// Largest difference, in standard errors, that is attributed to chance.
const CHANCE: f64 = 2.0;

/// Minimum number of operations in a window. With five windows, chance then changes hit ratios by
/// hardly more than [`HIT_RATIO_BOUND`].
const LEAST: u64 = 50_000;

/// Counts of a cache's operations in a window of time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Window {
    /// Lookups that hit.
    pub hits: u64,
    /// Lookups that missed.
    pub misses: u64,
    /// Number of writes.
    pub writes: u64,
    /// Length of the window in seconds.
    pub seconds: f64,
}

impl Window {
    /// Returns the number of lookups and writes.
    pub fn operations(&self) -> u64 {
        self.hits + self.misses + self.writes
    }

    fn throughput(&self) -> f64 {
        self.operations() as f64 / self.seconds
    }
}

/// The minimum contents of a warm-up window: at least `least` operations, and either `fills` misses
/// or `operations` operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Number of misses that complete a window.
    pub fills: u64,
    /// Number of operations that complete a window with fewer misses.
    pub operations: u64,
    /// Minimum number of operations in any window.
    pub least: u64,
    /// Operations to skip before the first window. The first pass over a load has more misses than
    /// later ones, because each key comes for the first time.
    pub first: u64,
}

impl Span {
    /// Requirements that any window with an operation meets.
    pub const ANY: Self = Self { fills: 0, operations: 0, least: 1, first: 0 };

    /// Returns the requirements for a cache of `capacity` entries on a load of `operations`
    /// operations.
    pub fn of(capacity: u64, operations: u64) -> Self {
        let half = HALF as u64;
        Self {
            fills: capacity.div_ceil(half),
            operations: operations.div_ceil(half),
            least: LEAST,
            first: operations,
        }
    }

    fn holds(&self, window: &Window) -> bool {
        let operations = window.operations();
        operations >= self.least && (window.misses >= self.fills || operations >= self.operations)
    }
}

/// Decides from successive windows whether a cache is warm.
#[derive(Debug, Clone)]
pub struct WarmUp {
    span: Span,
    /// The window that is not complete yet.
    open: Window,
    windows: VecDeque<Window>,
}

impl WarmUp {
    /// Creates a detector whose windows hold at least `span`.
    pub fn new(span: Span) -> Self {
        Self { span, open: Window::default(), windows: VecDeque::with_capacity(2 * HALF) }
    }

    /// Adds the counts of some time, a window or a part of one. Returns whether the cache is warm.
    pub fn add(&mut self, part: Window) -> bool {
        if self.span.first > 0 {
            self.span.first = self.span.first.saturating_sub(part.operations());
            return false;
        }
        self.open.hits += part.hits;
        self.open.misses += part.misses;
        self.open.writes += part.writes;
        self.open.seconds += part.seconds;
        if !self.span.holds(&self.open) {
            return false;
        }
        if self.windows.len() == 2 * HALF {
            self.windows.pop_front();
        }
        self.windows.push_back(std::mem::take(&mut self.open));
        self.windows.len() == 2 * HALF && self.hit_ratio_is_steady() && self.throughput_is_steady()
    }

    fn halves(
        &self,
    ) -> (impl Iterator<Item = &Window> + Clone, impl Iterator<Item = &Window> + Clone) {
        (self.windows.iter().take(HALF), self.windows.iter().skip(HALF))
    }

    fn hit_ratio_is_steady(&self) -> bool {
        let (earlier, later) = self.halves();
        let (before, after) = (hit_ratio(earlier), hit_ratio(later));
        let variance = |(ratio, lookups): (f64, f64)| ratio * (1.0 - ratio) / lookups.max(1.0);
        let chance = CHANCE * (variance(before) + variance(after)).sqrt();
        (before.0 - after.0).abs() <= HIT_RATIO_BOUND.max(chance)
    }

    fn throughput_is_steady(&self) -> bool {
        let (earlier, later) = self.halves();
        let (before, after) = (throughput(earlier), throughput(later));
        let chance = CHANCE * ((before.1 + after.1) / HALF as f64).sqrt();
        (before.0 - after.0).abs() <= (THROUGHPUT_BOUND * before.0).max(chance)
    }
}

/// Returns the hit ratio of windows, and their number of lookups.
fn hit_ratio<'a>(windows: impl Iterator<Item = &'a Window>) -> (f64, f64) {
    let (hits, lookups) = windows.fold((0, 0), |(hits, lookups), window| {
        (hits + window.hits, lookups + window.hits + window.misses)
    });
    (hits as f64 / lookups.max(1) as f64, lookups as f64)
}

/// Returns the mean throughput of windows and its variance between them.
fn throughput<'a>(windows: impl Iterator<Item = &'a Window> + Clone) -> (f64, f64) {
    let count = windows.clone().count() as f64;
    let mean = windows.clone().map(Window::throughput).sum::<f64>() / count;
    let squares = windows.map(|window| (window.throughput() - mean).powi(2)).sum::<f64>();
    (mean, squares / (count - 1.0))
}

/// Interval at which a cache is observed during a measurement.
pub(super) const EVERY: Duration = Duration::from_millis(20);

/// Observation of a cache over a short interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Seconds that this cache had run by the end of the interval, warm-up included.
    pub seconds: f64,
    /// Length of the interval in seconds.
    pub span: f64,
    /// Operations a second in the interval.
    pub ops_per_second: f64,
    /// Share of the interval's lookups that hit.
    pub hit_ratio: f64,
    /// Share of the interval's hits that were on frozen entries.
    pub frozen_share: f64,
    /// Share of the entries that are frozen at the end of the interval.
    pub frozen_ratio: f64,
    /// Phase of the freeze controller; `None` without one.
    pub phase: Option<Phase>,
}

/// A decision of the freeze controller, and its statistics at that time.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// Seconds that this cache had run when the decision was observed.
    pub seconds: f64,
    /// The decision, with its time, phase and reason.
    pub decision: FreezeDecision,
    /// Statistics of the controller at that time, without its list of decisions.
    pub stats: FreezeStats,
}

/// All observations of a cache.
#[derive(Debug, Clone, Default)]
pub struct Watch {
    /// Observations in order, one per interval.
    pub samples: Vec<Sample>,
    /// Decisions of the freeze controller, oldest first.
    pub decisions: Vec<Decision>,
    /// Last counters of freezing; `None` where the cache does not freeze.
    pub freezes: Option<Freezes>,
    /// Hits, and hits on frozen entries, in counted parts of the runs.
    pub measured_hits: (u64, u64),
    /// Sum of `frozen_ratio` over the samples in counted parts of the runs, and their number.
    measured_ratio: (f64, u64),
    /// Total duration of completed runs.
    ran: Duration,
    /// True once the freeze controller has decided to freeze or not to.
    has_concluded: bool,
}

impl Watch {
    /// Starts to observe a run.
    pub(super) fn begin(&mut self, freezes: Option<Freezes>) -> Run<'_> {
        let now = Instant::now();
        Run { watch: self, began: now, at: now, done: [0; 3], freezes, is_counting: false }
    }

    /// Resets `has_concluded`, because the controller learns anew.
    pub(super) fn forget(&mut self) {
        self.has_concluded = false;
    }

    /// Appends the observations of a cache that ran after this one.
    pub(super) fn join(&mut self, mut later: Self) {
        let ran = self.ran.as_secs_f64();
        later.samples.iter_mut().for_each(|sample| sample.seconds += ran);
        later.decisions.iter_mut().for_each(|decision| decision.seconds += ran);
        self.samples.append(&mut later.samples);
        self.decisions.append(&mut later.decisions);
        self.freezes = later.freezes;
        self.measured_hits.0 += later.measured_hits.0;
        self.measured_hits.1 += later.measured_hits.1;
        self.measured_ratio.0 += later.measured_ratio.0;
        self.measured_ratio.1 += later.measured_ratio.1;
        self.ran += later.ran;
        self.has_concluded = later.has_concluded;
    }

    /// Returns the share of hits that were on frozen entries, in the counted parts of the runs.
    pub fn frozen_share(&self) -> f64 {
        self.measured_hits.1 as f64 / self.measured_hits.0.max(1) as f64
    }

    /// Returns the mean share of entries that were frozen, in the counted parts of the runs.
    pub fn frozen_ratio(&self) -> f64 {
        self.measured_ratio.0 / self.measured_ratio.1.max(1) as f64
    }
}

/// A run under observation.
pub(super) struct Run<'a> {
    watch: &'a mut Watch,
    began: Instant,
    at: Instant,
    done: [u64; 3],
    freezes: Option<Freezes>,
    is_counting: bool,
}

impl Run<'_> {
    /// Ends the ramp: observations count from now on.
    pub(super) fn count(&mut self) {
        self.is_counting = true;
    }

    /// Returns whether measuring can begin: a cache that freezes entries must have tried to, and
    /// have decided for or against it.
    pub(super) fn has_concluded(&self) -> bool {
        self.watch.has_concluded || self.freezes.is_none()
    }

    /// Records an observation: hits, misses and writes of the run so far, and the counters of
    /// freezing. Returns whether the run has advanced.
    pub(super) fn look(&mut self, done: [u64; 3], freezes: Option<Freezes>) -> bool {
        let now = Instant::now();
        let span = (now - self.at).as_secs_f64();
        // A thread that begins to count may be seen at a moment when it tells less than before.
        let [hits, misses, writes] = [0, 1, 2].map(|at| done[at].saturating_sub(self.done[at]));
        let seconds = (self.watch.ran + (now - self.began)).as_secs_f64();
        let mut sample = Sample {
            seconds,
            span,
            ops_per_second: (hits + misses + writes) as f64 / span.max(1e-9),
            hit_ratio: hits as f64 / (hits + misses).max(1) as f64,
            frozen_share: 0.0,
            frozen_ratio: 0.0,
            phase: None,
        };
        if let (Some(before), Some(seen)) = (&self.freezes, &freezes) {
            // Counts of other threads may be a moment late, each by itself.
            let all = seen.hits.saturating_sub(before.hits);
            let frozen = seen.frozen_hits.saturating_sub(before.frozen_hits).min(all);
            sample.frozen_share = frozen as f64 / all.max(1) as f64;
            sample.frozen_ratio = seen.frozen as f64 / seen.entries.max(1) as f64;
            sample.phase = Some(seen.stats.phase);
            if self.is_counting {
                let (hits, frozen_hits) = self.watch.measured_hits;
                self.watch.measured_hits = (hits + all, frozen_hits + frozen);
                let (sum, count) = self.watch.measured_ratio;
                self.watch.measured_ratio = (sum + sample.frozen_ratio, count + 1);
            }
            self.watch.has_concluded |= matches!(seen.stats.phase, Phase::Frozen | Phase::Waiting);
            self.watch.note_decisions(seconds, &seen.stats);
        }
        self.watch.samples.push(sample);
        let has_moved = self.done != done;
        (self.at, self.done) = (now, done);
        self.freezes = freezes;
        has_moved
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        self.watch.ran += self.began.elapsed();
        self.watch.freezes = self.freezes.take();
    }
}

impl Watch {
    fn note_decisions(&mut self, seconds: f64, stats: &FreezeStats) {
        // Decisions are told apart by when they were made; those of the same moment are seen
        // together.
        let last = self.decisions.last().map(|seen| seen.decision.at);
        let is_new = |decision: &&FreezeDecision| last.is_none_or(|last| decision.at > last);
        let mut known = stats.clone();
        known.decisions.clear();
        let new = stats.decisions.iter().filter(is_new);
        self.decisions.extend(new.map(|decision| Decision {
            seconds,
            decision: decision.clone(),
            stats: known.clone(),
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(hit_ratio: f64, throughput: f64) -> Window {
        let lookups = throughput * 0.1;
        let hits = (lookups * hit_ratio).round() as u64;
        Window { hits, misses: lookups as u64 - hits, writes: 0, seconds: 0.1 }
    }

    /// Returns the index of the window after which the cache was warm.
    fn warm_after(span: Span, windows: impl Iterator<Item = Window>) -> Option<usize> {
        let mut warm_up = WarmUp::new(span);
        windows.take(1000).position(|window| warm_up.add(window)).map(|at| at + 1)
    }

    #[test]
    fn a_steady_cache_is_warm_after_ten_windows() {
        assert_eq!(warm_after(Span::ANY, std::iter::repeat(window(0.8, 1e6))), Some(10));
    }

    #[test]
    fn a_rising_hit_ratio_is_waited_for() {
        // It nears 0.9 and after fifty windows is a thousandth away.
        let rising = (0..).map(|at| window(0.9 - 0.5 * (-f64::from(at) / 8.0).exp(), 1e6));
        let after = warm_after(Span::ANY, rising).expect("it settles");
        assert!((38..60).contains(&after), "{after}");
    }

    #[test]
    fn a_falling_throughput_is_waited_for() {
        let falling =
            (0..).map(|at| window(0.8, if at < 40 { 2e6 - f64::from(at) * 2e4 } else { 1.2e6 }));
        let after = warm_after(Span::ANY, falling).expect("it settles");
        assert!((40..52).contains(&after), "{after}");
    }

    #[test]
    fn noise_is_no_drift() {
        let noisy = (0..).map(|at: u32| {
            let noise = (floe_policy::mix(u64::from(at)) % 1000) as f64 / 1000.0 - 0.5;
            window(0.8, 1e6 * (1.0 + 0.3 * noise))
        });
        let after = warm_after(Span::ANY, noisy).expect("it settles");
        assert!(after <= 15, "{after}");
    }

    #[test]
    fn a_large_cache_is_watched_for_longer() {
        // A thousandth of the lookups miss: 100 fills a window, and ten windows of a fifth of 5000
        // fills.
        let steady = || std::iter::repeat(window(0.999, 1e6));
        let settling = |span: Span| Span { first: 0, ..span };
        assert_eq!(warm_after(settling(Span::of(5000, u64::MAX)), steady()), Some(100));
        // All of a load of ten million operations has been asked for twice.
        assert_eq!(warm_after(settling(Span::of(u64::MAX, 10_000_000)), steady()), Some(200));
        // And before that once, when every key was new.
        assert_eq!(warm_after(Span::of(u64::MAX, 10_000_000), steady()), Some(300));
    }

    #[test]
    fn a_drift_that_takes_many_windows_is_seen_all_the_same() {
        // The hit ratio rises by 0.2 while the cache takes in ten times what it holds: by 0.0003 a
        // window of time.
        let drifting = || (0..).map(|at| window(0.7 + 0.2 * (f64::from(at) / 600.0).min(1.0), 1e6));
        let early = warm_after(Span::ANY, drifting()).expect("it looks steady");
        let span = Span { first: 0, ..Span::of(200_000, u64::MAX) };
        let late = warm_after(span, drifting()).expect("it settles");
        assert!(early < 20 && late > 600, "{early} {late}");
    }

    #[test]
    fn what_never_settles_is_never_warm() {
        // The ratio climbs to one and falls back to one half, again and again.
        let saw = (0..).map(|at: u32| window(0.5 + f64::from(at % 40) / 80.0, 1e6));
        let after = warm_after(Span::ANY, saw.take(14));
        assert_eq!(after, None);
    }

    #[test]
    fn windows_that_are_too_small_are_put_together() {
        let idle = Window { seconds: 0.1, ..Window::default() };
        let windows = (0..).map(|at| if at % 2 == 0 { idle } else { window(0.8, 1e6) });
        assert_eq!(warm_after(Span::ANY, windows), Some(20));
        // A slow drift, in parts of a hundred operations each: it would be lost in the noise.
        let mut warm_up = WarmUp::new(Span { least: 100_000, ..Span::ANY });
        let drifting = (0..).map(|at| window(0.7 + f64::from(at.min(15_000)) * 5e-6, 1000.0));
        let after = drifting.take(100_000).position(|window| warm_up.add(window));
        assert!((15_000..=26_000).contains(&after.expect("it settles")), "{after:?}");
    }
}
