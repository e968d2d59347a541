//! A ghost queue without links: remembers the tags of the latest departures, in ten bytes a ghost.
//!
//! Departures are numbered. A ghost is a place in its tag's bucket, which has the newest first, and
//! counts as forgotten when its number is too old. So the queue needs no order (S3-FIFO, section
//! 4.2). A bucket that overflows forgets its oldest ghost early: one ghost in fifty at the load
//! chosen here.
//!
//! A place has 40 bits, but no tag and no number is cut short where that would be noticed. The
//! upper half of tag × buckets is the bucket. Tags of one bucket differ in the upper bits of the
//! lower half, their *rest*, which takes one bit less for each doubling of the buckets. The other
//! bits of the place are the lowest of the number. In as many departures as these count, each
//! bucket is [tidied](GhostTable::tidy) several times, so an old number never becomes a new one.

use crate::count::looked_up_ghost;
use crate::ghosts::Tag;

/// Number of ghosts in a bucket.
const PLACES: usize = 8;
/// Number of ghosts per bucket when the table is full. At four, 2 % of the buckets of eight
/// overflow.
const LOAD: usize = 4;
/// Bits of a place.
const BITS: u32 = 40;
/// Number of departures after which another bucket is tidied, a power of two.
const TIDY_EVERY: u64 = 32;

/// The ghosts of a bucket, newest first: the lower 32 bits of each, and the upper ones. The lowest
/// bits are the rest of the tag.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
struct Bucket {
    low: [u32; PLACES],
    /// A byte for each, the lowest for the newest.
    high: u64,
}

impl Bucket {
    #[inline(always)]
    fn get(&self, place: usize) -> u64 {
        u64::from((self.high >> (8 * place)) as u8) << u32::BITS | u64::from(self.low[place])
    }

    #[inline(always)]
    fn set(&mut self, place: usize, bits: u64) {
        self.low[place] = bits as u32;
        let shift = 8 * place;
        self.high = self.high & !(0xff << shift) | u64::from((bits >> u32::BITS) as u8) << shift;
    }
}

/// The tags of a fixed number of latest departures.
///
/// Invariant: no place is as old as numbers go. An empty place, and one that was tidied, has the
/// [age](Self::age) of [`old`](Self::old) or more, and no ghost is found by it.
#[derive(Debug, Clone, Default)]
pub(crate) struct GhostTable {
    buckets: Vec<Bucket>,
    departures: u64,
    /// Bits of a place that have the rest of a tag.
    rest_bits: u32,
    /// Mask of these bits.
    rest_mask: u32,
    /// Number of the bucket that is tidied next.
    tidied: usize,
}

impl GhostTable {
    /// Allocates for `count` ghosts. If the table has to grow, it forgets all ghosts.
    pub(crate) fn reserve(&mut self, count: usize) {
        let buckets = count.div_ceil(LOAD);
        if buckets > self.buckets.len() {
            self.buckets = vec![Bucket::default(); buckets];
            self.rest_bits = u32::BITS - buckets.ilog2();
            self.rest_mask = u32::MAX >> buckets.ilog2();
            (self.departures, self.tidied) = (self.old(), 0); // places begin with number 0
        }
    }

    /// Returns the age from which a departure counts as forgotten by all. A quarter of the numbers
    /// is more than 32 for each bucket.
    #[inline(always)]
    fn forgotten(&self) -> u64 {
        1 << (BITS - self.rest_bits - 2)
    }

    /// Returns the age that an empty place is given: half of the numbers.
    #[inline(always)]
    fn old(&self) -> u64 {
        2 * self.forgotten()
    }

    /// Returns the number of departures since that of a place.
    #[inline(always)]
    fn age(&self, bits: u64) -> u64 {
        self.departures.wrapping_sub(bits >> self.rest_bits) & (4 * self.forgotten() - 1)
    }

    /// Returns the bits of an empty place.
    #[inline(always)]
    fn empty(&self) -> u64 {
        self.departures.wrapping_sub(self.old()) << self.rest_bits
    }

    /// Returns the bucket of a tag, and the tag's rest.
    #[inline(always)]
    fn home(&self, tag: Tag) -> (usize, u32) {
        let product = u64::from(tag.spread()) * self.buckets.len() as u64;
        // Below the length, as the spread tag is below 2^32. Of products with one upper half, the
        // lower ones are at least the number of buckets apart.
        let rest = u64::from(product as u32) >> (u32::BITS - self.rest_bits);
        ((product >> u32::BITS) as usize, rest as u32)
    }

