//! From how writes slow reads to what an admission needs: the cost of a write, and OBP's target.
//!
//! *Write cost*. At a share of writes the device reads R bytes a second and writes W, where it
//! reads R₀ without. The cost is the slope of what is lost, R₀ − R, over W: the line through the
//! origin with the least squares. On a medium that only has to share its time it is the time of a
//! write in reads; interference makes it more.
//!
//! *Target*. Say a cache of which each lookup is read inserts i blocks a lookup. A read then takes
//! r₀/r(i) times as long as alone, so the writes cost s(i) = r₀/r(i) − 1 reads a lookup, which is
//! known from the measured shares. Two bounds on s give the most that i may be:
//!
//! 1. *Any insertion may be useless*: its value is unknown before the block is asked for again. So
//!    writes may take no more of the reads' speed than [a third](LOSS_MAX): 1 − r/r₀ ≤ x, or
//!    s ≤ x / (1 − x).
//! 2. *Insertions must pay*: a hit saves a read from the backing device, which is g = r₀/b − 1
//!    reads longer, where b is that device's rate of reads in the same loop. With h of the lookups
//!    hits, admission gains h·g a lookup. Of that the writes may take half, so s ≤ h·g / 2. The
//!    future hit ratio is unknown; half is that of the paper's caches on data larger than they are
//!    (44 to 48 %). Where the backing device is no slower than the tier, nothing pays and the
//!    target is 0.
//!
//! OBP counts insertions and removals, and in a full cache each insertion is a removal too, so the
//! target is 2·i. The third was chosen so that on the paper's medium the first bound gives what the
//! authors found by trying: 10 %, with 5 to 30 % acceptable. With `bytes=1` OBP weighs what is
//! written by its cost, and the bytes of a removal are those written for it, next to none here:
//! there the target is cost · i.

use serde::{Deserialize, Serialize};

use super::measure::Point;

/// Of the reads' speed, what writes may take, if nothing else is said.
pub const LOSS_MAX: f64 = 0.33;

/// Of the lookups, those that hit, where nothing is known yet.
const HIT_RATIO: f64 = 0.5;

/// Of what hits gain, what writes may take.
const SHARE_OF_GAIN: f64 = 0.5;

/// The settings that follow from a measurement at one size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Derived {
    /// Bytes of reads lost for each byte written.
    pub write_cost: f64,
    /// Insertions that a lookup may cause.
    pub insertions_per_lookup: f64,
    /// For OBP: insertions and removals over lookups, in blocks.
    pub target: f64,
    /// For OBP with `bytes=1`: what they cost over what is looked up, in bytes.
    pub target_bytes: f64,
}

/// Makes of the points at one size what an admission needs. `backing_bytes_per_second` is what the
/// backing device reads in the same loop, if that is known, and `loss_max` the share of the reads'
/// speed that writes may take. `None` without a point without writes.
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

/// Insertions a lookup at which reads take `slowdown_max` longer than alone: between the measured
/// shares in proportion, beyond them at the write cost, and never more than one.
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

#[cfg(test)]
mod tests {
    use super::{Point, derive};

    const ALONE: f64 = 1e9;
    /// A third of a read a lookup.
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
