//! A cache with plain arrays of bytes for devices and buffers, whose operations end when and how a
//! test says.

#![allow(unreachable_pub)] // used by the tests of one crate

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;

use floe_block::{
    AdmissionConfig, BlockCache, BlockSizes, BufferId, Config, ConfigError, DeviceId, Evict, Fault,
    Memory, Message, OpId, Order, Paging, PartId, Request, RequestId, RequestKind, Span, VolumeId,
    WriteMode,
};

pub const SECTOR: u64 = 4096;

/// What must never be seen: the cache device before it is written, and the buffers of failed reads.
pub const POISON: u8 = 0xee;

/// A device with a volatile write cache.
pub struct Medium {
    pub bytes: Vec<u8>,
    /// What would survive a power cut.
    pub stable: Vec<u8>,
    /// Changes that may not have reached `stable`, and when each ended.
    unstable: Vec<(Range<usize>, u64)>,
}

impl Medium {
    fn new(len: u64, fill: u8) -> Self {
        let bytes = vec![fill; len as usize];
        Self { stable: bytes.clone(), bytes, unstable: Vec::new() }
    }

    fn stabilize(&mut self, range: Range<usize>) {
        self.stable[range.clone()].copy_from_slice(&self.bytes[range]);
    }

    /// Everything that ended before a moment now survives a power cut.
    fn flush(&mut self, until: u64) {
        for (range, ended) in std::mem::take(&mut self.unstable) {
            if ended < until { self.stabilize(range) } else { self.unstable.push((range, ended)) }
        }
    }
}

/// The end of a request, and its buffer at that moment.
pub struct Answered {
    pub id: RequestId,
    pub result: Result<(), Fault>,
    pub bytes: Vec<u8>,
}

/// An operation that has not ended.
pub struct UnderWay {
    part: usize,
    pub op: OpId,
    pub order: Order,
    since: u64,
}

/// How far the requests have left a journal that cannot be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bypassing {
    Not,
    Clean { stuck: bool },
    Retired,
}

pub struct Bench {
    bypassing: Bypassing,
    /// The first part, in most tests the only one.
    pub cache: BlockCache,
    others: Vec<BlockCache>,
    /// What has been said and not heard yet, by who says it and to whom.
    pub said: Vec<((PartId, PartId), VecDeque<Message>)>,
    pub orders: Vec<Order>,
    pub under_way: Vec<UnderWay>,
    pub devices: HashMap<DeviceId, Medium>,
    pub buffers: HashMap<BufferId, Vec<u8>>,
    /// The tier in memory, which may lose any page at any time, and what is held there, which may
    /// not.
    pub copies: BTreeMap<(VolumeId, u64), Vec<u8>>,
    pub held: BTreeMap<(VolumeId, u64), Vec<u8>>,
    pub answers: Vec<Answered>,
    /// Names of requests whose buffers have been released, to be used again.
    pub released: Vec<RequestId>,
    names: u32,
    /// Operations in the order in which they were ordered, if `keep_log`.
    pub log: Vec<Order>,
    pub keep_log: bool,
    /// Whether backing devices can zero faster than by writing.
    pub zeroes_fast: bool,
    now: u64,
}

pub fn config(sizes: &str, cache_bytes: u64, mode: WriteMode) -> Config {
    let sizes: BlockSizes = sizes.parse().unwrap();
    Config {
        adapts_fetches: false,
        sizes,
        cache_bytes,
        mode,
        shards: Some(1),
        gate: AdmissionConfig::default(),
        evict: Evict::default(),
        memory: Memory::None,
        kept: false,
    }
}

pub fn read(offset: u64, len: u64) -> Request {
    Request { volume: VolumeId(0), kind: RequestKind::Read, offset, len }
}

pub fn write(offset: u64, len: u64) -> Request {
    Request { kind: RequestKind::Write { durable: false }, ..read(offset, len) }
}

pub fn flush() -> Request {
    Request { kind: RequestKind::Flush, ..read(0, 0) }
}

/// The device, offset and length of an operation on a device.
pub fn target(order: &Order) -> (DeviceId, u64, u64) {
    match *order {
        Order::Read { device, offset, to: Span { len, .. }, .. }
        | Order::Write { device, offset, from: Span { len, .. }, .. }
        | Order::Zero { device, offset, len, .. }
        | Order::Discard { device, offset, len, .. } => (device, offset, len),
        Order::WriteLogs { .. } => (DeviceId::Cache, 0, 0),
        Order::Flush { device, .. } => (device, 0, 0),
        _ => unreachable!("not an operation on a device"),
    }
}

