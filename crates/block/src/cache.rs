//! The block cache: requests split over shards, answers joined, flushes fanned out.
//!
//! A request is cut at region ends; each region belongs to one shard, chosen by a hash that is part of the cache's
//! format. The pieces go their own ways, and the request is answered when the last of them is. A flush first drains
//! every shard that may hold dirty data and then flushes the backing device. Long requests (a trim can cover
//! gigabytes) are cut bit by bit, so that the memory they take is bounded.
//!
//! Like the shards this is a state machine without I/O: [`BlockCache::submit`] and [`BlockCache::completed`] in,
//! [`Order`]s out.

use floe_policy::{Lru, Ranked};

use crate::geometry::{BlockSizes, MOST_VOLUME_BYTES, Place, SECTOR_BYTES, VolumeId, format_size};
use crate::mode::WriteMode;
use crate::order::{BufferId, DeviceId, Fault, Kind, OpId, Order, Request, RequestId};
use crate::shard::{Event, Piece, PieceKind, Shard, ShardConfig, VolumeSize};
use crate::stats::{Requests, Stats};

/// Pieces of one request under way at once: enough for the largest read or write of an NBD client.
const PIECES_AT_ONCE: u32 = 128;

/// Most shards a cache can have.
pub const MOST_SHARDS: u64 = 128;

/// Cache space that deserves a shard of its own when nobody says how many there shall be.
const SHARD_BYTES: u64 = 1 << 30;

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
}

/// A request whose pieces are under way.
#[derive(Debug, Clone)]
struct Join {
    request: Request,
    /// The next sector to be given out in a piece, and the end.
    next: u64,
    end: u64,
    /// Pieces (or drains) without an answer, and pieces that may still use the buffer.
    unanswered: u32,
    unfinished: u32,
    fault: Option<Fault>,
    hit: bool,
    flushing: bool,
    answered: bool,
}

/// A cache over any number of volumes.
#[derive(Debug)]
pub struct BlockCache<E = Lru> {
    shards: Vec<Shard<E>>,
    sizes: BlockSizes,
    mode: WriteMode,
    volume_bytes: Vec<u64>,
    joins: Vec<Option<Join>>,
    requests: Requests,
    events: Vec<Event>,
    /// A bit for each shard that may have events to be handled.
    stirred: u128,
}

