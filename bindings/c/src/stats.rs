//! Counts.

use floe_memory::Stats;

use crate::cache::{self, floe_cache};
use crate::error::{Failure, give, guarded};
use crate::floe_status;

/// Counts of a cache since it was made, and of its content. Counts of other threads may be a
/// moment late. A later version may have more fields at the end: see `floe_cache_stats`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct floe_stats {
    /// Lookups that found their key.
    pub hits: u64,
    /// Lookups that did not.
    pub misses: u64,
    /// Of the hits, those on frozen entries.
    pub frozen_hits: u64,
    /// Entries that came in.
    pub insertions: u64,
    /// Values that took another's place.
    pub replacements: u64,
    /// Entries that did not come in because they did not fit.
    pub rejections: u64,
    /// Entries that left to make room.
    pub evictions: u64,
    /// Entries whose time was over.
    pub expirations: u64,
    /// Entries that were removed.
    pub removals: u64,
    /// Loads that were begun.
    pub loads: u64,
    /// Of these, those that failed.
    pub failed_loads: u64,
    /// Entries.
    pub entries: u64,
    /// The sum of their charges; their number in a cache without a capacity of weight.
    pub weight: u64,
    /// Of the entries, those that are frozen.
    pub frozen: u64,
    /// Entries that have left and wait to be freed, those that are kept included.
    pub waiting: u64,
    /// Bytes the cache holds for itself and its entries, without keys' and values' own memory.
    pub memory_bytes: u64,
}

/// Counts. `size` is `sizeof(floe_stats)`, so that a program that knows fewer fields gets those.
/// Goes through all threads and locks: for once a second, not once a request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_cache_stats(
    cache: *const floe_cache,
    stats: *mut floe_stats,
    size: usize,
) -> floe_status {
    guarded(|| {
        // SAFETY: the program's cache and place.
        unsafe { write(cache::cache(cache)?.stats(), stats, size)? };
        Ok(floe_status::Ok)
    })
}

/// Writes counts for C.
///
/// # Safety
/// The place is null, or of so many bytes.
pub(crate) unsafe fn write(
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
    let place = stats.cast::<u8>();
    // SAFETY: the program's place, of so many bytes. What this library does not know is zero.
    unsafe {
        if size > 0 {
            give(place, 0, "stats")?;
            place.write_bytes(0, size);
        }
        let known = size.min(size_of::<floe_stats>());
        place.copy_from_nonoverlapping((&raw const all).cast(), known);
    }
    Ok(())
}

/// Returns the number of entries, 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn floe_len(cache: *const floe_cache) -> usize {
    // SAFETY: the program's cache.
    crate::error::guarded_or(0, || Ok(unsafe { cache::cache(cache)? }.len()))
}
