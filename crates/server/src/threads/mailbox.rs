//! Messages to one of the server's threads. They are rare, so a lock does no harm; requests of
//! clients never travel this way.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use floe_block::Bell;

/// One thread's messages, and the wake-up for them.
#[derive(Debug)]
pub(super) struct Mailbox<T> {
    messages: Mutex<Messages<T>>,
    /// There are messages: spares the thread the lock at every turn of its loop.
    any: AtomicBool,
    wake_up: Arc<Bell>,
}

#[derive(Debug)]
struct Messages<T> {
    queue: VecDeque<T>,
    /// Time at which the first of them came.
    since: Option<Instant>,
}

impl<T> Mailbox<T> {
    pub(super) fn new(wake_up: Arc<Bell>) -> Self {
        let messages = Messages { queue: VecDeque::new(), since: None };
        Self { messages: Mutex::new(messages), any: AtomicBool::new(false), wake_up }
    }

    pub(super) fn post(&self, message: T) {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.queue.push_back(message);
        messages.since.get_or_insert_with(Instant::now);
        // Set under the lock, so that it is never unset over a message. The wake-up's fence orders
        // it before the check for sleepers.
        self.any.store(true, Ordering::Relaxed);
        drop(messages);
        self.wake_up.ring();
    }

    /// Returns whether there is nothing to take, as far as the thread can know: the wake-up's fence
    /// makes it sure.
    pub(super) fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Relaxed)
    }

    /// All messages, in the order in which they were posted.
    pub(super) fn take(&self) -> VecDeque<T> {
        if self.is_empty() {
            return VecDeque::new();
        }
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        self.any.store(false, Ordering::Relaxed);
        messages.since = None;
        std::mem::take(&mut messages.queue)
    }

    /// Since when there is a message that the thread has not taken.
    pub(super) fn waiting_since(&self) -> Option<Instant> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).since
    }

    pub(super) fn wake_up(&self) -> &Arc<Bell> {
        &self.wake_up
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_mailbox_is_looked_into_without_its_lock() {
        let mailbox = Mailbox::new(Arc::new(Bell::new().unwrap()));
        let held = mailbox.messages.lock().unwrap();
        assert!(mailbox.take().is_empty()); // would wait for ever
        drop(held);
        let before = Instant::now();
        mailbox.post(1);
        let since = mailbox.waiting_since().unwrap();
        assert!(since >= before);
        mailbox.post(2);
        assert!(!mailbox.is_empty());
        assert_eq!(mailbox.waiting_since(), Some(since), "the first one counts");
        assert_eq!(mailbox.take(), [1, 2]);
        assert!(mailbox.is_empty());
        assert_eq!(mailbox.waiting_since(), None);
    }
}
