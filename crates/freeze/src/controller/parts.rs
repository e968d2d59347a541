//! Parts of the controller: its schedule, the baseline, lifetimes, and the record of frozen phases.

use std::time::Duration;

use floe_policy::trial::{Backoff, Difference, Record, trimmed_mean};

use super::RISK;
use crate::observe::{Costs, Prices, WindowCounts, Windows};
use crate::trials::{IndexTrial, Monitor, Worth};
use crate::{FreezeDecision, FreezeStats, Freezing, Lifetime, Phase};

/// Shortest and longest time between two measurements of the baseline.
const RECHECK: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(600));
/// Shortest and longest time between two learning phases while freezing pays.
const RELEARN: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(3600));
/// Minimum first wait after a failure, as a multiple of the time that learning took.
const WAIT_PER_LEARNING: u32 = 10;
/// Time that a choice must last to be worth learning, as a multiple of the time that learning took.
/// After a shorter time, the controller does not learn again at once.
const LASTING: u32 = 20;
const LASTING_MIN: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub(super) struct Schedule {
    wait: Backoff,
    recheck: (Backoff, Duration),
    relearn: (Backoff, Duration),
    learning_since: Duration,
    learning_took: Duration,
    /// Time at which the ratio was chosen.
    chosen_at: Duration,
}

impl Schedule {
    pub(super) fn new(options: &Freezing) -> Self {
        let zero = Duration::ZERO;
        Self {
            wait: Backoff::new(options.wait_min, options.wait_max),
            recheck: (Backoff::new(RECHECK.0, RECHECK.1), zero),
            relearn: (Backoff::new(RELEARN.0, RELEARN.1), zero),
            learning_since: zero,
            learning_took: zero,
            chosen_at: zero,
        }
    }

    /// Records the start of learning.
    pub(super) fn learn(&mut self, now: Duration) {
        self.learning_since = now;
    }

    /// Records the time that learning has taken so far.
    pub(super) fn learned(&mut self, now: Duration) {
        self.learning_took = now.saturating_sub(self.learning_since);
    }

    /// Records the start of frozen phases with a new ratio.
    pub(super) fn begin(&mut self, now: Duration) {
        self.chosen_at = now;
        self.recheck.0.reset();
        self.put_off_recheck(now);
        self.relearn.1 = now + self.relearn.0.take();
    }

    /// Returns true if the last choice has lasted long enough to be worth its learning.
    pub(super) fn has_lasted(&self, now: Duration) -> bool {
        now.saturating_sub(self.chosen_at) >= LASTING_MIN.max(self.learning_took * LASTING)
    }

    /// Returns true if the baseline is to be measured again.
    pub(super) fn wants_recheck(&self, now: Duration) -> bool {
        now >= self.recheck.1
    }

    /// Schedules the next measurement of the baseline later than the last one, because the baseline
    /// agreed.
    pub(super) fn put_off_recheck(&mut self, now: Duration) {
        self.recheck.1 = now + self.recheck.0.take();
    }

    /// Returns true if the ratio was learned too long ago.
    pub(super) fn wants_to_learn(&self, now: Duration) -> bool {
        now >= self.relearn.1
    }

    /// Resets the waits, because the workload has changed.
    pub(super) fn start_anew(&mut self) {
        self.wait.reset();
        self.relearn.0.reset();
    }

    /// Returns the wait after a failure. Each one in a row is longer, and none is short compared
    /// with the cost of learning.
    pub(super) fn wait(&mut self) -> Duration {
        self.wait.take_at_least(self.learning_took * WAIT_PER_LEARNING)
    }

    /// Returns the first wait again, for a workload that has changed meanwhile.
    pub(super) fn shortest_wait(&mut self) -> Duration {
        self.wait.reset();
        self.wait.take()
    }
}

/// Number of windows in a baseline.
pub(super) const BASELINE: usize = 16;
/// Number of measurements of the baseline that are kept.
const ROUNDS: usize = 16;
/// Number of windows of baselines that are kept.
const POOL: usize = 60;

#[derive(Debug, Clone)]
pub(super) struct Baseline {
    windows: Windows,
    /// Mean latency of each window, in nanoseconds a request.
    means: Vec<f64>,
    /// Mean latencies of the windows of all baselines since the ratio was learned, in nanoseconds a
    /// request.
    pool: Vec<f64>,
    /// Mean of each baseline since the last learning, paired with the mean of the frozen phase
    /// before it.
    rounds: Vec<(f64, f64)>,
}

