//! Buffer pools: where buffers come from, where they return to, and how another thread borrows
//! them.
//!
//! A [`Pool`] owns a page-aligned arena, which a ring can register with the kernel once, and cuts
//! [`Buffer`]s out of it with a buddy allocator: blocks are powers of two from 4 KiB, and a freed
//! block merges with its other half, so mixed sizes do not fragment the arena. When the arena is
//! full an allocation comes from the heap: slower, never refused. The threads of a server have a
//! *family* of pools: one mapping, an arena for each thread.
//!
//! On its thread a buffer is reference-counted without atomics. The reference count and its content
//! (a [`Memory`]) are reused for the next buffer, so a warm pool allocates nothing from the heap.
//! Another thread gets a [`Lent`], and from that a `Buffer` with a count of its own.
//!
//! Invariants: an `Arc<Ground>`, one per buffer, keeps the memory alive; its other owners are
//! exactly the loans. A home buffer whose local count is zero goes back to the buddy allocator only
//! once `Arc::get_mut` finds no loan left; until then it waits in `on_loan`. The borrower returns a
//! loan by dropping the `Arc`, which touches no other data of the home thread: the drop releases,
//! `get_mut` acquires, and so all accesses of the borrower happen before the next use of the
//! memory. A loan also keeps the mapping, so it outlives its home thread.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use std::{fmt, io};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::{Family, Ground, PAGE};

/// The number of waiting loans that each allocation checks. More than one, so that loans are
/// collected faster than they are made.
const LOOKS: usize = 2;

/// An arena of memory from which buffers are cut. Clones share the arena.
#[derive(Clone)]
pub struct Pool(Rc<Home>);

/// A pool of a family that has not yet been bound to its thread.
#[derive(Debug)]
pub struct Seed {
    family: Arc<Family>,
    member: usize,
}

/// The current usage of a [`Pool`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolStats {
    /// Size of the arena in bytes.
    pub arena_bytes: usize,
    /// Bytes of the arena in use, rounded up to blocks, buffers on loan included.
    pub arena_used_bytes: usize,
    /// The number of buffers allocated from the heap since the pool was created.
    pub fallbacks: u64,
    /// Bytes of heap buffers in use now.
    pub fallback_bytes: usize,
    /// Buffers that this thread has dropped and another thread still borrows.
    pub on_loan: usize,
}

/// The memory of a buffer; an `Rc` around it counts the buffer's owners on one thread.
struct Memory {
    start: NonNull<u8>,
    len: usize,
    place: Place,
    /// The underlying memory; `None` only in a borrower's spare entry.
    ground: Option<Arc<Ground>>,
    /// The pool that the memory returns to; `None` for borrowed memory, and once the local count is
    /// zero.
    home: Option<Rc<Home>>,
}

#[derive(Debug, Clone, Copy)]
enum Place {
    Arena { page: u32, order: u32 },
    Heap { bytes: usize },
    Borrowed,
}

thread_local! {
    /// Reference counts of borrowed buffers that were dropped, kept for reuse.
    static SPARE: RefCell<Vec<Rc<Memory>>> = const { RefCell::new(Vec::new()) };
}

impl Pool {
    /// Creates a pool with an arena of `arena_bytes`, rounded up to whole pages. The system
    /// provides the memory when it is first touched.
    ///
    /// # Panics
    /// When the process has no address space left for the arena.
    pub fn new(arena_bytes: usize) -> Pool {
        Pool::family(1, arena_bytes).remove(0).pool()
    }

    /// Creates pools for `threads` threads, each with an arena of `arena_bytes`, rounded up to
    /// whole pages. A ring that registers one of them knows the buffers of all.
    ///
    /// # Panics
    /// When the process has no address space left for the arenas.
    pub fn family(threads: usize, arena_bytes: usize) -> Vec<Seed> {
        Pool::try_family(threads, arena_bytes).unwrap_or_else(|error| {
            panic!("cannot map {threads} arenas of {arena_bytes} bytes: {error}")
        })
    }

