//! A half while nobody but one thread uses it: its header is looked at, or written.

use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use super::layout::{HEAD_BYTES, Label, Seen, Shape, encode, look, slot};
use super::state::Header;
use super::state::Regions;
use super::witness::{Generation, Halves};
use crate::buffer::Pool;
use crate::ring::Ring;
use crate::{Action, Device, Operation};

/// Submissions of a ring for a few operations.
const RING_ENTRIES: u32 = 8;

/// Devices that imitate a medium do not wake the ring.
const LONGEST_WAIT: Duration = Duration::from_millis(1);

/// A place in which a half is or may be.
pub(crate) trait HalfPlace: fmt::Debug + Send + Sync {
    /// Its name for people.
    fn name(&self) -> String;

    /// True for a file that does not exist.
    fn is_absent(&self) -> bool;

    /// Opens the half; with a size a file is made of it.
    ///
    /// # Errors
    /// When it cannot be reached or made.
    fn open(&self, size: Option<u64>) -> io::Result<Box<dyn HalfDevice>>;
}

/// A half that can be reached, of which every thread opens a device.
pub(crate) trait HalfDevice: fmt::Debug + Send + Sync {
    fn size_bytes(&self) -> u64;

    /// # Errors
    /// When it cannot be opened.
    fn open(&self, ring: &Ring, pool: &Pool) -> io::Result<Box<dyn Device>>;
}

/// A half's device, for a thread that waits for each operation.
pub(super) struct Waiting {
    // Before the ring it is on.
    device: Option<Box<dyn Device>>,
    ring: Ring,
    pool: Pool,
    timeout: Duration,
}

impl Waiting {
    pub(super) fn open(source: &dyn HalfDevice, timeout: Duration) -> io::Result<Waiting> {
        let (ring, pool) = (Ring::new(RING_ENTRIES).map_err(io::Error::other)?, Pool::new(0));
        let device = source.open(&ring, &pool)?;
        Ok(Waiting { device: Some(device), ring, pool, timeout })
    }

    /// Returns the content of its header, and the slot for the next one.
    pub(super) fn look(&mut self) -> io::Result<(Seen, usize)> {
        let into = self.pool.allocate(HEAD_BYTES as usize).whole();
        self.run(0, Action::Read(into.clone()))?;
        let mut head = vec![0; HEAD_BYTES as usize];
        into.copy_to(&mut head);
        Ok(look(&head))
    }

    /// Writes a header, durably.
    pub(super) fn write(&mut self, label: &Label, header: &Header, at: usize) -> io::Result<()> {
        let bytes = encode(label, header);
        let from = self.pool.allocate(bytes.len()).slice(0..bytes.len());
        from.copy_from(&bytes);
        self.run(slot(at), Action::Write { from, durable: true })
    }

    fn run(&mut self, offset: u64, action: Action) -> io::Result<()> {
        let device = self.device.as_mut().ok_or(io::ErrorKind::TimedOut)?;
        device.submit(Operation { token: 0, offset, action });
        let (mut done, until) = (Vec::new(), Instant::now() + self.timeout);
        loop {
            device.poll(&mut done);
            match done.pop() {
                Some(completion) => return completion.result,
                None if Instant::now() > until => {
                    // Dropping it would wait for the operation.
                    std::mem::forget(self.device.take());
                    return Err(no_answer(self.timeout));
                }
                None => drop(self.ring.wait(Some(LONGEST_WAIT))?),
            }
        }
    }
}

pub(super) fn no_answer(timeout: Duration) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("it has not answered for {timeout:?}"))
}

/// The headers of a new mirror: before and after the witness knows of it.
pub(super) fn first_headers(shape: Shape, generation: Generation, map: &Regions) -> [Header; 2] {
    debug_assert_eq!(map.count(), shape.regions());
    [(1, Generation::default()), (2, generation)].map(|(sequence, previous)| Header {
        sequence,
        generation,
        previous,
        known: [0; Halves::MAX],
        map: map.clone(),
    })
}
