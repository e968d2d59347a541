//! A worker's queues of local block devices: requests of the kernel to the cache, and the answers
//! back.

use std::time::Instant;

use floe_block::{Driver, Fault, Kind};
use floe_device::{Buffer, Slice};

use super::locals::Waiting;
use super::origin::Origin;
use super::worker::Worker;
use crate::ublk::{LocalQueue, LocalRequest, QueueOrder};

impl Worker {
    /// Begins to serve a queue, and tells the thread that waits for that.
    pub(super) fn serve_queue(&mut self, order: QueueOrder) {
        let begun = LocalQueue::begin(&self.ring, &order);
        // The rest is for what the cache itself moves.
        let most_bytes = self.common.pool.stats().arena_bytes as u64 / 4;
        let told = begun.map(|queue| {
            self.locals.insert(queue, usize::from(order.depth), most_bytes);
        });
        let _ = order.begun.send(told); // it may have given up
    }

    /// Takes in the requests of all queues, and begins those for which there is memory.
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
                arrived.drain(..).for_each(|request| self.locals.push(index, request, now));
            }
            self.locals.arrived = arrived;
        }
        // Reads that memory has end at once, and leave their memory to others.
        while self.locals.has_ready() {
            while let Some(next) = self.locals.next() {
                self.begin_local(next);
            }
            self.look_in_memory_for_local();
        }
    }

    fn begin_local(&mut self, next: Waiting) {
        let Waiting { index, request, arrived } = next;
        let wanted = request.wanted;
        if wanted.buffer_bytes() == 0 {
            return self.submit_local(next, None, None);
        }
        let buffer = self.driver.buffer(&wanted);
        let payload = <Driver>::payload(&wanted, &buffer);
        if wanted.kind != Kind::Read {
            match self.locals.queue(index).take_data(request.tag, &payload) {
                Ok(()) => self.submit_local(next, Some(buffer), None),
                Err(fault) => self.complete_local(index, &request, Err(fault), arrived, false),
            }
        } else if self.driver.top().has_memory() {
            self.locals.asked.push(next);
            self.locals.reads.push((wanted, buffer));
        } else {
            self.submit_local(next, Some(buffer), Some(payload));
        }
    }

    /// Completes the reads that memory has, on this thread and in this turn; the rest goes on to
    /// the cache.
    fn look_in_memory_for_local(&mut self) {
        if self.locals.reads.is_empty() {
            return;
        }
        let now = Instant::now();
        let mut reads = std::mem::take(&mut self.locals.reads);
        let mut asked = std::mem::take(&mut self.locals.asked);
        let mut hits = std::mem::take(&mut self.locals.hits);
        hits.resize(reads.len(), false);
        self.driver.top_mut().read_memory(&reads, &mut hits);
        for ((next, (wanted, buffer)), hit) in
            asked.drain(..).zip(reads.drain(..)).zip(hits.drain(..))
        {
            let payload = <Driver>::payload(&wanted, &buffer);
            if hit {
                self.tally.found_in_memory(now.elapsed());
                self.complete_local(
                    next.index,
                    &next.request,
                    Ok(Some(payload)),
                    next.arrived,
                    true,
                );
            } else {
                self.submit_local(next, Some(buffer), Some(payload));
            }
        }
        (self.locals.reads, self.locals.asked, self.locals.hits) = (reads, asked, hits);
    }

    fn submit_local(&mut self, next: Waiting, buffer: Option<Buffer>, payload: Option<Slice>) {
        let Waiting { index, request, arrived: begun } = next;
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
        hit: bool,
    ) {
        let wanted = request.wanted;
        self.note(&wanted, begun.elapsed(), result.is_ok(), hit);
        self.locals.ended(request);
        self.locals.queue(index).complete(request, result);
    }
}
