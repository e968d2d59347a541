//! The page: a unit of 4 KiB that names its owner and carries its own checksum.
//!
//! Log, dumps and the headers of checkpoints all consist of pages of one form. A page names its
//! cache by an id that no two caches share. So a cache never takes the pages of an earlier one for
//! its own. A page is written once and never appended to. A torn page has a wrong checksum and is
//! ignored.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Size of a page in bytes.
pub(super) const PAGE_BYTES: usize = 4096;

/// Bytes of a page available for records.
pub(super) const PAYLOAD_BYTES: usize = PAGE_BYTES - size_of::<Header>();

const MAGIC: [u8; 4] = *b"FlPg";

/// Bytes of the checksum at the start of a page. The checksum does not cover itself.
const SUM_BYTES: usize = size_of::<u64>();

/// The bytes of a page.
pub(crate) type PageBytes = Box<[u8; PAGE_BYTES]>;

/// A page to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PageWrite {
    /// Offset on the cache device, in bytes.
    pub(crate) offset: u64,
    pub(crate) bytes: PageBytes,
}

/// The owner of a page: a cache and a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) cache: [u8; 16],
    pub(super) shard: u16,
}

/// The type of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PageKind {
    /// A page of the log: records in the order in which the changes were made.
    Log = 1,
    /// A page of a checkpoint: records of the state when the checkpoint was taken.
    Dump = 2,
    /// The header that completes a checkpoint.
    Checkpoint = 3,
    /// A parity page: exclusive or of the preceding pages of a batch or a dump; see [`Parity`].
    Parity = 4,
}

/// The identity of a page within its journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) kind: PageKind,
    /// For a log page, its sequence number from 1 on; for a dump page, its number from 0 on; for a
    /// checkpoint header, the generation. Parity is numbered like the pages it stands for.
    pub(super) seq: u64,
    /// The session that wrote the page.
    pub(super) session: u64,
    /// For a log page, the last page known to be durable; for a dump page, the generation of its
    /// checkpoint. For a checkpoint header, the sequence number from which on the log is newer.
    pub(super) mark: u64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    checksum: U64,
    magic: [u8; 4],
    kind: u8,
    unused: u8,
    shard: U16,
    cache: [u8; 16],
    seq: U64,
    session: U64,
    mark: U64,
    used: U32,
    /// For a parity page, the number of pages covered, and their used bytes, combined like their
    /// payloads.
    covers: U16,
    parity_used: U16,
}

/// A page whose checksum and owner have been verified.
#[derive(Debug)]
pub(super) struct Page<'a> {
    pub(super) stamp: Stamp,
    pub(super) checksum: u64,
    /// For a parity page, the number of pages covered, and their used bytes combined.
    pub(super) covers: u16,
    pub(super) parity_used: u16,
    /// The records of the page.
    pub(super) payload: &'a [u8],
}

impl Page<'_> {
    /// Returns whether the page is numbered like a page of a log. So is a dump's parity page, but
    /// it never stands in a ring.
    pub(super) fn is_of_log(&self) -> bool {
        matches!(self.stamp.kind, PageKind::Log | PageKind::Parity)
    }
}

/// Returns an empty page.
pub(super) fn blank() -> PageBytes {
    Box::new([0; PAGE_BYTES])
}

/// Returns the part of a page for its records.
pub(super) fn payload(bytes: &mut [u8; PAGE_BYTES]) -> &mut [u8] {
    &mut bytes[size_of::<Header>()..]
}

/// Completes a page with `used` bytes of records. Returns its checksum.
pub(super) fn seal(bytes: &mut [u8; PAGE_BYTES], owner: Owner, stamp: Stamp, used: usize) -> u64 {
    seal_with(bytes, owner, stamp, used, [0; 2])
}

/// Completes a parity page. Returns its checksum.
pub(super) fn seal_parity(
    bytes: &mut [u8; PAGE_BYTES],
    owner: Owner,
    stamp: Stamp,
    covers: u16,
    parity_used: u16,
) -> u64 {
    seal_with(bytes, owner, stamp, PAYLOAD_BYTES, [covers, parity_used])
}

fn seal_with(
    bytes: &mut [u8; PAGE_BYTES],
    owner: Owner,
    stamp: Stamp,
    used: usize,
    [covers, parity_used]: [u16; 2],
) -> u64 {
    let mut header = Header {
        checksum: U64::ZERO,
        magic: MAGIC,
        kind: stamp.kind as u8,
        unused: 0,
        shard: owner.shard.into(),
        cache: owner.cache,
        seq: stamp.seq.into(),
        session: stamp.session.into(),
        mark: stamp.mark.into(),
        used: (used as u32).into(),
        covers: covers.into(),
        parity_used: parity_used.into(),
    };
    bytes[..size_of::<Header>()].copy_from_slice(header.as_bytes());
    header.checksum = checksum(&bytes[SUM_BYTES..]).into();
    bytes[..SUM_BYTES].copy_from_slice(header.checksum.as_bytes());
    header.checksum.get()
}

/// Returns the page in these bytes, if it is intact and belongs to this owner.
pub(super) fn read(bytes: &[u8], owner: Owner) -> Option<Page<'_>> {
    let (header, payload) = Header::ref_from_prefix(bytes).ok()?;
    let used = header.used.get() as usize;
    let kind = match header.kind {
        1 => PageKind::Log,
        2 => PageKind::Dump,
        3 => PageKind::Checkpoint,
        4 => PageKind::Parity,
        _ => return None,
    };
    let is_ours =
        header.magic == MAGIC && header.cache == owner.cache && header.shard.get() == owner.shard;
    if !is_ours || used > payload.len() || checksum(&bytes[SUM_BYTES..]) != header.checksum.get() {
        return None;
    }
    let (seq, session, mark) = (header.seq.get(), header.session.get(), header.mark.get());
    let stamp = Stamp { kind, seq, session, mark };
    Some(Page {
        stamp,
        checksum: header.checksum.get(),
        covers: header.covers.get(),
        parity_used: header.parity_used.get(),
        payload: &payload[..used],
    })
}

