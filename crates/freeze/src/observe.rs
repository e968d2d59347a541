//! Observations and actions of the freeze controller.
//!
//! The cache keeps a *frozen* bit with every entry. It counts a hit on an entry with the bit as a
//! frozen hit, even if the entry was found through its shard. That happens while the controller
//! learns without a frozen index, and while the index is bypassed. The controller knows no entries,
//! only shares and counts.
//!
//! # Windows
//!
//! Windows of requests, whose means are the units of every comparison.
//!
//! The mean latency of a window combines the exact shares of frozen hits, dynamic hits and misses
//! with the sampled latencies of each. So the number of misses that happened to be sampled adds no
//! noise.
//!
//! # Shares of hits
//!
//! The worth of shares of hits at given prices.
//!
//! Latencies are noisy, and a machine changes its pace while they are compared. The number of hits,
//! and of those on frozen entries, is counted exactly. So where the difference is mostly hits, a
//! single window suffices. The loss by entries that should have left, or by an index that has grown
//! old, is seen within a fraction of a second.
//!
//! # Warm caches
//!
//! A cache is warm when its entries are those that its policy wants, and its hit ratio is steady.
//!
//! FrozenHot waits until an entry inserted at the head is evicted. Near a hit ratio of 1 that never
//! happens. So [`Warmth`] waits for as many insertions as the cache has entries, or for many
//! lookups, and for a steady hit ratio. It waits no longer than some seconds. Only an idle cache
//! stays cold.

use std::collections::VecDeque;
use std::fmt;
use std::iter::Sum;
use std::time::Duration;

use floe_policy::trial::{Difference, Sums, trimmed_mean};

/// Latencies of the sampled requests in nanoseconds, by result.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Latencies {
    /// Hits on frozen entries.
    pub frozen: Sums,
    /// Hits on other entries, including the promotion and the failed lookup in the frozen index.
    pub dynamic: Sums,
    /// Misses, from the first lookup to the end of the insertion, including the load.
    pub miss: Sums,
}

impl Latencies {
    /// Returns the latencies that were added after `before`.
    pub fn since(&self, before: &Self) -> Self {
        let since = |now: Sums, before: Sums| Sums {
            count: now.count.saturating_sub(before.count),
            sum: now.sum - before.sum,
            squares: now.squares - before.squares,
        };
        Self {
            frozen: since(self.frozen, before.frozen),
            dynamic: since(self.dynamic, before.dynamic),
            miss: since(self.miss, before.miss),
        }
    }

    /// Adds the latencies of `other`.
    pub fn add(&mut self, other: &Self) {
        self.frozen += other.frozen;
        self.dynamic += other.dynamic;
        self.miss += other.miss;
    }
}

/// An action that has been completed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Done {
    /// [`Action::Thaw`]: all entries are in the policy order, and the index is unpublished.
    Thawed,
    /// [`Action::Extend`]: this share of the entries is frozen now. It is less than requested where
    /// entries cannot be frozen.
    Extended {
        /// Share of the entries, from 0 to 1.
        share: f64,
    },
    /// [`Action::Freeze`] or [`Action::FreezeAll`]: the index is published.
    Constructed {
        /// Time from the action to the publication.
        took: Duration,
        /// Number of entries in the index.
        entries: u64,
    },
}

/// Counts and latencies since the last step. Counts start at 0 with each step, so those reported
/// together with `done` belong to the time before its completion.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Observations {
    /// Time since any fixed start; never goes back.
    pub now: Duration,
    /// Hits on frozen entries.
    pub frozen_hits: u64,
    /// Hits on entries that are not frozen.
    pub dynamic_hits: u64,
    /// Lookups that did not find their key.
    pub misses: u64,
    /// Entries inserted under a new key.
    pub insertions: u64,
    /// Entries evicted to make room.
    pub evictions: u64,
    /// Latencies of the sampled requests.
    pub latencies: Latencies,
    /// Entries in the cache now.
    pub entries: u64,
    /// Frozen entries in the cache now.
    pub frozen: u64,
    /// Maximum number of entries that the cache may hold, as far as that is known: the limit of
    /// entries, or an estimate by weight.
    pub capacity: u64,
    /// Number of threads that made lookups since the last step; at least 1 if there were lookups.
    pub threads: u32,
    /// The action that was completed, if one was. A completion causes the next step.
    pub done: Option<Done>,
}

