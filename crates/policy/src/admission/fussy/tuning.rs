//! FussyCache tuned by what is measured: who is popular, and whether to be fussy at all.
//!
//! *Popular*: fetching a block costs a read below and an insertion ([`Prices`]), and it displaces another. What that one was worth is
//! counted, not guessed: how often blocks that left the cache were accessed again while the table remembered them. A block whose own
//! accesses in that time are worth no less than both together is popular.
//!
//! *Fussy or plain*: what each mode would have saved is known at every check ([`Miniatures`]). The mode that the cache is not in runs up
//! an account, never below zero, of what it would have saved more; when that exceeds what a change costs, the change is made. So
//! little is lost in the worse mode before it is left, however small the difference, and a difference of nothing but noise
//! changes nothing: each change doubles what the next one has to be worth, and time without one halves it again.

use super::miniature::{Miniatures, Worth};
use super::prices::Prices;
use crate::Access;
use crate::admission::Window;
use crate::admission::metadata::POPULARITY_MAX;

/// What a change costs: a best hit for each so many entries. What one mode left in the cache serves the other, too, so it is much
/// less than filling it.
const ENTRIES_PER_HIT: f64 = 16.0;
/// What a change has to be worth at most, in that.
const DOUBT_MAX: f64 = 16.0;
/// Requests per entry without a change after which the next one has to be worth half as much.
const CALM: f64 = 8.0;

/// What an interval between checks was like.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Seen {
    pub(super) requests: u64,
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
    /// What the other mode would have saved more, in best hits.
    account: f64,
    /// How much more than it costs a change has to be worth.
    doubt: f64,
    /// Requests since the last change, or since doubt was halved.
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
            account: 0.0,
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
        self.prices.learn(&window.times);
        let held = window.entries as usize;
        if is_full && (1..self.entries).contains(&held) {
            self.miniatures.resize(held);
        }
    }

    /// What an access counts in the table.
    pub(super) fn count(&self, access: &Access) -> u16 {
        self.prices.count(access)
    }

    /// Takes in an access, whether it hit or not. `all` is whether everything comes in, whatever the mode.
    pub(super) fn serve(&mut self, access: &Access, all: bool) {
        let Self { prices, miniatures, .. } = self;
        let (hit, insertion, count) = (prices.hit(access), prices.insertion(), prices.count(access));
        miniatures.serve(access, Worth { hit, insertion, count }, all);
    }

    /// Accesses from which a block is popular, after an interval; `untold` while nothing was measured.
    pub(super) fn threshold(&mut self, seen: Seen, untold: usize) -> usize {
        // What happened before as many evictions as the table has blocks is of another time.
        let kept = (-(seen.evicted as f64) / self.blocks.max(1) as f64).exp2();
        self.evicted = self.evicted * kept + seen.evicted as f64;
        self.returns = self.returns * kept + seen.returns as f64;
        let displaced = if self.evicted > 0.0 { self.returns / self.evicted } else { 0.0 };
        let fetch = self.prices.fetch();
        fetch.map_or(untold, |fetch| ((fetch + displaced).ceil() as usize).clamp(1, POPULARITY_MAX))
    }

    /// Whether to go over to the other mode, after an interval.
    pub(super) fn changes(&mut self, is_fussy: bool, threshold: usize, seen: Seen) -> bool {
        let saved = self.miniatures.check(threshold, self.prices.insertion());
        let more = saved.plain - saved.fussy;
        self.account = (self.account + if is_fussy { more } else { -more }).max(0.0);
        let cost = self.entries as f64 / ENTRIES_PER_HIT;
        if self.account > cost.max(1.0) * self.doubt {
            self.account = 0.0;
            self.doubt = (self.doubt * 2.0).min(DOUBT_MAX);
            self.calm = 0;
            return true;
        }
        self.calm += seen.requests;
        if self.calm as f64 > self.entries as f64 * CALM * self.doubt {
            self.doubt = (self.doubt / 2.0).max(1.0);
            self.calm = 0;
        }
        false
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.miniatures.memory_bytes()
    }
}
