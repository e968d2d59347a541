//! Names of images, and why one cannot be opened.

use std::path::PathBuf;
use std::time::Duration;
use std::{fmt, io};

/// An image, and how its cluster is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RbdName {
    /// The pool.
    pub pool: String,
    /// The namespace within the pool.
    pub namespace: Option<String>,
    /// The image.
    pub image: String,
    /// A snapshot of it, which is only read.
    pub snapshot: Option<String>,
    /// The user, without `client.`; the library's choice, `admin`, if none is given.
    pub user: Option<String>,
    /// The cluster's configuration file; where the library looks, if none is given.
    pub conf: Option<PathBuf>,
    /// Fail operations that the cluster has not answered for so long; without it they wait for it.
    pub timeout: Option<Duration>,
}

impl RbdName {
    /// Reads `POOL[/NAMESPACE]/IMAGE[@SNAPSHOT]`; `None` where a part is missing or empty.
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

/// `POOL[/NAMESPACE]/IMAGE[@SNAPSHOT]`, without the settings of the cluster.
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
