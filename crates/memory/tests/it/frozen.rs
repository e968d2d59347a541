//! A frozen entry is found, replaced, removed and expires like everything else; what eviction takes
//! is something else.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use floe_memory::policy::{AnyPolicy, Fifo, POLICIES, Replacement};
use floe_memory::{Cache, Clock, InsertOptions};

fn filled(entries: u64) -> Cache<u64, u64> {
    let cache = Cache::new(entries as usize);
    (0..entries).for_each(|key| cache.insert(key, key));
    cache
}

#[test]
fn what_is_frozen_is_found_in_single_lookups_and_in_batches() {
    let cache = filled(10_000);
    assert_eq!(cache.freeze(1.0).entries, 10_000);
    let keys: Vec<u64> = (0..10_000).collect();
    for key in &keys {
        assert_eq!(cache.get_cloned(key), Some(*key));
    }
    let mut seen = Vec::new();
    assert_eq!(cache.get_many(&keys, |at, value| seen.push((at as u64, *value))), 10_000);
    assert!(seen.iter().zip(&keys).all(|(found, key)| *found == (*key, *key)));
    assert_eq!(cache.stats().hits, 20_000);
    assert!(cache.get(&10_001).is_none());
}

#[test]
fn what_is_frozen_is_not_evicted_and_all_else_is() {
    let cache = Cache::builder().capacity(1000).policy(Fifo::default()).build();
    (0..1000).for_each(|key| cache.insert(key, key));
    let frozen = cache.freeze(0.5).entries;
    assert!(
        frozen.abs_diff(500) <= cache.stats().shards as usize,
        "each shard rounds its half, {frozen} in all"
    );
    for key in 1000..100_000 {
        cache.insert(key, key);
    }
    assert_eq!(cache.len(), 1000);
    assert_eq!((0..1000).filter(|key| cache.contains_key(key)).count(), frozen);
    cache.thaw();
    for key in 100_000..200_000 {
        cache.insert(key, key);
    }
    assert_eq!((0..1000).filter(|key| cache.contains_key(key)).count(), 0);
}

#[test]
fn where_all_is_frozen_nothing_new_comes_in() {
    let cache = filled(1000);
    cache.freeze(1.0);
    cache.insert(5000, 1);
    assert!(!cache.contains_key(&5000));
    cache.insert(7, 70);
    assert_eq!(cache.get_cloned(&7), Some(70), "a new value does");
    cache.remove(&8);
    cache.insert(5000, 1);
    assert_eq!(cache.get_cloned(&5000), Some(1), "and so does what there is room for");
    cache.thaw();
    cache.insert(6000, 1);
    assert!(cache.contains_key(&6000));
}

#[test]
fn a_frozen_value_is_replaced_at_once() {
    let cache = filled(1000);
    cache.freeze(0.8);
    for round in 1..4 {
        for key in 0..1000 {
            cache.insert(key, key + round);
            assert_eq!(cache.get_cloned(&key), Some(key + round));
        }
        let keys: Vec<u64> = (0..1000).collect();
        assert_eq!(cache.get_many(&keys, |at, value| assert_eq!(*value, at as u64 + round)), 1000);
    }
    cache.thaw();
    assert!((0..1000).all(|key| cache.get_cloned(&key) == Some(key + 3)));
}

#[test]
fn a_removed_key_is_gone_at_once_and_can_come_back() {
    let cache = filled(1000);
    cache.freeze(1.0);
    for key in 0..1000 {
        assert_eq!(cache.remove(&key).map(|value| *value), Some(key));
        assert!(cache.get(&key).is_none());
        assert_eq!(cache.get_many(&[key], |_, _| ()), 0);
        cache.insert(key, key + 1);
        assert_eq!(cache.get_cloned(&key), Some(key + 1));
    }
    cache.clear();
    assert_eq!((cache.len(), (0..1000).filter(|key| cache.get(key).is_some()).count()), (0, 0));
    assert_eq!(cache.stats().weight, 0);
}

#[test]
fn a_guard_keeps_a_frozen_value_that_was_removed_and_thawed() {
    let cache: Cache<u64, String> = Cache::new(100);
    (0..100).for_each(|key| cache.insert(key, key.to_string()));
    cache.freeze(1.0);
    let value = cache.get(&7).unwrap();
    cache.remove(&7);
    cache.thaw();
    (100..10_000).for_each(|key| cache.insert(key, key.to_string()));
    cache.reclaim();
    assert_eq!(*value, "7");
}

#[test]
fn a_thread_at_rest_that_missed_keeps_no_frozen_index() {
    let cache = filled(10_000);
    let bytes = || cache.stats().memory_bytes;
    cache.freeze(0.5);
    let frozen = bytes();
    cache.thaw();
    let thawed = bytes();
    assert!(thawed < frozen, "{thawed} and {frozen}");
    cache.freeze(0.5);
    let [missed, counted] = [(); 2].map(|()| std::sync::Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert!((0..1000).all(|key| cache.get(&key).is_some()));
            assert!(cache.get(&10_001).is_none());
            missed.wait();
            counted.wait();
        });
        missed.wait();
        cache.thaw();
        let again = bytes();
        counted.wait();
        assert!(again <= thawed, "{again} bytes after {thawed}: the index is kept");
    });
}

#[test]
fn what_is_frozen_expires() {
    let clock = Clock::manual();
    let cache = Cache::builder()
        .capacity(100)
        .time_to_live(Duration::from_secs(10))
        .clock(clock.clone())
        .build();
    (0..100u64).for_each(|key| cache.insert(key, key));
    cache.freeze(1.0);
    assert!(cache.get(&1).is_some());
    clock.advance(Duration::from_secs(11));
    assert!(cache.get(&1).is_none());
    assert_eq!(cache.get_many(&[1, 2, 3], |_, _| ()), 0);
    cache.reclaim();
    assert!(cache.is_empty());
}

