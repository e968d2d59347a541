//! The block cache: splits requests over shards, joins their answers, and fans out flushes.
//!
//! Each region of a volume belongs to one shard, chosen by a hash that is part of the cache's
//! format. A [`BlockCache`] is one *part* of a cache: the shards that one thread owns, and the
//! requests that were submitted there. A cache with one part is a whole one. Sub-requests
//! ([`crate::engine::join`]) for shards of other parts are sent there as [`Message`]s. A flush
//! first makes every part write its dirty data to the backing device, then flushes that device.
//!
//! Like the shards this is a state machine without I/O: [`BlockCache::submit`],
//! [`BlockCache::completed`] and [`BlockCache::received`] are its input, [`Order`]s its output.

mod commits;
mod drains;
mod messages;
mod state;
mod streams;
mod volumes;

use crate::config::{Config, ConfigError, MOST_SHARDS};
use crate::engine::join::Join;
use crate::engine::request::{Fault, Kind, Request, RequestId};
use crate::engine::{Event, shard_of};
use crate::evict::Evict;
use crate::geometry::{SECTOR_BYTES, Sectors, VolumeId};
use crate::mode::WriteMode;
use crate::order::{Bad, OpId, Order};
use crate::part::{Message, PartId};
use crate::shard::Shard;
use crate::stats::Requests;
use crate::tiers::memory::{LEAST_HELD_SECTORS, Memory, MemoryTier};
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
}
