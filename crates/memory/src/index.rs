//! The index of a shard, from a key's hash to the place of its entry. Any thread reads it without
//! locks; only the shard's owner changes it.
//!
//! A bucket is half a cache line. It has six [places](Places), a tag of seven bits for each, and
//! the number of keys that *passed by* because the bucket was full when they were inserted. F14
//! does that, too (Bronson and Shi, "Open-sourcing F14", 2019). Tags and count are one word. A key
//! stays in its lane until it is removed. A reader goes on to the next bucket as long as a key
//! passed by, so it finds every key that is present throughout. All tags of a bucket are compared
//! at once and without a branch. A mispredicted branch on memory that has yet to arrive would stop
//! the processor from working on the next lookup.
//!
//! Readers rely on this: *a place in a lane is that of a live entry*. It is cleared before the
//! entry is freed. Tags are hints; a reader that follows one compares the key.
//!
//! # Places
//!
//! An index has numbers of 32 bits in place of addresses, so that twice as many keys fit into a
//! cache line. A slab takes its memory in chunks. The upper bits of a number give the chunk, the
//! lower ones the entry in it, counted from 1. Number 0 is no place. The marks of most policies are
//! in the order of places, so that a hit finds the mark by the number alone: its memory is read
//! while that of the entry is on its way.
//!
//! # Tables
//!
//! A table is a hit's way through a shard: the index, the marks of the policy, and renewals.
//!
//! It is published by one pointer and never changes, though the index and marks that it points to
//! do. It is replaced when the marks or the index need more room. A larger index is filled step by
//! step: while the table also has an *old* index, each key is in one of the two, and each insertion
//! moves some. A key is in the new index before it leaves the old one. So a reader that looks into
//! the old index first and then into the new one finds every key that is present throughout. The
//! last step publishes a table without the old index.
//!
//! Tables share their indexes. A reader with an outdated table finds indexes that are still up to
//! date, or empty ones. It looks again if it has found nothing and the table was replaced. Tables
//! are freed with their shard only, so readers need not publish which one they use.
//!
//! # Renewals
//!
//! Most entries have no [renewal](crate::renewal::Renewal). So renewals are not part of an entry: a
//! shard has an array of them, by slot, once one of its entries has needed it.
//!
//! The owner stores the renewal of a slot before it publishes the entry there, so a reader that has
//! found the entry sees it in the present table. A reader that is late sees that of the slot's next
//! entry, and may give the earlier one another expiry; nobody finds that one any more. A reader
//! that keeps entries for later takes their renewals under the owner's lock.

use std::ptr::NonNull;

use floe_policy::{Access, Eviction, mix, tag_of};
use foldhash::quality;

