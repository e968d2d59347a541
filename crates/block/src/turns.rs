//! Something done again and again, one at a time: what is asked for while one is under way is
//! served by the next.

/// How many have begun and ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Turns {
    begun: u64,
    ended: u64,
}

impl Turns {
    /// The number of the first that begins after now.
    pub(crate) fn next(&self) -> u64 {
        self.begun + 1
    }

    /// One begins.
    pub(crate) fn begin(&mut self) {
        debug_assert_eq!(self.begun, self.ended, "one at a time");
        self.begun += 1;
    }

    /// The one under way ends; answers its number.
    pub(crate) fn end(&mut self) -> u64 {
        self.ended = self.begun;
        self.ended
    }

    /// Whether one is under way.
    pub(crate) fn is_under_way(&self) -> bool {
        self.begun > self.ended
    }
}
