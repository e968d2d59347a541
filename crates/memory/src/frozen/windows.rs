//! Windows of requests, whose means are the units of every comparison.
//!
//! The mean latency of a window is made of the exact shares of frozen hits, dynamic hits and misses
//! and the sampled latencies of each, so that how many misses happened to be sampled adds no noise.
//!
//! It compares nothing by itself: `worth` gives the windows to a `Trial` of the policy crate,
//! `monitor` compares them with a baseline from before.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use floe_policy::trial::{Sums, trimmed_mean};

use super::observe::{Latencies, Observations};

/// Length of a window.
pub(super) const WINDOW: Duration = Duration::from_millis(50);
/// Samples a window waits for.
const SAMPLES_MIN: u64 = 30;
/// And for how many times its length.
const PATIENCE: u32 = 10;
/// Samples that make a mean worth looking at.
const SAMPLES_FEW: u64 = 4;

/// The latency of each kind of request in nanoseconds, as far as it is known.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Costs {
    pub(super) frozen: Option<f64>,
    pub(super) dynamic: Option<f64>,
    pub(super) miss: Option<f64>,
}

impl Costs {
    /// Returns what is known here, or else there.
    pub(super) fn or(&self, other: &Self) -> Self {
        Self {
            frozen: self.frozen.or(other.frozen),
            dynamic: self.dynamic.or(other.dynamic),
            miss: self.miss.or(other.miss),
        }
    }
}

/// For people: what a request of each kind takes.
impl fmt::Display for Costs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = |cost: Option<f64>| cost.map_or_else(|| "?".to_owned(), |ns| format!("{ns:.1}"));
        let (frozen, dynamic, miss) = (ns(self.frozen), ns(self.dynamic), ns(self.miss));
        write!(f, "frozen hits take {frozen} ns, others {dynamic}, misses {miss}")
    }
}

/// Requests of some span of time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct WindowCounts {
    pub(super) frozen_hits: u64,
    pub(super) dynamic_hits: u64,
    pub(super) misses: u64,
    pub(super) latencies: Latencies,
}

impl WindowCounts {
    pub(super) fn add(&mut self, seen: &Observations) {
        self.frozen_hits += seen.frozen_hits;
        self.dynamic_hits += seen.dynamic_hits;
        self.misses += seen.misses;
        self.latencies.add(&seen.latencies);
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.frozen_hits += other.frozen_hits;
        self.dynamic_hits += other.dynamic_hits;
        self.misses += other.misses;
        self.latencies.add(&other.latencies);
    }

    pub(super) fn lookups(&self) -> u64 {
        self.frozen_hits + self.dynamic_hits + self.misses
    }

    pub(super) fn hits(&self) -> u64 {
        self.frozen_hits + self.dynamic_hits
    }

    pub(super) fn hit_ratio(&self) -> Option<f64> {
        (self.lookups() > 0).then(|| self.hits() as f64 / self.lookups() as f64)
    }

    /// Of the hits, those on frozen entries.
    pub(super) fn frozen_share(&self) -> Option<f64> {
        (self.hits() > 0).then(|| self.frozen_hits as f64 / self.hits() as f64)
    }

    /// Latencies of hits of both kinds.
    pub(super) fn hit_latencies(&self) -> Sums {
        let mut hits = self.latencies.frozen;
        hits += self.latencies.dynamic;
        hits
    }

    pub(super) fn samples(&self) -> u64 {
        self.hit_latencies().count + self.latencies.miss.count
    }

    /// Equation 1 of FrozenHot. A kind that was not sampled here costs what it does elsewhere.
    pub(super) fn mean(&self, elsewhere: &Costs) -> Option<f64> {
        let latencies = &self.latencies;
        let kinds = [
            (self.frozen_hits, latencies.frozen, elsewhere.frozen.or(elsewhere.dynamic)),
            (self.dynamic_hits, latencies.dynamic, elsewhere.dynamic.or(elsewhere.frozen)),
            // Where misses are not inserted, only the cost of the lookup is known.
            (
                self.misses,
                latencies.miss,
                elsewhere.miss.or(elsewhere.dynamic).or(elsewhere.frozen),
            ),
        ];
        let mut sum = 0.0;
        for (requests, sampled, elsewhere) in kinds {
            if requests > 0 {
                sum += requests as f64 * sampled.mean().or(elsewhere)?;
            }
        }
        (self.lookups() > 0).then(|| sum / self.lookups() as f64)
    }
}

