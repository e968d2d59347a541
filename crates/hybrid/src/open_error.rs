//! The reasons why a cache could not be opened.

use std::io;
use std::path::{Path, PathBuf};

use crate::format::MIN_SEGMENT_BYTES;
use crate::recovery::OpenFailure;
use crate::set::DrivesError;

/// The reason why a hybrid cache could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The file could not be opened or created.
    #[error(transparent)]
    File(#[from] crate::flash::OpenError),
    /// A read or write failed.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file is not a hybrid cache.
    #[error(
        "{path} holds something other than a hybrid cache; use another path, or remove it",
        path = path.display()
    )]
    Foreign {
        /// Path of the file.
        path: PathBuf,
    },
    /// Both superblocks are damaged.
    #[error(
        "{path}: both superblocks are damaged; remove the file to begin anew",
        path = path.display()
    )]
    Damaged {
        /// Path of the file.
        path: PathBuf,
    },
    /// A later version of Floe wrote the file.
    #[error(
        "{path} has format {version}, which this version of Floe does not read",
        path = path.display()
    )]
    Version {
        /// Path of the file.
        path: PathBuf,
        /// Version of the format.
        version: u32,
    },
    /// The file is shorter than the cache in it.
    #[error(
        "{path} has {actual} bytes, and the cache in it {expected}: it was cut short",
        path = path.display()
    )]
    Short {
        /// Path of the file.
        path: PathBuf,
        /// Bytes of the cache.
        expected: u64,
        /// Bytes of the file.
        actual: u64,
    },
    /// The file holds another cache than the one that is open.
    #[error("{path} holds another cache than the one that failed", path = path.display())]
    OtherCache {
        /// Path of the file.
        path: PathBuf,
    },
    /// The files are not the drives of one cache.
    #[error(transparent)]
    Drives(#[from] DrivesError),
    /// A setting is missing or too small.
    #[error("{0}")]
    Setting(String),
}

impl OpenFailure {
    pub(crate) fn at(self, path: &Path) -> OpenError {
        let path = path.to_owned();
        match self {
            Self::Io(source) => OpenError::Io { path, source },
            Self::Foreign => OpenError::Foreign { path },
            Self::Damaged => OpenError::Damaged { path },
            Self::OtherCache => OpenError::OtherCache { path },
            Self::Version(version) => OpenError::Version { path, version },
            Self::Short { expected, actual } => OpenError::Short { path, expected, actual },
            Self::Small => OpenError::Setting(format!(
                "{}: too small for a hybrid cache, which has at least 8 segments of {} bytes",
                path.display(),
                MIN_SEGMENT_BYTES
            )),
        }
    }
}
