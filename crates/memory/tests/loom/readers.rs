//! Models of readers beside removals, replacements and tables that are replaced.

use std::sync::Arc;

use crate::barrier::BarrierKind;
use crate::sync::Tracked;
use crate::{Cache, Handle, barrier, misses_the_barrier, model, model_of_readers, sync, thread};

#[test]
fn what_a_guard_shows_is_not_freed_by_a_removal() {
    for own_fences in [true, false] {
        sync::with_own_fences(own_fences);
        model_of_readers(4, || {
            let cache = Cache::small(2);
            cache.put(1, 10);
            let other = Handle::of(&cache);
            let reader = thread::spawn(move || {
                let seen = other.value(1);
                assert!(seen.is_none_or(|value| value == 10));
                seen
            });
            drop(cache.remove(&Tracked::new(1)));
            cache.reclaim();
            assert_eq!(cache.value(1), None, "it was removed before");
            reader.join().unwrap();
        });
    }
}

#[test]
fn a_replaced_key_has_the_old_value_or_the_new_one() {
    model_of_readers(4, || {
        let cache = Cache::small(2);
        cache.put(1, 10);
        let other = Handle::of(&cache);
        let reader = thread::spawn(move || {
            let first = other.value(1).expect("it is there all the while");
            let second = other.value(1).expect("it is there all the while");
            assert!(
                (10..=11).contains(&first) && (first..=11).contains(&second),
                "{first}, {second}"
            );
        });
        cache.put(1, 11);
        cache.reclaim();
        reader.join().unwrap();
    });
}

#[test]
fn a_place_that_is_used_again_is_not_taken_for_what_was_there() {
    model_of_readers(4, || {
        let cache = Cache::small(1);
        cache.put(1, 10);
        let other = Handle::of(&cache);
        let reader = thread::spawn(move || {
            assert!(other.value(1).is_none_or(|value| value == 10));
        });
        cache.remove(&Tracked::new(1));
        cache.reclaim();
        cache.put(2, 20);
        assert_eq!(cache.value(2), Some(20));
        reader.join().unwrap();
    });
}

#[test]
fn a_key_that_comes_back_is_seen_with_its_new_value() {
    model_of_readers(4, || {
        let cache = Cache::small(1);
        cache.put(1, 10);
        let other = Handle::of(&cache);
        let reader = thread::spawn(move || {
            assert!(other.value(1).is_none_or(|value| value == 10 || value == 11));
        });
        drop(cache.remove(&Tracked::new(1)));
        cache.put(1, 11); // the same lane and the same tag
        reader.join().unwrap();
    });
}

#[test]
fn what_is_there_is_found_while_the_table_is_replaced() {
    model_of_readers(2, || {
        let cache = Cache::small(1);
        cache.put(1, 10);
        cache.resize(2);
        let other = Handle::of(&cache);
        let reader = thread::spawn(move || {
            assert_eq!(other.value(1), Some(10), "it is there all the while");
            let second = other.value(2);
            assert!(second.is_none_or(|value| value == 20));
            second
        });
        cache.put(2, 20); // grows
        cache.reclaim();
        reader.join().unwrap();
        assert_eq!((cache.value(1), cache.value(2)), (Some(10), Some(20)));
    });
}

#[test]
fn a_late_reader_of_an_old_table_finds_nothing_stale_in_it() {
    model_of_readers(2, || {
        let cache = Cache::small(1);
        cache.put(1, 10);
        cache.resize(2);
        let other = Handle::of(&cache);
        let told = Arc::new(loom::sync::atomic::AtomicBool::new(false));
        let tell = Arc::clone(&told);
        let reader = thread::spawn(move || {
            // Acquire: the removal came before.
            let removed = told.load(std::sync::atomic::Ordering::Acquire);
            let seen = other.value(1);
            assert!(!removed || seen.is_none(), "removed before it was asked for");
        });
        cache.put(2, 20); // grows
        drop(cache.remove(&Tracked::new(1)));
        tell.store(true, std::sync::atomic::Ordering::Release);
        cache.reclaim();
        reader.join().unwrap();
    });
}

