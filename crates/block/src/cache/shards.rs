//! The shards of a part, and a record of which may have events to be handled.
//!
//! Every call that may cause events gets its shard from [`Shards::at`], [`Shards::of_op`] or
//! [`Shards::each`]. These mark the shards that they return as *stirred*.

use super::fetch_size::FetchSize;
use super::price::Price;
use crate::config::{CacheShare, Config};
use crate::exchange::{ForeignPiece, Message, PartId};
use crate::geometry::{BlockSizes, SECTOR_BYTES, Sectors, VolumeId};
use crate::join::Piece;
use crate::journal::{Change, RestoredBlock};
use crate::mapping::directory::{ShardShare, resize};
use crate::order::{OpId, Order};
use crate::shard::fills::{FillTimes, Fills};
use crate::shard::{Shard, clean, leaving};
use crate::tasks::{Part, shard_of};
use floe_policy::Slot;

/// The shard number in the ids of the router's own operations.
pub(crate) const ROUTER: u8 = u8::MAX;

#[derive(Debug)]
pub(crate) struct Shards {
    pub(super) part: PartId,
    pub(super) parts: usize,
    /// This part's shards in order: those with `number % parts == part`.
    shards: Vec<Shard>,
    /// Number of shards of all parts together.
    pub(super) all: u64,
    sizes: BlockSizes,
    /// The learner of the size of fetches; `None` where the size is fixed.
    fetch_size: Option<Box<FetchSize>>,
    /// A bit for each of this part's shards that may have events to be handled.
    stirred: u128,
    /// A bit for each of this part's shards that may have blocks to clean, as of its last events.
    cleaning: u128,
    /// The space on the cache device of all shards of all parts.
    space: Space,
    /// Set while some shard may have groups above its limit.
    gives_back: bool,
    /// The shard of this part that gives back space first in the next round.
    first_to_give: usize,
    degraded: bool,
    /// Set when some shard may have lost sectors that were not reported yet.
    has_newly_lost: bool,
}

/// The bytes of a part whose space is given back in a round of its driver, and the least and the
/// largest number of groups.
const GIVEN_BACK_BYTES: u64 = 2 << 20;
const LEAST_GIVEN_BACK: u64 = 8;
const MOST_GIVEN_BACK: u64 = 256;

/// The space of all shards on the cache device: as many groups for each.
#[derive(Debug)]
struct Space {
    /// Number of groups for which each shard has addresses.
    groups: u64,
    /// Number of shards, and of sectors of a group.
    shards: u64,
    group: u64,
}

impl Space {
    /// Creates the space of a cache that was just made.
    fn new(config: &Config, shards: u64) -> Self {
        let mut space = Self { groups: 0, shards, group: config.sizes.largest() };
        space.groups = space.groups_of(config.cache_bytes);
        space
    }

    /// Returns the number of groups of each shard of a cache of this many bytes.
    fn groups_of(&self, cache_bytes: u64) -> u64 {
        cache_bytes / self.shards / (self.group * SECTOR_BYTES)
    }

    /// Returns the sectors behind the space that a shard gets where each is to have addresses for
    /// `groups`; `None` if it has as many.
    fn beyond(&self, shard: u64, groups: u64) -> Option<Sectors> {
        let more = groups.checked_sub(self.groups).filter(|more| *more > 0)? * self.group;
        let start = self.groups * self.shards * self.group + shard * more;
        Some(start..start + more)
    }
}

/// The volumes with blocks that wait for their turn to be cleaned, each with its urgency.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    volumes: Vec<VolumeId>,
    /// Urgency by volume id; `None` for those that do not wait.
    urgencies: Vec<Option<f64>>,
}

impl Turns {
    /// Adds a volume, which counts once, with the highest urgency that is given.
    pub(crate) fn add(&mut self, volume: VolumeId, urgency: f64) {
        let at = volume.0 as usize;
        self.urgencies.resize(self.urgencies.len().max(at + 1), None);
        match &mut self.urgencies[at] {
            Some(highest) => *highest = highest.max(urgency),
            none => {
                *none = Some(urgency);
                self.volumes.push(volume);
            }
        }
    }

