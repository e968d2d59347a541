//! Objects: what a host has in the cache, and how it is freed.

use std::ffi::c_void;

use floe_memory::host::HostCache;
use floe_memory::policy::AnyPolicy;

use super::name::Name;

/// Frees an object: called once, when it has left the cache and no handle is left, by any thread,
/// outside of locks. It may use the cache. It must not throw or unwind.
pub type floe_host_free_fn = Option<
    unsafe extern "C" fn(
        key: *const c_void,
        key_len: usize,
        object: *mut c_void,
        context: *mut c_void,
    ),
>;

/// The cache of the library.
pub(crate) type Inner = HostCache<Name, Object, AnyPolicy>;

/// An object, freed with the entry.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Object {
    /// First: C reads it.
    pub(super) object: *mut c_void,
    pub(super) context: *mut c_void,
    pub(super) free: floe_host_free_fn,
    /// For `free`: an entry drops its key first.
    pub(super) name: Name,
}

// SAFETY: the program promises that any thread may use and free its objects: see
// `floe_host_insert`.
unsafe impl Send for Object {}
// SAFETY: as above.
unsafe impl Sync for Object {}

impl Drop for Object {
    fn drop(&mut self) {
        let Some(free) = self.free else { return };
        let name = self.name.bytes();
        // SAFETY: the program's function, called once for each object that came in.
        unsafe { free(name.as_ptr().cast(), name.len(), self.object, self.context) };
    }
}
