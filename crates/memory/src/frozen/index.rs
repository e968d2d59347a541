//! The frozen index: from the keys of the hottest entries to their addresses. Readers use it
//! instead of a shard's index.
//!
//! Its keys are fixed when it is built, so lookups need neither the policy's marks nor a shard. It
//! is an overlay: its keys stay in the index of their shard, and a reader that does not find a key
//! here looks it up there. That makes removing an entry a single store: the word of its address is
//! cleared, and from then on the shard decides about the key.
//!
//! A bucket is one cache line. It has a tag of eight bits and 32 bits of address for each of twelve
//! keys. A mark tells that a key passed by because the bucket was full when it came. The bits of
//! address are a number in [`Windows`], which reach over 32 GiB of memory wherever it lies; entries
//! beyond that are not frozen. At the filling here that is 7.6 bytes a key. All tags are compared
//! at once and without a branch.
//!
//! Readers rely on the invariant of [`index`](crate::index): *an address in the index is that of a
//! live entry*.

use std::ops::Range;

use crate::barrier;
use crate::entry::Entry;
use crate::frozen::windows::{FIRST, Windows};
use crate::guard::Keep;
use crate::hazard::Cell;
use crate::index::Hash32;
use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Average share of filled lanes: with 8.4 of 12, one key in thirty passes its first bucket by.
const FILLED: f64 = 0.7;

/// A frozen index over entries of one type.
#[derive(Debug)]
pub(crate) struct FrozenIndex<K, V> {
    buckets: Box<[Bucket]>,
    windows: Windows<Entry<K, V>>,
    len: AtomicUsize,
}