impl Baseline {
    /// Creates a baseline that is not measured yet.
    pub(super) fn new(now: Duration) -> Self {
        let windows = Windows::new(now, BASELINE);
        Self { windows, means: Vec::new(), pool: Vec::new(), rounds: Vec::new() }
    }

    /// Sets the windows of the baseline. Operations sampled in none of them cost as much as
    /// `elsewhere`.
    pub(super) fn measured(&mut self, windows: Windows, elsewhere: &Costs) {
        self.means = windows.means(elsewhere);
        self.windows = windows;
    }

    /// Forgets the measurements for another ratio; `pool` was measured for the new one.
    pub(super) fn begin(&mut self, pool: Vec<f64>) {
        self.pool = pool;
        self.rounds.clear();
    }

    pub(super) fn windows(&self) -> &Windows {
        &self.windows
    }

    pub(super) fn total(&self) -> WindowCounts {
        self.windows.total()
    }

    /// Returns the mean latency of each window of all baselines since the ratio was learned, in
    /// nanoseconds a request.
    pub(super) fn pool(&self) -> &[f64] {
        &self.pool
    }

    /// Returns the mean latency of a request in nanoseconds; `None` before the first measurement.
    pub(super) fn mean(&self) -> Option<f64> {
        trimmed_mean(&self.means)
    }

    /// Compares frozen windows with this baseline alone.
    pub(super) fn difference(&self, frozen: &[f64]) -> Option<Difference> {
        Difference::between(&self.means, frozen, RISK)
    }

    /// Drops earlier baselines from the pool, because the machine has become slower.
    pub(super) fn replace_pool(&mut self) {
        self.pool.clone_from(&self.means);
    }

    /// Compares frozen windows with this baseline, with all baselines since the ratio was learned,
    /// and in pairs. Returns the difference to this one, and the first certain loss.
    pub(super) fn compare(&mut self, frozen: &[f64]) -> (Option<Difference>, Option<Difference>) {
        if let (Some(baseline), Some(frozen)) = (self.mean(), trimmed_mean(frozen)) {
            self.rounds.push((baseline, frozen));
            let old = self.rounds.len().saturating_sub(ROUNDS);
            self.rounds.drain(..old);
        }
        self.pool.extend_from_slice(&self.means);
        let old = self.pool.len().saturating_sub(POOL);
        self.pool.drain(..old);
        let now = self.difference(frozen);
        let pooled = Difference::between(&self.pool, frozen, RISK);
        let rounds = Difference::paired(&self.rounds, RISK);
        let loss = [now, pooled, rounds].into_iter().flatten().find(|found| found.is_loss(0.0));
        (now, loss)
    }
}

impl std::fmt::Display for Baseline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let hits = self.total().hit_ratio().unwrap_or(0.0) * 100.0;
        write!(f, "{:.1} ns a request at {hits:.1} % hits", self.mean().unwrap_or(0.0))
    }
}

/// Divisor of the lifetime: its renewal may take up to this part of it.
const DETOURS_PER_LIFETIME: u32 = 8;

/// Bounds of a lifetime, and the time that a renewal takes.
#[derive(Debug, Clone)]
pub(super) struct Lifespan {
    options: Freezing,
    /// Time of the last thaw for a refresh.
    detour_since: Duration,
    detour: Duration,
}

impl Lifespan {
    pub(super) fn new(options: Freezing) -> Self {
        Self { options, detour_since: Duration::ZERO, detour: Duration::ZERO }
    }

    /// Records that everything thaws for a refresh.
    pub(super) fn leave(&mut self, now: Duration) {
        self.detour_since = now;
    }

    /// Records that the cache is ready for the next index.
    pub(super) fn come_back(&mut self, now: Duration) {
        self.detour = now.saturating_sub(self.detour_since);
    }

    /// Returns the time from the start of a refresh to the next index.
    pub(super) fn detour(&self) -> Duration {
        self.detour
    }

