//! The C interface of a cache for hosts that keep pointers to values, such as a database's block
//! cache. Handles are one pointer wide and may be released by any thread. Values count towards the
//! capacity until they are freed. See [`floe_memory::host`].

use std::collections::HashMap;
use std::ffi::{c_uint, c_void};
use std::hash::{Hash, Hasher};
use std::mem::{ManuallyDrop, MaybeUninit, offset_of};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use floe_memory::host::{Handle, HostBuilder, HostCache, IfPresent, Insertion, Priority};
use floe_memory::policy::{AnyPolicy, PriorityPools};
use floe_memory::{Equivalent, Freezing};

use crate::cache::{floe_stats, write_stats};
use crate::options::floe_options;
use crate::{Failure, bytes, flag, floe_status, give, guarded, guarded_or, reference};

/// Function that receives an object of the cache, which is valid during the call.
pub type floe_host_see_fn = Option<
    unsafe extern "C" fn(
        seer: *mut c_void,
        key: *const c_void,
        key_len: usize,
        object: *mut c_void,
        charge: usize,
        context: *mut c_void,
    ),
>;

/// The importance of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum floe_priority {
    /// The object enters the pool for high priority, if the cache has one. Otherwise it counts as
    /// used once more than other new objects.
    High = 0,
    /// The object enters the pool for low priority, if the cache has one. Otherwise it enters where
    /// the policy places new entries.
    Low = 1,
    /// The object enters where the policy places new entries.
    Bottom = 2,
}

/// Converts a priority that C passes as an enum, which may be any number.
fn priority_of(given: MaybeUninit<floe_priority>) -> Result<Priority, Failure> {
    // SAFETY: C has passed an integer of this size.
    let number = unsafe { given.as_ptr().cast::<c_uint>().read() };
    let all = [
        (floe_priority::High, Priority::High),
        (floe_priority::Low, Priority::Low),
        (floe_priority::Bottom, Priority::Bottom),
    ];
    let found = all.into_iter().find(|(named, _)| *named as c_uint == number);
    found
        .map(|(_, priority)| priority)
        .ok_or_else(|| Failure::invalid(format!("priority is {}: at most 2", number.cast_signed())))
}

const _: () = assert!(size_of::<floe_priority>() == size_of::<c_uint>());

/// Checks that a charge is small enough for sums of charges not to overflow.
fn possible(charge: usize) -> Result<(), Failure> {
    if charge > isize::MAX as usize {
        return Err(Failure::invalid(format!("charge is {charge}: more than there can be")));
    }
    Ok(())
}

/// A cache for a host. All threads may use it at once, until one frees it.
pub struct floe_host {
    pub(crate) cache: Inner,
    references: References,
}

/// A counted reference to an object: one pointer, valid until it is released.
pub struct floe_handle {
    _opaque: [u8; 0],
}

type Owner<'a> = Handle<'a, Item, ()>;

/// Returns the cache that a pointer from C points to.
///
/// # Safety
/// The pointer is null, or comes from `floe_host_new` and is not freed during the call.
unsafe fn host<'a>(host: *const floe_host) -> Result<&'a floe_host, Failure> {
    // SAFETY: the caller says so.
    unsafe { reference(host, "host") }
}

/// Returns the owner that a handle from C stands for. The handle still belongs to the program.
///
/// # Safety
/// The handle is null, or not released during the call.
unsafe fn borrowed<'a>(handle: *const floe_handle) -> Result<ManuallyDrop<Owner<'a>>, Failure> {
    let raw = NonNull::new(handle.cast_mut().cast());
    let raw = raw.ok_or_else(|| Failure::invalid("handle is NULL"))?;
    // SAFETY: the caller says so, and this one is never dropped.
    Ok(ManuallyDrop::new(unsafe { Owner::from_raw(raw) }))
}

fn into_raw(handle: Owner<'_>) -> *mut floe_handle {
    handle.into_raw().as_ptr().cast()
}

/// Creates the host cache that options describe.
///
/// # Safety
/// The pointer is null, or comes from `floe_options_new`.
unsafe fn build_host(options: *const floe_options, strict: bool) -> Result<Inner, Failure> {
    let invalid = |error: &dyn std::fmt::Display| Failure::invalid(error.to_string());
    // SAFETY: the caller says so.
    let options = unsafe { reference(options, "options")? };
    let Some(capacity) = options.weight.and_then(|weight| usize::try_from(weight).ok()) else {
        return Err(Failure::invalid("a cache for a host needs a capacity of weight"));
    };
    let others = [
        (options.entries.is_some(), "capacity of entries"),
        (options.admission.is_some(), "admission"),
        (options.live.is_some() || options.idle.is_some(), "lifetime"),
        (options.listener.is_some(), "listener"),
    ];
    if let Some((_, name)) = others.iter().find(|(is_set, _)| *is_set) {
        return Err(Failure::invalid(format!("a cache for a host has no {name}")));
    }
    let mut builder = HostBuilder::new(capacity).strict(strict);
    if let Some(shards) = options.shards {
        builder = builder.shards(shards);
    }
    if options.freezing {
        builder = builder.freezing(Freezing::adaptive());
    }
    let policy = options.policy.as_deref().unwrap_or("qd-clock");
    let builder = builder.policy_named(policy).map_err(|error| invalid(&error))?;
    let (high, low) = options.pools;
    builder.priority_pools(high, low).try_build().map_err(|error| invalid(&error))
}

