//! Auto: the queues of quick demotion, whose settings follow the load.
//!
//! The policies that differ most from each other on traces are settings of one structure: a small
//! FIFO in front of a CLOCK, with ghosts ([quick demotion](crate::quick_demotion)). A small queue
//! of 1 % withstands loops and scans; one that has most of the cache keeps the entries that were
//! used lately; those in between are S3-FIFO and QD-CLOCK. So Auto has one such order and changes
//! its settings. No setting needs more of a hit than a mark, so hits stay those of a FIFO-like
//! policy.
//!
//! Each setting is an expert (`auto/expert.rs`). It serves a sample of the requests with a ghost
//! cache of its own (`auto/sample.rs`). The one that leads by its misses sets the sizes and rules
//! of the real queues (`auto/leader.rs`). Entries stay where they are after a change, except that
//! the excess of a smaller small queue moves on to the main one, some entries with each eviction.
//!
//! A sampled hit is reported to the order's owner, unless the order is busy then; any other hit
//! reads one more bit than under QD-CLOCK. A cache of up to 1024 entries samples all of its keys, a
//! larger one at least 512 of its entries, and one of more than 131,072 between one in 256 and one
//! in 128, up to 2048. All ghost caches together take 600 bytes for each sampled entry.
//!
//! Do not use Auto for caches of under a thousand entries that many cores hit at once, because all
//! of their hits are reported.

mod expert;
mod leader;
mod marks;
mod sample;

use self::expert::{EXPERTS, Expert};
use self::leader::Leader;
pub(crate) use self::marks::AutoMarks;
use self::sample::Sample;
use crate::ghosts::Tag;
use crate::quick_demotion::QuickDemotion;
use crate::{Access, Adaptation, Cursor, Eviction, Parameters, Policy, PolicyInfo, Slot};

/// Maximum number of entries that one eviction moves out of a small queue that has become too
/// large.
const MOVES_MAX: usize = 16;

/// Auto (`auto`): the queues of QD-CLOCK and S3-FIFO, with the sizes and rules that miss least on a
/// sample of the keys. FIFO-like but for sampled hits.
#[derive(Debug, Clone)]
pub struct Auto {
    order: QuickDemotion<Expert>,
    marks: AutoMarks,
    sample: Sample,
    leader: Leader,
    /// True while the small queue may exceed the target of the last change.
    settling: bool,
    slots: usize,
    capacity: Option<u64>,
}

impl Auto {
    /// Takes a request for a sampled key.
    #[cold]
    fn observe(&mut self, tag: Tag, weight: u32) {
        let missed = self.sample.request(tag, weight);
        if let Some(expert) = self.leader.observe(missed, self.sample.entries()) {
            EXPERTS[expert].take_over(&mut self.order);
            self.settling = true;
        }
    }

    fn resized(&mut self) {
        self.sample.set_capacity(self.capacity.unwrap_or(self.slots as u64));
    }
}

impl Policy for Auto {
    const INFO: PolicyInfo = PolicyInfo::new(
        "auto",
        "the queues of qd-clock and s3-fifo, sized as misses least on a sample of the keys",
        "SHARDS (Waldspurger et al., FAST '15) for the sample",
    );

    fn new(_: &Parameters) -> Self {
        let order = EXPERTS[0].order();
        Self {
            marks: AutoMarks::new(order.marks()),
            order,
            sample: Sample::default(),
            leader: Leader::default(),
            settling: false,
            slots: 0,
            capacity: None,
        }
    }
}

impl Eviction for Auto {
    type Marks = AutoMarks;

    #[inline]
    fn marks(&self) -> &AutoMarks {
        &self.marks
    }

    fn reserve(&mut self, slots: usize) {
        self.slots = self.slots.max(slots);
        self.order.reserve(slots);
        self.marks.follow(self.order.marks(), self.slots);
        self.resized();
    }

    fn set_capacity(&mut self, weight: u64) {
        self.capacity = Some(weight);
        self.order.set_capacity(weight);
        self.resized();
    }

    fn len(&self) -> usize {
        self.order.len()
    }

    /// Takes a sampled hit. Its mark is set.
    fn promote(&mut self, slot: Slot) {
        if !self.order.holds(slot) {
            return;
        }
        let tag = self.order.tag(slot);
        if self.sample.has(tag) {
            self.observe(tag, self.order.weight(slot));
        } else {
            self.marks.report(slot, false);
        }
    }

