//! The shard's side of its journal: what is logged, and in which order it must become durable.
//!
//! In a persistent cache, each change of the mapping is *noted*: it becomes a record in the shard's
//! log, durable with the next *commit* of the part (`commits.rs`). *Settlements* flush the backing
//! device's own write cache. A task waits for either as for an operation of a device.
//!
//! The state in memory never promises more than the log:
//!
//! - A sector is dirty here as long as the log may say so. It becomes clean, or goes away, when
//!   that is durable, after the backing device has been written *and settled*. So a place that the
//!   log calls dirty is never reused.
//! - Before the backing device changes under a clean copy, the log durably says that the copy is
//!   gone (`unlog`). Copies dropped earlier, for any reason, are remembered by region until that is
//!   durable (`gone`).
//! - Data read from a backing device that may still lose its last writes is not noted as clean
//!   before the device is settled (`deferred`). Until then it is cached, but would not survive a
//!   restart.
//! - A sector with a sealed dirty checksum in the log is not overwritten before the log permits it
//!   (`seal`).
//! - A clean copy may be overwritten in place, or its place be reused, at any time: the checksums
//!   in its record do not match the new content. Its removal is noted all the same. The device may
//!   lose the new content, and would then match the record again.
//! - The removal of a block is always noted: an older checkpoint and the log after it amount to the
//!   content of a newer checkpoint.

use std::collections::BTreeMap;

use hashbrown::HashMap;

use super::bypass::{Bypass, LogState};
use super::{BlockAt, Change, RestoredBlock, Standing};
use crate::bits::Bits;
use crate::config::Config;
use crate::geometry::{BlockSizes, Place, Sectors, VolumeId};
use crate::locks::Turns;
use crate::mapping::directory::{Block, Directory};
use crate::order::{Noted, OpId, Order};

/// A shard's side of its journal: its log, seals and settlements.
#[derive(Debug)]
pub(crate) struct Logging {
    pub(crate) log: Log,
    pub(crate) settlements: Settlements,
    pub(crate) bypass: Bypass,
    pub(super) seals: Seals,
    sizes: BlockSizes,
}

/// Returns a block's position in the form used by the log.
pub(crate) fn block_at(directory: &Directory, block: Block) -> BlockAt {
    let sectors = directory.blocks.sectors(block);
    let place = directory.blocks.cache_sectors(block, &sectors).start;
    BlockAt { volume: directory.blocks.volume(block), sectors, place }
}

impl Logging {
    /// Creates the logging state of the shard with this number and size in sectors.
    pub(crate) fn new(config: &Config, number: u8, sectors: u64) -> Self {
        Self {
            log: Log::new(config.kept, number),
            settlements: Settlements::default(),
            bypass: Bypass::default(),
            seals: Seals::new(if config.kept { sectors } else { 0 }),
            sizes: config.sizes.clone(),
        }
    }

    /// Returns whether changes are logged: there is a log, and it can be written.
    pub(crate) fn is_on(&self) -> bool {
        self.log.is_kept() && self.bypass.is_writable()
    }

    /// Returns whether the cache is persistent.
    pub(crate) fn is_kept(&self) -> bool {
        self.log.is_kept()
    }

