//! Objects that are in no cache, and keys of handles.

use std::ffi::c_void;

use super::object::{Item, floe_host_free_fn};
use super::{borrowed, floe_handle, floe_host, host, into_raw, possible};
use crate::error::{Failure, bytes, give, guarded, guarded_or};
use crate::floe_status;

/// Makes a handle of an object that no lookup finds: it counts in the cache's usage, and is freed
/// with its last handle. The rest is as of `floe_host_insert`, but `handle` must not be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_host_stand_alone(
    host: *const floe_host,
    key: *const c_void,
    key_len: usize,
    object: *mut c_void,
    charge: usize,
    free_object: floe_host_free_fn,
    context: *mut c_void,
    handle: *mut *mut floe_handle,
) -> floe_status {
    guarded(|| {
        if handle.is_null() {
            return Err(Failure::invalid("handle is NULL"));
        }
        // SAFETY: the program's cache and key.
        let (host, key) = unsafe { (self::host(host)?, bytes(key, key_len, "key")?) };
        possible(charge)?;
        match host.cache.stand_alone(Item::new(key, object, free_object, context), (), charge) {
            // SAFETY: the program's place.
            Ok(held) => unsafe { give(handle, into_raw(held), "handle")? },
            Err(mut refused) => {
                refused.key.free = None;
                return Err(Failure::new(floe_status::Full, "objects with handles fill the cache"));
            }
        }
        Ok(floe_status::Ok)
    })
}

/// Returns the key of a handle, and writes its length to `key_len`. The bytes are valid until the
/// handle is released. NULL if `key_len` is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_host_key(
    handle: *const floe_handle,
    key_len: *mut usize,
) -> *const c_void {
    guarded_or(std::ptr::null(), || {
        // SAFETY: the program's handle.
        let owner = unsafe { borrowed(handle)? };
        let name = owner.key().name();
        // SAFETY: the program's place.
        unsafe { give(key_len, name.len(), "key_len")? };
        Ok(name.as_ptr().cast())
    })
}
