//! A fork finds no lock of a cache taken by the library's threads, which the child does not have.
//!
//! These threads are in a *section* while they have such locks, and a forking thread waits until
//! none is. User code never runs in one. It can delay one all the same, by comparing keys under a
//! lock that the section waits for: so the wait for sections has an end, and sections do not wait
//! for each other.

use std::cell::Cell;
#[cfg(all(unix, not(miri)))] // others have no fork to wait for
use std::sync::MutexGuard;
use std::sync::{Condvar, Mutex};
#[cfg(all(unix, not(miri)))] // as above
use std::time::{Duration, Instant};

#[cfg(all(unix, not(miri)))] // as above
use crate::sync::wait_timeout;
use crate::sync::{lock, wait};

/// The longest time that a fork waits for sections to end.
#[cfg(all(unix, not(miri)))] // as above
const PATIENCE: Duration = Duration::from_secs(1);

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

/// The sections, locked by a thread that forks: none is under way unless one took too long, and
/// none begins.
#[cfg(all(unix, not(miri)))] // others have no fork to wait for
pub(crate) struct NoSections(MutexGuard<'static, Sections>);

/// Waits until no section is under way, and keeps others from beginning.
#[cfg(all(unix, not(miri)))] // as above
pub(crate) fn no_sections() -> NoSections {
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
    NoSections(sections)
}

#[cfg(all(unix, not(miri)))] // as above
impl NoSections {
    /// Ends the fork in the parent.
    pub(crate) fn in_the_parent(mut self) {
        self.0.is_forking = false;
        CHANGED.notify_all();
    }

    /// Ends the fork in the child, which has no thread of a section.
    pub(crate) fn in_the_child(mut self) {
        (self.0.is_forking, self.0.under_way) = (false, 0);
    }
}
