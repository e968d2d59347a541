//! A disk with a volatile write cache: what its end loses, and what it must not.

use std::collections::HashMap;
use std::time::Duration;

use crate::common::{SECTOR, finish, thread};
use floe_device::{
    Action, Device, Habit, MemoryDevice, Operation, Pool, Ring, Role, Spec, VolatileDevice,
    VolatileDisk,
};
use floe_testkit::faults::{Fault, FaultDevice, FaultPlan, OperationKind};
use proptest::prelude::*;

const SECTORS: u64 = 8;
const SIZE: u64 = SECTORS * SECTOR as u64;

fn restless(seed: u64) -> Habit {
    Habit::Restless { at_most: Duration::from_micros(50), seed }
}

/// Handles of one disk, above a device of which `medium` shows what would survive.
struct Bench {
    ring: Ring,
    pool: Pool,
    medium: MemoryDevice,
    handles: Vec<VolatileDevice<MemoryDevice>>,
}

impl Bench {
    fn new(habit: Habit, size: u64, handles: usize) -> Bench {
        let (ring, pool) = thread();
        let medium = MemoryDevice::new(size);
        let within = medium.clone();
        let disk = VolatileDisk::start(habit, move |_, _| within).unwrap();
        let handle = |_| VolatileDevice::new(medium.clone(), disk.clone());
        Bench { handles: (0..handles).map(handle).collect(), ring, pool, medium }
    }

    fn run(&mut self, handle: usize, sector: u64, action: Action) {
        crate::common::run(&self.ring, &mut self.handles[handle], sector * SECTOR as u64, action)
            .unwrap();
    }

    fn write(&mut self, handle: usize, sector: u64, byte: u8, durable: bool) {
        let from = crate::common::slice(&self.pool, &[byte; SECTOR]);
        self.run(handle, sector, Action::Write { from, durable });
    }

    fn read(&mut self, handle: usize, sector: u64) -> Vec<u8> {
        let offset = sector * SECTOR as u64;
        crate::common::read(&self.ring, &self.pool, &mut self.handles[handle], offset, SECTOR)
            .unwrap()
    }

    /// The medium's content once the disk has ended.
    fn end(self) -> Vec<u8> {
        let Bench { medium, handles, .. } = self;
        drop(handles);
        let mut bytes = vec![0; medium.size_bytes() as usize];
        medium.read_at(0, &mut bytes);
        bytes
    }
}

#[test]
fn what_was_not_flushed_is_lost_and_the_rest_is_not() {
    let mut bench = Bench::new(Habit::Lazy, SIZE, 2);
    bench.write(0, 0, 1, false);
    bench.run(1, 0, Action::Flush);
    bench.write(1, 0, 2, false);
    bench.write(0, 1, 3, true);
    bench.write(0, 2, 4, false);
    bench.run(0, 3, Action::Zero { len: 4096, may_unmap: true, fast: false });
    assert_eq!([0, 1, 2].map(|sector| bench.read(1, sector)[77]), [2, 3, 4]);
    let survived = bench.end();
    assert_eq!([0, 1, 2].map(|sector| survived[sector * SECTOR + 77]), [1, 3, 0]);
}

#[test]
fn zeroes_win_over_what_was_written_before_and_not_over_what_is_written_after() {
    for action in
        [Action::Zero { len: SIZE, may_unmap: false, fast: false }, Action::Discard { len: SIZE }]
    {
        let mut bench = Bench::new(Habit::Lazy, SIZE, 2);
        bench.write(0, 0, 1, false);
        bench.write(0, 1, 2, false);
        bench.run(1, 0, action);
        bench.write(1, 1, 3, false);
        assert_eq!([0, 1].map(|sector| bench.read(0, sector)[0]), [0, 3]);
        bench.run(0, 0, Action::Flush);
        assert_eq!([0, 1].map(|sector| bench.read(1, sector)[0]), [0, 3]);
        let survived = bench.end();
        assert_eq!([0, 1].map(|sector| survived[sector * SECTOR]), [0, 3]);
    }
}

#[test]
fn a_disk_writes_out_by_itself_what_it_has_no_room_for() {
    const WRITTEN: u64 = 20_000;
    let mut bench = Bench::new(Habit::Lazy, WRITTEN * SECTOR as u64, 1);
    for sector in 0..WRITTEN {
        bench.write(0, sector, 1 + (sector % 255) as u8, false);
    }
    assert_eq!(bench.read(0, WRITTEN - 1)[0], 1 + ((WRITTEN - 1) % 255) as u8);
    let survived = bench.end();
    let kept = survived.chunks(SECTOR).filter(|sector| sector[0] != 0).count() as u64;
    assert_eq!(kept, (64 << 20) / SECTOR as u64 + 1, "all that was there when it was full");
}

#[test]
fn what_could_not_be_written_out_is_an_error_for_who_flushes_and_is_still_there() {
    let (ring, pool) = thread();
    let medium = MemoryDevice::new(SIZE);
    let within = medium.clone();
    let disk = VolatileDisk::start(Habit::Lazy, move |_, _| {
        FaultDevice::new(within, FaultPlan::none().on(OperationKind::Write, 0, Fault::Fail)).0
    });
    let mut device = VolatileDevice::new(medium.clone(), disk.unwrap());
    let stored = || {
        let mut byte = [0];
        medium.read_at(SECTOR as u64, &mut byte);
        byte[0]
    };
    crate::common::write(&ring, &pool, &mut device, 4096, &[5; SECTOR]).unwrap();
    let error = crate::common::run(&ring, &mut device, 0, Action::Flush).unwrap_err();
    assert_eq!(error.to_string(), std::io::Error::from_raw_os_error(libc::EIO).to_string());
    assert_eq!(crate::common::read(&ring, &pool, &mut device, 4096, SECTOR).unwrap()[9], 5);
    assert_eq!(stored(), 0);
    crate::common::run(&ring, &mut device, 0, Action::Flush).unwrap();
    assert_eq!(stored(), 5);
}

