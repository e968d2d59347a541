//! The status of a server, as JSON for people and programs. The module `metrics` exports the same
//! counters to Prometheus.

mod advice;
mod counters;
mod size_advice;
mod tiers;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::time::{Duration, SystemTime};

use floe_block::{
    CacheShare, Counts, Declaration, FreezeStats, MemoryUse, MemoryWrite, Stats, VolumeId,
};
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};

use crate::client_name::ClientName;
use crate::named_clients::ClientUse;
use crate::pair::PairStatus;
use crate::total_limit::TotalLimit;
use crate::volume_limit::RequestLimit;
use crate::volume_share::VolumeShare;

pub use advice::AdviceStatus;
pub use counters::{ByProtocol, ClientCounts};
pub use size_advice::SizeAdvice;
pub use tiers::{
    AdmissionStatus, FreezingStatus, LostPlace, LostStatus, MemoryAdmissionStatus, MemoryStatus,
    MirrorDeviceStatus, MirrorHalfStatus, OpenedStatus, SheddingDecisionStatus, SheddingStatus,
    TierStatus,
};

pub(crate) use advice::{Counted, Lately, ServiceTimes};
pub(crate) use counters::{
    Answered, BackingBytes, By, Found, Latencies, Operation, Percentiles, Snapshot, Spread,
    ThreadCounters, VolumeCounters,
};
pub(crate) use size_advice::SizeEstimate;
pub(crate) use tiers::{CacheFacts, TierKey};

/// Latencies in microseconds; 0 without requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Mean latency.
    pub mean_us: f64,
    /// Median latency.
    pub p50_us: f64,
    /// 99th percentile of the latencies.
    pub p99_us: f64,
    /// 99.9th percentile of the latencies.
    pub p999_us: f64,
}

/// Number of cached blocks of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockCount {
    /// Size of each block in bytes.
    pub block_bytes: u64,
    /// Number of blocks of this size.
    pub blocks: u64,
}

/// Status of one volume.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VolumeStatus {
    /// Name of the volume.
    pub name: String,
    /// Size of the volume in bytes.
    pub bytes: u64,
    /// True if clients may not write to the volume.
    pub read_only: bool,
    /// Clients that use the volume now: connections of NBD clients, and NVMe hosts with I/O queues.
    pub connections: u64,
    /// Clients that use the volume now, by protocol.
    #[serde(default)]
    pub connections_by_protocol: ByProtocol,
    /// Requests answered.
    pub requests: u64,
    /// Reads answered.
    #[serde(default)]
    pub read_requests: u64,
    /// Reads of which all was in the first tier or in memory.
    #[serde(default)]
    pub read_hits: u64,
    /// Limits of the volume's requests and connections.
    #[serde(default)]
    pub limit: RequestLimit,
    /// Requests that have waited for the limits.
    #[serde(default)]
    pub delayed_requests: u64,
    /// Sum of the times that they have waited, in seconds.
    #[serde(default)]
    pub delayed_seconds: f64,
    /// Requests of each client that the volume names.
    #[serde(default)]
    pub client_use: BTreeMap<ClientName, ClientUseStatus>,
    /// Clients that were refused because of the limit of connections.
    #[serde(default)]
    pub refused_connections: u64,
    /// Clients that count against the limit of connections, also NVMe hosts without I/O queues.
    #[serde(default)]
    pub counted_connections: ByProtocol,
    /// The share of the volume in each tier.
    #[serde(default)]
    pub cache_share: VolumeShare,
    /// The volume's use of each tier, from the top.
    #[serde(default)]
    pub cached: Vec<CacheUse>,
}

/// Requests of the clients that a name stands for, as limits count them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ClientUseStatus {
    /// Requests that have started.
    pub requests: u64,
    /// Bytes that they read, write, zero or prefetch.
    pub bytes: u64,
    /// Those of the requests that have waited for limits.
    pub delayed_requests: u64,
    /// Sum of the times that they have waited, in seconds.
    pub delayed_seconds: f64,
}

impl From<ClientUse> for ClientUseStatus {
    fn from(counts: ClientUse) -> Self {
        let ClientUse { requests, bytes, delayed_requests, delayed } = counts;
        Self { requests, bytes, delayed_requests, delayed_seconds: delayed.as_secs_f64() }
    }
}

/// The part of one tier that a volume uses, and its bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheUse {
    /// Bytes of the tier that the volume's blocks take.
    pub used_bytes: u64,
    /// Bytes that other volumes do not evict.
    pub guaranteed_bytes: u64,
    /// The most bytes that the volume uses; `None` for all of the tier.
    pub most_bytes: Option<u64>,
}

