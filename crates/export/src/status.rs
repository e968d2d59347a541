//! What a server tells about itself: to people and programs as JSON, to Prometheus as `metrics`.

mod admission;
mod advice;
mod lost;
mod shedding;
mod tally;
mod tiers;

use std::time::{Duration, SystemTime};

use floe_block::{FreezeStats, MemoryUse, MemoryWrite, VolumeId};
use serde::{Deserialize, Serialize};

pub use admission::{AdmissionStatus, MemoryAdmissionStatus};
pub use advice::AdviceStatus;
pub(crate) use advice::{Counted, Lately, ServiceTimes};
pub use lost::{LostPlace, LostStatus};
pub(crate) use shedding::SheddingFacts;
pub use shedding::{SheddingDecisionStatus, SheddingStatus};
pub(crate) use tally::{Answered, Latencies, Operation, Snapshot, Tally};
pub(crate) use tiers::TierFacts;
pub use tiers::TierStatus;

/// Latencies in microseconds, 0 when there was no request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Mean.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
}

/// Blocks of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockCount {
    /// Size of each.
    pub block_bytes: u64,
    /// How many there are.
    pub blocks: u64,
}

/// One volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeStatus {
    /// Its name.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Clients may not write to it.
    pub read_only: bool,
    /// Clients connected to it now.
    pub connections: u64,
    /// Requests answered.
    pub requests: u64,
}

/// One thread that serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadStatus {
    /// Clients connected to it now.
    pub connections: u64,
    /// Requests it has answered.
    pub requests: u64,
    /// Bytes of valid data in its part of the cache.
    pub valid_bytes: u64,
    /// Bytes in its part of the cache that the backing devices do not have yet.
    pub dirty_bytes: u64,
    /// Messages it has sent to other threads: parts of its requests, and answers to parts of
    /// theirs.
    pub messages: u64,
    /// How often it had to wake another thread for them.
    pub wakes: u64,
}

/// The tier in memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemoryStatus {
    /// Bytes it may take, everything included.
    pub size_bytes: u64,
    /// `through` or `back`.
    pub write_mode: String,
    /// Bytes of pages in it.
    pub page_bytes: u64,
    /// Bytes that only it has.
    pub dirty_bytes: u64,
    /// Reads answered from it. They are hits of the cache, too.
    pub read_hits: u64,
    /// Their share of all reads, 0 when there were none.
    pub read_hit_ratio: f64,
    /// Bytes of these reads.
    pub read_bytes: u64,
    /// Pages that left to make room for others.
    pub pages_evicted: u64,
    /// What was offered to it and what came in; `None` where everything does.
    pub admission: Option<MemoryAdmissionStatus>,
    /// How it is with freezing, if the hottest pages are to be frozen.
    pub freezing: Option<FreezingStatus>,
}

/// How it is with freezing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FreezingStatus {
    /// What is being done: `warming-up`, `measuring`, `learning`, `trying-all`, `proving`,
    /// `constructing`, `frozen` or `waiting`.
    pub phase: String,
    /// The share of pages that is to be frozen, as was learned last.
    pub ratio: f64,
    /// The share of hits that frozen pages had in the last frozen phase; 0 before the first.
    pub frozen_share: f64,
    /// Latency of a hit on a frozen page, 0 before the first is measured; a page is one lookup of
    /// some.
    pub frozen_ns: f64,
    /// Of a hit on another page.
    pub dynamic_ns: f64,
    /// Of a miss, until the page is there.
    pub miss_ns: f64,
    /// How often pages were frozen.
    pub constructed: u64,
    /// How often freezing did not pay.
    pub given_up: u64,
    /// Why the last decision was as it was, in words.
    pub reason: String,
}

