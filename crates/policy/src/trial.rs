//! Trials that decide, on a noisy machine, whether a variant is better than the baseline.
//!
//! Freezing, and every other mechanism that adapts itself, has a baseline to fall back to. A
//! [`Trial`] runs both in short alternating windows, a round at a time, and compares them within
//! rounds, so that slow changes cancel. It changes to the variant when that is better by more than
//! the error of the difference and a margin, and leaves it when it is worse by more than the error.
//! Between trials it waits, twice as long each time nothing changed, so that trials cost next to
//! nothing in the end. A shift of a watched level, such as the hit ratio, brings the next trial
//! forward. Every decision is kept with its reason.
//!
//! The code is pure: times and sums of latencies go in; the mode to run and the time of the next
//! step come out. Where modes cannot alternate that fast, the parts can be used alone:
//! [`Difference`] of windows, [`Backoff`], [`Record`].
//!
//! The idea follows FussyCache's "do no harm" and FrozenHot's regression to the baseline, which
//! compare single windows and double their waits; neither has an error of the comparison.

use std::collections::VecDeque;
use std::ops::AddAssign;
use std::time::Duration;

/// Longest duration of a window that has too few requests, in multiples of its length. After that
/// its round does not count.
const PATIENCE: u32 = 10;
/// Failed rounds after which a trial is given up.
const FAILURES_MAX: u32 = 4;
/// Number of decisions that are kept for reports.
const RECORD: usize = 32;
/// Number of undecided trials whose rounds count in the next ones, too.
const TRIALS_KEPT: usize = 4;

/// One of the two modes that a trial compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The mechanism under trial is off.
    Baseline,
    /// The mechanism under trial is on.
    Variant,
}

impl Mode {
    /// Returns the opposite mode.
    pub fn other(self) -> Self {
        match self {
            Self::Baseline => Self::Variant,
            Self::Variant => Self::Baseline,
        }
    }
}

/// The settings of trials.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrialOptions {
    /// Length of a measuring window.
    pub window: Duration,
    /// Time between a mode switch and the next window, in which effects of the other mode leave
    /// caches and queues.
    pub settle: Duration,
    /// Minimum number of measurements in a window.
    pub count_min: u64,
    /// Rounds before the first look at the result. Further looks follow each time the number of
    /// rounds has doubled; the first that leaves no doubt ends the trial.
    pub rounds_min: usize,
    /// Maximum number of rounds of a trial.
    pub rounds_max: usize,
    /// Probability that a trial decides for a mode that is not better, over all its looks at the
    /// result.
    pub risk: f64,
    /// Minimum gain that is worth changing to the variant, as a share of the baseline.
    pub margin: f64,
    /// First wait from the end of a trial to the next.
    pub interval_min: Duration,
    /// Longest wait between trials.
    pub interval_max: Duration,
    /// Change of the watched [level](Seen::level) above which the next trial is brought forward.
    pub shift: f64,
}

impl Default for TrialOptions {
    fn default() -> Self {
        Self {
            window: Duration::from_millis(20),
            settle: Duration::from_millis(5),
            count_min: 30,
            rounds_min: 6,
            rounds_max: 24,
            risk: 0.01,
            margin: 0.01,
            interval_min: Duration::from_secs(1),
            interval_max: Duration::from_secs(300),
            shift: 0.05,
        }
    }
}

/// Measurements since the last step, in the mode that was ordered.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Seen {
    /// Time since any fixed start.
    pub now: Duration,
    /// Sums of latencies, in any unit that is the same for both modes.
    pub sums: Sums,
    /// A watched level whose shift shows that the load has changed, such as the hit ratio; `None`
    /// without one.
    pub level: Option<f64>,
}

/// An order of a trial: the mode to run, and the time of the next step. An earlier step does no
/// harm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrialOrder {
    /// Mode to run.
    pub mode: Mode,
    /// Time of the next step, on the clock of [`Seen::now`].
    pub until: Duration,
    /// True if measurements until then count. Otherwise a switch has yet to settle, or no trial is
    /// running.
    pub counts: bool,
}

/// A decision of a trial about the mode.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// Time of the decision, on the clock of [`Seen::now`].
    pub at: Duration,
    /// Mode that runs after the decision.
    pub mode: Mode,
    /// True if the mode differs from the one before.
    pub changed: bool,
    /// Measured difference of the two modes; `None` when there were too few measurements.
    pub difference: Option<Difference>,
    /// Reason for the decision, in words and numbers.
    pub reason: String,
}

