//! One tier of one part: the cache, and the components that execute its orders.
//!
//! A tier executes the orders of its cache that concern its buffers, cache device, journal, memory
//! and the other parts. Work for the volumes below it is returned ([`Downward`]) to the
//! [`Driver`](crate::Driver), which knows the tier or the devices below.
//!
//! Invariant: each operation that the cache has ordered is under way on the cache device, under way
//! below, held back by the I/O gate, or in the journal.

use std::io;
use std::time::Instant;

use floe_device::{Action, Buffer, Completion, Device, Pool, Slice};

use self::io_gate::Relays;
use super::watched::CacheDevice;
use crate::cache::{BlockCache, JournalEvent, give_back, resize};
use crate::config::{CacheShare, ConfigError};
use crate::exchange::{Exchange, Message, Parcel, PartId};
use crate::geometry::{SECTOR_BYTES, Sectors, VolumeId};
use crate::join::{Fault, Request, RequestId, RequestKind};
use crate::journal::part::{Journal, PartJournal, Verified};
use crate::memory::{MemoryTier, Pages};
use crate::order::{BufferId, DeviceId, OpId, Order, Paging};
use crate::stats::Stats;
use crate::volumes::VolumeError;
use buffers::Buffers;
use pacer::Pacers;
use timing::Timing;

pub use io_gate::IoGate;

pub(crate) use io_gate::Downward;

mod buffers;
mod io_gate;
mod pacer;
mod timing;

/// The answer to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// The id of the request, which may be reused from now on.
    pub request: RequestId,
    /// Success, or the reason for which the request failed.
    pub result: Result<(), Fault>,
    /// The top tier had all of the request's data, or for a write a block for it. False for a
    /// failed request, and for one that all tiers handle, such as a flush.
    pub hit: bool,
}

/// One tier of a [`Driver`](crate::Driver): a block cache, or one part of it, with its cache
/// device.
pub struct Tier {
    pub(super) cache: BlockCache,
    pub(super) device: CacheDevice,
    pub(super) buffers: Buffers,
    exchange: Option<Exchange>,
    pages: Option<Pages>,
    journal: Option<Journal>,
    /// Measurement of device times; `None` where neither the admission nor the size of fetches
    /// needs it.
    timing: Option<Timing>,
    /// The pacers of cleaning; `None` without a clock, or where nothing is ever dirty.
    pub(super) pacers: Option<Box<Pacers>>,
    /// The I/O gate between this tier and the one below or the backing devices.
    pub(super) io_gate: IoGate,
    /// Requests under way that the tier below must also handle.
    pub(super) relays: Relays,
    pub(super) orders: Vec<Order>,
    pub(super) answers: Vec<Answer>,
    done: Vec<Completion>,
}

impl Tier {
    /// Creates a tier of a cache with one part and an empty `cache_device`; buffers come from
    /// `pool`.
    pub fn new(cache: BlockCache, cache_device: Box<dyn Device>, pool: Pool) -> Self {
        Self::of_part(cache, cache_device, pool, None)
    }

    /// Creates a tier of one part of a cache, with this part's end of the message queues.
    pub fn of_part(
        cache: BlockCache,
        cache_device: Box<dyn Device>,
        pool: Pool,
        exchange: Option<Exchange>,
    ) -> Self {
        Self {
            buffers: Buffers::new(cache.part(), pool),
            cache,
            device: CacheDevice::new(cache_device),
            exchange,
            pages: None,
            journal: None,
            timing: None,
            pacers: None,
            io_gate: IoGate::default(),
            relays: Relays::default(),
            orders: Vec::new(),
            answers: Vec::new(),
            done: Vec::new(),
        }
    }

    /// Reserves `bytes` at the beginning of the cache device. With a journal, the journal sets the
    /// offset of the data.
    #[must_use]
    pub fn with_data_at(mut self, bytes: u64) -> Self {
        self.device.put_data_at(bytes);
        self
    }

    /// Adds the journal of this [part](crate::KeptCache::begin) of a persistent cache. To be called
    /// before volumes are added.
    #[must_use]
    pub fn with_journal(mut self, journal: Option<PartJournal>) -> Self {
        if let Some(journal) = journal {
            self.device.put_data_at(journal.data_start());
            self.journal = Some(Journal::new(journal));
        }
        self
    }

    /// Adds a memory tier. To be called before volumes are added; the cache's
    /// [configuration](crate::Config::memory) must agree.
    #[must_use]
    pub fn with_memory(mut self, tier: Option<MemoryTier>) -> Self {
        self.pages = tier.map(Pages::new);
        self
    }

