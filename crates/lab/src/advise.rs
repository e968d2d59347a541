//! Advice: from a trace and two media to the settings of a cache.
//!
//! [`Workload`] holds the trace, [`Candidate`] is a floe.toml, and [`advise`] searches: sizes and
//! write modes first, then block sizes, policies and admissions, each with the best of the round
//! before. Rounds of long traces replay their beginning; the last round replays all. Every trial is
//! a replay in virtual time of a text that the server's own parser has read.

mod candidate;
mod search;
mod verdict;
mod workload;

use serde::Serialize;

use crate::replay::{ReplayError, ReplayResult};

pub use candidate::Candidate;
pub use search::{Progress, advise};
pub use workload::Workload;

/// The search's settings.
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
    /// Requests in flight.
    pub in_flight: usize,
    /// Share of the requests that fill the cache and do not count.
    pub warmup: f64,
    /// Write modes to choose from; the first is the default.
    pub writes: Vec<String>,
    /// Price of a gibibyte of cache, in any currency.
    pub price: Option<f64>,
}

/// A replayed candidate.
#[derive(Debug, Clone, Serialize)]
pub struct Trial {
    /// Its settings.
    pub candidate: Candidate,
    /// Mean time of a request.
    pub mean_us: f64,
    /// Terabytes (10¹²) written to the cache device in a year at the trace's pace. Where the trace
    /// has no times, at that of the replay, as on a volume that is never idle.
    pub written_tb_per_year: f64,
    /// Times the cache device is written whole in a day, at the same pace: the endurance it needs.
    pub writes_per_day: f64,
    /// Price of the cache, where one was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price: Option<f64>,
    /// Everything else that the replay measured.
    pub result: ReplayResult,
}

/// The answer.
#[derive(Debug, Clone, Serialize)]
pub struct Advice {
    /// Name of the trace.
    pub trace: String,
    /// Requests of the last round.
    pub requests: u64,
    /// Requests of the rounds before.
    pub coarse_requests: u64,
    /// Bytes that the trace reads and writes, in blocks of 4 KiB, as `floe trace info` counts them.
    pub footprint_bytes: u64,
    /// The same in blocks of 32 KiB: a cache of that size holds all of it. None larger is tried.
    pub footprint_in_cache_bytes: u64,
    /// Reasons to doubt the answer, in sentences.
    pub warnings: Vec<String>,
    /// The answer in a sentence.
    pub verdict: String,
    /// The recommended floe.toml; none where no cache pays.
    pub toml: Option<String>,
    /// The best settings.
    pub best: Trial,
    /// The best settings that never keep written data in the cache alone, where the best do.
    pub without_write_back: Option<Trial>,
    /// The defaults, with a cache of the same size.
    pub default: Trial,
    /// The volume without a cache.
    pub bare: Trial,
    /// All trials of the last round, best first.
    pub finalists: Vec<Trial>,
    /// Trials of all rounds.
    pub trials: usize,
}

/// Why there is no advice.
#[derive(Debug, thiserror::Error)]
pub enum AdviseError {
    /// The workload does not fit a volume.
    #[error(transparent)]
    Layout(#[from] crate::replay::LayoutError),
    /// The defaults cannot be used: the size is too small or too large.
    #[error("a cache of this size cannot be made: {0}")]
    Config(String),
    /// A replay failed.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// Nothing is read or written, so that no cache serves anything.
    #[error("it has no reads or writes to advise on")]
    Untouched,
    /// It was told to stop.
    #[error("interrupted")]
    Interrupted,
}

impl Trial {
    /// Returns whether the pace of writes is that of the trace's own times.
    pub fn has_pace(&self) -> bool {
        self.result.endurance.as_ref().is_none_or(|it| it.clock == "trace")
    }
}
