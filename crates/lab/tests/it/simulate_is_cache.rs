//! What is simulated is what runs: the simulator and a cache of one shard, used by one thread, hit
//! alike, key by key.
//!
//! Where entries are counted. By weight some policies (2Q and W-TinyLFU for two) do not: they size
//! what they remember by how many slots there are, and there the simulator and the cache come to
//! their slots by different steps.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use floe_lab::simulate::objects::{Run, simulate};
use floe_lab::simulate::stream::{Builder, Keep, Stream};
use floe_memory::{BuildError, Cache, Cause};
use floe_policy::owner::SlotOwner;
use floe_policy::registry::{Choice, Visitor, names};
use floe_policy::{Access, Policy, Slot, mix};
use floe_trace::{Kind, Op, Request};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Zipf};

const REQUESTS: usize = 1_000_000;
const CAPACITY: u64 = 2000;

/// Policies that need to know what a cache does not.
const REFUSED: [&str; 2] = ["sarc", "belady"];

/// Leaves numbers as they are, so that policies get the hashes that they get in the simulator.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are numbers");
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

/// Zipf's law, with scans and loops in between.
fn stream() -> Stream {
    let mut random = StdRng::seed_from_u64(7);
    let popular = Zipf::new(20_000.0, 0.9).expect("these are parameters of it");
    let mut builder =
        Builder::new(Kind::Key, Keep { rate: 1.0, sizes: false, next_use: false }, 4096);
    let (mut scanned, mut requests) = (1 << 32, 0);
    let mut add = |key: u64| {
        let request = Request { time_ns: 0, key, bytes: 1, volume: 0, op: Op::Read };
        builder.add(&request).expect("there is room");
        requests += 1;
        requests < REQUESTS
    };
    'all: loop {
        for _ in 0..random.random_range(1000..20_000) {
            if !add(popular.sample(&mut random) as u64) {
                break 'all;
            }
        }
        for _ in 0..random.random_range(0..3000) {
            scanned += 1;
            if !add(scanned) {
                break 'all;
            }
        }
        let length = random.random_range(1..3000);
        for at in 0..3 * length {
            if !add((1 << 40) + at % length) {
                break 'all;
            }
        }
    }
    builder.finish().expect("there are requests")
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
        let (mut slots, mut keys) = (HashMap::new(), Vec::new());
        let serve = |&key: &u32| {
            if let Some(&slot) = slots.get(&key) {
                order.access(Slot(slot));
                return true;
            }
            let access = Access::new(mix(u64::from(key)));
            let slot = if keys.len() < self.capacity as usize {
                keys.push(key);
                keys.len() as u32 - 1
            } else {
                let victim = order.evict(Some(&access)).expect("somebody can go");
                slots.remove(&keys[victim.index()]);
                keys[victim.index()] = key;
                victim.0
            };
            slots.insert(key, slot);
            order.insert(Slot(slot), &access);
            false
        };
        self.stream.keys.iter().map(serve).collect()
    }
}

fn cached(policy: &str, stream: &Stream) -> Vec<bool> {
    let builder = Cache::<u64, ()>::builder().capacity(CAPACITY as usize).shards(1);
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
    let stream = stream();
    for_each_policy(|name| {
        let choice: Choice = name.parse().expect("it is registered");
        let reference =
            floe_policy::with(&choice, Reference { stream: &stream, capacity: CAPACITY });
        let hits = reference.iter().filter(|&&hit| hit).count() as u64;
        assert!(hits > 0 && hits < REQUESTS as u64);
        assert_eq!(
            hits,
            simulated(&choice, CAPACITY, &stream),
            "{name}: the reference is the simulator"
        );
        let cached = cached(name, &stream);
        let differs =
            cached.iter().zip(&reference).position(|(cached, reference)| cached != reference);
        assert_eq!(differs, None, "{name}: the first request at which cache and simulator differ");
    });
}

