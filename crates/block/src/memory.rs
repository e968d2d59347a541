//! The memory tier above the block cache: copies of pages, which any thread can look up.
//!
//! A page is a sector. [`MemoryTier`] is the handle that all threads of a server share. It is a
//! [`floe::Cache`], so a hit involves no other thread, and takes no lock under its default policy.
//! [`Pages`] is one driver's side of the tier: the handle, and the *held* (unflushed) pages of its
//! shards. Of these no tier below has the newest content.
//!
//! **Coherence.** The shards decide which pages are in the tier (`mapping/unflushed.rs`), and only
//! while they hold a lock on the sector. A task that reads a sector inserts it before releasing the
//! shared lock. A task that changes a sector removes it, under the exclusive lock, before its first
//! device operation. So a page that is read while a write arrives is either inserted before the
//! write removes it, or not at all. Nothing older than an acknowledged write is ever found. The
//! orders of one part of a cache are executed in sequence, by the thread that owns its shards.
//!
//! **Bounds.** The tier takes no more memory than it was given, including its overhead. Held pages
//! lie outside the cache, which may drop any of its pages at any time. They have a quarter of the
//! tier's memory, and a write that finds it full goes to the tiers below.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use floe::{AdmissionStats, BuildError, Cache, FreezeStats, Freezing};
use floe_device::Buffer;
use floe_policy::admission::{Admission, Admissions, Room};
use hashbrown::HashMap;

use crate::geometry::{Place, SECTOR_BYTES, VolumeId, format_size};
use crate::join::{Request, RequestKind};
use crate::stats::Stats;

/// Minimum number of bytes of a memory tier. A smaller tier would hold hardly any pages.
pub const LEAST_MEMORY_BYTES: u64 = 1 << 20;

/// Minimum number of pages of a part of the tier, if there are fewer than [`MOST_SMALL_PARTS`] such
/// parts. Each part has some tens of evicted pages that wait until no reader looks at them.
const LEAST_PART_PAGES: usize = 256;

/// Limit of the number of parts with [`LEAST_PART_PAGES`]; above it the library's default number of
/// parts is used.
const MOST_SMALL_PARTS: usize = 16;

/// Overhead of a page in the cache besides its bytes: its key, its place in index and order, and
/// its share of evicted pages that wait to be dropped. A small cache has more of these for its
/// size, and so a reserve. A test measures it.
const PAGE_COST_BYTES: u64 = 448;
const SPARE_BYTES: u64 = 72 * (SECTOR_BYTES + 64);
const SPARE_SHARE: u64 = 16;
const MOST_SPARE_BYTES: u64 = 2 << 20;

/// Overhead in bytes of an unflushed page, in the table and in the shard's set.
const HELD_COST_BYTES: u64 = 96;

/// Divisor of the tier's memory: unflushed pages may take a quarter of it.
const HELD_SHARE: u64 = 4;

/// Minimum limit of unflushed sectors of a shard that may have any.
pub(crate) const LEAST_HELD_SECTORS: u64 = 8;

/// Maximum number of pages of a request that are looked up together.
const LOOKED_FOR_AT_ONCE: usize = 16;

/// The write mode of the memory tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MemoryWrite {
    /// Write-through: the tier has copies only.
    #[default]
    Through,
    /// Write-back: a write is answered once its pages are in memory. They are written below at a
    /// flush, at regular intervals, or for want of room. A write with FUA goes below at once.
    Back,
}

impl MemoryWrite {
    const NAMES: [(&'static str, Self); 2] = [("through", Self::Through), ("back", Self::Back)];
}

impl fmt::Display for MemoryWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::NAMES.iter().find(|(_, mode)| mode == self).map_or("", |(name, _)| name))
    }
}

/// A name that is not a write mode of the memory tier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a write mode of memory; there are through and back")]
pub struct UnknownMemoryWrite(String);

impl FromStr for MemoryWrite {
    type Err = UnknownMemoryWrite;

    fn from_str(name: &str) -> Result<Self, UnknownMemoryWrite> {
        let known = Self::NAMES.iter().find(|(known, _)| *known == name);
        known.map(|(_, mode)| *mode).ok_or_else(|| UnknownMemoryWrite(name.to_owned()))
    }
}

