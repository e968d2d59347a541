//! What a client sees of reads, and what they cost the devices.

use crate::common::*;
use floe_block::{Config, DeviceId, Fault, Request, RequestKind, VolumeId, WriteMode};

const BLOCK: u64 = 8 * SECTOR;
const MODES: [WriteMode; 3] = [WriteMode::Through, WriteMode::Around, WriteMode::Back];

fn bench(mode: WriteMode) -> Bench {
    Bench::new(config("32KiB", 8 * BLOCK, mode), &[64 * BLOCK]).numbered()
}

#[test]
fn several_readers_of_the_same_missing_block_cost_one_backing_read() {
    for mode in MODES {
        let mut bench = bench(mode);
        let early: Vec<_> =
            (0..4).map(|sector| bench.submit(read(sector * SECTOR, SECTOR), 0)).collect();
        assert_eq!(bench.under_way.len(), 1);
        bench.complete(0, None); // the fetch; what is left is to store it
        assert!(bench.under_way.iter().all(|operation| on_cache(&operation.order)));
        let late: Vec<_> =
            (4..8).map(|sector| bench.submit(read(sector * SECTOR, SECTOR), 0)).collect();
        for (sector, id) in early.into_iter().chain(late).enumerate() {
            let answer = bench.answer(id); // nobody waits for the store
            assert_eq!(answer.result, Ok(()));
            assert!(answer.bytes.iter().all(|byte| *byte == Bench::born(sector as u64)));
        }
        assert_eq!(bench.ordered(BACKING).len(), 1);
        assert_eq!(bench.cache.stats().counters.joined_reads, 7);
        bench.run();
        bench.check_idle();
    }
}

#[test]
fn a_failed_backing_read_is_an_error_and_nothing_is_cached() {
    for mode in MODES {
        let mut bench = bench(mode);
        let ids = [0, 1].map(|sector| bench.submit(read(sector * SECTOR, SECTOR), 0));
        bench.run_failing(on_backing);
        for id in ids {
            assert_eq!(bench.answer(id).result, Err(Fault::Io));
        }
        let stats = bench.cache.stats();
        assert_eq!(
            (stats.valid_bytes, stats.counters.cache_write_bytes, stats.requests.errors),
            (0, 0, 2)
        );
        assert_eq!(bench.get(0), Ok(1), "and the next one tries again");
        bench.check_idle();
    }
}

#[test]
fn clean_data_that_the_cache_device_cannot_read_is_served_from_the_backing_device() {
    for mode in MODES {
        let mut bench = bench(mode);
        assert_eq!(bench.get(3), Ok(4));
        bench.log.clear();
        let id = bench.submit(read(3 * SECTOR, SECTOR), 0);
        bench.run_failing(on_cache);
        let answer = bench.answer(id);
        assert_eq!((answer.result, answer.bytes[0]), (Ok(()), 4));
        let devices: Vec<DeviceId> = bench.log.iter().map(|order| target(order).0).collect();
        assert_eq!(devices, [DeviceId::Cache, BACKING]);
        assert_eq!(bench.cache.stats().counters.cache_errors, 1);
        assert_eq!(bench.get(3), Ok(4));
        bench.check_idle();
    }
}

#[test]
fn a_cache_device_that_takes_no_data_does_not_hurt_reads() {
    let mut bench = bench(WriteMode::Through);
    for _ in 0..2 {
        let id = bench.submit(read(0, BLOCK), 0);
        bench.run_failing(on_cache);
        assert_eq!(bench.answer(id).bytes[7 * SECTOR as usize], 8);
    }
    assert_eq!(bench.cache.stats().valid_bytes, 0);
    bench.check_idle();
}

#[test]
fn a_request_beyond_the_volume_is_refused_and_changes_nothing() {
    for mode in [WriteMode::Pass, WriteMode::Through, WriteMode::Around, WriteMode::Back] {
        let mut bench = bench(mode);
        let before = bench.cache.stats();
        let ranges = [
            (64 * BLOCK, 1),
            (64 * BLOCK - 1, 2),
            (u64::MAX, 1),
            (0, u64::MAX),
            (u64::MAX, u64::MAX),
        ];
        let kinds = [
            RequestKind::Read,
            RequestKind::Write { durable: true },
            RequestKind::Zero { durable: true, may_unmap: true, fast: false },
            RequestKind::Zero { durable: true, may_unmap: true, fast: true },
            RequestKind::Prefetch,
            RequestKind::DirtyMap,
            RequestKind::Trim,
        ];
        let mut refused = 0;
        for volume in [VolumeId(0), VolumeId(1)] {
            for (offset, len) in ranges {
                for kind in kinds {
                    // Refused requests have no use for a buffer, so the cache is asked past the
                    // bench.
                    let mut orders = Vec::new();
                    let request = Request { volume, kind, offset, len };
                    let id = floe_block::RequestId(7);
                    bench.cache.submit(id, request, &mut orders);
                    let answer = floe_block::Order::Answer {
                        request: id,
                        result: Err(Fault::OutOfRange),
                        hit: false,
                    };
                    assert_eq!((orders.len(), &orders[0]), (2, &answer), "{request:?}");
                    refused += 1;
                }
            }
        }
        let after = bench.cache.stats();
        assert_eq!(after.requests.errors, refused);
        assert_eq!((after.requests.reads, after.requests.read_bytes), (0, 0));
        assert_eq!((after.counters, after.valid_bytes), (before.counters, 0));
        let flush = Request {
            volume: VolumeId(0),
            kind: RequestKind::Flush,
            offset: u64::MAX,
            len: u64::MAX,
        };
        assert!(bench.ask(flush, 0).is_ok(), "a flush has no range");
        bench.check_idle();
    }
}

