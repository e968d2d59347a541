//! Requests that are neither reads nor writes: prefetches, maps of what is dirty, fast zeroing.

use crate::common::*;
use floe_block::{DeviceId, Fault, Order, Request, RequestKind, WriteMode};

const BLOCK: u64 = 8 * SECTOR;
const MODES: [WriteMode; 4] =
    [WriteMode::Pass, WriteMode::Through, WriteMode::Around, WriteMode::Back];

fn bench(mode: WriteMode) -> Bench {
    Bench::new(config("32KiB", 64 * BLOCK, mode), &[128 * BLOCK]).numbered()
}

fn prefetch(offset: u64, len: u64) -> Request {
    Request { kind: RequestKind::Prefetch, ..read(offset, len) }
}

fn map(offset: u64, len: u64) -> Request {
    Request { kind: RequestKind::DirtyMap, ..read(offset, len) }
}

fn fast_zero(offset: u64, len: u64) -> Request {
    Request {
        kind: RequestKind::Zero { durable: false, may_unmap: true, fast: true },
        ..read(offset, len)
    }
}

#[test]
fn what_has_been_prefetched_is_read_from_the_cache() {
    for mode in MODES {
        let mut bench = bench(mode);
        assert_eq!(bench.ask(prefetch(BLOCK - 1, 3 * BLOCK), 0), Ok(Vec::new()));
        let fetched: u64 = bench.ordered(BACKING).iter().map(|order| target(order).2).sum();
        if mode == WriteMode::Pass {
            assert_eq!(fetched, 0);
            continue;
        }
        assert_eq!(fetched, 4 * BLOCK, "whole blocks");
        let bytes = bench.ask(read(BLOCK, 2 * BLOCK), 0).unwrap();
        assert_eq!((bytes[0], bytes[15 * SECTOR as usize]), (9, 24));
        assert_eq!(bench.ask(prefetch(0, 4 * BLOCK), 0), Ok(Vec::new()));
        assert!(bench.ordered(BACKING).is_empty(), "it is there");
        let requests = bench.cache.stats().requests;
        assert_eq!((requests.prefetches, requests.reads, requests.read_hits), (2, 1, 1));
        bench.check_idle();
    }
}

#[test]
fn a_prefetch_spares_what_is_cached_and_dirty() {
    let mut bench = bench(WriteMode::Back);
    bench.put(2..5, 200);
    bench.log.clear();
    assert!(bench.ask(prefetch(0, BLOCK), 0).is_ok());
    let reads: u64 =
        bench.log.iter().filter(|order| is_read(order)).map(|order| target(order).2).sum();
    assert_eq!(reads, 5 * SECTOR);
    assert_eq!([1, 2, 4, 5].map(|sector| bench.get(sector)), [2, 200, 200, 6].map(Ok));
    bench.check_idle();
}

#[test]
fn a_long_prefetch_has_little_in_memory_at_once() {
    let mut bench = bench(WriteMode::Through);
    let id = bench.submit(prefetch(0, 128 * BLOCK), 0);
    let mut most = 0;
    while !bench.under_way.is_empty() {
        most = most.max(bench.buffers.len());
        bench.complete(0, None);
    }
    assert!(bench.answer(id).result.is_ok());
    assert!((2..=9).contains(&most), "{most} buffers");
    bench.check_idle();
}

#[test]
fn readers_of_what_is_being_prefetched_cost_no_second_fetch() {
    let mut bench = bench(WriteMode::Through);
    let fetching = bench.submit(prefetch(0, BLOCK), 0);
    let reading = bench.submit(read(SECTOR, SECTOR), 0);
    let again = bench.submit(prefetch(0, SECTOR), 0);
    bench.complete(0, None);
    assert_eq!(bench.answer(reading).bytes[0], 2);
    assert!(bench.answer(fetching).result.is_ok() && bench.answer(again).result.is_ok());
    bench.run();
    assert_eq!(bench.ordered(BACKING).len(), 1);
    bench.check_idle();
}

