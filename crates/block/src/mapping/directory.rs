//! The directory: blocks, their groups, and the two-level order of eviction.
//!
//! The cache space is divided into *groups* as large as the largest block; a group holds blocks of
//! one size, side by side (AdaCache, section III.C). A policy orders all blocks (`EvictionOrder`),
//! and an LRU orders all groups: a touch is reported to the first and promotes the group in the
//! second. Room for a block is taken in the open group of its size, or else in a free group.
//! Without either, the block replaces the coldest one, which the policy evicts, if that has the
//! same size. Otherwise the coldest group is emptied (section III.D). The policy treats the blocks
//! of an emptied group as removed: they leave no ghosts.
//!
//! A block is removed only with its place: by replacement or with its whole group. Losing its data
//! (a trim, a failed write) merely clears its valid bits, so groups never have holes.
//!
//! A block is a slot in flat arrays: 12 bytes here, with LRU 5 for its place in the order (8 in a
//! shard with more than 65,000 blocks), and 6 to 7 in the hash index. A group takes 4 bytes, and 5
//! or 8 for its order. Each sector has a valid and a dirty bit. With one block size no choice
//! between groups is needed, and their order does not exist.
//!
//! [`Blocks`] knows where each block is and the state of its sectors, [`Groups`] where there is
//! room, and [`EvictionOrder`] which block is the next victim. Here they are kept in step.
//!
//! While volumes have shares, some groups have blocks of one volume only ([`shares`]).
//!
//! Invariants: the sectors of two blocks never overlap; every block in the order is mapped, and in
//! a group. The number of groups that take space on the cache device is at most a limit, or falls
//! to it ([`resize`]).

use std::cell::RefCell;

use floe_policy::{Access, Adaptation, Slot};

use crate::geometry::{BlockSizes, Class, Extent, Sectors, VolumeId};
use crate::journal::RestoredBlock;
use blocks::arrival;
use groups::Groups;
use hands::{Fit, STEPS_REPEATED, Search};
use order::{EvictionOrder, VICTIMS_TRIED};

pub(crate) use blocks::{Blocks, of_volume, slots};
pub use order::{Evict, EvictError};
pub(crate) use shares::ShardShare;
pub(crate) use within_shares::is_full_for;

mod blocks;
mod groups;
mod hands;
mod order;
pub(crate) mod resize;
mod search;
mod shares;
mod within_shares;

/// Maximum number of groups tried to find one without dirty blocks.
const GROUPS_TRIED: usize = 256;

/// Arrays of blocks grow by a sixteenth, not by doubling: unused metadata is memory taken from the
/// user's data.
const GROWTH_SHARE: usize = 16;

/// A block, identified by its slot.
pub(crate) type Block = Slot;

/// The room found for a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// There is free room.
    Free,
    /// Evict this block, which has the wanted size.
    Replace(Block),
    /// Evict all blocks of this group.
    Empty(u32),
    /// Evict this block of the volume itself, whose place becomes free for others. The volume seeks
    /// room again if it was above its largest part.
    GiveUp(Block),
}

/// The result of a search for room without dirty victims.
#[derive(Debug)]
pub(crate) struct CleanRoom {
    pub(crate) room: Option<Room>,
    /// Dirty blocks that were passed over, the coldest first.
    pub(crate) dirty: Vec<Block>,
    /// Share of the candidates that were passed over because they are dirty or in use.
    pub(crate) tried: f64,
    /// Set if the search began at the coldest block.
    pub(crate) anew: bool,
}

/// The circumstances under which a new block is made.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Origin {
    /// The block's number in a stream of smallest blocks; 0 outside a stream.
    pub(crate) in_a_row: u64,
    /// The block is fetched before a client asks for it.
    pub(crate) ahead: bool,
}

/// The directory of one shard: blocks, groups and the order of eviction.
#[derive(Debug)]
pub(crate) struct Directory {
    pub(crate) blocks: Blocks,
    groups: Groups,
    order: EvictionOrder,
}

