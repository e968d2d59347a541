//! Frozen phases with one ratio: what they are compared with, and how much is let pass.

use std::time::Duration;

use crate::frozen::monitor::Monitor;
use crate::frozen::shares::Prices;
use crate::frozen::worth::{IndexTrial, Worth};

/// Blocks in a row that must be slower before a frozen phase ends; double after each false alarm,
/// up to a limit.
const PATIENCE: u32 = 2;
const PATIENCE_MAX: u32 = 16;
/// Between two trials of the index, at first.
const INDEX_INTERVAL: Duration = Duration::from_secs(10);
/// A frozen share or a hit ratio that has moved by so much calls for learning anew.
const SHIFT: f64 = 0.1;

#[derive(Debug, Clone)]
pub(super) struct FrozenPhases {
    pub(super) monitor: Monitor,
    /// The latencies of the kinds of requests when the ratio was proved.
    pub(super) prices: Option<Prices>,
    pub(super) index: IndexTrial,
    worth: Option<Worth>,
    patience: u32,
    /// Indexes in a row that lost too many hits long before their time.
    old: u32,
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
        }
    }

    /// Forgets what was known of phases with another ratio. The monitor begins with the first
    /// index.
    pub(super) fn begin(&mut self, now: Duration, prices: Option<Prices>) {
        self.prices = prices;
        self.index = IndexTrial::every(now, INDEX_INTERVAL);
        self.patience = PATIENCE;
        self.old = 0;
    }

    /// The worth of the index when it was last tried.
    pub(super) fn worth(&self) -> Option<Worth> {
        self.worth
    }

    /// Takes in what a trial of the index found, if it found anything.
    pub(super) fn note_worth(&mut self, found: Option<Worth>) {
        self.worth = found.or(self.worth);
    }

    /// Returns whether so many slower blocks in a row are too many.
    pub(super) fn is_too_slow(&self, blocks: u32) -> bool {
        blocks >= self.patience
    }

    /// It was a false alarm: the next one needs more.
    pub(super) fn forgive(&mut self) {
        self.patience = (self.patience * 2).min(PATIENCE_MAX);
    }

    /// An index grew old, early or not. Returns how many did so early, once those are too many.
    pub(super) fn grew_old(&mut self, is_early: bool) -> Option<u32> {
        self.old = if is_early { self.old + 1 } else { 0 };
        (self.old >= self.patience).then(|| std::mem::take(&mut self.old))
    }

    /// An index has served its time.
    pub(super) fn served_its_time(&mut self) {
        self.old = 0;
    }

    /// Says which share has moved since the first phase, and how far.
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

#[cfg(test)]
mod tests {
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
