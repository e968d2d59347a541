//! The bytes on flash: superblock, segments, records, footers. docs/hybrid-format.md has the
//! layout.
//!
//! The file holds two superblocks and then segments of equal size. The log is written to the
//! segments in turn; segment number `n` (from 1 on) stands in place `n mod segments`. A segment
//! begins with a header, has records after it, and ends with a footer that lists the records. All
//! integers are little-endian. Checksums are CRC-32C.

use std::ops::{Deref, Range};
use std::time::{SystemTime, UNIX_EPOCH};

use crc_fast::{CrcAlgorithm, Digest, checksum};

use set::SET_BYTES;

pub(crate) use set::{DriveSet, MAX_DRIVES};

mod set;

/// Unit of reads and writes in bytes.
pub(crate) const PAGE_BYTES: usize = 4096;
/// Unit of addresses in bytes; records begin at multiples of it.
pub(crate) const UNIT_BYTES: usize = 16;
/// Offset of the notes of removals in bytes, after the superblocks.
pub(crate) const NOTES_START: u64 = 8 << 10;
/// Bytes of a note.
pub(crate) const NOTE_BYTES: usize = 32;
/// Number of notes.
pub(crate) const NOTES: usize = ((SEGMENTS_START - NOTES_START) / NOTE_BYTES as u64) as usize;
/// Offset of the first segment in bytes.
pub(crate) const SEGMENTS_START: u64 = 64 << 10;
/// Bytes at the start of a segment before its first record.
pub(crate) const SEGMENT_HEADER_BYTES: usize = 64;
/// Bytes of a record before its key.
pub(crate) const RECORD_HEADER_BYTES: usize = 16;
/// Most bytes of a record before its key: the header and both words that may follow it.
pub(crate) const MAX_HEAD_BYTES: usize = RECORD_HEADER_BYTES + 2 * WORD_BYTES;
const WORD_BYTES: usize = 4;
/// Flag: a word with the time from which the object is stale.
const STALE: u8 = 1;
/// Flag: a word with the length of the value before its compression.
const COMPRESSED: u8 = 2;
/// Flag: the value is in parts, which the record lists.
const IN_PARTS: u8 = 4;
/// Position of the method of compression in the flags.
const METHOD_SHIFT: u32 = 4;
/// Bytes of the list of an object's parts.
pub(crate) const PARTS_LIST_BYTES: usize = 16;
/// Bytes of the key of a part.
pub(crate) const PART_KEY_BYTES: usize = 12;
/// Maximum bytes of an object in parts.
const MAX_OBJECT_BYTES: u64 = 1 << 30;
/// Bytes of a footer's entry.
pub(crate) const ENTRY_BYTES: usize = 12;
/// Bytes at the end of a segment after the footer's entries.
pub(crate) const TRAILER_BYTES: usize = 32;
/// Longest key in bytes.
pub(crate) const MAX_KEY_BYTES: usize = u16::MAX as usize;
/// Largest segment in bytes: a footer's entry has 20 bits for an offset in units.
pub(crate) const MAX_SEGMENT_BYTES: usize = UNIT_BYTES << 20;
/// Offset of the set of drives in a superblock.
const SET_START: usize = 104;
/// Smallest segment in bytes.
pub(crate) const MIN_SEGMENT_BYTES: usize = 64 << 10;

/// Version of the format.
pub(crate) const VERSION: u32 = 3;
/// First version that this one reads. In version 1 no record has flags. Before version 3 a cache
/// has one drive.
const FIRST_VERSION: u32 = 1;
const SUPERBLOCK_MAGIC: &[u8; 8] = b"FloeHyb\n";
const SEGMENT_MAGIC: &[u8; 8] = b"FloeSeg\n";
const TRAILER_MAGIC: u32 = 0x746f_6f46; // "Foot"

/// Returns the seconds since 1970, the unit of times on flash.
pub(crate) fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

