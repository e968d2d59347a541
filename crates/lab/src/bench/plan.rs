//! The use of a cache in a measurement, and the number and the length of its runs.

use super::worker::Disk;

/// The use of a cache.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Setup {
    /// Threads of the operating system.
    pub threads: usize,
    /// Clients on all of them together; at least one each.
    pub mpl: usize,
    /// The disk that a miss waits for.
    pub disk: Disk,
}

/// The number and the length of measurements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plan {
    /// The number of runs of each cache.
    pub repetitions: usize,
    /// For how long each time, without the ramp.
    pub seconds: f64,
    /// Longest time to warm a cache up for.
    pub warm_up_seconds_max: f64,
    /// True if all begin each repetition at the same place of the load.
    pub in_step: bool,
}
