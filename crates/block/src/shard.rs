//! One shard of the block cache: a state machine that serves reads and writes of its regions.
//!
//! A shard takes sub-requests and completions of operations, and emits orders for devices and
//! buffers, and events for the router. A sub-request becomes a *task* ([`crate::tasks`]), which
//! takes a lock on its sectors ([`crate::locks`]) and runs a few steps. Each step orders some
//! operations and waits for all of them. A sub-request whose sectors differ in state becomes
//! several tasks.
//!
//! [`Shard`] dispatches completions and messages to the task they concern, by the kind of the task
//! and its step, or to one of the shard's [`parts`]. The steps of a kind of task are one type each:
//! [`read::Reading`] and, for everything that changes sectors, [`write::Writing`]. Both have their
//! data put into the cache by [`store::Storing`], which has victims cleaned by [`clean::Cleaning`].
//! Calls go down this list only. A step that has to go back up ends instead, and the shard's loop
//! resumes the task.
//!
//! Invariants: a task touches only sectors on which it holds a lock. A block is evicted only when
//! no task holds or waits for a lock on it and none of its sectors is dirty. So a sector's place on
//! the cache device never changes under a task, and dirty data is never dropped.

use floe_policy::admission::Times;

use self::admission::{Fetch, Removal};
use self::rounds::{Drain, Next};
use crate::config::Config;
use crate::geometry::{Place, Sectors, VolumeId};
use crate::join::{Fault, Piece, PieceKind};
use crate::journal::bypass::LogState;
use crate::journal::logging::block_at;
use crate::journal::{Change, Standing};
use crate::locks::TaskId;
use crate::mapping::directory::{Block, is_full_for};
use crate::order::{Bad, OpId, Order};
use crate::tasks::{Because, Event, Offer, Part, TaskStep, Work, common};
use clean::Cleaning;
use parts::{Parts, free_if_empty};
use read::Reading;
use store::Storing;
use write::Writing;

pub(crate) mod admission;
pub(crate) mod clean;
pub(crate) mod fills;
pub(crate) mod leaving;
mod parts;
mod read;
mod rounds;
mod store;
mod write;

#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) parts: Parts,
}

impl Shard {
    /// Creates the empty shard of this number, which owns the run `cache` of the cache device.
    pub(crate) fn new(number: u8, cache: &Sectors, config: Config) -> Self {
        Self { parts: Parts::new(number, cache, config) }
    }

    /// Runs `act`, then moves the shard's orders into `orders`. Orders left by earlier calls
    /// without a list come first.
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

