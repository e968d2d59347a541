//! Letters between the server's threads: instructions to workers and news from them. Rare, so a
//! lock does no harm; requests of clients never travel this way.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use floe_block::Bell;

/// One thread's letters, and the bell that wakes it for them.
#[derive(Debug)]
pub(super) struct Mailbox<T> {
    letters: Mutex<VecDeque<T>>,
    /// Whether there are any: spares the thread the lock at every turn of its loop.
    any: AtomicBool,
    bell: Arc<Bell>,
}

impl<T> Mailbox<T> {
    pub(super) fn new(bell: Arc<Bell>) -> Self {
        Self { letters: Mutex::default(), any: AtomicBool::new(false), bell }
    }

    pub(super) fn post(&self, letter: T) {
        let mut letters = self.letters.lock().unwrap_or_else(PoisonError::into_inner);
        letters.push_back(letter);
        // Set under the lock, so that it is never unset over a letter. The bell's fence orders it
        // before the look at who sleeps.
        self.any.store(true, Ordering::Relaxed);
        drop(letters);
        self.bell.ring();
    }

    /// Whether there is nothing to take, as far as the thread can know: the bell's fence makes it
    /// sure.
    pub(super) fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Relaxed)
    }

    /// All letters, in the order in which they were posted.
    pub(super) fn take(&self) -> VecDeque<T> {
        if self.is_empty() {
            return VecDeque::new();
        }
        let mut letters = self.letters.lock().unwrap_or_else(PoisonError::into_inner);
        self.any.store(false, Ordering::Relaxed);
        std::mem::take(&mut letters)
    }

    pub(super) fn bell(&self) -> &Arc<Bell> {
        &self.bell
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_mailbox_is_looked_into_without_its_lock() {
        let mailbox = Mailbox::new(Arc::new(Bell::new().unwrap()));
        let held = mailbox.letters.lock().unwrap();
        assert!(mailbox.take().is_empty()); // would wait for ever
        drop(held);
        mailbox.post(1);
        mailbox.post(2);
        assert!(!mailbox.is_empty());
        assert_eq!(mailbox.take(), [1, 2]);
        assert!(mailbox.is_empty());
    }
}
