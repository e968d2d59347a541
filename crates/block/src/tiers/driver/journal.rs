//! The driver's side of the journal: writes logs when the cache commits and checkpoints when a log
//! fills, and verifies the checksum of each stored sector.
//!
//! Checksums are computed as sectors are written to the cache device, and compared as they are
//! read. A mismatch is a failed read, which the cache repeats from the backing device if it can.
//!
//! A checkpoint is written while the cache changes. Its blocks are stated one after the other, each
//! in its current state. Then the device is flushed, so that the stated data is durable, and only
//! then the checkpoint becomes valid. Changes noted since it began are in the log, which is read
//! after it.

mod checkpoint;
mod orders;

use std::io;

use floe_device::{Action, Device, Operation, Slice};
use hashbrown::HashMap;

use super::Driver;
use crate::bits::Bits;
use crate::cache::JournalNews;
use crate::engine::request::Fault;
use crate::geometry::SECTOR_BYTES;
use crate::order::{Bad, OpId};
use crate::store::journal::{Change, Layout, NO_SUM, PageWrite, Restored, ShardJournal, sum_of};

/// Mark of the tokens of the journal's own operations, above those of any shard and below the
/// router's.
const MARK: u64 = 0xfe << 56;

/// Blocks that a checkpoint states between two polls of the devices.
const STATED_AT_ONCE: usize = 64;

/// A checkpoint states more blocks only while fewer write operations are under way.
const MOST_UNDER_WAY: usize = 16;

/// Most pages that are written by one operation.
const PAGES_AT_ONCE: usize = 64;

/// The type of an operation of the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Own {
    Log,
    Checkpoint,
    CheckpointFlush,
    CheckpointHeader,
}

/// The journal of a part.
pub(super) struct Journal {
    /// The logs of the part's shards, in order.
    logs: Vec<ShardJournal>,
    /// Length of each shard's data, in sectors.
    shard_sectors: u64,
    parts: usize,
    part: usize,
    /// Checksums by shard and sector of its space.
    sums: Vec<Vec<u64>>,
    /// By shard: sectors that a crash may have left half overwritten, neither read nor stored
    /// since.
    doubted: Vec<Bits>,
    /// Copy of the sector whose checksum is computed: the memory of buffers must not be borrowed.
    sector: Vec<u8>,
    /// The pages of the commit under way; `short` if a log had no room for all of them.
    sealed: Vec<PageWrite>,
    short: bool,
    commit: Option<Commit>,
    checkpoint: Option<Checkpoint>,
    /// The last checkpoint failed, and no commit has ended since.
    no_checkpoint: bool,
    /// Reads of the cache device that are to be verified.
    reading: HashMap<u64, Reading, foldhash::fast::FixedState>,
    /// Ended operations of the cache that did not go to a device.
    ended: Vec<(OpId, Result<(), Fault>)>,
    own: HashMap<u64, Own, foldhash::fast::FixedState>,
    next_token: u64,
    /// Sectors whose content differed from the data that had been stored.
    pub(super) corrupt_sectors: u64,
    /// Bytes of its own pages submitted for writing.
    pub(super) written_bytes: u64,
}

/// A read of the cache device, and its destination.
struct Reading {
    offset: u64,
    to: Slice,
    /// The sectors that did not match when they were read before, and the checksums found.
    before: Option<Vec<(u64, u64)>>,
}

/// The result of verifying a read.
pub(super) enum Verified {
    /// The data matches, or the device has failed the read.
    Good,
    /// The read is to be repeated, from this offset into this buffer.
    Again(u64, Slice),
    /// Two reads differed from the stored data, and from each other.
    Unsteady,
    /// These sectors differ from the stored data.
    Corrupt(Vec<Bad>),
}

/// The journal of a part's shards, on its way to the part's thread.
#[derive(Debug)]
pub struct PartJournal {
    part: usize,
    parts: usize,
    data_start: u64,
    shard_sectors: u64,
    shards: Vec<Restored>,
}

impl PartJournal {
    pub(crate) fn new(part: usize, parts: usize, layout: &Layout, shards: Vec<Restored>) -> Self {
        let (data_start, shard_sectors) = (layout.data_offset_bytes(0), layout.shard_sectors());
        Self { part, parts, data_start, shard_sectors, shards }
    }
}

/// A commit whose pages are being written.
struct Commit {
    op: OpId,
    left: usize,
    failed: bool,
}

/// A checkpoint of one of the logs.
struct Checkpoint {
    log: usize,
    /// Blocks still to be stated, the coldest last.
    left: Vec<u32>,
    under_way: usize,
    /// The header, once all blocks have been stated.
    header: Option<PageWrite>,
    failed: bool,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Stating,
    Flushing,
    Ending,
}

