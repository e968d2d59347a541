//! The prices of hits, misses and insertions, which turn hits into latency.

/// The times of a hit, a miss and an insertion.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Latency {
    /// A hit, in microseconds.
    pub hit_us: f64,
    /// A miss, in microseconds.
    pub miss_us: f64,
    /// Putting an object in on a miss, with the eviction that makes room, in microseconds. The
    /// request waits for it. What a policy or an admission orders to be fetched is put in beside
    /// the requests, and costs none of them.
    pub insert_us: f64,
}

impl Latency {
    /// Returns the mean time of a request, of which these shares miss and put something in.
    pub(super) fn mean_us(&self, missed: f64, inserted: f64) -> f64 {
        self.hit_us + missed * (self.miss_us - self.hit_us) + inserted * self.insert_us
    }
}
