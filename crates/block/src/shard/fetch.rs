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

use super::Shard;
use crate::engine::locks::TaskId;
use crate::engine::{Offer, Work, units};
use crate::geometry::{BlockSizes, SECTOR_BYTES, Sectors, VolumeId};
use crate::mapping::directory::Block;
use crate::order::Order;

/// Most fetches under way at once, and most that wait; further ones are discarded.
const FETCHED_AT_ONCE: usize = 8;
const MOST_FETCHES: usize = 1024;

/// A run to be fetched.
#[derive(Debug, Clone)]
struct Fetch {
    volume: VolumeId,
    run: Sectors,
    /// Start of the stream that it continues; `None` where the admission ordered it.
    stream: Option<u64>,
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

    /// Notes the end of a fetch.
    pub(crate) fn ended(&mut self) {
        self.under_way -= 1;
    }

    fn push(&mut self, fetch: Fetch) {
        if self.waiting.len() < MOST_FETCHES {
            self.waiting.push_back(fetch);
        }
    }
}

impl Shard {
    /// Fetches a run of a region that continues a stream, before it is asked for.
    pub(crate) fn fetch_ahead(
        &mut self,
        volume: VolumeId,
        run: Sectors,
        stream: u64,
        orders: &mut Vec<Order>,
    ) {
        if self.mode().caches_reads() {
            self.fetches.push(Fetch { volume, run, stream: Some(stream) });
            self.run_ready(orders);
        }
    }

    /// Begins the next fetch, if one may begin; returns whether there was one to handle.
    pub(super) fn start_fetch(&mut self, orders: &mut Vec<Order>) -> bool {
        if self.fetches.under_way >= FETCHED_AT_ONCE {
            return false;
        }
        let Some(Fetch { volume, run, stream }) = self.fetches.waiting.pop_front() else {
            return false;
        };
        let run = self.within_volume(volume, &run);
        if run.start >= run.end || self.admission.withholds() && self.directory.is_full() {
            return true;
        }
        if stream.is_none() {
            self.counters.ordered_blocks +=
                units(&run, self.config.sizes.smallest()).count() as u64;
        }
        self.fetches.under_way += 1;
        let id = self.tasks.begin(Work::Fetch, volume, run);
        let task = &mut self.tasks[id];
        task.stream = stream;
        if stream.is_none() {
            task.offer = Offer::Admitted;
        }
        self.start_read(id, orders);
        true
    }

    /// Counts a run that a task reads from the backing device for the cache.
    pub(super) fn note_fetch(&mut self, id: TaskId, run: &Sectors) {
        if self.tasks[id].is_ahead() {
            self.counters.prefetched_blocks +=
                units(run, self.config.sizes.smallest()).count() as u64;
            self.counters.prefetched_bytes += (run.end - run.start) * SECTOR_BYTES;
        }
    }

    /// Marks a run that a task has put into a block as fetched ahead or not.
    pub(super) fn note_origin(&mut self, id: TaskId, block: Block, run: &Sectors) {
        let ahead = self.tasks[id].is_ahead();
        self.directory.set_ahead(block, run, ahead);
    }

    /// Counts a client's first read of a run that was fetched ahead.
    pub(super) fn note_used(&mut self, block: Block, run: &Sectors) {
        self.counters.prefetched_used_blocks += self.directory.take_ahead(block, run);
    }

    /// Counts a client's read of a run that a fetch is still putting into the cache.
    pub(super) fn note_used_early(&mut self, holder: TaskId, run: &Sectors) {
        if !self.tasks[holder].is_ahead() {
            return;
        }
        let (volume, mut start) = (self.tasks[holder].volume, run.start);
        while start < run.end {
            let Some(block) = self.directory.find(volume, start) else { return };
            let end = self.directory.sectors(block).end.min(run.end);
            self.note_used(block, &(start..end));
            start = end;
        }
    }
}
