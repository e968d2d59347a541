//! Memory for entries, which is taken in chunks, handed out one by one, and reused.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::OnceLock;

use crate::index::{CHUNKS, ENTRIES, Places};
use crate::sync::Arc;

/// Maximum size of a chunk in bytes, unless a single entry or [`BEYOND_SHARE`]'s part of the
/// earlier chunks is larger.
const CHUNK_BYTES: usize = 16 << 20;
/// Maximum size of the first chunk in bytes; each further one is as large as all before.
const CHUNK_FIRST_BYTES: usize = 64 << 10;
/// Maximum number of entries in the first chunk.
const ENTRIES_FIRST: usize = 32;
/// Divisor for chunks beyond the expected number of entries: each is this part of all before. Any
/// chunk may have this size.
const BEYOND_SHARE: usize = 8;

/// Largest block of memory, in bytes, that the slabs of a cache take in one piece.
const ARENA_BYTES: usize = 256 << 20;
/// Divisor of the expected number of entries: a slab allocates this part of them in its own chunks
/// before it takes its part of an arena. So a cache that stays far from full takes no arena.
const BEFORE_ARENA: usize = 8;

/// Memory for most entries of all slabs of a cache, taken when the first slab needs its part. It is
/// in one piece because only whole large pages of it can be large, and those of a single slab are
/// few.
#[derive(Debug)]
pub(crate) struct Arena<E> {
    slabs: usize,
    /// Expected entries of a slab, including those in its own chunks.
    expected: usize,
    /// Pointer from a box of the memory.
    memory: OnceLock<*mut [MaybeUninit<E>]>,
}

// SAFETY: only memory, which slabs use, each its part.
unsafe impl<E: Send> Send for Arena<E> {}
// SAFETY: as above; nothing is reached through it.
unsafe impl<E: Send> Sync for Arena<E> {}

impl<E> Arena<E> {
    /// Creates an arena for `slabs` slabs of `expected` entries; `None` if that is too much to be
    /// taken at once.
    pub(crate) fn new(slabs: usize, expected: usize) -> Option<Arc<Self>> {
        let arena = Self { slabs, expected, memory: OnceLock::new() };
        let entries = arena.entries().checked_mul(slabs)?;
        let bytes = entries.checked_mul(size_of::<E>())?;
        let is_worthwhile = entries > 0 && bytes <= ARENA_BYTES && entries <= ENTRIES;
        is_worthwhile.then(|| Arc::new(arena))
    }

    /// Returns the entries that a slab has in chunks of its own.
    fn before(&self) -> usize {
        (self.expected / BEFORE_ARENA).next_power_of_two().max(ENTRIES_FIRST)
    }

    /// Returns the entries in a slab's part.
    fn entries(&self) -> usize {
        self.expected.saturating_sub(self.before())
    }

    /// Returns a slab's part, by the slab's number. Memory that is not touched costs nothing.
    fn part(&self, number: usize) -> *mut [MaybeUninit<E>] {
        let entries = self.entries();
        let memory = self.memory.get_or_init(|| {
            let mut memory = Box::new_uninit_slice(self.slabs * entries);
            crate::hints::prefer(memory.as_mut_ptr(), size_of_val(&*memory));
            Box::into_raw(memory)
        });
        let first = memory.cast::<MaybeUninit<E>>().wrapping_add(number * entries);
        std::ptr::slice_from_raw_parts_mut(first, entries)
    }
}

impl<E> Drop for Arena<E> {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            // SAFETY: from `Box::into_raw`, and the slabs that had parts of it are no more.
            drop(unsafe { Box::from_raw(memory) });
        }
    }
}

/// A piece of memory of a slab.
#[derive(Debug)]
struct Chunk<E> {
    /// Pointer from a box. The box is not kept as such, because addresses in it are in use while
    /// others are handed out.
    memory: *mut [MaybeUninit<E>],
    /// True if the chunk is a part of an arena, not a box of its own.
    is_in_arena: bool,
}

impl<E> Chunk<E> {
    fn len(&self) -> usize {
        self.memory.len()
    }

    /// Returns the range of addresses of the chunk.
    fn addresses(&self) -> Range<usize> {
        let start = self.memory.cast::<E>().expose_provenance();
        start..start + self.len() * size_of::<E>()
    }
}

/// Memory for entries. A slab never drops entries; its owner does.
#[derive(Debug)]
#[repr(C)] // first, what every insertion needs: see `Owner`
pub(crate) struct Slab<E> {
    /// Places of entries that were given back.
    free: Vec<u32>,
    /// Runs of free places whose pages the system has, highest first. They are used when no other
    /// place is free.
    absent: Vec<Range<u32>>,
    /// The addresses of the chunks, shared with readers.
    places: Arc<Places>,
    chunks: Vec<Chunk<E>>,
    /// Entries of the last chunk that have been handed out.
    begun: usize,
    /// Expected number of entries, if it is known.
    expected: Option<usize>,
    /// The arena that provides one chunk of the slab, and the slab's number in the arena.
    arena: Option<(Arc<Arena<E>>, usize)>,
}

