//! Storing: finds blocks for data, makes room where there is none, and writes it to the cache
//! device.
//!
//! A task walks its data from left to right. It writes into existing blocks; where none is, it
//! allocates the largest that fits the missing range (Algorithm 2). Dirty victims are first written
//! to the backing device. Clean ones are evicted in their place meanwhile. Once too many are being
//! cleaned ahead of need (`dirt`), the task waits and continues from its cursor. Data that is not
//! admitted (`admission`), or finds all cold blocks in use, is not cached. It goes to the backing
//! device if it would be lost otherwise.

use super::Shard;
use super::admission::Removal;
use crate::engine::locks::TaskId;
use crate::engine::{Because, Part, Step, Work, common};
use crate::geometry::{Place, Sectors};
use crate::mapping::allocate::largest_fitting;
use crate::mapping::directory::{Block, Origin, Room};
use crate::order::{OpId, Order};

/// The result of the search for a block.
enum Placed {
    At(Block),
    /// Every cold block is in use: not cached.
    Nowhere,
    /// Victims are being cleaned for a block that ends there; the task is resumed afterwards.
    Later(u64),
}

impl Shard {
    /// Begins to store a run of a task, whose data is at the task's `data`, in the cache.
    pub(super) fn begin_store(
        &mut self,
        id: TaskId,
        run: Sectors,
        dirty: bool,
        orders: &mut Vec<Order>,
    ) {
        let task = &mut self.tasks[id];
        task.store.cursor = run.start;
        task.store.run = run;
        task.store.dirty = dirty;
        self.store(id, orders);
    }

    /// Stores from the cursor on, until everything is ordered or the task must wait for room.
    pub(super) fn store(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        self.tasks[id].step = Step::Storing;
        let volume = self.tasks[id].volume;
        let end = self.tasks[id].store.run.end;
        while self.tasks[id].store.cursor < end {
            if self.tasks[id].store.dirty && self.is_kept() && self.bypass.is_bound() {
                self.tasks[id].store.retry = true;
                break;
            }
            let left = self.tasks[id].store.cursor..end;
            let block = match self.directory.find(volume, left.start) {
                Some(block) => Some(block),
                None => match self.block_for(id, &left, orders) {
                    Placed::At(block) => Some(block),
                    Placed::Nowhere => None,
                    Placed::Later(until) => return self.store_beyond(id, until, orders),
                },
            };
            let run = match block {
                Some(block) => common(&left, &self.directory.sectors(block)),
                None => left.start..self.without_block_until(id, &left),
            };
            if let Some(block) = block
                && self.tasks[id].store.dirty
                && self.is_logging()
            {
                if self.is_sealed(block, &run) {
                    return self.unseal(id, orders);
                }
                self.note_overwriting(block, &run, orders);
            }
            self.tasks[id].store.cursor = run.end;
            let run = self.within_volume(volume, &run);
            if run.start >= run.end {
                continue;
            }
            match block {
                Some(block) => {
                    if planted!(UnmarkedOverwrite) {
                        self.directory.set_clean_invalid(block, &run);
                    } else if self.tasks[id].store.dirty && self.is_kept() {
                        // a checkpoint must not state data that is about to be overwritten
                        self.drop_clean(block, &run, Removal::Replaced, orders);
                    }
                    self.note_origin(id, block, &run);
                    let from = self.tasks[id].store.data.span(&run);
                    self.order_cache_write(id, block, &run, from, orders);
                }
                None if self.tasks[id].store.dirty && self.has_gone(id) => {
                    self.await_commit(id, Part::Unlogged, &run);
                }
                None if self.tasks[id].store.dirty => self.store_around(id, &run, orders),
                None => {}
            }
        }
        if self.tasks[id].outstanding == 0 {
            self.step_ended(id, orders);
        }
    }

