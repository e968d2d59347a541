//! The parts of librados and librbd that are used, found when they are first needed.

use std::ffi::{CString, c_char, c_int, c_void};
use std::io;
use std::sync::OnceLock;

use libloading::os::unix::Library;

use super::error::RbdError;

/// A cluster (`rados_t`), a pool of it (`rados_ioctx_t`), an image (`rbd_image_t`) or the end of an
/// operation (`rbd_completion_t`), as the library knows it.
pub(super) type Handle = *mut c_void;

/// A client that watches an image (`rbd_image_watcher_t`).
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Watcher {
    pub(super) address: *mut c_char,
    pub(super) id: i64,
    pub(super) cookie: u64,
}

/// Called by a thread of the library when an operation has ended.
pub(super) type Callback = unsafe extern "C" fn(Handle, *mut c_void);

/// Called by a thread of the library when an image has changed.
pub(super) type UpdateCallback = unsafe extern "C" fn(*mut c_void);

/// Declares the functions that are used: the field's name is the function's.
macro_rules! functions {
    ($( $library:ident = $file:literal {
        $( fn $name:ident($($argument:ty),*) $(-> $result:ty)?; )*
    } )*) => {
        /// The functions, as their headers declare them.
        pub(super) struct Functions {
            $( $( pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?, )* )*
        }

        fn load() -> Result<Functions, RbdError> {
            $(
                // SAFETY: running the initialisation of Ceph's libraries has no requirements.
                let $library = unsafe { Library::new($file) }
                    .map_err(|error| RbdError::NoLibrary { why: reason(&error) })?;
            )*
            let functions = Functions {
                $( $( $name: {
                    let name = concat!(stringify!($name), "\0").as_bytes();
                    // SAFETY: the type is the one that the library's header declares.
                    let found = unsafe { $library.get(name) };
                    let too_old = |error| {
                        RbdError::OldLibrary { library: $file, why: reason(&error) }
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

/// The linker's own words.
fn reason(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// The functions, once both libraries have been found.
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
