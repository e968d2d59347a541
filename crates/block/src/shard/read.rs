//! Reads: cached sectors come from the cache, missing ones from the backing device and then go into
//! the cache.
//!
//! Missing sectors are fetched in whole blocks (AdaCache, section III.B) or, within a block that a
//! write made, in runs of invalid sectors. The client is answered as soon as the data has arrived;
//! it is stored in the cache afterwards. Meanwhile the sectors stay locked. Other readers of them
//! are served from the buffer of the fetch, or of an answered write that is being stored. Sectors
//! that are not admitted (`admission`) are read past the cache, without their neighbours. A
//! prefetch is a read without a destination: it only fetches.

use super::admission::Removal;
use super::parts::Parts;
use super::store::Storing;
use crate::config::WriteMode;
use crate::geometry::{SECTOR_BYTES, Sectors};
use crate::join::Fault;
use crate::locks::{Need, TaskId};
use crate::mapping::Survey;
use crate::mapping::directory::Block;
use crate::order::BufferId;
use crate::tasks::{Data, Offer, Part, TaskStep, common};

/// A task that reads.
pub(super) struct Reading<'a> {
    pub(super) parts: &'a mut Parts,
    pub(super) id: TaskId,
}

impl<'a> Reading<'a> {
    #[inline]
    pub(super) fn of(parts: &'a mut Parts, id: TaskId) -> Self {
        Self { parts, id }
    }

    /// Starts a read, divided into runs that memory holds and runs that it does not.
    pub(super) fn start(&mut self) {
        let mut next = Some(self.id);
        while let Some(id) = next {
            self.id = id;
            let task = &self.parts.tasks[id];
            let end = task.range.end;
            let (held, until) = self.parts.map.unflushed.front(task.volume, &task.range);
            next = (until < end).then(|| self.parts.tasks.cut(id, until));
            if held { self.lock_shared(Self::held) } else { self.below() }
        }
    }

    /// Locks the task's range, and calls `read` for each part of it whose lock was taken. The other
    /// parts wait, or have ended.
    #[inline]
    fn lock_shared(&mut self, mut read: impl FnMut(&mut Self)) {
        let mut next = Some(self.id);
        while let Some(id) = next {
            self.id = id;
            let range = self.parts.tasks[id].range.clone();
            let (taken, rest) = self.parts.tasks.lock_front(id, Need::shared(range), 1);
            next = rest;
            if self.may_begin(taken) {
                read(self);
            }
        }
    }

    /// Reads a range that is not held in memory.
    fn below(&mut self) {
        if self.parts.mode() == WriteMode::Pass {
            return match self.parts.tasks[self.id].destination() {
                Some(_) => self.lock_shared(Self::newest),
                None => self.parts.finish(self.id),
            };
        }
        let mut survey = self.parts.survey(self.id);
        self.surveyed(&mut survey);
        self.parts.map.reuse(survey);
    }

    /// Reads a locked range that is wholly held in memory.
    fn held(&mut self) {
        self.parts.tasks[self.id].hit = true;
        let task = &self.parts.tasks[self.id];
        if let Some(to) = task.destination() {
            let (range, to) = (task.range.clone(), to.span(&task.range));
            self.parts.map.unflushed.recall(task.volume, range, to, &mut self.parts.orders);
            self.fill();
        }
        self.parts.finish(self.id);
    }

    /// Inserts the sectors in the task's buffer into the memory tier.
    fn fill(&mut self) {
        let (task, held) = (&self.parts.tasks[self.id], &self.parts.map.unflushed);
        if held.has_tier()
            && let Some(at) = task.destination()
        {
            let (range, from) = (task.range.clone(), at.span(&task.range));
            held.fill(task.volume, range, from, &mut self.parts.orders);
        }
    }

    /// Reads a locked range past the cache: dirty sectors from the cache, the others from the
    /// backing device.
    fn newest(&mut self) {
        let range = &self.parts.tasks[self.id].range;
        self.parts.counters.bypassed_bytes +=
            self.parts.health.bypassed_sectors(range) * SECTOR_BYTES;
        if self.parts.map.directory.blocks.dirty_sectors() == 0 {
            self.newest_of(Part::Uncached, &[]);
            return;
        }
        let survey = self.parts.survey(self.id);
        self.newest_of(Part::Uncached, &survey.blocks);
        self.parts.map.reuse(survey);
    }

