//! What a shard tells its journal.
//!
//! A change is an absolute statement about one block, true whatever was said before it. So stating it twice, or
//! stating what a checkpoint says already, changes nothing: a checkpoint can be taken while changes go on.

use crate::geometry::{Sectors, VolumeId};

/// The checksum of a sector of which none is known. What is stored under it as clean is lost with the power.
pub(crate) const NO_SUM: u64 = 0;

/// A block, and where on the cache device it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BlockAt {
    pub(crate) volume: VolumeId,
    /// The whole block, within its volume.
    pub(crate) sectors: Sectors,
    /// Its first sector within the shard's space on the cache device.
    pub(crate) place: u64,
}

/// What a sector of a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The cache and the backing device hold the same.
    Clean,
    /// Only the cache holds it.
    Dirty,
    /// The same, with the checksums of a session that ends: what changes a sector later in that session says so.
    Resting,
    /// Only the cache held it, and what is in its place is not what was stored.
    Lost,
    /// The cache holds nothing of it.
    Invalid,
}

impl Standing {
    /// Whether checksums are stated with it.
    pub(crate) fn has_sums(self) -> bool {
        matches!(self, Self::Clean | Self::Resting)
    }

    /// Whether the backing device has something older.
    pub(crate) fn is_dirty(self) -> bool {
        matches!(self, Self::Dirty | Self::Resting | Self::Lost)
    }
}

/// Something that is so from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// The block stands at its place, and a run of its sectors is such.
    Run { block: BlockAt, run: Sectors, standing: Standing },
    /// The block is gone, and its place free.
    Dropped { block: BlockAt },
}

#[cfg(test)]
impl Change {
    /// The block that it is about.
    pub(crate) fn block(&self) -> &BlockAt {
        match self {
            Change::Run { block, .. } | Change::Dropped { block } => block,
        }
    }
}
