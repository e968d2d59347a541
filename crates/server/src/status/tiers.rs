//! The tiers in the status, from the top, with their admissions, mirrors and losses, and the memory
//! tier.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use floe_block::{
    AdmissionStats, Config, FreezeStats, SECTOR_BYTES, SheddingDecision, Stats, format_size,
};
use floe_device::{MirrorStatus, MirrorWatch};
use floe_policy::Adaptation;
use serde::{Deserialize, Serialize};

use super::{MemoryFacts, Snapshot, VolumeFacts, ratio};

/// Status of one tier of the cache. The first tier receives the clients' requests. Every other tier
/// receives requests of the tier above: reads of its misses, its writes, and the ranges it zeroes
/// or discards.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TierStatus {
    /// Device and settings of the tier, as the user wrote them.
    #[serde(default)]
    pub name: String,
    /// The write mode: `through`, `around`, `back`, `only` or `pass`.
    pub write_mode: String,
    /// The eviction policy, as for `--evict`.
    pub evict: String,
    /// Number of times that the tier was opened; `None` for a volatile tier.
    pub session: Option<u64>,
    /// The state in which this server found the tier; `None` for a volatile tier.
    #[serde(default)]
    pub opened: Option<OpenedStatus>,
    /// True if the tier's device, or a part of it, has failed and is no longer used.
    pub degraded: bool,
    /// True if the tier's journal cannot be written.
    pub journal_lost: bool,
    /// Progress of the bypass after the journal has failed; empty without a bypass. `emptying`
    /// while dirty data is written back, `stuck` when some of it cannot be written. `ended` when
    /// the cache is retired, `ended-unnoted` when its device could not record that.
    #[serde(default)]
    pub bypass: String,
    /// Upper bound of the bytes for which requests may be refused: lost data, and dirty data that
    /// cannot be read or replaced.
    #[serde(default)]
    pub refused_bytes: u64,
    /// Reads answered.
    pub read_requests: u64,
    /// Reads that found all of their data cached.
    pub read_hits: u64,
    /// Share of reads that were hits; 0 without reads.
    pub read_hit_ratio: f64,
    /// Writes answered.
    pub write_requests: u64,
    /// Writes for whose data the tier already had blocks.
    pub write_hits: u64,
    /// Bytes read from the tier's device.
    pub cache_read_bytes: u64,
    /// Bytes written to the tier's device.
    pub cache_write_bytes: u64,
    /// Failed operations of the tier's device.
    pub cache_errors: u64,
    /// Bytes read from the tier below, or from the backing devices.
    pub below_read_bytes: u64,
    /// Bytes written to the tier below, or to the backing devices.
    pub below_write_bytes: u64,
    /// Capacity of the tier in bytes.
    pub size_bytes: u64,
    /// Bytes of valid data in the tier.
    pub valid_bytes: u64,
    /// Bytes of dirty data in the tier: the tier below or the backing devices do not have it yet.
    pub dirty_bytes: u64,
    /// Bytes of memory for the tier's directory: blocks, groups and bits.
    pub metadata_bytes: u64,
    /// Number of smallest blocks prefetched because they came next in a sequential stream.
    pub prefetched_blocks: u64,
    /// Bytes of the prefetched blocks.
    pub prefetched_bytes: u64,
    /// Prefetched blocks that were read before they were evicted.
    pub prefetched_used_blocks: u64,
    /// Bytes read into the tier because an operator warmed a volume; `None` from a server of an
    /// earlier version.
    #[serde(default)]
    pub warmed_bytes: Option<u64>,
    /// Bytes dropped from the tier because an operator evicted a volume; `None` from a server of an
    /// earlier version.
    #[serde(default)]
    pub dropped_bytes: Option<u64>,
    /// The settings that the eviction policy chooses from, with its estimates; `None` if its
    /// settings do not change.
    #[serde(default)]
    pub adaptation: Option<Adaptation>,
    /// Seconds since the eviction policy changed its setting, which the server looks at every few
    /// seconds; `None` if it never has.
    #[serde(default)]
    pub seconds_since_switch: Option<f64>,
    /// Counters of the admission; `None` if everything is admitted.
    pub admission: Option<AdmissionStatus>,
    /// Status of the mirror on which the tier is; `None` on another device.
    #[serde(default)]
    pub mirror: Option<MirrorDeviceStatus>,
}

