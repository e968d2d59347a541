//! Block devices behind one trait.
//!
//! A [`Device`] takes [`Operation`]s and gives back [`Completion`]s, in any order, without ever
//! blocking. One thread owns a device; a thread's devices and sockets share one [`Ring`]
//! (io_uring), so that one wait covers them all. Devices that finish by the clock rather than by
//! the ring (a slowed-down medium, a delayed fault) say through [`Device::next_due`] when they want
//! to be polled next.
//!
//! A [`Spec`] says in text which device; it becomes a [`Source`], from which every thread opens a
//! handle of its own.
//!
//! Bytes live in [`Slice`]s of reference-counted [`Buffer`]s cut from a [`Pool`] whose memory is
//! registered with the ring. An operation holds its slice, so the memory outlives the kernel's use
//! of it whatever the caller does. [`Buffer::lend`] lets another thread work on a buffer.
#![allow(unsafe_code)] // io_uring and aligned buffers; each block says why it is sound

mod buffer;
pub mod fault;
mod file;
mod identity;
mod judge;
mod mailbox;
mod mapping;
pub mod medium;
mod memory;
mod memory_limit;
mod mirror;
mod nbd;
mod patience;
mod place;
mod private;
mod process;
mod range;
mod rbd;
mod ring;
mod socket;
mod source;
mod spec;
mod stripe;
mod volatile;

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use buffer::{Buffer, Lent, Pool, PoolStats, Seed, Slice};
pub use fault::{FaultDevice, FaultPlan, Faults};
pub use file::{FileDevice, FileOptions, FileSource, OpenError};
pub use identity::{Fact, FactKind, Identity, Likeness};
pub use io_uring;
pub use judge::{Damage, Judge};
pub use medium::{Medium, MediumDevice, SharedMedium};
pub use memory::MemoryDevice;
pub use memory_limit::MemoryLimit;
pub use mirror::{
    FolderWitness, Generation, HalfStatus, Halves, ImageWitness, KnownWitness, MirrorDevice,
    MirrorRefusal, MirrorStatus, MirrorWatch, NoWitness, RaiseError, Witness,
};
pub use nbd::{NbdDevice, NbdError, NbdName, NbdSocket, NbdSource};
pub use patience::patiently;
pub use place::Place;
pub use private::{create_private, create_private_folder};
pub use process::{end_process, kernel_release};
pub use rbd::{RbdDevice, RbdError, RbdName, RbdSource, RbdWatch};
pub use ring::{Event, Owner, RegisterError, Ring, RingError};
pub use socket::{SocketCompletion, SocketOutcome, Sockets};
pub use source::{MEDIUM_SEED, Source};
pub use spec::{Role, Spec, SpecError, parse_bytes};
pub use stripe::{CHUNK_BYTES, StripeDevice};
pub use volatile::{Habit, VolatileDevice, VolatileDisk};

/// The unit in which floe keeps track of what is valid and what is dirty, and the alignment of all
/// device I/O.
pub const SECTOR_BYTES: u64 = 4096;

/// An action on a range of a device.
#[derive(Debug, Clone)]
pub enum Action {
    /// Fill the slice from the device.
    Read(Slice),
    /// Store the slice on the device; with `durable`, complete only once it would survive a power
    /// cut (FUA).
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
        /// True if the space may be given back to the file system.
        may_unmap: bool,
        /// Fail with [`Unsupported`](std::io::ErrorKind::Unsupported) rather than write zeros; part
        /// of the range may have been zeroed all the same.
        fast: bool,
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
    /// First byte on the device; a multiple of [`SECTOR_BYTES`], as are the lengths, except that a
    /// range may end at the device's end.
    pub offset: u64,
    /// The action.
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

/// A run of a device's bytes of one kind, as far as the device knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Its length.
    pub bytes: u64,
    /// True if the bytes take up space.
    pub allocated: bool,
    /// True if the bytes are known to read as zeros.
    pub zero: bool,
}

impl Extent {
    /// Bytes that may hold anything.
    pub fn data(bytes: u64) -> Extent {
        Extent { bytes, allocated: true, zero: false }
    }

    /// Bytes that were never written, or given back.
    pub fn hole(bytes: u64) -> Extent {
        Extent { bytes, allocated: false, zero: true }
    }
}

