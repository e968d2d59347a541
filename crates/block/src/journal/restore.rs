//! Reads a shard's journal back: the newest checkpoint, and the newer part of the log.
//!
//! The log ends before the first page that is not its successor: one with another sequence number,
//! a wrong checksum, or an earlier session than the page before it. A crash leaves a log in this
//! form, and only changes not yet promised are missing. If a later page says that the missing page
//! was durable once, promised changes were lost: the log is damaged (`salvage` handles that case).
//!
//! No later page tells whether the last batch was durable. A missing page of that batch is rebuilt
//! from its parity and the batch's other pages, or repaired if one byte is wrong: then it was
//! written, or about to be. Only pages of the last session count. Later sessions have taken older
//! ones for missing, and have continued without them.
//!
//! A checkpoint with an intact header and damaged pages has two possible causes: damage, or the
//! reuse of the slot after a failed write of its header. In the second case the log still reaches
//! from the older checkpoint to the start of this one, and both amount to the same state. In any
//! other case recovery refuses.

use std::cell::RefCell;
use std::ops::Range;

use super::io::{Io, Mend, Units};
use super::layout::{Layout, StoreError};
use super::map::Map;
use super::page::{Owner, PAGE_BYTES, Page, PageBytes, PageKind, Stamp, looks_like, read};
use super::record::decode;
use super::writer::{Resume, chain, summary};

/// The first sequence number of a log.
pub(super) const FIRST_SEQ: u64 = 1;

/// The header of a complete checkpoint.
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
    /// The latest session that wrote a page.
    pub(super) session: u64,
    /// Generation and number of pages of the checkpoint in use.
    pub(super) checkpoint: Option<(u64, u64)>,
    pub(super) log_pages: u64,
    /// The first damage found, if the journal is damaged.
    pub(super) damage: Option<StoreError>,
    /// Pages at the end of the log that were rebuilt. They are written after all other mends: a
    /// half may still have an older page in their place.
    pub(super) made_again: Vec<Mend>,
    /// Descriptions of the rebuilt pages, a line each.
    pub(super) restored: Vec<String>,
    /// The reason why damage at the end of the log cannot be ruled out.
    pub(super) untold: Option<String>,
}

/// Reads one shard's journal.
pub(super) struct Reader<'a> {
    pub(super) layout: &'a Layout,
    pub(super) owner: Owner,
    /// The last session, if it was closed cleanly. The checksums of dirty data that this session
    /// logged still hold.
    pub(super) ended: Option<u64>,
    /// The number of the last session that has begun.
    pub(super) last: u64,
    /// Set if all copies of the device are read, to find each damaged one.
    pub(super) thorough: bool,
    /// Pages to be written before a session begins.
    pub(super) mends: RefCell<Vec<Mend>>,
}

