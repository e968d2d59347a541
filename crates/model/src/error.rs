//! Why there is no such model.

use crate::Operation;

/// An impossible network, load or setting.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A share below 0 or above 1, or none at all.
    #[error("{what} {share} is not a share from 0 to 1")]
    Share {
        /// Of what.
        what: &'static str,
        /// The value that was given.
        share: f64,
    },
    /// A time that is negative, or none at all.
    #[error("{what} {us} is not a time of at least 0 µs")]
    Time {
        /// Of what.
        what: &'static str,
        /// The value that was given.
        us: f64,
    },
    /// A time under contention has no place in order.
    #[error("{what}: the times under contention are not at growing queue lengths above 1")]
    Queues {
        /// Of what.
        what: &'static str,
    },
    /// Nothing of a histogram has weight.
    #[error("{what}: the histogram is not of times with positive weights")]
    Histogram {
        /// Of what.
        what: &'static str,
    },
    /// Outcomes that are not all there is.
    #[error("the probabilities of all outcomes add up to {sum} instead of 1")]
    Probabilities {
        /// Their sum.
        sum: f64,
    },
    /// A visit to nowhere.
    #[error("outcome {outcome} visits a station that is not in the network")]
    NoStation {
        /// The outcome.
        outcome: &'static str,
    },
    /// A station that never serves.
    #[error("station {station} has no server")]
    NoServer {
        /// The station.
        station: &'static str,
    },
    /// A rate that is not above 0.
    #[error("an arrival rate of {mrps} million requests a second is not above 0")]
    Rate {
        /// The value that was given.
        mrps: f64,
    },
    /// A number that must not be 0.
    #[error("{what} is 0")]
    Zero {
        /// The name of the value.
        what: &'static str,
    },
    /// A number past what can be solved in reasonable time.
    #[error("{what} is {number}, more than {most}")]
    TooMany {
        /// The name of the value.
        what: &'static str,
        /// The value that was given.
        number: u32,
        /// The highest number allowed.
        most: u32,
    },
    /// A policy without a network.
    #[error("no model is called `{name}`; there are: {}", known.join(", "))]
    UnknownPolicy {
        /// The name that was asked for.
        name: String,
        /// The policies that have one.
        known: Vec<&'static str>,
    },
    /// Service times lack a policy.
    #[error("there are no service times for {policy}; there are some for: {}", known.join(", "))]
    NoTimes {
        /// The policy.
        policy: &'static str,
        /// The known names.
        known: Vec<String>,
    },
    /// Service times lack an operation.
    #[error("the service times of {policy} lack `{operation}`")]
    NoTime {
        /// The policy.
        policy: &'static str,
        /// The operation.
        operation: Operation,
    },
    /// More even than an exponential distribution is.
    #[error(
        "a hyperexponential distribution has a squared coefficient of variation of at least 1, \
         not {squared}"
    )]
    Variation {
        /// The value that was given.
        squared: f64,
    },
    /// A distribution that is none of those there are.
    #[error(
        "`{name}` is no distribution; there are: exponential, deterministic, hyperexponential:CV2 \
         and measured"
    )]
    UnknownDistribution {
        /// The value that was given.
        name: String,
    },
    /// Something that was not measured.
    #[error("nothing is known of {what} yet")]
    Unknown {
        /// Of what.
        what: &'static str,
    },
    /// A network in which a request takes no time at all.
    #[error("a request takes no time: throughput has no bound")]
    NoWork,
}
