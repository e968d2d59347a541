//! Trials of the frozen index, drift of frozen parts, monitoring of frozen phases, and proofs of a
//! ratio.
//!
//! # Trials of the index
//!
//! A trial measures the gain by the frozen index itself: hits on the same entries with and without
//! it.
//!
//! Hits on frozen entries are faster than others for two reasons: nothing is promoted, and the
//! index is smaller and simpler. The first effect is measured while learning, without an index. The
//! second cannot be: hot entries are in the processor's caches, so comparing frozen hits with
//! dynamic ones would credit the index with the speed of its entries. Bypassing and publishing the
//! index in turns compares like with like.
//!
//! # Drift
//!
//! [`Drift`] estimates how fast a frozen part grows old, and the lifetime that follows.
//!
//! A frozen part loses hits as the workload changes. If each second adds `s` to the mean latency,
//! an index that serves for `T` costs `s·T/2` on average, and its replacement, which costs `C`,
//! adds `C/T`. The sum is least at `T = √(2C/s)`: the square root of the economic lot size (Harris
//! 1913), and of the interval between checkpoints (Young 1974). FrozenHot leaves the lifetime to
//! the user, as a factor of the construction time, and names this as future work.
//!
//! The drift is measured by the shares of frozen hits and of all hits, which are counted exactly,
//! at the latencies of the phase. Latencies themselves are too noisy.
//!
//! # Frozen phases
//!
//! [`Monitor`] watches a frozen phase: whether it still pays, and whether it is time for a new
//! index.
//!
//! Blocks of windows are compared with the baseline, each block once. A phase ends only when
//! several blocks in a row are slower by more than the error of the comparison and a margin. A
//! stall, or a busy minute of another program, is over by then. The loss of an ageing index by its
//! hits alone is counted and known much sooner.
//!
//! # Proof
//!
//! [`Proof`] shows under load that a chosen ratio pays, before the controller relies on it.
//!
//! The result of learning is a prediction from latencies of different moments. Where the machine
//! was slow while the baseline was measured, freezing anything looks like a gain. So windows with
//! the frozen index take turns with windows of the merged cache, in the order merged, frozen,
//! frozen, merged, …, so that slow changes cancel out. The proof ends as soon as no gain is to be
//! expected; doubt counts against freezing.
//!
//! The merged cache has just thawed a part that could not change, and lacks the entries that would
//! have come in meanwhile. It gets a few lookups per entry to recover (the renewal of [`Warmth`]).
//! Hits that are still missing compared with an undisturbed cache are added at the price of a miss.

use std::time::Duration;

use floe_policy::trial::{Difference, Mode, Seen, Sums, Trial, TrialOptions, TrialOrder};

use crate::observe::{
    Action, Costs, Done, Observations, PATIENCE, Prices, SAMPLES_MIN, Warmth, WindowCounts,
    Windows, typical,
};

/// Probability that the true error exceeds the stated one.
const RISK: f64 = 0.05;
/// Latest windows of each mode that are kept.
const WINDOWS: usize = 32;

/// The effect of the frozen index, in nanoseconds per lookup.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Worth {
    /// Time that the index saves at a hit on a frozen entry.
    pub(crate) saving: f64,
    pub(crate) saving_error: f64,
    /// Cost of a lookup that the index does not answer.
    pub(crate) failing: f64,
}

/// A trial that publishes and bypasses the index in turns.
#[derive(Debug, Clone)]
pub(crate) struct IndexTrial {
    trial: Trial,
    order: TrialOrder,
    /// Windows with the index.
    served: Windows,
    /// Windows in which the index was bypassed.
    bypassed: Windows,
    open: WindowCounts,
    opened: Duration,
    window: Duration,
}

impl IndexTrial {
    /// Creates one trial that starts at once and runs all its rounds, to measure the worth of the
    /// index.
    pub(crate) fn now(now: Duration, rounds: usize) -> Self {
        Self::first_at(
            now,
            now,
            TrialOptions { rounds_min: rounds, rounds_max: rounds, ..TrialOptions::default() },
        )
    }

