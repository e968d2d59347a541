//! A cache device that fails altogether: the cache steps aside, and what it alone has is never
//! replaced by older bytes.

use crate::common::*;
use floe_block::{DeviceId, Fault, WriteMode};

const BLOCK: u64 = 8 * SECTOR;
const MODES: [WriteMode; 3] = [WriteMode::Through, WriteMode::Around, WriteMode::Back];
/// Failures in a row after which the device is given up.
const ENOUGH: u64 = 16;

fn bench(mode: WriteMode) -> Bench {
    let mut config = config("32KiB", 64 * BLOCK, mode);
    config.shards = Some(2);
    Bench::new(config, &[128 * BLOCK]).numbered()
}

/// Reads a sector of each of some blocks while the cache device fails.
fn read_failing(bench: &mut Bench, blocks: std::ops::Range<u64>) {
    for block in blocks {
        let id = bench.submit(read(block * BLOCK, SECTOR), 0);
        bench.run_failing(on_cache);
        assert_eq!(bench.answer(id).bytes[0], Bench::born(block * 8));
    }
}

fn degraded(mode: WriteMode) -> Bench {
    let mut bench = bench(mode);
    read_failing(&mut bench, 64..64 + 2 * ENOUGH);
    assert!(bench.cache.condition().is_degraded());
    bench.log.clear();
    bench
}

#[test]
fn a_row_of_failures_gives_the_cache_device_up_and_reads_no_longer_try_it() {
    for mode in MODES {
        let mut bench = bench(mode);
        for block in 0..8 {
            bench.get(block * 8).unwrap(); // cached
        }
        let mut blocks = 64;
        while !bench.cache.condition().is_degraded() {
            read_failing(&mut bench, blocks..blocks + 1);
            blocks += 1;
        }
        let stats = bench.cache.stats();
        assert!(
            (ENOUGH..2 * ENOUGH).contains(&stats.counters.cache_errors),
            "{}",
            stats.counters.cache_errors
        );
        assert_eq!(stats.degraded_shards, 2, "the device is the same for all shards");
        bench.log.clear();
        for block in (0..8).chain(80..90) {
            let born = Bench::born(block * 8);
            assert_eq!(bench.get(block * 8), Ok(born), "cached or not");
        }
        assert!(bench.log.iter().all(on_backing), "{mode:?}");
        assert_eq!(bench.cache.stats().counters.bypassed_bytes, 18 * SECTOR);
        bench.check_idle();
    }
}

#[test]
fn failures_with_successes_between_them_change_nothing() {
    let mut bench = bench(WriteMode::Through);
    for block in 0..3 * ENOUGH {
        let id = bench.submit(read((block % 64) * BLOCK, SECTOR), 0);
        bench.run_failing(|order| on_cache(order) && block % 8 > 0);
        assert!(bench.answer(id).result.is_ok());
    }
    assert!(!bench.cache.condition().is_degraded());
}

#[test]
fn a_degraded_write_goes_to_the_backing_device_and_drops_what_is_cached() {
    for mode in MODES {
        let mut bench = bench(mode);
        bench.put(0..8, 200);
        bench.get(0).unwrap();
        bench.cache.degrade();
        bench.log.clear();
        bench.put(2..4, 201);
        assert!(bench.ask(write(5 * SECTOR + 10, 100), 202).is_ok());
        let dirty = bench.cache.stats().dirty_bytes;
        assert_eq!(
            dirty,
            if mode == WriteMode::Back { 5 * SECTOR } else { 0 },
            "no new dirty data"
        );
        assert!(bench.log.iter().all(|order| on_backing(order) || is_read(order)));
        bench.cache.restore();
        assert!(!bench.cache.condition().is_degraded());
        assert_eq!([0, 2, 3, 4].map(|sector| bench.get(sector)), [200, 201, 201, 200].map(Ok));
        let bytes = bench.ask(read(5 * SECTOR, SECTOR), 0).unwrap();
        assert_eq!([bytes[9], bytes[10], bytes[109], bytes[110]], [200, 202, 202, 200]);
        bench.check_idle();
    }
}

