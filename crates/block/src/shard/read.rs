//! Reads: cached sectors from the cache, missing ones from the backing device and then into the
//! cache.
//!
//! Missing sectors are fetched in whole blocks (AdaCache, section III.B) or, within a block that a
//! write made, in runs of invalid sectors. The client is answered as soon as the data has arrived;
//! it is stored in the cache afterwards. Meanwhile the sectors stay locked. Other readers of them
//! are served from the buffer of the fetch, or of an answered write that is being stored. Sectors
//! that are not admitted (`admission`) are read past the cache, without their neighbours. A
//! prefetch is a read without a destination: it only fetches.

use super::Shard;
use super::admission::Removal;
use crate::engine::locks::{Need, TaskId};
use crate::engine::request::Fault;
use crate::engine::{Data, Offer, Part, Step, common};
use crate::geometry::Sectors;
use crate::mapping::allocate::missing_intervals;
use crate::mapping::directory::Block;
use crate::mode::WriteMode;
use crate::order::{BufferId, Order};

/// The cached and missing parts of a range. The shard keeps one for the next request, which then
/// allocates nothing.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// Cached blocks in address order, each with its part of the range.
    pub(super) blocks: Vec<(Block, Sectors)>,
    /// Runs that no block covers, rounded out to smallest blocks.
    pub(super) missing: Vec<Sectors>,
    /// The valid runs of `blocks`, in address order.
    cached: Vec<(Block, Sectors)>,
    /// Missing runs and the invalid runs of `blocks`, in address order.
    fetches: Vec<Sectors>,
    /// The runs of `fetches`, each with whether it is admitted.
    offered: Vec<(Sectors, bool)>,
}

impl Shard {
    /// Walks a task's range as Algorithm 1 does, and returns its blocks and gaps.
    pub(super) fn survey(&mut self, id: TaskId) -> Survey {
        let mut survey = std::mem::take(&mut self.spare_survey);
        let Survey { blocks, missing, cached, fetches, offered } = &mut survey;
        blocks.clear();
        missing.clear();
        cached.clear();
        fetches.clear();
        offered.clear();
        let task = &self.tasks[id];
        let cached_until = |sector: u64| {
            let block = self.directory.find(task.volume, sector)?;
            let sectors = self.directory.sectors(block);
            blocks.push((block, common(&sectors, &task.range)));
            Some(sectors.end)
        };
        missing_intervals(&self.config.sizes, &task.range, cached_until, missing);
        survey
    }

    pub(super) fn start_read(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        let mut next = Some(id);
        while let Some(id) = next {
            let (held, rest) = self.cut_at_held(id);
            next = rest;
            if held { self.read_held(id, orders) } else { self.read_below(id, orders) }
        }
    }

    /// Reads a range that is not held in memory.
    fn read_below(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        if self.mode() == WriteMode::Pass {
            return match self.tasks[id].destination() {
                Some(_) => self.read_past_cache(id, orders),
                None => self.finish(id, orders),
            };
        }
        let mut survey = self.survey(id);
        self.read_surveyed(id, &mut survey, orders);
        self.spare_survey = survey;
    }

    /// Reads a task's range from the backing device, but dirty sectors from the cache.
    fn read_past_cache(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        let mut next = Some(id);
        while let Some(id) = next {
            let range = self.tasks[id].range.clone();
            let (taken, rest) = self.tasks.lock_front(id, Need::shared(range), 1);
            next = rest;
            if self.may_begin(id, taken, orders) {
                self.read_newest(id, orders);
            }
        }
    }

    /// Reads a locked range: dirty sectors from the cache, the others from the backing device.
    fn read_newest(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        let range = self.tasks[id].range.clone();
        self.note_bypass(&range);
        if self.directory.dirty_sectors() == 0 {
            self.read_newest_of(id, Part::Uncached, &[], orders);
            return;
        }
        let survey = self.survey(id);
        self.read_newest_of(id, Part::Uncached, &survey.blocks, orders);
        self.spare_survey = survey;
    }

