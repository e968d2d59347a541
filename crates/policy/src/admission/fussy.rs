//! FussyCache: only what has proved popular comes in, and nothing of this applies while plain LRU does better.
//!
//! Blocks that are not cached are counted in a table without data ([`Metadata`]); until one was accessed `popular` times, it is
//! served from below. Everything else happens at *checks*, every `check` requests, off the path of a request: *identification*
//! orders the blocks that have become popular to be fetched, and *cache change* compares the hit ratio of the interval with that
//! of the one before. Having fallen `patience` times in a row it makes the cache plain: every miss comes in, while the counting goes
//! on. It turns back when more than half of the table is popular, or after `patience` checks; each change doubles the patience
//! ("FussyCache", sections III and IV.A; the defaults are the paper's).
//!
//! The text is followed where the printed algorithm differs from it: ratios are of intervals, not since the start; it is a *fall* that
//! counts; popular is who reached the threshold; checks go on in the plain mode. The text's third way back, the hit ratio having risen
//! `patience` times in a row, can never come before `patience` checks have passed, so it needs no code. Left open by the text, decided
//! here: a block that returns from the cache to the table counts one access; the table is sized for what missed in the warm-up, times
//! `popular`, so that a block which comes back as rarely as once in a warm-up has the time to become popular.
//!
//! With `tune=1` the threshold follows what is measured: a fetch costs a read below and an insertion, and displaces what had a number of
//! hits of its own while the table remembers; popular is who was accessed more than that is worth. Reads and writes count by what a hit
//! saves of each.
//!
//! The order below should be `lru`. Not to be used above devices so slow that every hit counts: a block's first accesses all
//! miss.

use super::metadata::{Metadata, POPULARITY_MAX, UNIT};
use super::{Admission, Choosable, Orders, Room, Times, Verdict, Victim, Window};
use crate::{About, Access, Direction, Parameter, Parameters, Tick};

/// How requests are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Everything comes in, and the table is not needed yet.
    WarmUp,
    /// What is popular comes in.
    Fussy,
    /// Everything comes in.
    Plain,
}

/// Sums over an interval.
#[derive(Debug, Clone, Copy, Default)]
struct Interval {
    requests: u64,
    hits: u64,
    /// Blocks that the table did not know.
    unknown: u64,
    evicted: u64,
}

/// Admits what has become popular.
#[derive(Debug, Clone)]
pub struct Fussy {
    table: Metadata,
    mode: Mode,
    /// Accesses from which a block is popular.
    threshold: usize,
    popular: usize,
    check_requests: u64,
    warm_up_requests: u64,
    table_share: f64,
    tunes: bool,
    /// Checks in a row that change the mode.
    patience: u64,
    now: Interval,
    hit_ratio: Option<f64>,
    /// Checks that the hit ratio has fallen in a row (fussy), or checks since the change (plain).
    checks: u64,
    entries: u64,
    times: Times,
    /// What an access counts.
    read_counts: u16,
    write_counts: u16,
}

impl Fussy {
    /// Whether every miss comes in: while it warms up, and while the cache is plain.
    pub fn admits_all(&self) -> bool {
        self.mode != Mode::Fussy
    }

    /// Accesses from which a block is popular: `popular`, or what was tuned.
    pub fn threshold(&self) -> usize {
        self.threshold
    }

    /// The checks in a row that change the mode next.
    pub fn patience(&self) -> u64 {
        self.patience
    }

    fn counts(&self, access: &Access) -> u16 {
        match access.direction {
            Direction::Read => self.read_counts,
            Direction::Write => self.write_counts,
        }
    }

    fn change(&mut self, mode: Mode) {
        self.mode = mode;
        self.patience = self.patience.saturating_mul(2);
        self.hit_ratio = None;
        self.checks = 0;
    }

