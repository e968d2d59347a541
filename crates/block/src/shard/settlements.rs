//! Settlements: flushes of the backing devices' own write caches, and the clean sectors that wait
//! for them.
//!
//! Data read from a backing device that may still lose its last writes is *deferred*: the log does
//! not call it clean before the device is settled.

use std::collections::BTreeMap;

use crate::engine::turns::Turns;
use crate::geometry::{Place, Sectors, VolumeId};
use crate::order::OpId;

/// Most sectors that wait to be noted as clean; further ones would only start cold.
const MOST_DEFERRED: usize = 1 << 16;

/// The settlements of all volumes, as a shard sees them.
#[derive(Debug, Default)]
pub(crate) struct Settlements {
    backings: Vec<Backing>,
    /// Clean sectors that are not noted yet, by the settlement that must come first.
    deferred: BTreeMap<Place, u64>,
}

/// The settlements of a volume's backing device.
#[derive(Debug, Default)]
struct Backing {
    turns: Turns,
    /// The settlement that makes its last change durable, 0 if none is needed.
    unsettled: u64,
    waiting: Vec<(u64, OpId)>,
}

impl Settlements {
    fn of(&mut self, volume: VolumeId) -> &mut Backing {
        let at = volume.0 as usize;
        self.backings.resize_with(self.backings.len().max(at + 1), Backing::default);
        &mut self.backings[at]
    }

    /// Notes a change of a volume's backing device that is not durable.
    pub(crate) fn note_unsettled(&mut self, volume: VolumeId) {
        let backing = self.of(volume);
        backing.unsettled = backing.turns.next();
    }

    /// Returns whether a volume's backing device may lose some of its last writes.
    pub(crate) fn is_unsettled(&self, volume: VolumeId) -> bool {
        self.backings.get(volume.0 as usize).is_some_and(|backing| backing.unsettled > 0)
    }

    /// Makes an operation wait for the next settlement.
    pub(crate) fn wait(&mut self, volume: VolumeId, op: OpId) {
        let backing = self.of(volume);
        backing.waiting.push((backing.turns.next(), op));
    }

    /// Begins a settlement.
    pub(crate) fn begin(&mut self, volume: VolumeId) {
        self.of(volume).turns.begin();
    }

    /// Ends a settlement. Returns the operations that waited for it, and the deferred sectors that
    /// may now be noted, if they are still clean.
    pub(crate) fn end(&mut self, volume: VolumeId, is_durable: bool) -> (Vec<OpId>, Vec<Place>) {
        let backing = self.of(volume);
        let ended = backing.turns.end();
        let due = backing.waiting.extract_if(.., |(due, _)| *due <= ended).map(|(_, op)| op);
        let due: Vec<OpId> = due.collect();
        if !is_durable {
            return (due, Vec::new());
        }
        if backing.unsettled <= ended {
            backing.unsettled = 0;
        }
        let settled = self.deferred.range(Place::all_of(volume));
        let settled = settled.filter(|(_, until)| **until <= ended).map(|(place, _)| *place);
        let settled: Vec<Place> = settled.collect();
        settled.iter().for_each(|place| {
            self.deferred.remove(place);
        });
        (due, settled)
    }

    /// Defers a clean run of a volume that is not settled; returns whether it is not.
    pub(crate) fn defer(&mut self, volume: VolumeId, run: &Sectors) -> bool {
        let until = self.of(volume).unsettled;
        if until == 0 {
            return false;
        }
        for sector in run.clone() {
            let place = Place::new(volume, sector);
            if self.deferred.len() < MOST_DEFERRED {
                self.deferred.insert(place, until);
            } else {
                // an earlier settlement says nothing of what is there now
                self.deferred.remove(&place);
            }
        }
        true
    }

    /// Returns whether a sector is deferred.
    pub(crate) fn is_deferred(&self, volume: VolumeId, sector: u64) -> bool {
        self.deferred.contains_key(&Place::new(volume, sector))
    }

    /// Forgets a run if all of it is deferred; returns whether it was.
    pub(crate) fn take_deferred(&mut self, volume: VolumeId, run: &Sectors) -> bool {
        let is_deferred = run.clone().all(|sector| self.is_deferred(volume, sector));
        if is_deferred {
            self.forget_deferred(volume, run);
        }
        is_deferred
    }

    /// Forgets the deferred sectors of a run.
    #[inline]
    pub(crate) fn forget_deferred(&mut self, volume: VolumeId, run: &Sectors) {
        if self.deferred.is_empty() {
            return;
        }
        for sector in run.clone() {
            self.deferred.remove(&Place::new(volume, sector));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOLUME: VolumeId = VolumeId(1);

    #[test]
    fn clean_data_waits_for_the_settlement_after_the_last_change() {
        let mut settlements = Settlements::default();
        assert!(!settlements.defer(VOLUME, &(0..4)), "nothing has changed");
        settlements.note_unsettled(VOLUME);
        assert!(settlements.defer(VOLUME, &(0..2)));
        settlements.wait(VOLUME, OpId(1));
        settlements.begin(VOLUME);
        settlements.note_unsettled(VOLUME);
        assert!(settlements.defer(VOLUME, &(4..5)));
        settlements.wait(VOLUME, OpId(2));
        let places = |sectors: Sectors| sectors.map(|sector| Place::new(VOLUME, sector)).collect();
        assert_eq!(settlements.end(VOLUME, true), (vec![OpId(1)], places(0..2)));
        assert!(settlements.is_unsettled(VOLUME) && settlements.is_deferred(VOLUME, 4));
        settlements.begin(VOLUME);
        assert_eq!(settlements.end(VOLUME, true), (vec![OpId(2)], places(4..5)));
        assert!(!settlements.is_unsettled(VOLUME));
    }

    #[test]
    fn a_failed_settlement_answers_and_settles_nothing() {
        let mut settlements = Settlements::default();
        settlements.note_unsettled(VOLUME);
        assert!(settlements.defer(VOLUME, &(0..2)));
        settlements.wait(VOLUME, OpId(1));
        settlements.begin(VOLUME);
        assert_eq!(settlements.end(VOLUME, false), (vec![OpId(1)], vec![]));
        assert!(settlements.is_unsettled(VOLUME) && settlements.is_deferred(VOLUME, 1));
        settlements.forget_deferred(VOLUME, &(1..9));
        assert!(settlements.is_deferred(VOLUME, 0) && !settlements.is_deferred(VOLUME, 1));
    }
}
