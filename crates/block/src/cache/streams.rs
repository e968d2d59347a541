//! Streams of clients, followed above the shards: each shard sees some regions only, and would lose
//! a stream at the end of each.
//!
//! Each part follows the requests that were submitted to it, in smallest blocks, whether they hit
//! or not. The start of the stream is passed with the sub-requests, for the admission and the
//! policy. If the policy wants it, the continuation of the stream is fetched without a waiting
//! client. The fetches go to the shards that own the sectors, here or in other parts; those of one
//! region go together.
//!
//! Limits: the requests of a stream over several connections are not seen as one, if these are in
//! different threads. Requests answered by a tier above are not seen at all.

use floe_policy::admission::Admission;
use floe_policy::streams::Streams;

use super::BlockCache;
use crate::config::Config;
use crate::engine::request::{Kind, Request};
use crate::geometry::{Place, SECTOR_BYTES, Sectors};
use crate::order::Order;
use crate::part::{Message, PartId};

/// The streams that a part follows.
#[derive(Debug)]
pub(super) struct Followed {
    streams: Streams,
    /// The length, in smallest blocks, from which a stream's continuation is fetched.
    fetches_from: Option<u64>,
}

impl Followed {
    /// Returns the state for a cache; `None` where no policy needs streams.
    pub(super) fn new(config: &Config) -> Option<Box<Self>> {
        let fetches_from = config.evict.fetches_ahead().filter(|_| config.mode.caches_reads());
        let wanted = fetches_from.is_some() || config.gate.admission.needs().streams;
        wanted.then(|| Box::new(Self { streams: Streams::default(), fetches_from }))
    }
}

impl BlockCache {
    /// Follows the stream of a read or write, and returns the sector at which it began.
    pub(super) fn follow(&mut self, request: &Request) -> Option<u64> {
        let followed = self.followed.as_deref_mut()?;
        if !matches!(request.kind, Kind::Read | Kind::Write { .. }) || request.len == 0 {
            return None;
        }
        let unit = self.config.sizes.smallest();
        let end = (request.offset + request.len).div_ceil(SECTOR_BYTES);
        let sectors = self.config.sizes.round_out(&(request.offset / SECTOR_BYTES..end));
        let number = |sector| Place::new(request.volume, sector).number() / unit;
        let begun = followed.streams.follow(&(number(sectors.start)..number(sectors.end)));
        Some(Place::of_number(begun * unit).sector())
    }

    /// Fetches the continuation of a read, which was followed last, if it is part of a stream.
    pub(super) fn fetch_ahead(&mut self, request: &Request, stream: u64, orders: &mut Vec<Order>) {
        let Some(followed) = self.followed.as_deref_mut().filter(|_| request.kind == Kind::Read)
        else {
            return;
        };
        let Some(ahead) = followed.fetches_from.and_then(|from| followed.streams.ahead(from))
        else {
            return;
        };
        let volume_sectors = self.volumes.bytes(request.volume).unwrap_or(0).div_ceil(SECTOR_BYTES);
        let (unit, region) = (self.config.sizes.smallest(), self.config.sizes.largest());
        // Numbers of places do not overflow into the next volume: that begins beyond any volume's
        // end.
        let first = Place::of_number(ahead.start * unit).sector();
        let end = (first + (ahead.end - ahead.start) * unit).min(volume_sectors);
        let mut start = first;
        while start < end {
            let next = (start + 1).next_multiple_of(region).min(end);
            self.fetch_run_ahead(request, start..next, stream, orders);
            start = next;
        }
    }

    fn fetch_run_ahead(
        &mut self,
        request: &Request,
        sectors: Sectors,
        stream: u64,
        orders: &mut Vec<Order>,
    ) {
        let shard = self.shard_of(request.volume, sectors.start);
        let owner = PartId((shard % self.parts as u64) as u8);
        let message = Message::FetchAhead { volume: request.volume, sectors, stream };
        if owner == self.part {
            self.heard(message, orders)
        } else {
            orders.push(Order::Send { to: owner, message })
        }
    }
}
