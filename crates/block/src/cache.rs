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

mod bulk;
mod commits;
mod drains;
mod fetch_size;
mod ghost;
mod messages;
mod shards;
mod state;
mod streams;
mod volumes;

use crate::config::{Config, ConfigError, MOST_SHARDS};
use crate::engine::join::Join;
use crate::engine::request::{Fault, Kind, Request, RequestId};
use crate::engine::{Event, shard_of};
use crate::geometry::{SECTOR_BYTES, VolumeId};
use crate::order::{Bad, OpId, Order};
use crate::part::{Message, PartId};
use crate::shard::Shard;
use crate::stats::Requests;
use crate::tiers::memory::{LEAST_HELD_SECTORS, Memory, MemoryTier};
use crate::volumes::Volumes;
use bulk::Bulk;
pub(crate) use commits::JournalNews;
use commits::{Commits, RouterOp};
use drains::Drains;
use shards::Shards;
pub use state::Condition;
use streams::Followed;

/// The shard number in the ids of the router's own operations.
const ROUTER: u8 = u8::MAX;

/// Most smallest blocks of a shard, which are numbered in 32 bits.
const MOST_SHARD_BLOCKS: u64 = 1 << 31;

/// One part of a cache over any number of volumes; with one part, a whole cache.
#[derive(Debug)]
pub struct BlockCache {
    pub(crate) shards: Shards,
    config: Config,
    /// The streams of its requests, where a policy needs them.
    followed: Option<Box<Followed>>,
    volumes: Volumes,
    joins: Vec<Option<Join>>,
    /// The turns of long requests.
    bulk: Bulk,
    /// Drains that this part is working on.
    drains: Drains,
    commits: Commits,
    requests: Requests,
    /// A spare vector, empty but for its memory.
    events: Vec<Event>,
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
        let block_bytes = config.sizes.smallest() * SECTOR_BYTES;
        let most_bytes = block_bytes.saturating_mul(shards * MOST_SHARD_BLOCKS);
        if config.cache_bytes > most_bytes {
            let cache_bytes = config.cache_bytes;
            return Err(ConfigError::TooLarge { cache_bytes, shards, block_bytes, most_bytes });
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

    /// Starts a request under an id of this part that no request under way has. Its buffer has
    /// [`Request::buffer_bytes`]; a write's is zero outside the request, a map's altogether.
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
        self.settle(id, orders);
    }

    /// Handles the end of an order's operation.
    pub fn completed(&mut self, op: OpId, result: Result<(), Fault>, orders: &mut Vec<Order>) {
        if shard_of(op) == ROUTER {
            self.router_completed(RouterOp::of(op), result, orders);
        } else {
            let shard = self.shards.of_op(op);
            shard.completed(op, result, orders);
            if shard.parts.health.is_degraded() {
                self.shards.degrade(); // the device is the same for all
            }
        }
        self.handle_events(orders);
    }

    fn router_completed(
        &mut self,
        op: RouterOp,
        result: Result<(), Fault>,
        orders: &mut Vec<Order>,
    ) {
        if let RouterOp::Request(request) = op {
            let id = RequestId(request);
            self.join(id).answered(result, true);
            self.settle(id, orders);
        } else if let Some(ended) = self.commits.op_ended(op, result, &mut self.shards, orders) {
            self.drains.go_on(ended, &self.shards, &mut self.commits);
        }
    }

    /// Handles a read of `bad` sectors, which differ from the stored data. Returns the number not
    /// known before.
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

    /// Handles a message of the journal.
    pub(crate) fn hear_journal(&mut self, news: JournalNews, orders: &mut Vec<Order>) {
        if self.commits.hear(news, &mut self.shards) {
            self.handle_events(orders);
        }
    }

    /// Notes that the logs of this part's shards have changes that no shard has noted.
    pub(crate) fn inherit_unlogged(&mut self) {
        self.commits.inherit();
    }

    /// Notes the checksums of dirty data. To be called when nothing is under way, just before the
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

    /// Handles a message of another part.
    pub fn received(&mut self, message: Message, orders: &mut Vec<Order>) {
        self.heard(message, orders);
        self.handle_events(orders);
    }

    /// Begins to clean this part's dirty data, where no round is doing so. To be called now and
    /// then; the interval bounds the age of dirty data.
    pub fn clean(&mut self, orders: &mut Vec<Order>) {
        self.shards.each().for_each(|shard| shard.clean_all(orders));
        if self.config.kept {
            self.commits.want_all(self.volumes.ids(), &self.shards);
        }
        self.handle_events(orders);
    }

    /// Returns whether nothing is under way in this part.
    pub fn is_idle(&self) -> bool {
        self.joins.iter().all(Option::is_none)
            && self.shards.iter().all(Shard::is_idle)
            && self.commits.is_idle()
    }
}
