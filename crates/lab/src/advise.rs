//! Recommends the settings of a cache for a trace and two media.
//!
//! [`Workload`] holds the trace, [`Candidate`] is a floe.toml, and [`advise`] searches: sizes and
//! write modes first, then block sizes, policies and admissions, each combined with the best
//! candidates of the round before. The [`Goal`] says which are the best. Rounds of a long trace
//! replay its beginning; the last round replays all of it. Every trial is a replay in virtual time
//! of a configuration that the server's own parser has read.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use floe_block::Evict;
use floe_trace::{Error, Info, Kind, Op, Request, Stats};
use hashbrown::HashSet;
use serde::Serialize;

use self::trial::AUTOMATIC;
use self::verdict::Judge;
use crate::replay::{Fit, Layout, Pace, ReplayError, ReplayResult, Setup, Stage, Survey, run};
use crate::report::Unit;

mod backing;
pub mod objects;
mod shares;
mod trial;
mod verdict;

pub use self::backing::{Backing, BucketCost, BucketPrices};
pub use self::shares::{
    Arrangement, ShareAdvice, ShareProposal, ShareQuestion, ShareRule, SharingVolume, advise_shares,
};
pub use self::trial::{Candidate, Trial};
pub use self::verdict::{Goal, Harm, Verdict, harms};

/// Trace, media and limits of a search for the best cache settings.
#[derive(Debug, Clone)]
pub struct Question {
    /// Name of the trace.
    pub trace: String,
    /// Measure by which settings are chosen.
    pub goal: Goal,
    /// The volume.
    pub backing: Backing,
    /// Medium of the cache.
    pub cache: String,
    /// Size of the cache; `None` to choose one by the footprint.
    pub cache_bytes: Option<u64>,
    /// Number of requests in flight during a replay.
    pub in_flight: usize,
    /// Share of the requests that warm the cache and are not counted.
    pub warmup: f64,
    /// Write modes to try; the first one is the default.
    pub writes: Vec<String>,
    /// Price of a gibibyte of cache, in any currency.
    pub price: Option<f64>,
}

/// Result of a search: the recommended configuration, and the trials it was chosen from.
#[derive(Debug, Clone, Serialize)]
pub struct Advice {
    /// Name of the trace.
    pub trace: String,
    /// Requests in the trace, all of which the last round replays.
    pub requests: u64,
    /// Number of requests replayed in each trial before the last round.
    pub coarse_requests: u64,
    /// Bytes that the trace reads and writes, in blocks of 4 KiB, as `floe trace info` counts them.
    pub footprint_bytes: u64,
    /// Bytes that the trace reads and writes, in blocks of 32 KiB. A cache of that size holds all
    /// of the trace, so no larger one is tried.
    pub footprint_in_cache_bytes: u64,
    /// Reasons to doubt the recommendation, a sentence each.
    pub warnings: Vec<String>,
    /// The recommendation, and what it makes worse.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// Trial of the best settings.
    pub best: Trial,
    /// Trial of the best settings that never hold dirty data; `None` where the best settings never
    /// do.
    pub without_write_back: Option<Trial>,
    /// Trial of the best settings that are worth a cache and make nothing worse than the bare
    /// volume; `None` where the recommended settings are so, or no settings are.
    pub harmless: Option<Trial>,
    /// Trial of the default settings, with a cache of the recommended size.
    pub default: Trial,
    /// Trial of the volume without a cache.
    pub bare: Trial,
    /// All trials of the last round, best first.
    pub finalists: Vec<Trial>,
    /// Number of trials in all rounds.
    pub trials: usize,
}

impl Advice {
    /// Returns the settings to use instead for another promise, a sentence each.
    pub fn alternatives(&self) -> Vec<String> {
        let told = |(words, trial): (&str, &Option<Trial>)| {
            let trial = trial.as_ref()?;
            let mean = Unit::Microseconds.value(trial.mean_us);
            Some(format!("{words} {}, with a mean of {mean}.", trial.candidate))
        };
        let all = [
            ("Best of those that make nothing worse:", &self.harmless),
            ("Best without write-back:", &self.without_write_back),
        ];
        all.into_iter().filter_map(told).collect()
    }
}

