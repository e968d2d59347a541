//! Seals: checksums of dirty data in a persistent cache.
//!
//! A commit *seals* all data that has been stored as dirty since the one before: it notes the data
//! with its checksums. The flush before the log is written covers the data. From then on the log
//! states the content of that place. Before other data is written there, the log must durably
//! permit it (*unsealing*): otherwise a crash in between would leave a log that calls good data
//! lost. Data that is not sealed yet may be overwritten at once, any number of times.
//!
//! For each sector of the shard's space the log has, or will have, one of three states: not dirty,
//! dirty and *open*, or dirty and *sealed*. A *due* sector has been stored and waits for the next
//! commit.

use super::Shard;
use super::task::{Part, Step, common};
use crate::bits::Bits;
use crate::directory::Block;
use crate::geometry::Sectors;
use crate::journal::{RestoredBlock, Standing};
use crate::locks::TaskId;
use crate::order::Order;

/// The log's statements on dirty data, by sector of the shard's space.
#[derive(Debug)]
pub(super) struct Seals {
    open: Bits,
    sealed: Bits,
    due: Bits,
    /// Blocks with due sectors, some of them more than once.
    blocks: Vec<Block>,
}

impl Seals {
    /// Creates the seals of a shard of so many sectors.
    pub(super) fn new(sectors: u64) -> Self {
        let [open, sealed, due] = [(); 3].map(|()| Bits::new(sectors));
        Self { open, sealed, due, blocks: Vec::new() }
    }

    /// Records the state of a run of places that the log has, or is about to have. A sealed run
    /// that is noted as no longer dirty stays sealed until that is durable and it is
    /// [forgotten](Self::forget): a checkpoint taken before must include the checksum.
    pub(super) fn note(&mut self, kept: Sectors, standing: Standing) {
        let is_sealed = standing == Standing::Sealed;
        set(&mut self.open, kept.clone(), standing.is_dirty() && !is_sealed);
        set(&mut self.due, kept.clone(), false);
        if standing.is_dirty() {
            set(&mut self.sealed, kept, is_sealed);
        }
    }

    /// Records that nothing in a run of places is dirty any more.
    pub(super) fn forget(&mut self, kept: Sectors) {
        for bits in [&mut self.open, &mut self.sealed, &mut self.due] {
            set(bits, kept.clone(), false);
        }
    }
}

fn set(bits: &mut Bits, range: Sectors, value: bool) {
    if value {
        bits.set(range);
    } else if bits.ones() > 0 {
        bits.clear(range);
    }
}

/// Returns the parts of a run of a block for whose places a bit is set.
fn parts<'a>(
    bits: &'a Bits,
    kept: &Sectors,
    run: &Sectors,
) -> impl Iterator<Item = Sectors> + use<'a> {
    let (from, to) = (kept.start, run.start);
    bits.runs(kept.clone())
        .filter_map(move |(at, bit)| bit.then_some(at.start - from + to..at.end - from + to))
}

impl Shard {
    /// Registers a run that was stored as dirty for sealing by the next commit.
    pub(super) fn seal_later(&mut self, block: Block, run: &Sectors) {
        self.note_rewritten();
        if !self.is_logging() {
            return;
        }
        let kept = self.directory.cache_sectors(block, run);
        self.log.seals.due.set(kept);
        if self.log.seals.blocks.last() != Some(&block) {
            self.log.seals.blocks.push(block);
        }
    }

    /// Prepares a write of dirty data to a run, none of which is sealed. Data stored there before,
    /// perhaps of an answered write, must be noted now: from now on a commit cannot seal it.
    pub(super) fn note_overwriting(
        &mut self,
        block: Block,
        run: &Sectors,
        orders: &mut Vec<Order>,
    ) {
        if self.log.seals.due.ones() == 0 {
            return;
        }
        let kept = self.directory.cache_sectors(block, run);
        if !self.log.seals.due.any(kept.clone()) {
            return;
        }
        let due: Vec<Sectors> = parts(&self.log.seals.due, &kept, run).collect();
        self.log.seals.due.clear(kept);
        for run in due {
            let kept = self.directory.cache_sectors(block, &run);
            if !self.log.seals.open.all(kept) {
                self.note(block, &run, Standing::Dirty, orders);
            }
        }
    }

