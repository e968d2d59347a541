//! Models of threads that free what others may look at.

use std::sync::Arc;

use crate::records::Records;
use crate::sync::Tracked;
use crate::{
    Cache, Handle, barrier, is_protected, misses_the_barrier, model, model_of_readers, sync, thread,
};

#[test]
fn whoever_is_alone_frees_nothing_under_a_thread_that_comes_meanwhile() {
    // as far as this goes, it is the barrier that is left out by whoever is alone
    sync::with_own_fences(false);
    model_of_readers(4, || {
        let cache = Cache::small(1);
        cache.put(1, 10);
        let (first, second) = (Handle::of(&cache), Handle::of(&cache));
        cache.inner.threads.release(); // the two are all there is
        let reader = thread::spawn(move || {
            assert!(first.value(1).is_none_or(|value| value == 10));
        });
        let remover = thread::spawn(move || {
            drop(second.remove(&Tracked::new(1)));
            second.reclaim();
        });
        reader.join().unwrap();
        remover.join().unwrap();
    });
}

#[test]
fn two_who_reclaim_at_once_free_nothing_under_a_reader_and_nothing_twice() {
    model(2, || {
        let cache = Cache::small(2);
        cache.put(1, 10);
        cache.put(2, 20);
        let handles = [Handle::of(&cache), Handle::of(&cache)];
        let threads = handles.map(|other| {
            thread::spawn(move || {
                other.remove(&Tracked::new(1));
                assert!(other.value(2).is_none_or(|value| value == 20));
                other.reclaim();
            })
        });
        cache.remove(&Tracked::new(2));
        cache.reclaim();
        for thread in threads {
            thread.join().unwrap();
        }
        cache.reclaim();
        assert_eq!(cache.stats().waiting, 0);
    });
}

#[test]
fn who_has_answered_looks_at_nothing_that_was_taken_out_before_even_without_a_barrier() {
    use sync::{AtomicUsize, Ordering};

    const ADDRESS: usize = 2;
    sync::with_own_fences(false);
    model(5, || {
        let records = Arc::new(Records::default());
        let (place, entry) = (Arc::new(AtomicUsize::new(ADDRESS)), Arc::new(Tracked::new(10)));
        // SAFETY: records live as long as `records`, in both threads.
        let own = unsafe { &*records.acquire() };
        let reader = {
            let (records, place, entry) =
                (Arc::clone(&records), Arc::clone(&place), Arc::clone(&entry));
            thread::spawn(move || {
                // SAFETY: as above.
                let record = unsafe { &*records.acquire() };
                for answers_within in [true, false] {
                    if place.load(Ordering::Acquire) == ADDRESS {
                        let cell = record.cell();
                        cell.store(ADDRESS, Ordering::Release);
                        if place.load(Ordering::Acquire) == ADDRESS {
                            assert_eq!(entry.get(), 10);
                            if answers_within {
                                // comparing keys is the user's code and may insert something
                                records.answer(record);
                                assert_eq!(entry.get(), 10);
                            }
                        }
                        cell.store(0, Ordering::Release);
                    }
                    records.answer(record);
                }
            })
        };
        place.store(0, Ordering::Release);
        let asked = records.ask();
        for _ in 0..2 {
            let protected = records.protected_at_once(own, asked, [ADDRESS].into_iter());
            if protected.is_some_and(|protected| !protected.contains(&ADDRESS)) {
                entry.free();
                break;
            }
        }
        reader.join().unwrap();
    });
}

