//! FussyCache tuned by measurements: the threshold of popularity, and the mode.
//!
//! *Popular*: fetching a block costs a read below and an insertion ([`Prices`]), and it displaces
//! another. The value of the displaced block is counted, not guessed: the accesses to evicted
//! blocks while the table remembers them. A block whose own accesses in that time are worth no less
//! than both together is popular.
//!
//! *Fussy or plain*: what either would have saved is known at every check ([`Miniatures`]), and so
//! it is for being twice as fussy, since what displaces little one by one may be too much together.
//! The ways that the cache is not run in run up accounts, never below zero, of what they would have
//! saved more; when one exceeds what a change costs, the change is made. So little is lost in the
//! worse way before it is left, however small the difference, and a difference of nothing but noise
//! changes nothing: each change doubles what the next one has to be worth, and time without one
//! halves it again.

use super::UNIT;
use super::{Metadata, POPULARITY_MAX};
use crate::admission::{Fetch, Times, Window};
use crate::ghosts::{Ghosts, Tag};
use crate::{Access, Direction, mix};

/// The cost of a change: a best hit for each so many entries. The next way also serves from entries
/// that the last one left, so a change costs much less than filling the cache.
const ENTRIES_PER_HIT: f64 = 16.0;
/// The highest worth that is asked of a change, as a multiple of its cost.
const DOUBT_MAX: f64 = 16.0;
/// Lookups per entry without a change after which the next one has to be worth half as much.
const CALM: f64 = 8.0;

/// Observations of an interval between checks.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Seen {
    pub(super) lookups: u64,
    pub(super) evicted: u64,
    /// Accesses of blocks that had left the cache.
    pub(super) returns: u64,
}

/// Decides by measured times.
#[derive(Debug, Clone)]
pub(super) struct Tuning {
    prices: Prices,
    miniatures: Miniatures,
    /// Entries of the cache, and blocks of its table.
    entries: usize,
    blocks: usize,
    evicted: f64,
    returns: f64,
    /// Accesses from which a block is popular, at least.
    threshold: usize,
    /// The way it is run in: 0 is plain, and as much as it asks of the popular the others are
    /// fussy.
    way: usize,
    /// The additional saving of each way, in best hits.
    accounts: [f64; WAYS],
    /// The factor by which the worth of a change has to exceed its cost.
    doubt: f64,
    /// Lookups since the last change, or since doubt was halved.
    calm: u64,
}

impl Tuning {
    /// An empty value without room.
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

    /// Makes room for a cache of so many entries with a table of so many blocks.
    pub(super) fn reserve(&mut self, entries: usize, blocks: usize) {
        (self.entries, self.blocks) = (self.entries.max(entries), self.blocks.max(blocks));
        self.miniatures.reserve(self.entries, self.blocks);
    }

    /// Takes in what was measured; `is_full` is whether the cache evicts.
    pub(super) fn learn(&mut self, window: &Window, is_full: bool) {
        self.prices.learn(window);
        let held = window.entries as usize;
        if is_full && (1..self.entries).contains(&held) {
            self.miniatures.resize(held);
        }
    }

    /// Returns the count of an access in the table.
    pub(super) fn count(&self, access: &Access) -> u16 {
        self.prices.count(access)
    }

    /// Takes in an access, whether it hit or not. `all` is whether everything comes in, whatever
    /// the mode.
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

    /// Accesses from which a block is popular, after an interval; `untold` while nothing was
    /// measured.
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

    /// Returns the threshold of popularity of one of the fussy ways.
    fn stricter(&self, way: usize) -> usize {
        (self.threshold * way).clamp(1, POPULARITY_MAX)
    }

    /// Decides how to go on after an interval, of which the threshold is known.
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

/// Entries of a list at most; of larger caches a sample is looked at.
const ENTRIES_MAX: usize = 1 << 13;

/// An LRU list of blocks without data.
#[derive(Debug, Clone)]
struct Line {
    order: Ghosts<1, Fetch>,
    entries_max: usize,
    /// Total savings, in best hits.
    saved: f64,
}

impl Line {
    fn new(name: &'static str) -> Self {
        Self { order: Ghosts::named([name]), entries_max: 0, saved: 0.0 }
    }