    /// Creates pools like [`Pool::family`], but returns an error instead of panicking.
    ///
    /// # Errors
    /// When the process has no address space left for the arenas.
    pub fn try_family(threads: usize, arena_bytes: usize) -> io::Result<Vec<Seed>> {
        let family = Arc::new(Family::new(threads, arena_bytes.next_multiple_of(PAGE))?);
        Ok((0..threads).map(|member| Seed { family: Arc::clone(&family), member }).collect())
    }

    /// Allocates a buffer of `len` bytes with unspecified (but initialised) content. Falls back to
    /// the heap when the arena has no room.
    pub fn allocate(&self, len: usize) -> Buffer {
        let home = &self.0;
        let order = len.div_ceil(PAGE).next_power_of_two().trailing_zeros();
        home.collect(LOOKS);
        if let Some(buffer) = home.again(order, len) {
            return buffer;
        }
        let cut = || home.buddy.borrow_mut().allocate(order);
        let page = cut().or_else(|| {
            home.collect(usize::MAX);
            home.merge();
            cut()
        });
        match page {
            Some(page) => self.arena_buffer(page, order, len),
            None => self.heap_buffer(len),
        }
    }

    fn arena_buffer(&self, page: u32, order: u32, len: usize) -> Buffer {
        let home = &self.0;
        home.used_bytes.set(home.used_bytes.get() + (PAGE << order));
        let at = home.first + page as usize * PAGE;
        // SAFETY: the buddy hands out pages inside this pool's part of the mapping only.
        let start = unsafe { home.family.start().add(at) };
        let place = Place::Arena { page, order };
        let spare = home.spare.borrow_mut().pop();
        let ground = || Arc::new(Ground::in_arena(&home.family));
        Buffer::counted(spare, |before| Memory {
            start,
            len,
            place,
            ground: Some(before.unwrap_or_else(ground)),
            home: Some(Rc::clone(home)),
        })
    }

    fn heap_buffer(&self, len: usize) -> Buffer {
        let home = &self.0;
        let bytes = len.max(1).next_multiple_of(PAGE);
        let (ground, start) = Ground::from_heap(bytes);
        home.fallbacks.set(home.fallbacks.get() + 1);
        home.fallback_bytes.set(home.fallback_bytes.get() + bytes);
        let ground = Some(Arc::new(ground));
        let place = Place::Heap { bytes };
        Buffer::counted(None, |_| Memory { start, len, place, ground, home: Some(Rc::clone(home)) })
    }

    /// Returns the arena's usage and the number of heap fallbacks.
    pub fn stats(&self) -> PoolStats {
        PoolStats {
            arena_bytes: self.0.family.arena_bytes(),
            arena_used_bytes: self.0.used_bytes.get(),
            fallbacks: self.0.fallbacks.get(),
            fallback_bytes: self.0.fallback_bytes.get(),
            on_loan: self.0.on_loan.borrow().len(),
        }
    }

    /// Returns the arenas of the family, for registering them with a ring.
    pub(crate) fn arenas(&self) -> &Family {
        &self.0.family
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stats().fmt(f)
    }
}

impl Seed {
    /// Creates the pool on the calling thread.
    pub fn pool(self) -> Pool {
        Pool(Rc::new(Home {
            first: self.member * self.family.arena_bytes(),
            buddy: RefCell::new(Buddy::new(self.family.arena_bytes() / PAGE)),
            kept: RefCell::default(),
            spare: RefCell::default(),
            on_loan: RefCell::default(),
            used_bytes: Cell::new(0),
            fallbacks: Cell::new(0),
            fallback_bytes: Cell::new(0),
            family: self.family,
        }))
    }
}

/// A range of 4096-aligned memory. Clones share it; it returns to its pool with the last clone and
/// the last loan.
pub struct Buffer(ManuallyDrop<Rc<Memory>>);

impl Buffer {
    /// Returns the length in bytes, as requested at allocation.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Returns whether the buffer has no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Returns the address of the first byte.
    pub(super) fn start(&self) -> NonNull<u8> {
        self.0.start
    }

