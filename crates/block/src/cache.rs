//! The block cache: splits requests over shards, joins their answers, and fans out flushes.
//!
//! Each region of a volume belongs to one shard, chosen by a hash that is part of the cache's
//! format. A [`BlockCache`] is one *part* of a cache: the shards that one thread owns, and the
//! requests that were submitted there. A cache with one part is a whole one. Sub-requests
//! ([`crate::join`]) for shards of other parts are sent there as [`Message`]s. A flush first makes
//! every part write its dirty data to the backing device, then flushes that device.
//!
//! Like the shards this is a state machine without I/O: [`BlockCache::submit`],
//! [`BlockCache::completed`] and [`BlockCache::received`] are its input, [`Order`]s its output.

mod commits;
mod drains;
mod streams;
mod volumes;

use floe_policy::Slot;
use floe_policy::admission::Times;

use crate::config::{Config, ConfigError, MOST_SHARDS};
use crate::engine::{Event, shard_of};
use crate::evict::Evict;
use crate::geometry::{SECTOR_BYTES, Sectors, VolumeId};
use crate::join::{Join, Settled};
use crate::journal::{Change, RestoredBlock};
use crate::memory::{LEAST_HELD_SECTORS, Memory, MemoryTier};
use crate::mode::WriteMode;
use crate::order::{Bad, BufferId, DeviceId, OpId, Order};
use crate::part::{ForeignPiece, Message, PartId};
use crate::piece::Piece;
use crate::request::{Fault, Kind, Request, RequestId};
use crate::shard::Shard;
use crate::stats::{MOST_LOST_RUNS, Requests, Stats};
use crate::volumes::Volumes;
use commits::{Commits, RouterOp};
use drains::Drain;
use streams::Followed;

/// The shard number in the ids of the router's own operations.
const ROUTER: u8 = u8::MAX;

/// One part of a cache over any number of volumes; with one part, a whole cache.
#[derive(Debug)]
pub struct BlockCache {
    part: PartId,
    parts: usize,
    /// This part's shards: those whose number leaves `part` when divided by `parts`, in order.
    shards: Vec<Shard>,
    /// The number of shards of all parts together.
    all_shards: u64,
    config: Config,
    /// The streams of its requests, where a policy needs them.
    followed: Option<Box<Followed>>,
    volumes: Volumes,
    joins: Vec<Option<Join>>,
    /// Drains that this part is working on.
    drains: Vec<Drain>,
    commits: Commits,
    requests: Requests,
    events: Vec<Event>,
    /// A bit for each of this part's shards that may have events to be handled.
    stirred: u128,
    degraded: bool,
    /// Some shard may have lost sectors that were not reported yet.
    has_newly_lost: bool,
}

