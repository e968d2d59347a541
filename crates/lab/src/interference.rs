//! Measures how much writes slow down a device's reads, and derives settings of admission policies.
//!
//! "Writes Hurt" (the NVCache paper) found persistent memory whose reads fall to a quarter beside
//! one writer. The authors chose by hand how many writes a cache on it may cause. Here that is
//! measured, on any device: a [`TestBed`] holds it, and [`measure()`] runs a closed loop of reads
//! and writes at several shares of writes, in rounds that take turns. From the medians,
//! [`derive()`] computes the cost of a write in reads and a target for OBP. A [`Calibration`] is
//! the file format of all results.
//!
//! On a simulated bed the clock is the bed's own, so the same plan gives the same figures again.

use std::io;
use std::time::Duration;

use floe_policy::admission::Calibrated;
use serde::{Deserialize, Serialize};

use self::testbed::{Mix, Round, run};
use crate::bench::Estimate;

pub use testbed::{TestBed, TestBedError};

mod testbed;

/// Largest deviation of either end of the confidence interval of reads alone from their median, as
/// a share.
const SPREAD_MAX: f64 = 0.25;

/// Largest share by which reads beside writes may be faster than alone, before the measurement
/// counts as noise.
const FASTER_MAX: f64 = 0.15;

/// A sign that a measurement is too noisy to conclude from. Shares are of the median throughput of
/// the reads alone.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum Noise {
    /// The rounds without writes differ too much.
    #[error(
        "reads of {block_bytes} bytes alone were from {:.0} to {:.0} % of their median",
        100.0 * .low, 100.0 * .high
    )]
    Unsteady {
        /// Size of each operation in bytes.
        block_bytes: u64,
        /// Lower end of the reads' confidence interval, as a share of the median.
        low: f64,
        /// Upper end of the reads' confidence interval, as a share of the median.
        high: f64,
    },
    /// Reads beside writes were faster than alone.
    #[error(
        "reads of {block_bytes} bytes beside {:.0} % writes were {:.0} % of alone",
        100.0 * .write_share, 100.0 * .reads
    )]
    FasterBesideWrites {
        /// Size of each operation in bytes.
        block_bytes: u64,
        /// Share of the operations that wrote.
        write_share: f64,
        /// Throughput of reads beside writes, as a share of that of reads alone.
        reads: f64,
    },
}

/// Returns a sign of noise in the points of one block size; `None` without noise, or without a
/// point of reads alone.
pub fn noise(points: &[Point]) -> Option<Noise> {
    let alone = points.iter().find(|point| point.write_share == 0.0)?;
    let (block_bytes, median) = (alone.block_bytes, alone.read_bytes_per_second);
    let [low, high] = [alone.read_bytes_per_second_low, alone.read_bytes_per_second_high]
        .map(|bytes_per_second| bytes_per_second / median);
    if low < 1.0 - SPREAD_MAX || high > 1.0 + SPREAD_MAX {
        return Some(Noise::Unsteady { block_bytes, low, high });
    }
    let faster =
        points.iter().map(|point| (point.write_share, point.read_bytes_per_second / median));
    let (write_share, reads) = faster.max_by(|one, other| one.1.total_cmp(&other.1))?;
    (reads > 1.0 + FASTER_MAX).then_some(Noise::FasterBesideWrites {
        block_bytes,
        write_share,
        reads,
    })
}

/// Default share of the read throughput that writes may cost.
pub const LOSS_MAX: f64 = 0.33;

/// Hit ratio to assume before any is known.
const HIT_RATIO: f64 = 0.5;

/// Share of the time gained by hits that writes may cost.
const SHARE_OF_GAIN: f64 = 0.5;

/// Settings of admission policies, derived from a measurement at one block size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Derived {
    /// Bytes of reads lost per byte written.
    pub write_cost: f64,
    /// Number of insertions that a lookup may cause, at most 1.
    pub insertions_per_lookup: f64,
    /// Target of OBP in blocks: insertions and removals per lookup.
    pub target: f64,
    /// Target of OBP with `bytes=1`: cost of insertions and removals per byte looked up.
    pub target_bytes: f64,
}