impl Directory {
    /// Creates an empty directory over `sectors` of cache space; a rest smaller than a group at the
    /// end is unused.
    pub(crate) fn new(sizes: BlockSizes, sectors: u64, evict: &Evict) -> Self {
        let group_limit = sectors / sizes.largest();
        let used = group_limit * sizes.largest();
        let units = used / sizes.smallest();
        assert!(
            units < u64::from(u32::MAX),
            "a shard holds fewer than 2^32 smallest blocks, not {units}"
        );
        Self {
            groups: Groups::new(&sizes, group_limit as u32),
            order: EvictionOrder::new(evict, units),
            blocks: Blocks::new(sizes, used, evict.fetches_ahead().is_some()),
        }
    }

    /// Promotes a block and its group.
    #[inline]
    pub(crate) fn touch(&mut self, block: Block) {
        let was_parked = self.blocks.shares.are_set() && self.touch_within_shares(block);
        if !was_parked {
            self.order.touch(block, |block| self.blocks.access(block));
        }
        self.groups.touch(self.blocks.place(block));
    }

    /// Promotes the group with a place, also among the own groups of a volume.
    fn touch_group(&mut self, place: u32) {
        self.groups.touch(place);
        self.blocks.shares.touch_group(self.groups.at(place));
    }

    /// Moves a block that cannot be evicted now behind others in the order of eviction.
    pub(crate) fn spare(&mut self, block: Block) {
        self.order.spare(block, |block| self.blocks.access(block));
        self.touch_group(self.blocks.place(block));
        self.blocks.shares.touch(block, self.blocks.volume(block));
    }

    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    /// Returns the size of all blocks in smallest blocks.
    pub(crate) fn smallest_blocks(&self) -> u64 {
        let sizes = self.blocks.sizes();
        let classes = sizes.classes().zip(self.blocks.live());
        classes.map(|(class, live)| live * sizes.sectors(class) / sizes.smallest()).sum()
    }

    /// Returns all blocks, the coldest (the next victim) first.
    pub(crate) fn by_heat(&self) -> Vec<Block> {
        self.order.by_heat()
    }

    /// Returns whether even a smallest block can only be made by evicting another.
    pub(crate) fn is_full(&self) -> bool {
        !self.groups.has_room(Class(0))
    }

    /// Returns the block that a new smallest block of a volume would evict; `None` while there is
    /// room.
    pub(crate) fn coldest_if_full(&mut self, volume: VolumeId) -> Option<Block> {
        if self.blocks.shares.are_set() && self.has_shares() {
            return self.victim_within_shares(volume);
        }
        if !self.is_full() {
            return None;
        }
        self.order.coldest(None, |_| false)
    }

    /// Finds room for a block of `class` that begins at a sector. Blocks for which `in_use` holds
    /// are not evicted. Returns `None` when all cold blocks are in use.
    pub(crate) fn room(
        &mut self,
        volume: VolumeId,
        start: u64,
        class: Class,
        in_use: impl Fn(VolumeId, &Sectors) -> bool,
    ) -> Option<Room> {
        if self.blocks.shares.are_set() && self.has_shares() {
            let leaving = self.groups.leaving().to_vec(); // at most a few
            let units = self.groups.units();
            let in_use = |blocks: &Blocks, block| {
                leaving.contains(&(blocks.place(block) / units))
                    || in_use(blocks.volume(block), &blocks.sectors(block))
            };
            return self.room_within_shares(volume, start, class, in_use);
        }
        if self.groups.has_room(class) {
            return Some(Room::Free);
        }
        let blocks = &self.blocks;
        let incoming =
            arrival(blocks.sizes(), Extent::new(volume, start, blocks.sizes().sectors(class)));
        let in_use = |block: Block| {
            self.groups.is_leaving(blocks.place(block))
                || in_use(blocks.volume(block), &blocks.sectors(block))
        };
        match self.order.coldest(Some(&incoming), in_use) {
            Some(block) if blocks.class(block) == class => Some(Room::Replace(block)),
            _ => {
                let idle = |group: &u32| !self.groups.blocks_of(*group, blocks).any(in_use);
                let coldest = self.groups.coldest_first().take(VICTIMS_TRIED);
                { coldest }.find(idle).map(Room::Empty)
            }
        }
    }

