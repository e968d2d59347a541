//! The limits of a cache, and the shares of its shards in them.
//!
//! Every shard has the same *share* of the limits, and it has *room*: what its entries take, and
//! what it may fill without asking. The rooms of all shards and what is left in the budget make up
//! the limits, always.
//!
//! - While the budget has something left, a shard takes room from it as it grows, beyond its share
//!   as well. So a cache holds as many entries as its limit says, however unevenly keys fall.
//! - Then a shard that has its share evicts its own entries for a candidate. It keeps the remaining
//!   room, which is less than one entry: the next candidate fills it. Entries that are removed,
//!   expire, or are replaced by lighter ones return their room to the budget.
//! - A shard whose room would stay within its share with the candidate evicts nothing: it gets the
//!   room of a shard that has more than its share. There is one then, because the rooms make up the
//!   limits.
//! - An entry that weighs a sixteenth of a share or more is *heavy*: all shards make room for it
//!   alike, in turns. While it is in, each share is smaller by the entry's weight divided by the
//!   number of shards, and the share of its own shard is larger by its weight. Otherwise the shard
//!   of such an entry would lose a good part of its other entries, and with them hits, which no
//!   other shard gains.
//!
//! So insertions never make a shard lose room that is within its share: shares do not drift. And a
//! full cache whose shards have their shares writes nothing shared for an insertion.

use std::sync::Arc; // not that of the models: a sum
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Entries and weight.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) entries: i64,
    pub(crate) weight: i64,
}

impl Amount {
    /// Returns what an entry takes.
    #[inline(always)]
    pub(crate) fn of(weight: u32) -> Self {
        Self { entries: 1, weight: i64::from(weight) }
    }

    /// Returns what is missing here of another amount.
    #[inline(always)]
    pub(crate) fn lacks(self, need: Self) -> Self {
        Self {
            entries: (need.entries - self.entries).max(0),
            weight: (need.weight - self.weight).max(0),
        }
    }

    #[inline(always)]
    pub(crate) fn is_nothing(self) -> bool {
        self == Self::default()
    }

    /// Returns what both have.
    pub(crate) fn min(self, other: Self) -> Self {
        Self { entries: self.entries.min(other.entries), weight: self.weight.min(other.weight) }
    }
}

impl std::ops::Add for Amount {
    type Output = Self;

    #[inline(always)]
    fn add(mut self, other: Self) -> Self {
        self += other;
        self
    }
}

impl std::ops::AddAssign for Amount {
    #[inline(always)]
    fn add_assign(&mut self, other: Self) {
        self.entries += other.entries;
        self.weight += other.weight;
    }
}

impl std::ops::SubAssign for Amount {
    #[inline(always)]
    fn sub_assign(&mut self, other: Self) {
        self.entries -= other.entries;
        self.weight -= other.weight;
    }
}

/// A limit, and what is left of it: less than nothing while a cache that was made smaller still
/// shrinks.
#[derive(Debug)]
struct Purse {
    limit: AtomicU64,
    left: AtomicI64,
}

/// Tells what stands for "no limit".
const UNLIMITED: u64 = i64::MAX as u64 / 2;

impl Purse {
    fn new(limit: Option<u64>) -> Self {
        let limit = limit.unwrap_or(UNLIMITED).min(UNLIMITED);
        Self { limit: AtomicU64::new(limit), left: AtomicI64::new(limit as i64) }
    }

    #[inline(always)]
    fn take(&self, amount: i64) -> bool {
        // All Relaxed: these are sums; no memory is handed over through them.
        amount == 0
            || self
                .left
                .fetch_update(Relaxed, Relaxed, |left| (left >= amount).then(|| left - amount))
                .is_ok()
    }

    #[inline(always)]
    fn give(&self, amount: i64) {
        if amount != 0 {
            self.left.fetch_add(amount, Relaxed); // see `take`
        }
    }

    fn set(&self, limit: u64) {
        let limit = limit.min(UNLIMITED);
        let before = self.limit.swap(limit, Relaxed); // see `take`
        self.give(limit as i64 - before as i64);
    }
}

/// The limits of a cache.
#[derive(Debug)]
pub(crate) struct Budget {
    entries: Purse,
    weight: Purse,
    lender: AtomicUsize,
    /// The weight of all heavy entries.
    heavy: Arc<AtomicI64>,
}

/// The part of a share that makes an entry heavy.
const HEAVY_PART: i64 = 16;

/// The share of a shard, which changes as heavy entries come and go.
#[derive(Debug)]
pub(crate) struct Share {
    /// The share while no entry is heavy.
    limits: Amount,
    /// The least weight of a heavy entry.
    heavy_from: i64,
    /// The logarithm of the number of shards.
    shards_log: u32,
    /// The weight of the shard's own heavy entries.
    own_heavy: i64,
    all_heavy: Arc<AtomicI64>,
}

/// The least weight of a heavy entry, where each of some shards has this part of the limits.
fn heavy_from(limits: Amount, shards: u64) -> i64 {
    if shards == 1 { i64::MAX } else { (limits.weight / HEAVY_PART).max(2) }
}

impl Share {
    /// The share at this moment. The sum over all shards is at most the limit.
    #[inline(always)]
    pub(crate) fn now(&self) -> Amount {
        self.with(0)
    }

    /// The share at this moment if an entry of this weight, which the shard does not hold, were in.
    #[inline(always)]
    pub(crate) fn with(&self, weight: i64) -> Amount {
        let coming = if weight >= self.heavy_from { weight } else { 0 };
        let all = self.all_heavy.load(Relaxed) + coming; // a sum; no memory is handed over
        let part = (all + (1 << self.shards_log) - 1) >> self.shards_log; // rounded up
        Amount { weight: self.limits.weight + self.own_heavy + coming - part, ..self.limits }
    }

