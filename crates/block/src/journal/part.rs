//! A tier's side of the journal: writes logs when the cache commits and checkpoints when a log
//! fills, and verifies the checksum of each stored sector.
//!
//! Checksums are computed as sectors are written to the cache device, and compared as they are
//! read. A mismatch is a failed read. It is repeated, then tried on each half of a mirror, and an
//! intact half mends the others. Without one, the cache reads the backing device if it can.

use std::collections::VecDeque;
use std::sync::Arc;

use floe_device::{Action, Halves, Pool, Slice};
use hashbrown::HashMap;

use super::{
    Change, Layout, NO_SUM, PageWrite, Restored, ShardJournal, Standing, Sums, fits_dump, mix,
    sum_of,
};
use crate::bits::Bits;
use crate::cache::{BlockCache, JournalEvent};
use crate::geometry::SECTOR_BYTES;
use crate::join::Fault;
use crate::order::{Bad, OpId, Order};
use crate::stats::Stats;
use crate::watched::CacheDevice;

/// Mark of the tokens of the journal's own operations. These tokens are above those of any shard
/// and below the router's.
const MARK: u64 = 0xfe << 56;

/// Maximum number of pages that are written by one operation.
const PAGES_AT_ONCE: usize = 64;

/// The type of one of the journal's own operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Own {
    Log,
    Checkpoint,
    CheckpointFlush,
    CheckpointHeader,
}

/// The journal of a part: its shards' logs and checksums.
pub(crate) struct Journal {
    /// The logs of the part's shards, in order.
    logs: Vec<ShardJournal>,
    share: Share,
    /// Checksums of the sectors of each shard's space.
    sums: Vec<Arc<Sums>>,
    /// Sectors of each shard that a crash may have left half overwritten, and that were neither
    /// read nor stored since.
    doubted: Vec<Bits>,
    /// Copy of the sector whose checksum is computed. A copy is needed because the memory of
    /// buffers must not be borrowed.
    sector: Vec<u8>,
    /// The pages of the commit under way; `short` is set if a log had no room for all of them.
    sealed: Vec<PageWrite>,
    short: bool,
    commit: Option<Commit>,
    checkpoint: Option<Checkpoint>,
    /// Set when the last checkpoint failed and no commit has ended since.
    no_checkpoint: bool,
    /// Reads of the cache device that are to be verified.
    reading: HashMap<u64, Reading, foldhash::fast::FixedState>,
    /// Ended operations that the cache ordered and that did not go to a device.
    ended: Vec<(OpId, Result<(), Fault>)>,
    own: OwnOperations,
    /// Sectors whose content differed from the data that had been stored.
    corrupt_sectors: u64,
    /// Sectors that were mended from another half of a mirror.
    mended_sectors: u64,
    /// Bytes of journal pages submitted for writing.
    written_bytes: u64,
}

/// The part's share of the shards: every `parts`th, beginning with `part`.
struct Share {
    part: usize,
    parts: usize,
    /// Length of each shard's data, in sectors.
    shard_sectors: u64,
}

impl Share {
    /// Returns the index of a shard's log.
    fn log_of(&self, shard: usize) -> usize {
        (shard - self.part) / self.parts
    }

    /// Returns the index of the log that an offset in the cache's data belongs to, and the sector
    /// in that shard's space.
    fn place_of(&self, offset: u64) -> (usize, u64) {
        let sector = offset / SECTOR_BYTES;
        let shard = (sector / self.shard_sectors) as usize;
        (self.log_of(shard), sector % self.shard_sectors)
    }
}

/// The journal's operations that are under way, by token.
#[derive(Default)]
struct OwnOperations {
    under_way: HashMap<u64, Own, foldhash::fast::FixedState>,
    last: u64,
}

impl OwnOperations {
    /// Begins an operation and returns its token.
    fn begin(&mut self, own: Own) -> u64 {
        self.last += 1;
        let token = MARK | self.last;
        self.under_way.insert(token, own);
        token
    }
}

/// The journal of a part's shards, to be handed to the part's thread.
#[derive(Debug)]
pub struct PartJournal {
    part: usize,
    parts: usize,
    data_start: u64,
    shard_sectors: u64,
    shards: Vec<(Restored, Arc<Sums>)>,
}

impl PartJournal {
    /// Returns the offset of the data on the cache device, in bytes.
    pub(crate) fn data_start(&self) -> u64 {
        self.data_start
    }

