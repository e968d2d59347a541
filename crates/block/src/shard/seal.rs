//! Sealing: which dirty data a commit notes with its checksums, and the permission to overwrite it
//! ([`crate::mapping::Seals`]).

use super::logging::Logging;
use crate::geometry::Sectors;
use crate::mapping::directory::{Block, Directory};
use crate::order::Order;
use crate::store::journal::{RestoredBlock, Standing};

/// Moves a run from one start to another: places of a block to its sectors, or back.
fn moved(run: &Sectors, from: u64, to: u64) -> Sectors {
    run.start - from + to..run.end - from + to
}

impl Logging {
    /// Registers a run that was stored as dirty for sealing by the next commit.
    pub(super) fn seal_later(&mut self, directory: &Directory, block: Block, run: &Sectors) {
        self.note_rewritten();
        if self.is_on() {
            self.seals.seal_later(block, directory.blocks.cache_sectors(block, run));
        }
    }

    /// Prepares a write of dirty data to a run, none of which is sealed. Data stored there before,
    /// perhaps of an answered write, must be noted now: from now on a commit cannot seal it.
    pub(super) fn note_overwriting(
        &mut self,
        directory: &Directory,
        block: Block,
        run: &Sectors,
        orders: &mut Vec<Order>,
    ) {
        let kept = directory.blocks.cache_sectors(block, run);
        for due in self.seals.overwrite(kept.clone()) {
            let run = moved(&due, kept.start, run.start);
            self.note(directory, block, &run, Standing::Dirty, orders);
        }
    }

    /// Permits the overwriting of a run, sealed or not.
    pub(super) fn unseal(
        &mut self,
        directory: &Directory,
        block: Block,
        run: &Sectors,
        orders: &mut Vec<Order>,
    ) {
        for (run, sealed) in self.by_seal(directory, block, run) {
            if sealed {
                self.note(directory, block, &run, Standing::Dirty, orders);
            }
        }
        // or the commit that is to come would seal it
        self.note_overwriting(directory, block, run, orders);
    }

    /// Seals the due sectors, for the commit that begins.
    pub(super) fn seal(&mut self, directory: &Directory, orders: &mut Vec<Order>) {
        let mut blocks = self.seals.take_blocks();
        for block in blocks.drain(..) {
            if !self.seals.has_due() || !directory.blocks.is_live(block) {
                continue; // it has been cleaned, and perhaps replaced
            }
            let sectors = directory.blocks.sectors(block);
            let kept = directory.blocks.cache_sectors(block, &sectors);
            for due in self.seals.due(kept.clone()) {
                let run = moved(&due, kept.start, sectors.start);
                let standing = match () {
                    () if planted!(LostDirtyBit) => Standing::Clean,
                    () if planted!(NeverSealed) => Standing::Dirty,
                    () => Standing::Sealed,
                };
                self.note(directory, block, &run, standing, orders);
            }
        }
        self.seals.reuse(blocks);
    }

    /// Returns whether a sealed sector prevents a task from storing into a run of a block.
    pub(super) fn is_sealed(&self, directory: &Directory, block: Block, run: &Sectors) -> bool {
        self.seals.has_sealed(|| directory.blocks.cache_sectors(block, run))
            && !planted!(SealedOverwritten)
    }

    /// Divides a dirty run of a block, without lost sectors, into parts with a checksum in the log
    /// and parts without.
    pub(super) fn by_seal(
        &self,
        directory: &Directory,
        block: Block,
        run: &Sectors,
    ) -> Vec<(Sectors, bool)> {
        let kept = directory.blocks.cache_sectors(block, run);
        let (from, to) = (kept.start, run.start);
        self.seals.by_seal(kept).map(|(at, sealed)| (moved(&at, from, to), sealed)).collect()
    }

    /// Forgets the seals of a run that is durably no longer dirty.
    pub(super) fn forget_seals(&mut self, directory: &Directory, block: Block, run: &Sectors) {
        if self.is_kept() {
            self.seals.forget(directory.blocks.cache_sectors(block, run));
        }
    }

    /// Restores the seals of a block from the log.
    pub(crate) fn restore_seals(&mut self, block: &RestoredBlock) {
        let kept = |run: &Sectors| moved(run, block.at.sectors.start, block.at.place);
        block.dirty.iter().for_each(|run| self.seals.note(kept(run), Standing::Dirty));
        block.sealed.iter().for_each(|run| self.seals.note(kept(run), Standing::Sealed));
    }
}
