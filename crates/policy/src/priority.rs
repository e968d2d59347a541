//! The importance of entries, beside their use: what a user knows of them beforehand.

/// The importance of an entry, as its user has it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Priority {
    /// The entry comes in to the [pool](crate::PriorityPools) for such entries.
    ///
    /// Where there is none, it counts as used once more than others when it comes in. So an LRU
    /// order has it where all new entries are, and an order with a queue for new entries, such as
    /// [`QdClock`](crate::QdClock), does not evict it from there without a second look.
    High,
    /// The entry comes in to the pool for such entries, or where the policy has new ones.
    #[default]
    Low,
    /// The entry comes in where the policy has new ones.
    Bottom,
}
