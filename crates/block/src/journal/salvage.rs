//! Salvage of a damaged journal: the part of it that can still be trusted.
//!
//! A damaged page is rebuilt from its batch's [parity](super::page::Parity), or repaired by its
//! checksum; then nothing is lost. Where that fails there is a gap, and statements from before it
//! are suspect. The lost page may have said that a sector has been cleaned, overwritten, moved or
//! dropped since. So after a gap
//!
//! - later statements of the log are trusted;
//! - clean sectors from before are forgotten: the backing device has them, or newer data;
//! - dirty sectors from before, without a later statement, are *lost*: they read as errors and are
//!   never written back;
//! - statements that only the lost page made are unknown, and cannot be named.
//!
//! A lost page of a checkpoint makes nothing else suspect: each page states the content at that
//! time, and the log has all later changes.

use std::collections::BTreeMap;

use super::io::Io;
use super::layout::StoreError;
use super::map::Map;
use super::page::{
    MOST_COVERED, PAGE_BYTES, Page, PageBytes, PageKind, Parity, Stamp, blank, by_checksum,
    looks_like, read, seal,
};
use super::record::decode;
use super::restore::{Complete, FIRST_SEQ, Reader};
use super::writer::{Resume, chain, summary};
use crate::geometry::{Sectors, VolumeId};

/// The salvaged content of a damaged journal.
#[derive(Debug)]
pub(super) struct Salvaged {
    pub(super) map: Map,
    /// Position behind all pages that were found, to continue from. A checkpoint has to dump
    /// everything anew.
    pub(super) resume: Resume,
    pub(super) session: u64,
    /// Descriptions of the pages that were rebuilt, a line each.
    pub(super) mended: Vec<String>,
    /// Descriptions of the pages that are lost, a line each.
    pub(super) gone: Vec<String>,
    /// Dirty runs that are lost with those pages.
    pub(super) lost: Vec<(VolumeId, Sectors)>,
}

/// The properties of a log page that was found, without its records.
#[derive(Debug, Clone, Copy)]
struct Known {
    session: u64,
    mark: u64,
}

