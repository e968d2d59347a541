//! When to look at the baseline again, when to learn again, and how long to wait after a failure.

use std::time::Duration;

use floe_policy::trial::Backoff;

use crate::frozen::options::Freezing;

/// Between two looks at the baseline.
const RECHECK: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(600));
/// Between two learning phases while all is well.
const RELEARN: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(3600));
/// The first wait is at least so many times what learning took.
const WAIT_PER_LEARNING: u32 = 10;
/// A choice that has not lasted for so many times as long as it took to learn, and so long at
/// least, was not worth learning: then it is not learned again at once.
const LASTING: u32 = 20;
const LASTING_MIN: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub(super) struct Schedule {
    wait: Backoff,
    recheck: (Backoff, Duration),
    relearn: (Backoff, Duration),
    learning_since: Duration,
    learning_took: Duration,
    /// When the ratio was chosen.
    chosen_at: Duration,
}

impl Schedule {
    pub(super) fn new(options: &Freezing) -> Self {
        let zero = Duration::ZERO;
        Self {
            wait: Backoff::new(options.wait_min, options.wait_max),
            recheck: (Backoff::new(RECHECK.0, RECHECK.1), zero),
            relearn: (Backoff::new(RELEARN.0, RELEARN.1), zero),
            learning_since: zero,
            learning_took: zero,
            chosen_at: zero,
        }
    }

    /// Learning begins.
    pub(super) fn learn(&mut self, now: Duration) {
        self.learning_since = now;
    }

    /// Learning has come to an end, or is further than before.
    pub(super) fn learned(&mut self, now: Duration) {
        self.learning_took = now.saturating_sub(self.learning_since);
    }

    /// Frozen phases with a new ratio begin.
    pub(super) fn begin(&mut self, now: Duration) {
        self.chosen_at = now;
        self.recheck.0.reset();
        self.put_off_recheck(now);
        self.relearn.1 = now + self.relearn.0.take();
    }

    /// Returns whether what was learned last has been good for long.
    pub(super) fn has_lasted(&self, now: Duration) -> bool {
        now.saturating_sub(self.chosen_at) >= LASTING_MIN.max(self.learning_took * LASTING)
    }

    /// Returns whether the baseline is to be looked at again.
    pub(super) fn wants_recheck(&self, now: Duration) -> bool {
        now >= self.recheck.1
    }

    /// The baseline agreed: the next look comes later.
    pub(super) fn put_off_recheck(&mut self, now: Duration) {
        self.recheck.1 = now + self.recheck.0.take();
    }

    /// Returns whether the ratio was learned long ago.
    pub(super) fn wants_to_learn(&self, now: Duration) -> bool {
        now >= self.relearn.1
    }

    /// The workload is another one: what was learned of waits does not hold.
    pub(super) fn start_anew(&mut self) {
        self.wait.reset();
        self.relearn.0.reset();
    }

    /// The wait after a failure: each one longer, and none too short for what learning costs.
    pub(super) fn wait(&mut self) -> Duration {
        self.wait.take_at_least(self.learning_took * WAIT_PER_LEARNING)
    }

    /// The first wait again, for a workload that has changed meanwhile.
    pub(super) fn shortest_wait(&mut self) -> Duration {
        self.wait.reset();
        self.wait.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn waits_double_and_are_long_beside_what_learning_takes() {
        let mut schedule = Schedule::new(&Freezing::adaptive());
        assert_eq!([(); 3].map(|()| schedule.wait()), [1, 2, 4].map(seconds));
        schedule.learn(seconds(100));
        schedule.learned(seconds(103));
        assert_eq!([(); 2].map(|()| schedule.wait()), [30, 60].map(seconds));
        assert_eq!(schedule.shortest_wait(), seconds(1));
    }

    #[test]
    fn a_choice_lasts_if_it_was_good_for_much_longer_than_it_took_to_learn() {
        let mut schedule = Schedule::new(&Freezing::adaptive());
        schedule.learn(seconds(0));
        schedule.learned(seconds(2));
        schedule.begin(seconds(10));
        assert!(!schedule.has_lasted(seconds(49)) && schedule.has_lasted(seconds(50)));
        assert!(!schedule.wants_recheck(seconds(14)) && schedule.wants_recheck(seconds(15)));
        schedule.put_off_recheck(seconds(15));
        assert!(!schedule.wants_recheck(seconds(24)) && schedule.wants_recheck(seconds(25)));
        assert!(!schedule.wants_to_learn(seconds(69)) && schedule.wants_to_learn(seconds(70)));
    }
}