pub(crate) fn crc(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// The sizes of a cache on flash, fixed when it is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Bytes of a segment, a power of two.
    pub(crate) segment_bytes: u64,
    /// Number of segments.
    pub(crate) segments: u64,
}

impl Geometry {
    /// Divides `bytes` of flash into segments of at most `max_segment_bytes`. Returns `None` if
    /// fewer than 8 segments fit.
    pub(crate) fn of(bytes: u64, max_segment_bytes: u64) -> Option<Self> {
        let room = bytes.checked_sub(SEGMENTS_START)?;
        let mut segment_bytes = MAX_SEGMENT_BYTES as u64;
        while segment_bytes > max_segment_bytes && segment_bytes > MIN_SEGMENT_BYTES as u64 {
            segment_bytes /= 2;
        }
        while room / segment_bytes < 64 && segment_bytes > MIN_SEGMENT_BYTES as u64 {
            segment_bytes /= 2;
        }
        let segments = room / segment_bytes;
        (segments >= 8).then_some(Self { segment_bytes, segments })
    }

    /// Returns the bytes of the file up to the end of the last segment.
    pub(crate) fn total_bytes(&self) -> u64 {
        SEGMENTS_START + self.segments * self.segment_bytes
    }

    /// Returns the offset in the file of the segment with this number.
    pub(crate) fn segment_start(&self, number: u64) -> u64 {
        SEGMENTS_START + number % self.segments * self.segment_bytes
    }

    /// Returns the address, in units from the first segment on, of an offset in a segment.
    pub(crate) fn address(&self, number: u64, offset: usize) -> u64 {
        (number % self.segments * self.segment_bytes + offset as u64) / UNIT_BYTES as u64
    }

    /// Returns the place of the segment that holds an address, and the offset in it.
    pub(crate) fn locate(&self, address: u64) -> (u64, usize) {
        let bytes = address * UNIT_BYTES as u64;
        (bytes / self.segment_bytes, (bytes % self.segment_bytes) as usize)
    }

    /// Returns the bytes of each part of a large object: an eighth of a segment, so that segments
    /// are filled well.
    pub(crate) fn part_bytes(&self) -> u32 {
        let head = RECORD_HEADER_BYTES + PART_KEY_BYTES + ENTRY_BYTES + UNIT_BYTES;
        (self.max_record_bytes() / 8 - head) as u32
    }

    /// Returns the maximum bytes of an object, key and stored value: the whole log must have room
    /// for several.
    pub(crate) fn max_object_bytes(&self) -> usize {
        let most = (self.segments * self.segment_bytes / 8).min(MAX_OBJECT_BYTES) as usize;
        most.max(self.max_record_bytes() - RECORD_HEADER_BYTES - 2 * UNIT_BYTES)
    }

    /// Returns the maximum length of a record in bytes.
    pub(crate) fn max_record_bytes(&self) -> usize {
        self.segment_bytes as usize - SEGMENT_HEADER_BYTES - footer_bytes(1)
    }
}

/// Returns the bytes that a footer with this many entries takes at a segment's end.
pub(crate) fn footer_bytes(entries: usize) -> usize {
    entries * ENTRY_BYTES + TRAILER_BYTES
}

/// The page that identifies a file as a hybrid cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Superblock {
    /// Version of the format that the page was written with. New pages have [`VERSION`].
    pub(crate) version: u32,
    /// Number of times that the superblock was written; odd generations are copy B.
    pub(crate) generation: u64,
    /// Random identity of the cache, never used for two caches.
    pub(crate) id: u64,
    pub(crate) geometry: Geometry,
    /// Number of times the cache was opened.
    pub(crate) session: u64,
    /// Number of the first segment whose records count; older ones were cleared.
    pub(crate) first_segment: u64,
    /// Seed of the hash of keys.
    pub(crate) hash_seed: u64,
    /// True if the last session ended in order.
    pub(crate) clean: bool,
    /// Segment number at which the saved index starts, and its length in bytes; both 0 without a
    /// saved index.
    pub(crate) saved_at: u64,
    pub(crate) saved_bytes: u64,
    /// Checksum of the saved index.
    pub(crate) saved_crc: u64,
    /// The drives that the cache is striped over.
    pub(crate) set: DriveSet,
}