    /// Takes one of the volumes.
    pub(crate) fn take(&mut self) -> Option<(VolumeId, f64)> {
        let volume = self.volumes.pop()?;
        Some((volume, self.urgencies[volume.0 as usize].take()?))
    }
}

impl Shards {
    /// Creates the shards of one part; `all` is the number of shards of all parts together.
    pub(super) fn new(
        part: PartId,
        parts: usize,
        all: u64,
        config: &Config,
        shard: impl Fn(u64) -> Shard,
    ) -> Self {
        let mut shards: Vec<Shard> = (u64::from(part.0)..all).step_by(parts).map(shard).collect();
        let fills = Fills::default();
        shards.iter_mut().for_each(|shard| shard.parts.fills = fills.clone());
        let sizes = config.sizes.clone();
        let learns = config.adapts_fetches && config.mode.caches_reads() && sizes.count() > 1;
        let fetch_size = learns.then(|| {
            let sectors = sectors_of(config, all, shards.len());
            Box::new(FetchSize::new(&sizes, config.mode, sectors))
        });
        let (stirred, cleaning, degraded, has_newly_lost) = (0, 0, false, false);
        let mut part = Self {
            part,
            parts,
            shards,
            all,
            sizes,
            fetch_size,
            stirred,
            cleaning,
            space: Space::new(config, all),
            gives_back: false,
            first_to_give: 0,
            degraded,
            has_newly_lost,
        };
        part.set_fetch_size();
        part
    }

    /// Returns the bytes of the cache device for which all shards of all parts have addresses.
    pub(super) fn addressed_bytes(&self) -> u64 {
        self.space.groups * self.space.shards * self.group_bytes()
    }

    /// Changes the size of all shards to that of `config`.
    pub(super) fn resize(&mut self, config: &Config) {
        let groups = self.space.groups_of(config.cache_bytes);
        let numbers = (u64::from(self.part.0)..self.all).step_by(self.parts);
        for (number, shard) in numbers.zip(&mut self.shards) {
            let more = self.space.beyond(number, groups);
            leaving::change_size(&mut shard.parts, config.cache_bytes, groups as u32, more);
        }
        self.space.groups = self.space.groups.max(groups);
        self.gives_back = true;
        if let Some(size) = &mut self.fetch_size {
            size.resize(sectors_of(config, self.all, self.shards.len()));
        }
    }

    /// Counts the free groups above the limits as given back; what is in them stays.
    pub(crate) fn waive_excess(&mut self) {
        let directories = self.shards.iter_mut().map(|shard| &mut shard.parts.map.directory);
        directories.for_each(resize::waive_excess);
    }

    /// Returns whether some shard may have groups above its limit.
    #[inline]
    pub(super) fn is_giving_back(&self) -> bool {
        self.gives_back
    }

    /// Goes on with giving back the space of groups above the limit, in turn.
    pub(super) fn give_back(&mut self, orders: &mut Vec<Order>) {
        let most = GIVEN_BACK_BYTES / self.group_bytes();
        let mut left = most.clamp(LEAST_GIVEN_BACK, MOST_GIVEN_BACK) as usize;
        let count = self.shards.len();
        for at in (0..count).map(|at| (self.first_to_give + at) % count) {
            if groups_over(&self.shards[at]) > 0 {
                self.stirred |= 1 << at;
                left -= self.shards[at].give_back(left, orders);
            }
        }
        self.first_to_give = (self.first_to_give + 1) % count;
        self.gives_back = self.shards.iter().any(|shard| groups_over(shard) > 0);
    }

    /// Returns the bytes of a group.
    pub(super) fn group_bytes(&self) -> u64 {
        self.sizes.largest() * SECTOR_BYTES
    }

