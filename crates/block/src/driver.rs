//! The driver: executes the orders of the tiers' caches on real devices and buffers.
//!
//! One thread owns a driver with its devices and its part of each cache. [`Driver::submit`] takes
//! requests, [`Driver::advance`] does everything that needs no waiting, [`Driver::take_answers`]
//! returns the finished requests. Between calls the thread waits on the ring that its devices
//! share, until [`Driver::next_due`] at the latest. With other parts it may wait only if its
//! [`WakeUp`](crate::WakeUp) permits it.
//!
//! A driver is a [`Tier`] on top of either backing devices, one for each volume, or another driver
//! ([`Driver::on`]) as the tier below (`Below`). The tier executes the orders that concern it. The
//! driver begins the rest below, where the tier's I/O gate permits it.

use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use floe_device::{Action, Buffer, Completion, Device, Extent, Operation, Slice};

use super::watched::Watched;
use crate::exchange::Exchange;
use crate::geometry::{SECTOR_BYTES, VolumeId};
use crate::join::{Fault, Request, RequestId, RequestKind};
use crate::order::OpId;
use crate::tier::{Answer, Downward, Tier};
use crate::volumes::VolumeError;

/// A stack of tiers, or one part of it, with its devices.
pub struct Driver {
    tier: Tier,
    /// The volumes' backing devices; empty where there is a tier below.
    backings: Backings,
    below: Option<Box<Below>>,
}

impl Driver {
    /// Returns a driver of one tier, before it has volumes.
    pub fn new(tier: Tier) -> Self {
        Self { tier, backings: Backings::default(), below: None }
    }

    /// Returns a driver of a tier on top of another driver, before either has volumes. The backing
    /// devices of volumes go to the lowest tier.
    pub fn on(tier: Tier, lower: Driver) -> Self {
        Self { tier, backings: Backings::default(), below: Some(Box::new(Below::new(lower, &[]))) }
    }

    /// Returns a buffer for a request, as [`Driver::submit`] needs it. It has whole sectors. Bytes
    /// that a write does not cover are zero, and for a [`DirtyMap`](crate::RequestKind::DirtyMap)
    /// all bytes are.
    pub fn buffer(&self, request: &Request) -> Buffer {
        self.tier.buffers.for_request(request)
    }

    /// Returns the part of a request's buffer that belongs to the request itself.
    pub fn payload(request: &Request, buffer: &Buffer) -> Slice {
        let skew = (request.offset % SECTOR_BYTES) as usize;
        buffer.slice(skew..skew + request.len as usize)
    }

    /// Starts a request. A request with [`Request::buffer_bytes`] above 0 needs a buffer from
    /// [`Driver::buffer`]. The caller must not write to the buffer again, even after the answer:
    /// the cache may still be storing data from it.
    ///
    /// # Panics
    /// When a request that needs a buffer comes without.
    pub fn submit(&mut self, request: Request, buffer: Option<Buffer>) -> RequestId {
        assert!(request.buffer_bytes() == 0 || buffer.is_some(), "{request:?} needs a buffer");
        self.tier.submit(request, buffer)
    }

    /// Starts cleaning: each tier writes its dirty data to the tier or device below it.
    pub fn clean(&mut self) {
        self.each_tier(|tier| {
            tier.cache.clean(&mut tier.orders);
            if let Some(pacers) = &mut tier.pacers {
                pacers.wake();
            }
        });
    }

    /// Ends cleaning that no flush waits for, in all tiers, after the blocks under way. Their data
    /// stays dirty until it is cleaned again. To be called before a rest.
    pub fn rest(&mut self) {
        self.each_tier(|tier| {
            tier.cache.shards.each().for_each(|shard| shard.rest(&mut tier.orders));
            tier.cache.handle_events(&mut tier.orders);
        });
    }

    /// Logs the checksums of dirty data, in all tiers, so that the next session can verify it. To
    /// be called when nothing is under way in any tier, just before the end.
    pub fn note_rest(&mut self) {
        self.each_tier(|tier| tier.cache.note_rest(&mut tier.orders));
    }