    /// Seals the due sectors, for the commit that begins.
    pub(super) fn seal(&mut self, orders: &mut Vec<Order>) {
        let mut blocks = std::mem::take(&mut self.log.seals.blocks);
        for block in blocks.drain(..) {
            if self.log.seals.due.ones() == 0 || !self.directory.is_live(block) {
                continue; // it has been cleaned, and perhaps replaced
            }
            let sectors = self.directory.sectors(block);
            let kept = self.directory.cache_sectors(block, &sectors);
            let due: Vec<Sectors> = parts(&self.log.seals.due, &kept, &sectors).collect();
            for run in due {
                let standing = match () {
                    () if planted!(LostDirtyBit) => Standing::Clean,
                    () if planted!(NeverSealed) => Standing::Dirty,
                    () => Standing::Sealed,
                };
                self.note(block, &run, standing, orders);
            }
        }
        self.log.seals.blocks = blocks;
    }

    /// Returns whether a sealed sector prevents a task from storing into a run of a block.
    pub(super) fn is_sealed(&self, block: Block, run: &Sectors) -> bool {
        let sealed = &self.log.seals.sealed;
        sealed.ones() > 0
            && sealed.any(self.directory.cache_sectors(block, run))
            && !planted!(SealedOverwritten)
    }

    /// Notes that the sectors which a task has still to overwrite may change, and makes the task
    /// wait until that is durable.
    pub(super) fn unseal(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        self.tasks[id as usize].step = Step::Unsealing;
        let survey = self.survey(id);
        let task = &self.tasks[id as usize];
        let left = task.cursor..task.store.end;
        for (block, run) in &survey.blocks {
            let run = common(run, &left);
            if run.is_empty() {
                continue;
            }
            let kept = self.directory.cache_sectors(*block, &run);
            let sealed: Vec<Sectors> = parts(&self.log.seals.sealed, &kept, &run).collect();
            sealed.iter().for_each(|run| self.note(*block, run, Standing::Dirty, orders));
            // or the commit that is to come would seal it
            self.note_overwriting(*block, &run, orders);
        }
        self.spare_survey = survey;
        self.await_commit(id, Part::Noted, &left);
    }

    /// Continues a store whose sealed sectors may now be overwritten.
    pub(super) fn unsealing_ended(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        if self.has_failed_with_log(id) {
            self.tasks[id as usize].retry = true; // what is sealed stays so
        }
        match self.tasks[id as usize].fault {
            _ if self.tasks[id as usize].retry => self.storing_ended(id, orders),
            Some(_) => self.storing_ended(id, orders),
            None => self.store(id, orders),
        }
    }

    /// Divides a dirty run of a block, without lost sectors, into parts with a checksum in the log
    /// and parts without.
    pub(super) fn by_seal(&self, block: Block, run: &Sectors) -> Vec<(Sectors, bool)> {
        let kept = self.directory.cache_sectors(block, run);
        let (from, to) = (kept.start, run.start);
        let runs = self.log.seals.sealed.runs(kept);
        runs.map(|(at, bit)| (at.start - from + to..at.end - from + to, bit)).collect()
    }

    /// Returns the bytes of memory held for seals.
    pub(crate) fn seal_bytes(&self) -> u64 {
        let Seals { open, sealed, due, .. } = &self.log.seals;
        [open, sealed, due].map(|bits| bits.memory_bytes() as u64).iter().sum()
    }

    /// Forgets the seals of a run that is durably no longer dirty.
    pub(super) fn forget_seals(&mut self, block: Block, run: &Sectors) {
        if self.is_kept() {
            self.log.seals.forget(self.directory.cache_sectors(block, run));
        }
    }

    /// Restores the seals of a block from the log.
    pub(crate) fn restore_seals(&mut self, block: &RestoredBlock) {
        let kept = |run: &Sectors| {
            let start = block.at.place + run.start - block.at.sectors.start;
            start..start + (run.end - run.start)
        };
        block.dirty.iter().for_each(|run| self.log.seals.note(kept(run), Standing::Dirty));
        block.sealed.iter().for_each(|run| self.log.seals.note(kept(run), Standing::Sealed));
    }
}
