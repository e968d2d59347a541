//! The choice of victims while some volume has a share.
//!
//! The policy names the victims. Where it names a block that must stay, the block is *parked*: the
//! policy has evicted it, and the directory keeps it. Where it names a block of a volume with a
//! guaranteed part, that volume loses its coldest block in an LRU list, parked or not, once it uses
//! more than is guaranteed. A volume below its guaranteed part does not evict its own blocks
//! either, so it takes back the space that it has lent.
//!
//! A volume at its largest part evicts only blocks of its own, and so does any volume where the
//! blocks of all others must stay: from the coldest in its LRU list, a block of the wanted size, or
//! a group without blocks of others, or a smaller block. Where there is none of these, the data is
//! not cached. At its largest part the volume gives up a block then, so that the next data finds it
//! below; if the largest part has become smaller, it gives up blocks until it is within it. The
//! places of these are filler blocks, which are the first to be replaced, by whichever volume.
//!
//! While a volume has a share of whole groups, it has groups of its own, with blocks of it alone
//! ([`OwnGroups`]). So it can change the sizes of its blocks within its share, whatever the others
//! do. If the groups are guaranteed to it, others evict nothing in them.
//!
//! [`OwnGroups`]: super::shares
//!
//! Filler blocks in own groups are free places of the owner, and no candidates for others.
//!
//! Invariant: parked blocks belong to volumes with a guaranteed part, once changed shares apply, or
//! are the filler blocks in own groups.

use super::blocks::arrival;
use super::search::{RoomSearch, free_in, losses, search_smallest};
use super::shares::{
    list_of, move_fillers, put_unassigned, surplus_groups, take_unassigned, take_used_group,
};
use super::{Block, Blocks, Directory, NOBODY, Room, ShardShare};
use crate::geometry::{Class, Extent, VolumeId};

impl Directory {
    /// Sets the share of a volume. It applies when the shard next makes room. Blocks beyond the
    /// largest part leave when the volume makes new ones. A guaranteed part is at most the shard.
    pub(crate) fn set_share(&mut self, volume: VolumeId, share: ShardShare) {
        if share != ShardShare::NONE || self.blocks.shares.are_set() {
            self.blocks.shares.set(volume, share, self.groups.capacity());
            self.order.check_parked();
        }
    }

    /// Returns whether some volume has a share, once changed shares apply.
    #[inline]
    pub(super) fn has_shares(&mut self) -> bool {
        if self.blocks.shares.are_new() {
            self.apply_shares();
        }
        self.blocks.shares.are_set()
    }

    /// Applies changed shares: lists the blocks for the first one, releases parked blocks of
    /// volumes to which nothing is guaranteed any more, and then assigns own groups, some in each
    /// call.
    #[cold]
    fn apply_shares(&mut self) {
        let parked = self.order.next_to_check();
        let are_checked = parked.as_ref().is_none_or(Vec::is_empty);
        for block in parked.into_iter().flatten() {
            if !may_be_parked(self, block) {
                self.order.release(block, |block| self.blocks.access(block));
            }
        }
        let is_done = are_checked && assign_some_groups(self);
        let by_heat = if self.blocks.shares.need_lists() { self.by_heat() } else { Vec::new() };
        let list =
            |&block| list_of(&self.blocks.shares, self.blocks.volume(block), self.group_of(block));
        let lists: Vec<_> = by_heat.iter().map(list).collect();
        let slots = self.groups.slots_end() as usize;
        self.blocks.shares.apply(slots, by_heat.into_iter().zip(lists), is_done);
    }

    /// Notes the use of a block for its volume's share. Returns whether it was parked: the policy
    /// has heard of it then.
    #[inline(never)] // so that hits of a cache without shares have fewer instructions
    pub(super) fn touch_within_shares(&mut self, block: Block) -> bool {
        self.blocks.shares.touch(block, self.blocks.volume(block));
        self.blocks.shares.touch_group(self.groups.at(self.blocks.place(block)));
        self.order.release(block, |block| self.blocks.access(block))
    }

    /// Finds room for a block of `class` that begins at a sector: [`Directory::room`] while some
    /// volume has a share.
    pub(super) fn room_within_shares(
        &mut self,
        volume: VolumeId,
        start: u64,
        class: Class,
        in_use: impl Fn(&Blocks, Block) -> bool,
    ) -> Option<Room> {
        let sizes = self.blocks.sizes();
        let incoming = arrival(sizes, Extent::new(volume, start, sizes.sectors(class)));
        let size = sizes.sectors(class) / sizes.smallest();
        RoomSearch { directory: self, volume, class, size, in_use }.room(&incoming)
    }

