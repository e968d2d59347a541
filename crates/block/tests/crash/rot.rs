//! Bits of the cache device that flip between two lives.
//!
//! Only where that can be noticed: nothing tells of the end of a log but its last intact page, and
//! dirty data has no checksum while it may be overwritten (docs/format.md). Everything else must be
//! noticed or make no difference: clean data is read from the backing device, dirty data is an
//! error, one copy of the superblock does for both, a damaged checkpoint or log page is refused by
//! name, unless what is left says the same.

use std::ops::Range;

use floe_block::{KeptCache, SECTOR_BYTES, VolumeId};
use rand::Rng;
use rand::rngs::SmallRng;

const PAGE: usize = 4096;
const SUPERBLOCK: usize = 32 << 10;

/// A page of the journal, as docs/format.md draws it.
struct Page {
    at: usize,
    is_log: bool,
    shard: u16,
    seq: u64,
    mark: u64,
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// The intact pages of a cache in its metadata.
fn pages<'a>(metadata: &'a [u8], id: &'a [u8; 16]) -> impl Iterator<Item = Page> + 'a {
    let page = move |(number_of, bytes): (usize, &'a [u8])| {
        let is_one = bytes[8..12] == *b"FlPg"
            && bytes[16..32] == *id
            && number(bytes, 0) == crc_fast::crc64_nvme(&bytes[8..]);
        is_one.then(|| Page {
            at: 2 * SUPERBLOCK + number_of * PAGE,
            is_log: bytes[12] == 1,
            shard: u16::from_le_bytes([bytes[14], bytes[15]]),
            seq: number(bytes, 32),
            mark: number(bytes, 48),
        })
    };
    metadata[2 * SUPERBLOCK..].chunks_exact(PAGE).enumerate().filter_map(page)
}

/// A byte of the metadata that has rotted.
#[derive(Debug, Clone, Copy)]
pub struct Rotten {
    pub byte: usize,
    /// Of a checkpoint. What an older one and the log say instead has all that was flushed; but it
    /// may lack what was not, and was read after a crash, and read it otherwise.
    pub is_checkpoint: bool,
}

/// A byte of the metadata that may rot.
pub fn in_metadata(metadata: &[u8], id: &[u8; 16], rng: &mut SmallRng) -> Option<Rotten> {
    if rng.random_ratio(1, 4) {
        return Some(Rotten { byte: rng.random_range(0..2 * SUPERBLOCK), is_checkpoint: false });
    }
    let pages: Vec<Page> = pages(metadata, id).collect();
    let is_missed = |page: &Page| {
        let says = |other: &Page| {
            other.is_log
                && other.shard == page.shard
                && other.seq > page.seq
                && other.mark >= page.seq
        };
        !page.is_log || pages.iter().any(says)
    };
    let may_rot: Vec<&Page> = pages.iter().filter(|page| is_missed(page)).collect();
    let page = may_rot.get(rng.random_range(0..may_rot.len().max(1)))?;
    Some(Rotten { byte: page.at + rng.random_range(0..PAGE), is_checkpoint: !page.is_log })
}

/// A byte of the data that may rot, and whether only the cache has its sector: of none that may be
/// overwritten.
pub fn in_data(
    kept: &KeptCache,
    data: Range<u64>,
    volumes: usize,
    rng: &mut SmallRng,
) -> Option<(usize, bool)> {
    let at = rng.random_range(data) as usize;
    match dirty_at(kept, at, volumes) {
        Some((volume, sector)) => (!has_no_sum(kept, volume, sector)).then_some((at, true)),
        None => Some((at, false)),
    }
}

fn has_no_sum(kept: &KeptCache, volume: VolumeId, sector: u64) -> bool {
    kept.unsealed_runs(volume).iter().any(|run| run.contains(&sector))
}

/// The sector that only the cache has, and has there.
fn dirty_at(kept: &KeptCache, byte: usize, volumes: usize) -> Option<(VolumeId, u64)> {
    let runs = (0..volumes).flat_map(|volume| {
        let volume = VolumeId(volume as u16);
        kept.dirty_runs(volume).into_iter().map(move |(run, start)| (volume, run, start))
    });
    let mut sectors = runs.filter_map(|(volume, run, start)| {
        let number = (byte as u64).checked_sub(start)? / SECTOR_BYTES;
        (number < run.end - run.start).then_some((volume, run.start + number))
    });
    sectors.next()
}
