//! Advice on the server's reads: the model's bottleneck and possible gains, from recent counts.
//!
//! Only in the memory tier do hits of one thread wait for another thread. The model therefore
//! describes that tier: its hit ratio, the reads in flight and the latency of its misses. Without a
//! memory tier, each thread owns its lists and no hit waits. The advice then only states how busy
//! the threads are.
//!
//! Counts since the start say little about a server that has run for months. [`Lately`] keeps two
//! earlier counts, so that the advice covers the time since the last request for it, ten seconds or
//! more.

use std::sync::Arc;
use std::time::Duration;

use floe_block::counters;
use floe_model::advice::{Advice, advise, throughputs};
use floe_model::{Load, Policy, Service, Setting, Situation};
use serde::{Deserialize, Serialize};

use super::size_advice::NOTABLE;
use super::{Facts, MemoryFacts, Snapshot};
use crate::status::Operation;

/// Minimum time between two counts that advice compares.
const APART: Duration = Duration::from_secs(10);

/// Maximum number of reads in flight for which the model is evaluated. They are far more than
/// threads, so that one more changes nothing, and few enough for an answer in milliseconds.
const IN_FLIGHT_MAX: f64 = 4096.0;

/// The bottleneck of recent reads, and possible gains. Shares and gains are fractions of 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AdviceStatus {
    /// The tier described: `memory`, or `cache` without a memory tier.
    pub tier: String,
    /// Seconds over which the other numbers were counted.
    pub seconds: f64,
    /// Hit ratio of the tier.
    pub hit_ratio: f64,
    /// Average number of reads in flight.
    pub in_flight: f64,
    /// Average latency of the tier's misses in microseconds; `None` without misses, or if their
    /// latency is not measured separately.
    pub miss_us: Option<f64>,
    /// Reads answered per second.
    pub reads_per_second: f64,
    /// Reads per second that the model predicts; `None` without a memory tier.
    pub model_reads_per_second: Option<f64>,
    /// The resource that limits reads: a list operation, or `cores`.
    pub bottleneck: Option<String>,
    /// Share of time for which the bottleneck is busy; 0 without a bottleneck.
    pub utilisation: f64,
    /// Hit ratio above which more hits cost throughput; 1 if they never do.
    pub p_star: f64,
    /// True if the hit ratio is above `p_star`.
    pub past_p_star: bool,
    /// Gain in throughput if all hits came from frozen pages.
    pub frozen_gain: Option<f64>,
    /// Eviction policy with the highest predicted throughput at this hit ratio.
    pub other_policy: Option<String>,
    /// Gain in throughput from `other_policy`.
    pub other_gain: Option<f64>,
    /// The advice in plain sentences.
    pub text: String,
}

counters! {
    /// Counts from which advice is computed, since the start or over an interval.
    #[derive(Debug, Clone, Copy, Default, PartialEq)]
    pub(crate) struct Counted {
        /// Length of the interval.
        time: Duration,
        /// Requests of any kind.
        requests: u64,
        reads: u64,
        memory_hits: u64,
        /// Reads that hit the cache or the memory tier.
        cache_hits: u64,
        /// Sum of the latencies of all reads.
        reading: Duration,
        /// Sum of the latencies of reads that the memory tier answered.
        from_memory: Duration,
        /// Processor time of the process, without busy waiting in simulated media.
        processor: Duration,
        /// Bytes of dirty data written to the backing devices.
        cleaned_bytes: u64,
    }
}

impl Counted {
    /// Extracts the counts from the sum of all threads' snapshots, `uptime` after the start.
    pub(crate) fn of(sum: &Snapshot, uptime: Duration, processor: Duration) -> Self {
        let latencies = sum.counters.latencies(Operation::Read);
        Self {
            time: uptime,
            requests: sum.counters.requests(),
            reads: latencies.count(),
            memory_hits: sum.stats.memory_hits,
            cache_hits: sum.stats.requests.read_hits,
            reading: latencies.sum(),
            from_memory: sum.counters.from_memory,
            processor: processor.saturating_sub(sum.spun),
            cleaned_bytes: sum.stats.counters.cleaned_bytes,
        }
    }