    /// Reads a task's range, which overlaps these `blocks`: dirty sectors from the cache, the
    /// others from the backing device as `part`. Returns the number of dirty sectors.
    fn newest_of(&mut self, part: Part, blocks: &[(Block, Sectors)]) -> u64 {
        let (parts, id) = (&mut *self.parts, self.id);
        let range = parts.tasks[id].range.clone();
        let request = parts.tasks[id].request_data();
        let (mut rest, mut from_cache) = (range.clone(), 0);
        for (block, run) in overlapping(blocks, &range) {
            let run = common(run, &range);
            let dirty: Vec<Sectors> =
                parts.map.directory.blocks.dirty_runs_in(*block, &run).collect();
            for run in dirty {
                let before = rest.start..run.start;
                if !before.is_empty() {
                    parts.read_backing(id, part, &before, request.span(&before));
                }
                parts.read_cache(id, *block, &run, request.span(&run));
                rest.start = run.end;
                from_cache += run.end - run.start;
            }
        }
        if !rest.is_empty() {
            parts.read_backing(id, part, &rest, request.span(&rest));
        }
        from_cache
    }

    /// Reads cached runs from the cache; fetches each missing run, or reads it past the cache.
    fn surveyed(&mut self, survey: &mut Survey) {
        let parts = &mut *self.parts;
        let Survey { blocks, missing, cached, fetches, offered } = survey;
        fetches.append(missing);
        for (block, run) in blocks.iter() {
            for (run, valid) in parts.map.directory.blocks.validity(*block, run) {
                if valid { cached.push((*block, run)) } else { fetches.push(run) }
            }
        }
        fetches.sort_unstable_by_key(|run| run.start);
        parts.offer_fetches(self.id, fetches, offered);
        Extension::of(parts, self.id).extend(offered);
        let mut id = self.id;
        for (fetch, admitted) in offered.iter() {
            if self.parts.tasks[id].range.start < fetch.start {
                let rest = self.parts.tasks.cut(id, fetch.start);
                Reading::of(self.parts, id).cached(cached);
                id = rest;
            }
            let is_last = self.parts.tasks[id].range.end <= fetch.end;
            let rest = if is_last { id } else { self.parts.tasks.cut(id, fetch.end) };
            let offer = if *admitted { Offer::Admitted } else { Offer::Bypassed };
            self.parts.tasks[id].offer = offer;
            let mut front = Reading::of(self.parts, id);
            if *admitted {
                front.missing(fetch.clone(), blocks)
            } else {
                front.bypassed()
            }
            if is_last {
                return;
            }
            id = rest;
        }
        self.id = id;
        self.cached(cached);
    }

    /// Reads a task's range, which is wholly valid, from its `blocks`.
    fn cached(&mut self, blocks: &[(Block, Sectors)]) {
        self.lock_shared(|piece| {
            let (parts, id) = (&mut *piece.parts, piece.id);
            let to = parts.tasks[id].destination();
            if to.is_none() && parts.tasks[id].is_ahead() {
                return parts.finish(id); // cached already, and no client waits
            }
            parts.tasks[id].hit = true;
            parts.note_read_hit(id);
            let range = parts.tasks[id].range.clone();
            let shed = to.is_some() && parts.shed.draw();
            for (block, run) in overlapping(blocks, &range) {
                parts.map.directory.touch(*block);
                if let Some(to) = to {
                    let run = common(run, &range);
                    parts.note_used(*block, &run);
                    if !shed {
                        parts.read_cache(id, *block, &run, to.span(&run));
                    }
                }
            }
            if shed {
                let from_cache = piece.newest_of(Part::Shed, blocks);
                let sectors = range.end - range.start - from_cache;
                piece.parts.counters.shed_bytes += sectors * SECTOR_BYTES;
            } else if to.is_none() {
                parts.finish(id); // a prefetch of what is there
            }
        });
    }