    /// Lends the buffer's memory to another thread. By convention one thread at a time uses the
    /// bytes: touching them here before the borrower has reported that it is done gives unspecified
    /// bytes.
    pub fn lend(&self) -> Lent {
        self.lend_part(0, self.0.len)
    }

    /// Lends `len` bytes, starting at the byte `from`.
    pub(super) fn lend_part(&self, from: usize, len: usize) -> Lent {
        assert!(
            from <= self.0.len && len <= self.0.len - from,
            "{len} bytes at {from} of {}",
            self.0.len
        );
        let ground = self.0.ground.as_ref().expect("a buffer stands on something");
        // SAFETY: `from` is at most the buffer's length.
        let start = unsafe { self.0.start.add(from) };
        Lent { start, len, ground: Arc::clone(ground) }
    }

    /// Creates a buffer with a count of one, reusing the allocation of `spare` if there is one.
    /// `memory` receives the spare's `Ground`.
    fn counted(
        spare: Option<Rc<Memory>>,
        memory: impl FnOnce(Option<Arc<Ground>>) -> Memory,
    ) -> Buffer {
        let Some(mut spare) = spare else {
            return Buffer(ManuallyDrop::new(Rc::new(memory(None))));
        };
        let inside = Rc::get_mut(&mut spare).expect("a spare count has one owner");
        *inside = memory(inside.ground.take());
        Buffer(ManuallyDrop::new(spare))
    }
}

impl Clone for Buffer {
    #[inline]
    fn clone(&self) -> Buffer {
        Buffer(ManuallyDrop::new(Rc::clone(&self.0)))
    }
}

impl Drop for Buffer {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: a dropped buffer is not used again.
        let mut memory = unsafe { ManuallyDrop::take(&mut self.0) };
        if let Some(inside) = Rc::get_mut(&mut memory) {
            let home = inside.home.take();
            end(memory, home);
        }
    }
}

/// Returns the memory of a thread's last buffer to its pool or its lender.
fn end(mut memory: Rc<Memory>, home: Option<Rc<Home>>) {
    match home {
        Some(home) => {
            if let Some(memory) = home.free(memory) {
                home.on_loan.borrow_mut().push_back(memory);
            }
        }
        None => {
            Rc::get_mut(&mut memory).expect("nobody here uses it").ground = None;
            // A thread that is ending keeps no spares.
            let _ = SPARE.try_with(|spare| spare.borrow_mut().push(memory));
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len())
    }
}

/// A loan of a [`Buffer`] to another thread. Dropping it returns the loan.
pub struct Lent {
    start: NonNull<u8>,
    len: usize,
    ground: Arc<Ground>,
}

// SAFETY: the memory is valid on every thread as long as `ground` lives, and is only ever copied to
// and from, as the kernel does at the same time as a thread.
unsafe impl Send for Lent {}

impl Lent {
    /// Turns the loan into a buffer on the calling thread. The loan is returned with the last
    /// clone.
    pub fn attach(self) -> Buffer {
        let Lent { start, len, ground } = self;
        let spare = SPARE.try_with(|spare| spare.borrow_mut().pop()).ok().flatten();
        Buffer::counted(spare, |_| Memory {
            start,
            len,
            place: Place::Borrowed,
            ground: Some(ground),
            home: None,
        })
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lent({} bytes)", self.len)
    }
}

const NONE: u32 = u32::MAX;
const TAKEN: u8 = u8::MAX;
/// The number of block orders: a block has fewer than 2^32 pages.
pub(super) const ORDERS: usize = 32;

/// The free pages of an arena, managed by a buddy allocator (Knowlton, "A fast storage allocator",
/// CACM 1965).
///
/// A block of order `k` is `2^k` pages that start at a multiple of `2^k`; its buddy is the block
/// whose number differs in that one bit. Allocation splits the smallest block that is large enough;
/// freeing merges a block with its buddy while that is free too.
///
/// Invariants: `order_of[p]` is the order of a free block that starts at `p`, and `TAKEN` for every
/// other page. Free blocks of one order are a doubly linked list. Two free buddies never coexist.
#[derive(Debug)]
pub(crate) struct Buddy {
    heads: [u32; ORDERS],
    next: Vec<u32>,
    previous: Vec<u32>,
    order_of: Vec<u8>,
}

