//! The C interface of the cache: creation, insertion, lookup, loading, iteration, statistics and
//! removal.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::time::Duration;

use floe_memory::{InsertOptions, Stats};

use crate::options::{self, floe_options};
use crate::value::{Asked, Inner, Kept, Key, Value, floe_bytes, floe_free_fn, floe_value, keys_at};
use crate::{
    Failure, bytes, flag, floe_status, give, guarded, guarded_or, reference, region, write_prefix,
};

/// A cache. All threads may use it at once, until one frees it.
pub struct floe_cache(pub(crate) Inner);

/// Creates a cache, to be freed by `floe_cache_free`. Returns NULL if the options are invalid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_cache_new(options: *const floe_options) -> *mut floe_cache {
    guarded_or(std::ptr::null_mut(), || {
        // SAFETY: the program's options.
        let cache = unsafe { options::build(options)? };
        Ok(Box::into_raw(Box::new(floe_cache(cache))))
    })
}

/// Frees a cache and its values, except values with references. No thread may use the cache during
/// the call or later. NULL does nothing.
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

/// Returns the cache that a pointer from C points to.
///
/// # Safety
/// The pointer is null, or comes from `floe_cache_new` and is not freed during the call.
pub(crate) unsafe fn cache<'a>(cache: *const floe_cache) -> Result<&'a Inner, Failure> {
    // SAFETY: the caller says so.
    Ok(unsafe { &reference(cache, "cache")?.0 })
}

/// Returns the default weight of an entry: the length of key and value.
pub(crate) fn charge_of(key: &[u8], len: usize) -> u64 {
    key.len().saturating_add(len) as u64
}

/// Returns the options of an entry that expires after `ms` milliseconds. 0 means the cache's own
/// time to live.
fn lifetime(ms: u64) -> InsertOptions {
    match ms {
        0 => InsertOptions::new(),
        ms => InsertOptions::new().time_to_live(Duration::from_millis(ms)),
    }
}

/// Inserts a copy of a value, replacing the present value of the key, if there is one. The charge
/// is the length of key and value.
///
/// The cache may decline an entry because of its admission policy, or because the entry is too
/// heavy. This is no error.
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

/// Inserts a copy of a value, like `floe_insert`, with a charge (0 for the length of key and value)
/// and a time to live in milliseconds (0 for that of the cache).
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
        let charge = if charge == 0 { charge_of(key, len) } else { charge.into() };
        cache.insert_with(Key(key.into()), Value::copied(data, charge), lifetime(live_ms));
        Ok(floe_status::Ok)
    })
}

/// Inserts a value without copying it: the cache takes ownership of the memory. `free_data` is
/// called once, when the value has left the cache and has no references. If the cache declines the
/// value, that is at once. The memory must not be written any more, and any thread may read and
/// free it. A charge of 0 stands for the length of key and value, a time to live of 0 for that of
/// the cache.
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
        let charge = if charge == 0 { charge_of(key, len) } else { charge.into() };
        // SAFETY: the program gives the memory away, as this function says.
        let value = unsafe { Value::given(data, len, charge, free_data, context) };
        cache.insert_with(Key(key.into()), value, lifetime(live_ms));
        Ok(floe_status::Ok)
    })
}

/// Removes a key. Returns `FLOE_STATUS_NOT_FOUND` if the key is absent.
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

/// Changes the capacity in entries. The cache must have been created with such a capacity.
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

/// Changes the capacity in weight. The cache must have been created with such a capacity.
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

/// Frees all values that have left the cache and have no references. Caches do this by themselves,
/// in batches; the function is for programs that wait for their `free_data`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_reclaim(cache: *const floe_cache) -> floe_status {
    guarded(|| {
        // SAFETY: the program's cache.
        unsafe { self::cache(cache)? }.reclaim();
        Ok(floe_status::Ok)
    })
}

/// The value that a loader returns.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct floe_loaded {
    /// The value. Belongs to Floe once the loader has returned 0.
    pub data: *mut c_void,
    /// Length of the value in bytes.
    pub len: usize,
    /// Charge of the value; 0 for the length of key and value.
    pub charge: u32,
    /// Function that frees the value, as for `floe_insert_given`; NULL for a value that need not be
    /// freed.
    pub free_data: floe_free_fn,
    /// The last argument of `free_data`.
    pub context: *mut c_void,
}

/// Function that loads the value of a key. Returns 0 when `*loaded` is filled in, or an error of
/// the program's. It may use the cache, and load other keys; for its own key `floe_get_or_load`
/// answers with `FLOE_STATUS_INVALID`. It must not throw or unwind.
pub type floe_load_fn = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        key: *const c_void,
        key_len: usize,
        loaded: *mut floe_loaded,
    ) -> i32,
