//! The index in memory: the place of each key's record on flash, in 8 bytes an object.
//!
//! A cuckoo hash table of buckets of 64 bytes with 8 slots each. A slot holds a tag of the key's
//! hash, the record's address, its [length](LengthCode), and 2 bits that count its uses. The other
//! bucket of a slot follows from its bucket and its tag, so that slots move without the hash
//! (partial-key cuckoo hashing, Fan et al. 2014).
//!
//! Two keys whose tags and buckets are equal share a slot, and the newer record has it. The older
//! one is lost to the cache, which [`Index::insert`] reports. With 16-bit tags that happens to
//! about one insertion in 4,000, with the 22-bit tags of 200 GB of flash to one in 260,000.
//!
//! The table is divided into shards with a lock each. A shard grows by a part at a time: the parts
//! of a shard are tables of equal size, and the tag tells the part. So no growth needs the hash,
//! and at most an eighth of a large table is unused. A shard is locked while it grows. So large
//! flash has many shards.
//!
//! An index that was saved may be in use before all of it has been read. A shard whose slots are
//! missing is *pending*: its first user reads them.

use std::fmt::Debug;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::format::{LengthCode, UNIT_BYTES};

const SLOTS: usize = 8;
/// The largest share of used slots before a shard grows, in percent.
const FULL_PERCENT: usize = 95;
/// Maximum number of slots moved to make room for one.
const MOST_MOVES: usize = 400;
/// Number of buckets of a part, as an exponent of 2.
const PART_BITS: u32 = 7;
const PART_BUCKETS: usize = 1 << PART_BITS;
/// Bytes of a part.
pub(crate) const PART_BYTES: u64 = (PART_BUCKETS * size_of::<Bucket>()) as u64;
/// Bytes of flash for each shard, if the number of objects is unknown.
const SHARD_FLASH_BYTES: u64 = 128 << 20;
/// Maximum number of uses that a slot can count.
pub(crate) const MOST_USES: u8 = 3;

/// The place of a record on flash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// Address in units of 16 bytes.
    pub(crate) address: u64,
    pub(crate) length: LengthCode,
}

#[derive(Debug, Clone, Copy, Default)]
#[repr(align(64))]
struct Bucket([u64; SLOTS]);

/// The layout of a slot's 64 bits. From the top: 2 bits of uses, 6 of length, the tag, the address.
#[derive(Debug, Clone, Copy)]
struct Layout {
    address_bits: u32,
}

impl Layout {
    /// Returns the layout for this many units of flash.
    fn of(address_units: u64) -> Self {
        assert!(address_units <= 1 << 40, "flash beyond 16 TiB");
        Self { address_bits: (64 - address_units.leading_zeros()).clamp(24, 40) }
    }

    fn tag_bits(self) -> u32 {
        56 - self.address_bits
    }

    fn slot(self, tag: u64, place: Place, uses: u8) -> u64 {
        debug_assert!(place.address > 0 && place.address >> self.address_bits == 0);
        u64::from(uses) << 62
            | u64::from(place.length.0) << 56
            | tag << self.address_bits
            | place.address
    }

    fn tag(self, slot: u64) -> u64 {
        slot >> self.address_bits & ((1 << self.tag_bits()) - 1)
    }

    fn place(self, slot: u64) -> Place {
        let address = slot & ((1 << self.address_bits) - 1);
        Place { address, length: LengthCode((slot >> 56 & 63) as u8) }
    }
}

fn uses(slot: u64) -> u8 {
    (slot >> 62) as u8
}

/// The hash table of one shard: its parts, one after the other.
#[derive(Debug, Default)]
struct Shard {
    buckets: Vec<Bucket>,
    used: usize,
    /// State of the generator that picks slots to move.
    random: u64,
    /// Number of parts whose slots are still to be read; 0 for none. There are no buckets then, and
    /// `used` is known.
    pending: u32,
}

