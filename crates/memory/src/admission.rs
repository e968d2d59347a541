//! The admission of each shard, where the cache has one, and the events that it receives.
//!
//! The insertion of an absent key is an *offer*. The shard's admission decides about it under the
//! lock that the insertion has taken anyway (`Owner::offer`); a rejected entry never gets a place.
//! Each shard has its own admission, which shares nothing with the others and knows the number of
//! shards ([`Admission::split`]).
//!
//! The admission receives:
//!
//! - at once, under the lock: offers with their victims, evictions, and replacements of entries;
//! - hits at once, where they take that lock anyway: in an LRU-like order, with each promotion.
//!   Hits of a FIFO-like policy, and those on frozen entries, write nothing that is shared, and are
//!   not reported one by one;
//! - counts, in a window that ends with every [`WINDOW_OFFERS`]th offer of the shard. Threads count
//!   lookups and hits in their records, and the shard takes its part as if keys were spread evenly.
//!   So a hit does no work for the admission, and the parts add up. A lookup does not know the
//!   weight of its value, so lookups and hits count with the average weight of entries. Removals
//!   count with no bytes written.
//!
//! A cache in memory fetches nothing for an admission, and its keys have no position: admissions
//! that need either are refused when the cache is built.

use floe_policy::admission::{
    Admission, AdmissionFactory, Needs, Orders, Room, Traffic, Verdict, Victim, Window,
};
use floe_policy::{Access, Slot, Tick};

use crate::budget::Amount;
use crate::frozen::timing;
use crate::local::Threads;
use crate::records::Counted;
use crate::stats::ShardCounts;
use crate::sync::Arc;

/// Number of offers to a shard in one window of counts.
pub(crate) const WINDOW_OFFERS: u64 = 100;

/// An admission as the builder got it, from which each shard's copy is made.
pub(crate) trait Template: Send + Sync {
    /// Returns the name of the admission.
    fn name(&self) -> String;

    /// Returns why a cache in memory cannot use the admission; `None` if it can.
    fn is_refused(&self) -> Option<&'static str>;

    /// Creates the admission of shard number `shard` of `shards`.
    fn make(&self, shard: usize, shards: usize) -> Box<dyn Admission + Send>;
}

impl<A: AdmissionFactory> Template for A {
    fn name(&self) -> String {
        AdmissionFactory::name(self)
    }

    fn is_refused(&self) -> Option<&'static str> {
        let Needs { streams, fetches, .. } = self.needs();
        match (streams, fetches) {
            (true, _) => Some("depends on the positions of blocks, which keys do not have"),
            (_, true) => {
                Some("asks for entries to be fetched, and the cache has nowhere to fetch them from")
            }
            _ => None,
        }
    }

    fn make(&self, shard: usize, shards: usize) -> Box<dyn Admission + Send> {
        let mut admission = self.clone();
        admission.split(shard, shards);
        Box::new(admission)
    }
}

/// Counts at the beginning of a window.
#[derive(Debug, Clone, Copy, Default)]
struct Begun {
    offered: u64,
    lookups: u64,
    hits: u64,
    inserted: u64,
    removed: u64,
}

/// The admission of a shard.
pub(crate) struct ShardAdmission {
    admission: Box<dyn Admission + Send>,
    orders: Orders,
    /// Hash of the last key in each slot, as the admission knows it.
    hashes: Vec<u64>,
    threads: Arc<Threads>,
    shards: u64,
    offered: u64,
    bypassed: u64,
    window: Begun,
    /// Weight inserted during the window, including that of values that replaced others.
    inserted_weight: u64,
    replaced: Traffic,
    /// Size of the shard in entries and weight, as last reported to the admission.
    told: (usize, u64),
}

impl ShardAdmission {
    /// Creates the admission of shard number `shard` of `shards`. `threads` are the users of the
    /// cache.
    pub(crate) fn new(
        template: &dyn Template,
        shard: usize,
        shards: usize,
        threads: Arc<Threads>,
    ) -> Self {
        Self {
            admission: template.make(shard, shards),
            orders: Orders::default(),
            hashes: Vec::new(),
            threads,
            shards: shards as u64,
            offered: 0,
            bypassed: 0,
            window: Begun::default(),
            inserted_weight: 0,
            replaced: Traffic::default(),
            told: (0, 0),
        }
    }

    /// Reports the size of the shard to the admission: before anything else, and whenever the shard
    /// grows.
    pub(crate) fn reserve(&mut self, entries: usize, weight: u64) {
        let entries = entries.max(self.told.0);
        if std::mem::replace(&mut self.told, (entries, weight)) == (entries, weight) {
            return;
        }
        self.admission.reserve(&Room { entries, weight, above: 0 });
        if self.offered == 0 {
            self.tick();
        }
    }

