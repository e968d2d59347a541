//! A cache that becomes smaller and larger while it serves. The model of `model.rs` does that at
//! random.

use crate::common::*;
use floe_block::{
    BlockCache, CacheShare, ConfigError, DeviceId, Evict, Order, VolumeId, WriteMode,
};

const VOLUME: u64 = 4096;

fn bench(sizes: &str, groups: u64, mode: WriteMode) -> Bench {
    Bench::new(config(sizes, groups * group(sizes), mode), &[VOLUME * SECTOR]).numbered()
}

/// The bytes of a group.
fn group(sizes: &str) -> u64 {
    let largest = sizes.rsplit(',').next().unwrap().trim_end_matches("KiB");
    largest.parse::<u64>().unwrap() << 10
}

/// Lets the cache give back what it can, with all operations ended.
fn give_back(bench: &mut Bench) {
    loop {
        bench.give_back();
        if bench.under_way.is_empty() {
            return;
        }
        bench.run();
    }
}

fn hit(bench: &mut Bench, sector: u64) -> bool {
    let before = bench.cache.stats().requests.read_hits;
    assert_eq!(bench.get(sector), Ok(Bench::born(sector)));
    bench.cache.stats().requests.read_hits > before
}

/// The ranges of the cache device that were discarded since the last call.
fn discarded(bench: &mut Bench) -> Vec<(u64, u64)> {
    let on_cache = bench.ordered(DeviceId::Cache).into_iter();
    let ranges = on_cache.filter_map(|order| match order {
        Order::Discard { offset, len, .. } => Some((offset, len)),
        _ => None,
    });
    ranges.collect()
}

#[test]
fn a_smaller_cache_keeps_its_hottest_blocks_wherever_they_lie() {
    for sizes in ["4KiB", "4KiB,16KiB"] {
        let mut bench = bench(sizes, 16, WriteMode::Through);
        let step = group(sizes) / SECTOR;
        let firsts: Vec<u64> = (0..16).map(|number| number * step).collect();
        for &first in &firsts {
            bench.ask(read(first * SECTOR, step * SECTOR), 0).unwrap();
        }
        let hot = [firsts[1], firsts[6], firsts[15], firsts[10]];
        assert!(hot.iter().all(|&sector| hit(&mut bench, sector)));
        bench.ordered(DeviceId::Cache);
        bench.resize(4 * group(sizes)).unwrap();
        assert_eq!(bench.bytes_over(), 12 * group(sizes));
        give_back(&mut bench);
        assert_eq!(bench.bytes_over(), 0, "{sizes}");
        let mut ranges = discarded(&mut bench);
        ranges.sort_unstable();
        ranges.dedup();
        assert_eq!(ranges.len(), 12, "{sizes}: each place once");
        assert!(ranges.iter().all(|(_, len)| *len == group(sizes)));
        assert!(hot.iter().all(|&sector| hit(&mut bench, sector)), "{sizes}");
        assert!(!hit(&mut bench, firsts[0]));
        assert_eq!(
            bench.cache.stats().valid_bytes,
            4 * group(sizes) - if step > 1 { 12 << 10 } else { 0 }
        );
        bench.check_idle();
    }
}

#[test]
fn dirty_blocks_are_cleaned_before_their_place_is_given_back() {
    for sizes in ["4KiB", "4KiB,16KiB"] {
        let mut bench = bench(sizes, 16, WriteMode::Back);
        bench.put(0..16 * group(sizes) / SECTOR, 250);
        bench.resize(2 * group(sizes)).unwrap();
        bench.run_failing(|_| false);
        give_back(&mut bench);
        assert_eq!(bench.bytes_over(), 0);
        assert_eq!(bench.cache.stats().dirty_bytes, 2 * group(sizes), "no more than needed left");
        for sector in 0..16 * group(sizes) / SECTOR {
            assert_eq!(bench.get(sector), Ok(250));
        }
        bench.check_idle();
    }
}