    /// Sets the clock that times device operations, for an admission and for the size of fetches,
    /// and that paces cleaning.
    #[must_use]
    pub fn with_clock(mut self, clock: impl Fn() -> Instant + Clone + 'static) -> Self {
        let config = self.cache.config();
        let asked = !config.gate.admission.is_always();
        let cleans = config.mode.keeps_writes();
        self.pacers = cleans.then(|| Box::new(Pacers::new(clock.clone())));
        let fills = config.mode.caches_reads() && !self.device.is_immediate();
        self.timing =
            (asked || fills || config.adapts_fetches).then(|| Timing::new(clock, asked, fills));
        self
    }

    /// Starts a request, and keeps it if the tier below may have to handle it too.
    #[inline]
    pub(super) fn submit(&mut self, request: Request, buffer: Option<Buffer>) -> RequestId {
        let relayed = match request.kind {
            RequestKind::Drain | RequestKind::DirtyMap | RequestKind::Evict => Some(buffer.clone()),
            RequestKind::Flush if self.journal.is_some() => Some(None),
            _ => None,
        };
        let id = self.buffers.begin(buffer);
        if let Some(buffer) = relayed {
            self.relays.note(id, request, buffer);
        }
        if let Some(pacers) = &mut self.pacers {
            pacers.request_begun(id, &request);
        }
        self.cache.submit(id, request, &mut self.orders);
        id
    }

    /// Starts a request that moves no data and is not passed to the tiers below.
    pub(super) fn submit_here(&mut self, request: Request) -> RequestId {
        let id = self.buffers.begin(None);
        self.cache.submit(id, request, &mut self.orders);
        id
    }

    /// Executes an order, or returns it as work for the tier below. `is_shared` says whether there
    /// is a tier below: a buffer that it may still read is replaced before it is changed.
    #[inline]
    pub(super) fn carry_out(&mut self, order: Order, is_shared: bool) -> Option<Downward> {
        match order {
            Order::Read { op, device, offset, to } => {
                let to = self.buffers.slice(&to);
                if let (DeviceId::Cache, Some(journal)) = (device, &mut self.journal) {
                    journal.reading(op, offset, &to);
                }
                return self.begin(device, op, offset, Action::Read(to));
            }
            Order::Write { op, device, offset, from, durable } => {
                let from = self.buffers.slice(&from);
                if let (DeviceId::Cache, Some(journal)) = (device, &mut self.journal) {
                    journal.storing(offset, &from);
                }
                return self.begin(device, op, offset, Action::Write { from, durable });
            }
            Order::Zero { op, device, offset, len, may_unmap, fast } => {
                return self.begin(device, op, offset, Action::Zero { len, may_unmap, fast });
            }
            Order::Discard { op, device, offset, len } => {
                if let (DeviceId::Cache, Some(journal)) = (device, &mut self.journal) {
                    journal.forget(offset, (len / SECTOR_BYTES) as usize);
                }
                return self.begin(device, op, offset, Action::Discard { len });
            }
            Order::Flush { op, device } => return self.begin(device, op, 0, Action::Flush),
            Order::Allocate { scratch, len } => self.buffers.make_scratch(scratch, len),
            Order::Copy { from, to } => {
                Slice::copy(&self.buffers.slice(&from), &self.buffers.slice(&to));
            }
            Order::Clear { span } => {
                if is_shared {
                    self.buffers.detach(span.buffer);
                }
                self.buffers.slice(&span).fill_zero();
            }
            Order::Mark { span } => {
                self.buffers.slice(&span).copy_from(&[1; 256][..span.len as usize]);
            }
            Order::Memory { volume, sectors, deed } => {
                let pages = self.pages.as_mut();
                let pages = pages.expect("a cache that is told of a tier in memory has one");
                page(pages, &self.buffers, volume, sectors, deed);
            }
            Order::Note { .. } | Order::SealLogs | Order::WriteLogs { .. } => {
                let journal = self.journal.as_mut().expect("a kept cache has a journal");
                journal.carry_out(order, &mut self.device, self.buffers.pool());
            }
            Order::Send { to, message } => {
                let exchange = self.exchange.as_mut();
                let exchange = exchange.expect("other parts are reached by an exchange");
                send(exchange, &mut self.buffers, to, message);
            }
            Order::Answer { request, result, hit } => {
                return self.answer(Answer { request, result, hit });
            }
            Order::Release { buffer: BufferId::Scratch(scratch) } => {
                self.buffers.drop_scratch(scratch);
            }
            Order::Release { buffer: BufferId::Request(request) } => {
                self.buffers.drop_request(request);
                if !self.relays.release(request) {
                    self.buffers.free(request);
                }
            }
        }
        None
    }

