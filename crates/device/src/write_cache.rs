//! The volatile write cache of a disk: sectors written but not yet on the medium.
//!
//! Sectors are immutable and shared: whoever took a snapshot (a read under way, a flush) keeps the
//! content of its moment, while a newer write replaces the sector in the map. A sector knows which
//! of its 512-byte units are written, since a torn write leaves the others to the medium.
//! Invariant: the map holds the newest content.

use std::collections::BTreeMap;
use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::SECTOR_BYTES;
use crate::buffer::Slice;

/// The unit that a disk stores whole or not at all.
pub(crate) const UNIT_BYTES: usize = 512;

const SECTOR: usize = SECTOR_BYTES as usize;

#[derive(Debug, Default)]
pub(crate) struct WriteCache {
    sectors: BTreeMap<u64, Arc<Sector>>,
}

#[derive(Debug, Clone)]
struct Sector {
    bytes: [u8; SECTOR],
    /// One bit per unit that is written.
    written: u8,
}

/// A sector of the cache as it was at some moment.
#[derive(Debug, Clone)]
pub(crate) struct Dirty {
    /// Where on the device.
    pub(crate) offset: u64,
    /// Where in the range that was asked for.
    position: usize,
    sector: Arc<Sector>,
}

impl Dirty {
    /// True if the medium's content of the sector is not needed.
    pub(crate) fn is_whole(&self) -> bool {
        self.sector.written == u8::MAX
    }

    /// Puts the written units over an older copy of the range asked for.
    pub(crate) fn patch(&self, range: &Slice) {
        for unit in (0..8).filter(|unit| self.sector.written >> unit & 1 == 1) {
            let from = unit * UNIT_BYTES;
            let to = self.position + from;
            // A range may end inside the device's last sector.
            if to + UNIT_BYTES <= range.len() {
                range
                    .slice(to..to + UNIT_BYTES)
                    .copy_from(&self.sector.bytes[from..][..UNIT_BYTES]);
            }
        }
    }

    /// The same sector, as a range of its own.
    pub(crate) fn alone(&self) -> Dirty {
        Dirty { position: 0, ..self.clone() }
    }
}

impl WriteCache {
    /// Stores whole units at `offset`, which is a sector's start.
    pub(crate) fn write(&mut self, offset: u64, from: &Slice) {
        for at in (0..from.len()).step_by(SECTOR) {
            let part = from.slice(at..from.len().min(at + SECTOR));
            let key = offset + at as u64;
            let mut sector = match self.sectors.get(&key) {
                Some(older) => Sector::clone(older),
                None => Sector { bytes: [0; SECTOR], written: 0 },
            };
            part.copy_to(&mut sector.bytes[..part.len()]);
            sector.written |= units(part.len());
            self.sectors.insert(key, Arc::new(sector));
        }
    }

    /// Makes a range zero.
    pub(crate) fn zero(&mut self, offset: u64, len: u64) {
        let zeros = Arc::new(Sector { bytes: [0; SECTOR], written: u8::MAX });
        for at in (0..len).step_by(SECTOR) {
            self.sectors.insert(offset + at, Arc::clone(&zeros));
        }
    }

    /// The sectors that overlap a range.
    pub(crate) fn overlapping(&self, offset: u64, len: u64) -> Vec<Dirty> {
        let found = self.sectors.range(offset..offset + len);
        let dirty = |(&at, sector): (&u64, &Arc<Sector>)| Dirty {
            offset: at,
            position: (at - offset) as usize,
            sector: Arc::clone(sector),
        };
        found.map(dirty).collect()
    }

    /// All sectors.
    pub(crate) fn all(&self) -> Vec<Dirty> {
        self.overlapping(0, u64::MAX)
    }

    /// Sectors of a range as `overlapping`, but with only those units that lie in it.
    pub(crate) fn take_range(&self, offset: u64, len: u64) -> Vec<Dirty> {
        let mut found = self.overlapping(offset, len);
        for dirty in &mut found {
            let inside = (len as usize - dirty.position).min(SECTOR);
            let written = dirty.sector.written & units(inside);
            dirty.sector = Arc::new(Sector { bytes: dirty.sector.bytes, written });
        }
        found
    }

    /// The sectors that reached the medium by chance: of each written unit, a coin decides.
    pub(crate) fn survivors(&self, seed: u64) -> Vec<Dirty> {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut found = self.all();
        for dirty in &mut found {
            let written = dirty.sector.written & random.random::<u8>();
            dirty.sector = Arc::new(Sector { bytes: dirty.sector.bytes, written });
        }
        found
    }

    /// Forgets sectors that are on the medium now, unless they were written again since.
    pub(crate) fn clean(&mut self, stored: &[Dirty]) {
        for dirty in stored {
            if self.sectors.get(&dirty.offset).is_some_and(|now| Arc::ptr_eq(now, &dirty.sector)) {
                self.sectors.remove(&dirty.offset);
            }
        }
    }

    /// Bytes it holds, in whole sectors.
    pub(crate) fn bytes(&self) -> u64 {
        self.sectors.len() as u64 * SECTOR_BYTES
    }

    /// Forgets the sectors that begin at or after `size`.
    pub(crate) fn truncate(&mut self, size: u64) {
        self.sectors.split_off(&size);
    }

    pub(crate) fn clear(&mut self) {
        self.sectors.clear();
    }
}

/// The mask of the first units, `len` bytes long.
fn units(len: usize) -> u8 {
    ((1u16 << (len / UNIT_BYTES)) - 1) as u8
}

const _: () =
    assert!(SECTOR / UNIT_BYTES == u8::BITS as usize, "a sector's units fit a mask of 8 bits");
