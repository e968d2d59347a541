//! The entries of a cache.

use floe::policy::AnyPolicy;
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};

use crate::key::Key;
use crate::later;
use crate::slot::Slot;

/// An object in a cache, weighed before it came in.
#[derive(Debug)]
pub(crate) struct Value {
    object: Slot,
    weight: u32,
}

impl Value {
    pub(crate) fn new(object: Bound<'_, PyAny>, weight: u32) -> Self {
        Self { object: Slot::new(object.unbind()), weight }
    }

    /// The object, unless its entry has left.
    #[inline]
    pub(crate) fn object<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        self.object.get(py)
    }

    pub(crate) fn weight(&self) -> u32 {
        self.weight
    }

    /// Lets go of the object of an entry that has left the cache.
    pub(crate) fn leave(&self) {
        later::release(self.object.empty());
    }

    /// Shows the object to the collector of garbage.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.object.traverse(visit)
    }
}

/// The library's cache, of Python's keys and values.
pub(crate) type Store = floe::Cache<Key, Value, AnyPolicy>;
