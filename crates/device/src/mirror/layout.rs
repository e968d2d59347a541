//! The on-disk header in the first MiB of each mirror half.
//!
//! There are two slots, written in turn, so that one is intact whenever the other is being written.
//! A slot has a sector of numbers and, from the next sector on, the map of regions in which halves
//! may differ. A CRC-64 covers both.

use std::fmt;

use super::marks::Regions;
use super::witness::Generation;
use crate::buffer::SECTOR_BYTES;
use crate::device::Halves;

/// Bytes at the start of a half that are reserved for its header; the data follows.
pub(crate) const HEAD_BYTES: u64 = 1 << 20;

const SLOT_BYTES: u64 = HEAD_BYTES / 2;

/// Maximum number of regions of a mirror. The map of regions is written as a whole, so it must be
/// small.
const REGIONS_MAX: u64 = 1 << 18;

/// The size of a region in bytes, unless that would give more than [`REGIONS_MAX`] regions.
const REGION_BYTES: u64 = 1 << 20;

const MAGIC: &[u8; 8] = b"FloeMir\n";
const VERSION: u32 = 1;

/// Bytes of a header slot before its map of regions.
const NUMBERS: usize = SECTOR_BYTES as usize;

/// The geometry of a mirror: number of halves, size, and region size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Number of halves.
    pub(crate) count: usize,
    /// Size of the mirror's data in bytes.
    pub(crate) bytes: u64,
    /// Size of a region, the unit of resynchronisation, in bytes; a power of two.
    pub(crate) region_bytes: u64,
}

/// The constant part of a half's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Label {
    /// The random id of the mirror.
    pub(crate) mirror: [u8; 16],
    pub(crate) half: usize,
    pub(crate) shape: Shape,
}

/// The result of reading the header area of a half.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Seen {
    Header(Label, Header),
    /// A header of a half, but no intact copy of it.
    Damaged,
    /// Only zeros: the half is new.
    Blank,
    /// Data that does not belong to a mirror.
    Foreign,
    /// No result: the half could not be read, for this reason.
    Missing(String),
}

/// The changing part of a half's header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Header {
    /// The number of this version of the header; of a half's two slots, the higher one is valid.
    pub(crate) sequence: u64,
    /// The mirror's generation, or the next one while the witness has not confirmed it.
    pub(crate) generation: Generation,
    /// The generation before the current one; equal to the current one once the witness has
    /// confirmed it.
    pub(crate) previous: Generation,
    /// The highest header number known to be on each half. A half with a lower number is an old
    /// copy.
    pub(crate) known: [u64; Halves::MAX],
    /// Regions in which halves may differ.
    pub(crate) map: Regions,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} halves of {} bytes", self.count, self.bytes)
    }
}

impl Shape {
    /// Returns the geometry of a new mirror of `count` halves with `bytes` bytes of data.
    pub(crate) fn new(count: usize, bytes: u64) -> Shape {
        let region_bytes = bytes.div_ceil(REGIONS_MAX).next_power_of_two().max(REGION_BYTES);
        Shape { count, bytes, region_bytes }
    }

    pub(crate) fn regions(self) -> usize {
        self.bytes.div_ceil(self.region_bytes) as usize
    }

    /// Returns the regions that a non-empty range of bytes touches.
    pub(crate) fn span(self, offset: u64, len: u64) -> std::ops::RangeInclusive<usize> {
        let last = (offset + len - 1).min(self.bytes - 1);
        (offset / self.region_bytes) as usize..=(last / self.region_bytes) as usize
    }

    /// Returns the range of bytes of a region.
    pub(crate) fn range(self, region: usize) -> std::ops::Range<u64> {
        let start = region as u64 * self.region_bytes;
        start..(start + self.region_bytes).min(self.bytes)
    }

    fn map_bytes(self) -> usize {
        self.regions().div_ceil(64) * 8
    }

    /// Returns the size of a header in bytes, a multiple of a sector.
    pub(crate) fn header_bytes(self) -> usize {
        NUMBERS + self.map_bytes().next_multiple_of(NUMBERS)
    }
}

/// Returns the byte offset of a header slot, 0 or 1, on a half.
pub(crate) fn slot(number: usize) -> u64 {
    number as u64 * SLOT_BYTES
}

pub(crate) fn encode(label: &Label, header: &Header) -> Vec<u8> {
    let Label { mirror, half, shape } = label;
    let mut bytes = Vec::with_capacity(shape.header_bytes());
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend([*half as u8, shape.count as u8, 0, 0]);
    bytes.extend(mirror);
    let Header { sequence, generation, previous, known, map } = header;
    let numbers = [shape.bytes, shape.region_bytes, *sequence];
    numbers.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
    for Generation { number, halves: Halves(halves) } in [generation, previous] {
        bytes.extend(number.to_le_bytes());
        bytes.extend(u64::from(*halves).to_le_bytes());
    }
    known.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
    bytes.resize(NUMBERS, 0);
    bytes.extend(map.bytes());
    bytes.resize(shape.header_bytes(), 0);
    let sum = checksum(&bytes);
    bytes[SUM_AT..NUMBERS].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// Offset of the checksum in a header. These bytes count as zeros when the checksum is computed.
const SUM_AT: usize = NUMBERS - 8;

fn checksum(bytes: &[u8]) -> u64 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme);
    digest.update(&bytes[..SUM_AT]);
    digest.update(&bytes[NUMBERS..]);
    digest.finalize()
}