impl Observations {
    /// Returns the number of lookups.
    pub fn lookups(&self) -> u64 {
        self.frozen_hits + self.dynamic_hits + self.misses
    }
}

/// An order of the controller to the cache. One action is under way at a time. Until it is [`Done`]
/// the controller only returns [`Action::Keep`], or [`Action::Thaw`], which cancels the action
/// under way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Action {
    /// Do nothing.
    Keep,
    /// Put all entries back into the policy order (`Eviction::thaw`). Unpublish the index, and free
    /// it when no thread reads it.
    Thaw,
    /// Freeze the entries of each shard that `Eviction::rank` names first, until this share of its
    /// entries is frozen. Work in bounded batches under the lock and without an index. Entries that
    /// are frozen already count, and stay.
    Extend {
        /// Share of the entries, from 0 to 1.
        to: f64,
    },
    /// Thaw, rank again, and freeze this share of each shard's entries. Build the index in the
    /// background and publish it. A published index may serve its entries until the new one
    /// replaces it.
    Freeze {
        /// Share of the entries, from 0 to 1.
        ratio: f64,
    },
    /// Freeze all entries, without thawing those that are frozen already. From the publication to
    /// the next [`Action::Thaw`] or [`Action::Freeze`], misses insert nothing.
    FreezeAll,
    /// Unpublish the index and keep it. Frozen entries stay frozen and are found through their
    /// shards. Takes effect within a moment and is not reported. Unlike in the merged cache, hits
    /// on frozen entries are not promoted, and the dynamic part is smaller. So this shows the worth
    /// of the *index*, cheaply; the merged cache shows the worth of freezing.
    Bypass,
    /// Publish the bypassed index again. Takes effect within a moment and is not reported.
    Resume,
}

/// The time of the controller's next step: a point in time, a number of lookups, or the completion
/// of an action, whichever comes first.
///
/// The driver need not be exact: 5 ms late is early enough, and more lookups than wanted do no
/// harm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wake {
    /// Time of the next step, on the scale of [`Observations::now`].
    pub at: Duration,
    /// Lookups since this step; `u64::MAX` if their number does not matter.
    pub lookups: u64,
}

/// Result of a step of the controller.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ControllerStep {
    /// The action to be started now.
    pub action: Action,
    /// The time of the next step.
    pub wake: Wake,
}

/// Shortest length of a window.
pub(crate) const WINDOW: Duration = Duration::from_millis(50);
/// Number of samples that a window waits for, up to [`PATIENCE`] times its length.
pub(crate) const SAMPLES_MIN: u64 = 30;
/// Longest length of a window with too few samples, as a multiple of [`WINDOW`].
pub(crate) const PATIENCE: u32 = 10;
/// Minimum number of samples of a useful mean.
const SAMPLES_FEW: u64 = 4;

/// Latency of each kind of request in nanoseconds; `None` where it is unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Costs {
    pub(crate) frozen: Option<f64>,
    pub(crate) dynamic: Option<f64>,
    pub(crate) miss: Option<f64>,
}

impl Costs {
    /// Returns these costs, with those of `other` where they are unknown.
    pub(crate) fn or(&self, other: &Self) -> Self {
        Self {
            frozen: self.frozen.or(other.frozen),
            dynamic: self.dynamic.or(other.dynamic),
            miss: self.miss.or(other.miss),
        }
    }
}

impl fmt::Display for Costs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = |cost: Option<f64>| cost.map_or_else(|| "?".to_owned(), |ns| format!("{ns:.1}"));
        let (frozen, dynamic, miss) = (ns(self.frozen), ns(self.dynamic), ns(self.miss));
        write!(f, "frozen hits take {frozen} ns, others {dynamic}, misses {miss}")
    }
}

/// Counts and sampled latencies of the requests in some span of time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct WindowCounts {
    pub(crate) frozen_hits: u64,
    pub(crate) dynamic_hits: u64,
    pub(crate) misses: u64,
    pub(crate) latencies: Latencies,
}

