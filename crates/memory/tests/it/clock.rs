//! Clocks that are moved by hand, however far.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use floe_memory::{Cache, Cause, Clock, InsertOptions};

const DAY: Duration = Duration::from_secs(24 * 3600);

#[test]
fn what_has_expired_stays_expired_however_far_a_manual_clock_moves() {
    for days in [1, 49, 50, 51, 62, 100, 124, 125, 186, 248, 249, 373, 500, 5000, 1_000_000] {
        for steps in [1, 2, 3, 7] {
            let clock = Clock::manual();
            let expired = Arc::new(AtomicU64::new(0));
            let told = Arc::clone(&expired);
            let cache = Cache::builder()
                .capacity(10)
                .clock(clock.clone())
                .listener(move |_, _, cause| {
                    _ = told.fetch_add(u64::from(cause == Cause::Expired), Relaxed)
                })
                .build();
            let minute = Duration::from_secs(60);
            cache.insert(0, "stays");
            cache.insert_with(1, "lives", InsertOptions::new().time_to_live(minute));
            cache.insert_with(2, "is idle", InsertOptions::new().time_to_idle(minute));
            for _ in 0..steps {
                clock.advance(days * DAY / steps);
                assert_eq!(
                    (cache.get(&1).is_some(), cache.get(&2).is_some()),
                    (false, false),
                    "{days} days"
                );
            }
            // And time goes on for what comes then.
            cache.insert_with(3, "lives", InsertOptions::new().time_to_live(2 * minute));
            clock.advance(minute);
            assert!(cache.contains_key(&3) && cache.contains_key(&0));
            clock.advance(2 * minute);
            assert!(!cache.contains_key(&3) && cache.contains_key(&0));
            cache.reclaim();
            assert_eq!((expired.load(Relaxed), cache.len()), (3, 1), "{days} days");
        }
    }
}

#[test]
fn asking_whether_a_key_is_there_does_not_keep_it_from_going_idle() {
    let clock = Clock::manual();
    let idle = Duration::from_secs(60);
    let cache = Cache::builder().capacity(10).clock(clock.clone()).time_to_idle(idle).build();
    for key in ["asked for", "used"] {
        cache.insert(key, ());
    }
    for _ in 0..3 {
        clock.advance(idle / 2);
        _ = cache.contains_key("asked for");
        assert!(cache.get("used").is_some());
    }
    assert!(!cache.contains_key("asked for") && cache.get("asked for").is_none());
}

#[test]
fn a_span_too_long_to_be_counted_moves_a_clock_all_the_same() {
    let clock = Clock::manual();
    let cache = Cache::builder().capacity(10).clock(clock.clone()).time_to_live(DAY).build();
    cache.insert(1, 1);
    clock.advance(Duration::from_secs(u64::MAX / 2_000_000));
    assert!(cache.get(&1).is_none());
}

/// A cache by a manual clock, with the entry's options, and its clock.
#[test]
fn the_time_of_a_value_counts_unless_the_insertion_has_its_own() {
    let clock = Clock::manual();
    // Values are their seconds; odd ones have none, and live as long as the cache says.
    let cache = Cache::<u64, u64>::builder()
        .capacity(100)
        .time_to_live(Duration::from_secs(1000))
        .time_to_live_with(|_, &value| value.is_multiple_of(2).then(|| Duration::from_secs(value)))
        .clock(clock.clone())
        .build();
    let own = InsertOptions::new().time_to_live(Duration::from_secs(100));
    cache.insert(0, 20);
    cache.insert_with(1, 20, own);
    cache.insert(2, 21);
    cache.get_with(&3, || 20);
    cache.loads().get(&4, || Ok::<_, ()>((20, own))).expect("it loads");
    cache.upsert_with(5, |_| 40);
    cache.upsert_with(5, |before| before.map_or(0, |before| before / 2));
    cache.insert(6, 0);
    let left = || (0..7).filter(|key| cache.contains_key(key)).collect::<Vec<_>>();
    assert_eq!(left(), [0, 1, 2, 3, 4, 5, 6], "no time at all is a tick");
    clock.advance(Duration::from_secs(19));
    assert_eq!(left(), [0, 1, 2, 3, 4, 5]);
    clock.advance(Duration::from_secs(2));
    assert_eq!(left(), [1, 2, 4]);
    clock.advance(Duration::from_secs(80));
    assert_eq!(left(), [2]);
    clock.advance(Duration::from_secs(900));
    assert_eq!(left(), [0; 0]);
}

