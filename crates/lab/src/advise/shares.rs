//! Proposes shares of one cache for several volumes, each with a trace.
//!
//! For each volume an [`LruCurve`] gives the share of touches that miss in a cache of any size: a
//! guaranteed part is kept in LRU order, whatever the policy. A miss costs as much of the time that
//! the volume's requests take without a cache as it has of the touches. [`divide`] chooses
//! guaranteed parts with the least sum of these costs, of those with which no volume misses more
//! than with an even split. They are replayed by each [`ShareRule`], beside an even split and a
//! cache without shares, and the best is proposed.

use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use floe_block::{BlockSizes, MOST_VOLUMES, SECTOR_BYTES, WriteMode, format_size};
use floe_server::config::ServerConfig;
use floe_trace::{Kind, LruCurve, Op, Request, sample_hash};
use serde::Serialize;

use super::{AdviseError, Progress, Workload};
use crate::replay::{
    Fit, Layout, Pace, Plan, ReplayResult, Setup, Stage, Survey, VolumeOutcome, run,
};
use crate::report::Unit;

/// Media, size and load of the cache that volumes are to share.
#[derive(Debug, Clone)]
pub struct ShareQuestion {
    /// Medium of each volume.
    pub backing: String,
    /// Medium of the cache.
    pub cache: String,
    /// Size of the cache in bytes.
    pub cache_bytes: u64,
    /// Write mode of the cache.
    pub write: WriteMode,
    /// Number of requests of all volumes in flight during a replay.
    pub in_flight: usize,
    /// Share of the requests that warm the cache and are not counted.
    pub warmup: f64,
}

/// A volume that shares the cache.
#[derive(Debug)]
pub struct SharingVolume {
    /// Name of the volume.
    pub name: String,
    /// Name of its trace.
    pub trace: String,
    /// The requests of the trace. Several volumes of a trace are laid end to end.
    pub workload: Workload,
}

/// The proposed share of a volume.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ShareProposal {
    /// Name of the volume.
    pub volume: String,
    /// Name of its trace.
    pub trace: String,
    /// Number of requests in the trace.
    pub requests: u64,
    /// Bytes that the trace reads and writes, in blocks of 4 KiB.
    pub footprint_bytes: u64,
    /// The setting `cache-guaranteed`; `None` for nothing.
    pub guaranteed: Option<String>,
    /// The setting `cache-most`; `None` for all of the cache.
    pub most: Option<String>,
    /// Share of touches that miss in an LRU cache of an even part.
    pub even_miss_ratio: f64,
    /// Share of touches that miss in an LRU cache of the guaranteed part; `None` without one.
    pub miss_ratio: Option<f64>,
    /// Seconds that the counted requests for which misses matter take without a cache.
    pub bare_seconds: f64,
}

/// The replay of one way to share the cache.
#[derive(Debug, Clone, Serialize)]
pub struct Arrangement {
    /// Name: `no shares`, `even split` or `proposed`.
    pub arrangement: &'static str,
    /// All measurements of the replay.
    pub result: ReplayResult,
}

/// Shares for the volumes of one cache, and the replays that check them.
#[derive(Debug, Clone, Serialize)]
pub struct ShareAdvice {
    /// Size of the cache in bytes.
    pub cache_bytes: u64,
    /// Write mode of the cache.
    pub write: String,
    /// Number of requests of all traces.
    pub requests: u64,
    /// Number of requests at the start that were not counted.
    pub warmup_requests: u64,
    /// The shares, in the order of the traces.
    pub volumes: Vec<ShareProposal>,
    /// The result of the replays in a few sentences.
    pub verdict: String,
    /// Names of the volumes whose mean time in the replay is over 5 % longer than with an even
    /// split.
    pub slower_than_even: Vec<String>,
    /// The rule by which the proposed shares were made.
    pub rule: ShareRule,
    /// Reasons to doubt the proposal, a sentence each.
    pub warnings: Vec<String>,
    /// Replays without shares, with an even split, and with the proposed shares.
    pub arrangements: Vec<Arrangement>,
    /// The proposed floe.toml.
    pub toml: String,
    /// The commands that set the shares while a server runs.
    pub commands: Vec<String>,
}

/// Smallest number of units into which the cache is divided.
const LEAST_UNITS: usize = 1000;

