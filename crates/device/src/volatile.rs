//! A disk with a volatile write cache, imitated above a device that has none: for tests that kill
//! the program.
//!
//! Data written to a file outlives the process that wrote it, so `kill -9` alone loses nothing
//! and shows little. Here a write is answered once it is in memory that all handles of the disk
//! share ([`VolatileDisk`]); a flush brings all of that to the inner device, a durable write brings
//! its own sectors. Whatever is still in memory when the process ends is lost, as in a power cut.
//! As a disk does, it also writes out what it likes when it likes ([`Habit`]), so later writes may
//! survive when earlier ones do not.
//!
//! Zeroing and discarding go through at once. Invariants, for any number of handles on any threads:
//! a read sees every write completed before it was submitted; what a completed flush or durable
//! write covered is in the inner device; an older version of a sector never overtakes a newer one,
//! since one thread writes them all out.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use crate::buffer::Slice;
use crate::range::clip;
use crate::write_cache::Dirty;
use crate::{Action, Completion, Device, Extent, Operation};

mod disk;

pub use disk::{Habit, VolatileDisk};
use disk::{Job, Waiter, What};

/// Unflushed bytes from which on a write waits until some have been written out.
const FULL_BYTES: u64 = 64 << 20;

/// The time between two looks of a handle at what the disk has finished.
const LOOK: Duration = Duration::from_micros(50);

/// One thread's handle of a [`VolatileDisk`], over a handle of the device within.
#[derive(Debug)]
pub struct VolatileDevice<D> {
    inner: D,
    disk: VolatileDisk,
    /// Reads that the inner device is at, by the token it knows them by, with what the cache had of
    /// them.
    reads: HashMap<u64, Read>,
    next_read: u64,
    /// Ended here.
    done: Vec<Completion>,
    /// Ended by the disk, of `asked` that it has not ended yet.
    answers: (Sender<Completion>, Receiver<Completion>),
    asked: usize,
    finished: Vec<Completion>,
}

#[derive(Debug)]
struct Read {
    token: u64,
    into: Slice,
    newer: Vec<Dirty>,
}

impl<D: Device> VolatileDevice<D> {
    /// A handle of `disk`. The inner device must be the one that the disk was started with.
    pub fn new(inner: D, disk: VolatileDisk) -> VolatileDevice<D> {
        VolatileDevice {
            inner,
            disk,
            reads: HashMap::new(),
            next_read: 0,
            done: Vec::new(),
            answers: channel(),
            asked: 0,
            finished: Vec::new(),
        }
    }

    /// Has the disk do something.
    fn ask(&mut self, token: u64, what: What) {
        self.asked += 1;
        self.disk
            .give(Job { what, waiter: Some(Waiter { token, answers: self.answers.0.clone() }) });
    }

    fn begin(&mut self, operation: Operation) -> io::Result<()> {
        let Operation { token, offset, action } = operation;
        let len = clip(&Operation { token, offset, action: action.clone() }, self.size_bytes())?;
        match action {
            Action::Flush => self.ask(token, What::Flush),
            _ if len == 0 => self.done.push(Completion { token, result: Ok(()) }),
            Action::Read(into) => {
                let newer = self.disk.cache().overlapping(offset, len);
                let inside = self.next_read;
                self.next_read += 1;
                self.reads.insert(inside, Read { token, into: into.clone(), newer });
                self.inner.submit(Operation { token: inside, offset, action: Action::Read(into) });
            }
            Action::Write { from, durable } => {
                let mut cache = self.disk.cache();
                cache.write(offset, &from.slice(0..len as usize));
                let is_full = cache.bytes() > FULL_BYTES;
                drop(cache);
                match (durable, is_full) {
                    (true, _) => self.ask(token, What::Store { offset, len }),
                    (false, true) => self.ask(token, What::MakeRoom),
                    (false, false) => self.done.push(Completion { token, result: Ok(()) }),
                }
            }
            Action::Zero { .. } | Action::Discard { .. } => {
                let stale = self.disk.cache().overlapping(offset, len);
                let zeroing = match action {
                    Action::Zero { may_unmap, fast, .. } => Some((may_unmap, fast)),
                    _ => None,
                };
                self.ask(token, What::Zero { offset, len, zeroing, stale });
            }
        }
        Ok(())
    }
}

impl<D: Device> Device for VolatileDevice<D> {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn submit(&mut self, operation: Operation) {
        let token = operation.token;
        if let Err(error) = self.begin(operation) {
            self.done.push(Completion { token, result: Err(error) });
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.done);
        self.inner.poll(&mut self.finished);
        for Completion { token, result } in self.finished.drain(..) {
            let read =
                self.reads.remove(&token).expect("the inner device answers what it was asked");
            read.newer.iter().for_each(|dirty| dirty.patch(&read.into));
            done.push(Completion { token: read.token, result });
        }
        if self.asked > 0 {
            let before = done.len();
            done.extend(self.answers.1.try_iter());
            self.asked -= done.len() - before;
        }
    }

    fn set_size(&mut self, bytes: u64) -> io::Result<()> {
        self.inner.set_size(bytes)?;
        self.disk.give(Job { what: What::Resize { bytes }, waiter: None });
        Ok(())
    }

    fn allocation(&mut self, range: Range<u64>, extents: &mut Vec<Extent>) {
        let bytes = range.end.saturating_sub(range.start);
        if bytes == 0 || self.disk.cache().overlapping(range.start, bytes).is_empty() {
            return self.inner.allocation(range, extents);
        }
        extents.push(Extent::data(bytes));
    }

    fn set_timeout(&mut self, timeout: Duration) {
        self.inner.set_timeout(timeout);
    }

    fn spun(&self) -> Duration {
        self.inner.spun()
    }

    fn next_due(&self) -> Option<Instant> {
        if !self.done.is_empty() {
            return Some(Instant::now());
        }
        let look = (self.asked > 0).then(|| Instant::now() + LOOK);
        look.into_iter().chain(self.inner.next_due()).min()
    }
}