>;

/// Looks a key up and loads it if it is absent, once for all threads that request it at the same
/// time. The caller must release `*value`. If the loader fails, returns `FLOE_STATUS_LOAD_FAILED`
/// and sets `*error`, unless NULL, to the loader's result.
///
/// Loads that need each other's keys do not deadlock: the load that would close the cycle does not
/// wait but loads by itself. A loader must not wait for another thread that requests its key.
///
/// If the loader returns an invalid value, such as NULL with a length, the result is
/// `FLOE_STATUS_INVALID`. Then nothing is stored, `free_data` is not called, and the next waiting
/// thread calls its loader.
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
            (self::cache(cache)?, bytes(key, key_len, "key")?)
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
            let charge = if charge == 0 { charge_of(key, len) } else { charge.into() };
            // SAFETY: the program gives the memory away by returning 0.
            Ok(unsafe { Value::given(data, len, charge, free_data, context) })
        });
        match found {
            // SAFETY: the program's place for the value.
            Ok(found) => unsafe {
                give(value, floe_value::give(Kept::Held(found.hold(cache))), "value")?
            },
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

/// Reason why a loader returned no value.
enum Unloaded {
    /// The loader returned this error code.
    Said(i32),
    /// The loader filled in an invalid value.
    Wrong(Failure),
}

/// Returns the key in a form from which the cache can create an owned [`Key`].
fn key_of(key: &[u8]) -> &Slice {
    Slice::of(key)
}

/// Borrowed bytes of a key, which become an owned [`Key`] when the cache stores them.
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

/// Function that receives a value, which is valid during the call.
pub type floe_read_fn =
    Option<unsafe extern "C" fn(context: *mut c_void, data: *const c_void, len: usize)>;

/// Function that receives the value of one of many keys, by the key's number. The value is valid
/// during the call.
pub type floe_read_many_fn = Option<
    unsafe extern "C" fn(context: *mut c_void, number: usize, data: *const c_void, len: usize),
>;

/// Looks a key up and returns a reference to its value in `*value`, which the caller must release.
/// Takes a lock; `floe_read` and `floe_get_copy` do not. Returns `FLOE_STATUS_NOT_FOUND` if the key
/// is absent.
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
            let (cache, key) = (self::cache(cache)?, bytes(key, key_len, "key")?);
            let Some(held) = cache.hold(&Asked(key)) else { return Ok(floe_status::NotFound) };
            give(value, floe_value::give(Kept::Held(held)), "value")?;
        }
        Ok(floe_status::Ok)
    })
}

/// Looks a key up and copies its value to a buffer of `room` bytes. Sets `*len` to the length of
/// the value. If the buffer is too small, nothing is copied, and the result is
/// `FLOE_STATUS_TOO_SMALL`.
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
            (self::cache(cache)?, bytes(key, key_len, "key")?)
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
                format!("the value has {} bytes, but the buffer only {room}", value.len()),
            ));
        }
        if value.len() > 0 {
            // SAFETY: the value has so many bytes and the guard keeps them; the buffer has room.
            unsafe { std::ptr::copy(value.data(), buffer, value.len()) };
        }
        Ok(floe_status::Ok)
    })
}

/// Looks a key up and passes its value to a function, which may use the cache and must not throw or
/// unwind. The fastest way to read: a hit copies nothing, and with the default policy takes no
/// lock.
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
        let (cache, key) = unsafe { (self::cache(cache)?, bytes(key, key_len, "key")?) };
        let read = read.ok_or_else(|| Failure::invalid("read is NULL"))?;
        let Some(value) = cache.get(&Asked(key)) else { return Ok(floe_status::NotFound) };
        // SAFETY: the program's function; the guard keeps the value during the call.
        unsafe { read(context, value.data(), value.len()) };
        Ok(floe_status::Ok)
    })
}

