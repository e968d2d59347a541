//! Entries that are refreshed before they expire, and loads of many keys.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use crate::common::block_on;
use floe_memory::{BuildError, Cache, Cause, Clock, InsertOptions, LoadError, RefreshJob};

const LIVE: Duration = Duration::from_secs(60);
const AHEAD: Duration = Duration::from_secs(10);

type Numbers = Cache<u64, u64>;

/// A cache with an entry that is due, and its clock.
fn due() -> (Numbers, Clock) {
    let clock = Clock::manual();
    let builder = Cache::builder().capacity(100).clock(clock.clone());
    let cache = builder.time_to_live(LIVE).refresh_ahead(AHEAD).build();
    cache.insert(1, 10);
    clock.advance(LIVE - AHEAD + Duration::from_secs(1));
    (cache, clock)
}

#[test]
fn one_caller_refreshes_and_the_others_go_on_with_the_old_value() {
    let (cache, clock) = due();
    let loads = AtomicU64::new(0);
    let value = cache.get_with(&1, || {
        loads.fetch_add(1, SeqCst);
        // None of these waits for this.
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope
                    .spawn(|| assert_eq!(*cache.get_with(&1, || unreachable!("it is loaded")), 10));
                scope.spawn(|| {
                    let load = async { Err("it is loaded twice") };
                    let value = block_on(cache.get_or_insert_async_cloned(&1, load));
                    assert_eq!(value, Ok(10));
                });
            }
        });
        assert_eq!(*cache.get_with(&1, || unreachable!("nor does this thread")), 10);
        11
    });
    assert_eq!((*value, loads.load(SeqCst)), (11, 1));
    // It is fresh, for as long as the first was.
    assert_eq!(*cache.get_with(&1, || unreachable!("it is fresh")), 11);
    clock.advance(LIVE - AHEAD - Duration::from_secs(1));
    assert_eq!(*cache.get_with(&1, || unreachable!("it is fresh")), 11);
}

#[test]
fn a_refresh_that_fails_changes_nothing_before_the_end() {
    let (cache, clock) = due();
    for tries in 1..=3 {
        assert_eq!(cache.get_or_insert_with(&1, || Err("no network")).as_deref(), Ok(&10));
        let load = async { Err("no network") };
        assert_eq!(block_on(cache.get_or_insert_async_cloned(&1, load)), Ok(10));
        assert_eq!(cache.stats().failed_loads, 2 * tries);
    }
    clock.advance(AHEAD);
    assert_eq!(cache.get_or_insert_with(&1, || Err("no network")).unwrap_err(), "no network");
}

#[test]
fn what_is_loaded_for_a_refresh_while_the_key_changes_does_not_come_in() {
    type Change = fn(&Numbers);
    let changes: [(Change, Option<u64>); 7] = [
        (|cache| drop(cache.remove(&1)), None),
        (|cache| drop(cache.remove_if(&1, |_| true)), None),
        (|cache| drop(cache.remove_if(&1, |_| false)), Some(10)),
        (|cache| cache.retain(|_, _| true), Some(10)),
        (|cache| cache.insert(1, 20), Some(20)),
        (|cache| drop(cache.upsert_with(1, |there| there.map_or(0, |there| there + 1))), Some(11)),
        (Cache::clear, None),
    ];
    for (change, left) in changes {
        let (cache, _clock) = due();
        let value = cache.get_with(&1, || {
            change(&cache);
            99
        });
        assert_eq!(*value, 99, "its caller gets it");
        assert_eq!(cache.get_cloned(&1), left);
    }
}

#[test]
fn a_refreshed_entry_stays_pinned_and_is_told_of_as_replaced() {
    let (clock, told) = (Clock::manual(), Arc::new(Mutex::new(Vec::new())));
    let log = Arc::clone(&told);
    let cache = Cache::builder()
        .capacity(2)
        .shards(1)
        .clock(clock.clone())
        .listener(move |key: &u64, value: &u64, cause| {
            log.lock().unwrap().push((*key, *value, cause))
        })
        .build();
    let options = InsertOptions::new().stale_while_revalidate(LIVE, AHEAD);
    cache.insert_with(1, 10, options.pinned());
    clock.advance(LIVE + Duration::from_secs(1));
    let value = cache.loads().get(&1, || Ok::<_, ()>((11, options)));
    assert_eq!(value.as_deref(), Ok(&11));
    assert_eq!(cache.stats().pinned, 1);
    assert_eq!(*told.lock().unwrap(), [(1, 10, Cause::Replaced)]);
}

