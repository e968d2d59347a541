//! Objects of a host with their keys.

use std::ffi::c_void;
use std::hash::{Hash, Hasher};

use floe_memory::Equivalent;
use floe_memory::host::HostCache;
use floe_memory::policy::{AnyPolicy, PriorityPools};

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

/// The cache of the library. The object is part of the key: so a hit finds both in one line of
/// memory, and the key is there when the object is freed.
pub(crate) type Inner = HostCache<Item, (), PriorityPools<AnyPolicy>>;

/// A key with its object, which is freed with the entry.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Item {
    name: Name,
    /// C reads it.
    pub(super) object: *mut c_void,
    pub(super) context: *mut c_void,
    pub(super) free: floe_host_free_fn,
}

// SAFETY: the program promises that any thread may use and free its objects: see
// `floe_host_insert`.
unsafe impl Send for Item {}
// SAFETY: as above.
unsafe impl Sync for Item {}

impl Item {
    pub(super) fn new(
        name: &[u8],
        object: *mut c_void,
        free: floe_host_free_fn,
        context: *mut c_void,
    ) -> Self {
        Self { name: Name::new(name), object, context, free }
    }

    #[inline]
    pub(super) fn name(&self) -> &[u8] {
        self.name.bytes()
    }
}

impl PartialEq for Item {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Item {}

impl Hash for Item {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Asked(self.name()).hash(state);
    }
}

/// A key that is looked up.
pub(super) struct Asked<'a>(pub(super) &'a [u8]);

impl Hash for Asked<'_> {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(self.0);
    }
}

impl Equivalent<Item> for Asked<'_> {
    #[inline]
    fn equivalent(&self, item: &Item) -> bool {
        self.0 == item.name()
    }
}

impl Drop for Item {
    fn drop(&mut self) {
        let Some(free) = self.free else { return };
        let name = self.name.bytes();
        // SAFETY: the program's function, called once for each object that came in.
        unsafe { free(name.as_ptr().cast(), name.len(), self.object, self.context) };
    }
}
