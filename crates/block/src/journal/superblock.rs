//! The superblock: the identity of the cache, and the volumes whose data it holds. The newer of two
//! copies is valid.
//!
//! The newest version of the format is written; the version before can be read too.

use std::collections::BTreeSet;

use floe_device::Identity;
use floe_policy::admission::Calibrated;
use zerocopy::little_endian::{F64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::layout::{Layout, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, StoreError, VERSION};
use super::page::checksum;
use crate::geometry::{BlockSizes, SECTOR_BYTES, VolumeId};

/// The previous version, which can be read. Its volume records differ; fields that were zero there
/// have no meaning.
const VERSION_BEFORE: u32 = 2;

/// Maximum number of peer tiers that a superblock can name.
const MOST_COMPANIONS: usize = 15;

/// Longest name of a peer tier, in bytes; longer ones are cut.
const MOST_COMPANION_BYTES: usize = 232;

const MAGIC: [u8; 8] = *b"FloeBlk\n";
const SUM_BYTES: usize = size_of::<u64>();
const COMPANIONS_AT: usize = 128;
const RETIRED_AT: usize = 3968;
const CACHE_BYTES_AT: usize = 3976;
const TABLE_AT: usize = 4096;

const CLEAN: u32 = 1;
const VOID: u32 = 2;
const CALIBRATED: u32 = 4;
const RETIRED: u32 = 8;
const IN_USE: u16 = 1;
const ABOVE: u16 = 2;
const PASSED: u16 = 4;
const ENDED: u16 = 8;

/// The identity and state of a cache.
#[derive(Debug, Clone, PartialEq)]
pub struct Superblock {
    /// An id that no other cache has.
    pub id: [u8; 16],
    /// Number of times that the superblock was written.
    pub generation: u64,
    /// Number of times that the cache was opened.
    pub session: u64,
    /// Set if the last session was closed cleanly and nothing has been written since.
    pub clean: bool,
    /// Set if the cache was bypassed: its clean data may be outdated.
    pub void: bool,
    /// Time of retirement in seconds since 1970, after which the cache must not be used; 0 when the
    /// time is unknown.
    pub retired: Option<u64>,
    /// Positions of all structures on the device.
    pub layout: Layout,
    /// Bytes of the device that the cache takes, its metadata included, if these are fewer than it
    /// was made for.
    pub cache_bytes: Option<u64>,
    /// Calibration of the device, if it was measured.
    pub calibrated: Option<Calibrated>,
    /// Random number shared by the tiers that were last served as one stack, and by no others. 0
    /// before the first time.
    pub stack: u32,
    /// The number about to become `stack`, here and in the peer tiers; 0 when no change is under
    /// way.
    pub next_stack: u32,
    /// Peer tiers of the stack that may hold dirty data of the volumes.
    pub companions: Vec<Companion>,
    /// The volumes, in order of their ids.
    pub volumes: Vec<Volume>,
}

/// A peer tier: a cache on another device, through which the same volumes were served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Companion {
    /// The id of the peer tier, from its own superblock.
    pub id: [u8; 16],
    /// The human-readable name of the peer tier.
    pub name: String,
    /// Set if the peer tier is above this cache, rather than below.
    pub above: bool,
    /// The peer tier's session in which it was served with this cache; 0 if unknown.
    pub session: u32,
    /// Set if the peer tier was bypassed in that session and its device refused the record of that.
    /// True when nothing in the peer tier is valid any more, false when its dirty data still is.
    pub passed: Option<bool>,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    checksum: U64,
    magic: [u8; 8],
    version: U32,
    flags: U32,
    generation: U64,
    session: U64,
    id: [u8; 16],
    shards: U32,
    /// Bit n stands for blocks of 2ⁿ sectors.
    sizes: U32,
    shard_sectors: U64,
    dump_pages: U64,
    ring_pages: U64,
    data_start: U64,
    write_cost: F64,
    target: F64,
    target_bytes: F64,
    stack: U32,
    next_stack: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct CompanionEntry {
    id: [u8; 16],
    flags: U16,
    name_bytes: U16,
    session: U32,
    name: [u8; MOST_COMPANION_BYTES],
}

const _: () = assert!(size_of::<Header>() <= COMPANIONS_AT);
const _: () = assert!(COMPANIONS_AT + MOST_COMPANIONS * size_of::<CompanionEntry>() <= RETIRED_AT);

/// The content found in the place of a superblock copy.
#[derive(Debug)]
pub(super) enum Copy {
    Good(Superblock),
    /// Zeros, as before a cache is created.
    Blank,
    /// Data that is not a superblock.
    Foreign,
    /// A copy whose checksum is wrong.
    Damaged {
        stated: u64,
        found: u64,
    },
    Newer(u32),
    /// The device fails to read the copy.
    Unreadable(StoreError),
    /// A copy with impossible content.
    Nonsense(String),
}

impl Superblock {
    /// Returns the bytes of data that the cache may hold: those of the layout, or fewer after it
    /// has become smaller.
    pub fn data_bytes(&self) -> u64 {
        let all = self.layout.data_bytes();
        self.cache_bytes.map_or(all, |bytes| self.layout.data_bytes_within(bytes))
    }

    /// Sets the bytes of the device that the cache takes. Has no effect before the superblock is
    /// written.
    pub fn set_cache_bytes(&mut self, bytes: u64) {
        self.cache_bytes = (bytes < self.layout.end_bytes()).then_some(bytes);
    }

    /// Returns the offset of the copy for this generation.
    pub(super) fn offset(&self) -> u64 {
        SUPERBLOCK_OFFSETS[self.generation as usize % 2]
    }

    /// Returns the superblock's bytes.
    pub(super) fn encode(&self) -> Result<Vec<u8>, StoreError> {
        let layout = &self.layout;
        let mut bytes = vec![0; SUPERBLOCK_BYTES];
        for (number, companion) in self.companions.iter().enumerate() {
            if number >= MOST_COMPANIONS {
                return Err(StoreError::Companions);
            }
            let at = COMPANIONS_AT + number * size_of::<CompanionEntry>();
            bytes[at..at + size_of::<CompanionEntry>()]
                .copy_from_slice(companion.entry().as_bytes());
        }
        encode(&self.volumes, &mut bytes[TABLE_AT..])?;
        let sizes =
            layout.sizes.classes().fold(0, |bits, class| bits | layout.sizes.sectors(class) as u32);
        let flags = u32::from(self.clean) * CLEAN
            + u32::from(self.void) * VOID
            + u32::from(self.calibrated.is_some()) * CALIBRATED
            + u32::from(self.retired.is_some()) * RETIRED;
        let retired = self.retired.unwrap_or_default();
        bytes[RETIRED_AT..RETIRED_AT + size_of::<u64>()].copy_from_slice(&retired.to_le_bytes());
        let cache_bytes = self.cache_bytes.unwrap_or_default();
        bytes[CACHE_BYTES_AT..CACHE_BYTES_AT + size_of::<u64>()]
            .copy_from_slice(&cache_bytes.to_le_bytes());
        let nothing = Calibrated { write_cost: 0.0, target: 0.0, target_bytes: 0.0 };
        let calibrated = self.calibrated.unwrap_or(nothing);
        let mut header = Header {
            checksum: U64::ZERO,
            magic: MAGIC,
            version: VERSION.into(),
            flags: flags.into(),
            generation: self.generation.into(),
            session: self.session.into(),
            id: self.id,
            shards: (layout.shards as u32).into(),
            sizes: sizes.into(),
            shard_sectors: layout.shard_sectors.into(),
            dump_pages: layout.dump_pages.into(),
            ring_pages: layout.ring_pages.into(),
            data_start: layout.data_start.into(),
            write_cost: calibrated.write_cost.into(),
            target: calibrated.target.into(),
            target_bytes: calibrated.target_bytes.into(),
            stack: self.stack.into(),
            next_stack: self.next_stack.into(),
        };
        bytes[..size_of::<Header>()].copy_from_slice(header.as_bytes());
        header.checksum = checksum(&bytes[SUM_BYTES..]).into();
        bytes[..SUM_BYTES].copy_from_slice(header.checksum.as_bytes());
        Ok(bytes)
    }

    /// Decodes the bytes in the place of a copy.
    pub(super) fn decode(bytes: &[u8]) -> Copy {
        let (header, _) = Header::ref_from_prefix(bytes).expect("a copy is longer than its header");
        if header.magic != MAGIC {
            return if bytes.iter().all(|byte| *byte == 0) { Copy::Blank } else { Copy::Foreign };
        }
        let (stated, found) = (header.checksum.get(), checksum(&bytes[SUM_BYTES..]));
        if stated != found {
            return Copy::Damaged { stated, found };
        }
        let volumes = match header.version.get() {
            VERSION => decode(&bytes[TABLE_AT..]),
            VERSION_BEFORE => decode_version_2(&bytes[TABLE_AT..]),
            other => return Copy::Newer(other),
        };
        let found = volumes.and_then(|volumes| Self::understand(header, bytes, volumes));
        found.map_or_else(Copy::Nonsense, Copy::Good)
    }

    fn understand(
        header: &Header,
        bytes: &[u8],
        volumes: Vec<Volume>,
    ) -> Result<Superblock, String> {
        let bits = header.sizes.get();
        let sizes: Vec<u64> =
            (0..32).filter(|bit| bits >> bit & 1 == 1).map(|bit| SECTOR_BYTES << bit).collect();
        let layout = Layout {
            sizes: BlockSizes::new(&sizes).map_err(|error| error.to_string())?,
            shards: header.shards.get().into(),
            shard_sectors: header.shard_sectors.get(),
            dump_pages: header.dump_pages.get(),
            ring_pages: header.ring_pages.get(),
            data_start: header.data_start.get(),
        };
        let companions = &bytes[COMPANIONS_AT..TABLE_AT];
        let (companions, _) =
            <[CompanionEntry]>::ref_from_prefix_with_elems(companions, MOST_COMPANIONS)
                .map_err(|_| "a table of tiers that is too short")?;
        let companions = companions.iter().filter(|entry| entry.flags.get() & IN_USE != 0);
        let flags = header.flags.get();
        let word = |at: usize| {
            U64::ref_from_prefix(&bytes[at..]).expect("a copy is longer than that").0.get()
        };
        let layout = layout.stated()?;
        let cache_bytes = Some(word(CACHE_BYTES_AT)).filter(|bytes| *bytes > 0);
        if let Some(bytes) = cache_bytes.filter(|bytes| layout.data_bytes_within(*bytes) == 0) {
            return Err(format!("a size of {bytes} bytes, which has no room for data"));
        }
        Ok(Superblock {
            id: header.id,
            generation: header.generation.get(),
            session: header.session.get(),
            clean: flags & CLEAN != 0,
            void: flags & VOID != 0,
            retired: (flags & RETIRED != 0).then(|| word(RETIRED_AT)),
            layout,
            cache_bytes,
            calibrated: (flags & CALIBRATED != 0).then(|| header.calibrated()).transpose()?,
            stack: header.stack.get(),
            next_stack: header.next_stack.get(),
            companions: companions.map(CompanionEntry::companion).collect::<Result<_, _>>()?,
            volumes,
        })
    }
}

impl Companion {
    fn entry(&self) -> CompanionEntry {
        let name = &self.name[..self.name.floor_char_boundary(MOST_COMPANION_BYTES)];
        let mut entry = CompanionEntry {
            id: self.id,
            flags: (IN_USE
                + u16::from(self.above) * ABOVE
                + u16::from(self.passed.is_some()) * PASSED
                + u16::from(self.passed == Some(true)) * ENDED)
                .into(),
            name_bytes: (name.len() as u16).into(),
            session: self.session.into(),
            name: [0; MOST_COMPANION_BYTES],
        };
        entry.name[..name.len()].copy_from_slice(name.as_bytes());
        entry
    }
}

impl CompanionEntry {
    fn companion(&self) -> Result<Companion, String> {
        let name = self.name.get(..self.name_bytes.get().into());
        let name = name.and_then(|name| std::str::from_utf8(name).ok());
        let name = name.ok_or("a name for a tier that is no text")?.to_owned();
        let is = |flag| self.flags.get() & flag != 0;
        let (above, passed) = (is(ABOVE), is(PASSED).then_some(is(ENDED)));
        Ok(Companion { id: self.id, name, above, session: self.session.get(), passed })
    }
}

impl Header {
    fn calibrated(&self) -> Result<Calibrated, String> {
        let Self { write_cost, target, target_bytes, .. } = self;
        let [write_cost, target, target_bytes] =
            [write_cost, target, target_bytes].map(|figure| figure.get());
        let is_share = |share: f64| (0.0..=1.0).contains(&share);
        if write_cost >= 0.0 && write_cost.is_finite() && is_share(target) && is_share(target_bytes)
        {
            Ok(Calibrated { write_cost, target, target_bytes })
        } else {
            Err(format!("a calibration of {write_cost}, {target} and {target_bytes}"))
        }
    }
}

#[cfg(test)]
mod tests;

/// Maximum number of volumes a cache can have.
pub const MOST_VOLUMES: usize = 256;

/// Longest name of a volume, in bytes.
pub const MOST_NAME_BYTES: usize = 64;

/// Maximum number of facts of a backing device's identity that are written.
const MOST_FACTS: usize = 15;

/// Bytes of the unit in which a record's length is counted.
const UNIT: usize = 8;

/// A volume whose data the cache may hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    /// The id of the volume, below [`MOST_VOLUMES`].
    pub id: VolumeId,
    /// The human-readable name of the volume, of at most [`MOST_NAME_BYTES`] bytes.
    pub name: String,
    /// The size of the volume in bytes.
    pub bytes: u64,
    /// The identity of the volume's backing device.
    pub identity: Identity,
    /// The caller's marker for the content of the backing device when the last session was closed
    /// cleanly; 0 when unknown.
    pub marker: u64,
    /// Checksums of some of the volume's sectors on the backing device, valid also after a crash.
    pub samples: Samples,
}

