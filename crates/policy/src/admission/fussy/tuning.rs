//! FussyCache tuned by measurements: the popularity threshold, and the choice between the fussy
//! modes and plain LRU.
//!
//! *Threshold*: fetching a block costs a read from the device below and an insertion ([`Prices`]),
//! and it displaces another block. The value of the displaced block is measured: it is the number
//! of accesses to evicted blocks while the table remembers them. A block is popular if its own
//! accesses in that time are worth at least the cost of the fetch and the displaced block together.
//!
//! *Mode*: there are three modes: plain LRU, fussy, and twice as fussy, because displaced blocks
//! that are worth little one by one may be worth much together. [`Miniatures`] knows at every check
//! how much each mode would have saved. Each inactive mode has an account, never below zero, of how
//! much more it would have saved than the active one. When an account exceeds the cost of a change,
//! the cache changes to that mode. So little is lost in the worse mode before it is left, however
//! small the difference, and noise changes nothing: each change doubles the saving that the next
//! one needs, and time without a change halves it again.

use super::UNIT;
use super::{Metadata, POPULARITY_MAX};
use crate::admission::{Fetch, Times, Window};
use crate::ghosts::{Ghosts, Tag};
use crate::{Access, Direction, mix};

/// Divisor of the cache's entries: a mode change costs one best hit per this many entries. The new
/// mode also serves hits from entries that the last one left, so a change costs much less than
/// filling the cache.
const ENTRIES_PER_HIT: f64 = 16.0;
/// Upper limit of `doubt`, the factor by which a mode change has to be worth more than its cost.
const DOUBT_MAX: f64 = 16.0;
/// Number of lookups per cache entry without a mode change after which `doubt` is halved.
const CALM: f64 = 8.0;

/// Counts of the interval between two checks.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Seen {
    pub(super) lookups: u64,
    pub(super) evicted: u64,
    /// Accesses to blocks that had been evicted from the cache.
    pub(super) returns: u64,
}

/// Sets the popularity threshold and the mode from measured times and counts.
#[derive(Debug, Clone)]
pub(super) struct Tuning {
    prices: Prices,
    miniatures: Miniatures,
    /// Entries that fit into the cache.
    entries: usize,
    blocks: usize,
    evicted: f64,
    returns: f64,
    /// Accesses that make a block popular in the least fussy mode.
    threshold: usize,
    /// The active mode: 0 is plain LRU; mode `n` above 0 is fussy and multiplies the threshold by
    /// `n`.
    way: usize,
    /// Savings that each mode would have had beyond those of the active one, in best hits.
    accounts: [f64; WAYS],
    /// Factor by which the saving of a mode change has to exceed its cost.
    doubt: f64,
    /// Lookups since the last mode change, or since `doubt` was last halved.
    calm: u64,
}

impl Tuning {
    pub(super) fn new() -> Self {
        Self {
            prices: Prices::default(),
            miniatures: Miniatures::new(),
            entries: 0,
            blocks: 0,
            evicted: 0.0,
            returns: 0.0,
            threshold: POPULARITY_MAX,
            way: 0,
            accounts: [0.0; WAYS],
            doubt: 1.0,
            calm: 0,
        }
    }

    /// Allocates for a cache of `entries` with a table of `blocks`.
    pub(super) fn reserve(&mut self, entries: usize, blocks: usize) {
        (self.entries, self.blocks) = (self.entries.max(entries), self.blocks.max(blocks));
        self.miniatures.reserve(self.entries, self.blocks);
    }

    /// Updates prices from the measurements of a window. `is_full` says that the cache evicts, so
    /// that its number of entries is its real size.
    pub(super) fn learn(&mut self, window: &Window, is_full: bool) {
        self.prices.learn(window);
        let held = window.entries as usize;
        if is_full && (1..self.entries).contains(&held) {
            self.miniatures.resize(held);
        }
    }

    /// Returns the popularity that one access adds in the table.
    pub(super) fn count(&self, access: &Access) -> u16 {
        self.prices.count(access)
    }

