//! Judges trials by the goal of a search, and says what the settings that it chose gain and harm.
//!
//! Goals of latency want the shortest mean or percentile. A percentile is worth nothing if one kind
//! of request pays for the other: settings that make that of reads or of writes worse than on the
//! bare volume come last. The goals that save, `cost` and `endurance`, want the smallest cache or
//! the fewest bytes written to it, of the settings that keep most of the fastest ones' gain.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use floe_block::format_size;
use serde::{Serialize, Serializer};

use super::backing::Backing;
use super::trial::Trial;
use crate::replay::ReplayResult;
use crate::report::Unit;

/// Measure by which a search chooses between settings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Goal {
    /// Shortest mean latency of a request.
    #[default]
    Mean,
    /// Shortest 99th percentile of the latency of a request.
    P99,
    /// Shortest 99.9th percentile of the latency of a request.
    P999,
    /// Smallest cache with three quarters of the gain of the fastest settings.
    Cost,
    /// Fewest bytes written to a cache with three quarters of the gain of the fastest settings.
    Endurance,
}

impl Goal {
    /// All goals, by their names.
    const NAMED: [(&str, Self); 5] = [
        ("mean", Self::Mean),
        ("p99", Self::P99),
        ("p99.9", Self::P999),
        ("cost", Self::Cost),
        ("endurance", Self::Endurance),
    ];

    /// Returns the names of all goals, separated by commas.
    pub fn names() -> String {
        Self::NAMED.map(|(name, _)| name).join(", ")
    }

    /// Returns whether the goal is to save something, beside the fastest settings.
    pub(super) fn saves(self) -> bool {
        matches!(self, Self::Cost | Self::Endurance)
    }

    /// Returns the percentile that the goal is about; `None` for other goals.
    fn percentile(self) -> Option<Percentile> {
        PERCENTILES.into_iter().find(|percentile| percentile.goal == Some(self))
    }

    /// Returns the latency of a trial, in microseconds, that the goal is about.
    fn latency_us(self, trial: &Trial) -> f64 {
        match self {
            Self::P99 => trial.p99_us,
            Self::P999 => trial.p999_us,
            Self::Mean | Self::Cost | Self::Endurance => trial.mean_us,
        }
    }
}

impl FromStr for Goal {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::NAMED.into_iter().find(|(name, _)| *name == text);
        let refused = || format!("there is no goal `{text}`; there are {}", Self::names());
        found.map(|(_, goal)| goal).ok_or_else(refused)
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = Self::NAMED.into_iter().find(|(_, goal)| goal == self);
        f.write_str(named.expect("every goal has a name").0)
    }
}

impl Serialize for Goal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A percentile that is compared with the bare volume's; without a share it is the mean.
#[derive(Clone, Copy)]
struct Percentile {
    name: &'static str,
    share: Option<f64>,
    /// The goal that is about it.
    goal: Option<Goal>,
}

/// The latencies of each kind of request that are compared with the bare volume's.
const PERCENTILES: [Percentile; 3] = [
    Percentile { name: "mean", share: None, goal: None },
    Percentile { name: "p99", share: Some(0.99), goal: Some(Goal::P99) },
    Percentile { name: "p99.9", share: Some(0.999), goal: Some(Goal::P999) },
];

/// Smallest relative gain or loss that counts as a difference.
const MARGIN: f64 = 0.05;

/// Ratio to the best up to which a smaller cache, or the defaults, are preferred.
const CLOSE: f64 = 1.05;

/// Share of the gain of the fastest settings that the goals that save keep.
const KEPT_GAIN: f64 = 0.75;

/// Number of requests beyond a percentile from which it is compared: fewer are chance.
const BEYOND: f64 = 10.0;

/// A latency that a cache makes worse than it is on the bare volume.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Harm {
    /// The latency: mean, p99 or p99.9, of reads or of writes.
    pub of: String,
    /// The latency with the cache, in microseconds.
    pub us: f64,
    /// The latency on the bare volume, in microseconds.
    pub bare_us: f64,
}

/// Returns what the cache of a trial makes worse than the bare volume, by more than 5 %.
pub fn harms(trial: &Trial, bare: &Trial) -> Vec<Harm> {
    PERCENTILES.iter().flat_map(|percentile| percentile.harms(trial, bare)).collect()
}

impl Percentile {
    /// Returns the kinds of requests that a trial makes worse than the bare volume by it.
    fn harms(self, trial: &Trial, bare: &Trial) -> impl Iterator<Item = Harm> {
        let (with, bare) = (&trial.result, &bare.result);
        let harm = move |(kind, it, bare): (&str, Option<f64>, Option<f64>)| {
            let (us, bare_us) = (it?, bare?);
            let of = format!("{} of {kind}", self.name);
            (us > bare_us * (1.0 + MARGIN)).then_some(Harm { of, us, bare_us })
        };
        let kinds = [
            ("reads", self.of_reads_us(with), self.of_reads_us(bare)),
            ("writes", self.of_writes_us(with), self.of_writes_us(bare)),
        ];
        kinds.into_iter().filter_map(harm)
    }

