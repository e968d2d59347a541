//! Recommends the settings of a cache for a trace and two media.
//!
//! [`Workload`] holds the trace, [`Candidate`] is a floe.toml, and [`advise`] searches: sizes and
//! write modes first, then block sizes, policies and admissions, each combined with the best
//! candidates of the round before. Rounds of a long trace replay its beginning; the last round
//! replays all of it. Every trial is a replay in virtual time of a configuration that the server's
//! own parser has read.

use std::collections::HashMap;
use std::fmt::{self, Write};
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use floe_block::{Config, Evict, Memory, WriteMode, format_size};
use floe_server::config::ServerConfig;
use floe_trace::{Error, Info, Kind, Op, Request, Stats};
use hashbrown::HashSet;
use serde::Serialize;

use crate::replay::{
    Fit, Layout, Pace, Plan, ReplayError, ReplayResult, Setup, Stage, Survey, Tier, Volume, run,
};
use crate::report::Unit;

pub mod objects;

/// Trace, media and limits of a search for the best cache settings.
#[derive(Debug, Clone)]
pub struct Question {
    /// Name of the trace.
    pub trace: String,
    /// Medium of the volume.
    pub backing: String,
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

/// Results of replaying a trace with candidate settings.
#[derive(Debug, Clone, Serialize)]
pub struct Trial {
    /// Settings of the cache that was replayed.
    pub candidate: Candidate,
    /// Mean latency of a request in microseconds.
    pub mean_us: f64,
    /// Terabytes (10¹² bytes) written to the cache device in a year at the pace of the trace. For a
    /// trace without times, the pace is that of the replay, whose volume is never idle.
    pub written_tb_per_year: f64,
    /// Drive writes per day: how often a day the whole capacity of the cache device is written, at
    /// the pace of `written_tb_per_year`.
    pub writes_per_day: f64,
    /// Price of the cache; `None` where no price per gibibyte was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price: Option<f64>,
    /// All measurements of the replay.
    pub result: ReplayResult,
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
    /// The recommendation in one sentence.
    pub verdict: String,
    /// The recommended floe.toml; `None` where no cache makes requests at least 5 % faster.
    pub toml: Option<String>,
    /// Trial of the best settings.
    pub best: Trial,
    /// Trial of the best settings that never hold dirty data; `None` where the best settings never
    /// do.
    pub without_write_back: Option<Trial>,
    /// Trial of the default settings, with a cache of the recommended size.
    pub default: Trial,
    /// Trial of the volume without a cache.
    pub bare: Trial,
    /// All trials of the last round, best first.
    pub finalists: Vec<Trial>,
    /// Number of trials in all rounds.
    pub trials: usize,
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
    /// The caller stopped the search.
    #[error("interrupted")]
    Interrupted,
}

impl Trial {
    /// Returns whether the write rate per year follows the times of the trace, and not the pace of
    /// the replay.
    pub fn has_pace(&self) -> bool {
        self.result.endurance.as_ref().is_none_or(|it| it.clock == "trace")
    }
}

/// Block sizes that floe.toml leaves to the server.
const AUTOMATIC: &str = "automatic";

/// Settings of a cache, in the notation of floe.toml.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Candidate {
    /// Size of the cache in bytes.
    pub cache_bytes: u64,
    /// Write mode of the cache.
    pub write: String,
    /// Block sizes of the cache; `automatic` where the server chooses them.
    pub block_sizes: String,
    /// Eviction policy.
    pub evict: String,
    /// Admission policy.
    pub admit: String,
}

impl Candidate {
    /// Returns the server's default settings for a cache of `cache_bytes`.
    pub fn default_of(cache_bytes: u64) -> Self {
        Self {
            cache_bytes,
            write: WriteMode::default().to_string(),
            block_sizes: AUTOMATIC.to_owned(),
            evict: floe_block::Evict::default().to_string(),
            admit: "always".to_owned(),
        }
    }

