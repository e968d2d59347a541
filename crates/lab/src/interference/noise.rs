//! Measurements that differ too much among themselves to conclude anything from.
//!
//! A device that other work uses, or that throttles, reads more in one round than in the next. The
//! cost of writes is a difference of such figures, so that it can come out as anything. Two signs
//! are looked for: the interval of the reads alone is wide, or reads beside writes were faster than
//! alone, which no device does.

use super::measure::Point;

/// Most by which an end of the interval of reads alone may differ from their median, as a share.
const SPREAD_MAX: f64 = 0.25;

/// Most by which reads beside writes may be faster than alone, as a share.
const FASTER_MAX: f64 = 0.15;

/// The reason for which nothing can be concluded. Shares are of the median of the reads alone.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum Noise {
    /// Rounds without writes differ.
    #[error(
        "reads of {block_bytes} bytes alone were from {:.0} to {:.0} % of their median",
        100.0 * .low, 100.0 * .high
    )]
    Unsteady {
        /// Size of the operations.
        block_bytes: u64,
        /// Where the interval of the reads begins.
        low: f64,
        /// Where it ends.
        high: f64,
    },
    /// Reads beside writes were faster than alone.
    #[error(
        "reads of {block_bytes} bytes beside {:.0} % writes were {:.0} % of alone",
        100.0 * .write_share, 100.0 * .reads
    )]
    FasterBesideWrites {
        /// Size of the operations.
        block_bytes: u64,
        /// Share of the operations that wrote.
        write_share: f64,
        /// The reads.
        reads: f64,
    },
}

/// Returns a sign of noise in the points at one size; `None` where there is none, or no point
/// without writes.
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

#[cfg(test)]
mod tests {
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