    /// Counts an access, hit or miss, in the miniatures of all modes. With `all`, every miss is
    /// admitted whatever the mode.
    pub(super) fn serve(&mut self, access: &Access, all: bool) {
        let Self { prices, miniatures, .. } = self;
        let worth = Worth {
            hit: prices.hit(access),
            admission: prices.admission(access),
            insertion: prices.insertion(),
            count: prices.count(access),
        };
        miniatures.serve(access, worth, all);
    }

    /// Returns whether only popular blocks are admitted.
    pub(super) fn is_fussy(&self) -> bool {
        self.way > 0
    }

    /// Returns the popularity threshold after an interval, in accesses; `untold` while no times
    /// were measured.
    pub(super) fn threshold(&mut self, seen: Seen, untold: usize) -> usize {
        // Evictions more than a table's length ago say nothing of the present.
        let kept = (-(seen.evicted as f64) / self.blocks.max(1) as f64).exp2();
        self.evicted = self.evicted * kept + seen.evicted as f64;
        self.returns = self.returns * kept + seen.returns as f64;
        let displaced = if self.evicted > 0.0 { self.returns / self.evicted } else { 0.0 };
        let fetch = self.prices.fetch();
        self.threshold = fetch.map_or(untold, |fetch| (fetch + displaced).ceil() as usize);
        self.stricter(self.way.max(1))
    }

    /// Returns the popularity threshold of the fussy mode `way`, in accesses.
    fn stricter(&self, way: usize) -> usize {
        (self.threshold * way).clamp(1, POPULARITY_MAX)
    }

    /// Chooses the mode for the next interval. The threshold must have been updated before.
    pub(super) fn judge(&mut self, seen: Seen) {
        let thresholds = std::array::from_fn(|way| self.stricter(way + 1));
        let saved = self.miniatures.check(thresholds, self.prices.insertion());
        let mut best = self.way;
        for (way, account) in self.accounts.iter_mut().enumerate() {
            *account = (*account + saved[way] - saved[self.way]).max(0.0);
        }
        for (way, account) in self.accounts.iter().enumerate() {
            if *account > self.accounts[best] {
                best = way;
            }
        }
        let cost = (self.entries as f64 / ENTRIES_PER_HIT).max(1.0);
        if self.accounts[best] > cost * self.doubt {
            (self.way, self.accounts) = (best, [0.0; WAYS]);
            self.doubt = (self.doubt * 2.0).min(DOUBT_MAX);
            self.calm = 0;
            return;
        }
        self.calm += seen.lookups;
        if self.calm as f64 > self.entries as f64 * CALM * self.doubt {
            self.doubt = (self.doubt / 2.0).max(1.0);
            self.calm = 0;
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.miniatures.memory_bytes()
    }
}

/// Maximum number of entries of a miniature LRU list; larger caches are sampled.
const ENTRIES_MAX: usize = 1 << 13;

/// An LRU list of blocks without data.
#[derive(Debug, Clone)]
struct Line {
    order: Ghosts<1, Fetch>,
    entries_max: usize,
    /// Total savings of the list's mode, in best hits.
    saved: f64,
}

impl Line {
    fn new(name: &'static str) -> Self {
        Self { order: Ghosts::named([name]), entries_max: 0, saved: 0.0 }
    }

    /// Moves a block to the head and returns whether it was in the list.
    fn promote(&mut self, access: &Access) -> bool {
        let tag = Tag::of(access.hash);
        let Some((_, block)) = self.order.take_note(tag) else { return false };
        self.order.push(0, tag, block);
        true
    }

    fn insert(&mut self, block: Fetch, mut leaves: impl FnMut(Fetch)) {
        self.shrink(self.entries_max.saturating_sub(1), &mut leaves);
        self.order.push(0, Tag::of(block.hash), block);
    }

    fn shrink(&mut self, entries: usize, mut leaves: impl FnMut(Fetch)) {
        while self.order.len(0) > entries {
            let Some(oldest) = self.order.pop_oldest(0) else { return };
            leaves(oldest);
        }
    }
}

/// Worth of an access by its outcome, in best hits; see [`Prices`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Worth {
    /// Time saved by a hit.
    pub(super) hit: f64,
    /// Time saved by an admission after a miss, without the cost of the insertion.
    pub(super) admission: f64,
    /// Cost of an insertion.
    pub(super) insertion: f64,
    /// Popularity that the access adds in the table, in units of [`UNIT`].
    pub(super) count: u16,
}

