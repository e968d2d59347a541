//! One shard of the block cache: a state machine that serves reads and writes of its regions.
//!
//! A shard takes sub-requests and completions of operations, and emits orders for devices and
//! buffers, and events for the router. A sub-request becomes a *task*, which takes a lock on its
//! sectors ([`crate::engine`]) and runs a few steps. Each step orders some operations and waits for
//! all of them. A sub-request whose sectors differ in state becomes several tasks.
//!
//! [`Shard`] passes what happens on: to the task that it concerns, by the kind of the task and its
//! step, or to the part that knows ([`parts`]). The steps of a kind of task are one type each:
//! [`read::Reading`] and, for everything that changes sectors, [`write::Writing`]. Both have their
//! data put into the cache by [`store::Storing`], which has victims cleaned by
//! [`clean::Cleaning`]. Calls go down this list only. A step that has to go back up ends instead,
//! and the shard's loop resumes the task.
//!
//! Invariants: a task touches only sectors on which it holds a lock. A block is evicted only when
//! no task holds or waits for a lock on it and none of its sectors is dirty. So a sector's place on
//! the cache device never changes under a task, and dirty data is never dropped.

mod admission;
mod bypass;
mod clean;
mod drain;
mod dump;
mod extend;
mod fetch;
mod health;
mod journal;
mod log;
mod logging;
mod lost;
mod map;
mod offer;
mod operations;
mod overwrite;
mod parts;
mod read;
mod rounds;
mod seal;
mod serve;
mod settlements;
mod shed;
mod sink;
mod store;
mod way;
mod write;

use crate::config::Config;
use crate::engine::locks::TaskId;
use crate::engine::piece::{Piece, PieceKind};
use crate::engine::request::Fault;
use crate::engine::{Offer, Part, Step, Work};
use crate::geometry::{Sectors, VolumeId};
use crate::order::{OpId, Order};
use clean::Cleaning;
use fetch::Fetch;
use floe_policy::admission::Times;
use parts::Parts;
use read::Reading;
use store::Storing;
use write::Writing;

/// A shard.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) parts: Parts,
}

impl Shard {
    /// Returns the empty shard of this number, which has `cache` of the cache device.
    pub(crate) fn new(number: u8, cache: &Sectors, config: Config) -> Self {
        Self { parts: Parts::new(number, cache, config) }
    }

    /// Lets the shard add its orders to a list. They come after those of earlier calls that had no
    /// list.
    #[inline]
    fn emit<T>(&mut self, orders: &mut Vec<Order>, act: impl FnOnce(&mut Self) -> T) -> T {
        if !self.parts.orders.is_empty() {
            orders.append(&mut self.parts.orders);
        }
        std::mem::swap(orders, &mut self.parts.orders);
        let result = act(self);
        std::mem::swap(orders, &mut self.parts.orders);
        result
    }

    /// Starts a sub-request.
    pub(crate) fn submit(&mut self, piece: Piece, orders: &mut Vec<Order>) {
        let (volume, range) = (piece.volume, piece.sectors.clone());
        let stream = piece.stream;
        let task = self.parts.tasks.begin(Work::Piece(piece), volume, range);
        self.parts.tasks[task].stream = stream;
        self.emit(orders, |shard| {
            shard.start(task);
            shard.run_ready();
        });
    }

    /// Handles the end of an operation.
    pub(crate) fn completed(
        &mut self,
        op: OpId,
        result: Result<(), Fault>,
        orders: &mut Vec<Order>,
    ) {
        self.emit(orders, |shard| shard.op_ended(op, result));
    }

    /// Handles the end of an operation, or of a wait for a commit or a settlement.
    fn op_ended(&mut self, op: OpId, result: Result<(), Fault>) {
        let (id, part, run) = self.parts.tasks.of_op(op);
        let run = run.clone();
        self.parts.tasks.op_ended(id, part);
        let task = &self.parts.tasks[id];
        let cleans = (task.step == Step::CleanRead).then_some(task.volume);
        self.parts.health.note_op(part, cleans, result.is_ok());
        self.part_ended(id, part, run, result);
        self.go_on(id);
    }

    /// Advances a task of which an operation has ended.
    fn go_on(&mut self, id: TaskId) {
        if self.parts.tasks[id].outstanding == 0 {
            self.step_ended(id);
        }
        self.run_ready();
    }

