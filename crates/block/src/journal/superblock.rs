//! The superblock: what the cache is, and which volumes it holds data of. Two copies, of which the newer counts.

use floe_policy::admission::Calibrated;
use zerocopy::little_endian::{F64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::error::StoreError;
use super::layout::Layout;
use super::sum::checksum;
use crate::geometry::{BlockSizes, SECTOR_BYTES, VolumeId};

/// The version of the format.
pub(super) const VERSION: u32 = 2;

/// Size of a copy.
pub(super) const SUPERBLOCK_BYTES: usize = 32 << 10;

/// Where the copies are: the one of even and the one of odd generations.
pub(super) const SUPERBLOCK_OFFSETS: [u64; 2] = [0, SUPERBLOCK_BYTES as u64];

/// Most volumes a cache can have.
pub const MOST_VOLUMES: usize = 256;

/// Longest name of a volume, in bytes.
pub const MOST_NAME_BYTES: usize = 64;

/// Most other tiers that a superblock can name.
const MOST_COMPANIONS: usize = 15;

/// Longest name of one, in bytes; longer ones are cut.
const MOST_COMPANION_BYTES: usize = 232;

const MAGIC: [u8; 8] = *b"FloeBlk\n";
const SUM_BYTES: usize = size_of::<u64>();
const COMPANIONS_AT: usize = 128;
const TABLE_AT: usize = 4096;

const CLEAN: u32 = 1;
const VOID: u32 = 2;
const CALIBRATED: u32 = 4;
const IN_USE: u16 = 1;
const ABOVE: u16 = 2;

/// What a cache is.
#[derive(Debug, Clone, PartialEq)]
pub struct Superblock {
    /// What no other cache is called.
    pub id: [u8; 16],
    /// Counts the times it was written.
    pub generation: u64,
    /// Counts the times the cache was opened.
    pub session: u64,
    /// The last session ended in good order, and nothing has been written since.
    pub clean: bool,
    /// The cache device was given up: what it holds as clean may be old.
    pub void: bool,
    /// Where everything is.
    pub layout: Layout,
    /// What was measured of the device, if anything was.
    pub calibrated: Option<Calibrated>,
    /// Tells which tiers were served together the last time: all of them have the same number, that no others have. 0 before the first time.
    pub stack: u32,
    /// The number that is about to be its next one, and that of the others with it; 0 when none is.
    pub next_stack: u32,
    /// Other tiers of the same stack that may hold what was written to the volumes and nothing else has.
    pub companions: Vec<Companion>,
    /// In order of their ids.
    pub volumes: Vec<Volume>,
}

/// A cache on another device, through which the same volumes were served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Companion {
    /// Its own superblock's.
    pub id: [u8; 16],
    /// What people call it.
    pub name: String,
    /// It is above this one, rather than below.
    pub above: bool,
}

/// A volume that the cache may hold data of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    /// Its number, below [`MOST_VOLUMES`].
    pub id: VolumeId,
    /// What people call it: at most [`MOST_NAME_BYTES`].
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Which backing device it is on, in the caller's words.
    pub identity: u64,
    /// What the backing device held when the last session ended in good order, in the caller's words; 0 when not known.
    pub marker: u64,
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
struct Entry {
    flags: U16,
    name_bytes: U16,
    unused: U32,
    bytes: U64,
    identity: U64,
    marker: U64,
    name: [u8; MOST_NAME_BYTES],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct CompanionEntry {
    id: [u8; 16],
    flags: U16,
    name_bytes: U16,
    unused: U32,
    name: [u8; MOST_COMPANION_BYTES],
}

const _: () = assert!(size_of::<Header>() <= COMPANIONS_AT);
const _: () = assert!(COMPANIONS_AT + MOST_COMPANIONS * size_of::<CompanionEntry>() <= TABLE_AT);
const _: () = assert!(TABLE_AT + MOST_VOLUMES * size_of::<Entry>() <= SUPERBLOCK_BYTES);

/// What is where a copy should be.
#[derive(Debug)]
pub(super) enum Copy {
    Good(Superblock),
    /// Zeros, as where a cache is about to be made.
    Blank,
    /// Nothing of ours.
    Foreign,
    /// A copy with another checksum than its own.
    Damaged {
        stated: u64,
        found: u64,
    },
    Newer(u32),
    /// A copy that says what cannot be.
    Nonsense(String),
}

impl Superblock {
    /// Where its copy is.
    pub(super) fn offset(&self) -> u64 {
        SUPERBLOCK_OFFSETS[self.generation as usize % 2]
    }

