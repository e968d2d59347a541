//! Do no harm: is the variant better than the baseline, on a machine full of noise?
//!
//! Freezing, and whatever else adapts itself, has a baseline to fall back to. A [`Trial`] runs both
//! in short windows that take turns, a round at a time, and looks at the differences within rounds,
//! so that what changes slowly cancels. It goes over to the variant when that is better by more
//! than the error of the difference and a margin, and leaves it when it is worse by more than the
//! error. Between trials it waits, twice as long each time nothing changed, so that trials cost
//! next to nothing in the end; a shift of what it is told to watch, such as the hit ratio, brings
//! the next one forward. Every decision is kept with its reason.
//!
//! It is pure: times and sums of latencies go in, the mode to run and until when comes out. Where
//! modes cannot take turns so fast, its parts serve alone: [`Difference`] of windows, [`Backoff`],
//! [`Record`].
//!
//! After FussyCache's "do no harm" and FrozenHot's regression to the baseline, which compare single
//! windows and double what they wait; the error of a comparison is in neither.

mod backoff;
mod difference;
mod level;
mod sums;

use std::time::Duration;

pub use backoff::{Backoff, Record};
pub use difference::{Difference, trimmed_mean};
pub(crate) use level::Level;
pub use sums::Sums;

/// A window that has too few requests goes on for so many times its length, and then its round does
/// not count.
const PATIENCE: u32 = 10;
/// Rounds in a trial that may fail before it is given up.
const FAILURES_MAX: u32 = 4;
/// Decisions that are kept.
const RECORD: usize = 32;
/// Trials that found nothing and count in the next ones, too.
const TRIALS_KEPT: usize = 4;

/// One of two ways to work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Without the mechanism.
    Baseline,
    /// With it.
    Variant,
}

impl Mode {
    /// The other one.
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
    /// Length of a window.
    pub window: Duration,
    /// The time between a switch and the next window, in which the other mode's traces leave caches
    /// and queues.
    pub settle: Duration,
    /// Measurements that a window has at least.
    pub count_min: u64,
    /// Rounds before the first look at the result. Others follow at each double of it; the first
    /// that leaves no doubt ends the trial.
    pub rounds_min: usize,
    /// Rounds of a trial at most.
    pub rounds_max: usize,
    /// The chance that a trial decides for a mode that is not better, over all its looks at the
    /// result.
    pub risk: f64,
    /// The gain, as a share of the baseline, below which the variant is not worth entering.
    pub margin: f64,
    /// From the end of a trial to the next, at first.
    pub interval_min: Duration,
    /// And at most.
    pub interval_max: Duration,
    /// A change of the level by more than this brings the next trial forward.
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

/// The observations since the step before, in the mode that was ordered.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Seen {
    /// Since any fixed start.
    pub now: Duration,
    /// Of latencies, in any unit as long as it is the same for both modes.
    pub sums: Sums,
    /// A level whose shift says that the load has changed, such as the hit ratio; `None` without
    /// one.
    pub level: Option<f64>,
}

/// The mode to run, and when to come back with what was seen. To come earlier does no harm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrialOrder {
    /// The mode.
    pub mode: Mode,
    /// In the time of [`Seen::now`].
    pub until: Duration,
    /// True if the observations until then count. Otherwise a switch has yet to settle, or there is
    /// no trial.
    pub counts: bool,
}

/// The decision of a trial.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// When.
    pub at: Duration,
    /// The mode from then on.
    pub mode: Mode,
    /// True if the mode is another one than before.
    pub changed: bool,
    /// The measured difference; `None` when too little was seen.
    pub difference: Option<Difference>,
    /// Why, in words and numbers.
    pub reason: String,
}

#[derive(Debug, Clone)]
enum State {
    Resting {
        next: Duration,
    },
    Trying {
        rounds: Vec<(f64, f64)>,
        /// The mean of the first window of this round.
        first: Option<f64>,
        /// Of windows of both modes; where the round stands follows from it and `first`.
        window: Sums,
        /// When the window begins or began: what is seen before does not count.
        from: Duration,
        failures: u32,
    },
}

/// Decides between a baseline and a variant, again and again.
#[derive(Debug, Clone)]
pub struct Trial {
    options: TrialOptions,
    mode: Mode,
    running: Mode,
    state: State,
    /// Rounds of the last trials, as long as these decided nothing.
    undecided: Vec<(f64, f64)>,
    interval: Backoff,
    level: Level,
    now: Duration,
    decisions: Record<Decision>,
}

impl Trial {
    /// Starts in a mode; the first trial begins with the first step.
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

    /// The mode that was decided for, whatever a trial is running.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The same, with the first trial not before this time.
    pub fn resting_until(mut self, next: Duration) -> Self {
        self.state = State::Resting { next };
        self
    }

    /// Returns whether a trial is being run.
    pub fn is_trying(&self) -> bool {
        matches!(self.state, State::Trying { .. })
    }

    /// The last decisions, oldest first.
    pub fn decisions(&self) -> &Record<Decision> {
        &self.decisions
    }

    /// Something notable has changed: the next trial comes soon, and others soon after it.
    pub fn notice(&mut self) {
        self.interval.reset();
        self.undecided.clear();
        if let State::Resting { next } = &mut self.state {
            *next = (*next).min(self.now + self.options.interval_min);
        }
    }

    /// Takes in what was seen, and says what to do until when.
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

    /// Begins the next window: rounds are baseline first and variant first by turns.
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
