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
//! hits. Marks that hits write are priced in further runs of that kind (`marks.rs`). The division
//! of a list operation into delink, head and tail is measured on the order alone, without lock and
//! cache.
//!
//! Times of the list are those with which a closed network of the threads, each computing and
//! visiting the list, has the throughputs that were measured together and apart (`contention.rs`).
//! Method of "Can Increasing the Hit Ratio Hurt Cache Throughput?", section 4.1.

use std::collections::BTreeMap;

use floe_model::Service;
use floe_policy::registry::Choice;
use serde::Serialize;

use super::cache::{Cache, Filling};
use super::competitor::{CacheCompetitor, Competitor};
use super::freezing::Freezing;
use super::load::Load;
use super::measure::{MeasureStep, Measured, measure};
use super::order::{CHUNK, PassOrder};
use super::plan::{Plan, Setup};
use super::subject::Subject;
use super::worker::Disk;
use crate::simulate::stream::{Builder, Keep, Stream, StreamError};

mod contention;
mod error;
mod known;
mod marks;
mod orders;
mod times;

pub use error::CalibrateError;
use known::{Hits, KNOWN, Known};
use marks::Marking;

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
