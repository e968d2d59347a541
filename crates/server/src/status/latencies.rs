//! Latencies of requests, to two digits.

use std::ops::AddAssign;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::Latency;

/// Longest latency kept apart, in nanoseconds: a minute.
const LONGEST_NS: u64 = 60_000_000_000;

/// Latencies of requests, from the arrival of the whole request to its reply being queued.
#[derive(Debug, Clone)]
pub(crate) struct Latencies {
    histogram: Histogram<u64>,
    sum: Duration,
}

impl Default for Latencies {
    fn default() -> Self {
        let histogram =
            Histogram::new_with_bounds(1, LONGEST_NS, 2).expect("the bounds are in order");
        Self { histogram, sum: Duration::ZERO }
    }
}

impl Latencies {
    /// Adds a latency.
    pub(super) fn record(&mut self, latency: Duration) {
        self.histogram.saturating_record(latency.as_nanos() as u64);
        self.sum += latency;
    }

    pub(crate) fn count(&self) -> u64 {
        self.histogram.len()
    }

    pub(crate) fn sum(&self) -> Duration {
        self.sum
    }

    /// Number of requests that took so long or less, to the two digits that are kept apart.
    pub(crate) fn within(&self, latency: Duration) -> u64 {
        self.histogram.count_between(0, latency.as_nanos() as u64)
    }

    /// Those recorded after an earlier state of the same.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let mut after = self.clone();
        // It fails where something was forgotten in between: the whole is what is known then.
        if after.histogram.subtract(&before.histogram).is_ok() {
            after.sum = after.sum.saturating_sub(before.sum);
        }
        after
    }

    pub(crate) fn summary(&self) -> Latency {
        let us = |quantile| self.histogram.value_at_quantile(quantile) as f64 / 1000.0;
        let mean_us = self.sum.as_secs_f64() * 1e6 / self.count().max(1) as f64;
        Latency { mean_us, p50_us: us(0.5), p99_us: us(0.99), p999_us: us(0.999) }
    }
}

impl AddAssign<&Self> for Latencies {
    fn add_assign(&mut self, other: &Self) {
        self.histogram += &other.histogram;
        self.sum += other.sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_counted_up_to_a_bound() {
        let mut latencies = Latencies::default();
        [9, 10, 11, 5000].into_iter().for_each(|us| latencies.record(Duration::from_micros(us)));
        assert_eq!(latencies.within(Duration::from_micros(10)), 2);
        assert_eq!(latencies.within(Duration::from_secs(10)), 4);
        assert_eq!(latencies.sum(), Duration::from_micros(5030));
    }
}
