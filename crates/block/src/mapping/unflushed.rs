//! The memory tier's view of a shard: when copies enter and leave it, and which sectors are
//! unflushed.
//!
//! Copies enter the tier when a read has them, and leave it when a change of the sector begins on a
//! device. Both happen while the task holds its lock, which keeps the tier coherent
//! ([`crate::memory`]).
//!
//! Where the tier may *hold* writes, a write that need not be durable ends here. Its sectors are
//! held (unflushed): no tier below has their newest data. They are read from memory, and are
//! released once data as new is below. That happens by their own write-back, by a later write that
//! went there, or by a zeroing. A sector whose write-back fails is still held.
//!
//! Invariants: a sector becomes held, or is released, only under an exclusive lock. A held sector
//! is not lost, whatever happened to an older version of it.

use std::collections::BTreeSet;

use crate::geometry::{Place, Sectors, VolumeId};
use crate::memory::Memory;
use crate::order::{Order, Paging, Span};

/// The unflushed sectors of a shard.
#[derive(Debug, Default)]
pub(crate) struct Unflushed {
    sectors: BTreeSet<Place>,
    most: u64,
    has_tier: bool,
}

impl Unflushed {
    pub(crate) fn new(memory: Memory) -> Self {
        let most = if let Memory::Holds { sectors } = memory { sectors } else { 0 };
        Self { sectors: BTreeSet::new(), most, has_tier: memory != Memory::None }
    }

    /// Returns whether there is a memory tier.
    #[inline]
    pub(crate) fn has_tier(&self) -> bool {
        self.has_tier
    }

    /// Inserts the sectors in a read's buffer into the memory tier.
    #[inline]
    pub(crate) fn fill(
        &self,
        volume: VolumeId,
        sectors: Sectors,
        from: Span,
        orders: &mut Vec<Order>,
    ) {
        if self.has_tier {
            orders.push(Order::Memory { volume, sectors, deed: Paging::Fill { from } });
        }
    }

    /// Removes sectors from the memory tier, before they change on a device.
    #[inline]
    pub(crate) fn forget(&self, volume: VolumeId, sectors: Sectors, orders: &mut Vec<Order>) {
        if self.has_tier {
            orders.push(Order::Memory { volume, sectors, deed: Paging::Forget });
        }
    }

    /// Holds a write's sectors in memory, if there is room; returns whether there was.
    #[inline]
    pub(crate) fn hold(
        &mut self,
        volume: VolumeId,
        sectors: Sectors,
        from: Span,
        orders: &mut Vec<Order>,
    ) -> bool {
        let holds = self.most > 0 && self.has_room_for(volume, &sectors);
        if holds {
            self.sectors.extend(sectors.clone().map(|sector| Place::new(volume, sector)));
            orders.push(Order::Memory { volume, sectors, deed: Paging::Hold { from } });
        }
        holds
    }

    /// Releases the unflushed sectors of a run that has been written below.
    #[inline]
    pub(crate) fn let_go(&mut self, volume: VolumeId, run: &Sectors, orders: &mut Vec<Order>) {
        if self.is_empty() {
            return;
        }
        for sectors in self.runs(volume, run) {
            for sector in sectors.clone() {
                self.sectors.remove(&Place::new(volume, sector));
            }
            orders.push(Order::Memory { volume, sectors, deed: Paging::LetGo });
        }
    }

    /// Reads unflushed sectors from memory into a buffer.
    pub(crate) fn recall(
        &self,
        volume: VolumeId,
        sectors: Sectors,
        to: Span,
        orders: &mut Vec<Order>,
    ) {
        orders.push(Order::Memory { volume, sectors, deed: Paging::Recall { to } });
    }