/// The reason why a page is no superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BadSuperblock {
    /// The page is no superblock.
    Foreign,
    /// A superblock whose checksum does not match.
    Damaged,
    /// The superblock was written by a later version of Floe.
    Version(u32),
}

impl Superblock {
    pub(crate) fn encode(&self, page: &mut [u8]) {
        page.fill(0);
        page[8..16].copy_from_slice(SUPERBLOCK_MAGIC);
        page[16..20].copy_from_slice(&VERSION.to_le_bytes());
        page[20..24].copy_from_slice(&u32::from(self.clean).to_le_bytes());
        let numbers = [
            self.generation,
            self.id,
            self.geometry.segment_bytes,
            self.geometry.segments,
            self.session,
            self.first_segment,
            self.hash_seed,
            self.saved_at,
            self.saved_bytes,
            self.saved_crc,
        ];
        for (at, number) in numbers.into_iter().enumerate() {
            page[24 + at * 8..32 + at * 8].copy_from_slice(&number.to_le_bytes());
        }
        self.set.encode(&mut page[SET_START..SET_START + SET_BYTES]);
        let sum = crc(&page[4..PAGE_BYTES]);
        page[..4].copy_from_slice(&sum.to_le_bytes());
    }

    /// Returns whether a page is the superblock of a cache, which may be damaged.
    pub(crate) fn is_of_a_cache(page: &[u8]) -> bool {
        page[8..16] == SUPERBLOCK_MAGIC[..]
    }

    pub(crate) fn decode(page: &[u8]) -> Result<Self, BadSuperblock> {
        if !Self::is_of_a_cache(page) {
            return Err(BadSuperblock::Foreign);
        }
        if u32_at(page, 0) != crc(&page[4..PAGE_BYTES]) {
            return Err(BadSuperblock::Damaged);
        }
        match u32_at(page, 16) {
            FIRST_VERSION..=VERSION => {}
            later => return Err(BadSuperblock::Version(later)),
        }
        let number = |at: usize| u64_at(page, 24 + at * 8);
        Ok(Self {
            version: u32_at(page, 16),
            generation: number(0),
            id: number(1),
            geometry: Geometry { segment_bytes: number(2), segments: number(3) },
            session: number(4),
            first_segment: number(5),
            hash_seed: number(6),
            clean: u32_at(page, 20) & 1 != 0,
            saved_at: number(7),
            saved_bytes: number(8),
            saved_crc: number(9),
            set: DriveSet::decode(&page[SET_START..SET_START + SET_BYTES])
                .ok_or(BadSuperblock::Damaged)?,
        })
    }
}

/// Identity of a segment's content: its number in the log and the session that wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentId {
    pub(crate) cache: u64,
    pub(crate) number: u64,
    pub(crate) session: u64,
}

impl SegmentId {
    /// Returns the segment's salt. It is combined with the checksums in the segment, so that bytes
    /// of an older segment in the same place do not match.
    pub(crate) fn salt(&self) -> u32 {
        let mut mixed = self.cache ^ self.number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^= self.session.rotate_left(32).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^= mixed >> 29;
        mixed = mixed.wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed >> 32) as u32
    }

    /// Encodes the header of a segment that was begun at this second since 1970.
    pub(crate) fn encode(&self, header: &mut [u8], begun: u64) {
        header[..SEGMENT_HEADER_BYTES].fill(0);
        header[8..16].copy_from_slice(SEGMENT_MAGIC);
        header[16..24].copy_from_slice(&self.cache.to_le_bytes());
        header[24..32].copy_from_slice(&self.number.to_le_bytes());
        header[32..40].copy_from_slice(&self.session.to_le_bytes());
        header[40..48].copy_from_slice(&begun.to_le_bytes());
        let sum = crc(&header[4..SEGMENT_HEADER_BYTES]);
        header[..4].copy_from_slice(&sum.to_le_bytes());
    }

    pub(crate) fn decode(header: &[u8]) -> Option<Self> {
        let intact = header[8..16] == SEGMENT_MAGIC[..]
            && u32_at(header, 0) == crc(&header[4..SEGMENT_HEADER_BYTES]);
        let id = Self {
            cache: u64_at(header, 16),
            number: u64_at(header, 24),
            session: u64_at(header, 32),
        };
        intact.then_some(id)
    }

    /// Returns the second since 1970 at which the segment with this intact header was begun. `None`
    /// if an earlier version of Floe wrote it.
    pub(crate) fn begun(header: &[u8]) -> Option<u64> {
        Some(u64_at(header, 40)).filter(|begun| *begun > 0)
    }
}

