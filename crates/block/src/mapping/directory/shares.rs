//! The shares of volumes in the cache space of a shard: the part that each volume uses, the part
//! that no other volume evicts, and the largest part.
//!
//! Sizes are numbers of smallest blocks. They count whole blocks, also those without valid sectors.
//! The used parts are always counted. Guaranteed and largest parts, and an LRU list of each
//! volume's blocks, exist only while some volume has a share. The lists take 8 bytes a slot. They
//! are made when the shard next makes room, so that a change of all shards delays nothing.
//!
//! Invariants: `used[v]` is the size of the mapped blocks of volume `v`; `lists`, once made, has
//! exactly the mapped blocks, each in the list of its volume, and filler blocks in a list of their
//! own.

use std::cmp::Reverse;

use super::{Block, NOBODY};
use crate::geometry::VolumeId;

/// The share of one volume in one shard, in smallest blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ShardShare {
    /// The part that other volumes do not evict.
    pub(crate) guaranteed: u64,
    /// The largest part.
    pub(crate) most: u64,
}

impl ShardShare {
    /// The share of a volume without one: nothing is guaranteed, and all may be used.
    pub(crate) const NONE: Self = Self { guaranteed: 0, most: u64::MAX };
}

/// Maximum number of volumes that a search looks at for parked blocks, and for lent ones.
const VOLUMES_TRIED: usize = 8;

/// Maximum number of volumes that a search compares by what they use beyond their guaranteed parts.
const VOLUMES_COMPARED: usize = 64;

/// The used parts of all volumes of a shard, and their shares.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    /// Used part by volume id.
    used: Vec<u64>,
    active: Option<Box<ActiveShares>>,
    /// Number of blocks that searches have looked at.
    #[cfg(test)]
    pub(super) looks: std::cell::Cell<u64>,
}

#[derive(Debug, Default)]
struct ActiveShares {
    /// Share by volume id.
    shares: Vec<ShardShare>,
    /// The volumes with a guaranteed part, in order.
    guaranteed: Vec<VolumeId>,
    /// Sum over all volumes of what each uses beyond its guaranteed part.
    beyond: u64,
    /// The blocks of each volume; `None` until the first share applies.
    lists: Option<VolumeLists>,
    /// The number of searches, of which each begins with other volumes.
    turn: usize,
    /// The shares have changed since the shard last made room.
    is_new: bool,
}

impl ActiveShares {
    /// Derives `guaranteed` and `beyond` from the shares and the used parts.
    fn derive(&mut self, used: &[u64]) {
        let guaranteed = (0..).map(VolumeId);
        let guaranteed = self.shares.iter().zip(guaranteed);
        let guaranteed = guaranteed.filter(|(share, _)| share.guaranteed > 0);
        self.guaranteed = guaranteed.map(|(_, volume)| volume).collect();
        let beyond = used.iter().enumerate().map(|(at, used)| {
            let share = self.shares.get(at).copied().unwrap_or(ShardShare::NONE);
            used.saturating_sub(share.guaranteed)
        });
        self.beyond = beyond.sum();
    }

    /// Returns whether some volume has a share.
    fn is_any(&self) -> bool {
        self.shares.iter().any(|share| *share != ShardShare::NONE)
    }

    fn of(&self, volume: VolumeId) -> ShardShare {
        self.shares.get(usize::from(volume.0)).copied().unwrap_or(ShardShare::NONE)
    }
}

impl Shares {
    /// Returns whether some volume has a share, or had one when the shard last made room.
    #[inline]
    pub(crate) fn are_set(&self) -> bool {
        self.active.is_some()
    }

    /// Sets a volume's share. It applies once [`apply`](Self::apply) is called.
    pub(super) fn set(&mut self, volume: VolumeId, share: ShardShare) {
        let active = self.active.get_or_insert_default();
        let at = usize::from(volume.0);
        if active.shares.len() <= at {
            active.shares.resize(at + 1, ShardShare::NONE);
        }
        active.shares[at] = share;
        active.is_new = true;
        active.derive(&self.used);
    }

    /// Returns whether shares have changed and do not apply yet.
    #[inline]
    pub(super) fn are_new(&self) -> bool {
        self.active.as_ref().is_some_and(|active| active.is_new)
    }

