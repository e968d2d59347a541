//! Access from a thread to its record in a cache, in a few instructions.
//!
//! A thread remembers its records by the number of the cache, which is never used twice. It has the
//! record used last, a small table of recent ones, and a map of all. When it ends, or has nothing
//! to do for a while ([`rest`]), it releases them.
//!
//! A thread that ends drops its thread-locals, and those of the user may use a cache after this
//! module's are gone. The records that they take are released at the very end (`system`), where the
//! system offers a hook for it.

use std::cell::Cell;
use std::collections::HashMap;

use crate::hazard::Record;
use crate::records::Records;
use crate::sync::{Arc, AtomicU64, Ordering, Weak};

/// Number of caches that one thread can use in turn without a search. A power of two.
const RECENT: usize = 64;
/// Minimum number of records at which a thread drops those of dropped caches. It does so again when
/// it has twice as many as were left. So the amortized cost of the first use of a cache is
/// constant.
const FORGET_FROM: usize = 64;

/// The thread records of one cache, and the cache's number.
#[derive(Debug)]
pub(crate) struct Threads {
    serial: u64,
    pub(crate) records: Records,
}

impl Threads {
    pub(crate) fn new(records: Records) -> Arc<Self> {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let serial = LAST.fetch_add(1, Ordering::Relaxed) + 1; // only to be unique; 0 is nobody's
        Arc::new(Self { serial, records })
    }

    /// Returns the number of the cache, which no other has or had.
    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }
}

/// The records of a thread, which it releases when it ends.
#[derive(Default)]
struct Mine {
    records: HashMap<u64, (Weak<Threads>, *const Record), foldhash::fast::RandomState>,
    /// Number of records at which those of dropped caches are removed.
    forget_at: usize,
    /// Number of records examined to find those of dropped caches.
    #[cfg(test)]
    visited: usize,
}

impl Mine {
    /// Returns the thread's record in a cache.
    fn record(&mut self, threads: &Arc<Threads>) -> *const Record {
        if let Some((_, record)) = self.records.get(&threads.serial) {
            return *record;
        }
        if self.records.len() >= self.forget_at.max(FORGET_FROM) {
            #[cfg(test)]
            {
                self.visited += self.records.len();
            }
            self.records.retain(|_, (threads, _)| threads.strong_count() > 0);
            self.forget_at = 2 * self.records.len();
        }
        let record = threads.records.acquire();
        self.records.insert(threads.serial, (Arc::downgrade(threads), record));
        record
    }
}

impl Drop for Mine {
    fn drop(&mut self) {
        for (_, (threads, record)) in self.records.drain() {
            if let Some(threads) = threads.upgrade() {
                // SAFETY: records live as long as their `Threads`, which is held here.
                threads.records.release(unsafe { &*record });
            }
        }
    }
}

/// Guard whose destructor releases a thread's records when its thread-locals are dropped.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        rest();
    }
}

thread_local! {
    static LAST_RECORD: Cell<(u64, *const Record)> = const { Cell::new((0, std::ptr::null())) };
    static RECENT_RECORDS: [Cell<(u64, *const Record)>; RECENT] =
        const { [const { Cell::new((0, std::ptr::null())) }; RECENT] };
    /// Pointer from a box, or null. It has no destructor, so it is usable until the thread's end.
    static MINE: Cell<*mut Mine> = const { Cell::new(std::ptr::null_mut()) };
    static END: End = const { End };
}

/// Returns the calling thread's record in a cache.
pub(crate) fn record(threads: &Arc<Threads>) -> &Record {
    // SAFETY: it lives as long as `threads`.
    let last = unsafe { last_record(threads.serial) };
    // SAFETY: the record is one of `threads` and lives as long. It is this thread's: it is
    // forgotten before it is released.
    last.unwrap_or_else(|| unsafe { &*other_record(threads) })
}

/// Returns the record that the calling thread used last, if it is one of the cache with this serial
/// number.
///
/// # Safety
/// The cache must outlive what is returned.
#[inline(always)]
pub(crate) unsafe fn last_record<'a>(serial: u64) -> Option<&'a Record> {
    let (found, last) = LAST_RECORD.get();
    // SAFETY: serial numbers are unique, so it is a record of that cache and lives as long. It is
    // this thread's: it is forgotten before it is released.
    (found == serial).then(|| unsafe { &*last })
}

