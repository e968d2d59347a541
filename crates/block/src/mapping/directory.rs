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
//! Invariants: the sectors of two blocks never overlap; a dirty sector is valid; `dirty` holds
//! exactly the blocks with dirty sectors.

mod groups;
mod order;
mod restore;
mod sectors;

use std::collections::BTreeMap;
use std::ops::Range;

use floe_policy::{Access, Eviction, Lru, Slot};

use crate::bits::Bits;
use crate::evict::Evict;
use crate::geometry::{BlockSizes, Class, Extent, Sectors, VolumeId};
use crate::mapping::index::Index;
use crate::mapping::runs::Runs;
use order::Order;

/// Marks the absence of a slot or a group.
const NONE: u32 = u32::MAX;

/// Arrays of blocks grow by a sixteenth, not by doubling: unused metadata is memory taken from the
/// user's data.
const GROWTH_SHARE: usize = 16;

/// A block, by its slot.
pub(crate) type Block = Slot;

/// A group that still has room.
#[derive(Debug, Clone, Copy)]
struct Open {
    group: u32,
    taken: u16,
}

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
    sizes: BlockSizes,
    /// By slot: the extent of a block, and its place in smallest blocks from the start of the
    /// shard's space.
    extents: Vec<Extent>,
    places: Vec<u32>,
    slots: Runs,
    index: Index,
    /// Blocks of each class at present.
    live: Vec<u64>,
    block_order: Order,
    /// By group: the first slot of its blocks.
    first_slots: Vec<u32>,
    group_limit: u32,
    free_groups: Vec<u32>,
    group_order: Lru,
    open: Vec<Option<Open>>,
    valid: Bits,
    dirty_bits: Bits,
    dirty: BTreeMap<Extent, Block>,
    /// A bit for each smallest block that was fetched ahead and not read since; `None` without
    /// fetching ahead.
    ahead: Option<Bits>,
}

impl Directory {
    /// Returns an empty directory over `sectors` of cache space; a rest smaller than a group at the
    /// end is unused.
    pub(crate) fn new(sizes: BlockSizes, sectors: u64, evict: &Evict) -> Self {
        let group_limit = sectors / sizes.largest();
        let used = group_limit * sizes.largest();
        let units = used / sizes.smallest();
        assert!(
            units < u64::from(NONE),
            "a shard holds fewer than 2^32 smallest blocks, not {units}"
        );
        let classes = sizes.count();
        Self {
            extents: Vec::new(),
            places: Vec::new(),
            slots: Runs::default(),
            index: Index::default(),
            live: vec![0; classes],
            block_order: Order::new(evict, units),
            first_slots: Vec::new(),
            group_limit: group_limit as u32,
            free_groups: Vec::new(),
            group_order: Lru::default(),
            open: vec![None; classes],
            valid: Bits::new(used),
            dirty_bits: Bits::new(used),
            dirty: BTreeMap::new(),
            ahead: evict.fetches_ahead().map(|_| Bits::new(units)),
            sizes,
        }
    }

    /// Returns whether groups can differ in block size, so that they need an order.
    fn grouped(&self) -> bool {
        self.sizes.count() > 1
    }

    fn units_per_group(&self) -> u32 {
        (self.sizes.largest() / self.sizes.smallest()) as u32
    }

    fn group(&self, block: Block) -> u32 {
        self.places[block.index()] / self.units_per_group()
    }

    fn class(&self, block: Block) -> Class {
        let Sectors { start, end } = self.sectors(block);
        self.sizes.class(end - start)
    }

    /// Returns the block that covers a sector. Sizes are tried from the smallest, as in Algorithm
    /// 1.
    #[inline]
    pub(crate) fn find(&self, volume: VolumeId, sector: u64) -> Option<Block> {
        for class in self.sizes.classes().filter(|class| self.live[class.0 as usize] > 0) {
            let size = self.sizes.sectors(class);
            let extent = Extent::new(volume, sector & !(size - 1), size);
            let found =
                self.index.find(extent.hash(), |slot| self.extents[slot as usize] == extent);
            if found.is_some() {
                return found.map(Slot);
            }
        }
        None
    }

    pub(crate) fn volume(&self, block: Block) -> VolumeId {
        self.extents[block.index()].volume()
    }

    /// Returns whether a slot has a block.
    pub(crate) fn is_live(&self, slot: Block) -> bool {
        let Some(extent) = self.extents.get(slot.index()) else { return false };
        self.index.find(extent.hash(), |other| self.extents[other as usize] == *extent)
            == Some(slot.0)
    }

    /// Returns the sectors of its volume that a block holds.
    #[inline]
    pub(crate) fn sectors(&self, block: Block) -> Sectors {
        self.extents[block.index()].sectors()
    }

    /// Returns the sectors of the shard's space on the cache device that hold a run of a block.
    #[inline]
    pub(crate) fn cache_sectors(&self, block: Block, run: &Sectors) -> Range<u64> {
        let (sectors, at) = (self.sectors(block), self.places[block.index()]);
        debug_assert!(sectors.start <= run.start && run.end <= sectors.end);
        let start = u64::from(at) * self.sizes.smallest() + (run.start - sectors.start);
        start..start + (run.end - run.start)
    }

    /// Promotes a block and its group.
    #[inline]
    pub(crate) fn touch(&mut self, block: Block) {
        let (extents, sizes) = (&self.extents, &self.sizes);
        self.block_order.touch(block, |block| arrival(sizes, extents[block.index()]));
        if self.grouped() {
            self.group_order.access(Slot(self.group(block)));
        }
    }

