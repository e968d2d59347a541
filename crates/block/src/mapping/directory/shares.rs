//! The shares of volumes in the cache space of a shard: the part that each volume uses, the part
//! that no other volume evicts, and the largest part.
//!
//! Sizes are numbers of smallest blocks. They count whole blocks, also those without valid sectors.
//! The used part of a volume is its blocks, and the rest of its own groups. The blocks are always
//! counted. Guaranteed and largest parts, own groups, and an LRU list of each volume's blocks exist
//! only while some volume has a share. The lists take 8 bytes a slot. They are made when the shard
//! next makes room, so that a change of all shards delays nothing.
//!
//! Invariants: `mapped[v]` is the size of the mapped blocks of volume `v`; `lists`, once made, has
//! exactly the mapped blocks, each in the list of its volume. Filler blocks in the own groups of a
//! volume are in a list for that volume, and those in common groups in another one.

use std::cmp::Reverse;

use floe_policy::Slot;

use super::order::{List, VolumeLists};
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

/// Number of searches after one without success in which a volume looks for no group to empty: a
/// search may look at a thousand blocks.
const CLAIMS_LEFT_OUT: u32 = 64;

/// The used parts of all volumes of a shard, and their shares.
#[derive(Debug)]
pub(crate) struct Shares {
    /// Size of the mapped blocks by volume id.
    mapped: Vec<u64>,
    /// Number of smallest blocks in a group.
    units: u64,
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
    own: OwnGroups,
    /// The groups that may still become own ones since the shares have changed, the coldest first;
    /// `None` before they are listed, and once all is done.
    unassigned: Option<Vec<u32>>,
    /// The number of searches, of which each begins with other volumes.
    turn: usize,
    /// The shares have changed since the shard last made room.
    is_new: bool,
}

impl ActiveShares {
    /// Lists the volumes with a guaranteed part.
    fn list_guaranteed(&mut self) {
        let volumes = (0..).map(VolumeId).zip(&self.shares);
        let guaranteed = volumes.filter(|(_, share)| share.guaranteed > 0);
        self.guaranteed = guaranteed.map(|(volume, _)| volume).collect();
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
    /// Creates the shares of a shard with groups of `units` smallest blocks; no volume has one.
    pub(super) fn new(units: u64) -> Self {
        Self {
            mapped: Vec::new(),
            units,
            active: None,
            #[cfg(test)]
            looks: std::cell::Cell::default(),
        }
    }

    /// Returns whether some volume has a share, or had one when the shard last made room.
    #[inline]
    pub(crate) fn are_set(&self) -> bool {
        self.active.is_some()
    }

    /// Sets a volume's share in a shard of `capacity`. It applies once [`apply`](Self::apply) is
    /// called.
    pub(super) fn set(&mut self, volume: VolumeId, share: ShardShare, capacity: u64) {
        let share = ShardShare { guaranteed: share.guaranteed.min(capacity), ..share };
        let own = self.most_own_groups(share, capacity);
        let active = self.active.get_or_insert_default();
        let at = usize::from(volume.0);
        if active.shares.len() <= at {
            active.shares.resize(at + 1, ShardShare::NONE);
        }
        active.shares[at] = share;
        active.is_new = true;
        active.unassigned = None;
        active.own.set_most(volume, own as u32);
        active.list_guaranteed();
        self.count_beyond();
    }

    /// Returns the number of own groups of a volume with this share: the whole groups of its
    /// guaranteed part, or else of a largest part below the shard's capacity. With one block size a
    /// group is a block, and nothing is gained by own ones.
    fn most_own_groups(&self, share: ShardShare, capacity: u64) -> u64 {
        let guaranteed = share.guaranteed / self.units;
        match share.most / self.units {
            _ if self.units == 1 => 0,
            most if guaranteed == 0 && share.most < capacity => most,
            _ => guaranteed,
        }
    }

    /// Sums up what volumes use beyond their guaranteed parts.
    fn count_beyond(&mut self) {
        let beyond = (0..self.mapped.len() as u16).map(|id| self.beyond(VolumeId(id))).sum();
        self.active.iter_mut().for_each(|active| active.beyond = beyond);
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

    /// Applies changed shares. `blocks` has all mapped blocks with their lists, the coldest
    /// first, if they are not listed yet, and `slots` is the number of slots. The shares stay new
    /// until it `is_done`.
    pub(super) fn apply(
        &mut self,
        slots: usize,
        blocks: impl Iterator<Item = (Block, List)>,
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
            blocks.for_each(|(block, list)| lists.push(block, list));
            lists
        });
    }

