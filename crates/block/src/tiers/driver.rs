//! The driver: executes the cache's orders on real devices and buffers.
//!
//! One thread owns a driver with its devices and its part of the cache. [`Driver::submit`] takes
//! requests, [`Driver::advance`] does everything that needs no waiting, [`Driver::take_answers`]
//! returns the finished requests. Between calls the thread waits on the ring that its devices
//! share, until [`Driver::next_due`] at the latest. With other parts it may wait only if its
//! [`Bell`](crate::Bell) permits it.
//!
//! A driver is on top of backing devices, one a volume, or of another driver ([`Driver::on`]),
//! which is then the tier below: see `below`.

mod below;
mod control;
mod exchange;
mod journal;
mod memory;
mod seam;
mod timing;
mod volumes;
mod watched;

use std::io;
use std::time::Instant;

use floe_device::{Action, Buffer, Completion, Device, Operation, Pool, Slice};
use hashbrown::HashMap;

use crate::cache::BlockCache;
use crate::engine::request::{Fault, Kind, Request, RequestId};
use crate::exchange::Exchange;
use crate::geometry::{SECTOR_BYTES, VolumeId};
use crate::order::{BufferId, DeviceId, OpId, Order, ScratchId, Span};
use crate::tiers::memory::Pages;
use below::{Below, Relay};
use exchange::Guest;
pub use journal::PartJournal;
use journal::{Journal, Verified};
use seam::Seam;
use timing::Timing;
use watched::Watched;

/// The end of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// Its id, which will be given to other requests.
    pub request: RequestId,
    /// Its result.
    pub result: Result<(), Fault>,
}

/// A block cache, or one part of it, with its devices.
pub struct Driver {
    cache: BlockCache,
    /// The queues to the other parts, if there are any.
    exchange: Option<Exchange>,
    /// The buffers of other parts' requests, by part and number.
    guests: Vec<Vec<Option<Guest>>>,
    cache_device: Watched,
    /// Offset of the data on the cache device, in bytes.
    data_start: u64,
    /// The pages of the memory tier, if there is one.
    pages: Option<Pages>,
    /// The journal of a persistent cache.
    journal: Option<Journal>,
    /// Measures device times, where the admission needs them.
    timing: Option<Timing>,
    /// By volume; empty where there is a tier below.
    backings: Vec<Option<Watched>>,
    /// The tier below, if there is one.
    below: Option<Box<Below>>,
    /// The I/O gate between this tier and the one below or the backing devices.
    seam: Seam,
    /// Requests under way that go on to the tier below.
    relays: Vec<Relay>,
    pool: Pool,
    /// The buffer of each request under way.
    requests: Vec<Option<Buffer>>,
    free_requests: Vec<RequestId>,
    scratches: HashMap<ScratchId, Buffer, foldhash::fast::FixedState>,
    orders: Vec<Order>,
    answers: Vec<Answer>,
    done: Vec<Completion>,
}

impl Driver {
    /// Returns a driver of an empty whole cache on `cache_device`, which takes buffers from `pool`.
    pub fn new(cache: BlockCache, cache_device: Box<dyn Device>, pool: Pool) -> Self {
        Self::of_part(cache, cache_device, pool, None)
    }

    /// Returns a driver of one part of a cache, with its end of the queues between all parts.
    pub fn of_part(
        cache: BlockCache,
        cache_device: Box<dyn Device>,
        pool: Pool,
        exchange: Option<Exchange>,
    ) -> Self {
        Self {
            cache,
            exchange,
            guests: Vec::new(),
            cache_device: Watched::new("cache device".into(), cache_device),
            data_start: 0,
            pages: None,
            journal: None,
            timing: None,
            backings: Vec::new(),
            below: None,
            seam: Seam::default(),
            relays: Vec::new(),
            pool,
            requests: Vec::new(),
            free_requests: Vec::new(),
            scratches: HashMap::default(),
            orders: Vec::new(),
            answers: Vec::new(),
            done: Vec::new(),
        }
    }

    /// Reserves so many bytes at the beginning of the cache device. With a journal, the journal
    /// sets the offset of the data.
    #[must_use]
    pub fn with_data_at(self, bytes: u64) -> Self {
        Self { data_start: bytes, ..self }
    }

    /// Returns a buffer for a request, as [`Driver::submit`] needs it: whole sectors, and zero
    /// outside a write; for a map all zero.
    pub fn buffer(&self, request: &Request) -> Buffer {
        let buffer = self.pool.allocate(request.buffer_bytes().max(SECTOR_BYTES) as usize);
        match request.kind {
            Kind::Write { .. } => {
                let skew = request.offset % SECTOR_BYTES;
                let end = (skew + request.len) as usize;
                buffer.slice(0..skew as usize).fill_zero();
                buffer.slice(end..buffer.len()).fill_zero();
            }
            Kind::DirtyMap => buffer.whole().fill_zero(),
            _ => {}
        }
        buffer
    }