    /// Creates repeated trials, at first `interval` apart, each no longer than certainty takes. The
    /// first one starts after `interval`.
    pub(crate) fn every(now: Duration, interval: Duration) -> Self {
        let options = TrialOptions {
            interval_min: interval,
            interval_max: interval.saturating_mul(64),
            ..TrialOptions::default()
        };
        Self::first_at(now + interval, now, options)
    }

    fn first_at(first: Duration, now: Duration, options: TrialOptions) -> Self {
        let options = TrialOptions { margin: 0.0, ..options };
        Self {
            trial: Trial::new(Mode::Variant, options).resting_until(first),
            order: TrialOrder { mode: Mode::Variant, until: first, counts: false },
            served: Windows::new(now, WINDOWS),
            bypassed: Windows::new(now, WINDOWS),
            open: WindowCounts::default(),
            opened: now,
            window: options.window,
        }
    }

    /// Adds observations, and returns the action that bypasses or publishes the index.
    pub(crate) fn step(&mut self, seen: &Observations) -> Action {
        let mut counts = WindowCounts::default();
        counts.add(seen);
        if self.order.counts {
            self.open.merge(&counts);
        }
        let before = self.order.mode;
        let level = counts.hit_ratio().filter(|_| counts.lookups() >= 100);
        let sums = counts.hit_latencies();
        self.order = self.trial.step(&Seen { now: seen.now, sums, level });
        let mode = self.order.mode;
        if mode != before
            || !self.order.counts
            || seen.now.saturating_sub(self.opened) >= self.window
        {
            let window = std::mem::take(&mut self.open);
            self.opened = seen.now;
            if window.samples() > 0 {
                if before == Mode::Variant {
                    self.served.push(window)
                } else {
                    self.bypassed.push(window)
                }
            }
        }
        match (before, mode) {
            (Mode::Variant, Mode::Baseline) => Action::Bypass,
            (Mode::Baseline, Mode::Variant) => Action::Resume,
            _ => Action::Keep,
        }
    }

    /// Returns true while a trial runs. Observations are then not typical of a frozen phase.
    pub(crate) fn is_trying(&self) -> bool {
        self.trial.is_trying()
    }

    /// Returns the time of the next step.
    pub(crate) fn until(&self) -> Duration {
        self.order.until
    }

    /// Returns true if hits are slower with the index than without, by more than the error.
    pub(crate) fn is_harmful(&self) -> bool {
        !self.is_trying() && self.trial.mode() == Mode::Baseline
    }

    /// Returns the reason for the result of the last trial.
    pub(crate) fn reason(&self) -> String {
        self.trial
            .decisions()
            .last()
            .map_or_else(|| "no trial yet".to_owned(), |last| last.reason.clone())
    }

    /// Returns the windows with the index.
    pub(crate) fn served(&self) -> &Windows {
        &self.served
    }

    /// Returns the measured worth of the index; `None` until both modes have enough windows.
    pub(crate) fn worth(&self) -> Option<Worth> {
        let frozen = |windows: &Windows| windows.means_of(|window| window.latencies.frozen);
        let dynamic = |windows: &Windows| windows.means_of(|window| window.latencies.dynamic);
        let saved = Difference::between(&frozen(&self.bypassed), &frozen(&self.served), RISK)?;
        let lost = Difference::between(&dynamic(&self.bypassed), &dynamic(&self.served), RISK);
        // Where nothing was looked up in vain: that reads a bucket of the index, about half of what
        // a hit does.
        let guess = 0.5 * (saved.baseline - saved.gain).min(saved.gain.abs());
        let failing = lost.map_or(guess, |lost| (-lost.gain).max(0.0));
        Some(Worth { saving: saved.gain, saving_error: saved.error, failing })
    }
}

/// Standard errors that a drift must exceed to count as certain.
const BELIEF: f64 = 4.0;
/// Standard errors by which a drift may be larger than measured.
const MAY_BE: f64 = 1.0;
/// Weight that observations keep from one phase to the next.
const FADE: f64 = 0.8;
/// Minimum number of windows for an estimate.
const WINDOWS_MIN: f64 = 10.0;

/// A straight line through points, by least squares.
#[derive(Debug, Clone, Copy, Default)]
struct Line {
    count: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
    yy: f64,
}

impl Line {
    fn add(&mut self, x: f64, y: f64) {
        self.count += 1.0;
        self.x += x;
        self.y += y;
        self.xx += x * x;
        self.xy += x * y;
        self.yy += y * y;
    }