    /// Returns the bytes that each volume uses, by id, with smallest blocks of `unit_bytes`.
    pub(crate) fn used_bytes(&self, unit_bytes: u64) -> Vec<u64> {
        let volumes = (0..self.mapped.len() as u16).map(VolumeId);
        volumes.map(|volume| self.used(volume) * unit_bytes).collect()
    }

    /// Returns the part that a volume uses: its blocks, and what is in its own groups beside them.
    pub(crate) fn used(&self, volume: VolumeId) -> u64 {
        let mapped = self.mapped.get(usize::from(volume.0)).copied().unwrap_or(0);
        mapped + self.active.as_ref().map_or(0, |active| active.own.free(volume))
    }

    /// Returns the part that a volume uses beyond its guaranteed part; nothing without shares.
    fn beyond(&self, volume: VolumeId) -> u64 {
        let Some(active) = &self.active else { return 0 };
        self.used(volume).saturating_sub(active.of(volume).guaranteed)
    }

    /// Changes the part of a volume, and what all use beyond their guaranteed parts with it.
    fn change(&mut self, volume: VolumeId, change: impl FnOnce(&mut u64, Option<&mut OwnGroups>)) {
        let before = self.beyond(volume);
        let at = usize::from(volume.0);
        if self.mapped.len() <= at {
            self.mapped.resize(at + 1, 0);
        }
        change(&mut self.mapped[at], self.active.as_mut().map(|active| &mut active.own));
        let after = self.beyond(volume);
        if let Some(active) = &mut self.active {
            active.beyond = active.beyond + after - before;
        }
    }

    /// Counts a block of this size that was mapped at a place.
    #[inline]
    pub(super) fn mapped(&mut self, block: Block, place: u32, volume: VolumeId, size: u64) {
        let group = listed(self, place, volume, |lists, list| lists.push(block, list));
        if volume != NOBODY {
            self.change(volume, |mapped, own| {
                *mapped += size;
                own.zip(group).into_iter().for_each(|(own, group)| own.mapped(group, volume, size));
            });
        }
    }

    /// Counts a block of this size at a place that is no longer mapped.
    #[inline]
    pub(super) fn unmapped(&mut self, block: Block, place: u32, volume: VolumeId, size: u64) {
        let group = listed(self, place, volume, |lists, list| lists.remove(block, list));
        if volume != NOBODY {
            self.change(volume, |mapped, own| {
                *mapped -= size;
                own.zip(group)
                    .into_iter()
                    .for_each(|(own, group)| own.unmapped(group, volume, size));
            });
        }
    }

    /// Returns the group with a place.
    fn group(&self, place: u32) -> u32 {
        place / self.units as u32
    }

    /// Returns the owner of a group, [`NOBODY`] for a common one.
    #[inline]
    pub(super) fn owner(&self, group: u32) -> VolumeId {
        self.active.as_ref().map_or(NOBODY, |active| active.own.owner(group))
    }

    /// Returns whether a group is one of another volume's own.
    #[inline]
    pub(super) fn is_of_another(&self, group: u32, volume: VolumeId) -> bool {
        ![NOBODY, volume].contains(&self.owner(group))
    }

    /// Returns whether a volume is to get a further group of its own, within its largest part;
    /// `free` is the size of what is in the group without a block of the volume.
    pub(super) fn lacks_group(&self, volume: VolumeId, free: u64) -> bool {
        let lacks = self.active.as_ref().is_some_and(|active| active.own.lacks(volume));
        lacks && !self.is_beyond_most(volume, free)
    }

    /// Returns whether a volume is to get a group of its own in which it has nothing yet.
    pub(super) fn lacks_free_group(&self, volume: VolumeId) -> bool {
        self.lacks_group(volume, self.units)
    }

    /// Returns whether the own groups of a volume are guaranteed to it.
    pub(super) fn keeps_groups(&self, volume: VolumeId) -> bool {
        let active = self.active.as_ref();
        active.is_some_and(|active| active.of(volume).guaranteed >= self.units)
    }

