//! Hits, misses and bytes of the simulator against models that are too simple to be wrong.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::AtomicU64;

use floe_lab::simulate::objects::{Run, SimulationResult, simulate};
use floe_lab::simulate::stream::{Builder, Keep, Stream};
use floe_policy::{POLICIES, registry};
use floe_trace::{Kind, LruCurve, Op, Request, Stats};
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
    bytes: u64,
    missed_bytes: u64,
    inserted: u64,
}

/// A queue of objects; hits go to its end where it is LRU. A hit gives an object its new size.
fn queue(asked: &[Asked], capacity: u64, is_lru: bool) -> Counts {
    let requests: Vec<_> = asked.iter().map(|&(key, size)| (Op::Write, key, size)).collect();
    queue_of(&requests, capacity, is_lru)
}

/// The queue of any operations. A read of size 0 does not tell the size, which is the last known.
fn queue_of(requests: &[(Op, u64, u64)], capacity: u64, is_lru: bool) -> Counts {
    let (mut queue, mut counts) = (VecDeque::<Asked>::new(), Counts::default());
    let mut known = HashMap::<u64, u64>::new();
    for &(op, key, size) in requests {
        let place = queue.iter().position(|held| held.0 == key);
        if op == Op::Delete {
            place.and_then(|at| queue.remove(at));
            continue;
        }
        let said = op == Op::Write || size > 0 || !known.contains_key(&key);
        let size = if said { size } else { known[&key] };
        known.insert(key, size);
        counts.bytes += size;
        if let Some(at) = place {
            counts.hits += 1;
            queue[at].1 = size;
            if is_lru {
                let held = queue.remove(at).expect("it was found there");
                queue.push_back(held);
            }
            if size > capacity {
                queue.retain(|held| held.0 != key);
            }
        } else {
            counts.missed_bytes += size;
            if size <= capacity {
                while queue.iter().map(|held| held.1).sum::<u64>() + size > capacity {
                    queue.pop_front();
                }
                queue.push_back((key, size));
                counts.inserted += 1;
            }
        }
        while queue.iter().map(|held| held.1).sum::<u64>() > capacity {
            queue.pop_front();
        }
    }
    counts
}

/// Draws reads, some of them of size 0, writes and deletions.
fn draw_operations(random: &mut StdRng, unit: u64) -> Vec<(Op, u64, u64)> {
    let asked = draw(random, 1500, 120, 90);
    let mut operation = |(key, size)| match random.random_range(0..10) {
        0 => (Op::Delete, key, 0),
        1..=3 => (Op::Write, key, size * unit),
        4 => (Op::Read, key, 0),
        _ => (Op::Read, key, size * unit),
    };
    asked.into_iter().map(&mut operation).collect()
}

fn stream_of(requests: &[(Op, u64, u64)], sizes: bool) -> Stream {
    let mut builder = Builder::new(Kind::Object, Keep { rate: 1.0, sizes, next_use: true }, 4096);
    for &(op, key, bytes) in requests {
        let request = Request { time_ns: 0, key, bytes, volume: 0, op };
        builder.add(&request).expect("there is room");
    }
    builder.finish().expect("there are requests")
}

#[test]
fn sizes_that_change_and_deletions_count_as_in_a_queue() {
    let mut random = StdRng::seed_from_u64(6);
    // Objects of bytes, and of up to 1.4 TiB.
    for (round, unit) in (0..60).zip([1, 1 << 34, (1 << 32) - 1].into_iter().cycle()) {
        let requests = draw_operations(&mut random, unit);
        let capacity = random.random_range(1..3000 * unit);
        let asked = requests.iter().filter(|request| request.0 != Op::Delete).count() as u64;
        let stream = stream_of(&requests, true);
        for (policy, is_lru) in [("fifo", false), ("lru", true)] {
            let expected = queue_of(&requests, capacity, is_lru);
            for admit in ["", "always"] {
                let outcome = run(policy, admit, &stream, capacity);
                let case = format!("round {round}: {policy} with {admit:?} of {capacity} bytes");
                assert_eq!((outcome.hits, outcome.requests), (expected.hits, asked), "{case}");
                let ratio = expected.missed_bytes as f64 / expected.bytes as f64;
                assert!((outcome.byte_miss_ratio - ratio).abs() < 1e-9, "{case}: {outcome:?}");
                let inserted = (admit == "always").then_some(expected.inserted);
                assert_eq!(outcome.inserted, inserted, "{case}");
            }
        }
    }
}

