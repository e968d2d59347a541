//! Why a cache cannot be made.

use std::fmt;

/// Most shards: sixteen bits of the hash can choose one.
pub(crate) const SHARDS_MAX: usize = 1 << 16;

/// Why no cache can be made as described.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// Neither of the two limits is given.
    NoLimit,
    /// More entries than can be numbered.
    TooManyEntries(usize),
    /// A limit of weight, and nothing that weighs.
    NoWeigher,
    /// The number of shards is not a power of two, or too large.
    Shards(usize),
    /// A time of 0.
    ZeroTime(&'static str),
    /// Entries are refreshed before the end of their time to live, and there is none, or a time to
    /// idle beside it.
    RefreshAhead,
    /// Freezing needs a thread of the library's, and the system gives none; says why.
    Thread(String),
    /// The policy needs to know what a cache does not.
    Policy {
        /// The policy.
        policy: &'static str,
        /// Tells what it needs.
        needs: &'static str,
    },
    /// The admission needs what a cache in memory does not have.
    Admission {
        /// The admission.
        admission: String,
        /// Tells what it does that cannot be done here.
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
