//! 2Q: an entry counts as popular only if its key returns after it has left a FIFO queue.
//!
//! New entries pass through a FIFO queue, A1in, in which hits do nothing, because they are assumed
//! to be one burst of use. An entry that left it is remembered in the ghost queue A1out; if it
//! comes back while remembered, it enters Am, an LRU list (Johnson and Shasha, "2Q: A Low Overhead
//! High Performance Buffer Management Replacement Algorithm", VLDB '94, full version).
//!
//! The queues share the cache by weight; ghosts count as one each, in proportion to the slots
//! reserved.
//!
//! Do not use 2Q where the working set is stable and about as large as the cache: every entry has
//! to miss twice.

use crate::ghost_table::GhostTable;
use crate::ghosts::Tag;
use crate::listed::Listed;
use crate::{Access, AlwaysPromote, Lists, Parameter, Parameters, Policy, PolicyInfo, Slot};

const A1IN: usize = 0;
const AM: usize = 1;

/// 2Q (`2q`): a FIFO queue for new entries, and an LRU list for keys that returned. LRU-like.
#[derive(Debug, Clone)]
pub struct TwoQ {
    queues: Lists<2>,
    tags: Vec<Tag>,
    a1out: GhostTable,
    in_share: f64,
    out_share: f64,
    in_target: u64,
    out_limit: u64,
}

impl Policy for TwoQ {
    const INFO: PolicyInfo = PolicyInfo::new(
        "2q",
        "new entries pass a FIFO queue; an entry that returns after leaving it enters an LRU list",
        "Johnson & Shasha, VLDB '94",
    )
    .with(&[
        Parameter::share("in", 0.25, "share of the FIFO queue"),
        Parameter::share("out", 0.5, "ghosts per entry of the cache"),
    ]);

    fn new(parameters: &Parameters) -> Self {
        Self {
            queues: Lists::named(["A1in", "Am"]),
            tags: Vec::new(),
            a1out: GhostTable::default(),
            in_share: parameters.get("in"),
            out_share: parameters.get("out"),
            in_target: 0,
            out_limit: 0,
        }
    }
}

impl Listed for TwoQ {
    type Marks = AlwaysPromote;
    type Lists = Lists<2>;

    const WEIGHTED: bool = true;

    fn lists(&self) -> &Lists<2> {
        &self.queues
    }

    fn lists_mut(&mut self) -> &mut Lists<2> {
        &mut self.queues
    }

    fn marks(&self) -> &AlwaysPromote {
        &AlwaysPromote
    }

    #[inline]
    fn promote(&mut self, slot: Slot) {
        if self.queues.list_of(slot) == Some(AM) {
            self.queues.move_to_head(AM, slot);
        }
    }

    #[inline]
    fn insert(&mut self, slot: Slot, access: &Access) {
        let tag = Tag::of(access.hash);
        let queue = if self.a1out.take(tag, self.out_limit) { AM } else { A1IN };
        self.tags[slot.index()] = tag;
        self.queues.set_weight(slot, access.weight);
        self.queues.push_head(queue, slot);
    }

    #[inline]
    fn evict(&mut self, _: Option<&Access>) -> Option<Slot> {
        if self.queues.size(A1IN) <= self.in_target
            && let Some(coldest) = self.queues.pop_tail(AM)
        {
            return Some(coldest);
        }
        debug_assert!(
            self.queues.size(A1IN) > self.in_target || self.queues.size(AM) == 0,
            "A1in gives room only when it is past its target, or alone"
        );
        let oldest = self.queues.pop_tail(A1IN);
        match oldest {
            Some(slot) => {
                self.a1out.push(self.tags[slot.index()]);
                oldest
            }
            None => self.queues.pop_tail(AM),
        }
    }

    fn victim(&mut self, _: Option<&Access>) -> Option<Slot> {
        let (oldest, coldest) = (self.queues.tail(A1IN), self.queues.tail(AM));
        if self.queues.size(A1IN) <= self.in_target {
            coldest.or(oldest)
        } else {
            oldest.or(coldest)
        }
    }

    fn hottest_first(&self) -> impl AsRef<[usize]> {
        [AM, A1IN]
    }

    fn resized(&mut self) {
        let slots = self.queues.slots();
        self.tags.resize(slots, Tag::default());
        self.a1out.reserve((slots as f64 * self.out_share) as usize);
        let capacity = self.queues.capacity() as f64;
        self.in_target = (capacity * self.in_share) as u64;
        self.out_limit = ((capacity * self.out_share) as u64).min(slots as u64);
    }

    fn moved(&mut self, from: Slot, to: Slot) {
        self.tags[to.index()] = self.tags[from.index()];
    }

    fn other_memory_bytes(&self) -> usize {
        self.tags.capacity() * size_of::<Tag>() + self.a1out.memory_bytes()
    }
}
