//! Looking up: for a value that is kept, for a copy, and for a look during a call.

use std::ffi::c_void;

use crate::cache::{self, floe_cache};
use crate::error::{Failure, bytes, give, guarded};
use crate::floe_status;
use crate::value::{Asked, Value, floe_value};

/// Is shown a value, which is valid during the call.
pub type floe_read_fn =
    Option<unsafe extern "C" fn(context: *mut c_void, data: *const c_void, len: usize)>;

/// Is shown the value of one of many keys, by the key's number; valid during the call.
pub type floe_read_many_fn = Option<
    unsafe extern "C" fn(context: *mut c_void, number: usize, data: *const c_void, len: usize),
>;

/// A key of `floe_read_many`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct floe_bytes {
    /// The first byte; may be NULL if there is none.
    pub data: *const c_void,
    /// The number of bytes.
    pub len: usize,
}

/// Looks a key up and keeps its value: `*value` is to be released. Takes a lock; `floe_read` and
/// `floe_get_copy` do not. `FLOE_STATUS_NOT_FOUND` if it is not there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_get(
    cache: *const floe_cache,
    key: *const c_void,
    key_len: usize,
    value: *mut *mut floe_value,
) -> floe_status {
    guarded(|| {
        // SAFETY: the program's cache and key, and its place for the value.
        unsafe {
            give(value, std::ptr::null_mut(), "value")?;
            let (cache, key) = (cache::cache(cache)?, bytes(key, key_len, "key")?);
            let Some(held) = cache.hold(&Asked(key)) else { return Ok(floe_status::NotFound) };
            give(value, floe_value::give(held), "value")?;
        }
        Ok(floe_status::Ok)
    })
}

/// Looks a key up and copies its value to a buffer of `room` bytes. `*len` becomes the length of
/// the value, also where that is more than there is room for: then nothing is copied, and
/// `FLOE_STATUS_TOO_SMALL` returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_get_copy(
    cache: *const floe_cache,
    key: *const c_void,
    key_len: usize,
    buffer: *mut c_void,
    room: usize,
    len: *mut usize,
) -> floe_status {
    guarded(|| {
        // SAFETY: the program's cache and key, and its place for the length.
        let (cache, key) = unsafe {
            give(len, 0, "len")?;
            (cache::cache(cache)?, bytes(key, key_len, "key")?)
        };
        if buffer.is_null() && room > 0 {
            return Err(Failure::invalid(format!("buffer is NULL, but its room is {room}")));
        }
        let Some(value) = cache.get(&Asked(key)) else { return Ok(floe_status::NotFound) };
        // SAFETY: as above.
        unsafe { give(len, value.len(), "len")? };
        if value.len() > room {
            return Err(Failure::new(
                floe_status::TooSmall,
                format!("the value has {} bytes, the buffer {room}", value.len()),
            ));
        }
        if value.len() > 0 {
            // SAFETY: the value has so many bytes and the guard keeps them; the buffer has room.
            unsafe { std::ptr::copy(value.data(), buffer, value.len()) };
        }
        Ok(floe_status::Ok)
    })
}

/// Looks a key up and shows its value to a function, which may use the cache and must not throw or
/// unwind. The fastest way to read: a hit copies nothing, and with the
/// default policy takes no lock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_read(
    cache: *const floe_cache,
    key: *const c_void,
    key_len: usize,
    read: floe_read_fn,
    context: *mut c_void,
) -> floe_status {
    guarded(|| {
        // SAFETY: the program's cache and key.
        let (cache, key) = unsafe { (cache::cache(cache)?, bytes(key, key_len, "key")?) };
        let read = read.ok_or_else(|| Failure::invalid("read is NULL"))?;
        let Some(value) = cache.get(&Asked(key)) else { return Ok(floe_status::NotFound) };
        // SAFETY: the program's function; the guard keeps the value during the call.
        unsafe { read(context, value.data(), value.len()) };
        Ok(floe_status::Ok)
    })
}

/// Looks many keys up and shows the values of those that are there to a function, in order, as
/// `floe_read` does. Faster than one by one where the cache is larger than the processor's.
/// `*found`, unless it is NULL, becomes the number of keys that were there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_read_many(
    cache: *const floe_cache,
    keys: *const floe_bytes,
    count: usize,
    read: floe_read_many_fn,
    context: *mut c_void,
    found: *mut usize,
) -> floe_status {
    /// Keys that are looked up at once, so that no list of all need be made.
    const AT_ONCE: usize = 64;
    guarded(|| {
        // SAFETY: the program's cache.
        let cache = unsafe { cache::cache(cache)? };
        let read = read.ok_or_else(|| Failure::invalid("read is NULL"))?;
        if keys.is_null() && count > 0 {
            return Err(Failure::invalid(format!("keys is NULL, but there are {count}")));
        }
        if count > isize::MAX as usize / size_of::<floe_bytes>() {
            return Err(Failure::invalid(format!("count is {count}: more keys than can be")));
        }
        if !keys.is_aligned() {
            return Err(Failure::invalid("keys is not aligned as a floe_bytes is"));
        }
        let keys = match count {
            0 => &[][..],
            // SAFETY: not null, and so many keys can be read there.
            count => unsafe { std::slice::from_raw_parts(keys, count) },
        };
        // All are looked at first: after an error none has been shown.
        for (number, key) in keys.iter().enumerate() {
            // SAFETY: the program's keys.
            unsafe { bytes(key.data, key.len, &format!("key {number}"))? };
        }
        let mut there = 0;
        for (chunk, keys) in keys.chunks(AT_ONCE).enumerate() {
            let mut asked = [Asked(&[]); AT_ONCE];
            for (asked, key) in asked.iter_mut().zip(keys) {
                // SAFETY: as above.
                *asked = Asked(unsafe { bytes(key.data, key.len, "key")? });
            }
            there += cache.get_many(&asked[..keys.len()], |at, value: &Value| {
                // SAFETY: the program's function; the value is kept during the call.
                unsafe { read(context, chunk * AT_ONCE + at, value.data(), value.len()) };
            });
        }
        if !found.is_null() {
            // SAFETY: the program's place.
            unsafe { found.write(there) };
        }
        Ok(floe_status::Ok)
    })
}

/// Returns whether a key is there. No hit is counted, and the policy does not learn of it. False,
/// too, where an argument is wrong.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_contains(
    cache: *const floe_cache,
    key: *const c_void,
    key_len: usize,
) -> bool {
    crate::error::guarded_or(false, || {
        // SAFETY: the program's cache and key.
        let (cache, key) = unsafe { (cache::cache(cache)?, bytes(key, key_len, "key")?) };
        Ok(cache.contains_key(&Asked(key)))
    })
}
