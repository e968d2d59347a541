//! Measures the times of list operations on this machine: the service times of `floe model`.
//!
//! Nothing here waits for a disk, and no time is fitted to the throughputs that the model is to
//! explain: each follows from runs of one kind only. Caches have one shard, so that one lock guards
//! one list. The benchmark's loop asks them for keys that they all hold (every request hits) and
//! for keys that they never hold (every request misses). A miss parks its client; but the disk is
//! so quick, and clients are so many, that no thread waits for it. The caches run in turn
//!
//! - by one thread: the time of an operation on data that no other thread uses or has used;
//! - by several, *together*: the time while other threads compete for the list;
//! - by several, *apart*: each computes for a while after each request, so that they seldom meet. A
//!   visit to the list then mostly fetches data that another processor has written.
//!
//! A policy's time is that of a request, less two others: that of FIFO, whose hits only look up,
//! and that of parking without a cache. A miss has a further cost, since hits of other threads find
//! changed lines of the index. It is measured in one run of FIFO in which a part of the requests
//! hits. The cost of marks that hits write is measured in further runs of that kind. The division
//! of a list operation into delink, head and tail is measured on the order alone, without lock and
//! cache.
//!
//! The threads are modelled as a closed network, in which each computes and visits the list. Times
//! of the list are those at which this network has the throughputs measured together and apart.
//! Method of "Can Increasing the Hit Ratio Hurt Cache Throughput?", section 4.1.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Instant;

use floe_memory::BuildError;
use floe_model::{ModelError, Operation, Service, Time};
use floe_policy::registry::{Choice, ChoiceError, Visitor};
use floe_policy::{Access, HitKind, Marks, Policy, Slot, mix};
use serde::Serialize;

use self::times::computing;
use super::cache::{Cache, Filling};
use super::competitor::{CacheCompetitor, Competitor, Plan, Setup};
use super::load::{CHUNK, Load, LoadError, PassOrder};
use super::measure::{Estimate, MeasureStep, Measured, measure};
use super::subject::{Freezing, Subject};
use super::worker::Disk;
use crate::simulate::operations::Candidate;
use crate::simulate::stream::{Builder, Keep, Stream, StreamError};

mod times;

/// Shortest time in microseconds that the measurement can resolve. Shorter ones are replaced by
/// this value, because the model needs times above 0.
const LEAST_US: f64 = 1e-4;

/// Number of keys per cache entry in a load that always misses. The keys are requested in a circle,
/// so that the cache has evicted and forgotten each key when it comes again.
const CIRCLE: usize = 10;

/// Minimum number of keys of a load that always misses. Threads take the keys in chunks: a thread
/// stopped within its chunk hits keys that others inserted a whole circle later. With this many
/// keys, a chunk is a small part of the circle.
const CIRCLE_MIN: usize = 100 * CHUNK;

/// Minimum number of distinct keys of a load: the smallest cache measured has a tenth of them as
/// entries.
const KEYS_MIN: usize = 500;

/// Number of clients per thread, a usual number.
const CLIENTS: usize = 36;

/// The emulated disk: quick enough that some client can always go on, and slow enough that several
/// are parked.
const DISK: Disk = Disk { mean_ns: 500, exponential: true };

/// Number of rounds of arithmetic after each request in runs whose threads seldom meet: some
/// microseconds, several times the time of a visit to the list.
const PAUSE: u32 = 500;

/// Largest deviation of the hit ratio from 0 or 1 in a run that should only miss or only hit.
const IMPURE: f64 = 0.02;

/// Policies that are always measured, because the times of others are differences to theirs.
const BASES: [&str; 2] = ["lru", "fifo"];

/// Policies measured by default.
pub const POLICIES: &str = "lru,fifo,prob-lru,clock,sieve,slru:segments=2,s3-fifo";

/// The policy measured for all that promote at random; with `q=1` no hit is promoted.
const COIN: &str = "prob-lru:q=1";
/// The policy that promotes half of the hits at random: a thread seldom visits the list again
/// before another thread has.
const HALF_COIN: &str = "prob-lru:q=0.5";