impl<E: Ranked + Default> BlockCache<E> {
    /// An empty cache without volumes.
    ///
    /// # Errors
    /// When there is not a group for each shard, or the number of shards is out of bounds.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        let group_bytes = config.sizes.largest() * SECTOR_BYTES;
        let by_size = (config.cache_bytes / SHARD_BYTES).clamp(1, MOST_SHARDS).next_power_of_two();
        let shards = config.shards.unwrap_or(by_size);
        if !(1..=MOST_SHARDS).contains(&shards) {
            return Err(ConfigError::Shards(shards));
        }
        if config.cache_bytes / shards < group_bytes {
            return Err(ConfigError::TooSmall { cache_bytes: config.cache_bytes, shards, group_bytes });
        }
        let sectors = config.cache_bytes / shards / group_bytes * config.sizes.largest();
        let shard = |number: u64| {
            Shard::new(ShardConfig {
                number: number as u8,
                sizes: config.sizes.clone(),
                mode: config.mode,
                cache: number * sectors..(number + 1) * sectors,
            })
        };
        Ok(Self {
            shards: (0..shards).map(shard).collect(),
            mode: config.mode,
            volume_bytes: Vec::new(),
            joins: Vec::new(),
            requests: Requests::default(),
            events: Vec::new(),
            stirred: 0,
            sizes: config.sizes,
        })
    }

    /// Adds a volume of this many bytes.
    ///
    /// # Panics
    /// With more than 65,536 volumes, or a volume of more than half an exbibyte.
    pub fn add_volume(&mut self, bytes: u64) -> VolumeId {
        let id = VolumeId(u16::try_from(self.volume_bytes.len()).expect("at most 65,536 volumes"));
        assert!(bytes <= MOST_VOLUME_BYTES, "a volume has at most half an exbibyte, not {bytes} bytes");
        self.volume_bytes.push(bytes);
        for shard in &mut self.shards {
            shard.add_volume(VolumeSize { sectors: bytes.div_ceil(SECTOR_BYTES) });
        }
        id
    }

    /// The number of shards.
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// When writes reach which device.
    pub fn mode(&self) -> WriteMode {
        self.mode
    }

    /// Takes a request on under a name that no request under way has. Its buffer is as long as the request rounded
    /// out to sectors, and zero outside the request.
    pub fn submit(&mut self, id: RequestId, request: Request, orders: &mut Vec<Order>) {
        if self.joins.len() <= id.0 as usize {
            self.joins.resize(id.0 as usize + 1, None);
        }
        assert!(self.joins[id.0 as usize].is_none(), "request {} is under way already", id.0);
        let end = request.offset.checked_add(request.len);
        let volume = self.volume_bytes.get(request.volume.0 as usize);
        let fault = match (volume, end) {
            (Some(_), _) if request.kind == Kind::Flush => None,
            (Some(&bytes), Some(end)) if end <= bytes => None,
            _ => Some(Fault::OutOfRange),
        };
        let sectors = match request.kind {
            _ if fault.is_some() || request.len == 0 => 0..0,
            Kind::Flush => 0..0,
            Kind::Trim => self.whole_sectors(&request),
            _ => request.offset / SECTOR_BYTES..end.unwrap_or(0).div_ceil(SECTOR_BYTES),
        };
        self.joins[id.0 as usize] = Some(Join {
            request,
            next: sectors.start,
            end: sectors.end.max(sectors.start),
            unanswered: 0,
            unfinished: 0,
            fault,
            hit: true,
            flushing: false,
            answered: false,
        });
        if request.kind == Kind::Flush && fault.is_none() && self.mode == WriteMode::Back {
            self.join(id).unanswered = self.shards.len() as u32;
            for shard in &mut self.shards {
                shard.drain(id.0, request.volume, orders);
            }
            self.stirred = u128::MAX;
        }
        self.give_out(id, orders);
        self.handle_events(orders);
        self.settle(id, orders);
    }

    /// An operation of an order has ended.
    pub fn completed(&mut self, op: OpId, result: Result<(), Fault>, orders: &mut Vec<Order>) {
        match Shard::<E>::of_op(op) {
            ROUTER => {
                let id = RequestId(op.0 as u32);
                let join = self.join(id);
                join.unanswered -= 1;
                join.fault = join.fault.or(result.err());
                self.settle(id, orders);
            }
            shard => {
                self.shards[shard as usize].completed(op, result, orders);
                self.stirred |= 1 << shard;
            }
        }
        self.handle_events(orders);
    }

    /// Begins to bring dirty data to the backing devices, where that is not going on already. To be called now and
    /// then; how often bounds the age of dirty data.
    pub fn clean(&mut self, orders: &mut Vec<Order>) {
        for shard in &mut self.shards {
            shard.clean_all(orders);
        }
        self.stirred = u128::MAX;
        self.handle_events(orders);
    }

    /// Whether the cache holds data that a backing device does not have.
    pub fn has_dirty_data(&self) -> bool {
        self.shards.iter().any(|shard| shard.directory.dirty_sectors() > 0)
    }

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.joins.iter().all(Option::is_none) && self.shards.iter().all(Shard::is_idle)
    }

    /// Everything there is to know at this moment.
    pub fn stats(&self) -> Stats {
        let mut stats = Stats { requests: self.requests, ..Stats::default() };
        stats.blocks = self.sizes.classes().map(|class| (self.sizes.bytes(class), 0)).collect();
        for shard in &self.shards {
            let directory = &shard.directory;
            stats.counters += &shard.counters;
            for (sum, live) in stats.blocks.iter_mut().zip(directory.live()) {
                sum.1 += live;
            }
            stats.valid_bytes += directory.valid_sectors() * SECTOR_BYTES;
            stats.dirty_bytes += directory.dirty_sectors() * SECTOR_BYTES;
            stats.block_metadata_bytes += directory.block_metadata_bytes();
            stats.sector_metadata_bytes += directory.sector_metadata_bytes();
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

    fn join(&mut self, id: RequestId) -> &mut Join {
        self.joins[id.0 as usize].as_mut().expect("the request is under way")
    }

    /// The sectors that a request covers whole; the volume's last may be cut short by the volume's end.
    fn whole_sectors(&self, request: &Request) -> std::ops::Range<u64> {
        let end = request.offset + request.len;
        let ends_volume = self.volume_bytes[request.volume.0 as usize] == end;
        let last = if ends_volume { end.div_ceil(SECTOR_BYTES) } else { end / SECTOR_BYTES };
        request.offset.div_ceil(SECTOR_BYTES)..last
    }

    /// Gives pieces out to shards until enough are under way.
    fn give_out(&mut self, id: RequestId, orders: &mut Vec<Order>) {
        loop {
            let join = self.join(id);
            if join.next >= join.end || join.unfinished >= PIECES_AT_ONCE {
                return;
            }
            let piece = self.next_piece(id);
            let join = self.join(id);
            join.next = piece.sectors.end;
            join.unanswered += 1;
            join.unfinished += 1;
            let region = piece.sectors.start & !(self.sizes.largest() - 1);
            let shard = Place::new(piece.volume, region).hash() >> 32;
            let shard = (shard % self.shards.len() as u64) as usize;
            self.shards[shard].submit(piece, orders);
            self.stirred |= 1 << shard;
        }
    }

    fn next_piece(&self, id: RequestId) -> Piece {
        let join = self.joins[id.0 as usize].as_ref().expect("the request is under way");
        let (request, start) = (join.request, join.next);
        let first = request.offset / SECTOR_BYTES;
        let mut end = (start + 1).next_multiple_of(self.sizes.largest()).min(join.end);
        let head = if start == first { request.offset % SECTOR_BYTES } else { 0 };
        // What the last sector holds beyond the request is kept, unless it lies beyond the volume.
        let request_end = request.offset + request.len;
        let ends_volume = self.volume_bytes[request.volume.0 as usize] == request_end;
        let beyond = (join.end * SECTOR_BYTES).saturating_sub(request_end);
        let tail_of_last = if ends_volume { 0 } else { beyond };
        let kind = match request.kind {
            Kind::Read => PieceKind::Read,
            Kind::Write { durable } => {
                PieceKind::Write { durable, head, tail: if end == join.end { tail_of_last } else { 0 } }
            }
            Kind::Trim => PieceKind::Trim,
            Kind::Zero { durable, .. } if head > 0 || (start + 1 == join.end && tail_of_last > 0) => {
                end = start + 1;
                PieceKind::ZeroPart { durable, head, tail: if end == join.end { tail_of_last } else { 0 } }
            }
            Kind::Zero { may_unmap, .. } => {
                if end == join.end && tail_of_last > 0 {
                    end -= 1;
                }
                PieceKind::Zero { may_unmap }
            }
            Kind::Flush => unreachable!("a flush has no pieces"),
        };
        let buffer_offset = (start - first) * SECTOR_BYTES;
        Piece { request: id, volume: request.volume, kind, sectors: start..end, buffer_offset }
    }

    /// Handles what shards have told, until they are silent: handling one shard's events may stir another.
    fn handle_events(&mut self, orders: &mut Vec<Order>) {
        while self.stirred != 0 {
            let stirred = self.stirred.trailing_zeros() as usize;
            self.stirred &= self.stirred - 1;
            let Some(shard) = self.shards.get_mut(stirred) else { continue };
            let mut events = std::mem::replace(&mut shard.events, std::mem::take(&mut self.events));
            for event in events.drain(..) {
                self.handle(event, orders);
            }
            self.events = events;
        }
    }

    fn handle(&mut self, event: Event, orders: &mut Vec<Order>) {
        let id = match event {
            Event::Answered { request, result, hit } => {
                let join = self.join(request);
                join.unanswered -= 1;
                join.fault = join.fault.or(result.err());
                join.hit &= hit;
                request
            }
            Event::Finished { request } => {
                self.join(request).unfinished -= 1;
                self.give_out(request, orders);
                request
            }
            Event::Drained { drain, result } => {
                let join = self.join(RequestId(drain));
                join.unanswered -= 1;
                join.fault = join.fault.or(result.err());
                RequestId(drain)
            }
        };
        self.settle(id, orders);
    }

    /// Answers a request whose pieces all have answers, and lets it go when none uses its buffer any more.
    fn settle(&mut self, id: RequestId, orders: &mut Vec<Order>) {
        let Some(join) = self.joins[id.0 as usize].as_mut() else { return };
        if join.unanswered > 0 || join.next < join.end {
            return;
        }
        if !join.answered {
            let durable_zero = matches!(join.request.kind, Kind::Zero { durable: true, .. });
            let flushes = join.request.kind == Kind::Flush || durable_zero;
            if flushes && !join.flushing && join.fault.is_none() {
                join.flushing = true;
                join.unanswered = 1;
                let op = OpId(u64::from(ROUTER) << 56 | u64::from(id.0));
                orders.push(Order::Flush { op, device: DeviceId::Backing(join.request.volume) });
                return;
            }
            join.answered = true;
            let result = join.fault.map_or(Ok(()), Err);
            orders.push(Order::Answer { request: id, result });
            let (request, hit) = (join.request, join.hit);
            self.count(&request, hit, result);
        }
        let join = self.join(id);
        if join.unfinished == 0 {
            self.joins[id.0 as usize] = None;
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
            Kind::Flush => counted.flushes += 1,
            Kind::Zero { .. } | Kind::Trim => counted.trims += 1,
        }
        if !hit && matches!(request.kind, Kind::Read | Kind::Write { .. }) {
            counted.missed_bytes += request.len;
        }
    }
}
