//! While a frozen index is built, serves, and is replaced.

use std::time::Duration;

use floe_policy::trial::{Difference, trimmed_mean};

use super::{After, Controller, LOOKUPS_FEW, RISK, State, Then};
use crate::frozen::monitor::{Monitor, Verdict};
use crate::frozen::observe::{Action, Done, Observations, Step, Wake};
use crate::frozen::options::{Freezing, Lifetime, Phase};
use crate::frozen::windows::{WINDOW, WindowCounts};

/// Blocks in a row that must be slower before a frozen phase ends; double after each false alarm,
/// up to a limit.
pub(super) const PATIENCE: u32 = 2;
const PATIENCE_MAX: u32 = 16;
/// Of the lifetime, its renewal may take one part in so many.
const DETOURS_PER_LIFETIME: u32 = 8;
/// A frozen share or a hit ratio that has moved by so much calls for learning anew.
const SHIFT: f64 = 0.1;
/// Looks at the baseline that are kept.
const ROUNDS: usize = 16;
/// The next index serves for this part of the time after which one had grown old.
const OLD_PART: f64 = 0.75;
/// Windows of baselines that are kept.
const POOL: usize = 60;

/// Holds what was seen when a frozen phase was too slow.
#[derive(Debug, Clone)]
pub(super) struct Suspect {
    /// Nanoseconds a request, window by window.
    means: Vec<f64>,
    /// The last of these windows.
    recent: WindowCounts,
}

impl Controller {
    pub(super) fn freeze(&mut self, is_refresh: bool, reason: String) -> Step {
        self.decide(Phase::Constructing, reason);
        self.state = State::Constructing { is_refresh };
        self.ask(self.freezing())
    }

    /// The next index of the same ratio, after a renewal: one of many, and not told each time.
    pub(super) fn freeze_again(&mut self) -> Step {
        self.state = State::Constructing { is_refresh: true };
        self.ask(self.freezing())
    }

    /// Returns what freezes the ratio that was chosen.
    pub(super) fn freezing(&self) -> Action {
        let ratio = self.stats.ratio;
        if ratio >= 1.0 { Action::FreezeAll } else { Action::Freeze { ratio } }
    }

    pub(super) fn construct(&mut self, is_refresh: bool, seen: &Observations) -> Step {
        let Some(Done::Constructed { took, entries }) = seen.done else {
            if self.is_stuck() {
                return self.give_up("the construction of the index takes too long".to_owned());
            }
            self.state = State::Constructing { is_refresh };
            return self.after(WINDOW);
        };
        self.constructed(took, entries);
        if is_refresh {
            self.stats.refreshed += 1;
        } else {
            self.monitor = Monitor::new(self.now);
            self.stats.lifetime = self.first_lifetime();
        }
        if !is_refresh {
            let took = took.as_secs_f64() * 1e3;
            self.decide(Phase::Frozen, format!("{entries} entries were frozen in {took:.2} ms"));
        }
        self.enter_frozen();
        self.after(WINDOW)
    }

    /// An index was published.
    pub(super) fn constructed(&mut self, took: Duration, entries: u64) {
        self.stats.constructed += 1;
        self.stats.construction = took;
        self.stats.index_entries = entries;
    }

    pub(super) fn enter_frozen(&mut self) {
        self.monitor.refreshed(self.now);
        self.state = State::Frozen;
    }

    pub(super) fn stay_frozen(&mut self, seen: &Observations) -> Step {
        let adapts = self.options.ratio.is_none();
        if adapts {
            let was_trying = self.index.is_trying();
            let action = self.index.step(seen);
            let is_trying = self.index.is_trying();
            if was_trying && !is_trying {
                self.worth = self.index.worth().or(self.worth);
                if self.index.is_harmful() {
                    return self
                        .give_up(format!("the index does not pay: {}", self.index.reason()));
                }
            }
            if was_trying || is_trying {
                self.monitor.interrupt(self.now);
                let at = if is_trying { self.index.until() } else { self.now + WINDOW };
                return Step { action, wake: Wake { at, lookups: u64::MAX } };
            }
        }
        let verdict = self.monitor.step(seen, &self.baseline_pool, &self.costs);
        if verdict != Verdict::Open {
            self.look();
        }
        if let Verdict::Loss(difference, blocks) = verdict
            && adapts
            && blocks >= self.patience
        {
            let reason =
                format!("slower than without freezing, {blocks} times in a row: {difference}");
            return self.suspect(reason);
        }
        let baseline = self.baseline.total();
        if let Some(loss) = self.prices.and_then(|prices| self.monitor.old(&baseline, &prices)) {
            return self.renew_old(&loss);
        }
        match self.is_due(seen) {
            Some(reason) => {
                self.old = 0;
                self.refresh(reason)
            }
            None => self.after(WINDOW),
        }
    }

