//! Builds the outcomes of a policy: routes past stations that are known by name.

use super::{
    Locks, ModelError, Network, Operation, RequestOutcome, RouteStep, Setting, Shares, Station,
    Time, Times, Visit,
};

/// The arguments of a policy's function.
pub(super) struct At<'a> {
    policy: &'static str,
    times: &'a Times,
    /// Share of all requests that hit what is not frozen.
    pub(super) hits: f64,
    /// Share of all requests that hit what is frozen, if anything can be.
    frozen: Option<f64>,
    /// Of hits, those that are not on frozen entries.
    pub(super) unfrozen: f64,
    misses: f64,
    /// Of hits, those that skip the list.
    pub(super) q: f64,
    /// The share of each outcome.
    pub(super) shares: Shares,
    lookup_us: f64,
    frozen_lookup_us: f64,
    compute_us: f64,
    mark_us: f64,
    miss_us: f64,
    disk_us: f64,
}

/// An outcome being written down.
pub(super) struct Walk {
    name: &'static str,
    probability: f64,
    is_miss: bool,
    mark_us: f64,
    parts: Vec<Part>,
}

enum Part {
    Compute(f64),
    Disk(f64),
    Visit { station: &'static str, time: Time, is_limit: bool },
}

impl<'a> At<'a> {
    pub(super) fn new(
        policy: &'static str,
        times: &'a Times,
        setting: &Setting,
        q: f64,
    ) -> Result<Self, ModelError> {
        let optional =
            |operation| times.times.get(&operation).map_or(0.0, |time: &Time| time.alone_us);
        let Setting { hit_ratio, disk_us, frozen, .. } = *setting;
        let unfrozen = 1.0 - frozen.unwrap_or(0.0);
        let mut at = Self {
            policy,
            times,
            hits: hit_ratio * unfrozen,
            frozen: frozen.map(|share| share * hit_ratio),
            unfrozen,
            misses: 1.0 - hit_ratio,
            q,
            shares: setting.shares.unwrap_or_else(|| Shares::fitted(hit_ratio)),
            lookup_us: 0.0,
            frozen_lookup_us: 0.0,
            compute_us: 0.0,
            mark_us: optional(Operation::Mark) + setting.written * optional(Operation::WrittenMark),
            miss_us: optional(Operation::Miss),
            disk_us,
        };
        at.lookup_us = at.time(Operation::Lookup)?.alone_us;
        at.compute_us = setting.compute_us;
        if frozen.is_some() {
            at.frozen_lookup_us = at.time(Operation::FrozenLookup)?.alone_us;
        }
        Ok(at)
    }

    /// Returns the time of an operation.
    pub(super) fn time(&self, operation: Operation) -> Result<Time, ModelError> {
        let policy = self.policy;
        self.times.times.get(&operation).cloned().ok_or(ModelError::NoTime { policy, operation })
    }

    /// Returns the time to find a victim where marked entries are passed by.
    pub(super) fn tail_past_marks(&self) -> Result<Time, ModelError> {
        let step = self.time(Operation::Step)?.times(self.shares.passed_by);
        Ok(self.time(Operation::Tail)?.then(&step))
    }

    /// The same of a miss that has taken one from a tail before. Under one lock that is what one
    /// entry more takes: the lock, and all that a miss does under it, are part of the first.
    pub(super) fn second_tail(&self) -> Result<Time, ModelError> {
        match self.times.locks {
            Locks::Operation => self.tail_past_marks(),
            Locks::List => Ok(self.time(Operation::Step)?.times(1.0 + self.shares.passed_by)),
        }
    }

    /// A hit on an entry that is not frozen.
    pub(super) fn hit(&self, name: &'static str, probability: f64) -> Walk {
        let walk =
            Walk { name, probability, is_miss: false, mark_us: self.mark_us, parts: Vec::new() };
        walk.compute(self.compute_us + self.frozen_lookup_us + self.lookup_us)
    }

    /// A share of the misses.
    pub(super) fn miss(&self, name: &'static str, share: f64) -> Walk {
        let mut walk = self.hit(name, share * self.misses);
        walk.is_miss = true;
        walk.parts.push(Part::Disk(self.disk_us));
        walk.compute(self.miss_us)
    }

    /// A hit on a frozen entry, if there can be one.
    pub(super) fn frozen_hits(&self) -> Option<Walk> {
        let walk = Walk {
            name: "frozen hit",
            probability: self.frozen?,
            is_miss: false,
            mark_us: 0.0,
            parts: Vec::new(),
        };
        Some(walk.compute(self.compute_us + self.frozen_lookup_us))
    }
}

impl Walk {
    /// Computes for so long.
    pub(super) fn compute(mut self, us: f64) -> Self {
        if us > 0.0 {
            self.parts.push(Part::Compute(us));
        }
        self
    }

    /// Notes a hit without a lock.
    pub(super) fn mark(self) -> Self {
        let us = self.mark_us;
        self.compute(us)
    }

    /// Waits for a station.
    pub(super) fn visit(mut self, station: &'static str, time: Time) -> Self {
        self.parts.push(Part::Visit { station, time, is_limit: false });
        self
    }

    /// The same, with a time that is only an upper limit.
    pub(super) fn limit(mut self, station: &'static str, time: Time) -> Self {
        self.parts.push(Part::Visit { station, time, is_limit: true });
        self
    }

    /// All visits as one, where the first of them is.
    fn under_one_lock(self) -> Self {
        let mut whole: Option<Time> = None;
        for part in &self.parts {
            if let Part::Visit { time, .. } = part {
                whole = Some(whole.map_or_else(|| time.clone(), |before| before.then(time)));
            }
        }
        let mut parts = Vec::new();
        for part in self.parts {
            match part {
                Part::Visit { .. } => parts.extend(whole.take().map(|time| Part::Visit {
                    station: "list",
                    time,
                    is_limit: false,
                })),
                part => parts.push(part),
            }
        }
        Self { parts, ..self }
    }
}

/// Stations for names.
pub(super) fn network(walks: Vec<Walk>, times: &Times) -> Result<Network, ModelError> {
    let mut stations: Vec<Station> = Vec::new();
    let mut outcomes = Vec::new();
    for walk in walks {
        let walk = if times.locks == Locks::List { walk.under_one_lock() } else { walk };
        let steps = walk.parts.into_iter().map(|part| match part {
            Part::Compute(us) => RouteStep::Compute(us),
            Part::Disk(us) => RouteStep::Disk(us),
            Part::Visit { station: name, time, is_limit } => {
                let known = stations.iter().position(|station| station.name == name);
                let station = known.unwrap_or_else(|| {
                    stations.push(Station { name, servers: 1, copies: times.shards });
                    stations.len() - 1
                });
                RouteStep::Visit(Visit { station, time, is_limit })
            }
        });
        let (name, probability, is_miss) = (walk.name, walk.probability, walk.is_miss);
        outcomes.push(RequestOutcome { name, probability, is_miss, steps: steps.collect() });
    }
    Network::new(stations, outcomes)
}
