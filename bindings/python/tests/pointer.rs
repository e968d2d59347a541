//! Readers of a slot's pointer beside a thread that empties it, on threads of the system's: no
//! reader counts what was freed, and all that is counted is freed once. For the thread sanitizer,
//! too.
//!
//! A binary of its own: the crate is a library for Python only.

#![allow(unsafe_code, dead_code, missing_docs, unreachable_pub)]

#[path = "../src/pointer.rs"]
mod pointer;
mod sync {
    pub(crate) use std::sync::atomic::{AtomicPtr, Ordering};

    pub(crate) fn spin() {
        std::thread::yield_now();
    }
}

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Barrier};
use std::thread;

use pointer::Pointer;
use sync::Ordering;

const READERS: usize = 3;
const ROUNDS: usize = 2000;
/// A count that no object in use has.
const FREED: usize = usize::MAX / 2;

#[test]
fn readers_count_only_what_is_there() {
    for _ in 0..ROUNDS {
        let count = Arc::new(AtomicUsize::new(1));
        let slot = Arc::new(Pointer::new(Arc::as_ptr(&count).cast_mut()));
        let begin = Arc::new(Barrier::new(READERS + 1));
        let leave = |count: &AtomicUsize| {
            if count.fetch_sub(1, Ordering::AcqRel) == 1 {
                count.store(FREED, Ordering::Relaxed);
            }
        };
        let threads: Vec<_> = (0..=READERS)
            .map(|number| {
                let (count, slot) = (Arc::clone(&count), Arc::clone(&slot));
                let begin = Arc::clone(&begin);
                thread::spawn(move || {
                    begin.wait();
                    if number == READERS {
                        assert!(!slot.empty().is_null());
                        leave(&count);
                        return;
                    }
                    // SAFETY: `count` keeps it.
                    let join =
                        |it: *mut AtomicUsize| unsafe { (*it).fetch_add(1, Ordering::Relaxed) };
                    while let Some(before) = slot.read(join) {
                        assert!((1..=READERS + 1).contains(&before), "freed before: {before}");
                        leave(&count);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("an end"));
        assert_eq!(count.load(Ordering::Relaxed), FREED);
        assert!(slot.peek().is_null() && slot.empty().is_null());
    }
}
