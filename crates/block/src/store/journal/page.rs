//! The page: 4 KiB that name their owner and carry their own checksum.
//!
//! Log, dumps and the headers of checkpoints all consist of pages of one form. A page names its
//! cache by an id that no two caches share. So a cache never takes the pages of an earlier one for
//! its own. A page is written once and never appended to. A torn page has a wrong checksum and is
//! ignored.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::sum::checksum;

/// Size of a page.
pub(super) const PAGE_BYTES: usize = 4096;

/// Bytes of a page available for records.
pub(super) const PAYLOAD_BYTES: usize = PAGE_BYTES - size_of::<Header>();

const MAGIC: [u8; 4] = *b"FlPg";

/// The first bytes of a page: the checksum, which does not cover itself.
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
    /// The id of the cache.
    pub(super) cache: [u8; 16],
    pub(super) shard: u16,
}

/// The type of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Records in the order in which they became true.
    Log = 1,
    /// Records of all that was true when a checkpoint was taken.
    Dump = 2,
    /// The header that completes a checkpoint.
    Checkpoint = 3,
    /// Exclusive or of the preceding pages of a batch or a dump: see [`super::parity`].
    Parity = 4,
}

/// The identity of a page within its journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) kind: Kind,
    /// Of a log: its sequence number, from 1 on. Of a dump: the page's number, from 0 on. Of a
    /// checkpoint: its generation. Parity is numbered like the pages it stands for.
    pub(super) seq: u64,
    /// The session that wrote it.
    pub(super) session: u64,
    /// Of a log: the last page known to be durable. Of a dump: the generation of its checkpoint. Of
    /// a checkpoint: the sequence number from which on the log is newer.
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
    /// Of parity: the number of pages covered, and their used bytes, combined like their payloads.
    covers: U16,
    parity_used: U16,
}

/// A page that has been checked.
#[derive(Debug)]
pub(super) struct Page<'a> {
    pub(super) stamp: Stamp,
    pub(super) checksum: u64,
    /// Of parity.
    pub(super) covers: u16,
    pub(super) parity_used: u16,
    /// Its records.
    pub(super) payload: &'a [u8],
}

impl Page<'_> {
    /// Returns whether the page is numbered like a page of a log. A dump's parity page is too, but
    /// never stands in a ring.
    pub(super) fn is_of_log(&self) -> bool {
        matches!(self.stamp.kind, Kind::Log | Kind::Parity)
    }
}

/// Returns an empty page.
pub(super) fn blank() -> PageBytes {
    Box::new([0; PAGE_BYTES])
}

/// Returns the part of a page that holds its records.
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

/// Returns the page in these bytes, if it is one of this owner's.
pub(super) fn read(bytes: &[u8], owner: Owner) -> Option<Page<'_>> {
    let (header, payload) = Header::ref_from_prefix(bytes).ok()?;
    let used = header.used.get() as usize;
    let kind = match header.kind {
        1 => Kind::Log,
        2 => Kind::Dump,
        3 => Kind::Checkpoint,
        4 => Kind::Parity,
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

/// Returns whether bytes that are no page look like a part of the page of a log with this sequence
/// number, of this session: at most one byte of what names its cache differs.
pub(super) fn looks_like(bytes: &[u8], owner: Owner, seq: u64, session: u64) -> bool {
    let Ok((header, _)) = Header::ref_from_prefix(bytes) else { return false };
    let wanted = Header { magic: MAGIC, shard: owner.shard.into(), cache: owner.cache, ..*header };
    let pairs = header.as_bytes().iter().zip(wanted.as_bytes());
    (header.seq.get(), header.session.get()) == (seq, session)
        && pairs.filter(|(byte, wanted)| byte != wanted).count() <= 1
        && read(bytes, owner).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: Owner = Owner { cache: *b"0123456789abcdef", shard: 7 };
    const STAMP: Stamp = Stamp { kind: Kind::Log, seq: 0x0102_0304, session: 9, mark: 5 };

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
