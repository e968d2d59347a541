//! What clients and devices see of an admission: nothing wrong, and what it keeps out only on the
//! backing device.

use crate::common::*;
use floe_block::{AdmissionConfig, Config, DeviceId, Memory, Order, RequestKind, WriteMode};

/// A block of the smallest size.
const BLOCK: u64 = 8;
const CACHING: [WriteMode; 4] =
    [WriteMode::Through, WriteMode::Around, WriteMode::Back, WriteMode::Only];

fn gate(admit: &str) -> AdmissionConfig {
    AdmissionConfig::new(admit.parse().unwrap())
}

/// A cache of 16 smallest blocks, 8 to a group, over 512.
fn bench(admit: &str, mode: WriteMode) -> Bench {
    Bench::new(Config { gate: gate(admit), ..small(mode) }, &[512 * BLOCK * SECTOR]).numbered()
}

fn small(mode: WriteMode) -> Config {
    config("32KiB,256KiB", 16 * BLOCK * SECTOR, mode)
}

/// The sectors of all operations since the last call, with the devices, and whether they write.
fn ordered(bench: &mut Bench) -> Vec<(DeviceId, bool, u64, u64)> {
    let place = |order: &Order| {
        let (device, offset, len) = target(order);
        (device, is_write(order), offset / SECTOR, len / SECTOR)
    };
    std::mem::take(&mut bench.log).iter().map(place).collect()
}

/// Reads, writes, trims and prefetches of a few sectors, the same each time.
fn ragged(count: u64) -> impl Iterator<Item = (floe_block::Request, u8)> {
    let mut state = 7u64;
    let mut draw = move |most: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % most
    };
    (0..count).map(move |number| {
        let (at, len) = (draw(60 * BLOCK * SECTOR / 512) * 512, (1 + draw(200)) * 512);
        let kind = match draw(12) {
            0..6 => RequestKind::Read,
            6..10 => RequestKind::Write { durable: number.is_multiple_of(7) },
            10 => RequestKind::Trim,
            _ => RequestKind::Prefetch,
        };
        (floe_block::Request { kind, ..read(at, len) }, 100 + (number % 100) as u8)
    })
}

#[test]
fn what_is_never_admitted_leaves_the_cache_device_alone_in_every_mode() {
    for (mode, kept) in CACHING.into_iter().flat_map(|mode| [(mode, false), (mode, true)]) {
        let config = Config { gate: gate("never"), kept, ..small(mode) };
        let mut bench: Bench = Bench::new(config, &[512 * BLOCK * SECTOR]).numbered();
        for (request, stamp) in ragged(500) {
            bench.ask(request, stamp).unwrap();
        }
        let on_cache =
            |order: &&Order| on_cache(order) && !matches!(order, Order::WriteLogs { .. });
        assert_eq!(bench.log.iter().filter(on_cache).count(), 0, "{mode}");
        let stats = bench.cache.stats();
        assert_eq!(
            (stats.valid_bytes, stats.blocks_allocated(), stats.dirty_bytes),
            (0, 0, 0),
            "{mode}"
        );
        assert!(stats.counters.offered_blocks > 0 && stats.counters.admitted_blocks == 0, "{mode}");
        assert_eq!(stats.requests.read_hits, 0);
        bench.check_idle();
    }
}

#[test]
fn an_admission_that_admits_everything_changes_no_operation() {
    for mode in CACHING {
        let log = |admit: &str, gated: bool| {
            let mut bench = bench(admit, mode);
            assert_eq!(bench.cache.config().gate.policy().is_some(), gated);
            for (request, stamp) in ragged(3_000) {
                bench.ask(request, stamp).unwrap();
            }
            bench.clean();
            bench.run();
            (ordered(&mut bench), bench.cache.stats())
        };
        let (plain, before) = log("always", false);
        let (asked, after) = log("probability:p=1", true);
        assert!(plain == asked, "{mode}");
        assert_eq!(before.requests, after.requests);
        assert_eq!(before.counters.offered_blocks, 0, "nobody was asked");
        assert_eq!(after.counters.admitted_blocks, after.counters.offered_blocks);
        assert!(after.counters.offered_blocks > 0 && after.counters.blocks_replaced > 0);
    }
}

