//! A checkpoint being written: pages that state the whole directory, and a header that makes them
//! valid.

use super::page::{Kind, Owner, PAGE_BYTES, PageWrite, Stamp, blank, payload, seal};
use super::parity::Parity;
use super::record::Draft;
use super::sum::checksum;

/// Bytes of a header's payload: the number of its pages, and their [`chain`].
const SUMMARY_BYTES: usize = 2 * size_of::<u64>();

/// A checkpoint under way.
#[derive(Debug)]
pub(super) struct Checkpoint {
    /// From this page on the log is newer.
    pub(super) start: u64,
    /// The slot, of two, that it is written to.
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
    /// Most pages that fit into the slot.
    pub(super) most: u64,
    pub(super) count: u64,
    pub(super) chain: u64,
    pub(super) parity: Parity,
    /// Pages not handed out yet.
    pub(super) ready: Vec<PageWrite>,
    /// The dump has more pages than the slot has room for.
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
            kind: Kind::Dump,
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
                kind: Kind::Parity,
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

    /// Returns the header of a checkpoint of these pages.
    pub(super) fn header(&self, start: u64) -> PageWrite {
        let mut bytes = blank();
        let summary = [self.count.to_le_bytes(), self.chain.to_le_bytes()];
        payload(&mut bytes)[..SUMMARY_BYTES].copy_from_slice(summary.as_flattened());
        let stamp = Stamp {
            kind: Kind::Checkpoint,
            seq: self.generation,
            session: self.session,
            mark: start,
        };
        seal(&mut bytes, self.owner, stamp, SUMMARY_BYTES);
        PageWrite { offset: self.slot_offset, bytes }
    }
}

/// Returns the number of pages and their chain, from the payload of a header.
pub(super) fn summary(payload: &[u8]) -> Option<(u64, u64)> {
    let payload: &[u8; SUMMARY_BYTES] = payload.try_into().ok()?;
    let (numbers, _) = payload.as_chunks();
    Some((u64::from_le_bytes(numbers[0]), u64::from_le_bytes(numbers[1])))
}

/// Returns the checksum of a dump's pages up to one, from that of the pages before it, 0 at first.
pub(super) fn chain(before: u64, page: u64) -> u64 {
    checksum([before.to_le_bytes(), page.to_le_bytes()].as_flattened())
}