/// Derives the settings of admission policies from the points of one block size.
/// `backing_bytes_per_second` is the read throughput of the backing device in the same loop, if
/// known. `loss_max` is the share of the read throughput that writes may cost. `None` without a
/// point of reads alone.
pub fn derive(
    points: &[Point],
    backing_bytes_per_second: Option<f64>,
    loss_max: f64,
) -> Option<Derived> {
    let alone = points.iter().find(|point| point.write_share == 0.0)?.read_bytes_per_second;
    let written: f64 = points.iter().map(|point| point.write_bytes_per_second.powi(2)).sum();
    let lost = |point: &Point| (alone - point.read_bytes_per_second) * point.write_bytes_per_second;
    let cost = points.iter().map(lost).sum::<f64>() / written;
    let write_cost = if cost.is_finite() { cost.max(0.0) } else { 0.0 };
    let by_loss = loss_max / (1.0 - loss_max);
    let by_gain =
        backing_bytes_per_second.map(|backing| SHARE_OF_GAIN * HIT_RATIO * (alone / backing - 1.0));
    let slowdown_max = by_gain.map_or(by_loss, |by_gain| by_gain.min(by_loss)).max(0.0);
    let insertions_per_lookup = insertions(points, alone, slowdown_max, write_cost);
    Some(Derived {
        write_cost,
        insertions_per_lookup,
        target: (2.0 * insertions_per_lookup).min(1.0),
        target_bytes: (write_cost * insertions_per_lookup).min(1.0),
    })
}

/// Returns the insertions per lookup, at most 1, that prolong reads by the share `slowdown_max`.
/// Interpolates between measured shares of writes, and extrapolates beyond them by `write_cost`.
fn insertions(points: &[Point], alone: f64, slowdown_max: f64, write_cost: f64) -> f64 {
    if slowdown_max <= 0.0 {
        return 0.0;
    }
    let mut measured: Vec<(f64, f64)> = points
        .iter()
        .map(|point| {
            (
                point.write_share / (1.0 - point.write_share),
                alone / point.read_bytes_per_second - 1.0,
            )
        })
        .collect();
    measured.sort_by(|one, other| one.0.total_cmp(&other.0));
    // Whatever else the machine did made reads slower, never faster: fewer writes slow them no more
    // than more writes do.
    let mut least = f64::INFINITY;
    for (_, slowdown) in measured.iter_mut().rev() {
        least = least.min(*slowdown);
        *slowdown = least.max(0.0);
    }
    let mut before = (0.0, 0.0);
    for (inserted, slowdown) in measured {
        if slowdown > slowdown_max {
            let share = (slowdown_max - before.1) / (slowdown - before.1);
            return (before.0 + share * (inserted - before.0)).min(1.0);
        }
        before = (inserted, slowdown);
    }
    if write_cost > 0.0 {
        (before.0 + (slowdown_max - before.1) / write_cost).min(1.0)
    } else {
        1.0
    }
}

/// The measured slowdown of a device's reads by writes, and the settings derived from it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// The device, as named on the command line.
    pub device: String,
    /// The clock of the measurement: `real` or `virtual`.
    pub time: String,
    /// Operations in flight.
    pub depth: usize,
    /// The share of the read throughput that writes may cost.
    pub loss_max: f64,
    /// Block size of the tier in bytes.
    pub block_bytes: u64,
    /// Settings for blocks of `block_bytes`.
    #[serde(flatten)]
    pub derived: Derived,
    /// The backing device, if it was measured.
    pub backing: Option<Backing>,
    /// Results by size of the operations.
    pub sizes: Vec<OfBlock>,
}

/// Measurements of the device below the tier.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Backing {
    /// The device, as named on the command line.
    pub device: String,
    /// Measurements of reads alone, one per operation size.
    pub points: Vec<Point>,
}

/// Results for one size of the operations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OfBlock {
    /// Size of each operation in bytes.
    pub block_bytes: u64,
    /// Settings derived for this size.
    #[serde(flatten)]
    pub derived: Derived,
    /// Results by share of writes.
    pub points: Vec<Point>,
}