    /// Executes orders and handles completions until nothing is left to do without waiting.
    pub fn advance(&mut self) {
        for work in self.tier.io_gate.take_held() {
            self.begin_below(work);
        }
        loop {
            self.carry_out();
            self.tier.poll();
            self.advance_below();
            self.backings.poll(|op, result| self.tier.ended_below(op, result));
            self.tier.hear_journal();
            if let Some(pacers) = &mut self.tier.pacers {
                pacers.clean(&mut self.tier.cache, &mut self.tier.orders);
            }
            if self.tier.orders.is_empty() {
                break;
            }
        }
        self.tier.end_round();
    }

    /// Executes the orders of this tier's cache.
    fn carry_out(&mut self) {
        let is_shared = self.below.is_some();
        let mut orders = std::mem::take(&mut self.tier.orders);
        for order in orders.drain(..) {
            if let Some(work) = self.tier.carry_out(order, is_shared) {
                self.begin_below(work);
            }
        }
        if self.tier.orders.is_empty() {
            self.tier.orders = orders; // keep its memory
        }
    }

    /// Begins work below this tier, or holds it back while the I/O gate is shut.
    fn begin_below(&mut self, work: Downward) {
        match (self.tier.io_gate.pass(work), &mut self.below) {
            (None, _) => {}
            (Some(Downward::Relay(id)), _) => self.relay(id),
            (Some(Downward::Operation { volume, op, offset, action }), below) => {
                self.tier.io_gate.begun();
                match below {
                    Some(below) => below.begin(volume, op, offset, action),
                    None => self.backings.begin(volume, op, offset, action),
                }
            }
        }
    }

    /// Relays a request to the tier below, if there is one that needs it.
    fn relay(&mut self, id: RequestId) {
        let is_kept_below = self.tiers().skip(1).any(Tier::is_kept);
        let (request, buffer) = self.tier.relays.take(id);
        match &mut self.below {
            Some(below) if request.kind != RequestKind::Flush || is_kept_below => {
                self.tier.io_gate.begun();
                below.relay(id, request, buffer);
            }
            _ => self.tier.end_relay(id, Ok(())),
        }
    }

    /// Returns the time by which [`Driver::advance`] must be called again, even without a
    /// completion on the ring.
    pub fn next_due(&self) -> Option<Instant> {
        let due = |tier: &Tier| {
            let late = tier.exchange().and_then(Exchange::next_due);
            let turn = tier.pacers.as_ref().and_then(|pacers| pacers.due());
            [tier.device.next_due(), late, turn].into_iter().flatten().min()
        };
        self.tiers().filter_map(due).chain(self.lowest().backings.next_due()).min()
    }

    /// Moves the answers since the last call into `out`.
    pub fn take_answers(&mut self, out: &mut Vec<Answer>) {
        out.append(&mut self.tier.answers);
    }

    /// Returns whether [`Driver::clean`] has something to do: some tier holds data that the tier or
    /// device below it lacks, or would lose cached data at a restart now (see
    /// [`Condition::has_unlogged`](crate::Condition::has_unlogged)).
    pub fn is_unclean(&self) -> bool {
        let mut conditions = self.tiers().map(|tier| tier.cache().condition());
        conditions.any(|it| it.has_dirty_data() || it.has_unlogged())
    }

    /// Returns whether work waits for [`Driver::advance`] that no completion will announce.
    pub fn has_orders(&self) -> bool {
        self.tiers().any(Tier::has_orders)
    }

    /// Returns whether nothing is under way in any tier.
    pub fn is_idle(&self) -> bool {
        self.tiers().all(Tier::is_at_rest)
    }

    /// Returns whether a message of another part waits to be received, in any tier.
    pub fn has_mail(&self) -> bool {
        self.tiers().filter_map(Tier::exchange).any(|exchange| !exchange.is_empty())
    }

    /// Returns the number of failed operations of all backing devices.
    pub fn backing_errors(&self) -> u64 {
        self.lowest().backings.errors()
    }

