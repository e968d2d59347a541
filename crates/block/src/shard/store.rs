//! Storing: finds blocks for data, makes room where there is none, and writes it to the cache
//! device.
//!
//! A task walks its data from left to right. It writes into existing blocks; where none is, it
//! allocates the largest that fits the missing range (AdaCache, Algorithm 2). Dirty victims are
//! first written to the backing device. Clean ones are evicted in their place meanwhile. Once too
//! many victims are being cleaned ahead of need (`dirt`), the task waits and continues from its
//! cursor. Where cleaning is paced and no volume has a share, no task waits: only clean blocks are
//! evicted. Data that is not admitted (`admission`), or finds all blocks in use or dirty, is not
//! cached. It goes to the backing device if it would be lost otherwise.

use std::cell::Cell;

use super::admission::Removal;
use super::clean::{self, Cleaning, is_paced};
use super::parts::Parts;
use crate::geometry::{Class, Place, Sectors, VolumeId};
use crate::journal::Standing;
use crate::locks::TaskId;
use crate::mapping::directory::{Block, CleanRoom, Origin, Room, largest_fitting};
use crate::tasks::{Because, Part, TaskStep, Work, common};

/// Maximum number of searches for a clean victim. Dirty ones that a search without a result found
/// are moved behind others in the order of eviction before the next.
const MOST_SEARCHES: usize = 2;

/// The result of the search for a block.
enum Placed {
    At(Block),
    /// Every cold block is in use: the data is not cached.
    Nowhere,
    /// Victims are being cleaned for a block that ends at this sector; the task is resumed
    /// afterwards.
    Later(u64),
}

/// Maximum number of blocks that a volume above its largest part gives up for a new one.
const GIVEN_UP_AT_ONCE: u32 = 256;

/// Marks that a task must wait for room until its victims are clean.
struct Waits;

/// A task whose data goes into the cache.
pub(super) struct Storing<'a> {
    parts: &'a mut Parts,
    id: TaskId,
}

impl<'a> Storing<'a> {
    pub(super) fn of(parts: &'a mut Parts, id: TaskId) -> Self {
        Self { parts, id }
    }

    /// Begins to store a run in the cache; the data is at the task's `data`.
    pub(super) fn begin(&mut self, run: Sectors, dirty: bool) {
        let store = &mut self.parts.tasks[self.id].store;
        (store.cursor, store.run, store.dirty) = (run.start, run, dirty);
        self.go_on();
    }

    /// Stores from the cursor on, until everything is ordered or the task must wait for room.
    pub(super) fn go_on(&mut self) {
        let id = self.id;
        let task = &mut self.parts.tasks[id];
        task.step = TaskStep::Storing;
        let (volume, end, dirty) = (task.volume, task.store.run.end, task.store.dirty);
        while self.parts.tasks[id].store.cursor < end {
            if dirty && self.parts.logging.is_kept() && self.parts.logging.bypass.is_bound() {
                self.parts.tasks[id].store.retry = true;
                break;
            }
            let left = self.parts.tasks[id].store.cursor..end;
            let block = match self.parts.map.directory.blocks.find(volume, left.start) {
                Some(block) => Some(block),
                None => match self.block_for(&left) {
                    Placed::At(block) => Some(block),
                    Placed::Nowhere => None,
                    Placed::Later(until) => return self.beyond(until),
                },
            };
            let run = match block {
                Some(block) => common(&left, &self.parts.map.directory.blocks.sectors(block)),
                None => left.start..self.without_block_until(&left),
            };
            let parts = &mut *self.parts;
            if let Some(block) = block
                && dirty
                && parts.logging.is_on()
            {
                let directory = &parts.map.directory;
                if parts.logging.is_sealed(directory, block, &run) {
                    return self.unseal();
                }
                parts.logging.note_overwriting(directory, block, &run, &mut parts.orders);
            }
            parts.tasks[id].store.cursor = run.end;
            let run = parts.map.within_volume(volume, &run);
            if run.start >= run.end {
                continue;
            }
            match block {
                Some(block) => {
                    if planted!(UnmarkedOverwrite) {
                        parts.map.directory.blocks.set_clean_invalid(block, &run);
                    } else if dirty && parts.logging.is_kept() {
                        // a checkpoint must not state data that is about to be overwritten
                        parts.drop_clean(block, &run, Some(Removal::Replaced));
                    }
                    let ahead = parts.tasks[id].is_ahead();
                    parts.map.directory.blocks.set_ahead(block, &run, ahead);
                    parts.write_cache(id, block, &run);
                }
                None if dirty && parts.logging.has_gone(parts.tasks.region_of(id)) => {
                    parts.await_commit(id, Part::Unlogged, &run);
                }
                None if dirty => self.around(&run),
                None => {}
            }
        }
        if self.parts.tasks[id].outstanding == 0 {
            self.ended();
        }
    }