impl WindowCounts {
    pub(crate) fn add(&mut self, seen: &Observations) {
        let Observations { frozen_hits, dynamic_hits, misses, latencies, .. } = *seen;
        self.merge(&Self { frozen_hits, dynamic_hits, misses, latencies });
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        self.frozen_hits += other.frozen_hits;
        self.dynamic_hits += other.dynamic_hits;
        self.misses += other.misses;
        self.latencies.add(&other.latencies);
    }

    pub(crate) fn lookups(&self) -> u64 {
        self.frozen_hits + self.dynamic_hits + self.misses
    }

    pub(crate) fn hits(&self) -> u64 {
        self.frozen_hits + self.dynamic_hits
    }

    pub(crate) fn hit_ratio(&self) -> Option<f64> {
        (self.lookups() > 0).then(|| self.hits() as f64 / self.lookups() as f64)
    }

    /// Returns the share of hits that were on frozen entries; `None` without hits.
    pub(crate) fn frozen_share(&self) -> Option<f64> {
        (self.hits() > 0).then(|| self.frozen_hits as f64 / self.hits() as f64)
    }

    /// Returns the latencies of hits of both kinds.
    pub(crate) fn hit_latencies(&self) -> Sums {
        let mut hits = self.latencies.frozen;
        hits += self.latencies.dynamic;
        hits
    }

    pub(crate) fn samples(&self) -> u64 {
        self.hit_latencies().count + self.latencies.miss.count
    }

    /// Returns the mean latency by equation 1 of FrozenHot. A kind of request that was not sampled
    /// costs as much as `elsewhere`.
    pub(crate) fn mean(&self, elsewhere: &Costs) -> Option<f64> {
        let latencies = &self.latencies;
        let kinds = [
            (self.frozen_hits, latencies.frozen, elsewhere.frozen.or(elsewhere.dynamic)),
            (self.dynamic_hits, latencies.dynamic, elsewhere.dynamic.or(elsewhere.frozen)),
            // Where misses are not inserted, only the cost of the lookup is known.
            (
                self.misses,
                latencies.miss,
                elsewhere.miss.or(elsewhere.dynamic).or(elsewhere.frozen),
            ),
        ];
        let mut sum = 0.0;
        for (requests, sampled, elsewhere) in kinds {
            if requests > 0 {
                sum += requests as f64 * sampled.mean().or(elsewhere)?;
            }
        }
        (self.lookups() > 0).then(|| sum / self.lookups() as f64)
    }
}

impl<'a> Sum<&'a Self> for WindowCounts {
    fn sum<I: Iterator<Item = &'a Self>>(windows: I) -> Self {
        let mut total = Self::default();
        windows.for_each(|window| total.merge(window));
        total
    }
}

/// Returns a mean over windows that is insensitive to stalls in a few of them.
pub(crate) fn typical<'a>(
    windows: impl Iterator<Item = &'a WindowCounts>,
    sums: impl Fn(&WindowCounts) -> Sums,
) -> Option<f64> {
    let mut seen = Typical::default();
    for window in windows {
        seen.add(sums(window));
    }
    seen.mean()
}

/// The sums of several windows. It is not generic, as [`typical`] is compiled for many iterators.
#[derive(Default)]
struct Typical {
    means: Vec<f64>,
    all: Sums,
}

impl Typical {
    fn add(&mut self, sums: Sums) {
        self.all += sums;
        if let Some(mean) = sums.mean().filter(|_| sums.count >= SAMPLES_FEW) {
            self.means.push(mean);
        }
    }

    fn mean(&self) -> Option<f64> {
        trimmed_mean(&self.means).or_else(|| self.all.mean())
    }
}

/// The last closed windows, and the open one.
#[derive(Debug, Clone)]
pub(crate) struct Windows {
    began: Duration,
    open: WindowCounts,
    closed: VecDeque<WindowCounts>,
    max: usize,
}

impl Windows {
    pub(crate) fn new(now: Duration, max: usize) -> Self {
        Self { began: now, open: WindowCounts::default(), closed: VecDeque::new(), max }
    }

    /// Adds observations to the open window. Returns true if that closed it.
    pub(crate) fn add(&mut self, seen: &Observations) -> bool {
        self.open.add(seen);
        let (age, samples) = (seen.now.saturating_sub(self.began), self.open.samples());
        if age < WINDOW || samples == 0 || samples < SAMPLES_MIN && age < WINDOW * PATIENCE {
            return false;
        }
        let window = std::mem::take(&mut self.open);
        self.push(window);
        self.began = seen.now;
        true
    }

