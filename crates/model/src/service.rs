//! Service times of list operations: the authors', or those of another machine.
//!
//! A [`Service`] has a row of times for each policy it knows. The time of an operation depends on
//! how many threads contend for it (section 4.1 of "Can Increasing the Hit Ratio Hurt Cache
//! Throughput?": a constant and a part that grows with its queue), so a [`Time`] may be given at
//! several queue lengths. The form of the file is in `docs/model.md`.

use std::collections::BTreeMap;

use crate::ModelError;
use crate::Operation::{Delink, FrozenLookup, GhostLookup, Head, Lookup, Sample, Step, Tail};
use crate::error::time;
pub use crate::operation::Operation;

#[cfg(feature = "serde")]
mod form;

/// The service time of an operation, in microseconds.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Time {
    /// Mean time without other requests at the station.
    pub alone_us: f64,
    /// Mean times at growing queue lengths above 1, which include the request in service. Times
    /// between them are interpolated linearly, and the last one holds for longer queues.
    pub contended: Vec<(u32, f64)>,
    /// Distribution of the time: values, and how often each was seen. Only its form is used, scaled
    /// to the mean. May be empty.
    pub histogram: Vec<(f64, f64)>,
}

impl Time {
    /// Creates a time that does not depend on the queue.
    pub fn of(us: f64) -> Self {
        Self { alone_us: us, ..Self::default() }
    }

    /// Returns the mean time with `queue` requests at the station, including the one in service.
    pub fn at_us(&self, queue: u32) -> f64 {
        let mut before = (1, self.alone_us);
        for &(length, us) in &self.contended {
            if queue < length {
                let share =
                    f64::from(queue.max(before.0) - before.0) / f64::from(length - before.0);
                return before.1 + share * (us - before.1);
            }
            before = (length, us);
        }
        before.1
    }

    /// Returns the smallest mean time over all queue lengths.
    pub fn least_us(&self) -> f64 {
        self.contended.iter().map(|&(_, us)| us).fold(self.alone_us, f64::min)
    }

    /// Returns the time of two operations, one after the other. The sum has no histogram, because
    /// those of its parts do not determine it.
    pub fn then(&self, other: &Time) -> Time {
        let mut queues: Vec<u32> =
            self.contended.iter().chain(&other.contended).map(|&(queue, _)| queue).collect();
        queues.sort_unstable();
        queues.dedup();
        let contended =
            queues.into_iter().map(|queue| (queue, self.at_us(queue) + other.at_us(queue)));
        Time {
            alone_us: self.alone_us + other.alone_us,
            contended: contended.collect(),
            histogram: Vec::new(),
        }
    }

    /// Returns the time of `times` of these operations in sequence.
    pub(crate) fn times(&self, times: f64) -> Time {
        let contended = self.contended.iter().map(|&(queue, us)| (queue, times * us)).collect();
        Time { alone_us: times * self.alone_us, contended, histogram: self.histogram.clone() }
    }

    /// Interpolates between two measured times; `share` is the part of `other`.
    pub(crate) fn between(&self, other: &Time, share: f64) -> Time {
        let nearer = if share < 0.5 { self } else { other };
        let mean = self.times(1.0 - share).then(&other.times(share));
        Time { histogram: nearer.histogram.clone(), ..mean }
    }

    /// Returns an error that names `what` if the time is invalid.
    pub(crate) fn check(&self, what: &'static str) -> Result<(), ModelError> {
        time(what, self.alone_us)?;
        let mut longest = 1;
        for &(queue, us) in &self.contended {
            time(what, us)?;
            if queue <= longest {
                return Err(ModelError::Queues { what });
            }
            longest = queue;
        }
        let weighs = |&(us, weight): &(f64, f64)| {
            us >= 0.0 && us.is_finite() && weight > 0.0 && weight.is_finite()
        };
        let mean: f64 = self.histogram.iter().map(|(us, weight)| us * weight).sum();
        if self.histogram.iter().all(weighs) && (self.histogram.is_empty() || mean > 0.0) {
            return Ok(());
        }
        Err(ModelError::Histogram { what })
    }
}

/// The list operations that exclude one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
pub enum Locks {
    /// Each operation has its own lock, as the paper models it: several stations.
    #[default]
    Operation,
    /// All list operations of a request run under one lock, as one visit to one station.
    List,
}

/// The service times of a policy's operations.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(deny_unknown_fields)
)]
pub struct Times {
    /// Name of the policy, such as `lru`.
    pub policy: String,
    /// Share of hits that skips the list, where that is a parameter or was measured. Times are
    /// interpolated between rows that differ only in it.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub q: Option<f64>,
    /// The operations that exclude one another.
    #[cfg_attr(feature = "serde", serde(default))]
    pub locks: Locks,
    /// Number of shards of the cache, each with its own locks.
    #[cfg_attr(feature = "serde", serde(default = "one"))]
    pub shards: u32,
    /// Service time of each operation.
    #[cfg_attr(feature = "serde", serde(rename = "times_us"))]
    pub times: BTreeMap<Operation, Time>,
}

#[cfg(feature = "serde")]
fn one() -> u32 {
    1
}

/// Service times of policies on a machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Service {
    /// Facts about the machine, for people: processor, cores, how it was measured.
    pub machine: BTreeMap<String, String>,
    /// One row for each policy, or several that differ in `q`.
    pub policies: Vec<Times>,
}

impl Service {
    /// Version of the file form.
    pub const VERSION: u32 = 1;
    /// Largest number of shards of a cache.
    pub const SHARDS_MAX: u32 = 4096;

