//! A tier's side of the journal: writes logs when the cache commits and checkpoints when a log
//! fills, and verifies the checksum of each stored sector.
//!
//! Checksums are computed as sectors are written to the cache device, and compared as they are
//! read. A mismatch is a failed read. It is repeated, then tried on each half of a mirror, and an
//! intact half mends the others. Without one, the cache reads the backing device if it can.

mod checkpoint;
mod reading;

use std::sync::Arc;

use floe_device::{Action, Pool, Slice};
use hashbrown::HashMap;

use super::device::CacheDevice;
use crate::bits::Bits;
use crate::engine::request::Fault;
use crate::geometry::SECTOR_BYTES;
use crate::order::{OpId, Order};
use crate::stats::Stats;
use crate::store::journal::{
    Change, Layout, NO_SUM, PageWrite, Restored, ShardJournal, Sums, sum_of,
};
use checkpoint::Checkpoint;
use reading::Reading;
pub(super) use reading::Verified;

/// Mark of the tokens of the journal's own operations, above those of any shard and below the
/// router's.
const MARK: u64 = 0xfe << 56;

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
    share: Share,
    /// Checksums by shard and sector of its space.
    sums: Vec<Arc<Sums>>,
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
    own: OwnOperations,
    /// Sectors whose content differed from the data that had been stored.
    corrupt_sectors: u64,
    /// Sectors that were mended from another half of a mirror.
    mended_sectors: u64,
    /// Bytes of its own pages submitted for writing.
    written_bytes: u64,
}

/// The part's share of the shards: every `parts`th, from `part` on.
struct Share {
    part: usize,
    parts: usize,
    /// Length of each shard's data, in sectors.
    shard_sectors: u64,
}

impl Share {
    /// Returns the log of a shard.
    fn log_of(&self, shard: usize) -> usize {
        (shard - self.part) / self.parts
    }

    /// Returns the log that a run of the cache device belongs to, and the run's first sector there.
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

/// The journal of a part's shards, on its way to the part's thread.
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
    pub(super) fn data_start(&self) -> u64 {
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
    pub(super) fn new(journal: PartJournal) -> Self {
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

    /// Adds the bytes of memory held for checksums, the corrupt sectors, and the bytes written.
    pub(super) fn count(&self, stats: &mut Stats) {
        let sums = self.sums.iter().map(|sums| sums.memory_bytes());
        let sums_bytes = sums.chain(self.doubted.iter().map(Bits::memory_bytes)).sum::<usize>();
        stats.sector_metadata_bytes += sums_bytes as u64;
        stats.corrupt_sectors = self.corrupt_sectors;
        stats.mended_sectors = self.mended_sectors;
        stats.counters.cache_write_bytes += self.written_bytes;
    }

    /// Counts sectors whose content differed from the data that had been stored.
    pub(super) fn count_corrupt(&mut self, sectors: u64) {
        self.corrupt_sectors += sectors;
    }

    /// Clears the doubt about a run that was stored or verified.
    fn trust(&mut self, offset: u64, sectors: usize) {
        let (log, first) = self.share.place_of(offset);
        if self.doubted[log].ones() > 0 {
            self.doubted[log].clear(first..first + sectors as u64);
        }
    }

    /// Computes the checksums of data that is about to be stored.
    pub(super) fn storing(&mut self, offset: u64, from: &Slice) {
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
    pub(super) fn forget(&mut self, offset: u64, sectors: usize) {
        let (log, first) = self.share.place_of(offset);
        (first..first + sectors as u64).for_each(|sector| self.sums[log].set(sector, NO_SUM));
    }

    /// Executes an order about the logs.
    pub(super) fn carry_out(&mut self, order: Order, device: &mut CacheDevice, pool: &Pool) {
        match order {
            Order::Note { shard, noted } => self.note(shard, &noted.0),
            Order::SealLogs => self.seal(),
            Order::WriteLogs { op } => self.write_logs(op, device, pool),
            _ => unreachable!("not about the logs"),
        }
    }

    /// Appends a change to the log of a shard.
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
    pub(super) fn own_ended(&mut self, token: u64, ok: bool) -> bool {
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

    /// Returns an ended operation of the cache that did not go to a device, with its result.
    pub(super) fn take_ended(&mut self) -> Option<(OpId, Result<(), Fault>)> {
        self.ended.pop()
    }

    /// Returns whether so much has been noted that a commit is due.
    pub(super) fn wants_commit(&self) -> bool {
        self.logs.iter().any(ShardJournal::wants_commit)
    }

    /// Returns whether the journal can advance without waiting for a device.
    pub(super) fn can_go_on(&self) -> bool {
        !self.ended.is_empty() || self.checkpoint.as_ref().is_some_and(Checkpoint::can_go_on)
    }

    /// Returns whether the journal has nothing under way.
    pub(super) fn is_idle(&self) -> bool {
        self.ended.is_empty() && self.own.under_way.is_empty() && self.checkpoint.is_none()
    }
}
