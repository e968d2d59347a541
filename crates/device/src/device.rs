//! The interface of a block device: operations, completions, and the [`Device`] trait.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, io};

use crate::buffer::{SECTOR_BYTES, Slice};

/// An action on a range of a device.
#[derive(Debug, Clone)]
pub enum Action {
    /// Read from the device into the slice.
    Read(Slice),
    /// Write the slice to the device; with `durable`, complete only once the data would survive a
    /// power cut (FUA).
    Write {
        /// The bytes to store.
        from: Slice,
        /// True if the write must be on stable storage before it completes (force unit access).
        durable: bool,
    },
    /// Make the range read as zeros; `may_unmap` allows deallocating the space.
    Zero {
        /// Length in bytes.
        len: u64,
        /// True if the space may be deallocated.
        may_unmap: bool,
        /// Fail with [`Unsupported`](std::io::ErrorKind::Unsupported) rather than write zeros. Part
        /// of the range may have been zeroed nevertheless.
        fast: bool,
    },
    /// The range's content is no longer needed; it may read as zeros or as before.
    Discard {
        /// Length in bytes.
        len: u64,
    },
    /// Make every write completed before this operation was submitted survive a power cut.
    Flush,
}

/// An operation on a device.
#[derive(Debug, Clone)]
pub struct Operation {
    /// The caller's identifier of the operation, returned in the [`Completion`].
    pub token: u64,
    /// First byte on the device. Offset and length are multiples of [`SECTOR_BYTES`], except that a
    /// range may end at the device's end.
    pub offset: u64,
    /// The action to perform.
    pub action: Action,
}

/// The result of a finished operation.
#[derive(Debug)]
pub struct Completion {
    /// The operation's token.
    pub token: u64,
    /// Success, which means that the whole range was transferred, or the error.
    pub result: std::io::Result<()>,
}

/// A run of a device's bytes in the same allocation state, as far as the device knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes.
    pub bytes: u64,
    /// True if the bytes occupy space.
    pub allocated: bool,
    /// True if the bytes are known to read as zeros.
    pub zero: bool,
}

impl Extent {
    /// Creates an extent of `bytes` that may hold any content.
    pub fn data(bytes: u64) -> Extent {
        Extent { bytes, allocated: true, zero: false }
    }

    /// Creates an extent of `bytes` that were never written, or have been deallocated.
    pub fn hole(bytes: u64) -> Extent {
        Extent { bytes, allocated: false, zero: true }
    }
}

/// A block device that never blocks its caller and finishes operations in any order.
pub trait Device {
    /// Returns the size in bytes, a multiple of 512.
    fn size_bytes(&self) -> u64;

    /// Starts an operation. Errors, including bad ranges, arrive as completions.
    fn submit(&mut self, operation: Operation);

    /// Appends the operations that have finished since the last call to `done`.
    fn poll(&mut self, done: &mut Vec<Completion>);

    /// Returns whether [`submit`](Device::submit) carries out each operation before it returns, so
    /// that none waits for another. Memory does.
    fn is_immediate(&self) -> bool {
        false
    }

    /// Returns the numbers of a mirror's halves that [`read_copy`](Device::read_copy) can read now.
    /// A device with a single copy returns an empty set.
    fn copies(&self) -> Halves {
        Halves::NONE
    }

    /// Starts a read of one of the device's [copies](Device::copies). The read fails where that
    /// copy lacks part of the range.
    fn read_copy(&mut self, _copy: usize, operation: Operation) {
        self.submit(operation);
    }

    /// Returns whether the copies may legitimately differ in a range, because a crash interrupted a
    /// write to it.
    fn may_differ(&self, _range: Range<u64>) -> bool {
        false
    }

    /// Starts a write, to all copies, that repairs bytes found damaged on some of them.
    fn mend(&mut self, _wrong: Halves, operation: Operation) {
        self.submit(operation);
    }

    /// Sets the judge that detects damaged data on this device; `None` if nothing can detect it.
    /// Until this is called, a mirror copies nothing from one half to another unless a reader waits
    /// for it.
    fn set_judge(&mut self, _judge: Option<Arc<dyn Judge>>) {}

    /// Sets a new size, which [`Source::refresh`](crate::Source::refresh) found. Operations beyond
    /// it are refused from then on; those in flight continue.
    ///
    /// # Errors
    /// When this device's size is fixed or the device is smaller than `bytes`; the size stays
    /// unchanged.
    fn set_size(&mut self, bytes: u64) -> std::io::Result<()> {
        Err(fixed_size(bytes))
    }

    /// Appends the extents of the range to `extents`, in order from its start. There is at least
    /// one unless the range is empty, but they need not reach the end. Writes in flight may or may
    /// not be visible. May query the file system, but reads no data.
    ///
    /// # Panics
    /// When the range reaches outside the device.
    fn allocation(&mut self, range: Range<u64>, extents: &mut Vec<Extent>) {
        check_inside(&range, self.size_bytes());
        extents.extend((!range.is_empty()).then(|| Extent::data(range.end - range.start)));
    }

