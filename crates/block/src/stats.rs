//! The counters of the cache.

use floe_policy::Adaptation;

use crate::counters;
use crate::counters::Counts;
use crate::geometry::{MOST_CLASSES, SECTOR_BYTES, Sectors, VolumeId};
use crate::join::{Fault, Request, RequestKind};

counters! {
    /// Work of shards: bytes moved to and from each device, and blocks made, evicted or declined.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct Counters {
        /// Bytes read from backing devices.
        pub backing_read_bytes: u64 = Counter { json: "backing_read_bytes" },
        /// Bytes written to backing devices.
        pub backing_write_bytes: u64 = Counter { json: "backing_write_bytes" },
        /// Bytes read from the cache device.
        pub cache_read_bytes: u64 = Counter { json: "cache_read_bytes" },
        /// Bytes written to the cache device.
        pub cache_write_bytes: u64 = Counter { json: "cache_write_bytes" },
        /// Blocks made since the start, by size.
        pub blocks_allocated: [u64; MOST_CLASSES],
        /// Blocks whose place was given to another block of the same size.
        pub blocks_replaced: u64 = Counter {
            json: "blocks_replaced",
            metric: "floe_cache_blocks_replaced_total",
        },
        /// Groups emptied to make room.
        pub groups_emptied: u64 = Counter {
            json: "groups_emptied",
            metric: "floe_cache_groups_emptied_total",
        },
        /// Reads served from another client's fetch or write.
        pub joined_reads: u64 = Counter {
            json: "joined_reads",
            metric: "floe_cache_joined_reads_total",
        },
        /// Reads, writes and cleanings tried again because what they waited for may have been free.
        pub restarts: u64,
        /// Blocks not created because all eviction candidates were in use or dirty.
        pub stores_without_room: u64,
        /// Smallest blocks that were read or written and not cached, about which the admission was
        /// asked. Without one, nobody is asked.
        pub offered_blocks: u64,
        /// Smallest blocks among the offered ones that the admission admitted.
        pub admitted_blocks: u64,
        /// Smallest blocks that came to hold data. Newer data of a smallest block that holds some
        /// adds nothing.
        pub inserted_blocks: u64 = Counter {
            metric: "floe_cache_inserted_blocks_total",
            with: "admit",
        },
        /// Smallest blocks whose data was dropped as outdated: trimmed, or written below only.
        pub removed_blocks: u64 = Counter {
            metric: "floe_cache_removed_blocks_total",
            with: "admit",
        },
        /// Smallest blocks whose data was evicted.
        pub evicted_blocks: u64 = Counter {
            metric: "floe_cache_evicted_blocks_total",
            with: "admit",
        },
        /// Blocks not created because the admission allowed no eviction for them.
        pub stores_withheld: u64 = Counter {
            metric: "floe_cache_stores_withheld_total",
            with: "admit",
        },
        /// Writes that dropped clean copies and went to the backing device only, because the
        /// admission declined newer data of cached blocks.
        pub declined_overwrites: u64 = Counter {
            metric: "floe_cache_declined_overwrites_total",
            with: "admit",
        },
        /// Smallest blocks that the admission ordered to be fetched, some of which may have been
        /// cached already.
        pub ordered_blocks: u64 = Counter {
            metric: "floe_cache_ordered_blocks_total",
            with: "admit",
        },
        /// Smallest blocks whose read-ahead was started, because they come next in a stream.
        pub prefetched_blocks: u64 = Counter {
            json: "prefetched_blocks",
            metric: "floe_cache_prefetched_blocks_total",
        },
        /// Bytes read ahead, because they come next in a stream.
        pub prefetched_bytes: u64 = Counter {
            json: "prefetched_bytes",
            metric: "floe_cache_prefetched_bytes_total",
        },
        /// Smallest blocks read ahead that were then read before they were evicted.
        pub prefetched_used_blocks: u64 = Counter {
            json: "prefetched_used_blocks",
            metric: "floe_cache_prefetched_used_blocks_total",
        },
        /// Operations of the cache device that failed and were made good or given up.
        pub cache_errors: u64,
        /// Bytes of reads and writes that bypassed the cache because its device had failed.
        pub bypassed_bytes: u64 = Counter {
            json: "bypassed_bytes",
            metric: "floe_cache_bypassed_bytes_total",
        },
        /// Bytes of missed reads that were not stored, because the cache device was behind with
        /// storing others.
        pub unfilled_bytes: u64 = Counter {
            json: "unfilled_bytes",
            metric: "floe_cache_unfilled_bytes_total",
        },
        /// Bytes of dirty data written to the backing devices.
        pub cleaned_bytes: u64 = Counter {
            json: "cleaned_bytes",
            metric: "floe_cache_cleaned_bytes_total",
        },
        /// Bytes read into the cache because an operator warmed a volume.
        pub warmed_bytes: u64 = Counter {
            json: "warmed_bytes",
            metric: "floe_cache_warmed_bytes_total",
        },
        /// Bytes dropped from the cache because an operator evicted a volume.
        pub dropped_bytes: u64 = Counter {
            json: "dropped_bytes",
            metric: "floe_cache_dropped_bytes_total",
        },
        /// Bytes of hits that were read from the backing devices to spare the cache device.
        pub shed_bytes: u64 = Counter { metric: "floe_cache_shed_bytes_total", with: "shed" },
    }
}

