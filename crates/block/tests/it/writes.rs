//! What a client sees of writes, and in which order devices see them.

use crate::common::*;
use floe_block::{Config, DeviceId, Fault, Order, Request, RequestKind, VolumeId, WriteMode};

const BLOCK: u64 = 8 * SECTOR;
const MODES: [WriteMode; 4] =
    [WriteMode::Pass, WriteMode::Through, WriteMode::Around, WriteMode::Back];

fn bench(mode: WriteMode) -> Bench {
    Bench::new(config("32KiB", 4 * BLOCK, mode), &[64 * BLOCK, 64 * BLOCK]).numbered()
}

fn stable(bench: &Bench, sector: u64) -> u8 {
    bench.devices[&BACKING].stable[(sector * SECTOR) as usize]
}

#[test]
fn a_write_of_parts_of_sectors_reads_at_most_two() {
    for mode in MODES {
        let mut bench = bench(mode);
        for (offset, len, sectors) in [
            (SECTOR, 5 * SECTOR, 0),
            (BLOCK + 1, 10, 1),
            (2 * BLOCK, 10, 1),
            (3 * BLOCK - 10, 10, 1),
            (3 * BLOCK + 512, 6 * SECTOR, 2),
            (5 * BLOCK - 512, 2 * SECTOR, 2),
            (6 * BLOCK + 512, 5 * BLOCK, 2),
        ] {
            bench.log.clear();
            assert!(bench.ask(write(offset, len), 200).is_ok());
            let reads: Vec<_> = bench.log.iter().filter(|order| is_read(order)).collect();
            let read_bytes: u64 = reads
                .iter()
                .filter(|order| {
                    // reads of victims that are cleaned are others' data
                    let (_, at, _) = target(order);
                    on_backing(order)
                        || (offset / SECTOR..=(offset + len) / SECTOR).contains(&(at / SECTOR))
                })
                .map(|order| target(order).2)
                .sum();
            if mode == WriteMode::Back {
                assert!(read_bytes <= sectors * SECTOR + 4 * BLOCK, "{mode:?} {offset}");
                let backing: u64 =
                    bench.ordered(BACKING).iter().filter(|o| is_read(o)).map(|o| target(o).2).sum();
                assert!(backing <= sectors * SECTOR);
            } else {
                assert_eq!(read_bytes, sectors * SECTOR, "{mode:?} {offset}");
            }
            let bytes = bench.ask(read(offset - offset.min(1), len + 2), 0).unwrap();
            let skew = ((offset - offset.min(1)) % SECTOR) as usize + offset.min(1) as usize;
            assert_ne!(bytes[skew + len as usize], 200, "{mode:?}: the byte after stays");
            assert!(bytes[skew..skew + len as usize].iter().all(|byte| *byte == 200));
        }
        bench.check_idle();
    }
}

#[test]
fn a_flush_brings_everything_to_the_backing_device_and_flushes_it_after_that() {
    let mut bench = bench(WriteMode::Back);
    bench.put(3..20, 200);
    assert!(bench.ordered(BACKING).is_empty(), "write-back");
    let id = bench.submit(flush(), 0);
    assert!(
        bench
            .under_way
            .iter()
            .all(|operation| on_cache(&operation.order) && is_read(&operation.order))
    );
    while bench.under_way.len() > 1 || !matches!(bench.under_way[0].order, Order::Flush { .. }) {
        assert!(
            bench.under_way.iter().all(|operation| !matches!(operation.order, Order::Flush { .. }))
        );
        bench.complete(0, None);
    }
    assert!((3..20).all(|sector| bench.devices[&BACKING].bytes[(sector * SECTOR) as usize] == 200));
    assert!(bench.answers.is_empty(), "not before the device has flushed");
    bench.complete(0, None);
    assert_eq!(bench.answer(id).result, Ok(()));
    assert!((3..20).all(|sector| stable(&bench, sector) == 200));
    assert_eq!(bench.cache.stats().dirty_bytes, 0);
    assert_eq!(bench.get(3), Ok(200));
    assert!(bench.ordered(BACKING).iter().all(|order| !is_read(order)), "it stays cached");
    bench.check_idle();
}