/// The slots of pending shards.
pub(crate) trait ShardSource: Debug + Send + Sync {
    /// Reads the encoded slots of a shard. `None` if they are damaged: [`ShardSource::supply_all`]
    /// finds another way.
    fn read(&self, shard: usize) -> Option<Vec<u8>>;

    /// Supplies all shards that are pending. Returns the number of reads that failed.
    ///
    /// # Errors
    /// When there is no way to supply them.
    fn supply_all(&self, index: &Index) -> io::Result<u64>;
}

/// Ends the loading of an index when it is dropped, by a panic, too.
struct EndLoading<'a>(&'a Index);

impl Drop for EndLoading<'_> {
    fn drop(&mut self) {
        self.0.end_loading();
    }
}

/// The part of a key's hash that its shard uses.
#[derive(Debug, Clone, Copy)]
struct Key {
    /// One of the two buckets within a part.
    bucket: usize,
    tag: u64,
}

impl Shard {
    fn new(parts: usize) -> Self {
        let buckets = vec![Bucket::default(); parts * PART_BUCKETS];
        Self { buckets, used: 0, random: 1, pending: 0 }
    }

    /// Creates a shard from its encoded slots, of whole parts.
    fn decode(slots: &[u8]) -> Self {
        let (words, _) = slots.as_chunks::<8>();
        let (buckets, _) = words.as_chunks::<SLOTS>();
        let bucket = |words: &[[u8; 8]; SLOTS]| Bucket(words.map(u64::from_le_bytes));
        let buckets: Vec<Bucket> = buckets.iter().map(bucket).collect();
        let used = buckets.iter().flat_map(|bucket| bucket.0).filter(|slot| *slot != 0).count();
        Self { buckets, used, random: 1, pending: 0 }
    }

    fn parts(&self) -> usize {
        self.pending as usize + self.buckets.len() / PART_BUCKETS
    }

    fn bytes(&self) -> u64 {
        self.parts() as u64 * PART_BYTES
    }

    fn is_full(&self) -> bool {
        self.used * 100 >= self.buckets.len() * SLOTS * FULL_PERCENT
    }

    /// Returns both buckets of a key.
    fn buckets_of(&self, layout: Layout, key: Key) -> [usize; 2] {
        let part = ((key.tag * self.parts() as u64) >> layout.tag_bits()) as usize;
        let base = part * PART_BUCKETS;
        [base + key.bucket, base + (key.bucket ^ distance(key.tag))]
    }

    fn find(&self, layout: Layout, key: Key) -> Option<(usize, usize)> {
        let buckets = self.buckets_of(layout, key);
        buckets.into_iter().find_map(|bucket| {
            let slots = &self.buckets[bucket].0;
            let at = slots.iter().position(|&slot| slot != 0 && layout.tag(slot) == key.tag)?;
            Some((bucket, at))
        })
    }

    /// Inserts a slot into one of its two buckets, moving other slots if both are full. Returns the
    /// slot left without room, which may be another one.
    fn place(&mut self, layout: Layout, key: Key, slot: u64) -> Result<(), (Key, u64)> {
        let (mut key, mut slot) = (key, slot);
        for _ in 0..MOST_MOVES {
            let buckets = self.buckets_of(layout, key);
            for bucket in buckets {
                let slots = &mut self.buckets[bucket].0;
                if let Some(free) = slots.iter_mut().find(|slot| **slot == 0) {
                    *free = slot;
                    return Ok(());
                }
            }
            self.random = self.random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let choice = (self.random >> 40) as usize;
            let bucket = buckets[choice & 1];
            let moved = std::mem::replace(&mut self.buckets[bucket].0[choice >> 1 & 7], slot);
            let tag = layout.tag(moved);
            key = Key { bucket: bucket % PART_BUCKETS, tag };
            slot = moved;
        }
        Err((key, slot))
    }