#[test]
fn blocks_in_use_are_waited_for() {
    let mut bench = bench("4KiB,16KiB", 4, WriteMode::Through);
    for number in 0..4 {
        bench.ask(read(number * 4 * SECTOR, 4 * SECTOR), 0).unwrap();
    }
    let slow = bench.submit(read(0, SECTOR), 0);
    bench.resize(group("4KiB,16KiB")).unwrap();
    bench.give_back();
    while let Some(at) = bench.under_way.iter().position(|op| !is_read(&op.order)) {
        bench.complete(at, None);
        bench.give_back();
    }
    assert_eq!(bench.bytes_over(), 0, "others have left");
    bench.run();
    assert_eq!(bench.answer(slow).bytes[0], Bench::born(0));
    bench.check_idle();
    // the last group left, of which a block is in use
    let slow = bench.submit(read(0, SECTOR), 0);
    let is_hit = bench.under_way.iter().all(|op| on_cache(&op.order));
    assert!(is_hit, "the group in use has stayed");
    bench.run();
    bench.answer(slow);
}

/// Ends all operations but the first `hung` ones, while the cache gives back what it can.
fn give_back_but(bench: &mut Bench, hung: usize) {
    bench.give_back();
    while bench.under_way.len() > hung {
        bench.complete(hung, None);
        bench.give_back();
    }
}

#[test]
fn groups_that_wait_for_a_hanging_device_keep_no_place_from_others() {
    const SIZES: &str = "4KiB,16KiB";
    let step = group(SIZES) / SECTOR;
    for late in [false, true] {
        let mut bench = bench(SIZES, 40, WriteMode::Through);
        (0..40).for_each(|number| {
            bench.ask(read(number * step * SECTOR, step * SECTOR), 0).unwrap();
        });
        // all blocks of the coldest groups are in use, and for a while those of all others
        let mut asked = Vec::new();
        let mut submit = |bench: &mut Bench, groups: std::ops::Range<u64>| {
            let reads = groups.map(|number| read(number * step * SECTOR, step * SECTOR));
            asked.extend(reads.map(|read| bench.submit(read, 0)));
        };
        submit(&mut bench, 0..20);
        let hung = bench.under_way.len();
        submit(&mut bench, 20..40);
        if !late {
            give_back_but(&mut bench, hung);
        }
        bench.resize(24 * group(SIZES)).unwrap();
        bench.give_back();
        give_back_but(&mut bench, hung);
        assert_eq!(bench.bytes_over(), 0, "the others have left, late: {late}");
        bench.run();
        asked.into_iter().for_each(|id| assert!(bench.answer(id).result.is_ok()));
        assert!((0..20 * step).all(|sector| hit(&mut bench, sector)));
        bench.check_idle();
    }
}

#[test]
fn writes_without_end_do_not_keep_a_group() {
    for sizes in ["4KiB", "4KiB,8KiB,32KiB"] {
        let mut bench = bench(sizes, 8, WriteMode::Back);
        let sectors = 8 * group(sizes) / SECTOR;
        bench.put(0..sectors, 100);
        bench.resize(2 * group(sizes)).unwrap();
        let mut stamp = 100;
        for _ in 0..400 {
            // every block is made dirty again before the cache may go on
            stamp = if stamp == 200 { 100 } else { stamp + 1 };
            (0..sectors).for_each(|sector| bench.put(sector..sector + 1, stamp));
            bench.give_back();
            if bench.bytes_over() == 0 {
                break;
            }
        }
        assert_eq!(bench.bytes_over(), 0, "{sizes}");
        bench.run();
        assert!((0..sectors).all(|sector| bench.get(sector) == Ok(stamp)));
        bench.check_idle();
    }
}

#[test]
fn what_was_given_back_is_used_again_before_new_space() {
    let mut bench = bench("4KiB", 8, WriteMode::Through);
    bench.resize(8 * SECTOR).unwrap();
    let fill = |bench: &mut Bench, blocks: u64| {
        (0..blocks).for_each(|sector| assert!(bench.get(sector).is_ok()));
        let ordered = bench.ordered(DeviceId::Cache).into_iter();
        let mut offsets: Vec<u64> =
            ordered.filter(is_write).map(|order| target(&order).1 / SECTOR).collect();
        offsets.sort_unstable();
        offsets
    };
    assert_eq!(fill(&mut bench, 8), (0..8).collect::<Vec<_>>());
    bench.resize(3 * SECTOR).unwrap();
    give_back(&mut bench);
    let given_back = discarded(&mut bench);
    assert_eq!(given_back.len(), 5);
    bench.resize(6 * SECTOR).unwrap();
    assert_eq!(bench.bytes_over(), 0);
    (100..103).for_each(|sector| assert!(bench.get(sector).is_ok()));
    let ordered = bench.ordered(DeviceId::Cache);
    let writes = ordered.iter().filter(|order| is_write(order));
    let places: Vec<u64> = writes.map(|order| target(order).1).collect();
    assert!(places.iter().all(|place| given_back.iter().any(|(offset, _)| offset == place)));
    assert_eq!(places.len(), 3);
    bench.resize(20 * SECTOR).unwrap();
    let offsets = fill(&mut bench, 100);
    assert_eq!(offsets.iter().max(), Some(&19), "the last of the new places");
    let hits = (80..100).filter(|&sector| hit(&mut bench, sector)).count();
    assert_eq!(hits, 20, "all of it is used");
    bench.check_idle();
}

