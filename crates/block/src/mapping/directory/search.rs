//! The search for room for a new block while some volume has a share.
//!
//! A volume takes groups of its own first, as many as its share has, while there are free ones, and
//! then free places. If groups are guaranteed to it and it has not all of its guaranteed part, it
//! empties cold ones without dirty blocks. Then the victim is the coldest block that may leave, if
//! it has the wanted size, and otherwise the coldest group whose blocks may all leave, as without
//! shares. A volume whose own group has the coldest block empties its own coldest group instead. A
//! search looks at a bounded number of blocks and groups. Where it finds none, the volume of the
//! coldest block or one that is far beyond its guaranteed part loses its coldest block of the
//! wanted size.

use floe_policy::Access;

use super::order::VICTIMS_TRIED;
use super::shares::{Shares, claims_group, own_fillers, wait_with_claims};
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
        if self.has_own_room() {
            return Some(Room::Free);
        }
        if let Some(filler) = self.own_filler() {
            return Some(Room::Replace(filler));
        }
        if self.has_common_room() {
            return Some(Room::Free);
        }
        if !self.shares().is_beyond_most(self.volume, self.size) {
            if let Some(filler) = self.coldest(NOBODY) {
                return Some(Room::Replace(filler));
            }
            let is_clean = |blocks: &Blocks, block| !blocks.is_dirty(block);
            if claims_group(&mut self.directory.blocks.shares, self.volume) {
                if let Some(group) = self.group(is_clean) {
                    return Some(Room::Empty(group));
                }
                wait_with_claims(&mut self.directory.blocks.shares, self.volume);
            }
            if self.shares().are_beyond_guaranteed(1) {
                let room = self.room_of_all(incoming);
                if room.is_some() {
                    return room;
                }
            }
        }
        self.room_of_own()
    }

    /// Returns whether there is room without an eviction.
    pub(super) fn has_free_room(&self) -> bool {
        self.has_own_room() || self.own_filler().is_some() || self.has_common_room()
    }

    /// Returns a filler block of the wanted size in the volume's own groups. The volume uses no
    /// more with a block in its place, so it may be at its largest part.
    fn own_filler(&self) -> Option<Block> {
        let fillers = own_fillers(self.shares(), self.volume).take(VICTIMS_TRIED);
        let found = { fillers }.find(|block| self.fits(block) && self.is_idle(block));
        found.filter(|_| self.directory.is_within_most(self.volume))
    }

    /// Returns whether there is room in an own group, or a free group to be one.
    fn has_own_room(&self) -> bool {
        let groups = &self.directory.groups;
        let is_open = groups.is_open(self.volume, self.class);
        is_open && self.directory.is_within_most(self.volume)
            || self.shares().lacks_free_group(self.volume) && groups.has_free()
    }

    /// Returns whether there is room in a common group, which the volume may use.
    fn has_common_room(&self) -> bool {
        let has_room = self.directory.groups.has_room(self.class);
        has_room && !self.shares().is_beyond_most(self.volume, self.size)
    }

    /// Returns whether the volume may replace a filler block in a common group.
    pub(super) fn has_common_filler(&self) -> bool {
        let is_at_most = self.shares().is_beyond_most(self.volume, self.size);
        !is_at_most && self.coldest(NOBODY).is_some()
    }

    /// Finds room among the blocks of all volumes that may leave for the new block.
    fn room_of_all(&mut self, incoming: &Access) -> Option<Room> {
        self.directory.blocks.shares.take_turn();
        let next = self.parked_victim().or_else(|| self.named_victim(incoming));
        if let Some(block) = next.filter(|block| self.fits(block)) {
            return Some(Room::Replace(block));
        }
        // Not a hotter block of the wanted size: cold blocks of other sizes would never leave.
        let own = next.filter(|&block| self.is_in_own(block)).and_then(|_| self.own_group());
        if let Some(group) = own.or_else(|| self.group(|_, _| true)) {
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

    /// Finds a cold group that may be emptied, of those whose blocks all `suit`.
    fn group(&mut self, suits: impl Fn(&Blocks, Block) -> bool) -> Option<u32> {
        let Directory { blocks, groups, .. } = &*self.directory;
        let (mut found, mut spared, mut tried) = (None, Vec::new(), 0);
        for group in groups.coldest_first().take(VICTIMS_TRIED) {
            if tried >= GROUP_BLOCKS_TRIED {
                break;
            }
            let losses = losses(self.directory, group);
            let looks = groups.blocks_of(group, blocks).inspect(|_| blocks.shares.note_look());
            tried += looks.count();
            let is_kept = blocks.shares.is_kept_from(self.volume, group);
            if is_kept || !losses.iter().all(|(of, lost)| self.may_lose(*of, *lost)) {
                spared.push(group);
            } else if groups
                .blocks_of(group, blocks)
                .all(|block| self.is_idle(&block) && suits(blocks, block))
            {
                found = Some(group);
                break;
            }
        }
        spared.into_iter().for_each(|group| self.directory.groups.promote(group));
        found
    }

    /// Finds room for a volume that may evict only its own blocks.
    pub(super) fn room_of_own(&self) -> Option<Room> {
        if self.directory.is_within_most(self.volume) {
            if self.size > self.shares().most(self.volume) {
                return None;
            }
            let has_use = |block: &Block| self.fits(block) || self.is_in_own(*block);
            let coldest = self.idle(self.volume).find(has_use);
            if coldest.is_some_and(|block| !self.fits(&block))
                && let Some(group) = self.own_group()
            {
                return Some(Room::Empty(group));
            }
            if let Some(block) = self.coldest(self.volume) {
                return Some(Room::Replace(block));
            }
            let own = self.idle(self.volume).take(OWN_GROUPS_TRIED);
            let mut groups = own.map(|block| self.directory.group_of(block));
            if let Some(group) = groups.find(|&group| self.has_own_only(group)) {
                return Some(Room::Empty(group));
            }
            if self.class.0 > 0 {
                return None; // a smaller block may have a place
            }
        }
        let is_at_most = self.shares().is_beyond_most(self.volume, self.size);
        let mut idle = self.idle(self.volume);
        let common = idle.find(|&block| !self.is_in_own(block));
        common.or_else(|| self.idle(self.volume).next()).filter(|_| is_at_most).map(Room::GiveUp)
    }

    /// Returns the coldest group that is the volume's own and has no block in use.
    fn own_group(&self) -> Option<u32> {
        let is_idle = |group: &u32| {
            self.shares().note_look();
            self.directory.blocks_of(*group).all(|block| self.is_idle(&block))
        };
        self.shares().own_groups(self.volume).take(VICTIMS_TRIED).find(is_idle)
    }

    /// Returns whether a block is in a group that is the volume's own.
    fn is_in_own(&self, block: Block) -> bool {
        self.shares().owner(self.directory.group_of(block)) == self.volume
    }

    /// Returns whether a group has idle blocks of the new block's volume and filler blocks only,
    /// and whether the new block is within the volume's largest part once the group is empty.
    fn has_own_only(&self, group: u32) -> bool {
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
        self.idle(volume).find(|block| self.fits(block) && self.may_enter(*block))
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

    /// Returns whether the volume may put a block in the place of another one.
    fn may_enter(&self, block: Block) -> bool {
        !self.shares().is_kept_from(self.volume, self.directory.group_of(block))
    }

    /// Returns whether the new block may evict a block. In another volume's own group the free
    /// places are lost with it, as the group becomes a common one.
    pub(super) fn may_evict(&self, block: Block) -> bool {
        let (directory, group) = (&*self.directory, self.directory.group_of(block));
        let is_of_another = self.shares().is_of_another(group, self.volume);
        let free = || if is_of_another { free_in(directory, group) } else { 0 };
        let (volume, size) = (directory.blocks.volume(block), directory.blocks.size(block));
        self.may_enter(block) && self.may_lose(volume, size + free())
    }

    /// Returns whether a volume may lose blocks of the size `lost` to the new block.
    fn may_lose(&self, volume: VolumeId, lost: u64) -> bool {
        self.shares().may_lose(volume, lost, (self.volume, self.size))
    }

    pub(super) fn shares(&self) -> &Shares {
        &self.directory.blocks.shares
    }
}

/// Returns a search for a smallest block of a volume, with no block in use.
pub(super) fn search_smallest(
    directory: &mut Directory,
    volume: VolumeId,
) -> RoomSearch<'_, impl Fn(&Blocks, Block) -> bool + use<>> {
    let (class, in_use) = (Class(0), |_: &Blocks, _: Block| false);
    RoomSearch { directory, volume, class, size: 1, in_use }
}

/// Returns the volumes that lose blocks if a group is emptied, and the size of what each loses:
/// the whole group if it is the volume's own.
pub(super) fn losses(directory: &Directory, group: u32) -> Vec<(VolumeId, u64)> {
    let blocks = &directory.blocks;
    let owner = blocks.shares.owner(group);
    if owner != NOBODY {
        return vec![(owner, directory.groups.units().into())];
    }
    let mut losses: Vec<(VolumeId, u64)> = Vec::new();
    for block in directory.blocks_of(group) {
        let (volume, lost) = (blocks.volume(block), blocks.size(block));
        match losses.iter_mut().find(|(of, _)| *of == volume) {
            Some((_, sum)) => *sum += lost,
            None => losses.push((volume, lost)),
        }
    }
    losses
}

/// Returns the size of what is in a volume's own group without a block of the volume.
pub(super) fn free_in(directory: &Directory, group: u32) -> u64 {
    let blocks = &directory.blocks;
    let owner = blocks.shares.owner(group);
    let owned = directory.blocks_of(group).filter(|&block| blocks.volume(block) == owner);
    let owned: u64 = owned.map(|block| blocks.size(block)).sum();
    u64::from(directory.groups.units()) - owned
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::{Evict, Origin, ShardShare, is_full_for};
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

    /// Applies changed shares, in as many steps as that takes.
    pub(in super::super) fn apply_shares(directory: &mut Directory) {
        while directory.blocks.shares.are_new() {
            directory.has_shares();
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
    /// groups for the size that it needs, however the volumes have filled the shard in turn.
    #[test]
    fn a_volume_changes_the_sizes_of_its_blocks_within_its_guarantee() {
        let sizes: BlockSizes = "4KiB,16KiB,64KiB".parse().unwrap();
        for from in [1, 2] {
            let mut directory = Directory::new(sizes.clone(), 128, &Evict::default());
            for volume in 0..2 {
                let share = ShardShare { guaranteed: 64, most: u64::MAX };
                directory.set_share(VolumeId(volume), share);
            }
            for at in 0..64 >> (2 * from) {
                (0..2).for_each(|volume| assert!(make(&mut directory, volume, 16 * at, from).0));
            }
            assert!((0..300).all(|at| make(&mut directory, 0, (1 << 20) + at, 0).0), "{from}");
            let used = [0, 1].map(|volume| directory.blocks.shares.used(VolumeId(volume)));
            assert_eq!(used, [64, 64]);
            let last = (0..64)
                .filter(|at| directory.blocks.find(VolumeId(0), (1 << 20) + 299 - at).is_some());
            assert_eq!(last.count(), 64, "all of its part has small blocks");
            directory.check();
        }
    }

    /// Returns a directory of 16 groups whose volume 0 has ten of its own, which all of its share
    /// fits in, each with as many filler blocks as blocks. Volume 2 has the others.
    fn with_fillers_in_own_groups(evict: &Evict) -> Directory {
        let mut directory = Directory::new("4KiB,16KiB,64KiB".parse().unwrap(), 256, evict);
        assert!((0..96).all(|at| make(&mut directory, 2, at, 0).0));
        for at in 0..80 {
            (0..2).for_each(|volume| assert!(make(&mut directory, volume, at, 0).0));
        }
        let share = ShardShare { guaranteed: 160, most: 160 };
        directory.set_share(VolumeId(0), share);
        apply_shares(&mut directory);
        directory.drop_volume(VolumeId(1));
        directory.set_share(VolumeId(0), share);
        apply_shares(&mut directory);
        assert_eq!(directory.blocks.shares.used(VolumeId(0)), 160);
        assert_eq!(directory.blocks.shares.own_groups(VolumeId(0)).count(), 10);
        directory.check();
        directory
    }

    fn cached(directory: &Directory, volume: u16, sectors: std::ops::Range<u64>) -> usize {
        let is_cached = |sector: &u64| directory.blocks.find(VolumeId(volume), *sector).is_some();
        sectors.filter(is_cached).count()
    }

    /// A volume at its largest part puts blocks into the free places of its own groups.
    #[test]
    fn a_volume_at_its_largest_part_uses_all_of_its_own_groups() {
        for evict in Evict::all() {
            let mut directory = with_fillers_in_own_groups(&evict);
            assert!((1000..1080).all(|at| make(&mut directory, 0, at, 0).0), "{evict}");
            assert_eq!(cached(&directory, 0, 0..80) + cached(&directory, 0, 1000..1080), 160);
            assert!((2000..2010).all(|at| make(&mut directory, 0, at, 0).0), "{evict}");
            assert_eq!(cached(&directory, 0, 2000..2010), 10, "{evict}");
            assert!(!evict.is_lru() || cached(&directory, 0, 0..10) == 0, "the coldest leave");
            assert_eq!(cached(&directory, 2, 0..96), 96, "{evict}");
            directory.check();
        }
    }

    /// Free places in the own groups of an idle volume are no candidates of others, which evict
    /// in the order of their policy.
    #[test]
    fn free_places_in_own_groups_do_not_disturb_others() {
        let mut directory = with_fillers_in_own_groups(&Evict::default());
        for at in 0..96 {
            let coldest = directory.coldest_if_full(VolumeId(2)).unwrap();
            assert_eq!(directory.blocks.find(VolumeId(2), at), Some(coldest));
            assert!(make(&mut directory, 2, 1000 + at, 0).0);
            assert_eq!(cached(&directory, 2, 0..96), 95 - at as usize, "one leaves");
        }
        assert_eq!(cached(&directory, 0, 0..80), 80);
        directory.set_share(VolumeId(2), ShardShare { guaranteed: 96, most: 96 });
        apply_shares(&mut directory);
        assert!(!directory.may_make(VolumeId(3)), "there is no room");
        assert!(!make(&mut directory, 3, 0, 0).0);
        directory.check();
    }

    /// A volume below its guarantee takes free places first. It empties no group with a dirty
    /// block to have one of its own.
    #[test]
    fn a_group_is_claimed_where_nothing_is_free_or_dirty_in_it() {
        let mut directory = Directory::new("4KiB,64KiB".parse().unwrap(), 64, &Evict::default());
        assert!((0..60).all(|at| make(&mut directory, 1, at, 0).0));
        directory.set_share(VolumeId(0), ShardShare { guaranteed: 32, most: u64::MAX });
        assert!((0..4).all(|at| make(&mut directory, 0, at, 0).0));
        assert_eq!(cached(&directory, 1, 0..60), 60, "it had the free places");
        let room = |directory: &mut Directory| {
            directory.room(VolumeId(0), 4, Class(0), |_, _| false).unwrap()
        };

        for at in [0, 16, 32] {
            let block = directory.blocks.find(VolumeId(1), at).unwrap();
            assert_eq!(room(&mut directory), Room::Empty(directory.group_of(block)));

            directory.blocks.set_dirty(block, &(at..at + 1));
        }
        let clean = directory.blocks.find(VolumeId(1), 1).unwrap();
        directory.blocks.find(VolumeId(1), 0).into_iter().for_each(|block| directory.touch(block));
        assert_eq!(room(&mut directory), Room::Replace(clean), "one block of the lender");
        directory.check();
    }

    /// The part of a volume beyond its guaranteed one leaves down to the last block, also from own
    /// groups that are not guaranteed to it.
    #[test]
    fn own_groups_that_are_lent_come_back_block_by_block() {
        let sizes: BlockSizes = "4KiB,16KiB,64KiB".parse().unwrap();
        let mut directory = Directory::new(sizes, 48, &Evict::default());
        directory.set_share(VolumeId(0), ShardShare { guaranteed: 10, most: 40 });
        directory.set_share(VolumeId(1), ShardShare { guaranteed: 38, most: u64::MAX });
        assert!((0..40).all(|at| make(&mut directory, 0, at, 0).0));
        assert!((0..38).all(|at| make(&mut directory, 1, at, 0).0));
        let used = [0, 1].map(|volume| directory.blocks.shares.used(VolumeId(volume)));
        assert_eq!(used, [10, 38]);
        directory.check();
    }

    /// Where each group has blocks that must stay, a volume without its guarantee looks at few.
    #[test]
    fn a_volume_that_finds_no_group_to_claim_does_not_look_each_time() {
        let sizes: BlockSizes = "4KiB,64KiB".parse().unwrap();
        let mut directory = Directory::new(sizes, 1024, &Evict::default());
        for at in 0..512 {
            (1..3).for_each(|volume| assert!(make(&mut directory, volume, at, 0).0));
        }
        for volume in 0..2 {
            let share = ShardShare { guaranteed: 512, most: u64::MAX };
            directory.set_share(VolumeId(volume), share);
        }
        assert!(directory.has_shares());
        let before = directory.blocks.shares.looks.get();
        assert!((0..256).all(|at| make(&mut directory, 0, at, 0).0));
        let looks = directory.blocks.shares.looks.get() - before;
        assert!(looks < 256 * 200, "{looks}");
        let used = [0, 1, 2].map(|volume| directory.blocks.shares.used(VolumeId(volume)));
        assert_eq!(used, [256, 512, 256]);
        directory.check();
    }

    /// A volume that had all of the cache gives it up if it may have nothing any more.
    #[test]
    fn a_volume_that_may_have_nothing_gives_up_what_it_has() {
        for sizes in ["4KiB", "4KiB,16KiB"] {
            let mut directory = Directory::new(sizes.parse().unwrap(), 512, &Evict::default());
            assert!((0..512).all(|sector| make(&mut directory, 0, sector, 0).0));
            directory.set_share(VolumeId(0), ShardShare { guaranteed: 0, most: 0 });
            assert!(directory.may_make(VolumeId(0)), "it gives up blocks");
            assert!(!make(&mut directory, 0, 1000, 1).0);
            assert_eq!(directory.blocks.shares.used(VolumeId(0)), 0);
            assert!(!directory.may_make(VolumeId(0)));
            directory.check();
        }
    }

    /// A filler block of another size is no room for a block.
    #[test]
    fn a_shard_is_full_beside_a_filler_block_of_another_size() {
        let sizes: BlockSizes = "4KiB,16KiB,64KiB".parse().unwrap();
        let mut directory = Directory::new(sizes, 64, &Evict::default());
        assert!((0..16).all(|at| make(&mut directory, 0, 4 * at, 1).0));
        directory.set_share(VolumeId(1), ShardShare { guaranteed: 16, most: 64 });
        apply_shares(&mut directory);
        let block = directory.blocks.find(VolumeId(0), 0).unwrap();
        directory.give_up(block);
        assert!(is_full_for(&mut directory, VolumeId(0)));
        assert!(directory.coldest_if_full(VolumeId(0)).is_some());
        let search = search_smallest(&mut directory, VolumeId(0));
        assert!(RoomSearch { class: Class(1), size: 4, ..search }.has_common_filler());
        directory.check();
    }

    /// Changed shares look at a few groups in each search. The hottest groups become own ones, in
    /// the order of their use.
    #[test]
    fn own_groups_are_assigned_in_steps() {
        const GROUPS: u64 = 200;
        let sizes: BlockSizes = "4KiB,64KiB".parse().unwrap();
        let mut directory = Directory::new(sizes, 16 * GROUPS, &Evict::default());
        for at in 0..GROUPS {
            (0..16).for_each(|block| {
                let volume = (at % 2) as u16;
                assert!(make(&mut directory, volume, 16 * at + block, 0).0);
            });
        }
        let own = |directory: &Directory| -> Vec<u32> {
            directory.blocks.shares.own_groups(VolumeId(0)).collect()
        };
        let share = |groups: u64| ShardShare { guaranteed: 16 * groups, most: u64::MAX };
        for (groups, most_steps) in [(50, 40), (10, 16), (90, 64), (0, 34)] {
            let mut steps = 0;
            directory.set_share(VolumeId(0), share(groups));
            while directory.blocks.shares.are_new() {
                let before = own(&directory).len();
                directory.has_shares();
                assert!(own(&directory).len().abs_diff(before) <= 3);
                directory.check();
                steps += 1;
                assert!(steps <= most_steps);
            }
            let mut expected: Vec<u32> =
                (0..GROUPS as u32).filter(|group| group % 2 == 0).collect();
            expected.drain(..expected.len() - groups as usize);
            assert_eq!(own(&directory), expected);
        }
        assert!(!directory.blocks.shares.are_set());
    }

    /// A volume whose share is less than a group has no group of its own. It empties a common one
    /// with blocks of it alone for a block of another size.
    #[test]
    fn a_volume_without_own_groups_changes_the_sizes_of_its_blocks() {
        let sizes: BlockSizes = "4KiB,16KiB,64KiB".parse().unwrap();
        let mut directory = Directory::new(sizes, 64, &Evict::default());
        directory.set_share(VolumeId(0), ShardShare { guaranteed: 0, most: 8 });
        assert!((0..8).all(|at| make(&mut directory, 0, at, 0).0));
        assert!(make(&mut directory, 0, 1000, 1).0);
        let block = directory.blocks.find(VolumeId(0), 1000).unwrap();
        assert_eq!(directory.blocks.class(block), Class(1));
        assert_eq!(directory.blocks.shares.own_groups(VolumeId(0)).count(), 0);
        directory.check();
    }

    /// At its largest part a volume evicts the coldest of its blocks that makes room, and an
    /// admission is told of that one. An order to fetch finds no room either.
    #[test]
    fn the_victim_of_a_volume_at_its_largest_part_is_one_that_leaves() {
        let sizes: BlockSizes = "4KiB,16KiB,64KiB".parse().unwrap();
        let mut directory = Directory::new(sizes, 256, &Evict::default());
        for at in 0..4 {
            (0..2).for_each(|volume| assert!(make(&mut directory, volume, 16 * at, 1).0));
        }
        for at in 0..8 {
            (0..2).for_each(|volume| assert!(make(&mut directory, volume, 1000 + at, 0).0));
        }
        directory.set_share(VolumeId(0), ShardShare { guaranteed: 0, most: 24 });
        apply_shares(&mut directory);
        let full = [0, 1].map(|volume| is_full_for(&mut directory, VolumeId(volume)));
        assert_eq!(full, [true, false]);
        let told = directory.coldest_if_full(VolumeId(0));
        let room = directory.room(VolumeId(0), 2000, Class(0), |_, _| false).unwrap();
        assert_eq!(directory.victims(room).next(), told);
        assert_eq!(told, directory.blocks.find(VolumeId(0), 1000), "not a colder, larger block");
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
            for (guaranteed, most) in
                [(1, u64::MAX), (512, u64::MAX), (922, u64::MAX), (1024, u64::MAX), (0, 1024)]
            {
                let share = ShardShare { guaranteed, most };
                let with = hits_once_blocks_become_small(&evict, share);
                assert!(100 * with >= 97 * without, "{evict}, {share:?}: {with} of {without}");
            }
        }
    }
}
