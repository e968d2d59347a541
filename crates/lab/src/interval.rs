//! Intervals of a time series.

use std::time::Duration;

/// The length of an interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interval {
    /// So many requests.
    Requests(u64),
    /// So long, by the trace's clock in a simulation, by the replay's in a replay. Requests that
    /// come later begin the next one.
    Time(Duration),
}
