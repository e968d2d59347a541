//! Handling of data that the cache device does not return as it was stored.

use super::Shard;
use crate::engine::locks::TaskId;
use crate::engine::request::Fault;
use crate::engine::{Part, Step};
use crate::geometry::{Place, Sectors};
use crate::mapping::directory::Block;
use crate::order::{Bad, OpId, Order};
use crate::store::journal::Standing;

impl Shard {
    /// Handles a read of `bad` sectors, whose data is not what was stored. Dirty ones are lost from
    /// now on. Clean ones that a crash left half overwritten are dropped, and do not count as
    /// errors. Returns the number of bad sectors not known before.
    pub(crate) fn read_corrupt(&mut self, op: OpId, bad: &[Bad], orders: &mut Vec<Order>) -> u64 {
        let (id, part, run) = self.tasks.of_op(op);
        let run = run.clone();
        let (Part::Cached(block) | Part::Dirty(block)) = part else {
            unreachable!("nothing else reads the cache device");
        };
        let (mut are_all_lost, mut found) = (true, 0);
        let mut is_excused = true;
        for (sector, doubted) in bad.iter().map(|bad| (run.start + bad.number, bad.doubted)) {
            let place = Place::new(self.tasks[id].volume, sector);
            // Of held sectors memory has newer data, which becomes dirty in their stead.
            let is_dirty = self.directory.is_all_dirty(block, &(sector..sector + 1));
            let is_lost = is_dirty && !self.held.contains(place);
            is_excused &= doubted && !is_dirty;
            found += u64::from(match is_dirty {
                _ if is_lost => self.lose(block, place, orders),
                true => true,
                false if doubted => false,
                // or another read has found it before
                false => self.directory.is_valid(block, &(sector..sector + 1)),
            });
            are_all_lost &= is_lost;
        }
        // The other dirty sectors of the block can be cleaned.
        let goes_on = are_all_lost && self.tasks[id].step == Step::CleanRead;
        match part {
            Part::Cached(block) if is_excused => self.forgotten(op, block, run, orders),
            _ => self.completed(op, if goes_on { Ok(()) } else { Err(Fault::Io) }, orders),
        }
        found
    }

    /// Returns whether a task's range includes a lost sector.
    pub(super) fn is_lost(&self, id: TaskId) -> bool {
        self.lost.has_any(self.tasks[id].volume, &self.tasks[id].range)
    }

    /// Marks a sector as lost. Returns whether it was not lost before.
    fn lose(&mut self, block: Block, place: Place, orders: &mut Vec<Order>) -> bool {
        let is_new = self.lost.find(place);
        if is_new {
            let run = place.sector()..place.sector() + 1;
            self.rounds.note_loss(place.volume());
            self.note(block, &run, Standing::Lost, orders);
        }
        is_new
    }

    /// Returns the dirty runs of a block within a range, without lost sectors.
    pub(super) fn dirty_there(&self, block: Block, range: &Sectors) -> Vec<Sectors> {
        let dirty = self.directory.dirty_runs_in(block, range);
        self.lost.without(self.directory.volume(block), dirty)
    }
}
