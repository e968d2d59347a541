//! A file or a block device, through the thread's io_uring.
//!
//! Reads and writes bypass the page cache (O_DIRECT) where the file system allows it, and use the
//! ring's registered arena when their slice lies in it. Transfers the kernel cuts short are
//! continued until the whole range is done. Zeroing and discarding are `fallocate`, with written
//! zeros as the fallback unless that would be too slow.
//!
//! Invariants: an operation's slice is held in `flights` from submission to its last completion, so
//! the kernel never writes to memory that was given back. Dropping the device submits what is
//! queued and waits for it: disk I/O ends by itself, and closing a ring would not wait for the
//! disk. Should waiting fail, the slices are leaked instead.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::time::Instant;

use io_uring::types;

use crate::buffer::{Pool, Slice};
use crate::range::clip;
use crate::ring::{Event, Owner, Ring};
use crate::{Action, Completion, Device, Extent, Operation, check_inside};

mod flight;
mod holes;
mod lock;
mod open;

use flight::{Flight, Progress, Work, not_fast};
pub use open::{FileOptions, FileSource, OpenError};

/// Alignment of memory that direct I/O accepts everywhere.
const DIRECT_ALIGNMENT: usize = 512;

/// A file or block device.
#[derive(Debug)]
pub struct FileDevice {
    ring: Ring,
    owner: Owner,
    pool: Pool,
    source: FileSource,
    size: u64,
    flights: Vec<Option<Flight>>,
    free: Vec<usize>,
    /// Finished without the kernel: refused, or nothing to do.
    early: Vec<Completion>,
    events: Vec<Event>,
}

impl FileDevice {
    /// Opens (or with `options.create` makes) the file at `path`, and locks it against a second
    /// user.
    ///
    /// # Errors
    /// Names the path and what was wrong with it.
    pub fn open(
        ring: &Ring,
        pool: &Pool,
        path: impl AsRef<Path>,
        options: FileOptions,
    ) -> Result<FileDevice, OpenError> {
        Ok(FileDevice::new(ring, pool, &FileSource::prepare(path, &options)?))
    }

    /// One thread's device of a file that is open already.
    pub fn new(ring: &Ring, pool: &Pool, source: &FileSource) -> FileDevice {
        FileDevice {
            ring: ring.clone(),
            owner: ring.owner(),
            pool: pool.clone(),
            source: source.clone(),
            size: source.size_bytes(),
            flights: Vec::new(),
            free: Vec::new(),
            early: Vec::new(),
            events: Vec::new(),
        }
    }

    /// True if I/O bypasses the page cache; false when that was not asked for or the file system
    /// refused.
    pub fn is_direct(&self) -> bool {
        self.source.is_direct()
    }

    /// Operations the kernel has not finished.
    pub fn in_flight(&self) -> usize {
        self.flights.len() - self.free.len()
    }

    /// A slice the kernel accepts in place of `slice`: itself, or an aligned one as long.
    fn aligned(&self, slice: &Slice) -> Option<Slice> {
        let askew = self.is_direct() && !(slice.as_ptr() as usize).is_multiple_of(DIRECT_ALIGNMENT);
        askew.then(|| self.pool.allocate(slice.len()).whole())
    }

