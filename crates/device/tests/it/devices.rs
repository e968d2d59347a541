//! Every device against an array of bytes.

use std::time::Duration;

use crate::common::{SECTOR, finish, thread};
use floe_device::{
    Action, Device, FileDevice, FileOptions, Habit, Medium, MediumDevice, MemoryDevice, Operation,
    Pool, Ring, VolatileDevice, VolatileDisk,
};
use floe_testkit::faults::{FaultDevice, FaultPlan};
use proptest::prelude::*;

/// A size that ends inside a sector.
pub(crate) const SIZE: u64 = 40 * SECTOR as u64 + 1536;

#[derive(Debug, Clone)]
pub(crate) enum Step {
    Read { sector: u64, sectors: u64 },
    Write { sector: u64, sectors: u64, byte: u8, durable: bool },
    Zero { sector: u64, sectors: u64, may_unmap: bool },
    Flush,
}

pub(crate) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let range =
        || (0u64..41, 1u64..12).prop_map(|(sector, sectors)| (sector, sectors.min(41 - sector)));
    let step = prop_oneof![
        4 => range().prop_map(|(sector, sectors)| Step::Read { sector, sectors }),
        4 => (range(), any::<u8>(), any::<bool>())
            .prop_map(|((sector, sectors), byte, durable)| {
                Step::Write { sector, sectors, byte, durable }
            }),
        1 => (range(), any::<bool>())
            .prop_map(|((sector, sectors), may_unmap)| Step::Zero { sector, sectors, may_unmap }),
        1 => Just(Step::Flush),
    ];
    proptest::collection::vec(step, 1..60)
}

/// Bytes that differ from place to place, so that a misplaced copy shows.
fn pattern(byte: u8, offset: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| byte.wrapping_add(((offset + i) / 512) as u8)).collect()
}

/// Runs the steps one by one. Ranges are rounded up to whole sectors on even steps, and end at the
/// device's end on odd ones.
pub(crate) fn check(ring: &Ring, pool: &Pool, device: &mut dyn Device, steps: &[Step]) {
    let mut model = vec![0u8; SIZE as usize];
    for (number, step) in steps.iter().enumerate() {
        let extent = |sector: u64, sectors: u64| {
            let (start, len) = (sector * SECTOR as u64, sectors * SECTOR as u64);
            let real = len.min(SIZE - start);
            (start, if number % 2 == 0 { len } else { real } as usize, real as usize)
        };
        match *step {
            Step::Read { sector, sectors } => {
                let (start, len, real) = extent(sector, sectors);
                let bytes = crate::common::read(ring, pool, device, start, len).unwrap();
                assert_eq!(&bytes[..real], &model[start as usize..][..real], "step {number}");
                assert!(bytes[real..].iter().all(|&byte| byte == 0), "past the end reads as zeros");
            }
            Step::Write { sector, sectors, byte, durable } => {
                let (start, len, real) = extent(sector, sectors);
                let bytes = pattern(byte, start, len);
                model[start as usize..][..real].copy_from_slice(&bytes[..real]);
                let from = crate::common::slice(pool, &bytes);
                crate::common::run(ring, device, start, Action::Write { from, durable }).unwrap();
            }
            Step::Zero { sector, sectors, may_unmap } => {
                let (start, len, real) = extent(sector, sectors);
                model[start as usize..][..real].fill(0);
                crate::common::run(
                    ring,
                    device,
                    start,
                    Action::Zero { len: len as u64, may_unmap, fast: false },
                )
                .unwrap();
            }
            Step::Flush => crate::common::run(ring, device, 0, Action::Flush).unwrap(),
        }
    }
}

fn file(ring: &Ring, pool: &Pool, directory: &tempfile::TempDir, direct: bool) -> FileDevice {
    let options = FileOptions { size: Some(SIZE), create: true, direct, read_only: false };
    FileDevice::open(ring, pool, directory.path().join("disk"), options).unwrap()
}

fn fast() -> Medium {
    let mut medium = Medium::named("optane").unwrap();
    (medium.read.median_ns, medium.read.p99_ns) = (1000.0, 2000.0);
    (medium.write.median_ns, medium.write.p99_ns) = (1000.0, 2000.0);
    medium
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_direct_file_is_an_array_of_bytes(steps in steps()) {
        let directory = tempfile::tempdir().unwrap();
        let (ring, pool) = thread();
        check(&ring, &pool, &mut file(&ring, &pool, &directory, true), &steps);
    }

    #[test]
    fn a_buffered_file_is_an_array_of_bytes_also_without_a_registered_arena(steps in steps()) {
        let directory = tempfile::tempdir().unwrap();
        let (ring, pool) = (Ring::new(1).unwrap(), Pool::new(0));
        check(&ring, &pool, &mut file(&ring, &pool, &directory, false), &steps);
    }

    #[test]
    fn memory_is_an_array_of_bytes(steps in steps()) {
        let (ring, pool) = thread();
        check(&ring, &pool, &mut MemoryDevice::new(SIZE), &steps);
    }

    #[test]
    fn a_medium_keeps_the_bytes(steps in steps()) {
        let directory = tempfile::tempdir().unwrap();
        let (ring, pool) = thread();
        let inner = file(&ring, &pool, &directory, true);
        check(&ring, &pool, &mut MediumDevice::new(inner, fast(), 1), &steps);
    }

    #[test]
    fn without_faults_a_fault_device_keeps_the_bytes(steps in steps()) {
        let directory = tempfile::tempdir().unwrap();
        let (ring, pool) = thread();
        let file = file(&ring, &pool, &directory, true);
        let (mut device, faults) = FaultDevice::new(file, FaultPlan::none());
        check(&ring, &pool, &mut device, &steps);
        prop_assert_eq!(faults.counts().faults, 0);
    }

    #[test]
    fn a_disk_that_loses_what_is_not_flushed_keeps_the_bytes_until_then(
        steps in steps(), seed: u64,
    ) {
        let (ring, pool) = thread();
        let medium = MemoryDevice::new(SIZE);
        let within = medium.clone();
        let habit = Habit::Restless { at_most: Duration::from_micros(100), seed };
        let disk = VolatileDisk::start(habit, move |_, _| within).unwrap();
        check(&ring, &pool, &mut VolatileDevice::new(medium, disk), &steps);
    }
}

