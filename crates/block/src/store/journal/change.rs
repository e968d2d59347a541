//! Changes: the statements that a shard makes to its journal.
//!
//! A change is an absolute statement about one block, true whatever was stated before. Stating it
//! twice, or stating what a checkpoint already says, changes nothing. So a checkpoint can be taken
//! while changes go on.

use crate::geometry::{Sectors, VolumeId};

/// The checksum of a sector whose checksum is not known. Clean data stored under it is lost at a
/// power cut.
pub(crate) const NO_SUM: u64 = 0;

/// A block and its position on the cache device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BlockAt {
    pub(crate) volume: VolumeId,
    /// The whole block, within its volume.
    pub(crate) sectors: Sectors,
    /// Its first sector within the shard's space on the cache device.
    pub(crate) place: u64,
}

/// The state of a sector of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The cache and the backing device hold the same data.
    Clean,
    /// Clean if its checksum is right. A crash may have come while other data was being written in
    /// its place.
    Doubted,
    /// Only the cache holds it, and it may be overwritten where it is.
    Dirty,
    /// Only the cache holds it, with this checksum. An overwrite must first be noted in the log.
    Sealed,
    /// Only the cache holds it. The checksum is valid if the session that noted it was closed
    /// cleanly. No longer written.
    Resting,
    /// Only the cache held it, and its place does not contain the data that was stored.
    Lost,
    /// The cache holds nothing of it.
    Invalid,
}

impl Standing {
    /// Returns whether a checksum is stated with each sector in this state.
    pub(crate) fn has_sums(self) -> bool {
        matches!(self, Self::Clean | Self::Doubted | Self::Sealed | Self::Resting)
    }

    /// Returns whether the backing device has an older version.
    pub(crate) fn is_dirty(self) -> bool {
        matches!(self, Self::Dirty | Self::Sealed | Self::Resting | Self::Lost)
    }
}

/// A statement that holds from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// The block stands at its place, and a run of its sectors has this state.
    Run { block: BlockAt, run: Sectors, standing: Standing },
    /// The block stands at its place, and each sector of a run has its own state: clean, doubted,
    /// dirty or sealed.
    Mixed { block: BlockAt, run: Sectors, standings: Vec<Standing> },
    /// The block is gone, and its place free.
    Dropped { block: BlockAt },
    /// A crash came before: all sectors that were clean so far are [doubted](Standing::Doubted).
    Crashed,
}

/// Merges each row of adjacent runs of a block that a mixture can express into one change. A
/// mixture costs two bits a sector instead of a record a run.
pub(crate) fn mix(changes: &mut Vec<Change>) {
    let mut mixed: Vec<Change> = Vec::new();
    for change in changes.drain(..) {
        match (mixed.last_mut(), change) {
            (
                Some(Change::Mixed { run: before, standings, .. }),
                Change::Run { run, standing, .. },
            ) if before.end == run.start && can_be_mixed(standing) => {
                standings.extend(run.clone().map(|_| standing));
                before.end = run.end;
            }
            (_, Change::Run { block, run, standing }) if can_be_mixed(standing) => {
                let standings = run.clone().map(|_| standing).collect();
                mixed.push(Change::Mixed { block, run, standings });
            }
            (_, change) => mixed.push(change),
        }
    }
    *changes = mixed;
}

fn can_be_mixed(standing: Standing) -> bool {
    matches!(standing, Standing::Clean | Standing::Doubted | Standing::Dirty | Standing::Sealed)
}

#[cfg(test)]
impl Change {
    /// Returns the block that it is about.
    pub(crate) fn block(&self) -> &BlockAt {
        match self {
            Change::Run { block, .. } | Change::Mixed { block, .. } | Change::Dropped { block } => {
                block
            }
            Change::Crashed => panic!("it is about no block"),
        }
    }
}