    /// Returns whether a volume may put nothing into a group, as it is guaranteed to another.
    pub(super) fn is_kept_from(&self, volume: VolumeId, group: u32) -> bool {
        self.is_of_another(group, volume) && self.keeps_groups(self.owner(group))
    }

    /// Returns whether some volume has fewer groups of its own than it may have.
    pub(super) fn is_any_group_lacking(&self) -> bool {
        self.active.as_ref().is_some_and(|active| active.own.is_any_lacking())
    }

    /// Returns the own groups of a volume, the coldest first.
    pub(super) fn own_groups(&self, volume: VolumeId) -> impl Iterator<Item = u32> + '_ {
        self.active.iter().flat_map(move |active| active.own.coldest_first(volume))
    }

    /// Makes an empty group the hottest of a volume's own.
    pub(super) fn take_group(&mut self, group: u32, volume: VolumeId) {
        let free = self.units;
        self.change(volume, |_, own| {
            own.into_iter().for_each(|own| own.take(group, volume, free, VolumeLists::push));
        });
    }

    /// Makes a group that is a volume's own a common one; `free` is the size of what is in it
    /// without a block of the volume.
    pub(super) fn release_group(&mut self, group: u32, free: u64) {
        self.change(self.owner(group), |_, own| {
            own.into_iter().for_each(|own| own.release(group, free));
        });
    }

    /// Makes a group the hottest of its owner's.
    pub(super) fn touch_group(&mut self, group: u32) {
        self.active.iter_mut().for_each(|active| active.own.touch(group));
    }

    /// Makes a block the hottest of its volume.
    pub(super) fn touch(&mut self, block: Block, volume: VolumeId) {
        if let Some(lists) = self.active.as_mut().and_then(|active| active.lists.as_mut()) {
            lists.remove(block, List::of(volume));
            lists.push(block, List::of(volume));
        }
    }

    /// Returns a volume's blocks, or the filler blocks in common groups, the coldest first; none
    /// until they are listed.
    pub(super) fn coldest_first(&self, volume: VolumeId) -> impl Iterator<Item = Block> + '_ {
        listed_in(self, List::of(volume))
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

    /// Returns whether volumes use this much more than is guaranteed to them, all together.
    pub(super) fn are_beyond_guaranteed(&self, most: u64) -> bool {
        self.active.as_ref().is_none_or(|active| active.beyond >= most)
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
        let volumes = in_turn(self.mapped.len(), active.turn, VOLUMES_COMPARED);
        let beyond = volumes.filter_map(|at| {
            self.note_look();
            let volume = VolumeId(at as u16);
            let beyond = self.beyond(volume);
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
            let unassigned = active.unassigned.as_ref().map_or(0, Vec::capacity);
            active.shares.capacity() * size_of::<ShardShare>()
                + lists
                + active.own.memory_bytes()
                + unassigned * size_of::<u32>()
        })
    }

    /// Checks the counts and lists against all mapped blocks, each with its place, its volume and
    /// its size. Slow.
    pub(super) fn check(&self, blocks: &[(Block, u32, VolumeId, u64)]) {
        let owned = || blocks.iter().filter(|(_, _, volume, _)| *volume != NOBODY);
        let most = owned().map(|(_, _, volume, _)| usize::from(volume.0) + 1).max().unwrap_or(0);
        let mut mapped = vec![0; most.max(self.mapped.len())];
        let groups = blocks.iter().map(|(_, place, ..)| self.group(*place) as usize + 1).max();
        let mut in_own = vec![0; groups.unwrap_or(0)];
        for (_, place, volume, size) in owned() {
            let group = self.group(*place);
            mapped[usize::from(volume.0)] += size;
            let owner = self.owner(group);
            assert!([NOBODY, *volume].contains(&owner), "{group} has a block of another");
            in_own[group as usize] += if owner == *volume { *size } else { 0 };
        }
        assert_eq!(self.mapped, mapped);
        if let Some(active) = &self.active {
            let volumes = (0..mapped.len() as u16).map(VolumeId);
            assert_eq!(active.beyond, volumes.map(|volume| self.beyond(volume)).sum::<u64>());
            active.own.check(&in_own, self.units);
            assert!(active.is_new || active.own.surplus().next().is_none());
            assert!(active.is_new || active.unassigned.is_none());
        }
        if self.active.as_ref().is_none_or(|active| active.lists.is_none()) {
            return;
        }
        let volumes = (0..mapped.len() as u16).map(VolumeId);
        let lists = volumes.flat_map(|volume| [List::of(volume), List::fillers_of(volume)]);
        for list in lists.chain([List::of(NOBODY)]) {
            let mut listed: Vec<Block> = listed_in(self, list).collect();
            let in_list = |place: u32, volume| list_of(self, volume, self.group(place)) == list;
            let of_volume = blocks.iter().filter(|(_, place, of, _)| in_list(*place, *of));
            let mut mapped: Vec<Block> = of_volume.map(|(block, ..)| *block).collect();
            listed.sort_unstable();
            mapped.sort_unstable();
            assert_eq!(listed, mapped, "the blocks of {list:?} are listed once");
        }
    }
}