/// Share of a volume's touches that is worth a larger part. Fewer misses are no difference.
const LEAST_GAIN: f64 = 0.001;

/// Smallest largest part in percent of the cache, and in bytes: below it a volume would lose what
/// is read ahead for it.
const LEAST_MOST: f64 = 1.0;
const LEAST_MOST_BYTES: u64 = 4 << 20;

/// Largest part in percent from which on it is left out.
const NEARLY_ALL: f64 = 90.0;

/// Factor by which a volume may be slower than with an even split.
const SLOWER: f64 = 1.05;

/// Factor by which a volume that needs a guaranteed part is slower without shares than with an even
/// split.
const NEEDED: f64 = 1.01;

/// Number of counted requests of a volume below which a warning is given.
const FEW_REQUESTS: u64 = 1000;

/// Proposes shares of a cache for volumes, and replays them.
///
/// # Errors
/// When a trace has nothing to cache or does not fit a volume, a cache of that size cannot be made,
/// or `progress` returns false.
///
/// # Panics
/// With fewer than two volumes, or more than a cache can have.
pub fn advise_shares(
    question: &ShareQuestion,
    volumes: &[SharingVolume],
    progress: Progress<'_>,
) -> Result<ShareAdvice, AdviseError> {
    assert!((2..=MOST_VOLUMES).contains(&volumes.len()), "a cache is shared by several volumes");
    if let Some(untouched) = volumes.iter().find(|it| it.workload.info().touches == 0) {
        return Err(AdviseError::UntouchedVolume(untouched.trace.clone()));
    }
    let trial = Trial::new(question, volumes)?;
    let replayed = trial.replay_all(&trial.first_round(), progress)?;
    let [bare, no_shares, even] = <[ReplayResult; 3]>::try_from(replayed).expect("as many");

    let costs: Vec<Costs> = volumes
        .iter()
        .zip(&bare.volumes)
        .map(|(volume, bare)| {
            let time = |count: u64, us: Option<f64>| count as f64 * us.unwrap_or(0.0) / 1e6;
            let writes = time(bare.writes, bare.write_us_mean);
            let counted_writes = if question.write.keeps_writes() { writes } else { 0.0 };
            let seconds = time(bare.reads, bare.read_us_mean) + counted_writes;
            Costs::new(question, &volume.workload, seconds, trial.units)
        })
        .collect();
    let even_units = trial.units / volumes.len();
    let of_units: Vec<&[f64]> = costs.iter().map(|cost| &cost.seconds[..]).collect();
    let parts = divide(&of_units, even_units, LEAST_GAIN);
    let shares = |rule: ShareRule| -> Vec<Share> {
        let each = costs.iter().zip(&parts).zip(no_shares.volumes.iter().zip(&even.volumes));
        each.map(|((cost, &units), (none, even))| match rule {
            ShareRule::Needed if is_slower(none, even, NEEDED) => {
                let least = least_units(&cost.seconds, even_units, LEAST_GAIN);
                cost.share(question, least, even_units, rule)
            }
            ShareRule::Needed => Share::default(),
            _ => cost.share(question, units, even_units, rule),
        })
        .collect()
    };
    let settings_of =
        |shares: &[Share]| -> Vec<String> { shares.iter().map(Share::settings).collect() };
    let cases = ShareRule::ALL.map(|rule| (question.write, settings_of(&shares(rule))));
    let tried = trial.replay_all(&cases, progress)?.into_iter().zip(ShareRule::ALL);
    let slower = |result: &ReplayResult| -> Vec<String> {
        let volumes = result.volumes.iter().zip(&even.volumes);
        let slower = volumes.filter(|(it, even)| is_slower(it, even, SLOWER));
        slower.map(|(it, _)| it.volume.clone()).collect()
    };
    let tried = tried.map(|(result, rule)| (slower(&result), result, rule));
    let best = tried.min_by(|(slower, result, _), (other_slower, other, _)| {
        let order = slower.len().cmp(&other_slower.len());
        order.then(mean_us(result).total_cmp(&mean_us(other)))
    });
    let (slower_than_even, proposed, rule) = best.expect("there are rules");
    let shares = shares(rule);
    let settings = settings_of(&shares);

    let proposal = |(at, volume): (usize, &SharingVolume)| ShareProposal {
        volume: volume.name.clone(),
        trace: volume.trace.clone(),
        requests: volume.workload.len() as u64,
        footprint_bytes: volume.workload.info().footprint_bytes,
        guaranteed: shares[at].guaranteed.clone(),
        most: shares[at].most.clone(),
        even_miss_ratio: costs[at].miss_ratios[even_units],
        miss_ratio: (shares[at].units > 0).then(|| costs[at].miss_ratios[shares[at].units]),
        bare_seconds: costs[at].seconds[0],
    };
    let few = proposed.volumes.iter().filter(|it| it.reads + it.writes < FEW_REQUESTS);
    let warnings = few.map(|it| {
        let counted = it.reads + it.writes;
        format!("{counted} requests of {} count, which is too few to decide by.", it.volume)
    });
    let warnings = warnings.collect();
    let verdict = verdict(&no_shares, &even, &proposed, &slower_than_even);
    let named = |arrangement, result| Arrangement { arrangement, result };
    Ok(ShareAdvice {
        cache_bytes: question.cache_bytes,
        write: question.write.to_string(),
        requests: trial.requests.len() as u64,
        warmup_requests: trial.warmup(),
        volumes: volumes.iter().enumerate().map(proposal).collect(),
        verdict,
        slower_than_even,
        rule,
        warnings,
        toml: recommended(question, volumes, &settings),
        commands: volumes.iter().zip(&shares).filter_map(|(it, share)| share.command(it)).collect(),
        arrangements: vec![
            named("no shares", no_shares),
            named("even split", even),
            named("proposed", proposed),
        ],
    })
}