/// Status of one worker thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadStatus {
    /// Open connections of clients that this thread serves.
    pub connections: u64,
    /// Requests that this thread has answered.
    pub requests: u64,
    /// Bytes of valid data in the thread's part of the cache.
    pub valid_bytes: u64,
    /// Bytes of dirty data in the thread's part of the cache.
    pub dirty_bytes: u64,
    /// Messages sent to other threads: sub-requests forwarded to them, and replies to theirs.
    pub messages: u64,
    /// Times that the thread had to wake another thread for its messages.
    pub wakes: u64,
}

/// Settings of the server, and its run time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServerStatus {
    /// Write mode of the first tier: `through`, `around`, `back`, `only` or `pass`.
    pub write_mode: String,
    /// Eviction policy of the first tier, as for `--evict`.
    pub evict: String,
    /// Seconds since the start.
    pub uptime_seconds: f64,
    /// Seconds of processor time spent on busy waiting in simulated media; 0 on real devices.
    pub spun_seconds: f64,
}

/// Hit ratios, 0 without requests, and latencies of reads and writes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RequestStatus {
    /// Share of reads that were hits.
    pub read_hit_ratio: f64,
    /// Share of writes that were hits.
    pub write_hit_ratio: f64,
    /// Latency of reads.
    pub read_latency: Latency,
    /// Latency of writes.
    pub write_latency: Latency,
}

/// State of the devices, and of the cache's content.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// Failed operations of the cache device.
    pub cache_errors: u64,
    /// Failed operations of the backing devices.
    pub backing_errors: u64,
    /// Capacity of the cache in bytes.
    pub cache_size_bytes: u64,
    /// Bytes of memory for the cache's directory: blocks, groups and bits.
    pub metadata_bytes: u64,
    /// Estimated seconds to clean all dirty data at the recent rate; `None` if nothing was cleaned
    /// recently.
    pub seconds_to_clean: Option<f64>,
    /// Dirty data whose only copy is lost.
    pub lost: LostStatus,
    /// Cached blocks by size, smallest first.
    pub blocks: Vec<BlockCount>,
}

/// All that `floe status` prints. With several tiers, cache figures are those of the first tier,
/// and figures of backing devices are those of the last. `tiers` has the figures of each tier.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The volumes, the default volume first.
    pub volumes: Vec<VolumeStatus>,
    /// Limits of the requests of all volumes together.
    #[serde(default)]
    pub total_limit: TotalLimit,
    /// The worker threads.
    pub threads: Vec<ThreadStatus>,
    /// The tiers of the cache, from the top.
    #[serde(default)]
    pub tiers: Vec<TierStatus>,
    /// True if a cache device or a part of it has failed, so that requests bypass it, or if a
    /// mirror lacks a half.
    pub degraded: bool,
    /// True if the journal of a tier cannot be written: that tier caches nothing any more.
    pub journal_lost: bool,
    /// Number of times that the first tier was opened; `None` if it is volatile.
    pub session: Option<u64>,
    /// The state in which this server found its persistent tiers; `None` without one.
    #[serde(default)]
    pub opened: Option<OpenedStatus>,
    /// Open connections of clients. An NVMe host has one for each of its queues.
    pub connections: u64,
    /// Open connections of clients, by protocol.
    #[serde(default)]
    pub connections_by_protocol: ByProtocol,
    /// Settings of the server, and its run time.
    #[serde(flatten)]
    pub server: ServerStatus,
    /// Hit ratios and latencies.
    #[serde(flatten)]
    pub requests: RequestStatus,
    /// State of the devices, and of the cache's content.
    #[serde(flatten)]
    pub devices: DeviceStatus,
    /// Counters of the cache. Refused, lost and corrupt data is counted in all tiers; bytes of
    /// backing devices are those of the last tier.
    #[serde(flatten)]
    pub cache: Published<Stats>,
    /// Counters of connections.
    #[serde(flatten)]
    pub clients: Published<ClientCounts>,
    /// Status of the memory tier, if the server has one.
    pub memory: Option<MemoryStatus>,
    /// Counters of the first tier's admission; `None` if everything is admitted.
    pub admission: Option<AdmissionStatus>,
    /// Status of the shed controller; `None` if shedding is off.
    pub shedding: Option<SheddingStatus>,
    /// Advice on the bottleneck of reads; `None` without recent reads.
    pub advice: Option<AdviceStatus>,
    /// Advice on the size of the first tier; `None` before 1000 reads.
    #[serde(default)]
    pub size_advice: Option<SizeAdvice>,
    /// The server's role in its pair; `None` if it does not belong to one.
    #[serde(default)]
    pub pair: Option<PairStatus>,
}