#[test]
fn an_empty_request_at_the_very_end_is_answered() {
    let mut bench = bench(WriteMode::Back);
    for kind in [RequestKind::Read, RequestKind::Write { durable: false }, RequestKind::Trim] {
        let request = Request { kind, ..read(64 * BLOCK, 0) };
        assert_eq!(bench.ask(request, 1), Ok(Vec::new()));
    }
    assert!(bench.ordered(BACKING).is_empty());
}

#[test]
fn a_request_larger_than_the_cache_is_served_right() {
    for mode in MODES {
        let mut bench = bench(mode);
        let bytes = bench.ask(read(SECTOR / 2, 40 * BLOCK), 0).unwrap();
        for sector in 1..320 {
            assert_eq!(bytes[(sector * SECTOR) as usize], Bench::born(sector));
        }
        bench.put(8..328, 200);
        assert_eq!(
            [7, 8, 327, 328].map(|sector| bench.get(sector)),
            [Ok(8), Ok(200), Ok(200), Ok(29)]
        );
        bench.check_idle();
    }
}

#[test]
fn pass_through_caches_nothing() {
    let mut bench = bench(WriteMode::Pass);
    assert_eq!(bench.get(5), Ok(6));
    bench.put(5..6, 200);
    assert_eq!(bench.get(5), Ok(200));
    assert!(bench.ordered(DeviceId::Cache).is_empty());
    assert_eq!(bench.cache.stats().blocks_allocated(), 0);
    bench.check_idle();
}

/// More pieces than may be under way at once; some of the later ones end as soon as they begin, in
/// a shard whose turn was over when they were given out.
#[test]
fn pieces_that_end_at_once_do_not_leave_a_long_request_hanging() {
    let mut config = config("4KiB", 1024 * SECTOR, WriteMode::Back);
    config.shards = Some(4);
    let mut bench = Bench::new(config, &[1024 * SECTOR]).numbered();
    bench.put(1..700, 200);
    let id = bench.submit(write(SECTOR, 699 * SECTOR), 201);
    // lost: the cache device may hold either, the backing device neither
    bench.run_failing(|_| true);
    assert!(bench.answer(id).result.is_err());
    for from in [0, 1, 100] {
        assert_eq!(bench.ask(read(from * SECTOR, (700 - from) * SECTOR), 0), Err(Fault::Io));
        bench.check_idle();
    }
}

/// A fetch rounds out to whole blocks, so it can bring along sectors that are lost, which its own
/// reader did not want.
#[test]
fn a_lost_sector_is_not_served_from_the_fetch_of_its_neighbour() {
    let mut bench = bench(WriteMode::Back);
    bench.put(1..2, 200);
    let id = bench.submit(write(SECTOR, SECTOR), 201);
    bench.run_failing(|_| true);
    assert!(bench.answer(id).result.is_err());
    for block in 1..20 {
        bench.get(block * 8).unwrap(); // the block of the lost sector leaves
    }
    let neighbour = bench.submit(read(0, SECTOR), 0);
    bench.complete_the(|order| on_backing(order) && is_read(order));
    let lost = bench.submit(read(SECTOR, SECTOR), 0);
    bench.run();
    assert_eq!(bench.answer(neighbour).bytes[0], 1);
    assert_eq!(bench.answer(lost).result, Err(Fault::Io));
    bench.check_idle();
}

/// Small blocks and a region of eight of them: what is longer than a block may be one piece.
fn regions(mode: WriteMode) -> Bench {
    Bench::new(config("32KiB,256KiB", 64 * BLOCK, mode), &[64 * BLOCK]).numbered()
}

#[test]
fn a_reader_of_what_is_cached_does_not_wait_for_what_another_fetches_beside_it() {
    for mode in MODES {
        let mut bench = regions(mode);
        bench.get(2 * 8).unwrap();
        let long = bench.submit(read(0, 4 * BLOCK), 0);
        let cached = bench.submit(read(2 * BLOCK, BLOCK), 0);
        while let Some(at) = bench.under_way.iter().position(|operation| on_cache(&operation.order))
        {
            bench.complete(at, None);
        }
        assert_eq!(bench.answer(cached).bytes[0], 17, "{mode:?}");
        bench.run();
        let bytes = bench.answer(long).bytes;
        assert!(
            (0..32).all(|sector| bytes[sector * SECTOR as usize] == sector as u8 + 1),
            "{mode:?}"
        );
        bench.check_idle();
    }
}

