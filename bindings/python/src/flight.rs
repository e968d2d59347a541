//! Loads in progress: at most one for each key. Other callers that miss the key wait for its
//! result.
//!
//! A flight is attached to its key until the load ends, or until the key is inserted or removed
//! meanwhile. In the latter case the result is not stored. The exception of a failed load reaches
//! only the caller that ran it.
//!
//! Threads wait on a condition variable. Coroutines register a function that is called at the end.
//! Neither waits where that could deadlock ([`crate::waits`]). After a `fork`, the child has none
//! of the parent's threads and event loops, so it treats the parent's loads as over.
//!
//! The locks here are held for a few instructions. They are never held while Python code runs or
//! the interpreter's lock is released.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;

use crate::key::{Key, Probe};
use crate::later::Later;
use crate::slot::FREE_THREADED;
use crate::waits::{self, Origin, Wait, Waiter, lock};

/// Interval at which a waiting thread checks for signals, such as an interrupt by the user.
const LOOK_FOR_SIGNALS_EVERY: Duration = Duration::from_millis(50);

/// Number of failed loads by others for which one caller waits, before it loads by itself. So a
/// source that has recovered is asked once, and one that keeps failing does not make its callers
/// wait for each other.
pub(crate) const FAILURES_MAX: usize = 2;

#[derive(Debug)]
enum Progress {
    /// Functions to call at the end of the load, by number.
    Loading(HashMap<u64, Py<PyAny>>),
    Loaded(Py<PyAny>),
    Failed,
}

/// A load in progress.
#[derive(Debug)]
pub(crate) struct PendingLoad {
    origin: Arc<Origin>,
    /// Event loop of the task that runs the load; `None` if a thread runs it.
    event_loop: Option<Py<PyAny>>,
    progress: Mutex<Progress>,
    landed: Condvar,
}

/// The outcome of a wait for a load.
#[derive(Debug)]
pub(crate) enum Waited<'py> {
    Loaded(Bound<'py, PyAny>),
    Failed,
    /// The caller did not wait, because that could deadlock.
    Alone,
}

impl PendingLoad {
    fn new(event_loop: Option<Py<PyAny>>, parent: Option<&Arc<Origin>>) -> Arc<Self> {
        Arc::new(Self {
            origin: Origin::new(event_loop.is_none(), parent),
            event_loop,
            progress: Mutex::new(Progress::Loading(HashMap::new())),
            landed: Condvar::new(),
        })
    }

    pub(crate) fn origin(&self) -> &Arc<Origin> {
        &self.origin
    }

    /// Ends the load: with its result, or as failed. Returns false if the load had ended before,
    /// which changes nothing.
    fn end(&self, py: Python<'_>, value: Option<Py<PyAny>>) -> bool {
        self.origin.end();
        if self.origin.is_of_parent() {
            return true; // a thread that is no more may have locked it
        }
        let mut progress = lock(&self.progress);
        if !matches!(*progress, Progress::Loading(_)) {
            drop(progress);
            drop(value); // Python's code
            return false;
        }
        let end = value.map_or(Progress::Failed, Progress::Loaded);
        let before = std::mem::replace(&mut *progress, end);
        self.landed.notify_all();
        drop(progress);
        if let Progress::Loading(functions) = before {
            for function in functions.into_values() {
                if let Err(error) = function.call0(py) {
                    error.write_unraisable(py, Some(function.bind(py)));
                }
            }
        }
        true
    }