impl<E> Slab<E> {
    /// Creates a slab for about `expected` entries; `None` if the number is unknown.
    pub(crate) fn new(expected: Option<usize>) -> Self {
        let (chunks, free, places) = (Vec::new(), Vec::new(), Arc::new(Places::new()));
        Self { free, absent: Vec::new(), places, chunks, begun: 0, expected, arena: None }
    }

    /// Creates a slab that has most of its entries in its part of an arena, given by number.
    pub(crate) fn in_arena(arena: &Arc<Arena<E>>, number: usize) -> Self {
        let mut slab = Self::new(Some(arena.expected));
        slab.arena = Some((Arc::clone(arena), number));
        slab
    }

    /// Returns true if there is memory for another entry.
    #[inline(always)]
    pub(crate) fn has_room(&self) -> bool {
        self.has_free()
            || self.chunks.last().is_some_and(|chunk| chunk.len() > self.begun)
            || !self.absent.is_empty()
    }

    /// Returns true if memory that was given back is free.
    #[inline(always)]
    pub(crate) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Takes memory for further entries from the system.
    pub(crate) fn grow(&mut self) {
        let chunk = self.another_chunk();
        self.add(chunk);
        self.begun = 0;
    }

    /// Returns the number of places that there are after [`grow`](Self::grow).
    pub(crate) fn len_grown(&self) -> usize {
        self.len() + self.next_len()
    }

    /// Returns the number of places, in use or not.
    fn len(&self) -> usize {
        self.chunks.iter().map(Chunk::len).sum()
    }

    /// Returns memory for one entry, with the number of its place. It stays valid until the place
    /// is [given back](Self::give_back). There must be [room](Self::has_room).
    #[inline(always)]
    pub(crate) fn take(&mut self) -> (u32, *mut E) {
        match self.free.pop() {
            Some(place) => {
                if let Some(&next) = self.free.last() {
                    // written by the next insertion
                    crate::hints::span(self.entry(next).cast_const());
                }
                (place, self.entry(place))
            }
            None => self.begin(),
        }
    }

    #[inline(never)]
    fn begin(&mut self) -> (u32, *mut E) {
        if let Some(place) = self.take_absent() {
            return (place, self.entry(place));
        }
        let chunk = self.chunks.last().expect("there is room");
        assert!(self.begun < chunk.len(), "there is room");
        let entry = chunk.memory.cast::<E>().wrapping_add(self.begun);
        let place = Places::number(self.chunks.len() - 1, self.begun);
        self.begun += 1;
        (place, entry)
    }

    /// Returns a place without memory, which comes with the first write to it.
    fn take_absent(&mut self) -> Option<u32> {
        let place = self.absent.last_mut()?.next();
        if self.absent.last().is_some_and(Range::is_empty) {
            self.absent.pop();
        }
        if self.absent.is_empty() {
            self.absent = Vec::new();
            self.prefer_large(true);
        }
        place
    }

    /// Changes the advice on large pages for the memory that had asked for them.
    fn prefer_large(&self, is_large: bool) {
        for chunk in &self.chunks {
            let addresses = chunk.addresses();
            if chunk.is_in_arena || addresses.len() >= crate::hints::WORTHWHILE_BYTES {
                crate::hints::prefer_large(addresses, is_large);
            }
        }
    }

    /// Gives pages without entries back to the system if most of the memory is free. Places that
    /// are still in memory are used first from then on, the lowest ones before others.
    pub(crate) fn release_pages(&mut self) {
        let absent = self.absent.iter().map(Range::len).sum::<usize>();
        if 2 * self.free.len() <= self.len() - absent {
            return;
        }
        let mut free = std::mem::take(&mut self.free);
        free.extend(std::mem::take(&mut self.absent).into_iter().flatten());
        free.sort_unstable();
        for run in free.chunk_by(|&one, &next| one + 1 == next) {
            let address = |place: u32| self.places.address::<E>(place);
            let (first, last) = (run[0], run[run.len() - 1]);
            // SAFETY: places of one chunk side by side, without entries.
            let given = unsafe {
                crate::hints::give_back_all(address(first)..address(last) + size_of::<E>())
            };
            let is_given = |place: u32| {
                given.start <= address(place) && address(place) + size_of::<E>() <= given.end
            };
            let from = run.partition_point(|&place| address(place) < given.start);
            let till = from + run[from..].partition_point(|&place| is_given(place));
            if from < till {
                self.absent.push(run[from]..run[till - 1] + 1);
            }
            self.free.extend(run[..from].iter().chain(&run[till..]));
        }
        self.absent.reverse();
        self.free.reverse();
        self.free.shrink_to_fit();
        if !self.absent.is_empty() {
            self.prefer_large(false);
        }
    }

