//! Who has gone to sleep is woken: what a waiting thread and those who have something for it agree
//! on.
//!
//! A thread that is about to wait says so and then looks once more whether there is something for
//! it. Whoever has something for it puts that where it will look, and then asks whether it sleeps.
//! A full fence between the two steps on both sides sees to it that at least one of them notices
//! the other (Dekker's handshake).

use super::sync::{AtomicBool, Ordering, fence};

/// Whether a thread sleeps.
#[derive(Debug)]
pub(crate) struct Sleep {
    asleep: AtomicBool,
}

impl Sleep {
    pub(crate) fn new() -> Self {
        Self { asleep: AtomicBool::new(false) }
    }

    /// Whether the thread may wait now, given how to look whether there is nothing for it. It calls
    /// [`Sleep::wake`] when it has waited.
    pub(crate) fn fall_asleep(&self, there_is_nothing: impl FnOnce() -> bool) -> bool {
        self.asleep.store(true, Ordering::Relaxed); // ordered by the fence
        // Either this fence comes before the other side's, which then sees `asleep`, or after it,
        // and what the other side put there before its fence is seen here.
        fence(Ordering::SeqCst);
        let may_wait = there_is_nothing();
        if !may_wait {
            self.wake();
        }
        may_wait
    }

    /// The thread is awake, for whatever reason.
    pub(crate) fn wake(&self) {
        // a late sight of it costs a needless wake-up, no lost one
        self.asleep.store(false, Ordering::Relaxed);
    }

    /// Whether whoever has just put something there must wake the thread: true for one of many who
    /// ask.
    pub(crate) fn must_be_woken(&self) -> bool {
        fence(Ordering::SeqCst); // see `fall_asleep`
        // Only who takes the mark wakes. Nothing is handed over through it: the data travels by its
        // own queue.
        self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed)
    }
}