impl<K, V> FrozenIndex<K, V> {
    /// Creates an index with room for `keys` keys, whose entries lie in the given memory as far as
    /// numbers reach.
    pub(crate) fn with_room(keys: usize, memory: &[Range<usize>]) -> Self {
        let count = ((keys as f64 / (LANES as f64 * FILLED)).ceil() as usize).max(1) + 1;
        let mut buckets = Vec::with_capacity(count);
        crate::hints::prefer(buckets.as_mut_ptr(), count * size_of::<Bucket>());
        buckets.extend((0..count).map(|_| Bucket::empty()));
        let windows = Windows::over(memory);
        Self { buckets: buckets.into(), windows, len: AtomicUsize::new(0) }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.buckets)
    }

    /// Returns the maximum number of keys that the index takes. It is more than were announced, as
    /// insertions may go on meanwhile, and few enough that every search ends.
    fn room(&self) -> usize {
        self.buckets.len() * LANES * 9 / 10
    }

    /// Returns the number of keys that were inserted.
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed) // a count
    }

    /// Returns true if an entry at this address is within reach of the index.
    pub(crate) fn reaches(&self, address: usize) -> bool {
        self.windows.number(address).is_some()
    }

    /// Returns the number of a key's first bucket.
    #[inline(always)]
    fn first(&self, hash: Hash32) -> usize {
        ((u64::from(hash.0) * self.buckets.len() as u64) >> 32) as usize
    }

    #[inline(always)]
    fn after(&self, bucket: usize) -> usize {
        if bucket + 1 < self.buckets.len() { bucket + 1 } else { 0 }
    }

    #[inline(always)]
    fn bucket(&self, number: usize) -> &Bucket {
        debug_assert!(number < self.buckets.len());
        // SAFETY: numbers come from `first`, which is below the length as the hash is below 2^32,
        // and from `after`.
        unsafe { self.buckets.get_unchecked(number) }
    }

    /// Returns the lanes with a key's tag, bucket by bucket. The search ends because not all
    /// buckets are full.
    #[inline(always)]
    fn candidates(&self, hash: Hash32) -> impl Iterator<Item = (&Bucket, usize)> {
        let tag = tag(hash);
        let mut number = self.first(hash);
        let mut lanes = self.bucket(number).matching_in_words(tag);
        std::iter::from_fn(move || {
            while lanes == 0 {
                if !self.bucket(number).was_passed_by() {
                    return None;
                }
                number = self.after(number);
                lanes = self.bucket(number).matching_in_words(tag);
            }
            let lane = lanes.trailing_zeros() as usize;
            lanes &= lanes - 1;
            Some((self.bucket(number), lane))
        })
    }

    /// Inserts a live entry if there is room and its address can be reached. Only the builder calls
    /// this, and the entry's owner must not remove the entry meanwhile.
    pub(crate) fn insert(&self, hash: Hash32, address: usize) {
        let Some(entry) = self.windows.number(address) else { return };
        let len = self.len.load(Ordering::Relaxed); // the builder alone writes it
        if len == self.room() {
            return;
        }
        self.len.store(len + 1, Ordering::Relaxed);
        let mut number = self.first(hash);
        loop {
            let bucket = self.bucket(number);
            let tags = bucket.tags();
            // Relaxed: where an entry was taken out meanwhile, another may come.
            let free =
                (0..LANES).find(|lane| bucket.entries[*lane].load(Ordering::Relaxed) == GONE);
            if let Some(lane) = free {
                let (word, shift) = (lane / 8, 8 * (lane % 8));
                let tagged = tags[word] & !(0xff << shift) | u64::from(tag(hash)) << shift;
                // Relaxed: a thread that reads it sees the index published, or has the entry from
                // the builder; the builder alone writes them.
                bucket.tags[word].store(tagged, Ordering::Relaxed);
                bucket.entries[lane].store(entry, Ordering::Release); // the entry was made before
                return;
            }
            bucket.tags[1].store(tags[1] | 1 << PASSED_BY_SHIFT, Ordering::Relaxed); // as above
            number = self.after(number);
        }
    }

    /// Returns the word with an entry's address, if the entry is in the index.
    fn word(&self, hash: Hash32, address: usize) -> Option<&AtomicU32> {
        let number = self.windows.number(address)?;
        // Relaxed: the caller owns the entry, so no other thread changes the word but to end its
        // use.
        let is_it = |(bucket, lane): &(&Bucket, usize)| {
            bucket.entries[*lane].load(Ordering::Relaxed) == number
        };
        self.candidates(hash).find(is_it).map(|(bucket, lane)| &bucket.entries[lane])
    }

    /// Removes an entry: no later lookup finds it here. Only the entry's owner may call this.
    pub(crate) fn take_out(&self, hash: Hash32, address: usize) {
        if let Some(word) = self.word(hash, address) {
            word.store(GONE, Ordering::Release); // before the entry goes, by the barrier in between
        }
    }

    /// Replaces an entry. Only the entry's owner may call this. `replace` puts the new entry into
    /// the shard's index.
    ///
    /// Meanwhile the key is looked up in its shard only. Otherwise one reader could see the new
    /// value here, and a later one, which has just missed the end of this index, the old value
    /// there.
    pub(crate) fn replace(
        &self,
        hash: Hash32,
        before: usize,
        after: usize,
        replace: impl FnOnce(),
    ) {
        let word = self.word(hash, before);
        let Some(number) = self.windows.number(before) else { return replace() };
        let change = |from, to| {
            // Not if the index has been poisoned meanwhile. Release: as in `take_out` and `insert`.
            word.is_some_and(|word| {
                word.compare_exchange(from, to, Ordering::Release, Ordering::Relaxed).is_ok()
            })
        };
        let is_in = change(number, REPLACING);
        replace();
        if is_in {
            change(REPLACING, self.windows.number(after).unwrap_or(GONE));
        }
    }

    /// Makes every address in the index invalid for late readers. Called after the index was
    /// unpublished, and before entries can leave without an update here.
    pub(crate) fn poison(&self) {
        for entry in self.buckets.iter().flat_map(|bucket| &bucket.entries) {
            // before any entry goes, by the barrier in between
            entry.store(GONE, Ordering::Release);
        }
    }

    /// Protects the entry of a word by a free cell, if the word has not changed. The barrier must
    /// be asymmetric, and the thread's record must name this index.
    #[inline(always)]
    pub(crate) fn keep<'a>(
        &self,
        likely: Likely<'_>,
        cell: &'a Cell,
    ) -> Option<(&'a Entry<K, V>, Keep<'a>)> {
        let address = self.windows.address(likely.number);
        cell.store(address, Ordering::Release); // see `Record::looked_at`
        barrier::light_if_asymmetric();
        let keep = Keep::new(cell);
        // Acquire: the entry was made before its address was put here.
        if likely.word.load(Ordering::Acquire) != likely.number {
            return None;
        }
        // SAFETY: the number is in the index, so that it stands for the address of an entry.
        unsafe { std::hint::assert_unchecked(address != 0) };
        // SAFETY: the address is in the index after the cell names the entry, so an owner that
        // takes it out later will see the cell and not free it. No thread frees an entry that a
        // filled cell names, and the cell stays filled as long as `keep` is there.
        Some((unsafe { &*std::ptr::with_exposed_provenance::<Entry<K, V>>(address) }, keep))
    }

    /// Prefetches a key's first bucket.
    #[inline(always)]
    pub(crate) fn prefetch(&self, hash: Hash32) {
        crate::hints::line(self.bucket(self.first(hash)));
    }

    /// Prefetches the memory of an entry.
    #[inline(always)]
    pub(crate) fn prefetch_entry(&self, likely: Likely<'_>) {
        crate::hints::span(std::ptr::without_provenance::<Entry<K, V>>(
            self.windows.address(likely.number),
        ));
    }

    /// Returns the first place in a key's first bucket that has its tag. If the key is in the
    /// index, this is its place nineteen times in twenty. The thread's record must name this index.
    #[inline(always)]
    pub(crate) fn likely(&self, hash: Hash32) -> Option<Likely<'_>> {
        self.bucket(self.first(hash)).likely(tag(hash))
    }

    /// Works as [`likely`](Self::likely), and goes on to later buckets where the first one has no
    /// such tag.
    #[inline(always)]
    pub(crate) fn likely_further(&self, hash: Hash32) -> Option<Likely<'_>> {
        let mut at = self.first(hash);
        loop {
            let bucket = self.bucket(at);
            let likely = bucket.likely(tag(hash));
            if likely.is_some() || !bucket.was_passed_by() {
                return likely;
            }
            at = self.after(at);
        }
    }
}

