//! The contract of a block device: operations, completions, and the trait.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, io};

use crate::buffer::{SECTOR_BYTES, Slice};

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
        /// Length in bytes.
        len: u64,
        /// True if the space may be given back to the file system.
        may_unmap: bool,
        /// Fail with [`Unsupported`](std::io::ErrorKind::Unsupported) rather than write zeros; part
        /// of the range may have been zeroed all the same.
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
    /// Length in bytes.
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

    /// Processor time that devices which imitate a fast medium spent spinning.
    fn spun(&self) -> Duration {
        Duration::ZERO
    }

    /// When to call [`Device::poll`] even if the ring reports nothing; `None` when nothing is
    /// waiting for the clock.
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

/// A set of halves, by their numbers.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Halves(pub(crate) u8);

impl Halves {
    /// Halves that a mirror may have.
    pub const MAX: usize = 8;
    /// No half.
    pub const NONE: Halves = Halves(0);

    /// The first `count` halves.
    pub fn first(count: usize) -> Halves {
        Halves(((1u16 << count) - 1) as u8)
    }

    /// Returns the set of one half.
    pub fn one(half: usize) -> Halves {
        Halves(1 << half)
    }

    /// Returns whether a half is one of them.
    pub fn contains(self, half: usize) -> bool {
        self.0 >> half & 1 == 1
    }

    /// Returns whether all of them are in another set.
    pub fn are_in(self, other: Halves) -> bool {
        self.without(other).is_empty()
    }

    /// Returns the halves of both sets.
    pub fn with(self, other: Halves) -> Halves {
        Halves(self.0 | other.0)
    }

    /// Returns the halves that the other set does not have.
    pub fn without(self, other: Halves) -> Halves {
        Halves(self.0 & !other.0)
    }

    /// Returns the halves that are in both sets.
    pub fn and(self, other: Halves) -> Halves {
        Halves(self.0 & other.0)
    }

    /// Returns whether there is none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns their number.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Returns their numbers.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..Halves::MAX).filter(move |half| self.contains(*half))
    }
}

impl fmt::Debug for Halves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// Bytes that are not what was stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// Their places among the bytes that were judged.
    pub range: Range<usize>,
    /// Only the bytes that were stored last pass. Otherwise older ones pass too.
    pub exact: bool,
}

/// A test that distinguishes stored bytes from damaged ones, for any thread.
///
/// A mirror knows no checksums. It asks before it copies bytes between halves, so that a damaged
/// copy never replaces an intact one.
pub trait Judge: fmt::Debug + Send + Sync {
    /// Returns the parts of `bytes` that are not what was stored from this offset on. Each part can
    /// be judged by itself.
    fn damage(&self, offset: u64, bytes: &[u8]) -> Vec<Damage>;
}

/// Returns how many bytes of an operation's range exist on a device of `size` bytes.
///
/// A device whose size is no multiple of a sector ends inside its last sector. A range may stop
/// there or at the end of that sector.
///
/// # Errors
/// `InvalidInput` naming the range, when it is not aligned or reaches outside.
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