    /// Begins an operation on the cache device, or returns it as work for the tier below.
    #[inline]
    fn begin(
        &mut self,
        device: DeviceId,
        op: OpId,
        offset: u64,
        action: Action,
    ) -> Option<Downward> {
        if let Some(timing) = &mut self.timing {
            timing.begin(device, op.0, &action);
        }
        match device {
            DeviceId::Cache => {
                self.device.begin(op, offset, action);
                None
            }
            DeviceId::Backing(volume) => {
                if let Some(pacers) = &mut self.pacers {
                    pacers.begin(op, volume, &action, self.cache.shards.is_cleaning(op));
                }
                Some(Downward::Operation { volume, op, offset, action })
            }
        }
    }

    /// Ends this tier's part of a request: answers the client, or returns the request for the tier
    /// below.
    #[inline]
    fn answer(&mut self, answer: Answer) -> Option<Downward> {
        let Answer { request: id, result, .. } = answer;
        if let Some(pacers) = &mut self.pacers {
            pacers.request_ended(id);
        }
        match self.relays.has(id) {
            true if result.is_ok() => return Some(Downward::Relay(id)),
            true => self.end_relay(id, result),
            false => self.answers.push(answer),
        }
        None
    }

    /// Answers a request that was relayed, or could have been.
    pub(super) fn end_relay(&mut self, id: RequestId, result: Result<(), Fault>) {
        self.answers.push(Answer { request: id, result, hit: false });
        if self.relays.end(id) {
            self.buffers.free(id);
        }
    }

    /// Passes the messages of other parts and the results of the cache device to the cache.
    #[inline]
    pub(super) fn poll(&mut self) {
        if let Some(exchange) = &mut self.exchange {
            receive(exchange, &mut self.buffers, &mut self.cache, &mut self.orders);
        }
        let mut done = std::mem::take(&mut self.done);
        self.device.poll(&mut done);
        done.drain(..).for_each(|completion| self.ended(completion));
        self.done = done;
    }

    /// Handles the end of an operation on the cache device.
    #[inline]
    fn ended(&mut self, Completion { token, result }: Completion) {
        let mut told = self.device.watched.note(&result);
        let (op, ok) = (OpId(token), told.is_ok());
        timing::note_end(&mut self.timing, &mut self.cache, token, ok);
        if let Some(journal) = &mut self.journal {
            if journal.own_ended(token, ok) {
                return;
            }
            if !ok && let Some((offset, sectors)) = self.cache.shards.stored_at(op) {
                // the device may hold the old data, the new data, or a mixture
                journal.forget(offset, sectors);
            }
            let device = &self.device;
            match journal.verify(token, ok, || device.copies(), self.buffers.pool()) {
                Verified::Good => {}
                Verified::Mended => told = Ok(()),
                Verified::Copy(copy, offset, to) => {
                    self.device.read_copy(copy, op, offset, to);
                    return;
                }
                Verified::Mend(wrong, offset, from) => {
                    self.device.mend(wrong, op, offset, from);
                    return;
                }
                Verified::Again(offset, to) => {
                    self.begin(DeviceId::Cache, op, offset, Action::Read(to));
                    return;
                }
                Verified::Unsteady => told = Err(Fault::Io),
                Verified::Corrupt(bad) => {
                    let found = self.cache.read_corrupt(op, &bad, &mut self.orders);
                    journal.count_corrupt(found);
                    return;
                }
            }
        }
        self.cache.completed(op, told, &mut self.orders);
    }

    /// Handles the end of an operation in the tier or device below.
    #[inline]
    pub(super) fn ended_below(&mut self, op: OpId, result: Result<(), Fault>) {
        self.io_gate.ended();
        if let Some(pacers) = &mut self.pacers
            && pacers.end(op, result.is_ok())
        {
            self.cache.shards.pace();
        }
        timing::note_end(&mut self.timing, &mut self.cache, op.0, result.is_ok());
        self.cache.completed(op, result, &mut self.orders);
    }

    /// Passes the results of the journal's operations to the cache.
    pub(super) fn hear_journal(&mut self) {
        let Some(journal) = &mut self.journal else { return };
        while let Some((op, result)) = journal.take_ended() {
            self.cache.completed(op, result, &mut self.orders);
        }
        if journal.wants_commit() {
            self.cache.hear_journal(JournalEvent::MuchNoted, &mut self.orders);
        }
    }

