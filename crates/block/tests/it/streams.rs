//! Streams, followed above shards and parts: an admission that keeps them out sees them, and what
//! comes next is fetched for a policy that wants it, without harm.

use crate::common::*;
use floe_block::{
    AdmissionConfig, Config, Counters, Request, RequestKind, VolumeError, VolumeId, WriteMode,
};

const VOLUME: u64 = 1024 * SECTOR;

fn cache(evict: &str, sizes: &str, cache_sectors: u64, shards: u64) -> Config {
    let evict = evict.parse().expect("a block cache can have it");
    let shards = Some(shards);
    Config { evict, shards, ..config(sizes, cache_sectors * SECTOR, WriteMode::Through) }
}

/// Lets the parts hear each other and ends all operations, until nothing is left to do.
fn settle(bench: &mut Bench) {
    loop {
        bench.run();
        if bench.said.is_empty() {
            return;
        }
        bench.deliver(0);
    }
}

/// Reads some sectors in turn, so many at once, and checks what comes.
fn read_in_turn(bench: &mut Bench, sectors: std::ops::Range<u64>, at_once: u64) {
    for sector in sectors.step_by(at_once as usize) {
        let id = bench.submit(read(sector * SECTOR, at_once * SECTOR), 0);
        settle(bench);
        let answer = bench.answer(id);
        assert_eq!(answer.result, Ok(()));
        for (sector, bytes) in (sector..).zip(answer.bytes.chunks(SECTOR as usize)) {
            assert!(bytes.iter().all(|byte| *byte == Bench::born(sector)), "sector {sector}");
        }
    }
}

/// Of all parts together.
fn counted(bench: &mut Bench) -> (Counters, u64) {
    let all = std::cell::RefCell::new((Counters::default(), 0));
    bench.each_part(|part| {
        let stats = part.stats();
        let mut all = all.borrow_mut();
        all.0 += &stats.counters;
        all.1 += stats.requests.read_hits;
    });
    all.into_inner()
}

#[test]
fn a_long_sequence_stays_out_however_many_shards_and_parts_it_crosses() {
    for (shards, parts) in [(1, 1), (4, 1), (8, 2), (8, 8)] {
        let gate = AdmissionConfig::new("sequential:threshold=8".parse().unwrap());
        let config = Config { gate, ..cache("lru", "4KiB", 256, shards) };
        let mut bench = Bench::in_parts(config, &[VOLUME], parts).numbered();
        // A request at a time, so all are the first part's.
        for sector in (0..64).flat_map(|sector| (0..3).map(move |stream| sector + 100 * stream)) {
            let id = bench.submit(read(sector * SECTOR, SECTOR), 0);
            settle(&mut bench);
            assert_eq!(bench.answer(id).result, Ok(()));
        }
        let (counters, _) = counted(&mut bench);
        assert_eq!(
            (counters.offered_blocks, counters.admitted_blocks),
            (3 * 64, 3 * 7),
            "{shards} shards, {parts} parts"
        );
    }
}

#[test]
fn sarc_reads_a_sequence_ahead_whatever_the_shards_the_blocks_and_the_requests() {
    for (sizes, shards, parts, at_once) in [
        ("4KiB", 1, 1, 1),
        ("4KiB", 8, 1, 1),
        ("4KiB", 8, 3, 4),
        ("4KiB,16KiB", 4, 2, 1),
        ("4KiB,64KiB", 4, 1, 16),
        ("32KiB,256KiB", 4, 1, 1),
        ("32KiB,256KiB", 2, 2, 32),
    ] {
        let how =
            format!("{sizes} in {shards} shards and {parts} parts, {at_once} sectors at once");
        let mut bench =
            Bench::in_parts(cache("sarc", sizes, 1024, shards), &[VOLUME], parts).numbered();
        for sector in (0..512).step_by(at_once as usize) {
            let id = bench.submit(read(sector * SECTOR, at_once * SECTOR), 0);
            settle(&mut bench);
            assert_eq!(bench.answer(id).bytes[0], Bench::born(sector));
        }
        let ((counters, hits), reads) = (counted(&mut bench), 512 / at_once);
        let unit = sizes.split("KiB").next().unwrap().parse::<u64>().unwrap() / 4;
        // Three smallest blocks make a stream, or a request that is as long; the first order comes
        // with it.
        let missed = (3 * unit).div_ceil(at_once).min(3 * unit).max(1);
        assert!(hits >= reads - missed, "{how}: {hits} of {reads} reads hit");
        let all = 512 / unit;
        assert!(
            counters.prefetched_blocks <= all + 64
                && counters.prefetched_blocks + 4 * at_once.max(3) >= all,
            "{how}: {counters:?}"
        );
        assert!(counters.prefetched_used_blocks <= counters.prefetched_blocks, "{how}");
        assert!(
            counters.prefetched_blocks - counters.prefetched_used_blocks <= 64.max(at_once / unit),
            "{how}: {counters:?}"
        );
        bench.check_idle();
    }
}

#[test]
fn lru_fetches_what_it_is_asked_for() {
    let mut bench = Bench::new(cache("lru", "4KiB", 256, 4), &[VOLUME]).numbered();
    read_in_turn(&mut bench, 0..128, 1);
    let (counters, hits) = counted(&mut bench);
    assert_eq!(
        (counters.backing_read_bytes, counters.prefetched_blocks, hits),
        (128 * SECTOR, 0, 0)
    );
}