/// Properties of a measurement that are recorded with its points.
#[derive(Debug, Clone)]
pub struct Circumstances {
    /// The device; see [`Calibration::device`].
    pub device: String,
    /// The clock of the measurement; see [`Calibration::time`].
    pub time: String,
    /// Operations in flight; see [`Calibration::depth`].
    pub depth: usize,
    /// The loss of read throughput that is allowed; see [`Calibration::loss_max`].
    pub loss_max: f64,
    /// Block size of the tier in bytes; see [`Calibration::block_bytes`].
    pub block_bytes: u64,
}

impl Calibration {
    /// Creates a calibration from the points of all sizes. `None` where one of the sizes, or the
    /// tier's block size, has no point of reads alone.
    pub fn of(of: Circumstances, points: &[Point], backing: Option<Backing>) -> Option<Self> {
        let Circumstances { device, time, depth, loss_max, block_bytes } = of;
        let mut all: Vec<u64> = points.iter().map(|point| point.block_bytes).collect();
        all.dedup();
        let of_block = |block_bytes: u64| {
            let points: Vec<Point> =
                points.iter().filter(|point| point.block_bytes == block_bytes).cloned().collect();
            let below = backing.iter().flat_map(|backing| &backing.points);
            let below = below.into_iter().find(|point| point.block_bytes == block_bytes);
            let derived =
                derive(&points, below.map(|point| point.read_bytes_per_second), loss_max)?;
            Some(OfBlock { block_bytes, derived, points })
        };
        let sizes = all.into_iter().map(of_block).collect::<Option<Vec<_>>>()?;
        let derived = sizes.iter().find(|size| size.block_bytes == block_bytes)?.derived;
        Some(Self { device, time, depth, loss_max, block_bytes, derived, backing, sizes })
    }

    /// Returns the settings that admission policies take from a calibration.
    pub fn calibrated(&self) -> Calibrated {
        let Derived { write_cost, target, target_bytes, .. } = self.derived;
        Calibrated { write_cost, target, target_bytes }
    }
}

/// Block sizes, shares of writes and rounds of a measurement.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Sizes of operations in bytes.
    pub block_bytes: Vec<u64>,
    /// Shares of the operations that write, from 0 to below 1.
    pub write_shares: Vec<f64>,
    /// Operations in flight.
    pub depth: usize,
    /// Number of rounds for each pair of size and share of writes.
    pub rounds: usize,
    /// Length of each round.
    pub round: Duration,
}

impl Plan {
    /// Returns the number of rounds of all sizes and shares.
    pub fn rounds_all(&self) -> usize {
        self.rounds * self.block_bytes.len() * self.write_shares.len()
    }
}

/// Results for one size and share of writes, as medians over the rounds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Size of each operation in bytes.
    pub block_bytes: u64,
    /// Share of the operations that write.
    pub write_share: f64,
    /// Bytes read a second.
    pub read_bytes_per_second: f64,
    /// Lower end of the confidence interval of `read_bytes_per_second`.
    pub read_bytes_per_second_low: f64,
    /// Upper end of the confidence interval of `read_bytes_per_second`.
    pub read_bytes_per_second_high: f64,
    /// Bytes written a second.
    pub write_bytes_per_second: f64,
    /// Mean latency of reads in microseconds.
    pub read_us_mean: f64,
    /// 99th percentile of the latency of reads in microseconds.
    pub read_us_p99: f64,
    /// Mean latency of writes in microseconds; `None` without writes.
    pub write_us_mean: Option<f64>,
}

/// Errors of a measurement.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The device failed an operation.
    #[error("measuring failed: {0}")]
    Io(#[from] io::Error),
    /// A round ended with too few reads, so longer rounds are needed.
    #[error("too little was read in a round of {seconds} s; give a larger --seconds")]
    TooShort {
        /// Length of the round in seconds.
        seconds: f64,
    },
    /// The caller stopped the measurement.
    #[error("interrupted")]
    Interrupted,
}