    /// Adds a window that was closed elsewhere.
    pub(crate) fn push(&mut self, window: WindowCounts) {
        if self.closed.len() >= self.max {
            self.closed.pop_front();
        }
        self.closed.push_back(window);
    }

    /// Drops the window that was closed last.
    pub(crate) fn drop_last(&mut self) {
        self.closed.pop_back();
    }

    /// Drops the open window, and opens another one at `now`.
    pub(crate) fn interrupt(&mut self, now: Duration) {
        (self.open, self.began) = (WindowCounts::default(), now);
    }

    pub(crate) fn len(&self) -> usize {
        self.closed.len()
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &WindowCounts> {
        self.closed.iter()
    }

    pub(crate) fn last(&self) -> Option<&WindowCounts> {
        self.closed.back()
    }

    pub(crate) fn total(&self) -> WindowCounts {
        self.closed.iter().sum()
    }

    pub(crate) fn costs(&self) -> Costs {
        let of = |sums: fn(&WindowCounts) -> Sums| typical(self.closed.iter(), sums);
        Costs {
            frozen: of(|window| window.latencies.frozen),
            dynamic: of(|window| window.latencies.dynamic),
            miss: of(|window| window.latencies.miss),
        }
    }

    /// Returns the mean latency of a hit of either kind in nanoseconds.
    pub(crate) fn hit_ns(&self) -> Option<f64> {
        typical(self.closed.iter(), WindowCounts::hit_latencies)
    }

    /// Returns the mean latency of each window in nanoseconds. Operations sampled in no window cost
    /// as much as `elsewhere`.
    pub(crate) fn means(&self, elsewhere: &Costs) -> Vec<f64> {
        let costs = self.costs().or(elsewhere);
        self.closed.iter().filter_map(|window| window.mean(&costs)).collect()
    }

    /// Returns the mean latency of one kind of request in each window that sampled it often enough.
    pub(crate) fn means_of(&self, sums: impl Fn(&WindowCounts) -> Sums) -> Vec<f64> {
        let sampled = self.closed.iter().map(sums).filter(|sums| sums.count >= SAMPLES_FEW);
        sampled.filter_map(|sums| sums.mean()).collect()
    }
}

/// Number of standard errors that make a difference certain.
const ERRORS: f64 = 3.0;
/// Factor on the variance of shares: hits and misses come in bursts, so shares vary more than those
/// of independent requests.
const BURSTS: f64 = 2.0;

/// Latencies of requests in nanoseconds, by result.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Prices {
    /// A hit while nothing is frozen.
    pub(crate) hit: f64,
    /// A hit on a frozen entry.
    pub(crate) frozen: f64,
    /// A hit on an entry that is not frozen, beside a frozen index.
    pub(crate) dynamic: f64,
    /// A miss, with or without a frozen index.
    pub(crate) miss: f64,
}

impl Prices {
    /// Returns the time that a request of `frozen` saves compared with `baseline`, due to the
    /// shares of hits alone. `None` if either has no requests.
    pub(crate) fn difference(
        &self,
        baseline: &WindowCounts,
        frozen: &WindowCounts,
    ) -> Option<Difference> {
        let (before, after) = (baseline.hit_ratio()?, frozen.hit_ratio()?);
        let share = frozen.frozen_hits as f64 / frozen.lookups() as f64;
        let without = before * self.hit + (1.0 - before) * self.miss;
        let with = share * self.frozen + (after - share) * self.dynamic + (1.0 - after) * self.miss;
        let variance = share_variance(before, baseline.lookups()) * (self.miss - self.hit).powi(2)
            + share_variance(after, frozen.lookups()) * (self.miss - self.dynamic).powi(2)
            + share_variance(share, frozen.lookups()) * (self.dynamic - self.frozen).powi(2);
        Some(Difference {
            baseline: without,
            gain: without - with,
            error: ERRORS * variance.sqrt(),
            windows: 1,
        })
    }

    /// Returns these prices with hits beside a frozen index at 0. A loss at such prices is certain.
    pub(crate) fn at_best(&self) -> Self {
        Self { frozen: 0.0, dynamic: 0.0, ..*self }
    }
}

