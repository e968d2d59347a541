//! Options with which caches are created.

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
#[cfg(feature = "hybrid")]
use std::path::PathBuf;
use std::time::Duration;

#[cfg(feature = "hybrid")]
use ::floe_hybrid::{Admission, Compression, OnFull, WriteBudget};
use floe_memory::policy::AnyPolicy;
use floe_memory::{Cache, Freezing};

#[cfg(feature = "hybrid")]
use crate::hybrid::{self, floe_hybrid};
use crate::value::{Inner, Key, Listener, Value, floe_left_fn};
use crate::{Failure, flag, floe_status, guarded, guarded_or, reference};

/// Options of a cache. Only one thread at a time may use them.
#[derive(Debug, Default)]
pub struct floe_options {
    pub(crate) entries: Option<usize>,
    pub(crate) weight: Option<u64>,
    pub(crate) policy: Option<String>,
    pub(crate) admission: Option<String>,
    pub(crate) live: Option<Duration>,
    pub(crate) idle: Option<Duration>,
    pub(crate) shards: Option<usize>,
    pub(crate) freezing: bool,
    pub(crate) pools: (f64, f64),
    pub(crate) listener: Option<Listener>,
}

/// Returns new options, to be freed by `floe_options_free`. A cache needs a capacity in entries or
/// in weight.
#[unsafe(no_mangle)]
pub extern "C" fn floe_options_new() -> *mut floe_options {
    guarded_or(std::ptr::null_mut(), || Ok(Box::into_raw(Box::default())))
}

/// Frees options. Caches created from them are not affected. NULL does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_options_free(options: *mut floe_options) {
    if !options.is_null() {
        // SAFETY: from `floe_options_new`, and the program frees them once.
        drop(unsafe { Box::from_raw(options) });
    }
}

/// Changes the options that a pointer from C points to.
///
/// # Safety
/// The pointer is null, or comes from the function that makes such options, and no other thread
/// uses them.
unsafe fn set<T>(
    options: *mut T,
    change: impl FnOnce(&mut T) -> Result<(), Failure>,
) -> floe_status {
    guarded(|| {
        // SAFETY: the caller says so.
        let options = unsafe { options.as_mut() };
        change(options.ok_or_else(|| Failure::invalid("options is NULL"))?)?;
        Ok(floe_status::Ok)
    })
}

/// Returns the text at a pointer from C.
///
/// # Safety
/// The pointer is null, or the text ends with a zero byte.
pub(crate) unsafe fn text(text: *const c_char, name: &str) -> Result<String, Failure> {
    if text.is_null() {
        return Err(Failure::invalid(format!("{name} is NULL")));
    }
    // SAFETY: not null, and the caller says that it ends.
    let text = unsafe { CStr::from_ptr(text) };
    let text = text.to_str().map_err(|_| Failure::invalid(format!("{name} is not UTF-8")))?;
    Ok(text.to_owned())
}

/// Sets the capacity in entries; 0 for no such limit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_options_set_capacity(
    options: *mut floe_options,
    entries: usize,
) -> floe_status {
    // SAFETY: the program's options.
    unsafe {
        set(options, |options| {
            options.entries = Some(entries);
            Ok(())
        })
    }
}

/// Sets the capacity in weight, the sum of the charges of the entries. May be combined with a
/// capacity in entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_options_set_weight_capacity(
    options: *mut floe_options,
    weight: u64,
) -> floe_status {
    // SAFETY: the program's options.
    unsafe {
        set(options, |options| {
            options.weight = Some(weight);
            Ok(())
        })
    }
}

/// Sets the eviction policy by name, such as "s3-fifo", "lru" or "slru:segments=2"; "qd-clock" by
/// default.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_options_set_policy(
    options: *mut floe_options,
    policy: *const c_char,
) -> floe_status {
    // SAFETY: the program's options, and its text.
    unsafe {
        set(options, |options| {
            let policy = text(policy, "policy")?;
            policy.parse::<AnyPolicy>().map_err(|error| Failure::invalid(error.to_string()))?;
            options.policy = Some(policy);
            Ok(())
        })
    }
}

