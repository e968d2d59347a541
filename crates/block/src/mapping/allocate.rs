//! Block allocation for missing data: AdaCache's Algorithms 1 and 2.
//!
//! Algorithm 1 finds the *missing intervals*: the request, rounded out to the smallest block, less
//! the cached blocks. Algorithm 2 is the *greedy allocation*: each interval is filled from its
//! start with the largest aligned block that fits the rest. As printed, Algorithm 1 rounds an
//! aligned end up by one block too many, and misses its end when a cached block reaches past it.
//! Algorithm 2 never goes back to larger sizes. Here both do as the paper's text says.

use crate::geometry::{BlockSizes, Class, Sectors};

/// Algorithm 1: appends to `missing` the intervals of `range`, rounded out to smallest blocks, that
/// are not cached.
///
/// `cached_until` is called with positions in ascending order and returns the end of the cached
/// block that covers the position, if there is one.
pub(crate) fn missing_intervals(
    sizes: &BlockSizes,
    range: &Sectors,
    mut cached_until: impl FnMut(u64) -> Option<u64>,
    missing: &mut Vec<Sectors>,
) {
    let Sectors { start: mut position, end } = sizes.round_out(range);
    while position < end {
        if let Some(block_end) = cached_until(position) {
            debug_assert!(block_end > position);
            position = block_end;
            continue;
        }
        let next = position + sizes.smallest();
        match missing.last_mut() {
            Some(last) if last.end == position => last.end = next,
            _ => missing.push(position..next),
        }
        position = next;
    }
}

/// Algorithm 2, one step: the largest block that starts where `interval` does and fits in it.
///
/// # Panics
/// When the interval is empty or not made of smallest blocks.
#[inline]
pub(crate) fn largest_fitting(sizes: &BlockSizes, interval: &Sectors) -> Class {
    let fits = |class: &Class| {
        let size = sizes.sectors(*class);
        interval.start.is_multiple_of(size) && interval.start + size <= interval.end
    };
    sizes.classes().rev().find(fits).expect("an interval is made of whole smallest blocks")
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // lists of one interval are meant
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Algorithm 2: the blocks that fill `interval`, in address order.
    fn greedy_blocks<'a>(
        sizes: &'a BlockSizes,
        interval: &Sectors,
    ) -> impl Iterator<Item = (u64, Class)> + 'a {
        let mut left = interval.clone();
        std::iter::from_fn(move || {
            if left.is_empty() {
                return None;
            }
            let class = largest_fitting(sizes, &left);
            let start = left.start;
            left.start += sizes.sectors(class);
            Some((start, class))
        })
    }

    /// Sectors of 4 KiB from KiB.
    fn kib(range: std::ops::Range<u64>) -> Sectors {
        range.start / 4..range.end.div_ceil(4)
    }

    /// Missing intervals of a request in KiB, with `cached` blocks in KiB.
    fn missing(
        sizes: &BlockSizes,
        request: std::ops::Range<u64>,
        cached: &[std::ops::Range<u64>],
    ) -> Vec<Sectors> {
        let cached: Vec<Sectors> = cached.iter().cloned().map(kib).collect();
        let mut out = Vec::new();
        let until =
            |at: u64| cached.iter().find(|block| block.contains(&at)).map(|block| block.end);
        missing_intervals(sizes, &kib(request), until, &mut out);
        out
    }

    fn blocks(sizes: &BlockSizes, interval: std::ops::Range<u64>) -> Vec<(u64, u64)> {
        greedy_blocks(sizes, &kib(interval))
            .map(|(start, class)| (start * 4, sizes.bytes(class) / 1024))
            .collect()
    }

    #[test]
    fn the_worked_example_allocates_one_block_of_32_and_one_of_64_kib() {
        let sizes = BlockSizes::default();
        assert_eq!(missing(&sizes, 48..48 + 184, &[128..256]), [kib(32..128)]);
        assert_eq!(blocks(&sizes, 32..128), [(32, 32), (64, 64)]);
    }

    #[test]
    fn an_aligned_end_is_not_rounded_up() {
        let sizes = BlockSizes::default();
        assert_eq!(missing(&sizes, 0..64, &[]), [kib(0..64)]);
        assert_eq!(missing(&sizes, 32..64, &[32..64]), []);
    }

    #[test]
    fn a_cached_block_may_reach_past_the_end_of_the_request() {
        let sizes = BlockSizes::default();
        assert_eq!(missing(&sizes, 96..160, &[128..256]), [kib(96..128)]);
        assert_eq!(missing(&sizes, 130..140, &[128..256]), []);
    }

    #[test]
    fn a_cached_block_may_begin_before_the_request() {
        assert_eq!(missing(&BlockSizes::default(), 96..288, &[0..128]), [kib(128..288)]);
    }

    #[test]
    fn interleaved_sizes_leave_separate_intervals() {
        let cached = [32..64, 128..256, 288..320];
        assert_eq!(
            missing(&BlockSizes::default(), 0..384, &cached),
            [kib(0..32), kib(64..128), kib(256..288), kib(320..384)]
        );
    }

    #[test]
    fn allocation_goes_back_to_the_largest_size_after_each_block() {
        let sizes = BlockSizes::default();
        let expected =
            [(32, 32), (64, 64), (128, 128), (256, 256), (512, 256), (768, 64), (832, 32)];
        assert_eq!(blocks(&sizes, 32..864), expected);
    }

    #[test]
    fn a_request_over_two_regions_takes_blocks_in_both() {
        let sizes = BlockSizes::default();
        assert_eq!(missing(&sizes, 192..320, &[]), [kib(192..320)]);
        assert_eq!(blocks(&sizes, 192..320), [(192, 64), (256, 64)]);
    }

    #[test]
    fn one_size_is_an_ordinary_cache() {
        let sizes = BlockSizes::new(&[64 << 10]).unwrap();
        assert_eq!(missing(&sizes, 100..200, &[]), [kib(64..256)]);
        assert_eq!(blocks(&sizes, 64..256), [(64, 64), (128, 64), (192, 64)]);
    }

    proptest! {
        /// Missing intervals are exactly the uncovered smallest blocks, and greedy blocks tile
        /// them.
        #[test]
        fn blocks_tile_exactly_what_is_missing(
            start in 0u64..300, len in 1u64..300,
            cached in proptest::collection::vec((0u64..40, 0u8..4), 0..12),
        ) {
            let sizes = BlockSizes::default();
            let mut units = [false; 64 * 16];
            let mut ends = vec![None; units.len()];
            for (at, class) in cached {
                let size = sizes.sectors(Class(class));
                let begin = at * 16 / size * size;
                let range = begin as usize..(begin + size) as usize;
                if units[range.clone()].iter().any(|&taken| taken) {
                    continue;
                }
                units[range.clone()].fill(true);
                ends[range].fill(Some(begin + size));
            }
            let mut intervals = Vec::new();
            let wanted = start..start + len;
            missing_intervals(&sizes, &wanted, |at| ends[at as usize], &mut intervals);
            let mut tiled = units;
            let blocks = intervals.iter().flat_map(|interval| greedy_blocks(&sizes, interval));
            for (begin, class) in blocks {
                let size = sizes.sectors(class);
                prop_assert!(begin.is_multiple_of(size));
                for sector in begin..begin + size {
                    prop_assert!(!std::mem::replace(&mut tiled[sector as usize], true));
                }
            }
            let rounded = sizes.round_out(&(start..start + len));
            for sector in 0..tiled.len() as u64 {
                let expected = units[sector as usize] || rounded.contains(&sector);
                prop_assert_eq!(tiled[sector as usize], expected);
            }
        }
    }
}
