//! Inspects a cache device without changing it, even if it is damaged. `floe check` prints the
//! result.

use super::error::StoreError;
use super::io::{Io, Mend};
use super::layout::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
use super::store::{Salvage, newest, read_copies, read_shard, reader};
use super::superblock::{Copy, Superblock};

/// The content of a cache device.
#[derive(Debug)]
pub struct Report {
    /// The valid superblock, if one can be read.
    pub superblock: Option<Superblock>,
    /// By shard; none without a superblock.
    pub shards: Vec<ShardReport>,
    /// Problems outside the shards, a line each.
    pub problems: Vec<String>,
    /// The bytes that the device needs, where it has become too short: the end of the cache's data
    /// is missing, and nothing can be repaired before it has that length again.
    pub cut_short_of: Option<u64>,
    /// Damage of single copies of the device, where another copy is intact.
    pub wrong_copies: Vec<WrongCopy>,
}

/// A range of one copy of a device that is not what was stored, and is on another copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrongCopy {
    /// The copy: the number of a mirror's half.
    pub copy: usize,
    /// Its first byte on the cache device.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
}

impl WrongCopy {
    pub(crate) fn of(mend: &Mend) -> impl Iterator<Item = WrongCopy> {
        let (offset, bytes) = (mend.offset, mend.bytes.len() as u64);
        mend.wrong.iter().map(move |copy| WrongCopy { copy, offset, bytes })
    }
}

/// The content of one shard's journal; of a damaged one, as far as it can be read.
#[derive(Debug)]
pub struct ShardReport {
    /// The shard.
    pub shard: u64,
    /// Number of the checkpoint in use, counting all that were begun; 0 without one.
    pub checkpoint_generation: u64,
    /// Pages of the checkpoint.
    pub checkpoint_pages: u64,
    /// Pages of the log after it.
    pub log_pages: u64,
    /// Blocks.
    pub blocks: u64,
    /// Bytes that the cache holds.
    pub valid_bytes: u64,
    /// Bytes that only the cache holds.
    pub dirty_bytes: u64,
    /// Problems, a line each.
    pub problems: Vec<String>,
    /// Of a damaged journal: its salvage. The trusted part is what the other fields count.
    pub salvage: Option<Salvage>,
    /// The reason why damage at the end of the log cannot be ruled out. It is no problem: after a
    /// crash a log may end so.
    pub untold: Option<String>,
}

impl Report {
    /// Returns whether anything is wrong. A device without a cache has no problems.
    pub fn has_problems(&self) -> bool {
        !self.problems.is_empty()
            || !self.wrong_copies.is_empty()
            || self.shards.iter().any(|shard| !shard.problems.is_empty())
    }
}

/// Reads superblocks, checkpoints and logs. Calls `progress` with the bytes read so far and their
/// total.
///
/// # Errors
/// When the device fails.
pub fn scan(io: &mut Io<'_>, progress: &mut dyn FnMut(u64, u64)) -> Result<Report, StoreError> {
    let (shards, problems) = (Vec::new(), Vec::new());
    let mut report =
        Report { superblock: None, shards, problems, cut_short_of: None, wrong_copies: Vec::new() };
    if io.device.size_bytes() < 2 * SUPERBLOCK_BYTES as u64 {
        return Ok(report);
    }
    let mut mends = Vec::new();
    let copies = read_copies(io, &mut mends);
    let odd: Vec<String> = copies.iter().zip(SUPERBLOCK_OFFSETS).filter_map(odd).collect();
    match newest(copies) {
        Ok(superblock) => report.superblock = superblock,
        Err(error) => report.problems.push(error.to_string()),
    }
    let Some(superblock) = &report.superblock else { return Ok(report) };
    report.problems.extend(odd);
    let (needs, has) = (superblock.layout.end_bytes(), io.device.size_bytes());
    if needs > has {
        report.problems.push(StoreError::DeviceTooSmall { needs, has }.to_string());
        report.cut_short_of = Some(needs);
        if has < superblock.layout.data_offset_bytes(0) {
            return Ok(report); // not even the journals are whole
        }
    }
    for shard in 0..superblock.layout.shards() {
        let (mut found, of_shard) = read_shard(io, superblock, shard, true, progress)?;
        mends.extend(of_shard);
        let mut problems: Vec<String> = found.damage.iter().map(StoreError::to_string).collect();
        let mut salvage = None;
        if !found.restored.is_empty() {
            problems.push(format!("the end of the log of shard {shard} is damaged"));
            let mended = std::mem::take(&mut found.restored);
            salvage = Some(Salvage { shard, mended, gone: Vec::new(), lost: Vec::new() });
        }
        if found.damage.is_some() {
            let salvaged = reader(superblock, shard).salvage(io)?;
            found.map = salvaged.map;
            let (mended, gone, lost) = (salvaged.mended, salvaged.gone, salvaged.lost);
            salvage = Some(Salvage { shard, mended, gone, lost });
        }
        let (blocks, valid_bytes, dirty_bytes) = found.map.totals();
        let (checkpoint_generation, checkpoint_pages) = found.checkpoint.unwrap_or_default();
        report.shards.push(ShardReport {
            shard,
            checkpoint_generation,
            checkpoint_pages,
            log_pages: found.log_pages,
            blocks,
            valid_bytes,
            dirty_bytes,
            problems,
            salvage,
            untold: found.untold,
        });
    }
    mends.sort_unstable_by_key(|mend| mend.offset);
    mends.dedup();
    report.wrong_copies = mends.iter().flat_map(WrongCopy::of).collect();
    Ok(report)
}

/// Describes the fault of one copy of a superblock, where the other is good.
fn odd((copy, offset): (&Copy, u64)) -> Option<String> {
    let what = match copy {
        Copy::Good(_) => return None,
        Copy::Damaged { stated, found } => {
            format!("has checksum {found:016x} and says {stated:016x}")
        }
        Copy::Blank => "is all zeros".to_owned(),
        Copy::Foreign => "is not one".to_owned(),
        Copy::Newer(version) => format!("has format {version}"),
        Copy::Nonsense(what) => format!("says {what}"),
        Copy::Unreadable(error) => format!("cannot be read: {error}"),
    };
    Some(format!("the copy of the superblock at offset {offset} {what}"))
}