    /// Something is wrong with these windows. Is it freezing? A fresh baseline tells.
    fn suspect(&mut self, reason: String) -> Step {
        let suspect =
            Suspect { means: self.monitor.last_block(&self.costs), recent: self.monitor.recent() };
        self.thaw(After::WarmUp(Then::Judge(Box::new(suspect))), reason)
    }

    /// The index has lost so many hits that it does harm. If others soon did, too, that is not
    /// cured by the next.
    fn renew_old(&mut self, loss: &Difference) -> Step {
        let age = self.now.saturating_sub(self.monitor.began);
        let least = self.bounded(Duration::ZERO);
        self.old = if age <= 2 * least { self.old + 1 } else { 0 };
        let what = format!("it lost hits within {:.2} s: {loss}", age.as_secs_f64());
        if self.old >= self.patience {
            let times = std::mem::take(&mut self.old);
            return self.suspect(format!("{what}, {times} times in a row"));
        }
        let step = self.refresh(what);
        self.stats.lifetime = self.bounded(self.stats.lifetime.min(age.mul_f64(OLD_PART)));
        step
    }

    /// At the end of a block of windows. A drift that is certain may shorten the lifetime.
    fn look(&mut self) {
        let windows = self.monitor.windows();
        self.costs = windows.costs().or(&self.costs);
        self.stats.freezing_ns = trimmed_mean(&windows.means(&self.costs));
        self.stats.frozen_share = windows.total().frozen_share();
        self.stats.lifetime = self.next_lifetime().min(self.stats.lifetime);
    }

    /// The lifetime after one of the present length.
    fn next_lifetime(&self) -> Duration {
        if self.options.lifetime != Lifetime::Drift {
            return self.first_lifetime();
        }
        // A replacement costs what requests lose meanwhile, and the processor that it keeps busy.
        let frozen = self.stats.freezing_ns.unwrap_or(0.0);
        let lost = (self.stats.baseline_ns.unwrap_or(frozen) - frozen).max(0.0);
        let busy = frozen / f64::from(self.threads + 1);
        let construction = self.stats.construction.as_secs_f64();
        let cost = construction * busy + (construction + self.detour.as_secs_f64()) * lost;
        self.bounded(self.monitor.drift.lifetime(self.stats.lifetime, cost, &self.costs))
    }

    /// The first lifetime of a ratio.
    pub(super) fn first_lifetime(&self) -> Duration {
        let constructions = |factor: f64| {
            let lifetime =
                Duration::try_from_secs_f64(self.stats.construction.as_secs_f64() * factor);
            lifetime.unwrap_or(Duration::MAX)
        };
        let Freezing { lifetime_min, lifetime_max, .. } = self.options;
        match self.options.lifetime {
            Lifetime::Fixed(lifetime) => lifetime,
            Lifetime::Factor(factor) => constructions(factor).clamp(lifetime_min, lifetime_max),
            Lifetime::Drift => self.bounded(constructions(Freezing::FACTOR)),
        }
    }

    fn bounded(&self, lifetime: Duration) -> Duration {
        let (min, max) = (self.options.lifetime_min, self.options.lifetime_max);
        lifetime.clamp(min.max(self.detour * DETOURS_PER_LIFETIME).min(max), max)
    }

    /// Returns whether it is time for a new index, and why. An idle cache keeps the one it has.
    fn is_due(&self, seen: &Observations) -> Option<String> {
        let age = self.now.saturating_sub(self.monitor.began);
        if self.monitor.lookups() < LOOKUPS_FEW.max(seen.entries / 10) {
            return None;
        }
        if age >= self.stats.lifetime {
            return Some(format!(
                "its lifetime of {:.2} s is over",
                self.stats.lifetime.as_secs_f64()
            ));
        }
        let is_half_gone =
            seen.frozen < self.stats.index_entries / 2 && age >= self.options.lifetime_min;
        is_half_gone.then(|| {
            format!("{} of {} frozen entries are left", seen.frozen, self.stats.index_entries)
        })
    }

