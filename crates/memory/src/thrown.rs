//! Panics of user code, caught so that other work is done first. The payload is the user's, too:
//! its destructor may panic in turn.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Holds what a panic has thrown.
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
