//! Sums of measurements: all that is kept of a window of them.

use std::ops::AddAssign;

/// The number of measurements, their sum and the sum of their squares. Latencies are in
/// nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Sums {
    /// The number of measurements.
    pub count: u64,
    /// Their sum.
    pub sum: f64,
    /// The sum of their squares.
    pub squares: f64,
}

impl Sums {
    /// Adds a measurement.
    #[inline]
    pub fn add(&mut self, value: f64) {
        self.count += 1;
        self.sum += value;
        self.squares += value * value;
    }

    /// Their mean; `None` without measurements, or if there were some that are no number.
    pub fn mean(&self) -> Option<f64> {
        let mean = self.sum / self.count as f64;
        (self.count > 0 && mean.is_finite() && self.squares.is_finite()).then_some(mean)
    }

    /// The standard deviation of the measurements; `None` for fewer than two, or if there were some
    /// that are no number.
    pub fn deviation(&self) -> Option<f64> {
        let mean = self.mean().filter(|_| self.count > 1)?;
        let variance = (self.squares - self.sum * mean) / (self.count - 1) as f64;
        Some(variance.max(0.0).sqrt())
    }
}

impl AddAssign for Sums {
    fn add_assign(&mut self, other: Self) {
        self.count += other.count;
        self.sum += other.sum;
        self.squares += other.squares;
    }
}