    /// Returns the result, if the load has ended successfully.
    pub(crate) fn value<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        match &*lock(&self.progress) {
            Progress::Loaded(value) => Some(value.bind(py).clone()),
            Progress::Loading(_) | Progress::Failed => None,
        }
    }

    /// Returns whether the load cannot make progress: its event loop is not running, or it belongs
    /// to the parent of this process.
    fn is_stuck(&self, py: Python<'_>) -> bool {
        if self.origin.is_of_parent() {
            return true;
        }
        let Some(event_loop) = &self.event_loop else { return false };
        let is_running = event_loop.call_method0(py, "is_running");
        // A loop may have ended with its load.
        !is_running.is_ok_and(|it| it.is_truthy(py).unwrap_or(false))
            && matches!(*lock(&self.progress), Progress::Loading(_))
    }

    /// Blocks the calling thread until the load ends.
    ///
    /// # Errors
    /// When a signal handler raises an exception.
    pub(crate) fn wait<'py>(
        &self,
        py: Python<'py>,
        loads: Option<&Arc<Origin>>,
    ) -> PyResult<Waited<'py>> {
        if let Progress::Loaded(value) = &*lock(&self.progress) {
            return Ok(Waited::Loaded(value.bind(py).clone()));
        }
        let Some(_wait) = Wait::begin(&Waiter::thread(loads), &self.origin) else {
            return Ok(Waited::Alone);
        };
        loop {
            if self.is_stuck(py) {
                return Ok(Waited::Alone);
            }
            let has_landed = py.detach(|| {
                let loading = |progress: &mut Progress| matches!(progress, Progress::Loading(_));
                let progress = lock(&self.progress);
                let waited =
                    self.landed.wait_timeout_while(progress, LOOK_FOR_SIGNALS_EVERY, loading);
                !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
            });
            if has_landed {
                return Ok(self.value(py).map_or(Waited::Failed, Waited::Loaded));
            }
            py.check_signals()?;
        }
    }

    /// Makes a coroutine wait for the end of the load. `function` is called then, by any thread,
    /// unless the wait is dropped before. Returns `None` if waiting could deadlock.
    ///
    /// If the load has already ended, the function is called immediately.
    ///
    /// # Errors
    /// When the function is called immediately and raises an exception.
    pub(crate) fn listen(
        self: &Arc<Self>,
        event_loop: &Bound<'_, PyAny>,
        loads: Option<&Arc<Origin>>,
        function: &Bound<'_, PyAny>,
    ) -> PyResult<Option<Listening>> {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let py = event_loop.py();
        let is_own = self.event_loop.as_ref().is_some_and(|own| own.is(event_loop));
        // Of two loops of one thread, one stands still.
        let is_beside = self.event_loop.is_some() && !is_own && self.origin.is_of_this_thread();
        if is_beside || self.is_stuck(py) {
            return Ok(None);
        }
        let Some(wait) = Wait::begin(&Waiter::task(loads), &self.origin) else {
            return Ok(None);
        };
        let number = LAST.fetch_add(1, Ordering::Relaxed); // only to be unique
        let mut progress = lock(&self.progress);
        let is_over = match &mut *progress {
            Progress::Loading(functions) => {
                functions.insert(number, function.clone().unbind());
                false
            }
            Progress::Loaded(_) | Progress::Failed => true,
        };
        drop(progress);
        if is_over {
            function.call0()?;
        }
        Ok(Some(Listening { flight: Arc::clone(self), number, _wait: wait }))
    }
}

/// A coroutine's wait for a load. Dropping it ends the wait.
#[derive(Debug)]
pub(crate) struct Listening {
    flight: Arc<PendingLoad>,
    number: u64,
    _wait: Wait,
}

impl Drop for Listening {
    fn drop(&mut self) {
        if self.flight.origin.is_of_parent() {
            return; // a thread that is no more may have locked it
        }
        let function = match &mut *lock(&self.flight.progress) {
            Progress::Loading(functions) => functions.remove(&self.number),
            Progress::Loaded(_) | Progress::Failed => None,
        };
        drop(function); // Python's code, outside of the lock
    }
}

/// A caller's participation in a load.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) flight: Arc<PendingLoad>,
    /// The caller runs the load; the others wait for it.
    pub(crate) leads: bool,
}

#[derive(Debug, Default)]
struct UnderWay {
    flights: HashMap<Key, Arc<PendingLoad>>,
    /// Process that the flights belong to: see [`waits::generation`].
    generation: u64,
}

/// The loads in progress of one cache.
#[derive(Debug, Default)]
pub(crate) struct PendingLoads {
    under_way: Mutex<UnderWay>,
    loads: AtomicU64,
    failed_loads: AtomicU64,
}

