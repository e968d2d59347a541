//! The C interface of the cache in memory and on flash: lookups that block and lookups that do not,
//! insertion, removal, statistics and closing.

use std::ffi::{c_uint, c_void};
use std::fmt;
use std::future::Future;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use ::floe_hybrid::{Declined, Hybrid, InsertOptions, Inserted, Opened, Removed, Stats, figures};
use bytes::Bytes;

use crate::value::{Kept, Value, floe_bytes, floe_free_fn, floe_value, keys_at};
use crate::{
    Failure, bytes, floe_status, give, guarded, guarded_or, reference, region, write_prefix,
};

/// The cache of the Rust library, with keys and values of bytes.
pub(crate) type Inner = Hybrid<Vec<u8>, Bytes>;

/// A cache in memory and on flash. All threads may use it at once, until one frees it. It belongs
/// to the process that opened it: a child of `fork` may only call `floe_hybrid_free`.
pub struct floe_hybrid {
    pub(crate) cache: Inner,
    /// The process that opened the cache.
    process: u32,
}

impl floe_hybrid {
    pub(crate) fn give(cache: Inner) -> *mut Self {
        Box::into_raw(Box::new(Self { cache, process: std::process::id() }))
    }
}

/// Returns the cache that a pointer from C points to.
///
/// # Safety
/// The pointer is null, or comes from `floe_hybrid_open` and is not freed during the call.
pub(crate) unsafe fn hybrid<'a>(cache: *const floe_hybrid) -> Result<&'a Inner, Failure> {
    // SAFETY: the caller says so.
    Ok(unsafe { &reference(cache, "cache")?.cache })
}

/// Returns the failure of a call whose drive has failed.
fn flash_failed(error: &std::io::Error) -> Failure {
    Failure::new(floe_status::FlashFailed, error.to_string())
}

/// Closes a cache as `floe_hybrid_close` does, and frees it; errors of closing are lost. Values
/// with references stay. No thread may use the cache during the call or later. In a child of
/// `fork` the cache is not closed. NULL does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_hybrid_free(cache: *mut floe_hybrid) {
    guarded(|| {
        if cache.is_null() {
            return Ok(floe_status::Ok);
        }
        // SAFETY: from `floe_hybrid_open`, and the program frees it once.
        let cache = unsafe { Box::from_raw(cache) };
        if cache.process == std::process::id() {
            let _ = cache.cache.close(); // the program had `floe_hybrid_close` to learn of an error
        } else {
            std::mem::forget(cache); // a thread that is no more may have locked its parts
        }
        Ok(floe_status::Ok)
    });
}

/// Writes the objects in memory to flash and closes the cache, so that the next opening finds all
/// of them. Afterwards only objects in memory are found, until the cache is freed. Returns
/// `FLOE_STATUS_FLASH_FAILED` if a drive fails; the next opening then finds what it can. Closing
/// twice is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_hybrid_close(cache: *const floe_hybrid) -> floe_status {
    guarded(|| {
        // SAFETY: the program's cache.
        let closed = unsafe { hybrid(cache)? }.close();
        closed.map_err(|error| flash_failed(&error))?;
        Ok(floe_status::Ok)
    })
}

/// The state in which a cache was found when it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum floe_opened {
    /// There was none: it was created.
    New = 0,
    /// It had been closed.
    Clean = 1,
    /// It had not been closed: what had been written to flash was recovered.
    Recovered = 2,
}

/// Sets `*opened` to the state in which the cache was found. Of several drives, one that was
/// recovered counts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_hybrid_opened(
    cache: *const floe_hybrid,
    opened: *mut floe_opened,
) -> floe_status {
    guarded(|| {
        // SAFETY: the program's cache.
        let state = match unsafe { hybrid(cache)? }.opened() {
            Opened::New => floe_opened::New,
            Opened::Clean => floe_opened::Clean,
            Opened::Recovered => floe_opened::Recovered,
        };
        // SAFETY: the program's place.
        unsafe { give(opened, state, "opened")? };
        Ok(floe_status::Ok)
    })
}

