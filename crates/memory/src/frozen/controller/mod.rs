//! The freeze controller: when to freeze, how much, for how long, and when to let it be.
//!
//! ```text
//!                     ┌───────────────────────── no clear gain, or harm ◀─────────────────────┐
//!                     ▼                                                                       │
//!                  waiting                       another workload                             │
//!                     │       ┌────────────────────────────────────────────────────┐          │
//!                     ▼       ▼                                                    │          │
//!   warming up ─▶ measuring ─▶ learning ─▶ trying all ─▶ proving ─▶ constructing ─▶ frozen ───┤
//!        ▲            └───────── no worse than the baseline ──────────▶▲ ▲                    │
//!        └──── refresh, or another look at the baseline ───────────────┴─┴────────────────────┘
//! ```
//!
//! The phases are FrozenHot's (section 3.2). The differences, with their reasons:
//! - It learns by freezing step by step, see [`super::learner`], so one learner serves every
//!   policy.
//! - 100 % is tried with an index, and there the index is bypassed by turns, which shows its worth
//!   ([`super::worth`]): before the first freeze, the cost of a frozen hit is unknown, and is not
//!   guessed.
//! - The learned values are a prediction, made of latencies of different moments. Before the
//!   controller relies on it, it sees it at work for short windows, beside a merged cache that has
//!   warmed up, and it must be a gain beyond doubt ([`super::proof`]).
//! - Every comparison has an error, and a frozen phase ends only on a difference larger than that,
//!   several times in a row. Then the baseline is measured afresh before anything is concluded: if
//!   it is as slow, the load or the machine became slower, and the same ratio is frozen again. The
//!   authors' code ended most frozen phases on noise, and waited 16 s.
//! - Warming up and learning are bounded by lookups and time; nothing waits for an eviction, which
//!   near a hit ratio of 1 never comes. An idle cache is left as it is.
//! - Thawed entries come back as if just used, so an immediate freeze would take the same entries
//!   for ever. So a refresh first lets a few lookups per entry show which are still asked for, and
//!   costs are reckoned with that.
//! - The baseline is measured anew on some refreshes, always of a cache that has warmed up: less
//!   often the longer it agrees. The lifetime follows from the measured drift ([`super::drift`]);
//!   an index that has lost so many hits that it does harm for these alone is replaced at once
//!   ([`super::shares`]).
//!
//! It is a state machine without clock, thread or lock: [`Controller::step`] takes what the cache
//! has counted and answers what to do and when to come back.

mod baseline;
mod learning;
mod lifespan;
mod phases;
mod report;
mod schedule;
mod serving;
mod waiting;

use std::time::Duration;

use self::baseline::{BASELINE, Baseline};
use self::lifespan::Lifespan;
use self::phases::FrozenPhases;
use self::report::Report;
use self::schedule::Schedule;
use self::serving::Suspect;
use self::waiting::Level;
use super::learner::Learner;
use super::observe::{Action, Done, Observations, Step, Wake};
use super::options::{FreezeStats, Freezing, Phase};
use super::proof::Proof;
use super::warmth::Warmth;
use super::windows::{Costs, WINDOW, Windows};
use super::worth::IndexTrial;

/// Fewer lookups are as good as none.
const LOOKUPS_FEW: u64 = 1_000;
/// The chance that a baseline that is measured again is judged wrongly.
const RISK: f64 = 0.01;
/// Samples in a window that are enough: with more of them, fewer requests are timed, down to one
/// part in so many. A waiting controller reads no latencies at all, but threads must learn of it
/// when that changes.
const SAMPLES_ENOUGH: f64 = 300.0;
const SPARSER: f64 = 20.0;
const SPARSER_WAITING: u32 = 100;
/// An action that takes longer is called off.
const STUCK: Duration = Duration::from_secs(60);

/// Holds what a fresh baseline is for.
#[derive(Debug, Clone)]
enum Then {
    /// To learn against it.
    Learn,
    /// These windows of a frozen phase were too slow: because of freezing?
    Judge(Box<Suspect>),
    /// These were not; but are they still better than the baseline?
    Recheck(Vec<f64>),
    /// For nothing: what to freeze is known, and the cache was only to warm up.
    Freeze,
    /// To be a fair one beside what was chosen.
    Prove,
}

