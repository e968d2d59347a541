//! The floor: what a lookup costs at least, in one table that all threads read and none writes.
//!
//! Two of them, over the same slab of keys and values, and the faster counts: linear probing over
//! words of a fingerprint and a slot, half of them empty; and hashbrown with slots in its table. A
//! batch hashes all its keys first; the probe then fetches all words ahead, and all entries ahead.
//! hashbrown gives no way to fetch ahead: there the processor overlaps what it can.
//!
//! Beside them stands hashbrown with keys and values in the table itself. It spares a step, but its
//! entries move when it grows: a cache whose policy knows entries by their slots cannot be laid out
//! so.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use super::{Fixed, Lookup, Value};
use crate::workload::BATCH;

struct Entry<V> {
    key: u64,
    value: V,
}

/// The entries of the keys below `keys`.
fn entries<V: Value>(keys: usize) -> impl Iterator<Item = Entry<V>> {
    (0..keys as u64).map(|key| Entry { key, value: V::of(key) })
}

pub struct Probe<V> {
    hasher: RandomState,
    /// The upper half of the hash above a slot; `EMPTY` ends a search.
    words: Box<[u64]>,
    slab: Box<[Entry<V>]>,
}

/// The slot is one that no table has.
const EMPTY: u64 = u32::MAX as u64;

impl<V: Value> Fixed for Probe<V> {
    fn new(keys: usize) -> Self {
        let hasher = RandomState::default();
        let mut words = vec![EMPTY; (2 * keys).next_power_of_two()].into_boxed_slice();
        let mask = words.len() - 1;
        let slab: Box<[_]> = entries(keys).collect();
        for (slot, entry) in slab.iter().enumerate() {
            let hash = hasher.hash_one(entry.key);
            let mut at = hash as usize & mask;
            while words[at] != EMPTY {
                at = (at + 1) & mask;
            }
            words[at] = hash >> 32 << 32 | slot as u64;
        }
        Self { hasher, words, slab }
    }
}

impl<V: Value> Probe<V> {
    /// The first entry with the fingerprint of a hash that is the right one.
    #[inline]
    fn find(&self, hash: u64, is_right: impl Fn(&Entry<V>) -> bool) -> Option<&Entry<V>> {
        let mask = self.words.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let word = self.words[at];
            if word == EMPTY {
                return None;
            }
            if word >> 32 == hash >> 32 {
                let entry = &self.slab[word as u32 as usize];
                if is_right(entry) {
                    return Some(entry);
                }
            }
            at = (at + 1) & mask;
        }
    }
}

impl<V: Value> Lookup for Probe<V> {
    #[inline]
    fn get(&self, key: u64) -> Option<u64> {
        self.find(self.hasher.hash_one(key), |entry| entry.key == key)
            .map(|entry| entry.value.read())
    }

    #[inline]
    fn get_many(&self, keys: &[u64; BATCH], mut found: impl FnMut(u64)) {
        let hashes = keys.map(|key| self.hasher.hash_one(key));
        let mask = self.words.len() - 1;
        for hash in hashes {
            prefetch(&self.words[hash as usize & mask]);
        }
        // Another key may have the same fingerprint and stand before it: then one searches again.
        let likely =
            hashes.map(|hash| self.find(hash, |_| true).inspect(|entry| prefetch_ends(entry)));
        for ((&key, hash), likely) in keys.iter().zip(hashes).zip(likely) {
            let is_right = |entry: &Entry<V>| entry.key == key;
            let entry = likely.and_then(|entry| {
                if is_right(entry) { Some(entry) } else { self.find(hash, is_right) }
            });
            if let Some(entry) = entry {
                found(entry.value.read());
            }
        }
    }
}

pub struct Hashbrown<V> {
    hasher: RandomState,
    slots: HashTable<u32>,
    slab: Box<[Entry<V>]>,
}

impl<V: Value> Fixed for Hashbrown<V> {
    fn new(keys: usize) -> Self {
        let hasher = RandomState::default();
        let slab: Box<[Entry<V>]> = entries(keys).collect();
        let mut slots = HashTable::with_capacity(keys);
        for (slot, entry) in (0..).zip(&slab) {
            slots.insert_unique(hasher.hash_one(entry.key), slot, |&slot| {
                hasher.hash_one(slab[slot as usize].key)
            });
        }
        Self { hasher, slots, slab }
    }
}

impl<V: Value> Hashbrown<V> {
    #[inline]
    fn find(&self, key: u64, hash: u64) -> Option<&Entry<V>> {
        let slot = self.slots.find(hash, |&slot| self.slab[slot as usize].key == key)?;
        Some(&self.slab[*slot as usize])
    }
}

impl<V: Value> Lookup for Hashbrown<V> {
    #[inline]
    fn get(&self, key: u64) -> Option<u64> {
        self.find(key, self.hasher.hash_one(key)).map(|entry| entry.value.read())
    }

    #[inline]
    fn get_many(&self, keys: &[u64; BATCH], mut found: impl FnMut(u64)) {
        let hashes = keys.map(|key| self.hasher.hash_one(key));
        for (&key, hash) in keys.iter().zip(hashes) {
            if let Some(entry) = self.find(key, hash) {
                found(entry.value.read());
            }
        }
    }
}

pub struct Inline<V> {
    hasher: RandomState,
    table: HashTable<Entry<V>>,
}

impl<V: Value> Fixed for Inline<V> {
    fn new(keys: usize) -> Self {
        let hasher = RandomState::default();
        let mut table = HashTable::with_capacity(keys);
        for entry in entries(keys) {
            let rehash = |entry: &Entry<V>| hasher.hash_one(entry.key);
            table.insert_unique(hasher.hash_one(entry.key), entry, rehash);
        }
        Self { hasher, table }
    }
}

impl<V: Value> Inline<V> {
    #[inline]
    fn find(&self, key: u64, hash: u64) -> Option<u64> {
        self.table.find(hash, |entry| entry.key == key).map(|entry| entry.value.read())
    }
}

impl<V: Value> Lookup for Inline<V> {
    #[inline]
    fn get(&self, key: u64) -> Option<u64> {
        self.find(key, self.hasher.hash_one(key))
    }

    #[inline]
    fn get_many(&self, keys: &[u64; BATCH], mut found: impl FnMut(u64)) {
        let hashes = keys.map(|key| self.hasher.hash_one(key));
        for (&key, hash) in keys.iter().zip(hashes) {
            if let Some(value) = self.find(key, hash) {
                found(value);
            }
        }
    }
}

/// The cache lines of an entry that a reader will touch.
#[inline]
fn prefetch_ends<V>(entry: &Entry<V>) {
    prefetch(&raw const *entry);
    prefetch((&raw const *entry).wrapping_add(1).cast::<u64>().wrapping_sub(1));
}

/// Has a cache line brought nearer without waiting for it; where the processor's way is not known,
/// nothing.
#[inline]
fn prefetch<T>(place: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: prefetching reads nothing the program can see and never faults, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(place.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}
