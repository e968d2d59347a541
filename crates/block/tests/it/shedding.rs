//! What a client and the devices see of hits that are shed.

use crate::common::*;
use floe_block::WriteMode;

const BLOCK: u64 = 8 * SECTOR;

/// A cache that has the first block.
fn warm(mode: WriteMode) -> Bench {
    let mut bench = Bench::new(config("32KiB", 8 * BLOCK, mode), &[64 * BLOCK]).numbered();
    bench.get(0).unwrap();
    bench.log.clear();
    bench
}

/// Reads the first block; says how many operations it took on each device.
fn costs(bench: &mut Bench) -> (usize, usize) {
    bench.log.clear();
    let bytes = bench.ask(read(0, BLOCK), 0).unwrap();
    for (sector, bytes) in bytes.chunks(SECTOR as usize).enumerate() {
        let born = Bench::born(sector as u64);
        assert!(bytes.iter().all(|byte| [born, 200].contains(byte)));
    }
    let on_cache = bench.log.iter().filter(|order| on_cache(order)).count();
    (on_cache, bench.log.len() - on_cache)
}

#[test]
fn the_share_of_hits_asked_for_is_read_from_the_backing_device_and_the_same_ones_each_time() {
    for mode in [WriteMode::Through, WriteMode::Around, WriteMode::Back] {
        let shed = |share| {
            let mut bench = warm(mode);
            bench.cache.shed(share);
            let costs: Vec<_> = (0..200).map(|_| costs(&mut bench)).collect();
            assert!(costs.iter().all(|cost| [(1, 0), (0, 1)].contains(cost)));
            let stats = bench.cache.stats();
            assert_eq!(
                (stats.requests.reads, stats.requests.read_hits),
                (201, 200),
                "they are hits"
            );
            let shed = costs.iter().filter(|cost| **cost == (0, 1)).count() as u64;
            assert_eq!(stats.counters.shed_bytes, shed * BLOCK);
            bench.check_idle();
            costs
        };
        for (share, least, most) in [(0.0, 0, 0), (0.05, 9, 10), (0.3, 59, 60), (0.5, 99, 100)] {
            let first = shed(share);
            let count = first.iter().filter(|cost| **cost == (0, 1)).count();
            assert!((least..=most).contains(&count), "{mode} {share}: {count}");
            assert_eq!(first, shed(share));
        }
    }
}

#[test]
fn dirty_data_is_read_from_the_cache_however_much_is_shed() {
    let mut bench = warm(WriteMode::Back);
    bench.put(3..5, 200);
    bench.cache.shed(1.0);
    assert_eq!(costs(&mut bench), (1, 0), "the first whole share has yet to add up");
    let (on_cache, on_backing) = costs(&mut bench);
    assert_eq!((on_cache, on_backing), (1, 2), "around the dirty run");
    assert_eq!(bench.get(3), Ok(200));
    bench.clean();
    bench.run();
    assert_eq!(costs(&mut bench), (0, 1), "clean now");
}

#[test]
fn a_hit_that_the_backing_device_fails_is_read_from_the_cache() {
    let mut bench = warm(WriteMode::Through);
    bench.cache.shed(1.0);
    for _ in 0..3 {
        let id = bench.submit(read(0, BLOCK), 0);
        bench.run_failing(on_backing);
        let answer = bench.answer(id);
        assert_eq!((answer.result, answer.bytes[0]), (Ok(()), 1));
    }
    assert_eq!(bench.cache.stats().requests.errors, 0);
    assert_eq!(bench.cache.stats().counters.cache_errors, 0);
    bench.check_idle();
}

#[test]
fn a_hit_that_both_devices_fail_is_an_error_and_the_next_one_tries_again() {
    let mut bench = warm(WriteMode::Through);
    bench.cache.shed(1.0);
    bench.get(0).unwrap();
    let id = bench.submit(read(0, BLOCK), 0);
    bench.run_failing(|_| true);
    assert!(bench.answer(id).result.is_err());
    assert_eq!(bench.get(0), Ok(1));
    bench.check_idle();
}

#[test]
fn a_prefetch_of_what_is_there_reads_no_device() {
    let mut bench = warm(WriteMode::Through);
    bench.cache.shed(1.0);
    for _ in 0..3 {
        let prefetch =
            floe_block::Request { kind: floe_block::RequestKind::Prefetch, ..read(0, BLOCK) };
        bench.ask(prefetch, 0).unwrap();
        assert!(bench.log.is_empty());
    }
}
