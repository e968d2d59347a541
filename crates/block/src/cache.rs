//! The block cache: requests split over shards, answers joined, flushes fanned out.
//!
//! Each region of a volume belongs to one shard, chosen by a hash that is part of the cache's
//! format. A [`BlockCache`] is one *part* of a cache: the shards that one thread owns, and the
//! requests that were submitted there. A cache with one part is a whole one. Pieces of requests
//! ([`crate::join`]) that belong to shards of other parts are sent there as [`Message`]s. A flush
//! first lets every part bring what may be dirty to the backing device, then flushes that.
//!
//! Like the shards this is a state machine without I/O: [`BlockCache::submit`],
//! [`BlockCache::completed`] and [`BlockCache::received`] in, [`Order`]s out.

mod commits;
mod drains;
mod streams;
mod volumes;

use floe_policy::Slot;
use floe_policy::admission::Times;

use crate::driver::Bad;
use crate::evict::Evict;
use crate::gate::Gate;
use crate::geometry::{BlockSizes, SECTOR_BYTES, Sectors, VolumeId, format_size};
use crate::join::{Join, Settled};
use crate::journal::{Change, RestoredBlock};
use crate::memory::{LEAST_HELD_SECTORS, Memory, MemoryTier};
use crate::mode::WriteMode;
use crate::order::{BufferId, DeviceId, OpId, Order};
use crate::part::{ForeignPiece, Message, PartId};
use crate::piece::Piece;
use crate::request::{Fault, Kind, Request, RequestId};
use crate::shard::{Event, Shard, ShardConfig};
use crate::stats::{MOST_LOST_RUNS, Requests, Stats};
use crate::volumes::Volumes;
use commits::{Commits, RouterOp};
use drains::Drain;
use streams::Followed;

/// Most shards a cache can have.
pub const MOST_SHARDS: u64 = 128;

/// Cache space that deserves a shard of its own when nobody says how many there shall be.
const SHARD_BYTES: u64 = 1 << 30;

/// Shards that even out what the parts of a cache have to do, and groups that keep such a shard
/// useful.
const SHARDS_A_PART: u64 = 4;
const GROUPS_A_SHARD: u64 = 16;

/// The shard number in the names of the router's own operations.
const ROUTER: u8 = u8::MAX;

/// How a cache is made.
#[derive(Debug, Clone)]
pub struct Config {
    /// Block sizes.
    pub sizes: BlockSizes,
    /// Bytes of the cache device to use.
    pub cache_bytes: u64,
    /// When writes reach which device.
    pub mode: WriteMode,
    /// How many shards; `None` for one a gibibyte of cache, as a power of two.
    pub shards: Option<u64>,
    /// Who comes in.
    pub gate: Gate,
    /// Who leaves.
    pub evict: Evict,
    /// Whether there is a tier in memory above it, and what for.
    pub memory: Memory,
    /// Whether the cache outlives the program: its driver then keeps a journal.
    pub kept: bool,
}

/// Why a cache cannot be made.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConfigError {
    /// Too many shards, or none.
    #[error("shards = {0} is not between 1 and {MOST_SHARDS}")]
    Shards(u64),
    /// Less than a group for each shard.
    #[error("a cache of {} is too small: {shards} shard(s) with blocks of up to {} need {}",
        format_size(*cache_bytes), format_size(*group_bytes), format_size(shards * group_bytes))]
    TooSmall {
        /// What was given.
        cache_bytes: u64,
        /// The number of shards.
        shards: u64,
        /// The size of a group.
        group_bytes: u64,
    },
    /// Too little memory for writes to be held in each shard.
    #[error(
        "memory that {shards} shard(s) hold writes in has to have {} at least; give more, or \
         fewer --shards",
        format_size(*least_bytes)
    )]
    Memory {
        /// The number of shards.
        shards: u64,
        /// The size of a tier that would do.
        least_bytes: u64,
    },
    /// More parts than shards, or none.
    #[error(
        "a cache of {shards} shard(s) cannot be shared by {parts} threads; give more --shards or \
         fewer --threads"
    )]
    Parts {
        /// What was asked for.
        parts: usize,
        /// The number of shards.
        shards: u64,
    },
}