    /// Sets the timeout of network operations for the devices of all tiers and volumes: see
    /// [`Device::set_timeout`].
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.tier.device.set_timeout(timeout);
        self.backings.set_timeout(timeout);
        if let Some(below) = &mut self.below {
            below.driver_mut().set_timeout(timeout);
        }
    }

    /// Returns the processor time spent busy-waiting by devices that imitate a fast medium, in all
    /// tiers.
    pub fn spun(&self) -> Duration {
        let tiers: Duration = self.tiers().map(|tier| tier.device.spun()).sum();
        tiers + self.lowest().backings.spun()
    }

    /// Advances the tier below, and handles its answers.
    fn advance_below(&mut self) {
        let Some(below) = &mut self.below else { return };
        below.driver.advance();
        below.driver.take_answers(&mut below.answers);
        for Answer { request, result, .. } in below.answers.drain(..) {
            let waiting = below.waiting[request.number()].take();
            match waiting.expect("something waits for each request") {
                Waiting::Operation(op) => self.tier.ended_below(op, result),
                Waiting::Relay(request) => {
                    self.tier.io_gate.ended();
                    self.tier.end_relay(request, result);
                }
                Waiting::Drain(number) => self.tier.io_gate.drained(number, result),
            }
        }
    }

    /// Returns the tier at the top.
    #[inline]
    pub fn top(&self) -> &Tier {
        &self.tier
    }

    /// Returns the tier at the top, for operations on that tier alone.
    #[inline]
    pub fn top_mut(&mut self) -> &mut Tier {
        &mut self.tier
    }

    /// Returns the tiers, from the top.
    pub fn tiers(&self) -> impl Iterator<Item = &Tier> {
        let drivers = std::iter::successors(Some(self), |driver| {
            driver.below.as_ref().map(|below| below.driver())
        });
        drivers.map(|driver| &driver.tier)
    }

    /// Returns the tier with this number, from 0 for the top, for operations on that tier alone.
    pub fn tier_mut(&mut self, number: usize) -> Option<&mut Tier> {
        self.driver_of(number).map(|driver| &mut driver.tier)
    }

    /// Calls `act` for each tier, from the top.
    fn each_tier(&mut self, act: impl Fn(&mut Tier)) {
        let mut next = Some(self);
        while let Some(driver) = next {
            act(&mut driver.tier);
            next = driver.below.as_mut().map(|below| below.driver_mut());
        }
    }

    /// Returns the driver of the tier with this number and those below it.
    fn driver_of(&mut self, number: usize) -> Option<&mut Self> {
        (0..number)
            .try_fold(self, |driver, _| driver.below.as_mut().map(|below| below.driver_mut()))
    }

    /// Returns the driver of the lowest tier.
    fn lowest(&self) -> &Self {
        self.below.as_ref().map_or(self, |below| below.driver().lowest())
    }

    /// Drains a volume in one tier only, the one below tier `above`. The drain is durable and
    /// passes a shut I/O gate. The volume has the upper tier's id. The upper tier's gate reports
    /// the end by `number` ([`IoGate::take_drained`](crate::IoGate::take_drained)).
    ///
    /// # Panics
    /// When there is no tier below that one.
    pub fn drain_below(&mut self, above: usize, volume: VolumeId, number: u32) {
        let upper = self.driver_of(above).expect("there is a tier of this number");
        upper.tier.io_gate.begun();
        let below = upper.below.as_mut().expect("there is a tier below");
        below.drain_it_alone(volume, number);
    }

    /// Attaches an empty tier below the one with the number `above`. `ids` has pairs of volume ids:
    /// the upper tier's and the new tier's. To be done in all parts alike, when the I/O gate is
    /// shut in all and quiet in all.
    ///
    /// # Panics
    /// When the I/O gate is not shut and quiet here, an id is not free, or there is no such tier.
    pub fn put_below(&mut self, above: usize, newcomer: Tier, ids: &[(VolumeId, VolumeId)]) {
        let upper = self.driver_of(above).expect("there is a tier of this number");
        assert!(upper.tier.io_gate.is_shut_and_quiet(), "a tier is put where nothing is under way");
        let mut newcomer = Self::new(newcomer);
        for (id, new) in ids {
            let bytes = upper.tier.cache.volume_bytes(*id).expect("the volume is in this tier");
            newcomer.tier.add_volume_at(*new, bytes);
            // The upper tier has written there, and relies on the new tier to have it flushed.
            newcomer.tier.cache.shards.note_unsettled(*new);
        }
        match upper.below.take() {
            Some(lower) => {
                let ids: Vec<_> = ids.iter().map(|(id, new)| (*new, lower.id(*id))).collect();
                newcomer.below = Some(Box::new(Below::new(lower.into_driver(), &ids)));
            }
            None => {
                for (id, new) in ids {
                    newcomer.backings.put(*new, upper.backings.take(*id));
                }
            }
        }
        upper.below = Some(Box::new(Below::new(newcomer, ids)));
    }

    /// Detaches the tier below the one with the number `above`, which then uses the tier or devices
    /// below that one. To be done in all parts alike, when the I/O gate is shut and quiet in all,
    /// and the tier to detach [at rest](Tier::is_at_rest) in all.
    ///
    /// # Panics
    /// When there is no such tier, something is under way, or the tier has dirty data.
    pub fn take_below(&mut self, above: usize) -> Tier {
        let upper = self.driver_of(above).expect("there is a tier of this number");
        assert!(
            upper.tier.io_gate.is_shut_and_quiet(),
            "a tier is taken from where nothing is under way"
        );
        let below = upper.below.take().expect("there is a tier below");
        let ids: Vec<_> =
            below.ids().filter(|(id, _)| upper.tier.cache.volume_bytes(*id).is_some()).collect();
        let mut gone = below.into_driver();
        assert!(
            gone.tier.is_at_rest() && !gone.tier.cache.condition().has_dirty_data(),
            "a tier goes when it has brought all down"
        );
        match gone.below.take() {
            Some(lower) => {
                let ids: Vec<_> = ids.iter().map(|(id, gone)| (*id, lower.id(*gone))).collect();
                upper.below = Some(Box::new(Below::new(lower.into_driver(), &ids)));
            }
            None => {
                for (id, gone_id) in ids {
                    upper.backings.put(id, gone.backings.take(gone_id));
                }
            }
        }
        gone.tier
    }

    /// Adds a volume on a backing device, in all tiers; `name` is for the log. Returns the top
    /// tier's id of the volume.
    pub fn add_volume(&mut self, name: &str, backing: Box<dyn Device>) -> VolumeId {
        let bytes = backing.size_bytes();
        let ground = match &mut self.below {
            Some(below) => Ground::Tier(below.driver_mut().add_volume(name, backing)),
            None => Ground::Device(backing),
        };
        let id = self.tier.add_volume(bytes);
        self.put_volume(id, name, ground);
        id
    }

    /// Adds a volume with given free ids, one for each tier from this one down: see
    /// [`BlockCache::add_volume_at`](crate::BlockCache::add_volume_at).
    ///
    /// # Panics
    /// Without an id for each tier, or when one is not free.
    pub fn add_volume_in(&mut self, ids: &[VolumeId], name: &str, backing: Box<dyn Device>) {
        let (&id, lower) = ids.split_first().expect("a volume has an id in each tier");
        let bytes = backing.size_bytes();
        let ground = match &mut self.below {
            Some(below) => {
                below.driver_mut().add_volume_in(lower, name, backing);
                Ground::Tier(lower[0])
            }
            None => Ground::Device(backing),
        };
        self.tier.add_volume_at(id, bytes);
        self.put_volume(id, name, ground);
    }

    /// Adds a volume with a given free id to a driver of one tier; see [`Driver::add_volume_in`]
    /// for more.
    ///
    /// # Panics
    /// When there are several tiers, or the id is not free.
    pub fn add_volume_at(&mut self, id: VolumeId, name: &str, backing: Box<dyn Device>) {
        self.add_volume_in(&[id], name, backing);
    }

    /// Returns the ids of one of this tier's volumes, here and in each tier below, from the top.
    ///
    /// # Panics
    /// When there is no such volume.
    pub fn volume_ids(&self, id: VolumeId) -> Vec<VolumeId> {
        let below = self.below.as_ref().map(|below| below.driver().volume_ids(below.id(id)));
        std::iter::once(id).chain(below.into_iter().flatten()).collect()
    }

    fn put_volume(&mut self, id: VolumeId, name: &str, ground: Ground) {
        match (ground, &mut self.below) {
            (Ground::Device(device), _) => self.backings.add(id, name, device),
            (Ground::Tier(lower), Some(below)) => below.put_volume(id, lower),
            (Ground::Tier(_), None) => unreachable!("there is a tier below"),
        }
    }

    /// Removes a volume, with its backing device, in this part: see
    /// [`BlockCache::remove_volume`](crate::BlockCache::remove_volume).
    ///
    /// With tiers below, one call removes the volume from one tier, numbered from 0 for the top.
    /// The id is the top tier's. Remove a volume tier by tier, each in all parts before the next.
    /// Otherwise a part that still has the volume may send requests for it to any other part below.
    ///
    /// # Errors
    /// As for `BlockCache::remove_volume`; the volume then stays in that tier.
    pub fn remove_volume(
        &mut self,
        tier: usize,
        id: VolumeId,
        discard: bool,
    ) -> Result<(), VolumeError> {
        if tier > 0 {
            let below = self.below.as_mut().expect("there is a tier of this number");
            let lower = below.id(id);
            return below.driver_mut().remove_volume(tier - 1, lower, discard);
        }
        self.tier.remove_volume(id, discard)?;
        self.backings.take(id);
        Ok(())
    }

    /// Grows a volume, after its backing device, in this part, the lowest tier first: see
    /// [`BlockCache::resize_volume`](crate::BlockCache::resize_volume).
    ///
    /// # Errors
    /// As for `BlockCache::resize_volume`, or when the device does not accept its new size; this
    /// tier's volume then keeps its size.
    pub fn resize_volume(&mut self, id: VolumeId, bytes: u64) -> io::Result<()> {
        if let Some(below) = &mut self.below {
            let lower = below.id(id);
            below.driver_mut().resize_volume(lower, bytes)?;
        }
        self.backings.set_size(id, bytes)?;
        self.tier.resize_volume(id, bytes).map_err(io::Error::other)
    }

    /// Adds the extents that the backing device of a volume reports for a range. They are
    /// contiguous from the range's start, and may stop before its end. Adds nothing for an unknown
    /// volume.
    pub fn allocation(&mut self, volume: VolumeId, range: Range<u64>, out: &mut Vec<Extent>) {
        match &mut self.below {
            Some(below) if self.tier.cache.volume_bytes(volume).is_some() => {
                let lower = below.id(volume);
                below.driver_mut().allocation(lower, range, out);
            }
            _ => self.backings.allocation(volume, range, out),
        }
    }
}

