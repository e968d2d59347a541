//! The status of a server, as JSON for people and programs. `metrics` renders it for Prometheus.

mod advice;
mod counters;
mod tiers;

use std::fmt;
use std::ops::Deref;
use std::time::{Duration, SystemTime};

use floe_block::{Counts, Declaration, FreezeStats, MemoryUse, MemoryWrite, Stats, VolumeId};
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};

use crate::pair::PairStatus;

pub use advice::AdviceStatus;
pub use counters::{ByProtocol, ClientCounts};
pub use tiers::{
    AdmissionStatus, FreezingStatus, LostPlace, LostStatus, MemoryAdmissionStatus, MemoryStatus,
    MirrorHalfStatus, MirrorTierStatus, OpenedStatus, SheddingDecisionStatus, SheddingStatus,
    TierStatus,
};

pub(crate) use advice::{Counted, Lately, ServiceTimes};
pub(crate) use counters::{
    Answered, By, Found, Latencies, Operation, Percentiles, Snapshot, Spread, ThreadCounters,
    VolumeCounters,
};
pub(crate) use tiers::{CacheFacts, SheddingFacts};

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
    /// Their number.
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
    /// Clients that use it now: connections of NBD clients, and NVMe hosts with I/O queues.
    pub connections: u64,
    /// The same by protocol.
    #[serde(default)]
    pub connections_by_protocol: ByProtocol,
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
    /// Times it had to wake another thread for them.
    pub wakes: u64,
}

/// The server as a whole.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServerStatus {
    /// `through`, `around`, `back`, `only` or `pass`.
    pub write_mode: String,
    /// The policy that decides what leaves the cache, as for `--evict`.
    pub evict: String,
    /// Time since the start.
    pub uptime_seconds: f64,
    /// Processor time burnt in imitating fast media; 0 on real devices.
    pub spun_seconds: f64,
}

/// Shares of requests that were hits, 0 where there were none, and their latencies.
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

/// Devices, and the content of the cache beside what is counted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// Failed operations of the cache device.
    pub cache_errors: u64,
    /// Failed operations of the backing device.
    pub backing_errors: u64,
    /// Bytes the cache may hold.
    pub cache_size_bytes: u64,
    /// Memory for blocks, groups and bits.
    pub metadata_bytes: u64,
    /// Time it would take to clean what is dirty as fast as was done lately; `None` when nothing
    /// was cleaned lately.
    pub seconds_to_clean: Option<f64>,
    /// Dirty data of which the only copy is gone.
    pub lost: LostStatus,
    /// Blocks by size, smallest first.
    pub blocks: Vec<BlockCount>,
}

/// All that `floe status` prints. With several tiers, the figures of the cache are those of the
/// first tier, and backing devices are those below the last one. `tiers` has each tier.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The volumes, the default one first.
    pub volumes: Vec<VolumeStatus>,
    /// The threads that serve.
    pub threads: Vec<ThreadStatus>,
    /// The tiers of the cache, from the top.
    #[serde(default)]
    pub tiers: Vec<TierStatus>,
    /// The cache device of some tier, or a part of it, has failed, and requests for data cached
    /// there bypass it; or a mirror lacks a half.
    pub degraded: bool,
    /// The journal of some tier cannot be written: nothing is cached there any more.
    pub journal_lost: bool,
    /// Counts the times the cache was opened; `None` for one that ends with the server.
    pub session: Option<u64>,
    /// The state in which this server found all persistent tiers; `None` without one.
    #[serde(default)]
    pub opened: Option<OpenedStatus>,
    /// Connections of clients now. An NVMe host has one for each of its queues.
    pub connections: u64,
    /// The same by protocol.
    #[serde(default)]
    pub connections_by_protocol: ByProtocol,
    /// The server as a whole.
    #[serde(flatten)]
    pub server: ServerStatus,
    /// Hit ratios and latencies.
    #[serde(flatten)]
    pub requests: RequestStatus,
    /// Devices and the cache's content.
    #[serde(flatten)]
    pub devices: DeviceStatus,
    /// Counters of the cache. Refused, lost and corrupt data is counted for all tiers; bytes of
    /// backing devices are the last tier's.
    #[serde(flatten)]
    pub cache: Published<Stats>,
    /// Counters of connections.
    #[serde(flatten)]
    pub clients: Published<ClientCounts>,
    /// The tier in memory, if there is one.
    pub memory: Option<MemoryStatus>,
    /// Blocks offered to the cache and admitted; `None` where everything is.
    pub admission: Option<AdmissionStatus>,
    /// The share of hits that is shed, if any may be.
    pub shedding: Option<SheddingStatus>,
    /// Advice on what limits reads; `None` where there have been none lately.
    pub advice: Option<AdviceStatus>,
    /// Its part in its pair, if it is one of two.
    #[serde(default)]
    pub pair: Option<PairStatus>,
}

