//! Verification of what was read from the cache device, and the search for an intact copy of it.
//!
//! While it goes on the shard holds its lock on the sectors, so nothing else is written to them.

use std::collections::VecDeque;

use floe_device::{Halves, Pool, Slice};

use super::Journal;
use crate::geometry::SECTOR_BYTES;
use crate::order::{Bad, OpId};
use crate::store::journal::{NO_SUM, sum_of};

const SECTOR: usize = SECTOR_BYTES as usize;

/// A read of the cache device, and its destination.
pub(super) struct Reading {
    offset: u64,
    to: Slice,
    stage: Stage,
}

enum Stage {
    /// It is read for the first time.
    First,
    /// It is read again. These sectors did not match, and had these checksums.
    Again(Vec<(u64, u64)>),
    /// An intact copy is looked for.
    Search(Search),
    /// Copies are mended.
    Mending(Search),
}

/// The search for intact copies of some sectors.
struct Search {
    /// The sectors without an intact copy so far, by their numbers within the read.
    bad: Vec<u64>,
    /// Two reads differed.
    unsteady: bool,
    /// The copy that is being read, and those that are still to be.
    copy: usize,
    left: VecDeque<usize>,
    /// The place of what is read, from this sector of the read on.
    first: u64,
    scratch: Slice,
    /// The sectors that a copy did not have as stored, with that copy.
    wrong: Vec<(u64, usize)>,
    /// The sectors that another copy had.
    found: Vec<u64>,
    /// Runs to be written anew.
    mends: VecDeque<std::ops::Range<u64>>,
}

/// The result of verifying a read.
pub(in crate::tiers::tier) enum Verified {
    /// The data matches, or the device has failed the read.
    Good,
    /// An intact copy was found, whatever the last operation's result is.
    Mended,
    /// The read is to be repeated, from this offset into this buffer.
    Again(u64, Slice),
    /// This copy is to be read, from this offset into this buffer.
    Copy(usize, u64, Slice),
    /// These bytes are to be written at this offset; these copies have something else.
    Mend(Halves, u64, Slice),
    /// Two reads differed from the stored data, and from each other.
    Unsteady,
    /// These sectors differ from the stored data.
    Corrupt(Vec<Bad>),
}

impl Journal {
    /// Registers a read to be verified.
    pub(in crate::tiers::tier) fn reading(&mut self, op: OpId, offset: u64, to: &Slice) {
        self.reading.insert(op.0, Reading { offset, to: to.clone(), stage: Stage::First });
    }

    /// Verifies the data that an operation has read. A sector without a checksum gets one.
    ///
    /// After a mismatch the data is read a second time. A device, or the path to it, may err once,
    /// but a sector that is called lost stays lost. Then each of its `copies` is read.
    #[inline]
    pub(in crate::tiers::tier) fn verify(
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
            Stage::First | Stage::Again(_) if !ok => return Verified::Good,
            Stage::First => {
                let bad = self.compare(offset, &to);
                if bad.is_empty() {
                    self.trust(offset, to.len() / SECTOR);
                    return Verified::Good;
                }
                (Stage::Again(bad), Verified::Again(offset, to.clone()))
            }
            Stage::Again(before) => {
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
                (Stage::Search(search), verified)
            }
            Stage::Search(mut search) => {
                if ok {
                    search.take(&to, |number| self.sums[log].get(start + number));
                }
                match search.left.pop_front().filter(|_| !search.bad.is_empty()) {
                    Some(copy) => {
                        search.copy = copy;
                        let at = offset + search.first * SECTOR_BYTES;
                        let verified = Verified::Copy(copy, at, search.scratch.clone());
                        (Stage::Search(search), verified)
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
            Stage::Mending(search) => return self.mend_next(token, offset, to, search),
        };
        self.reading.insert(token, Reading { offset, to, stage: next });
        verified
    }

    /// Returns the sectors of a read that do not match, with the checksums found.
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
        self.reading.insert(token, Reading { offset, to, stage: Stage::Mending(search) });
        verified
    }

    /// Ends a read of sectors of which no copy is intact.
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

impl Search {
    /// Takes the sectors that a copy has as stored.
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

    /// Collects the runs of sectors that one copy has and another one lacks.
    fn collect_mends(&mut self) {
        let lacking = |number: &&u64| self.wrong.iter().any(|(wrong, _)| wrong == *number);
        let mut lacked: Vec<u64> = self.found.iter().filter(lacking).copied().collect();
        lacked.sort_unstable();
        let runs = lacked.chunk_by(|one, other| one + 1 == *other);
        self.mends = runs.map(|run| run[0]..run[run.len() - 1] + 1).collect();
    }
}
