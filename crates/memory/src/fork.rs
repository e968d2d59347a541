//! A fork takes the locks of the library's threads first, so that the child finds none taken.

#[cfg(all(unix, not(miri)))]
mod hooks {
    use std::cell::UnsafeCell;
    use std::mem::ManuallyDrop;
    use std::sync::Once;

    use crate::maintenance::{self, Forking};
    use crate::quiet::{NoSections, no_sections};

    /// Holds what the thread that forks has locked.
    type Taken = (NoSections, Forking);

    struct Slot(UnsafeCell<Option<ManuallyDrop<Taken>>>);

    // SAFETY: only the thread that has the sections locked uses it.
    unsafe impl Sync for Slot {}

    static TAKEN: Slot = Slot(UnsafeCell::new(None));

    extern "C" fn before() {
        let sections = no_sections();
        let taken = (sections, maintenance::forking());
        // SAFETY: this thread has the sections locked.
        unsafe { *TAKEN.0.get() = Some(ManuallyDrop::new(taken)) };
    }

    fn taken() -> Option<Taken> {
        // SAFETY: this thread has locked the sections in `before`.
        unsafe { (*TAKEN.0.get()).take() }.map(ManuallyDrop::into_inner)
    }

    extern "C" fn in_the_parent() {
        if let Some((sections, _keeper)) = taken() {
            sections.in_the_parent();
        }
    }

    extern "C" fn in_the_child() {
        if let Some((sections, maintenance)) = taken() {
            sections.in_the_child();
            maintenance.has_forked();
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
mod hooks {
    pub(crate) fn prepare() {}
}

pub(crate) use hooks::prepare;