    /// Sets the time after which an unanswered operation fails, on devices that depend on another
    /// machine or a cluster. Operations in flight get the full timeout from now. A shorter timeout
    /// that the device already has stays. Local devices ignore it.
    fn set_timeout(&mut self, _timeout: Duration) {}

    /// Returns the processor time that imitated fast media have spent spinning.
    fn spun(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns when to call [`Device::poll`] even if the ring reports nothing; `None` when no
    /// operation waits for a timer.
    fn next_due(&self) -> Option<Instant> {
        None
    }
}

pub(crate) fn fixed_size(bytes: u64) -> std::io::Error {
    let message = format!("the size of this device is fixed; it cannot become {bytes} bytes");
    std::io::Error::new(std::io::ErrorKind::Unsupported, message)
}

pub(crate) fn check_inside(range: &Range<u64>, size: u64) {
    assert!(range.start <= range.end && range.end <= size, "{range:?} of a device of {size} bytes");
}

/// Implements methods of [`Device`] by those of an inner device, given as an expression of the
/// outer one.
///
/// ```
/// use floe_device::{Device, Operation, delegate_device};
///
/// struct Counted<D> {
///     inner: D,
///     operations: u64,
/// }
///
/// impl<D: Device> Device for Counted<D> {
///     delegate_device!(this => this.inner; size_bytes poll set_size next_due);
///
///     fn submit(&mut self, operation: Operation) {
///         self.operations += 1;
///         self.inner.submit(operation);
///     }
/// }
/// ```
#[macro_export]
macro_rules! delegate_device {
    ($this:ident => $inner:expr; $($method:ident)+) => {
        $($crate::delegate_device! { @$method $this, $inner })+
    };
    (@size_bytes $this:ident, $inner:expr) => {
        fn size_bytes(&self) -> u64 {
            let $this = self;
            $inner.size_bytes()
        }
    };
    (@submit $this:ident, $inner:expr) => {
        fn submit(&mut self, operation: $crate::Operation) {
            let $this = self;
            $inner.submit(operation);
        }
    };
    (@poll $this:ident, $inner:expr) => {
        fn poll(&mut self, done: &mut Vec<$crate::Completion>) {
            let $this = self;
            $inner.poll(done);
        }
    };
    (@is_immediate $this:ident, $inner:expr) => {
        fn is_immediate(&self) -> bool {
            let $this = self;
            $inner.is_immediate()
        }
    };
    (@copies $this:ident, $inner:expr) => {
        fn copies(&self) -> $crate::Halves {
            let $this = self;
            $inner.copies()
        }
    };
    (@read_copy $this:ident, $inner:expr) => {
        fn read_copy(&mut self, copy: usize, operation: $crate::Operation) {
            let $this = self;
            $inner.read_copy(copy, operation);
        }
    };
    (@may_differ $this:ident, $inner:expr) => {
        fn may_differ(&self, range: std::ops::Range<u64>) -> bool {
            let $this = self;
            $inner.may_differ(range)
        }
    };
    (@mend $this:ident, $inner:expr) => {
        fn mend(&mut self, wrong: $crate::Halves, operation: $crate::Operation) {
            let $this = self;
            $inner.mend(wrong, operation);
        }
    };
    (@set_judge $this:ident, $inner:expr) => {
        fn set_judge(&mut self, judge: Option<std::sync::Arc<dyn $crate::Judge>>) {
            let $this = self;
            $inner.set_judge(judge);
        }
    };
    (@set_size $this:ident, $inner:expr) => {
        fn set_size(&mut self, bytes: u64) -> std::io::Result<()> {
            let $this = self;
            $inner.set_size(bytes)
        }
    };
    (@allocation $this:ident, $inner:expr) => {
        fn allocation(&mut self, range: std::ops::Range<u64>, extents: &mut Vec<$crate::Extent>) {
            let $this = self;
            $inner.allocation(range, extents);
        }
    };
    (@set_timeout $this:ident, $inner:expr) => {
        fn set_timeout(&mut self, timeout: std::time::Duration) {
            let $this = self;
            $inner.set_timeout(timeout);
        }
    };
    (@spun $this:ident, $inner:expr) => {
        fn spun(&self) -> std::time::Duration {
            let $this = self;
            $inner.spun()
        }
    };
    (@next_due $this:ident, $inner:expr) => {
        fn next_due(&self) -> Option<std::time::Instant> {
            let $this = self;
            $inner.next_due()
        }
    };
}

impl<D: Device + ?Sized> Device for Box<D> {
    delegate_device!(this => **this; size_bytes submit poll is_immediate copies read_copy);
    delegate_device!(this => **this; may_differ mend set_judge set_size allocation set_timeout);
    delegate_device!(this => **this; spun next_due);
}

/// A set of a mirror's halves, by number.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Halves(pub(crate) u8);

impl Halves {
    /// Maximum number of halves that a mirror may have.
    pub const MAX: usize = 8;
    /// The empty set.
    pub const NONE: Halves = Halves(0);

