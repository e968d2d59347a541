//! Tests of internals of a cache. They are not
//! in the files that they test, because models of threads include those files in other crates, with
//! atomics that work only there.

mod bytes;
mod host_end;
mod index;
mod index_growth;
mod places;
mod windows;

use crate::frozen::index::FrozenIndex;
use crate::index::KeyHash;
use crate::sync::{Mutex, lock};
use crate::{Cache, Freezing};

#[test]
fn lookups_are_timed_in_batches_and_after_them() {
    let cache =
        Cache::builder().capacity(100).freezing(Freezing::adaptive().sample_one_in(4)).build();
    let keys: Vec<u64> = (0..100).collect();
    keys.iter().for_each(|key| cache.insert(*key, *key));
    // The controller may thaw it meanwhile, and decides whether the index is still published, as do
    // other tests in this process, which may do without the barrier that a published one needs.
    cache.freeze(1.0);
    let timed = || {
        cache.inner.threads.records.fold(0, |sum, record| {
            let latencies = record.timings.latencies();
            sum + latencies.frozen.count + latencies.dynamic.count
        })
    };
    // The controller may have fewer timed meanwhile, which a slow machine gives it the time for. It
    // is told otherwise each time.
    let mut seen = 0;
    for _ in 0..10_000 {
        cache.inner.frozen.time_one_in(4);
        let before = timed();
        assert_eq!(cache.get_many(&keys, |_, _| ()), 100);
        let after = timed();
        keys.iter().for_each(|key| assert!(cache.get(key).is_some()));
        seen += u64::from(after - before > 10 && timed() - after > 10);
        if seen == 20 {
            return;
        }
    }
    panic!(
        "of 10,000 times a hundred lookups, at one in four, only {seen} times more than ten were \
         timed both ways"
    );
}

#[test]
fn an_index_becomes_smaller_with_the_cache_and_grows_again() {
    const KEYS: u32 = 20_000;
    let by_entries = Cache::<u32, u32>::builder().capacity(KEYS as usize).shards(1).build();
    let weighed = Cache::<u32, u32>::builder().weight_capacity(KEYS.into()).shards(1);
    let by_weight = weighed.weigher(|_, _| 1u32).build();
    for (cache, is_weighed) in [(by_entries, false), (by_weight, true)] {
        let bytes = || cache.inner.shards[0].table().memory_bytes();
        let resize = |keys: u32| match is_weighed {
            true => cache.resize_weight(keys.into()),
            false => cache.resize(keys as usize),
        };
        let has_all = || cache.iter().all(|item| cache.get(item.key()).is_some());
        (0..KEYS).for_each(|key| cache.insert(key, key));
        let full = bytes();
        for keys in [KEYS / 3, 100, 0] {
            resize(keys);
            assert_eq!(cache.len(), keys as usize);
            assert!(bytes() <= 20 * keys as usize + 1024, "{} bytes of {full}", bytes());
            assert!(has_all());
            // Keys come and go, and fill it to the last place.
            (KEYS..KEYS + 1000).for_each(|key| cache.insert(key, key));
            assert!(cache.len() == keys as usize && has_all());
        }
        resize(KEYS);
        (0..2 * KEYS).for_each(|key| cache.insert(key, key));
        assert!(cache.len() == KEYS as usize && has_all());
        assert!(bytes() <= full + full / 2, "{} bytes, not {full}", bytes());
    }
}

#[test]
fn an_index_grows_by_a_few_keys_an_insertion() {
    const KEYS: u32 = 20_000;
    let cache: Cache<u32, u32> =
        Cache::builder().weight_capacity(1 << 30).weigher(|_, _| 1u32).shards(1).build();
    let (mut growths, mut before) = (0, (false, 0));
    let mut insert = |key: u32| {
        cache.insert(key, key);
        let owner = cache.inner.shards[0].owner();
        let (was_moving, moved) = before;
        growths += u32::from(owner.growth.is_moving() && !was_moving);
        let moved = owner
            .growth
            .moved()
            .saturating_sub(if was_moving || !owner.growth.is_moving() { moved } else { 0 });
        assert!(moved <= crate::owner::slots::MOVED_AT_ONCE, "{moved} slots with key {key}");
        before = (owner.growth.is_moving(), owner.growth.moved());
    };
    for key in 0..KEYS {
        insert(key);
        // One of those that were moved, one that was not, and one that just came.
        for found in [0, key / 2, key] {
            assert!(cache.get(&found).is_some(), "{found} after {key}");
        }
        if key % 7 == 0 {
            drop(cache.remove(&(key / 3)));
            insert(key / 3);
        }
    }
    assert!(growths >= 8, "{growths} times the index had to grow");
    assert_eq!(cache.len(), KEYS as usize);
    assert_eq!(before.0, cache.inner.shards[0].table().old.is_some());
}

