//! Small bypass: admits nothing while the data in use fits into the memory cache above, which would
//! answer it.
//!
//! The published form compares the memory with the size of all files ("Writes Hurt", the NVCache
//! paper, section 3.2, lesson 1). The size of a volume says little of how much of it is in use, so
//! here the memory is compared with the data *touched* lately ([`Footprint`]). A window ends when
//! requests for four times the memory above have reached this cache, so data that does not fit
//! above shows before anything is forgotten.
//!
//! Owners have to report hits ([`Admission::used`]), or the data that the cache answers itself
//! seems unused. Do not use it where the memory above does not cache the blocks of this cache.

use super::{Admission, Needs, Orders, RegisteredAdmission, Room, Verdict, Victim};
use crate::sketch::mix;
use crate::{Access, Parameter, Parameters, PolicyInfo, Tick};

/// Length of a window, in multiples of the memory above.
const WINDOW: u64 = 4;

/// Small bypass (`small-bypass`): admits nothing while the footprint fits into the memory above.
#[derive(Debug, Clone)]
pub struct SmallBypass {
    footprint: Footprint,
    given: u64,
    above: u64,
}

impl SmallBypass {
    /// Creates an admission below `memory`, in the unit of [`Access::weight`].
    pub fn new(memory: u64) -> Self {
        Self { given: memory, above: memory, ..Self::default() }
    }

    fn touch(&mut self, access: &Access) {
        self.footprint.touch(access.hash, access.weight, self.above.saturating_mul(WINDOW).max(1));
    }

    fn fits_above(&self) -> bool {
        self.footprint.weight() <= self.above as f64
    }
}

impl RegisteredAdmission for SmallBypass {
    const INFO: PolicyInfo = PolicyInfo::new(
        "small-bypass",
        "admits nothing while the blocks in use fit into the memory above",
        "NVCache, \"Writes Hurt\"",
    )
    .with(&[Parameter::count(
        "memory",
        0,
        0..=1 << 50,
        "capacity of the memory above: bytes, such as 1GiB, or objects where these are counted; 0 \
         for the known one",
    )]);

    fn with(parameters: &Parameters) -> Self {
        let given = parameters.count("memory");
        Self { footprint: Footprint::default(), given, above: given }
    }
}

impl Admission for SmallBypass {
    fn needs(&self) -> Needs {
        Needs { above: self.given == 0, ..Needs::default() }
    }

    fn split(&mut self, _: usize, parts: usize) {
        self.given = self.given.div_ceil(parts as u64);
    }

    fn reserve(&mut self, room: &Room) {
        self.above = if self.given > 0 { self.given } else { room.above };
    }

    fn used(&mut self, access: &Access) {
        self.touch(access);
    }

    fn judge(&mut self, offer: &Access, _: Option<&Victim>) -> Verdict {
        self.touch(offer);
        if self.fits_above() { Verdict::Bypass } else { Verdict::Admit }
    }

    fn order(&mut self, _: Tick, orders: &mut Orders) {
        orders.hold |= self.fits_above();
    }

    fn memory_bytes(&self) -> usize {
        self.footprint.memory_bytes()
    }
}

/// log2 of the number of registers; the standard error is 1.04 / sqrt of that number, 1.6 %.
const BITS: u32 = 12;
const REGISTERS: usize = 1 << BITS;

/// Estimates the weight of distinct data touched in the last one to two windows, in eight kilobytes
/// of memory.
///
/// It has one HyperLogLog (Flajolet et al., AofA '07) for the current window and one for the window
/// before, and estimates their union. A window ends after a given weight of accesses. Whether an
/// access raises a register depends on its hash alone, so those that do are a fair sample of the
/// distinct blocks. The estimate is their mean weight times the number of distinct blocks. So
/// blocks need not be of one size, and those used often count no more than others.
#[derive(Debug, Clone)]
pub(crate) struct Footprint {
    /// Registers of the current window and the one before.
    windows: [Vec<u8>; 2],
    /// Sum of 2^-register over the union of both windows; `zeros` counts its registers at 0.
    harmonic: f64,
    zeros: usize,
    /// Number and weight of the accesses that raised a register, for the current window and the one
    /// before.
    raised: [(u64, u64); 2],
    seen_weight: u64,
}