#[derive(Debug, Clone)]
enum State {
    Resting {
        next: Duration,
    },
    Trying {
        rounds: Vec<(f64, f64)>,
        /// Mean of the first window of this round; `None` during that window.
        first: Option<f64>,
        /// Measurements of the current window.
        window: Sums,
        /// Start of the current window; earlier measurements do not count.
        from: Duration,
        failures: u32,
    },
}

/// Decides between a baseline and a variant, in repeated trials.
#[derive(Debug, Clone)]
pub struct Trial {
    options: TrialOptions,
    mode: Mode,
    running: Mode,
    state: State,
    /// Rounds of the latest trials without a decision; cleared by a decision.
    undecided: Vec<(f64, f64)>,
    interval: Backoff,
    level: Level,
    now: Duration,
    decisions: Record<Decision>,
}

impl Trial {
    /// Creates a trial that starts in `mode`; the first trial begins with the first step.
    pub fn new(mode: Mode, options: TrialOptions) -> Self {
        Self {
            options,
            mode,
            running: mode,
            state: State::Resting { next: Duration::ZERO },
            undecided: Vec::new(),
            interval: Backoff::new(options.interval_min, options.interval_max),
            level: Level::new(options.shift),
            now: Duration::ZERO,
            decisions: Record::new(RECORD),
        }
    }

    /// Returns the mode that was decided on, whatever mode a trial is running.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Delays the first trial until `next`.
    pub fn resting_until(mut self, next: Duration) -> Self {
        self.state = State::Resting { next };
        self
    }

    /// Returns whether a trial is running.
    pub fn is_trying(&self) -> bool {
        matches!(self.state, State::Trying { .. })
    }

    /// Returns the last decisions, oldest first.
    pub fn decisions(&self) -> &Record<Decision> {
        &self.decisions
    }

    /// Reports a change of the load: the next trial comes soon, and further ones at short
    /// intervals.
    pub fn notice(&mut self) {
        self.interval.reset();
        self.undecided.clear();
        if let State::Resting { next } = &mut self.state {
            *next = (*next).min(self.now + self.options.interval_min);
        }
    }

    /// Takes the measurements since the last step, and returns the mode to run and the time of the
    /// next step.
    pub fn step(&mut self, seen: &Seen) -> TrialOrder {
        self.now = self.now.max(seen.now);
        if self.level.shifts(seen.level) {
            self.notice();
        }
        match &mut self.state {
            State::Resting { next } if self.now >= *next => self.begin(),
            State::Resting { .. } => {}
            State::Trying { window, from, .. } => {
                if self.now > *from {
                    if seen.sums.count > 0 && seen.sums.mean().is_some() {
                        *window += seen.sums;
                    }
                    self.go_on();
                }
            }
        }
        self.order()
    }

    fn begin(&mut self) {
        self.state = State::Trying {
            rounds: Vec::with_capacity(self.options.rounds_max),
            first: None,
            window: Sums::default(),
            from: self.now,
            failures: 0,
        };
        self.switch();
    }

    /// Begins the next window in its mode. Rounds begin with the baseline and with the variant by
    /// turns.
    fn switch(&mut self) {
        let State::Trying { rounds, first, window, from, failures } = &mut self.state else {
            return;
        };
        let baseline_first = (rounds.len() + *failures as usize).is_multiple_of(2);
        let mode = if baseline_first == first.is_none() { Mode::Baseline } else { Mode::Variant };
        *window = Sums::default();
        *from = self.now + if mode == self.running { Duration::ZERO } else { self.options.settle };
        self.running = mode;
    }

