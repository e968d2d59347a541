//! Estimates how fast a frozen part grows old, and how long it is to serve.
//!
//! A frozen part loses hits as the workload moves on. If each second adds `s` to the mean latency,
//! an index that serves for `T` costs `s·T/2` on average, and its replacement, which costs `C`,
//! `C/T`. The sum is least at `T = √(2C/s)`: the square root of the economic lot size (Harris
//! 1913), and of the interval between checkpoints (Young 1974). FrozenHot leaves the lifetime to
//! the user, as a factor of the construction time, and names this as future work.
//!
//! The drift is measured by the shares of frozen hits and of all hits, which are counted exactly,
//! at the latencies of the phase; latencies themselves are too noisy.

use std::time::Duration;

use super::windows::{Costs, WindowCounts};

/// Standard errors that a drift must exceed to be believed.
const BELIEF: f64 = 4.0;
/// Standard errors by which a drift may be larger than it looks.
const MAY_BE: f64 = 1.0;
/// Of what the phases before have shown, the share that counts in the next one.
const FADE: f64 = 0.8;
/// Windows before anything is said.
const WINDOWS_MIN: f64 = 10.0;

/// A straight line through points, by least squares.
#[derive(Debug, Clone, Copy, Default)]
struct Line {
    count: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
    yy: f64,
}

impl Line {
    fn add(&mut self, x: f64, y: f64) {
        self.count += 1.0;
        self.x += x;
        self.y += y;
        self.xx += x * x;
        self.xy += x * y;
        self.yy += y * y;
    }

    fn fade(&mut self) {
        for sum in
            [&mut self.count, &mut self.x, &mut self.y, &mut self.xx, &mut self.xy, &mut self.yy]
        {
            *sum *= FADE;
        }
    }

    /// Its slope, with the standard error.
    fn slope(&self) -> Option<(f64, f64)> {
        let count = self.count;
        let spread = self.xx - self.x * self.x / count;
        if count < WINDOWS_MIN || spread <= 0.0 {
            return None;
        }
        let together = self.xy - self.x * self.y / count;
        let slope = together / spread;
        let rest = (self.yy - self.y * self.y / count - slope * together).max(0.0);
        Some((slope, (rest / (count - 2.0) / spread).sqrt()))
    }
}

/// The decay of a frozen phase.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Drift {
    frozen: Line,
    hits: Line,
}

impl Drift {
    /// Adds a window that ended when the phase had this age.
    pub(super) fn add(&mut self, age: Duration, window: &WindowCounts) {
        let lookups = window.lookups() as f64;
        if lookups > 0.0 {
            self.frozen.add(age.as_secs_f64(), window.frozen_hits as f64 / lookups);
            self.hits.add(age.as_secs_f64(), window.hits() as f64 / lookups);
        }
    }

    /// Begins another phase. The observations of earlier phases count less and less.
    pub(super) fn begin(&mut self) {
        self.frozen.fade();
        self.hits.fade();
    }

    /// By how many nanoseconds a request becomes slower in a second, with the standard error;
    /// `None` while too little was seen.
    fn slope(&self, costs: &Costs) -> Option<(f64, f64)> {
        let frozen = costs.frozen?;
        let dynamic = costs.dynamic.unwrap_or(frozen);
        let miss = costs.miss.unwrap_or(dynamic);
        let ((share, share_error), (hits, hits_error)) = (self.frozen.slope()?, self.hits.slope()?);
        let (per_share, per_hit) = (dynamic - frozen, miss - dynamic);
        let slope = -share * per_share - hits * per_hit;
        Some((slope, (share_error * per_share).hypot(hits_error * per_hit)))
    }

    /// The lifetime that follows one of `current` when a replacement costs so many nanoseconds
    /// times seconds: what is cheapest if a drift is certain; otherwise it grows, at most to
    /// double, as long as the drift that may have escaped notice lets it.
    pub(super) fn lifetime(&self, current: Duration, cost: f64, costs: &Costs) -> Duration {
        let double = current.saturating_mul(2);
        match self.slope(costs) {
            Some((slope, error)) if slope > BELIEF * error && slope > 0.0 => {
                cheapest(cost, slope).min(double)
            }
            Some((slope, error)) => match slope + MAY_BE * error {
                steepest if steepest > 0.0 => cheapest(cost, steepest).clamp(current, double),
                _ => double,
            },
            None => double,
        }
    }
}

/// `√(2C/s)`.
fn cheapest(cost: f64, slope: f64) -> Duration {
    let seconds = (2.0 * cost.max(0.0) / slope).sqrt();
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs = Costs { frozen: Some(50.0), dynamic: Some(100.0), miss: Some(5000.0) };

    fn decaying(per_second: f64, noise: f64) -> Drift {
        let mut drift = Drift::default();
        for at in 0..100u32 {
            let age = 0.05 * f64::from(at);
            let wobble = if at % 2 == 0 { noise } else { -noise };
            let frozen_hits = (1e6 * (0.8 - per_second * age + wobble)) as u64;
            let dynamic_hits = 900_000 - frozen_hits;
            let tally = WindowCounts {
                frozen_hits,
                dynamic_hits,
                misses: 100_000,
                ..WindowCounts::default()
            };
            drift.add(Duration::from_secs_f64(age), &tally);
        }
        drift
    }

    #[test]
    fn a_frozen_share_that_falls_by_a_hundredth_a_second_costs_half_a_nanosecond_more_each() {
        let drift = decaying(0.01, 0.001);
        let (slope, error) = drift.slope(&COSTS).unwrap();
        assert!((slope - 0.5).abs() < 0.02 && error < 0.02, "{slope} ± {error}");
        // To save 0.5 ns per second, at 100 ns for 0.01 s: √(2·1/0.5).
        let lifetime = drift.lifetime(Duration::from_secs(60), 1.0, &COSTS);
        assert!((lifetime.as_secs_f64() - 2.0).abs() < 0.05, "{lifetime:?}");
        assert_eq!(
            drift.lifetime(Duration::from_millis(500), 1.0, &COSTS),
            Duration::from_secs(1),
            "not so fast"
        );
    }

    #[test]
    fn without_a_drift_lifetimes_double_and_noise_that_may_hide_one_slows_that_down() {
        let second = Duration::from_secs(1);
        assert_eq!(decaying(0.0, 0.0).lifetime(second, 1.0, &COSTS), 2 * second);
        assert_eq!(decaying(-0.01, 0.001).lifetime(second, 1.0, &COSTS), 2 * second);
        assert_eq!(Drift::default().lifetime(second, 1.0, &COSTS), 2 * second);
        let noisy = decaying(0.0, 0.1);
        assert_eq!(noisy.lifetime(second, 1e-3, &COSTS), second);
    }

    #[test]
    fn short_phases_add_up() {
        let mut drift = Drift::default();
        for _ in 0..20 {
            drift.begin();
            for at in 0..4u32 {
                let frozen_hits = 800_000 - 1000 * u64::from(at);
                let tally = WindowCounts {
                    frozen_hits,
                    dynamic_hits: 900_000 - frozen_hits,
                    misses: 100_000,
                    ..WindowCounts::default()
                };
                drift.add(Duration::from_millis(50) * at, &tally);
            }
        }
        let (slope, _) = drift.slope(&COSTS).unwrap();
        assert!((slope - 1.0).abs() < 1e-6, "{slope}");
    }
}