    /// Returns the set of the first `count` halves.
    pub fn first(count: usize) -> Halves {
        Halves(((1u16 << count) - 1) as u8)
    }

    /// Returns the set that contains only this half.
    pub fn one(half: usize) -> Halves {
        Halves(1 << half)
    }

    /// Returns whether a half is in the set.
    pub fn contains(self, half: usize) -> bool {
        self.0 >> half & 1 == 1
    }

    /// Returns whether this set is a subset of another.
    pub fn are_in(self, other: Halves) -> bool {
        self.without(other).is_empty()
    }

    /// Returns the union of both sets.
    pub fn with(self, other: Halves) -> Halves {
        Halves(self.0 | other.0)
    }

    /// Returns the halves of this set that are not in the other.
    pub fn without(self, other: Halves) -> Halves {
        Halves(self.0 & !other.0)
    }

    /// Returns the intersection of both sets.
    pub fn and(self, other: Halves) -> Halves {
        Halves(self.0 & other.0)
    }

    /// Returns whether the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the number of halves in the set.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Returns the numbers of the halves, in ascending order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..Halves::MAX).filter(move |half| self.contains(*half))
    }
}

impl fmt::Debug for Halves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// Bytes that differ from the data that was stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// Range of the damaged bytes within the buffer that was judged.
    pub range: Range<usize>,
    /// True if only the bytes stored last pass the test; false if older ones pass too.
    pub exact: bool,
}

/// A test that distinguishes intact data from damaged data, usable from any thread.
///
/// A mirror has no checksums. It asks the judge before it copies bytes between halves, so that a
/// damaged copy never replaces an intact one.
pub trait Judge: fmt::Debug + Send + Sync {
    /// Returns the damaged parts of `bytes`, which were read from this offset of the device. Each
    /// part can be judged separately.
    fn damage(&self, offset: u64, bytes: &[u8]) -> Vec<Damage>;
}

/// Returns how many bytes of an operation's range exist on a device of `size` bytes.
///
/// A device whose size is no multiple of a sector ends inside its last sector. A range may stop
/// there or at the end of that sector.
///
/// # Errors
/// `InvalidInput` naming the range, when the range is not aligned or reaches outside the device.
pub fn clip(operation: &Operation, size: u64) -> io::Result<u64> {
    let (what, len) = match &operation.action {
        Action::Read(into) => ("read", into.len() as u64),
        Action::Write { from, .. } => ("write", from.len() as u64),
        Action::Zero { len, .. } => ("zeroing", *len),
        Action::Discard { len } => ("discard", *len),
        Action::Flush => return Ok(0),
    };
    let offset = operation.offset;
    let refuse = |why: &str| {
        let message = format!("{what} of {len} bytes at {offset} {why}");
        Err(io::Error::new(io::ErrorKind::InvalidInput, message))
    };
    let end = match offset.checked_add(len) {
        Some(end) if offset <= size && end <= size.next_multiple_of(SECTOR_BYTES) => end,
        _ => return refuse(&format!("reaches outside the device of {size} bytes")),
    };
    if !offset.is_multiple_of(SECTOR_BYTES) || !(len.is_multiple_of(SECTOR_BYTES) || end == size) {
        return refuse(&format!("is not aligned to {SECTOR_BYTES} bytes"));
    }
    Ok(end.min(size) - offset)
}

#[cfg(test)]
mod range_tests {
    use super::*;

    fn discard(offset: u64, len: u64, size: u64) -> Result<u64, String> {
        let operation = Operation { token: 0, offset, action: Action::Discard { len } };
        clip(&operation, size).map_err(|error| error.to_string())
    }

    #[test]
    fn a_range_may_end_at_the_end_or_be_rounded_up_past_it() {
        assert_eq!(discard(4096, 512, 4608), Ok(512));
        assert_eq!(discard(4096, 4096, 4608), Ok(512));
        assert_eq!(discard(0, 8192, 4608), Ok(4608));
        assert_eq!(discard(4096, 0, 4096), Ok(0));
    }

    #[test]
    fn ranges_outside_or_askew_are_refused_by_name() {
        let refused = discard(4096, 8192, 4608).unwrap_err();
        assert_eq!(
            refused,
            "discard of 8192 bytes at 4096 reaches outside the device of 4608 bytes"
        );
        assert!(discard(0, 512, 4608).unwrap_err().ends_with("is not aligned to 4096 bytes"));
        assert!(discard(512, 4096, 8192).unwrap_err().ends_with("is not aligned to 4096 bytes"));
        assert!(discard(u64::MAX - 4095, 4096, 8192).unwrap_err().contains("outside"));
        assert!(discard(8192, 4096, 4096).unwrap_err().contains("outside"));
    }
}
