//! Builds networks of policies from counts of the operations that their code did.
//!
//! [`Counted`] has the number of requests with each outcome, and the number of their operations on
//! each list. Each operation on each list is a station, as the paper draws them; for caches with
//! one lock, all lists together are one station. A request visits a station as often as requests
//! with its outcome did in the mean, so a [`Visit`] takes that many times the time of the
//! operation. For throughput by the bound and by mean value analysis only these means matter. The
//! method is that of "Can Increasing the Hit Ratio Hurt Cache Throughput?", whose table 2
//! conjectures the results.

use std::collections::BTreeMap;

use crate::{
    Locks, ModelError, Network, Operation, RequestOutcome, RouteStep, Service, Station, Time,
    Times, Visit,
};

/// Counted operations of requests, by outcome.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Counted {
    /// Counts for each outcome that occurred.
    pub outcomes: Vec<Counts>,
}

/// Counted operations of all requests with one outcome.
#[derive(Debug, Clone, PartialEq)]
pub struct Counts {
    /// Name of the outcome, such as `hit`.
    pub outcome: &'static str,
    /// True if the outcome is a miss.
    pub is_miss: bool,
    /// Number of requests with the outcome, at least 1.
    pub requests: u64,
    /// Number of operations by list and kind. For an [`Operation`] that needs no lock, the list's
    /// name is ignored.
    pub operations: BTreeMap<(&'static str, Operation), f64>,
}

/// The operation or lock that a station models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// An operation on a list.
    List {
        /// Name of the list.
        name: &'static str,
        /// Operation on the list.
        operation: Operation,
    },
    /// The single lock of all lists.
    Lock,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::List { name, operation } => write!(f, "{operation} of {name}"),
            Place::Lock => f.write_str("lock"),
        }
    }
}

/// A network with the operation or lock of each station.
#[derive(Debug, Clone, PartialEq)]
pub struct Drawn {
    /// Network built from the counts.
    pub network: Network,
    /// Operation or lock of each station, in the order of the network's stations.
    pub places: Vec<Place>,
}

impl Drawn {
    /// Returns the station with the largest demand, and that demand per request in microseconds;
    /// `None` when requests need no station.
    pub fn longest(&self) -> Option<(Place, f64)> {
        let demands =
            self.places.iter().enumerate().map(|(at, &place)| (place, self.network.limit_us(at)));
        demands.filter(|demand| demand.1 > 0.0).max_by(|a, b| a.1.total_cmp(&b.1))
    }
}

impl Counts {
    /// Returns the mean number of operations of this kind of a request with this outcome, over all
    /// lists.
    pub fn each(&self, operation: Operation) -> f64 {
        let times = self
            .operations
            .iter()
            .filter(|((_, done), _)| *done == operation)
            .map(|(_, times)| times);
        times.sum::<f64>() / self.requests as f64
    }

    /// Returns the mean number of list operations of a request with this outcome, without steps
    /// past entries that stay.
    pub fn list_operations(&self) -> f64 {
        [Operation::Delink, Operation::Head, Operation::Tail]
            .map(|operation| self.each(operation))
            .iter()
            .sum()
    }
}

impl Counted {
    /// Returns the number of requests with any outcome.
    pub fn requests(&self) -> u64 {
        self.outcomes.iter().map(|counts| counts.requests).sum()
    }

    /// Returns the share of requests that hit.
    pub fn hit_ratio(&self) -> f64 {
        let hits =
            self.outcomes.iter().filter(|counts| !counts.is_miss).map(|counts| counts.requests);
        hits.sum::<u64>() as f64 / self.requests() as f64
    }

    /// Builds the network from the counts, with these times and a disk read of `disk_us`
    /// microseconds.
    ///
    /// # Errors
    /// When the times lack an operation, or a time is negative.
    pub fn network(&self, times: &Times, locks: Locks, disk_us: f64) -> Result<Drawn, ModelError> {
        let mut drawing = Drawing { times, locks, stations: Vec::new(), places: Vec::new() };
        let all = self.requests() as f64;
        let mut outcomes = Vec::new();
        for counts in &self.outcomes {
            outcomes.push(RequestOutcome {
                name: counts.outcome,
                probability: counts.requests as f64 / all,
                is_miss: counts.is_miss,
                steps: drawing.steps(counts, disk_us)?,
            });
        }
        Ok(Drawn { network: Network::new(drawing.stations, outcomes)?, places: drawing.places })
    }
}

