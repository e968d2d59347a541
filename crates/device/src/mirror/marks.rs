//! The map of regions in which halves may differ, in memory and in the headers.
//!
//! A write is submitted only while its regions are marked in the headers of all halves in sync. So
//! after a crash the halves are equal in all other regions, and a half that left is equal in the
//! regions that were never marked since. A mark is removed when all halves are in sync and a flush
//! of all has ended after the region's last write.
//!
//! Invariant: `durable` holds no region that a header on some half in sync may lack. While a header
//! without a region is being written, the region is not in `durable`.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use super::regions::Regions;

#[derive(Debug)]
pub(super) struct Marks {
    /// The newest map.
    map: Regions,
    /// Marked in all headers.
    durable: Regions,
    /// The map that is being written.
    writing: Option<Regions>,
    /// The map has changed since it was last written.
    changed: bool,
    /// Regions that were written since the last tick.
    touched: Regions,
    /// Writes in flight in each region.
    busy: HashMap<usize, u32>,
    /// Regions whose marks go when the flush under way has ended.
    clearing: Option<Regions>,
}

impl Marks {
    /// The marks of a mirror that opens. A header is written before the first write, since the
    /// halves may have different ones.
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

    /// Marks regions that a half may not have.
    pub(super) fn add(&mut self, regions: &Regions) {
        self.map.add(regions);
        self.touched.add(regions);
        self.changed = true;
    }

    /// Marks a region.
    pub(super) fn insert(&mut self, region: usize) {
        self.changed |= !self.map.contains(region);
        self.map.insert(region);
        self.touched.insert(region);
    }

    /// Returns whether a region is marked for certain.
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

    /// Has the headers written again.
    pub(super) fn rewrite(&mut self) {
        self.changed = true;
    }

    /// Returns whether the headers lack something.
    pub(super) fn is_changed(&self) -> bool {
        self.changed
    }

    /// Returns the map for a header that is written now.
    pub(super) fn write(&mut self) -> Regions {
        self.durable.intersect(&self.map);
        self.changed = false;
        self.writing = Some(self.map.clone());
        self.map.clone()
    }

    /// The header is on all halves in sync, or it is not.
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

    /// Chooses the marks that a flush can remove: of regions not written since the last tick.
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

    /// Keeps the marks.
    pub(super) fn keep(&mut self) {
        self.clearing = None;
    }

    /// The flush has ended on all halves: removes the marks of regions that were not written since.
    pub(super) fn flushed(&mut self) {
        let Some(mut quiet) = self.clearing.take() else { return };
        quiet.subtract(&self.touched);
        self.busy.keys().for_each(|region| quiet.remove(*region));
        self.changed |= !quiet.is_empty();
        self.map.subtract(&quiet);
    }
}