/// Load, policies and runs of a calibration.
#[derive(Debug)]
pub struct Calibrate<'a> {
    /// The load for runs in which every request hits.
    pub load: &'a Load,
    /// The keys of `load` as a stream, for counting list operations.
    pub stream: &'a Stream,
    /// Policies to measure.
    pub policies: &'a [Choice],
    /// Largest number of threads.
    pub threads: usize,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Number and length of the runs.
    pub plan: Plan,
}

/// A measured time: the median of the repetitions, and an interval that holds the true median with
/// probability `confidence`.
#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    /// The policy with its parameters.
    pub policy: String,
    /// The operation that was timed.
    pub operation: String,
    /// Number of threads in the run.
    pub threads: usize,
    /// Median time in nanoseconds.
    pub ns: f64,
    /// Lower end of the confidence interval, in nanoseconds.
    pub ns_low: f64,
    /// Upper end of the confidence interval, in nanoseconds.
    pub ns_high: f64,
    /// Probability that the interval holds the true median.
    pub confidence: f64,
}

/// Measured service times, as input of the model and as a report.
#[derive(Debug, Clone)]
pub struct Calibration {
    /// Service times for `floe model`.
    pub service: Service,
    /// All measured times, for the report.
    pub figures: Vec<Figure>,
}

/// The kind of requests in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum RunKind {
    Hits,
    Misses,
}

/// The rate of requests in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Pace {
    /// Requests of this many threads, each as fast as it can.
    Together(usize),
    /// Requests of this many threads, each of which computes after every request.
    Apart(usize),
}

impl Pace {
    fn threads(self) -> usize {
        let (Self::Together(threads) | Self::Apart(threads)) = self;
        threads
    }
}

/// Request times in microseconds, one per repetition, by policy, kind and pace.
type Requests = BTreeMap<(String, RunKind, Pace), Vec<f64>>;

/// Series name of the benchmark's clients without a cache.
const CLIENT: &str = "client";
/// Series name of LRU with all entries frozen.
const FROZEN: &str = "lru, frozen";

/// Measures the times of list operations for all policies.
///
/// # Errors
/// A policy cannot be calibrated, there are too few keys, or a run had too many hits or misses.
pub fn calibrate(
    what: &Calibrate<'_>,
    mut progress: impl FnMut(MeasureStep),
) -> Result<Calibration, CalibrateError> {
    let (keys, choices) = (what.load.keys(), what.choices()?);
    let circle = Load::new(&circle(keys.max(CIRCLE_MIN))?, None, PassOrder::AsIs)?;
    let mut requests = Requests::new();
    what.run(RunKind::Hits, what.load, &choices, keys, &mut requests, &mut progress)?;
    what.run(RunKind::Misses, &circle, &choices, keys / CIRCLE, &mut requests, &mut progress)?;
    let mixed = what.mixed(&[&choices[1].0], keys / CIRCLE, &mut progress)?.remove(0);
    let marking = Marking::run(what, &choices, &mut progress)?;
    what.times(&choices, &requests, &mixed, &marking)
}

fn known(choice: &Choice) -> Result<Known, CalibrateError> {
    let known = KNOWN.iter().find(|known| known.name == choice.name());
    known.copied().ok_or_else(|| CalibrateError::Policy {
        policy: choice.name().to_owned(),
        known: KNOWN.map(|known| known.name).join(", "),
    })
}

/// Returns a stream that reads each key once.
fn circle(keys: usize) -> Result<Stream, StreamError> {
    use floe_trace::{Kind, Op, Request};
    let keep = Keep { rate: 1.0, sizes: false, next_use: false };
    let mut builder = Builder::new(Kind::Key, keep, 1);
    for key in 0..keys as u64 {
        builder.add(&Request { time_ns: 0, key, bytes: 1, volume: 0, op: Op::Read })?;
    }
    builder.finish()
}

/// A run of all threads together in which some requests hit.
struct Mixed {
    /// Time of a request in microseconds, one per repetition.
    us: Vec<f64>,
    /// Share of the requests that missed.
    misses: f64,
}

/// A subject without a cache, which answers every lookup alike. Its measured time is that of the
/// clients.
struct Nobody {
    hits: bool,
}

