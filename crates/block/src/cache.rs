//! The block cache: splits requests over shards, joins their answers, and fans out flushes.
//!
//! Each region of a volume belongs to one shard, chosen by a hash that is part of the cache's
//! format. A [`BlockCache`] is one *part* of a cache: the shards that one thread owns, and the
//! requests that were submitted there. A cache with one part is a whole one. Sub-requests
//! ([`crate::join`]) for shards of other parts are sent there as [`Message`]s. A flush
//! first makes every part write its dirty data to the backing device, then flushes that device.
//!
//! Like the shards this is a state machine without I/O: [`BlockCache::submit`],
//! [`BlockCache::completed`] and [`BlockCache::received`] are its input, [`Order`]s its output.

use std::collections::VecDeque;

use floe_policy::admission::Times;

use crate::config::{CacheShare, Config, ConfigError, MOST_SHARDS};
use crate::counters::Counts;
use crate::exchange::{ForeignPiece, Message, PartId};
use crate::geometry::{SECTOR_BYTES, VolumeId};
use crate::join::{Fault, Join, JoinAction, PIECES_AT_ONCE, Request, RequestId, RequestKind};
use crate::journal::commits::{Commits, Drains, RouterOp};
use crate::mapping::Mapping;
use crate::memory::{LEAST_HELD_SECTORS, Memory, MemoryTier};
use crate::order::{Bad, BufferId, DeviceId, OpId, Order};
use crate::shard::Shard;
use crate::stats::{MOST_LOST_RUNS, Requests, Stats};
use crate::tasks::{Event, shard_of};
use crate::volumes::{VolumeError, Volumes};
use shards::{ROUTER, Shards, groups_over};
use streams::Followed;

pub(crate) use crate::journal::commits::JournalEvent;

pub(crate) mod fetch_size;
pub(crate) mod price;
pub(crate) mod shards;
mod streams;

/// One part of a cache over any number of volumes; with one part, a whole cache.
#[derive(Debug)]
pub struct BlockCache {
    pub(crate) shards: Shards,
    config: Config,
    /// The streams of the requests submitted here; `None` where no policy needs streams.
    followed: Option<Box<Followed>>,
    volumes: Volumes,
    joins: Vec<Option<Join>>,
    /// The queue of long requests.
    bulk: Bulk,
    /// Drains that this part is working on.
    drains: Drains,
    commits: Commits,
    requests: Requests,
    /// A spare vector, kept for its allocation; empty between uses.
    events: Vec<Event>,
}