    fn begin(&mut self, operation: Operation) -> io::Result<()> {
        let Operation { token, offset, .. } = operation;
        let left = clip(&operation, self.size)?;
        let work = match operation.action {
            Action::Flush => Work::Flush,
            Action::Read(into) => {
                into.slice(left as usize..into.len()).fill_zero();
                let wanted = into.slice(0..left as usize);
                match self.aligned(&wanted) {
                    Some(bounce) => Work::Read { into: bounce, target: Some(wanted) },
                    None => Work::Read { into: wanted, target: None },
                }
            }
            Action::Write { from, durable } => {
                let from = from.slice(0..left as usize);
                let bounce = self.aligned(&from).inspect(|bounce| Slice::copy(&from, bounce));
                Work::Write { from: bounce.unwrap_or(from), durable }
            }
            // On a block device the kernel would write zeros by itself where it may not unmap.
            Action::Zero { may_unmap: false, fast: true, .. } if self.source.is_block_device() => {
                return Err(not_fast());
            }
            Action::Zero { may_unmap, fast, .. } => Work::Zero { may_unmap, fast },
            Action::Discard { .. } => Work::Discard,
        };
        if left == 0 && !matches!(work, Work::Flush) {
            self.early.push(Completion { token, result: Ok(()) });
            return Ok(());
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.flights.push(None);
            self.flights.len() - 1
        });
        self.flights[slot] = Some(Flight { token, offset, left, work });
        self.launch(slot).inspect_err(|_| self.land(slot))
    }

    /// Gives the part of a flight that is still to do to the ring.
    fn launch(&mut self, slot: usize) -> io::Result<()> {
        let flight = self.flights[slot].as_ref().expect("launched flights exist");
        let fd = types::Fd(self.source.fd());
        let entry = flight.entry(fd, &self.ring);
        // SAFETY: the slices the entry points into stay in `flights`, and the file open, until its
        // completion was taken; `drop` sees to that too.
        unsafe { self.ring.push(self.owner, slot as u64, entry) }
    }

    /// Forgets a flight that no longer concerns the kernel.
    fn land(&mut self, slot: usize) {
        self.flights[slot] = None;
        self.free.push(slot);
    }

    /// The result of a flight: `None` while more of it is to do.
    fn finished(&mut self, slot: usize, result: i32) -> Option<io::Result<()>> {
        let flight = self.flights[slot].as_mut().expect("a completion belongs to a flight");
        match flight.advance(result, &self.pool) {
            Progress::Done(Err(error)) if self.source.is_block_device() => {
                let flight = self.flights[slot].as_ref().expect("a completion belongs to a flight");
                Some(Err(flight.unless_past(error, self.source.size_now())))
            }
            Progress::Done(result) => Some(result),
            Progress::More => match self.launch(slot) {
                Ok(()) => None,
                Err(error) => Some(Err(error)),
            },
        }
    }
}

impl Device for FileDevice {
    fn size_bytes(&self) -> u64 {
        self.size
    }

    fn submit(&mut self, operation: Operation) {
        let token = operation.token;
        if let Err(error) = self.begin(operation) {
            self.early.push(Completion { token, result: Err(error) });
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.early);
        let mut events = std::mem::take(&mut self.events);
        self.ring.take(self.owner, &mut events);
        for (slot, result, _) in events.drain(..) {
            let slot = slot as usize;
            if let Some(result) = self.finished(slot, result) {
                let token = self.flights[slot].as_ref().expect("finished flights exist").token;
                self.land(slot);
                done.push(Completion { token, result });
            }
        }
        self.events = events;
    }

    fn set_size(&mut self, bytes: u64) -> io::Result<()> {
        let there = self.source.size_bytes();
        if bytes == 0 || bytes > there || !bytes.is_multiple_of(512) {
            let message = format!("{bytes} bytes cannot be its size: the file has {there}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        self.size = bytes;
        Ok(())
    }

    fn allocation(&mut self, range: Range<u64>, extents: &mut Vec<Extent>) {
        check_inside(&range, self.size);
        holes::find(self.source.file(), range, extents);
    }

    fn next_due(&self) -> Option<Instant> {
        (!self.early.is_empty()).then(Instant::now)
    }
}

impl Drop for FileDevice {
    fn drop(&mut self) {
        let mut events = Vec::new();
        while self.in_flight() > 0 {
            if self.ring.wait(None).is_err() {
                std::mem::forget(std::mem::take(&mut self.flights));
                return;
            }
            self.ring.take(self.owner, &mut events);
            for (slot, _, _) in events.drain(..) {
                self.land(slot as usize);
            }
        }
        self.ring.retire(self.owner);
    }
}
