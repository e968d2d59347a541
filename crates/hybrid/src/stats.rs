//! Statistics of a hybrid cache.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::admission::Gate;
use crate::drives::Flows;
use crate::flow::Flow;
use crate::read_times::ReadTimes;

/// Statistics of a [`Hybrid`](crate::Hybrid).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Stats {
    /// Statistics of the part in memory. A miss there is looked up on flash.
    pub memory: floe_memory::Stats,
    /// Statistics of the part on flash: the sums over all drives.
    pub flash: FlashStats,
    /// Statistics of each drive, by its place in the cache.
    pub drives: Vec<DriveStats>,
}

/// Statistics of a drive.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DriveStats {
    /// Path of the file or block device.
    pub path: PathBuf,
    /// Statistics of the part of the cache on this drive. Hits and misses are those of the keys
    /// that belong to the drive.
    pub flash: FlashStats,
}

impl Stats {
    pub(crate) fn of(memory: floe_memory::Stats, flows: &Flows) -> Self {
        let stats =
            |flow: &Flow| DriveStats { path: flow.path.clone(), flash: FlashStats::of(flow) };
        let drives: Vec<DriveStats> = flows.all().iter().map(stats).collect();
        let mut flash = drives[0].flash.clone();
        drives[1..].iter().for_each(|drive| flash.add(&drive.flash));
        if drives.len() > 1 {
            let failure = |drive: &DriveStats| {
                let failure = drive.flash.failure.as_ref()?;
                Some(format!("{}: {failure}", drive.path.display()))
            };
            let failures: Vec<String> = drives.iter().filter_map(failure).collect();
            flash.failure = (!failures.is_empty()).then(|| failures.join("; "));
        }
        Self { memory, flash, drives }
    }

    /// Returns the statistics of each drive of several, as if the cache had it alone, by the
    /// drive's path. Those of memory are those of the cache. Empty for a cache on one drive.
    pub fn by_drive(&self) -> Vec<(String, Self)> {
        let of = |drive: &DriveStats| {
            let (memory, flash) = (self.memory.clone(), drive.flash.clone());
            let drives = vec![drive.clone()];
            (drive.path.display().to_string(), Self { memory, flash, drives })
        };
        let several = if self.drives.len() > 1 { &self.drives[..] } else { &[] };
        several.iter().map(of).collect()
    }
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
    /// Values that could not be decoded: by [`Value::decode`](crate::Value::decode), or because
    /// their method of compression is not built in.
    pub undecoded: u64,
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
    /// Objects not written to flash because the [write budget](crate::WriteBudget) was short.
    pub declined_over_budget: u64,
    /// Objects not written to flash because they were requested too seldom.
    pub declined_unpopular: u64,
    /// Objects not written to flash because writes slowed reads too much.
    pub declined_write_cost: u64,
    /// Objects not written to flash because the objects in use fit into memory.
    pub declined_fits_memory: u64,
    /// Bytes of records that producers appended to the log.
    pub appended_bytes: u64,
    /// Bytes of records appended again when their segment was evicted.
    pub kept_bytes: u64,
    /// Bytes written to flash, with footers, padding and the saved index.
    pub written_bytes: u64,
    /// Reads of flash for lookups.
    pub reads: u64,
    /// Bytes read from flash for lookups, and for objects that are kept.
    pub read_bytes: u64,
    /// Times of reads for single lookups, of which one in 16 is measured.
    pub read_times: ReadTimes,
    /// Size of the flash in bytes.
    pub capacity_bytes: u64,
    /// Number of segments of the flash.
    pub segments: u64,
    /// True if reads and writes bypass the system's page cache, on all drives.
    pub is_direct: bool,
    /// Memory of the index in bytes.
    pub index_bytes: u64,
    /// Memory of the [admission](crate::Admission) in bytes.
    pub admission_bytes: u64,
    /// Description of the failure that ended the part on flash, if there was one. Of several
    /// drives, it names those that have failed.
    pub failure: Option<String>,
}