/// Sets the admission by name, such as "second-access" or "obp:target=0.2"; by default everything
/// is admitted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_options_set_admission(
    options: *mut floe_options,
    admission: *const c_char,
) -> floe_status {
    // SAFETY: the program's options, and its text.
    unsafe {
        set(options, |options| {
            options.admission = Some(text(admission, "admission")?);
            Ok(())
        })
    }
}

/// Sets the time to live of entries in milliseconds, counted from insertion; 0 for no limit. More
/// than 174 years count as no limit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_options_set_time_to_live_ms(
    options: *mut floe_options,
    ms: u64,
) -> floe_status {
    // SAFETY: the program's options.
    unsafe {
        set(options, |options| {
            options.live = (ms > 0).then(|| Duration::from_millis(ms));
            Ok(())
        })
    }
}

/// Sets the time to idle of entries in milliseconds, counted from the last use; 0 for no limit.
/// More than 174 years count as no limit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_options_set_time_to_idle_ms(
    options: *mut floe_options,
    ms: u64,
) -> floe_status {
    // SAFETY: the program's options.
    unsafe {
        set(options, |options| {
            options.idle = (ms > 0).then(|| Duration::from_millis(ms));
            Ok(())
        })
    }
}

/// Sets the number of shards, each with its own lock, a power of two; 0 for a number that suits the
/// machine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_options_set_shards(
    options: *mut floe_options,
    shards: usize,
) -> floe_status {
    // SAFETY: the program's options.
    unsafe {
        set(options, |options| {
            options.shards = (shards > 0).then_some(shards);
            Ok(())
        })
    }
}

/// Sets whether the hottest entries are frozen while that makes lookups faster.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_options_set_freezing(
    options: *mut floe_options,
    freezing: MaybeUninit<bool>,
) -> floe_status {
    // SAFETY: the program's options.
    unsafe {
        set(options, |options| {
            options.freezing = flag(freezing);
            Ok(())
        })
    }
}

/// Sets the shares of the capacity, from 0 to 1, that a cache for a host keeps for objects of high
/// and of low priority; both are 0 by default.
///
/// A full pool moves its oldest object to the next pool, or to where the policy places new objects,
/// as one that was used once. So an object in a pool is never evicted directly.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_options_set_priority_pools(
    options: *mut floe_options,
    high: f64,
    low: f64,
) -> floe_status {
    // SAFETY: the program's options.
    unsafe {
        set(options, |options| {
            if !(high >= 0.0 && low >= 0.0 && high + low <= 1.0) {
                let why = format!("shares of pools are from 0 to 1 together, not {high} and {low}");
                return Err(Failure::invalid(why));
            }
            options.pools = (high, low);
            Ok(())
        })
    }
}

/// Sets a function that is called for each entry that leaves the cache, with the cause. It is
/// called by any thread, outside of locks, soon after; it may use the cache. It must not throw or
/// unwind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_options_set_listener(
    options: *mut floe_options,
    listener: floe_left_fn,
    context: *mut std::ffi::c_void,
) -> floe_status {
    // SAFETY: the program's options.
    unsafe {
        set(options, |options| {
            options.listener = listener.map(|tell| Listener { tell, context });
            Ok(())
        })
    }
}

/// Creates the cache that options describe.
///
/// # Safety
/// The pointer is null, or comes from `floe_options_new`.
pub(crate) unsafe fn build(options: *const floe_options) -> Result<Inner, Failure> {
    let invalid = |error: &dyn std::fmt::Display| Failure::invalid(error.to_string());
    // SAFETY: the caller says so.
    let options = unsafe { reference(options, "options")? };
    if options.entries.is_none() && options.weight.is_none() {
        return Err(Failure::invalid("a cache needs a capacity of entries or of weight"));
    }
    if options.pools != (0.0, 0.0) {
        return Err(Failure::invalid("only a cache for a host has priority pools"));
    }
    let mut builder = Cache::<Key, Value>::builder();
    if let Some(entries) = options.entries {
        builder = builder.capacity(entries);
    }
    if let Some(weight) = options.weight {
        builder = builder.weight_capacity(weight).weigher(|_: &Key, value: &Value| value.charge);
    }
    if let Some(time) = options.live {
        builder = builder.time_to_live(time);
    }
    if let Some(time) = options.idle {
        builder = builder.time_to_idle(time);
    }
    if let Some(shards) = options.shards {
        builder = builder.shards(shards);
    }
    if options.freezing {
        builder = builder.freezing(Freezing::adaptive());
    }
    if let Some(listener) = options.listener.clone() {
        builder = builder
            .listener(move |key: &Key, value: &Value, cause| listener.tell(key, value, cause));
    }
    if let Some(admission) = &options.admission {
        builder = builder.admission_named(admission).map_err(|error| invalid(&error))?;
    }
    let policy = options.policy.as_deref().unwrap_or("qd-clock");
    let builder = builder.policy_named(policy).map_err(|error| invalid(&error))?;
    builder.try_build().map_err(|error| invalid(&error))
}

