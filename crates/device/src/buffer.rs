//! Aligned, reference-counted memory for device and socket I/O.
//!
//! [`Buffer`]s come from a [`Pool`]. A [`Slice`] is part of a buffer, and the unit of memory that
//! operations take.
//!
//! Invariants: a buffer's memory is 4096-aligned, initialised, and shared with no other buffer
//! until the last clone drops. No `&` or `&mut` to it is ever formed, because the kernel may be
//! writing there: everything is a raw copy. Reading a slice while a read into it is in flight gives
//! unspecified bytes, so the owner of an operation leaves its slice alone until the completion.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::{fmt, io};

pub(crate) use pool::Mapping;

pub use pool::{Buffer, Lent, Pool, PoolStats, Seed};

mod pool;

/// The unit in bytes in which Floe tracks valid and dirty data, and the alignment of all device
/// I/O.
pub const SECTOR_BYTES: u64 = 4096;

impl Buffer {
    /// Returns the part of the buffer in `range`.
    ///
    /// # Panics
    /// When `range` reaches past the end.
    #[inline]
    pub fn slice(&self, range: Range<usize>) -> Slice {
        assert!(
            range.start <= range.end && range.end <= self.len(),
            "{range:?} of a buffer of {}",
            self.len()
        );
        Slice { buffer: self.clone(), start: range.start, len: range.end - range.start }
    }

    /// Returns the whole buffer as a slice.
    #[inline]
    pub fn whole(&self) -> Slice {
        self.slice(0..self.len())
    }
}

/// Part of a [`Buffer`], which a slice keeps alive.
#[derive(Clone)]
pub struct Slice {
    buffer: Buffer,
    start: usize,
    len: usize,
}

impl Slice {
    /// Returns the length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the slice has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the part of the slice in `range`, relative to the slice's start.
    ///
    /// # Panics
    /// When `range` reaches past the slice's end.
    #[inline]
    pub fn slice(&self, range: Range<usize>) -> Slice {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "{range:?} of a slice of {}",
            self.len
        );
        Slice {
            buffer: self.buffer.clone(),
            start: self.start + range.start,
            len: range.end - range.start,
        }
    }

    /// Returns a separate buffer over the slice's memory, for functions that take whole buffers.
    /// The memory counts as lent until the last clone of that buffer drops. As with
    /// [`Buffer::lend`], one user at a time touches the bytes by convention.
    ///
    /// # Panics
    /// When the slice does not start at a page boundary; buffers always do.
    #[inline]
    pub fn share(&self) -> Buffer {
        assert!(
            self.start.is_multiple_of(4096),
            "a buffer starts where a page does, not at {}",
            self.start
        );
        self.buffer.lend_part(self.start, self.len).attach()
    }

    /// Lends the slice's memory to another thread, as [`Buffer::lend`] does for a whole buffer. The
    /// borrower's buffer starts where the slice does.
    pub(crate) fn lend(&self) -> Lent {
        self.buffer.lend_part(self.start, self.len)
    }

    /// Returns the address of the first byte. Valid while the slice or another clone of its buffer
    /// lives.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        // SAFETY: `start` is at most the buffer's length.
        unsafe { self.buffer.start().as_ptr().add(self.start) }
    }

    /// Copies `bytes` into the slice.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn copy_from(&self, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.len, "copy into a slice of another length");
        // SAFETY: the slice covers `len` bytes of live memory, which no reference such as `bytes`
        // can overlap.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.as_ptr(), self.len) }
    }

    /// Copies the slice's bytes into `bytes`.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn copy_to(&self, bytes: &mut [u8]) {
        assert_eq!(bytes.len(), self.len, "copy out of a slice of another length");
        // SAFETY: the slice covers `len` bytes of live, initialised memory, which no reference such
        // as `bytes` can overlap.
        unsafe { std::ptr::copy_nonoverlapping(self.as_ptr(), bytes.as_mut_ptr(), self.len) }
    }

    /// Returns a copy of the slice's bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.copy_to(&mut bytes);
        bytes
    }

    /// Sets every byte to zero.
    pub fn fill_zero(&self) {
        // SAFETY: the slice covers `len` bytes of live memory.
        unsafe { std::ptr::write_bytes(self.as_ptr(), 0, self.len) }
    }

    /// Copies `from` to `to`, which may overlap.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn copy(from: &Slice, to: &Slice) {
        assert_eq!(from.len, to.len, "copy between slices of different lengths");
        // SAFETY: both cover `len` bytes of live, initialised memory; `copy` allows overlap.
        unsafe { std::ptr::copy(from.as_ptr(), to.as_ptr(), from.len) }
    }
}