/// Facts about a volume that are the same for all threads.
#[derive(Debug, Clone)]
pub(crate) struct VolumeFacts {
    pub(crate) id: VolumeId,
    /// Id of the volume in each tier, from the top.
    pub(crate) ids: Vec<VolumeId>,
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) read_only: bool,
    pub(crate) limit: RequestLimit,
    /// Clients that were refused because of the limit of connections.
    pub(crate) refused: u64,
    /// Clients that count against the limit of connections.
    pub(crate) counted: ByProtocol,
    pub(crate) share: VolumeShare,
    /// Shares of the volume in the tiers, from the top.
    pub(crate) shares: Vec<CacheShare>,
}

/// Facts about the server that are the same for all threads.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    /// The volumes, the default volume first.
    pub(crate) volumes: Vec<VolumeFacts>,
    /// Limits of all volumes together.
    pub(crate) total_limit: TotalLimit,
    /// The tiers, at least one, from the top.
    pub(crate) tiers: Vec<CacheFacts>,
    pub(crate) started: SystemTime,
    pub(crate) uptime: Duration,
    pub(crate) memory: Option<MemoryFacts>,
    /// Status of the shed controller, without `shed_bytes`.
    pub(crate) shedding: Option<SheddingStatus>,
    /// Service times on which advice is based.
    pub(crate) service: ServiceTimes,
    /// Number of log lines that were dropped.
    pub(crate) log_lines_dropped: u64,
    /// The server's role in its pair.
    pub(crate) pair: Option<PairStatus>,
    /// For each tier whose eviction policy has changed its setting, the time since then; a list
    /// that is too short has `None` for the rest.
    pub(crate) since_switch: Vec<Option<Duration>>,
}

/// State of the memory tier, from which [`MemoryStatus`] is made.
#[derive(Debug, Clone)]
pub(crate) struct MemoryFacts {
    pub(crate) write: MemoryWrite,
    pub(crate) usage: MemoryUse,
    pub(crate) freezing: Option<FreezeStats>,
}

/// A snapshot of a server, from which [`Status`] and the metrics are made.
pub(crate) struct Report {
    pub(crate) facts: Facts,
    /// Snapshot of each thread.
    pub(crate) threads: Vec<Snapshot>,
    /// Sum of all threads' snapshots.
    pub(crate) sum: Snapshot,
    /// Advice on the bottleneck of reads.
    pub(crate) advice: Option<AdviceStatus>,
    /// Advice on the size of the first tier.
    pub(crate) size_advice: Option<SizeAdvice>,
    /// Estimated seconds to clean all dirty data.
    pub(crate) seconds_to_clean: Option<f64>,
    /// Counts of the recent interval that the advice covers.
    lately: Counted,
}

impl Facts {
    /// Returns the first tier, which receives the clients' requests.
    pub(crate) fn top(&self) -> &CacheFacts {
        &self.tiers[0]
    }

    /// Returns true if the journal of some tier cannot be written.
    pub(crate) fn journal_lost(&self) -> bool {
        self.tiers.iter().any(|tier| tier.journal_lost)
    }
}

/// Returns `part / all`, or 0 if `all` is 0.
fn ratio(part: u64, all: u64) -> f64 {
    if all == 0 { 0.0 } else { part as f64 / all as f64 }
}

impl Report {
    pub(crate) fn new(facts: Facts, threads: Vec<Snapshot>) -> Self {
        let mut sum = Snapshot::default();
        threads.iter().for_each(|thread| sum += thread);
        Self {
            facts,
            threads,
            sum,
            advice: None,
            size_advice: None,
            seconds_to_clean: None,
            lately: Counted::default(),
        }
    }

    /// Adds advice on the interval since an earlier count in `lately`. `processor` is the processor
    /// time of the process so far.
    pub(crate) fn advise(&mut self, lately: &mut Lately, processor: Duration) {
        let now = Counted::of(&self.sum, self.facts.uptime, processor);
        let lately = lately.until(now);
        self.advice = AdviceStatus::of(&self.facts, self.threads.len(), &lately);
        self.seconds_to_clean = lately.seconds_to_clean(self.sum.stats.dirty_bytes);
        self.lately = lately;
    }

    /// Returns pairs of a hit ratio of the memory tier and the reads per second that the model
    /// predicts for it. Returns `None` without a memory tier or recent reads.
    pub(crate) fn model_curve(&self) -> Option<Vec<(f64, f64)>> {
        advice::model_curve(&self.facts, self.threads.len(), &self.lately)
    }

