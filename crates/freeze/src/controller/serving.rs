//! The controller while a frozen index is built, serves, and is replaced.

use std::time::Duration;

use floe_policy::trial::{Difference, trimmed_mean};

use super::{After, Controller, LOOKUPS_FEW, State, Then};
use crate::observe::{Action, ControllerStep, Done, Observations, WINDOW, Wake, WindowCounts};
use crate::trials::{Monitor, Verdict};
use crate::{Lifetime, Phase};

/// Lifetime of the next index, as a part of the age at which the last one was outdated.
const OLD_PART: f64 = 0.75;

/// Windows of a frozen phase that was too slow.
#[derive(Debug, Clone)]
pub(super) struct Suspect {
    /// Mean latency of each window, in nanoseconds a request.
    means: Vec<f64>,
    /// Counts of the last of these windows.
    recent: WindowCounts,
}

impl Controller {
    pub(super) fn freeze(&mut self, is_refresh: bool, reason: String) -> ControllerStep {
        self.decide(Phase::Constructing, reason);
        self.state = State::Constructing { is_refresh };
        self.ask(self.freezing())
    }

    /// Builds the next index of the same ratio after a renewal. This is routine and not recorded as
    /// a decision each time.
    pub(super) fn freeze_again(&mut self) -> ControllerStep {
        self.state = State::Constructing { is_refresh: true };
        self.ask(self.freezing())
    }

    /// Returns the action that freezes the chosen share.
    pub(super) fn freezing(&self) -> Action {
        let ratio = self.report.stats.ratio;
        if ratio >= 1.0 { Action::FreezeAll } else { Action::Freeze { ratio } }
    }

    pub(super) fn construct(&mut self, is_refresh: bool, seen: &Observations) -> ControllerStep {
        let Some(Done::Constructed { took, entries }) = seen.done else {
            if self.is_stuck() {
                return self.give_up("the construction of the index takes too long".to_owned());
            }
            self.state = State::Constructing { is_refresh };
            return self.after(WINDOW);
        };
        self.report.constructed(took, entries);
        if is_refresh {
            self.report.stats.refreshed += 1;
        } else {
            self.phases.monitor = Monitor::new(self.now);
            self.report.stats.lifetime = self.lifespan.first(took);
        }
        if !is_refresh {
            let took = took.as_secs_f64() * 1e3;
            self.decide(Phase::Frozen, format!("{entries} entries were frozen in {took:.2} ms"));
        }
        self.phases.monitor.refreshed(self.now);
        self.state = State::Frozen;
        self.after(WINDOW)
    }

    pub(super) fn stay_frozen(&mut self, seen: &Observations) -> ControllerStep {
        let adapts = self.options.ratio.is_none();
        if adapts {
            let was_trying = self.phases.index.is_trying();
            let action = self.phases.index.step(seen);
            let is_trying = self.phases.index.is_trying();
            if was_trying && !is_trying {
                let index = &self.phases.index;
                let (worth, is_harmful) = (index.worth(), index.is_harmful());
                let reason = index.reason();
                self.phases.note_worth(worth);
                if is_harmful {
                    return self.give_up(format!("the index does not pay: {reason}"));
                }
            }
            if was_trying || is_trying {
                self.phases.monitor.interrupt(self.now);
                let at = if is_trying { self.phases.index.until() } else { self.now + WINDOW };
                return ControllerStep { action, wake: Wake { at, lookups: u64::MAX } };
            }
        }
        let verdict = self.phases.monitor.step(seen, self.baseline.pool(), &self.costs);
        if verdict != Verdict::Open {
            self.look();
        }
        if let Verdict::Loss(difference, blocks) = verdict
            && adapts
            && self.phases.is_too_slow(blocks)
        {
            let reason =
                format!("slower than without freezing, {blocks} times in a row: {difference}");
            return self.suspect(reason);
        }
        let baseline = self.baseline.total();
        if let Some(loss) =
            self.phases.prices.and_then(|prices| self.phases.monitor.old(&baseline, &prices))
        {
            return self.renew_old(&loss);
        }
        match self.is_due(seen) {
            Some(reason) => {
                self.phases.served_its_time();
                self.refresh(reason)
            }
            None => self.after(WINDOW),
        }
    }

