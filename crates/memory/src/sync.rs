//! Primitives that threads share, in one place: the model checker's tests put their own in its
//! stead.

use std::sync::TryLockError;
pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence,
    fence,
};
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
pub(crate) use std::thread_local;
use std::time::{Duration, Instant};

/// True if an atomic is the memory of its value: not so in the model checker.
#[cfg(target_arch = "x86_64")] // who reads them as such
pub(crate) const ATOMICS_ARE_PLAIN: bool = true;

/// True if an atomic of 0 is memory of zeros: not so in the model checker.
pub(crate) const ZERO_IS_NEW: bool = true;

/// Locks. Data under the locks of this crate is consistent whenever user code can panic, so a lock
/// that was held by a thread that panicked is as good as any.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Between two attempts to take a lock.
const PAUSE: Duration = Duration::from_micros(20);

/// [`lock`], unless that takes longer than until a time.
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

/// Waits for a condition.
pub(crate) fn wait<'a, T>(on: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    on.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// [`wait`], but no longer than for a time.
pub(crate) fn wait_timeout<'a, T>(
    on: &Condvar,
    guard: MutexGuard<'a, T>,
    time: Duration,
) -> MutexGuard<'a, T> {
    on.wait_timeout(guard, time).unwrap_or_else(PoisonError::into_inner).0
}
