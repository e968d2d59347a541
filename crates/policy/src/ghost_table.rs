//! A ghost queue without links: which keys left during the last so many departures.
//!
//! Each departure gets the next number and is stored with it in the tag's bucket, one cache line of
//! eight ghosts that move up for it; a ghost whose number is too long ago counts as forgotten, so
//! the queue needs no order (S3-FIFO, section 4.2). A bucket that overflows forgets its oldest
//! early: one ghost in fifty at the load chosen here.

use crate::count::looked_up_ghost;
use crate::index::Tag;

/// Places in a bucket: a cache line.
const PLACES: usize = 8;

/// Ghosts per bucket when the table is full. A bucket of eight overflows in 2 % of cases.
const LOAD: usize = 4;

/// The ghosts of a bucket, newest first. Tag 0 with number 0 is empty.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(64))]
struct Bucket {
    tags: [u32; PLACES],
    departed: [u32; PLACES],
}

/// Tags of the last departures.
#[derive(Debug, Clone, Default)]
pub(crate) struct GhostTable {
    buckets: Vec<Bucket>,
    departures: u32,
}

impl GhostTable {
    /// Makes room for `count` ghosts, forgetting all when the table has to grow.
    pub(crate) fn reserve(&mut self, count: usize) {
        let buckets = count.div_ceil(LOAD);
        if buckets > self.buckets.len() {
            self.buckets = vec![Bucket::default(); buckets];
        }
    }

    #[inline]
    fn bucket(&mut self, tag: Tag) -> Option<&mut Bucket> {
        let at = (u64::from(tag.spread()) * self.buckets.len() as u64) >> 32;
        self.buckets.get_mut(at as usize)
    }

    /// Remembers a departure.
    #[inline]
    pub(crate) fn push(&mut self, tag: Tag) {
        self.departures = self.departures.wrapping_add(1);
        let now = self.departures;
        if let Some(bucket) = self.bucket(tag) {
            bucket.tags.copy_within(..PLACES - 1, 1);
            bucket.departed.copy_within(..PLACES - 1, 1);
            bucket.tags[0] = tag.bits();
            bucket.departed[0] = now;
        }
    }

    /// Forgets a tag and says whether it was among the last `limit` departures.
    #[inline(always)]
    pub(crate) fn take(&mut self, tag: Tag, limit: u64) -> bool {
        let now = self.departures;
        let Some(bucket) = self.bucket(tag) else { return false };
        // All tags at once: most keys are no ghosts, and where one stands matters for the few only.
        let mut is_here = false;
        for other in bucket.tags {
            is_here |= other == tag.bits();
        }
        let at =
            if is_here { bucket.tags.iter().position(|&other| other == tag.bits()) } else { None };
        let Some(at) = at else {
            looked_up_ghost(false);
            return false;
        };
        let departed = std::mem::take(&mut bucket.departed[at]);
        bucket.tags[at] = 0;
        let found = departed != 0 && u64::from(now.wrapping_sub(departed)) < limit;
        looked_up_ghost(found);
        found
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.buckets.capacity() * size_of::<Bucket>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ghost_is_remembered_for_so_many_departures_and_once() {
        let mut ghosts = GhostTable::default();
        ghosts.reserve(8);
        for key in 1..=8 {
            ghosts.push(Tag::of(key));
        }
        assert!(!ghosts.take(Tag::of(3), 5), "five others have left since");
        assert!(ghosts.take(Tag::of(4), 5));
        assert!(!ghosts.take(Tag::of(4), 5), "it is forgotten once taken");
    }
}
