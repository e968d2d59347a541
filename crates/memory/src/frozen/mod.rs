//! Freezing: the hottest entries are served from an immutable index.

use std::fmt;
use std::time::Duration;

pub(crate) mod controller;
pub(crate) mod freezer;
pub(crate) mod index;
mod learner;
pub(crate) mod observe;
pub(crate) mod timing;
mod trials;

/// Options of freezing, which moves a cache's hottest entries to an index without locks and marks.
/// By default the cache finds out whether freezing pays, how much to freeze, and for how long.
///
/// ```
/// # use floe_memory as floe;
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
    /// True if readers look at the frozen index.
    pub(crate) is_published: bool,
}

/// The age at which a frozen index is built anew.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Lifetime {
    /// As long as is cheapest, by the drift that is measured.
    Drift,
    /// So many times what its construction took.
    Factor(f64),
    /// So long.
    Fixed(Duration),
}

impl Freezing {
    /// The lifetime of the paper, in constructions; also the first one where drift decides and none
    /// is measured yet.
    pub(crate) const FACTOR: f64 = 20.0;

    /// Learns which share of the entries to freeze, freezes it as long as that is faster than not
    /// to, and learns again when the workload changes. The default.
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

    /// Always freezes this share of the entries, whether that pays or not: for experiments. 1
    /// freezes all, and then nothing comes in; 0 nothing.
    ///
    /// # Panics
    /// When the ratio is not between 0 and 1.
    pub const fn fixed(ratio: f64) -> Self {
        assert!(ratio >= 0.0 && ratio <= 1.0, "a frozen ratio is between 0 and 1");
        Self { ratio: Some(ratio), ..Self::adaptive() }
    }

    /// Builds the frozen index anew after so many times as long as its construction took (the paper
    /// uses 10, 20 and 100), within the [bounds](Self::lifetime_between). By default the lifetime
    /// follows from the drift of the workload.
    ///
    /// # Panics
    /// When the factor is not above 0.
    pub const fn lifetime_factor(self, constructions: f64) -> Self {
        assert!(constructions > 0.0, "a lifetime is longer than nothing");
        Self { lifetime: Lifetime::Factor(constructions), ..self }
    }

    /// Builds the frozen index anew after this time.
    ///
    /// # Panics
    /// When it is 0.
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

    /// Measures the latency of one request in so many; 100 by default. Only these read a clock.
    /// While nothing is frozen and no trial is under way it is one in a hundred times as many, and
    /// fewer than asked for where requests are very frequent.
    ///
    /// # Panics
    /// When it is 0.
    pub const fn sample_one_in(self, requests: u32) -> Self {
        assert!(requests > 0, "one request in 0 cannot be measured");
        Self { sample_one_in: requests, ..self }
    }

    /// Freezes without a frozen index: frozen entries stay in and are found where all are. For
    /// experiments that ask what the index is worth.
    #[doc(hidden)]
    pub const fn without_index(self) -> Self {
        Self { is_published: false, ..self }
    }

    /// Sets the wait between a freezing that did not pay and the next try. It begins with `min`,
    /// and each failure in a row doubles it, up to `max`: 1 s and 5 min by default.
    ///
    /// # Panics
    /// When the first is 0 or above the longest.
    pub const fn wait_between(self, min: Duration, max: Duration) -> Self {
        assert!(
            !min.is_zero() && min.as_nanos() <= max.as_nanos(),
            "the first wait is above 0 and not above the longest"
        );
        Self { wait_min: min, wait_max: max, ..self }
    }
}

impl Default for Freezing {
    /// [`adaptive`](Self::adaptive).
    fn default() -> Self {
        Self::adaptive()
    }
}

/// A phase of freezing: the present work of its controller.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "kebab-case"))]
#[non_exhaustive]
pub enum Phase {
    /// The cache fills, or everything has thawed and finds its order again.
    #[default]
    WarmingUp,
    /// Nothing is frozen, and it is measured what that costs.
    Measuring,
    /// More and more entries are frozen without an index, to see what hits each share would bring.
    Learning,
    /// All entries are frozen, which is measured last.
    TryingAll,
    /// The share that was chosen is frozen and thawed by turns, to see whether it pays.
    Proving,
    /// The frozen index is being built.
    Constructing,
    /// The frozen index serves.
    Frozen,
    /// Freezing did not pay; it is tried again later.
    Waiting,
}

impl Phase {
    /// Its name in metrics and logs.
    ///
    /// ```
    /// # use floe_memory as floe;
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
    /// The reason, in words and numbers.
    pub reason: String,
}

/// State and counts of freezing. Latencies are means of the last measurement in nanoseconds, and
/// `None` before the first.
#[derive(Debug, Clone, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct FreezeStats {
    /// The present phase.
    pub phase: Phase,
    /// Share of the entries to freeze, as learned last; 0 if none.
    pub ratio: f64,
    /// Share of hits on frozen entries in the last frozen phase; `None` before the first.
    pub frozen_share: Option<f64>,
    /// Latency of a hit on a frozen entry, by the frozen index.
    pub frozen_ns: Option<f64>,
    /// Latency of a hit on an entry that is not frozen.
    pub dynamic_ns: Option<f64>,
    /// Latency of a miss, with its load.
    pub miss_ns: Option<f64>,
    /// Latency of a request while nothing is frozen.
    pub baseline_ns: Option<f64>,
    /// Latency of a request while the frozen index serves.
    pub freezing_ns: Option<f64>,
    /// Entries in the frozen index.
    pub index_entries: u64,
    /// Time that the last construction of the index took.
    pub construction: Duration,
    /// Age at which the index is built anew.
    pub lifetime: Duration,
    /// Number of times that learning ended.
    pub learned: u64,
    /// Number of indexes published.
    pub constructed: u64,
    /// Of these, those that took the place of another with the same ratio.
    pub refreshed: u64,
    /// Number of times that freezing did not pay.
    pub given_up: u64,
    /// The last decisions, newest last.
    pub decisions: Vec<FreezeDecision>,
}
