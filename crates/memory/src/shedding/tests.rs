//! Requests that are shed.

use crate::Cache;
use crate::shedding::Loaded;

#[test]
fn what_is_shed_is_loaded_past_the_cache_and_nothing_else() {
    let cache: Cache<u64, u64> = Cache::<u64, u64>::builder().capacity(100).build();
    let ask = |key: u64| cache.get_or_load(&key, || Ok::<_, ()>(key + 1)).unwrap();
    cache.inner.valve.set(1.0);
    for key in 0..50 {
        let value = ask(key);
        assert!(matches!(value, Loaded::Shed(_)) && *value == key + 1);
    }
    assert_eq!(cache.get_or_load(&1, || Err("broken")).unwrap_err(), "broken");
    let stats = cache.stats();
    assert_eq!((stats.entries, stats.hits, stats.misses, stats.loads), (0, 0, 0, 0));
    cache.inner.valve.set(0.3);
    let shed = (0..10_000).filter(|key| matches!(ask(key % 100), Loaded::Shed(_))).count();
    assert!((2_800..3_200).contains(&shed), "{shed}");
    let stats = cache.stats();
    assert_eq!((stats.hits + stats.misses, stats.entries), (10_000 - shed as u64, 100));
    cache.inner.valve.set(0.0);
    assert!((0..1000).all(|key| matches!(ask(key % 100), Loaded::Cached(_))));
}
