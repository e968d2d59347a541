//! Classifies eviction policies as LRU-like or FIFO-like, which table 2 of "Can Increasing the Hit
//! Ratio Hurt Cache Throughput?" conjectures and this module tests.
//!
//! A policy's own code runs over a trace at several cache sizes. The list operations counted at
//! each size define a queueing network ([`floe_model::counted`]), whose exact throughput and hit
//! ratio are a [`Point`]. Where throughput falls by more than [`FALL_MIN`] as the hit ratio grows,
//! the policy is LRU-like, else FIFO-like ([`Verdict`]).
//!
//! Hit ratios are those of the trace and cannot be chosen, so a fall is sought between points: from
//! the highest throughput so far to a lower one at a higher hit ratio.

use std::collections::BTreeMap;

use floe_model::counted::Drawn;
use floe_model::peak::Class;
use floe_model::{Load, Locks, ModelError, Operation, Service, mva};
use serde::Serialize;

use crate::simulate::operations::{Candidate, Operations};

/// Largest fall of throughput, as a share of the peak, that does not make a policy LRU-like.
pub const FALL_MIN: f64 = 0.02;

/// The paper's classes of policies: by measurement (table 1) or by conjecture (table 2).
pub const PAPER: [(&str, Class); 16] = [
    ("lru", Class::LruLike),
    ("fifo", Class::FifoLike),
    ("clock", Class::FifoLike),
    ("slru", Class::LruLike),
    ("s3-fifo", Class::FifoLike),
    ("arc", Class::LruLike),
    ("lirs", Class::LruLike),
    ("lfu", Class::LruLike),
    ("lecar", Class::LruLike),
    ("cacheus", Class::LruLike),
    ("sieve", Class::FifoLike),
    ("qdlp", Class::FifoLike),
    ("qd-clock", Class::FifoLike),
    ("lhd", Class::FifoLike),
    ("hyperbolic", Class::FifoLike),
    ("sampled", Class::FifoLike),
];

/// Machine and load under which policies are classified.
#[derive(Debug, Clone)]
pub struct Conditions {
    /// Service times of list operations on the machine.
    pub service: std::sync::Arc<Service>,
    /// Number of requests in flight, and of cores.
    pub load: Load,
    /// Disk latency of a miss in microseconds.
    pub disk_us: f64,
    /// The granularity of locks, which decides which operations exclude one another.
    pub locks: Locks,
}

/// The settings that each output line repeats.
#[derive(Debug, Clone, Serialize)]
pub struct Identity {
    /// Name of the trace.
    pub trace: String,
    /// The eviction policy with its parameters.
    pub policy: String,
    /// Number of requests in flight.
    pub mpl: u32,
    /// Number of cores; `None` for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    /// Disk latency of a miss in microseconds.
    pub disk_us: f64,
    /// Lock granularity: `operation` for a station per operation on each list, `list` for one lock.
    pub locks: Locks,
}

/// Modelled throughput of a policy at one cache size.
#[derive(Debug, Clone, Serialize)]
pub struct Point {
    /// Trace, policy and conditions of the point.
    #[serde(flatten)]
    pub identity: Identity,
    /// Capacity of the cache in entries.
    pub size: u64,
    /// Share of requests that hit, as counted over the trace.
    pub hit_ratio: f64,
    /// Modelled throughput in million requests a second: exact, or approximate with fewer cores
    /// than requests in flight.
    pub mva_mrps: f64,
    /// Share of hits that take the lock.
    pub hits_locking: f64,
    /// Mean number of list operations per hit.
    pub operations_per_hit: f64,
    /// Shares of requests and their mean operations, by outcome. Operations are named like `delink
    /// of list`.
    pub outcomes: BTreeMap<&'static str, Means>,
    /// The station with the longest service time per request; `None` if requests need no station.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bottleneck: Option<String>,
    /// Mean service time per request at the bottleneck, in microseconds.
    pub bottleneck_us: f64,
}

/// Mean operations of the requests with one outcome.
#[derive(Debug, Clone, Serialize)]
pub struct Means {
    /// Share of all requests that have this outcome.
    pub probability: f64,
    /// Mean number of each operation per request with this outcome.
    pub operations: BTreeMap<String, f64>,
}

/// Classification of a policy.
#[derive(Debug, Clone, Serialize)]
pub struct Verdict {
    /// Trace, policy and conditions of the verdict.
    #[serde(flatten)]
    pub identity: Identity,
    /// Measured hit ratio above which throughput falls; 1 if it never does.
    pub p_star: f64,
    /// Throughput at the hit ratio `p_star`, in million requests a second.
    pub peak_mrps: f64,
    /// Largest fall of throughput at higher hit ratios, as a share of the peak.
    pub fall: f64,
    /// Hit ratio at which throughput has fallen furthest.
    pub lowest_at: f64,
    /// Class of the policy: `LRU-like` or `FIFO-like`.
    pub classification: &'static str,
    /// The paper's class of the policy; `None` if the paper has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paper: Option<&'static str>,
    /// The bottleneck at the hit ratio where throughput has fallen furthest, or at the highest hit
    /// ratio.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bottleneck: Option<String>,
}

