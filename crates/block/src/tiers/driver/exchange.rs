//! Messages of other parts, and the buffers that come with them.

use super::Driver;
use crate::exchange::{Exchange, Parcel, Traffic};
use crate::part::{Message, PartId};
use floe_device::Buffer;

/// Messages handled before the devices are polled again.
const HEARD_AT_ONCE: usize = 64;

/// A buffer that another part has lent for sub-requests of its request.
pub(super) struct Guest {
    pub(super) buffer: Buffer,
    /// Sub-requests here that have not finished.
    pieces: u32,
}

impl Driver {
    /// Returns this tier's queues to the other parts. Those of the tiers below ring the same
    /// [`Bell`](crate::Bell).
    pub fn exchange(&self) -> Option<&Exchange> {
        self.exchange.as_ref()
    }

    /// Returns whether a message of another part waits to be received, in any tier.
    pub fn has_mail(&self) -> bool {
        self.tiers().filter_map(Self::exchange).any(|exchange| !exchange.is_empty())
    }

    /// Returns the counts of messages sent to other parts, in all tiers.
    pub fn traffic(&self) -> Traffic {
        self.tiers().filter_map(Self::exchange).map(Exchange::traffic).sum()
    }

    /// Passes the messages of other parts to the cache, and keeps the buffers that came with them.
    pub(super) fn hear(&mut self) {
        let Some(exchange) = &mut self.exchange else { return };
        for _ in 0..HEARD_AT_ONCE {
            let Some(Parcel { message, buffer }) = exchange.receive() else { return };
            if let (Message::Piece(piece), Some(buffer)) = (&message, buffer) {
                let request = piece.request();
                let (part, number) = (request.part().0 as usize, request.number());
                self.guests.resize_with(self.guests.len().max(part + 1), Vec::new);
                let guests = &mut self.guests[part];
                guests.resize_with(guests.len().max(number + 1), || None);
                guests[number]
                    .get_or_insert_with(|| Guest { buffer: buffer.attach(), pieces: 0 })
                    .pieces += 1;
            }
            self.cache.received(message, &mut self.orders);
        }
    }

    /// Sends a message, with the buffer of a sub-request. Releases a lent buffer once no
    /// sub-request uses it.
    pub(super) fn send(&mut self, to: PartId, message: Message) {
        let buffer = match &message {
            Message::Piece(piece) => {
                self.requests[piece.request().number()].as_ref().map(Buffer::lend)
            }
            _ => None,
        };
        if let Some(request) = message.finishes() {
            let place = self.guests.get_mut(request.part().0 as usize);
            // Requests that move no data have lent no buffer.
            if let Some(place) = place.and_then(|guests| guests.get_mut(request.number()))
                && let Some(guest) = place
            {
                guest.pieces -= 1;
                if guest.pieces == 0 {
                    *place = None;
                }
            }
        }
        let exchange = self.exchange.as_mut().expect("other parts are reached by an exchange");
        exchange.send(to, Parcel { message, buffer });
    }
}