    /// Moves a block that cannot be evicted behind others in the order.
    pub(crate) fn spare(&mut self, block: Block) {
        let (extents, sizes) = (&self.extents, &self.sizes);
        self.block_order.spare(block, |block| arrival(sizes, extents[block.index()]));
        if self.grouped() {
            self.group_order.access(Slot(self.group(block)));
        }
    }

    /// Returns the number of blocks.
    pub(crate) fn len(&self) -> usize {
        self.block_order.len()
    }

    /// Returns the size of all blocks in smallest blocks.
    pub(crate) fn smallest_blocks(&self) -> u64 {
        let classes = self.sizes.classes().zip(&self.live);
        classes.map(|(class, live)| live * self.sizes.sectors(class) / self.sizes.smallest()).sum()
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
        let extent = Extent::new(volume, start, self.sizes.sectors(class));
        let Origin { in_a_row, ahead } = origin;
        let access = Access { in_a_row, ahead, ..arrival(&self.sizes, extent) };
        if let Room::Replace(block) = room {
            self.unmap(block);
            self.extents[block.index()] = extent;
            self.map(block, class);
            // The new block is inserted into the order anew: an order that does not promote would
            // evict it next otherwise.
            self.block_order.remove(block);
            self.block_order.insert(block, &access);
            if self.grouped() {
                self.group_order.access(Slot(self.group(block)));
            }
            return block;
        }
        if let Room::Empty(group) = room {
            self.empty(group);
        }
        let (group, number) = self.take_from_open_group(class);
        let block = Slot(self.first_slots[group as usize] + u32::from(number));
        let units = (self.sizes.sectors(class) / self.sizes.smallest()) as u32;
        self.extents[block.index()] = extent;
        self.places[block.index()] = group * self.units_per_group() + u32::from(number) * units;
        self.map(block, class);
        self.block_order.insert(block, &access);
        if self.grouped() {
            self.group_order.access(Slot(group));
        }
        block
    }

    /// Makes the arrays cover every slot in use.
    fn reserve_slots(&mut self) {
        let end = self.slots.end() as usize;
        if end > self.extents.len() {
            let nothing = Extent::new(VolumeId(0), 0, 1);
            if reserve_by_share(&mut self.extents, end) {
                // policies may copy all they have
                self.block_order.reserve(self.extents.capacity());
            }
            self.extents.resize(end, nothing);
            reserve_by_share(&mut self.places, end);
            self.places.resize(end, NONE);
        }
    }

    fn map(&mut self, block: Block, class: Class) {
        let extents = &self.extents;
        self.index.insert(block.0, |slot| extents[slot as usize].hash());
        self.live[class.0 as usize] += 1;
        debug_assert!(
            !self.valid.any(self.cache_sectors(block, &self.sectors(block))),
            "new blocks are empty"
        );
    }

    fn unmap(&mut self, block: Block) {
        assert!(!self.is_dirty(block), "a dirty block was about to be dropped");
        let kept = self.cache_sectors(block, &self.sectors(block));
        self.valid.clear(kept);
        self.set_ahead(block, &self.sectors(block), false);
        let class = self.class(block);
        self.live[class.0 as usize] -= 1;
        let extents = &self.extents;
        self.index.remove(block.0, |slot| extents[slot as usize].hash());
    }

    /// Returns the number of blocks of each class.
    pub(crate) fn live(&self) -> impl Iterator<Item = u64> + '_ {
        self.live.iter().copied()
    }

    /// Returns the bytes of memory held for blocks and groups, without the two bits a sector.
    pub(crate) fn block_metadata_bytes(&self) -> u64 {
        let bytes = self.extents.capacity() * size_of::<Extent>()
            + self.places.capacity() * size_of::<u32>()
            + self.first_slots.capacity() * size_of::<u32>()
            + self.free_groups.capacity() * size_of::<u32>()
            + self.block_order.memory_bytes()
            + self.group_order.memory_bytes()
            + self.index.memory_bytes()
            + self.dirty.len() * DIRTY_ENTRY_BYTES;
        bytes as u64
    }

    /// Checks the invariants of the module's header, slowly.
    pub(crate) fn check(&self) {
        let mut taken = std::collections::HashMap::new();
        let mut seen = 0;
        for group in 0..self.first_slots.len() as u32 {
            for block in self.blocks_of(group) {
                seen += 1;
                assert_eq!(self.find(self.volume(block), self.sectors(block).start), Some(block));
                for (number, sector) in self.sectors(block).enumerate() {
                    let other = taken.insert((self.volume(block), sector), block);
                    assert_eq!(other, None, "two blocks cover sector {sector}");
                    let kept = self.cache_sectors(block, &(sector..sector + 1));
                    assert_eq!(
                        kept.start,
                        self.cache_sectors(block, &self.sectors(block)).start + number as u64
                    );
                    assert!(!self.dirty_bits.any(kept.clone()) || self.valid.all(kept));
                }
                assert_eq!(
                    self.is_dirty(block),
                    self.dirty.contains_key(&self.extents[block.index()])
                );
            }
        }
        assert_eq!(seen, self.live().sum::<u64>());
        assert_eq!(seen, self.block_order.len() as u64);
        assert_eq!(
            self.dirty.values().filter(|&&block| self.is_dirty(block)).count(),
            self.dirty.len()
        );
    }
}

/// A B-tree's share of a key and value, its nodes half to wholly full.
const DIRTY_ENTRY_BYTES: usize = (size_of::<Extent>() + size_of::<Block>()) * 3 / 2;

/// Returns the description of a new block for its order: its hash, and its size in smallest blocks.
fn arrival(sizes: &BlockSizes, extent: Extent) -> Access {
    let Sectors { start, end } = extent.sectors();
    Access { weight: ((end - start) / sizes.smallest()) as u32, ..Access::new(extent.hash()) }
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
