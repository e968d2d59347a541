//! The wake-up protocol between a waiting thread and the threads that send to it.
//!
//! A thread that is about to wait sets a flag and then checks its queues once more. A sender puts
//! its message into a queue, and then checks the flag. A full fence between the two steps on both
//! sides ensures that at least one of them notices the other (Dekker's handshake).

use super::sync::{AtomicBool, Ordering, fence};

/// The sleep state of a thread.
#[derive(Debug)]
pub(crate) struct Sleep {
    asleep: AtomicBool,
}

impl Sleep {
    pub(crate) fn new() -> Self {
        Self { asleep: AtomicBool::new(false) }
    }

    /// Announces that the thread is about to wait, and returns whether it may; `there_is_nothing`
    /// checks its queues. The thread calls [`Sleep::wake`] when it has waited.
    pub(crate) fn fall_asleep(&self, there_is_nothing: impl FnOnce() -> bool) -> bool {
        self.asleep.store(true, Ordering::Relaxed); // ordered by the fence
        // Either this fence comes before the sender's, which then sees `asleep`, or after it; then
        // the message that the sender stored before its fence is seen here.
        fence(Ordering::SeqCst);
        let may_wait = there_is_nothing();
        if !may_wait {
            self.wake();
        }
        may_wait
    }

    /// Records that the thread is awake, for whatever reason.
    pub(crate) fn wake(&self) {
        // a late sight of it costs a needless wake-up, no lost one
        self.asleep.store(false, Ordering::Relaxed);
    }

    /// Returns whether the calling sender must wake the thread: true for only one of several
    /// senders.
    pub(crate) fn must_be_woken(&self) -> bool {
        fence(Ordering::SeqCst); // see `fall_asleep`
        // Only the sender that clears the flag wakes the thread. Nothing is handed over through the
        // flag: the data has its own queue.
        self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed)
    }
}
