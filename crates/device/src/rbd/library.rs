//! Bindings to the parts of librados and librbd that Floe uses, loaded when first needed.

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;
use std::{fmt, io};

use libloading::os::unix::Library;

use super::name::{RbdError, RbdName};
use crate::identity::{Fact, FactKind, Identity};

/// An opaque pointer of the library: a cluster (`rados_t`), a pool (`rados_ioctx_t`), an image
/// (`rbd_image_t`) or a completion (`rbd_completion_t`).
pub(super) type Handle = *mut c_void;

/// A client that watches an image (`rbd_image_watcher_t`).
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Watcher {
    pub(super) address: *mut c_char,
    pub(super) id: i64,
    pub(super) cookie: u64,
}

/// The callback for the end of an operation, on a thread of the library.
pub(super) type Callback = unsafe extern "C" fn(Handle, *mut c_void);

/// The callback for a change of an image, on a thread of the library.
pub(super) type UpdateCallback = unsafe extern "C" fn(*mut c_void);

/// Declares the library functions that are used. A field has the name of its function.
macro_rules! functions {
    ($( $library:ident = $file:literal {
        $( fn $name:ident($($argument:ty),*) $(-> $result:ty)?; )*
    } )*) => {
        /// Pointers to the library's functions, with the types that their headers declare.
        pub(super) struct Functions {
            $( $( pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?, )* )*
        }

        fn load() -> Result<Functions, RbdError> {
            $(
                // SAFETY: running the initialisation of Ceph's libraries has no requirements.
                let $library = unsafe { Library::new($file) }
                    .map_err(|error| RbdError::NoLibrary(reason(&error)))?;
            )*
            let functions = Functions {
                $( $( $name: {
                    let name = concat!(stringify!($name), "\0").as_bytes();
                    // SAFETY: the type is the one that the library's header declares.
                    let found = unsafe { $library.get(name) };
                    let too_old = |error| {
                        RbdError::OldLibrary($file, reason(&error))
                    };
                    *found.map_err(too_old)?
                }, )* )*
            };
            // They stay open: threads of theirs run until the process ends.
            $( std::mem::forget($library); )*
            Ok(functions)
        }
    };
}

functions! {
    rados = "librados.so.2" {
        fn rados_create(*mut Handle, *const c_char) -> c_int;
        fn rados_conf_read_file(Handle, *const c_char) -> c_int;
        fn rados_conf_set(Handle, *const c_char, *const c_char) -> c_int;
        fn rados_connect(Handle) -> c_int;
        fn rados_shutdown(Handle);
        fn rados_cluster_fsid(Handle, *mut c_char, usize) -> c_int;
        fn rados_ioctx_create(Handle, *const c_char, *mut Handle) -> c_int;
        fn rados_ioctx_set_namespace(Handle, *const c_char);
        fn rados_ioctx_get_id(Handle) -> i64;
        fn rados_set_osdmap_full_try(Handle);
        fn rados_ioctx_destroy(Handle);
        fn rados_read(Handle, *const c_char, *mut c_char, usize, u64) -> c_int;
        fn rados_create_write_op() -> Handle;
        fn rados_release_write_op(Handle);
        fn rados_write_op_write_full(Handle, *const c_char, usize);
        fn rados_write_op_operate(Handle, Handle, *const c_char, *mut c_void, c_int) -> c_int;
        fn rados_list_lockers(
            Handle, *const c_char, *const c_char, *mut c_int, *mut c_char, *mut usize,
            *mut c_char, *mut usize, *mut c_char, *mut usize, *mut c_char, *mut usize
        ) -> isize;
        fn rados_blocklist_add(Handle, *mut c_char, u32) -> c_int;
        fn rados_wait_for_latest_osdmap(Handle) -> c_int;
    }
    rbd = "librbd.so.1" {
        fn rbd_open(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
        fn rbd_open_read_only(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
        fn rbd_close(Handle) -> c_int;
        fn rbd_get_size(Handle, *mut u64) -> c_int;
        fn rbd_get_features(Handle, *mut u64) -> c_int;
        fn rbd_get_id(Handle, *mut c_char, usize) -> c_int;
        fn rbd_update_watch(Handle, *mut u64, UpdateCallback, *mut c_void) -> c_int;
        fn rbd_update_unwatch(Handle, u64) -> c_int;
        fn rbd_lock_acquire(Handle, c_int) -> c_int;
        fn rbd_lock_release(Handle) -> c_int;
        fn rbd_watchers_list(Handle, *mut Watcher, *mut usize) -> c_int;
        fn rbd_watchers_list_cleanup(*mut Watcher, usize);
        fn rbd_lock_break(Handle, c_int, *const c_char) -> c_int;
        fn rbd_aio_create_completion(*mut c_void, Callback, *mut Handle) -> c_int;
        fn rbd_aio_get_return_value(Handle) -> isize;
        fn rbd_aio_release(Handle);
        fn rbd_aio_read(Handle, u64, usize, *mut c_char, Handle) -> c_int;
        fn rbd_aio_write(Handle, u64, usize, *const c_char, Handle) -> c_int;
        fn rbd_aio_discard(Handle, u64, u64, Handle) -> c_int;
        fn rbd_aio_write_zeroes(Handle, u64, usize, Handle, c_int, c_int) -> c_int;
        fn rbd_aio_flush(Handle, Handle) -> c_int;
    }
}

/// Returns the dynamic linker's error message.
fn reason(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// Returns the library's functions, loading both libraries if necessary.
///
/// # Errors
/// When one of them is missing or too old; the next call tries again.
pub(super) fn library() -> Result<&'static Functions, RbdError> {
    static LOADED: OnceLock<Functions> = OnceLock::new();
    if let Some(loaded) = LOADED.get() {
        return Ok(loaded);
    }
    let loaded = load()?;
    Ok(LOADED.get_or_init(|| loaded))
}

/// Converts text to a C string for the library.
pub(super) fn c_string(text: &str) -> Result<CString, RbdError> {
    CString::new(text).map_err(|_| RbdError::ZeroByte { text: text.to_owned() })
}

/// Converts a return code of the library, where errors are negative errno values.
pub(super) fn checked(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(result) }
}

/// Calls a function that fills a buffer with text, of at most this many bytes.
pub(super) fn text(
    most: usize,
    fill: impl FnOnce(*mut c_char, usize) -> c_int,
) -> io::Result<String> {
    let mut bytes = vec![0u8; most];
    checked(fill(bytes.as_mut_ptr().cast(), most))?;
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(most);
    Ok(String::from_utf8_lossy(&bytes[..end]).into_owned())
}

/// Maximum number of connections to a cluster. Images beyond this number share them.
const MOST: usize = 8;

/// Settings of the library: no cache of its own, no files, and a time limit for finding the
/// cluster.
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

/// The name and value of an additional setting of the library.
type Setting = (&'static str, &'static str);

/// The settings that images must have in common to share a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Key {
    user: Option<String>,
    conf: Option<PathBuf>,
    more: Vec<Setting>,
}