impl Volume {
    /// Creates a volume without identity, marker or samples.
    pub fn new(id: VolumeId, name: impl Into<String>, bytes: u64) -> Self {
        let (identity, samples) = (Identity::default(), Samples::default());
        Self { id, name: name.into(), bytes, identity, marker: 0, samples }
    }
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Record {
    /// Length of the whole record; 0 after the last one.
    record_bytes: U16,
    number: U16,
    name_bytes: U16,
    facts: u8,
    samples: u8,
    bytes: U64,
    marker: U64,
    sampled_bytes: U64,
}

/// A volume's entry in version 2.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct EntryOfVersion2 {
    flags: U16,
    name_bytes: U16,
    _unused: U32,
    bytes: U64,
    identity: U64,
    marker: U64,
    name: [u8; MOST_NAME_BYTES],
}

const IN_USE_IN_VERSION_2: u16 = 1;

/// Number of facts and of samples that are written for each volume.
#[derive(Debug, Clone, Copy)]
struct Share {
    facts: usize,
    samples: usize,
}

impl Volume {
    fn record_bytes(&self, share: Share) -> usize {
        let facts = self.identity.words().len().min(share.facts) * size_of::<u64>();
        let samples = self.samples.sums.len().min(share.samples) * size_of::<u32>();
        (size_of::<Record>() + facts + samples + self.name.len()).next_multiple_of(UNIT)
    }

