//! The hybrid cache on a real file.

mod admission;
mod admission_loads;
#[cfg(all(feature = "lz4", feature = "zstd"))]
mod compression;
mod drives;
mod inspection;
mod kills;
mod large;
mod listeners;
mod loads;
mod options;
mod reopening;
mod simulation;
mod world;

use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use floe_hybrid::{Declined, Hybrid, InsertOptions, Inserted, OnFull, Opened, Removed};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Wakes a thread that waits for a future.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

fn open(path: &Path, memory: u64, flash: u64) -> Hybrid<u64, Vec<u8>> {
    Hybrid::builder().memory(memory).flash(path, flash).object_bytes(1000).open().unwrap()
}

fn value(key: u64, len: usize) -> Vec<u8> {
    let mut value = vec![key as u8; len];
    value[..8].copy_from_slice(&key.to_le_bytes());
    value
}

#[test]
fn everything_of_an_insert_storm_that_fits_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let cache = open(&path, 2 << 20, 64 << 20);
    assert_eq!(cache.opened(), Opened::New);
    const KEYS: u64 = 40_000;
    for key in 0..KEYS {
        assert_eq!(cache.insert(key, value(key, 1000)), Inserted::InMemory);
    }
    let found = (0..KEYS).filter(|key| cache.get_blocking(key) == Some(value(*key, 1000))).count();
    assert_eq!(found as u64 + cache.stats().flash.collided, KEYS, "{:?}", cache.stats());
    let found = (0..KEYS).filter(|key| block_on(cache.get(key)) == Some(value(*key, 1000))).count();
    assert_eq!(found as u64 + cache.stats().flash.collided, KEYS);
    cache.close().unwrap();
    drop(cache);

    let cache = open(&path, 2 << 20, 64 << 20);
    assert_eq!(cache.opened(), Opened::Clean);
    let found = (0..KEYS).filter(|key| block_on(cache.get(key)) == Some(value(*key, 1000))).count();
    assert!(found as u64 >= KEYS - 10, "{found} of {KEYS}: {:?}", cache.stats());
    (0..KEYS).for_each(|key| cache.remove(&key));
    assert!((0..KEYS).all(|key| cache.get_blocking(&key).is_none()));
    cache.close().unwrap();
    drop(cache);
    let cache = open(&path, 2 << 20, 64 << 20);
    assert!((0..KEYS).all(|key| !cache.contains(&key)));
}

#[test]
fn what_is_read_is_what_was_inserted_last_by_many_threads() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(&folder.path().join("cache"), 1 << 20, 8 << 20);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let cache = cache.clone();
            scope.spawn(move || {
                let mut random = SmallRng::seed_from_u64(thread);
                let mut model = vec![None; 4000];
                for round in 0..30_000u64 {
                    let at = random.random_range(0..model.len());
                    let key = at as u64 * 4 + thread;
                    match random.random_range(0..10) {
                        0..4 => {
                            let len = random.random_range(16..3000);
                            let mut bytes = value(key, len);
                            bytes[8..16].copy_from_slice(&round.to_le_bytes());
                            cache.insert(key, bytes);
                            model[at] = Some(round);
                        }
                        4 => {
                            cache.remove(&key);
                            model[at] = None;
                        }
                        other => {
                            let found = if other < 7 {
                                cache.get_blocking(&key)
                            } else {
                                block_on(cache.get(&key))
                            };
                            let Some(found) = found else { continue };
                            let round = u64::from_le_bytes(found[8..16].try_into().unwrap());
                            assert_eq!(found[..8], key.to_le_bytes());
                            assert_eq!(Some(round), model[at], "key {key}");
                        }
                    }
                }
            });
        }
    });
    let stats = cache.stats();
    assert!(stats.flash.hits > 1000, "{stats:?}");
    assert_eq!((stats.flash.damaged, stats.flash.failed_reads), (0, 0));
}

