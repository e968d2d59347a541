//! The learner: it measures hits and latencies at every frozen share from 0 to 100 %, and chooses
//! the best share by equation 1 of FrozenHot.
//!
//! FrozenHot learns with a marker that sinks through a list, and with a threshold of frequency for
//! LFU. Here the entries that the policy ranks first really are frozen, step by step, without an
//! index. Frozen entries keep their places and are not promoted; others are promoted, inserted and
//! evicted as always. Freezing this share would have the same effect, for any policy that can rank
//! its slots. Orders of recency rank those promoted since the last step first, as the marker does;
//! orders of frequency rank the most frequent first. Only the effect of the index is missing:
//! [`Worth`] says by how much it makes frozen hits faster and others slower.
//!
//! Equation 1 charges each kind of hit its own latency. But colder entries are slower wherever they
//! are found, and a larger frozen part has colder ones. So the latency of *all* hits at a stop is
//! taken as measured, and the index is added: `L = H·S − H_FC·saving + (1 − H_FC)·failing + (1 −
//! H)·L_miss`.
//!
//! Each stop takes a number of lookups or a time, whichever ends first, so that neither a cache
//! without misses nor an idle one keeps the learner waiting.

use std::time::Duration;

use floe_policy::trial::{Difference, Sums, sort};

use crate::observe::{Action, Observations, WindowCounts, Windows, share_variance, typical};
use crate::trials::Worth;

/// Distance between two stops, as a share of the entries.
const STEP: f64 = 0.02;
/// Number of stops between 0 and 100 %, both excluded.
const STOPS: usize = 49;
/// Number of steps taken at once where lookups are so rare that a stop ends by its time. Otherwise
/// learning would take long enough to do harm.
const STRIDE_SLOW: usize = 3;
/// Number of lookups at a stop, as a share of the entries.
const LOOKUPS_SHARE: f64 = 0.1;
const LOOKUPS_MIN: u64 = 10_000;
const LOOKUPS_MAX: u64 = 100_000;
/// Longest time that a stop takes.
const STOP_TIME: Duration = Duration::from_millis(60);
/// Minimum number of lookups of a useful stop. A stop is prolonged to get them, but not without
/// limit.
const LOOKUPS_FEW: u64 = 200;
const IDLE_TIME: Duration = Duration::from_secs(1);
/// Largest distance of neighbouring stops that are evaluated together, as a share of the entries.
const NEIGHBOURS: f64 = 5.5 * STEP;
/// Number of stops in a row that end learning early: at each, misses alone take longer than all
/// requests did without freezing, by a margin.
const HOPELESS_STOPS: usize = 3;
const HOPELESS_MARGIN: f64 = 0.02;
const HOPELESS_FROM: f64 = 0.2;
/// Probability that equal prices of misses are taken for different.
const RISK: f64 = 0.01;
/// Number of standard errors that are subtracted from a predicted gain.
const CAUTION: f64 = 2.0;

#[derive(Debug, Clone)]
struct Stop {
    ratio: f64,
    counts: WindowCounts,
}

/// The next step of the learner.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Lesson {
    /// Carry out this action, and step the learner when it is completed.
    Do(Action),
    /// Step the learner at a time or after a number of lookups, whichever comes first.
    Wait {
        /// Time of the next step.
        until: Duration,
        /// Lookups until the next step.
        lookups: u64,
    },
    /// Learning is complete.
    Over,
    /// Learning failed, as there are no requests to learn from.
    Idle,
}

/// A share of the entries, and the expected effect of freezing it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Choice {
    pub(crate) ratio: f64,
    /// Latency of a request without freezing, and the expected gain by it, in nanoseconds.
    pub(crate) expected: Difference,
    /// Expected share of hits that are on frozen entries.
    pub(crate) frozen_share: f64,
    pub(crate) hit_ratio: f64,
}

impl Choice {
    /// Returns the lower bound of the gain: the expected gain minus its error.
    fn surely(&self) -> f64 {
        self.expected.gain - self.expected.error
    }
}

/// Learner that raises the frozen share from 0 to 100 %.
#[derive(Debug, Clone)]
pub(crate) struct Learner {
    stops: Vec<Stop>,
    /// The share of the entries that is frozen now, and since when; `None` while it is being
    /// extended.
    here: Option<(f64, Duration)>,
    asked: usize,
    stride: usize,
    counts: WindowCounts,
}

impl Learner {
    pub(crate) fn new() -> Self {
        Self {
            stops: Vec::with_capacity(STOPS),
            here: None,
            asked: 0,
            stride: 1,
            counts: WindowCounts::default(),
        }
    }

    /// Returns the first action.
    pub(crate) fn begin(&mut self) -> Action {
        self.asked = (self.asked + self.stride).min(STOPS);
        self.here = None;
        self.counts = WindowCounts::default();
        Action::Extend { to: self.asked as f64 * STEP }
    }

