//! Latencies of single requests: a clock that costs little, and a histogram.
//!
//! The clock is read once a request, so an interval is a request with the loop around it, the clock
//! and the histogram. [`timer_ns`] measures that loop with nothing in it, and what is reported has
//! it subtracted.

use std::hint::black_box;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Shares of the requests that take at most what is reported, with their names.
pub const PERCENTILES: [(&str, f64); 4] =
    [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("p99.99", 0.9999)];

/// Buckets of each power of two: a bucket is 1/32 of its value wide.
const STEPS: usize = 32;
const STEP_BITS: u32 = STEPS.ilog2();
const BUCKETS: usize = (64 - STEP_BITS as usize + 1) * STEPS;

/// Ticks of the processor's counter, or nanoseconds where there is none.
#[inline]
fn now() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every processor of this architecture has the counter.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        static BEGIN: OnceLock<Instant> = OnceLock::new();
        BEGIN.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }
}

/// Ticks of [`now`] in a nanosecond, by the system's clock.
fn ticks_per_ns() -> f64 {
    static TICKS: OnceLock<f64> = OnceLock::new();
    *TICKS.get_or_init(|| {
        // A thread that loses its processor between the two clocks counts too few ticks.
        let counted = |_| {
            let (begun, first) = (Instant::now(), now());
            std::thread::sleep(Duration::from_millis(20));
            let ticks = now().saturating_sub(first);
            ticks as f64 / begun.elapsed().as_nanos() as f64
        };
        (0..5).map(counted).fold(0.0, f64::max)
    })
}

/// Carries out requests one after the other and counts the time of each.
#[inline]
pub fn timed<T>(requests: &[T], latencies: &mut Histogram, mut one: impl FnMut(&T)) {
    let mut last = now();
    for request in requests {
        one(request);
        let at = now();
        // A thread that moves to another processor may find its counter behind.
        latencies.add(at.saturating_sub(last));
        last = at;
    }
}

/// Nanoseconds of [`timed`] for a request that does nothing: the least mean of many runs, as other
/// work only lengthens them.
pub fn timer_ns() -> f64 {
    static COST: OnceLock<f64> = OnceLock::new();
    *COST.get_or_init(|| {
        let requests = [0u32; 1024];
        let mut latencies = Histogram::new();
        let run = |_| {
            let begun = now();
            timed(&requests, &mut latencies, |request| _ = black_box(request));
            (now() - begun) as f64 / requests.len() as f64
        };
        (0..300).map(run).fold(f64::INFINITY, f64::min) / ticks_per_ns()
    })
}

/// Numbers of requests by their ticks.
#[derive(Clone, Default)]
pub struct Histogram {
    /// None where nothing was timed.
    buckets: Vec<u64>,
}

impl Histogram {
    pub fn new() -> Self {
        Self { buckets: vec![0; BUCKETS] }
    }

    #[inline]
    fn add(&mut self, ticks: u64) {
        self.buckets[bucket(ticks)] += 1;
    }

    /// Adds the requests of another thread.
    pub fn merge(&mut self, other: &Histogram) {
        if self.buckets.is_empty() {
            self.buckets.clone_from(&other.buckets);
            return;
        }
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(own, other)| *own += other);
    }

    pub fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }

    /// Nanoseconds that this share of the requests takes at most, without the timer; at least one.
    pub fn percentile_ns(&self, share: f64) -> f64 {
        (self.percentile(share) / ticks_per_ns() - timer_ns()).max(1.0)
    }

    /// The middle of the bucket, in ticks.
    fn percentile(&self, share: f64) -> f64 {
        let all: u64 = self.buckets.iter().sum();
        let rank = ((all as f64 * share).ceil() as u64).clamp(1, all.max(1));
        let mut below = 0;
        let at = self.buckets.iter().position(|count| {
            below += count;
            below >= rank
        });
        at.map_or(0.0, |at| (least(at) as f64 + least(at + 1) as f64 - 1.0) / 2.0)
    }
}

#[inline]
fn bucket(ticks: u64) -> usize {
    let shift = (u64::BITS - STEP_BITS).saturating_sub(ticks.leading_zeros() + 1);
    ((shift as usize) << STEP_BITS) + (ticks >> shift) as usize
}

/// The least ticks of a bucket.
fn least(bucket: usize) -> u128 {
    let shift = (bucket / STEPS).saturating_sub(1);
    ((bucket - shift * STEPS) as u128) << shift
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_of_ticks_is_in_its_bucket() {
        let around = (0..64).flat_map(|bit| {
            let power = 1u64 << bit;
            [power - 1, power, power + 1, power | power >> 1, power | power >> 7]
        });
        for ticks in around.chain([u64::MAX]) {
            let at = bucket(ticks);
            assert!(at < BUCKETS, "{ticks}");
            let (low, high) = (least(at), least(at + 1));
            assert!((low..high).contains(&u128::from(ticks)), "{ticks}: {low}..{high}");
            assert!(high - low <= 1 + low / STEPS as u128, "{ticks}: {low}..{high}");
        }
    }

    #[test]
    fn percentiles_are_those_of_all_threads() {
        let (mut all, mut other) = (Histogram::default(), Histogram::new());
        (0..9_990).for_each(|_| other.add(20));
        all.merge(&other);
        let mut slow = Histogram::new();
        (0..10).for_each(|_| slow.add(1 << 20));
        all.merge(&slow);
        let of = |share| all.percentile(share);
        assert_eq!((of(0.5), of(0.99), of(0.999)), (20.0, 20.0, 20.0));
        assert!((of(0.9999) / (1 << 20) as f64 - 1.0).abs() < 0.04, "{}", of(0.9999));
    }

    #[test]
    fn a_sleep_is_timed_and_the_timer_costs_less() {
        let mut latencies = Histogram::new();
        timed(&[1, 2, 3], &mut latencies, |_| std::thread::sleep(Duration::from_millis(2)));
        assert!(latencies.percentile_ns(0.5) > 1.9e6, "{}", latencies.percentile_ns(0.5));
        assert!(timer_ns() > 0.0 && timer_ns() < 1.9e6, "{}", timer_ns());
    }
}