#[test]
fn a_key_is_fetched_once_for_all_who_ask() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(&folder.path().join("cache"), 1 << 20, 8 << 20);
    let fetched = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let fetch = async {
                    fetched.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(50));
                    Ok::<_, std::io::Error>(value(7, 100))
                };
                assert_eq!(block_on(cache.get_or_fetch(&7, fetch)).unwrap(), value(7, 100));
            });
        }
    });
    assert_eq!(fetched.into_inner(), 1);
    let failed = block_on(cache.get_or_fetch(&8, async { Err::<Vec<u8>, _>("no network") }));
    assert_eq!(*failed.unwrap_err(), "no network");
    assert!(!cache.contains(&8));
}

#[test]
fn objects_expire_in_memory_and_on_flash() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(&folder.path().join("cache"), 1 << 20, 8 << 20);
    let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3600));
    for key in 0..3000 {
        let lifetime = if key % 2 == 0 { second } else { hour };
        cache.insert_with(key, value(key, 1000), InsertOptions::new().time_to_live(lifetime));
    }
    std::thread::sleep(Duration::from_millis(2100));
    for key in 0..3000 {
        assert_eq!(cache.get_blocking(&key).is_some(), key % 2 == 1, "{key}");
    }
}

#[test]
fn removed_and_cleared_objects_stay_away() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let cache = open(&path, 1 << 20, 8 << 20);
    for key in 0..3000 {
        cache.insert(key, value(key, 1000));
    }
    assert!(matches!(cache.remove_durably(&5), Removed::Durable));
    assert_eq!(cache.get_blocking(&5), None);
    cache.clear().unwrap();
    assert!((0..3000).all(|key| cache.get_blocking(&key).is_none()));
    cache.insert(1, value(1, 500));
    cache.close().unwrap();
    drop(cache);
    let cache = open(&path, 1 << 20, 8 << 20);
    assert_eq!(cache.get_blocking(&1), Some(value(1, 500)));
    assert_eq!((0..3000).filter(|key| cache.contains(key)).count(), 1);
}

#[test]
fn large_objects_go_to_flash_and_too_large_ones_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(&folder.path().join("cache"), 4 << 20, 64 << 20);
    for key in 0..40 {
        assert_ne!(
            cache.insert(key, value(key, 240 << 10)),
            Inserted::Declined(Declined::TooLarge)
        );
    }
    assert!((0..40).all(|key| cache.get_blocking(&key) == Some(value(key, 240 << 10))));
    assert_eq!(cache.insert(1, value(1, 9 << 20)), Inserted::Declined(Declined::TooLarge));
    assert_eq!(cache.get_blocking(&1), None, "an older object was served");
}

#[test]
fn an_object_that_memory_holds_longer_than_flash_goes_there_again() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(&folder.path().join("cache"), 1 << 20, 8 << 20);
    let to_flash = InsertOptions::new().to_flash();
    cache.insert_with(0, value(0, 1000), to_flash);
    // Memory has a copy from the second hit on. Flash keeps its own twice, for these hits.
    for key in 1..40_000 {
        assert_eq!(cache.get_blocking(&0), Some(value(0, 1000)), "{key}");
        cache.insert_with(key, value(key, 1000), to_flash);
    }
    // Used objects take its place in memory.
    for key in 40_000..44_000 {
        cache.insert(key, value(key, 1000));
        (0..3).for_each(|_| assert!(cache.get_blocking(&key).is_some()));
    }
    let before = cache.stats().memory.hits;
    assert_eq!(cache.get_blocking(&0), Some(value(0, 1000)));
    assert_eq!(cache.stats().memory.hits, before, "the test is about objects on flash");
}

#[test]
fn wrong_files_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let refused = |memory, bytes| {
        let built = Hybrid::<u64, u64>::builder().memory(memory).flash(&path, bytes).open();
        built.unwrap_err().to_string()
    };
    std::fs::write(&path, vec![b'x'; 1 << 20]).unwrap();
    assert!(refused(1 << 20, 1 << 20).contains("something other than a hybrid cache"));
    std::fs::remove_file(&path).unwrap();
    assert!(refused(1000, 1 << 20).contains("too few"));
    assert!(refused(1 << 20, 100 << 10).contains("too small"));
    let cache = open(&path, 1 << 20, 8 << 20);
    assert!(refused(1 << 20, 8 << 20).contains("in use"));
    drop(cache);
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(4 << 20).unwrap();
    assert!(refused(1 << 20, 4 << 20).contains("cut short"), "{}", refused(1 << 20, 4 << 20));
}

