//! Faults that the code of the paper's authors has (FrozenHot, EuroSys '23), and that this one must
//! not have: a test for each.
//!
//! Two faults of the controller, that noise ended most frozen phases and that each failure cost
//! 16 s, are replayed in `crates/freeze/src/tests/histories.rs`. That learning did not end near a
//! hit ratio of 1 is tested there and in `adaptive.rs`.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::hash::{BuildHasherDefault, Hash, Hasher};

use crate::common::{Tally, Value};
use floe_memory::Cache;
use floe_memory::policy::{AnyPolicy, Lru};
use floe_testkit::Identity;

/// Of every key the same.
#[derive(Default)]
struct Constant;

impl Hasher for Constant {
    fn finish(&self) -> u64 {
        0x1234_5678_9abc_def0
    }

    fn write(&mut self, _: &[u8]) {}
}

type Checked<S> = Cache<u64, Value, Lru, BuildHasherDefault<S>>;

fn frozen<S: Hasher + Default + Send + Sync + 'static>(
    tally: &std::sync::Arc<Tally>,
    keys: impl Iterator<Item = u64>,
) -> Checked<S> {
    let builder = Cache::builder()
        .capacity(1000)
        .policy(Lru::default())
        .hasher(BuildHasherDefault::default());
    let cache: Checked<S> = builder.build();
    keys.for_each(|key| cache.insert(key, tally.value(key)));
    assert_eq!(cache.freeze(1.0).entries, cache.len());
    cache
}

/// The key's value, in a lookup of its own and in a batch, after a check that it is the key's.
fn number<S: Hasher + Default + Send + Sync + 'static>(
    cache: &Checked<S>,
    key: u64,
) -> Option<u64> {
    let mut in_batch = None;
    cache.get_many(&[key], |_, value| in_batch = Some(value.of(key)));
    let alone = cache.get(&key).map(|value| value.of(key));
    assert_eq!(alone, in_batch);
    alone
}

#[test]
fn a_key_that_was_never_inserted_does_not_hit_though_its_low_32_bits_are_those_of_a_frozen_one() {
    let tally = Tally::new();
    let cache = frozen::<Identity>(&tally, 0..1000);
    for key in 0..1000 {
        assert!(number(&cache, key).is_some());
        for high in [1, 2, 1 << 16, u64::from(u32::MAX)] {
            assert_eq!(number(&cache, key | high << 32), None, "{key} and {high} · 2^32");
        }
    }
}

#[test]
fn a_key_that_was_never_inserted_does_not_hit_though_its_whole_hash_is_that_of_frozen_ones() {
    let tally = Tally::new();
    let cache = frozen::<Constant>(&tally, 0..100);
    for key in 0..100 {
        assert!(number(&cache, key).is_some());
        assert_eq!(number(&cache, key + 100), None);
    }
    drop(cache.remove(&50));
    cache.insert(51, tally.value(51));
    assert_eq!((0..200).filter(|key| number(&cache, *key).is_some()).count(), 99);
    cache.thaw();
    assert_eq!((0..200).filter(|key| number(&cache, *key).is_some()).count(), 99);
}

#[test]
fn a_removed_key_does_not_hit_and_what_it_had_is_freed_once_nobody_looks_at_it() {
    let tally = Tally::new();
    let cache = frozen::<Identity>(&tally, 0..1000);
    let held = cache.get(&7).expect("it is frozen");
    for key in 0..1000 {
        drop(cache.remove(&key));
        assert_eq!(number(&cache, key), None);
    }
    cache.reclaim();
    assert_eq!(tally.alive(), 1, "what the guard shows");
    held.of(7);
    drop(held);
    cache.reclaim();
    assert_eq!(tally.alive(), 0);
    (0..1000).for_each(|key| cache.insert(key, tally.value(key))); // in the same places
    assert!((0..1000).all(|key| number(&cache, key).is_some()));
    cache.thaw();
    drop(cache);
    assert_eq!(tally.alive(), 0);
}

#[test]
fn an_update_is_seen_by_the_next_lookup_and_what_it_replaced_is_freed_once() {
    let tally = Tally::new();
    let cache = frozen::<Identity>(&tally, 0..1000);
    for round in 0..5 {
        for key in 0..1000 {
            let value = tally.value(key);
            let newest = value.number();
            cache.insert(key, value);
            assert_eq!(number(&cache, key), Some(newest));
        }
        if round == 2 {
            cache.thaw();
            cache.freeze(0.5);
        }
    }
    cache.reclaim();
    assert_eq!(tally.alive(), 1000);
    drop(cache);
    assert_eq!(tally.alive(), 0);
}

