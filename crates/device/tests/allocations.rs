//! Requests ask the heap for nothing once everything is warm. Alone in its process, whose
//! allocations it counts.

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "it/common/mod.rs"]
mod common;

use common::SECTOR;
use floe_device::{
    Action, Buffer, Completion, Device, FileDevice, FileOptions, MemoryDevice, Operation,
};
use floe_device::{Pool, StripeDevice};
use floe_testkit::allocations::{Counting, of_this_thread};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Many more than lists double in length after they are warm; a tenth of them is far below one
/// allocation a round.
const ROUNDS: u64 = 100;

/// Counts the heap allocations of a hundred rounds after two.
fn when_warm(mut round: impl FnMut()) -> u64 {
    round();
    round();
    let before = of_this_thread();
    (0..ROUNDS).for_each(|_| round());
    of_this_thread() - before
}

#[test]
fn buffers_of_a_warm_pool_cost_no_allocation_also_when_lent() {
    let pool = Pool::new(4 << 20);
    let mut held: Vec<Buffer> = Vec::with_capacity(200);
    let asked = when_warm(|| {
        for order in 0..5 {
            for _ in 0..40 {
                let buffer = pool.allocate(SECTOR << order);
                held.push(buffer.lend().attach());
                drop(buffer.slice(1..100).slice(3..7).clone());
            }
            held.clear();
        }
    });
    assert!(asked < ROUNDS / 10, "{asked} allocations for {ROUNDS} rounds");
    assert_eq!(pool.stats().fallbacks, 0);
}

fn operate(
    ring: &floe_device::Ring,
    pool: &Pool,
    device: &mut dyn Device,
    done: &mut Vec<Completion>,
) {
    let buffer = pool.allocate(8 * SECTOR);
    for token in 0..8 {
        let (from, into) = (buffer.whole(), buffer.slice(0..SECTOR));
        let action = match token {
            0 => Action::Flush,
            1 | 2 => Action::Zero { len: 8 * SECTOR as u64, may_unmap: true, fast: false },
            3..6 => Action::Write { from, durable: false },
            _ => Action::Read(into),
        };
        device.submit(Operation { token, offset: token * SECTOR as u64, action });
    }
    while done.len() < 8 {
        ring.wait_until(device.next_due()).unwrap();
        device.poll(done);
    }
    assert!(done.drain(..).all(|completion| completion.result.is_ok()));
}

#[test]
fn operations_on_files_and_stripes_cost_no_allocation() {
    let (ring, pool) = common::thread();
    let mut done = Vec::with_capacity(64);
    let members = (0..3).map(|_| MemoryDevice::new(16 * SECTOR as u64)).collect();
    let mut stripe = StripeDevice::new(members, SECTOR as u64);
    assert_eq!(when_warm(|| operate(&ring, &pool, &mut stripe, &mut done)), 0);

    let directory = tempfile::tempdir().unwrap();
    let options = FileOptions { size: Some(1 << 20), create: true, direct: true, read_only: false };
    let mut file = FileDevice::open(&ring, &pool, directory.path().join("disk"), options).unwrap();
    let asked = when_warm(|| operate(&ring, &pool, &mut file, &mut done));
    // A queue of completions grows once more when the kernel finishes more at a time than ever
    // before.
    assert!(asked < ROUNDS / 10, "{asked} allocations for {ROUNDS} rounds");
}
