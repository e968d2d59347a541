//! The library's handles of a connection and an image, and what is asked of them.

use std::ffi::{CString, c_char, c_int};
use std::io;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

use super::error::RbdError;
use super::library::{Functions, Handle, library};
use super::name::RbdName;
use super::news::News;
use crate::identity::{Fact, FactKind, Identity};

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

/// The longest wait for an image to be closed; a cluster that does not answer keeps it open.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection and an image; dropping closes them.
#[derive(Debug)]
pub(super) struct OpenImage(pub(super) Handles);

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

/// Text as the library takes it.
pub(super) fn c_string(text: &str) -> Result<CString, RbdError> {
    CString::new(text).map_err(|_| RbdError::ZeroByte { text: text.to_owned() })
}

/// The library returns errors as negative numbers of the system's.
pub(super) fn checked(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(result) }
}

/// Calls a function that fills a text of at most so many bytes.
pub(super) fn text(
    most: usize,
    fill: impl FnOnce(*mut c_char, usize) -> c_int,
) -> io::Result<String> {
    let mut bytes = vec![0u8; most];
    checked(fill(bytes.as_mut_ptr().cast(), most))?;
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(most);
    Ok(String::from_utf8_lossy(&bytes[..end]).into_owned())
}

impl OpenImage {
    /// Connects and opens the image, without its lock. Each step fills one more handle; where one
    /// fails, those there are get closed. `more` are further settings of the library.
    pub(super) fn new(
        library: &Functions,
        name: &RbdName,
        read_only: bool,
        more: &[(&str, &str)],
    ) -> Result<Self, RbdError> {
        let null = std::ptr::null_mut();
        let (cluster, pool, image) = (null, null, null);
        let mut open = Self(Handles { cluster, pool, image, is_locked: false, watch: None });
        let handles = &mut open.0;
        handles.connect(library, name, more)?;
        handles.find_pool(library, name)?;
        handles.open_image(library, name, read_only)?;
        Ok(open)
    }
}

impl Drop for OpenImage {
    /// Closes it, by a thread that is left alone where the cluster does not answer.
    fn drop(&mut self) {
        let (Ok(library), handles) = (library(), self.0) else { return };
        let (done, closed) = channel();
        let close = move || {
            handles.close(library);
            let _ = done.send(()); // perhaps nobody waits any more
        };
        // Without a thread it stays open until the process ends, which ends its lock as well.
        if std::thread::Builder::new().name("rbd-close".to_owned()).spawn(close).is_ok() {
            let _ = closed.recv_timeout(PATIENCE);
        }
    }
}

impl Handles {
    pub(super) fn connect(
        &mut self,
        library: &Functions,
        name: &RbdName,
        more: &[(&str, &str)],
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
        // it was opened from.
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
            if !self.cluster.is_null() {
                (library.rados_shutdown)(self.cluster);
            }
        }
    }
}
