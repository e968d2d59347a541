//! The effect of a fault device on operations, and the data that survives a power cut.

use crate::common::{self, SECTOR, finish, thread};
use floe_device::{
    Action, Completion, Device, FileDevice, FileOptions, MemoryDevice, Operation, Pool, Ring,
};
use floe_testkit::faults::{
    AfterTear, Fault, FaultDevice, FaultPlan, Faults, OperationKind, Rates,
};
use proptest::prelude::*;

const SIZE: u64 = 16 * SECTOR as u64;

struct Bench {
    ring: Ring,
    pool: Pool,
    medium: MemoryDevice,
    device: FaultDevice<MemoryDevice>,
    faults: Faults,
}

impl Bench {
    fn new(plan: FaultPlan) -> Bench {
        let (ring, pool) = thread();
        let medium = MemoryDevice::new(SIZE);
        let (device, faults) = FaultDevice::new(medium.clone(), plan);
        Bench { ring, pool, medium, device, faults }
    }

    fn write(&mut self, sector: u64, byte: u8, durable: bool) -> bool {
        let from = common::slice(&self.pool, &[byte; SECTOR]);
        common::run(&self.ring, &mut self.device, sector * 4096, Action::Write { from, durable })
            .is_ok()
    }

    fn read(&mut self, sector: u64) -> Option<Vec<u8>> {
        common::read(&self.ring, &self.pool, &mut self.device, sector * 4096, SECTOR).ok()
    }

    fn flush(&mut self) -> bool {
        common::run(&self.ring, &mut self.device, 0, Action::Flush).is_ok()
    }

    fn stored(&self, sector: u64) -> Vec<u8> {
        let mut bytes = vec![0; SECTOR];
        self.medium.read_at(sector * 4096, &mut bytes);
        bytes
    }
}

/// The bytes of a sector whose first `units` units are `byte` and the others `rest`.
fn torn(units: usize, byte: u8, rest: u8) -> Vec<u8> {
    let mut bytes = vec![rest; SECTOR];
    bytes[..units * 512].fill(byte);
    bytes
}

#[test]
fn the_operations_named_in_the_plan_fail_and_no_others() {
    let plan = FaultPlan::none()
        .on(OperationKind::Write, 1, Fault::Fail)
        .on(OperationKind::Read, 0, Fault::Fail)
        .on(OperationKind::Flush, 1, Fault::Fail);
    let mut bench = Bench::new(plan);
    assert_eq!([1, 2, 3].map(|byte| bench.write(0, byte, false)), [true, false, true]);
    assert_eq!(bench.read(0), None);
    assert_eq!(bench.read(0), Some(vec![3; SECTOR]));
    assert_eq!([bench.flush(), bench.flush(), bench.flush()], [true, false, true]);
    let counts = bench.faults.counts();
    assert_eq!((counts.reads, counts.writes, counts.flushes, counts.faults), (2, 3, 3, 3));
}

#[test]
fn a_power_cut_loses_what_was_not_flushed_and_nothing_else() {
    let mut bench = Bench::new(FaultPlan::none());
    assert!(bench.write(0, 1, false));
    assert!(bench.flush());
    assert!(bench.write(0, 2, false));
    assert!(bench.write(1, 3, true));
    assert!(bench.write(2, 4, false));
    assert_eq!(bench.read(0), Some(vec![2; SECTOR]));
    bench.faults.power_cut();
    assert!(!bench.write(3, 5, false) && bench.read(0).is_none() && !bench.flush());
    bench.faults.power_on();
    assert_eq!(bench.read(0), Some(vec![1; SECTOR]));
    assert_eq!(bench.read(1), Some(vec![3; SECTOR]));
    assert_eq!(bench.read(2), Some(vec![0; SECTOR]));
    assert_eq!(bench.read(3), Some(vec![0; SECTOR]));
}

#[test]
fn a_durable_write_does_not_carry_its_neighbours_along() {
    let mut bench = Bench::new(FaultPlan::none());
    assert!(bench.write(0, 1, false) && bench.write(1, 2, true));
    assert_eq!((bench.stored(0), bench.stored(1)), (vec![0; SECTOR], vec![2; SECTOR]));
}

#[test]
fn operations_in_flight_at_a_power_cut_fail() {
    let mut bench =
        Bench::new(FaultPlan::none().on(OperationKind::Write, 0, Fault::Delay { polls: 5 }));
    let from = common::slice(&bench.pool, &[1; SECTOR]);
    bench.device.submit(Operation {
        token: 1,
        offset: 0,
        action: Action::Write { from, durable: false },
    });
    bench.device.submit(Operation {
        token: 2,
        offset: 0,
        action: Action::Read(common::slice(&bench.pool, &[0; SECTOR])),
    });
    bench.device.submit(Operation { token: 3, offset: 0, action: Action::Flush });
    bench.faults.power_cut();
    bench.faults.power_on();
    let done = finish(&bench.ring, &mut bench.device, 3);
    assert!(done.iter().all(|completion| completion.result.is_err()), "{done:?}");
}