    /// Finds room for a block of `class` that begins at a sector, without dirty victims: the
    /// coldest clean block of the class, or else the coldest group without dirty blocks.
    pub(crate) fn clean_room(
        &mut self,
        volume: VolumeId,
        start: u64,
        class: Class,
        in_use: impl Fn(VolumeId, &Sectors) -> bool,
    ) -> CleanRoom {
        // as many as must become clean before a hand returns
        let most_wanted = VICTIMS_TRIED.max(self.order.len() / STEPS_REPEATED as usize + 1);
        let blocks = &self.blocks;
        let incoming =
            arrival(blocks.sizes(), Extent::new(volume, start, blocks.sizes().sectors(class)));
        let dirty = RefCell::new(Vec::new());
        let is_blocked = |block: Block| {
            if self.groups.is_leaving(blocks.place(block)) {
                return true;
            }
            let is_dirty = blocks.is_dirty(block);
            if is_dirty && dirty.borrow().len() == most_wanted {
                return true;
            }
            let used = in_use(blocks.volume(block), &blocks.sectors(block));
            if is_dirty && !used {
                dirty.borrow_mut().push(block);
            }
            used || is_dirty
        };
        let fit = |block: Block| match () {
            () if blocks.class(block) != class => Fit::Other,
            () if is_blocked(block) => Fit::Blocked,
            () => Fit::Clean,
        };
        let Search { found, blocked, anew } =
            self.order.coldest_clean(&incoming, class, blocks.dirty.cleaned(), fit);
        let mut room = found.map(Room::Replace);
        let mut tried = blocked.min(VICTIMS_TRIED);
        if room.is_none() {
            let is_free = |group: &u32| !self.groups.blocks_of(*group, blocks).any(is_blocked);
            let mut groups = self.groups.coldest_first().take(GROUPS_TRIED).enumerate();
            let found = groups.find(|(_, group)| is_free(group));
            tried = found.map_or(VICTIMS_TRIED, |(number, _)| number.min(VICTIMS_TRIED));
            room = found.map(|(_, group)| Room::Empty(group));
        }
        let tried = tried as f64 / VICTIMS_TRIED as f64;
        CleanRoom { room, dirty: dirty.into_inner(), tried, anew }
    }

    /// Returns whether the blocks are evicted in the order of an LRU.
    pub(crate) fn is_lru(&self) -> bool {
        self.order.is_lru()
    }

