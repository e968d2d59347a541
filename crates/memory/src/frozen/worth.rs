//! Measures the gain of the frozen index itself: hits on the same entries with it and without.
//!
//! Hits on frozen entries are faster than others for two reasons: nothing is promoted, and the
//! index is smaller and simpler. The first is seen while learning, without an index. The second
//! cannot be: hot entries are in the processor's caches, so comparing frozen hits with dynamic ones
//! would credit the index with what it owes to its entries. Bypassing the index and publishing it
//! again by turns compares like with like.

use std::time::Duration;

use floe_policy::trial::{Difference, Mode, Seen, Trial, TrialOptions, TrialOrder};

use super::observe::{Action, Observations};
use super::windows::{WindowCounts, Windows};

/// The chance that what is said to be the error is too small.
const RISK: f64 = 0.05;
/// Windows of each mode that are remembered.
const WINDOWS: usize = 32;

/// In nanoseconds per lookup.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Worth {
    /// By which the index makes a hit on a frozen entry faster.
    pub(super) saving: f64,
    pub(super) saving_error: f64,
    /// Tells what a lookup costs that the index answers in vain.
    pub(super) failing: f64,
}

/// Publishes and bypasses the index by turns.
#[derive(Debug, Clone)]
pub(super) struct IndexTrial {
    trial: Trial,
    order: TrialOrder,
    /// With the index.
    served: Windows,
    /// Without.
    bypassed: Windows,
    open: WindowCounts,
    opened: Duration,
    window: Duration,
}

impl IndexTrial {
    /// One trial, at once and of all its rounds: to find out what the index is worth.
    pub(super) fn now(now: Duration, rounds: usize) -> Self {
        Self::first_at(
            now,
            now,
            TrialOptions { rounds_min: rounds, rounds_max: rounds, ..TrialOptions::default() },
        )
    }

    /// Trials that are `interval` apart at first, each no longer than it takes to be sure. The
    /// first comes after as long.
    pub(super) fn every(now: Duration, interval: Duration) -> Self {
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

    /// Takes in what was seen, and answers whether to bypass the index.
    pub(super) fn step(&mut self, seen: &Observations) -> Action {
        let mut tally = WindowCounts::default();
        tally.add(seen);
        if self.order.counts {
            self.open.merge(&tally);
        }
        let before = self.order.mode;
        let level = tally.hit_ratio().filter(|_| tally.lookups() >= 100);
        let sums = tally.hit_latencies();
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

    /// Returns whether a trial is being run: what is seen is not what a frozen phase is like.
    pub(super) fn is_trying(&self) -> bool {
        self.trial.is_trying()
    }

    /// When to step next.
    pub(super) fn until(&self) -> Duration {
        self.order.until
    }

    /// Returns whether hits are slower with the index than without, by more than the error.
    pub(super) fn is_harmful(&self) -> bool {
        !self.is_trying() && self.trial.mode() == Mode::Baseline
    }

    /// Why, of the last trial.
    pub(super) fn reason(&self) -> String {
        self.trial
            .decisions()
            .last()
            .map_or_else(|| "no trial yet".to_owned(), |last| last.reason.clone())
    }

    /// Windows with the index.
    pub(super) fn served(&self) -> &Windows {
        &self.served
    }

    /// `None` before both modes were seen often enough.
    pub(super) fn worth(&self) -> Option<Worth> {
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
