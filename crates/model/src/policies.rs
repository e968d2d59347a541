//! Replacement policies as networks: each is a row of [`POLICIES`] and a function.
//!
//! A network models which lock is taken on which path: hits that delink (LRU-like) or only set a
//! mark (FIFO-like), misses that wait for the disk and then change tail and head. The networks are
//! figures 2, 4, 6, 9, 11 and 13 of "Can Increasing the Hit Ratio Hurt Cache Throughput?"; those
//! without a figure there follow its section 5.1. Any of them can be *frozen*: a share of the hits
//! then ends with a lookup in the frozen index, and every other request begins with a fruitless
//! lookup there.

use crate::error::{share, time};
use crate::service::{Locks, Times};
use crate::{
    ModelError, Network, Operation, RequestOutcome, RouteStep, Service, Shares, Station, Time,
    Visit,
};

/// A replacement policy that has a model.
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    /// Name of the policy.
    pub name: &'static str,
    /// Description of the work of a hit and of a miss.
    pub about: &'static str,
    q: Q,
    walks: fn(&At<'_>) -> Result<Vec<Walk>, ModelError>,
}

/// The source of the share of hits that skips the list.
#[derive(Debug, Clone, Copy)]
enum Q {
    /// The share is fixed.
    Always(f64),
    /// The share is a parameter of the policy.
    Parameter,
    /// The measured share of hits that find the lock taken.
    Measured,
    /// The policy has no such share.
    None,
}

/// All modelled policies.
pub const POLICIES: [Policy; 12] = [
    Policy {
        name: "lru",
        about: "hit: delink, head; miss: tail, head",
        q: Q::Always(0.0),
        walks: lru,
    },
    Policy { name: "fifo", about: "hit: nothing; miss: tail, head", q: Q::Always(1.0), walks: lru },
    Policy {
        name: "prob-lru",
        about: "lru, but a share --q of hits does nothing",
        q: Q::Parameter,
        walks: lru,
    },
    Policy {
        name: "relaxed-lru",
        about: "lru, but hits that find the lock taken do nothing",
        q: Q::Measured,
        walks: lru,
    },
    Policy {
        name: "single-lock-lru",
        about: "lru, all of it under one lock",
        q: Q::Always(0.0),
        walks: lru,
    },
    Policy {
        name: "clock",
        about: "hit: a mark; miss: tail, past marked entries, head",
        q: Q::None,
        walks: clock,
    },
    Policy {
        name: "sieve",
        about: "as clock, but entries passed by stay where they are",
        q: Q::None,
        walks: clock,
    },
    Policy {
        name: "slru",
        about: "hits: delink and head in two segments; miss: tail, head below",
        q: Q::None,
        walks: slru,
    },
    Policy {
        name: "s3-fifo",
        about: "hit: a mark; miss: small or main queue, by ghosts and marks",
        q: Q::None,
        walks: s3_fifo,
    },
    Policy {
        name: "2q",
        about: "hit in the main queue: delink, head; miss: small or main queue, by ghosts",
        q: Q::None,
        walks: two_q,
    },
    Policy {
        name: "tiny-lru",
        about: "lru behind a filter (TinyLFU) that keeps misses out",
        q: Q::None,
        walks: tiny_lru,
    },
    Policy {
        name: "sampled",
        about: "hit: a mark; miss: the worst of a few drawn entries leaves, without lists",
        q: Q::None,
        walks: sampled,
    },
];

/// Returns the names of all modelled policies.
pub fn names() -> Vec<&'static str> {
    POLICIES.iter().map(|policy| policy.name).collect()
}

/// Parameters of a network besides the policy: hit ratio, times and shares.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Setting {
    /// Share of requests that hit.
    pub hit_ratio: f64,
    /// Time that a miss waits for the disk, in microseconds.
    pub disk_us: f64,
    /// Computing time of each request besides the modelled operations, in microseconds: parsing,
    /// copying, sending.
    pub compute_us: f64,
    /// Share of hits that skips the list, for policies that have it as a parameter, or to replace
    /// the measured share.
    pub q: Option<f64>,
    /// Share of hits that finds its entry frozen; `None` without a frozen part.
    pub frozen: Option<f64>,
    /// Share of the marking hits that write the mark, because it was not set.
    pub written: f64,
    /// Shares of outcomes, where they differ from the authors' fits.
    pub shares: Option<Shares>,
}