#[test]
fn what_goes_idle_or_is_pinned_is_not_frozen() {
    let clock = Clock::manual();
    let cache = Cache::builder().capacity(100).shards(1).clock(clock.clone()).build();
    cache.insert_with(1, 1, InsertOptions::new().time_to_idle(Duration::from_secs(10)));
    cache.insert_with(2, 2, InsertOptions::new().pinned());
    (10..100).for_each(|key| cache.insert(key, key));
    assert_eq!(cache.freeze(1.0).entries, 90);
    for _ in 0..3 {
        clock.advance(Duration::from_secs(8));
        assert!(cache.get(&1).is_some(), "it was used");
    }
    cache.pin(&10);
    cache.unpin(&2);
    cache.thaw();
    (100..1000).for_each(|key| cache.insert(key, key));
    assert!(cache.contains_key(&10) && !cache.contains_key(&2));
}

#[test]
fn what_was_frozen_and_then_pinned_can_be_evicted_once_it_is_not_and_is_not_found_then() {
    for pins in [false, true] {
        let cache = Cache::builder().capacity(100).shards(1).policy(Fifo::default()).build();
        (0..100).for_each(|key| cache.insert(key, key));
        assert_eq!(cache.freeze(1.0).entries, 100);
        for key in 0..50 {
            if pins {
                assert!(cache.pin(&key));
            } else {
                cache.insert_with(key, key, InsertOptions::new().pinned());
            }
            assert_eq!(cache.get_cloned(&key), Some(key), "pinned");
        }
        assert_eq!((cache.stats().pinned, cache.stats().frozen), (50, 50));
        for key in 0..50 {
            if pins {
                assert!(cache.unpin(&key));
            } else {
                cache.insert(key, key);
            }
        }
        (100..200).for_each(|key| cache.insert(key, key));
        cache.reclaim();
        assert!((50..100).all(|key| cache.get_cloned(&key) == Some(key)), "still frozen");
        assert!((0..50).all(|key| cache.get(&key).is_none()), "evicted");
        assert_eq!(cache.get_many(&(0..50).collect::<Vec<_>>(), |_, _| ()), 0);
        assert_eq!((cache.len(), cache.stats().frozen), (100, 50));
        cache.thaw();
        (1000..2000).for_each(|key| cache.insert(key, key));
        assert_eq!(
            (cache.len(), (0..1000).filter(|key| cache.contains_key(key)).count()),
            (100, 0)
        );
    }
}

#[test]
fn what_goes_idle_takes_the_place_of_what_is_frozen_and_is_not_frozen_itself() {
    let clock = Clock::manual();
    let cache = Cache::builder().capacity(100).shards(1).clock(clock.clone()).build();
    (0..100).for_each(|key| cache.insert(key, key));
    assert_eq!(cache.freeze(1.0).entries, 100);
    for key in 0..10 {
        cache.insert_with(key, key + 1, InsertOptions::new().time_to_idle(Duration::from_secs(10)));
    }
    assert_eq!(cache.stats().frozen, 90);
    clock.advance(Duration::from_secs(8));
    assert!((0..5).all(|key| cache.get_cloned(&key) == Some(key + 1)), "used");
    clock.advance(Duration::from_secs(8));
    assert!((0..5).all(|key| cache.get_cloned(&key) == Some(key + 1)), "used again");
    assert!((5..10).all(|key| cache.get(&key).is_none()), "not used");
    cache.thaw();
    assert_eq!(cache.stats().frozen, 0);
}

#[test]
fn a_smaller_capacity_is_kept_though_all_was_frozen() {
    let cache = filled(1000);
    cache.freeze(1.0);
    cache.resize(100);
    assert_eq!(cache.len(), 100);
}

#[test]
fn a_smaller_capacity_is_kept_though_somebody_freezes_again_while_it_is_made() {
    let this: Arc<OnceLock<Weak<Cache<u64, u64>>>> = Arc::default();
    let own = Arc::clone(&this);
    let freezes =
        move |_: &u64, _: &u64, _| _ = own.get().and_then(Weak::upgrade).unwrap().freeze(1.0);
    let cache = Arc::new(Cache::builder().capacity(100).shards(4).listener(freezes).build());
    this.set(Arc::downgrade(&cache)).unwrap();
    (0..100).for_each(|key| cache.insert(key, key));
    cache.resize(10);
    assert_eq!(cache.len(), 10);
}

#[test]
fn every_policy_can_be_frozen_in_any_share_again_and_again() {
    for entry in POLICIES {
        let Ok(policy) = entry.info.name.parse::<AnyPolicy>() else {
            panic!("{}", entry.info.name)
        };
        if policy.info().next_uses || policy.info().streams {
            continue;
        }
        let cache = Cache::builder().capacity(2000).policy(policy).build();
        for round in 0..4 {
            for key in 0..10_000u64 {
                let key = key * key % 3001;
                if cache.get(&key).is_none() {
                    cache.insert(key, key);
                }
            }
            let len = cache.len();
            let share = [0.02, 0.5, 0.98, 1.0][round];
            let frozen = cache.freeze(share).entries as f64;
            assert!(
                (frozen - share * len as f64).abs() <= 16.0,
                "{}: {frozen} of {len}",
                entry.info.name
            );
            for key in 0..10_000u64 {
                let key = key * key % 5003;
                match cache.get_cloned(&key) {
                    Some(value) => assert_eq!(value, key),
                    None => cache.insert(key, key),
                }
            }
            assert!(cache.len() <= 2000, "{}", entry.info.name);
            cache.thaw();
        }
    }
}
