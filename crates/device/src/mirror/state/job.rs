//! The work that the state machine orders, and its outcomes.

use super::super::generation::{Generation, Halves};
use super::super::regions::Regions;

/// Work for one of the lanes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Job {
    /// Write this header to these halves, durably.
    Header(Header, Halves),
    /// Have the witness replace a generation; with `anew` also where it knows none.
    Raise { from: Generation, to: Generation, anew: bool },
    /// Copy a region.
    Copy { region: usize, from: usize, to: Halves },
    /// Flush halves.
    Flush(Halves),
}

/// The part of a header that changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Header {
    /// Of two headers of a half the one with the higher number counts.
    pub(crate) sequence: u64,
    /// The generation that the half has, or is about to have.
    pub(crate) generation: Generation,
    /// The one before, until the witness has the generation; then the generation again.
    pub(crate) previous: Generation,
    /// The highest number of a header that each half was known to have: a half with a lower one is
    /// an old copy.
    pub(crate) known: [u64; Halves::MAX],
    /// Regions in which halves may differ.
    pub(crate) map: Regions,
}

/// The outcome of a [`Job::Raise`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Raised {
    Done,
    /// The witness has a generation of another server.
    Refused,
    /// It is not known whether the witness has it.
    Unknown,
}
