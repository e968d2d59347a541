//! Stripes against a vector of bytes, also while their members fail.

use crate::common::{SECTOR, finish, thread};
use floe_device::{Action, Device, MemoryDevice, Operation, StripeDevice};
use floe_testkit::faults::{FaultDevice, FaultPlan, OperationKind, Rates};
use proptest::prelude::*;

const MEMBERS: usize = 3;
const CHUNK: u64 = 2 * SECTOR as u64;
const SECTORS: usize = 3 * MEMBERS * 2;

#[derive(Debug, Clone)]
enum Step {
    Read,
    Write { byte: u8, durable: bool },
    Zero { may_unmap: bool },
    Discard,
    Flush,
}

fn steps() -> impl Strategy<Value = Vec<(usize, usize, Step)>> {
    let step = prop_oneof![
        4 => Just(Step::Read),
        4 => (any::<u8>(), any::<bool>()).prop_map(|(byte, durable)| Step::Write { byte, durable }),
        1 => any::<bool>().prop_map(|may_unmap| Step::Zero { may_unmap }),
        1 => Just(Step::Discard),
        1 => Just(Step::Flush),
    ];
    let range =
        (0..SECTORS, 0..=SECTORS).prop_map(|(sector, len)| (sector, len.min(SECTORS - sector)));
    proptest::collection::vec(
        (range, step).prop_map(|((sector, len), step)| (sector, len, step)),
        1..40,
    )
}

/// The possible contents of each sector: one value, or after a failed write the old and the new
/// one.
type Sectors = Vec<Vec<u8>>;

/// Submits all operations of a batch before polling; batches are kept apart where ranges overlap.
fn check(plan: impl Fn(u64) -> FaultPlan, failing: bool, steps: &[(usize, usize, Step)]) {
    let (ring, pool) = thread();
    // One member is larger: its surplus does not count.
    let members = (0..MEMBERS as u64).map(|number| {
        FaultDevice::new(MemoryDevice::new(3 * CHUNK + number * SECTOR as u64), plan(number)).0
    });
    let mut device = StripeDevice::new(members.collect(), CHUNK);
    assert_eq!(device.size_bytes(), (SECTORS * SECTOR) as u64);
    let mut model: Sectors = vec![vec![0]; SECTORS];
    for (number, (sector, len, step)) in steps.iter().enumerate() {
        let (offset, bytes) = ((sector * SECTOR) as u64, len * SECTOR);
        let range = *sector..sector + len;
        let tag = |at: usize, byte: u8| byte.wrapping_add(at as u8);
        let into = crate::common::slice(&pool, &vec![0xEE; bytes]);
        let action = match *step {
            Step::Read => Action::Read(into.clone()),
            Step::Write { byte, durable } => {
                let from: Vec<u8> = range.clone().flat_map(|at| [tag(at, byte); SECTOR]).collect();
                Action::Write { from: crate::common::slice(&pool, &from), durable }
            }
            Step::Zero { may_unmap } => Action::Zero { len: bytes as u64, may_unmap, fast: false },
            Step::Discard => Action::Discard { len: bytes as u64 },
            Step::Flush => Action::Flush,
        };
        let result = crate::common::run(&ring, &mut device, offset, action);
        assert!(failing || result.is_ok(), "step {number}: {result:?}");
        let new = |at| match *step {
            Step::Write { byte, .. } => Some(tag(at, byte)),
            Step::Zero { .. } | Step::Discard => Some(0),
            _ => None,
        };
        for at in range.clone() {
            let Some(new) = new(at) else { break };
            match &result {
                Ok(()) => model[at] = vec![new],
                Err(_) => model[at].push(new),
            }
        }
        if matches!(step, Step::Read) && result.is_ok() {
            for (at, found) in range.zip(into.to_vec().chunks(SECTOR)) {
                // Torn writes leave part of a sector.
                assert!(
                    found.iter().all(|byte| model[at].contains(byte)),
                    "step {number}, sector {at}"
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_stripe_is_an_array_of_bytes(steps in steps()) {
        check(|_| FaultPlan::none(), false, &steps);
    }

    #[test]
    fn an_error_of_any_part_is_the_operations_error_and_nothing_else_is_touched(
        steps in steps(), seed: u64,
    ) {
        let rates = Rates { fail: 0.05, delay: 0.3, tear: 0.05, drop: 0.0 };
        check(|number| FaultPlan::seeded(seed ^ number, rates), true, &steps);
    }
}

#[test]
fn many_operations_at_once_end_once_each_with_their_own_result() {
    let (ring, pool) = thread();
    let mut faults = Vec::new();
    let members = (0..MEMBERS).map(|_| {
        let rates = Rates { delay: 0.5, ..Rates::default() };
        let (device, handle) =
            FaultDevice::new(MemoryDevice::new(3 * CHUNK), FaultPlan::seeded(3, rates));
        faults.push(handle);
        device
    });
    let mut device = StripeDevice::new(members.collect(), CHUNK);
    for round in 0..50u64 {
        // Of the chunks read, only those on the failing member fail.
        let failing = (round % MEMBERS as u64) as usize;
        faults[failing].inject(OperationKind::Read, floe_testkit::faults::Fault::Fail);
        let chunks = 3 * MEMBERS as u64;
        for token in 0..chunks {
            let into = crate::common::slice(&pool, &[0xEE; CHUNK as usize]);
            device.submit(Operation { token, offset: token * CHUNK, action: Action::Read(into) });
        }
        let mut ended: Vec<(u64, bool)> = finish(&ring, &mut device, chunks as usize)
            .into_iter()
            .map(|completion| (completion.token, completion.result.is_ok()))
            .collect();
        ended.sort_unstable();
        // The first one on that member.
        let expected: Vec<_> = (0..chunks).map(|token| (token, token != failing as u64)).collect();
        assert_eq!(ended, expected);
    }
}

#[test]
fn a_flush_reaches_every_member_and_fails_with_any() {
    let (ring, _) = thread();
    for failing in 0..MEMBERS {
        let (members, faults): (Vec<_>, Vec<_>) = (0..MEMBERS)
            .map(|_| FaultDevice::new(MemoryDevice::new(CHUNK), FaultPlan::none()))
            .unzip();
        let mut device = StripeDevice::new(members, CHUNK);
        crate::common::run(&ring, &mut device, 0, Action::Flush).unwrap();
        faults[failing].inject(OperationKind::Flush, floe_testkit::faults::Fault::Fail);
        assert!(crate::common::run(&ring, &mut device, 0, Action::Flush).is_err());
        assert!(faults.iter().all(|faults| faults.counts().flushes == 2));
    }
}
