//! The cache: making it, putting in, taking out.

use std::ffi::c_void;
use std::time::Duration;

use floe_memory::InsertOptions;

use crate::error::{Failure, bytes, guarded, guarded_or, reference, region};
use crate::floe_status;
use crate::options::{self, floe_options};
use crate::value::{Asked, Inner, Key, Value, floe_free_fn};

/// A cache. All threads may use it at once, until one frees it.
pub struct floe_cache(pub(crate) Inner);

/// Makes a cache; NULL where it cannot be as described. To be freed by `floe_cache_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_cache_new(options: *const floe_options) -> *mut floe_cache {
    guarded_or(std::ptr::null_mut(), || {
        // SAFETY: the program's options.
        let cache = unsafe { options::build(options)? };
        Ok(Box::into_raw(Box::new(floe_cache(cache))))
    })
}

/// Frees a cache and, but for those that are kept, its values. No thread may use the cache then or
/// later. NULL does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_cache_free(cache: *mut floe_cache) {
    guarded(|| {
        if !cache.is_null() {
            // SAFETY: from `floe_cache_new`, and the program frees it once.
            drop(unsafe { Box::from_raw(cache) });
        }
        Ok(floe_status::Ok)
    });
}

/// The cache at a pointer from C.
///
/// # Safety
/// It is null, or of `floe_cache_new` and not freed during the call.
pub(crate) unsafe fn cache<'a>(cache: *const floe_cache) -> Result<&'a Inner, Failure> {
    // SAFETY: the caller says so.
    Ok(unsafe { &reference(cache, "cache")?.0 })
}

/// The weight of an entry, unless the program gives one.
pub(crate) fn charge_of(key: &[u8], len: usize) -> u32 {
    u32::try_from(key.len().saturating_add(len)).unwrap_or(u32::MAX)
}

/// The options of an entry that expires after so many milliseconds, or 0 for the cache's time.
fn lifetime(ms: u64) -> InsertOptions {
    match ms {
        0 => InsertOptions::new(),
        ms => InsertOptions::new().time_to_live(Duration::from_millis(ms)),
    }
}

/// Inserts a copy of a value, in place of the one that is there under the key, if any. Its charge
/// is the length of key and value.
///
/// A cache may decline an entry, by its admission or because it is too heavy; that is no error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_insert(
    cache: *const floe_cache,
    key: *const c_void,
    key_len: usize,
    data: *const c_void,
    len: usize,
) -> floe_status {
    // SAFETY: as of the program, for this function.
    unsafe { floe_insert_for(cache, key, key_len, data, len, 0, 0) }
}

/// As `floe_insert`, with a charge (0 for the length of key and value) and a time to live in
/// milliseconds (0 for the cache's).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_insert_for(
    cache: *const floe_cache,
    key: *const c_void,
    key_len: usize,
    data: *const c_void,
    len: usize,
    charge: u32,
    live_ms: u64,
) -> floe_status {
    guarded(|| {
        // SAFETY: the program's cache, key and data.
        let (cache, key, data) = unsafe {
            (self::cache(cache)?, bytes(key, key_len, "key")?, bytes(data, len, "data")?)
        };
        let charge = if charge == 0 { charge_of(key, len) } else { charge };
        cache.insert_with(Key(key.into()), Value::copied(data, charge), lifetime(live_ms));
        Ok(floe_status::Ok)
    })
}

/// Inserts memory that the program gives away. `free_data` is called once, when the value has left
/// and nobody keeps it: at once, where the cache declines it. Nothing may write the memory from now
/// on, and any thread may read and free it. A charge of 0 is the length of key and value; a time to
/// live of 0 the cache's.
///
/// On an error the memory still belongs to the program, and `free_data` is not called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_insert_given(
    cache: *const floe_cache,
    key: *const c_void,
    key_len: usize,
    data: *mut c_void,
    len: usize,
    charge: u32,
    live_ms: u64,
    free_data: floe_free_fn,
    context: *mut c_void,
) -> floe_status {
    guarded(|| {
        // SAFETY: the program's cache and key.
        let (cache, key) = unsafe { (self::cache(cache)?, bytes(key, key_len, "key")?) };
        region(data, len, "data")?;
        let charge = if charge == 0 { charge_of(key, len) } else { charge };
        // SAFETY: the program gives the memory away, as this function says.
        let value = unsafe { Value::given(data, len, charge, free_data, context) };
        cache.insert_with(Key(key.into()), value, lifetime(live_ms));
        Ok(floe_status::Ok)
    })
}

/// Removes a key. `FLOE_STATUS_NOT_FOUND` if it is not there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_remove(
    cache: *const floe_cache,
    key: *const c_void,
    key_len: usize,
) -> floe_status {
    guarded(|| {
        // SAFETY: the program's cache and key.
        let (cache, key) = unsafe { (self::cache(cache)?, bytes(key, key_len, "key")?) };
        let removed = cache.remove(&Asked(key)).is_some();
        Ok(if removed { floe_status::Ok } else { floe_status::NotFound })
    })
}

/// Removes all entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_clear(cache: *const floe_cache) -> floe_status {
    guarded(|| {
        // SAFETY: the program's cache.
        unsafe { self::cache(cache)? }.clear();
        Ok(floe_status::Ok)
    })
}

/// Changes the most entries that the cache holds. It must have been made with such a limit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_resize(cache: *const floe_cache, entries: usize) -> floe_status {
    guarded(|| {
        // SAFETY: the program's cache.
        let cache = unsafe { self::cache(cache)? };
        if cache.stats().capacity.is_none() {
            return Err(Failure::invalid("the cache was made without a capacity of entries"));
        }
        if entries >= 1 << 31 {
            return Err(Failure::invalid(format!("entries is {entries}: at most 2^31 - 1")));
        }
        cache.resize(entries);
        Ok(floe_status::Ok)
    })
}

/// Changes the most weight that the cache holds. It must have been made with such a limit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_resize_weight(cache: *const floe_cache, weight: u64) -> floe_status {
    guarded(|| {
        // SAFETY: the program's cache.
        let cache = unsafe { self::cache(cache)? };
        if cache.stats().weight_capacity.is_none() {
            return Err(Failure::invalid("the cache was made without a capacity of weight"));
        }
        cache.resize_weight(weight);
        Ok(floe_status::Ok)
    })
}

/// Frees what has left and is kept by nobody. Caches do so by themselves, in batches; this is for
/// programs that wait for their `free_data`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_reclaim(cache: *const floe_cache) -> floe_status {
    guarded(|| {
        // SAFETY: the program's cache.
        unsafe { self::cache(cache)? }.reclaim();
        Ok(floe_status::Ok)
    })
}