    /// Returns the bytes of memory held for seals.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.seals.memory_bytes()
    }

    /// Logs the new state of a run of a block.
    pub(crate) fn note(
        &mut self,
        directory: &Directory,
        block: Block,
        run: &Sectors,
        standing: Standing,
        orders: &mut Vec<Order>,
    ) {
        if !self.is_kept() {
            return;
        }
        let at = block_at(directory, block);
        if standing.is_dirty() {
            self.bypass.note_unsure();
            self.log.note_dirty();
        }
        if standing == Standing::Invalid {
            self.note_gone(at.volume, run);
        }
        if !self.is_on() {
            return;
        }
        if standing != Standing::Clean {
            self.settlements.forget_deferred(at.volume, run);
        }
        self.seals.note(directory.blocks.cache_sectors(block, run), standing);
        self.log.note(Change::Run { block: at, run: run.clone(), standing }, orders);
    }

    /// Records that data was overwritten which the log calls dirty, or will: the next commit has to
    /// flush it.
    pub(crate) fn note_rewritten(&mut self) {
        if self.is_on() {
            self.log.note_rewritten();
        } else {
            self.bypass.note_unsure();
        }
    }

    /// Records that copies in a run's region are gone. When the log has failed, the region stays
    /// registered: the log still has the copies.
    fn note_gone(&mut self, volume: VolumeId, run: &Sectors) {
        self.log.note_gone(self.sizes.region(volume, run.start));
    }

    /// Returns whether the log may still have valid copies in a region that were dropped.
    pub(crate) fn has_gone(&self, region: Place) -> bool {
        let counts = matches!(self.bypass.state(), LogState::Writable | LogState::Unwritable);
        self.is_kept() && counts && self.log.has_gone_in(region)
    }

    /// Logs a run as clean, at once or when the backing device holds it durably.
    pub(crate) fn note_clean(
        &mut self,
        directory: &Directory,
        block: Block,
        run: &Sectors,
        orders: &mut Vec<Order>,
    ) {
        if self.is_on() && !self.settlements.defer(directory.blocks.volume(block), run) {
            self.note(directory, block, run, Standing::Clean, orders);
        }
    }

    /// Logs that a block leaves its place.
    pub(crate) fn note_dropped(
        &mut self,
        directory: &Directory,
        block: Block,
        orders: &mut Vec<Order>,
    ) {
        if self.is_kept() {
            let at = block_at(directory, block);
            self.note_gone(at.volume, &at.sectors);
            if self.is_on() {
                self.seals.forget(directory.blocks.cache_sectors(block, &at.sectors));
                self.log.note(Change::Dropped { block: at }, orders);
            }
        }
    }

    /// Records that a volume's backing device has writes that are not durable.
    pub(crate) fn note_unsettled(&mut self, volume: VolumeId) {
        if self.is_kept() {
            self.settlements.note_unsettled(volume);
        }
    }

    /// Handles the failure of the log: it cannot be written any more.
    pub(crate) fn lose(&mut self) {
        self.bypass.lose(self.log.has_uncommitted_dirty());
    }

    /// Registers a run that was stored as dirty for sealing by the next commit.
    pub(crate) fn seal_later(&mut self, directory: &Directory, block: Block, run: &Sectors) {
        self.note_rewritten();
        if self.is_on() {
            self.seals.seal_later(block, directory.blocks.cache_sectors(block, run));
        }
    }

    /// Prepares a write of dirty data to a run, none of which is sealed. Data stored there before,
    /// perhaps of an answered write, must be logged now: from now on a commit cannot seal it.
    pub(crate) fn note_overwriting(
        &mut self,
        directory: &Directory,
        block: Block,
        run: &Sectors,
        orders: &mut Vec<Order>,
    ) {
        let kept = directory.blocks.cache_sectors(block, run);
        for due in self.seals.overwrite(kept.clone()) {
            let run = moved(&due, kept.start, run.start);
            self.note(directory, block, &run, Standing::Dirty, orders);
        }
    }

    /// Logs the permission to overwrite a run, sealed or not.
    pub(crate) fn unseal(
        &mut self,
        directory: &Directory,
        block: Block,
        run: &Sectors,
        orders: &mut Vec<Order>,
    ) {
        for (run, sealed) in self.by_seal(directory, block, run) {
            if sealed {
                self.note(directory, block, &run, Standing::Dirty, orders);
            }
        }
        // or the commit that is to come would seal it
        self.note_overwriting(directory, block, run, orders);
    }

    /// Logs the checksums of the sectors that are due for sealing, for the commit that begins.
    pub(crate) fn seal(&mut self, directory: &Directory, orders: &mut Vec<Order>) {
        let mut blocks = self.seals.take_blocks();
        for block in blocks.drain(..) {
            if !self.seals.has_due() || !directory.blocks.is_live(block) {
                continue; // it has been cleaned, and perhaps replaced
            }
            let sectors = directory.blocks.sectors(block);
            let kept = directory.blocks.cache_sectors(block, &sectors);
            for due in self.seals.due(kept.clone()) {
                let run = moved(&due, kept.start, sectors.start);
                let standing = match () {
                    () if planted!(LostDirtyBit) => Standing::Clean,
                    () if planted!(NeverSealed) => Standing::Dirty,
                    () => Standing::Sealed,
                };
                self.note(directory, block, &run, standing, orders);
            }
        }
        self.seals.reuse(blocks);
    }

    /// Returns whether a run of a block has a sealed sector, which must not be overwritten yet.
    pub(crate) fn is_sealed(&self, directory: &Directory, block: Block, run: &Sectors) -> bool {
        self.seals.has_sealed(|| directory.blocks.cache_sectors(block, run))
            && !planted!(SealedOverwritten)
    }

    /// Divides a dirty run of a block, without lost sectors, into parts with a checksum in the log
    /// and parts without.
    pub(crate) fn by_seal(
        &self,
        directory: &Directory,
        block: Block,
        run: &Sectors,
    ) -> Vec<(Sectors, bool)> {
        let kept = directory.blocks.cache_sectors(block, run);
        let (from, to) = (kept.start, run.start);
        self.seals.by_seal(kept).map(|(at, sealed)| (moved(&at, from, to), sealed)).collect()
    }

    /// Removes the seals of a run that is durably no longer dirty.
    pub(crate) fn forget_seals(&mut self, directory: &Directory, block: Block, run: &Sectors) {
        if self.is_kept() {
            self.seals.forget(directory.blocks.cache_sectors(block, run));
        }
    }

    /// Restores the seals of a block from the log.
    pub(crate) fn restore_seals(&mut self, block: &RestoredBlock) {
        let kept = |run: &Sectors| moved(run, block.at.sectors.start, block.at.place);
        block.dirty.iter().for_each(|run| self.seals.note(kept(run), Standing::Dirty));
        block.sealed.iter().for_each(|run| self.seals.note(kept(run), Standing::Sealed));
    }
}

