//! A cache as a closed queueing network, as data.
//!
//! A request draws one of a few *outcomes* (a hit, a miss, a ghost hit, …) and walks through its
//! steps: time that any number of requests spend side by side (lookups; the disk), and visits to
//! *stations*, which serve one after the other (list operations under a lock). When it ends the
//! next one begins. Method of "Can Increasing the Hit Ratio Hurt Cache Throughput?", sections 3.1
//! and 4.
//!
//! Invariants of a [`Network`]: probabilities are of 0 to 1 and add up to 1; every time is finite
//! and at least 0; every visit is to a station of the network.

use crate::error::{share, time};
use crate::{Load, ModelError, Time};

/// A server, or several, with one queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Station {
    /// Its name: `delink`, `head-S`.
    pub name: &'static str,
    /// The number of requests it serves at a time.
    pub servers: u32,
    /// The number of copies; each visit goes to one of them at random, as to one of many shards.
    pub copies: u32,
}

/// Part of a request.
#[derive(Debug, Clone, PartialEq)]
pub enum RouteStep {
    /// Work that holds a core and nothing else, in microseconds.
    Compute(f64),
    /// Waiting for the backing device, which holds nothing and has room for all, in microseconds.
    Disk(f64),
    /// A list operation.
    Visit(Visit),
}

/// A list operation of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Visit {
    /// Index of the station.
    pub station: usize,
    /// The service time.
    pub time: Time,
    /// True if the time is known as an upper limit only. The bound on throughput then takes it as
    /// 0, as the paper does with tail updates.
    pub is_limit: bool,
}

/// The possible outcomes of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestOutcome {
    /// Its name: `hit`.
    pub name: &'static str,
    /// Its probability.
    pub probability: f64,
    /// True for a miss.
    pub is_miss: bool,
    /// Its steps, in order.
    pub steps: Vec<RouteStep>,
}

/// A cache under load; see the module.
#[derive(Debug, Clone, PartialEq)]
pub struct Network {
    stations: Vec<Station>,
    outcomes: Vec<RequestOutcome>,
}

impl Network {
    /// A network of these parts.
    ///
    /// # Errors
    /// What of the module's invariants does not hold.
    pub fn new(stations: Vec<Station>, outcomes: Vec<RequestOutcome>) -> Result<Self, ModelError> {
        for outcome in &outcomes {
            share(outcome.name, outcome.probability)?;
            for step in &outcome.steps {
                match step {
                    RouteStep::Compute(us) | RouteStep::Disk(us) => time(outcome.name, *us)?,
                    RouteStep::Visit(visit) => {
                        let station = stations.get(visit.station);
                        let station =
                            station.ok_or(ModelError::NoStation { outcome: outcome.name })?;
                        visit.time.check(station.name)?;
                    }
                }
            }
        }
        if let Some(station) =
            stations.iter().find(|station| station.servers == 0 || station.copies == 0)
        {
            return Err(ModelError::NoServer { station: station.name });
        }
        let sum: f64 = outcomes.iter().map(|outcome| outcome.probability).sum();
        if (sum - 1.0).abs() > 1e-9 {
            return Err(ModelError::Probabilities { sum });
        }
        Ok(Self { stations, outcomes })
    }

    /// The stations.
    pub fn stations(&self) -> &[Station] {
        &self.stations
    }

    /// The possible outcomes of a request.
    pub fn outcomes(&self) -> &[RequestOutcome] {
        &self.outcomes
    }

    /// Mean time a request computes outside all stations, in microseconds.
    pub fn compute_us(&self) -> f64 {
        self.mean(|step| if let RouteStep::Compute(us) = step { *us } else { 0.0 })
    }

    /// Mean time a request waits for the disk, in microseconds.
    pub fn disk_us(&self) -> f64 {
        self.mean(|step| if let RouteStep::Disk(us) = step { *us } else { 0.0 })
    }

