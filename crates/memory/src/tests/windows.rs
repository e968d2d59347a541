//! Tests of the numbers of a frozen index and their addresses.

use std::ops::Range;

use crate::frozen::windows::{FIRST, WINDOWS, Windows};

type Entry = [u64; 6];
type Entries = Windows<Entry>;

/// Checks that the addresses of a chunk's first and last entry and of one between have numbers
/// that stand for them. Returns the numbers.
fn numbers(windows: &Entries, chunk: &Range<usize>) -> [u32; 3] {
    let entries = chunk.len() / size_of::<Entry>();
    [0, entries / 2, entries - 1].map(|entry| {
        let address = chunk.start + entry * size_of::<Entry>();
        let number = windows.number(address).expect("the address is in a window");
        assert!(number >= FIRST);
        assert_eq!(windows.address(number), address);
        number
    })
}

fn chunk(start: usize, entries: usize) -> Range<usize> {
    start..start + entries * size_of::<Entry>()
}

#[test]
#[cfg(target_pointer_width = "64")]
fn chunks_terabytes_apart_have_numbers_of_their_own() {
    let far = (1..=WINDOWS).map(|at| chunk(at << 40, 32 << (at % 8)));
    let chunks: Vec<_> = far.rev().collect();
    let windows = Entries::over(&chunks);
    let mut all: Vec<_> = chunks.iter().flat_map(|chunk| numbers(&windows, chunk)).collect();
    all.sort_unstable();
    assert!(all.is_sorted_by(|one, next| one < next), "{all:?}");
    assert_eq!(windows.number(1), None, "below all");
    assert_eq!(windows.number(chunks[0].start - 8), None, "between two");
}

#[test]
#[cfg(target_pointer_width = "64")]
fn a_chunk_may_be_larger_than_a_window() {
    let chunks = [chunk(1 << 20, 100), chunk(1 << 44, 5 * Entries::BYTES / 48)];
    let windows = Entries::over(&chunks);
    chunks.iter().for_each(|chunk| _ = numbers(&windows, chunk));
    for edge in (1..5).map(|count| chunks[1].start + count * Entries::BYTES) {
        for address in [edge - 8, edge, edge + 8] {
            assert_eq!(windows.number(address).map(|it| windows.address(it)), Some(address));
        }
    }
}

#[test]
#[cfg(target_pointer_width = "64")]
fn of_too_many_chunks_the_smallest_have_no_numbers() {
    let chunks: Vec<_> =
        (1..=WINDOWS + 9).map(|at| chunk(at << 40, if at % 8 == 5 { 5 } else { 50 })).collect();
    let windows = Entries::over(&chunks);
    for chunk in &chunks {
        let is_large = chunk.len() > 1000;
        assert_eq!(windows.number(chunk.start).is_some(), is_large, "{chunk:?}");
    }
}

#[test]
#[cfg(target_pointer_width = "64")]
fn memory_that_comes_later_beside_chunks_has_numbers() {
    let chunks = [chunk(1 << 40, 1000), chunk(1 << 44, 1000)];
    let windows = Entries::over(&chunks);
    for start in chunks.iter().map(|chunk| chunk.start) {
        _ = numbers(&windows, &chunk(start - (1 << 30), 1 << 20));
        _ = numbers(&windows, &chunk(start + (1 << 30), 1 << 20));
        _ = numbers(&windows, &chunk(start - (7 << 30), 1 << 20));
    }
}

#[test]
fn an_address_space_may_end_within_a_window() {
    let last = usize::MAX / 48 * 48 - 48;
    let chunks = [48..96, last..last + 48];
    let windows = Entries::over(&chunks);
    chunks.iter().for_each(|chunk| _ = numbers(&windows, chunk));
    assert_eq!(Entries::over(&[]).number(48), None);
}