struct Drawing<'a> {
    times: &'a Times,
    locks: Locks,
    stations: Vec<Station>,
    places: Vec<Place>,
}

impl Drawing<'_> {
    fn time(&self, operation: Operation) -> Result<&Time, ModelError> {
        self.times
            .times
            .get(&operation)
            .ok_or(ModelError::NoTime { policy: "this policy", operation })
    }

    fn steps(&mut self, counts: &Counts, disk_us: f64) -> Result<Vec<RouteStep>, ModelError> {
        let optional =
            |operation| self.times.times.get(&operation).map_or(0.0, |time| time.alone_us);
        let mut computes_us = self.time(Operation::Lookup)?.alone_us;
        if counts.is_miss {
            computes_us += optional(Operation::Miss);
        }
        let mut visits: Vec<Visit> = Vec::new();
        for (&(list, operation), &times) in &counts.operations {
            let each = times / counts.requests as f64;
            let station = match operation {
                Operation::Delink | Operation::Head | Operation::Tail => Some(operation),
                // Who passes entries by has hold of the tail.
                Operation::Step => Some(Operation::Tail),
                // Who chooses among others must keep them from leaving.
                Operation::Sample if self.locks == Locks::List => Some(operation),
                _ => None,
            };
            let Some(station) = station else {
                computes_us += each
                    * match operation {
                        Operation::Mark | Operation::WrittenMark => optional(operation),
                        operation => self.time(operation)?.alone_us,
                    };
                continue;
            };
            let time = self.time(operation)?.times(each);
            let place = match self.locks {
                Locks::Operation => Place::List { name: list, operation: station },
                Locks::List => Place::Lock,
            };
            let station = self.station(place);
            match visits.iter_mut().find(|visit| visit.station == station) {
                Some(visit) => visit.time = visit.time.then(&time),
                None => visits.push(Visit { station, time, is_limit: false }),
            }
        }
        let mut steps = vec![RouteStep::Compute(computes_us)];
        steps.extend(counts.is_miss.then_some(RouteStep::Disk(disk_us)));
        steps.extend(visits.into_iter().map(RouteStep::Visit));
        Ok(steps)
    }

    fn station(&mut self, place: Place) -> usize {
        self.places.iter().position(|known| *known == place).unwrap_or_else(|| {
            self.places.push(place);
            let name = match place {
                Place::List { name, .. } => name,
                Place::Lock => "lock",
            };
            self.stations.push(Station { name, servers: 1, copies: self.times.shards });
            self.stations.len() - 1
        })
    }
}

impl Service {
    /// Returns the times of a policy's operations: those of its own row, if any, and missing ones
    /// from the row of the policy `like`, which resembles it.
    ///
    /// # Errors
    /// When there is no row for the policy `like`.
    pub fn times_like(&self, policy: &str, like: &'static str) -> Result<Times, ModelError> {
        let mut times = self.times(like, None)?;
        if let Some(own) = self.policies.iter().find(|own| own.policy == policy) {
            let lacking = std::mem::replace(&mut times, own.clone()).times;
            for (operation, time) in lacking {
                times.times.entry(operation).or_insert(time);
            }
        }
        Ok(times)
    }
}

/// Shares of a policy's outcomes at a hit ratio: functions that the authors fitted to their
/// simulations.
///
/// The share of hits in the protected segment or of misses with a ghost depends on policy and load,
/// not only on the hit ratio. The fits are to Zipf 0.99 and hold for p_hit of 0.4 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shares {
    /// Share of all requests that hit the protected segment of SLRU, or the main queue of 2Q.
    pub protected: f64,
    /// Share of misses whose key is in a ghost list.
    pub ghost: f64,
    /// Share of the small queue's evictions that move on to the main queue.
    pub moved_on: f64,
    /// Share of misses that the filter of W-TinyLFU rejects.
    pub rejected: f64,
    /// Mean number of entries passed by before a victim is found.
    pub passed_by: f64,
}