    /// Its bytes.
    pub(super) fn encode(&self) -> Result<Vec<u8>, StoreError> {
        let layout = &self.layout;
        let mut bytes = vec![0; SUPERBLOCK_BYTES];
        for (number, companion) in self.companions.iter().enumerate() {
            if number >= MOST_COMPANIONS {
                return Err(StoreError::Companions);
            }
            let at = COMPANIONS_AT + number * size_of::<CompanionEntry>();
            bytes[at..at + size_of::<CompanionEntry>()].copy_from_slice(companion.entry().as_bytes());
        }
        for volume in &self.volumes {
            let refuse =
                |why: &str| StoreError::Volume(format!("volume {} ({}): {why}", volume.id.0, volume.name));
            let at = TABLE_AT + usize::from(volume.id.0) * size_of::<Entry>();
            if usize::from(volume.id.0) >= MOST_VOLUMES {
                return Err(refuse("there are 256 at most"));
            }
            if volume.name.len() > MOST_NAME_BYTES {
                return Err(refuse("its name has more than 64 bytes"));
            }
            let mut entry = Entry {
                flags: IN_USE.into(),
                name_bytes: (volume.name.len() as u16).into(),
                unused: U32::ZERO,
                bytes: volume.bytes.into(),
                identity: volume.identity.into(),
                marker: volume.marker.into(),
                name: [0; MOST_NAME_BYTES],
            };
            entry.name[..volume.name.len()].copy_from_slice(volume.name.as_bytes());
            bytes[at..at + size_of::<Entry>()].copy_from_slice(entry.as_bytes());
        }
        let sizes = layout.sizes.classes().fold(0, |bits, class| bits | layout.sizes.sectors(class) as u32);
        let flags = u32::from(self.clean) * CLEAN
            + u32::from(self.void) * VOID
            + u32::from(self.calibrated.is_some()) * CALIBRATED;
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

    /// What these bytes are, which stand where a copy should be.
    pub(super) fn decode(bytes: &[u8]) -> Copy {
        let (header, _) = Header::ref_from_prefix(bytes).expect("a copy is longer than its header");
        if header.magic != MAGIC {
            return if bytes.iter().all(|byte| *byte == 0) { Copy::Blank } else { Copy::Foreign };
        }
        let (stated, found) = (header.checksum.get(), checksum(&bytes[SUM_BYTES..]));
        if stated != found {
            return Copy::Damaged { stated, found };
        }
        if header.version.get() != VERSION {
            return Copy::Newer(header.version.get());
        }
        Self::understand(header, &bytes[COMPANIONS_AT..TABLE_AT], &bytes[TABLE_AT..])
            .map_or_else(Copy::Nonsense, Copy::Good)
    }

    fn understand(header: &Header, companions: &[u8], table: &[u8]) -> Result<Superblock, String> {
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
        let (entries, _) = <[Entry]>::ref_from_prefix_with_elems(table, MOST_VOLUMES)
            .map_err(|_| "a table of volumes that is too short")?;
        let entries = entries.iter().enumerate().filter(|(_, entry)| entry.flags.get() & IN_USE != 0);
        let volumes = entries.map(|(number, entry)| entry.volume(number as u16)).collect::<Result<_, _>>()?;
        let (companions, _) = <[CompanionEntry]>::ref_from_prefix_with_elems(companions, MOST_COMPANIONS)
            .map_err(|_| "a table of tiers that is too short")?;
        let companions = companions.iter().filter(|entry| entry.flags.get() & IN_USE != 0);
        let flags = header.flags.get();
        Ok(Superblock {
            id: header.id,
            generation: header.generation.get(),
            session: header.session.get(),
            clean: flags & CLEAN != 0,
            void: flags & VOID != 0,
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
            flags: (IN_USE + u16::from(self.above) * ABOVE).into(),
            name_bytes: (name.len() as u16).into(),
            unused: U32::ZERO,
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
        Ok(Companion { id: self.id, name, above: self.flags.get() & ABOVE != 0 })
    }
}

impl Header {
    fn calibrated(&self) -> Result<Calibrated, String> {
        let Self { write_cost, target, target_bytes, .. } = self;
        let [write_cost, target, target_bytes] =
            [write_cost, target, target_bytes].map(|figure| figure.get());
        let is_share = |share: f64| (0.0..=1.0).contains(&share);
        if write_cost >= 0.0 && write_cost.is_finite() && is_share(target) && is_share(target_bytes) {
            Ok(Calibrated { write_cost, target, target_bytes })
        } else {
            Err(format!("a calibration of {write_cost}, {target} and {target_bytes}"))
        }
    }
}

impl Entry {
    fn volume(&self, number: u16) -> Result<Volume, String> {
        let name = self.name.get(..self.name_bytes.get().into());
        let name = name.and_then(|name| std::str::from_utf8(name).ok());
        Ok(Volume {
            id: VolumeId(number),
            name: name.ok_or_else(|| format!("a name for volume {number} that is no text"))?.to_owned(),
            bytes: self.bytes.get(),
            identity: self.identity.get(),
            marker: self.marker.get(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn superblock() -> Superblock {
        let volume = |id: u16, name: &str| Volume {
            id: VolumeId(id),
            name: name.to_owned(),
            bytes: 12_345 << 9,
            identity: 0xfeed_0000_0000_0000 + u64::from(id),
            marker: 77,
        };
        Superblock {
            id: *b"0123456789abcdef",
            generation: 258,
            session: 3,
            clean: true,
            void: false,
            layout: Layout::new(&BlockSizes::default(), 1 << 30, 4).unwrap(),
            calibrated: None,
            stack: 0,
            next_stack: 0,
            companions: Vec::new(),
            volumes: vec![volume(0, "data"), volume(255, &"é".repeat(32))],
        }
    }

    #[test]
    fn a_superblock_is_read_as_it_was_written() {
        let superblock = superblock();
        let bytes = superblock.encode().unwrap();
        assert!(matches!(Superblock::decode(&bytes), Copy::Good(found) if found == superblock));
        assert_eq!(superblock.offset(), 0);
        // As docs/format.md draws it.
        assert_eq!(bytes[8..32], *b"FloeBlk\n\x02\0\0\0\x01\0\0\0\x02\x01\0\0\0\0\0\0");
        assert_eq!(bytes[40..64], *b"0123456789abcdef\x04\0\0\0\x78\0\0\0");
        assert_eq!(bytes[96..4096], [0; 4000]);
        assert_eq!(bytes[4096..4104], *b"\x01\0\x04\0\0\0\0\0");
        assert_eq!(bytes[4096 + 32..][..5], *b"data\0");
    }

    #[test]
    fn a_calibration_is_read_as_it_was_written() {
        let calibrated = Calibrated { write_cost: 3.5, target: 0.125, target_bytes: 0.25 };
        let superblock = Superblock { calibrated: Some(calibrated), ..superblock() };
        let bytes = superblock.encode().unwrap();
        assert!(matches!(Superblock::decode(&bytes), Copy::Good(found) if found == superblock));
        // As docs/format.md draws it.
        assert_eq!(bytes[20], 5);
        assert_eq!(bytes[96..120], [3.5f64, 0.125, 0.25].map(f64::to_le_bytes).concat());
        let impossible =
            Superblock { calibrated: Some(Calibrated { target: 2.0, ..calibrated }), ..superblock };
        assert!(matches!(Superblock::decode(&impossible.encode().unwrap()), Copy::Nonsense(_)));
    }

    #[test]
    fn companions_are_read_as_they_were_written_and_long_names_are_cut() {
        let companion =
            |id: u8, name: &str| Companion { id: [id; 16], name: name.to_owned(), above: id == 9 };
        let named = companion(7, "file:/dev/sdc,write=back");
        let superblock =
            Superblock { companions: vec![named.clone(), companion(9, &"é".repeat(200))], ..superblock() };
        let superblock = Superblock { stack: 0x0403_0201, next_stack: 5, ..superblock };
        let bytes = superblock.encode().unwrap();
        let Copy::Good(found) = Superblock::decode(&bytes) else { panic!("it can be read") };
        assert_eq!(found.companions, [named, companion(9, &"é".repeat(116))]);
        assert_eq!((found.stack, found.next_stack), (0x0403_0201, 5));
        assert_eq!(found.volumes, superblock.volumes);
        assert_eq!(bytes[120..128], *b"\x01\x02\x03\x04\x05\0\0\0");
        // As docs/format.md draws it.
        assert_eq!(
            bytes[128..152],
            *b"\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x01\0\x18\0\0\0\0\0"
        );
        assert_eq!(bytes[152..157], *b"file:");
        assert_eq!(bytes[128 + 256 + 16], 3, "one that is above");
        let crowd = Superblock { companions: vec![companion(1, "x"); 16], ..superblock };
        assert!(crowd.encode().unwrap_err().to_string().contains("15"));
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        let mut bytes = superblock().encode().unwrap();
        for bit in (0..8 * 200).chain((0..8 * SUPERBLOCK_BYTES).step_by(997)) {
            bytes[bit / 8] ^= 1 << (bit % 8);
            let found = Superblock::decode(&bytes);
            assert!(matches!(found, Copy::Damaged { .. } | Copy::Foreign), "bit {bit}: {found:?}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    /// A superblock that someone changed, and gave the checksum it then needs.
    fn changed(at: usize, to: u8) -> Copy {
        let mut bytes = superblock().encode().unwrap();
        bytes[at] = to;
        let sum = checksum(&bytes[8..]);
        bytes[..8].copy_from_slice(&sum.to_le_bytes());
        Superblock::decode(&bytes)
    }

    #[test]
    fn what_cannot_be_is_refused_though_its_checksum_is_right() {
        assert!(matches!(changed(16, 3), Copy::Newer(3)));
        for (at, to, part) in [
            (60, 0, "no block size given"),
            (62, 1, "is not a power of two"),
            (56, 0, "0 shards"),
            (64, 1, "sectors"),
            (4096 + 32, 0xff, "name for volume 0"),
            (4096 + 2, 65, "name for volume 0"),
        ] {
            match changed(at, to) {
                Copy::Nonsense(what) => assert!(what.contains(part), "{what}"),
                found => panic!("byte {at} = {to}: {found:?}"),
            }
        }
    }

    #[test]
    fn volumes_that_do_not_fit_are_named() {
        let mut superblock = superblock();
        superblock.volumes[1].id = VolumeId(256);
        assert!(superblock.encode().unwrap_err().to_string().contains("volume 256"));
        superblock.volumes[1] =
            Volume { name: "x".repeat(65), id: VolumeId(1), ..superblock.volumes[0].clone() };
        assert!(superblock.encode().unwrap_err().to_string().ends_with("its name has more than 64 bytes"));
    }
}
