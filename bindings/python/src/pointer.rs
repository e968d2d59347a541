//! A pointer to a reference-counted object that several threads read and clear concurrently.
//!
//! A reader increments the object's reference count between loading the pointer and the end of its
//! closure. Meanwhile the pointer cannot be cleared, so its own reference is not dropped. Readers
//! and clearing threads exclude each other for these few instructions by the pointer's lowest bit.
//!
//! Tests compile this file with the atomics of a model checker: `sync` belongs to the parent
//! module.

use super::sync::{AtomicPtr, Ordering, spin};

/// Bit that is set while a thread has exclusive access to the pointer. Addresses of objects are
/// even.
const TAKEN: usize = 1;

/// An atomic pointer, possibly null.
#[derive(Debug)]
pub(crate) struct Pointer<T>(AtomicPtr<T>);

impl<T> Pointer<T> {
    pub(crate) fn new(pointer: *mut T) -> Self {
        debug_assert!(pointer.addr() & TAKEN == 0);
        Self(AtomicPtr::new(pointer))
    }

    /// Waits until no other thread has exclusive access, and replaces the pointer by `next` of it.
    /// Returns the previous pointer. A null pointer stays.
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

    /// Calls a function with the pointer, unless it is null. The function must not block, because
    /// other threads spin meanwhile.
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

    /// Replaces the pointer by null and returns the previous one, possibly null.
    pub(crate) fn empty(&self) -> *mut T {
        self.swap(|_| std::ptr::null_mut())
    }

    /// Returns the pointer, possibly null. No other thread may read or clear it meanwhile.
    pub(crate) fn peek(&self) -> *mut T {
        self.0.load(Ordering::Acquire).map_addr(|address| address & !TAKEN)
    }
}