    fn fade(&mut self) {
        for sum in
            [&mut self.count, &mut self.x, &mut self.y, &mut self.xx, &mut self.xy, &mut self.yy]
        {
            *sum *= FADE;
        }
    }

    /// Returns the slope and its standard error; `None` with too few points.
    fn slope(&self) -> Option<(f64, f64)> {
        let count = self.count;
        let spread = self.xx - self.x * self.x / count;
        if count < WINDOWS_MIN || spread <= 0.0 {
            return None;
        }
        let together = self.xy - self.x * self.y / count;
        let slope = together / spread;
        let rest = (self.yy - self.y * self.y / count - slope * together).max(0.0);
        Some((slope, (rest / (count - 2.0) / spread).sqrt()))
    }
}

/// Estimator of the loss of hits during frozen phases.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Drift {
    frozen: Line,
    hits: Line,
}

impl Drift {
    /// Adds a window that ended when the phase had this age.
    pub(crate) fn add(&mut self, age: Duration, window: &WindowCounts) {
        let lookups = window.lookups() as f64;
        if lookups > 0.0 {
            self.frozen.add(age.as_secs_f64(), window.frozen_hits as f64 / lookups);
            self.hits.add(age.as_secs_f64(), window.hits() as f64 / lookups);
        }
    }

    /// Begins another phase. The weight of earlier phases fades.
    pub(crate) fn begin(&mut self) {
        self.frozen.fade();
        self.hits.fade();
    }

    /// Returns the nanoseconds by which requests become slower each second, with the standard
    /// error; `None` with too few observations.
    fn slope(&self, costs: &Costs) -> Option<(f64, f64)> {
        let frozen = costs.frozen?;
        let dynamic = costs.dynamic.unwrap_or(frozen);
        let miss = costs.miss.unwrap_or(dynamic);
        let ((share, share_error), (hits, hits_error)) = (self.frozen.slope()?, self.hits.slope()?);
        let (per_share, per_hit) = (dynamic - frozen, miss - dynamic);
        let slope = -share * per_share - hits * per_hit;
        Some((slope, (share_error * per_share).hypot(hits_error * per_hit)))
    }

    /// Returns the lifetime to follow one of `current`. `cost` is that of a replacement, in
    /// nanoseconds times seconds.
    ///
    /// If a drift is certain, the lifetime is the cheapest one. Otherwise it grows, at most to
    /// double, as far as a drift within the error allows.
    pub(crate) fn lifetime(&self, current: Duration, cost: f64, costs: &Costs) -> Duration {
        let double = current.saturating_mul(2);
        match self.slope(costs) {
            Some((slope, error)) if slope > BELIEF * error && slope > 0.0 => {
                cheapest(cost, slope).min(double)
            }
            Some((slope, error)) => match slope + MAY_BE * error {
                steepest if steepest > 0.0 => cheapest(cost, steepest).clamp(current, double),
                _ => double,
            },
            None => double,
        }
    }
}

/// Returns `√(2C/s)`, the lifetime of least cost.
fn cheapest(cost: f64, slope: f64) -> Duration {
    let seconds = (2.0 * cost.max(0.0) / slope).sqrt();
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

/// Number of windows in a block.
const BLOCK: usize = 16;
/// Number of blocks that are evaluated together.
const BLOCKS: usize = 4;
/// Probability that noise alone makes a block look slower.
const BLOCK_RISK: f64 = 0.001;
/// Tolerated loss of a block, as a share of the baseline.
const MARGIN: f64 = 0.02;
/// Maximum number of windows whose hits show that an index is outdated.
const RECENT: usize = 4;
const OLD_MARGIN: f64 = 0.01;
const PRICE_SAMPLES_MIN: u64 = 30;
/// Number of windows ignored at the start of a phase, in which the processor's caches do not have
/// the new index yet.
const FIRST: u64 = 1;

/// Result of comparing a block with the baseline.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Verdict {
    /// The block is not complete.
    Open,
    /// The block is not slower than the baseline, or not for certain.
    Fine,
    /// The block is slower than the baseline, by this difference and for this number of blocks in a
    /// row.
    Loss(Difference, u32),
    /// There are not enough measurements to compare.
    Unknown,
}