    /// Returns whether a volume uses at most its largest part.
    pub(crate) fn is_within_most(&self, volume: VolumeId) -> bool {
        !self.blocks.shares.is_beyond_most(volume, 0)
    }

    /// Returns whether a volume can ever get or give up a block now: false where it has none, and
    /// all others use only what is guaranteed to them, or its largest part is nothing.
    #[inline]
    pub(crate) fn may_make(&self, volume: VolumeId) -> bool {
        !self.blocks.shares.are_set() || self.may_make_within_shares(volume)
    }

    #[inline(never)]
    fn may_make_within_shares(&self, volume: VolumeId) -> bool {
        let shares = &self.blocks.shares;
        let has_victim = shares.are_beyond_guaranteed(1)
            || shares.coldest_first(NOBODY).next().is_some()
            || !self.is_full();
        shares.are_new() || shares.used(volume) > 0 || shares.most(volume) > 0 && has_victim
    }

    /// Returns the block that a new smallest block of a volume would evict, of a group the first
    /// one; `None` while there is room. No block is parked for it.
    pub(super) fn victim_within_shares(&mut self, volume: VolumeId) -> Option<Block> {
        let search = search_smallest(self, volume);
        if search.has_free_room() || search.has_common_filler() {
            return None;
        }
        if search.shares().is_beyond_most(volume, 1) || !search.shares().are_beyond_guaranteed(1) {
            let room = search.room_of_own()?;
            let is_owned = |block: &Block| self.blocks.volume(*block) != NOBODY;
            return self.victims(room).find(is_owned);
        }
        if let Some(block) = search.parked_victim() {
            return Some(block);
        }
        let named = search.directory.order.coldest(None, |_| false);
        let named = named.filter(|&block| search.may_evict(block));
        named.or_else(|| search.idle(*search.shares().beyond_guaranteed().first()?).next())
    }

    /// Evicts a block of [`Room::GiveUp`]: its place belongs to no volume.
    ///
    /// # Panics
    /// When the block is dirty.
    pub(crate) fn give_up(&mut self, block: Block) {
        let group = self.group_of(block);
        release(self, group);
        self.disown(block);
        let has_owner = |block| self.blocks.volume(block) != NOBODY;
        if !self.blocks_of(group).any(has_owner) {
            self.empty(group);
        }
    }
}

/// Returns whether even a smallest block of a volume can only be made by evicting another.
pub(crate) fn is_full_for(directory: &mut Directory, volume: VolumeId) -> bool {
    if !directory.blocks.shares.are_set() || !directory.has_shares() {
        return directory.is_full();
    }
    let search = search_smallest(directory, volume);
    !search.has_free_room() && !search.has_common_filler()
}

/// Returns whether a block may be out of the policy's order: one of a volume with a guaranteed
/// part, or a filler block in an own group.
pub(super) fn may_be_parked(directory: &Directory, block: Block) -> bool {
    let (shares, volume) = (&directory.blocks.shares, directory.blocks.volume(block));
    match volume {
        NOBODY => shares.owner(directory.group_of(block)) != NOBODY,
        _ => shares.is_guaranteed(volume),
    }
}

/// Makes a group a common one, if it is a volume's own. Its free places become filler blocks.
pub(super) fn release(directory: &mut Directory, group: u32) {
    let owner = directory.blocks.shares.owner(group);
    if owner != NOBODY {
        fill(directory, group);
        let free = free_in(directory, group);
        let fillers = fillers_in(directory, group);
        move_fillers(&mut directory.blocks.shares, &fillers, owner, NOBODY);
        directory.blocks.shares.release_group(group, free);
        for block in fillers {
            directory.order.release(block, |block| directory.blocks.access(block));
        }
    }
}

/// Makes a full common group the coldest of a volume's own; `free` is the size of the filler
/// blocks in it.
fn take(directory: &mut Directory, group: u32, volume: VolumeId, free: u64) {
    let fillers = if free > 0 { fillers_in(directory, group) } else { Vec::new() };
    move_fillers(&mut directory.blocks.shares, &fillers, NOBODY, volume);
    take_used_group(&mut directory.blocks.shares, group, volume, free);
    fillers.into_iter().for_each(|block| directory.order.set_aside(block));
}