    /// Ends the window if it is full, and the trial if it is decided.
    fn go_on(&mut self) {
        let State::Trying { rounds, first, window, from, failures } = &mut self.state else {
            return;
        };
        let age = self.now - *from;
        let is_full = window.count >= self.options.count_min.max(1);
        if age < self.options.window || !is_full && age < self.options.window * PATIENCE {
            return;
        }
        match (window.mean().filter(|_| is_full), *first) {
            (Some(mean), None) => *first = Some(mean),
            (Some(mean), Some(before)) => {
                let is_variant = self.running == Mode::Variant;
                rounds.push(if is_variant { (before, mean) } else { (mean, before) });
                *first = None;
            }
            (None, _) => {
                *failures += 1;
                *first = None;
            }
        }
        let (count, is_whole) = (rounds.len(), first.is_none());
        let is_last = count >= self.options.rounds_max || *failures >= FAILURES_MAX;
        let mut looks =
            std::iter::successors(Some(self.options.rounds_min.max(1)), |look| look.checked_mul(2));
        let is_look = looks.clone().take_while(|&look| look <= count).last() == Some(count);
        if is_whole && (is_last || is_look) {
            // Each look is another chance to be wrong; the one at all rounds together is the last.
            let looks = 2 + looks.position(|look| look >= self.options.rounds_max).unwrap_or(0);
            let risk = self.options.risk / looks as f64;
            let mut found = Difference::paired(rounds, risk);
            if is_last && found.is_none_or(|found| found.is_open()) {
                self.undecided.append(rounds);
                let old =
                    self.undecided.len().saturating_sub(TRIALS_KEPT * self.options.rounds_max);
                self.undecided.drain(..old);
                found = Difference::paired(&self.undecided, risk);
            }
            let mode =
                found.map_or(self.mode, |found| found.choose(self.mode, self.options.margin));
            // More rounds would not change what is beyond doubt: only what the baseline is left for
            // has a margin.
            let is_certain = found.is_some_and(|found| match self.mode {
                Mode::Baseline => found.is_loss(0.0),
                Mode::Variant => found.is_gain(0.0),
            });
            if is_last || is_certain || mode != self.mode {
                self.conclude(mode, found);
                return;
            }
        }
        self.switch();
    }

    fn conclude(&mut self, mode: Mode, found: Option<Difference>) {
        let changed = mode != self.mode;
        let numbers =
            found.map_or_else(|| "too few requests to tell".to_owned(), |found| found.to_string());
        let reason = match (changed, mode) {
            (true, Mode::Variant) => format!("the variant is better: {numbers}"),
            (true, Mode::Baseline) => format!("the variant is worse: {numbers}"),
            (false, Mode::Variant) => format!("the variant is not worse: {numbers}"),
            (false, Mode::Baseline) => format!("the variant is not better: {numbers}"),
        };
        if changed || found.is_some_and(|found| !found.is_open()) {
            self.undecided.clear();
        }
        // Evidence for a change that proves nothing yet is followed up at once.
        let may_change =
            found.is_some_and(|found| found.would_choose(mode, self.options.margin) != mode);
        if changed {
            self.interval.reset();
        }
        let wait = if may_change { self.options.interval_min } else { self.interval.take() };
        self.state = State::Resting { next: self.now + wait };
        (self.mode, self.running) = (mode, mode);
        self.level.decide();
        self.decisions.push(Decision { at: self.now, mode, changed, difference: found, reason });
    }

    fn order(&self) -> TrialOrder {
        let until = match &self.state {
            // Not later than this, to notice when the level shifts.
            State::Resting { next } => (*next).min(self.now + self.options.interval_min),
            State::Trying { from, .. } if self.now < *from => *from,
            State::Trying { from, .. } => {
                let end = *from + self.options.window;
                if self.now < end { end } else { self.now + self.options.window / 2 }
            }
        };
        let counts = matches!(&self.state, State::Trying { from, .. } if self.now >= *from);
        TrialOrder { mode: self.running, until, counts }
    }
}

/// Number, sum and sum of squares of measurements. Latencies are in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Sums {
    /// The number of measurements.
    pub count: u64,
    /// Sum of the measurements.
    pub sum: f64,
    /// Sum of the squares of the measurements.
    pub squares: f64,
}

impl Sums {
    /// Adds a measurement.
    #[inline]
    pub fn add(&mut self, value: f64) {
        self.count += 1;
        self.sum += value;
        self.squares += value * value;
    }

    /// Returns the mean of the measurements; `None` without measurements, or if one was not a
    /// finite number.
    pub fn mean(&self) -> Option<f64> {
        let mean = self.sum / self.count as f64;
        (self.count > 0 && mean.is_finite() && self.squares.is_finite()).then_some(mean)
    }

    /// Returns the standard deviation of the measurements; `None` for fewer than two, or if one was
    /// not a finite number.
    pub fn deviation(&self) -> Option<f64> {
        let mean = self.mean().filter(|_| self.count > 1)?;
        let variance = (self.squares - self.sum * mean) / (self.count - 1) as f64;
        Some(variance.max(0.0).sqrt())
    }
}

