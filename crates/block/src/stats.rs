//! What the cache counts.

use std::ops::AddAssign;

use crate::geometry::{MOST_CLASSES, Sectors, VolumeId};

/// What shards count: bytes ordered from each device, and what became of blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes read from backing devices.
    pub backing_read_bytes: u64,
    /// Bytes written to backing devices.
    pub backing_write_bytes: u64,
    /// Bytes read from the cache device.
    pub cache_read_bytes: u64,
    /// Bytes written to the cache device.
    pub cache_write_bytes: u64,
    /// Blocks made since the start, by size.
    pub blocks_allocated: [u64; MOST_CLASSES],
    /// Blocks whose place was given to another block of the same size.
    pub blocks_replaced: u64,
    /// Groups emptied to make room.
    pub groups_emptied: u64,
    /// Reads served from the buffer of another client's fetch or write.
    pub joined_reads: u64,
    /// Reads, writes and cleanings tried again because what they waited for may have been free.
    pub restarts: u64,
    /// Blocks not made because everything cold was in use.
    pub stores_without_room: u64,
    /// Smallest blocks that were read or written and not cached, about which the admission was
    /// asked. Without one, nobody is asked.
    pub offered_blocks: u64,
    /// Those that were to come in.
    pub admitted_blocks: u64,
    /// Blocks not made because the admission wanted nothing evicted.
    pub stores_withheld: u64,
    /// Smallest blocks that the admission ordered to be fetched, some of which may have been there.
    pub ordered_blocks: u64,
    /// Smallest blocks fetched, or begun to be, because they come next in a stream.
    pub prefetched_blocks: u64,
    /// Their bytes.
    pub prefetched_bytes: u64,
    /// Those that were read before they left.
    pub prefetched_used_blocks: u64,
    /// Operations of the cache device that failed and were made good or given up.
    pub cache_errors: u64,
    /// Bytes of reads and writes that went past the cache because its device had been given up.
    pub bypassed_bytes: u64,
    /// Bytes of dirty data brought to backing devices by cleaning.
    pub cleaned_bytes: u64,
    /// Bytes of hits that were read from the backing device to spare the cache device.
    pub shed_bytes: u64,
}

impl AddAssign<&Counters> for Counters {
    fn add_assign(&mut self, other: &Counters) {
        self.backing_read_bytes += other.backing_read_bytes;
        self.backing_write_bytes += other.backing_write_bytes;
        self.cache_read_bytes += other.cache_read_bytes;
        self.cache_write_bytes += other.cache_write_bytes;
        for (sum, blocks) in self.blocks_allocated.iter_mut().zip(other.blocks_allocated) {
            *sum += blocks;
        }
        self.blocks_replaced += other.blocks_replaced;
        self.groups_emptied += other.groups_emptied;
        self.joined_reads += other.joined_reads;
        self.restarts += other.restarts;
        self.stores_without_room += other.stores_without_room;
        self.offered_blocks += other.offered_blocks;
        self.admitted_blocks += other.admitted_blocks;
        self.stores_withheld += other.stores_withheld;
        self.ordered_blocks += other.ordered_blocks;
        self.prefetched_blocks += other.prefetched_blocks;
        self.prefetched_bytes += other.prefetched_bytes;
        self.prefetched_used_blocks += other.prefetched_used_blocks;
        self.cache_errors += other.cache_errors;
        self.bypassed_bytes += other.bypassed_bytes;
        self.cleaned_bytes += other.cleaned_bytes;
        self.shed_bytes += other.shed_bytes;
    }
}

/// What the router counts: whole requests. A request is a hit when all of it was cached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Requests {
    /// Reads answered.
    pub reads: u64,
    /// Reads of which every sector was cached.
    pub read_hits: u64,
    /// Bytes of the reads.
    pub read_bytes: u64,
    /// Writes answered.
    pub writes: u64,
    /// Writes for which every block was there.
    pub write_hits: u64,
    /// Bytes of the writes.
    pub write_bytes: u64,
    /// Bytes of reads and writes that were not hits.
    pub missed_bytes: u64,
    /// Flushes answered.
    pub flushes: u64,
    /// Trims and zeroings answered.
    pub trims: u64,
    /// Prefetches answered.
    pub prefetches: u64,
    /// Requests that ended in an error.
    pub errors: u64,
}

impl AddAssign<&Requests> for Requests {
    fn add_assign(&mut self, other: &Requests) {
        self.reads += other.reads;
        self.read_hits += other.read_hits;
        self.read_bytes += other.read_bytes;
        self.writes += other.writes;
        self.write_hits += other.write_hits;
        self.write_bytes += other.write_bytes;
        self.missed_bytes += other.missed_bytes;
        self.flushes += other.flushes;
        self.trims += other.trims;
        self.prefetches += other.prefetches;
        self.errors += other.errors;
    }
}