    /// Fetches the run `fetch`, which is wholly invalid, into the cache, for a task whose range is
    /// within it. `blocks` are the existing blocks of the run.
    fn missing(&mut self, mut fetch: Sectors, blocks: &[(Block, Sectors)]) {
        let mut next = Some(self.id);
        while let Some(id) = next {
            self.id = id;
            let range = self.parts.tasks[id].range.clone();
            let need = Need::exclusive_or_shared(fetch.clone(), range);
            let unit = self.parts.config.sizes.smallest();
            let (taken, rest) = self.parts.tasks.lock_front(id, need, unit);
            next = rest;
            let end = rest.map_or(fetch.end, |rest| self.parts.tasks[rest].range.start);
            let run = std::mem::replace(&mut fetch.start, end)..end;
            if self.may_begin(taken) {
                for (block, _) in overlapping(blocks, &self.parts.tasks[id].range) {
                    self.parts.map.directory.touch(*block);
                }
                self.fetch(&run);
            }
        }
    }

    /// Reads a task's range, which is wholly invalid, from the backing device without caching it.
    fn bypassed(&mut self) {
        self.lock_shared(|piece| match piece.parts.tasks[piece.id].destination() {
            Some(_) => {
                piece.newest_of(Part::Uncached, &[]);
            }
            None => piece.parts.finish(piece.id), // a prefetch of what is to stay out
        });
    }

    /// Returns whether a read may begin; `taken` says that it has its lock. Otherwise the read
    /// waits or has already ended.
    fn may_begin(&mut self, taken: bool) -> bool {
        let id = self.id;
        if !taken {
            let hit = !std::mem::replace(&mut self.parts.tasks[id].waited, true);
            let holder = self.parts.tasks.holders(id).find(|&holder| self.is_in(holder));
            if let Some(holder) = holder {
                // data available at once counts as a hit
                self.serve_from(holder, hit);
            }
            return false;
        }
        self.parts.tasks[id].step = TaskStep::Reading;
        if self.parts.is_lost(id) {
            self.parts.fail(id);
            return false;
        }
        true
    }

    /// Orders a run from the backing device, into the request's own buffer if that covers the whole
    /// run.
    fn fetch(&mut self, run: &Sectors) {
        let (parts, id) = (&mut *self.parts, self.id);
        let (volume, range) = (parts.tasks[id].volume, parts.tasks[id].range.clone());
        let run = parts.map.within_volume(volume, run);
        let holds_all = |_: &Data| range.start <= run.start && run.end <= range.end;
        let data = parts.tasks[id]
            .destination()
            .filter(holds_all)
            .unwrap_or_else(|| parts.tasks.new_buffer(id, &run, &mut parts.orders));
        if parts.tasks[id].is_ahead() {
            parts.counters.prefetched_blocks += parts.smallest_blocks(&run);
            parts.counters.prefetched_bytes += (run.end - run.start) * SECTOR_BYTES;
        }
        if parts.tasks[id].work.is_warming() {
            parts.counters.warmed_bytes += (run.end - run.start) * SECTOR_BYTES;
        }
        parts.read_backing(id, Part::Fetch, &run, data.span(&run));
        let task = &mut parts.tasks[id];
        task.store.data = data;
        // it ends where the volume ends now, also if the volume has grown when it is stored
        task.store.run = run;
    }

    /// Recovers from a failed read of cached sectors: clean ones are read from the backing device.
    /// Dirty ones are read again by themselves, as the failure may have been that of a clean one.
    pub(super) fn cached_failed(&mut self, block: Block, run: Sectors, fault: Fault) {
        let (parts, id) = (&mut *self.parts, self.id);
        let to = match parts.tasks[id].step {
            TaskStep::Edges => parts.tasks[id].store.data,
            _ => parts.tasks[id].request_data(),
        };
        let alike: Vec<(Sectors, bool)> =
            parts.map.directory.blocks.dirtiness(block, &run).collect();
        if let [(_, true)] = alike[..] {
            parts.health.note_unreadable(parts.tasks[id].volume);
            parts.tasks[id].fault = Some(fault);
            return;
        }
        let volume = parts.tasks[id].volume;
        for (run, dirty) in alike {
            if dirty && parts.map.lost.has_any(volume, &run) {
                parts.tasks[id].fault = Some(fault);
            } else if dirty {
                parts.read_cache(id, block, &run, to.span(&run));
            } else {
                parts.drop_clean(block, &run, Some(Removal::Invalid));
                parts.read_backing(id, Part::Uncached, &run, to.span(&run));
            }
        }
    }

