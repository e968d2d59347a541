//! Errors that keep a persistent cache from serving.

use floe_block::{BeginError, LayoutError, StoreError};

use super::bytes::Bytes;
use super::disk::DiskError;
use super::refusal::Refusal;

/// An error that keeps a persistent cache from serving.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The content of the device needs a decision by the user.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A device could not be opened.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The cache device failed while the cache was read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is no room for a new cache.
    #[error("{0}")]
    Layout(#[from] LayoutError),
    /// The cache cannot begin a session with these settings.
    #[error(transparent)]
    Begin(#[from] BeginError),
    /// A backing device failed.
    #[error("backing device of volume {volume}: {doing}: {source}")]
    Backing {
        /// The volume's name.
        volume: String,
        /// The operation that failed.
        doing: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
    /// Dirty data could not be written to its volume.
    #[error(
        "writing back to volume {volume} failed: {fault}; {} are left in the cache",
        Bytes(*left_bytes)
    )]
    WriteBack {
        /// The volume's name.
        volume: String,
        /// The fault of the device.
        fault: floe_block::Fault,
        /// Dirty bytes that remain in the cache.
        left_bytes: u64,
    },
    /// The cache device does not return what was written to it.
    #[error("what was written to it is not there")]
    Forgets,
    /// The ring does not wait.
    #[error("waiting for I/O failed: {0}")]
    Wait(std::io::Error),
    /// The system has no random numbers.
    #[error("cannot read /dev/urandom: {0}")]
    Random(std::io::Error),
}

impl StartError {
    /// Returns whether a retry may succeed, without a decision by the user.
    pub fn is_failure(&self) -> bool {
        match self {
            Self::Store(error) | Self::Begin(BeginError::Store(error)) => {
                matches!(error, StoreError::Io { .. })
            }
            Self::Backing { .. } | Self::WriteBack { .. } | Self::Wait(_) | Self::Random(_) => true,
            Self::Forgets | Self::Disk(DiskError::Ring(_)) => true,
            Self::Refused(_) | Self::Layout(_) | Self::Begin(_) | Self::Disk(_) => false,
        }
    }
}
