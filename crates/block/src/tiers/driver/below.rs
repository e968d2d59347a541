//! The tier below: a driver that replaces another driver's backing devices.
//!
//! An operation that a tier orders from a backing device becomes a request to the tier below; the
//! answer ends the operation. So the lower tier sees lookups (read misses of the upper one), offers
//! (reads and writes) and invalidations (zeroing, trimming), and no state machine knows of another.
//! NVCache's tiers (Feng et al., §3) are stacked like this.
//!
//! - A *flush* becomes a flush: a volatile tier writes its dirty data further down, a persistent
//!   one commits it.
//! - Requests that concern every tier are *relayed*. A [`Kind::Drain`] empties this tier first,
//!   then the one below. A [`Kind::DirtyMap`] marks this tier's sectors, then those of the one
//!   below, since data only moves down. A flush of a persistent tier may cause no flush below, so
//!   it is also relayed to a persistent tier below, to commit that tier's changes. The client is
//!   answered after the last tier.
//! - Bytes are not copied: a request to the lower tier has the memory of the upper tier's operation
//!   as its buffer. The lower tier may still be storing it after its answer, so the buffer must not
//!   change. The upper tier changes it in one place, where it clears part of a sector it has just
//!   read ([`Order::Clear`](crate::Order::Clear)); there it makes a copy.
//!
//! Invariants: a volume is in the tier below as long as it is in this one. One operation or one
//! relay of this tier waits for each request to the lower tier. The id of a relayed request is free
//! only once the request was answered.

use floe_device::{Action, Buffer};

use super::Driver;
use crate::engine::request::{Kind, Request, RequestId};
use crate::geometry::{SECTOR_BYTES, VolumeId};
use crate::order::OpId;
use crate::tiers::tier::Answer;

/// The receiver of a lower tier's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waiting {
    /// An operation of this tier.
    Operation(OpId),
    /// A request to this tier that has been relayed.
    Relay(RequestId),
    /// A drain of the tier below, by its number.
    Drain(u32),
}

/// The tier below.
pub(super) struct Below {
    driver: Driver,
    /// The lower tier's ids of the volumes, by this tier's.
    volumes: Vec<Option<VolumeId>>,
    /// Receivers of answers, by the numbers of the lower tier's requests.
    waiting: Vec<Option<Waiting>>,
    answers: Vec<Answer>,
}

impl Below {
    /// Returns a lower tier with these pairs of volume ids, the upper tier's and its own.
    pub(super) fn new(driver: Driver, ids: &[(VolumeId, VolumeId)]) -> Self {
        let mut below =
            Self { driver, volumes: Vec::new(), waiting: Vec::new(), answers: Vec::new() };
        ids.iter().for_each(|(id, lower)| below.put_volume(*id, *lower));
        below
    }

    pub(super) fn into_driver(self) -> Driver {
        self.driver
    }

    /// Returns the pairs of volume ids, the upper tier's and the lower one's, including removed
    /// volumes.
    pub(super) fn ids(&self) -> impl Iterator<Item = (VolumeId, VolumeId)> {
        let pairs = (0..).map(VolumeId).zip(&self.volumes);
        pairs.filter_map(|(id, lower)| lower.map(|lower| (id, lower)))
    }

    pub(super) fn driver(&self) -> &Driver {
        &self.driver
    }

    pub(super) fn driver_mut(&mut self) -> &mut Driver {
        &mut self.driver
    }

    /// Records the lower tier's id of a volume.
    pub(super) fn put_volume(&mut self, id: VolumeId, lower: VolumeId) {
        let at = id.0 as usize;
        self.volumes.resize(self.volumes.len().max(at + 1), None);
        self.volumes[at] = Some(lower);
    }

    /// Returns the lower tier's id of a volume.
    ///
    /// # Panics
    /// When the volume was never there.
    pub(super) fn id(&self, volume: VolumeId) -> VolumeId {
        self.volumes[volume.0 as usize].expect("a volume is in the tier below as well")
    }

    /// Submits an operation of the upper tier as a request.
    pub(super) fn begin(&mut self, volume: VolumeId, op: OpId, offset: u64, action: Action) {
        let (kind, len, buffer) = match action {
            Action::Read(to) => (Kind::Read, to.len() as u64, Some(to.share())),
            Action::Write { from, durable } => {
                (Kind::Write { durable }, from.len() as u64, Some(from.share()))
            }
            Action::Zero { len, may_unmap, fast } => {
                (Kind::Zero { durable: false, may_unmap, fast }, len, None)
            }
            Action::Discard { len } => (Kind::Trim, len, None),
            Action::Flush => (Kind::Flush, 0, None),
        };
        let len = self.within(volume, offset, len);
        self.submit(volume, Request { volume, kind, offset, len }, buffer, Waiting::Operation(op));
    }

    /// Returns the length of a range without the bytes of its last sector beyond the volume's end.
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

    /// Submits a request to the upper tier that is also for the lower tier.
    pub(super) fn relay(&mut self, id: RequestId, request: Request, buffer: Option<Buffer>) {
        self.submit(request.volume, request, buffer, Waiting::Relay(id));
    }

    /// Drains a volume of the upper tier in the lower tier only, not in those below it.
    pub(super) fn drain_it_alone(&mut self, volume: VolumeId, number: u32) {
        let drain = Request { volume: self.id(volume), kind: Kind::Drain, offset: 0, len: 0 };
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

impl Driver {
    /// Advances the tier below, and handles its answers.
    pub(super) fn advance_below(&mut self) {
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
}