fn mean_us(result: &ReplayResult) -> f64 {
    result.us_mean.unwrap_or(0.0)
}

/// Returns whether a volume's mean time is longer than with an even split, by more than a factor.
fn is_slower(it: &VolumeOutcome, even: &VolumeOutcome, factor: f64) -> bool {
    let [us, even_us] = [it.us_mean, even.us_mean].map(Option::unwrap_or_default);
    us > factor * even_us
}

/// Sums up what the replays say about the proposal.
fn verdict(
    none: &ReplayResult,
    even: &ReplayResult,
    proposed: &ReplayResult,
    slower: &[String],
) -> String {
    let mean = |result| Unit::Microseconds.value(mean_us(result));
    let mut text = format!(
        "Replayed with the proposed shares a request takes {} on average, with an even split {}, \
         and without shares {}.",
        mean(proposed),
        mean(even),
        mean(none)
    );
    match slower {
        [] => text += " No volume is over 5 % slower than with an even split.",
        slower => {
            let names = slower.join(", ");
            write!(text, " Over 5 % slower than with an even split: {names}.").expect("it grows");
        }
    }
    if mean_us(none) * SLOWER < mean_us(proposed) {
        text += " Shares cost speed here: they are worth it only to protect a volume from others.";
    } else if mean_us(even) < mean_us(proposed) {
        text += " An even split is faster in all: the replay does not confirm the proposal.";
    }
    text
}

/// Returns the floe.toml to recommend.
fn recommended(question: &ShareQuestion, volumes: &[SharingVolume], settings: &[String]) -> String {
    let backing = |volume: &SharingVolume| format!("file:/dev/disk/by-id/{}", volume.name);
    let backings = volumes.iter().map(backing);
    let names = volumes.iter().map(|volume| &*volume.name);
    let cache = "file:/dev/disk/by-id/CACHE";
    toml(question, question.write, cache, names.zip(backings).zip(settings))
}

/// Returns a floe.toml with volumes: name, backing device and the settings of the share.
fn toml<'a>(
    question: &ShareQuestion,
    write: WriteMode,
    cache: &str,
    volumes: impl Iterator<Item = ((&'a str, String), &'a String)>,
) -> String {
    let size = format_size(question.cache_bytes);
    let mut text = format!("cache = \"{cache}\"\ncache-size = \"{size}\"\n");
    if write != WriteMode::default() {
        writeln!(text, "write = \"{write}\"").expect("text takes all");
    }
    for ((name, backing), share) in volumes {
        write!(text, "\n[[volume]]\nname = \"{name}\"\nbacking = \"{backing}\"\n{share}")
            .expect("text takes all");
    }
    text
}