#[test]
fn a_zeroing_is_lost_like_a_write() {
    let mut bench = Bench::new(FaultPlan::none());
    assert!(bench.write(0, 1, true));
    let zero = Action::Zero { len: 4096, may_unmap: true, fast: false };
    common::run(&bench.ring, &mut bench.device, 0, zero).unwrap();
    assert_eq!(bench.read(0), Some(vec![0; SECTOR]));
    bench.faults.power_cut();
    bench.faults.power_on();
    assert_eq!(bench.read(0), Some(vec![1; SECTOR]));
}

#[test]
fn a_torn_write_stores_its_first_units() {
    let tear = Fault::Tear { units: 3, then: AfterTear::Error };
    let mut bench = Bench::new(FaultPlan::none().on(OperationKind::Write, 1, tear));
    assert!(bench.write(0, 1, true));
    assert!(!bench.write(0, 2, false));
    assert_eq!(bench.read(0), Some(torn(3, 2, 1)));
    assert_eq!(bench.stored(0), vec![1; SECTOR]);
    assert!(bench.flush());
    assert_eq!(bench.stored(0), torn(3, 2, 1));
}

#[test]
fn a_write_torn_by_the_power_cut_leaves_its_part_on_the_medium() {
    let tear = Fault::Tear { units: 3, then: AfterTear::PowerCut };
    let mut bench = Bench::new(FaultPlan::none().on(OperationKind::Write, 2, tear));
    assert!(bench.write(0, 1, true) && bench.write(1, 9, false));
    assert!(!bench.write(0, 2, false));
    assert!(bench.faults.is_off() && !bench.write(0, 3, false));
    bench.faults.power_on();
    assert_eq!(bench.read(0), Some(torn(3, 2, 1)));
    assert_eq!(bench.read(1), Some(vec![0; SECTOR]));
    assert_eq!(bench.faults.counts().power_cuts, 1);
}

#[test]
fn a_dropped_write_succeeds_and_leaves_the_old_bytes() {
    let mut bench = Bench::new(FaultPlan::none().on(OperationKind::Write, 1, Fault::Drop));
    assert!(bench.write(0, 1, false) && bench.write(0, 2, false) && bench.flush());
    assert_eq!(bench.read(0), Some(vec![1; SECTOR]));
}

#[test]
fn a_delayed_operation_is_overtaken() {
    let mut bench =
        Bench::new(FaultPlan::none().on(OperationKind::Write, 0, Fault::Delay { polls: 2 }));
    for token in [1, 2] {
        let from = common::slice(&bench.pool, &[token as u8; SECTOR]);
        let action = Action::Write { from, durable: false };
        bench.device.submit(Operation { token, offset: token * 4096, action });
    }
    let mut polled = || {
        let mut done = Vec::new();
        bench.device.poll(&mut done);
        done.into_iter().map(|completion| completion.token).collect::<Vec<_>>()
    };
    assert_eq!([polled(), polled(), polled()], [vec![2], vec![], vec![1]]);
}

#[test]
fn after_a_ragged_cut_each_unit_is_old_or_new() {
    let mut mixed = 0;
    for seed in 0..10 {
        let mut bench = Bench::new(FaultPlan::none());
        assert!((0..8).all(|sector| bench.write(sector, 1, true)));
        assert!((0..8).all(|sector| bench.write(sector, 2, false)));
        bench.faults.power_cut_keeping(seed);
        while !bench.faults.is_settled() {
            bench.device.poll(&mut Vec::new());
        }
        for sector in 0..8 {
            let bytes = bench.stored(sector);
            for unit in bytes.chunks(512) {
                assert!(unit == [1; 512] || unit == [2; 512]);
            }
            mixed += usize::from(bytes.contains(&1) && bytes.contains(&2));
        }
    }
    assert!(mixed > 60, "only {mixed} of 80 sectors were torn");
}

#[test]
fn the_same_seed_replays_the_same_run() {
    let replay = |seed| {
        let rates = Rates { fail: 0.1, delay: 0.2, tear: 0.1, drop: 0.1 };
        let mut bench = Bench::new(FaultPlan::seeded(seed, rates));
        let mut log: Vec<(u64, bool)> = Vec::new();
        let mut done: Vec<Completion> = Vec::new();
        for token in 0..300 {
            let from = common::slice(&bench.pool, &[token as u8; SECTOR]);
            let action = if token % 20 == 0 {
                Action::Flush
            } else {
                Action::Write { from, durable: token % 7 == 0 }
            };
            bench.device.submit(Operation { token, offset: token * 5 % 16 * 4096, action });
            bench.device.poll(&mut done);
            log.extend(
                done.drain(..).map(|completion| (completion.token, completion.result.is_ok())),
            );
        }
        (log, (0..16).map(|sector| bench.stored(sector)).collect::<Vec<_>>())
    };
    assert_eq!(replay(3), replay(3));
    assert_ne!(replay(3), replay(4));
}