    /// Returns whether the cache device of a tier has failed, or a mirror lacks a half.
    pub(crate) fn is_degraded(&self) -> bool {
        self.sum.tiers().any(|(stats, _)| stats.degraded_shards > 0)
            || self.facts.tiers.iter().any(CacheFacts::lacks_half)
    }

    /// Returns the published counters of the cache, those of the first tier with two exceptions.
    /// Refused, lost, corrupt and mended data is summed over all tiers, and the bytes of backing
    /// devices are those of all tiers that were the last one.
    pub(crate) fn cache(&self) -> Stats {
        let mut cache = self.sum.stats.clone();
        for (tier, _) in self.sum.tiers().skip(1) {
            cache.corrupt_sectors += tier.corrupt_sectors;
            cache.mended_sectors += tier.mended_sectors;
            cache.lost_bytes += tier.lost_bytes;
            cache.refused_bytes += tier.refused_bytes;
        }
        let BackingBytes { read, written } = self.sum.backing;
        cache.counters.backing_read_bytes = read;
        cache.counters.backing_write_bytes = written;
        cache.requests.errors += self.sum.counters.clients.requests_refused;
        cache
    }

    pub(crate) fn status(&self) -> Status {
        let Snapshot { counters, stats, .. } = &self.sum;
        let (facts, top, requests) = (&self.facts, self.facts.top(), &stats.requests);
        let since_switch = facts.since_switch.iter().copied().chain(std::iter::repeat(None));
        let tiers = facts.tiers.iter().zip(self.sum.tiers()).zip(since_switch);
        let shed_bytes = stats.counters.shed_bytes;
        Status {
            volumes: facts.volumes.iter().map(|facts| self.volume(facts)).collect(),
            total_limit: facts.total_limit,
            threads: self.threads.iter().map(ThreadStatus::of).collect(),
            tiers: tiers.map(|((facts, it), since)| facts.status(it, since)).collect(),
            degraded: self.is_degraded(),
            journal_lost: facts.journal_lost(),
            session: top.session,
            opened: OpenedStatus::sum(facts.tiers.iter().filter_map(|tier| tier.opened.as_ref())),
            connections: self.sum.connections.total(),
            connections_by_protocol: self.sum.connections,
            server: ServerStatus {
                write_mode: top.config.mode.to_string(),
                evict: top.config.evict.to_string(),
                uptime_seconds: facts.uptime.as_secs_f64(),
                spun_seconds: self.sum.spun.as_secs_f64(),
            },
            requests: RequestStatus {
                read_hit_ratio: ratio(requests.read_hits, requests.reads),
                write_hit_ratio: ratio(requests.write_hits, requests.writes),
                read_latency: counters.latencies(Operation::Read).summary(),
                write_latency: counters.latencies(Operation::Write).summary(),
            },
            devices: DeviceStatus {
                cache_errors: self.sum.cache_errors,
                backing_errors: self.sum.backing_errors,
                cache_size_bytes: top.size_bytes,
                metadata_bytes: stats.metadata_bytes(),
                seconds_to_clean: self.seconds_to_clean,
                lost: LostStatus::of(std::slice::from_ref(&self.sum), &facts.volumes),
                blocks: stats.blocks.iter().copied().map(BlockCount::of).collect(),
            },
            cache: Published(self.cache()),
            clients: Published(counters.clients),
            memory: facts.memory.as_ref().map(|memory| MemoryStatus::of(memory, stats)),
            admission: AdmissionStatus::of(&top.config, stats),
            shedding: facts
                .shedding
                .clone()
                .map(|shedding| SheddingStatus { shed_bytes, ..shedding }),
            advice: self.advice.clone(),
            size_advice: self.size_advice.clone(),
            pair: facts.pair.clone(),
        }
    }

    fn volume(&self, facts: &VolumeFacts) -> VolumeStatus {
        let VolumeCounters { answered, hits, delayed } = self.sum.counters.volume(facts.id);
        let users = self.sum.users(facts.id);
        VolumeStatus {
            name: facts.name.clone(),
            bytes: facts.bytes,
            read_only: facts.read_only,
            connections: users.total(),
            connections_by_protocol: users,
            requests: answered.iter().map(|answered| answered.requests).sum(),
            read_requests: answered[Operation::Read as usize].requests,
            read_hits: hits[Operation::Read as usize],
            limit: facts.limit.clone(),
            delayed_requests: delayed.requests,
            delayed_seconds: delayed.time.as_secs_f64(),
            client_use: self.client_use(facts),
            refused_connections: facts.refused,
            counted_connections: facts.counted,
            cache_share: facts.share,
            cached: self.volume_use(facts).collect(),
        }
    }

