//! How much may be dirty, and how cleaning keeps out of clients' way.

use crate::common::*;
use floe_block::WriteMode;

/// So much that one sector beyond half of it is a 32th of the other half: one of the blocks cleaned
/// at once.
const MOST: u64 = 64;

fn bench(kept: bool) -> Bench {
    let config = floe_block::Config { kept, ..config("4KiB", 256 * SECTOR, WriteMode::Back) };
    let mut bench = Bench::new(config, &[512 * SECTOR]).numbered();
    bench.cache.limit_dirty(MOST * SECTOR);
    bench
}

#[test]
fn what_would_be_too_much_is_written_through() {
    for kept in [false, true] {
        let mut bench = bench(kept);
        for sector in 0..100 {
            bench.answers.clear();
            bench.submit(write(sector * SECTOR, SECTOR), 200);
            // Of the backing device's operations none ends before it has to.
            while bench.answers.is_empty() {
                let at = bench.under_way.iter().position(|under_way| on_cache(&under_way.order));
                bench.complete(at.unwrap_or(0), None);
            }
            let dirty = bench.cache.stats().dirty_bytes / SECTOR;
            assert!(dirty <= MOST, "{dirty} after {sector}, kept: {kept}");
        }
        bench.run();
        assert_eq!((0..100).filter(|&sector| bench.get(sector) == Ok(200)).count(), 100);
    }
}

#[test]
fn cleaning_begins_at_half_without_being_told_and_what_is_dirty_may_be_written_again() {
    let mut bench = bench(false);
    for sector in 0..MOST / 2 {
        bench.put(sector..sector + 1, 200);
    }
    assert!(bench.ordered(BACKING).is_empty(), "half of it is no reason");
    bench.put(MOST / 2..MOST / 2 + 1, 200);
    assert_eq!(bench.cache.stats().dirty_bytes, 0);
    assert_eq!(bench.ordered(BACKING).len() as u64, MOST / 2 + 1);
    assert_eq!(bench.cache.stats().counters.cleaned_bytes, (MOST / 2 + 1) * SECTOR);
}

#[test]
fn bytes_count_as_cleaned_once_the_backing_device_has_them() {
    for kept in [false, true] {
        let mut bench = bench(kept);
        bench.put(0..8, 200);
        let cleaned_bytes = |bench: &Bench| bench.cache.stats().counters.cleaned_bytes;
        for failed in [true, false] {
            bench.clean();
            while let Some(at) =
                bench.under_way.iter().position(|under_way| !on_backing(&under_way.order))
            {
                bench.complete(at, None);
            }
            assert!(cleaned(&bench) > 0);
            assert_eq!(cleaned_bytes(&bench), 0, "nothing is written yet, kept: {kept}");
            bench.run_failing(|order| failed && on_backing(order) && is_write(order));
            let done = if failed { 0 } else { 8 * SECTOR };
            assert_eq!(cleaned_bytes(&bench), done, "kept: {kept}");
            assert_eq!(bench.cache.stats().dirty_bytes, 8 * SECTOR - done);
        }
        bench.check_idle();
    }
}

/// The writes of cleaning that are under way.
fn cleaned(bench: &Bench) -> usize {
    bench
        .under_way
        .iter()
        .filter(|under_way| on_backing(&under_way.order) && is_write(&under_way.order))
        .count()
}

#[test]
fn cleaning_yields_to_clients_that_wait_for_the_backing_device() {
    for waits in [false, true] {
        let mut bench = bench(false);
        if waits {
            bench.submit(read(200 * SECTOR, SECTOR), 0);
        }
        for sector in 0..MOST / 2 + 1 {
            bench.submit(write(sector * SECTOR, SECTOR), 200);
        }
        while let Some(at) = bench.under_way.iter().position(|under_way| on_cache(&under_way.order))
        {
            bench.complete(at, None);
        }
        assert_eq!(cleaned(&bench), if waits { 1 } else { 32 });
        bench.submit(flush(), 0);
        while let Some(at) = bench.under_way.iter().position(|under_way| on_cache(&under_way.order))
        {
            bench.complete(at, None);
        }
        assert_eq!(cleaned(&bench), 32, "a flush is in no mood to wait");
        bench.run();
    }
}

#[test]
fn a_clean_block_leaves_in_place_of_a_dirty_one_that_is_cleaned_meanwhile() {
    let config = config("4KiB", 256 * SECTOR, WriteMode::Back);
    let mut bench: Bench = Bench::new(config, &[512 * SECTOR]).numbered();
    bench.put(0..1, 200);
    (1..256).for_each(|sector| assert!(bench.get(sector).is_ok()));
    bench.log.clear();
    // Block 0 is the next to leave, and dirty; what comes now need not wait for the backing device.
    bench.answers.clear();
    bench.submit(write(300 * SECTOR, SECTOR), 201);
    while bench.answers.is_empty() {
        let at = bench.under_way.iter().position(|under_way| !on_backing(&under_way.order));
        bench.complete(at.expect("it waits for nothing on the backing device"), None);
    }
    assert_eq!(cleaned(&bench), 1);
    bench.run();
    bench.answers.clear();
    assert_eq!(bench.cache.stats().dirty_bytes, SECTOR, "block 0 is clean, 300 is not");
    bench.log.clear();
    assert_eq!((bench.get(0), bench.get(300)), (Ok(200), Ok(201)));
    assert!(bench.ordered(BACKING).is_empty(), "both are there");
    bench.get(1).unwrap();
    assert_eq!(bench.ordered(BACKING).len(), 1, "block 1 left");
}

#[test]
fn where_all_is_dirty_somebody_waits_and_the_rest_are_cleaned_side_by_side() {
    let config = config("4KiB", 256 * SECTOR, WriteMode::Back);
    let mut bench: Bench = Bench::new(config, &[512 * SECTOR]).numbered();
    (0..256).for_each(|sector| bench.put(sector..sector + 1, 200));
    bench.submit(write(300 * SECTOR, SECTOR), 201);
    while let Some(at) = bench.under_way.iter().position(|under_way| !on_backing(&under_way.order))
    {
        bench.complete(at, None);
    }
    assert_eq!(cleaned(&bench), 33, "as many as may be ahead, and the one that is waited for");
    bench.run();
    bench.answers.clear();
    assert_eq!(bench.get(300), Ok(201));
    assert_eq!((0..256).filter(|&sector| bench.get(sector) == Ok(200)).count(), 256);
    bench.check_idle();
}
