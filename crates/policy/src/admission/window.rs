//! Counts of an interval, from an owner to its admission.

use std::ops::AddAssign;

/// Blocks, and the bytes in them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// The number of blocks.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, more: Self) {
        self.blocks += more.blocks;
        self.bytes += more.bytes;
    }
}

/// Mean times in nanoseconds as measured in an interval; `None` for what did not happen or was not
/// measured.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Times {
    /// To answer from this cache.
    pub hit_ns: Option<f64>,
    /// To read from below.
    pub backing_read_ns: Option<f64>,
    /// To write below.
    pub backing_write_ns: Option<f64>,
    /// To put a block into this cache.
    pub insert_ns: Option<f64>,
    /// The least cost of a byte written to this cache, in bytes read from it: the ratio of the
    /// times that each takes, waiting included.
    pub write_cost: Option<f64>,
}

/// The events of an interval.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Window {
    /// Requests that looked something up; 0 where each looks up one block.
    pub requests: u64,
    /// True if a write that comes in is answered before the device below has it (write-back).
    pub puts_writes_off: bool,
    /// Blocks looked up, found or not, for reads and writes.
    pub lookups: Traffic,
    /// Those that were found.
    pub hits: Traffic,
    /// Blocks put in, replaced values included.
    pub inserted: Traffic,
    /// Blocks taken out, by eviction and by invalidation. The bytes are those *written* for it,
    /// which may be few.
    pub removed: Traffic,
    /// Of both, the traffic of newer data of held blocks, about which no admission was asked. The
    /// bytes are those put in.
    pub replaced: Traffic,
    /// Entries held at the end.
    pub entries: u64,
    /// The times of operations.
    pub times: Times,
}
