//! The volumes in a superblock: their records, and the entries of version 2 of the format.
//!
//! Records stand one after the other, each as long as its name, facts and samples need. When many
//! volumes do not fit, each is stored with fewer samples, and if necessary with fewer facts. So 256
//! volumes always fit.

use floe_device::Identity;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::super::error::StoreError;
use crate::geometry::VolumeId;
use crate::store::samples::{MOST_SAMPLES, Samples};

/// Most volumes a cache can have.
pub const MOST_VOLUMES: usize = 256;

/// Longest name of a volume, in bytes.
pub const MOST_NAME_BYTES: usize = 64;

/// Most facts of an identity that are written.
const MOST_FACTS: usize = 15;

/// Unit of a record's length.
const UNIT: usize = 8;

/// A volume that the cache may hold data of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    /// Its number, below [`MOST_VOLUMES`].
    pub id: VolumeId,
    /// Its name for people, of at most [`MOST_NAME_BYTES`].
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Identity of its backing device.
    pub identity: Identity,
    /// The caller's marker for the content of the backing device when the last session was closed
    /// cleanly; 0 when unknown.
    pub marker: u64,
    /// Checksums of some of its sectors on the backing device, valid also after a crash.
    pub samples: Samples,
}

impl Volume {
    /// A volume of which nothing else is known yet.
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

/// The number of facts and samples of each volume that are written.
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

/// Writes volumes into their table, which is zero.
pub(super) fn encode(volumes: &[Volume], table: &mut [u8]) -> Result<(), StoreError> {
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
pub(super) fn decode(mut table: &[u8]) -> Result<Vec<Volume>, String> {
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
pub(super) fn decode_version_2(table: &[u8]) -> Result<Vec<Volume>, String> {
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
