//! Synchronization primitives in one place, so that tests with the model checker can replace them.

use std::sync::TryLockError;
pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence,
    fence,
};
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
pub(crate) use std::thread_local;
use std::time::{Duration, Instant};

/// True if an atomic has the memory layout of its value, which is false in the model checker.
#[cfg(target_arch = "x86_64")] // who reads them as such
pub(crate) const ATOMICS_ARE_PLAIN: bool = true;

/// True if zeroed memory is an atomic of 0, which is false in the model checker.
pub(crate) const ZERO_IS_NEW: bool = true;

/// Locks a mutex and ignores poisoning. Data under the locks of this crate is consistent whenever
/// user code can panic.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Pause between two attempts to take a lock.
const PAUSE: Duration = Duration::from_micros(20);

/// Locks a mutex as [`lock`] does; `None` if it is not free until a time.
pub(crate) fn lock_until<T>(mutex: &Mutex<T>, until: Instant) -> Option<MutexGuard<'_, T>> {
    loop {
        match mutex.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(guard)) => return Some(guard.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() >= until => return None,
            Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
        }
    }
}

/// Waits on a condition variable and ignores poisoning.
pub(crate) fn wait<'a, T>(on: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    on.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// Waits as [`wait`] does, but no longer than for a time.
pub(crate) fn wait_timeout<'a, T>(
    on: &Condvar,
    guard: MutexGuard<'a, T>,
    time: Duration,
) -> MutexGuard<'a, T> {
    on.wait_timeout(guard, time).unwrap_or_else(PoisonError::into_inner).0
}