impl Setting {
    /// Creates a setting with this hit ratio and disk time in microseconds, and defaults for the
    /// rest.
    pub fn new(hit_ratio: f64, disk_us: f64) -> Self {
        Self {
            hit_ratio,
            disk_us,
            compute_us: 0.0,
            q: None,
            frozen: None,
            written: 0.0,
            shares: None,
        }
    }

    /// Returns the setting with another hit ratio.
    pub fn at(self, hit_ratio: f64) -> Self {
        Self { hit_ratio, ..self }
    }
}

impl Policy {
    /// Default of [`Setting::q`] for policies that have it as a parameter.
    pub const Q_DEFAULT: f64 = 0.5;

    /// Returns the modelled policy with this name.
    ///
    /// # Errors
    /// When no modelled policy has this name.
    pub fn named(name: &str) -> Result<Policy, ModelError> {
        let policy = POLICIES.iter().find(|policy| policy.name == name);
        policy
            .copied()
            .ok_or_else(|| ModelError::UnknownPolicy { name: name.to_owned(), known: names() })
    }

    /// Returns the modelled policy with the locking behaviour of a policy in `floe_policy`, given
    /// by its name.
    ///
    /// Hits that owe a promotion remove an entry from a list and insert it again under the lock,
    /// whatever the list is for. Hits that only leave a mark take no lock, and their policies
    /// differ in how a miss searches for a victim.
    ///
    /// # Errors
    /// When no modelled policy is known to behave like it.
    pub fn alike(name: &str) -> Result<Policy, ModelError> {
        Self::named(match name {
            "arc" | "lfu" | "gdsf" | "lirs" | "lru-k" | "lecar" | "cacheus" | "sarc" | "mq" => {
                "lru"
            }
            "w-tinylfu" => "tiny-lru",
            "qdlp" | "qd-clock" | "clock2q-plus" | "s4-fifo" | "auto" => "s3-fifo",
            "lfru" | "car" | "clock-pro" => "clock",
            "hyperbolic" | "lhd" => "sampled",
            name => name,
        })
    }

    /// Returns the share of hits that skips the list with which the policy is recommended. For
    /// probabilistic LRU that is the least share with which it is FIFO-like: all but one in as many
    /// hits as requests are in flight (section 5.2 of the paper).
    pub(crate) fn q_chosen(&self, mpl: u32) -> Option<f64> {
        matches!(self.q, Q::Parameter).then(|| 1.0 - 1.0 / f64::from(mpl))
    }

    /// Returns whether [`Setting::q`] has an effect on the policy.
    pub fn takes_q(&self) -> bool {
        matches!(self.q, Q::Parameter | Q::Measured)
    }

    /// Returns the share of hits that skips the list; `None` for policies without such a share.
    pub fn q(&self, service: &Service, given: Option<f64>) -> Option<f64> {
        match self.q {
            Q::Always(q) => Some(q),
            Q::Parameter => Some(given.unwrap_or(Self::Q_DEFAULT)),
            Q::Measured => given.or(service.times(self.name, None).ok().and_then(|times| times.q)),
            Q::None => None,
        }
    }

    /// Builds the policy's network.
    ///
    /// # Errors
    /// When a share is not from 0 to 1, a time is negative, or the service times lack an operation.
    pub fn network(&self, service: &Service, setting: &Setting) -> Result<Network, ModelError> {
        share("the hit ratio", setting.hit_ratio)?;
        time("the disk's time", setting.disk_us)?;
        time("the time of computing", setting.compute_us)?;
        share("the frozen share", setting.frozen.unwrap_or(0.0))?;
        share("the share of marks that are written", setting.written)?;
        let q = self.q(service, setting.q);
        share("q", q.unwrap_or(0.0))?;
        let q_of_times = if let Q::Always(_) = self.q { None } else { q };
        let times = service.times(self.name, q_of_times)?;
        let at = At::new(self.name, &times, setting, q.unwrap_or(0.0))?;
        let mut walks = (self.walks)(&at)?;
        walks.extend(at.frozen_hits());
        network(walks, &times)
    }
}

