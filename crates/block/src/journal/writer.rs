//! The writing half of a shard's journal: changes become pages, pages go into the ring, checkpoints
//! make room in it.
//!
//! Pages wait in memory until a *commit* hands out a *batch* of them; one batch is being written at
//! a time. A page goes into the ring only where recovery needs no page any more. It needs the pages
//! from `first` on: those after the start of the last durable checkpoint.
//!
//! Each batch ends with [parity](super::page::Parity): any one of its pages may be lost.
//!
//! A checkpoint is a dump of the current state, taken while changes go on. It says from which page
//! on the log is newer: the first page not known to be durable when the checkpoint was begun. By
//! then the shard has applied all changes of older pages, and the log states all later ones. The
//! checkpoint goes into the slot that does not hold the last good one. It becomes valid once its
//! header, with the checksums of all its pages, is durable.

use std::collections::VecDeque;

use super::layout::Layout;
use super::page::{
    MOST_COVERED, Owner, PAGE_BYTES, PageBytes, PageKind, PageWrite, Parity, Stamp, blank,
    checksum, payload, seal,
};
use super::record::{Change, Draft};

/// The write side of a shard's journal. It decides which pages are to be written where; its owner
/// writes them and reports the results.
#[derive(Debug)]
pub(crate) struct ShardJournal {
    layout: Layout,
    owner: Owner,
    /// The session number written into each page.
    session: u64,
    draft: Draft,
    /// Full pages not handed out yet, with their used bytes.
    queue: VecDeque<(PageBytes, usize)>,
    /// The batch being written: pages that may or may not be durable.
    batch: Vec<PageWrite>,
    /// Set when writing the batch has failed.
    failed: bool,
    /// The sequence number of the first page of the log that recovery needs.
    first: u64,
    /// The sequence number of the next page handed out.
    next: u64,
    /// The slot of the last durable checkpoint.
    good_slot: usize,
    /// The generation of the last checkpoint that was begun.
    generation: u64,
    checkpoint: Option<Checkpoint>,
}

/// The position from which a journal continues, as recovery found it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Resume {
    pub(super) first: u64,
    pub(super) next: u64,
    pub(super) good_slot: usize,
    pub(super) generation: u64,
}

impl ShardJournal {
    /// Returns the offset of the next page of the log, in bytes; `None` if recovery still needs the
    /// page in that place.
    pub(crate) fn free_page_offset(&self) -> Option<u64> {
        let is_free = self.next < self.first + self.layout.ring_pages;
        is_free.then(|| self.layout.page_offset(self.shard(), self.next))
    }

    pub(super) fn new(layout: Layout, owner: Owner, session: u64, resume: Resume) -> Self {
        Self {
            layout,
            owner,
            session,
            draft: Draft::default(),
            queue: VecDeque::new(),
            failed: false,
            batch: Vec::new(),
            first: resume.first,
            next: resume.next,
            good_slot: resume.good_slot,
            generation: resume.generation,
            checkpoint: None,
        }
    }

    /// Returns the number of pages that the log has had so far; for tests.
    #[cfg(test)]
    pub(super) fn pages_so_far(&self) -> u64 {
        self.next - 1
    }

    fn shard(&self) -> u64 {
        self.owner.shard.into()
    }

    /// Appends a change. `sum` gives the checksum of a sector by its place in the shard's space.
    pub(crate) fn log(&mut self, change: &Change, sum: impl Fn(u64) -> u64) {
        let queue = &mut self.queue;
        self.draft.push(change, sum, |full| queue.push_back(full.into_parts()));
    }

    /// Returns the number of pages that the next commit has to hand out, if the ring has room for
    /// them.
    pub(crate) fn pending_pages(&self) -> usize {
        let again = if self.failed { self.batch.len() } else { 0 };
        again + self.queue.len() + usize::from(!self.draft.is_empty())
    }

    /// Returns whether some logged change waits for a commit.
    pub(crate) fn has_pending(&self) -> bool {
        self.pending_pages() > 0
    }

    /// Returns whether a batch is being written.
    pub(crate) fn is_committing(&self) -> bool {
        !self.batch.is_empty() && !self.failed
    }