    fn client_use(&self, facts: &VolumeFacts) -> BTreeMap<ClientName, ClientUseStatus> {
        let names = facts.limit.clients.iter().map(|(name, _)| name);
        names.map(|it| (it.clone(), self.sum.client_use(facts.id, it).into())).collect()
    }

    /// Returns the parts of the tiers that a volume uses, from the top.
    pub(crate) fn volume_use(&self, facts: &VolumeFacts) -> impl Iterator<Item = CacheUse> {
        let shares = facts.ids.iter().zip(&facts.shares);
        shares.zip(self.sum.tiers()).map(|((id, share), (stats, _))| CacheUse {
            used_bytes: stats.volume_bytes.get(usize::from(id.0)).copied().unwrap_or(0),
            guaranteed_bytes: share.guaranteed_bytes,
            most_bytes: share.most_bytes,
        })
    }
}

impl ThreadStatus {
    fn of(snapshot: &Snapshot) -> Self {
        Self {
            connections: snapshot.connections.total(),
            requests: snapshot.counters.requests(),
            valid_bytes: snapshot.stats.valid_bytes,
            dirty_bytes: snapshot.stats.dirty_bytes,
            messages: snapshot.traffic.messages,
            wakes: snapshot.traffic.wakes,
        }
    }
}

impl BlockCount {
    fn of((block_bytes, blocks): (u64, u64)) -> Self {
        Self { block_bytes, blocks }
    }
}

/// Declaration of a struct of counters, whose fields have declarations of their own.
const WHOLE: &Declaration = &Declaration::internal("");

/// Counters that serialise as fields of the JSON object around them. Fields without a JSON name are
/// left out.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Published<T>(pub T);

impl<T> Deref for Published<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Counts> Published<T> {
    /// Returns the declaration and value of each published field.
    pub fn fields(&self) -> Vec<(&'static Declaration, u64)> {
        let mut fields = Vec::new();
        self.0.each(WHOLE, &mut |field, value| {
            if !field.json.is_empty() {
                fields.push((field, value));
            }
        });
        fields
    }
}

impl<T: Counts> Serialize for Published<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let fields = self.fields();
        let mut map = serializer.serialize_map(Some(fields.len()))?;
        for (field, value) in fields {
            map.serialize_entry(field.json, &value)?;
        }
        map.end()
    }
}

/// Missing fields become 0, because a server of an older version has fewer counters.
impl<'de, T: Counts + Default> Deserialize<'de> for Published<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields<T>(T);

        impl<'de, T: Counts> Visitor<'de> for Fields<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("counters")
            }

            fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<T, A::Error> {
                while let Some(name) = map.next_key::<String>()? {
                    let mut is_ours = false;
                    self.0.each_mut(WHOLE, &mut |field, _| is_ours |= field.json == name);
                    if !is_ours {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    let read: u64 = map.next_value()?;
                    self.0.each_mut(WHOLE, &mut |field, value| {
                        if field.json == name {
                            *value = read;
                        }
                    });
                }
                Ok(self.0)
            }
        }

        deserializer.deserialize_map(Fields(T::default())).map(Self)
    }
}

#[cfg(test)]
mod published_tests {
    use floe_block::Stats;
    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Around {
        name: String,
        #[serde(flatten)]
        stats: Published<Stats>,
    }

    #[test]
    fn counters_are_fields_of_the_object_around_them() {
        let mut stats = Stats { dirty_bytes: 4096, held_bytes: 7, ..Stats::default() };
        (stats.requests.reads, stats.counters.restarts) = (5, 9);
        let around = Around { name: "a".to_owned(), stats: Published(stats) };
        let json = serde_json::to_value(&around).expect("it is JSON");
        assert_eq!((&json["read_requests"], &json["dirty_bytes"]), (&5.into(), &4096.into()));
        assert!(json.get("restarts").is_none() && json.get("held_bytes").is_none());
        let read: Around = serde_json::from_value(json).expect("it was written so");
        assert_eq!((read.stats.requests.reads, read.stats.dirty_bytes), (5, 4096));
        assert_eq!((read.stats.counters.restarts, read.stats.held_bytes), (0, 0));
        let older: Around = serde_json::from_str(r#"{"name":"b","x":[1]}"#).expect("it is enough");
        assert_eq!(older.stats, Published::default());
    }
}
