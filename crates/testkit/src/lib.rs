//! Rigs that the tests and benchmarks of several crates share. No program contains this crate.
//!
//! It knows devices, the keys of NVMe hosts, and nothing above them. A crate's unit tests see
//! another copy of their crate than this one does, so those of `device` use only what knows no
//! device.

pub mod allocations;
#[cfg(feature = "devices")]
pub mod faults;
#[cfg(feature = "nvme-host")]
pub mod nvme_host;
mod programs;
mod random;

use std::time::{Duration, Instant};

pub use allocations::thread_time;
#[cfg(feature = "devices")]
pub use faults::Intercepted;
pub use programs::Ceph;
#[cfg(feature = "certificates")]
pub use programs::certificates;
pub use programs::{is_installed, run, skipped, traces_folder};

pub use random::{Identity, Random, pattern};

/// Long enough for any machine; only keeps a test of something broken from hanging.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Retries until there is something, and returns it.
///
/// # Panics
///
/// Panics after [`PATIENCE`].
#[track_caller]
pub fn patiently<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(there) = attempt() {
            return there;
        }
        assert!(begun.elapsed() < PATIENCE, "nothing came of it");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until a condition is true. `event` names it in the panic after [`PATIENCE`].
///
/// # Panics
///
/// Panics after [`PATIENCE`].
#[track_caller]
pub fn wait_until(event: &str, mut is_true: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_true() {
        assert!(begun.elapsed() < PATIENCE, "{event}: still not after {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
