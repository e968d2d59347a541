//! [`Ghosts`]: learns the size of the blocks that misses fetch with profit.
//!
//! For each block size there is a ghost: a cache without bytes, in which a miss fetches the whole
//! aligned block. Each size is charged with the calls that wait for a request, and with the bytes
//! that nobody reads. The one that costs least for a call it serves is the best: calls that find
//! all of their bytes in blocks are served by the first of these, and so is the call that fetched
//! one. A call waits once, however many ranges it misses, since they are requested at once. Only
//! first reads count, which an exact fetch would not have spared either. The ghosts follow a sample
//! of the regions of objects, and evict in the order of insertion, as a log does.

use std::collections::HashMap;
use std::ops::Range;

use foldhash::fast::FixedState;

use crate::parts::UNIT;

/// Sizes of blocks in bytes, besides exact fetches.
pub(crate) const BLOCKS: [u64; 6] = [16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, REGION];
/// Bytes of a region, the largest block.
const REGION: u64 = 16 << 20;
/// Most regions that are followed. Each takes up to 11 KiB of memory.
const MOST_REGIONS: usize = 512;
/// Most prefixes that are told apart.
const MOST_CLASSES: usize = 256;
/// Stamps that a cache's capacity takes. A stamp is a time counted in fetched bytes.
const STAMPS_OF_CAPACITY: u64 = 256;
/// Number of stamps: they have 14 bits, and zero means that nothing is there.
const STAMPS: u64 = (1 << 14) - 1;
/// First reads of a kind after which a class decides by itself.
const ENOUGH: u32 = 8;
/// First reads after which all that was learned loses a tenth of its weight.
const AGING: u32 = 64;
/// A larger block must cost less than this share: its bytes take the place of others.
const MARGIN: f64 = 0.97;

/// The relation of a read to earlier reads of its object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ReadKind {
    /// It begins at the start of the object.
    Start,
    /// It goes on where another one ended.
    Run,
    /// It ends at the end of the object, as that of a footer does.
    End,
    /// Any other.
    Jump,
}

const KINDS: [ReadKind; 4] = [ReadKind::Start, ReadKind::Run, ReadKind::End, ReadKind::Jump];

/// The cost of blocks of one size that reads of a kind have fetched.
#[derive(Debug, Clone, Copy, Default)]
struct Cost {
    /// Calls with first reads that found all of these bytes in the blocks, or fetched a block.
    served: f64,
    /// Calls that fetched a block, and so waited for a request.
    requests: f64,
    /// Bytes that were fetched and have not been read.
    unread: f64,
}

/// A call as the ghost of a block size sees it. Kinds are numbers as of [`ReadKind`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum CallOutcome {
    /// It read nothing for the first time.
    #[default]
    Untouched,
    /// It found all of its bytes in blocks, the first of which a read of this kind had fetched.
    Served(usize),
    /// It fetched a block, by a range of this kind.
    Waits(usize),
}

/// The costs of the reads of a prefix.
#[derive(Debug, Clone, Default)]
struct Class {
    costs: [[Cost; BLOCKS.len()]; KINDS.len()],
    /// First reads of bytes, by their kinds.
    firsts: [u32; KINDS.len()],
    since_aging: u32,
}

impl Class {
    fn count(&mut self, kind: ReadKind) {
        self.firsts[kind as usize] = self.firsts[kind as usize].saturating_add(1);
        self.since_aging += 1;
        if self.since_aging >= AGING {
            self.since_aging = 0;
            for cost in self.costs.as_flattened_mut() {
                cost.served *= 0.9;
                cost.requests *= 0.9;
                cost.unread *= 0.9;
            }
        }
    }

    /// Returns the block that costs least for a read, or `None` before enough is known.
    fn best(&self, kind: ReadKind, price: impl Fn(f64, f64, u64) -> f64) -> Option<u64> {
        if self.firsts[kind as usize] < ENOUGH {
            return None;
        }
        let (mut best, mut least) = (UNIT, price(1.0, 0.0, UNIT));
        // Ranges that come only with others are first reads that no call is charged to.
        let costs = BLOCKS.iter().zip(&self.costs[kind as usize]);
        let mut served = costs.filter(|(_, cost)| cost.served > 0.0).peekable();
        served.peek()?;
        for (block, cost) in served {
            let price = price(cost.requests, cost.unread, *block) / cost.served;
            if price < least * MARGIN {
                (best, least) = (*block, price);
            }
        }
        Some(best)
    }
}

