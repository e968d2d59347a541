//! Pages of the journal get lost on a copy of the cache device, and the copy is salvaged.
//!
//! The world goes on with the device as it was; the copy is compared with it. Where parity stands
//! for the only lost page, the copy has to say the same. Where more is lost, it may say less, but
//! nothing else: data counts as dirty only where it is dirty on the device, in the same place, and
//! what was dirty before the gap and is so still must not be forgotten without a word.

use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use floe_block::{KeptCache, SECTOR_BYTES, StoreError, VolumeId};
use rand::Rng;

use super::World;
use crate::boot::{Boot, NoBoot};
use crate::disk::Disk;
use crate::machine::Machine;
use crate::rot::{self, LostPages};

/// Pages get lost before one in so many starts.
const PERIOD: u32 = 32;

/// A dirty sector: its volume, its number there, and the byte of the cache device it is at.
type DirtySector = (usize, u64, u64);

/// All that a cache says of its volumes.
#[derive(Debug, PartialEq, Eq)]
struct Said {
    dirty: BTreeSet<DirtySector>,
    lost: BTreeSet<(usize, u64)>,
    unsealed: BTreeSet<(usize, u64)>,
    valid_bytes: Vec<u64>,
    /// Checksums of clean sectors, by volume.
    sums: Vec<BTreeSet<(u64, u64)>>,
}

impl Said {
    fn by(kept: &KeptCache, volumes: usize) -> Said {
        let ids = || (0..volumes).map(|volume| (volume, VolumeId(volume as u16)));
        let sectors = |runs: &dyn Fn(VolumeId) -> Vec<Range<u64>>| {
            let of = |(number, id)| runs(id).into_iter().flatten().map(move |at| (number, at));
            ids().flat_map(of).collect::<BTreeSet<_>>()
        };
        let dirty = ids().flat_map(|(number, id)| {
            kept.dirty_runs(id).into_iter().flat_map(move |(run, byte)| {
                let place = move |sector| byte + (sector - run.start) * SECTOR_BYTES;
                run.clone().map(move |sector| (number, sector, place(sector)))
            })
        });
        let sums = |(_, id)| kept.clean_sums(id, usize::MAX).into_iter().collect();
        Said {
            dirty: dirty.collect(),
            lost: sectors(&|id| kept.lost_runs(id)),
            unsealed: sectors(&|id| kept.unsealed_runs(id)),
            valid_bytes: ids().map(|(_, id)| kept.valid_bytes(id)).collect(),
            sums: ids().map(sums).collect(),
        }
    }

    fn is_lost(&self, (volume, sector, _): &DirtySector) -> bool {
        self.lost.contains(&(*volume, *sector))
    }
}

impl World {
    /// Loses pages of the journal on a copy of the cache device, of which `whole` was opened, and
    /// has the copy salvaged.
    pub(super) fn lose_pages(&mut self, whole: &KeptCache) -> Result<(), NoBoot> {
        if !self.draw(|rng| rng.random_ratio(1, PERIOD)) {
            return Ok(());
        }
        let mut bytes = self.cache.peek(0..self.format.device_bytes() as usize);
        let metadata = &bytes[..self.format.data_start() as usize];
        let id = whole.superblock().id;
        let Some(lost) = self.draw(|rng| rot::pages_to_lose(metadata, &id, rng)) else {
            return Ok(());
        };
        let noise = self.draw(|rng| rng.random::<u64>()) | 1;
        for byte in lost.bytes() {
            bytes[byte] ^= (noise >> (byte % 8 * 8)) as u8 | 1;
        }
        self.survived.lost_pages += lost.pages.len() as u64;
        match self.salvage(whole, &bytes, &lost) {
            Ok(()) => Ok(()),
            Err(what) => Err(NoBoot::Salvaged(format!("{lost:?}: {what}"))),
        }
    }

    fn salvage(&self, whole: &KeptCache, bytes: &[u8], lost: &LostPages) -> Result<(), String> {
        let volumes = self.sizes.len();
        let machine = Machine::new(self.draw(|rng| rng.random()));
        machine.power_on(None);
        let copy = Disk::holding(&machine, bytes);
        let boot = Boot { machine: &machine, cache: &copy, ..self.boot() };
        let fails = |error: NoBoot| format!("it cannot be salvaged: {error:?}");
        let (salvaged, salvages) =
            boot.salvage().map_err(fails)?.ok_or("there is no cache any more")?;
        let (before, after) = (Said::by(whole, volumes), Said::by(&salvaged, volumes));
        let gone: Vec<&String> = salvages.iter().flat_map(|salvage| &salvage.gone).collect();
        if lost.is_covered && !gone.is_empty() {
            return Err(format!("a page that has parity is given up: {gone:?}"));
        }
        // An older checkpoint and the log may amount to what is older than the newest one.
        let is_whole = lost.is_of_log || !salvages.is_empty();
        if is_whole && gone.is_empty() && before != after {
            return Err(format!("nothing is missed, but {before:?} became {after:?}"));
        }
        let is_kept = |sector: &DirtySector| after.dirty.contains(sector);
        let trusted = after.dirty.iter().filter(|sector| !after.is_lost(sector));
        if let Some(sector) = trusted.clone().find(|sector| !before.dirty.contains(*sector)) {
            return Err(format!("{sector:?} counts as dirty, and is not; gone is {gone:?}"));
        }
        if !gone.is_empty() && lost.is_of_log {
            for sector in self.dirty_before(bytes, lost, &machine)? {
                if before.dirty.contains(&sector) && !is_kept(&sector) && !after.is_lost(&sector) {
                    return Err(format!("{sector:?} is forgotten; gone is {gone:?}"));
                }
            }
        }
        boot.rewrite(salvaged, &salvages).map_err(fails)?;
        let again = boot.open().map_err(fails)?.ok_or("there is no cache any more")?;
        match Said::by(&again, volumes) {
            again if again == after => Ok(()),
            again => Err(format!("what was salvaged, {after:?}, was written as {again:?}")),
        }
    }

    /// Returns the sectors that are dirty in a copy whose log ends before the lost pages. There are
    /// none where the log does the duty of a checkpoint whose slot is in use again: such a copy is
    /// damaged.
    fn dirty_before(
        &self,
        bytes: &[u8],
        lost: &LostPages,
        machine: &Rc<Machine>,
    ) -> Result<BTreeSet<DirtySector>, String> {
        let mut bytes = bytes.to_vec();
        for byte in lost.later.iter().flat_map(|page| page.clone()) {
            bytes[byte] = 0;
        }
        let copy = Disk::holding(machine, &bytes);
        let boot = Boot { machine, cache: &copy, ..self.boot() };
        let found = match boot.open() {
            Err(NoBoot::Refused(StoreError::Checkpoint { .. })) => return Ok(BTreeSet::new()),
            found => found.map_err(|error| format!("the log does not end: {error:?}"))?,
        };
        Ok(Said::by(&found.ok_or("there is no cache any more")?, self.sizes.len()).dirty)
    }
}