/// The meaning of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecordKind {
    /// An object: a key and its value.
    Object,
    /// A removal: all older records of the key are invalid. The record holds the key's hash instead
    /// of the key.
    Removal,
    /// A part of the value of a large object.
    Part,
}

impl RecordKind {
    /// Returns whether the index has records of this kind.
    pub(crate) fn is_indexed(self) -> bool {
        self != Self::Removal
    }
}

/// The header of a record, without its checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub(crate) kind: RecordKind,
    pub(crate) key_bytes: usize,
    /// Bytes of the value as it is stored.
    pub(crate) value_bytes: usize,
    pub(crate) lifetime: Lifetime,
    /// The compression of the value, if it is compressed.
    pub(crate) compressed: Option<Compressed>,
    /// True if the stored value is in parts: the record has a [`PartsList`] in its place.
    pub(crate) in_parts: bool,
}

/// The end of an object's life, in seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Lifetime {
    /// Second from which on the object is expired; 0 for never.
    pub(crate) expires: u32,
    /// Second from which on the object is to be loaded anew; 0 for never.
    pub(crate) stale: u32,
}

impl Lifetime {
    /// Returns whether the object has expired, given the seconds since 1970.
    pub(crate) fn is_expired(self, now: u64) -> bool {
        self.expires != 0 && u64::from(self.expires) <= now
    }

    /// Returns whether the object is to be loaded anew, given the seconds since 1970.
    pub(crate) fn is_stale(self, now: u64) -> bool {
        self.stale != 0 && u64::from(self.stale) <= now
    }
}

/// The compression of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Compressed {
    /// Number of the method, 1 to 15.
    pub(crate) method: u8,
    /// Bytes of the value before its compression.
    pub(crate) original_bytes: u32,
}

/// The bytes of a record before its key.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RecordHead {
    bytes: [u8; MAX_HEAD_BYTES],
    len: usize,
}

impl Deref for RecordHead {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl RecordHeader {
    /// Creates the header of a record without flags.
    pub(crate) fn new(kind: RecordKind, key: &[u8], value: &[u8]) -> Self {
        let (key_bytes, value_bytes) = (key.len(), value.len());
        let (lifetime, compressed, in_parts) = (Lifetime::default(), None, false);
        Self { kind, key_bytes, value_bytes, lifetime, compressed, in_parts }
    }

    fn flags(&self) -> u8 {
        let stale = if self.lifetime.stale == 0 { 0 } else { STALE };
        let in_parts = if self.in_parts { IN_PARTS } else { 0 };
        stale | in_parts | self.compressed.map_or(0, |it| COMPRESSED | it.method << METHOD_SHIFT)
    }

    /// Returns the bytes before the key.
    pub(crate) fn head_bytes(&self) -> usize {
        head_bytes(self.flags())
    }

    /// Returns the length of head, key and value in bytes.
    pub(crate) fn record_bytes(&self) -> usize {
        self.head_bytes() + self.key_bytes + self.value_bytes
    }

    /// Returns the bytes that the record takes in the log, padding included.
    pub(crate) fn log_bytes(&self) -> usize {
        self.record_bytes().next_multiple_of(UNIT_BYTES)
    }

