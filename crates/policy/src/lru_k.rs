//! LRU-K: evicts the entry whose second most recent use is longest ago (K = 2).
//!
//! The time of the second most recent use distinguishes popular entries from those used once, which
//! leave first, in LRU order. The last use of keys that have left is remembered for as many keys as
//! the cache holds (O'Neil, O'Neil, Weikum, "The LRU-K Page Replacement Algorithm", SIGMOD '93,
//! with a correlated reference period of 0).
//!
//! Entries count as one each whatever their weight, in the order and in the history, because the
//! order is about uses and not about size. An owner that needs more room evicts again.
//!
//! Do not use LRU-K where a hit must be cheap: each one costs a heap operation of logarithmic time.

use crate::ghosts::{Ghosts, Tag};
use crate::slot_array::{Heap, ordered_by_array};
use crate::{Access, AlwaysPromote, Eviction, Parameters, Policy, PolicyInfo, Slot};

/// Flag of a heap key that is the time of a second most recent use. It ranks such entries above all
/// entries used once.
const USED_TWICE: u64 = 1 << 63;

/// LRU-K with K = 2 (`lru-k`): evicts the entry whose second most recent use is longest ago.
/// LRU-like.
#[derive(Debug, Clone)]
pub struct LruK {
    by_second_last_use: Heap,
    last_uses: Vec<u64>,
    tags: Vec<Tag>,
    ghosts: Ghosts<1, u64>,
    now: u64,
}

impl LruK {
    fn resized(&mut self) {
        let slots = self.by_second_last_use.slots();
        self.last_uses.resize(slots, 0);
        self.tags.resize(slots, Tag::default());
        self.ghosts.reserve(slots);
    }

    fn moved(&mut self, from: Slot, to: Slot) {
        self.last_uses[to.index()] = self.last_uses[from.index()];
        self.tags[to.index()] = self.tags[from.index()];
    }

    fn memory(&self) -> usize {
        self.last_uses.capacity() * size_of::<u64>()
            + self.tags.capacity() * size_of::<Tag>()
            + self.ghosts.memory_bytes()
    }
}

impl Policy for LruK {
    const INFO: PolicyInfo = PolicyInfo::new(
        "lru-k",
        "evicts the entry whose last use but one is longest ago (K = 2)",
        "O'Neil et al., SIGMOD '93",
    );

    fn new(_: &Parameters) -> Self {
        Self {
            by_second_last_use: Heap::default(),
            last_uses: Vec::new(),
            tags: Vec::new(),
            ghosts: Ghosts::named(["ghosts"]),
            now: 0,
        }
    }
}

impl Eviction for LruK {
    type Marks = AlwaysPromote;

    fn marks(&self) -> &AlwaysPromote {
        &AlwaysPromote
    }

    fn promote(&mut self, slot: Slot) {
        if self.by_second_last_use.contains(slot) {
            self.now += 1;
            let last = std::mem::replace(&mut self.last_uses[slot.index()], self.now);
            self.by_second_last_use.change(slot, USED_TWICE | last);
        }
    }

    fn insert(&mut self, slot: Slot, access: &Access) {
        let tag = Tag::of(access.hash);
        self.now += 1;
        let key = match self.ghosts.take_note(tag) {
            Some((_, last)) => USED_TWICE | last,
            None => self.now,
        };
        self.last_uses[slot.index()] = self.now;
        self.tags[slot.index()] = tag;
        self.by_second_last_use.push(slot, key);
    }

    fn evict(&mut self, _: Option<&Access>) -> Option<Slot> {
        let entries = self.by_second_last_use.len();
        let slot = self.by_second_last_use.pop()?;
        self.ghosts.push(0, self.tags[slot.index()], self.last_uses[slot.index()]);
        while self.ghosts.len(0) > entries {
            self.ghosts.pop_oldest(0);
        }
        Some(slot)
    }

    ordered_by_array! { order: by_second_last_use, resized: resized, moved: moved, memory: memory }
}
