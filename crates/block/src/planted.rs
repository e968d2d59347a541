//! Faults planted in the crash protection, to test whether the simulator finds them.
//!
//! They exist only with `--cfg floe_crash`; `scripts/planted` plants each and waits until it is
//! found.

use std::cell::Cell;

/// The type of a planted fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// A record is durable before the data that it describes.
    RecordBeforeData,
    /// The log calls dirty data clean.
    LostDirtyBit,
    /// A client's flush is answered before the log is durable.
    SkippedFlush,
    /// A clean sector is overwritten in place, and the log goes on to call it clean.
    UnmarkedOverwrite,
    /// The log calls data clean that the backing device has in its write cache only.
    CleanBeforeFlush,
    /// The backing device changes while the log still has a clean copy.
    BackingBeforeLog,
    /// A damaged sector is returned as it is.
    ChecksumIgnored,
    /// A dirty sector is overwritten while the log has its checksum.
    SealedOverwritten,
    /// Dirty data comes into the log without its checksum.
    NeverSealed,
    /// Clean copies that a crash left half overwritten are counted as errors of the device.
    NeverDoubted,
    /// After a gap in a damaged log, dirty data from before it is trusted.
    GapTrusted,
    /// Dirty data from before a gap is forgotten instead of declared lost.
    GapForgotten,
    /// A parity page has nothing of the pages that it covers.
    ParityEmpty,
    /// A damaged page at the end of a log is taken for the end of the log.
    LastPageLost,
    /// Blocks leave a cache that becomes smaller, and the log goes on to say where they are.
    LeftUnlogged,
}

impl Planted {
    /// All types of planted faults.
    pub const ALL: [Planted; 15] = [
        Self::RecordBeforeData,
        Self::LostDirtyBit,
        Self::SkippedFlush,
        Self::UnmarkedOverwrite,
        Self::CleanBeforeFlush,
        Self::BackingBeforeLog,
        Self::ChecksumIgnored,
        Self::SealedOverwritten,
        Self::NeverSealed,
        Self::NeverDoubted,
        Self::GapTrusted,
        Self::GapForgotten,
        Self::ParityEmpty,
        Self::LastPageLost,
        Self::LeftUnlogged,
    ];
}

thread_local! {
    static PLANTED: Cell<Option<Planted>> = const { Cell::new(None) };
}

/// Plants a fault in this thread from now on, or removes it.
pub fn plant(fault: Option<Planted>) {
    PLANTED.set(fault);
}

/// Returns whether this fault is planted in the current thread.
pub(crate) fn is(fault: Planted) -> bool {
    PLANTED.get() == Some(fault)
}
