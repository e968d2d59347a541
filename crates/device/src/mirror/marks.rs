//! The dirty-region map of a mirror: the regions in which halves may differ, in memory and in the
//! headers.
//!
//! A write is submitted only while its regions are marked in the headers of all halves in sync. So
//! after a crash the halves are equal in all other regions, and a half that left is equal in the
//! regions that were never marked since. A mark is removed when all halves are in sync and a flush
//! of all has ended after the region's last write.
//!
//! Invariant: `durable` contains no region that a header on some half in sync may lack. While a
//! header without a region is being written, the region is not in `durable`.

use std::collections::HashMap;
use std::ops::RangeInclusive;

/// A set of regions of one mirror, as a bitmap. All sets of a mirror have the same capacity.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Regions {
    words: Vec<u64>,
    /// The number of regions in the mirror.
    count: usize,
    /// The number of regions in the set.
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

    /// Decodes a set from its bytes; `None` if their length is wrong or they name regions that do
    /// not exist.
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

    /// Returns the number of regions in the mirror, not in the set.
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

    pub(crate) fn add(&mut self, other: &Regions) {
        self.combine(other, |own, other| own | other);
    }

    pub(crate) fn subtract(&mut self, other: &Regions) {
        self.combine(other, |own, other| own & !other);
    }

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

/// The dirty-region map of a mirror, in memory and in the headers.
#[derive(Debug)]
pub(super) struct Marks {
    /// The current map in memory.
    map: Regions,
    /// Regions that are certainly marked in the headers of all halves in sync.
    durable: Regions,
    /// The map in the header that is being written.
    writing: Option<Regions>,
    /// True if the map has changed since the last header was begun.
    changed: bool,
    /// Regions written since the last tick.
    touched: Regions,
    /// The number of writes in flight in each region.
    busy: HashMap<usize, u32>,
    /// Regions whose marks are removed when the pending flush has ended.
    clearing: Option<Regions>,
}

impl Marks {
    /// Creates the marks of a mirror that opens. A header is written before the first write, since
    /// the halves may have different maps.
    pub(super) fn new(map: Regions, count: usize) -> Marks {
        Marks {
            durable: Regions::none(count),
            map,
            writing: None,
            changed: true,
            touched: Regions::none(count),
            busy: HashMap::new(),
            clearing: None,
        }
    }

    pub(super) fn map(&self) -> &Regions {
        &self.map
    }

    /// Marks several regions, because a half may lack their data.
    pub(super) fn add(&mut self, regions: &Regions) {
        self.map.add(regions);
        self.touched.add(regions);
        self.changed = true;
    }

    pub(super) fn insert(&mut self, region: usize) {
        self.changed |= !self.map.contains(region);
        self.map.insert(region);
        self.touched.insert(region);
    }

    /// Returns whether a region is durably marked in all headers.
    pub(super) fn has(&self, region: usize) -> bool {
        self.map.contains(region) && self.durable.contains(region)
    }

    pub(super) fn begin(&mut self, regions: RangeInclusive<usize>) {
        for region in regions {
            self.touched.insert(region);
            *self.busy.entry(region).or_default() += 1;
        }
    }

    pub(super) fn end(&mut self, regions: RangeInclusive<usize>) {
        for region in regions {
            let busy = self.busy.get_mut(&region).expect("a write that ends has begun");
            *busy -= 1;
            if *busy == 0 {
                self.busy.remove(&region);
            }
        }
    }

    pub(super) fn is_busy(&self, region: usize) -> bool {
        self.busy.contains_key(&region)
    }

    /// Requests a new header even if the map is unchanged.
    pub(super) fn rewrite(&mut self) {
        self.changed = true;
    }

    /// Returns whether a new header has to be written.
    pub(super) fn is_changed(&self) -> bool {
        self.changed
    }

    /// Begins to write a header, and returns its map.
    pub(super) fn write(&mut self) -> Regions {
        self.durable.intersect(&self.map);
        self.changed = false;
        self.writing = Some(self.map.clone());
        self.map.clone()
    }

    /// Ends the writing of a header. `everywhere` is true if all halves in sync have it.
    pub(super) fn written(&mut self, everywhere: bool) {
        let writing = self.writing.take().expect("a header was being written");
        if everywhere {
            self.durable = writing;
            // Marks that were removed meanwhile do not count.
            self.durable.intersect(&self.map);
        } else {
            self.changed = true;
        }
    }

    /// Selects the marks to remove after a flush: those of regions not written since the last tick.
    pub(super) fn tick(&mut self) {
        if self.clearing.is_some() {
            return;
        }
        let mut quiet = self.map.clone();
        quiet.subtract(&self.touched);
        self.touched.clear();
        self.busy.keys().for_each(|region| quiet.remove(*region));
        self.clearing = (!quiet.is_empty()).then_some(quiet);
    }

    pub(super) fn wants_flush(&self) -> bool {
        self.clearing.is_some()
    }

    /// Cancels the pending removal of marks.
    pub(super) fn keep(&mut self) {
        self.clearing = None;
    }

    /// Ends the flush before a removal of marks. Removes the selected marks, except those of
    /// regions written meanwhile.
    pub(super) fn flushed(&mut self) {
        let Some(mut quiet) = self.clearing.take() else { return };
        quiet.subtract(&self.touched);
        self.busy.keys().for_each(|region| quiet.remove(*region));
        self.changed |= !quiet.is_empty();
        self.map.subtract(&quiet);
    }
}

#[cfg(test)]
mod regions_tests {
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
