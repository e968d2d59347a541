//! From runs to times of operations: what a request takes beyond another, and what of that is whose.

use std::collections::BTreeMap;

use floe_model::{Locks, ModelError, Operation, Service, Time, Times};
use floe_policy::registry::Choice;

use super::contention::{computing, contended};
use super::orders::orders;
use super::{
    CLIENT, Calibrate, CalibrateError, Calibration, FROZEN, Figure, Hits, Kind, Known, LEAST_US, Requests,
};
use crate::bench::measure::Plan;
use crate::bench::statistics::Estimate;

/// Times of each repetition.
type Series = Vec<f64>;

/// A series of each number of threads.
struct ByThreads(Vec<(usize, Series)>);

impl ByThreads {
    fn alone(&self) -> &Series {
        &self.0[0].1
    }

    fn together(&self) -> &Series {
        &self.0[self.0.len() - 1].1
    }
}

/// What one time takes longer than another, repetition by repetition.
fn beyond(times: &[f64], base: &[f64]) -> Series {
    times.iter().zip(base).map(|(time, base)| (time - base).max(LEAST_US)).collect()
}

fn median(series: &[f64]) -> f64 {
    Estimate::of(series.iter().copied()).median.max(LEAST_US)
}

/// The requests of a kind beyond what they `compute`, as visits to the list: alone and with others there, repetition by repetition.
fn visits(requests: &ByThreads, compute: &ByThreads) -> Result<ByThreads, ModelError> {
    let alone = beyond(requests.alone(), compute.alone());
    let mut visits = ByThreads(vec![(1, alone.clone())]);
    visits.0.extend(requests.0[1..].iter().map(|(threads, _)| (*threads, Series::new())));
    for (at, &alone_us) in alone.iter().enumerate() {
        let runs: Vec<(u32, f64, f64)> = requests.0[1..]
            .iter()
            .zip(&compute.0[1..])
            .map(|((threads, us), (_, compute_us))| {
                (*threads as u32, compute_us[at], *threads as f64 / us[at])
            })
            .collect();
        let time = contended(alone_us, &runs)?;
        visits.0[1..].iter_mut().for_each(|(threads, series)| series.push(time.at_us(*threads as u32)));
    }
    Ok(visits)
}

/// The medians of visits as a time, less what is told apart.
fn less(visits: &ByThreads, part_us: f64) -> Time {
    let left = |series: &Series| (median(series) - part_us).max(LEAST_US);
    let contended = visits.0[1..].iter().map(|(threads, series)| (*threads as u32, left(series)));
    Time { alone_us: left(visits.alone()), contended: contended.collect(), histogram: Vec::new() }
}

/// Collects times, for people and for the model.
#[derive(Default)]
struct Figures(Vec<Figure>);

impl Figures {
    fn note(&mut self, policy: &str, operation: &'static str, times: &ByThreads) {
        for (threads, series) in &times.0 {
            let Estimate { median, low, high, confidence } = Estimate::of(series.iter().map(|us| 1e3 * us));
            let policy = policy.to_owned();
            let figure = Figure {
                policy,
                operation,
                threads: *threads,
                ns: median,
                ns_low: low,
                ns_high: high,
                confidence,
            };
            self.0.push(figure);
        }
    }

    /// Times of the order alone, in nanoseconds.
    fn note_order(&mut self, policy: &str, operation: &'static str, ns: &[f64]) {
        self.note(policy, operation, &ByThreads(vec![(1, ns.iter().map(|ns| ns / 1e3).collect())]));
    }
}