impl BlockCache {
    /// Creates a cache of a single part, empty and without volumes.
    ///
    /// # Errors
    /// When there is not a group for each shard, or the number of shards is out of bounds.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        Ok(Self::parts(config, 1)?.pop().expect("a cache has at least one part"))
    }

    /// Creates a cache of `parts` parts, empty and without volumes; [`BlockCache::part`] returns
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
        config.check_size(config.cache_bytes, shards)?;
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
            Shard::new(number as u8, &cache, config)
        };
        let part = |part: usize| Self {
            shards: Shards::new(PartId(part as u8), parts, shards, &config, shard),
            followed: Followed::new(&config),
            config: config.clone(),
            volumes: Volumes::default(),
            joins: Vec::new(),
            bulk: Bulk::default(),
            drains: Drains::default(),
            commits: Commits::new(config.kept),
            requests: Requests::default(),
            events: Vec::new(),
        };
        Ok((0..parts).map(part).collect())
    }

    /// Returns the number of this part.
    pub fn part(&self) -> PartId {
        self.shards.part
    }

    /// Returns the number of shards of all parts together.
    pub fn shards(&self) -> usize {
        self.shards.all as usize
    }

    /// Returns the configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the size in bytes of a volume, if it exists.
    pub fn volume_bytes(&self, id: VolumeId) -> Option<u64> {
        self.volumes.bytes(id)
    }

    /// Starts a request. `id` belongs to this part and is not in use. The request's buffer has
    /// [`Request::buffer_bytes`]. Bytes that a write does not cover must be zero, and for a
    /// [`DirtyMap`](crate::RequestKind::DirtyMap) all bytes.
    ///
    /// # Panics
    /// When the id is in use or belongs to another part.
    pub fn submit(&mut self, id: RequestId, request: Request, orders: &mut Vec<Order>) {
        assert_eq!(
            id.part(),
            self.shards.part,
            "a request is named after the part it is submitted to"
        );
        if self.joins.len() <= id.number() {
            self.joins.resize(id.number() + 1, None);
        }
        assert!(self.joins[id.number()].is_none(), "request {} is under way already", id.number());
        let mut join = Join::new(request, self.volumes.bytes(request.volume));
        let may_be_dirty =
            self.config.mode.keeps_writes() || matches!(self.config.memory, Memory::Holds { .. });
        let needless = match request.kind {
            RequestKind::Prefetch | RequestKind::Warm => !self.config.mode.caches_reads(),
            RequestKind::DirtyMap => !may_be_dirty,
            _ => false,
        };
        if needless {
            join.skip();
        }
        let is_flush = matches!(request.kind, RequestKind::Flush | RequestKind::Drain);
        let drains = is_flush && !join.is_refused() && (may_be_dirty || self.config.kept);
        let to_backing = request.kind == RequestKind::Drain;
        if drains {
            if self.config.kept {
                join.leave_to_parts();
            }
            (0..self.shards.parts).for_each(|_| join.await_answer());
        }
        join.stream = match self.followed.as_deref_mut() {
            Some(followed) if !join.is_refused() => followed.follow(&self.config.sizes, &request),
            _ => None,
        };
        let stream = join.stream;
        self.joins[id.number()] = Some(join);
        if drains {
            let message = Message::Drain { request: id, volume: request.volume, to_backing };
            for to in (0..self.shards.parts).map(|part| PartId(part as u8)) {
                if to != self.shards.part {
                    orders.push(Order::Send { to, message: message.clone() });
                }
            }
            self.heard(message, orders);
        }
        self.give_out(id, orders);
        if let Some(stream) = stream {
            self.fetch_ahead(&request, stream, orders);
        }
        self.handle_events(orders);
        self.answer_if_done(id, orders);
    }

    /// Handles the completion of a device operation that the cache has ordered.
    pub fn completed(&mut self, op: OpId, result: Result<(), Fault>, orders: &mut Vec<Order>) {
        if shard_of(op) == ROUTER {
            match RouterOp::of(op) {
                RouterOp::Request(request) => {
                    let id = RequestId(request);
                    self.join(id).answered(result, true);
                    self.answer_if_done(id, orders);
                }
                op => {
                    let ended = self.commits.op_ended(op, result, &mut self.shards, orders);
                    if let Some(ended) = ended {
                        self.drains.go_on(ended, &self.shards, &mut self.commits);
                    }
                }
            }
        } else {
            let shard = self.shards.of_op(op);
            shard.completed(op, result, orders);
            if shard.parts.health.is_degraded() {
                self.shards.degrade(); // the device is the same for all
            }
        }
        self.handle_events(orders);
    }

    /// Handles a read that returned corrupt sectors, `bad`. Returns the number not known before.
    pub(crate) fn read_corrupt(&mut self, op: OpId, bad: &[Bad], orders: &mut Vec<Order>) -> u64 {
        let shard = self.shards.of_op(op);
        let found = shard.read_corrupt(op, bad, orders);
        if shard.parts.health.is_degraded() {
            self.shards.degrade();
        }
        self.shards.note_lost();
        self.handle_events(orders);
        found
    }

    pub(crate) fn hear_journal(&mut self, news: JournalEvent, orders: &mut Vec<Order>) {
        if self.commits.hear(news, &mut self.shards) {
            self.handle_events(orders);
        }
    }

    /// Marks this part's shards as having unlogged changes: their logs hold pending changes from
    /// before the session.
    pub(crate) fn inherit_unlogged(&mut self) {
        self.commits.inherit();
    }

    /// Logs the checksums of dirty data. To be called when nothing is under way, just before the
    /// end.
    pub(crate) fn note_rest(&mut self, orders: &mut Vec<Order>) {
        self.shards.each().for_each(|shard| shard.note_rest(orders));
        if self.commits.has_unlogged(&self.shards) {
            self.commits.want();
            self.handle_events(orders);
        }
    }

    /// Bypasses a cache whose journal cannot be written, in this part: the next start drops its
    /// clean data, unless that could not be recorded. Dirty data is cleaned now, and writes that
    /// wait for that continue. `stuck` says that some dirty data cannot be cleaned in some part,
    /// and that writes to it are to be refused.
    ///
    /// To be called for all parts alike, including those that could write their logs.
    pub fn bypass(&mut self, stuck: bool, orders: &mut Vec<Order>) {
        self.commits.bypass(stuck, &mut self.shards, orders);
        self.handle_events(orders);
    }

    /// Retires the cache in this part: the next start uses none of its data. All dirty data must
    /// have been [cleaned](Condition::is_emptied) in all parts.
    pub fn retire(&mut self, orders: &mut Vec<Order>) {
        self.commits.retire(&mut self.shards, orders);
        self.handle_events(orders);
    }

    /// Handles a message from another part.
    pub fn received(&mut self, message: Message, orders: &mut Vec<Order>) {
        self.heard(message, orders);
        self.handle_events(orders);
    }

    /// Starts cleaning this part's dirty data, where no round of cleaning is under way. To be
    /// called regularly; the interval bounds the age of dirty data.
    pub fn clean(&mut self, orders: &mut Vec<Order>) {
        self.shards.each().for_each(|shard| shard.clean_all(orders));
        if self.config.kept {
            self.commits.want_all(self.volumes.ids(), &self.shards);
        }
        self.handle_events(orders);
    }

    /// Returns whether nothing is under way in this part.
    pub fn is_idle(&self) -> bool {
        let shards_are_idle = self.shards.iter().all(Shard::is_idle);
        debug_assert!(!shards_are_idle || self.shards.iter().all(|it| it.parts.fills.are_idle()));
        shards_are_idle && self.joins.iter().all(Option::is_none) && self.commits.is_idle()
    }

    #[inline]
    fn join(&mut self, id: RequestId) -> &mut Join {
        self.joins[id.number()].as_mut().expect("the request is under way")
    }

    /// Submits sub-requests to shards, here or in other parts, until enough are under way. Long
    /// requests take turns.
    fn give_out(&mut self, id: RequestId, orders: &mut Vec<Order>) {
        let region = self.config.sizes.largest();
        let join = self.join(id);
        if !Bulk::is_for(join.request.kind) {
            while let Some(piece) = self.join(id).next_piece(id, region) {
                self.shards.give(piece, orders);
            }
            return;
        }
        if !std::mem::replace(&mut join.queued, true) {
            self.bulk.queue(id);
        }
        while let Some(id) = self.bulk.next() {
            // The request may be over, and another one have its number.
            let join = self.joins[id.number()].as_mut().filter(|join| join.queued);
            let Some(join) = join else { continue };
            match join.next_piece(id, region) {
                Some(piece) => {
                    self.bulk.submitted(id);
                    self.shards.give(piece, orders);
                }
                None => join.queued = false, // it queues again when one of its own has finished
            }
        }
    }

    /// Handles the shards' events and begins the commits they want, until no events are left.
    pub(crate) fn handle_events(&mut self, orders: &mut Vec<Order>) {
        loop {
            self.hear_shards(orders);
            if self.commits.is_bypassed() {
                self.drains.go_on_without_journal(&mut self.shards, &mut self.commits, orders);
                self.hear_shards(orders);
            }
            if !self.config.kept {
                return;
            }
            // a failed commit can cause the next
            let Some(ended) = self.commits.begin(&mut self.shards, orders) else { return };
            self.drains.go_on(ended, &self.shards, &mut self.commits);
        }
    }

    /// Handles the events of shards and drains until there are none: handling one shard's events
    /// may stir another.
    fn hear_shards(&mut self, orders: &mut Vec<Order>) {
        loop {
            if let Some(shard) = self.shards.next_stirred() {
                let spare = std::mem::take(&mut self.events);
                let mut events = std::mem::replace(&mut shard.parts.events, spare);
                self.hear(&mut events, orders);
                self.events = events;
            } else if let Some((request, result)) = self.drains.take_ended() {
                self.tell(Message::Drained { request, result }, request, orders);
            } else {
                return;
            }
        }
    }

    /// Handles a shard's events.
    fn hear(&mut self, events: &mut Vec<Event>, orders: &mut Vec<Order>) {
        let mut rest = events.drain(..).peekable();
        while let Some(event) = rest.next() {
            match event {
                Event::Answered { request, result, hit } => {
                    let finished = rest.next_if_eq(&Event::Finished { request }).is_some();
                    let message = Message::Answered { request, result, hit, finished };
                    self.tell(message, request, orders);
                }
                Event::Finished { request } => {
                    self.tell(Message::Finished { request }, request, orders);
                }
                Event::WantsCommit => {
                    self.commits.want();
                }
                Event::WantsSettlement(volume) => {
                    self.commits.want_settlement(volume);
                }
                Event::Drained { drain, result } => {
                    self.drains.drained(RequestId(drain), result, &self.shards, &mut self.commits);
                }
            }
        }
    }

    /// Sends a message to the part that owns a request, which may be this one.
    #[inline]
    fn tell(&mut self, message: Message, request: RequestId, orders: &mut Vec<Order>) {
        let to = request.part();
        if to == self.shards.part {
            self.heard(message, orders)
        } else {
            orders.push(Order::Send { to, message })
        }
    }

    fn heard(&mut self, message: Message, orders: &mut Vec<Order>) {
        match message {
            Message::Piece(ForeignPiece(piece)) => {
                let shard = self.shards.number_of(piece.volume, piece.sectors.start);
                self.shards.submit(shard, piece, orders);
            }
            Message::FetchAhead { volume, sectors, stream } => {
                let shard = self.shards.number_of(volume, sectors.start);
                self.shards.at(shard).fetch_ahead(volume, sectors, stream, orders);
            }
            Message::Drain { request, volume, to_backing } => {
                let (shards, commits) = (&mut self.shards, &self.commits);
                self.drains.begin(request, volume, to_backing, shards, commits, orders);
            }
            Message::Answered { request, result, hit, finished } => {
                self.join(request).answered(result, hit);
                if finished {
                    return self.heard(Message::Finished { request }, orders);
                }
                self.answer_if_done(request, orders);
            }
            Message::Finished { request } => {
                let join = self.join(request);
                join.finished();
                let kind = join.request.kind;
                self.bulk.finished(kind);
                self.give_out(request, orders);
                self.answer_if_done(request, orders);
            }
            Message::Drained { request, result } => {
                self.join(request).answered(result, true);
                self.answer_if_done(request, orders);
            }
        }
    }

    /// Answers a request once all its sub-requests have answers, and removes it once none of them
    /// uses its buffer.
    fn answer_if_done(&mut self, id: RequestId, orders: &mut Vec<Order>) {
        let Some(join) = self.joins[id.number()].as_mut() else { return };
        let over = match join.next_action() {
            JoinAction::Not => return,
            JoinAction::Flush => {
                let op = RouterOp::Request(id.0).op();
                let device = DeviceId::Backing(join.request.volume);
                return orders.push(Order::Flush { op, device });
            }
            JoinAction::Answer { result, over } => {
                let (request, hit) = (join.request, join.hit);
                orders.push(Order::Answer { request: id, result, hit: hit && result.is_ok() });
                self.requests.count(&request, hit, result);
                over
            }
            JoinAction::Over => true,
        };
        if over {
            self.joins[id.number()] = None;
            orders.push(Order::Release { buffer: BufferId::Request(id) });
        }
    }

    /// Returns a view of this part's condition: degraded, dirty, bypassed and so on.
    pub fn condition(&self) -> Condition<'_> {
        Condition { shards: &self.shards, commits: &self.commits }
    }

    /// Degrades this part: requests bypass its cache device. 16 failures in a row degrade a part
    /// automatically. When one part is degraded, all should be.
    pub fn degrade(&mut self) {
        self.shards.degrade();
    }

    /// Ends the degradation of this part: the cache device is used again. The device must still
    /// hold every write it has acknowledged. Older cached data is used as it is, since data that
    /// has changed meanwhile was dropped. If the device may have lost some data, drop the clean
    /// data first with [`BlockCache::forget_clean`]; lost dirty data cannot be distinguished from
    /// good data. Has these effects even if the part was not degraded.
    ///
    /// A persistent cache whose journal could not be written stays degraded.
    pub fn restore(&mut self) {
        if !self.commits.has_failed() {
            self.shards.restore();
        }
    }

    /// Drops all clean data in this part. The blocks remain, empty.
    pub fn forget_clean(&mut self) {
        self.shards.each().for_each(Shard::forget_clean);
    }

    /// Sets the share of the hits on the cache device, from 0 to 1, that is read from the backing
    /// device instead. Dirty data is still read from the cache. The share is 0 at first. The caller
    /// measures whether that pays. Shares have a resolution of 2⁻³²; with a share of 1, one hit in
    /// 2³² is not shed.
    pub fn shed(&mut self, share: f64) {
        let share = (share.clamp(0.0, 1.0) * f64::from(u32::MAX)) as u32;
        self.shards.each().for_each(|shard| shard.parts.shed.set(share));
    }

    /// Passes the current latencies to the admission: see [`floe_policy::admission::Times`]. To be
    /// called regularly.
    pub fn observe(&mut self, times: &Times) {
        self.shards.each().for_each(|shard| shard.observe(times));
    }

    /// Sets the maximum of dirty bytes on the cache device, in all parts together. Writes beyond it
    /// go through to the backing device. Cleaning begins at half of the maximum. The further below
    /// the maximum, the more cleaning yields to clients.
    pub fn limit_dirty(&mut self, bytes: u64) {
        let sectors = (bytes / SECTOR_BYTES / self.shards.all).max(1);
        self.shards.each().for_each(|shard| shard.parts.dirt.limit(sectors));
    }

    /// Sets the share of a volume, to be done in all parts alike. Other volumes do not evict what
    /// is guaranteed, and may use it until the volume does. At its largest part the volume evicts
    /// only blocks of its own; data beyond it is not cached where none of them can go. What a
    /// volume has above a new largest part leaves when it makes new blocks. Each shard applies an
    /// equal part of the share.
    pub fn set_share(&mut self, id: VolumeId, share: CacheShare) {
        self.shards.set_share(id, share);
    }

    /// Returns the current counters of this part.
    pub fn stats(&self) -> Stats {
        let refused_bytes = self.condition().refused_bytes();
        let mut stats = Stats { requests: self.requests, refused_bytes, ..Stats::default() };
        stats.blocks =
            self.config.sizes.classes().map(|class| (self.config.sizes.bytes(class), 0)).collect();
        for Shard { parts } in self.shards.iter() {
            let Mapping { directory, unflushed: held, lost, .. } = &parts.map;
            stats.counters += &parts.counters;
            directory.blocks.valid.add_to(&mut stats.counters);
            for (sum, live) in stats.blocks.iter_mut().zip(directory.blocks.live()) {
                sum.1 += live;
            }
            let unit_bytes = self.config.sizes.smallest() * SECTOR_BYTES;
            Counts::add(&mut stats.volume_bytes, &directory.blocks.shares.used_bytes(unit_bytes));
            stats.valid_bytes += directory.blocks.valid.sectors() * SECTOR_BYTES;
            stats.dirty_bytes += directory.blocks.dirty_sectors() * SECTOR_BYTES;
            stats.held_bytes += held.len() * SECTOR_BYTES;
            stats.lost_bytes += lost.len() * SECTOR_BYTES;
            lost.runs(MOST_LOST_RUNS, &mut stats.lost_runs);
            stats.block_metadata_bytes += directory.block_metadata_bytes();
            stats.sector_metadata_bytes +=
                directory.blocks.sector_metadata_bytes() + parts.logging.memory_bytes();
            stats.admission_bytes += parts.admission.memory_bytes();
            stats.decline(parts.admission.declined());
            Counts::add(&mut stats.adaptation, &directory.adaptation());
            stats.degraded_shards += u64::from(parts.health.is_degraded());
        }
        stats
    }

    /// Checks the invariants of every shard. Slow: for tests.
    ///
    /// # Panics
    /// When an invariant does not hold.
    pub fn check(&self) {
        for shard in self.shards.iter() {
            shard.parts.map.directory.check();
        }
    }

    /// Adds a volume of this many bytes under the lowest free id. To be done in all parts alike,
    /// and only when every removal has been done in all of them.
    ///
    /// # Panics
    /// With more than 65,536 volumes, or a volume of more than half an exbibyte.
    pub fn add_volume(&mut self, bytes: u64) -> VolumeId {
        let id = self.volumes.add(bytes);
        self.shards.set_volume(id, bytes);
        id
    }

    /// Adds a volume with a free id: the one that it had when a persistent cache was last used.
    ///
    /// # Panics
    /// When the id is not free, or the volume has more than half an exbibyte.
    pub fn add_volume_at(&mut self, id: VolumeId, bytes: u64) {
        self.volumes.add_at(id, bytes);
        self.shards.set_volume(id, bytes);
    }

    /// Removes a volume with all its cached data, and frees its id. To be done in all parts alike,
    /// once the volume is idle in all of them. Walks all groups of the cache. With `discard`, dirty
    /// data is lost; without, a flush must come before.
    ///
    /// # Errors
    /// When there is no such volume, something is under way for it in this part, or it has dirty
    /// data here that is not to be discarded.
    pub fn remove_volume(&mut self, id: VolumeId, discard: bool) -> Result<(), VolumeError> {
        self.volumes.bytes(id).ok_or(VolumeError::Unknown)?;
        let asked_for = self.joins.iter().flatten().any(|join| join.request.volume == id);
        if asked_for || self.shards.iter().any(|shard| shard.parts.tasks.is_using(id)) {
            return Err(VolumeError::Busy);
        }
        let dirty = self.shards.iter().map(|shard| shard.parts.map.dirty_bytes(id)).sum();
        if dirty > 0 && !discard {
            return Err(VolumeError::Dirty(dirty));
        }
        self.shards.each().for_each(|shard| shard.remove_volume(id));
        self.shards.set_share(id, CacheShare::default());
        self.volumes.remove(id);
        Ok(())
    }

    /// Grows a volume to this many bytes; to be done in all parts alike, after its backing device
    /// has grown. Requests may be under way, but where the old size ends within a sector, that
    /// sector has to be idle in all parts. Data written to that sector before the growth ends in
    /// zeros, so its new bytes may read as zeros whatever the backing device had there.
    ///
    /// # Errors
    /// When there is no such volume, it would shrink or be too large, or the sector that its old
    /// end cuts is in use here.
    pub fn resize_volume(&mut self, id: VolumeId, bytes: u64) -> Result<(), VolumeError> {
        if let Some(cut) = self.volumes.may_grow(id, bytes)? {
            let asked_for =
                self.joins.iter().flatten().any(|join| join.reaches(id, cut * SECTOR_BYTES));
            if asked_for
                || self.shards.iter().any(|shard| shard.parts.tasks.in_use(id, &(cut..cut + 1)))
            {
                return Err(VolumeError::Busy);
            }
            self.shards.each().for_each(|shard| shard.forget_sector(id, cut));
        }
        self.volumes.resize(id, bytes);
        self.shards.set_volume(id, bytes);
        Ok(())
    }
}

