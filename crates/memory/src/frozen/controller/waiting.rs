//! Between two attempts: giving up, and waiting until another one is worth its cost.

use std::time::Duration;

use super::{After, BASELINE, Controller, LOOKUPS_FEW, State, Then};
use crate::frozen::observe::{Observations, Step};
use crate::frozen::options::Phase;
use crate::frozen::warmth::Warmth;
use crate::frozen::windows::{WINDOW, Windows};

/// A hit ratio that has moved by so much cuts a wait short.
const WAIT_SHIFT: f64 = 0.05;
/// Steps over which it is smoothed.
const LEVEL_STEPS: u32 = 10;
/// The hit ratio while nothing is frozen.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Level {
    /// At first.
    start: f64,
    /// Lately.
    now: f64,
    steps: u32,
}

impl Level {
    /// Takes in a hit ratio, and says whether it has moved.
    fn add(&mut self, hit_ratio: f64) -> bool {
        self.steps += 1;
        self.now += (hit_ratio - self.now) / f64::from(self.steps.min(LEVEL_STEPS));
        if self.steps <= LEVEL_STEPS {
            self.start = self.now;
        }
        (self.now - self.start).abs() > WAIT_SHIFT
    }
}

impl Controller {
    pub(super) fn give_up(&mut self, reason: String) -> Step {
        let wait = self.note_failure();
        self.thaw(After::Wait(wait), reason)
    }

    /// The same where nothing is frozen.
    pub(super) fn give_up_merged(&mut self, reason: String) -> Step {
        let wait = self.note_failure();
        self.decide(Phase::Waiting, reason);
        self.start_waiting(wait)
    }

    /// Counts a failure, and answers how long to wait.
    fn note_failure(&mut self) -> Duration {
        self.report.stats.given_up += 1;
        self.report.stats.ratio = 0.0;
        self.schedule.wait()
    }

    pub(super) fn start_waiting(&mut self, wait: Duration) -> Step {
        self.state = State::Waiting {
            until: self.now.saturating_add(wait),
            lookups: 0,
            level: Level::default(),
        };
        self.after(WINDOW)
    }

    pub(super) fn wait_on(
        &mut self,
        mut until: Duration,
        lookups: u64,
        mut level: Level,
        seen: &Observations,
    ) -> Step {
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
}
