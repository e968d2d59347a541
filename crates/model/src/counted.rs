//! Builds networks of policies from counts of the operations that their code did.
//!
//! [`Counted`] says how many requests had which outcome, and how often these did what to which
//! list. Each operation on each list is a station, as the paper draws them, or all lists together
//! are one, for those who hold one lock; a request visits a station as often as requests with its
//! outcome did in the mean, so a [`Visit`] takes that many times the time of the operation. For
//! throughput by the bound and by mean value analysis only these means matter. The method of "Can
//! Increasing the Hit Ratio Hurt Cache Throughput?", whose table 2 conjectures what comes out.

use std::collections::BTreeMap;

use crate::{
    Locks, ModelError, Network, Operation, RequestOutcome, RouteStep, Service, Station, Time,
    Times, Visit,
};

/// The counted operations of requests.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Counted {
    /// Every outcome that there was.
    pub outcomes: Vec<Counts>,
}

/// The operations of all requests with one outcome.
#[derive(Debug, Clone, PartialEq)]
pub struct Counts {
    /// The outcome: `hit`.
    pub outcome: &'static str,
    /// True if it is a miss.
    pub is_miss: bool,
    /// The number of requests that had it, at least 1.
    pub requests: u64,
    /// The number of operations by list and kind. Those of [`Operation`] that need no lock are not
    /// at a list: its name does not count.
    pub operations: BTreeMap<(&'static str, Operation), f64>,
}

/// The place that a station models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// An operation on a list.
    List {
        /// The list.
        name: &'static str,
        /// The operation on it.
        operation: Operation,
    },
    /// All lists under one lock.
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

/// A network, and what its stations are.
#[derive(Debug, Clone, PartialEq)]
pub struct Drawn {
    /// The network.
    pub network: Network,
    /// The place that each of its stations models.
    pub places: Vec<Place>,
}

impl Drawn {
    /// The station that each request needs longest, and for how long, in microseconds; `None` when
    /// requests need none.
    pub fn longest(&self) -> Option<(Place, f64)> {
        let demands =
            self.places.iter().enumerate().map(|(at, &place)| (place, self.network.limit_us(at)));
        demands.filter(|demand| demand.1 > 0.0).max_by(|a, b| a.1.total_cmp(&b.1))
    }
}

impl Counts {
    /// Returns the mean number of such operations of a request with this outcome, over all lists.
    pub fn each(&self, operation: Operation) -> f64 {
        let times = self
            .operations
            .iter()
            .filter(|((_, done), _)| *done == operation)
            .map(|(_, times)| times);
        times.sum::<f64>() / self.requests as f64
    }

    /// Returns the mean number of list operations of a request with this outcome, without steps
    /// past others.
    pub fn list_operations(&self) -> f64 {
        [Operation::Delink, Operation::Head, Operation::Tail]
            .map(|operation| self.each(operation))
            .iter()
            .sum()
    }
}

impl Counted {
    /// Returns the number of requests.
    pub fn requests(&self) -> u64 {
        self.outcomes.iter().map(|counts| counts.requests).sum()
    }

    /// Share of requests that hit.
    pub fn hit_ratio(&self) -> f64 {
        let hits =
            self.outcomes.iter().filter(|counts| !counts.is_miss).map(|counts| counts.requests);
        hits.sum::<u64>() as f64 / self.requests() as f64
    }

    /// The network, with these times and a disk that takes so long.
    ///
    /// # Errors
    /// The times lack an operation, or a time is negative.
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
    /// The times of a policy's operations: its own where it has a row, and what these lack from the
    /// row of another one that is most like it.
    ///
    /// # Errors
    /// There is no row for the other one.
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

    /// One delink and one head each hit, one tail and one head each miss: that is how LRU is drawn
    /// by hand.
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
