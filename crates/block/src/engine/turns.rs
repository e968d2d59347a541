//! Turns of an operation that runs one at a time: a request that arrives during one turn is served
//! by the next.

/// The numbers of turns begun and ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Turns {
    begun: u64,
    ended: u64,
}

impl Turns {
    /// Returns the number of the first turn that begins after now.
    pub(crate) fn next(&self) -> u64 {
        self.begun + 1
    }

    /// Begins a turn.
    pub(crate) fn begin(&mut self) {
        debug_assert_eq!(self.begun, self.ended, "one at a time");
        self.begun += 1;
    }

    /// Ends the turn under way; returns its number.
    pub(crate) fn end(&mut self) -> u64 {
        self.ended = self.begun;
        self.ended
    }

    /// Returns whether a turn is under way.
    pub(crate) fn is_under_way(&self) -> bool {
        self.begun > self.ended
    }
}