/// The reason for which a memory tier cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// The tier is too small to be of use.
    #[error(
        "{} is too small: a tier in memory needs at least {}",
        format_size(*.0), format_size(LEAST_MEMORY_BYTES)
    )]
    TooSmall(u64),
    /// The tier has more pages than the cache can number.
    #[error("{}: {}", format_size(*.0), .1)]
    TooLarge(u64, BuildError),
    /// The admission needs places or fetches, which pages of memory do not have.
    #[error(transparent)]
    Admission(BuildError),
}

/// The options of a memory tier, besides its size.
#[derive(Debug, Clone, Default)]
pub struct MemoryOptions {
    /// The write mode of the tier.
    pub write: MemoryWrite,
    /// Options for freezing the tier's hottest pages; `None` freezes none.
    pub freezing: Option<Freezing>,
    /// The admission policy of the tier.
    pub admission: Admissions,
}

/// The properties of a memory tier that the state machines below must know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Memory {
    /// There is no memory tier.
    #[default]
    None,
    /// The tier has copies of data that was read.
    Copies,
    /// The tier also holds unflushed writes.
    Holds {
        /// Maximum number of unflushed sectors of all shards together, shared out evenly.
        sectors: u64,
    },
}

/// The key of a page. Ids of volumes are reused, so a key has the number of its volume among all
/// volumes ever added. Pages of a removed volume are never found, and are evicted in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct PageKey {
    sector: u64,
    volume: u32,
}

/// A page, aligned to a cache line of the processor.
#[repr(align(64))]
struct Page([u8; SECTOR_BYTES as usize]);

/// The memory tier, shared by all threads; clones are handles to one tier.
#[derive(Clone)]
pub struct MemoryTier {
    pages: Cache<PageKey, Page>,
    bytes: u64,
    write: MemoryWrite,
}

/// The current use of a memory tier.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Bytes that the tier may use, including all overhead.
    pub size_bytes: u64,
    /// Bytes of cached pages, without unflushed pages.
    pub page_bytes: u64,
    /// Pages evicted to make room for others.
    pub evictions: u64,
    /// Current number of frozen pages.
    pub frozen_pages: u64,
    /// The name of the eviction policy.
    pub policy: &'static str,
    /// Parts of the tier, each with its own eviction order.
    pub shards: u64,
    /// Counts of the admission, if there is one.
    pub admission: Option<AdmissionStats>,
}

impl MemoryTier {
    /// Creates a tier of this many bytes, including all overhead. Memory is allocated as pages are
    /// inserted.
    ///
    /// # Errors
    /// When the size is less than [`LEAST_MEMORY_BYTES`] or more than is possible, or the admission
    /// needs something that pages do not have.
    pub fn new(bytes: u64, options: MemoryOptions) -> Result<Self, MemoryError> {
        let MemoryOptions { write, freezing, admission } = options;
        if bytes < LEAST_MEMORY_BYTES {
            return Err(MemoryError::TooSmall(bytes));
        }
        let copies = bytes - Self::held_bytes(bytes, write);
        let spare = (SPARE_BYTES + copies / SPARE_SHARE).min(MOST_SPARE_BYTES);
        let asking = if admission.is_always() { 0 } else { asking_cost_bytes(&admission) };
        let pages = (copies - spare) / (SECTOR_BYTES + PAGE_COST_BYTES + asking);
        let pages = usize::try_from(pages).unwrap_or(usize::MAX);
        // The one place where the cache of a server's pages is configured.
        let described = Cache::builder().capacity(pages);
        let described = match pages / LEAST_PART_PAGES {
            parts @ ..MOST_SMALL_PARTS => described.shards(1 << parts.max(1).ilog2()),
            _ => described,
        };
        let described = match freezing {
            Some(freezing) => described.freezing(freezing),
            None => described,
        };
        // Where everything is admitted, no admission is needed.
        let described =
            if admission.is_always() { described } else { described.admission(admission) };
        let pages = described.try_build().map_err(|error| match error {
            BuildError::Admission { .. } => MemoryError::Admission(error),
            _ => MemoryError::TooLarge(bytes, error),
        })?;
        Ok(Self { pages, bytes, write })
    }

    fn held_bytes(bytes: u64, write: MemoryWrite) -> u64 {
        match write {
            MemoryWrite::Through => 0,
            MemoryWrite::Back => bytes / HELD_SHARE,
        }
    }

    /// Returns the size in bytes of a tier that can hold this many unflushed sectors.
    pub(crate) fn bytes_to_hold(sectors: u64) -> u64 {
        (sectors * (SECTOR_BYTES + HELD_COST_BYTES) * HELD_SHARE).next_multiple_of(1 << 20)
    }