/// The victims of an owner of slots, in the order in which they left.
struct Owned<'a> {
    stream: &'a Stream,
    weigh: fn(u64) -> u32,
}

impl Visitor for Owned<'_> {
    type Out = Vec<u64>;

    fn visit<P: Policy>(self, make: impl Fn() -> P + Send + Sync) -> Vec<u64> {
        let index: HashMap<u64, Slot> = HashMap::new();
        let mut owner = SlotOwner::<P, _, Vec<u32>>::new(make(), index, CAPACITY, 0);
        let mut victims = Vec::new();
        for &key in &self.stream.keys {
            let key = u64::from(key);
            match owner.find(key) {
                Some(slot) => owner.access(slot),
                None => {
                    let access = Access { weight: (self.weigh)(key), ..Access::new(mix(key)) };
                    owner.insert(key, &access, |_, victim, _| victims.push(victim));
                }
            }
        }
        victims
    }
}

/// The victims of a cache of one shard.
fn evicted(policy: &str, stream: &Stream, weigh: fn(u64) -> u32) -> Vec<u64> {
    let victims = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&victims);
    let cache = Cache::<u64, ()>::builder()
        .weight_capacity(CAPACITY)
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
    let stream = stream();
    let weights: [fn(u64) -> u32; 2] = [|_| 1, |key| 1 + (mix(key) % 7) as u32];
    for weigh in weights {
        // These do not size anything by the number of slots.
        for policy in ["fifo", "lru", "clock", "sieve", "slru", "lfu"] {
            let choice: Choice = policy.parse().expect("it is registered");
            let owned = floe_policy::with(&choice, Owned { stream: &stream, weigh });
            assert!(owned.len() > REQUESTS / 20, "{policy}: {} victims", owned.len());
            let evicted = evicted(policy, &stream, weigh);
            let differs = owned.iter().zip(&evicted).position(|(owned, evicted)| owned != evicted);
            assert_eq!(differs, None, "{policy}: the first victim that differs");
            assert_eq!(owned.len(), evicted.len(), "{policy}");
        }
    }
}

/// Hits of a cache of one shard behind an admission.
fn hits_behind(policy: &str, admission: &str, stream: &Stream) -> u64 {
    let builder = Cache::<u64, ()>::builder().capacity(CAPACITY as usize).shards(1);
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

fn simulated_behind(policy: &str, admission: &str, stream: &Stream) -> u64 {
    let policy = policy.parse().expect("the policy is registered");
    let admit =
        floe_policy::admission::registry::choices(admission).expect("the admission is registered");
    simulate("stream", stream, &Run { policy, size: CAPACITY, admit }, None, &AtomicU64::new(0))
        .hits
}

#[test]
fn a_cache_of_one_shard_hits_behind_an_admission_as_simulated() {
    let stream = stream();
    // Those that look at counts in windows, which end at other moments, come close; what goes by
    // single hits needs a policy whose hits come to its order.
    let cases = [
        ("lru", "duel", 0),
        ("relaxed-lru", "duel", 0),
        ("slru", "duel", 0),
        ("lfu", "duel", 0),
        ("lru", "second-access", 0),
        ("qd-clock", "second-access:ghosts=2", 0),
        ("sieve", "probability:p=0.3", 0),
        ("arc", "second-access+probability:p=0.9", 0),
        ("lru", "obp:target=0.2", REQUESTS as u64 / 200),
        ("s3-fifo", "obp:target=0.05", REQUESTS as u64 / 200),
    ];
    for (policy, admission, apart_max) in cases {
        let (cached, simulated) =
            (hits_behind(policy, admission, &stream), simulated_behind(policy, admission, &stream));
        let case = format!("{policy} behind {admission}: {cached} hits, {simulated} simulated");
        assert!(cached.abs_diff(simulated) <= apart_max, "{case}");
        assert!(cached > REQUESTS as u64 / 20, "{case}");
    }
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