    /// Returns the part of a request's buffer that belongs to the request itself.
    pub fn payload(request: &Request, buffer: &Buffer) -> Slice {
        let skew = (request.offset % SECTOR_BYTES) as usize;
        buffer.slice(skew..skew + request.len as usize)
    }

    /// Starts a request. One with [`Request::buffer_bytes`] needs a buffer from [`Driver::buffer`].
    /// The caller must not write to it again, even after the answer: the cache may still be storing
    /// data from it.
    ///
    /// # Panics
    /// When a request that needs a buffer comes without.
    pub fn submit(&mut self, request: Request, buffer: Option<Buffer>) -> RequestId {
        assert!(request.buffer_bytes() == 0 || buffer.is_some(), "{request:?} needs a buffer");
        let id = self.take_name();
        self.relay_later(id, request, buffer.as_ref());
        self.requests[id.number()] = buffer;
        self.cache.submit(id, request, &mut self.orders);
        id
    }

    /// Starts a request that moves no data and is not passed to the tiers below.
    fn submit_here(&mut self, request: Request) -> RequestId {
        let id = self.take_name();
        self.cache.submit(id, request, &mut self.orders);
        id
    }

    /// Returns an id that no request under way has.
    fn take_name(&mut self) -> RequestId {
        self.free_requests.pop().unwrap_or_else(|| {
            self.requests.push(None);
            RequestId::new(self.cache.part(), self.requests.len() - 1)
        })
    }

    /// Begins to clean: each tier writes its dirty data to the tier or device below it.
    pub fn clean(&mut self) {
        self.cache.clean(&mut self.orders);
        if let Some(below) = self.below_mut() {
            below.clean();
        }
    }

    /// Executes orders and handles completions until nothing is left to do without waiting.
    pub fn advance(&mut self) {
        self.begin_held();
        loop {
            self.carry_out();
            self.hear();
            self.cache_device.device.poll(&mut self.done);
            self.hand_in(DeviceId::Cache);
            self.advance_below();
            for volume in 0..self.backings.len() {
                let Some(backing) = &mut self.backings[volume] else { continue };
                backing.device.poll(&mut self.done);
                self.hand_in(DeviceId::Backing(VolumeId(volume as u16)));
            }
            self.hear_journal();
            if self.orders.is_empty() {
                break;
            }
        }
        self.go_on_with_checkpoint();
        if let Some(exchange) = &mut self.exchange {
            exchange.flush();
        }
    }

    /// Returns the latest time of the next call of [`Driver::advance`], whatever the ring says.
    pub fn next_due(&self) -> Option<Instant> {
        let late = self.tiers().filter_map(Self::exchange).filter_map(Exchange::next_due);
        let devices = self.tiers().flat_map(Self::devices);
        devices.filter_map(|watched| watched.device.next_due()).chain(late).min()
    }

    /// Moves the answers given since the last call into `out`.
    pub fn take_answers(&mut self, out: &mut Vec<Answer>) {
        out.append(&mut self.answers);
    }

    /// Returns whether some tier holds data that the tier or device below it lacks.
    pub fn has_dirty_data(&self) -> bool {
        self.tiers().any(|tier| tier.cache.condition().has_dirty_data())
    }

    /// Returns whether some tier would lose cached data at a restart now: see
    /// [`Condition::has_unlogged`](crate::Condition::has_unlogged).
    pub fn has_unlogged(&self) -> bool {
        self.tiers().any(|tier| tier.cache.condition().has_unlogged())
    }

    /// Returns whether work waits for [`Driver::advance`] that no completion will announce.
    pub fn has_orders(&self) -> bool {
        let has = |tier: &Self| {
            !tier.orders.is_empty() || tier.journal_can_go_on() || tier.seam.can_go_on()
        };
        self.tiers().any(has)
    }

    /// Returns whether nothing is under way in any tier.
    pub fn is_idle(&self) -> bool {
        self.tiers().all(Self::is_at_rest)
    }

    /// Returns whether nothing is under way in this tier.
    pub fn is_at_rest(&self) -> bool {
        let is_idle = self.relays.is_empty() && self.cache.is_idle() && self.journal_is_idle();
        is_idle && self.orders.is_empty() && !self.seam.has_held()
    }