    /// Handles the completion of a device operation.
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
        if matches!(part, Part::Store(_)) && task.reads() {
            self.parts.fills.end(&run);
        }
        let cleans = (task.step == TaskStep::CleanRead).then_some(task.volume);
        self.parts.health.note_op(part, cleans, result.is_ok());
        self.part_ended(id, part, run, result);
        self.go_on(id);
    }

    /// Advances a task after one of its operations has ended.
    fn go_on(&mut self, id: TaskId) {
        if self.parts.tasks[id].outstanding == 0 {
            self.step_ended(id);
        }
        self.run_ready();
    }

    /// Returns whether nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        let parts = &self.parts;
        parts.tasks.is_idle() && parts.rounds.is_idle() && parts.leaving.is_idle()
    }

    /// Advances all tasks, rounds and fetches that can continue. A loop, not a recursion: one
    /// finished task may unblock many.
    #[inline]
    fn run_ready(&mut self) {
        while self.has_ready() {
            self.run_next();
        }
    }

    /// Returns whether some task, round or fetch can continue. Usually none can.
    #[inline]
    fn has_ready(&self) -> bool {
        let parts = &self.parts;
        parts.tasks.has_ready()
            || parts.rounds.has_moved()
            || parts.fetches.has_next()
            || self.wants_rounds()
    }

    /// Advances one task, round or fetch that can continue.
    #[inline(never)] // a hit does not come here
    fn run_next(&mut self) {
        let parts = &mut self.parts;
        if let Some(id) = parts.tasks.take_resumed() {
            match parts.tasks[id].step {
                TaskStep::Waiting => self.start(id),
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
            Work::WriteBack => Writing::of(parts, id).start_write_back(),
            Work::Fetch => Reading::of(parts, id).start(),
            Work::GiveBack { .. } => unreachable!("it waits for no lock"),
            Work::Piece(piece) => match piece.kind {
                PieceKind::Read | PieceKind::Prefetch { .. } => Reading::of(parts, id).start(),
                PieceKind::DirtyMap => parts.mark_dirty(id),
                PieceKind::Evict => Writing::of(parts, id).start_evict(),
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
            (Part::Dirty(block), Ok(())) if parts.tasks[id].step == TaskStep::CleanWrite => {
                parts.counters.cleaned_bytes += parts.tasks[id].store.data.span(&run).len;
                if !parts.logging.is_kept() {
                    parts.map.directory.blocks.set_clean(block, &run);
                }
            }
            (Part::Unlogged, Ok(())) => Storing::of(parts, id).around(&run),
            (Part::Unlogged, Err(_)) => parts.tasks[id].store.retry = true,
            (_, Ok(())) => {}
            (_, Err(fault)) => parts.tasks[id].fault = Some(fault),
        }
    }

    /// Advances a task to its next step. Called when all operations of a step have ended, or when
    /// the task is resumed.
    fn step_ended(&mut self, id: TaskId) {
        let parts = &mut self.parts;
        let task = &mut parts.tasks[id];
        let cleans = matches!(task.work, Work::Clean { .. });
        let gives_back = matches!(task.work, Work::GiveBack { .. });
        if task.outstanding == 0 {
            task.parts.clear();
        }
        match task.step {
            TaskStep::Reading => Reading::of(parts, id).ended(),
            TaskStep::Edges => Writing::of(parts, id).edges_ended(),
            TaskStep::Backing => Writing::of(parts, id).backing_ended(),
            TaskStep::Storing if task.store.retry && task.fault.is_none() => {
                Writing::of(parts, id).through();
            }
            TaskStep::Storing => Storing::of(parts, id).ended(),
            TaskStep::Room if task.store.cleaning > 0 => {} // its first writes have ended before
            TaskStep::Room => Storing::of(parts, id).go_on(),
            TaskStep::Unsealing => Storing::of(parts, id).unsealed(),
            TaskStep::CleanRead => Cleaning::of(parts, id).read_ended(),
            TaskStep::CleanWrite => Cleaning::of(parts, id).write_ended(),
            TaskStep::Unlogging if cleans => Cleaning::of(parts, id).unlogged(),
            TaskStep::Unlogging if gives_back => leaving::unlogged(parts, id),
            TaskStep::Settling if cleans => Cleaning::of(parts, id).settled(),
            TaskStep::Noting if cleans => Cleaning::of(parts, id).noted(),
            TaskStep::Unlogging => Writing::of(parts, id).unlogged(),
            TaskStep::Settling => Writing::of(parts, id).settled(),
            TaskStep::Noting => Writing::of(parts, id).noted(),
            TaskStep::GivingBack => leaving::given_back(parts, id),
            TaskStep::Waiting | TaskStep::Done => {
                unreachable!("no operation is under way without a lock")
            }
        }
    }

    /// Fetches a run of a region that continues a stream, before a client reads it.
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
        let is_withheld =
            parts.admission.withholds() && is_full_for(&mut parts.map.directory, volume);
        if run.start >= run.end || is_withheld {
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

    /// Empties groups above the limit, and begins to give back the space of at most `most` free
    /// ones, as long as no more are on their way. Returns the number of these.
    pub(crate) fn give_back(&mut self, most: usize, orders: &mut Vec<Order>) -> usize {
        self.emit(orders, |shard| {
            let given_back = leaving::go_on(&mut shard.parts, most);
            shard.run_ready();
            given_back
        })
    }

    /// Passes the current latencies to the admission.
    pub(crate) fn observe(&mut self, times: &Times) {
        let Parts { admission, map, fetches, .. } = &mut self.parts;
        admission.observe(times, &map.directory, fetches);
    }

    /// Returns the position on the cache device of an operation's store, and the number of its
    /// sectors; `None` for other operations.
    pub(crate) fn stored_at(&self, op: OpId) -> Option<(u64, usize)> {
        let (_, Part::Store(block), run) = self.parts.tasks.of_op(op) else { return None };
        Some((self.parts.map.cache_offset(block, run), (run.end - run.start) as usize))
    }

    /// Removes a volume without tasks, with all its data.
    pub(crate) fn remove_volume(&mut self, id: VolumeId) {
        let parts = &mut self.parts;
        debug_assert!(!parts.tasks.is_using(id));
        for block in parts.map.directory.blocks_of_volume(id) {
            parts.logging.note_dropped(&parts.map.directory, block, &mut parts.orders);
        }
        for group in parts.map.directory.drop_volume(id) {
            free_if_empty(parts, group);
        }
        let map = &mut parts.map;
        map.unflushed.remove_volume(id);
        map.lost.remove_volume(id);
        map.set_volume(id, 0); // fetches ordered for the volume become void
        self.parts.rounds.forget(id);
        self.parts.note_round(id, false, true);
    }

    /// Writes all currently dirty data of a volume to its backing device. [`Event::Drained`]
    /// reports the end and the result.
    ///
    /// Without `to_backing` only unflushed data is written, and only to the cache device.
    pub(crate) fn drain(
        &mut self,
        number: u32,
        volume: VolumeId,
        to_backing: bool,
        orders: &mut Vec<Order>,
    ) {
        let parts = &mut self.parts;
        // The loss in a persistent cache concerns data that had been flushed: a later flush need
        // not fail for it.
        let has_to_go = to_backing || !parts.logging.is_kept();
        let lost = has_to_go && parts.map.lost.has_any_of(volume);
        let drain = Drain { number, lost, to_backing };
        if !to_backing && parts.map.unflushed.count(volume) == 0 {
            let result = drain.result(None);
            return parts.events.push(Event::Drained { drain: number, result });
        }
        if !parts.rounds.wait(volume, drain) {
            parts.begin_round(volume, vec![drain], !to_backing);
        }
        self.emit(orders, Self::run_ready);
    }

    /// Starts rounds of cleaning for all dirty data that no round covers.
    pub(crate) fn clean_all(&mut self, orders: &mut Vec<Order>) {
        self.parts.dirt.rest(false);
        self.parts.leaving.try_again();
        self.parts.rounds.note_due();
        self.parts.begin_rounds();
        self.emit(orders, Self::run_ready);
    }

    /// Returns whether there is dirty data to be cleaned that no round covers.
    #[inline]
    fn wants_rounds(&self) -> bool {
        let bypass = &self.parts.logging.bypass;
        bypass.is_bypassed()
            && self.parts.map.directory.blocks.dirty_sectors() > 0
            && self.parts.rounds.is_idle()
            && !bypass.is_blocked()
    }

    /// Starts as many operations of a volume's round as are allowed at once. Ends a finished round,
    /// and begins the next if one is wanted.
    fn run_round(&mut self, volume: VolumeId) {
        let parts = &mut self.parts;
        loop {
            let dirty = parts.map.directory.blocks.dirty_sectors();
            let yielding = parts.dirt.cleaned_at_once(dirty, parts.tasks.await_backing());
            match parts.rounds.next(volume, yielding, clean::is_paced(parts)) {
                Next::WriteBack(run) => {
                    let id = parts.tasks.begin(Work::WriteBack, volume, run);
                    Writing::of(parts, id).start_write_back();
                }
                Next::Clean(start) => Cleaning::begin(parts, volume, start, Because::Round),
                Next::Blocks => {
                    let blocks = parts.map.directory.blocks.dirty_blocks(volume);
                    let sectors =
                        blocks.map(|block| parts.map.directory.blocks.sectors(block)).collect();
                    parts.rounds.clean(volume, sectors);
                    if parts.dirt.is_resting() {
                        parts.rounds.cut_short();
                    }
                }
                Next::Ended { fault, has_cleaned, serving, waiting, rest } => {
                    parts.note_round(volume, fault.is_some(), has_cleaned);
                    parts.events.extend(serving.iter().map(|drain| Event::Drained {
                        drain: drain.number,
                        result: drain.result(fault),
                    }));
                    if !waiting.is_empty() {
                        let only_write_back = !waiting.iter().any(|drain| drain.to_backing);
                        parts.begin_round(volume, waiting, only_write_back);
                        if only_write_back {
                            parts.rounds.leave_rest(volume, rest);
                        }
                    } else if !rest.is_empty() && !parts.dirt.is_resting() {
                        parts.rounds.resume(volume, rest);
                    } else if fault.is_none()
                        && parts.logging.bypass.is_bypassed()
                        && parts.map.directory.blocks.dirty_blocks(volume).next().is_some()
                    {
                        parts.begin_round(volume, Vec::new(), false); // all has to be cleaned
                    }
                }
                Next::Wait => return,
            }
        }
    }

    /// Begins to clean a block of a volume that waits for its turn: first one that stands in the
    /// way of a new block, then one of the volume's round. At most `runs` of its dirty runs are
    /// written at once. Returns false if none waits.
    pub(crate) fn clean_one(
        &mut self,
        volume: VolumeId,
        runs: usize,
        orders: &mut Vec<Order>,
    ) -> bool {
        self.emit(orders, |shard| {
            let parts = &mut shard.parts;
            parts.dirt.set_width(runs);
            let gets_on = clean::clean_wanted(parts, volume) || parts.rounds.give_turn(volume);
            shard.run_ready();
            gets_on
        })
    }

    /// Ends cleaning that nothing waits for, after the blocks under way. Groups that leave stay
    /// until the next [`clean_all`](Self::clean_all).
    pub(crate) fn rest(&mut self, orders: &mut Vec<Order>) {
        self.parts.dirt.rest(true);
        self.parts.leaving.is_paused = true;
        self.parts.rounds.cut_short();
        self.emit(orders, Self::run_ready);
    }

    /// Adds the changes that describe a block to an empty log.
    pub(crate) fn dump(&self, block: Block, out: &mut Vec<Change>) {
        let (map, logging) = (&self.parts.map, &self.parts.logging);
        let directory = &map.directory;
        if !directory.blocks.is_live(block) {
            return; // it was, when the checkpoint began; what came into its place is in the log
        }
        let at = block_at(directory, block);
        let mut state = |run, standing| {
            out.push(Change::Run { block: at.clone(), run, standing });
        };
        let valid = directory.blocks.validity(block, &at.sectors).filter(|(_, valid)| *valid);
        for (run, dirty) in valid.flat_map(|(run, _)| directory.blocks.dirtiness(block, &run)) {
            if dirty {
                for (run, lost) in map.lost.by_loss(at.volume, &run) {
                    if lost {
                        state(run, Standing::Lost);
                        continue;
                    }
                    for (run, sealed) in logging.by_seal(directory, block, &run) {
                        state(run, if sealed { Standing::Sealed } else { Standing::Dirty });
                    }
                }
                continue;
            }
            let settlements = &logging.settlements;
            let deferred = |sector: &u64| settlements.is_deferred(at.volume, *sector);
            let mut start = run.start;
            while start < run.end {
                let is_deferred = deferred(&start);
                let alike = (start..run.end).take_while(|sector| deferred(sector) == is_deferred);
                let part = common(&run, &(start..start + alike.count() as u64));
                start = part.end;
                if !is_deferred {
                    state(part, Standing::Clean);
                }
            }
        }
    }

    /// Logs the checksums of all dirty data when nothing changes any more, so that the next session
    /// can verify it.
    pub(crate) fn note_rest(&mut self, orders: &mut Vec<Order>) {
        let Parts { map, logging, orders: late, .. } = &mut self.parts;
        if !logging.is_on() {
            return;
        }
        orders.append(late);
        let directory = &map.directory;
        for block in map.volumes().flat_map(|volume| directory.blocks.dirty_blocks(volume)) {
            for run in map.dirty_of(block) {
                for (run, sealed) in logging.by_seal(directory, block, &run) {
                    if !sealed {
                        logging.note(directory, block, &run, Standing::Sealed, orders);
                    }
                }
            }
        }
    }

    /// Begins a commit of all pending changes. Returns whether some of them make data dirty: that
    /// data has to be durable first.
    pub(crate) fn commit_begun(&mut self, orders: &mut Vec<Order>) -> bool {
        self.emit(orders, |shard| {
            let parts = &mut shard.parts;
            parts.logging.seal(&parts.map.directory, &mut parts.orders);
            parts.logging.log.begin()
        })
    }

    /// Ends the commit. A failure is permanent: see [`crate::journal::logging::Logging::lose`].
    pub(crate) fn commit_ended(&mut self, result: Result<(), Fault>, orders: &mut Vec<Order>) {
        debug_assert!(result.is_ok() || !self.parts.logging.bypass.is_writable());
        let due = self.parts.logging.log.end(result.is_ok());
        self.emit(orders, |shard| due.into_iter().for_each(|op| shard.op_ended(op, result)));
    }

    /// Abandons the commit for lack of room in the log; the next commit serves the tasks that wait.
    ///
    /// Some of its records may be durable, and be missing in the log that is valid after a
    /// checkpoint. So data that is dirty here but logged otherwise is logged again: the checkpoint
    /// will call it dirty.
    pub(crate) fn commit_put_off(&mut self, orders: &mut Vec<Order>) {
        let parts = &mut self.parts;
        parts.logging.log.abandon();
        parts.logging.log.note_rewritten();
        let tasks = parts.logging.log.waiting().map(|op| parts.tasks.of_op(op).0);
        let tasks: Vec<TaskId> = tasks.collect();
        self.emit(orders, |shard| {
            for id in tasks {
                let task = &shard.parts.tasks[id];
                if task.step == TaskStep::Noting && !task.store.dirty {
                    shard.parts.note_displaced(id);
                }
            }
        });
    }

    /// Handles the end of a settlement: the flush of a volume's backing device.
    pub(crate) fn settlement_ended(
        &mut self,
        volume: VolumeId,
        result: Result<(), Fault>,
        orders: &mut Vec<Order>,
    ) {
        let (due, settled) = self.parts.logging.settlements.end(volume, result.is_ok());
        self.emit(orders, |shard| {
            let parts = &mut shard.parts;
            for place in settled {
                let run = place.sector()..place.sector() + 1;
                if let Some(block) = parts.map.directory.blocks.find(volume, run.start)
                    && parts.map.directory.blocks.clean_runs_in(block, &run).next().is_some()
                {
                    parts.note(block, &run, Standing::Clean);
                }
            }
            due.into_iter().for_each(|op| shard.op_ended(op, result));
        });
    }

    /// Invalidates the log's clean copies for the next start. With `stuck`, some dirty data cannot
    /// be cleaned.
    pub(crate) fn bypass(&mut self, stuck: bool, orders: &mut Vec<Order>) {
        self.parts.logging.lose();
        self.parts.logging.bypass.void_clean(stuck);
        self.parts.rounds.wake(); // writes wait for them now
        self.restart_waiting();
        self.emit(orders, |shard| {
            shard.run_ready();
            shard.parts.begin_rounds();
            shard.run_ready();
        });
    }

    /// Invalidates the whole log for the next start.
    pub(crate) fn retire(&mut self, orders: &mut Vec<Order>) {
        self.parts.logging.lose();
        self.parts.logging.bypass.retire();
        self.forget_clean();
        self.restart_waiting();
        self.emit(orders, Self::run_ready);
    }

    /// Restarts the tasks that wait until the log is declared invalid.
    fn restart_waiting(&mut self) {
        for id in self.parts.logging.bypass.take_waiting() {
            self.parts.tasks.resume(id);
        }
    }

    /// Returns whether a flush of a volume must fail although nothing is under way: some answered
    /// writes may be on no device.
    pub(crate) fn is_unsure_of(&self, volume: VolumeId) -> bool {
        let map = &self.parts.map;
        let dirty = || map.directory.blocks.dirty_blocks(volume).next().is_some();
        self.parts.logging.bypass.is_unsure_of(volume, dirty) || map.unflushed.count(volume) > 0
    }

    /// Returns an upper bound of the sectors with refused requests: writes that would have to wait
    /// for ever, and reads of dirty data that the cache device does not return.
    pub(crate) fn refused_sectors(&self) -> u64 {
        let (bypass, dirty) =
            (&self.parts.logging.bypass, self.parts.map.directory.blocks.dirty_sectors());
        let stuck = match bypass.state() {
            LogState::Bypassed { stuck: true } => dirty + bypass.brought_down_sectors(),
            _ if self.parts.health.is_unreadable() => dirty,
            _ => 0,
        };
        self.parts.map.lost.len().max(stuck)
    }

    /// Drops all clean data. I/O need not be quiesced: a task that reads such a sector has its
    /// lock, and the sector keeps its place.
    pub(crate) fn forget_clean(&mut self) {
        let parts = &mut self.parts;
        if parts.logging.is_kept() {
            for block in parts.map.directory.by_heat() {
                let sectors = parts.map.directory.blocks.sectors(block);
                parts.drop_clean(block, &sectors, Some(Removal::Invalid));
            }
        }
        parts.map.directory.blocks.set_all_clean_invalid();
    }

    /// Drops the copy of a clean sector.
    pub(crate) fn forget_sector(&mut self, id: VolumeId, sector: u64) {
        if let Some(block) = self.parts.map.directory.blocks.find(id, sector) {
            self.parts.drop_clean(block, &(sector..sector + 1), Some(Removal::Invalid));
        }
    }

    /// Handles a read that returned corrupt sectors, `bad`. Dirty ones are lost from now on. Clean
    /// ones that a crash left half overwritten are dropped, and do not count as errors. Returns the
    /// number of bad sectors not known before.
    pub(crate) fn read_corrupt(&mut self, op: OpId, bad: &[Bad], orders: &mut Vec<Order>) -> u64 {
        self.emit(orders, |shard| shard.found_corrupt(op, bad))
    }

    fn found_corrupt(&mut self, op: OpId, bad: &[Bad]) -> u64 {
        let parts = &mut self.parts;
        let (id, part, run) = parts.tasks.of_op(op);
        let run = run.clone();
        let (Part::Cached(block) | Part::Dirty(block)) = part else {
            unreachable!("nothing else reads the cache device");
        };
        let (mut are_all_lost, mut found) = (true, 0);
        let mut is_excused = true;
        for (sector, doubted) in bad.iter().map(|bad| (run.start + bad.number, bad.doubted)) {
            let (place, run) = (Place::new(parts.tasks[id].volume, sector), sector..sector + 1);
            // Of held sectors memory has newer data, which becomes dirty in their stead.
            let is_dirty = parts.map.directory.blocks.is_all_dirty(block, &run);
            let is_lost = is_dirty && !parts.map.unflushed.contains(place);
            is_excused &= doubted && !is_dirty;
            let is_new = match is_dirty {
                _ if is_lost => parts.map.lost.find(place),
                true => true,
                false if doubted => false,
                // or another read has found it before
                false => parts.map.directory.blocks.is_valid(block, &run),
            };
            if is_lost && is_new {
                parts.rounds.note_loss(place.volume());
                parts.note(block, &run, Standing::Lost);
            }
            found += u64::from(is_new);
            are_all_lost &= is_lost;
        }
        if let Part::Cached(block) = part
            && is_excused
        {
            // not cached after all, without a fault of the device
            parts.tasks.op_ended(id, part);
            Reading::of(parts, id).cached_failed(block, run, Fault::Io);
            self.go_on(id);
            return found;
        }
        // The other dirty sectors of the block can be cleaned.
        let goes_on = are_all_lost && parts.tasks[id].step == TaskStep::CleanRead;
        self.op_ended(op, if goes_on { Ok(()) } else { Err(Fault::Io) });
        found
    }
}
