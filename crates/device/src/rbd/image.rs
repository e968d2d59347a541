//! An open Ceph image, with its connection to the cluster and its lock.

use std::io;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use super::library::{Functions, Handle, News, OpenImage, library};
use super::name::{RbdError, RbdName};
use crate::identity::Identity;

/// The time limit for opening an image. A dead server's lock expires after half a minute, and the
/// search for a cluster takes as long.
const OPEN_MOST: Duration = Duration::from_secs(90);

/// An open image, from which each thread opens a [`RbdDevice`](super::RbdDevice). Clones share it;
/// the lock ends with the last clone and device.
#[derive(Debug, Clone)]
pub struct RbdSource(pub(super) Arc<Image>);

#[derive(Debug)]
pub(super) struct Image {
    pub(super) open: OpenImage,
    name: RbdName,
    pub(super) identity: Identity,
    /// Size in bytes when last measured. No other memory depends on it, so relaxed loads and stores
    /// suffice.
    pub(super) size: AtomicU64,
    news: Arc<News>,
}

impl RbdSource {
    /// Connects to the cluster, opens the image and, unless it is read-only, takes its lock.
    ///
    /// # Errors
    /// Names the image and the step that failed.
    pub fn prepare(name: &RbdName, read_only: bool) -> Result<RbdSource, RbdError> {
        Self::prepare_within(OPEN_MOST, name, read_only)
    }

    /// Opens an image like [`prepare`](Self::prepare), with a time limit. An image that opens later
    /// is closed again.
    ///
    /// # Errors
    /// Names the image and the step that failed, or that the cluster does not answer.
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
            Err(RecvTimeoutError::Timeout) => Err(RbdError::Silent(name.to_string(), most)),
            Err(RecvTimeoutError::Disconnected) => match thread.join() {
                Err(panic) => resume_unwind(panic),
                Ok(()) => unreachable!("it has sent something"),
            },
        }
    }

    /// Opens an image for writing with librbd's own write-back cache, so that it can be compared
    /// with Floe. **An acknowledged write may be lost** until it is flushed.
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
            return Err(RbdError::Snapshot(name.to_string()));
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
            return Err(RbdError::OddSize(name.to_string(), size));
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

    /// Sets a function to call when the image's size or snapshots may have changed. A thread of the
    /// library calls it, perhaps once for several changes, or without one. The function must not
    /// block, nor use the image. Images opened read-only report no changes.
    pub fn on_change(&self, notify: impl Fn() + Send + Sync + 'static) {
        self.0.news.set(Box::new(notify));
    }

    /// Returns the image's name and cluster settings.
    pub fn name(&self) -> &RbdName {
        &self.0.name
    }

    /// Returns the client that holds the lock, under the cluster's name for it: this client, if it
    /// writes.
    ///
    /// # Errors
    /// The error of the library.
    pub fn owner(&self) -> io::Result<Option<String>> {
        self.0.open.handles.owner(self.functions())
    }

    /// Returns the name of a note's object, in the image's pool.
    ///
    /// # Errors
    /// The error of the library.
    pub fn note_object(&self, key: &str) -> io::Result<String> {
        let object = self.0.open.handles.object(self.functions(), key)?;
        Ok(object.to_string_lossy().into_owned())
    }

    /// Reads a note, which is stored beside the image, in an object `floe.KEY.ID` of its pool.
    ///
    /// # Errors
    /// The error of the library.
    pub fn note(&self, key: &str) -> io::Result<Option<String>> {
        self.0.open.handles.note(self.functions(), key)
    }

    /// Writes a note beside the image, durably, even when the cluster is full. The writer should
    /// hold the lock.
    ///
    /// # Errors
    /// The error of the library; `ESHUTDOWN` when this client has been fenced, `E2BIG` for more
    /// than 64 KiB.
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