#[test]
fn where_producers_do_not_wait_what_is_dropped_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let built = Hybrid::builder().memory(1 << 20).flash(folder.path().join("cache"), 64 << 20);
    let cache: Hybrid<u64, Vec<u8>> = built.on_full(OnFull::Decline).open().unwrap();
    const KEYS: u64 = 30_000;
    for key in 0..KEYS {
        cache.insert(key, value(key, 1000));
    }
    let found = (0..KEYS).filter(|key| cache.contains(key)).count() as u64;
    let stats = cache.stats().flash;
    let told = stats.declined_behind + stats.superseded + stats.collided;
    assert_eq!(found + told, KEYS, "{stats:?}");
}

#[test]
fn insertions_and_removals_can_be_awaited() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(&folder.path().join("cache"), 1 << 20, 16 << 20);
    for key in 0..8000 {
        block_on(cache.insert_async(key, value(key, 1000)));
    }
    assert_eq!((0..8000).filter(|key| cache.contains(key)).count(), 8000);
    assert!(matches!(block_on(cache.remove_async(&5)), Removed::Durable));
    assert!(!cache.contains(&5));
    block_on(cache.sync_async()).unwrap();
}

#[test]
fn a_cache_whose_flash_has_ended_serves_nothing_that_was_removed_or_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(&folder.path().join("cache"), 1 << 20, 16 << 20);
    for key in 0..5000 {
        cache.insert(key, value(key, 1000));
    }
    cache.close().unwrap();
    assert!(cache.contains(&0), "the test is about objects on flash");
    cache.remove(&0);
    assert_eq!(cache.get_blocking(&0), None);
    for key in 1..5000 {
        cache.insert(key, value(key, 900));
    }
    for key in 1..5000 {
        let found = cache.get_blocking(&key);
        assert!(found.is_none_or(|found| found.len() == 900), "{key}: an older object was served");
    }
}

#[test]
fn objects_in_memory_make_room_for_the_index() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let built = Hybrid::builder().memory(2 << 20).flash(&path, 64 << 20).object_bytes(1 << 20);
    let cache: Hybrid<u64, u64> = built.open().unwrap();
    let limit = cache.stats().memory.weight_capacity.unwrap();
    for key in 0..100_000 {
        cache.insert(key, key);
    }
    let stats = cache.stats();
    let taken = stats.memory.weight_capacity.unwrap() + stats.flash.index_bytes;
    assert!(stats.flash.index_bytes > 500_000, "{stats:?}");
    assert!(taken <= limit + (1 << 19), "{taken} of {limit}");
    assert!(stats.memory.weight <= stats.memory.weight_capacity.unwrap());
}

#[test]
fn many_keys_are_read_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let cache = open(&path, 1 << 20, 16 << 20);
    for key in 0..5000 {
        cache.insert(key, value(key, 1000));
    }
    let keys: Vec<u64> = (0..6000).step_by(3).collect();
    let found = block_on(cache.get_many(&keys.iter().collect::<Vec<_>>()));
    for (key, found) in keys.iter().zip(found) {
        assert_eq!(found, (*key < 5000).then(|| value(*key, 1000)), "{key}");
    }
}

#[test]
fn futures_can_go_to_other_threads() {
    fn is_send<T: Send>(value: T) -> T {
        value
    }
    let folder = tempfile::tempdir().unwrap();
    let cache = open(&folder.path().join("cache"), 1 << 20, 8 << 20);
    assert_eq!(block_on(is_send(cache.get(&1))), None);
    let fetched = is_send(cache.get_or_fetch(&1, async { Ok::<_, ()>(vec![1]) }));
    assert_eq!(block_on(fetched), Ok(vec![1]));
}