#[test]
fn keys_have_moved_before_the_index_grows_again_though_a_limit_rises_by_one_at_a_time() {
    let cache: Cache<u32, u32> = Cache::builder().capacity(2000).shards(1).build();
    (0..2000).for_each(|key| cache.insert(key, key));
    for key in 2000..4000 {
        cache.resize(key as usize + 1);
        let (was_moving, moved) = {
            let owner = cache.inner.shards[0].owner();
            (owner.growth.is_moving(), owner.growth.moved())
        };
        cache.insert(key, key);
        let owner = cache.inner.shards[0].owner();
        assert!(
            !(was_moving && owner.growth.is_moving()) || owner.growth.moved() > moved,
            "at {key}"
        );
    }
    assert_eq!(cache.stats().entries, 4000);
    assert!((0..4000).all(|key| cache.get(&key).as_deref() == Some(&key)));
}

#[test]
fn a_capacity_that_is_not_used_costs_next_to_nothing() {
    for shards in [1, 64] {
        let cache: Cache<u32, u32> =
            Cache::builder().capacity(u32::MAX as usize / 2).shards(shards).build();
        cache.insert(1, 1);
        assert!(
            cache.stats().memory_bytes < 8 << 20,
            "{} bytes in {shards} shards",
            cache.stats().memory_bytes
        );
    }
}

/// Returns for each shard its room, in weight, and by how much that falls short of its share.
fn rooms(cache: &Cache<u32, u32>) -> Vec<(i64, i64)> {
    let shards = cache.inner.shards.iter().map(|shard| {
        let owner = shard.owner();
        (owner.room.total().weight, owner.room.below().weight)
    });
    shards.collect()
}

#[test]
fn rooms_make_up_the_limit_and_no_insertion_takes_from_a_share() {
    use rand::{Rng, SeedableRng};

    const LIMIT: u64 = 100_000;
    const HEAVIEST: u32 = 350; // of shares of 6,250 at least: none is heavy
    let cache: Cache<u32, u32> =
        Cache::builder().weight_capacity(LIMIT).weigher(|_, weight| *weight).shards(8).build();
    let mut random = rand::rngs::SmallRng::seed_from_u64(1);
    let lacking = |cache| rooms(cache).iter().map(|(_, lacking)| lacking).sum::<i64>();
    let mut step = |key: Option<u32>| {
        let removes = key.is_none() && random.random_ratio(1, 10);
        let key = key.unwrap_or_else(|| random.random_range(0..1000));
        if removes {
            cache.remove(&key);
        } else {
            let (before, is_new) = (lacking(&cache), !cache.contains_key(&key));
            cache.insert(key, random.random_range(1..=HEAVIEST));
            assert!(!is_new || lacking(&cache) <= before, "{before}, then {}", lacking(&cache));
        }
        let sum: i64 = rooms(&cache).iter().map(|(room, _)| room).sum();
        assert_eq!(
            sum + cache.inner.budget.left().weight,
            cache.inner.budget.weight_limit().unwrap() as i64
        );
    };
    (0..5000).for_each(|_| step(None));
    cache.resize_weight(LIMIT / 2);
    (0..5000).for_each(|_| step(None));
    cache.resize_weight(LIMIT);
    (0..5000).for_each(|_| step(None));
    // New keys only: what a lighter value gives back, any shard may take.
    (1000..6000).for_each(|key| step(Some(key)));
    for (room, lacking) in rooms(&cache) {
        assert!(
            lacking <= i64::from(HEAVIEST),
            "{room} and {lacking} lacking after {}",
            cache.stats().insertions
        );
    }
}

#[test]
fn a_borrowed_part_of_other_shares_is_given_back() {
    let cache: Cache<u32, u32> =
        Cache::builder().weight_capacity(8000).weigher(|_, weight| *weight).shards(8).build();
    (0..8000).for_each(|key| cache.insert(key, 10)); // enough that each shard has its share
    cache.insert(8000, 4000);
    assert!(cache.contains_key(&8000), "heavier than a share, and lighter than the limit");
    let lacking: Vec<i64> = rooms(&cache).iter().map(|(_, lacking)| *lacking).collect();
    assert!(lacking.iter().all(|&lacking| lacking < 600), "all gave alike: {lacking:?}");
    (0..3000).for_each(|key| cache.insert(9000 + key, 10));
    assert!(rooms(&cache).iter().all(|&(_, lacking)| lacking <= 10), "{:?}", rooms(&cache));
}

#[test]
fn a_small_cache_of_heavy_entries_has_few_shards() {
    let of = |weight: u64| {
        Cache::builder().weight_capacity(weight).weigher(|_: &u64, weight: &u32| *weight)
    };
    assert_eq!(of(1 << 20).build().stats().shards, 1);
    assert!(of(4 << 20).build().stats().shards <= 4);
    assert_eq!(of(1 << 40).build().stats().shards, Cache::<u64, u64>::new(1 << 16).stats().shards);
}

#[test]
fn a_large_cache_has_shards_of_bounded_size() {
    let shards = |entries| Cache::<u64, u64>::new(entries).stats().shards;
    assert!(shards(4 << 20) >= 128);
    assert_eq!(shards((1 << 31) - 1), shards(1 << 26), "and not any number of them");
}