/// Everything `floe status` prints. Where a cache has several tiers, what is said of the cache is
/// of the first one, and what is said of backing devices is of the devices that the last one stands
/// on; `tiers` has each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The volumes, the default one first.
    pub volumes: Vec<VolumeStatus>,
    /// The threads that serve.
    pub threads: Vec<ThreadStatus>,
    /// The tiers of the cache, from the top.
    #[serde(default)]
    pub tiers: Vec<TierStatus>,
    /// The cache device of some tier, or a part of it, has failed and been given up: what was
    /// cached there is passed through.
    pub degraded: bool,
    /// The journal of some tier cannot be written: nothing is cached there any more.
    pub journal_lost: bool,
    /// Bytes of which some requests are refused, at most, in all tiers: what is lost, and dirty
    /// data that cannot be read or replaced.
    #[serde(default)]
    pub refused_bytes: u64,
    /// Counts the times the cache was opened; `None` for one that ends with the server.
    pub session: Option<u64>,
    /// Bytes of reads and writes that went past the cache for that reason.
    pub bypassed_bytes: u64,
    /// `through`, `around`, `back`, `only` or `pass`.
    pub write_mode: String,
    /// The policy that decides what leaves the cache, as for `--evict`.
    pub evict: String,
    /// Time since the start.
    pub uptime_seconds: f64,
    /// Clients connected now.
    pub connections: u64,
    /// Reads answered.
    pub read_requests: u64,
    /// Reads that found everything cached.
    pub read_hits: u64,
    /// Share of reads that were hits, 0 when there were none.
    pub read_hit_ratio: f64,
    /// Bytes clients read.
    pub read_bytes: u64,
    /// Writes answered.
    pub write_requests: u64,
    /// Writes that found a block for everything.
    pub write_hits: u64,
    /// Share of writes that were hits, 0 when there were none.
    pub write_hit_ratio: f64,
    /// Bytes clients wrote.
    pub write_bytes: u64,
    /// Flushes answered.
    pub flush_requests: u64,
    /// Trims and zeroings answered.
    pub trim_requests: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// Blocks whose place was given to another block of the same size.
    pub blocks_replaced: u64,
    /// Groups emptied to make room.
    pub groups_emptied: u64,
    /// Reads served from another client's fetch.
    pub joined_reads: u64,
    /// Bytes read from the backing device.
    pub backing_read_bytes: u64,
    /// Bytes written to the backing device.
    pub backing_write_bytes: u64,
    /// Bytes read from the cache device.
    pub cache_read_bytes: u64,
    /// Bytes written to the cache device.
    pub cache_write_bytes: u64,
    /// Failed operations of the cache device.
    pub cache_errors: u64,
    /// Failed operations of the backing device.
    pub backing_errors: u64,
    /// Bytes the cache may hold.
    pub cache_size_bytes: u64,
    /// Bytes of valid data in it.
    pub valid_bytes: u64,
    /// Bytes in it that the backing device does not have yet.
    pub dirty_bytes: u64,
    /// Bytes that cleaning has brought to the backing device.
    pub cleaned_bytes: u64,
    /// How long it would take to clean what is dirty as fast as was done lately; `None` when
    /// nothing was cleaned lately.
    pub seconds_to_clean: Option<f64>,
    /// Sectors of the cache device whose content was not what had been stored there.
    pub corrupt_sectors: u64,
    /// Dirty data of which the only copy is gone.
    pub lost: LostStatus,
    /// Memory for blocks, groups and bits.
    pub metadata_bytes: u64,
    /// Blocks by size, smallest first.
    pub blocks: Vec<BlockCount>,
    /// The tier in memory, if there is one.
    pub memory: Option<MemoryStatus>,
    /// Smallest blocks fetched before they were asked for, because they came next in a stream.
    pub prefetched_blocks: u64,
    /// Their bytes.
    pub prefetched_bytes: u64,
    /// Those that were read before they left.
    pub prefetched_used_blocks: u64,
    /// What was offered to the cache and what came in; `None` where everything does.
    pub admission: Option<AdmissionStatus>,
    /// How much is shed, if anything may be.
    pub shedding: Option<SheddingStatus>,
    /// Processor time burnt in imitating fast media; 0 on real devices.
    pub spun_seconds: f64,
    /// Latency of reads.
    pub read_latency: Latency,
    /// Latency of writes.
    pub write_latency: Latency,
    /// What limits reads, and what would help; `None` where there have been none lately.
    pub advice: Option<AdviceStatus>,
}

/// A volume as all threads know it.
#[derive(Debug, Clone)]
pub(crate) struct VolumeFacts {
    pub(crate) id: VolumeId,
    /// By tier, from the top.
    pub(crate) ids: Vec<VolumeId>,
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) read_only: bool,
}

