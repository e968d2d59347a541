//! Models of guards and holds that outlive the call, the thread's record or the cache.

use std::sync::Arc;

use crate::records::Records;
use crate::sync::Tracked;
use crate::{Cache, Handle, barrier, is_protected, model, model_of_readers, sync, thread};

#[test]
fn a_guard_that_comes_to_travel_keeps_its_value_all_the_while() {
    model(6, || {
        let cache = Cache::small(1);
        cache.put(1, 10);
        let other = Handle::of(&cache);
        let reader = thread::spawn(move || other.hold(&Tracked::new(1)));
        drop(cache.remove(&Tracked::new(1)));
        cache.reclaim();
        let held = reader.join().unwrap();
        cache.reclaim();
        assert!(held.as_ref().is_none_or(|value| value.get() == 10));
        drop(held);
        cache.reclaim();
        assert_eq!(cache.stats().waiting, 0, "nobody looks at it any more");
    });
}

#[test]
fn a_value_that_has_travelled_is_freed_when_it_is_let_go_and_not_before() {
    model(5, || {
        let cache = Cache::small(1);
        cache.put(1, 10);
        let held = cache.hold(&Tracked::new(1)).unwrap();
        let reader = thread::spawn(move || assert_eq!(held.get(), 10));
        drop(cache.remove(&Tracked::new(1)));
        cache.reclaim();
        reader.join().unwrap();
        cache.reclaim();
        assert_eq!(cache.stats().waiting, 0, "nobody looks at it any more");
    });
}

#[test]
fn what_a_guard_showed_is_kept_by_the_hold_that_it_becomes() {
    model_of_readers(3, || {
        let cache = Cache::small(1);
        cache.put(1, 10);
        let other = Handle::of(&cache);
        let thread = thread::spawn(move || {
            let guard = other.get(&Tracked::new(1));
            let held = guard.map(|guard| guard.hold(&other));
            assert!(held.is_none_or(|held| held.get() == 10));
        });
        drop(cache.remove(&Tracked::new(1)));
        cache.reclaim();
        thread.join().unwrap();
        cache.reclaim();
    });
}

#[test]
fn a_guard_that_outlives_its_thread_s_record_keeps_its_entry_under_the_next_owner() {
    use sync::{AtomicUsize, Ordering};

    const ADDRESS: usize = 2;
    const OTHER: usize = 4;
    model(4, || {
        let records = Arc::new(Records::default());
        let (place, entry) = (Arc::new(AtomicUsize::new(ADDRESS)), Arc::new(Tracked::new(10)));
        // SAFETY: records live as long as `records`, in all threads.
        let [own, first] = [(); 2].map(|()| unsafe { &*records.acquire() });
        let cell = first.cell();
        cell.store(ADDRESS, Ordering::Release);
        records.release(first); // as a thread does that ends and drops the guard last of all
        let next = {
            let records = Arc::clone(&records);
            thread::spawn(move || {
                // SAFETY: as above.
                let record = unsafe { &*records.acquire() };
                record.cell().store(OTHER, Ordering::Release);
            })
        };
        let reclaimer = {
            let (records, place, entry) =
                (Arc::clone(&records), Arc::clone(&place), Arc::clone(&entry));
            thread::spawn(move || {
                place.store(0, Ordering::Release);
                if !is_protected(&records, own, ADDRESS) {
                    entry.free();
                }
            })
        };
        assert_eq!(entry.get(), 10);
        cell.store(0, Ordering::Release);
        next.join().unwrap();
        reclaimer.join().unwrap();
    });
}

#[test]
fn a_guard_beyond_the_first_few_is_seen_while_cells_come_and_go() {
    use sync::{AtomicUsize, Ordering};

    const ADDRESS: usize = 2;
    const OTHER: usize = 4;
    sync::with_own_fences(false);
    model(3, || {
        let records = Arc::new(Records::default());
        let (place, entry) = (Arc::new(AtomicUsize::new(ADDRESS)), Arc::new(Tracked::new(10)));
        // SAFETY: records live as long as `records`, in all threads.
        let [own, readers] = [(); 2].map(|()| unsafe { &*records.acquire() });
        for _ in 0..5 {
            readers.cell().store(OTHER, Ordering::Release);
        }
        let reader = {
            let (_records, place, entry) =
                (Arc::clone(&records), Arc::clone(&place), Arc::clone(&entry));
            thread::spawn(move || {
                readers.cell().store(0, Ordering::Release); // the chunk is empty and may go
                let cell = readers.cell();
                cell.store(ADDRESS, Ordering::Release);
                barrier::light();
                if place.load(Ordering::Acquire) == ADDRESS {
                    assert_eq!(entry.get(), 10);
                }
                cell.store(0, Ordering::Release);
            })
        };
        _ = is_protected(&records, own, ADDRESS);
        place.store(0, Ordering::Release);
        if !is_protected(&records, own, ADDRESS) {
            entry.free();
        }
        reader.join().unwrap();
    });
}

#[test]
fn what_is_held_when_the_cache_ends_is_dropped_once_by_whoever_holds_it_last() {
    model(4, || {
        let cache = Cache::small(2);
        cache.put(1, 10);
        cache.put(2, 20);
        let held = [1, 1, 2].map(|key| cache.hold(&Tracked::new(key)).unwrap());
        let [first, second, third] = held;
        let holder = thread::spawn(move || {
            assert_eq!((first.get(), third.get()), (10, 20));
            drop(first);
        });
        drop(cache);
        assert_eq!(second.get(), 10);
        drop(second);
        holder.join().unwrap();
    });
}

#[test]
fn what_is_held_by_another_thread_stays_while_the_table_is_replaced_and_it_leaves() {
    model(2, || {
        let cache = Cache::small(1);
        cache.put(1, 10);
        cache.resize(2);
        let other = Handle::of(&cache);
        let holder = thread::spawn(move || {
            let held = other.hold(&Tracked::new(1));
            assert!(held.as_ref().is_none_or(|value| value.get() == 10));
            held
        });
        cache.put(2, 20); // grows
        drop(cache.remove(&Tracked::new(1)));
        cache.reclaim();
        let held = holder.join().unwrap();
        assert!(held.is_none_or(|value| value.get() == 10));
        assert_eq!(cache.value(2), Some(20));
    });
}