#[test]
fn what_stays_out_is_read_as_asked_for_and_what_comes_in_in_whole_blocks() {
    let mut bench = bench("second-access", WriteMode::Through);
    assert_eq!(bench.get(11), Ok(Bench::born(11)));
    assert_eq!(ordered(&mut bench), [(BACKING, false, 11, 1)], "no more than was asked for");
    bench.get(13).unwrap();
    assert_eq!(ordered(&mut bench), [(BACKING, false, 8, 8), (DeviceId::Cache, true, 0, 8)]);
    bench.get(11).unwrap();
    assert_eq!(ordered(&mut bench), [(DeviceId::Cache, false, 3, 1)]);
    let counted = bench.cache.stats().counters;
    assert_eq!((counted.offered_blocks, counted.admitted_blocks), (2, 1));
}

#[test]
fn neighbours_with_one_answer_stay_together() {
    let mut bench = bench("second-access", WriteMode::Through);
    bench.ask(read(2 * BLOCK * SECTOR, 2 * BLOCK * SECTOR), 0).unwrap();
    ordered(&mut bench);
    // Of five blocks the third and fourth are offered again.
    bench.ask(read(5 * SECTOR, (5 * BLOCK - 8) * SECTOR), 0).unwrap();
    let mut operations = ordered(&mut bench);
    operations.sort_unstable_by_key(|(device, _, start, _)| (*device == DeviceId::Cache, *start));
    let expected = [(BACKING, false, 5, 11), (BACKING, false, 16, 16), (BACKING, false, 32, 5)];
    assert_eq!(operations[..3], expected, "{operations:?}");
    assert_eq!(operations[3..].iter().map(|(_, _, _, len)| len).sum::<u64>(), 16);
    bench.check_idle();
}

#[test]
fn a_write_that_stays_out_goes_to_the_backing_device_and_one_of_a_block_there_is_goes_there() {
    for mode in [WriteMode::Through, WriteMode::Back, WriteMode::Only] {
        let mut bench = bench("second-access", mode);
        bench.put(0..20, 200);
        assert_eq!(ordered(&mut bench), [(BACKING, true, 0, 20)], "{mode}: in one piece");
        assert_eq!(bench.cache.stats().dirty_bytes, 0);
        bench.put(8..16, 201);
        let on_cache =
            ordered(&mut bench).iter().filter(|(device, ..)| *device == DeviceId::Cache).count();
        assert_eq!(on_cache, 1, "{mode}");
        bench.put(10..14, 202);
        let counted = bench.cache.stats().counters;
        assert_eq!(
            (counted.offered_blocks, counted.admitted_blocks),
            (4, 1),
            "{mode}: what is there is no offer"
        );
        let found: Vec<_> = [0, 9, 12, 19].map(|sector| bench.get(sector).unwrap()).into();
        assert_eq!(found, [200, 201, 202, 200], "{mode}");
        bench.ask(flush(), 0).unwrap();
        let stable = &bench.devices[&BACKING].stable;
        let kept = [0, 9, 12, 19].map(|sector| stable[(sector * SECTOR) as usize]);
        assert_eq!(kept, [200, 201, 202, 200], "{mode}");
    }
}

#[test]
fn what_an_operator_warms_comes_in_unasked_and_what_a_client_prefetches_does_not() {
    for mode in [WriteMode::Through, WriteMode::Around, WriteMode::Back] {
        let mut bench = bench("never", mode);
        let ask = |bench: &mut Bench, kind| {
            let request = floe_block::Request { kind, ..read(0, 2 * BLOCK * SECTOR) };
            bench.ask(request, 0).unwrap();
            let stored = |order: &(DeviceId, bool, u64, u64)| order.0 == DeviceId::Cache && order.1;
            ordered(bench).iter().filter(|order| stored(order)).map(|order| order.3).sum::<u64>()
        };
        assert_eq!(ask(&mut bench, RequestKind::Prefetch), 0, "{mode}");
        assert_eq!(ask(&mut bench, RequestKind::Warm), 2 * BLOCK, "{mode}");
        assert_eq!(ask(&mut bench, RequestKind::Warm), 0, "{mode}: it is there");
        let counted = bench.cache.stats().counters.warmed_bytes;
        assert_eq!(counted, 2 * BLOCK * SECTOR, "{mode}");
        assert_eq!(bench.get(9), Ok(10), "{mode}");
        assert!(ordered(&mut bench).iter().all(|order| order.0 == DeviceId::Cache), "{mode}");
    }
}

