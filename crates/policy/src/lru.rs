//! LRU, least recently used: a hit moves the entry to the head, and the tail is evicted.
//!
//! It is the typical LRU-like policy: each hit owes a delink and a head update on one shared list,
//! and at high hit ratios these limit throughput ("Can Increasing the Hit Ratio Hurt Cache
//! Throughput?", section 3.1).
//!
//! The marks decide which hits are promoted: all of them here, those that find the list free in
//! [`relaxed_lru`](crate::RelaxedLru), a share of them in [`prob_lru`](crate::ProbLru).
//!
//! Do not use LRU with scans or loops larger than the cache, which push everything else out, nor
//! where many cores hit at once.

use crate::listed::Listed;
use crate::{
    Access, AlwaysPromote, Coins, Lists, Marks, Parameter, Parameters, Policy, PolicyInfo, Ranked,
    Slot, TryPromote,
};

const RECENCY: usize = 0;

/// An LRU list whose marks `M` decide which hits promote an entry.
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

    /// Returns the next entry towards the hot end.
    #[inline]
    pub fn hotter(&self, slot: Slot) -> Option<Slot> {
        self.list.hotter(slot)
    }

    /// Returns the next entry towards the cold end.
    #[inline]
    pub fn colder(&self, slot: Slot) -> Option<Slot> {
        self.list.colder(slot)
    }
}

impl Policy for Lru {
    const INFO: PolicyInfo =
        PolicyInfo::new("lru", "evicts the entry that was unused for longest", "-");

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

/// Relaxed LRU (`relaxed-lru`): LRU in which a hit skips its promotion while another thread holds
/// the list. LRU-like.
///
/// HHVM's concurrent LRU takes the list's lock with `try_lock` on a hit and goes on without it;
/// memory caches at large do the same. Popular entries are hit again soon, so few are lost. Without
/// contention, and so in a simulator, it equals LRU (FrozenHot, EuroSys '23, section 5; queueing
/// paper: a skipped share of 0.16 to 0.26 at 72 threads).
///
/// Do not use it to avoid the list's lock: most hits still take it, so throughput still falls.
pub type RelaxedLru = ByRecency<TryPromote>;

impl Policy for RelaxedLru {
    const INFO: PolicyInfo = PolicyInfo::new(
        "relaxed-lru",
        "LRU, but a hit skips the promotion when the list is busy",
        "HHVM; FrozenHot, EuroSys '23",
    );

    fn new(_: &Parameters) -> Self {
        Self::with(TryPromote)
    }
}

/// Seed of the coins; any number works.
const SEED: u64 = 0xf10e;

/// Probabilistic LRU (`prob-lru`): LRU in which a hit skips its promotion with probability q.
///
/// It is the mitigation that the queueing paper measures. A popular entry is hit so often that an
/// occasional promotion is enough to keep it, and the list sees only (1 - q) of the hits.
/// Throughput stops falling with the hit ratio only for q of at least 1 - 1/N with N requests in
/// flight ("Can Increasing the Hit Ratio Hurt Cache Throughput?", section 4).
///
/// Do not use it with q near 1 and a small cache: entries that are hit only a few times leave as
/// under FIFO.
pub type ProbLru = ByRecency<Coins>;

impl Policy for ProbLru {
    const INFO: PolicyInfo = PolicyInfo::new(
        "prob-lru",
        "LRU, but a hit skips the promotion with probability q",
        "queueing paper",
    )
    .with(&[Parameter::share("q", 0.5, "probability that a hit skips the promotion")]);

    fn new(parameters: &Parameters) -> Self {
        Self::with(Coins::new(parameters.get("q"), SEED))
    }
}
