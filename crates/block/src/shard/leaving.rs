//! Giving back space when the cache becomes smaller.
//!
//! The directory names the groups that leave, the coldest first ([`resize::choose_leaving`]). Their
//! dirty blocks are cleaned here. A write to such a group goes through to the backing device, so
//! that the group becomes clean. Clean blocks that no task uses are dropped, and the place of an
//! empty group is discarded on the cache device. Only then the group is free for other blocks.
//!
//! In a persistent cache the log durably says that nothing is there before a place is discarded.
//! While the log cannot be written nothing is discarded: what it calls dirty stays in its place.
//!
//! The part calls [`go_on`] between the rounds of its driver, while it has groups above the limit.

use super::clean::{Cleaning, is_paced};
use super::parts::Parts;
use crate::geometry::{Sectors, VolumeId};
use crate::locks::TaskId;
use crate::mapping::Mapping;
use crate::mapping::directory::{Block, Directory, NOBODY, resize};
use crate::order::{DeviceId, Order};
use crate::tasks::{Because, Part, TaskStep, Tasks, Work};

/// Maximum number of a shard's groups that are emptied at once.
const LEAVING_AT_ONCE: usize = 16;

/// Maximum number of a shard's blocks that are cleaned at once because their group leaves.
const CLEANED_AT_ONCE: usize = 32;

/// Maximum number of such blocks where cleaning is paced, so that the backing devices serve clients
/// meanwhile.
const CLEANED_WHILE_PACED: usize = 2;

/// Changes the number of groups that may take space on the cache device, to those that are
/// `cache_bytes` of the whole cache. `more` is the space behind that of all shards that the shard
/// gets for further addresses, if it needs some.
pub(crate) fn change_size(parts: &mut Parts, cache_bytes: u64, groups: u32, more: Option<Sectors>) {
    let is_smaller = cache_bytes < parts.config.cache_bytes;
    parts.config.cache_bytes = cache_bytes;
    if parts.config.kept && is_smaller {
        resize::claim_all(&mut parts.map.directory);
    }
    parts.map.resize(groups, more);
    parts.admission.resize(&parts.config, u64::from(groups) * parts.config.sizes.largest());
    parts.leaving.begin();
}

/// Empties groups above the limit, and begins to give back the space of at most `most` free ones,
/// as long as no more are on their way. Returns the number of these.
pub(super) fn go_on(parts: &mut Parts, most: usize) -> usize {
    let mut given_back = 0;
    loop {
        while parts.leaving.giving_back < most
            && let Some(group) = resize::take_excess(&mut parts.map.directory)
        {
            give_back(parts, group);
            given_back += 1;
        }
        if parts.leaving.giving_back >= most {
            return given_back;
        }
        if parts.leaving.is_paused {
            for group in resize::leaving(&parts.map.directory).to_vec() {
                resize::stay(&mut parts.map.directory, group);
            }
            return given_back;
        }
        let mut has_emptied = false;
        for group in resize::leaving(&parts.map.directory).to_vec() {
            has_emptied |= empty(parts, group);
        }
        if !has_emptied && !choose(parts) {
            return given_back;
        }
    }
}

/// Has one more group emptied, or another one instead of one that only waits; returns false if
/// there are enough, or none can be.
fn choose(parts: &mut Parts) -> bool {
    let Parts { map: Mapping { directory, lost, .. }, tasks, .. } = parts;
    let in_use = |volume, sectors: &Sectors| tasks.in_use(volume, sectors);
    // a block with lost sectors stays dirty until these are written
    let is_stuck = |volume, sectors: &Sectors| lost.has_any(volume, sectors);
    if resize::leaving(directory).len() < LEAVING_AT_ONCE
        && resize::choose_leaving(directory, in_use, is_stuck)
    {
        return true;
    }
    // A device that hangs below some volume may keep a group for long.
    let waits = |group: &&u32| only_waits(directory, tasks, **group);
    let waiting = resize::leaving(directory).iter().find(waits).copied();
    waiting.is_some_and(|group| resize::choose_instead(directory, group, in_use, is_stuck))
}