fn with(options: InsertOptions) -> (Cache<u64, u64>, Clock) {
    let clock = Clock::manual();
    let cache = Cache::builder().capacity(10).clock(clock.clone()).build();
    cache.insert_with(1, 1, options);
    (cache, clock)
}

#[test]
fn a_year_is_a_year_and_not_some_days() {
    for days in [1, 30, 61, 62, 63, 100, 124, 125, 249, 365, 5000, 40_000, 60_000] {
        let new = InsertOptions::new;
        for options in [new().time_to_live(days * DAY), new().time_to_idle(days * DAY)] {
            // In one step, and in steps that sweep in between.
            for steps in [1, days.min(100)] {
                let (cache, clock) = with(options);
                let before = days * DAY - Duration::from_secs(1);
                for _ in 0..steps {
                    clock.advance(before / steps);
                }
                assert!(cache.contains_key(&1), "{days} days in {steps}: it ends early");
                clock.advance(Duration::from_secs(8));
                assert!(!cache.contains_key(&1), "{days} days in {steps}: it ends late");
                cache.reclaim();
                assert!(cache.is_empty());
            }
        }
        let all = Cache::builder().capacity(10).time_to_live(days * DAY);
        let clock = Clock::manual();
        let cache = all.clock(clock.clone()).build();
        cache.insert(1, 1);
        clock.advance(days * DAY - Duration::from_secs(1));
        assert!(cache.contains_key(&1));
        clock.advance(Duration::from_secs(8));
        assert!(!cache.contains_key(&1));
    }
}

#[test]
fn what_is_used_once_a_season_does_not_go_idle_in_a_year() {
    let (cache, clock) = with(InsertOptions::new().time_to_idle(365 * DAY));
    for _ in 0..20 {
        clock.advance(90 * DAY);
        assert!(cache.get(&1).is_some());
    }
    clock.advance(366 * DAY);
    assert!(cache.get(&1).is_none());
    let both = InsertOptions::new().time_to_live(365 * DAY).time_to_idle(DAY);
    let (cache, clock) = with(both);
    for _ in 0..729 {
        clock.advance(DAY / 2);
        assert!(cache.get(&1).is_some(), "it is used twice a day");
    }
    clock.advance(DAY);
    assert!(cache.get(&1).is_none(), "a year is over");
}

#[test]
fn a_time_to_idle_outlasts_the_growth_of_its_shard_and_ends_with_its_entry() {
    let (clock, idle) = (Clock::manual(), Duration::from_secs(60));
    let cache = Cache::builder().capacity(1000).shards(1).clock(clock.clone()).build();
    let (goes_idle, lives) =
        (InsertOptions::new().time_to_idle(idle), InsertOptions::new().time_to_live(3 * idle));
    for key in 0..1000 {
        match key % 3 {
            0 => cache.insert(key, key),
            1 => cache.insert_with(key, key, goes_idle),
            _ => cache.insert_with(key, key, lives),
        }
    }
    for _ in 0..4 {
        clock.advance(idle / 2);
        (0..1000).filter(|key| key % 6 < 3).for_each(|key| assert!(cache.get(&key).is_some()));
    }
    for key in 0..1000 {
        assert_eq!(cache.contains_key(&key), key % 6 != 4, "{key} was used if it is 0 to 2 of six");
    }
    clock.advance(2 * idle);
    cache.reclaim();
    assert_eq!(cache.len(), 334, "those that never expire");
    // Others in the same slots have times of their own.
    (1000..1600).for_each(|key| cache.insert_with(key, key, lives));
    for _ in 0..5 {
        clock.advance(idle / 2);
        assert!((1000..1600).all(|key| cache.get(&key).is_some()));
    }
    clock.advance(idle);
    assert!(!(1000..1600).any(|key| cache.contains_key(&key)), "uses do not defer their end");
}

