//! The search for room for a new block while some volume has a share.
//!
//! The victim is the coldest block that may leave, if it has the wanted size, and otherwise the
//! coldest group whose blocks may all leave, as without shares. A search looks at a bounded number
//! of blocks and groups. Where it finds neither, the volume of the coldest block or one that is far
//! beyond its guaranteed part loses its coldest block of the wanted size.

use floe_policy::Access;

use super::order::VICTIMS_TRIED;
use super::shares::Shares;
use super::{Block, Blocks, Directory, NOBODY, Room};
use crate::geometry::{Class, VolumeId};

/// Maximum number of blocks in all groups that a search looks at.
const GROUP_BLOCKS_TRIED: usize = 1024;

/// Maximum number of groups that a volume which evicts only its own blocks looks at.
const OWN_GROUPS_TRIED: usize = 8;

/// A search for room for a new block while some volume has a share.
pub(super) struct RoomSearch<'a, F> {
    pub(super) directory: &'a mut Directory,
    pub(super) volume: VolumeId,
    pub(super) class: Class,
    /// The size of the new block in smallest blocks.
    pub(super) size: u64,
    /// Returns whether a block is in use, so that it cannot leave.
    pub(super) in_use: F,
}

impl<F: Fn(&Blocks, Block) -> bool> RoomSearch<'_, F> {
    /// Finds room for the new block, which `incoming` describes to the policy.
    pub(super) fn room(&mut self, incoming: &Access) -> Option<Room> {
        if !self.shares().is_beyond_most(self.volume, self.size) {
            if self.directory.groups.has_room(self.class) {
                return Some(Room::Free);
            }
            if let Some(filler) = self.coldest(NOBODY) {
                return Some(Room::Replace(filler));
            }
            if self.shares().is_any_beyond_guaranteed() {
                let room = self.room_of_all(incoming);
                if room.is_some() {
                    return room;
                }
            }
        }
        self.room_of_own()
    }

    /// Finds room among the blocks of all volumes that may leave for the new block.
    fn room_of_all(&mut self, incoming: &Access) -> Option<Room> {
        self.directory.blocks.shares.take_turn();
        let next = self.parked_victim().or_else(|| self.named_victim(incoming));
        if let Some(block) = next.filter(|block| self.fits(block)) {
            return Some(Room::Replace(block));
        }
        // Not a hotter block of the wanted size: cold blocks of other sizes would never leave.
        if let Some(group) = self.group() {
            return Some(Room::Empty(group));
        }
        let owner = next.map(|block| self.directory.blocks.volume(block));
        let room = owner.and_then(|owner| self.victim_of(owner)).or_else(|| {
            let lenders = self.shares().beyond_guaranteed();
            lenders.into_iter().find_map(|lender| self.victim_of(lender))
        });
        room.map(Room::Replace)
    }

    /// Returns the coldest block that may leave, of a volume that uses more than is guaranteed to
    /// it and whose coldest block is parked: the policy has evicted that before all that it orders.
    pub(super) fn parked_victim(&self) -> Option<Block> {
        self.shares().some_guaranteed().find_map(|volume| {
            let is_beyond = self.may_lose(volume, self.size);
            let coldest = self.shares().coldest_first(volume).next().filter(|_| is_beyond)?;
            if self.directory.order.is_parked(coldest) { self.next_of(volume) } else { None }
        })
    }

    /// Returns the block that the policy evicts next, of those that may leave. Where a part is
    /// guaranteed to its volume, it is the coldest of the volume instead. Parks blocks that must
    /// stay.
    fn named_victim(&mut self, incoming: &Access) -> Option<Block> {
        for _ in 0..VICTIMS_TRIED {
            let Directory { blocks, order, .. } = &mut *self.directory;
            let is_misfit =
                |block| blocks.volume(block) == NOBODY && blocks.class(block) != self.class;
            let in_use = |block| is_misfit(block) || (self.in_use)(blocks, block);
            let block = order.coldest(Some(incoming), in_use)?;
            if self.may_evict(block) {
                let owner = self.directory.blocks.volume(block);
                let is_guaranteed = self.shares().is_guaranteed(owner);
                let coldest = if is_guaranteed { self.next_of(owner) } else { None };
                return coldest.or(Some(block));
            }
            self.directory.order.park(block);
        }
        None
    }

    /// Finds a cold group that may be emptied.
    fn group(&mut self) -> Option<u32> {
        let Directory { blocks, groups, .. } = &*self.directory;
        let (mut found, mut spared, mut tried) = (None, Vec::new(), 0);
        for group in groups.coldest_first().take(VICTIMS_TRIED) {
            if tried >= GROUP_BLOCKS_TRIED {
                break;
            }
            let mut losses: Vec<(VolumeId, u64)> = Vec::new();
            for block in groups.blocks_of(group, blocks) {
                tried += 1;
                blocks.shares.note_look();
                let (volume, lost) = (blocks.volume(block), blocks.size(block));
                match losses.iter_mut().find(|(of, _)| *of == volume) {
                    Some((_, sum)) => *sum += lost,
                    None => losses.push((volume, lost)),
                }
            }
            if !losses.iter().all(|(of, lost)| self.may_lose(*of, *lost)) {
                spared.push(group);
            } else if groups.blocks_of(group, blocks).all(|block| self.is_idle(&block)) {
                found = Some(group);
                break;
            }
        }
        spared.into_iter().for_each(|group| self.directory.groups.promote(group));
        found
    }

    /// Finds room for a volume that may evict only its own blocks.
    fn room_of_own(&self) -> Option<Room> {
        if self.directory.is_within_most(self.volume) {
            if self.size > self.shares().most(self.volume) {
                return None;
            }
            if let Some(block) = self.coldest(self.volume) {
                return Some(Room::Replace(block));
            }
            let own = self.idle(self.volume).take(OWN_GROUPS_TRIED);
            let mut groups = own.map(|block| self.directory.group_of(block));
            if let Some(group) = groups.find(|&group| self.is_own(group)) {
                return Some(Room::Empty(group));
            }
            if self.class.0 > 0 {
                return None; // a smaller block may have a place
            }
        }
        let is_at_most = self.shares().is_beyond_most(self.volume, self.size);
        self.idle(self.volume).next().filter(|_| is_at_most).map(Room::GiveUp)
    }

    /// Returns whether a group has idle blocks of the new block's volume and filler blocks only,
    /// and whether the new block is within the volume's largest part once the group is empty.
    fn is_own(&self, group: u32) -> bool {
        let (blocks, mut freed) = (&self.directory.blocks, 0);
        for block in self.directory.blocks_of(group) {
            blocks.shares.note_look();
            let owner = blocks.volume(block);
            if owner == self.volume && self.is_idle(&block) {
                freed += blocks.size(block);
            } else if owner != NOBODY {
                return false;
            }
        }
        self.shares().used(self.volume) - freed + self.size <= self.shares().most(self.volume)
    }

    /// Returns the coldest idle block of a volume that may leave, of whichever class.
    fn next_of(&self, volume: VolumeId) -> Option<Block> {
        self.idle(volume).find(|&block| self.may_evict(block))
    }

    /// Returns the coldest idle block of a volume that has the wanted class, if it may leave.
    fn victim_of(&self, volume: VolumeId) -> Option<Block> {
        self.coldest(volume).filter(|&block| self.may_evict(block))
    }

    /// Returns the coldest idle block of a volume, or filler block, that has the wanted class.
    fn coldest(&self, volume: VolumeId) -> Option<Block> {
        self.idle(volume).find(|block| self.fits(block))
    }

    /// Returns the coldest blocks of a volume, or filler blocks, without those in use.
    pub(super) fn idle(&self, volume: VolumeId) -> impl Iterator<Item = Block> {
        let coldest = self.shares().coldest_first(volume).take(VICTIMS_TRIED);
        coldest.filter(move |block| self.is_idle(block))
    }

    fn is_idle(&self, block: &Block) -> bool {
        !(self.in_use)(&self.directory.blocks, *block)
    }

    fn fits(&self, block: &Block) -> bool {
        self.directory.blocks.class(*block) == self.class
    }

    /// Returns whether the new block may evict a block.
    pub(super) fn may_evict(&self, block: Block) -> bool {
        let blocks = &self.directory.blocks;
        self.may_lose(blocks.volume(block), blocks.size(block))
    }

    /// Returns whether a volume may lose blocks of the size `lost` to the new block.
    fn may_lose(&self, volume: VolumeId, lost: u64) -> bool {
        self.shares().may_lose(volume, lost, (self.volume, self.size))
    }

    pub(super) fn shares(&self) -> &Shares {
        &self.directory.blocks.shares
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::{Evict, Origin, ShardShare};
    use super::*;
    use crate::geometry::BlockSizes;

    /// Returns the start and class of the largest block up to `class` that covers a sector and no
    /// other block.
    pub(in super::super) fn fitting(
        directory: &Directory,
        volume: VolumeId,
        sector: u64,
        class: u8,
    ) -> (u64, Class) {
        let sizes = directory.blocks.sizes();
        let mut class = Class(class.min(sizes.count() as u8 - 1));
        loop {
            let start = sector & !(sizes.sectors(class) - 1);
            let mut sectors = start..start + sizes.sectors(class);
            if sectors.all(|sector| directory.blocks.find(volume, sector).is_none()) {
                return (start, class);
            }
            class.0 -= 1; // the smallest is free
        }
    }

    /// Makes a block as a shard does: smaller than `class` where there is no room for one. Returns
    /// whether it was made, and the most blocks that a search has looked at.
    pub(in super::super) fn make(
        directory: &mut Directory,
        volume: u16,
        sector: u64,
        class: u8,
    ) -> (bool, u64) {
        let id = VolumeId(volume);
        let (start, mut class) = fitting(directory, id, sector, class);
        let mut most = 0;
        loop {
            let before = directory.blocks.shares.looks.get();
            let room = directory.room(id, start, class, |_, _| false);
            most = most.max(directory.blocks.shares.looks.get() - before);
            match room {
                Some(Room::GiveUp(block)) => {
                    let within = directory.is_within_most(id);
                    directory.give_up(block);
                    if within {
                        return (false, most);
                    }
                }
                Some(room) => {
                    directory.allocate(id, start, class, room, Origin::default());
                    return (true, most);
                }
                None if class.0 == 0 => return (false, most),
                None => class.0 -= 1,
            }
        }
    }

    /// Volumes have all of a shard guaranteed, as blocks of 16 KiB, and one block more is there.
    /// Another volume, of which nothing is, wants blocks of 4 KiB.
    #[test]
    fn a_search_looks_at_as_few_blocks_in_a_large_shard() {
        const MOST_LOOKS: u64 = 2500;
        let sizes: BlockSizes = "4KiB,16KiB,64KiB".parse().unwrap();
        for evict in Evict::all() {
            for (units, volumes) in [(1 << 10, 8), (1 << 14, 8), (1 << 14, 256)] {
                let mut directory = Directory::new(sizes.clone(), units, &evict);
                let (mut most, mut sum) = (0, 0);
                let mut fill = |directory: &mut Directory, volume, at: u64, class| {
                    let (_, looks) = make(directory, volume, 16 * at, class);
                    most = most.max(looks);
                    sum += looks;
                };
                for at in 0..units / 4 / u64::from(volumes) {
                    (0..volumes).for_each(|volume| fill(&mut directory, volume, at, 1));
                }
                for volume in 0..volumes {
                    let last = u64::from(volume + 1 == volumes);
                    let guaranteed = units / u64::from(volumes) - 4 * last;
                    let share = ShardShare { guaranteed, most: u64::MAX };
                    directory.set_share(VolumeId(volume), share);
                }
                for at in 0..1000 {
                    fill(&mut directory, volumes, at, 0);
                    let volume = (at % u64::from(volumes)) as u16;
                    fill(&mut directory, volume, (1 << 20) + at, 1);
                }
                directory.check();
                assert!(most <= MOST_LOOKS, "{most}, {evict}, {units}");
                assert!(
                    sum / 2000 <= MOST_LOOKS / 4,
                    "{} on average, {evict}, {units}",
                    sum / 2000
                );
            }
        }
    }

    /// With all of a shard guaranteed, a volume that has blocks of other sizes only empties its own
    /// groups for the size that it needs. It gives up nothing in groups with blocks of others.
    #[test]
    fn a_volume_changes_the_sizes_of_its_blocks_within_its_guarantee() {
        let sizes: BlockSizes = "4KiB,16KiB,64KiB".parse().unwrap();
        for (from, is_possible) in [(1, false), (2, true)] {
            let mut directory = Directory::new(sizes.clone(), 128, &Evict::default());
            for volume in 0..2 {
                let share = ShardShare { guaranteed: 64, most: u64::MAX };
                directory.set_share(VolumeId(volume), share);
            }
            for at in 0..64 >> (2 * from) {
                (0..2).for_each(|volume| assert!(make(&mut directory, volume, 16 * at, from).0));
            }
            let makes = |at: u64| make(&mut directory, 0, (1 << 20) + at, 0).0 == is_possible;
            assert!((0..300).all(makes), "{from}");
            let used = [0, 1].map(|volume| directory.blocks.shares.used(VolumeId(volume)));
            assert!(used[0] > 48 && used[1] == 64, "{used:?}");
            directory.check();
        }
    }

    /// Returns the hits of two volumes that read blocks of 64 KiB, and then 4 KiB of each of these
    /// places. The reads are spread evenly; the shard has room for two thirds of the small blocks.
    fn hits_once_blocks_become_small(evict: &Evict, share: ShardShare) -> u64 {
        const UNITS: u64 = 2048;
        let sizes: BlockSizes = "4KiB,16KiB,64KiB".parse().unwrap();
        let mut directory = Directory::new(sizes, UNITS, evict);
        (0..2).for_each(|volume| directory.set_share(VolumeId(volume), share));
        let mut hits = 0;
        for step in 0..60_000 {
            let (volume, place) = ((step % 2) as u16, floe_policy::mix(step) % (UNITS * 3 / 4));
            let class = if step < 5000 { 2 } else { 0 };
            match directory.blocks.find(VolumeId(volume), 16 * place) {
                Some(block) => {
                    directory.touch(block);
                    hits += u64::from(step >= 5000);
                }
                None => drop(make(&mut directory, volume, 16 * place, class)),
            }
        }
        directory.check();
        hits
    }

    /// The parts that are guaranteed to alike volumes cost them no hits, though all blocks are
    /// large at first.
    #[test]
    fn large_blocks_make_room_for_small_ones_whatever_is_guaranteed() {
        for evict in Evict::all() {
            let without = hits_once_blocks_become_small(&evict, ShardShare::NONE);
            assert!(without > 25_000, "{evict}: {without}");
            for guaranteed in [1, 512, 922] {
                let share = ShardShare { guaranteed, most: u64::MAX };
                let with = hits_once_blocks_become_small(&evict, share);
                assert!(100 * with >= 97 * without, "{evict}, {guaranteed}: {with} of {without}");
            }
        }
    }
}
