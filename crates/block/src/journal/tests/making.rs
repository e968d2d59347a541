//! Tests of creating caches, with crashes during the creation.

use rand::Rng;

use super::model::random;
use super::*;
use floe_testkit::faults::{AfterTear, Fault, OperationKind};

#[derive(Debug, Clone, Copy)]
enum Before {
    Nothing,
    Garbage,
    Cache,
    DamagedCache,
}

/// Returns a disk with earlier content.
fn before(before: Before) -> Disk {
    let mut disk = Disk::new(layout(4, 2).end_bytes());
    match before {
        Before::Nothing => {}
        Before::Garbage => disk.memory.write_at(0, &vec![0x5a; 1 << 17]),
        Before::Cache | Before::DamagedCache => {
            disk.io(|io| create(io, new_cache(1, layout(4, 2)))).unwrap();
            let mut opened = disk.open().unwrap().unwrap();
            disk.io(|io| begin_session(io, &mut opened.superblock)).unwrap();
            let block = BlockAt { volume: VolumeId(1), sectors: 8..12, place: 4 };
            let mut pages = Vec::new();
            for restored in &mut opened.shards {
                let change =
                    Change::Run { block: block.clone(), run: 8..11, standing: Standing::Dirty };
                restored.journal.log(&change, |_| NO_SUM);
                restored.journal.commit(&mut pages);
            }
            assert!(disk.write(&pages) && disk.flush());
            if matches!(before, Before::DamagedCache) {
                disk.memory.write_at(100, &[0xff]);
                disk.memory.write_at(33_000, &[0xff]);
            }
        }
    }
    disk
}

#[test]
fn a_crash_while_a_cache_is_made_leaves_the_old_one_or_the_new_one_or_none() {
    let mut random = random(5);
    for was in [Before::Nothing, Before::Garbage, Before::Cache, Before::DamagedCache] {
        let mut left = [0; 4];
        for nth in 0..5 {
            for _ in 0..12 {
                let mut disk = before(was);
                // All that tells one superblock from another is in its first sectors.
                let tear =
                    Fault::Tear { units: random.random_range(0..12), then: AfterTear::PowerCut };
                let (device, faults) = FaultDevice::new(
                    disk.memory.clone(),
                    FaultPlan::none().on(OperationKind::Write, nth, tear),
                );
                (disk.device, disk.faults) = (device, faults);
                let made = disk.io(|io| create(io, new_cache(2, layout(4, 2))));
                disk.crash(random.random());
                let found = disk.open();
                let blocks = |opened: &Opened| {
                    opened.shards.iter().map(|shard| shard.blocks.len()).sum::<usize>()
                };
                let which = match found {
                    Ok(None) => 0,
                    Ok(Some(opened)) if opened.superblock.id == [1; 16] => {
                        assert_eq!(blocks(&opened), 2, "the old cache is as it was");
                        1
                    }
                    Ok(Some(opened)) => {
                        assert_eq!(opened.superblock.id, [2; 16]);
                        assert_eq!(opened.superblock.volumes, volumes(2));
                        assert_eq!(blocks(&opened), 0, "the new cache is empty");
                        2
                    }
                    Err(StoreError::Superblocks(..)) if matches!(was, Before::DamagedCache) => 3,
                    Err(error) => panic!("{was:?}, write {nth}: {error}"),
                };
                assert!(made.is_err() || which == 2, "{was:?}: a cache that was made is there");
                left[which] += 1;
                // A cache can be created now in place of any content.
                disk.io(|io| create(io, new_cache(3, layout(4, 2)))).unwrap();
                assert_eq!(disk.open().unwrap().unwrap().superblock.id, [3; 16]);
            }
        }
        let could_be = match was {
            Before::Nothing | Before::Garbage => [true, false, true, false],
            Before::Cache => [false, true, true, false],
            Before::DamagedCache => [true, false, true, true],
        };
        assert_eq!(left.map(|count| count > 0), could_be, "{was:?}: {left:?}");
    }
}

#[test]
fn an_empty_device_and_one_too_small_for_any_cache_hold_none() {
    assert!(Disk::new(1 << 20).open().unwrap().is_none());
    assert!(Disk::new(4096).open().unwrap().is_none());
    let mut disk = Disk::new(4096);
    let error = disk.io(|io| create(io, new_cache(1, layout(4, 1)))).unwrap_err().to_string();
    assert!(error.ends_with("of its device, which has only 4KiB"), "{error}");
}

#[test]
fn two_caches_on_a_device_need_two_ids() {
    let mut disk = before(Before::Cache);
    let result = disk.io(|io| create(io, new_cache(1, layout(4, 2))));
    assert!(matches!(result, Err(StoreError::SameId)));
}

