//! Panics of user code, caught so that other work is done first. The payload is the user's, too:
//! its destructor may panic in turn.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Holds what a panic has thrown.
type Thrown = Box<dyn Any + Send>;

/// Keeps what was thrown first, to go on with it when all is done.
pub(crate) fn keep_first(first: &mut Option<Thrown>, thrown: Thrown) {
    match first {
        None => *first = Some(thrown),
        Some(_) => discard(thrown),
    }
}

/// Drops what was thrown.
pub(crate) fn discard(thrown: Thrown) {
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(thrown))) {
        std::mem::forget(again);
    }
}
