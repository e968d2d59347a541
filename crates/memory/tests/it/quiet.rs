//! Caches that nobody uses: what has expired is freed by the library, however it left, and what
//! else waits is bounded.

use std::sync::Arc;
use std::time::Duration;

use crate::common::Tally;
use floe_memory::{Builder, Cache, Cause, InsertOptions};
use floe_testkit::wait_until;

const SOON: Duration = Duration::from_millis(20);

/// Counts the clones of a value that are alive, its own included.
fn alive(value: &Arc<()>) -> usize {
    Arc::strong_count(value)
}

fn builder<V: Send + Sync + 'static>() -> Builder<u64, V> {
    Cache::builder().capacity(10_000)
}

#[test]
#[cfg_attr(miri, ignore = "waits for the system's clock")]
fn expired_values_are_freed_in_a_cache_that_nobody_uses() {
    for (entries, shards) in [(1, 1), (1, 8), (31, 1), (1000, 1), (1000, 8), (1000, 64)] {
        let value = Arc::new(());
        let cache = builder().shards(shards).time_to_live(SOON).build();
        (0..entries).for_each(|key| cache.insert(key, Arc::clone(&value)));
        wait_until("not all of what expired is freed", || alive(&value) == 1);
        assert_eq!(cache.len(), 0);
    }
}

#[test]
#[cfg_attr(miri, ignore = "waits for the system's clock")]
fn expired_values_are_freed_however_their_lifetimes_were_set_and_whoever_listens() {
    let value = Arc::new(());
    let cache = builder().listener(|_, _, cause| assert_eq!(cause, Cause::Expired)).build();
    for key in 0..100 {
        let options = match key % 2 {
            0 => InsertOptions::new().time_to_live(SOON),
            _ => InsertOptions::new().time_to_idle(SOON).pinned(),
        };
        cache.insert_with(key, Arc::clone(&value), options);
    }
    for key in 100..200 {
        let options = InsertOptions::new().time_to_live(SOON);
        let load = || Ok::<_, ()>((Arc::clone(&value), options));
        drop(cache.loads().get(&key, load).expect("it loads"));
    }
    wait_until("not all of what expired is freed", || alive(&value) == 1);
}

#[test]
#[cfg_attr(miri, ignore = "waits for the system's clock")]
fn what_was_removed_or_replaced_before_it_expired_is_freed_with_the_others() {
    let value = Arc::new(());
    let cache = builder().shards(4).time_to_live(SOON).build();
    for key in 0..40 {
        (0..3).for_each(|_| cache.insert(key, Arc::clone(&value)));
        cache.remove(&key);
    }
    wait_until("not all of what left is freed", || alive(&value) == 1);
}

#[test]
#[cfg_attr(miri, ignore = "waits for the system's clock")]
fn an_expired_value_is_freed_once_its_guard_is_gone() {
    let tally = Tally::new();
    let cache = builder().shards(4).time_to_live(SOON).build();
    (0..20).for_each(|key| cache.insert(key, tally.value(key)));
    let (guard, held) = (cache.get(&3).expect("it is in"), cache.hold(&4).expect("it is in"));
    wait_until("not all of what expired is freed", || tally.alive() == 2);
    assert_eq!((guard.of(3), held.of(4)), (3, 4));
    drop(held);
    wait_until("what was held is not freed", || tally.alive() == 1);
    drop(guard);
    wait_until("what was guarded is not freed", || tally.alive() == 0);
}

#[test]
#[cfg_attr(miri, ignore = "waits for the system's clock")]
fn an_entry_that_comes_while_a_guard_keeps_an_expired_one_expires_in_time() {
    let tally = Tally::new();
    let cache = builder().time_to_live(SOON).build();
    cache.insert(1, tally.value(1));
    let guard = cache.get(&1).expect("it is in");
    wait_until("it does not expire", || cache.stats().expirations == 1);
    for key in 2..5 {
        cache.insert(key, tally.value(key));
        wait_until("what came later is not freed", || tally.alive() == 1);
    }
    assert_eq!(guard.of(1), 0);
}

#[test]
fn what_waits_in_a_quiet_cache_is_bounded_however_much_leaves_at_once() {
    for (listens, shards) in [(false, 1), (true, 1), (false, 8), (true, 8)] {
        for leaves in 0..4 {
            let tally = Tally::new();
            let builder = Cache::builder().capacity(2000).shards(shards);
            let builder = if listens { builder.listener(|_, _, _| ()) } else { builder };
            let cache = builder.build();
            (0..1000).for_each(|key| cache.insert(key, tally.value(key)));
            match leaves {
                0 => cache.retain(|key, _| key % 2 == 0),
                1 => (0..777).for_each(|key| drop(cache.remove(&key))),
                2 => (0..777).for_each(|key| cache.insert(key, tally.value(key))),
                _ => cache.resize(100),
            }
            let waiting = tally.alive() - cache.len() as u64;
            let most = (2000 / 16).max(32 * shards as u64);
            assert!(waiting <= most, "{waiting} wait: {listens} {shards} {leaves}");
            cache.clear();
            assert_eq!(tally.alive(), 0, "nothing waits after `clear`");
        }
    }
}

#[test]
fn what_waits_by_weight_is_bounded() {
    let tally = Tally::new();
    let cache = Cache::builder()
        .weight_capacity(100_000)
        .shards(1)
        .weigher(|key: &u64, _| (key % 700) as u32)
        .build();
    for key in 0..5000 {
        cache.insert(key, tally.value(key));
        let stats = cache.stats();
        assert_eq!(tally.alive() as usize, stats.entries as usize + stats.waiting as usize);
        assert!(stats.waiting <= 512, "{} wait", stats.waiting);
    }
}