impl Subject for Nobody {
    fn lookup(&self, key: u64) -> bool {
        std::hint::black_box(key);
        self.hits
    }

    fn fill(&self, key: u64) {
        std::hint::black_box(key);
    }

    fn update(&self, key: u64) {
        std::hint::black_box(key);
    }
}

impl Calibrate<'_> {
    /// Checks the settings. Returns the policies to calibrate, those of [`BASES`] first.
    fn choices(&self) -> Result<Vec<(Choice, Known)>, CalibrateError> {
        let keys = self.load.keys();
        if keys < KEYS_MIN {
            return Err(CalibrateError::Keys { keys });
        }
        let mut choices: Vec<(Choice, Known)> = Vec::new();
        let bases = BASES.iter().map(|name| name.parse()).collect::<Result<Vec<Choice>, _>>()?;
        for choice in bases.into_iter().chain(self.policies.iter().cloned()) {
            let known = known(&choice)?;
            let choice = if known.hits == Hits::Coin { COIN.parse()? } else { choice };
            if choices.iter().all(|(other, _)| other.to_string() != choice.to_string()) {
                choices.push((choice, known));
            }
        }
        Ok(choices)
    }

    /// Checks that the settings can be calibrated.
    ///
    /// # Errors
    /// A policy cannot be calibrated, or there are too few keys.
    pub fn check(&self) -> Result<(), CalibrateError> {
        self.choices().map(drop)
    }

    /// Returns the runs to measure: powers of two of threads together, and all of them together and
    /// apart.
    fn paces(&self) -> Vec<Pace> {
        let powers = std::iter::successors(Some(1), |count| Some(2 * count));
        let mut paces: Vec<Pace> =
            powers.take_while(|&count| count < self.threads).map(Pace::Together).collect();
        paces.push(Pace::Together(self.threads));
        if self.threads > 1 {
            paces.push(Pace::Apart(self.threads));
        }
        paces
    }

    /// Returns the settings of a cache with one shard and without freezing.
    fn cache<'a>(&self, policy: &'a Choice, capacity: usize) -> Cache<'a> {
        let freezing = Freezing::default();
        Cache {
            policy,
            admission: None,
            shards: Some(1),
            capacity: capacity as u64,
            value_bytes: self.value_bytes,
            freezing,
        }
    }

    /// Measures caches of `capacity` entries on the load, so that only a part of the requests hits.
    fn mixed(
        &self,
        policies: &[&Choice],
        capacity: usize,
        progress: &mut impl FnMut(MeasureStep),
    ) -> Result<Vec<Mixed>, CalibrateError> {
        let threads = self.threads;
        let setup = Setup { threads, mpl: CLIENTS * threads, disk: DISK };
        let filled = |policy| self.cache(policy, capacity).filled(setup, &Filling::default());
        let competitors: Vec<Box<dyn Competitor>> = policies
            .iter()
            .map(|policy| Ok(filled(policy)?.0))
            .collect::<Result<_, CalibrateError>>()?;
        let measured = measure(self.load, &competitors, &self.plan, progress);
        let mixed = policies.iter().zip(&measured).map(|(policy, found)| {
            let misses = 1.0 - found.total.hit_ratio();
            if misses == 0.0 || found.repetitions.iter().any(|run| run.ops_per_second == 0.0) {
                return Err(CalibrateError::Nothing { policy: policy.to_string() });
            }
            let us = found.repetitions.iter().map(|run| 1e6 * threads as f64 / run.ops_per_second);
            Ok(Mixed { us: us.collect(), misses })
        });
        mixed.collect()
    }

    /// Measures all caches on requests of one kind, at every pace.
    fn run(
        &self,
        kind: RunKind,
        load: &Load,
        choices: &[(Choice, Known)],
        capacity: usize,
        into: &mut Requests,
        progress: &mut impl FnMut(MeasureStep),
    ) -> Result<(), CalibrateError> {
        let half_coin: Choice = HALF_COIN.parse()?;
        let mut names: Vec<(String, Pace)> = Vec::new();
        let mut competitors: Vec<Box<dyn Competitor>> = Vec::new();
        for pace in self.paces() {
            let threads = pace.threads();
            let setup = Setup { threads, mpl: CLIENTS * threads, disk: DISK };
            let pause = if let Pace::Apart(_) = pace { PAUSE } else { 0 };
            let cache = |policy, frozen| {
                // Keys of which the circle comes to those that are there last.
                let last = load.keys() as u64;
                self.cache(policy, capacity)
                    .filled(setup, &Filling { keys: last - capacity as u64..last, frozen, pause })
            };
            for (choice, _) in choices {
                competitors.push(cache(choice, false)?.0);
                names.push((choice.to_string(), pace));
            }
            if kind == RunKind::Hits {
                competitors.push(cache(&choices[0].0, true)?.0);
                names.push((FROZEN.to_owned(), pace));
                if choices.iter().any(|(_, known)| known.hits == Hits::Coin) {
                    competitors.push(cache(&half_coin, false)?.0);
                    names.push((HALF_COIN.to_owned(), pace));
                }
            }
            let nobody = CacheCompetitor::new(
                Nobody { hits: kind == RunKind::Hits },
                capacity as u64,
                setup,
            );
            competitors.push(Box::new(nobody.pausing(pause)));
            names.push((CLIENT.to_owned(), pace));
        }
        let measured = measure(load, &competitors, &self.plan, progress);
        for ((policy, pace), found) in names.into_iter().zip(&measured) {
            check(&policy, kind, found)?;
            let us = found
                .repetitions
                .iter()
                .map(|run| 1e6 * pace.threads() as f64 / run.ops_per_second);
            into.insert((policy, kind, pace), us.collect());
        }
        Ok(())
    }
}