#[test]
fn an_entry_that_is_refreshed_ahead_does_not_expire_unused_and_is_frozen() {
    let clock = Clock::manual();
    let builder = Cache::builder().capacity(100).clock(clock.clone());
    let cache = builder.time_to_idle(Duration::from_secs(1)).build();
    cache.insert_with(1, 10, InsertOptions::new().time_to_live(LIVE).refresh_ahead(AHEAD));
    clock.advance(LIVE - AHEAD / 2);
    assert_eq!(cache.get_cloned(&1), Some(10));
    assert_eq!(cache.freeze(1.0).entries, 1);
    assert_eq!(*cache.get_with(&1, || 11), 11);
    assert_eq!(cache.get_cloned(&1), Some(11));
    // That one lives as the cache's others do.
    clock.advance(Duration::from_secs(2));
    assert_eq!(cache.get_cloned(&1), None);
}

#[test]
fn a_refresh_in_the_background_is_one_and_another_is_begun_where_it_is_dropped() {
    let (cache, _clock) = due();
    let options = InsertOptions::new().time_to_live(LIVE);
    let mut jobs: Vec<RefreshJob> = Vec::new();
    let mut ask = |value| {
        let mut job = None;
        let load = move || Ok::<_, ()>((value, options));
        let got = cache.loads().get_in_background(&1, load, |given| job = Some(given));
        assert_eq!(got.as_deref(), Ok(&10));
        let given = job.is_some();
        jobs.extend(job);
        given
    };
    assert!(ask(11));
    assert!(!ask(12), "one is under way");
    jobs.clear();
    let ask = |value| {
        let mut job = None;
        let load = move || Ok::<_, ()>((value, options));
        let got = cache.loads().get_in_background(&1, load, |given| job = Some(given));
        assert_eq!(got.as_deref(), Ok(&10));
        job
    };
    let job = ask(13).expect("the first was dropped");
    std::thread::spawn(job).join().expect("it loads");
    assert_eq!(cache.get_cloned(&1), Some(13));
    assert_eq!((cache.stats().loads, cache.stats().failed_loads), (2, 1));
}

#[test]
fn a_task_refreshes_in_the_background_after_its_cache_was_dropped_by_its_caller() {
    let (cache, _clock) = due();
    let options = InsertOptions::new().time_to_live(LIVE);
    let mut task = None;
    let load = async move { Ok::<_, ()>((11, options)) };
    let ask = cache.loads().get_in_background_async(&1, load, |given| task = Some(given));
    block_on(async { assert_eq!(ask.await.as_deref(), Ok(&10)) });
    let other = cache.clone();
    drop(cache);
    let thread = std::thread::spawn(move || block_on(task.expect("it is due")));
    thread.join().expect("it loads");
    assert_eq!(other.get_cloned(&1), Some(11));
    let load = async move { Ok::<_, ()>((20, options)) };
    let value = block_on(async {
        let ask = other.loads().get_in_background_async(&2, load, |_| unreachable!("it is absent"));
        ask.await.map(|value| *value)
    });
    assert_eq!(value, Ok(20));
}

#[test]
fn caches_that_could_not_refresh_are_not_made() {
    let ahead = || Cache::<u64, u64>::builder().capacity(1).refresh_ahead(AHEAD);
    let idle = ahead().time_to_live(LIVE).time_to_idle(LIVE);
    for builder in [ahead(), idle] {
        assert_eq!(builder.try_build().unwrap_err(), BuildError::RefreshAhead);
    }
    let zero = ahead().time_to_live(LIVE).refresh_ahead(Duration::ZERO);
    assert_eq!(zero.try_build().unwrap_err(), BuildError::ZeroTime("refresh_ahead"));
}

