//! Writes that memory holds, step by step: where they go, and what becomes of them when devices
//! fail.

use crate::common::{
    BACKING, Bench, SECTOR, config, flush, is_write, on_backing, on_cache, read, write,
};
use floe_block::{
    BlockCache, Config, ConfigError, DeviceId, Fault, Memory, RequestKind, WriteMode,
};

/// Sectors that memory may hold.
const MOST: u64 = 16;
const VOLUME: u64 = 64 * SECTOR;

fn bench(mode: WriteMode) -> Bench {
    let config =
        Config { memory: Memory::Holds { sectors: MOST }, ..config("4KiB", 32 * SECTOR, mode) };
    Bench::new(config, &[VOLUME]).numbered()
}

/// So many sectors from the first on that only the cache device has: they filled memory by more
/// than half, and sank.
fn dirty_in_the_cache(bench: &mut Bench, stamp: u8) {
    bench.put(0..MOST / 2 + 1, stamp);
    assert!(bench.held.is_empty(), "they have sunk");
    assert_eq!(bench.ordered(BACKING), []);
    bench.log.clear();
    bench.copies.clear();
}

fn fails(order: &floe_block::Order) -> bool {
    is_write(order)
}

#[test]
fn a_write_is_held_until_half_the_room_is_used_and_then_goes_the_way_of_its_mode() {
    for (mode, device) in [(WriteMode::Back, DeviceId::Cache), (WriteMode::Pass, BACKING)] {
        let mut bench = bench(mode);
        for sector in 0..MOST / 2 {
            bench.put(sector..sector + 1, 200);
            assert!(bench.log.is_empty(), "{mode}: no device is asked");
        }
        bench.put(20..21, 201);
        assert!(bench.held.is_empty());
        let written: u64 =
            bench.ordered(device).iter().map(|order| crate::common::target(order).2).sum();
        assert_eq!(written, (MOST / 2 + 1) * SECTOR, "{mode}");
        bench.copies.clear();
        assert_eq!((bench.get(0), bench.get(20), bench.get(40)), (Ok(200), Ok(201), Ok(41)));
        bench.check_idle();
    }
}

#[test]
fn held_runs_sink_in_one_operation_each() {
    let mut bench = bench(WriteMode::Pass);
    bench.put(3..6, 200);
    bench.put(9..10, 201);
    assert_eq!(bench.ask(flush(), 0), Ok(vec![]));
    let written: Vec<_> = bench
        .ordered(BACKING)
        .iter()
        .filter(|order| is_write(order))
        .map(crate::common::target)
        .collect();
    // Each within a region, which is a sector here.
    assert_eq!(
        written.iter().map(|(_, offset, _)| offset / SECTOR).collect::<Vec<_>>(),
        [3, 4, 5, 9]
    );
    let sizes = Config {
        memory: Memory::Holds { sectors: MOST },
        ..config("4KiB,32KiB", 256 * SECTOR, WriteMode::Pass)
    };
    let mut bench: Bench = Bench::new(sizes, &[VOLUME]);
    bench.put(3..6, 200);
    bench.put(9..10, 201);
    assert_eq!(bench.ask(flush(), 0), Ok(vec![]));
    let written: Vec<_> = bench
        .ordered(BACKING)
        .iter()
        .filter(|order| is_write(order))
        .map(crate::common::target)
        .collect();
    assert_eq!(written, [(BACKING, 3 * SECTOR, 3 * SECTOR), (BACKING, 9 * SECTOR, SECTOR)]);
}

#[test]
fn what_cannot_sink_is_still_read_and_sinks_later() {
    for mode in [WriteMode::Back, WriteMode::Through, WriteMode::Around, WriteMode::Pass] {
        let mut bench = bench(mode);
        if mode == WriteMode::Back {
            dirty_in_the_cache(&mut bench, 199); // older, and lost when the newer cannot be stored
        }
        bench.put(0..2, 200);
        let id = bench.submit(flush(), 0);
        bench.run_failing(fails);
        assert_eq!(bench.answer(id).result, Err(Fault::Io), "{mode}");
        bench.copies.clear();
        assert_eq!((bench.get(0), bench.get(1)), (Ok(200), Ok(200)), "{mode}");
        assert_eq!(bench.held.len(), 2);
        assert!(bench.ask(flush(), 0).is_ok(), "{mode}: nothing has been lost");
        assert!(bench.held.is_empty());
        assert_eq!(bench.devices[&BACKING].stable[0], 200, "{mode}");
    }
}

