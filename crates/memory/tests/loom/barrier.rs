//! Both halves of the barrier as full fences, for the model checker, which knows no others. What makes of that a barrier
//! for which only one side pays is put to the test in `src/barrier.rs`.

use std::cell::Cell;

use loom::sync::atomic::{Ordering, fence};

std::thread_local! {
    static SHORT: Cell<bool> = const { Cell::new(true) };
}

/// Whether lookups begin with the short look that hits take where the barrier is asymmetric. One model runs on one
/// thread of the system, whatever threads are in it.
#[allow(dead_code)] // not every model has it
pub(crate) fn with_short_look(short: bool) {
    SHORT.set(short);
}

pub(crate) fn settle() {}

pub(crate) fn is_asymmetric() -> bool {
    SHORT.get()
}

pub(crate) fn light() {
    fence(Ordering::SeqCst);
}

pub(crate) fn light_if_asymmetric() {
    fence(Ordering::SeqCst);
}

pub(crate) fn heavy() -> bool {
    fence(Ordering::SeqCst);
    true
}

pub(crate) fn let_stores_arrive() {
    unreachable!("no model refuses the barrier");
}