/// A fussy mode in miniature: its LRU list, and the counts of the blocks outside.
#[derive(Debug, Clone)]
struct Choosy {
    line: Line,
    table: Metadata,
}

impl Choosy {
    fn new() -> Self {
        Self { line: Line::new("fussy in miniature"), table: Metadata::default() }
    }

    fn insert(&mut self, block: Fetch, cost: f64) {
        let Self { line, table } = self;
        line.insert(block, |oldest| table.put_back(&access_to(oldest)));
        line.saved -= cost;
    }
}

/// Number of modes: plain LRU first, then the fussy modes.
pub(super) const WAYS: usize = 3;
const CHOOSY: usize = WAYS - 1;

/// Miniature simulations of plain LRU and two fussy modes, which measure what each would have
/// saved.
///
/// A real cache shows only the effect of its present mode, and the content that one mode leaves
/// serves the next until the cache is filled anew. So modes cannot take turns as in a
/// [`Trial`](crate::trial::Trial). Instead an LRU list without data is kept for every mode; for
/// large caches it sees a sample of the hashes (Waldspurger et al., "Cache Modeling and
/// Optimization using Miniature Simulations", ATC '17). A mode saves the cost of its hits and of
/// the writes that it admits, less that of its insertions.
#[derive(Debug, Clone)]
pub(super) struct Miniatures {
    /// Sampling rate as a power of two: a hash is sampled if its lowest `bits` bits are zero.
    bits: u32,
    plain: Line,
    fussy: [Choosy; CHOOSY],
    popular: Vec<Fetch>,
}

impl Miniatures {
    pub(super) fn new() -> Self {
        Self {
            bits: 0,
            plain: Line::new("plain in miniature"),
            fussy: std::array::from_fn(|_| Choosy::new()),
            popular: Vec::new(),
        }
    }

    /// Allocates for caches of `entries` with tables of `blocks`.
    pub(super) fn reserve(&mut self, entries: usize, blocks: usize) {
        while entries >> self.bits > ENTRIES_MAX {
            self.bits += 1;
        }
        let (entries_max, blocks) = (self.sampled(entries), self.sampled(blocks));
        for line in self.lines() {
            line.order.reserve(entries_max);
            line.entries_max = entries_max;
        }
        self.fussy.iter_mut().for_each(|fussy| fussy.table.reserve(blocks));
        self.popular.reserve(blocks);
    }

    fn lines(&mut self) -> impl Iterator<Item = &mut Line> {
        [&mut self.plain].into_iter().chain(self.fussy.iter_mut().map(|fussy| &mut fussy.line))
    }

    fn sampled(&self, count: usize) -> usize {
        (count >> self.bits).max(1)
    }

    /// Sets the size of all simulated caches to `entries`, the number that the full cache holds. It
    /// may be below the reserved size.
    pub(super) fn resize(&mut self, entries: usize) {
        let entries_max = self.sampled(entries);
        self.lines().for_each(|line| line.entries_max = entries_max);
    }

    /// Simulates an access in every mode. With `all`, every miss is admitted, as during warm-up.
    pub(super) fn serve(&mut self, access: &Access, worth: Worth, all: bool) {
        if mix(access.hash).trailing_zeros() < self.bits {
            return;
        }
        let block = Fetch { hash: access.hash, position: access.position };
        if self.plain.promote(access) {
            self.plain.saved += worth.hit;
        } else {
            self.plain.insert(block, |_| {});
            self.plain.saved += worth.admission - worth.insertion;
        }
        for fussy in &mut self.fussy {
            if fussy.line.promote(access) {
                fussy.line.saved += worth.hit;
            } else if all {
                fussy.insert(block, worth.insertion - worth.admission);
            } else {
                fussy.table.count(access, worth.count);
            }
        }
    }