    fn append(&self, share: Share, table: &mut Vec<u8>) {
        let end = table.len() + self.record_bytes(share);
        let facts: Vec<u64> = self.identity.words().take(share.facts).collect();
        let sums = &self.samples.sums[..self.samples.sums.len().min(share.samples)];
        let record = Record {
            record_bytes: (self.record_bytes(share) as u16).into(),
            number: self.id.0.into(),
            name_bytes: (self.name.len() as u16).into(),
            facts: facts.len() as u8,
            samples: sums.len() as u8,
            bytes: self.bytes.into(),
            marker: self.marker.into(),
            sampled_bytes: self.samples.of_bytes.into(),
        };
        table.extend_from_slice(record.as_bytes());
        facts.iter().for_each(|fact| table.extend_from_slice(&fact.to_le_bytes()));
        sums.iter().for_each(|sum| table.extend_from_slice(&sum.to_le_bytes()));
        table.extend_from_slice(self.name.as_bytes());
        table.resize(end, 0);
    }
}

/// Writes volumes into their table, which is all zeros.
fn encode(volumes: &[Volume], table: &mut [u8]) -> Result<(), StoreError> {
    for volume in volumes {
        let refuse = |why: &str| {
            StoreError::Volume(format!("volume {} ({}): {why}", volume.id.0, volume.name))
        };
        if usize::from(volume.id.0) >= MOST_VOLUMES {
            return Err(refuse("there are 256 at most"));
        }
        if volume.name.len() > MOST_NAME_BYTES {
            return Err(refuse("its name has more than 64 bytes"));
        }
    }
    let bytes = |share| volumes.iter().map(|volume| volume.record_bytes(share)).sum::<usize>();
    let fewer_samples =
        (0..=MOST_SAMPLES).rev().map(|samples| Share { facts: MOST_FACTS, samples });
    let fewer_facts = (0..MOST_FACTS).rev().map(|facts| Share { facts, samples: 0 });
    let share = fewer_samples.chain(fewer_facts).find(|share| bytes(*share) <= table.len());
    let share =
        share.ok_or_else(|| StoreError::Volume("there are more than 256 volumes".to_owned()))?;
    let mut records = Vec::with_capacity(table.len());
    volumes.iter().for_each(|volume| volume.append(share, &mut records));
    table[..records.len()].copy_from_slice(&records);
    Ok(())
}

