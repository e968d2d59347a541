#![doc = include_str!("../README.md")]
#![allow(unsafe_code)] // entries are read without locks; each block says why it is sound

mod admission;
mod barrier;
mod budget;
mod builder;
mod cache;
mod change;
mod clock;
mod compute;
mod entry;
mod fork;
/// Freezing: an immutable index serves the hottest entries. The crate `floe-freeze` decides when.
mod frozen {
    pub(crate) mod freezer;
    pub(crate) mod index;
    pub(crate) mod timing;
    pub(crate) mod windows;
}
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
mod numbered;
mod options;
mod owner;
mod ownership;
mod pending;
mod records;
mod renewal;
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
pub use floe_freeze::{FreezeDecision, FreezeStats, Freezing, Phase};
pub use floe_policy as policy;
pub use frozen::freezer::Frozen;
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

/// Returns the address range of the calling thread's hazard record in a cache. For tests that count
/// what hits write.
#[doc(hidden)]
pub fn own_record<K, V, P: policy::Replacement, S>(
    cache: &Cache<K, V, P, S>,
) -> std::ops::Range<usize> {
    let record = std::ptr::from_ref(cache.inner.record()) as usize;
    record..record + size_of::<hazard::Record>()
}

/// Returns the number of thread records, cells and holds that were examined since the cache was
/// made. For tests of the cost of reclamation and guards.
#[doc(hidden)]
pub fn visited<K, V, P: policy::Replacement, S>(cache: &Cache<K, V, P, S>) -> u64 {
    cache.inner.threads.records.visited()
}

/// Returns the maximum number of records, cells, holds and entries that were examined under one
/// lock since the cache was made. For tests of how long reclamation blocks other threads.
#[doc(hidden)]
pub fn visited_at_once<K, V, P: policy::Replacement, S>(cache: &Cache<K, V, P, S>) -> u64 {
    cache.inner.threads.records.visited_at_once()
}

/// Returns how often the library's threads have woken up. For tests of the cost of idle caches.
#[doc(hidden)]
pub fn wake_ups() -> u64 {
    maintenance::wake_ups()
}

/// Makes every later start of a thread fail, or lets threads start again. For tests of systems
/// without a free thread.
#[doc(hidden)]
pub fn without_threads(without: bool) {
    maintenance::without_threads(without);
}

/// Hides frozen entries from the index lookup of readers, or shows them again. For tests.
/// Readers find hidden frozen entries by the ordinary lookup. The controller of freezing uses this
/// to measure the worth of the frozen index.
#[doc(hidden)]
pub fn bypass<K, V, P: policy::Replacement, S>(cache: &Cache<K, V, P, S>, bypass: bool) {
    cache.inner.frozen.publish(&cache.inner.frozen.freezer(), !bypass);
}

/// Makes hits use a memory fence from now on, as on systems without a barrier for whole processes.
/// For tests.
#[doc(hidden)]
pub fn without_membarrier() {
    barrier::without_membarrier();
}

/// Returns true if hits do without a memory fence on this system: on Linux from 4.14, unless a
/// sandbox forbids `membarrier(2)`. On other systems each hit executes a fence, which about doubles
/// its time and changes nothing else.
///
/// A sandbox should allow the call, or be set up before the first cache is made. If one forbids it
/// later, hits use a fence from then on, and frozen entries are found by the ordinary lookup.
/// Entries that leave a cache are then freed by threads that wait 5 ms for each batch, until every
/// thread that used the cache before has used it again.
///
/// ```
/// # use floe_memory as floe;
/// println!("hits are {} fences", if floe::hits_are_fenceless() { "without" } else { "with" });
/// ```
pub fn hits_are_fenceless() -> bool {
    barrier::choose();
    barrier::is_asymmetric()
}
