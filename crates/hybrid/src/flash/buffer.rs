//! Page-aligned memory for direct I/O, and the pool that it returns to.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, TryLockError};

use super::ALIGNMENT;

/// Number of capacities that are kept: 4 KiB times a power of two, up to 1 MiB.
const CLASSES: usize = 9;

/// A source of [`Buffer`]s that keeps returned memory up to a limit. Clones share it.
///
/// It never waits for a lock: where another thread holds it, or held it when the process forked,
/// memory comes from the allocator and goes back there.
#[derive(Clone)]
pub(crate) struct Buffers(Arc<Kept>);

struct Kept {
    /// Free memory by capacity.
    classes: [Mutex<Vec<Memory>>; CLASSES],
    /// Bytes in `classes`. No other memory depends on it, so relaxed operations suffice.
    bytes: AtomicUsize,
    limit_bytes: usize,
}

impl Buffers {
    /// Creates a pool that keeps at most `limit_bytes` of free memory.
    pub(crate) fn new(limit_bytes: usize) -> Buffers {
        let (classes, bytes) = (Default::default(), AtomicUsize::new(0));
        Buffers(Arc::new(Kept { classes, bytes, limit_bytes }))
    }

    /// Returns a buffer of `len` bytes with unspecified content.
    ///
    /// # Panics
    /// When `len` is over half of the address space.
    pub(crate) fn take(&self, len: usize) -> Buffer {
        let class = class_of(len);
        let kept = class.and_then(|class| {
            let memory = try_lock(&self.0.classes[class])?.pop()?;
            self.0.bytes.fetch_sub(memory.capacity, Ordering::Relaxed);
            Some(memory)
        });
        let capacity = || class.map_or(len.next_multiple_of(ALIGNMENT), |class| ALIGNMENT << class);
        let memory = kept.unwrap_or_else(|| Memory::allocate(capacity()));
        Buffer { memory: Some(memory), len, home: self.clone() }
    }

    /// Returns the bytes of free memory that are kept.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.0.bytes.load(Ordering::Relaxed)
    }

    fn give_back(&self, memory: Memory) {
        let Some(class) = class_of(memory.capacity) else { return };
        let Some(mut free) = try_lock(&self.0.classes[class]) else { return };
        let before = self.0.bytes.fetch_add(memory.capacity, Ordering::Relaxed);
        if before + memory.capacity > self.0.limit_bytes {
            self.0.bytes.fetch_sub(memory.capacity, Ordering::Relaxed);
            return;
        }
        free.push(memory);
    }
}

impl fmt::Debug for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffers")
            .field("kept_bytes", &self.kept_bytes())
            .field("limit_bytes", &self.0.limit_bytes)
            .finish()
    }
}

/// Returns the class of the smallest capacity for `len` bytes; `None` if such memory is not kept.
fn class_of(len: usize) -> Option<usize> {
    let class = len.div_ceil(ALIGNMENT).next_power_of_two().trailing_zeros() as usize;
    (class < CLASSES).then_some(class)
}

fn try_lock<T>(mutex: &Mutex<T>) -> Option<std::sync::MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Initialised memory that starts at a page boundary, with one owner.
struct Memory {
    start: NonNull<u8>,
    /// A positive multiple of [`ALIGNMENT`].
    capacity: usize,
}

// SAFETY: the memory has no other owner, and is reached through this value only.
unsafe impl Send for Memory {}
// SAFETY: the bytes are reached through `Buffer` only, as `&[u8]` or exclusively as `&mut [u8]`.
unsafe impl Sync for Memory {}

impl Memory {
    fn allocate(capacity: usize) -> Memory {
        let capacity = capacity.max(ALIGNMENT);
        let layout = Memory::layout(capacity);
        // SAFETY: the layout's size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) });
        Memory { start: start.unwrap_or_else(|| handle_alloc_error(layout)), capacity }
    }

    fn layout(capacity: usize) -> Layout {
        Layout::from_size_align(capacity, ALIGNMENT).expect("a buffer fits into the address space")
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout by `allocate`; its only owner is being dropped.
        unsafe { dealloc(self.start.as_ptr(), Memory::layout(self.capacity)) };
    }
}