impl Journal {
    fn new(journal: PartJournal) -> Self {
        let PartJournal { part, parts, shard_sectors, shards, .. } = journal;
        let (mut logs, mut sums, mut doubted) = (Vec::new(), Vec::new(), Vec::new());
        for shard in shards {
            logs.push(shard.journal);
            sums.push(shard.sums);
            doubted.push(shard.doubted);
        }
        Self {
            logs,
            shard_sectors,
            parts,
            part,
            sums,
            doubted,
            sector: vec![0; SECTOR_BYTES as usize],
            sealed: Vec::new(),
            short: false,
            commit: None,
            checkpoint: None,
            no_checkpoint: false,
            reading: HashMap::default(),
            ended: Vec::new(),
            own: HashMap::default(),
            next_token: 0,
            corrupt_sectors: 0,
            written_bytes: 0,
        }
    }

    /// Returns the bytes of memory held for checksums.
    pub(super) fn memory_bytes(&self) -> u64 {
        let sums = self.sums.iter().map(|sums| sums.capacity() * size_of::<u64>());
        sums.chain(self.doubted.iter().map(Bits::memory_bytes)).sum::<usize>() as u64
    }

    /// Returns the log that a run of the cache device belongs to, and the run's first sector there.
    fn place_of(&self, offset: u64) -> (usize, u64) {
        let sector = offset / SECTOR_BYTES;
        let shard = (sector / self.shard_sectors) as usize;
        ((shard - self.part) / self.parts, sector % self.shard_sectors)
    }

    /// Returns the checksums of a run of the cache device.
    fn sums_at(&mut self, offset: u64, sectors: usize) -> &mut [u64] {
        let (log, first) = self.place_of(offset);
        &mut self.sums[log][first as usize..first as usize + sectors]
    }

    /// Clears the doubt about a run that was stored or verified.
    fn trust(&mut self, offset: u64, sectors: usize) {
        let (log, first) = self.place_of(offset);
        if self.doubted[log].ones() > 0 {
            self.doubted[log].clear(first..first + sectors as u64);
        }
    }

    /// Computes the checksums of data that is about to be stored.
    pub(super) fn storing(&mut self, offset: u64, from: &Slice) {
        let mut bytes = std::mem::take(&mut self.sector);
        let sectors = from.len() / bytes.len();
        self.trust(offset, sectors);
        for (number, sum) in self.sums_at(offset, sectors).iter_mut().enumerate() {
            let start = number * bytes.len();
            from.slice(start..start + bytes.len()).copy_to(&mut bytes);
            *sum = sum_of(&bytes);
        }
        self.sector = bytes;
    }

    /// Forgets the checksums of a run whose content is unknown.
    pub(super) fn forget(&mut self, offset: u64, sectors: usize) {
        self.sums_at(offset, sectors).fill(NO_SUM);
    }

    /// Registers a read to be verified.
    pub(super) fn reading(&mut self, op: OpId, offset: u64, to: &Slice) {
        self.reading.insert(op.0, Reading { offset, to: to.clone(), before: None });
    }

    /// Verifies the data that an operation has read. A sector without a checksum gets one.
    ///
    /// After a mismatch the data is read a second time. A device, or the path to it, may err once,
    /// but a sector that is called lost stays lost.
    pub(super) fn verify(&mut self, token: u64, result: &io::Result<()>) -> Verified {
        let Some(Reading { offset, to, before }) = self.reading.remove(&token) else {
            return Verified::Good;
        };
        if result.is_err() {
            return Verified::Good;
        }
        let mut bytes = std::mem::take(&mut self.sector);
        let (size, mut bad) = (bytes.len(), Vec::new());
        let (log, first) = self.place_of(offset);
        for (number, sum) in self.sums_at(offset, to.len() / size).iter_mut().enumerate() {
            to.slice(number * size..(number + 1) * size).copy_to(&mut bytes);
            let found = sum_of(&bytes);
            if *sum == NO_SUM {
                *sum = found;
            }
            if *sum != found && !planted!(ChecksumIgnored) {
                bad.push((number as u64, found));
            }
        }
        self.sector = bytes;
        match before {
            _ if bad.is_empty() => {
                self.trust(offset, to.len() / size);
                Verified::Good
            }
            None => {
                self.reading.insert(token, Reading { offset, to: to.clone(), before: Some(bad) });
                Verified::Again(offset, to)
            }
            Some(before) if before == bad => {
                let doubted = |number| self.doubted[log].any(first + number..first + number + 1);
                let bad =
                    bad.into_iter().map(|(number, _)| Bad { number, doubted: doubted(number) });
                Verified::Corrupt(bad.collect())
            }
            Some(_) => Verified::Unsteady,
        }
    }

    /// Appends a change to the log of a shard.
    pub(super) fn note(&mut self, shard: u8, change: &Change) {
        let at = (shard as usize - self.part) / self.parts;
        let sums = &self.sums[at];
        self.logs[at].log(change, |sector| sums[sector as usize]);
    }

