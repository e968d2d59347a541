//! Why a cache cannot be made.

use std::fmt;

/// Most shards: sixteen bits of the hash can choose one.
pub(crate) const SHARDS_MAX: usize = 1 << 16;

/// The reason why no cache can have the settings of a [`Builder`](crate::Builder).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// There is no limit: neither of entries nor of weight.
    NoLimit,
    /// The limit of entries is 2³¹ or more.
    TooManyEntries(usize),
    /// There is a limit of weight, and no weigher.
    NoWeigher,
    /// The number of shards is not a power of two, or too large.
    Shards(usize),
    /// A time to live, to idle or to refresh is 0.
    ZeroTime(&'static str),
    /// There is a time to refresh without a time to live, or beside a time to idle.
    RefreshAhead,
    /// Freezing needs a thread of the library's, and the system gives none: its reason.
    Thread(String),
    /// The policy needs to know what a cache does not.
    Policy {
        /// The policy.
        policy: &'static str,
        /// The missing knowledge.
        needs: &'static str,
    },
    /// The admission needs what a cache in memory does not have.
    Admission {
        /// The admission.
        admission: String,
        /// The operation that a cache in memory does not have.
        needs: &'static str,
    },
}

impl fmt::Display for BuildError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLimit => formatter
                .write_str("a cache needs a limit: give it a capacity or a weight_capacity"),
            Self::TooManyEntries(value) => write!(
                formatter,
                "a capacity of {value} is more than the {max} entries a cache can hold",
                max = u32::MAX / 2
            ),
            Self::NoWeigher => formatter.write_str("a weight_capacity needs a weigher"),
            Self::Shards(value) => write!(
                formatter,
                "{value} shards: it has to be a power of two, at most {max}",
                max = SHARDS_MAX
            ),
            Self::ZeroTime(value) => write!(formatter, "a {value} of 0 lets nothing stay"),
            Self::RefreshAhead => {
                formatter.write_str("refresh_ahead needs a time_to_live, and no time_to_idle")
            }
            Self::Thread(value) => {
                write!(formatter, "freezing needs a thread, and none can be started: {value}")
            }
            Self::Policy { policy, needs } => {
                write!(formatter, "policy {policy} {needs}; it works in simulations only")
            }
            Self::Admission { admission, needs } => {
                write!(formatter, "admission {admission} {needs}")
            }
        }
    }
}

impl std::error::Error for BuildError {}
