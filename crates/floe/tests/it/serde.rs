//! What can be serialized.

use std::time::Duration;

use floe::{Cache, Clock, Freezing, InsertOptions};
use floe_memory::Snapshot; // `floe::Snapshot`, with the feature

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

type Words = Cache<String, u64>;

fn restored(cache: &Words, text: &str) -> Result<u64, serde_json::Error> {
    Snapshot::of(cache).restore(&mut serde_json::Deserializer::from_str(text))
}

#[test]
fn a_cache_starts_warm_from_a_snapshot() {
    let cache = Words::new(1000);
    (0..500).for_each(|number| cache.insert(number.to_string(), number));
    let text = serde_json::to_string(&Snapshot::of(&cache)).expect("text and numbers");
    let warm = Words::new(1000);
    warm.insert("7".to_string(), 70);
    assert_eq!(restored(&warm, &text).expect("it is a snapshot"), 499);
    assert_eq!(warm.get_cloned("7"), Some(70), "what is there is newer");
    assert!((8..500).all(|number| warm.get_cloned(&number.to_string()) == Some(number)));
    // One that is smaller keeps to its limit, and one that is off has none.
    for capacity in [0, 10] {
        let small = Words::new(capacity);
        restored(&small, &text).expect("it is a snapshot");
        assert_eq!(small.len(), capacity);
    }
}

#[test]
fn entries_of_a_snapshot_live_as_long_as_they_would_have() {
    let clock = Clock::manual();
    let cache = |clock: &Clock| Cache::builder().capacity(10).clock(clock.clone()).build();
    let from: Words = cache(&clock);
    let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
    let live = InsertOptions::new().time_to_live(minutes(10));
    from.insert_with("lives".to_string(), 1, live);
    from.insert_with("refreshed".to_string(), 2, live.refresh_ahead(minutes(5)));
    from.insert_with("idle".to_string(), 3, InsertOptions::new().time_to_idle(minutes(10)));
    from.insert("stays".to_string(), 4);
    clock.advance(minutes(4));
    let text = serde_json::to_string(&Snapshot::of(&from)).expect("text and numbers");

    let clock = Clock::manual();
    let warm: Words = cache(&clock);
    assert_eq!(restored(&warm, &text).expect("it is a snapshot"), 4);
    clock.advance(minutes(2));
    assert_eq!(*warm.get_with("refreshed", || 20), 20, "four minutes before its end it is due");
    assert_eq!(*warm.get_with("lives", || 10), 1);
    clock.advance(minutes(5));
    let there = ["lives", "idle", "stays"].map(|key| warm.contains_key(key));
    assert_eq!(there, [false, true, true]);
    clock.advance(minutes(4));
    let there = ["idle", "stays"].map(|key| warm.contains_key(key));
    assert_eq!(there, [false, true]);
}

#[test]
fn the_time_since_a_snapshot_counts_and_what_is_none_is_refused() {
    let warm = Words::new(10);
    let expired = r#"[1, 1000, [["old", 1, 60000, null, null], ["new", 2, null, null, null]]]"#;
    assert_eq!(restored(&warm, expired).expect("it is a snapshot"), 1);
    assert!(!warm.contains_key("old") && warm.contains_key("new"));
    let later = restored(&warm, "[2, 1000, []]").unwrap_err().to_string();
    assert!(later.starts_with("a snapshot of version 2; this library reads version 1"), "{later}");
    for wrong in ["[]", "[1, 1000]", "7", r#"[1, 1000, [["key"]]]"#, r#"[1, 0, [[1, 2]]]"#] {
        assert!(restored(&warm, wrong).is_err(), "{wrong}");
    }
}
