//! A bucket of the frozen index: the tags and addresses of the keys in one cache line.

use crate::index::Hash32;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Lanes in a bucket.
pub(super) const LANES: usize = 12;
/// Where an entry's address would be: it was taken out, or the index is no longer in use.
pub(super) const GONE: u32 = 0;
/// The entry has just been replaced, and its successor is not yet in its shard's index.
pub(super) const REPLACING: u32 = 1;
/// The first number that stands for an address.
pub(super) const FIRST: u32 = 2;
/// The byte of the tags' second word that says whether a key passed by.
pub(super) const PASSED_BY_SHIFT: u32 = 56;

/// Keys of a cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Bucket {
    /// Eight tags, then four and the byte for keys that passed by. Empty lanes have tags, too, but
    /// no address.
    pub(super) tags: [AtomicU64; 2],
    pub(super) entries: [AtomicU32; LANES],
}

/// A word of the index and the number it had when it was read: the place of an entry without
/// another search.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Likely<'a> {
    pub(super) word: &'a AtomicU32,
    pub(super) number: u32,
}

impl Bucket {
    pub(super) fn empty() -> Self {
        Self {
            tags: std::array::from_fn(|_| AtomicU64::new(0)),
            entries: std::array::from_fn(|_| AtomicU32::new(GONE)),
        }
    }

    /// The first place with a tag, if an address stands there.
    #[inline(always)]
    pub(super) fn likely(&self, tag: u8) -> Option<Likely<'_>> {
        let lanes = self.matching(tag);
        if lanes == 0 {
            return None;
        }
        let word = self.word(lanes.trailing_zeros());
        let number = word.load(Ordering::Acquire); // the entry was made before
        (number >= FIRST).then_some(Likely { word, number })
    }

    /// Where the address of a lane stands.
    #[inline(always)]
    fn word(&self, lane: u32) -> &AtomicU32 {
        debug_assert!((lane as usize) < LANES);
        // SAFETY: lanes come from `matching`, which knows of no others.
        unsafe { self.entries.get_unchecked(lane as usize) }
    }

    /// Returns whether a key that is not here may be in the next one.
    #[inline(always)]
    pub(super) fn was_passed_by(&self) -> bool {
        self.tags()[1] >> PASSED_BY_SHIFT != 0
    }

    #[inline(always)]
    pub(super) fn tags(&self) -> [u64; 2] {
        // Relaxed: they do not change once readers can see the index.
        [self.tags[0].load(Ordering::Relaxed), self.tags[1].load(Ordering::Relaxed)]
    }
}

/// The tag of a hash.
#[inline(always)]
pub(super) fn tag(hash: Hash32) -> u8 {
    hash.0 as u8
}

/// Bits of lanes.
const ALL_LANES: u32 = (1 << LANES) - 1;

impl Bucket {
    /// Lanes whose tag is the one given, a bit each. For readers of an index that was published.
    #[inline(always)]
    fn matching(&self, tag: u8) -> u32 {
        #[cfg(target_arch = "x86_64")]
        if crate::sync::ATOMICS_ARE_PLAIN {
            use std::arch::x86_64::{
                _mm_cmpeq_epi8, _mm_load_si128, _mm_movemask_epi8, _mm_set1_epi8,
            };
            // SAFETY: SSE2 is part of x86_64; the tags are 16 bytes at the beginning of a cache
            // line, and no thread writes them once the index is published.
            let bits = unsafe {
                let tags = _mm_load_si128((&raw const self.tags).cast());
                _mm_movemask_epi8(_mm_cmpeq_epi8(tags, _mm_set1_epi8(tag as i8)))
            };
            return bits as u32 & ALL_LANES;
        }
        self.matching_in_words(tag)
    }

    /// The same while the index may be under construction.
    #[inline(always)]
    pub(super) fn matching_in_words(&self, tag: u8) -> u32 {
        bits_of_equal_bytes(self.tags(), tag) & ALL_LANES
    }
}

/// Returns which of sixteen bytes are the one given, a bit each.
#[inline(always)]
fn bits_of_equal_bytes(words: [u64; 2], byte: u8) -> u32 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    let bits = |word: u64| {
        let different = word ^ (u64::from(byte) * ONES);
        // Bytes that are zero, and no others: without a carry from one to the next.
        let equal = !(((different & LOW) + LOW) | different | LOW) >> 7;
        (equal.wrapping_mul(0x0102_0408_1020_4080) >> 56) as u32
    };
    bits(words[0]) | bits(words[1]) << 8
}