counters! {
    /// Whole requests, counted by the router. A request is a hit when all of it was cached.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct Requests {
        /// Reads answered.
        pub reads: u64 = Counter { json: "read_requests" },
        /// Reads of which every sector was cached.
        pub read_hits: u64 = Counter { json: "read_hits" },
        /// Bytes of the reads.
        pub read_bytes: u64 = Counter { json: "read_bytes" },
        /// Writes answered.
        pub writes: u64 = Counter { json: "write_requests" },
        /// Writes for which every block was cached.
        pub write_hits: u64 = Counter { json: "write_hits" },
        /// Bytes of the writes.
        pub write_bytes: u64 = Counter { json: "write_bytes" },
        /// Bytes of reads and writes that were not hits.
        pub missed_bytes: u64,
        /// Flushes answered.
        pub flushes: u64 = Counter { json: "flush_requests" },
        /// Trims and zeroings answered.
        pub trims: u64 = Counter { json: "trim_requests" },
        /// Prefetches answered.
        pub prefetches: u64,
        /// Requests that ended in an error.
        pub errors: u64 = Counter { json: "errors" },
    }
}

counters! {
    /// A snapshot of a cache's counters, summed over its parts.
    #[derive(Debug, Clone, Default, PartialEq)]
    pub struct Stats {
        /// Counts of requests by kind.
        pub requests: Requests,
        /// Counts of bytes and blocks.
        pub counters: Counters,
        /// Block sizes in bytes, smallest first, each with its current number of blocks.
        pub blocks: Vec<(u64, u64)>,
        /// Bytes of the blocks of each volume, by id; blocks may hold less data.
        pub volume_bytes: Vec<u64> = Gauge {},
        /// Bytes of valid data in the cache.
        pub valid_bytes: u64 = Gauge { json: "valid_bytes", metric: "floe_cache_valid_bytes" },
        /// Bytes of dirty data: newer in the cache than on the backing devices.
        pub dirty_bytes: u64 = Gauge { json: "dirty_bytes", metric: "floe_cache_dirty_bytes" },
        /// Bytes of written data that only memory holds.
        pub held_bytes: u64 = Gauge { metric: "floe_memory_dirty_bytes", with: "memory" },
        /// Reads answered from memory; they are also counted as requests and hits.
        pub memory_hits: u64 = Counter {
            metric: "floe_memory_read_hits_total",
            with: "memory",
        },
        /// Bytes of reads answered from memory.
        pub memory_hit_bytes: u64 = Counter {
            metric: "floe_memory_read_bytes_total",
            with: "memory",
        },
        /// Memory held for blocks and groups: 33 to 36 bytes a block in a full cache, 18 more for
        /// each dirty one. Worst is a cache of the smallest blocks that has come to hold only the
        /// largest: the arrays keep the size they grew to.
        pub block_metadata_bytes: u64 = Gauge {},
        /// Memory held for valid and dirty bits, and in a persistent cache for a checksum of each
        /// sector.
        pub sector_metadata_bytes: u64 = Gauge {},
        /// Memory used by the admission.
        pub admission_bytes: u64 = Gauge {
            metric: "floe_cache_admission_memory_bytes",
            with: "admit",
        },
        /// Smallest blocks that each of several combined admissions rejected; empty for a single
        /// admission.
        pub declined_blocks: Vec<u64>,
        /// The settings that the eviction policy chooses from, with its estimates; `None` if its
        /// settings do not change.
        pub adaptation: Option<Adaptation>,
        /// Shards that have given the cache device up.
        pub degraded_shards: u64 = Gauge {},
        /// Sectors of the cache devices whose content differed from what was stored, each counted
        /// once.
        pub corrupt_sectors: u64 = Counter {
            json: "corrupt_sectors",
            metric: "floe_cache_corrupt_sectors_total",
        },
        /// Sectors of a mirror that differed from what was stored on one half, and were rewritten
        /// from another half.
        pub mended_sectors: u64 = Counter {
            json: "mended_sectors",
            metric: "floe_cache_mended_sectors_total",
        },
        /// Bytes of dirty data whose only copy is lost: reads of them fail until they are
        /// overwritten.
        pub lost_bytes: u64 = Gauge { metric: "floe_cache_lost_bytes" },
        /// Bytes in all tiers for which some requests are refused, at most: lost data, and dirty
        /// data that cannot be read or replaced.
        pub refused_bytes: u64 = Gauge { json: "refused_bytes", metric: "floe_refused_bytes" },
        /// The first runs of lost data of each part, with their volumes.
        pub lost_runs: Vec<(VolumeId, Sectors)>,
    }
}