/// Changes the lists, if there are any, for a block of a volume at a place. Returns the group
/// with that while some volume has a share.
#[inline]
fn listed(
    shares: &mut Shares,
    place: u32,
    volume: VolumeId,
    change: impl FnOnce(&mut VolumeLists, List),
) -> Option<u32> {
    let active = shares.active.as_mut()?;
    let group = place / shares.units as u32; // not divided without shares
    let list = active.own.list(volume, group);
    if let Some(lists) = &mut active.lists {
        change(lists, list);
    }
    Some(group)
}

/// Returns the list of a block of a volume in a group.
pub(super) fn list_of(shares: &Shares, volume: VolumeId, group: u32) -> List {
    let active = shares.active.as_ref();
    active.map_or(List::of(volume), |active| active.own.list(volume, group))
}

/// Moves filler blocks from the list for one owner of their group to that for another.
pub(super) fn move_fillers(shares: &mut Shares, fillers: &[Block], from: VolumeId, to: VolumeId) {
    let Some(lists) = shares.active.as_mut().and_then(|active| active.lists.as_mut()) else {
        return;
    };
    for &filler in fillers {
        lists.remove(filler, List::fillers_of(from));
        lists.push(filler, List::fillers_of(to));
    }
}

/// Returns at most `most` of the coldest groups of those that volumes have beyond their maximum.
pub(super) fn surplus_groups(shares: &Shares, most: usize) -> Vec<u32> {
    shares.active.iter().flat_map(|active| active.own.surplus()).take(most).collect()
}

/// Takes the list of groups that may still become own ones, if they are listed.
pub(super) fn take_unassigned(shares: &mut Shares) -> Option<Vec<u32>> {
    shares.active.as_mut()?.unassigned.take()
}

/// Sets the list of groups that may still become own ones.
pub(super) fn put_unassigned(shares: &mut Shares, groups: Option<Vec<u32>>) {
    if let Some(active) = &mut shares.active {
        active.unassigned = groups;
    }
}

/// Makes a common group the coldest of a volume's own; `free` is the size of what is in it without
/// a block of the volume.
pub(super) fn take_used_group(shares: &mut Shares, group: u32, volume: VolumeId, free: u64) {
    shares.change(volume, |_, own| {
        own.into_iter().for_each(|own| own.take(group, volume, free, VolumeLists::push_cold));
    });
}

/// Returns the filler blocks in a volume's own groups, which only it replaces.
pub(super) fn own_fillers(shares: &Shares, volume: VolumeId) -> impl Iterator<Item = Block> + '_ {
    listed_in(shares, List::fillers_of(volume))
}

fn listed_in(shares: &Shares, list: List) -> impl Iterator<Item = Block> + '_ {
    let lists = shares.active.iter().filter_map(|active| active.lists.as_ref());
    let blocks = lists.flat_map(move |lists| lists.coldest_first(list));
    blocks.inspect(|_| shares.note_look())
}

/// Returns whether a volume is to empty a group that others have lent, to have one of its own:
/// it has not all that is guaranteed to it, and does not wait.
pub(super) fn claims_group(shares: &mut Shares, volume: VolumeId) -> bool {
    let lacks = shares.lacks_free_group(volume)
        && shares.keeps_groups(volume)
        && shares.are_beyond_guaranteed(shares.units);
    let used = shares.used(volume);
    let Some(active) = &mut shares.active else { return false };
    lacks && used < active.of(volume).guaranteed && !active.own.is_waiting(volume)
}

