//! The cache without freezing, as it was last measured, and what frozen phases are compared with.

use std::time::Duration;

use floe_policy::trial::{Difference, trimmed_mean};

use super::RISK;
use crate::frozen::windows::{Costs, WindowCounts, Windows};

/// Windows of a baseline.
pub(super) const BASELINE: usize = 16;
/// Looks at the baseline that are kept.
const ROUNDS: usize = 16;
/// Windows of baselines that are kept.
const POOL: usize = 60;

#[derive(Debug, Clone)]
pub(super) struct Baseline {
    windows: Windows,
    /// Nanoseconds a request, window by window.
    means: Vec<f64>,
    /// Those of all baselines since the ratio was learned.
    pool: Vec<f64>,
    /// Looks at the baseline since the last learning: its mean, and that of the frozen phase
    /// before.
    rounds: Vec<(f64, f64)>,
}

impl Baseline {
    /// One that is not measured yet.
    pub(super) fn new(now: Duration) -> Self {
        let windows = Windows::new(now, BASELINE);
        Self { windows, means: Vec::new(), pool: Vec::new(), rounds: Vec::new() }
    }

    /// Takes these windows for it. Operations sampled in none of them cost as much as `elsewhere`.
    pub(super) fn measured(&mut self, windows: Windows, elsewhere: &Costs) {
        self.means = windows.means(elsewhere);
        self.windows = windows;
    }

    /// Forgets what was measured for another ratio; `pool` was measured for this one.
    pub(super) fn begin(&mut self, pool: Vec<f64>) {
        self.pool = pool;
        self.rounds.clear();
    }

    pub(super) fn windows(&self) -> &Windows {
        &self.windows
    }

    pub(super) fn total(&self) -> WindowCounts {
        self.windows.total()
    }

    /// Nanoseconds a request, window by window, of all baselines since the ratio was learned.
    pub(super) fn pool(&self) -> &[f64] {
        &self.pool
    }

    /// Nanoseconds a request.
    pub(super) fn mean(&self) -> Option<f64> {
        trimmed_mean(&self.means)
    }

    /// Compares frozen windows with this baseline alone.
    pub(super) fn difference(&self, frozen: &[f64]) -> Option<Difference> {
        Difference::between(&self.means, frozen, RISK)
    }

    /// The machine is slower now: only this one counts from now on.
    pub(super) fn replace_pool(&mut self) {
        self.pool.clone_from(&self.means);
    }

    /// Compares frozen windows with this baseline, with all since the ratio was learned, and round
    /// by round. Returns the difference to this one, and the first certain loss.
    pub(super) fn compare(&mut self, frozen: &[f64]) -> (Option<Difference>, Option<Difference>) {
        if let (Some(baseline), Some(frozen)) = (self.mean(), trimmed_mean(frozen)) {
            self.rounds.push((baseline, frozen));
            let old = self.rounds.len().saturating_sub(ROUNDS);
            self.rounds.drain(..old);
        }
        self.pool.extend_from_slice(&self.means);
        let old = self.pool.len().saturating_sub(POOL);
        self.pool.drain(..old);
        let now = self.difference(frozen);
        let pooled = Difference::between(&self.pool, frozen, RISK);
        let rounds = Difference::paired(&self.rounds, RISK);
        let loss = [now, pooled, rounds].into_iter().flatten().find(|found| found.is_loss(0.0));
        (now, loss)
    }
}

/// For people: nanoseconds a request, and hits.
impl std::fmt::Display for Baseline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let hits = self.total().hit_ratio().unwrap_or(0.0) * 100.0;
        write!(f, "{:.1} ns a request at {hits:.1} % hits", self.mean().unwrap_or(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(means: &[f64]) -> Baseline {
        Baseline { means: means.to_vec(), ..Baseline::new(Duration::ZERO) }
    }

    #[test]
    fn a_loss_is_found_against_all_baselines_also_where_the_last_one_was_slow() {
        let fast: Vec<f64> = (0..50).map(|number| 100.0 + f64::from(number % 3)).collect();
        let slow: Vec<f64> = fast[..8].iter().map(|mean| mean + 50.0).collect();
        let mut baseline = measured(&slow);
        baseline.begin(fast.clone());
        let frozen: Vec<f64> = fast.iter().map(|mean| mean + 40.0).collect();
        let (now, loss) = baseline.compare(&frozen);
        assert!(now.is_some_and(|now| !now.is_loss(0.0)), "{now:?}");
        assert!(loss.is_some(), "the pool has faster ones");
        baseline.replace_pool();
        assert_eq!(baseline.pool(), slow);
        assert_eq!(baseline.compare(&frozen).1, None);
    }

    #[test]
    fn no_more_than_so_many_windows_and_rounds_are_kept() {
        let mut baseline = measured(&[1.0; 40]);
        for _ in 0..30 {
            baseline.compare(&[1.0; 4]);
        }
        assert_eq!((baseline.pool.len(), baseline.rounds.len()), (POOL, ROUNDS));
    }
}
