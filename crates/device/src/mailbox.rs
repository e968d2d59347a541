//! Messages that other threads leave for a thread, and wake its ring for.
//!
//! A message goes into a list under a lock; the first one in an empty list also wakes the owner's
//! ring by an eventfd. The list is emptied after the eventfd was read, so no message stays behind
//! without a wake-up.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

/// A list of messages, and the bell that tells of them.
#[derive(Debug)]
pub(crate) struct Mailbox<T> {
    bell: OwnedFd,
    messages: Mutex<Vec<T>>,
}

impl<T> Mailbox<T> {
    pub(crate) fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { bell, messages: Mutex::default() })
    }

    /// Readable while the bell has been rung and nobody has [taken](Self::take) what there is.
    pub(crate) fn bell(&self) -> RawFd {
        self.bell.as_raw_fd()
    }

    fn messages(&self) -> MutexGuard<'_, Vec<T>> {
        // A list is whole at any time.
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves a message.
    pub(crate) fn leave(&self, message: T) {
        let mut messages = self.messages();
        messages.push(message);
        let is_first = messages.len() == 1;
        drop(messages);
        if is_first {
            self.ring();
        }
    }

    /// Wakes the owner.
    pub(crate) fn ring(&self) {
        // It fails only when the count is full; then the bell has been rung.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Appends all messages.
    pub(crate) fn take(&self, to: &mut Vec<T>) {
        to.append(&mut self.messages());
    }

    /// Another descriptor of the bell.
    pub(crate) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.bell.try_clone()
    }

    /// Makes the bell silent: to be done before what there is is taken.
    pub(crate) fn silence(&self) {
        let _ = rustix::io::read(&self.bell, &mut [0; 8]); // empty if somebody has read it
    }

    /// Makes the bell silent, and appends all messages.
    pub(crate) fn answer(&self, to: &mut Vec<T>) {
        self.silence();
        self.take(to);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    /// Returns whether the bell is rung within this many milliseconds.
    fn rings(mailbox: &Mailbox<usize>, within_ms: i64) -> bool {
        let time = rustix::event::Timespec { tv_sec: 0, tv_nsec: within_ms * 1_000_000 };
        poll(&mut [PollFd::new(&mailbox.bell, PollFlags::IN)], Some(&time)).expect("it polls") > 0
    }

    #[test]
    fn no_message_stays_behind_without_a_wake_up() {
        const THREADS: usize = 4;
        const MESSAGES: usize = 2_000;
        let mailbox = Arc::new(Mailbox::new().expect("there are eventfds"));
        let leave = |thread: usize| {
            let mailbox = Arc::clone(&mailbox);
            move || (0..MESSAGES).for_each(|at| mailbox.leave(thread * MESSAGES + at))
        };
        let threads: Vec<_> = (0..THREADS).map(|at| std::thread::spawn(leave(at))).collect();
        let mut found = Vec::new();
        while found.len() < THREADS * MESSAGES {
            let time = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
            let woken = poll(&mut [PollFd::new(&mailbox.bell, PollFlags::IN)], Some(&time));
            assert!(woken.expect("it polls") > 0, "{} messages came", found.len());
            mailbox.answer(&mut found);
        }
        threads.into_iter().for_each(|thread| thread.join().expect("it leaves messages"));
        found.sort_unstable();
        assert!(found.iter().copied().eq(0..THREADS * MESSAGES));
        assert!(!rings(&mailbox, 0), "the bell rings for nothing");
    }
}
