//! The I/O gate between a tier and the one below: it stops I/O there while a tier is attached or
//! detached.
//!
//! An I/O gate that is *shut* holds back this tier's operations below; hits in this tier are served
//! as always. A part whose gate is shut begins nothing below. Once nothing is under way there
//! either ([`IoGate::is_quiet`]), the part stays quiet until the gate is opened. When all parts are
//! quiet, no request is below the gate. Then each part can exchange the tiers below by itself, in
//! its own time. The parts that have done so exchange messages in the new tiers; the others are
//! silent.
//!
//! The drain of a tier that is to be detached passes the shut gate.

use std::collections::VecDeque;

use floe_device::{Action, Buffer};

use crate::geometry::VolumeId;
use crate::join::{Fault, Request, RequestId};
use crate::order::OpId;

/// Work that a tier passes to the tier or the devices below.
#[derive(Debug)]
pub(crate) enum Downward {
    /// An operation on a volume.
    Operation {
        /// The volume, by this tier's id.
        volume: VolumeId,
        /// The operation's id.
        op: OpId,
        /// First byte on the volume.
        offset: u64,
        /// The type of the operation, with its buffer.
        action: Action,
    },
    /// A request to this tier that the tier below may have to handle too.
    Relay(RequestId),
}

/// The I/O gate below a tier: shut, it holds back the tier's operations below.
#[derive(Debug, Default)]
pub struct IoGate {
    is_shut: bool,
    /// Work held back, in order, until the I/O gate is open.
    held: VecDeque<Downward>,
    /// Operations, relays and drains under way below.
    under_way: usize,
    /// Ended drains of the tier below, by the numbers that their callers gave them.
    drained: Vec<(u32, Result<(), Fault>)>,
}

impl IoGate {
    /// Shuts the gate: nothing begins below until it is opened.
    pub fn shut(&mut self) {
        self.is_shut = true;
    }

    /// Opens the gate: work held back begins with the next
    /// [`Driver::advance`](crate::Driver::advance).
    pub fn open(&mut self) {
        self.is_shut = false;
    }

    /// Returns whether work is held back.
    pub(super) fn has_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// Returns whether the gate is open and work is held back.
    pub(super) fn can_go_on(&self) -> bool {
        !self.is_shut && self.has_held()
    }

    /// Returns whether the gate is shut and nothing is under way below.
    pub(crate) fn is_shut_and_quiet(&self) -> bool {
        self.is_shut && self.is_quiet()
    }

    /// Returns whether nothing of this part is under way below.
    pub fn is_quiet(&self) -> bool {
        self.under_way == 0
    }

    /// Returns the work if the gate is open, or holds it back.
    pub(crate) fn pass(&mut self, work: Downward) -> Option<Downward> {
        if self.is_shut {
            self.held.push_back(work);
            return None;
        }
        Some(work)
    }

    /// Returns the work held back, if the gate is open.
    #[inline]
    pub(crate) fn take_held(&mut self) -> VecDeque<Downward> {
        if self.can_go_on() { std::mem::take(&mut self.held) } else { VecDeque::new() }
    }

    /// Counts the start of an operation, relay or drain below.
    pub(crate) fn begun(&mut self) {
        self.under_way += 1;
    }

    /// Counts the end of an operation, relay or drain below.
    pub(crate) fn ended(&mut self) {
        self.under_way -= 1;
    }

    /// Records the result of a drain of the tier below.
    pub(crate) fn drained(&mut self, number: u32, result: Result<(), Fault>) {
        self.ended();
        self.drained.push((number, result));
    }

    /// Moves the results of ended [drains](crate::Driver::drain_below) into `out`, with their
    /// numbers.
    pub fn take_drained(&mut self, out: &mut Vec<(u32, Result<(), Fault>)>) {
        out.append(&mut self.drained);
    }
}