/// Returns whether all that is left in a group is clean and in use.
fn only_waits(directory: &Directory, tasks: &Tasks, group: u32) -> bool {
    let blocks = &directory.blocks;
    let mut left = directory.blocks_of(group).filter(|&block| blocks.volume(block) != NOBODY);
    left.all(|block| {
        !blocks.is_dirty(block) && tasks.in_use(blocks.volume(block), &blocks.sectors(block))
    })
}

/// Empties a group, if all its blocks are clean and none is in use. Otherwise drops those that are,
/// and has dirty ones cleaned. Returns whether the group is empty.
fn empty(parts: &mut Parts, group: u32) -> bool {
    let mut idle: Vec<Block> = Vec::new();
    let mut waits = false;
    for block in parts.map.directory.blocks_of(group) {
        let blocks = &parts.map.directory.blocks;
        let (volume, sectors) = (blocks.volume(block), blocks.sectors(block));
        if volume == NOBODY {
            continue;
        }
        if parts.tasks.in_use(volume, &sectors) {
            waits = true;
        } else if !blocks.is_dirty(block) {
            idle.push(block);
        } else if parts.map.lost.has_any(volume, &sectors) {
            resize::stay(&mut parts.map.directory, group);
            return false;
        } else {
            waits = true;
            clean(parts, volume, sectors.start);
        }
    }
    for &block in &idle {
        parts.admission.evicted(block, &parts.map.directory);
        if !planted!(LeftUnlogged) {
            parts.logging.note_dropped(&parts.map.directory, block, &mut parts.orders);
        }
        if waits {
            resize::drop_leaving(&mut parts.map.directory, block);
        }
    }
    if !waits {
        parts.map.directory.empty(group);
    }
    !waits
}

/// Begins to clean a block, unless many are being cleaned.
fn clean(parts: &mut Parts, volume: VolumeId, start: u64) {
    let most = if is_paced(parts) { CLEANED_WHILE_PACED } else { CLEANED_AT_ONCE };
    if parts.leaving.cleaning < most {
        parts.leaving.cleaning += 1;
        Cleaning::begin(parts, volume, start, Because::Leaving);
    }
}

/// Begins to give back the space of a free group.
fn give_back(parts: &mut Parts, group: u32) {
    parts.leaving.giving_back += 1;
    let id = parts.tasks.begin(Work::GiveBack { group }, NOBODY, 0..1);
    if parts.logging.is_kept() {
        parts.tasks[id].step = TaskStep::Unlogging;
        parts.await_commit(id, Part::Noted, &(0..1));
    } else {
        discard(parts, id, group);
    }
}

/// Continues once the log durably says that nothing is in the group, or cannot be written.
pub(super) fn unlogged(parts: &mut Parts, id: TaskId) {
    let group = group_of(parts, id);
    match parts.tasks[id].fault.is_none() && parts.logging.is_on() {
        true => discard(parts, id, group),
        false => given_back(parts, id),
    }
}

fn discard(parts: &mut Parts, id: TaskId, group: u32) {
    let (offset, len) = parts.map.group_bytes(group);
    parts.tasks[id].step = TaskStep::GivingBack;
    let op = parts.tasks.new_op(id, Part::GivenBack, &(0..1));
    parts.orders.push(Order::Discard { op, device: DeviceId::Cache, offset, len });
}

/// Handles the end of a group's discard. A failure does no harm: the group is written before it is
/// read again.
pub(super) fn given_back(parts: &mut Parts, id: TaskId) {
    let group = group_of(parts, id);
    parts.leaving.giving_back -= 1;
    resize::returned(&mut parts.map.directory, group);
    parts.tasks[id].step = TaskStep::Done;
    parts.tasks.free(id);
}

fn group_of(parts: &Parts, id: TaskId) -> u32 {
    let Work::GiveBack { group } = parts.tasks[id].work else {
        unreachable!("nothing else discards the cache device")
    };
    group
}
