//! Why a load that waits for a limited time brings nothing.

use std::fmt;

/// The error of [`Loads::get_within`](crate::Loads::get_within).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadError<E> {
    /// The load failed, with this error.
    Failed(E),
    /// The load of another caller did not end in time. That load goes on.
    TimedOut,
}

impl<E: fmt::Display> fmt::Display for LoadError<E> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(value) => value.fmt(formatter),
            Self::TimedOut => {
                formatter.write_str("another caller's load of the key has not ended in time")
            }
        }
    }
}

impl<E: std::error::Error> std::error::Error for LoadError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Failed(error) => error.source(),
            Self::TimedOut => None,
        }
    }
}

impl<E> From<E> for LoadError<E> {
    fn from(error: E) -> Self {
        Self::Failed(error)
    }
}