#[test]
fn an_eviction_drops_clean_copies_and_leaves_dirty_data() {
    for (mode, kept) in CACHING.into_iter().flat_map(|mode| [(mode, false), (mode, true)]) {
        for memory in [Memory::None, Memory::Copies] {
            let config = Config { kept, memory, ..small(mode) };
            let mut bench = Bench::new(config, &[512 * BLOCK * SECTOR]).numbered();
            let evict = floe_block::Request {
                kind: RequestKind::Evict,
                ..read(SECTOR, (2 * BLOCK - 2) * SECTOR)
            };
            bench.ask(read(0, 2 * BLOCK * SECTOR), 0).unwrap();
            bench.ask(write(3 * SECTOR, SECTOR), 200).unwrap();
            ordered(&mut bench);
            bench.ask(evict, 0).unwrap();
            let touched = |order: &(DeviceId, bool, u64, u64)| order.0 != DeviceId::Cache;
            assert!(!ordered(&mut bench).iter().any(touched), "{mode}: nothing is written back");
            assert_eq!(bench.get(3), Ok(200), "{mode}");
            let reads = |bench: &mut Bench, sector| {
                bench.ask(read(sector * SECTOR, SECTOR), 0).unwrap();
                ordered(bench).iter().any(touched)
            };
            assert!(reads(&mut bench, 5), "{mode}: it was dropped");
            if mode.caches_reads() {
                assert!(!reads(&mut bench, 0), "{mode}: it is outside of the range");
            }
            // With the rest evicted, and the dirty sector clean, all places are free.
            let whole = floe_block::Request { kind: RequestKind::Drain, ..read(0, 0) };
            bench.ask(whole, 0).unwrap();
            let whole = floe_block::Request { len: 2 * BLOCK * SECTOR, offset: 0, ..evict };
            let before = bench.cache.stats();
            bench.ask(whole, 0).unwrap();
            assert_eq!(bench.cache.stats().valid_bytes, 0, "{mode}");
            let dropped = bench.cache.stats().counters.dropped_bytes;
            assert_eq!(dropped, before.counters.dropped_bytes + before.valid_bytes, "{mode}");
            let blocks = bench.cache.stats().blocks;
            assert!(blocks.iter().all(|(_, count)| *count == 0), "{mode}: {blocks:?}");
        }
    }
}

#[test]
fn write_only_caches_what_is_written_and_nothing_that_reads_miss() {
    let mut bench = bench("always", WriteMode::Only);
    bench.get(3).unwrap();
    bench
        .ask(floe_block::Request { kind: RequestKind::Prefetch, ..read(0, BLOCK * SECTOR) }, 0)
        .unwrap();
    assert_eq!(ordered(&mut bench), [(BACKING, false, 3, 1)]);
    bench.put(2..4, 200);
    assert_eq!(ordered(&mut bench), [(DeviceId::Cache, true, 2, 2)]);
    assert_eq!((bench.get(3), bench.get(4)), (Ok(200), Ok(5)));
    assert_eq!(ordered(&mut bench), [(DeviceId::Cache, false, 3, 1), (BACKING, false, 4, 1)]);
    bench.ask(flush(), 0).unwrap();
    assert_eq!(bench.devices[&BACKING].stable[3 * SECTOR as usize], 200);
}

#[test]
fn obp_keeps_writes_to_its_share_of_lookups() {
    let run = |admit: &str| {
        let mut bench = bench(admit, WriteMode::Through);
        let mut state = 1u64;
        for _ in 0..20_000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            // Half of the reads are of twelve blocks, which fit.
            let blocks = if state >> 63 == 0 { 12 } else { 500 };
            bench.get((state >> 33) % blocks * BLOCK).unwrap();
        }
        let stats = bench.cache.stats();
        (stats.counters.cache_write_bytes / SECTOR / BLOCK, stats.requests.read_hits)
    };
    let ((eager, _), (obp, hits)) = (run("always"), run("obp:target=0.1:half-life=1000"));
    assert!(eager > 9_000, "{eager}");
    // Each insertion into a full cache empties a block or a group; so many make up a tenth of
    // 20,000 lookups at most.
    assert!((200..=2_100).contains(&obp), "{obp}");
    assert!(hits > 2_000, "{hits}");
}

/// Admits one block, and then is over its target until ten more were looked up.
const INVALIDATING: &str = "obp:target=0.1:fill=0:invalidate=1";

