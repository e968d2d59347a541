//! The queues of local block devices that a worker serves.

use floe_block::Request;
use floe_device::Buffer;

use crate::ublk::{LocalQueue, LocalRequest};

/// The queues that a worker serves, by their numbers here.
#[derive(Debug, Default)]
pub(super) struct Locals {
    pub(super) queues: Vec<Option<LocalQueue>>,
    /// Empty between queues.
    pub(super) arrived: Vec<LocalRequest>,
    pub(super) reads: Vec<(Request, Buffer)>,
    pub(super) tags: Vec<LocalRequest>,
    pub(super) hits: Vec<bool>,
}

impl Locals {
    /// Adds a queue at a free place.
    pub(super) fn insert(&mut self, queue: LocalQueue) {
        match self.queues.iter().position(Option::is_none) {
            Some(free) => self.queues[free] = Some(queue),
            None => self.queues.push(Some(queue)),
        }
    }

    /// Hands no more requests to the cache.
    pub(super) fn end(&mut self) {
        self.queues.iter_mut().flatten().for_each(LocalQueue::end);
    }

    /// Returns whether no request is with the cache.
    pub(super) fn is_quiet(&self) -> bool {
        self.queues.iter().flatten().all(LocalQueue::is_quiet)
    }

    pub(super) fn queue(&mut self, index: usize) -> &mut LocalQueue {
        self.queues[index].as_mut().expect("a queue with a request under way is there")
    }
}
