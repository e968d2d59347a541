//! Fetches that no client waits for: those ordered by the admission, and the continuation of a
//! stream.
//!
//! A fetch becomes a task like a client's prefetch, and begins when fewer than [`FETCHED_AT_ONCE`]
//! are under way. Waiting fetches beyond a bound are discarded. A fetch is cut to the current size
//! of its volume when it begins. The continuation of a stream (the router follows streams,
//! `cache/streams.rs`) is offered to the admission as a read is. The directory marks it, so that
//! the share that is used later can be counted. As with every fetch, a block is evicted for it only
//! once its data has arrived.

use std::collections::VecDeque;

use crate::geometry::{BlockSizes, Sectors, VolumeId};

/// Most fetches under way at once, and most that wait; further ones are discarded.
const FETCHED_AT_ONCE: usize = 8;
const MOST_FETCHES: usize = 1024;

/// A run to be fetched.
#[derive(Debug, Clone)]
pub(crate) struct Fetch {
    pub(crate) volume: VolumeId,
    pub(crate) run: Sectors,
    /// Start of the stream that it continues; `None` where the admission ordered it.
    pub(crate) stream: Option<u64>,
}

/// The fetches of a shard.
#[derive(Debug, Default)]
pub(crate) struct Fetches {
    waiting: VecDeque<Fetch>,
    under_way: usize,
}

impl Fetches {
    /// Adds a smallest block that the admission orders. Neighbours within a region are fetched
    /// together.
    pub(crate) fn order(&mut self, volume: VolumeId, start: u64, sizes: &BlockSizes) {
        let end = start + sizes.smallest();
        if let Some(last) = self.waiting.back_mut()
            && (last.volume, last.run.end, last.stream) == (volume, start, None)
            && !start.is_multiple_of(sizes.largest())
        {
            last.run.end = end;
        } else {
            self.push(Fetch { volume, run: start..end, stream: None });
        }
    }

    /// Returns whether a fetch may begin.
    #[inline]
    pub(crate) fn has_next(&self) -> bool {
        !self.waiting.is_empty() && self.under_way < FETCHED_AT_ONCE
    }

    /// Returns the next fetch, if one may begin.
    pub(crate) fn next(&mut self) -> Option<Fetch> {
        if self.has_next() { self.waiting.pop_front() } else { None }
    }

    /// Notes that a fetch begins.
    pub(crate) fn begun(&mut self) {
        self.under_way += 1;
    }

    /// Notes the end of a fetch.
    pub(crate) fn ended(&mut self) {
        self.under_way -= 1;
    }

    /// Adds a fetch.
    pub(crate) fn push(&mut self, fetch: Fetch) {
        if self.waiting.len() < MOST_FETCHES {
            self.waiting.push_back(fetch);
        }
    }
}
