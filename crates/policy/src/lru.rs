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
use crate::{
    Access, AlwaysPromote, Coins, Lists, Marks, Parameter, Parameters, Policy, PolicyInfo, Ranked,
    Slot, TryPromote,
};

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

/// Relaxed LRU (`relaxed-lru`): LRU in which a hit skips its promotion while the list is busy.
///
/// Relaxed LRU: LRU whose hits skip the promotion when another thread is at the list.
///
/// HHVM's concurrent LRU takes the list's lock with `try_lock` on a hit and goes on without it;
/// memory caches at large do the same. Popular entries are hit again soon, so few are lost. Without
/// contention it is LRU, and so it is in a simulator (FrozenHot, EuroSys '23, section 5; queueing
/// paper: a skipped share of 0.16 to 0.26 at 72 threads).
///
/// Not to be used to get around the list: most hits still take the lock, so throughput still falls.
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

/// Seed of the coins; any number does.
const SEED: u64 = 0xf10e;

/// Probabilistic LRU (`prob-lru`): LRU in which a hit skips its promotion with a probability.
///
/// Probabilistic LRU: LRU whose hits skip the promotion with probability q.
///
/// The mitigation that the queueing paper measures: a popular entry is hit so often that a
/// promotion now and then is enough to keep it, and the list sees only (1 - q) of the hits.
/// Throughput stops falling with the hit ratio only for q of at least 1 - 1/N with N requests in
/// flight ("Can Increasing the Hit Ratio Hurt Cache Throughput?", section 4).
///
/// Not to be used with q near 1 and a small cache: entries that are hit only a few times leave as
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