/// The backing devices of a tier's volumes.
///
/// Invariant: a volume with an operation under way has its backing device here.
#[derive(Default)]
struct Backings {
    /// Backing devices by volume id; empty where there is a tier below.
    devices: Vec<Option<Watched>>,
    done: Vec<Completion>,
}

impl Backings {
    /// Sets the backing device of a volume; `name` is the volume's, for the log.
    fn add(&mut self, id: VolumeId, name: &str, device: Box<dyn Device>) {
        self.put(id, Some(Watched::new(format!("backing device of volume {name}"), device)));
    }

    /// Replaces the backing device of a volume; `None` removes it.
    fn put(&mut self, id: VolumeId, backing: Option<Watched>) {
        let slot = id.0 as usize;
        self.devices.resize_with(self.devices.len().max(slot + 1), || None);
        self.devices[slot] = backing;
    }

    fn take(&mut self, id: VolumeId) -> Option<Watched> {
        self.devices.get_mut(id.0 as usize)?.take()
    }

    /// Begins an operation.
    ///
    /// # Panics
    /// When the volume has no backing device.
    fn begin(&mut self, id: VolumeId, op: OpId, offset: u64, action: Action) {
        let backing = self.devices[id.0 as usize].as_mut();
        let device = &mut backing.expect("a volume with something under way is there").device;
        device.submit(Operation { token: op.0, offset, action });
    }