    fn insert(&mut self, layout: Layout, key: Key, slot: u64) {
        if self.is_full() {
            self.grow(layout);
        }
        let mut left = self.place(layout, key, slot);
        while let Err((key, slot)) = left {
            self.grow(layout);
            left = self.place(layout, key, slot);
        }
        self.used += 1;
    }

    /// Grows the shard by an eighth of its parts, at least one.
    fn grow(&mut self, layout: Layout) {
        self.resize(layout, self.parts() + (self.parts() / 8).max(1));
    }

    /// Returns the number of parts that the used slots need, with room for a few more.
    fn parts_needed(&self) -> usize {
        let slots = (self.used + self.used / 16) * 100 / FULL_PERCENT;
        slots.div_ceil(SLOTS * PART_BUCKETS).max(1)
    }

    /// Moves all slots to a table of this many parts, or more if they do not fit.
    fn resize(&mut self, layout: Layout, mut parts: usize) {
        'larger: loop {
            let mut larger = Self::new(parts);
            for (at, bucket) in self.buckets.iter().enumerate() {
                for &slot in bucket.0.iter().filter(|slot| **slot != 0) {
                    let key = Key { bucket: at % PART_BUCKETS, tag: layout.tag(slot) };
                    if larger.place(layout, key, slot).is_err() {
                        parts += 1;
                        continue 'larger;
                    }
                }
            }
            self.buckets = larger.buckets;
            return;
        }
    }
}

/// Returns the exclusive or of the two bucket numbers of a tag, never 0.
fn distance(tag: u64) -> usize {
    (tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - PART_BITS)) as usize | 1
}

/// The index of all records that lookups can find.
#[derive(Debug)]
pub(crate) struct Index {
    layout: Layout,
    shards: Box<[Mutex<Shard>]>,
    /// Bytes of all tables, a statistic.
    bytes: AtomicU64,
    /// The slots of shards that are pending, or were.
    source: Option<Arc<dyn ShardSource>>,
    /// True while shards may be pending.
    loading: Mutex<bool>,
    /// Told of the end of `loading`.
    loaded: Condvar,
}

/// The result of an insertion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Inserted {
    /// The key had no record.
    New,
    /// The slot held this place: an older record of the key, or of a key with an equal tag.
    Replaced(Place),
}

impl Index {
    /// Creates an index for `address_units` units of flash, with room for about `objects`. It grows
    /// when more are inserted.
    pub(crate) fn new(address_units: u64, objects: u64) -> Self {
        let buckets = objects * 100 / (FULL_PERCENT * SLOTS) as u64;
        let parts = buckets.div_ceil(PART_BUCKETS as u64).max(1);
        let shards = match objects {
            0 => (address_units * UNIT_BYTES as u64 / SHARD_FLASH_BYTES).clamp(16, 1024),
            _ => (parts / 8).clamp(16, 4096),
        };
        let parts = (parts / shards).max(1) as usize;
        let shards = (0..shards).map(|_| Mutex::new(Shard::new(parts))).collect();
        Self::of(Layout::of(address_units), shards)
    }

    fn of(layout: Layout, mut shards: Box<[Mutex<Shard>]>) -> Self {
        let bytes = |shard: &mut Mutex<Shard>| {
            shard.get_mut().unwrap_or_else(PoisonError::into_inner).bytes()
        };
        let bytes = AtomicU64::new(shards.iter_mut().map(bytes).sum());
        let (loading, loaded) = (Mutex::new(false), Condvar::new());
        Self { layout, shards, bytes, source: None, loading, loaded }
    }

    /// Creates an empty index with this many parts in each shard.
    pub(crate) fn of_shape(address_units: u64, shape: &[u32]) -> Self {
        let shards = shape.iter().map(|parts| Mutex::new(Shard::new(*parts as usize))).collect();
        Self::of(Layout::of(address_units), shards)
    }