/// The log of a shard, as the shard sees it: pending changes and waiting operations.
#[derive(Debug)]
pub(crate) struct Log {
    /// Set if the shard has a log.
    kept: bool,
    shard: u8,
    commits: Turns,
    /// Set when changes were logged since the last commit began; the second flag, when some of them
    /// make data dirty.
    noted: bool,
    noted_dirty: bool,
    /// Set while a commit is under way that makes data dirty.
    committing_dirty: bool,
    waiting: Vec<(u64, OpId)>,
    /// Regions with dropped copies, each with the number of the commit that makes the drop durable.
    gone: HashMap<Place, u64, foldhash::fast::FixedState>,
}

impl Log {
    pub(crate) fn new(kept: bool, shard: u8) -> Self {
        Self {
            kept,
            shard,
            commits: Turns::default(),
            noted: false,
            noted_dirty: false,
            committing_dirty: false,
            waiting: Vec::new(),
            gone: HashMap::default(),
        }
    }

    /// Returns whether the shard has a log.
    #[inline]
    pub(crate) fn is_kept(&self) -> bool {
        self.kept
    }

    /// Appends a change to the log, for the next commit.
    pub(crate) fn note(&mut self, change: Change, orders: &mut Vec<Order>) {
        self.noted = true;
        orders.push(Order::Note { shard: self.shard, noted: Noted(change) });
    }

    /// Records that the next commit makes data dirty.
    pub(crate) fn note_dirty(&mut self) {
        self.noted_dirty = true;
    }

    /// Records that data was overwritten which the log calls dirty: the next commit has to flush
    /// it.
    #[inline]
    pub(crate) fn note_rewritten(&mut self) {
        (self.noted, self.noted_dirty) = (true, true);
    }