    /// Repeats a failed shed read, now from the cache.
    pub(super) fn shed_failed(&mut self, run: Sectors, fault: Fault) {
        let (parts, id) = (&mut *self.parts, self.id);
        let to = parts.tasks[id].request_data();
        let survey = parts.survey(id);
        for (block, part) in overlapping(&survey.blocks, &run) {
            let part = common(part, &run);
            // Sectors that another reader has found unreadable since are invalid now, and no device
            // is left to ask.
            if parts.map.directory.blocks.is_valid(*block, &part) {
                parts.read_cache(id, *block, &part, to.span(&part));
            } else {
                parts.tasks[id].fault = Some(fault);
            }
        }
        parts.map.reuse(survey);
    }

    /// Answers a read whose data has arrived, and stores the fetched data in the cache.
    pub(super) fn ended(&mut self) {
        let task = &self.parts.tasks[self.id];
        let (fetched, from) = (task.store.run.clone(), task.store.data);
        if task.fault.is_some() {
            return self.parts.finish(self.id);
        }
        if !fetched.is_empty()
            && let (BufferId::Scratch(_), Some(to)) = (from.buffer, task.destination())
        {
            let run = common(&task.range, &fetched);
            self.parts.copy(from, to, &run);
        }
        self.fill();
        if fetched.is_empty() || self.parts.health.is_degraded() {
            return self.parts.finish(self.id);
        }
        self.parts.events.extend(self.parts.tasks.answer(self.id));
        if self.parts.fills.skips(&self.parts.tasks[self.id]) {
            self.parts.counters.skip_fill(&fetched);
            self.parts.tasks[self.id].step = TaskStep::Storing; // those that wait read its buffer
            self.serve_waiting();
            return self.parts.finish(self.id);
        }
        Storing::of(self.parts, self.id).begin(fetched, false);
        self.serve_waiting();
    }
}

/// Returns the blocks, in address order, whose runs overlap a range.
fn overlapping<'a>(
    blocks: &'a [(Block, Sectors)],
    range: &Sectors,
) -> impl Iterator<Item = &'a (Block, Sectors)> + use<'a> {
    let (first, end) = (blocks.partition_point(|(_, run)| run.end <= range.start), range.end);
    blocks[first..].iter().take_while(move |(_, run)| run.start < end)
}

impl Reading<'_> {
    /// Answers waiting reads from a task's buffer, if it covers them and is being stored in the
    /// cache.
    pub(super) fn serve_waiting(&mut self) {
        let holder = self.id;
        if self.parts.tasks[holder].step == TaskStep::Done {
            return;
        }
        let waiting = self.parts.tasks.waiting(holder);
        for &id in &waiting {
            let mut reader = Reading::of(self.parts, id);
            if reader.parts.tasks[id].reads() && reader.is_in(holder) {
                reader.serve_from(holder, false);
            }
        }
        self.parts.tasks.reuse(waiting);
    }

    /// Returns whether another task's buffer covers the range. Data of an unanswered write does not
    /// count: clients must not see it yet.
    #[inline]
    pub(super) fn is_in(&self, holder: TaskId) -> bool {
        let range = &self.parts.tasks[self.id].range;
        let task = &self.parts.tasks[holder];
        matches!(task.step, TaskStep::Storing | TaskStep::Room)
            && !task.store.dirty
            && task.store.run.start <= range.start
            && range.end <= task.store.run.end
            // it may have fetched what is older
            && !self.parts.map.unflushed.has_any(task.volume, range)
            // a fetch may have more sectors than its reader wanted, and lost ones among them
            && !self.parts.is_lost(self.id)
    }

    /// Answers the read from another task's buffer.
    pub(super) fn serve_from(&mut self, holder: TaskId, hit: bool) {
        let (parts, id) = (&mut *self.parts, self.id);
        let from = parts.tasks[holder].store.data;
        parts.counters.joined_reads += 1;
        parts.note_read_hit(id);
        let task = &mut parts.tasks[id];
        (task.hit, task.step) = (hit, TaskStep::Reading);
        let range = task.range.clone();
        if let Some(to) = task.destination() {
            parts.note_used_early(holder, &range);
            parts.copy(from, to, &range);
        }
        parts.finish(id);
    }
}