impl PendingLoads {
    /// Joins the load of a key. If none is in progress, the caller starts one: as a task of
    /// `event_loop`, or else on this thread, and as part of the load `loads`. `look` checks once
    /// more whether the value is in the cache, because a load may have ended since the miss.
    pub(crate) fn join<'py>(
        &self,
        py: Python<'py>,
        key: &Key,
        event_loop: Option<&Bound<'py, PyAny>>,
        loads: Option<&Arc<Origin>>,
        look: impl FnOnce() -> Option<Bound<'py, PyAny>>,
    ) -> Part {
        let mut under_way = lock(&self.under_way);
        let stale = if under_way.generation == waits::generation() {
            None
        } else {
            under_way.generation = waits::generation();
            Some(std::mem::take(&mut under_way.flights))
        };
        if let Some(flight) = under_way.flights.get(key) {
            let flight = Arc::clone(flight);
            drop(under_way);
            return Part { flight, leads: false };
        }
        let flight = PendingLoad::new(event_loop.map(|it| it.clone().unbind()), loads);
        // With the interpreter's lock no other thread has run since.
        if FREE_THREADED && let Some(value) = look() {
            drop(under_way);
            flight.end(py, Some(value.unbind()));
            return Part { flight, leads: false };
        }
        under_way.flights.insert(key.clone_ref(py), Arc::clone(&flight));
        drop(under_way);
        drop(stale); // Python's code
        self.loads.fetch_add(1, Ordering::Relaxed); // as all counts
        Part { flight, leads: true }
    }

    /// Detaches a flight from its key and calls `place`, which stores the result. Does nothing if
    /// the flight was detached before. Meanwhile no other thread can detach the flight or join a
    /// load of the key.
    pub(crate) fn land(&self, key: &Key, flight: &Arc<PendingLoad>, place: impl FnOnce()) {
        let later = Later::begin();
        let mut under_way = lock(&self.under_way);
        let there = under_way.flights.get(key);
        let is_there = there.is_some_and(|there| Arc::ptr_eq(there, flight));
        let landed = if is_there {
            place();
            under_way.flights.remove_entry(key)
        } else {
            None
        };
        drop(under_way);
        drop((landed, later)); // Python's code
    }

    /// Detaches the load of a key and calls `replace`. Only one `replace` runs at a time, and none
    /// while a load is stored.
    pub(crate) fn replace<R>(&self, probe: &Probe<'_, '_>, replace: impl FnOnce() -> R) -> R {
        let key = probe.to_key();
        let later = Later::begin();
        let mut under_way = lock(&self.under_way);
        let detached = under_way.flights.remove_entry(&key);
        let result = replace();
        drop(under_way);
        drop((detached, later)); // Python's code
        result
    }

    /// Ends a load, wakes its waiters, and counts a failure if there is no result.
    pub(crate) fn end(&self, py: Python<'_>, flight: &PendingLoad, value: Option<Py<PyAny>>) {
        let has_failed = value.is_none();
        if flight.end(py, value) && has_failed {
            self.failed_loads.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the result of a load of a key. At most one `run` is in progress for a key: other
    /// callers wait for its result. `look` checks once more whether the value is in the cache.
    /// `finish` stores the result and [ends](Self::end) the load.
    ///
    /// # Errors
    /// When `run` or `finish` raise an exception in this caller.
    pub(crate) fn load<'py>(
        &self,
        py: Python<'py>,
        key: &Key,
        look: impl Fn() -> Option<Bound<'py, PyAny>>,
        run: impl Fn() -> PyResult<Bound<'py, PyAny>>,
        finish: impl Fn(&Arc<PendingLoad>, &Bound<'py, PyAny>) -> PyResult<()>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let load = waits::current(py)?;
        let mut failures = 0;
        loop {
            let part = self.join(py, key, None, load.as_ref(), &look);
            let flight = &part.flight;
            if part.leads {
                let result = waits::run(py, flight.origin(), &run);
                match &result {
                    Ok(value) => finish(flight, value)?,
                    Err(_) => self.give_up(py, key, flight),
                }
                return result;
            }
            if failures == FAILURES_MAX {
                break;
            }
            match flight.wait(py, load.as_ref())? {
                Waited::Loaded(value) => return Ok(value),
                Waited::Failed => failures += 1,
                // It waits for this thread, as a function that calls itself for the same key does.
                Waited::Alone => break,
            }
        }
        let result = run();
        self.count_alone(result.is_err());
        result
    }

    /// Ends a load that has failed or was cancelled, and wakes its waiters.
    pub(crate) fn give_up(&self, py: Python<'_>, key: &Key, flight: &Arc<PendingLoad>) {
        self.land(key, flight, || ());
        self.end(py, flight, None);
    }

    /// Counts a load that ran beside another one of the same key.
    pub(crate) fn count_alone(&self, has_failed: bool) {
        self.loads.fetch_add(1, Ordering::Relaxed);
        self.failed_loads.fetch_add(has_failed.into(), Ordering::Relaxed);
    }

    /// Returns whether no load is in progress.
    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.under_way).flights.is_empty()
    }

    /// Detaches the load of a key, so that its result is not stored.
    pub(crate) fn detach(&self, probe: &Probe<'_, '_>) {
        let mut under_way = lock(&self.under_way);
        if under_way.flights.is_empty() {
            return;
        }
        let detached = under_way.flights.remove_entry(&probe.to_key());
        drop(under_way);
        drop(detached);
    }

    /// Detaches all loads in progress, so that their results are not stored.
    pub(crate) fn detach_all(&self) {
        #[expect(clippy::mutable_key_type, reason = "only keys that have left a cache change")]
        let detached = std::mem::take(&mut lock(&self.under_way).flights);
        drop(detached);
    }

    /// Returns the number of loads started, and of those that failed.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.loads.load(Ordering::Relaxed), self.failed_loads.load(Ordering::Relaxed))
    }
}
