//! Reads a shard's journal back: the newest checkpoint, and the newer part of the log.
//!
//! The log ends before the first page that is not its successor: one with another sequence number,
//! a wrong checksum, or an earlier session than the page before it. A crash leaves a log in this
//! form, and only changes not yet promised are missing. If a later page says that the missing page
//! was durable once, promised changes were lost: the log is damaged (`salvage` handles that case).
//!
//! A checkpoint with an intact header and damaged pages has two possible causes: damage, or the
//! reuse of the slot after a failed write of its header. In the second case the log still reaches
//! from the older checkpoint to the start of this one, and both amount to the same state. In any
//! other case recovery refuses.

use super::checkpoint::{chain, summary};
use super::error::StoreError;
use super::io::Io;
use super::layout::Layout;
use super::map::Map;
use super::page::{Kind, Owner, PAGE_BYTES, Page, Stamp, read};
use super::record::decode;
use super::writer::Resume;

/// The first sequence number of a log.
pub(super) const FIRST_SEQ: u64 = 1;

/// A complete checkpoint, by its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Complete {
    pub(super) slot: usize,
    pub(super) generation: u64,
    pub(super) session: u64,
    pub(super) start: u64,
    pub(super) pages: u64,
    pub(super) chain: u64,
}

/// The content of a shard's journal.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) map: Map,
    pub(super) resume: Resume,
    /// The latest session that wrote anything.
    pub(super) session: u64,
    /// The generation of the checkpoint, and its pages.
    pub(super) checkpoint: Option<(u64, u64)>,
    pub(super) log_pages: u64,
    /// The damage, if the journal is not whole.
    pub(super) damage: Option<StoreError>,
}

/// Reads one shard's journal.
pub(super) struct Reader<'a> {
    pub(super) layout: &'a Layout,
    pub(super) owner: Owner,
    /// The last session, if it was closed cleanly: the checksums it noted of dirty data still hold.
    pub(super) ended: Option<u64>,
}

