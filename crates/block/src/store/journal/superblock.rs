//! The superblock: the identity of the cache, and the volumes it holds data of. The newer of two
//! copies is valid.
//!
//! The newest version of the format is written; the version before can be read too.

mod volumes;

use floe_policy::admission::Calibrated;
use zerocopy::little_endian::{F64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::error::StoreError;
use super::layout::{Layout, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, VERSION};
use super::sum::checksum;
use crate::geometry::{BlockSizes, SECTOR_BYTES};

pub use volumes::{MOST_NAME_BYTES, MOST_VOLUMES, Volume};

/// The previous version, which can be read. Its volume records differ; fields that were zero there
/// have no meaning.
const VERSION_BEFORE: u32 = 2;

/// Most other tiers that a superblock can name.
const MOST_COMPANIONS: usize = 15;

/// Longest name of one, in bytes; longer ones are cut.
const MOST_COMPANION_BYTES: usize = 232;

const MAGIC: [u8; 8] = *b"FloeBlk\n";
const SUM_BYTES: usize = size_of::<u64>();
const COMPANIONS_AT: usize = 128;
const RETIRED_AT: usize = 3968;
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
    /// The last session was closed cleanly, and nothing has been written since.
    pub clean: bool,
    /// The cache was bypassed: its clean content may be old.
    pub void: bool,
    /// Time of retirement in seconds since 1970, after which the cache must not be used; 0 when the
    /// time is unknown.
    pub retired: Option<u64>,
    /// Positions of all structures.
    pub layout: Layout,
    /// Calibration of the device, if it was measured.
    pub calibrated: Option<Calibrated>,
    /// Random number that the tiers served together the last time share, and no others. 0 before
    /// the first time.
    pub stack: u32,
    /// The number about to become `stack`, here and in the peer tiers; 0 when none is.
    pub next_stack: u32,
    /// Peer tiers of the stack that may hold dirty data of the volumes.
    pub companions: Vec<Companion>,
    /// In order of their ids.
    pub volumes: Vec<Volume>,
}

/// A cache on another device, through which the same volumes were served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Companion {
    /// The id in its own superblock.
    pub id: [u8; 16],
    /// Its name for people.
    pub name: String,
    /// It is above this one, rather than below.
    pub above: bool,
    /// The session in which it was served with this one; 0 where that is not known.
    pub session: u32,
    /// Requests went past it in that session, and its device refused the record of that; true when
    /// nothing in it is valid any more, false when its dirty data is.
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
    /// Bit n stands for blocks of 2^n sectors.
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

/// The content found in the place of a copy.
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
        volumes::encode(&self.volumes, &mut bytes[TABLE_AT..])?;
        let sizes =
            layout.sizes.classes().fold(0, |bits, class| bits | layout.sizes.sectors(class) as u32);
        let flags = u32::from(self.clean) * CLEAN
            + u32::from(self.void) * VOID
            + u32::from(self.calibrated.is_some()) * CALIBRATED
            + u32::from(self.retired.is_some()) * RETIRED;
        let retired = self.retired.unwrap_or_default();
        bytes[RETIRED_AT..RETIRED_AT + size_of::<u64>()].copy_from_slice(&retired.to_le_bytes());
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
            VERSION => volumes::decode(&bytes[TABLE_AT..]),
            VERSION_BEFORE => volumes::decode_version_2(&bytes[TABLE_AT..]),
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
        let (retired, _) =
            U64::ref_from_prefix(&bytes[RETIRED_AT..]).expect("a copy is longer than that");
        Ok(Superblock {
            id: header.id,
            generation: header.generation.get(),
            session: header.session.get(),
            clean: flags & CLEAN != 0,
            void: flags & VOID != 0,
            retired: (flags & RETIRED != 0).then_some(retired.get()),
            layout: layout.stated()?,
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
