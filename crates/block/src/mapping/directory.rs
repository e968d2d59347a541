//! The directory: blocks, their groups, and the two-level order of eviction.
//!
//! The cache space is divided into *groups* as large as the largest block; a group holds blocks of
//! one size, side by side (AdaCache, section III.C). A policy orders all blocks ([`order`]), and an
//! LRU orders all groups: a touch is reported to the first and promotes the group in the second.
//! Room for a block is taken in the open group of its size, or else in a free group. Without
//! either, the block replaces the coldest one, which the policy evicts, if that has the same size.
//! Otherwise the coldest group is emptied (section III.D). The policy treats the blocks of an
//! emptied group as removed: they leave no ghosts.
//!
//! A block is removed only with its place: by replacement or with its whole group. Losing its data
//! (a trim, a failed write) merely clears its valid bits, so groups never have holes.
//!
//! A block is a slot in flat arrays: 12 bytes here, with LRU 8 for its place in the order, and 6 to
//! 7 in the hash index. A group takes 4 bytes, and 8 for its order. Each sector has a valid and a
//! dirty bit. With one block size no choice between groups is needed, and their order does not
//! exist.
//!
//! [`Blocks`] knows where each block is and the state of its sectors, [`Groups`] where there is
//! room, and [`Order`] which block is the next victim. Here they are kept in step.
//!
//! Invariants: the sectors of two blocks never overlap; every block in the order is mapped, and in
//! a group.

mod blocks;
mod groups;
mod order;
mod restore;

use floe_policy::{Access, Slot};

use crate::evict::Evict;
use crate::geometry::{BlockSizes, Class, Extent, Sectors, VolumeId};
pub(crate) use blocks::Blocks;
use blocks::arrival;
use groups::Groups;
use order::{Order, VICTIMS_TRIED};

/// Arrays of blocks grow by a sixteenth, not by doubling: unused metadata is memory taken from the
/// user's data.
const GROWTH_SHARE: usize = 16;

/// A block, by its slot.
pub(crate) type Block = Slot;

/// The room found for a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// There is free room.
    Free,
    /// Room is made by replacing this block, which has the wanted size.
    Replace(Block),
    /// Room is made by emptying this group.
    Empty(u32),
}

/// The origin of a new block.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Origin {
    /// Its number in a stream of smallest blocks, 0 outside a stream.
    pub(crate) in_a_row: u64,
    /// The block is fetched before a client asks for it.
    pub(crate) ahead: bool,
}

/// The mapping of one shard.
#[derive(Debug)]
pub(crate) struct Directory {
    pub(crate) blocks: Blocks,
    groups: Groups,
    order: Order,
}