impl TierStatus {
    /// Returns a word for the tier's worst condition, such as `DEGRADED`, else `kept` for a
    /// persistent tier, else an empty text.
    pub fn standing(&self) -> &'static str {
        match self {
            Self { refused_bytes: 1.., .. } => "REFUSING",
            Self { journal_lost: true, bypass, .. } if bypass.starts_with("ended") => "ENDED",
            Self { journal_lost: true, .. } => "JOURNAL LOST",
            Self { degraded: true, .. } => "DEGRADED",
            Self { mirror: Some(mirror), .. } if mirror.degraded => "HALF OUT",
            Self { session: Some(_), .. } => "kept",
            _ => "",
        }
    }
}

/// Identifies a tier for the lifetime of the server, while its position may change. Keys are never
/// reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TierKey(pub(crate) u32);

/// Properties of a tier that are the same for all threads.
#[derive(Debug, Clone)]
pub(crate) struct CacheFacts {
    pub(crate) key: TierKey,
    pub(crate) name: String,
    pub(crate) config: Arc<Config>,
    pub(crate) session: Option<u64>,
    pub(crate) opened: Option<OpenedStatus>,
    pub(crate) journal_lost: bool,
    pub(crate) bypass: &'static str,
    pub(crate) size_bytes: u64,
    pub(crate) mirror: Option<MirrorWatch>,
}

impl CacheFacts {
    /// Returns whether the tier's mirror has a half that is not in sync, is fenced, or waits for
    /// its witness.
    pub(crate) fn lacks_half(&self) -> bool {
        let status = self.mirror.as_ref().and_then(MirrorWatch::status);
        status.as_ref().is_some_and(MirrorStatus::is_degraded)
    }

    /// Makes the tier's status from these properties and the counters. The number is that of failed
    /// device operations; the duration, the time since the eviction policy changed its setting.
    pub(super) fn status(
        &self,
        (stats, cache_errors): (&Stats, u64),
        since_switch: Option<Duration>,
    ) -> TierStatus {
        let Stats { requests, counters, .. } = stats;
        TierStatus {
            name: self.name.clone(),
            write_mode: self.config.mode.to_string(),
            evict: self.config.evict.to_string(),
            session: self.session,
            opened: self.opened.clone(),
            degraded: stats.degraded_shards > 0,
            journal_lost: self.journal_lost,
            bypass: self.bypass.to_owned(),
            refused_bytes: stats.refused_bytes,
            read_requests: requests.reads,
            read_hits: requests.read_hits,
            read_hit_ratio: super::ratio(requests.read_hits, requests.reads),
            write_requests: requests.writes,
            write_hits: requests.write_hits,
            cache_read_bytes: counters.cache_read_bytes,
            cache_write_bytes: counters.cache_write_bytes,
            cache_errors,
            below_read_bytes: counters.backing_read_bytes,
            below_write_bytes: counters.backing_write_bytes,
            size_bytes: self.size_bytes,
            valid_bytes: stats.valid_bytes,
            dirty_bytes: stats.dirty_bytes,
            metadata_bytes: stats.metadata_bytes(),
            prefetched_blocks: counters.prefetched_blocks,
            prefetched_bytes: counters.prefetched_bytes,
            prefetched_used_blocks: counters.prefetched_used_blocks,
            warmed_bytes: Some(counters.warmed_bytes),
            dropped_bytes: Some(counters.dropped_bytes),
            adaptation: stats.adaptation.clone(),
            seconds_since_switch: since_switch.map(|since| since.as_secs_f64()),
            admission: AdmissionStatus::of(&self.config, stats),
            mirror: self.mirror.as_ref().and_then(MirrorWatch::status).map(MirrorDeviceStatus::of),
        }
    }
}