    /// Passes the results of a device's finished operations to the cache.
    fn hand_in(&mut self, id: DeviceId) {
        let mut done = std::mem::take(&mut self.done);
        for Completion { token, result } in done.drain(..) {
            let watched = match id {
                DeviceId::Cache => &mut self.cache_device,
                DeviceId::Backing(volume) => {
                    self.seam.ended();
                    backing_of(&mut self.backings, volume)
                }
            };
            watched.note(&result);
            self.took(token, result.is_ok());
            if id == DeviceId::Cache && self.journal_ended(token, &result) {
                continue;
            }
            let mut told = result.as_ref().copied().map_err(|error| match error.kind() {
                io::ErrorKind::StorageFull
                | io::ErrorKind::QuotaExceeded
                | io::ErrorKind::FileTooLarge => Fault::NoSpace,
                io::ErrorKind::Unsupported => Fault::Unsupported,
                _ => Fault::Io,
            });
            if let (DeviceId::Cache, Some(journal)) = (id, &mut self.journal) {
                if result.is_err()
                    && let Some((offset, sectors)) = self.cache.shards.stored_at(OpId(token))
                {
                    // the device may hold the old data, the new data, or a mixture
                    journal.forget(offset, sectors);
                }
                match journal.verify(token, &result) {
                    Verified::Good => {}
                    Verified::Again(offset, to) => {
                        self.start(id, OpId(token), offset, Action::Read(to));
                        continue;
                    }
                    Verified::Unsteady => told = Err(Fault::Io),
                    Verified::Corrupt(bad) => {
                        let found = self.cache.read_corrupt(OpId(token), &bad, &mut self.orders);
                        journal.corrupt_sectors += found;
                        continue;
                    }
                }
            }
            self.cache.completed(OpId(token), told, &mut self.orders);
        }
        self.done = done;
    }

    fn carry_out(&mut self) {
        let mut orders = std::mem::take(&mut self.orders);
        for order in orders.drain(..) {
            match order {
                Order::Read { op, device, offset, to } => {
                    let to = self.slice(&to);
                    if device == DeviceId::Cache {
                        self.prepare_cache_read(op, offset, &to);
                    }
                    self.start(device, op, offset, Action::Read(to));
                }
                Order::Write { op, device, offset, from, durable } => {
                    let from = self.slice(&from);
                    if device == DeviceId::Cache {
                        self.prepare_cache_write(offset, &from);
                    }
                    self.start(device, op, offset, Action::Write { from, durable });
                }
                Order::Zero { op, device, offset, len, may_unmap, fast } => {
                    self.start(device, op, offset, Action::Zero { len, may_unmap, fast });
                }
                Order::Discard { op, device, offset, len } => {
                    self.start(device, op, offset, Action::Discard { len })
                }
                Order::Flush { op, device } => self.start(device, op, 0, Action::Flush),
                Order::Allocate { scratch, len } => {
                    self.scratches.insert(scratch, self.pool.allocate(len as usize));
                }
                Order::Copy { from, to } => Slice::copy(&self.slice(&from), &self.slice(&to)),
                Order::Clear { span } => self.clear(&span),
                Order::Mark { span } => self.slice(&span).copy_from(&[1; 256][..span.len as usize]),
                Order::Memory { volume, sectors, deed } => self.page(volume, sectors, deed),
                Order::Note { .. } | Order::SealLogs | Order::WriteLogs { .. } => {
                    self.keep_journal(order)
                }
                Order::Send { to, message } => self.send(to, message),
                Order::Answer { request, result } => self.answer(request, result),
                Order::Release { buffer: BufferId::Scratch(scratch) } => {
                    self.scratches.remove(&scratch);
                }
                Order::Release { buffer: BufferId::Request(request) } => {
                    self.requests[request.number()] = None;
                    if !self.is_relayed(request) {
                        self.free_requests.push(request);
                    }
                }
            }
        }
        if self.orders.is_empty() {
            self.orders = orders; // keep its memory
        }
    }

    fn start(&mut self, id: DeviceId, op: OpId, offset: u64, action: Action) {
        if let Some(timing) = &mut self.timing {
            timing.begin(id, op.0, &action);
        }
        match id {
            DeviceId::Cache => {
                let operation = Operation { token: op.0, offset: self.data_start + offset, action };
                self.cache_device.device.submit(operation);
            }
            DeviceId::Backing(volume) => self.begin_below(volume, op, offset, action),
        }
    }

    fn slice(&self, span: &Span) -> Slice {
        let buffer = match span.buffer {
            BufferId::Request(request) if request.part() == self.cache.part() => {
                self.requests[request.number()].as_ref()
            }
            BufferId::Request(request) => {
                let guest = self.guests[request.part().0 as usize][request.number()].as_ref();
                guest.map(|guest| &guest.buffer)
            }
            BufferId::Scratch(scratch) => self.scratches.get(&scratch),
        };
        let buffer = buffer.expect("orders speak of buffers that are there");
        buffer.slice(span.offset as usize..(span.offset + span.len) as usize)
    }
}

fn backing_of(backings: &mut [Option<Watched>], volume: VolumeId) -> &mut Watched {
    backings[volume.0 as usize].as_mut().expect("a volume with something under way is there")
}
