//! Lost dirty data: its only copy is gone.

use std::fmt;

use floe_block::{SECTOR_BYTES, format_size};
use serde::{Deserialize, Serialize};

use super::{Snapshot, VolumeFacts};

/// Places that a line names at most.
const MOST_NAMED: usize = 4;

/// The amount of lost data, and its places.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostStatus {
    /// Bytes that read as errors until they are written anew.
    pub bytes: u64,
    /// Lost places; the list may be incomplete.
    pub places: Vec<LostPlace>,
}

/// A lost run of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostPlace {
    /// The volume.
    pub volume: String,
    /// Its first byte in the volume.
    pub offset: u64,
    /// Its length in bytes.
    pub bytes: u64,
}

impl LostStatus {
    pub(crate) fn of(snapshots: &[Snapshot], volumes: &[VolumeFacts]) -> Self {
        let mut lost = Self::default();
        for (tier, (stats, _)) in snapshots.iter().flat_map(|snapshot| snapshot.tiers().enumerate())
        {
            lost.bytes += stats.lost_bytes;
            for (id, run) in &stats.lost_runs {
                let of = volumes.iter().find(|facts| facts.ids.get(tier) == Some(id));
                lost.places.push(LostPlace {
                    volume: of
                        .map_or_else(|| "one that is gone".to_owned(), |facts| facts.name.clone()),
                    offset: run.start * SECTOR_BYTES,
                    bytes: (run.end - run.start) * SECTOR_BYTES,
                });
            }
        }
        lost
    }
}

impl fmt::Display for LostStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of dirty data are lost, for the cache device has something else in their place: ",
            format_size(self.bytes)
        )?;
        let mut named = 0;
        for (at, LostPlace { volume, offset, bytes }) in
            self.places.iter().take(MOST_NAMED).enumerate()
        {
            let comma = if at > 0 { ", " } else { "" };
            write!(f, "{comma}{} at {offset} of {volume}", format_size(*bytes))?;
            named += bytes;
        }
        if named < self.bytes {
            write!(f, " and more")?;
        }
        write!(f, "; they read as errors until they are written anew")
    }
}