    /// Returns the end of a run that begins without a block: after one smallest block, or after all
    /// sectors that must not or cannot make blocks.
    fn without_block_until(&self, left: &Sectors) -> u64 {
        let (task, unit) = (&self.parts.tasks[self.id], self.parts.config.sizes.smallest());
        let stays_out = |sector| task.store.no_room || task.store.stays_out(sector);
        let goes_on = |sector: u64| {
            stays_out(sector) && self.parts.map.directory.blocks.find(task.volume, sector).is_none()
        };
        let mut end = (left.start + 1).next_multiple_of(unit);
        while stays_out(left.start) && end < left.end && goes_on(end) {
            end += unit;
        }
        end.min(left.end)
    }

    /// Writes a run to the backing device that would be dirty in the cache but has no room there.
    pub(super) fn around(&mut self, run: &Sectors) {
        let durable = self.parts.tasks[self.id].is_durable();
        self.parts.write_backing(self.id, Part::Around, run, durable);
    }

    /// Ends a store. A durable write also waits until its records in the log are durable. A write
    /// that the cache could not take is resumed.
    pub(super) fn ended(&mut self) {
        let (parts, id) = (&mut *self.parts, self.id);
        let task = &mut parts.tasks[id];
        let dirty = task.store.dirty;
        if task.fault.is_none() && task.store.retry {
            task.step = TaskStep::Storing;
            return parts.tasks.resume(id);
        }
        if task.fault.is_none() && dirty && task.is_durable() {
            task.step = TaskStep::Noting;
            let range = task.range.clone();
            return parts.await_commit(id, Part::Noted, &range);
        }
        parts.finish(id);
        if dirty && parts.dirt.is_time_to_clean(parts.map.directory.blocks.dirty_sectors()) {
            parts.begin_rounds();
        }
    }

    /// Continues a client's store beyond a block that must wait for room, as a separate task. The
    /// data is in the request's buffer, which both tasks may use. Not done for a fetch or a
    /// write-back: these have their data in a buffer of one task, and no client waits for them.
    fn beyond(&mut self, until: u64) {
        let tasks = &mut self.parts.tasks;
        let task = &tasks[self.id];
        let (end, data, hit) = (task.store.run.end, task.store.data, task.hit);
        let waited_for = matches!(task.work, Work::Piece(_));
        if !task.store.dirty || until >= end || !waited_for {
            return;
        }
        let rest = tasks.cut(self.id, until);
        tasks[self.id].store.run.end = until;
        (tasks[rest].store.data, tasks[rest].hit) = (data, hit);
        Storing::of(self.parts, rest).begin(until..end, true);
    }

    /// Makes the largest block that begins at `left.start` and fits the missing range.
    fn block_for(&mut self, left: &Sectors) -> Placed {
        let parts = &mut *self.parts;
        let task = &parts.tasks[self.id];
        if task.store.no_room || parts.health.is_degraded() || task.store.stays_out(left.start) {
            return Placed::Nowhere;
        }
        let (volume, sizes) = (task.volume, &parts.config.sizes);
        let mut interval = sizes.round_out(left);
        let uncached = |sector: &u64| {
            parts.map.directory.blocks.find(volume, *sector).is_none()
                && !task.store.stays_out((*sector).max(left.start))
        };
        let units = (interval.start..interval.end).step_by(sizes.smallest() as usize);
        interval.end =
            interval.start + units.take_while(uncached).count() as u64 * sizes.smallest();
        let class = largest_fitting(sizes, &interval);
        let in_a_row = task.in_a_row(left.start, sizes.smallest());
        let origin = Origin { in_a_row, ahead: task.is_ahead() };
        match self.room(interval.start, class) {
            Some((class, Ok(room))) => {
                let directory = &mut self.parts.map.directory;
                Placed::At(directory.allocate(volume, interval.start, class, room, origin))
            }
            Some((class, Err(Waits))) => {
                Placed::Later(interval.start + self.parts.config.sizes.sectors(class))
            }
            None => Placed::Nowhere,
        }
    }

