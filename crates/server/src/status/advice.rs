//! Advice on the server's reads: the model's bottleneck and possible gains, from recent counts.
//!
//! The tier in memory is the only place where a thread's hits wait for another's, so the model
//! describes that tier: its hit ratio, the reads in flight and the latency of its misses. Without
//! it, each thread owns its lists and no hit waits. The advice then only says how busy the threads
//! are.
//!
//! Counts since the start say little of a server that has run for months. [`Lately`] keeps two
//! earlier counts, so that the advice covers the time since the last request for it, ten seconds or
//! more.

use std::sync::Arc;
use std::time::Duration;

use floe_block::counters;
use floe_model::advice::{Advice, advise, throughputs};
use floe_model::{Load, Policy, Service, Setting, Situation};
use serde::{Deserialize, Serialize};

use super::{Facts, MemoryFacts, Snapshot};
use crate::status::Operation;

/// Least time between two counts.
const APART: Duration = Duration::from_secs(10);

/// Most reads in flight for which the model is evaluated: far more than threads, so that one more
/// makes no difference, and few enough for an answer in milliseconds.
const IN_FLIGHT_MAX: f64 = 4096.0;

/// The bottleneck of reads, and possible gains. Shares are of 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AdviceStatus {
    /// The tier described: `memory`, or `cache` without a tier in memory.
    pub tier: String,
    /// Seconds over which the following numbers were counted.
    pub seconds: f64,
    /// The tier's hit ratio.
    pub hit_ratio: f64,
    /// Reads in flight, on average.
    pub in_flight: f64,
    /// Average latency of the tier's misses; `None` where it is not measured separately, or there
    /// were none.
    pub miss_us: Option<f64>,
    /// Reads answered in a second.
    pub reads_per_second: f64,
    /// The reads per second that the model predicts; `None` without a tier in memory.
    pub model_reads_per_second: Option<f64>,
    /// The bottleneck: a list operation, or `cores`.
    pub bottleneck: Option<String>,
    /// The share of time for which the bottleneck is busy, 0 without one.
    pub utilisation: f64,
    /// The hit ratio past which more hits cost throughput; 1 where they never do.
    pub p_star: f64,
    /// The hit ratio is past `p_star`.
    pub past_p_star: bool,
    /// The gain from freezing all hits.
    pub frozen_gain: Option<f64>,
    /// The policy that would give most at the same hit ratio.
    pub other_policy: Option<String>,
    /// The gain from that policy.
    pub other_gain: Option<f64>,
    /// The advice in one sentence.
    pub text: String,
}

counters! {
    /// Counts that advice goes by, since the start or in a stretch of time.
    #[derive(Debug, Clone, Copy, Default, PartialEq)]
    pub(crate) struct Counted {
        /// Its length.
        time: Duration,
        /// Requests of any kind.
        requests: u64,
        reads: u64,
        memory_hits: u64,
        /// Those of memory among them.
        cache_hits: u64,
        /// Latencies of reads, added up.
        reading: Duration,
        /// Of these, latencies of reads answered from memory.
        from_memory: Duration,
        /// Processor time, without what imitates media.
        processor: Duration,
        /// Bytes that cleaning has brought to the backing devices.
        cleaned_bytes: u64,
    }
}

impl Counted {
    /// Takes the sum of all threads' counts, `uptime` after the start.
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

    /// Reads in flight, on average.
    fn in_flight(&self) -> f64 {
        self.reading.as_secs_f64() / self.time.as_secs_f64()
    }

    /// Estimates the seconds to clean so many bytes at the recent rate; `None` when nothing has
    /// been cleaned.
    pub(super) fn seconds_to_clean(&self, dirty_bytes: u64) -> Option<f64> {
        match (dirty_bytes, self.cleaned_bytes) {
            (0, _) => Some(0.0),
            (_, 0) => None,
            (dirty, cleaned) => Some(dirty as f64 / cleaned as f64 * self.time.as_secs_f64()),
        }
    }
}

/// The interval that advice covers.
#[derive(Debug, Default)]
pub(crate) struct Lately {
    older: Counted,
    newer: Counted,
}

impl Lately {
    /// Returns the counts since an earlier count, [`APART`] or more before this one unless the
    /// server is younger.
    pub(crate) fn until(&mut self, now: Counted) -> Counted {
        if now.time.saturating_sub(self.newer.time) >= APART {
            self.older = std::mem::replace(&mut self.newer, now);
        }
        now.since(&self.older)
    }
}

/// Service times, either measured on this machine or those of the paper.
#[derive(Debug, Clone)]
pub(crate) struct ServiceTimes {
    service: Arc<Service>,
    is_measured: bool,
}

impl ServiceTimes {
    /// Takes the measured times, or those of the paper where there are none.
    pub(crate) fn of(measured: Option<&Arc<Service>>) -> Self {
        match measured {
            Some(service) => Self { service: Arc::clone(service), is_measured: true },
            None => Self { service: Arc::new(Service::paper()), is_measured: false },
        }
    }
}

/// The situation of the tier in memory, and the latency of its misses, if there were any.
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

/// Steps of a model's curve.
const CURVE_STEPS: u32 = 50;

/// Hit ratios of memory with the reads a second of the model; `None` without memory or reads.
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

impl AdviceStatus {
    /// Computes the advice; `None` where there were no reads.
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
        let times = if facts.service.is_measured { "measured" } else { "the paper's" };
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
            text: format!(
                "memory ({}), by {times} service times: {advice}; last {seconds:.0} s",
                memory.usage.policy
            ),
        })
    }

    fn on_threads(threads: usize, lately: &Counted) -> Self {
        let seconds = lately.time.as_secs_f64();
        let utilisation =
            (lately.processor.as_secs_f64() / (seconds * threads.max(1) as f64)).min(1.0);
        Self {
            tier: "cache".into(),
            seconds,
            hit_ratio: lately.cache_hits.min(lately.reads) as f64 / lately.reads as f64,
            in_flight: lately.reading.as_secs_f64() / seconds,
            miss_us: None,
            reads_per_second: lately.reads as f64 / seconds,
            model_reads_per_second: None,
            bottleneck: Some("cores".into()),
            utilisation,
            p_star: 1.0,
            past_p_star: false,
            frozen_gain: None,
            other_policy: None,
            other_gain: None,
            text: format!(
                "cache: cores {:.0} % busy; each thread has lists of its own, so more hits do not \
                 cost throughput; last {seconds:.0} s",
                100.0 * utilisation
            ),
        }
    }
}

#[cfg(test)]
mod tests;