    /// Returns whether blocks are to be listed for the shares, and are not yet.
    pub(super) fn need_lists(&self) -> bool {
        let active = self.active.as_ref();
        active.is_some_and(|active| active.lists.is_none() && active.is_any())
    }

    /// Applies changed shares. `blocks` has all mapped blocks with their volumes, the coldest
    /// first, if they are not listed yet, and `slots` is the number of slots. The shares stay new
    /// until it `is_done`.
    pub(super) fn apply(
        &mut self,
        slots: usize,
        blocks: impl Iterator<Item = (Block, VolumeId)>,
        is_done: bool,
    ) {
        let Some(active) = &mut self.active else { return };
        active.is_new = !is_done;
        if is_done && !active.is_any() {
            self.active = None;
            return;
        }
        active.lists.get_or_insert_with(|| {
            let mut lists = VolumeLists::default();
            lists.reserve(slots);
            blocks.for_each(|(block, volume)| lists.push(block, volume));
            lists
        });
    }

    /// Returns the bytes that each volume uses, by id, with smallest blocks of `unit_bytes`.
    pub(crate) fn used_bytes(&self, unit_bytes: u64) -> Vec<u64> {
        self.used.iter().map(|used| used * unit_bytes).collect()
    }

    /// Returns the part that a volume uses.
    pub(crate) fn used(&self, volume: VolumeId) -> u64 {
        self.used.get(usize::from(volume.0)).copied().unwrap_or(0)
    }

    /// Counts a block of this size that was mapped.
    #[inline]
    pub(super) fn mapped(&mut self, block: Block, volume: VolumeId, size: u64) {
        let at = usize::from(volume.0);
        if volume != NOBODY {
            if self.used.len() <= at {
                self.used.resize(at + 1, 0);
            }
            self.used[at] += size;
        }
        if let Some(active) = &mut self.active {
            active.lists.iter_mut().for_each(|lists| lists.push(block, volume));
            if volume != NOBODY {
                active.beyond +=
                    self.used[at].saturating_sub(active.of(volume).guaranteed).min(size);
            }
        }
    }

    /// Counts a block of this size that is no longer mapped.
    #[inline]
    pub(super) fn unmapped(&mut self, block: Block, volume: VolumeId, size: u64) {
        let at = usize::from(volume.0);
        if let Some(active) = &mut self.active {
            active.lists.iter_mut().for_each(|lists| lists.remove(block, volume));
            if volume != NOBODY {
                active.beyond -=
                    self.used[at].saturating_sub(active.of(volume).guaranteed).min(size);
            }
        }
        if volume != NOBODY {
            self.used[at] -= size;
        }
    }

    /// Makes a block the hottest of its volume.
    pub(super) fn touch(&mut self, block: Block, volume: VolumeId) {
        if let Some(lists) = self.active.as_mut().and_then(|active| active.lists.as_mut()) {
            lists.remove(block, volume);
            lists.push(block, volume);
        }
    }

