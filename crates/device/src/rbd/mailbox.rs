//! The results that the library's threads leave for a thread of the server.
//!
//! A result goes into a list under a lock; the first one in an empty list also wakes the owner's
//! ring by an eventfd. The list is emptied after the eventfd was read, so no result stays behind
//! without a wake-up.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

/// An operation's number, and what the library returned for it.
pub(super) type Result = (usize, isize);

#[derive(Debug)]
pub(super) struct Mailbox {
    bell: OwnedFd,
    results: Mutex<Vec<Result>>,
}

impl Mailbox {
    pub(super) fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { bell, results: Mutex::default() })
    }

    /// Readable while the bell has been rung and nobody has [taken](Self::take) what there is.
    pub(super) fn bell(&self) -> RawFd {
        self.bell.as_raw_fd()
    }

    fn results(&self) -> MutexGuard<'_, Vec<Result>> {
        // A list of numbers is whole at any time.
        self.results.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves a result.
    pub(super) fn leave(&self, result: Result) {
        let mut results = self.results();
        results.push(result);
        let is_first = results.len() == 1;
        drop(results);
        if is_first {
            self.ring();
        }
    }

    /// Wakes the owner.
    pub(super) fn ring(&self) {
        // It fails only when the count is full; then the bell has been rung.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Appends all results.
    pub(super) fn take(&self, to: &mut Vec<Result>) {
        to.append(&mut self.results());
    }

    /// Makes the bell silent, and appends all results.
    pub(super) fn answer(&self, to: &mut Vec<Result>) {
        let _ = rustix::io::read(&self.bell, &mut [0; 8]); // empty if somebody has read it
        self.take(to);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    /// Returns whether the bell is rung within this many milliseconds.
    fn rings(mailbox: &Mailbox, within_ms: i64) -> bool {
        let time = rustix::event::Timespec { tv_sec: 0, tv_nsec: within_ms * 1_000_000 };
        poll(&mut [PollFd::new(&mailbox.bell, PollFlags::IN)], Some(&time)).expect("it polls") > 0
    }

    #[test]
    fn no_result_stays_behind_without_a_wake_up() {
        const THREADS: usize = 4;
        const RESULTS: usize = 2_000;
        let mailbox = Arc::new(Mailbox::new().expect("there are eventfds"));
        let leave = |thread: usize| {
            let mailbox = Arc::clone(&mailbox);
            move || (0..RESULTS).for_each(|at| mailbox.leave((thread * RESULTS + at, 0)))
        };
        let threads: Vec<_> = (0..THREADS).map(|at| std::thread::spawn(leave(at))).collect();
        let mut found = Vec::new();
        while found.len() < THREADS * RESULTS {
            let time = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
            let woken = poll(&mut [PollFd::new(&mailbox.bell, PollFlags::IN)], Some(&time));
            assert!(woken.expect("it polls") > 0, "{} results came", found.len());
            mailbox.answer(&mut found);
        }
        threads.into_iter().for_each(|thread| thread.join().expect("it leaves results"));
        found.sort_unstable();
        assert!(found.iter().map(|(slot, _)| *slot).eq(0..THREADS * RESULTS));
        assert!(!rings(&mailbox, 0), "the bell rings for nothing");
    }
}