    /// Returns the end of a run that begins without a block: after a smallest block, or after all
    /// sectors that may make none.
    fn without_block_until(&self, id: TaskId, left: &Sectors) -> u64 {
        let (task, unit) = (&self.tasks[id], self.config.sizes.smallest());
        let goes_on = |sector: u64| {
            task.store.stays_out(sector) && self.directory.find(task.volume, sector).is_none()
        };
        let mut end = (left.start + 1).next_multiple_of(unit);
        while task.store.stays_out(left.start) && end < left.end && goes_on(end) {
            end += unit;
        }
        end.min(left.end)
    }

    /// Writes a run that would be dirty but has no room to the backing device.
    pub(super) fn store_around(&mut self, id: TaskId, run: &Sectors, orders: &mut Vec<Order>) {
        let from = self.tasks[id].store.data.span(run);
        let durable = self.tasks[id].is_durable();
        self.order_backing_write(id, Part::Around, run, from, durable, orders);
    }

    /// Ends a store. A durable write also waits until its records in the log are durable.
    pub(super) fn storing_ended(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        let task = &self.tasks[id];
        if task.store.retry && task.fault.is_none() {
            return self.write_through(id, orders);
        }
        if task.fault.is_none() && task.store.dirty && self.tasks[id].is_durable() {
            self.tasks[id].step = Step::Noting;
            let range = self.tasks[id].range.clone();
            return self.await_commit(id, Part::Noted, &range);
        }
        let dirty = task.store.dirty;
        self.finish(id, orders);
        if dirty {
            self.clean_in_time(orders);
        }
    }

    /// Continues a client's store beyond a block whose room must be waited for, as a task of its
    /// own. The data is in the request's buffer, which both tasks may use. A fetch or a write-back
    /// has its data in a buffer of one task, and no client waits for it.
    fn store_beyond(&mut self, id: TaskId, until: u64, orders: &mut Vec<Order>) {
        let end = self.tasks[id].store.run.end;
        let waited_for = matches!(self.tasks[id].work, Work::Piece(_));
        if !self.tasks[id].store.dirty || until >= end || !waited_for {
            return;
        }
        let rest = self.tasks.cut(id, until);
        let task = &mut self.tasks[id];
        task.store.run.end = until;
        let (data, hit) = (task.store.data, task.hit);
        let task = &mut self.tasks[rest];
        (task.store.data, task.hit) = (data, hit);
        self.begin_store(rest, until..end, true, orders);
    }

    /// Makes the largest block that fits the missing range from `left.start` on.
    fn block_for(&mut self, id: TaskId, left: &Sectors, orders: &mut Vec<Order>) -> Placed {
        let task = &self.tasks[id];
        if task.store.no_room || self.is_degraded() || task.store.stays_out(left.start) {
            return Placed::Nowhere;
        }
        let (volume, unit) = (task.volume, self.config.sizes.smallest());
        let mut interval = self.config.sizes.round_out(left);
        let uncached = |sector: &u64| {
            self.directory.find(volume, *sector).is_none()
                && !task.store.stays_out((*sector).max(left.start))
        };
        let units = (interval.start..interval.end).step_by(unit as usize);
        interval.end = interval.start + units.take_while(uncached).count() as u64 * unit;
        let class = largest_fitting(&self.config.sizes, &interval);

        let room = loop {
            let in_use = |volume, sectors: &Sectors| self.tasks.in_use(volume, sectors);
            let Some(room) = self.directory.room(volume, interval.start, class, in_use) else {
                self.counters.stores_without_room += 1;
                return Placed::Nowhere;
            };
            if room != Room::Free && self.admission.withholds() {
                self.counters.stores_withheld += 1;
                return Placed::Nowhere;
            }
            let dirty: Vec<Block> = self
                .directory
                .victims(room)
                .filter(|&block| self.directory.is_dirty(block))
                .collect();
            if dirty.is_empty() {
                break room;
            }
            let stays = |block: &Block| {
                self.dirty_there(*block, &self.directory.sectors(*block)).is_empty()
            };
            if let Some(block) = dirty.iter().copied().find(stays) {
                // all its dirty sectors are lost, and cannot be cleaned
                self.directory.spare(block);
                self.counters.stores_without_room += 1;
                return Placed::Nowhere;
            }
            let ahead = self.dirt.clean_ahead(dirty.len(), self.directory.len());
            if !ahead {
                self.tasks[id].step = Step::Room;
                self.tasks[id].store.cleaning = dirty.len() as u32;
            }
            let because = if ahead { Because::Ahead } else { Because::Room(id) };
            for block in dirty {
                let start = self.directory.sectors(block).start;
                self.clean(self.directory.volume(block), start, because, orders);
            }
            if !ahead {
                return Placed::Later(interval.start + self.config.sizes.sectors(class));
            }
        };
        self.counters.blocks_allocated[class.0 as usize] += 1;
        self.counters.blocks_replaced += u64::from(matches!(room, Room::Replace(_)));
        self.counters.groups_emptied += u64::from(matches!(room, Room::Empty(_)));
        if self.is_logging() || self.admission.asks() {
            let victims: Vec<Block> = self.directory.victims(room).collect();
            for victim in victims {
                self.admission.evicted(victim, &self.directory);
                if self.is_logging() {
                    self.note_dropped(victim, orders);
                }
            }
        }
        let origin = Origin {
            in_a_row: self.tasks[id].in_a_row(left.start, self.config.sizes.smallest()),
            ahead: self.tasks[id].is_ahead(),
        };
        Placed::At(self.directory.allocate(volume, interval.start, class, room, origin))
    }

