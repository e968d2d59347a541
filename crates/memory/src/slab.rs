//! Memory for entries: taken in chunks, given out one by one, and used again.

use std::mem::MaybeUninit;
use std::ops::Range;

use crate::places::{CHUNKS, ENTRIES, Places};
use crate::sync::Arc;

/// Bytes in a chunk at most, if more than one entry is to fit in, and if there is little so far.
const CHUNK_BYTES: usize = 16 << 20;
/// Bytes in the first chunk where the entries to expect are too many for an arena; each further one
/// is as large as all before.
const CHUNK_FIRST_BYTES: usize = 64 << 10;
/// Entries in the first chunk where their number is unknown; each further one is as large as all
/// before.
const ENTRIES_FIRST: usize = 64;
/// Beyond what is expected, chunks are this part of all before, and a chunk may always be so large.
const BEYOND_SHARE: usize = 8;

/// The most memory that the slabs of a cache have in one piece.
const ARENA_BYTES: usize = 256 << 20;

/// Memory for the first chunks of all slabs of a cache: in one piece, because only whole large
/// pages of it can be large, and those of a single slab are few.
#[derive(Debug)]
pub(crate) struct Arena<E> {
    /// From a box.
    memory: *mut [MaybeUninit<E>],
}

// SAFETY: only memory, which slabs use, each its part.
unsafe impl<E: Send> Send for Arena<E> {}
// SAFETY: as above; nothing is reached through it.
unsafe impl<E: Send> Sync for Arena<E> {}

impl<E> Arena<E> {
    /// For so many slabs of so many entries, if that is not too much to be taken at once. Memory
    /// that is not touched costs nothing.
    pub(crate) fn new(slabs: usize, entries: usize) -> Option<Arc<Self>> {
        let entries = entries.checked_mul(slabs)?;
        let bytes = entries.checked_mul(size_of::<E>())?;
        (bytes <= ARENA_BYTES && entries <= ENTRIES).then(|| {
            let mut memory = Box::new_uninit_slice(entries);
            crate::huge::prefer(memory.as_mut_ptr(), bytes);
            Arc::new(Self { memory: Box::into_raw(memory) })
        })
    }
}

impl<E> Drop for Arena<E> {
    fn drop(&mut self) {
        // SAFETY: from `Box::into_raw`, and the slabs that had parts of it are no more.
        drop(unsafe { Box::from_raw(self.memory) });
    }
}

/// Memory for entries. It knows nothing of their type; the owner of the slab drops them.
#[derive(Debug)]
#[repr(C)] // first, what every insertion needs: see `Owner`
pub(crate) struct Slab<E> {
    /// Places of entries that were given back.
    free: Vec<u32>,
    /// For readers: where the chunks lie.
    places: Arc<Places>,
    /// From boxes. Not kept as such: addresses in them are in use while others are given out.
    chunks: Vec<*mut [MaybeUninit<E>]>,
    /// Tells how much of the last chunk has been given out.
    begun: usize,
    /// Counts how many entries there will be, as far as that is known.
    expected: Option<usize>,
    /// Where the first chunk is from, if it is not the slab's own.
    arena: Option<Arc<Arena<E>>>,
}

impl<E> Slab<E> {
    /// Makes a slab for so many entries, perhaps a few more; `None` if the number is unknown.
    pub(crate) fn new(expected: Option<usize>) -> Self {
        let (chunks, free, places) = (Vec::new(), Vec::new(), Arc::new(Places::new()));
        Self { free, places, chunks, begun: 0, expected, arena: None }
    }

    /// For so many entries, perhaps a few more, in a part of an arena, by its number.
    pub(crate) fn in_arena(arena: &Arc<Arena<E>>, part: usize, entries: usize) -> Self {
        let first = arena.memory.cast::<MaybeUninit<E>>().wrapping_add(part * entries);
        let first = std::ptr::slice_from_raw_parts_mut(first, entries);
        let mut slab = Self::new(Some(entries));
        slab.add(first);
        slab.arena = Some(Arc::clone(arena));
        slab
    }

    /// Memory for one entry, with the number of its place. It stays where it is until that is
    /// [given back](Self::give_back).
    #[inline(always)]
    pub(crate) fn take(&mut self) -> (u32, *mut E) {
        match self.free.pop() {
            Some(place) => {
                if let Some(&next) = self.free.last() {
                    // written by the next insertion
                    crate::prefetch::span(self.entry(next).cast_const());
                }
                (place, self.entry(place))
            }
            None => self.begin(),
        }
    }