    /// Returns the first lifetime of a ratio, given the construction time of its index.
    pub(super) fn first(&self, construction: Duration) -> Duration {
        let constructions = |factor: f64| {
            let lifetime = Duration::try_from_secs_f64(construction.as_secs_f64() * factor);
            lifetime.unwrap_or(Duration::MAX)
        };
        let Freezing { lifetime_min, lifetime_max, .. } = self.options;
        match self.options.lifetime {
            Lifetime::Fixed(lifetime) => lifetime,
            Lifetime::Factor(factor) => constructions(factor).clamp(lifetime_min, lifetime_max),
            Lifetime::Drift => self.bounded(constructions(Freezing::FACTOR)),
        }
    }

    /// Clamps a lifetime to its bounds.
    pub(super) fn bounded(&self, lifetime: Duration) -> Duration {
        let (min, max) = (self.options.lifetime_min, self.options.lifetime_max);
        lifetime.clamp(min.max(self.detour * DETOURS_PER_LIFETIME).min(max), max)
    }

    /// Returns the shortest lifetime.
    pub(super) fn least(&self) -> Duration {
        self.bounded(Duration::ZERO)
    }
}

/// Slower blocks in a row that end a frozen phase. Doubled after each false alarm, up to a limit.
const PATIENCE: u32 = 2;
const PATIENCE_MAX: u32 = 16;
/// Number of comparisons in a row that may be put off.
const PUT_OFF_MAX: u32 = 16;
/// First interval between two trials of the index.
const INDEX_INTERVAL: Duration = Duration::from_secs(10);
/// Change of the frozen share or of the hit ratio that makes the controller learn again.
const SHIFT: f64 = 0.1;

#[derive(Debug, Clone)]
pub(super) struct FrozenPhases {
    pub(super) monitor: Monitor,
    /// Latency of each kind of request when the ratio was proved.
    pub(super) prices: Option<Prices>,
    pub(super) index: IndexTrial,
    worth: Option<Worth>,
    patience: u32,
    /// Indexes in a row that lost too many hits long before the end of their lifetime.
    old: u32,
    /// Comparisons with a fresh baseline in a row that were put off, since too little was measured.
    put_off: u32,
}

impl FrozenPhases {
    pub(super) fn new(now: Duration) -> Self {
        Self {
            monitor: Monitor::new(now),
            prices: None,
            index: IndexTrial::every(now, INDEX_INTERVAL),
            worth: None,
            patience: PATIENCE,
            old: 0,
            put_off: 0,
        }
    }

    /// Resets the record for phases with another ratio. The monitor starts with the first index.
    pub(super) fn begin(&mut self, now: Duration, prices: Option<Prices>) {
        self.prices = prices;
        self.index = IndexTrial::every(now, INDEX_INTERVAL);
        self.patience = PATIENCE;
        self.old = 0;
        self.put_off = 0;
    }

    /// Returns the worth of the index as found by its last trial.
    pub(super) fn worth(&self) -> Option<Worth> {
        self.worth
    }

    /// Records the result of a trial of the index, if it had one.
    pub(super) fn note_worth(&mut self, found: Option<Worth>) {
        self.worth = found.or(self.worth);
    }

    /// Returns true if this number of slower blocks in a row ends the phase.
    pub(super) fn is_too_slow(&self, blocks: u32) -> bool {
        blocks >= self.patience
    }

    /// Records a false alarm: the next alarm needs more slower blocks.
    pub(super) fn forgive(&mut self) {
        self.patience = (self.patience * 2).min(PATIENCE_MAX);
    }

    /// Records that an index became outdated, early or not. Returns the number of early ones in a
    /// row once they are too many.
    pub(super) fn grew_old(&mut self, is_early: bool) -> Option<u32> {
        self.old = if is_early { self.old + 1 } else { 0 };
        (self.old >= self.patience).then(|| std::mem::take(&mut self.old))
    }

    /// Records that an index has served its full lifetime.
    pub(super) fn served_its_time(&mut self) {
        self.old = 0;
    }

    /// Returns true if this number of frozen windows is enough to be compared with a fresh
    /// baseline. Where requests come in short bursts, several indexes have to serve before it is.
    /// It is also true when that has taken too many indexes: freezing is then given up.
    pub(super) fn may_compare(&mut self, windows: usize) -> bool {
        let may = windows >= BASELINE || self.put_off >= PUT_OFF_MAX;
        self.put_off = if may { 0 } else { self.put_off + 1 };
        may
    }