impl Bench {
    /// A cache over one volume for each of these sizes; sector `s` of volume `v` is filled with
    /// [`Bench::born`].
    pub fn new(config: Config, volumes: &[u64]) -> Self {
        Self::in_parts(config, volumes, 1)
    }

    /// The same in several parts, which hear each other when [`Bench::deliver`] says so.
    pub fn in_parts(config: Config, volumes: &[u64], parts: usize) -> Self {
        let cache_bytes = config.cache_bytes;
        let mut others = BlockCache::parts(config, parts).unwrap();
        let mut devices = HashMap::from([(DeviceId::Cache, Medium::new(cache_bytes, POISON))]);
        for &bytes in volumes {
            let ids: Vec<VolumeId> = others.iter_mut().map(|part| part.add_volume(bytes)).collect();
            devices.insert(DeviceId::Backing(ids[0]), Medium::new(bytes, 0));
        }
        Self {
            bypassing: Bypassing::Not,
            cache: others.remove(0),
            others,
            said: Vec::new(),
            orders: Vec::new(),
            under_way: Vec::new(),
            devices,
            buffers: HashMap::new(),
            copies: BTreeMap::new(),
            held: BTreeMap::new(),
            answers: Vec::new(),
            released: Vec::new(),
            names: 0,
            log: Vec::new(),
            keep_log: true,
            zeroes_fast: true,
            now: 0,
        }
    }

    /// Fills every sector of every backing device with a byte of its own.
    pub fn numbered(mut self) -> Self {
        for (id, device) in &mut self.devices {
            if let DeviceId::Backing(_) = id {
                for (sector, bytes) in device.bytes.chunks_mut(SECTOR as usize).enumerate() {
                    bytes.fill(Self::born(sector as u64));
                }
                device.stable = device.bytes.clone();
            }
        }
        self
    }

    /// What a sector holds before anything is written.
    pub fn born(sector: u64) -> u8 {
        (sector % 100) as u8 + 1
    }

    /// Counts submissions, completions and answers.
    pub fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// Submits a request; a write's bytes are all `stamp`.
    pub fn submit(&mut self, request: Request, stamp: u8) -> RequestId {
        let id = self.released.pop().unwrap_or_else(|| {
            let (name, parts) = (self.names as usize, self.others.len() + 1);
            self.names += 1;
            RequestId::new(PartId((name % parts) as u8), name / parts)
        });
        let mut buffer = vec![0; request.buffer_bytes() as usize];
        if let RequestKind::Write { .. } = request.kind {
            buffer[(request.offset % SECTOR) as usize..][..request.len as usize].fill(stamp);
        }
        self.tick();
        if let Some(bytes) = self.found_in_memory(&request, id.part()) {
            self.answers.push(Answered { id, result: Ok(()), bytes });
            self.released.push(id);
            return id;
        }
        self.buffers.insert(BufferId::Request(id), buffer);
        self.in_part(id.part().0 as usize, |cache, orders| cache.submit(id, request, orders));
        id
    }

    /// What a read finds in memory, if it finds all it wants.
    fn found_in_memory(&self, request: &Request, part: PartId) -> Option<Vec<u8>> {
        let cache = if part.0 == 0 { &self.cache } else { &self.others[part.0 as usize - 1] };
        let end = request.offset.checked_add(request.len)?;
        if request.kind != RequestKind::Read
            || request.len == 0
            || cache.volume_bytes(request.volume)? < end
        {
            return None;
        }
        let sectors = request.offset / SECTOR..end.div_ceil(SECTOR);
        let pages = sectors.map(|sector| self.copies.get(&(request.volume, sector)));
        pages
            .collect::<Option<Vec<_>>>()
            .map(|pages| pages.into_iter().flatten().copied().collect())
    }

    /// A volume has gone, and what memory has of it.
    pub fn forget_volume(&mut self, id: VolumeId) {
        self.copies.retain(|(volume, _), _| *volume != id);
        self.held.retain(|(volume, _), _| *volume != id);
    }

    fn page(&mut self, volume: VolumeId, sectors: Range<u64>, deed: Paging) {
        match deed {
            Paging::Fill { from } => self.put_pages(volume, sectors, &from, false),
            Paging::Hold { from } => self.put_pages(volume, sectors, &from, true),
            Paging::Forget => {
                sectors.for_each(|sector| drop(self.copies.remove(&(volume, sector))))
            }
            Paging::Recall { to } => {
                let pages: Vec<u8> =
                    sectors.flat_map(|sector| self.held[&(volume, sector)].clone()).collect();
                self.bytes_mut(&to).copy_from_slice(&pages);
            }
            Paging::LetGo => {
                for sector in sectors {
                    assert!(self.held.remove(&(volume, sector)).is_some(), "{sector} was not held");
                }
            }
        }
    }