    /// Passes the operations of all devices that have ended to `ended`.
    fn poll(&mut self, mut ended: impl FnMut(OpId, Result<(), Fault>)) {
        for backing in self.devices.iter_mut().flatten() {
            backing.device.poll(&mut self.done);
            for Completion { token, result } in self.done.drain(..) {
                ended(OpId(token), backing.note(&result));
            }
        }
    }

    /// Returns the number of failed operations of all devices.
    fn errors(&self) -> u64 {
        self.devices.iter().flatten().map(Watched::errors).sum()
    }

    /// Returns the time by which the devices must be polled again.
    fn next_due(&self) -> Option<Instant> {
        self.devices.iter().flatten().filter_map(|backing| backing.device.next_due()).min()
    }

    /// Sets the timeout of network operations for all devices.
    fn set_timeout(&mut self, timeout: Duration) {
        for backing in self.devices.iter_mut().flatten() {
            backing.device.set_timeout(timeout);
        }
    }

    /// Returns the processor time that the devices have spent busy-waiting.
    fn spun(&self) -> Duration {
        self.devices.iter().flatten().map(|backing| backing.device.spun()).sum()
    }

    /// Reports a volume's new size to its backing device, if there is one.
    ///
    /// # Errors
    /// When the device does not accept it.
    fn set_size(&mut self, id: VolumeId, bytes: u64) -> io::Result<()> {
        match self.devices.get_mut(id.0 as usize) {
            Some(Some(backing)) => backing.device.set_size(bytes),
            _ => Ok(()),
        }
    }

