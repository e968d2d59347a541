//! Volumes that come, go and grow while a cache runs.

use crate::common::*;
use floe_block::{DeviceId, Fault, Request, VolumeError, VolumeId, WriteMode};

const BLOCK: u64 = 8 * SECTOR;

fn of(volume: u16, request: Request) -> Request {
    Request { volume: VolumeId(volume), ..request }
}

/// Two volumes; blocks of both stand in the same groups.
fn bench(mode: WriteMode) -> Bench {
    let mut bench: Bench =
        Bench::new(config("4KiB,32KiB", 8 * BLOCK, mode), &[64 * BLOCK, 64 * BLOCK]).numbered();
    for sector in 0..8 {
        for volume in 0..2 {
            bench.ask(of(volume, read(sector * SECTOR, SECTOR)), 0).unwrap();
        }
    }
    for volume in 0..2 {
        bench.ask(of(volume, read(BLOCK, BLOCK)), 0).unwrap();
    }
    bench
}

#[test]
fn nothing_of_a_removed_volume_is_found_by_the_one_that_gets_its_id() {
    for mode in [WriteMode::Through, WriteMode::Around, WriteMode::Back] {
        let mut bench = bench(mode);
        assert_eq!(bench.cache.remove_volume(VolumeId(0), false), Ok(()));
        assert_eq!(bench.ask(read(0, SECTOR), 0), Err(Fault::OutOfRange));
        bench.cache.check();
        assert_eq!(bench.cache.stats().valid_bytes, 16 * SECTOR, "the other's");
        let medium = bench.devices.get_mut(&BACKING).unwrap();
        medium.bytes.truncate(9 * SECTOR as usize + 100);
        medium.bytes.fill(250);
        assert_eq!(bench.cache.add_volume(9 * SECTOR + 100), VolumeId(0));
        assert_eq!(bench.cache.add_volume(SECTOR), VolumeId(2));
        assert!((0..9).all(|sector| bench.get(sector) == Ok(250)), "{mode:?}");
        bench.put(0..9, 200);
        let bytes = bench.ask(read(8 * SECTOR, SECTOR + 100), 0).unwrap();
        assert_eq!([bytes[0], bytes[4096], bytes[4195]], [200, 250, 250]);
        let bytes = bench.ask(of(1, read(0, 16 * SECTOR)), 0).unwrap();
        assert_eq!([bytes[0], bytes[15 * 4096]], [1, 16]);
        bench.check_idle();
    }
}

#[test]
fn a_volume_in_use_or_with_dirty_data_stays_unless_that_is_to_be_discarded() {
    let mut bench = bench(WriteMode::Back);
    let (first, second) = (VolumeId(0), VolumeId(1));
    let id = bench.submit(write(0, 2 * SECTOR), 200);
    assert_eq!(bench.cache.remove_volume(first, true), Err(VolumeError::Busy));
    assert_eq!(bench.cache.remove_volume(second, false), Ok(()));
    bench.run();
    assert!(bench.answer(id).result.is_ok());
    assert_eq!(bench.cache.remove_volume(first, false), Err(VolumeError::Dirty(2 * SECTOR)));
    bench.clean();
    assert_eq!(
        bench.cache.remove_volume(first, true),
        Err(VolumeError::Busy),
        "it is being cleaned"
    );
    bench.run_failing(|_| true);
    assert_eq!(bench.get(0), Ok(200));
    assert_eq!(bench.cache.remove_volume(first, true), Ok(()));
    assert_eq!(bench.cache.remove_volume(first, true), Err(VolumeError::Unknown));
    let stats = bench.cache.stats();
    assert_eq!((stats.dirty_bytes, stats.valid_bytes), (0, 0));
    assert_eq!(stats.blocks.iter().map(|(_, blocks)| blocks).sum::<u64>(), 0, "no group is left");
    assert!(!bench.cache.condition().has_dirty_data());
    bench.cache.add_volume(64 * BLOCK);
    assert!(bench.ask(flush(), 0).is_ok());
    assert_eq!(bench.get(0), Ok(1));
    bench.check_idle();
}

#[test]
fn what_a_removed_volume_has_lost_is_no_loss_of_its_successor() {
    let mut bench = bench(WriteMode::Back);
    bench.put(2..3, 200);
    let id = bench.submit(write(2 * SECTOR, SECTOR), 201);
    bench.run_failing(|_| true);
    assert!(bench.answer(id).result.is_err());
    assert_eq!(bench.get(2), Err(Fault::Io));
    assert_eq!(bench.cache.remove_volume(VolumeId(0), true), Ok(()));
    bench.cache.add_volume(64 * BLOCK);
    assert_eq!(bench.get(2), Ok(3));
    assert!(bench.ask(flush(), 0).is_ok());
}

#[test]
fn a_volume_grows_and_what_was_cached_of_its_last_sector_is_not_taken_for_the_new_end() {
    let old = 4 * SECTOR + 100;
    for mode in [WriteMode::Pass, WriteMode::Through, WriteMode::Around, WriteMode::Back] {
        let mut bench: Bench = Bench::new(config("4KiB,32KiB", 8 * BLOCK, mode), &[old]).numbered();
        let id = VolumeId(0);
        bench.ask(read(0, old), 0).unwrap();
        let medium = bench.devices.get_mut(&DeviceId::Backing(id)).unwrap();
        medium.bytes.resize(12 * SECTOR as usize, 250);
        medium.stable.resize(12 * SECTOR as usize, 250);
        let shrinks = VolumeError::Shrinks { from: old, to: old - 1 };
        assert_eq!(bench.cache.resize_volume(id, old - 1), Err(shrinks));
        assert_eq!(bench.ask(read(0, old + 1), 0), Err(Fault::OutOfRange));
        let last = bench.submit(read(4 * SECTOR, 1), 0);
        assert_eq!(bench.cache.resize_volume(id, 12 * SECTOR), Err(VolumeError::Busy));
        bench.run();
        assert_eq!(bench.answer(last).bytes[0], 5);
        let first = bench.submit(read(0, SECTOR), 0); // under way elsewhere
        assert_eq!(bench.cache.resize_volume(id, 12 * SECTOR), Ok(()));
        bench.run();
        assert_eq!(bench.answer(first).bytes[0], 1);
        let bytes = bench.ask(read(0, 12 * SECTOR), 0).unwrap();
        assert_eq!(
            [99, 100, 4095, 4096].map(|at| bytes[4 * 4096 + at]),
            [5, 250, 250, 250],
            "{mode:?}"
        );
        bench.put(3..12, 200);
        assert!(bench.ask(flush(), 0).is_ok());
        assert!(bench.devices[&BACKING].stable[3 * 4096..].iter().all(|byte| *byte == 200));
        bench.check_idle();
    }
}

/// The fetch was cut at the old end, so there is nothing to store beyond.
#[test]
fn a_volume_may_grow_while_its_last_block_is_fetched() {
    let mut bench: Bench =
        Bench::new(config("32KiB", 8 * BLOCK, WriteMode::Through), &[4 * SECTOR]).numbered();
    let early = bench.submit(read(0, SECTOR), 0);
    bench.devices.get_mut(&BACKING).unwrap().bytes.resize(16 * SECTOR as usize, 250);
    assert_eq!(bench.cache.resize_volume(VolumeId(0), 16 * SECTOR), Ok(()));
    bench.run();
    assert_eq!(bench.answer(early).bytes[0], 1);
    assert_eq!([3, 4, 15].map(|sector| bench.get(sector)), [4, 250, 250].map(Ok));
    bench.check_idle();
}