/// The condition of one part of a cache: degraded, dirty, bypassed and so on.
#[derive(Debug, Clone, Copy)]
pub struct Condition<'a> {
    shards: &'a Shards,
    commits: &'a Commits,
}

impl Condition<'_> {
    /// Returns whether this part is degraded, after repeated failures of the cache device or by
    /// [`BlockCache::degrade`]. Reads and writes then go past the cache, except for dirty data.
    pub fn is_degraded(&self) -> bool {
        self.shards.is_degraded()
    }

    /// Returns whether this part holds data that a backing device does not have.
    pub fn has_dirty_data(&self) -> bool {
        !self.is_emptied() || self.shards.iter().any(|shard| !shard.parts.map.unflushed.is_empty())
    }

    /// Returns whether this part's cache device has no dirty data. Unflushed data in the memory
    /// tier does not count.
    pub fn is_emptied(&self) -> bool {
        self.shards.iter().all(|shard| shard.parts.map.directory.blocks.dirty_sectors() == 0)
    }

    /// Returns the bytes of this part's space above the size of the cache that are not given back
    /// yet.
    pub fn bytes_over(&self) -> u64 {
        let group_bytes = self.shards.group_bytes();
        self.shards.iter().map(|shard| groups_over(shard) * group_bytes).sum()
    }

    /// Returns the number of this part's blocks that could not be cleaned to give back their space,
    /// since the size was last changed. They are tried again with the next
    /// [cleaning](BlockCache::clean).
    pub fn blocks_in_the_way(&self) -> u64 {
        self.shards.iter().map(|shard| shard.parts.leaving.failures()).sum()
    }

    /// Returns whether some of [`blocks_in_the_way`](Self::blocks_in_the_way) could not be read
    /// from the cache device.
    pub fn is_unreadable(&self) -> bool {
        self.shards.iter().any(|shard| shard.parts.leaving.is_unreadable)
    }

    /// Returns whether some change of the mapping is not in the durable log yet, and would be lost
    /// at a restart.
    pub fn has_unlogged(&self) -> bool {
        self.commits.has_unlogged(self.shards)
    }

    /// Returns whether the journal could not be written. Its content is then frozen, and the data
    /// it describes must stay in place.
    pub fn has_lost_journal(&self) -> bool {
        self.commits.has_failed()
    }

    /// Returns whether requests bypass the cache because its journal could not be written.
    pub fn is_bypassed(&self) -> bool {
        self.commits.is_bypassed()
    }

    /// Returns whether dirty data could not be cleaned after the journal failed.
    pub fn is_blocked(&self) -> bool {
        let is_blocked = |shard: &Shard| shard.parts.logging.bypass.is_blocked();
        self.commits.is_lost() && self.shards.iter().any(is_blocked)
    }

    /// Returns whether [`refused_bytes`](Self::refused_bytes) are above 0.
    pub fn is_refusing(&self) -> bool {
        self.shards.iter().any(|shard| shard.refused_sectors() > 0)
    }

    /// Returns an upper bound of the bytes for which some requests are refused: data of this part's
    /// shards that is lost, unreadable, or cannot be replaced.
    pub fn refused_bytes(&self) -> u64 {
        self.shards.iter().map(Shard::refused_sectors).sum::<u64>() * SECTOR_BYTES
    }
}

