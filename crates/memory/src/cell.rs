//! Hazard cells: each names one entry that must not be freed.

use crate::sync::{AtomicUsize, Ordering};

/// The address of the entry that a guard keeps; zero when the cell is free.
pub(crate) type Cell = AtomicUsize;

/// Set in the address that a cell names for a [handle](crate::host::Handle) of a host's cache.
pub(crate) const HANDLE: usize = 1;

/// Returns whether a cell is free.
#[inline(always)]
pub(crate) fn is_free(cell: &Cell) -> bool {
    // Acquire: a guard that outlives its thread's use of the record is cleared by that thread,
    // under the next owner. Reads under it come before the cell's next use, and so before the
    // actions of a reclaimer that sees that.
    cell.load(Ordering::Acquire) == 0
}