    /// Returns the share of the time for which `threads` threads were busy.
    fn busy(&self, threads: usize) -> f64 {
        let time = self.time.as_secs_f64() * threads.max(1) as f64;
        (self.processor.as_secs_f64() / time).min(1.0)
    }

    /// Returns the average number of reads in flight.
    fn in_flight(&self) -> f64 {
        self.reading.as_secs_f64() / self.time.as_secs_f64()
    }

    /// Estimates the seconds to clean this many bytes at the recent rate. Returns `None` if nothing
    /// was cleaned recently.
    pub(super) fn seconds_to_clean(&self, dirty_bytes: u64) -> Option<f64> {
        match (dirty_bytes, self.cleaned_bytes) {
            (0, _) => Some(0.0),
            (_, 0) => None,
            (dirty, cleaned) => Some(dirty as f64 / cleaned as f64 * self.time.as_secs_f64()),
        }
    }
}

/// Two earlier counts, from which the counts of a recent interval are computed.
#[derive(Debug, Default)]
pub(crate) struct Lately {
    older: Counted,
    newer: Counted,
}

impl Lately {
    /// Returns the counts of an interval that ends now. It is at least [`APART`] long, unless the
    /// server is younger.
    pub(crate) fn until(&mut self, now: Counted) -> Counted {
        if now.time.saturating_sub(self.newer.time) >= APART {
            self.older = std::mem::replace(&mut self.newer, now);
        }
        now.since(&self.older)
    }
}

/// Service times for the model: those measured on this machine, or those of the paper.
#[derive(Debug, Clone)]
pub(crate) struct ServiceTimes {
    service: Arc<Service>,
    is_measured: bool,
}

impl ServiceTimes {
    /// Chooses the measured service times, or those of the paper if none were measured.
    pub(crate) fn of(measured: Option<&Arc<Service>>) -> Self {
        match measured {
            Some(service) => Self { service: Arc::clone(service), is_measured: true },
            None => Self { service: Arc::new(Service::paper()), is_measured: false },
        }
    }
}

/// Returns the memory tier's situation as the model's input, and the latency of its misses in
/// microseconds, if any.
fn situation(
    memory: &MemoryFacts,
    threads: usize,
    lately: &Counted,
) -> Option<(Situation, Option<f64>)> {
    let misses = lately.reads.saturating_sub(lately.memory_hits);
    let below = lately.reading.saturating_sub(lately.from_memory).as_secs_f64() * 1e6;
    let miss_us = (misses > 0).then(|| below / misses as f64);
    let hit_ratio = lately.memory_hits.min(lately.reads) as f64 / lately.reads as f64;
    let in_flight = lately.in_flight();
    let frozen = memory.freezing.as_ref().filter(|_| memory.usage.frozen_pages > 0);
    let setting = Setting {
        compute_us: lately.processor.as_secs_f64() * 1e6 / lately.requests.max(1) as f64,
        frozen: frozen.and_then(|freezing| freezing.frozen_share),
        ..Setting::new(hit_ratio, miss_us.unwrap_or(0.0))
    };
    let situation = Situation {
        policy: Policy::alike(memory.usage.policy).ok()?,
        setting,
        load: Load {
            mpl: in_flight.round().clamp(1.0, IN_FLIGHT_MAX) as u32,
            cores: u32::try_from(threads).ok(),
        },
        shards: u32::try_from(memory.usage.shards).ok()?,
    };
    Some((situation, miss_us))
}

/// Number of steps of the hit ratio in a model's curve.
const CURVE_STEPS: u32 = 50;

/// Returns pairs of a hit ratio of the memory tier and the reads per second that the model predicts
/// for it. Returns `None` without a memory tier or reads.
pub(super) fn model_curve(
    facts: &Facts,
    threads: usize,
    lately: &Counted,
) -> Option<Vec<(f64, f64)>> {
    if lately.reads == 0 || lately.time.is_zero() {
        return None;
    }
    let (situation, _) = situation(facts.memory.as_ref()?, threads, lately)?;
    let curve = throughputs(&situation, &facts.service.service, CURVE_STEPS).ok()?;
    Some(curve.into_iter().map(|(hit_ratio, mrps)| (hit_ratio, mrps * 1e6)).collect())
}