/// Models LRU and its variants in which a share of hits skips the list, up to FIFO, where all do.
fn lru(at: &At<'_>) -> Result<Vec<Walk>, ModelError> {
    let (q, head) = (at.q, at.time(Operation::Head)?);
    let mut walks = vec![
        at.miss("miss", 1.0).limit("tail", at.time(Operation::Tail)?).visit("head", head.clone()),
    ];
    if q > 0.0 {
        walks.push(at.hit("skipping hit", at.hits * q).mark());
    }
    if q < 1.0 {
        let delink = at.time(Operation::Delink)?;
        walks.push(at.hit("hit", at.hits * (1.0 - q)).visit("delink", delink).visit("head", head));
    }
    Ok(walks)
}

/// Models CLOCK and SIEVE, whose hand is the tail; its time grows with the entries passed by.
fn clock(at: &At<'_>) -> Result<Vec<Walk>, ModelError> {
    Ok(vec![
        at.hit("hit", at.hits).mark(),
        at.miss("miss", 1.0)
            .visit("tail", at.tail_past_marks()?)
            .limit("head", at.time(Operation::Head)?),
    ])
}

/// Models SLRU with a protected segment H above a probationary segment L.
fn slru(at: &At<'_>) -> Result<Vec<Walk>, ModelError> {
    let delink = || at.time(Operation::Delink);
    let head = || at.time(Operation::Head);
    let protected = at.shares.protected * at.unfrozen;
    Ok(vec![
        at.hit("protected hit", protected).visit("delink-H", delink()?).visit("head-H", head()?),
        at.hit("probationary hit", at.hits - protected)
            .limit("delink-L", delink()?)
            .visit("head-L", head()?)
            .visit("head-H", head()?),
        at.miss("miss", 1.0).limit("tail-L", at.time(Operation::Tail)?).visit("head-L", head()?),
    ])
}

/// Models S3-FIFO with a small queue S, a main queue M that works as CLOCK, and ghosts.
fn s3_fifo(at: &At<'_>) -> Result<Vec<Walk>, ModelError> {
    let Shares { ghost, moved_on, .. } = at.shares;
    let (head, tail) = (at.time(Operation::Head)?, at.time(Operation::Tail)?);
    let ghosts = at.time(Operation::GhostLookup)?.alone_us;
    let into_main =
        |walk: Walk, tail: Time| walk.visit("head-M", head.clone()).visit("tail-M", tail);
    let into_small = |name, share: f64| {
        at.miss(name, share)
            .compute(ghosts)
            .visit("head-S", head.clone())
            .visit("tail-S", tail.clone())
    };
    Ok(vec![
        at.hit("hit", at.hits).mark(),
        into_main(at.miss("ghost", ghost).compute(ghosts), at.tail_past_marks()?),
        into_small("miss", (1.0 - ghost) * (1.0 - moved_on)),
        into_main(
            into_small("miss, another moves on", (1.0 - ghost) * moved_on),
            at.second_tail()?,
        ),
    ])
}

/// Models 2Q with a small FIFO queue S, a main LRU queue M, and ghosts.
fn two_q(at: &At<'_>) -> Result<Vec<Walk>, ModelError> {
    let (head, tail) = (at.time(Operation::Head)?, at.time(Operation::Tail)?);
    let ghosts = at.time(Operation::GhostLookup)?.alone_us;
    let main = at.shares.protected * at.unfrozen;
    let ghost = at.shares.ghost;
    Ok(vec![
        at.hit("hit", main)
            .visit("delink-M", at.time(Operation::Delink)?)
            .visit("head-M", head.clone()),
        at.hit("hit in the small queue", at.hits - main).mark(),
        at.miss("ghost", ghost)
            .compute(ghosts)
            .limit("tail-M", tail.clone())
            .visit("head-M", head.clone()),
        at.miss("miss", 1.0 - ghost).compute(ghosts).limit("tail-S", tail).visit("head-S", head),
    ])
}