/// What is written while a round of cleaning runs is not part of it: a flush that comes then waits
/// for the next.
#[test]
fn a_flush_during_a_round_waits_for_what_was_written_since_the_round_began() {
    let mut bench = bench(WriteMode::Back);
    bench.put(0..1, 200);
    bench.clean();
    let later = bench.submit(write(BLOCK, SECTOR), 201);
    bench.complete_the(|order| on_cache(order) && is_write(order));
    assert_eq!(bench.answer(later).result, Ok(()));
    let id = bench.submit(flush(), 0);
    bench.run();
    assert_eq!(bench.answer(id).result, Ok(()));
    assert_eq!((stable(&bench, 0), stable(&bench, 8)), (200, 201));
    bench.check_idle();
}

#[test]
fn a_flush_in_write_through_only_flushes() {
    for mode in [WriteMode::Pass, WriteMode::Through, WriteMode::Around] {
        let mut bench = bench(mode);
        bench.put(3..20, 200);
        bench.log.clear();
        assert!(bench.ask(flush(), 0).is_ok());
        assert!(matches!(bench.log[..], [Order::Flush { device: BACKING, .. }]));
        assert!((3..20).all(|sector| stable(&bench, sector) == 200));
    }
}

#[test]
fn a_flush_that_cannot_bring_all_data_fails_and_the_next_tries_again() {
    let mut bench = bench(WriteMode::Back);
    bench.put(0..9, 200);
    let id = bench.submit(flush(), 0);
    bench.run_failing(|order| on_backing(order) && is_write(order));
    assert_eq!(bench.answer(id).result, Err(Fault::Io));
    assert_eq!(bench.cache.stats().dirty_bytes, 9 * SECTOR);
    assert!(bench.ask(flush(), 0).is_ok());
    assert_eq!((stable(&bench, 0), stable(&bench, 8)), (200, 200));
    bench.check_idle();
}

#[test]
fn a_volume_whose_backing_device_fails_does_not_fail_flushes_of_others() {
    let mut bench = bench(WriteMode::Back);
    bench.put(0..9, 200);
    let other = |request: Request| Request { volume: VolumeId(1), ..request };
    assert!(bench.ask(other(write(0, SECTOR)), 201).is_ok());
    for _ in 0..2 {
        let ids = [bench.submit(flush(), 0), bench.submit(other(flush()), 0)];
        bench.run_failing(|order| target(order).0 == BACKING);
        assert_eq!(ids.map(|id| bench.answer(id).result), [Err(Fault::Io), Ok(())]);
    }
    assert_eq!(bench.devices[&DeviceId::Backing(VolumeId(1))].stable[0], 201);
    bench.check_idle();
}

#[test]
fn a_flush_brings_only_its_own_volume_and_waits_for_no_other() {
    let mut bench = bench(WriteMode::Back);
    let second = DeviceId::Backing(VolumeId(1));
    let other = |request: Request| Request { volume: VolumeId(1), ..request };
    bench.put(0..9, 200);
    assert!(bench.ask(other(write(0, SECTOR)), 201).is_ok());
    assert!(bench.ask(flush(), 0).is_ok());
    assert!(bench.ordered(second).is_empty());
    assert_eq!(bench.cache.stats().dirty_bytes, SECTOR);

    bench.put(0..9, 202);
    bench.clean(); // both; the second volume's device hangs
    let id = bench.submit(flush(), 0);
    while let Some(at) =
        bench.under_way.iter().position(|operation| target(&operation.order).0 != second)
    {
        bench.complete(at, None);
    }
    assert_eq!(bench.answer(id).result, Ok(()));
    assert_eq!((stable(&bench, 0), stable(&bench, 8)), (202, 202));
    assert_eq!(bench.under_way.len(), 1);
    bench.run();
    bench.check_idle();
}