    /// Takes a block to the head and says whether it was there.
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

/// The worth of an access; see [`Prices`](Prices).
#[derive(Debug, Clone, Copy)]
pub(super) struct Worth {
    /// A hit.
    pub(super) hit: f64,
    /// Coming in after a miss, beside the cost of that.
    pub(super) admission: f64,
    /// An insertion.
    pub(super) insertion: f64,
    /// An access, in the table.
    pub(super) count: u16,
}

/// A way to be fussy: what is held, and what is counted.
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

/// Plain LRU first, and then the ways to be fussy.
pub(super) const WAYS: usize = 3;
const CHOOSY: usize = WAYS - 1;

/// All ways.
///
/// Plain LRU and two ways to be fussy, side by side in miniature: what each would have saved.
///
/// A cache shows only the effect of its present mode, and the content that one mode leaves serves
/// the next for as long as it takes to fill it anew. So modes cannot take turns, as a
/// [`Trial`](crate::trial::Trial) would have them. Instead an LRU list of every mode is kept beside
/// the cache, without data, and of one hash in so many where the cache is large (Waldspurger et
/// al., "Cache Modeling and Optimization using Miniature Simulations", ATC '17). A mode saves the
/// cost of its hits and of the writes that it lets in, less that of its insertions.
#[derive(Debug, Clone)]
pub(super) struct Miniatures {
    /// Hashes are looked at whose lowest bits are zero: so many.
    bits: u32,
    plain: Line,
    fussy: [Choosy; CHOOSY],
    popular: Vec<Fetch>,
}

impl Miniatures {
    /// An empty value without room.
    pub(super) fn new() -> Self {
        Self {
            bits: 0,
            plain: Line::new("plain in miniature"),
            fussy: std::array::from_fn(|_| Choosy::new()),
            popular: Vec::new(),
        }
    }

    /// Makes room for caches of so many entries with tables of so many blocks.
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

    /// Takes in how many entries the cache holds now that it is full, where that is fewer than
    /// there is room for.
    pub(super) fn resize(&mut self, entries: usize) {
        let entries_max = self.sampled(entries);
        self.lines().for_each(|line| line.entries_max = entries_max);
    }

    /// Serves an access in every way. `all` is whether everything comes in, as while it warms up.
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

    /// Fetches what each way to be fussy holds for popular, from so many accesses on, and says what
    /// every way saved since the last time.
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

/// Prices in best hits, as of the times measured last.
///
/// Savings of hits and costs of fetches, from measured times.
///
/// All of it in *best hits*: what a hit saves of the direction in which it saves more. So a read
/// above a device that writes four times as slowly as it reads is worth a quarter.
#[derive(Debug, Clone, Default)]
pub(super) struct Prices {
    times: Times,
    /// Clients do not wait for the device below with a write that comes in.
    puts_writes_off: bool,
}

impl Prices {
    /// Takes in what was measured; what was not stays as it is known.
    pub(super) fn learn(&mut self, window: &Window) {
        let (known, new) = (&mut self.times, &window.times);
        self.puts_writes_off = window.puts_writes_off;
        known.hit_ns = new.hit_ns.or(known.hit_ns);
        known.backing_read_ns = new.backing_read_ns.or(known.backing_read_ns);
        known.backing_write_ns = new.backing_write_ns.or(known.backing_write_ns);
        known.insert_ns = new.insert_ns.or(known.insert_ns);
    }

    /// Returns the nanoseconds that a read hit and a write hit save. A direction that was not
    /// measured is taken to be like the other; `None` before anything was.
    fn saved_ns(&self) -> Option<[f64; 2]> {
        let hit = self.times.hit_ns?;
        let (read, write) = (self.times.backing_read_ns, self.times.backing_write_ns);
        let below = [read.or(write)?, write.or(read)?];
        Some(below.map(|below| (below - hit).max(0.0)))
    }

    /// Nanoseconds of a best hit; `None` while that is not known, or nothing.
    fn best_ns(&self) -> Option<f64> {
        let [read, write] = self.saved_ns()?;
        Some(read.max(write)).filter(|&best| best > 0.0)
    }

    /// Returns the worth of a hit of this access: from 0 to 1, and 1 while nothing is known.
    pub(super) fn hit(&self, access: &Access) -> f64 {
        let Some([read, write]) = self.saved_ns() else { return 1.0 };
        let saved = if access.direction == Direction::Read { read } else { write };
        self.best_ns().map_or(0.0, |best| saved / best)
    }

    /// Returns what it saves that this access comes in after a miss, but for the cost of its
    /// insertion: a write does not wait for the device below then, if writes are put off.
    pub(super) fn admission(&self, access: &Access) -> f64 {
        if access.direction == Direction::Read || !self.puts_writes_off {
            return 0.0;
        }
        let below = self.times.backing_write_ns.or(self.times.backing_read_ns);
        below.zip(self.best_ns()).map_or(0.0, |(below, best)| below / best)
    }

    /// Returns the count of this access in the table.
    pub(super) fn count(&self, access: &Access) -> u16 {
        (self.hit(access) * f64::from(UNIT)).round() as u16
    }

    /// Returns the cost of inserting a block. Where hits save nothing it is a loss all the same.
    pub(super) fn insertion(&self) -> f64 {
        let is_useless = self.saved_ns().is_some() && self.best_ns().is_none();
        let measured =
            self.best_ns().map_or(0.0, |best| self.times.insert_ns.unwrap_or(0.0) / best);
        if is_useless { 1.0 } else { measured }
    }

    /// Returns the cost of a fetch with its insertion; `None` while it is unknown.
    pub(super) fn fetch(&self) -> Option<f64> {
        let read = self.times.backing_read_ns.or(self.times.backing_write_ns)?;
        Some(read / self.best_ns()? + self.insertion())
    }
}
