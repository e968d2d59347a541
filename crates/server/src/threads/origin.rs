//! Requests of a worker's cache that are under way or about to be, and their askers.

use std::time::Instant;

use floe_block::Request as CacheRequest;
use floe_device::{Buffer, Slice};

use super::messages::Ticket;
use crate::protocol::Request;
use crate::ublk::LocalRequest;

/// Reads that are looked for in memory together: enough for the processor, and few enough that none
/// waits for long.
const LOOKED_FOR_AT_ONCE: usize = 16;

/// The asker of a request of the cache.
#[derive(Debug)]
pub(super) enum Origin {
    Session {
        index: u32,
        request: Request,
        payload: Option<Slice>,
        begun: Instant,
    },
    /// A read whose data is compared with the client's.
    Comparison {
        index: u32,
        request: Request,
        payload: Slice,
        theirs: Slice,
        begun: Instant,
    },
    Local {
        index: usize,
        request: LocalRequest,
        payload: Option<Slice>,
        begun: Instant,
    },
    Command(Ticket),
}

/// The asker of each request of the cache under way, by its number.
#[derive(Debug, Default)]
pub(super) struct Origins(Vec<Option<Origin>>);

impl Origins {
    pub(super) fn put(&mut self, number: usize, origin: Origin) {
        if self.0.len() <= number {
            self.0.resize_with(number + 1, || None);
        }
        self.0[number] = Some(origin);
    }

    pub(super) fn take(&mut self, number: usize) -> Origin {
        self.0[number].take().expect("an answer belongs to a request under way")
    }
}

/// Reads of one client that memory may have. They came in one go, and are looked for together.
#[derive(Debug, Default)]
pub(super) struct LookedFor {
    pub(super) requests: Vec<Request>,
    pub(super) reads: Vec<(CacheRequest, Buffer)>,
    /// As many while they are looked for; empty otherwise.
    pub(super) hits: Vec<bool>,
}

impl LookedFor {
    pub(super) fn push(&mut self, request: Request, wanted: CacheRequest, buffer: Buffer) {
        self.requests.push(request);
        self.reads.push((wanted, buffer));
    }

    pub(super) fn is_full(&self) -> bool {
        self.reads.len() >= LOOKED_FOR_AT_ONCE
    }
}
