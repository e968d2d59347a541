//! Handles that are released more than once.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Further references by the pointer of a handle. The pointers of counted handles count by
/// themselves; those of others, which are few, are looked up here.
#[derive(Debug, Default)]
pub(super) struct References {
    /// All that are in the table.
    count: AtomicUsize,
    /// By handle: counted ones.
    table: Mutex<HashMap<usize, Vec<usize>>>,
}

impl References {
    /// Adds a reference, which is another counted handle.
    pub(super) fn add(&self, raw: NonNull<()>, another: NonNull<()>) {
        if raw == another {
            return; // counted: the same pointer
        }
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.entry(raw.addr().get()).or_default().push(another.as_ptr().expose_provenance());
        // Relaxed: who releases the handle was given it after this, and takes the lock.
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes out the counted handle that is released in place of this one, if there is one.
    pub(super) fn take(&self, raw: NonNull<()>) -> Option<NonNull<()>> {
        // Relaxed: as above.
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let handles = table.get_mut(&raw.addr().get())?;
        let another = handles.pop();
        if handles.is_empty() {
            table.remove(&raw.addr().get());
        }
        self.count.fetch_sub(1, Ordering::Relaxed);
        another.and_then(|it| NonNull::new(std::ptr::with_exposed_provenance_mut(it)))
    }
}