    fn tick(&mut self) {
        self.admission.tick(Tick(timing::now().as_micros() as u64), &mut self.orders);
    }

    /// Returns the number of offers, and how many of them were rejected.
    pub(crate) fn offers(&self) -> (u64, u64) {
        (self.offered, self.bypassed)
    }

    /// Returns true if an offer is admitted. `victim` is the slot to be evicted for it, where the
    /// admission needs that and the policy can name it.
    pub(crate) fn admits(&mut self, offer: &Access, fits: bool, victim: Option<Slot>) -> bool {
        self.offered += 1;
        let victim = victim.map(|slot| Victim { slot, hash: self.hashes[slot.index()] });
        let verdict = self.admission.judge(offer, victim.as_ref());
        let is_held = self.orders.hold && !fits;
        // A victim of the admission is the one that the order evicts next.
        let verdict = if is_held { Verdict::Bypass } else { verdict };
        self.admission.settle(offer, verdict);
        self.bypassed += u64::from(!verdict.admits());
        verdict.admits()
    }

    /// Records an entry that was inserted into a free slot.
    pub(crate) fn came_in(&mut self, slot: u32, access: &Access) {
        let slot = slot as usize;
        if slot >= self.hashes.len() {
            self.hashes.resize(slot + 1, 0);
        }
        self.hashes[slot] = access.hash;
        self.inserted_weight += u64::from(access.weight);
    }

    /// Records a value that replaced another one of the same key. This counts as a write and as a
    /// use of the key.
    pub(crate) fn replaced(&mut self, access: &Access) {
        let value = Traffic { blocks: 1, bytes: u64::from(access.weight) };
        self.inserted_weight += value.bytes;
        self.replaced += value;
        self.admission.used(access);
    }

    /// Reports a hit that reached the policy's order.
    pub(crate) fn used(&mut self, slot: u32, weight: u32) {
        let access = self.access(slot, weight);
        self.admission.used(&access);
    }

    /// Reports the eviction of an entry.
    pub(crate) fn evicted(&mut self, slot: u32, weight: u32) {
        let access = self.access(slot, weight);
        self.admission.evicted(&access);
    }

    fn access(&self, slot: u32, weight: u32) -> Access {
        Access { weight, ..Access::new(self.hashes[slot as usize]) }
    }

    /// Ends the window when it is complete, and passes the counts of the shard and its contents to
    /// the admission. If another thread holds the lock of the thread records, the window ends at a
    /// later offer: waiting under the shard's lock is not worthwhile.
    pub(crate) fn look_back(&mut self, counts: &ShardCounts, held: Amount) {
        if self.offered - self.window.offered < WINDOW_OFFERS {
            return;
        }
        let Some(Counted { lookups, hits, .. }) = self.threads.records.try_counted() else {
            return;
        };
        let now = Begun {
            offered: self.offered,
            lookups: lookups / self.shards,
            hits: hits / self.shards,
            inserted: counts.insertions,
            removed: counts.evictions + counts.seldom.expirations + counts.seldom.removals,
        };
        let before = std::mem::replace(&mut self.window, now);
        let mean = if held.entries > 0 { held.weight as f64 / held.entries as f64 } else { 1.0 };
        let looked_up = |blocks: u64| Traffic { blocks, bytes: (blocks as f64 * mean) as u64 };
        // Counts of threads may be a moment late, and so a sum less than the one before.
        let since = |now: u64, before: u64| now.saturating_sub(before);
        self.admission.observe(&Window {
            lookups: looked_up(since(now.lookups, before.lookups)),
            hits: looked_up(since(now.hits, before.hits)),
            inserted: Traffic {
                blocks: since(now.inserted, before.inserted),
                bytes: std::mem::take(&mut self.inserted_weight),
            },
            removed: Traffic { blocks: since(now.removed, before.removed), bytes: 0 },
            replaced: std::mem::take(&mut self.replaced),
            entries: held.entries as u64,
            ..Window::default()
        });
        self.tick();
    }

    /// Returns the bytes of memory that the admission uses.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + self.hashes.capacity() * size_of::<u64>()
            + self.admission.memory_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_shards_do_not_throw_the_same_coins() {
        let template = floe_policy::admission::Probability::default();
        let thrown = |shard| {
            let mut admission = template.make(shard, 4);
            (0..500)
                .map(|key| admission.admit(&Access::new(key), None).admits())
                .collect::<Vec<_>>()
        };
        assert_ne!(thrown(1), thrown(2));
    }
}
