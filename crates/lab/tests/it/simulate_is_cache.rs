//! What is simulated is what runs: the simulator and a cache of one shard, used by one thread, hit
//! alike, key by key.
//!
//! Tests run without optimisations, where a request takes microseconds in caches and maps. So loads
//! are as short as two things allow: that a small cache is turned over hundreds of times, as
//! policies that learn need it, and that a larger one outgrows the index that it begins with.
//!
//! Where entries are counted. By weight some policies (2Q and W-TinyLFU for two) do not: they size
//! what they remember by how many slots there are, and there the simulator and the cache come to
//! their slots by different steps.

use std::hash::BuildHasherDefault;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use floe_lab::simulate::objects::{Run, simulate};
use floe_lab::simulate::stream::{Builder, Keep, Stream};
use floe_memory::{BuildError, Cache, Cause};
use floe_policy::owner::{DenseIndex, SlotOwner};
use floe_policy::registry::{Choice, Visitor, names};
use floe_policy::{Access, Policy, Slot, mix};
use floe_testkit::Identity;
use floe_trace::{Kind, Op, Request};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Zipf};

/// A number of requests, and the entries of the cache that serves them.
#[derive(Debug, Clone, Copy)]
struct Size {
    requests: usize,
    capacity: u64,
}

/// Turns the cache over hundreds of times.
const LONG: Size = Size { requests: 160_000, capacity: 320 };
/// Outgrows the first index of a shard, which has room for 1024 keys.
const WIDE: Size = Size { requests: 40_000, capacity: 2000 };
/// A little more than a power of two, at which the slots of a shard do not simply double.
const UNEVEN: Size = Size { requests: 40_000, capacity: 1100 };
/// Long enough that the moments at which windows end do not show in a ratio.
const STEADY: Size = Size { requests: 500_000, capacity: 2000 };

/// Policies that need to know what a cache does not.
const REFUSED: [&str; 2] = ["sarc", "belady"];

/// Zipf's law, with scans and loops in between, of lengths that suit the capacity.
fn stream(Size { requests, capacity }: Size) -> Stream {
    let mut random = StdRng::seed_from_u64(7);
    let popular = Zipf::new(10.0 * capacity as f64, 0.9).expect("these are parameters of it");
    let mut builder =
        Builder::new(Kind::Key, Keep { rate: 1.0, sizes: false, next_use: false }, 4096);
    let (mut scanned, mut added) = (1 << 32, 0);
    let mut add = |key: u64| {
        let request = Request { time_ns: 0, key, bytes: 1, volume: 0, op: Op::Read };
        builder.add(&request).expect("there is room");
        added += 1;
        added < requests
    };
    'all: loop {
        for _ in 0..random.random_range(capacity / 2..10 * capacity) {
            if !add(popular.sample(&mut random) as u64) {
                break 'all;
            }
        }
        for _ in 0..random.random_range(0..capacity * 3 / 2) {
            scanned += 1;
            if !add(scanned) {
                break 'all;
            }
        }
        let length = random.random_range(1..capacity * 3 / 2);
        for at in 0..3 * length {
            if !add((1 << 40) + at % length) {
                break 'all;
            }
        }
    }
    builder.finish().expect("there are requests")
}

/// The number of keys of a stream, which are dense.
fn distinct(stream: &Stream) -> usize {
    stream.keys.iter().max().map_or(0, |&key| key as usize + 1)
}

/// The simulator's loop in its simplest form, request by request.
struct Reference<'a> {
    stream: &'a Stream,
    capacity: u64,
}

impl Visitor for Reference<'_> {
    type Out = Vec<bool>;

    fn visit<P: Policy>(self, make: impl Fn() -> P + Send + Sync) -> Vec<bool> {
        let mut order = make();
        order.reserve(self.capacity as usize);
        order.set_capacity(self.capacity);
        let mut slots: Vec<Option<u32>> = vec![None; distinct(self.stream)];
        let mut keys = Vec::new();
        let serve = |&key: &u32| {
            if let Some(slot) = slots[key as usize] {
                order.access(Slot(slot));
                return true;
            }
            let access = Access::new(mix(u64::from(key)));
            let slot = if keys.len() < self.capacity as usize {
                keys.push(key);
                keys.len() as u32 - 1
            } else {
                let victim = order.evict(Some(&access)).expect("a full cache has a victim");
                slots[keys[victim.index()] as usize] = None;
                keys[victim.index()] = key;
                victim.0
            };
            slots[key as usize] = Some(slot);
            order.insert(Slot(slot), &access);
            false
        };
        self.stream.keys.iter().map(serve).collect()
    }
}