    /// Returns the properties that the state machines below the tier must know.
    pub fn config(&self) -> Memory {
        match self.write {
            MemoryWrite::Through => Memory::Copies,
            MemoryWrite::Back => Memory::Holds {
                sectors: Self::held_bytes(self.bytes, self.write)
                    / (SECTOR_BYTES + HELD_COST_BYTES),
            },
        }
    }

    /// Returns the write mode.
    pub fn write(&self) -> MemoryWrite {
        self.write
    }

    /// Returns the current use of the tier.
    pub fn usage(&self) -> MemoryUse {
        let stats = self.pages.stats();
        MemoryUse {
            size_bytes: self.bytes,
            page_bytes: stats.entries * SECTOR_BYTES,
            evictions: stats.evictions,
            frozen_pages: stats.frozen,
            policy: stats.policy,
            shards: stats.shards,
            admission: stats.admission,
        }
    }

    /// Returns the state of freezing, if the tier freezes pages.
    pub fn freezing(&self) -> Option<FreezeStats> {
        self.pages.stats().freezing
    }

    /// Returns the bytes allocated by the tier, without unflushed pages.
    pub fn memory_bytes(&self) -> u64 {
        self.pages.stats().memory_bytes
    }
}

impl fmt::Debug for MemoryTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryTier({}, {})", format_size(self.bytes), self.write)
    }
}

/// Returns the memory of an admission for each page: a hash, and the page's share of the
/// admission's tables. It is measured with some thousand pages, and doubled, because tables grow by
/// leaps.
fn asking_cost_bytes(admission: &Admissions) -> u64 {
    let pages = 1 << 14;
    let mut asked = admission.clone();
    asked.reserve(&Room { entries: pages, weight: pages as u64, above: 0 });
    2 * (asked.memory_bytes().div_ceil(pages) + size_of::<u64>()) as u64
}

/// One driver's side of the memory tier.
#[derive(Debug)]
pub(crate) struct Pages {
    tier: MemoryTier,
    /// Numbers of the volumes, by id, among all volumes ever added. All drivers add volumes in the
    /// same order.
    volumes: Vec<u32>,
    volumes_made: u32,
    held: HashMap<Place, Box<Page>, foldhash::fast::FixedState>,
    /// Memory of pages that are no longer unflushed, for reuse.
    spare: Vec<Box<Page>>,
    /// Reads answered from memory, and bytes of these reads.
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

    /// Removes the unflushed pages of a volume.
    pub(crate) fn remove_volume(&mut self, id: VolumeId) {
        self.held.retain(|place, _| place.volume() != id);
    }

    fn key(&self, volume: VolumeId, sector: u64) -> PageKey {
        PageKey { sector, volume: self.volumes[usize::from(volume.0)] }
    }

    /// Reads the pages of each request into its buffer. Marks a request in `hits` if all its pages
    /// are there; otherwise its buffer's content is unspecified. Requests of one page are looked up
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
                debug_assert_eq!(request.kind, RequestKind::Read);
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

    /// Inserts copies of sectors, from the buffer `from`, into the tier.
    pub(crate) fn fill(&self, volume: VolumeId, sectors: Range<u64>, from: &floe_device::Slice) {
        for (sector, bytes) in sectors.zip(slices(from)) {
            let mut page = Page([0; SECTOR_BYTES as usize]);
            bytes.copy_to(&mut page.0);
            self.tier.pages.insert(self.key(volume, sector), page);
        }
    }

    /// Removes the copies of sectors from the tier; held pages stay held.
    pub(crate) fn forget(&self, volume: VolumeId, sectors: Range<u64>) {
        for sector in sectors {
            drop(self.tier.pages.remove(&self.key(volume, sector)));
        }
    }

    /// Holds unflushed sectors, whose data no tier below has, and inserts copies into the tier.
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

    /// Copies unflushed sectors into the buffer `to`.
    ///
    /// # Panics
    /// When a sector is not held.
    pub(crate) fn recall(&self, volume: VolumeId, sectors: Range<u64>, to: &floe_device::Slice) {
        for (sector, bytes) in sectors.zip(slices(to)) {
            bytes.copy_from(&self.held[&Place::new(volume, sector)].0);
        }
    }

