//! The subject of a measurement: a cache that can be looked up in, and filled after a miss.

use floe_memory::{AdmissionStats, FreezeStats};

/// A cache of entries under `u64` keys, used by all threads at once.
///
/// An entry's value follows from its key, so that a subject can check what it finds.
pub trait Subject: Sync {
    /// Looks up a key and reads its value; whether it was there.
    fn lookup(&self, key: u64) -> bool;

    /// Takes in a key that was not there when it was looked up.
    fn fill(&self, key: u64);

    /// Writes a key, there or not.
    fn update(&self, key: u64);

    /// Returns the results of freezing so far, where the subject freezes.
    fn freezes(&self) -> Option<Freezes> {
        None
    }

    /// Returns the fate of offers so far, where the subject has an admission.
    fn admission(&self) -> Option<AdmissionStats> {
        None
    }

    /// Has what it has found out about its load be found out anew; entries stay.
    fn forget(&self) {}
}

/// A subject's report of freezing.
#[derive(Debug, Clone, PartialEq)]
pub struct Freezes {
    /// Hits since it was made.
    pub hits: u64,
    /// Of these, those on frozen entries.
    pub frozen_hits: u64,
    /// Entries now.
    pub entries: u64,
    /// Of these, the frozen ones.
    pub frozen: u64,
    /// The statistics of the controller.
    pub stats: FreezeStats,
}
