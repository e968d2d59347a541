//! Handling of data that the cache device does not return as it was stored.

use super::Shard;
use super::read::Reading;
use crate::engine::request::Fault;
use crate::engine::{Part, Step};
use crate::geometry::Place;
use crate::order::{Bad, OpId, Order};
use crate::store::journal::Standing;

impl Shard {
    /// Handles a read of `bad` sectors, whose data is not what was stored. Dirty ones are lost from
    /// now on. Clean ones that a crash left half overwritten are dropped, and do not count as
    /// errors. Returns the number of bad sectors not known before.
    pub(crate) fn read_corrupt(&mut self, op: OpId, bad: &[Bad], orders: &mut Vec<Order>) -> u64 {
        self.emit(orders, |shard| shard.found_corrupt(op, bad))
    }

    fn found_corrupt(&mut self, op: OpId, bad: &[Bad]) -> u64 {
        let parts = &mut self.parts;
        let (id, part, run) = parts.tasks.of_op(op);
        let run = run.clone();
        let (Part::Cached(block) | Part::Dirty(block)) = part else {
            unreachable!("nothing else reads the cache device");
        };
        let (mut are_all_lost, mut found) = (true, 0);
        let mut is_excused = true;
        for (sector, doubted) in bad.iter().map(|bad| (run.start + bad.number, bad.doubted)) {
            let (place, run) = (Place::new(parts.tasks[id].volume, sector), sector..sector + 1);
            // Of held sectors memory has newer data, which becomes dirty in their stead.
            let is_dirty = parts.map.directory.blocks.is_all_dirty(block, &run);
            let is_lost = is_dirty && !parts.map.held.contains(place);
            is_excused &= doubted && !is_dirty;
            let is_new = match is_dirty {
                _ if is_lost => parts.map.lost.find(place),
                true => true,
                false if doubted => false,
                // or another read has found it before
                false => parts.map.directory.blocks.is_valid(block, &run),
            };
            if is_lost && is_new {
                parts.rounds.note_loss(place.volume());
                parts.note(block, &run, Standing::Lost);
            }
            found += u64::from(is_new);
            are_all_lost &= is_lost;
        }
        if let Part::Cached(block) = part
            && is_excused
        {
            // not cached after all, without a fault of the device
            parts.tasks.op_ended(id, part);
            Reading::of(parts, id).cached_failed(block, run, Fault::Io);
            self.go_on(id);
            return found;
        }
        // The other dirty sectors of the block can be cleaned.
        let goes_on = are_all_lost && parts.tasks[id].step == Step::CleanRead;
        self.op_ended(op, if goes_on { Ok(()) } else { Err(Fault::Io) });
        found
    }
}