    /// Routes a sub-request to its shard, here or in another part.
    pub(super) fn give(&mut self, piece: Piece, orders: &mut Vec<Order>) {
        let shard = self.number_of(piece.volume, piece.sectors.start);
        let to = self.owner(shard);
        if to == self.part {
            self.submit(shard, piece, orders);
        } else {
            orders.push(Order::Send { to, message: Message::Piece(ForeignPiece(piece)) });
        }
    }

    /// Submits a sub-request to a shard of this part, by its number among all shards.
    #[inline]
    pub(super) fn submit(&mut self, number: u64, piece: Piece, orders: &mut Vec<Order>) {
        if self.fetch_size.as_mut().is_some_and(|size| size.learn(&piece)) {
            self.set_fetch_size();
        }
        self.at(number).submit(piece, orders);
    }

    /// Passes the learned size of fetches to the shards.
    fn set_fetch_size(&mut self) {
        let Some(size) = &self.fetch_size else { return };
        let sectors = size.sectors();
        self.shards.iter_mut().for_each(|shard| shard.parts.fetch_sectors = sectors);
    }

    /// Sets the price of the backing devices' reads, by which the size of fetches is chosen.
    pub(crate) fn set_price(&mut self, price: Price) {
        if let Some(size) = &mut self.fetch_size {
            size.set_price(price);
        }
    }

    /// Sets the times that bound the fills under way.
    pub(crate) fn set_fill_times(&mut self, times: FillTimes) {
        self.shards.iter_mut().for_each(|shard| shard.parts.fills.set_times(times));
    }

    /// Returns the number, among all shards, of the shard that a sector belongs to.
    #[inline]
    pub(super) fn number_of(&self, volume: VolumeId, sector: u64) -> u64 {
        (self.sizes.region(volume, sector).hash() >> 32) % self.all
    }

    /// Returns the part that owns the shard of this number.
    #[inline]
    pub(super) fn owner(&self, number: u64) -> PartId {
        PartId((number % self.parts as u64) as u8)
    }

    /// Returns a shard of this part by its number among all shards, and marks it as having possible
    /// events.
    #[inline]
    pub(super) fn at(&mut self, number: u64) -> &mut Shard {
        let here = number as usize / self.parts;
        self.stirred |= 1 << here;
        &mut self.shards[here]
    }

    /// Returns the shard that ordered an operation, and marks it as having possible events.
    #[inline]
    pub(super) fn of_op(&mut self, op: OpId) -> &mut Shard {
        self.at(shard_of(op).into())
    }