/// A volume as all threads know it.
#[derive(Debug, Clone)]
pub(crate) struct VolumeFacts {
    pub(crate) id: VolumeId,
    /// Its id in each tier, from the top.
    pub(crate) ids: Vec<VolumeId>,
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) read_only: bool,
}

/// Facts that all threads know alike.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    /// The default one first.
    pub(crate) volumes: Vec<VolumeFacts>,
    /// The tiers, at least one, from the top.
    pub(crate) tiers: Vec<CacheFacts>,
    pub(crate) started: SystemTime,
    pub(crate) uptime: Duration,
    pub(crate) memory: Option<MemoryFacts>,
    pub(crate) shedding: Option<SheddingFacts>,
    /// Service times that advice goes by.
    pub(crate) service: ServiceTimes,
    /// Lines of the log that were dropped.
    pub(crate) log_lines_dropped: u64,
    /// Its part in its pair.
    pub(crate) pair: Option<PairStatus>,
}

/// The state of the tier in memory.
#[derive(Debug, Clone)]
pub(crate) struct MemoryFacts {
    pub(crate) write: MemoryWrite,
    pub(crate) usage: MemoryUse,
    pub(crate) freezing: Option<FreezeStats>,
}

/// A snapshot of a server, from which [`Status`] and the metrics are made.
pub(crate) struct Report {
    pub(crate) facts: Facts,
    /// Counts by thread.
    pub(crate) threads: Vec<Snapshot>,
    /// All of it together.
    pub(crate) sum: Snapshot,
    /// Advice on what limits reads.
    pub(crate) advice: Option<AdviceStatus>,
    /// Time it would take to clean what is dirty.
    pub(crate) seconds_to_clean: Option<f64>,
    /// Recent counts, of which the advice is.
    lately: Counted,
}

impl Facts {
    /// The first tier, which clients' requests come to.
    pub(crate) fn top(&self) -> &CacheFacts {
        &self.tiers[0]
    }

    /// Returns true if the journal of some tier cannot be written.
    pub(crate) fn journal_lost(&self) -> bool {
        self.tiers.iter().any(|tier| tier.journal_lost)
    }
}

/// A share, 0 of nothing.
fn ratio(part: u64, all: u64) -> f64 {
    if all == 0 { 0.0 } else { part as f64 / all as f64 }
}

impl Report {
    pub(crate) fn new(facts: Facts, threads: Vec<Snapshot>) -> Self {
        let mut sum = Snapshot::default();
        threads.iter().for_each(|thread| sum += thread);
        let (advice, seconds_to_clean, lately) = (None, None, Counted::default());
        Self { facts, threads, sum, advice, seconds_to_clean, lately }
    }