/// Monitor of frozen phases with one ratio.
#[derive(Debug, Clone)]
pub(crate) struct Monitor {
    pub(crate) began: Duration,
    windows: Windows,
    pub(crate) drift: Drift,
    /// Lookups in this phase.
    lookups: u64,
    /// Counts of the first block of the first phase.
    pub(crate) first: Option<WindowCounts>,
    closed: u64,
    in_block: usize,
    losses: u32,
}

impl Monitor {
    pub(crate) fn new(now: Duration) -> Self {
        Self {
            began: now,
            windows: Windows::new(now, BLOCKS * BLOCK),
            drift: Drift::default(),
            lookups: 0,
            first: None,
            closed: 0,
            in_block: 0,
            losses: 0,
        }
    }

    /// Records that a new index with the same ratio serves. Comparisons under way go on.
    pub(crate) fn refreshed(&mut self, now: Duration) {
        self.began = now;
        self.drift.begin();
        self.lookups = 0;
        self.closed = 0;
        self.windows.interrupt(now);
    }

    /// Returns the lookups in this phase, without those during trials of the index.
    pub(crate) fn lookups(&self) -> u64 {
        self.lookups
    }

    /// Returns the mean latencies of the last block's windows.
    pub(crate) fn last_block(&self, elsewhere: &Costs) -> Vec<f64> {
        let mut means = self.windows.means(elsewhere);
        means.drain(..means.len().saturating_sub(BLOCK));
        means
    }

    /// Returns the windows of the last blocks.
    pub(crate) fn windows(&self) -> &Windows {
        &self.windows
    }

    /// Drops the open window, because the index is bypassed or was just now.
    pub(crate) fn interrupt(&mut self, now: Duration) {
        self.windows.interrupt(now);
    }

    /// Returns the sum of the last windows of the present index.
    pub(crate) fn recent(&self) -> WindowCounts {
        let served = self.closed.saturating_sub(FIRST) as usize;
        self.windows.iter().rev().take(served.min(RECENT)).sum()
    }

    /// Returns the loss by an old index; `None` if there is none. An index is old if requests are
    /// slower only because of the hits that the frozen part has lost.
    pub(crate) fn old(&self, baseline: &WindowCounts, prices: &Prices) -> Option<Difference> {
        let recent = self.recent();
        let misses = recent.latencies.miss;
        let miss =
            misses.mean().filter(|_| misses.count >= PRICE_SAMPLES_MIN).unwrap_or(prices.miss);
        let found = Prices { miss, ..*prices }.difference(baseline, &recent)?;
        found.is_loss(OLD_MARGIN).then_some(found)
    }

    /// Adds observations, and compares with the baseline at the end of a block.
    pub(crate) fn step(
        &mut self,
        seen: &Observations,
        baseline: &[f64],
        elsewhere: &Costs,
    ) -> Verdict {
        self.lookups += seen.lookups();
        if !self.windows.add(seen) {
            return Verdict::Open;
        }
        self.closed += 1;
        if self.closed <= FIRST {
            self.windows.drop_last();
            return Verdict::Open;
        }
        if let Some(&window) = self.windows.last() {
            self.drift.add(seen.now.saturating_sub(self.began), &window);
        }
        self.in_block += 1;
        if self.in_block < BLOCK {
            return Verdict::Open;
        }
        self.in_block = 0;
        self.first.get_or_insert_with(|| self.windows.total());
        // The last block tells soonest, several tell more.
        let compare = |means: Vec<f64>| Difference::between(baseline, &means, BLOCK_RISK);
        let (block, all) =
            (compare(self.last_block(elsewhere)), compare(self.windows.means(elsewhere)));
        let (Some(block), Some(all)) = (block, all) else { return Verdict::Unknown };
        if let Some(loss) = [block, all].into_iter().find(|found| found.is_loss(MARGIN)) {
            self.losses += 1;
            return Verdict::Loss(loss, self.losses);
        }
        self.losses = 0;
        Verdict::Fine
    }
}

