//! Atomics of [`Pointer`](crate::pointer::Pointer), which its model has from a model checker.

pub(crate) use std::sync::atomic::{AtomicPtr, Ordering};

/// Waits a moment for another thread.
pub(crate) fn spin() {
    std::thread::yield_now(); // it may have been interrupted
}