#[derive(Debug, Clone)]
enum After {
    WarmUp(Then),
    /// A short while without an index, and the next one.
    Renew,
    Measure(Then),
    Wait(Duration),
}

#[derive(Debug, Clone)]
enum State {
    WarmingUp { warmth: Warmth, then: Then },
    Measuring { windows: Windows, then: Then },
    Learning { learner: Learner },
    TryingAll { learner: Learner, trial: Option<Box<IndexTrial>> },
    Proving { proof: Box<Proof> },
    Constructing { is_refresh: bool },
    Frozen,
    Thawing { after: After },
    Waiting { until: Duration, lookups: u64, level: Level },
}

/// Decides for one cache.
#[derive(Debug, Clone)]
pub(crate) struct Controller {
    options: Freezing,
    state: State,
    now: Duration,
    /// When the action under way was asked for.
    asked: Duration,
    baseline: Baseline,
    phases: FrozenPhases,
    lifespan: Lifespan,
    schedule: Schedule,
    costs: Costs,
    threads: u32,
    /// Lookups per second, lately.
    rate: f64,
    report: Report,
}

impl Controller {
    /// For a cache that was just made.
    pub(crate) fn new(options: Freezing) -> Self {
        let zero = Duration::ZERO;
        let then = if options.ratio.is_some() { Then::Freeze } else { Then::Learn };
        Self {
            options,
            state: State::WarmingUp { warmth: Warmth::new(zero), then },
            now: zero,
            asked: zero,
            baseline: Baseline::new(zero),
            phases: FrozenPhases::new(zero),
            lifespan: Lifespan::new(options),
            schedule: Schedule::new(&options),
            costs: Costs::default(),
            threads: 1,
            rate: 0.0,
            report: Report::new(),
        }
    }

    /// Returns what is told of it.
    pub(crate) fn stats(&self) -> FreezeStats {
        FreezeStats {
            phase: self.phase(),
            frozen_ns: self.costs.frozen,
            dynamic_ns: self.costs.dynamic,
            miss_ns: self.costs.miss,
            baseline_ns: self.baseline.mean(),
            decisions: self.report.decisions(),
            ..self.report.stats.clone()
        }
    }

    /// Returns what is being done.
    pub(crate) fn phase(&self) -> Phase {
        match &self.state {
            State::WarmingUp { .. } | State::Thawing { after: After::WarmUp(_) | After::Renew } => {
                Phase::WarmingUp
            }
            State::Measuring { .. } | State::Thawing { after: After::Measure(_) } => {
                Phase::Measuring
            }
            State::Waiting { .. } | State::Thawing { after: After::Wait(_) } => Phase::Waiting,
            State::Learning { .. } => Phase::Learning,
            State::TryingAll { .. } => Phase::TryingAll,
            State::Proving { .. } => Phase::Proving,
            State::Constructing { .. } => Phase::Constructing,
            State::Frozen => Phase::Frozen,
        }
    }

    /// Takes in what has happened since the step before, and says what to do and when to come back.
    pub(crate) fn step(&mut self, seen: &Observations) -> Step {
        let seen = &Observations { now: seen.now.max(self.now), ..*seen };
        let span = seen.now.saturating_sub(self.now);
        if !span.is_zero() {
            self.rate = seen.lookups() as f64 / span.as_secs_f64();
        }
        self.now = seen.now;
        self.threads = seen.threads.max(1);
        let state = std::mem::replace(&mut self.state, State::Frozen);
        match state {
            State::WarmingUp { warmth, then } => self.warm_up(warmth, then, seen),
            State::Measuring { windows, then } => self.measure(windows, then, seen),
            State::Learning { learner } => self.learn(learner, seen),
            State::TryingAll { learner, trial } => self.try_all(learner, trial, seen),
            State::Proving { proof } => self.prove(proof, seen),
            State::Constructing { is_refresh } => self.construct(is_refresh, seen),
            State::Frozen => self.stay_frozen(seen),
            State::Thawing { after } => self.thaw_on(after, seen),
            State::Waiting { until, lookups, level } => {
                self.wait_on(until, lookups + seen.lookups(), level, seen)
            }
        }
    }