/// Shortest length of a window of a proof.
const TURN: Duration = Duration::from_millis(25);
const AFTER_SWITCH: Duration = Duration::from_millis(5);
/// Number of lookups that a window of a proof waits for, besides [`SAMPLES_MIN`] samples, up to
/// [`PATIENCE`] times its length.
const LOOKUPS_MIN: u64 = 5_000;
/// Number of lookups per entry that a window of a proof waits for, up to [`LONG_PATIENCE`] times
/// its length. In a loop, or another cyclic pattern, a retained entry is requested only when the
/// cycle returns to it.
const LOOKUPS_PER_ENTRY: u64 = 4;
const LONG_PATIENCE: u32 = 100;
/// Rounds, of a window of each kind, after which a proof is evaluated. At the first evaluation a
/// gain may be certain, at the last it must be.
const LOOKS: [usize; 3] = [4, 8, 16];
/// Probability that a loss is taken for a gain, over all evaluations of a proof.
const PROOF_RISK: f64 = 0.05;
/// Loss by hits alone, as a share of the baseline, that ends a proof before its first evaluation.
const LOST_MARGIN: f64 = 0.02;

/// The next step of a proof, or its result.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Course {
    /// Carry out this action, and step the proof when it is completed.
    Do(Action),
    /// Step the proof at this time.
    Wait(Duration),
    /// Freezing is faster beyond doubt. Nothing is frozen now.
    Pays(Difference),
    /// Freezing does not pay, for this reason. The flag is true if nothing is frozen now.
    Fails(String, bool),
}

#[derive(Debug, Clone)]
enum Stage {
    Freezing,
    Thawing,
    Recovering(Warmth),
    /// A window is open. Requests before `from` are not counted.
    Window {
        from: Duration,
        counts: WindowCounts,
    },
}

/// A proof that a ratio pays, by windows with and without the frozen index.
#[derive(Debug, Clone)]
pub(crate) struct Proof {
    freeze: Action,
    /// Counts of an undisturbed cache without freezing.
    baseline: WindowCounts,
    /// Latencies for kinds of requests that a window has not sampled.
    costs: Costs,
    stage: Stage,
    /// True if the index serves, or is about to.
    serves: bool,
    merged: Windows,
    served: Windows,
}

impl Proof {
    /// Creates the proof for a warm cache without freezing. `freeze` is the action that builds the
    /// index.
    pub(crate) fn new(now: Duration, freeze: Action, baseline: WindowCounts, costs: Costs) -> Self {
        Self {
            freeze,
            baseline,
            costs,
            stage: Stage::Window { from: now, counts: WindowCounts::default() },
            serves: false,
            merged: Windows::new(now, WINDOWS),
            served: Windows::new(now, WINDOWS),
        }
    }