/// Reads the volumes from their table.
fn decode(mut table: &[u8]) -> Result<Vec<Volume>, String> {
    let mut volumes: Vec<Volume> = Vec::new();
    while let Ok((record, _)) = Record::ref_from_prefix(table)
        && record.record_bytes.get() != 0
    {
        let number = record.number.get();
        let bytes = table.get(size_of::<Record>()..record.record_bytes.get().into());
        let bytes = bytes
            .ok_or_else(|| format!("a record of volume {number} that is too long or short"))?;
        if usize::from(number) >= MOST_VOLUMES || volumes.iter().any(|volume| volume.id.0 == number)
        {
            return Err(format!("a volume of number {number}"));
        }
        volumes.push(record.volume(bytes)?);
        table = &table[record.record_bytes.get().into()..];
    }
    Ok(volumes)
}

impl Record {
    /// Returns the volume of this record; `bytes` follow the record.
    fn volume(&self, bytes: &[u8]) -> Result<Volume, String> {
        let number = self.number.get();
        let (facts, samples) = (usize::from(self.facts), usize::from(self.samples));
        let too_short = || format!("more of volume {number} than its record has room for");
        let (facts, bytes) =
            <[U64]>::ref_from_prefix_with_elems(bytes, facts).map_err(|_| too_short())?;
        let (sums, bytes) =
            <[U32]>::ref_from_prefix_with_elems(bytes, samples).map_err(|_| too_short())?;
        Ok(Volume {
            id: VolumeId(number),
            name: name(number, bytes, self.name_bytes)?,
            bytes: self.bytes.get(),
            identity: Identity::from_words(facts.iter().map(|fact| fact.get())),
            marker: self.marker.get(),
            samples: Samples {
                of_bytes: self.sampled_bytes.get(),
                sums: sums.iter().map(|sum| sum.get()).take(MOST_SAMPLES).collect(),
            },
        })
    }
}

