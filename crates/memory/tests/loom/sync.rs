//! Primitives of `src/sync.rs`, by the model checker. It also holds that what is freed is freed
//! after every use of it: an atomic that is dropped while another thread may yet use it, or without
//! the order that makes that use come before, fails the model, as does a [`Tracked`] value.

#![allow(unused_imports, dead_code)] // not every model has all of it

use std::hash::{Hash, Hasher};
use std::ops::Deref;

use crate::barrier;

pub(crate) use loom::sync::MutexGuard;
pub(crate) use loom::sync::atomic::Ordering;
pub(crate) use loom::thread_local;
pub(crate) use std::sync::{Arc, PoisonError, Weak};

pub(crate) const ATOMICS_ARE_PLAIN: bool = false;
pub(crate) const ZERO_IS_NEW: bool = false;

/// A lock that is waited for asleep.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> std::sync::LockResult<MutexGuard<'_, T>> {
        barrier::sleeps();
        let result = self.0.lock();
        barrier::wakes();
        result
    }

    /// The model checker may have a thread wait here, too.
    pub(crate) fn try_lock(&self) -> std::sync::TryLockResult<MutexGuard<'_, T>> {
        barrier::sleeps();
        let result = self.0.try_lock();
        barrier::wakes();
        result
    }

    pub(crate) fn get_mut(&mut self) -> std::sync::LockResult<&mut T> {
        self.0.get_mut()
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn lock_until<T>(mutex: &Mutex<T>, _: std::time::Instant) -> Option<MutexGuard<'_, T>> {
    Some(lock(mutex))
}

/// A condition that is waited for asleep.
#[derive(Debug)]
pub(crate) struct Condvar(loom::sync::Condvar);

impl Condvar {
    pub(crate) fn new() -> Self {
        Self(loom::sync::Condvar::new())
    }

    pub(crate) fn wait<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
    ) -> std::sync::LockResult<MutexGuard<'a, T>> {
        barrier::sleeps();
        let result = self.0.wait(guard);
        barrier::wakes();
        result
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}

impl Default for Condvar {
    fn default() -> Self {
        Self::new()
    }
}

/// Waits however long it takes: no model has a time.
pub(crate) fn wait_timeout<'a, T>(
    on: &Condvar,
    guard: MutexGuard<'a, T>,
    _: std::time::Duration,
) -> MutexGuard<'a, T> {
    on.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

std::thread_local! {
    static FENCES: std::cell::Cell<bool> = const { std::cell::Cell::new(true) };
}

/// Returns whether the crate's own fences do anything, those that are not the barrier's: some are
/// there only for the case that there is no barrier, and would hide its absence where it is needed.
pub(crate) fn with_own_fences(fences: bool) {
    FENCES.set(fences);
}

pub(crate) fn fence(order: Ordering) {
    if FENCES.get() {
        loom::sync::atomic::fence(order);
    }
}

macro_rules! atomic {
    ($name:ident $(<$of:ident>)?, $value:ty) => {
        #[derive(Debug)]
        pub(crate) struct $name $(<$of>)? (loom::sync::atomic::$name $(<$of>)?);

        impl $(<$of>)? $name $(<$of>)? {
            pub(crate) fn new(value: $value) -> Self {
                Self(loom::sync::atomic::$name::new(value))
            }
        }

        impl $(<$of>)? Default for $name $(<$of>)? {
            fn default() -> Self {
                Self(Default::default())
            }
        }

        impl $(<$of>)? Deref for $name $(<$of>)? {
            type Target = loom::sync::atomic::$name $(<$of>)?;

            fn deref(&self) -> &Self::Target {
                barrier::step(); // before each access
                &self.0
            }
        }

        impl $(<$of>)? Drop for $name $(<$of>)? {
            fn drop(&mut self) {
                if !std::thread::panicking() {
                    self.0.with_mut(|_| ());
                }
            }
        }
    };
}

atomic!(AtomicPtr<T>, *mut T);
atomic!(AtomicU64, u64);
atomic!(AtomicUsize, usize);

/// Without: the one has no mutable view in the model checker, the other is moved by copying its
/// bytes (`Expiry`). Where they are, there are others, too.
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32};

/// A number in memory that must be neither read while it is freed nor after.
#[derive(Debug)]
pub(crate) struct Tracked(loom::cell::UnsafeCell<u64>);

// SAFETY: the model checker fails when two threads are at it at once and one of them writes.
unsafe impl Sync for Tracked {}

const FREED: u64 = 0xdead_dead;

impl Tracked {
    pub(crate) fn new(number: u64) -> Self {
        Self(loom::cell::UnsafeCell::new(number))
    }

    pub(crate) fn get(&self) -> u64 {
        // SAFETY: the model checker fails when somebody writes meanwhile; only `set` does.
        let number = self.0.with(|number| unsafe { *number });
        assert_ne!(number, FREED, "read after it was freed");
        number
    }
}

impl Tracked {
    /// Nobody may read it meanwhile.
    pub(crate) fn set(&self, to: u64) {
        // SAFETY: as in `get`.
        self.0.with_mut(|number| unsafe { *number = to });
    }

    /// Nobody may read it meanwhile or later.
    pub(crate) fn free(&self) {
        self.set(FREED);
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.free();
        }
    }
}

impl Clone for Tracked {
    fn clone(&self) -> Self {
        Self::new(self.get())
    }
}

impl PartialEq for Tracked {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl Eq for Tracked {}

impl Hash for Tracked {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_u64(self.get());
    }
}
