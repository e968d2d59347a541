//! Looking a cache device over without changing it, and without needing it whole: what `floe check`
//! prints.

use super::error::StoreError;
use super::io::Io;
use super::store::{Salvage, newest, read_copies, read_shard, reader};
use super::superblock::{Copy, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock};

/// What is on a cache device.
#[derive(Debug)]
pub struct Report {
    /// The superblock that counts, if one can be read.
    pub superblock: Option<Superblock>,
    /// By shard; none without a superblock.
    pub shards: Vec<ShardReport>,
    /// What is wrong, a line each; what is wrong with a shard is in its report.
    pub problems: Vec<String>,
}

/// What one shard's journal amounts to; of a damaged one, as far as it can be read.
#[derive(Debug)]
pub struct ShardReport {
    /// The shard.
    pub shard: u64,
    /// Counts the checkpoints that were begun; that of the one in use, 0 without any.
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
    /// What is wrong, a line each.
    pub problems: Vec<String>,
    /// Of a damaged journal: what can be trusted, which is what has been counted, and what not.
    pub salvage: Option<Salvage>,
}

impl Report {
    /// Whether anything is wrong. A device without a cache is not.
    pub fn has_problems(&self) -> bool {
        !self.problems.is_empty() || self.shards.iter().any(|shard| !shard.problems.is_empty())
    }
}

/// Reads superblocks, checkpoints and logs. `progress` is told the bytes read so far, and of how
/// many.
///
/// # Errors
/// When the device fails to answer.
pub fn scan(io: &mut Io<'_>, progress: &mut dyn FnMut(u64, u64)) -> Result<Report, StoreError> {
    let mut report = Report { superblock: None, shards: Vec::new(), problems: Vec::new() };
    if io.device.size_bytes() < 2 * SUPERBLOCK_BYTES as u64 {
        return Ok(report);
    }
    let copies = read_copies(io)?;
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
        return Ok(report);
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

/// What is wrong with one copy of a superblock, where the other is good.
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
    };
    Some(format!("the copy of the superblock at offset {offset} {what}"))
}