    #[inline]
    fn insert(&mut self, slot: Slot, access: &Access) {
        self.order.insert(slot, access);
        let tag = self.order.tag(slot);
        let is_sampled = self.sample.has(tag);
        self.marks.report(slot, is_sampled);
        if is_sampled {
            self.observe(tag, access.weight);
            self.sample.came(self.order.len());
        }
    }

    #[inline]
    fn evict(&mut self, incoming: Option<&Access>) -> Option<Slot> {
        self.settling = self.settling && !self.order.relieve(MOVES_MAX);
        let victim = self.order.evict(incoming)?;
        if self.sample.has(self.order.tag(victim)) {
            self.sample.left();
        }
        Some(victim)
    }

    fn victim(&mut self, incoming: Option<&Access>) -> Option<Slot> {
        self.settling = self.settling && !self.order.relieve(usize::MAX);
        self.order.victim(incoming)
    }

    fn remove(&mut self, slot: Slot) {
        if self.order.holds(slot) {
            self.order.remove(slot);
            let tag = self.order.tag(slot);
            if self.sample.has(tag) {
                self.sample.left();
                self.sample.forget(tag);
            }
        }
    }

    fn transfer(&mut self, from: Slot, to: Slot) {
        if from != to && self.order.holds(from) {
            self.order.transfer(from, to);
            self.marks.report(to, self.sample.has(self.order.tag(to)));
        }
    }

    fn reweigh(&mut self, slot: Slot, weight: u32) {
        self.order.reweigh(slot, weight);
        if self.order.holds(slot) {
            self.sample.reweigh(self.order.tag(slot), weight);
        }
    }

    fn remembered_hits(&self, slot: Slot) -> u32 {
        self.order.remembered_hits(slot)
    }

    fn rank(&self, from: Cursor, out: &mut Vec<Slot>) -> Cursor {
        self.order.rank(from, out)
    }

    fn freeze(&mut self, slots: &[Slot]) {
        self.order.freeze(slots);
    }

    fn thaw(&mut self) {
        self.order.thaw();
    }

    fn thaw_some(&mut self, most: usize) -> bool {
        self.order.thaw_some(most)
    }

    fn adaptation(&self) -> Option<Adaptation> {
        Some(self.leader.adaptation())
    }

    fn memory_bytes(&self) -> usize {
        self.order.memory_bytes() + self.marks.sampled_bytes() + self.sample.memory_bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::owner::SlotOwner;
    use crate::{QdClock, mix};

    /// Misses of a cache of these many entries.
    fn misses(order: impl Policy, entries: u64, keys: impl Iterator<Item = u64>) -> usize {
        let mut owner: SlotOwner<_, _> =
            SlotOwner::new(order, HashMap::<u64, Slot>::new(), entries, entries as usize);
        let mut request = |key| match owner.find(key) {
            Some(slot) => {
                owner.access(slot);
                false
            }
            None => {
                owner.insert(key, &Access::new(mix(key)), |_, _, _| ());
                true
            }
        };
        keys.filter(|&key| request(key)).count()
    }

    /// Keys of which each comes twice, so far apart that a small queue of 5 % has evicted it.
    fn recent(count: u64) -> impl Iterator<Item = u64> {
        (0..count).flat_map(|at| [1_000_000 + at, 1_000_000 + at.saturating_sub(40)])
    }

    #[test]
    fn it_keeps_what_was_used_lately_where_that_pays() {
        let baseline = misses(QdClock::default(), 100, recent(20_000));
        let ours = misses(Auto::default(), 100, recent(20_000));
        assert!(baseline > 39_000, "{baseline} of 40,000: QD-CLOCK keeps nothing that long");
        assert!(ours < 22_000, "{ours} of 40,000");
    }

    #[test]
    fn a_small_queue_that_shrinks_loses_no_entry() {
        let mut order = Auto::default();
        order.reserve(1000);
        order.set_capacity(1000);
        let used: Vec<Slot> = (0..1000).map(Slot).collect();
        used.iter().for_each(|&slot| order.insert(slot, &Access::new(mix(slot.0.into()))));
        EXPERTS[4].take_over(&mut order.order);
        for expert in [1, 4, 5] {
            EXPERTS[expert].take_over(&mut order.order);
            order.settling = true;
            for at in 0..500 {
                let said = order.victim(None);
                let slot = order.evict(None).expect("the cache is full");
                assert_eq!(said, Some(slot));
                order.insert(slot, &Access::new(mix(5000 + at)));
            }
        }
        let mut left: Vec<Slot> = std::iter::from_fn(|| order.evict(None)).collect();
        left.sort();
        assert_eq!(left, used);
    }
}