#[test]
fn for_ever_is_for_ever() {
    let new = InsertOptions::new;
    let for_ever = [
        new().time_to_live(Duration::MAX),
        new().time_to_idle(Duration::MAX),
        new().time_to_live(Duration::MAX).time_to_idle(Duration::MAX),
        new().time_to_live(Duration::from_secs(u64::MAX / 3)),
        new().time_to_live(Duration::MAX).refresh_ahead(DAY),
        new().stale_while_revalidate(Duration::MAX, DAY),
    ];
    for options in for_ever {
        let (cache, clock) = with(options);
        for days in [1, 100, 124, 125, 201, 249, 1000, 100_000] {
            clock.advance(days * DAY);
            assert!(cache.get(&1).is_some(), "{options:?}");
            assert_eq!(*cache.get_with(&1, || 2), 1, "it is fresh: {options:?}");
        }
    }
    // For ever instead of the cache's time.
    let clock = Clock::manual();
    let cache = Cache::builder().capacity(10).clock(clock.clone()).time_to_live(DAY).build();
    cache.insert_with(1, 1, new().time_to_live(Duration::MAX));
    cache.insert(2, 2);
    clock.advance(1000 * DAY);
    assert!(cache.contains_key(&1) && !cache.contains_key(&2));
}

#[test]
fn what_is_stale_for_a_year_or_for_ever_is_refreshed_when_it_is_due() {
    let fresh = Duration::from_secs(600);
    for stale in [DAY, 100 * DAY, 365 * DAY, Duration::MAX] {
        let (cache, clock) = with(InsertOptions::new().stale_while_revalidate(fresh, stale));
        clock.advance(fresh - Duration::from_secs(12));
        assert_eq!(*cache.get_with(&1, || 2), 1, "it is fresh");
        clock.advance(Duration::from_secs(24));
        assert_eq!(*cache.get_with(&1, || 2), 2, "it is stale for {stale:?}");
        let (cache, clock) = with(InsertOptions::new().stale_while_revalidate(fresh, stale));
        clock.advance(stale.min(50_000 * DAY));
        assert_eq!(cache.get_cloned(&1), Some(1), "it is still there");
        assert_eq!(*cache.get_with(&1, || 2), 2, "it is still due");
    }
}

#[test]
#[cfg(feature = "serde")]
fn a_snapshot_keeps_long_times() {
    let (cache, clock) = with(InsertOptions::new().time_to_live(365 * DAY));
    cache.insert_with(2, 2, InsertOptions::new().time_to_idle(200 * DAY));
    cache.insert_with(3, 3, InsertOptions::new().time_to_live(Duration::MAX));
    clock.advance(165 * DAY);
    assert!(cache.get(&2).is_some());
    let text = serde_json::to_string(&floe_memory::Snapshot::of(&cache)).expect("it is written");
    let clock = Clock::manual();
    let warm: Cache<u64, u64> = Cache::builder().capacity(10).clock(clock.clone()).build();
    let mut reader = serde_json::Deserializer::from_str(&text);
    let came = floe_memory::Snapshot::of(&warm).restore(&mut reader).expect("it is read");
    assert_eq!(came, 3);
    clock.advance(199 * DAY);
    assert!((1..=3).all(|key| warm.contains_key(&key)));
    clock.advance(2 * DAY);
    assert_eq!([1, 2, 3].map(|key| warm.contains_key(&key)), [false, false, true]);
}

#[test]
#[cfg(feature = "serde")]
fn a_snapshot_gives_no_entry_the_time_to_idle_of_the_one_before_it_in_its_slot() {
    let with = || Cache::builder().capacity(2).shards(1).policy(floe_policy::Fifo::default());
    let cache: Cache<u64, u64, _> = with().build();
    cache.insert_with(1, 1, InsertOptions::new().time_to_idle(Duration::from_secs(60)));
    cache.insert(2, 2);
    cache.insert(3, 3); // takes the slot of the first
    let text = serde_json::to_string(&floe_memory::Snapshot::of(&cache)).expect("it is written");
    let clock = Clock::manual();
    let warm: Cache<u64, u64, _> = with().clock(clock.clone()).build();
    let mut reader = serde_json::Deserializer::from_str(&text);
    floe_memory::Snapshot::of(&warm).restore(&mut reader).expect("it is read");
    clock.advance(DAY);
    assert!([2, 3].iter().all(|key| warm.contains_key(key)), "{text}");
}