use crate::sync::{Arc, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Number of lanes in a bucket: the keys that it can hold.
pub(crate) const LANES: usize = 6;
/// Largest average share of filled lanes: at 3.7 of 6, one key in thirty passes its first bucket
/// by.
const FILLED: f64 = 0.62;

/// A word with 1 in each byte.
#[cfg(not(target_arch = "x86_64"))]
const ONES: u64 = 0x0101_0101_0101_0101;
/// Mask of the highest bit of each byte that is a tag. The last byte counts keys that passed by,
/// and the one before it is unused.
const HIGHEST: u64 = 0x0000_8080_8080_8080;
/// Bit position of the count of keys that passed by.
const PASSED_BY_SHIFT: u32 = 56;
/// Largest count of keys that passed by. A count that has reached it stays there, and readers look
/// further than they need to.
const PASSED_BY_MAX: u64 = 255;

/// 32 bits of a key's hash: the upper ones choose the first bucket, the lower ones are the tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hash32(pub(crate) u32);

impl Hash32 {
    /// Returns the tag, which is never 0: a tag of 0 marks an empty lane.
    #[inline(always)]
    fn tag(self) -> u64 {
        u64::from(self.0 as u8 | 1 << 7)
    }
}

/// A group of six keys in half a cache line.
#[derive(Debug)]
#[repr(C, align(32))]
pub(crate) struct Bucket {
    tags: AtomicU64,
    places: [AtomicU32; LANES],
}

/// Snapshot of a bucket's tags, and the number of keys that passed by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tags(u64);

impl Tags {
    /// Returns the lanes whose tag may be the key's: all that have it, and rarely one more.
    #[inline(always)]
    pub(crate) fn matching(self, hash: Hash32) -> Lanes {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: SSE2 is part of x86_64.
        let lanes = unsafe {
            use std::arch::x86_64::{
                _mm_cmpeq_epi8, _mm_cvtsi32_si128, _mm_cvtsi64_si128, _mm_movemask_epi8,
                _mm_shufflelo_epi16, _mm_unpacklo_epi8,
            };
            // Of these bytes only the lowest is used: the tag.
            let tag = _mm_cvtsi32_si128((hash.0 | 1 << 7) as i32);
            let wanted = _mm_shufflelo_epi16::<0>(_mm_unpacklo_epi8(tag, tag));
            let there = _mm_cvtsi64_si128(self.0 as i64);
            Lanes(_mm_movemask_epi8(_mm_cmpeq_epi8(wanted, there)) as LaneBits & ALL_LANES)
        };
        #[cfg(not(target_arch = "x86_64"))]
        let lanes = {
            let different = self.0 ^ (hash.tag() * ONES);
            // Bytes that are zero get their highest bit set (Mycroft's test); a borrow can mark one
            // above a true match, too.
            Lanes(different.wrapping_sub(ONES) & !different & HIGHEST)
        };
        lanes
    }

    /// Returns true if a key that is not in this bucket may be in a later one.
    #[inline(always)]
    pub(crate) fn were_passed_by(self) -> bool {
        self.0 >> PASSED_BY_SHIFT != 0
    }

    /// Returns the first empty lane.
    fn free(self) -> Option<usize> {
        // Tags in use have their highest bit set, empty ones have not.
        let free = !self.0 & HIGHEST;
        (free != 0).then(|| free.trailing_zeros() as usize / 8)
    }

    /// Sets the tag of an empty lane, which is 0.
    fn with_tag(self, lane: usize, tag: u64) -> Self {
        Self(self.0 | tag << (8 * lane))
    }

    fn without_tag(self, lane: usize) -> Self {
        Self(self.0 & !(0xff << (8 * lane)))
    }

    fn with_one_more_passed_by(self) -> Self {
        if self.0 >> PASSED_BY_SHIFT == PASSED_BY_MAX {
            self
        } else {
            Self(self.0 + (1 << PASSED_BY_SHIFT))
        }
    }

    fn with_one_less_passed_by(self) -> Self {
        if self.0 >> PASSED_BY_SHIFT == PASSED_BY_MAX {
            self
        } else {
            Self(self.0 - (1 << PASSED_BY_SHIFT))
        }
    }
}

/// A set of lanes with one bit for each, from the first.
#[cfg(target_arch = "x86_64")]
type LaneBits = u32;
#[cfg(target_arch = "x86_64")]
const BITS_PER_LANE: usize = 1;
#[cfg(target_arch = "x86_64")]
const ALL_LANES: LaneBits = (1 << LANES) - 1;

/// A set of lanes with the highest bit of a byte for each, from the first.
#[cfg(not(target_arch = "x86_64"))]
type LaneBits = u64;
#[cfg(not(target_arch = "x86_64"))]
const BITS_PER_LANE: usize = 8;

/// A set of lanes of a bucket.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lanes(LaneBits);

impl Lanes {
    /// Returns the first lane of the set.
    #[inline(always)]
    pub(crate) fn first(self) -> Option<usize> {
        if self.0 == 0 { None } else { Some(self.0.trailing_zeros() as usize / BITS_PER_LANE) }
    }
}

impl Iterator for Lanes {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        let first = self.first()?;
        self.0 &= self.0 - 1;
        Some(first)
    }
}

impl Bucket {
    fn empty() -> Self {
        Self { tags: AtomicU64::new(0), places: std::array::from_fn(|_| AtomicU32::new(NOWHERE)) }
    }

    /// Reads the tags of the bucket.
    #[inline(always)]
    pub(crate) fn tags(&self) -> Tags {
        // Acquire: a tag is stored after its place, and a count goes down after the lane of the
        // key that passed by was emptied. A tag that is not yet seen belongs to a key that was
        // inserted just now, or after this.
        Tags(self.tags.load(Ordering::Acquire))
    }

    /// Reads the place in a lane, or [`NOWHERE`].
    #[inline(always)]
    pub(crate) fn place(&self, lane: usize) -> u32 {
        // Acquire: the entry was made before its place was put here.
        self.places[lane].load(Ordering::Acquire)
    }

