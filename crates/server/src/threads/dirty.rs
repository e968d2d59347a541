//! Dirty data of a server at a moment.

use crate::status::Snapshot;

/// Bytes that only some tier of the cache has, from the top, and that only memory has.
#[derive(Debug, Default)]
pub(super) struct Dirty {
    pub(super) tiers: Vec<u64>,
    pub(super) held_bytes: u64,
}

impl Dirty {
    pub(super) fn of(snapshots: &[Snapshot]) -> Self {
        let mut dirty = Self::default();
        for snapshot in snapshots {
            for (at, (stats, _)) in snapshot.tiers().enumerate() {
                dirty.tiers.resize(dirty.tiers.len().max(at + 1), 0);
                dirty.tiers[at] += stats.dirty_bytes;
                dirty.held_bytes += stats.held_bytes;
            }
        }
        dirty
    }

    pub(super) fn bytes(&self) -> u64 {
        self.tiers.iter().sum()
    }

    /// Logs what `kill -9` would lose.
    pub(super) fn log(&self) {
        let (dirty_bytes, held_bytes) = (self.bytes(), self.held_bytes);
        match dirty_bytes + held_bytes {
            0 => tracing::warn!("still ending, with nothing that kill -9 would lose"),
            _ => tracing::warn!(
                dirty_bytes,
                held_bytes,
                "still flushing; kill -9 would lose what is dirty"
            ),
        }
    }
}