    /// Returns true while an action is under way.
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.stage, Stage::Freezing | Stage::Thawing)
    }

    /// Adds observations, and returns the next step.
    pub(crate) fn step(&mut self, seen: &Observations) -> Course {
        match &mut self.stage {
            Stage::Freezing => {
                if let Some(Done::Constructed { entries, .. }) = seen.done {
                    if entries == 0 {
                        return Course::Fails(
                            "there is nothing that can be frozen".to_owned(),
                            false,
                        );
                    }
                    self.begin(seen.now + AFTER_SWITCH);
                }
            }
            Stage::Thawing => {
                if seen.done == Some(Done::Thawed) {
                    self.stage = Stage::Recovering(Warmth::renewal(seen.now));
                }
            }
            Stage::Recovering(warmth) => {
                if warmth.add(seen).is_some() {
                    self.begin(seen.now);
                }
            }
            Stage::Window { from, counts } => {
                if seen.now > *from {
                    counts.add(seen);
                }
                let age = seen.now.saturating_sub(*from);
                let is_full = counts.samples() >= SAMPLES_MIN && counts.lookups() >= LOOKUPS_MIN;
                let went_around = counts.lookups() >= LOOKUPS_PER_ENTRY * seen.entries
                    || age >= TURN * LONG_PATIENCE;
                if age >= TURN
                    && went_around
                    && (is_full || age >= TURN * PATIENCE && counts.samples() > 0)
                {
                    let counts = *counts;
                    return self.close(counts, seen.now);
                }
            }
        }
        self.wait(seen.now)
    }

    fn begin(&mut self, from: Duration) {
        self.stage = Stage::Window { from, counts: WindowCounts::default() };
    }

    fn wait(&self, now: Duration) -> Course {
        Course::Wait(match &self.stage {
            Stage::Window { from, .. } if now < *from => *from,
            Stage::Window { from, .. } if now < *from + TURN => *from + TURN,
            Stage::Window { .. } => now + TURN / 2,
            Stage::Freezing | Stage::Thawing => now + TURN,
            Stage::Recovering(_) => now + AFTER_SWITCH,
        })
    }

    /// Closes a full window, and decides on the next step.
    fn close(&mut self, window: WindowCounts, now: Duration) -> Course {
        if self.serves {
            self.served.push(window)
        } else {
            self.merged.push(window)
        }
        if self.serves
            && let Some(loss) = self.lost_hits()
        {
            return Course::Fails(
                format!("misses alone take longer than all requests did: {loss}"),
                false,
            );
        }
        let (merged, served) = (self.merged.len(), self.served.len());
        if merged == served
            && let Some(look) = LOOKS.iter().position(|&look| look == merged)
        {
            let found = self.found(PROOF_RISK / LOOKS.len() as f64);
            let numbers = found.map_or_else(
                || "too few requests were measured".to_owned(),
                |found| found.to_string(),
            );
            match found {
                Some(found) if found.is_gain(0.0) => return Course::Pays(found),
                Some(found) if found.gain > 0.0 && look + 1 < LOOKS.len() => {}
                _ => {
                    return Course::Fails(
                        format!("no gain is seen beside the merged cache: {numbers}"),
                        true,
                    );
                }
            }
        }
        // Of each two rounds the first begins merged and the second frozen.
        let serves = matches!((merged + served) % 4, 1 | 2);
        match (self.serves, serves) {
            (false, true) => {
                (self.serves, self.stage) = (true, Stage::Freezing);
                Course::Do(self.freeze)
            }
            (true, false) => {
                (self.serves, self.stage) = (false, Stage::Thawing);
                Course::Do(Action::Thaw)
            }
            _ => {
                self.begin(now);
                self.wait(now)
            }
        }
    }

    /// Returns the certain loss by hits alone, if it is too large compared with both the
    /// undisturbed cache and the merged windows.
    fn lost_hits(&self) -> Option<Difference> {
        let (prices, served) = (self.prices()?.at_best(), self.served.total());
        let found =
            [self.baseline, self.merged.total()].map(|before| prices.difference(&before, &served));
        found
            .iter()
            .all(|found| found.is_some_and(|found| found.is_loss(LOST_MARGIN)))
            .then_some(found[0]?)
    }

    /// Returns the latency of each kind of request as measured here, or as known before. A miss
    /// costs the same with and without the index.
    pub(crate) fn prices(&self) -> Option<Prices> {
        let everywhere = || self.merged.iter().chain(self.served.iter());
        let hit =
            typical(self.merged.iter(), WindowCounts::hit_latencies).or(self.costs.dynamic)?;
        let of = |sums: fn(&WindowCounts) -> Sums| typical(self.served.iter(), sums);
        Some(Prices {
            hit,
            frozen: of(|window| window.latencies.frozen).or(self.costs.frozen).unwrap_or(hit),
            dynamic: of(|window| window.latencies.dynamic).unwrap_or(hit),
            miss: typical(everywhere(), misses).or(self.costs.miss).unwrap_or(hit),
        })
    }

    /// Returns the gain over all rounds.
    fn found(&self, risk: f64) -> Option<Difference> {
        let (merged, served) = self.means(risk);
        let rounds: Vec<_> = merged.into_iter().zip(served).collect();
        let found = Difference::paired(&rounds, risk)?;
        let missing = self.missing();
        Some(Difference { baseline: found.baseline - missing, gain: found.gain - missing, ..found })
    }

    /// Returns the cost, in nanoseconds a request, of hits that the merged cache has lost by
    /// freezing and not yet regained.
    fn missing(&self) -> f64 {
        let prices = self.prices().map_or(0.0, |prices| (prices.miss - prices.hit).max(0.0));
        let hits = |counts: &WindowCounts| counts.hit_ratio().unwrap_or(0.0);
        (hits(&self.baseline) - hits(&self.merged.total())).max(0.0) * prices
    }

    /// Returns the mean latencies of the merged windows, corrected to those of an undisturbed
    /// cache.
    pub(crate) fn baseline_means(&self) -> Vec<f64> {
        let missing = self.missing();
        self.means(PROOF_RISK).0.into_iter().map(|mean| mean - missing).collect()
    }

    /// Returns the mean latency of a request in each window, merged and served, in nanoseconds.
    /// Misses have one price in all windows unless their prices differ by more than the error: a
    /// miss may cost a thousand times as much as other differences.
    fn means(&self, risk: f64) -> (Vec<f64>, Vec<f64>) {
        let [merged, served] = [&self.merged, &self.served].map(|windows| windows.means_of(misses));
        let differs =
            Difference::between(&merged, &served, risk).is_some_and(|found| !found.is_open());
        let price = |windows: &Windows| {
            let own = typical(windows.iter(), misses).filter(|_| differs);
            own.or_else(|| typical(self.merged.iter().chain(self.served.iter()), misses))
        };
        let means = |windows: &Windows| {
            let costs = Costs { miss: price(windows), ..Costs::default() }.or(&self.costs);
            let mean = |window: &WindowCounts| {
                let mut window = *window;
                window.latencies.miss = Sums::default();
                window.mean(&costs).unwrap_or(f64::NAN)
            };
            windows.iter().map(mean).collect()
        };
        (means(&self.merged), means(&self.served))
    }
}