/// Memory that starts at a page boundary, for direct I/O. It returns to its pool when dropped.
pub(crate) struct Buffer {
    /// `None` only while the buffer is dropped.
    memory: Option<Memory>,
    len: usize,
    home: Buffers,
}

impl Buffer {
    /// Returns the bytes that fit without another allocation.
    pub(crate) fn capacity(&self) -> usize {
        self.memory().capacity
    }

    /// Sets the length in bytes. Bytes beyond the old length are unspecified.
    ///
    /// # Panics
    /// When `len` exceeds the capacity.
    pub(crate) fn resize(&mut self, len: usize) {
        assert!(len <= self.capacity(), "{len} bytes of a buffer of {}", self.capacity());
        self.len = len;
    }

    /// Returns the address of the byte at `at`, for a kernel that reads into the buffer while no
    /// reference to its bytes exists.
    ///
    /// # Panics
    /// When `at` exceeds the length.
    pub(super) fn address(&self, at: usize) -> *mut u8 {
        assert!(at <= self.len, "byte {at} of {}", self.len);
        // SAFETY: the length is at most the capacity, so that `at` is inside or at the end.
        unsafe { self.memory().start.as_ptr().add(at) }
    }

    fn memory(&self) -> &Memory {
        self.memory.as_ref().expect("a buffer has memory until it is dropped")
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` initialised bytes, borrowed as this buffer is, which owns them alone.
        unsafe { std::slice::from_raw_parts(self.memory().start.as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and the buffer is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.memory().start.as_ptr(), self.len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.home.give_back(memory);
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_aligned_and_keeps_its_bytes() {
        let buffers = Buffers::new(1 << 20);
        let lens = [0, 1, 4096, 5000, 65536, (1 << 20) + 1, 3 << 20];
        let mut held: Vec<Buffer> = lens.iter().map(|&len| buffers.take(len)).collect();
        for (i, buffer) in held.iter_mut().enumerate() {
            assert_eq!((buffer.len(), buffer.address(0) as usize % ALIGNMENT), (lens[i], 0));
            assert!(buffer.iter().all(|&byte| byte == 0), "fresh memory is initialised");
            let capacity = buffer.capacity();
            buffer.resize(capacity);
            buffer.fill(i as u8);
        }
        for (i, buffer) in held.iter().enumerate() {
            assert!(buffer.iter().all(|&byte| byte == i as u8), "no other buffer shares the bytes");
        }
    }

    #[test]
    fn memory_is_kept_up_to_the_limit() {
        let buffers = Buffers::new(3 * 4096);
        let held: Vec<Buffer> = (0..5).map(|_| buffers.take(4000)).collect();
        drop(held);
        assert_eq!(buffers.kept_bytes(), 3 * 4096);
        let one = buffers.take(1);
        assert_eq!((buffers.kept_bytes(), one.capacity()), (2 * 4096, 4096));
        drop(buffers.take(8192));
        drop(buffers.take(2 << 20));
        assert_eq!(buffers.kept_bytes(), 2 * 4096);
    }

    #[test]
    fn a_buffer_outlives_its_pool_and_changes_threads() {
        let mut buffer = Buffers::new(0).take(100);
        buffer.fill(7);
        std::thread::spawn(move || assert_eq!(*buffer, [7; 100])).join().unwrap();
    }

    #[test]
    #[should_panic(expected = "4097 bytes of a buffer of 4096")]
    fn a_buffer_does_not_grow_beyond_its_capacity() {
        Buffers::new(0).take(10).resize(4097);
    }

    #[test]
    fn threads_that_contend_for_the_pool_never_share_memory() {
        let buffers = Buffers::new(1 << 16);
        std::thread::scope(|scope| {
            for id in 0..4u8 {
                let buffers = buffers.clone();
                scope.spawn(move || {
                    for _ in 0..2000 {
                        let (mut one, mut two) = (buffers.take(64), buffers.take(64));
                        one.fill(id);
                        two.fill(id + 100);
                        assert!(one.iter().all(|&byte| byte == id));
                        assert!(two.iter().all(|&byte| byte == id + 100));
                    }
                });
            }
        });
        assert!(buffers.kept_bytes() <= 1 << 16);
    }
}