    /// Makes room for a block of at most this class: evicts clean blocks, and has dirty ones
    /// cleaned. The block is smaller than wanted only where a volume has a share. Returns `None` if
    /// there is no room, and [`Waits`] if the task must wait until victims are clean.
    fn room(&mut self, start: u64, mut class: Class) -> Option<(Class, Result<Room, Waits>)> {
        let (parts, id) = (&mut *self.parts, self.id);
        let volume = parts.tasks[id].volume;
        let mut given_up = 0;
        let room = loop {
            let are_some_used = Cell::new(false);
            let in_use = |volume, sectors: &Sectors| {
                let is_used = parts.tasks.in_use(volume, sectors);
                are_some_used.set(are_some_used.get() || is_used);
                is_used
            };
            let Some(room) = parts.map.directory.room(volume, start, class, in_use) else {
                if class.0 > 0 && parts.map.directory.blocks.shares.are_set() {
                    class.0 -= 1; // groups of smaller blocks may have a victim
                    continue;
                }
                if parts.map.directory.blocks.shares.are_set()
                    && (!are_some_used.get() || !parts.map.directory.may_make(volume))
                {
                    parts.tasks[id].store.no_room = true; // the rest would be sought in vain, too
                }
                parts.counters.stores_without_room += 1;
                return None;
            };
            if parts.map.directory.evicts(room) && parts.admission.withholds() {
                parts.counters.stores_withheld += 1;
                return None;
            }
            let directory = &parts.map.directory;
            let is_dirty = |block: &Block| directory.blocks.is_dirty(*block);
            let dirty: Vec<Block> = directory.victims(room).filter(is_dirty).collect();
            if dirty.is_empty() {
                let Room::GiveUp(block) = room else { break room };
                if given_up == GIVEN_UP_AT_ONCE {
                    parts.counters.stores_without_room += 1;
                    return None;
                }
                given_up += 1;
                let was_within = parts.map.directory.is_within_most(volume);
                note_evicted(parts, room);
                parts.map.directory.give_up(block);
                if was_within {
                    parts.counters.stores_without_room += 1;
                    return None; // or it would take the place of another volume's block
                }
                continue;
            }
            let stays = |block: &&Block| parts.map.dirty_of(**block).is_empty();
            if let Some(block) = dirty.iter().find(stays) {
                // all its dirty sectors are lost, and cannot be cleaned
                parts.map.directory.spare(*block);
                parts.counters.stores_without_room += 1;
                return None;
            }
            if is_paced(parts) && !parts.map.directory.blocks.shares.are_set() {
                match clean_room(parts, volume, start, class, &dirty) {
                    Some(room) => break room,
                    None => {
                        // The rest would be sought in vain, too. A write that goes around takes as
                        // long as on the bare volume.
                        parts.tasks[id].store.no_room = true;
                        parts.counters.stores_without_room += 1;
                        return None;
                    }
                }
            }
            let ahead = parts.dirt.clean_ahead(dirty.len(), directory.len());
            if !ahead {
                parts.tasks[id].step = TaskStep::Room;
                parts.tasks[id].store.cleaning = dirty.len() as u32;
            }
            let because = if ahead { Because::Ahead } else { Because::Room(id) };
            for block in dirty {
                let directory = &parts.map.directory;
                let (volume, start) =
                    (directory.blocks.volume(block), directory.blocks.sectors(block).start);
                Cleaning::begin(parts, volume, start, because);
            }
            if !ahead {
                return Some((class, Err(Waits)));
            }
        };
        parts.counters.blocks_allocated[class.0 as usize] += 1;
        let is_replaced = matches!(room, Room::Replace(_)) && parts.map.directory.evicts(room);
        parts.counters.blocks_replaced += u64::from(is_replaced);
        parts.counters.groups_emptied += u64::from(matches!(room, Room::Empty(_)));
        note_evicted(parts, room);
        Some((class, Ok(room)))
    }

