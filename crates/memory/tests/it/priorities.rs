//! Priorities of entries, with pools and without.

use floe_memory::policy::{Priority, registry};
use floe_memory::{Cache, InsertOptions};

const HIGH: InsertOptions = InsertOptions::new().priority(Priority::High);
const BOTTOM: InsertOptions = InsertOptions::new().priority(Priority::Bottom);

fn count<P: floe_memory::policy::Replacement>(
    cache: &Cache<u64, u64, P>,
    keys: std::ops::Range<u64>,
) -> usize {
    keys.filter(|key| cache.contains_key(key)).count()
}

#[test]
fn entries_of_high_priority_outlive_others_under_every_policy() {
    let mut policies = 0;
    for name in registry::names() {
        for weighed in [false, true] {
            let mut builder = Cache::<u64, u64>::builder().shards(1);
            builder = if weighed {
                // Of unequal weight, so that entries are not exchanged one for one.
                builder.weight_capacity(1000).weigher(|key, _| 5 + key % 7)
            } else {
                builder.capacity(100)
            };
            let builder = builder.policy_named(name).unwrap().priority_pools(0.25, 0.0);
            let Ok(cache) = builder.try_build() else { continue };
            (0..50).for_each(|key| cache.insert(1000 + key, key));
            (0..10).for_each(|key| cache.insert_with(key, key, HIGH));
            // They raise the priority of what is there.
            (1045..1050).for_each(|key| cache.insert_with(key, key, HIGH));
            (2000..3000).for_each(|key| cache.insert(key, key));
            assert_eq!(count(&cache, 0..10), 10, "{name}");
            assert_eq!(count(&cache, 1045..1050), 5, "{name}");
            // A full pool lets its oldest ones go.
            (100..200).for_each(|key| cache.insert_with(key, key, HIGH));
            (3000..4000).for_each(|key| cache.insert(key, key));
            if name == "lru" {
                assert_eq!((count(&cache, 0..10), count(&cache, 1000..1050)), (0, 0));
            }
            let high = count(&cache, 100..200);
            assert!(high >= 15, "{name}: {high}");
            policies += 1;
        }
    }
    assert!(policies > 30, "{policies}");
}

#[test]
fn without_pools_high_priority_is_a_use_and_the_others_are_the_same() {
    let cache = Cache::<u64, u64>::builder().capacity(64).shards(1).build();
    (5_000..5_064).for_each(|key| cache.insert(key, 0)); // fill the main queue
    cache.insert_with(1_000, 0, HIGH);
    cache.insert_with(2_000, 0, BOTTOM);
    cache.insert(3_000, 0);
    (0..200).for_each(|key| cache.insert(key, 0));
    assert!(cache.contains_key(&1_000));
    assert!(!cache.contains_key(&2_000) && !cache.contains_key(&3_000));
}

#[test]
fn with_a_pool_for_low_priority_plain_insertions_are_of_low_priority() {
    let lru = floe_memory::policy::Lru::default();
    let builder = Cache::<u64, u64>::builder().capacity(100).shards(1).policy(lru);
    let cache = builder.priority_pools(0.0, 0.5).build();
    (0..50).for_each(|key| cache.insert(key, 0));
    (1000..1500).for_each(|key| cache.insert_with(key, 0, BOTTOM));
    assert_eq!(count(&cache, 0..50), 50);
    (100..130).for_each(|key| _ = cache.get_with(&key, || 0));
    cache.clear();
    (200..230).for_each(|key| _ = cache.get_with(&key, || 0));
    (1000..1500).for_each(|key| cache.insert_with(key, 0, BOTTOM));
    assert_eq!(count(&cache, 200..230), 30, "loaded ones, too");
}

#[test]
fn a_priority_goes_with_pins_and_freezing() {
    let cache = Cache::<u64, u64>::builder().capacity(100).shards(1);
    let cache = cache.priority_pools(0.3, 0.3).build();
    (0..10).for_each(|key| cache.insert_with(key, 0, HIGH.pinned()));
    (10..20).for_each(|key| cache.insert_with(key, 0, HIGH));
    (20..90).for_each(|key| cache.insert(key, 0));
    cache.freeze(0.2);
    (0..90).for_each(|key| cache.insert_with(key, 1, HIGH));
    (0..10).for_each(|key| _ = cache.pin(&key));
    cache.thaw();
    (1000..2000).for_each(|key| cache.insert(key, 0));
    assert_eq!((count(&cache, 0..10), cache.stats().pinned), (10, 10));
    (0..10).for_each(|key| assert!(cache.unpin(&key)));
    (2000..3000).for_each(|key| cache.insert(key, 0));
    assert_eq!(cache.len(), 100);
}

#[test]
fn a_present_entry_rises_from_the_low_pool_and_an_unpinned_one_enters_it() {
    let lru = floe_memory::policy::Lru::default();
    let builder = Cache::<u64, u64>::builder().capacity(100).shards(1).policy(lru);
    let cache = builder.priority_pools(0.25, 0.25).build();
    (0..10).for_each(|key| cache.insert(key, 0));
    (0..10).for_each(|key| cache.insert_with(key, 1, HIGH));
    (1000..2000).for_each(|key| cache.insert(key, 0));
    assert_eq!(count(&cache, 0..10), 10);
    (20..30).for_each(|key| cache.insert_with(key, 0, BOTTOM.pinned()));
    (20..30).for_each(|key| assert!(cache.unpin(&key)));
    (3000..4000).for_each(|key| cache.insert_with(key, 0, BOTTOM));
    assert_eq!(count(&cache, 20..30), 10);
}
