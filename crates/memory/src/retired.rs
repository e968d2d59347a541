//! Entries that were removed from the index and are to be freed, and the rounds by which threads
//! confirm that they read none of them.
//!
//! # Rounds
//!
//! Rounds show without a heavy barrier that no thread can still find removed entries.
//!
//! A thread that removes entries and wants to free them *asks*: rounds of asking are numbered. A
//! thread that takes a lock of the cache anyway, to insert or remove, *answers* in passing. It
//! stores the number of the last round in its record (quiescent states; McKenney and Slingwine,
//! PDCS '98). A thread that has answered has seen all removals from before the round was asked, so
//! it will not find the removed entries again. Those that it still reads were in its cells before.
//! The [barrier](crate::barrier) is needed only for threads that have not answered when the entries
//! are to be freed, because they have only made lookups since.

use crate::stats::Cause;
use crate::sync::{AtomicU64, Ordering};

/// A removed entry.
#[derive(Debug)]
pub(crate) struct Retired {
    /// Number of the entry's place in memory.
    pub(crate) place: u32,
    /// Weight of the entry, or 2³² − 1 where it is heavier.
    pub(crate) weight: u32,
}

/// A removed entry that a thread was found to read, or that waits for a scan.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) retired: Retired,
    /// Reclamation round requested after the entry was removed.
    pub(crate) asked: Round,
}

/// Removed entries to be freed now, except those that a thread reads.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) entries: Vec<Retired>,
    /// Reclamation round requested after the entries were removed.
    pub(crate) asked: Round,
    /// Earlier entries that guards kept, to be checked again.
    pub(crate) held: Vec<Waiting>,
    /// True if all entries that no thread reads must be freed, whatever work that takes.
    pub(crate) is_urgent: bool,
}

impl Batch {
    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len() + self.held.len()
    }

    /// Returns all entries, including those that guards kept.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Retired> {
        self.entries.iter().chain(self.held.iter().map(|waiting| &waiting.retired))
    }
}

/// Removed entries for which a listener is to be called, with their causes.
pub(crate) type Departures = Vec<(Retired, Cause)>;

/// The number of a reclamation round, counted from 1. A round ends when every thread has answered
/// it, or after a heavy barrier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Round(u64);

/// The last round that a thread has answered. No other thread writes it.
#[derive(Debug, Default)]
pub(crate) struct Answer(AtomicU64);

impl Answer {
    /// Returns true if a round was answered.
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
    /// Last round that all threads have answered, or for which the barrier was passed. Protected by
    /// the lock of the records.
    passed: AtomicU64,
}

impl Grace {
    /// Begins a round, after entries were removed.
    pub(crate) fn ask(&self) -> Round {
        // Release: a thread that sees the round sees the earlier removals; Acquire: and so those
        // before earlier rounds.
        Round(self.asked.fetch_add(1, Ordering::AcqRel) + 1)
    }

    /// Stores the last round as answered. The thread must be between two lookups.
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

    /// Returns the last reclamation round that was requested.
    pub(crate) fn last(&self) -> Round {
        Round(self.asked.load(Ordering::Acquire)) // as in `ask`
    }

    /// Returns true if all threads have answered a round or the barrier was passed since. The
    /// caller must hold the lock of the records.
    pub(crate) fn has_passed(&self, round: Round) -> bool {
        self.passed.load(Ordering::Relaxed) >= round.0 // under the lock
    }

    /// Records that all threads have answered a round, or that the barrier was passed since. The
    /// caller must hold the lock of the records.
    pub(crate) fn pass(&self, round: Round) {
        self.passed.fetch_max(round.0, Ordering::Relaxed); // under the lock
    }
}