    /// Returns all shards of this part, and marks each as stirred.
    pub(crate) fn each(&mut self) -> impl Iterator<Item = &mut Shard> {
        self.stirred = u128::MAX;
        self.shards.iter_mut()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Shard> {
        self.shards.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.len()
    }

    /// Returns a shard that may have events, and unmarks it.
    #[inline]
    pub(super) fn next_stirred(&mut self) -> Option<&mut Shard> {
        if self.stirred == 0 {
            return None;
        }
        let stirred = self.stirred.trailing_zeros() as usize;
        self.stirred &= self.stirred - 1;
        if stirred >= self.shards.len() {
            self.stirred = 0;
            return None;
        }
        let shard = &mut self.shards[stirred];
        let cleans = !shard.parts.rounds.is_idle() || shard.parts.dirt.has_wanted();
        self.cleaning = self.cleaning & !(1 << stirred) | u128::from(cleans) << stirred;
        Some(shard)
    }

    /// Returns whether an operation of a backing device cleans a block.
    pub(crate) fn is_cleaning(&self, op: OpId) -> bool {
        let number = shard_of(op);
        if number == ROUTER {
            return false;
        }
        let shard = &self.shards[usize::from(number) / self.parts];
        matches!(shard.parts.tasks.of_op(op).1, Part::Dirty(_))
    }

    /// Returns the numbers, in this part, of the shards that may have blocks to clean.
    fn cleaning_shards(&self) -> impl Iterator<Item = usize> + use<> {
        let mut left = self.cleaning;
        std::iter::from_fn(move || {
            let next = (left != 0).then(|| left.trailing_zeros() as usize)?;
            left &= left - 1;
            Some(next)
        })
    }

    /// Returns whether some shard may have blocks to clean.
    #[inline]
    pub(crate) fn may_clean(&self) -> bool {
        self.cleaning != 0
    }

    /// Adds the volumes with blocks that wait for their turn to be cleaned, each with its urgency:
    /// that of the shard where it is most urgent.
    pub(crate) fn waiting_for_turns(&self, out: &mut Turns) {
        for parts in self.cleaning_shards().map(|at| &self.shards[at].parts) {
            let urgency = clean::urgency(parts);
            clean::waiting_for_turns(parts).for_each(|volume| out.add(volume, urgency));
        }
    }

    /// Returns the number of a volume's blocks that are read or written to be cleaned.
    pub(crate) fn cleaning(&self, volume: VolumeId) -> usize {
        self.shards.iter().map(|shard| shard.parts.dirt.cleaning(volume)).sum()
    }

    /// Begins to clean a block of a volume, in the shard where that is most urgent. At most `runs`
    /// of its dirty runs are written at once. Returns false if no block waits for its turn.
    pub(crate) fn clean_one(
        &mut self,
        volume: VolumeId,
        runs: usize,
        orders: &mut Vec<Order>,
    ) -> bool {
        loop {
            let waits = |at: &usize| {
                clean::waiting_for_turns(&self.shards[*at].parts).any(|other| other == volume)
            };
            let urgency = |at: &usize| clean::urgency(&self.shards[*at].parts);
            let all = self.cleaning_shards().filter(waits);
            let most_urgent = all.max_by(|a, b| urgency(a).total_cmp(&urgency(b)));
            let Some(at) = most_urgent else { return false };
            self.stirred |= 1 << at;
            if self.shards[at].clean_one(volume, runs, orders) {
                return true;
            } // what was wanted there is clean: it no longer waits
        }
    }

    /// Has blocks wait for their turn to be cleaned from now on: see [`Shards::clean_one`].
    pub(crate) fn pace(&mut self) {
        self.shards.iter_mut().for_each(|shard| shard.parts.dirt.pace());
    }

    /// Returns whether this part is degraded.
    pub(crate) fn is_degraded(&self) -> bool {
        self.degraded
    }

    pub(crate) fn degrade(&mut self) {
        if !std::mem::replace(&mut self.degraded, true) {
            self.shards.iter_mut().for_each(|shard| shard.parts.health.degrade());
        }
    }

    /// Ends the degradation of all shards: they use the cache device again.
    pub(super) fn restore(&mut self) {
        self.degraded = false;
        self.shards.iter_mut().for_each(|shard| shard.parts.health.restore());
    }

    /// Adds a volume, or changes the size of one.
    pub(super) fn set_volume(&mut self, id: VolumeId, bytes: u64) {
        let sectors = bytes.div_ceil(SECTOR_BYTES);
        self.shards.iter_mut().for_each(|shard| shard.parts.map.set_volume(id, sectors));
    }

    /// Sets the share of a volume. Each shard gets an equal part of it, in whole smallest blocks:
    /// of a largest part that is not 0 at least one.
    pub(super) fn set_share(&mut self, id: VolumeId, share: CacheShare) {
        let block_bytes = self.sizes.smallest() * SECTOR_BYTES * self.all;
        let part = |bytes: u64| bytes / block_bytes;
        let most = share.most_bytes.map(|bytes| part(bytes).max(u64::from(bytes > 0)));
        let most = most.unwrap_or(ShardShare::NONE.most);
        let guaranteed = share.guaranteed_bytes.div_ceil(block_bytes).min(most);
        let share = ShardShare { guaranteed, most };
        self.shards.iter_mut().for_each(|shard| shard.parts.map.directory.set_share(id, share));
    }

    /// Returns whether some of the last writes to a volume's backing device would not survive a
    /// power cut.
    pub(crate) fn is_unsettled(&self, volume: VolumeId) -> bool {
        self.iter().any(|shard| shard.parts.logging.settlements.is_unsettled(volume))
    }

    /// Records that a volume's backing device may have writes that a power cut would lose, though
    /// none of them came from this part.
    pub(crate) fn note_unsettled(&mut self, volume: VolumeId) {
        self.shards.iter_mut().for_each(|shard| shard.parts.logging.note_unsettled(volume));
    }

    /// Returns the position on the cache device of an operation's store, and the number of its
    /// sectors; `None` for other operations.
    pub(crate) fn stored_at(&self, op: OpId) -> Option<(u64, usize)> {
        let shard = shard_of(op);
        if shard == ROUTER { None } else { self.shards[shard as usize / self.parts].stored_at(op) }
    }

    /// Records that some shard may have lost sectors.
    pub(super) fn note_lost(&mut self) {
        self.has_newly_lost = true;
    }

    /// Moves the runs that this part has found to be lost since the last call into `out`.
    pub(crate) fn take_newly_lost(&mut self, out: &mut Vec<(VolumeId, Sectors)>) {
        if std::mem::take(&mut self.has_newly_lost) {
            self.shards.iter_mut().for_each(|shard| shard.parts.map.lost.report(out));
        }
    }

    /// Fills one of this part's shards with its content of the last session.
    pub(crate) fn restore_shard(&mut self, shard: usize, blocks: &[RestoredBlock]) {
        let parts = &mut self.shards[shard].parts;
        parts.map.directory.restore(blocks);
        parts.map.directory.blocks.valid.count(parts.admission.asks());
        for block in blocks {
            parts.logging.restore_seals(block);
            self.has_newly_lost |= !block.lost.is_empty();
            block.lost.iter().for_each(|run| parts.map.lost.restore(block.at.volume, run));
        }
    }

    /// Returns the blocks of a shard of this part, the coldest first.
    pub(crate) fn blocks_by_heat(&self, shard: usize) -> Vec<u32> {
        let blocks = self.shards[shard].parts.map.directory.by_heat();
        blocks.into_iter().map(|block| block.0).collect()
    }

    /// Adds the changes by which a checkpoint records a block, if the block still exists.
    pub(crate) fn state_block(&self, shard: usize, block: u32, out: &mut Vec<Change>) {
        self.shards[shard].dump(Slot(block), out);
    }
}

/// Returns the number of a shard's groups above its limit whose space is not given back yet.
pub(super) fn groups_over(shard: &Shard) -> u64 {
    resize::groups_over(&shard.parts.map.directory)
}

/// Returns the sectors of this many of all shards of a cache.
fn sectors_of(config: &Config, all: u64, shards: usize) -> u64 {
    config.cache_bytes / SECTOR_BYTES / all * shards as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_space_of_each_growth_lies_behind_that_of_all_shards() {
        let (shards, group) = (2, 8);
        let mut space = Space { groups: 3, shards, group };
        assert_eq!(space.groups_of(100 * SECTOR_BYTES), 6);
        assert_eq!([space.beyond(0, 3), space.beyond(1, 1)], [None, None]);
        assert_eq!([space.beyond(0, 5), space.beyond(1, 5)], [Some(48..64), Some(64..80)]);
        space.groups = 5;
        assert_eq!(space.beyond(1, 6), Some(88..96));
    }

    #[test]
    fn a_volume_waits_once_with_its_highest_urgency() {
        let mut turns = Turns::default();
        for (volume, urgency) in [(3, 0.5), (1, 0.0), (3, 1.0), (3, 0.25)] {
            turns.add(VolumeId(volume), urgency);
        }
        let taken: Vec<_> = std::iter::from_fn(|| turns.take()).collect();
        assert_eq!(taken, [(VolumeId(1), 0.0), (VolumeId(3), 1.0)]);
        turns.add(VolumeId(3), 0.125);
        assert_eq!(turns.take(), Some((VolumeId(3), 0.125)));
    }
}
