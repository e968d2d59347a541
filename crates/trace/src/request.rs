//! The requests of a trace.
//!
//! One plain struct serves every kind of trace, so that a simulator has one loop. [`TraceKind`]
//! defines the meaning of `key` and `bytes`.
//!
//! Every reader keeps these invariants. `time_ns` counts from the trace's first record and never
//! wraps, though it may step back where the trace does. In block traces `bytes` is at most
//! [`BLOCK_REQUEST_BYTES_MAX`] and `key + bytes` does not exceed `i64::MAX`.

use serde::{Deserialize, Serialize};

/// Longest request of a block trace, in bytes. A longer one is a misread record, because no device
/// accepts it.
pub const BLOCK_REQUEST_BYTES_MAX: u64 = 1 << 32;

/// The meaning of the keys and sizes of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TraceKind {
    /// Disk I/O: `key` is an offset in bytes on `volume`, `bytes` the length.
    Block,
    /// Objects with sizes: `key` identifies the object, `bytes` is how much of it was requested.
    Object,
    /// Keys only: `bytes` is 1, so that sizes count objects.
    Key,
}

/// The operation of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// The data is fetched.
    Read,
    /// The data is stored.
    Write,
    /// The data is dropped: a key is deleted, or a range of a disk is discarded (trimmed).
    Delete,
}

/// One request of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Request {
    /// Nanoseconds since the trace's first record; 0 when the trace has no times.
    pub time_ns: u64,
    /// Offset in bytes, in block traces. Otherwise the key: the number in the trace, or a stable
    /// hash of its text.
    pub key: u64,
    /// Length in bytes in block traces, size in bytes for objects, 1 for keys.
    pub bytes: u64,
    /// Number of the disk in a block trace, as in the trace, or in order of appearance where disks
    /// have names. Number of the prompt in a trace of prompts, from 0. 0 in other traces.
    pub volume: u32,
    /// Operation: read, write or delete.
    pub op: Op,
}