/// Maximum number of lost runs that each part reports.
pub(crate) const MOST_LOST_RUNS: usize = 8;

impl Counters {
    /// Counts a run of a missed read that is not stored.
    pub(crate) fn skip_fill(&mut self, run: &Sectors) {
        self.unfilled_bytes += (run.end - run.start) * SECTOR_BYTES;
    }
}

impl Requests {
    /// Counts a request that was answered.
    pub(crate) fn count(&mut self, request: &Request, hit: bool, result: Result<(), Fault>) {
        let counted = self;
        counted.errors += u64::from(result.is_err());
        if result == Err(Fault::OutOfRange) {
            return; // its length means nothing
        }
        match request.kind {
            RequestKind::Read => {
                counted.reads += 1;
                counted.read_hits += u64::from(hit);
                counted.read_bytes += request.len;
            }
            RequestKind::Write { .. } => {
                counted.writes += 1;
                counted.write_hits += u64::from(hit);
                counted.write_bytes += request.len;
            }
            RequestKind::Flush | RequestKind::Drain => counted.flushes += 1,
            RequestKind::Zero { .. } | RequestKind::Trim => counted.trims += 1,
            RequestKind::Prefetch | RequestKind::Warm => counted.prefetches += 1,
            RequestKind::DirtyMap | RequestKind::Evict => {}
        }
        if !hit && matches!(request.kind, RequestKind::Read | RequestKind::Write { .. }) {
            counted.missed_bytes += request.len;
        }
    }
}

impl Stats {
    /// Adds the blocks that each of several combined admissions has rejected.
    pub(crate) fn decline(&mut self, blocks: &[u64]) {
        Counts::add(&mut self.declined_blocks, &blocks.to_vec());
    }

    /// Returns the memory held for blocks, groups, bits and checksums.
    pub fn metadata_bytes(&self) -> u64 {
        self.block_metadata_bytes + self.sector_metadata_bytes
    }

    /// Returns the number of blocks made since the start.
    pub fn blocks_allocated(&self) -> u64 {
        self.counters.blocks_allocated.iter().sum()
    }

    /// Returns the mean size in bytes of the blocks made since the start, 0 when there are none.
    pub fn mean_block_bytes(&self) -> f64 {
        let sizes = self.blocks.iter().zip(self.counters.blocks_allocated);
        let bytes: u64 = sizes.map(|((size, _), blocks)| size * blocks).sum();
        bytes as f64 / self.blocks_allocated().max(1) as f64
    }

    /// Returns the mean size in bytes of the reads and writes that were not hits, 0 when there are
    /// none.
    pub fn mean_missed_bytes(&self) -> f64 {
        let requests = &self.requests;
        let misses = requests.reads - requests.read_hits + requests.writes - requests.write_hits;
        requests.missed_bytes as f64 / misses.max(1) as f64
    }
}