#[test]
fn dirty_data_is_read_from_the_failing_device_or_not_at_all_and_never_replaced_by_older() {
    let mut bench = bench(WriteMode::Back);
    bench.put(2..4, 200);
    bench.cache.degrade();
    bench.log.clear();
    let bytes = bench.ask(read(0, 6 * SECTOR), 0).unwrap();
    let found: Vec<u8> = bytes.chunks(SECTOR as usize).map(|sector| sector[0]).collect();
    assert_eq!(found, [1, 2, 200, 200, 5, 6]);
    let devices: Vec<_> = bench.log.iter().map(target).collect();
    assert_eq!(devices.len(), 3, "{devices:?}");
    assert_eq!([devices[0].1, devices[2].1], [0, 4 * SECTOR]);

    let ids = [read(0, 3 * SECTOR), read(0, 2 * SECTOR), write(3 * SECTOR, 10)]
        .map(|ask| bench.submit(ask, 9));
    bench.run_failing(on_cache);
    let results = ids.map(|id| bench.answer(id).result);
    assert_eq!(results, [Err(Fault::Io), Ok(()), Err(Fault::Io)]);
    let id = bench.submit(flush(), 0);
    bench.run_failing(on_cache);
    assert_eq!(bench.answer(id).result, Err(Fault::Io), "the flush cannot promise it");
    assert!(bench.ask(flush(), 0).is_ok(), "when the device reads again, it is cleaned");
    assert_eq!(
        (bench.cache.stats().dirty_bytes, bench.devices[&BACKING].stable[2 * SECTOR as usize]),
        (0, 200)
    );
    bench.check_idle();
}

#[test]
fn what_was_cached_before_is_used_again_after_and_only_that() {
    for mode in MODES {
        let mut bench = degraded(mode);
        bench.cache.restore();
        assert_eq!(bench.get(0), Ok(1));
        bench.cache.degrade();
        assert_eq!(bench.get(8), Ok(9)); // not fetched
        bench.cache.restore();
        bench.log.clear();
        assert_eq!([bench.get(0), bench.get(8)], [Ok(1), Ok(9)]);
        let reads: Vec<DeviceId> =
            bench.log.iter().filter(|order| is_read(order)).map(|order| target(order).0).collect();
        assert_eq!(reads, [DeviceId::Cache, BACKING]);

        bench.cache.forget_clean();
        bench.log.clear();
        assert_eq!(bench.get(0), Ok(1));
        assert_eq!(target(&bench.log[0]).0, BACKING, "a device that may have lost it is not asked");
        bench.check_idle();
    }
}

#[test]
fn dirty_data_outlives_forgetting_what_is_clean() {
    let mut bench = bench(WriteMode::Back);
    bench.put(2..4, 200);
    assert_eq!(bench.get(0), Ok(1));
    bench.cache.forget_clean();
    assert_eq!(bench.cache.stats().valid_bytes, 2 * SECTOR);
    assert_eq!([bench.get(0), bench.get(2)], [Ok(1), Ok(200)]);
    bench.check_idle();
}

/// What is under way when the device is given up: a store that waits for room, and a fetch.
#[test]
fn what_is_under_way_when_the_device_is_given_up_ends_right() {
    let mut bench: Bench =
        Bench::new(config("32KiB", 2 * BLOCK, WriteMode::Back), &[64 * BLOCK]).numbered();
    bench.put(0..16, 200); // full of dirty blocks
    let writing = bench.submit(write(2 * BLOCK, BLOCK), 201);
    let reading = bench.submit(read(10 * BLOCK, SECTOR), 0);
    assert!(bench.answers.is_empty());
    bench.cache.degrade();
    bench.run();
    assert!(bench.answer(writing).result.is_ok());
    assert_eq!(bench.answer(reading).bytes[0], 81);
    assert_eq!(
        [0, 15, 16, 23, 24].map(|sector| bench.get(sector)),
        [200, 200, 201, 201, 25].map(Ok)
    );
    bench.check_idle();
    assert!(bench.ask(flush(), 0).is_ok());
    assert_eq!(bench.devices[&BACKING].stable[16 * SECTOR as usize], 201);
}
