#![doc = include_str!("../README.md")]
#![allow(unsafe_code)] // entries are read without locks; each block says why it is sound

mod admission;
mod barrier;
mod budget;
mod builder;
mod cache;
mod change;
mod clock;
mod collect;
mod compute;
mod entry;
mod fork;
mod frozen;
mod guard;
mod hazard;
mod hints;
pub mod host;
mod index;
mod inner;
mod lifetimes;
mod limbo;
mod loader;
mod loads;
mod local;
mod maintenance;
mod options;
mod owner;
mod pending;
mod records;
mod retired;
mod shard;
mod slab;
#[cfg(feature = "serde")]
mod snapshot;
mod stats;
mod sync;
#[cfg(test)]
mod tests;
mod user_code;

pub use builder::BuildError;
pub use builder::Builder;
pub use cache::Cache;
pub use cache::Iter;
pub use clock::Clock;
pub use equivalent::Equivalent;
pub use floe_policy as policy;
pub use frozen::freezer::Frozen;
pub use frozen::{FreezeDecision, FreezeStats, Freezing, Phase};
pub use guard::{Held, Item, Ref};
pub use index::DefaultHasher;
pub use loader::LoadError;
pub use loads::KeyEntry;
pub use loads::{Loads, RefreshJob, RefreshTask};
pub use options::InsertOptions;
#[cfg(feature = "serde")]
pub use snapshot::Snapshot;
pub use stats::Cause;
pub use stats::{AdmissionStats, Stats};

/// For counting what hits write: where the calling thread has its own record in a cache.
#[doc(hidden)]
pub fn own_record<K, V, P: policy::Replacement, S>(
    cache: &Cache<K, V, P, S>,
) -> std::ops::Range<usize> {
    let record = std::ptr::from_ref(cache.inner.record()) as usize;
    record..record + size_of::<hazard::Record>()
}

/// For tests of what freeing and guards cost: records of threads, cells and holds that were looked
/// at since the cache was made.
#[doc(hidden)]
pub fn visited<K, V, P: policy::Replacement, S>(cache: &Cache<K, V, P, S>) -> u64 {
    cache.inner.threads.records.visited()
}

/// For tests of how long reclaimers hold up others: the most records, cells, holds and entries that
/// were looked at under one lock since the cache was made.
#[doc(hidden)]
pub fn visited_at_once<K, V, P: policy::Replacement, S>(cache: &Cache<K, V, P, S>) -> u64 {
    cache.inner.threads.records.visited_at_once()
}

/// For tests of what caches in which nothing is due cost: how often a thread of the library's woke
/// up.
#[doc(hidden)]
pub fn wake_ups() -> u64 {
    maintenance::wake_ups()
}

/// For tests of systems that have no thread to give: from now on, or no longer, none can be
/// started.
#[doc(hidden)]
pub fn without_threads(without: bool) {
    maintenance::without_threads(without);
}

/// For tests: hides frozen entries from readers, which then find them like all others, or shows
/// them again. The controller of freezing does that to measure the worth of the frozen index.
#[doc(hidden)]
pub fn bypass<K, V, P: policy::Replacement, S>(cache: &Cache<K, V, P, S>, bypass: bool) {
    cache.inner.frozen.publish(&cache.inner.frozen.freezer(), !bypass);
}

/// For tests of what hits do where the system has no barrier for whole processes: from now on they
/// fence.
#[doc(hidden)]
pub fn without_membarrier() {
    barrier::without_membarrier();
}

/// Returns whether hits do without a memory fence here: on Linux from 4.14, unless a sandbox
/// forbids `membarrier(2)`. Elsewhere each hit passes one, which about doubles its time and changes
/// nothing else.
///
/// A sandbox should allow the call, or be there before the first cache. If one forbids it later,
/// hits fence from then on, and frozen entries are looked up like others. As long as a thread that
/// used a cache before does not use it again, what leaves that cache is freed by threads that wait
/// 5 ms for each batch.
///
/// ```
/// # use floe_memory as floe;
/// println!("hits are {} fences", if floe::hits_are_fenceless() { "without" } else { "with" });
/// ```
pub fn hits_are_fenceless() -> bool {
    barrier::choose();
    barrier::is_asymmetric()
}
