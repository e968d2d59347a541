//! Objects of Python that are let go of while a lock is held: they wait for its end.
//!
//! The last reference to an object runs its destructor, which may be code of the user's, and the
//! interpreter may have the thread wait even where it is not.

use std::cell::RefCell;

use pyo3::prelude::*;

thread_local! {
    static WAITING: RefCell<Option<Vec<Py<PyAny>>>> = const { RefCell::new(None) };
}

/// Has the thread keep all objects that [`release`] is given, until this is dropped.
#[derive(Debug)]
pub(crate) struct Later(());

impl Later {
    /// One at a time in a thread. To be dropped after the lock.
    pub(crate) fn begin() -> Self {
        WAITING.with_borrow_mut(|waiting| {
            debug_assert!(waiting.is_none());
            *waiting = Some(Vec::new());
        });
        Self(())
    }
}

impl Drop for Later {
    fn drop(&mut self) {
        let objects = WAITING.take();
        drop(objects); // destructors may begin another
    }
}

/// Lets go of an object, now or later.
pub(crate) fn release(object: Option<Py<PyAny>>) {
    let Some(object) = object else { return };
    let mut object = Some(object);
    // A thread that ends has no such place any more, and holds no lock.
    let _ = WAITING.try_with(|waiting| {
        if let Some(waiting) = waiting.borrow_mut().as_mut() {
            waiting.extend(object.take());
        }
    });
    drop(object);
}