/// Creates a cache for a host, to be freed by `floe_host_free`. The options need a weight capacity;
/// policy, shards and freezing also apply. Returns NULL if the options are invalid.
///
/// With `strict`, an insertion fails if it would exceed the capacity because of objects with
/// handles. Otherwise it exceeds the capacity.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_host_new(
    options: *const floe_options,
    strict: MaybeUninit<bool>,
) -> *mut floe_host {
    guarded_or(std::ptr::null_mut(), || {
        // SAFETY: the program's options.
        let cache = unsafe { build_host(options, flag(strict))? };
        Ok(Box::into_raw(Box::new(floe_host { cache, references: References::default() })))
    })
}

/// Frees a cache and its objects. No thread may use the cache or have a handle during the call or
/// later. NULL does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_host_free(host: *mut floe_host) {
    guarded(|| {
        if !host.is_null() {
            // SAFETY: from `floe_host_new`, and the program frees it once.
            drop(unsafe { Box::from_raw(host) });
        }
        Ok(floe_status::Ok)
    });
}

/// Inserts an object with its charge, replacing the present object of the key, which lives on with
/// its handles. If the cache has no room, the object is not inserted: it is freed with its handle,
/// or at once if there is none.
///
/// `handle` is NULL, or receives a handle that the caller must release. `free_object` is called
/// once with the key, the object and `context`; it may be NULL. Any thread may use and free the
/// object.
///
/// Returns `FLOE_STATUS_FULL` if the cache is strict and objects with handles fill it. On this or
/// any other error the object still belongs to the program, and `free_object` is not called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_host_insert(
    host: *const floe_host,
    key: *const c_void,
    key_len: usize,
    object: *mut c_void,
    charge: usize,
    free_object: floe_host_free_fn,
    context: *mut c_void,
    priority: MaybeUninit<floe_priority>,
    handle: *mut *mut floe_handle,
) -> floe_status {
    guarded(|| {
        // SAFETY: the program's cache and key.
        let (host, key) = unsafe { (self::host(host)?, bytes(key, key_len, "key")?) };
        let priority = priority_of(priority)?;
        possible(charge)?;
        let options = Insertion::new().if_present(IfPresent::Replace).priority(priority);
        let item = Item::new(key, object, free_object, context);
        match host.cache.insert_held(item, (), charge, options) {
            Ok(held) if handle.is_null() => drop(held),
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

/// Looks a key up. Returns a handle that the caller must release, or NULL. Takes no lock; the first
/// four handles of a thread write no memory that other threads write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_host_lookup(
    host: *const floe_host,
    key: *const c_void,
    key_len: usize,
) -> *mut floe_handle {
    guarded_or(std::ptr::null_mut(), || {
        // SAFETY: the program's cache and key.
        let (host, key) = unsafe { (self::host(host)?, bytes(key, key_len, "key")?) };
        Ok(host.cache.lookup(&Asked(key)).map_or(std::ptr::null_mut(), into_raw))
    })
}

/// Adds a reference to a handle, which must then be released once more. Returns whether that was
/// possible.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_host_reference(
    host: *const floe_host,
    handle: *mut floe_handle,
) -> bool {
    guarded_or(false, || {
        // SAFETY: the program's cache, and its handle, not released meanwhile.
        let (host, owner) = unsafe { (self::host(host)?, borrowed(handle)?) };
        let another = Owner::clone(&owner).into_raw();
        host.references.add(ManuallyDrop::into_inner(owner).into_raw(), another);
        Ok(true)
    })
}

/// Releases a handle. With `erase`, and if no other handle is left, removes the entry if it is
/// still there and frees the object. Returns whether it did. Takes no lock without `erase`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_host_release(
    host: *const floe_host,
    handle: *mut floe_handle,
    erase: MaybeUninit<bool>,
) -> bool {
    guarded_or(false, || {
        // SAFETY: the program's cache, and its handle, which is not used any more.
        let (host, owner) = unsafe { (self::host(host)?, borrowed(handle)?) };
        let raw = ManuallyDrop::into_inner(owner).into_raw();
        let another = host.references.take(raw);
        // SAFETY: of `into_raw`, one for each release.
        let owner = unsafe { Owner::from_raw(another.unwrap_or(raw)) };
        match flag(erase) {
            true => Ok(host.cache.release_and_free(owner)),
            false => {
                drop(owner);
                Ok(false)
            }
        }
    })
}

/// Returns the object of a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_host_object(handle: *const floe_handle) -> *mut c_void {
    // SAFETY: the program's handle.
    guarded_or(std::ptr::null_mut(), || Ok(unsafe { borrowed(handle)? }.key().object))
}