    /// Encodes the bytes before the key, with a checksum of them, key and value. The salt is not
    /// added yet.
    pub(crate) fn encode(&self, key: &[u8], value: &[u8]) -> RecordHead {
        debug_assert_eq!((key.len(), value.len()), (self.key_bytes, self.value_bytes));
        let mut head = RecordHead { bytes: [0; MAX_HEAD_BYTES], len: self.head_bytes() };
        let header = &mut head.bytes;
        header[4..8].copy_from_slice(&(self.value_bytes as u32).to_le_bytes());
        header[8..10].copy_from_slice(&(self.key_bytes as u16).to_le_bytes());
        header[10] = match self.kind {
            RecordKind::Object => 1,
            RecordKind::Removal => 2,
            RecordKind::Part => 3,
        };
        header[11] = self.flags();
        header[12..16].copy_from_slice(&self.lifetime.expires.to_le_bytes());
        let mut at = RECORD_HEADER_BYTES;
        let stale = Some(self.lifetime.stale).filter(|stale| *stale != 0);
        for word in stale.into_iter().chain(self.compressed.map(|it| it.original_bytes)) {
            header[at..at + WORD_BYTES].copy_from_slice(&word.to_le_bytes());
            at += WORD_BYTES;
        }
        let mut sum = Digest::new(CrcAlgorithm::Crc32Iscsi);
        sum.update(&head[4..]);
        sum.update(key);
        sum.update(value);
        head.bytes[..4].copy_from_slice(&(sum.finalize() as u32).to_le_bytes());
        head
    }
}

/// Returns the bytes before the key of a record with these flags.
fn head_bytes(flags: u8) -> usize {
    RECORD_HEADER_BYTES + (flags & (STALE | COMPRESSED)).count_ones() as usize * WORD_BYTES
}

/// Adds a segment's salt to the checksum of an encoded record, or removes it.
pub(crate) fn salt_record(record: &mut [u8], salt: u32) {
    let sum = u32_at(record, 0) ^ salt;
    record[..4].copy_from_slice(&sum.to_le_bytes());
}

/// Returns where the key of a record is in it. The header need not be intact.
pub(crate) fn key_range(header: &[u8]) -> Range<usize> {
    let begin = head_bytes(header[11]);
    begin..begin + usize::from(u16::from_le_bytes([header[8], header[9]]))
}

/// A record in a buffer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record<'a> {
    pub(crate) header: RecordHeader,
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a [u8],
}

impl<'a> Record<'a> {
    /// Parses the record at the start of the buffer. Returns `None` if it is incomplete, damaged,
    /// or left by another segment.
    pub(crate) fn decode(bytes: &'a [u8], salt: u32) -> Option<Self> {
        if bytes.len() < RECORD_HEADER_BYTES {
            return None;
        }
        let kind = match bytes[10] {
            1 => RecordKind::Object,
            2 => RecordKind::Removal,
            3 => RecordKind::Part,
            _ => return None,
        };
        let (flags, key) = (bytes[11], key_range(bytes));
        if flags & !(STALE | COMPRESSED | IN_PARTS) & ((1 << METHOD_SHIFT) - 1) != 0 {
            return None;
        }
        let mut words = bytes.get(RECORD_HEADER_BYTES..key.start)?.chunks(WORD_BYTES);
        let mut word = |flag| match flags & flag {
            0 => None,
            _ => words.next().map(|word| u32_at(word, 0)),
        };
        let lifetime = Lifetime { expires: u32_at(bytes, 12), stale: word(STALE).unwrap_or(0) };
        let original_bytes = word(COMPRESSED);
        let compressed = original_bytes
            .map(|original_bytes| Compressed { method: flags >> METHOD_SHIFT, original_bytes });
        let header = RecordHeader {
            kind,
            key_bytes: key.len(),
            value_bytes: u32_at(bytes, 4) as usize,
            lifetime,
            compressed,
            in_parts: flags & IN_PARTS != 0,
        };
        let end = key.end + header.value_bytes;
        if end > bytes.len() || crc(&bytes[4..end]) ^ salt != u32_at(bytes, 0) {
            return None;
        }
        let (key, value) = bytes[key.start..end].split_at(header.key_bytes);
        Some(Self { header, key, value })
    }
}

