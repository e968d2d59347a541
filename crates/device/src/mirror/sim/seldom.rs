//! Counts of what has happened in worlds, so that a test notices when something no longer does.

use std::ops::AddAssign;

/// The counts.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Seldom {
    pub(super) crashes: u64,
    pub(super) refusals: u64,
    pub(super) leaves: u64,
    pub(super) returns: u64,
    pub(super) recoveries: u64,
    pub(super) without_witness: u64,
    pub(super) writes: u64,
    pub(super) flushes: u64,
    pub(super) rots: u64,
    pub(super) mends: u64,
    pub(super) mended_copies: u64,
}

impl Seldom {
    pub(super) fn counts(self) -> [(&'static str, u64); 11] {
        [
            ("a crash", self.crashes),
            ("a refusal", self.refusals),
            ("a leave", self.leaves),
            ("a return", self.returns),
            ("a recovery", self.recoveries),
            ("an opening without witness", self.without_witness),
            ("a write", self.writes),
            ("a flush", self.flushes),
            ("a flipped bit", self.rots),
            ("a mended read", self.mends),
            ("a mended copy", self.mended_copies),
        ]
    }
}

impl AddAssign for Seldom {
    fn add_assign(&mut self, other: Seldom) {
        self.crashes += other.crashes;
        self.refusals += other.refusals;
        self.leaves += other.leaves;
        self.returns += other.returns;
        self.recoveries += other.recoveries;
        self.without_witness += other.without_witness;
        self.writes += other.writes;
        self.flushes += other.flushes;
        self.rots += other.rots;
        self.mends += other.mends;
        self.mended_copies += other.mended_copies;
    }
}
