//! Options of insertions, and their results.

use std::time::Duration;

use floe_hybrid::{Declined, Hybrid, InsertOptions, Inserted, OnFull};

use super::{block_on, open, value};

const KEYS: u64 = 3000;

/// Returns the number of the keys below `KEYS` that the cache has, of each class modulo 4.
fn classes(cache: &Hybrid<u64, Vec<u8>>) -> [u64; 4] {
    let mut found = [0; 4];
    for key in 0..KEYS {
        if let Some(bytes) = cache.peek_blocking(&key) {
            assert_eq!(bytes, value(key, 1000));
            found[(key % 4) as usize] += 1;
        }
    }
    found
}

#[test]
fn hints_decide_which_objects_reach_flash() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let cache = open(&path, 1 << 20, 16 << 20);
    let hints = [
        InsertOptions::new(),
        InsertOptions::new().memory_only(),
        InsertOptions::new().do_not_admit(),
        InsertOptions::new().to_flash(),
    ];
    for key in 0..KEYS {
        let to = if key % 4 == 3 { Inserted::ToFlash } else { Inserted::InMemory };
        assert_eq!(cache.insert_with(key, value(key, 1000), hints[(key % 4) as usize]), to);
    }
    let stats = cache.stats();
    let in_memory = stats.memory.entries;
    let [all, memory_only, not_admitted, straight] = classes(&cache);
    assert_eq!([all, straight], [KEYS / 4, KEYS / 4]);
    let left_out = KEYS / 2 - memory_only - not_admitted;
    assert_eq!(stats.flash.declined_by_options, left_out);
    assert!(left_out > 500 && memory_only > 50 && not_admitted > 50, "{left_out} left");
    assert_eq!(stats.flash.objects + in_memory, KEYS - left_out, "{stats:?}");
    cache.close().unwrap();
    drop(cache);
    let cache = open(&path, 1 << 20, 16 << 20);
    assert_eq!(classes(&cache), [all, 0, not_admitted, straight]);
}

#[test]
fn a_hint_replaces_the_older_object_wherever_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(&folder.path().join("cache"), 1 << 20, 16 << 20);
    let hints = [
        InsertOptions::new().to_flash(),
        InsertOptions::new().memory_only(),
        InsertOptions::new().to_flash(),
        InsertOptions::new().do_not_admit(),
        InsertOptions::new(),
    ];
    for (len, hint) in (100..).zip(hints) {
        block_on(cache.insert_async_with(7, value(7, len), hint));
        assert_eq!(cache.peek_blocking(&7), Some(value(7, len)));
        assert_eq!(block_on(cache.peek(&7)), Some(value(7, len)));
    }
}

#[test]
fn a_peek_leaves_no_trace() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(&folder.path().join("cache"), 1 << 20, 16 << 20);
    for key in 0..KEYS {
        cache.insert_with(key, value(key, 1000), InsertOptions::new().to_flash());
    }
    for _ in 0..4 {
        (0..KEYS).for_each(|key| assert!(cache.peek_blocking(&key).is_some()));
        (0..KEYS).for_each(|key| assert!(block_on(cache.peek(&key)).is_some()));
    }
    let stats = cache.stats();
    assert_eq!((stats.memory.entries, stats.flash.hits, stats.flash.misses), (0, 0, 0));
    // By contrast, the second lookup brings an object to memory.
    (0..3).for_each(|_| assert!(cache.get_blocking(&1).is_some()));
    assert_eq!((cache.stats().memory.entries, cache.stats().flash.hits), (1, 2));
}

#[test]
fn insertions_tell_why_an_object_is_declined() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let built = Hybrid::builder().memory(4 << 20).flash(&path, 64 << 20);
    let cache: Hybrid<Vec<u8>, Vec<u8>> = built.on_full(OnFull::Decline).open().unwrap();
    let declined = |reason| Inserted::Declined(reason);
    let key = |at: u64| at.to_le_bytes().to_vec();
    assert_eq!(cache.insert(vec![1; 70_000], vec![1]), declined(Declined::TooLarge));
    assert_eq!(cache.insert(key(1), vec![1; 9 << 20]), declined(Declined::TooLarge));
    let large = vec![1; 7 << 19];
    let kept_off = InsertOptions::new().memory_only();
    cache.insert(key(2), vec![2]);
    let inserted = cache.insert_with(key(2), large, kept_off);
    assert_eq!(inserted, declined(Declined::TooLargeForMemory));
    assert_eq!(cache.get_blocking(&key(2)), None, "the older object was served");
    // Where the drive is slower than this, objects are declined, and each is told.
    let to_flash = InsertOptions::new().to_flash();
    let mut behind = 0;
    for at in 0..600 {
        let inserted = cache.insert_with(key(at), vec![3; 100 << 10], to_flash);
        behind += u64::from(inserted == declined(Declined::Behind));
    }
    assert_eq!(behind, cache.stats().flash.declined_behind);
    cache.close().unwrap();
    assert_eq!(cache.insert_with(key(1), vec![1], to_flash), declined(Declined::FlashEnded));
    assert_eq!(cache.insert(key(1), vec![1]), Inserted::InMemory);
}

#[test]
fn an_object_without_an_end_outlives_the_default_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let built = Hybrid::builder().memory(1 << 20).flash(&path, 16 << 20);
    let cache: Hybrid<u64, u64> = built.time_to_live(Duration::from_secs(1)).open().unwrap();
    let for_ever = InsertOptions::new().time_to_live(Duration::MAX);
    for key in 0..20 {
        let options = if key % 2 == 0 { for_ever } else { InsertOptions::new() };
        let options = if key < 10 { options.to_flash() } else { options };
        cache.insert_with(key, key, options);
    }
    std::thread::sleep(Duration::from_millis(2100));
    for key in 0..20 {
        assert_eq!(cache.get_blocking(&key).is_some(), key % 2 == 0, "{key}");
    }
}