fn misses(window: &WindowCounts) -> Sums {
    window.latencies.miss
}

#[cfg(test)]
mod drift_tests {
    use super::*;

    const COSTS: Costs = Costs { frozen: Some(50.0), dynamic: Some(100.0), miss: Some(5000.0) };

    fn decaying(per_second: f64, noise: f64) -> Drift {
        let mut drift = Drift::default();
        for at in 0..100u32 {
            let age = 0.05 * f64::from(at);
            let wobble = if at % 2 == 0 { noise } else { -noise };
            let frozen_hits = (1e6 * (0.8 - per_second * age + wobble)) as u64;
            let dynamic_hits = 900_000 - frozen_hits;
            let counts = WindowCounts {
                frozen_hits,
                dynamic_hits,
                misses: 100_000,
                ..WindowCounts::default()
            };
            drift.add(Duration::from_secs_f64(age), &counts);
        }
        drift
    }

    #[test]
    fn a_frozen_share_that_falls_by_a_hundredth_a_second_costs_half_a_nanosecond_more_each() {
        let drift = decaying(0.01, 0.001);
        let (slope, error) = drift.slope(&COSTS).unwrap();
        assert!((slope - 0.5).abs() < 0.02 && error < 0.02, "{slope} ± {error}");
        // To save 0.5 ns per second, at 100 ns for 0.01 s: √(2·1/0.5).
        let lifetime = drift.lifetime(Duration::from_secs(60), 1.0, &COSTS);
        assert!((lifetime.as_secs_f64() - 2.0).abs() < 0.05, "{lifetime:?}");
        assert_eq!(
            drift.lifetime(Duration::from_millis(500), 1.0, &COSTS),
            Duration::from_secs(1),
            "not so fast"
        );
    }

    #[test]
    fn without_a_drift_lifetimes_double_and_noise_that_may_hide_one_slows_that_down() {
        let second = Duration::from_secs(1);
        assert_eq!(decaying(0.0, 0.0).lifetime(second, 1.0, &COSTS), 2 * second);
        assert_eq!(decaying(-0.01, 0.001).lifetime(second, 1.0, &COSTS), 2 * second);
        assert_eq!(Drift::default().lifetime(second, 1.0, &COSTS), 2 * second);
        let noisy = decaying(0.0, 0.1);
        assert_eq!(noisy.lifetime(second, 1e-3, &COSTS), second);
    }

    #[test]
    fn short_phases_add_up() {
        let mut drift = Drift::default();
        for _ in 0..20 {
            drift.begin();
            for at in 0..4u32 {
                let frozen_hits = 800_000 - 1000 * u64::from(at);
                let counts = WindowCounts {
                    frozen_hits,
                    dynamic_hits: 900_000 - frozen_hits,
                    misses: 100_000,
                    ..WindowCounts::default()
                };
                drift.add(Duration::from_millis(50) * at, &counts);
            }
        }
        let (slope, _) = drift.slope(&COSTS).unwrap();
        assert!((slope - 1.0).abs() < 1e-6, "{slope}");
    }
}

