//! The freeze controller decides when a cache freezes its hottest entries, how much, for how long,
//! and when to wait.
//!
//! It is a state machine without clock, thread or lock. The cache tells its counts and latencies as
//! [`Observations`]; [`Controller::step`] returns an [`Action`] and the time of the next step. So
//! its behaviour over hours is tested in seconds, on a simulated machine.

use std::fmt;
use std::time::Duration;

mod controller;
mod learner;
mod observe;
mod trials;

#[cfg(test)]
mod tests;

pub use controller::Controller;
pub use observe::{Action, ControllerStep, Done, Latencies, Observations, Wake};

/// Options of freezing, which moves a cache's hottest entries to an index without locks and without
/// marks for the policy. By default the cache finds out whether freezing pays, how much to freeze,
/// and for how long.
///
/// ```
/// # use floe_freeze as floe;
/// use std::time::Duration;
/// use floe::Freezing;
///
/// let as_the_paper_does = Freezing::adaptive().lifetime_factor(20.0);
/// let for_an_experiment = Freezing::fixed(0.3).lifetime(Duration::from_secs(1));
/// assert_ne!(as_the_paper_does, for_an_experiment);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Freezing {
    pub(crate) ratio: Option<f64>,
    pub(crate) lifetime: Lifetime,
    pub(crate) lifetime_min: Duration,
    pub(crate) lifetime_max: Duration,
    pub(crate) sample_one_in: u32,
    pub(crate) wait_min: Duration,
    pub(crate) wait_max: Duration,
    /// True if readers use the frozen index.
    pub(crate) is_published: bool,
}

/// Rule for the age at which a frozen index is rebuilt.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Lifetime {
    /// The age that is cheapest by the measured drift of the workload.
    Drift,
    /// A multiple of the time that the construction of the index took.
    Factor(f64),
    /// A fixed time.
    Fixed(Duration),
}

impl Freezing {
    /// Lifetime of an index in the paper, as a multiple of its construction time. With
    /// [`Lifetime::Drift`] it applies until a drift has been measured.
    pub(crate) const FACTOR: f64 = 20.0;

    /// Learns which share of the entries to freeze, freezes it as long as that makes the cache
    /// faster, and learns again when the workload changes. The default.
    pub const fn adaptive() -> Self {
        Self {
            ratio: None,
            lifetime: Lifetime::Drift,
            lifetime_min: Duration::from_millis(200),
            lifetime_max: Duration::from_secs(600),
            sample_one_in: 100,
            wait_min: Duration::from_secs(1),
            wait_max: Duration::from_secs(300),
            is_published: true,
        }
    }

    /// Always freezes this share of the entries, whether that pays or not: for experiments. With 1
    /// all entries are frozen and no new key comes in; with 0 none are.
    ///
    /// # Panics
    /// When the ratio is not between 0 and 1.
    pub const fn fixed(ratio: f64) -> Self {
        assert!(ratio >= 0.0 && ratio <= 1.0, "a frozen ratio is between 0 and 1");
        Self { ratio: Some(ratio), ..Self::adaptive() }
    }

    /// Sets the age at which the frozen index is rebuilt, as a multiple of its construction time
    /// (the paper uses 10, 20 and 100), within the [bounds](Self::lifetime_between). By default the
    /// lifetime follows from the drift of the workload.
    ///
    /// # Panics
    /// When the factor is not above 0.
    pub const fn lifetime_factor(self, constructions: f64) -> Self {
        assert!(constructions > 0.0, "a lifetime is longer than nothing");
        Self { lifetime: Lifetime::Factor(constructions), ..self }
    }

    /// Sets a fixed age at which the frozen index is rebuilt.
    ///
    /// # Panics
    /// When the age is 0.
    pub const fn lifetime(self, lifetime: Duration) -> Self {
        assert!(!lifetime.is_zero(), "a lifetime is longer than nothing");
        Self { lifetime: Lifetime::Fixed(lifetime), ..self }
    }

    /// Sets the shortest and the longest lifetime of a frozen index, for a lifetime that is not
    /// fixed by [`lifetime`](Self::lifetime): 0.2 s and 10 min by default.
    ///
    /// # Panics
    /// When the shortest is 0 or above the longest.
    pub const fn lifetime_between(self, min: Duration, max: Duration) -> Self {
        assert!(
            !min.is_zero() && min.as_nanos() <= max.as_nanos(),
            "the shortest lifetime is above 0 and not above the longest"
        );
        Self { lifetime_min: min, lifetime_max: max, ..self }
    }

