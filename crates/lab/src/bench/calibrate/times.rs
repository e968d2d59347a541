//! Derives the times of list operations from the request times of benchmark runs: each is a
//! difference between two kinds of requests.

use std::collections::BTreeMap;

use floe_model::{
    Load, Locks, ModelError, Network, Operation, RequestOutcome, RouteStep, Service, Station, Time,
    Times, Visit, mva,
};
use floe_policy::registry::Choice;

use super::{
    Around, CLIENT, Calibrate, CalibrateError, Calibration, FROZEN, Figure, HALF_COIN, Hits, Known,
    LEAST_US, Marking, Mixed, Pace, Requests, RunKind, orders,
};
use crate::bench::competitor::Plan;
use crate::bench::measure::Estimate;

/// One time per repetition, in microseconds.
type Series = Vec<f64>;

/// A series of times for each pace of requests.
#[derive(Clone)]
struct ByPace(BTreeMap<Pace, Series>);

impl ByPace {
    /// Returns the times of the run with the most threads at full pace.
    fn together(&self) -> &Series {
        let mut together =
            self.0.iter().rev().filter(|(pace, _)| matches!(pace, Pace::Together(_)));
        together.next().expect("one thread, at least").1
    }

    /// Subtracts the times of `base`, repetition by repetition; at least [`LEAST_US`] is left.
    fn beyond(&self, base: &ByPace) -> ByPace {
        let beyond = |(pace, series): (&Pace, &Series)| {
            let times = series.iter().zip(&base.0[pace]);
            (*pace, times.map(|(us, base)| (us - base).max(LEAST_US)).collect())
        };
        ByPace(self.0.iter().map(beyond).collect())
    }

    /// Adds the times of `more`, repetition by repetition.
    fn plus(&self, more: &ByPace) -> ByPace {
        let plus = |(pace, series): (&Pace, &Series)| {
            (*pace, series.iter().zip(&more.0[pace]).map(|(us, more)| us + more).collect())
        };
        ByPace(self.0.iter().map(plus).collect())
    }
}

fn beyond(times: &[f64], base: &[f64]) -> Series {
    times.iter().zip(base).map(|(time, base)| (time - base).max(LEAST_US)).collect()
}

fn median(series: &[f64]) -> f64 {
    Estimate::of(series.iter().copied()).median.max(LEAST_US)
}

/// Returns the time of a visit to the list, in each repetition of runs in which a share of the
/// requests visits it. `compute` is the time of a request apart from the visit.
fn visits(requests: &ByPace, compute: &ByPace, share: f64) -> Result<ByPace, ModelError> {
    let mut visits = requests.beyond(compute);
    visits.0.values_mut().flatten().for_each(|us| *us /= share);
    let meeting = |pace: Pace, at: usize| Meeting {
        threads: pace.threads() as u32,
        share,
        compute_us: compute.0[&pace][at],
        throughput_mrps: pace.threads() as f64 / requests.0[&pace][at],
    };
    let paces: Vec<Pace> = requests.0.keys().copied().collect();
    let Some(&apart) = paces.iter().find(|pace| matches!(pace, Pace::Apart(_))) else {
        return Ok(visits);
    };
    let together: Vec<Pace> =
        paces.into_iter().filter(|&pace| pace != apart && pace.threads() > 1).collect();
    for at in 0..requests.0[&apart].len() {
        let runs: Vec<Meeting> = together.iter().map(|&pace| meeting(pace, at)).collect();
        // Data written by other threads is not quicker to reach than unshared data.
        let time = visit(&meeting(apart, at), &runs, visits.0[&Pace::Together(1)][at])?;
        for &pace in together.iter().chain([&apart]) {
            let queue = if pace == apart { 1 } else { pace.threads() as u32 };
            visits.0.get_mut(&pace).expect("all are there")[at] = time.at_us(queue);
        }
    }
    Ok(visits)
}

