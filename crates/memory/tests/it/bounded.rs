//! The cost of operations does not grow with what there once was: counted in records, cells and
//! holds that are looked at.

use std::cell::RefCell;
use std::sync::{Arc, Barrier};

use crate::common::Tally;
use floe_memory::{Cache, visited, visited_at_once};

const MANY: usize = if cfg!(miri) { 20 } else { 300 };

/// Returns what is looked at for a thousand insertions that evict, each into a place of its own.
fn looked_at(cache: &Cache<u64, u64>) -> u64 {
    let before = visited(cache);
    for key in 0..1000 {
        cache.insert(u64::MAX - key, key);
    }
    visited(cache) - before
}

fn small() -> Cache<u64, u64> {
    let cache = Cache::builder().capacity(100).shards(1).build();
    (0..100).for_each(|key| cache.insert(key, key));
    looked_at(&cache);
    cache
}

/// Something a thread drops when it ends, after the records that it has used otherwise.
struct Late(RefCell<Option<Cache<u64, u64>>>);

impl Drop for Late {
    fn drop(&mut self) {
        let cache = self.0.get_mut().take().expect("given to each");
        assert!(cache.get(&u64::MAX).is_none());
        cache.insert(1, 1);
    }
}

thread_local! {
    static LATE: Late = const { Late(RefCell::new(None)) };
    static LATER: Late = const { Late(RefCell::new(None)) };
}

