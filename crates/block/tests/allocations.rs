//! A hit allocates nothing: neither a read of one sector nor of one that spans blocks. Alone in its
//! process, whose allocations it counts.

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "it/common/mod.rs"]
mod common;

use common::*;
use floe_block::WriteMode;
use floe_testkit::allocations::{Counting, of_this_thread};

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
            let before = of_this_thread();
            round(3);
            assert_eq!(of_this_thread() - before, 0, "{mode:?}, {sectors} sectors");
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
        let before = of_this_thread();
        round();
        assert_eq!(of_this_thread() - before, 0, "{mode:?}");
    }
}
