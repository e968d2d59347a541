//! Entries that were taken out of the index, on their way to be freed.

use crate::cause::Cause;
use crate::grace::Round;

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