/// Returns whether bytes that are not an intact page look like a part of the log page with this
/// sequence number and session. At most one byte of what names the cache may differ.
pub(super) fn looks_like(bytes: &[u8], owner: Owner, seq: u64, session: u64) -> bool {
    let Ok((header, _)) = Header::ref_from_prefix(bytes) else { return false };
    let wanted = Header { magic: MAGIC, shard: owner.shard.into(), cache: owner.cache, ..*header };
    let pairs = header.as_bytes().iter().zip(wanted.as_bytes());
    (header.seq.get(), header.session.get()) == (seq, session)
        && pairs.filter(|(byte, wanted)| byte != wanted).count() <= 1
        && read(bytes, owner).is_none()
}

/// Returns the checksum of a structure of the journal. The checksum covers all bytes but the first
/// eight, which hold it.
pub(super) fn checksum(bytes: &[u8]) -> u64 {
    crc_fast::crc64_nvme(bytes)
}

/// Returns the checksum that the journal stores for a sector's data. The checksum is never 0, which
/// stands for an unknown one.
pub fn sum_of(sector_bytes: &[u8]) -> u64 {
    checksum(sector_bytes).max(1)
}

/// Maximum number of pages of a log that one parity page covers.
pub(super) const MOST_COVERED: u64 = 64;

/// Parity of pages: the exclusive or of their payloads so far.
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

    /// Adds a page's payload, of full length, of which `used` bytes are used.
    pub(super) fn add(&mut self, other: &[u8], used: usize) {
        let other = &other[other.len() - payload(&mut self.bytes).len()..];
        payload(&mut self.bytes).iter_mut().zip(other).for_each(|(byte, other)| *byte ^= other);
        self.used ^= used as u16;
        self.count += 1;
    }

    /// Returns the parity page and its checksum, and starts a new parity.
    pub(super) fn take(&mut self, owner: Owner, stamp: Stamp) -> (PageBytes, u64) {
        let Self { mut bytes, mut used, count } = std::mem::take(self);
        if planted!(ParityEmpty) {
            (bytes, used) = (blank(), 0);
        }
        let covers = count.min(u64::from(u16::MAX)) as u16;
        let sum =
            seal_parity(&mut bytes, owner, Stamp { kind: PageKind::Parity, ..stamp }, covers, used);
        (bytes, sum)
    }

    /// Rebuilds the missing page, once all other pages and the parity page have been added.
    pub(super) fn missing(mut self, owner: Owner, stamp: Stamp) -> Option<PageBytes> {
        let used = usize::from(self.used);
        (used <= payload(&mut self.bytes).len()).then(|| {
            seal(&mut self.bytes, owner, stamp, used);
            self.bytes
        })
    }
}

/// Repairs a page by its checksum, if at most one byte is wrong.
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
    const STAMP: Stamp = Stamp { kind: PageKind::Log, seq: 0x0102_0304, session: 9, mark: 5 };

    fn page() -> PageBytes {
        let mut bytes = blank();
        payload(&mut bytes)[..3].copy_from_slice(b"abc");
        seal(&mut bytes, OWNER, STAMP, 3);
        bytes
    }

    #[test]
    fn a_page_stands_on_the_device_as_it_is_drawn() {
        let bytes = page();
        assert_eq!(bytes[8..16], *b"FlPg\x01\0\x07\0");
        assert_eq!(bytes[16..32], OWNER.cache);
        assert_eq!(
            bytes[32..56],
            [4, 3, 2, 1, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(bytes[56..67], *b"\x03\0\0\0\0\0\0\0abc");
        assert_eq!(bytes[..8], checksum(&bytes[8..]).to_le_bytes());
        let page = read(&*bytes, OWNER).unwrap();
        assert_eq!((page.stamp, page.payload), (STAMP, &b"abc"[..]));
    }

    #[test]
    fn a_page_with_any_bit_flipped_or_of_another_owner_is_none() {
        let mut bytes = page();
        for bit in 0..8 * PAGE_BYTES {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&*bytes, OWNER).is_none(), "bit {bit} may be flipped");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(read(&*bytes, Owner { shard: 8, ..OWNER }).is_none());
        assert!(read(&*bytes, Owner { cache: [0; 16], ..OWNER }).is_none());
        assert!(read(&*blank(), OWNER).is_none());
    }
}

#[cfg(test)]
mod sum_tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_one_the_nvme_specification_names() {
        // The check value of the catalogue of CRCs, and that of 4 KiB of zeros in the NVM command
        // set specification.
        assert_eq!(checksum(b"123456789"), 0xae8b_1486_0a79_9888);
        assert_eq!(sum_of(&[0; 4096]), 0x6482_d367_eb22_b64e);
    }
}

#[cfg(test)]
mod parity_tests {
    use super::*;

    const OWNER: Owner = Owner { cache: *b"0123456789abcdef", shard: 7 };

    fn stamp(seq: u64) -> Stamp {
        Stamp { kind: PageKind::Log, seq, session: 9, mark: 5 }
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
        assert_eq!((found.stamp.kind, found.covers), (PageKind::Parity, 5));
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