    /// Recovers from a failed store: clean data is not cached, dirty data goes to the backing
    /// device instead. Until it is there, older dirty data that it was to replace is lost, unless
    /// newer data is held.
    ///
    /// The log of a persistent cache may have an older version, which may be removed only when the
    /// backing device has the new one. So there the write is restarted and goes through.
    pub(super) fn failed(&mut self, block: Block, run: &Sectors) {
        let (parts, id) = (&mut *self.parts, self.id);
        parts.counters.cache_errors += 1;
        let dirty = parts.tasks[id].store.dirty;
        if parts.logging.is_kept() {
            if dirty {
                let store = &mut parts.tasks[id].store;
                (store.retry, store.damaged) = (true, true);
                if parts.map.directory.blocks.is_dirty_in(block, run) {
                    // the failed write may have overwritten dirty data, and be read
                    parts.logging.note_rewritten();
                }
            }
            parts.map.directory.blocks.set_clean_invalid(block, run);
            let alike: Vec<(Sectors, bool)> =
                parts.map.directory.blocks.dirtiness(block, run).collect();
            // the clean copies are destroyed
            let clean = alike.iter().filter(|(_, dirty)| !dirty);
            return clean.for_each(|(run, _)| parts.note(block, run, Standing::Invalid));
        }
        if dirty {
            let volume = parts.tasks[id].volume;
            for sector in parts.map.directory.blocks.dirty_runs_in(block, run).flatten() {
                let place = Place::new(volume, sector);
                if !parts.map.unflushed.contains(place) {
                    parts.rounds.note_loss(volume);
                    parts.map.lost.insert(place);
                }
            }
            parts.write_backing(id, Part::Around, run, false);
        }
        parts.map.directory.blocks.set_invalid(block, run);
    }

    /// Logs that sealed sectors which are still to be overwritten may change, and waits until that
    /// is durable.
    fn unseal(&mut self) {
        let (parts, id) = (&mut *self.parts, self.id);
        parts.tasks[id].step = TaskStep::Unsealing;
        let survey = parts.survey(id);
        let left = parts.tasks[id].store.cursor..parts.tasks[id].store.run.end;
        for (block, run) in &survey.blocks {
            let run = common(run, &left);
            if !run.is_empty() {
                parts.logging.unseal(&parts.map.directory, *block, &run, &mut parts.orders);
            }
        }
        parts.map.reuse(survey);
        parts.await_commit(id, Part::Noted, &left);
    }

    /// Continues a store once its sealed sectors may be overwritten.
    pub(super) fn unsealed(&mut self) {
        if self.parts.has_failed_with_log(self.id) {
            self.parts.tasks[self.id].store.retry = true; // what is sealed stays so
        }
        let task = &self.parts.tasks[self.id];
        if task.store.retry || task.fault.is_some() { self.ended() } else { self.go_on() }
    }
}

/// Reports the blocks that are about to be evicted for this room to the admission and the log.
fn note_evicted(parts: &mut Parts, room: Room) {
    if parts.logging.is_on() || parts.admission.asks() {
        let directory = &parts.map.directory;
        for victim in directory.victims(room) {
            parts.admission.evicted(victim, directory);
            if parts.logging.is_on() {
                parts.logging.note_dropped(directory, victim, &mut parts.orders);
            }
        }
    }
}

/// Finds room without dirty victims for a block whose first choice has the dirty victims `first`.
/// These, and others that are passed over, are to be cleaned next.
fn clean_room(
    parts: &mut Parts,
    volume: VolumeId,
    start: u64,
    class: Class,
    first: &[Block],
) -> Option<Room> {
    for _ in 0..MOST_SEARCHES {
        let in_use = |volume, sectors: &Sectors| parts.tasks.in_use(volume, sectors);
        let directory = &mut parts.map.directory;
        let CleanRoom { room, dirty, tried, anew } =
            directory.clean_room(volume, start, class, in_use);
        let is_last = room.is_some() || dirty.is_empty() || directory.is_lru();
        if !is_last {
            dirty.iter().for_each(|&block| directory.spare(block));
        }
        let victims = first.iter().copied().chain(dirty);
        clean::want(parts, room.map_or(1.0, |_| tried), victims, anew);
        if is_last {
            return room;
        }
    }
    None
}