/// The parts of a large object's value, as its record lists them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PartsList {
    /// Identity of the parts, which no other object of the store has.
    pub(crate) id: u64,
    /// Bytes of the stored value.
    pub(crate) bytes: u32,
    /// Bytes of each part but the last.
    pub(crate) part_bytes: u32,
}

impl PartsList {
    pub(crate) fn encode(&self) -> [u8; PARTS_LIST_BYTES] {
        let mut bytes = [0; PARTS_LIST_BYTES];
        bytes[..8].copy_from_slice(&self.id.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[12..].copy_from_slice(&self.part_bytes.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let list = (bytes.len() == PARTS_LIST_BYTES).then(|| Self {
            id: u64_at(bytes, 0),
            bytes: u32_at(bytes, 8),
            part_bytes: u32_at(bytes, 12),
        });
        list.filter(|list| list.part_bytes > 0)
    }

    /// Returns the number of parts.
    pub(crate) fn count(&self) -> u32 {
        self.bytes.div_ceil(self.part_bytes)
    }

    /// Returns the range of the stored value that a part has.
    pub(crate) fn range(&self, number: u32) -> Range<usize> {
        let (begin, all) = (number as usize * self.part_bytes as usize, self.bytes as usize);
        begin..(begin + self.part_bytes as usize).min(all)
    }

    /// Returns the key of a part's record.
    pub(crate) fn key(&self, number: u32) -> [u8; PART_KEY_BYTES] {
        let mut key = [0; PART_KEY_BYTES];
        key[..8].copy_from_slice(&self.id.to_le_bytes());
        key[8..].copy_from_slice(&number.to_le_bytes());
        key
    }
}

/// The length of a record as the index stores it: a code of 6 bits, which rounds up by at most a
/// quarter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LengthCode(pub(crate) u8);

/// Length in units that each code stands for.
const LENGTHS: [u32; 64] = {
    let mut lengths = [0; 64];
    let mut units = 0u32;
    let mut code = 0;
    while code < 64 {
        let longer = units + 1 + units * 234 / 1000;
        units = if longer > 1 << 20 { 1 << 20 } else { longer };
        lengths[code] = units;
        code += 1;
    }
    assert!(units == 1 << 20);
    lengths
};

impl LengthCode {
    /// Returns the smallest code for a record of this many bytes, at most the bytes of a segment.
    pub(crate) fn of(bytes: usize) -> Self {
        let units = bytes.div_ceil(UNIT_BYTES) as u32;
        Self(LENGTHS.partition_point(|&length| length < units) as u8)
    }

    /// Returns the length in bytes that the code stands for.
    pub(crate) fn bytes(self) -> usize {
        LENGTHS[usize::from(self.0)] as usize * UNIT_BYTES
    }
}

/// A footer's entry for one record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FooterEntry {
    pub(crate) hash: u64,
    pub(crate) offset: usize,
    pub(crate) length: LengthCode,
    pub(crate) kind: RecordKind,
}

impl FooterEntry {
    pub(crate) fn encode(&self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        let removal = u32::from(self.kind == RecordKind::Removal);
        let units = (self.offset / UNIT_BYTES) as u32;
        let part = u32::from(self.kind == RecordKind::Part);
        let word = units | u32::from(self.length.0) << 20 | removal << 26 | part << 27;
        bytes[..8].copy_from_slice(&self.hash.to_le_bytes());
        bytes[8..].copy_from_slice(&word.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Self {
        let word = u32_at(bytes, 8);
        Self {
            hash: u64_at(bytes, 0),
            offset: (word & 0xf_ffff) as usize * UNIT_BYTES,
            length: LengthCode((word >> 20 & 63) as u8),
            kind: match word >> 26 & 3 {
                0 => RecordKind::Object,
                2 => RecordKind::Part,
                _ => RecordKind::Removal,
            },
        }
    }
}

/// A note of a removal whose record is not written yet. It survives the end of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) hash: u64,
    /// Position of the log after the removal's record.
    pub(crate) position: u64,
    /// Number of the note, the first of a cache being 0.
    pub(crate) number: u64,
    /// The session, its lower 32 bits.
    pub(crate) session: u32,
}

impl Note {
    /// Returns the offset of the note in the file.
    pub(crate) fn offset(&self) -> u64 {
        NOTES_START + self.number % NOTES as u64 * NOTE_BYTES as u64
    }

