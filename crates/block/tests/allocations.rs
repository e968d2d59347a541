//! A hit allocates nothing: neither a read of one sector nor of one that spans blocks. Alone in its
//! process, whose allocations it counts.

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "it/common/mod.rs"]
mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::*;
use floe_block::WriteMode;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// the only way to count allocations; everything is handed to the system's allocator as it is
#[allow(unsafe_code)]
// SAFETY: the system's allocator keeps the contract, and counting touches no memory it gives out.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the contract of `alloc`, which is this one's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: `memory` came from `System` with this layout.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_hit_allocates_nothing() {
    for mode in [WriteMode::Pass, WriteMode::Through, WriteMode::Around, WriteMode::Back] {
        let mut bench = Bench::new(config("4KiB,16KiB,64KiB", 4 << 20, mode), &[4 << 20]);
        for (sectors, requests) in [(1u64, 500), (24, 20)] {
            let mut round = |rounds: u64| {
                for at in 0..rounds * requests {
                    assert!(
                        bench.cache_only(read(at % requests * sectors * SECTOR, sectors * SECTOR))
                    );
                }
            };
            round(2);
            let before = ALLOCATIONS.get();
            round(3);
            assert_eq!(ALLOCATIONS.get() - before, 0, "{mode:?}, {sectors} sectors");
        }
    }
}

#[test]
fn a_write_of_whole_sectors_to_cached_blocks_allocates_nothing() {
    for mode in [WriteMode::Pass, WriteMode::Through, WriteMode::Around] {
        let mut bench = Bench::new(config("4KiB,16KiB,64KiB", 4 << 20, mode), &[4 << 20]);
        let mut round =
            || (0..100).for_each(|at| assert!(bench.cache_only(write(at * SECTOR, SECTOR))));
        (0..3).for_each(|_| round());
        let before = ALLOCATIONS.get();
        round();
        assert_eq!(ALLOCATIONS.get() - before, 0, "{mode:?}");
    }
}