/// Returns the variance of a share that was observed in a number of requests. A share of 0 in few
/// requests still has a variance.
pub(crate) fn share_variance(share: f64, requests: u64) -> f64 {
    let requests = requests.max(1) as f64;
    let share = (share * requests + 1.0) / (requests + 2.0);
    BURSTS * share * (1.0 - share) / requests
}

/// Number of lookups per entry that warm a cache, however few insertions there were.
const WARM_LOOKUPS_PER_ENTRY: u64 = 10;
const WARM_LOOKUPS: u64 = 20_000;
/// Time after which a cache counts as warm if there were a few lookups.
const TIME_MAX: Duration = Duration::from_secs(5);
const WARM_LOOKUPS_FEW: u64 = 1_000;
/// Minimum number of lookups between two readings of the hit ratio.
const CHUNK_MIN: u64 = 4_000;
const CHUNK_PER_ENTRY: u64 = 4;
/// Largest change of a hit ratio that counts as steady.
const CHANGE: f64 = 0.003;
/// Number of standard errors that are added to the allowed change.
const CHANGE_ERRORS: f64 = 1.0;

/// Number of lookups per entry that complete a renewal.
const RENEWING_PER_ENTRY: u64 = 2;
const RENEWAL_MAX: Duration = Duration::from_secs(1);

/// Lookups and hits of some span.
#[derive(Debug, Clone, Copy, Default)]
struct Chunk {
    lookups: u64,
    hits: u64,
}

impl Chunk {
    fn hit_ratio(&self) -> f64 {
        self.hits as f64 / self.lookups.max(1) as f64
    }

    /// Returns the approximate variance of the hit ratio.
    fn variance(&self) -> f64 {
        let ratio = self.hit_ratio();
        ratio * (1.0 - ratio) / self.lookups.max(1) as f64
    }

    fn is_like(&self, other: &Self) -> bool {
        let change = (self.hit_ratio() - other.hit_ratio()).abs();
        change <= CHANGE + CHANGE_ERRORS * (self.variance() + other.variance()).sqrt()
    }
}

/// Detects when the cache is warm, from the requests since it was created or last thawed.
#[derive(Debug, Clone)]
pub(crate) struct Warmth {
    since: Duration,
    lookups: u64,
    insertions: u64,
    open: Chunk,
    last: Option<Chunk>,
    is_steady: bool,
    is_renewal: bool,
}

impl Warmth {
    pub(crate) fn new(now: Duration) -> Self {
        Self {
            since: now,
            lookups: 0,
            insertions: 0,
            open: Chunk::default(),
            last: None,
            is_steady: false,
            is_renewal: false,
        }
    }

    /// Creates a detector that waits only until entries still in demand have been requested, not
    /// until the cache is warm. Thawed entries come back as if just used, and an immediate freeze
    /// would take the same ones again.
    pub(crate) fn renewal(now: Duration) -> Self {
        Self { is_renewal: true, ..Self::new(now) }
    }

    /// Adds observations. Once the cache is warm, returns the reason in words.
    pub(crate) fn add(&mut self, seen: &Observations) -> Option<String> {
        self.lookups += seen.lookups();
        self.insertions += seen.insertions;
        self.open.lookups += seen.lookups();
        self.open.hits += seen.frozen_hits + seen.dynamic_hits;
        if self.open.lookups >= CHUNK_MIN.max(seen.entries.saturating_mul(CHUNK_PER_ENTRY)) {
            let chunk = std::mem::take(&mut self.open);
            self.is_steady = self.last.is_some_and(|last| last.is_like(&chunk));
            self.last = Some(chunk);
        }
        let age = seen.now.saturating_sub(self.since);
        let is_turned_over = self.insertions >= seen.entries.max(seen.capacity);
        let enough = WARM_LOOKUPS.max(seen.entries.saturating_mul(WARM_LOOKUPS_PER_ENTRY));
        if self.is_renewal {
            let is_over = self.lookups
                >= WARM_LOOKUPS_FEW.max(seen.entries.saturating_mul(RENEWING_PER_ENTRY))
                || age >= RENEWAL_MAX && self.lookups >= WARM_LOOKUPS_FEW;
            return is_over.then(|| {
                format!("renewed by {} lookups in {:.2} s", self.lookups, age.as_secs_f64())
            });
        }
        let is_warm =
            self.is_steady && (is_turned_over || self.lookups >= enough) || age >= TIME_MAX;
        (is_warm && self.lookups >= WARM_LOOKUPS_FEW).then(|| {
            let Self { lookups, insertions, .. } = self;
            format!(
                "warm after {lookups} lookups and {insertions} insertions in {:.2} s",
                age.as_secs_f64()
            )
        })
    }
}

