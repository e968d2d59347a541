//! Statement of blocks for a checkpoint, and of the rest at the end.

use super::Shard;
use super::logging::block_at;
use super::parts::Parts;
use crate::engine::common;
use crate::mapping::directory::Block;
use crate::order::Order;
use crate::store::journal::{Change, Standing};

impl Shard {
    /// Adds the changes that state a block to an empty log.
    pub(crate) fn dump(&self, block: Block, out: &mut Vec<Change>) {
        let (map, logging) = (&self.parts.map, &self.parts.logging);
        let directory = &map.directory;
        if !directory.blocks.is_live(block) {
            return; // it was, when the checkpoint began; what came into its place is in the log
        }
        let at = block_at(directory, block);
        let mut state = |run, standing| {
            out.push(Change::Run { block: at.clone(), run, standing });
        };
        let valid = directory.blocks.validity(block, &at.sectors).filter(|(_, valid)| *valid);
        for (run, dirty) in valid.flat_map(|(run, _)| directory.blocks.dirtiness(block, &run)) {
            if dirty {
                for (run, lost) in map.lost.by_loss(at.volume, &run) {
                    if lost {
                        state(run, Standing::Lost);
                        continue;
                    }
                    for (run, sealed) in logging.by_seal(directory, block, &run) {
                        state(run, if sealed { Standing::Sealed } else { Standing::Dirty });
                    }
                }
                continue;
            }
            let settlements = &logging.settlements;
            let deferred = |sector: &u64| settlements.is_deferred(at.volume, *sector);
            let mut start = run.start;
            while start < run.end {
                let is_deferred = deferred(&start);
                let alike = (start..run.end).take_while(|sector| deferred(sector) == is_deferred);
                let part = common(&run, &(start..start + alike.count() as u64));
                start = part.end;
                if !is_deferred {
                    state(part, Standing::Clean);
                }
            }
        }
    }

    /// Notes the checksums of all dirty data when nothing changes any more, so that the next
    /// session can verify it.
    pub(crate) fn note_rest(&mut self, orders: &mut Vec<Order>) {
        let Parts { map, logging, orders: late, .. } = &mut self.parts;
        if !logging.is_on() {
            return;
        }
        orders.append(late);
        let directory = &map.directory;
        for block in map.volumes().flat_map(|volume| directory.blocks.dirty_blocks(volume)) {
            for run in map.dirty_of(block) {
                for (run, sealed) in logging.by_seal(directory, block, &run) {
                    if !sealed {
                        logging.note(directory, block, &run, Standing::Sealed, orders);
                    }
                }
            }
        }
    }
}