/// Returns true if an entry removed from the cache now could be freed without a barrier.
fn nobody_is_silent(cache: &Cache<u64, u64>) -> bool {
    let records = &cache.inner.threads.records;
    records.protected_at_once(cache.inner.record(), records.ask(), std::iter::empty()).is_some()
}

#[test]
fn a_thread_that_rests_holds_nobody_up_and_may_come_back() {
    let cache = Cache::new(100);
    let turn = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            cache.insert(1, 1);
            turn.wait();
            turn.wait();
            crate::local::rest();
            turn.wait();
            turn.wait();
            assert_eq!(cache.get(&1).as_deref(), Some(&1));
            turn.wait();
            turn.wait();
        });
        turn.wait();
        assert!(!nobody_is_silent(&cache), "it may be about to look something up");
        turn.wait();
        turn.wait();
        assert!(nobody_is_silent(&cache));
        turn.wait();
        turn.wait();
        assert!(!nobody_is_silent(&cache));
        turn.wait();
    });
    assert_eq!(
        cache.inner.threads.records.fold(0, |count, _| count + 1),
        2,
        "it has its old record again"
    );
}

/// Checks that the library's thread releases its records between ticks: it freezes and thaws, and
/// is then idle while nothing expires.
#[test]
#[cfg_attr(miri, ignore = "waits for the system's clock")]
fn the_library_s_thread_rests_between_ticks() {
    let cache =
        Cache::builder().capacity(100).time_to_live(std::time::Duration::from_millis(1)).build();
    cache.insert(1, 1);
    while cache.stats().expirations == 0 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    // It may be at work in any of them, and kept from ending it by a busy machine.
    let free = (0..10_000).filter(|_| {
        std::thread::sleep(std::time::Duration::from_millis(1));
        nobody_is_silent(&cache)
    });
    assert_eq!(free.take(10).count(), 10);
}

/// Addresses of entries, which are never read here.
const ADDRESSES: [usize; 2] = [1 << 12, 2 << 12];

fn index_of_one() -> (FrozenIndex<u64, u64>, crate::index::Hash32) {
    let memory = ADDRESSES[0]..ADDRESSES[1] + (1 << 12);
    let (index, hash) =
        (FrozenIndex::with_room(1, &[memory]), KeyHash::of_mixed(1 << 40).in_shard());
    index.insert(hash, ADDRESSES[0]);
    (index, hash)
}

#[test]
fn a_frozen_index_that_is_given_up_while_a_value_is_replaced_holds_nothing_afterwards() {
    let (mut before, mut after) = (0, 0);
    for round in 0..if cfg!(miri) { 10 } else { 3000 } {
        let (index, hash) = index_of_one();
        // The lock of the shard, which a thread that gives an index up takes once it is poisoned.
        let owner = Mutex::new(());
        let start = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            let replaces = scope.spawn(|| {
                start.wait();
                let _owner = lock(&owner);
                index.replace(hash, ADDRESSES[0], ADDRESSES[1], || ());
                index.likely(hash).is_some()
            });
            start.wait();
            (0..round % 256).for_each(|_| std::hint::spin_loop());
            index.poison();
            drop(lock(&owner));
            assert!(index.likely(hash).is_none(), "its owner knows nothing of it any more");
            if replaces.join().unwrap() { before += 1 } else { after += 1 }
        });
        assert!(index.likely(hash).is_none(), "its owner knows nothing of it any more");
    }
    eprintln!("replaced before it was given up: {before}, after: {after}");
}

#[test]
fn while_a_value_is_replaced_the_frozen_index_sends_readers_to_the_shard() {
    let (index, hash) = index_of_one();
    assert!(index.likely(hash).is_some());
    index.replace(hash, ADDRESSES[0], ADDRESSES[1], || assert!(index.likely(hash).is_none()));
    assert!(index.likely(hash).is_some());
    index.take_out(hash, ADDRESSES[0]);
    assert!(index.likely(hash).is_some(), "that is not its address any more");
    index.take_out(hash, ADDRESSES[1]);
    assert!(index.likely(hash).is_none());
    index.replace(hash, ADDRESSES[1], ADDRESSES[0], || ());
    assert!(index.likely(hash).is_none(), "what has left does not come back");
}

#[test]
fn a_poisoned_index_stays_so_though_a_replacement_is_under_way() {
    let (index, hash) = index_of_one();
    index.replace(hash, ADDRESSES[0], ADDRESSES[1], || index.poison());
    assert!(index.likely(hash).is_none());
}

#[test]
fn a_load_of_many_keys_is_one_run() {
    let cache = Cache::<u64, u64>::new(10_000);
    let keys: Vec<u64> = (0..10_000).collect();
    let load = |keys: &[&u64]| {
        assert_eq!(crate::pending::depth(), 1, "more would be searched and copied for each key");
        Ok::<_, ()>(keys.iter().map(|key| Some(**key)).collect())
    };
    assert_eq!(cache.get_or_load_many(&keys, load).map(|found| found.len()), Ok(10_000));
    assert_eq!(crate::pending::depth(), 0);
}