/// Returns the median times of visits to the list, less `part_us` for the part that is reported as
/// an operation of its own.
fn less(visits: &ByPace, part_us: f64) -> Time {
    let mut time = Time::default();
    for (pace, series) in &visits.0 {
        let us = (median(series) - part_us).max(LEAST_US);
        match pace {
            Pace::Together(threads) if *threads > 1 => time.contended.push((*threads as u32, us)),
            // The last of them: with one thread, unless there are several, apart.
            _ => time.alone_us = us,
        }
    }
    time
}

/// Collects measured times for the report.
#[derive(Default)]
struct Figures(Vec<Figure>);

impl Figures {
    fn note(&mut self, policy: &str, operation: &str, times: &ByPace) {
        for (pace, series) in &times.0 {
            let Estimate { median, low, high, confidence } =
                Estimate::of(series.iter().map(|us| 1e3 * us));
            let apart = if let Pace::Apart(_) = pace { ", apart" } else { "" };
            let figure = Figure {
                policy: policy.to_owned(),
                operation: format!("{operation}{apart}"),
                threads: pace.threads(),
                ns: median,
                ns_low: low,
                ns_high: high,
                confidence,
            };
            self.0.push(figure);
        }
    }

    /// Adds times of an operation on the policy's order alone, without lock and cache, in
    /// nanoseconds.
    fn note_order(&mut self, policy: &str, operation: &str, ns: &[f64]) {
        let series = ns.iter().map(|ns| ns / 1e3).collect();
        self.note(policy, operation, &ByPace(BTreeMap::from([(Pace::Together(1), series)])));
    }
}

