//! The operations that requests consist of, and their names in files of service times.

use std::fmt;

/// An operation of a request in a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
pub enum Operation {
    /// Lookup of a key in the index, found or not.
    Lookup,
    /// Lookup of a key in the frozen index, found or not.
    FrozenLookup,
    /// Lookup of a key in a ghost list, found or not.
    GhostLookup,
    /// Setting the mark of a hit, without a lock.
    Mark,
    /// Additional time of writing a mark that was not set. The cache line is fetched from the
    /// processor that wrote it last, and fetched again by those that read it next.
    WrittenMark,
    /// Removal of an entry from the middle of a list.
    Delink,
    /// Insertion of an entry at the head of a list.
    Head,
    /// Removal of the entry at the tail of a list.
    Tail,
    /// A step past an entry that stays, in the search for a victim.
    Step,
    /// Choice of a victim among entries drawn at random.
    Sample,
    /// Other work of a miss outside of locks, such as creating a value and freeing another.
    Miss,
}

impl Operation {
    /// Returns the operation's name in files of service times.
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