    /// Measures a fresh baseline, to find out whether freezing makes the present windows slow.
    fn suspect(&mut self, reason: String) -> ControllerStep {
        let suspect = Suspect {
            means: self.phases.monitor.last_block(&self.costs),
            recent: self.phases.monitor.recent(),
        };
        self.thaw(After::WarmUp(Then::Judge(Box::new(suspect))), reason)
    }

    /// Renews an index that has lost so many hits that it does harm. If several indexes in a row
    /// grew old early, another one would not help: then a fresh baseline is measured, to judge
    /// freezing.
    fn renew_old(&mut self, loss: &Difference) -> ControllerStep {
        let age = self.now.saturating_sub(self.phases.monitor.began);
        let is_early = age <= 2 * self.lifespan.least();
        let what = format!("it lost hits within {:.2} s: {loss}", age.as_secs_f64());
        if let Some(times) = self.phases.grew_old(is_early) {
            return self.suspect(format!("{what}, {times} times in a row"));
        }
        let step = self.refresh(what);
        self.report.stats.lifetime =
            self.lifespan.bounded(self.report.stats.lifetime.min(age.mul_f64(OLD_PART)));
        step
    }

    /// Updates the lifetime at the end of a block of windows. A certain drift may shorten it.
    fn look(&mut self) {
        let windows = self.phases.monitor.windows();
        self.costs = windows.costs().or(&self.costs);
        let stats = &mut self.report.stats;
        stats.freezing_ns = trimmed_mean(&windows.means(&self.costs));
        stats.frozen_share = windows.total().frozen_share();
        let lifetime = self.next_lifetime();
        let stats = &mut self.report.stats;
        stats.lifetime = lifetime.min(stats.lifetime);
    }

    /// Returns the lifetime to use after the present one.
    fn next_lifetime(&self) -> Duration {
        let stats = &self.report.stats;
        if self.options.lifetime != Lifetime::Drift {
            return self.lifespan.first(stats.construction);
        }
        // A replacement costs what requests lose meanwhile, and the processor that it keeps busy.
        let frozen = stats.freezing_ns.unwrap_or(0.0);
        let lost = (self.baseline.mean().unwrap_or(frozen) - frozen).max(0.0);
        let busy = frozen / f64::from(self.threads + 1);
        let construction = stats.construction.as_secs_f64();
        let detour = self.lifespan.detour().as_secs_f64();
        let cost = construction * busy + (construction + detour) * lost;
        let drift = &self.phases.monitor.drift;
        self.lifespan.bounded(drift.lifetime(stats.lifetime, cost, &self.costs))
    }

    /// Returns the reason for a new index, if it is time for one. An idle cache keeps its index.
    fn is_due(&self, seen: &Observations) -> Option<String> {
        let age = self.now.saturating_sub(self.phases.monitor.began);
        if self.phases.monitor.lookups() < LOOKUPS_FEW.max(seen.entries / 10) {
            return None;
        }
        if age >= self.report.stats.lifetime {
            return Some(format!(
                "its lifetime of {:.2} s is over",
                self.report.stats.lifetime.as_secs_f64()
            ));
        }
        let is_half_gone =
            seen.frozen < self.report.stats.index_entries / 2 && age >= self.options.lifetime_min;
        is_half_gone.then(|| {
            format!(
                "{} of {} frozen entries are left",
                seen.frozen, self.report.stats.index_entries
            )
        })
    }

