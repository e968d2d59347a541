//! A frozen phase, watched: whether it is still worth it, and whether it is time for a new index.
//!
//! Blocks of windows are compared with the baseline, each block once. A phase ends only when several blocks in a row are slower
//! by more than the error of the comparison and a margin: a stall, or a busy minute of another program, is over by then.

use std::time::Duration;

use floe_policy::trial::Difference;

use super::drift::Drift;
use super::observe::Observations;
use super::windows::{Costs, Tally, Windows};

/// Windows in a block.
const BLOCK: usize = 16;
/// Blocks that are looked at together.
const BLOCKS: usize = 4;
/// The chance that noise alone makes a block look slower.
const RISK: f64 = 0.001;
/// What a block may be slower by, as a share of the baseline.
const MARGIN: f64 = 0.02;
/// Windows of the first block after which there should be something to be seen of a gain.
const FIRST_LOOK: usize = 6;
/// Windows at the start of a phase that are not looked at: the processor's caches do not know the new index yet.
const FIRST: u64 = 1;

/// What a block says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Verdict {
    /// The block is not over.
    Open,
    /// Faster than the baseline.
    Gain(Difference),
    /// In the first windows nothing is gained, whatever the error.
    Doubt(Difference),
    /// The error is larger than the difference.
    Even(Difference),
    /// Slower than the baseline, for so many blocks in a row.
    Loss(Difference, u32),
    /// Nothing to compare with.
    Unknown,
}

/// Frozen phases with one ratio.
#[derive(Debug, Clone)]
pub(super) struct Monitor {
    pub(super) began: Duration,
    windows: Windows,
    pub(super) drift: Drift,
    /// In this phase.
    lookups: u64,
    /// Of the first block of the first phase.
    pub(super) first: Option<Tally>,
    closed: u64,
    in_block: usize,
    losses: u32,
}

impl Monitor {
    pub(super) fn new(now: Duration) -> Self {
        Self {
            began: now,
            windows: Windows::new(now, BLOCKS * BLOCK),
            drift: Drift::default(),
            lookups: 0,
            first: None,
            closed: 0,
            in_block: 0,
            losses: 0,
        }
    }

    /// A new index with the same ratio serves; what is being compared goes on.
    pub(super) fn refreshed(&mut self, now: Duration) {
        self.began = now;
        self.drift.begin();
        self.lookups = 0;
        self.closed = 0;
        self.windows.interrupt(now);
    }

    /// Lookups in this phase, without those while the index was tried.
    pub(super) fn lookups(&self) -> u64 {
        self.lookups
    }

    /// The means of the last block's windows.
    pub(super) fn last_block(&self, elsewhere: &Costs) -> Vec<f64> {
        let mut means = self.windows.means(elsewhere);
        means.drain(..means.len().saturating_sub(BLOCK));
        means
    }

    /// Those of the last blocks.
    pub(super) fn windows(&self) -> &Windows {
        &self.windows
    }

    /// Forgets the open window: the index is bypassed, or was just now.
    pub(super) fn interrupt(&mut self, now: Duration) {
        self.windows.interrupt(now);
    }

    /// Takes in what was seen, and compares at the end of a block.
    pub(super) fn step(&mut self, seen: &Observations, baseline: &[f64], elsewhere: &Costs) -> Verdict {
        self.lookups += seen.lookups();
        if !self.windows.add(seen) {
            return Verdict::Open;
        }
        self.closed += 1;
        if self.closed <= FIRST {
            self.windows.drop_last();
            return Verdict::Open;
        }
        if let Some(&window) = self.windows.last() {
            self.drift.add(seen.now.saturating_sub(self.began), &window);
        }
        self.in_block += 1;
        if self.in_block < BLOCK {
            let is_look = self.first.is_none() && self.in_block == FIRST_LOOK;
            let found = is_look.then(|| Difference::between(baseline, &self.windows.means(elsewhere), RISK));
            let doubt = found.flatten().filter(|found| found.gain <= 0.0);
            return doubt.map_or(Verdict::Open, Verdict::Doubt);
        }
        self.in_block = 0;
        self.first.get_or_insert_with(|| self.windows.total());
        // The last block tells soonest, several tell more.
        let compare = |means: Vec<f64>| Difference::between(baseline, &means, RISK);
        let (block, all) = (compare(self.last_block(elsewhere)), compare(self.windows.means(elsewhere)));
        let (Some(block), Some(all)) = (block, all) else { return Verdict::Unknown };
        if let Some(loss) = [block, all].into_iter().find(|found| found.is_loss(MARGIN)) {
            self.losses += 1;
            return Verdict::Loss(loss, self.losses);
        }
        self.losses = 0;
        if all.is_gain(0.0) { Verdict::Gain(all) } else { Verdict::Even(all) }
    }
}