/// Rules by which shares are made of the division. Replays decide among them: what is shared
/// follows a changing load, and a cache with several block sizes finds less room where nearly all
/// is guaranteed and nothing is bounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShareRule {
    /// Only volumes that are slower without shares than with an even split have a guaranteed part:
    /// the smallest with which they miss no more than with an even split.
    Needed,
    /// A volume uses at most the part beyond which it saves next to nothing.
    ByUse,
    /// A tenth of each guaranteed part is lent, and a volume uses at most a tenth more.
    TenthLent,
    /// A volume uses at most what is guaranteed to it.
    Divided,
}

impl ShareRule {
    const ALL: [Self; 4] = [Self::Needed, Self::ByUse, Self::TenthLent, Self::Divided];
}

/// The settings of a volume's share.
#[derive(Debug, Clone, Default, PartialEq)]
struct Share {
    /// Units of the cache that are guaranteed, rounded down.
    units: usize,
    guaranteed: Option<String>,
    most: Option<String>,
}

impl Share {
    /// Returns the lines of floe.toml.
    fn settings(&self) -> String {
        let line = |name, value: &Option<String>| {
            value.as_ref().map_or(String::new(), |value| format!("{name} = \"{value}\"\n"))
        };
        line("cache-guaranteed", &self.guaranteed) + &line("cache-most", &self.most)
    }

    /// Returns the command that sets the share; `None` without a share.
    fn command(&self, volume: &SharingVolume) -> Option<String> {
        let option = |name, value: &Option<String>| {
            value.as_ref().map_or(String::new(), |value| format!(" --{name} {value}"))
        };
        let options = option("guaranteed", &self.guaranteed) + &option("most", &self.most);
        (!options.is_empty()).then(|| format!("floe volume share {}{options}", volume.name))
    }
}

/// Misses of a volume and their cost, by the units of the cache that it has.
#[derive(Debug)]
struct Costs {
    miss_ratios: Vec<f64>,
    seconds: Vec<f64>,
}

impl Costs {
    /// Measures the misses of a workload whose counted requests take `bare_seconds` without a
    /// cache, for parts of 0 to all `units` of the cache.
    fn new(question: &ShareQuestion, workload: &Workload, bare_seconds: f64, units: usize) -> Self {
        let (curve, block_bytes) = curve(question, workload);
        let at = |unit: usize| {
            let bytes = u128::from(question.cache_bytes) * unit as u128 / units as u128;
            curve.at(bytes as u64 / block_bytes).miss_ratio
        };
        let miss_ratios: Vec<f64> = (0..=units).map(at).collect();
        let seconds = miss_ratios.iter().map(|ratio| ratio * bare_seconds).collect();
        Self { miss_ratios, seconds }
    }

    /// Returns the smallest part beyond which a volume saves next to no misses, in units.
    fn useful(&self) -> usize {
        let least = self.miss_ratios.last().copied().unwrap_or(0.0) + LEAST_GAIN;
        self.miss_ratios.iter().position(|ratio| *ratio <= least).unwrap_or(0)
    }

    /// Returns the share of a volume with so many guaranteed units.
    fn share(
        &self,
        question: &ShareQuestion,
        guaranteed: usize,
        even: usize,
        rule: ShareRule,
    ) -> Share {
        let all_units = self.seconds.len() - 1;
        let percent = |units: usize| 100.0 * units as f64 / all_units as f64;
        // With write-back a volume at its largest part waits until its own blocks are clean.
        let least_units = if question.write.keeps_writes() { even } else { 0 };
        // Rounded down, so that the sum is no more than the cache.
        let hundredths = |percent: f64| (percent * 100.0 + 1e-6).floor() / 100.0;
        let guaranteed_percent = percent(guaranteed);
        let (part, most) = match rule {
            ShareRule::Needed => (guaranteed_percent, 100.0),
            ShareRule::ByUse => {
                let most = self.useful().max(guaranteed).max(least_units);
                (guaranteed_percent, percent(most).ceil())
            }
            ShareRule::TenthLent => (0.9 * guaranteed_percent, (1.1 * guaranteed_percent).ceil()),
            ShareRule::Divided => (guaranteed_percent, hundredths(guaranteed_percent)),
        };
        let least = 100.0 * LEAST_MOST_BYTES as f64 / question.cache_bytes as f64;
        let (part, most) = (hundredths(part), most.max(LEAST_MOST).max(least.ceil()));
        Share {
            units: (part / 100.0 * all_units as f64).round() as usize,
            guaranteed: (part > 0.0).then(|| format!("{part}%")),
            most: (most < NEARLY_ALL).then(|| format!("{most}%")),
        }
    }
}