/// What all threads know alike.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    /// The default one first.
    pub(crate) volumes: Vec<VolumeFacts>,
    /// At least one; from the top.
    pub(crate) tiers: Vec<TierFacts>,
    pub(crate) started: SystemTime,
    pub(crate) uptime: Duration,
    pub(crate) memory: Option<MemoryFacts>,
    pub(crate) shedding: Option<SheddingFacts>,
    /// What advice goes by.
    pub(crate) service: ServiceTimes,
    /// Lines of the log that were dropped.
    pub(crate) log_lines_dropped: u64,
}

/// What the tier in memory knows of itself.
#[derive(Debug, Clone)]
pub(crate) struct MemoryFacts {
    pub(crate) write: MemoryWrite,
    pub(crate) usage: MemoryUse,
    pub(crate) freezing: Option<FreezeStats>,
}

/// Everything known about a server at a moment: what [`Status`] and metrics are made from.
pub(crate) struct Report {
    pub(crate) facts: Facts,
    /// What each thread handed in.
    pub(crate) threads: Vec<Snapshot>,
    /// All of it together.
    pub(crate) sum: Snapshot,
    /// What limits reads, and what would help.
    pub(crate) advice: Option<AdviceStatus>,
    /// How long it would take to clean what is dirty.
    pub(crate) seconds_to_clean: Option<f64>,
}

impl Facts {
    /// The first tier, which clients' requests come to.
    pub(crate) fn top(&self) -> &TierFacts {
        &self.tiers[0]
    }

    /// Whether the journal of some tier cannot be written.
    pub(crate) fn journal_lost(&self) -> bool {
        self.tiers.iter().any(|tier| tier.journal_lost)
    }
}

/// A share, 0 of nothing.
fn ratio(part: u64, all: u64) -> f64 {
    if all == 0 { 0.0 } else { part as f64 / all as f64 }
}

impl FreezingStatus {
    fn of(stats: &FreezeStats) -> Self {
        Self {
            phase: stats.phase.to_string(),
            ratio: stats.ratio,
            frozen_share: stats.frozen_share.unwrap_or_default(),
            frozen_ns: stats.frozen_ns.unwrap_or_default(),
            dynamic_ns: stats.dynamic_ns.unwrap_or_default(),
            miss_ns: stats.miss_ns.unwrap_or_default(),
            constructed: stats.constructed,
            given_up: stats.given_up,
            reason: stats
                .decisions
                .last()
                .map_or_else(String::new, |decision| decision.reason.clone()),
        }
    }
}

impl Report {
    pub(crate) fn new(facts: Facts, threads: Vec<Snapshot>) -> Self {
        let mut sum = Snapshot::default();
        threads.iter().for_each(|thread| sum += thread);
        Self { facts, threads, sum, advice: None, seconds_to_clean: None }
    }

    /// Adds advice, on what was counted lately.
    pub(crate) fn advise(&mut self, lately: &mut Lately, processor: Duration) {
        let now = Counted::of(&self.sum, self.facts.uptime, processor);
        let lately = lately.until(now);
        self.advice = AdviceStatus::of(&self.facts, self.threads.len(), &lately);
        self.seconds_to_clean = lately.seconds_to_clean(self.sum.stats.dirty_bytes);
    }

    /// Clients connected to a volume.
    pub(crate) fn connections(&self, volume: VolumeId) -> u64 {
        self.sum.connections.get(usize::from(volume.0)).copied().unwrap_or_default()
    }

    /// Whether the cache device of some tier has been given up.
    pub(crate) fn is_degraded(&self) -> bool {
        self.sum.tiers().any(|(stats, _)| stats.degraded_shards > 0)
    }

