//! How much a cache may hold, shared by its shards.
//!
//! A shard takes from the common budget while it grows and, once that is used up, makes room for newcomers itself; so a
//! full cache exchanges entries within a shard and touches nothing shared. Unlike fixed shares, this holds as many
//! entries as was said, however unevenly keys fall.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

/// Entries and weight.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) entries: i64,
    pub(crate) weight: i64,
}

impl Amount {
    /// What an entry takes.
    #[inline(always)]
    pub(crate) fn of(weight: u32) -> Self {
        Self { entries: 1, weight: i64::from(weight) }
    }

    /// What is missing here of another amount.
    #[inline(always)]
    pub(crate) fn lacks(self, need: Self) -> Self {
        Self { entries: (need.entries - self.entries).max(0), weight: (need.weight - self.weight).max(0) }
    }

    #[inline(always)]
    pub(crate) fn is_nothing(self) -> bool {
        self == Self::default()
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

/// A limit, and what is left of it: less than nothing while a cache that was made smaller still shrinks.
#[derive(Debug)]
struct Purse {
    limit: AtomicU64,
    left: AtomicI64,
}

/// What stands for "no limit".
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
}

impl Budget {
    pub(crate) fn new(entries: Option<u64>, weight: Option<u64>) -> Self {
        Self { entries: Purse::new(entries), weight: Purse::new(weight) }
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

    /// Whether less is left than nothing.
    pub(crate) fn is_exceeded(&self) -> bool {
        self.entries.left.load(Relaxed) < 0 || self.weight.left.load(Relaxed) < 0 // see `Purse::take`
    }

    /// Whether something as heavy can ever be in.
    #[inline(always)]
    pub(crate) fn could_hold(&self, amount: Amount) -> bool {
        let fits = |purse: &Purse, amount: i64| amount as u64 <= purse.limit.load(Relaxed); // see `Purse::take`
        fits(&self.entries, amount.entries) && fits(&self.weight, amount.weight)
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
