//! Statement of blocks for a checkpoint, and of the rest at the end.

use super::Shard;
use crate::engine::common;
use crate::geometry::VolumeId;
use crate::mapping::directory::Block;
use crate::order::Order;
use crate::store::journal::{Change, Standing};

impl Shard {
    /// Adds the changes that state a block to an empty log.
    pub(crate) fn dump(&self, block: Block, out: &mut Vec<Change>) {
        if !self.directory.is_live(block) {
            return; // it was, when the checkpoint began; what came into its place is in the log
        }
        let at = self.block_at(block);
        for (run, valid) in self.directory.validity(block, &at.sectors) {
            if !valid {
                continue;
            }
            for (run, dirty) in self.directory.dirtiness(block, &run) {
                if dirty {
                    let each = self.lost.by_loss(at.volume, &run).into_iter();
                    for (run, lost) in each {
                        let parts =
                            if lost { vec![(run, false)] } else { self.by_seal(block, &run) };
                        out.extend(parts.into_iter().map(|(run, sealed)| {
                            let standing = match (lost, sealed) {
                                (true, _) => Standing::Lost,
                                (false, true) => Standing::Sealed,
                                (false, false) => Standing::Dirty,
                            };
                            Change::Run { block: at.clone(), run, standing }
                        }));
                    }
                    continue;
                }
                let mut start = run.start;
                while start < run.end {
                    let deferred = |sector: &u64| self.settlements.is_deferred(at.volume, *sector);
                    let is_deferred = deferred(&start);
                    let alike =
                        (start..run.end).take_while(|sector| deferred(sector) == is_deferred);
                    let part = common(&run, &(start..start + alike.count() as u64));
                    start = part.end;
                    if !is_deferred {
                        out.push(Change::Run {
                            block: at.clone(),
                            run: part,
                            standing: Standing::Clean,
                        });
                    }
                }
            }
        }
    }

    /// Notes the checksums of all dirty data when nothing changes any more, so that the next
    /// session can verify it.
    pub(crate) fn note_rest(&mut self, orders: &mut Vec<Order>) {
        if !self.is_logging() {
            return;
        }
        for volume in (0..self.volumes.len()).map(|volume| VolumeId(volume as u16)) {
            let blocks: Vec<Block> = self.directory.dirty_blocks(volume).collect();
            for block in blocks {
                for run in self.dirty_there(block, &self.directory.sectors(block)) {
                    let parts = self.by_seal(block, &run).into_iter();
                    let open = parts.filter(|(_, sealed)| !sealed);
                    open.for_each(|(run, _)| self.note(block, &run, Standing::Sealed, orders));
                }
            }
        }
    }
}