#[derive(Debug, Clone)]
enum Step {
    Write { sector: u64, byte: u8, durable: bool },
    Flush,
    Cut { keep: Option<u64> },
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Operations are submitted many at a time over a real file; after a cut, each sector holds its
    /// last durable content or, with a ragged cut, units of anything written since.
    #[test]
    fn what_a_flush_covered_survives_every_cut(
        steps in proptest::collection::vec(prop_oneof![
            8 => (0u64..16, 1u8.., prop::bool::weighted(0.2))
                .prop_map(|(sector, byte, durable)| Step::Write { sector, byte, durable }),
            2 => Just(Step::Flush),
            1 => proptest::option::of(any::<u64>()).prop_map(|keep| Step::Cut { keep }),
        ], 1..80)
    ) {
        let directory = tempfile::tempdir().unwrap();
        let (ring, pool) = thread();
        let options =
            FileOptions { size: Some(SIZE), create: true, direct: true, read_only: false };
        let file = FileDevice::open(&ring, &pool, directory.path().join("disk"), options).unwrap();
        let (mut device, faults) = FaultDevice::new(file, FaultPlan::none());
        // Per sector: what it may hold after a cut, oldest first; the last entry is the newest
        // write.
        let mut possible: Vec<Vec<u8>> = vec![vec![0]; 16];
        for step in steps {
            match step {
                Step::Write { sector, byte, durable } => {
                    let from = common::slice(&pool, &[byte; SECTOR]);
                    let write = Action::Write { from, durable };
                    common::run(&ring, &mut device, sector * 4096, write).unwrap();
                    if durable {
                        possible[sector as usize].clear();
                    }
                    possible[sector as usize].push(byte);
                }
                Step::Flush => {
                    common::run(&ring, &mut device, 0, Action::Flush).unwrap();
                    for history in &mut possible {
                        history.drain(..history.len() - 1);
                    }
                }
                Step::Cut { keep } => {
                    match keep {
                        Some(seed) => faults.power_cut_keeping(seed),
                        None => faults.power_cut(),
                    }
                    while !faults.is_settled() {
                        device.poll(&mut Vec::new());
                        ring.wait(Some(std::time::Duration::from_millis(1))).unwrap();
                    }
                    faults.power_on();
                    for (sector, history) in possible.iter_mut().enumerate() {
                        let at = sector as u64 * 4096;
                        let bytes = common::read(&ring, &pool, &mut device, at, SECTOR).unwrap();
                        match keep {
                            None => prop_assert_eq!(&bytes, &vec![history[0]; SECTOR]),
                            Some(_) => {
                                prop_assert!(bytes.iter().all(|byte| history.contains(byte)));
                            }
                        }
                        // Start over from one content, so that the next cut has something to
                        // compare with.
                        let from = common::slice(&pool, &[history[0]; SECTOR]);
                        let rewrite = Action::Write { from, durable: true };
                        common::run(&ring, &mut device, at, rewrite).unwrap();
                        history.truncate(1);
                    }
                }
            }
            for (sector, history) in possible.iter().enumerate().take(2) {
                let at = sector as u64 * 4096;
                let bytes = common::read(&ring, &pool, &mut device, at, SECTOR).unwrap();
                prop_assert_eq!(&bytes, &vec![*history.last().unwrap(); SECTOR]);
            }
        }
    }
}

#[test]
fn a_flush_covers_the_writes_before_it_and_not_the_overwrite_after_it() {
    let directory = tempfile::tempdir().unwrap();
    let (ring, pool) = thread();
    let options = FileOptions { size: Some(SIZE), create: true, direct: true, read_only: false };
    let file = FileDevice::open(&ring, &pool, directory.path().join("disk"), options).unwrap();
    let (mut device, faults) = FaultDevice::new(file, FaultPlan::none());
    let write =
        |byte| Action::Write { from: common::slice(&pool, &[byte; SECTOR]), durable: false };
    let early = pool.allocate(SECTOR).whole();
    // All in flight at once: the second flush waits for the first, the overwrites come in between.
    let actions =
        [write(1), Action::Flush, write(2), Action::Read(early.clone()), Action::Flush, write(3)];
    for (token, action) in actions.into_iter().enumerate() {
        device.submit(Operation { token: token as u64, offset: 4096, action });
    }
    let done = finish(&ring, &mut device, 6);
    assert!(done.iter().all(|completion| completion.result.is_ok()));
    assert_eq!(early.to_vec(), [2; SECTOR]);
    assert_eq!(common::read(&ring, &pool, &mut device, 4096, SECTOR).unwrap(), [3; SECTOR]);
    faults.power_cut();
    faults.power_on();
    assert_eq!(common::read(&ring, &pool, &mut device, 4096, SECTOR).unwrap(), [2; SECTOR]);
}