impl Parts {
    /// Counts a client's first read of a run that was fetched ahead.
    pub(super) fn note_used(&mut self, block: Block, run: &Sectors) {
        self.counters.prefetched_used_blocks += self.map.directory.blocks.take_ahead(block, run);
    }

    /// Counts a client's read of a run that a fetch is still putting into the cache.
    fn note_used_early(&mut self, holder: TaskId, run: &Sectors) {
        if !self.tasks[holder].is_ahead() {
            return;
        }
        let (volume, mut start) = (self.tasks[holder].volume, run.start);
        while start < run.end {
            let Some(block) = self.map.directory.blocks.find(volume, start) else { return };
            let end = self.map.directory.blocks.sectors(block).end.min(run.end);
            self.note_used(block, &(start..end));
            start = end;
        }
    }
}

/// The extension of a read's fetches to the learned size.
pub(super) struct Extension<'a> {
    parts: &'a Parts,
    id: TaskId,
}

impl<'a> Extension<'a> {
    pub(super) fn of(parts: &'a Parts, id: TaskId) -> Self {
        Self { parts, id }
    }

    /// Extends the first and the last of the fetches to the learned size, if they are admitted.
    pub(super) fn extend(&self, offered: &mut [(Sectors, bool)]) {
        let task = &self.parts.tasks[self.id];
        let (size, range) = (self.parts.fetch_sectors, &task.range);
        if size == 0 || task.is_ahead() || task.waited {
            return;
        }
        if let Some((run, true)) = offered.first_mut()
            && run.start <= range.start
        {
            let start = self.first_uncached(range.start / size * size, run.start);
            if self.is_unused(&(start..run.end)) {
                run.start = start;
            }
        }
        if let Some((run, true)) = offered.last_mut()
            && run.end >= range.end
        {
            let most = range.end.next_multiple_of(size).min(self.volume_end());
            let end = self.first_cached(run.end, most);
            if self.is_unused(&(run.start..end)) {
                run.end = end;
            }
        }
    }

    fn is_unused(&self, run: &Sectors) -> bool {
        !self.parts.tasks.in_use(self.parts.tasks[self.id].volume, run)
    }

    /// Returns the end of the task's volume, in whole smallest blocks.
    fn volume_end(&self) -> u64 {
        let volume = self.parts.tasks[self.id].volume;
        let end = self.parts.map.within_volume(volume, &(0..u64::MAX)).end;
        end.next_multiple_of(self.parts.config.sizes.smallest())
    }

    /// Returns the start of the run of uncached sectors that ends at `before`, but not below
    /// `least`.
    fn first_uncached(&self, least: u64, before: u64) -> u64 {
        let unit = self.parts.config.sizes.smallest();
        let mut start = before;
        // A run may begin within a block, after valid sectors: those end it.
        while start > least && self.is_uncached(start - 1) {
            debug_assert!(start.is_multiple_of(unit), "a block begins there, or none is");
            start -= unit;
        }
        start
    }

    /// Returns the end of the run of uncached sectors that begins at `from`, but not above `most`.
    fn first_cached(&self, from: u64, most: u64) -> u64 {
        let unit = self.parts.config.sizes.smallest();
        let mut end = from;
        while end < most && self.is_uncached(end) {
            end += unit;
        }
        end
    }

    fn is_uncached(&self, sector: u64) -> bool {
        let volume = self.parts.tasks[self.id].volume;
        self.parts.map.directory.blocks.find(volume, sector).is_none()
    }
}