impl Conditions {
    /// Computes the throughput of a policy from the operations counted at one cache size.
    ///
    /// # Errors
    /// The operations and times form no valid model.
    pub fn point(
        &self,
        trace: &str,
        candidate: &Candidate,
        size: u64,
        operations: &Operations,
    ) -> Result<Point, ModelError> {
        let Operations { counted, hits_promoting } = operations;
        // Most of these policies have not been measured: those that move entries on hits count like
        // LRU, the others like CLOCK.
        let like = if candidate.promotes() { "lru" } else { "clock" };
        let times = self.service.times_like(candidate.name(), like)?;
        let drawn: Drawn = counted.network(&times, self.locks, self.disk_us)?;
        let longest = drawn.longest();
        let all = counted.requests() as f64;
        let outcomes = counted.outcomes.iter().map(|counts| {
            let each = counts.operations.iter().map(|(&(list, operation), times)| {
                let what = if is_at_list(operation) {
                    format!("{operation} of {list}")
                } else {
                    operation.to_string()
                };
                (what, times / counts.requests as f64)
            });
            let probability = counts.requests as f64 / all;
            (counts.outcome, Means { probability, operations: each.collect() })
        });
        let hit = counted.outcomes.iter().find(|counts| !counts.is_miss);
        Ok(Point {
            identity: Identity {
                trace: trace.to_owned(),
                policy: candidate.to_string(),
                mpl: self.load.mpl,
                cores: self.load.cores,
                disk_us: self.disk_us,
                locks: self.locks,
            },
            size,
            hit_ratio: counted.hit_ratio(),
            mva_mrps: mva::throughput(&drawn.network, &self.load)?,
            hits_locking: *hits_promoting,
            operations_per_hit: hit.map_or(0.0, |hit| hit.list_operations()),
            outcomes: outcomes.collect(),
            bottleneck: longest.map(|(place, _)| place.to_string()),
            bottleneck_us: longest.map_or(0.0, |(_, us)| us),
        })
    }
}

fn is_at_list(operation: Operation) -> bool {
    matches!(operation, Operation::Delink | Operation::Head | Operation::Tail | Operation::Step)
}

impl Verdict {
    /// Classifies a policy by its points, which are sorted by hit ratio; `None` without points.
    pub fn of(policy: &str, points: &mut [Point]) -> Option<Self> {
        points.sort_by(|a, b| a.hit_ratio.total_cmp(&b.hit_ratio));
        let points: &[Point] = points;
        let last = points.last()?;
        let mut highest = &points[0];
        let (mut peak, mut lowest, mut fall) = (last, last, 0.0);
        for point in points {
            let falls = 1.0 - point.mva_mrps / highest.mva_mrps;
            // Two sizes with the same hits say nothing about more hits.
            if falls > fall && point.hit_ratio > highest.hit_ratio {
                (peak, lowest, fall) = (highest, point, falls);
            }
            if point.mva_mrps > highest.mva_mrps {
                highest = point;
            }
        }
        let class = if fall > FALL_MIN { Class::LruLike } else { Class::FifoLike };
        let (peak, lowest) = if class == Class::LruLike { (peak, lowest) } else { (last, last) };
        Some(Self {
            identity: last.identity.clone(),
            p_star: if class == Class::LruLike { peak.hit_ratio } else { 1.0 },
            peak_mrps: if class == Class::LruLike { peak.mva_mrps } else { highest.mva_mrps },
            fall,
            lowest_at: lowest.hit_ratio,
            classification: class.name(),
            paper: PAPER.iter().find(|known| known.0 == policy).map(|known| known.1.name()),
            bottleneck: lowest.bottleneck.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(of: &[(f64, f64)]) -> Vec<Point> {
        let identity = Identity {
            trace: "t".into(),
            policy: "lru".into(),
            mpl: 72,
            cores: None,
            disk_us: 5.0,
            locks: Locks::Operation,
        };
        let point = |&(hit_ratio, mva_mrps): &(f64, f64)| Point {
            identity: identity.clone(),
            size: 1,
            hit_ratio,
            mva_mrps,
            hits_locking: 1.0,
            operations_per_hit: 2.0,
            outcomes: BTreeMap::new(),
            bottleneck: Some(format!("at {hit_ratio}")),
            bottleneck_us: 0.5,
        };
        of.iter().map(point).collect()
    }

    #[test]
    fn throughput_that_falls_along_the_way_is_lru_like_even_if_it_rises_again() {
        let verdict =
            Verdict::of("lru", &mut points(&[(0.9, 1.4), (0.5, 1.0), (1.0, 9.0), (0.7, 1.6)]))
                .unwrap();
        assert_eq!((verdict.classification, verdict.paper), ("LRU-like", Some("LRU-like")));
        assert_eq!((verdict.p_star, verdict.peak_mrps, verdict.lowest_at), (0.7, 1.6, 0.9));
        assert!((verdict.fall - 0.125).abs() < 1e-9);
        assert_eq!(verdict.bottleneck.as_deref(), Some("at 0.9"));
    }

    #[test]
    fn falls_too_small_to_matter_do_not_make_a_policy_lru_like() {
        let verdict =
            Verdict::of("magic", &mut points(&[(0.5, 1.0), (0.7, 2.0), (0.9, 1.99)])).unwrap();
        assert_eq!(
            (verdict.classification, verdict.paper, verdict.p_star),
            ("FIFO-like", None, 1.0)
        );
        let no_more_hits = Verdict::of("lru", &mut points(&[(0.5, 2.0), (0.5, 1.0)])).unwrap();
        assert_eq!(no_more_hits.classification, "FIFO-like");
        assert!(Verdict::of("lru", &mut []).is_none());
    }
}
