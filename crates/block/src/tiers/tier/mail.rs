//! Messages between the parts of a tier, and the buffers that come with them.

use crate::cache::BlockCache;
use crate::exchange::{Exchange, Parcel};
use crate::order::Order;
use crate::part::{Message, PartId};
use crate::tiers::tier::buffers::Buffers;

/// Messages handled before the devices are polled again.
const HEARD_AT_ONCE: usize = 64;

/// Passes the messages of other parts to the cache, and keeps the buffers that came with them.
pub(super) fn receive(
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
pub(super) fn send(exchange: &mut Exchange, buffers: &mut Buffers, to: PartId, message: Message) {
    let buffer = match &message {
        Message::Piece(piece) => buffers.lend(piece.request()),
        _ => None,
    };
    if let Some(request) = message.finishes() {
        buffers.piece_finished(request);
    }
    exchange.send(to, Parcel { message, buffer });
}
