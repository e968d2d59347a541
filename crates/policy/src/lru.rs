//! Least recently used: a hit moves the entry to the head, the tail leaves.
//!
//! The type of an LRU-like policy: each hit owes a delink and a head update on one shared list, and
//! at high hit ratios these limit throughput ("Can Increasing the Hit Ratio Hurt Cache
//! Throughput?", section 3.1).
//!
//! The marks decide which hits are promoted: all of them here, those that find the list free in
//! [`relaxed_lru`](crate::RelaxedLru), a share of them in [`prob_lru`](crate::ProbLru).
//!
//! Not to be used with scans or loops larger than the cache, which push everything else out, nor
//! where many cores hit at once.

use crate::listed::Listed;
use crate::{Access, AlwaysPromote, Lists, Marks, Parameters, Policy, PolicyInfo, Ranked, Slot};

/// The only list.
const RECENCY: usize = 0;

/// An LRU list of which hits promote as its marks say.
#[derive(Debug, Clone)]
pub struct ByRecency<M> {
    list: Lists<1>,
    marks: M,
}

/// LRU (`lru`): evicts the entry unused for longest; every hit moves an entry, under a lock.
pub type Lru = ByRecency<AlwaysPromote>;

impl<M> ByRecency<M> {
    pub(crate) fn with(marks: M) -> Self {
        Self { list: Lists::named(["list"]), marks }
    }
}

impl Policy for Lru {
    const INFO: PolicyInfo = PolicyInfo::new("lru", "leaves when unused for longest", "-");

    fn new(_: &Parameters) -> Self {
        Self::with(AlwaysPromote)
    }
}

impl<M: Marks> Listed for ByRecency<M> {
    type Marks = M;
    type Lists = Lists<1>;

    fn lists(&self) -> &Lists<1> {
        &self.list
    }

    fn lists_mut(&mut self) -> &mut Lists<1> {
        &mut self.list
    }

    fn marks(&self) -> &M {
        &self.marks
    }

    #[inline]
    fn promote(&mut self, slot: Slot) {
        self.list.move_to_head(RECENCY, slot);
    }

    #[inline]
    fn insert(&mut self, slot: Slot, _: &Access) {
        self.list.push_head(RECENCY, slot);
    }

    #[inline]
    fn evict(&mut self, _: Option<&Access>) -> Option<Slot> {
        self.list.pop_tail(RECENCY)
    }

    fn victim(&mut self, _: Option<&Access>) -> Option<Slot> {
        self.list.tail(RECENCY)
    }

    fn resized(&mut self) {
        self.marks.reserve(self.list.slots());
    }

    fn other_memory_bytes(&self) -> usize {
        self.marks.memory_bytes()
    }
}

impl<M: Marks> Ranked for ByRecency<M> {
    fn coldest_first(&self) -> impl Iterator<Item = Slot> + '_ {
        self.list.coldest_first(RECENCY)
    }
}
