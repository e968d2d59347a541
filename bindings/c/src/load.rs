//! Getting what is not there yet.

use std::ffi::c_void;

use crate::cache::{self, charge_of, floe_cache};
use crate::error::{Failure, bytes, give, guarded, region};
use crate::floe_status;
use crate::value::{Key, Value, floe_free_fn, floe_value};

/// The value that a loader brings.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct floe_loaded {
    /// The value. Belongs to Floe once the loader has returned 0.
    pub data: *mut c_void,
    /// Its number of bytes.
    pub len: usize,
    /// Its charge; 0 for the length of key and value.
    pub charge: u32,
    /// Frees it, as for `floe_insert_given`; NULL for a value that need not be freed.
    pub free_data: floe_free_fn,
    /// The last argument of `free_data`.
    pub context: *mut c_void,
}

/// Loads the value of a key. Returns 0 when `*loaded` is filled in, or an error of the program's.
/// It may use the cache, and load other keys; for its own key `floe_get_or_load` answers with
/// `FLOE_STATUS_INVALID`. It must not throw or unwind.
pub type floe_load_fn = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        key: *const c_void,
        key_len: usize,
        loaded: *mut floe_loaded,
    ) -> i32,
>;

/// Looks a key up and, if it is not there, loads it, once for all threads that ask at the same
/// time. `*value` is to be released. Where the loader returns an error, so does this
/// (`FLOE_STATUS_LOAD_FAILED`), and `*error`, unless it is NULL, becomes what it returned.
///
/// Loads that need each other's keys do not wait for ever: the one that would close the circle
/// loads by itself. A loader must not wait for another thread that asks for its key.
///
/// Where what the loader filled in makes no sense, such as NULL with a length, the answer is
/// `FLOE_STATUS_INVALID`. Then nothing is stored, `free_data` is not called, and the next thread
/// that waits calls its loader.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_get_or_load(
    cache: *const floe_cache,
    key: *const c_void,
    key_len: usize,
    load: floe_load_fn,
    context: *mut c_void,
    value: *mut *mut floe_value,
    error: *mut i32,
) -> floe_status {
    guarded(|| {
        // SAFETY: the program's cache and key, and its place for the value.
        let (cache, key) = unsafe {
            give(value, std::ptr::null_mut(), "value")?;
            (cache::cache(cache)?, bytes(key, key_len, "key")?)
        };
        let load = load.ok_or_else(|| Failure::invalid("load is NULL"))?;
        if floe_memory::host::is_own_load(cache, key_of(key)) {
            return Err(Failure::invalid("the loader asks for the key that it loads"));
        }
        let found = cache.get_or_insert_with(key_of(key), || {
            let (data, context_of) = (std::ptr::null_mut(), std::ptr::null_mut());
            let mut loaded =
                floe_loaded { data, len: 0, charge: 0, free_data: None, context: context_of };
            // SAFETY: the program's function.
            let said = unsafe { load(context, key.as_ptr().cast(), key.len(), &mut loaded) };
            if said != 0 {
                return Err(Unloaded::Said(said));
            }
            let floe_loaded { data, len, charge, free_data, context } = loaded;
            region(data, len, "the loader's data").map_err(Unloaded::Wrong)?;
            let charge = if charge == 0 { charge_of(key, len) } else { charge };
            // SAFETY: the program gives the memory away by returning 0.
            Ok(unsafe { Value::given(data, len, charge, free_data, context) })
        });
        match found {
            // SAFETY: the program's place for the value.
            Ok(found) => unsafe { give(value, floe_value::give(found.hold(cache)), "value")? },
            Err(Unloaded::Wrong(why)) => return Err(why),
            Err(Unloaded::Said(said)) => {
                if !error.is_null() {
                    // SAFETY: the program's place for the error.
                    unsafe { error.write(said) };
                }
                let message = format!("the loader returned {said}");
                return Err(Failure::new(floe_status::LoadFailed, message));
            }
        }
        Ok(floe_status::Ok)
    })
}

/// Why a loader brings no value.
enum Unloaded {
    /// It returned this.
    Said(i32),
    /// Its value makes no sense.
    Wrong(Failure),
}

/// A key by which the cache can make its own.
fn key_of(key: &[u8]) -> &Slice {
    Slice::of(key)
}

/// Bytes that own a [`Key`] when they are to be kept.
#[derive(Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
struct Slice([u8]);

impl Slice {
    fn of(bytes: &[u8]) -> &Self {
        // SAFETY: transparent, so the same in memory.
        unsafe { &*(std::ptr::from_ref(bytes) as *const Self) }
    }
}

impl std::borrow::Borrow<Slice> for Key {
    fn borrow(&self) -> &Slice {
        Slice::of(&self.0)
    }
}

impl ToOwned for Slice {
    type Owned = Key;

    fn to_owned(&self) -> Key {
        Key(self.0.into())
    }
}
