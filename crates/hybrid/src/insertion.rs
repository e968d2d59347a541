//! The results of insertions.

/// The place of an object after its insertion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Inserted {
    /// The object is in memory. It goes to flash when memory evicts it, unless its
    /// [options](crate::InsertOptions) say otherwise.
    InMemory,
    /// The object is not in memory and is on its way to flash: its options say so, or it is too
    /// large for memory.
    ToFlash,
    /// The object was not kept, and an older object of its key was removed.
    Declined(Declined),
}

/// The reason why an object is not kept, or not written to flash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Declined {
    /// Key and value are larger than an eighth of the drive or than 1 GiB, or the key has more than
    /// 65,535 bytes or does not fit into a segment.
    TooLarge,
    /// The object is too large for memory, and its options keep it off flash.
    TooLargeForMemory,
    /// The drive is slower than the producers, and the cache was built with
    /// [`OnFull::Decline`](crate::OnFull::Decline).
    Behind,
    /// Another call inserted or removed an object of the key meanwhile.
    Superseded,
    /// The object was for flash, which has failed or is closed.
    FlashEnded,
    /// The [`WriteBudget`](crate::WriteBudget) is short, and more valuable objects use it.
    OverBudget,
    /// The object was requested too seldom, by
    /// [`Admission::Popularity`](crate::Admission::Popularity) or
    /// [`Admission::TinyLfu`](crate::Admission::TinyLfu).
    Unpopular,
    /// Writes cost the reads too much ([`Admission::Obp`](crate::Admission::Obp)).
    WriteCost,
    /// The objects in use fit into memory
    /// ([`Admission::SmallBypass`](crate::Admission::SmallBypass)).
    FitsMemory,
}