#[test]
fn many_writers_of_one_sector_are_each_woken_once() {
    for mode in MODES {
        let mut bench = bench(mode);
        let ids: Vec<_> =
            (0..100).map(|stamp| bench.submit(write(0, SECTOR), 100 + stamp)).collect();
        bench.run();
        for id in ids {
            assert_eq!(bench.answer(id).result, Ok(()));
        }
        assert_eq!(bench.get(0), Ok(199), "in the order in which they came");
        assert_eq!(bench.cache.stats().counters.restarts, 99, "{mode:?}");
        bench.check_idle();
    }
}

/// A write behind readers is not overtaken by those that came after it, however many keep coming.
#[test]
fn readers_that_keep_coming_do_not_hold_a_write_up() {
    for mode in MODES {
        let mut bench = bench(mode);
        bench.get(0).unwrap();
        bench.submit(read(0, SECTOR), 0);
        let id = bench.submit(write(0, SECTOR), 200);
        for _ in 0..50 {
            bench.submit(read(0, SECTOR), 0);
            bench.submit(read(SECTOR, SECTOR), 0);
        }
        bench.answers.clear();
        while !bench.answers.iter().any(|answer| answer.id == id) {
            bench.complete(bench.under_way.len() - 1, None);
        }
        let first_sector = |answer: &Answered| answer.bytes.iter().all(|byte| *byte == 1);
        assert_eq!(
            bench.answers.iter().filter(|answer| first_sector(answer)).count(),
            1,
            "{mode:?}"
        );
        bench.run();
        bench.check_idle();
    }
}

#[test]
fn readers_of_what_has_been_written_through_do_not_wait_for_its_store() {
    let mut bench = bench(WriteMode::Through);
    bench.put(0..8, 200);
    let stats = bench.cache.stats();
    let id = bench.submit(write(100, 2 * SECTOR), 201);
    let early = bench.submit(read(0, SECTOR), 0);
    while bench.answers.is_empty() {
        bench.complete(0, None);
    }
    assert_eq!(bench.answer(id).result, Ok(()));
    assert!(
        bench
            .under_way
            .iter()
            .all(|operation| on_cache(&operation.order) && is_write(&operation.order))
    );
    let late = bench.submit(read(2 * SECTOR, SECTOR), 0);
    let [early, late] = [early, late].map(|id| bench.answer(id).bytes);
    assert_eq!([early[99], early[100], late[99], late[100]], [200, 201, 201, 200]);
    let joined = bench.cache.stats().counters.joined_reads - stats.counters.joined_reads;
    assert_eq!(joined, 2);
    bench.run();
    assert_eq!(bench.get(3), Ok(200));
    bench.check_idle();
}

#[test]
fn a_dirty_block_is_clean_before_its_place_is_taken() {
    let mut bench = bench(WriteMode::Back);
    bench.put(0..32, 200); // the whole cache
    bench.log.clear();
    assert_eq!(bench.get(40), Ok(41));
    let written = bench.log.iter().position(|order| on_backing(order) && is_write(order)).unwrap();
    let stored = bench.log.iter().position(|order| on_cache(order) && is_write(order)).unwrap();
    assert!(written < stored);
    assert!((0..8).all(|sector| bench.devices[&BACKING].bytes[(sector * SECTOR) as usize] == 200));
    assert!((0..32).all(|sector| bench.get(sector) == Ok(200)));
    bench.check_idle();
}

