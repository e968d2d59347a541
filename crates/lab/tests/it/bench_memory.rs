//! The benchmark's loop on real threads, over a cache simple enough to be right: shards of LRU
//! behind locks.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use floe_lab::bench::{
    CacheCompetitor, Competitor, Disk, Load, Looped, MeasureStep, Measured, PassOrder, Plan, Setup,
    Subject, TRIES, disturbance_is_known, measure,
};
use floe_lab::simulate::stream::{Builder, Keep, Stream};
use floe_policy::owner::SlotOwner;
use floe_policy::{Access, Lru, Slot};
use floe_trace::{GeneratorSpec, Trace};

/// Shards of LRU. Counts what it is asked for.
struct Shards {
    shards: Vec<Mutex<Shard>>,
    lookups: AtomicU64,
}

type Shard = SlotOwner<Lru, HashMap<u64, Slot>>;

impl Shards {
    fn new(shards: usize, capacity: usize) -> Self {
        let capacity = capacity / shards;
        let shard =
            || Mutex::new(Shard::new(Lru::default(), HashMap::new(), capacity as u64, capacity));
        Self { shards: (0..shards).map(|_| shard()).collect(), lookups: AtomicU64::new(0) }
    }

    fn with<T>(&self, key: u64, work: impl FnOnce(&mut Shard) -> T) -> T {
        work(&mut self.shards[key as usize % self.shards.len()].lock().unwrap())
    }
}

fn touch(shard: &mut Shard, key: u64) -> bool {
    let slot = shard.find(key);
    slot.inspect(|&slot| shard.access(slot)).is_some()
}

fn insert(shard: &mut Shard, key: u64) {
    // Another client may have brought it in.
    if !touch(shard, key) {
        shard.insert(key, &Access::new(key), |_, _, _| ());
    }
}

impl Subject for Shards {
    fn lookup(&self, key: u64) -> bool {
        self.lookups.fetch_add(1, Relaxed);
        self.with(key, |shard| touch(shard, key))
    }

    fn fill(&self, key: u64) {
        self.with(key, |shard| insert(shard, key));
    }

    fn update(&self, key: u64) {
        self.with(key, |shard| insert(shard, key));
    }
}

/// Warming up ends when the cache is warm, on any machine.
const PLAN: Plan = Plan {
    repetitions: 3,
    seconds: 0.05,
    warm_up_seconds_max: 600.0,
    in_step: true,
    disturbed_max: None,
};

fn stream(spec: &str) -> Stream {
    let mut trace = Trace::generate(&spec.parse::<GeneratorSpec>().unwrap()).unwrap();
    let mut builder =
        Builder::new(trace.kind(), Keep { rate: 1.0, sizes: false, next_use: false }, 4096);
    trace.by_ref().for_each(|request| builder.add(&request.unwrap()).unwrap());
    builder.finish().unwrap()
}

fn run(
    stream: &Stream,
    writes: Option<f64>,
    competitors: Vec<(Shards, u64, Setup)>,
) -> Vec<Measured> {
    let load = Load::new(stream, writes, PassOrder::Drawn).unwrap();
    let competitors: Vec<Box<dyn Competitor>> = competitors
        .into_iter()
        .map(|(shards, capacity, setup)| -> Box<dyn Competitor> {
            Box::new(CacheCompetitor::new(shards, capacity, setup))
        })
        .collect();
    measure(&load, &competitors, &PLAN, |_| {})
}

fn disk(us: u64) -> Disk {
    Disk { mean_ns: us * 1000, exponential: false }
}

#[test]
fn one_thread_hits_as_often_as_the_simulation() {
    let stream = stream("zipf:keys=5000,theta=0.99,requests=200000");
    let looped = Looped::new(&stream, PassOrder::Drawn);
    for capacity in [50, 500, 2500] {
        let expected = looped.hit_ratio(&"lru".parse().unwrap(), capacity);
        let setup = Setup { threads: 1, mpl: 1, disk: Disk::NONE };
        let measured =
            &run(&stream, None, vec![(Shards::new(1, capacity as usize), capacity, setup)])[0];
        let lookups = (measured.total.hits + measured.total.misses) as f64;
        // Each counts other draws: four standard errors of the difference; and what is warm may
        // drift by two thousandths.
        let draws = 1.0 / lookups + 1.0 / stream.keys.len() as f64;
        let error = 0.002 + 4.0 * (expected * (1.0 - expected) * draws).sqrt();
        let hit_ratio = measured.total.hit_ratio();
        assert!(
            (hit_ratio - expected).abs() <= error,
            "{capacity}: {hit_ratio} {expected} ± {error}"
        );
        assert!(measured.warmed.settled);
    }
}