impl Default for Footprint {
    fn default() -> Self {
        Self {
            windows: [vec![0; REGISTERS], vec![0; REGISTERS]],
            harmonic: REGISTERS as f64,
            zeros: REGISTERS,
            raised: [(0, 0); 2],
            seen_weight: 0,
        }
    }
}

impl Footprint {
    /// Counts an access; a window ends after accesses with a weight of `window`.
    #[inline]
    pub(crate) fn touch(&mut self, hash: u64, weight: u32, window: u64) {
        self.seen_weight += u64::from(weight);
        // Hashes are mixed already, but two uses of the same bits should not meet.
        let hash = mix(hash);
        let at = (hash >> (64 - BITS)) as usize;
        let rank = (hash << BITS | 1 << (BITS - 1)).leading_zeros() as u8 + 1;
        if rank > self.windows[0][at] {
            let before = self.windows[0][at].max(self.windows[1][at]);
            self.windows[0][at] = rank;
            self.raised[0].0 += 1;
            self.raised[0].1 += u64::from(weight);
            if rank > before {
                self.harmonic += power(rank) - power(before);
                self.zeros -= usize::from(before == 0);
            }
        }
        if self.seen_weight >= window {
            self.turn();
        }
    }

    /// Drops the older window and begins a new one.
    #[cold]
    fn turn(&mut self) {
        self.windows.swap(0, 1);
        self.windows[0].fill(0);
        self.raised = [(0, 0), self.raised[0]];
        self.seen_weight = 0;
        self.harmonic = self.windows[1].iter().map(|&rank| power(rank)).sum();
        self.zeros = self.windows[1].iter().filter(|&&rank| rank == 0).count();
    }

    /// Returns the estimated weight of distinct data touched.
    pub(crate) fn weight(&self) -> f64 {
        let (raised, weight) =
            (self.raised[0].0 + self.raised[1].0, self.raised[0].1 + self.raised[1].1);
        if raised == 0 { 0.0 } else { self.blocks() * weight as f64 / raised as f64 }
    }

    /// Returns the estimated number of distinct blocks touched.
    fn blocks(&self) -> f64 {
        let registers = REGISTERS as f64;
        let estimate = 0.7213 / (1.0 + 1.079 / registers) * registers * registers / self.harmonic;
        if estimate <= 2.5 * registers && self.zeros > 0 {
            registers * (registers / self.zeros as f64).ln()
        } else {
            estimate
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.windows.iter().map(Vec::capacity).sum()
    }
}

/// Returns 2^-rank.
fn power(rank: u8) -> f64 {
    (-f64::from(rank)).exp2()
}

#[cfg(test)]
mod footprint_tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            cases: 64,
            ..ProptestConfig::default()
        })]

        /// The estimate is within five standard errors plus the sampling error of the weights.
        #[test]
        fn it_is_the_weight_of_the_distinct_blocks(
            distinct in 1..60_000u64, repeats in 1..4u64, salt in any::<u32>(), large in 1..8u32,
        ) {
            let mut footprint = Footprint::default();
            let mut weights = HashMap::new();
            for round in 0..repeats {
                for key in 0..distinct {
                    // Small blocks are used once a round, large ones twice.
                    let weight = if key % 4 == 0 { large } else { 1 };
                    weights.insert(key, u64::from(weight));
                    for _ in 0..=u32::from(weight > 1 && round > 0) {
                        footprint.touch(mix(u64::from(salt) << 32 | key), weight, u64::MAX);
                    }
                }
            }
            let exact = weights.values().sum::<u64>() as f64;
            let off = (footprint.weight() - exact).abs() / exact;
            let weight = footprint.weight();
            prop_assert!(off < 0.10 || (weight - exact).abs() < 2.0, "{weight} for {exact}");
        }
    }

    #[test]
    fn what_was_touched_two_windows_ago_is_forgotten() {
        let mut footprint = Footprint::default();
        (0..1000).for_each(|key| footprint.touch(key, 1, 1000));
        (0..999).for_each(|_| footprint.touch(5, 1, 1000));
        assert!(footprint.weight() > 900.0, "the window before still counts");
        (0..2).for_each(|_| footprint.touch(5, 1, 1000));
        assert!(footprint.weight() < 2.0, "{}", footprint.weight());
    }
}
