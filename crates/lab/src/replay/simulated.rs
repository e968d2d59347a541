//! A device of virtual time: late as its medium would be, and empty unless a replay looks at the
//! bytes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

use floe_device::medium::{Direction, Model};
use floe_device::{Completion, Device, MemoryDevice, Operation};

use super::clock::VirtualClock;

/// A device whose operations end by a [`VirtualClock`].
#[derive(Debug)]
pub struct SimulatedDevice {
    clock: VirtualClock,
    size_bytes: u64,
    /// The model of operation times; without one, operations take no time.
    model: Option<Model>,
    /// The bytes, where they will be read.
    content: Option<MemoryDevice>,
    /// Operations under way by due time, then in order.
    waiting: BinaryHeap<Reverse<(u64, u64, u64)>>,
    submitted: u64,
    finished: Vec<Completion>,
}

impl SimulatedDevice {
    /// A device of `size_bytes`, as slow as `model` says; it holds bytes where `content` is given.
    pub fn new(
        clock: VirtualClock,
        size_bytes: u64,
        model: Option<Model>,
        content: Option<MemoryDevice>,
    ) -> Self {
        let (waiting, finished) = (BinaryHeap::new(), Vec::new());
        Self { clock, size_bytes, model, content, waiting, submitted: 0, finished }
    }
}

impl Device for SimulatedDevice {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn submit(&mut self, operation: Operation) {
        let now_ns = self.clock.passed_ns();
        let (direction, bytes) = Direction::of(&operation.action);
        let due_ns =
            self.model.as_mut().map_or(now_ns, |model| model.start(now_ns, direction, bytes));
        self.waiting.push(Reverse((due_ns, self.submitted, operation.token)));
        self.submitted += 1;
        if let Some(content) = &mut self.content {
            content.submit(operation);
            content.poll(&mut self.finished);
            // The cache asks for nothing outside of a device, and memory refuses nothing else.
            self.finished
                .drain(..)
                .for_each(|done| done.result.expect("memory does what it is asked"));
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        while let Some(&Reverse((due_ns, _, token))) = self.waiting.peek() {
            if due_ns > self.clock.passed_ns() {
                return;
            }
            self.waiting.pop();
            done.push(Completion { token, result: Ok(()) });
        }
    }

    fn next_due(&self) -> Option<Instant> {
        self.waiting.peek().map(|&Reverse((due_ns, ..))| self.clock.at(due_ns))
    }
}
