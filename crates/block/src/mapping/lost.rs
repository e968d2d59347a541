//! Lost sectors: a failed write overwrote their only copy, or the cache device returns other data
//! than was stored.
//!
//! They read as errors, not as the older data of the backing device, until they are written again,
//! and are not cleaned. In a persistent cache they keep their place and are dirty, and the log says
//! that they are lost.

use std::collections::BTreeSet;

use crate::geometry::{Place, Sectors, VolumeId};

/// The lost sectors of a shard.
#[derive(Debug, Default)]
pub(crate) struct Lost {
    /// Sectors whose only copy the cache device has lost.
    sectors: BTreeSet<Place>,
    /// Lost sectors of which only memory has newer data.
    below: BTreeSet<Place>,
    /// Lost sectors not reported yet, in the order in which they were found.
    unreported: Vec<Place>,
}

impl Lost {
    /// Adds a sector whose loss needs no report.
    pub(crate) fn insert(&mut self, place: Place) {
        self.sectors.insert(place);
    }

    /// Adds a sector, to be reported. Returns whether it was not lost before.
    pub(crate) fn find(&mut self, place: Place) -> bool {
        let is_new = self.sectors.insert(place);
        if is_new {
            self.unreported.push(place);
        }
        is_new
    }

    /// Adds a run that was found to be lost when the cache was opened.
    pub(crate) fn restore(&mut self, volume: VolumeId, run: &Sectors) {
        let places = run.clone().map(|sector| Place::new(volume, sector));
        self.unreported.extend(places.clone());
        self.sectors.extend(places);
    }

    /// Moves the sectors found to be lost since the last call into `out`.
    pub(crate) fn report(&mut self, out: &mut Vec<(VolumeId, Sectors)>) {
        extend_runs(out, std::mem::take(&mut self.unreported).into_iter(), usize::MAX);
    }

    /// Adds the first lost runs, until `out` has `most` runs.
    pub(crate) fn runs(&self, most: usize, out: &mut Vec<(VolumeId, Sectors)>) {
        extend_runs(out, self.sectors.iter().copied(), most);
    }

    /// Returns the number of sectors.
    #[inline]
    pub(crate) fn len(&self) -> u64 {
        self.sectors.len() as u64
    }

    /// Returns whether some sector of a volume is lost.
    #[inline]
    pub(crate) fn has_any_of(&self, volume: VolumeId) -> bool {
        self.sectors.range(Place::all_of(volume)).next().is_some()
    }

    /// Returns whether a run of a volume includes a lost sector.
    #[inline]
    pub(crate) fn has_any(&self, volume: VolumeId, run: &Sectors) -> bool {
        !self.sectors.is_empty() && self.of(volume, run).next().is_some()
    }

    /// Returns the lost sectors of a run, in order.
    pub(crate) fn of(&self, volume: VolumeId, run: &Sectors) -> impl Iterator<Item = u64> {
        self.sectors.range(Place::run(volume, run)).map(|place| place.sector())
    }

    /// Returns runs of a volume without their lost sectors.
    #[inline]
    pub(crate) fn without(
        &self,
        volume: VolumeId,
        runs: impl Iterator<Item = Sectors>,
    ) -> Vec<Sectors> {
        if self.sectors.is_empty() {
            return runs.collect();
        }
        let mut rest = Vec::new();
        for run in runs {
            let mut start = run.start;
            for lost in self.of(volume, &run) {
                if start < lost {
                    rest.push(start..lost);
                }
                start = lost + 1;
            }
            if start < run.end {
                rest.push(start..run.end);
            }
        }
        rest
    }

    /// Divides a run into parts that the cache device has lost and parts that it has not. Newer
    /// data in memory does not count.
    pub(crate) fn by_loss(&self, volume: VolumeId, run: &Sectors) -> Vec<(Sectors, bool)> {
        if self.sectors.is_empty() && self.below.is_empty() {
            return vec![(run.clone(), false)];
        }
        let mut parts: Vec<(Sectors, bool)> = Vec::new();
        for sector in run.clone() {
            let place = Place::new(volume, sector);
            let lost = self.sectors.contains(&place) || self.below.contains(&place);
            match parts.last_mut() {
                Some((part, of)) if *of == lost => part.end = sector + 1,
                _ => parts.push((sector..sector + 1, lost)),
            }
        }
        parts
    }

