//! The allocation of slots, in runs: the blocks of a group have neighbouring slots, so a group
//! stores only the first.
//!
//! A buddy allocator: a run is a power of two long and aligned to its length. It is split in halves
//! when only a longer one is free, and joined with its other half when both are free. A group's run
//! is freed as a whole, so fragments are joined again.
//!
//! Invariants: free runs are aligned and do not overlap; the two halves of a run are never both
//! free.

use std::collections::BTreeSet;

/// Lengths of runs: 1 to 256, the smallest blocks in the largest group.
const ORDERS: usize = 9;

/// Free runs of slots below an end that grows as needed.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    /// The first slots of free runs, by the logarithm of their length.
    free: [BTreeSet<u32>; ORDERS],
    /// Upper bound of the slots that were ever in use.
    end: u32,
}

impl Runs {
    /// Returns the upper bound of the slots that may be in use.
    pub(crate) fn end(&self) -> u32 {
        self.end
    }

    /// Takes a run of `len` slots and returns its first: the lowest that fits best.
    pub(crate) fn take(&mut self, len: u32) -> u32 {
        let order = order_of(len);
        let found = (order..ORDERS).find_map(|order| Some((order, self.free[order].pop_first()?)));
        let Some((mut from, first)) = found else { return self.extend(len) };
        while from > order {
            from -= 1;
            self.free[from].insert(first + (1 << from));
        }
        first
    }

    /// Takes a run beyond the end; slots skipped for alignment become free.
    fn extend(&mut self, len: u32) -> u32 {
        while !self.end.is_multiple_of(len) {
            let gap = 1 << self.end.trailing_zeros();
            self.end += gap;
            self.give_back(self.end - gap, gap);
        }
        self.end += len;
        self.end - len
    }

    /// Gives a run back.
    pub(crate) fn give_back(&mut self, mut first: u32, len: u32) {
        let mut order = order_of(len);
        while order + 1 < ORDERS && self.free[order].remove(&(first ^ (1 << order))) {
            first &= !(1 << order);
            order += 1;
        }
        self.free[order].insert(first);
    }
}

fn order_of(len: u32) -> usize {
    debug_assert!(len.is_power_of_two());
    len.trailing_zeros() as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn runs_never_overlap_and_heal(
            steps in proptest::collection::vec((0u32..9, any::<bool>(), any::<usize>()), 0..300),
        ) {
            let mut runs = Runs::default();
            let mut taken: Vec<(u32, u32)> = Vec::new();
            let mut most = 0;
            for (order, take, which) in steps {
                if take {
                    let len = 1 << order;
                    let first = runs.take(len);
                    prop_assert!(first.is_multiple_of(len) && first + len <= runs.end());
                    let is_apart = |start, other| first + len <= start || start + other <= first;
                    prop_assert!(taken.iter().all(|&(start, other)| is_apart(start, other)));
                    taken.push((first, len));
                    most = most.max(taken.iter().map(|(_, len)| len).sum::<u32>());
                } else if !taken.is_empty() {
                    let (first, len) = taken.swap_remove(which % taken.len());
                    runs.give_back(first, len);
                }
            }
            for (first, len) in taken.drain(..) {
                runs.give_back(first, len);
            }
            // With nothing in use, a long run can be had without growing, if there ever was room
            // for one.
            let end = runs.end();
            if end >= 512 {
                runs.take(256);
                prop_assert_eq!(runs.end(), end);
            }
        }
    }

    #[test]
    fn the_lowest_run_that_fits_best_is_taken() {
        let mut runs = Runs::default();
        assert_eq!([runs.take(1), runs.take(4), runs.take(1), runs.take(2)], [0, 4, 1, 2]);
        assert_eq!(runs.end(), 8);
        runs.give_back(4, 4);
        assert_eq!([runs.take(2), runs.take(4), runs.take(2)], [4, 8, 6]);
    }
}
