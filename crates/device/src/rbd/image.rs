//! A handle of an image, with the connection to its cluster and its lock.

use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread::Builder;
use std::time::Duration;
use std::{fmt, io};

use super::library::{Functions, Handle, OpenImage, library};
use super::lock::News;
use crate::identity::Identity;

/// The time for an image to open. A dead server's lock lasts half a minute, and so does the search
/// for a cluster.
const OPEN_MOST: Duration = Duration::from_secs(90);

/// An image that is open, of which every thread can have a [`RbdDevice`](super::RbdDevice). Clones
/// are the same one; the lock ends with the last clone and device.
#[derive(Debug, Clone)]
pub struct RbdSource(Arc<Image>);

#[derive(Debug)]
struct Image {
    open: OpenImage,
    name: RbdName,
    identity: Identity,
    /// As last seen. No other memory depends on it, so that relaxed loads and stores do.
    size: AtomicU64,
    news: Arc<News>,
}

impl RbdSource {
    /// Connects to the cluster, opens the image and, unless it is only read, takes its lock.
    ///
    /// # Errors
    /// Names the image and the step that failed.
    pub fn prepare(name: &RbdName, read_only: bool) -> Result<RbdSource, RbdError> {
        Self::prepare_within(OPEN_MOST, name, read_only)
    }

    /// Opens an image as [`prepare`](Self::prepare) does, within this time. One that opens later is
    /// closed again.
    ///
    /// # Errors
    /// Names the image and the step that failed, or that the cluster is silent.
    pub fn prepare_within(
        most: Duration,
        name: &RbdName,
        read_only: bool,
    ) -> Result<RbdSource, RbdError> {
        let (sender, opened) = sync_channel(1);
        let image = name.clone();
        // The library waits without a bound for a cluster that has answered before.
        let open = move || {
            let _ = sender.send(Self::prepare_with(&image, read_only, &[])); // perhaps too late
        };
        let thread = Builder::new().name("floe-rbd-open".to_owned()).spawn(open);
        let thread = thread.map_err(|source| RbdError::Image {
            what: "begin a thread that opens",
            image: name.to_string(),
            source,
        })?;
        match opened.recv_timeout(most) {
            Ok(opened) => opened,
            Err(RecvTimeoutError::Timeout) => {
                Err(RbdError::Silent { image: name.to_string(), after: most })
            }
            Err(RecvTimeoutError::Disconnected) => match thread.join() {
                Err(panic) => resume_unwind(panic),
                Ok(()) => unreachable!("it has sent something"),
            },
        }
    }

    /// Opens an image for writing with librbd's own write-back cache, so that others can compare it
    /// with Floe. **A write that has been answered may be lost** until it is flushed.
    ///
    /// # Errors
    /// Names the image and the step that failed.
    #[doc(hidden)]
    pub fn prepare_cached(name: &RbdName) -> Result<RbdSource, RbdError> {
        let settings = [
            ("rbd_cache", "true"),
            ("rbd_cache_policy", "writeback"),
            ("rbd_cache_writethrough_until_flush", "false"),
        ];
        Self::prepare_with(name, false, &settings)
    }

    fn prepare_with(
        name: &RbdName,
        read_only: bool,
        more: &[(&'static str, &'static str)],
    ) -> Result<RbdSource, RbdError> {
        if name.snapshot.is_some() && !read_only {
            return Err(RbdError::Snapshot { image: name.to_string() });
        }
        let library = library()?;
        let mut open = OpenImage::new(library, name, read_only, more)?;
        if !read_only {
            open.handles.lock(library, name)?;
        }
        let identity = open.handles.identity(library, name)?;
        let size = open.handles.size(library).map_err(|source| RbdError::Image {
            what: "find the size of",
            image: name.to_string(),
            source,
        })?;
        if size == 0 || !size.is_multiple_of(512) {
            return Err(RbdError::OddSize { image: name.to_string(), size });
        }
        let (news, size) = (Arc::new(News::default()), AtomicU64::new(size));
        open.handles.watch(library, &news).map_err(|source| RbdError::Image {
            what: "watch",
            image: name.to_string(),
            source,
        })?;
        let image = Image { open, name: name.clone(), identity, size, news };
        Ok(RbdSource(Arc::new(image)))
    }

    /// Its size when it was opened or last refreshed.
    pub fn size_bytes(&self) -> u64 {
        self.0.size.load(Ordering::Relaxed)
    }

    /// Asks how large it is now. Devices opened from here on have that size; open ones take it by
    /// [`Device::set_size`](crate::Device::set_size).
    ///
    /// # Errors
    /// When the library cannot say, or the size is not a positive multiple of 512; the old one is
    /// kept.
    pub fn refresh(&self) -> io::Result<u64> {
        let size = self.0.open.handles.size(self.functions())?;
        if size == 0 || !size.is_multiple_of(512) {
            let message = format!("{size} bytes are not a positive multiple of 512");
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        self.0.size.store(size, Ordering::Relaxed);
        Ok(size)
    }

    /// Has a function called when the image may have changed: its size, or its snapshots. A thread
    /// of the library calls it, perhaps once for several changes, or without one. It must not wait,
    /// nor ask the image anything. Images opened for reading only tell of nothing.
    pub fn on_change(&self, notify: impl Fn() + Send + Sync + 'static) {
        self.0.news.set(Box::new(notify));
    }

    /// The cluster, the pool and the image, by the numbers that Ceph never uses again.
    pub fn identity(&self) -> Identity {
        self.0.identity.clone()
    }

    /// Its name.
    pub fn name(&self) -> &RbdName {
        &self.0.name
    }

    /// The client that holds the lock, as the cluster calls it: this one, if it writes.
    ///
    /// # Errors
    /// The library's.
    pub fn owner(&self) -> io::Result<Option<String>> {
        self.0.open.handles.owner(self.functions())
    }

    /// A note that lies beside the image, in an object `floe.KEY.ID` of its pool.
    ///
    /// # Errors
    /// The library's.
    pub fn note(&self, key: &str) -> io::Result<Option<String>> {
        self.0.open.handles.note(self.functions(), key)
    }

    /// Writes a note, durably, also when the cluster is full. Its writer should have the lock.
    ///
    /// # Errors
    /// The library's; `ESHUTDOWN` when this client has been fenced, `E2BIG` for more than 64 KiB.
    pub fn set_note(&self, key: &str, note: &str) -> io::Result<()> {
        self.0.open.handles.set_note(self.functions(), key, note)
    }

    pub(super) fn functions(&self) -> &'static Functions {
        library().expect("an image is open, so the library is")
    }

    pub(super) fn handle(&self) -> Handle {
        self.0.open.handles.image
    }
}

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