    /// Measures the latency of one request in `requests`; 100 by default. Only these read a clock.
    /// While nothing is frozen and no trial is under way, a hundred times fewer requests are
    /// measured. Where requests are very frequent, fewer than the given share are measured.
    ///
    /// # Panics
    /// When `requests` is 0.
    pub const fn sample_one_in(self, requests: u32) -> Self {
        assert!(requests > 0, "one request in 0 cannot be measured");
        Self { sample_one_in: requests, ..self }
    }

    /// Freezes without a frozen index: frozen entries cannot be evicted, but lookups find them as
    /// they find all others. For experiments on the worth of the index.
    #[doc(hidden)]
    pub const fn without_index(self) -> Self {
        Self { is_published: false, ..self }
    }

    /// Returns how many requests one is measured of.
    #[doc(hidden)]
    pub const fn requests_per_sample(&self) -> u32 {
        self.sample_one_in
    }

    /// Returns true if freezing publishes its index to readers.
    #[doc(hidden)]
    pub const fn has_index(&self) -> bool {
        self.is_published
    }

    /// Sets the wait between a freezing that did not pay and the next attempt: 1 s to 5 min by
    /// default. The first wait is `min`; each failure in a row doubles it, up to `max`.
    ///
    /// # Panics
    /// When `min` is 0 or above `max`.
    pub const fn wait_between(self, min: Duration, max: Duration) -> Self {
        assert!(
            !min.is_zero() && min.as_nanos() <= max.as_nanos(),
            "the first wait is above 0 and not above the longest"
        );
        Self { wait_min: min, wait_max: max, ..self }
    }
}

impl Default for Freezing {
    fn default() -> Self {
        Self::adaptive()
    }
}

/// A phase of freezing: the present work of its controller.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "kebab-case"))]
#[non_exhaustive]
pub enum Phase {
    /// The cache fills, or has thawed and its policy order settles again.
    #[default]
    WarmingUp,
    /// Nothing is frozen, and the controller measures the latency of requests.
    Measuring,
    /// More and more entries are frozen without an index, to learn the hit ratio at each share.
    Learning,
    /// All entries are frozen: the last measurement of learning.
    TryingAll,
    /// The chosen share is frozen and thawed in turns, to see whether freezing pays.
    Proving,
    /// The frozen index is being built.
    Constructing,
    /// The frozen index serves.
    Frozen,
    /// Freezing did not pay; the controller waits before the next attempt.
    Waiting,
}

impl Phase {
    /// Returns the phase's name in metrics and logs.
    ///
    /// ```
    /// # use floe_freeze as floe;
    /// assert_eq!(floe::Phase::WarmingUp.name(), "warming-up");
    /// ```
    pub const fn name(self) -> &'static str {
        match self {
            Self::WarmingUp => "warming-up",
            Self::Measuring => "measuring",
            Self::Learning => "learning",
            Self::TryingAll => "trying-all",
            Self::Proving => "proving",
            Self::Constructing => "constructing",
            Self::Frozen => "frozen",
            Self::Waiting => "waiting",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A decision of the freeze controller.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct FreezeDecision {
    /// Time of the decision, since the cache was made.
    pub at: Duration,
    /// The phase that the decision began.
    pub phase: Phase,
    /// The reason for the decision, in words and numbers.
    pub reason: String,
}

/// State and counts of freezing. Latencies are means of the last measurement in nanoseconds, and
/// `None` before the first measurement.
#[derive(Debug, Clone, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct FreezeStats {
    /// The present phase of the controller.
    pub phase: Phase,
    /// Share of the entries to freeze, as last learned; 0 if none.
    pub ratio: f64,
    /// Share of hits that were on frozen entries, in the last frozen phase; `None` before the
    /// first.
    pub frozen_share: Option<f64>,
    /// Latency of a hit on a frozen entry through the frozen index, in nanoseconds.
    pub frozen_ns: Option<f64>,
    /// Latency of a hit on an entry that is not frozen, in nanoseconds.
    pub dynamic_ns: Option<f64>,
    /// Latency of a miss including its load, in nanoseconds.
    pub miss_ns: Option<f64>,
    /// Latency of a request while nothing is frozen, in nanoseconds.
    pub baseline_ns: Option<f64>,
    /// Latency of a request while the frozen index serves, in nanoseconds.
    pub freezing_ns: Option<f64>,
    /// Entries in the frozen index.
    pub index_entries: u64,
    /// Time that the last construction of the index took.
    pub construction: Duration,
    /// Age at which the index is rebuilt.
    pub lifetime: Duration,
    /// Number of times that the controller finished learning.
    pub learned: u64,
    /// Number of indexes published.
    pub constructed: u64,
    /// Number of indexes published in place of another one with the same ratio.
    pub refreshed: u64,
    /// Number of times that freezing did not pay.
    pub given_up: u64,
    /// The last decisions, newest last.
    pub decisions: Vec<FreezeDecision>,
}
