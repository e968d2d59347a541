//! The cache itself, small, under a model checker that tries every order in which threads and their
//! memory can meet, up to a number of preemptions: what is freed is looked at by nobody, and what
//! is found is what was there.
//!
//! A binary of its own: it takes the modules of the crate in with the atomics of the model checker.

#![allow(unsafe_code, dead_code, missing_docs, unreachable_pub)]

#[path = "../src/admission.rs"]
mod admission;
#[path = "loom/barrier.rs"]
mod barrier;
#[path = "../src/budget.rs"]
mod budget;
#[path = "../src/builder.rs"]
mod builder;
#[path = "../src/cache.rs"]
mod cache;
#[path = "../src/change.rs"]
mod change;
#[path = "../src/clock.rs"]
mod clock;
#[path = "../src/compute.rs"]
mod compute;
#[path = "../src/entry.rs"]
mod entry;
#[path = "../src/frozen"]
mod frozen {
    pub(crate) mod freezer;
    pub(crate) mod index;
    pub(crate) mod timing;
    pub(crate) mod windows;
}
#[path = "../src/guard.rs"]
mod guard;
#[path = "../src/hazard.rs"]
mod hazard;
#[path = "../src/hints.rs"]
mod hints;
#[path = "../src/host/mod.rs"]
mod host;
#[path = "../src/index.rs"]
mod index;
#[path = "../src/inner.rs"]
mod inner;
#[path = "../src/lifetimes.rs"]
mod lifetimes;
#[path = "../src/limbo.rs"]
mod limbo;
#[path = "../src/loader.rs"]
mod loader;
#[path = "../src/loads.rs"]
mod loads;
#[path = "loom/local.rs"]
mod local;
#[path = "../src/options.rs"]
mod options;
#[path = "../src/owner/mod.rs"]
mod owner;
#[path = "../src/ownership.rs"]
mod ownership;
#[path = "../src/pending.rs"]
mod pending;
#[path = "../src/records.rs"]
mod records;
#[path = "../src/renewal.rs"]
mod renewal;
#[path = "../src/retired.rs"]
mod retired;
#[path = "../src/shard.rs"]
mod shard;
#[path = "../src/slab.rs"]
mod slab;
#[path = "../src/stats.rs"]
mod stats;
#[path = "loom/sync.rs"]
mod sync;
#[path = "loom/thread.rs"]
mod thread;
#[path = "../src/user_code.rs"]
mod user_code;

/// Nothing expires here.
mod maintenance {
    use crate::clock::Sweep;

    pub(crate) fn register(_: std::sync::Weak<dyn Sweep>, _: bool) -> u64 {
        unreachable!("no model has entries that expire");
    }

    pub(crate) fn start() -> std::io::Result<()> {
        Ok(())
    }

    pub(crate) fn is_alone() -> bool {
        false
    }

    pub(crate) fn sweep_at(_: u64, _: u64) {}

    pub(crate) fn forget(_: u64) {}

    pub(crate) fn is_own_thread() -> bool {
        false
    }

    pub(crate) struct Quiet;

    impl Drop for Quiet {
        fn drop(&mut self) {}
    }

    pub(crate) fn quiet() -> Option<Quiet> {
        None
    }
}

/// Nothing forks here.
mod fork {
    pub(crate) fn prepare() {}

    pub(crate) fn keep<T>(_: u64, _: T) {}

    pub(crate) fn forget(_: u64) {}

    /// As of the crate: caches implement it.
    pub(crate) trait Forks: Send + Sync {
        fn locks(&self, until: std::time::Instant) -> Box<dyn Locks + '_>;
    }

    pub(crate) trait Locks {
        fn in_the_child(&mut self);
    }
}

#[path = "loom/frozen.rs"]
mod frozen_models;
#[path = "loom/holds.rs"]
mod hold_models;
#[path = "loom/host.rs"]
mod host_models;
#[path = "loom/loads.rs"]
mod load_models;
#[path = "loom/readers.rs"]
mod reader_models;
#[path = "loom/reclaiming.rs"]
mod reclaim_models;
#[path = "loom/refused.rs"]
mod refused_models;
#[path = "loom/scans.rs"]
mod scan_models;
#[path = "loom/writers.rs"]
mod writer_models;

use std::hash::BuildHasherDefault;
use std::sync::Arc;

use barrier::BarrierKind;
use floe_policy::Fifo;
use floe_testkit::Identity;
use sync::Tracked;

type Cache = cache::Cache<Tracked, Tracked, Fifo, BuildHasherDefault<Identity>>;

/// A handle that one thread has: the thread's record is given up with it.
struct Handle(Option<Cache>);

impl Handle {
    fn of(cache: &Cache) -> Self {
        Self(Some(cache.clone()))
    }
}

impl std::ops::Deref for Handle {
    type Target = Cache;

    fn deref(&self) -> &Cache {
        self.0.as_ref().expect("there until it is dropped")
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.inner.threads.release();
    }
}

impl Cache {
    fn small(entries: usize) -> Self {
        cache::Cache::<Tracked, Tracked>::builder()
            .capacity(entries)
            .policy(Fifo::default())
            .hasher(BuildHasherDefault::default())
            .shards(1)
            .clock(clock::Clock::manual())
            .build()
    }

    fn put(&self, key: u64, value: u64) {
        self.insert(Tracked::new(key), Tracked::new(value));
    }

    fn value(&self, key: u64) -> Option<u64> {
        self.get(&Tracked::new(key)).map(|value| value.get())
    }
}

fn model(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    let model = Arc::new(model);
    builder.check(move || {
        let model = Arc::clone(&model);
        thread::run(move || model());
    });
}

/// Runs a model with a barrier for which one side pays, and with one for which both do.
fn model_of_readers(preemptions: usize, run: impl Fn() + Sync + Send + Copy + 'static) {
    for kind in [BarrierKind::Asymmetric, BarrierKind::Symmetric] {
        barrier::with(kind);
        model(preemptions, run);
    }
}

/// Holds that a model finds out that the barrier reaches nobody.
fn misses_the_barrier(preemptions: usize, run: impl Fn() + Sync + Send + Copy + 'static) {
    let faulty = std::thread::spawn(move || {
        barrier::with(BarrierKind::Missing);
        sync::with_own_fences(false);
        model(preemptions, run);
    });
    let panic = faulty.join().expect_err("the model does without the barrier");
    let message = panic.downcast_ref::<String>().map_or("", |message| message);
    let is_found = ["Causality violation", "read after it was freed"]
        .iter()
        .any(|found| message.contains(found));
    assert!(is_found, "found something else: {message}");
}

/// Returns whether an address, of what was taken out before this, must not be freed.
fn is_protected(records: &records::Records, own: &hazard::Record, address: usize) -> bool {
    let protected = records.protected(own, records.ask(), [address].into_iter());
    protected.expect("there are few cells").contains(&address)
}
