//! A set of regions: a bit for each part of a mirror that is copied as one.

/// A set of regions of one mirror. All sets of a mirror have the same number of regions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Regions {
    words: Vec<u64>,
    /// Regions of the mirror.
    count: usize,
    /// Regions in the set.
    len: usize,
}

impl Regions {
    pub(crate) fn none(count: usize) -> Regions {
        Regions { words: vec![0; count.div_ceil(64)], count, len: 0 }
    }

    pub(crate) fn all(count: usize) -> Regions {
        let mut regions = Regions::none(count);
        (0..count).for_each(|region| regions.insert(region));
        regions
    }

    /// Reads a set from its bytes; `None` where they do not have the right length or name regions
    /// that do not exist.
    pub(crate) fn from_bytes(count: usize, bytes: &[u8]) -> Option<Regions> {
        let (words, rest) = bytes.as_chunks();
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let len = words.iter().map(|word| word.count_ones() as usize).sum();
        let regions = Regions { words, count, len };
        let fits = rest.is_empty() && regions.words.len() == count.div_ceil(64);
        (fits && regions.iter().last().is_none_or(|last| last < count)).then_some(regions)
    }

    pub(crate) fn bytes(&self) -> impl Iterator<Item = u8> {
        self.words.iter().flat_map(|word| word.to_le_bytes())
    }

    /// Returns the number of the mirror's regions.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn contains(&self, region: usize) -> bool {
        self.words[region / 64] >> (region % 64) & 1 == 1
    }

    pub(crate) fn insert(&mut self, region: usize) {
        self.len += usize::from(!self.contains(region));
        self.words[region / 64] |= 1 << (region % 64);
    }

    pub(crate) fn remove(&mut self, region: usize) {
        self.len -= usize::from(self.contains(region));
        self.words[region / 64] &= !(1 << (region % 64));
    }

    pub(crate) fn clear(&mut self) {
        self.words.fill(0);
        self.len = 0;
    }

    pub(crate) fn first(&self) -> Option<usize> {
        self.iter().next()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> {
        self.words.iter().enumerate().flat_map(|(at, &word)| {
            let mut left = word;
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros() as usize)?;
                left &= left - 1;
                Some(at * 64 + bit)
            })
        })
    }

    /// Adds the regions of another set.
    pub(crate) fn add(&mut self, other: &Regions) {
        self.combine(other, |own, other| own | other);
    }

    /// Removes the regions of another set.
    pub(crate) fn subtract(&mut self, other: &Regions) {
        self.combine(other, |own, other| own & !other);
    }

    /// Keeps only what is in another set as well.
    pub(crate) fn intersect(&mut self, other: &Regions) {
        self.combine(other, |own, other| own & other);
    }

    fn combine(&mut self, other: &Regions, with: impl Fn(u64, u64) -> u64) {
        debug_assert_eq!(self.count, other.count, "sets of one mirror");
        self.len = 0;
        for (own, other) in self.words.iter_mut().zip(&other.words) {
            *own = with(*own, *other);
            self.len += own.count_ones() as usize;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn sets_of_regions_are_sets(
            count in 1usize..200,
            own in prop::collection::btree_set(0usize..200, 0..30),
            other in prop::collection::btree_set(0usize..200, 0..30),
        ) {
            let inside = |set: BTreeSet<usize>| -> BTreeSet<usize> {
                set.into_iter().filter(|region| *region < count).collect()
            };
            let (own, other) = (inside(own), inside(other));
            let made = |set: &BTreeSet<usize>| {
                let mut regions = Regions::none(count);
                set.iter().for_each(|region| regions.insert(*region));
                regions
            };
            let check = |regions: &Regions, wanted: BTreeSet<usize>| {
                assert_eq!(regions.iter().collect::<BTreeSet<_>>(), wanted);
                assert_eq!(regions.len(), wanted.len());
                assert_eq!(regions.first(), wanted.first().copied());
            };
            let mut sum = made(&own);
            sum.add(&made(&other));
            check(&sum, &own | &other);
            let mut rest = made(&own);
            rest.subtract(&made(&other));
            check(&rest, &own - &other);
            let mut both = made(&own);
            both.intersect(&made(&other));
            check(&both, &own & &other);
            let mut fewer = made(&own);
            other.iter().for_each(|region| fewer.remove(*region));
            check(&fewer, &own - &other);
            let bytes: Vec<u8> = sum.bytes().collect();
            prop_assert_eq!(Regions::from_bytes(count, &bytes), Some(sum));
            prop_assert_eq!(Regions::from_bytes(count + 64, &bytes), None);
        }
    }
}