#[test]
fn a_prefetch_that_the_backing_device_fails_says_so_and_a_degraded_cache_does_nothing() {
    let mut bench = bench(WriteMode::Through);
    let id = bench.submit(prefetch(0, BLOCK), 0);
    bench.run_failing(on_backing);
    assert_eq!(bench.answer(id).result, Err(Fault::Io));
    bench.cache.degrade();
    bench.log.clear();
    assert!(bench.ask(prefetch(0, BLOCK), 0).is_ok());
    assert!(bench.log.is_empty());
    bench.check_idle();
}

#[test]
fn a_map_marks_the_sectors_that_only_the_cache_has() {
    for mode in MODES {
        let mut bench = bench(mode);
        bench.put(6..9, 200);
        bench.get(12).unwrap();
        bench.log.clear();
        let marks = bench.ask(map(5 * SECTOR + 1, 5 * SECTOR), 0).unwrap();
        let expected: &[u8] = if mode == WriteMode::Back { &[0, 1, 1, 1, 0, 0] } else { &[0; 6] };
        assert_eq!(marks, expected, "{mode:?}");
        assert!(bench.log.is_empty());
        assert!(bench.ask(flush(), 0).is_ok());
        assert_eq!(bench.ask(map(0, 16 * SECTOR), 0).unwrap(), [0; 16]);
        bench.check_idle();
    }
}

#[test]
fn lost_sectors_are_not_holes() {
    let mut bench = bench(WriteMode::Back);
    bench.put(3..4, 200);
    let id = bench.submit(write(3 * SECTOR, SECTOR), 201);
    bench.run_failing(|_| true);
    assert_eq!(bench.answer(id).result, Err(Fault::Io));
    assert_eq!(bench.ask(map(2 * SECTOR, 3 * SECTOR), 0).unwrap(), [0, 1, 0]);
    bench.check_idle();
}

#[test]
fn a_fast_zeroing_that_the_device_cannot_do_changes_nothing() {
    for mode in MODES {
        let mut bench = bench(mode);
        bench.zeroes_fast = false;
        bench.put(0..40, 200);
        bench.get(7).unwrap();
        let before = bench.cache.stats();
        bench.log.clear();
        for (offset, len) in [(100, 30 * SECTOR), (8 * SECTOR, BLOCK)] {
            assert_eq!(bench.ask(fast_zero(offset, len), 0), Err(Fault::Unsupported));
        }
        assert!(
            bench.log.iter().all(|order| matches!(order, Order::Zero { .. }))
                && bench.log.len() == 2
        );
        let after = bench.cache.stats();
        assert_eq!(
            (after.valid_bytes, after.dirty_bytes),
            (before.valid_bytes, before.dirty_bytes)
        );
        assert!((0..40).all(|sector| bench.get(sector) == Ok(200)), "{mode:?}");
        bench.check_idle();
    }
}

#[test]
fn a_fast_zeroing_zeroes_to_the_byte_where_the_device_can() {
    for mode in MODES {
        let mut bench = bench(mode);
        bench.put(0..40, 200);
        bench.log.clear();
        assert!(bench.ask(fast_zero(100, 30 * SECTOR), 0).is_ok());
        let zeroed: u64 = bench
            .log
            .iter()
            .filter(|order| {
                matches!(order, Order::Zero { fast: true, device: DeviceId::Backing(_), .. })
            })
            .map(|order| target(order).2)
            .sum();
        assert_eq!(zeroed, 29 * SECTOR);
        let bytes = bench.ask(read(0, 32 * SECTOR), 0).unwrap();
        let zeros = 100..100 + 30 * SECTOR as usize;
        for (at, byte) in bytes.iter().enumerate() {
            assert_eq!(*byte, if zeros.contains(&at) { 0 } else { 200 }, "{mode:?}, byte {at}");
        }
        assert_eq!(
            bench.ask(fast_zero(100, SECTOR), 0),
            Err(Fault::Unsupported),
            "not a whole sector"
        );
        bench.check_idle();
    }
}