    /// In how many requests one is to be timed from now on: reading the clock is what freezing
    /// costs where it does not pay.
    pub(crate) fn timed_one_in(&self) -> u32 {
        let often = self.options.sample_one_in;
        let window = match self.state {
            State::Waiting { .. } => return often.saturating_mul(SPARSER_WAITING),
            State::Learning { .. } => return often, // a stop is shorter than any window
            State::TryingAll { .. } | State::Proving { .. } => WINDOW / 2,
            State::Frozen if self.phases.index.is_trying() => WINDOW / 2,
            _ => WINDOW,
        };
        let samples = self.rate * window.as_secs_f64() / f64::from(often);
        (f64::from(often) * (samples / SAMPLES_ENOUGH).clamp(1.0, SPARSER)) as u32
    }

    fn warm_up(&mut self, mut warmth: Warmth, then: Then, seen: &Observations) -> Step {
        let Some(reason) = warmth.add(seen) else {
            self.state = State::WarmingUp { warmth, then };
            return self.after(WINDOW);
        };
        if let Then::Freeze = then {
            self.lifespan.come_back(self.now);
            let stats = &mut self.report.stats;
            stats.ratio = self.options.ratio.unwrap_or(stats.ratio);
            if stats.ratio <= 0.0 {
                self.decide(Phase::Waiting, "nothing is to be frozen".to_owned());
                return self.start_waiting(Duration::MAX);
            }
            return match stats.constructed {
                0 => self.freeze(false, reason),
                _ => self.freeze_again(),
            };
        }
        if let Then::Prove = then {
            return self.start_proving(reason);
        }
        self.decide(Phase::Measuring, reason);
        self.state = State::Measuring { windows: Windows::new(self.now, BASELINE), then };
        self.after(WINDOW)
    }

    fn measure(&mut self, mut windows: Windows, then: Then, seen: &Observations) -> Step {
        windows.add(seen);
        if windows.len() < BASELINE {
            self.state = State::Measuring { windows, then };
            return self.after(WINDOW);
        }
        self.baseline.measured(windows, &self.costs);
        match then {
            Then::Learn | Then::Freeze | Then::Prove => {
                self.start_learning(format!("without freezing {}", self.baseline))
            }
            Then::Judge(suspect) => self.judge(&suspect),
            Then::Recheck(frozen) => self.compare_again(&frozen),
        }
    }

    fn thaw(&mut self, after: After, reason: String) -> Step {
        self.state = State::Thawing { after };
        self.decide(self.phase(), reason);
        self.ask(Action::Thaw)
    }

    fn thaw_on(&mut self, after: After, seen: &Observations) -> Step {
        if seen.done != Some(Done::Thawed) && !self.is_stuck() {
            self.state = State::Thawing { after };
            return self.after(WINDOW);
        }
        match after {
            After::WarmUp(then) => {
                self.state = State::WarmingUp { warmth: Warmth::new(self.now), then };
                self.after(WINDOW)
            }
            After::Renew => {
                self.state =
                    State::WarmingUp { warmth: Warmth::renewal(self.now), then: Then::Freeze };
                self.after(Duration::ZERO)
            }
            After::Measure(then) => {
                self.state = State::Measuring { windows: Windows::new(self.now, BASELINE), then };
                self.after(WINDOW)
            }
            After::Wait(wait) => self.start_waiting(wait),
        }
    }

    fn decide(&mut self, phase: Phase, reason: String) {
        self.report.decide(self.now, phase, reason);
    }

    /// Asks for something whose completion is reported.
    fn ask(&mut self, action: Action) -> Step {
        self.asked = self.now;
        Step { action, ..self.after(Duration::from_secs(1)) }
    }

    fn is_stuck(&self) -> bool {
        self.now.saturating_sub(self.asked) >= STUCK
    }

    fn after(&self, span: Duration) -> Step {
        Step { action: Action::Keep, wake: Wake { at: self.now + span, lookups: u64::MAX } }
    }
}
