//! From a thread to its record in a cache, in a few instructions.
//!
//! A thread remembers its records by the number of the cache, which is never given twice: the one used last, a small
//! table of those used lately, and a map of all. When it ends, or has nothing to do for a while ([`rest`]), it releases them.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use crate::hazard::{Record, Records};
use crate::sync::{Arc, AtomicU64, Ordering, Weak};

/// Caches that one thread can use in turn without a search. A power of two.
const RECENT: usize = 64;

/// The records of one cache, and its number.
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
}

/// The records of a thread, which it releases when it ends.
#[derive(Default)]
struct Mine(HashMap<u64, (Weak<Threads>, *const Record)>);

impl Mine {
    fn release(&mut self) {
        LAST_RECORD.set((0, std::ptr::null()));
        RECENT_RECORDS.with(|recent| recent.iter().for_each(|entry| entry.set((0, std::ptr::null()))));
        for (_, (threads, record)) in self.0.drain() {
            if let Some(_threads) = threads.upgrade() {
                // SAFETY: records live as long as their `Threads`, which is held here.
                unsafe { &*record }.release();
            }
        }
    }
}

impl Drop for Mine {
    fn drop(&mut self) {
        self.release();
    }
}

thread_local! {
    static LAST_RECORD: Cell<(u64, *const Record)> = const { Cell::new((0, std::ptr::null())) };
    static RECENT_RECORDS: [Cell<(u64, *const Record)>; RECENT] =
        const { [const { Cell::new((0, std::ptr::null())) }; RECENT] };
    static MINE: RefCell<Mine> = RefCell::default();
}

/// The calling thread's record in a cache.
#[inline(always)]
pub(crate) fn record(threads: &Arc<Threads>) -> &Record {
    let (found, last) = LAST_RECORD.get();
    let record = if found == threads.serial { last } else { other_record(threads) };
    // SAFETY: the record is one of `threads`, as numbers are unique, and lives as long. It is this thread's: it is
    // forgotten before it is released.
    unsafe { &*record }
}

/// Gives all records of the calling thread back, which has nothing to do with any cache for a while. A thread that keeps a record
/// and does nothing answers nobody: whoever frees anything needs the heavy [barrier](crate::barrier) for it, batch by batch.
pub(crate) fn rest() {
    MINE.with_borrow_mut(Mine::release);
}

/// The calling thread's record in a cache other than the one it used last.
#[inline(never)]
fn other_record(threads: &Arc<Threads>) -> *const Record {
    let recent =
        |recent: &[Cell<(u64, *const Record)>; RECENT]| recent[threads.serial as usize % RECENT].get();
    let (found, record) = RECENT_RECORDS.with(recent);
    let record = if found == threads.serial { record } else { search(threads) };
    LAST_RECORD.set((threads.serial, record));
    record
}

#[cold]
fn search(threads: &Arc<Threads>) -> *const Record {
    let record = MINE.try_with(|mine| {
        let mut mine = mine.borrow_mut();
        if let Some((_, record)) = mine.0.get(&threads.serial) {
            return *record;
        }
        mine.0.retain(|_, (threads, _)| threads.strong_count() > 0);
        let record = threads.records.acquire();
        mine.0.insert(threads.serial, (Arc::downgrade(threads), record));
        record
    });
    // A thread that is about to end and has released its records takes another and cannot release that: it stays taken.
    let record = record.unwrap_or_else(|_| threads.records.acquire());
    RECENT_RECORDS.with(|recent| recent[threads.serial as usize % RECENT].set((threads.serial, record)));
    record
}