    /// Ends a round of the driver's loop: advances the checkpoint that is due, and wakes the other
    /// parts that were sent messages.
    pub(super) fn end_round(&mut self) {
        if let Some(journal) = &mut self.journal {
            let pool = self.buffers.pool();
            let news = journal.go_on_with_checkpoint(&self.cache, &mut self.device, pool);
            if let Some(news) = news {
                self.cache.hear_journal(news, &mut self.orders);
            }
        }
        give_back(&mut self.cache, &mut self.orders);
        if let Some(exchange) = &mut self.exchange {
            exchange.flush();
        }
    }

    /// Degrades the tier; see [`BlockCache::degrade`].
    pub fn degrade(&mut self) {
        self.cache.degrade();
    }

    /// Ends the degradation: the cache device is used again; see [`BlockCache::restore`].
    pub fn restore(&mut self) {
        self.cache.restore();
    }

    /// Bypasses a cache whose journal cannot be written; see [`BlockCache::bypass`].
    pub fn bypass(&mut self, stuck: bool) {
        self.cache.bypass(stuck, &mut self.orders);
    }

    /// Retires the cache: nothing in its journal is valid any more; see [`BlockCache::retire`].
    pub fn retire(&mut self) {
        self.cache.retire(&mut self.orders);
    }

    /// Sets the share of the hits on the cache device that is read from the backing device; see
    /// [`BlockCache::shed`].
    pub fn shed(&mut self, share: f64) {
        self.cache.shed(share);
    }

    /// Sets the maximum of dirty bytes in the tier; see [`BlockCache::limit_dirty`].
    pub fn limit_dirty(&mut self, bytes: u64) {
        self.cache.limit_dirty(bytes);
    }

    /// Sets the share of a volume in the tier; see [`BlockCache::set_share`].
    pub fn set_share(&mut self, id: VolumeId, share: CacheShare) {
        self.cache.set_share(id, share);
    }

    /// Returns the I/O gate below this tier.
    pub fn io_gate(&self) -> &IoGate {
        &self.io_gate
    }

    /// Returns the I/O gate below this tier, to shut or open it.
    pub fn io_gate_mut(&mut self) -> &mut IoGate {
        &mut self.io_gate
    }

    /// Moves the runs that this tier has found to be lost since the last call into `out`.
    pub fn take_newly_lost(&mut self, out: &mut Vec<(VolumeId, Sectors)>) {
        self.cache.shards.take_newly_lost(out);
    }

    /// Returns the tier's block cache.
    pub fn cache(&self) -> &BlockCache {
        &self.cache
    }

    /// Returns this tier's queues to the other parts. The queues of all tiers of a part share one
    /// [`WakeUp`](crate::WakeUp).
    pub fn exchange(&self) -> Option<&Exchange> {
        self.exchange.as_ref()
    }

    /// Returns the counters of the cache.
    pub fn stats(&self) -> Stats {
        let mut stats = self.cache.stats();
        if let Some(pages) = &self.pages {
            pages.count(&mut stats);
        }
        if let Some(journal) = &self.journal {
            journal.count(&mut stats);
        }
        stats
    }

    /// Returns the number of failed operations of the cache device.
    pub fn device_errors(&self) -> u64 {
        self.device.watched.errors()
    }

    /// Returns whether the cache is persistent.
    pub(crate) fn is_kept(&self) -> bool {
        self.journal.is_some()
    }

    /// Returns whether work waits that no completion will announce.
    pub(crate) fn has_orders(&self) -> bool {
        let can_go_on = self.journal.as_ref().is_some_and(|journal| journal.can_go_on());
        let is_woken = self.pacers.as_ref().is_some_and(|pacers| pacers.is_woken());
        !self.orders.is_empty() || can_go_on || is_woken || self.io_gate.can_go_on()
    }

    /// Returns whether nothing is under way in this tier.
    pub fn is_at_rest(&self) -> bool {
        let is_idle = self.relays.is_empty() && self.cache.is_idle();
        let journal_is_idle = self.journal.as_ref().is_none_or(|journal| journal.is_idle());
        is_idle && journal_is_idle && self.orders.is_empty() && !self.io_gate.has_held()
    }

    /// Returns whether there is a memory tier.
    #[inline]
    pub fn has_memory(&self) -> bool {
        self.pages.is_some()
    }

    /// Answers reads from memory, on this thread, whichever thread owns the shards. Marks in
    /// `hits`, of equal length, the reads whose sectors are all in memory; their data is then in
    /// their buffers, which must be from [`Driver::buffer`](crate::Driver::buffer). The others can
    /// be [submitted](crate::Driver::submit) with their buffers, including those that reach beyond
    /// their volume.
    pub fn read_memory(&mut self, reads: &[(Request, Buffer)], hits: &mut [bool]) {
        let Some(pages) = &mut self.pages else { return };
        let is_within = |request: &Request| {
            let end = request.offset.checked_add(request.len);
            end.zip(self.cache.volume_bytes(request.volume)).is_some_and(|(end, size)| end <= size)
        };
        pages.read(reads, is_within, hits);
    }