/// Looks a key up in memory and on flash, and returns a reference to its value in `*value`, which
/// the caller must release. Blocks while flash is read; `floe_hybrid_lookup_begin` does not. The
/// value is not copied: the reference keeps the memory that it was read to. Returns
/// `FLOE_STATUS_NOT_FOUND` if the key is absent, and also if its object is damaged or its drive has
/// failed: see `floe_hybrid_flash_status`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_hybrid_get(
    cache: *const floe_hybrid,
    key: *const c_void,
    key_len: usize,
    value: *mut *mut floe_value,
) -> floe_status {
    // SAFETY: as of the program, for this function.
    unsafe { look_up(cache, key, key_len, value, Inner::get_blocking) }
}

/// Looks a key up like `floe_hybrid_get`, but without a trace: counts no hit and no use, and brings
/// nothing to memory. For scans.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_hybrid_peek(
    cache: *const floe_hybrid,
    key: *const c_void,
    key_len: usize,
    value: *mut *mut floe_value,
) -> floe_status {
    // SAFETY: as of the program, for this function.
    unsafe { look_up(cache, key, key_len, value, Inner::peek_blocking) }
}

/// # Safety
/// As for `floe_hybrid_get`.
unsafe fn look_up(
    cache: *const floe_hybrid,
    key: *const c_void,
    key_len: usize,
    value: *mut *mut floe_value,
    find: impl FnOnce(&Inner, &[u8]) -> Option<Bytes>,
) -> floe_status {
    guarded(|| {
        // SAFETY: the program's cache and key, and its place for the value.
        let (cache, key) = unsafe {
            give(value, std::ptr::null_mut(), "value")?;
            (hybrid(cache)?, bytes(key, key_len, "key")?)
        };
        let Some(found) = find(cache, key) else { return Ok(floe_status::NotFound) };
        // SAFETY: as above.
        unsafe { give(value, floe_value::give(Kept::Bytes(found)), "value")? };
        Ok(floe_status::Ok)
    })
}

/// Returns whether memory or flash has an object of a key, without reading flash: true for about
/// one absent key in some thousands, too. Returns false if an argument is invalid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_hybrid_contains(
    cache: *const floe_hybrid,
    key: *const c_void,
    key_len: usize,
) -> bool {
    guarded_or(false, || {
        // SAFETY: the program's cache and key.
        let (cache, key) = unsafe { (hybrid(cache)?, bytes(key, key_len, "key")?) };
        Ok(cache.contains(key))
    })
}

/// The places where a cache may keep an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum floe_placement {
    /// Memory, and flash once memory evicts the object.
    Both = 0,
    /// Memory, and flash when the cache is closed. For objects that are rarely used again.
    NotAdmitted = 1,
    /// Memory alone.
    MemoryOnly = 2,
    /// Flash at once, if its admission agrees. For objects that are not used soon.
    ToFlash = 3,
}

const _: () = assert!(size_of::<floe_placement>() == size_of::<c_uint>());

/// Returns the options of an object. C passes the placement as an enum, which may be any number. 0
/// milliseconds stand for the cache's time to live.
fn insert_options(
    placement: MaybeUninit<floe_placement>,
    live_ms: u64,
) -> Result<InsertOptions, Failure> {
    // SAFETY: C has passed an integer of this size.
    let number = unsafe { placement.as_ptr().cast::<c_uint>().read() };
    let options = match live_ms {
        0 => InsertOptions::new(),
        ms => InsertOptions::new().time_to_live(Duration::from_millis(ms)),
    };
    let all = [
        (floe_placement::Both, options),
        (floe_placement::NotAdmitted, options.do_not_admit()),
        (floe_placement::MemoryOnly, options.memory_only()),
        (floe_placement::ToFlash, options.to_flash()),
    ];
    let found = all.into_iter().find(|(named, _)| *named as c_uint == number);
    found.map(|(_, options)| options).ok_or_else(|| {
        Failure::invalid(format!("placement is {}: at most 3", number.cast_signed()))
    })
}