impl BlockCache {
    /// Returns a whole cache, empty and without volumes.
    ///
    /// # Errors
    /// When there is not a group for each shard, or the number of shards is out of bounds.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        Ok(Self::parts(config, 1)?.pop().expect("a cache has at least one part"))
    }

    /// Returns a cache in so many parts, empty and without volumes; [`BlockCache::part`] returns
    /// their numbers.
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
            let memory = match config.memory {
                Memory::Holds { sectors } => Memory::Holds { sectors: sectors / shards },
                memory => memory,
            };
            let gate = config.gate.share(number, shards);
            let cache = number * sectors..(number + 1) * sectors;
            let config = Config { gate, memory, shards: Some(shards), ..config.clone() };
            Shard::new(number as u8, cache, config)
        };
        let part = |part: usize| Self {
            part: PartId(part as u8),
            parts,
            shards: (part as u64..shards).step_by(parts).map(shard).collect(),
            all_shards: shards,
            followed: Followed::new(&config),
            config: config.clone(),
            volumes: Volumes::default(),
            joins: Vec::new(),
            drains: Vec::new(),
            commits: Commits::default(),
            requests: Requests::default(),
            events: Vec::new(),
            stirred: 0,
            degraded: false,
            has_newly_lost: false,
        };
        Ok((0..parts).map(part).collect())
    }

    /// Returns the number of this part.
    pub fn part(&self) -> PartId {
        self.part
    }

    /// Returns the number of shards of all parts together.
    pub fn shards(&self) -> usize {
        self.all_shards as usize
    }

    /// Returns the write mode.
    pub fn mode(&self) -> WriteMode {
        self.config.mode
    }

    /// Returns the admission policy in the form that
    /// [`Admissions`](floe_policy::admission::Admissions) parses; `None` where everything is
    /// admitted.
    pub fn admission(&self) -> Option<String> {
        let admission = &self.config.gate.admission;
        (!admission.is_always()).then(|| admission.to_string())
    }

    /// Returns the eviction policy.
    pub fn evict(&self) -> &Evict {
        &self.config.evict
    }

    /// Returns the size in bytes of a volume, if it exists.
    pub fn volume_bytes(&self, id: VolumeId) -> Option<u64> {
        self.volumes.bytes(id)
    }

    /// Starts a request under an id of this part that no request under way has. Its buffer has
    /// [`Request::buffer_bytes`]; a write's is zero outside the request, a map's altogether.
    ///
    /// # Panics
    /// When the id is in use or belongs to another part.
    pub fn submit(&mut self, id: RequestId, request: Request, orders: &mut Vec<Order>) {
        assert_eq!(id.part(), self.part, "a request is named after the part it is submitted to");
        if self.joins.len() <= id.number() {
            self.joins.resize(id.number() + 1, None);
        }
        assert!(self.joins[id.number()].is_none(), "request {} is under way already", id.number());
        let mut join = Join::new(request, self.volumes.bytes(request.volume));
        let may_be_dirty =
            self.config.mode.keeps_writes() || matches!(self.config.memory, Memory::Holds { .. });
        let needless = match request.kind {
            Kind::Prefetch => !self.config.mode.caches_reads(),
            Kind::DirtyMap => !may_be_dirty,
            _ => false,
        };
        if needless {
            join.skip();
        }
        let is_flush = matches!(request.kind, Kind::Flush | Kind::Drain);
        let drains = is_flush && !join.is_refused() && (may_be_dirty || self.config.kept);
        let to_backing = request.kind == Kind::Drain;
        if drains {
            if self.config.kept {
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

    /// Handles the end of an order's operation.
    pub fn completed(&mut self, op: OpId, result: Result<(), Fault>, orders: &mut Vec<Order>) {
        match shard_of(op) {
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

    /// Returns the position on the cache device of an operation's store, and the number of its
    /// sectors; `None` for other operations.
    pub(crate) fn stored_at(&self, op: OpId) -> Option<(u64, usize)> {
        match shard_of(op) {
            ROUTER => None,
            shard => self.shards[shard as usize / self.parts].stored_at(op),
        }
    }

    /// Handles a read of `bad` sectors, which differ from the stored data. Returns the number not
    /// known before.
    pub(crate) fn read_corrupt(&mut self, op: OpId, bad: &[Bad], orders: &mut Vec<Order>) -> u64 {
        let here = shard_of(op) as usize / self.parts;
        let found = self.shards[here].read_corrupt(op, bad, orders);
        self.has_newly_lost = true;
        self.stirred |= 1 << here;
        if self.shards[here].is_degraded() {
            self.degrade();
        }
        self.handle_events(orders);
        found
    }

    /// Moves the runs that this part has found to be lost since the last call into `out`.
    pub(crate) fn take_newly_lost(&mut self, out: &mut Vec<(VolumeId, Sectors)>) {
        if !std::mem::take(&mut self.has_newly_lost) {
            return;
        }
        self.shards.iter_mut().for_each(|shard| shard.lost.report(out));
    }

    /// Notes the checksums of dirty data. To be called when nothing is under way, just before the
    /// end.
    pub(crate) fn note_rest(&mut self, orders: &mut Vec<Order>) {
        self.shards.iter_mut().for_each(|shard| shard.note_rest(orders));
        if self.has_unlogged() {
            self.commits.want();
            self.handle_events(orders);
        }
    }

    /// Handles a message of another part.
    pub fn received(&mut self, message: Message, orders: &mut Vec<Order>) {
        self.heard(message, orders);
        self.handle_events(orders);
    }

    /// Returns whether this part is degraded, after repeated failures of the cache device or by
    /// [`BlockCache::degrade`]. Reads and writes then go past the cache, except for dirty data.
    pub fn is_degraded(&self) -> bool {
        self.degraded
    }

    /// Degrades this part, as 16 failures in a row do by themselves. When one part is degraded, all
    /// should be.
    pub fn degrade(&mut self) {
        if !std::mem::replace(&mut self.degraded, true) {
            self.shards.iter_mut().for_each(Shard::degrade);
        }
    }

    /// Uses the cache device again, in this part, even when it was not degraded. The device must
    /// still hold every write it has acknowledged. Older cached data is used as it is, since data
    /// that has changed meanwhile was dropped. If the device may have lost some data, drop the
    /// clean data first with [`BlockCache::forget_clean`]; lost dirty data cannot be distinguished
    /// from good data.
    ///
    /// A persistent cache whose journal could not be written stays degraded.
    pub fn restore(&mut self) {
        if self.has_lost_journal() {
            return;
        }
        self.degraded = false;
        self.shards.iter_mut().for_each(Shard::restore);
    }

    /// Drops all clean data in this part. The blocks remain, empty.
    pub fn forget_clean(&mut self) {
        self.shards.iter_mut().for_each(Shard::forget_clean);
    }

    /// Sets the share of the hits on the cache device, from 0 to 1, that is read from the backing
    /// device instead. Dirty data is still read from the cache. The share is 0 at first. The caller
    /// measures whether that pays. Shares have a resolution of 2⁻³²; with a share of 1 one hit in
    /// so many is not shed.
    pub fn shed(&mut self, share: f64) {
        let share = (share.clamp(0.0, 1.0) * f64::from(u32::MAX)) as u32;
        self.shards.iter_mut().for_each(|shard| shard.shed.set(share));
    }

    /// Passes the current latencies to the admission: see [`floe_policy::admission::Times`]. To be
    /// called now and then.
    pub fn observe(&mut self, times: &Times) {
        self.shards.iter_mut().for_each(|shard| shard.observe(times));
    }

    /// Sets the most dirty bytes on the cache device, in all parts together: writes beyond it go
    /// through. Cleaning begins at half of the bound, and yields to clients the more the further
    /// the bound is.
    pub fn limit_dirty(&mut self, bytes: u64) {
        let sectors = (bytes / SECTOR_BYTES / self.all_shards).max(1);
        self.shards.iter_mut().for_each(|shard| shard.dirt.limit(sectors));
    }

    /// Begins to clean this part's dirty data, where no round is doing so. To be called now and
    /// then; the interval bounds the age of dirty data.
    pub fn clean(&mut self, orders: &mut Vec<Order>) {
        for shard in &mut self.shards {
            shard.clean_all(orders);
        }
        self.stirred = u128::MAX;
        if self.config.kept {
            self.settle_and_commit();
        }
        self.handle_events(orders);
    }

    /// Returns whether this part holds data that a backing device does not have.
    pub fn has_dirty_data(&self) -> bool {
        self.shards
            .iter()
            .any(|shard| shard.directory.dirty_sectors() > 0 || !shard.held.is_empty())
    }

    /// Returns whether nothing is under way in this part.
    pub fn is_idle(&self) -> bool {
        self.joins.iter().all(Option::is_none)
            && self.shards.iter().all(Shard::is_idle)
            && self.commits.is_idle()
    }

    /// Returns the current counters of this part.
    pub fn stats(&self) -> Stats {
        let refused_bytes = self.refused_bytes();
        let mut stats = Stats { requests: self.requests, refused_bytes, ..Stats::default() };
        stats.blocks =
            self.config.sizes.classes().map(|class| (self.config.sizes.bytes(class), 0)).collect();
        for shard in &self.shards {
            let directory = &shard.directory;
            stats.counters += &shard.counters;
            for (sum, live) in stats.blocks.iter_mut().zip(directory.live()) {
                sum.1 += live;
            }
            stats.valid_bytes += directory.valid_sectors() * SECTOR_BYTES;
            stats.dirty_bytes += directory.dirty_sectors() * SECTOR_BYTES;
            stats.held_bytes += shard.held.len() * SECTOR_BYTES;
            stats.lost_bytes += shard.lost.len() * SECTOR_BYTES;
            shard.lost.runs(MOST_LOST_RUNS, &mut stats.lost_runs);
            stats.block_metadata_bytes += directory.block_metadata_bytes();
            stats.sector_metadata_bytes +=
                directory.sector_metadata_bytes() + shard.seals.memory_bytes();
            stats.admission_bytes += shard.admission.memory_bytes();
            stats.decline(shard.admission.declined());
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

    /// Restores one of this part's shards to its content when the cache was last used.
    pub(crate) fn restore_shard(&mut self, shard: usize, blocks: &[RestoredBlock]) {
        self.shards[shard].directory.restore(blocks);
        for block in blocks {
            self.shards[shard].restore_seals(block);
            self.has_newly_lost |= !block.lost.is_empty();
            block.lost.iter().for_each(|run| self.shards[shard].lost.restore(block.at.volume, run));
        }
    }

    /// Returns the blocks of this part's shard of a number, the coldest first.
    pub(crate) fn blocks_by_heat(&self, shard: usize) -> Vec<u32> {
        self.shards[shard].directory.by_heat().into_iter().map(|block| block.0).collect()
    }

    /// Adds the changes that a checkpoint states for a block, if the block still exists.
    pub(crate) fn state_block(&self, shard: usize, block: u32, out: &mut Vec<Change>) {
        self.shards[shard].dump(Slot(block), out);
    }

    fn join(&mut self, id: RequestId) -> &mut Join {
        self.joins[id.number()].as_mut().expect("the request is under way")
    }

    /// Submits sub-requests to shards, here or in other parts, until enough are under way.
    fn give_out(&mut self, id: RequestId, orders: &mut Vec<Order>) {
        let region = self.config.sizes.largest();
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

    /// Returns the number of the shard that a sector belongs to.
    fn shard_of(&self, volume: VolumeId, sector: u64) -> u64 {
        (self.config.sizes.region(volume, sector).hash() >> 32) % self.all_shards
    }

    /// Submits a sub-request to one of this part's shards.
    fn serve(&mut self, piece: Piece, shard: u64, orders: &mut Vec<Order>) {
        let here = shard as usize / self.parts;
        self.shards[here].submit(piece, orders);
        self.stirred |= 1 << here;
    }

    /// Handles the shards' events, and begins the commits that are wanted, until there are no more.
    fn handle_events(&mut self, orders: &mut Vec<Order>) {
        loop {
            self.hear_shards(orders);
            if self.commits.bypass.is_some() {
                self.drains_without_journal(orders);
                self.hear_shards(orders);
            }
            if !self.config.kept || !self.begin_commits(orders) {
                return; // a failed commit can cause the next
            }
        }
    }

    /// Handles the shards' events until there are none: handling one shard's events may stir
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

    /// Handles the end of a request's flush of the backing device.
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

    /// Sends a message to the part that owns a request, which may be this one.
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

    /// Answers a request whose sub-requests all have answers, and removes it when none of them uses
    /// its buffer any more.
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