    /// Returns whether some dirty data may not be durable.
    pub(crate) fn has_uncommitted_dirty(&self) -> bool {
        self.noted_dirty || self.committing_dirty
    }

    /// Returns whether some logged change is not part of the commit under way.
    pub(crate) fn has_noted(&self) -> bool {
        self.noted
    }

    /// Records that cached copies of sectors in a region were dropped.
    pub(crate) fn note_gone(&mut self, region: Place) {
        self.gone.insert(region, self.commits.next());
    }

    /// Returns whether the log may still have copies in a region that were dropped.
    pub(crate) fn has_gone_in(&self, region: Place) -> bool {
        self.gone.contains_key(&region)
    }

    /// Makes an operation wait for the next commit.
    pub(crate) fn wait(&mut self, op: OpId) {
        self.waiting.push((self.commits.next(), op));
    }

    /// Begins a commit of all logged changes. Returns whether some of them make data dirty.
    pub(crate) fn begin(&mut self) -> bool {
        self.commits.begin();
        self.noted = false;
        self.committing_dirty = std::mem::take(&mut self.noted_dirty);
        self.committing_dirty
    }

    /// Ends the commit, and returns the operations that waited for it.
    pub(crate) fn end(&mut self, is_durable: bool) -> Vec<OpId> {
        let ended = self.commits.end();
        if is_durable {
            self.committing_dirty = false;
            self.gone.retain(|_, due| *due > ended);
        } else {
            self.noted = true;
        }
        self.waiting.extract_if(.., |(due, _)| *due <= ended).map(|(_, op)| op).collect()
    }

    /// Abandons the commit: the next one serves the operations that wait.
    pub(crate) fn abandon(&mut self) {
        self.commits.end();
    }

    /// Returns the operations that wait for commits.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = OpId> {
        self.waiting.iter().map(|(_, op)| *op)
    }
}

/// Translates a run from one start to another: places of a block to its sectors, or back.
fn moved(run: &Sectors, from: u64, to: u64) -> Sectors {
    run.start - from + to..run.end - from + to
}

/// Maximum number of sectors that wait to be logged as clean. Further ones are not logged, and
/// would be missing after a restart.
const MOST_DEFERRED: usize = 1 << 16;

/// The state of the settlements of all volumes, as a shard sees them.
#[derive(Debug, Default)]
pub(crate) struct Settlements {
    backings: Vec<Backing>,
    /// Clean sectors that are not logged yet, each with the number of the settlement that must come
    /// first.
    deferred: BTreeMap<Place, u64>,
}

/// The state of the settlements of a volume's backing device.
#[derive(Debug, Default)]
struct Backing {
    turns: Turns,
    /// The number of the settlement that makes the device's last change durable; 0 if none is
    /// needed.
    unsettled: u64,
    waiting: Vec<(u64, OpId)>,
}

impl Settlements {
    fn of(&mut self, volume: VolumeId) -> &mut Backing {
        let at = volume.0 as usize;
        self.backings.resize_with(self.backings.len().max(at + 1), Backing::default);
        &mut self.backings[at]
    }

    /// Records that a volume's backing device has writes that are not durable.
    pub(crate) fn note_unsettled(&mut self, volume: VolumeId) {
        let backing = self.of(volume);
        backing.unsettled = backing.turns.next();
    }

    /// Returns whether some of the last writes to a volume's backing device would not survive a
    /// power cut.
    pub(crate) fn is_unsettled(&self, volume: VolumeId) -> bool {
        self.backings.get(volume.0 as usize).is_some_and(|backing| backing.unsettled > 0)
    }

    /// Makes an operation wait for the next settlement.
    pub(crate) fn wait(&mut self, volume: VolumeId, op: OpId) {
        let backing = self.of(volume);
        backing.waiting.push((backing.turns.next(), op));
    }

    /// Begins a settlement of a volume's backing device.
    pub(crate) fn begin(&mut self, volume: VolumeId) {
        self.of(volume).turns.begin();
    }