    /// Changes the tags. Only the owner may call this.
    fn change_tags(&self, change: impl FnOnce(Tags) -> Tags) {
        let before = Tags(self.tags.load(Ordering::Relaxed)); // the owner stored them
        self.tags.store(change(before).0, Ordering::Release); // see `tags`
    }
}

/// An array of buckets. Clones are handles to the same index.
#[derive(Debug, Clone)]
pub(crate) struct Index {
    buckets: Arc<[Bucket]>,
    /// The first bucket. The address in `buckets` is that of its counts, and a hit would have to
    /// add their size.
    start: NonNull<Bucket>,
}

// SAFETY: `start` is a part of `buckets`, which may be sent and shared.
unsafe impl Send for Index {}
// SAFETY: as above.
unsafe impl Sync for Index {}

/// Lane of a key in its first bucket, if it is there. It is constant until the key is removed or
/// the index replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lane(u8);

/// Position of a key in an index: the numbers of its first bucket and of its bucket, and its lane
/// there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spot {
    first: usize,
    bucket: usize,
    lane: usize,
}

impl Lane {
    pub(crate) const NONE: Self = Self(LANES as u8);
    /// The first lane of a key's first bucket.
    #[cfg(test)]
    pub(crate) const FIRST: Self = Self(0);
    /// Marks a key that has passed its first bucket by, and has to be searched for.
    const SOMEWHERE: Self = Self(Self::BITS);
    /// All bits of a lane.
    pub(crate) const BITS: u8 = 7;

    fn new(further: usize, lane: usize) -> Self {
        if further == 0 { Self(lane as u8) } else { Self::SOMEWHERE }
    }

    /// Returns the lane as bits within [`BITS`](Self::BITS).
    pub(crate) const fn bits(self) -> u8 {
        self.0
    }

    /// Creates the lane from its [`bits`](Self::bits).
    #[inline(always)]
    pub(crate) fn of_bits(bits: u8) -> Self {
        Self(bits)
    }
}