#[cfg(test)]
mod proof_tests {
    use super::*;
    use crate::observe::Latencies;

    /// A simulated machine that carries out each action at once.
    struct Machine {
        /// Shares of frozen hits and of other hits while the index serves.
        shares: (f64, f64),
        frozen_ns: f64,
        /// Slowdown of all requests with time, per second.
        creeping: f64,
    }

    const ONE_IN: u64 = 100;
    const LOOKUPS: u64 = 100_000;
    const MISS: f64 = 5000.0;

    impl Machine {
        fn seen(&self, now: Duration, serves: bool, done: Option<Done>) -> Observations {
            let slower = 1.0 + self.creeping * now.as_secs_f64();
            let count = |share: f64| (share * LOOKUPS as f64) as u64;
            let sums = |requests: u64, ns: f64| {
                let (count, ns) = (requests / ONE_IN, ns * slower);
                Sums { count, sum: count as f64 * ns, squares: count as f64 * ns * ns }
            };
            let (frozen, dynamic) = if serves { self.shares } else { (0.0, 0.86) };
            let (frozen_hits, dynamic_hits) = (count(frozen), count(dynamic));
            let misses = LOOKUPS - frozen_hits - dynamic_hits;
            let latencies = Latencies {
                frozen: sums(frozen_hits, self.frozen_ns),
                dynamic: sums(dynamic_hits, 80.0),
                miss: sums(misses, MISS),
            };
            Observations {
                now,
                frozen_hits,
                dynamic_hits,
                misses,
                latencies,
                entries: 1000,
                done,
                ..Observations::default()
            }
        }

        /// Returns the result of a proof, and the number of windows with the index.
        fn end(&self) -> (Course, usize) {
            let baseline =
                WindowCounts { dynamic_hits: 860_000, misses: 140_000, ..WindowCounts::default() };
            let mut now = Duration::ZERO;
            let mut proof =
                Proof::new(now, Action::Freeze { ratio: 0.5 }, baseline, Costs::default());
            let (mut serves, mut done) = (false, None);
            for _ in 0..1000 {
                match proof.step(&self.seen(now, serves, done.take())) {
                    Course::Do(Action::Thaw) => (serves, done) = (false, Some(Done::Thawed)),
                    Course::Do(_) => {
                        let took = Duration::from_millis(1);
                        (serves, done) = (true, Some(Done::Constructed { took, entries: 500 }));
                    }
                    Course::Wait(at) => now = at.max(now + Duration::from_millis(1)),
                    end => return (end, proof.served.len()),
                }
            }
            panic!("it does not end");
        }
    }

    #[test]
    fn a_plain_gain_is_certain_at_the_first_look() {
        let (end, served) = Machine { shares: (0.6, 0.26), frozen_ns: 20.0, creeping: 0.0 }.end();
        let Course::Pays(gain) = end else { panic!("{end:?}") };
        // 0.6·60 of 0.86·80 + 0.14·5000.
        assert!((gain.gain - 36.0).abs() < 1.0 && (gain.baseline - 768.8).abs() < 1.0, "{gain}");
        assert_eq!(served, 4);
    }

    #[test]
    fn a_loss_ends_it_at_the_first_look_and_points_of_hits_after_one_window() {
        let (end, served) = Machine { shares: (0.6, 0.26), frozen_ns: 85.0, creeping: 0.0 }.end();
        assert!(matches!(end, Course::Fails(_, true)), "{end:?}");
        assert_eq!(served, 4);
        let (end, served) = Machine { shares: (0.6, 0.2), frozen_ns: 20.0, creeping: 0.0 }.end();
        assert!(matches!(end, Course::Fails(_, false)), "{end:?}");
        assert_eq!(served, 1);
    }

    #[test]
    fn a_machine_that_becomes_slower_all_the_while_is_not_taken_for_the_index() {
        // By a tenth from each window to the next, and no difference between the modes.
        for creeping in [4.0, -0.5] {
            let (end, _) = Machine { shares: (0.6, 0.26), frozen_ns: 80.0, creeping }.end();
            assert!(matches!(end, Course::Fails(_, true)), "{end:?}");
        }
    }
}