    /// Returns a volume's blocks, or the filler blocks, the coldest first; none until they are
    /// listed.
    pub(super) fn coldest_first(&self, volume: VolumeId) -> impl Iterator<Item = Block> + '_ {
        let lists = self.active.iter().filter_map(|active| active.lists.as_ref());
        let blocks = lists.flat_map(move |lists| lists.coldest_first(volume));
        blocks.inspect(|_| self.note_look())
    }

    /// Counts a block that a search looks at, for tests.
    pub(super) fn note_look(&self) {
        #[cfg(test)]
        self.looks.update(|looks| looks + 1);
    }

    /// Has the next search begin with other volumes.
    pub(super) fn take_turn(&mut self) {
        if let Some(active) = &mut self.active {
            active.turn = active.turn.wrapping_add(1);
        }
    }

    /// Returns some of the volumes with a guaranteed part, in turn.
    pub(super) fn some_guaranteed(&self) -> impl Iterator<Item = VolumeId> + '_ {
        self.active.iter().flat_map(|active| {
            let chosen = in_turn(active.guaranteed.len(), active.turn, VOLUMES_TRIED);
            chosen.map(move |at| active.guaranteed[at])
        })
    }

    /// Returns whether a part is guaranteed to a volume.
    pub(super) fn is_guaranteed(&self, volume: VolumeId) -> bool {
        self.active.as_ref().is_some_and(|active| active.of(volume).guaranteed > 0)
    }

    /// Returns whether some volume uses more than what is guaranteed to it.
    pub(super) fn is_any_beyond_guaranteed(&self) -> bool {
        self.active.as_ref().is_none_or(|active| active.beyond > 0)
    }

    /// Returns the largest part that a volume may use.
    pub(super) fn most(&self, volume: VolumeId) -> u64 {
        self.active.as_ref().map_or(u64::MAX, |active| active.of(volume).most)
    }

    /// Returns whether a volume that gets `more` uses more than its largest part.
    pub(super) fn is_beyond_most(&self, volume: VolumeId, more: u64) -> bool {
        self.used(volume) + more > self.most(volume)
    }

    /// Returns volumes that use more than their guaranteed part, in turn, and of those compared a
    /// few that use most beyond it.
    pub(super) fn beyond_guaranteed(&self) -> Vec<VolumeId> {
        let Some(active) = &self.active else { return Vec::new() };
        let volumes = in_turn(self.used.len(), active.turn, VOLUMES_COMPARED);
        let beyond = volumes.filter_map(|at| {
            self.note_look();
            let volume = VolumeId(at as u16);
            let beyond = self.used[at].saturating_sub(active.of(volume).guaranteed);
            (beyond > 0).then_some((beyond, Reverse(volume)))
        });
        let mut beyond: Vec<_> = beyond.collect();
        beyond.sort_unstable_by(|one, other| other.cmp(one));
        beyond.into_iter().take(VOLUMES_TRIED).map(|(_, Reverse(volume))| volume).collect()
    }

    /// Returns whether a volume may lose blocks of the size `lost` to a new block of `gained` of
    /// the volume `by`. It keeps its guaranteed part then, unless it has that and loses larger
    /// blocks to a new one of its own. Blocks without a volume may always go.
    pub(super) fn may_lose(
        &self,
        volume: VolumeId,
        lost: u64,
        (by, gained): (VolumeId, u64),
    ) -> bool {
        self.note_look();
        let Some(active) = &self.active else { return true };
        let guaranteed = if volume == NOBODY { 0 } else { active.of(volume).guaranteed };
        let used = self.used(volume);
        let is_own = by == volume;
        guaranteed == 0
            || is_own && used >= guaranteed
            || used + if is_own { gained } else { 0 } >= lost + guaranteed
    }

    /// Returns the bytes of memory held for shares.
    pub(super) fn memory_bytes(&self) -> usize {
        self.active.as_ref().map_or(0, |active| {
            let lists = active.lists.as_ref().map_or(0, VolumeLists::memory_bytes);
            active.shares.capacity() * size_of::<ShardShare>() + lists
        })
    }

    /// Checks the counts and lists against all mapped blocks, each with its volume and size. Slow.
    pub(super) fn check(&self, blocks: &[(Block, VolumeId, u64)]) {
        let owned = || blocks.iter().filter(|(_, volume, _)| *volume != NOBODY);
        let most = owned().map(|(_, volume, _)| usize::from(volume.0) + 1).max().unwrap_or(0);
        let mut used = vec![0; most.max(self.used.len())];
        owned().for_each(|(_, volume, size)| used[usize::from(volume.0)] += size);
        let beyond = used.iter().zip((0..).map(VolumeId)).map(|(used, volume)| {
            let active = self.active.as_ref();
            used.saturating_sub(active.map_or(0, |active| active.of(volume).guaranteed))
        });
        if let Some(active) = &self.active {
            assert_eq!(active.beyond, beyond.sum::<u64>());
        }
        for (used, volume) in used.iter().zip((0..).map(VolumeId)) {
            assert_eq!(self.used(volume), *used, "the use of {volume:?} is counted");
        }
        if self.active.as_ref().is_none_or(|active| active.lists.is_none()) {
            return;
        }
        for volume in (0..used.len() as u16).map(VolumeId).chain([NOBODY]) {
            let mut listed: Vec<Block> = self.coldest_first(volume).collect();
            let of_volume = blocks.iter().filter(|(_, of, _)| *of == volume);
            let mut mapped: Vec<Block> = of_volume.map(|(block, ..)| *block).collect();
            listed.sort_unstable();
            mapped.sort_unstable();
            assert_eq!(listed, mapped, "the blocks of {volume:?} are listed once");
        }
    }
}