impl Index {
    /// Creates an index with room for `keys` keys.
    pub(crate) fn with_room(keys: usize) -> Self {
        let buckets = ((keys as f64 / (LANES as f64 * FILLED)).ceil() as usize).max(1);
        // Memory of zeros costs nothing until it is used.
        let mut lines = Arc::<[Bucket]>::new_zeroed_slice(buckets);
        let new = Arc::get_mut(&mut lines).expect("nobody else has it yet");
        crate::hints::prefer(new.as_mut_ptr(), size_of_val(new));
        if !crate::sync::ZERO_IS_NEW {
            for line in new {
                line.write(Bucket::empty());
            }
        }
        // SAFETY: an empty bucket is one of zeros, or has been written.
        let buckets = unsafe { lines.assume_init() };
        let start = NonNull::from(&*buckets).cast();
        Self { buckets, start }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.buckets)
    }

    /// Gives the memory of an empty index back to the system; late readers may still look at it.
    /// Returns the number of bytes that are kept. Only the owner may call this.
    pub(crate) fn give_back(&self) -> usize {
        debug_assert!(self.buckets.iter().all(|bucket| bucket.tags().0 & HIGHEST == 0));
        if !crate::sync::ZERO_IS_NEW {
            return self.memory_bytes();
        }
        let start = self.buckets.as_ptr().expose_provenance();
        // SAFETY: pages that are given back read as zeros, and an index of zeros is an empty one.
        let given = unsafe { crate::hints::give_back(start..start + self.memory_bytes(), &[]) };
        self.memory_bytes() - given
    }

    /// Returns the number of a key's first bucket.
    #[inline(always)]
    pub(crate) fn first(&self, hash: Hash32) -> usize {
        ((u64::from(hash.0) * self.buckets.len() as u64) >> 32) as usize
    }

    /// Returns the number of the next bucket.
    #[inline(always)]
    pub(crate) fn after(&self, bucket: usize) -> usize {
        if bucket + 1 < self.buckets.len() { bucket + 1 } else { 0 }
    }

    /// Returns a bucket by its number.
    #[inline(always)]
    pub(crate) fn bucket(&self, number: usize) -> &Bucket {
        debug_assert!(number < self.buckets.len());
        // SAFETY: numbers come from `first`, which is below the length as the hash is below 2^32,
        // and from `after`. `buckets` keeps what `start` points to.
        unsafe { self.start.add(number).as_ref() }
    }

    /// Returns the position of a key and the number of its entry; `is_it` compares the entry's key.
    /// Only the owner may call this.
    #[inline(always)]
    pub(crate) fn find(&self, hash: Hash32, is_it: impl Fn(u32) -> bool) -> Option<(Spot, u32)> {
        let first = self.first(hash);
        let mut bucket = first;
        loop {
            let tags = self.bucket(bucket).tags();
            for lane in tags.matching(hash) {
                let place = self.bucket(bucket).place(lane);
                if place != NOWHERE && is_it(place) {
                    return Some((Spot { first, bucket, lane }, place));
                }
            }
            if !tags.were_passed_by() {
                return None;
            }
            bucket = self.after(bucket);
            if bucket == first {
                return None;
            }
        }
    }

    /// Inserts the place of a key that is not in the index. There must be room. Only the owner may
    /// call this.
    #[inline(always)]
    pub(crate) fn insert(&self, hash: Hash32, place: u32) -> Lane {
        let mut number = self.first(hash);
        for further in 0.. {
            let bucket = self.bucket(number);
            if let Some(lane) = bucket.tags().free() {
                // the entry is there: see `Bucket::place`
                bucket.places[lane].store(place, Ordering::Release);
                bucket.change_tags(|tags| tags.with_tag(lane, hash.tag()));
                return Lane::new(further, lane);
            }
            // Before the key is further on: a reader must not stop here then.
            bucket.change_tags(Tags::with_one_more_passed_by);
            number = self.after(number);
        }
        unreachable!("there is room")
    }

    /// Returns the spot and the place of a key that is in the index at a known lane. `is_it`
    /// recognizes the key's place. Only the owner may call this.
    #[inline(always)]
    pub(crate) fn spot(&self, hash: Hash32, at: Lane, is_it: impl Fn(u32) -> bool) -> (Spot, u32) {
        if at == Lane::SOMEWHERE {
            return self.search_spot(hash, is_it);
        }
        let (first, lane) = (self.first(hash), usize::from(at.0));
        let place = self.bucket(first).place(lane);
        // Not of a spot that was emptied: there is no entry at place 0.
        assert!(place != NOWHERE, "a key that is in has a place");
        debug_assert!(is_it(place), "place {place} is another key's");
        (Spot { first, bucket: first, lane }, place)
    }

    /// Returns the position of a key that has passed its first bucket by, and the number of its
    /// entry. Only the owner may call this.
    #[cold]
    #[inline(never)]
    fn search_spot(&self, hash: Hash32, is_it: impl Fn(u32) -> bool) -> (Spot, u32) {
        self.find(hash, is_it).expect("the key is in the index")
    }

    /// Replaces the place of a key in one step. Only the owner may call this.
    #[inline(always)]
    pub(crate) fn replace(&self, spot: Spot, place: u32) {
        // The entry is there: see `Bucket::place`.
        self.bucket(spot.bucket).places[spot.lane].store(place, Ordering::Release);
    }

    /// Removes a key that is in the index. Only the owner may call this.
    #[inline(always)]
    pub(crate) fn remove(&self, spot: Spot) {
        let bucket = self.bucket(spot.bucket);
        // Before the entry goes, by the barrier in between.
        bucket.places[spot.lane].store(NOWHERE, Ordering::Release);
        bucket.change_tags(|tags| tags.without_tag(spot.lane));
        let mut number = spot.first;
        while number != spot.bucket {
            self.bucket(number).change_tags(Tags::with_one_less_passed_by);
            number = self.after(number);
        }
    }

    /// Prefetches a key's first bucket.
    #[inline(always)]
    pub(crate) fn prefetch(&self, hash: Hash32) {
        crate::hints::line(self.bucket(self.first(hash)));
    }

    /// Prefetches a key's first bucket for writing.
    #[inline(always)]
    pub(crate) fn prefetch_to_write(&self, hash: Hash32) {
        crate::hints::line_to_write(self.bucket(self.first(hash)));
    }
}

// Not its `fast` variant: of 600 processes one gets a seed that puts consecutive keys into some
// shards far more often than into others.

/// The default hasher of keys: foldhash, with a random seed for each cache.
///
/// An attacker who chooses keys does not know which of them collide. Against one who sees hashes,
/// or can time many lookups, use [another hasher](crate::Builder::hasher) such as SipHash.
pub type DefaultHasher = quality::RandomState;

