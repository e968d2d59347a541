//! What clients write: every 512 bytes tell by which write they came, and where they belong.
//!
//! A unit of 512 bytes is one number of 64 bits over and over: volume, unit and write. So data that
//! is torn within a unit, out of place, another volume's or older than it should be is told from
//! what should be there, and says itself what it is.

use std::fmt;

/// What devices keep or lose as a whole, in bytes.
pub const UNIT: usize = 512;

/// Which write of a world it was, counted from 1; 0 for zeros, which is also what volumes hold at
/// first.
pub type Version = u32;

/// Zeros.
pub const ZEROS: Version = 0;

/// Fills units of a volume from `first` on.
pub fn fill(bytes: &mut [u8], volume: usize, first: u32, version: Version) {
    for (unit, bytes) in (first..).zip(bytes.chunks_exact_mut(UNIT)) {
        let stamp = stamp(volume, unit, version).to_le_bytes();
        for word in bytes.as_chunks_mut().0 {
            *word = stamp;
        }
    }
}

fn stamp(volume: usize, unit: u32, version: Version) -> u64 {
    debug_assert!(unit < 1 << 24 && version != ZEROS);
    (volume as u64 + 1) << 56 | u64::from(unit) << 32 | u64::from(version)
}

/// What a unit turned out to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// Something that was written there, or zeros.
    Version(Version),
    /// What belongs elsewhere, or nobody has written.
    Foreign(u64),
    /// Not one stamp.
    Torn([u64; 2]),
}

/// Looks at a unit of a volume.
pub fn look(bytes: &[u8], volume: usize, unit: u32) -> Found {
    let words = bytes.as_chunks().0;
    let first = u64::from_le_bytes(words[0]);
    if let Some(other) = words.iter().find(|word| **word != words[0]) {
        return Found::Torn([first, u64::from_le_bytes(*other)]);
    }
    let version = first as u32;
    match first {
        0 => Found::Version(ZEROS),
        _ if version != ZEROS && first == stamp(volume, unit, version) => Found::Version(version),
        _ => Found::Foreign(first),
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let describe = |f: &mut fmt::Formatter<'_>, stamp: u64| match stamp {
            0 => write!(f, "zeros"),
            _ => write!(
                f,
                "write {} of unit {} of volume {} ({stamp:#018x})",
                stamp as u32,
                stamp >> 32 & 0xff_ffff,
                (stamp >> 56) as i64 - 1
            ),
        };
        match *self {
            Found::Version(ZEROS) => write!(f, "zeros"),
            Found::Version(version) => write!(f, "write {version}"),
            Found::Foreign(stamp) => describe(f, stamp),
            Found::Torn([first, other]) => {
                write!(f, "a mixture of ")?;
                describe(f, first)?;
                write!(f, " and ")?;
                describe(f, other)
            }
        }
    }
}