/// The place of an object after its insertion, or the reason why the cache did not keep it. Above
/// `FLOE_INSERTED_TO_FLASH` it was declined, and an older object of the key was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum floe_inserted {
    /// In memory. The object goes to flash when memory evicts it, unless its placement says
    /// otherwise.
    InMemory = 0,
    /// On its way to flash: its placement says so, or it is too large for memory.
    ToFlash = 1,
    /// Declined: larger than an eighth of the drive or than 1 GiB, or its key has more than 65,535
    /// bytes.
    TooLarge = 2,
    /// Declined: too large for memory, and its placement keeps it off flash.
    TooLargeForMemory = 3,
    /// Declined: the drive is behind, and the cache was opened not to wait for it.
    Behind = 4,
    /// Declined: another call changed the key meanwhile.
    Superseded = 5,
    /// Declined: the object was for flash, which has failed or is closed.
    FlashEnded = 6,
    /// Declined: the write budget is short.
    OverBudget = 7,
    /// Declined by the admission: the object was requested too seldom.
    Unpopular = 8,
    /// Declined by the admission: writes cost the reads too much.
    WriteCost = 9,
    /// Declined by the admission: the objects in use fit into memory.
    FitsMemory = 10,
    /// Declined for a reason that this version cannot name.
    Other = 11,
}

impl From<Inserted> for floe_inserted {
    fn from(inserted: Inserted) -> Self {
        let reason = match inserted {
            Inserted::InMemory => return Self::InMemory,
            Inserted::ToFlash => return Self::ToFlash,
            Inserted::Declined(reason) => reason,
            _ => return Self::Other,
        };
        match reason {
            Declined::TooLarge => Self::TooLarge,
            Declined::TooLargeForMemory => Self::TooLargeForMemory,
            Declined::Behind => Self::Behind,
            Declined::Superseded => Self::Superseded,
            Declined::FlashEnded => Self::FlashEnded,
            Declined::OverBudget => Self::OverBudget,
            Declined::Unpopular => Self::Unpopular,
            Declined::WriteCost => Self::WriteCost,
            Declined::FitsMemory => Self::FitsMemory,
            _ => Self::Other,
        }
    }
}

/// Inserts a value and answers with its place.
///
/// # Safety
/// `inserted` is null or can be written to.
unsafe fn insert(
    cache: &Inner,
    key: &[u8],
    value: Bytes,
    options: InsertOptions,
    inserted: *mut floe_inserted,
) -> floe_status {
    let answer = cache.insert_with(key.to_vec(), value, options);
    if !inserted.is_null() {
        // SAFETY: the caller says so.
        unsafe { inserted.write(answer.into()) };
    }
    floe_status::Ok
}

/// Inserts a copy of a value, replacing the object of the key, if there is one. Sets `*inserted`,
/// unless it is NULL, to the place of the object; a declined object is no error. Blocks while
/// insertions are faster than the drive, unless the cache was opened not to wait. A time to live
/// of 0 milliseconds stands for that of the cache.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_hybrid_insert(
    cache: *const floe_hybrid,
    key: *const c_void,
    key_len: usize,
    data: *const c_void,
    len: usize,
    placement: MaybeUninit<floe_placement>,
    live_ms: u64,
    inserted: *mut floe_inserted,
) -> floe_status {
    guarded(|| {
        // SAFETY: the program's cache, key and data.
        let (cache, key, data) =
            unsafe { (hybrid(cache)?, bytes(key, key_len, "key")?, bytes(data, len, "data")?) };
        let options = insert_options(placement, live_ms)?;
        // SAFETY: the program's place.
        Ok(unsafe { insert(cache, key, Bytes::copy_from_slice(data), options, inserted) })
    })
}

/// Memory that the program has given away, as the bytes of a value.
struct Given(Value);

