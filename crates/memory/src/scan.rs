//! One look at the cells of all threads, a part at a time.
//!
//! Where threads hold few guards, a reclaimer looks at all cells whenever it frees a batch. With
//! many guards that would cost each batch as much as all of them. So a *scan* reads some cells for
//! each batch, under the lock of the records each time, and batches wait for its end. It has seen
//! all guards of what had left before it began: a guard stays in its cell until it is dropped or
//! becomes a [hold](crate::holds), which reclaimers look for later. The way back from a hold to a
//! cell notes the address here.

use std::collections::HashSet;

use crate::grace::Round;

/// Addresses that cells name, as far as a scan has come.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    /// All threads had answered this round, or passed the barrier since, when it began. The first
    /// round is later than that of no scan.
    pub(crate) round: Round,
    /// Tells it from others.
    pub(crate) serial: u64,
    pub(crate) seen: HashSet<usize, foldhash::fast::RandomState>,
}

impl Scan {
    /// Begins, with room for so many addresses: a table that grows is copied at once.
    pub(crate) fn new(round: Round, serial: u64, room: usize) -> Self {
        let mut seen = HashSet::default();
        seen.reserve(room);
        Self { round, serial, seen }
    }

    /// Notes a cell that names an entry, as the scan may have read the cell before.
    pub(crate) fn note(&mut self, address: usize) {
        self.seen.insert(address);
    }

    /// Returns whether this, when it has ended, has seen all guards of what had left before a round
    /// was asked, and none for an address.
    pub(crate) fn clears(&self, address: usize, asked: Round) -> bool {
        asked <= self.round && !self.seen.contains(&address)
    }
}