/// Returns the offset of the object in an entry, in bytes, with which C code reads the object
/// without a call. A handle with the lowest bit set is the address of an entry plus 1; otherwise it
/// points to a word that is.
#[unsafe(no_mangle)]
pub extern "C" fn floe_host_object_offset() -> usize {
    Owner::KEY_OFFSET + offset_of!(Item, object)
}

/// Returns the memory of an entry with a short key in bytes, for a host that adds it to charges.
#[unsafe(no_mangle)]
pub extern "C" fn floe_host_entry_bytes() -> usize {
    Owner::ENTRY_BYTES
}

/// Returns the context that was passed with the object of a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_host_context(handle: *const floe_handle) -> *mut c_void {
    // SAFETY: the program's handle.
    guarded_or(std::ptr::null_mut(), || Ok(unsafe { borrowed(handle)? }.key().context))
}

/// Returns the charge of a handle's object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_host_charge(handle: *const floe_handle) -> usize {
    // SAFETY: the program's handle.
    guarded_or(0, || Ok(unsafe { borrowed(handle)? }.charge()))
}

/// Removes a key; its handles keep the object. Returns `FLOE_STATUS_NOT_FOUND` if the key is
/// absent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_host_erase(
    host: *const floe_host,
    key: *const c_void,
    key_len: usize,
) -> floe_status {
    guarded(|| {
        // SAFETY: the program's cache and key.
        let (host, key) = unsafe { (self::host(host)?, bytes(key, key_len, "key")?) };
        let is_there = host.cache.erase(&Asked(key));
        Ok(if is_there { floe_status::Ok } else { floe_status::NotFound })
    })
}

/// Removes and frees every object without a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_host_clear_unused(host: *const floe_host) -> floe_status {
    guarded(|| {
        // SAFETY: the program's cache.
        let cache = &unsafe { self::host(host)? }.cache;
        let mut names = Vec::new();
        cache.for_each(|item, (), _| names.push(Box::<[u8]>::from(item.name())));
        for name in names {
            if let Some(owner) = cache.lookup(&Asked(&name)) {
                cache.release_and_erase(owner);
            }
        }
        cache.reclaim();
        Ok(floe_status::Ok)
    })
}

/// Passes all objects in the cache to a function, in no particular order and with no lock held. It
/// may use the cache, and must not throw or unwind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_host_for_each(
    host: *const floe_host,
    see: floe_host_see_fn,
    seer: *mut c_void,
) -> floe_status {
    guarded(|| {
        // SAFETY: the program's cache.
        let cache = &unsafe { self::host(host)? }.cache;
        let see = see.ok_or_else(|| Failure::invalid("see is NULL"))?;
        cache.for_each(|item, (), charge| {
            let (key, object, context) = (item.name(), item.object, item.context);
            // SAFETY: the program's function; the entry stays during the call.
            unsafe { see(seer, key.as_ptr().cast(), key.len(), object, charge, context) };
        });
        Ok(floe_status::Ok)
    })
}

/// Changes the capacity. Excess objects are evicted before this returns; objects with handles may
/// exceed the capacity.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_host_set_capacity(
    host: *const floe_host,
    capacity: usize,
) -> floe_status {
    guarded(|| {
        // SAFETY: the program's cache.
        unsafe { self::host(host)? }.cache.set_capacity(capacity);
        Ok(floe_status::Ok)
    })
}

/// Changes whether an insertion fails if it would exceed the capacity.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_host_set_strict(
    host: *const floe_host,
    strict: MaybeUninit<bool>,
) -> floe_status {
    guarded(|| {
        // SAFETY: the program's cache.
        unsafe { self::host(host)? }.cache.set_strict(flag(strict));
        Ok(floe_status::Ok)
    })
}

/// Returns whether an insertion fails if it would exceed the capacity.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_host_is_strict(host: *const floe_host) -> bool {
    // SAFETY: the program's cache.
    guarded_or(false, || Ok(unsafe { self::host(host)? }.cache.is_strict()))
}

/// Returns the capacity.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_host_capacity(host: *const floe_host) -> usize {
    // SAFETY: the program's cache.
    guarded_or(0, || Ok(unsafe { self::host(host)? }.cache.capacity()))
}

/// Returns the charge of all objects that are not freed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_host_usage(host: *const floe_host) -> usize {
    // SAFETY: the program's cache.
    guarded_or(0, || Ok(unsafe { self::host(host)? }.cache.usage()))
}

