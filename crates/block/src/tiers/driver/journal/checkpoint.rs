//! Checkpoints: which is due, and its progress.

use super::super::Driver;
use super::{Checkpoint, Journal, MOST_UNDER_WAY, Own, STATED_AT_ONCE, Stage};
use crate::bits::Bits;
use crate::cache::{BlockCache, JournalNews};
use crate::store::journal::{Change, PageWrite, ShardJournal, Standing, fits_dump, mix};
use floe_device::Action;

impl Driver {
    /// Advances the checkpoint that is due, if there is one.
    pub(crate) fn go_on_with_checkpoint(&mut self) {
        let Some(journal) = &mut self.journal else { return };
        if journal.checkpoint.is_none()
            && !journal.no_checkpoint
            && !self.cache.condition().is_degraded()
        {
            journal.checkpoint = journal.due_checkpoint(&self.cache);
        }
        let Some(checkpoint) = &mut journal.checkpoint else {
            // A commit that waits for a checkpoint: the checkpoint ended while that commit was
            // under way.
            return self.cache.hear_journal(JournalNews::NoCheckpoint, &mut self.orders);
        };
        let log = checkpoint.log;
        if checkpoint.failed {
            if checkpoint.under_way == 0 {
                journal.logs[log].abandon_checkpoint();
                (journal.checkpoint, journal.no_checkpoint) = (None, true);
                self.cache.hear_journal(JournalNews::CheckpointFailed, &mut self.orders);
            }
            return;
        }
        match checkpoint.stage {
            Stage::Stating if checkpoint.header.is_none() => {
                if checkpoint.under_way < MOST_UNDER_WAY {
                    let pages = journal.state_some(&self.cache);
                    let operations = self.write_pages(pages, Own::Checkpoint, false);
                    self.checkpoint().under_way += operations;
                }
            }
            _ if checkpoint.under_way > 0 => {}
            Stage::Stating => {
                (checkpoint.stage, checkpoint.under_way) = (Stage::Flushing, 1);
                self.submit_own(Own::CheckpointFlush, 0, Action::Flush);
            }
            Stage::Flushing => {
                (checkpoint.stage, checkpoint.under_way) = (Stage::Ending, 1);
                let header = checkpoint.header.take().expect("all blocks have been stated");
                self.write_pages(vec![header], Own::CheckpointHeader, true);
            }
            Stage::Ending => {
                journal.checkpoint = None;
                journal.logs[log].checkpoint_written();
                self.cache.hear_journal(JournalNews::HasRoom, &mut self.orders);
            }
        }
    }

    fn checkpoint(&mut self) -> &mut Checkpoint {
        let journal = self.journal.as_mut().expect("a checkpoint belongs to a journal");
        journal.checkpoint.as_mut().expect("a checkpoint is under way")
    }
}

impl Journal {
    /// Begins a checkpoint of a log that wants one.
    fn due_checkpoint(&mut self, cache: &BlockCache) -> Option<Checkpoint> {
        let log = self.logs.iter().position(ShardJournal::wants_checkpoint)?;
        self.logs[log].begin_checkpoint();
        let mut left: Vec<u32> = cache.shards.blocks_by_heat(log);
        left.reverse();
        Some(Checkpoint {
            log,
            left,
            under_way: 0,
            header: None,
            failed: false,
            stage: Stage::Stating,
        })
    }

    /// States the next blocks of the checkpoint, and returns full pages.
    fn state_some(&mut self, cache: &BlockCache) -> Vec<PageWrite> {
        let checkpoint = self.checkpoint.as_mut().expect("a checkpoint is under way");
        let (log, sums) = (&mut self.logs[checkpoint.log], &self.sums[checkpoint.log]);
        let doubted = &self.doubted[checkpoint.log];
        let mut had_room = true;
        let mut changes = Vec::new();
        for _ in 0..STATED_AT_ONCE {
            let Some(block) = checkpoint.left.pop() else { break };
            cache.shards.state_block(checkpoint.log, block, &mut changes);
            changes.iter_mut().for_each(|change| pass_doubt_on(change, doubted));
            if !fits_dump(&changes) {
                mix(&mut changes);
            }
            for change in changes.drain(..) {
                had_room &= log.dump(&change, |sector| sums[sector as usize]);
            }
        }
        let mut pages = Vec::new();
        match checkpoint.left.is_empty() {
            true => checkpoint.header = log.finish_checkpoint(&mut pages),
            false => log.take_checkpoint_pages(&mut pages),
        }
        checkpoint.failed |= !had_room || checkpoint.left.is_empty() && checkpoint.header.is_none();
        pages
    }
}

/// Marks a run of a checkpoint as doubted if some of it is: the other sectors have the right
/// checksums anyway.
fn pass_doubt_on(change: &mut Change, doubted: &Bits) {
    if let Change::Run { block, run, standing: standing @ Standing::Clean } = change
        && doubted.ones() > 0
    {
        let place = |sector: u64| block.place + (sector - block.sectors.start);
        if doubted.any(place(run.start)..place(run.end)) {
            *standing = Standing::Doubted;
        }
    }
}
