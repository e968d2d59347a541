//! Why a load that waits for a limited time brings nothing.

/// Why [`Loads::get_within`](crate::Loads::get_within) has no value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LoadError<E> {
    /// The load failed, with this error.
    #[error(transparent)]
    Failed(#[from] E),
    /// The load of another caller has not ended in time. It goes on.
    #[error("another caller's load of the key has not ended in time")]
    TimedOut,
}
