//! Latencies in few bytes, for what is kept apart many times: by volume, and by where reads were
//! answered.
//!
//! Buckets are eighths of a factor of two, so that a percentile is exact to 6 %, and 900 bytes hold
//! all up to a minute. [`Latencies`](super::latencies::Latencies) keeps two digits in 30 KiB.

use std::ops::AddAssign;
use std::time::Duration;

/// Nanoseconds of the first buckets.
const UNIT_BITS: u32 = 6;

/// Buckets in a factor of two.
const PARTS_BITS: u32 = 3;

/// Buckets up to a minute; the last has everything longer.
const BUCKETS: usize = 224;

/// Percentiles in microseconds; 0 without requests.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Percentiles {
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
}

/// Numbers of latencies of each size.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Spread {
    /// By bucket; empty without requests.
    counts: Vec<u32>,
}

impl Spread {
    /// Adds a latency.
    #[inline]
    pub(crate) fn record(&mut self, latency: Duration) {
        if self.counts.is_empty() {
            self.counts.resize(BUCKETS, 0);
        }
        let count = &mut self.counts[bucket(latency.as_nanos() as u64)];
        *count = count.wrapping_add(1); // differences are what counts
    }

    /// Returns those added after an earlier state of the same, or in it alone.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let then = before.counts.iter().chain(std::iter::repeat(&0));
        let counts = self.counts.iter().zip(then).map(|(now, then)| now.wrapping_sub(*then));
        Self { counts: counts.collect() }
    }

    /// Returns the percentiles.
    pub(crate) fn percentiles(&self) -> Percentiles {
        let all: u64 = self.counts.iter().map(|&count| u64::from(count)).sum();
        let at = |share: f64| {
            let mut left = (share * all as f64).ceil() as u64;
            let reached = |&count: &u32| {
                left = left.saturating_sub(u64::from(count));
                left == 0
            };
            self.counts.iter().position(reached).map_or(0.0, middle_us)
        };
        if all == 0 {
            return Percentiles::default();
        }
        Percentiles { p50_us: at(0.5), p99_us: at(0.99), p999_us: at(0.999) }
    }
}

impl AddAssign<&Self> for Spread {
    fn add_assign(&mut self, other: &Self) {
        self.counts.resize(self.counts.len().max(other.counts.len()), 0);
        for (sum, part) in self.counts.iter_mut().zip(&other.counts) {
            *sum = sum.wrapping_add(*part);
        }
    }
}

fn bucket(ns: u64) -> usize {
    let units = ns >> UNIT_BITS;
    if units < 1 << PARTS_BITS {
        return units as usize;
    }
    let power = units.ilog2();
    let part = (units >> (power - PARTS_BITS)) & ((1 << PARTS_BITS) - 1);
    ((((power - PARTS_BITS + 1) << PARTS_BITS) as u64 + part) as usize).min(BUCKETS - 1)
}

/// Returns the middle of a bucket, in microseconds.
fn middle_us(bucket: usize) -> f64 {
    let (row, part) = (bucket as u32 >> PARTS_BITS, bucket as u64 & ((1 << PARTS_BITS) - 1));
    let power = row.saturating_sub(1);
    let first = if row == 0 { part } else { ((1 << PARTS_BITS) + part) << power };
    (first as f64 + f64::from(1u32 << power) / 2.0) * f64::from(1u32 << UNIT_BITS) / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_is_found_again_to_six_percent() {
        for us in [1, 3, 17, 99, 1000, 7777, 123_456, 5_000_000, 55_000_000u64] {
            let mut spread = Spread::default();
            spread.record(Duration::from_micros(us));
            let found = spread.percentiles().p50_us / us as f64;
            assert!((0.94..=1.07).contains(&found), "{us} µs: {found}");
        }
        let mut long = Spread::default();
        long.record(Duration::from_secs(10_000));
        assert!(long.percentiles().p99_us > 5e7);
    }

    #[test]
    fn percentiles_are_of_those_since() {
        let mut spread = Spread::default();
        (0..1000).for_each(|_| spread.record(Duration::from_millis(100)));
        let before = spread.clone();
        (0..980).for_each(|_| spread.record(Duration::from_micros(100)));
        (0..20).for_each(|_| spread.record(Duration::from_millis(3)));
        let Percentiles { p50_us, p99_us, p999_us } = spread.since(&before).percentiles();
        assert!((94.0..107.0).contains(&p50_us) && (2800.0..3200.0).contains(&p99_us));
        assert_eq!(p999_us, p99_us);
        assert_eq!(spread.since(&spread).percentiles(), Percentiles::default());
        assert_eq!(Spread::default().percentiles(), Percentiles::default());
        let mut sum = before.since(&Spread::default());
        sum += &spread.since(&before);
        assert_eq!(sum, spread);
    }
}