    fn put_pages(&mut self, volume: VolumeId, sectors: Range<u64>, from: &Span, held: bool) {
        assert_eq!(from.len, (sectors.end - sectors.start) * SECTOR);
        let bytes = self.bytes(from).to_vec();
        for (sector, page) in sectors.zip(bytes.chunks(SECTOR as usize)) {
            self.copies.insert((volume, sector), page.to_vec());
            if held {
                self.held.insert((volume, sector), page.to_vec());
            }
        }
    }

    /// Begins to clean.
    pub fn clean(&mut self) {
        for part in 0..=self.others.len() {
            self.in_part(part, |cache, orders| cache.clean(orders));
        }
    }

    /// Changes the size of the cache in all parts; the device has as much space before.
    pub fn resize(&mut self, bytes: u64) -> Result<(), ConfigError> {
        let medium = self.devices.get_mut(&DeviceId::Cache).expect("the device is there");
        let len = medium.bytes.len().max(bytes as usize);
        medium.bytes.resize(len, POISON);
        medium.stable.resize(len, POISON);
        self.ask_parts(|part| floe_block::resize(part, bytes))
    }

    /// Lets all parts go on with giving back space, as their drivers do whenever something has
    /// ended.
    pub fn give_back(&mut self) {
        for part in 0..=self.others.len() {
            self.in_part(part, floe_block::give_back);
        }
    }

    /// The bytes that all parts have still to give back.
    pub fn bytes_over(&self) -> u64 {
        self.others.iter().chain([&self.cache]).map(|part| part.condition().bytes_over()).sum()
    }

    /// Tells every part.
    pub fn each_part(&mut self, tell: impl Fn(&mut BlockCache)) {
        self.others.iter_mut().chain([&mut self.cache]).for_each(tell);
    }

    /// Asks every part, also after one has refused; answers the first refusal.
    pub fn ask_parts<T>(
        &mut self,
        ask: impl Fn(&mut BlockCache) -> Result<(), T>,
    ) -> Result<(), T> {
        let all = self.others.iter_mut().chain([&mut self.cache]);
        all.map(ask).fold(Ok(()), Result::and)
    }

    /// Adds a volume whose bytes are all the same.
    pub fn add_volume(&mut self, bytes: u64, fill: u8) -> VolumeId {
        let id = self.cache.add_volume(bytes);
        for part in &mut self.others {
            assert_eq!(part.add_volume(bytes), id);
        }
        self.devices.insert(DeviceId::Backing(id), Medium::new(bytes, fill));
        id
    }

    /// Lets a volume's backing device grow.
    pub fn grow_device(&mut self, id: VolumeId, bytes: u64) {
        let medium = self.devices.get_mut(&DeviceId::Backing(id)).expect("the volume is there");
        medium.bytes.resize(bytes as usize, 0);
        medium.stable.resize(bytes as usize, 0);
    }

    /// Lets one part do something, and carries out what it orders.
    fn in_part(&mut self, part: usize, act: impl FnOnce(&mut BlockCache, &mut Vec<Order>)) {
        let cache = if part == 0 { &mut self.cache } else { &mut self.others[part - 1] };
        act(cache, &mut self.orders);
        self.carry_out(part);
    }

    /// Plays the server's control thread where a journal cannot be written: has all parts go past
    /// it, and end caching once nothing is dirty in any of them. Call it whenever something has
    /// happened.
    pub fn see_to_journal(&mut self) {
        let mut parts = vec![&self.cache];
        parts.extend(&self.others);
        if !parts.iter().any(|part| part.condition().has_lost_journal()) {
            return;
        }
        let emptied = parts.iter().all(|part| part.condition().is_emptied());
        let blocked = parts.iter().any(|part| part.condition().is_blocked());
        let next = match self.bypassing {
            Bypassing::Not => Bypassing::Clean { stuck: false },
            Bypassing::Clean { .. } if emptied => Bypassing::Retired,
            Bypassing::Clean { stuck: false } if blocked => Bypassing::Clean { stuck: true },
            same => same,
        };
        if next == self.bypassing {
            return;
        }
        self.bypassing = next;
        for part in 0..=self.others.len() {
            self.in_part(part, |cache, orders| match next {
                Bypassing::Clean { stuck } => cache.bypass(stuck, orders),
                _ => cache.retire(orders),
            });
        }
    }

