//! A handle of an image, with the connection to its cluster and its lock.

use std::ffi::{CString, c_char, c_int};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use super::error::RbdError;
use super::library::{Functions, Handle, library};
use super::name::RbdName;
use crate::identity::{Fact, FactKind, Identity};

const FEATURE_EXCLUSIVE_LOCK: u64 = 1 << 2;
const LOCK_EXCLUSIVE: c_int = 0;

/// Settings of the library: no cache of its own, no files, an end to the search for a cluster.
const SETTINGS: [(&str, &str); 6] = [
    ("rbd_cache", "false"),
    ("client_mount_timeout", "30"),
    ("admin_socket", ""),
    ("log_file", "/dev/null"),
    ("log_to_stderr", "false"),
    ("err_to_stderr", "false"),
];

/// The longest wait for an image to be closed; a cluster that does not answer keeps it open.
const PATIENCE: Duration = Duration::from_secs(10);

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
}

/// A connection and an image; dropping closes them.
#[derive(Debug)]
struct OpenImage(Handles);

/// The handles, as the library knows them; null where nothing is open.
#[derive(Debug, Clone, Copy)]
struct Handles {
    cluster: Handle,
    pool: Handle,
    image: Handle,
    is_locked: bool,
}

// SAFETY: the library's handles may be used by any thread, and by several at once.
unsafe impl Send for Handles {}
// SAFETY: as above.
unsafe impl Sync for Handles {}

impl RbdSource {
    /// Connects to the cluster, opens the image and, unless it is only read, takes its lock.
    ///
    /// # Errors
    /// Names the image and the step that failed.
    pub fn prepare(name: &RbdName, read_only: bool) -> Result<RbdSource, RbdError> {
        if name.snapshot.is_some() && !read_only {
            return Err(RbdError::Snapshot { image: name.to_string() });
        }
        let library = library()?;
        let open = OpenImage::new(library, name, read_only)?;
        let identity = open.0.identity(library, name)?;
        let size = open.0.size(library).map_err(|source| RbdError::Image {
            what: "find the size of",
            image: name.to_string(),
            source,
        })?;
        if size == 0 || !size.is_multiple_of(512) {
            return Err(RbdError::OddSize { image: name.to_string(), size });
        }
        let image = Image { open, name: name.clone(), identity, size: AtomicU64::new(size) };
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
        let size = self.0.open.0.size(self.functions())?;
        if size == 0 || !size.is_multiple_of(512) {
            let message = format!("{size} bytes are not a positive multiple of 512");
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        self.0.size.store(size, Ordering::Relaxed);
        Ok(size)
    }

    /// The cluster, the pool and the image, by the numbers that Ceph never uses again.
    pub fn identity(&self) -> Identity {
        self.0.identity.clone()
    }

    /// Its name.
    pub fn name(&self) -> &RbdName {
        &self.0.name
    }

    pub(super) fn functions(&self) -> &'static Functions {
        library().expect("an image is open, so the library is")
    }

    pub(super) fn handle(&self) -> Handle {
        self.0.open.0.image
    }
}

/// Text as the library takes it.
fn c_string(text: &str) -> Result<CString, RbdError> {
    CString::new(text).map_err(|_| RbdError::ZeroByte { text: text.to_owned() })
}

/// The library returns errors as negative numbers of the system's.
fn checked(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(result) }
}

/// Calls a function that fills a text of at most so many bytes.
fn text(most: usize, fill: impl FnOnce(*mut c_char, usize) -> c_int) -> io::Result<String> {
    let mut bytes = vec![0u8; most];
    checked(fill(bytes.as_mut_ptr().cast(), most))?;
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(most);
    Ok(String::from_utf8_lossy(&bytes[..end]).into_owned())
}

impl OpenImage {
    /// Each step fills one more handle; where one fails, those there are get closed.
    fn new(library: &Functions, name: &RbdName, read_only: bool) -> Result<Self, RbdError> {
        let null = std::ptr::null_mut();
        let mut open = Self(Handles { cluster: null, pool: null, image: null, is_locked: false });
        let handles = &mut open.0;
        handles.connect(library, name)?;
        handles.find_pool(library, name)?;
        handles.open_image(library, name, read_only)?;
        if !read_only {
            handles.lock(library, name)?;
        }
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
    fn connect(&mut self, library: &Functions, name: &RbdName) -> Result<(), RbdError> {
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
        for (option, value) in SETTINGS {
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

    fn find_pool(&mut self, library: &Functions, name: &RbdName) -> Result<(), RbdError> {
        let pool = c_string(&name.pool)?;
        // SAFETY: the cluster is connected; a text, and a place for the handle.
        let found =
            unsafe { (library.rados_ioctx_create)(self.cluster, pool.as_ptr(), &mut self.pool) };
        checked(found).map_err(|source| RbdError::Cluster {
            what: format!("open pool {}", name.pool),
            image: name.to_string(),
            source,
        })?;
        if let Some(namespace) = &name.namespace {
            let namespace = c_string(namespace)?;
            // SAFETY: the pool is open, and takes a copy of the text.
            unsafe { (library.rados_ioctx_set_namespace)(self.pool, namespace.as_ptr()) };
        }
        Ok(())
    }

    fn open_image(
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

    fn lock(&mut self, library: &Functions, name: &RbdName) -> Result<(), RbdError> {
        let mut features = 0;
        // SAFETY: the image is open; a place for the number.
        let known = checked(unsafe { (library.rbd_get_features)(self.image, &mut features) });
        let image = || name.to_string();
        known.map_err(|source| RbdError::Image { what: "ask", image: image(), source })?;
        if features & FEATURE_EXCLUSIVE_LOCK == 0 {
            return Err(RbdError::NoLock { image: image() });
        }
        // SAFETY: the image is open.
        match checked(unsafe { (library.rbd_lock_acquire)(self.image, LOCK_EXCLUSIVE) }) {
            Ok(_) => self.is_locked = true,
            // That is how it calls a lock that its owner does not give away.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EROFS | libc::EBUSY)) => {
                return Err(RbdError::Locked { image: image() });
            }
            Err(source) => return Err(RbdError::Image { what: "lock", image: image(), source }),
        }
        Ok(())
    }

    fn size(&self, library: &Functions) -> io::Result<u64> {
        let mut size = 0;
        // SAFETY: the image is open; a place for the number.
        checked(unsafe { (library.rbd_get_size)(self.image, &mut size) })?;
        Ok(size)
    }

    fn identity(&self, library: &Functions, name: &RbdName) -> Result<Identity, RbdError> {
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
