//! What a shard tells its journal.
//!
//! A change is an absolute statement about one block, true whatever was said before it. So stating
//! it twice, or stating what a checkpoint says already, changes nothing: a checkpoint can be taken
//! while changes go on.

use crate::geometry::{Sectors, VolumeId};

/// The checksum of a sector of which none is known. What is stored under it as clean is lost with
/// the power.
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
    /// The same, if its checksum is right: a crash may have come while something else was on its
    /// way to its place.
    Doubted,
    /// Only the cache holds it, and it may be overwritten where it is.
    Dirty,
    /// Only the cache holds it, with this checksum: before it is overwritten, that is noted.
    Sealed,
    /// Only the cache holds it, with this checksum if the session that says so has ended in good
    /// order. Not written any more.
    Resting,
    /// Only the cache held it, and what is in its place is not what was stored.
    Lost,
    /// The cache holds nothing of it.
    Invalid,
}

impl Standing {
    /// Whether checksums are stated with it.
    pub(crate) fn has_sums(self) -> bool {
        matches!(self, Self::Clean | Self::Doubted | Self::Sealed | Self::Resting)
    }

    /// Whether the backing device has something older.
    pub(crate) fn is_dirty(self) -> bool {
        matches!(self, Self::Dirty | Self::Sealed | Self::Resting | Self::Lost)
    }
}

/// Something that is so from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// The block stands at its place, and a run of its sectors is such.
    Run { block: BlockAt, run: Sectors, standing: Standing },
    /// The block stands at its place, and each sector of a run is such: clean, doubted, dirty or
    /// sealed.
    Mixed { block: BlockAt, run: Sectors, standings: Vec<Standing> },
    /// The block is gone, and its place free.
    Dropped { block: BlockAt },
    /// A crash came before: what is clean so far is [doubted](Standing::Doubted).
    Crashed,
}

/// Makes one statement of each row of runs of a block that can be part of a mixture: two bits a
/// sector instead of a record a run.
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
    /// The block that it is about.
    pub(crate) fn block(&self) -> &BlockAt {
        match self {
            Change::Run { block, .. } | Change::Mixed { block, .. } | Change::Dropped { block } => {
                block
            }
            Change::Crashed => panic!("it is about no block"),
        }
    }
}