/// Options of a cache in memory and on flash. Only one thread at a time may use them.
#[cfg(feature = "hybrid")]
#[derive(Debug, Default)]
pub struct floe_hybrid_options {
    memory: u64,
    drives: Vec<(PathBuf, u64)>,
    admission: Admission,
    write_budget: Option<WriteBudget>,
    on_full: OnFull,
    live: Option<Duration>,
    object_bytes: Option<u64>,
    compression: Compression,
}

/// Returns new options, to be freed by `floe_hybrid_options_free`. A cache needs memory and at
/// least one drive.
#[cfg(feature = "hybrid")]
#[unsafe(no_mangle)]
pub extern "C" fn floe_hybrid_options_new() -> *mut floe_hybrid_options {
    guarded_or(std::ptr::null_mut(), || Ok(Box::into_raw(Box::default())))
}

/// Frees options. Caches opened with them are not affected. NULL does nothing.
#[cfg(feature = "hybrid")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_hybrid_options_free(options: *mut floe_hybrid_options) {
    if !options.is_null() {
        // SAFETY: from `floe_hybrid_options_new`, and the program frees them once.
        drop(unsafe { Box::from_raw(options) });
    }
}

/// Returns the path at a pointer from C, which need not be UTF-8 where the system's need not.
///
/// # Safety
/// The pointer is null, or the path ends with a zero byte.
#[cfg(feature = "hybrid")]
unsafe fn path_at(path: *const c_char) -> Result<PathBuf, Failure> {
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt;
        if path.is_null() {
            return Err(Failure::invalid("path is NULL"));
        }
        // SAFETY: not null, and the caller says that it ends.
        let path = unsafe { CStr::from_ptr(path) };
        Ok(std::ffi::OsStr::from_bytes(path.to_bytes()).into())
    }
    #[cfg(not(unix))]
    {
        // SAFETY: the caller says so.
        Ok(unsafe { text(path, "path")? }.into())
    }
}

/// Sets the limit of memory in bytes: for the objects in memory, the segments being written, which
/// take up to a quarter, and the index, 9 bytes for each object on flash. At least 64 MiB is
/// recommended.
#[cfg(feature = "hybrid")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_hybrid_options_set_memory(
    options: *mut floe_hybrid_options,
    bytes: u64,
) -> floe_status {
    // SAFETY: the program's options.
    unsafe {
        set(options, |options| {
            options.memory = bytes;
            Ok(())
        })
    }
}

/// Adds a drive: a file or a block device, and the number of its bytes to use. A missing file is
/// created; an existing one must have this size. The cache is striped over all drives that are
/// added, up to 32. Their number must be the same each time, in any order.
#[cfg(feature = "hybrid")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_hybrid_options_add_flash(
    options: *mut floe_hybrid_options,
    path: *const c_char,
    bytes: u64,
) -> floe_status {
    // SAFETY: the program's options, and its path.
    unsafe {
        set(options, |options| {
            options.drives.push((path_at(path)?, bytes));
            Ok(())
        })
    }
}

/// Sets the rule for the objects that are written to flash, by name: "everything", which is the
/// default, "popularity", "obp", "small-bypass" or "tinylfu".
#[cfg(feature = "hybrid")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_hybrid_options_set_admission(
    options: *mut floe_hybrid_options,
    admission: *const c_char,
) -> floe_status {
    // SAFETY: the program's options, and its text.
    unsafe {
        set(options, |options| {
            let admission = text(admission, "admission")?.parse::<Admission>();
            options.admission = admission.map_err(|error| Failure::invalid(error.to_string()))?;
            Ok(())
        })
    }
}