#[test]
fn each_shard_of_each_part_has_space_of_its_own_after_growing() {
    let mut config = config("4KiB,16KiB", 8 * (16 << 10), WriteMode::Back);
    config.shards = Some(4);
    let mut bench = Bench::in_parts(config, &[VOLUME * SECTOR], 3).numbered();
    let go = |bench: &mut Bench| {
        while !bench.under_way.is_empty() || !bench.said.is_empty() {
            if !bench.under_way.is_empty() {
                bench.complete(0, None);
            }
            if !bench.said.is_empty() {
                bench.deliver(0);
            }
            bench.give_back();
        }
    };
    let write_all = |bench: &mut Bench, stamp: u8| {
        let id = bench.submit(write(0, 512 * SECTOR), stamp);
        go(bench);
        assert!(bench.answer(id).result.is_ok());
    };
    for (stamp, groups) in [(101, 8), (102, 16), (103, 4), (104, 40), (105, 9), (106, 64)] {
        bench.resize(groups * (16 << 10)).unwrap();
        bench.give_back();
        go(&mut bench);
        assert_eq!(bench.bytes_over(), 0);
        write_all(&mut bench, stamp);
        let id = bench.submit(read(0, 512 * SECTOR), 0);
        go(&mut bench);
        assert!(bench.answer(id).bytes.iter().all(|byte| *byte == stamp), "{groups} groups");
        bench.check_idle();
    }
}

#[test]
fn every_policy_falls_to_the_limit_and_goes_on() {
    for evict in Evict::all() {
        for sizes in ["4KiB", "4KiB,16KiB"] {
            let mut config = config(sizes, 32 * group(sizes), WriteMode::Back);
            config.evict = evict.clone();
            let mut bench = Bench::new(config, &[VOLUME * SECTOR]).numbered();
            bench.keep_log = false;
            for (groups, from) in [(32, 0), (5, 300), (48, 77), (1, 500), (20, 0)] {
                bench.resize(groups * group(sizes)).unwrap();
                give_back(&mut bench);
                assert_eq!(bench.bytes_over(), 0, "{evict} {sizes} {groups}");
                for at in 0..400 {
                    let sector = from + at * 13 % 200;
                    assert_eq!(bench.get(sector), Ok(Bench::born(sector)), "{evict}");
                }
                let held = bench.cache.stats().valid_bytes;
                assert!(held > 0 && held <= groups * group(sizes), "{evict}: {held}");
                bench.check_idle();
            }
        }
    }
}

#[test]
fn a_block_that_cannot_be_cleaned_is_told_and_tried_again() {
    let mut bench = bench("4KiB", 8, WriteMode::Back);
    bench.put(0..8, 99);
    bench.resize(4 * SECTOR).unwrap();
    bench.give_back();
    bench.run_failing(on_backing);
    bench.give_back();
    assert!(bench.cache.condition().blocks_in_the_way() > 0);
    assert!(!bench.cache.condition().is_unreadable());
    assert_eq!(bench.bytes_over(), 4 * SECTOR);
    bench.run();
    assert_eq!(bench.bytes_over(), 4 * SECTOR, "it is not tried without end");
    // as large as before, and nothing has happened
    bench.resize(8 * SECTOR).unwrap();
    assert_eq!((bench.bytes_over(), bench.cache.condition().blocks_in_the_way()), (0, 0));
    bench.resize(4 * SECTOR).unwrap();
    bench.give_back();
    bench.run_failing(on_backing);
    bench.clean();
    bench.run();
    give_back(&mut bench);
    assert_eq!(bench.bytes_over(), 0);
    assert!((0..8).all(|sector| bench.get(sector) == Ok(99)));
    bench.check_idle();
}