/// Errors of a search for settings.
#[derive(Debug, thiserror::Error)]
pub enum AdviseError {
    /// The workload does not fit a volume.
    #[error(transparent)]
    Layout(#[from] crate::replay::LayoutError),
    /// The default settings cannot be used with a cache of this size, which is too small or too
    /// large.
    #[error("a cache of this size cannot be made: {0}")]
    Config(String),
    /// A replay failed.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// The trace reads and writes nothing, so a cache has nothing to serve.
    #[error("it has no reads or writes to advise on")]
    Untouched,
    /// The trace of this name, one of several, reads and writes nothing.
    #[error("{0}: it has no reads or writes to advise on")]
    UntouchedVolume(String),
    /// The caller stopped the search.
    #[error("interrupted")]
    Interrupted,
}

/// Size in bytes of the smallest block that a cache has by default.
const UNIT_BYTES: u64 = 32 << 10;

/// Alignment in bytes of volumes that are laid end to end.
const ALIGNMENT_BYTES: u64 = 1 << 20;

/// The requests of a trace, with the sums that the search needs of them.
#[derive(Debug)]
pub struct Workload {
    requests: Vec<Request>,
    survey: Survey,
    info: Info,
    footprint_in_cache_bytes: u64,
    volume_bytes: u64,
}

impl Workload {
    /// Reads all requests of a trace.
    ///
    /// # Errors
    /// The first error of the trace.
    pub fn read(requests: impl Iterator<Item = Result<Request, Error>>) -> Result<Self, Error> {
        let requests: Vec<Request> = requests.collect::<Result<_, _>>()?;
        let survey = Survey::of(requests.iter().copied().map(Ok))?;
        let mut units = HashSet::<(u32, u64), foldhash::fast::FixedState>::default();
        let mut stats = Stats::new(Kind::Block);
        requests.iter().for_each(|request| stats.add(request));
        let touching = |request: &&Request| request.op != Op::Delete && request.bytes > 0;
        for request in requests.iter().filter(touching) {
            let last = (request.key + request.bytes - 1) / UNIT_BYTES;
            units.extend((request.key / UNIT_BYTES..=last).map(|unit| (request.volume, unit)));
        }
        let ends = survey.volumes.iter().map(|(_, end)| end.next_multiple_of(ALIGNMENT_BYTES));
        let volume_bytes = ends.sum();
        let footprint_in_cache_bytes = units.len() as u64 * UNIT_BYTES;
        let info = stats.info("", "");
        Ok(Self { requests, survey, info, footprint_in_cache_bytes, volume_bytes })
    }

    /// Returns the number of requests.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Returns whether there are no requests.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Returns the statistics that `floe trace info` prints.
    fn info(&self) -> &Info {
        &self.info
    }

    /// Returns the bytes that the trace reads or writes, in blocks of 32 KiB.
    pub fn footprint_in_cache_bytes(&self) -> u64 {
        self.footprint_in_cache_bytes
    }

    /// Returns the mapping of the trace's volumes onto one volume, large enough for all of them.
    fn layout(&self) -> Result<Layout, AdviseError> {
        let fit = Fit { concatenate: true, wrap: false };
        Ok(Layout::new(&self.survey, &[self.volume_bytes], fit)?)
    }

    /// Replays the first `count` requests with a candidate's settings.
    fn trial(
        &self,
        candidate: &Candidate,
        question: &Question,
        layout: &Layout,
        count: usize,
    ) -> Result<Trial, AdviseError> {
        let in_flight = question.in_flight;
        let mut result =
            self.replay(candidate, question, layout, count, Pace::Closed { in_flight })?;
        // A cache cleans by the clock, so the number of its requests to a bucket is one of time.
        if count == self.len()
            && let Some(bucket) = &mut result.bucket
            && bucket.clock == "trace"
        {
            let pace = Pace::Recorded { speed: 1.0, in_flight: IN_FLIGHT_RECORDED };
            let recorded = self.replay(candidate, question, layout, count, pace)?;
            *bucket = recorded.bucket.unwrap_or_else(|| bucket.clone());
        }
        Ok(Trial::new(candidate, &question.backing, question.price, result))
    }

