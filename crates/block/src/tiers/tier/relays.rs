//! Requests to a tier that may also be for the tier below.
//!
//! A request is noted as it is submitted, and relayed once this tier has done its part. Its client
//! is answered after the last tier. Its id is free only once it was answered *and* this tier has
//! released its buffer, in either order.

use floe_device::Buffer;

use crate::engine::request::{Request, RequestId};

/// The requests of a tier that may be relayed.
#[derive(Debug, Default)]
pub(crate) struct Relays(Vec<Relay>);

#[derive(Debug)]
struct Relay {
    id: RequestId,
    request: Request,
    buffer: Option<Buffer>,
    /// This tier does not need the request any more.
    released: bool,
}

impl Relays {
    /// Returns whether there is none.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether a request may be relayed.
    #[inline]
    pub(super) fn has(&self, id: RequestId) -> bool {
        self.0.iter().any(|relay| relay.id == id)
    }

    /// Notes a request that may have to be relayed.
    pub(super) fn note(&mut self, id: RequestId, request: Request, buffer: Option<Buffer>) {
        self.0.push(Relay { id, request, buffer, released: false });
    }

    /// Returns a request that is to be relayed, with its buffer.
    ///
    /// # Panics
    /// When it was not noted.
    pub(crate) fn take(&mut self, id: RequestId) -> (Request, Option<Buffer>) {
        let relay = self.0.iter_mut().find(|relay| relay.id == id).expect("it has been noted");
        (relay.request, relay.buffer.take())
    }

    /// Notes that this tier does not need a request any more. Returns whether the request is still
    /// to be answered.
    #[inline]
    pub(super) fn release(&mut self, id: RequestId) -> bool {
        let relay = self.0.iter_mut().find(|relay| relay.id == id);
        relay.map(|relay| relay.released = true).is_some()
    }

    /// Forgets a request that is answered. Returns whether its id is free.
    ///
    /// # Panics
    /// When it was not noted.
    pub(super) fn end(&mut self, id: RequestId) -> bool {
        let at = self.0.iter().position(|relay| relay.id == id);
        self.0.swap_remove(at.expect("what ends has gone on")).released
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::request::Kind;
    use crate::geometry::VolumeId;
    use crate::part::PartId;

    #[test]
    fn an_id_is_free_after_both_the_answer_and_the_release() {
        let mut relays = Relays::default();
        let flush = Request { volume: VolumeId(0), kind: Kind::Flush, offset: 0, len: 0 };
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
