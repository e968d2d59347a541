//! The library's handles of a connection and an image, and what is asked of them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::time::Duration;

use super::connection::Connection;
use super::error::RbdError;
use super::library::{Functions, Handle, c_string, checked, library, text};
use super::name::RbdName;
use super::news::News;
use crate::identity::{Fact, FactKind, Identity};

/// The longest wait for an image to be closed; a cluster that does not answer keeps it open.
const PATIENCE: Duration = Duration::from_secs(10);

/// An image that is open, and its share of a connection; dropping closes it.
#[derive(Debug)]
pub(super) struct OpenImage {
    pub(super) handles: Handles,
    /// There until this is dropped.
    connection: Option<Arc<Connection>>,
}

/// The handles, as the library knows them; null where nothing is open.
#[derive(Debug, Clone, Copy)]
pub(super) struct Handles {
    pub(super) cluster: Handle,
    pub(super) pool: Handle,
    pub(super) image: Handle,
    pub(super) is_locked: bool,
    /// The number of the watch, and the argument of its calls.
    pub(super) watch: Option<(u64, *const News)>,
}

// SAFETY: the library's handles may be used by any thread, and by several at once.
unsafe impl Send for Handles {}
// SAFETY: as above.
unsafe impl Sync for Handles {}

impl OpenImage {
    /// Opens the image, without its lock, by a connection of its own or one that others share.
    /// `more` are further settings of the library.
    pub(super) fn new(
        library: &Functions,
        name: &RbdName,
        read_only: bool,
        more: &[(&'static str, &'static str)],
    ) -> Result<Self, RbdError> {
        loop {
            let (connection, is_new) = Connection::find(library, name, more)?;
            let opened = Self::by(library, &connection, name, read_only);
            if is_new || !opened.as_ref().is_err_and(RbdError::is_fenced) {
                return opened;
            }
            connection.retire();
        }
    }

    /// Opens the image by this connection. Each step fills one more handle; where one fails, those
    /// there are get closed.
    pub(super) fn by(
        library: &Functions,
        connection: &Arc<Connection>,
        name: &RbdName,
        read_only: bool,
    ) -> Result<Self, RbdError> {
        let null = std::ptr::null_mut();
        let (cluster, pool, image) = (connection.cluster, null, null);
        let handles = Handles { cluster, pool, image, is_locked: false, watch: None };
        let mut open = Self { handles, connection: Some(Arc::clone(connection)) };
        open.handles.find_pool(library, name)?;
        open.handles.open_image(library, name, read_only)?;
        Ok(open)
    }

    /// The connection that it was opened by.
    pub(super) fn connection(&self) -> &Arc<Connection> {
        self.connection.as_ref().expect("it is taken when this is dropped")
    }
}

impl Drop for OpenImage {
    /// Closes it, by a thread that is left alone where the cluster does not answer.
    fn drop(&mut self) {
        let (Ok(library), handles) = (library(), self.handles) else { return };
        let connection = self.connection.take();
        let is_silent = connection.as_ref().map(|it| Arc::clone(&it.is_silent));
        let was_silent = is_silent.as_ref().is_some_and(|it| it.load(Ordering::Relaxed));
        let (done, closed) = channel();
        let close = move || {
            handles.close(library);
            drop(connection);
            let _ = done.send(()); // perhaps nobody waits any more
        };
        // Without a thread it stays open until the process ends, which ends its lock as well.
        if std::thread::Builder::new().name("rbd-close".to_owned()).spawn(close).is_ok() {
            // A cluster is waited for once, not for each of its images.
            let patience = if was_silent { Duration::ZERO } else { PATIENCE };
            let is_late = closed.recv_timeout(patience).is_err();
            is_silent.inspect(|it| it.store(is_late, Ordering::Relaxed));
        }
    }
}

impl Handles {
    pub(super) fn find_pool(
        &mut self,
        library: &Functions,
        name: &RbdName,
    ) -> Result<(), RbdError> {
        let pool = c_string(&name.pool)?;
        // SAFETY: the cluster is connected; a text, and a place for the handle.
        let found =
            unsafe { (library.rados_ioctx_create)(self.cluster, pool.as_ptr(), &mut self.pool) };
        checked(found).map_err(|source| RbdError::Cluster {
            what: format!("open pool {}", name.pool),
            image: name.to_string(),
            source,
        })?;
        // A full cluster refuses writes then, instead of letting them wait for room.
        // SAFETY: the pool is open.
        unsafe { (library.rados_set_osdmap_full_try)(self.pool) };
        if let Some(namespace) = &name.namespace {
            let namespace = c_string(namespace)?;
            // SAFETY: the pool is open, and takes a copy of the text.
            unsafe { (library.rados_ioctx_set_namespace)(self.pool, namespace.as_ptr()) };
        }
        Ok(())
    }

    pub(super) fn open_image(
        &mut self,
        library: &Functions,
        name: &RbdName,
        read_only: bool,
    ) -> Result<(), RbdError> {
        let image = c_string(&name.image)?;
        let snapshot = name.snapshot.as_deref().map(c_string).transpose()?;
        let snapshot = snapshot.as_ref().map_or(std::ptr::null(), |name| name.as_ptr());
        let open = if read_only { library.rbd_open_read_only } else { library.rbd_open };
        // SAFETY: the pool is open; texts or nothing, and a place for the handle.
        let opened = unsafe { open(self.pool, image.as_ptr(), &mut self.image, snapshot) };
        checked(opened).map(drop).map_err(|source| RbdError::Image {
            what: "open",
            image: name.to_string(),
            source,
        })
    }

    pub(super) fn size(&self, library: &Functions) -> io::Result<u64> {
        let mut size = 0;
        // SAFETY: the image is open; a place for the number.
        checked(unsafe { (library.rbd_get_size)(self.image, &mut size) })?;
        Ok(size)
    }

    pub(super) fn identity(
        &self,
        library: &Functions,
        name: &RbdName,
    ) -> Result<Identity, RbdError> {
        let failed = |source| RbdError::Image { what: "identify", image: name.to_string(), source };
        // SAFETY: the cluster is connected; as many bytes as said.
        let cluster =
            text(64, |at, most| unsafe { (library.rados_cluster_fsid)(self.cluster, at, most) });
        // SAFETY: the pool is open.
        let pool = unsafe { (library.rados_ioctx_get_id)(self.pool) };
        // SAFETY: the image is open; as many bytes as said.
        let image = text(256, |at, most| unsafe { (library.rbd_get_id)(self.image, at, most) });
        let (cluster, image) = (cluster.map_err(failed)?, image.map_err(failed)?);
        let snapshot = name.snapshot.as_deref().unwrap_or_default();
        let text = format!("{cluster}/{pool}/{image}@{snapshot}");
        Ok(Identity::of([Fact::text(FactKind::Image, &text)]))
    }

    fn close(self, library: &Functions) {
        // SAFETY: each handle is open, nothing uses it any more, and it is closed before those that
        // it was opened from; the connection ends later.
        unsafe {
            self.unwatch(library);
            if self.is_locked {
                (library.rbd_lock_release)(self.image);
            }
            if !self.image.is_null() {
                (library.rbd_close)(self.image);
            }
            if !self.pool.is_null() {
                (library.rados_ioctx_destroy)(self.pool);
            }
        }
    }
}
