//! Readers of a slot's pointer beside a thread that empties it, under a model checker that tries
//! every order in which they and their memory can meet: no reader counts what was freed.
//!
//! A binary of its own: it takes the module of the crate in with the atomics of the model checker.

#![allow(unsafe_code, dead_code, missing_docs, unreachable_pub)]

#[path = "../src/pointer.rs"]
mod pointer;

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicPtr, Ordering};

    pub(crate) fn spin() {
        loom::thread::yield_now();
    }
}

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicUsize;
use loom::thread;
use pointer::Pointer;
use sync::Ordering;

/// What a pointer leads to: counted, and freed with the last count.
struct Object {
    count: AtomicUsize,
    /// Written when it is made and when it is freed. The model checker reports a read beside that.
    is_there: UnsafeCell<bool>,
}

impl Object {
    fn new() -> Self {
        Self { count: AtomicUsize::new(1), is_there: UnsafeCell::new(true) }
    }

    fn join(&self) {
        // SAFETY: the model checker reports a write beside it.
        assert!(self.is_there.with(|is_there| unsafe { *is_there }), "freed before it was counted");
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    fn leave(&self) {
        if self.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            // SAFETY: the model checker reports an access beside it.
            self.is_there.with_mut(|is_there| unsafe { *is_there = false });
        }
    }
}

/// Tries all orders of so many readers beside so many threads that empty the slot.
fn check(readers: usize, emptying: usize) {
    loom::model(move || {
        let object = Box::into_raw(Box::new(Object::new()));
        let slot = Arc::new(Pointer::new(object));
        let address = object.expose_provenance();
        let mut threads = Vec::new();
        for number in 0..readers + emptying {
            let slot = Arc::clone(&slot);
            threads.push(thread::spawn(move || {
                let found = if number < readers {
                    // SAFETY: allocated until all threads have ended.
                    slot.read(|object| unsafe { (*object).join() }).is_some()
                } else {
                    !slot.empty().is_null()
                };
                if found {
                    // SAFETY: as above.
                    unsafe { (*std::ptr::with_exposed_provenance::<Object>(address)).leave() };
                }
                found
            }));
        }
        let found: Vec<bool> = threads.into_iter().map(|it| it.join().expect("an end")).collect();
        let emptied = found[readers..].iter().filter(|&&found| found).count();
        assert_eq!(emptied, 1, "taken out once");
        assert!(slot.peek().is_null() && slot.read(|_| ()).is_none());
        // SAFETY: no thread is left that has it.
        let object = unsafe { Box::from_raw(object) };
        assert_eq!(object.count.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn a_reader_counts_nothing_that_was_freed() {
    check(1, 1);
}

#[test]
fn what_two_threads_take_out_one_gets() {
    check(0, 2);
}
