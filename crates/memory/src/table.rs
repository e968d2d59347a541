//! A hit's way through a shard: the index, and the marks of the policy.
//!
//! A table is published by one pointer and never changes; what it points to does. There is another
//! table when the marks get more room or the index does. A larger index is filled step by step:
//! while the table has an *old* index, too, keys stand in one of the two, and each insertion moves
//! some. A key is in the new index before it leaves the old one. So a reader that looks into the
//! old index first and then into the new one finds every key that is there all the while. The last
//! step publishes a table without the old index.
//!
//! Tables share their indexes. A reader that is late with a table looks into indexes that are still
//! kept up to date, or that are empty; and it looks again when it has found nothing and the table
//! was replaced. No table is freed before its shard is, so readers say nowhere which one they have.

use crate::index::Index;
use crate::places::Places;
use crate::sync::Arc;

/// The readers' side of a shard.
#[derive(Debug)]
pub(crate) struct Table<M> {
    pub(crate) index: Index,
    /// Where entries lie.
    pub(crate) places: Arc<Places>,
    /// The smaller index, from which keys are being moved.
    pub(crate) old: Option<Index>,
    pub(crate) marks: M,
}

impl<M> Table<M> {
    /// The index in which a key stands.
    #[inline(always)]
    pub(crate) fn index_of(&self, is_old: bool) -> &Index {
        match &self.old {
            Some(old) if is_old => old,
            _ => &self.index,
        }
    }

    /// All indexes, in the order in which readers look.
    pub(crate) fn indexes(&self) -> impl Iterator<Item = &Index> {
        self.old.iter().chain([&self.index])
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.indexes().map(Index::memory_bytes).sum()
    }
}