/// Releases all records of the calling thread, which will not use any cache for a while. An idle
/// thread that keeps a record does not answer: a reclaimer then needs the heavy
/// [barrier](crate::barrier) for every batch.
pub(crate) fn rest() {
    let mine = MINE.replace(std::ptr::null_mut());
    if !mine.is_null() {
        LAST_RECORD.set((0, std::ptr::null()));
        RECENT_RECORDS
            .with(|recent| recent.iter().for_each(|entry| entry.set((0, std::ptr::null()))));
        // SAFETY: from `Box::into_raw`, and no reference to it is left.
        drop(unsafe { Box::from_raw(mine) });
    }
}

/// Returns the calling thread's record in a cache other than the one it used last.
#[inline(never)]
fn other_record(threads: &Arc<Threads>) -> *const Record {
    let recent = |recent: &[Cell<(u64, *const Record)>; RECENT]| {
        recent[threads.serial as usize % RECENT].get()
    };
    let (found, record) = RECENT_RECORDS.with(recent);
    let record = if found == threads.serial { record } else { search(threads) };
    LAST_RECORD.set((threads.serial, record));
    record
}

#[cold]
fn search(threads: &Arc<Threads>) -> *const Record {
    if MINE.get().is_null() {
        MINE.set(Box::into_raw(Box::default()));
        // Too late for a thread-local: another one that is dropped uses the cache. Where the system
        // knows of no later end, the records stay taken.
        if END.try_with(|_| ()).is_err() {
            system::at_the_very_end();
        }
    }
    // SAFETY: from `Box::into_raw`, freed by this thread only, and not meanwhile: nothing in here
    // is the user's code.
    let record = unsafe { &mut *MINE.get() }.record(threads);
    RECENT_RECORDS
        .with(|recent| recent[threads.serial as usize % RECENT].set((threads.serial, record)));
    record
}

#[cfg(all(unix, not(miri)))]
mod system {
    use std::ffi::c_void;
    use std::sync::OnceLock;

    /// Releases the thread's records. The system calls this when a thread's thread-locals are gone,
    /// and again if it was requested meanwhile.
    extern "C" fn end(_: *mut c_void) {
        super::rest();
    }

    fn make_key() -> Option<libc::pthread_key_t> {
        let mut key = 0;
        // SAFETY: the key is written to before it is used; the function neither unwinds nor touches
        // what was set.
        let made = unsafe { libc::pthread_key_create(&raw mut key, Some(end)) } == 0;
        made.then_some(key)
    }

    /// Requests a last [rest](super::rest) of the calling thread, after all its thread-locals are
    /// gone.
    pub(super) fn at_the_very_end() {
        static KEY: OnceLock<Option<libc::pthread_key_t>> = OnceLock::new();
        if let Some(key) = KEY.get_or_init(make_key) {
            // SAFETY: the key was made. The value is not null, so that the system calls the
            // function, and never used.
            unsafe { libc::pthread_setspecific(*key, std::ptr::dangling()) };
        }
    }
}

#[cfg(any(not(unix), miri))]
mod system {
    pub(super) fn at_the_very_end() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_use_of_a_cache_costs_the_same_however_many_a_thread_has_used() {
        let made: Vec<_> = (0..2000).map(|_| Threads::new(Records::default())).collect();
        let mut mine = Mine::default();
        made.iter().for_each(|threads| _ = mine.record(threads));
        assert!(
            mine.visited <= 2 * made.len(),
            "{} looked at for {} caches",
            mine.visited,
            made.len()
        );
        drop(made);
        for _ in 0..20_000 {
            mine.record(&Threads::new(Records::default()));
        }
        assert!(mine.visited <= 3 * 22_000, "{} looked at for 22,000 caches", mine.visited);
        assert!(
            mine.records.len() <= FORGET_FROM,
            "{} remembered of caches that are no more",
            mine.records.len()
        );
    }
}