/// Number of lanes in a bucket: the keys that it can hold.
const LANES: usize = 12;
/// Number in place of an address when the entry was removed or the index is no longer in use.
const GONE: u32 = 0;
/// Number in place of an address while an entry is being replaced and its successor is not yet in
/// the shard's index.
const REPLACING: u32 = 1;
const _: () = assert!(GONE < FIRST && REPLACING < FIRST, "neither stands for an address");
/// Bit position, in the second word of tags, of the byte that is set if a key passed by.
const PASSED_BY_SHIFT: u32 = 56;

/// A group of twelve keys in one cache line.
#[derive(Debug)]
#[repr(C, align(64))]
struct Bucket {
    /// Eight tags, then four and the byte for keys that passed by. Empty lanes have tags, too, but
    /// no address.
    tags: [AtomicU64; 2],
    entries: [AtomicU32; LANES],
}

/// A word of the index and the number read from it, which lead to an entry without another search.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Likely<'a> {
    word: &'a AtomicU32,
    number: u32,
}

impl Bucket {
    fn empty() -> Self {
        Self {
            tags: std::array::from_fn(|_| AtomicU64::new(0)),
            entries: std::array::from_fn(|_| AtomicU32::new(GONE)),
        }
    }

    /// Returns the first lane with a tag, if it has an address.
    #[inline(always)]
    fn likely(&self, tag: u8) -> Option<Likely<'_>> {
        let lanes = self.matching(tag);
        if lanes == 0 {
            return None;
        }
        let word = self.word(lanes.trailing_zeros());
        let number = word.load(Ordering::Acquire); // the entry was made before
        (number >= FIRST).then_some(Likely { word, number })
    }

    /// Returns the word with the address of a lane.
    #[inline(always)]
    fn word(&self, lane: u32) -> &AtomicU32 {
        debug_assert!((lane as usize) < LANES);
        // SAFETY: lanes come from `matching`, which knows of no others.
        unsafe { self.entries.get_unchecked(lane as usize) }
    }

    /// Returns true if a key that is not in this bucket may be in the next one.
    #[inline(always)]
    fn was_passed_by(&self) -> bool {
        self.tags()[1] >> PASSED_BY_SHIFT != 0
    }

    #[inline(always)]
    fn tags(&self) -> [u64; 2] {
        // Relaxed: they do not change once readers can see the index.
        [self.tags[0].load(Ordering::Relaxed), self.tags[1].load(Ordering::Relaxed)]
    }

    /// Returns the lanes with a tag, one bit each. For readers of an index that was published.
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

    /// Returns the lanes with a tag, one bit each. Also valid while the index is under
    /// construction.
    #[inline(always)]
    fn matching_in_words(&self, tag: u8) -> u32 {
        bits_of_equal_bytes(self.tags(), tag) & ALL_LANES
    }
}

/// Returns the tag of a hash.
#[inline(always)]
fn tag(hash: Hash32) -> u8 {
    hash.0 as u8
}

/// One bit for each lane of a bucket.
const ALL_LANES: u32 = (1 << LANES) - 1;

/// Compares sixteen bytes with `byte`, and returns one bit for each: 1 if they are equal.
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
