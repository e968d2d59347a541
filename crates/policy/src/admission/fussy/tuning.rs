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

use super::miniature::{Miniatures, WAYS, Worth};
use super::prices::Prices;
use crate::Access;
use crate::admission::Window;
use crate::admission::metadata::POPULARITY_MAX;

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
    /// Without room.
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