    /// Returns the latency of reads in microseconds; `None` where too few are beyond it.
    fn of_reads_us(self, result: &ReplayResult) -> Option<f64> {
        match self.share {
            Some(share) if self.is_known_of(result.reads) => {
                result.read_latencies.quantile_us(share)
            }
            Some(_) => None,
            None => result.read_us_mean,
        }
    }

    /// Returns the latency of writes in microseconds; `None` where too few are beyond it.
    fn of_writes_us(self, result: &ReplayResult) -> Option<f64> {
        match self.share {
            Some(share) if self.is_known_of(result.writes) => {
                result.write_latencies.quantile_us(share)
            }
            Some(_) => None,
            None => result.write_us_mean,
        }
    }

    fn is_known_of(self, requests: u64) -> bool {
        self.share.is_none_or(|share| (1.0 - share) * requests as f64 >= BEYOND - 1e-6)
    }
}

/// Orders trials by a goal.
#[derive(Debug, Clone, Copy)]
pub(super) struct Judge<'a> {
    goal: Goal,
    pub(super) bare: &'a Trial,
    /// Trial with the shortest mean latency of all with the same requests.
    pub(super) fastest: &'a Trial,
}

/// Rank of a trial: the smaller, the better.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
struct Score {
    /// True where the goal rules the settings out.
    is_unfit: bool,
    /// The goal's measure: microseconds or bytes.
    measure: f64,
    mean_us: f64,
}

impl<'a> Judge<'a> {
    /// Creates a judge for trials of the same requests. `fastest` has the shortest mean of them.
    pub(super) fn new(goal: Goal, bare: &'a Trial, fastest: &'a Trial) -> Self {
        Self { goal, bare, fastest }
    }

    fn score(&self, trial: &Trial) -> Score {
        let gain_us = |trial: &Trial| self.bare.mean_us - trial.mean_us;
        let keeps_gain = gain_us(trial) >= KEPT_GAIN * gain_us(self.fastest);
        let (is_unfit, measure) = match self.goal {
            Goal::Mean | Goal::P99 | Goal::P999 => {
                (self.harms_goal(trial), self.goal.latency_us(trial))
            }
            Goal::Cost => (!keeps_gain, trial.candidate.cache_bytes as f64),
            Goal::Endurance => (!keeps_gain, trial.result.cache_write_bytes as f64),
        };
        Score { is_unfit, measure, mean_us: trial.mean_us }
    }

    /// Returns whether a trial makes the goal's percentile of reads or of writes worse.
    fn harms_goal(&self, trial: &Trial) -> bool {
        let percentile = self.goal.percentile();
        percentile.is_some_and(|it| it.harms(trial, self.bare).next().is_some())
    }

    /// Compares two trials; the better one is less.
    pub(super) fn compare(&self, a: &Trial, b: &Trial) -> Ordering {
        let order = self.score(a).partial_cmp(&self.score(b));
        order.expect("latencies and bytes are numbers")
    }

    /// Returns whether the goal does not tell a trial from the best one.
    pub(super) fn is_close(&self, trial: &Trial, best: &Trial) -> bool {
        let (it, best) = (self.score(trial), self.score(best));
        let is_as_fast = !self.goal.saves() || it.mean_us <= best.mean_us * CLOSE;
        it.is_unfit == best.is_unfit && it.measure <= best.measure * CLOSE && is_as_fast
    }

    /// Returns the smallest cache size that is close to the best of these trials, the best first.
    pub(super) fn smallest_close(&self, ranked: &[Trial]) -> Option<u64> {
        let best = ranked.first()?;
        let close = ranked.iter().filter(|trial| self.is_close(trial, best));
        close.map(|trial| trial.candidate.cache_bytes).min()
    }

    /// Returns whether the settings of a trial are worth a cache.
    pub(super) fn pays(&self, trial: &Trial) -> bool {
        let gain = 1.0 - self.goal.latency_us(trial) / self.goal.latency_us(self.bare);
        gain >= MARGIN && !self.harms_goal(trial)
    }
}

/// Verdict of a search: the recommended settings, and what they do to requests.
#[derive(Debug, Clone, Serialize)]
pub struct Verdict {
    /// Goal of the search.
    pub goal: Goal,
    /// The recommendation in a few sentences.
    #[serde(rename = "verdict")]
    pub text: String,
    /// Latencies that the recommended settings make worse than the bare volume.
    pub worse: Vec<Harm>,
    /// The recommended floe.toml; `None` where no cache is worth having.
    pub toml: Option<String>,
}

