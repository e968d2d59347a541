//! Shares of volumes: guaranteed and largest parts of the cache, seen from outside.

use crate::common::*;
use floe_block::{CacheShare, Request, RequestKind, VolumeId, WriteMode};

const VOLUME: u64 = 4096;
const BLOCKS: u64 = 256;
const VICTIM: VolumeId = VolumeId(0);
const NEIGHBOUR: VolumeId = VolumeId(1);

fn share(guaranteed: u64, most: Option<u64>) -> CacheShare {
    CacheShare { guaranteed_bytes: guaranteed * SECTOR, most_bytes: most.map(|most| most * SECTOR) }
}

/// A cache of 256 blocks for two volumes of 4096.
fn bench(sizes: &str, mode: WriteMode, parts: usize) -> Bench {
    let mut config = config(sizes, BLOCKS * SECTOR, mode);
    config.shards = Some(parts as u64);
    let mut bench = Bench::in_parts(config, &[VOLUME * SECTOR; 2], parts);
    bench.keep_log = false;
    bench
}

fn of(volume: VolumeId, request: Request) -> Request {
    Request { volume, ..request }
}

fn set(bench: &mut Bench, volume: VolumeId, share: CacheShare) {
    bench.each_part(|part| part.set_share(volume, share));
}

/// Sectors of a volume that the cache has, of all parts.
fn used(bench: &mut Bench, volume: VolumeId) -> u64 {
    let sum = std::cell::Cell::new(0);
    let of = |bytes: &[u64]| bytes.get(usize::from(volume.0)).copied().unwrap_or(0);
    bench.each_part(|part| sum.set(sum.get() + of(&part.stats().volume_bytes)));
    sum.get() / SECTOR
}

/// Serves a request to its end, in all parts.
fn ask(bench: &mut Bench, request: Request, stamp: u8) -> Vec<u8> {
    let id = bench.submit(request, stamp);
    while !bench.under_way.is_empty() || !bench.said.is_empty() {
        if !bench.under_way.is_empty() {
            bench.complete(0, None);
        }
        if !bench.said.is_empty() {
            bench.deliver(0);
        }
    }
    let Answered { result, bytes, .. } = bench.answer(id);
    result.unwrap();
    bytes
}

/// Serves a request to its end, and returns whether it was a hit.
fn hits(bench: &mut Bench, request: Request) -> bool {
    let count = |bench: &mut Bench| {
        let sum = std::cell::Cell::new(0);
        bench.each_part(|part| {
            let requests = part.stats().requests;
            sum.set(sum.get() + requests.read_hits + requests.write_hits);
        });
        sum.get()
    };
    let before = count(bench);
    ask(bench, request, 7);
    count(bench) > before
}

/// The victim reads its 100 sectors again and again; between two of its reads the neighbour sends
/// four requests. Returns the hits of the victim's last 300 reads.
fn victims_hits(bench: &mut Bench, neighbour: impl Fn(u64) -> Request) -> u64 {
    let mut last = 0;
    for round in 0..600 {
        let hit = hits(bench, of(VICTIM, read(round * 7 % 100 * SECTOR, SECTOR)));
        last += u64::from(hit && round >= 300);
        for at in 0..4 {
            ask(bench, of(NEIGHBOUR, neighbour(round * 4 + at)), 9);
        }
    }
    last
}

