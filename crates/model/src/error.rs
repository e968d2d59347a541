//! Why there is no such model.

use std::fmt;

use crate::Operation;

/// An impossible network, load or setting.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum ModelError {
    /// A share below 0 or above 1, or none at all.
    Share {
        /// The quantity.
        what: &'static str,
        /// The value that was given.
        share: f64,
    },
    /// A time that is negative, or none at all.
    Time {
        /// The quantity.
        what: &'static str,
        /// The value that was given.
        us: f64,
    },
    /// A time under contention has no place in order.
    Queues {
        /// The quantity.
        what: &'static str,
    },
    /// A histogram has no weight.
    Histogram {
        /// The quantity.
        what: &'static str,
    },
    /// Outcomes that are not all there is.
    Probabilities {
        /// Their sum.
        sum: f64,
    },
    /// A visit to nowhere.
    NoStation {
        /// The outcome.
        outcome: &'static str,
    },
    /// A station that never serves.
    NoServer {
        /// The station.
        station: &'static str,
    },
    /// A rate that is not above 0.
    Rate {
        /// The value that was given.
        mrps: f64,
    },
    /// A number that must not be 0.
    Zero {
        /// The name of the value.
        what: &'static str,
    },
    /// A number past what can be solved in reasonable time.
    TooMany {
        /// The name of the value.
        what: &'static str,
        /// The value that was given.
        number: u32,
        /// The highest number allowed.
        most: u32,
    },
    /// A policy without a network.
    UnknownPolicy {
        /// The name that was asked for.
        name: String,
        /// The policies that have one.
        known: Vec<&'static str>,
    },
    /// Service times lack a policy.
    NoTimes {
        /// The policy.
        policy: &'static str,
        /// The known names.
        known: Vec<String>,
    },
    /// Service times lack an operation.
    NoTime {
        /// The policy.
        policy: &'static str,
        /// The operation.
        operation: Operation,
    },
    /// More even than an exponential distribution is.
    Variation {
        /// The value that was given.
        squared: f64,
    },
    /// A distribution that is none of those there are.
    UnknownDistribution {
        /// The value that was given.
        name: String,
    },
    /// An operation was not measured.
    Unknown {
        /// The quantity.
        what: &'static str,
    },
    /// A network in which a request takes no time at all.
    NoWork,
}

impl fmt::Display for ModelError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Share { what, share } => {
                write!(formatter, "{what} {share} is not a share from 0 to 1")
            }
            Self::Time { what, us } => {
                write!(formatter, "{what} {us} is not a time of at least 0 µs")
            }
            Self::Queues { what } => write!(
                formatter,
                "{what}: the times under contention are not at growing queue lengths above 1"
            ),
            Self::Histogram { what } => {
                write!(formatter, "{what}: the histogram is not of times with positive weights")
            }
            Self::Probabilities { sum } => {
                write!(formatter, "the probabilities of all outcomes add up to {sum} instead of 1")
            }
            Self::NoStation { outcome } => {
                write!(formatter, "outcome {outcome} visits a station that is not in the network")
            }
            Self::NoServer { station } => write!(formatter, "station {station} has no server"),
            Self::Rate { mrps } => write!(
                formatter,
                "an arrival rate of {mrps} million requests a second is not above 0"
            ),
            Self::Zero { what } => write!(formatter, "{what} is 0"),
            Self::TooMany { what, number, most } => {
                write!(formatter, "{what} is {number}, more than {most}")
            }
            Self::UnknownPolicy { name, known } => {
                write!(formatter, "no model is called `{name}`; there are: {}", known.join(", "))
            }
            Self::NoTimes { policy, known } => write!(
                formatter,
                "there are no service times for {policy}; there are some for: {}",
                known.join(", ")
            ),
            Self::NoTime { policy, operation } => {
                write!(formatter, "the service times of {policy} lack `{operation}`")
            }
            Self::Variation { squared } => write!(
                formatter,
                "a hyperexponential distribution has a squared coefficient of variation of at \
                 least 1, not {squared}"
            ),
            Self::UnknownDistribution { name } => write!(
                formatter,
                "`{name}` is no distribution; there are: exponential, deterministic, \
                 hyperexponential:CV2 and measured"
            ),
            Self::Unknown { what } => write!(formatter, "nothing is known of {what} yet"),
            Self::NoWork => formatter.write_str("a request takes no time: throughput has no bound"),
        }
    }
}

impl std::error::Error for ModelError {}

/// Refuses a share that is not from 0 to 1.
pub(crate) fn share(what: &'static str, share: f64) -> Result<(), ModelError> {
    if (0.0..=1.0).contains(&share) { Ok(()) } else { Err(ModelError::Share { what, share }) }
}

/// Refuses a time that is negative or no number.
pub(crate) fn time(what: &'static str, us: f64) -> Result<(), ModelError> {
    if us >= 0.0 && us.is_finite() { Ok(()) } else { Err(ModelError::Time { what, us }) }
}
