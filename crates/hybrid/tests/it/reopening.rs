//! A flash that fails while the cache is open, and is opened again by an order.

use std::fs::OpenOptions;
use std::path::Path;

use floe_hybrid::{Hybrid, Opened, Removed, Reopened};

use crate::{open, value};

const KEYS: u64 = 3000;

/// Makes a cache whose file has been cut short and whose flash has failed. Returns it and the
/// content that the file had.
fn failed(path: &Path) -> (Hybrid<u64, Vec<u8>>, Vec<u8>) {
    let cache = open(path, 1 << 20, 16 << 20);
    for key in 0..KEYS {
        cache.insert(key, value(key, 1000));
    }
    cache.sync().unwrap();
    assert_eq!(cache.reopen_flash().unwrap(), Reopened::Working);
    let content = std::fs::read(path).unwrap();
    OpenOptions::new().write(true).open(path).unwrap().set_len(64 << 10).unwrap();
    for key in KEYS.. {
        cache.insert(key, value(key, 1000));
        if cache.stats().flash.failure.is_some() {
            return (cache, content);
        }
    }
    unreachable!("a drive without room fails");
}

#[test]
fn a_drive_that_comes_back_serves_its_objects_and_nothing_that_changed_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let (cache, content) = failed(&path);
    // Keys in the middle: those that memory has may not be on flash.
    for key in 1000..1020 {
        assert!(matches!(cache.remove_durably(&key), Removed::NotDurable(_)));
        cache.insert(key + 20, value(key + 20, 500));
    }
    let line = cache.reopen_flash().unwrap_err().to_string();
    assert!(line.contains("has 65536 bytes") && !line.contains('\n'), "{line}");
    std::fs::write(&path, content).unwrap();
    let result = cache.reopen_flash().unwrap();
    let Reopened::Restored { outdated, .. } = result else { panic!("{result:?}") };
    assert!((30..=40).contains(&outdated), "{result:?}");
    assert_eq!(cache.stats().flash.failure, None);
    let check = |cache: &Hybrid<u64, Vec<u8>>| {
        for key in 1000..1020 {
            assert_eq!(cache.get_blocking(&key), None, "{key}");
            let replaced = cache.get_blocking(&(key + 20));
            assert!(replaced.is_none_or(|found| found == value(key + 20, 500)), "{key}");
        }
        let others = (0..1000).chain(1040..2000);
        let on_flash = others.filter(|key| cache.get_blocking(key) == Some(value(*key, 1000)));
        assert!(on_flash.count() > 1900);
    };
    check(&cache);
    assert!(matches!(cache.remove_durably(&1500), Removed::Durable));
    // The next process finds the same.
    cache.close().unwrap();
    drop(cache);
    let cache = open(&path, 1 << 20, 16 << 20);
    assert_eq!(cache.opened(), Opened::Clean);
    check(&cache);
    assert_eq!(cache.get_blocking(&1500), None);
}

#[test]
fn a_new_drive_begins_empty() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let (cache, _) = failed(&path);
    std::fs::remove_file(&path).unwrap();
    let result = cache.reopen_flash().unwrap();
    assert!(matches!(result, Reopened::New { lost: 1.. }), "{result:?}");
    assert_eq!(cache.stats().flash.objects, 0);
    for key in 10_000..13_000 {
        cache.insert(key, value(key, 1000));
    }
    cache.close().unwrap();
    let closed = cache.reopen_flash().unwrap_err().to_string();
    assert!(closed.contains("the cache is closed"), "{closed}");
    drop(cache);
    let cache = open(&path, 1 << 20, 16 << 20);
    assert_eq!(cache.opened(), Opened::Clean);
    assert!((10_000..13_000).all(|key| cache.get_blocking(&key) == Some(value(key, 1000))));
}

#[test]
fn a_file_that_another_cache_has_taken_is_not_touched() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let (cache, _) = failed(&path);
    std::fs::remove_file(&path).unwrap();
    let other = open(&path, 1 << 20, 16 << 20);
    other.insert(1, value(1, 100));
    assert!(cache.reopen_flash().unwrap_err().to_string().contains("in use"));
    other.close().unwrap();
    drop(other);
    let line = cache.reopen_flash().unwrap_err().to_string();
    assert!(line.contains("holds another cache than the one that failed"), "{line}");
    drop(cache);
    assert_eq!(open(&path, 1 << 20, 16 << 20).get_blocking(&1), Some(value(1, 100)));
}

#[test]
fn a_clear_during_a_failure_lasts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let (cache, content) = failed(&path);
    assert!(cache.clear().is_err(), "the flash takes no order");
    assert!((0..KEYS).all(|key| cache.get_blocking(&key).is_none()));
    std::fs::write(&path, content).unwrap();
    assert!(matches!(cache.reopen_flash().unwrap(), Reopened::Restored { .. }));
    cache.insert(1, value(1, 700));
    cache.close().unwrap();
    drop(cache);
    let cache = open(&path, 1 << 20, 16 << 20);
    assert_eq!((0..KEYS).filter(|key| cache.contains(key)).count(), 1);
}