/// Returns an error for a run without operations, or with too many requests of the other kind.
fn check(policy: &str, kind: RunKind, found: &Measured) -> Result<(), CalibrateError> {
    let policy = || policy.to_owned();
    if found.repetitions.iter().any(|run| run.ops_per_second == 0.0) {
        return Err(CalibrateError::Nothing { policy: policy() });
    }
    let wanted = if kind == RunKind::Hits { 1.0 } else { 0.0 };
    let share = found.total.hit_ratio();
    if (share - wanted).abs() > IMPURE {
        return Err(CalibrateError::Impure { policy: policy(), share, wanted });
    }
    Ok(())
}

/// Errors of a calibration.
#[derive(Debug, thiserror::Error)]
pub enum CalibrateError {
    /// The model has no such policy, or its policy differs too much from the cache's.
    #[error("{policy} cannot be calibrated for floe model; there are: {known}")]
    Policy {
        /// Name of the policy.
        policy: String,
        /// Names of the policies that can be calibrated.
        known: String,
    },
    /// The load has too few distinct keys.
    #[error("calibration takes a load of at least {KEYS_MIN} keys; this one has {keys}")]
    Keys {
        /// The number of distinct keys.
        keys: usize,
    },
    /// A built-in policy name was not accepted.
    #[error(transparent)]
    Choice(#[from] ChoiceError),
    /// A cache could not be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The stream of keys that always miss could not be made.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The load of keys that always miss could not be made.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A run ended without any operation, so a longer one is needed.
    #[error("{policy}: one of the runs was too short to serve a request; give a larger --seconds")]
    Nothing {
        /// The policy that was run.
        policy: String,
    },
    /// The model does not accept the measured times.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A run whose requests should all hit, or all miss, had too many of the other kind.
    #[error("{policy}: {share:.4} of the requests hit where {wanted} should; more --keys may help")]
    Impure {
        /// The policy that was run.
        policy: String,
        /// The share of requests that hit.
        share: f64,
        /// The share of requests that should have hit.
        wanted: f64,
    },
}

/// The work of a policy's hits beyond the lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hits {
    /// Hits do nothing but the lookup.
    Nothing,
    /// Hits mark their entry.
    Mark,
    /// Hits change the list.
    List,
    /// Hits change the list at random, as LRU's do. Measured with a probability of 0.
    Coin,
}

