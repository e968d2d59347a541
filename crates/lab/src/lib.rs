//! The lab: predicts the performance of policies, cache sizes and tiers by running the server's own
//! code.
//!
//! Without the feature `full`, which is on by default, the crate has only replays and the
//! demonstration.

pub mod admission;
#[cfg(feature = "full")]
pub mod advise;
#[cfg(feature = "full")]
pub mod bench;
#[cfg(feature = "full")]
pub mod classes;
#[cfg(feature = "full")]
pub mod coherence;
pub mod demo;
mod draw;
#[cfg(feature = "full")]
pub mod interference;
/// Intervals of a time series.
pub mod interval {
    use std::time::Duration;

    /// Length of an interval of a time series.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Interval {
        /// A number of requests.
        Requests(u64),
        /// A duration, by the clock of the trace in a simulation, and by that of the replay in a
        /// replay. A request after the end of an interval belongs to the next one.
        Time(Duration),
    }
}
#[cfg(feature = "full")]
pub mod load;
#[cfg(feature = "full")]
pub mod model;
pub mod replay;
#[cfg(feature = "full")]
pub mod report;
#[cfg(feature = "full")]
pub mod simulate;
#[cfg(feature = "full")]
pub mod sizes;
