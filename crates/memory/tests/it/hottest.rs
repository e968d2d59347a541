//! The hottest entries, as the policy ranks them.

use std::collections::HashSet;

use floe_memory::Cache;
use floe_memory::policy::Lru;

#[test]
fn keys_that_are_hit_often_are_the_hottest_in_any_number_of_shards() {
    for shards in [1, 8] {
        let cache: Cache<u32, u32> = Cache::builder().capacity(4000).shards(shards).build();
        (0..2000).for_each(|key| cache.insert(key, 2 * key));
        let hot: HashSet<u32> = (0..2000).step_by(100).collect();
        for _ in 0..10 {
            hot.iter().for_each(|key| assert!(cache.get(key).is_some()));
        }
        let hits = cache.stats().hits;
        let found = cache.hottest(hot.len());
        assert!(found.iter().all(|item| *item.value() == 2 * item.key()));
        let found: HashSet<u32> = found.iter().map(|item| *item.key()).collect();
        assert_eq!(found, hot, "{shards} shards");
        assert_eq!(cache.stats().hits, hits, "nothing was counted");
    }
}

#[test]
fn as_many_as_there_are_can_be_asked_for() {
    let cache: Cache<u32, u32> = Cache::builder().capacity(100).shards(4).build();
    assert_eq!(cache.hottest(10).len(), 0);
    (0..50).for_each(|key| cache.insert(key, key));
    assert_eq!(cache.hottest(0).len(), 0);
    assert_eq!(cache.hottest(10).len(), 10);
    let all: HashSet<u32> = cache.hottest(usize::MAX).iter().map(|item| *item.key()).collect();
    assert_eq!(all, (0..50).collect());
}

#[test]
fn under_lru_the_key_used_last_is_the_hottest() {
    let cache: Cache<u32, u32, _> =
        Cache::builder().capacity(100).shards(1).policy(Lru::default()).build();
    (0..100).for_each(|key| cache.insert(key, key));
    assert!(cache.get(&17).is_some());
    let hottest = |count| cache.hottest(count).iter().map(|item| *item.key()).collect::<Vec<_>>();
    assert_eq!(hottest(3), [17, 99, 98]);
    cache.pin(&17);
    assert_eq!(hottest(2), [99, 98], "pinned entries are not ranked");
}

#[test]
fn frozen_entries_are_the_hottest() {
    let cache: Cache<u32, u32, _> =
        Cache::builder().capacity(100).shards(1).policy(Lru::default()).build();
    (0..100).for_each(|key| cache.insert(key, key));
    cache.freeze(0.1);
    (0..10).for_each(|key| assert!(cache.get(&key).is_some()));
    let hottest: HashSet<u32> = cache.hottest(10).iter().map(|item| *item.key()).collect();
    assert_eq!(hottest, (90..100).collect());
}

#[test]
fn guards_of_the_hottest_keep_their_entries() {
    let cache: Cache<u32, String> = Cache::builder().capacity(10).shards(1).build();
    (0..10).for_each(|key| cache.insert(key, key.to_string()));
    let hottest = cache.hottest(10);
    cache.clear();
    (10..100).for_each(|key| cache.insert(key, key.to_string()));
    assert!(hottest.iter().all(|item| *item.value() == item.key().to_string()));
}
