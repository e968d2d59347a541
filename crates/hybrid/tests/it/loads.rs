//! Fetches with options, refreshes, and warming.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use floe_hybrid::{Hybrid, InsertOptions};

use super::{block_on, open, value};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

async fn fetch(version: u64, options: InsertOptions) -> Result<(Vec<u8>, InsertOptions), String> {
    Ok((value(version, 500), options))
}

async fn no_fetch() -> Result<(Vec<u8>, InsertOptions), String> {
    Err("no network".to_owned())
}

/// Inserts objects until those that are not used are on flash.
fn push_out(cache: &Hybrid<u64, Vec<u8>>) {
    for key in 10_000..13_000 {
        cache.insert(key, value(key, 1000));
    }
}

#[test]
fn fetched_values_have_lifetimes_and_hints() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let cache = open(&path, 1 << 20, 16 << 20);
    let get = |key, options| block_on(cache.loads().get(&key, fetch(key, options))).unwrap();
    let short = InsertOptions::new().time_to_live(SECOND);
    let hints = [
        short,
        InsertOptions::new(),
        InsertOptions::new().memory_only(),
        InsertOptions::new().to_flash(),
    ];
    for key in 0..4 {
        assert_eq!(get(key, hints[key as usize]), value(key, 500));
    }
    assert_eq!((cache.stats().flash.objects, cache.stats().memory.entries), (1, 3));
    cache.close().unwrap();
    drop(cache);
    let cache = open(&path, 1 << 20, 16 << 20);
    std::thread::sleep(2 * SECOND);
    let found = [0, 1, 2, 3].map(|key: u64| cache.get_blocking(&key).is_some());
    assert_eq!(found, [false, true, false, true]);
    let error = block_on(cache.loads().get(&0, no_fetch())).unwrap_err();
    assert_eq!(*error, "no network");
}

#[test]
fn a_value_for_flash_alone_is_handed_to_all_who_wait() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(&folder.path().join("cache"), 1 << 20, 16 << 20);
    let fetched = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let fetch = async {
                    fetched.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(200));
                    Ok::<_, String>((value(7, 500), InsertOptions::new().to_flash()))
                };
                assert_eq!(block_on(cache.loads().get(&7, fetch)).unwrap(), value(7, 500));
            });
        }
    });
    assert_eq!(cache.stats().flash.inserted, fetched.into_inner());
    assert_eq!(cache.peek_blocking(&7), Some(value(7, 500)));
}

/// Checks that a stale object is refreshed, in memory or on flash, and after a restart.
fn refreshed(on_flash: bool, restarts: bool) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let mut cache = open(&path, 1 << 20, 16 << 20);
    let options = InsertOptions::new().stale_while_revalidate(SECOND, HOUR);
    cache.insert_with(7, value(1, 500), options);
    if on_flash {
        push_out(&cache);
    }
    if restarts {
        cache.close().unwrap();
        drop(cache);
        cache = open(&path, 1 << 20, 16 << 20);
    }
    std::thread::sleep(2 * SECOND);
    // `get` serves it, and so does a source that fails.
    assert_eq!(cache.peek_blocking(&7), Some(value(1, 500)));
    let stale = || block_on(cache.loads().get(&7, no_fetch())).unwrap();
    assert_eq!(stale(), value(1, 500));
    assert_eq!(block_on(cache.loads().get(&7, fetch(2, options))).unwrap(), value(2, 500));
    assert_eq!(stale(), value(2, 500));
    push_out(&cache);
    assert_eq!(cache.peek_blocking(&7), Some(value(2, 500)));
}

#[test]
fn stale_objects_are_refreshed_in_memory() {
    refreshed(false, false);
}

#[test]
fn stale_objects_are_refreshed_from_flash() {
    refreshed(true, false);
}

#[test]
fn stale_objects_are_refreshed_after_a_restart() {
    refreshed(true, true);
}

#[test]
fn a_refresh_in_the_background_is_begun_once() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(&folder.path().join("cache"), 1 << 20, 16 << 20);
    let options = InsertOptions::new().stale_while_revalidate(SECOND, HOUR);
    let tasks = Mutex::new(Vec::new());
    let get = |version| {
        let spawn = |task| tasks.lock().unwrap().push(task);
        block_on(cache.loads().get_in_background(&7, fetch(version, options), spawn)).unwrap()
    };
    let begun = || tasks.lock().unwrap().len();
    assert_eq!((get(1), get(2), begun()), (value(1, 500), value(1, 500), 0));
    push_out(&cache);
    std::thread::sleep(2 * SECOND);
    assert_eq!((get(3), get(4), begun()), (value(1, 500), value(1, 500), 1));
    // A task that is dropped has refreshed nothing.
    drop(tasks.lock().unwrap().pop());
    assert_eq!((get(5), begun()), (value(1, 500), 1));
    block_on(tasks.lock().unwrap().pop().unwrap());
    assert_eq!((get(6), begun()), (value(5, 500), 0));
}

#[test]
fn a_list_of_keys_is_brought_to_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let cache = open(&path, 4 << 20, 64 << 20);
    for key in 0..6000 {
        cache.insert_with(key, value(key, 1000), InsertOptions::new().to_flash());
    }
    cache.close().unwrap();
    drop(cache);
    let cache = open(&path, 4 << 20, 64 << 20);
    cache.insert(1, value(1, 1000));
    let keys: Vec<u64> = (0..1000).map(|at| at * 5 + 1).chain([8000, 9000]).collect();
    let keys: Vec<&u64> = keys.iter().collect();
    let warmed = block_on(cache.warm(&keys));
    assert_eq!((warmed.in_memory, warmed.brought, warmed.missing), (1, 999, 2), "{warmed:?}");
    let before = cache.stats();
    assert_eq!((before.memory.entries, before.flash.hits), (1000, 0));
    for key in &keys[..1000] {
        assert_eq!(cache.get_blocking(*key), Some(value(**key, 1000)));
    }
    assert_eq!(cache.stats().memory.hits - before.memory.hits, 1000);
    // More than memory has room for: the first keys of the list are there.
    let keys: Vec<u64> = (0..6000).rev().collect();
    let warmed = block_on(cache.warm(&keys.iter().collect::<Vec<_>>()));
    assert_eq!(warmed.in_memory, 1000);
    assert!(warmed.without_room > 1000, "{warmed:?}");
    assert_eq!(warmed.in_memory + warmed.brought + warmed.without_room, 6000, "{warmed:?}");
}

#[test]
fn warming_beside_changes_brings_nothing_old() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(&folder.path().join("cache"), 1 << 20, 16 << 20);
    let keys: Vec<u64> = (0..2000).collect();
    for key in &keys {
        cache.insert_with(*key, value(*key, 1000), InsertOptions::new().to_flash());
    }
    std::thread::scope(|scope| {
        let warm = scope.spawn(|| {
            let keys: Vec<&u64> = keys.iter().collect();
            for _ in 0..20 {
                block_on(cache.warm(&keys));
            }
        });
        let mut round = 0;
        while !warm.is_finished() {
            round += 1;
            for key in (round % 7..2000).step_by(7) {
                if round % 2 == 0 {
                    cache.remove(&key);
                    assert_eq!(cache.peek_blocking(&key), None, "{key}");
                } else {
                    cache.insert_with(key, value(round, 900), InsertOptions::new().to_flash());
                    let found = cache.peek_blocking(&key);
                    assert!(found.is_none_or(|found| found == value(round, 900)), "{key}");
                }
            }
        }
    });
}
