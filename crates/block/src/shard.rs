//! One shard of the block cache: a state machine that serves reads and writes of its regions.
//!
//! A shard takes sub-requests and completions of operations, and emits orders for devices and
//! buffers, and events for the router. A sub-request becomes a *task*, which takes a lock on its
//! sectors ([`crate::engine`]) and runs a few steps. Each step orders some operations and waits for
//! all of them. A sub-request whose sectors differ in state becomes several tasks.
//!
//! The shard conducts its parts, each with fields of its own: the tasks (`engine`), the state of
//! sectors (`mapping`), and below this file `admission`, `fetch`, `rounds`, `log`, `settlements`,
//! `bypass`, `health` and `shed`. The steps are in `read`, `write`, `store` (putting data into the
//! cache, which both need), `clean` (writing dirty data to the backing device), `sink` (writing
//! unflushed sectors to the tiers below), `seal` and `logging`.
//!
//! Invariants: a task touches only sectors on which it holds a lock. A block is evicted only when
//! no task holds or waits for a lock on it and none of its sectors is dirty. So a sector's place on
//! the cache device never changes under a task, and dirty data is never dropped.

mod admission;
mod bypass;
mod clean;
mod dump;
mod fetch;
mod health;
mod held;
mod log;
mod logging;
mod lost;
mod map;
mod offer;
mod operations;
mod read;
mod rounds;
mod seal;
mod serve;
mod settlements;
mod shed;
mod sink;
mod store;
mod volumes;
mod write;

use crate::config::Config;
use crate::engine::locks::TaskId;
use crate::engine::piece::{Piece, PieceKind};
use crate::engine::request::Fault;
use crate::engine::{Event, Part, Step, Tasks, Work};
use crate::geometry::Sectors;
use crate::mapping::directory::{Block, Directory};
use crate::mapping::{Dirt, Held, Lost, Seals};
use crate::order::{OpId, Order};
use crate::stats::Counters;
use admission::Admission;
use bypass::Bypass;
use fetch::Fetches;
use health::Health;
use log::Log;
use read::Survey;
use rounds::Rounds;
use settlements::Settlements;
use shed::Shed;

/// The properties of a volume that a shard needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct VolumeSize {
    pub(crate) sectors: u64,
}

/// A shard.
#[derive(Debug)]
pub(crate) struct Shard {
    /// Its part of the cache device, in sectors.
    cache: Sectors,
    /// The cache's configuration, with this shard's share of `gate` and `memory`.
    config: Config,
    volumes: Vec<VolumeSize>,
    pub(crate) directory: Directory,
    pub(crate) held: Held,
    pub(crate) tasks: Tasks,
    rounds: Rounds,
    health: Health,
    pub(crate) shed: Shed,
    pub(crate) admission: Admission,
    fetches: Fetches,
    /// A spare survey, empty but for its memory.
    spare_survey: Survey,
    pub(crate) lost: Lost,
    pub(crate) seals: Seals,
    log: Log,
    settlements: Settlements,
    bypass: Bypass,
    pub(crate) dirt: Dirt,
    pub(crate) events: Vec<Event>,
    pub(crate) counters: Counters,
}

impl Shard {
    pub(crate) fn new(number: u8, cache: Sectors, config: Config) -> Self {
        let sectors = cache.end - cache.start;
        Self {
            directory: Directory::new(config.sizes.clone(), sectors, &config.evict),
            held: Held::new(config.memory),
            seals: Seals::new(if config.kept { sectors } else { 0 }),
            log: Log::new(config.kept, number),
            settlements: Settlements::default(),
            bypass: Bypass::default(),
            dirt: Dirt::default(),
            admission: Admission::new(&config, sectors),
            fetches: Fetches::default(),
            tasks: Tasks::new(number, config.sizes.clone()),
            cache,
            config,
            volumes: Vec::new(),
            rounds: Rounds::default(),
            health: Health::default(),
            shed: Shed::default(),
            spare_survey: Survey::default(),
            lost: Lost::default(),
            events: Vec::new(),
            counters: Counters::default(),
        }
    }

    /// Starts a sub-request.
    pub(crate) fn submit(&mut self, piece: Piece, orders: &mut Vec<Order>) {
        let (volume, range) = (piece.volume, piece.sectors.clone());
        let stream = piece.stream;
        let task = self.tasks.begin(Work::Piece(piece), volume, range);
        self.tasks[task].stream = stream;
        self.start(task, orders);
        self.run_ready(orders);
    }

    /// Handles the end of an operation.
    pub(crate) fn completed(
        &mut self,
        op: OpId,
        result: Result<(), Fault>,
        orders: &mut Vec<Order>,
    ) {
        let (id, part, run) = self.tasks.of_op(op);
        let run = run.clone();
        self.tasks.op_ended(id, part);
        self.note_health(id, part, result.is_ok());
        self.part_ended(id, part, run, result, orders);
        self.go_on(id, orders);
    }

    /// Handles a read of data that turned out not to be cached, without a fault of the device.
    fn forgotten(&mut self, op: OpId, block: Block, run: Sectors, orders: &mut Vec<Order>) {
        let (id, part, _) = self.tasks.of_op(op);
        self.tasks.op_ended(id, part);
        self.cached_read_failed(id, block, run, Fault::Io, orders);
        self.go_on(id, orders);
    }