impl AsRef<[u8]> for Given {
    fn as_ref(&self) -> &[u8] {
        if self.0.len() == 0 {
            return &[];
        }
        // SAFETY: the program gave so many bytes, which stay until the value is dropped.
        unsafe { std::slice::from_raw_parts(self.0.data().cast::<u8>(), self.0.len()) }
    }
}

/// Inserts a value like `floe_hybrid_insert`, but without copying it: the cache takes ownership of
/// the memory, as `floe_insert_given` does, and calls `free_data` once, when neither the cache nor
/// a reference has the value. It may be called before the function returns.
///
/// On an error the memory still belongs to the program, and `free_data` is not called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_hybrid_insert_given(
    cache: *const floe_hybrid,
    key: *const c_void,
    key_len: usize,
    data: *mut c_void,
    len: usize,
    placement: MaybeUninit<floe_placement>,
    live_ms: u64,
    free_data: floe_free_fn,
    context: *mut c_void,
    inserted: *mut floe_inserted,
) -> floe_status {
    guarded(|| {
        // SAFETY: the program's cache and key.
        let (cache, key) = unsafe { (hybrid(cache)?, bytes(key, key_len, "key")?) };
        region(data, len, "data")?;
        let options = insert_options(placement, live_ms)?;
        // SAFETY: the program gives the memory away, as this function says.
        let given = Given(unsafe { Value::given(data, len, 0, free_data, context) });
        // SAFETY: the program's place.
        Ok(unsafe { insert(cache, key, Bytes::from_owner(given), options, inserted) })
    })
}

/// Removes a key, if it is there. A restart after a loss of power may bring the object back until
/// `floe_hybrid_sync` has returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_hybrid_remove(
    cache: *const floe_hybrid,
    key: *const c_void,
    key_len: usize,
) -> floe_status {
    guarded(|| {
        // SAFETY: the program's cache and key.
        let (cache, key) = unsafe { (hybrid(cache)?, bytes(key, key_len, "key")?) };
        cache.remove(key);
        Ok(floe_status::Ok)
    })
}

/// Removes a key, and waits until no restart can bring its object back. Returns
/// `FLOE_STATUS_FLASH_FAILED` if the object is gone, but the drive has failed and a restart may
/// bring it back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_hybrid_remove_durably(
    cache: *const floe_hybrid,
    key: *const c_void,
    key_len: usize,
) -> floe_status {
    guarded(|| {
        // SAFETY: the program's cache and key.
        let (cache, key) = unsafe { (hybrid(cache)?, bytes(key, key_len, "key")?) };
        match cache.remove_durably(key) {
            Removed::NotDurable(error) => Err(flash_failed(&error)),
            _ => Ok(floe_status::Ok),
        }
    })
}

/// Removes all objects, in a time that does not depend on their number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_hybrid_clear(cache: *const floe_hybrid) -> floe_status {
    guarded(|| {
        // SAFETY: the program's cache.
        let cleared = unsafe { hybrid(cache)? }.clear();
        cleared.map_err(|error| flash_failed(&error))?;
        Ok(floe_status::Ok)
    })
}

/// Makes all earlier removals and replacements durable, and the objects that are on their way to
/// flash. Objects that are in memory alone are not written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_hybrid_sync(cache: *const floe_hybrid) -> floe_status {
    guarded(|| {
        // SAFETY: the program's cache.
        let synced = unsafe { hybrid(cache)? }.sync();
        synced.map_err(|error| flash_failed(&error))?;
        Ok(floe_status::Ok)
    })
}

/// Returns `FLOE_STATUS_OK` while all drives work, and otherwise `FLOE_STATUS_FLASH_FAILED`;
/// `floe_error_message` then names the drives that have failed, and why. The cache continues in
/// memory and on the others. Visits all threads, as `floe_hybrid_stats` does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_hybrid_flash_status(cache: *const floe_hybrid) -> floe_status {
    guarded(|| {
        // SAFETY: the program's cache.
        match unsafe { hybrid(cache)? }.stats().flash.failure {
            Some(failure) => Err(Failure::new(floe_status::FlashFailed, failure)),
            None => Ok(floe_status::Ok),
        }
    })
}

