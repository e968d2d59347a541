//! The listener of objects that leave the cache, and the visit of all keys.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use floe_hybrid::{Cause, Hybrid, InsertOptions};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::value;

type Cache = Hybrid<u64, Vec<u8>>;
type Told = Arc<Mutex<Vec<(u64, Option<usize>, Cause)>>>;

/// Opens a cache whose listener notes keys, lengths of values and causes. One thread sees the same
/// each time.
fn open(folder: &tempfile::TempDir) -> (Cache, Told) {
    let told = Told::default();
    let log = Arc::clone(&told);
    let listener = move |key: &u64, value: Option<&Vec<u8>>, cause| {
        log.lock().unwrap().push((*key, value.map(Vec::len), cause));
    };
    let builder = Hybrid::builder().memory(1 << 20).flash(folder.path().join("cache"), 8 << 20);
    (builder.listener(listener).reproducible().open().unwrap(), told)
}

#[test]
fn each_object_that_leaves_is_told_once_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let (cache, told) = open(&folder);
    let mut random = SmallRng::seed_from_u64(1);
    // The newest value of each key, as the listener tells of it.
    let mut there: HashMap<u64, usize> = HashMap::new();
    let mut causes: HashMap<Cause, u64> = HashMap::new();
    for round in 0..40_000u64 {
        let key = random.random_range(0..20_000);
        let had = there.contains_key(&key);
        let change = match random.random_range(0..20) {
            0 => {
                cache.remove(&key);
                there.remove(&key);
                had.then_some((key, Cause::Removed))
            }
            1..8 => {
                let len = random.random_range(100..2000);
                cache.insert(key, value(key, len));
                there.insert(key, len);
                had.then_some((key, Cause::Replaced))
            }
            _ => {
                assert_eq!(cache.get_blocking(&key).is_some(), had, "round {round}: key {key}");
                None
            }
        };
        let mut changed = None;
        for (key, len, cause) in told.lock().unwrap().drain(..) {
            *causes.entry(cause).or_default() += 1;
            match cause {
                Cause::Evicted => {
                    let gone = there.remove(&key);
                    assert!(gone.is_some(), "round {round}: {key} was not there");
                    assert!(len.is_none() || len == gone, "round {round}: {key}");
                }
                _ => assert_eq!(changed.replace((key, cause)), None, "round {round}: told twice"),
            }
        }
        assert_eq!(changed, change, "round {round}: key {key}");
    }
    let collided = cache.stats().flash.collided;
    assert_eq!(collided, 0, "choose another seed: the index has lost an object");
    assert!(causes[&Cause::Evicted] > 3000, "{causes:?}");
    assert!(causes[&Cause::Removed] > 300 && causes[&Cause::Replaced] > 2000, "{causes:?}");
    let keys: HashSet<u64> = there.keys().copied().collect();
    let mut visited = HashSet::new();
    let result = cache
        .for_each_key(|key| {
            visited.insert(*key);
        })
        .unwrap();
    assert_eq!((result.unreadable_segments, result.cancelled), (0, false));
    assert_eq!(visited, keys);
    cache.close().unwrap();
    assert!(cache.for_each_key(|_| ()).is_err(), "flash is closed");
}

#[test]
fn objects_that_expire_are_told_by_memory_or_by_flash() {
    let folder = tempfile::tempdir().unwrap();
    let (cache, told) = open(&folder);
    let second = InsertOptions::new().time_to_live(Duration::from_secs(1));
    for key in 0..3000 {
        cache.insert_with(key, value(key, 1000), second);
    }
    std::thread::sleep(Duration::from_millis(2100));
    assert!((0..3000).all(|key| cache.get_blocking(&key).is_none()));
    let told = std::mem::take(&mut *told.lock().unwrap());
    let keys: HashSet<u64> = told.iter().map(|(key, ..)| *key).collect();
    assert_eq!((told.len(), keys.len()), (3000, 3000));
    let expired = told.iter().filter(|(.., cause)| *cause == Cause::Expired).count();
    assert_eq!(expired, 3000);
    assert!(told.iter().any(|(_, len, _)| len.is_none()), "some were on flash");
}

#[test]
fn objects_that_nothing_takes_are_told_and_a_clear_tells_of_those_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let (cache, told) = open(&folder);
    cache.insert(1, value(1, 9 << 20));
    cache.insert_with(2, value(2, 100), InsertOptions::new().to_flash());
    cache.insert(3, value(3, 100));
    cache.clear().unwrap();
    let told = std::mem::take(&mut *told.lock().unwrap());
    assert_eq!(told, [(1, Some(9 << 20), Cause::Rejected), (3, Some(100), Cause::Removed)]);
}