impl fmt::Debug for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slice({} bytes)", self.len)
    }
}

const PAGE: usize = SECTOR_BYTES as usize;

/// The arenas of one pool, or of the pools of several threads: equal parts of one mapping.
#[derive(Debug)]
pub(crate) struct Family {
    mapping: Mapping,
    arena_bytes: usize,
}

impl Family {
    /// Maps `arenas` arenas of `arena_bytes` each, which is a multiple of the page size.
    fn new(arenas: usize, arena_bytes: usize) -> io::Result<Family> {
        let bytes = arenas.checked_mul(arena_bytes).ok_or(io::ErrorKind::OutOfMemory)?;
        let mapping = Mapping::new(bytes)?;
        mapping.prefer_huge_pages();
        Ok(Family { mapping, arena_bytes })
    }

    /// Returns the address of the first arena; the others follow without gaps.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.mapping.start()
    }

    /// Returns the size of all arenas together in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.mapping.len()
    }

    /// Returns the size of each arena in bytes.
    pub(crate) fn arena_bytes(&self) -> usize {
        self.arena_bytes
    }
}

/// The memory under a buffer, valid on every thread as long as the `Ground` lives.
enum Ground {
    Arena { _family: Arc<Family> },
    Heap { start: NonNull<u8>, layout: Layout },
}

// SAFETY: a `Ground` is an address and the duty to free it; its heap block is its own, and no
// method reads through it.
unsafe impl Send for Ground {}
// SAFETY: as above; nothing changes behind a shared reference.
unsafe impl Sync for Ground {}

impl Ground {
    fn in_arena(family: &Arc<Family>) -> Ground {
        Ground::Arena { _family: Arc::clone(family) }
    }

    /// Allocates a zeroed heap block of `bytes`, a positive multiple of the page size.
    fn from_heap(bytes: usize) -> (Ground, NonNull<u8>) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_aligned_and_holds_what_was_stored() {
        let pool = Pool::new(1 << 20);
        for len in [1, 4096, 5000, 65536, 3 << 20] {
            let buffer = pool.allocate(len);
            assert_eq!(buffer.len(), len);
            assert_eq!(buffer.whole().as_ptr() as usize % 4096, 0);
            let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
            buffer.whole().copy_from(&bytes);
            assert_eq!(buffer.slice(len / 2..len).to_vec(), bytes[len / 2..]);
        }
    }

    #[test]
    fn memory_returns_only_with_the_last_slice() {
        let pool = Pool::new(8192);
        let slice = pool.allocate(8192).slice(4096..8192);
        slice.copy_from(&[7; 4096]);
        let other = pool.allocate(4096);
        other.whole().copy_from(&[9; 4096]);
        assert_eq!(slice.to_vec(), [7; 4096]);
        assert_eq!(pool.stats().fallbacks, 1);
        let deeper = slice.slice(10..20);
        drop(slice);
        assert_eq!(pool.stats().arena_used_bytes, 8192);
        drop(deeper);
        assert_eq!(pool.stats().arena_used_bytes, 0);
        drop(other);
        let again = pool.allocate(8192);
        let stats = pool.stats();
        assert_eq!(
            (stats.fallbacks, stats.fallback_bytes, stats.arena_used_bytes),
            (1, 0, again.len())
        );
    }

    #[test]
    fn small_blocks_that_were_kept_become_a_large_one_again() {
        let pool = Pool::new(256 * 4096);
        for order in 0..8 {
            drop((0..256 >> order).map(|_| pool.allocate(4096 << order)).collect::<Vec<_>>());
        }
        let whole = pool.allocate(256 * 4096);
        assert_eq!((pool.stats().fallbacks, pool.stats().arena_used_bytes), (0, whole.len()));
    }

    #[test]
    fn a_buffer_outlives_its_pool() {
        let buffer = Pool::new(4096).allocate(100);
        buffer.whole().copy_from(&[1; 100]);
        assert_eq!(buffer.whole().to_vec(), [1; 100]);
    }

    #[test]
    fn overlapping_copies_move_the_bytes() {
        let buffer = Pool::new(4096).allocate(6);
        buffer.whole().copy_from(b"abcdef");
        Slice::copy(&buffer.slice(0..4), &buffer.slice(2..6));
        assert_eq!(buffer.whole().to_vec(), b"ababcd");
    }

    #[test]
    #[should_panic(expected = "different lengths")]
    fn copying_between_different_lengths_panics() {
        let buffer = Pool::new(0).allocate(6);
        Slice::copy(&buffer.slice(0..4), &buffer.slice(0..3));
    }
}