    /// Adds a volume of this size in bytes, and returns the volume's id.
    pub(crate) fn add_volume(&mut self, bytes: u64) -> VolumeId {
        let id = self.cache.add_volume(bytes);
        // Unlike the volumes of the start, it comes with writes that this cache has not flushed.
        self.cache.shards.note_unsettled(id);
        if let Some(pages) = &mut self.pages {
            pages.add_volume(id);
        }
        id
    }

    /// Adds a volume of this size with a free id.
    ///
    /// # Panics
    /// When the id is not free.
    pub(crate) fn add_volume_at(&mut self, id: VolumeId, bytes: u64) {
        self.cache.add_volume_at(id, bytes);
        if let Some(pages) = &mut self.pages {
            pages.add_volume(id);
        }
    }

    /// Removes a volume; see [`BlockCache::remove_volume`](crate::BlockCache::remove_volume).
    pub(crate) fn remove_volume(&mut self, id: VolumeId, discard: bool) -> Result<(), VolumeError> {
        self.cache.remove_volume(id, discard)?;
        if let Some(pacers) = &mut self.pacers {
            pacers.forget(id);
        }
        if let Some(pages) = &mut self.pages {
            pages.remove_volume(id);
        }
        Ok(())
    }

    /// Grows a volume; see [`BlockCache::resize_volume`](crate::BlockCache::resize_volume).
    pub(crate) fn resize_volume(&mut self, id: VolumeId, bytes: u64) -> Result<(), VolumeError> {
        let before = self.cache.volume_bytes(id).unwrap_or_default();
        self.cache.resize_volume(id, bytes)?;
        if let Some(pages) = &mut self.pages {
            // The bytes of the last sector beyond the old end belonged to no volume.
            pages.forget(id, before / SECTOR_BYTES..before.div_ceil(SECTOR_BYTES));
        }
        Ok(())
    }
}

/// Tells a tier that its cache device has grown to `bytes`, before [`resize_tier`] in any part.
/// Does nothing if the tier's handle is as long already.
///
/// # Errors
/// When the device does not have that size.
pub fn grow_device(tier: &mut Tier, bytes: u64) -> io::Result<()> {
    tier.device.set_size(bytes)
}

/// Changes the size of a tier, as [`resize`] does for a cache. The space of a smaller tier is given
/// back while the driver advances.
///
/// # Errors
/// When the cache cannot have that size; it keeps its own.
pub fn resize_tier(tier: &mut Tier, cache_bytes: u64) -> Result<(), ConfigError> {
    resize(&mut tier.cache, cache_bytes)
}

/// Number of messages handled before the devices are polled again.
const HEARD_AT_ONCE: usize = 64;

/// Passes the messages of other parts to the cache, and keeps the buffers that came with them.
fn receive(
    exchange: &mut Exchange,
    buffers: &mut Buffers,
    cache: &mut BlockCache,
    orders: &mut Vec<Order>,
) {
    for _ in 0..HEARD_AT_ONCE {
        let Some(Parcel { message, buffer }) = exchange.receive() else { return };
        if let (Message::Piece(piece), Some(buffer)) = (&message, buffer) {
            buffers.borrow(piece.request(), buffer);
        }
        cache.received(message, orders);
    }
}

/// Sends a message, with the buffer of a sub-request. Returns a lent buffer once no sub-request
/// uses it.
fn send(exchange: &mut Exchange, buffers: &mut Buffers, to: PartId, message: Message) {
    let buffer = match &message {
        Message::Piece(piece) => buffers.lend(piece.request()),
        _ => None,
    };
    if let Some(request) = message.finishes() {
        buffers.piece_finished(request);
    }
    exchange.send(to, Parcel { message, buffer });
}

fn page(pages: &mut Pages, buffers: &Buffers, volume: VolumeId, sectors: Sectors, deed: Paging) {
    match deed {
        Paging::Fill { from } => pages.fill(volume, sectors, &buffers.slice(&from)),
        Paging::Forget => pages.forget(volume, sectors),
        Paging::Hold { from } => pages.hold(volume, sectors, &buffers.slice(&from)),
        Paging::Recall { to } => pages.recall(volume, sectors, &buffers.slice(&to)),
        Paging::LetGo => pages.let_go(volume, sectors),
    }
}