impl Calibrate<'_> {
    pub(super) fn times(
        &self,
        choices: &[(Choice, Known)],
        requests: &Requests,
        mixed: &Mixed,
        marking: &Marking,
    ) -> Result<Calibration, CalibrateError> {
        let of = |policy: &str, kind: RunKind| {
            let series = |pace| (pace, requests[&(policy.to_owned(), kind, pace)].clone());
            ByPace(self.paces().into_iter().map(series).collect())
        };
        let mut figures = Figures::default();
        let repetitions = self.plan.repetitions;
        let fifo_order = orders(&choices[1].0, None, repetitions);
        let lookup = of("fifo", RunKind::Hits);
        let frozen = of(FROZEN, RunKind::Hits);
        let client = of(CLIENT, RunKind::Hits);
        let waiting = of(CLIENT, RunKind::Misses);
        let miss = waiting.beyond(&client);
        figures.note(CLIENT, "request", &client);
        figures.note(CLIENT, Operation::Miss.name(), &miss);
        figures.note("fifo", Operation::Lookup.name(), &lookup);
        figures.note(FROZEN, Operation::FrozenLookup.name(), &frozen);
        let missing = lookup.plus(&miss);
        let fifo_visit = less(&visits(&of("fifo", RunKind::Misses), &missing, 1.0)?, 0.0);
        let among = mixed.us.iter().zip(lookup.together()).map(|(us, lookup_us)| {
            let computed = computing(
                &fifo_visit,
                mixed.misses,
                self.threads as u32,
                self.threads as f64 / us,
            )?;
            Ok(((computed - lookup_us) / mixed.misses).max(LEAST_US))
        });
        let among: Series = among.collect::<Result<_, ModelError>>()?;
        let miss_us = median(&among);
        let among = ByPace(BTreeMap::from([(Pace::Together(self.threads), among)]));
        figures.note(CLIENT, "miss, among hits", &among);
        let lru_visits = visits(&of("lru", RunKind::Hits), &lookup, 1.0)?;
        let mut rows = Vec::new();
        for (choice, known) in choices {
            let policy = choice.to_string();
            let hits = of(&policy, RunKind::Hits);
            let mut seldom = None;
            let order = orders(choice, known.touches, repetitions);
            let head_ns = if known.ghosts { &fifo_order.insert } else { &order.insert };
            let head_us = median(head_ns) / 1e3;
            let mut times = BTreeMap::from([
                (Operation::Lookup, Time::of(median(lookup.together()))),
                (Operation::FrozenLookup, Time::of(median(frozen.together()))),
                (Operation::Miss, Time::of(miss_us)),
                (Operation::Head, Time::of(head_us.max(LEAST_US))),
            ]);
            figures.note_order(&policy, "order: head", head_ns);
            figures.note_order(&policy, "order: tail", &order.evict);
            if let Some(promote) = &order.promote {
                figures.note_order(&policy, "order: delink, head", promote);
            }
            if let Some(step) = &order.step {
                figures.note_order(&policy, Operation::Step.name(), step);
                times.insert(Operation::Step, Time::of((median(step) / 1e3).max(LEAST_US)));
            }
            if known.ghosts {
                let ghost = beyond(&order.insert, &fifo_order.insert);
                figures.note_order(&policy, Operation::GhostLookup.name(), &ghost);
                times
                    .insert(Operation::GhostLookup, Time::of((median(&ghost) / 1e3).max(LEAST_US)));
            }
            let miss_visits = visits(&of(&policy, RunKind::Misses), &missing, 1.0)?;
            figures.note(&policy, "list, by a miss", &miss_visits);
            times.insert(Operation::Tail, less(&miss_visits, head_us));
            match known.hits {
                Hits::Nothing => {}
                Hits::List => {
                    let hit_visits = visits(&hits, &lookup, 1.0)?;
                    figures.note(&policy, "list, by a hit", &hit_visits);
                    times.insert(Operation::Delink, less(&hit_visits, head_us));
                }
                Hits::Mark | Hits::Coin => {
                    let mark = hits.beyond(&lookup);
                    figures.note(&policy, Operation::Mark.name(), &mark);
                    let mark_us = median(mark.together());
                    times.insert(Operation::Mark, Time::of(mark_us));
                    if known.hits == Hits::Mark {
                        let around = Around {
                            lookup_us: lookup.together(),
                            mark_us,
                            fifo_visit: &fifo_visit,
                            visit: &less(&miss_visits, 0.0),
                        };
                        let prices = marking.price(&policy, &around)?;
                        times.insert(Operation::WrittenMark, Time::of(median(&prices)));
                        let prices = BTreeMap::from([(Pace::Together(self.threads), prices)]);
                        figures.note(&policy, Operation::WrittenMark.name(), &ByPace(prices));
                    }
                    if known.hits == Hits::Coin {
                        // Hits that change the list have tossed the coin, too.
                        times.insert(Operation::Delink, less(&lru_visits, head_us - mark_us));
                        let half = of(HALF_COIN, RunKind::Hits);
                        let half_visits = visits(&half, &hits, 0.5)?;
                        figures.note(HALF_COIN, "list, by a hit", &half_visits);
                        seldom = Some(less(&half_visits, head_us - mark_us));
                    }
                }
            }
            let row = |name: &str, q: Option<f64>, times: &BTreeMap<Operation, Time>| Times {
                policy: name.to_owned(),
                q,
                locks: Locks::List,
                shards: 1,
                times: times.clone(),
            };
            if let Some(delink) = seldom {
                // A thread whose hits seldom visit the list finds it in another processor's cache.
                rows.push(row(known.name, Some(0.0), &times));
                times.insert(Operation::Delink, delink);
                rows.extend([0.5, 1.0].map(|q| row(known.name, Some(q), &times)));
                continue;
            }
            let names = std::iter::once(known.name).chain(known.alias);
            rows.extend(names.map(|name| row(name, None, &times)));
        }
        Ok(Calibration {
            service: Service { machine: self.machine(), policies: rows },
            figures: figures.0,
        })
    }

    /// Returns the properties of the machine and of the measurement, by name.
    fn machine(&self) -> BTreeMap<String, String> {
        let fact = |name: &str, value: String| (name.to_owned(), value);
        let Plan { repetitions, seconds, .. } = self.plan;
        let mut facts = BTreeMap::from([
            fact("origin", "floe bench memory --calibrate".to_owned()),
            fact("threads", self.threads.to_string()),
            fact("keys", self.load.keys().to_string()),
            fact("value-bytes", self.value_bytes.to_string()),
            fact("runs", format!("{repetitions} of {seconds} s each")),
        ]);
        let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        facts.extend(model.map(|(_, model)| fact("processor", model.to_owned())));
        facts
    }
}

