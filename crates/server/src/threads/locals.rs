//! The queues of local block devices that a worker serves.
//!
//! Requests that have arrived wait here until those under way leave memory for them: the memory of
//! requests is set aside at the start, and a server that took more could wait for the kernel, which
//! may wait for the server's device.

use std::collections::VecDeque;
use std::time::Instant;

use floe_block::{Request, VolumeId};
use floe_device::Buffer;

use crate::ublk::{LocalQueue, LocalRequest};

/// The queues that a worker serves, by their numbers here.
#[derive(Debug, Default)]
pub(super) struct Locals {
    pub(super) queues: Vec<Option<LocalQueue>>,
    /// Empty between queues.
    pub(super) arrived: Vec<LocalRequest>,
    /// Requests that have not begun, oldest first, with their queues.
    waiting: VecDeque<Waiting>,
    /// The memory of those under way, and the most it may be.
    used_bytes: u64,
    most_bytes: u64,
    /// Empty between turns.
    pub(super) reads: Vec<(Request, Buffer)>,
    pub(super) asked: Vec<Waiting>,
    pub(super) hits: Vec<bool>,
}

/// A request, its queue, and its arrival.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waiting {
    pub(super) index: usize,
    pub(super) request: LocalRequest,
    pub(super) arrived: Instant,
}

impl Locals {
    /// Adds a queue at a free place. `depth` is the most requests that it has under way, and
    /// `most_bytes` the memory for those of all queues.
    pub(super) fn insert(&mut self, queue: LocalQueue, depth: usize, most_bytes: u64) {
        match self.queues.iter().position(Option::is_none) {
            Some(free) => self.queues[free] = Some(queue),
            None => self.queues.push(Some(queue)),
        }
        self.most_bytes = most_bytes;
        // Serving allocates nothing.
        let most = depth * self.queues.len();
        self.arrived.reserve(most);
        self.waiting.reserve(most);
        self.reads.reserve(most);
        self.asked.reserve(most);
        self.hits.reserve(most);
    }

    /// Adds a request that has arrived.
    pub(super) fn push(&mut self, index: usize, request: LocalRequest, arrived: Instant) {
        self.waiting.push_back(Waiting { index, request, arrived });
    }

    /// Returns whether a request waits that may begin. One may whose memory alone is too much.
    pub(super) fn has_ready(&self) -> bool {
        self.waiting.front().is_some_and(|next| {
            let bytes = next.request.wanted.buffer_bytes();
            self.used_bytes == 0 || self.used_bytes + bytes <= self.most_bytes
        })
    }

    /// Takes the next request that may begin. It has to be told when it has ended.
    pub(super) fn next(&mut self) -> Option<Waiting> {
        let next = if self.has_ready() { self.waiting.pop_front() } else { None }?;
        self.used_bytes += next.request.wanted.buffer_bytes();
        Some(next)
    }

    /// Takes note of the end of a request that had begun.
    pub(super) fn ended(&mut self, request: &LocalRequest) {
        self.used_bytes -= request.wanted.buffer_bytes();
    }

    /// Hands no more requests to the cache than have arrived.
    pub(super) fn end(&mut self) {
        self.queues.iter_mut().flatten().for_each(LocalQueue::end);
    }

    /// Fails all requests of a volume's queues, now and later.
    pub(super) fn fail(&mut self, volume: VolumeId) {
        let queues = self.queues.iter_mut().flatten();
        queues.filter(|queue| queue.volume() == volume).for_each(LocalQueue::fail);
    }

    /// Returns whether no request is with the cache, or is to be.
    pub(super) fn is_quiet(&self) -> bool {
        self.queues.iter().flatten().all(LocalQueue::is_quiet)
    }

    pub(super) fn queue(&mut self, index: usize) -> &mut LocalQueue {
        self.queues[index].as_mut().expect("a queue with a request under way is there")
    }
}

#[cfg(test)]
mod tests {
    use floe_block::Kind;

    use super::*;

    fn arrive(locals: &mut Locals, requests: &[(u16, u64)]) {
        for &(tag, len) in requests {
            let kind = if len == 0 { Kind::Flush } else { Kind::Read };
            let wanted = Request { volume: VolumeId(0), kind, offset: 0, len };
            locals.push(7, LocalRequest { tag, wanted }, Instant::now());
        }
    }

    fn begin(locals: &mut Locals) -> Vec<LocalRequest> {
        std::iter::from_fn(|| locals.next()).map(|next| next.request).collect()
    }

    fn tags(begun: &[LocalRequest]) -> Vec<u16> {
        begun.iter().map(|request| request.tag).collect()
    }

    #[test]
    fn requests_wait_in_turn_for_the_memory_of_others() {
        let mut locals = Locals { most_bytes: 64 << 10, ..Locals::default() };
        arrive(&mut locals, &[(0, 32 << 10), (1, 32 << 10), (2, 4 << 10), (3, 0), (4, 32 << 10)]);
        let first = begin(&mut locals);
        assert_eq!(tags(&first), [0, 1]);
        assert!(!locals.has_ready());
        locals.ended(&first[0]);
        let second = begin(&mut locals);
        assert_eq!(tags(&second), [2, 3], "nothing overtakes");
        locals.ended(&first[1]);
        assert_eq!(tags(&begin(&mut locals)), [4]);
        assert!(begin(&mut locals).is_empty());
    }

    #[test]
    fn a_request_larger_than_all_memory_begins_alone() {
        let mut locals = Locals { most_bytes: 64 << 10, ..Locals::default() };
        arrive(&mut locals, &[(0, 4 << 10), (1, 1 << 20), (2, 4 << 10)]);
        for expected in [0, 1, 2] {
            let begun = begin(&mut locals);
            assert_eq!(tags(&begun), [expected]);
            locals.ended(&begun[0]);
        }
    }
}