    /// Reads a task's range, which has these `blocks`: dirty sectors from the cache, the others
    /// from the backing device as `part`. Returns how many sectors are dirty.
    pub(super) fn read_newest_of(
        &mut self,
        id: TaskId,
        part: Part,
        blocks: &[(Block, Sectors)],
        orders: &mut Vec<Order>,
    ) -> u64 {
        let range = self.tasks[id].range.clone();
        let request = self.tasks[id].request_data();
        let (mut rest, mut from_cache) = (range.clone(), 0);
        for (block, run) in overlapping(blocks, &range) {
            let dirty: Vec<Sectors> =
                self.directory.dirty_runs_in(*block, &common(run, &range)).collect();
            for run in dirty {
                let before = rest.start..run.start;
                if !before.is_empty() {
                    self.order_backing_read(id, part, &before, request.span(&before), orders);
                }
                self.order_cache_read(
                    id,
                    Part::Cached(*block),
                    *block,
                    &run,
                    request.span(&run),
                    orders,
                );
                rest.start = run.end;
                from_cache += run.end - run.start;
            }
        }
        if !rest.is_empty() {
            self.order_backing_read(id, part, &rest, request.span(&rest), orders);
        }
        from_cache
    }

    /// Reads cached runs from the cache; fetches each missing run, or reads it past the cache.
    fn read_surveyed(&mut self, mut id: TaskId, survey: &mut Survey, orders: &mut Vec<Order>) {
        let Survey { blocks, missing, cached, fetches, offered } = survey;
        fetches.append(missing);
        for (block, run) in blocks.iter() {
            for (run, valid) in self.directory.validity(*block, run) {
                if valid { cached.push((*block, run)) } else { fetches.push(run) }
            }
        }
        fetches.sort_unstable_by_key(|run| run.start);
        self.offer_fetches(id, fetches, offered);
        for (fetch, admitted) in offered.iter() {
            if self.tasks[id].range.start < fetch.start {
                let rest = self.tasks.cut(id, fetch.start);
                self.read_cached(id, cached, orders);
                id = rest;
            }
            let is_last = self.tasks[id].range.end <= fetch.end;
            let rest = if is_last { id } else { self.tasks.cut(id, fetch.end) };
            if *admitted {
                self.tasks[id].offer = Offer::Admitted;
                self.read_missing(id, fetch.clone(), blocks, orders);
            } else {
                self.tasks[id].offer = Offer::Bypassed;
                self.read_bypassed(id, orders);
            }
            if is_last {
                return;
            }
            id = rest;
        }
        self.read_cached(id, cached, orders);
    }

    /// Reads a task's range, all of which is valid, from its `blocks`.
    fn read_cached(&mut self, id: TaskId, blocks: &[(Block, Sectors)], orders: &mut Vec<Order>) {
        let mut next = Some(id);
        while let Some(id) = next {
            let range = self.tasks[id].range.clone();
            let (taken, rest) = self.tasks.lock_front(id, Need::shared(range), 1);
            next = rest;
            if !self.may_begin(id, taken, orders) {
                continue;
            }
            let to = self.tasks[id].destination();
            if to.is_none() && self.tasks[id].is_ahead() {
                self.finish(id, orders); // cached already, and no client waits
                continue;
            }
            self.tasks[id].hit = true;
            self.note_read_hit(id);
            let range = self.tasks[id].range.clone();
            let shed = to.is_some() && self.shed.draw();
            for (block, run) in overlapping(blocks, &range) {
                self.directory.touch(*block);
                if to.is_some() {
                    self.note_used(*block, &common(run, &range));
                }
                if let Some(to) = to.filter(|_| !shed) {
                    let run = common(run, &range);
                    self.order_cache_read(
                        id,
                        Part::Cached(*block),
                        *block,
                        &run,
                        to.span(&run),
                        orders,
                    );
                }
            }
            if shed {
                self.read_shed(id, blocks, orders);
            } else if to.is_none() {
                self.finish(id, orders); // a prefetch of what is there
            }
        }
    }

    /// Fetches `fetch`, all of it invalid, into the cache, for a task whose range is within it.
    /// Existing blocks of it are in `blocks`.
    fn read_missing(
        &mut self,
        id: TaskId,
        mut fetch: Sectors,
        blocks: &[(Block, Sectors)],
        orders: &mut Vec<Order>,
    ) {
        let mut next = Some(id);
        while let Some(id) = next {
            let range = self.tasks[id].range.clone();
            let need = Need::exclusive_or_shared(fetch.clone(), range);
            let (taken, rest) = self.tasks.lock_front(id, need, self.config.sizes.smallest());
            next = rest;
            let end = rest.map_or(fetch.end, |rest| self.tasks[rest].range.start);
            let run = std::mem::replace(&mut fetch.start, end)..end;
            if self.may_begin(id, taken, orders) {
                for (block, _) in overlapping(blocks, &self.tasks[id].range) {
                    self.directory.touch(*block);
                }
                self.fetch(id, &run, orders);
            }
        }
    }

