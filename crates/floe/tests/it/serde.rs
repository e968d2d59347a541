//! What can be serialized.

use floe::{Cache, Freezing};

#[test]
fn statistics_can_be_written_as_json() {
    let cache = Cache::builder().capacity(100).freezing(Freezing::adaptive()).build();
    cache.insert("a", 1);
    cache.get("a");
    cache.get("b");
    let stats = serde_json::to_value(cache.stats()).expect("they have no maps but of text");
    assert_eq!((&stats["hits"], &stats["misses"]), (&1.into(), &1.into()));
    assert_eq!(stats["policy"], "qd-clock");
    assert_eq!(stats["freezing"]["phase"], "warming-up");
    assert!(stats["admission"].is_null());
}
