//! Keys that only Python can compare, each found once and known by its identity from then on.
//!
//! `__eq__` and `__hash__` of such a key may run any code, let other threads go on, or use the same
//! cache. So they run here, before any lock of the cache, and the cache compares identities. The
//! lock of the table is never held while Python's code runs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};

use crate::slot::Slot;

type Table = HashMap<isize, Vec<Weak<Identity>>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All keys that compare equal to one object. Lives as long as a key in the cache, or one that is
/// looked up, has it.
#[derive(Debug)]
pub(crate) struct Identity {
    hash: isize,
    object: Slot,
    /// Counts the keys that have not left the cache. With the last one the object goes.
    keys: Mutex<usize>,
    of: Weak<Identities>,
}

impl Identity {
    /// The first object that was seen of those that are equal, unless all keys have left.
    pub(crate) fn object<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        self.object.get(py)
    }

    /// Counts another key, made of an equal object.
    pub(crate) fn join(&self, object: &Bound<'_, PyAny>) {
        let mut keys = lock(&self.keys);
        *keys += 1;
        self.object.fill(object); // a thread that is not attached may have had the last one leave
    }

    /// Counts another key, of one that has not left.
    pub(crate) fn join_again(&self) {
        *lock(&self.keys) += 1;
    }

    /// Notes that a key has left.
    pub(crate) fn leave(&self) {
        let mut keys = lock(&self.keys);
        *keys -= 1;
        let gone = if *keys == 0 { self.object.empty() } else { None };
        drop(keys);
        drop(gone); // Python's code
    }

    /// Shows the object to the collector of garbage, unless several keys have it: it may be shown
    /// once only.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        if *lock(&self.keys) == 1 { self.object.traverse(visit) } else { Ok(()) }
    }
}

impl Drop for Identity {
    fn drop(&mut self) {
        let Some(of) = self.of.upgrade() else { return };
        let mut table = lock(&of.table);
        if let Some(alike) = table.get_mut(&self.hash) {
            alike.retain(|other| !std::ptr::eq(other.as_ptr(), self));
            if alike.is_empty() {
                table.remove(&self.hash);
            }
        }
    }
}

/// The identities of one cache.
#[derive(Debug, Default)]
pub(crate) struct Identities {
    table: Mutex<Table>,
}

impl Identities {
    /// Returns the identity of an object, which is a new one if none that is known is equal to it,
    /// and the object's hash.
    ///
    /// # Errors
    /// Those of its `__hash__` and `__eq__`.
    pub(crate) fn of(
        self: &Arc<Self>,
        object: &Bound<'_, PyAny>,
    ) -> PyResult<(Arc<Identity>, isize)> {
        let hash = object.hash()?;
        let mut differ: Vec<Arc<Identity>> = Vec::new();
        loop {
            // Declared before the lock: the last owner of an identity takes it.
            let mut alike: Vec<Arc<Identity>> = Vec::new();
            let mut table = lock(&self.table);
            alike.extend(table.get(&hash).into_iter().flatten().filter_map(Weak::upgrade));
            let is_new =
                |found: &Arc<Identity>| !differ.iter().any(|seen| Arc::ptr_eq(seen, found));
            let Some(next) = alike.iter().find(|found| is_new(found)).cloned() else {
                let identity = Arc::new(Identity {
                    hash,
                    object: Slot::new(object.clone().unbind()),
                    keys: Mutex::new(0),
                    of: Arc::downgrade(self),
                });
                table.entry(hash).or_default().push(Arc::downgrade(&identity));
                return Ok((identity, hash));
            };
            drop(table);
            if let Some(known) = next.object(object.py())
                && (known.is(object) || known.eq(object)?)
            {
                return Ok((next, hash));
            }
            differ.push(next);
        }
    }
}