    /// Returns settings that cache nothing, for the latency of the bare volume.
    pub fn bare(cache_bytes: u64) -> Self {
        Self { write: WriteMode::Pass.to_string(), ..Self::default_of(cache_bytes) }
    }

    /// Returns a floe.toml with these settings and devices. Settings at their defaults are left
    /// out.
    pub fn toml(&self, cache: &str, backing: &str) -> String {
        let default = Self::default_of(self.cache_bytes);
        let mut text = format!("cache = \"{cache}\"\n");
        let size = format_size(self.cache_bytes);
        for (name, value, default) in [
            ("cache-size", &size, ""),
            ("write", &self.write, &default.write),
            ("block-sizes", &self.block_sizes, &default.block_sizes),
            ("evict", &self.evict, &default.evict),
            ("admit", &self.admit, &default.admit),
        ] {
            if value != default {
                writeln!(text, "{name} = \"{value}\"").expect("text takes all");
            }
        }
        write!(text, "\n[[volume]]\nname = \"floe\"\nbacking = \"{backing}\"\n")
            .expect("text takes all");
        text
    }

    /// Returns the plan of a replay on simulated media, and the server configuration it was made
    /// from.
    fn plan(
        &self,
        cache: &str,
        backing: &str,
        volume_bytes: u64,
    ) -> Result<(Plan, ServerConfig), AdviseError> {
        let size = format_size(self.cache_bytes);
        let text = self.toml(
            &format!("memory:{size},medium={cache}"),
            &format!("memory:{volume_bytes},medium={backing}"),
        );
        let config = ServerConfig::from_text(&text).map_err(AdviseError::Config)?;
        let tier = &config.first;
        let tiers = vec![Tier {
            config: Config { kept: false, ..tier.config(Memory::None, 0) },
            most_dirty_bytes: tier.most_dirty_bytes(),
            device: tier.cache().clone(),
        }];
        let volume = |volume: &floe_server::config::VolumeConfig| Volume {
            name: volume.name().to_owned(),
            spec: volume.backing().clone(),
            read_only: false,
        };
        let volumes = config.volume.iter().map(volume).collect();
        Ok((Plan { tiers, volumes }, config))
    }
}

impl fmt::Display for Candidate {
    /// Writes the size of the cache, followed by the settings that differ from the defaults.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let default = Self::default_of(self.cache_bytes);
        write!(f, "{}, write {}", format_size(self.cache_bytes), self.write)?;
        for (name, value, default) in [
            ("blocks", &self.block_sizes, &default.block_sizes),
            ("evict", &self.evict, &default.evict),
            ("admit", &self.admit, &default.admit),
        ] {
            if value != default {
                write!(f, ", {name} {value}")?;
            }
        }
        Ok(())
    }
}

/// Smallest relative gain in latency that counts as a difference.
const MARGIN: f64 = 0.05;