/// Reads the volumes from the table of version 2.
fn decode_version_2(table: &[u8]) -> Result<Vec<Volume>, String> {
    let (entries, _) = <[EntryOfVersion2]>::ref_from_prefix_with_elems(table, MOST_VOLUMES)
        .map_err(|_| "a table of volumes that is too short")?;
    let entries =
        (0u16..).zip(entries).filter(|(_, entry)| entry.flags.get() & IN_USE_IN_VERSION_2 != 0);
    let volume = |(number, entry): (u16, &EntryOfVersion2)| {
        Ok(Volume {
            identity: Identity::from_version_2(entry.identity.get()),
            marker: entry.marker.get(),
            ..Volume::new(
                VolumeId(number),
                name(number, &entry.name, entry.name_bytes)?,
                entry.bytes.get(),
            )
        })
    };
    entries.map(volume).collect()
}

fn name(number: u16, bytes: &[u8], len: U16) -> Result<String, String> {
    let name = bytes.get(..len.get().into()).and_then(|name| std::str::from_utf8(name).ok());
    name.map(str::to_owned).ok_or_else(|| format!("a name for volume {number} that is no text"))
}

/// Maximum number of sectors of a volume that are sampled.
pub const MOST_SAMPLES: usize = 24;

/// Sampled positions near the start, where disks of one size differ, in sectors: partition tables
/// and the beginnings of file systems; LVM and RAID; btrfs; and the copies that ext4 keeps of its
/// superblock in groups 1, 3 and 5.
const NEAR_THE_BEGINNING: [u64; 6] = [0, 1, 16, 32_768, 98_304, 163_840];

/// Sampled positions near the end, in sectors from there: the copy of a partition table, and RAID.
const NEAR_THE_END: [u64; 3] = [1, 2, 16];

/// Number of equal parts of a disk whose starts are sampled: XFS begins its allocation groups
/// there.
const QUARTERS: u64 = 4;

/// Checksums of some sectors of a volume on its backing device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Samples {
    /// The size of the volume in bytes, which determines the sampled sectors.
    pub of_bytes: u64,
    /// The checksums of the volume's first [`sampled_sectors`], in their order; 0 for an unknown
    /// one.
    pub sums: Vec<u32>,
}