#[test]
fn newer_data_of_a_clean_block_drops_the_copy_while_obp_is_over_its_target() {
    for (mode, kept) in [WriteMode::Through, WriteMode::Back]
        .into_iter()
        .flat_map(|mode| [(mode, false), (mode, true)])
    {
        let config = Config { gate: gate(INVALIDATING), kept, ..small(mode) };
        let mut bench: Bench = Bench::new(config, &[512 * BLOCK * SECTOR]).numbered();
        bench.get(3).unwrap();
        assert!(bench.cache.stats().valid_bytes > 0, "{mode}: the first block comes in");
        bench.log.clear();
        bench.put(0..BLOCK, 200);
        bench.log.retain(|order| !matches!(order, Order::WriteLogs { .. }));
        assert!(bench.log.iter().any(on_backing), "{mode}");
        assert!(!bench.log.iter().any(on_cache), "{mode}: the copy is not updated");
        let stats = bench.cache.stats();
        assert_eq!((stats.valid_bytes, stats.dirty_bytes), (0, 0), "{mode}: it is dropped");
        assert_eq!(stats.counters.declined_overwrites, 1, "{mode}");
        assert_eq!((bench.get(0), bench.get(7)), (Ok(200), Ok(200)), "{mode}: no stale data");
        bench.check_idle();
    }
}

#[test]
fn newer_data_of_a_dirty_block_stays_in_the_cache_whatever_obp_is_over() {
    let mut bench = bench(INVALIDATING, WriteMode::Back);
    bench.put(0..BLOCK, 200);
    assert_eq!(bench.cache.stats().dirty_bytes, BLOCK * SECTOR);
    bench.log.clear();
    bench.put(0..4, 201);
    assert!(!bench.log.iter().any(on_backing), "the backing device lacks the other half");
    assert_eq!(bench.cache.stats().counters.declined_overwrites, 0);
    assert_eq!((bench.get(0), bench.get(7)), (Ok(201), Ok(200)));
    bench.clean();
    bench.run();
    let found = [0, 7].map(|sector| bench.devices[&BACKING].bytes[(sector * SECTOR) as usize]);
    assert_eq!(found, [201, 200]);
}

#[test]
fn a_duel_is_with_the_block_that_would_leave() {
    let mut bench: Bench = Bench::new(
        Config { gate: gate("duel"), ..config("32KiB", 4 * BLOCK * SECTOR, WriteMode::Through) },
        &[512 * BLOCK * SECTOR],
    )
    .numbered();
    for _ in 0..5 {
        (0..4).for_each(|block| assert!(bench.get(block * BLOCK).is_ok()));
    }
    ordered(&mut bench);
    bench.get(9 * BLOCK).unwrap();
    assert_eq!(ordered(&mut bench), [(BACKING, false, 9 * BLOCK, 1)], "asked for once");
    (0..6).for_each(|_| assert!(bench.get(9 * BLOCK).is_ok()));
    assert!(
        ordered(&mut bench).iter().any(|(device, ..)| *device == DeviceId::Cache),
        "asked for more often"
    );
}

#[test]
fn what_a_block_lacks_comes_in_though_the_cache_is_full() {
    for mode in [WriteMode::Through, WriteMode::Around] {
        let mut bench: Bench = Bench::new(
            Config { gate: gate("until-full"), ..config("32KiB", 4 * BLOCK * SECTOR, mode) },
            &[512 * BLOCK * SECTOR],
        )
        .numbered();
        (0..4).for_each(|block| assert!(bench.get(block * BLOCK).is_ok()));
        // Write-around takes what is written out of its block; a trim does in any mode.
        bench.put(2 * BLOCK..3 * BLOCK, 7);
        let trim = floe_block::Request {
            kind: RequestKind::Trim,
            ..read(3 * BLOCK * SECTOR, BLOCK * SECTOR)
        };
        bench.ask(trim, 0).unwrap();
        (0..4).for_each(|block| assert!(bench.get(block * BLOCK).is_ok()));
        bench.get(5 * BLOCK).unwrap();
        ordered(&mut bench);
        (0..4).for_each(|block| assert!(bench.get(block * BLOCK).is_ok()));
        assert!(
            ordered(&mut bench).iter().all(|(device, ..)| *device == DeviceId::Cache),
            "{mode}: all is there"
        );
        bench.get(5 * BLOCK).unwrap();
        assert!(
            ordered(&mut bench).iter().all(|(device, ..)| *device == BACKING),
            "{mode}: nobody left"
        );
    }
}

