//! The user's code uses the cache that called it: comparing and hashing keys in the middle of a
//! lookup, dropping values, weighing, listening and loading. Tables grow there and are freed, and
//! new ones take their addresses.
//!
//! Run under the address sanitizer (`make sanitize`), this finds what is used after its end.

use std::cell::{Cell, RefCell};
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::Arc;

use crate::common::{Tally, Value};
use floe_memory::{Cache, Clock, InsertOptions};
use floe_testkit::Identity;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

type Keys = Cache<Key, Payload, floe_memory::policy::QdClock, BuildHasherDefault<Identity>>;

/// Holds what is done by code that the cache calls, so many levels deep.
type Within = fn(&Keys, &mut StdRng);

thread_local! {
    static CACHE: RefCell<Option<Keys>> = const { RefCell::new(None) };
    static WITHIN: Cell<Option<Within>> = const { Cell::new(None) };
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    static CALLS: Cell<u64> = const { Cell::new(0) };
    static ONE_IN: Cell<u32> = const { Cell::new(1) };
    static RANDOM: RefCell<StdRng> = RefCell::new(StdRng::seed_from_u64(1));
}

/// Uses the cache from within, unless that is done already at every level.
fn use_the_cache() {
    let (depth, Some(within)) = (DEPTH.get(), WITHIN.get()) else { return };
    let Some(cache) = CACHE.with_borrow(Clone::clone) else { return };
    // Not every time: each use is compared and hashed itself, level by level.
    if depth > 0 && RANDOM.with_borrow_mut(|random| random.random_range(0..ONE_IN.get())) == 0 {
        DEPTH.set(depth - 1);
        CALLS.set(CALLS.get() + 1);
        let mut random = RANDOM.with_borrow_mut(|random| StdRng::seed_from_u64(random.random()));
        within(&cache, &mut random);
        DEPTH.set(depth);
    }
}

/// Does something whose own calls of the user's code use no cache: keys are compared under a lock
/// there.
fn alone<R>(run: impl FnOnce() -> R) -> R {
    let depth = DEPTH.replace(0);
    let result = run();
    DEPTH.set(depth);
    result
}

/// Sixteen each have the same hash.
#[derive(Debug, Clone)]
struct Key(u64);

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        use_the_cache();
        state.write_u64((self.0 / 16).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        use_the_cache();
        self.0 == other.0
    }
}

impl Eq for Key {}

#[derive(Debug)]
struct Payload {
    value: Value,
}

impl Drop for Payload {
    fn drop(&mut self) {
        use_the_cache();
    }
}

thread_local! {
    static TALLY: Arc<Tally> = Tally::new();
}

fn payload(key: u64) -> Payload {
    Payload { value: TALLY.with(|tally| tally.value(key)) }
}

fn put(cache: &Keys, key: u64) {
    cache.insert(Key(key), payload(key));
}

fn check(cache: &Keys, key: u64) -> bool {
    cache.get(&Key(key)).map(|payload| payload.value.of(key)).is_some()
}

/// A cache of one shard, whose table holds 1,024 keys, 1,000 of them there.
fn cache() -> Keys {
    let cache = Cache::<Key, Payload>::builder()
        .capacity(1 << 20)
        .shards(1)
        .hasher(BuildHasherDefault::default())
        .clock(Clock::manual())
        .build();
    (0..1000).for_each(|key| put(&cache, key));
    cache
}

fn with_cache(cache: Keys, depth: u32, within: Within, run: impl FnOnce(&Keys)) {
    CACHE.set(Some(cache.clone()));
    WITHIN.set(Some(within));
    CALLS.set(0);
    DEPTH.set(depth);
    run(&cache);
    DEPTH.set(0);
    assert!(CALLS.get() > 0, "the cache was used from within");
    CACHE.set(None);
    WITHIN.set(None);
}

/// Replaces the table several times, and looks keys up in each: the first is freed, and another has
/// its address.
fn replace_tables(cache: &Keys, _: &mut StdRng) {
    for _ in 0..3 {
        let held = cache.len() as u64;
        if held > 8000 {
            return; // that was enough for all comparisons of the lookup
        }
        alone(|| (0..=held).for_each(|more| put(cache, 1_000_000 + held + more)));
        alone(|| assert!(check(cache, 0)));
        alone(|| assert!(cache.contains_key(&Key(1))));
        alone(|| cache.reclaim());
    }
}

