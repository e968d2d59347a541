//! FussyCache: admits only blocks that have proved popular, and admits everything while plain LRU
//! does better.
//!
//! Blocks that are not cached are counted in a table without data ([`Metadata`]). Until a block was
//! accessed `popular` times, it is served from the device below. Everything else happens at
//! *checks*, every `check` requests, off the path of a request. *Identification* orders the blocks
//! that have become popular to be fetched. *Cache change* compares the hit ratio of the interval
//! with that of the one before. If the ratio has fallen `patience` times in a row, the cache
//! becomes plain: every miss is admitted, while the counting goes on. The cache becomes fussy again
//! when more than half of the table is popular, or after `patience` checks; each change doubles the
//! patience ("FussyCache", sections III and IV.A; the defaults are the paper's).
//!
//! The text is followed where the printed algorithm differs from it: ratios are of intervals, not
//! since the start; it is a *fall* that counts; a block is popular at the threshold; checks go on
//! in the plain mode. The text's third way back, the hit ratio having risen `patience` times in a
//! row, can never come before `patience` checks have passed, so it needs no code. Two points that
//! the text leaves open are decided here. A block that returns from the cache to the table counts
//! one access. The table is sized for the misses of the warm-up, times `popular`, so that a block
//! which returns as rarely as once in a warm-up has the time to become popular.
//!
//! With `tune=1`, which is recommended, the threshold follows from measured times and counts, and
//! reads and writes count by the saving of a hit of each. The cache starts plain, and the mode
//! follows from the savings that either would have had (`tuning`). With write-back, an admitted
//! write saves its wait for the device below. Checks then come after a number of block lookups. The
//! hit ratio changes nothing, and `patience` and `popular` matter only where no times are measured.
//!
//! The eviction order is LRU in the paper. With `tune=1` it may be `arc`, with which it kept up
//! with the better of LRU and ARC on more loads (`docs/results/admission.md`). Do not use the
//! published form above devices so slow that every hit counts: a block's first accesses all miss.

use super::{Admission, Fetch, Needs, Orders, RegisteredAdmission, Room, Verdict, Victim, Window};
use crate::ghosts::{Index, Tag};
use crate::{Access, Lists, Parameter, Parameters, PolicyInfo, Slot, Tick};
use tuning::{Seen, Tuning};

mod tuning;

/// Phase of the cache, which decides what is admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Every miss is admitted until the cache is full; the table is not needed yet.
    WarmUp,
    /// Only popular blocks are admitted.
    Fussy,
    /// Every miss is admitted.
    Plain,
}

/// Counts of the interval since the last check.
#[derive(Debug, Clone, Copy, Default)]
struct Interval {
    requests: u64,
    /// Blocks looked up; `hits` counts those found.
    lookups: u64,
    hits: u64,
    /// Blocks counted for the first time: the table did not know them.
    unknown: u64,
    evicted: u64,
}

/// FussyCache (`fussy`): admits blocks that were accessed often enough to be popular.
#[derive(Debug, Clone)]
pub struct Fussy {
    table: Metadata,
    mode: Mode,
    /// Accesses that make a block popular.
    threshold: usize,
    popular: usize,
    check_requests: u64,
    warm_up_requests: u64,
    table_share: f64,
    /// The tuning by measurements, with `tune=1`.
    tuning: Option<Box<Tuning>>,
    /// Checks in a row after which the mode changes.
    patience: u64,
    now: Interval,
    hit_ratio: Option<f64>,
    /// In fussy mode, checks in a row at which the hit ratio had fallen; in plain mode, checks
    /// since the mode change.
    checks: u64,
}

impl Fussy {
    /// Returns whether every miss is admitted: during warm-up, and in plain mode.
    pub fn admits_all(&self) -> bool {
        self.mode != Mode::Fussy
    }

    /// Returns the number of accesses that make a block popular: `popular`, or the tuned threshold.
    pub fn threshold(&self) -> usize {
        self.threshold
    }