/// Opens the files of failed drives again. Memory and the other drives serve meanwhile. Blocks for
/// as long as an opening after a crash. Returns `FLOE_STATUS_FLASH_FAILED` if a drive cannot be
/// opened; the call can be repeated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_hybrid_reopen_flash(cache: *const floe_hybrid) -> floe_status {
    guarded(|| {
        // SAFETY: the program's cache.
        let reopened = unsafe { hybrid(cache)? }.reopen_flash();
        reopened.map_err(|error| Failure::new(floe_status::FlashFailed, error.to_string()))?;
        Ok(floe_status::Ok)
    })
}

/// A lookup of one or more keys that is under way or has ended. One thread at a time may use it,
/// and not always the same one. It may outlive the cache, whose files stay locked until then.
pub struct floe_hybrid_lookup(State);

type Values = Vec<Option<Bytes>>;

enum State {
    Reading(Pin<Box<dyn Future<Output = Values> + Send>>),
    Ended(Values),
}

impl fmt::Debug for floe_hybrid_lookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("floe_hybrid_lookup").field(&matches!(self.0, State::Ended(_))).finish()
    }
}

/// Wakes the thread that waits for a lookup.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl floe_hybrid_lookup {
    /// Advances the lookup. Returns whether it has ended.
    fn poll(&mut self, waker: &Waker) -> bool {
        let State::Reading(reading) = &mut self.0 else { return true };
        match reading.as_mut().poll(&mut Context::from_waker(waker)) {
            Poll::Ready(values) => {
                self.0 = State::Ended(values);
                true
            }
            Poll::Pending => false,
        }
    }

    /// Blocks until the lookup has ended.
    fn wait(&mut self) {
        if self.poll(Waker::noop()) {
            return;
        }
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        while !self.poll(&waker) {
            thread::park();
        }
    }
}

/// Returns the lookup that a pointer from C points to.
///
/// # Safety
/// The pointer is null, or comes from `floe_hybrid_lookup_begin`, and no other thread uses the
/// lookup.
unsafe fn lookup_at<'a>(
    lookup: *mut floe_hybrid_lookup,
) -> Result<&'a mut floe_hybrid_lookup, Failure> {
    // SAFETY: the caller says so.
    unsafe { lookup.as_mut() }.ok_or_else(|| Failure::invalid("lookup is NULL"))
}

/// Begins to look up many keys, which are copied, and returns the lookup in `*lookup`, to be freed
/// by `floe_hybrid_lookup_free`. All reads of flash are submitted at once, before the function
/// returns. Values found on flash are not copied to memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_hybrid_lookup_begin(
    cache: *const floe_hybrid,
    keys: *const floe_bytes,
    count: usize,
    lookup: *mut *mut floe_hybrid_lookup,
) -> floe_status {
    guarded(|| {
        // SAFETY: the program's cache and keys, and its place for the lookup.
        let (cache, keys) = unsafe {
            give(lookup, std::ptr::null_mut(), "lookup")?;
            (hybrid(cache)?.clone(), keys_at(keys, count)?)
        };
        let mut copied = Vec::with_capacity(keys.len());
        for key in keys {
            // SAFETY: as above.
            copied.push(unsafe { bytes(key.data, key.len, "key")? }.to_vec());
        }
        let reading = Box::pin(async move {
            let keys: Vec<&[u8]> = copied.iter().map(Vec::as_slice).collect();
            cache.get_many(&keys).await
        });
        let mut begun = Box::new(floe_hybrid_lookup(State::Reading(reading)));
        begun.poll(Waker::noop()); // submits the reads
        // SAFETY: the program's place.
        unsafe { give(lookup, Box::into_raw(begun), "lookup")? };
        Ok(floe_status::Ok)
    })
}