/// The bytes of a region that were read, and the blocks that the ghosts have of it.
#[derive(Debug)]
struct Region {
    /// The stamp of each unit in a cache that fetches exactly.
    read: Box<[u16]>,
    /// For each block size the kind and the stamp of each block.
    fetched: [Box<[u16]>; BLOCKS.len()],
    /// Time of the last first read, in fetched bytes of the cache that fetches exactly.
    last: u64,
}

impl Region {
    fn new(bytes: u64) -> Self {
        let slots = |size: u64| vec![0; bytes.div_ceil(size) as usize].into_boxed_slice();
        Self { read: slots(UNIT), fetched: BLOCKS.map(slots), last: 0 }
    }
}

/// Block sizes and their costs, by prefixes.
#[derive(Debug)]
pub(crate) struct Ghosts {
    regions: HashMap<(u64, u64), Region, FixedState>,
    classes: HashMap<u64, Class, FixedState>,
    all: Class,
    /// Bytes fetched by the ghosts of the block sizes, and by exact fetches at the end.
    clocks: [u64; BLOCKS.len() + 1],
    /// Bytes of a stamp.
    quantum: u64,
    /// One region in so many, as a power of two, is followed.
    shift: u32,
}

/// Returns whether something stamped is still there.
fn is_there(stamp: u16, now: u64) -> bool {
    let stamp = u64::from(stamp) & STAMPS;
    stamp != 0 && (now + STAMPS - stamp) % STAMPS <= STAMPS_OF_CAPACITY
}

impl Ghosts {
    /// `capacity` is the size of the cache in bytes.
    pub(crate) fn new(capacity: u64) -> Self {
        Self {
            regions: HashMap::default(),
            classes: HashMap::default(),
            all: Class::default(),
            clocks: [0; BLOCKS.len() + 1],
            quantum: (capacity / STAMPS_OF_CAPACITY).max(1),
            shift: 0,
        }
    }

    /// Returns the stamp of now, from 1 on.
    fn stamp(&self, ghost: usize) -> u64 {
        (self.clocks[ghost] / self.quantum) % STAMPS + 1
    }

    /// Returns the block that pays for a kind of reads. `price` is the time of requests and of
    /// unread bytes with blocks of a size.
    pub(crate) fn best(
        &self,
        prefix: u64,
        kind: ReadKind,
        price: impl Fn(f64, f64, u64) -> f64,
    ) -> Option<u64> {
        let own = self.classes.get(&prefix).and_then(|class| class.best(kind, &price));
        own.or_else(|| self.all.best(kind, &price))
    }

    /// Notes a call that reads aligned bytes of an object. The kinds are those of the ranges.
    pub(crate) fn read(
        &mut self,
        object: u64,
        prefix: u64,
        len: u64,
        reads: &[(ReadKind, Range<u64>)],
    ) {
        let mut outcomes = [CallOutcome::Untouched; BLOCKS.len()];
        let (mut all, mut followed) = (0u32, 0u32);
        for (kind, range) in reads {
            let mut kind = *kind;
            for index in range.start / REGION..range.end.div_ceil(REGION) {
                all += 1;
                if self.follows(object, index) {
                    followed += 1;
                    let start = index * REGION;
                    let end = range.end.min(start + REGION);
                    let within = range.start.max(start) - start..end - start;
                    let len = (len - start).min(REGION);
                    self.read_region((object, index), prefix, kind, len, within, &mut outcomes);
                }
                kind = ReadKind::Run; // the rest of a read goes on where its start ended
            }
        }
        // Of a call whose regions are not all followed, a share is charged.
        let weight = f64::from(followed) / f64::from(all.max(1));
        let Some(class) = self.classes.get_mut(&prefix) else { return };
        for (size, outcome) in outcomes.into_iter().enumerate() {
            let (kind, requests) = match outcome {
                CallOutcome::Untouched => continue,
                CallOutcome::Waits(kind) => (kind, weight),
                CallOutcome::Served(kind) => (kind, 0.0),
            };
            for class in [&mut *class, &mut self.all] {
                let cost = &mut class.costs[kind][size];
                cost.served += weight;
                cost.requests += requests;
            }
        }
    }