#[test]
fn a_write_to_memory_heals_what_was_lost() {
    let memory = Memory::Holds { sectors: MOST };
    let blocks = Config { memory, ..config("128KiB", 64 * SECTOR, WriteMode::Back) };
    let mut bench = Bench::new(blocks, &[VOLUME]).numbered();
    dirty_in_the_cache(&mut bench, 199);
    let id = bench.submit(write(0, (MOST + 1) * SECTOR), 200); // more than memory holds
    bench.run_failing(fails);
    assert_eq!(bench.answer(id).result, Err(Fault::Io));
    assert_eq!(bench.get(0), Err(Fault::Io), "what it was to replace is lost");
    bench.put(0..1, 201);
    bench.copies.clear();
    assert_eq!((bench.get(0), bench.get(1)), (Ok(201), Err(Fault::Io)));
    bench.put(1..MOST / 2, 202);
    bench.put(MOST / 2..MOST / 2 + 1, 203);
    assert!(bench.ask(flush(), 0).is_ok());
    let stable = &bench.devices[&BACKING].stable;
    assert_eq!((stable[0], stable[SECTOR as usize]), (201, 202));
}

#[test]
fn part_of_a_sector_is_written_over_what_memory_holds() {
    let mut bench = bench(WriteMode::Through);
    bench.put(5..6, 200);
    bench.log.clear();
    assert!(bench.ask(write(5 * SECTOR + 512, 512), 201).is_ok());
    assert!(bench.log.is_empty(), "no device is asked for what memory has");
    bench.copies.clear();
    let bytes = bench.ask(read(5 * SECTOR, SECTOR), 0).unwrap();
    assert_eq!((bytes[511], bytes[512], bytes[1023], bytes[1024]), (200, 201, 201, 200));
}

#[test]
fn a_read_over_held_sectors_and_others_finds_both() {
    let mut bench = bench(WriteMode::Through);
    bench.put(2..4, 200);
    bench.copies.clear();
    let bytes = bench.ask(read(0, 8 * SECTOR), 0).unwrap();
    let found: Vec<u8> = bytes.chunks(SECTOR as usize).map(|sector| sector[7]).collect();
    assert_eq!(found, [1, 2, 200, 200, 5, 6, 7, 8]);
    bench.log.clear();
    assert_eq!(bench.ask(read(0, 8 * SECTOR), 0).unwrap(), bytes);
    assert!(bench.log.is_empty(), "all of it is in memory by now");
}

#[test]
fn a_fetch_of_a_whole_block_does_not_serve_the_older_version_of_what_is_held_in_it() {
    let memory = Memory::Holds { sectors: MOST };
    let mut bench: Bench = Bench::new(
        Config { memory, ..config("32KiB", 256 * SECTOR, WriteMode::Through) },
        &[VOLUME],
    )
    .numbered();
    bench.put(3..4, 200);
    bench.copies.clear();
    let fetching = bench.submit(read(5 * SECTOR, SECTOR), 0);
    let waiting = bench.submit(read(3 * SECTOR, SECTOR), 0);
    bench.complete_the(on_backing);
    assert_eq!(bench.answer(fetching).bytes[0], 6);
    bench.run();
    assert_eq!(bench.answer(waiting).bytes[0], 200);
    // The block has the older version, until what is held sinks.
    assert!(bench.ask(flush(), 0).is_ok());
    bench.copies.clear();
    assert_eq!(bench.get(3), Ok(200));
}

#[test]
fn who_asks_what_is_dirty_hears_of_what_is_held() {
    let mut bench = bench(WriteMode::Through);
    bench.put(2..4, 200);
    let map =
        bench.ask(floe_block::Request { kind: RequestKind::DirtyMap, ..read(0, 6 * SECTOR) }, 0);
    assert_eq!(map, Ok(vec![0, 0, 1, 1, 0, 0]));
    assert!(bench.cache.condition().has_dirty_data());
    assert_eq!(bench.cache.stats().held_bytes, 2 * SECTOR);
}

#[test]
fn without_a_tier_nothing_is_said_of_one() {
    let mut bench: Bench =
        Bench::new(config("4KiB", 32 * SECTOR, WriteMode::Back), &[VOLUME]).numbered();
    bench.put(0..4, 200);
    assert_eq!(bench.get(0), Ok(200));
    assert!(bench.copies.is_empty() && bench.held.is_empty());
    assert!(bench.log.iter().any(on_cache));
}

#[test]
fn memory_that_would_hold_next_to_nothing_in_each_shard_is_refused() {
    let many = Config {
        memory: Memory::Holds { sectors: 31 },
        kept: false,
        shards: Some(4),
        ..config("4KiB", 32 * SECTOR, WriteMode::Back)
    };
    let error = BlockCache::new(many).unwrap_err();
    assert_eq!(error, ConfigError::Memory { shards: 4, least_bytes: 1 << 20 });
}
