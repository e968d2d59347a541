//! The user's code that a thread runs for a cache, and the depth of its nested calls.
//!
//! A listener or a destructor may use the cache that calls it. More entries may leave by that, for
//! which listeners are called, and so on: a chain can be as long as the cache is large. Up to
//! [`DEEPEST`] nested calls run at once, so that short work does not wait for a slow listener.
//! Deeper calls leave their work to the innermost of those, which runs it in a loop. So a chain of
//! any length takes the stack of a few calls.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::retired::{Batch, Departures};

// Not those of the models: only one thread uses them.

/// Maximum number of nested calls of the user's code in one thread; further ones are deferred.
const DEEPEST: u32 = 4;

/// Work for the user's code that an operation defers until its shard's lock is released.
#[derive(Debug, Default)]
pub(crate) struct Leaving {
    /// Number of the shard that the entries have left.
    pub(crate) shard: usize,
    /// Removed entries for which the listener is to be called.
    pub(crate) to_tell: Departures,
    /// Removed entries that are to be freed.
    pub(crate) batch: Option<Box<Batch>>,
}

/// Depth and deferred work of one thread's calls into user code for one cache. Only that thread
/// uses it.
#[derive(Debug, Default)]
pub(crate) struct Nesting {
    depth: AtomicU32,
    left: Mutex<VecDeque<Leaving>>,
}

/// Guard that exists while a call of the user's code runs.
#[derive(Debug)]
pub(crate) struct Nested<'a>(&'a Nesting);

impl Drop for Nested<'_> {
    fn drop(&mut self) {
        self.0.depth.fetch_sub(1, Relaxed); // of this thread
    }
}

impl Nesting {
    fn left(&self) -> MutexGuard<'_, VecDeque<Leaving>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner) // see `sync::lock`
    }

    /// Enters a call of the user's code. Returns `None` if calls are nested too deep, and the work
    /// is to be [deferred](Self::leave).
    pub(crate) fn enter(&self) -> Option<Nested<'_>> {
        let depth = self.depth.load(Relaxed); // of this thread
        (depth < DEEPEST).then(|| {
            self.depth.store(depth + 1, Relaxed); // as above
            Nested(self)
        })
    }

    /// Defers work to the innermost call that has [entered](Self::enter).
    pub(crate) fn leave(&self, leaving: Leaving) {
        self.left().push_back(leaving);
    }

    /// Takes the oldest deferred work.
    pub(crate) fn next(&self) -> Option<Leaving> {
        self.left().pop_front()
    }
}

/// The payload of a panic.
type Thrown = Box<dyn Any + Send>;

/// The first panic among several calls of user code, to be raised when all have run.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct FirstPanic(Option<Thrown>);

impl FirstPanic {
    /// Creates a collector without a panic.
    pub(crate) fn none() -> Self {
        Self::default()
    }

    /// Runs a closure and catches its panic. Returns `None` if it panics; only the first panic is
    /// kept.
    pub(crate) fn catch<R>(&mut self, run: impl FnOnce() -> R) -> Option<R> {
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(result) => Some(result),
            Err(thrown) => {
                match &self.0 {
                    None => self.0 = Some(thrown),
                    Some(_) => discard(thrown),
                }
                None
            }
        }
    }

    /// Raises the first panic, if there was one. Does nothing in a thread that is already
    /// unwinding: a second panic would abort the process.
    pub(crate) fn raise(self) {
        match self.0 {
            None => {}
            Some(thrown) if std::thread::panicking() => discard(thrown),
            Some(thrown) => resume_unwind(thrown),
        }
    }
}

/// Drops the payload of a panic. A panic of its destructor is caught, too.
pub(crate) fn discard(thrown: Thrown) {
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(thrown))) {
        std::mem::forget(again);
    }
}
