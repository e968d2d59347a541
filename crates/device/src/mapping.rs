//! A run of anonymous memory straight from the kernel.
//!
//! Page-aligned, zero until written, and free of cost until touched: what both the buffer pool's
//! arena and a memory device are made of. Invariant: the range `[start, start + len)` stays mapped
//! readable and writable as long as the `Mapping` lives, and nobody holds a Rust reference into it:
//! all access is by raw copies, since the kernel may be writing there.

use std::io;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Anonymous, page-aligned, zero-initialised memory, given back on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is an address range that means the same to every thread of the process, and
// belongs to it alone.
unsafe impl Send for Mapping {}
// SAFETY: its methods are system calls that any thread may make at any time.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes; a `len` of zero maps nothing.
    pub(crate) fn new(len: usize) -> io::Result<Mapping> {
        if len == 0 {
            return Ok(Mapping { start: NonNull::dangling(), len });
        }
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a null hint lets the kernel choose a free range, so no existing mapping is
        // touched.
        let start = unsafe {
            mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags)?
        };
        let start = NonNull::new(start.cast()).expect("mmap never maps the null page");
        Ok(Mapping { start, len })
    }

    /// Asks for huge pages: fewer TLB misses and fewer pages to pin. Refusal changes nothing but
    /// speed.
    pub(crate) fn prefer_huge_pages(&self) {
        if self.len > 0 {
            // SAFETY: the range is this mapping's own, and the advice does not change what its
            // bytes read as.
            let _ = unsafe { madvise(self.start.as_ptr().cast(), self.len, Advice::LinuxHugepage) };
        }
    }

    /// Gives the pages of a range back to the kernel; they read as zeros afterwards. Both ends are
    /// page-aligned.
    pub(crate) fn forget(&self, offset: usize, len: usize) -> io::Result<()> {
        assert!(offset + len <= self.len, "range outside the mapping");
        if len > 0 {
            // SAFETY: the range is inside this private anonymous mapping, whose dropped pages read
            // as zeros, and no Rust reference into it exists.
            unsafe { madvise(self.start.as_ptr().add(offset).cast(), len, Advice::LinuxDontNeed)? };
        }
        Ok(())
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: the range was mapped by `new`, is unmapped once, and whoever points into it
            // also keeps the `Mapping` alive.
            let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        }
    }
}