/// Counters of a tier's admission, in smallest blocks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdmissionStatus {
    /// Name of the admission, as for `--admit`.
    pub admission: String,
    /// Blocks read or written that were not cached.
    pub offered_blocks: u64,
    /// Blocks admitted.
    pub admitted_blocks: u64,
    /// Blocks rejected.
    pub bypassed_blocks: u64,
    /// Blocks of any size that were not inserted, because the admission allowed no eviction for
    /// them.
    pub stores_withheld: u64,
    /// Writes that dropped clean copies and went only to the device below, because the admission
    /// declined newer data of cached blocks.
    #[serde(default)]
    pub declined_overwrites: u64,
    /// Blocks that the admission ordered to be fetched.
    pub ordered_blocks: u64,
    /// Blocks that came to hold data.
    #[serde(default)]
    pub inserted_blocks: u64,
    /// Blocks whose data was dropped because it was outdated.
    #[serde(default)]
    pub removed_blocks: u64,
    /// Blocks whose data was evicted.
    #[serde(default)]
    pub evicted_blocks: u64,
    /// Bytes of memory that the admission uses.
    pub admission_bytes: u64,
}

impl AdmissionStatus {
    /// Returns the counters of a tier's admission; `None` if everything is admitted.
    pub(super) fn of(config: &Config, stats: &Stats) -> Option<Self> {
        let counted = &stats.counters;
        config.gate.policy().map(|admission| Self {
            admission,
            offered_blocks: counted.offered_blocks,
            admitted_blocks: counted.admitted_blocks,
            bypassed_blocks: counted.offered_blocks - counted.admitted_blocks,
            stores_withheld: counted.stores_withheld,
            declined_overwrites: counted.declined_overwrites,
            ordered_blocks: counted.ordered_blocks,
            inserted_blocks: counted.inserted_blocks,
            removed_blocks: counted.removed_blocks,
            evicted_blocks: counted.evicted_blocks,
            admission_bytes: stats.admission_bytes,
        })
    }
}

/// Counters of the admission to the memory tier, in pages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryAdmissionStatus {
    /// Name of the admission, as for `--memory-admit`.
    pub admission: String,
    /// Pages read or written that were not in memory. A read that joins a pending load of the same
    /// page offers none.
    pub offered_pages: u64,
    /// Pages admitted.
    pub admitted_pages: u64,
    /// Pages rejected.
    pub bypassed_pages: u64,
}

impl MemoryAdmissionStatus {
    pub(super) fn of(stats: &AdmissionStats) -> Self {
        Self {
            admission: stats.name.clone(),
            offered_pages: stats.offered,
            admitted_pages: stats.admitted,
            bypassed_pages: stats.bypassed,
        }
    }
}

/// Maximum number of places of lost data that one log line names.
const MOST_NAMED: usize = 4;

/// Amount and places of lost data.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostStatus {
    /// Bytes of lost data. Reads of them fail until they are written anew.
    pub bytes: u64,
    /// Places of the lost data; the list may be incomplete.
    pub places: Vec<LostPlace>,
}

/// A lost range of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostPlace {
    /// Name of the volume.
    pub volume: String,
    /// Byte offset of the range in the volume.
    pub offset: u64,
    /// Length of the range in bytes.
    pub bytes: u64,
}

impl LostStatus {
    pub(crate) fn of(snapshots: &[Snapshot], volumes: &[VolumeFacts]) -> Self {
        let mut lost = Self::default();
        for (tier, (stats, _)) in snapshots.iter().flat_map(|snapshot| snapshot.tiers().enumerate())
        {
            lost.bytes += stats.lost_bytes;
            for (id, run) in &stats.lost_runs {
                let of = volumes.iter().find(|facts| facts.ids.get(tier) == Some(id));
                lost.places.push(LostPlace {
                    volume: of
                        .map_or_else(|| "one that is gone".to_owned(), |facts| facts.name.clone()),
                    offset: run.start * SECTOR_BYTES,
                    bytes: (run.end - run.start) * SECTOR_BYTES,
                });
            }
        }
        lost
    }
}

