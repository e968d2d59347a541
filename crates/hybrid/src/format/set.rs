//! The set of drives that a cache is striped over, as each drive's superblock records it.
//!
//! A drive's superblock has its place in the set, the shares, and the identities of all drives.
//! When a drive is replaced, the set gets a new generation, in which the new drive has the place.
//! So a drive that comes back after it was replaced is known to be outdated.

use super::{u32_at, u64_at};

/// Most drives of a cache.
pub(crate) const MAX_DRIVES: usize = 32;
/// Bytes of a set in the superblock.
pub(crate) const SET_BYTES: usize = HEAD_BYTES + MAX_DRIVES * MEMBER_BYTES;
const HEAD_BYTES: usize = 24;
const MEMBER_BYTES: usize = 16;
/// Sum of the shares of all drives.
const ALL_SHARES: u64 = 1 << 32;

/// A drive of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Member {
    /// Identity of the drive's store.
    pub(crate) id: u64,
    /// End of the drive's share of the hashes, at most 2³². It begins where the one before ends.
    pub(crate) end: u64,
}

/// The set that a drive belongs to, and its place there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct DriveSet {
    /// Random identity of the set; 0 for a cache on a single drive.
    pub(crate) id: u64,
    /// Number of times that drives were replaced.
    pub(crate) generation: u64,
    /// Number of drives; 0 for a cache on a single drive.
    pub(crate) drives: u32,
    /// Place of this drive, from 0 on.
    pub(crate) place: u32,
    /// The drives, by place.
    pub(crate) members: [Member; MAX_DRIVES],
}

impl DriveSet {
    /// Creates a set of drives with these identities and sizes. Shares are in proportion to sizes.
    pub(crate) fn new(id: u64, drives: &[(u64, u64)]) -> Self {
        let all: u128 = drives.iter().map(|(_, bytes)| u128::from(*bytes)).sum();
        let mut members = [Member::default(); MAX_DRIVES];
        let mut sum = 0;
        for (member, &(id, bytes)) in members.iter_mut().zip(drives) {
            sum += u128::from(bytes);
            // In 64 bits: the sum is at most `all`.
            let end = (sum * u128::from(ALL_SHARES) / all.max(1)) as u64;
            *member = Member { id, end };
        }
        Self { id: id.max(1), generation: 0, drives: drives.len() as u32, place: 0, members }
    }

    /// Returns the drives.
    pub(crate) fn members(&self) -> &[Member] {
        &self.members[..self.drives as usize]
    }

    /// Returns the drive's part of the keys.
    pub(crate) fn part(&self) -> f64 {
        let members = self.members();
        let end = |place: usize| members.get(place).map_or(ALL_SHARES, |member| member.end);
        let place = self.place as usize;
        let begin = place.checked_sub(1).map_or(0, end);
        (end(place) - begin) as f64 / ALL_SHARES as f64
    }

    /// Returns the set as the drive at a place has it.
    pub(crate) fn at(self, place: usize) -> Self {
        Self { place: place as u32, ..self }
    }

    /// Encodes the set as a part of a superblock.
    pub(crate) fn encode(&self, bytes: &mut [u8]) {
        bytes[..8].copy_from_slice(&self.id.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.generation.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.drives.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.place.to_le_bytes());
        for (member, bytes) in self.members.iter().zip(bytes[HEAD_BYTES..].chunks_mut(MEMBER_BYTES))
        {
            bytes[..8].copy_from_slice(&member.id.to_le_bytes());
            bytes[8..].copy_from_slice(&member.end.to_le_bytes());
        }
    }

    /// Reads the set from its part of an intact superblock. Returns `None` if it is no set.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let member = |bytes: &[u8]| Member { id: u64_at(bytes, 0), end: u64_at(bytes, 8) };
        let set = Self {
            id: u64_at(bytes, 0),
            generation: u64_at(bytes, 8),
            drives: u32_at(bytes, 16),
            place: u32_at(bytes, 20),
            members: std::array::from_fn(|at| member(&bytes[HEAD_BYTES + at * MEMBER_BYTES..])),
        };
        let is_single = set == Self::default();
        let is_set = set.id > 0
            && (2..=MAX_DRIVES as u32).contains(&set.drives)
            && set.place < set.drives
            && set.members().is_sorted_by_key(|member| member.end)
            && set.members().last().is_some_and(|last| last.end == ALL_SHARES);
        (is_single || is_set).then_some(set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_read_as_it_was_written() {
        for drives in 2..=MAX_DRIVES {
            let drives: Vec<(u64, u64)> = (1..=drives as u64).map(|at| (at, at << 30)).collect();
            let set = DriveSet::new(9, &drives).at(drives.len() - 1);
            let mut bytes = [0; SET_BYTES];
            set.encode(&mut bytes);
            assert_eq!(DriveSet::decode(&bytes), Some(set));
            bytes[16] += 1;
            assert_eq!(DriveSet::decode(&bytes), None, "a drive without a share");
        }
        assert_eq!(DriveSet::decode(&[0; SET_BYTES]), Some(DriveSet::default()));
    }
}