    /// Returns whether no sector is unflushed.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.sectors.is_empty()
    }

    /// Returns the number of unflushed sectors.
    pub(crate) fn len(&self) -> u64 {
        self.sectors.len() as u64
    }

    /// Returns the unflushed sectors of a range, in order.
    fn of(&self, volume: VolumeId, range: &Sectors) -> impl Iterator<Item = u64> + use<'_> {
        self.sectors.range(Place::run(volume, range)).map(|place| place.sector())
    }

    /// Returns whether a sector is unflushed.
    #[inline]
    pub(crate) fn contains(&self, place: Place) -> bool {
        self.sectors.contains(&place)
    }

    /// Returns whether some sector of a range is unflushed.
    #[inline]
    pub(crate) fn has_any(&self, volume: VolumeId, range: &Sectors) -> bool {
        !self.is_empty() && self.of(volume, range).next().is_some()
    }

    /// Returns the number of a volume's unflushed sectors.
    pub(crate) fn count(&self, volume: VolumeId) -> u64 {
        self.sectors.range(Place::all_of(volume)).count() as u64
    }

    /// Returns whether the range's first sector is unflushed, and the end of the run of sectors in
    /// the same state.
    #[inline]
    pub(crate) fn front(&self, volume: VolumeId, range: &Sectors) -> (bool, u64) {
        if self.is_empty() {
            return (false, range.end);
        }
        let mut held = self.of(volume, range);
        match held.next() {
            None => (false, range.end),
            Some(first) if first > range.start => (false, first),
            Some(first) => {
                let alike = held.zip(first + 1..).take_while(|(held, next)| held == next).count();
                (true, first + 1 + alike as u64)
            }
        }
    }

    /// Returns the unflushed runs of a range.
    pub(crate) fn runs(&self, volume: VolumeId, range: &Sectors) -> Vec<Sectors> {
        let mut runs: Vec<Sectors> = Vec::new();
        for sector in self.of(volume, range) {
            match runs.last_mut() {
                Some(run) if run.end == sector => run.end += 1,
                _ => runs.push(sector..sector + 1),
            }
        }
        runs
    }

    /// Returns all unflushed sectors of a volume as runs, none of which crosses a multiple of
    /// `region_sectors`.
    pub(crate) fn runs_of(
        &self,
        volume: VolumeId,
        region_sectors: u64,
    ) -> impl Iterator<Item = Sectors> {
        let mut runs: Vec<Sectors> = Vec::new();
        for sector in self.sectors.range(Place::all_of(volume)).map(|place| place.sector()) {
            match runs.last_mut() {
                Some(run) if run.end == sector && !sector.is_multiple_of(region_sectors) => {
                    run.end += 1
                }
                _ => runs.push(sector..sector + 1),
            }
        }
        runs.into_iter()
    }

    fn has_room_for(&self, volume: VolumeId, range: &Sectors) -> bool {
        let there = self.of(volume, range).count() as u64;
        self.len() - there + (range.end - range.start) <= self.most
    }

    /// Returns whether half of the room for unflushed sectors is used, at which write-back begins.
    #[inline]
    pub(crate) fn is_half_full(&self) -> bool {
        self.len() > self.most / 2
    }

    /// Drops the unflushed sectors of a removed volume.
    pub(crate) fn remove_volume(&mut self, volume: VolumeId) {
        let places = Place::all_of(volume);
        self.sectors.retain(|place| !places.contains(place));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::{BufferId, ScratchId};

    const VOLUME: VolumeId = VolumeId(1);
    const SPAN: Span = Span { buffer: BufferId::Scratch(ScratchId(1)), offset: 0, len: 4096 };

    fn held(most: u64, runs: &[Sectors]) -> Unflushed {
        let mut held = Unflushed::new(Memory::Holds { sectors: most });
        for run in runs {
            assert!(held.hold(VOLUME, run.clone(), SPAN, &mut Vec::new()));
        }
        held
    }

    #[test]
    fn a_tier_holds_no_more_than_it_has_room_for() {
        let mut held = held(8, &[0..6, 4..8]);
        assert!(!held.hold(VOLUME, 8..9, SPAN, &mut Vec::new()));
        assert!(held.hold(VOLUME, 0..8, SPAN, &mut Vec::new()), "an overwrite takes no room");
        assert!(held.is_half_full() && held.len() == 8);
        let mut nothing = Unflushed::new(Memory::None);
        let mut orders = Vec::new();
        assert!(!nothing.hold(VOLUME, 0..1, SPAN, &mut orders));
        nothing.forget(VOLUME, 0..1, &mut orders);
        assert_eq!(orders, [], "there is no tier to be told");
    }

    #[test]
    fn only_what_was_written_below_is_let_go() {
        let mut held = held(16, &[0..2, 4..6]);
        let mut orders = Vec::new();
        held.let_go(VOLUME, &(1..5), &mut orders);
        let let_go = |sectors| Order::Memory { volume: VOLUME, sectors, deed: Paging::LetGo };
        assert_eq!(orders, [let_go(1..2), let_go(4..5)]);
        assert_eq!(held.runs(VOLUME, &(0..16)), [0..1, 5..6]);
    }

    #[test]
    fn a_range_is_divided_where_sectors_begin_and_cease_to_be_held() {
        let held = held(16, &[2..4, 5..6]);
        let front = |start| held.front(VOLUME, &(start..8));
        assert_eq!([0, 2, 4, 6].map(front), [(false, 2), (true, 4), (false, 5), (false, 8)]);
        assert!(!held.has_any(VolumeId(0), &(0..8)) && held.contains(Place::new(VOLUME, 5)));
    }

    #[test]
    fn runs_to_be_written_back_end_with_their_regions() {
        let mut held = held(16, &[2..6, 9..10]);
        assert_eq!(held.runs_of(VOLUME, 4).collect::<Vec<_>>(), [2..4, 4..6, 9..10]);
        held.remove_volume(VOLUME);
        assert!(held.is_empty() && held.count(VOLUME) == 0);
    }
}
