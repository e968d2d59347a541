//! The price of a hit and a miss, which turns hits into latency.

/// The times of a hit and a miss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Latency {
    /// A hit, in microseconds.
    pub hit_us: f64,
    /// A miss, in microseconds.
    pub miss_us: f64,
}