    fn refresh(&mut self, why: String) -> Step {
        self.stats.lifetime = self.next_lifetime();
        self.detour_since = self.now;
        if self.options.ratio.is_none() && self.now >= self.recheck.1 {
            // Only a cache that has warmed up is a fair baseline: at first it still has what was
            // frozen and grew old.
            let then = Then::Recheck(self.monitor.windows().means(&self.costs));
            return self
                .thaw(After::WarmUp(then), format!("{why}; the baseline is looked at again"));
        }
        // Many in a row are told as one.
        let times = self.routine + 1;
        if times > 1 {
            self.decisions.pop_last();
        }
        let why = if times > 1 { format!("{why}, {times} times in a row") } else { why };
        let step = self.thaw(After::Renew, why);
        self.routine = times;
        step
    }

    /// Returns whether the ratio may no longer be the best one, and why.
    fn wants_to_learn(&self) -> Option<String> {
        if !self.has_lasted() {
            return None;
        }
        if self.now >= self.relearn.1 {
            return Some("it was long ago that the ratio was learned".to_owned());
        }
        let (first, now) = (self.monitor.first?, self.monitor.windows().total());
        let moved = |what: &str, from: Option<f64>, to: Option<f64>| {
            let (from, to) = (from?, to?);
            ((to - from).abs() > SHIFT)
                .then(|| format!("{what} went from {:.1} to {:.1} %", from * 100.0, to * 100.0))
        };
        moved("the frozen share of hits", first.frozen_share(), now.frozen_share())
            .or_else(|| moved("the hit ratio", first.hit_ratio(), now.hit_ratio()))
    }

    /// A frozen phase was slower than its baseline, and here is a fresh one.
    pub(super) fn judge(&mut self, suspect: &Suspect) -> Step {
        let by_hits = self
            .prices
            .and_then(|prices| prices.difference(&self.baseline.total(), &suspect.recent));
        let found = by_hits
            .filter(|found| found.is_loss(0.0))
            .or_else(|| Difference::between(&self.baseline_means, &suspect.means, RISK));
        let numbers =
            found.map_or_else(|| "too little was seen".to_owned(), |found| found.to_string());
        if found.is_some_and(|found| !found.is_loss(0.0)) {
            self.patience = (self.patience * 2).min(PATIENCE_MAX);
            self.baseline_pool.clone_from(&self.baseline_means);
            let reason = format!("it is no faster without freezing: {numbers}");
            return self.freeze(true, reason);
        }
        if self.has_lasted() {
            self.wait.reset();
            self.relearn.0.reset();
            let reason = format!(
                "the workload has changed: {numbers}; without freezing {}",
                self.baseline_line()
            );
            return self.start_learning(reason);
        }
        self.give_up_merged(format!("freezing did harm: {numbers}"))
    }

    /// Frozen phases are compared with a fresh baseline: the last one, and all since the ratio was
    /// learned.
    pub(super) fn compare_again(&mut self, frozen: &[f64]) -> Step {
        if let (Some(baseline), Some(frozen)) =
            (trimmed_mean(&self.baseline_means), trimmed_mean(frozen))
        {
            self.rounds.push((baseline, frozen));
            let old = self.rounds.len().saturating_sub(ROUNDS);
            self.rounds.drain(..old);
        }
        let fresh = self.baseline_means.clone();
        self.baseline_pool.extend_from_slice(&fresh);
        let old = self.baseline_pool.len().saturating_sub(POOL);
        self.baseline_pool.drain(..old);
        let now = Difference::between(&fresh, frozen, RISK);
        let pooled = Difference::between(&self.baseline_pool, frozen, RISK);
        let rounds = Difference::paired(&self.rounds, RISK);
        if let Some(loss) =
            [now, pooled, rounds].into_iter().flatten().find(|found| found.is_loss(0.0))
        {
            let reason = format!("it is faster without freezing: {loss}");
            // It did pay, so another ratio may.
            let may_learn = self.has_lasted();
            return if may_learn {
                self.start_learning(reason)
            } else {
                self.give_up_merged(reason)
            };
        }
        self.recheck.1 = self.now + self.recheck.0.take();
        if let Some(reason) = self.wants_to_learn() {
            return self.start_learning(reason);
        }
        let numbers =
            now.map_or_else(|| "too little was seen".to_owned(), |found| found.to_string());
        self.freeze(true, format!("freezing is no slower: {numbers}"))
    }
}
