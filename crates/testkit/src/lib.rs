//! Rigs that the tests and benchmarks of several crates share. No program contains this crate.
//!
//! It knows devices and nothing above them. A crate's unit tests see another copy of their crate
//! than this one does, so those of `device` use only what knows no device.

pub mod allocations;
mod ceph;
#[cfg(feature = "certificates")]
mod certificates;
#[cfg(feature = "devices")]
mod devices;
#[cfg(feature = "devices")]
pub mod faults;
mod hash;
mod processor;
mod programs;
mod random;
mod wait;

pub use ceph::Ceph;
#[cfg(feature = "certificates")]
pub use certificates::certificates;
#[cfg(feature = "devices")]
pub use devices::Intercepted;
pub use hash::Identity;
pub use processor::thread_time;
pub use programs::{is_installed, run, skipped, traces_folder};
pub use random::{Random, pattern};
pub use wait::{PATIENCE, patiently, wait_until};