/// Points measured by the authors: hit ratio, and share of misses that TinyLFU rejects.
const REJECTED: [(f64, f64); 4] = [(0.486, 0.79), (0.62, 0.77), (0.9, 0.53), (0.997, 0.0)];

impl Shares {
    /// Returns the shares at a hit ratio from the authors' fits.
    pub fn fitted(hit_ratio: f64) -> Self {
        let miss = 1.0 - hit_ratio;
        let protected = -0.1158 * hit_ratio * hit_ratio + 1.0112 * hit_ratio - 0.0009;
        let of_misses =
            |density: f64| if miss > 0.0 { (density / miss).clamp(0.0, 1.0) } else { 0.0 };
        Self {
            protected: protected.clamp(0.0, hit_ratio),
            ghost: of_misses(chi_squared(65.0 * miss, 4.4912, 1.1394, 3.595)),
            moved_on: of_misses(chi_squared(400.0 * miss, 2.2870, 4.5309, 26.5874)),
            rejected: between(&REJECTED, hit_ratio),
            passed_by: 2.43e-5 * (11.24 * hit_ratio).exp() + 0.187,
        }
    }
}

/// Returns the density of the χ² distribution with `freedom` degrees, shifted by `location` and
/// stretched by `scale`.
fn chi_squared(x: f64, freedom: f64, location: f64, scale: f64) -> f64 {
    let (x, half) = ((x - location) / scale, freedom / 2.0);
    if x <= 0.0 {
        return 0.0;
    }
    let log = (half - 1.0) * x.ln() - x / 2.0 - half * std::f64::consts::LN_2 - log_gamma(half);
    log.exp() / scale
}

/// Returns the logarithm of Γ for arguments of at least 1, by Stirling's series for large arguments
/// and Γ(x + 1) = x Γ(x) below.
fn log_gamma(x: f64) -> f64 {
    let (mut x, mut product) = (x, 1.0);
    while x < 10.0 {
        product *= x;
        x += 1.0;
    }
    let series = 1.0 / (12.0 * x) - 1.0 / (360.0 * x.powi(3)) + 1.0 / (1260.0 * x.powi(5));
    (x - 0.5) * x.ln() - x + 0.5 * (2.0 * std::f64::consts::PI).ln() + series - product.ln()
}

/// Interpolates linearly between points; constant outside them.
fn between(points: &[(f64, f64)], x: f64) -> f64 {
    let above = points.partition_point(|point| point.0 < x);
    if above == 0 || above == points.len() {
        return points[above.min(points.len() - 1)].1;
    }
    let ((x0, y0), (x1, y1)) = (points[above - 1], points[above]);
    y0 + (x - x0) / (x1 - x0) * (y1 - y0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Load, Policy, Setting, mva};

    fn counts(
        outcome: &'static str,
        is_miss: bool,
        requests: u64,
        done: &[(Operation, f64)],
    ) -> Counts {
        let operations =
            done.iter().map(|&(operation, times)| (("list", operation), times)).collect();
        Counts { outcome, is_miss, requests, operations }
    }

    /// One delink and one head for each hit, one tail and one head for each miss give LRU's network
    /// as the paper draws it.
    #[test]
    fn counts_of_lru_make_the_network_of_lru() {
        let service = Service::paper();
        let counted = Counted {
            outcomes: vec![
                counts("hit", false, 900, &[(Operation::Delink, 900.0), (Operation::Head, 900.0)]),
                counts("miss", true, 100, &[(Operation::Tail, 100.0), (Operation::Head, 100.0)]),
            ],
        };
        let times = service.times_like("lru", "lru").unwrap();
        let drawn = counted.network(&times, Locks::Operation, 100.0).unwrap();
        let lru =
            Policy::named("lru").unwrap().network(&service, &Setting::new(0.9, 100.0)).unwrap();
        for mpl in [1, 16, 72] {
            let (ours, drawn) = (
                mva::throughput(&drawn.network, &Load::of(mpl)),
                mva::throughput(&lru, &Load::of(mpl)),
            );
            let (ours, drawn) = (ours.unwrap(), drawn.unwrap());
            assert!((ours / drawn - 1.0).abs() < 1e-9, "MPL {mpl}: {ours} and {drawn}");
        }
        let (place, us) = drawn.longest().unwrap();
        assert_eq!((place.to_string().as_str(), (us * 1000.0).round()), ("delink of list", 630.0));
    }

    #[test]
    fn under_one_lock_all_operations_are_one_station() {
        let counted = Counted {
            outcomes: vec![
                counts("hit", false, 1, &[(Operation::Delink, 1.0), (Operation::Head, 1.0)]),
                counts(
                    "miss",
                    true,
                    1,
                    &[
                        (Operation::Tail, 2.0),
                        (Operation::Step, 3.0),
                        (Operation::GhostLookup, 1.0),
                    ],
                ),
            ],
        };
        let times = Service::paper().times_like("no such policy", "lru").unwrap();
        let drawn = counted.network(&times, Locks::List, 5.0).unwrap();
        let (place, us) = drawn.longest().unwrap();
        assert_eq!((drawn.places.len(), place), (1, Place::Lock));
        assert!((us - (0.7 + 0.59 + 2.0 * 0.59 + 3.0 * 0.3) / 2.0).abs() < 1e-9, "{us}");
        assert!((drawn.network.compute_us() - (0.51 + 0.51 / 2.0)).abs() < 1e-9);
    }

    #[test]
    fn a_policy_s_own_times_go_before_those_of_what_is_like_it() {
        let mut service = Service::paper();
        assert_eq!(
            service.times_like("arc", "lru").unwrap().times[&Operation::Delink],
            Time::of(0.70)
        );
        service.policies.push(Times {
            policy: "arc".into(),
            times: BTreeMap::from([(Operation::Delink, Time::of(2.0))]),
            ..service.times_like("lru", "lru").unwrap()
        });
        let arc = service.times_like("arc", "lru").unwrap();
        assert_eq!(
            (&arc.times[&Operation::Delink], &arc.times[&Operation::Head]),
            (&Time::of(2.0), &Time::of(0.59))
        );
        assert!(service.times_like("arc", "nothing").is_err());
    }
}

