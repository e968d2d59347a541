//! Intervals of a time series.

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