fn fillers_in(directory: &Directory, group: u32) -> Vec<Block> {
    let blocks = directory.blocks_of(group);
    blocks.filter(|&block| directory.blocks.volume(block) == NOBODY).collect()
}

/// Fills the rest of an open group with filler blocks.
pub(super) fn fill(directory: &mut Directory, group: u32) {
    let owner = directory.blocks.shares.owner(group);
    while let Some(class) = directory.groups.class_open_in(group, owner) {
        let room = directory.groups.take(owner, class, directory.blocks.sizes());
        directory.reserve_slots();
        directory.blocks.put(room.block, room.place);
        directory.blocks.map(room.block, directory.hole(room.place, class));
        directory.order.insert(room.block, &directory.blocks.access(room.block));
    }
}

/// Maximum number of groups that a search releases or looks at for changed shares; a few in tests,
/// so that other steps come between.
const ASSIGNED_AT_ONCE: usize = if cfg!(test) { 3 } else { 64 };

/// Releases the coldest own groups of volumes that have too many, and gives volumes that have too
/// few the hottest full groups in which no other has blocks, some in each call. Returns whether all
/// is done.
fn assign_some_groups(directory: &mut Directory) -> bool {
    let surplus = surplus_groups(&directory.blocks.shares, ASSIGNED_AT_ONCE);
    surplus.iter().for_each(|&group| release(directory, group));
    if surplus.len() == ASSIGNED_AT_ONCE {
        return false;
    }
    if !directory.blocks.shares.is_any_group_lacking() {
        put_unassigned(&mut directory.blocks.shares, None);
        return true;
    }
    let units = u64::from(directory.groups.units());
    let unassigned = take_unassigned(&mut directory.blocks.shares);
    let mut unassigned = unassigned.unwrap_or_else(|| directory.groups.coldest_first().collect());
    // Groups that were emptied, opened or taken since they were listed do not suit any more.
    let next = unassigned.split_off(unassigned.len().saturating_sub(ASSIGNED_AT_ONCE));
    for group in next.into_iter().rev() {
        let is_open = directory.groups.class_open_in(group, NOBODY).is_some();
        let losses = losses(directory, group);
        let mut owned = losses.iter().filter(|(volume, _)| *volume != NOBODY);
        if let (Some((volume, size)), None) = (owned.next(), owned.next())
            && !is_open
            && !directory.groups.leaving().contains(&group)
            && directory.blocks.shares.owner(group) == NOBODY
            && directory.blocks.shares.lacks_group(*volume, units - size)
        {
            take(directory, group, *volume, units - size);
        }
    }
    let is_done = unassigned.is_empty();
    put_unassigned(&mut directory.blocks.shares, (!is_done).then_some(unassigned));
    is_done
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::search::tests::{apply_shares, fitting, make};
    use super::super::{Evict, Origin};
    use super::*;
    use crate::geometry::{BlockSizes, Sectors};

    const VOLUMES: u16 = 3;
    /// Sectors of each volume that are used.
    const SECTORS: u64 = 256;

    #[derive(Debug, Clone)]
    enum Step {
        /// Inserts the largest block up to `class` at a sector, or touches the one there.
        Use {
            volume: u16,
            sector: u64,
            class: u8,
        },
        Share {
            volume: u16,
            guaranteed: u64,
            most: u64,
        },
        Drop {
            volume: u16,
        },
        Spare {
            volume: u16,
            sector: u64,
        },
        /// Makes an aligned run of 16 sectors of a volume unavailable to eviction.
        Pin {
            volume: u16,
            run: u64,
        },
        Unpin,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let use_one = (0..VOLUMES, 0..SECTORS, 0..3u8);
        let place = (0..VOLUMES, 0..SECTORS);
        let share = (0..VOLUMES, 0..50u64, prop_oneof![Just(u64::MAX), 0..70u64]);
        let used = use_one.prop_map(|(volume, sector, class)| Step::Use { volume, sector, class });
        let pin = (0..VOLUMES, 0..SECTORS / 16);
        prop::collection::vec(
            prop_oneof![
                300 => used,
                6 => share.prop_map(|(volume, guaranteed, most)| {
                    Step::Share { volume, guaranteed, most }
                }),
                1 => (0..VOLUMES).prop_map(|volume| Step::Drop { volume }),
                4 => place.prop_map(|(volume, sector)| Step::Spare { volume, sector }),
                4 => pin.prop_map(|(volume, run)| Step::Pin { volume, run }),
                4 => Just(Step::Unpin),
            ],
            0..600,
        )
    }

    struct Model {
        directory: Directory,
        shares: Vec<ShardShare>,
        pinned: Vec<(u16, u64)>,
    }

    impl Model {
        fn used(&self) -> Vec<u64> {
            let used = (0..VOLUMES).map(|id| self.directory.blocks.shares.used(VolumeId(id)));
            used.collect()
        }

        /// Makes room as a shard does, and checks which blocks leave for it. Returns whether the
        /// block was made.
        fn insert(&mut self, volume: u16, sector: u64, class: u8) -> bool {
            let id = VolumeId(volume);
            let (start, mut class) = fitting(&self.directory, id, sector, class);
            let pinned = self.pinned.clone();
            let in_use = |volume: VolumeId, sectors: &Sectors| {
                pinned.contains(&(volume.0, sectors.start / 16))
            };
            let within = self.directory.is_within_most(id);
            for _ in 0..1000 {
                let named = self.named(id, class);
                let Some(room) = self.directory.room(id, start, class, in_use) else {
                    if class.0 == 0 {
                        return false;
                    }
                    class.0 -= 1;
                    continue;
                };
                let (before, share) = (self.used(), self.shares[usize::from(volume)]);
                let victims: Vec<Block> = self.directory.victims(room).collect();
                if let Some(named) = named {
                    let owned = |block: &&Block| self.directory.blocks.volume(**block) != NOBODY;
                    assert_eq!(named, victims.iter().find(owned).copied(), "{room:?}");
                }
                for &victim in &victims {
                    let blocks = &self.directory.blocks;
                    assert!(!in_use(blocks.volume(victim), &blocks.sectors(victim)));
                    let group = self.directory.group_of(victim);
                    assert!(!blocks.shares.is_kept_from(id, group), "{group} is another's");
                }
                let is_own = |block: &Block| {
                    let owner = self.directory.blocks.volume(*block);
                    owner == id || owner == NOBODY
                };
                let fits = before[usize::from(volume)] + self.size(class) <= share.most;
                assert!(fits || victims.iter().all(is_own), "{room:?}");
                if let Room::GiveUp(block) = room {
                    assert!(!fits && victims.iter().all(is_own), "{room:?}");
                    self.directory.give_up(block);
                    if within {
                        return false;
                    }
                    continue;
                }
                self.directory.allocate(id, start, class, room, Origin::default());
                let after = self.used();
                for other in (0..usize::from(VOLUMES)).filter(|other| *other != usize::from(volume))
                {
                    let kept = after[other] >= self.shares[other].guaranteed.min(before[other]);
                    assert!(kept, "{other} had {}, has {}", before[other], after[other]);
                }
                assert!(after[usize::from(volume)] <= share.most, "{after:?} {share:?}");
                return true;
            }
            panic!("the search for room does not end");
        }

        /// Returns the victim that an admission is told of where the volume evicts only its own
        /// blocks and all may leave.
        fn named(&mut self, volume: VolumeId, class: Class) -> Option<Option<Block>> {
            let shares = &self.directory.blocks.shares;
            let is_told = class.0 == 0 && shares.is_beyond_most(volume, 1) && !shares.are_new();
            (is_told && self.pinned.is_empty()).then(|| self.directory.coldest_if_full(volume))
        }

        fn size(&self, class: Class) -> u64 {
            let sizes = self.directory.blocks.sizes();
            sizes.sectors(class) / sizes.smallest()
        }

        /// A block is not made only where none may leave for it.
        fn may_be_refused(&self, volume: u16) -> bool {
            let used = self.used();
            let others =
                (0..VOLUMES).map(usize::from).filter(|other| *other != usize::from(volume));
            let mut lenders = others.filter(|&other| used[other] > self.shares[other].guaranteed);
            let is_none_left = used[usize::from(volume)] == 0
                && lenders.next().is_none()
                && self.directory.is_full();
            self.shares[usize::from(volume)].most == 0 || is_none_left
        }

        fn take(&mut self, step: &Step) {
            match *step {
                Step::Use { volume, sector, class } => {
                    match self.directory.blocks.find(VolumeId(volume), sector) {
                        Some(block) => self.directory.touch(block),
                        None => {
                            let is_plain = self.directory.blocks.sizes().count() == 1;
                            let may_be_refused = self.may_be_refused(volume);
                            let made = self.insert(volume, sector, class);
                            let is_certain = is_plain && self.pinned.is_empty();
                            assert!(made || may_be_refused || !is_certain, "{:?}", self.used());
                        }
                    }
                }
                Step::Share { volume, guaranteed, most } => {
                    let share = ShardShare { guaranteed, most };
                    self.shares[usize::from(volume)] = share;
                    self.directory.set_share(VolumeId(volume), share);
                }
                Step::Drop { volume } => {
                    for group in self.directory.drop_volume(VolumeId(volume)) {
                        self.directory.empty(group);
                    }
                    assert_eq!(self.directory.blocks.shares.used(VolumeId(volume)), 0);
                }
                Step::Spare { volume, sector } => {
                    if let Some(block) = self.directory.blocks.find(VolumeId(volume), sector) {
                        self.directory.spare(block);
                    }
                }
                Step::Pin { volume, run } => self.pinned.push((volume, run)),
                Step::Unpin => self.pinned.clear(),
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

        /// After each step the counts are those of a walk over all blocks. No volume loses what is
        /// guaranteed to another one, none grows beyond its largest part, and at its largest part
        /// it evicts only its own blocks.
        #[test]
        fn volumes_stay_within_their_shares(
            steps in steps(),
            sizes in prop::sample::select(vec!["4KiB", "4KiB,16KiB", "4KiB,16KiB,64KiB"]),
            evict in prop::sample::select(Evict::all().collect::<Vec<_>>()),
        ) {
            let sizes: BlockSizes = sizes.parse().unwrap();
            let directory = Directory::new(sizes, 64, &evict);
            let shares = vec![ShardShare::NONE; VOLUMES.into()];
            let mut model = Model { directory, shares, pinned: Vec::new() };
            for step in &steps {
                model.take(step);
                model.directory.check();
            }
        }
    }

    /// The volume of a scan evicts its own blocks once the other one is at what is guaranteed, and
    /// lends all of that again while the other one uses nothing.
    #[test]
    fn the_unused_part_of_a_guarantee_is_lent() {
        let sizes: BlockSizes = "4KiB".parse().unwrap();
        let directory = Directory::new(sizes, 64, &Evict::default());
        let mut shares = vec![ShardShare::NONE; VOLUMES.into()];
        shares[0] = ShardShare { guaranteed: 40, most: u64::MAX };
        let mut model = Model { directory, shares, pinned: Vec::new() };
        model.directory.set_share(VolumeId(0), model.shares[0]);
        assert!((0..100).all(|sector| model.insert(1, sector, 0)));
        assert_eq!(model.used(), [0, 64, 0], "all of it is lent");
        assert!((0..40).all(|sector| model.insert(0, sector, 0)));
        assert_eq!(model.used(), [40, 24, 0], "and comes back");
        assert!((100..200).all(|sector| model.insert(1, sector, 0)));
        assert_eq!(model.used(), [40, 24, 0]);
        assert!((0..40).all(|at| model.directory.blocks.find(VolumeId(0), at).is_some()));
        (0..40).for_each(|sector| model.take(&Step::Use { volume: 0, sector, class: 0 }));
        assert!((40..64).all(|sector| model.insert(0, sector, 0)));
        assert!(model.insert(2, 0, 0));
        assert_eq!(model.used(), [63, 0, 1]);
        assert!((200..240).all(|sector| model.insert(1, sector, 0)));
        assert_eq!(model.used()[0], 40, "what it had beyond is anyone's");
    }

    /// A lower largest part is in force with the next block that the volume makes.
    #[test]
    fn a_volume_gives_up_what_is_beyond_a_new_largest_part() {
        let sizes: BlockSizes = "4KiB,16KiB".parse().unwrap();
        let directory = Directory::new(sizes, 64, &Evict::default());
        let shares = vec![ShardShare::NONE; VOLUMES.into()];
        let mut model = Model { directory, shares, pinned: Vec::new() };
        for sector in 0..24 {
            assert!(model.insert(0, sector, 0) && model.insert(1, sector, 0));
        }
        assert_eq!(model.used()[..2], [24, 24]);
        model.shares[0].most = 10;
        model.directory.set_share(VolumeId(0), model.shares[0]);
        assert!(model.insert(0, 100, 1));
        assert_eq!(model.used()[..2], [10, 24], "a small block in place of the coldest");
        assert!(model.directory.blocks.find(VolumeId(0), 23).is_some(), "the hottest stays");
        assert!((200..230).all(|sector| model.insert(0, sector, 0)));
        assert_eq!(model.used()[..2], [10, 24]);
        model.directory.check();
    }

    fn model(evict: &Evict, guaranteed: u64) -> Model {
        let sizes: BlockSizes = "4KiB".parse().unwrap();
        let directory = Directory::new(sizes, 64, evict);
        let mut shares = vec![ShardShare::NONE; VOLUMES.into()];
        shares[0] = ShardShare { guaranteed, most: u64::MAX };
        let mut model = Model { directory, shares, pinned: Vec::new() };
        model.directory.set_share(VolumeId(0), model.shares[0]);
        model
    }

    /// Uses a sector of a volume, and returns whether it was cached.
    fn uses(model: &mut Model, volume: u16, sector: u64) -> bool {
        let found = model.directory.blocks.find(VolumeId(volume), sector);
        match found {
            Some(block) => model.directory.touch(block),
            None => assert!(model.insert(volume, sector, 0)),
        }
        found.is_some()
    }

    /// Uses a sector of an LRU list of at most `most`, and returns whether it was there.
    fn uses_list(list: &mut Vec<u64>, most: usize, sector: u64) -> bool {
        let found = list.iter().position(|other| *other == sector);
        match found {
            Some(at) => drop(list.remove(at)),
            None if list.len() == most => drop(list.remove(0)),
            None => {}
        }
        list.push(sector);
        found.is_some()
    }

    /// With any policy a guaranteed part hits at least where an LRU cache of that size does, beside
    /// a neighbour that scans.
    #[test]
    fn a_guaranteed_part_is_as_good_as_an_lru_cache_of_its_size() {
        for evict in Evict::all() {
            let (mut model, mut list, mut hits) = (model(&evict, 40), Vec::new(), 0);
            for step in 0..4000 {
                let sector = floe_policy::mix(step) % 100 * (floe_policy::mix(!step) % 100) / 100;
                let hit = uses(&mut model, 0, sector);
                let expected = uses_list(&mut list, 40, sector);
                assert!(hit || !expected, "{evict}: sector {sector} in step {step}");
                hits += u64::from(expected);
                for at in 0..3 {
                    uses(&mut model, 1, (3 * step + at) % 250);
                }
            }
            assert!(hits > 1000, "{hits}");
            model.directory.check();
        }
    }

    /// Beside an idle volume, the LRU order of another one is that of a cache of the rest.
    #[test]
    fn blocks_that_stay_do_not_disturb_the_order_of_others() {
        let (mut model, mut list) = (model(&Evict::default(), 40), Vec::new());
        assert!((0..40).all(|sector| model.insert(0, sector, 0)));
        for step in 0..2000 {
            let sector = floe_policy::mix(step) % 48;
            let expected = uses_list(&mut list, 24, sector);
            assert_eq!(uses(&mut model, 1, sector), expected, "step {step}");
        }
        assert_eq!(model.used(), [40, 24, 0]);
        assert!((0..40).all(|sector| uses(&mut model, 0, sector)));
    }

    /// Shares under which every block may leave change no choice, neither while they are set nor
    /// once they are lifted. At most `guaranteed` is guaranteed to a volume; the steps end where
    /// one could come so close to it that it binds.
    fn choose_as_without_shares(steps: &[Step], alike: [Directory; 2], guaranteed: u64) {
        let [mut with, mut without] = alike;
        let largest = with.blocks.sizes().largest() / with.blocks.sizes().smallest();
        let mut shares = vec![ShardShare::NONE; VOLUMES.into()];
        let mut pinned = Vec::new();
        for step in steps {
            let in_use = |volume: VolumeId, sectors: &Sectors| {
                pinned.contains(&(volume.0, sectors.start / 16))
            };
            let exceeds = |with: &Directory, volume: u16, share: ShardShare| {
                let used = with.blocks.shares.used(VolumeId(volume));
                share.guaranteed == 0 || used >= share.guaranteed + largest
            };
            match *step {
                Step::Use { volume, sector, class } => {
                    let id = VolumeId(volume);
                    let found = without.blocks.find(id, sector);
                    assert_eq!(with.blocks.find(id, sector), found);
                    if let Some(block) = found {
                        with.touch(block);
                        without.touch(block);
                        continue;
                    }
                    if !(0..).zip(&shares).all(|(volume, share)| exceeds(&with, volume, *share)) {
                        return;
                    }
                    assert_eq!(with.coldest_if_full(id), without.coldest_if_full(id));
                    let (start, class) = fitting(&without, id, sector, class);
                    let expected = without.room(id, start, class, in_use);
                    let room = with.room(id, start, class, in_use);
                    let Some(expected) = expected else { continue }; // all are in use
                    assert_eq!(room, Some(expected));
                    without.allocate(id, start, class, expected, Origin::default());
                    with.allocate(id, start, class, expected, Origin::default());
                }
                Step::Share { volume, guaranteed: part, .. } => {
                    let most = if part % 2 == 0 { u64::MAX } else { 1000 };
                    let share = ShardShare { guaranteed: part.min(guaranteed), most };
                    if exceeds(&with, volume, share) {
                        shares[usize::from(volume)] = share;
                        with.set_share(VolumeId(volume), share);
                    }
                }
                Step::Spare { volume, sector } => {
                    if let Some(block) = without.blocks.find(VolumeId(volume), sector) {
                        with.spare(block);
                        without.spare(block);
                    }
                }
                Step::Pin { volume, run } => pinned.push((volume, run)),
                Step::Unpin => pinned.clear(),
                Step::Drop { .. } => {} // leaves filler blocks where there are shares
            }
            with.check();
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

        #[test]
        fn shares_that_bind_nothing_change_no_victim(
            steps in steps(),
            sizes in prop::sample::select(vec!["4KiB", "4KiB,16KiB", "4KiB,16KiB,64KiB"]),
            evict in prop::sample::select(Evict::all().collect::<Vec<_>>()),
        ) {
            let empty = || Directory::new(sizes.parse().unwrap(), 64, &evict);
            choose_as_without_shares(&steps, [empty(), empty()], 0);
        }

        /// A volume with a guaranteed part below a group loses blocks in LRU order: that of the
        /// default policy.
        #[test]
        fn guaranteed_parts_that_bind_nothing_change_no_victim_of_lru(
            steps in steps(),
            (sizes, guaranteed) in prop::sample::select(vec![
                ("4KiB", 40),
                ("4KiB,16KiB", 3),
                ("4KiB,16KiB,64KiB", 15),
            ]),
        ) {
            let empty = || Directory::new(sizes.parse().unwrap(), 192, &Evict::default());
            choose_as_without_shares(&steps, [empty(), empty()], guaranteed);
        }

        /// Volumes among which whole groups are divided have what each would have in a cache of its
        /// own, whatever the sizes of their blocks.
        #[test]
        fn a_divided_shard_is_a_cache_of_its_own_for_each_volume(
            steps in steps(),
            sizes in prop::sample::select(vec!["4KiB", "4KiB,16KiB", "4KiB,16KiB,64KiB"]),
            guarantees in prop::collection::vec(1..4u64, usize::from(VOLUMES)),
        ) {
            let of = |units: u64| Directory::new(sizes.parse().unwrap(), units, &Evict::default());
            let units = guarantees.iter().map(|groups| 16 * groups);
            let mut alone: Vec<Directory> = units.clone().map(of).collect();
            let mut divided = of(units.clone().sum());
            for (volume, guaranteed) in (0..).map(VolumeId).zip(units) {
                divided.set_share(volume, ShardShare { guaranteed, most: guaranteed });
            }
            behave_alike(&steps, &mut divided, &mut alone)?;
        }

        /// The same holds for full groups of one volume each that were there before the shares, as
        /// after a restart.
        #[test]
        fn shares_of_a_used_shard_make_caches_of_its_groups(
            steps in steps(),
            sizes in prop::sample::select(vec!["4KiB,16KiB", "4KiB,16KiB,64KiB"]),
            filled in prop::collection::vec(prop::collection::vec(0..3u8, 1..4), 3),
        ) {
            let sizes: BlockSizes = sizes.parse().unwrap();
            let of = |units| Directory::new(sizes.clone(), units, &Evict::default());
            let group = sizes.largest();
            let units_of = |filled: &Vec<u8>| group * filled.len() as u64;
            let mut alone: Vec<_> = filled.iter().map(|filled| of(units_of(filled))).collect();
            let mut divided = of(filled.iter().map(units_of).sum());
            for (volume, filled) in (0..).zip(&filled) {
                for (number, class) in (0..).zip(filled) {
                    let class = (*class).min(sizes.count() as u8 - 1);
                    for at in (0..group).step_by(sizes.sectors(Class(class)) as usize) {
                        let sector = SECTORS + group * number + at;
                        for directory in [&mut divided, &mut alone[usize::from(volume)]] {
                            prop_assert!(make(directory, volume, sector, class).0);
                        }
                    }
                }
            }
            for (volume, filled) in (0..).map(VolumeId).zip(&filled) {
                let guaranteed = units_of(filled);
                divided.set_share(volume, ShardShare { guaranteed, most: guaranteed });
            }
            apply_shares(&mut divided);
            for (volume, filled) in (0..).map(VolumeId).zip(&filled) {
                prop_assert_eq!(divided.blocks.shares.own_groups(volume).count(), filled.len());
            }
            behave_alike(&steps, &mut divided, &mut alone)?;
        }
    }

    /// Checks that the volumes of a shard have the blocks that each has in a shard of its own.
    fn behave_alike(
        steps: &[Step],
        divided: &mut Directory,
        alone: &mut [Directory],
    ) -> Result<(), TestCaseError> {
        for step in steps {
            let Step::Use { volume, sector, class } = *step else { continue };
            let alone = &mut alone[usize::from(volume)];
            for sector in 0..SECTORS {
                let [one, other] = [&*divided, &*alone].map(|directory| {
                    let found = directory.blocks.find(VolumeId(volume), sector);
                    found.map(|block| directory.blocks.sectors(block))
                });
                prop_assert_eq!(one, other);
            }
            for directory in [&mut *divided, alone] {
                match directory.blocks.find(VolumeId(volume), sector) {
                    Some(block) => directory.touch(block),
                    None => prop_assert!(make(directory, volume, sector, class).0),
                }
            }
        }
        divided.check();
        Ok(())
    }

    /// Parked blocks may leave, and the lists are freed, when the shard makes room after the last
    /// share is lifted.
    #[test]
    fn a_lifted_share_leaves_nothing_behind() {
        for evict in Evict::all() {
            let mut model = model(&evict, 40);
            (0..40).for_each(|sector| assert!(model.insert(0, sector, 0)));
            (0..200).for_each(|sector| assert!(model.insert(1, sector, 0)));
            let parked = model.directory.order.parked().count();
            assert!(parked > 0 || !evict.is_lru(), "{evict}");
            model.directory.check();
            model.shares[0] = ShardShare::NONE;
            model.directory.set_share(VolumeId(0), ShardShare::NONE);
            model.directory.check();
            (200..400).for_each(|sector| assert!(model.insert(1, sector, 0)));
            assert_eq!(model.directory.order.parked().count(), 0, "{evict}");
            assert!(!model.directory.blocks.shares.are_set(), "{evict}");
            assert!(model.used()[0] == 0 || !evict.is_lru(), "{evict}");
            model.directory.check();
        }
    }

    /// An admission asks for the victim of a candidate that it may decline.
    #[test]
    fn a_question_about_the_victim_parks_nothing() {
        for evict in Evict::all() {
            let mut model = model(&evict, 40);
            (0..40).for_each(|sector| assert!(model.insert(0, sector, 0)));
            (0..24).for_each(|sector| assert!(model.insert(1, sector, 0)));
            let victim = model.directory.coldest_if_full(VolumeId(1)).unwrap();
            assert_eq!(model.directory.blocks.volume(victim), VolumeId(1), "{evict}");
            assert_eq!(model.directory.order.parked().count(), 0, "{evict}");
            assert!(model.directory.may_make(VolumeId(1)) && model.directory.may_make(VolumeId(2)));
            model.directory.set_share(VolumeId(1), ShardShare { guaranteed: 24, most: u64::MAX });
            assert!(model.directory.coldest_if_full(VolumeId(2)).is_none(), "{evict}");
            assert!(!model.directory.may_make(VolumeId(2)), "nothing may leave for it");
            model.directory.check();
        }
    }
}