/// Looks many keys up and passes the values found to a function, in order, like `floe_read`. Faster
/// than single lookups if the cache is larger than the processor's caches. Sets `*found`, unless it
/// is NULL, to the number of keys found.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_read_many(
    cache: *const floe_cache,
    keys: *const floe_bytes,
    count: usize,
    read: floe_read_many_fn,
    context: *mut c_void,
    found: *mut usize,
) -> floe_status {
    /// Number of keys that are looked up as one batch, so that no list of all keys is needed.
    const AT_ONCE: usize = 64;
    guarded(|| {
        // SAFETY: the program's cache.
        let cache = unsafe { self::cache(cache)? };
        let read = read.ok_or_else(|| Failure::invalid("read is NULL"))?;
        // All are looked at first: after an error none has been shown.
        // SAFETY: the program's keys.
        let keys = unsafe { keys_at(keys, count)? };
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

/// Returns whether a key is present. No hit is counted, and the eviction order does not change.
/// Returns false if an argument is invalid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_contains(
    cache: *const floe_cache,
    key: *const c_void,
    key_len: usize,
) -> bool {
    guarded_or(false, || {
        // SAFETY: the program's cache and key.
        let (cache, key) = unsafe { (self::cache(cache)?, bytes(key, key_len, "key")?) };
        Ok(cache.contains_key(&Asked(key)))
    })
}

/// Function that receives an entry, which is valid during the call. Returns whether to continue.
pub type floe_entry_fn = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        key: *const c_void,
        key_len: usize,
        data: *const c_void,
        len: usize,
    ) -> MaybeUninit<bool>,
>;

/// Passes all entries to a function, in no particular order, until it returns false. An entry that
/// is present throughout is passed once; one inserted or removed meanwhile may be passed. The
/// function may use the cache, and must not throw or unwind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_for_each(
    cache: *const floe_cache,
    show: floe_entry_fn,
    context: *mut c_void,
) -> floe_status {
    guarded(|| {
        // SAFETY: the program's cache.
        let cache = unsafe { self::cache(cache)? };
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

/// Counters of a cache since it was created, and the size of its content. Counts of other threads
/// may be a moment late. A later version may have more fields at the end: see `floe_cache_stats`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct floe_stats {
    /// Lookups that found their key.
    pub hits: u64,
    /// Lookups that did not find their key.
    pub misses: u64,
    /// Hits on frozen entries, a part of `hits`.
    pub frozen_hits: u64,
    /// Entries that were inserted.
    pub insertions: u64,
    /// Values that replaced another value.
    pub replacements: u64,
    /// Entries that were not inserted because there was no room for them.
    pub rejections: u64,
    /// Entries that were evicted to make room.
    pub evictions: u64,
    /// Entries that expired.
    pub expirations: u64,
    /// Entries that were removed.
    pub removals: u64,
    /// Loads that were started.
    pub loads: u64,
    /// Loads that failed, a part of `loads`.
    pub failed_loads: u64,
    /// Number of entries in the cache.
    pub entries: u64,
    /// Sum of the charges of the entries; their number in a cache without a weight capacity.
    pub weight: u64,
    /// Number of frozen entries, a part of `entries`.
    pub frozen: u64,
    /// Entries that have left the cache and are not freed yet, including those with references.
    pub waiting: u64,
    /// Memory of the cache and its entries in bytes, without memory that keys and values own.
    pub memory_bytes: u64,
}

/// Fills in the counters of a cache. `size` is `sizeof(floe_stats)`: a program compiled with fewer
/// fields gets only those. Visits all threads and locks: call it once a second rather than once a
/// request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_cache_stats(
    cache: *const floe_cache,
    stats: *mut floe_stats,
    size: usize,
) -> floe_status {
    guarded(|| {
        // SAFETY: the program's cache and place.
        unsafe { write_stats(self::cache(cache)?.stats(), stats, size)? };
        Ok(floe_status::Ok)
    })
}

/// Writes statistics to memory of the C program.
///
/// # Safety
/// The pointer is null, or `size` bytes can be written there.
pub(crate) unsafe fn write_stats(
    counted: Stats,
    stats: *mut floe_stats,
    size: usize,
) -> Result<(), Failure> {
    let all = floe_stats {
        hits: counted.hits,
        misses: counted.misses,
        frozen_hits: counted.frozen_hits,
        insertions: counted.insertions,
        replacements: counted.replacements,
        rejections: counted.rejections,
        evictions: counted.evictions,
        expirations: counted.expirations,
        removals: counted.removals,
        loads: counted.loads,
        failed_loads: counted.failed_loads,
        entries: counted.entries,
        weight: counted.weight,
        frozen: counted.frozen,
        waiting: counted.waiting,
        memory_bytes: counted.memory_bytes,
    };
    // SAFETY: the caller says so.
    unsafe { write_prefix(&all, stats, size, "stats") }
}

/// Returns the number of entries, 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_len(cache: *const floe_cache) -> usize {
    // SAFETY: the program's cache.
    guarded_or(0, || Ok(unsafe { self::cache(cache)? }.len()))
}