    pub(crate) fn encode(&self) -> [u8; NOTE_BYTES] {
        let mut bytes = [0; NOTE_BYTES];
        bytes[4..8].copy_from_slice(&self.session.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.hash.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.position.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.number.to_le_bytes());
        let sum = crc(&bytes[4..]);
        bytes[..4].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let note = Self {
            session: u32_at(bytes, 4),
            hash: u64_at(bytes, 8),
            position: u64_at(bytes, 16),
            number: u64_at(bytes, 24),
        };
        (u32_at(bytes, 0) == crc(&bytes[4..NOTE_BYTES]) && note.position > 0).then_some(note)
    }
}

/// The trailer at the end of a closed segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Trailer {
    pub(crate) id: SegmentId,
    pub(crate) entries: usize,
}

impl Trailer {
    /// Encodes the trailer of a footer whose entries have this checksum.
    pub(crate) fn encode(&self, entries_crc: u32) -> [u8; TRAILER_BYTES] {
        let mut bytes = [0; TRAILER_BYTES];
        bytes[4..8].copy_from_slice(&TRAILER_MAGIC.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.id.number.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.id.session.to_le_bytes());
        bytes[24..28].copy_from_slice(&(self.entries as u32).to_le_bytes());
        bytes[28..32].copy_from_slice(&entries_crc.to_le_bytes());
        let sum = crc(&bytes[4..]) ^ self.id.salt();
        bytes[..4].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads the trailer of a segment of this cache. Returns it with the checksum of the entries,
    /// or `None` if the segment was not closed.
    pub(crate) fn decode(bytes: &[u8], cache: u64) -> Option<(Self, u32)> {
        let id = SegmentId { cache, number: u64_at(bytes, 8), session: u64_at(bytes, 16) };
        let intact = u32_at(bytes, 4) == TRAILER_MAGIC
            && crc(&bytes[4..TRAILER_BYTES]) ^ id.salt() == u32_at(bytes, 0);
        intact.then(|| (Self { id, entries: u32_at(bytes, 24) as usize }, u32_at(bytes, 28)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ID: SegmentId = SegmentId { cache: 7, number: 3, session: 2 };

    #[test]
    fn lengths_are_rounded_up_by_a_quarter_at_most() {
        for bytes in (1..200_000).chain([MAX_SEGMENT_BYTES - 1, MAX_SEGMENT_BYTES]) {
            let rounded = LengthCode::of(bytes).bytes();
            assert!(rounded >= bytes, "{bytes} became {rounded}");
            let units = bytes.div_ceil(UNIT_BYTES) * UNIT_BYTES;
            assert!(rounded <= units + units / 4 + UNIT_BYTES, "{bytes} became {rounded}");
        }
    }

    #[test]
    fn a_superblock_is_read_as_it_was_written_and_told_from_others() {
        let block = Superblock {
            version: VERSION,
            generation: 5,
            id: 6,
            geometry: Geometry::of(1 << 30, 1 << 24).unwrap(),
            session: 8,
            first_segment: 9,
            hash_seed: 10,
            clean: true,
            saved_at: 11,
            saved_bytes: 12,
            saved_crc: 13,
            set: DriveSet::new(14, &[(6, 1 << 30), (15, 1 << 31)]).at(1),
        };
        let mut page = vec![0xff; PAGE_BYTES];
        assert_eq!(Superblock::decode(&page), Err(BadSuperblock::Foreign));
        block.encode(&mut page);
        assert_eq!(Superblock::decode(&page), Ok(block));
        page[100] ^= 1;
        assert_eq!(Superblock::decode(&page), Err(BadSuperblock::Damaged));
        page[100] ^= 1;
        let mut of_version = |version: u8| {
            page[16] = version;
            let sum = crc(&page[4..]);
            page[..4].copy_from_slice(&sum.to_le_bytes());
            Superblock::decode(&page)
        };
        assert_eq!(of_version(1), Ok(Superblock { version: 1, ..block }));
        assert_eq!(of_version(2), Ok(Superblock { version: 2, ..block }));
        assert_eq!(of_version(3), Ok(block));
        assert_eq!(of_version(4), Err(BadSuperblock::Version(4)));
    }

    #[test]
    fn flash_is_divided_into_segments() {
        assert_eq!(Geometry::of(100_000, 1 << 24), None);
        let small = Geometry::of(1 << 20, 1 << 24).unwrap();
        assert_eq!((small.segment_bytes, small.segments), (64 << 10, 15));
        let large = Geometry::of(200 << 30, 1 << 24).unwrap();
        assert_eq!((large.segment_bytes, large.segments), (16 << 20, 12799));
        assert!(large.total_bytes() <= 200 << 30);
        let address = large.address(12_800, 4096);
        assert_eq!(large.locate(address), (1, 4096));
    }

    #[test]
    fn a_trailer_belongs_to_its_cache() {
        let trailer = Trailer { id: ID, entries: 4 };
        let bytes = trailer.encode(99);
        assert_eq!(Trailer::decode(&bytes, 7), Some((trailer, 99)));
        assert_eq!(Trailer::decode(&bytes, 8), None);
    }

    proptest! {
        #[test]
        fn a_record_passes_in_its_own_segment_only(
            key in proptest::collection::vec(any::<u8>(), 0..40),
            value in proptest::collection::vec(any::<u8>(), 0..300),
            expires: u32,
            stale: u32,
            compressed in proptest::option::of((1u8..16, any::<u32>())),
            in_parts: bool,
            flipped: proptest::sample::Index,
        ) {
            let mut header = RecordHeader::new(RecordKind::Object, &key, &value);
            header.lifetime = Lifetime { expires, stale };
            header.in_parts = in_parts;
            header.compressed = compressed
                .map(|(method, original_bytes)| Compressed { method, original_bytes });
            let mut bytes = header.encode(&key, &value).to_vec();
            let range = key_range(&bytes);
            prop_assert_eq!((range.start, range.len()), (bytes.len(), key.len()));
            prop_assert_eq!(range.end + value.len(), header.record_bytes());
            bytes.extend_from_slice(&key);
            bytes.extend_from_slice(&value);
            salt_record(&mut bytes, ID.salt());
            let record = Record::decode(&bytes, ID.salt()).unwrap();
            prop_assert_eq!(record.header, header);
            prop_assert_eq!((record.key, record.value), (&key[..], &value[..]));
            let next = SegmentId { number: 4, ..ID };
            prop_assert!(Record::decode(&bytes, next.salt()).is_none());
            let bit = flipped.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Record::decode(&bytes, ID.salt()).is_none());
        }

        #[test]
        fn footer_entries_are_read_as_written(
            hash: u64,
            units in 0usize..1 << 20,
            code in 0u8..64,
            kind in 0usize..3,
        ) {
            let kind = [RecordKind::Object, RecordKind::Removal, RecordKind::Part][kind];
            let (offset, length) = (units * UNIT_BYTES, LengthCode(code));
            let entry = FooterEntry { hash, offset, length, kind };
            prop_assert_eq!(FooterEntry::decode(&entry.encode()), entry);
        }
    }
}
