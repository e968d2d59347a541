//! Connections to clusters, which the images of a process share.
//!
//! Each connection has 14 threads of the library, and buffers. The first [`MOST`] images that are
//! opened by the same user with the same settings get one each, so that they do not wait for each
//! other's; further ones share those with the fewest images.
//!
//! The cluster fences a connection, not an image. A connection that it refuses is *retired*: images
//! opened later use another.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::error::RbdError;
use super::library::{Functions, Handle, c_string, checked, library};
use super::name::RbdName;

/// The most connections to a cluster for images that are opened one after the other.
const MOST: usize = 8;

/// Settings of the library: no cache of its own, no files, an end to the search for a cluster.
const SETTINGS: [(&str, &str); 7] = [
    ("rbd_cache", "false"),
    // The least there is. By default it ignores discards of less than 64 KiB.
    ("rbd_discard_granularity_bytes", "4096"),
    ("client_mount_timeout", "30"),
    ("admin_socket", ""),
    ("log_file", "/dev/null"),
    ("log_to_stderr", "false"),
    ("err_to_stderr", "false"),
];

/// A further setting of the library.
type Setting = (&'static str, &'static str);

/// That which images must have in common to share a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Key {
    user: Option<String>,
    conf: Option<PathBuf>,
    more: Vec<Setting>,
}

/// A connection to a cluster; it ends with the last clone of its `Arc`.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) cluster: Handle,
    /// An image could not be closed: the cluster does not answer. No other memory depends on it, so
    /// that relaxed loads and stores do.
    pub(super) is_silent: Arc<AtomicBool>,
}

// SAFETY: the library's handle may be used by any thread, and by several at once.
unsafe impl Send for Connection {}
// SAFETY: as above.
unsafe impl Sync for Connection {}

/// The connections of this process that further images may use.
static OPEN: Mutex<Vec<(Key, Weak<Connection>)>> = Mutex::new(Vec::new());

impl Connection {
    /// A connection for one more image, and true if it is new.
    ///
    /// # Errors
    /// Names the image and the step that failed.
    pub(super) fn find(
        library: &Functions,
        name: &RbdName,
        more: &[Setting],
    ) -> Result<(Arc<Self>, bool), RbdError> {
        let key = Key { user: name.user.clone(), conf: name.conf.clone(), more: more.to_vec() };
        if let Some(shared) = shared(&key) {
            return Ok((shared, false));
        }
        // Not while others wait for the list: a cluster may not answer for half a minute.
        let is_silent = Arc::default();
        let mut connection = Self { cluster: std::ptr::null_mut(), is_silent };
        connection.connect(library, name, more)?;
        let connection = Arc::new(connection);
        list().push((key, Arc::downgrade(&connection)));
        Ok((connection, true))
    }

    /// Has no further image opened by it.
    pub(super) fn retire(self: &Arc<Self>) {
        list().retain(|(_, other)| !std::ptr::eq(other.as_ptr(), Arc::as_ptr(self)));
    }

    fn connect(
        &mut self,
        library: &Functions,
        name: &RbdName,
        more: &[Setting],
    ) -> Result<(), RbdError> {
        let failed = |what: String| {
            move |source| RbdError::Cluster { what, image: name.to_string(), source }
        };
        let user = name.user.as_deref().map(c_string).transpose()?;
        let user = user.as_ref().map_or(std::ptr::null(), |user| user.as_ptr());
        // SAFETY: a place for the handle, and a text or nothing.
        checked(unsafe { (library.rados_create)(&mut self.cluster, user) })
            .map_err(failed("use Ceph's client library".to_owned()))?;
        let path = name.conf.as_deref().map(Path::to_string_lossy);
        let conf = path.as_deref().map(c_string).transpose()?;
        let conf = conf.as_ref().map_or(std::ptr::null(), |conf| conf.as_ptr());
        let what = match path {
            Some(path) => format!("read Ceph's configuration {path}"),
            None => "find Ceph's configuration (/etc/ceph/ceph.conf)".to_owned(),
        };
        // SAFETY: the handle has just been made, and the text is one or nothing.
        checked(unsafe { (library.rados_conf_read_file)(self.cluster, conf) })
            .map_err(failed(what))?;
        for (option, value) in SETTINGS.iter().chain(more) {
            let (name, value) = (c_string(option)?, c_string(value)?);
            // SAFETY: as above.
            checked(unsafe {
                (library.rados_conf_set)(self.cluster, name.as_ptr(), value.as_ptr())
            })
            .map_err(failed(format!("set {option}")))?;
        }
        // SAFETY: the handle has been configured.
        let connected = checked(unsafe { (library.rados_connect)(self.cluster) });
        connected.map(drop).map_err(failed("connect to the cluster".to_owned()))
    }

    /// Waits until this connection knows the cluster's newest map, and with it who is fenced.
    pub(super) fn wait_for_newest_map(&self, library: &Functions) -> io::Result<()> {
        // SAFETY: the cluster is connected.
        checked(unsafe { (library.rados_wait_for_latest_osdmap)(self.cluster) }).map(drop)
    }
}

impl Drop for Connection {
    /// Ends it; the images have been closed. This waits where the cluster does not answer.
    fn drop(&mut self) {
        let Ok(library) = library() else { return };
        if !self.cluster.is_null() {
            // SAFETY: it is open, and nothing uses it any more.
            unsafe { (library.rados_shutdown)(self.cluster) };
        }
    }
}

fn list() -> MutexGuard<'static, Vec<(Key, Weak<Connection>)>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The connection with the fewest images, if there are enough already.
fn shared(key: &Key) -> Option<Arc<Connection>> {
    let mut open = list();
    open.retain(|(_, connection)| connection.strong_count() > 0);
    let fit: Vec<_> = open.iter().filter(|(other, _)| other == key).collect();
    let least = fit.iter().min_by_key(|(_, connection)| connection.strong_count());
    least.filter(|_| fit.len() >= MOST).and_then(|(_, connection)| connection.upgrade())
}