#[test]
fn everything_that_is_taken_is_counted_once() {
    let stream = stream("zipf:keys=2000,requests=100000");
    for (threads, mpl, us) in [(1, 1, 0), (1, 7, 5), (2, 2, 0), (2, 9, 20), (3, 3, 100)] {
        let setup = Setup { threads, mpl, disk: disk(us) };
        let measured = &run(&stream, Some(0.2), vec![(Shards::new(2, 300), 300, setup)])[0];
        let total = &measured.total;
        assert_eq!(measured.repetitions.len(), PLAN.repetitions);
        // Clients may be parked at the beginning and at the end of what counts.
        let parked = if us == 0 { 0 } else { (mpl * PLAN.repetitions) as u64 };
        assert!(total.taken.abs_diff(total.operations()) <= parked, "{setup:?}: {total:?}");
        let operations = total.operations().max(1) as f64;
        let share = total.writes as f64 / operations;
        // Four standard errors of so many draws from a load that was itself drawn; who is parked
        // looks up.
        let draws = 1.0 / operations + 1.0 / stream.keys.len() as f64;
        let error = 4.0 * (0.2 * 0.8 * draws).sqrt() + parked as f64 / operations;
        assert!((share - 0.2).abs() <= error, "{setup:?}: {share} ± {error}");
        let sampled = total.hit_ns.len() + total.miss_ns.len() + total.write_ns.len();
        let expected = total.operations() / 100;
        assert!(
            sampled.abs_diff(expected) < expected / 5 + 20,
            "{setup:?}: {sampled} of {expected}"
        );
        assert_eq!(total.park_ns.len(), if us == 0 { 0 } else { total.misses }, "{setup:?}");
        let least_ns = (PLAN.seconds * 1e9) as u64 * (PLAN.repetitions * threads) as u64;
        assert!(total.wall_ns >= least_ns, "{setup:?}: {}", total.wall_ns);
    }
}

#[test]
fn nobody_waits_less_than_the_disk_takes_and_no_more_wait_than_there_are() {
    let stream = stream("zipf:keys=2000,requests=100000");
    for (threads, mpl, us) in [(1, 1, 5), (1, 72, 5), (2, 72, 100), (4, 8, 500)] {
        let setup = Setup { threads, mpl, disk: disk(us) };
        let total = &run(&stream, None, vec![(Shards::new(1, 300), 300, setup)])[0].total;
        for waits in [&total.park_ns, &total.miss_ns] {
            // three digits are kept
            assert!(waits.is_empty() || waits.min() >= us * 990, "{setup:?}: {}", waits.min());
        }
        // Little's law: those who are parked are at most all, and each can be parked across the
        // beginning of each run.
        let parked_ns = total.park_ns.mean() * total.park_ns.len() as f64;
        let across_ns = total.park_ns.max() as f64 * PLAN.repetitions as f64;
        let at_most = (total.wall_ns as f64 / threads as f64 + across_ns) * mpl as f64;
        assert!(parked_ns <= 1.01 * at_most, "{setup:?}: {parked_ns} {at_most}");
        assert!(total.idle_ns <= total.wall_ns, "{setup:?}");
    }
}

#[test]
fn waiting_for_exponential_disks_takes_their_mean_at_least() {
    let stream = stream("uniform:keys=1000,requests=100000");
    let setup = Setup { threads: 1, mpl: 16, disk: Disk { mean_ns: 20_000, exponential: true } };
    let total = &run(&stream, None, vec![(Shards::new(1, 10), 10, setup)])[0].total;
    // Waiting for the thread comes on top, so only the lower bound is sure: four standard errors of
    // so many draws, and those who were still parked when a run ended are not among them.
    let count = total.park_ns.len() as f64;
    let least_ns = 20_000.0 * (1.0 - 4.0 / count.sqrt() - (16 * PLAN.repetitions) as f64 / count);
    assert!(total.park_ns.mean() >= 0.999 * least_ns, "{} of {count}", total.park_ns.mean());
}

