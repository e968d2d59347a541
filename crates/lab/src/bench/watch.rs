//! Observes a cache while it runs: its speed from moment to moment, and the decisions of freezing.
//!
//! The thread that conducts a run looks at it every so often. A cache keeps its last decisions
//! only; those that are seen are kept here, with the latencies known then.

use std::time::{Duration, Instant};

use floe_memory::{FreezeDecision, FreezeStats, Phase};

use super::subject::Freezes;

/// Between two looks at a cache that is being measured.
pub(super) const EVERY: Duration = Duration::from_millis(20);

/// The observation of a cache since the one before.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Time of the cache's own runs until now, warming up included.
    pub seconds: f64,
    /// Its length in seconds.
    pub span: f64,
    /// Operations a second.
    pub ops_per_second: f64,
    /// Share of lookups that hit.
    pub hit_ratio: f64,
    /// Share of hits on frozen entries.
    pub frozen_share: f64,
    /// Share of the entries that are frozen.
    pub frozen_ratio: f64,
    /// The phase of the controller, where there is one.
    pub phase: Option<Phase>,
}

/// A decision of the freeze controller, and what it knew.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// Time of the cache's own runs when it was seen.
    pub seconds: f64,
    /// The decision.
    pub decision: FreezeDecision,
    /// The statistics then, without the decisions.
    pub stats: FreezeStats,
}

/// All that was seen of a cache.
#[derive(Debug, Clone, Default)]
pub struct Watch {
    /// From look to look.
    pub samples: Vec<Sample>,
    /// All decisions, oldest first.
    pub decisions: Vec<Decision>,
    /// The last report of freezing, where the cache freezes.
    pub freezes: Option<Freezes>,
    /// Hits, and those on frozen entries, while it was measured.
    pub measured_hits: (u64, u64),
    /// Shares of frozen entries while it was measured, summed up, and how many.
    measured_ratio: (f64, u64),
    /// The length of the runs that are over.
    ran: Duration,
    /// True if the controller has come to a conclusion.
    has_concluded: bool,
}

impl Watch {
    /// A run begins.
    pub(super) fn begin(&mut self, freezes: Option<Freezes>) -> Run<'_> {
        let now = Instant::now();
        Run { watch: self, began: now, at: now, done: [0; 3], freezes, is_counting: false }
    }

    /// Forgets the conclusion, which no longer holds.
    pub(super) fn forget(&mut self) {
        self.has_concluded = false;
    }

    /// Adds what was seen of a cache that ran after this one.
    pub(super) fn join(&mut self, mut later: Self) {
        let ran = self.ran.as_secs_f64();
        later.samples.iter_mut().for_each(|sample| sample.seconds += ran);
        later.decisions.iter_mut().for_each(|decision| decision.seconds += ran);
        self.samples.append(&mut later.samples);
        self.decisions.append(&mut later.decisions);
        self.freezes = later.freezes;
        self.measured_hits.0 += later.measured_hits.0;
        self.measured_hits.1 += later.measured_hits.1;
        self.measured_ratio.0 += later.measured_ratio.0;
        self.measured_ratio.1 += later.measured_ratio.1;
        self.ran += later.ran;
        self.has_concluded = later.has_concluded;
    }

    /// Share of hits on frozen entries while it was measured.
    pub fn frozen_share(&self) -> f64 {
        self.measured_hits.1 as f64 / self.measured_hits.0.max(1) as f64
    }

    /// Mean share of frozen entries while it was measured.
    pub fn frozen_ratio(&self) -> f64 {
        self.measured_ratio.0 / self.measured_ratio.1.max(1) as f64
    }
}

/// A run that is being watched.
pub(super) struct Run<'a> {
    watch: &'a mut Watch,
    began: Instant,
    at: Instant,
    done: [u64; 3],
    freezes: Option<Freezes>,
    is_counting: bool,
}

impl Run<'_> {
    /// From here on it is measured.
    pub(super) fn count(&mut self) {
        self.is_counting = true;
    }

    /// Returns whether measuring can begin: a cache that freezes has tried it, and freezes or lets
    /// it be.
    pub(super) fn has_concluded(&self) -> bool {
        self.watch.has_concluded || self.freezes.is_none()
    }

    /// Takes in the progress of the run: its hits, misses and writes, and the state of freezing.
    /// Returns whether there was anything new.
    pub(super) fn look(&mut self, done: [u64; 3], freezes: Option<Freezes>) -> bool {
        let now = Instant::now();
        let span = (now - self.at).as_secs_f64();
        // A thread that begins to count may be seen at a moment when it tells less than before.
        let [hits, misses, writes] = [0, 1, 2].map(|at| done[at].saturating_sub(self.done[at]));
        let seconds = (self.watch.ran + (now - self.began)).as_secs_f64();
        let mut sample = Sample {
            seconds,
            span,
            ops_per_second: (hits + misses + writes) as f64 / span.max(1e-9),
            hit_ratio: hits as f64 / (hits + misses).max(1) as f64,
            frozen_share: 0.0,
            frozen_ratio: 0.0,
            phase: None,
        };
        if let (Some(before), Some(seen)) = (&self.freezes, &freezes) {
            // Counts of other threads may be a moment late, each by itself.
            let all = seen.hits.saturating_sub(before.hits);
            let frozen = seen.frozen_hits.saturating_sub(before.frozen_hits).min(all);
            sample.frozen_share = frozen as f64 / all.max(1) as f64;
            sample.frozen_ratio = seen.frozen as f64 / seen.entries.max(1) as f64;
            sample.phase = Some(seen.stats.phase);
            if self.is_counting {
                let (hits, frozen_hits) = self.watch.measured_hits;
                self.watch.measured_hits = (hits + all, frozen_hits + frozen);
                let (sum, count) = self.watch.measured_ratio;
                self.watch.measured_ratio = (sum + sample.frozen_ratio, count + 1);
            }
            self.watch.has_concluded |= matches!(seen.stats.phase, Phase::Frozen | Phase::Waiting);
            self.watch.note_decisions(seconds, &seen.stats);
        }
        self.watch.samples.push(sample);
        let has_moved = self.done != done;
        (self.at, self.done) = (now, done);
        self.freezes = freezes;
        has_moved
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        self.watch.ran += self.began.elapsed();
        self.watch.freezes = self.freezes.take();
    }
}

impl Watch {
    fn note_decisions(&mut self, seconds: f64, stats: &FreezeStats) {
        // Decisions are told apart by when they were made; those of the same moment are seen
        // together.
        let last = self.decisions.last().map(|seen| seen.decision.at);
        let is_new = |decision: &&FreezeDecision| last.is_none_or(|last| decision.at > last);
        let mut known = stats.clone();
        known.decisions.clear();
        let new = stats.decisions.iter().filter(is_new);
        self.decisions.extend(new.map(|decision| Decision {
            seconds,
            decision: decision.clone(),
            stats: known.clone(),
        }));
    }
}