    /// Lets a part hear the oldest thing that another has said to it.
    pub fn deliver(&mut self, which: usize) {
        let ((_, to), messages) = &mut self.said[which];
        let (to, message) = (to.0, messages.pop_front().expect("something has been said"));
        if messages.is_empty() {
            self.said.swap_remove(which);
        }
        self.in_part(to as usize, |cache, orders| cache.received(message, orders));
    }

    fn carry_out(&mut self, part: usize) {
        for order in std::mem::take(&mut self.orders) {
            match order {
                Order::Read { op, .. }
                | Order::Write { op, .. }
                | Order::Zero { op, .. }
                | Order::Discard { op, .. }
                | Order::Flush { op, .. } => {
                    let since = self.tick();
                    if self.keep_log {
                        self.log.push(order.clone());
                    }
                    self.under_way.push(UnderWay { part, op, order, since });
                }
                Order::Allocate { scratch, len } => {
                    let before =
                        self.buffers.insert(BufferId::Scratch(scratch), vec![POISON; len as usize]);
                    assert!(before.is_none(), "a scratch buffer is made twice");
                }
                Order::Copy { from, to } => {
                    let bytes = self.bytes(&from).to_vec();
                    self.bytes_mut(&to).copy_from_slice(&bytes);
                }
                Order::Clear { span } => self.bytes_mut(&span).fill(0),
                Order::Mark { span } => self.bytes_mut(&span).fill(1),
                Order::Memory { volume, sectors, deed } => self.page(volume, sectors, deed),
                Order::Send { to, message } => {
                    let pair = (PartId(part as u8), to);
                    match self.said.iter_mut().find(|(between, _)| *between == pair) {
                        Some((_, messages)) => messages.push_back(message),
                        None => self.said.push((pair, VecDeque::from([message]))),
                    }
                }
                Order::Answer { request: id, result, .. } => {
                    let bytes = self.buffers[&BufferId::Request(id)].clone();
                    self.answers.push(Answered { id, result, bytes });
                }
                Order::Note { .. } | Order::SealLogs => {} // nothing here survives anything
                Order::WriteLogs { .. } => {
                    let since = self.tick();
                    let Order::WriteLogs { op } = order else { unreachable!() };
                    self.under_way.push(UnderWay { part, op, order, since });
                }
                Order::Release { buffer } => {
                    self.buffers.remove(&buffer).expect("only buffers that are there are released");
                    if let BufferId::Request(id) = buffer {
                        self.released.push(id);
                    }
                }
            }
        }
    }

    fn bytes(&self, span: &Span) -> &[u8] {
        &self.buffers[&span.buffer][span.offset as usize..(span.offset + span.len) as usize]
    }

    fn bytes_mut(&mut self, span: &Span) -> &mut [u8] {
        let buffer = self.buffers.get_mut(&span.buffer).expect("the buffer is there");
        &mut buffer[span.offset as usize..(span.offset + span.len) as usize]
    }

    /// Ends one operation; with `failed_after`, with an error after so many bytes.
    pub fn complete(&mut self, which: usize, failed_after: Option<u64>) {
        let UnderWay { part, op, order, since } = self.under_way.swap_remove(which);
        if let (Order::Zero { fast: true, .. }, false) = (&order, self.zeroes_fast) {
            let result = Err(Fault::Unsupported);
            return self.in_part(part, |cache, orders| cache.completed(op, result, orders));
        }
        if let Order::WriteLogs { .. } = &order {
            let result = if failed_after.is_some() { Err(Fault::Io) } else { Ok(()) };
            return self.in_part(part, |cache, orders| cache.completed(op, result, orders));
        }
        let (device, offset, len) = target(&order);
        if let Order::Read { to: span, .. } | Order::Write { from: span, .. } = order {
            let aligned = [offset, span.offset, span.len].iter().all(|n| n % SECTOR == 0);
            assert!(aligned && span.len > 0, "{order:?}");
        }
        let medium = self.devices.get_mut(&device).expect("the device is there");
        let end = medium.bytes.len() as u64;
        assert!(
            offset < end && offset + len <= end.next_multiple_of(SECTOR),
            "{order:?} is not on the device"
        );
        let there = offset as usize
            ..(offset + len.min(end - offset).min(failed_after.unwrap_or(len))) as usize;
        self.now += 1;
        match order {
            Order::Read { to, .. } => {
                let into = self.buffers.get_mut(&to.buffer).expect("the buffer is there");
                let into = &mut into[to.offset as usize..(to.offset + to.len) as usize];
                into.fill(if failed_after.is_some() { POISON } else { 0 });
                into[..there.len()].copy_from_slice(&medium.bytes[there]);
            }
            Order::Write { from, durable, .. } => {
                let bytes = &self.buffers[&from.buffer][from.offset as usize..][..there.len()];
                medium.bytes[there.clone()].copy_from_slice(bytes);
                if durable {
                    medium.stabilize(there);
                } else {
                    medium.unstable.push((there, self.now));
                }
            }
            Order::Zero { .. } => {
                medium.bytes[there.clone()].fill(0);
                medium.unstable.push((there, self.now));
            }
            Order::Discard { .. } if device == DeviceId::Cache => medium.bytes[there].fill(POISON),
            Order::Discard { .. } if self.now.is_multiple_of(2) => {
                medium.bytes[there.clone()].fill(0);
                medium.unstable.push((there, self.now));
            }
            Order::Flush { .. } if failed_after.is_none() => medium.flush(since),
            _ => {} // a discard may do nothing
        }
        let result = if failed_after.is_some() { Err(Fault::Io) } else { Ok(()) };
        self.in_part(part, |cache, orders| cache.completed(op, result, orders));
    }

