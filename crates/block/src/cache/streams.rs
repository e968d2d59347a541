//! Client streams, tracked above the shards: each shard sees some regions only, and would lose a
//! stream at the end of each.
//!
//! Each part tracks the requests that were submitted to it, in smallest blocks, whether they hit or
//! not. The start of the stream is passed with the sub-requests, for the admission and the policy.
//! If the policy wants it, the continuation of the stream is fetched without a waiting client. The
//! fetches go to the shards that own the sectors, here or in other parts; those of one region go
//! together.
//!
//! Limits: a stream over several connections is not recognized if the connections belong to
//! different threads. Requests answered by a tier above are not seen at all.

use floe_policy::admission::Admission;
use floe_policy::streams::Streams;

use super::BlockCache;
use crate::config::Config;
use crate::exchange::Message;
use crate::geometry::{BlockSizes, Place, SECTOR_BYTES, Sectors};
use crate::join::{Request, RequestKind};
use crate::order::Order;

#[derive(Debug)]
pub(super) struct Followed {
    streams: Streams,
    /// The length of a stream, in smallest blocks, from which its continuation is fetched; `None`
    /// for never.
    fetches_from: Option<u64>,
}

impl Followed {
    /// Creates the state for a cache; `None` where no policy needs streams.
    pub(super) fn new(config: &Config) -> Option<Box<Self>> {
        let fetches_from = config.evict.fetches_ahead().filter(|_| config.mode.caches_reads());
        let wanted = fetches_from.is_some() || config.gate.admission.needs().streams;
        wanted.then(|| Box::new(Self { streams: Streams::default(), fetches_from }))
    }

    /// Adds a read or write to the stream it continues, and returns the sector at which the stream
    /// began.
    pub(super) fn follow(&mut self, sizes: &BlockSizes, request: &Request) -> Option<u64> {
        if !matches!(request.kind, RequestKind::Read | RequestKind::Write { .. })
            || request.len == 0
        {
            return None;
        }
        let unit = sizes.smallest();
        let end = (request.offset + request.len).div_ceil(SECTOR_BYTES);
        let sectors = sizes.round_out(&(request.offset / SECTOR_BYTES..end));
        let number = |sector| Place::new(request.volume, sector).number() / unit;
        let begun = self.streams.follow(&(number(sectors.start)..number(sectors.end)));
        Some(Place::of_number(begun * unit).sector())
    }

    /// Returns the sectors to fetch after the read that was followed last, if that is part of a
    /// stream. They may reach beyond the volume.
    fn ahead(&mut self, sizes: &BlockSizes) -> Option<Sectors> {
        let ahead = self.streams.ahead(self.fetches_from?)?;
        // Numbers of places do not overflow into the next volume: that begins beyond any volume's
        // end.
        let unit = sizes.smallest();
        let first = Place::of_number(ahead.start * unit).sector();
        Some(first..first + (ahead.end - ahead.start) * unit)
    }
}

impl BlockCache {
    /// Fetches the continuation of the read that was followed last, if that is part of a stream.
    pub(super) fn fetch_ahead(&mut self, request: &Request, stream: u64, orders: &mut Vec<Order>) {
        let followed = self.followed.as_deref_mut().filter(|_| request.kind == RequestKind::Read);
        let Some(ahead) = followed.and_then(|followed| followed.ahead(&self.config.sizes)) else {
            return;
        };
        let volume = request.volume;
        let end = ahead.end.min(self.volumes.bytes(volume).unwrap_or(0).div_ceil(SECTOR_BYTES));
        let mut start = ahead.start;
        while start < end {
            let next = (start + 1).next_multiple_of(self.config.sizes.largest()).min(end);
            let message = Message::FetchAhead { volume, sectors: start..next, stream };
            match self.shards.owner(self.shards.number_of(volume, start)) {
                here if here == self.shards.part => self.heard(message, orders),
                to => orders.push(Order::Send { to, message }),
            }
            start = next;
        }
    }
}