    /// Removes a run of which a device has new content.
    #[inline]
    pub(crate) fn written(&mut self, volume: VolumeId, run: &Sectors) {
        self.held(volume, run);
        while let Some(&place) = self.below.range(Place::run(volume, run)).next() {
            self.below.remove(&place);
        }
    }

    /// Removes a run of which memory has new content: it is no longer lost, except for the log,
    /// which outlives memory.
    #[inline]
    pub(crate) fn held(&mut self, volume: VolumeId, run: &Sectors) {
        while let Some(&place) = self.sectors.range(Place::run(volume, run)).next() {
            self.sectors.remove(&place);
            self.below.insert(place);
        }
    }

    /// Removes a volume.
    pub(crate) fn remove_volume(&mut self, volume: VolumeId) {
        let places = Place::all_of(volume);
        self.sectors.retain(|place| !places.contains(place));
        self.below.retain(|place| !places.contains(place));
    }
}

/// Appends places to a list of runs, up to `most` runs.
fn extend_runs(
    out: &mut Vec<(VolumeId, Sectors)>,
    places: impl Iterator<Item = Place>,
    most: usize,
) {
    for place in places {
        let count = out.len();
        match out.last_mut() {
            Some((volume, run)) if *volume == place.volume() && run.end == place.sector() => {
                run.end += 1
            }
            _ if count >= most => return,
            _ => out.push((place.volume(), place.sector()..place.sector() + 1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOLUME: VolumeId = VolumeId(1);

    fn lost(sectors: &[u64]) -> Lost {
        let mut lost = Lost::default();
        sectors.iter().for_each(|&sector| assert!(lost.find(Place::new(VOLUME, sector))));
        lost
    }

    #[test]
    fn a_loss_is_reported_once_and_in_runs() {
        let mut lost = lost(&[3, 4, 9]);
        assert!(!lost.find(Place::new(VOLUME, 4)), "it is known");
        lost.insert(Place::new(VOLUME, 20));
        lost.restore(VolumeId(2), &(0..2));
        let mut out = Vec::new();
        lost.report(&mut out);
        assert_eq!(out, [(VOLUME, 3..5), (VOLUME, 9..10), (VolumeId(2), 0..2)]);
        out.clear();
        lost.report(&mut out);
        assert_eq!(out, []);
        lost.runs(2, &mut out);
        assert_eq!((out, lost.len()), (vec![(VOLUME, 3..5), (VOLUME, 9..10)], 6));
    }

    #[test]
    fn runs_are_divided_at_lost_sectors() {
        let lost = lost(&[3, 4, 9]);
        assert_eq!(lost.without(VOLUME, [0..5, 8..12].into_iter()), [0..3, 8..9, 10..12]);
        assert_eq!(lost.by_loss(VOLUME, &(2..6)), [(2..3, false), (3..5, true), (5..6, false)]);
        assert!(lost.has_any(VOLUME, &(4..8)) && !lost.has_any(VOLUME, &(5..9)));
        assert!(!lost.has_any(VolumeId(0), &(4..8)) && !lost.has_any_of(VolumeId(0)));
    }

    #[test]
    fn newer_data_in_memory_ends_a_loss_but_not_for_the_log() {
        let mut lost = lost(&[3, 4]);
        lost.held(VOLUME, &(3..4));
        assert!(!lost.has_any(VOLUME, &(3..4)) && lost.has_any(VOLUME, &(4..5)));
        assert_eq!(lost.by_loss(VOLUME, &(3..5)), [(3..5, true)]);
        lost.written(VOLUME, &(3..5));
        assert_eq!(lost.by_loss(VOLUME, &(3..5)), [(3..5, false)]);
    }

    #[test]
    fn a_removed_volume_has_lost_nothing() {
        let mut lost = lost(&[3, 4]);
        lost.insert(Place::new(VolumeId(2), 3));
        lost.held(VOLUME, &(3..4));
        lost.remove_volume(VOLUME);
        assert_eq!(lost.by_loss(VOLUME, &(3..5)), [(3..5, false)]);
        assert!(lost.has_any_of(VolumeId(2)) && !lost.has_any_of(VOLUME));
    }
}
