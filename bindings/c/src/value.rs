//! Keys and values of C programs: copied bytes, memory that the program frees by a function of its
//! own, and the listener for entries that leave.

use std::borrow::Borrow;
use std::ffi::c_void;
use std::hash::{Hash, Hasher};
use std::ptr::NonNull;

use floe_memory::policy::AnyPolicy;
use floe_memory::{Cache, Cause, Equivalent, Held};

use crate::{Failure, region};

/// The cache of the Rust library, with the C interface's keys and values.
pub(crate) type Inner = Cache<Key, Value, AnyPolicy>;

/// A key that the cache owns.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Key(pub(crate) Box<[u8]>);

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl Borrow<[u8]> for Key {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

/// A borrowed key for a lookup. It hashes and compares like an owned [`Key`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asked<'a>(pub(crate) &'a [u8]);

impl Hash for Asked<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl Equivalent<Key> for Asked<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        self.0 == &*key.0
    }
}

/// Function that frees a value. Any thread calls it, once and without locks, when the value has
/// left the cache and no reference to it is left. It may use the cache. It must not throw or
/// unwind.
pub type floe_free_fn =
    Option<unsafe extern "C" fn(data: *mut c_void, len: usize, context: *mut c_void)>;

/// A value: memory that the program has given away, or a copy.
#[derive(Debug)]
pub(crate) struct Value {
    data: *mut c_void,
    len: usize,
    pub(crate) charge: u64,
    how: How,
}

/// The way in which a value's memory is freed.
#[derive(Debug)]
enum How {
    /// The memory is a boxed slice, which Rust frees.
    Copied,
    /// The program's function frees the memory. Without a function, nothing is freed.
    Given(floe_free_fn, *mut c_void),
}

// SAFETY: the program promises that its memory may be read and freed by any thread: see
// `floe_insert_given`.
unsafe impl Send for Value {}
// SAFETY: as above.
unsafe impl Sync for Value {}

impl Value {
    pub(crate) fn copied(bytes: &[u8], charge: u64) -> Self {
        let copy: *mut [u8] = Box::into_raw(bytes.into());
        Self { data: copy.cast(), len: bytes.len(), charge, how: How::Copied }
    }

    /// # Safety
    /// `len` bytes can be read at `data`, by any thread, until `free` is called.
    pub(crate) unsafe fn given(
        data: *mut c_void,
        len: usize,
        charge: u64,
        free: floe_free_fn,
        context: *mut c_void,
    ) -> Self {
        Self { data, len, charge, how: How::Given(free, context) }
    }

    pub(crate) fn data(&self) -> *const c_void {
        self.data
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        match self.how {
            How::Copied => {
                let bytes = std::ptr::slice_from_raw_parts_mut(self.data.cast::<u8>(), self.len);
                // SAFETY: from `Box::into_raw`, in `copied`.
                drop(unsafe { Box::from_raw(bytes) });
            }
            How::Given(Some(free), context) => {
                // SAFETY: the program gave the function for this memory.
                unsafe { free(self.data, self.len, context) };
            }
            How::Given(None, _) => {}
        }
    }
}

/// A reference to a value. The value stays in memory until the reference is released, even if the
/// entry is removed or the cache is freed. Any thread may use and release it.
#[derive(Debug)]
pub struct floe_value(Kept);

/// The memory that a reference keeps.
#[derive(Debug)]
pub(crate) enum Kept {
    /// A value of a cache in memory.
    Held(Held<Value>),
    /// A value of a cache in memory and on flash.
    #[cfg(feature = "hybrid")]
    Bytes(bytes::Bytes),
}

impl floe_value {
    pub(crate) fn give(kept: Kept) -> *mut Self {
        Box::into_raw(Box::new(Self(kept)))
    }

    fn data(&self) -> *const c_void {
        match &self.0 {
            Kept::Held(value) => value.data(),
            #[cfg(feature = "hybrid")]
            Kept::Bytes(bytes) => bytes.as_ptr().cast(),
        }
    }

