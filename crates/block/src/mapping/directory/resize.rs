//! The change of a directory's size: which groups leave when the space becomes smaller.
//!
//! A group that leaves is chosen by its heat, not by its address. It makes no new blocks and gets
//! no new dirty data; its blocks are dropped one by one as soon as they are clean and not in use,
//! and answer hits until then. A dropped block leaves a filler block, since groups have no holes.
//! With one block size a group is a block, and the policy names the next.
//!
//! While some volume has a share, groups are preferred whose volumes keep their guaranteed parts.

use super::order::VICTIMS_TRIED;
use super::search::losses;
use super::within_shares::{fill, release};
use super::{Block, Blocks, Directory, GROUPS_TRIED, NOBODY, blocks};
use crate::geometry::{Sectors, VolumeId};

/// Changes the number of groups that may take space on the cache device, and adds addresses
/// where there are too few. Shares have to be set again.
pub(crate) fn resize(directory: &mut Directory, groups: u32) {
    directory.groups.resize(groups);
    let sectors = directory.groups.addresses() * directory.blocks.sizes().largest();
    blocks::grow(&mut directory.blocks, sectors);
    directory.order.set_capacity(directory.groups.capacity());
}

/// Counts all groups that have an address and are not in use as free ones, whose space may hold old
/// data of an earlier session. A smaller directory gives that back, too.
pub(crate) fn claim_all(directory: &mut Directory) {
    directory.groups.claim_all();
}

/// Returns the number of groups above the limit whose space is not given back yet.
pub(crate) fn groups_over(directory: &Directory) -> u64 {
    directory.groups.over().into()
}

/// Takes a free group whose space is to be given back; `None` if there is none, or no group is
/// above the limit.
pub(crate) fn take_excess(directory: &mut Directory) -> Option<u32> {
    directory.groups.take_excess()
}

/// Frees a group of [`take_excess`], whose space was given back.
pub(crate) fn returned(directory: &mut Directory, group: u32) {
    directory.groups.returned(group);
}

/// Counts all free groups above the limit as given back; their space keeps what is there.
pub(crate) fn waive_excess(directory: &mut Directory) {
    while let Some(group) = take_excess(directory) {
        returned(directory, group);
    }
}

/// Returns the sectors of a group in the shard's space.
pub(crate) fn sectors_of(directory: &Directory, group: u32) -> Sectors {
    let size = directory.blocks.sizes().largest();
    let start = u64::from(group) * size;
    start..start + size
}

/// Returns the groups that are being emptied.
pub(crate) fn leaving(directory: &Directory) -> &[u32] {
    directory.groups.leaving()
}

/// Returns whether some group is being emptied.
#[inline]
pub(crate) fn has_leaving(directory: &Directory) -> bool {
    !directory.groups.leaving().is_empty()
}

/// Returns whether a block is in a group that is being emptied.
#[inline]
pub(crate) fn is_leaving(directory: &Directory, block: Block) -> bool {
    directory.groups.is_leaving(directory.blocks.place(block))
}

/// Ends the emptying of a group; what is left in it stays.
pub(crate) fn stay(directory: &mut Directory, group: u32) {
    directory.groups.stay(group);
}

/// Has another group emptied, if more have to leave than free groups and groups that leave
/// already. It has no block for which `is_stuck` holds. A group with a block for which `in_use`
/// holds is chosen last, and with one block size not at all. Returns whether there is one.
pub(crate) fn choose_leaving(
    directory: &mut Directory,
    in_use: impl Fn(VolumeId, &Sectors) -> bool,
    is_stuck: impl Fn(VolumeId, &Sectors) -> bool,
) -> bool {
    if directory.groups.excess() <= directory.groups.free_count() + leaving(directory).len() as u32
    {
        return false;
    }
    let mut chosen = coldest_idle(directory, in_use, &is_stuck);
    if chosen.is_none() && directory.blocks.sizes().count() > 1 {
        let is_stuck =
            |blocks: &Blocks, block| is_stuck(blocks.volume(block), &blocks.sectors(block));
        chosen = coldest_group(directory, is_stuck);
    }
    chosen.into_iter().for_each(|group| leave(directory, group));
    chosen.is_some()
}

/// Lets a group that leaves stay, and has another one emptied that has no block for which
/// `in_use` or `is_stuck` holds. Returns false, and changes nothing, if there is none.
pub(crate) fn choose_instead(
    directory: &mut Directory,
    group: u32,
    in_use: impl Fn(VolumeId, &Sectors) -> bool,
    is_stuck: impl Fn(VolumeId, &Sectors) -> bool,
) -> bool {
    let Some(other) = coldest_idle(directory, in_use, is_stuck) else { return false };
    directory.groups.stay(group);
    leave(directory, other);
    true
}

fn leave(directory: &mut Directory, group: u32) {
    fill(directory, group);
    release(directory, group);
    directory.groups.leave(group);
}

