//! Lists of the blocks and of the groups of each volume, in the order of their use.

use floe_policy::Slot;

use super::{Block, NOBODY, reserve_by_share};
use crate::geometry::VolumeId;

/// The number of a list. The first has the filler blocks in common groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct List(usize);

impl List {
    /// Returns the list of what a volume has; for [`NOBODY`] that of filler blocks in common
    /// groups.
    pub(super) fn of(volume: VolumeId) -> Self {
        Self(if volume == NOBODY { 0 } else { 2 * usize::from(volume.0) + 1 })
    }

    /// Returns the list of filler blocks in the groups of an owner, [`NOBODY`] for common ones.
    pub(super) fn fillers_of(owner: VolumeId) -> Self {
        Self(if owner == NOBODY { 0 } else { 2 * usize::from(owner.0) + 2 })
    }
}

/// Marks the end of a list.
const END: u32 = u32::MAX;

/// Doubly linked lists of slots, from cold to hot. A slot is in one at most.
#[derive(Debug, Default)]
pub(super) struct VolumeLists {
    links: Vec<VolumeLink>,
    /// The two ends of each list: `hotter` is the coldest slot, and `colder` the hottest.
    ends: Vec<VolumeLink>,
}

/// The neighbours of a slot.
#[derive(Debug, Clone, Copy)]
struct VolumeLink {
    colder: u32,
    hotter: u32,
}

impl VolumeLink {
    const NONE: Self = Self { colder: END, hotter: END };
}

impl VolumeLists {
    /// Allocates for slots `0..slots`.
    pub(super) fn reserve(&mut self, slots: usize) {
        self.links.reserve_exact(slots.saturating_sub(self.links.len()));
    }

    /// Adds a slot, which is in no list, at the hot end of a list.
    pub(super) fn push(&mut self, block: Block, list: List) {
        let (slot, list) = (block.index(), list.0);
        if self.links.len() <= slot {
            reserve_by_share(&mut self.links, slot + 1);
            self.links.resize(slot + 1, VolumeLink::NONE);
        }
        if self.ends.len() <= list {
            self.ends.resize(list + 1, VolumeLink::NONE);
        }
        let hottest = self.ends[list].colder;
        self.links[slot] = VolumeLink { colder: hottest, hotter: END };
        self.link_of(list, hottest).hotter = block.0;
        self.ends[list].colder = block.0;
    }

    /// Removes a slot from its list.
    pub(super) fn remove(&mut self, block: Block, List(list): List) {
        let VolumeLink { colder, hotter } = self.links[block.index()];
        self.link_of(list, colder).hotter = hotter;
        self.link_of(list, hotter).colder = colder;
        self.links[block.index()] = VolumeLink::NONE;
    }

    /// Returns the link of a slot, or the ends of a list for [`END`].
    fn link_of(&mut self, list: usize, slot: u32) -> &mut VolumeLink {
        match slot {
            END => &mut self.ends[list],
            slot => &mut self.links[slot as usize],
        }
    }

    pub(super) fn coldest_first(&self, list: List) -> impl Iterator<Item = Block> + '_ {
        let ends = self.ends.get(list.0);
        let first = ends.map_or(END, |ends| ends.hotter);
        let slot = |slot: u32| (slot != END).then_some(Slot(slot));
        std::iter::successors(slot(first), move |block| slot(self.links[block.index()].hotter))
    }

    pub(super) fn memory_bytes(&self) -> usize {
        (self.links.capacity() + self.ends.capacity()) * size_of::<VolumeLink>()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The lists behave as vectors from which a slot is removed wherever it is.
        #[test]
        fn lists_of_volumes_are_vectors(
            steps in proptest::collection::vec((0u32..24, 0u16..3, any::<bool>()), 0..200),
        ) {
            let mut lists = VolumeLists::default();
            let mut model: Vec<Vec<Block>> = vec![Vec::new(); 3];
            for (slot, volume, push) in steps {
                let block = Slot(slot);
                let held = model.iter().position(|list| list.contains(&block));
                if let Some(held) = held {
                    lists.remove(block, List::of(VolumeId(held as u16)));
                    model[held].retain(|other| *other != block);
                }
                if push {
                    lists.push(block, List::of(VolumeId(volume)));
                    model[usize::from(volume)].push(block);
                }
                for (volume, blocks) in (0..).map(VolumeId).zip(&model) {
                    let listed: Vec<_> = lists.coldest_first(List::of(volume)).collect();
                    prop_assert_eq!(&listed, blocks);
                    prop_assert_eq!(lists.coldest_first(List::fillers_of(volume)).count(), 0);
                }
            }
        }
    }
}