    /// Advances a task of which an operation has ended.
    fn go_on(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        if self.tasks[id].outstanding == 0 {
            self.step_ended(id, orders);
        }
        self.run_ready(orders);
    }

    /// Returns whether nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.tasks.is_idle() && self.rounds.is_idle()
    }

    /// Starts tasks whose turn may have come. A loop, not a recursion: one finished task may
    /// unblock many.
    fn run_ready(&mut self, orders: &mut Vec<Order>) {
        loop {
            while let Some(volume) = self.rounds.take_moved() {
                self.run_round(volume, orders);
            }
            if let Some(id) = self.bypass.take_ready() {
                self.start(id, orders);
                continue;
            }
            if let Some(id) = self.tasks.take_ready() {
                self.counters.restarts += 1;
                self.start(id, orders);
            } else if self.start_fetch(orders) {
                continue;
            } else if self.wants_rounds() {
                self.begin_rounds(orders);
            } else {
                break;
            }
        }
    }

    /// Starts a task, if its lock is free.
    fn start(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        let task = &self.tasks[id];
        match &task.work {
            Work::Clean { .. } => self.start_clean(id, orders),
            Work::Sink => self.start_sink(id, orders),
            Work::Fetch => self.start_read(id, orders),
            Work::Piece(piece) => match piece.kind {
                PieceKind::Read | PieceKind::Prefetch => self.start_read(id, orders),
                PieceKind::DirtyMap => self.mark_dirty(id, orders),
                PieceKind::Write { .. } | PieceKind::ZeroPart { .. } => {
                    self.start_write(id, orders)
                }
                PieceKind::Zero { .. } | PieceKind::Trim => self.start_zero_or_trim(id, orders),
            },
        }
    }

    /// Handles the result of one operation, and recovers from a failure where possible.
    fn part_ended(
        &mut self,
        id: TaskId,
        part: Part,
        run: Sectors,
        result: Result<(), Fault>,
        orders: &mut Vec<Order>,
    ) {
        if matches!(part, Part::Around | Part::Whole) && result != Err(Fault::Unsupported) {
            // a failed operation may have taken effect in part
            self.note_unsettled(self.tasks[id].volume);
        }
        match (part, result) {
            (Part::Store(block), Ok(())) if self.tasks[id].store.dirty => {
                if !self.directory.is_all_dirty(block, &run) {
                    self.directory.set_dirty(block, &run);
                }
                self.seal_later(block, &run);
                self.found(id, &run, orders);
            }
            (Part::Around, Ok(())) => self.found(id, &run, orders),
            (Part::Store(block), Ok(())) => {
                self.directory.set_clean(block, &run);
                self.note_clean(block, &run, orders);
            }
            (Part::Store(block), Err(_)) => self.store_failed(id, block, run, orders),
            (Part::Cached(block), Err(fault)) => {
                self.counters.cache_errors += 1;
                self.cached_read_failed(id, block, run, fault, orders);
            }
            (Part::Shed, Err(fault)) => self.shed_read_failed(id, run, fault, orders),
            (Part::Dirty(block), Ok(()))
                if self.tasks[id].step == Step::CleanWrite && !self.is_kept() =>
            {
                self.directory.set_clean(block, &run);
            }
            (Part::Unlogged, Ok(())) => self.store_around(id, &run, orders),
            (Part::Unlogged, Err(_)) => self.tasks[id].store.retry = true,
            (_, Ok(())) => {}
            (_, Err(fault)) => self.tasks[id].fault = Some(fault),
        }
    }

    /// Advances to the next step when all operations of a step have ended.
    fn step_ended(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        self.tasks[id].parts.clear();
        match self.tasks[id].step {
            Step::Reading => self.reading_ended(id, orders),
            Step::Edges => self.edges_ended(id, orders),
            Step::Backing => self.backing_ended(id, orders),
            Step::Storing => self.storing_ended(id, orders),
            Step::CleanRead => self.clean_read_ended(id, orders),
            Step::CleanWrite => self.clean_write_ended(id, orders),
            Step::Unlogging => self.unlogging_ended(id, orders),
            Step::Unsealing => self.unsealing_ended(id, orders),
            Step::Settling => self.settling_ended(id, orders),
            Step::Noting => self.noting_ended(id, orders),
            Step::Room => {} // its first writes have ended before its victims are clean
            Step::Waiting | Step::Done => unreachable!("no operation is under way without a lock"),
        }
    }

    /// Ends a task: answers, releases its buffers and lock, and wakes the tasks that wait for the
    /// lock.
    fn finish(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        self.events.extend(self.tasks.answer(id));
        debug_assert_eq!(self.tasks[id].outstanding, 0);
        self.tasks[id].step = Step::Done;
        self.tasks.release(id, orders);
        match self.tasks[id].work {
            Work::Piece(Piece { request, .. }) => {
                if self.tasks.is_last(id) {
                    self.events.push(Event::Finished { request });
                }
            }
            Work::Clean { because, .. } => self.cleaned(id, because, orders),
            Work::Sink => self.sunk(id),
            Work::Fetch => {
                if self.tasks.is_last(id) {
                    self.fetches.ended();
                }
            }
        }
        self.tasks.free(id);
    }
}
