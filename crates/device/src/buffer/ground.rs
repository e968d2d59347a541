//! The memory below buffers: arenas mapped for a family of pools, and heap blocks where those are
//! full.
//!
//! Invariant: a buffer's memory is valid as long as its [`Ground`] lives, on whichever thread that
//! ends.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::SECTOR_BYTES;
use crate::mapping::Mapping;

pub(super) const PAGE: usize = SECTOR_BYTES as usize;

/// The arenas of one pool, or of the pools of several threads: equal parts of one mapping.
#[derive(Debug)]
pub(crate) struct Family {
    mapping: Mapping,
    arena_bytes: usize,
}

impl Family {
    /// Arenas of `arena_bytes` each, whole pages.
    pub(super) fn new(arenas: usize, arena_bytes: usize) -> io::Result<Family> {
        let bytes = arenas.checked_mul(arena_bytes).ok_or(io::ErrorKind::OutOfMemory)?;
        let mapping = Mapping::new(bytes)?;
        mapping.prefer_huge_pages();
        Ok(Family { mapping, arena_bytes })
    }

    /// First byte of all arenas, which lie one after another.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.mapping.start()
    }

    /// Bytes of all arenas.
    pub(crate) fn bytes(&self) -> usize {
        self.mapping.len()
    }

    /// Bytes of each arena.
    pub(crate) fn arena_bytes(&self) -> usize {
        self.arena_bytes
    }
}

/// The memory below a buffer.
pub(super) enum Ground {
    Arena { _family: Arc<Family> },
    Heap { start: NonNull<u8>, layout: Layout },
}

// SAFETY: a `Ground` is an address and the duty to free it; its heap block is its own, and no
// method reads through it.
unsafe impl Send for Ground {}
// SAFETY: as above; nothing changes behind a shared reference.
unsafe impl Sync for Ground {}

impl Ground {
    /// That of a buffer in an arena.
    pub(super) fn in_arena(family: &Arc<Family>) -> Ground {
        Ground::Arena { _family: Arc::clone(family) }
    }

    /// A zeroed heap block of `bytes`, which are whole pages and not none.
    pub(super) fn from_heap(bytes: usize) -> (Ground, NonNull<u8>) {
        assert!(bytes > 0, "a heap block has a size");
        let layout = Layout::from_size_align(bytes, PAGE)
            .expect("a buffer is smaller than the address space");
        // SAFETY: the layout's size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })
            .unwrap_or_else(|| handle_alloc_error(layout));
        (Ground::Heap { start, layout }, start)
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        if let Ground::Heap { start, layout } = *self {
            // SAFETY: allocated with this layout in `Ground::from_heap`; the last owner is being
            // dropped.
            unsafe { dealloc(start.as_ptr(), layout) };
        }
    }
}