/// Everything there is to know about a cache at a moment; the sum of what its parts know.
#[derive(Debug, Clone, Default)]
pub struct Stats {
    /// Requests by kind.
    pub requests: Requests,
    /// Bytes and blocks.
    pub counters: Counters,
    /// Block sizes in bytes with the number of blocks there are now, smallest first.
    pub blocks: Vec<(u64, u64)>,
    /// Bytes of valid data in the cache.
    pub valid_bytes: u64,
    /// Bytes of data in the cache that the backing devices do not have yet.
    pub dirty_bytes: u64,
    /// Bytes of data that only memory has.
    pub held_bytes: u64,
    /// Reads answered from memory; they are among the requests, as hits.
    pub memory_hits: u64,
    /// Their bytes.
    pub memory_hit_bytes: u64,
    /// Memory held for blocks and groups: 33 to 36 bytes a block in a full cache, 18 more for each
    /// dirty one. Worst is a cache of the smallest blocks that has come to hold only the largest:
    /// the arrays keep the size they grew to.
    pub block_metadata_bytes: u64,
    /// Memory held for valid and dirty bits, and in a kept cache for a checksum of each sector.
    pub sector_metadata_bytes: u64,
    /// Memory held by what decides who comes in.
    pub admission_bytes: u64,
    /// Of the smallest blocks offered, how many each of several that have to agree would not have.
    pub declined_blocks: Vec<u64>,
    /// Shards that have given the cache device up.
    pub degraded_shards: u64,
    /// Sectors of the cache device whose content was not what had been stored, each counted once.
    pub corrupt_sectors: u64,
    /// Bytes of data whose only copy is gone: it reads as errors until it is written anew.
    pub lost_bytes: u64,
    /// Bytes of which some requests are refused, at most: what is lost, and dirty data that cannot
    /// be read or replaced.
    pub refused_bytes: u64,
    /// Where in the volumes is what is lost, the first runs of each part.
    pub lost_runs: Vec<(VolumeId, Sectors)>,
}

/// Runs whose only copy is gone that each part tells of.
pub(crate) const MOST_LOST_RUNS: usize = 8;

/// Parts of one cache have the same block sizes.
impl AddAssign<&Stats> for Stats {
    fn add_assign(&mut self, other: &Stats) {
        self.requests += &other.requests;
        self.counters += &other.counters;
        if self.blocks.is_empty() {
            self.blocks.clone_from(&other.blocks);
        } else {
            for (sum, part) in self.blocks.iter_mut().zip(&other.blocks) {
                debug_assert_eq!(sum.0, part.0);
                sum.1 += part.1;
            }
        }
        self.valid_bytes += other.valid_bytes;
        self.dirty_bytes += other.dirty_bytes;
        self.held_bytes += other.held_bytes;
        self.memory_hits += other.memory_hits;
        self.memory_hit_bytes += other.memory_hit_bytes;
        self.block_metadata_bytes += other.block_metadata_bytes;
        self.sector_metadata_bytes += other.sector_metadata_bytes;
        self.admission_bytes += other.admission_bytes;
        self.decline(&other.declined_blocks);
        self.degraded_shards += other.degraded_shards;
        self.corrupt_sectors += other.corrupt_sectors;
        self.lost_bytes += other.lost_bytes;
        self.refused_bytes += other.refused_bytes;
        self.lost_runs.extend_from_slice(&other.lost_runs);
    }
}

impl Stats {
    /// Adds what each of several has declined.
    pub(crate) fn decline(&mut self, blocks: &[u64]) {
        self.declined_blocks.resize(self.declined_blocks.len().max(blocks.len()), 0);
        for (sum, blocks) in self.declined_blocks.iter_mut().zip(blocks) {
            *sum += blocks;
        }
    }

    /// Blocks made since the start.
    pub fn blocks_allocated(&self) -> u64 {
        self.counters.blocks_allocated.iter().sum()
    }

    /// Mean size in bytes of the blocks made since the start, 0 when there are none.
    pub fn mean_block_bytes(&self) -> f64 {
        let sizes = self.blocks.iter().zip(self.counters.blocks_allocated);
        let bytes: u64 = sizes.map(|((size, _), blocks)| size * blocks).sum();
        bytes as f64 / self.blocks_allocated().max(1) as f64
    }

    /// Mean size in bytes of the reads and writes that were not hits, 0 when there are none.
    pub fn mean_missed_bytes(&self) -> f64 {
        let requests = &self.requests;
        let misses = requests.reads - requests.read_hits + requests.writes - requests.write_hits;
        requests.missed_bytes as f64 / misses.max(1) as f64
    }
}