impl fmt::Display for LostStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of dirty data are lost, because the cache device returned something else: ",
            format_size(self.bytes)
        )?;
        let mut named = 0;
        for (at, LostPlace { volume, offset, bytes }) in
            self.places.iter().take(MOST_NAMED).enumerate()
        {
            let comma = if at > 0 { ", " } else { "" };
            write!(f, "{comma}{} at {offset} of {volume}", format_size(*bytes))?;
            named += bytes;
        }
        if named < self.bytes {
            write!(f, " and more")?;
        }
        write!(f, "; they read as errors until they are written anew")
    }
}

/// The state in which this server found a persistent cache when it opened the cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenedStatus {
    /// End of the session before: `clean`, or `unclean` after a crash, a kill or a loss of power.
    /// `new` without an earlier session.
    pub ended: String,
    /// Bytes of dirty data that were recovered.
    pub dirty_bytes: u64,
    /// Bytes of valid data that were recovered, clean and dirty.
    pub valid_bytes: u64,
}

impl OpenedStatus {
    /// Adds up the states of all persistent tiers. Returns `None` without one. An unclean end of
    /// one tier counts for all.
    pub(super) fn sum<'a>(tiers: impl Iterator<Item = &'a Self>) -> Option<Self> {
        let rank = |ended: &str| ["new", "clean", "unclean"].iter().position(|it| *it == ended);
        tiers.cloned().reduce(|sum, tier| Self {
            ended: if rank(&tier.ended) > rank(&sum.ended) { tier.ended } else { sum.ended },
            dirty_bytes: sum.dirty_bytes + tier.dirty_bytes,
            valid_bytes: sum.valid_bytes + tier.valid_bytes,
        })
    }
}

/// Status of a mirror that is the device of a tier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MirrorDeviceStatus {
    /// True if a half is not in sync, the mirror is fenced, or the witness fails.
    pub degraded: bool,
    /// Generation of the mirror. It grows at each start, and when a half leaves or comes back.
    pub generation: u64,
    /// Bytes still to be copied between halves.
    pub resync_bytes: u64,
    /// True if another server owns the mirror, so that this one does not serve it.
    pub fenced: bool,
    /// The witness's error, while changes of the halves wait for the witness.
    pub witness_error: Option<String>,
    /// The halves, in the order of their numbers.
    pub halves: Vec<MirrorHalfStatus>,
}

/// Status of one half of a mirror.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MirrorHalfStatus {
    /// Device of the half.
    pub name: String,
    /// State of the half: `in-sync`, `resync` or `out`.
    pub state: String,
    /// The last error of a half that is not in sync.
    pub error: Option<String>,
    /// Bytes that the half did not return as they were stored, and that were rewritten from another
    /// half.
    #[serde(default)]
    pub mended_bytes: u64,
}

impl MirrorDeviceStatus {
    pub(super) fn of(status: MirrorStatus) -> Self {
        let degraded = status.is_degraded();
        let MirrorStatus { generation, halves, resync_bytes, fenced, witness_error, .. } = status;
        let halves = halves.into_iter().map(|half| MirrorHalfStatus {
            name: half.name,
            state: half.state.to_owned(),
            error: half.error,
            mended_bytes: half.mended_bytes,
        });
        let halves = halves.collect();
        Self { degraded, generation, resync_bytes, fenced, witness_error, halves }
    }
}

/// Status of the shed controller, which sends some hits of the cache device to the backing devices.
/// Shares are fractions of 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SheddingStatus {
    /// Largest share of hits that may be shed.
    pub most: f64,
    /// Share of hits to shed, by the last decision.
    pub share: f64,
    /// Share of hits shed at this moment. It differs from `share` while the controller tries
    /// another share.
    pub share_now: f64,
    /// Bytes of hits that were read from the backing devices.
    pub shed_bytes: u64,
    /// The last decisions of the shed controller, newest last.
    pub decisions: Vec<SheddingDecisionStatus>,
}