#[test]
fn threads_that_have_ended_cost_nothing() {
    for late in [false, true] {
        let cache = small();
        let alone = looked_at(&cache);
        let all_there = Arc::new(Barrier::new(MANY));
        let threads = (0..MANY).map(|_| {
            let (cache, all_there) = (cache.clone(), Arc::clone(&all_there));
            std::thread::spawn(move || {
                if late {
                    // Before the cache is used: so dropped after the thread's records are released.
                    LATE.with(|late| late.0.replace(Some(cache.clone())));
                    LATER.with(|late| late.0.replace(Some(cache.clone())));
                }
                cache.get(&1);
                all_there.wait();
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().for_each(|thread| thread.join().expect("it ends well"));
        let after = looked_at(&cache);
        if cfg!(miri) && late {
            continue; // no system to be told by
        }
        assert!(
            after <= 2 * alone,
            "{after} looked at after {MANY} threads, {alone} before; late: {late}"
        );
    }
}

#[test]
fn guards_cost_the_same_however_many_a_thread_holds_and_nothing_once_dropped() {
    let guards = 100 * MANY as u64;
    let cache = Cache::builder().capacity(guards as usize).shards(1).build();
    (0..guards).for_each(|key| cache.insert(key, key));
    let begun = visited(&cache);
    let held: Vec<_> = (0..guards).map(|key| cache.get(&key).expect("it is in")).collect();
    let looked_at = visited(&cache) - begun;
    assert!(looked_at <= 4 * guards, "{looked_at} looked at for {guards} guards");
    let more = cache.iter().collect::<Vec<_>>();
    assert_eq!(more.len() as u64, guards);
    let looked_at = visited(&cache) - begun;
    assert!(looked_at <= 8 * guards, "{looked_at} looked at for twice {guards} guards");
    cache.clear();
    assert!(held.iter().zip(0..).all(|(value, key)| **value == key), "guards keep their values");
    assert!(more.iter().all(|item| item.key() == item.value()), "guards keep their values");
    drop((held, more));
    cache.reclaim(); // looks at all of them once more
    let begun = visited(&cache);
    cache.reclaim();
    let looked_at = visited(&cache) - begun;
    assert!(looked_at < 200, "{looked_at} looked at though nothing is guarded");
}

#[test]
fn a_batch_of_loads_costs_the_same_for_each_key() {
    for keys in [MANY as u64, 100 * MANY as u64] {
        let cache = Cache::<u64, u64>::new(keys as usize);
        let asked: Vec<_> = (0..keys).chain(0..keys).collect();
        let begun = visited(&cache);
        let load = |keys: &[&u64]| Ok::<_, ()>(keys.iter().map(|key| Some(**key)).collect());
        let found = cache.get_or_load_many(&asked, load).expect("it loads");
        let looked_at = visited(&cache) - begun;
        assert!(looked_at <= 8 * keys + 200, "{looked_at} looked at for {keys} keys");
        assert!(found.iter().zip(&asked).all(|(value, key)| value.as_deref() == Some(key)));
    }
}

#[test]
fn one_guard_that_stays_does_not_keep_the_cells_of_others() {
    let guards = 100 * MANY as u64;
    let cache = Cache::builder().capacity(guards as usize).shards(1).build();
    (0..guards).for_each(|key| cache.insert(key, key));
    let mut held: Vec<_> = (0..guards).map(|key| cache.get(&key).expect("it is in")).collect();
    for stays in [MANY, 50 * MANY] {
        let guard = held.swap_remove(stays);
        held.truncate(60 * MANY);
        cache.reclaim();
        cache.reclaim();
        assert_eq!(*guard, stays as u64);
        let begun = visited(&cache);
        cache.reclaim();
        let looked_at = visited(&cache) - begun;
        let left = held.len() as u64 + 1;
        assert!(looked_at <= 4 * left + 200, "{looked_at} looked at for {left} guards");
        held.truncate(100.min(held.len()).max(if stays == MANY { 60 * MANY } else { 0 }));
    }
}

#[test]
fn what_was_held_costs_nothing_once_let_go() {
    let cache = small();
    let (alone, key) = (looked_at(&cache), u64::MAX - 999);
    let held: Vec<_> = (0..100 * MANY).map(|_| cache.hold(&key).expect("it is in")).collect();
    assert!(
        looked_at(&cache) <= 2 * alone + 1000,
        "one entry is one entry, however often it is held"
    );
    drop(held);
    let other = Cache::builder().capacity(100 * MANY).shards(1).build();
    (0..100 * MANY as u64).for_each(|key| other.insert(key, key));
    let held: Vec<_> =
        (0..100 * MANY as u64).map(|key| other.hold(&key).expect("it is in")).collect();
    drop(held);
    let begun = visited(&other);
    other.reclaim();
    assert!(visited(&other) - begun < 200);
    assert!(looked_at(&cache) <= 2 * alone);
}

#[test]
fn what_is_held_keeps_its_own_value_and_nothing_else_of_the_cache() {
    for shards in [1, 4] {
        let tally = Tally::new();
        let cache = Cache::builder().capacity(4000).shards(shards).build();
        (0..4000).for_each(|key| cache.insert(key, tally.value(key)));
        let keys = || (0..4000).filter(|key| cache.contains_key(key)).step_by(100);
        let removed = cache.hold(&keys().next().expect("some are in")).expect("it is in");
        let mut held: Vec<_> =
            keys().flat_map(|key| [key, key].map(|key| (key, cache.hold(&key)))).collect();
        let different = held.len() as u64 / 2;
        cache.remove(&held[0].0);
        drop(cache);
        assert_eq!(tally.alive(), different, "of each that is held its value");
        held.iter().for_each(|(key, value)| {
            assert_eq!(value.as_ref().map(|value| value.of(*key)), Some(*key))
        });
        let mut ended = held.split_off(held.len() / 2);
        let thread = std::thread::spawn(move || ended.drain(..).for_each(drop));
        held.drain(..).for_each(drop);
        thread.join().expect("it ends well");
        assert_eq!(tally.alive(), 1);
        removed.of(removed.number());
        drop(removed);
        assert_eq!(tally.alive(), 0);
    }
}

#[test]
fn holders_that_let_go_while_the_cache_ends_drop_each_value_once() {
    for _ in 0..MANY {
        let tally = Tally::new();
        let cache = Cache::builder().capacity(100).shards(2).build();
        (0..100).for_each(|key| cache.insert(key, tally.value(key)));
        let held: Vec<_> = (0..100).filter_map(|key| cache.hold(&key)).collect();
        let start = Arc::new(Barrier::new(2));
        let starts = Arc::clone(&start);
        let thread = std::thread::spawn(move || {
            starts.wait();
            drop(held);
        });
        start.wait();
        drop(cache);
        thread.join().expect("it ends well");
        assert_eq!(tally.alive(), 0);
    }
}

/// Returns what is looked at for each of some insertions that evict.
fn looked_at_each<V: Send + Sync + 'static>(
    cache: &Cache<u64, V>,
    insertions: u64,
    value: impl Fn(u64) -> V,
) -> u64 {
    let before = visited(cache);
    for key in u64::MAX - insertions..u64::MAX {
        cache.insert(key, value(key));
    }
    (visited(cache) - before) / insertions
}

#[test]
fn many_guards_cost_writers_no_more_than_some_and_hold_no_lock_for_long() {
    const GUARDS: u64 = if cfg!(miri) { 2000 } else { 50_000 };
    let tally = Tally::new();
    let full = |shards| {
        let cache = Cache::builder().capacity(2 * GUARDS as usize).shards(shards).build();
        (0..GUARDS).for_each(|key| cache.insert(key, tally.value(key)));
        cache
    };
    let insertions = 2 * GUARDS;
    for shards in [1, 8] {
        for is_cleared in [false, true] {
            let cache = full(shards);
            let items: Vec<_> = cache.iter().collect();
            if is_cleared {
                cache.clear();
                assert_eq!(tally.alive(), items.len() as u64, "guards keep their own values");
            }
            let each = looked_at_each(&cache, insertions, |key| tally.value(key));
            assert!(each < 60, "{each} looked at for an insertion: {shards}, {is_cleared}");
            items.iter().for_each(|item| _ = item.value().of(*item.key()));
            drop(items);
            looked_at_each(&cache, insertions, |key| tally.value(key));
            let waiting = tally.alive() - cache.len() as u64;
            let most = GUARDS / 8 + GUARDS / 4;
            assert!(waiting <= most, "{waiting} wait though nothing is guarded");
            let each = looked_at_each(&cache, insertions, |key| tally.value(key));
            assert!(each < 30, "{each} looked at for an insertion though nothing is guarded");
            assert_once(&cache);
            cache.reclaim();
            assert_eq!(tally.alive(), cache.len() as u64);
        }
        let cache = full(shards);
        let held: Vec<_> = (0..GUARDS).filter_map(|key| Some((key, cache.hold(&key)?))).collect();
        cache.clear();
        let each = looked_at_each(&cache, insertions, |key| tally.value(key));
        assert!(each < 60, "{each} looked at for an insertion beside what is held");
        held.iter().for_each(|(key, value)| _ = value.of(*key));
        drop(held);
        cache.reclaim();
        assert_eq!(tally.alive(), cache.len() as u64);
    }
}

#[test]
fn many_held_values_are_looked_at_some_at_a_time() {
    const HELD: u64 = if cfg!(miri) { 3000 } else { 40_000 };
    const MOST: u64 = 2048;
    let tally = Tally::new();
    let cache = Cache::builder().capacity(HELD as usize).shards(1).build();
    (0..HELD).for_each(|key| cache.insert(key, tally.value(key)));
    let held: Vec<_> = (0..HELD).filter_map(|key| Some((key, cache.hold(&key)?))).collect();
    cache.clear();
    cache.reclaim();
    let most = visited_at_once(&cache);
    assert!(most <= MOST, "{most} looked at under one lock, of {} that are held", held.len());
    held.iter().for_each(|(key, value)| _ = value.of(*key));
    let (before, batches) = (visited(&cache), HELD / 1024 + 1);
    cache.reclaim();
    let looked_at = visited(&cache) - before;
    assert!(looked_at <= HELD + 64 * batches, "{looked_at} looked at for {HELD} that are held");
    drop(held);
    cache.reclaim();
    assert_eq!(tally.alive(), 0);
    // The same where values own nothing, and are given back under the shard's lock.
    let plain = Cache::builder().capacity(HELD as usize).shards(1).build();
    (0..HELD).for_each(|key| plain.insert(key, key));
    let held: Vec<_> = (0..HELD).filter_map(|key| Some((key, plain.hold(&key)?))).collect();
    plain.clear();
    (0..HELD).for_each(|key| plain.insert(key, key + 1));
    let most = visited_at_once(&plain);
    assert!(most <= MOST, "{most} looked at under one lock, of {} that are held", held.len());
    assert!(held.iter().all(|(key, value)| **value == *key));
}

/// Asserts that no reclaimer has looked at much under one lock.
fn assert_once<V: Send + Sync + 'static>(cache: &Cache<u64, V>) {
    let most = visited_at_once(cache);
    assert!(most <= 16_384, "{most} looked at under one lock");
}

#[test]
fn guards_of_all_kinds_keep_their_values_while_threads_have_thousands() {
    use rand::{Rng, SeedableRng};

    let rounds = if cfg!(miri) { 300 } else { 60_000 };
    let tally = Tally::new();
    let cache = Cache::builder().capacity(300).shards(2).build();
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let (cache, tally) = (&cache, &tally);
            scope.spawn(move || {
                let mut random = rand::rngs::SmallRng::seed_from_u64(seed);
                let (mut guards, mut held) = (Vec::new(), Vec::new());
                for _ in 0..rounds {
                    let key = random.random_range(0..1000u64);
                    match random.random_range(0..12) {
                        0..5 => cache.insert(key, tally.value(key)),
                        5 => drop(cache.remove(&key)),
                        6 => guards.extend(cache.remove(&key).map(|guard| (key, guard))),
                        7 if !guards.is_empty() => {
                            let at = random.random_range(0..guards.len());
                            let (key, guard): (u64, floe_memory::Ref<'_, _>) =
                                guards.swap_remove(at);
                            held.push((key, guard.hold(cache)));
                        }
                        8 if guards.len() > 3000 => guards.truncate(random.random_range(0..3000)),
                        8 if held.len() > 500 => held.truncate(random.random_range(0..500)),
                        9 if guards.len() > 2 => {
                            let at = random.random_range(0..guards.len());
                            guards.swap_remove(at);
                        }
                        _ => guards.extend(cache.get(&key).map(|guard| (key, guard))),
                    }
                    if let Some((key, guard)) = guards.last() {
                        guard.of(*key);
                    }
                }
                guards.iter().for_each(|(key, guard)| _ = guard.of(*key));
                held.iter().for_each(|(key, guard)| _ = guard.of(*key));
            });
        }
    });
    cache.reclaim();
    assert_eq!(tally.alive(), cache.len() as u64);
}