#[test]
fn caches_take_turns_and_each_keeps_its_own() {
    let stream = stream("zipf:keys=1000,requests=50000");
    let load = Load::new(&stream, None, PassOrder::AsIs).unwrap();
    let setup = Setup { threads: 1, mpl: 1, disk: Disk::NONE };
    let competitors: Vec<Box<dyn Competitor>> = [50usize, 1000]
        .map(|capacity| -> Box<dyn Competitor> {
            Box::new(CacheCompetitor::new(Shards::new(1, capacity), capacity as u64, setup))
        })
        .into();
    let mut steps = Vec::new();
    let measured = measure(&load, &competitors, &PLAN, |step| steps.push(step));
    let run = |at| MeasureStep::Run(at, 6);
    let runs = (0..3).flat_map(|pair| [MeasureStep::PlayingOn, run(2 * pair), run(2 * pair + 1)]);
    assert_eq!(
        steps,
        [MeasureStep::WarmingUp(0), MeasureStep::WarmingUp(1)]
            .into_iter()
            .chain(runs)
            .collect::<Vec<_>>()
    );
    assert!(measured[0].total.hit_ratio() < 0.7, "{}", measured[0].total.hit_ratio());
    assert_eq!(measured[1].total.misses, 0, "all keys fit");
    assert!(measured.iter().all(|measured| measured.repetitions.len() == 3));
}

#[test]
fn runs_that_lose_more_time_than_allowed_are_made_again_and_left_out() {
    let stream = stream("loop:keys=1000,requests=1000");
    let load = Load::new(&stream, None, PassOrder::AsIs).unwrap();
    let competitor = || -> Box<dyn Competitor> {
        let setup = Setup { threads: 1, mpl: 1, disk: disk(0) };
        Box::new(CacheCompetitor::new(Shards::new(1, 1000), 1000, setup))
    };
    let competitors = [competitor(), competitor()];
    let measured = |disturbed_max| {
        let plan = Plan { seconds: 0.02, warm_up_seconds_max: 1.0, disturbed_max, ..PLAN };
        measure(&load, &competitors, &plan, |_| {})
    };
    for found in measured(Some(-1.0)) {
        assert_eq!((found.repetitions.len(), found.total.taken), (0, 0));
        assert_eq!(found.disturbed_runs, TRIES * PLAN.repetitions);
    }
    for found in measured(Some(f64::INFINITY)) {
        assert_eq!((found.repetitions.len(), found.disturbed_runs), (PLAN.repetitions, 0));
    }
}

#[test]
fn threads_that_wait_for_a_processor_are_disturbed() {
    if !disturbance_is_known() {
        return;
    }
    let stream = stream("loop:keys=1000,requests=1000");
    let load = Load::new(&stream, None, PassOrder::AsIs).unwrap();
    // Of four threads on each processor, each runs for a quarter of the time.
    let threads = 4 * std::thread::available_parallelism().map_or(1, usize::from);
    let setup = Setup { threads, mpl: threads, disk: disk(0) };
    let cache = CacheCompetitor::new(Shards::new(1, 1000), 1000, setup);
    let competitors: [Box<dyn Competitor>; 1] = [Box::new(cache)];
    let plan = Plan { seconds: 0.3, warm_up_seconds_max: 1.0, ..PLAN };
    let measured = measure(&load, &competitors, &plan, |_| {});
    let shares: Vec<f64> =
        measured[0].repetitions.iter().map(|repetition| repetition.disturbed_share).collect();
    assert!(shares.iter().all(|&share| share > 0.1), "{shares:?}");
}

#[test]
fn caches_in_step_begin_each_repetition_where_the_furthest_is() {
    let stream = stream("loop:keys=100000,requests=100000");
    let load = Load::new(&stream, None, PassOrder::AsIs).unwrap();
    // One that hits always, and one that misses always and can or cannot follow in time.
    for us in [0, 1, 1000] {
        let competitor = |capacity: u64, us| -> Box<dyn Competitor> {
            let setup = Setup { threads: 1, mpl: 1, disk: disk(us) };
            Box::new(CacheCompetitor::new(Shards::new(1, capacity as usize), capacity, setup))
        };
        let competitors = [competitor(100_000, 0), competitor(10, us)];
        let plan = Plan { repetitions: 4, seconds: 0.01, warm_up_seconds_max: 1.0, ..PLAN };
        let places = || [0, 1].map(|at: usize| competitors[at].place());
        let (mut furthest, mut begins) = (None, 0);
        measure(&load, &competitors, &plan, |step| match step {
            MeasureStep::PlayingOn => furthest = places().into_iter().max(),
            MeasureStep::Run(done, _) if done % 2 == 0 => {
                begins += 1;
                // Who plays on may come a little further.
                for place in places() {
                    assert!(Some(place) >= furthest, "{us} µs: {place:?} is before {furthest:?}");
                }
            }
            _ => {}
        });
        assert_eq!(begins, 4);
    }
}
