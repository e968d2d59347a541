//! Measures the times of list operations on this machine: the service times of `floe model`.
//!
//! Nothing here waits for a disk, and nothing is fitted to what the model is to explain: each time
//! comes from runs of one kind only. Caches of one shard, so that one lock guards one list, are
//! asked for what they all hold (every request hits) and for what they never hold (every request
//! misses), by the loop that measures them at work. A miss parks its client there; but the disk is
//! so quick, and clients are so many, that none is waited for. Caches take turns at being run
//!
//! - by one thread: the time of an operation on data that no other thread uses or has used;
//! - by several, *together*: its time while other threads want the same;
//! - by several, *apart*: each computes for a while after each request, so that they seldom meet. A
//!   visit to the list then mostly fetches data that another processor has written.
//!
//! A policy's time is that of a request beyond two others: that of FIFO, whose hits only look up,
//! and that of parking without a cache. The further cost of a miss, since hits of other threads
//! find changed lines of the index, is measured in one run of FIFO in which a part of the requests
//! hits. Marks that hits write are priced in further runs of that kind. The division
//! of a list operation into delink, head and tail is measured on the order alone, without lock and
//! cache.
//!
//! Times of the list are those with which a closed network of the threads, each computing and
//! visiting the list, has the throughputs that were measured together and apart.
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

/// A time below that, in microseconds, cannot be told from none; it stands in its place, as there
/// is none that takes no time at all.
const LEAST_US: f64 = 1e-4;

/// Keys that are to miss come in a circle, so many times as many as there are entries: no key is
/// there any more, nor known, when it comes back.
const CIRCLE: usize = 10;

/// A circle has at least so many keys. Threads take them in chunks; one that was stopped in the
/// middle of its own finds keys that others have just brought in where these have gone full circle,
/// and that chunk shall be a small part of it.
const CIRCLE_MIN: usize = 100 * CHUNK;

/// Fewest keys: a tenth of them has to be a cache worth its name.
const KEYS_MIN: usize = 500;

/// Clients of each thread: as many as are common.
const CLIENTS: usize = 36;

/// The disk: so quick that there is always a client that can go on, and slow enough that several
/// are parked.
const DISK: Disk = Disk { mean_ns: 500, exponential: true };

/// Rounds of arithmetic after each request of threads that are to be apart: some microseconds,
/// several times as long as a visit to the list.
const PAUSE: u32 = 500;

/// A hit ratio that is off by more than that is not of one kind of requests.
const IMPURE: f64 = 0.02;

/// Those that are measured in any case, as others are compared with them.
const BASES: [&str; 2] = ["lru", "fifo"];

/// Policies measured by default.
pub const POLICIES: &str = "lru,fifo,prob-lru,clock,sieve,slru:segments=2,s3-fifo";

/// The policy that stands for every one that tosses a coin.
const COIN: &str = "prob-lru:q=1";
/// The same with a coin that is fair: half of the hits visit the list, so that threads seldom come
/// back to it before another has been there.
const HALF_COIN: &str = "prob-lru:q=0.5";

/// The settings of a calibration.
#[derive(Debug)]
pub struct Calibrate<'a> {
    /// Keys as they are asked for where all hit.
    pub load: &'a Load,
    /// The same keys, for counting.
    pub stream: &'a Stream,
    /// Policies.
    pub policies: &'a [Choice],
    /// Most threads.
    pub threads: usize,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// The number and the length of runs.
    pub plan: Plan,
}

/// A time that was measured: the median of the repetitions, and the interval that holds the true
/// one with `confidence`.
#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    /// The policy with its parameters.
    pub policy: String,
    /// Of what.
    pub operation: String,
    /// With so many threads at work.
    pub threads: usize,
    /// In nanoseconds.
    pub ns: f64,
    /// Where its interval begins.
    pub ns_low: f64,
    /// Where it ends.
    pub ns_high: f64,
    /// The confidence of the interval.
    pub confidence: f64,
}

/// The result of a calibration.
#[derive(Debug, Clone)]
pub struct Calibration {
    /// For the model.
    pub service: Service,
    /// For people.
    pub figures: Vec<Figure>,
}

/// The kinds of runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum RunKind {
    Hits,
    Misses,
}

/// The arrival of requests in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Pace {
    /// As fast as so many threads can.
    Together(usize),
    /// From so many threads that compute in between.
    Apart(usize),
}

impl Pace {
    fn threads(self) -> usize {
        let (Self::Together(threads) | Self::Apart(threads)) = self;
        threads
    }
}

/// Times of requests in microseconds, of each repetition, by policy.
type Requests = BTreeMap<(String, RunKind, Pace), Vec<f64>>;

/// The bench itself, without a cache.
const CLIENT: &str = "client";
/// LRU, all of it frozen.
const FROZEN: &str = "lru, frozen";