    /// Replays the first `count` requests with a candidate's settings, at a pace.
    fn replay(
        &self,
        candidate: &Candidate,
        question: &Question,
        layout: &Layout,
        count: usize,
        pace: Pace,
    ) -> Result<ReplayResult, AdviseError> {
        let (plan, config) = candidate
            .plan(&question.cache, &question.backing, self.volume_bytes)
            .map_err(AdviseError::Config)?;
        let stage = Stage::simulated(&plan, false, Duration::ZERO)
            .map_err(|error| AdviseError::Config(error.to_string()))?;
        let warmup = (count as f64 * question.warmup) as usize;
        let setup = Setup {
            pace,
            warmup: warmup as u64,
            verify: false,
            flush_interval: config.serving.flush_interval(),
            shed_most: None,
            interval: None,
        };
        let requests = &self.requests[..count];
        let requests = requests.iter().copied().map(Ok);
        Ok(run(&question.trace, requests, layout, &setup, stage, |_| ())?)
    }
}

/// Number of requests in flight when they begin at their recorded times.
const IN_FLIGHT_RECORDED: usize = 1024;

/// Number of requests replayed in each trial before the last round.
const COARSE_REQUESTS: usize = 200_000;

/// Cache sizes to try, as shares of the footprint.
const SHARES: [f64; 6] = [1.0 / 64.0, 1.0 / 32.0, 1.0 / 16.0, 1.0 / 8.0, 1.0 / 4.0, 1.0 / 2.0];
/// Granularity of cache sizes in bytes. A size is at least four units, but no larger than the
/// footprint, and never below one unit.
const SIZE_UNIT_BYTES: u64 = 4 << 20;

/// Number of counted requests below which a warning is given.
const FEW_REQUESTS: usize = 10_000;

/// Span of a trace in seconds below which a warning says that yearly figures are extrapolated.
const SHORT_SECONDS: f64 = 3600.0;

const BLOCK_SIZES: [&str; 8] = [
    AUTOMATIC,
    "4KiB",
    "4KiB,8KiB,16KiB,32KiB",
    "16KiB",
    "32KiB,64KiB,128KiB,256KiB",
    "64KiB",
    "64KiB,128KiB,256KiB,512KiB,1MiB",
    "256KiB",
];
const ADMISSIONS: [&str; 6] =
    ["always", "second-access", "duel", "sequential", "fussy", "probability:p=0.5"];

/// Best candidates of a round that the next one varies; [`FINALISTS`] go on to the last.
const GO_ON: usize = 3;
const FINALISTS: usize = 6;

/// Callback for the progress of a search: takes the trials done and the most expected, and returns
/// false to end the search.
pub type Progress<'a> = &'a (dyn Fn(usize, usize) -> bool + Sync);

/// Searches for the best settings of a cache for a workload.
///
/// # Errors
/// When the trace does not fit a volume, a given size is impossible, or `progress` returns false.
pub fn advise(
    question: &Question,
    workload: &Workload,
    progress: Progress<'_>,
) -> Result<Advice, AdviseError> {
    if workload.info().touches == 0 {
        return Err(AdviseError::Untouched);
    }
    let layout = workload.layout()?;
    let mut search = Search {
        question,
        workload,
        layout,
        progress,
        done: AtomicUsize::new(0),
        expected: 0,
        known: HashMap::new(),
        bare: HashMap::new(),
    };
    search.run()
}

struct Search<'a> {
    question: &'a Question,
    workload: &'a Workload,
    layout: Layout,
    progress: Progress<'a>,
    done: AtomicUsize,
    expected: usize,
    /// Trials by settings and number of requests; `None` where the settings are impossible.
    known: HashMap<(Candidate, usize), Option<Trial>>,
    /// Trials of the bare volume, by number of requests.
    bare: HashMap<usize, Trial>,
}

