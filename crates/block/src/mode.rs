//! The write mode: which devices a write goes to, and when.

use std::fmt;
use std::str::FromStr;

/// The write mode of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WriteMode {
    /// Backing device and cache; answered when the backing device has it.
    #[default]
    Through,
    /// Backing device only; a cached copy is dropped.
    Around,
    /// Cache only, cleaned later.
    Back,
    /// Like [`Back`](Self::Back), but only writes make blocks: missed reads are not admitted.
    Only,
    /// Nothing is cached at all, not even reads.
    Pass,
}

impl WriteMode {
    const NAMES: [(&'static str, Self); 5] = [
        ("through", Self::Through),
        ("around", Self::Around),
        ("back", Self::Back),
        ("only", Self::Only),
        ("pass", Self::Pass),
    ];

    /// Returns whether writes may stay in the cache only, until they are cleaned.
    pub fn keeps_writes(self) -> bool {
        matches!(self, Self::Back | Self::Only)
    }

    /// Returns whether written data may be inserted into the cache.
    pub fn caches_writes(self) -> bool {
        matches!(self, Self::Through | Self::Back | Self::Only)
    }

    /// Returns whether missed reads may be inserted into the cache.
    pub fn caches_reads(self) -> bool {
        !matches!(self, Self::Only | Self::Pass)
    }
}

impl fmt::Display for WriteMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(_, mode)| mode == self).map_or("", |(name, _)| name);
        f.pad(name)
    }
}

/// A name that is no write mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no write mode `{0}`; there are through, around, back, only and pass")]
pub struct UnknownWriteMode(String);

impl FromStr for WriteMode {
    type Err = UnknownWriteMode;

    fn from_str(name: &str) -> Result<Self, UnknownWriteMode> {
        let known = Self::NAMES.iter().find(|(known, _)| *known == name);
        known.map(|(_, mode)| *mode).ok_or_else(|| UnknownWriteMode(name.to_owned()))
    }
}