    /// Returns the number of checks in a row after which the mode changes next.
    pub fn patience(&self) -> u64 {
        self.patience
    }

    fn change(&mut self, mode: Mode) {
        self.mode = mode;
        self.patience = self.patience.saturating_mul(2);
        self.hit_ratio = None;
        self.checks = 0;
    }

    /// Orders popular blocks to be fetched and changes the mode if the hit ratio asks for it.
    fn check(&mut self, orders: &mut Orders) {
        let interval = std::mem::take(&mut self.now);
        if self.tuning.is_some() {
            return self.check_tuned(interval, orders);
        }
        match self.mode {
            Mode::WarmUp => {
                let wanted = interval.unknown.saturating_mul(self.popular as u64);
                self.table.limit(usize::try_from(wanted).unwrap_or(usize::MAX));
                self.mode = Mode::Fussy;
            }
            Mode::Fussy => {
                self.table.take_popular(self.threshold, &mut orders.fetch);
                let hit_ratio = interval.hits as f64 / interval.lookups.max(1) as f64;
                let has_fallen = self.hit_ratio.is_some_and(|before| hit_ratio < before);
                self.checks = if has_fallen { self.checks + 1 } else { 0 };
                self.hit_ratio = Some(hit_ratio);
                if self.checks >= self.patience {
                    self.change(Mode::Plain);
                }
            }
            Mode::Plain => {
                self.checks += 1;
                let most_are_popular = self.table.popular(self.threshold) * 2 > self.table.len();
                if most_are_popular || self.checks >= self.patience {
                    self.change(Mode::Fussy);
                }
            }
        }
    }

    /// Runs the check with `tune=1`, which begins in plain mode and with the whole table.
    fn check_tuned(&mut self, interval: Interval, orders: &mut Orders) {
        let Some(tuning) = &mut self.tuning else { return };
        let Interval { lookups, evicted, .. } = interval;
        let seen = Seen { lookups, evicted, returns: self.table.take_returns() };
        self.threshold = tuning.threshold(seen, self.popular);
        if self.mode == Mode::Fussy {
            self.table.take_popular(self.threshold, &mut orders.fetch);
        }
        tuning.judge(seen);
        self.mode = if tuning.is_fussy() { Mode::Fussy } else { Mode::Plain };
    }
}

impl RegisteredAdmission for Fussy {
    const INFO: PolicyInfo = PolicyInfo::new(
        "fussy",
        "admits only popular blocks, and fetches them later; admits everything while that does \
         worse than LRU",
        "FussyCache",
    )
    .with(&[
        Parameter::count(
            "popular",
            4,
            1..=POPULARITY_MAX as u64,
            "accesses that make a block popular",
        ),
        Parameter::count("check", 200, 1..=1 << 32, "requests between checks"),
        Parameter::count(
            "patience",
            5,
            1..=1 << 32,
            "checks with a falling hit ratio until everything is admitted",
        ),
        Parameter::count("warm-up", 2000, 1..=1 << 32, "first requests, all of which are admitted"),
        Parameter {
            name: "metadata",
            default: 4.0,
            min: 0.0,
            max: 64.0,
            whole: false,
            names: &[],
            about: "most blocks counted, per entry of the cache",
        },
        Parameter::count(
            "tune",
            0,
            0..=1,
            "whether measured times decide; popular and patience then have no effect",
        ),
    ]);

    fn with(parameters: &Parameters) -> Self {
        let popular = parameters.count("popular") as usize;
        Self {
            table: Metadata::default(),
            mode: Mode::WarmUp,
            threshold: popular,
            popular,
            check_requests: parameters.count("check"),
            warm_up_requests: parameters.count("warm-up"),
            table_share: parameters.get("metadata"),
            tuning: (parameters.count("tune") == 1).then(|| Box::new(Tuning::new())),
            patience: parameters.count("patience"),
            now: Interval::default(),
            hit_ratio: None,
            checks: 0,
        }
    }
}

impl Admission for Fussy {
    fn needs(&self) -> Needs {
        Needs { fetches: true, ..Needs::default() }
    }