    fn refresh(&mut self, why: String) -> ControllerStep {
        self.report.stats.lifetime = self.next_lifetime();
        self.lifespan.leave(self.now);
        let frozen = self.phases.monitor.windows().means(&self.costs);
        if self.options.ratio.is_none()
            && self.schedule.wants_recheck(self.now)
            && self.phases.may_compare(frozen.len())
        {
            // Only a cache that has warmed up is a fair baseline: at first it still has what was
            // frozen and grew old.
            let then = Then::Recheck(frozen);
            return self
                .thaw(After::WarmUp(then), format!("{why}; the baseline is measured again"));
        }
        self.state = State::Thawing { after: After::Renew };
        self.report.refresh(self.now, self.phase(), why);
        self.ask(Action::Thaw)
    }

    /// Returns the reason why the ratio may no longer be the best one, if there is one.
    fn wants_to_learn(&self) -> Option<String> {
        if !self.schedule.has_lasted(self.now) {
            return None;
        }
        if self.schedule.wants_to_learn(self.now) {
            return Some("the ratio was learned long ago".to_owned());
        }
        self.phases.moved()
    }

    /// Compares a frozen phase that seemed too slow with a fresh baseline, and acts on the result.
    pub(super) fn judge(&mut self, suspect: &Suspect) -> ControllerStep {
        let prices = self.phases.prices;
        let by_hits =
            prices.and_then(|prices| prices.difference(&self.baseline.total(), &suspect.recent));
        let found = by_hits
            .filter(|found| found.is_loss(0.0))
            .or_else(|| self.baseline.difference(&suspect.means));
        let numbers = found
            .map_or_else(|| "too few requests were measured".to_owned(), |found| found.to_string());
        if found.is_some_and(|found| !found.is_loss(0.0)) {
            self.phases.forgive();
            self.baseline.replace_pool();
            let reason = format!("it is no faster without freezing: {numbers}");
            return self.freeze(true, reason);
        }
        if self.schedule.has_lasted(self.now) {
            self.schedule.start_anew();
            let reason =
                format!("the workload has changed: {numbers}; without freezing {}", self.baseline);
            return self.start_learning(reason);
        }
        self.give_up_merged(format!("freezing did harm: {numbers}"))
    }

    /// Compares frozen windows with a fresh baseline and with all since the ratio was learned, and
    /// acts on the result.
    pub(super) fn compare_again(&mut self, frozen: &[f64]) -> ControllerStep {
        let (now, loss) = self.baseline.compare(frozen);
        if let Some(loss) = loss {
            let reason = format!("it is faster without freezing: {loss}");
            // It did pay, so another ratio may.
            let may_learn = self.schedule.has_lasted(self.now);
            return if may_learn {
                self.start_learning(reason)
            } else {
                self.give_up_merged(reason)
            };
        }
        let Some(now) = now else {
            let reason =
                "too few requests were measured to tell whether freezing is slower".to_owned();
            return self.give_up_merged(reason);
        };
        self.schedule.put_off_recheck(self.now);
        if let Some(reason) = self.wants_to_learn() {
            return self.start_learning(reason);
        }
        self.freeze(true, format!("freezing is no slower: {now}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Freezing;

    #[test]
    fn nothing_is_frozen_again_of_which_too_little_was_seen_to_compare() {
        let mut controller = Controller::new(Freezing::adaptive());
        controller.compare_again(&[100.0]);
        let stats = controller.stats();
        assert_eq!((stats.phase, stats.given_up), (Phase::Waiting, 1), "{:?}", stats.decisions);
    }

    #[test]
    fn an_index_that_few_requests_measured_is_renewed_before_it_is_compared() {
        let mut controller = Controller::new(Freezing::adaptive());
        controller.now = Duration::from_secs(100);
        let mut renewals = 0;
        loop {
            controller.refresh("its lifetime is over".to_owned());
            match &controller.state {
                State::Thawing { after: After::Renew } => renewals += 1,
                State::Thawing { after: After::WarmUp(Then::Recheck(_)) } => break,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(renewals, 16);
    }
}