impl Search<'_> {
    fn run(&mut self) -> Result<Advice, AdviseError> {
        let all = self.workload.len();
        let coarse = all.min(COARSE_REQUESTS);
        let sizes = self.sizes();
        let policies: Vec<String> = Evict::all().map(|evict| evict.to_string()).collect();
        let writes = self.question.writes.len();
        self.expected = (sizes.len() + BLOCK_SIZES.len()) * writes
            + GO_ON * (policies.len() + ADMISSIONS.len())
            + 3 * FINALISTS;

        let with_write = |candidate: &Candidate, write: &String| Candidate {
            write: write.clone(),
            ..candidate.clone()
        };
        let largest = *sizes.last().expect("there is a size to try");
        for count in [coarse, all] {
            let bare = self.reference(&Candidate::bare(largest), count)?;
            self.bare.insert(count, bare);
        }
        let first: Vec<Candidate> = sizes
            .iter()
            .flat_map(|&size| {
                let default = Candidate::default_of(size);
                self.question.writes.iter().map(move |write| with_write(&default, write))
            })
            .collect();
        let ranked = self.round(&first, coarse)?;
        let close = self.judge(coarse).smallest_close(&ranked);
        let size = close.ok_or_else(|| self.impossible(&first[0], coarse))?;
        let blocks = self.question.writes.iter().flat_map(|write| {
            BLOCK_SIZES.iter().map(move |blocks| Candidate {
                block_sizes: (*blocks).to_owned(),
                ..with_write(&Candidate::default_of(size), write)
            })
        });
        let ranked = self.round(&blocks.collect::<Vec<_>>(), coarse)?;
        let safest = ranked.iter().find(|trial| !trial.keeps_writes()).cloned();
        let evict = vary(&ranked, &policies, |candidate, evict| candidate.evict = evict);
        let ranked = self.round(&evict, coarse)?;
        let admissions: Vec<String> = ADMISSIONS.map(str::to_owned).into();
        let admit = vary(&ranked, &admissions, |candidate, admit| candidate.admit = admit);
        let ranked = self.round(&admit, coarse)?;

        let mut last: Vec<Candidate> =
            ranked.iter().take(FINALISTS).map(|trial| trial.candidate.clone()).collect();
        if self.question.cache_bytes.is_none() {
            let best = last[0].clone();
            for cache_bytes in [size / 2, size * 2].map(|bytes| self.rounded(bytes)) {
                last.push(Candidate { cache_bytes, ..best.clone() });
            }
        }
        let writes = &self.question.writes;
        last.extend(writes.iter().map(|write| with_write(&Candidate::default_of(size), write)));
        if self.question.goal.saves() {
            // Their gain is what is kept most of, in the last round, too.
            last.push(self.judge(coarse).fastest.candidate.clone());
        }
        let finalists = self.round(&last, all)?;
        let size = self.judge(all).smallest_close(&finalists).unwrap_or(size);
        let best = finalists.iter().find(|trial| trial.candidate.cache_bytes == size);
        let best = best.expect("a size comes from a trial").clone();
        let default = self.reference(&Candidate::default_of(size), all)?;
        // Equal settings are the defaults, and nothing is gained by others within noise.
        let best = match self.judge(all).compare(&default, &best) {
            Ordering::Greater => best,
            _ => default.clone(),
        };
        let without_write_back = match safest.filter(|_| best.keeps_writes()) {
            Some(safe) => self.safest(&safe, &best, &default, all)?,
            None => None,
        };
        let judge = self.judge(all);
        let bare = judge.bare.clone();
        let Question { cache, backing, .. } = self.question;
        let verdict = Verdict::new(&judge, cache, backing, &best, &default);
        let harmless = match verdict.worse.is_empty() {
            true => None,
            false => finalists
                .iter()
                .chain(&without_write_back)
                .chain([&default])
                .filter(|trial| judge.pays(trial) && harms(trial, &bare).is_empty())
                .min_by(|a, b| judge.compare(a, b))
                .cloned(),
        };
        Ok(Advice {
            trace: self.question.trace.clone(),
            requests: all as u64,
            coarse_requests: coarse as u64,
            footprint_bytes: self.workload.info().footprint_bytes,
            footprint_in_cache_bytes: self.workload.footprint_in_cache_bytes(),
            warnings: self.warnings(&best),
            verdict,
            without_write_back,
            harmless,
            best,
            default,
            bare,
            finalists,
            trials: self.known.len(),
        })
    }

    /// Replays the candidate `safe`, which has no write-back, with its own eviction policy and with
    /// that of `best`. Returns the better one of both and of the defaults, if these have no
    /// write-back.
    fn safest(
        &mut self,
        safe: &Trial,
        best: &Trial,
        default: &Trial,
        count: usize,
    ) -> Result<Option<Trial>, AdviseError> {
        let Candidate { cache_bytes, evict, .. } = best.candidate.clone();
        let safe = Candidate { cache_bytes, ..safe.candidate.clone() };
        let other = Candidate { evict, ..safe.clone() };
        let mut trials = self.round(&[safe, other], count)?;
        trials.extend((!default.keeps_writes()).then(|| default.clone()));
        let judge = self.judge(count);
        Ok(trials.into_iter().min_by(|a, b| judge.compare(a, b)))
    }

    /// Returns the cache sizes to try.
    fn sizes(&self) -> Vec<u64> {
        if let Some(size) = self.question.cache_bytes {
            return vec![size];
        }
        let footprint = self.workload.footprint_in_cache_bytes() as f64;
        let mut sizes: Vec<u64> =
            SHARES.iter().map(|share| self.rounded((footprint * share) as u64)).collect();
        sizes.dedup();
        sizes
    }

    /// Rounds a cache size up to a multiple of [`SIZE_UNIT_BYTES`], within the limits given there.
    fn rounded(&self, bytes: u64) -> u64 {
        let size = bytes.next_multiple_of(SIZE_UNIT_BYTES).max(4 * SIZE_UNIT_BYTES);
        size.min(self.workload.footprint_in_cache_bytes().max(SIZE_UNIT_BYTES))
    }

    /// Returns the reasons to doubt a recommendation, a sentence each.
    fn warnings(&self, best: &Trial) -> Vec<String> {
        let Info { seconds, touches, unique, footprint_bytes, .. } = *self.workload.info();
        let counted =
            self.workload.len() - (self.workload.len() as f64 * self.question.warmup) as usize;
        let mut warnings = Vec::new();
        if counted < FEW_REQUESTS {
            warnings.push(format!(
                "{counted} requests count, which is too few to decide by: give a trace of \
                 {FEW_REQUESTS} or more."
            ));
        }
        if footprint_bytes < SIZE_UNIT_BYTES {
            warnings.push(format!(
                "The trace touches {}, less than the smallest cache that is tried.",
                floe_block::format_size(footprint_bytes)
            ));
        }
        if touches == unique {
            warnings.push("No block is touched twice, so a cache is never hit.".to_owned());
        }
        if !best.has_pace() {
            warnings.push(
                "The trace has no times. Written a year and drive writes a day are not known; \
                 those of --json are at the pace of the replay, whose volume is never idle."
                    .to_owned(),
            );
        } else if seconds < SHORT_SECONDS && best.writes_per_day > 0.0 {
            warnings.push(format!(
                "The trace spans {seconds:.0} s: written a year and drive writes a day suppose \
                 that the volume is as busy all year."
            ));
        }
        warnings
    }

    /// Returns the error that a candidate's trial ends with.
    fn impossible(&self, candidate: &Candidate, count: usize) -> AdviseError {
        let trial = self.workload.trial(candidate, self.question, &self.layout, count);
        trial.err().unwrap_or(AdviseError::Interrupted)
    }

    /// Returns the judge of trials of the first `count` requests.
    fn judge(&self, count: usize) -> Judge<'_> {
        let bare = &self.bare[&count];
        let known = self.known.iter().filter(|((_, of), _)| *of == count);
        let trials = known.filter_map(|(_, trial)| trial.as_ref());
        let fastest = trials.min_by(|a, b| {
            // The map has no order: of equals, always the same is chosen.
            let order = a.mean_us.total_cmp(&b.mean_us);
            order.then_with(|| a.candidate.to_string().cmp(&b.candidate.to_string()))
        });
        Judge::new(self.question.goal, bare, fastest.unwrap_or(bare))
    }

    /// Returns the trial of one candidate.
    fn reference(&mut self, candidate: &Candidate, count: usize) -> Result<Trial, AdviseError> {
        self.replay_all(std::slice::from_ref(candidate), count)?;
        let known = self.known.get(&(candidate.clone(), count)).cloned().flatten();
        known.ok_or_else(|| self.impossible(candidate, count))
    }

    /// Replays candidates without a known trial. Returns the trials of all possible candidates,
    /// best first.
    fn round(&mut self, candidates: &[Candidate], count: usize) -> Result<Vec<Trial>, AdviseError> {
        self.replay_all(candidates, count)?;
        let mut trials: Vec<Trial> = Vec::new();
        for (at, candidate) in candidates.iter().enumerate() {
            if !candidates[..at].contains(candidate) {
                trials.extend(self.known.get(&(candidate.clone(), count)).cloned().flatten());
            }
        }
        let judge = self.judge(count);
        trials.sort_by(|a, b| judge.compare(a, b));
        Ok(trials)
    }

    /// Replays candidates without a known trial, on all cores.
    fn replay_all(&mut self, candidates: &[Candidate], count: usize) -> Result<(), AdviseError> {
        let mut wanted: Vec<&Candidate> = Vec::new();
        for candidate in candidates {
            let key = (candidate.clone(), count);
            if !self.known.contains_key(&key) && !wanted.contains(&candidate) {
                wanted.push(candidate);
            }
        }
        let next = AtomicUsize::new(0);
        let results = Mutex::new(Vec::new());
        let (this, wanted) = (&*self, &wanted[..]);
        let work = || {
            // The counter is all that threads share besides the results, which are locked.
            while let Some(candidate) = wanted.get(next.fetch_add(1, Relaxed)) {
                let trial = this.workload.trial(candidate, this.question, &this.layout, count);
                results.lock().expect("no trial panics").push(((*candidate).clone(), trial));
                let done = this.done.fetch_add(1, Relaxed) + 1;
                if !(this.progress)(done, this.expected.max(done)) {
                    return;
                }
            }
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for _ in 0..threads.min(wanted.len()) {
                scope.spawn(work);
            }
        });
        let results = results.into_inner().expect("no trial panics");
        if results.len() < wanted.len() {
            return Err(AdviseError::Interrupted);
        }
        for (candidate, trial) in results {
            let trial = match trial {
                Ok(trial) => Some(trial),
                Err(AdviseError::Config(_)) => None,
                Err(error) => return Err(error),
            };
            self.known.insert((candidate, count), trial);
        }
        Ok(())
    }
}