    /// Reads a task's range, all of it invalid, from the backing device and past the cache.
    fn read_bypassed(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        let mut next = Some(id);
        while let Some(id) = next {
            let range = self.tasks[id].range.clone();
            let (taken, rest) = self.tasks.lock_front(id, Need::shared(range), 1);
            next = rest;
            if !self.may_begin(id, taken, orders) {
                continue;
            }
            match self.tasks[id].destination() {
                Some(_) => {
                    self.read_newest_of(id, Part::Uncached, &[], orders);
                }
                None => self.finish(id, orders), // a prefetch of what is to stay out
            }
        }
    }

    /// Returns whether a read may begin; `taken` says that it has its lock. If not, the read waits
    /// or has already ended.
    pub(super) fn may_begin(&mut self, id: TaskId, taken: bool, orders: &mut Vec<Order>) -> bool {
        if !taken {
            let hit = !std::mem::replace(&mut self.tasks[id].waited, true);
            let holder = self.tasks.holders(id).find(|&holder| self.has_all(holder, id));
            if let Some(holder) = holder {
                // data available at once counts as a hit
                self.serve_from(holder, id, hit, orders);
            }
            return false;
        }
        self.tasks[id].step = Step::Reading;
        if self.is_lost(id) {
            self.tasks[id].fault = Some(Fault::Io);
            self.finish(id, orders);
            return false;
        }
        true
    }

    /// Orders a run from the backing device, into the request's own buffer if that covers all of
    /// it.
    fn fetch(&mut self, id: TaskId, run: &Sectors, orders: &mut Vec<Order>) {
        let (volume, range) = (self.tasks[id].volume, self.tasks[id].range.clone());
        let run = self.within_volume(volume, run);
        let holds_all = |_: &Data| range.start <= run.start && run.end <= range.end;
        let data = self.tasks[id].destination().filter(holds_all).unwrap_or_else(|| {
            let scratch = self.tasks.new_scratch(id, run.end - run.start, orders);
            Data { buffer: BufferId::Scratch(scratch), sector: run.start, offset: 0 }
        });
        self.note_fetch(id, &run);
        self.order_backing_read(id, Part::Fetch, &run, data.span(&run), orders);
        let task = &mut self.tasks[id];
        task.store.data = data;
        // it ends where the volume ends now, also if the volume has grown when it is stored
        task.store.run = run;
    }

    /// Recovers from a failed read of cached sectors: clean ones are read from the backing device.
    /// Dirty ones among them are read again by themselves, as the failure may have been that of a
    /// clean one.
    pub(super) fn cached_read_failed(
        &mut self,
        id: TaskId,
        block: Block,
        run: Sectors,
        fault: Fault,
        orders: &mut Vec<Order>,
    ) {
        let to = match self.tasks[id].step {
            Step::Edges => self.tasks[id].store.data,
            _ => self.tasks[id].request_data(),
        };
        let alike: Vec<(Sectors, bool)> = self.directory.dirtiness(block, &run).collect();
        if let [(_, true)] = alike[..] {
            self.health.note_unreadable();
            self.tasks[id].fault = Some(fault);
            return;
        }
        for (run, dirty) in alike {
            if dirty && self.lost.has_any(self.directory.volume(block), &run) {
                self.tasks[id].fault = Some(fault);
            } else if dirty {
                self.order_cache_read(id, Part::Cached(block), block, &run, to.span(&run), orders);
            } else {
                self.drop_clean(block, &run, Removal::Invalid, orders);
                self.order_backing_read(id, Part::Uncached, &run, to.span(&run), orders);
            }
        }
    }

    pub(super) fn reading_ended(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        let task = &self.tasks[id];
        let (fetched, from) = (task.store.run.clone(), task.store.data);
        if task.fault.is_some() {
            return self.finish(id, orders);
        }
        if fetched.is_empty() {
            self.fill(id, orders);
            return self.finish(id, orders);
        }
        if let (BufferId::Scratch(_), Some(to)) = (from.buffer, self.tasks[id].destination()) {
            self.copy(from, to, &common(&task.range, &fetched), orders);
        }
        self.fill(id, orders);
        if self.is_degraded() {
            return self.finish(id, orders);
        }
        self.events.extend(self.tasks.answer(id));
        self.begin_store(id, fetched, false, orders);
        self.serve_waiting(id, orders);
    }
}

/// Returns the blocks, in address order, whose runs overlap a range.
pub(super) fn overlapping<'a>(
    blocks: &'a [(Block, Sectors)],
    range: &Sectors,
) -> impl Iterator<Item = &'a (Block, Sectors)> + use<'a> {
    let (first, end) = (blocks.partition_point(|(_, run)| run.end <= range.start), range.end);
    blocks[first..].iter().take_while(move |(_, run)| run.start < end)
}
