//! Going through all entries.

use std::ffi::c_void;
use std::mem::MaybeUninit;

use crate::cache::{self, floe_cache};
use crate::error::{Failure, flag, guarded};
use crate::floe_status;

/// Is shown an entry, which is valid during the call. Returns whether to go on.
pub type floe_entry_fn = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        key: *const c_void,
        key_len: usize,
        data: *const c_void,
        len: usize,
    ) -> MaybeUninit<bool>,
>;

/// Shows all entries to a function, in no particular order, until it returns false. An entry that
/// stays meanwhile is shown once; one that comes or leaves may be. The function may use the cache,
/// and must not throw or unwind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_for_each(
    cache: *const floe_cache,
    show: floe_entry_fn,
    context: *mut c_void,
) -> floe_status {
    guarded(|| {
        // SAFETY: the program's cache.
        let cache = unsafe { cache::cache(cache)? };
        let show = show.ok_or_else(|| Failure::invalid("show is NULL"))?;
        for item in cache {
            let (key, value) = (&item.key().0, item.value());
            // SAFETY: the program's function; the item keeps the entry during the call.
            let goes_on =
                unsafe { show(context, key.as_ptr().cast(), key.len(), value.data(), value.len()) };
            if !flag(goes_on) {
                break;
            }
        }
        Ok(floe_status::Ok)
    })
}