    /// Adds the extents that the backing device of a volume, if there is one, reports for a range.
    fn allocation(&mut self, id: VolumeId, range: Range<u64>, out: &mut Vec<Extent>) {
        if let Some(Some(backing)) = self.devices.get_mut(id.0 as usize) {
            backing.device.allocation(range, out);
        }
    }
}

/// The receiver of an answer from the tier below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waiting {
    /// An operation of this tier, carried out by the tier below.
    Operation(OpId),
    /// A request to this tier that was relayed to the tier below.
    Relay(RequestId),
    /// A drain of the tier below, with the number that its caller gave it.
    Drain(u32),
}

/// The tier below a driver's top tier, with the mapping of volume ids.
struct Below {
    driver: Driver,
    /// The lower tier's volume ids, indexed by this tier's.
    volumes: Vec<Option<VolumeId>>,
    /// Receivers of answers, indexed by the number of the lower tier's request.
    waiting: Vec<Option<Waiting>>,
    answers: Vec<Answer>,
}

impl Below {
    /// Creates a lower tier with these pairs of volume ids: the upper tier's and its own.
    fn new(driver: Driver, ids: &[(VolumeId, VolumeId)]) -> Self {
        let mut below =
            Self { driver, volumes: Vec::new(), waiting: Vec::new(), answers: Vec::new() };
        ids.iter().for_each(|(id, lower)| below.put_volume(*id, *lower));
        below
    }

    fn into_driver(self) -> Driver {
        self.driver
    }

    /// Returns the pairs of volume ids: the upper tier's and the lower tier's, including removed
    /// volumes.
    fn ids(&self) -> impl Iterator<Item = (VolumeId, VolumeId)> {
        let pairs = (0..).map(VolumeId).zip(&self.volumes);
        pairs.filter_map(|(id, lower)| lower.map(|lower| (id, lower)))
    }

    fn driver(&self) -> &Driver {
        &self.driver
    }

    fn driver_mut(&mut self) -> &mut Driver {
        &mut self.driver
    }

    /// Records the lower tier's id of a volume.
    fn put_volume(&mut self, id: VolumeId, lower: VolumeId) {
        let at = id.0 as usize;
        self.volumes.resize(self.volumes.len().max(at + 1), None);
        self.volumes[at] = Some(lower);
    }

    /// Returns the lower tier's id of a volume.
    ///
    /// # Panics
    /// When the volume was never added.
    fn id(&self, volume: VolumeId) -> VolumeId {
        self.volumes[volume.0 as usize].expect("a volume is in the tier below as well")
    }

