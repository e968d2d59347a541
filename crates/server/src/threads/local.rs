//! A worker's queues of local block devices: requests of the kernel to the cache, and the answers
//! back.

use std::time::Instant;

use floe_block::{Driver, Fault, Kind};
use floe_device::{Buffer, Slice};

use super::origin::Origin;
use super::worker::Worker;
use crate::status::Operation;
use crate::ublk::{LocalQueue, LocalRequest, QueueOrder};

impl Worker {
    /// Begins to serve a queue, and tells the thread that waits for that.
    pub(super) fn serve_queue(&mut self, order: QueueOrder) {
        let begun = LocalQueue::begin(&self.ring, &order);
        let told = begun.map(|queue| {
            self.locals.insert(queue);
        });
        let _ = order.begun.send(told); // it may have given up
    }

    /// Takes in the requests of all queues.
    pub(super) fn take_local(&mut self) {
        for index in 0..self.locals.queues.len() {
            let Some(queue) = &mut self.locals.queues[index] else { continue };
            let mut arrived = std::mem::take(&mut self.locals.arrived);
            queue.poll(&mut arrived);
            if queue.is_over() && queue.is_quiet() {
                self.locals.queues[index] = None;
            }
            if !arrived.is_empty() {
                let now = Instant::now();
                arrived.drain(..).for_each(|request| self.begin_local(index, request, now));
                self.look_in_memory_for_local(index, now);
            }
            self.locals.arrived = arrived;
        }
    }

    fn begin_local(&mut self, index: usize, request: LocalRequest, now: Instant) {
        let wanted = request.wanted;
        if wanted.buffer_bytes() == 0 {
            return self.submit_local(index, request, None, None, now);
        }
        let buffer = self.driver.buffer(&wanted);
        let payload = <Driver>::payload(&wanted, &buffer);
        if wanted.kind != Kind::Read {
            match self.locals.queue(index).take_data(request.tag, &payload) {
                Ok(()) => self.submit_local(index, request, Some(buffer), None, now),
                Err(fault) => self.complete_local(index, &request, Err(fault), now),
            }
        } else if self.driver.has_memory() {
            self.locals.tags.push(request);
            self.locals.reads.push((wanted, buffer));
        } else {
            self.submit_local(index, request, Some(buffer), Some(payload), now);
        }
    }

    /// Completes the reads that memory has, on this thread and in this turn; the rest goes on to
    /// the cache.
    fn look_in_memory_for_local(&mut self, index: usize, now: Instant) {
        let mut reads = std::mem::take(&mut self.locals.reads);
        let mut tags = std::mem::take(&mut self.locals.tags);
        let mut hits = std::mem::take(&mut self.locals.hits);
        hits.resize(reads.len(), false);
        self.driver.read_memory(&reads, &mut hits);
        for ((request, (wanted, buffer)), hit) in
            tags.drain(..).zip(reads.drain(..)).zip(hits.drain(..))
        {
            let payload = <Driver>::payload(&wanted, &buffer);
            if hit {
                self.tally.from_memory += now.elapsed();
                self.complete_local(index, &request, Ok(Some(payload)), now);
            } else {
                self.submit_local(index, request, Some(buffer), Some(payload), now);
            }
        }
        (self.locals.reads, self.locals.tags, self.locals.hits) = (reads, tags, hits);
    }

    fn submit_local(
        &mut self,
        index: usize,
        request: LocalRequest,
        buffer: Option<Buffer>,
        payload: Option<Slice>,
        begun: Instant,
    ) {
        let origin = Origin::Local { index, request, payload, begun };
        self.submit_for(origin, request.wanted, buffer);
    }

    /// Completes a request of the kernel, and counts it.
    pub(super) fn complete_local(
        &mut self,
        index: usize,
        request: &LocalRequest,
        result: Result<Option<Slice>, Fault>,
        begun: Instant,
    ) {
        let wanted = request.wanted;
        let operation = Operation::of(wanted.kind);
        let (volume, latency) = (wanted.volume, begun.elapsed());
        self.tally.answered(volume, operation, wanted.len, latency, result.is_ok());
        self.locals.queue(index).complete(request, result);
    }
}
