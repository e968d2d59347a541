//! Streams of clients, followed above the shards: each shard sees some regions only, and would lose
//! a stream at the end of each.
//!
//! Each part follows the requests that were submitted to it, in smallest blocks, whether they hit
//! or not. Where the stream began travels with the pieces of a request, for the admission and the
//! policy; what comes next, if the policy wants it, goes to the shards that it belongs to, here or
//! in other parts, as fetches that nobody waits for. Those of one region go together.
//!
//! Not to be expected: that the requests of a stream that come over several connections are seen as
//! one, if these are in different threads; and that what a tier above has answered is seen at all.

use floe_policy::admission::Admission;
use floe_policy::streams::Streams;

use super::{BlockCache, Config};
use crate::geometry::{Place, SECTOR_BYTES, Sectors};
use crate::order::Order;
use crate::part::{Message, PartId};
use crate::request::{Kind, Request};

/// What a part knows of streams.
#[derive(Debug)]
pub(super) struct Followed {
    streams: Streams,
    /// From how many smallest blocks on what comes next is fetched.
    fetches_from: Option<u64>,
}

impl Followed {
    /// Of a cache; `None` where nobody looks at streams.
    pub(super) fn new(config: &Config) -> Option<Box<Self>> {
        let fetches_from = config.evict.fetches_ahead().filter(|_| config.mode.caches_reads());
        let wanted = fetches_from.is_some() || config.gate.admission.needs().streams;
        wanted.then(|| Box::new(Self { streams: Streams::default(), fetches_from }))
    }
}

impl BlockCache {
    /// Follows the stream of a read or write, and answers the sector at which it began.
    pub(super) fn follow(&mut self, request: &Request) -> Option<u64> {
        let followed = self.followed.as_deref_mut()?;
        if !matches!(request.kind, Kind::Read | Kind::Write { .. }) || request.len == 0 {
            return None;
        }
        let unit = self.sizes.smallest();
        let end = (request.offset + request.len).div_ceil(SECTOR_BYTES);
        let sectors = self.sizes.round_out(&(request.offset / SECTOR_BYTES..end));
        let number = |sector| Place::new(request.volume, sector).number() / unit;
        let begun = followed.streams.follow(&(number(sectors.start)..number(sectors.end)));
        Some(Place::of_number(begun * unit).sector())
    }

    /// Has what comes after a read, which was followed last, fetched, if it is part of a stream.
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
        let (unit, region) = (self.sizes.smallest(), self.sizes.largest());
        // Numbers of places do not run over into the next volume: that begins beyond any volume's
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