/// Returns at most `most` of the numbers below `len`; those of the next turn follow on them.
fn in_turn(len: usize, turn: usize, most: usize) -> impl Iterator<Item = usize> {
    let first = turn.wrapping_mul(most);
    (0..len.min(most)).map(move |at| first.wrapping_add(at) % len)
}

/// Marks the end of a list.
const END: u32 = u32::MAX;

/// Doubly linked lists of slots, one for each volume and one for filler blocks, from cold to hot. A
/// slot is in one at most.
#[derive(Debug, Default)]
struct VolumeLists {
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
    /// Returns the number of a volume's list; that of filler blocks is the first.
    fn list(volume: VolumeId) -> usize {
        if volume == NOBODY { 0 } else { usize::from(volume.0) + 1 }
    }

    /// Allocates for slots `0..slots`.
    fn reserve(&mut self, slots: usize) {
        self.links.reserve_exact(slots.saturating_sub(self.links.len()));
    }

    /// Adds a slot, which is in no list, at the hot end of a volume's list.
    fn push(&mut self, block: Block, volume: VolumeId) {
        let (slot, list) = (block.index(), Self::list(volume));
        if self.links.len() <= slot {
            super::reserve_by_share(&mut self.links, slot + 1);
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

    /// Removes a slot from the list of its volume.
    fn remove(&mut self, block: Block, volume: VolumeId) {
        let list = Self::list(volume);
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

    fn coldest_first(&self, volume: VolumeId) -> impl Iterator<Item = Block> + '_ {
        let ends = self.ends.get(Self::list(volume));
        let first = ends.map_or(END, |ends| ends.hotter);
        let slot = |slot: u32| (slot != END).then_some(floe_policy::Slot(slot));
        std::iter::successors(slot(first), move |block| slot(self.links[block.index()].hotter))
    }

    fn memory_bytes(&self) -> usize {
        (self.links.capacity() + self.ends.capacity()) * size_of::<VolumeLink>()
    }
}

#[cfg(test)]
mod tests {
    use floe_policy::Slot;
    use proptest::prelude::*;

    use super::*;

    const A: VolumeId = VolumeId(0);
    const B: VolumeId = VolumeId(3);

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
                    lists.remove(block, VolumeId(held as u16));
                    model[held].retain(|other| *other != block);
                }
                if push {
                    lists.push(block, VolumeId(volume));
                    model[usize::from(volume)].push(block);
                }
                for (volume, blocks) in (0..).map(VolumeId).zip(&model) {
                    prop_assert_eq!(&lists.coldest_first(volume).collect::<Vec<_>>(), blocks);
                }
            }
        }
    }

    #[test]
    fn a_volume_keeps_what_is_guaranteed_and_nothing_more() {
        let mut shares = Shares::default();
        (0..6).for_each(|slot| shares.mapped(Slot(slot), A, 2));
        assert!(shares.may_lose(A, 12, (B, 1)) && !shares.is_beyond_most(A, u64::MAX / 2));
        shares.set(A, ShardShare { guaranteed: 9, most: 12 });
        assert!(shares.need_lists() && shares.coldest_first(A).next().is_none());
        shares.apply(6, (0..6).map(|slot| (Slot(slot), A)), true);
        assert!(shares.may_lose(A, 3, (B, 1)) && !shares.may_lose(A, 4, (B, 1)));
        assert!(shares.may_lose(A, 4, (A, 1)), "its own block takes the place");
        assert!(shares.may_lose(NOBODY, 100, (B, 1)));
        assert!(!shares.is_beyond_most(A, 0) && shares.is_beyond_most(A, 1));
        shares.unmapped(Slot(2), A, 2);
        shares.touch(Slot(0), A);
        let order: Vec<u32> = shares.coldest_first(A).map(|block| block.0).collect();
        assert_eq!((order, shares.used(A)), (vec![1, 3, 4, 5, 0], 10));
        shares.set(A, ShardShare::NONE);
        assert!(shares.are_new() && !shares.need_lists() && shares.coldest_first(A).count() == 5);
        shares.apply(0, std::iter::empty(), false);
        assert!(shares.are_new() && shares.coldest_first(A).count() == 5);
        shares.apply(0, std::iter::empty(), true);
        assert!(!shares.are_set() && shares.memory_bytes() == 0 && shares.used(A) == 10);
    }
}
