//! Sub-requests, messages of other parts, and events of the shards.

use super::BlockCache;
use super::commits::RouterOp;
use crate::engine::Event;
use crate::engine::join::{Join, Settled};
use crate::engine::piece::Piece;
use crate::engine::request::{Fault, RequestId};
use crate::geometry::VolumeId;
use crate::order::{BufferId, DeviceId, Order};
use crate::part::{ForeignPiece, Message, PartId};

impl BlockCache {
    #[inline]
    pub(super) fn join(&mut self, id: RequestId) -> &mut Join {
        self.joins[id.number()].as_mut().expect("the request is under way")
    }

    /// Submits sub-requests to shards, here or in other parts, until enough are under way.
    pub(super) fn give_out(&mut self, id: RequestId, orders: &mut Vec<Order>) {
        let region = self.config.sizes.largest();
        while let Some(piece) = self.join(id).next_piece(id, region) {
            let shard = self.shard_of(piece.volume, piece.sectors.start);
            let owner = PartId((shard % self.parts as u64) as u8);
            if owner == self.part {
                self.serve(piece, shard, orders);
            } else {
                orders
                    .push(Order::Send { to: owner, message: Message::Piece(ForeignPiece(piece)) });
            }
        }
    }

    /// Returns the number of the shard that a sector belongs to.
    #[inline]
    pub(super) fn shard_of(&self, volume: VolumeId, sector: u64) -> u64 {
        (self.config.sizes.region(volume, sector).hash() >> 32) % self.all_shards
    }

    /// Submits a sub-request to one of this part's shards.
    #[inline]
    pub(super) fn serve(&mut self, piece: Piece, shard: u64, orders: &mut Vec<Order>) {
        let here = shard as usize / self.parts;
        self.shards[here].submit(piece, orders);
        self.stirred |= 1 << here;
    }

    /// Handles the shards' events, and begins the commits that are wanted, until there are no more.
    pub(super) fn handle_events(&mut self, orders: &mut Vec<Order>) {
        loop {
            self.hear_shards(orders);
            if self.commits.bypass.is_some() {
                self.drains_without_journal(orders);
                self.hear_shards(orders);
            }
            if !self.config.kept || !self.begin_commits(orders) {
                return; // a failed commit can cause the next
            }
        }
    }

    /// Handles the shards' events until there are none: handling one shard's events may stir
    /// another.
    pub(super) fn hear_shards(&mut self, orders: &mut Vec<Order>) {
        while self.stirred != 0 {
            let stirred = self.stirred.trailing_zeros() as usize;
            self.stirred &= self.stirred - 1;
            let Some(shard) = self.shards.get_mut(stirred) else { continue };
            let mut events = std::mem::replace(&mut shard.events, std::mem::take(&mut self.events));
            let mut rest = events.drain(..).peekable();
            while let Some(event) = rest.next() {
                match event {
                    Event::Answered { request, result, hit } => {
                        let finished = rest.next_if_eq(&Event::Finished { request }).is_some();
                        self.tell(
                            Message::Answered { request, result, hit, finished },
                            request,
                            orders,
                        );
                    }
                    Event::Finished { request } => {
                        self.tell(Message::Finished { request }, request, orders)
                    }
                    Event::WantsCommit => {
                        self.commits.want();
                    }
                    Event::WantsSettlement(volume) => {
                        self.commits.want_settlement(volume);
                    }
                    Event::Drained { drain, result } => {
                        self.drained(RequestId(drain), result, orders)
                    }
                }
            }
            drop(rest);
            self.events = events;
        }
    }

    /// Handles the end of a request's flush of the backing device.
    pub(super) fn request_flushed(
        &mut self,
        request: u32,
        result: Result<(), Fault>,
        orders: &mut Vec<Order>,
    ) {
        let id = RequestId(request);
        self.join(id).answered(result, true);
        self.settle(id, orders);
    }

    /// Sends a message to the part that owns a request, which may be this one.
    #[inline]
    pub(super) fn tell(&mut self, message: Message, request: RequestId, orders: &mut Vec<Order>) {
        let to = request.part();
        if to == self.part {
            self.heard(message, orders)
        } else {
            orders.push(Order::Send { to, message })
        }
    }

    pub(super) fn heard(&mut self, message: Message, orders: &mut Vec<Order>) {
        match message {
            Message::Piece(ForeignPiece(piece)) => {
                let shard = self.shard_of(piece.volume, piece.sectors.start);
                self.serve(piece, shard, orders);
            }
            Message::FetchAhead { volume, sectors, stream } => {
                let here = self.shard_of(volume, sectors.start) as usize / self.parts;
                self.shards[here].fetch_ahead(volume, sectors, stream, orders);
                self.stirred |= 1 << here;
            }
            Message::Drain { request, volume, to_backing } => {
                self.drain(request, volume, to_backing, orders);
            }
            Message::Answered { request, result, hit, finished } => {
                self.join(request).answered(result, hit);
                if finished {
                    self.join(request).finished();
                    self.give_out(request, orders);
                }
                self.settle(request, orders);
            }
            Message::Finished { request } => {
                self.join(request).finished();
                self.give_out(request, orders);
                self.settle(request, orders);
            }
            Message::Drained { request, result } => {
                self.join(request).answered(result, true);
                self.settle(request, orders);
            }
        }
    }

    /// Answers a request whose sub-requests all have answers, and removes it when none of them uses
    /// its buffer any more.
    pub(super) fn settle(&mut self, id: RequestId, orders: &mut Vec<Order>) {
        let Some(join) = self.joins[id.number()].as_mut() else { return };
        let over = match join.settle() {
            Settled::Not => return,
            Settled::Flush => {
                let op = RouterOp::Request(id.0).op();
                let device = DeviceId::Backing(join.request.volume);
                return orders.push(Order::Flush { op, device });
            }
            Settled::Answer { result, over } => {
                let (request, hit) = (join.request, join.hit);
                orders.push(Order::Answer { request: id, result });
                self.requests.count(&request, hit, result);
                over
            }
            Settled::Over => true,
        };
        if over {
            self.joins[id.number()] = None;
            orders.push(Order::Release { buffer: BufferId::Request(id) });
        }
    }
}