impl Directory {
    /// Returns an empty directory over `sectors` of cache space; a rest smaller than a group at the
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
            order: Order::new(evict, units),
            blocks: Blocks::new(sizes, used, evict.fetches_ahead().is_some()),
        }
    }

    /// Promotes a block and its group.
    #[inline]
    pub(crate) fn touch(&mut self, block: Block) {
        self.order.touch(block, |block| self.blocks.access(block));
        self.groups.touch(self.blocks.place(block));
    }

    /// Moves a block that cannot be evicted behind others in the order.
    pub(crate) fn spare(&mut self, block: Block) {
        self.order.spare(block, |block| self.blocks.access(block));
        self.groups.touch(self.blocks.place(block));
    }

    /// Returns the number of blocks.
    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    /// Returns the size of all blocks in smallest blocks.
    pub(crate) fn smallest_blocks(&self) -> u64 {
        let sizes = self.blocks.sizes();
        let classes = sizes.classes().zip(self.blocks.live());
        classes.map(|(class, live)| live * sizes.sectors(class) / sizes.smallest()).sum()
    }

    /// Returns all blocks, the coldest first.
    pub(crate) fn by_heat(&self) -> Vec<Block> {
        self.order.by_heat()
    }

    /// Returns whether a smallest block could only be made in place of another.
    pub(crate) fn is_full(&self) -> bool {
        !self.groups.has_room(Class(0))
    }

    /// Returns the block that a smallest one would evict; `None` while there is room.
    pub(crate) fn coldest_if_full(&mut self) -> Option<Block> {
        if !self.is_full() {
            return None;
        }
        self.order.coldest(None, |_| false)
    }

    /// Finds room for a block of `class` that begins at a sector, without taking a block for which
    /// `in_use` holds. Returns `None` when everything cold is in use.
    pub(crate) fn room(
        &mut self,
        volume: VolumeId,
        start: u64,
        class: Class,
        in_use: impl Fn(VolumeId, &Sectors) -> bool,
    ) -> Option<Room> {
        if self.groups.has_room(class) {
            return Some(Room::Free);
        }
        let blocks = &self.blocks;
        let incoming =
            arrival(blocks.sizes(), Extent::new(volume, start, blocks.sizes().sectors(class)));
        let in_use = |block: Block| in_use(blocks.volume(block), &blocks.sectors(block));
        match self.order.coldest(Some(&incoming), in_use) {
            Some(block) if blocks.class(block) == class => Some(Room::Replace(block)),
            _ => {
                let idle = |group: &u32| !self.groups.blocks_of(*group, blocks).any(in_use);
                let coldest = self.groups.coldest_first().take(VICTIMS_TRIED);
                { coldest }.find(idle).map(Room::Empty)
            }
        }
    }

    /// Returns the blocks that are evicted to make this room.
    pub(crate) fn victims(&self, room: Room) -> impl Iterator<Item = Block> + '_ {
        let (block, group) = match room {
            Room::Free => (None, None),
            Room::Replace(block) => (Some(block), None),
            Room::Empty(group) => (None, Some(group)),
        };
        block.into_iter().chain(group.into_iter().flat_map(|group| self.blocks_of(group)))
    }

    /// Makes a block, without valid sectors, in room that [`Directory::room`] has just found.
    ///
    /// # Panics
    /// When a victim is dirty, or the block overlaps another.
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
                self.blocks.unmap(block);
                // The new block is inserted into the order anew: an order that does not promote
                // would evict it next otherwise.
                self.order.remove(block);
                self.groups.touch(self.blocks.place(block));
                block
            }
            Room::Empty(_) | Room::Free => {
                if let Room::Empty(group) = room {
                    self.empty(group);
                }
                let room = self.groups.take(class, self.blocks.sizes());
                self.reserve_slots();
                self.blocks.put(room.block, room.place);
                room.block
            }
        };
        self.blocks.map(block, extent);
        self.order.insert(block, &access);
        block
    }

    /// Makes the arrays cover every slot in use.
    fn reserve_slots(&mut self) {
        if let Some(slots) = self.blocks.reserve(self.groups.slots_end()) {
            self.order.reserve(slots); // policies may copy all they have
        }
    }

    /// Returns the blocks of a group.
    pub(crate) fn blocks_of(&self, group: u32) -> impl Iterator<Item = Block> + use<> {
        self.groups.blocks_of(group, &self.blocks)
    }

    /// Removes every block of a group and makes the group free.
    pub(crate) fn empty(&mut self, group: u32) {
        let class = self.groups.class(group, &self.blocks);
        for block in self.blocks_of(group) {
            self.blocks.unmap(block);
            self.order.remove(block);
        }
        self.groups.free(group, class, self.blocks.sizes());
    }

    /// Drops all data of a volume, dirty or not, and returns its groups that now hold no data at
    /// all. Its blocks in other groups stay, empty, until they are the coldest, as after a trim.
    /// They do no harm to a volume that gets the same id: they spare it an allocation.
    pub(crate) fn drop_volume(&mut self, volume: VolumeId) -> Vec<u32> {
        let mut emptied = Vec::new();
        for group in 0..self.groups.count() {
            let (mut was_in, mut holds_data) = (false, false);
            for block in self.blocks_of(group) {
                let sectors = self.blocks.sectors(block);
                if self.blocks.volume(block) == volume {
                    self.blocks.set_invalid(block, &sectors);
                    was_in = true;
                }
                holds_data |= self.blocks.has_valid(block, &sectors);
            }
            if was_in && !holds_data {
                emptied.push(group);
            }
        }
        emptied
    }

    /// Returns the blocks of a volume, found by a walk over all blocks.
    pub(crate) fn blocks_of_volume(&self, volume: VolumeId) -> Vec<Block> {
        let blocks = (0..self.groups.count()).flat_map(|group| self.blocks_of(group));
        blocks.filter(|&block| self.blocks.volume(block) == volume).collect()
    }

    /// Returns the bytes of memory held for blocks and groups, without the two bits a sector.
    pub(crate) fn block_metadata_bytes(&self) -> u64 {
        (self.blocks.memory_bytes() + self.groups.memory_bytes() + self.order.memory_bytes()) as u64
    }

    /// Checks the invariants of the module's header, slowly.
    pub(crate) fn check(&self) {
        self.blocks.check((0..self.groups.count()).flat_map(|group| self.blocks_of(group)));
        assert_eq!(self.len() as u64, self.blocks.live().sum::<u64>());
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
