//! A ghost queue without links: which keys left during the last so many departures.
//!
//! Each departure gets the next number and is stored with it in one of eight places of the tag's bucket, one cache
//! line; a ghost whose number is too long ago counts as forgotten, so the queue needs no order (S3-FIFO, section
//! 4.2). A bucket that overflows forgets its oldest early: one ghost in fifty at the load chosen here.

use crate::index::Tag;

/// Places in a bucket: a cache line.
const PLACES: usize = 8;

/// Ghosts per bucket when the table is full. A bucket of eight overflows in 2 % of cases.
const LOAD: usize = 4;

/// Tags of the last departures.
#[derive(Debug, Clone, Default)]
pub(crate) struct GhostTable {
    /// `tag << 32 | number of the departure`; 0 is empty.
    buckets: Vec<[u64; PLACES]>,
    departures: u32,
}

impl GhostTable {
    /// Makes room for `count` ghosts, forgetting all when the table has to grow.
    pub(crate) fn reserve(&mut self, count: usize) {
        let buckets = count.div_ceil(LOAD);
        if buckets > self.buckets.len() {
            self.buckets = vec![[0; PLACES]; buckets];
        }
    }

    #[inline]
    fn bucket(&mut self, tag: Tag) -> Option<&mut [u64; PLACES]> {
        let at = (u64::from(tag.spread()) * self.buckets.len() as u64) >> 32;
        self.buckets.get_mut(at as usize)
    }

    /// Remembers a departure.
    #[inline]
    pub(crate) fn push(&mut self, tag: Tag) {
        self.departures = self.departures.wrapping_add(1);
        let now = self.departures;
        if let Some(bucket) = self.bucket(tag) {
            let mut oldest = 0;
            let mut age = 0;
            for (at, entry) in bucket.iter().enumerate() {
                let entry_age = if *entry == 0 { u32::MAX } else { now.wrapping_sub(*entry as u32) };
                if entry_age > age {
                    (oldest, age) = (at, entry_age);
                }
            }
            bucket[oldest] = u64::from(tag.bits()) << 32 | u64::from(now);
        }
    }

    /// Forgets a tag and says whether it was among the last `limit` departures.
    #[inline]
    pub(crate) fn take(&mut self, tag: Tag, limit: u64) -> bool {
        let now = self.departures;
        let Some(bucket) = self.bucket(tag) else { return false };
        let mut recent = false;
        for entry in bucket.iter_mut() {
            if (*entry >> 32) as u32 == tag.bits() && *entry != 0 {
                recent |= u64::from(now.wrapping_sub(*entry as u32)) < limit;
                *entry = 0;
            }
        }
        recent
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.buckets.capacity() * size_of::<[u64; PLACES]>()
    }
}