impl Reader<'_> {
    pub(super) fn shard(&self) -> u64 {
        self.owner.shard.into()
    }

    /// Reads the journal; a damaged one as far as possible. Calls `advance` with the number of
    /// bytes read.
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
        if self.last == 0 && candidates.is_empty() && !self.thorough && !self.has_log(io)? {
            return Ok(self.empty());
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
            let mut log = Log { next: start, session, ends: false, more: None, map };
            let (mut made_again, mut restored) = (Vec::new(), Vec::new());
            let result = self.whole_log(io, &mut log, &mut made_again, &mut restored, advance);
            let untold = if result.is_ok() { self.untold(io, &log)? } else { None };
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
                made_again,
                restored,
                untold,
            });
        }
        unreachable!("without any checkpoint there still is the log")
    }

    /// Returns true if the place of the log's first page has a page of the log, the first or one
    /// that replaced it.
    fn has_log(&self, io: &mut Io<'_>) -> Result<bool, StoreError> {
        let bytes = self.page_at(io, self.layout.page_offset(self.shard(), FIRST_SEQ))?;
        Ok(looks_like(&bytes, self.owner, FIRST_SEQ, self.last)
            || read(&bytes, self.owner).is_some())
    }

    /// Returns the journal of a shard in a cache without a session.
    fn empty(&self) -> Found {
        Found {
            map: Map::new(&self.layout.sizes, self.layout.shard_sectors),
            resume: Resume { first: FIRST_SEQ, next: FIRST_SEQ, good_slot: 1, generation: 0 },
            session: 0,
            checkpoint: None,
            log_pages: 0,
            damage: None,
            made_again: Vec::new(),
            restored: Vec::new(),
            untold: None,
        }
    }

    /// Returns the header in a slot, if a complete checkpoint is there.
    pub(super) fn header(
        &self,
        io: &mut Io<'_>,
        slot: usize,
    ) -> Result<Option<Complete>, StoreError> {
        let bytes = self.page_at(io, self.layout.slot_offset(self.shard(), slot))?;
        let Some(page) = read(&bytes, self.owner) else { return Ok(None) };
        Ok(summary(page.payload).and_then(|summary| self.complete(slot, page.stamp, summary)))
    }

    /// Returns the checkpoint of which a page with this stamp and summary is the header, if it can
    /// be one.
    pub(super) fn complete(
        &self,
        slot: usize,
        stamp: Stamp,
        (pages, chain): (u64, u64),
    ) -> Option<Complete> {
        let (generation, session, start) = (stamp.seq, stamp.session, stamp.mark);
        let is_header =
            stamp.kind == PageKind::Checkpoint && pages <= self.layout.dump_pages && start > 0;
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
        self.stream(io, start..start + complete.pages * PAGE_BYTES as u64, |_, bytes| {
            advance(bytes.len() as u64);
            for bytes in bytes.chunks_exact(PAGE_BYTES) {
                let is_it = |kind, seq, mark| {
                    (kind, seq, mark) == (PageKind::Dump, number, complete.generation)
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

    /// Reads pages, each from a copy of the device in which it is intact.
    pub(super) fn stream(
        &self,
        io: &mut Io<'_>,
        range: Range<u64>,
        each: impl FnMut(u64, &[u8]) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let is_page = |bytes: &[u8]| read(bytes, self.owner).is_some();
        let units = Units { bytes: PAGE_BYTES, thorough: self.thorough };
        io.stream(range, units, is_page, &mut self.mends.borrow_mut(), each)
    }

    pub(super) fn page_at(&self, io: &mut Io<'_>, offset: u64) -> Result<Vec<u8>, StoreError> {
        let mut page = Vec::new();
        self.stream(io, offset..offset + PAGE_BYTES as u64, |_, bytes| {
            page.extend_from_slice(bytes);
            Ok(())
        })?;
        Ok(page)
    }

    /// Applies the log to its map, from `log.next` on, and rebuilds missing pages of its last
    /// batch.
    fn whole_log(
        &self,
        io: &mut Io<'_>,
        log: &mut Log,
        made_again: &mut Vec<Mend>,
        restored: &mut Vec<String>,
        advance: &mut dyn FnMut(u64),
    ) -> Result<(), StoreError> {
        loop {
            (log.ends, log.more) = (false, None);
            self.log(io, log, advance)?;
            let offset = self.layout.page_offset(self.shard(), log.next);
            let Some(bytes) = self.last_page(io, log.next, log.session)? else { break };
            self.log_page(log, offset, &bytes[..], true)?;
            restored.push(format!("page {} of the log, at offset {offset}", log.next - 1));
            let (bytes, wrong) = (bytes.to_vec(), Default::default());
            made_again.push(Mend { offset, bytes, wrong });
        }
        let bytes = self.page_at(io, self.layout.page_offset(self.shard(), log.next))?;
        let is_part = looks_like(&bytes, self.owner, log.next, self.last);
        if self.ended.is_some() && (is_part || log.more.is_some()) {
            return Err(StoreError::Log {
                shard: self.shard(),
                page: log.next,
                offset: self.layout.page_offset(self.shard(), log.next),
                what: "is not what the last session wrote, which was closed cleanly".to_owned(),
            });
        }
        Ok(())
    }

    /// Returns the reason why the log may have been longer. After a crash, pages that were being
    /// written look like pages that were damaged later.
    fn untold(&self, io: &mut Io<'_>, log: &Log) -> Result<Option<String>, StoreError> {
        let offset = self.layout.page_offset(self.shard(), log.next);
        let bytes = self.page_at(io, offset)?;
        let what = match log.more {
            Some(later) => format!("page {later} of the same session is there"),
            None if looks_like(&bytes, self.owner, log.next, self.last) => {
                "a part of it is there".to_owned()
            }
            None => return Ok(None),
        };
        Ok(Some(format!(
            "the log of shard {} ends before page {}, at offset {offset}, though {what}: the power \
             failed while it was written, or else it was damaged later, and what was flushed last \
             is lost",
            self.shard(),
            log.next
        )))
    }

    /// Rebuilds the page at the end of a log, if it belongs to the last session's last batch.
    /// `least` is the session of the page before it.
    pub(super) fn last_page(
        &self,
        io: &mut Io<'_>,
        seq: u64,
        least: u64,
    ) -> Result<Option<PageBytes>, StoreError> {
        if planted!(LastPageLost) {
            return Ok(None);
        }
        let last = self.last.max(least);
        let is_last = |bytes: &PageBytes| {
            read(&bytes[..], self.owner).is_some_and(|page| page.stamp.session == last)
        };
        if let Some(bytes) = self.rebuild(io, seq, least)?.filter(is_last) {
            return Ok(Some(bytes));
        }
        let bytes = self.page_at(io, self.layout.page_offset(self.shard(), seq))?;
        if !looks_like(&bytes, self.owner, seq, last) {
            return Ok(None);
        }
        Ok(self.mended_page(io, seq, least)?.filter(is_last))
    }

    /// Applies the log to its map, from `log.next` on, up to the first page that is missing.
    fn log(
        &self,
        io: &mut Io<'_>,
        log: &mut Log,
        advance: &mut dyn FnMut(u64),
    ) -> Result<(), StoreError> {
        let ring = self.layout.ring(self.shard());
        let start = self.layout.page_offset(self.shard(), log.next);
        for range in [start..ring.end, ring.start..start] {
            self.stream(io, range, |offset, bytes| {
                advance(bytes.len() as u64);
                for (at, bytes) in bytes.chunks_exact(PAGE_BYTES).enumerate() {
                    let offset = offset + (at * PAGE_BYTES) as u64;
                    self.log_page(log, offset, bytes, false)?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    fn log_page(
        &self,
        log: &mut Log,
        offset: u64,
        bytes: &[u8],
        is_made_again: bool,
    ) -> Result<(), StoreError> {
        let page = read(bytes, self.owner).filter(Page::is_of_log);
        let page = page.filter(|page| page.stamp.session >= log.session);
        let damaged =
            |offset, what| StoreError::Log { shard: self.shard(), page: log.next, offset, what };
        match page {
            Some(page) if (!log.ends || is_made_again) && page.stamp.seq == log.next => {
                let (map, at_rest) = (&mut log.map, self.ended == Some(page.stamp.session));
                let records = if page.stamp.kind == PageKind::Log { page.payload } else { &[] };
                decode(records, |statement| map.state(statement, at_rest)).map_err(|found| {
                    damaged(offset, format!("at byte {}, {}", found.at, found.what))
                })?;
                log.session = page.stamp.session;
                log.next += 1;
            }
            Some(page) if page.stamp.seq > log.next && page.stamp.mark >= log.next => {
                let later = page.stamp.seq;
                let what = format!("is missing, though page {later} records that it was written");
                return Err(damaged(self.layout.page_offset(self.shard(), log.next), what));
            }
            found => {
                log.ends = true;
                let is_more = |page: &Page<'_>| {
                    page.stamp.seq > log.next && page.stamp.session == self.last.max(log.session)
                };
                log.more = log.more.or(found.filter(is_more).map(|page| page.stamp.seq));
            }
        }
        Ok(())
    }
}

/// Returns damage as a value and a device failure as an error.
fn checked(error: StoreError) -> Result<StoreError, StoreError> {
    if matches!(error, StoreError::Io { .. }) { Err(error) } else { Ok(error) }
}

/// The state of reading a log.
struct Log {
    /// The sequence number of the next page.
    next: u64,
    /// The session of the last page read.
    session: u64,
    /// Set at the end of the log. Later pages only serve to prove that the log was longer.
    ends: bool,
    /// The number of a later page of the last session, beyond the end.
    more: Option<u64>,
    map: Map,
}
