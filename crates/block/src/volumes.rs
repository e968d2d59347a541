//! The table of a cache's volumes and their sizes.
//!
//! A volume's id is an index into the table. A removed volume leaves a free id, which the next
//! added one gets. Every part of a cache has such a table. Volumes are added and removed in all of
//! them alike, so ids agree.

use crate::geometry::{MOST_VOLUME_BYTES, SECTOR_BYTES, VolumeId};

/// The reason for which a volume cannot be removed or resized. The volume is unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum VolumeError {
    /// The volume does not exist.
    #[error("there is no such volume")]
    Unknown,
    /// An operation of the volume is under way. The call may be repeated.
    #[error("the volume is in use")]
    Busy,
    /// The cache holds this many bytes of the volume that the backing device does not have.
    #[error("the cache holds {0} bytes of the volume that its backing device does not have")]
    Dirty(u64),
    /// The new size is smaller; a volume can only grow, as data beyond the new end may be anywhere.
    #[error("a volume of {from} bytes cannot shrink to {to}")]
    Shrinks {
        /// The current size in bytes.
        from: u64,
        /// The requested size in bytes.
        to: u64,
    },
    /// The requested size in bytes is above the maximum.
    #[error("a volume has at most {MOST_VOLUME_BYTES} bytes, not {0}")]
    TooLarge(u64),
}

/// The sizes of the volumes in bytes, by id; `None` for a free id.
#[derive(Debug, Default)]
pub(crate) struct Volumes(Vec<Option<u64>>);

impl Volumes {
    /// Adds a volume of this many bytes under the lowest free id.
    ///
    /// # Panics
    /// With more than 65,536 volumes, or a volume of more than half an exbibyte.
    pub(crate) fn add(&mut self, bytes: u64) -> VolumeId {
        let gap = self.0.iter().position(Option::is_none).unwrap_or(self.0.len());
        let id = VolumeId(u16::try_from(gap).expect("at most 65,536 volumes"));
        self.add_at(id, bytes);
        id
    }

    /// Adds a volume under a free id.
    ///
    /// # Panics
    /// When the id is not free, or the volume has more than half an exbibyte.
    pub(crate) fn add_at(&mut self, id: VolumeId, bytes: u64) {
        assert!(
            bytes <= MOST_VOLUME_BYTES,
            "a volume has at most half an exbibyte, not {bytes} bytes"
        );
        let at = id.0 as usize;
        self.0.resize(self.0.len().max(at + 1), None);
        assert!(self.0[at].is_none(), "volume {at} is there already");
        self.0[at] = Some(bytes);
    }

    /// Returns a number above all ids in use.
    pub(crate) fn ids(&self) -> usize {
        self.0.len()
    }

    /// Returns the size of a volume in bytes.
    pub(crate) fn bytes(&self, id: VolumeId) -> Option<u64> {
        self.0.get(id.0 as usize).copied().flatten()
    }

    pub(crate) fn remove(&mut self, id: VolumeId) {
        self.0[id.0 as usize] = None;
    }

    pub(crate) fn resize(&mut self, id: VolumeId, bytes: u64) {
        self.0[id.0 as usize] = Some(bytes);
    }

    /// Checks whether a volume can grow to this many bytes. Returns the sector that contains its
    /// old end, unless the end is at a sector boundary.
    pub(crate) fn may_grow(&self, id: VolumeId, bytes: u64) -> Result<Option<u64>, VolumeError> {
        match self.bytes(id) {
            None => Err(VolumeError::Unknown),
            Some(from) if bytes < from => Err(VolumeError::Shrinks { from, to: bytes }),
            Some(_) if bytes > MOST_VOLUME_BYTES => Err(VolumeError::TooLarge(bytes)),
            Some(from) => {
                let is_cut = bytes > from && !from.is_multiple_of(SECTOR_BYTES);
                Ok(is_cut.then_some(from / SECTOR_BYTES))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_filled_before_the_table_grows() {
        let mut volumes = Volumes::default();
        assert_eq!([volumes.add(1), volumes.add(2), volumes.add(3)].map(|id| id.0), [0, 1, 2]);
        volumes.remove(VolumeId(1));
        assert_eq!(volumes.bytes(VolumeId(1)), None);
        assert_eq!([volumes.add(4), volumes.add(5)].map(|id| id.0), [1, 3]);
        assert_eq!(volumes.bytes(VolumeId(1)), Some(4));
    }

    #[test]
    fn a_volume_grows_and_never_shrinks() {
        let mut volumes = Volumes::default();
        let id = volumes.add(5 * 4096 + 1);
        assert_eq!(volumes.may_grow(id, 5 * 4096 + 1), Ok(None));
        assert_eq!(volumes.may_grow(id, 5 * 4096 + 2), Ok(Some(5)));
        let shrinks = VolumeError::Shrinks { from: 5 * 4096 + 1, to: 5 * 4096 };
        assert_eq!(volumes.may_grow(id, 5 * 4096), Err(shrinks));
        assert_eq!(volumes.may_grow(id, u64::MAX), Err(VolumeError::TooLarge(u64::MAX)));
        assert_eq!(volumes.may_grow(VolumeId(9), 1), Err(VolumeError::Unknown));
    }
}
