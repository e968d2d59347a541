//! The pages of a memory tier, by volume and sector.

use super::{LOOKED_FOR_AT_ONCE, MemoryTier, Page, PageKey};
use crate::engine::request::{Kind, Request};
use crate::geometry::{Place, SECTOR_BYTES, VolumeId};
use crate::stats::Stats;
use floe_device::Buffer;
use hashbrown::HashMap;
use std::fmt;
use std::ops::Range;

/// One driver's side of the memory tier.
#[derive(Debug)]
pub(crate) struct Pages {
    tier: MemoryTier,
    /// The number of each volume among all there ever were. All drivers add volumes in the same
    /// order.
    volumes: Vec<u32>,
    volumes_made: u32,
    held: HashMap<Place, Box<Page>, foldhash::fast::FixedState>,
    /// Memory of pages that were held, for reuse.
    spare: Vec<Box<Page>>,
    /// Reads answered from memory, and their bytes.
    hits: u64,
    hit_bytes: u64,
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Page")
    }
}

impl Pages {
    pub(crate) fn new(tier: MemoryTier) -> Self {
        Self {
            tier,
            volumes: Vec::new(),
            volumes_made: 0,
            held: HashMap::default(),
            spare: Vec::new(),
            hits: 0,
            hit_bytes: 0,
        }
    }

    pub(crate) fn add_volume(&mut self, id: VolumeId) {
        let at = usize::from(id.0);
        self.volumes.resize(self.volumes.len().max(at + 1), 0);
        self.volumes[at] = self.volumes_made;
        self.volumes_made += 1;
    }

    /// Removes the held pages of a volume.
    pub(crate) fn remove_volume(&mut self, id: VolumeId) {
        self.held.retain(|place, _| place.volume() != id);
    }

    fn key(&self, volume: VolumeId, sector: u64) -> PageKey {
        PageKey { sector, volume: self.volumes[usize::from(volume.0)] }
    }

    /// Reads the pages of each request into its buffer and marks it in `hits`, if all of them are
    /// there. Otherwise the buffer's content is unspecified. Requests of one page are looked up
    /// together; those for which `is_within` does not hold are skipped.
    pub(crate) fn read(
        &mut self,
        reads: &[(Request, Buffer)],
        is_within: impl Fn(&Request) -> bool,
        hits: &mut [bool],
    ) {
        for (reads, hits) in
            reads.chunks(LOOKED_FOR_AT_ONCE).zip(hits.chunks_mut(LOOKED_FOR_AT_ONCE))
        {
            let mut keys = [PageKey { sector: 0, volume: 0 }; LOOKED_FOR_AT_ONCE];
            let (mut whose, mut count) = ([0; LOOKED_FOR_AT_ONCE], 0);
            for (which, (request, buffer)) in reads.iter().enumerate() {
                debug_assert_eq!(request.kind, Kind::Read);
                if request.len == 0 || !is_within(request) {
                    continue;
                }
                let first = request.offset / SECTOR_BYTES;
                let end = (request.offset + request.len).div_ceil(SECTOR_BYTES);
                if end - first == 1 {
                    (keys[count], whose[count]) = (self.key(request.volume, first), which);
                    count += 1;
                } else {
                    hits[which] = self.read_many(request.volume, first..end, buffer);
                }
            }
            self.tier.pages.get_many(&keys[..count], |at, Page(bytes)| {
                reads[whose[at]].1.slice(0..bytes.len()).copy_from(bytes);
                hits[whose[at]] = true;
            });
            for ((request, _), _) in reads.iter().zip(hits).filter(|(_, hit)| **hit) {
                self.hits += 1;
                self.hit_bytes += request.len;
            }
        }
    }

    /// Looks up several pages together, so that the processor fetches their memory in parallel.
    fn read_many(&self, volume: VolumeId, sectors: Range<u64>, buffer: &Buffer) -> bool {
        let mut keys = [self.key(volume, sectors.start); LOOKED_FOR_AT_ONCE];
        sectors.clone().step_by(LOOKED_FOR_AT_ONCE).all(|begin| {
            let count = (sectors.end - begin).min(LOOKED_FOR_AT_ONCE as u64) as usize;
            for (key, sector) in keys[..count].iter_mut().zip(begin..) {
                key.sector = sector;
            }
            let at = (begin - sectors.start) * SECTOR_BYTES;
            let copy = |which: usize, Page(bytes): &Page| {
                let at = at as usize + which * bytes.len();
                buffer.slice(at..at + bytes.len()).copy_from(bytes);
            };
            self.tier.pages.get_many(&keys[..count], copy) == count
        })
    }

    /// Adds the reads answered from memory to those that the cache has counted.
    pub(crate) fn count(&self, stats: &mut Stats) {
        stats.memory_hits = self.hits;
        stats.memory_hit_bytes = self.hit_bytes;
        stats.requests.reads += self.hits;
        stats.requests.read_hits += self.hits;
        stats.requests.read_bytes += self.hit_bytes;
    }

    /// Puts copies of sectors into the tier, from the buffer `from`.
    pub(crate) fn fill(&self, volume: VolumeId, sectors: Range<u64>, from: &floe_device::Slice) {
        for (sector, bytes) in sectors.zip(slices(from)) {
            let mut page = Page([0; SECTOR_BYTES as usize]);
            bytes.copy_to(&mut page.0);
            self.tier.pages.insert(self.key(volume, sector), page);
        }
    }

    /// Removes sectors from the tier; held pages stay held.
    pub(crate) fn forget(&self, volume: VolumeId, sectors: Range<u64>) {
        for sector in sectors {
            drop(self.tier.pages.remove(&self.key(volume, sector)));
        }
    }

    /// Holds sectors that no tier below has, and puts copies into the tier.
    pub(crate) fn hold(
        &mut self,
        volume: VolumeId,
        sectors: Range<u64>,
        from: &floe_device::Slice,
    ) {
        for (sector, bytes) in sectors.clone().zip(slices(from)) {
            let spare = &mut self.spare;
            let fresh =
                || spare.pop().unwrap_or_else(|| Box::new(Page([0; SECTOR_BYTES as usize])));
            let page = self.held.entry(Place::new(volume, sector)).or_insert_with(fresh);
            bytes.copy_to(&mut page.0);
        }
        self.fill(volume, sectors, from);
    }

    /// Reads held sectors.
    ///
    /// # Panics
    /// When one is not held.
    pub(crate) fn recall(&self, volume: VolumeId, sectors: Range<u64>, to: &floe_device::Slice) {
        for (sector, bytes) in sectors.zip(slices(to)) {
            bytes.copy_from(&self.held[&Place::new(volume, sector)].0);
        }
    }

    /// Releases held sectors.
    pub(crate) fn let_go(&mut self, volume: VolumeId, sectors: Range<u64>) {
        for sector in sectors {
            self.spare.extend(self.held.remove(&Place::new(volume, sector)));
        }
    }
}

/// Returns the parts of a slice, a sector each.
fn slices(of: &floe_device::Slice) -> impl Iterator<Item = floe_device::Slice> + '_ {
    let sector = SECTOR_BYTES as usize;
    (0..of.len() / sector).map(move |at| of.slice(at * sector..(at + 1) * sector))
}