/// Returns whether a lookup has ended, without blocking. A lookup of keys that are in memory or
/// absent has ended at once. Returns false for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_hybrid_lookup_is_ready(lookup: *mut floe_hybrid_lookup) -> bool {
    // SAFETY: the program's lookup.
    guarded_or(false, || Ok(unsafe { lookup_at(lookup)? }.poll(Waker::noop())))
}

/// Blocks until a lookup has ended. Several lookups may be waited for one after the other: their
/// reads are in flight together.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_hybrid_lookup_wait(lookup: *mut floe_hybrid_lookup) -> floe_status {
    guarded(|| {
        // SAFETY: the program's lookup.
        unsafe { lookup_at(lookup)? }.wait();
        Ok(floe_status::Ok)
    })
}

/// Returns a reference to the value of the key of this number, from 0 on, in `*value`, which the
/// caller must release; it may outlive the lookup. Returns `FLOE_STATUS_NOT_FOUND` if the key is
/// absent, and `FLOE_STATUS_INVALID` if the lookup has not ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_hybrid_lookup_value(
    lookup: *const floe_hybrid_lookup,
    number: usize,
    value: *mut *mut floe_value,
) -> floe_status {
    guarded(|| {
        // SAFETY: the program's lookup, and its place for the value.
        let lookup = unsafe {
            give(value, std::ptr::null_mut(), "value")?;
            reference(lookup, "lookup")?
        };
        let State::Ended(values) = &lookup.0 else {
            return Err(Failure::invalid("the lookup has not ended: wait for it first"));
        };
        let found = values.get(number).ok_or_else(|| {
            Failure::invalid(format!("number is {number}: the lookup has {} keys", values.len()))
        })?;
        let Some(found) = found else { return Ok(floe_status::NotFound) };
        // SAFETY: as above.
        unsafe { give(value, floe_value::give(Kept::Bytes(found.clone())), "value")? };
        Ok(floe_status::Ok)
    })
}

/// Frees a lookup, also one that has not ended. NULL does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_hybrid_lookup_free(lookup: *mut floe_hybrid_lookup) {
    guarded(|| {
        if !lookup.is_null() {
            // SAFETY: from `floe_hybrid_lookup_begin`, and the program frees it once.
            drop(unsafe { Box::from_raw(lookup) });
        }
        Ok(floe_status::Ok)
    });
}

