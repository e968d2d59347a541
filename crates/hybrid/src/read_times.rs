//! Times of reads of flash, counted in buckets.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Upper bounds of the buckets of read times in microseconds.
const BOUNDS_US: [u64; 19] = [
    10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000,
    500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000,
];
/// One read in this many is measured: reading the clock twice takes a part of a flash read's time.
const MEASURED: u32 = 16;

/// Times of reads of flash.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadTimes {
    counts: [u64; BOUNDS_US.len() + 1],
    sum: Duration,
}

impl ReadTimes {
    /// Returns the number of reads in each bucket, and the bucket's upper bound in microseconds.
    /// The last bucket has none.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<u64>, u64)> + '_ {
        let bounds = BOUNDS_US.into_iter().map(Some).chain([None]);
        bounds.zip(self.counts)
    }

    /// Adds the times of another drive.
    pub(crate) fn add(&mut self, other: &Self) {
        self.counts.iter_mut().zip(other.counts).for_each(|(count, more)| *count += more);
        self.sum += other.sum;
    }

    /// Returns the number of reads measured.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the sum of the times of all reads measured.
    pub fn sum(&self) -> Duration {
        self.sum
    }
}

/// The measurement of read times by all threads.
#[derive(Debug, Default)]
pub(crate) struct ReadClock {
    counts: [AtomicU64; BOUNDS_US.len() + 1],
    sum_ns: AtomicU64,
}

impl ReadClock {
    /// Returns the time now for one call of this thread in 16.
    pub(crate) fn begin() -> Option<Instant> {
        thread_local! {
            static CALLS: Cell<u32> = const { Cell::new(0) };
        }
        let call = CALLS.get();
        CALLS.set(call.wrapping_add(1));
        call.is_multiple_of(MEASURED).then(Instant::now)
    }

    /// Counts a read that began then, if it is measured.
    pub(crate) fn end(&self, began: Option<Instant>) {
        let Some(began) = began else { return };
        let time = began.elapsed();
        let bucket = BOUNDS_US.partition_point(|bound| u128::from(*bound) < time.as_micros());
        // Relaxed: statistics.
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> ReadTimes {
        ReadTimes {
            counts: std::array::from_fn(|at| self.counts[at].load(Ordering::Relaxed)),
            sum: Duration::from_nanos(self.sum_ns.load(Ordering::Relaxed)),
        }
    }
}