/// Number of steps of a bisection: about the number of significant bits of an `f64`.
const HALVINGS: usize = 50;

/// Number of iterations that find the time of a visit alone and with contention: each depends a
/// little on the other, and every iteration changes them by a small part of the change before.
const ROUNDS: usize = 12;

/// A run of threads that visit the list with some or all of their requests.
#[derive(Debug, Clone, Copy)]
pub(super) struct Meeting {
    /// The number of threads, above 1.
    pub(super) threads: u32,
    /// The share of requests that visit the list, above 0.
    pub(super) share: f64,
    /// The computing time of each request beside its visit, in microseconds.
    pub(super) compute_us: f64,
    /// Throughput of all threads together, in million requests a second.
    pub(super) throughput_mrps: f64,
}

/// Returns the time of a visit to the list without and with contention. The first follows from
/// `apart`, a run of threads that seldom meet, and the others from the runs `together`, with
/// growing numbers of threads. No time is below `least_us`, or above a request's time in its run.
///
/// # Errors
/// A time is negative or not a number, so that the model refuses it.
pub(super) fn visit(
    apart: &Meeting,
    together: &[Meeting],
    least_us: f64,
) -> Result<Time, ModelError> {
    let alone = |time: &Time| found(apart, least_us, |us| Time { alone_us: us, ..time.clone() });
    let mut time = Time::of(least_us);
    time.alone_us = alone(&time)?;
    for _ in 0..ROUNDS {
        time = contended(time.alone_us, together, least_us)?;
        time.alone_us = alone(&time)?;
    }
    contended(time.alone_us, together, least_us)
}

/// Returns the time of a visit to the list with contention, given the time without.
fn contended(alone_us: f64, together: &[Meeting], least_us: f64) -> Result<Time, ModelError> {
    let mut time = Time::of(alone_us);
    for run in together {
        let with = |us: f64| {
            let mut time = time.clone();
            time.contended.push((run.threads, us));
            time
        };
        let us = found(run, least_us, with)?;
        time.contended.push((run.threads, us));
    }
    Ok(time)
}

/// Returns the computing time of a request, at least 0, that explains a measured throughput. In the
/// run, several threads visit the list with a share of their requests.
///
/// # Errors
/// A time is negative or not a number, so that the model refuses it.
pub(super) fn computing(
    visit: &Time,
    share: f64,
    threads: u32,
    throughput_mrps: f64,
) -> Result<f64, ModelError> {
    let contended = visit.contended.iter().map(|&(queue, us)| (queue, share * us)).collect();
    let visit = Time { alone_us: share * visit.alone_us, contended, ..Time::default() };
    let (mut low, mut high) = (0.0, f64::from(threads) / throughput_mrps);
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        let run = Meeting { threads, share: 1.0, compute_us: middle, throughput_mrps };
        let is_faster = run.throughput_of(visit.clone())? > throughput_mrps;
        if is_faster { low = middle } else { high = middle }
    }
    Ok(high)
}

/// Finds by bisection the parameter of `with` at which the model has the measured throughput of
/// `run`.
fn found(run: &Meeting, least_us: f64, with: impl Fn(f64) -> Time) -> Result<f64, ModelError> {
    let is_faster =
        |us: f64| Ok::<_, ModelError>(run.throughput_of(with(us))? > run.throughput_mrps);
    let mut low = least_us;
    // No visit takes longer than the requests of which one visits.
    let mut high = (run.request_us() / run.share).max(low);
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if is_faster(middle)? { low = middle } else { high = middle }
    }
    Ok(high)
}

impl Meeting {
    /// Returns the mean time of a request from beginning to end, in microseconds.
    fn request_us(&self) -> f64 {
        f64::from(self.threads) / self.throughput_mrps
    }