/// Returns the recommendation as a sentence, and the floe.toml if a cache is worth having.
fn verdict(
    question: &Question,
    best: &Trial,
    default: &Trial,
    bare: &Trial,
) -> (String, Option<String>) {
    let us = |trial: &Trial| Unit::Microseconds.value(trial.mean_us);
    let gain = |trial: &Trial| 1.0 - best.mean_us / trial.mean_us;
    let percent = |share: f64| format!("{:.0} %", 100.0 * share);
    if gain(bare) < MARGIN {
        let margin = percent(gain(bare).max(0.0));
        return (
            format!(
                "No cache pays: requests take {} on the bare volume, and the best cache gains \
                 {margin}.",
                us(bare)
            ),
            None,
        );
    }
    let is_default = gain(default) < MARGIN;
    let chosen = if is_default { default } else { best };
    let beside = if is_default {
        format!("the best settings gain {} more", percent(gain(default).max(0.0)))
    } else {
        format!("{} less than with the defaults ({})", percent(gain(default)), us(default))
    };
    let verdict = format!(
        "With {} of {}{} a request takes {} on average instead of {} bare, {:.1} times as fast; \
         {beside}.",
        format_size(chosen.candidate.cache_bytes),
        question.cache,
        if is_default { " and the defaults" } else { "" },
        us(chosen),
        us(bare),
        bare.mean_us / chosen.mean_us,
    );
    let disk = |name: &str| format!("file:/dev/disk/by-id/{name}");
    (verdict, Some(chosen.candidate.toml(&disk("CACHE"), &disk("VOLUME"))))
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
        let (plan, config) =
            candidate.plan(&question.cache, &question.backing, self.volume_bytes)?;
        let stage = Stage::simulated(&plan, false)
            .map_err(|error| AdviseError::Config(error.to_string()))?;
        let warmup = (count as f64 * question.warmup) as usize;
        let setup = Setup {
            pace: Pace::Closed { in_flight: question.in_flight },
            warmup: warmup as u64,
            verify: false,
            flush_interval: config.serving.flush_interval(),
            shed_most: None,
            interval: None,
        };
        let requests = &self.requests[..count];
        let result =
            run(&question.trace, requests.iter().copied().map(Ok), layout, &setup, stage, |_| ())?;
        Ok(Trial::new(candidate, question, result))
    }
}

impl Trial {
    fn new(candidate: &Candidate, question: &Question, result: ReplayResult) -> Self {
        let time = |count: u64, mean: Option<f64>| count as f64 * mean.unwrap_or_default();
        let total_us =
            time(result.reads, result.read_us_mean) + time(result.writes, result.write_us_mean);
        let endurance = result.endurance.as_ref();
        let gibibytes = candidate.cache_bytes as f64 / (1u64 << 30) as f64;
        Self {
            candidate: candidate.clone(),
            mean_us: total_us / (result.reads + result.writes).max(1) as f64,
            written_tb_per_year: endurance.map_or(0.0, |it| it.terabytes_per_year),
            writes_per_day: endurance.map_or(0.0, |it| it.drive_writes_per_day),
            price: question.price.map(|price| price * gibibytes),
            result,
        }
    }
}

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

/// Ratio to the best mean latency up to which a smaller cache is preferred.
const CLOSE: f64 = 1.05;

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
        let first: Vec<Candidate> = sizes
            .iter()
            .flat_map(|&size| {
                let default = Candidate::default_of(size);
                self.question.writes.iter().map(move |write| with_write(&default, write))
            })
            .collect();
        let ranked = self.round(&first, coarse)?;
        let size = smallest_close(&ranked).ok_or_else(|| self.impossible(&first[0], coarse))?;
        let blocks = self.question.writes.iter().flat_map(|write| {
            BLOCK_SIZES.iter().map(move |blocks| Candidate {
                block_sizes: (*blocks).to_owned(),
                ..with_write(&Candidate::default_of(size), write)
            })
        });
        let ranked = self.round(&blocks.collect::<Vec<_>>(), coarse)?;
        let safest = ranked.iter().find(|trial| !keeps_writes(trial)).cloned();
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
        let finalists = self.round(&last, all)?;
        let size = smallest_close(&finalists).unwrap_or(size);
        let best = finalists.iter().find(|trial| trial.candidate.cache_bytes == size);
        let best = best.expect("a size comes from a trial").clone();
        let mut reference = |candidate: Candidate| -> Result<Trial, AdviseError> {
            let found = self.round(std::slice::from_ref(&candidate), all)?.pop();
            found.ok_or_else(|| self.impossible(&candidate, all))
        };
        let default = reference(Candidate::default_of(size))?;
        let bare = reference(Candidate::bare(size))?;
        // Equal settings are the defaults, and nothing is gained by others within noise.
        let best = if default.mean_us <= best.mean_us { default.clone() } else { best };
        let without_write_back = match safest.filter(|_| keeps_writes(&best)) {
            Some(safe) => self.safest(&safe, &best, &default, all)?,
            None => None,
        };
        let (verdict, toml) = verdict(self.question, &best, &default, &bare);
        Ok(Advice {
            trace: self.question.trace.clone(),
            requests: all as u64,
            coarse_requests: coarse as u64,
            footprint_bytes: self.workload.info().footprint_bytes,
            footprint_in_cache_bytes: self.workload.footprint_in_cache_bytes(),
            warnings: self.warnings(&best),
            verdict,
            toml,
            without_write_back,
            best,
            default,
            bare,
            finalists,
            trials: self.known.len(),
        })
    }

    /// Replays the candidate `safe`, which has no write-back, with its own eviction policy and with
    /// that of `best`. Returns the fastest of both and of the defaults, if these have no
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
        trials.extend((!keeps_writes(default)).then(|| default.clone()));
        Ok(trials.into_iter().min_by(|a, b| a.mean_us.total_cmp(&b.mean_us)))
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
            warnings.push("No block is touched twice: nothing that is cached is used.".to_owned());
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

    /// Replays candidates without a known trial. Returns the trials of all possible candidates,
    /// best first.
    fn round(&mut self, candidates: &[Candidate], count: usize) -> Result<Vec<Trial>, AdviseError> {
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
        let trials = candidates.iter().filter_map(|candidate| {
            self.known.get(&(candidate.clone(), count)).and_then(Clone::clone)
        });
        let mut trials: Vec<Trial> = trials.collect();
        trials.sort_by(|a, b| a.mean_us.total_cmp(&b.mean_us));
        trials.dedup_by(|a, b| a.candidate == b.candidate);
        Ok(trials)
    }
}

