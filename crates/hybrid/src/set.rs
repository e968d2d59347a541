//! The choice of a drive by the hash of a key, and the drives that make up a cache.
//!
//! Each drive of a cache is a store of its own, with its own log and index, for the keys in its
//! share of the hashes.

use std::path::{Path, PathBuf};

use crate::format::{DriveSet, MAX_DRIVES, Superblock};

/// The choice of a drive by the hash of a key.
#[derive(Debug)]
pub(crate) struct Shares(Box<[u64]>);

impl Shares {
    /// Creates the choice among the drives of a set. A cache on a single drive has no set.
    pub(crate) fn of(set: &DriveSet) -> Self {
        Self(set.members().iter().map(|member| member.end).collect())
    }

    /// Returns the place of the drive that a key with this hash belongs to.
    pub(crate) fn place_of(&self, hash: u64) -> usize {
        if self.0.is_empty() {
            return 0;
        }
        // Part of the format. The product has all bits of the hash in its upper half.
        let share = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        self.0.partition_point(|end| *end <= share)
    }
}

/// The reason why some files are not the drives of one cache.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DrivesError {
    /// The cache has another number of drives than were given.
    #[error(
        "{path} is drive {place} of {drives} of a cache, and {given} are given; give all drives, \
         or remove the file to begin anew",
        path = path.display()
    )]
    Number {
        /// Path of a drive.
        path: PathBuf,
        /// Place of the drive, from 1 on.
        place: u32,
        /// Number of the cache's drives.
        drives: u32,
        /// Number of drives given.
        given: usize,
    },
    /// The file holds a cache of one drive, and several were given.
    #[error(
        "{path} holds a cache of one drive, and {given} are given; remove the file to begin anew",
        path = path.display()
    )]
    Single {
        /// Path of the drive.
        path: PathBuf,
        /// Number of drives given.
        given: usize,
    },
    /// Two files are drives of different caches.
    #[error(
        "{one} and {other} are drives of different caches",
        one = one.display(),
        other = other.display()
    )]
    Different {
        /// Path of a drive.
        one: PathBuf,
        /// Path of a drive of another cache.
        other: PathBuf,
    },
    /// Two files have the same drive: one is a copy.
    #[error(
        "{one} and {other} have the same drive of a cache; remove the copy",
        one = one.display(),
        other = other.display()
    )]
    Copy {
        /// Path of the drive.
        one: PathBuf,
        /// Path of the drive, too.
        other: PathBuf,
    },
    /// The drive was replaced by another one. Its content is outdated.
    #[error(
        "{path} was replaced in its cache by another drive, so its content is outdated; remove the \
         file to use the drive again",
        path = path.display()
    )]
    Outdated {
        /// Path of the drive.
        path: PathBuf,
    },
    /// A drive of the cache is missing.
    #[error(
        "{path} does not exist, and {other} is drive {place} of {drives} of a cache; create an \
         empty file there to begin the missing drive anew",
        path = path.display(),
        other = other.display()
    )]
    Missing {
        /// Path of the missing drive.
        path: PathBuf,
        /// Path of another drive of the cache.
        other: PathBuf,
        /// Place of the other drive, from 1 on.
        place: u32,
        /// Number of the cache's drives.
        drives: u32,
    },
    /// More drives were given than a cache can have.
    #[error("{given} drives are given, and a cache has at most {MAX_DRIVES}")]
    TooMany {
        /// Number of drives given.
        given: usize,
    },
}

/// A drive that was given to open a cache.
#[derive(Debug)]
pub(crate) struct Given<'a> {
    pub(crate) path: &'a Path,
    /// Size of the drive in bytes.
    pub(crate) bytes: u64,
    /// Its superblock, if it is not new.
    pub(crate) block: Option<Superblock>,
    /// Identity of the drive's store if it is new.
    pub(crate) new_id: u64,
    /// False if the file does not exist yet.
    pub(crate) exists: bool,
}

