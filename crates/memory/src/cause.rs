//! Why an entry is no longer in a cache.

/// Why an entry left, as a [listener](crate::Builder::listener) is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// To make room, by choice of the policy.
    Evicted,
    /// Its time to live or to idle was over.
    Expired,
    /// Another value was inserted under its key.
    Replaced,
    /// It was removed, or the cache cleared.
    Removed,
    /// It never came in: it weighs more than the cache holds, or all that could have made room is
    /// pinned.
    Rejected,
    /// It never came in: the cache's [admission](crate::Builder::admission) kept it out.
    Bypassed,
}