/// Limits the bytes written to flash, by a text such as "1 DWPD", "50 TB/year" or "40 MB/s". There
/// is no limit by default.
#[cfg(feature = "hybrid")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_hybrid_options_set_write_budget(
    options: *mut floe_hybrid_options,
    budget: *const c_char,
) -> floe_status {
    // SAFETY: the program's options, and its text.
    unsafe {
        set(options, |options| {
            let budget = text(budget, "budget")?.parse::<WriteBudget>();
            let budget = budget.map_err(|error| Failure::invalid(error.to_string()))?;
            options.write_budget = Some(budget);
            Ok(())
        })
    }
}

/// Sets whether insertions wait while they are faster than the drive, which is the default.
/// Otherwise objects without room are declined.
#[cfg(feature = "hybrid")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_hybrid_options_set_waiting(
    options: *mut floe_hybrid_options,
    waiting: MaybeUninit<bool>,
) -> floe_status {
    // SAFETY: the program's options.
    unsafe {
        set(options, |options| {
            options.on_full = if flag(waiting) { OnFull::Wait } else { OnFull::Decline };
            Ok(())
        })
    }
}

/// Sets the time to live of objects in milliseconds; 0 for no limit. On flash, times are rounded
/// down to seconds, and are at least one second.
#[cfg(feature = "hybrid")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_hybrid_options_set_time_to_live_ms(
    options: *mut floe_hybrid_options,
    ms: u64,
) -> floe_status {
    // SAFETY: the program's options.
    unsafe {
        set(options, |options| {
            options.live = (ms > 0).then(|| Duration::from_millis(ms));
            Ok(())
        })
    }
}

/// Sets the expected mean size of an object, key and value, in bytes; 0 for 16 KiB. The index is
/// allocated for so many objects and need not grow.
#[cfg(feature = "hybrid")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_hybrid_options_set_object_bytes(
    options: *mut floe_hybrid_options,
    bytes: u64,
) -> floe_status {
    // SAFETY: the program's options.
    unsafe {
        set(options, |options| {
            options.object_bytes = (bytes > 0).then_some(bytes);
            Ok(())
        })
    }
}

/// Sets the compression of values on flash: "none", which is the default, or "lz4". Objects that
/// are there already stay as they are, and are read.
#[cfg(feature = "hybrid")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_hybrid_options_set_compression(
    options: *mut floe_hybrid_options,
    compression: *const c_char,
) -> floe_status {
    // SAFETY: the program's options, and its text.
    unsafe {
        set(options, |options| {
            options.compression = match text(compression, "compression")?.as_str() {
                "none" => Compression::None,
                "lz4" => Compression::Lz4,
                other => {
                    let why = format!("'{other}' is not a compression: expected 'none' or 'lz4'");
                    return Err(Failure::invalid(why));
                }
            };
            Ok(())
        })
    }
}

/// Opens the cache that options describe, or creates it. Free it by `floe_hybrid_free`. Returns
/// NULL on an error: `floe_error_message` names the path and the reason, and existing files stay as
/// they were. A file is locked while it is open.
#[cfg(feature = "hybrid")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_hybrid_open(options: *const floe_hybrid_options) -> *mut floe_hybrid {
    guarded_or(std::ptr::null_mut(), || {
        // SAFETY: the program's options.
        let options = unsafe { reference(options, "options")? };
        let mut builder = hybrid::Inner::builder()
            .memory(options.memory)
            .admission(options.admission)
            .on_full(options.on_full)
            .compression(options.compression);
        for (path, bytes) in &options.drives {
            builder = builder.flash(path, *bytes);
        }
        if let Some(budget) = options.write_budget {
            builder = builder.write_budget(budget);
        }
        if let Some(time) = options.live {
            builder = builder.time_to_live(time);
        }
        if let Some(bytes) = options.object_bytes {
            builder = builder.object_bytes(bytes);
        }
        let cache = builder.open().map_err(|error| Failure::invalid(error.to_string()))?;
        Ok(floe_hybrid::give(cache))
    })
}