    /// Returns whether nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.parts.tasks.is_idle() && self.parts.rounds.is_idle()
    }

    /// Advances whatever may go on. A loop, not a recursion: one finished task may unblock many.
    #[inline]
    fn run_ready(&mut self) {
        while self.has_ready() {
            self.run_next();
        }
    }

    /// Returns whether something may go on. Mostly nothing may.
    #[inline]
    fn has_ready(&self) -> bool {
        let parts = &self.parts;
        parts.tasks.has_ready()
            || parts.rounds.has_moved()
            || parts.fetches.has_next()
            || self.wants_rounds()
    }

    /// Advances one of the things that may go on.
    #[inline(never)] // a hit does not come here
    fn run_next(&mut self) {
        let parts = &mut self.parts;
        if let Some(id) = parts.tasks.take_resumed() {
            match parts.tasks[id].step {
                Step::Waiting => self.start(id),
                _ => self.step_ended(id),
            }
        } else if let Some(volume) = parts.rounds.take_moved() {
            self.run_round(volume);
        } else if let Some(id) = parts.tasks.take_ready() {
            parts.counters.restarts += 1;
            self.start(id);
        } else if let Some(fetch) = parts.fetches.next() {
            self.start_fetch(fetch);
        } else if self.wants_rounds() {
            self.parts.begin_rounds();
        }
    }

    /// Starts a task, if its lock is free.
    fn start(&mut self, id: TaskId) {
        let parts = &mut self.parts;
        match &parts.tasks[id].work {
            Work::Clean { .. } => Cleaning::of(parts, id).start(),
            Work::Sink => Writing::of(parts, id).start_sink(),
            Work::Fetch => Reading::of(parts, id).start(),
            Work::Piece(piece) => match piece.kind {
                PieceKind::Read | PieceKind::Prefetch => Reading::of(parts, id).start(),
                PieceKind::DirtyMap => parts.mark_dirty(id),
                PieceKind::Write { .. } | PieceKind::ZeroPart { .. } => {
                    Writing::of(parts, id).start();
                }
                PieceKind::Zero { .. } | PieceKind::Trim => {
                    Writing::of(parts, id).start_zero_or_trim();
                }
            },
        }
    }

    /// Handles the result of one operation, and recovers from a failure where possible.
    fn part_ended(&mut self, id: TaskId, part: Part, run: Sectors, result: Result<(), Fault>) {
        let parts = &mut self.parts;
        if matches!(part, Part::Around | Part::Whole) && result != Err(Fault::Unsupported) {
            // a failed operation may have taken effect in part
            parts.logging.note_unsettled(parts.tasks[id].volume);
        }
        match (part, result) {
            (Part::Store(block), Ok(())) if parts.tasks[id].store.dirty => {
                if !parts.map.directory.blocks.is_all_dirty(block, &run) {
                    parts.map.directory.blocks.set_dirty(block, &run);
                }
                parts.logging.seal_later(&parts.map.directory, block, &run);
                parts.found(id, &run);
            }
            (Part::Around, Ok(())) => parts.found(id, &run),
            (Part::Store(block), Ok(())) => {
                let directory = &mut parts.map.directory;
                directory.blocks.set_clean(block, &run);
                parts.logging.note_clean(directory, block, &run, &mut parts.orders);
            }
            (Part::Store(block), Err(_)) => Storing::of(parts, id).failed(block, &run),
            (Part::Cached(block), Err(fault)) => {
                parts.counters.cache_errors += 1;
                Reading::of(parts, id).cached_failed(block, run, fault);
            }
            (Part::Shed, Err(fault)) => Reading::of(parts, id).shed_failed(run, fault),
            (Part::Dirty(block), Ok(()))
                if parts.tasks[id].step == Step::CleanWrite && !parts.logging.is_kept() =>
            {
                parts.map.directory.blocks.set_clean(block, &run);
            }
            (Part::Unlogged, Ok(())) => Storing::of(parts, id).around(&run),
            (Part::Unlogged, Err(_)) => parts.tasks[id].store.retry = true,
            (_, Ok(())) => {}
            (_, Err(fault)) => parts.tasks[id].fault = Some(fault),
        }
    }

    /// Advances to the next step when all operations of a step have ended, or a task is resumed.
    fn step_ended(&mut self, id: TaskId) {
        let parts = &mut self.parts;
        let task = &mut parts.tasks[id];
        let cleans = matches!(task.work, Work::Clean { .. });
        if task.outstanding == 0 {
            task.parts.clear();
        }
        match task.step {
            Step::Reading => Reading::of(parts, id).ended(),
            Step::Edges => Writing::of(parts, id).edges_ended(),
            Step::Backing => Writing::of(parts, id).backing_ended(),
            Step::Storing if task.store.retry && task.fault.is_none() => {
                Writing::of(parts, id).through();
            }
            Step::Storing => Storing::of(parts, id).ended(),
            Step::Room if task.store.cleaning > 0 => {} // its first writes have ended before
            Step::Room => Storing::of(parts, id).go_on(),
            Step::Unsealing => Storing::of(parts, id).unsealed(),
            Step::CleanRead => Cleaning::of(parts, id).read_ended(),
            Step::CleanWrite => Cleaning::of(parts, id).write_ended(),
            Step::Unlogging if cleans => Cleaning::of(parts, id).unlogged(),
            Step::Settling if cleans => Cleaning::of(parts, id).settled(),
            Step::Noting if cleans => Cleaning::of(parts, id).noted(),
            Step::Unlogging => Writing::of(parts, id).unlogged(),
            Step::Settling => Writing::of(parts, id).settled(),
            Step::Noting => Writing::of(parts, id).noted(),
            Step::Waiting | Step::Done => unreachable!("no operation is under way without a lock"),
        }
    }

    /// Fetches a run of a region that continues a stream, before it is asked for.
    pub(crate) fn fetch_ahead(
        &mut self,
        volume: VolumeId,
        run: Sectors,
        stream: u64,
        orders: &mut Vec<Order>,
    ) {
        if self.parts.mode().caches_reads() {
            self.parts.fetches.push(Fetch { volume, run, stream: Some(stream) });
            self.emit(orders, Self::run_ready);
        }
    }

    /// Begins a fetch, unless there is nothing to fetch, or no room for it.
    fn start_fetch(&mut self, Fetch { volume, run, stream }: Fetch) {
        let parts = &mut self.parts;
        let run = parts.map.within_volume(volume, &run);
        if run.start >= run.end || parts.admission.withholds() && parts.map.directory.is_full() {
            return;
        }
        if stream.is_none() {
            parts.counters.ordered_blocks += parts.smallest_blocks(&run);
        }
        parts.fetches.begun();
        let id = parts.tasks.begin(Work::Fetch, volume, run);
        let task = &mut parts.tasks[id];
        task.stream = stream;
        if stream.is_none() {
            task.offer = Offer::Admitted;
        }
        Reading::of(parts, id).start();
    }

    /// Takes in the current latencies.
    pub(crate) fn observe(&mut self, times: &Times) {
        let Parts { admission, map, fetches, .. } = &mut self.parts;
        admission.observe(times, &map.directory, fetches);
    }

    /// Returns the position on the cache device of an operation's store, and the number of its
    /// sectors.
    pub(crate) fn stored_at(&self, op: OpId) -> Option<(u64, usize)> {
        let (_, Part::Store(block), run) = self.parts.tasks.of_op(op) else { return None };
        Some((self.parts.map.cache_offset(block, run), (run.end - run.start) as usize))
    }

    /// Removes a volume without tasks, with all its data.
    pub(crate) fn remove_volume(&mut self, id: VolumeId) {
        let Parts { map, tasks, logging, orders, .. } = &mut self.parts;
        debug_assert!(!tasks.is_using(id));
        for block in map.directory.blocks_of_volume(id) {
            logging.note_dropped(&map.directory, block, orders);
        }
        for group in map.directory.drop_volume(id) {
            let in_use = |block| {
                tasks.in_use(
                    map.directory.blocks.volume(block),
                    &map.directory.blocks.sectors(block),
                )
            };
            if !map.directory.blocks_of(group).any(in_use) {
                map.directory.empty(group);
            }
        }
        map.held.remove_volume(id);
        map.lost.remove_volume(id);
        map.set_volume(id, 0); // fetches ordered for the volume become void
        self.parts.note_round(id, false, true);
    }
}