#[test]
fn guaranteed_parts_stay() {
    for sizes in ["4KiB", "4KiB,16KiB"] {
        let bytes = 64 << 10;
        let mut bench = Bench::new(config(sizes, 8 * bytes, WriteMode::Through), &[1 << 20; 2]);
        bench.keep_log = false;
        let share = CacheShare { guaranteed_bytes: 2 * bytes, most_bytes: None };
        bench.each_part(|part| part.set_share(VolumeId(0), share));
        for volume in [0, 1] {
            for at in 0..8 * bytes / SECTOR / 2 {
                let request =
                    floe_block::Request { volume: VolumeId(volume), ..read(at * SECTOR, SECTOR) };
                bench.ask(request, 0).unwrap();
            }
        }
        bench.resize(3 * bytes).unwrap();
        bench.each_part(|part| part.set_share(VolumeId(0), share));
        give_back(&mut bench);
        assert_eq!(bench.bytes_over(), 0);
        assert_eq!(bench.cache.stats().volume_bytes[0], 2 * bytes, "{sizes}");
        bench.check_idle();
    }
}

#[test]
fn a_size_that_cannot_be_is_refused_and_changes_nothing() {
    let mut config = config("4KiB,16KiB", 8 * (16 << 10), WriteMode::Back);
    config.shards = Some(4);
    let mut cache = BlockCache::new(config).unwrap();
    let refused = floe_block::resize(&mut cache, 3 * (16 << 10)).unwrap_err();
    assert!(matches!(refused, ConfigError::TooSmall { .. }), "{refused}");
    assert!(refused.to_string().ends_with("it needs 64KiB"), "{refused}");
    assert!(matches!(floe_block::resize(&mut cache, u64::MAX), Err(ConfigError::TooLarge { .. })));
    assert_eq!(cache.config().cache_bytes, 8 * (16 << 10));
    floe_block::resize(&mut cache, 4 * (16 << 10)).unwrap();
    assert_eq!(cache.config().cache_bytes, 4 * (16 << 10));
}

/// Caches that outlive the program, whose superblocks record their sizes.
mod recorded {
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeSet;
    use std::rc::Rc;

    use floe_block::{Driver, KeptCache, Volume, VolumeId, WriteMode, resize_tier};
    use floe_device::Action;
    use floe_testkit::Intercepted;

    use crate::kept::{ID, Machine, SECTOR, VOLUME, bytes_of, end, flush, read, write};

    /// Records the bytes of the data of a cache in its superblock, as its owner does.
    fn record_size(machine: &Machine, bytes: u64) {
        machine.with_io(|io| {
            let mut superblock = KeptCache::identify(io).unwrap().unwrap();
            let data_start = superblock.layout.data_offset_bytes(0);
            superblock.set_cache_bytes(data_start + bytes);
            floe_block::write_superblock(io, &mut superblock).unwrap();
        });
    }

    fn advance_until_small(driver: &mut Driver) {
        for _ in 0..100_000 {
            if driver.top().cache().condition().bytes_over() == 0 {
                return;
            }
            driver.advance();
        }
        panic!("{} bytes are left", driver.top().cache().condition().bytes_over());
    }

    /// Gives a cache another size while it serves, and records it.
    fn resize(machine: &Machine, driver: &mut Driver, bytes: u64) {
        let is_larger = bytes > driver.top().cache().config().cache_bytes;
        if is_larger {
            record_size(machine, bytes);
        }
        resize_tier(driver.top_mut(), bytes).unwrap();
        advance_until_small(driver);
        if !is_larger {
            record_size(machine, bytes);
        }
    }

