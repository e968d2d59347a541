//! Loads under way: one for each key, for which others that miss it wait.
//!
//! A flight is attached to its key until its load ends, or until the key is inserted or removed
//! meanwhile; then its value does not come in. A load that fails is nobody else's error: the next
//! that waits loads.
//!
//! The locks here are held for some instructions, and never while Python's code runs or the
//! interpreter's lock is given up.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use pyo3::prelude::*;

use crate::key::{Key, Probe};
use crate::later::Later;
use crate::slot::FREE_THREADED;

/// A waiting thread looks for signals, such as an interrupt of the user's, as often as this.
const LOOK_FOR_SIGNALS_EVERY: Duration = Duration::from_millis(50);

/// The flights that threads wait for.
static WAITS: Mutex<Vec<(ThreadId, Arc<Flight>)>> = Mutex::new(Vec::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
enum Progress {
    Loading,
    Loaded(Py<PyAny>),
    Failed,
}

/// A load under way.
#[derive(Debug)]
pub(crate) struct Flight {
    number: u64,
    thread: ThreadId,
    progress: Mutex<Progress>,
    landed: Condvar,
}

impl Flight {
    fn new() -> Arc<Self> {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Arc::new(Self {
            number: LAST.fetch_add(1, Ordering::Relaxed) + 1, // only to be unique
            thread: thread::current().id(),
            progress: Mutex::new(Progress::Loading),
            landed: Condvar::new(),
        })
    }

    /// A number that no other flight has.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Ends the load, with its value unless it failed. Only the first end counts.
    fn end(&self, value: Option<Py<PyAny>>) -> bool {
        let mut progress = lock(&self.progress);
        let is_first = matches!(*progress, Progress::Loading);
        if is_first {
            *progress = value.map_or(Progress::Failed, Progress::Loaded);
            self.landed.notify_all();
        }
        is_first
    }

    /// Waits for the end of the load, and returns its value unless it failed. Returns `None`
    /// for the flight if the wait would have no end, because its load waits for this thread.
    ///
    /// # Errors
    /// Those of handlers of signals.
    pub(crate) fn wait<'py>(
        self: &Arc<Self>,
        py: Python<'py>,
    ) -> PyResult<Option<Option<Bound<'py, PyAny>>>> {
        if let Progress::Loaded(value) = &*lock(&self.progress) {
            return Ok(Some(Some(value.bind(py).clone())));
        }
        let Some(_wait) = Wait::begin(self) else { return Ok(None) };
        loop {
            let has_landed = py.detach(|| {
                let loading = |progress: &mut Progress| matches!(progress, Progress::Loading);
                let progress = lock(&self.progress);
                let waited =
                    self.landed.wait_timeout_while(progress, LOOK_FOR_SIGNALS_EVERY, loading);
                !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
            });
            if has_landed {
                return Ok(Some(match &*lock(&self.progress) {
                    Progress::Loaded(value) => Some(value.bind(py).clone()),
                    Progress::Loading | Progress::Failed => None,
                }));
            }
            py.check_signals()?;
        }
    }
}

/// A thread's wait for a flight, noted as long as this is there.
struct Wait;

impl Wait {
    /// Notes a wait, unless the flight's thread waits, by way of others perhaps, for this one.
    fn begin(flight: &Arc<Flight>) -> Option<Self> {
        let me = thread::current().id();
        let mut waits = lock(&WAITS);
        let mut thread = flight.thread;
        while thread != me {
            let Some((_, next)) = waits.iter().find(|(waiting, _)| *waiting == thread) else {
                waits.push((me, Arc::clone(flight)));
                return Some(Self);
            };
            thread = next.thread;
        }
        None
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let me = thread::current().id();
        let mut waits = lock(&WAITS);
        let ended = waits.iter().position(|(waiting, _)| *waiting == me);
        let ended = ended.map(|at| waits.swap_remove(at));
        drop(waits);
        drop(ended); // maybe the last to have the value, whose destructor is Python's code
    }
}

/// A caller's part in a load.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) flight: Arc<Flight>,
    /// It runs the load; others wait for it.
    pub(crate) leads: bool,
}

/// The flights of one cache.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    under_way: Mutex<HashMap<Key, Arc<Flight>>>,
    loads: AtomicU64,
    failed_loads: AtomicU64,
}

impl Flights {
    /// Joins the load of a key, which begins if none is under way. `look` looks once more whether
    /// the value is there: a load may have ended since it was missed.
    pub(crate) fn join<'py>(
        &self,
        py: Python<'py>,
        key: &Key,
        look: impl FnOnce() -> Option<Bound<'py, PyAny>>,
    ) -> Part {
        let mut under_way = lock(&self.under_way);
        if let Some(flight) = under_way.get(key) {
            let flight = Arc::clone(flight);
            drop(under_way);
            return Part { flight, leads: false };
        }
        let flight = Flight::new();
        // With the interpreter's lock no other thread has run since.
        if FREE_THREADED && let Some(value) = look() {
            flight.end(Some(value.unbind()));
            return Part { flight, leads: false };
        }
        under_way.insert(key.clone_ref(py), Arc::clone(&flight));
        drop(under_way);
        self.loads.fetch_add(1, Ordering::Relaxed); // as all counts
        Part { flight, leads: true }
    }

    /// Takes a flight off its key, unless it is detached already, and has `place` put its value
    /// into the cache. No thread detaches it, or joins a load of the key, in between.
    pub(crate) fn land(&self, key: &Key, flight: &Arc<Flight>, place: impl FnOnce()) {
        let later = Later::begin();
        let mut under_way = lock(&self.under_way);
        let is_there = under_way.get(key).is_some_and(|there| Arc::ptr_eq(there, flight));
        let landed = if is_there {
            place();
            under_way.remove_entry(key)
        } else {
            None
        };
        drop(under_way);
        drop((landed, later)); // Python's code
    }

    /// Detaches the load of a key, and calls `replace`: one at a time, and none beside a load that
    /// lands.
    pub(crate) fn replace<R>(&self, probe: &Probe<'_, '_>, replace: impl FnOnce() -> R) -> R {
        let key = probe.to_key();
        let later = Later::begin();
        let mut under_way = lock(&self.under_way);
        let detached = under_way.remove_entry(&key);
        let result = replace();
        drop(under_way);
        drop((detached, later)); // Python's code
        result
    }

    /// Tells those that wait of the end of a load: of its value, unless it failed.
    pub(crate) fn end(&self, flight: &Flight, value: Option<Py<PyAny>>) {
        let has_failed = value.is_none();
        if flight.end(value) && has_failed {
            self.failed_loads.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Keeps the load of a key that is under way from coming in.
    pub(crate) fn detach(&self, probe: &Probe<'_, '_>) {
        let mut under_way = lock(&self.under_way);
        if under_way.is_empty() {
            return;
        }
        let detached = under_way.remove_entry(&probe.to_key());
        drop(under_way);
        drop(detached);
    }

    /// Keeps all loads that are under way from coming in.
    pub(crate) fn detach_all(&self) {
        #[expect(clippy::mutable_key_type, reason = "only keys that have left a cache change")]
        let detached = std::mem::take(&mut *lock(&self.under_way));
        drop(detached);
    }

    /// Loads that were begun, and those of them that failed.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.loads.load(Ordering::Relaxed), self.failed_loads.load(Ordering::Relaxed))
    }
}