    /// Ends all operations, also those that follow from them, failing those for which `fails`
    /// holds.
    pub fn run_failing(&mut self, mut fails: impl FnMut(&Order) -> bool) {
        while !self.under_way.is_empty() {
            let failed = fails(&self.under_way[0].order).then_some(0);
            self.complete(0, failed);
        }
    }

    pub fn run(&mut self) {
        self.run_failing(|_| false);
    }

    /// Ends the one operation under way for which `is_it` holds.
    pub fn complete_the(&mut self, is_it: impl Fn(&Order) -> bool) {
        let found: Vec<usize> =
            (0..self.under_way.len()).filter(|&at| is_it(&self.under_way[at].order)).collect();
        assert_eq!(found.len(), 1, "exactly one such operation is under way");
        self.complete(found[0], None);
    }

    /// The answer of a request, which must be there.
    pub fn answer(&mut self, id: RequestId) -> Answered {
        let at = self
            .answers
            .iter()
            .position(|answer| answer.id == id)
            .expect("the request is answered");
        self.answers.remove(at)
    }

    /// Submits a request and ends all operations.
    pub fn ask(&mut self, request: Request, stamp: u8) -> Result<Vec<u8>, Fault> {
        let id = self.submit(request, stamp);
        self.run();
        let Answered { result, bytes, .. } = self.answer(id);
        result.map(|()| bytes)
    }

    /// Submits a request and ends all operations without moving any bytes; answers whether it went
    /// well.
    pub fn cache_only(&mut self, request: Request) -> bool {
        let mut ok = false;
        self.cache.submit(RequestId(0), request, &mut self.orders);
        while let Some(order) = self.orders.pop() {
            match order {
                Order::Read { op, .. } | Order::Write { op, .. } | Order::Flush { op, .. } => {
                    self.cache.completed(op, Ok(()), &mut self.orders);
                }
                Order::Answer { result, .. } => ok = result.is_ok(),
                _ => {}
            }
        }
        ok
    }

    /// Writes `stamp` to some sectors.
    pub fn put(&mut self, sectors: Range<u64>, stamp: u8) {
        let request = write(sectors.start * SECTOR, (sectors.end - sectors.start) * SECTOR);
        assert!(self.ask(request, stamp).is_ok());
    }

    /// Reads a sector, and answers what it is full of.
    pub fn get(&mut self, sector: u64) -> Result<u8, Fault> {
        self.ask(read(sector * SECTOR, SECTOR), 0).map(|bytes| {
            assert!(bytes.iter().all(|byte| *byte == bytes[0]), "sector {sector} is torn");
            bytes[0]
        })
    }

    /// The operations ordered since the last call, on one device.
    pub fn ordered(&mut self, device: DeviceId) -> Vec<Order> {
        let log = std::mem::take(&mut self.log);
        log.into_iter().filter(|order| target(order).0 == device).collect()
    }

    /// Checks that everything has come to its end.
    pub fn check_idle(&self) {
        assert!(self.under_way.is_empty() && self.said.is_empty());
        for cache in self.others.iter().chain([&self.cache]) {
            assert!(cache.is_idle(), "nothing is under way, yet something is waited for");
            cache.check();
        }
        assert!(self.buffers.is_empty(), "buffers are left behind");
    }
}

pub const BACKING: DeviceId = DeviceId::Backing(VolumeId(0));

pub fn on_cache(order: &Order) -> bool {
    target(order).0 == DeviceId::Cache
}

pub fn on_backing(order: &Order) -> bool {
    !on_cache(order)
}

pub fn is_read(order: &Order) -> bool {
    matches!(order, Order::Read { .. })
}

pub fn is_write(order: &Order) -> bool {
    matches!(order, Order::Write { .. })
}