    pub(crate) fn new(
        part: usize,
        parts: usize,
        layout: &Layout,
        shards: Vec<(Restored, Arc<Sums>)>,
    ) -> Self {
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

impl Journal {
    pub(crate) fn new(journal: PartJournal) -> Self {
        let PartJournal { part, parts, shard_sectors, shards, .. } = journal;
        let (mut logs, mut sums, mut doubted) = (Vec::new(), Vec::new(), Vec::new());
        for (shard, of_shard) in shards {
            logs.push(shard.journal);
            sums.push(of_shard);
            doubted.push(shard.doubted);
        }
        Self {
            logs,
            share: Share { part, parts, shard_sectors },
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
            own: OwnOperations::default(),
            corrupt_sectors: 0,
            mended_sectors: 0,
            written_bytes: 0,
        }
    }

    /// Adds the memory held for checksums, the corrupt sectors, and the bytes written to the
    /// counters.
    pub(crate) fn count(&self, stats: &mut Stats) {
        let sums = self.sums.iter().map(|sums| sums.memory_bytes());
        let sums_bytes = sums.chain(self.doubted.iter().map(Bits::memory_bytes)).sum::<usize>();
        stats.sector_metadata_bytes += sums_bytes as u64;
        stats.corrupt_sectors = self.corrupt_sectors;
        stats.mended_sectors = self.mended_sectors;
        stats.counters.cache_write_bytes += self.written_bytes;
    }

    /// Counts sectors whose content differed from the data that had been stored.
    pub(crate) fn count_corrupt(&mut self, sectors: u64) {
        self.corrupt_sectors += sectors;
    }

    /// Marks a run as no longer doubted, after it was stored or verified.
    fn trust(&mut self, offset: u64, sectors: usize) {
        let (log, first) = self.share.place_of(offset);
        if self.doubted[log].ones() > 0 {
            self.doubted[log].clear(first..first + sectors as u64);
        }
    }

    /// Computes the checksums of data that is about to be stored.
    pub(crate) fn storing(&mut self, offset: u64, from: &Slice) {
        let mut bytes = std::mem::take(&mut self.sector);
        let sectors = from.len() / bytes.len();
        self.trust(offset, sectors);
        let (log, first) = self.share.place_of(offset);
        for number in 0..sectors {
            let start = number * bytes.len();
            from.slice(start..start + bytes.len()).copy_to(&mut bytes);
            self.sums[log].set(first + number as u64, sum_of(&bytes));
        }
        self.sector = bytes;
    }

    /// Forgets the checksums of a run whose content is unknown.
    pub(crate) fn forget(&mut self, offset: u64, sectors: usize) {
        let (log, first) = self.share.place_of(offset);
        (first..first + sectors as u64).for_each(|sector| self.sums[log].set(sector, NO_SUM));
    }

    /// Executes an order about the logs.
    pub(crate) fn carry_out(&mut self, order: Order, device: &mut CacheDevice, pool: &Pool) {
        match order {
            Order::Note { shard, noted } => self.note(shard, &noted.0),
            Order::SealLogs => self.seal(),
            Order::WriteLogs { op } => self.write_logs(op, device, pool),
            _ => unreachable!("not about the logs"),
        }
    }

    fn note(&mut self, shard: u8, change: &Change) {
        let at = self.share.log_of(shard.into());
        let sums = &self.sums[at];
        self.logs[at].log(change, |sector| sums.get(sector));
    }

    /// Collects the pages of the next commit.
    fn seal(&mut self) {
        debug_assert!(self.sealed.is_empty() && self.commit.is_none(), "one commit at a time");
        self.short = false;
        for log in &mut self.logs {
            if log.has_pending() {
                self.short |= !log.commit(&mut self.sealed);
            }
        }
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

    /// Writes the pages collected for the commit.
    fn write_logs(&mut self, op: OpId, device: &mut CacheDevice, pool: &Pool) {
        let pages = std::mem::take(&mut self.sealed);
        let left = self.write_pages(pages, Own::Log, true, device, pool);
        self.commit = Some(Commit { op, left, failed: false });
        self.end_commit();
    }

    /// Writes pages, adjacent ones together; returns the number of operations.
    fn write_pages(
        &mut self,
        mut pages: Vec<PageWrite>,
        own: Own,
        durable: bool,
        device: &mut CacheDevice,
        pool: &Pool,
    ) -> usize {
        pages.sort_unstable_by_key(|page| page.offset);
        let mut operations = 0;
        let in_row = |a: &PageWrite, b: &PageWrite| a.offset + SECTOR_BYTES == b.offset;
        for row in pages.chunk_by(in_row).flat_map(|row| row.chunks(PAGES_AT_ONCE)) {
            let buffer = pool.allocate(row.len() * SECTOR_BYTES as usize);
            for (number, page) in row.iter().enumerate() {
                let start = number * SECTOR_BYTES as usize;
                buffer.slice(start..start + SECTOR_BYTES as usize).copy_from(&page.bytes[..]);
            }
            let action = Action::Write { from: buffer.whole(), durable };
            self.written_bytes += row.len() as u64 * SECTOR_BYTES;
            device.begin_at(self.own.begin(own), row[0].offset, action);
            operations += 1;
        }
        operations
    }

    /// Handles the end of an operation of the cache device. Returns whether it was the journal's
    /// own.
    pub(crate) fn own_ended(&mut self, token: u64, ok: bool) -> bool {
        let Some(own) = self.own.under_way.remove(&token) else { return false };
        if own == Own::Log {
            let commit = self.commit.as_mut().expect("a commit's pages are being written");
            commit.left -= 1;
            commit.failed |= !ok;
            self.end_commit();
            return true;
        }
        let checkpoint = self.checkpoint.as_mut().expect("a checkpoint is being written");
        checkpoint.under_way -= 1;
        checkpoint.failed |= !ok;
        true
    }

    /// Returns an ended operation that did not go to a device, with its result.
    pub(crate) fn take_ended(&mut self) -> Option<(OpId, Result<(), Fault>)> {
        self.ended.pop()
    }

    /// Returns whether so many changes are pending that a commit is due.
    pub(crate) fn wants_commit(&self) -> bool {
        self.logs.iter().any(ShardJournal::wants_commit)
    }

    /// Returns whether the journal can advance without waiting for a device.
    pub(crate) fn can_go_on(&self) -> bool {
        !self.ended.is_empty() || self.checkpoint.as_ref().is_some_and(Checkpoint::can_go_on)
    }

    /// Returns whether the journal has nothing under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.ended.is_empty() && self.own.under_way.is_empty() && self.checkpoint.is_none()
    }

    /// Advances the checkpoint that is due, if there is one. Returns events for the cache.
    pub(crate) fn go_on_with_checkpoint(
        &mut self,
        cache: &BlockCache,
        device: &mut CacheDevice,
        pool: &Pool,
    ) -> Option<JournalEvent> {
        if self.checkpoint.is_none() && !self.no_checkpoint && !cache.condition().is_degraded() {
            self.checkpoint = self.due_checkpoint(cache);
        }
        let Some(checkpoint) = &mut self.checkpoint else {
            // A commit that waits for a checkpoint: the checkpoint ended while that commit was
            // under way.
            return Some(JournalEvent::NoCheckpoint);
        };
        let log = checkpoint.log;
        if checkpoint.failed {
            if checkpoint.under_way > 0 {
                return None;
            }
            self.logs[log].abandon_checkpoint();
            (self.checkpoint, self.no_checkpoint) = (None, true);
            return Some(JournalEvent::CheckpointFailed);
        }
        match checkpoint.stage {
            CheckpointStage::Stating if checkpoint.header.is_none() => {
                if checkpoint.under_way < MOST_UNDER_WAY {
                    let pages = self.state_some(cache);
                    let written = self.write_pages(pages, Own::Checkpoint, false, device, pool);
                    self.checkpoint.as_mut().expect("it is under way").under_way += written;
                }
            }
            _ if checkpoint.under_way > 0 => {}
            CheckpointStage::Stating => {
                (checkpoint.stage, checkpoint.under_way) = (CheckpointStage::Flushing, 1);
                device.begin_at(self.own.begin(Own::CheckpointFlush), 0, Action::Flush);
            }
            CheckpointStage::Flushing => {
                (checkpoint.stage, checkpoint.under_way) = (CheckpointStage::Ending, 1);
                let header = checkpoint.header.take().expect("all blocks have been stated");
                self.write_pages(vec![header], Own::CheckpointHeader, true, device, pool);
            }
            CheckpointStage::Ending => {
                self.checkpoint = None;
                self.logs[log].checkpoint_written();
                return Some(JournalEvent::HasRoom);
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
            stage: CheckpointStage::Stating,
        })
    }

    /// Dumps the next blocks of the checkpoint, and returns full pages.
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

    /// Registers a read to be verified.
    pub(crate) fn reading(&mut self, op: OpId, offset: u64, to: &Slice) {
        self.reading.insert(op.0, Reading { offset, to: to.clone(), stage: VerifyStage::First });
    }

    /// Verifies the data that an operation has read. A sector without a checksum gets one.
    ///
    /// After a mismatch the data is read a second time. A device, or the path to it, may err once,
    /// but a sector that is called lost stays lost. Then each of its `copies` is read.
    #[inline]
    pub(crate) fn verify(
        &mut self,
        token: u64,
        ok: bool,
        copies: impl FnOnce() -> Halves,
        pool: &Pool,
    ) -> Verified {
        let Some(Reading { offset, to, stage }) = self.reading.remove(&token) else {
            return Verified::Good;
        };
        let (log, start) = self.share.place_of(offset);
        let (next, verified) = match stage {
            VerifyStage::First | VerifyStage::Again(_) if !ok => return Verified::Good,
            VerifyStage::First => {
                let bad = self.compare(offset, &to);
                if bad.is_empty() {
                    self.trust(offset, to.len() / SECTOR);
                    return Verified::Good;
                }
                (VerifyStage::Again(bad), Verified::Again(offset, to.clone()))
            }
            VerifyStage::Again(before) => {
                let found = self.compare(offset, &to);
                if found.is_empty() {
                    self.trust(offset, to.len() / SECTOR);
                    return Verified::Good;
                }
                let unsteady = found != before;
                let bad: Vec<u64> = found.iter().map(|(number, _)| *number).collect();
                let mut left: VecDeque<usize> = copies().iter().collect();
                let Some(copy) = left.pop_front() else {
                    return self.given_up(offset, &bad, unsteady);
                };
                let (first, last) = (bad[0], bad[bad.len() - 1]);
                let bytes = (last + 1 - first) as usize * SECTOR;
                let scratch = pool.allocate(bytes).slice(0..bytes);
                let verified = Verified::Copy(copy, offset + first * SECTOR_BYTES, scratch.clone());
                let (wrong, found, mends) = (Vec::new(), Vec::new(), VecDeque::new());
                let search =
                    Search { bad, unsteady, copy, left, first, scratch, wrong, found, mends };
                (VerifyStage::Search(search), verified)
            }
            VerifyStage::Search(mut search) => {
                if ok {
                    search.take(&to, |number| self.sums[log].get(start + number));
                }
                match search.left.pop_front().filter(|_| !search.bad.is_empty()) {
                    Some(copy) => {
                        search.copy = copy;
                        let at = offset + search.first * SECTOR_BYTES;
                        let verified = Verified::Copy(copy, at, search.scratch.clone());
                        (VerifyStage::Search(search), verified)
                    }
                    None => {
                        search.collect_mends();
                        let lengths = search.mends.iter().map(|run| run.end - run.start);
                        self.mended_sectors += lengths.sum::<u64>();
                        return self.mend_next(token, offset, to, search);
                    }
                }
            }
            // A half that cannot be written leaves the mirror.
            VerifyStage::Mending(search) => return self.mend_next(token, offset, to, search),
        };
        self.reading.insert(token, Reading { offset, to, stage: next });
        verified
    }

    /// Returns the sectors of a read whose checksums do not match, with the checksums found.
    fn compare(&mut self, offset: u64, read: &Slice) -> Vec<(u64, u64)> {
        let mut bytes = std::mem::take(&mut self.sector);
        let (log, first) = self.share.place_of(offset);
        let mut bad = Vec::new();
        for number in 0..(read.len() / SECTOR) as u64 {
            let at = number as usize * SECTOR;
            read.slice(at..at + SECTOR).copy_to(&mut bytes);
            let (sum, found) = (self.sums[log].get(first + number), sum_of(&bytes));
            if sum == NO_SUM {
                self.sums[log].set(first + number, found);
            } else if sum != found && !planted!(ChecksumIgnored) {
                bad.push((number, found));
            }
        }
        self.sector = bytes;
        bad
    }

    /// Begins the next write of a run that some copy lacks, or ends the read.
    fn mend_next(&mut self, token: u64, offset: u64, to: Slice, mut search: Search) -> Verified {
        let Some(run) = search.mends.pop_front() else {
            if search.bad.is_empty() {
                self.trust(offset, to.len() / SECTOR);
                return Verified::Mended;
            }
            return self.given_up(offset, &search.bad, search.unsteady);
        };
        let wrong = search.wrong.iter().filter(|(number, _)| run.contains(number));
        let wrong = wrong.map(|(_, copy)| Halves::one(*copy)).fold(Halves::NONE, Halves::with);
        let from = to.slice(run.start as usize * SECTOR..run.end as usize * SECTOR);
        let verified = Verified::Mend(wrong, offset + run.start * SECTOR_BYTES, from);
        self.reading.insert(token, Reading { offset, to, stage: VerifyStage::Mending(search) });
        verified
    }

    /// Returns the result of a read with sectors that no copy has intact.
    fn given_up(&self, offset: u64, bad: &[u64], unsteady: bool) -> Verified {
        if unsteady {
            return Verified::Unsteady;
        }
        let (log, first) = self.share.place_of(offset);
        let doubted = |number| self.doubted[log].any(first + number..first + number + 1);
        let bad = bad.iter().map(|&number| Bad { number, doubted: doubted(number) });
        Verified::Corrupt(bad.collect())
    }
}

/// Number of blocks that a checkpoint writes between two polls of the devices.
const STATED_AT_ONCE: usize = 64;

/// Number of write operations in flight above which a checkpoint pauses.
const MOST_UNDER_WAY: usize = 16;

/// A checkpoint under way of one of the logs.
struct Checkpoint {
    log: usize,
    /// Blocks still to be dumped, the coldest last.
    left: Vec<u32>,
    under_way: usize,
    /// The header, once all blocks have been dumped.
    header: Option<PageWrite>,
    failed: bool,
    stage: CheckpointStage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CheckpointStage {
    Stating,
    Flushing,
    Ending,
}

impl Checkpoint {
    /// Returns whether the checkpoint can advance without waiting for a device.
    fn can_go_on(&self) -> bool {
        self.under_way == 0
            || self.stage == CheckpointStage::Stating
                && self.header.is_none()
                && self.under_way < MOST_UNDER_WAY
    }
}

/// Marks a run of a checkpoint as doubted if some of its sectors are. The checksums of the other
/// sectors are right anyway.
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

const SECTOR: usize = SECTOR_BYTES as usize;

/// A read of the cache device that is to be verified, and its destination.
struct Reading {
    offset: u64,
    to: Slice,
    stage: VerifyStage,
}

enum VerifyStage {
    /// The first read of the data.
    First,
    /// The second read, after a mismatch. Has the sectors that did not match, each with the
    /// checksum found.
    Again(Vec<(u64, u64)>),
    /// Reading the copies of a mirror one by one to find an intact one.
    Search(Search),
    /// Writing intact data to copies that lack it.
    Mending(Search),
}

/// The search for intact copies of some sectors.
struct Search {
    /// Sectors without an intact copy so far, as indices within the read.
    bad: Vec<u64>,
    /// Set if the first two reads returned different data.
    unsteady: bool,
    /// The copy being read, and the copies still to be read.
    copy: usize,
    left: VecDeque<usize>,
    /// The first sector of the read that is searched, and the buffer for the copy's data.
    first: u64,
    scratch: Slice,
    /// Sectors that were wrong in a copy, each with the number of the copy.
    wrong: Vec<(u64, usize)>,
    /// Sectors that were intact in another copy.
    found: Vec<u64>,
    /// Runs still to be mended.
    mends: VecDeque<std::ops::Range<u64>>,
}

/// The result of verifying a read.
pub(crate) enum Verified {
    /// The data matches, or the device has failed the read.
    Good,
    /// The data is good now: an intact copy was found, whatever the last operation's result is.
    Mended,
    /// Repeat the read, from this offset into this buffer.
    Again(u64, Slice),
    /// Read this copy, from this offset into this buffer.
    Copy(usize, u64, Slice),
    /// Write these bytes at this offset to these copies, which are wrong.
    Mend(Halves, u64, Slice),
    /// The read is unreliable: two reads differed from the stored data, and from each other.
    Unsteady,
    /// The read is corrupt: these sectors differ from the stored data.
    Corrupt(Vec<Bad>),
}

impl Search {
    /// Copies the sectors that are intact in the copy just read into the read's buffer `to`.
    fn take(&mut self, to: &Slice, sum: impl Fn(u64) -> u64) {
        for number in std::mem::take(&mut self.bad) {
            let at = (number - self.first) as usize * SECTOR;
            let bytes = self.scratch.slice(at..at + SECTOR).to_vec();
            if sum_of(&bytes) == sum(number) {
                let at = number as usize * SECTOR;
                to.slice(at..at + SECTOR).copy_from(&bytes);
                self.found.push(number);
            } else {
                self.bad.push(number);
                self.wrong.push((number, self.copy));
            }
        }
    }

    /// Collects the runs of sectors that are intact in one copy and wrong in another.
    fn collect_mends(&mut self) {
        let lacking = |number: &&u64| self.wrong.iter().any(|(wrong, _)| wrong == *number);
        let mut lacked: Vec<u64> = self.found.iter().filter(lacking).copied().collect();
        lacked.sort_unstable();
        let runs = lacked.chunk_by(|one, other| one + 1 == *other);
        self.mends = runs.map(|run| run[0]..run[run.len() - 1] + 1).collect();
    }
}