    /// Returns the throughput that the model gives these threads if a visit to the list takes
    /// `time`.
    fn throughput_of(&self, time: Time) -> Result<f64, ModelError> {
        let station = Station { name: "list", servers: 1, copies: 1 };
        let visit = RouteStep::Visit(Visit { station: 0, time, is_limit: false });
        let request = |probability: f64, visit: Option<RouteStep>| RequestOutcome {
            name: if visit.is_some() { "visit" } else { "no visit" },
            probability,
            is_miss: false,
            steps: std::iter::once(RouteStep::Compute(self.compute_us)).chain(visit).collect(),
        };
        let mut requests = vec![request(self.share, Some(visit))];
        if self.share < 1.0 {
            requests.push(request(1.0 - self.share, None));
        }
        mva::throughput(&Network::new(vec![station], requests)?, &Load::of(self.threads))
    }
}

#[cfg(test)]
mod contention_tests {
    use super::*;

    const LEAST_US: f64 = 1e-4;

    /// Returns a run whose throughput is the one that the model predicts.
    fn run(threads: u32, share: f64, compute_us: f64, time: &Time) -> Meeting {
        let run = Meeting { threads, share, compute_us, throughput_mrps: 1.0 };
        Meeting { throughput_mrps: run.throughput_of(time.clone()).unwrap(), ..run }
    }

    #[test]
    fn the_times_of_a_list_are_found_from_what_threads_do_with_it() {
        for (alone_us, two_us) in
            [0.05, 0.3, 1.0].into_iter().flat_map(|one| [0.3, 0.5, 1.2].map(|two| (one, two)))
        {
            for (four_us, share) in [(0.5, 1.0), (2.0, 1.0), (2.0, 0.5)] {
                let contended = vec![(2, two_us), (4, four_us)];
                let time = Time { alone_us, contended, ..Time::default() };
                let apart = run(4, share, 5.0, &time);
                let together = [run(2, share, 0.02, &time), run(4, share, 0.02, &time)];
                let found = visit(&apart, &together, LEAST_US).unwrap();
                for queue in [1, 2, 4] {
                    let (found, us) = (found.at_us(queue), time.at_us(queue));
                    assert!((found / us - 1.0).abs() < 1e-3, "{time:?}: {found} with {queue}");
                }
            }
        }
    }

    #[test]
    fn a_list_that_nobody_leaves_takes_the_reciprocal_of_its_throughput() {
        let run = |threads, throughput_mrps| Meeting {
            threads,
            share: 1.0,
            compute_us: 0.0,
            throughput_mrps,
        };
        let time = contended(0.05, &[run(2, 4.0), run(4, 2.0)], LEAST_US).unwrap();
        assert!(
            (time.at_us(2) - 0.25).abs() < 1e-9 && (time.at_us(4) - 0.5).abs() < 1e-9,
            "{time:?}"
        );
        assert_eq!(time.alone_us, 0.05);
    }

    #[test]
    fn what_requests_compute_is_found_beside_a_list_that_some_visit() {
        let visit = Time { alone_us: 0.4, contended: vec![(2, 0.6)], ..Time::default() };
        for share in [0.0, 0.3, 1.0] {
            let part = Time {
                alone_us: share * 0.4,
                contended: vec![(2, share * 0.6)],
                ..Time::default()
            };
            let measured = run(2, 1.0, 0.7, &part).throughput_mrps;
            let found = computing(&visit, share, 2, measured).unwrap();
            assert!((found - 0.7).abs() < 1e-6, "{share}: {found}");
        }
    }

    #[test]
    fn runs_that_do_not_fit_together_give_times_no_longer_than_requests() {
        let run = |compute_us, throughput_mrps| Meeting {
            threads: 2,
            share: 1.0,
            compute_us,
            throughput_mrps,
        };
        let time = visit(&run(2.0, 0.1), &[run(0.1, 8.0)], LEAST_US).unwrap();
        assert!(time.alone_us <= 20.0 && time.at_us(2) <= 0.25, "{time:?}");
    }

    #[test]
    fn no_time_is_below_the_least_however_fast_threads_are() {
        let run =
            |compute_us| Meeting { threads: 2, share: 1.0, compute_us, throughput_mrps: 100.0 };
        let time = visit(&run(1.0), &[run(0.1)], LEAST_US).unwrap();
        assert!(
            time.alone_us >= LEAST_US
                && time.at_us(2) >= LEAST_US
                && time.at_us(2) < 2.0 * LEAST_US,
            "{time:?}"
        );
    }
}
