//! Knowing without a heavy barrier that nobody is about to look at what was taken out.
//!
//! A thread that takes entries out and wants to free them *asks*: rounds of asking are numbered.
//! Whoever uses the cache by way of a lock anyway, to insert or remove, *answers* in passing:
//! stores the number of the last round in its record (quiescent states; McKenney and Slingwine,
//! PDCS '98). Who has answered has seen all that was taken out before the round was asked, so it
//! will look at none of it again; and what it looks at still was in its cells before. Only for
//! threads that have not answered when the entries are to be freed, as they have only looked keys
//! up since, is the [barrier](crate::barrier) needed.

use crate::sync::{AtomicU64, Ordering};

/// The number of a round. The first is 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Round(u64);

/// The last round that a thread has answered. Nobody else writes it.
#[derive(Debug, Default)]
pub(crate) struct Answer(AtomicU64);

impl Answer {
    /// Returns whether a round was answered.
    pub(crate) fn is_past(&self, round: Round) -> bool {
        // Acquire: what the thread stored in its cells before it answered is seen from here on.
        self.0.load(Ordering::Acquire) >= round.0
    }
}

/// The rounds of a cache.
#[derive(Debug, Default)]
#[repr(align(128))] // read by every insertion, written once a batch
pub(crate) struct Grace {
    asked: AtomicU64,
    /// Up to here everybody has answered, or passed the barrier. Under the lock of the records.
    passed: AtomicU64,
}

impl Grace {
    /// Asks, after something was taken out.
    pub(crate) fn ask(&self) -> Round {
        // Release: who sees the round sees what was taken out before; Acquire: and so what was
        // before earlier rounds.
        Round(self.asked.fetch_add(1, Ordering::AcqRel) + 1)
    }

    /// Answers, between two lookups of the thread's.
    #[inline(always)]
    pub(crate) fn answer(&self, answer: &Answer) {
        // Acquire: what was taken out before the round was asked is not found by this thread from
        // here on.
        let asked = self.asked.load(Ordering::Acquire);
        // Relaxed: this thread wrote it.
        if answer.0.load(Ordering::Relaxed) != asked {
            // all that this thread has looked at stands in its cells
            answer.0.store(asked, Ordering::Release);
        }
    }

    /// The last round that was asked.
    pub(crate) fn last(&self) -> Round {
        Round(self.asked.load(Ordering::Acquire)) // as in `ask`
    }

    /// Returns whether everybody has answered a round or passed the barrier since. Under the lock
    /// of the records.
    pub(crate) fn has_passed(&self, round: Round) -> bool {
        self.passed.load(Ordering::Relaxed) >= round.0 // under the lock
    }

    /// Everybody has answered a round or passed the barrier since. Under the lock of the records.
    pub(crate) fn pass(&self, round: Round) {
        self.passed.fetch_max(round.0, Ordering::Relaxed); // under the lock
    }
}