impl Config {
    /// One shard a gibibyte, as a power of two; and several for each of many parts, so that they
    /// have alike much to do.
    pub fn natural_shards(&self, parts: usize) -> u64 {
        let by_size = (self.cache_bytes / SHARD_BYTES).clamp(1, MOST_SHARDS).next_power_of_two();
        if parts == 1 {
            return by_size;
        }
        let groups = self.cache_bytes / (self.sizes.largest() * SECTOR_BYTES);
        let several =
            (SHARDS_A_PART * parts as u64).next_power_of_two().min(groups / GROUPS_A_SHARD);
        by_size.max(several).clamp(parts as u64, MOST_SHARDS.max(parts as u64))
    }
}

/// One part of a cache over any number of volumes; with one part, a whole cache.
#[derive(Debug)]
pub struct BlockCache {
    part: PartId,
    parts: usize,
    /// This part's shards: those whose number leaves `part` when divided by `parts`, in order.
    shards: Vec<Shard>,
    /// The number of shards of all parts together.
    all_shards: u64,
    sizes: BlockSizes,
    mode: WriteMode,
    gate: Gate,
    evict: Evict,
    /// The streams of its requests, where anybody looks at them.
    followed: Option<Box<Followed>>,
    memory: Memory,
    volumes: Volumes,
    joins: Vec<Option<Join>>,
    /// Drains that this part is working on.
    drains: Vec<Drain>,
    /// Whether the cache outlives the program.
    kept: bool,
    commits: Commits,
    requests: Requests,
    events: Vec<Event>,
    /// A bit for each of this part's shards that may have events to be handled.
    stirred: u128,
    degraded: bool,
    /// Some shard may have found something lost of which nobody has been told.
    has_newly_lost: bool,
}

