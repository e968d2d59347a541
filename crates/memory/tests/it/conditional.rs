//! Changes that depend on what is there, by many threads at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use floe_memory::{Cache, Cause, Equivalent};

const THREADS: u64 = 4;
const TIMES: u64 = if cfg!(miri) { 20 } else { 5_000 };

#[test]
fn no_change_of_upserts_is_lost() {
    for capacity in [2, 100] {
        let cache = Cache::builder().capacity(capacity).shards(1).build();
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..TIMES {
                        cache.upsert_with("count", |count| count.map_or(1, |count| count + 1));
                    }
                });
            }
        });
        assert_eq!(cache.get_cloned("count"), Some(THREADS * TIMES));
    }
}

#[test]
fn one_thread_removes_what_several_want_to() {
    let cache = Cache::new(10);
    let removed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for round in 0..TIMES {
                    cache.replace_if("turn", round, |&turn| turn < round).ok();
                    if cache.remove_if("turn", |_| true).is_some() {
                        removed.fetch_add(1, SeqCst);
                        cache.insert("turn", round);
                    }
                }
            });
        }
        cache.insert("turn", 0);
    });
    let stats = cache.stats();
    assert_eq!(stats.removals, removed.load(SeqCst));
    assert!(stats.entries <= 1);
}

#[test]
fn a_closure_that_changes_the_key_itself_is_asked_again() {
    let cache = Cache::new(10);
    cache.insert("key", 1);
    let mut seen = Vec::new();
    let value = cache.upsert_with("key", |there| {
        seen.push(there.copied());
        if seen.len() == 1 {
            cache.insert("key", 10);
        }
        there.copied().unwrap_or_default() + 1
    });
    assert_eq!((*value, seen), (11, vec![Some(1), Some(10)]));
    let mut asked = 0;
    let gone = cache.remove_if("key", |_| {
        asked += 1;
        cache.remove("key");
        true
    });
    assert!(gone.is_none(), "it was removed already");
    assert_eq!(asked, 1);
}

#[test]
fn a_cache_of_capacity_0_is_off_and_loads_all_the_same() {
    for shards in [1, 4] {
        let left = Arc::new(AtomicU64::new(0));
        let told = Arc::clone(&left);
        let cache = Cache::builder()
            .capacity(0)
            .shards(shards)
            .listener(move |_: &u64, _: &u64, cause| {
                told.fetch_add(u64::from(cause == Cause::Rejected), SeqCst);
            })
            .build();
        for key in 0..100 {
            cache.insert(key, key);
            assert!(cache.get(&key).is_none());
            assert_eq!(*cache.get_with(&key, || key + 1), key + 1);
            assert_eq!(*cache.upsert_with(key, |there| there.map_or(7, |_| 8)), 7);
        }
        assert!(cache.is_empty());
        assert_eq!(left.load(SeqCst), 300);
        cache.resize(10);
        cache.insert(1, 1);
        assert!(cache.contains_key(&1));
        cache.resize(0);
        assert!(cache.is_empty());
    }
}

#[test]
fn a_guard_is_held_whatever_has_become_of_its_value_and_of_its_thread() {
    let cache = Cache::new(1000);
    (0..1000).for_each(|key| cache.insert(key, key.to_string()));
    // More than a record has cells for.
    let guards: Vec<_> = (0..1000).filter_map(|key| Some((key, cache.get(&key)?))).collect();
    cache.clear();
    let held: Vec<_> = guards.into_iter().map(|(key, guard)| (key, guard.hold(&cache))).collect();
    drop(cache);
    let thread = std::thread::spawn(move || {
        assert!(held.len() >= 900, "{} are in", held.len());
        held.iter().for_each(|(key, value)| assert_eq!(**value, key.to_string()));
    });
    thread.join().expect("all are there");
}

#[test]
#[should_panic(expected = "the guard is of another cache")]
fn a_guard_is_held_by_its_own_cache_only() {
    let (cache, other) = (Cache::new(10), Cache::<u64, u64>::new(10));
    cache.insert(1, 1);
    let guard = cache.get(&1).expect("just inserted");
    guard.hold(&other);
}

/// The key of a page, without a text of its own.
#[derive(Hash)]
struct Page<'a>(&'a str, u64);

impl Equivalent<(String, u64)> for Page<'_> {
    fn equivalent(&self, key: &(String, u64)) -> bool {
        self.0 == key.0 && self.1 == key.1
    }
}

#[test]
fn a_key_of_several_parts_is_looked_up_by_borrowed_ones() {
    let cache = Cache::new(10);
    cache.insert(("file".to_string(), 7), "page seven");
    assert_eq!(cache.get_cloned(&Page("file", 7)), Some("page seven"));
    assert!(!cache.contains_key(&Page("file", 8)));
    assert_eq!(*cache.remove(&Page("file", 7)).expect("it is there"), "page seven");
}
