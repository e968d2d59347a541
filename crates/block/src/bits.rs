//! Bit sets with a bit for each sector of the cache device: valid data, dirty data, and others.

use std::ops::Range;

/// Bits that are set and read by ranges.
#[derive(Debug, Clone)]
pub(crate) struct Bits {
    words: Vec<u64>,
    ones: u64,
}

/// Returns the words a range touches, each with the mask of the range's bits in it.
fn masks(range: Range<u64>) -> impl Iterator<Item = (usize, u64)> {
    let words = range.start / 64..range.end.div_ceil(64);
    words.map(move |word| {
        let from = range.start.saturating_sub(word * 64);
        let to = (range.end - word * 64).min(64);
        let below = |bit: u64| if bit == 64 { u64::MAX } else { (1 << bit) - 1 };
        (word as usize, below(to) & !below(from))
    })
}

impl Bits {
    pub(crate) fn new(len: u64) -> Self {
        Self { words: vec![0; len.div_ceil(64) as usize], ones: 0 }
    }

    /// Adds bits, none set, until there are `len`; does nothing if there are as many.
    pub(crate) fn grow(&mut self, len: u64) {
        let words = len.div_ceil(64) as usize;
        if words > self.words.len() {
            self.words.reserve_exact(words - self.words.len());
            self.words.resize(words, 0);
        }
    }

    /// Returns the number of bits that are set.
    pub(crate) fn ones(&self) -> u64 {
        self.ones
    }

    pub(crate) fn set(&mut self, range: Range<u64>) {
        for (word, mask) in masks(range) {
            self.ones += u64::from((mask & !self.words[word]).count_ones());
            self.words[word] |= mask;
        }
    }

    pub(crate) fn clear(&mut self, range: Range<u64>) {
        for (word, mask) in masks(range) {
            self.ones -= u64::from((mask & self.words[word]).count_ones());
            self.words[word] &= !mask;
        }
    }

    /// Sets exactly the bits that are set in `one` and not in `other`. All three sets have the same
    /// length.
    pub(crate) fn assign_difference(&mut self, one: &Bits, other: &Bits) {
        self.words.clear();
        self.words.extend(one.words.iter().zip(&other.words).map(|(one, other)| one & !other));
        self.ones = self.words.iter().map(|word| u64::from(word.count_ones())).sum();
    }

    #[inline]
    pub(crate) fn all(&self, range: Range<u64>) -> bool {
        masks(range).all(|(word, mask)| self.words[word] & mask == mask)
    }

    pub(crate) fn any(&self, range: Range<u64>) -> bool {
        masks(range).any(|(word, mask)| self.words[word] & mask != 0)
    }

    #[inline]
    fn get(&self, bit: u64) -> bool {
        self.words[(bit / 64) as usize] >> (bit % 64) & 1 == 1
    }

    /// Returns the range divided into maximal runs of equal bits, in order.
    pub(crate) fn runs(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, bool)> + '_ {
        let mut start = range.start;
        std::iter::from_fn(move || {
            if start >= range.end {
                return None;
            }
            let value = self.get(start);
            let mut end = start + 1;
            while end < range.end && self.get(end) == value {
                end += 1;
            }
            let run = start..end;
            start = end;
            Some((run, value))
        })
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.words.capacity() * size_of::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranges_of_bits_are_a_vector_of_flags(
            changes in proptest::collection::vec((0u64..300, 0u64..140, any::<bool>()), 0..40)
        ) {
            let mut bits = Bits::new(450);
            let mut model = [false; 450];
            for (start, len, value) in changes {
                let range = start..start + len;
                if value { bits.set(range.clone()) } else { bits.clear(range.clone()) }
                model[start as usize..(start + len) as usize].fill(value);
                prop_assert_eq!(bits.ones(), model.iter().filter(|&&bit| bit).count() as u64);
                let part = &model[start as usize..(start + len) as usize];
                prop_assert_eq!(bits.all(range.clone()), part.iter().all(|&bit| bit));
                prop_assert_eq!(bits.any(range.clone()), part.iter().any(|&bit| bit));
            }
            let mut from_runs = Vec::new();
            for (run, value) in bits.runs(3..447) {
                from_runs.extend(run.map(|_| value));
            }
            prop_assert_eq!(&from_runs[..], &model[3..447]);
            let (mut left, mut middle) = (Bits::new(450), Bits::new(450));
            middle.set(100..200);
            left.assign_difference(&bits, &middle);
            bits.clear(100..200);
            prop_assert_eq!((&left.words, left.ones()), (&bits.words, bits.ones()));
            let ones = bits.ones();
            bits.grow(900);
            bits.grow(450);
            prop_assert!(!bits.any(450..900) && bits.ones() == ones, "new bits are not set");
        }
    }
}