/// A key's hash. Every bit depends on every bit of the key, even with a weak hasher.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeyHash(u64);

impl KeyHash {
    /// Creates the hash from the result of a hasher whose bits all depend on all bits of the key.
    #[inline(always)]
    pub(crate) fn of_mixed(raw: u64) -> Self {
        Self(raw)
    }

    /// Creates the hash from the result of any hasher, by mixing it once more.
    #[inline(always)]
    pub(crate) fn of_any(raw: u64) -> Self {
        Self(mix(raw))
    }

    /// Returns the hash for tables of all keys.
    pub(crate) fn whole(self) -> u64 {
        self.0
    }

    /// Returns the hash for the index of a shard, which is the tag by which the policy knows the
    /// key: so only one of them has to keep it.
    #[inline(always)]
    pub(crate) fn in_shard(self) -> Hash32 {
        Hash32(tag_of(self.0))
    }

    /// Returns the number of the key's shard, given the number of shards minus 1. It is independent
    /// of [`in_shard`](Self::in_shard).
    #[inline(always)]
    pub(crate) fn shard(self, mask: u32) -> usize {
        ((self.0 >> 32) as u32 & mask) as usize
    }

    /// Returns the description of an access for the policy.
    #[inline(always)]
    pub(crate) fn access(self, weight: u64) -> Access {
        Access { weight: told_weight(weight), ..Access::new(self.0) }
    }
}

/// Returns the weight that policies and admissions are told, whose weights have 32 bits.
#[inline(always)]
pub(crate) fn told_weight(weight: u64) -> u32 {
    weight.min(u32::MAX.into()) as u32
}

/// The number that is no place.
pub(crate) const NOWHERE: u32 = 0;
/// Bits of a place's number that give the entry in its chunk.
const ENTRY_BITS: u32 = 25;
/// Maximum number of chunks of a slab.
pub(crate) const CHUNKS: usize = 1 << (u32::BITS - ENTRY_BITS);
/// Maximum number of entries of a chunk.
pub(crate) const ENTRIES: usize = (1 << ENTRY_BITS) - 1;

/// The addresses of a slab's chunks.
#[derive(Debug)]
pub(crate) struct Places {
    /// For each chunk, the address that place 0 would have if all lower numbers were places, too.
    bases: [AtomicUsize; CHUNKS],
    /// For each chunk, the difference between the numbers of a place in the order of all chunks and
    /// here, modulo 2³².
    orders: [AtomicU32; CHUNKS],
}

impl Places {
    pub(crate) fn new() -> Self {
        Self {
            bases: std::array::from_fn(|_| AtomicUsize::new(0)),
            orders: std::array::from_fn(|_| AtomicU32::new(0)),
        }
    }

    /// Records the address of a chunk, before any number of a place in it is shared. `earlier` is
    /// the number of entries in the chunks before it.
    pub(crate) fn add<E>(&self, chunk: usize, begin: usize, earlier: usize) {
        let before = (chunk << ENTRY_BITS) + 1;
        let base = begin.wrapping_sub(before.wrapping_mul(size_of::<E>()));
        self.bases[chunk].store(base, Ordering::Relaxed); // the index publishes it with a number
        let order = (earlier as u32).wrapping_sub(before as u32);
        self.orders[chunk].store(order, Ordering::Relaxed); // as above
    }

    /// Returns the number of an entry's place.
    ///
    /// # Panics
    /// When the number of the chunk or of the entry is too high.
    #[inline(always)]
    pub(crate) fn number(chunk: usize, entry: usize) -> u32 {
        assert!(chunk < CHUNKS && entry < ENTRIES, "there are no numbers for so many places");
        (chunk as u32) << ENTRY_BITS | (entry as u32 + 1)
    }

    /// Returns the address of a place.
    #[inline(always)]
    pub(crate) fn address<E>(&self, place: u32) -> usize {
        // Relaxed: the place's number was read with Acquire, or by the owner.
        let base = self.bases[(place >> ENTRY_BITS) as usize].load(Ordering::Relaxed);
        base.wrapping_add((place as usize).wrapping_mul(size_of::<E>()))
    }