/// A mean over windows that a stall in a few of them does not move.
pub(super) fn typical<'a>(
    windows: impl Iterator<Item = &'a WindowCounts>,
    sums: impl Fn(&WindowCounts) -> Sums,
) -> Option<f64> {
    let (mut means, mut few) = (Vec::new(), Sums::default());
    for window in windows {
        let sums = sums(window);
        few += sums;
        if sums.count >= SAMPLES_FEW {
            means.extend(sums.mean());
        }
    }
    trimmed_mean(&means).or_else(|| few.mean())
}

/// The last windows, and the one that is open.
#[derive(Debug, Clone)]
pub(super) struct Windows {
    began: Duration,
    open: WindowCounts,
    closed: VecDeque<WindowCounts>,
    max: usize,
}

impl Windows {
    pub(super) fn new(now: Duration, max: usize) -> Self {
        Self { began: now, open: WindowCounts::default(), closed: VecDeque::new(), max }
    }

    /// Takes in what was seen, and says whether that filled a window.
    pub(super) fn add(&mut self, seen: &Observations) -> bool {
        self.open.add(seen);
        let (age, samples) = (seen.now.saturating_sub(self.began), self.open.samples());
        if age < WINDOW || samples == 0 || samples < SAMPLES_MIN && age < WINDOW * PATIENCE {
            return false;
        }
        let window = std::mem::take(&mut self.open);
        self.push(window);
        self.began = seen.now;
        true
    }

    /// Adds a window that was closed elsewhere.
    pub(super) fn push(&mut self, window: WindowCounts) {
        if self.closed.len() >= self.max {
            self.closed.pop_front();
        }
        self.closed.push_back(window);
    }

    /// Forgets the window that was closed last.
    pub(super) fn drop_last(&mut self) {
        self.closed.pop_back();
    }

    /// Forgets the open window: what comes belongs to another one.
    pub(super) fn interrupt(&mut self, now: Duration) {
        (self.open, self.began) = (WindowCounts::default(), now);
    }

    pub(super) fn len(&self) -> usize {
        self.closed.len()
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &WindowCounts> {
        self.closed.iter()
    }

    pub(super) fn last(&self) -> Option<&WindowCounts> {
        self.closed.back()
    }

    pub(super) fn total(&self) -> WindowCounts {
        let mut total = WindowCounts::default();
        self.closed.iter().for_each(|window| total.merge(window));
        total
    }

    pub(super) fn costs(&self) -> Costs {
        let of = |sums: fn(&WindowCounts) -> Sums| typical(self.closed.iter(), sums);
        Costs {
            frozen: of(|window| window.latencies.frozen),
            dynamic: of(|window| window.latencies.dynamic),
            miss: of(|window| window.latencies.miss),
        }
    }

    /// The mean latency of a hit of either kind in nanoseconds.
    pub(super) fn hit_ns(&self) -> Option<f64> {
        typical(self.closed.iter(), WindowCounts::hit_latencies)
    }

    /// Returns the mean latency of each window in nanoseconds. Operations sampled in no window cost
    /// as much as `elsewhere`.
    pub(super) fn means(&self, elsewhere: &Costs) -> Vec<f64> {
        let costs = self.costs().or(elsewhere);
        self.closed.iter().filter_map(|window| window.mean(&costs)).collect()
    }

    /// The mean of each window in something that was sampled often enough.
    pub(super) fn means_of(&self, sums: impl Fn(&WindowCounts) -> Sums) -> Vec<f64> {
        let sampled = self.closed.iter().map(sums).filter(|sums| sums.count >= SAMPLES_FEW);
        sampled.filter_map(|sums| sums.mean()).collect()
    }
}