    /// Creates an index whose shards are pending. `shape` has the number of parts and that of used
    /// slots of each shard. [`Index::load_rest`] must be called.
    pub(crate) fn pending(
        address_units: u64,
        shape: &[(u32, u32)],
        source: Arc<dyn ShardSource>,
    ) -> Self {
        let shard = |&(pending, used): &(u32, u32)| {
            Mutex::new(Shard { buckets: Vec::new(), used: used as usize, random: 1, pending })
        };
        let shards = shape.iter().map(shard).collect();
        let index = Self::of(Layout::of(address_units), shards);
        Self { source: Some(source), loading: Mutex::new(true), ..index }
    }

    /// Reads all shards that are pending. Returns the number of reads that failed.
    ///
    /// # Errors
    /// When shards are lost.
    pub(crate) fn load_rest(&self) -> io::Result<u64> {
        let is_loading = *self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(source) = self.source.as_ref().filter(|_| is_loading) else { return Ok(0) };
        let _end = EndLoading(self);
        source.supply_all(self)
    }

    /// Supplies the encoded slots of a shard, unless it has them.
    pub(crate) fn supply(&self, shard: usize, slots: &[u8]) {
        let mut shard = self.lock_as_it_is(shard);
        if shard.pending > 0 {
            *shard = Shard::decode(slots);
        }
    }

    /// Supplies all shards that are pending from an index with the same number of shards.
    pub(crate) fn supply_from(&self, other: Self) {
        debug_assert_eq!(self.shards.len(), other.shards.len());
        for (at, supplied) in other.shards.into_iter().enumerate() {
            let mut shard = self.lock_as_it_is(at);
            if shard.pending > 0 {
                let before = shard.bytes();
                *shard = supplied.into_inner().unwrap_or_else(PoisonError::into_inner);
                let grown = shard.bytes().saturating_sub(before);
                self.bytes.fetch_add(grown, Ordering::Relaxed); // a statistic
            }
        }
    }

    /// Ends the loading, and wakes those who wait for a shard. Shards that are still pending become
    /// empty.
    fn end_loading(&self) {
        for at in 0..self.shards.len() {
            let mut shard = self.lock_as_it_is(at);
            if shard.pending > 0 {
                *shard = Shard::new(shard.parts());
            }
        }
        *self.loading.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.loaded.notify_all();
    }

    fn number_of_shard(&self, hash: u64) -> usize {
        (((hash >> 32) * self.shards.len() as u64) >> 32) as usize
    }

    fn key(&self, hash: u64) -> Key {
        let tag = hash >> PART_BITS & ((1 << self.layout.tag_bits()) - 1);
        Key { bucket: hash as usize % PART_BUCKETS, tag }
    }