#[test]
fn no_policy_minds_sizes_that_change_and_deletions() {
    let mut random = StdRng::seed_from_u64(7);
    for unit in [1, 1 << 34] {
        let requests = draw_operations(&mut random, unit);
        let stream = stream_of(&requests, true);
        let count = requests.iter().filter(|request| request.0 != Op::Delete).count() as u64;
        for name in registry::names() {
            for admit in ["", "always", "duel", "second-access"] {
                // Everything fits: only first requests, and those after a deletion, miss.
                let all = run(name, admit, &stream, 4 * stream.footprint);
                let some = run(name, admit, &stream, stream.footprint / 7);
                let case = format!("{name} with {admit:?}, unit {unit}");
                assert_eq!(some.hits + some.misses, count, "{case}");
                assert!(some.hits <= all.hits && some.hits > 0, "{case}: {some:?} {all:?}");
                // What is fetched ahead may be deleted before it is asked for.
                if admit.is_empty() && all.prefetches == 0 {
                    let expected = queue_of(&requests, 4 * stream.footprint, true);
                    assert!(all.hits >= expected.hits, "{case}");
                    assert_eq!(all.misses, expected.inserted, "{case}");
                }
            }
        }
    }
}

#[test]
fn simulations_and_infos_have_one_footprint_and_one_lru() {
    let mut random = StdRng::seed_from_u64(8);
    let requests = draw_operations(&mut random, 1);
    let (mut info, mut curve) = (Stats::new(Kind::Object), LruCurve::new(Kind::Object));
    for &(op, key, bytes) in &requests {
        let request = Request { time_ns: 0, key, bytes, volume: 0, op };
        info.add(&request);
        curve.add(&request);
    }
    let info = info.info("t", "any");
    assert_eq!(stream_of(&requests, true).footprint, info.footprint_bytes);
    let stream = stream_of(&requests, false);
    assert_eq!((stream.footprint, stream.requests), (info.unique, info.touches));
    for size in [1, 3, 10, 40, 100, 120] {
        let simulated = run("lru", "", &stream, size).miss_ratio;
        assert!((curve.at(size).miss_ratio - simulated).abs() < 1e-12, "size {size}");
    }
    // Disk I/O: discards drop the blocks that they cover whole, requests of nothing touch nothing.
    let (mut info, mut curve) = (Stats::new(Kind::Block), LruCurve::new(Kind::Block));
    let keep = Keep { rate: 1.0, sizes: false, next_use: false };
    let mut builder = Builder::new(Kind::Block, keep, 4096);
    for (op, key, bytes) in requests {
        let key = key * 1000;
        let bytes = if op == Op::Delete { 9000 } else { bytes * 100 };
        let request = Request { time_ns: 0, key, bytes, volume: 0, op };
        info.add(&request);
        curve.add(&request);
        builder.add(&request).expect("there is room");
    }
    let (info, stream) = (info.info("t", "any"), builder.finish().expect("there are requests"));
    assert_eq!((stream.footprint, stream.requests), (info.unique, info.touches));
    for size in [1, 3, 8, 20, 30] {
        let simulated = run("lru", "", &stream, size).miss_ratio;
        assert!((curve.at(size).miss_ratio - simulated).abs() < 1e-12, "size {size}");
    }
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
        let mut asked = draw(&mut random, 1500, 150, 50);
        asked.iter_mut().for_each(|asked| asked.1 = 1 + asked.0 % 50);
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