impl Buddy {
    /// Creates an allocator with all `pages` free; their number need not be a power of two.
    pub(crate) fn new(pages: usize) -> Buddy {
        assert!(pages < NONE as usize, "an arena has fewer than 2^32 pages");
        let mut buddy = Buddy {
            heads: [NONE; ORDERS],
            next: vec![NONE; pages],
            previous: vec![NONE; pages],
            order_of: vec![TAKEN; pages],
        };
        let mut page = 0;
        while page < pages {
            let order = page.trailing_zeros().min((pages - page).ilog2());
            buddy.link(page as u32, order);
            page += 1 << order;
        }
        buddy
    }

    /// Allocates a block of `2^order` pages and returns its first page; `None` if no such block is
    /// free.
    pub(crate) fn allocate(&mut self, order: u32) -> Option<u32> {
        let found = (order..ORDERS as u32).find(|&o| self.heads[o as usize] != NONE)?;
        let page = self.heads[found as usize];
        self.unlink(page);
        for half in (order..found).rev() {
            self.link(page + (1 << half), half);
        }
        Some(page)
    }

    /// Frees a block that `allocate(order)` returned.
    pub(crate) fn free(&mut self, mut page: u32, mut order: u32) {
        debug_assert_eq!(self.order_of[page as usize], TAKEN, "freed twice");
        loop {
            let buddy = page ^ (1 << order);
            if self.order_of.get(buddy as usize) != Some(&(order as u8)) {
                break;
            }
            self.unlink(buddy);
            page &= buddy;
            order += 1;
        }
        self.link(page, order);
    }

    fn link(&mut self, page: u32, order: u32) {
        let head = std::mem::replace(&mut self.heads[order as usize], page);
        self.next[page as usize] = head;
        self.previous[page as usize] = NONE;
        if head != NONE {
            self.previous[head as usize] = page;
        }
        self.order_of[page as usize] = order as u8;
    }

    fn unlink(&mut self, page: u32) {
        let (next, previous) = (self.next[page as usize], self.previous[page as usize]);
        let order = std::mem::replace(&mut self.order_of[page as usize], TAKEN);
        match previous {
            NONE => self.heads[order as usize] = next,
            _ => self.next[previous as usize] = next,
        }
        if next != NONE {
            self.previous[next as usize] = previous;
        }
    }
}

/// The number of free blocks of each order that are cached for the next buffer, bypassing the buddy
/// allocator.
const KEPT: usize = 16;

/// The state of a pool on its own thread: its arena and its buffers.
struct Home {
    family: Arc<Family>,
    /// Byte offset of this pool's arena in the mapping.
    first: usize,
    buddy: RefCell<Buddy>,
    /// Dropped buffers whose blocks are cached, by order, for the next buffer of that order.
    kept: RefCell<[Vec<Rc<Memory>>; ORDERS]>,
    /// Reference counts of arena buffers whose blocks went back to the buddy allocator, kept for
    /// reuse.
    spare: RefCell<Vec<Rc<Memory>>>,
    /// Buffers whose local count is zero but which a loan still holds.
    on_loan: RefCell<VecDeque<Rc<Memory>>>,
    used_bytes: Cell<usize>,
    fallbacks: Cell<u64>,
    fallback_bytes: Cell<usize>,
}

impl Home {
    /// Returns a buffer in a cached block of this order, if there is one.
    fn again(self: &Rc<Home>, order: u32, len: usize) -> Option<Buffer> {
        let mut memory = self.kept.borrow_mut().get_mut(order as usize)?.pop()?;
        self.used_bytes.set(self.used_bytes.get() + (PAGE << order));
        let inside = Rc::get_mut(&mut memory).expect("a kept block has one owner");
        (inside.len, inside.home) = (len, Some(Rc::clone(self)));
        Some(Buffer(ManuallyDrop::new(memory)))
    }