const LOOKUPS: [fn(&Keys, u64) -> bool; 4] = [
    check,
    |cache, key| cache.contains_key(&Key(key)),
    |cache, key| cache.hold(&Key(key)).map(|payload| payload.value.of(key)).is_some(),
    |cache, key| cache.get_many(&[Key(key)], |_, payload| _ = payload.value.of(key)) == 1,
];

#[test]
fn a_table_that_is_replaced_while_a_key_is_compared_is_not_used_after_its_end() {
    // The last of those with the same hash, the first, and one that is not there.
    for (key, is_there) in [(15, true), (0, true), (992 + 15, false)] {
        for look_up in LOOKUPS {
            with_cache(cache(), 1, replace_tables, |cache| {
                let found = look_up(cache, key);
                assert!(found == is_there || !is_there, "{key}");
            });
        }
    }
}

#[test]
fn a_table_that_is_replaced_while_a_frozen_key_is_compared_is_not_used_after_its_end() {
    for look_up in LOOKUPS {
        let cache = cache();
        cache.freeze(0.9);
        let freeze_anew: Within = |cache, random| {
            alone(|| cache.thaw());
            replace_tables(cache, random);
            alone(|| cache.freeze(0.9));
        };
        with_cache(cache, 1, freeze_anew, |cache| assert!(look_up(cache, 15)));
    }
}

/// Anything, at random.
fn anything(cache: &Keys, random: &mut StdRng) {
    let key = random.random_range(0..3000);
    match random.random_range(0..20) {
        0..6 => _ = LOOKUPS[random.random_range(0..LOOKUPS.len())](cache, key),
        6 => {
            let keys: Vec<_> = (0..20).map(|_| Key(random.random_range(0..3000))).collect();
            cache.get_many(&keys, |at, payload| _ = payload.value.of(keys[at].0));
        }
        7..11 => alone(|| put(cache, key)),
        11 => alone(|| (0..200).for_each(|more| put(cache, key + more))),
        12 => alone(|| drop(cache.remove(&Key(key)))),
        13 => {
            alone(|| cache.iter().take(30).for_each(|item| _ = item.value().value.of(item.key().0)))
        }
        14 => alone(|| cache.resize(random.random_range(10..5000))),
        15 => alone(|| _ = cache.freeze(random.random())),
        16 => alone(|| cache.thaw()),
        17 => alone(|| cache.reclaim()),
        18 => alone(|| {
            cache
                .get_or_insert_with(&Key(key), || Ok::<_, ()>(payload(key)))
                .unwrap()
                .value
                .of(key);
        }),
        _ if random.random_range(0..20) == 0 => alone(|| cache.clear()),
        _ => alone(|| cache.insert_with(Key(key), payload(key), InsertOptions::new().pinned())),
    }
}

#[test]
fn whatever_the_users_code_does_with_the_cache_nothing_is_used_after_its_end() {
    let rounds = if cfg!(miri) { 2 } else { 20 };
    ONE_IN.set(6);
    for round in 0..rounds {
        RANDOM.set(StdRng::seed_from_u64(round));
        let tally = TALLY.with(Arc::clone);
        let cache = Cache::<Key, Payload>::builder()
            .capacity(4000)
            .shards([1, 4][round as usize % 2])
            .hasher(BuildHasherDefault::default())
            .weigher(|_, _| {
                use_the_cache();
                1u32
            })
            .listener(|key: &Key, payload: &Payload, _| {
                payload.value.of(key.0);
                use_the_cache();
            })
            .build();
        with_cache(cache.clone(), 3, anything, |cache| {
            for key in 0..300 {
                let mut random = StdRng::seed_from_u64(key ^ round << 32);
                // Looked up with keys that use the cache as they are compared, hashed, dropped,
                // weighed, loaded …
                _ = LOOKUPS[key as usize % LOOKUPS.len()](cache, random.random_range(0..3000));
                let loaded = random.random_range(0..3000);
                let depth = DEPTH.get();
                alone(|| {
                    let load = || {
                        DEPTH.set(depth);
                        use_the_cache();
                        DEPTH.set(0);
                        Ok::<_, ()>(payload(loaded))
                    };
                    if !cache.contains_key(&Key(loaded)) {
                        cache.get_or_insert_with(&Key(loaded), load).unwrap().value.of(loaded);
                    }
                });
                // … and what they insert leaves with a listener and destructors that do.
                alone(|| anything(cache, &mut random));
            }
        });
        drop(cache);
        assert_eq!(tally.alive(), 0);
    }
}