/// The requests of a tier that the tier below may have to handle too.
#[derive(Debug, Default)]
pub(crate) struct Relays(Vec<Relay>);

#[derive(Debug)]
struct Relay {
    id: RequestId,
    request: Request,
    buffer: Option<Buffer>,
    /// Set when this tier does not need the request any more.
    released: bool,
}

impl Relays {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[inline]
    pub(super) fn has(&self, id: RequestId) -> bool {
        self.0.iter().any(|relay| relay.id == id)
    }

    /// Adds a request that may have to be relayed.
    pub(super) fn note(&mut self, id: RequestId, request: Request, buffer: Option<Buffer>) {
        self.0.push(Relay { id, request, buffer, released: false });
    }

    /// Returns a request that is to be relayed, with its buffer.
    ///
    /// # Panics
    /// When the request was not added before.
    pub(crate) fn take(&mut self, id: RequestId) -> (Request, Option<Buffer>) {
        let relay = self.0.iter_mut().find(|relay| relay.id == id).expect("it has been noted");
        (relay.request, relay.buffer.take())
    }

    /// Records that this tier does not need a request any more. Returns whether the request is
    /// still to be answered.
    #[inline]
    pub(super) fn release(&mut self, id: RequestId) -> bool {
        let relay = self.0.iter_mut().find(|relay| relay.id == id);
        relay.map(|relay| relay.released = true).is_some()
    }

    /// Removes a request that is answered. Returns whether its id is free.
    ///
    /// # Panics
    /// When the request was not added before.
    pub(super) fn end(&mut self, id: RequestId) -> bool {
        let at = self.0.iter().position(|relay| relay.id == id);
        self.0.swap_remove(at.expect("what ends has gone on")).released
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::PartId;

    fn relay(number: usize) -> Downward {
        Downward::Relay(RequestId::new(PartId(0), number))
    }

    #[test]
    fn a_shut_gate_holds_work_back_in_order() {
        let mut gate = IoGate::default();
        assert!(gate.pass(relay(0)).is_some());
        gate.shut();
        assert!(gate.pass(relay(1)).is_none() && gate.pass(relay(2)).is_none());
        assert!(gate.has_held() && !gate.can_go_on());
        assert!(gate.take_held().is_empty(), "it is shut");
        gate.open();
        assert!(gate.can_go_on());
        let numbers = gate.take_held().into_iter().map(|work| match work {
            Downward::Relay(id) => id.number(),
            Downward::Operation { .. } => unreachable!("there are relays only"),
        });
        assert_eq!(numbers.collect::<Vec<_>>(), [1, 2]);
        assert!(!gate.has_held());
    }

    #[test]
    fn a_gate_is_quiet_once_all_that_began_below_has_ended() {
        let mut gate = IoGate::default();
        gate.begun();
        gate.begun();
        gate.shut();
        gate.ended();
        assert!(!gate.is_quiet());
        gate.drained(7, Ok(()));
        assert!(gate.is_shut_and_quiet());
        let mut drained = Vec::new();
        gate.take_drained(&mut drained);
        assert_eq!(drained, [(7, Ok(()))]);
    }
}

#[cfg(test)]
mod relays_tests {
    use super::*;
    use crate::exchange::PartId;
    use crate::geometry::VolumeId;
    use crate::join::RequestKind;

    #[test]
    fn an_id_is_free_after_both_the_answer_and_the_release() {
        let mut relays = Relays::default();
        let flush = Request { volume: VolumeId(0), kind: RequestKind::Flush, offset: 0, len: 0 };
        let [first, second] = [0, 1].map(|number| RequestId::new(PartId(0), number));
        relays.note(first, flush, None);
        relays.note(second, flush, None);
        assert!(relays.release(first), "it is not answered");
        assert!(relays.end(first), "it was released before");
        assert!(!relays.end(second), "this tier still needs it");
        assert!(!relays.release(second), "it has been answered");
        assert!(relays.is_empty());
    }
}
