//! The user's code that a thread runs for a cache, and how deep it is nested.
//!
//! A listener or a destructor may use the cache that calls it. More entries leave thereby, of which
//! listeners hear, and so on: a chain can be as long as the cache is large. Some calls within each
//! other run at once, so that nothing waits longer for a listener that does much. Deeper ones leave
//! their work to the innermost of those, which does it in a loop. So a chain of any length takes
//! the stack of a few calls.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::retired::{Batch, Departures};

// Not those of the models: only one thread uses them.

/// Calls of the user's code within each other that run at once.
const DEEPEST: u32 = 4;

/// Work that an operation leaves to the user's code, once its shard's lock is released.
#[derive(Debug, Default)]
pub(crate) struct Leaving {
    /// The number of the shard.
    pub(crate) shard: usize,
    /// Entries of which the listener is to hear.
    pub(crate) to_tell: Departures,
    /// Entries that are to be freed.
    pub(crate) batch: Option<Box<Batch>>,
}

/// The nesting of one thread in one cache. Only that thread uses it.
#[derive(Debug, Default)]
pub(crate) struct Nesting {
    depth: AtomicU32,
    left: Mutex<VecDeque<Leaving>>,
}

/// Is there while the user's code runs.
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

    /// Notes that the user's code runs from now on, `None` if it is to be [left](Self::leave) to an
    /// outer call.
    pub(crate) fn enter(&self) -> Option<Nested<'_>> {
        let depth = self.depth.load(Relaxed); // of this thread
        (depth < DEEPEST).then(|| {
            self.depth.store(depth + 1, Relaxed); // as above
            Nested(self)
        })
    }

    /// Leaves work to the innermost call that has [entered](Self::enter).
    pub(crate) fn leave(&self, leaving: Leaving) {
        self.left().push_back(leaving);
    }

    /// The work that was left first.
    pub(crate) fn next(&self) -> Option<Leaving> {
        self.left().pop_front()
    }
}

/// The payload of a panic.
type Thrown = Box<dyn Any + Send>;

/// The first panic of several pieces of user code, to be raised when all have run.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct FirstPanic(Option<Thrown>);

impl FirstPanic {
    /// Of code that has yet to run.
    pub(crate) fn none() -> Self {
        Self::default()
    }

    /// Runs some code. `None` if it panics; the first panic is kept, others are dropped.
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

    /// Goes on with the first panic, if there was one. A thread that unwinds already goes on with
    /// its own: two would end the process.
    pub(crate) fn raise(self) {
        match self.0 {
            None => {}
            Some(thrown) if std::thread::panicking() => discard(thrown),
            Some(thrown) => resume_unwind(thrown),
        }
    }
}

/// Drops what was thrown.
pub(crate) fn discard(thrown: Thrown) {
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(thrown))) {
        std::mem::forget(again);
    }
}
