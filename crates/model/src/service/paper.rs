//! The authors' times: a 36-core Xeon at 3.1 GHz with 72 threads, figures 2, 4, 6, 9, 11 and 13 of
//! "Can Increasing the Hit Ratio Hurt Cache Throughput?", and their published simulator where the
//! paper has no figure.
//!
//! Probabilistic LRU is LRU where it skips nothing and FIFO where it skips all. Not measured by
//! anyone but taken from what is most alike: SIEVE and CLOCK, 2Q and SLRU, a frozen lookup and a
//! lookup, a sample and five lookups.

use std::collections::BTreeMap;

use super::{Locks, Service, Time, Times};
use crate::Operation;
use crate::Operation::{Delink, FrozenLookup, GhostLookup, Head, Lookup, Sample, Step, Tail};

/// A lookup, in the cache or among ghosts.
const LOOKUP_US: f64 = 0.51;
/// An entry passed by.
const STEP_US: f64 = 0.3;
/// The entries Redis draws to choose one.
const SAMPLED: f64 = 5.0;

/// Policy, q, delink, head, tail.
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

/// LRU under one lock: a hit and a miss as wholes.
const SINGLE_LOCK: (f64, f64) = (0.90, 0.95);
/// A lookup of that cache.
const SINGLE_LOCK_LOOKUP_US: f64 = 0.5;

impl Service {
    /// The times that the authors measured.
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