impl AddAssign for Sums {
    fn add_assign(&mut self, other: Self) {
        self.count += other.count;
        self.sum += other.sum;
        self.squares += other.squares;
    }
}

/// Weight of a new level in the moving average.
const WEIGHT: f64 = 0.3;

/// Moving average of a watched level, which detects shifts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Level {
    shift: f64,
    smooth: Option<f64>,
    decided: Option<f64>,
}

impl Level {
    /// Creates a level that counts as shifted when it changes by more than `shift`.
    pub(crate) fn new(shift: f64) -> Self {
        Self { shift, smooth: None, decided: None }
    }

    /// Adds a new level and returns whether the average has shifted since the last decision or
    /// shift.
    pub(crate) fn shifts(&mut self, level: Option<f64>) -> bool {
        let Some(level) = level.filter(|level| level.is_finite()) else { return false };
        let smooth = self.smooth.map_or(level, |before| before + (level - before) * WEIGHT);
        self.smooth = Some(smooth);
        let decided = *self.decided.get_or_insert(smooth);
        let has_shifted = (smooth - decided).abs() > self.shift;
        if has_shifted {
            self.decided = Some(smooth);
        }
        has_shifted
    }

    /// Sets the level of the last decision to the present average.
    pub(crate) fn decide(&mut self) {
        self.decided = self.smooth;
    }
}

/// A wait that doubles each time it is used, up to a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    min: Duration,
    max: Duration,
    next: Duration,
}

impl Backoff {
    /// Creates a wait that starts with `min` and never exceeds `max`.
    pub fn new(min: Duration, max: Duration) -> Self {
        Self { min, max: max.max(min), next: min }
    }

    /// Returns the present wait; the next one is twice as long.
    pub fn take(&mut self) -> Duration {
        let wait = self.next;
        self.next = wait.saturating_mul(2).min(self.max);
        wait
    }

    /// Returns the present wait, raised to at least `least`; the next ones double from there.
    pub fn take_at_least(&mut self, least: Duration) -> Duration {
        self.next = self.next.max(least).min(self.max);
        self.take()
    }

    /// Resets the wait to its initial length.
    pub fn reset(&mut self) {
        self.next = self.min;
    }
}

/// A bounded list of the latest records, oldest first.
#[derive(Debug, Clone, PartialEq)]
pub struct Record<T> {
    last: VecDeque<T>,
    max: usize,
}

impl<T> Record<T> {
    /// Creates an empty list that keeps at most `max` records.
    pub fn new(max: usize) -> Self {
        Self { last: VecDeque::new(), max }
    }

    /// Appends a record; drops the oldest if the list is full.
    pub fn push(&mut self, one: T) {
        while self.last.len() >= self.max {
            if self.last.pop_front().is_none() {
                return;
            }
        }
        self.last.push_back(one);
    }

    /// Returns the records from the oldest to the newest.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> + ExactSizeIterator {
        self.last.iter()
    }

    /// Returns the newest record.
    pub fn last(&self) -> Option<&T> {
        self.last.back()
    }

    /// Removes the newest record and returns it.
    pub fn pop_last(&mut self) -> Option<T> {
        self.last.pop_back()
    }
}

/// Share of the windows that is cut off at each end.
const TRIM: f64 = 0.2;
/// Minimum number of windows for a comparison.
const WINDOWS_MIN: usize = 4;
/// Number of steps of the numeric integral of Student's distribution.
const STEPS: usize = 1024;
/// Number of degrees of freedom above which the quantile is treated as constant.
const FREEDOM_MAX: f64 = 500.0;

/// The difference between two modes with its error, from the means of windows.
///
/// It is the amount by which the variant is lower than the baseline, in the unit of the
/// measurement, as a rule nanoseconds.
///
/// Successive requests resemble each other, so single latencies say much less than their number
/// suggests. The units here are the means of windows, which are nearly independent. Extremes are
/// cut off: a fifth of the windows at each end does not count, so that a stall of milliseconds in a
/// few of them changes nothing (Yuen, "The two-sample trimmed t for unequal population variances",
/// Biometrika 1974). So rare effects of a variant go unnoticed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Difference {
    /// Mean of the baseline's windows.
    pub baseline: f64,
    /// Baseline minus variant: positive when the variant is better.
    pub gain: f64,
    /// Half-width of the confidence interval: the true gain is within `error` of
    /// [`gain`](Self::gain), with the requested confidence.
    pub error: f64,
    /// Number of windows compared, or of pairs of windows.
    pub windows: usize,
}