/// Share of the time from which on threads are what reads wait for. A server that has just started
/// is busy with that.
const BUSY: f64 = 0.9;

/// Returns the advice on the memory tier in plain sentences.
fn sentences(advice: &Advice, lately: &Counted, threads: usize, times: &ServiceTimes) -> String {
    let mut text = threads_busy(lately, threads);
    if advice.is_past_p_star {
        text.push_str(&format!(
            " More hits in memory would slow reads down, because hits wait for each other to \
             change its list of pages; reads would be fastest with {:.0} % of hits.",
            100.0 * advice.p_star
        ));
    }
    if let Some(frozen) = advice.frozen.filter(|frozen| frozen.gain > NOTABLE) {
        text.push_str(&format!(
            " With its hottest pages frozen (memory-freeze = \"adaptive\") memory would serve up \
             to {:.0} % more reads.",
            100.0 * frozen.gain
        ));
    }
    if advice.is_past_p_star && !times.is_measured {
        text.push_str(
            " This is a model's estimate with the times of another machine; floe bench memory \
             --calibrate measures this one's.",
        );
    }
    text
}

/// Returns the sentence on how busy the threads were.
fn threads_busy(lately: &Counted, threads: usize) -> String {
    let busy = lately.busy(threads);
    let is_limit = busy >= BUSY && lately.time >= APART;
    let verdict = if is_limit { ": they limit reads" } else { "" };
    let (busy, seconds) = (100.0 * busy, lately.time.as_secs_f64());
    format!("The server's threads were busy for {busy:.0} % of the last {seconds:.0} s{verdict}.")
}

impl AdviceStatus {
    /// Computes the advice. Returns `None` if there were no reads.
    pub(crate) fn of(facts: &Facts, threads: usize, lately: &Counted) -> Option<Self> {
        if lately.reads == 0 || lately.time.is_zero() {
            return None;
        }
        match &facts.memory {
            Some(memory) => Self::on_memory(facts, memory, threads, lately),
            None => Some(Self::on_threads(threads, lately)),
        }
    }

    fn on_memory(
        facts: &Facts,
        memory: &MemoryFacts,
        threads: usize,
        lately: &Counted,
    ) -> Option<Self> {
        let (situation, miss_us) = situation(memory, threads, lately)?;
        let hit_ratio = situation.setting.hit_ratio;
        let (seconds, in_flight) = (lately.time.as_secs_f64(), lately.in_flight());
        // Settings are refused where service times lack the policy, so an error means that there is
        // no advice.
        let advice: Advice = advise(&situation, &facts.service.service).ok()?;
        let text = sentences(&advice, lately, threads, &facts.service);
        Some(Self {
            tier: "memory".into(),
            seconds,
            hit_ratio,
            in_flight,
            miss_us,
            reads_per_second: lately.reads as f64 / seconds,
            model_reads_per_second: Some(advice.throughput_mrps * 1e6),
            bottleneck: advice.bottleneck.map(|busy| busy.name.to_owned()),
            utilisation: advice.bottleneck.map_or(0.0, |busy| busy.utilisation),
            p_star: advice.p_star,
            past_p_star: advice.is_past_p_star,
            frozen_gain: advice.frozen.map(|frozen| frozen.gain),
            other_policy: advice.other.map(|other| other.policy.to_owned()),
            other_gain: advice.other.map(|other| other.gain),
            text,
        })
    }

    fn on_threads(threads: usize, lately: &Counted) -> Self {
        let seconds = lately.time.as_secs_f64();
        Self {
            tier: "cache".into(),
            seconds,
            hit_ratio: lately.cache_hits.min(lately.reads) as f64 / lately.reads as f64,
            in_flight: lately.reading.as_secs_f64() / seconds,
            miss_us: None,
            reads_per_second: lately.reads as f64 / seconds,
            model_reads_per_second: None,
            bottleneck: Some("cores".into()),
            utilisation: lately.busy(threads),
            p_star: 1.0,
            past_p_star: false,
            frozen_gain: None,
            other_policy: None,
            other_gain: None,
            text: threads_busy(lately, threads),
        }
    }
}

#[cfg(test)]
mod tests;
