//! Hits, misses and bytes of the simulator against models that are too simple to be wrong.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::AtomicU64;

use floe_lab::simulate::objects::{Run, SimulationResult, simulate};
use floe_lab::simulate::stream::{Builder, Keep, Stream};
use floe_policy::{POLICIES, registry};
use floe_trace::{Kind, Op, Request};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Key and size of a request.
type Asked = (u64, u64);

/// Requests of which a few keys have many. The size of a key changes now and then.
fn draw(random: &mut StdRng, count: usize, keys: u64, size_max: u64) -> Vec<Asked> {
    let mut request = || {
        let popular = random.random_range(1..=keys);
        let key = random.random_range(0..popular);
        let version = u64::from(random.random_bool(0.1));
        (key, 1 + (key * 31 + version * 17) % size_max)
    };
    (0..count).map(|_| request()).collect()
}

fn stream(asked: &[Asked], sizes: bool) -> Stream {
    let mut builder = Builder::new(Kind::Key, Keep { rate: 1.0, sizes, next_use: true }, 4096);
    for &(key, bytes) in asked {
        let request = Request { time_ns: 0, key, bytes, volume: 0, op: Op::Read };
        builder.add(&request).expect("there is room");
    }
    builder.finish().expect("there are requests")
}

fn run(policy: &str, admit: &str, stream: &Stream, size: u64) -> SimulationResult {
    let policy = policy.parse().expect("it is registered");
    let admit = match admit {
        "" => Vec::new(),
        admit => floe_policy::admission::registry::choices(admit).expect("it is registered"),
    };
    simulate("trace", stream, &Run { policy, size, admit }, None, &AtomicU64::new(0))
}

/// Counts of a queue from the coldest object to the hottest.
#[derive(Debug, Default, PartialEq)]
struct Counts {
    hits: u64,
    missed_bytes: u64,
    inserted: u64,
}

/// A queue of objects; hits go to its end where it is LRU. Objects keep the size that they came
/// with.
fn queue(asked: &[Asked], capacity: u64, is_lru: bool) -> Counts {
    let (mut queue, mut counts) = (VecDeque::<Asked>::new(), Counts::default());
    for &(key, size) in asked {
        if let Some(at) = queue.iter().position(|held| held.0 == key) {
            counts.hits += 1;
            if is_lru {
                let held = queue.remove(at).expect("it was found there");
                queue.push_back(held);
            }
            continue;
        }
        counts.missed_bytes += size;
        if size <= capacity {
            while queue.iter().map(|held| held.1).sum::<u64>() + size > capacity {
                queue.pop_front();
            }
            queue.push_back((key, size));
            counts.inserted += 1;
        }
    }
    counts
}

#[test]
fn objects_with_sizes_hit_as_in_a_queue() {
    let mut random = StdRng::seed_from_u64(1);
    for round in 0..60 {
        let size_max = random.random_range(1..400);
        let asked = draw(&mut random, 1500, 120, size_max);
        // Now and then smaller than the largest object.
        let capacity = random.random_range(1..40 * size_max);
        let bytes: u64 = asked.iter().map(|&(_, size)| size).sum();
        let stream = stream(&asked, true);
        for (policy, is_lru) in [("fifo", false), ("lru", true)] {
            let expected = queue(&asked, capacity, is_lru);
            for admit in ["", "always"] {
                let outcome = run(policy, admit, &stream, capacity);
                let case = format!("round {round}: {policy} with {admit:?} of {capacity} bytes");
                assert_eq!(outcome.hits, expected.hits, "{case}");
                assert_eq!(outcome.misses, 1500 - expected.hits, "{case}");
                let missed = outcome.byte_miss_ratio * bytes as f64;
                assert!((missed - expected.missed_bytes as f64).abs() < 0.5, "{case}: {missed}");
                if admit == "always" {
                    assert_eq!(outcome.inserted, Some(expected.inserted), "{case}");
                }
            }
        }
    }
}