impl Samples {
    /// Returns the sectors with known checksums, and the checksums.
    pub fn known(&self) -> impl Iterator<Item = (u64, u32)> {
        let known = sampled_sectors(self.of_bytes).into_iter().zip(self.sums.iter().copied());
        known.filter(|(_, sum)| *sum != 0)
    }

    /// Removes the checksums of these sectors. Returns whether any was known.
    pub fn forget(&mut self, sectors: &[u64]) -> bool {
        let mut forgot = false;
        for (sector, sum) in sampled_sectors(self.of_bytes).into_iter().zip(&mut self.sums) {
            if *sum != 0 && sectors.contains(&sector) {
                (*sum, forgot) = (0, true);
            }
        }
        forgot
    }
}

/// Returns the sampled sectors of a volume of this size, the most distinctive first:
/// [`MOST_SAMPLES`], or all of a smaller volume. Samples stored in caches depend on this choice, so
/// it never changes.
pub fn sampled_sectors(bytes: u64) -> Vec<u64> {
    let sectors = bytes.div_ceil(SECTOR_BYTES);
    let near_the_end = NEAR_THE_END.into_iter().filter_map(|before| sectors.checked_sub(before));
    let quarters = (1..QUARTERS)
        .map(|part| (u128::from(sectors) * u128::from(part) / u128::from(QUARTERS)) as u64);
    // Multiples of the golden ratio, as fractions of the whole, are spread evenly for any number of
    // them.
    let spread = (1..=4 * MOST_SAMPLES as u64).map(|n| {
        let part = n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        ((u128::from(part) * u128::from(sectors)) >> 64) as u64
    });
    let mut seen = BTreeSet::new();
    let all = NEAR_THE_BEGINNING[..2].iter().copied().chain(near_the_end).chain(quarters);
    let all = all
        .chain(NEAR_THE_BEGINNING[2..].iter().copied())
        .chain(spread)
        .chain(0..MOST_SAMPLES as u64);
    all.filter(|sector| *sector < sectors && seen.insert(*sector)).take(MOST_SAMPLES).collect()
}

/// Returns the checksum of a sampled sector; never 0, which stands for an unknown one.
pub fn sample_sum(sector: &[u8]) -> u32 {
    let sum = crc_fast::crc64_nvme(sector);
    ((sum >> 32) as u32 ^ sum as u32).max(1)
}

#[cfg(test)]
mod samples_tests {
    use super::*;

    #[test]
    fn sampled_sectors_are_within_the_volume_and_spread_over_it() {
        for bytes in [512, 4096, 5000 * 512, 4 << 20, 10 << 30, 100 << 40] {
            let (found, sectors) = (sampled_sectors(bytes), u64::div_ceil(bytes, 4096));
            let distinct: BTreeSet<_> = found.iter().collect();
            assert_eq!(distinct.len(), found.len());
            assert_eq!(found.len() as u64, sectors.min(MOST_SAMPLES as u64), "{bytes} bytes");
            assert!(found.iter().all(|sector| *sector < sectors));
            assert!(found.contains(&0) && found.contains(&(sectors - 1)), "both ends");
            if sectors > 1000 {
                let eighth = |part: u64| sectors * part / 8..sectors * (part + 1) / 8;
                for part in 0..8 {
                    assert!(
                        found.iter().any(|sector| eighth(part).contains(sector)),
                        "{bytes}: part {part}"
                    );
                }
            }
        }
        assert!(sampled_sectors(0).is_empty());
    }

    #[test]
    fn sampled_sectors_never_change() {
        let found = sampled_sectors(10 << 30);
        let first = [
            0, 1, 2_621_439, 2_621_438, 2_621_424, 655_360, 1_310_720, 1_966_080, 16, 32_768,
            98_304, 163_840,
        ];
        assert_eq!(found[..12], first);
        assert_eq!(found[12..15], [1_620_139, 618_838, 2_238_977]);
    }

    #[test]
    fn what_is_forgotten_is_known_no_more() {
        let sums = (1..=24).collect();
        let mut samples = Samples { of_bytes: 4 << 20, sums };
        assert_eq!(samples.known().count(), 24);
        assert!(samples.forget(&[0, 7, 1023]));
        assert!(!samples.forget(&[0, 1023]));
        assert!(samples.known().all(|(sector, _)| sector != 0 && sector != 1023));
    }
}