    /// Returns the number of a place in the order of all chunks, dense from 0, as policies know it.
    #[inline(always)]
    pub(crate) fn in_order(&self, place: u32) -> u32 {
        // Relaxed: as in `address`.
        let order = self.orders[(place >> ENTRY_BITS) as usize].load(Ordering::Relaxed);
        order.wrapping_add(place)
    }
}

/// The bits of renewals, by slot. Clones are handles to the same array.
#[derive(Debug, Clone)]
pub(crate) struct Renewals(Arc<[AtomicU64]>);

impl Renewals {
    /// Creates the array of a shard in which no entry has needed a renewal so far.
    pub(crate) fn none() -> Self {
        Self(Arc::new([]))
    }

    /// Returns true if no entry has needed a renewal so far.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns an array for slots `0..slots` that begins with a copy of this one. Only the owner
    /// may call this.
    pub(crate) fn grown(&self, slots: usize) -> Self {
        Self((0..slots).map(|slot| AtomicU64::new(self.bits(slot as u32))).collect())
    }

    /// Returns the bits for the entry in a slot, which can expire; 0 stands for none.
    pub(crate) fn bits(&self, slot: u32) -> u64 {
        // Relaxed: the entry was published after they were stored.
        self.0.get(slot as usize).map_or(0, |bits| bits.load(Ordering::Relaxed))
    }

    /// Stores the bits for an entry that is not published yet. Only the owner may call this.
    pub(crate) fn set(&self, slot: u32, bits: u64) {
        if let Some(stored) = self.0.get(slot as usize) {
            stored.store(bits, Ordering::Relaxed); // as in `bits`
        }
    }

    /// Returns the bytes of memory held.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.0)
    }
}

/// The part of a shard that readers use: its index and the policy's marks.
#[derive(Debug)]
pub(crate) struct Table<M> {
    pub(crate) index: Index,
    /// The addresses of entries.
    pub(crate) places: Arc<Places>,
    /// The smaller index, from which keys are being moved.
    pub(crate) old: Option<Index>,
    pub(crate) marks: M,
    pub(crate) renewals: Renewals,
}

impl<M> Table<M> {
    /// Returns the old or the new index.
    #[inline(always)]
    pub(crate) fn index_of(&self, is_old: bool) -> &Index {
        match &self.old {
            Some(old) if is_old => old,
            _ => &self.index,
        }
    }

    /// Returns all indexes, in the order in which readers search them.
    pub(crate) fn indexes(&self) -> impl Iterator<Item = &Index> {
        self.old.iter().chain([&self.index])
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.indexes().map(Index::memory_bytes).sum()
    }
}

/// The table of a shard ordered by a policy.
pub(crate) type TableOf<P> = Table<<P as Eviction>::Marks>;

/// The pointer by which the table of a shard is published.
///
/// A replaced table is freed with its shard, not before, so readers need not publish which one they
/// use. There are few, as a shard grows by a quarter at least, and the memory of their indexes is
/// given back to the system.
pub(crate) struct Published<'a, P: Eviction>(pub(crate) &'a AtomicPtr<TableOf<P>>);

impl<P: Eviction> Clone for Published<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Eviction> Copy for Published<'_, P> {}

impl<'a, P: Eviction> Published<'a, P> {
    /// Returns the present table.
    #[inline(always)]
    pub(crate) fn table(self) -> &'a TableOf<P> {
        // SAFETY: a table lives as long as the shard, which this borrows. Acquire: it was whole
        // before it was published; and what was taken out of it before is not found in it.
        unsafe { &*self.0.load(Ordering::Acquire) }
    }
}

#[cfg(test)]
mod hash_tests {
    use std::hash::Hasher;

    use foldhash::SharedSeed;

    use super::*;

    #[test]
    fn consecutive_keys_spread_over_shards_whatever_the_seed() {
        const KEYS: u64 = 2048;
        const SHARDS: usize = 8;
        for seed in 0..5000 {
            let shared = SharedSeed::from_u64(seed);
            let mut keys = [0; SHARDS];
            for key in 0..KEYS {
                let mut hasher = quality::FoldHasher::with_seed(1, &shared);
                hasher.write_u64(key);
                keys[KeyHash::of_mixed(hasher.finish()).shard(8 - 1)] += 1;
            }
            let most = keys.iter().max().expect("there are shards") * SHARDS as u64;
            assert!(most < KEYS * 3 / 2, "seed {seed}: {keys:?}");
        }
    }
}
