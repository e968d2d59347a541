//! While the ratio is learned: every share without an index, all entries with one, the choice, and
//! its proof.

use std::time::Duration;

use super::{After, Controller, RISK, State, Then};
use crate::frozen::learner::{Choice, Learner, Lesson};
use crate::frozen::observe::{Action, Done, Observations, Step, Wake};
use crate::frozen::options::Phase;
use crate::frozen::proof::{Course, Proof};
use crate::frozen::windows::{Costs, WINDOW};
use crate::frozen::worth::{IndexTrial, Worth};

/// Tells what must be gained, as a share of the baseline, to freeze.
const MARGIN: f64 = 0.01;
/// Rounds of the first one, in which all is frozen: that may do harm.
const TRY_ROUNDS: usize = 12;

impl Controller {
    pub(super) fn start_learning(&mut self, reason: String) -> Step {
        self.decide(Phase::Learning, reason);
        self.schedule.learn(self.now);
        let mut learner = Learner::new();
        let action = learner.begin();
        self.state = State::Learning { learner };
        self.ask(action)
    }

    pub(super) fn learn(&mut self, mut learner: Learner, seen: &Observations) -> Step {
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
                Step { action: Action::Keep, wake: Wake { at: until, lookups } }
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

    pub(super) fn try_all(
        &mut self,
        learner: Learner,
        trial: Option<Box<IndexTrial>>,
        seen: &Observations,
    ) -> Step {
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

    /// Everything thaws before all was tried.
    fn give_up_learning(&mut self, reason: String) -> Step {
        self.schedule.learned(self.now);
        self.report.stats.learned += 1;
        self.give_up(format!("{reason}; without freezing {}", self.baseline))
    }

    fn go_on_trying(&mut self, learner: Learner, trial: Box<IndexTrial>, action: Action) -> Step {
        let wake = Wake { at: trial.until(), lookups: u64::MAX };
        self.state = State::TryingAll { learner, trial: Some(trial) };
        Step { action, wake }
    }

    /// Acts on what was learned. All entries are frozen at this point.
    fn choose(&mut self, choice: Option<Choice>, trial: &IndexTrial) -> Step {
        self.schedule.learned(self.now);
        let index = match self.phases.worth() {
            Some(Worth { saving, saving_error, failing }) => {
                format!(
                    "the index saves {saving:.1} ± {saving_error:.1} ns a hit and costs \
                     {failing:.1} ns in vain"
                )
            }
            None => "the index was not seen at work".to_owned(),
        };
        let Some(choice) = choice else {
            return self.give_up(format!("too little was seen to choose a ratio; {index}"));
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
            return self.give_up(format!("the best would be no clear gain: {what}"));
        }
        if ratio >= 1.0 && trial.is_harmful() {
            // Never to promote pays, but this index does not.
            return self.give_up(format!("the index does not pay: {what}"));
        }
        self.report.stats.ratio = ratio;
        self.thaw(After::WarmUp(Then::Prove), what)
    }

    /// A prediction is tried beside the merged cache, which is warm.
    pub(super) fn start_proving(&mut self, reason: String) -> Step {
        self.decide(Phase::Proving, reason);
        let proof = Proof::new(self.now, self.freezing(), self.baseline.total(), self.costs);
        self.state = State::Proving { proof: Box::new(proof) };
        self.after(Duration::ZERO)
    }

    pub(super) fn prove(&mut self, mut proof: Box<Proof>, seen: &Observations) -> Step {
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
                Step { action: Action::Keep, wake: Wake { at, lookups: u64::MAX } }
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
