//! A pointer to what is counted elsewhere, read and emptied by several threads.
//!
//! A reader takes a count of its own between its look at the pointer and the end of its closure. In
//! that time the pointer is not emptied, so the count that came with it is not given up. Readers
//! and those that empty exclude each other for these few instructions, by the pointer's lowest bit.
//!
//! Tests take this file in with the atomics of a model checker: `sync` is their parent's.

use super::sync::{AtomicPtr, Ordering, spin};

/// Set while a thread has the pointer to itself. Objects are aligned, so their addresses end in 0.
const TAKEN: usize = 1;

/// A pointer, or none.
#[derive(Debug)]
pub(crate) struct Pointer<T>(AtomicPtr<T>);

impl<T> Pointer<T> {
    pub(crate) fn new(pointer: *mut T) -> Self {
        debug_assert!(pointer.addr() & TAKEN == 0);
        Self(AtomicPtr::new(pointer))
    }

    /// Waits until no other thread has the pointer, and puts `next` of it in its place. Returns the
    /// pointer; null if there is none, which stays.
    #[inline]
    fn swap(&self, next: impl Fn(*mut T) -> *mut T) -> *mut T {
        // Relaxed: the exchange that succeeds is what orders.
        let mut seen = self.0.load(Ordering::Relaxed);
        loop {
            if seen.is_null() {
                return seen;
            }
            if seen.addr() & TAKEN != 0 {
                spin();
                seen = self.0.load(Ordering::Relaxed);
                continue;
            }
            // Acquire: the object was made before it was put here, and what other readers did to
            // its count comes before its end.
            match self.0.compare_exchange_weak(
                seen,
                next(seen),
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(pointer) => return pointer,
                Err(now) => seen = now,
            }
        }
    }

    /// Calls a function with the pointer, unless there is none. It may not wait: others spin.
    #[inline]
    pub(crate) fn read<R>(&self, read: impl FnOnce(*mut T) -> R) -> Option<R> {
        let pointer = self.swap(|pointer| pointer.map_addr(|address| address | TAKEN));
        if pointer.is_null() {
            return None;
        }
        let result = read(pointer);
        // Release: the reader's count is there before the pointer is emptied.
        self.0.store(pointer, Ordering::Release);
        Some(result)
    }

    /// Takes the pointer out; null if there is none.
    pub(crate) fn empty(&self) -> *mut T {
        self.swap(|_| std::ptr::null_mut())
    }

    /// The pointer as it is, for a thread beside which no other reads or empties. It may be null.
    pub(crate) fn peek(&self) -> *mut T {
        self.0.load(Ordering::Acquire).map_addr(|address| address & !TAKEN)
    }
}