#[cfg(test)]
mod shares_tests {
    use super::*;

    const PRICES: Prices = Prices { hit: 80.0, frozen: 40.0, dynamic: 90.0, miss: 5000.0 };

    fn counts(frozen_hits: u64, dynamic_hits: u64, misses: u64) -> WindowCounts {
        WindowCounts { frozen_hits, dynamic_hits, misses, ..WindowCounts::default() }
    }

    #[test]
    fn four_points_of_hits_cost_more_than_faster_hits_save() {
        let found = PRICES
            .difference(&counts(0, 86_000, 14_000), &counts(60_000, 22_000, 18_000))
            .expect("requests");
        // 0.86·80 + 0.14·5000 less 0.6·40 + 0.22·90 + 0.18·5000.
        assert!(
            (found.baseline - 768.8).abs() < 1e-9 && (found.gain - (768.8 - 943.8)).abs() < 1e-9,
            "{found}"
        );
        assert!(found.is_loss(0.0));
    }

    #[test]
    fn a_few_requests_leave_it_open_and_none_say_nothing() {
        let few =
            PRICES.difference(&counts(0, 86_000, 14_000), &counts(6, 2, 2)).expect("requests");
        assert!(few.is_open(), "{few}");
        assert_eq!(PRICES.difference(&counts(0, 0, 0), &counts(6, 2, 2)), None);
        let all =
            PRICES.difference(&counts(0, 86_000, 14_000), &counts(0, 0, 20)).expect("requests");
        assert!(all.is_loss(0.0), "{all}");
    }

    #[test]
    fn what_is_lost_even_if_hits_took_no_time_is_less() {
        let (baseline, frozen) = (counts(0, 86_000, 14_000), counts(60_000, 22_000, 18_000));
        let [found, least] =
            [PRICES, PRICES.at_best()].map(|prices| prices.difference(&baseline, &frozen).unwrap());
        assert!(least.gain > found.gain && least.is_loss(0.1), "{least}");
    }
}

#[cfg(test)]
mod warmth_tests {
    use super::*;

    /// Runs up to 1,000 steps of 10 ms, each with a number of lookups at a hit ratio. Returns the
    /// step at which the cache was warm.
    fn steps(lookups: u64, insertions: u64, hit_ratio: impl Fn(u32) -> f64) -> Option<u32> {
        let mut warmth = Warmth::new(Duration::ZERO);
        (1..=1000).find(|&step| {
            let hits = (lookups as f64 * hit_ratio(step)) as u64;
            let seen = Observations {
                now: Duration::from_millis(10) * step,
                dynamic_hits: hits,
                misses: lookups - hits,
                insertions,
                entries: 1000,
                capacity: 1000,
                ..Observations::default()
            };
            warmth.add(&seen).is_some()
        })
    }

    #[test]
    fn a_cache_is_warm_when_it_has_turned_over() {
        assert_eq!(steps(500, 100, |_| 0.8), Some(16), "it takes two looks at the hit ratio");
    }

    #[test]
    fn without_insertions_many_lookups_do() {
        assert_eq!(steps(500, 0, |_| 1.0), Some(40));
    }

    #[test]
    fn a_hit_ratio_that_still_rises_is_waited_for() {
        let rising = |step: u32| 0.9 - 0.5 * (-f64::from(step) / 30.0).exp();
        assert!(steps(500, 100, rising).is_some_and(|steps| (40..200).contains(&steps)));
    }

    #[test]
    fn nothing_takes_longer_than_five_seconds_but_idleness() {
        let restless = |step: u32| if (step / 8).is_multiple_of(2) { 0.2 } else { 0.8 };
        assert_eq!(steps(500, 0, restless), Some(500));
        assert_eq!(steps(2, 0, |_| 1.0), Some(500));
        assert_eq!(steps(0, 0, |_| 1.0), None);
    }
}