    #[test]
    fn a_size_is_kept_for_the_next_life_and_nothing_is_lost_on_the_way() {
        const SMALL: u64 = 8 * (16 << 10);
        let machine = Machine::new();
        machine.create(2);
        let mut driver = machine.start(WriteMode::Back);
        let all = driver.top().cache().config().cache_bytes;
        assert!(all > VOLUME);
        let mut expected: Vec<u8> = (0..64).map(|sector| sector + 1).collect();
        (0..64).for_each(|sector| write(&mut driver, sector, expected[sector as usize]));
        flush(&mut driver);
        // Killed on the way, it has its old size.
        resize_tier(driver.top_mut(), SMALL).unwrap();
        driver.advance();
        drop(driver);
        let mut driver = machine.start(WriteMode::Back);
        assert_eq!(driver.top().cache().config().cache_bytes, all);
        (0..64).for_each(|sector| assert_eq!(read(&mut driver, sector), expected[sector as usize]));

        resize(&machine, &mut driver, SMALL);
        assert!(driver.top().stats().dirty_bytes > 0, "no more than needed is cleaned");
        drop(driver);
        for life in 0..3 {
            let mut driver = machine.start(WriteMode::Back);
            assert_eq!(driver.top().cache().config().cache_bytes, SMALL);
            advance_until_small(&mut driver);
            for sector in 0..64 {
                assert_eq!(read(&mut driver, sector), expected[sector as usize], "life {life}");
                expected[sector as usize] = expected[sector as usize].wrapping_add(3);
                write(&mut driver, sector, expected[sector as usize]);
            }
            assert!(driver.top().stats().valid_bytes <= SMALL);
            end(&machine, driver);
        }
        let mut driver = machine.start(WriteMode::Back);
        resize(&machine, &mut driver, all);
        (0..64).for_each(|sector| write(&mut driver, sector, expected[sector as usize]));
        assert_eq!(driver.top().stats().valid_bytes, VOLUME, "it has all its room again");
        flush(&mut driver);
        drop(driver);
        let superblock = machine.with_io(|io| KeptCache::identify(io).unwrap().unwrap());
        assert_eq!((superblock.cache_bytes, superblock.data_bytes()), (None, all));
        let mut driver = machine.start(WriteMode::Back);
        (0..64).for_each(|sector| assert_eq!(read(&mut driver, sector), expected[sector as usize]));
        assert_eq!(driver.top().stats().requests.read_hits, 64);
    }

    #[test]
    fn a_kept_cache_has_no_more_than_it_was_made_with() {
        let machine = Machine::new();
        machine.create_of(512 << 10, 1);
        let mut driver = machine.start(WriteMode::Back);
        let all = driver.top().cache().config().cache_bytes;
        resize_tier(driver.top_mut(), 64 * all).unwrap();
        assert_eq!(driver.top().cache().config().cache_bytes, all);
        for sector in (0..64).chain(0..64) {
            write(&mut driver, sector, sector as u8 + 1);
        }
        assert!(driver.top().stats().valid_bytes <= all);
        (0..64).for_each(|sector| assert_eq!(read(&mut driver, sector), sector as u8 + 1));
        assert!(resize_tier(driver.top_mut(), SECTOR).is_err(), "it has no group");
    }

    /// A size that is smaller than what a cache holds: its superblock is newer than its log.
    #[test]
    fn a_cache_with_more_than_its_size_gives_it_back_when_it_begins() {
        const SMALL: u64 = 4 * (16 << 10);
        for ends_well in [false, true] {
            let machine = Machine::new();
            machine.create(1);
            let mut driver = machine.start(WriteMode::Back);
            (0..64).for_each(|sector| write(&mut driver, sector, sector as u8 + 1));
            flush(&mut driver);
            if ends_well {
                end(&machine, driver);
            } else {
                drop(driver);
            }
            record_size(&machine, SMALL);
            let mut driver = machine.start(WriteMode::Back);
            assert!(driver.top().cache().condition().bytes_over() > 0);
            (0..64).for_each(|sector| assert_eq!(read(&mut driver, sector), sector as u8 + 1));
            advance_until_small(&mut driver);
            let stats = driver.top().stats();
            assert!(stats.valid_bytes <= SMALL && stats.corrupt_sectors == 0, "{stats:?}");
            (0..64).for_each(|sector| assert_eq!(read(&mut driver, sector), sector as u8 + 1));
        }
    }

