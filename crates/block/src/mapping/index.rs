//! A compact hash index from block places to slots: five bytes an entry, two thirds to four fifths
//! of them used.
//!
//! Open addressing with linear probing. An entry is a slot and one byte of its hash. Keys are not
//! stored: the caller compares them where the byte matches. Eight bytes are compared together.
//! Removal shifts entries back instead of leaving tombstones, so a cache that replaces blocks for
//! ever never rehashes. The capacity need not be a power of two, grows by a sixteenth and shrinks
//! when a third of it is not used. A general hash table (hashbrown) took up to 20 bytes an entry
//! here after many replacements.
//!
//! Invariant: no empty entry lies between an entry and its home, the place its hash names.

/// Entries per used entry, as a ratio: the table is at most four fifths full.
const SPACE: (usize, usize) = (5, 4);

/// Entries per used entry, as a ratio, above which a table shrinks. After resizing there are at
/// most four thirds.
const SPARE: (usize, usize) = (3, 2);

/// Tables up to this size are not shrunk.
const SMALL: usize = 64;

/// Number of tags compared in one step.
const TOGETHER: usize = size_of::<u64>();

/// The tag of an empty entry.
const EMPTY: u8 = 0;

/// A hash index of slots. The caller gives the hashes, which must be well mixed.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// One tag for each entry, and the first [`TOGETHER`] once more, so that eight can be read
    /// anywhere.
    tags: Vec<u8>,
    slots: Vec<u32>,
    len: usize,
}

/// Returns the highest bit of each byte that is zero. Bytes above the lowest zero may be marked
/// wrongly.
fn zero_bytes(word: u64) -> u64 {
    const LOW: u64 = u64::from_ne_bytes([1; TOGETHER]);
    word.wrapping_sub(LOW) & !word & (LOW << 7)
}

fn tag(hash: u64) -> u8 {
    (hash as u8).max(EMPTY + 1)
}

impl Index {
    fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Returns the home of a hash: its upper half, scaled to the capacity.
    fn home(&self, hash: u64) -> usize {
        (((hash >> 32) * self.capacity() as u64) >> 32) as usize
    }

    fn after(&self, at: usize, steps: usize) -> usize {
        let next = at + steps;
        if next >= self.capacity() { next - self.capacity() } else { next }
    }

    fn set_tag(&mut self, at: usize, tag: u8) {
        self.tags[at] = tag;
        if at < TOGETHER {
            let mirror = self.capacity() + at;
            self.tags[mirror] = tag;
        }
    }

    #[inline]
    fn position(&self, hash: u64, is_it: impl Fn(u32) -> bool) -> Option<usize> {
        if self.len == 0 {
            return None;
        }
        let wanted = u64::from_ne_bytes([tag(hash); TOGETHER]);
        let mut at = self.home(hash);
        loop {
            let tags = self.tags[at..at + TOGETHER].try_into().expect("as many as were sliced");
            let tags = u64::from_le_bytes(tags);
            let empty = zero_bytes(tags);
            // Entries beyond the first empty one do not count; `empty` is exact up to there.
            let mut same = zero_bytes(tags ^ wanted) & (empty.wrapping_sub(1) & !empty);
            while same != 0 {
                let found = self.after(at, same.trailing_zeros() as usize / 8);
                if is_it(self.slots[found]) {
                    return Some(found);
                }
                same &= same - 1;
            }
            if empty != 0 {
                return None;
            }
            at = self.after(at, TOGETHER);
        }
    }

    /// Returns the slot with this hash for which `is_it` holds.
    #[inline]
    pub(crate) fn find(&self, hash: u64, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        self.position(hash, is_it).map(|at| self.slots[at])
    }

    /// Adds a slot that is not in the index; `hash_of` returns the hash of any slot.
    pub(crate) fn insert(&mut self, slot: u32, hash_of: impl Fn(u32) -> u64) {
        if (self.len + 1) * SPACE.0 > self.capacity() * SPACE.1 {
            self.resize(&hash_of);
        }
        self.put(slot, hash_of(slot));
        self.len += 1;
    }

    /// Removes a slot.
    ///
    /// # Panics
    /// When the slot is not in the index.
    pub(crate) fn remove(&mut self, slot: u32, hash_of: impl Fn(u32) -> u64) {
        let found = self.position(hash_of(slot), |other| other == slot);
        let mut hole = found.expect("a slot to be removed is in the index");
        let mut at = self.after(hole, 1);
        while self.tags[at] != EMPTY {
            // An entry may move back into the hole unless its home lies beyond it.
            let home = self.home(hash_of(self.slots[at]));
            let distance = |from: usize, to: usize| {
                if to >= from { to - from } else { to + self.capacity() - from }
            };
            if distance(home, at) >= distance(hole, at) {
                self.set_tag(hole, self.tags[at]);
                self.slots[hole] = self.slots[at];
                hole = at;
            }
            at = self.after(at, 1);
        }
        self.set_tag(hole, EMPTY);
        self.len -= 1;
        if self.capacity() > SMALL.max(self.len * SPARE.0 / SPARE.1) {
            self.resize(hash_of);
        }
    }

    fn put(&mut self, slot: u32, hash: u64) {
        let mut at = self.home(hash);
        while self.tags[at] != EMPTY {
            at = self.after(at, 1);
        }
        self.set_tag(at, tag(hash));
        self.slots[at] = slot;
    }

    /// Resizes the table to fit its entries with some to spare.
    fn resize(&mut self, hash_of: impl Fn(u32) -> u64) {
        let capacity = (self.len + self.len / 16 + 16) * SPACE.0 / SPACE.1;
        let slots = std::mem::replace(&mut self.slots, vec![0; capacity]);
        let tags = std::mem::replace(&mut self.tags, vec![EMPTY; capacity + TOGETHER]);
        for (slot, _) in slots.into_iter().zip(tags).filter(|(_, tag)| *tag != EMPTY) {
            self.put(slot, hash_of(slot));
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.tags.capacity() + self.slots.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// Compares the index with a set. There are few distinct hashes, so that entries collide,
        /// wrap around and shift.
        #[test]
        fn the_index_is_a_set(
            steps in proptest::collection::vec((any::<bool>(), 0u32..60), 0..400),
            spread in 1u64..20,
        ) {
            const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
            let hash_of = |slot: u32| (u64::from(slot) % spread).wrapping_mul(MIX);
            let mut index = Index::default();
            let mut model = BTreeSet::new();
            for (insert, slot) in steps {
                if insert && model.insert(slot) {
                    index.insert(slot, hash_of);
                } else if !insert && model.remove(&slot) {
                    index.remove(slot, hash_of);
                }
                prop_assert_eq!(index.len, model.len());
            }
            for slot in 0..60 {
                let found = index.find(hash_of(slot), |other| other == slot);
                prop_assert_eq!(found, model.contains(&slot).then_some(slot));
            }
        }
    }

    #[test]
    fn an_entry_takes_at_most_seven_bytes_after_any_number_of_replacements() {
        let hash_of = |slot: u32| u64::from(slot).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut index = Index::default();
        for slot in 0..10_000 {
            index.insert(slot, hash_of);
        }
        for slot in 0..100_000 {
            index.remove(slot, hash_of);
            index.insert(slot + 10_000, hash_of);
        }
        let bytes = index.memory_bytes() as f64 / 10_000.0;
        assert!((6.2..7.0).contains(&bytes), "{bytes}");
    }
}