#[test]
fn a_write_updates_a_copy_and_brings_no_block_in_where_reads_alone_are_admitted() {
    let mut bench = bench("reads", WriteMode::Through);
    bench.put(0..BLOCK, 7);
    assert_eq!(bench.cache.stats().blocks_allocated(), 0, "a write allocates nothing");
    bench.get(0).unwrap();
    ordered(&mut bench);
    bench.put(0..BLOCK, 8);
    assert_eq!(bench.ordered(DeviceId::Cache).len(), 1, "the copy is written");
    assert_eq!(bench.get(0), Ok(8));
    assert!(
        ordered(&mut bench).iter().all(|(device, ..)| *device == DeviceId::Cache),
        "the copy is current"
    );
}

#[test]
fn what_fits_above_stays_out_and_what_does_not_comes_in() {
    for (blocks, comes_in) in [(8, false), (64, true)] {
        let gate = AdmissionConfig { above_bytes: 2 * 32 * BLOCK * SECTOR, ..gate("small-bypass") };
        let config = Config { gate, shards: Some(2), ..small(WriteMode::Through) };
        let config = Config { cache_bytes: 64 * BLOCK * SECTOR, ..config };
        let mut bench: Bench = Bench::new(config, &[512 * BLOCK * SECTOR]).numbered();
        for at in 0..20 * blocks {
            bench.get(at % (2 * blocks) * BLOCK).unwrap();
        }
        assert_eq!(
            bench.cache.stats().counters.admitted_blocks > 0,
            comes_in,
            "twice {blocks} blocks"
        );
    }
}

#[test]
fn what_has_become_popular_is_fetched_though_nobody_asks() {
    let mut bench = bench("fussy:popular=3:check=100:warm-up=100", WriteMode::Through);
    // The warm-up lets everything in; what comes then is counted.
    (0..100).for_each(|at| assert!(bench.get((100 + at % 50) * BLOCK).is_ok()));
    for round in 0..3 {
        [2, 3, 7].iter().for_each(|block| assert!(bench.get(block * BLOCK).is_ok()));
        assert_eq!(bench.cache.stats().counters.ordered_blocks, 0, "{round}");
    }
    ordered(&mut bench);
    (0..91).for_each(|at| assert!(bench.get((200 + at) * BLOCK).is_ok()));
    assert_eq!(bench.cache.stats().counters.ordered_blocks, 3);
    let fetched: Vec<_> = ordered(&mut bench)
        .into_iter()
        .filter(|(device, _, start, _)| *device == BACKING && *start < 100 * BLOCK)
        .collect();
    assert_eq!(fetched, [(BACKING, false, 16, 16), (BACKING, false, 56, 8)], "neighbours together");
    bench.ask(read(16 * SECTOR, 16 * SECTOR), 0).unwrap();
    assert!(ordered(&mut bench).iter().all(|(device, ..)| *device == DeviceId::Cache));
    bench.check_idle();
}

#[test]
fn what_was_ordered_of_a_volume_that_has_gone_is_not_fetched() {
    let mut bench = bench("fussy:popular=1:check=100:warm-up=100", WriteMode::Through);
    (0..100).for_each(|at| assert!(bench.get((100 + at % 50) * BLOCK).is_ok()));
    (0..99).for_each(|block| assert!(bench.get(2 * block * BLOCK).is_ok()));
    // The check is due with the next lookup, which is of another volume.
    let other = bench.add_volume(512 * BLOCK * SECTOR, 7);
    bench.cache.remove_volume(floe_block::VolumeId(0), true).unwrap();
    bench.log.clear();
    bench.ask(floe_block::Request { volume: other, ..read(0, SECTOR) }, 0).unwrap();
    assert!(bench.log.iter().all(|order| target(order).0 != BACKING));
    bench.check_idle();
}

