//! Parts: the pieces of an object that are cached. As in AdaCache, a part has one of a few sizes,
//! is aligned to it, and is found by trying all sizes.

use std::collections::BTreeSet;
use std::ops::Range;

/// Sizes of parts in bytes. Only one of the first size may be shorter, at the end of an object.
pub(crate) const PART_BYTES: [u64; 4] = [4 << 10, 16 << 10, 64 << 10, 256 << 10];
/// Size of the smallest part, to which requests are aligned.
pub(crate) const UNIT: u64 = PART_BYTES[0];

/// The place of a part in its object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Part {
    /// Index into [`PART_BYTES`].
    pub(crate) size: u8,
    /// Offset in units of the part's size.
    pub(crate) index: u64,
}

impl Part {
    /// The bytes of the part in an object of this length.
    pub(crate) fn range(self, len: u64) -> Range<u64> {
        let bytes = PART_BYTES[usize::from(self.size)];
        let start = self.index * bytes;
        start..(start + bytes).min(len)
    }
}

/// Rounds a range out to whole units, but not beyond the object.
pub(crate) fn align(range: &Range<u64>, len: u64) -> Range<u64> {
    let start = range.start / UNIT * UNIT;
    start..range.end.next_multiple_of(UNIT).min(len)
}

/// The result of a [`survey`].
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Survey {
    /// Cached parts that cover the range but for the missing bytes, in ascending order.
    pub(crate) cached: Vec<Part>,
    /// Missing bytes, in ascending order. Neighbours are merged.
    pub(crate) missing: Vec<Range<u64>>,
}

/// Finds the cached parts of an aligned range, and the bytes between them (AdaCache, Algorithm 1).
pub(crate) fn survey(range: &Range<u64>, len: u64, mut has: impl FnMut(Part) -> bool) -> Survey {
    let mut survey = Survey::default();
    // The larger parts that cover the position are known to be absent up to these offsets.
    let mut absent_until = [0; PART_BYTES.len()];
    let mut at = range.start;
    while at < range.end {
        let found = (0..PART_BYTES.len()).find_map(|size| {
            if at < absent_until[size] {
                return None;
            }
            let part = Part { size: size as u8, index: at / PART_BYTES[size] };
            if has(part) {
                return Some(part);
            }
            absent_until[size] = (part.index + 1) * PART_BYTES[size];
            None
        });
        at = match found {
            Some(part) => {
                survey.cached.push(part);
                part.range(len).end
            }
            None => {
                let end = (at / UNIT * UNIT + UNIT).min(range.end);
                push(&mut survey.missing, at..end);
                end
            }
        };
    }
    survey
}

/// Returns the parts that fill an aligned range: at each position the largest that fits (AdaCache,
/// Algorithm 2).
pub(crate) fn allocate(range: &Range<u64>, len: u64) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let size = (1..PART_BYTES.len())
            .rev()
            .find(|size| {
                at.is_multiple_of(PART_BYTES[*size]) && at + PART_BYTES[*size] <= range.end
            })
            .unwrap_or(0);
        let part = Part { size: size as u8, index: at / PART_BYTES[size] };
        at = part.range(len).end;
        parts.push(part);
    }
    parts
}

/// Appends a range that begins at the end of the last one or later.
pub(crate) fn push(ranges: &mut Vec<Range<u64>>, range: Range<u64>) {
    match ranges.last_mut() {
        Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
        _ => ranges.push(range),
    }
}

/// Returns the union of ranges in ascending order, without empty ones.
pub(crate) fn union(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_unstable_by_key(|range| range.start);
    let mut merged = Vec::with_capacity(ranges.len());
    for range in ranges {
        push(&mut merged, range);
    }
    merged
}

/// Returns the bytes of ascending ranges that none of the others has.
pub(crate) fn without(ranges: &[Range<u64>], others: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut left = Vec::new();
    for range in ranges {
        let mut at = range.start;
        for other in others.iter().filter(|other| other.start < range.end) {
            if other.start > at {
                left.push(at..other.start);
            }
            at = at.max(other.end);
        }
        if at < range.end {
            left.push(at..range.end);
        }
    }
    left
}

/// Returns whether two ranges share a byte.
pub(crate) fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

/// Absent parts whose lookup said otherwise: the index of flash knows keys by a part of their hash.
pub(crate) type Absent = BTreeSet<Part>;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    #[test]
    fn parts_are_the_largest_that_fit() {
        let sizes = |range: Range<u64>, len| -> Vec<u64> {
            allocate(&range, len)
                .iter()
                .map(|part| part.range(len))
                .map(|r| r.end - r.start)
                .collect()
        };
        const K: u64 = 1 << 10;
        assert_eq!(sizes(0..256 * K, 1 << 30), [256 * K]);
        assert_eq!(sizes(12 * K..84 * K, 1 << 30), [4 * K, 16 * K, 16 * K, 16 * K, 16 * K, 4 * K]);
        assert_eq!(sizes(0..10, 10), [10]);
        assert_eq!(sizes(0..16 * K + 5, 16 * K + 5), [16 * K, 5]);
    }

    #[test]
    fn a_survey_finds_all_that_was_allocated() {
        const UNITS: usize = 512;
        for seed in 0..200 {
            let mut random = SmallRng::seed_from_u64(seed);
            let len = random.random_range(1..UNITS as u64 * UNIT);
            let mut any = || {
                let start = random.random_range(0..len);
                align(&(start..random.random_range(start..len) + 1), len)
            };
            let units = |range: &Range<u64>| {
                (range.start / UNIT) as usize..range.end.div_ceil(UNIT) as usize
            };
            let mut cached = BTreeSet::new();
            let mut is_cached = [false; UNITS];
            for _ in 0..4 {
                let range = any();
                cached.extend(allocate(&range, len));
                is_cached[units(&range)].fill(true);
            }
            let range = any();
            let found = survey(&range, len, |part| cached.contains(&part));
            let mut covered = [0; UNITS];
            for part in &found.cached {
                assert!(cached.contains(part));
                covered[units(&part.range(len))].iter_mut().for_each(|n| *n |= 1);
            }
            for missing in &found.missing {
                covered[units(missing)].iter_mut().for_each(|n| *n |= 2);
            }
            for unit in units(&range) {
                assert_eq!(
                    covered[unit],
                    if is_cached[unit] { 1 } else { 2 },
                    "seed {seed}, {unit}"
                );
            }
        }
    }

    #[test]
    fn ranges_are_joined_and_cut() {
        assert_eq!(union(vec![5..7, 0..3, 3..4, 6..9, 9..9]), [0..4, 5..9]);
        assert_eq!(without(&[0..10, 20..30], &[2..4, 8..22, 25..26]), [0..2, 4..8, 22..25, 26..30]);
        assert_eq!(without(&[0..10], &[0..10]), []);
    }
}
