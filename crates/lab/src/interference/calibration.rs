//! Results of a calibration, as they are printed and kept in a file.

use floe_policy::admission::Calibrated;
use serde::{Deserialize, Serialize};

use super::derive::{Derived, derive};
use super::measure::Point;

/// The slowdown of a device's reads by writes, and the settings that follow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// The device, as it was named.
    pub device: String,
    /// The clock: `real` or `virtual`.
    pub time: String,
    /// Operations in flight.
    pub depth: usize,
    /// The share of the reads' speed that writes may take.
    pub loss_max: f64,
    /// The size of the tier's blocks.
    pub block_bytes: u64,
    /// The settings for blocks of that size.
    #[serde(flatten)]
    pub derived: Derived,
    /// The device below, if it was measured.
    pub backing: Option<Backing>,
    /// By size of the operations.
    pub sizes: Vec<OfBlock>,
}

/// The device below the tier.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Backing {
    /// As it was named.
    pub device: String,
    /// The speed of reads alone, at each size.
    pub points: Vec<Point>,
}

/// The results at a size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OfBlock {
    /// Size of the operations.
    pub block_bytes: u64,
    /// The settings that follow.
    #[serde(flatten)]
    pub derived: Derived,
    /// By share of writes.
    pub points: Vec<Point>,
}

/// The circumstances of a measurement besides its points.
#[derive(Debug, Clone)]
pub struct Circumstances {
    /// See [`Calibration::device`].
    pub device: String,
    /// See [`Calibration::time`].
    pub time: String,
    /// See [`Calibration::depth`].
    pub depth: usize,
    /// See [`Calibration::loss_max`].
    pub loss_max: f64,
    /// See [`Calibration::block_bytes`].
    pub block_bytes: u64,
}

impl Calibration {
    /// Of the points of all sizes. `None` where some size, or that of the tier's blocks, has no
    /// point without writes.
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

    /// Returns the settings of admissions.
    pub fn calibrated(&self) -> Calibrated {
        let Derived { write_cost, target, target_bytes, .. } = self.derived;
        Calibrated { write_cost, target, target_bytes }
    }
}