    /// Ends a settlement. Returns the operations that waited for it, and the deferred sectors that
    /// may now be logged, if they are still clean.
    pub(crate) fn end(&mut self, volume: VolumeId, is_durable: bool) -> (Vec<OpId>, Vec<Place>) {
        let backing = self.of(volume);
        let ended = backing.turns.end();
        let due = backing.waiting.extract_if(.., |(due, _)| *due <= ended).map(|(_, op)| op);
        let due: Vec<OpId> = due.collect();
        if !is_durable {
            return (due, Vec::new());
        }
        if backing.unsettled <= ended {
            backing.unsettled = 0;
        }
        let settled = self.deferred.range(Place::all_of(volume));
        let settled = settled.filter(|(_, until)| **until <= ended).map(|(place, _)| *place);
        let settled: Vec<Place> = settled.collect();
        settled.iter().for_each(|place| {
            self.deferred.remove(place);
        });
        (due, settled)
    }

    /// Defers the logging of a clean run if the volume is not settled; returns whether it was
    /// deferred.
    pub(crate) fn defer(&mut self, volume: VolumeId, run: &Sectors) -> bool {
        let until = self.of(volume).unsettled;
        if until == 0 {
            return false;
        }
        for sector in run.clone() {
            let place = Place::new(volume, sector);
            if self.deferred.len() < MOST_DEFERRED {
                self.deferred.insert(place, until);
            } else {
                // an earlier settlement says nothing of what is there now
                self.deferred.remove(&place);
            }
        }
        true
    }

    /// Returns whether the logging of a sector is deferred.
    pub(crate) fn is_deferred(&self, volume: VolumeId, sector: u64) -> bool {
        self.deferred.contains_key(&Place::new(volume, sector))
    }

    /// Removes a run from the deferred sectors if the whole run is deferred; returns whether it
    /// was.
    pub(crate) fn take_deferred(&mut self, volume: VolumeId, run: &Sectors) -> bool {
        let is_deferred = run.clone().all(|sector| self.is_deferred(volume, sector));
        if is_deferred {
            self.forget_deferred(volume, run);
        }
        is_deferred
    }

    /// Removes the deferred sectors of a run.
    #[inline]
    pub(crate) fn forget_deferred(&mut self, volume: VolumeId, run: &Sectors) {
        if self.deferred.is_empty() {
            return;
        }
        for sector in run.clone() {
            self.deferred.remove(&Place::new(volume, sector));
        }
    }
}

/// State of each sector's dirty data in the log: without a checksum, sealed, or due for sealing.
#[derive(Debug)]
pub(crate) struct Seals {
    open: Bits,
    sealed: Bits,
    due: Bits,
    /// Blocks with sectors due for sealing, possibly with repetitions.
    blocks: Vec<Block>,
}

impl Seals {
    pub(crate) fn new(sectors: u64) -> Self {
        let [open, sealed, due] = [(); 3].map(|()| Bits::new(sectors));
        Self { open, sealed, due, blocks: Vec::new() }
    }

    /// Records the state of a run of places that the log has, or is about to have. A sealed run
    /// that is logged as no longer dirty stays sealed until that is durable and it is
    /// [forgotten](Self::forget): a checkpoint taken before must include the checksum.
    pub(crate) fn note(&mut self, kept: Sectors, standing: Standing) {
        let is_sealed = standing == Standing::Sealed;
        set(&mut self.open, kept.clone(), standing.is_dirty() && !is_sealed);
        set(&mut self.due, kept.clone(), false);
        if standing.is_dirty() {
            set(&mut self.sealed, kept, is_sealed);
        }
    }

    /// Records that no place of a run is dirty any more.
    pub(crate) fn forget(&mut self, kept: Sectors) {
        for bits in [&mut self.open, &mut self.sealed, &mut self.due] {
            set(bits, kept.clone(), false);
        }
    }

    /// Registers places of a block for sealing by the next commit.
    #[inline]
    pub(crate) fn seal_later(&mut self, block: Block, kept: Sectors) {
        self.due.set(kept);
        if self.blocks.last() != Some(&block) {
            self.blocks.push(block);
        }
    }

