//! Primitives that threads share, in one place: the model checker's tests put their own in its
//! stead.

pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence,
    fence,
};
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
pub(crate) use std::thread_local;

/// True if an atomic is the memory of its value: not so in the model checker.
#[cfg(target_arch = "x86_64")] // who reads them as such
pub(crate) const ATOMICS_ARE_PLAIN: bool = true;

/// True if an atomic of 0 is memory of zeros: not so in the model checker.
pub(crate) const ZERO_IS_NEW: bool = true;

/// Locks. Data under the locks of this crate is consistent whenever user code can panic, so a lock
/// that was held by a thread that panicked is as good as any.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The thread sanitizer does not see what a lock puts in order when it is waited for within the
    // standard library.
    #[cfg(floe_thread_sanitizer)]
    loop {
        match mutex.try_lock() {
            Ok(guard) => return guard,
            Err(std::sync::TryLockError::Poisoned(guard)) => return guard.into_inner(),
            Err(std::sync::TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }
    #[cfg(not(floe_thread_sanitizer))]
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for a condition. The thread sanitizer sees neither how a wait gives the lock back nor how
/// it takes it again, so under it this only lets go of the lock for a moment, and the caller looks
/// again.
pub(crate) fn wait<'a, T>(
    on: &Condvar,
    mutex: &'a Mutex<T>,
    guard: MutexGuard<'a, T>,
) -> MutexGuard<'a, T> {
    if cfg!(floe_thread_sanitizer) {
        return wait_timeout(on, mutex, guard, MOMENT);
    }
    on.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// [`wait`], but no longer than for a time.
pub(crate) fn wait_timeout<'a, T>(
    on: &Condvar,
    mutex: &'a Mutex<T>,
    guard: MutexGuard<'a, T>,
    time: std::time::Duration,
) -> MutexGuard<'a, T> {
    if cfg!(floe_thread_sanitizer) {
        drop(guard);
        std::thread::sleep(time.min(MOMENT));
        return lock(mutex);
    }
    on.wait_timeout(guard, time).unwrap_or_else(PoisonError::into_inner).0
}

/// Tells how long the thread sanitizer's threads wait at a time.
const MOMENT: std::time::Duration = std::time::Duration::from_millis(1);