    fn follows(&self, object: u64, index: u64) -> bool {
        let mixed = (object ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15))
            .wrapping_mul(0xd6e8_feb8_6659_fd93);
        mixed >> 32 & ((1 << self.shift) - 1) == 0
    }

    /// `range` and `len` are relative to the region.
    fn read_region(
        &mut self,
        key: (u64, u64),
        prefix: u64,
        kind: ReadKind,
        len: u64,
        range: Range<u64>,
        outcomes: &mut [CallOutcome; BLOCKS.len()],
    ) {
        let exact = BLOCKS.len();
        if !self.regions.contains_key(&key) && self.regions.len() >= MOST_REGIONS {
            self.make_room();
            if !self.follows(key.0, key.1) {
                return;
            }
        }
        if self.classes.len() >= MOST_CLASSES && !self.classes.contains_key(&prefix) {
            self.classes.clear(); // what all have in common stays
        }
        let stamps: [u64; BLOCKS.len() + 1] = std::array::from_fn(|ghost| self.stamp(ghost));
        let region = self.regions.entry(key).or_insert_with(|| Region::new(len));
        let units = (range.start / UNIT) as usize..range.end.div_ceil(UNIT) as usize;
        let firsts = runs(&region.read[units.clone()], |stamp| !is_there(*stamp, stamps[exact]));
        if firsts.is_empty() {
            return;
        }
        region.last = self.clocks[exact];
        let class = self.classes.entry(prefix).or_default();
        for run in firsts {
            let run = units.start + run.start..units.start + run.end;
            region.read[run.clone()].fill(stamps[exact] as u16);
            let bytes = run.start as u64 * UNIT..(run.end as u64 * UNIT).min(len);
            self.clocks[exact] += (bytes.end - bytes.start) << self.shift;
            class.count(kind);
            self.all.count(kind);
            let mut add_unread = |kind: usize, size: usize, unread: f64| {
                for class in [&mut *class, &mut self.all] {
                    class.costs[kind][size].unread += unread;
                }
            };
            for (size, block) in BLOCKS.iter().enumerate() {
                let slots = &mut region.fetched[size];
                let outcome = &mut outcomes[size];
                for slot in bytes.start / block..bytes.end.div_ceil(*block) {
                    let whole = slot * block..((slot + 1) * block).min(len);
                    let used = bytes.end.min(whole.end) - bytes.start.max(whole.start);
                    let held = &mut slots[slot as usize];
                    if is_there(*held, stamps[size]) {
                        let fetcher = usize::from(*held >> 14);
                        if *outcome == CallOutcome::Untouched {
                            *outcome = CallOutcome::Served(fetcher);
                        }
                        add_unread(fetcher, size, -(used as f64));
                    } else {
                        if !matches!(outcome, CallOutcome::Waits(_)) {
                            *outcome = CallOutcome::Waits(kind as usize);
                        }
                        *held = (kind as u16) << 14 | stamps[size] as u16;
                        self.clocks[size] += (whole.end - whole.start) << self.shift;
                        let unread = (whole.end - whole.start - used) as f64;
                        add_unread(kind as usize, size, unread);
                    }
                }
            }
        }
    }

    /// Forgets regions that no cache would have any more, or else follows half of them.
    fn make_room(&mut self) {
        let (now, capacity) = (self.clocks[BLOCKS.len()], self.quantum * STAMPS_OF_CAPACITY);
        self.regions.retain(|_, region| now - region.last <= capacity);
        while self.regions.len() >= MOST_REGIONS {
            self.shift += 1;
            let mut regions = std::mem::take(&mut self.regions);
            regions.retain(|key, _| self.follows(key.0, key.1));
            self.regions = regions;
        }
    }
}

