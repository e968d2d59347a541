//! Parity: rebuilds lost or damaged pages of the journal from the other pages of their batch.
//!
//! Each batch of a log, and each dump, ends with a parity page: the exclusive or of all their
//! payloads and of their used lengths. Any one page that is lost or damaged can be rebuilt, byte by
//! byte, from the others. A page in which at most one byte is wrong is repaired by its own
//! checksum.

use super::page::{
    Kind, Owner, PAGE_BYTES, PageBytes, Stamp, blank, payload, read, seal, seal_parity,
};
use super::sum::checksum;

/// Most pages of a log that one parity page covers.
pub(super) const MOST_COVERED: u64 = 64;

/// The pages combined so far.
#[derive(Debug)]
pub(super) struct Parity {
    bytes: PageBytes,
    used: u16,
    count: u64,
}

impl Default for Parity {
    fn default() -> Self {
        Self { bytes: blank(), used: 0, count: 0 }
    }
}

impl Parity {
    /// Returns the number of pages combined so far.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Combines a page's payload, of full length, of which `used` bytes are used.
    pub(super) fn add(&mut self, other: &[u8], used: usize) {
        let other = &other[other.len() - payload(&mut self.bytes).len()..];
        payload(&mut self.bytes).iter_mut().zip(other).for_each(|(byte, other)| *byte ^= other);
        self.used ^= used as u16;
        self.count += 1;
    }

    /// Returns the parity page and its checksum, and begins anew.
    pub(super) fn take(&mut self, owner: Owner, stamp: Stamp) -> (PageBytes, u64) {
        let Self { mut bytes, mut used, count } = std::mem::take(self);
        if planted!(ParityEmpty) {
            (bytes, used) = (blank(), 0);
        }
        let covers = count.min(u64::from(u16::MAX)) as u16;
        let sum =
            seal_parity(&mut bytes, owner, Stamp { kind: Kind::Parity, ..stamp }, covers, used);
        (bytes, sum)
    }

    /// Returns the missing page, once all other pages and the parity page have been added.
    pub(super) fn missing(mut self, owner: Owner, stamp: Stamp) -> Option<PageBytes> {
        let used = usize::from(self.used);
        (used <= payload(&mut self.bytes).len()).then(|| {
            seal(&mut self.bytes, owner, stamp, used);
            self.bytes
        })
    }
}

/// Returns the page that these bytes were, if at most one of them has changed since.
pub(super) fn by_checksum(bytes: &[u8], owner: Owner) -> Option<PageBytes> {
    const SUM_BYTES: usize = 8;
    let mut mended: PageBytes = Box::new(bytes.try_into().ok()?);
    let stated = u64::from_le_bytes(*mended.first_chunk()?);
    let wrong = stated ^ checksum(&mended[SUM_BYTES..]);
    // A wrong byte of the checksum itself shows as it is.
    let is_one_byte = (0..SUM_BYTES).any(|at| wrong & !(0xff << (8 * at)) == 0);
    if is_one_byte {
        mended[..SUM_BYTES].copy_from_slice(&(stated ^ wrong).to_le_bytes());
        return read(&mended[..], owner).is_some().then_some(mended);
    }
    // The effect of a wrong byte on the checksum: the table gives it for the last place; for each
    // earlier place the register advances by a byte.
    let none = checksum(&[0]);
    let table: Vec<u64> = (0..=u8::MAX).map(|byte| checksum(&[byte]) ^ none).collect();
    for error in 1..=u8::MAX {
        let mut adds = table[usize::from(error)];
        for at in (SUM_BYTES..PAGE_BYTES).rev() {
            if adds == wrong {
                mended[at] ^= error;
                return read(&mended[..], owner).is_some().then_some(mended);
            }
            adds = table[(adds & 0xff) as usize] ^ (adds >> 8);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: Owner = Owner { cache: *b"0123456789abcdef", shard: 7 };

    fn stamp(seq: u64) -> Stamp {
        Stamp { kind: Kind::Log, seq, session: 9, mark: 5 }
    }

    fn page(seq: u64) -> (PageBytes, usize) {
        let (mut bytes, used) = (blank(), 40 * seq as usize);
        payload(&mut bytes)[..used].iter_mut().for_each(|byte| *byte = seq as u8 + 3);
        seal(&mut bytes, OWNER, stamp(seq), used);
        (bytes, used)
    }

    #[test]
    fn any_one_page_is_made_again_from_the_others() {
        let pages: Vec<_> = (1..6).map(page).collect();
        let mut parity = Parity::default();
        pages.iter().for_each(|(bytes, used)| parity.add(&bytes[..], *used));
        let (all, _) = parity.take(OWNER, stamp(6));
        assert_eq!(parity.count(), 0);
        let found = read(&all[..], OWNER).unwrap();
        assert_eq!((found.stamp.kind, found.covers), (Kind::Parity, 5));
        for lost in 0..pages.len() {
            let mut left = Parity::default();
            left.add(&all[..], usize::from(found.parity_used));
            let others = pages.iter().enumerate().filter(|(at, _)| *at != lost);
            others.for_each(|(_, (bytes, used))| left.add(&bytes[..], *used));
            assert_eq!(left.missing(OWNER, stamp(lost as u64 + 1)).as_ref(), Some(&pages[lost].0));
        }
    }

    #[test]
    fn a_page_with_one_wrong_byte_is_mended_by_its_checksum_and_one_with_two_is_not() {
        let (good, _) = page(5);
        for at in (0..PAGE_BYTES).step_by(61).chain(0..8) {
            let mut bytes = good.clone();
            bytes[at] ^= 1 << (at % 8) | 0x80;
            assert_eq!(by_checksum(&bytes[..], OWNER).as_ref(), Some(&good), "byte {at}");
            bytes[(at + 700) % PAGE_BYTES] ^= 1;
            assert_eq!(by_checksum(&bytes[..], OWNER), None, "byte {at} and another");
        }
        assert_eq!(by_checksum(&blank()[..], OWNER), None);
    }
}