#[test]
fn a_block_that_cannot_be_cleaned_does_not_keep_others_out_for_ever() {
    let mut bench = bench(WriteMode::Back);
    bench.put(0..1, 200);
    for block in 1..4 {
        bench.get(block * 8).unwrap();
    }
    for block in 4..8 {
        let id = bench.submit(read(block * BLOCK, SECTOR), 0);
        // the dirty sector is not to be had
        bench.run_failing(|order| on_cache(order) && is_read(order));
        assert!(bench.answer(id).result.is_ok());
    }
    let before = bench.cache.stats().requests.read_hits;
    assert_eq!(bench.get(7 * 8), Ok(57));
    assert_eq!(bench.cache.stats().requests.read_hits, before + 1);
    assert_eq!(bench.get(0), Ok(200));
    bench.check_idle();
}

#[test]
fn a_durable_write_is_written_through_in_every_mode() {
    for mode in MODES {
        let mut bench = bench(mode);
        bench.put(2..3, 199);
        let durable = Request {
            kind: RequestKind::Write { durable: true },
            ..write(2 * SECTOR + 512, SECTOR)
        };
        bench.log.clear();
        assert!(bench.ask(durable, 200).is_ok());
        let through = |order: &&Order| on_backing(order) && is_write(order);
        let written: Vec<_> = bench.log.iter().filter(through).collect();
        assert!(matches!(written[..], [Order::Write { durable: true, .. }]), "{mode:?}");
        assert_eq!(bench.devices[&BACKING].stable[2 * SECTOR as usize + 512], 200);
        let bytes = bench.ask(read(2 * SECTOR, 2 * SECTOR), 0).unwrap();
        assert_eq!([bytes[511], bytes[512], bytes[4607], bytes[4608]], [199, 200, 200, 4]);
        assert_eq!(bench.cache.stats().dirty_bytes, 0, "{mode:?}: what it touched is clean");
        bench.check_idle();
    }
}

#[test]
fn a_write_around_drops_the_copy() {
    let mut bench = bench(WriteMode::Around);
    assert_eq!(bench.get(0), Ok(1));
    assert_eq!(bench.cache.stats().valid_bytes, BLOCK);
    bench.log.clear();
    bench.put(0..2, 200);
    assert!(bench.ordered(DeviceId::Cache).is_empty());
    assert_eq!(bench.cache.stats().valid_bytes, BLOCK - 2 * SECTOR);
    assert_eq!((bench.get(0), bench.get(1), bench.get(2)), (Ok(200), Ok(200), Ok(3)));
    bench.check_idle();
}

#[test]
fn a_trim_of_a_dirty_block_drops_it() {
    let mut bench = bench(WriteMode::Back);
    bench.put(0..8, 200);
    bench.log.clear();
    assert!(bench.ask(Request { kind: RequestKind::Trim, ..read(512, BLOCK - 512) }, 0).is_ok());
    assert_eq!(
        bench.cache.stats().dirty_bytes,
        SECTOR,
        "the first sector is trimmed only in part: it stays"
    );
    assert!(bench.ask(flush(), 0).is_ok());
    let written: u64 =
        bench.ordered(BACKING).iter().filter(|order| is_write(order)).map(|o| target(o).2).sum();
    assert_eq!(written, SECTOR);
    assert_eq!(bench.get(0), Ok(200));
    bench.check_idle();
}

#[test]
fn zeroing_reads_as_zeros_to_the_byte() {
    for mode in MODES {
        let mut bench = bench(mode);
        bench.put(0..16, 200);
        let zero = RequestKind::Zero { durable: true, may_unmap: true, fast: false };
        assert!(bench.ask(Request { kind: zero, ..read(100, 8 * SECTOR) }, 0).is_ok());
        let bytes = bench.ask(read(0, 16 * SECTOR), 0).unwrap();
        assert!(bytes[..100].iter().all(|byte| *byte == 200));
        assert!(bytes[100..100 + 8 * SECTOR as usize].iter().all(|byte| *byte == 0));
        assert!(bytes[100 + 8 * SECTOR as usize..].iter().all(|byte| *byte == 200));
        bench.check_idle();
    }
}

