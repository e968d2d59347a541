//! The knowledge of a persistent tier that its peer tiers have.

use super::refusal::Difference;

/// Facts about a tier from the superblocks of its peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peered {
    /// The possible difference between its content and that of its peers.
    pub differs: Option<Difference>,
    /// Requests went past it in its last session, and its device refused to record that; true when
    /// nothing in it is valid any more, false when its dirty data is.
    pub passed: Option<bool>,
}
