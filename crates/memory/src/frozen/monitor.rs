//! A frozen phase, watched: whether it is still worth it, and whether it is time for a new index.
//!
//! Blocks of windows are compared with the baseline, each block once. A phase ends only when
//! several blocks in a row are slower by more than the error of the comparison and a margin: a
//! stall, or a busy minute of another program, is over by then. The loss of an ageing index by its
//! hits alone is counted and known much sooner.
//!
//! It is no `Trial` of the policy crate: a trial has both modes take turns, and the baseline here
//! is a measurement from before. To thaw for it again and again would cost what freezing gains.

use std::time::Duration;

use floe_policy::trial::Difference;

use super::drift::Drift;
use super::observe::Observations;
use super::shares::Prices;
use super::windows::{Costs, WindowCounts, Windows};

/// Windows in a block.
const BLOCK: usize = 16;
/// Blocks that are looked at together.
const BLOCKS: usize = 4;
/// The chance that noise alone makes a block look slower.
const RISK: f64 = 0.001;
/// Tells what a block may be slower by, as a share of the baseline.
const MARGIN: f64 = 0.02;
/// Windows, at most, whose hits tell whether an index has grown old; what may be lost, as a share
/// of the baseline; and samples that make a new price of misses.
const RECENT: usize = 4;
const OLD_MARGIN: f64 = 0.01;
const SAMPLES_MIN: u64 = 30;
/// Windows at the start of a phase that are not looked at: the processor's caches do not know the
/// new index yet.
const FIRST: u64 = 1;

/// Holds what a block says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Verdict {
    /// The block is not over.
    Open,
    /// Not slower than the baseline, or not for certain.
    Fine,
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
    pub(super) first: Option<WindowCounts>,
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

    /// The last windows, as far as they are this index's.
    pub(super) fn recent(&self) -> WindowCounts {
        let mut recent = WindowCounts::default();
        let served = self.closed.saturating_sub(FIRST) as usize;
        self.windows.iter().rev().take(served.min(RECENT)).for_each(|window| recent.merge(window));
        recent
    }

    /// Returns whether the index has so many hits less than the cache had without that it is slower
    /// for these alone, and by how much.
    pub(super) fn old(&self, baseline: &WindowCounts, prices: &Prices) -> Option<Difference> {
        let recent = self.recent();
        let misses = recent.latencies.miss;
        let miss = misses.mean().filter(|_| misses.count >= SAMPLES_MIN).unwrap_or(prices.miss);
        let found = Prices { miss, ..*prices }.difference(baseline, &recent)?;
        found.is_loss(OLD_MARGIN).then_some(found)
    }

    /// Takes in what was seen, and compares at the end of a block.
    pub(super) fn step(
        &mut self,
        seen: &Observations,
        baseline: &[f64],
        elsewhere: &Costs,
    ) -> Verdict {
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
            return Verdict::Open;
        }
        self.in_block = 0;
        self.first.get_or_insert_with(|| self.windows.total());
        // The last block tells soonest, several tell more.
        let compare = |means: Vec<f64>| Difference::between(baseline, &means, RISK);
        let (block, all) =
            (compare(self.last_block(elsewhere)), compare(self.windows.means(elsewhere)));
        let (Some(block), Some(all)) = (block, all) else { return Verdict::Unknown };
        if let Some(loss) = [block, all].into_iter().find(|found| found.is_loss(MARGIN)) {
            self.losses += 1;
            return Verdict::Loss(loss, self.losses);
        }
        self.losses = 0;
        Verdict::Fine
    }
}
