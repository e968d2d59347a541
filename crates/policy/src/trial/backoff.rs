//! Waits that double, and a record of what was decided.

use std::collections::VecDeque;
use std::time::Duration;

/// A wait that doubles each time it is taken, up to a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    min: Duration,
    max: Duration,
    next: Duration,
}

impl Backoff {
    /// The first wait is `min`, none is above `max`.
    pub fn new(min: Duration, max: Duration) -> Self {
        Self { min, max: max.max(min), next: min }
    }

    /// The wait for now; the next one is twice as long.
    pub fn take(&mut self) -> Duration {
        let wait = self.next;
        self.next = wait.saturating_mul(2).min(self.max);
        wait
    }

    /// The same, and not less than this, from where it doubles.
    pub fn take_at_least(&mut self, least: Duration) -> Duration {
        self.next = self.next.max(least).min(self.max);
        self.take()
    }

    /// Starts again with the first.
    pub fn reset(&mut self) {
        self.next = self.min;
    }
}

/// The last of something, oldest first.
#[derive(Debug, Clone, PartialEq)]
pub struct Record<T> {
    last: VecDeque<T>,
    max: usize,
}

impl<T> Record<T> {
    /// Keeps at most `max`.
    pub fn new(max: usize) -> Self {
        Self { last: VecDeque::new(), max }
    }

    /// Adds one; the oldest makes room.
    pub fn push(&mut self, one: T) {
        while self.last.len() >= self.max {
            if self.last.pop_front().is_none() {
                return;
            }
        }
        self.last.push_back(one);
    }

    /// From the oldest to the newest.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> + ExactSizeIterator {
        self.last.iter()
    }

    /// The newest.
    pub fn last(&self) -> Option<&T> {
        self.last.back()
    }

    /// Takes the newest out.
    pub fn pop_last(&mut self) -> Option<T> {
        self.last.pop_back()
    }
}
