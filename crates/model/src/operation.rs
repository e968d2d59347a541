//! The operations of which requests are made, and their names in files of service times.

use std::fmt;

/// A step of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
pub enum Operation {
    /// Finding a key in the index, or finding that it is not there.
    Lookup,
    /// Finding a key in the frozen index, or finding that it is not there.
    FrozenLookup,
    /// Finding out whether a key left lately.
    GhostLookup,
    /// Noting a hit where it takes no lock.
    Mark,
    /// The additional time of a mark that is not there yet: its line is fetched from the processor
    /// that wrote it last, and fetched again by those that read it next.
    WrittenMark,
    /// Taking an entry out of the middle of a list.
    Delink,
    /// Putting an entry at the head of a list.
    Head,
    /// Taking the entry at the tail of a list.
    Tail,
    /// Passing an entry by on the way to one that may leave.
    Step,
    /// Choosing a victim among entries drawn at random.
    Sample,
    /// The other work of a miss outside of locks: a value made, another freed.
    Miss,
}

impl Operation {
    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Lookup => "lookup",
            Operation::FrozenLookup => "frozen-lookup",
            Operation::GhostLookup => "ghost-lookup",
            Operation::Mark => "mark",
            Operation::WrittenMark => "written-mark",
            Operation::Delink => "delink",
            Operation::Head => "head",
            Operation::Tail => "tail",
            Operation::Step => "step",
            Operation::Sample => "sample",
            Operation::Miss => "miss",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