/// Measures a device. `progress` is called with the number of rounds that have ended, and returns
/// whether to go on.
///
/// # Errors
/// When the device fails, a round is too short, or `progress` returns false.
pub fn measure(
    bed: &mut TestBed,
    plan: &Plan,
    mut progress: impl FnMut(usize) -> bool,
) -> Result<Vec<Point>, MeasureError> {
    let mixes: Vec<Mix> = plan
        .block_bytes
        .iter()
        .flat_map(|&block_bytes| {
            let mix = move |&write_share: &f64| Mix { block_bytes, write_share, depth: plan.depth };
            plan.write_shares.iter().map(mix)
        })
        .collect();
    let mut rounds: Vec<Vec<Round>> = mixes.iter().map(|_| Vec::new()).collect();
    for number in 0..plan.rounds {
        for (at, (mix, rounds)) in mixes.iter().zip(&mut rounds).enumerate() {
            let round = run(bed, *mix, plan.round, number as u64)?;
            if !round.has_enough() {
                return Err(MeasureError::TooShort { seconds: plan.round.as_secs_f64() });
            }
            rounds.push(round);
            if !progress(number * mixes.len() + at + 1) {
                return Err(MeasureError::Interrupted);
            }
        }
    }
    Ok(mixes.iter().zip(&rounds).map(|(mix, rounds)| Point::of(mix, rounds)).collect())
}

impl Point {
    fn of(mix: &Mix, rounds: &[Round]) -> Self {
        let estimate = |of: &dyn Fn(&Round) -> f64| Estimate::of(rounds.iter().map(of));
        let bytes = mix.block_bytes as f64;
        let read = estimate(&|round| round.read_ns.len() as f64 * bytes / round.seconds);
        let writes = rounds.iter().filter(|round| !round.write_ns.is_empty());
        let write_us: Vec<f64> = writes.map(|round| round.write_ns.mean() / 1e3).collect();
        Self {
            block_bytes: mix.block_bytes,
            write_share: mix.write_share,
            read_bytes_per_second: read.median,
            read_bytes_per_second_low: read.low,
            read_bytes_per_second_high: read.high,
            write_bytes_per_second: estimate(&|round| {
                round.write_ns.len() as f64 * bytes / round.seconds
            })
            .median,
            read_us_mean: estimate(&|round| round.read_ns.mean() / 1e3).median,
            read_us_p99: estimate(&|round| round.read_ns.value_at_quantile(0.99) as f64 / 1e3)
                .median,
            write_us_mean: (!write_us.is_empty()).then(|| Estimate::of(write_us).median),
        }
    }
}

#[cfg(test)]
mod noise_tests {
    use super::*;

    fn point(write_share: f64, low: f64, median: f64, high: f64) -> Point {
        Point {
            block_bytes: 4096,
            write_share,
            read_bytes_per_second: median,
            read_bytes_per_second_low: low,
            read_bytes_per_second_high: high,
            write_bytes_per_second: 1.0,
            read_us_mean: 1.0,
            read_us_p99: 1.0,
            write_us_mean: None,
        }
    }

    #[test]
    fn a_steady_device_is_concluded_from() {
        let points = [point(0.0, 90.0, 100.0, 110.0), point(0.02, 1.0, 108.0, 300.0)];
        assert_eq!(noise(&points), None);
        assert_eq!(noise(&points[1..]), None, "nothing to compare with");
    }

    #[test]
    fn rounds_that_differ_are_noise() {
        let found = noise(&[point(0.0, 60.0, 100.0, 110.0)]).unwrap();
        let text = found.to_string();
        assert_eq!(text, "reads of 4096 bytes alone were from 60 to 110 % of their median");
    }

    #[test]
    fn reads_that_writes_make_faster_are_noise() {
        let points = [point(0.0, 95.0, 100.0, 105.0), point(0.02, 200.0, 215.0, 220.0)];
        let text = noise(&points).unwrap().to_string();
        assert_eq!(text, "reads of 4096 bytes beside 2 % writes were 215 % of alone");
    }
}

#[cfg(test)]
mod derive_tests {
    use super::{Point, derive};