    #[inline(never)]
    fn begin(&mut self) -> (u32, *mut E) {
        if self.chunks.last().is_none_or(|chunk| chunk.len() == self.begun) {
            let first = (CHUNK_FIRST_BYTES / size_of::<E>().max(1)).max(1);
            let there = self.chunks.iter().map(|chunk| chunk.len()).sum::<usize>();
            // So that there are never more chunks than have numbers.
            let most = (CHUNK_BYTES / size_of::<E>().max(1)).max(there / BEYOND_SHARE);
            let more = match self.expected {
                None => there.max(ENTRIES_FIRST),
                // Memory that is not touched costs nothing, and large pages need large chunks; but
                // of those the first touch costs a large page.
                Some(expected) if there < expected => (expected - there).min(there.max(first)),
                Some(_) => there / BEYOND_SHARE,
            };
            let entries = more.clamp(1, most.clamp(1, ENTRIES));
            let mut chunk = Box::new_uninit_slice(entries);
            crate::huge::prefer(chunk.as_mut_ptr(), size_of_val(&*chunk));
            self.add(Box::into_raw(chunk));
            self.begun = 0;
        }
        let chunk = *self.chunks.last().expect("there is one, see above");
        let entry = chunk.cast::<E>().wrapping_add(self.begun);
        let place = Places::number(self.chunks.len() - 1, self.begun);
        self.begun += 1;
        (place, entry)
    }

    /// Takes a chunk in, whose entries are given out from now on.
    fn add(&mut self, chunk: *mut [MaybeUninit<E>]) {
        assert!(self.chunks.len() < CHUNKS, "the memory is in too many chunks");
        self.places.add::<E>(self.chunks.len(), chunk.cast::<E>().expose_provenance());
        self.chunks.push(chunk);
    }

    /// For readers: where the chunks lie.
    pub(crate) fn places(&self) -> &Arc<Places> {
        &self.places
    }

    /// The entry at a place.
    #[inline(always)]
    pub(crate) fn entry(&self, place: u32) -> *mut E {
        std::ptr::with_exposed_provenance_mut(self.places.address::<E>(place))
    }

    /// Takes memory back, by its places, in which nothing lives any more and that no thread reads.
    pub(crate) fn give_back(&mut self, places: impl Iterator<Item = u32>) {
        self.free.extend(places);
    }

    /// Two slabs: one of the chunks in which there are some addresses, given in order, and one of
    /// the others.
    pub(crate) fn split(mut self, addresses: &[usize]) -> (Self, Self) {
        let mut with = Self::new(None);
        let has_any = |chunk: &*mut [MaybeUninit<E>]| {
            let begin = chunk.cast::<E>().expose_provenance();
            let end = begin + chunk.len() * size_of::<E>();
            addresses.partition_point(|&address| address < begin)
                < addresses.partition_point(|&address| address < end)
        };
        // The first chunk of a slab with an arena is a part of that.
        if self.arena.is_some() && has_any(&self.chunks[0]) {
            with.arena = self.arena.take();
            with.chunks.push(self.chunks.remove(0));
        }
        let own = usize::from(self.arena.is_some());
        with.chunks.extend(self.chunks.extract_if(own.., |chunk| has_any(chunk)));
        (with, self)
    }

    /// Returns whether it has a part of an arena.
    pub(crate) fn is_in_arena(&self) -> bool {
        self.arena.is_some()
    }

    /// Its part of an arena, if it has one.
    pub(crate) fn part_of_arena(&self) -> Option<Range<usize>> {
        self.arena.as_ref().and_then(|_| self.memory().next())
    }

    /// Where entries lie, or will.
    pub(crate) fn memory(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.chunks.iter().map(|chunk| {
            let start = chunk.cast::<E>().expose_provenance();
            start..start + chunk.len() * size_of::<E>()
        })
    }

    /// Bytes that are or were in use, and what keeps account of them.
    pub(crate) fn memory_bytes(&self) -> usize {
        let full = self.chunks.split_last().map_or(&[][..], |(_, full)| full);
        let entries = full.iter().map(|chunk| chunk.len()).sum::<usize>() + self.begun;
        let accounts = self.free.capacity() * size_of::<u32>() + size_of::<Places>();
        entries * size_of::<E>() + accounts
    }
}

impl<E> Drop for Slab<E> {
    fn drop(&mut self) {
        for &chunk in &self.chunks[usize::from(self.arena.is_some())..] {
            // SAFETY: from `Box::into_raw`, and no memory of a dropped slab is in use.
            drop(unsafe { Box::from_raw(chunk) });
        }
    }
}