/// Decodes the header in one slot; `None` if it is invalid.
fn decode(bytes: &[u8]) -> Option<(Label, Header)> {
    let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    if !bytes.starts_with(MAGIC) || bytes[8..12] != VERSION.to_le_bytes() {
        return None;
    }
    let (half, count) = (usize::from(bytes[12]), usize::from(bytes[13]));
    let mirror = bytes[16..32].try_into().expect("16 bytes");
    let (size, region_bytes) = (number(32), number(40));
    if size == 0 || !region_bytes.is_power_of_two() || size.div_ceil(region_bytes) > REGIONS_MAX {
        return None;
    }
    let shape = Shape { count, bytes: size, region_bytes };
    let whole = bytes.get(..shape.header_bytes())?;
    if number(SUM_AT) != checksum(whole) {
        return None;
    }
    let generation = |at| Generation { number: number(at), halves: Halves(number(at + 8) as u8) };
    let map = Regions::from_bytes(shape.regions(), &whole[NUMBERS..][..shape.map_bytes()])?;
    let known = std::array::from_fn(|half| number(88 + 8 * half));
    let (generation, previous) = (generation(56), generation(72));
    let header = Header { sequence: number(48), generation, previous, known, map };
    Some((Label { mirror, half, shape }, header))
}

/// Decodes the header area of a half. Also returns the slot to write next: the one without the
/// newest header.
pub(crate) fn look(head: &[u8]) -> (Seen, usize) {
    let slots = [0, 1].map(|number| &head[slot(number) as usize..][..SLOT_BYTES as usize]);
    let found = (0..).zip(&slots).filter_map(|(at, slot)| Some((decode(slot)?, at)));
    if let Some(((label, header), at)) = found.max_by_key(|((_, header), _)| header.sequence) {
        return (Seen::Header(label, header), 1 - at);
    }
    let seen = match () {
        () if slots.iter().any(|slot| slot.starts_with(MAGIC)) => Seen::Damaged,
        () if head.iter().all(|byte| *byte == 0) => Seen::Blank,
        () => Seen::Foreign,
    };
    (seen, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(sequence: u64) -> (Label, Header) {
        let shape = Shape::new(2, 100 << 20);
        let mut map = Regions::none(shape.regions());
        [0, 3, 99].iter().for_each(|region| map.insert(*region));
        let generation = |number, halves| Generation { number, halves: Halves(halves) };
        let header = Header {
            sequence,
            generation: generation(7, 1),
            previous: generation(6, 3),
            known: [1, 2, 3, 4, 5, 6, 7, 8],
            map,
        };
        (Label { mirror: [9; 16], half: 1, shape }, header)
    }

    fn head(headers: &[(Label, Header)]) -> Vec<u8> {
        let mut head = vec![0; HEAD_BYTES as usize];
        for (at, (label, header)) in headers.iter().enumerate() {
            let bytes = encode(label, header);
            head[slot(at) as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
        head
    }

    #[test]
    fn the_newer_header_is_read_and_the_older_where_it_is_damaged() {
        let (older, newer) = (example(4), example(5));
        let mut head = head(&[older.clone(), newer.clone()]);
        assert_eq!(look(&head), (Seen::Header(newer.0, newer.1), 0));
        for damaged in [8, 13, 20, 50, 60, 90, NUMBERS - 1, NUMBERS + 3] {
            head[slot(1) as usize + damaged] ^= 1;
            assert_eq!(look(&head), (Seen::Header(older.0, older.1.clone()), 1), "at {damaged}");
            head[slot(1) as usize + damaged] ^= 1;
        }
        head[60] ^= 1;
        head[slot(1) as usize + 60] ^= 1;
        assert_eq!(look(&head).0, Seen::Damaged);
    }

    #[test]
    fn blank_and_foreign_halves_are_told_apart() {
        let mut head = head(&[]);
        assert_eq!(look(&head).0, Seen::Blank);
        head[HEAD_BYTES as usize - 1] = 1;
        assert_eq!(look(&head).0, Seen::Foreign);
    }

    #[test]
    fn regions_cover_a_mirror_of_any_size() {
        for bytes in [4096, 1 << 20, (1 << 20) + 4096, 1 << 38, (1 << 38) + 4096, 1 << 44] {
            let shape = Shape::new(2, bytes);
            let regions = shape.regions();
            assert!((regions as u64) <= REGIONS_MAX && shape.header_bytes() as u64 <= SLOT_BYTES);
            assert_eq!(shape.range(regions - 1).end, bytes);
            assert_eq!(shape.span(0, bytes), 0..=regions - 1);
            assert_eq!(shape.span(bytes - 4096, 4096), regions - 1..=regions - 1);
        }
    }
}
