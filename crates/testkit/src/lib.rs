//! Fixtures that the tests and benchmarks of several crates share. No program contains this crate.
//!
//! The crate knows devices, the keys of NVMe hosts, and nothing above them. In a crate's unit
//! tests, this crate links another copy of the crate under test, whose types differ. So the unit
//! tests of `device` use only the parts that do not depend on it.

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
#[cfg(feature = "certificates")]
pub use programs::certificates;
pub use programs::{BucketServer, Ceph};
pub use programs::{is_installed, run, skipped, traces_folder};

pub use random::{Identity, Random, pattern};

/// Checks that two runs of bytes are equal. The panic names the first difference, not the bytes.
///
/// # Panics
///
/// Panics where `found` is not `wanted`.
#[track_caller]
pub fn assert_same(what: &str, found: &[u8], wanted: &[u8]) {
    assert_eq!(found.len(), wanted.len(), "length of {what}");
    if found != wanted {
        let at = found.iter().zip(wanted).position(|(a, b)| a != b).expect("they differ");
        panic!("{what} differs at byte {at}: {:#04x} instead of {:#04x}", found[at], wanted[at]);
    }
}

/// Returns true if all bytes are zero. Tests are not optimized, and this function is.
pub fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// Timeout of waits in tests: long enough for any machine, so it ends only a test that would hang.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Repeats `attempt` until it returns a value, and returns that.
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