impl Reader<'_> {
    pub(super) fn shard(&self) -> u64 {
        self.owner.shard.into()
    }

    /// Reads the journal; a damaged one as far as possible. Calls `advance` with the bytes read.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn read(
        &self,
        io: &mut Io<'_>,
        advance: &mut dyn FnMut(u64),
    ) -> Result<Found, StoreError> {
        let mut candidates = Vec::new();
        for slot in 0..2 {
            candidates.extend(self.header(io, slot)?);
        }
        candidates.sort_unstable_by_key(|complete| std::cmp::Reverse(complete.generation));
        let generation = candidates.first().map_or(0, |newest| newest.generation);
        // All pages before this one were durable once.
        let reached = candidates.iter().map(|complete| complete.start).max().unwrap_or(FIRST_SEQ);
        let mut damage = None;
        for candidate in candidates.into_iter().map(Some).chain([None]) {
            let mut map = Map::new(&self.layout.sizes, self.layout.shard_sectors);
            if let Some(complete) = &candidate
                && let Err(error) = self.dump(io, complete, &mut map, advance)
            {
                damage = Some(damage.unwrap_or(checked(error)?));
                continue;
            }
            let (start, session) =
                candidate.map_or((FIRST_SEQ, 0), |found| (found.start, found.session));
            let mut log = Log { next: start, session, ends: false, map };
            let result = self.log(io, &mut log, advance);
            let damage = match result {
                Err(error) => Some(damage.unwrap_or(checked(error)?)),
                Ok(()) if log.next < reached => damage,
                Ok(()) => None,
            };
            let good_slot = candidate.map_or(1, |complete| complete.slot);
            return Ok(Found {
                map: log.map,
                resume: Resume { first: start, next: log.next, good_slot, generation },
                session: log.session,
                checkpoint: candidate.map(|complete| (complete.generation, complete.pages)),
                log_pages: log.next - start,
                damage,
            });
        }
        unreachable!("without any checkpoint there still is the log")
    }

    /// Returns the header in a slot, if a complete checkpoint is there.
    pub(super) fn header(
        &self,
        io: &mut Io<'_>,
        slot: usize,
    ) -> Result<Option<Complete>, StoreError> {
        let offset = self.layout.slot_offset(self.shard(), slot);
        let bytes = io.read(offset..offset + PAGE_BYTES as u64)?;
        let Some(page) = read(&bytes, self.owner) else { return Ok(None) };
        Ok(summary(page.payload).and_then(|summary| self.complete(slot, page.stamp, summary)))
    }

    /// Returns the checkpoint that a page of this stamp and summary heads, if it can be a header.
    pub(super) fn complete(
        &self,
        slot: usize,
        stamp: Stamp,
        (pages, chain): (u64, u64),
    ) -> Option<Complete> {
        let (generation, session, start) = (stamp.seq, stamp.session, stamp.mark);
        let is_header =
            stamp.kind == Kind::Checkpoint && pages <= self.layout.dump_pages && start > 0;
        is_header.then_some(Complete { slot, generation, session, start, pages, chain })
    }

    /// Applies a checkpoint's pages to the map.
    fn dump(
        &self,
        io: &mut Io<'_>,
        complete: &Complete,
        map: &mut Map,
        advance: &mut dyn FnMut(u64),
    ) -> Result<(), StoreError> {
        let start = self.layout.slot_offset(self.shard(), complete.slot) + PAGE_BYTES as u64;
        let (mut number, mut found_chain) = (0, 0);
        let damaged = |page, what: String| {
            let offset = start + page * PAGE_BYTES as u64;
            StoreError::Checkpoint { shard: self.shard(), page, offset, what }
        };
        io.stream(start..start + complete.pages * PAGE_BYTES as u64, |_, bytes| {
            advance(bytes.len() as u64);
            for bytes in bytes.chunks_exact(PAGE_BYTES) {
                let is_it = |kind, seq, mark| {
                    (kind, seq, mark) == (Kind::Dump, number, complete.generation)
                };
                let page = read(bytes, self.owner)
                    .filter(|page| is_it(page.stamp.kind, page.stamp.seq, page.stamp.mark))
                    .ok_or_else(|| {
                        damaged(number, "is not the page that was written there".to_owned())
                    })?;
                let at_rest = self.ended == Some(page.stamp.session);
                decode(page.payload, |statement| map.state(statement, at_rest)).map_err(
                    |found| damaged(number, format!("at byte {}, {}", found.at, found.what)),
                )?;
                found_chain = chain(found_chain, page.checksum);
                number += 1;
            }
            Ok(())
        })?;
        if found_chain != complete.chain {
            return Err(damaged(
                0,
                "and those after it, are not the pages that were written there".to_owned(),
            ));
        }
        Ok(())
    }

    /// Applies the log to its map, from `log.next` on.
    fn log(
        &self,
        io: &mut Io<'_>,
        log: &mut Log,
        advance: &mut dyn FnMut(u64),
    ) -> Result<(), StoreError> {
        let ring = self.layout.ring(self.shard());
        let start = self.layout.page_offset(self.shard(), log.next);
        for range in [start..ring.end, ring.start..start] {
            io.stream(range, |offset, bytes| {
                advance(bytes.len() as u64);
                for (at, bytes) in bytes.chunks_exact(PAGE_BYTES).enumerate() {
                    let offset = offset + (at * PAGE_BYTES) as u64;
                    self.log_page(log, offset, bytes)?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    fn log_page(&self, log: &mut Log, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let page = read(bytes, self.owner).filter(Page::is_of_log);
        let page = page.filter(|page| page.stamp.session >= log.session);
        let damaged =
            |offset, what| StoreError::Log { shard: self.shard(), page: log.next, offset, what };
        match page {
            Some(page) if !log.ends && page.stamp.seq == log.next => {
                let (map, at_rest) = (&mut log.map, self.ended == Some(page.stamp.session));
                let records = if page.stamp.kind == Kind::Log { page.payload } else { &[] };
                decode(records, |statement| map.state(statement, at_rest)).map_err(|found| {
                    damaged(offset, format!("at byte {}, {}", found.at, found.what))
                })?;
                log.session = page.stamp.session;
                log.next += 1;
            }
            Some(page) if page.stamp.seq > log.next && page.stamp.mark >= log.next => {
                let what = format!("is not there, but page {} says it was once", page.stamp.seq);
                return Err(damaged(self.layout.page_offset(self.shard(), log.next), what));
            }
            _ => log.ends = true,
        }
        Ok(())
    }
}

/// Returns damage as a value and a device failure as an error.
fn checked(error: StoreError) -> Result<StoreError, StoreError> {
    if matches!(error, StoreError::Io { .. }) { Err(error) } else { Ok(error) }
}

/// A log being read.
struct Log {
    /// The sequence number of the next page.
    next: u64,
    /// The session of the last page read.
    session: u64,
    /// The log has ended. Later pages only serve to prove that it was longer.
    ends: bool,
    map: Map,
}