fn cached(policy: &str, capacity: u64, stream: &Stream) -> Vec<bool> {
    let builder = Cache::<u64, ()>::builder().capacity(capacity as usize).shards(1);
    let builder = builder.hasher(BuildHasherDefault::<Identity>::default());
    let cache = builder.policy_named(policy).expect("the policy is registered").build();
    let serve = |&key: &u32| {
        let hit = cache.get(&u64::from(key)).is_some();
        if !hit {
            cache.insert(u64::from(key), ());
        }
        hit
    };
    stream.keys.iter().map(serve).collect()
}

fn simulated(policy: &Choice, size: u64, stream: &Stream) -> u64 {
    let run = Run { policy: policy.clone(), size, admit: Vec::new() };
    simulate("stream", stream, &run, None, &AtomicU64::new(0)).hits
}

/// Runs a check for each policy that caches take, on two threads.
fn for_each_policy(check: impl Fn(&'static str) + Sync) {
    let names: Vec<_> = names().into_iter().filter(|name| !REFUSED.contains(name)).collect();
    let (even, odd): (Vec<_>, Vec<_>) = names.iter().enumerate().partition(|(at, _)| at % 2 == 0);
    std::thread::scope(|scope| {
        for half in [even, odd] {
            let check = &check;
            scope.spawn(move || half.into_iter().for_each(|(_, name)| check(name)));
        }
    });
}

#[test]
fn a_cache_of_one_shard_hits_as_simulated_key_by_key() {
    for size in [LONG, WIDE, UNEVEN] {
        let Size { requests, capacity } = size;
        let stream = stream(size);
        for_each_policy(|name| {
            let choice: Choice = name.parse().expect("it is registered");
            let reference = floe_policy::with(&choice, Reference { stream: &stream, capacity });
            let hits = reference.iter().filter(|&&hit| hit).count() as u64;
            let case = format!("{name}, {size:?}");
            assert!(hits > requests as u64 / 20 && hits < requests as u64, "{case}: {hits} hits");
            let simulated = simulated(&choice, capacity, &stream);
            assert_eq!(hits, simulated, "{case}: the reference is the simulator");
            let cached = cached(name, capacity, &stream);
            let differs =
                cached.iter().zip(&reference).position(|(cached, reference)| cached != reference);
            assert_eq!(differs, None, "{case}: the first request that the two serve differently");
        });
    }
}

/// The victims of an owner of slots, in the order in which they left.
struct Owned<'a> {
    stream: &'a Stream,
    capacity: u64,
    weigh: fn(u64) -> u32,
}

impl Visitor for Owned<'_> {
    type Out = Vec<u64>;

    fn visit<P: Policy>(self, make: impl Fn() -> P + Send + Sync) -> Vec<u64> {
        let index = DenseIndex::new(distinct(self.stream));
        let mut owner = SlotOwner::<P, _, Vec<u64>>::new(make(), index, self.capacity, 0);
        let mut victims = Vec::new();
        for &key in &self.stream.keys {
            match owner.find(key) {
                Some(slot) => owner.access(slot),
                None => {
                    let hash = u64::from(key);
                    let access = Access { weight: (self.weigh)(hash), ..Access::new(mix(hash)) };
                    owner.insert(key, &access, |_, victim, _| victims.push(u64::from(victim)));
                }
            }
        }
        victims
    }
}

/// The victims of a cache of one shard.
fn evicted(policy: &str, capacity: u64, stream: &Stream, weigh: fn(u64) -> u32) -> Vec<u64> {
    let victims = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&victims);
    let cache = Cache::<u64, ()>::builder()
        .weight_capacity(capacity)
        .weigher(move |&key, ()| weigh(key))
        .shards(1)
        .hasher(BuildHasherDefault::<Identity>::default())
        .listener(move |&key, (), cause| {
            if cause == Cause::Evicted {
                told.lock().expect("nothing panicked").push(key);
            }
        })
        .policy_named(policy)
        .expect("the policy is registered")
        .build();
    for &key in &stream.keys {
        if cache.get(&u64::from(key)).is_none() {
            cache.insert(u64::from(key), ());
        }
    }
    drop(cache);
    let victims = victims.lock().expect("nothing panicked");
    victims.clone()
}