#[test]
fn objects_that_are_counted_hit_as_in_a_queue() {
    let mut random = StdRng::seed_from_u64(2);
    for _ in 0..40 {
        let asked = draw(&mut random, 2000, 200, 1);
        let capacity = random.random_range(1..220);
        let stream = stream(&asked, false);
        for (policy, is_lru) in [("fifo", false), ("lru", true)] {
            let outcome = run(policy, "", &stream, capacity);
            assert_eq!(outcome.hits, queue(&asked, capacity, is_lru).hits, "{policy} {capacity}");
            let missed = outcome.misses as f64;
            assert_eq!(outcome.miss_ratio, missed / 2000.0, "each request hits or misses");
            assert_eq!(outcome.byte_miss_ratio, outcome.miss_ratio, "all are of one size");
        }
    }
}

#[test]
fn until_full_admits_the_first_objects_that_fit() {
    let mut random = StdRng::seed_from_u64(3);
    for _ in 0..40 {
        let asked = draw(&mut random, 1500, 150, 50);
        let capacity = random.random_range(1..4000);
        let (mut held, mut weight, mut hits) = (HashSet::new(), 0, 0);
        for &(key, size) in &asked {
            if held.contains(&key) {
                hits += 1;
            } else if weight + size <= capacity {
                held.insert(key);
                weight += size;
            }
        }
        let outcome = run("lru", "until-full", &stream(&asked, true), capacity);
        assert_eq!((outcome.hits, outcome.inserted), (hits, Some(held.len() as u64)));
    }
}

/// Misses when the object that comes back last leaves, or does not enter (Belady, 1966).
fn fewest_misses(asked: &[Asked], capacity: usize) -> u64 {
    let next = |key: u64, at: usize| {
        asked[at + 1..]
            .iter()
            .position(|later| later.0 == key)
            .map_or(usize::MAX, |off| at + 1 + off)
    };
    let (mut held, mut misses) = (HashMap::<u64, usize>::new(), 0);
    for (at, &(key, _)) in asked.iter().enumerate() {
        misses += u64::from(held.insert(key, next(key, at)).is_none());
        if held.len() > capacity {
            let last = held.iter().max_by_key(|&(_, next)| *next).map(|(&key, _)| key);
            held.remove(&last.expect("it is not empty"));
        }
    }
    misses
}

#[test]
fn no_policy_misses_less_than_is_possible() {
    let mut random = StdRng::seed_from_u64(4);
    for _ in 0..6 {
        let asked = draw(&mut random, 600, 60, 1);
        let capacity = random.random_range(1..60);
        let (stream, fewest) = (stream(&asked, false), fewest_misses(&asked, capacity));
        for entry in POLICIES {
            let outcome = run(entry.info.name, "", &stream, capacity as u64);
            let fetched = outcome.misses + outcome.prefetches;
            assert!(fetched >= fewest, "{}: {fetched}, {fewest} are possible", entry.info.name);
        }
        // Belady's cache takes every object in, which costs a miss at most for each that it could
        // have left out.
        let belady = run("belady", "", &stream, capacity as u64);
        for name in ["lru", "fifo", "arc", "s3-fifo"] {
            assert!(belady.misses <= run(name, "", &stream, capacity as u64).misses, "{name}");
        }
    }
}

#[test]
fn a_cache_that_holds_everything_misses_each_object_once() {
    let mut random = StdRng::seed_from_u64(5);
    let asked: Vec<Asked> =
        draw(&mut random, 3000, 200, 1).into_iter().map(|(key, _)| (key, 1 + key % 9)).collect();
    let distinct: HashMap<u64, u64> = asked.iter().copied().collect();
    let (footprint, bytes): (u64, u64) =
        (distinct.values().sum(), asked.iter().map(|&(_, size)| size).sum());
    let stream = stream(&asked, true);
    assert_eq!((stream.footprint, stream.asked_bytes), (footprint, bytes));
    for name in registry::names() {
        // Segments of some policies are smaller than the cache: twice the room holds everything.
        let outcome = run(name, "", &stream, 2 * footprint);
        assert_eq!(outcome.misses + outcome.prefetches, distinct.len() as u64, "{name}");
        let missed = outcome.byte_miss_ratio * bytes as f64;
        assert!(missed - 0.5 < footprint as f64, "{name}: {missed} of {footprint} bytes");
    }
}
