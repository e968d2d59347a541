//! [`Failure`]: the end of a request that several reads wait for.

use std::sync::Arc;

use object_store::path::Path;
use object_store::{Error, ObjectMeta};

/// Name of this store in errors of its own.
pub(crate) const STORE: &str = "CachedStore";

/// The reason why bytes of a version could not be read.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    /// The object is of another version now, or gone.
    Changed,
    /// The store's error, for all that wait.
    Store(Arc<Error>),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Store(Arc::new(error))
    }
}

/// An answer of the store that contradicts itself or the request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error("{location}: the store sent {sent} bytes of {expected}")]
    Length { location: Path, expected: u64, sent: u64 },
    #[error("{location}: the store sent bytes {sent:?} instead of {expected:?}")]
    Range { location: Path, expected: std::ops::Range<u64>, sent: std::ops::Range<u64> },
    #[error("{location}: the object was replaced {times} times while it was read")]
    Replaced { location: Path, times: u32 },
    #[error("{location}: the object was replaced while it was read")]
    ReplacedInStream { location: Path },
    #[error("{location}: the filter leaves the object out of the cache")]
    Filtered { location: Path },
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        match fault {
            // As a store answers a request for bytes of a version that is gone.
            Fault::ReplacedInStream { ref location } => {
                Self::Precondition { path: location.to_string(), source: fault.into() }
            }
            Fault::Filtered { .. } => Self::NotSupported { source: fault.into() },
            _ => Self::Generic { store: STORE, source: fault.into() },
        }
    }
}

/// Returns an error of the same kind for one of those that waited.
pub(crate) fn share(error: &Arc<Error>) -> Error {
    let source = || -> Box<dyn std::error::Error + Send + Sync> { Box::new(Arc::clone(error)) };
    match &**error {
        Error::NotFound { path, .. } => Error::NotFound { path: path.clone(), source: source() },
        Error::AlreadyExists { path, .. } => {
            Error::AlreadyExists { path: path.clone(), source: source() }
        }
        Error::Precondition { path, .. } => {
            Error::Precondition { path: path.clone(), source: source() }
        }
        Error::NotModified { path, .. } => {
            Error::NotModified { path: path.clone(), source: source() }
        }
        Error::PermissionDenied { path, .. } => {
            Error::PermissionDenied { path: path.clone(), source: source() }
        }
        Error::Unauthenticated { path, .. } => {
            Error::Unauthenticated { path: path.clone(), source: source() }
        }
        Error::NotSupported { .. } => Error::NotSupported { source: source() },
        Error::Generic { store, .. } => Error::Generic { store, source: source() },
        _ => Error::Generic { store: STORE, source: source() },
    }
}

impl Failure {
    /// Returns the error for a stream that has already delivered bytes of the version.
    pub(crate) fn in_stream(self, meta: &ObjectMeta) -> Error {
        match self {
            Self::Changed => Fault::ReplacedInStream { location: meta.location.clone() }.into(),
            Self::Store(error) => share(&error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_errors_keep_their_kind_and_their_text() {
        let path = || "a/b".to_owned();
        let text = "of the store";
        for error in [
            Error::NotFound { path: path(), source: text.into() },
            Error::Precondition { path: path(), source: text.into() },
            Error::NotModified { path: path(), source: text.into() },
            Error::PermissionDenied { path: path(), source: text.into() },
            Error::Unauthenticated { path: path(), source: text.into() },
            Error::AlreadyExists { path: path(), source: text.into() },
            Error::Generic { store: "S3", source: text.into() },
        ] {
            let error = Arc::new(error);
            let shared = share(&error);
            assert_eq!(std::mem::discriminant(&*error), std::mem::discriminant(&shared));
            assert!(shared.to_string().contains(text), "{shared}");
        }
    }
}
