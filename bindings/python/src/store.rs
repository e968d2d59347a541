//! The entries of a cache.

use floe::policy::AnyPolicy;
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};

use crate::key::Key;
use crate::later;
use crate::slot::Slot;

/// A cached Python object with its weight.
#[derive(Debug)]
pub(crate) struct Value {
    object: Slot,
    weight: u32,
}

impl Value {
    pub(crate) fn new(object: Bound<'_, PyAny>, weight: u32) -> Self {
        Self { object: Slot::new(object.unbind()), weight }
    }

    /// Returns the object, unless its entry has left the cache.
    #[inline]
    pub(crate) fn object<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        self.object.get(py)
    }

    pub(crate) fn weight(&self) -> u32 {
        self.weight
    }

    /// Releases the object after its entry has left the cache.
    pub(crate) fn leave(&self) {
        later::release(self.object.empty());
    }

    /// Reports the object to the garbage collector.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.object.traverse(visit)
    }
}

/// The Rust cache, with Python keys and values.
pub(crate) type Store = floe::Cache<Key, Value, AnyPolicy>;
