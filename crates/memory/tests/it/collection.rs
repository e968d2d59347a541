//! Caches as other collections of Rust: made of entries, extended, asked by entry, and passed
//! through a panic.

use std::panic::{AssertUnwindSafe, RefUnwindSafe, UnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::block_on;
use floe_memory::policy::Lru;
use floe_memory::{Cache, Held, Item, Ref};

#[test]
fn a_default_cache_holds_its_documented_capacity() {
    let cache = Cache::<u64, u64>::default();
    let capacity = Cache::<u64, u64>::DEFAULT_CAPACITY;
    assert_eq!(cache.stats().capacity, Some(capacity as u64));
    (0..2 * capacity as u64).for_each(|key| cache.insert(key, key));
    assert_eq!(cache.len(), capacity);
}

#[test]
fn a_collected_cache_has_all_entries_and_the_last_value_of_each_key() {
    let entries = (0..1000u64).map(|number| (number % 600, number));
    let cache: Cache<_, _> = entries.collect();
    assert_eq!(cache.len(), 600);
    assert!(
        (0..600).all(|key| cache.get_cloned(&key) == Some(key + if key < 400 { 600 } else { 0 }))
    );
    assert_eq!(cache.stats().capacity, Some(1000), "room for as many entries as came");
    let cache = Cache::from([("one", 1), ("two", 2)]);
    assert_eq!((cache.get_cloned("one"), cache.get_cloned("two")), (Some(1), Some(2)));
}

#[test]
fn a_cache_of_no_entries_can_be_used() {
    let cache: Cache<u64, u64> = std::iter::empty().collect();
    assert!(cache.is_empty());
    cache.insert(1, 1);
    assert_eq!(cache.get_cloned(&1), Some(1));
}

#[test]
fn extending_inserts_by_reference_and_by_value_and_evicts_what_is_too_much() {
    let mut cache = Cache::builder().capacity(10).shards(1).policy(Lru::default()).build();
    (&cache).extend((0..5u64).map(|key| (key, key)));
    cache.extend([(4, 40), (5, 50)]);
    assert_eq!((cache.len(), cache.get_cloned(&4)), (6, Some(40)));
    cache.extend((100..110).map(|key| (key, key)));
    assert_eq!(cache.len(), 10);
    assert!((100..110).all(|key| cache.contains_key(&key)), "the policy keeps the newest");
}

#[test]
fn an_entry_makes_its_value_once_whichever_way_it_is_asked() {
    let cache = Cache::<u64, String>::new(100);
    assert_eq!(*cache.entry(1).or_insert("one".to_owned()), "one");
    assert_eq!(*cache.entry(1).or_insert("another".to_owned()), "one");
    assert_eq!(*cache.entry(2).or_default(), "");
    assert_eq!(*cache.entry(1).or_insert_with(|| unreachable!("it is there")), "one");
    let failed = cache.entry(3).or_try_insert_with(|| Err("no network")).err();
    assert_eq!((failed, cache.contains_key(&3)), (Some("no network"), false));
    let loaded = cache.entry(3).or_try_insert_with(|| Ok::<_, ()>("three".to_owned()));
    assert_eq!(loaded.as_deref(), Ok(&"three".to_owned()));
    let late =
        block_on(cache.entry(4).or_try_insert_async(async { Ok::<_, ()>("four".to_owned()) }));
    assert_eq!(late.as_deref(), Ok(&"four".to_owned()));
    let again = block_on(cache.entry(4).or_try_insert_async(async { Err::<String, _>("asked") }));
    assert_eq!(again.as_deref(), Ok(&"four".to_owned()));
}

#[test]
fn threads_that_ask_by_entry_share_one_load() {
    let (cache, made) = (Cache::<u64, u64>::new(100), AtomicU64::new(0));
    let make = || {
        std::thread::yield_now();
        made.fetch_add(1, Ordering::Relaxed)
    };
    let values: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..8).map(|_| scope.spawn(|| *cache.entry(7).or_insert_with(make))).collect();
        threads.into_iter().map(|thread| thread.join().expect("it ends well")).collect()
    });
    assert_eq!((values, made.load(Ordering::Relaxed)), (vec![0; 8], 1));
}

#[test]
fn an_entry_by_reference_makes_its_key_by_way_of_the_owned_form() {
    let cache = Cache::<Arc<str>, usize>::new(100);
    let asked = String::from("floe");
    assert_eq!(*cache.loads().entry_ref(asked.as_str()).or_insert_with(|| 4), 4);
    assert_eq!(*cache.loads().entry_ref("floe").or_insert(5), 4);
    assert_eq!(*cache.loads().entry_ref("ice").or_default(), 0);
    let failed = cache.loads().entry_ref("sea").or_try_insert_with(|| Err("none")).err();
    assert_eq!((failed, cache.len()), (Some("none"), 2));
    let keys = Cache::<Box<[u8]>, u8>::new(10);
    assert_eq!(*keys.loads().entry_ref(&[1u8, 2][..]).or_insert(3), 3);
    assert_eq!(keys.get_cloned(&[1u8, 2][..]), Some(3));
}

#[test]
fn a_cache_and_its_guards_pass_through_a_caught_panic_and_are_as_good_as_before() {
    fn is_unwind_safe<T: UnwindSafe + RefUnwindSafe>() {}
    is_unwind_safe::<Cache<String, Vec<u8>>>();
    is_unwind_safe::<Cache<u64, u64, Lru>>();
    is_unwind_safe::<Ref<'_, String>>();
    is_unwind_safe::<Item<'_, String, u64>>();
    is_unwind_safe::<Held<String>>();

    let cache = Cache::<u64, String>::new(10);
    cache.insert(1, "one".to_owned());
    let value = cache.get(&1).expect("it is in");
    let panicked = catch_unwind(|| {
        cache.insert(2, "two".to_owned());
        cache.entry(3).or_insert_with(|| panic!("while {} is guarded", *value));
    });
    assert!(panicked.is_err());
    assert_eq!((cache.len(), cache.contains_key(&3)), (2, false));
    assert_eq!(*cache.entry(3).or_insert("three".to_owned()), "three");
    assert_eq!(*value, "one");
    let held = cache.hold(&2).expect("it is in");
    assert!(catch_unwind(AssertUnwindSafe(|| assert_eq!(*held, "one"))).is_err());
    assert_eq!(*held, "two");
}
