//! Objects that are larger than a segment.

use floe_hybrid::{Declined, Hybrid, InsertOptions, Inserted, Opened, check};

use crate::{block_on, open, value};

const LARGE: usize = 3 << 20;

#[test]
fn objects_in_parts_are_objects_like_others() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let cache = open(&path, 4 << 20, 64 << 20);
    assert_eq!(cache.insert(0, value(0, 9 << 20)), Inserted::Declined(Declined::TooLarge));
    for key in 0..8 {
        let inserted = cache.insert(key, value(key, LARGE));
        assert!(matches!(inserted, Inserted::InMemory | Inserted::ToFlash), "{inserted:?}");
    }
    assert_eq!(block_on(cache.insert_async(8, value(8, 7 << 20))), Inserted::ToFlash);
    let find_all = |cache: &Hybrid<u64, Vec<u8>>, keys: std::ops::Range<u64>| {
        for key in keys {
            let wanted = value(key, if key == 8 { 7 << 20 } else { LARGE });
            assert!(cache.peek_blocking(&key).as_ref() == Some(&wanted), "{key}");
            assert!(block_on(cache.peek(&key)).as_ref() == Some(&wanted), "{key}");
            assert!(block_on(cache.get_many(&[&key])).pop() == Some(Some(wanted.clone())), "{key}");
            assert!(block_on(cache.get(&key)).as_ref() == Some(&wanted), "{key}");
            assert!(cache.get_blocking(&key) == Some(wanted), "{key}");
        }
    };
    find_all(&cache, 0..9);
    // Small and large objects replace each other, and a removal is whole.
    cache.insert(2, value(2, 100));
    cache.insert_with(3, value(3, LARGE + 1), InsertOptions::new().to_flash());
    cache.remove(&4);
    let removed = cache.remove_if(|key| *key == 5).unwrap();
    assert!(removed.removed >= 1);
    let changed = |cache: &Hybrid<u64, Vec<u8>>| {
        assert_eq!(cache.get_blocking(&2), Some(value(2, 100)));
        assert!(cache.get_blocking(&3) == Some(value(3, LARGE + 1)));
        assert!(!cache.contains(&4) && !cache.contains(&5));
        find_all(cache, 6..9);
    };
    changed(&cache);
    cache.close().unwrap();
    drop(cache);
    let contents = check(&path, |_, _| {}).unwrap();
    assert_eq!((contents.damaged_places, contents.lost_objects), (0, 0), "{contents:?}");
    assert!(contents.live_objects == 7 && contents.live_parts > 100, "{contents:?}");

    let cache = open(&path, 4 << 20, 64 << 20);
    assert_eq!(cache.opened(), Opened::Clean);
    let warmed = block_on(cache.warm(&[&6, &2]));
    assert!(warmed.brought >= 1 && warmed.missing == 0, "{warmed:?}");
    changed(&cache);
    // The log goes round: an object whose oldest part is evicted is a miss, and no error.
    for key in 100..140 {
        cache.insert_with(key, value(key, LARGE), InsertOptions::new().to_flash());
    }
    for key in 100..140 {
        let found = cache.get_blocking(&key);
        assert!(found.is_none_or(|found| found == value(key, LARGE)), "{key}");
    }
    assert!(cache.get_blocking(&139).is_some());
}

#[cfg(feature = "lz4")]
#[test]
fn large_values_are_compressed_as_a_whole() {
    use floe_hybrid::Compression;

    let folder = tempfile::tempdir().unwrap();
    let builder = Hybrid::builder().memory(4 << 20).flash(folder.path().join("cache"), 64 << 20);
    let cache: Hybrid<u64, Vec<u8>> = builder.compression(Compression::Lz4).open().unwrap();
    // Half of it random, so that parts are needed.
    let mut value = vec![7u8; 4 << 20];
    let mut state = 1u64;
    for byte in &mut value[..2 << 20] {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        *byte = (state >> 56) as u8;
    }
    cache.insert_with(1, value.clone(), InsertOptions::new().to_flash());
    assert!(cache.get_blocking(&1) == Some(value));
    let appended = cache.stats().flash.appended_bytes;
    assert!((2 << 20..3 << 20).contains(&appended), "{appended}");
}
