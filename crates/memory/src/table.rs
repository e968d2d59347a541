//! What a hit goes through in a shard: the index, and the marks of the policy.
//!
//! A table is published by one pointer and replaced as a whole when there is to be more room. The owner of a shard then
//! [poisons](crate::index::Index::poison) the old index, so that a reader that is late finds nothing valid in it and looks
//! for the new one.

use crate::index::Index;

/// What readers of a shard see.
#[derive(Debug)]
pub(crate) struct Table<M> {
    pub(crate) index: Index,
    pub(crate) marks: M,
}