    fn lock_as_it_is(&self, shard: usize) -> MutexGuard<'_, Shard> {
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks a shard with its slots, which are read if it is pending.
    fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        let locked = self.lock_as_it_is(shard);
        if locked.pending == 0 { locked } else { self.read_pending(shard, locked) }
    }

    /// Reads the slots of a locked shard, or waits until another thread has supplied them.
    #[cold]
    fn read_pending<'a>(
        &'a self,
        number: usize,
        mut locked: MutexGuard<'a, Shard>,
    ) -> MutexGuard<'a, Shard> {
        if let Some(slots) = self.source.as_ref().and_then(|source| source.read(number)) {
            *locked = Shard::decode(&slots);
            return locked;
        }
        drop(locked);
        let mut loading = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        while *loading {
            loading = self.loaded.wait(loading).unwrap_or_else(PoisonError::into_inner);
        }
        drop(loading);
        self.lock_as_it_is(number)
    }

    fn shard(&self, hash: u64) -> (MutexGuard<'_, Shard>, Key) {
        (self.lock(self.number_of_shard(hash)), self.key(hash))
    }

    /// Returns the place of a key's record and the number of its uses so far. Counts a use.
    pub(crate) fn look_up(&self, hash: u64) -> Option<(Place, u8)> {
        let (mut shard, key) = self.shard(hash);
        let (bucket, at) = shard.find(self.layout, key)?;
        let slot = &mut shard.buckets[bucket].0[at];
        let before = uses(*slot);
        if before < MOST_USES {
            *slot += 1 << 62;
        }
        Some((self.layout.place(*slot), before))
    }

    /// Returns the place of a key's record without counting a use.
    pub(crate) fn peek(&self, hash: u64) -> Option<Place> {
        let (shard, key) = self.shard(hash);
        let (bucket, at) = shard.find(self.layout, key)?;
        Some(self.layout.place(shard.buckets[bucket].0[at]))
    }

    /// Sets the place of a key's newest record. Its uses start at 0.
    pub(crate) fn insert(&self, hash: u64, place: Place) -> Inserted {
        let (mut shard, key) = self.shard(hash);
        self.insert_in(&mut shard, key, place)
    }

    fn insert_in(&self, shard: &mut Shard, key: Key, place: Place) -> Inserted {
        let slot = self.layout.slot(key.tag, place, 0);
        match shard.find(self.layout, key) {
            Some((bucket, at)) => {
                let old = std::mem::replace(&mut shard.buckets[bucket].0[at], slot);
                Inserted::Replaced(self.layout.place(old))
            }
            None => {
                let before = shard.bytes();
                shard.insert(self.layout, key, slot);
                let grown = shard.bytes() - before;
                if grown > 0 {
                    self.bytes.fetch_add(grown, Ordering::Relaxed);
                }
                Inserted::New
            }
        }
    }

    /// Removes a key. Returns the place of its record.
    pub(crate) fn remove(&self, hash: u64) -> Option<Place> {
        self.remove_where(hash, |_| true).map(|(place, _)| place)
    }

    /// Removes a key if its newest record is at this address. Returns the number of its uses.
    pub(crate) fn remove_at(&self, hash: u64, address: u64) -> Option<u8> {
        self.remove_where(hash, |place| place.address == address).map(|(_, uses)| uses)
    }

    fn remove_where(&self, hash: u64, is: impl FnOnce(Place) -> bool) -> Option<(Place, u8)> {
        let (mut shard, key) = self.shard(hash);
        self.remove_in(&mut shard, key, is)
    }

    fn remove_in(
        &self,
        shard: &mut Shard,
        key: Key,
        is: impl FnOnce(Place) -> bool,
    ) -> Option<(Place, u8)> {
        let (bucket, at) = shard.find(self.layout, key)?;
        let slot = shard.buckets[bucket].0[at];
        let place = self.layout.place(slot);
        if !is(place) {
            return None;
        }
        shard.buckets[bucket].0[at] = 0;
        shard.used -= 1;
        Some((place, uses(slot)))
    }

    /// Inserts keys with their places, and removes those without one, in this order. The work is
    /// divided by shards, so that the table of one stays in a processor's cache.
    pub(crate) fn apply(&self, changes: &[(u64, Option<Place>)], threads: usize) {
        // Changes by shard, in their order: a counting sort.
        let mut ends = vec![0; self.shards.len() + 1];
        changes.iter().for_each(|(hash, _)| ends[self.number_of_shard(*hash) + 1] += 1);
        (1..ends.len()).for_each(|shard| ends[shard] += ends[shard - 1]);
        let starts = ends.clone();
        let mut order = vec![0; changes.len()];
        for (at, (hash, _)) in changes.iter().enumerate() {
            let end = &mut ends[self.number_of_shard(*hash)];
            order[*end] = at;
            *end += 1;
        }
        let next = AtomicU64::new(0);
        let work = || {
            loop {
                let shard = next.fetch_add(1, Ordering::Relaxed) as usize; // only a number
                if shard >= self.shards.len() {
                    return;
                }
                let mut locked = self.lock(shard);
                for (hash, place) in order[starts[shard]..ends[shard]].iter().map(|at| changes[*at])
                {
                    match place {
                        Some(place) => drop(self.insert_in(&mut locked, self.key(hash), place)),
                        None => drop(self.remove_in(&mut locked, self.key(hash), |_| true)),
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            (1..threads).for_each(|_| drop(scope.spawn(work)));
            work();
        });
    }

    /// Frees memory of tables that are far from full.
    pub(crate) fn shrink(&self) {
        for at in 0..self.shards.len() {
            let mut shard = self.lock(at);
            let (before, needed) = (shard.bytes(), shard.parts_needed());
            if needed + needed / 8 < shard.parts() {
                shard.resize(self.layout, needed);
                self.bytes.fetch_sub(before - shard.bytes().min(before), Ordering::Relaxed);
            }
        }
    }

    /// Returns the number of uses of a key if its newest record is at this address.
    pub(crate) fn uses_at(&self, hash: u64, address: u64) -> Option<u8> {
        let (shard, key) = self.shard(hash);
        let (bucket, at) = shard.find(self.layout, key)?;
        let slot = shard.buckets[bucket].0[at];
        (self.layout.place(slot).address == address).then(|| uses(slot))
    }

    /// Updates the address and the uses of a record that was copied. Returns false if the key has a
    /// newer record or none.
    pub(crate) fn relocate(&self, hash: u64, from: u64, to: Place, uses: u8) -> bool {
        let (mut shard, key) = self.shard(hash);
        let Some((bucket, at)) = shard.find(self.layout, key) else { return false };
        let slot = &mut shard.buckets[bucket].0[at];
        let is_same = self.layout.place(*slot).address == from;
        if is_same {
            *slot = self.layout.slot(key.tag, to, uses);
        }
        is_same
    }

    /// Removes all keys whose records are in this range of addresses. Scans the whole table.
    /// Returns the number of keys removed.
    pub(crate) fn remove_range(&self, addresses: Range<u64>) -> u64 {
        self.retain(|place| !addresses.contains(&place.address))
    }

    /// Removes all keys whose places `keeps` does not return true for. Scans the whole table.
    /// Returns the number of keys removed.
    pub(crate) fn retain(&self, keeps: impl Fn(Place) -> bool) -> u64 {
        let mut removed = 0;
        for at in 0..self.shards.len() {
            let mut shard = self.lock(at);
            let before = shard.used;
            let mut used = 0;
            for slot in shard.buckets.iter_mut().flat_map(|bucket| &mut bucket.0) {
                if *slot != 0 && !keeps(self.layout.place(*slot)) {
                    *slot = 0;
                }
                used += usize::from(*slot != 0);
            }
            shard.used = used;
            removed += (before - used) as u64;
        }
        removed
    }

    /// Removes all keys, one shard after the other. The slots of pending shards are not read.
    pub(crate) fn clear(&self) {
        for at in 0..self.shards.len() {
            let mut shard = self.lock_as_it_is(at);
            let parts = shard.parts();
            *shard = Shard::new(parts);
        }
    }

    /// Returns the number of keys.
    pub(crate) fn len(&self) -> u64 {
        self.used().into_iter().map(u64::from).sum()
    }

    /// Returns the number of used slots of each shard.
    pub(crate) fn used(&self) -> Vec<u32> {
        (0..self.shards.len()).map(|at| self.lock_as_it_is(at).used as u32).collect()
    }

    /// Returns the memory of the tables in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of parts of each shard.
    pub(crate) fn shape(&self) -> Vec<u32> {
        (0..self.shards.len()).map(|at| self.lock_as_it_is(at).parts() as u32).collect()
    }

    /// Saves the tables: passes the encoded slots of one shard at a time to `write`.
    pub(crate) fn save<E>(&self, mut write: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let mut bytes = Vec::new();
        for at in 0..self.shards.len() {
            let shard = self.lock(at);
            bytes.clear();
            bytes.extend(
                shard.buckets.iter().flat_map(|bucket| bucket.0).flat_map(u64::to_le_bytes),
            );
            write(&bytes)?;
        }
        Ok(())
    }

    /// Restores an index of a saved shape. `read` returns the encoded slots of one shard at a time.
    pub(crate) fn load<E>(
        address_units: u64,
        shape: &[u32],
        mut read: impl FnMut(u64) -> Result<Vec<u8>, E>,
    ) -> Result<Self, E> {
        let mut shards = Vec::with_capacity(shape.len());
        for &parts in shape {
            let slots = read(u64::from(parts) * PART_BYTES)?;
            shards.push(Mutex::new(Shard::decode(&slots)));
        }
        Ok(Self::of(Layout::of(address_units), shards.into()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::convert::Infallible;

    use proptest::prelude::*;
    use rand::{Rng, SeedableRng, rngs::SmallRng};

    use super::*;

    fn place(address: u64) -> Place {
        Place { address, length: LengthCode((address % 64) as u8) }
    }

    /// A fingerprint of a hash: keys that share it share a slot.
    fn fingerprint(index: &Index, hash: u64) -> (u64, u64, u64) {
        let shard = ((hash >> 32) * index.shards.len() as u64) >> 32;
        let tag = hash >> PART_BITS & ((1 << index.layout.tag_bits()) - 1);
        let bucket = hash % PART_BUCKETS as u64;
        (shard, tag, bucket.min(bucket ^ distance(tag) as u64))
    }

    #[test]
    fn a_table_that_grows_keeps_every_key_and_takes_little() {
        let index = Index::new(1 << 26, 0);
        let mut random = SmallRng::seed_from_u64(1);
        let mut model = HashMap::new();
        for address in 4..1_000_004 {
            let hash = random.random();
            let replaced = index.insert(hash, place(address));
            let old = model.insert(fingerprint(&index, hash), (hash, address));
            let expected = old.map_or(Inserted::New, |(_, old)| Inserted::Replaced(place(old)));
            assert_eq!(replaced, expected);
            if model.len() % 100_000 == 99_999 && model.len() > 300_000 {
                let bytes = index.memory_bytes() as f64 / model.len() as f64;
                assert!(bytes <= 10.0, "{bytes} bytes an object with {}", model.len());
            }
        }
        assert!(model.len() > 999_500, "{} keys lost their slot", 1_000_000 - model.len());
        assert_eq!(index.len(), model.len() as u64);
        for (hash, address) in model.values() {
            assert_eq!(index.peek(*hash), Some(place(*address)));
        }
    }

    #[test]
    fn a_table_made_large_enough_does_not_grow() {
        let index = Index::new(1 << 34, 1_000_000);
        let before = index.memory_bytes();
        let mut random = SmallRng::seed_from_u64(2);
        (4..1_000_004).for_each(|address| {
            index.insert(random.random(), place(address));
        });
        let after = index.memory_bytes();
        assert!(after <= before + before / 8, "{before} bytes became {after}");
        assert!(after <= 9_700_000, "{after} bytes for a million");
    }

    #[test]
    fn changes_applied_by_several_threads_are_those_applied_one_by_one() {
        let mut random = SmallRng::seed_from_u64(3);
        let hashes: Vec<u64> = (0..20_000).map(|_| random.random()).collect();
        let (together, alone) = (Index::new(1 << 26, 100_000), Index::new(1 << 26, 0));
        for group in 0..4 {
            let changes: Vec<(u64, Option<Place>)> = (0..30_000)
                .map(|at| {
                    let hash = hashes[random.random_range(0..hashes.len())];
                    let address = group * 30_000 + at + 4;
                    (hash, random.random_bool(0.7).then(|| place(address)))
                })
                .collect();
            together.apply(&changes, 3);
            for (hash, place) in changes {
                match place {
                    Some(place) => drop(alone.insert(hash, place)),
                    None => drop(alone.remove(hash)),
                }
            }
        }
        let before = together.memory_bytes();
        together.shrink();
        assert!(together.memory_bytes() < before / 2);
        let tables = together.shards.iter().map(|shard| shard.lock().unwrap().bytes());
        assert_eq!(together.memory_bytes(), tables.sum::<u64>());
        // Tags may be shared differently only where shards differ: no key of these is.
        assert_eq!(together.len(), alone.len());
        for hash in hashes {
            assert_eq!(together.peek(hash), alone.peek(hash));
        }
    }

    proptest! {
        #[test]
        fn it_does_as_a_map_of_fingerprints(
            operations in proptest::collection::vec((0u8..6, 0u64..60), 1..600),
            seed: u64,
        ) {
            let index = Index::new(1 << 38, 0);
            // Few shards, buckets and tags, so that slots are shared and the table grows.
            let mut random = SmallRng::seed_from_u64(seed);
            let hashes: Vec<u64> = (0..60)
                .map(|_| random.random::<u64>() & 0x0300_0000_0000_0fff)
                .collect();
            let mut model: HashMap<_, (u64, u8)> = HashMap::new();
            for (at, (operation, key)) in operations.into_iter().enumerate() {
                let (hash, address) = (hashes[key as usize], at as u64 + 4);
                let print = fingerprint(&index, hash);
                let known = model.get(&print).copied();
                match operation {
                    0 | 1 => {
                        let replaced = |(old, _)| Inserted::Replaced(place(old));
                        let expected = known.map_or(Inserted::New, replaced);
                        prop_assert_eq!(index.insert(hash, place(address)), expected);
                        model.insert(print, (address, 0));
                    }
                    2 => {
                        let expected = known.map(|(address, uses)| (place(address), uses));
                        prop_assert_eq!(index.look_up(hash), expected);
                        if let Some((_, uses)) = model.get_mut(&print) {
                            *uses = (*uses + 1).min(MOST_USES);
                        }
                    }
                    3 => {
                        let expected = known.map(|(address, _)| place(address));
                        prop_assert_eq!(index.remove(hash), expected);
                        model.remove(&print);
                    }
                    4 => {
                        let at = known.map_or(4, |(address, _)| address);
                        prop_assert_eq!(index.remove_at(hash, at + 1), None);
                        prop_assert_eq!(index.remove_at(hash, at), known.map(|(_, uses)| uses));
                        model.remove(&print);
                    }
                    _ => {
                        let from = known.map_or(4, |(address, _)| address);
                        prop_assert!(!index.relocate(hash, from + 1, place(address), 1));
                        let relocated = index.relocate(hash, from, place(address), 1);
                        prop_assert_eq!(relocated, known.is_some());
                        prop_assert_eq!(index.uses_at(hash, address), known.map(|_| 1));
                        if let Some(known) = model.get_mut(&print) {
                            *known = (address, 1);
                        }
                    }
                }
                prop_assert_eq!(index.len(), model.len() as u64);
            }
            let (mut saved, shape) = (Vec::new(), index.shape());
            let _ = index.save(|bytes| { saved.extend_from_slice(bytes); Ok::<_, Infallible>(()) });
            let mut rest = &saved[..];
            let loaded = Index::load(1 << 38, &shape, |bytes| {
                let (these, others) = rest.split_at(bytes as usize);
                rest = others;
                Ok::<_, Infallible>(these.to_vec())
            });
            let Ok(loaded) = loaded;
            prop_assert_eq!(loaded.len(), model.len() as u64);
            for hash in hashes {
                prop_assert_eq!(loaded.peek(hash), index.peek(hash));
            }
            let first = model.values().filter(|(address, _)| (4..200).contains(address)).count();
            prop_assert_eq!(index.remove_range(4..200), first as u64);
            prop_assert_eq!(index.len(), (model.len() - first) as u64);
            index.clear();
            prop_assert_eq!(index.len(), 0);
        }
    }
}