    /// Identification and cache change.
    fn check(&mut self, orders: &mut Orders) {
        let interval = std::mem::take(&mut self.now);
        if self.tunes {
            self.tune(interval);
        }
        match self.mode {
            Mode::WarmUp => {
                let wanted = interval.unknown.saturating_mul(self.popular as u64);
                self.table.limit(usize::try_from(wanted).unwrap_or(usize::MAX));
                self.mode = Mode::Fussy;
            }
            Mode::Fussy => {
                self.table.take_popular(self.threshold, &mut orders.fetch);
                let hit_ratio = interval.hits as f64 / interval.requests as f64;
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

    /// Sets the threshold and what reads and writes count by what was measured.
    fn tune(&mut self, interval: Interval) {
        let Some(hit) = self.times.hit_ns else { return };
        let saved = |below: Option<f64>| below.map_or(0.0, |below| (below - hit).max(0.0));
        let (by_read, by_write) = (saved(self.times.backing_read_ns), saved(self.times.backing_write_ns));
        let saved_max = by_read.max(by_write);
        if saved_max <= 0.0 {
            // A hit saves nothing: nobody is popular.
            (self.read_counts, self.write_counts) = (0, 0);
            return;
        }
        let counts = |saved: f64| (saved / saved_max * f64::from(UNIT)).round() as u16;
        (self.read_counts, self.write_counts) = (counts(by_read), counts(by_write));
        let fetch = self.times.backing_read_ns.unwrap_or(0.0) + self.times.insert_ns.unwrap_or(0.0);
        let displaced = if interval.evicted > 0 && self.entries > 0 {
            // So many intervals does the table remember, in which an entry had so many hits.
            let intervals = self.table.capacity() as f64 / interval.unknown.max(1) as f64;
            intervals * interval.hits as f64 / self.entries as f64
        } else {
            0.0
        };
        let worth = fetch / saved_max + displaced;
        self.threshold = (worth.ceil() as usize).clamp(1, POPULARITY_MAX);
    }
}

impl Choosable for Fussy {
    const ABOUT: About = About::new(
        "fussy",
        "only what was asked for often comes in, later; while that does worse than LRU, everything",
        "FussyCache",
    )
    .with(&[
        Parameter::count("popular", 4, 1..=POPULARITY_MAX as u64, "accesses that make a block popular"),
        Parameter::count("check", 200, 1..=1 << 32, "requests between checks"),
        Parameter::count("patience", 5, 1..=1 << 32, "checks with a falling hit ratio until it is plain LRU"),
        Parameter::count("warm-up", 2000, 1..=1 << 32, "first requests, which all come in"),
        Parameter {
            name: "metadata",
            default: 4.0,
            min: 0.0,
            max: 64.0,
            whole: false,
            about: "blocks counted at most, per entry of the cache",
        },
        Parameter::count("tune", 0, 0..=1, "whether measured times set the threshold"),
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
            tunes: parameters.count("tune") == 1,
            patience: parameters.count("patience"),
            now: Interval::default(),
            hit_ratio: None,
            checks: 0,
            entries: 0,
            times: Times::default(),
            read_counts: UNIT,
            write_counts: UNIT,
        }
    }
}

impl Admission for Fussy {
    fn reserve(&mut self, room: &Room) {
        self.table.reserve(((room.entries as f64 * self.table_share) as usize).max(1));
    }

    fn observe(&mut self, window: &Window) {
        self.now.requests += window.lookups.blocks;
        self.now.hits += window.hits.blocks;
        self.entries = window.entries;
        let (known, new) = (&mut self.times, &window.times);
        known.hit_ns = new.hit_ns.or(known.hit_ns);
        known.backing_read_ns = new.backing_read_ns.or(known.backing_read_ns);
        known.backing_write_ns = new.backing_write_ns.or(known.backing_write_ns);
        known.insert_ns = new.insert_ns.or(known.insert_ns);
    }

    fn judge(&mut self, offer: &Access, _: Option<&Victim>) -> Verdict {
        if self.mode == Mode::WarmUp {
            self.now.unknown += 1;
            return Verdict::Admit;
        }
        self.now.unknown += u64::from(self.table.count(offer, self.counts(offer)));
        if self.mode == Mode::Plain { Verdict::Admit } else { Verdict::Bypass }
    }

    fn evicted(&mut self, access: &Access) {
        self.now.evicted += 1;
        self.table.put_back(access);
    }

    fn order(&mut self, _: Tick, orders: &mut Orders) {
        let due = if self.mode == Mode::WarmUp { self.warm_up_requests } else { self.check_requests };
        if self.now.requests >= due {
            self.check(orders);
        }
    }

    fn memory_bytes(&self) -> usize {
        self.table.memory_bytes()
    }
}
