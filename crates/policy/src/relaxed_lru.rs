//! Relaxed LRU: LRU whose hits skip the promotion when another thread is at the list.
//!
//! HHVM's concurrent LRU takes the list's lock with `try_lock` on a hit and goes on without it;
//! memory caches at large do the same. Popular entries are hit again soon, so few are lost. Without
//! contention it is LRU, and so it is in a simulator (FrozenHot, EuroSys '23, section 5; queueing
//! paper: a skipped share of 0.16 to 0.26 at 72 threads).
//!
//! Not to be used to get around the list: most hits still take the lock, so throughput still falls.

use crate::lru::ByRecency;
use crate::{Parameters, Policy, PolicyInfo, TryPromote};

/// Relaxed LRU (`relaxed-lru`): LRU in which a hit skips its promotion while the list is busy.
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