/// Figures of a cache in memory and on flash: counters since it was opened, and levels. Over all
/// drives. A later version may have more fields at the end: see `floe_hybrid_stats`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct floe_hybrid_figures {
    /// Lookups that found the object in memory.
    pub memory_hits: u64,
    /// Lookups that found the object on flash.
    pub flash_hits: u64,
    /// Lookups that found the object neither in memory nor on flash.
    pub misses: u64,
    /// Objects stored in memory, copies from flash included.
    pub memory_insertions: u64,
    /// Objects written to flash after leaving memory.
    pub flash_insertions: u64,
    /// Objects that left memory for others; flash may have them.
    pub memory_evictions: u64,
    /// Objects that expired in memory.
    pub memory_expirations: u64,
    /// Objects evicted with their segment, because they had not been used.
    pub flash_evictions: u64,
    /// Used objects evicted with their segment, because there was no room to keep them.
    pub flash_used_evictions: u64,
    /// Objects lost to a newer object whose key has the same tag in the index.
    pub flash_collisions: u64,
    /// Objects appended again when their segment was evicted, because they had been used.
    pub reinsertions: u64,
    /// Objects that memory evicted and whose options keep them off flash.
    pub declined_by_options: u64,
    /// Objects not written to flash because the drive was too slow.
    pub declined_behind: u64,
    /// Objects not written to flash because they were too large.
    pub declined_too_large: u64,
    /// Objects not written to flash because the flash had failed.
    pub declined_failed: u64,
    /// Objects not written to flash because the write budget was short.
    pub declined_over_budget: u64,
    /// Objects not written to flash because they were requested too seldom.
    pub declined_unpopular: u64,
    /// Objects not written to flash because writes slowed reads too much.
    pub declined_write_cost: u64,
    /// Objects not written to flash because the objects in use fit into memory.
    pub declined_fits_memory: u64,
    /// Objects not written to flash because their key was changed meanwhile.
    pub superseded: u64,
    /// Reads of flash for lookups.
    pub flash_reads: u64,
    /// Bytes read from flash for lookups, and for objects that are kept.
    pub flash_read_bytes: u64,
    /// Reads of flash that failed.
    pub failed_reads: u64,
    /// Records read whose checksum did not match.
    pub damaged_records: u64,
    /// Values read that could not be decoded.
    pub undecoded_values: u64,
    /// Reads of flash that found the record of another key.
    pub mistaken_reads: u64,
    /// Bytes of records that producers appended to the log.
    pub appended_bytes: u64,
    /// Bytes of records appended again when their segment was evicted.
    pub reinserted_bytes: u64,
    /// Bytes written to flash, with footers, padding and the saved index.
    pub written_bytes: u64,
    /// Objects in memory.
    pub memory_objects: u64,
    /// Objects on flash.
    pub flash_objects: u64,
    /// Bytes of the objects in memory.
    pub memory_bytes: u64,
    /// Limit of the bytes of the objects in memory, which falls as the index grows.
    pub memory_limit_bytes: u64,
    /// Memory of the index in bytes.
    pub index_bytes: u64,
    /// Memory of the admission in bytes.
    pub admission_bytes: u64,
    /// Size of the flash in bytes.
    pub flash_bytes: u64,
    /// Number of segments of the flash.
    pub segments: u64,
    /// Number of drives.
    pub drives: u64,
    /// Number of drives whose part a failure has ended.
    pub flash_failed: u64,
}

macro_rules! figures_of {
    ($($field:ident),* $(,)?) => {
        /// Names of the fields, which are those of the cache's figures.
        #[cfg(test)]
        const FIELDS: &[&str] = &[$(stringify!($field)),*];

        impl From<&Stats> for floe_hybrid_figures {
            fn from(stats: &Stats) -> Self {
                let value = |name: &str| {
                    let figure = figures().iter().find(|figure| figure.name == name);
                    figure.map_or(0, |figure| (figure.value)(stats))
                };
                Self { $($field: value(stringify!($field))),* }
            }
        }
    };
}

figures_of! {
    memory_hits, flash_hits, misses, memory_insertions, flash_insertions, memory_evictions,
    memory_expirations, flash_evictions, flash_used_evictions, flash_collisions, reinsertions,
    declined_by_options, declined_behind, declined_too_large, declined_failed,
    declined_over_budget, declined_unpopular, declined_write_cost, declined_fits_memory,
    superseded, flash_reads, flash_read_bytes, failed_reads, damaged_records, undecoded_values,
    mistaken_reads, appended_bytes, reinserted_bytes, written_bytes, memory_objects,
    flash_objects, memory_bytes, memory_limit_bytes, index_bytes, admission_bytes, flash_bytes,
    segments, drives, flash_failed,
}

/// Fills in the figures of a cache. `size` is `sizeof(floe_hybrid_figures)`: a program compiled
/// with fewer fields gets only those. Visits all threads and locks: call it once a second rather
/// than once a request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_hybrid_stats(
    cache: *const floe_hybrid,
    figures: *mut floe_hybrid_figures,
    size: usize,
) -> floe_status {
    guarded(|| {
        // SAFETY: the program's cache and place.
        unsafe {
            let all = floe_hybrid_figures::from(&hybrid(cache)?.stats());
            write_prefix(&all, figures, size, "figures")?;
        }
        Ok(floe_status::Ok)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_of_the_cache_is_a_field() {
        let mut declared: Vec<&str> = figures().iter().map(|figure| figure.name).collect();
        let mut fields = FIELDS.to_vec();
        declared.sort_unstable();
        fields.sort_unstable();
        assert_eq!(fields, declared, "add the new figure as the last field");
    }
}