impl Difference {
    /// Compares rounds of two windows: the mean of the baseline, and that of the variant beside it.
    /// Slow changes cancel. `risk` is the probability that the true gain is outside the error, such
    /// as 0.01. `None` for too few rounds.
    pub fn paired(rounds: &[(f64, f64)], risk: f64) -> Option<Self> {
        let (mut baselines, mut gains) = (Vec::new(), Vec::new());
        for (baseline, variant) in rounds {
            baselines.push(*baseline);
            gains.push(baseline - variant);
        }
        let (baseline, gain) = (Trimmed::of(baselines)?, Trimmed::of(gains)?);
        let error = student(risk, gain.freedom) * gain.variance.sqrt();
        Some(Self { baseline: baseline.mean, gain: gain.mean, error, windows: rounds.len() })
    }

    /// Compares windows that were not run side by side. `None` for too few windows in either mode.
    pub fn between(baseline: &[f64], variant: &[f64], risk: f64) -> Option<Self> {
        let (one, other) = (Trimmed::of(baseline.to_vec())?, Trimmed::of(variant.to_vec())?);
        let variance = one.variance + other.variance;
        let share = |side: &Trimmed| side.variance * side.variance / side.freedom;
        // Welch's degrees of freedom; without any variance there is no doubt either.
        let freedom = if variance > 0.0 {
            variance * variance / (share(&one) + share(&other))
        } else {
            FREEDOM_MAX
        };
        Some(Self {
            baseline: one.mean,
            gain: one.mean - other.mean,
            error: student(risk, freedom) * variance.sqrt(),
            windows: baseline.len().min(variant.len()),
        })
    }

    /// Returns whether the variant is better by more than the error and `margin`, a share of the
    /// baseline.
    pub fn is_gain(&self, margin: f64) -> bool {
        self.gain - self.error > margin * self.baseline
    }

    /// Returns whether the variant is worse by more than the error and `margin`, a share of the
    /// baseline.
    pub fn is_loss(&self, margin: f64) -> bool {
        self.gain + self.error < -margin * self.baseline
    }

    /// Returns whether the error leaves open which of the two is better.
    pub fn is_open(&self) -> bool {
        self.gain.abs() <= self.error
    }

    /// Returns the mode that would be chosen if the error were zero.
    fn would_choose(&self, current: Mode, margin: f64) -> Mode {
        Self { error: 0.0, ..*self }.choose(current, margin)
    }

    /// Returns the mode to run from now on. A change to the variant takes a gain above the margin,
    /// a change back takes a loss.
    pub fn choose(&self, current: Mode, margin: f64) -> Mode {
        match current {
            Mode::Baseline if self.is_gain(margin) => Mode::Variant,
            Mode::Variant if self.is_loss(0.0) => Mode::Baseline,
            stay => stay,
        }
    }
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { baseline, gain, error, windows } = self;
        let percent = 100.0 / baseline;
        write!(
            f,
            "{:.1} ns against {baseline:.1} ns ({:+.1} ± {:.1} %, {windows} windows)",
            baseline - gain,
            -gain * percent,
            error * percent
        )
    }
}

/// A trimmed mean, without the extremes, and its variance.
#[derive(Debug, Clone, Copy)]
struct Trimmed {
    mean: f64,
    /// Variance of the mean, not of the windows.
    variance: f64,
    freedom: f64,
}

impl Trimmed {
    /// Computes the trimmed mean of the values that are finite; `None` for too few values.
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.retain(|value| value.is_finite());
        if values.len() < WINDOWS_MIN {
            return None;
        }
        sort(&mut values);
        let cut = (values.len() as f64 * TRIM) as usize;
        let kept = &values[cut..values.len() - cut];
        let (least, most) = (kept[0], kept[kept.len() - 1]);
        let count = kept.len() as f64;
        let mean = kept.iter().sum::<f64>() / count;
        // The variance takes those that were cut off for the nearest that was kept.
        let pulled = values.iter().map(|value| value.clamp(least, most));
        let center = pulled.clone().sum::<f64>() / values.len() as f64;
        let squares: f64 = pulled.map(|value| (value - center).powi(2)).sum();
        Some(Self { mean, variance: squares / (count * (count - 1.0)), freedom: count - 1.0 })
    }
}