    /// Mean time a request needs of a station, all its copies together, with `queue` requests
    /// there, itself among them.
    pub fn demand_us(&self, station: usize, queue: u32) -> f64 {
        self.at(station, |visit| visit.time.at_us(queue))
    }

    /// The least that [`Network::demand_us`] may be, as the bound takes it.
    pub fn least_demand_us(&self, station: usize) -> f64 {
        self.at(station, |visit| if visit.is_limit { 0.0 } else { visit.time.least_us() })
    }

    /// The queue length from which on a station's times stay the same.
    pub(crate) fn steady_from(&self, station: usize) -> u32 {
        let length = |step: &RouteStep| match step {
            RouteStep::Visit(visit) if visit.station == station => {
                visit.time.contended.last().map(|last| last.0)
            }
            _ => None,
        };
        self.outcomes
            .iter()
            .flat_map(|outcome| &outcome.steps)
            .filter_map(length)
            .max()
            .unwrap_or(1)
    }

    /// Returns the name of what limits throughput when everything waits: the station that is
    /// longest with each request, or the cores where they are. `None` when requests wait for
    /// nothing.
    pub fn bottleneck(&self, load: &Load) -> Option<&'static str> {
        self.longest(load).map(|(name, _)| name)
    }

    /// The same, and the time it takes with each request when it is always busy.
    pub(crate) fn longest(&self, load: &Load) -> Option<(&'static str, f64)> {
        let stations =
            (0..self.stations.len()).map(|at| (self.stations[at].name, self.limit_us(at)));
        let on_cores = load.cores.filter(|&cores| cores < load.mpl).map(|cores| {
            let demands: f64 =
                (0..self.stations.len()).map(|at| self.demand_us(at, u32::MAX)).sum();
            ("cores", (demands + self.compute_us()) / f64::from(cores))
        });
        let longest = stations.rev().chain(on_cores).max_by(|a, b| a.1.total_cmp(&b.1));
        longest.filter(|longest| longest.1 > 0.0)
    }

    /// The time a request takes of a station that is always busy.
    pub(crate) fn limit_us(&self, station: usize) -> f64 {
        let Station { servers, copies, .. } = self.stations[station];
        self.demand_us(station, u32::MAX) / (f64::from(servers) * f64::from(copies))
    }

    fn at(&self, station: usize, us: impl Fn(&Visit) -> f64) -> f64 {
        self.mean(|step| match step {
            RouteStep::Visit(visit) if visit.station == station => us(visit),
            _ => 0.0,
        })
    }

    fn mean(&self, us: impl Fn(&RouteStep) -> f64) -> f64 {
        let of = |outcome: &RequestOutcome| {
            outcome.probability * outcome.steps.iter().map(&us).sum::<f64>()
        };
        self.outcomes.iter().map(of).sum()
    }
}

/// The most that a network can do, in million requests a second.
///
/// With fewer cores than requests in flight they are a resource like any other: no request takes
/// less of them than its own computing and list operations.
///
/// The asymptotic bound on throughput: `X ≤ min(N / (D + Z), 1 / D_max)`.
///
/// `N` requests in flight cannot each take less than all their own time, and no station can give
/// more than all of its time. Section 3.2 of "Can Increasing the Hit Ratio Hurt Cache Throughput?",
/// with its choice of taking tail updates as 0.
pub fn bound(network: &Network, load: &Load) -> f64 {
    let stations = || (0..network.stations().len()).map(|at| (at, network.least_demand_us(at)));
    let demand: f64 = stations().map(|(_, us)| us).sum();
    let longest = stations().map(|(at, us)| {
        let station = network.stations()[at];
        us / (f64::from(station.servers) * f64::from(station.copies))
    });
    let on_cores =
        load.cores.map_or(0.0, |cores| (demand + network.compute_us()) / f64::from(cores));
    let alone = demand + network.compute_us() + network.disk_us();
    (f64::from(load.mpl) / alone).min(1.0 / longest.fold(on_cores, f64::max))
}