/// Returns the coldest group that does not leave yet and has no block in use or stuck.
fn coldest_idle(
    directory: &mut Directory,
    in_use: impl Fn(VolumeId, &Sectors) -> bool,
    is_stuck: impl Fn(VolumeId, &Sectors) -> bool,
) -> Option<u32> {
    if directory.blocks.shares.are_set() {
        directory.has_shares(); // applies changed ones
    }
    let stays = |blocks: &Blocks, block| {
        let (volume, sectors) = (blocks.volume(block), blocks.sectors(block));
        volume != NOBODY && (is_stuck(volume, &sectors) || in_use(volume, &sectors))
    };
    match directory.blocks.sizes().count() {
        1 => coldest_single(directory, |blocks, block| !stays(blocks, block)),
        _ => coldest_group(directory, stays),
    }
}

/// Returns the coldest group that does not leave yet and has no block for which `stays` holds.
fn coldest_group(directory: &Directory, stays: impl Fn(&Blocks, Block) -> bool) -> Option<u32> {
    let fits = |group: &u32| {
        let is_new = !leaving(directory).contains(group);
        is_new && !directory.blocks_of(*group).any(|block| stays(&directory.blocks, block))
    };
    let all = || directory.groups.coldest_first().filter(fits);
    let keeps = |group: &u32| keeps_guaranteed(directory, *group);
    let preferred = match directory.blocks.shares.are_set() {
        true => all().take(GROUPS_TRIED).find(keeps),
        false => None,
    };
    preferred.or_else(|| all().next())
}

/// Returns whether all volumes keep their guaranteed parts without a group.
fn keeps_guaranteed(directory: &Directory, group: u32) -> bool {
    let shares = &directory.blocks.shares;
    losses(directory, group)
        .into_iter()
        .all(|(volume, lost)| shares.may_lose(volume, lost, (NOBODY, 0)))
}

/// Returns the group of the coldest block that fits and does not leave yet, where a group is a
/// block.
fn coldest_single(directory: &mut Directory, fits: impl Fn(&Blocks, Block) -> bool) -> Option<u32> {
    let Directory { blocks, groups, order } = directory;
    let fits = |block| !groups.is_leaving(blocks.place(block)) && fits(blocks, block);
    let shares = &blocks.shares;
    let may_lose = |block| shares.may_lose(blocks.volume(block), blocks.size(block), (NOBODY, 0));
    let of_volume = |volume| {
        let blocks = shares.coldest_first(volume).take(VICTIMS_TRIED);
        { blocks }.find(|&block| fits(block) && may_lose(block))
    };
    let mut found = None;
    if shares.are_set() {
        found = of_volume(NOBODY)
            .or_else(|| order.coldest(None, |block| !fits(block) || !may_lose(block)))
            .or_else(|| shares.beyond_guaranteed().into_iter().find_map(of_volume));
    }
    let found = found
        .or_else(|| order.coldest(None, |block| !fits(block)))
        .or_else(|| order.parked().find(|&block| fits(block)));
    found.map(|block| groups.at(blocks.place(block)))
}

/// Drops a clean block of a group that is being emptied, and leaves a filler block.
///
/// # Panics
/// When the block is dirty.
pub(crate) fn drop_leaving(directory: &mut Directory, block: Block) {
    debug_assert!(is_leaving(directory, block));
    directory.disown(block);
}

/// The progress of giving back a shard's space.
#[derive(Debug, Default)]
pub(crate) struct Leaving {
    /// Blocks being cleaned because their group leaves.
    pub(crate) cleaning: usize,
    /// Groups whose space is being given back.
    pub(crate) giving_back: usize,
    /// Set after a block could not be cleaned, and during a rest, until it is tried again.
    pub(crate) is_paused: bool,
    /// Number of blocks that could not be cleaned since the last change of the size.
    failures: u64,
    /// Set when one of them could not be read.
    pub(crate) is_unreadable: bool,
}

impl Leaving {
    /// Begins with a new size.
    pub(crate) fn begin(&mut self) {
        (self.is_paused, self.failures, self.is_unreadable) = (false, 0, false);
    }

    /// Goes on after a failure.
    pub(crate) fn try_again(&mut self) {
        self.is_paused = false;
    }

    /// Returns whether no space is being given back. Blocks being cleaned hold a lock.
    pub(crate) fn is_idle(&self) -> bool {
        self.giving_back == 0
    }

    /// Returns the number of blocks that could not be cleaned since the last change of the size.
    pub(crate) fn failures(&self) -> u64 {
        self.failures
    }

    /// Counts the end of a block's cleaning.
    pub(crate) fn cleaned(&mut self, failed: bool) {
        self.cleaning -= 1;
        self.is_paused |= failed;
        self.failures += u64::from(failed);
    }
}