/// Models LRU behind TinyLFU's filter.
fn tiny_lru(at: &At<'_>) -> Result<Vec<Walk>, ModelError> {
    let head = at.time(Operation::Head)?;
    Ok(vec![
        at.hit("hit", at.hits)
            .visit("delink", at.time(Operation::Delink)?)
            .visit("head", head.clone()),
        at.miss("rejected miss", at.shares.rejected),
        at.miss("miss", 1.0 - at.shares.rejected)
            .limit("tail", at.time(Operation::Tail)?)
            .visit("head", head),
    ])
}

/// Models sampled eviction, which has no list to wait for.
fn sampled(at: &At<'_>) -> Result<Vec<Walk>, ModelError> {
    let sample = at.time(Operation::Sample)?.alone_us;
    Ok(vec![at.hit("hit", at.hits).mark(), at.miss("miss", 1.0).compute(sample)])
}

/// Arguments of the functions that model policies: times in microseconds, and shares.
struct At<'a> {
    policy: &'static str,
    times: &'a Times,
    /// Share of all requests that hit entries that are not frozen.
    hits: f64,
    /// Share of all requests that hit frozen entries; `None` without a frozen part.
    frozen: Option<f64>,
    /// Share of the hits on entries that are not frozen.
    unfrozen: f64,
    misses: f64,
    q: f64,
    shares: Shares,
    lookup_us: f64,
    frozen_lookup_us: f64,
    compute_us: f64,
    mark_us: f64,
    miss_us: f64,
    disk_us: f64,
}

/// A request outcome under construction.
struct Walk {
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
    fn new(
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

    fn time(&self, operation: Operation) -> Result<Time, ModelError> {
        let policy = self.policy;
        self.times.times.get(&operation).cloned().ok_or(ModelError::NoTime { policy, operation })
    }

    /// Returns the time to find a victim when marked entries are passed by.
    fn tail_past_marks(&self) -> Result<Time, ModelError> {
        let step = self.time(Operation::Step)?.times(self.shares.passed_by);
        Ok(self.time(Operation::Tail)?.then(&step))
    }

    /// Returns the time to find a second victim in the same miss, past marked entries. Under one
    /// lock only the extra steps count, because the time of the first victim includes the lock and
    /// all other work.
    fn second_tail(&self) -> Result<Time, ModelError> {
        match self.times.locks {
            Locks::Operation => self.tail_past_marks(),
            Locks::List => Ok(self.time(Operation::Step)?.times(1.0 + self.shares.passed_by)),
        }
    }

    /// Starts the outcome of a hit on an entry that is not frozen.
    fn hit(&self, name: &'static str, probability: f64) -> Walk {
        let walk =
            Walk { name, probability, is_miss: false, mark_us: self.mark_us, parts: Vec::new() };
        walk.compute(self.compute_us + self.frozen_lookup_us + self.lookup_us)
    }

    /// Starts the outcome of a share of the misses.
    fn miss(&self, name: &'static str, share: f64) -> Walk {
        let mut walk = self.hit(name, share * self.misses);
        walk.is_miss = true;
        walk.parts.push(Part::Disk(self.disk_us));
        walk.compute(self.miss_us)
    }

    /// Returns the outcome of a hit on a frozen entry; `None` without a frozen part.
    fn frozen_hits(&self) -> Option<Walk> {
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
    /// Appends computing time, in microseconds.
    fn compute(mut self, us: f64) -> Self {
        if us > 0.0 {
            self.parts.push(Part::Compute(us));
        }
        self
    }

    /// Appends the mark that a hit sets without a lock.
    fn mark(self) -> Self {
        let us = self.mark_us;
        self.compute(us)
    }

    /// Appends a visit to a station.
    fn visit(mut self, station: &'static str, time: Time) -> Self {
        self.parts.push(Part::Visit { station, time, is_limit: false });
        self
    }

    /// Appends a visit to a station whose time is only an upper limit.
    fn limit(mut self, station: &'static str, time: Time) -> Self {
        self.parts.push(Part::Visit { station, time, is_limit: true });
        self
    }

    /// Merges all visits into one to the station `list`, at the place of the first.
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

/// Builds a network from outcomes, with a station for each name that they visit.
fn network(walks: Vec<Walk>, times: &Times) -> Result<Network, ModelError> {
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