#[test]
fn nothing_is_fetched_beyond_the_end_of_the_volume() {
    let bytes = 100 * SECTOR + 512;
    let mut bench = Bench::new(cache("sarc", "16KiB,64KiB", 256, 2), &[bytes, bytes]).numbered();
    read_in_turn(&mut bench, 0..100, 1);
    let id = bench.submit(read(100 * SECTOR, 512), 0);
    settle(&mut bench);
    assert!(bench.answer(id).result.is_ok());
    let ends = bench.ordered(BACKING).iter().map(target).map(|(_, offset, len)| offset + len).max();
    assert_eq!(ends, Some(101 * SECTOR), "the sector that the volume ends in is read as a whole");
    assert!(bench.ordered(floe_block::DeviceId::Backing(VolumeId(1))).is_empty());
    bench.check_idle();
}

#[test]
fn scattered_reads_and_writes_in_turn_fetch_nothing() {
    let mut bench = Bench::new(cache("sarc", "4KiB", 256, 4), &[VOLUME]).numbered();
    for sector in 0..200 {
        bench.ask(read(sector * 7 % 1000 * SECTOR, SECTOR), 0).unwrap();
    }
    for sector in 0..100 {
        bench.ask(write(sector * SECTOR, SECTOR), 9).unwrap();
    }
    assert_eq!(counted(&mut bench).0.prefetched_blocks, 0);
}

/// A bench that has read three sectors, so that the next is fetched: that read is under way.
fn fetching_ahead() -> Bench {
    let mut bench = Bench::new(cache("sarc", "4KiB", 256, 1), &[VOLUME]).numbered();
    read_in_turn(&mut bench, 0..2, 1);
    let id = bench.submit(read(2 * SECTOR, SECTOR), 0);
    bench.complete_the(|order| on_backing(order) && target(order).1 == 2 * SECTOR);
    bench.answer(id);
    while bench.under_way.iter().any(|it| on_cache(&it.order)) {
        bench.complete_the(on_cache);
    }
    bench
}

#[test]
fn a_reader_joins_what_is_on_its_way_and_others_do_not_wait() {
    let mut bench = fetching_ahead();
    assert!(!bench.under_way.is_empty() && bench.under_way.iter().all(|it| on_backing(&it.order)));
    let early = bench.submit(read(3 * SECTOR, SECTOR), 0);
    let other = bench.submit(read(500 * SECTOR, SECTOR), 0);
    bench.complete_the(|order| on_backing(order) && target(order).1 == 500 * SECTOR);
    assert_eq!(bench.answer(other).bytes[0], Bench::born(500));
    bench.run();
    assert_eq!(bench.answer(early).bytes[0], Bench::born(3));
    let asked = bench.ordered(BACKING).iter().filter(|order| target(order).1 / SECTOR == 3).count();
    assert_eq!(asked, 1, "it was read once");
    assert_eq!(counted(&mut bench).0.prefetched_used_blocks, 1);
}

#[test]
fn a_write_to_what_is_on_its_way_is_what_is_read() {
    let mut bench = fetching_ahead();
    let written = bench.submit(write(3 * SECTOR, SECTOR), 7);
    bench.run();
    assert!(bench.answer(written).result.is_ok());
    assert_eq!(bench.get(3), Ok(7));
    let trimmed = bench.submit(Request { kind: RequestKind::Trim, ..read(4 * SECTOR, SECTOR) }, 0);
    bench.run();
    assert!(bench.answer(trimmed).result.is_ok());
    bench.check_idle();
}

#[test]
fn a_failed_fetch_is_nobodys_failure_and_evicts_nobody() {
    let mut bench = fetching_ahead();
    let before = bench.cache.stats();
    bench.run_failing(on_backing);
    let after = bench.cache.stats();
    assert_eq!((after.requests.errors, after.valid_bytes), (0, before.valid_bytes));
    assert_eq!(bench.get(3), Ok(Bench::born(3)));
    bench.check_idle();
}

#[test]
fn a_volume_goes_when_its_fetches_have_ended_and_takes_those_that_wait_with_it() {
    let mut bench = fetching_ahead();
    assert_eq!(bench.cache.remove_volume(VolumeId(0), false), Err(VolumeError::Busy));
    bench.run();
    assert_eq!(bench.cache.remove_volume(VolumeId(0), false), Ok(()));
    bench.check_idle();
}

#[test]
fn a_cache_that_is_given_up_fetches_nothing_ahead() {
    let mut bench = Bench::new(cache("sarc", "4KiB", 256, 2), &[VOLUME]).numbered();
    bench.cache.degrade();
    read_in_turn(&mut bench, 0..64, 1);
    let (counters, _) = counted(&mut bench);
    assert_eq!((counters.backing_read_bytes, counters.prefetched_blocks), (64 * SECTOR, 0));
}

#[test]
fn what_is_read_again_and_again_survives_a_long_sequence_under_sarc_and_not_under_lru() {
    let hits_of = |evict: &str| {
        let mut bench = Bench::new(cache(evict, "4KiB", 64, 1), &[VOLUME]).numbered();
        let hot = |bench: &mut Bench| {
            (0..32).for_each(|at| read_in_turn(bench, 700 + 3 * at..701 + 3 * at, 1))
        };
        hot(&mut bench);
        hot(&mut bench);
        let before = counted(&mut bench).1;
        for part in 0..12 {
            read_in_turn(&mut bench, part * 50..(part + 1) * 50, 1);
            hot(&mut bench);
        }
        counted(&mut bench).1 - before
    };
    let (sarc, lru) = (hits_of("sarc"), hits_of("lru"));
    assert!(lru == 0 && sarc > 12 * (32 + 50) * 9 / 10, "{sarc} hits against {lru}");
}