/// Returns the miss-ratio curve of a workload, and the size of its blocks in bytes: the smallest
/// that the cache has by default, because a miss fetches whole blocks.
fn curve(question: &ShareQuestion, workload: &Workload) -> (LruCurve, u64) {
    let block_bytes = BlockSizes::automatic(question.cache_bytes).smallest() * SECTOR_BYTES;
    let mut curve = LruCurve::new(Kind::Block);
    let warmup = (workload.len() as f64 * question.warmup) as usize;
    for (at, request) in workload.requests.iter().enumerate() {
        let is_cached = match request.op {
            Op::Read => true,
            Op::Write => question.write != WriteMode::Around,
            Op::Delete => false,
        };
        if !is_cached || request.bytes == 0 {
            continue;
        }
        let counts = at >= warmup && (request.op == Op::Read || question.write.keeps_writes());
        let last = (request.key + request.bytes - 1) / block_bytes;
        let blocks = request.key / block_bytes..=last;
        if counts {
            curve.add_touches(last - blocks.start() + 1);
        }
        blocks.for_each(|block| curve.add_hashed(sample_hash(request.volume, block), counts));
    }
    (curve, block_bytes)
}

/// Returns the fewest units with which a volume costs no more than with `even` units, but for
/// `tolerance` of its cost without a cache.
fn least_units(cost: &[f64], even: usize, tolerance: f64) -> usize {
    let bound = cost[even] + tolerance * cost[0];
    cost.iter().position(|cost| *cost <= bound).unwrap_or(even)
}

/// Divides a cache among volumes. `costs` are what each costs with 0, 1, … units of the cache.
/// Returns the units of each, with the least sum of costs of all divisions with which no volume
/// costs more than with `even` units, by more than `tolerance` of its cost without a cache. Units
/// that save nothing are given to none.
///
/// Costs need not fall evenly: the search is exact (dynamic programming over volumes and units).
fn divide(costs: &[&[f64]], even: usize, tolerance: f64) -> Vec<usize> {
    let units = even * costs.len();
    // The least sum of the costs of the volumes so far, by the units that they have together at
    // most, and the units of the last of them.
    let mut best = vec![0.0; units + 1];
    let mut chosen: Vec<Vec<u32>> = Vec::new();
    let mut least_together = 0;
    for cost in costs {
        let least = least_units(cost, even, tolerance);
        let mut next = vec![f64::INFINITY; units + 1];
        let mut of_last = vec![0; units + 1];
        for together in least_together + least..=units {
            for own in least..=together - least_together {
                let sum = best[together - own] + cost[own];
                // Of equal divisions the first gives this volume least.
                if sum < next[together] {
                    (next[together], of_last[together]) = (sum, own as u32);
                }
            }
        }
        least_together += least;
        best = next;
        chosen.push(of_last);
    }
    let mut left = units;
    let mut parts: Vec<usize> = chosen
        .iter()
        .rev()
        .map(|of_last| {
            let own = of_last[left] as usize;
            left -= own;
            own
        })
        .collect();
    parts.reverse();
    parts
}

/// The merged requests of all volumes, and what a replay of them needs.
struct Trial<'a> {
    question: &'a ShareQuestion,
    volumes: &'a [SharingVolume],
    /// Units into which the cache is divided: as many for each volume.
    units: usize,
    requests: Vec<Request>,
    layout: Layout,
}

/// A write mode, and the settings of each volume's share.
type Case = (WriteMode, Vec<String>);