/// Has a volume that has found no group to empty wait before it looks again.
pub(super) fn wait_with_claims(shares: &mut Shares, volume: VolumeId) {
    shares.active.iter_mut().for_each(|active| active.own.wait(volume));
}

/// Returns at most `most` of the numbers below `len`; those of the next turn follow on them.
fn in_turn(len: usize, turn: usize, most: usize) -> impl Iterator<Item = usize> {
    let first = turn.wrapping_mul(most);
    (0..len.min(most)).map(move |at| first.wrapping_add(at) % len)
}

/// The groups that belong to one volume each while it has a share.
///
/// A volume needs groups without blocks of others to change the sizes of its blocks: a group is
/// emptied as a whole. Only blocks of the volume and filler blocks are in a group of its own.
///
/// Invariants: `lists` has exactly the groups with an owner, each in the list of that; `parts[v]`
/// has their number, and the size of what is in them without a block of volume `v`.
#[derive(Debug, Default)]
struct OwnGroups {
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
    /// Number of searches in which the volume does not look for a group to empty.
    waits: u32,
}

impl OwnGroups {
    /// Sets the maximum number of a volume's own groups. It may have more until some are
    /// [released](Self::release).
    fn set_most(&mut self, volume: VolumeId, most: u32) {
        self.part_mut(volume).most = most;
    }

    /// Returns the owner of a group, [`NOBODY`] for a common one.
    #[inline]
    fn owner(&self, group: u32) -> VolumeId {
        self.owners.get(group as usize).copied().unwrap_or(NOBODY)
    }

    /// Returns the list of a block of a volume in a group.
    fn list(&self, volume: VolumeId, group: u32) -> List {
        if volume == NOBODY { List::fillers_of(self.owner(group)) } else { List::of(volume) }
    }

    /// Returns the size of the places in a volume's own groups that have no block of it.
    fn free(&self, volume: VolumeId) -> u64 {
        self.part(volume).free
    }

    /// Returns whether a volume has fewer groups of its own than it may have.
    fn lacks(&self, volume: VolumeId) -> bool {
        let part = self.part(volume);
        part.groups < part.most
    }

    /// Counts a search of a volume. Returns whether it is not to look for a group to empty.
    fn is_waiting(&mut self, volume: VolumeId) -> bool {
        let part = self.part_mut(volume);
        let waits = part.waits > 0;
        part.waits -= u32::from(waits);
        waits
    }

    fn wait(&mut self, volume: VolumeId) {
        self.part_mut(volume).waits = CLAIMS_LEFT_OUT;
    }

    /// Returns whether some volume has fewer groups of its own than it may have.
    fn is_any_lacking(&self) -> bool {
        self.parts.iter().any(|part| part.groups < part.most)
    }