impl BlockCache {
    /// A whole cache, empty and without volumes.
    ///
    /// # Errors
    /// When there is not a group for each shard, or the number of shards is out of bounds.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        Ok(Self::parts(config, 1)?.pop().expect("a cache has at least one part"))
    }

    /// A cache in so many parts, empty and without volumes; [`BlockCache::part`] tells them apart.
    ///
    /// # Errors
    /// When there is not a group for each shard or not a shard for each part, or a number is out of
    /// bounds.
    pub fn parts(config: Config, parts: usize) -> Result<Vec<Self>, ConfigError> {
        let group_bytes = config.sizes.largest() * SECTOR_BYTES;
        let shards = config.shards.unwrap_or_else(|| config.natural_shards(parts));
        if !(1..=MOST_SHARDS).contains(&shards) {
            return Err(ConfigError::Shards(shards));
        }
        if !(1..=shards).contains(&(parts as u64)) {
            return Err(ConfigError::Parts { parts, shards });
        }
        if config.cache_bytes / shards < group_bytes {
            return Err(ConfigError::TooSmall {
                cache_bytes: config.cache_bytes,
                shards,
                group_bytes,
            });
        }
        if let Memory::Holds { sectors } = config.memory
            && sectors / shards < LEAST_HELD_SECTORS
        {
            let least_bytes = MemoryTier::bytes_to_hold(LEAST_HELD_SECTORS * shards);
            return Err(ConfigError::Memory { shards, least_bytes });
        }
        let sectors = config.cache_bytes / shards / group_bytes * config.sizes.largest();
        let shard = |number: u64| {
            Shard::new(ShardConfig {
                number: number as u8,
                sizes: config.sizes.clone(),
                mode: config.mode,
                gate: config.gate.share(number, shards),
                evict: config.evict.clone(),
                shards,
                memory: match config.memory {
                    Memory::Holds { sectors } => Memory::Holds { sectors: sectors / shards },
                    memory => memory,
                },
                cache: number * sectors..(number + 1) * sectors,
                kept: config.kept,
            })
        };
        let part = |part: usize| Self {
            part: PartId(part as u8),
            parts,
            shards: (part as u64..shards).step_by(parts).map(shard).collect(),
            all_shards: shards,
            mode: config.mode,
            gate: config.gate.clone(),
            evict: config.evict.clone(),
            followed: Followed::new(&config),
            memory: config.memory,
            volumes: Volumes::default(),
            joins: Vec::new(),
            drains: Vec::new(),
            kept: config.kept,
            commits: Commits::default(),
            requests: Requests::default(),
            events: Vec::new(),
            stirred: 0,
            degraded: false,
            has_newly_lost: false,
            sizes: config.sizes.clone(),
        };
        Ok((0..parts).map(part).collect())
    }

    /// Which part it is.
    pub fn part(&self) -> PartId {
        self.part
    }

    /// The number of shards of all parts together.
    pub fn shards(&self) -> usize {
        self.all_shards as usize
    }

    /// When writes reach which device.
    pub fn mode(&self) -> WriteMode {
        self.mode
    }

    /// Who comes in, as [`Admissions`](floe_policy::admission::Admissions) reads it; `None` where
    /// everything does.
    pub fn admission(&self) -> Option<String> {
        let admission = &self.gate.admission;
        (!admission.is_always()).then(|| admission.to_string())
    }

    /// Who leaves.
    pub fn evict(&self) -> &Evict {
        &self.evict
    }

    /// The size in bytes of a volume, if it is there.
    pub fn volume_bytes(&self, id: VolumeId) -> Option<u64> {
        self.volumes.bytes(id)
    }

    /// Takes a request on under a name of this part that no request under way has. Its buffer has
    /// [`Request::buffer_bytes`]; a write's is zero outside the request, a map's altogether.
    ///
    /// # Panics
    /// When the name is in use or another part's.
    pub fn submit(&mut self, id: RequestId, request: Request, orders: &mut Vec<Order>) {
        assert_eq!(id.part(), self.part, "a request is named after the part it is submitted to");
        if self.joins.len() <= id.number() {
            self.joins.resize(id.number() + 1, None);
        }
        assert!(self.joins[id.number()].is_none(), "request {} is under way already", id.number());
        let mut join = Join::new(request, self.volumes.bytes(request.volume));
        let may_be_dirty = self.mode.keeps_writes() || matches!(self.memory, Memory::Holds { .. });
        let needless = match request.kind {
            Kind::Prefetch => !self.mode.caches_reads(),
            Kind::DirtyMap => !may_be_dirty,
            _ => false,
        };
        if needless {
            join.skip();
        }
        let is_flush = matches!(request.kind, Kind::Flush | Kind::Drain);
        let drains = is_flush && !join.is_refused() && (may_be_dirty || self.kept);
        let to_backing = request.kind == Kind::Drain;
        if drains {
            if self.kept {
                join.leave_to_parts();
            }
            (0..self.parts).for_each(|_| join.await_answer());
        }
        join.stream = if join.is_refused() { None } else { self.follow(&request) };
        let stream = join.stream;
        self.joins[id.number()] = Some(join);
        if drains {
            let parts = (0..self.parts).map(|part| PartId(part as u8));
            for to in parts.filter(|&part| part != self.part) {
                orders.push(Order::Send {
                    to,
                    message: Message::Drain { request: id, volume: request.volume, to_backing },
                });
            }
            self.drain(id, request.volume, to_backing, orders);
        }
        self.give_out(id, orders);
        if let Some(stream) = stream {
            self.fetch_ahead(&request, stream, orders);
        }
        self.handle_events(orders);
        self.settle(id, orders);
    }

    /// An operation of an order has ended.
    pub fn completed(&mut self, op: OpId, result: Result<(), Fault>, orders: &mut Vec<Order>) {
        match Shard::of_op(op) {
            ROUTER => {
                self.router_completed(RouterOp::of(op), result, orders);
            }
            shard => {
                let here = shard as usize / self.parts;
                self.shards[here].completed(op, result, orders);
                self.stirred |= 1 << here;
                if self.shards[here].is_degraded() {
                    self.degrade(); // the device is the same for all
                }
            }
        }
        self.handle_events(orders);
    }

    /// Where on the cache device an operation was to store something, and how many sectors; `None`
    /// if it was not.
    pub(crate) fn stored_at(&self, op: OpId) -> Option<(u64, usize)> {
        match Shard::of_op(op) {
            ROUTER => None,
            shard => self.shards[shard as usize / self.parts].stored_at(op),
        }
    }

    /// An operation has read `bad` sectors, which are not what was stored. Answers how many nobody
    /// knew of.
    pub(crate) fn read_corrupt(&mut self, op: OpId, bad: &[Bad], orders: &mut Vec<Order>) -> u64 {
        let here = Shard::of_op(op) as usize / self.parts;
        let found = self.shards[here].read_corrupt(op, bad, orders);
        self.has_newly_lost = true;
        self.stirred |= 1 << here;
        if self.shards[here].is_degraded() {
            self.degrade();
        }
        self.handle_events(orders);
        found
    }

    /// Moves the runs whose only copy this part has found to be gone since this was last asked into
    /// `out`.
    pub(crate) fn take_newly_lost(&mut self, out: &mut Vec<(VolumeId, Sectors)>) {
        if !std::mem::take(&mut self.has_newly_lost) {
            return;
        }
        self.shards.iter_mut().for_each(|shard| shard.take_newly_lost(out));
    }

    /// Notes the checksums of what is dirty: when nothing is under way and nothing but the end is
    /// to come.
    pub(crate) fn note_rest(&mut self, orders: &mut Vec<Order>) {
        self.shards.iter_mut().for_each(|shard| shard.note_rest(orders));
        if self.has_unlogged() {
            self.commits.want();
            self.handle_events(orders);
        }
    }

    /// Another part says something.
    pub fn received(&mut self, message: Message, orders: &mut Vec<Order>) {
        self.heard(message, orders);
        self.handle_events(orders);
    }

    /// Whether this part has given the cache device up, for failing again and again or by
    /// [`BlockCache::degrade`]: reads and writes go past the cache, except for data that only the
    /// cache has.
    pub fn is_degraded(&self) -> bool {
        self.degraded
    }

    /// Gives the cache device up, as 16 failures in a row do by themselves. When one part has done
    /// it, so should all.
    pub fn degrade(&mut self) {
        if !std::mem::replace(&mut self.degraded, true) {
            self.shards.iter_mut().for_each(Shard::degrade);
        }
    }

    /// Uses the cache device again, in this part, also when it had not been given up. It must still
    /// hold every write it has acknowledged: what was cached before is used as it is, since
    /// whatever has changed meanwhile has been dropped. A device that may have lost some of it has
    /// its clean data dropped first, with [`BlockCache::forget_clean`]; dirty data that it lost
    /// cannot be told from good.
    ///
    /// Where the cache outlives the program and its journal could not be written, it stays given
    /// up.
    pub fn restore(&mut self) {
        if self.has_lost_journal() {
            return;
        }
        self.degraded = false;
        self.shards.iter_mut().for_each(Shard::restore);
    }

    /// Drops everything in this part that the backing devices have too. The blocks remain, empty.
    pub fn forget_clean(&mut self) {
        self.shards.iter_mut().for_each(Shard::forget_clean);
    }

    /// From now on this share of the hits on the cache device, from 0 to 1, is read from the
    /// backing device instead, as far as that has what the cache has; none at first. It is for
    /// whoever measures whether that pays. Shares are kept to 2⁻³²; a share of 1 leaves out one hit
    /// in so many.
    pub fn shed(&mut self, share: f64) {
        let share = (share.clamp(0.0, 1.0) * f64::from(u32::MAX)) as u32;
        self.shards.iter_mut().for_each(|shard| shard.shed(share));
    }

    /// Tells who decides what comes in how long things take at present: see
    /// [`floe_policy::admission::Times`]. To be called now and then.
    pub fn observe(&mut self, times: &Times) {
        self.shards.iter_mut().for_each(|shard| shard.observe(times));
    }

    /// Sets how many bytes on the cache device may be newer than the backing devices, in all parts
    /// together: what would be more is written through. Cleaning begins at half of that, and yields
    /// to clients the more the further the bound is.
    pub fn limit_dirty(&mut self, bytes: u64) {
        let sectors = (bytes / SECTOR_BYTES / self.all_shards).max(1);
        self.shards.iter_mut().for_each(|shard| shard.limit_dirty(sectors));
    }

    /// Begins to bring this part's dirty data to the backing devices, where that is not going on
    /// already. To be called now and then; how often bounds the age of dirty data.
    pub fn clean(&mut self, orders: &mut Vec<Order>) {
        for shard in &mut self.shards {
            shard.clean_all(orders);
        }
        self.stirred = u128::MAX;
        if self.kept {
            self.settle_and_commit();
        }
        self.handle_events(orders);
    }

    /// Whether this part holds data that a backing device does not have.
    pub fn has_dirty_data(&self) -> bool {
        self.shards
            .iter()
            .any(|shard| shard.directory.dirty_sectors() > 0 || !shard.held.is_empty())
    }

    /// Whether nothing is under way in this part.
    pub fn is_idle(&self) -> bool {
        self.joins.iter().all(Option::is_none)
            && self.shards.iter().all(Shard::is_idle)
            && self.commits.is_idle()
    }

    /// Everything there is to know of this part at this moment.
    pub fn stats(&self) -> Stats {
        let refused_bytes = self.refused_bytes();
        let mut stats = Stats { requests: self.requests, refused_bytes, ..Stats::default() };
        stats.blocks = self.sizes.classes().map(|class| (self.sizes.bytes(class), 0)).collect();
        for shard in &self.shards {
            let directory = &shard.directory;
            stats.counters += &shard.counters;
            for (sum, live) in stats.blocks.iter_mut().zip(directory.live()) {
                sum.1 += live;
            }
            stats.valid_bytes += directory.valid_sectors() * SECTOR_BYTES;
            stats.dirty_bytes += directory.dirty_sectors() * SECTOR_BYTES;
            stats.held_bytes += shard.held.len() * SECTOR_BYTES;
            stats.lost_bytes += shard.lost_bytes();
            shard.lost_runs(MOST_LOST_RUNS, &mut stats.lost_runs);
            stats.block_metadata_bytes += directory.block_metadata_bytes();
            stats.sector_metadata_bytes += directory.sector_metadata_bytes() + shard.seal_bytes();
            stats.admission_bytes += shard.admission_bytes();
            stats.decline(shard.declined());
            stats.degraded_shards += u64::from(shard.is_degraded());
        }
        stats
    }

    /// Checks the invariants of every shard, slowly: for tests.
    ///
    /// # Panics
    /// When one does not hold.
    pub fn check(&self) {
        for shard in &self.shards {
            shard.directory.check();
        }
    }

    /// Fills one of this part's shards with what it had when the cache was last used.
    pub(crate) fn restore_shard(&mut self, shard: usize, blocks: &[RestoredBlock]) {
        self.shards[shard].directory.restore(blocks);
        for block in blocks {
            self.shards[shard].restore_seals(block);
            self.has_newly_lost |= !block.lost.is_empty();
            block.lost.iter().for_each(|run| self.shards[shard].restore_lost(block.at.volume, run));
        }
    }

    /// The blocks of this part's shard of a number, the coldest first.
    pub(crate) fn blocks_by_heat(&self, shard: usize) -> Vec<u32> {
        self.shards[shard].directory.by_heat().into_iter().map(|block| block.0).collect()
    }

    /// What a checkpoint is to say of a block, if it is still there.
    pub(crate) fn state_block(&self, shard: usize, block: u32, out: &mut Vec<Change>) {
        self.shards[shard].dump(Slot(block), out);
    }

    fn join(&mut self, id: RequestId) -> &mut Join {
        self.joins[id.number()].as_mut().expect("the request is under way")
    }

    /// Gives pieces out to shards, here or elsewhere, until enough are under way.
    fn give_out(&mut self, id: RequestId, orders: &mut Vec<Order>) {
        let region = self.sizes.largest();
        while let Some(piece) = self.join(id).next_piece(id, region) {
            let shard = self.shard_of(piece.volume, piece.sectors.start);
            let owner = PartId((shard % self.parts as u64) as u8);
            if owner == self.part {
                self.serve(piece, shard, orders);
            } else {
                orders
                    .push(Order::Send { to: owner, message: Message::Piece(ForeignPiece(piece)) });
            }
        }
    }

    /// The number of the shard that a sector belongs to.
    fn shard_of(&self, volume: VolumeId, sector: u64) -> u64 {
        (self.sizes.region(volume, sector).hash() >> 32) % self.all_shards
    }

    /// Lets one of this part's shards serve a piece.
    fn serve(&mut self, piece: Piece, shard: u64, orders: &mut Vec<Order>) {
        let here = shard as usize / self.parts;
        self.shards[here].submit(piece, orders);
        self.stirred |= 1 << here;
    }

    /// Handles what shards have told, and begins the commits that are wanted, until all are silent.
    fn handle_events(&mut self, orders: &mut Vec<Order>) {
        loop {
            self.hear_shards(orders);
            if self.commits.bypass.is_some() {
                self.drains_without_journal(orders);
                self.hear_shards(orders);
            }
            if !self.kept || !self.begin_commits(orders) {
                return; // whoever hears that a commit has failed may want the next
            }
        }
    }

    /// Handles what shards have told, until they are silent: handling one shard's events may stir
    /// another.
    fn hear_shards(&mut self, orders: &mut Vec<Order>) {
        while self.stirred != 0 {
            let stirred = self.stirred.trailing_zeros() as usize;
            self.stirred &= self.stirred - 1;
            let Some(shard) = self.shards.get_mut(stirred) else { continue };
            let mut events = std::mem::replace(&mut shard.events, std::mem::take(&mut self.events));
            let mut rest = events.drain(..).peekable();
            while let Some(event) = rest.next() {
                match event {
                    Event::Answered { request, result, hit } => {
                        let finished = rest.next_if_eq(&Event::Finished { request }).is_some();
                        self.tell(
                            Message::Answered { request, result, hit, finished },
                            request,
                            orders,
                        );
                    }
                    Event::Finished { request } => {
                        self.tell(Message::Finished { request }, request, orders)
                    }
                    Event::WantsCommit => {
                        self.commits.want();
                    }
                    Event::WantsSettlement(volume) => {
                        self.commits.want_settlement(volume);
                    }
                    Event::Drained { drain, result } => {
                        self.drained(RequestId(drain), result, orders)
                    }
                }
            }
            drop(rest);
            self.events = events;
        }
    }

    /// The backing device has been flushed for a request.
    fn request_flushed(
        &mut self,
        request: u32,
        result: Result<(), Fault>,
        orders: &mut Vec<Order>,
    ) {
        let id = RequestId(request);
        self.join(id).answered(result, true);
        self.settle(id, orders);
    }

    /// Says something to the part whose request it is about, which may be this one.
    fn tell(&mut self, message: Message, request: RequestId, orders: &mut Vec<Order>) {
        let to = request.part();
        if to == self.part {
            self.heard(message, orders)
        } else {
            orders.push(Order::Send { to, message })
        }
    }

    fn heard(&mut self, message: Message, orders: &mut Vec<Order>) {
        match message {
            Message::Piece(ForeignPiece(piece)) => {
                let shard = self.shard_of(piece.volume, piece.sectors.start);
                self.serve(piece, shard, orders);
            }
            Message::FetchAhead { volume, sectors, stream } => {
                let here = self.shard_of(volume, sectors.start) as usize / self.parts;
                self.shards[here].fetch_ahead(volume, sectors, stream, orders);
                self.stirred |= 1 << here;
            }
            Message::Drain { request, volume, to_backing } => {
                self.drain(request, volume, to_backing, orders);
            }
            Message::Answered { request, result, hit, finished } => {
                self.join(request).answered(result, hit);
                if finished {
                    self.join(request).finished();
                    self.give_out(request, orders);
                }
                self.settle(request, orders);
            }
            Message::Finished { request } => {
                self.join(request).finished();
                self.give_out(request, orders);
                self.settle(request, orders);
            }
            Message::Drained { request, result } => {
                self.join(request).answered(result, true);
                self.settle(request, orders);
            }
        }
    }

    /// Answers a request whose pieces all have answers, and lets it go when none uses its buffer
    /// any more.
    fn settle(&mut self, id: RequestId, orders: &mut Vec<Order>) {
        let Some(join) = self.joins[id.number()].as_mut() else { return };
        let over = match join.settle() {
            Settled::Not => return,
            Settled::Flush => {
                let op = RouterOp::Request(id.0).op();
                let device = DeviceId::Backing(join.request.volume);
                return orders.push(Order::Flush { op, device });
            }
            Settled::Answer { result, over } => {
                let (request, hit) = (join.request, join.hit);
                orders.push(Order::Answer { request: id, result });
                self.count(&request, hit, result);
                over
            }
            Settled::Over => true,
        };
        if over {
            self.joins[id.number()] = None;
            orders.push(Order::Release { buffer: BufferId::Request(id) });
        }
    }

    fn count(&mut self, request: &Request, hit: bool, result: Result<(), Fault>) {
        let counted = &mut self.requests;
        counted.errors += u64::from(result.is_err());
        if result == Err(Fault::OutOfRange) {
            return; // its length means nothing
        }
        match request.kind {
            Kind::Read => {
                counted.reads += 1;
                counted.read_hits += u64::from(hit);
                counted.read_bytes += request.len;
            }
            Kind::Write { .. } => {
                counted.writes += 1;
                counted.write_hits += u64::from(hit);
                counted.write_bytes += request.len;
            }
            Kind::Flush | Kind::Drain => counted.flushes += 1,
            Kind::Zero { .. } | Kind::Trim => counted.trims += 1,
            Kind::Prefetch => counted.prefetches += 1,
            Kind::DirtyMap => {}
        }
        if !hit && matches!(request.kind, Kind::Read | Kind::Write { .. }) {
            counted.missed_bytes += request.len;
        }
    }
}