impl<'a> Trial<'a> {
    fn new(question: &'a ShareQuestion, volumes: &'a [SharingVolume]) -> Result<Self, AdviseError> {
        let requests = merged(volumes)?;
        let mut survey = Survey::of(requests.iter().copied().map(Ok)).expect("no request is wrong");
        // The first volume that asks is not the first of the plan.
        survey.volumes.sort_unstable();
        let sizes: Vec<u64> = volumes.iter().map(|it| it.workload.volume_bytes).collect();
        let layout = Layout::new(&survey, &sizes, Fit::default())?;
        let units = LEAST_UNITS.div_ceil(volumes.len()) * volumes.len();
        Ok(Self { question, volumes, units, requests, layout })
    }

    fn warmup(&self) -> u64 {
        (self.requests.len() as f64 * self.question.warmup) as u64
    }

    /// Returns the bare volumes, the cache without shares, and an even split.
    fn first_round(&self) -> [Case; 3] {
        let count = self.volumes.len();
        let percent = (10_000.0 / count as f64).floor() / 100.0;
        let part = Some(format!("{percent}%"));
        let even = Share { units: self.units / count, guaranteed: part.clone(), most: part };
        let none = vec![String::new(); count];
        let write = self.question.write;
        let even = vec![even.settings(); count];
        [(WriteMode::Pass, none.clone()), (write, none), (write, even)]
    }

    /// Replays several cases on all cores.
    fn replay_all(
        &self,
        cases: &[Case],
        progress: Progress<'_>,
    ) -> Result<Vec<ReplayResult>, AdviseError> {
        let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let results = Mutex::new(Vec::new());
        let work = || {
            // The counters are all that threads share besides the results, which are locked.
            loop {
                let at = next.fetch_add(1, Relaxed);
                let Some((write, settings)) = cases.get(at) else { return };
                let result = self.replay(*write, settings);
                results.lock().expect("no replay panics").push((at, result));
                if !progress(done.fetch_add(1, Relaxed) + 1, cases.len()) {
                    return;
                }
            }
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for _ in 0..threads.min(cases.len()) {
                scope.spawn(work);
            }
        });
        let mut results = results.into_inner().expect("no replay panics");
        if results.len() < cases.len() {
            return Err(AdviseError::Interrupted);
        }
        results.sort_unstable_by_key(|(at, _)| *at);
        results.into_iter().map(|(_, result)| result).collect()
    }

    /// Replays all requests with the settings of each volume's share.
    fn replay(&self, write: WriteMode, settings: &[String]) -> Result<ReplayResult, AdviseError> {
        let ShareQuestion { backing, cache, cache_bytes, in_flight, .. } = self.question;
        let cache = format!("memory:{},medium={cache}", format_size(*cache_bytes));
        let backing =
            |it: &SharingVolume| format!("memory:{},medium={backing}", it.workload.volume_bytes);
        let names = self.volumes.iter().map(|volume| &*volume.name);
        let volumes = names.zip(self.volumes.iter().map(backing)).zip(settings);
        let text = toml(self.question, write, &cache, volumes);
        let config = ServerConfig::from_text(&text).map_err(AdviseError::Config)?;
        let plan = Plan::of(&config, false).map_err(AdviseError::Config)?;
        let stage = Stage::simulated(&plan, false, Duration::ZERO)
            .map_err(|error| AdviseError::Config(error.to_string()))?;
        let setup = Setup {
            pace: Pace::Closed { in_flight: *in_flight },
            warmup: self.warmup(),
            verify: false,
            flush_interval: config.serving.flush_interval(),
            shed_most: None,
            interval: None,
        };
        let requests = self.requests.iter().copied().map(Ok);
        Ok(run("all", requests, &self.layout, &setup, stage, |_| ())?)
    }
}

