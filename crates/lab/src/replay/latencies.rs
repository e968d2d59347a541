//! Latencies of a replay's requests.

use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;

/// Latencies are kept apart up to an hour, to three digits.
const LONGEST_NS: u64 = 3_600_000_000_000;
const DIGITS: u8 = 3;

/// The first step of a histogram: a power of two of them is a microsecond.
const FIRST_STEP_NS: u64 = 125;

/// Latencies of one kind of request.
#[derive(Clone)]
pub struct Latencies(Histogram<u64>);

impl fmt::Debug for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Latencies({:?})", self.steps())
    }
}

impl Default for Latencies {
    fn default() -> Self {
        Self(Histogram::new_with_bounds(1, LONGEST_NS, DIGITS).expect("the bounds are in order"))
    }
}

impl Latencies {
    pub(super) fn record(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Returns the number of latencies.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Returns the mean; `None` without requests.
    pub(super) fn mean_us(&self) -> Option<f64> {
        (self.count() > 0).then(|| self.0.mean() / 1e3)
    }

    /// The latency that this share of requests do not exceed; `None` without requests.
    pub fn quantile_us(&self, share: f64) -> Option<f64> {
        (self.count() > 0).then(|| self.0.value_at_quantile(share) as f64 / 1e3)
    }

    /// Returns the counts in steps that double, from the first step that has any to the last: the
    /// upper end in microseconds, and the count.
    pub fn steps(&self) -> Vec<(f64, u64)> {
        let steps: Vec<(f64, u64)> = self
            .0
            .iter_log(FIRST_STEP_NS, 2.0)
            .map(|step| (step.value_iterated_to() as f64 / 1e3, step.count_since_last_iteration()))
            .collect();
        let first = steps.iter().position(|(_, count)| *count > 0).unwrap_or(steps.len());
        let last = steps.iter().rposition(|(_, count)| *count > 0).map_or(first, |last| last + 1);
        steps[first..last].to_vec()
    }
}
