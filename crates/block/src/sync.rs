//! The atomics of this crate, in one place so that a test can put a model checker's in theirs.

pub(crate) use std::sync::atomic::{AtomicBool, Ordering, fence};