    /// Returns whether an entry of this weight fits a share, so that it fits the cache.
    #[inline(always)]
    pub(crate) fn fits(&self, weight: i64) -> bool {
        weight <= self.limits.weight
    }

    /// Notes an entry that has come in.
    #[inline(always)]
    pub(crate) fn came(&mut self, weight: i64) {
        if weight >= self.heavy_from {
            self.change(weight);
        }
    }

    /// Notes an entry that has left.
    #[inline(always)]
    pub(crate) fn left(&mut self, weight: i64) {
        if weight >= self.heavy_from {
            self.change(-weight);
        }
    }

    #[cold]
    fn change(&mut self, by: i64) {
        self.own_heavy += by;
        self.all_heavy.fetch_add(by, Relaxed); // see `with`
    }

    /// Takes over the share by other limits, for a shard that holds entries of these weights.
    pub(crate) fn reshape(&mut self, other: Self, held: impl Iterator<Item = i64>) {
        self.change(-self.own_heavy);
        *self = other;
        let heavy = held.filter(|&weight| weight >= self.heavy_from).sum();
        self.change(heavy);
    }
}

/// A heavy entry that is about to come in, for which all shards make room.
#[derive(Debug)]
pub(crate) struct Coming<'a> {
    budget: &'a Budget,
    weight: i64,
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        self.budget.heavy.fetch_sub(self.weight, Relaxed); // see `Share::with`
    }
}

impl Budget {
    pub(crate) fn new(entries: Option<u64>, weight: Option<u64>) -> Self {
        Self {
            entries: Purse::new(entries),
            weight: Purse::new(weight),
            lender: AtomicUsize::new(0),
            heavy: Arc::default(),
        }
    }

    /// The share of one of some shards, a power of two, which holds nothing heavy yet.
    pub(crate) fn share_of(&self, shards: usize) -> Share {
        let limits = self.share(shards as u64);
        Share {
            limits,
            heavy_from: heavy_from(limits, shards as u64),
            shards_log: shards.ilog2(),
            own_heavy: 0,
            all_heavy: Arc::clone(&self.heavy),
        }
    }

    /// Has each of some shards make room for an entry, if it is heavy, as long as the guard lives.
    pub(crate) fn makes_room_for(&self, weight: i64, shards: usize) -> Coming<'_> {
        let from = heavy_from(self.share(shards as u64), shards as u64);
        let weight = if weight >= from { weight } else { 0 };
        self.heavy.fetch_add(weight, Relaxed); // see `Share::with`
        Coming { budget: self, weight }
    }

    /// Takes all of an amount, or nothing.
    #[inline(always)]
    pub(crate) fn take(&self, amount: Amount) -> bool {
        if !self.entries.take(amount.entries) {
            return false;
        }
        let taken = self.weight.take(amount.weight);
        if !taken {
            self.entries.give(amount.entries);
        }
        taken
    }

    /// Gives back what is free again.
    #[inline(always)]
    pub(crate) fn give(&self, amount: Amount) {
        self.entries.give(amount.entries);
        self.weight.give(amount.weight);
    }

    /// Returns the unassigned room; negative while a cache that was made smaller still shrinks.
    #[inline(always)]
    pub(crate) fn left(&self) -> Amount {
        // See `Purse::take`.
        Amount { entries: self.entries.left.load(Relaxed), weight: self.weight.left.load(Relaxed) }
    }

    /// By how much less is left than nothing.
    pub(crate) fn excess(&self) -> Amount {
        self.left().lacks(Amount::default())
    }

    /// Returns whether less is left than nothing.
    pub(crate) fn is_exceeded(&self) -> bool {
        !self.excess().is_nothing()
    }

    /// The part of each of some shards.
    pub(crate) fn share(&self, shards: u64) -> Amount {
        let part = |purse: &Purse| (purse.limit.load(Relaxed) / shards) as i64; // see `Purse::take`
        Amount { entries: part(&self.entries), weight: part(&self.weight) }
    }

    /// The part of an amount that has no limit.
    pub(crate) fn unlimited(&self, amount: Amount) -> Amount {
        Amount {
            entries: if self.entries_limit().is_none() { amount.entries } else { 0 },
            weight: if self.weight_limit().is_none() { amount.weight } else { 0 },
        }
    }

    /// Returns whether something as heavy can ever be in.
    #[inline(always)]
    pub(crate) fn could_hold(&self, amount: Amount) -> bool {
        // see `Purse::take`
        let fits = |purse: &Purse, amount: i64| amount as u64 <= purse.limit.load(Relaxed);
        fits(&self.entries, amount.entries) && fits(&self.weight, amount.weight)
    }

    /// The number of the shard that is asked first for room, or more than there are shards.
    pub(crate) fn lender(&self) -> usize {
        self.lender.load(Relaxed) // any will do
    }

    pub(crate) fn set_lender(&self, shard: usize) {
        self.lender.store(shard, Relaxed); // as above
    }

    pub(crate) fn set_entries(&self, limit: u64) {
        self.entries.set(limit);
    }

    pub(crate) fn set_weight(&self, limit: u64) {
        self.weight.set(limit);
    }

    /// The limit of entries, if there is one.
    pub(crate) fn entries_limit(&self) -> Option<u64> {
        Some(self.entries.limit.load(Relaxed)).filter(|&limit| limit < UNLIMITED)
    }

    /// The limit of weight, if there is one.
    pub(crate) fn weight_limit(&self) -> Option<u64> {
        Some(self.weight.limit.load(Relaxed)).filter(|&limit| limit < UNLIMITED)
    }
}
