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
//!   read ([`Driver::clear`]); there it makes a copy.
//!
//! Invariants: a volume is in the tier below as long as it is in this one. One operation or one
//! relay of this tier waits for each request to the lower tier. The id of a relayed request is free
//! only once the request was answered.

use floe_device::{Action, Buffer};

use super::{Answer, Driver};
use crate::engine::request::{Fault, Kind, Request, RequestId};
use crate::geometry::{SECTOR_BYTES, VolumeId};
use crate::order::{BufferId, OpId, Span};

/// The receiver of a lower tier's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waiting {
    /// An operation of this tier.
    Operation(OpId),
    /// A request to this tier that has been relayed.
    Relay(RequestId),
    /// A drain of the tier below, by its number.
    Drain(u32),
}

/// A request to this tier that is also for the one below.
#[derive(Debug)]
pub(super) struct Relay {
    id: RequestId,
    request: Request,
    buffer: Option<Buffer>,
    /// This tier does not need the request any more.
    released: bool,
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

    /// Returns whether an operation or a relay waits for an answer.
    pub(super) fn is_waited_for(&self) -> bool {
        self.waiting.iter().any(Option::is_some)
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
        let size = self.driver.cache.volume_bytes(self.id(volume)).unwrap_or_default();
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

    /// Submits a request that moves no data to the lower tier only, not to those below it.
    pub(super) fn submit_to_it_alone(&mut self, request: Request, waiting: Waiting) {
        let id = self.driver.submit_here(Request { volume: self.id(request.volume), ..request });
        self.wait_for(id, waiting);
    }

    fn wait_for(&mut self, id: RequestId, waiting: Waiting) {
        let at = id.number();
        self.waiting.resize(self.waiting.len().max(at + 1), None);
        debug_assert_eq!(self.waiting[at], None, "a name is free before it is given again");
        self.waiting[at] = Some(waiting);
    }
}

impl Driver {
    /// Puts this tier on top of another one, before either has volumes. The backing devices of
    /// volumes go to the lowest tier.
    ///
    /// # Panics
    /// When there is a tier below already.
    #[must_use]
    pub fn on(mut self, lower: Driver) -> Self {
        assert!(self.below.is_none(), "a tier stands on one other");
        self.below = Some(Box::new(Below::new(lower, &[])));
        self
    }

    /// Returns the tier below, if there is one.
    pub fn below(&self) -> Option<&Self> {
        self.below.as_ref().map(|below| &below.driver)
    }

    /// Returns the tier below, for operations on that tier alone; requests go to the tier at the
    /// top.
    pub fn below_mut(&mut self) -> Option<&mut Self> {
        self.below.as_mut().map(|below| &mut below.driver)
    }

    /// Returns this tier and those below, from the top.
    pub fn tiers(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |tier| tier.below())
    }

    /// Returns the tier with this number, from 0 for this one.
    pub fn tier_mut(&mut self, number: usize) -> Option<&mut Self> {
        (0..number).try_fold(self, |tier, _| tier.below_mut())
    }

    /// Advances the tier below, and handles its answers.
    pub(super) fn advance_below(&mut self) {
        let Some(below) = &mut self.below else { return };
        below.driver.advance();
        below.driver.take_answers(&mut below.answers);
        let mut answers = std::mem::take(&mut below.answers);
        for Answer { request, result } in answers.drain(..) {
            let waiting =
                self.below.as_mut().and_then(|below| below.waiting[request.number()].take());
            match waiting.expect("somebody waits for each request") {
                Waiting::Operation(op) => {
                    self.took(op.0, result.is_ok());
                    self.cache.completed(op, result, &mut self.orders);
                }
                Waiting::Relay(request) => self.end_relay(request, result),
                Waiting::Drain(number) => self.seam.note_drained(number, result),
            }
        }
        if let Some(below) = &mut self.below {
            below.answers = answers; // keep its memory
        }
    }

    /// Records a request that may have to be relayed once this tier has done its part.
    pub(super) fn relay_later(&mut self, id: RequestId, request: Request, buffer: Option<&Buffer>) {
        let may_go_on = match request.kind {
            Kind::Drain | Kind::DirtyMap => true,
            Kind::Flush => self.journal.is_some(),
            _ => false,
        };
        if may_go_on {
            self.relays.push(Relay { id, request, buffer: buffer.cloned(), released: false });
        }
    }

    /// Ends this tier's part of a request: answers the client, or relays the request.
    pub(super) fn answer(&mut self, id: RequestId, result: Result<(), Fault>) {
        match self.relays.iter().any(|relay| relay.id == id) {
            true if result.is_ok() => self.relay(id),
            true => self.end_relay(id, result),
            false => self.answers.push(Answer { request: id, result }),
        }
    }

    /// Relays a request to the tier below, if there is one that needs it.
    pub(super) fn relay(&mut self, id: RequestId) {
        if self.seam.is_shut() {
            return self.seam.hold_relay(id);
        }
        let keeps = self.tiers().skip(1).any(|tier| tier.journal.is_some());
        let relay = self.relays.iter_mut().find(|relay| relay.id == id).expect("it has been noted");
        match &mut self.below {
            Some(below) if relay.request.kind != Kind::Flush || keeps => {
                let (request, buffer) = (relay.request, relay.buffer.take());
                below.submit(request.volume, request, buffer, Waiting::Relay(id));
            }
            _ => self.end_relay(id, Ok(())),
        }
    }

    /// Notes that this tier does not need a request any more. Returns whether the request is still
    /// relayed.
    pub(super) fn is_relayed(&mut self, id: RequestId) -> bool {
        let relay = self.relays.iter_mut().find(|relay| relay.id == id);
        relay.map(|relay| relay.released = true).is_some()
    }

    fn end_relay(&mut self, id: RequestId, result: Result<(), Fault>) {
        let at = self.relays.iter().position(|relay| relay.id == id);
        let relay = self.relays.swap_remove(at.expect("what ends has gone on"));
        self.answers.push(Answer { request: id, result });
        if relay.released {
            self.free_requests.push(id);
        }
    }

    /// Zeroes part of a buffer. The tier below may still be storing the data read there, so a copy
    /// replaces it.
    pub(super) fn clear(&mut self, span: &Span) {
        if let (Some(_), BufferId::Scratch(scratch)) = (&self.below, span.buffer) {
            let before =
                self.scratches.get_mut(&scratch).expect("orders speak of buffers that are there");
            let copy = self.pool.allocate(before.len());
            floe_device::Slice::copy(&before.whole(), &copy.whole());
            *before = copy;
        }
        self.slice(span).fill_zero();
    }
}