/// Returns the runs of slots for which a condition holds.
fn runs<T>(slots: &[T], holds: impl Fn(&T) -> bool) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (at, _) in slots.iter().enumerate().filter(|(_, slot)| holds(slot)) {
        match runs.last_mut() {
            Some(run) if run.end == at => run.end = at + 1,
            _ => runs.push(at..at + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    const K: u64 = 1 << 10;
    const M: u64 = 1 << 20;

    /// The price in seconds where a request takes 30 ms and a connection has 75 MB/s.
    fn price(requests: f64, unread: f64, _block: u64) -> f64 {
        requests * 0.030 + unread / 75e6
    }

    #[test]
    fn scans_pay_for_large_blocks() {
        let mut ghosts = Ghosts::new(1 << 30);
        for at in 0..256 {
            let kind = if at == 0 { ReadKind::Start } else { ReadKind::Run };
            ghosts.read(1, 1, 64 * M, &[(kind, at * 128 * K..(at + 1) * 128 * K)]);
        }
        assert_eq!(ghosts.best(1, ReadKind::Run, price), Some(16 * M));
        assert_eq!(ghosts.best(1, ReadKind::Jump, price), None);
        // Another prefix begins with what all have in common.
        assert_eq!(ghosts.best(2, ReadKind::Run, price), Some(16 * M));
    }

    #[test]
    fn scattered_reads_fetch_exactly() {
        let mut ghosts = Ghosts::new(1 << 30);
        let mut random = SmallRng::seed_from_u64(1);
        for _ in 0..2000 {
            let at = random.random_range(0..(64u64 << 30) / UNIT) * UNIT;
            ghosts.read(1, 1, 64 << 30, &[(ReadKind::Jump, at..at + UNIT)]);
        }
        assert_eq!(ghosts.best(1, ReadKind::Jump, price), Some(UNIT));
        assert!(ghosts.regions.len() <= MOST_REGIONS);
    }

    #[test]
    fn dense_reads_of_a_small_object_pay_for_large_blocks() {
        let mut ghosts = Ghosts::new(1 << 30);
        let mut random = SmallRng::seed_from_u64(1);
        for _ in 0..500 {
            let at = random.random_range(0..32 * M / UNIT) * UNIT;
            ghosts.read(1, 1, 32 * M, &[(ReadKind::Jump, at..at + UNIT)]);
        }
        assert!(ghosts.best(1, ReadKind::Jump, price) >= Some(M));
    }

    #[test]
    fn blocks_that_the_cache_would_evict_save_nothing() {
        // Each block is read again, elsewhere, after 256 others of 1 MiB.
        for (capacity, pays) in [(16 * M, false), (4 << 30, true)] {
            let mut ghosts = Ghosts::new(capacity);
            for round in 0..64 {
                for block in 0..256 {
                    let at = block * M + round * 4 * UNIT;
                    ghosts.read(1, 1, 256 * M, &[(ReadKind::Jump, at..at + UNIT)]);
                }
            }
            let best = ghosts.best(1, ReadKind::Jump, price).unwrap();
            assert_eq!(best >= M, pays, "capacity {capacity}: {best}");
        }
    }

    #[test]
    fn a_call_waits_once_whatever_it_misses() {
        let mut ghosts = Ghosts::new(1 << 30);
        for at in 0..64 {
            let ranges = [0, 1, 2].map(|part| {
                let start = (at * 4 + part) * M;
                (ReadKind::Jump, start..start + 256 * K)
            });
            ghosts.read(1, 1, 256 * M, &ranges);
        }
        let of = |block: u64| {
            let size = BLOCKS.iter().position(|size| *size == block).unwrap();
            ghosts.all.costs[ReadKind::Jump as usize][size]
        };
        // A block of 4 MiB has one call, and one of 16 MiB four. Ageing leaves their ratio.
        for (block, calls) in [(256 * K, 1.0), (M, 1.0), (4 * M, 1.0), (16 * M, 4.0)] {
            let cost = of(block);
            assert!((cost.served / cost.requests / calls - 1.0).abs() < 0.1, "{block}: {cost:?}");
        }
        // A request costs as much as 2.25 MB, and the unread bytes of 4 MiB are more.
        assert_eq!(ghosts.best(1, ReadKind::Jump, price), Some(UNIT));
    }

    #[test]
    fn nothing_is_known_of_runs_that_come_only_with_other_ranges() {
        let mut ghosts = Ghosts::new(1 << 30);
        for at in 0..64 {
            let (jump, run) = ((at * 2 + 1) * 32 * M, at * 64 * M);
            let ranges = [(ReadKind::Jump, jump..jump + UNIT), (ReadKind::Run, run..run + UNIT)];
            ghosts.read(1, 1, 8 << 30, &ranges);
        }
        assert!(ghosts.all.firsts[ReadKind::Run as usize] >= ENOUGH);
        assert_eq!(ghosts.best(1, ReadKind::Run, price), None);
        assert_eq!(ghosts.best(1, ReadKind::Jump, price), Some(UNIT));
    }

    #[test]
    fn stamps_wear_off() {
        assert!(!is_there(0, 1));
        assert!(is_there(1, 1) && is_there(1, 257) && !is_there(1, 258));
        assert!(is_there(STAMPS as u16, 3) && !is_there(STAMPS as u16, 300));
    }
}
