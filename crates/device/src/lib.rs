//! Block devices behind one trait.
//!
//! A [`Device`] takes [`Operation`]s and gives back [`Completion`]s, in any order, without ever blocking.
//! One thread owns a device; a thread's devices and sockets share one [`Ring`] (io_uring), so that one wait
//! covers them all. Devices that finish by the clock rather than by the ring (a slowed-down medium, a delayed
//! fault) say through [`Device::next_due`] when they want to be polled next.
//!
//! A [`Spec`] says in text which device; it becomes a [`Source`], from which every thread opens a handle of its own.
//!
//! Bytes live in [`Slice`]s of reference-counted [`Buffer`]s cut from a [`Pool`] whose memory is registered with
//! the ring. An operation holds its slice, so the memory outlives the kernel's use of it whatever the caller does.
//! [`Buffer::lend`] lets another thread work on a buffer.
#![allow(unsafe_code)] // io_uring and aligned buffers; each block says why it is sound

mod buffer;
pub mod fault;
mod file;
mod mapping;
pub mod medium;
mod memory;
mod range;
mod ring;
mod socket;
mod source;
mod spec;
mod stripe;

use std::time::{Duration, Instant};

pub use buffer::{Buffer, Lent, Pool, PoolStats, Seed, Slice};
pub use fault::{FaultDevice, FaultPlan, Faults};
pub use file::{FileDevice, FileOptions, FileSource, OpenError};
pub use io_uring;
pub use medium::{Medium, MediumDevice, SharedMedium};
pub use memory::MemoryDevice;
pub use ring::{Event, Owner, RegisterError, Ring, RingError};
pub use socket::{SocketCompletion, SocketOutcome, Sockets};
pub use source::{MEDIUM_SEED, Source};
pub use spec::{Role, Spec, SpecError};
pub use stripe::{CHUNK_BYTES, StripeDevice};

/// The unit in which floe keeps track of what is valid and what is dirty, and the alignment of all device I/O.
pub const SECTOR_BYTES: u64 = 4096;

/// What to do to a range of a device.
#[derive(Debug, Clone)]
pub enum Action {
    /// Fill the slice from the device.
    Read(Slice),
    /// Store the slice on the device; with `durable`, complete only once it would survive a power cut (FUA).
    Write {
        /// The bytes to store.
        from: Slice,
        /// Force unit access.
        durable: bool,
    },
    /// Make the range read as zeros; `may_unmap` allows giving the space back.
    Zero {
        /// The bytes to zero.
        len: u64,
        /// Whether the space may be given back to the file system.
        may_unmap: bool,
    },
    /// The range's content is no longer needed; it may read as zeros or as before.
    Discard {
        /// The bytes to forget.
        len: u64,
    },
    /// Make every write completed before this operation was submitted survive a power cut.
    Flush,
}

/// One operation on one device.
#[derive(Debug, Clone)]
pub struct Operation {
    /// The caller's name for it, returned in the [`Completion`].
    pub token: u64,
    /// First byte on the device; a multiple of [`SECTOR_BYTES`], as are the lengths, except that a range may end at the
    /// device's end.
    pub offset: u64,
    /// What to do.
    pub action: Action,
}

/// The end of an operation.
#[derive(Debug)]
pub struct Completion {
    /// The operation's token.
    pub token: u64,
    /// Success means the whole range was transferred.
    pub result: std::io::Result<()>,
}

/// A block device that never blocks its caller and finishes operations in any order.
pub trait Device {
    /// Size in bytes, a multiple of 512.
    fn size_bytes(&self) -> u64;

    /// Starts an operation. Errors, also bad ranges, arrive as completions.
    fn submit(&mut self, operation: Operation);

    /// Appends what has finished since the last call.
    fn poll(&mut self, done: &mut Vec<Completion>);

    /// Processor time burnt in waiting for the exact moment, by devices that imitate a fast medium.
    fn spun(&self) -> Duration {
        Duration::ZERO
    }

    /// When to call [`Device::poll`] even if the ring reports nothing; `None` when nothing is waiting for the clock.
    fn next_due(&self) -> Option<Instant> {
        None
    }
}

impl<D: Device + ?Sized> Device for Box<D> {
    fn size_bytes(&self) -> u64 {
        (**self).size_bytes()
    }

    fn submit(&mut self, operation: Operation) {
        (**self).submit(operation);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        (**self).poll(done);
    }

    fn spun(&self) -> Duration {
        (**self).spun()
    }

    fn next_due(&self) -> Option<Instant> {
        (**self).next_due()
    }
}