    /// Prepares an overwrite of places, none of which is sealed. Returns the parts whose data must
    /// be logged now, perhaps that of an answered write: from now on a commit cannot seal it.
    #[inline]
    pub(crate) fn overwrite(&mut self, kept: Sectors) -> Vec<Sectors> {
        if self.due.ones() == 0 || !self.due.any(kept.clone()) {
            return Vec::new();
        }
        let due = ones(&self.due, kept.clone()).filter(|run| !self.open.all(run.clone())).collect();
        self.due.clear(kept);
        due
    }

    /// Takes the blocks that may have places due for sealing; [`Seals::reuse`] takes the vector
    /// back.
    pub(crate) fn take_blocks(&mut self) -> Vec<Block> {
        std::mem::take(&mut self.blocks)
    }

    /// Keeps the memory of an empty vector for the next [`Seals::take_blocks`].
    pub(crate) fn reuse(&mut self, blocks: Vec<Block>) {
        debug_assert!(blocks.is_empty() && self.blocks.is_empty());
        self.blocks = blocks;
    }

    /// Returns whether some place is due for sealing.
    #[inline]
    pub(crate) fn has_due(&self) -> bool {
        self.due.ones() > 0
    }

    /// Returns the parts of a run of places that are due for sealing.
    pub(crate) fn due(&self, kept: Sectors) -> Vec<Sectors> {
        ones(&self.due, kept).collect()
    }

    /// Returns whether some place of a run is sealed.
    #[inline]
    pub(crate) fn has_sealed(&self, kept: impl FnOnce() -> Sectors) -> bool {
        self.sealed.ones() > 0 && self.sealed.any(kept())
    }

    /// Divides a run of places into parts with a checksum in the log and parts without.
    pub(crate) fn by_seal(&self, kept: Sectors) -> impl Iterator<Item = (Sectors, bool)> {
        self.sealed.runs(kept)
    }

    /// Returns the bytes of memory held.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let Self { open, sealed, due, .. } = self;
        [open, sealed, due].map(|bits| bits.memory_bytes() as u64).iter().sum()
    }
}

fn set(bits: &mut Bits, range: Sectors, value: bool) {
    if value {
        bits.set(range);
    } else if bits.ones() > 0 {
        bits.clear(range);
    }
}

/// Returns the parts of a range whose bits are set.
fn ones(bits: &Bits, range: Sectors) -> impl Iterator<Item = Sectors> {
    bits.runs(range).filter_map(|(run, bit)| bit.then_some(run))
}

#[cfg(test)]
mod log_tests {
    use super::*;
    use crate::geometry::VolumeId;

    const REGION: fn() -> Place = || Place::new(VolumeId(1), 0);

    #[test]
    fn a_commit_makes_the_changes_before_it_durable() {
        let mut log = Log::new(true, 3);
        log.note_rewritten();
        log.note_gone(REGION());
        log.wait(OpId(1));
        assert!(log.has_noted() && log.begin() && !log.has_noted());
        log.note_gone(Place::new(VolumeId(2), 0));
        log.wait(OpId(2));
        assert_eq!(log.end(true), [OpId(1)]);
        assert!(!log.has_gone_in(REGION()) && log.has_gone_in(Place::new(VolumeId(2), 0)));
        assert!(!log.has_uncommitted_dirty() && log.waiting().eq([OpId(2)]));
    }

    #[test]
    fn a_failed_commit_leaves_everything_to_be_noted() {
        let mut log = Log::new(true, 3);
        log.note_dirty();
        log.note_gone(REGION());
        log.wait(OpId(1));
        assert!(log.begin());
        log.abandon();
        assert!(log.waiting().eq([OpId(1)]), "the next commit serves it");
        log.begin();
        assert_eq!(log.end(false), [OpId(1)]);
        assert!(log.has_noted() && log.has_gone_in(REGION()));
    }
}

#[cfg(test)]
mod settlements_tests {
    use super::*;