    /// Handles the end of cleaning a victim for `id`. If it cannot be cleaned, the rest is not
    /// cached.
    pub(super) fn victim_cleaned(&mut self, id: TaskId, cleaned: bool, orders: &mut Vec<Order>) {
        let task = &mut self.tasks[id];
        task.store.cleaning -= 1;
        task.store.no_room |= !cleaned;
        if task.store.cleaning == 0 {
            self.store(id, orders);
        }
    }

    /// Recovers from a failed store: clean data is not cached, dirty data goes to the backing
    /// device instead. Until it is there, older dirty data that it was to replace is lost, unless
    /// newer data is held.
    ///
    /// The log of a persistent cache may have an older version, which may be removed only when the
    /// backing device has the new one. There the write is restarted and goes through.
    pub(super) fn store_failed(
        &mut self,
        id: TaskId,
        block: Block,
        run: Sectors,
        orders: &mut Vec<Order>,
    ) {
        self.counters.cache_errors += 1;
        if self.is_kept() {
            if self.tasks[id].store.dirty {
                (self.tasks[id].store.retry, self.tasks[id].store.damaged) = (true, true);
            }
            if self.tasks[id].store.dirty && self.directory.is_dirty_in(block, &run) {
                // the failed write may have overwritten dirty data, and be read
                self.note_rewritten();
            }
            self.directory.set_clean_invalid(block, &run);
            return self.note_failed(block, &run, orders);
        }
        if self.tasks[id].store.dirty {
            let volume = self.tasks[id].volume;
            for dirty in self.directory.dirty_runs(block).map(|dirty| common(&dirty, &run)) {
                for place in dirty.map(|sector| Place::new(volume, sector)) {
                    if !self.held.contains(place) {
                        self.rounds.note_loss(volume);
                        self.lost.insert(place);
                    }
                }
            }
            let from = self.tasks[id].store.data.span(&run);
            self.order_backing_write(id, Part::Around, &run, from, false, orders);
        }
        self.directory.set_invalid(block, &run);
    }

    /// Returns the position on the cache device of an operation's store, and the number of its
    /// sectors.
    pub(crate) fn stored_at(&self, op: OpId) -> Option<(u64, usize)> {
        match self.tasks.of_op(op) {
            (_, Part::Store(block), run) => {
                Some((self.cache_offset(block, run), (run.end - run.start) as usize))
            }
            _ => None,
        }
    }

    /// Handles new content of a run: it is no longer lost, nor held in memory.
    pub(super) fn found(&mut self, id: TaskId, run: &Sectors, orders: &mut Vec<Order>) {
        let volume = self.tasks[id].volume;
        self.held.let_go(volume, run, orders);
        self.lost.written(volume, run);
    }
}
