//! Keys of a cache: Python objects, compared without running any Python code.
//!
//! The cache compares keys while it holds a lock. Python's comparison may run code that passes the
//! interpreter's lock (GIL) to another thread. If that thread then waits for the cache's lock, both
//! are deadlocked. Therefore `str`, `int`, `bytes`, `float`, `bool`, `None`, types, and tuples of
//! these, all of exactly these types, are compared here, with the same results as in Python.
//! Objects of other types that are equal to such a *plain* object are replaced by it for comparison
//! ([`sort`]): numbers, namedtuples, and most subclasses. Every other key is resolved to an
//! [identity](crate::identity::Known) before any lock is taken, and is equal only to keys with the
//! same identity.
//!
//! Nothing here can fail or allocate under the lock: a failed comparison would allow a key to be in
//! a cache twice.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use floe::Equivalent;
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};

use crate::identity::Identities;
use crate::later;
use crate::sort::{self, Sort};

/// The function and the shape of a call whose arguments make up a key; 0 for keys that the program
/// uses directly. Keys of different calls are not equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Call(pub(crate) u64);

impl Call {
    /// Returns whether the program uses the key directly, not as the arguments of a call.
    pub(crate) fn is_none(self) -> bool {
        self.0 == 0
    }
}

/// A key in a cache.
#[derive(Debug)]
pub(crate) struct Key {
    hash: u64,
    call: Call,
    sort: Sort,
    /// Object of the key; `None` if its identity has it.
    native: Option<Py<PyAny>>,
}

impl Drop for Key {
    fn drop(&mut self) {
        later::release(self.native.take());
    }
}

impl Key {
    /// Returns the object, unless the key has left the cache.
    pub(crate) fn object<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        match &self.sort {
            Sort::Other(identity) => identity.object(py),
            _ => self.native.as_ref().map(|object| object.bind(py).clone()),
        }
    }

    pub(crate) fn call(&self) -> Call {
        self.call
    }

    /// Returns another key that is equal to this one. This one must not have left the cache.
    pub(crate) fn clone_ref(&self, py: Python<'_>) -> Self {
        let native = self.native.as_ref().map(|object| object.clone_ref(py));
        Self { hash: self.hash, call: self.call, sort: self.sort.clone(), native }
    }

    /// Gives up the object that Python compares, after the key has left the cache.
    pub(crate) fn leave(&self) {
        if let Sort::Other(identity) = &self.sort {
            identity.leave();
        }
    }

    /// Reports the objects that the key refers to to the garbage collector.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        match &self.sort {
            Sort::Other(identity) => identity.traverse(visit),
            _ => visit.call(&self.native),
        }
    }

    /// Returns whether the key equals another one that has the same hash.
    #[inline(always)]
    fn is(&self, sort: &Sort, object: Option<&Bound<'_, PyAny>>, py: Python<'_>) -> bool {
        match (sort, &self.sort, object, &self.native) {
            (Sort::Other(one), Sort::Other(other), ..) => one.is(other),
            (_, own, Some(object), Some(native)) => sort.equals(object, own, native.bind(py)),
            _ => false,
        }
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash ^ self.call.0);
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        if (self.hash, self.call) != (other.hash, other.call) {
            return false;
        }
        // SAFETY: keys are inserted by attached threads alone. The threads of the library, which
        // are not attached, take entries out by their place and compare no keys.
        let py = unsafe { Python::assume_attached() };
        self.is(&other.sort, other.native.as_ref().map(|object| object.bind(py)), py)
    }
}

impl Eq for Key {}

/// A key for a lookup.
#[derive(Debug)]
pub(crate) struct Probe<'a, 'py> {
    hash: u64,
    call: Call,
    sort: Sort,
    object: &'a Bound<'py, PyAny>,
}

impl<'a, 'py> Probe<'a, 'py> {
    /// Creates a probe for an object and the call whose argument it is.
    ///
    /// # Errors
    /// When the object's `__hash__` or `__eq__` raises an exception.
    #[inline(always)]
    pub(crate) fn new(
        object: &'a Bound<'py, PyAny>,
        call: Call,
        identities: &Arc<Identities>,
    ) -> PyResult<Self> {
        let (sort, hash) = match Sort::of(object, 0) {
            Some(sort) => {
                let hash = sort.hash(object)?;
                (sort, hash)
            }
            None => Self::identify(object, identities)?,
        };
        Ok(Self { hash, call, sort, object })
    }

    #[cold]
    fn identify(object: &Bound<'py, PyAny>, identities: &Arc<Identities>) -> PyResult<(Sort, u64)> {
        if let Some(plain) = sort::to_plain(object, 0)? {
            let sort = Sort::of_alias(object, plain);
            let hash = sort.hash(object)?;
            return Ok((sort, hash));
        }
        let (identity, hash) = identities.of(object)?;
        Ok((Sort::Other(identity), hash as u64))
    }

    pub(crate) fn py(&self) -> Python<'py> {
        self.object.py()
    }

    /// Returns an owned key for insertion.
    pub(crate) fn to_key(&self) -> Key {
        let native = match &self.sort {
            Sort::Other(_) => None,
            _ => Some(self.object.clone().unbind()),
        };
        Key { hash: self.hash, call: self.call, sort: self.sort.clone(), native }
    }
}

impl Hash for Probe<'_, '_> {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash ^ self.call.0); // as `Key`
    }
}

impl Equivalent<Key> for Probe<'_, '_> {
    #[inline(always)]
    fn equivalent(&self, key: &Key) -> bool {
        (self.hash, self.call) == (key.hash, key.call)
            && key.is(&self.sort, Some(self.object), self.py())
    }
}
