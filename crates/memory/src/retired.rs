//! Entries that were taken out of the index, on their way to be freed.
//!
//! # Rounds
//!
//! Detects without a heavy barrier that no thread can still read removed entries.
//!
//! A thread that takes entries out and wants to free them *asks*: rounds of asking are numbered. A
//! thread that takes a lock of the cache anyway, to insert or remove, *answers* in passing: it
//! stores the number of the last round in its record (quiescent states; McKenney and Slingwine,
//! PDCS '98). A thread that has answered has seen all removals from before the round was asked, so
//! it will read none of the removed entries again; those that it still reads were in its cells
//! before. The [barrier](crate::barrier) is needed only for threads that have not answered when the
//! entries are to be freed, because they have only looked keys up since.

use crate::stats::Cause;
use crate::sync::{AtomicU64, Ordering};

/// An entry that was taken out.
#[derive(Debug)]
pub(crate) struct Retired {
    /// Where it lies, by its number.
    pub(crate) place: u32,
    pub(crate) weight: u32,
}

/// An entry that was found to be looked at, or has to wait until that is known.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) retired: Retired,
    /// Asked when it had left.
    pub(crate) asked: Round,
}

/// Entries to be freed now, unless a thread reads them.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) entries: Vec<Retired>,
    /// Asked when they had left.
    pub(crate) asked: Round,
    /// Some of those that guards kept, and which had left before.
    pub(crate) held: Vec<Waiting>,
    /// All are to be freed that can be, whatever work that takes.
    pub(crate) is_urgent: bool,
}

impl Batch {
    /// Entries in it.
    pub(crate) fn len(&self) -> usize {
        self.entries.len() + self.held.len()
    }

    /// All entries.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Retired> {
        self.entries.iter().chain(self.held.iter().map(|waiting| &waiting.retired))
    }
}

/// Entries of which a listener is to hear, and why they left.
pub(crate) type Departures = Vec<(Retired, Cause)>;

/// The number of a round. The first is 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Round(u64);

/// The last round that a thread has answered. No other thread writes it.
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
        // Release: a thread that sees the round sees the earlier removals; Acquire: and so those
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