#[test]
fn a_lost_dirty_sector_is_an_error_until_it_is_written_anew() {
    let mut bench = bench(WriteMode::Back);
    bench.put(0..4, 200);
    let id = bench.submit(write(SECTOR, SECTOR), 201);
    bench.run_failing(|_| true);
    assert_eq!(bench.answer(id).result, Err(Fault::Io));
    for _ in 0..2 {
        assert_eq!(bench.get(1), Err(Fault::Io), "neither the older data nor the oldest");
        assert_eq!(
            bench.ask(write(SECTOR + 512, 512), 202),
            Err(Fault::Io),
            "a part needs the rest"
        );
        assert_eq!((bench.get(0), bench.get(2)), (Ok(200), Ok(200)));
        assert_eq!(bench.ask(flush(), 0), Err(Fault::Io), "an answered write has not survived");
        let elsewhere = Request { volume: VolumeId(1), ..flush() };
        assert!(bench.ask(elsewhere, 0).is_ok());
    }
    bench.put(1..2, 203);
    assert_eq!(bench.get(1), Ok(203));
    assert!(bench.ask(flush(), 0).is_ok());
    bench.check_idle();
}

#[test]
fn a_dirty_sector_that_cannot_be_read_now_is_an_error_and_not_older_data() {
    let mut bench = bench(WriteMode::Back);
    bench.put(0..4, 200);
    let id = bench.submit(read(0, SECTOR), 0);
    bench.run_failing(on_cache);
    assert_eq!(bench.answer(id).result, Err(Fault::Io));
    assert_eq!(bench.get(0), Ok(200), "it is still there");
    bench.check_idle();
}

#[test]
fn a_write_the_cache_device_does_not_take_goes_to_the_backing_device() {
    let mut bench = bench(WriteMode::Back);
    let id = bench.submit(write(0, SECTOR), 200);
    bench.run_failing(on_cache);
    assert_eq!(bench.answer(id).result, Ok(()));
    assert_eq!(bench.devices[&BACKING].bytes[0], 200);
    assert_eq!((bench.get(0), bench.get(1)), (Ok(200), Ok(2)));
    bench.check_idle();
}

#[test]
fn a_failed_write_through_drops_the_copy() {
    let mut bench = bench(WriteMode::Through);
    assert_eq!(bench.get(0), Ok(1));
    let id = bench.submit(write(0, SECTOR), 200);
    bench.complete(0, Some(SECTOR)); // it reached the device all the same
    assert_eq!(bench.answer(id).result, Err(Fault::Io));
    assert_eq!(bench.get(0), Ok(200));
    bench.check_idle();
}

#[test]
fn cleaning_for_a_round_and_to_make_room_at_once_is_no_error() {
    let mut bench = bench(WriteMode::Back);
    bench.put(0..1, 200);
    for block in 1..4 {
        bench.get(block * 8).unwrap();
    }
    let id = bench.submit(read(4 * BLOCK, SECTOR), 0);
    bench.complete(0, None); // fetched; now the dirty block is cleaned to make room
    bench.clean();
    bench.run();
    assert!(bench.answer(id).result.is_ok());
    assert_eq!(bench.cache.stats().counters.cache_errors, 0);
    assert_eq!(bench.get(0), Ok(200));
    bench.check_idle();
}

#[test]
fn a_reader_is_not_served_from_a_write_that_is_not_answered() {
    for mode in MODES {
        let mut bench = bench(mode);
        let written = bench.submit(write(0, SECTOR), 200);
        let id = bench.submit(read(0, SECTOR), 0);
        assert!(
            bench.answers.is_empty() && bench.cache.stats().counters.joined_reads == 0,
            "{mode:?}"
        );
        bench.run();
        assert_eq!(bench.answer(written).result, Ok(()));
        assert_eq!(bench.answer(id).bytes[0], 200);
        bench.check_idle();
    }
}