/// Returns whether the cache of a trial may hold dirty data.
fn keeps_writes(trial: &Trial) -> bool {
    trial.candidate.write.parse::<WriteMode>().is_ok_and(WriteMode::keeps_writes)
}

/// Returns the smallest cache size with a mean latency within [`CLOSE`] of the best.
fn smallest_close(ranked: &[Trial]) -> Option<u64> {
    let best = ranked.first()?.mean_us;
    let close = ranked.iter().filter(|trial| trial.mean_us <= best * CLOSE);
    close.map(|trial| trial.candidate.cache_bytes).min()
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
mod candidate_tests {
    use super::*;

    #[test]
    fn a_floe_toml_has_what_differs_and_the_server_reads_it() {
        let mut candidate = Candidate::default_of(1 << 30);
        let text = candidate.toml("file:/dev/fast", "file:/dev/slow");
        assert!(!text.contains("evict") && !text.contains("write"), "{text}");
        candidate.block_sizes = "4KiB,64KiB".to_owned();
        candidate.evict = "s3-fifo:small=0.2".to_owned();
        candidate.write = "back".to_owned();
        candidate.admit = "second-access".to_owned();
        let text = candidate.toml("file:/dev/fast", "file:/dev/slow");
        let config = ServerConfig::from_text(&text).unwrap();
        let tier = config.first.config(Memory::None, 0);
        assert_eq!(tier.sizes.to_string(), candidate.block_sizes);
        assert_eq!(tier.evict.to_string(), candidate.evict);
        assert_eq!(tier.mode.to_string(), candidate.write);
        assert_eq!(tier.gate.admission.to_string(), candidate.admit);
        assert_eq!(tier.cache_bytes, 1 << 30);
    }

    #[test]
    fn defaults_are_those_of_the_server() {
        let candidate = Candidate::default_of(1 << 30);
        let (plan, config) = candidate.plan("nvme", "hdd", 1 << 30).unwrap();
        let tier = &plan.tiers[0].config;
        assert!(tier.adapts_fetches && candidate.block_sizes == AUTOMATIC);
        assert_eq!(tier.evict.to_string(), candidate.evict);
        assert_eq!(tier.mode.to_string(), candidate.write);
        assert_eq!(tier.gate.admission.to_string(), candidate.admit);
        assert_eq!(config.volume.len(), 1);
    }
}
