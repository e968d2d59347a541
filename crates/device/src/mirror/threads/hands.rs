//! The devices of a thread that waits for its operations.

use std::io;
use std::time::{Duration, Instant};

use super::super::half::no_answer;
use super::super::shared::{Core, Opened, Shared};
use crate::buffer::{Pool, Slice};
use crate::ring::Ring;
use crate::{Action, Operation};

const RING_ENTRIES: u32 = 16;

/// Devices that imitate a medium do not wake the ring.
const LONGEST_WAIT: Duration = Duration::from_millis(1);

/// The time between two looks at operations that were given up.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

pub(super) struct Hands<'a> {
    shared: &'a Shared,
    /// `None` until the half is used. Before the ring that they are on.
    devices: Vec<Option<Opened>>,
    /// Devices whose operations were given up, and are under way.
    late: Vec<(usize, Opened)>,
    ring: Option<Ring>,
    pool: Pool,
}

impl<'a> Hands<'a> {
    pub(super) fn new(shared: &'a Shared) -> Hands<'a> {
        let devices = shared.places.iter().map(|_| None).collect();
        // Without a ring every operation fails, and is tried again.
        let ring = Ring::new(RING_ENTRIES).ok();
        Hands { shared, devices, late: Vec::new(), ring, pool: Pool::new(0) }
    }

    pub(super) fn room(&self, bytes: usize) -> Slice {
        self.pool.allocate(bytes).slice(0..bytes)
    }

    pub(super) fn buffer(&self, bytes: &[u8]) -> Slice {
        let slice = self.room(bytes.len());
        slice.copy_from(bytes);
        slice
    }

    /// Runs operations, one at most on each half. Returns those that failed. A half that has not
    /// answered in time fails too, unless it is the last one.
    pub(super) fn run(&mut self, operations: Vec<(usize, u64, Action)>) -> Vec<(usize, io::Error)> {
        let mut failed = Vec::new();
        let mut left = Vec::new();
        for (half, offset, action) in operations {
            match self.device(half) {
                Ok(opened) => {
                    opened.busy += 1;
                    opened.device.submit(Operation { token: 0, offset, action });
                    left.push(half);
                }
                Err(error) => failed.push((half, error)),
            }
        }
        let mut until = Instant::now() + self.shared.pace.timeout;
        let mut done = Vec::new();
        while !left.is_empty() {
            for half in std::mem::take(&mut left) {
                let opened = self.devices[half].as_mut().expect("it has an operation");
                opened.device.poll(&mut done);
                let Some(completion) = done.pop() else {
                    left.push(half);
                    continue;
                };
                opened.busy -= 1;
                failed.extend(completion.result.err().map(|error| (half, error)));
            }
            if Instant::now() > until && !left.is_empty() {
                for half in std::mem::take(&mut left) {
                    let error = no_answer(self.shared.pace.timeout);
                    if self.shared.fail(&mut self.shared.lock(), half, &error) {
                        self.late.extend(self.devices[half].take().map(|opened| (half, opened)));
                        failed.push((half, error));
                    } else {
                        left.push(half);
                    }
                }
                until = Instant::now() + self.shared.pace.timeout;
            }
            if let Some(ring) = self.ring.as_ref().filter(|_| !left.is_empty()) {
                // What the ring does not tell, the next poll does.
                let _ = ring.wait(Some(LONGEST_WAIT));
            }
        }
        failed
    }

    fn device(&mut self, half: usize) -> io::Result<&mut Opened> {
        self.release();
        if self.devices[half].is_none() {
            let ring = self.ring.as_ref().ok_or(io::ErrorKind::OutOfMemory)?;
            self.devices[half] = Some(self.shared.lock().open(half, ring, &self.pool)?);
        }
        Ok(self.devices[half].as_mut().expect("it was opened"))
    }

    /// Returns whether a device is to be closed.
    pub(super) fn has_stale(&self, core: &Core) -> bool {
        let is_stale = |(half, opened): (usize, &Option<Opened>)| {
            opened.as_ref().is_some_and(|opened| core.is_stale(half, opened))
        };
        (0..).zip(&self.devices).any(is_stale)
    }

    /// Returns when to look again at operations that were given up.
    pub(super) fn due(&self) -> Option<Instant> {
        (!self.late.is_empty()).then(|| Instant::now() + LOOK_AGAIN)
    }

    /// Closes devices of halves that have left, where no operation is under way.
    pub(super) fn release(&mut self) {
        let mut done = Vec::new();
        if let Some(ring) = self.ring.as_ref().filter(|_| !self.late.is_empty()) {
            let _ = ring.wait(Some(Duration::ZERO));
        }
        for (_, opened) in &mut self.late {
            opened.device.poll(&mut done);
            opened.busy -= done.drain(..).count();
        }
        let rests = |late: &mut (usize, Opened)| late.1.busy == 0;
        for (half, opened) in self.late.extract_if(.., rests) {
            drop(opened);
            self.shared.lock().closed(half);
        }
        for (half, slot) in self.devices.iter_mut().enumerate() {
            let core = self.shared.lock();
            let stale = slot.take_if(|opened| core.is_stale(half, opened));
            drop(core);
            if stale.is_some() {
                drop(stale);
                self.shared.lock().closed(half);
            }
        }
    }
}

impl Drop for Hands<'_> {
    fn drop(&mut self) {
        for half in 0..self.devices.len() {
            if self.devices[half].take().is_some() {
                self.shared.lock().closed(half);
            }
        }
    }
}
