//! Random numbers whose streams never change: xoshiro256++ (Blackman and Vigna, 2018), seeded by
//! SplitMix64.
//!
//! Written out here because a trace named by a seed must be the same trace after every update of
//! every dependency.

/// A stream of random numbers.
#[derive(Debug, Clone)]
pub(super) struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// The stream of this seed.
    pub(super) fn new(seed: u64) -> Self {
        let mut state = seed;
        Self { state: [(); 4].map(|()| split_mix(&mut state)) }
    }

    /// 64 random bits.
    #[inline]
    pub(super) fn next(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.state;
        let result = a.wrapping_add(*d).rotate_left(23).wrapping_add(*a);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        result
    }

    /// A whole number below `end`, each equally likely (Lemire, 2019).
    #[inline]
    pub(super) fn below(&mut self, end: u64) -> u64 {
        let mut product = u128::from(self.next()) * u128::from(end);
        if (product as u64) < end {
            let unfair = end.wrapping_neg() % end;
            while (product as u64) < unfair {
                product = u128::from(self.next()) * u128::from(end);
            }
        }
        (product >> 64) as u64
    }

    /// A whole number below `end`, and where in its share of the draw it fell: 64 more bits, for a
    /// second decision. Off from uniform by less than `end` in 2⁶⁴.
    #[inline]
    pub(super) fn place(&mut self, end: u64) -> (u64, u64) {
        let product = u128::from(self.next()) * u128::from(end);
        ((product >> 64) as u64, product as u64)
    }
}

/// A seed for the `index`-th part of whatever has this seed.
pub(super) fn derived(seed: u64, index: u64) -> u64 {
    let mut state = seed ^ index.wrapping_mul(0xa076_1d64_78bd_642f);
    split_mix(&mut state)
}

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// A share between 0 and 1 as a threshold: `rng.next() < threshold(share)` holds for that share of
/// draws.
pub(super) fn threshold(share: f64) -> u64 {
    (share * 18_446_744_073_709_551_616.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_below_an_end_are_equally_likely() {
        let mut rng = Rng::new(1);
        let mut counts = [0u32; 10];
        (0..1_000_000).for_each(|_| counts[rng.below(10) as usize] += 1);
        let chi_square: f64 = counts.iter().map(|&n| (f64::from(n) - 1e5).powi(2) / 1e5).sum();
        assert!(chi_square < 27.9, "{chi_square}"); // one in a thousand at 9 degrees of freedom
    }

    #[test]
    fn the_stream_is_the_published_one() {
        // First outputs of the authors' C code for the state 1, 2, 3, 4.
        let mut rng = Rng { state: [1, 2, 3, 4] };
        assert_eq!(
            [rng.next(), rng.next(), rng.next()],
            [41_943_041, 58_720_359, 3_588_806_011_781_223]
        );
    }
}
