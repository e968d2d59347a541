//! Statistics of a hybrid cache.

/// Statistics of a [`Hybrid`](crate::Hybrid).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Stats {
    /// Statistics of the part in memory. A miss there is looked up on flash.
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
    /// Objects written to flash after leaving memory.
    pub inserted: u64,
    /// Objects that flash evicted with their segment.
    pub evicted: u64,
    /// Objects that were appended again when their segment was evicted, because they had been used.
    pub kept: u64,
    /// Used objects that were evicted because there was no room to keep them.
    pub dropped_used: u64,
    /// Objects lost to a newer object whose key has the same tag in the index.
    pub collided: u64,
    /// Reads of flash that found the record of another key.
    pub mistaken: u64,
    /// Records read whose checksum did not match.
    pub damaged: u64,
    /// Reads of flash that failed.
    pub failed_reads: u64,
    /// Objects not written to flash because their key was changed meanwhile.
    pub superseded: u64,
    /// Objects that memory evicted and whose [options](crate::InsertOptions) keep them off flash.
    pub declined_by_options: u64,
    /// Objects not written to flash because the drive was too slow.
    pub declined_behind: u64,
    /// Objects not written to flash because they were too large.
    pub declined_too_large: u64,
    /// Objects not written to flash because the flash had failed.
    pub declined_failed: u64,
    /// Bytes of records that producers appended to the log.
    pub appended_bytes: u64,
    /// Bytes of records appended again when their segment was evicted.
    pub kept_bytes: u64,
    /// Bytes written to flash, footers and padding included.
    pub written_bytes: u64,
    /// Size of the flash in bytes.
    pub capacity_bytes: u64,
    /// True if reads and writes bypass the system's page cache.
    pub is_direct: bool,
    /// Memory of the index in bytes.
    pub index_bytes: u64,
    /// Description of the failure that ended the part on flash, if there was one.
    pub failure: Option<String>,
}