    fn split(&mut self, _: usize, parts: usize) {
        for requests in [&mut self.check_requests, &mut self.warm_up_requests] {
            *requests = requests.div_ceil(parts as u64);
        }
    }

    fn reserve(&mut self, room: &Room) {
        let blocks = ((room.entries as f64 * self.table_share) as usize).max(1);
        self.table.reserve(blocks);
        if let Some(tuning) = &mut self.tuning {
            tuning.reserve(room.entries, blocks);
        }
    }

    fn observe(&mut self, window: &Window) {
        let lookups = window.lookups.blocks;
        // What is tuned weighs lookups, and is late where it waits for many of them.
        let by_requests = window.requests > 0 && self.tuning.is_none();
        self.now.requests += if by_requests { window.requests } else { lookups };
        self.now.lookups += lookups;
        self.now.hits += window.hits.blocks;
        if let Some(tuning) = &mut self.tuning {
            tuning.learn(window, self.now.evicted > 0);
        }
    }

    fn used(&mut self, access: &Access) {
        if let Some(tuning) = &mut self.tuning {
            tuning.serve(access, self.mode == Mode::WarmUp);
        }
    }

    fn judge(&mut self, offer: &Access, _: Option<&Victim>) -> Verdict {
        let by = self.tuning.as_ref().map_or(UNIT, |tuning| tuning.count(offer));
        if let Some(tuning) = &mut self.tuning {
            tuning.serve(offer, self.mode == Mode::WarmUp);
        }
        if self.mode == Mode::WarmUp {
            self.now.unknown += 1;
            return Verdict::Admit;
        }
        self.now.unknown += u64::from(self.table.count(offer, by));
        if self.mode == Mode::Plain { Verdict::Admit } else { Verdict::Bypass }
    }

    fn evicted(&mut self, access: &Access) {
        self.now.evicted += 1;
        self.table.put_back(access);
    }

    fn order(&mut self, _: Tick, orders: &mut Orders) {
        let due =
            if self.mode == Mode::WarmUp { self.warm_up_requests } else { self.check_requests };
        if self.now.requests >= due {
            self.check(orders);
        }
    }

    fn memory_bytes(&self) -> usize {
        let tuned = |tuning: &Tuning| size_of::<Tuning>() + tuning.memory_bytes();
        self.table.memory_bytes() + self.tuning.as_deref().map_or(0, tuned)
    }
}

/// Popularity that one full access adds; partial accesses add less.
pub(crate) const UNIT: u16 = 16;
/// Highest popularity that is distinguished, in accesses.
pub(crate) const POPULARITY_MAX: usize = 31;
const CLASSES: usize = POPULARITY_MAX + 1;

#[derive(Debug, Clone, Copy, Default)]
struct Block {
    hash: u64,
    position: u64,
    popularity: u16,
    /// True if the block was evicted from the cache.
    left: bool,
}

/// Popularity of blocks that are not cached: FussyCache's dynamic metadata cache (DMC).
///
/// Blocks are in one list per popularity, from the latest to the oldest access. When the table is
/// full, the oldest of the least popular blocks makes room. So popular blocks are found without a
/// scan of the whole table, which the paper does at each check.
///
/// Popularity is counted in sixteenths of an access ([`UNIT`]), so that reads and writes may count
/// differently.
#[derive(Debug, Clone)]
pub(crate) struct Metadata {
    /// One list of blocks for each number of whole accesses; the last list also has all higher
    /// counts.
    classes: Lists<CLASSES>,
    blocks: Vec<Block>,
    free: Vec<u32>,
    index: Index,
    /// Maximum number of blocks that are remembered.
    limit: usize,
    returns: u64,
}

impl Default for Metadata {
    fn default() -> Self {
        Self {
            classes: Lists::named(["metadata"; CLASSES]),
            blocks: Vec::new(),
            free: Vec::new(),
            index: Index::default(),
            limit: 0,
            returns: 0,
        }
    }
}

