//! Measures the slowdown of a device's reads by writes, and derives settings of admissions.
//!
//! "Writes Hurt" (the NVCache paper) found persistent memory whose reads fall to a quarter beside
//! one writer, and chose by hand how many writes a cache on it may cause. Here that is measured, on
//! any device: a [`TestBed`] holds it, [`measure()`] runs a closed loop of reads and writes at
//! several shares of writes in rounds that take turns, and [`derive()`] makes of the medians the
//! cost of a write in reads and a target for OBP. A [`Calibration`] is all of that as it is kept.
//!
//! On a simulated bed the clock is the bed's own, and the same plan gives the same figures again.

mod calibration;
mod closed_loop;
mod derive;
mod measure;
mod noise;
mod testbed;

pub use calibration::{Backing, Calibration, Circumstances, OfBlock};
pub use derive::{Derived, LOSS_MAX, derive};
pub use measure::{MeasureError, Plan, Point, measure};
pub use noise::{Noise, noise};
pub use testbed::{TestBed, TestBedError};