    /// Adds advice, on what was counted lately.
    pub(crate) fn advise(&mut self, lately: &mut Lately, processor: Duration) {
        let now = Counted::of(&self.sum, self.facts.uptime, processor);
        let lately = lately.until(now);
        self.advice = AdviceStatus::of(&self.facts, self.threads.len(), &lately);
        self.seconds_to_clean = lately.seconds_to_clean(self.sum.stats.dirty_bytes);
        self.lately = lately;
    }

    /// Returns hit ratios of memory with the reads a second that the model predicts for them;
    /// `None` where there is no advice on memory.
    pub(crate) fn model_curve(&self) -> Option<Vec<(f64, f64)>> {
        advice::model_curve(&self.facts, self.threads.len(), &self.lately)
    }

    /// Returns true if the cache device of some tier has been given up, or a mirror lacks a half.
    pub(crate) fn is_degraded(&self) -> bool {
        self.sum.tiers().any(|(stats, _)| stats.degraded_shards > 0)
            || self.facts.tiers.iter().any(CacheFacts::lacks_half)
    }

    /// Counters of the cache as they are published: those of the first tier, but for what is
    /// refused, lost, corrupt or mended in any, and the backing devices' bytes, which are those of
    /// the last tier.
    pub(crate) fn cache(&self) -> Stats {
        let mut cache = self.sum.stats.clone();
        for (tier, _) in self.sum.tiers().skip(1) {
            cache.corrupt_sectors += tier.corrupt_sectors;
            cache.mended_sectors += tier.mended_sectors;
            cache.lost_bytes += tier.lost_bytes;
            cache.refused_bytes += tier.refused_bytes;
        }
        let lowest = &self.sum.lowest().counters;
        cache.counters.backing_read_bytes = lowest.backing_read_bytes;
        cache.counters.backing_write_bytes = lowest.backing_write_bytes;
        cache.requests.errors += self.sum.counters.clients.requests_refused;
        cache
    }

    pub(crate) fn status(&self) -> Status {
        let Snapshot { counters, stats, .. } = &self.sum;
        let (facts, top, requests) = (&self.facts, self.facts.top(), &stats.requests);
        let tiers = facts.tiers.iter().zip(self.sum.tiers());
        let admission = |admission: &String| AdmissionStatus::of(admission, stats);
        let shedding = |facts| SheddingStatus::of(facts, stats.counters.shed_bytes);
        Status {
            volumes: facts.volumes.iter().map(|facts| self.volume(facts)).collect(),
            threads: self.threads.iter().map(ThreadStatus::of).collect(),
            tiers: tiers.map(|(facts, it)| facts.status(it)).collect(),
            degraded: self.is_degraded(),
            journal_lost: facts.journal_lost(),
            session: top.session,
            opened: OpenedStatus::sum(facts.tiers.iter().filter_map(|tier| tier.opened.as_ref())),
            connections: self.sum.connections.total(),
            connections_by_protocol: self.sum.connections,
            server: ServerStatus {
                write_mode: top.mode.to_string(),
                evict: top.evict.clone(),
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
            admission: top.admission.as_ref().map(admission),
            shedding: facts.shedding.as_ref().map(shedding),
            advice: self.advice.clone(),
            pair: facts.pair.clone(),
        }
    }

    fn volume(&self, facts: &VolumeFacts) -> VolumeStatus {
        let answered = self.sum.counters.volume(facts.id).answered;
        let users = self.sum.users(facts.id);
        VolumeStatus {
            name: facts.name.clone(),
            bytes: facts.bytes,
            read_only: facts.read_only,
            connections: users.total(),
            connections_by_protocol: users,
            requests: answered.iter().map(|answered| answered.requests).sum(),
        }
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

/// The declaration of a whole whose fields have their own.
const WHOLE: &Declaration = &Declaration::internal("");

/// Counters whose published fields are fields of a JSON object; the others are not in it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Published<T>(pub T);

impl<T> Deref for Published<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Counts> Published<T> {
    /// The fields, each with its value.
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

/// Fields that are not there are 0: a server of an older version counts less.
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
