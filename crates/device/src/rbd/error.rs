//! The errors of opening an image.

use std::io;
use std::time::Duration;

/// Why an image could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum RbdError {
    /// The library is not installed, or not to be loaded.
    #[error(
        "cannot open an image of Ceph without its client library: {why}; install it (package \
         librbd1 on Debian, librbd1 or ceph-common elsewhere)"
    )]
    NoLibrary {
        /// The linker's answer, which names the file.
        why: String,
    },
    /// The library lacks something.
    #[error("{library} is too old: {why}; version 16 (Pacific) of Ceph or newer is needed")]
    OldLibrary {
        /// The file.
        library: &'static str,
        /// The linker's answer.
        why: String,
    },
    /// The cluster could not be reached.
    #[error("cannot {what} for image {image}: {source}{}", advice(source))]
    Cluster {
        /// The step that failed.
        what: String,
        /// The image.
        image: String,
        /// The library's answer.
        source: io::Error,
    },
    /// The image could not be opened or asked.
    #[error("cannot {what} image {image}: {source}")]
    Image {
        /// The step that failed.
        what: &'static str,
        /// The image.
        image: String,
        /// The library's answer.
        source: io::Error,
    },
    /// Nothing keeps a second server from writing to it.
    #[error(
        "image {image} has no exclusive lock, so that a second server could write to it; run: rbd \
         feature enable {image} exclusive-lock"
    )]
    NoLock {
        /// The image.
        image: String,
    },
    /// Another client has the lock.
    #[error(
        "image {image} is in use by another client, which holds its lock; end that one, or see who \
         it is: rbd lock list {image}"
    )]
    Locked {
        /// The image.
        image: String,
    },
    /// The cluster does not answer.
    #[error(
        "image {image} is still not open after {after:?}: the cluster does not answer; see ceph \
         status"
    )]
    Silent {
        /// The image.
        image: String,
        /// The time that was waited.
        after: Duration,
    },
    /// A snapshot cannot be written.
    #[error("image {image} is a snapshot, which is only read; serve it read-only")]
    Snapshot {
        /// The image.
        image: String,
    },
    /// Its size makes no device.
    #[error("image {image} has {size} bytes, which is not a positive multiple of 512")]
    OddSize {
        /// The image.
        image: String,
        /// Its size.
        size: u64,
    },
    /// Text for the library has a zero byte.
    #[error("{text:?} has a zero byte in it")]
    ZeroByte {
        /// The text.
        text: String,
    },
}

impl RbdError {
    /// True if the cluster refuses this client by name.
    pub(super) fn is_fenced(&self) -> bool {
        match self {
            Self::Cluster { source, .. } | Self::Image { source, .. } => {
                source.raw_os_error() == Some(libc::ESHUTDOWN)
            }
            _ => false,
        }
    }
}

/// Advice to the operator on what a cluster says.
fn advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOENT) => "; check conf=FILE, the key of the user and the name of the pool",
        Some(libc::EACCES | libc::EPERM) => "; check the user (id=USER), its key and its rights",
        Some(libc::ETIMEDOUT) => "; no monitor of the cluster answers",
        _ => "",
    }
}