    /// Adds a tag as the latest departure.
    #[inline]
    pub(crate) fn push(&mut self, tag: Tag) {
        if self.buckets.is_empty() {
            return;
        }
        self.departures = self.departures.wrapping_add(1);
        let (home, rest) = self.home(tag);
        let bucket = &mut self.buckets[home];
        bucket.low.copy_within(..PLACES - 1, 1);
        let bits = self.departures << self.rest_bits | u64::from(rest);
        bucket.low[0] = bits as u32;
        bucket.high = bucket.high << u8::BITS | u64::from((bits >> u32::BITS) as u8);
        if self.departures.is_multiple_of(TIDY_EVERY) {
            self.tidy();
        }
    }

    /// Forgets a tag and returns whether it was among the last `limit` departures.
    #[inline(always)]
    pub(crate) fn take(&mut self, tag: Tag, limit: u64) -> bool {
        let (home, rest) = self.home(tag);
        let mask = self.rest_mask;
        // All places at once: most keys are no ghosts, and where one stands matters for the few
        // only.
        let mut is_here = false;
        if let Some(bucket) = self.buckets.get(home) {
            for low in bucket.low {
                is_here |= (low ^ rest) & mask == 0;
            }
        }
        let found = is_here && self.take_from(home, |low| (low ^ rest) & mask == 0, limit);
        looked_up_ghost(found);
        found
    }

    /// Forgets a ghost of a bucket and returns whether it was among the last `limit` departures.
    #[inline(never)]
    fn take_from(&mut self, home: usize, is_it: impl Fn(u32) -> bool, limit: u64) -> bool {
        let limit = limit.min(self.forgotten());
        for place in 0..PLACES {
            let bucket = &self.buckets[home];
            // An empty place can have any rest.
            if is_it(bucket.low[place]) && self.age(bucket.get(place)) < limit {
                let empty = self.empty();
                self.buckets[home].set(place, empty);
                return true;
            }
        }
        false
    }

    /// Empties the places of the next bucket whose departures are forgotten, before their numbers
    /// come again.
    #[cold]
    fn tidy(&mut self) {
        let (at, empty) = (self.tidied, self.empty());
        for place in 0..PLACES {
            if self.age(self.buckets[at].get(place)) >= self.forgotten() {
                self.buckets[at].set(place, empty);
            }
        }
        self.tidied = (at + 1) % self.buckets.len();
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.buckets.capacity() * size_of::<Bucket>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix;

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

    #[test]
    fn a_table_without_room_remembers_nothing() {
        let mut ghosts = GhostTable::default();
        ghosts.push(Tag::of(1));
        assert!(!ghosts.take(Tag::of(1), u64::MAX));
    }

    /// The same queue with whole tags and numbers: each bucket from its newest ghost.
    struct Plain {
        buckets: Vec<Vec<(u32, u64)>>,
        departures: u64,
    }

    impl Plain {
        fn bucket(&mut self, tag: Tag) -> &mut Vec<(u32, u64)> {
            let at = (u64::from(tag.spread()) * self.buckets.len() as u64) >> 32;
            &mut self.buckets[at as usize]
        }

        fn push(&mut self, tag: Tag) {
            self.departures += 1;
            let now = self.departures;
            let bucket = self.bucket(tag);
            bucket.insert(0, (tag.bits(), now));
            bucket.truncate(PLACES);
        }

        fn take(&mut self, tag: Tag, limit: u64) -> bool {
            let now = self.departures;
            let bucket = self.bucket(tag);
            let Some(at) = bucket.iter().position(|ghost| ghost.0 == tag.bits()) else {
                return false;
            };
            // An emptied place stays where it is until it is pushed out.
            now - std::mem::take(&mut bucket[at]).1 < limit
        }
    }

    #[test]
    fn nothing_is_cut_short() {
        for (count, keys) in [(1, 5), (4, 12), (5, 9), (40, 100), (3000, 9000), (100_000, 150_000)]
        {
            let mut ghosts = GhostTable::default();
            ghosts.reserve(count);
            let mut plain =
                Plain { buckets: vec![Vec::new(); count.div_ceil(LOAD)], departures: 0 };
            let mut found = 0;
            for step in 0..400_000_u64 {
                // At times only a few keys leave, and the buckets of others stay as they are.
                let keys = if step / 50_000 % 2 == 1 { 3 } else { keys };
                let tag = Tag::of(mix(mix(step) % keys));
                let was_ghost = ghosts.take(tag, count as u64);
                assert_eq!(was_ghost, plain.take(tag, count as u64), "{count}, {step}");
                found += u32::from(was_ghost);
                if mix(step) >> 60 != 0 {
                    ghosts.push(tag);
                    plain.push(tag);
                }
            }
            assert!(found > 1000, "{count}: {found}");
        }
    }
}