    fn len(&self) -> usize {
        match &self.0 {
            Kept::Held(value) => value.len(),
            #[cfg(feature = "hybrid")]
            Kept::Bytes(bytes) => bytes.len(),
        }
    }
}

/// Returns the address of a value's first byte, or NULL for NULL. The bytes must not be written,
/// and are valid until the value is released. Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_value_data(value: *const floe_value) -> *const c_void {
    // SAFETY: the program passes null or a value that it has not released.
    unsafe { value.as_ref() }.map_or(std::ptr::null(), floe_value::data)
}

/// Returns the length of a value in bytes, or 0 for NULL. Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_value_len(value: *const floe_value) -> usize {
    // SAFETY: as in `floe_value_data`.
    unsafe { value.as_ref() }.map_or(0, floe_value::len)
}

/// Releases a reference to a value, which must not be used afterwards. NULL does nothing. Threads:
/// any, not only the one that got the reference. Allowed after the cache was freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_value_release(value: *mut floe_value) {
    crate::guarded(|| {
        if let Some(value) = NonNull::new(value) {
            // SAFETY: from `give`, and the program releases each once.
            drop(unsafe { Box::from_raw(value.as_ptr()) });
        }
        Ok(crate::floe_status::Ok)
    });
}

/// The reason for which an entry left the cache, or did not enter it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum floe_cause {
    /// The policy evicted the entry to make room.
    Evicted = 0,
    /// The entry expired.
    Expired = 1,
    /// The program removed the entry.
    Removed = 2,
    /// Another value replaced the entry's value.
    Replaced = 3,
    /// The entry was not inserted, because there was no room for it.
    Rejected = 4,
    /// The entry was not inserted, because the admission declined it.
    Bypassed = 5,
    /// Another reason, which this version cannot name.
    Other = 6,
}

/// Function called for each entry that leaves the cache. Key and value are valid during the call.
pub type floe_left_fn = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        key: *const c_void,
        key_len: usize,
        data: *const c_void,
        len: usize,
        cause: floe_cause,
    ),
>;

/// A listener function of the C program, with its context.
#[derive(Debug, Clone)]
pub(crate) struct Listener {
    pub(crate) tell:
        unsafe extern "C" fn(*mut c_void, *const c_void, usize, *const c_void, usize, floe_cause),
    pub(crate) context: *mut c_void,
}

// SAFETY: the program promises that any thread may call it: see `floe_options_set_listener`.
unsafe impl Send for Listener {}
// SAFETY: as above.
unsafe impl Sync for Listener {}

impl Listener {
    pub(crate) fn tell(&self, key: &Key, value: &Value, cause: Cause) {
        let cause = match cause {
            Cause::Evicted => floe_cause::Evicted,
            Cause::Expired => floe_cause::Expired,
            Cause::Removed => floe_cause::Removed,
            Cause::Replaced => floe_cause::Replaced,
            Cause::Rejected => floe_cause::Rejected,
            Cause::Bypassed => floe_cause::Bypassed,
            _ => floe_cause::Other,
        };
        let (key, key_len) = (key.0.as_ptr().cast(), key.0.len());
        // SAFETY: the program gave the function, and key and value are there during the call.
        unsafe { (self.tell)(self.context, key, key_len, value.data(), value.len(), cause) };
    }
}

/// A key of several.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct floe_bytes {
    /// The first byte; may be NULL if there is none.
    pub data: *const c_void,
    /// The number of bytes.
    pub len: usize,
}

/// Returns the keys at a pointer from C, each of which is checked.
///
/// # Safety
/// The pointer is null, or `count` keys can be read there during the call.
pub(crate) unsafe fn keys_at<'a>(
    keys: *const floe_bytes,
    count: usize,
) -> Result<&'a [floe_bytes], Failure> {
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
    for (number, key) in keys.iter().enumerate() {
        region(key.data, key.len, &format!("key {number}"))?;
    }
    Ok(keys)
}
