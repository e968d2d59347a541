//! Names of Ceph images, and the errors of opening them.

use std::path::PathBuf;
use std::time::Duration;
use std::{fmt, io};

/// The name of an image, and the settings to reach its cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RbdName {
    /// The name of the pool.
    pub pool: String,
    /// The namespace within the pool.
    pub namespace: Option<String>,
    /// The name of the image.
    pub image: String,
    /// The name of a snapshot of the image, which is read-only.
    pub snapshot: Option<String>,
    /// The Ceph user, without `client.`; the library's default, `admin`, if absent.
    pub user: Option<String>,
    /// The cluster's configuration file; the library's default locations if absent.
    pub conf: Option<PathBuf>,
    /// The time after which an unanswered operation fails; without it operations wait for the
    /// cluster.
    pub timeout: Option<Duration>,
}

impl RbdName {
    /// Parses `POOL[/NAMESPACE]/IMAGE[@SNAPSHOT]`; `None` if a part is missing or empty.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (place, snapshot) = match text.split_once('@') {
            Some((place, snapshot)) => (place, Some(snapshot)),
            None => (text, None),
        };
        let parts: Vec<&str> = place.split('/').collect();
        let (pool, namespace, image) = match parts[..] {
            [pool, image] => (pool, None, image),
            [pool, namespace, image] => (pool, Some(namespace), image),
            _ => return None,
        };
        let all = [Some(pool), namespace, Some(image), snapshot];
        if all.into_iter().flatten().any(|part| part.is_empty() || part.contains(['@', '\0'])) {
            return None;
        }
        Some(Self {
            pool: pool.to_owned(),
            namespace: namespace.map(str::to_owned),
            image: image.to_owned(),
            snapshot: snapshot.map(str::to_owned),
            user: None,
            conf: None,
            timeout: None,
        })
    }
}

/// Prints `POOL[/NAMESPACE]/IMAGE[@SNAPSHOT]`, without the settings of the cluster.
impl fmt::Display for RbdName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.pool)?;
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&self.image)?;
        self.snapshot.as_ref().map_or(Ok(()), |snapshot| write!(f, "@{snapshot}"))
    }
}

/// The reason why an image could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum RbdError {
    /// The client library is not installed, or cannot be loaded.
    #[error(
        "cannot open an image of Ceph without its client library: {0}; install it (package \
         librbd1 on Debian, librbd1 or ceph-common elsewhere)"
    )]
    NoLibrary(String),
    /// The client library lacks a required function.
    #[error("{0} is too old: {1}; version 16 (Pacific) of Ceph or newer is needed")]
    OldLibrary(&'static str, String),
    /// The cluster could not be reached.
    #[error("cannot {what} for image {image}: {source}{}", advice(source))]
    Cluster {
        /// The step that failed.
        what: String,
        /// The name of the image.
        image: String,
        /// The error of the library.
        source: io::Error,
    },
    /// The image could not be opened or queried.
    #[error("cannot {what} image {image}: {source}")]
    Image {
        /// The step that failed.
        what: &'static str,
        /// The name of the image.
        image: String,
        /// The error of the library.
        source: io::Error,
    },
    /// The image has no exclusive-lock feature, so a second server could write to it.
    #[error(
        "image {0} has no exclusive lock, so that a second server could write to it; run: rbd \
         feature enable {0} exclusive-lock"
    )]
    NoLock(String),
    /// Another client holds the image's lock.
    #[error(
        "image {0} is in use by another client, which holds its lock; end that one, or see who \
         it is: rbd lock list {0}"
    )]
    Locked(String),
    /// The image did not open within the time limit, because the cluster does not answer.
    #[error(
        "image {0} is still not open after {1:?}: the cluster does not answer; see ceph \
         status"
    )]
    Silent(String, Duration),
    /// A snapshot was named, but is needed for writing.
    #[error("image {0} is a snapshot, which is only read; serve it read-only")]
    Snapshot(String),
    /// The image's size is not a positive multiple of 512 bytes.
    #[error("image {0} has {1} bytes, which is not a positive multiple of 512")]
    OddSize(String, u64),
    /// A text for the library contains a zero byte.
    #[error("{text:?} has a zero byte in it")]
    ZeroByte {
        /// The text with the zero byte.
        text: String,
    },
}

impl RbdError {
    /// Returns whether the cluster refuses this client because it is on the blocklist.
    pub(super) fn is_fenced(&self) -> bool {
        match self {
            Self::Cluster { source, .. } | Self::Image { source, .. } => {
                source.raw_os_error() == Some(libc::ESHUTDOWN)
            }
            _ => false,
        }
    }
}

/// Returns advice to the operator for an error of the cluster.
fn advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOENT) => "; check conf=FILE, the key of the user and the name of the pool",
        Some(libc::EACCES | libc::EPERM) => "; check the user (id=USER), its key and its rights",
        Some(libc::ETIMEDOUT) => "; no monitor of the cluster answers",
        _ => "",
    }
}

#[cfg(test)]
mod name_tests {
    use super::*;

    #[test]
    fn a_name_has_a_pool_an_image_and_perhaps_a_namespace_and_a_snapshot() {
        for text in ["rbd/vm", "rbd/team/vm", "rbd/vm@monday", "rbd/team/vm@monday"] {
            assert_eq!(RbdName::parse(text).expect(text).to_string(), text);
        }
        let name = RbdName::parse("pool/space/image@snapshot").expect("it has all parts");
        assert_eq!((&*name.pool, &*name.image), ("pool", "image"));
        assert_eq!(name.namespace.as_deref(), Some("space"));
        assert_eq!(name.snapshot.as_deref(), Some("snapshot"));
        for text in ["", "vm", "rbd/", "/vm", "rbd//vm", "a/b/c/d", "rbd/vm@", "rbd/vm@a@b", "@a"] {
            assert_eq!(RbdName::parse(text), None, "{text}");
        }
    }
}
