//! Atomics for [`Pointer`](crate::pointer::Pointer). Its model test replaces them by those of a
//! model checker.

pub(crate) use std::sync::atomic::{AtomicPtr, Ordering};

/// Yields briefly to another thread.
pub(crate) fn spin() {
    std::thread::yield_now(); // it may have been interrupted
}