#[test]
fn a_guaranteed_part_survives_a_neighbour_that_scans_or_writes() {
    for parts in [1, 2] {
        for mode in [WriteMode::Through, WriteMode::Back] {
            let scan = |at: u64| read(at * 2 % VOLUME * SECTOR, 2 * SECTOR);
            let flood = |at: u64| write(at * 2 % VOLUME * SECTOR, 2 * SECTOR);
            let mut hits = Vec::new();
            for share in [CacheShare::default(), share(140, None)] {
                for neighbour in [&scan as &dyn Fn(u64) -> Request, &flood] {
                    let mut bench = bench("4KiB", mode, parts);
                    set(&mut bench, VICTIM, share);
                    hits.push(victims_hits(&mut bench, neighbour));
                    let used = used(&mut bench, VICTIM);
                    assert!(share == CacheShare::default() || used >= 95, "{used}");
                    ask(&mut bench, of(NEIGHBOUR, flush()), 0);
                    bench.check_idle();
                }
            }
            let [scanned, flooded, beside_scan, beside_flood] = hits[..] else { unreachable!() };
            assert!(scanned < 30 && flooded < 30, "{hits:?}");
            assert!(beside_scan >= 285 && beside_flood >= 285, "{hits:?}, {mode:?}, {parts}");
        }
    }
}

#[test]
fn a_largest_part_leaves_the_rest_to_the_others() {
    for sizes in ["4KiB", "4KiB,16KiB,64KiB"] {
        let mut bench = bench(sizes, WriteMode::Back, 1);
        set(&mut bench, NEIGHBOUR, share(0, Some(100)));
        let mixed = |at: u64| match at % 3 {
            0 => read(at * 5 % 4000 * SECTOR, 16 * SECTOR),
            1 => write(at * 3 % 4000 * SECTOR, SECTOR),
            _ => write(at * 4 % 4000 * SECTOR, 6 * SECTOR),
        };
        let hits = victims_hits(&mut bench, mixed);
        assert!(hits >= 285, "{hits} with {sizes}");
        let used = used(&mut bench, NEIGHBOUR);
        assert!((60..=100).contains(&used), "{used} with {sizes}");
        ask(&mut bench, of(NEIGHBOUR, flush()), 0);
        bench.check_idle();
    }
}

/// A volume that may have nothing is served by its backing device; a write is not lost.
#[test]
fn a_volume_without_any_part_is_not_cached() {
    let mut bench = bench("4KiB,16KiB", WriteMode::Back, 1).numbered();
    set(&mut bench, NEIGHBOUR, share(0, Some(0)));
    ask(&mut bench, of(NEIGHBOUR, write(3 * SECTOR, 9 * SECTOR)), 200);
    let bytes = ask(&mut bench, of(NEIGHBOUR, read(2 * SECTOR, 2 * SECTOR)), 0);
    assert_eq!([bytes[0], bytes[SECTOR as usize]], [Bench::born(2), 200]);
    assert_eq!(bench.cache.stats().counters.backing_read_bytes, 2 * SECTOR, "no whole block");
    assert_eq!((used(&mut bench, NEIGHBOUR), bench.cache.stats().dirty_bytes), (0, 0));
    bench.check_idle();
}

/// What has no room is written to the backing device in one piece.
#[test]
fn a_write_without_room_is_not_divided() {
    let mut bench = bench("4KiB,16KiB,64KiB", WriteMode::Back, 1);
    set(&mut bench, NEIGHBOUR, share(0, Some(0)));
    let writes = |bench: &Bench| bench.cache.stats().counters.backing_write_bytes;
    let id = bench.submit(of(NEIGHBOUR, write(0, 16 * SECTOR)), 3);
    assert_eq!(bench.under_way.len(), 1, "one operation");
    bench.complete(0, None);
    assert_eq!(writes(&bench), 16 * SECTOR);
    bench.answer(id).result.unwrap();
    bench.check_idle();
}