    /// Returns the share that is being measured or requested.
    pub(crate) fn ratio(&self) -> f64 {
        self.asked as f64 * STEP
    }

    /// Returns the share that was frozen at the last stop.
    pub(crate) fn frozen(&self) -> f64 {
        self.stops.last().map_or(0.0, |stop| stop.ratio)
    }

    /// Returns true while an extension is under way.
    pub(crate) fn is_waiting(&self) -> bool {
        self.here.is_none()
    }

    /// Records the completion of an extension.
    pub(crate) fn extended(&mut self, share: f64, now: Duration) {
        self.here = Some((share.clamp(0.0, 1.0), now));
        self.counts = WindowCounts::default();
    }

    /// Processes the observations since the last step.
    pub(crate) fn step(&mut self, seen: &Observations) -> Lesson {
        let Some((ratio, since)) = self.here else {
            return Lesson::Wait { until: seen.now + IDLE_TIME, lookups: u64::MAX };
        };
        self.counts.add(seen);
        let wanted = ((seen.entries as f64 * LOOKUPS_SHARE) as u64).clamp(LOOKUPS_MIN, LOOKUPS_MAX);
        let (age, lookups) = (seen.now.saturating_sub(since), self.counts.lookups());
        if lookups < wanted && age < STOP_TIME {
            return Lesson::Wait { until: since + STOP_TIME, lookups: wanted - lookups };
        }
        if lookups < LOOKUPS_FEW {
            let until = since + IDLE_TIME;
            return if seen.now >= until {
                Lesson::Idle
            } else {
                Lesson::Wait { until, lookups: LOOKUPS_FEW - lookups }
            };
        }
        self.stops.push(Stop { ratio, counts: self.counts });
        self.stride = if lookups < wanted { STRIDE_SLOW } else { 1 };
        if self.asked >= STOPS { Lesson::Over } else { Lesson::Do(self.begin()) }
    }

    /// Returns two mean latencies of a request in nanoseconds: with hits that take no time, and
    /// without freezing. Both use the counts as observed and the same price of a miss.
    fn at_best(&self, counts: &WindowCounts, baseline: &Windows) -> Option<(f64, f64)> {
        let before = baseline.total().hit_ratio()?;
        let counted = self.stops.iter().map(|stop| &stop.counts).chain(baseline.iter());
        let miss = typical(counted, |counts| counts.latencies.miss)?;
        let without = before * baseline.hit_ns().unwrap_or(0.0) + (1.0 - before) * miss;
        Some(((1.0 - counts.hit_ratio()?) * miss, without))
    }

    /// Returns true if freezing more can only do harm while it is measured. At the last stops, even
    /// hits without any latency would not have made up for the lost ones.
    pub(crate) fn is_hopeless(&self, baseline: &Windows) -> bool {
        let last = &self.stops[self.stops.len().saturating_sub(HOPELESS_STOPS)..];
        last.len() == HOPELESS_STOPS
            && last
                .iter()
                .all(|stop| stop.ratio >= HOPELESS_FROM && self.is_worse(&stop.counts, baseline))
    }

    /// Returns true if freezing all entries only does harm, by the windows in which all were
    /// frozen.
    pub(crate) fn is_hopeless_with(&self, all: &Windows, baseline: &Windows) -> bool {
        all.len() >= HOPELESS_STOPS && self.is_worse(&all.total(), baseline)
    }

    fn is_worse(&self, counts: &WindowCounts, baseline: &Windows) -> bool {
        let margin = 1.0 + HOPELESS_MARGIN;
        self.at_best(counts, baseline).is_some_and(|(best, without)| best > margin * without)
    }

    /// Returns true if any measured share could gain this much, as a share of the baseline, if hits
    /// took no time at all.
    pub(crate) fn may_gain(&self, baseline: &Windows, margin: f64) -> bool {
        self.stops.iter().any(|stop| {
            self.at_best(&stop.counts, baseline)
                .is_none_or(|(best, without)| best < (1.0 - margin) * without)
        })
    }

    /// Returns the best of all shares between 0 and 100 %, and of 100 % as it was tried; `None` if
    /// there were too few observations.
    pub(crate) fn best(
        &self,
        baseline: &Windows,
        all: &Windows,
        worth: Worth,
        risk: f64,
    ) -> Option<Choice> {
        let between = (0..self.stops.len())
            .filter(|&at| self.stops[at].ratio > 0.0)
            .filter_map(|at| self.predict(at, baseline, worth));
        between
            .chain(self.tried(baseline, all, risk))
            .max_by(|one, other| one.surely().total_cmp(&other.surely()))
    }

