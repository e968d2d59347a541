//! Pseudo-random numbers and bytes that are reproducible from a seed.

use std::hash::Hasher;

/// The random number generator SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// Returns the next number.
    #[allow(clippy::should_implement_trait, reason = "it has no end, and is no iterator")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number from 0 to `end` - 1.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

/// Returns `len` bytes whose values vary with position and seed.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let (mut random, mut bytes) = (Random(seed), vec![0; len]);
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&random.next().to_le_bytes()[..chunk.len()]);
    }
    bytes
}

/// A hasher that returns the last 64-bit number of the key unchanged. Panics for keys of any other
/// type.
#[derive(Debug, Clone, Default)]
pub struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are numbers");
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_paper() {
        let mut random = Random(1_234_567);
        let wanted = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973];
        assert_eq!([random.next(), random.next()], wanted);
    }

    #[test]
    fn a_pattern_is_the_beginning_of_a_longer_one() {
        let long = pattern(3, 100);
        (0..100).for_each(|len| assert_eq!(pattern(3, len), long[..len]));
        assert_ne!(pattern(4, 100), long);
    }
}
