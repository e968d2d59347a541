//! The freeze controller decides when to freeze, how much, for how long, and when to wait.
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
//! - It learns by freezing step by step, see [`crate::learner`], so one learner serves every
//!   policy.
//! - Freezing all entries is tried with an index that is bypassed in turns, which shows the worth
//!   of the index ([`crate::trials`]). Before the first freeze, the cost of a frozen hit is
//!   unknown, and is not guessed.
//! - The learned values are a prediction from latencies of different moments. Before the controller
//!   relies on it, it tries the chosen share in short windows, beside a merged cache that has
//!   warmed up. The gain must be beyond doubt ([`crate::trials::Proof`]).
//! - Every comparison has an error. A frozen phase ends only on a difference larger than that,
//!   several times in a row. Then the baseline is measured again before anything is concluded: if
//!   it is as slow, the load or the machine became slower, and the same ratio is frozen again. The
//!   authors' code ended most frozen phases on noise, and waited 16 s.
//! - Warming up and learning are bounded by lookups and time. Nothing waits for an eviction, which
//!   may never come near a hit ratio of 1. An idle cache is left as it is.
//! - Thawed entries come back as if just used, so an immediate freeze would take the same entries
//!   for ever. So a refresh first lets a few lookups per entry show which are still in demand, and
//!   the cost of a refresh includes that time.
//! - The baseline is measured again on some refreshes, always of a cache that has warmed up: less
//!   often the longer it agrees. The lifetime follows from the measured drift
//!   ([`crate::trials::Drift`]). An index that has lost so many hits that it does harm for these
//!   alone is replaced at once ([`crate::observe::Prices`]).
//!
//! It is a state machine without clock, thread or lock: [`Controller::step`] takes the counts of
//! the cache and returns an action and the time of the next step.

use std::time::Duration;

use self::parts::{BASELINE, Baseline, FrozenPhases, Lifespan, Report, Schedule};
use self::serving::Suspect;
use crate::learner::{Choice, Learner, Lesson};
use crate::observe::{
    Action, ControllerStep, Costs, Done, Observations, WINDOW, Wake, Warmth, Windows,
};
use crate::trials::{Course, IndexTrial, Proof, Worth};
use crate::{FreezeStats, Freezing, Phase};

mod parts;
mod serving;

/// Minimum number of lookups that a measurement needs; fewer count as none.
const LOOKUPS_FEW: u64 = 1_000;
/// Probability that the verdict on a repeated baseline is wrong.
const RISK: f64 = 0.01;
/// Number of samples that suffice for a window. With more of them, fewer requests are timed, down
/// to a lowest share. A waiting controller reads no latencies at all, but threads must learn of it
/// when that changes.
const SAMPLES_ENOUGH: f64 = 300.0;
const SPARSER: f64 = 20.0;
const SPARSER_WAITING: u32 = 100;
/// Longest time that an action may take before it is cancelled.
const STUCK: Duration = Duration::from_secs(60);

/// Purpose of the baseline that is measured next.
#[derive(Debug, Clone)]
enum Then {
    /// The learner compares frozen phases with the baseline.
    Learn,
    /// The baseline shows the cause of these slow windows of a frozen phase: was freezing the
    /// cause?
    Judge(Box<Suspect>),
    /// The baseline is compared with these windows of a frozen phase, which were not too slow, to
    /// confirm that they still beat it.
    Recheck(Vec<f64>),
    /// No comparison: the share to freeze is known, and the cache only had to warm up.
    Freeze,
    /// The baseline is a fair comparison for the proof of the chosen share.
    Prove,
}