/// A reader that looks a key up while it is removed.
pub(crate) fn looks_up_beside_a_removal() {
    let cache = Cache::small(2);
    cache.put(1, 10);
    let other = Handle::of(&cache);
    let reader = thread::spawn(move || assert!(other.value(1).is_none_or(|value| value == 10)));
    drop(cache.remove(&Tracked::new(1)));
    cache.reclaim();
    reader.join().unwrap();
}

/// A reader that looks a key up while its table is replaced.
pub(crate) fn looks_up_while_the_table_is_replaced() {
    let cache = Cache::small(1);
    cache.put(1, 10);
    cache.resize(2);
    let other = Handle::of(&cache);
    let reader =
        thread::spawn(move || assert_eq!(other.value(1), Some(10), "it is there all the while"));
    cache.put(2, 20); // grows
    cache.reclaim();
    reader.join().unwrap();
}

/// Somebody goes through the entries and reads them while one is removed and another replaced.
fn iterates_beside_a_removal() {
    let cache = Cache::small(3);
    cache.put(1, 10);
    cache.put(2, 20);
    let other = Handle::of(&cache);
    let reader = thread::spawn(move || {
        let seen: Vec<_> =
            other.iter().map(|item| (item.key().get(), item.value().get())).collect();
        assert!(seen.iter().all(|seen| [(1, 10), (2, 20), (2, 21)].contains(seen)), "{seen:?}");
        assert!(
            seen.iter().filter(|(key, _)| *key == 2).count() == 1,
            "it is there all the while: {seen:?}"
        );
    });
    drop(cache.remove(&Tracked::new(1)));
    cache.put(2, 21);
    cache.reclaim();
    reader.join().unwrap();
}

#[test]
fn the_models_find_out_that_the_barrier_is_missing() {
    misses_the_barrier(4, looks_up_beside_a_removal);
}

#[test]
fn a_table_that_is_replaced_is_looked_at_without_a_barrier() {
    let reader = std::thread::spawn(|| {
        barrier::with(BarrierKind::Missing);
        sync::with_own_fences(false);
        model(3, looks_up_while_the_table_is_replaced);
    });
    reader.join().expect("tables live as long as their shard");
}

#[test]
fn what_an_iterator_shows_is_neither_freed_nor_missed() {
    model_of_readers(2, iterates_beside_a_removal);
}

#[test]
fn what_leaves_for_a_smaller_limit_is_not_freed_under_a_reader_and_the_rest_is_found() {
    model_of_readers(2, || {
        let cache = Cache::small(2);
        cache.put(1, 10);
        cache.put(2, 20);
        let other = Handle::of(&cache);
        let reader = thread::spawn(move || {
            assert!(other.value(1).is_none_or(|value| value == 10));
            assert_eq!(other.value(2), Some(20), "it is there all the while");
        });
        cache.resize(1); // the first leaves
        reader.join().unwrap();
        assert_eq!((cache.value(1), cache.len()), (None, 1));
    });
}

#[test]
fn what_is_pinned_is_found_and_what_is_unpinned_leaves_without_being_freed_under_a_reader() {
    model_of_readers(2, || {
        let cache = Cache::small(1);
        cache.put(1, 10);
        assert!(cache.pin(&Tracked::new(1)));
        let other = Handle::of(&cache);
        let reader = thread::spawn(move || {
            assert!(other.value(1).is_none_or(|value| value == 10));
        });
        cache.put(2, 20); // finds no room
        assert_eq!(cache.value(1), Some(10), "it is pinned");
        assert!(cache.unpin(&Tracked::new(1)));
        cache.put(3, 30); // takes its room
        cache.reclaim();
        reader.join().unwrap();
        assert_eq!((cache.value(1), cache.value(3)), (None, Some(30)));
    });
}
