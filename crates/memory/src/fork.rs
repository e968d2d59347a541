//! Support for forks: a fork first takes the locks of the library's threads and of all caches, so
//! that the child finds none of them locked.

#![cfg_attr(any(not(unix), miri), allow(dead_code))] // nothing forks there

use std::sync::{Mutex, Weak};
use std::time::Instant;

use crate::numbered::Numbered;
use crate::sync::lock;

/// A cache whose locks are taken during a fork.
pub(crate) trait Forks: Send + Sync {
    /// Takes as many of the cache's locks as it can until a time.
    fn locks(&self, until: Instant) -> Box<dyn Locks + '_>;
}

/// The locks of a cache, held until this is dropped.
pub(crate) trait Locks {
    /// Removes the threads that the child does not have from the cache's records.
    fn in_the_child(&mut self);
}

type Caches = Numbered<Weak<dyn Forks>>;

static CACHES: Mutex<Caches> = Mutex::new(Numbered::new());

/// Registers a cache, by its number, so that forks take its locks until it is [forgotten](forget).
pub(crate) fn keep(number: u64, cache: Weak<dyn Forks>) {
    prepare();
    lock(&CACHES).insert(number, cache);
}

/// Removes a dropped cache from the list.
pub(crate) fn forget(number: u64) {
    let forgotten = lock(&CACHES).remove(number);
    drop(forgotten);
}

#[cfg(all(unix, not(miri)))]
mod hooks {
    use std::cell::UnsafeCell;
    use std::mem::ManuallyDrop;
    use std::sync::{Arc, MutexGuard, Once};
    use std::time::{Duration, Instant};

    use super::{CACHES, Caches, Forks, Locks};
    use crate::maintenance::{self, Forking, NoSections, no_sections};
    use crate::pending;
    use crate::sync::lock;

    /// Longest time that a fork waits for the locks of caches.
    const PATIENCE: Duration = Duration::from_secs(1);

    /// Locks that the forking thread holds. The order of the fields is the order of dropping.
    struct Taken {
        maintenance: Forking,
        waits: pending::Locked,
        /// Locks of the caches, which borrow from [`caches`](Self::caches).
        locks: Vec<Box<dyn Locks>>,
        list: MutexGuard<'static, Caches>,
        sections: NoSections,
        /// The locked caches. Dropped last: this may drop the last handle of a cache, and with it
        /// the user's values.
        caches: Vec<Arc<dyn Forks>>,
    }

    struct Slot(UnsafeCell<Option<ManuallyDrop<Taken>>>);

    // SAFETY: only the thread that has the sections locked uses it.
    unsafe impl Sync for Slot {}

    static TAKEN: Slot = Slot(UnsafeCell::new(None));

    extern "C" fn before() {
        let sections = no_sections();
        let list = lock(&CACHES);
        let caches: Vec<_> = list.iter().filter_map(|(_, cache)| cache.upgrade()).collect();
        let until = Instant::now() + PATIENCE;
        let locks = caches.iter().map(|cache| {
            // SAFETY: the cache is kept for longer, in `Taken`.
            let cache: &'static dyn Forks = unsafe { &*Arc::as_ptr(cache) };
            cache.locks(until)
        });
        let locks = locks.collect();
        let (waits, maintenance) = (pending::locked(), maintenance::forking());
        let taken = Taken { maintenance, waits, locks, list, sections, caches };
        // SAFETY: this thread has the sections locked.
        unsafe { *TAKEN.0.get() = Some(ManuallyDrop::new(taken)) };
    }

    fn taken() -> Option<Taken> {
        // SAFETY: this thread has locked the sections in `before`.
        unsafe { (*TAKEN.0.get()).take() }.map(ManuallyDrop::into_inner)
    }

    extern "C" fn in_the_parent() {
        if let Some(Taken { maintenance, waits, locks, list, sections, caches }) = taken() {
            drop((maintenance, waits, locks, list));
            sections.in_the_parent();
            drop(caches);
        }
    }

    extern "C" fn in_the_child() {
        if let Some(Taken { maintenance, waits, mut locks, list, sections, caches }) = taken() {
            pending::has_forked();
            locks.iter_mut().for_each(|locks| locks.in_the_child());
            waits.in_the_child();
            sections.in_the_child();
            maintenance.has_forked();
            drop((locks, list, caches));
        }
    }

    /// Registers the fork handlers, which also tell a child process that it has none of the
    /// library's threads.
    pub(crate) fn prepare() {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            // SAFETY: the functions take locks and give them back, under which the user's code
            // does not run but to compare keys. Where there is no memory to note them, a forked
            // process is without maintenance.
            unsafe { libc::pthread_atfork(Some(before), Some(in_the_parent), Some(in_the_child)) };
        });
    }
}

#[cfg(any(not(unix), miri))]
mod hooks {
    pub(crate) fn prepare() {}
}

pub(crate) use hooks::prepare;
