//! A fork finds no lock of a cache taken by the library's threads, which the child does not have.
//!
//! These threads are in a *section* while they have such locks, and a forking thread waits until
//! none is. User code never runs in one. It can delay one all the same, by comparing keys under a
//! lock that the section waits for: so the wait for sections has an end, and sections do not wait
//! for each other.

use std::cell::Cell;
use std::sync::{Condvar, Mutex};

use crate::sync::{lock, wait};

#[derive(Debug)]
struct Sections {
    under_way: usize,
    is_forking: bool,
}

static SECTIONS: Mutex<Sections> = Mutex::new(Sections { under_way: 0, is_forking: false });
/// Rung when a section ends, and when a fork is over.
static CHANGED: Condvar = Condvar::new();

thread_local! {
    /// True if this thread is one of the library's, and in no section.
    static MAY_BE_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// A section: the process does not fork meanwhile.
#[derive(Debug)]
pub(crate) struct Quiet(());

impl Drop for Quiet {
    fn drop(&mut self) {
        let mut sections = lock(&SECTIONS);
        sections.under_way = sections.under_way.saturating_sub(1); // a child counts anew
        CHANGED.notify_all();
        MAY_BE_QUIET.set(true);
    }
}

/// The calling thread is one of the library's.
pub(crate) fn may_be_quiet() {
    MAY_BE_QUIET.set(true);
}

/// Makes a section, if this thread is one of the library's. For code that takes locks of a cache
/// and runs no user code under them.
#[inline]
pub(crate) fn quiet() -> Option<Quiet> {
    MAY_BE_QUIET.replace(false).then(|| {
        let mut sections = lock(&SECTIONS);
        while sections.is_forking {
            sections = wait(&CHANGED, sections);
        }
        sections.under_way += 1;
        Quiet(())
    })
}

pub(crate) use fork::prepare;

#[cfg(all(unix, not(miri)))]
mod fork {
    use std::cell::UnsafeCell;
    use std::mem::ManuallyDrop;
    use std::sync::{MutexGuard, Once};
    use std::time::{Duration, Instant};

    use super::{CHANGED, SECTIONS, Sections, lock, wait};
    use crate::keeper::{self, Forking};
    use crate::sync::wait_timeout;

    /// Tells how long a fork waits at most.
    const PATIENCE: Duration = Duration::from_secs(1);

    /// Holds what the thread that forks has locked.
    type Taken = (MutexGuard<'static, Sections>, Forking);

    struct Slot(UnsafeCell<Option<ManuallyDrop<Taken>>>);

    // SAFETY: only the thread that has the sections locked uses it.
    unsafe impl Sync for Slot {}

    static TAKEN: Slot = Slot(UnsafeCell::new(None));

    extern "C" fn before() {
        let mut sections = lock(&SECTIONS);
        while sections.is_forking {
            sections = wait(&CHANGED, sections); // another thread does
        }
        sections.is_forking = true;
        let until = Instant::now() + PATIENCE;
        while sections.under_way > 0 {
            let patience = until.saturating_duration_since(Instant::now());
            if patience.is_zero() {
                break;
            }
            sections = wait_timeout(&CHANGED, sections, patience);
        }
        let taken = (sections, keeper::forking());
        // SAFETY: this thread has the sections locked.
        unsafe { *TAKEN.0.get() = Some(ManuallyDrop::new(taken)) };
    }

    fn taken() -> Option<Taken> {
        // SAFETY: this thread has locked the sections in `before`.
        unsafe { (*TAKEN.0.get()).take() }.map(ManuallyDrop::into_inner)
    }

    extern "C" fn in_the_parent() {
        if let Some((mut sections, _)) = taken() {
            sections.is_forking = false;
            CHANGED.notify_all();
        }
    }

    extern "C" fn in_the_child() {
        if let Some((mut sections, keeper)) = taken() {
            (sections.is_forking, sections.under_way) = (false, 0);
            keeper.has_forked();
        }
    }

    /// Has a forked process know that it has none of the threads.
    pub(crate) fn prepare() {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            // SAFETY: the functions take locks and give them back, under which the user's code
            // never runs. Where there is no memory to note them, a forked process is without
            // maintenance.
            unsafe { libc::pthread_atfork(Some(before), Some(in_the_parent), Some(in_the_child)) };
        });
    }
}

#[cfg(any(not(unix), miri))]
mod fork {
    pub(crate) fn prepare() {}
}