    /// Inserts the popular blocks of each fussy mode, by its threshold in accesses. Returns the
    /// savings of every mode since the last check.
    pub(super) fn check(&mut self, thresholds: [usize; CHOOSY], insertion: f64) -> [f64; WAYS] {
        let Self { fussy, popular, .. } = self;
        for (fussy, threshold) in fussy.iter_mut().zip(thresholds) {
            popular.clear();
            fussy.table.take_popular(threshold, popular);
            popular.iter().for_each(|&block| fussy.insert(block, insertion));
        }
        let scale = f64::from(1 << self.bits);
        let mut saved = [0.0; WAYS];
        for (saved, line) in saved.iter_mut().zip(self.lines()) {
            *saved = std::mem::take(&mut line.saved) * scale;
        }
        saved
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let of_fussy =
            |fussy: &Choosy| fussy.line.order.memory_bytes() + fussy.table.memory_bytes();
        self.plain.order.memory_bytes()
            + self.fussy.iter().map(of_fussy).sum::<usize>()
            + self.popular.capacity() * size_of::<Fetch>()
    }
}

fn access_to(block: Fetch) -> Access {
    Access { position: block.position, ..Access::new(block.hash) }
}

/// Savings of hits and costs of fetches in best hits, from the times measured last.
///
/// A *best hit* is the saving of a hit in the direction, read or write, in which a hit saves more.
/// So if the device below writes four times as slowly as it reads, a read hit is worth a quarter.
#[derive(Debug, Clone, Default)]
pub(super) struct Prices {
    times: Times,
    /// True if an admitted write is answered before the device below has it (write-back).
    puts_writes_off: bool,
}

impl Prices {
    /// Updates the times from a window; those that it did not measure stay.
    pub(super) fn learn(&mut self, window: &Window) {
        let (known, new) = (&mut self.times, &window.times);
        self.puts_writes_off = window.puts_writes_off;
        known.hit_ns = new.hit_ns.or(known.hit_ns);
        known.backing_read_ns = new.backing_read_ns.or(known.backing_read_ns);
        known.backing_write_ns = new.backing_write_ns.or(known.backing_write_ns);
        known.insert_ns = new.insert_ns.or(known.insert_ns);
    }

    /// Returns the nanoseconds that a read hit and a write hit save. A direction that was not
    /// measured is assumed equal to the other; `None` before any measurement.
    fn saved_ns(&self) -> Option<[f64; 2]> {
        let hit = self.times.hit_ns?;
        let (read, write) = (self.times.backing_read_ns, self.times.backing_write_ns);
        let below = [read.or(write)?, write.or(read)?];
        Some(below.map(|below| (below - hit).max(0.0)))
    }

    /// Returns the nanoseconds that a best hit saves; `None` while unknown or zero.
    fn best_ns(&self) -> Option<f64> {
        let [read, write] = self.saved_ns()?;
        Some(read.max(write)).filter(|&best| best > 0.0)
    }

    /// Returns the worth of a hit on this access: from 0 to 1, and 1 before any measurement.
    pub(super) fn hit(&self, access: &Access) -> f64 {
        let Some([read, write]) = self.saved_ns() else { return 1.0 };
        let saved = if access.direction == Direction::Read { read } else { write };
        self.best_ns().map_or(0.0, |best| saved / best)
    }

    /// Returns the saving of admitting this access after a miss, without the cost of its insertion.
    /// Only writes save something, and only with write-back: they do not wait for the device below.
    pub(super) fn admission(&self, access: &Access) -> f64 {
        if access.direction == Direction::Read || !self.puts_writes_off {
            return 0.0;
        }
        let below = self.times.backing_write_ns.or(self.times.backing_read_ns);
        below.zip(self.best_ns()).map_or(0.0, |(below, best)| below / best)
    }

    /// Returns the popularity that this access adds in the table.
    pub(super) fn count(&self, access: &Access) -> u16 {
        (self.hit(access) * f64::from(UNIT)).round() as u16
    }

    /// Returns the cost of inserting a block; 1 where hits are known to save nothing, so that
    /// insertions are a loss.
    pub(super) fn insertion(&self) -> f64 {
        let is_useless = self.saved_ns().is_some() && self.best_ns().is_none();
        let measured =
            self.best_ns().map_or(0.0, |best| self.times.insert_ns.unwrap_or(0.0) / best);
        if is_useless { 1.0 } else { measured }
    }

    /// Returns the cost of fetching and inserting a block; `None` while unknown.
    pub(super) fn fetch(&self) -> Option<f64> {
        let read = self.times.backing_read_ns.or(self.times.backing_write_ns)?;
        Some(read / self.best_ns()? + self.insertion())
    }
}