    /// Returns a description of the share that has moved since the first phase; `None` if none has.
    pub(super) fn moved(&self) -> Option<String> {
        let (first, now) = (self.monitor.first?, self.monitor.windows().total());
        let moved = |what: &str, from: Option<f64>, to: Option<f64>| {
            let (from, to) = (from?, to?);
            ((to - from).abs() > SHIFT)
                .then(|| format!("{what} went from {:.1} to {:.1} %", from * 100.0, to * 100.0))
        };
        moved("the frozen share of hits", first.frozen_share(), now.frozen_share())
            .or_else(|| moved("the hit ratio", first.hit_ratio(), now.hit_ratio()))
    }
}

/// Number of latest decisions that are kept.
const DECISIONS: usize = 32;

#[derive(Debug, Clone)]
pub(super) struct Report {
    /// Counts, and the present ratio and lifetime.
    pub(super) stats: FreezeStats,
    decisions: Record<FreezeDecision>,
    /// Refreshes in a row for no other reason than age.
    routine: u32,
}

impl Report {
    pub(super) fn new() -> Self {
        Self { stats: FreezeStats::default(), decisions: Record::new(DECISIONS), routine: 0 }
    }

    pub(super) fn decisions(&self) -> Vec<FreezeDecision> {
        self.decisions.iter().cloned().collect()
    }

    pub(super) fn decide(&mut self, at: Duration, phase: Phase, reason: String) {
        self.routine = 0;
        #[cfg(feature = "tracing")]
        tracing::info!(target: "floe", phase = %phase, reason, "freezing");
        self.decisions.push(FreezeDecision { at, phase, reason });
    }

    /// Records a refresh for no other reason than age. Many in a row become one decision.
    pub(super) fn refresh(&mut self, at: Duration, phase: Phase, why: String) {
        let times = self.routine + 1;
        if times > 1 {
            self.decisions.pop_last();
        }
        let why = if times > 1 { format!("{why}, {times} times in a row") } else { why };
        self.decide(at, phase, why);
        self.routine = times;
    }

    /// Records the publication of an index.
    pub(super) fn constructed(&mut self, took: Duration, entries: u64) {
        self.stats.constructed += 1;
        self.stats.construction = took;
        self.stats.index_entries = entries;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn waits_double_and_are_long_beside_what_learning_takes() {
        let mut schedule = Schedule::new(&Freezing::adaptive());
        assert_eq!([(); 3].map(|()| schedule.wait()), [1, 2, 4].map(seconds));
        schedule.learn(seconds(100));
        schedule.learned(seconds(103));
        assert_eq!([(); 2].map(|()| schedule.wait()), [30, 60].map(seconds));
        assert_eq!(schedule.shortest_wait(), seconds(1));
    }

    #[test]
    fn a_choice_lasts_if_it_was_good_for_much_longer_than_it_took_to_learn() {
        let mut schedule = Schedule::new(&Freezing::adaptive());
        schedule.learn(seconds(0));
        schedule.learned(seconds(2));
        schedule.begin(seconds(10));
        assert!(!schedule.has_lasted(seconds(49)) && schedule.has_lasted(seconds(50)));
        assert!(!schedule.wants_recheck(seconds(14)) && schedule.wants_recheck(seconds(15)));
        schedule.put_off_recheck(seconds(15));
        assert!(!schedule.wants_recheck(seconds(24)) && schedule.wants_recheck(seconds(25)));
        assert!(!schedule.wants_to_learn(seconds(69)) && schedule.wants_to_learn(seconds(70)));
    }
}

#[cfg(test)]
mod baseline_tests {
    use super::*;

    fn measured(means: &[f64]) -> Baseline {
        Baseline { means: means.to_vec(), ..Baseline::new(Duration::ZERO) }
    }

    #[test]
    fn a_loss_is_found_against_all_baselines_also_where_the_last_one_was_slow() {
        let fast: Vec<f64> = (0..50).map(|number| 100.0 + f64::from(number % 3)).collect();
        let slow: Vec<f64> = fast[..8].iter().map(|mean| mean + 50.0).collect();
        let mut baseline = measured(&slow);
        baseline.begin(fast.clone());
        let frozen: Vec<f64> = fast.iter().map(|mean| mean + 40.0).collect();
        let (now, loss) = baseline.compare(&frozen);
        assert!(now.is_some_and(|now| !now.is_loss(0.0)), "{now:?}");
        assert!(loss.is_some(), "the pool has faster ones");
        baseline.replace_pool();
        assert_eq!(baseline.pool(), slow);
        assert_eq!(baseline.compare(&frozen).1, None);
    }

