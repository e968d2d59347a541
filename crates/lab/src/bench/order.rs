//! The order in which a load is gone through, pass after pass.
//!
//! A trace is followed by itself. A load of independent draws is better drawn again: in the same
//! order, a key that comes once would come back after exactly one pass, for ever, which LRU misses
//! at any capacity short of all keys. So after the first pass, which shows every key, chunks are
//! drawn at random, with as good a chance for each at any time; a pass is then only a number of
//! draws. Chunks, since threads take chunks. Draws follow from their number: nothing is stored, and
//! every thread and the simulation find the same.

use floe_policy::mix;

/// Operations that stay together, and that a thread takes at a time.
pub(super) const CHUNK: usize = 512;

/// The order of requests in a pass over a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PassOrder {
    /// All like the first.
    #[default]
    AsIs,
    /// After the first by chunks drawn at random.
    Drawn,
}

impl PassOrder {
    /// The chunk at a place of a pass, of `chunks` chunks.
    #[inline]
    pub fn chunk(self, pass: u64, at: u64, chunks: u64) -> u64 {
        match self {
            Self::Drawn if pass > 0 => {
                let draw = mix(pass.wrapping_mul(chunks).wrapping_add(at));
                ((u128::from(draw) * u128::from(chunks)) >> 64) as u64
            }
            _ => at,
        }
    }

    /// Where the operations of a pass lie in a load of so many.
    pub fn places(self, pass: u64, operations: usize) -> Vec<usize> {
        let chunks = operations.div_ceil(CHUNK) as u64;
        let chunk = |at| {
            let from = self.chunk(pass, at, chunks) as usize * CHUNK;
            from..(from + CHUNK).min(operations)
        };
        (0..chunks).flat_map(chunk).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_pass_and_every_pass_of_a_trace_hold_each_operation_once() {
        for operations in [1, CHUNK, CHUNK + 1, 5 * CHUNK - 7, 100_000] {
            assert!(
                PassOrder::Drawn.places(0, operations).into_iter().eq(0..operations),
                "{operations}"
            );
            assert!(
                PassOrder::AsIs.places(5, operations).into_iter().eq(0..operations),
                "{operations}"
            );
        }
    }

    #[test]
    fn chunks_are_drawn_with_the_same_chance_in_every_pass() {
        const CHUNKS: u64 = 20;
        for pass in [1, 2, 1000] {
            let mut counts = [0u32; CHUNKS as usize];
            for (pass, at) in
                (pass..pass + 1000).flat_map(|pass| (0..CHUNKS).map(move |at| (pass, at)))
            {
                counts[PassOrder::Drawn.chunk(pass, at, CHUNKS) as usize] += 1;
            }
            let chi_square: f64 =
                counts.iter().map(|&n| (f64::from(n) - 1000.0).powi(2) / 1000.0).sum();
            // one in a thousand at 19 degrees of freedom
            assert!(chi_square < 43.8, "{chi_square}");
        }
        assert_ne!(PassOrder::Drawn.places(1, 100_000), PassOrder::Drawn.places(2, 100_000));
    }
}
