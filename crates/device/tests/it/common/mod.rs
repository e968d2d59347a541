//! Shared parts of the tests of devices: one ring, and operations carried out one at a time or many
//! at once.

use std::io;
use std::time::Duration;

use floe_device::{Action, Completion, Device, Operation, Pool, Ring, Slice};

pub(crate) const SECTOR: usize = 4096;

/// A ring and a registered pool, as a thread has them.
pub(crate) fn thread() -> (Ring, Pool) {
    let ring = Ring::new(64).expect("the test machine has io_uring");
    let pool = Pool::new(1 << 20);
    let _ = ring.register_pool(&pool);
    (ring, pool)
}

/// Waits until `count` operations are done.
pub(crate) fn finish(ring: &Ring, device: &mut dyn Device, count: usize) -> Vec<Completion> {
    let mut done = Vec::new();
    device.poll(&mut done);
    while done.len() < count {
        match device.next_due() {
            Some(due) => ring.wait_until(Some(due)).unwrap(),
            None => {
                let events = ring.wait(Some(Duration::from_secs(60))).unwrap();
                assert!(events > 0, "{} of {count} operations never finished", count - done.len());
                events
            }
        };
        device.poll(&mut done);
    }
    assert_eq!(done.len(), count, "more completions than operations");
    done
}

/// Carries out one operation.
pub(crate) fn run(
    ring: &Ring,
    device: &mut dyn Device,
    offset: u64,
    action: Action,
) -> io::Result<()> {
    device.submit(Operation { token: 42, offset, action });
    let completion = finish(ring, device, 1).remove(0);
    assert_eq!(completion.token, 42);
    completion.result
}

/// A slice holding `bytes`.
pub(crate) fn slice(pool: &Pool, bytes: &[u8]) -> Slice {
    let slice = pool.allocate(bytes.len()).whole();
    slice.copy_from(bytes);
    slice
}

pub(crate) fn write(
    ring: &Ring,
    pool: &Pool,
    device: &mut dyn Device,
    offset: u64,
    bytes: &[u8],
) -> io::Result<()> {
    run(ring, device, offset, Action::Write { from: slice(pool, bytes), durable: false })
}

pub(crate) fn read(
    ring: &Ring,
    pool: &Pool,
    device: &mut dyn Device,
    offset: u64,
    len: usize,
) -> io::Result<Vec<u8>> {
    let into = slice(pool, &vec![0xEE; len]);
    run(ring, device, offset, Action::Read(into.clone()))?;
    Ok(into.to_vec())
}