/// Returns the charge of all objects that have handles. Takes a lock that threads take when they
/// begin or end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_host_pinned_usage(host: *const floe_host) -> usize {
    // SAFETY: the program's cache.
    guarded_or(0, || Ok(unsafe { self::host(host)? }.cache.pinned_usage()))
}

/// Fills in the counters of a cache for a host, like `floe_cache_stats`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_host_stats(
    host: *const floe_host,
    stats: *mut floe_stats,
    size: usize,
) -> floe_status {
    guarded(|| {
        // SAFETY: the program's cache and place.
        unsafe { write_stats(self::host(host)?.cache.stats(), stats, size)? };
        Ok(floe_status::Ok)
    })
}

/// Frees objects that have left the cache and have no handle. Without this call they are freed in
/// batches.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_host_reclaim(host: *const floe_host) -> floe_status {
    guarded(|| {
        // SAFETY: the program's cache.
        unsafe { self::host(host)? }.cache.reclaim();
        Ok(floe_status::Ok)
    })
}

/// Creates a handle of an object that no lookup finds. The object counts in the cache's usage, and
/// is freed with its last handle. All else is as for `floe_host_insert`, but `handle` must not be
/// NULL.
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

/// Function that frees an object. Any thread calls it, once and without locks, when the object has
/// left the cache and has no handle. It may use the cache. It must not throw or unwind.
pub type floe_host_free_fn = Option<
    unsafe extern "C" fn(
        key: *const c_void,
        key_len: usize,
        object: *mut c_void,
        context: *mut c_void,
    ),
>;

/// The host cache of the Rust library. The object is part of the key: a hit finds both in one cache
/// line, and the key is available when the object is freed.
pub(crate) type Inner = HostCache<Item, (), PriorityPools<AnyPolicy>>;

/// A key with its object, which is freed together with the entry.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Item {
    name: Name,
    /// Object of the entry. C code reads this field directly.
    object: *mut c_void,
    context: *mut c_void,
    free: floe_host_free_fn,
}

// SAFETY: the program promises that any thread may use and free its objects: see
// `floe_host_insert`.
unsafe impl Send for Item {}
// SAFETY: as above.
unsafe impl Sync for Item {}

impl Item {
    fn new(
        name: &[u8],
        object: *mut c_void,
        free: floe_host_free_fn,
        context: *mut c_void,
    ) -> Self {
        Self { name: Name::new(name), object, context, free }
    }

    #[inline]
    fn name(&self) -> &[u8] {
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

/// A borrowed key for a lookup.
struct Asked<'a>(&'a [u8]);

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

/// Maximum length of a key that is stored in place, without an allocation. RocksDB's keys have 16
/// bytes.
const SHORT_BYTES: usize = 23;

/// The bytes of a key, stored in place if they are short.
#[derive(Debug)]
enum Name {
    Short(u8, [u8; SHORT_BYTES]),
    Long(Box<[u8]>),
}

impl Name {
    fn new(bytes: &[u8]) -> Self {
        match u8::try_from(bytes.len()) {
            Ok(len) if bytes.len() <= SHORT_BYTES => {
                let mut short = [0; SHORT_BYTES];
                short[..bytes.len()].copy_from_slice(bytes);
                Self::Short(len, short)
            }
            _ => Self::Long(bytes.into()),
        }
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Short(len, bytes) => &bytes[..usize::from(*len)],
            Self::Long(bytes) => bytes,
        }
    }
}

/// Additional references to handles, by the handle's pointer. Counted handles count their
/// references by themselves. The few others are looked up here.
#[derive(Debug, Default)]
struct References {
    /// Number of references in the table.
    count: AtomicUsize,
    /// Counted handles that stand for additional references, by the pointer of the original handle.
    table: Mutex<HashMap<usize, Vec<usize>>>,
}

impl References {
    /// Adds a reference to a handle, in the form of another, counted handle.
    fn add(&self, raw: NonNull<()>, another: NonNull<()>) {
        if raw == another {
            return; // counted: the same pointer
        }
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.entry(raw.addr().get()).or_default().push(another.as_ptr().expose_provenance());
        // Relaxed: who releases the handle was given it after this, and takes the lock.
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes and returns a counted handle to be released in place of this one, if there is one.
    fn take(&self, raw: NonNull<()>) -> Option<NonNull<()>> {
        // Relaxed: as above.
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let handles = table.get_mut(&raw.addr().get())?;
        let another = handles.pop();
        if handles.is_empty() {
            table.remove(&raw.addr().get());
        }
        self.count.fetch_sub(1, Ordering::Relaxed);
        another.and_then(|it| NonNull::new(std::ptr::with_exposed_provenance_mut(it)))
    }
}