/// Finds the set of the drives that were given. Returns it, and the place of each drive. Drives may
/// be in any order; new ones take the places that are free, in the order given.
///
/// # Errors
/// When they are not all drives of one cache.
pub(crate) fn arrange(
    given: &[Given<'_>],
    new_set: u64,
) -> Result<(DriveSet, Vec<usize>), DrivesError> {
    let count = given.len();
    if count > MAX_DRIVES {
        return Err(DrivesError::TooMany { given: count });
    }
    let known = || given.iter().filter_map(|it| Some((it.path.to_owned(), it.block.as_ref()?)));
    for (path, block) in known() {
        match block.set {
            DriveSet { id: 0, .. } if count > 1 => {
                return Err(DrivesError::Single { path, given: count });
            }
            DriveSet { id: 1.., drives, place, .. } if drives as usize != count => {
                return Err(DrivesError::Number { path, place: place + 1, drives, given: count });
            }
            _ => {}
        }
    }
    if count == 1 {
        return Ok((DriveSet::default(), vec![0]));
    }
    let Some((other, newest)) = known().max_by_key(|(_, block)| block.set.generation) else {
        let drives: Vec<_> = given.iter().map(|it| (it.new_id, it.bytes)).collect();
        return Ok((DriveSet::new(new_set, &drives), (0..count).collect()));
    };
    let mut set = newest.set.at(0);
    let mut taken: Vec<Option<PathBuf>> = vec![None; count];
    for (path, block) in known() {
        if block.set.id != set.id {
            return Err(DrivesError::Different { one: other, other: path });
        }
        let place = block.set.place as usize;
        let is_equal = set.members == block.set.members;
        if set.members[place].id != block.id || set.generation == block.set.generation && !is_equal
        {
            return Err(DrivesError::Outdated { path });
        }
        if let Some(one) = taken[place].replace(path.clone()) {
            return Err(DrivesError::Copy { one, other: path });
        }
    }
    if let Some(missing) = given.iter().find(|it| !it.exists) {
        let path = missing.path.to_owned();
        let DriveSet { place, drives, .. } = newest.set;
        return Err(DrivesError::Missing { path, other, place: place + 1, drives });
    }
    let mut places = Vec::with_capacity(count);
    let mut free = (0..count).filter(|place| taken[*place].is_none());
    let mut is_changed = false;
    for it in given {
        places.push(match &it.block {
            Some(block) => block.set.place as usize,
            None => {
                let place = free.next().expect("as many places as drives");
                set.members[place].id = it.new_id;
                is_changed = true;
                place
            }
        });
    }
    set.generation += u64::from(is_changed);
    Ok((set, places))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Geometry, VERSION};

    fn set(drives: usize) -> DriveSet {
        let drives: Vec<(u64, u64)> = (1..=drives as u64).map(|at| (at, at << 30)).collect();
        DriveSet::new(9, &drives)
    }

    fn block(set: DriveSet) -> Superblock {
        Superblock {
            version: VERSION,
            generation: 1,
            id: set.members[set.place as usize].id,
            geometry: Geometry { segment_bytes: 1 << 20, segments: 8 },
            session: 1,
            first_segment: 1,
            hash_seed: 1,
            clean: false,
            saved_at: 0,
            saved_bytes: 0,
            saved_crc: 0,
            set,
        }
    }

    fn given(block: Option<Superblock>) -> Given<'static> {
        Given { path: Path::new("drive"), bytes: 1 << 30, block, new_id: 77, exists: true }
    }

    #[test]
    fn keys_are_spread_in_proportion_to_the_sizes() {
        let set = set(4);
        let shares = Shares::of(&set);
        let mut counts = [0; 4];
        // Hashes that are equal in half of their bits, too.
        for at in 0..20_000u64 {
            counts[shares.place_of(floe_policy::mix(at) << 32)] += 1;
            counts[shares.place_of(floe_policy::mix(at) >> 32)] += 1;
        }
        for (place, count) in counts.into_iter().enumerate() {
            let wanted = 40_000.0 * set.at(place).part();
            assert!((f64::from(count) / wanted - 1.0).abs() < 0.05, "{counts:?}");
        }
        assert_eq!(Shares::of(&DriveSet::default()).place_of(u64::MAX), 0);
    }

    #[test]
    fn drives_are_found_in_any_order_and_new_ones_take_the_free_places() {
        let all = [2, 0, 1].map(|place| given(Some(block(set(3).at(place)))));
        assert_eq!(arrange(&all, 5), Ok((set(3), vec![2, 0, 1])));
        let some = [given(None), given(Some(block(set(3).at(0)))), given(None)];
        let (found, places) = arrange(&some, 5).unwrap();
        assert_eq!((places, found.generation), (vec![1, 0, 2], 1));
        let ids: Vec<u64> = found.members().iter().map(|member| member.id).collect();
        assert_eq!(ids, [1, 77, 77]);
    }

    #[test]
    fn a_drive_whose_replacement_not_all_others_know_is_outdated() {
        let mut newer = set(3);
        (newer.members[1].id, newer.generation) = (50, 1);
        let drives = |second: DriveSet, third: DriveSet| {
            [newer.at(0), second.at(1), third.at(2)].map(|set| given(Some(block(set))))
        };
        assert!(arrange(&drives(newer, set(3)), 5).is_ok());
        let outdated = arrange(&drives(set(3), newer), 5);
        assert!(matches!(outdated, Err(DrivesError::Outdated { .. })), "{outdated:?}");
        // Two caches of the same drives, each with another new one.
        let mut other = set(3);
        (other.members[0].id, other.generation) = (60, 1);
        let mixed = arrange(&drives(other, set(3)), 5);
        assert!(matches!(mixed, Err(DrivesError::Outdated { .. })), "{mixed:?}");
    }
}
