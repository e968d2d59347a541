//! A cache as a closed queueing network, as data.
//!
//! A request has one of a few *outcomes* (a hit, a miss, a ghost hit, …), drawn at random, and
//! walks through the steps of that outcome. Steps are times that any number of requests spend in
//! parallel (lookups; the disk), and visits to *stations*, which serve one request after the other
//! (list operations under a lock). When a request ends the next one begins. Method of "Can
//! Increasing the Hit Ratio Hurt Cache Throughput?", sections 3.1 and 4.
//!
//! Invariants of a [`Network`]: probabilities are from 0 to 1 and add up to 1; every time is finite
//! and at least 0; every visit is to a station of the network.

use crate::error::{share, time};
use crate::{Load, ModelError, Time};

/// A queue with one or several servers, such as a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Station {
    /// Name of the station, such as `delink` or `head-S`.
    pub name: &'static str,
    /// Number of requests served at a time.
    pub servers: u32,
    /// Number of copies of the station, such as one per shard; each visit goes to one of them at
    /// random.
    pub copies: u32,
}

/// A step of a request.
#[derive(Debug, Clone, PartialEq)]
pub enum RouteStep {
    /// Computing that holds only a core, in microseconds.
    Compute(f64),
    /// A wait for the backing device, which holds no core and has no queue, in microseconds.
    Disk(f64),
    /// A list operation at a station.
    Visit(Visit),
}

/// A list operation of a request: the station, and the service time there.
#[derive(Debug, Clone, PartialEq)]
pub struct Visit {
    /// Index of the station in the network.
    pub station: usize,
    /// Service time of the operation.
    pub time: Time,
    /// True if the time is only an upper limit. The bound on throughput then takes it as 0, as the
    /// paper does with tail updates.
    pub is_limit: bool,
}

/// One possible outcome of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestOutcome {
    /// Name of the outcome, such as `hit`.
    pub name: &'static str,
    /// Probability of the outcome, from 0 to 1.
    pub probability: f64,
    /// True if the outcome is a miss.
    pub is_miss: bool,
    /// Steps of a request with this outcome, in order.
    pub steps: Vec<RouteStep>,
}

/// A closed queueing network of a cache: its stations, and the outcomes of requests.
#[derive(Debug, Clone, PartialEq)]
pub struct Network {
    stations: Vec<Station>,
    outcomes: Vec<RequestOutcome>,
}

impl Network {
    /// Creates a network and checks its invariants.
    ///
    /// # Errors
    /// When an invariant of the [module](self) does not hold.
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

    /// Returns the stations of the network.
    pub fn stations(&self) -> &[Station] {
        &self.stations
    }

    /// Returns the possible outcomes of a request.
    pub fn outcomes(&self) -> &[RequestOutcome] {
        &self.outcomes
    }

    /// Returns the mean time a request computes outside all stations, in microseconds.
    pub fn compute_us(&self) -> f64 {
        self.mean(|step| if let RouteStep::Compute(us) = step { *us } else { 0.0 })
    }

    /// Returns the mean time a request waits for the disk, in microseconds.
    pub fn disk_us(&self) -> f64 {
        self.mean(|step| if let RouteStep::Disk(us) = step { *us } else { 0.0 })
    }

    /// Returns the mean service time of a request at a station and all its copies, in microseconds,
    /// with `queue` requests there, itself included.
    pub fn demand_us(&self, station: usize, queue: u32) -> f64 {
        self.at(station, |visit| visit.time.at_us(queue))
    }

    /// Returns the lower limit of [`Network::demand_us`], which the bound on throughput uses.
    pub fn least_demand_us(&self, station: usize) -> f64 {
        self.at(station, |visit| if visit.is_limit { 0.0 } else { visit.time.least_us() })
    }

    /// Returns the queue length from which a station's times stay constant.
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

    /// Returns the name of the bottleneck: the station with the largest demand per request, or
    /// `cores` if they limit throughput. `None` when requests wait for nothing.
    pub fn bottleneck(&self, load: &Load) -> Option<&'static str> {
        self.longest(load).map(|(name, _)| name)
    }

    /// Returns the bottleneck and its time per request when it is always busy, in microseconds.
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

    /// Returns the time per request of a station that is always busy, in microseconds.
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

/// Returns the asymptotic bound on a network's throughput, `X ≤ min(N / (D + Z), 1 / D_max)`, in
/// million requests a second.
///
/// `N` requests in flight each take at least the sum of their own times, and no station can be more
/// than fully busy. With fewer cores than requests in flight, cores are a resource like a station:
/// each request needs them for its own computing and list operations. Section 3.2 of "Can
/// Increasing the Hit Ratio Hurt Cache Throughput?", with its choice of taking tail updates as 0.
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