    /// Hands out all pages for which the ring has room, including the unfinished one, as a batch to
    /// be made durable. [`ShardJournal::committed`] or [`ShardJournal::failed`] reports the result.
    /// Returns whether there was room for all pages. The others stay, and need a checkpoint.
    ///
    /// # Panics
    /// When a batch is already being written.
    pub(crate) fn commit(&mut self, out: &mut Vec<PageWrite>) -> bool {
        assert!(!self.is_committing(), "one batch is out at a time");
        self.failed = false;
        let durable = self.next - 1 - self.batch.len() as u64;
        if !self.draft.is_empty() {
            self.queue.push_back(std::mem::take(&mut self.draft).into_parts());
        }
        let mut parity = Parity::default();
        // The next page must be free too, for the parity.
        while self.next + 1 < self.first + self.layout.ring_pages
            && let Some((mut bytes, used)) = self.queue.pop_front()
        {
            let stamp =
                Stamp { kind: PageKind::Log, seq: self.next, session: self.session, mark: durable };
            seal(&mut bytes, self.owner, stamp, used);
            parity.add(&bytes[..], used);
            self.push(bytes);
            if parity.count() == MOST_COVERED || self.queue.is_empty() {
                self.push_parity(&mut parity, durable);
            }
        }
        if parity.count() > 0 {
            self.push_parity(&mut parity, durable);
        }
        out.extend(self.batch.iter().cloned());
        self.queue.is_empty()
    }

    fn push_parity(&mut self, parity: &mut Parity, durable: u64) {
        let stamp =
            Stamp { kind: PageKind::Parity, seq: self.next, session: self.session, mark: durable };
        let (bytes, _) = parity.take(self.owner, stamp);
        self.push(bytes);
    }

    fn push(&mut self, bytes: PageBytes) {
        let offset = self.layout.page_offset(self.shard(), self.next);
        self.batch.push(PageWrite { offset, bytes });
        self.next += 1;
    }

    /// Records that the batch is durable.
    pub(crate) fn committed(&mut self) {
        debug_assert!(!self.failed);
        self.batch.clear();
    }

    /// Records that the batch may not be durable. The next commit hands out the same pages again.
    pub(crate) fn failed(&mut self) {
        self.failed = !self.batch.is_empty();
    }

    /// Returns whether a checkpoint should be begun: none is under way, and half of the ring is in
    /// use or waiting pages have no room.
    pub(crate) fn wants_checkpoint(&self) -> bool {
        let (ring, used) = (self.layout.ring_pages, self.next - self.first);
        let waits = self.queue.len() as u64;
        let has_no_room = used > 0 && used + waits + waits.div_ceil(MOST_COVERED) > ring;
        self.checkpoint.is_none() && (used > ring / 2 || has_no_room)
    }

    /// Returns whether enough pages wait that a commit should not be delayed any longer.
    pub(crate) fn wants_commit(&self) -> bool {
        self.queue.len() as u64 > self.layout.ring_pages / 4
    }

    /// Begins a checkpoint. The caller then passes the shard's whole state to
    /// [`ShardJournal::dump`], including changes that are logged and not durable yet. The order is
    /// coldest block first, with one block's runs together.
    ///
    /// # Panics
    /// When a checkpoint is under way.
    pub(crate) fn begin_checkpoint(&mut self) {
        assert!(self.checkpoint.is_none(), "one checkpoint is under way at a time");
        self.generation += 1;
        let slot = 1 - self.good_slot;
        let pages = Pages {
            owner: self.owner,
            session: self.session,
            generation: self.generation,
            slot_offset: self.layout.slot_offset(self.owner.shard.into(), slot),
            most: self.layout.dump_pages,
            count: 0,
            chain: 0,
            parity: Parity::default(),
            ready: Vec::new(),
            overflowed: false,
        };
        let start = self.next - self.batch.len() as u64;
        self.checkpoint = Some(Checkpoint { start, slot, draft: Draft::default(), pages });
    }

    /// Adds a part of the current state to the checkpoint. Returns whether there was room, as is
    /// always the case when nothing changes between the first dump and the last. A checkpoint
    /// without room must be abandoned.
    ///
    /// # Panics
    /// When no checkpoint is under way.
    #[must_use]
    pub(crate) fn dump(&mut self, change: &Change, sum: impl Fn(u64) -> u64) -> bool {
        let Checkpoint { draft, pages, .. } = self.checkpoint_mut();
        draft.push(change, sum, |full| pages.push(full));
        !pages.overflowed
    }

    /// Hands out the pages of the dump that are full, to be written at any time.
    ///
    /// # Panics
    /// When no checkpoint is under way.
    pub(crate) fn take_checkpoint_pages(&mut self, out: &mut Vec<PageWrite>) {
        out.append(&mut self.checkpoint_mut().pages.ready);
    }

    /// Ends the dump: hands out its last pages, and returns the header. The header is to be written
    /// durably once all pages are durable; then call [`ShardJournal::checkpoint_written`]. Returns
    /// `None` when the last page had no room: the checkpoint must be abandoned.
    ///
    /// # Panics
    /// When no checkpoint is under way.
    pub(crate) fn finish_checkpoint(&mut self, out: &mut Vec<PageWrite>) -> Option<PageWrite> {
        let Checkpoint { draft, pages, start, .. } = self.checkpoint_mut();
        if !draft.is_empty() {
            pages.push(std::mem::take(draft));
        }
        pages.end();
        out.append(&mut pages.ready);
        (!pages.overflowed).then(|| pages.header(*start))
    }