/// A connection to a cluster, which ends with the last clone of its `Arc`.
///
/// The first [`MOST`] images of one user and settings get one each; further ones share the
/// connections with the fewest images. The cluster fences a connection, not an image. A connection
/// that has been fenced is retired: images opened later use another.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) cluster: Handle,
    /// True once an image could not be closed because the cluster does not answer. No other memory
    /// depends on it, so relaxed loads and stores suffice.
    pub(super) is_silent: Arc<AtomicBool>,
}

// SAFETY: the library's handle may be used by any thread, and by several at once.
unsafe impl Send for Connection {}
// SAFETY: as above.
unsafe impl Sync for Connection {}

/// The connections of this process that further images may use.
static OPEN: Mutex<Vec<(Key, Weak<Connection>)>> = Mutex::new(Vec::new());

impl Connection {
    /// Finds or opens a connection for one more image. Also returns true if the connection is new.
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

    /// Excludes the connection from use by further images.
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

    /// Waits until this connection has the cluster's newest map, which lists the fenced clients.
    pub(super) fn wait_for_newest_map(&self, library: &Functions) -> io::Result<()> {
        // SAFETY: the cluster is connected.
        checked(unsafe { (library.rados_wait_for_latest_osdmap)(self.cluster) }).map(drop)
    }
}

impl Drop for Connection {
    /// Closes the connection after its images. Blocks while the cluster does not answer.
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

/// Returns the connection with the fewest images if the limit on connections is reached.
fn shared(key: &Key) -> Option<Arc<Connection>> {
    let mut open = list();
    open.retain(|(_, connection)| connection.strong_count() > 0);
    let fit: Vec<_> = open.iter().filter(|(other, _)| other == key).collect();
    let least = fit.iter().min_by_key(|(_, connection)| connection.strong_count());
    least.filter(|_| fit.len() >= MOST).and_then(|(_, connection)| connection.upgrade())
}

/// The time limit for closing an image, which stays open if the cluster does not answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// An open image and its share of a connection; dropping closes the image.
#[derive(Debug)]
pub(super) struct OpenImage {
    pub(super) handles: Handles,
    /// The connection; `None` only during the drop.
    connection: Option<Arc<Connection>>,
}

/// The library's handles of a connection and an image; null if not open.
#[derive(Debug, Clone, Copy)]
pub(super) struct Handles {
    pub(super) cluster: Handle,
    pub(super) pool: Handle,
    pub(super) image: Handle,
    pub(super) is_locked: bool,
    /// The id of the watch on the image, and the argument of its callback.
    pub(super) watch: Option<(u64, *const News)>,
}

// SAFETY: the library's handles may be used by any thread, and by several at once.
unsafe impl Send for Handles {}
// SAFETY: as above.
unsafe impl Sync for Handles {}

impl OpenImage {
    /// Opens the image, without its lock, on a new or a shared connection. `more` are further
    /// settings of the library.
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

    /// Opens the image on this connection. Each step fills one more handle; if a step fails, the
    /// handles filled so far are closed.
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

    pub(super) fn connection(&self) -> &Arc<Connection> {
        self.connection.as_ref().expect("it is taken when this is dropped")
    }
}

impl Drop for OpenImage {
    /// Closes the image in a separate thread, which is abandoned if the cluster does not answer.
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

/// A function that is called when an image has changed.
pub(super) type Notify = Box<dyn Fn() + Send + Sync>;

/// The callback for changes of an image. Must not move while the library has its address.
#[derive(Default)]
pub(super) struct News(Mutex<Option<Notify>>);

impl News {
    pub(super) fn set(&self, notify: Notify) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(notify);
    }
}

impl fmt::Debug for News {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("News")
    }
}

/// Callback for a change of the image, on a thread of the library.
///
/// # Safety
/// The argument points to a live `News`.
pub(super) unsafe extern "C" fn changed(argument: *mut c_void) {
    // SAFETY: see above.
    let news = unsafe { &*argument.cast::<News>() };
    if let Some(notify) = &*news.0.lock().unwrap_or_else(PoisonError::into_inner) {
        notify();
    }
}
