//! The groups that belong to one volume each while it has a share.
//!
//! A volume needs groups without blocks of others to change the sizes of its blocks: a group is
//! emptied as a whole. Only blocks of the volume and filler blocks are in a group of its own.
//!
//! Invariants: `lists` has exactly the groups with an owner, each in the list of that; `parts[v]`
//! has their number, and the size of what is in them without a block of volume `v`.

use floe_policy::Slot;

use super::NOBODY;
use super::lists::VolumeLists;
use crate::geometry::VolumeId;

/// The own groups of all volumes of a shard.
#[derive(Debug, Default)]
pub(super) struct OwnGroups {
    /// The owner of each group, [`NOBODY`] for common groups; those behind the end are common.
    owners: Vec<VolumeId>,
    /// The own groups of each volume, from cold to hot.
    lists: VolumeLists,
    /// By volume id.
    parts: Vec<OwnPart>,
}

/// The own groups of one volume.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct OwnPart {
    /// Maximum number of groups.
    most: u32,
    groups: u32,
    /// Size of the places in them that have no block of the volume, in smallest blocks.
    free: u64,
}

impl OwnGroups {
    /// Sets the maximum number of a volume's own groups. It may have more until some are
    /// [released](Self::release).
    pub(super) fn set_most(&mut self, volume: VolumeId, most: u32) {
        self.part_mut(volume).most = most;
    }

    /// Returns the owner of a group, [`NOBODY`] for a common one.
    #[inline]
    pub(super) fn owner(&self, group: u32) -> VolumeId {
        self.owners.get(group as usize).copied().unwrap_or(NOBODY)
    }

    /// Returns the size of the places in a volume's own groups that have no block of it.
    pub(super) fn free(&self, volume: VolumeId) -> u64 {
        self.part(volume).free
    }

    /// Returns whether a volume has fewer groups of its own than it may have.
    pub(super) fn lacks(&self, volume: VolumeId) -> bool {
        let part = self.part(volume);
        part.groups < part.most
    }

    /// Returns whether some volume has fewer groups of its own than it may have.
    pub(super) fn is_any_lacking(&self) -> bool {
        self.parts.iter().any(|part| part.groups < part.most)
    }

    /// Returns the coldest groups of those that volumes have beyond their maximum.
    pub(super) fn surplus(&self) -> Vec<u32> {
        let volumes = (0..).map(VolumeId).zip(&self.parts);
        let of = |(volume, part): (VolumeId, &OwnPart)| {
            self.coldest_first(volume).take(part.groups.saturating_sub(part.most) as usize)
        };
        volumes.flat_map(of).collect()
    }

    /// Returns a volume's own groups, the coldest first.
    pub(super) fn coldest_first(&self, volume: VolumeId) -> impl Iterator<Item = u32> + '_ {
        self.lists.coldest_first(volume).map(|group| group.0)
    }

    /// Makes a common group the hottest of a volume's own groups; `free` is the size of what is in
    /// it without a block of the volume.
    pub(super) fn take(&mut self, group: u32, volume: VolumeId, free: u64) {
        debug_assert!(self.owner(group) == NOBODY && volume != NOBODY);
        let at = group as usize;
        if self.owners.len() <= at {
            self.owners.resize(at + 1, NOBODY);
        }
        self.owners[at] = volume;
        self.lists.push(Slot(group), volume);
        let part = self.part_mut(volume);
        part.groups += 1;
        part.free += free;
    }

    /// Makes a volume's own group a common one; `free` is the size of what is in it without a block
    /// of the volume.
    pub(super) fn release(&mut self, group: u32, free: u64) {
        let volume = std::mem::replace(&mut self.owners[group as usize], NOBODY);
        self.lists.remove(Slot(group), volume);
        let part = self.part_mut(volume);
        part.groups -= 1;
        part.free -= free;
    }

    /// Counts a block of this size that was mapped in a group.
    pub(super) fn mapped(&mut self, group: u32, volume: VolumeId, size: u64) {
        if volume != NOBODY && self.owner(group) == volume {
            self.part_mut(volume).free -= size;
        }
    }

    /// Counts a block of this size in a group that is no longer mapped.
    pub(super) fn unmapped(&mut self, group: u32, volume: VolumeId, size: u64) {
        if volume != NOBODY && self.owner(group) == volume {
            self.part_mut(volume).free += size;
        }
    }

    /// Makes a group the hottest of its owner's.
    pub(super) fn touch(&mut self, group: u32) {
        let owner = self.owner(group);
        if owner != NOBODY {
            self.lists.remove(Slot(group), owner);
            self.lists.push(Slot(group), owner);
        }
    }

    fn part(&self, volume: VolumeId) -> OwnPart {
        self.parts.get(usize::from(volume.0)).copied().unwrap_or_default()
    }

    fn part_mut(&mut self, volume: VolumeId) -> &mut OwnPart {
        let at = usize::from(volume.0);
        if self.parts.len() <= at {
            self.parts.resize(at + 1, OwnPart::default());
        }
        &mut self.parts[at]
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.owners.capacity() * size_of::<VolumeId>() + self.lists.memory_bytes()
    }

    /// Checks the counts, given the size of what each group has of its owner's blocks, by number,
    /// and the size of a group. Slow.
    pub(super) fn check(&self, sizes: &[u64], units: u64) {
        let mut expected = vec![(0, 0); self.parts.len()];
        for (group, owner) in (0..).zip(&self.owners).filter(|(_, owner)| **owner != NOBODY) {
            let (groups, free) = &mut expected[usize::from(owner.0)];
            *groups += 1;
            *free += units - sizes[group as usize];
            assert!(self.coldest_first(*owner).any(|other| other == group), "it is listed");
        }
        let counted: Vec<_> = self.parts.iter().map(|part| (part.groups, part.free)).collect();
        assert_eq!(counted, expected);
        for (volume, part) in (0..).map(VolumeId).zip(&self.parts) {
            assert_eq!(self.coldest_first(volume).count(), part.groups as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_has_groups_in_the_order_of_their_use_up_to_its_maximum() {
        let (mut own, volume) = (OwnGroups::default(), VolumeId(2));
        own.set_most(volume, 2);
        for group in [4, 0] {
            assert!(own.lacks(volume) && own.owner(group) == NOBODY);
            own.take(group, volume, 16);
        }
        own.mapped(4, volume, 4);
        own.mapped(4, NOBODY, 4);
        own.mapped(1, volume, 4);
        assert!(!own.lacks(volume) && own.free(volume) == 28 && own.owner(4) == volume);
        own.touch(4);
        assert_eq!(own.coldest_first(volume).collect::<Vec<_>>(), [0, 4]);
        assert_eq!(own.surplus(), []);
        own.set_most(volume, 1);
        assert_eq!(own.surplus(), [0]);
        own.release(0, 16);
        own.unmapped(4, volume, 4);
        assert!(!own.lacks(volume) && own.free(volume) == 16 && own.owner(0) == NOBODY);
        own.check(&[0; 5], 16);
    }
}