/// All of the cache is guaranteed and full of dirty data: a neighbour's writes go past it.
#[test]
fn a_guarantee_of_everything_delays_no_write_of_another() {
    let mut bench = bench("4KiB", WriteMode::Back, 1);
    set(&mut bench, VICTIM, share(BLOCKS, None));
    for sector in 0..BLOCKS {
        ask(&mut bench, of(VICTIM, write(sector * SECTOR, SECTOR)), 1);
    }
    assert_eq!(used(&mut bench, VICTIM), BLOCKS);
    for sector in 0..50 {
        ask(&mut bench, of(NEIGHBOUR, write(sector * SECTOR, SECTOR)), 2);
        assert_eq!(ask(&mut bench, of(NEIGHBOUR, read(sector * SECTOR, 1)), 0)[0], 2);
    }
    assert_eq!(used(&mut bench, VICTIM), BLOCKS, "nothing of it has gone");
    assert_eq!(bench.cache.stats().dirty_bytes, BLOCKS * SECTOR);
    bench.check_idle();
}

/// The next volume with an id has neither the share of the last one, nor its blocks.
#[test]
fn a_share_goes_with_its_volume() {
    let mut bench = bench("4KiB,16KiB", WriteMode::Through, 2);
    set(&mut bench, VICTIM, share(200, Some(220)));
    for sector in 0..40 {
        ask(&mut bench, of(VICTIM, read(sector * SECTOR, SECTOR)), 0);
        ask(&mut bench, of(NEIGHBOUR, read(sector * SECTOR, SECTOR)), 0);
    }
    assert_eq!(used(&mut bench, VICTIM), 40);
    assert_eq!(bench.ask_parts(|part| part.remove_volume(VICTIM, false)), Ok(()));
    assert_eq!((used(&mut bench, VICTIM), used(&mut bench, NEIGHBOUR)), (0, 40));
    assert_eq!(bench.add_volume(VOLUME * SECTOR, 5), VICTIM);
    for sector in 0..40 {
        ask(&mut bench, of(VICTIM, read(sector * SECTOR, SECTOR)), 0);
    }
    for sector in 40..VOLUME {
        ask(&mut bench, of(NEIGHBOUR, read(sector * SECTOR, SECTOR)), 0);
    }
    assert_eq!(used(&mut bench, VICTIM), 0, "nothing of the new one is guaranteed");
    bench.check_idle();
}

/// Evicted and trimmed data leaves the count with its blocks, and an unset share frees its lists.
#[test]
fn a_share_can_be_set_and_lifted_while_the_volume_is_used() {
    let mut bench = bench("4KiB,16KiB", WriteMode::Through, 1);
    for sector in 0..VOLUME {
        ask(&mut bench, of(VICTIM, write(sector * SECTOR, SECTOR)), 1);
    }
    let before = bench.cache.stats().block_metadata_bytes;
    set(&mut bench, NEIGHBOUR, share(64, Some(80)));
    set(&mut bench, VICTIM, share(0, Some(32)));
    assert!(bench.cache.stats().block_metadata_bytes > before);
    for sector in 0..100 {
        ask(&mut bench, of(NEIGHBOUR, read(sector * SECTOR, SECTOR)), 0);
        ask(&mut bench, of(VICTIM, write(sector * SECTOR, SECTOR)), 2);
    }
    assert_eq!((used(&mut bench, VICTIM), used(&mut bench, NEIGHBOUR)), (32, 80));
    bench.check_idle();
    for volume in [VICTIM, NEIGHBOUR] {
        set(&mut bench, volume, CacheShare::default());
    }
    let later = bench.cache.stats();
    ask(&mut bench, of(VICTIM, read(200 * SECTOR, SECTOR)), 0);
    let stats = bench.cache.stats();
    assert!(stats.block_metadata_bytes <= before, "its lists are gone");
    assert_eq!(stats.since(&later).volume_bytes, stats.volume_bytes, "it is a gauge");
    let evict = Request { kind: RequestKind::Evict, ..read(0, VOLUME * SECTOR) };
    ask(&mut bench, of(NEIGHBOUR, evict), 0);
    for sector in 100..VOLUME {
        ask(&mut bench, of(VICTIM, read(sector * SECTOR, SECTOR)), 0);
    }
    assert_eq!(used(&mut bench, VICTIM), BLOCKS);
    bench.check_idle();
}