    pub(crate) fn status(&self) -> Status {
        let Snapshot { tally, stats, .. } = &self.sum;
        let (requests, counters, lowest) =
            (&stats.requests, &stats.counters, &self.sum.lowest().counters);
        let volume = |facts: &VolumeFacts| VolumeStatus {
            name: facts.name.clone(),
            bytes: facts.bytes,
            read_only: facts.read_only,
            connections: self.connections(facts.id),
            requests: tally
                .volume(facts.id)
                .answered
                .iter()
                .map(|answered| answered.requests)
                .sum(),
        };
        let thread = |snapshot: &Snapshot| ThreadStatus {
            connections: snapshot.clients(),
            requests: snapshot.tally.requests(),
            valid_bytes: snapshot.stats.valid_bytes,
            dirty_bytes: snapshot.stats.dirty_bytes,
            messages: snapshot.traffic.messages,
            wakes: snapshot.traffic.wakes,
        };
        let memory = |MemoryFacts { write, usage, freezing }: &MemoryFacts| MemoryStatus {
            size_bytes: usage.size_bytes,
            write_mode: write.to_string(),
            page_bytes: usage.page_bytes,
            dirty_bytes: stats.held_bytes,
            read_hits: stats.memory_hits,
            read_hit_ratio: ratio(stats.memory_hits, requests.reads),
            read_bytes: stats.memory_hit_bytes,
            pages_evicted: usage.evictions,
            admission: usage.admission.as_ref().map(MemoryAdmissionStatus::of),
            freezing: freezing.as_ref().map(FreezingStatus::of),
        };
        Status {
            volumes: self.facts.volumes.iter().map(volume).collect(),
            threads: self.threads.iter().map(thread).collect(),
            tiers: self
                .facts
                .tiers
                .iter()
                .zip(self.sum.tiers())
                .map(|(facts, it)| facts.status(it))
                .collect(),
            degraded: self.is_degraded(),
            journal_lost: self.facts.journal_lost(),
            refused_bytes: self.sum.tiers().map(|(stats, _)| stats.refused_bytes).sum(),
            session: self.facts.top().session,
            bypassed_bytes: counters.bypassed_bytes,
            write_mode: self.facts.top().mode.to_string(),
            evict: self.facts.top().evict.clone(),
            uptime_seconds: self.facts.uptime.as_secs_f64(),
            connections: self.sum.clients(),
            read_requests: requests.reads,
            read_hits: requests.read_hits,
            read_hit_ratio: ratio(requests.read_hits, requests.reads),
            read_bytes: requests.read_bytes,
            write_requests: requests.writes,
            write_hits: requests.write_hits,
            write_hit_ratio: ratio(requests.write_hits, requests.writes),
            write_bytes: requests.write_bytes,
            flush_requests: requests.flushes,
            trim_requests: requests.trims,
            errors: requests.errors + tally.requests_refused,
            blocks_replaced: counters.blocks_replaced,
            groups_emptied: counters.groups_emptied,
            joined_reads: counters.joined_reads,
            backing_read_bytes: lowest.backing_read_bytes,
            backing_write_bytes: lowest.backing_write_bytes,
            cache_read_bytes: counters.cache_read_bytes,
            cache_write_bytes: counters.cache_write_bytes,
            cache_errors: self.sum.cache_errors,
            backing_errors: self.sum.backing_errors,
            cache_size_bytes: self.facts.top().size_bytes,
            valid_bytes: stats.valid_bytes,
            dirty_bytes: stats.dirty_bytes,
            cleaned_bytes: counters.cleaned_bytes,
            seconds_to_clean: self.seconds_to_clean,
            corrupt_sectors: self.sum.tiers().map(|(stats, _)| stats.corrupt_sectors).sum(),
            lost: LostStatus::of(std::slice::from_ref(&self.sum), &self.facts.volumes),
            metadata_bytes: stats.block_metadata_bytes + stats.sector_metadata_bytes,
            blocks: stats
                .blocks
                .iter()
                .map(|&(block_bytes, blocks)| BlockCount { block_bytes, blocks })
                .collect(),
            prefetched_blocks: counters.prefetched_blocks,
            prefetched_bytes: counters.prefetched_bytes,
            prefetched_used_blocks: counters.prefetched_used_blocks,
            memory: self.facts.memory.as_ref().map(memory),
            admission: self
                .facts
                .top()
                .admission
                .as_ref()
                .map(|admission| AdmissionStatus::of(admission, stats)),
            shedding: self
                .facts
                .shedding
                .as_ref()
                .map(|facts| SheddingStatus::of(facts, counters.shed_bytes)),
            spun_seconds: self.sum.spun.as_secs_f64(),
            read_latency: tally.latencies(Operation::Read).summary(),
            write_latency: tally.latencies(Operation::Write).summary(),
            advice: self.advice.clone(),
        }
    }
}