    const ALONE: f64 = 1e9;
    /// Allowed loss of read throughput. Writes may then add a third to the time of a read.
    const LOSS_MAX: f64 = 0.25;

    /// Returns the points of a device that spends the time of `cost` reads on a write.
    fn linear(cost: f64) -> Vec<Point> {
        [0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5]
            .map(|share| point(share, ALONE / (1.0 - share + share * cost)))
            .into()
    }

    fn point(write_share: f64, operations: f64) -> Point {
        let read = operations * (1.0 - write_share);
        Point {
            block_bytes: 4096,
            write_share,
            read_bytes_per_second: read,
            read_bytes_per_second_low: read,
            read_bytes_per_second_high: read,
            write_bytes_per_second: operations * write_share,
            read_us_mean: 1.0,
            read_us_p99: 1.0,
            write_us_mean: None,
        }
    }

    fn close(one: f64, other: f64) -> bool {
        (one - other).abs() < 1e-9
    }

    #[test]
    fn a_device_that_shares_its_time_costs_what_a_write_takes() {
        for cost in [0.25, 1.0, 4.0] {
            let derived = derive(&linear(cost), None, LOSS_MAX).unwrap();
            assert!(close(derived.write_cost, cost), "{derived:?}");
            // A third of a read's time on writes, a quarter of all.
            let inserted = (1.0 / 3.0 / cost).min(1.0);
            assert!(close(derived.insertions_per_lookup, inserted), "{cost}: {derived:?}");
            assert!(close(derived.target, (2.0 * inserted).min(1.0)));
            assert!(close(derived.target_bytes, inserted * cost));
        }
    }

    #[test]
    fn a_device_that_writes_for_nothing_may_be_written_at_will() {
        let points: Vec<Point> =
            [0.0, 0.2, 0.5].map(|share| point(share, ALONE / (1.0 - share))).into();
        let derived = derive(&points, None, LOSS_MAX).unwrap();
        assert!(derived.write_cost.abs() < 1e-9);
        assert_eq!((derived.insertions_per_lookup, derived.target), (1.0, 1.0));
    }

    #[test]
    fn faster_beside_writes_is_noise() {
        let points = vec![point(0.0, ALONE), point(0.1, 1.3 * ALONE), point(0.5, 2.2 * ALONE)];
        let derived = derive(&points, None, LOSS_MAX).unwrap();
        assert_eq!((derived.write_cost, derived.target), (0.0, 1.0));
    }

    #[test]
    fn the_target_is_read_off_between_the_measured_shares() {
        // At one write for nine reads they take half as long again: two thirds of that is the
        // bound.
        let points =
            vec![point(0.0, ALONE), point(0.1, ALONE / 0.9 / 1.5), point(0.5, ALONE / 2.0)];
        let derived = derive(&points, None, LOSS_MAX).unwrap();
        assert!(close(derived.insertions_per_lookup, 2.0 / 3.0 / 9.0), "{derived:?}");
    }

    #[test]
    fn a_round_that_was_disturbed_is_not_taken_for_interference() {
        let mut points = linear(1.0);
        points[1].read_bytes_per_second /= 4.0;
        let derived = derive(&points, None, LOSS_MAX).unwrap();
        assert!(close(derived.insertions_per_lookup, 1.0 / 3.0), "{derived:?}");
    }

    #[test]
    fn less_may_be_written_the_less_a_hit_gains() {
        let target = |backing: f64| derive(&linear(4.0), Some(backing), LOSS_MAX).unwrap().target;
        let alone = derive(&linear(4.0), None, LOSS_MAX).unwrap().target;
        assert!(close(target(ALONE / 100.0), alone), "far below, only the loss counts");
        // Twice as slow: a read more, of which a quarter may go to writes that cost four.
        assert!(close(target(ALONE / 2.0), 2.0 * 0.25 / 4.0));
        assert_eq!([target(ALONE), target(2.0 * ALONE)], [0.0, 0.0], "nothing is gained by a hit");
    }

    #[test]
    fn there_is_nothing_to_compare_with_where_all_rounds_write() {
        assert_eq!(derive(&[point(0.1, ALONE)], None, LOSS_MAX), None);
    }
}