/// A policy that exists both in the model and in the cache.
#[derive(Debug, Clone, Copy)]
struct Known {
    name: &'static str,
    hits: Hits,
    /// Number of hits after which eviction passes an entry over once; `None` if it never does.
    touches: Option<u32>,
    ghosts: bool,
    /// The model's second name for the policy.
    alias: Option<&'static str>,
}

/// Policies that can be calibrated.
const KNOWN: [Known; 7] = [
    Known {
        name: "lru",
        hits: Hits::List,
        touches: None,
        ghosts: false,
        alias: Some("single-lock-lru"),
    },
    Known { name: "fifo", hits: Hits::Nothing, touches: None, ghosts: false, alias: None },
    Known { name: "prob-lru", hits: Hits::Coin, touches: None, ghosts: false, alias: None },
    Known { name: "clock", hits: Hits::Mark, touches: Some(1), ghosts: false, alias: None },
    Known { name: "sieve", hits: Hits::Mark, touches: Some(1), ghosts: false, alias: None },
    Known { name: "slru", hits: Hits::List, touches: None, ghosts: false, alias: None },
    Known { name: "s3-fifo", hits: Hits::Mark, touches: Some(2), ghosts: true, alias: None },
];

/// Number of slots of a policy measured without a cache. Many enough that reading the clock hardly
/// counts; few enough that the arrays fit the processor's first-level cache, as the ends of a list
/// in use do.
const SLOTS: u32 = 1024;

/// Number of rounds over all slots in a batch.
const ROUNDS: u64 = 32;

/// Nanoseconds of operations on a policy's order, one time per batch.
#[derive(Debug, Clone, Default)]
struct OrderTimes {
    /// Nanoseconds to insert an entry.
    insert: Vec<f64>,
    /// Nanoseconds to choose a victim.
    evict: Vec<f64>,
    /// Nanoseconds to promote an entry; `None` where hits promote nothing.
    promote: Option<Vec<f64>>,
    /// Additional nanoseconds to pass over an entry that was hit; `None` where eviction never does.
    step: Option<Vec<f64>>,
}

/// Times a policy's order in `batches` batches. Eviction passes over entries hit `touches` times
/// once.
fn orders(choice: &Choice, touches: Option<u32>, batches: usize) -> OrderTimes {
    floe_policy::with(choice, Batches { touches, batches })
}

struct Batches {
    touches: Option<u32>,
    batches: usize,
}

/// Returns the access that a slot is inserted with.
fn access(round: u64, slot: u32) -> Access {
    Access::new(mix(round << 32 | u64::from(slot)))
}

/// Calls a function for every slot, and returns the mean time of a call in nanoseconds.
fn each(mut what: impl FnMut(u32)) -> f64 {
    let began = Instant::now();
    (0..SLOTS).for_each(|slot| what(black_box(slot)));
    began.elapsed().as_nanos() as f64 / f64::from(SLOTS)
}

/// Returns the medians of `N` times over the rounds of a batch. Medians discount single rounds in
/// which the thread was interrupted.
fn batch<const N: usize>(mut round: impl FnMut(u64) -> [f64; N]) -> [f64; N] {
    let rounds: Vec<[f64; N]> = (0..ROUNDS).map(&mut round).collect();
    std::array::from_fn(|at| Estimate::of(rounds.iter().map(|times| times[at])).median)
}

impl Visitor for Batches {
    type Out = OrderTimes;

    fn visit<P: Policy>(self, make: impl Fn() -> P + Send + Sync) -> OrderTimes {
        let mut order = make();
        order.reserve(SLOTS as usize);
        order.set_capacity(u64::from(SLOTS));
        let mut times = OrderTimes::default();
        let promotes = <P::Marks as Marks>::KIND == HitKind::LruLike;
        for number in 0..self.batches as u64 {
            let first = number * ROUNDS;
            let [nothing, insert, promote, evict] = batch(|round| {
                let nothing = each(|slot| _ = black_box(access(first + round, slot)));
                let insert = each(|slot| order.insert(Slot(slot), &access(first + round, slot)));
                let promote = if promotes { each(|slot| order.promote(Slot(slot))) } else { 0.0 };
                let evict = each(|_| _ = black_box(order.evict(None)));
                [nothing, insert, promote, evict]
            });
            times.insert.push(insert - nothing);
            times.evict.push(evict - nothing);
            if promotes {
                times.promote.get_or_insert_default().push(promote - nothing);
            }
            let Some(touches) = self.touches else { continue };
            let [past] = batch(|round| {
                for slot in (0..SLOTS).map(Slot) {
                    order.insert(slot, &access(first + round, slot.0));
                    (0..touches).for_each(|_| _ = order.marks().touch(slot));
                }
                [each(|_| _ = black_box(order.evict(None)))]
            });
            times.step.get_or_insert_default().push(past - evict);
        }
        times
    }
}

