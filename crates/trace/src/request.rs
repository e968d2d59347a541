//! The requests of a trace.
//!
//! One plain struct serves every kind of trace, so that a simulator has one loop. [`Kind`] says how
//! to read `key` and `bytes`.
//!
//! Invariants every reader keeps: `time_ns` counts from the trace's first record and never wraps,
//! though it may step back where the trace does; in block traces `bytes` is at most
//! [`BLOCK_REQUEST_BYTES_MAX`] and `key + bytes` does not exceed `i64::MAX`.

use serde::Serialize;

/// The longest request a block trace may hold. Anything longer is a misread record: no device takes
/// it.
pub const BLOCK_REQUEST_BYTES_MAX: u64 = 1 << 32;

/// The meaning of the keys and sizes of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Disk I/O: `key` is an offset in bytes on `volume`, `bytes` the length.
    Block,
    /// Objects with sizes: `key` names the object, `bytes` is how much of it was asked for.
    Object,
    /// Keys only: `bytes` is 1, so that sizes count objects.
    Key,
}

/// The operation of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// Fetch the data.
    Read,
    /// Store the data.
    Write,
    /// Drop the data: delete a key, or discard (trim) a range of a disk.
    Delete,
}

/// One request of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Request {
    /// Nanoseconds since the trace's first record; 0 when the trace has no times.
    pub time_ns: u64,
    /// Block traces: offset in bytes. Otherwise the key: the number in the trace, or a stable hash
    /// of its text.
    pub key: u64,
    /// Block traces: length in bytes. Objects: size in bytes. Keys: 1.
    pub bytes: u64,
    /// The disk of a block trace as numbered in the trace, or in order of appearance where disks
    /// have names; else 0.
    pub volume: u32,
    /// Read, write or delete.
    pub op: Op,
}