#[test]
fn a_caller_with_patience_gets_what_another_loads() {
    let (cache, start) = (Numbers::new(10), Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            cache.get_with(&1, || {
                start.wait();
                while cache.stats().misses < 2 {
                    std::thread::yield_now();
                }
                10
            });
        });
        start.wait();
        let load = || Ok::<_, ()>((11, InsertOptions::new()));
        let value = cache.loads().get_within(&1, Duration::MAX, load);
        assert_eq!(value.as_deref(), Ok(&10));
    });
    let failed = cache.loads().get_within(&2, Duration::ZERO, || Err("no network"));
    assert_eq!(failed.unwrap_err(), LoadError::Failed("no network"));
}

#[test]
fn many_keys_are_loaded_in_one_call_and_each_once() {
    const THREADS: u64 = 4;
    let (cache, loads) = (Cache::new(1000), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (cache, loads) = (&cache, &loads);
            scope.spawn(move || {
                // They overlap.
                let keys: Vec<u64> = (thread * 50..thread * 50 + 100).collect();
                let mut calls = 0;
                let found = cache.get_or_load_many(&keys, |keys| {
                    calls += 1;
                    loads.fetch_add(keys.len() as u64, SeqCst);
                    Ok::<_, ()>(keys.iter().map(|key| Some(*key * 2)).collect())
                });
                let found: Vec<_> = found.expect("they load").into_iter().flatten().collect();
                assert!(keys.iter().zip(&found).all(|(key, value)| **value == key * 2));
                assert_eq!(found.len(), 100);
                assert!(calls <= 1);
            });
        }
    });
    assert_eq!((loads.load(SeqCst), cache.len()), (250, 250));
}

#[test]
fn a_key_that_comes_twice_is_loaded_once_and_one_that_is_not_there_is_none() {
    let cache = Numbers::new(10);
    let mut calls = 0;
    let found = cache.get_or_load_many(&[1, 1, 2, 2], |keys| {
        calls += 1;
        assert_eq!(keys, [&1, &2]);
        Ok::<_, ()>(vec![Some(10)])
    });
    let found = found.expect("it loads");
    assert_eq!(
        found.iter().map(|value| value.as_deref()).collect::<Vec<_>>(),
        [Some(&10), Some(&10), None, None]
    );
    assert_eq!(calls, 1);
    assert_eq!((cache.stats().loads, cache.stats().failed_loads), (2, 1));
}

#[test]
fn a_load_of_many_that_fails_or_panics_leaves_its_keys_to_others() {
    let cache = Numbers::new(10);
    assert_eq!(cache.get_or_load_many(&[1, 2], |_| Err("no network")).unwrap_err(), "no network");
    let panics = std::panic::AssertUnwindSafe(|| {
        cache.get_or_load_many(&[1, 2], |_| -> Result<Vec<_>, ()> { panic!("it panics") }).is_ok()
    });
    assert!(std::panic::catch_unwind(panics).is_err());
    assert_eq!((*cache.get_with(&1, || 10), *cache.get_with(&2, || 20)), (10, 20));
}

#[test]
fn what_another_caller_fails_to_load_is_loaded_in_a_second_call() {
    let (cache, start) = (Numbers::new(10), Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let failed = cache.get_or_insert_with(&1, || {
                start.wait();
                while cache.stats().misses < 3 {
                    std::thread::yield_now();
                }
                Err("no network")
            });
            assert!(failed.is_err());
        });
        start.wait();
        let mut calls = Vec::new();
        let found = cache.get_or_load_many(&[1, 2], |keys| {
            calls.push(keys.iter().map(|key| **key).collect::<Vec<_>>());
            Ok::<_, ()>(keys.iter().map(|key| Some(*key * 10)).collect())
        });
        let found = found.expect("they load");
        assert!(found.iter().zip([10, 20]).all(|(value, there)| value.as_deref() == Some(&there)));
        assert!(calls == [vec![2], vec![1]] || calls == [vec![1, 2]], "{calls:?}");
    });
}

#[test]
fn many_keys_that_are_due_are_refreshed_and_a_failure_leaves_them() {
    let (cache, _clock) = due();
    let found = cache.get_or_load_many(&[1], |_| Err("no network")).expect("the old one is there");
    assert_eq!(found[0].as_deref(), Some(&10));
    let found = cache.get_or_load_many(&[1, 2], |keys| {
        Ok::<_, ()>(keys.iter().map(|key| Some(*key * 100)).collect())
    });
    let found = found.expect("they load");
    assert!(found.iter().zip([100, 200]).all(|(value, there)| value.as_deref() == Some(&there)));
}