    #[test]
    fn no_more_than_so_many_windows_and_rounds_are_kept() {
        let mut baseline = measured(&[1.0; 40]);
        for _ in 0..30 {
            baseline.compare(&[1.0; 4]);
        }
        assert_eq!((baseline.pool.len(), baseline.rounds.len()), (POOL, ROUNDS));
    }
}

#[cfg(test)]
mod lifespan_tests {
    use super::*;

    #[test]
    fn a_long_renewal_makes_lifetimes_longer_up_to_the_longest() {
        let options = Freezing::adaptive();
        let mut lifespan = Lifespan::new(options);
        assert_eq!(lifespan.least(), options.lifetime_min);
        lifespan.leave(Duration::from_secs(10));
        lifespan.come_back(Duration::from_secs(11));
        assert_eq!(lifespan.detour(), Duration::from_secs(1));
        assert_eq!(lifespan.least(), Duration::from_secs(8));
        assert_eq!(lifespan.first(Duration::from_millis(1)), Duration::from_secs(8));
        assert_eq!(lifespan.first(Duration::MAX), options.lifetime_max);
        lifespan.come_back(Duration::from_secs(1_000_000));
        assert_eq!(lifespan.least(), options.lifetime_max);
    }
}

#[cfg(test)]
mod phases_tests {
    use super::*;

    #[test]
    fn a_false_alarm_doubles_what_is_let_pass_up_to_a_limit() {
        let mut phases = FrozenPhases::new(Duration::ZERO);
        assert!(!phases.is_too_slow(1) && phases.is_too_slow(2));
        phases.forgive();
        assert!(!phases.is_too_slow(3) && phases.is_too_slow(4));
        (0..10).for_each(|_| phases.forgive());
        assert!(!phases.is_too_slow(15) && phases.is_too_slow(16));
        phases.begin(Duration::ZERO, None);
        assert!(phases.is_too_slow(2));
    }

    #[test]
    fn indexes_that_grow_old_early_are_counted_in_a_row() {
        let mut phases = FrozenPhases::new(Duration::ZERO);
        assert_eq!(phases.grew_old(true), None);
        phases.served_its_time();
        assert_eq!(phases.grew_old(true), None);
        assert_eq!(phases.grew_old(false), None);
        assert_eq!(phases.grew_old(true), None);
        assert_eq!(phases.grew_old(true), Some(2));
        assert_eq!(phases.grew_old(true), None, "they are counted anew");
    }
}

#[cfg(test)]
mod report_tests {
    use super::*;

    #[test]
    fn refreshes_in_a_row_are_told_as_one() {
        let mut report = Report::new();
        let told = |report: &Report| -> Vec<String> {
            report.decisions().into_iter().map(|decision| decision.reason).collect()
        };
        for _ in 0..3 {
            report.refresh(Duration::ZERO, Phase::WarmingUp, "it is old".to_owned());
        }
        assert_eq!(told(&report), ["it is old, 3 times in a row"]);
        report.decide(Duration::ZERO, Phase::Waiting, "it is late".to_owned());
        report.refresh(Duration::ZERO, Phase::WarmingUp, "it is old".to_owned());
        assert_eq!(told(&report), ["it is old, 3 times in a row", "it is late", "it is old"]);
    }
}

#[cfg(all(test, feature = "tracing"))]
mod event_tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tracing::span::{Attributes, Id, Record as Values};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;

    /// Subscriber that counts the events of the cache.
    struct Counting(std::sync::Arc<AtomicUsize>);

    impl Subscriber for Counting {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == "floe"
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Values<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, event: &Event<'_>) {
            assert!(event.fields().any(|field| field.name() == "reason"));
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn each_decision_is_an_event() {
        let events = std::sync::Arc::new(AtomicUsize::new(0));
        tracing::subscriber::with_default(Counting(events.clone()), || {
            let mut report = Report::new();
            report.decide(Duration::ZERO, Phase::Measuring, "so".into());
            report.refresh(Duration::ZERO, Phase::Measuring, "again".into());
        });
        assert_eq!(events.load(Ordering::Relaxed), 2);
    }
}