    /// Releases unflushed sectors.
    pub(crate) fn let_go(&mut self, volume: VolumeId, sectors: Range<u64>) {
        for sector in sectors {
            self.spare.extend(self.held.remove(&Place::new(volume, sector)));
        }
    }
}

/// Divides a slice into sectors.
fn slices(of: &floe_device::Slice) -> impl Iterator<Item = floe_device::Slice> + '_ {
    let sector = SECTOR_BYTES as usize;
    (0..of.len() / sector).map(move |at| of.slice(at * sector..(at + 1) * sector))
}

#[cfg(test)]
mod tests {
    use floe_device::Pool;

    use super::*;
    use crate::geometry::VolumeId;
    use crate::join::{Request, RequestKind};

    #[test]
    fn a_tier_takes_no_more_memory_than_it_was_given() {
        let sizes = [1, 3, 8, 17, 33, 64, 100].map(|mebibytes| mebibytes << 20);
        let plain = MemoryOptions::default();
        let asks = |admission: &str| MemoryOptions {
            admission: admission.parse().unwrap(),
            ..plain.clone()
        };
        let options = [
            plain.clone(),
            MemoryOptions { freezing: Some(Freezing::fixed(0.5)), ..plain.clone() },
            asks("second-access:ghosts=8"),
            asks("duel + probability:p=0.9"),
        ];
        for (bytes, options) in
            sizes.into_iter().flat_map(|bytes| options.clone().map(|options| (bytes, options)))
        {
            let tier = MemoryTier::new(bytes, options).unwrap();
            let mut pages = Pages::new(tier.clone());
            pages.add_volume(VolumeId(0));
            let buffer = Pool::new(1 << 20).allocate(1 << 20);
            let sectors = 4 * bytes / SECTOR_BYTES;
            for first in (0..sectors).step_by(256) {
                pages.fill(VolumeId(0), first..first + 256, &buffer.whole());
                pages.forget(VolumeId(0), first..first + 3);
                pages.fill(VolumeId(0), first + 9..first + 20, &buffer.slice(0..11 * 4096));
            }
            let taken = tier.memory_bytes();
            assert!(taken <= bytes, "{taken} of {bytes}: {:?}", tier.pages.stats());
            let bypassed = tier.usage().admission.map_or(0, |admission| admission.bypassed);
            assert!(tier.usage().page_bytes > bytes / 2 || bypassed > 0, "{:?}", tier.usage());
        }
    }

    #[test]
    fn memory_that_cannot_be_is_refused() {
        let error =
            |bytes| MemoryTier::new(bytes, MemoryOptions::default()).unwrap_err().to_string();
        assert_eq!(error(4096), "4KiB is too small: a tier in memory needs at least 1MiB");
        assert!(error(1 << 62).starts_with("4194304TiB: a capacity of"), "{}", error(1 << 62));
    }

    #[test]
    fn an_admission_that_needs_what_memory_does_not_have_is_refused_and_always_is_none() {
        let tier = |admission: &str| {
            let admission = admission.parse().unwrap();
            MemoryTier::new(
                LEAST_MEMORY_BYTES,
                MemoryOptions { admission, ..MemoryOptions::default() },
            )
        };
        for refused in ["fussy:tune=1", "second-access + sequential"] {
            assert!(matches!(tier(refused), Err(MemoryError::Admission(_))), "{refused}");
        }
        assert_eq!(tier("always").unwrap().usage().admission, None);
        assert!(tier("second-access").unwrap().usage().admission.is_some());
    }

    #[test]
    fn pages_of_a_volume_that_went_are_not_those_of_the_next() {
        let tier = MemoryTier::new(LEAST_MEMORY_BYTES, MemoryOptions::default()).unwrap();
        let mut pages = Pages::new(tier);
        pages.add_volume(VolumeId(0));
        let buffer = Pool::new(4096).allocate(4096);
        pages.fill(VolumeId(0), 7..8, &buffer.whole());
        let request =
            Request { volume: VolumeId(0), kind: RequestKind::Read, offset: 7 * 4096, len: 4096 };
        let is_there = |pages: &mut Pages| {
            let mut hit = [false];
            pages.read(&[(request, buffer.clone())], |_| true, &mut hit);
            hit == [true]
        };
        assert!(is_there(&mut pages));
        pages.remove_volume(VolumeId(0));
        pages.add_volume(VolumeId(0));
        assert!(!is_there(&mut pages));
    }
}