#[test]
fn boxed_devices_work_the_same() {
    let (ring, pool) = thread();
    let mut device: Box<dyn Device> = Box::new(Box::new(MemoryDevice::new(SIZE)));
    assert_eq!(device.size_bytes(), SIZE);
    crate::common::write(&ring, &pool, &mut device, 4096, &[5; SECTOR]).unwrap();
    assert_eq!(crate::common::read(&ring, &pool, &mut device, 4096, SECTOR).unwrap(), [5; SECTOR]);
}

#[test]
fn every_device_refuses_ranges_outside_it_in_words() {
    let directory = tempfile::tempdir().unwrap();
    let (ring, pool) = thread();
    let (faulty, _) = FaultDevice::new(MemoryDevice::new(SIZE), FaultPlan::none());
    let within = MemoryDevice::new(SIZE);
    let disk = VolatileDisk::start(Habit::Lazy, move |_, _| within).unwrap();
    let devices: [Box<dyn Device>; 5] = [
        Box::new(file(&ring, &pool, &directory, true)),
        Box::new(MemoryDevice::new(SIZE)),
        Box::new(MediumDevice::new(MemoryDevice::new(SIZE), fast(), 1)),
        Box::new(faulty),
        Box::new(VolatileDevice::new(MemoryDevice::new(SIZE), disk)),
    ];
    for mut device in devices {
        for (offset, len) in [
            (SIZE.next_multiple_of(4096), SECTOR),
            (40 * 4096, 2 * SECTOR),
            (512, SECTOR),
            (0, 100),
        ] {
            let error = crate::common::read(&ring, &pool, &mut device, offset, len).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
            assert!(
                error.to_string().contains(&format!("read of {len} bytes at {offset}")),
                "{error}"
            );
        }
        assert!(crate::common::read(&ring, &pool, &mut device, 0, 0).unwrap().is_empty());
    }
}

#[test]
fn a_clone_of_a_memory_device_sees_the_same_bytes() {
    let (ring, pool) = thread();
    let watcher = MemoryDevice::new(10 << 30);
    let mut device = watcher.clone();
    crate::common::write(&ring, &pool, &mut device, 9 << 30, &[3; SECTOR]).unwrap();
    let mut bytes = [0; 10];
    watcher.read_at((9 << 30) + 100, &mut bytes);
    assert_eq!(bytes, [3; 10]);
    watcher.write_at((9 << 30) + 100, &[4; 10]);
    assert_eq!(
        crate::common::read(&ring, &pool, &mut device, 9 << 30, SECTOR).unwrap()[99..111],
        [3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 3]
    );
}

#[test]
fn a_discarded_range_of_memory_is_really_zero() {
    let (ring, pool) = thread();
    let mut device = MemoryDevice::new(SIZE);
    device.write_at(0, &[9; SIZE as usize]);
    crate::common::run(&ring, &mut device, 36864, Action::Discard { len: SIZE - 36864 }).unwrap();
    let mut bytes = vec![0; SIZE as usize];
    device.read_at(0, &mut bytes);
    assert!(
        bytes[..36864].iter().all(|&byte| byte == 9)
            && bytes[36864..].iter().all(|&byte| byte == 0)
    );
    let _ = pool;
}

#[test]
fn thousands_of_operations_pass_through_a_ring_of_two_entries() {
    let directory = tempfile::tempdir().unwrap();
    let (ring, pool) = (Ring::new(2).unwrap(), Pool::new(4 << 20));
    let mut device = file(&ring, &pool, &directory, true);
    let count = 3000u64;
    let mut slices = Vec::new();
    for token in 0..count {
        let offset = token % 40 * SECTOR as u64;
        let into = pool.allocate(SECTOR).whole();
        slices.push(into.clone());
        device.submit(Operation { token, offset, action: Action::Read(into) });
    }
    let mut tokens: Vec<u64> = finish(&ring, &mut device, count as usize)
        .into_iter()
        .map(|completion| {
            completion.result.unwrap();
            completion.token
        })
        .collect();
    tokens.sort_unstable();
    assert_eq!(tokens, (0..count).collect::<Vec<_>>());
    assert_eq!(device.in_flight(), 0);
}