#[test]
fn no_key_is_reserved() {
    let ends = (0..40).flat_map(|key| [key, u64::MAX - key]);
    let powers = (6..64).flat_map(|bit| [1u64 << bit, (1 << bit) - 1, u64::MAX - (1 << bit)]);
    let keys: BTreeSet<u64> = ends.chain(powers).collect();
    let tally = Tally::new();
    let cache = frozen::<Identity>(&tally, keys.iter().copied());
    for key in &keys {
        assert!(number(&cache, *key).is_some(), "{key:x}");
        let value = tally.value(*key);
        let newest = value.number();
        cache.insert(*key, value);
        assert_eq!(number(&cache, *key), Some(newest), "{key:x}");
        drop(cache.remove(key));
        assert_eq!(number(&cache, *key), None, "{key:x}");
    }
}

#[test]
fn many_caches_of_different_types_are_frozen_in_one_process() {
    let numbers: Vec<Cache<u64, u64>> = (0..20).map(|_| Cache::new(300)).collect();
    let texts: Vec<Cache<String, Vec<u8>>> = (0..20).map(|_| Cache::new(300)).collect();
    for (of, (numbers, texts)) in numbers.iter().zip(&texts).enumerate() {
        for key in 0..300 {
            numbers.insert(key, key + of as u64);
            texts.insert(key.to_string(), vec![of as u8; key as usize]);
        }
        assert_eq!((numbers.freeze(1.0).entries, texts.freeze(0.5).entries), (300, 150));
    }
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for key in 0..300 {
                    for (of, (numbers, texts)) in numbers.iter().zip(&texts).enumerate() {
                        assert_eq!(numbers.get_cloned(&key), Some(key + of as u64));
                        let text = texts.get(key.to_string().as_str()).expect("it is in");
                        assert_eq!(*text, vec![of as u8; key as usize]);
                    }
                }
            });
        }
    });
}

#[test]
fn any_number_of_shards_is_frozen() {
    for shards in [1, 32, 256] {
        for policy in ["lru", "lfu", "fifo"] {
            let policy: AnyPolicy = policy.parse().expect("it is registered");
            let cache = Cache::builder().capacity(20_000).shards(shards).policy(policy).build();
            (0..16_000u64).for_each(|key| cache.insert(key, key));
            assert_eq!((cache.stats().shards, cache.len()), (shards as u64, 16_000));
            let frozen = cache.freeze(0.5).entries;
            // each rounds by itself
            assert!(frozen.abs_diff(8000) <= shards, "{frozen} in {shards} shards");
            assert_eq!(cache.freeze(1.0).entries, 16_000);
            assert!((0..16_000).all(|key| cache.get_cloned(&key) == Some(key)));
            assert!((16_000..32_000).all(|key| cache.get(&key).is_none()));
        }
    }
}

thread_local! {
    static HASH: Cell<u64> = const { Cell::new(0) };
}

/// A key with a faulty hash, which changes.
#[derive(Debug, PartialEq, Eq)]
struct Fickle;

impl Hash for Fickle {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(HASH.get());
    }
}

#[test]
fn what_replaces_a_frozen_entry_by_another_hash_leaves_nothing_of_it_in_the_frozen_index() {
    let tally = Tally::new();
    let mut replaced = 0;
    for other in 1..2000 {
        HASH.set(0);
        let hasher = BuildHasherDefault::<Identity>::default();
        let cache = Cache::builder().capacity(3).hasher(hasher).build();
        cache.insert(Fickle, tally.value(1));
        assert_eq!(cache.freeze(1.0).entries, 1);
        HASH.set(other);
        cache.insert(Fickle, tally.value(2));
        HASH.set(0);
        if cache.len() == 1 {
            replaced += 1;
            cache.reclaim();
            if let Some(value) = cache.get(&Fickle) {
                value.of(2); // the successor, alive
            }
        }
        drop(cache);
        assert_eq!(tally.alive(), 0);
    }
    assert!(replaced > 0, "the index of all entries tells none of these hashes apart");
}
