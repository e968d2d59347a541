//! Why a cache cannot be made.

/// Most shards: sixteen bits of the hash can choose one.
pub(crate) const SHARDS_MAX: usize = 1 << 16;

/// Why no cache can be made as described.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// Neither of the two limits is given.
    #[error("a cache needs a limit: give it a capacity or a weight_capacity")]
    NoLimit,
    /// More entries than can be numbered.
    #[error(
        "a capacity of {0} is more than the {max} entries a cache can hold",
        max = u32::MAX / 2
    )]
    TooManyEntries(usize),
    /// A limit of weight, and nothing that weighs.
    #[error("a weight_capacity needs a weigher")]
    NoWeigher,
    /// The number of shards is not a power of two, or too large.
    #[error("{0} shards: it has to be a power of two, at most {max}", max = SHARDS_MAX)]
    Shards(usize),
    /// A time of 0.
    #[error("a {0} of 0 lets nothing stay")]
    ZeroTime(&'static str),
    /// Entries are refreshed before the end of their time to live, and there is none, or a time to
    /// idle beside it.
    #[error("refresh_ahead needs a time_to_live, and no time_to_idle")]
    RefreshAhead,
    /// Freezing needs a thread of the library's, and the system gives none; says why.
    #[error("freezing needs a thread, and none can be started: {0}")]
    Thread(String),
    /// The policy needs to know what a cache does not.
    #[error("policy {policy} {needs}; it works in simulations only")]
    Policy {
        /// The policy.
        policy: &'static str,
        /// Tells what it needs.
        needs: &'static str,
    },
    /// The admission needs what a cache in memory does not have.
    #[error("admission {admission} {needs}")]
    Admission {
        /// The admission.
        admission: String,
        /// Tells what it does that cannot be done here.
        needs: &'static str,
    },
}
