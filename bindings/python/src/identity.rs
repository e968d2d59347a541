//! Keys that only Python can compare. Each is resolved once, and compared by its identity from then
//! on.
//!
//! `__eq__` and `__hash__` of such a key may run any code, let other threads run, or use the same
//! cache. Therefore they are called here, before any lock of the cache is taken, and the cache
//! compares identities. The lock of the table is never held while Python code runs.

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

/// The class of all keys that compare equal to one object. It lives as long as a key in the cache,
/// or one that is looked up, refers to it.
#[derive(Debug)]
pub(crate) struct Identity {
    hash: isize,
    object: Slot,
    /// Number of keys that refer to the identity and have not left the cache, including those being
    /// looked up. When it reaches 0 the object is released, and the identity is never used again.
    keys: Mutex<usize>,
    of: Weak<Identities>,
}

impl Identity {
    /// Returns the first of the equal objects that was seen, unless all keys have left.
    fn object<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        self.object.get(py)
    }

    /// Counts another key. Returns false if all keys have left.
    fn join(&self) -> bool {
        let mut keys = lock(&self.keys);
        if *keys > 0 {
            *keys += 1;
        }
        *keys > 0
    }

    /// Records that a key has left. The last one releases the object.
    fn leave(&self) {
        let mut keys = lock(&self.keys);
        *keys -= 1;
        let gone = if *keys == 0 { self.object.empty() } else { None };
        drop(keys);
        later::release(gone); // Python's code
    }

    /// Reports the object to the garbage collector. Does so only while one key refers to it,
    /// because each reference may be reported only once.
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

/// A key's reference to its identity. It keeps the object alive until the key leaves the cache.
#[derive(Debug)]
pub(crate) struct Known {
    identity: Arc<Identity>,
    /// The key has left the cache and is not counted any more.
    has_left: AtomicBool,
}

impl Known {
    /// Creates a reference to an identity that counts it already.
    fn counted(identity: Arc<Identity>) -> Self {
        Self { identity, has_left: AtomicBool::new(false) }
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.identity, &other.identity)
    }

    /// Returns the first of the equal objects that was seen, unless all keys have left.
    pub(crate) fn object<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        self.identity.object(py)
    }

    /// Gives up the object after the key has left the cache.
    pub(crate) fn leave(&self) {
        // Relaxed: it says nothing about other memory.
        if !self.has_left.swap(true, Ordering::Relaxed) {
            self.identity.leave();
        }
    }

    /// Reports the object to the garbage collector.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.identity.traverse(visit)
    }
}

impl Clone for Known {
    /// Creates another counted key of the identity. The original key must not have left.
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
    /// Returns the identity of an object, and its hash. If no known identity is equal to the
    /// object, a new one is created.
    ///
    /// # Errors
    /// When the object's `__hash__` or `__eq__` raises an exception.
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
