//! Sub-requests, messages of other parts, and events of the shards.

use super::BlockCache;
use super::bulk::Bulk;
use super::commits::RouterOp;
use crate::engine::Event;
use crate::engine::join::{Join, Settled};
use crate::engine::request::RequestId;
use crate::order::{BufferId, DeviceId, Order};
use crate::part::{ForeignPiece, Message};

impl BlockCache {
    #[inline]
    pub(super) fn join(&mut self, id: RequestId) -> &mut Join {
        self.joins[id.number()].as_mut().expect("the request is under way")
    }

    /// Submits sub-requests to shards, here or in other parts, until enough are under way. Long
    /// requests take turns.
    pub(super) fn give_out(&mut self, id: RequestId, orders: &mut Vec<Order>) {
        let region = self.config.sizes.largest();
        let join = self.join(id);
        if !Bulk::is_for(join.request.kind) {
            while let Some(piece) = self.join(id).next_piece(id, region) {
                self.shards.give(piece, orders);
            }
            return;
        }
        if !std::mem::replace(&mut join.queued, true) {
            self.bulk.queue(id);
        }
        while let Some(id) = self.bulk.next() {
            // The request may be over, and another one have its number.
            let join = self.joins[id.number()].as_mut().filter(|join| join.queued);
            let Some(join) = join else { continue };
            match join.next_piece(id, region) {
                Some(piece) => {
                    self.bulk.submitted(id);
                    self.shards.give(piece, orders);
                }
                None => join.queued = false, // it queues again when one of its own has finished
            }
        }
    }

    /// Handles the shards' events, and begins the commits that are wanted, until there are no more.
    pub(super) fn handle_events(&mut self, orders: &mut Vec<Order>) {
        loop {
            self.hear_shards(orders);
            if self.commits.is_bypassed() {
                self.drains.go_on_without_journal(&mut self.shards, &mut self.commits, orders);
                self.hear_shards(orders);
            }
            if !self.config.kept {
                return;
            }
            // a failed commit can cause the next
            let Some(ended) = self.commits.begin(&mut self.shards, orders) else { return };
            self.drains.go_on(ended, &self.shards, &mut self.commits);
        }
    }

    /// Handles the events of shards and drains until there are none: handling one shard's events
    /// may stir another.
    fn hear_shards(&mut self, orders: &mut Vec<Order>) {
        loop {
            if let Some(shard) = self.shards.next_stirred() {
                let spare = std::mem::take(&mut self.events);
                let mut events = std::mem::replace(&mut shard.parts.events, spare);
                self.hear(&mut events, orders);
                self.events = events;
            } else if let Some((request, result)) = self.drains.take_ended() {
                self.tell(Message::Drained { request, result }, request, orders);
            } else {
                return;
            }
        }
    }

    /// Handles a shard's events.
    fn hear(&mut self, events: &mut Vec<Event>, orders: &mut Vec<Order>) {
        let mut rest = events.drain(..).peekable();
        while let Some(event) = rest.next() {
            match event {
                Event::Answered { request, result, hit } => {
                    let finished = rest.next_if_eq(&Event::Finished { request }).is_some();
                    let message = Message::Answered { request, result, hit, finished };
                    self.tell(message, request, orders);
                }
                Event::Finished { request } => {
                    self.tell(Message::Finished { request }, request, orders);
                }
                Event::WantsCommit => {
                    self.commits.want();
                }
                Event::WantsSettlement(volume) => {
                    self.commits.want_settlement(volume);
                }
                Event::Drained { drain, result } => {
                    self.drains.drained(RequestId(drain), result, &self.shards, &mut self.commits);
                }
            }
        }
    }

    /// Sends a message to the part that owns a request, which may be this one.
    #[inline]
    pub(super) fn tell(&mut self, message: Message, request: RequestId, orders: &mut Vec<Order>) {
        let to = request.part();
        if to == self.shards.part {
            self.heard(message, orders)
        } else {
            orders.push(Order::Send { to, message })
        }
    }

    pub(super) fn heard(&mut self, message: Message, orders: &mut Vec<Order>) {
        match message {
            Message::Piece(ForeignPiece(piece)) => {
                let shard = self.shards.number_of(piece.volume, piece.sectors.start);
                self.shards.submit(shard, piece, orders);
            }
            Message::FetchAhead { volume, sectors, stream } => {
                let shard = self.shards.number_of(volume, sectors.start);
                self.shards.at(shard).fetch_ahead(volume, sectors, stream, orders);
            }
            Message::Drain { request, volume, to_backing } => {
                let (shards, commits) = (&mut self.shards, &self.commits);
                self.drains.begin(request, volume, to_backing, shards, commits, orders);
            }
            Message::Answered { request, result, hit, finished } => {
                self.join(request).answered(result, hit);
                if finished {
                    return self.heard(Message::Finished { request }, orders);
                }
                self.settle(request, orders);
            }
            Message::Finished { request } => {
                let join = self.join(request);
                join.finished();
                let kind = join.request.kind;
                self.bulk.finished(kind);
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
                orders.push(Order::Answer { request: id, result, hit: hit && result.is_ok() });
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
