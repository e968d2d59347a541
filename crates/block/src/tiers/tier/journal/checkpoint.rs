//! Checkpoints: which is due, and its progress.
//!
//! A checkpoint is written while the cache changes. Its blocks are stated one after the other, each
//! in its current state. Then the device is flushed, so that the stated data is durable, and only
//! then the checkpoint becomes valid. Changes noted since it began are in the log, which is read
//! after it.

use super::{Journal, Own};
use crate::bits::Bits;
use crate::cache::{BlockCache, JournalNews};
use crate::store::journal::{Change, PageWrite, ShardJournal, Standing, fits_dump, mix};
use crate::tiers::tier::device::CacheDevice;
use floe_device::{Action, Pool};

/// Blocks that a checkpoint states between two polls of the devices.
const STATED_AT_ONCE: usize = 64;

/// A checkpoint states more blocks only while fewer write operations are under way.
const MOST_UNDER_WAY: usize = 16;

/// A checkpoint of one of the logs.
pub(super) struct Checkpoint {
    log: usize,
    /// Blocks still to be stated, the coldest last.
    left: Vec<u32>,
    pub(super) under_way: usize,
    /// The header, once all blocks have been stated.
    header: Option<PageWrite>,
    pub(super) failed: bool,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Stating,
    Flushing,
    Ending,
}

impl Checkpoint {
    /// Returns whether it can advance without waiting for a device.
    pub(super) fn can_go_on(&self) -> bool {
        self.under_way == 0
            || self.stage == Stage::Stating
                && self.header.is_none()
                && self.under_way < MOST_UNDER_WAY
    }
}

impl Journal {
    /// Advances the checkpoint that is due, if there is one. Returns news for the cache.
    pub(in crate::tiers::tier) fn go_on_with_checkpoint(
        &mut self,
        cache: &BlockCache,
        device: &mut CacheDevice,
        pool: &Pool,
    ) -> Option<JournalNews> {
        if self.checkpoint.is_none() && !self.no_checkpoint && !cache.condition().is_degraded() {
            self.checkpoint = self.due_checkpoint(cache);
        }
        let Some(checkpoint) = &mut self.checkpoint else {
            // A commit that waits for a checkpoint: the checkpoint ended while that commit was
            // under way.
            return Some(JournalNews::NoCheckpoint);
        };
        let log = checkpoint.log;
        if checkpoint.failed {
            if checkpoint.under_way > 0 {
                return None;
            }
            self.logs[log].abandon_checkpoint();
            (self.checkpoint, self.no_checkpoint) = (None, true);
            return Some(JournalNews::CheckpointFailed);
        }
        match checkpoint.stage {
            Stage::Stating if checkpoint.header.is_none() => {
                if checkpoint.under_way < MOST_UNDER_WAY {
                    let pages = self.state_some(cache);
                    let written = self.write_pages(pages, Own::Checkpoint, false, device, pool);
                    self.checkpoint.as_mut().expect("it is under way").under_way += written;
                }
            }
            _ if checkpoint.under_way > 0 => {}
            Stage::Stating => {
                (checkpoint.stage, checkpoint.under_way) = (Stage::Flushing, 1);
                device.begin_at(self.own.begin(Own::CheckpointFlush), 0, Action::Flush);
            }
            Stage::Flushing => {
                (checkpoint.stage, checkpoint.under_way) = (Stage::Ending, 1);
                let header = checkpoint.header.take().expect("all blocks have been stated");
                self.write_pages(vec![header], Own::CheckpointHeader, true, device, pool);
            }
            Stage::Ending => {
                self.checkpoint = None;
                self.logs[log].checkpoint_written();
                return Some(JournalNews::HasRoom);
            }
        }
        None
    }

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
                had_room &= log.dump(&change, |sector| sums.get(sector));
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
