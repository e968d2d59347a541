//! A place for an object of Python, emptied as soon as its entry leaves the cache.
//!
//! Entries that have left wait some time for their memory to be freed. Their objects do not: so
//! values go when Python's users expect it, and nothing that waits is hidden from the collector of
//! garbage.
//!
//! Invariant: the slot owns a reference to its object until it is emptied. Threads that read it are
//! attached. A thread that empties it gives the reference up only when attached (PyO3 defers that
//! otherwise), so never between a reader's load and its own reference.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicPtr, Ordering};

use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit, ffi};

/// Owns an object, until it is emptied.
#[derive(Debug)]
pub(crate) struct Slot(AtomicPtr<ffi::PyObject>);

impl Slot {
    pub(crate) fn new(object: Py<PyAny>) -> Self {
        Self(AtomicPtr::new(object.into_ptr()))
    }

    /// The object, unless it has left.
    #[inline]
    pub(crate) fn get<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        // Acquire: the object was made before it was put here, maybe by another thread.
        let object = self.0.load(Ordering::Acquire);
        // SAFETY: null, or owned by the slot; and that reference is not given up before this
        // thread, which is attached, has its own.
        unsafe { Bound::from_borrowed_ptr_or_opt(py, object) }
    }

    /// Takes the object out.
    pub(crate) fn empty(&self) -> Option<Py<PyAny>> {
        // AcqRel: as `get`, and nobody finds it afterwards.
        let object = self.0.swap(std::ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: the reference is the slot's, which has given it away. The token is used for the
        // conversion only; it may be that the thread is not attached, and then PyO3 defers what
        // dropping the object does.
        unsafe { Bound::from_owned_ptr_or_opt(Python::assume_attached(), object) }
            .map(Bound::unbind)
    }

    /// Puts an object into an empty slot, if it is empty.
    pub(crate) fn fill(&self, object: &Bound<'_, PyAny>) {
        if self.get(object.py()).is_none() {
            let object = object.clone().into_ptr();
            drop(Self(AtomicPtr::new(self.0.swap(object, Ordering::AcqRel))));
        }
    }

    /// Shows the object to the collector of garbage.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        let object = self.0.load(Ordering::Acquire);
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
        drop(self.empty());
    }
}