#[derive(Debug, Clone)]
enum After {
    WarmUp(Then),
    /// Serve a short while without an index, and then build the next one.
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

/// Controller of freezing for one cache.
#[derive(Debug, Clone)]
pub struct Controller {
    options: Freezing,
    state: State,
    now: Duration,
    /// Time at which the action under way was requested.
    asked: Duration,
    baseline: Baseline,
    phases: FrozenPhases,
    lifespan: Lifespan,
    schedule: Schedule,
    costs: Costs,
    threads: u32,
    /// Recent lookups per second.
    rate: f64,
    report: Report,
}

impl Controller {
    /// Creates the controller of a new cache.
    pub fn new(options: Freezing) -> Self {
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

    /// Returns the state and counts for the statistics of the cache.
    pub fn stats(&self) -> FreezeStats {
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

    /// Returns the present phase.
    pub fn phase(&self) -> Phase {
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

    /// Processes the observations since the last step. Returns the next action and the time of the
    /// next step.
    pub fn step(&mut self, seen: &Observations) -> ControllerStep {
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

    /// Returns N if one request in N is to be timed from now on. Reading the clock is the cost of
    /// freezing where it does not pay.
    pub fn timed_one_in(&self) -> u32 {
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

    fn warm_up(&mut self, mut warmth: Warmth, then: Then, seen: &Observations) -> ControllerStep {
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

    fn measure(&mut self, mut windows: Windows, then: Then, seen: &Observations) -> ControllerStep {
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

    fn thaw(&mut self, after: After, reason: String) -> ControllerStep {
        self.state = State::Thawing { after };
        self.decide(self.phase(), reason);
        self.ask(Action::Thaw)
    }

    fn thaw_on(&mut self, after: After, seen: &Observations) -> ControllerStep {
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

    /// Requests an action whose completion is reported.
    fn ask(&mut self, action: Action) -> ControllerStep {
        self.asked = self.now;
        ControllerStep { action, ..self.after(Duration::from_secs(1)) }
    }

    fn is_stuck(&self) -> bool {
        self.now.saturating_sub(self.asked) >= STUCK
    }

    fn after(&self, span: Duration) -> ControllerStep {
        ControllerStep {
            action: Action::Keep,
            wake: Wake { at: self.now + span, lookups: u64::MAX },
        }
    }

    fn give_up(&mut self, reason: String) -> ControllerStep {
        let wait = self.note_failure();
        self.thaw(After::Wait(wait), reason)
    }

    /// Gives up freezing while nothing is frozen.
    fn give_up_merged(&mut self, reason: String) -> ControllerStep {
        let wait = self.note_failure();
        self.decide(Phase::Waiting, reason);
        self.start_waiting(wait)
    }

    /// Counts a failure, and returns the wait until the next attempt.
    fn note_failure(&mut self) -> Duration {
        self.report.stats.given_up += 1;
        self.report.stats.ratio = 0.0;
        self.schedule.wait()
    }

    fn start_waiting(&mut self, wait: Duration) -> ControllerStep {
        self.state = State::Waiting {
            until: self.now.saturating_add(wait),
            lookups: 0,
            level: Level::default(),
        };
        self.after(WINDOW)
    }

    fn wait_on(
        &mut self,
        mut until: Duration,
        lookups: u64,
        mut level: Level,
        seen: &Observations,
    ) -> ControllerStep {
        if seen.lookups() >= 100 && self.options.ratio.is_none() {
            let hits = 1.0 - seen.misses as f64 / seen.lookups() as f64;
            if level.add(hits) {
                let Level { start, now, .. } = std::mem::take(&mut level);
                let soon = self.now + self.schedule.shortest_wait();
                if soon < until {
                    until = soon;
                    let reason = format!(
                        "the hit ratio went from {:.1} to {:.1} %: the wait is cut short",
                        start * 100.0,
                        now * 100.0
                    );
                    self.decide(Phase::Waiting, reason);
                }
            }
        }
        if self.now < until || lookups < LOOKUPS_FEW {
            self.state = State::Waiting { until, lookups, level };
            return self.after(WINDOW * 2);
        }
        let reason = "the wait is over".to_owned();
        if self.options.ratio.is_some() {
            self.decide(Phase::WarmingUp, reason);
            self.state = State::WarmingUp { warmth: Warmth::new(self.now), then: Then::Freeze };
        } else {
            self.decide(Phase::Measuring, reason);
            self.state =
                State::Measuring { windows: Windows::new(self.now, BASELINE), then: Then::Learn };
        }
        self.after(WINDOW)
    }

    fn start_learning(&mut self, reason: String) -> ControllerStep {
        self.decide(Phase::Learning, reason);
        self.schedule.learn(self.now);
        let mut learner = Learner::new();
        let action = learner.begin();
        self.state = State::Learning { learner };
        self.ask(action)
    }

    fn learn(&mut self, mut learner: Learner, seen: &Observations) -> ControllerStep {
        if let Some(Done::Extended { share }) = seen.done {
            learner.extended(share, self.now);
            self.state = State::Learning { learner };
            return self.after(Duration::ZERO);
        }
        match learner.step(seen) {
            Lesson::Do(_) if learner.is_hopeless(self.baseline.windows()) => {
                let ratio = learner.frozen() * 100.0;
                self.give_up_learning(format!(
                    "with {ratio:.0} % frozen, misses alone take longer than all requests do \
                     without"
                ))
            }
            Lesson::Do(action) => {
                self.state = State::Learning { learner };
                self.ask(action)
            }
            Lesson::Wait { until, lookups } => {
                if learner.is_waiting() && self.is_stuck() {
                    let ratio = learner.ratio() * 100.0;
                    return self
                        .give_up(format!("to freeze {ratio:.0} % of the entries takes too long"));
                }
                self.state = State::Learning { learner };
                ControllerStep { action: Action::Keep, wake: Wake { at: until, lookups } }
            }
            Lesson::Over if !learner.may_gain(self.baseline.windows(), MARGIN) => self
                .give_up_learning(
                    "no share could gain anything, even if hits took no time".to_owned(),
                ),
            Lesson::Over => {
                let reason =
                    "every share up to 98 % was seen; the last to be tried is all".to_owned();
                self.decide(Phase::TryingAll, reason);
                self.state = State::TryingAll { learner, trial: None };
                self.ask(Action::FreezeAll)
            }
            Lesson::Idle => {
                self.thaw(After::Measure(Then::Learn), "too few lookups to learn from".to_owned())
            }
        }
    }

    fn try_all(
        &mut self,
        learner: Learner,
        trial: Option<Box<IndexTrial>>,
        seen: &Observations,
    ) -> ControllerStep {
        let Some(mut trial) = trial else {
            let Some(Done::Constructed { took, entries }) = seen.done else {
                if self.is_stuck() {
                    let reason = "the construction of an index of all entries takes too long";
                    return self.give_up(reason.to_owned());
                }
                self.state = State::TryingAll { learner, trial: None };
                return self.after(WINDOW);
            };
            self.report.constructed(took, entries);
            if entries == 0 {
                return self.give_up("there is nothing that can be frozen".to_owned());
            }
            let mut trial = Box::new(IndexTrial::now(self.now, TRY_ROUNDS));
            let action = trial.step(&Observations { now: self.now, ..Observations::default() });
            return self.go_on_trying(learner, trial, action);
        };
        let action = trial.step(seen);
        if trial.is_trying() && !learner.is_hopeless_with(trial.served(), self.baseline.windows()) {
            return self.go_on_trying(learner, trial, action);
        }
        // Where it ended early, what the index is worth is to be seen once it serves: for now,
        // nothing.
        self.phases.note_worth(trial.worth());
        let worth =
            self.phases.worth().unwrap_or(Worth { saving: 0.0, saving_error: 0.0, failing: 0.0 });
        let (all, baseline) = (trial.served().costs(), self.baseline.windows().costs());
        let costs = Costs {
            frozen: all.frozen,
            dynamic: baseline.dynamic,
            miss: all.miss.or(baseline.miss),
        };
        self.costs = costs.or(&self.costs);
        self.report.stats.learned += 1;
        let choice = learner.best(self.baseline.windows(), trial.served(), worth, RISK);
        self.choose(choice, &trial)
    }

    /// Gives up learning and thaws everything, before freezing all entries was tried.
    fn give_up_learning(&mut self, reason: String) -> ControllerStep {
        self.schedule.learned(self.now);
        self.report.stats.learned += 1;
        self.give_up(format!("{reason}; without freezing {}", self.baseline))
    }

    fn go_on_trying(
        &mut self,
        learner: Learner,
        trial: Box<IndexTrial>,
        action: Action,
    ) -> ControllerStep {
        let wake = Wake { at: trial.until(), lookups: u64::MAX };
        self.state = State::TryingAll { learner, trial: Some(trial) };
        ControllerStep { action, wake }
    }

    /// Acts on the result of learning. All entries are frozen at this point.
    fn choose(&mut self, choice: Option<Choice>, trial: &IndexTrial) -> ControllerStep {
        self.schedule.learned(self.now);
        let index = match self.phases.worth() {
            Some(Worth { saving, saving_error, failing }) => {
                format!(
                    "the index saves {saving:.1} ± {saving_error:.1} ns a hit and costs \
                     {failing:.1} ns a lookup that it does not answer"
                )
            }
            None => "no lookup in the index was measured".to_owned(),
        };
        let Some(choice) = choice else {
            return self
                .give_up(format!("too few requests were measured to choose a ratio; {index}"));
        };
        let Choice { ratio, expected, frozen_share, hit_ratio } = choice;
        let what = format!(
            "{:.0} % frozen is expected to take {expected}, with {:.0} % of the hits frozen and \
             {:.1} % hits; {index}; {}",
            ratio * 100.0,
            frozen_share * 100.0,
            hit_ratio * 100.0,
            self.costs
        );
        if !expected.is_gain(MARGIN) {
            return self.give_up(format!("the best ratio would bring no clear gain: {what}"));
        }
        if ratio >= 1.0 && trial.is_harmful() {
            // Never to promote pays, but this index does not.
            return self.give_up(format!("the index does not pay: {what}"));
        }
        self.report.stats.ratio = ratio;
        self.thaw(After::WarmUp(Then::Prove), what)
    }

    /// Starts the proof of a prediction beside the merged cache, which is warm.
    fn start_proving(&mut self, reason: String) -> ControllerStep {
        self.decide(Phase::Proving, reason);
        let proof = Proof::new(self.now, self.freezing(), self.baseline.total(), self.costs);
        self.state = State::Proving { proof: Box::new(proof) };
        self.after(Duration::ZERO)
    }

    fn prove(&mut self, mut proof: Box<Proof>, seen: &Observations) -> ControllerStep {
        if let Some(Done::Constructed { took, entries }) = seen.done {
            self.report.constructed(took, entries);
        }
        if proof.is_waiting() && self.is_stuck() {
            return self.give_up("to freeze and thaw by turns takes too long".to_owned());
        }
        let course = proof.step(seen);
        if let Course::Pays(_) | Course::Fails(..) = course {
            self.schedule.learned(self.now);
        }
        match course {
            Course::Do(action) => {
                self.state = State::Proving { proof };
                self.ask(action)
            }
            Course::Wait(at) => {
                self.state = State::Proving { proof };
                ControllerStep { action: Action::Keep, wake: Wake { at, lookups: u64::MAX } }
            }
            Course::Pays(gain) => {
                self.schedule.begin(self.now);
                self.baseline.begin(proof.baseline_means());
                self.phases.begin(self.now, proof.prices());
                self.freeze(false, format!("freezing pays: {gain}"))
            }
            Course::Fails(reason, true) => self.give_up_merged(reason),
            Course::Fails(reason, false) => self.give_up(reason),
        }
    }
}

/// Change of the hit ratio that ends a wait early.
const WAIT_SHIFT: f64 = 0.05;
/// Number of steps over which the hit ratio is smoothed.
const LEVEL_STEPS: u32 = 10;
/// The hit ratio while nothing is frozen.
#[derive(Debug, Clone, Copy, Default)]
struct Level {
    /// Hit ratio at the start of the wait.
    start: f64,
    /// Recent hit ratio, smoothed.
    now: f64,
    steps: u32,
}

impl Level {
    /// Adds a hit ratio, and returns true if the level has moved since the start.
    fn add(&mut self, hit_ratio: f64) -> bool {
        self.steps += 1;
        self.now += (hit_ratio - self.now) / f64::from(self.steps.min(LEVEL_STEPS));
        if self.steps <= LEVEL_STEPS {
            self.start = self.now;
        }
        (self.now - self.start).abs() > WAIT_SHIFT
    }
}

/// Minimum expected gain for freezing, as a share of the baseline.
const MARGIN: f64 = 0.01;
/// Number of rounds of the first trial of the index. All entries are frozen meanwhile, which may do
/// harm.
const TRY_ROUNDS: usize = 12;