    /// Returns the times of a policy at `q`, interpolated between its rows.
    ///
    /// # Errors
    /// When there is no row for the policy.
    pub(crate) fn times(&self, policy: &'static str, q: Option<f64>) -> Result<Times, ModelError> {
        let mut rows: Vec<&Times> =
            self.policies.iter().filter(|times| times.policy == policy).collect();
        rows.sort_by(|a, b| a.q.unwrap_or(0.0).total_cmp(&b.q.unwrap_or(0.0)));
        let no_times = || {
            let mut known: Vec<String> =
                self.policies.iter().map(|times| times.policy.clone()).collect();
            known.dedup();
            ModelError::NoTimes { policy, known }
        };
        let first = *rows.first().ok_or_else(no_times)?;
        let Some(q) = q else { return Ok(first.clone()) };
        let place = |times: &&Times| times.q.unwrap_or(0.0);
        let above = rows.partition_point(|times| place(times) < q);
        let (Some(below), Some(above)) = (above.checked_sub(1).map(|at| rows[at]), rows.get(above))
        else {
            return Ok(rows[above.min(rows.len() - 1)].clone());
        };
        let share = (q - place(&below)) / (place(above) - place(&below));
        let times = below.times.iter().filter_map(|(operation, time)| {
            Some((*operation, time.between(above.times.get(operation)?, share)))
        });
        Ok(Times { q: Some(q), times: times.collect(), ..(*below).clone() })
    }

    /// Returns the service times for a cache with this number of shards.
    pub fn with_shards(&self, shards: u32) -> Self {
        let policies = self.policies.iter().map(|times| Times { shards, ..times.clone() });
        Self { machine: self.machine.clone(), policies: policies.collect() }
    }

    /// Returns an error if a time or a number of shards is invalid.
    ///
    /// # Errors
    /// When a time is negative or not a number, queue lengths do not grow, a histogram is empty, or
    /// a number of shards is 0 or above [`Service::SHARDS_MAX`].
    pub fn check(&self) -> Result<(), ModelError> {
        for times in &self.policies {
            if let Some(q) = times.q {
                crate::error::share("q", q)?;
            }
            crate::count("the number of shards", times.shards, Self::SHARDS_MAX)?;
            times.times.iter().try_for_each(|(operation, time)| time.check(operation.name()))?;
        }
        Ok(())
    }
}

/// Time of a lookup in the cache or in a ghost list.
const LOOKUP_US: f64 = 0.51;
/// Time of a step past an entry in the search for a victim.
const STEP_US: f64 = 0.3;
/// Number of entries that Redis draws to choose a victim.
const SAMPLED: f64 = 5.0;

/// The authors' times of list operations in microseconds: policy, q, delink, head, tail.
const ROWS: [(&str, Option<f64>, f64, f64, f64); 14] = [
    ("lru", None, 0.70, 0.59, 0.59),
    ("fifo", None, 0.0, 0.73, 0.64),
    ("prob-lru", Some(0.0), 0.70, 0.59, 0.59),
    ("prob-lru", Some(0.16), 0.76, 0.64, 0.64),
    ("prob-lru", Some(0.5), 0.78, 0.65, 0.64),
    ("prob-lru", Some(1.0 - 1.0 / 72.0), 0.81, 0.67, 0.64),
    ("prob-lru", Some(1.0), 0.81, 0.73, 0.64),
    ("relaxed-lru", Some(0.16), 0.76, 0.64, 0.64),
    ("clock", None, 0.0, 0.65, 0.65),
    ("sieve", None, 0.0, 0.65, 0.65),
    ("slru", None, 0.70, 0.59, 0.59),
    ("s3-fifo", None, 0.0, 0.65, 0.65),
    ("2q", None, 0.70, 0.59, 0.59),
    ("tiny-lru", None, 0.68, 0.55, 0.64),
];

/// Times of a whole hit and a whole miss of LRU under one lock, in microseconds.
const SINGLE_LOCK: (f64, f64) = (0.90, 0.95);
/// Time of a lookup in the cache with the single lock.
const SINGLE_LOCK_LOOKUP_US: f64 = 0.5;

impl Service {
    /// Returns the times that the authors measured.
    pub fn paper() -> Self {
        let mut policies: Vec<Times> = ROWS
            .iter()
            .map(|&(policy, q, delink, head, tail)| {
                let lists = [(Delink, delink), (Head, head), (Tail, tail)];
                times(policy, q, LOOKUP_US, &lists)
            })
            .collect();
        let (hit, miss) = SINGLE_LOCK;
        // A hit delinks and puts at the head, a miss takes from the tail and puts at the head: any
        // split does, they are never apart.
        let whole = [(Delink, hit), (Head, 0.0), (Tail, miss)];
        policies.push(Times {
            locks: Locks::List,
            ..times("single-lock-lru", None, SINGLE_LOCK_LOOKUP_US, &whole)
        });
        policies.push(times("sampled", None, LOOKUP_US, &[]));
        Self { machine: BTreeMap::from([("origin".into(), "the paper's".into())]), policies }
    }
}

fn times(policy: &str, q: Option<f64>, lookup_us: f64, lists: &[(Operation, f64)]) -> Times {
    let lookups = [
        (Lookup, lookup_us),
        (FrozenLookup, lookup_us),
        (GhostLookup, lookup_us),
        (Sample, SAMPLED * lookup_us),
        (Step, STEP_US),
    ];
    let times = lookups.iter().chain(lists).map(|&(operation, us)| (operation, Time::of(us)));
    Times {
        policy: policy.to_owned(),
        q,
        locks: Locks::Operation,
        shards: 1,
        times: times.collect(),
    }
}
