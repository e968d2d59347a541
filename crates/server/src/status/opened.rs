//! The state in which a server found a persistent cache, in the status.

use serde::{Deserialize, Serialize};

/// A persistent cache as this server found it when it opened it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenedStatus {
    /// The end of the session before: `clean`, or `unclean` after a crash, a kill or a loss of
    /// power; `new` where there was none.
    pub ended: String,
    /// Bytes of dirty data that were recovered: the backing devices did not have them.
    pub dirty_bytes: u64,
    /// Bytes of valid data that were recovered, clean and dirty.
    pub valid_bytes: u64,
}

impl OpenedStatus {
    /// Adds up what was found in all tiers; `None` without a persistent one. An unclean end of one
    /// tier counts for all.
    pub(super) fn sum<'a>(tiers: impl Iterator<Item = &'a Self>) -> Option<Self> {
        let rank = |ended: &str| ["new", "clean", "unclean"].iter().position(|it| *it == ended);
        tiers.cloned().reduce(|sum, tier| Self {
            ended: if rank(&tier.ended) > rank(&sum.ended) { tier.ended } else { sum.ended },
            dirty_bytes: sum.dirty_bytes + tier.dirty_bytes,
            valid_bytes: sum.valid_bytes + tier.valid_bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_tier_that_ended_uncleanly_makes_the_whole_unclean() {
        let tier = |ended: &str, dirty_bytes| OpenedStatus {
            ended: ended.to_owned(),
            dirty_bytes,
            valid_bytes: 100,
        };
        let tiers = [tier("new", 0), tier("unclean", 7), tier("clean", 5)];
        let sum = OpenedStatus::sum(tiers.iter()).expect("three tiers");
        assert_eq!(sum, OpenedStatus { valid_bytes: 300, ..tier("unclean", 12) });
        assert_eq!(OpenedStatus::sum([].iter()), None);
    }
}
