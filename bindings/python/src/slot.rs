//! An owned reference to a Python object, released as soon as its entry leaves the cache.
//!
//! Entries that have left the cache wait some time until their memory is freed. Their objects do
//! not wait: values disappear when Python users expect it, and no waiting object is hidden from the
//! garbage collector.
//!
//! Invariant: the slot owns a reference to its object until it is emptied. Threads that read it are
//! attached to the interpreter. A thread that empties it drops the reference only when attached
//! (otherwise PyO3 defers that). With the interpreter's lock (GIL), the drop never happens between
//! a reader's load and its increment of the count. In free-threaded builds the slot's [`Pointer`]
//! ensures that.

use std::mem::ManuallyDrop;

use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit, ffi};

use crate::later;
use crate::pointer::Pointer;

/// Several attached threads may run at once. A feature makes a build with the GIL behave like that,
/// for tests.
pub(crate) const FREE_THREADED: bool = cfg!(any(Py_GIL_DISABLED, feature = "as-free-threaded"));

/// A slot that owns an object until it is emptied.
#[derive(Debug)]
pub(crate) struct Slot(Pointer<ffi::PyObject>);

impl Slot {
    pub(crate) fn new(object: Py<PyAny>) -> Self {
        Self(Pointer::new(object.into_ptr()))
    }

    /// Returns the object, unless the slot was emptied.
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

    /// Removes and returns the object.
    pub(crate) fn empty(&self) -> Option<Py<PyAny>> {
        let object = self.0.empty();
        // SAFETY: the reference is the slot's, which has given it away. The token is used for the
        // conversion only; it may be that the thread is not attached, and then PyO3 defers what
        // dropping the object does.
        unsafe { Bound::from_owned_ptr_or_opt(Python::assume_attached(), object) }
            .map(Bound::unbind)
    }

    /// Reports the object to the garbage collector.
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