    const VOLUME: VolumeId = VolumeId(1);

    #[test]
    fn clean_data_waits_for_the_settlement_after_the_last_change() {
        let mut settlements = Settlements::default();
        assert!(!settlements.defer(VOLUME, &(0..4)), "nothing has changed");
        settlements.note_unsettled(VOLUME);
        assert!(settlements.defer(VOLUME, &(0..2)));
        settlements.wait(VOLUME, OpId(1));
        settlements.begin(VOLUME);
        settlements.note_unsettled(VOLUME);
        assert!(settlements.defer(VOLUME, &(4..5)));
        settlements.wait(VOLUME, OpId(2));
        let places = |sectors: Sectors| sectors.map(|sector| Place::new(VOLUME, sector)).collect();
        assert_eq!(settlements.end(VOLUME, true), (vec![OpId(1)], places(0..2)));
        assert!(settlements.is_unsettled(VOLUME) && settlements.is_deferred(VOLUME, 4));
        settlements.begin(VOLUME);
        assert_eq!(settlements.end(VOLUME, true), (vec![OpId(2)], places(4..5)));
        assert!(!settlements.is_unsettled(VOLUME));
    }

    #[test]
    fn a_failed_settlement_answers_and_settles_nothing() {
        let mut settlements = Settlements::default();
        settlements.note_unsettled(VOLUME);
        assert!(settlements.defer(VOLUME, &(0..2)));
        settlements.wait(VOLUME, OpId(1));
        settlements.begin(VOLUME);
        assert_eq!(settlements.end(VOLUME, false), (vec![OpId(1)], vec![]));
        assert!(settlements.is_unsettled(VOLUME) && settlements.is_deferred(VOLUME, 1));
        settlements.forget_deferred(VOLUME, &(1..9));
        assert!(settlements.is_deferred(VOLUME, 0) && !settlements.is_deferred(VOLUME, 1));
    }
}

#[cfg(test)]
mod seals_tests {
    use std::slice;

    use super::*;

    const BLOCK: Block = floe_policy::Slot(7);

    fn sealed(seals: &Seals) -> Vec<Sectors> {
        seals.by_seal(0..64).filter_map(|(run, sealed)| sealed.then_some(run)).collect()
    }

    #[test]
    fn the_next_commit_seals_what_was_stored() {
        let mut seals = Seals::new(64);
        seals.seal_later(BLOCK, 8..16);
        seals.seal_later(BLOCK, 20..24);
        let mut blocks = seals.take_blocks();
        assert_eq!((&blocks[..], seals.has_due()), (&[BLOCK][..], true));
        for run in seals.due(0..64) {
            seals.note(run, Standing::Sealed);
        }
        blocks.clear();
        seals.reuse(blocks);
        assert_eq!((sealed(&seals), seals.has_due()), (vec![8..16, 20..24], false));
    }

    #[test]
    fn data_that_is_overwritten_before_its_seal_is_noted_once() {
        let mut seals = Seals::new(64);
        seals.seal_later(BLOCK, 8..16);
        assert_eq!(seals.overwrite(0..8), []);
        assert_eq!(seals.overwrite(12..20), slice::from_ref(&(12..16)));
        seals.note(12..16, Standing::Dirty);
        seals.seal_later(BLOCK, 12..16);
        assert_eq!(seals.overwrite(12..16), [], "the log calls it dirty already");
        assert_eq!(seals.due(0..64), slice::from_ref(&(8..12)));
    }

    #[test]
    fn a_seal_stays_until_the_data_is_durably_clean() {
        let mut seals = Seals::new(64);
        seals.note(8..16, Standing::Sealed);
        seals.note(8..16, Standing::Clean);
        assert_eq!(sealed(&seals), slice::from_ref(&(8..16)));
        seals.forget(8..12);
        assert!(seals.has_sealed(|| 10..13) && !seals.has_sealed(|| 8..12));
        seals.note(12..16, Standing::Dirty);
        assert!(!seals.has_sealed(|| 0..64));
    }
}