/// A block device that never blocks its caller and finishes operations in any order.
pub trait Device {
    /// Size in bytes, a multiple of 512.
    fn size_bytes(&self) -> u64;

    /// Starts an operation. Errors, also bad ranges, arrive as completions.
    fn submit(&mut self, operation: Operation);

    /// Appends what has finished since the last call.
    fn poll(&mut self, done: &mut Vec<Completion>);

    /// Returns the copies of its bytes that can be read one by one now: the halves of a mirror, by
    /// their numbers. A device that has one copy returns none.
    fn copies(&self) -> Halves {
        Halves::NONE
    }

    /// Starts a read of one of its [copies](Device::copies). It fails where that copy lacks a part
    /// of the range.
    fn read_copy(&mut self, _copy: usize, operation: Operation) {
        self.submit(operation);
    }

    /// Returns whether copies may differ in a range without any damage: a crash came while it was
    /// written.
    fn may_differ(&self, _range: Range<u64>) -> bool {
        false
    }

    /// Starts a write, to all copies, of bytes that were found wrong on some of them.
    fn mend(&mut self, _wrong: Halves, operation: Operation) {
        self.submit(operation);
    }

    /// Takes a judge of what is stored here; `None` where nothing can judge it. Until then a mirror
    /// copies nothing from one half to another, unless a reader waits for that.
    fn set_judge(&mut self, _judge: Option<Arc<dyn Judge>>) {}

    /// Takes a new size, which [`Source::refresh`] found. Operations that reach outside it are
    /// refused from then on; those in flight are left alone.
    ///
    /// # Errors
    /// When this device's size is fixed or it does not have so many bytes; the size stays as it
    /// was.
    fn set_size(&mut self, bytes: u64) -> std::io::Result<()> {
        Err(fixed_size(bytes))
    }

    /// Appends what the range consists of, from its start on and in order: at least one extent
    /// unless the range is empty, but not always up to its end. Writes in flight may or may not
    /// show. May look into the file system, but reads no data.
    ///
    /// # Panics
    /// When the range reaches outside the device.
    fn allocation(&mut self, range: Range<u64>, extents: &mut Vec<Extent>) {
        check_inside(&range, self.size_bytes());
        extents.extend((!range.is_empty()).then(|| Extent::data(range.end - range.start)));
    }

    /// From now on, operations fail that have had no answer for so long from whoever this device
    /// depends on: another machine, a cluster. Those in flight have so long from now. A shorter
    /// timeout that the device has already stays. Devices of this machine do nothing: the kernel
    /// answers.
    fn set_timeout(&mut self, _timeout: Duration) {}

    /// Processor time burnt in waiting for the exact moment, by devices that imitate a fast medium.
    fn spun(&self) -> Duration {
        Duration::ZERO
    }

    /// When to call [`Device::poll`] even if the ring reports nothing; `None` when nothing is
    /// waiting for the clock.
    fn next_due(&self) -> Option<Instant> {
        None
    }
}

fn fixed_size(bytes: u64) -> std::io::Error {
    let message = format!("the size of this device is fixed; it cannot become {bytes} bytes");
    std::io::Error::new(std::io::ErrorKind::Unsupported, message)
}

fn check_inside(range: &Range<u64>, size: u64) {
    assert!(range.start <= range.end && range.end <= size, "{range:?} of a device of {size} bytes");
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

    fn copies(&self) -> Halves {
        (**self).copies()
    }

    fn read_copy(&mut self, copy: usize, operation: Operation) {
        (**self).read_copy(copy, operation);
    }

    fn may_differ(&self, range: Range<u64>) -> bool {
        (**self).may_differ(range)
    }

    fn mend(&mut self, wrong: Halves, operation: Operation) {
        (**self).mend(wrong, operation);
    }

    fn set_judge(&mut self, judge: Option<Arc<dyn Judge>>) {
        (**self).set_judge(judge);
    }

    fn set_size(&mut self, bytes: u64) -> std::io::Result<()> {
        (**self).set_size(bytes)
    }

    fn allocation(&mut self, range: Range<u64>, extents: &mut Vec<Extent>) {
        (**self).allocation(range, extents);
    }

    fn set_timeout(&mut self, timeout: Duration) {
        (**self).set_timeout(timeout);
    }

    fn spun(&self) -> Duration {
        (**self).spun()
    }

    fn next_due(&self) -> Option<Instant> {
        (**self).next_due()
    }
}