impl Reader<'_> {
    /// Returns the part of a journal that can be trusted, whatever its damage.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn salvage(&self, io: &mut Io<'_>) -> Result<Salvaged, StoreError> {
        let mut mended = Vec::new();
        let mut headers = Vec::new();
        for slot in 0..2 {
            if let Some(complete) = self.header(io, slot)? {
                headers.push(complete);
            } else if let Some(complete) = self.mended_header(io, slot)? {
                mended.push(format!("the header of checkpoint {}", complete.generation));
                headers.push(complete);
            }
        }
        headers.sort_unstable_by_key(|complete| std::cmp::Reverse(complete.generation));
        let generation = headers.first().map_or(0, |newest| newest.generation);
        let reached = headers.iter().map(|complete| complete.start).max().unwrap_or(FIRST_SEQ);
        let mut first = None;
        for candidate in headers.into_iter().map(Some).chain([None]) {
            let mut salvaged = self.salvage_from(io, candidate, generation)?;
            salvaged.mended.splice(0..0, mended.iter().cloned());
            // As in recovery: the slot of the newest one may have been in use again, and the log
            // then reaches from an older one up to where that begins.
            if salvaged.gone.is_empty() && salvaged.resume.next >= reached {
                return Ok(salvaged);
            }
            first.get_or_insert(salvaged);
        }
        Ok(first.expect("there still is the log without any checkpoint"))
    }

    /// Salvages the readable part of a checkpoint, if there is one, and of the log after it.
    fn salvage_from(
        &self,
        io: &mut Io<'_>,
        checkpoint: Option<Complete>,
        generation: u64,
    ) -> Result<Salvaged, StoreError> {
        let (mut mended, mut gone) = (Vec::new(), Vec::new());
        let mut map = Map::new(&self.layout.sizes, self.layout.shard_sectors);
        if let Some(complete) = &checkpoint {
            self.salvage_dump(io, complete, &mut map, &mut mended, &mut gone)?;
        }
        let (start, session) =
            checkpoint.map_or((FIRST_SEQ, 0), |complete| (complete.start, complete.session));
        let (next, session) =
            self.salvage_log(io, start, session, &mut map, &mut mended, &mut gone)?;
        let lost = map.condemn();
        let good_slot = checkpoint.map_or(1, |complete| complete.slot);
        let resume = Resume { first: next, next, good_slot, generation };
        Ok(Salvaged { map, resume, session, mended, gone, lost })
    }

    fn mended_header(&self, io: &mut Io<'_>, slot: usize) -> Result<Option<Complete>, StoreError> {
        let offset = self.layout.slot_offset(self.shard(), slot);
        let bytes = self.page_at(io, offset)?;
        let Some(bytes) = by_checksum(&bytes, self.owner) else { return Ok(None) };
        let page = read(&bytes[..], self.owner).expect("it has just been mended");
        Ok(summary(page.payload).and_then(|summary| self.complete(slot, page.stamp, summary)))
    }

    /// Applies the readable pages of a dump.
    fn salvage_dump(
        &self,
        io: &mut Io<'_>,
        complete: &Complete,
        map: &mut Map,
        mended: &mut Vec<String>,
        gone: &mut Vec<String>,
    ) -> Result<(), StoreError> {
        let start = self.layout.slot_offset(self.shard(), complete.slot) + PAGE_BYTES as u64;
        let offset = |number: u64| start + number * PAGE_BYTES as u64;
        let is_it = |page: &Page<'_>, number: u64| {
            let stamp = page.stamp;
            (stamp.kind, stamp.seq, stamp.mark) == (PageKind::Dump, number, complete.generation)
        };
        let (mut bad, mut others, mut found_chain) = (Vec::new(), Parity::default(), 0);
        for number in 0..complete.pages {
            let bytes = self.page_at(io, offset(number))?;
            match read(&bytes, self.owner).filter(|page| is_it(page, number)) {
                Some(page) => {
                    others.add(&bytes, page.payload.len());
                    found_chain = chain(found_chain, page.checksum);
                }
                None => bad.push(number),
            }
        }
        if bad.is_empty() && found_chain != complete.chain {
            gone.push(format!(
                "checkpoint {}: its pages are not those that its header names",
                complete.generation
            ));
        }
        let parity = if complete.pages < self.layout.dump_pages {
            self.page_at(io, offset(complete.pages))?
        } else {
            Vec::new()
        };
        let parity_page = read(&parity, self.owner).filter(|page| {
            let stamp = page.stamp;
            (stamp.kind, stamp.seq, stamp.mark)
                == (PageKind::Parity, complete.pages, complete.generation)
        });
        let mut again = BTreeMap::new();
        if let ([number], Some(page)) = (&bad[..], parity_page) {
            others.add(&parity, usize::from(page.parity_used));
            let stamp = Stamp { kind: PageKind::Dump, seq: *number, ..page.stamp };
            again.extend(others.missing(self.owner, stamp).map(|bytes| (*number, bytes)));
        }
        for number in 0..complete.pages {
            let mut bytes = self.page_at(io, offset(number))?;
            if bad.contains(&number) {
                let page = again.remove(&number).or_else(|| by_checksum(&bytes, self.owner));
                let name = format!(
                    "page {number} of checkpoint {}, at offset {}",
                    complete.generation,
                    offset(number)
                );
                match page.filter(|bytes| {
                    read(&bytes[..], self.owner).is_some_and(|page| is_it(&page, number))
                }) {
                    Some(page) => {
                        mended.push(name);
                        bytes = page.to_vec();
                    }
                    None => {
                        gone.push(name);
                        continue;
                    }
                }
            }
            let page = read(&bytes, self.owner).expect("it is there");
            self.state(map, &page, gone);
        }
        Ok(())
    }

    /// Applies the records of a page, as far as they can be read.
    fn state(&self, map: &mut Map, page: &Page<'_>, gone: &mut Vec<String>) {
        let at_rest = self.ended == Some(page.stamp.session);
        if page.stamp.kind == PageKind::Parity {
            return;
        }
        if let Err(found) = decode(page.payload, |statement| map.state(statement, at_rest)) {
            gone.push(format!(
                "page {} from byte {} on, which {}",
                page.stamp.seq, found.at, found.what
            ));
            map.suspect();
        }
    }

    /// Applies the readable pages of a log. Returns the next sequence number and the last session.
    fn salvage_log(
        &self,
        io: &mut Io<'_>,
        start: u64,
        mut session: u64,
        map: &mut Map,
        mended: &mut Vec<String>,
        gone: &mut Vec<String>,
    ) -> Result<(u64, u64), StoreError> {
        let mut known: BTreeMap<u64, Known> = BTreeMap::new();
        self.stream(io, self.layout.ring(self.shard()), |_, bytes| {
            for bytes in bytes.chunks_exact(PAGE_BYTES) {
                if let Some(page) = read(bytes, self.owner).filter(Page::is_of_log)
                    && page.stamp.seq >= start
                {
                    let Stamp { session, mark, .. } = page.stamp;
                    known.insert(page.stamp.seq, Known { session, mark });
                }
            }
            Ok(())
        })?;
        let (mut next, mut missing) = (start, Vec::new());
        loop {
            if let Some(page) = known.get(&next).filter(|page| page.session >= session) {
                session = page.session;
                let bytes = self.page_at(io, self.layout.page_offset(self.shard(), next))?;
                let page = read(&bytes, self.owner).filter(Page::is_of_log);
                if let Some(page) = page {
                    self.state(map, &page, gone);
                }
                next += 1;
                continue;
            }
            let later = || known.range(next + 1..).filter(|(_, page)| page.session >= session);
            let was_durable =
                later().map(|(_, page)| page.mark).max().is_some_and(|mark| mark >= next);
            let mut rebuilt = match was_durable {
                true => self.rebuild(io, next, session)?,
                false => self.last_page(io, next, session)?,
            };
            if rebuilt.is_none() && was_durable {
                rebuilt = self.mended_page(io, next, session)?;
            }
            // A session that has ended well has left no page half written.
            let is_gap = was_durable
                || self.ended.is_some_and(|ended| {
                    later().any(|(_, page)| page.session == ended) || self.is_part(io, next, ended)
                });
            if rebuilt.is_none() && !is_gap {
                break; // what stands beyond must not be taken for more of it
            }
            if let Some(bytes) = rebuilt {
                self.state(
                    map,
                    &read(&bytes[..], self.owner).expect("it has just been made"),
                    gone,
                );
                let offset = self.layout.page_offset(self.shard(), next);
                mended.push(format!("page {next} of the log, at offset {offset}"));
                next += 1;
            } else {
                // No page of the batches before the page that was found can be rebuilt.
                let there = later().next().map_or(next + 1, |(seq, _)| *seq);
                let end = (next + 1).max(there.saturating_sub(MOST_COVERED + 1));
                missing.push(next..end);
                map.suspect();
                next = end;
            }
        }
        let runs = missing.chunk_by(|one, other| one.end == other.start);
        gone.extend(runs.map(|run| {
            let (first, last) = (run[0].start, run[run.len() - 1].end - 1);
            let offset = self.layout.page_offset(self.shard(), first);
            match first == last {
                true => format!("page {first} of the log, at offset {offset}"),
                false => format!("pages {first} to {last} of the log, from offset {offset} on"),
            }
        }));
        Ok((next, session))
    }

    /// Returns whether the place of a log page has a torn part of a page of this session.
    fn is_part(&self, io: &mut Io<'_>, seq: u64, session: u64) -> bool {
        let bytes = self.page_at(io, self.layout.page_offset(self.shard(), seq));
        bytes.is_ok_and(|bytes| looks_like(&bytes, self.owner, seq, session))
    }

    /// Repairs a page of the log in which at most one byte is wrong.
    pub(super) fn mended_page(
        &self,
        io: &mut Io<'_>,
        seq: u64,
        least: u64,
    ) -> Result<Option<PageBytes>, StoreError> {
        let bytes = self.page_at(io, self.layout.page_offset(self.shard(), seq))?;
        Ok(by_checksum(&bytes, self.owner).filter(|bytes| {
            let page = read(&bytes[..], self.owner).expect("it has just been mended");
            page.is_of_log() && page.stamp.seq == seq && page.stamp.session >= least
        }))
    }

    /// Rebuilds a missing page of the log from the other pages of its batch. Pages of sessions
    /// before `least` do not count.
    pub(super) fn rebuild(
        &self,
        io: &mut Io<'_>,
        seq: u64,
        least: u64,
    ) -> Result<Option<PageBytes>, StoreError> {
        let is_it = |page: &Page<'_>, seq: u64| {
            page.is_of_log() && page.stamp.seq == seq && page.stamp.session >= least
        };
        let (mut others, mut sessions) = (Parity::default(), Vec::new());
        for later in seq + 1..=seq + MOST_COVERED {
            let bytes = self.page_at(io, self.layout.page_offset(self.shard(), later))?;
            let Some(page) = read(&bytes, self.owner).filter(|page| is_it(page, later)) else {
                return Ok(None);
            };
            if page.stamp.kind == PageKind::Log {
                others.add(&bytes, page.payload.len());
                sessions.push(page.stamp.session);
                continue;
            }
            if sessions.iter().any(|session| *session != page.stamp.session) {
                return Ok(None);
            }
            let first = later.saturating_sub(u64::from(page.covers));
            let before =
                self.page_at(io, self.layout.page_offset(self.shard(), seq.saturating_sub(1)))?;
            let is_before = |before: &Page<'_>| {
                is_it(before, seq.saturating_sub(1)) && before.stamp.session == page.stamp.session
            };
            if first == seq + 1
                && read(&before, self.owner).is_some_and(|before| is_before(&before))
            {
                // It was the parity of the batch before: nothing is lost with it.
                let mut bytes = blank();
                seal(&mut bytes, self.owner, Stamp { kind: PageKind::Log, seq, ..page.stamp }, 0);
                return Ok(Some(bytes));
            }
            if first > seq {
                return Ok(None);
            }
            others.add(&bytes, usize::from(page.parity_used));
            for earlier in first..seq {
                let bytes = self.page_at(io, self.layout.page_offset(self.shard(), earlier))?;
                let other = read(&bytes, self.owner);
                let Some(other) = other.filter(|other| {
                    other.stamp.seq == earlier
                        && (other.stamp.kind, other.stamp.session)
                            == (PageKind::Log, page.stamp.session)
                }) else {
                    return Ok(None);
                };
                others.add(&bytes, other.payload.len());
            }
            return Ok(others.missing(self.owner, Stamp { kind: PageKind::Log, seq, ..page.stamp }));
        }
        Ok(None)
    }
}