#[test]
fn a_barrier_of_another_thread_counts_for_what_was_taken_out_before_it_only() {
    use sync::{AtomicUsize, Ordering};

    const ADDRESS: usize = 2;
    sync::with_own_fences(false);
    model(4, || {
        let records = Arc::new(Records::default());
        let (place, entry) = (Arc::new(AtomicUsize::new(ADDRESS)), Arc::new(Tracked::new(10)));
        // SAFETY: records live as long as `records`, in all three threads.
        let [own, others, readers] = [(); 3].map(|()| unsafe { &*records.acquire() });
        let reader = {
            let (_records, place, entry) =
                (Arc::clone(&records), Arc::clone(&place), Arc::clone(&entry));
            thread::spawn(move || {
                let cell = readers.cell();
                cell.store(ADDRESS, Ordering::Release);
                barrier::light();
                if place.load(Ordering::Acquire) == ADDRESS {
                    assert_eq!(entry.get(), 10);
                }
                cell.store(0, Ordering::Release);
            })
        };
        let other = {
            let records = Arc::clone(&records);
            thread::spawn(move || _ = is_protected(&records, others, ADDRESS))
        };
        place.store(0, Ordering::Release);
        if !is_protected(&records, own, ADDRESS) {
            entry.free();
        }
        reader.join().unwrap();
        other.join().unwrap();
    });
}

/// Another thread looks a value up while it is moved out of its guard.
fn moves_out_beside_a_reader() {
    let cache = Cache::small(1);
    cache.put(1, 10);
    let other = Handle::of(&cache);
    let reader = thread::spawn(move || {
        assert!(other.value(1).is_none_or(|value| value == 10));
    });
    let removed = cache.remove(&Tracked::new(1)).unwrap();
    match removed.try_into_inner(&cache) {
        Ok(value) => value.set(11),
        Err(guard) => assert_eq!(guard.get(), 10),
    }
    reader.join().unwrap();
    cache.reclaim();
    assert_eq!(cache.stats().waiting, 0);
}

#[test]
fn a_value_moves_out_only_where_no_other_thread_reads_it() {
    model_of_readers(4, moves_out_beside_a_reader);
}

#[test]
fn a_value_moves_out_safely_only_because_of_the_barrier() {
    misses_the_barrier(4, moves_out_beside_a_reader);
}

#[test]
fn of_two_guards_one_moves_the_value_out_at_most() {
    model_of_readers(3, || {
        let cache = Cache::small(1);
        cache.put(1, 10);
        let other = Handle::of(&cache);
        let holder = thread::spawn(move || {
            let guard = other.get(&Tracked::new(1));
            let held = guard.map(|guard| guard.hold(&other));
            let moved = held.map(|held| held.try_into_inner(&other));
            moved.is_some_and(|moved| moved.inspect(|value| value.set(12)).is_ok())
        });
        let removed = cache.remove(&Tracked::new(1)).unwrap();
        let moved = removed.try_into_inner(&cache).inspect(|value| value.set(11)).is_ok();
        let moved_there = holder.join().unwrap();
        assert!(!(moved && moved_there));
        cache.reclaim();
        assert_eq!(cache.stats().waiting, 0);
    });
}

#[test]
fn what_another_thread_is_about_to_free_moves_out_or_stays() {
    model(3, || {
        let cache = Cache::small(1);
        cache.put(1, 10);
        let other = Handle::of(&cache);
        let removed = cache.remove(&Tracked::new(1)).unwrap();
        let reclaimer = thread::spawn(move || other.reclaim());
        match removed.try_into_inner(&cache) {
            Ok(value) => value.set(11),
            Err(guard) => assert_eq!(guard.get(), 10),
        }
        reclaimer.join().unwrap();
        cache.reclaim();
        assert_eq!(cache.stats().waiting, 0);
    });
}

#[test]
fn a_value_that_another_thread_removed_moves_out_beside_a_reader() {
    model_of_readers(2, || {
        let cache = Cache::small(1);
        cache.put(1, 10);
        let guard = cache.get(&Tracked::new(1)).unwrap();
        let (first, second) = (Handle::of(&cache), Handle::of(&cache));
        let remover = thread::spawn(move || drop(first.remove(&Tracked::new(1))));
        let reader = thread::spawn(move || {
            assert!(second.value(1).is_none_or(|value| value == 10));
        });
        match guard.try_into_inner(&cache) {
            Ok(value) => value.set(11),
            Err(guard) => assert_eq!(guard.get(), 10),
        }
        remover.join().unwrap();
        reader.join().unwrap();
        cache.reclaim();
        assert_eq!(cache.stats().waiting, 0);
    });
}