    /// Returns the arena from which the next chunk comes, and the slab's number there.
    fn next_part(&self) -> Option<(&Arena<E>, usize)> {
        let (arena, number) = self.arena.as_ref()?;
        (self.len() >= arena.before() && !self.is_in_arena()).then_some((arena, *number))
    }

    /// Returns the number of entries of the next chunk.
    fn next_len(&self) -> usize {
        if let Some((arena, _)) = self.next_part() {
            return arena.entries();
        }
        let there = self.len();
        let first = (CHUNK_FIRST_BYTES / size_of::<E>().max(1)).clamp(1, ENTRIES_FIRST);
        // So that there are never more chunks than have numbers.
        let most = (CHUNK_BYTES / size_of::<E>().max(1)).max(there / BEYOND_SHARE);
        let more = match self.expected {
            None => there.max(first),
            // Memory that is not touched costs nothing, and large pages need large chunks; but of
            // those the first touch costs a large page.
            Some(expected) if there < expected => (expected - there).min(there.max(first)),
            Some(_) => there / BEYOND_SHARE,
        };
        more.clamp(1, most.clamp(1, ENTRIES))
    }

    /// Returns a chunk for further entries.
    fn another_chunk(&self) -> Chunk<E> {
        if let Some((arena, number)) = self.next_part() {
            return Chunk { memory: arena.part(number), is_in_arena: true };
        }
        let mut memory = Box::new_uninit_slice(self.next_len());
        crate::hints::prefer(memory.as_mut_ptr(), size_of_val(&*memory));
        Chunk { memory: Box::into_raw(memory), is_in_arena: false }
    }

    /// Adds a chunk, whose entries are handed out from now on.
    fn add(&mut self, chunk: Chunk<E>) {
        assert!(self.chunks.len() < CHUNKS, "the memory is in too many chunks");
        self.places.add::<E>(self.chunks.len(), chunk.addresses().start, self.len());
        self.chunks.push(chunk);
    }

    /// Returns the addresses of the chunks, for readers.
    pub(crate) fn places(&self) -> &Arc<Places> {
        &self.places
    }

    /// Returns the entry at a place.
    #[inline(always)]
    pub(crate) fn entry(&self, place: u32) -> *mut E {
        std::ptr::with_exposed_provenance_mut(self.places.address::<E>(place))
    }

    /// Takes memory back by its places. It must contain no live entries, and no thread may read it.
    pub(crate) fn give_back(&mut self, places: impl Iterator<Item = u32>) {
        self.free.extend(places);
    }

    /// Splits the slab into one of the chunks that contain some of the sorted addresses, and one of
    /// the other chunks.
    pub(crate) fn split(mut self, addresses: &[usize]) -> (Self, Self) {
        let mut with = Self::new(None);
        let has_any = |chunk: &mut Chunk<E>| {
            let Range { start, end } = chunk.addresses();
            addresses.partition_point(|&address| address < start)
                < addresses.partition_point(|&address| address < end)
        };
        with.chunks.extend(self.chunks.extract_if(.., has_any));
        if with.is_in_arena() {
            with.arena.clone_from(&self.arena); // which goes with the last slab that names it
        }
        (with, self)
    }

    /// Returns true if the slab has a part of an arena.
    pub(crate) fn is_in_arena(&self) -> bool {
        self.chunks.iter().any(|chunk| chunk.is_in_arena)
    }

    /// Returns the slab's part of an arena, if it has one.
    pub(crate) fn part_of_arena(&self) -> Option<Range<usize>> {
        self.chunks.iter().find(|chunk| chunk.is_in_arena).map(Chunk::addresses)
    }

    /// Returns the address ranges of all memory for entries.
    pub(crate) fn memory(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.chunks.iter().map(Chunk::addresses)
    }

    /// Returns the bytes that are or were in use, and those of the bookkeeping.
    pub(crate) fn memory_bytes(&self) -> usize {
        let full = self.chunks.split_last().map_or(&[][..], |(_, full)| full);
        let entries = full.iter().map(Chunk::len).sum::<usize>() + self.begun;
        let absent = self.absent.iter().map(Range::len).sum::<usize>();
        let lists = self.free.capacity() * size_of::<u32>()
            + self.absent.capacity() * size_of::<Range<u32>>();
        (entries - absent) * size_of::<E>() + lists + size_of::<Places>()
    }
}

impl<E> Drop for Slab<E> {
    fn drop(&mut self) {
        for chunk in self.chunks.iter().filter(|chunk| !chunk.is_in_arena) {
            // SAFETY: from `Box::into_raw`, and no memory of a dropped slab is in use.
            drop(unsafe { Box::from_raw(chunk.memory) });
        }
    }
}