    /// Returns all cached blocks to the buddy allocator, which merges them into larger ones.
    fn merge(&self) {
        for memory in self.kept.borrow_mut().iter_mut().flat_map(|kept| kept.drain(..)) {
            if let Place::Arena { page, order } = memory.place {
                self.buddy.borrow_mut().free(page, order);
            }
            self.spare.borrow_mut().push(memory);
        }
    }

    /// Checks up to `most` buffers on loan, the longest waiting first, and frees those whose loans
    /// have ended.
    fn collect(&self, most: usize) {
        let mut on_loan = self.on_loan.borrow_mut();
        for _ in 0..most.min(on_loan.len()) {
            let memory = on_loan.pop_front().expect("no more than there are");
            if let Some(memory) = self.free(memory) {
                on_loan.push_back(memory);
            }
        }
    }

    /// Frees a buffer that this thread no longer uses. Returns the buffer if another thread still
    /// borrows it.
    fn free(&self, mut memory: Rc<Memory>) -> Option<Rc<Memory>> {
        let (place, ground) = {
            let memory = Rc::get_mut(&mut memory).expect("nobody here uses it");
            (memory.place, memory.ground.as_mut().expect("home buffers stand on something"))
        };
        // The other owners are the loans; this is the acquiring look of the invariants.
        if Arc::get_mut(ground).is_none() {
            return Some(memory);
        }
        match place {
            Place::Arena { page, order } => {
                self.used_bytes.set(self.used_bytes.get() - (PAGE << order));
                let kept = &mut self.kept.borrow_mut()[order as usize];
                if kept.len() < KEPT {
                    kept.push(memory);
                } else {
                    self.buddy.borrow_mut().free(page, order);
                    self.spare.borrow_mut().push(memory);
                }
            }
            Place::Heap { bytes } => self.fallback_bytes.set(self.fallback_bytes.get() - bytes),
            Place::Borrowed => unreachable!("what is borrowed has no home here"),
        }
        None
    }
}

/// Anonymous memory from the kernel: page-aligned, zero until written, unmapped on drop.
///
/// Invariant: the memory stays mapped as long as the `Mapping` lives. All access is by raw copies,
/// since the kernel may be writing there; no Rust reference into it exists.
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

    /// Asks the kernel for huge pages: fewer TLB misses and fewer pages to pin. If the kernel
    /// refuses, I/O is only slower.
    pub(crate) fn prefer_huge_pages(&self) {
        if self.len > 0 {
            // SAFETY: the range is this mapping's own, and the advice does not change what its
            // bytes read as.
            let _ = unsafe { madvise(self.start.as_ptr().cast(), self.len, Advice::LinuxHugepage) };
        }
    }

    /// Returns the pages of a range to the kernel; they read as zeros afterwards. Both ends are
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

#[cfg(test)]
mod buddy_tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn blocks_never_overlap_and_everything_merges_back(
            pages in 1usize..200,
            steps in proptest::collection::vec(
                (0u32..5, any::<bool>(), any::<proptest::sample::Index>()), 0..200,
            ),
        ) {
            let mut buddy = Buddy::new(pages);
            let mut taken = vec![false; pages];
            let mut held: Vec<(u32, u32)> = Vec::new();
            for (order, free, which) in steps {
                if free && !held.is_empty() {
                    let (page, order) = held.swap_remove(which.index(held.len()));
                    taken[page as usize..][..1 << order].fill(false);
                    buddy.free(page, order);
                } else if let Some(page) = buddy.allocate(order) {
                    prop_assert_eq!(page % (1 << order), 0);
                    for mark in &mut taken[page as usize..][..1 << order] {
                        prop_assert!(!std::mem::replace(mark, true));
                    }
                    held.push((page, order));
                } else {
                    // Refused: then no aligned free run of that size exists.
                    let run = 1 << order;
                    prop_assert!((0..pages / run).all(|i| taken[i * run..][..run].contains(&true)));
                }
            }
            for (page, order) in held {
                buddy.free(page, order);
            }
            let largest = pages.ilog2();
            prop_assert!(buddy.allocate(largest).is_some());
        }
    }
}
