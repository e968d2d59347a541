//! A place for an object of Python, emptied as soon as its entry leaves the cache.
//!
//! Entries that have left wait some time for their memory to be freed. Their objects do not: so
//! values go when Python's users expect it, and nothing that waits is hidden from the collector of
//! garbage.
//!
//! Invariant: the slot owns a reference to its object until it is emptied. Threads that read it are
//! attached. A thread that empties it gives the reference up only when attached (PyO3 defers that
//! otherwise). With the interpreter's lock (GIL) that is never between a reader's load and its own
//! reference. Without it, the slot's [`Pointer`] sees to that.

use std::mem::ManuallyDrop;

use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit, ffi};

use crate::later;
use crate::pointer::Pointer;

/// Several attached threads run at once. A feature has a build with the lock work the same way, for
/// tests.
pub(crate) const FREE_THREADED: bool = cfg!(any(Py_GIL_DISABLED, feature = "as-free-threaded"));

/// Owns an object, until it is emptied.
#[derive(Debug)]
pub(crate) struct Slot(Pointer<ffi::PyObject>);

impl Slot {
    pub(crate) fn new(object: Py<PyAny>) -> Self {
        Self(Pointer::new(object.into_ptr()))
    }

    /// The object, unless it has left.
    #[inline]
    pub(crate) fn get<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        if FREE_THREADED {
            // SAFETY: owned by the slot, which is not emptied before the closure's end. It runs no
            // code of Python's and does not wait.
            self.0.read(|object| unsafe { Bound::from_borrowed_ptr(py, object) })
        } else {
            // SAFETY: null, or owned by the slot; and that reference is not given up before this
            // thread, which is attached, has its own.
            unsafe { Bound::from_borrowed_ptr_or_opt(py, self.0.peek()) }
        }
    }

    /// Takes the object out.
    pub(crate) fn empty(&self) -> Option<Py<PyAny>> {
        let object = self.0.empty();
        // SAFETY: the reference is the slot's, which has given it away. The token is used for the
        // conversion only; it may be that the thread is not attached, and then PyO3 defers what
        // dropping the object does.
        unsafe { Bound::from_owned_ptr_or_opt(Python::assume_attached(), object) }
            .map(Bound::unbind)
    }

    /// Shows the object to the collector of garbage.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        // The collector stops all attached threads, none of which stops while it reads a slot.
        let object = self.0.peek();
        if object.is_null() {
            return Ok(());
        }
        // SAFETY: the slot keeps its reference: this one is not dropped. The collector runs in an
        // attached thread.
        let object = unsafe {
            ManuallyDrop::new(Bound::from_owned_ptr(Python::assume_attached(), object).unbind())
        };
        visit.call(&*object)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        later::release(self.empty());
    }
}