    /// Returns the coldest groups of those that volumes have beyond their maximum.
    fn surplus(&self) -> impl Iterator<Item = u32> + '_ {
        let volumes = (0..).map(VolumeId).zip(&self.parts);
        volumes.flat_map(|(volume, part)| {
            self.coldest_first(volume).take(part.groups.saturating_sub(part.most) as usize)
        })
    }

    /// Returns a volume's own groups, the coldest first.
    fn coldest_first(&self, volume: VolumeId) -> impl Iterator<Item = u32> + '_ {
        self.lists.coldest_first(List::of(volume)).map(|group| group.0)
    }

    /// Makes a common group one of a volume's own groups, which `push` puts into the list of these;
    /// `free` is the size of what is in it without a block of the volume.
    fn take(
        &mut self,
        group: u32,
        volume: VolumeId,
        free: u64,
        push: impl FnOnce(&mut VolumeLists, Block, List),
    ) {
        debug_assert!(self.owner(group) == NOBODY && volume != NOBODY);
        let at = group as usize;
        if self.owners.len() <= at {
            self.owners.resize(at + 1, NOBODY);
        }
        self.owners[at] = volume;
        push(&mut self.lists, Slot(group), List::of(volume));
        let part = self.part_mut(volume);
        part.groups += 1;
        part.free += free;
    }

    /// Makes a volume's own group a common one; `free` is the size of what is in it without a block
    /// of the volume.
    fn release(&mut self, group: u32, free: u64) {
        let volume = std::mem::replace(&mut self.owners[group as usize], NOBODY);
        self.lists.remove(Slot(group), List::of(volume));
        let part = self.part_mut(volume);
        part.groups -= 1;
        part.free -= free;
    }

    /// Counts a block of this size that was mapped in a group.
    fn mapped(&mut self, group: u32, volume: VolumeId, size: u64) {
        if volume != NOBODY && self.owner(group) == volume {
            self.part_mut(volume).free -= size;
        }
    }

    /// Counts a block of this size in a group that is no longer mapped.
    fn unmapped(&mut self, group: u32, volume: VolumeId, size: u64) {
        if volume != NOBODY && self.owner(group) == volume {
            self.part_mut(volume).free += size;
        }
    }

    /// Makes a group the hottest of its owner's.
    fn touch(&mut self, group: u32) {
        let owner = self.owner(group);
        if owner != NOBODY {
            self.lists.remove(Slot(group), List::of(owner));
            self.lists.push(Slot(group), List::of(owner));
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

    fn memory_bytes(&self) -> usize {
        self.owners.capacity() * size_of::<VolumeId>()
            + self.parts.capacity() * size_of::<OwnPart>()
            + self.lists.memory_bytes()
    }

    /// Checks the counts, given the size of what each group has of its owner's blocks, by number,
    /// and the size of a group. Slow.
    fn check(&self, sizes: &[u64], units: u64) {
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

    const A: VolumeId = VolumeId(0);
    const B: VolumeId = VolumeId(3);

    #[test]
    fn a_volume_keeps_what_is_guaranteed_and_nothing_more() {
        let mut shares = Shares::new(1);
        (0..6).for_each(|slot| shares.mapped(Slot(slot), 2 * slot, A, 2));
        assert!(shares.may_lose(A, 12, (B, 1)) && !shares.is_beyond_most(A, u64::MAX / 2));
        shares.set(A, ShardShare { guaranteed: 9, most: 12 }, 16);
        assert!(shares.need_lists() && shares.coldest_first(A).next().is_none());
        shares.apply(6, (0..6).map(|slot| (Slot(slot), List::of(A))), true);
        assert!(shares.may_lose(A, 3, (B, 1)) && !shares.may_lose(A, 4, (B, 1)));
        assert!(shares.may_lose(A, 4, (A, 1)), "its own block takes the place");
        assert!(shares.may_lose(NOBODY, 100, (B, 1)));
        assert!(!shares.is_beyond_most(A, 0) && shares.is_beyond_most(A, 1));
        shares.unmapped(Slot(2), 4, A, 2);
        shares.touch(Slot(0), A);
        let order: Vec<u32> = shares.coldest_first(A).map(|block| block.0).collect();
        assert_eq!((order, shares.used(A)), (vec![1, 3, 4, 5, 0], 10));
        shares.set(A, ShardShare::NONE, 16);
        assert!(shares.are_new() && !shares.need_lists() && shares.coldest_first(A).count() == 5);
        shares.apply(0, std::iter::empty(), false);
        assert!(shares.are_new() && shares.coldest_first(A).count() == 5);
        shares.apply(0, std::iter::empty(), true);
        assert!(!shares.are_set() && shares.memory_bytes() == 0 && shares.used(A) == 10);
    }

    #[test]
    fn a_volume_has_groups_in_the_order_of_their_use_up_to_its_maximum() {
        let (mut own, volume) = (OwnGroups::default(), VolumeId(2));
        own.set_most(volume, 2);
        for group in [4, 0] {
            assert!(own.lacks(volume) && own.owner(group) == NOBODY);
            own.take(group, volume, 16, VolumeLists::push);
        }
        own.mapped(4, volume, 4);
        own.mapped(4, NOBODY, 4);
        own.mapped(1, volume, 4);
        assert!(!own.lacks(volume) && own.free(volume) == 28 && own.owner(4) == volume);
        own.touch(4);
        assert_eq!(own.coldest_first(volume).collect::<Vec<_>>(), [0, 4]);
        assert!(own.surplus().next().is_none());
        own.set_most(volume, 1);
        assert_eq!(own.surplus().collect::<Vec<_>>(), [0]);
        own.release(0, 16);
        own.unmapped(4, volume, 4);
        assert!(!own.lacks(volume) && own.free(volume) == 16 && own.owner(0) == NOBODY);
        own.check(&[0; 5], 16);
    }
}