#[test]
fn held_writes_that_sink_are_offered_and_none_is_lost() {
    let config = Config {
        memory: Memory::Holds { sectors: 16 },
        gate: gate("never"),
        ..small(WriteMode::Back)
    };
    let mut bench: Bench = Bench::new(config, &[512 * BLOCK * SECTOR]).numbered();
    (0..40).for_each(|sector| bench.put(sector..sector + 1, 100 + sector as u8));
    bench.ask(flush(), 0).unwrap();
    assert!(bench.log.iter().all(on_backing));
    for sector in 0..40u64 {
        assert_eq!(bench.devices[&BACKING].stable[(sector * SECTOR) as usize], 100 + sector as u8);
    }
    bench.check_idle();
}

#[test]
fn nothing_leaves_while_the_admission_holds() {
    let config =
        Config { gate: gate("until-full"), ..config("32KiB", 4 * BLOCK * SECTOR, WriteMode::Back) };
    let mut bench: Bench = Bench::new(config, &[512 * BLOCK * SECTOR]).numbered();
    // A window, so that it is known to hold.
    (0..100).for_each(|_| assert!(bench.get(0).is_ok()));
    // There is room for three, and five come at once: all are let in, and two find that they would
    // have to take another's place.
    let ids: Vec<_> =
        (1..6).map(|block| bench.submit(read(block * BLOCK * SECTOR, SECTOR), 0)).collect();
    bench.run();
    ids.into_iter().for_each(|id| assert_eq!(bench.answer(id).result, Ok(())));
    let counted = bench.cache.stats().counters;
    assert_eq!(
        (counted.admitted_blocks, counted.stores_withheld, counted.blocks_replaced),
        (6, 2, 0)
    );
    bench.put(7 * BLOCK..8 * BLOCK, 200);
    assert_eq!(bench.cache.stats().dirty_bytes, 0);
    let stats = bench.cache.stats();
    assert_eq!((stats.counters.blocks_replaced, stats.counters.admitted_blocks), (0, 6));
    assert_eq!(bench.devices[&BACKING].bytes[(7 * BLOCK * SECTOR) as usize], 200);
    bench.check_idle();
}

#[test]
fn a_trimmed_block_of_clean_and_dirty_sectors_counts_once_for_obp() {
    const BLOCKS: u64 = 100;
    let gate = gate("obp:target=0.08:fill=0:half-life=1000000");
    let config =
        Config { gate, ..config("32KiB", (BLOCKS + 28) * BLOCK * SECTOR, WriteMode::Back) };
    let mut bench: Bench = Bench::new(config, &[512 * BLOCK * SECTOR]).numbered();
    let hits =
        |bench: &mut Bench, count: u64| (0..count).for_each(|_| bench.get(0).map(drop).unwrap());
    hits(&mut bench, 4_000);
    for block in 1..=BLOCKS {
        bench.put(block * BLOCK..block * BLOCK + 4, 200);
        bench.ask(read((block * BLOCK + 4) * SECTOR, 4 * SECTOR), 0).unwrap();
    }
    let stats = bench.cache.stats();
    assert_eq!(stats.valid_bytes, (BLOCKS + 1) * BLOCK * SECTOR, "all came in");
    let all = read(BLOCK * SECTOR, BLOCKS * BLOCK * SECTOR);
    bench.ask(floe_block::Request { kind: RequestKind::Trim, ..all }, 0).unwrap();
    hits(&mut bench, 100);
    // 1 + 200 insertions and 100 removals are 0.07 of 4,300 lookups; with each removal counted
    // twice, for its clean and for its dirty sectors, they would be 0.093.
    bench.get(300 * BLOCK).unwrap();
    let counted = bench.cache.stats().counters;
    assert_eq!(counted.offered_blocks - counted.admitted_blocks, 0);
    assert_eq!((counted.inserted_blocks, counted.removed_blocks), (BLOCKS + 2, BLOCKS));
}

#[test]
fn smallest_blocks_inserted_are_those_removed_evicted_and_held() {
    for (mode, kept) in CACHING.into_iter().flat_map(|mode| [(mode, false), (mode, true)]) {
        let gate = gate("probability:p=0.8");
        let mut bench: Bench =
            Bench::new(Config { gate, kept, ..small(mode) }, &[512 * BLOCK * SECTOR]).numbered();
        for (request, stamp) in ragged(1_500) {
            bench.ask(request, stamp).unwrap();
            bench.cache.check(); // of this among others
        }
        let counted = bench.cache.stats().counters;
        assert!(counted.evicted_blocks > 0 && counted.removed_blocks > 0, "{mode}");
        assert!(counted.inserted_blocks > counted.evicted_blocks, "{mode}");
    }
}