impl Metadata {
    /// Allocates for `count` blocks, all of which may be used until a [`limit`](Self::limit) is
    /// set.
    pub(crate) fn reserve(&mut self, count: usize) {
        let known = self.blocks.len();
        if count > known {
            self.classes.reserve(count);
            self.index.reserve(count);
            self.blocks.resize(count, Block::default());
            self.free.reserve(count);
            self.free.extend((known..count).rev().map(|id| id as u32));
            self.limit = count;
        }
    }

    /// Limits the table to `count` blocks from now on, and to those that were reserved.
    pub(crate) fn limit(&mut self, count: usize) {
        self.limit = count.clamp(1, self.blocks.len().max(1));
        while self.len() > self.limit && self.forget_least() {}
    }

    pub(crate) fn len(&self) -> usize {
        self.classes.len()
    }

    fn class(popularity: u16) -> usize {
        usize::from(popularity / UNIT).min(POPULARITY_MAX)
    }

    /// Adds `by` to the popularity of the accessed block; returns whether the block was new.
    pub(crate) fn count(&mut self, access: &Access, by: u16) -> bool {
        let known = self.index.find(Tag::of(access.hash));
        match known {
            Some(id) => {
                let Block { popularity, left, .. } = self.blocks[id as usize];
                let popularity = popularity.saturating_add(by);
                self.returns += u64::from(left);
                self.blocks[id as usize] =
                    Block { hash: access.hash, position: access.position, popularity, left };
                // Leaving its list first makes it the latest of it.
                self.classes.delink(Slot(id));
                self.classes.push_head(Self::class(popularity), Slot(id));
            }
            None => self.remember(access, by, false),
        }
        known.is_none()
    }

    /// Remembers an evicted block as if it had been accessed once; a block already in the table
    /// keeps its count.
    pub(crate) fn put_back(&mut self, access: &Access) {
        match self.index.find(Tag::of(access.hash)) {
            Some(id) => self.blocks[id as usize].left = true,
            None => self.remember(access, UNIT, true),
        }
    }

    fn remember(&mut self, access: &Access, popularity: u16, left: bool) {
        while self.len() >= self.limit && self.forget_least() {}
        let Some(id) = self.free.pop() else { return };
        self.blocks[id as usize] =
            Block { hash: access.hash, position: access.position, popularity, left };
        self.classes.push_head(Self::class(popularity), Slot(id));
        self.index.insert(Tag::of(access.hash), id);
    }

    /// Forgets the oldest of the least popular blocks; returns false if the table was empty.
    fn forget_least(&mut self) -> bool {
        let Some(least) = (0..CLASSES).find_map(|class| self.classes.tail(class)) else {
            return false;
        };
        self.take(least);
        true
    }

    fn take(&mut self, slot: Slot) -> Block {
        let block = self.blocks[slot.index()];
        self.classes.delink(slot);
        self.index.remove(Tag::of(block.hash));
        self.free.push(slot.0);
        block
    }

    /// Takes out every block accessed `threshold` times or more, the most popular first, and
    /// appends them to `out`.
    pub(crate) fn take_popular(&mut self, threshold: usize, out: &mut Vec<Fetch>) {
        for class in (threshold.min(POPULARITY_MAX)..CLASSES).rev() {
            while let Some(slot) = self.classes.tail(class) {
                let Block { hash, position, .. } = self.take(slot);
                out.push(Fetch { hash, position });
            }
        }
    }

    /// Returns the number of blocks accessed `threshold` times or more.
    pub(crate) fn popular(&self, threshold: usize) -> usize {
        (threshold.min(POPULARITY_MAX)..CLASSES)
            .map(|class| self.classes.size(class) as usize)
            .sum()
    }

    /// Returns the number of accesses to evicted blocks since the last call, and resets it.
    pub(crate) fn take_returns(&mut self) -> u64 {
        std::mem::take(&mut self.returns)
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.classes.memory_bytes()
            + self.blocks.capacity() * size_of::<Block>()
            + self.free.capacity() * size_of::<u32>()
            + self.index.memory_bytes()
    }
}