    /// Returns the blocks that must be evicted to make this room.
    pub(crate) fn victims(&self, room: Room) -> impl Iterator<Item = Block> + '_ {
        let (block, group) = match room {
            Room::Free => (None, None),
            Room::Replace(block) | Room::GiveUp(block) => (Some(block), None),
            Room::Empty(group) => (None, Some(group)),
        };
        block.into_iter().chain(group.into_iter().flat_map(|group| self.blocks_of(group)))
    }

    /// Returns whether this room is made by an eviction. While some volume has a share, filler
    /// blocks do not count.
    pub(crate) fn evicts(&self, room: Room) -> bool {
        let is_owned = |block| self.blocks.volume(block) != NOBODY;
        let are_set = self.blocks.shares.are_set();
        room != Room::Free && (!are_set || self.victims(room).any(is_owned))
    }

    /// Makes a block, without valid sectors, in room that [`Directory::room`] has just found.
    ///
    /// # Panics
    /// When a victim is dirty, the block overlaps another, or the room is not made yet.
    pub(crate) fn allocate(
        &mut self,
        volume: VolumeId,
        start: u64,
        class: Class,
        room: Room,
        origin: Origin,
    ) -> Block {
        let extent = Extent::new(volume, start, self.blocks.sizes().sectors(class));
        let Origin { in_a_row, ahead } = origin;
        let access = Access { in_a_row, ahead, ..arrival(self.blocks.sizes(), extent) };
        let block = match room {
            Room::Replace(block) => {
                let group = self.group_of(block);
                if self.blocks.shares.is_of_another(group, volume) {
                    within_shares::release(self, group);
                }
                self.blocks.unmap(block);
                // The new block is inserted into the order anew: an order that does not promote
                // would evict it next otherwise.
                self.order.remove(block);
                self.touch_group(self.blocks.place(block));
                block
            }
            Room::GiveUp(_) => unreachable!("a volume gives blocks up before it gets room"),
            Room::Empty(_) | Room::Free => {
                if let Room::Empty(group) = room {
                    self.empty(group);
                }
                self.take_place(volume, class)
            }
        };
        self.blocks.map(block, extent);
        self.order.insert(block, &access);
        block
    }

    /// Takes the next place for a block of a volume and a class.
    fn take_place(&mut self, volume: VolumeId, class: Class) -> Block {
        let (shares, groups) = (&self.blocks.shares, &mut self.groups);
        let has_own = shares.are_set()
            && (groups.is_open(volume, class)
                || shares.lacks_free_group(volume) && groups.has_free());
        let owner = if has_own { volume } else { NOBODY };
        let room = groups.take(owner, class, self.blocks.sizes());
        let group = groups.at(room.place);
        if has_own && shares.owner(group) == NOBODY {
            self.blocks.shares.take_group(group, owner);
        }
        self.blocks.shares.touch_group(group);
        self.reserve_slots();
        self.blocks.put(room.block, room.place);
        room.block
    }

    fn reserve_slots(&mut self) {
        if let Some(slots) = self.blocks.reserve(self.groups.slots_end()) {
            self.order.reserve(slots); // policies may copy all they have
        }
    }

    pub(crate) fn blocks_of(&self, group: u32) -> impl Iterator<Item = Block> + use<> {
        self.groups.blocks_of(group, &self.blocks)
    }

    /// Returns the group that has a block's place.
    pub(crate) fn group_of(&self, block: Block) -> u32 {
        self.groups.at(self.blocks.place(block))
    }

    /// Removes every block of a group and frees the group.
    pub(crate) fn empty(&mut self, group: u32) {
        let class = self.groups.class(group, &self.blocks);
        for block in self.blocks_of(group) {
            self.blocks.unmap(block);
            self.order.remove(block);
        }
        let owner = self.blocks.shares.owner(group);
        self.groups.free(group, owner, class, self.blocks.sizes());
        if owner != NOBODY {
            self.blocks.shares.release_group(group, self.groups.units().into());
        }
    }

    /// Drops all data of a volume, dirty or not. Returns the groups that now hold no data at all.
    /// The volume's blocks in other groups stay, empty, until they are the coldest, as after a
    /// trim. They do no harm to a volume that gets the same id: they spare it an allocation. While
    /// some volume has a share, they are filler blocks, which count for no volume.
    pub(crate) fn drop_volume(&mut self, volume: VolumeId) -> Vec<u32> {
        let mut emptied = Vec::new();
        for group in 0..self.groups.count() {
            let (mut was_in, mut holds_data) = (false, false);
            for block in self.blocks_of(group) {
                let sectors = self.blocks.sectors(block);
                if self.blocks.volume(block) == volume {
                    self.blocks.set_invalid(block, &sectors);
                    if self.blocks.shares.are_set() {
                        self.disown(block);
                    }
                    was_in = true;
                } else {
                    holds_data |= self.blocks.has_valid(block, &sectors);
                }
            }
            if was_in && !holds_data {
                emptied.push(group);
            }
        }
        emptied
    }

    /// Replaces a block, which must be clean, by a filler block. It keeps its turn to leave.
    fn disown(&mut self, block: Block) {
        let hole = self.hole(self.blocks.place(block), self.blocks.class(block));
        self.blocks.unmap(block);
        self.blocks.map(block, hole);
        if within_shares::may_be_parked(self, block) {
            self.order.set_aside(block); // only the owner of the group may replace it
        } else {
            self.order.release(block, |block| self.blocks.access(block));
        }
    }

    /// Returns the extent of the filler block at a place.
    fn hole(&self, place: u32, class: Class) -> Extent {
        let sizes = self.blocks.sizes();
        Extent::new(NOBODY, u64::from(place) * sizes.smallest(), sizes.sectors(class))
    }

    /// Returns the blocks of a volume, found by a walk over all blocks.
    pub(crate) fn blocks_of_volume(&self, volume: VolumeId) -> Vec<Block> {
        let blocks = (0..self.groups.count()).flat_map(|group| self.blocks_of(group));
        blocks.filter(|&block| self.blocks.volume(block) == volume).collect()
    }

    /// Returns the settings that the eviction policy chooses from; `None` if its settings do not
    /// change.
    pub(crate) fn adaptation(&self) -> Option<Adaptation> {
        self.order.adaptation()
    }

    /// Returns the bytes of memory held for blocks and groups, without the two bits a sector.
    pub(crate) fn block_metadata_bytes(&self) -> u64 {
        (self.blocks.memory_bytes() + self.groups.memory_bytes() + self.order.memory_bytes()) as u64
    }

    /// Checks the invariants of the module's header, slowly.
    pub(crate) fn check(&self) {
        self.blocks.check((0..self.groups.count()).flat_map(|group| self.blocks_of(group)));
        let shares = &self.blocks.shares;
        assert!(
            shares.are_new()
                || self.order.parked().all(|block| within_shares::may_be_parked(self, block))
        );
        for block in (0..self.groups.count()).flat_map(|group| self.blocks_of(group)) {
            let is_own_filler =
                self.blocks.volume(block) == NOBODY && within_shares::may_be_parked(self, block);
            assert!(!is_own_filler || self.order.is_parked(block), "it is no victim for others");
        }
        assert_eq!(self.len() as u64, self.blocks.live().sum::<u64>());
        self.groups.check();
    }

    /// Fills an empty directory with blocks, given from the coldest to the hottest. The eviction
    /// order receives them in this order. They do not overlap, neither in their volumes nor in
    /// their places, and the blocks of a group are of one size.
    pub(crate) fn restore(&mut self, blocks: &[RestoredBlock]) {
        let group_sectors = self.blocks.sizes().largest();
        let group_of = |place: u64| (place / group_sectors) as usize;
        let groups = blocks.iter().map(|block| group_of(block.at.place) + 1).max().unwrap_or(0);
        let mut classes: Vec<Option<Class>> = vec![None; groups];
        let mut last_used = vec![0; groups];
        for (at, block) in blocks.iter().enumerate() {
            let Sectors { start, end } = block.at.sectors;
            let group = group_of(block.at.place);
            classes[group] = Some(self.blocks.sizes().class(end - start));
            last_used[group] = at;
        }
        let in_use = (0..groups as u32).filter(|&group| classes[group as usize].is_some());
        let mut order: Vec<u32> = in_use.collect();
        order.sort_unstable_by_key(|&group| last_used[group as usize]);
        self.groups.restore(&classes, &order, self.blocks.sizes());
        self.reserve_slots();
        for (group, class) in classes.iter().enumerate() {
            if let Some(class) = class {
                self.restore_group(group as u32, *class);
            }
        }
        for block in blocks {
            self.fill_hole(group_of(block.at.place) as u32, block);
        }
    }

    /// Fills a group with empty filler blocks.
    fn restore_group(&mut self, group: u32, class: Class) {
        for number in 0..self.blocks.sizes().per_group(class) {
            let room = self.groups.room(group, number, class, self.blocks.sizes());
            self.blocks.put(room.block, room.place);
            self.blocks.map(room.block, self.hole(room.place, class));
            self.order.insert(room.block, &self.blocks.access(room.block));
        }
    }

    /// Puts a block in place of a filler block.
    fn fill_hole(&mut self, group: u32, block: &RestoredBlock) {
        let Sectors { start, end } = block.at.sectors;
        let (class, group_sectors) =
            (self.blocks.sizes().class(end - start), self.blocks.sizes().largest());
        let number = block.at.place % group_sectors / (end - start);
        let slot = self.groups.room(group, number, class, self.blocks.sizes()).block;
        self.blocks.unmap(slot);
        self.blocks.map(slot, Extent::new(block.at.volume, start, end - start));
        self.order.remove(slot);
        self.order.insert(slot, &self.blocks.access(slot));
        block.valid.iter().for_each(|run| self.blocks.set_clean(slot, run));
        block.dirty.iter().for_each(|run| self.blocks.set_dirty(slot, run));
    }
}

