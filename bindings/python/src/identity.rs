//! Keys that only Python can compare, each found once and known by its identity from then on.
//!
//! `__eq__` and `__hash__` of such a key may run any code, let other threads go on, or use the same
//! cache. So they run here, before any lock of the cache, and the cache compares identities. The
//! lock of the table is never held while Python's code runs.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};

use crate::later;
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
    /// Counts the keys that have not left the cache, and those that are looked up. With the last
    /// one the object goes, and the identity is no object's any more.
    keys: Mutex<usize>,
    of: Weak<Identities>,
}

impl Identity {
    /// The first object that was seen of those that are equal, unless all keys have left.
    fn object<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        self.object.get(py)
    }

    /// Counts another key, unless all have left.
    fn join(&self) -> bool {
        let mut keys = lock(&self.keys);
        if *keys > 0 {
            *keys += 1;
        }
        *keys > 0
    }

    /// Notes that a key has left.
    fn leave(&self) {
        let mut keys = lock(&self.keys);
        *keys -= 1;
        let gone = if *keys == 0 { self.object.empty() } else { None };
        drop(keys);
        later::release(gone); // Python's code
    }

    /// Shows the object to the collector of garbage, unless several keys have it: it may be shown
    /// once only.
    fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
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

/// A key's identity, which has its object until the key leaves.
#[derive(Debug)]
pub(crate) struct Known {
    identity: Arc<Identity>,
    /// It is not counted any more.
    has_left: AtomicBool,
}

impl Known {
    /// Of an identity that counts it already.
    fn counted(identity: Arc<Identity>) -> Self {
        Self { identity, has_left: AtomicBool::new(false) }
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.identity, &other.identity)
    }

    /// The first object that was seen of those that are equal, unless all keys have left.
    pub(crate) fn object<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        self.identity.object(py)
    }

    /// Lets go of the object, after the key has left the cache.
    pub(crate) fn leave(&self) {
        // Relaxed: it says nothing about other memory.
        if !self.has_left.swap(true, Ordering::Relaxed) {
            self.identity.leave();
        }
    }

    /// Shows the object to the collector of garbage.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.identity.traverse(visit)
    }
}

impl Clone for Known {
    /// Another key of the identity, of one that has not left.
    fn clone(&self) -> Self {
        let has_joined = self.identity.join();
        debug_assert!(has_joined);
        let has_left = AtomicBool::new(!has_joined);
        Self { identity: Arc::clone(&self.identity), has_left }
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        self.leave();
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
    pub(crate) fn of(self: &Arc<Self>, object: &Bound<'_, PyAny>) -> PyResult<(Known, isize)> {
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
                    keys: Mutex::new(1),
                    of: Arc::downgrade(self),
                });
                table.entry(hash).or_default().push(Arc::downgrade(&identity));
                return Ok((Known::counted(identity), hash));
            };
            drop(table);
            if next.join() {
                // Counted, so its object stays: no other thread can find it gone, and make a second
                // identity of what is equal.
                let known = Known::counted(Arc::clone(&next));
                if let Some(first) = known.object(object.py())
                    && (first.is(object) || first.eq(object)?)
                {
                    return Ok((known, hash));
                }
            }
            differ.push(next);
        }
    }
}
