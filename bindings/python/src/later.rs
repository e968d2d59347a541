//! Deferred release of Python objects whose last reference is dropped while a lock is held.
//!
//! Dropping the last reference to an object runs its destructor, which may be user code. Even
//! without such code the interpreter may make the thread wait.
//!
//! The library's own threads, which remove expired entries, never wait for the interpreter: a
//! thread that holds the interpreter may be waiting for them. PyO3 keeps the objects that they
//! release until some thread attaches to the interpreter. A separate thread exists only to do that.

use std::cell::RefCell;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;

use pyo3::ffi;
use pyo3::prelude::*;

thread_local! {
    static WAITING: RefCell<Option<Vec<Py<PyAny>>>> = const { RefCell::new(None) };
}

/// Defers all releases by this thread until the value is dropped: see [`release`].
#[derive(Debug)]
pub(crate) struct Later(());

impl Later {
    /// Starts to defer releases. Only one may exist per thread, and it must be dropped after the
    /// lock.
    pub(crate) fn begin() -> Self {
        WAITING.with_borrow_mut(|waiting| {
            debug_assert!(waiting.is_none());
            *waiting = Some(Vec::new());
        });
        Self(())
    }
}

impl Drop for Later {
    fn drop(&mut self) {
        let objects = WAITING.take();
        drop(objects); // destructors may begin another
    }
}

/// Releases an object, now or at the end of a [`Later`].
pub(crate) fn release(object: Option<Py<PyAny>>) {
    let Some(object) = object else { return };
    let mut object = Some(object);
    // A thread that ends has no such place any more, and holds no lock.
    let _ = WAITING.try_with(|waiting| {
        if let Some(waiting) = waiting.borrow_mut().as_mut() {
            waiting.extend(object.take());
        }
    });
    if object.is_some() {
        drop(object);
        // SAFETY: it asks for nothing.
        if unsafe { ffi::PyGILState_GetThisThreadState() }.is_null() {
            Reaper::of_process().wake();
        }
    }
}

/// The thread that attaches to the interpreter, so that PyO3 releases the objects that it keeps.
#[derive(Debug, Default)]
struct Reaper {
    /// True if PyO3 keeps objects that should be released.
    is_due: AtomicBool,
    is_started: Mutex<bool>,
    due: Condvar,
}

/// Reaper of this process; null before the first use.
static REAPER: AtomicPtr<Reaper> = AtomicPtr::new(ptr::null_mut());
/// True if the interpreter is shutting down.
static HAS_ENDED: AtomicBool = AtomicBool::new(false);

impl Reaper {
    fn of_process() -> &'static Self {
        let there = REAPER.load(Ordering::Acquire);
        // SAFETY: null, or leaked below.
        if let Some(reaper) = unsafe { there.as_ref() } {
            return reaper;
        }
        let made = Box::into_raw(Box::default());
        // AcqRel: it is made before others see it.
        match REAPER.compare_exchange(there, made, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: leaked.
            Ok(_) => unsafe { &*made },
            Err(there) => {
                // SAFETY: this thread's, and no other saw it.
                drop(unsafe { Box::from_raw(made) });
                // SAFETY: leaked by another thread.
                unsafe { &*there }
            }
        }
    }

    fn wake(&'static self) {
        // Acquire and Release: what PyO3 keeps is there before the flag.
        if HAS_ENDED.load(Ordering::Acquire) || self.is_due.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut is_started = self.is_started.lock().unwrap_or_else(PoisonError::into_inner);
        if !*is_started {
            let thread = thread::Builder::new().name("floe-release".into());
            *is_started = thread.spawn(|| self.run()).is_ok();
            if !*is_started {
                self.is_due.store(false, Ordering::Release); // the next call of Floe does it
            }
        }
        self.due.notify_one();
    }

    fn run(&self) {
        loop {
            let is_started = self.is_started.lock().unwrap_or_else(PoisonError::into_inner);
            let waits = |_: &mut bool| !self.is_due.load(Ordering::Acquire);
            drop(self.due.wait_while(is_started, waits));
            // Before PyO3 looks at what it keeps: what comes after that is due again.
            self.is_due.swap(false, Ordering::AcqRel);
            if HAS_ENDED.load(Ordering::Acquire) || Python::try_attach(|_| ()).is_none() {
                return;
            }
        }
    }
}

/// Resets the state in a child of `fork`, which lacks the parent's reaper thread.
pub(crate) fn after_fork() {
    REAPER.store(ptr::null_mut(), Ordering::Release); // a thread that is no more may have locked it
}

/// Stops the reaper's work because the interpreter is shutting down.
pub(crate) fn end() {
    HAS_ENDED.store(true, Ordering::Release);
}
