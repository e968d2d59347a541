//! The tier below: a driver that stands in for another one's backing devices.
//!
//! What a tier orders of a backing device becomes a request to the tier below, and the answer is
//! the end of the operation. So the lower tier sees lookups (reads of what the upper one misses),
//! offers (what is read or written) and invalidations (zeroing, trimming), and no state machine
//! knows of another. NVCache's tiers (Feng et al., §3) stand on each other like this.
//!
//! - A *flush* becomes a flush: a tier that ends with the program brings what is dirty further
//!   down, one that is kept commits it.
//! - What concerns every tier is *relayed*: a [`Kind::Drain`] empties this tier first, then the one
//!   below; a [`Kind::DirtyMap`] marks what this tier has, then what the one below has, since data
//!   only ever moves down. A flush of a tier that is kept may have nothing to say to the one below,
//!   so it goes on to one that is kept, too, to commit what that has noted. The client has its
//!   answer after the last.
//! - Bytes are not copied: a request to the lower tier has the memory of the upper tier's operation
//!   for its buffer. The lower tier may still be storing it after its answer, so nobody may change
//!   it. The upper tier does in one place, where it clears part of a sector it has just read
//!   ([`Driver::clear`]); there it takes a copy.
//!
//! Invariants: a volume is in the tier below as long as it is in this one; every request to the
//! lower tier is waited for by one operation or one relay of this tier; the name of a relayed
//! request is free only once it was answered.

use floe_device::{Action, Buffer};

use super::{Answer, Driver};
use crate::geometry::{SECTOR_BYTES, VolumeId};
use crate::order::{BufferId, OpId, Span};
use crate::request::{Fault, Kind, Request, RequestId};

/// What waits for a request to the tier below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waiting {
    /// An operation of this tier.
    Operation(OpId),
    /// A request to this tier that has gone on to the one below.
    Relay(RequestId),
    /// Whoever has the tier below drained, by its number.
    Drain(u32),
}

/// A request to this tier that is for the one below as well.
#[derive(Debug)]
pub(super) struct Relay {
    id: RequestId,
    request: Request,
    buffer: Option<Buffer>,
    /// This tier has no more use for it.
    released: bool,
}

/// The tier below.
pub(super) struct Below {
    driver: Driver,
    /// Its ids of the volumes, by this tier's.
    volumes: Vec<Option<VolumeId>>,
    /// By the numbers of its requests.
    waiting: Vec<Option<Waiting>>,
    answers: Vec<Answer>,
}

impl Below {
    /// A tier that calls volumes as `ids` says, in pairs of the upper tier's id and its own.
    pub(super) fn new(driver: Driver, ids: &[(VolumeId, VolumeId)]) -> Self {
        let mut below =
            Self { driver, volumes: Vec::new(), waiting: Vec::new(), answers: Vec::new() };
        ids.iter().for_each(|(id, lower)| below.put_volume(*id, *lower));
        below
    }

    pub(super) fn into_driver(self) -> Driver {
        self.driver
    }

    /// Ids of volumes, those that have gone included, in pairs of the upper tier's and the lower
    /// one's.
    pub(super) fn ids(&self) -> impl Iterator<Item = (VolumeId, VolumeId)> {
        let pairs = (0..).map(VolumeId).zip(&self.volumes);
        pairs.filter_map(|(id, lower)| lower.map(|lower| (id, lower)))
    }

    /// Whether something waits for an answer.
    pub(super) fn is_waited_for(&self) -> bool {
        self.waiting.iter().any(Option::is_some)
    }

    pub(super) fn driver(&self) -> &Driver {
        &self.driver
    }

    pub(super) fn driver_mut(&mut self) -> &mut Driver {
        &mut self.driver
    }

    /// Notes which id the lower tier has for a volume.
    pub(super) fn put_volume(&mut self, id: VolumeId, lower: VolumeId) {
        let at = id.0 as usize;
        self.volumes.resize(self.volumes.len().max(at + 1), None);
        self.volumes[at] = Some(lower);
    }

    /// The lower tier's id of a volume.
    ///
    /// # Panics
    /// When the volume was never there.
    pub(super) fn id(&self, volume: VolumeId) -> VolumeId {
        self.volumes[volume.0 as usize].expect("a volume is in the tier below as well")
    }

    /// Begins an operation of the tier above.
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

    /// The length of a range without what its last sector has beyond the volume's end.
    fn within(&self, volume: VolumeId, offset: u64, len: u64) -> u64 {
        let size = self.driver.cache.volume_bytes(self.id(volume)).unwrap_or_default();
        let beyond = (offset + len).saturating_sub(size);
        // else the lower tier refuses it
        if beyond < SECTOR_BYTES { len.saturating_sub(beyond) } else { len }
    }

    /// Asks the lower tier for what one of this tier's volumes is to have done.
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

    /// The same for what moves no data and is not for the tiers below that one.
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
    /// This tier above another one, before either has volumes. The backing devices of volumes go to
    /// the lowest tier.
    ///
    /// # Panics
    /// When there is a tier below already.
    #[must_use]
    pub fn on(mut self, lower: Driver) -> Self {
        assert!(self.below.is_none(), "a tier stands on one other");
        self.below = Some(Box::new(Below::new(lower, &[])));
        self
    }

    /// The tier below, if there is one.
    pub fn below(&self) -> Option<&Self> {
        self.below.as_ref().map(|below| &below.driver)
    }

    /// The same, for what is done to one tier alone; requests are for the tier at the top.
    pub fn below_mut(&mut self) -> Option<&mut Self> {
        self.below.as_mut().map(|below| &mut below.driver)
    }

    /// This tier and those below, from the top.
    pub fn tiers(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |tier| tier.below())
    }

    /// The tier with this number, from 0 for this one.
    pub fn tier_mut(&mut self, number: usize) -> Option<&mut Self> {
        (0..number).try_fold(self, |tier, _| tier.below_mut())
    }

    /// Lets the tier below do what it can, and takes in what it has done.
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

    /// Notes a request that may have to go on once this tier has done its part: to whom is known
    /// then.
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

    /// This tier has done its part of a request: the client is answered, or the tier below goes on.
    pub(super) fn answer(&mut self, id: RequestId, result: Result<(), Fault>) {
        match self.relays.iter().any(|relay| relay.id == id) {
            true if result.is_ok() => self.relay(id),
            true => self.end_relay(id, result),
            false => self.answers.push(Answer { request: id, result }),
        }
    }

    /// Has the tier below go on with a request, if there is one that it is for.
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

    /// This tier has no more use for a request. Says whether the tier below is still at it.
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

    /// Makes part of a buffer zero. The tier below may still be storing from it what was read
    /// there.
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