/// Number of keys per cache entry, at which nine of ten requests hit under Zipf's law.
const KEYS_AN_ENTRY: usize = 2;

/// Runs that measure the cost of the marks that hits write. Each cache holds a part of the keys.
struct Marking {
    threads: usize,
    fifo: Mixed,
    runs: BTreeMap<String, Mixed>,
    /// Share of hits that write their mark, by policy.
    written: BTreeMap<String, f64>,
}

/// Times of a policy that are known before the cost of a written mark is derived.
struct Around<'a> {
    lookup_us: &'a [f64],
    mark_us: f64,
    fifo_visit: &'a Time,
    visit: &'a Time,
}

impl Marking {
    /// Measures the caches, and counts the marks that their hits write.
    ///
    /// # Errors
    /// A run ended without operations or without misses.
    fn run(
        what: &Calibrate<'_>,
        choices: &[(Choice, Known)],
        progress: &mut impl FnMut(MeasureStep),
    ) -> Result<Self, CalibrateError> {
        let entries = what.load.keys() / KEYS_AN_ENTRY;
        let marking = choices.iter().filter(|(_, known)| known.hits == Hits::Mark);
        let policies: Vec<&Choice> =
            std::iter::once(&choices[1].0).chain(marking.map(|(choice, _)| choice)).collect();
        let mut runs = what.mixed(&policies, entries, progress)?;
        let fifo = runs.remove(0);
        let names = || policies[1..].iter().map(ToString::to_string);
        let mut written = BTreeMap::new();
        for name in names() {
            let candidate: Candidate = name.parse().expect("a policy of the bench can be counted");
            written.insert(name, written_share(&candidate, what, entries));
        }
        Ok(Self { threads: what.threads, fifo, runs: names().zip(runs).collect(), written })
    }

    /// Returns the cost of a written mark in microseconds, one value per repetition.
    ///
    /// # Errors
    /// A time is negative or not a number, so that the model refuses it.
    fn price(&self, policy: &str, around: &Around<'_>) -> Result<Vec<f64>, ModelError> {
        let (run, written) = (&self.runs[policy], self.written[policy]);
        let computes = |run: &Mixed, visit: &Time, at: usize| {
            let throughput_mrps = self.threads as f64 / run.us[at];
            computing(visit, run.misses, self.threads as u32, throughput_mrps)
        };
        let mut prices = Vec::new();
        for (at, lookup_us) in around.lookup_us.iter().enumerate() {
            let fifo_us = computes(&self.fifo, around.fifo_visit, at)?;
            let miss_us = (fifo_us - lookup_us) / self.fifo.misses;
            let hits = 1.0 - run.misses;
            let unwritten_us = lookup_us + hits * around.mark_us + run.misses * miss_us;
            let beyond_us = computes(run, around.visit, at)? - unwritten_us;
            prices.push((beyond_us / (hits * written).max(LEAST_US)).max(LEAST_US));
        }
        Ok(prices)
    }
}

/// Returns the share of hits that write their mark, by counting operations without a cache.
fn written_share(candidate: &Candidate, what: &Calibrate<'_>, entries: usize) -> f64 {
    let counted = candidate.count(what.stream, entries as u64).counted;
    let hits = counted.outcomes.iter().find(|outcome| !outcome.is_miss);
    hits.map_or(0.0, |hits| {
        let marks = hits.operations.get(&("", Operation::WrittenMark));
        marks.copied().unwrap_or(0.0) / hits.requests as f64
    })
}
