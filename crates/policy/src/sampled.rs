//! Sampled LRU: evicts, of a few entries drawn at random, the least recently used.
//!
//! A hit only stamps the time. Each eviction draws a few entries; the best candidates of earlier
//! draws are kept in a small pool and compete again, which brings five samples close to true LRU
//! (Redis, `maxmemory-samples` and the eviction pool of version 3.0). Time is counted in
//! insertions.
//!
//! Entries count as one each whatever their weight, as in Redis; an owner that needs more room
//! evicts again.
//!
//! Do not use it where an eviction must be cheap: each draw is a miss in the processor's cache.

use crate::slot_array::{SampleSet, ordered_by_array};
use crate::{Access, Eviction, LastUses, Parameter, Parameters, Policy, PolicyInfo, Slot};

/// Maximum number of candidates kept from earlier draws (Redis).
const POOL_MAX: usize = 16;

/// Sampled LRU (`sampled`): evicts, of a few random entries, the least recently used. FIFO-like.
#[derive(Debug, Clone)]
pub struct Sampled {
    entries: SampleSet,
    uses: LastUses,
    samples: u64,
    pool: [Slot; POOL_MAX],
    pooled: usize,
}

impl Sampled {
    /// Adds a candidate to the pool unless the pool is full of older ones.
    fn offer(&mut self, slot: Slot) {
        let pool = &mut self.pool[..self.pooled];
        if pool.contains(&slot) {
            return;
        }
        if self.pooled < POOL_MAX {
            self.pool[self.pooled] = slot;
            self.pooled += 1;
        } else if let Some(youngest) = pool.iter_mut().min_by_key(|known| self.uses.age(**known))
            && self.uses.age(*youngest) < self.uses.age(slot)
        {
            *youngest = slot;
        }
    }

    /// Removes the least recently used candidate from the pool and returns it; drops candidates
    /// that left the cache meanwhile.
    fn oldest(&mut self) -> Option<Slot> {
        let mut oldest: Option<usize> = None;
        let mut at = 0;
        while at < self.pooled {
            if !self.entries.contains(self.pool[at]) {
                self.pooled -= 1;
                self.pool[at] = self.pool[self.pooled];
                continue;
            }
            if oldest
                .is_none_or(|known| self.uses.age(self.pool[at]) > self.uses.age(self.pool[known]))
            {
                oldest = Some(at);
            }
            at += 1;
        }
        let oldest = oldest?;
        let slot = self.pool[oldest];
        self.pooled -= 1;
        self.pool[oldest] = self.pool[self.pooled];
        Some(slot)
    }

    fn moved(&mut self, from: Slot, to: Slot) {
        for pooled in &mut self.pool[..self.pooled] {
            if *pooled == from {
                *pooled = to;
            }
        }
    }
}

impl Policy for Sampled {
    const INFO: PolicyInfo = PolicyInfo::new(
        "sampled",
        "evicts, of a few random entries, the one unused for longest",
        "Redis 3.0",
    )
    .with(&[Parameter::count("samples", 5, 1..=64, "entries drawn per eviction")]);

    fn new(parameters: &Parameters) -> Self {
        Self {
            entries: SampleSet::default(),
            uses: LastUses::default(),
            samples: parameters.count("samples"),
            pool: [Slot(0); POOL_MAX],
            pooled: 0,
        }
    }
}

impl Eviction for Sampled {
    type Marks = LastUses;

    fn marks(&self) -> &LastUses {
        &self.uses
    }

    fn promote(&mut self, _: Slot) {}

    fn insert(&mut self, slot: Slot, _: &Access) {
        self.uses.advance();
        self.uses.stamp(slot);
        self.entries.insert(slot);
    }

    fn evict(&mut self, _: Option<&Access>) -> Option<Slot> {
        for _ in 0..self.samples {
            let drawn = self.entries.draw()?;
            self.offer(drawn);
        }
        let victim = self.oldest()?;
        self.entries.remove(victim);
        Some(victim)
    }

    ordered_by_array! {
        order: entries, marks: uses,
        class: |this, slot| u32::BITS - this.uses.age(slot).leading_zeros(), moved: moved
    }
}
