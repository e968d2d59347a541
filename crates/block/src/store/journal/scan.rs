//! Inspects a cache device without changing it, even if it is damaged. `floe check` prints the
//! result.

use super::error::StoreError;
use super::io::Io;
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
}

impl Report {
    /// Returns whether anything is wrong. A device without a cache has no problems.
    pub fn has_problems(&self) -> bool {
        !self.problems.is_empty() || self.shards.iter().any(|shard| !shard.problems.is_empty())
    }
}

/// Reads superblocks, checkpoints and logs. Calls `progress` with the bytes read so far and their
/// total.
///
/// # Errors
/// When the device fails.
pub fn scan(io: &mut Io<'_>, progress: &mut dyn FnMut(u64, u64)) -> Result<Report, StoreError> {
    let (shards, problems) = (Vec::new(), Vec::new());
    let mut report = Report { superblock: None, shards, problems, cut_short_of: None };
    if io.device.size_bytes() < 2 * SUPERBLOCK_BYTES as u64 {
        return Ok(report);
    }
    let copies = read_copies(io);
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
        let mut found = read_shard(io, superblock, shard, progress)?;
        let mut salvage = None;
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
            problems: found.damage.iter().map(StoreError::to_string).collect(),
            salvage,
        });
    }
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