    /// Records that the checkpoint's header is durable: the log before it is not needed any more.
    ///
    /// # Panics
    /// When no checkpoint is under way.
    pub(crate) fn checkpoint_written(&mut self) {
        let checkpoint = self.checkpoint.take().expect("a checkpoint is under way");
        self.first = checkpoint.start;
        self.good_slot = checkpoint.slot;
    }

    /// Abandons the checkpoint under way, if there is one, even if its header may be durable.
    pub(crate) fn abandon_checkpoint(&mut self) {
        self.checkpoint = None;
    }

    fn checkpoint_mut(&mut self) -> &mut Checkpoint {
        self.checkpoint.as_mut().expect("a checkpoint is under way")
    }
}

/// Bytes of a header's payload: the number of the dump's pages, and their [`chain`].
const SUMMARY_BYTES: usize = 2 * size_of::<u64>();

/// A checkpoint under way.
#[derive(Debug)]
pub(super) struct Checkpoint {
    /// The first page of the log that is newer than the checkpoint.
    pub(super) start: u64,
    /// The slot, of two, that the checkpoint is written to.
    pub(super) slot: usize,
    pub(super) draft: Draft,
    pub(super) pages: Pages,
}

/// The pages of a dump.
#[derive(Debug)]
pub(super) struct Pages {
    pub(super) owner: Owner,
    pub(super) session: u64,
    pub(super) generation: u64,
    /// Offset of the header; the pages follow it.
    pub(super) slot_offset: u64,
    /// Maximum number of pages that fit into the slot.
    pub(super) most: u64,
    pub(super) count: u64,
    pub(super) chain: u64,
    pub(super) parity: Parity,
    /// Full pages not handed out yet.
    pub(super) ready: Vec<PageWrite>,
    /// Set when the dump has more pages than the slot has room for.
    pub(super) overflowed: bool,
}

impl Pages {
    pub(super) fn push(&mut self, draft: Draft) {
        if self.count == self.most {
            self.overflowed = true;
            return;
        }
        let (mut bytes, used) = draft.into_parts();
        let stamp = Stamp {
            kind: PageKind::Dump,
            seq: self.count,
            session: self.session,
            mark: self.generation,
        };
        let sum = seal(&mut bytes, self.owner, stamp, used);
        self.parity.add(&bytes[..], used);
        self.chain = chain(self.chain, sum);
        self.count += 1;
        self.ready
            .push(PageWrite { offset: self.slot_offset + self.count * PAGE_BYTES as u64, bytes });
    }

    /// Adds the dump's parity page after the last page, if the slot has room for it.
    pub(super) fn end(&mut self) {
        if self.count > 0 && self.count < self.most && !self.overflowed {
            let stamp = Stamp {
                kind: PageKind::Parity,
                seq: self.count,
                session: self.session,
                mark: self.generation,
            };
            let (bytes, _) = self.parity.take(self.owner, stamp);
            self.ready.push(PageWrite {
                offset: self.slot_offset + (self.count + 1) * PAGE_BYTES as u64,
                bytes,
            });
        }
    }

    /// Returns the header of a checkpoint with these pages.
    pub(super) fn header(&self, start: u64) -> PageWrite {
        let mut bytes = blank();
        let summary = [self.count.to_le_bytes(), self.chain.to_le_bytes()];
        payload(&mut bytes)[..SUMMARY_BYTES].copy_from_slice(summary.as_flattened());
        let stamp = Stamp {
            kind: PageKind::Checkpoint,
            seq: self.generation,
            session: self.session,
            mark: start,
        };
        seal(&mut bytes, self.owner, stamp, SUMMARY_BYTES);
        PageWrite { offset: self.slot_offset, bytes }
    }
}

/// Returns the number of a dump's pages and their chain, from the payload of a header.
pub(super) fn summary(payload: &[u8]) -> Option<(u64, u64)> {
    let payload: &[u8; SUMMARY_BYTES] = payload.try_into().ok()?;
    let (numbers, _) = payload.as_chunks();
    Some((u64::from_le_bytes(numbers[0]), u64::from_le_bytes(numbers[1])))
}

/// Returns the combined checksum of a dump's pages up to `page`, from that of the pages before (0
/// at first) and the page's own.
pub(super) fn chain(before: u64, page: u64) -> u64 {
    checksum([before.to_le_bytes(), page.to_le_bytes()].as_flattened())
}