#[test]
fn a_cache_that_is_clean_has_all_its_data_after_a_power_cut() {
    for seed in 0..8 {
        let mut disk = before(Before::Cache);
        let mut superblock = disk.open().unwrap().unwrap().superblock;
        let offset = superblock.layout.data_offset_bytes(0);
        let data = vec![7; SECTOR_BYTES as usize];
        disk.io(|io| io.write(offset, &data, false)).unwrap();
        superblock.clean = true;
        disk.io(|io| write_superblock(io, &mut superblock)).unwrap();
        disk.crash(seed);
        let found = disk.open().unwrap().unwrap();
        assert!(found.superblock.clean);
        assert_eq!(disk.io(|io| io.read(offset..offset + SECTOR_BYTES)).unwrap(), data);
    }
}

#[test]
fn what_is_written_into_the_superblock_is_found_there() {
    let mut disk = before(Before::Cache);
    let mut superblock = disk.open().unwrap().unwrap().superblock;
    assert!(!superblock.clean && superblock.session == 1);
    superblock.clean = true;
    superblock.void = true;
    superblock.volumes[1].marker = 99;
    disk.io(|io| write_superblock(io, &mut superblock)).unwrap();
    assert_eq!(disk.open().unwrap().unwrap().superblock, superblock);
    // Either copy says all of it.
    for offset in [0, 32_768] {
        let mut byte = [0];
        disk.memory.read_at(offset + 30_000, &mut byte);
        disk.memory.write_at(offset + 30_000, &[!byte[0]]);
        let found = disk.open().unwrap().unwrap().superblock;
        assert_eq!(Superblock { generation: superblock.generation, ..found }, superblock);
        disk.memory.write_at(offset + 30_000, &byte);
    }
    // A session that wrote pages is never begun again.
    superblock.session = 0;
    disk.io(|io| write_superblock(io, &mut superblock)).unwrap();
    superblock.session = 1;
    assert_eq!(disk.open().unwrap().unwrap().superblock, superblock);
    superblock.volumes.remove(1);
    disk.io(|io| write_superblock(io, &mut superblock)).unwrap();
    let opened = disk.open().unwrap().unwrap();
    assert_eq!(opened.superblock, superblock);
    for shard in &opened.shards {
        assert!(shard.blocks.is_empty(), "blocks of a volume that is gone are gone");
        assert!(shard.journal.has_pending(), "and the journal is told");
    }
}

#[test]
fn a_device_that_shrank_is_refused() {
    let disk = before(Before::Cache);
    let small = MemoryDevice::new(disk.memory.size_bytes() - 4096);
    let mut bytes = vec![0; small.size_bytes() as usize];
    disk.memory.read_at(0, &mut bytes);
    small.write_at(0, &bytes);
    let error = Disk::of(small).open().unwrap_err();
    assert!(matches!(error, StoreError::DeviceTooSmall { .. }), "{error}");
}

#[test]
fn a_device_that_fails_is_named_with_the_place() {
    let mut disk = before(Before::Cache);
    let plan = FaultPlan::none().on(OperationKind::Read, 0, Fault::Fail).on(
        OperationKind::Read,
        1,
        Fault::Fail,
    );
    (disk.device, disk.faults) = FaultDevice::new(disk.memory.clone(), plan);
    let error = disk.open().unwrap_err().to_string();
    assert!(
        error.starts_with("reading 32768 bytes at offset 0 of the cache device failed"),
        "{error}"
    );
    disk.faults.inject(OperationKind::Flush, Fault::Fail);
    assert!(disk.open().unwrap_err().to_string().starts_with("flushing"));
    assert!(disk.open().unwrap().is_some());
}

#[test]
fn the_generations_go_on_from_cache_to_cache() {
    let mut disk = before(Before::Cache);
    let old = disk.open().unwrap().unwrap().superblock;
    let new = disk.io(|io| create(io, new_cache(2, layout(4, 2)))).unwrap();
    assert_eq!((old.generation, new.generation), (4, 6));
}

/// The logs of a cache of 15 TiB have 75 GB.
#[test]
fn the_logs_of_a_new_cache_are_not_read() {
    let layout = layout(1 << 18, 2);
    let mut disk = Disk::new(layout.end_bytes());
    disk.io(|io| create(io, new_cache(1, layout.clone()))).unwrap();
    let before = disk.faults.counts().reads;
    let opened = disk.open().unwrap().unwrap();
    assert!(opened.shards.iter().all(|shard| shard.blocks.is_empty()));
    let reads = disk.faults.counts().reads - before;
    let log_bytes = layout.shards() * layout.journal_bytes();
    assert!(reads < 12, "{reads} reads, of {log_bytes} bytes of journals");
}