    /// Returns the measured effect of freezing all entries.
    fn tried(&self, baseline: &Windows, all: &Windows, risk: f64) -> Option<Choice> {
        let total = all.total();
        // Misses that are not inserted may not be measured, either.
        let (costs, tried) = (baseline.costs(), all.costs());
        let (before, after) = (baseline.means(&tried), all.means(&costs));
        Some(Choice {
            ratio: 1.0,
            expected: Difference::between(&before, &after, risk)?,
            frozen_share: total.frozen_share().unwrap_or(0.0),
            hit_ratio: total.hit_ratio()?,
        })
    }

    /// Returns the price of a miss in nanoseconds without freezing, and at some stops. It may be a
    /// thousand times as large as the other differences, and rarely changes. So both prices are the
    /// same unless they differ by more than the error.
    fn miss_prices(&self, near: &[Stop], baseline: &Windows) -> (Option<f64>, Option<f64>) {
        let misses = |counts: &WindowCounts| counts.latencies.miss;
        let sampled =
            near.iter().map(|stop| misses(&stop.counts)).filter(|sums| sums.count >= SAMPLES_FEW);
        let here: Vec<f64> = sampled.filter_map(|sums| sums.mean()).collect();
        if let Some(found) = Difference::between(&baseline.means_of(misses), &here, RISK)
            && !found.is_open()
        {
            return (Some(found.baseline), Some(found.baseline - found.gain));
        }
        let everywhere = self.stops.iter().map(|stop| &stop.counts).chain(baseline.iter());
        let price = typical(everywhere, misses);
        (price, price)
    }

    /// Predicts the effect of the index at a stop, from that stop and its neighbours.
    fn predict(&self, at: usize, baseline: &Windows, worth: Worth) -> Option<Choice> {
        let ratio = self.stops[at].ratio;
        let is_near = |stop: &&Stop| (stop.ratio - ratio).abs() <= NEIGHBOURS;
        let near: Vec<Stop> = self.stops.iter().filter(is_near).cloned().collect();
        let near = &near[..];
        let here: WindowCounts = near.iter().map(|stop| &stop.counts).sum();
        let counted = || near.iter().map(|stop| &stop.counts);
        let before = baseline.total();
        let (hit_ratio, hit_ratio_before) = (here.hit_ratio()?, before.hit_ratio()?);
        let (miss_before, miss) = self.miss_prices(near, baseline);
        let hit_before = baseline.hit_ns().filter(|_| before.hits() > 0);
        let hit = typical(counted(), WindowCounts::hit_latencies).filter(|_| here.hits() > 0);
        let (hit_before, hit) = (hit_before.or(hit)?, hit.or(hit_before)?);
        // Without insertions, only the cost of the lookup is known.
        let (miss_before, miss) = (miss_before.unwrap_or(hit_before), miss.unwrap_or(hit));

        let frozen = here.frozen_hits as f64 / here.lookups() as f64;
        let without = hit_ratio_before * hit_before + (1.0 - hit_ratio_before) * miss_before;
        let with = hit_ratio * hit - frozen * worth.saving
            + (1.0 - frozen) * worth.failing
            + (1.0 - hit_ratio) * miss;

        let shares = share_variance(hit_ratio, here.lookups())
            + share_variance(hit_ratio_before, before.lookups());
        let hits = hit_ratio.powi(2) * squared_error(&near_means(near))
            + hit_ratio_before.powi(2)
                * squared_error(&baseline.means_of(WindowCounts::hit_latencies));
        let variance =
            shares * (miss - hit).powi(2) + hits + (frozen * worth.saving_error / CAUTION).powi(2);
        Some(Choice {
            ratio,
            expected: Difference {
                baseline: without,
                gain: without - with,
                error: CAUTION * variance.sqrt(),
                windows: near.len(),
            },
            frozen_share: here.frozen_share().unwrap_or(0.0),
            hit_ratio,
        })
    }
}

/// Minimum number of samples that make a mean.
const SAMPLES_FEW: u64 = 4;

fn near_means(near: &[Stop]) -> Vec<f64> {
    near.iter().filter_map(|stop| stop.counts.hit_latencies().mean()).collect()
}

/// Returns the approximate squared error of a mean over windows. Extremes are clamped to the
/// quartiles, as in the mean itself.
fn squared_error(means: &[f64]) -> f64 {
    if means.is_empty() {
        return 0.0;
    }
    let mut sorted = means.to_vec();
    sort(&mut sorted);
    let cut = sorted.len() / 5;
    let (low, high) = (sorted[cut], sorted[sorted.len() - 1 - cut]);
    let mut sums = Sums::default();
    sorted.iter().for_each(|mean| sums.add(mean.clamp(low, high)));
    // Values pulled in make up for those cut off: 0.6 is left of the windows.
    sums.deviation().map_or(0.0, |deviation| (deviation / 0.6).powi(2) / sums.count as f64)
}