/// Makes room for `len` elements, growing by a sixteenth at least; returns whether the array has
/// grown.
fn reserve_by_share<T>(array: &mut Vec<T>, len: usize) -> bool {
    let grows = len > array.capacity();
    if grows {
        let grown = len.max(array.len() + array.len() / GROWTH_SHARE);
        array.reserve_exact(grown - array.len());
    }
    grows
}

/// The volume of blocks that only fill the holes of a group: a block is removed only with its
/// place, so groups have no holes. These filler blocks have no data. Those of a cache that was
/// opened are replaced first.
pub(crate) const NOBODY: VolumeId = VolumeId(u16::MAX);

/// Appends to `missing` the intervals of `range`, rounded out to smallest blocks, that are not
/// cached (AdaCache, Algorithm 1).
///
/// `cached_until` is called with positions in ascending order and returns the end of the cached
/// block that covers the position, if there is one.
pub(crate) fn missing_intervals(
    sizes: &BlockSizes,
    range: &Sectors,
    mut cached_until: impl FnMut(u64) -> Option<u64>,
    missing: &mut Vec<Sectors>,
) {
    let Sectors { start: mut position, end } = sizes.round_out(range);
    while position < end {
        if let Some(block_end) = cached_until(position) {
            debug_assert!(block_end > position);
            position = block_end;
            continue;
        }
        let next = position + sizes.smallest();
        match missing.last_mut() {
            Some(last) if last.end == position => last.end = next,
            _ => missing.push(position..next),
        }
        position = next;
    }
}

