//! Statistics of a hybrid cache.

/// Statistics of a [`Hybrid`](crate::Hybrid).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Stats {
    /// Statistics of the part in memory. Its misses go to flash.
    pub memory: floe_memory::Stats,
    /// Statistics of the part on flash.
    pub flash: FlashStats,
}

/// Statistics of the part on flash.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FlashStats {
    /// Lookups that found the object on flash.
    pub hits: u64,
    /// Lookups that found the object neither in memory nor on flash.
    pub misses: u64,
    /// Objects on flash.
    pub objects: u64,
    /// Objects that went to flash.
    pub inserted: u64,
    /// Objects that left with their segment.
    pub evicted: u64,
    /// Objects that were written again as their segment left, since they had been used.
    pub kept: u64,
    /// Objects that left though they had been used, since there was no room to keep them.
    pub dropped_used: u64,
    /// Objects lost to another key that the index cannot tell apart.
    pub collided: u64,
    /// Reads that found the record of another key.
    pub mistaken: u64,
    /// Records that were damaged.
    pub damaged: u64,
    /// Reads that failed.
    pub failed_reads: u64,
    /// Objects that did not go to flash since their key had changed.
    pub superseded: u64,
    /// Objects that did not go to flash since the drive was behind.
    pub declined_behind: u64,
    /// Objects that did not go to flash since they were too large.
    pub declined_too_large: u64,
    /// Objects that did not go to flash since it had failed.
    pub declined_failed: u64,
    /// Bytes of records appended to the log.
    pub appended_bytes: u64,
    /// Bytes of records written again.
    pub kept_bytes: u64,
    /// Bytes written to flash, footers and padding included.
    pub written_bytes: u64,
    /// Bytes of flash.
    pub capacity_bytes: u64,
    /// True if reads and writes bypass the system's page cache.
    pub is_direct: bool,
    /// Bytes of memory that the index takes.
    pub index_bytes: u64,
    /// Description of the failure that ended the part on flash, if there was one.
    pub failure: Option<String>,
}