impl Calibrate<'_> {
    pub(super) fn times(
        &self,
        choices: &[(Choice, Known)],
        requests: &Requests,
    ) -> Result<Calibration, CalibrateError> {
        let of = |policy: &str, kind: Kind| {
            let series =
                |threads| (threads, requests[&(policy.to_owned(), kind == Kind::Hits, threads)].clone());
            ByThreads(self.threads().into_iter().map(series).collect())
        };
        let mut figures = Figures::default();
        let repetitions = self.plan.repetitions;
        let fifo_order = orders(&choices[1].0, None, repetitions);
        let lookup = of("fifo", Kind::Hits);
        let frozen = of(FROZEN, Kind::Hits);
        let client = of(CLIENT, Kind::Hits);
        let waiting = of(CLIENT, Kind::Misses);
        let miss = ByThreads(
            waiting
                .0
                .iter()
                .zip(&client.0)
                .map(|((threads, us), (_, base))| (*threads, beyond(us, base)))
                .collect(),
        );
        figures.note(CLIENT, "request", &client);
        figures.note(CLIENT, Operation::Miss.name(), &miss);
        figures.note("fifo", Operation::Lookup.name(), &lookup);
        figures.note(FROZEN, Operation::FrozenLookup.name(), &frozen);
        let lru_visits = visits(&of("lru", Kind::Hits), &lookup)?;
        let lru_visit = less(&lru_visits, 0.0);
        let mut rows = Vec::new();
        for (choice, known) in choices {
            let policy = choice.to_string();
            let hits = of(&policy, Kind::Hits);
            let order = orders(choice, known.touches, repetitions);
            let head_ns = if known.ghosts { &fifo_order.insert } else { &order.insert };
            let head_us = median(head_ns) / 1e3;
            let mut times = BTreeMap::from([
                (Operation::Lookup, Time::of(median(lookup.together()))),
                (Operation::FrozenLookup, Time::of(median(frozen.together()))),
                (Operation::Miss, Time::of(median(miss.together()))),
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
                times.insert(Operation::GhostLookup, Time::of((median(&ghost) / 1e3).max(LEAST_US)));
            }
            let miss_visits = visits(&of(&policy, Kind::Misses), &lookup)?;
            figures.note(&policy, "list, by a miss", &miss_visits);
            times.insert(Operation::Tail, less(&miss_visits, head_us));
            match known.hits {
                Hits::Nothing => {}
                Hits::List => {
                    let hit_visits = visits(&hits, &lookup)?;
                    figures.note(&policy, "list, by a hit", &hit_visits);
                    times.insert(Operation::Delink, less(&hit_visits, head_us));
                }
                Hits::Mark => {
                    let marks = hits.0.iter().zip(&lookup.0);
                    let mark = ByThreads(
                        marks.map(|((threads, us), (_, base))| (*threads, beyond(us, base))).collect(),
                    );
                    figures.note(&policy, Operation::Mark.name(), &mark);
                    times.insert(Operation::Mark, Time::of(median(mark.together())));
                }
                Hits::Coin => {
                    let share = 1.0 - choice.parameters().get("q");
                    let mut coins = Vec::new();
                    for ((threads, us), (_, lookup_us)) in hits.0.iter().zip(&lookup.0) {
                        let computing = us
                            .iter()
                            .map(|us| computing(&lru_visit, share, *threads as u32, *threads as f64 / us));
                        coins.push((*threads, beyond(&computing.collect::<Result<Series, _>>()?, lookup_us)));
                    }
                    let coins = ByThreads(coins);
                    figures.note(&policy, Operation::Mark.name(), &coins);
                    let coin_us = median(coins.together());
                    times.insert(Operation::Mark, Time::of(coin_us));
                    // Hits that change the list have tossed the coin, too.
                    times.insert(Operation::Delink, less(&lru_visits, head_us - coin_us));
                }
            }
            let q = (known.hits == Hits::Coin).then(|| choice.parameters().get("q"));
            let row = |name: &str| Times {
                policy: name.to_owned(),
                q,
                locks: Locks::List,
                shards: 1,
                times: times.clone(),
            };
            rows.extend(std::iter::once(known.name).chain(known.alias).map(row));
        }
        Ok(Calibration { service: Service { machine: self.machine(), policies: rows }, figures: figures.0 })
    }

    /// What else there is to know.
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
