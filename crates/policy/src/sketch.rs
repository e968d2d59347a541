//! A sketch that estimates how often a key was requested lately, in eight bytes per entry of the
//! cache.
//!
//! It is a count-min sketch of four-bit counters. A key has four counters in one cache line, each
//! in a different pair of its words. An addition raises all four, and the estimate is their minimum
//! (Einziger, Friedman, Manes, "TinyLFU", TOS '17; the one-line layout is Caffeine's). Counts age:
//! with every fifth addition one word of the table is halved in turn, which spreads TinyLFU's
//! periodic reset evenly. The sample in TinyLFU is ten times the cache and a reset leaves half of
//! it, so resets come with each five additions an entry.

/// Number of words in a cache line; each holds sixteen counters.
const LINE: usize = 8;
/// Number of additions after which the next word of the table is halved. TinyLFU resets after a
/// sample of ten times the cache, which leaves half, so five additions come between resets for each
/// entry.
const ADDITIONS_PER_HALVING: u64 = 5;
const COUNTER_MAX: u64 = 15;
/// Mask that clears in each counter the bit that a halving shifts in from its neighbour.
const HALVED: u64 = 0x7777_7777_7777_7777;

/// A count-min sketch of recent request frequencies.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sketch {
    lines: Vec<[u64; LINE]>,
    additions: u64,
    aged: usize,
}

impl Sketch {
    /// Allocates for a cache of `entries`. If the table has to grow, the counts of most keys move
    /// along; of all keys, where it grows to a multiple.
    pub(crate) fn reserve(&mut self, entries: usize) {
        let (lines, before) = (entries.div_ceil(LINE), self.lines.len());
        if lines > before {
            // Lines are in the order of the keys' hashes, so the keys of a new line had one old
            // line or two that are neighbours. The one that had most of them is copied. The larger
            // counts of both would pile up where a table grows in many small steps.
            let (now, then) = (lines as u64, before as u64);
            let line = |at: u64| self.lines.get(((2 * at + 1) * then / (2 * now)) as usize);
            self.lines = (0..now).map(|at| line(at).copied().unwrap_or_default()).collect();
            self.aged = (self.aged as u64 * now / then.max(1)) as usize;
        }
    }

    /// Returns the line of a key, and word and shift of each of its four counters in that line.
    #[inline]
    fn counters(&self, key: u32) -> (usize, [(usize, u32); 4]) {
        let hash = mix(u64::from(key));
        let line = ((hash >> 32) * self.lines.len() as u64) >> 32;
        let place = |row: usize| {
            let bits = (hash >> (row * 5)) as usize;
            (row * 2 + (bits & 1), ((bits >> 1 & 15) * 4) as u32)
        };
        (line as usize, [place(0), place(1), place(2), place(3)])
    }

    /// Returns the estimated number of additions of a key, at most 15.
    #[inline]
    pub(crate) fn estimate(&self, key: u32) -> u64 {
        let (line, counters) = self.counters(key);
        let Some(line) = self.lines.get(line) else { return 0 };
        counters.iter().map(|&(word, shift)| line[word] >> shift & COUNTER_MAX).min().unwrap_or(0)
    }

    /// Counts a request for a key.
    #[inline]
    pub(crate) fn add(&mut self, key: u32) {
        let (line, counters) = self.counters(key);
        let Some(line) = self.lines.get_mut(line) else { return };
        for (word, shift) in counters {
            if line[word] >> shift & COUNTER_MAX < COUNTER_MAX {
                line[word] += 1 << shift;
            }
        }
        self.additions += 1;
        if self.additions.is_multiple_of(ADDITIONS_PER_HALVING) {
            self.age();
        }
    }

    /// Halves the counters of the next word.
    fn age(&mut self) {
        let word = &mut self.lines[self.aged / LINE][self.aged % LINE];
        *word = *word >> 1 & HALVED;
        self.aged = (self.aged + 1) % (self.lines.len() * LINE);
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.lines.capacity() * size_of::<[u64; LINE]>()
    }
}

/// Mixes the bits of a number so that every input bit affects every output bit: the finaliser of
/// SplitMix64 (Steele, Lea, Flood, OOPSLA '14).
#[inline]
pub fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// The SplitMix64 generator.
#[derive(Debug, Clone)]
pub(crate) struct Random {
    state: u64,
}

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    #[inline]
    pub(crate) fn next(&mut self) -> u64 {
        let value = mix(self.state);
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        value
    }

    /// Returns a random number below `limit`, which is not 0.
    #[inline]
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (((self.next() >> 32) * limit as u64) >> 32) as usize
    }

    /// Returns a random number in `0.0..1.0`.
    #[inline]
    pub(crate) fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_counts_up_to_fifteen_and_is_never_underestimated_before_ageing() {
        let mut sketch = Sketch::default();
        sketch.reserve(1000);
        for times in 1..=9 {
            sketch.add(7);
            assert_eq!(sketch.estimate(7), times);
        }
        assert_eq!(sketch.estimate(8), 0);
    }

    #[test]
    fn all_counts_are_halved_with_five_additions_per_word() {
        let mut sketch = Sketch::default();
        sketch.reserve(64);
        sketch.lines.fill([u64::MAX; LINE]);
        (0..64 * 5).for_each(|_| sketch.add(7));
        assert!(sketch.lines.iter().flatten().all(|&word| word != u64::MAX));
    }

    #[test]
    fn a_sketch_that_grows_keeps_most_of_what_it_knows() {
        for (before, after, lost_max) in [(64, 128, 0.0), (64, 320, 0.0), (800, 1000, 0.4)] {
            let mut sketch = Sketch::default();
            sketch.reserve(before);
            for key in 0..before as u32 {
                (0..1 + key % 4).for_each(|_| sketch.add(key));
            }
            let known = |sketch: &Sketch| -> Vec<u64> {
                (0..before as u32).map(|key| sketch.estimate(key)).collect()
            };
            let then = known(&sketch);
            sketch.reserve(after);
            let now = known(&sketch);
            let lost = then.iter().zip(&now).filter(|(then, now)| now < then).count();
            let most = lost_max * before as f64;
            assert!(lost as f64 <= most, "{lost} of {before} keys, {before} to {after}");
            let sum = |counts: &[u64]| counts.iter().sum::<u64>();
            assert!(sum(&then) > before as u64 && sum(&now) <= sum(&then), "{now:?}");
        }
    }

    #[test]
    fn old_counts_fade() {
        let mut sketch = Sketch::default();
        sketch.reserve(64);
        for _ in 0..15 {
            sketch.add(7);
        }
        for other in 0..64 * 10 * 4 {
            sketch.add(1000 + other % 512);
        }
        assert!(sketch.estimate(7) < 15);
    }
}