    /// Submits an operation of the upper tier as a request.
    fn begin(&mut self, volume: VolumeId, op: OpId, offset: u64, action: Action) {
        let (kind, len, buffer) = match action {
            Action::Read(to) => (RequestKind::Read, to.len() as u64, Some(to.share())),
            Action::Write { from, durable } => {
                (RequestKind::Write { durable }, from.len() as u64, Some(from.share()))
            }
            Action::Zero { len, may_unmap, fast } => {
                (RequestKind::Zero { durable: false, may_unmap, fast }, len, None)
            }
            Action::Discard { len } => (RequestKind::Trim, len, None),
            Action::Flush => (RequestKind::Flush, 0, None),
        };
        let len = self.within(volume, offset, len);
        self.submit(volume, Request { volume, kind, offset, len }, buffer, Waiting::Operation(op));
    }

    /// Returns the length of a range, cut at the volume's end where that lies within the range's
    /// last sector.
    fn within(&self, volume: VolumeId, offset: u64, len: u64) -> u64 {
        let size = self.driver.tier.cache.volume_bytes(self.id(volume)).unwrap_or_default();
        let beyond = (offset + len).saturating_sub(size);
        // else the lower tier refuses it
        if beyond < SECTOR_BYTES { len.saturating_sub(beyond) } else { len }
    }

    /// Submits a request for one of the upper tier's volumes to the lower tier.
    fn submit(
        &mut self,
        volume: VolumeId,
        request: Request,
        buffer: Option<Buffer>,
        waiting: Waiting,
    ) {
        let id = self.driver.submit(Request { volume: self.id(volume), ..request }, buffer);
        self.wait_for(id, waiting);
    }

    /// Submits a request that the upper tier has handled, and that the lower tier must handle too.
    fn relay(&mut self, id: RequestId, request: Request, buffer: Option<Buffer>) {
        self.submit(request.volume, request, buffer, Waiting::Relay(id));
    }

    /// Drains a volume in the lower tier only, not in the tiers below that one. `volume` is the
    /// upper tier's id.
    fn drain_it_alone(&mut self, volume: VolumeId, number: u32) {
        let drain =
            Request { volume: self.id(volume), kind: RequestKind::Drain, offset: 0, len: 0 };
        let id = self.driver.tier.submit_here(drain);
        self.wait_for(id, Waiting::Drain(number));
    }

    fn wait_for(&mut self, id: RequestId, waiting: Waiting) {
        let at = id.number();
        self.waiting.resize(self.waiting.len().max(at + 1), None);
        debug_assert_eq!(self.waiting[at], None, "a name is free before it is given again");
        self.waiting[at] = Some(waiting);
    }
}

/// The storage below a volume.
enum Ground {
    Device(Box<dyn Device>),
    /// The tier below, with its id of the volume.
    Tier(VolumeId),
}

#[cfg(test)]
mod backings_tests {
    use floe_device::{MemoryDevice, Pool};

    use super::*;

    #[test]
    fn operations_of_all_volumes_end_with_the_faults_of_their_devices() {
        let mut backings = Backings::default();
        for (id, bytes) in [(VolumeId(2), 8192), (VolumeId(0), 4096)] {
            backings.add(id, "test", Box::new(MemoryDevice::new(bytes)));
        }
        let pool = Pool::new(0);
        for (op, id) in [(OpId(1), VolumeId(0)), (OpId(2), VolumeId(2))] {
            let read = Action::Read(pool.allocate(4096).whole());
            backings.begin(id, op, 4096, read); // beyond the end of the smaller one
        }
        let mut ended = Vec::new();
        backings.poll(|op, result| ended.push((op.0, result.is_ok())));
        assert_eq!((ended, backings.errors()), (vec![(1, false), (2, true)], 1));
        assert!(backings.take(VolumeId(1)).is_none() && backings.take(VolumeId(2)).is_some());
        assert!(backings.take(VolumeId(2)).is_none(), "it was taken");
    }
}