    /// Collects the pages of the next commit.
    pub(super) fn seal(&mut self) {
        debug_assert!(self.sealed.is_empty() && self.commit.is_none(), "one commit at a time");
        self.short = false;
        for log in &mut self.logs {
            if log.has_pending() {
                self.short |= !log.commit(&mut self.sealed);
            }
        }
    }

    fn token(&mut self, own: Own) -> u64 {
        self.next_token += 1;
        let token = MARK | self.next_token;
        self.own.insert(token, own);
        token
    }

    fn end_commit(&mut self) {
        let Some(Commit { op, left: 0, failed }) = self.commit else { return };
        (self.commit, self.no_checkpoint) = (None, false);
        self.logs.iter_mut().for_each(|log| if failed { log.failed() } else { log.committed() });
        let result = match failed {
            true => Err(Fault::Io),
            false if self.short => Err(Fault::NoSpace),
            false => Ok(()),
        };
        self.ended.push((op, result));
    }
}

impl Driver {
    /// Writes the pages collected for the commit.
    pub(super) fn write_logs(&mut self, op: OpId) {
        let journal = self.journal.as_mut().expect("a cache that is kept has a journal");
        let pages = std::mem::take(&mut journal.sealed);
        journal.commit = Some(Commit { op, left: usize::MAX, failed: false });
        let left = self.write_pages(pages, Own::Log, true);
        let journal = self.journal.as_mut().expect("it is still there");
        journal.commit = Some(Commit { op, left, failed: false });
        journal.end_commit();
    }

    /// Writes pages, adjacent ones together; returns the number of operations.
    fn write_pages(&mut self, mut pages: Vec<PageWrite>, own: Own, durable: bool) -> usize {
        pages.sort_unstable_by_key(|page| page.offset);
        let mut operations = 0;
        let in_row = |a: &PageWrite, b: &PageWrite| a.offset + SECTOR_BYTES == b.offset;
        for row in pages.chunk_by(in_row).flat_map(|row| row.chunks(PAGES_AT_ONCE)) {
            let buffer = self.pool.allocate(row.len() * SECTOR_BYTES as usize);
            for (number, page) in row.iter().enumerate() {
                let start = number * SECTOR_BYTES as usize;
                buffer.slice(start..start + SECTOR_BYTES as usize).copy_from(&page.bytes[..]);
            }
            let action = Action::Write { from: buffer.whole(), durable };
            let journal = self.journal.as_mut().expect("a cache that is kept has a journal");
            journal.written_bytes += row.len() as u64 * SECTOR_BYTES;
            self.submit_own(own, row[0].offset, action);
            operations += 1;
        }
        operations
    }

    fn submit_own(&mut self, own: Own, offset: u64, action: Action) {
        let token = self.journal.as_mut().expect("a cache that is kept has a journal").token(own);
        self.cache_device.device.submit(Operation { token, offset, action });
    }

    /// Handles the end of an operation of the cache device. Returns whether it was the journal's
    /// own.
    pub(super) fn journal_ended(&mut self, token: u64, result: &io::Result<()>) -> bool {
        let Some(journal) = &mut self.journal else { return false };
        let Some(own) = journal.own.remove(&token) else { return false };
        let failed = result.is_err();
        if own == Own::Log {
            let commit = journal.commit.as_mut().expect("a commit's pages are being written");
            commit.left -= 1;
            commit.failed |= failed;
            journal.end_commit();
            return true;
        }
        let checkpoint = journal.checkpoint.as_mut().expect("a checkpoint is being written");
        checkpoint.under_way -= 1;
        checkpoint.failed |= failed;
        true
    }

    /// Passes the results of the journal's operations to the cache.
    pub(super) fn hear_journal(&mut self) {
        let Some(journal) = &mut self.journal else { return };
        while let Some((op, result)) = journal.ended.pop() {
            self.cache.completed(op, result, &mut self.orders);
        }
        if journal.logs.iter().any(ShardJournal::wants_commit) {
            self.cache.hear_journal(JournalNews::MuchNoted, &mut self.orders);
        }
    }

    /// Returns whether a checkpoint can advance without waiting for a device.
    pub(super) fn journal_can_go_on(&self) -> bool {
        let Some(journal) = &self.journal else { return false };
        let can = |checkpoint: &Checkpoint| {
            checkpoint.under_way == 0
                || checkpoint.stage == Stage::Stating
                    && checkpoint.header.is_none()
                    && checkpoint.under_way < MOST_UNDER_WAY
        };
        !journal.ended.is_empty() || journal.checkpoint.as_ref().is_some_and(can)
    }

    /// Returns whether the journal has nothing under way.
    pub(super) fn journal_is_idle(&self) -> bool {
        self.journal.as_ref().is_none_or(|journal| {
            journal.ended.is_empty() && journal.own.is_empty() && journal.checkpoint.is_none()
        })
    }
}
