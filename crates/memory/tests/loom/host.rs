//! Handles of a host's cache that one thread takes and another releases.

use std::hash::BuildHasherDefault;
use std::sync::Arc;

use floe_policy::Fifo;
use floe_testkit::Identity;

use crate::host::{Handle, HostBuilder, HostCache, Insertion};
use crate::records::Records;
use crate::sync::{self, Ordering, Tracked};
use crate::{BarrierKind, barrier, is_protected, model, model_of_readers, thread};

type Host = HostCache<Tracked, Tracked, Fifo, BuildHasherDefault<Identity>>;

/// A reference that one thread has: the thread's record is given up with it.
struct Shared(Arc<Host>);

impl Drop for Shared {
    fn drop(&mut self) {
        self.0.cache.inner.threads.release();
    }
}

fn small() -> Arc<Host> {
    let cache = HostBuilder::new(100)
        .policy(Fifo::default())
        .hasher(BuildHasherDefault::default())
        .shards(1)
        .build();
    Arc::new(cache)
}

fn put(cache: &Host, key: u64, value: u64) {
    assert!(cache.insert(Tracked::new(key), Tracked::new(value), 1, Insertion::new()).is_ok());
}

/// A handle as a number, which another thread takes.
fn take(cache: &Host, key: u64) -> usize {
    let found = cache.lookup(&Tracked::new(key)).expect("it is there");
    found.into_raw().as_ptr().expose_provenance()
}

fn handle(raw: usize) -> Handle<'static, Tracked, Tracked> {
    let raw = std::ptr::with_exposed_provenance_mut(raw);
    // SAFETY: from `take`, used once, and the models keep the cache until their threads have ended.
    unsafe { Handle::from_raw(std::ptr::NonNull::new(raw).unwrap()) }
}

#[test]
fn a_value_is_not_freed_under_the_thread_that_releases_another_s_handle() {
    model_of_readers(3, || {
        let cache = small();
        put(&cache, 1, 10);
        let raw = take(&cache, 1);
        let releaser = thread::spawn(move || {
            let given = handle(raw);
            assert_eq!(given.get(), 10);
            drop(given);
        });
        assert!(cache.erase(&Tracked::new(1)));
        cache.reclaim();
        releaser.join().unwrap();
        cache.reclaim();
        assert_eq!(cache.usage(), 0);
    });
}

#[test]
fn a_cell_that_another_thread_has_emptied_names_the_next_entry_after_all_uses_of_the_first() {
    const ADDRESS: usize = 2;
    const OTHER: usize = 4;
    // Fences of threads that wait, and the reclaimer's, would hide a cell's order that is lacking.
    barrier::with(BarrierKind::Symmetric);
    sync::with_own_fences(false);
    model(4, || {
        let records = Arc::new(Records::default());
        let entry = Arc::new(Tracked::new(10));
        // SAFETY: records live as long as `records`, in all threads.
        let [own, owner] = [(); 2].map(|()| unsafe { &*records.acquire() });
        let takes = |address| {
            let cell = owner.cell();
            cell.store(address, Ordering::Release);
            owner.handle_cell(cell).expect("a few are free")
        };
        let handle = takes(ADDRESS);
        let next = {
            let _records = Arc::clone(&records);
            thread::spawn(move || _ = takes(OTHER))
        };
        let reclaimer = {
            let (records, entry) = (Arc::clone(&records), Arc::clone(&entry));
            thread::spawn(move || {
                if !is_protected(&records, own, ADDRESS) {
                    entry.free();
                }
            })
        };
        // as a thread to which the handle was given
        assert_eq!(entry.get(), 10);
        handle.store(0, Ordering::Release);
        next.join().unwrap();
        reclaimer.join().unwrap();
    });
}

#[test]
fn a_handle_beyond_the_thread_s_cells_is_counted_before_its_cell_is_emptied() {
    model_of_readers(2, || {
        let cache = small();
        put(&cache, 1, 10);
        put(&cache, 2, 20);
        let others = [(); 4].map(|()| take(&cache, 2));
        let shared = Shared(Arc::clone(&cache));
        let reclaimer = thread::spawn(move || {
            shared.0.erase(&Tracked::new(1));
            shared.0.reclaim();
        });
        if let Some(found) = cache.lookup(&Tracked::new(1)) {
            assert_eq!(found.get(), 10);
        }
        reclaimer.join().unwrap();
        drop(others.map(handle));
        cache.reclaim();
        assert_eq!((cache.usage(), cache.pinned_usage()), (1, 0));
    });
}

#[test]
fn a_value_that_is_counted_is_freed_after_its_last_owner_wherever_that_is() {
    model(3, || {
        let cache = small();
        put(&cache, 1, 10);
        let found = handle(take(&cache, 1)).into_long();
        let raw = found.into_raw().as_ptr().expose_provenance();
        let releaser = thread::spawn(move || {
            let given = handle(raw);
            assert_eq!(given.get(), 10);
            let copy = given.clone();
            drop(given);
            assert_eq!(copy.get(), 10);
        });
        assert!(cache.erase(&Tracked::new(1)));
        cache.reclaim();
        releaser.join().unwrap();
        cache.reclaim();
        assert_eq!((cache.usage(), cache.pinned_usage()), (0, 0));
    });
}

#[test]
fn a_value_in_no_cache_is_dropped_by_the_last_of_two_owners() {
    model(3, || {
        let cache = small();
        let alone = cache.stand_alone(Tracked::new(1), Tracked::new(10), 5).expect("there is room");
        let raw = alone.clone().into_raw().as_ptr().expose_provenance();
        let releaser = thread::spawn(move || {
            let given = handle(raw);
            assert_eq!(given.get(), 10);
        });
        assert_eq!(alone.get(), 10);
        drop(alone);
        releaser.join().unwrap();
        assert_eq!((cache.usage(), cache.pinned_usage()), (0, 0));
    });
}