#[derive(Debug, Clone)]
enum Step {
    Read { sector: u64 },
    Write { sector: u64, sectors: u64, durable: bool },
    Zero { sector: u64, sectors: u64 },
    Flush,
}

fn steps() -> impl Strategy<Value = Vec<(usize, Step)>> {
    let range = || {
        (0..SECTORS, 1u64..4).prop_map(|(sector, sectors)| (sector, sectors.min(SECTORS - sector)))
    };
    let step = prop_oneof![
        3 => (0..SECTORS).prop_map(|sector| Step::Read { sector }),
        6 => (range(), prop::bool::weighted(0.2))
            .prop_map(|((sector, sectors), durable)| Step::Write { sector, sectors, durable }),
        1 => range().prop_map(|(sector, sectors)| Step::Zero { sector, sectors }),
        1 => Just(Step::Flush),
    ];
    proptest::collection::vec((0..2usize, step), 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Each step writes its own number, so that a sector tells which version it holds.
    #[test]
    fn a_sector_holds_what_was_flushed_last_or_something_written_since(
        steps in steps(), seed: u64, lazy: bool,
    ) {
        let mut bench = Bench::new(if lazy { Habit::Lazy } else { restless(seed) }, SIZE, 2);
        // By sector: the versions it may hold at the end, of which the last is the one to be read.
        let mut versions = vec![vec![0u8]; SECTORS as usize];
        for (version, (handle, step)) in (1..).zip(steps) {
            match step {
                Step::Read { sector } => {
                    let newest = *versions[sector as usize].last().unwrap();
                    prop_assert_eq!(bench.read(handle, sector), vec![newest; SECTOR]);
                }
                Step::Write { sector, sectors, durable } => {
                    let bytes = vec![version; sectors as usize * SECTOR];
                    let from = crate::common::slice(&bench.pool, &bytes);
                    bench.run(handle, sector, Action::Write { from, durable });
                    for versions in &mut versions[sector as usize..][..sectors as usize] {
                        versions.push(version);
                        if durable {
                            *versions = vec![version];
                        }
                    }
                }
                Step::Zero { sector, sectors } => {
                    let len = sectors * SECTOR as u64;
                    bench.run(handle, sector, Action::Zero { len, may_unmap: true, fast: false });
                    versions[sector as usize..][..sectors as usize].fill(vec![0]);
                }
                Step::Flush => {
                    bench.run(handle, 0, Action::Flush);
                    for versions in &mut versions {
                        versions.drain(..versions.len() - 1);
                    }
                }
            }
        }
        let survived = bench.end();
        for (sector, (bytes, versions)) in survived.chunks(SECTOR).zip(&versions).enumerate() {
            prop_assert!(bytes.iter().all(|byte| *byte == bytes[0]), "sector {} is torn", sector);
            let may = if lazy { &versions[..1] } else { &versions[..] };
            let (found, at) = (bytes[0], sector);
            prop_assert!(may.contains(&found), "sector {at} holds {found}, not one of {may:?}");
        }
    }
}

/// Threads that write, each its own sectors, flush now and then, and many operations at a time. A
/// sector's version is its first byte.
#[test]
fn a_flush_covers_what_other_threads_wrote_and_no_older_version_comes_after_a_newer() {
    const ROUNDS: u8 = 200;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk");
    let text = format!("file:{},size=1MiB,write-cache=volatile", path.display());
    let source = text.parse::<Spec>().unwrap().prepare(Role::Backing { read_only: false }).unwrap();
    let threads: Vec<_> = (0..3u64)
        .map(|number| {
            let source = source.clone();
            std::thread::spawn(move || {
                let (ring, pool) = thread();
                let mut device = source.open(&ring, &pool).unwrap();
                let sectors = number * 8..(number + 1) * 8;
                for round in 1..=ROUNDS {
                    let from = crate::common::slice(&pool, &[round; SECTOR]);
                    for sector in sectors.clone() {
                        let durable = (u64::from(round) + sector).is_multiple_of(13);
                        let action = Action::Write { from: from.clone(), durable };
                        device.submit(Operation { token: sector, offset: sector * 4096, action });
                    }
                    finish(&ring, &mut device, 8);
                    if (u64::from(round) + number).is_multiple_of(10) {
                        crate::common::run(&ring, &mut device, 0, Action::Flush).unwrap();
                    }
                    for sector in sectors.clone() {
                        let bytes =
                            crate::common::read(&ring, &pool, &mut device, sector * 4096, SECTOR)
                                .unwrap();
                        assert_eq!(bytes, [round; SECTOR]);
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let (ring, pool) = thread();
    let mut device = source.open(&ring, &pool).unwrap();
    crate::common::run(&ring, &mut device, 0, Action::Flush).unwrap();
    drop((device, source));
    let bytes = std::fs::read(path).unwrap();
    let held: HashMap<u8, usize> =
        bytes[..24 * SECTOR].iter().fold(HashMap::new(), |mut held, byte| {
            *held.entry(*byte).or_default() += 1;
            held
        });
    assert_eq!(held, HashMap::from([(ROUNDS, 24 * SECTOR)]));
}
