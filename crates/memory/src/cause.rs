//! Why an entry is no longer in a cache.

/// The cause for which an entry left or did not come in, as a [listener](crate::Builder::listener)
/// gets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// The policy chose it to make room for others.
    Evicted,
    /// Its time to live or to idle was over.
    Expired,
    /// Another value was inserted under its key.
    Replaced,
    /// It was removed, or the cache cleared.
    Removed,
    /// It did not come in: it weighs more than the cache holds, or all that could have made room is
    /// pinned.
    Rejected,
    /// It did not come in: the cache's [admission](crate::Builder::admission) kept it out.
    Bypassed,
}
