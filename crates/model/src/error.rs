//! Errors of impossible models.

use std::fmt;

use crate::Operation;

/// The error of an impossible network, load or setting.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum ModelError {
    /// A share is not a number from 0 to 1.
    Share {
        /// Name of the quantity.
        what: &'static str,
        /// The value that was given.
        share: f64,
    },
    /// A time is negative or not a number.
    Time {
        /// Name of the quantity.
        what: &'static str,
        /// Value that was given, in microseconds.
        us: f64,
    },
    /// The times under contention are not at growing queue lengths above 1.
    Queues {
        /// Name of the operation.
        what: &'static str,
    },
    /// A histogram has a negative time, a weight that is not positive, or a value that is not a
    /// number.
    Histogram {
        /// Name of the operation.
        what: &'static str,
    },
    /// The probabilities of the outcomes do not add up to 1.
    Probabilities {
        /// Sum of the probabilities.
        sum: f64,
    },
    /// A visit is to a station that the network does not have.
    NoStation {
        /// Name of the outcome with the visit.
        outcome: &'static str,
    },
    /// A station has no servers or no copies.
    NoServer {
        /// Name of the station.
        station: &'static str,
    },
    /// An arrival rate is not above 0.
    Rate {
        /// Value that was given, in million requests a second.
        mrps: f64,
    },
    /// A number that must be at least 1 is 0.
    Zero {
        /// Name of the number.
        what: &'static str,
    },
    /// A number is too large to be solved in reasonable time.
    TooMany {
        /// Name of the number.
        what: &'static str,
        /// The value that was given.
        number: u32,
        /// The highest number allowed.
        most: u32,
    },
    /// No modelled policy has this name.
    UnknownPolicy {
        /// Name that was given.
        name: String,
        /// Names of the modelled policies.
        known: Vec<&'static str>,
    },
    /// The service times have no row for a policy.
    NoTimes {
        /// Name of the policy.
        policy: &'static str,
        /// Names of the policies that have a row.
        known: Vec<String>,
    },
    /// The service times of a policy lack an operation.
    NoTime {
        /// Name of the policy.
        policy: &'static str,
        /// Operation whose time is missing.
        operation: Operation,
    },
    /// A squared coefficient of variation is below 1, that of an exponential distribution.
    Variation {
        /// The value that was given.
        squared: f64,
    },
    /// No distribution has this name.
    UnknownDistribution {
        /// Name that was given.
        name: String,
    },
    /// An operation was not measured.
    Unknown {
        /// Name of the quantity.
        what: &'static str,
    },
    /// A request takes no time at all in the network.
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

/// Returns an error if a share is not from 0 to 1.
pub(crate) fn share(what: &'static str, share: f64) -> Result<(), ModelError> {
    if (0.0..=1.0).contains(&share) { Ok(()) } else { Err(ModelError::Share { what, share }) }
}

/// Returns an error if a time is negative or not a number.
pub(crate) fn time(what: &'static str, us: f64) -> Result<(), ModelError> {
    if us >= 0.0 && us.is_finite() { Ok(()) } else { Err(ModelError::Time { what, us }) }
}