/// Changes the size of a cache, to be done in all parts alike. Requests may be under way. To grow,
/// the cache device has that size before. A persistent cache becomes at most as large as it was
/// made.
///
/// A smaller cache gives its space back by and by: see [`give_back`]. A later growth uses that
/// space first. The caller sets the limit of dirty bytes ([`BlockCache::limit_dirty`]) and the
/// shares ([`BlockCache::set_share`]) of all volumes again.
///
/// The owner of a persistent cache records its size in the superblock
/// ([`Superblock::set_cache_bytes`](crate::Superblock::set_cache_bytes)): a larger one before this,
/// and a smaller one after all space was given back. The next session begins with that size.
///
/// # Errors
/// When the cache cannot have that size; it keeps its own.
pub fn resize(cache: &mut BlockCache, cache_bytes: u64) -> Result<(), ConfigError> {
    let most = if cache.config.kept { cache.shards.addressed_bytes() } else { u64::MAX };
    let cache_bytes = cache_bytes.min(most);
    cache.config.check_size(cache_bytes, cache.shards.all)?;
    cache.config.cache_bytes = cache_bytes;
    cache.shards.resize(&cache.config);
    Ok(())
}

/// Goes on with giving back the space of a cache that has become smaller: the coldest blocks leave,
/// dirty ones after they were cleaned, and their places are discarded on the cache device.
///
/// To be called while [`Condition::bytes_over`] is above 0, whenever something has ended and
/// [`BlockCache::clean`] was called. One call gives back little, so that requests are served
/// between calls.
pub fn give_back(cache: &mut BlockCache, orders: &mut Vec<Order>) {
    if cache.shards.is_giving_back() {
        cache.shards.give_back(orders);
        cache.handle_events(orders);
    }
}

#[derive(Debug, Default)]
struct Bulk {
    /// Requests that may have a sub-request to submit, in the order of their turns.
    turns: VecDeque<RequestId>,
    /// Unfinished sub-requests of all long requests together.
    under_way: u32,
}

impl Bulk {
    /// Returns whether requests of this type are long ones, which take turns.
    fn is_for(kind: RequestKind) -> bool {
        matches!(kind, RequestKind::Trim | RequestKind::Zero { .. } | RequestKind::Evict)
    }

    /// Adds a request at the end of the queue.
    fn queue(&mut self, id: RequestId) {
        self.turns.push_back(id);
    }

    /// Takes the request whose turn it is, unless enough sub-requests are under way.
    fn next(&mut self) -> Option<RequestId> {
        if self.under_way < PIECES_AT_ONCE { self.turns.pop_front() } else { None }
    }

    /// Counts a sub-request that was submitted, and queues its request again for the next.
    fn submitted(&mut self, id: RequestId) {
        self.under_way += 1;
        self.queue(id);
    }

    /// Counts the end of a sub-request, if its request is a long one.
    fn finished(&mut self, kind: RequestKind) {
        self.under_way -= u32::from(Self::is_for(kind));
    }
}