/// Returns the requests of all volumes at once, numbered by the place of the volume. Each volume
/// asks at an even pace, and all end together.
fn merged(volumes: &[SharingVolume]) -> Result<Vec<Request>, AdviseError> {
    let mut all = Vec::with_capacity(volumes.iter().map(|volume| volume.workload.len()).sum());
    for (number, volume) in volumes.iter().enumerate() {
        let workload = &volume.workload;
        let layout = workload.layout()?;
        let count = workload.len() as f64;
        all.extend(workload.requests.iter().enumerate().map(|(at, request)| {
            let (_, key, bytes) = layout.place(request);
            let request = Request { key, bytes, volume: number as u32, time_ns: 0, op: request.op };
            ((at as f64 + 0.5) / count, request)
        }));
    }
    all.sort_by(|(a, one), (b, other)| a.total_cmp(b).then(one.volume.cmp(&other.volume)));
    Ok(all.into_iter().map(|(_, request)| request).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the least sum of all divisions that keep each volume as good as an even split.
    fn least(costs: &[Vec<f64>], even: usize, units: usize) -> f64 {
        let Some((first, rest)) = costs.split_first() else { return 0.0 };
        (0..=units)
            .filter(|own| first[*own] <= first[even])
            .map(|own| first[own] + least(rest, even, units - own))
            .fold(f64::INFINITY, f64::min)
    }

    proptest! {
        /// No other division is better, and none of the volumes is worse than with an even split.
        #[test]
        fn a_division_is_the_best_of_all(
            falls in proptest::collection::vec(proptest::collection::vec(0u32..9, 12), 1..5),
            even in 1usize..4,
        ) {
            let units = even * falls.len();
            let costs: Vec<Vec<f64>> = falls
                .iter()
                .map(|falls| {
                    let mut cost = 100.0;
                    let steps = falls.iter().cycle().take(units).map(|fall| {
                        cost -= f64::from(*fall);
                        cost
                    });
                    [100.0].into_iter().chain(steps).collect()
                })
                .collect();
            let slices: Vec<&[f64]> = costs.iter().map(|cost| &cost[..]).collect();
            let parts = divide(&slices, even, 0.0);
            prop_assert!(parts.iter().sum::<usize>() <= units);
            for (cost, part) in costs.iter().zip(&parts) {
                prop_assert!(cost[*part] <= cost[even]);
                // A unit less costs more, or it would not be given.
                prop_assert!(*part == 0 || cost[part - 1] > cost[*part]);
            }
            let sum: f64 = costs.iter().zip(&parts).map(|(cost, part)| cost[*part]).sum();
            prop_assert_eq!(sum, least(&costs, even, units));
        }
    }

    #[test]
    fn a_cliff_beyond_an_even_part_is_reached() {
        let flat = vec![1.0; 9];
        let cliff: Vec<f64> = (0..9).map(|units| if units < 7 { 50.0 } else { 2.0 }).collect();
        assert_eq!(divide(&[&flat, &cliff], 4, 0.0), [0, 7]);
        let early: Vec<f64> = (0..9).map(|units| if units < 2 { 10.0 } else { 1.0 }).collect();
        assert_eq!(divide(&[&early, &cliff], 4, 0.0), [2, 0], "the cliff does not fit any more");
    }

    #[test]
    fn a_share_is_rounded_within_the_cache_and_leaves_out_what_binds_nothing() {
        let of = |miss_ratios: &[f64]| Costs {
            miss_ratios: miss_ratios.to_vec(),
            seconds: miss_ratios.to_vec(),
        };
        let share = |costs: &Costs, units, write, rule| {
            let question = ShareQuestion {
                backing: "cloud".to_owned(),
                cache: "nvme".to_owned(),
                cache_bytes: 1 << 30,
                write,
                in_flight: 1,
                warmup: 0.0,
            };
            let Share { guaranteed, most, .. } = costs.share(&question, units, 2, rule);
            [guaranteed, most].map(Option::unwrap_or_default)
        };
        let useful = of(&[1.0, 0.9, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2]);
        let none = of(&[1.0; 8]);
        let all = of(&[1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3]);
        let (through, back) = (WriteMode::Through, WriteMode::Back);
        for (costs, units, write, rule, expected) in [
            (&useful, 1, through, ShareRule::Needed, ["14.28%", ""]),
            (&useful, 1, through, ShareRule::ByUse, ["14.28%", "29%"]),
            (&useful, 1, through, ShareRule::TenthLent, ["12.85%", "16%"]),
            (&useful, 1, through, ShareRule::Divided, ["14.28%", "14.28%"]),
            (&none, 0, through, ShareRule::ByUse, ["", "1%"]),
            (&none, 0, through, ShareRule::Divided, ["", "1%"]),
            (&none, 0, back, ShareRule::ByUse, ["", "29%"]),
            (&all, 7, through, ShareRule::ByUse, ["100%", ""]),
        ] {
            assert_eq!(share(costs, units, write, rule), expected, "{rule:?}");
        }
    }
}