impl FlashStats {
    pub(crate) fn of(flow: &Flow) -> Self {
        let (counters, store) = (&flow.counters, &flow.store);
        let (of_store, of_log) = (&store.counters, &store.log.counters);
        let geometry = store.log.geometry;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Self {
            hits: load(&counters.hits),
            misses: load(&counters.misses),
            objects: store.index.len(),
            inserted: load(&of_store.inserted),
            evicted: load(&of_store.evicted),
            kept: load(&of_store.kept),
            dropped_used: load(&of_store.dropped_used),
            collided: load(&of_store.collided),
            mistaken: load(&of_store.mistaken),
            damaged: load(&of_store.damaged),
            undecoded: load(&of_store.undecoded),
            failed_reads: load(&of_store.failed_reads),
            superseded: load(&counters.superseded),
            declined_by_options: load(&counters.by_options),
            declined_behind: load(&counters.behind),
            declined_too_large: load(&counters.too_large),
            declined_failed: load(&counters.failed),
            declined_over_budget: load(&counters.over_budget),
            declined_unpopular: load(&counters.unpopular),
            declined_write_cost: load(&counters.write_cost),
            declined_fits_memory: load(&counters.fits_memory),
            appended_bytes: load(&of_log.appended_bytes),
            kept_bytes: load(&of_log.kept_bytes),
            written_bytes: load(&of_log.written_bytes),
            reads: load(&of_store.reads),
            read_bytes: load(&of_store.read_bytes),
            read_times: of_store.read_clock.read(),
            capacity_bytes: geometry.segments * geometry.segment_bytes,
            segments: geometry.segments,
            is_direct: store.log.flash.is_direct(),
            index_bytes: store.index.memory_bytes(),
            admission_bytes: store.gate.as_ref().map_or(0, Gate::memory_bytes),
            failure: store.log.failure(),
        }
    }

    /// Adds the statistics of another drive.
    fn add(&mut self, other: &Self) {
        let Self {
            hits,
            misses,
            objects,
            inserted,
            evicted,
            kept,
            dropped_used,
            collided,
            mistaken,
            damaged,
            undecoded,
            failed_reads,
            superseded,
            declined_by_options,
            declined_behind,
            declined_too_large,
            declined_failed,
            declined_over_budget,
            declined_unpopular,
            declined_write_cost,
            declined_fits_memory,
            appended_bytes,
            kept_bytes,
            written_bytes,
            reads,
            read_bytes,
            read_times,
            capacity_bytes,
            segments,
            is_direct,
            index_bytes,
            admission_bytes,
            failure: _,
        } = other;
        self.hits += hits;
        self.misses += misses;
        self.objects += objects;
        self.inserted += inserted;
        self.evicted += evicted;
        self.kept += kept;
        self.dropped_used += dropped_used;
        self.collided += collided;
        self.mistaken += mistaken;
        self.damaged += damaged;
        self.undecoded += undecoded;
        self.failed_reads += failed_reads;
        self.superseded += superseded;
        self.declined_by_options += declined_by_options;
        self.declined_behind += declined_behind;
        self.declined_too_large += declined_too_large;
        self.declined_failed += declined_failed;
        self.declined_over_budget += declined_over_budget;
        self.declined_unpopular += declined_unpopular;
        self.declined_write_cost += declined_write_cost;
        self.declined_fits_memory += declined_fits_memory;
        self.appended_bytes += appended_bytes;
        self.kept_bytes += kept_bytes;
        self.written_bytes += written_bytes;
        self.reads += reads;
        self.read_bytes += read_bytes;
        self.read_times.add(read_times);
        self.capacity_bytes += capacity_bytes;
        self.segments += segments;
        self.is_direct &= is_direct;
        self.index_bytes += index_bytes;
        self.admission_bytes += admission_bytes;
    }

    /// Returns the bytes written to flash for each byte that producers appended. `None` before the
    /// first.
    pub fn write_amplification(&self) -> Option<f64> {
        let (appended, written) = (self.appended_bytes, self.written_bytes);
        (appended > 0).then(|| written as f64 / appended as f64)
    }
}