/// A decision of the shed controller.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SheddingDecisionStatus {
    /// Time of the decision, in seconds since the server's start.
    pub seconds: f64,
    /// Share of hits to shed after the decision.
    pub share: f64,
    /// Reason for the decision, in words and numbers.
    pub reason: String,
}

impl SheddingDecisionStatus {
    pub(crate) fn of(decision: &SheddingDecision) -> Self {
        let SheddingDecision { at, share, reason, .. } = decision;
        Self { seconds: at.as_secs_f64(), share: *share, reason: reason.clone() }
    }
}

/// Status of the memory tier.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemoryStatus {
    /// Maximum number of bytes that the memory tier may use, metadata included.
    pub size_bytes: u64,
    /// The write mode: `through` or `back`.
    pub write_mode: String,
    /// Bytes of pages in the memory tier.
    pub page_bytes: u64,
    /// Bytes of unflushed data: only the memory tier has them.
    pub dirty_bytes: u64,
    /// Reads answered from memory. They count as hits of the cache, too.
    pub read_hits: u64,
    /// Share of all reads that were answered from memory; 0 without reads.
    pub read_hit_ratio: f64,
    /// Bytes of the reads answered from memory.
    pub read_bytes: u64,
    /// Pages evicted.
    pub pages_evicted: u64,
    /// Counters of the admission to memory; `None` if everything is admitted.
    pub admission: Option<MemoryAdmissionStatus>,
    /// State of freezing; `None` if it is off.
    pub freezing: Option<FreezingStatus>,
}

/// State of freezing, which serves the hottest pages from an immutable index.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FreezingStatus {
    /// The present phase: `warming-up`, `measuring`, `learning`, `trying-all`, `proving`,
    /// `constructing`, `frozen` or `waiting`.
    pub phase: String,
    /// Share of pages to freeze, as learned last.
    pub ratio: f64,
    /// Share of hits that frozen pages had in the last frozen phase; 0 before the first.
    pub frozen_share: f64,
    /// Nanoseconds of a hit on a frozen page; 0 until it is measured. A read looks up each of its
    /// pages.
    pub frozen_ns: f64,
    /// Nanoseconds of a hit on a page that is not frozen; 0 until it is measured.
    pub dynamic_ns: f64,
    /// Nanoseconds of a miss, until the page is loaded; 0 until it is measured.
    pub miss_ns: f64,
    /// Number of times that a frozen index was built.
    pub constructed: u64,
    /// Number of times that freezing did not pay and was given up.
    pub given_up: u64,
    /// Reason for the last decision, in words.
    pub reason: String,
}

impl MemoryStatus {
    pub(super) fn of(facts: &MemoryFacts, stats: &Stats) -> Self {
        let MemoryFacts { write, usage, freezing } = facts;
        Self {
            size_bytes: usage.size_bytes,
            write_mode: write.to_string(),
            page_bytes: usage.page_bytes,
            dirty_bytes: stats.held_bytes,
            read_hits: stats.memory_hits,
            read_hit_ratio: ratio(stats.memory_hits, stats.requests.reads),
            read_bytes: stats.memory_hit_bytes,
            pages_evicted: usage.evictions,
            admission: usage.admission.as_ref().map(MemoryAdmissionStatus::of),
            freezing: freezing.as_ref().map(FreezingStatus::of),
        }
    }
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

#[cfg(test)]
mod opened_tests {
    use super::*;

    #[test]
    fn one_tier_that_ended_uncleanly_makes_the_whole_unclean() {
        let tier = |ended: &str, dirty_bytes| OpenedStatus {
            ended: ended.to_owned(),
            dirty_bytes,
            valid_bytes: 100,
        };
        let tiers = [tier("new", 0), tier("unclean", 7), tier("clean", 5)];
        let sum = OpenedStatus::sum(tiers.iter()).expect("three tiers");
        assert_eq!(sum, OpenedStatus { valid_bytes: 300, ..tier("unclean", 12) });
        assert_eq!(OpenedStatus::sum([].iter()), None);
    }
}