/// Sorts values, NaN last. Compiled here for all who use [`trial`](self).
#[inline(never)]
pub fn sort(values: &mut [f64]) {
    values.sort_unstable_by(f64::total_cmp);
}

/// Returns the mean of values without the highest and lowest fifths; for few values the plain mean,
/// `None` for none.
pub fn trimmed_mean(values: &[f64]) -> Option<f64> {
    let mut finite = values.to_vec();
    finite.retain(|value| value.is_finite());
    match finite.len() {
        0 => None,
        few if few < WINDOWS_MIN => Some(finite.iter().sum::<f64>() / few as f64),
        _ => Trimmed::of(finite).map(|trimmed| trimmed.mean),
    }
}

/// Returns the two-sided quantile of Student's t: the number of standard errors within which the
/// truth lies with probability `1 - risk`.
///
/// With t = √ν·tan θ its density is that of cosᵛ⁻¹θ, which one walk from the far end adds up.
fn student(risk: f64, freedom: f64) -> f64 {
    let freedom = freedom.clamp(1.0, FREEDOM_MAX);
    let step = std::f64::consts::FRAC_PI_2 / STEPS as f64;
    let density = |at: usize| (at as f64 * step).cos().max(0.0).powf(freedom - 1.0);
    let strip = |at: usize| {
        (density(at) + 4.0 * ((at as f64 + 0.5) * step).cos().powf(freedom - 1.0) + density(at + 1))
            / 6.0
    };
    let whole: f64 = (0..STEPS).map(strip).sum();
    let mut tail = 0.0;
    for at in (0..STEPS).rev() {
        let next = tail + strip(at) / whole;
        if next >= risk {
            let into = (next - risk) / (next - tail).max(f64::MIN_POSITIVE);
            return freedom.sqrt() * ((at as f64 + into) * step).tan();
        }
        tail = next;
    }
    0.0
}

#[cfg(test)]
mod difference_tests {
    use super::*;

    #[test]
    fn the_quantiles_of_student_are_those_of_the_tables() {
        let known = [
            (0.05, 1.0, 12.706),
            (0.05, 2.0, 4.303),
            (0.05, 4.0, 2.776),
            (0.01, 4.0, 4.604),
            (0.01, 10.0, 3.169),
            (0.001, 30.0, 3.646),
            (0.05, 120.0, 1.980),
        ];
        for (risk, freedom, quantile) in known {
            let ours = student(risk, freedom);
            assert!((ours / quantile - 1.0).abs() < 0.002, "{ours} for {quantile}");
        }
    }

    #[test]
    fn a_trimmed_mean_is_worked_out_by_hand() {
        // Two of ten are cut off at each end; 3..=8 are left. Pulled to them, squares add up to
        // 2·2·2.5² + 2·(2.5² + 1.5² + .5²).
        let trimmed =
            Trimmed::of(vec![1.0, 900.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]).unwrap();
        assert_eq!((trimmed.mean, trimmed.freedom), (5.5, 5.0));
        assert!((trimmed.variance - (25.0 + 17.5) / 30.0).abs() < 1e-12, "{}", trimmed.variance);
    }

    #[test]
    fn a_stall_in_one_window_decides_nothing() {
        let rounds: Vec<(f64, f64)> = (0..12)
            .map(|at| (100.0 + f64::from(at % 3), if at == 5 { 1e6 } else { 90.0 }))
            .collect();
        let difference = Difference::paired(&rounds, 0.01).unwrap();
        assert!(difference.is_gain(0.01) && difference.error < 2.0, "{difference}");
    }

    #[test]
    fn too_few_windows_and_those_that_are_no_numbers_say_nothing() {
        assert_eq!(Difference::paired(&[(1.0, 2.0); 3], 0.01), None);
        assert_eq!(
            Difference::between(&[1.0; 9], &[f64::NAN, f64::INFINITY, 1.0, 1.0], 0.01),
            None
        );
        assert_eq!(trimmed_mean(&[f64::NAN]), None);
    }

    #[test]
    fn windows_that_are_all_the_same_leave_no_doubt() {
        let difference = Difference::between(&[100.0; 8], &[99.0; 8], 0.01).unwrap();
        assert_eq!((difference.gain, difference.error), (1.0, 0.0));
    }
}