    /// A removed volume leaves data in free places, and so does a kill before the log names them.
    #[test]
    fn what_is_free_above_a_recorded_size_is_given_back_at_each_start() {
        const SMALL: u64 = 4 * (16 << 10);
        for (id, is_flushed) in [(VolumeId(1), true), (ID, false)] {
            let machine = Machine::new();
            machine.create(2);
            let mut driver = machine.start(WriteMode::Back);
            let all = driver.top().cache().config().cache_bytes;
            (0..64).for_each(|sector| write(&mut driver, sector, sector as u8 + 1));
            if is_flushed {
                flush(&mut driver);
            }
            drop(driver);
            record_size(&machine, SMALL);
            let found = Rc::new(RefCell::new(BTreeSet::new()));
            let discarded = Rc::clone(&found);
            let device = Intercepted::new(machine.cache.clone(), move |operation| {
                if let Action::Discard { len } = operation.action {
                    discarded
                        .borrow_mut()
                        .extend((0..len).step_by(SECTOR as usize).map(|at| operation.offset + at));
                }
                None
            });
            let volume = Volume::new(id, "other", VOLUME);
            let mut driver = machine.start_with(volume, WriteMode::Back, Box::new(device));
            assert_eq!(driver.top().stats().valid_bytes, 0);
            advance_until_small(&mut driver);
            assert_eq!(found.take().len() as u64 * SECTOR, all - SMALL);
        }
    }

    #[test]
    fn a_place_is_discarded_only_after_the_log_says_that_nothing_is_there() {
        for mode in [WriteMode::Back, WriteMode::Through] {
            let machine = Machine::new();
            machine.create(2);
            let found = Rc::new(RefCell::new(Vec::new()));
            let (cache, crashes) = (machine.cache.clone(), Rc::clone(&found));
            let device = Intercepted::new(machine.cache.clone(), move |operation| {
                if let Action::Discard { len } = operation.action {
                    let mut bytes = bytes_of(&cache);
                    bytes[operation.offset as usize..][..len as usize].fill(0);
                    crashes.borrow_mut().push(bytes);
                }
                None
            });
            let mut driver = machine.start_on(mode, Box::new(device));
            (0..64).for_each(|sector| write(&mut driver, sector, sector as u8 + 1));
            (0..64).for_each(|sector| assert_eq!(read(&mut driver, sector), sector as u8 + 1));
            flush(&mut driver);
            resize_tier(driver.top_mut(), 4 * (16 << 10)).unwrap();
            advance_until_small(&mut driver);
            let found = found.take();
            assert!(found.len() > 100, "places that were never used are given back, too");
            for bytes in found.iter().rev().take(24).chain(found.iter().take(24)) {
                let crashed = Machine::new();
                crashed.cache.write_at(0, bytes);
                let rotten = crashed.with_io(|io| {
                    let kept = KeptCache::open(io, &mut |_, _| {}).unwrap().unwrap();
                    kept.verify(io, &mut |_, _| {}).unwrap()
                });
                assert_eq!(rotten, [], "{mode}");
            }
        }
    }

    /// A mirror has no discard: what a kill left is written over only where it is used again.
    #[test]
    fn a_start_writes_no_zeros_to_a_mirror_that_has_become_smaller() {
        const SMALL: u64 = 8 * (16 << 10);
        let zeroed = Rc::new(Cell::new(0));
        let mut machine = Machine::new();
        machine.zeroed = Some(Rc::clone(&zeroed));
        machine.create(2);
        let mut driver = machine.start(WriteMode::Back);
        let all = driver.top().cache().config().cache_bytes;
        (0..64).for_each(|sector| write(&mut driver, sector, sector as u8 + 1));
        flush(&mut driver);
        resize(&machine, &mut driver, SMALL);
        assert_eq!(zeroed.take(), all - SMALL, "the resize itself gives it back once");
        for byte in 2..6 {
            if byte % 2 == 0 {
                drop(driver);
            } else {
                end(&machine, driver);
            }
            driver = machine.start(WriteMode::Back);
            assert_eq!(driver.top().cache().config().cache_bytes, SMALL);
            (0..64).for_each(|sector| assert_ne!(read(&mut driver, sector), 0));
            (0..64).for_each(|sector| write(&mut driver, sector, byte));
            assert!(driver.top().stats().valid_bytes <= SMALL);
            assert_eq!(driver.top().cache().condition().bytes_over(), 0);
            assert_eq!(zeroed.get(), 0, "start {byte}");
        }
        resize(&machine, &mut driver, SMALL / 2);
        assert_eq!(zeroed.take(), SMALL / 2);
        resize(&machine, &mut driver, all);
        (0..64).for_each(|sector| write(&mut driver, sector, sector as u8 + 1));
        assert_eq!((driver.top().stats().valid_bytes, zeroed.get()), (VOLUME, 0));
        (0..64).for_each(|sector| assert_eq!(read(&mut driver, sector), sector as u8 + 1));
    }
}