/// Returns the best [`GO_ON`] candidates, each combined with every value of a setting.
fn vary(
    ranked: &[Trial],
    values: &[String],
    set: impl Fn(&mut Candidate, String),
) -> Vec<Candidate> {
    let varied = |trial: &Trial| {
        let each = values.iter().map(|value| {
            let mut candidate = trial.candidate.clone();
            set(&mut candidate, value.clone());
            candidate
        });
        each.collect::<Vec<_>>()
    };
    ranked.iter().take(GO_ON).flat_map(varied).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::replay::Latencies;

    /// Returns the trial of a cache of `mib`, with these latencies: a number of requests and their
    /// time in milliseconds each.
    fn trial(mib: u64, reads: &[(u64, u64)], writes: &[(u64, u64)]) -> Trial {
        let request = Request { time_ns: 0, key: 0, bytes: 4096, volume: 0, op: Op::Read };
        let workload = Workload::read([Ok(request)].into_iter()).unwrap();
        let question = Question {
            trace: "trace".to_owned(),
            goal: Goal::Mean,
            backing: Backing::Medium("hdd".to_owned()),
            cache: "nvme".to_owned(),
            cache_bytes: None,
            in_flight: 1,
            warmup: 0.0,
            writes: vec!["back".to_owned()],
            price: None,
        };
        let candidate = Candidate::default_of(mib << 20);
        let layout = workload.layout().unwrap();
        let mut result = workload.trial(&candidate, &question, &layout, 1).unwrap().result;
        let latencies = |of: &[(u64, u64)]| {
            let mut all = Latencies::default();
            for &(count, ms) in of {
                (0..count).for_each(|_| all.record(Duration::from_millis(ms)));
            }
            all
        };
        (result.read_latencies, result.write_latencies) = (latencies(reads), latencies(writes));
        (result.reads, result.writes) =
            (result.read_latencies.count(), result.write_latencies.count());
        result.read_us_mean = result.read_latencies.mean_us();
        result.write_us_mean = result.write_latencies.mean_us();
        Trial::new(&candidate, &question.backing, None, result)
    }

    fn of_harms(trial: &Trial, bare: &Trial) -> Vec<String> {
        harms(trial, bare).into_iter().map(|harm| harm.of).collect()
    }

    #[test]
    fn a_percentile_is_best_where_neither_reads_nor_writes_pay_for_it() {
        let bare = trial(64, &[(2000, 10)], &[(2000, 10)]);
        let uneven = trial(64, &[(1970, 1), (30, 12)], &[(2000, 1)]);
        let even = trial(64, &[(2000, 8)], &[(2000, 8)]);
        assert!(uneven.p99_us < even.p99_us && uneven.mean_us < even.mean_us);
        assert_eq!(of_harms(&uneven, &bare), ["p99 of reads"]);
        let judge = |goal| Judge::new(goal, &bare, &uneven);
        assert_eq!(judge(Goal::Mean).compare(&uneven, &even), Ordering::Less);
        assert_eq!(judge(Goal::P99).compare(&uneven, &even), Ordering::Greater);
        assert!(judge(Goal::Mean).pays(&uneven) && !judge(Goal::P99).pays(&uneven));
        let backing = Backing::Medium("hdd".to_owned());
        let verdict = |goal, best| Verdict::new(&judge(goal), "nvme", &backing, best, &bare);
        let text = verdict(Goal::Mean, &uneven).text;
        assert!(text.contains(" It makes worse: the p99 of reads (12,00"), "{text}");
        assert!(verdict(Goal::P99, &even).worse.is_empty());
        let none = verdict(Goal::P99, &uneven);
        assert!(none.text.starts_with("No cache pays") && none.toml.is_none(), "{}", none.text);
    }

    #[test]
    fn percentiles_of_few_requests_are_not_compared() {
        let bare = |count| trial(64, &[(count, 10)], &[]);
        let slower = |count| trial(64, &[(count, 20)], &[]);
        assert_eq!(of_harms(&slower(999), &bare(999)), ["mean of reads"]);
        assert_eq!(of_harms(&slower(1000), &bare(1000)), ["mean of reads", "p99 of reads"]);
        let of_all = ["mean of reads", "p99 of reads", "p99.9 of reads"];
        assert_eq!(of_harms(&slower(10_000), &bare(10_000)), of_all);
        assert!(of_harms(&bare(10_000), &bare(10_000)).is_empty());
    }

    #[test]
    fn what_saves_has_to_keep_three_quarters_of_the_gain() {
        let of = |mib, ms, written| {
            let mut trial = trial(mib, &[(1000, ms)], &[]);
            trial.result.cache_write_bytes = written;
            trial
        };
        let bare = of(64, 100, 0);
        let (fastest, small, tiny) = (of(64, 20, 500), of(32, 38, 900), of(16, 42, 100));
        let best = |goal| {
            let judge = Judge::new(goal, &bare, &fastest);
            let all = [&fastest, &small, &tiny];
            all.into_iter().min_by(|a, b| judge.compare(a, b)).unwrap().candidate.cache_bytes >> 20
        };
        assert_eq!([Goal::Mean, Goal::Cost, Goal::Endurance].map(best), [64, 32, 64]);
        let judge = Judge::new(Goal::Cost, &bare, &fastest);
        let backing = Backing::Medium("hdd".to_owned());
        let text = Verdict::new(&judge, "nvme", &backing, &small, &tiny).text;
        assert!(text.contains("keeps 77 % of the gain of the fastest settings (64MiB"), "{text}");
    }

    #[test]
    fn goals_are_read_as_they_are_written() {
        for name in ["mean", "p99", "p99.9", "cost", "endurance"] {
            assert_eq!(name.parse::<Goal>().unwrap().to_string(), name);
        }
        assert!("p999".parse::<Goal>().unwrap_err().contains(&Goal::names()));
    }
}
