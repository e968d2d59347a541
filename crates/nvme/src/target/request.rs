//! Requests to namespaces, and the answers to them.

use super::message::Bytes;

/// The type of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestKind {
    /// Read.
    Read,
    /// Read, and send nothing.
    Verify,
    /// Write.
    Write {
        /// Answer once it would survive a power cut.
        durable: bool,
    },
    /// Compare the volume with a payload, and send nothing.
    Compare,
    /// Make all writes answered so far survive a power cut.
    Flush,
    /// Discard the content.
    Deallocate,
    /// Make the range read as zeros.
    WriteZeroes {
        /// Answer once it would survive a power cut.
        durable: bool,
        /// The space may be freed.
        deallocate: bool,
    },
}

impl RequestKind {
    /// Returns whether the host sends a payload.
    pub fn has_payload(self) -> bool {
        matches!(self, Self::Write { .. } | Self::Compare)
    }

    /// Returns whether the request changes nothing.
    pub(super) fn only_reads(self) -> bool {
        matches!(self, Self::Read | Self::Verify | Self::Compare)
    }
}

/// A request to a namespace, whose range lies within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The connection's name for it. Parts of one command have the same.
    pub tag: u16,
    /// The namespace's volume.
    pub volume: u16,
    /// The type.
    pub kind: RequestKind,
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub length: u32,
    /// The payload of the write or the comparison follows at once, without being asked for.
    pub in_capsule: bool,
}

/// The reason for which a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// A device failed.
    Device,
    /// There is no space for the data.
    NoSpace,
    /// The range is not within the volume any more.
    OutOfRange,
    /// The volume differs from the payload of a [`RequestKind::Compare`].
    Differs,
    /// A device cannot do that.
    Unsupported,
}

/// The answer to a command: bytes, perhaps with the data of a read between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// The bytes before the data.
    pub before: Bytes,
    /// The data of the read is to be sent.
    pub payload: bool,
    /// The bytes behind the data.
    pub after: Bytes,
}