/// Returns the largest block that starts where `interval` does and fits in it: one step of
/// AdaCache's Algorithm 2.
///
/// # Panics
/// When the interval is empty or not made of smallest blocks.
#[inline]
pub(crate) fn largest_fitting(sizes: &BlockSizes, interval: &Sectors) -> Class {
    let fits = |class: &Class| {
        let size = sizes.sectors(*class);
        interval.start.is_multiple_of(size) && interval.start + size <= interval.end
    };
    sizes.classes().rev().find(fits).expect("an interval is made of whole smallest blocks")
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // lists of one interval are meant
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the blocks that fill `interval`, in address order (AdaCache, Algorithm 2).
    fn greedy_blocks<'a>(
        sizes: &'a BlockSizes,
        interval: &Sectors,
    ) -> impl Iterator<Item = (u64, Class)> + 'a {
        let mut left = interval.clone();
        std::iter::from_fn(move || {
            if left.is_empty() {
                return None;
            }
            let class = largest_fitting(sizes, &left);
            let start = left.start;
            left.start += sizes.sectors(class);
            Some((start, class))
        })
    }

    /// Converts a range in KiB to one in sectors.
    fn kib(range: std::ops::Range<u64>) -> Sectors {
        range.start / 4..range.end.div_ceil(4)
    }

    /// Returns the missing intervals of a request in KiB, with `cached` blocks in KiB.
    fn missing(
        sizes: &BlockSizes,
        request: std::ops::Range<u64>,
        cached: &[std::ops::Range<u64>],
    ) -> Vec<Sectors> {
        let cached: Vec<Sectors> = cached.iter().cloned().map(kib).collect();
        let mut out = Vec::new();
        let until =
            |at: u64| cached.iter().find(|block| block.contains(&at)).map(|block| block.end);
        missing_intervals(sizes, &kib(request), until, &mut out);
        out
    }

    fn blocks(sizes: &BlockSizes, interval: std::ops::Range<u64>) -> Vec<(u64, u64)> {
        greedy_blocks(sizes, &kib(interval))
            .map(|(start, class)| (start * 4, sizes.bytes(class) / 1024))
            .collect()
    }

    #[test]
    fn the_worked_example_allocates_one_block_of_32_and_one_of_64_kib() {
        let sizes = BlockSizes::default();
        assert_eq!(missing(&sizes, 48..48 + 184, &[128..256]), [kib(32..128)]);
        assert_eq!(blocks(&sizes, 32..128), [(32, 32), (64, 64)]);
    }

    #[test]
    fn an_aligned_end_is_not_rounded_up() {
        let sizes = BlockSizes::default();
        assert_eq!(missing(&sizes, 0..64, &[]), [kib(0..64)]);
        assert_eq!(missing(&sizes, 32..64, &[32..64]), []);
    }

    #[test]
    fn a_cached_block_may_reach_past_the_end_of_the_request() {
        let sizes = BlockSizes::default();
        assert_eq!(missing(&sizes, 96..160, &[128..256]), [kib(96..128)]);
        assert_eq!(missing(&sizes, 130..140, &[128..256]), []);
    }

    #[test]
    fn a_cached_block_may_begin_before_the_request() {
        assert_eq!(missing(&BlockSizes::default(), 96..288, &[0..128]), [kib(128..288)]);
    }

    #[test]
    fn interleaved_sizes_leave_separate_intervals() {
        let cached = [32..64, 128..256, 288..320];
        assert_eq!(
            missing(&BlockSizes::default(), 0..384, &cached),
            [kib(0..32), kib(64..128), kib(256..288), kib(320..384)]
        );
    }

    #[test]
    fn allocation_goes_back_to_the_largest_size_after_each_block() {
        let sizes = BlockSizes::default();
        let expected =
            [(32, 32), (64, 64), (128, 128), (256, 256), (512, 256), (768, 64), (832, 32)];
        assert_eq!(blocks(&sizes, 32..864), expected);
    }

    #[test]
    fn a_request_over_two_regions_takes_blocks_in_both() {
        let sizes = BlockSizes::default();
        assert_eq!(missing(&sizes, 192..320, &[]), [kib(192..320)]);
        assert_eq!(blocks(&sizes, 192..320), [(192, 64), (256, 64)]);
    }

    #[test]
    fn one_size_is_an_ordinary_cache() {
        let sizes = BlockSizes::new(&[64 << 10]).unwrap();
        assert_eq!(missing(&sizes, 100..200, &[]), [kib(64..256)]);
        assert_eq!(blocks(&sizes, 64..256), [(64, 64), (128, 64), (192, 64)]);
    }

    proptest! {
        /// Missing intervals are exactly the uncovered smallest blocks, and greedy blocks tile
        /// them.
        #[test]
        fn blocks_tile_exactly_what_is_missing(
            start in 0u64..300, len in 1u64..300,
            cached in proptest::collection::vec((0u64..40, 0u8..4), 0..12),
        ) {
            let sizes = BlockSizes::default();
            let mut units = [false; 64 * 16];
            let mut ends = vec![None; units.len()];
            for (at, class) in cached {
                let size = sizes.sectors(Class(class));
                let begin = at * 16 / size * size;
                let range = begin as usize..(begin + size) as usize;
                if units[range.clone()].iter().any(|&taken| taken) {
                    continue;
                }
                units[range.clone()].fill(true);
                ends[range].fill(Some(begin + size));
            }
            let mut intervals = Vec::new();
            let wanted = start..start + len;
            missing_intervals(&sizes, &wanted, |at| ends[at as usize], &mut intervals);
            let mut tiled = units;
            let blocks = intervals.iter().flat_map(|interval| greedy_blocks(&sizes, interval));
            for (begin, class) in blocks {
                let size = sizes.sectors(class);
                prop_assert!(begin.is_multiple_of(size));
                for sector in begin..begin + size {
                    prop_assert!(!std::mem::replace(&mut tiled[sector as usize], true));
                }
            }
            let rounded = sizes.round_out(&(start..start + len));
            for sector in 0..tiled.len() as u64 {
                let expected = units[sector as usize] || rounded.contains(&sector);
                prop_assert_eq!(tiled[sector as usize], expected);
            }
        }
    }
}