/// Each has a part of its first sector in common with the write before, and waits for that one
/// sector only.
#[test]
fn writes_that_touch_at_their_ends_do_not_queue_up() {
    for mode in MODES {
        let mut bench = bench(mode);
        let len = SECTOR + SECTOR / 4;
        let ids: Vec<_> =
            (0..4).map(|at| bench.submit(write(at * len, len), 200 + at as u8)).collect();
        let mut read: Vec<u64> =
            bench.log.iter().filter(|order| is_read(order)).map(|o| target(o).1).collect();
        read.sort_unstable();
        assert_eq!(read, [SECTOR, 2 * SECTOR, 3 * SECTOR], "{mode:?}");
        bench.run();
        assert!(ids.into_iter().all(|id| bench.answer(id).result == Ok(())), "{mode:?}");
        let bytes = bench
            .ask(
                floe_block::Request { kind: floe_block::RequestKind::Read, ..write(0, 4 * len) },
                0,
            )
            .unwrap();
        let written = (0..4 * len).all(|at| bytes[at as usize] == 200 + (at / len) as u8);
        assert!(written, "{mode:?}");
        bench.check_idle();
    }
}

#[test]
fn a_write_cleans_all_it_takes_the_place_of_at_once() {
    let config = config("32KiB,128KiB", 2 * 4 * BLOCK, WriteMode::Back);
    let mut bench = Bench::new(config, &[64 * BLOCK]).numbered();
    for region in [0, 4, 8] {
        let blocks = if region == 8 { 2 } else { 3 };
        bench.put(region * 8..(region + blocks) * 8, 200); // eight dirty blocks: the whole cache
    }
    let id = bench.submit(write(12 * BLOCK, 3 * BLOCK), 201);
    assert_eq!(bench.under_way.len(), 3 + 1, "of eight blocks one may be cleaned ahead of need");
    bench.run();
    assert_eq!(bench.answer(id).result, Ok(()));
    assert_eq!(
        [0, 95, 96, 119, 120].map(|sector| bench.get(sector)),
        [Ok(200), Ok(96), Ok(201), Ok(201), Ok(21)]
    );
    bench.check_idle();
}

#[test]
fn trims_and_zeroings_of_whole_volumes_take_turns() {
    const VOLUMES: u16 = 16;
    let zero = RequestKind::Zero { durable: false, may_unmap: true, fast: false };
    for (kind, parts) in [(RequestKind::Trim, 1), (zero, 1), (RequestKind::Trim, 2)] {
        let volumes = vec![64 * BLOCK; VOLUMES as usize + 1];
        let config = Config { shards: Some(parts), ..config("32KiB", 4 * BLOCK, WriteMode::Pass) };
        let mut bench = Bench::in_parts(config, &volumes, parts as usize);
        let of = |volume, len| Request { volume: VolumeId(volume), kind, ..read(0, len) };
        let long: Vec<_> =
            (0..VOLUMES).map(|volume| bench.submit(of(volume, 64 * BLOCK), 0)).collect();
        let short = bench.submit(of(VOLUMES, BLOCK), 0);
        let hear_all = |bench: &mut Bench| {
            while !bench.said.is_empty() {
                bench.deliver(0);
            }
        };
        let most = 128 * parts as usize;
        hear_all(&mut bench);
        assert!(bench.under_way.len() <= most, "{} sub-requests", bench.under_way.len());
        // One that is submitted by another part waits for none of these.
        let mut turns = 0;
        while !bench.answers.iter().any(|answer| answer.id == short) {
            bench.complete(0, None);
            hear_all(&mut bench);
            assert!(bench.under_way.len() <= most, "{} sub-requests", bench.under_way.len());
            turns += 1;
        }
        assert!(turns <= most + 2 * VOLUMES as usize, "{turns} others came first");
        while !bench.under_way.is_empty() {
            bench.run();
            hear_all(&mut bench);
        }
        assert!(bench.answer(short).result.is_ok());
        assert!(long.into_iter().all(|id| bench.answer(id).result.is_ok()));
        bench.check_idle();
    }
}
