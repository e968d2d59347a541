//! Numbers of 32 bits for the addresses of entries, wherever an allocator puts the memory.
//!
//! A slab takes its memory in chunks as entries come. An allocator may place them terabytes apart:
//! glibc's takes small chunks from its heap and maps large ones, that of the address sanitizer has
//! a region for each size. So the upper bits of a number give a *window* of addresses, and the
//! lower ones the place in it, in units of an entry's alignment.
//!
//! A reader finds the window's address by one load from a table of 512 bytes. A window begins at a
//! chunk, and a chunk larger than a window has several. Windows that no chunk needs lie beside
//! those of chunks, for memory that comes later.

use std::cmp::Reverse;
use std::marker::PhantomData;
use std::ops::Range;

/// Number of windows. Those of entries with an alignment of 8 bytes are 512 MiB large.
pub(crate) const WINDOWS: usize = 1 << (u32::BITS - UNIT_BITS);
/// Bits of a number that give the unit in its window.
const UNIT_BITS: u32 = 26;
/// Lowest number of a unit in its window, so that the numbers below are free in the first one.
pub(crate) const FIRST: u32 = 2;

/// The numbers for the addresses of entries of one type. They begin with [`FIRST`].
#[derive(Debug)]
pub(crate) struct Windows<E> {
    /// By window, the address of a number is this and the number in units, modulo the address
    /// space.
    offsets: [usize; WINDOWS],
    /// The first addresses of the windows, in ascending order, and then the last address there is.
    starts: [usize; WINDOWS],
    _entries: PhantomData<fn(E)>,
}

/// Evaluates the constant in every build, to check it on 32-bit targets, too.
const _: usize = Windows::<u64>::BYTES;

impl<E> Windows<E> {
    const UNIT: usize = align_of::<E>();
    /// Bytes of addresses in a window.
    pub(crate) const BYTES: usize = ((1 << UNIT_BITS) - FIRST as usize).saturating_mul(Self::UNIT);

    /// Chooses windows for chunks of memory, given by their addresses. If the chunks need more
    /// windows than there are, those are left out that have least memory in them.
    pub(crate) fn over(chunks: &[Range<usize>]) -> Self {
        let mut chunks = chunks.to_vec();
        chunks.sort_unstable_by_key(|chunk| chunk.start);
        // By window its first address, and the bytes of chunks in it.
        let (mut windows, mut end) = (Vec::<(usize, usize)>::new(), 0);
        for Range { start: mut from, end: to } in chunks {
            while from < to {
                if windows.is_empty() || from >= end {
                    windows.push((from, 0));
                    end = from.saturating_add(Self::BYTES);
                }
                let up_to = to.min(end);
                if let Some((_, bytes)) = windows.last_mut() {
                    *bytes += up_to - from;
                }
                from = up_to;
            }
        }
        windows.sort_by_key(|&(_, bytes)| Reverse(bytes));
        windows.truncate(WINDOWS);
        let mut begins: Vec<_> = windows.into_iter().map(|(start, _)| start).collect();
        Self::widen(&mut begins);
        begins.sort_unstable();
        let mut starts = [usize::MAX; WINDOWS];
        starts[..begins.len()].copy_from_slice(&begins);
        let offset =
            |window: usize| starts[window].wrapping_sub(Self::in_units(Self::first(window as u32)));
        let offsets = std::array::from_fn(offset);
        Self { offsets, starts, _entries: PhantomData }
    }

    /// Adds the windows that are left beside those that there are, the nearest first. Windows may
    /// overlap: an address has its number from the last one that begins before it.
    fn widen(starts: &mut Vec<usize>) {
        let of_chunks = starts.len();
        for bytes in (1..WINDOWS).map_while(|count| Self::BYTES.checked_mul(count)) {
            for window in 0..of_chunks {
                // Below first, where systems put the next mapping.
                let beside = [starts[window].checked_sub(bytes), starts[window].checked_add(bytes)];
                for start in beside.into_iter().flatten() {
                    if starts.len() == WINDOWS {
                        return;
                    }
                    if !starts.contains(&start) {
                        starts.push(start);
                    }
                }
            }
        }
    }

    /// Returns the first number of a window.
    fn first(window: u32) -> u32 {
        window << UNIT_BITS | FIRST
    }

    /// Returns the bytes from number 0 to this one, modulo the address space.
    #[inline(always)]
    fn in_units(number: u32) -> usize {
        (number as usize).wrapping_mul(Self::UNIT)
    }

    /// Returns the number that stands for an address; `None` if the address is in no window.
    pub(crate) fn number(&self, address: usize) -> Option<u32> {
        let window = self.starts.partition_point(|&start| start <= address).checked_sub(1)?;
        let bytes = address - self.starts[window];
        debug_assert!(bytes.is_multiple_of(Self::UNIT), "chunks are aligned for entries");
        let unit = bytes / Self::UNIT;
        let is_in = unit < Self::BYTES / Self::UNIT;
        is_in.then(|| Self::first(window as u32) + unit as u32)
    }

    /// Returns the address for which a number stands.
    #[inline(always)]
    pub(crate) fn address(&self, number: u32) -> usize {
        self.offsets[(number >> UNIT_BITS) as usize].wrapping_add(Self::in_units(number))
    }
}