#[cfg(test)]
mod shares_tests {
    use super::*;

    #[track_caller]
    fn close(value: f64, printed: f64, digits: i32) {
        assert!(
            (value - printed).abs() <= 0.500_001 * 10f64.powi(-digits),
            "{value} is not {printed}"
        );
    }

    #[test]
    fn fits_have_the_authors_values() {
        // p1 and p2 as evaluated with SciPy.
        let known = [
            (0.4, 0.008, 0.0005),
            (0.6, 0.045, 0.003),
            (0.8, 0.22, 0.026),
            (0.9, 0.405, 0.097),
            (0.95, 0.399, 0.252),
            (0.98, 0.053, 0.637),
        ];
        for (hit_ratio, ghost, moved_on) in known {
            let shares = Shares::fitted(hit_ratio);
            close(shares.ghost, ghost, if ghost == 0.22 { 2 } else { 3 });
            close(shares.moved_on, moved_on, if hit_ratio == 0.4 { 4 } else { 3 });
        }
        for (hit_ratio, passed_by) in
            [(0.4, 0.19), (0.8, 0.38), (0.9, 0.79), (0.95, 1.24), (0.98, 1.66), (1.0, 2.04)]
        {
            close(Shares::fitted(hit_ratio).passed_by, passed_by, 2);
        }
    }

    #[test]
    fn shares_are_shares_at_any_hit_ratio() {
        for at in 0..=1000 {
            let hit_ratio = f64::from(at) / 1000.0;
            let Shares { protected, ghost, moved_on, rejected, .. } = Shares::fitted(hit_ratio);
            assert!((0.0..=hit_ratio).contains(&protected), "{hit_ratio}: {protected}");
            assert!(
                [ghost, moved_on, rejected].iter().all(|share| (0.0..=1.0).contains(share)),
                "{hit_ratio}"
            );
        }
    }

    #[test]
    fn log_gamma_knows_factorials_and_halves() {
        for (x, gamma) in [(1.0, 1.0f64), (2.0, 1.0), (5.0, 24.0), (11.0, 3_628_800.0)] {
            assert!((log_gamma(x) - gamma.ln()).abs() < 1e-9, "{x}");
        }
        assert!((log_gamma(1.5) - (std::f64::consts::PI.sqrt() / 2.0).ln()).abs() < 1e-9);
    }
}