/// Measures.
///
/// # Errors
/// A policy is not among those that can be, there are too few keys, or a run was not what it should
/// be.
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

/// Each key once.
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
    /// Time of a request in microseconds, of each repetition.
    us: Vec<f64>,
    /// Share of them that missed.
    misses: f64,
}

/// No cache: always the same answer. The measured time is that of the clients.
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
    /// Checks the settings, and returns the policies to calibrate, the bases first.
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
    /// A policy is not among those that can be, or there are too few keys.
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

    /// A cache as all are measured.
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

    /// Runs caches that hold a part of the keys, in turn.
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

    /// Runs all caches on one kind of requests.
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

/// Refuses runs that were not of one kind of requests.
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

/// Why nothing can be calibrated.
#[derive(Debug, thiserror::Error)]
pub enum CalibrateError {
    /// The model has no such policy, or it is too different from the cache's.
    #[error("{policy} cannot be calibrated for floe model; there are: {known}")]
    Policy {
        /// Its name.
        policy: String,
        /// The known names.
        known: String,
    },
    /// Too few keys.
    #[error("calibration takes a load of at least {KEYS_MIN} keys; this one has {keys}")]
    Keys {
        /// The number of distinct keys.
        keys: usize,
    },
    /// A name that should be right is not.
    #[error(transparent)]
    Choice(#[from] ChoiceError),
    /// No cache can be made.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// No circle of keys can be made.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// Nor a load of it.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A run did nothing.
    #[error("{policy}: nothing was done in one of the runs; a larger --seconds leaves time for it")]
    Nothing {
        /// The policy.
        policy: String,
    },
    /// The measured times make no model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Requests that should all hit, or all miss, did not.
    #[error("{policy}: {share:.4} of the requests hit where {wanted} should; more --keys may help")]
    Impure {
        /// The policy.
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
    /// Nothing.
    Nothing,
    /// They leave a mark.
    Mark,
    /// They change the list.
    List,
    /// Some change the list as LRU's do, some do not, and a coin says which. Measured with a coin
    /// that always says no.
    Coin,
}

/// A policy that both the model and the cache have.
#[derive(Debug, Clone, Copy)]
struct Known {
    name: &'static str,
    hits: Hits,
    /// Hits that make an entry be passed by once.
    touches: Option<u32>,
    ghosts: bool,
    /// The model's other name for it.
    alias: Option<&'static str>,
}

/// Every such policy.
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

/// Slots of the order: enough that looks at the clock do not count, and few enough that its arrays
/// fit into the first cache of a processor, as the ends of a list do that is in use.
const SLOTS: u32 = 1024;

/// Rounds over all slots that make a batch.
const ROUNDS: u64 = 32;

/// Times of changes in nanoseconds, one of each batch.
#[derive(Debug, Clone, Default)]
struct OrderTimes {
    /// Of putting in.
    insert: Vec<f64>,
    /// Of choosing a victim.
    evict: Vec<f64>,
    /// Of a promotion, where hits owe one.
    promote: Option<Vec<f64>>,
    /// Of passing one by that was hit, where that happens.
    step: Option<Vec<f64>>,
}

/// Measures so many batches. Entries hit `touches` times are passed by once.
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

/// Time for each slot when something is done with all.
fn each(mut what: impl FnMut(u32)) -> f64 {
    let began = Instant::now();
    (0..SLOTS).for_each(|slot| what(black_box(slot)));
    began.elapsed().as_nanos() as f64 / f64::from(SLOTS)
}

/// The medians over the rounds of a batch of several times: a thread that is stopped now and then
/// makes single rounds long.
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

/// Keys for each entry of the cache: by Zipf's law nine requests in ten hit.
const KEYS_AN_ENTRY: usize = 2;

/// Runs in which the same cache holds a part of the keys.
struct Marking {
    threads: usize,
    fifo: Mixed,
    runs: BTreeMap<String, Mixed>,
    /// Of the hits of each policy, those that write their mark.
    written: BTreeMap<String, f64>,
}

/// The known times of a policy.
struct Around<'a> {
    lookup_us: &'a [f64],
    mark_us: f64,
    fifo_visit: &'a Time,
    visit: &'a Time,
}

impl Marking {
    /// Runs and counts.
    ///
    /// # Errors
    /// A run was not what it should be.
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

    /// Returns the price of a mark that a hit of a policy writes, repetition by repetition.
    ///
    /// # Errors
    /// A time is none.
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

/// Returns the share of hits that write their mark.
fn written_share(candidate: &Candidate, what: &Calibrate<'_>, entries: usize) -> f64 {
    let counted = candidate.count(what.stream, entries as u64).counted;
    let hits = counted.outcomes.iter().find(|outcome| !outcome.is_miss);
    hits.map_or(0.0, |hits| {
        let marks = hits.operations.get(&("", Operation::WrittenMark));
        marks.copied().unwrap_or(0.0) / hits.requests as f64
    })
}