/// Each wants the last sector of the one before, and with it a block that is on its way.
#[test]
fn reads_that_overlap_at_their_ends_fetch_side_by_side_and_nothing_twice() {
    for mode in MODES {
        let mut bench = regions(mode);
        let ids: Vec<_> =
            (0..6).map(|at| bench.submit(read(at * BLOCK, BLOCK + SECTOR), 0)).collect();
        let fetched = bench.ordered(BACKING);
        assert_eq!(fetched.iter().map(|order| target(order).2).sum::<u64>(), 7 * BLOCK, "{mode:?}");
        bench.run();
        assert!(bench.ordered(BACKING).is_empty(), "{mode:?}");
        for (at, id) in ids.into_iter().enumerate() {
            let bytes = bench.answer(id).bytes;
            assert_eq!(
                (bytes[0], bytes[BLOCK as usize]),
                (8 * at as u8 + 1, 8 * at as u8 + 9),
                "{mode:?}"
            );
        }
        bench.check_idle();
    }
}

#[test]
fn a_learned_fetch_is_the_aligned_run_around_a_read_up_to_what_is_cached() {
    const KIB: u64 = 1024;
    let adapts = |volume: u64| {
        let sizes = config("4KiB,16KiB,64KiB,256KiB", 4 << 20, WriteMode::Through);
        let config = Config { adapts_fetches: true, ..sizes };
        Bench::new(config, &[volume]).numbered()
    };
    let fetched = |bench: &Bench| -> Vec<(u64, u64)> {
        let ordered = bench.log.iter().map(target).filter(|(device, ..)| *device == BACKING);
        ordered.map(|(_, offset, len)| (offset / KIB, len / KIB)).collect()
    };
    // 64 KiB are fetched before anything is learned.
    let mut bench = adapts(1 << 20);
    assert_eq!(bench.get(3), Ok(4));
    assert_eq!(fetched(&bench), [(0, 64)]);
    assert_eq!((bench.get(0), bench.get(15)), (Ok(1), Ok(16)));
    assert_eq!(fetched(&bench).len(), 1, "both were fetched");
    // What is cached ends it on either side.
    bench.put(20..21, 5);
    bench.put(26..27, 6);
    bench.log.clear();
    assert_eq!(bench.get(23), Ok(24));
    assert_eq!(fetched(&bench), [(84, 20)]);
    assert_eq!((bench.get(20), bench.get(26)), (Ok(5), Ok(6)), "newer data stays");
    // The volume's end ends it, too.
    let mut short = adapts(9 * SECTOR);
    assert_eq!(short.get(4), Ok(5));
    assert_eq!(fetched(&short), [(0, 36)]);
    // Nothing waits because another fetch would overlap.
    let mut busy = adapts(1 << 20);
    let first = busy.submit(read(0, SECTOR), 0);
    let second = busy.submit(read(20 * SECTOR, SECTOR), 0);
    let third = busy.submit(read(5 * SECTOR, SECTOR), 0);
    assert_eq!(fetched(&busy), [(0, 64), (64, 64)]);
    busy.run();
    for (id, sector) in [(first, 0), (second, 20), (third, 5)] {
        assert_eq!(busy.answer(id).bytes[0], Bench::born(sector));
    }
    busy.check_idle();
}

#[test]
fn a_learned_fetch_begins_within_a_block_whose_first_sectors_are_valid() {
    // The blocks have two sectors; sector 16 begins a region.
    let bench = || {
        let sizes = config("8KiB,64KiB", 4 << 20, WriteMode::Back);
        let mut bench = Bench::new(Config { adapts_fetches: true, ..sizes }, &[1 << 20]).numbered();
        bench.put(16..17, 5);
        bench
    };
    let mut quiet = bench();
    quiet.log.clear();
    assert_eq!(quiet.get(17), Ok(18));
    let fetches = quiet.log.iter().map(target).find(|(device, ..)| *device == BACKING);
    assert_eq!(fetches, Some((BACKING, 17 * SECTOR, 15 * SECTOR)));
    assert_eq!(quiet.get(16), Ok(5), "the fetch has left it");
    quiet.check_idle();
    // A write of the block's first sector is under way.
    let mut busy = bench();
    let written = busy.submit(write(16 * SECTOR, SECTOR), 6);
    let wanted = busy.submit(read(17 * SECTOR, SECTOR), 0);
    busy.run();
    assert_eq!((busy.answer(written).result, busy.answer(wanted).bytes[0]), (Ok(()), 18));
    assert_eq!(busy.get(16), Ok(6));
    busy.check_idle();
}
