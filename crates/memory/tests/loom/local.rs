//! A thread's record, by the model checker's threads: nothing here is shared but the records.

use std::collections::HashMap;

use loom::thread::ThreadId;

use crate::hazard::Record;
use crate::records::Records;
use crate::sync::Arc;

#[derive(Debug)]
pub(crate) struct Threads {
    pub(crate) records: Records,
    taken: std::sync::Mutex<HashMap<ThreadId, *const Record>>,
}

// SAFETY: the map gives each thread its own record.
unsafe impl Send for Threads {}
// SAFETY: as above.
unsafe impl Sync for Threads {}

impl Threads {
    pub(crate) fn new(records: Records) -> Arc<Self> {
        Arc::new(Self { records, taken: Default::default() })
    }

    pub(crate) fn serial(&self) -> u64 {
        0
    }

    /// Returns what happens in the library when a thread ends.
    pub(crate) fn release(&self) {
        let taken = self.taken.lock().unwrap().remove(&loom::thread::current().id());
        if let Some(record) = taken {
            // SAFETY: records live as long as `self`.
            self.records.release(unsafe { &*record });
        }
    }
}

/// Returns none: [`record`] finds it.
///
/// # Safety
/// That of the library's function of this name.
pub(crate) unsafe fn last_record<'a>(_: u64) -> Option<&'a Record> {
    None
}

pub(crate) fn record(threads: &Arc<Threads>) -> &Record {
    let this = loom::thread::current().id();
    let taken = threads.taken.lock().unwrap().get(&this).copied();
    let record = taken.unwrap_or_else(|| {
        // may switch threads, so not under the lock of the system's
        let record = threads.records.acquire();
        threads.taken.lock().unwrap().insert(this, record);
        record
    });
    // SAFETY: records live as long as `threads`.
    unsafe { &*record }
}