/// The shard of the cache in memory has an owner of its own (see `floe_policy::owner`).
#[test]
fn a_shard_evicts_the_victims_of_the_one_owner_of_slots() {
    let weights: [fn(u64) -> u32; 2] = [|_| 1, |key| 1 + (mix(key) % 7) as u32];
    for size in [LONG, WIDE] {
        let Size { requests, capacity } = size;
        let stream = stream(size);
        for weigh in weights {
            // These do not size anything by the number of slots.
            for policy in ["fifo", "lru", "clock", "sieve", "slru", "lfu"] {
                let choice: Choice = policy.parse().expect("it is registered");
                let owned = floe_policy::with(&choice, Owned { stream: &stream, capacity, weigh });
                let case = format!("{policy}, {size:?}");
                assert!(owned.len() > requests / 20, "{case}: {} victims", owned.len());
                let evicted = evicted(policy, capacity, &stream, weigh);
                let differs =
                    owned.iter().zip(&evicted).position(|(owned, evicted)| owned != evicted);
                assert_eq!(differs, None, "{case}: the first victim that differs");
                assert_eq!(owned.len(), evicted.len(), "{case}");
            }
        }
    }
}

/// Hits of a cache of one shard behind an admission.
fn hits_behind(policy: &str, admission: &str, capacity: u64, stream: &Stream) -> u64 {
    let builder = Cache::<u64, ()>::builder().capacity(capacity as usize).shards(1);
    let builder = builder.hasher(BuildHasherDefault::<Identity>::default());
    let builder = builder.policy_named(policy).expect("the policy is registered");
    let cache = builder.admission_named(admission).expect("the admission is registered").build();
    for &key in &stream.keys {
        if cache.get(&u64::from(key)).is_none() {
            cache.insert(u64::from(key), ());
        }
    }
    cache.stats().hits
}

fn simulated_behind(policy: &str, admission: &str, capacity: u64, stream: &Stream) -> u64 {
    let policy = policy.parse().expect("the policy is registered");
    let admit =
        floe_policy::admission::registry::choices(admission).expect("the admission is registered");
    simulate("stream", stream, &Run { policy, size: capacity, admit }, None, &AtomicU64::new(0))
        .hits
}

#[test]
fn a_cache_of_one_shard_hits_behind_an_admission_as_simulated() {
    // Admissions that look at counts in windows, which end at other moments, come close; what goes
    // by single hits needs a policy whose hits come to its order.
    let cases = [
        ("lru", "duel"),
        ("relaxed-lru", "duel"),
        ("slru", "duel"),
        ("lfu", "duel"),
        ("lru", "second-access"),
        ("qd-clock", "second-access:ghosts=2"),
        ("sieve", "probability:p=0.3"),
        ("arc", "second-access+probability:p=0.9"),
    ];
    let in_windows = [("lru", "obp:target=0.2"), ("s3-fifo", "obp:target=0.05")];
    let check = |(policy, admission), Size { requests, capacity }, stream: &Stream, apart_max| {
        let cached = hits_behind(policy, admission, capacity, stream);
        let simulated = simulated_behind(policy, admission, capacity, stream);
        let case = format!("{policy} behind {admission}: {cached} hits, {simulated} simulated");
        assert!(cached.abs_diff(simulated) <= apart_max, "{case}");
        assert!(cached > requests as u64 / 20, "{case}");
    };
    let long = stream(LONG);
    cases.into_iter().for_each(|case| check(case, LONG, &long, 0));
    let steady = stream(STEADY);
    let apart_max = STEADY.requests as u64 / 200;
    in_windows.into_iter().for_each(|case| check(case, STEADY, &steady, apart_max));
}

#[test]
fn policies_that_need_more_than_a_cache_knows_are_refused() {
    for name in REFUSED {
        let builder = Cache::<u64, u64>::builder()
            .capacity(100)
            .policy_named(name)
            .expect("it is registered");
        let error = builder.try_build().expect_err("it needs more");
        assert!(matches!(error, BuildError::Policy { policy, .. } if policy == name));
        assert!(error.to_string().ends_with("it works in simulations only"), "{error}");
    }
}