impl Verdict {
    /// Judges the best settings beside the defaults. `medium` is that of the cache, and `backing`
    /// the volume.
    pub(super) fn new(
        judge: &Judge<'_>,
        medium: &str,
        backing: &Backing,
        best: &Trial,
        default: &Trial,
    ) -> Self {
        let goal = judge.goal;
        if !judge.pays(best) {
            let text = no_cache(judge, best);
            return Self { goal, text, worse: Vec::new(), toml: None };
        }
        let is_default = judge.is_close(default, best);
        let chosen = if is_default { default } else { best };
        let latency_us = |trial: &Trial| goal.latency_us(trial);
        let beside = match goal {
            _ if goal.saves() => saved(judge, chosen),
            _ if is_default => {
                let gain = 1.0 - latency_us(best) / latency_us(default);
                format!("the best settings gain {} more", percent(gain.max(0.0)))
            }
            _ if judge.harms_goal(default) => {
                "the defaults make that of reads or of writes worse".to_owned()
            }
            _ => {
                let gain = 1.0 - latency_us(best) / latency_us(default);
                let default = time(latency_us(default));
                format!("{} less than with the defaults ({default})", percent(gain))
            }
        };
        let (subject, manner) = match goal {
            Goal::P99 => ("99 % of the requests take", "at most"),
            Goal::P999 => ("99.9 % of the requests take", "at most"),
            _ => ("a request takes", "on average"),
        };
        let (us, bare) = (time(latency_us(chosen)), time(latency_us(judge.bare)));
        let us =
            if manner == "at most" { format!("at most {us}") } else { format!("{us} {manner}") };
        let worse = harms(chosen, judge.bare);
        let text = format!(
            "With {} of {medium}{} {subject} {us} instead of {bare} bare, {:.1} times as fast; \
             {beside}.{}{}",
            format_size(chosen.candidate.cache_bytes),
            if is_default { " and the defaults" } else { "" },
            latency_us(judge.bare) / latency_us(chosen),
            named(&worse),
            billed(chosen, judge.bare),
        );
        let cache = "file:/dev/disk/by-id/CACHE";
        let toml = Some(chosen.candidate.toml(cache, &backing.recommended()));
        Self { goal, text, worse, toml }
    }
}

fn time(us: f64) -> String {
    Unit::Microseconds.value(us)
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

/// Says why no cache is worth having, when `best` has the best settings.
fn no_cache(judge: &Judge<'_>, best: &Trial) -> String {
    let bare_us = judge.goal.latency_us(judge.bare);
    let subject = match judge.goal {
        Goal::P99 => "99 % of the requests take at most",
        Goal::P999 => "99.9 % of the requests take at most",
        _ => "requests take",
    };
    let gain = percent((1.0 - judge.goal.latency_us(best) / bare_us).max(0.0));
    let bare = time(bare_us);
    if judge.harms_goal(best) {
        return format!(
            "No cache pays: {subject} {bare} on the bare volume, and every cache that was tried \
             makes the {} of reads or of writes worse.",
            judge.goal
        );
    }
    format!("No cache pays: {subject} {bare} on the bare volume, and the best cache gains {gain}.")
}

/// Says what settings save beside the fastest ones.
fn saved(judge: &Judge<'_>, chosen: &Trial) -> String {
    let gain_us = |trial: &Trial| judge.bare.mean_us - trial.mean_us;
    let fastest = judge.fastest;
    let share = percent(gain_us(chosen) / gain_us(fastest));
    let written = |trial: &Trial| Unit::Bytes.value(trial.result.cache_write_bytes as f64);
    let (figure, of_fastest) = match judge.goal {
        Goal::Endurance => (format!(" and writes {} to the cache", written(chosen)), {
            format!(", {} written", written(fastest))
        }),
        _ => (String::new(), String::new()),
    };
    format!(
        "that keeps {share} of the gain of the fastest settings{figure} ({}: {}{of_fastest})",
        fastest.candidate,
        time(fastest.mean_us)
    )
}

/// Says what the requests to a bucket cost, in a sentence of its own with a space before it.
fn billed(chosen: &Trial, bare: &Trial) -> String {
    let (Some(with), Some(bare)) = (chosen.bucket, bare.bucket) else { return String::new() };
    let (dollars, bare, of) = match (with.dollars_per_month, bare.dollars_per_month) {
        (Some(dollars), Some(bare)) => (dollars, bare, "a month"),
        _ => (
            with.dollars_per_million_requests,
            bare.dollars_per_million_requests,
            "for a million requests of the trace",
        ),
    };
    format!(" Requests to the bucket cost ${dollars:.2} {of} instead of ${bare:.2} bare.")
}

/// Names the latencies that are worse, in a sentence of its own with a space before it.
fn named(worse: &[Harm]) -> String {
    if worse.is_empty() {
        return String::new();
    }
    let each = worse.iter().map(|harm| {
        format!("the {} ({} instead of {})", harm.of, time(harm.us), time(harm.bare_us))
    });
    format!(" It makes worse: {}.", each.collect::<Vec<_>>().join(", "))
}
