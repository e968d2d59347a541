//! Random operations on several threads with values that check themselves, for
//! `FLOE_STRESS_SECONDS` (3). What was done by each thread follows from `FLOE_STRESS_SEED`.

use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::common::{Tally, Value};
use floe_memory::{Cache, Clock, Freezing, Held, InsertOptions};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const THREADS: u64 = 4;
const POLICIES: [&str; 6] = ["lru", "relaxed-lru", "s3-fifo", "sieve", "arc", "w-tinylfu"];

fn number<T: std::str::FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

#[test]
fn values_stay_whole_whatever_threads_do() {
    let seconds = number("FLOE_STRESS_SECONDS").unwrap_or(if cfg!(miri) { 0.0 } else { 3.0 });
    let seed =
        number("FLOE_STRESS_SEED").unwrap_or_else(|| std::hash::RandomState::new().hash_one(0));
    eprintln!("FLOE_STRESS_SEED={seed}");
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let mut round = 0u64;
    while round == 0 || Instant::now() < end {
        let policy = POLICIES[round as usize % POLICIES.len()];
        stress(policy, seed ^ round, end.min(Instant::now() + Duration::from_millis(250)));
        round += 1;
    }
}

fn stress(policy: &str, seed: u64, end: Instant) {
    let mut random = StdRng::seed_from_u64(seed);
    let (tally, clock) = (Tally::new(), Clock::manual());
    let mut builder = Cache::<u64, (Value, u32)>::builder()
        .shards([1, 2, 8][random.random_range(0..3)])
        .clock(clock.clone())
        .weight_capacity(random.random_range(50..20_000))
        .weigher(|_, (_, weight)| *weight);
    if random.random() {
        builder = builder.capacity(random.random_range(1..2000));
    }
    if random.random() {
        builder = builder.time_to_live(Duration::from_millis(random.random_range(1..2000)));
    }
    if random.random() {
        builder = builder.listener(|key, value: &(Value, u32), _| {
            value.0.of(*key);
        });
    }
    match random.random_range(0..4) {
        0 => builder = builder.freezing(Freezing::fixed(random.random())),
        1 => {
            let (short, long) = (Duration::from_millis(1), Duration::from_millis(20));
            let freezing =
                Freezing::adaptive().lifetime(long).wait_between(short, long).sample_one_in(3);
            builder = builder.freezing(freezing);
        }
        _ => {} // by hand only
    }
    let cache = builder.policy_named(policy).expect("the policy is registered").build();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for thread in 0..THREADS {
            let (cache, tally, clock, stop) = (&cache, &tally, &clock, &stop);
            threads.push(scope.spawn(move || {
                let mut random =
                    StdRng::seed_from_u64(seed.wrapping_mul(THREADS).wrapping_add(thread));
                while !stop.load(Relaxed) {
                    operate(cache, tally, clock, &mut random);
                    if Instant::now() >= end {
                        stop.store(true, Relaxed); // only to end
                    }
                }
            }));
        }
        // By hand, for the sake of the thread sanitizer: it does not see the end of a scope.
        threads.into_iter().for_each(|thread| thread.join().expect("a thread ends well"));
    });
    cache.reclaim();
    let stats = cache.stats();
    let left = stats.evictions + stats.expirations + stats.removals + stats.replacements;
    assert_eq!(stats.insertions, stats.entries + left, "{stats:?}");
    assert_eq!((stats.waiting, stats.entries), (0, tally.alive()), "{stats:?}");
    let within = stats.weight <= stats.weight_capacity.expect("there is one")
        && stats.capacity.is_none_or(|capacity| stats.entries <= capacity);
    assert!(within || stats.pinned == stats.entries, "{stats:?}");
    let numbers: std::collections::HashSet<_> =
        cache.iter().map(|item| item.value().0.of(*item.key())).collect();
    assert_eq!(numbers.len() as u64, stats.entries);
    drop(cache);
    // The library's thread may be looking after the cache, and be the last to let it go.
    let patience = Instant::now() + Duration::from_secs(60);
    while tally.alive() > 0 && Instant::now() < patience {
        std::thread::yield_now();
    }
    assert_eq!(tally.alive(), 0);
}

/// Some operations, with guards held across them.
fn operate<P: floe_memory::policy::Replacement>(
    cache: &Cache<u64, (Value, u32), P>,
    tally: &Arc<Tally>,
    clock: &Clock,
    random: &mut StdRng,
) {
    let mut guards = Vec::new();
    let mut held: Vec<(u64, Held<(Value, u32)>)> = Vec::new();
    for _ in 0..200 {
        let wide = if random.random() { 3000 } else { 50 };
        let key = random.random_range(0..wide);
        let weight = random.random_range(0..30);
        let value = || (tally.value(key), weight);
        match random.random_range(0..101) {
            0..25 => cache.insert(key, value()),
            25..35 => {
                let mut options = InsertOptions::new();
                if random.random() {
                    options =
                        options.time_to_live(Duration::from_millis(random.random_range(1..500)));
                }
                if random.random() {
                    options =
                        options.time_to_idle(Duration::from_millis(random.random_range(1..500)));
                }
                if random.random_bool(0.1) {
                    options = options.pinned();
                }
                cache.insert_with(key, value(), options);
            }
            35..60 => {
                if let Some(found) = cache.get(&key) {
                    found.0.of(key);
                    if random.random_bool(0.2) {
                        guards.push((key, found));
                    }
                }
            }
            60..65 => {
                let keys: Vec<_> = (0..40).map(|_| random.random_range(0..wide)).collect();
                cache.get_many(&keys, |at, value| _ = value.0.of(keys[at]));
            }
            65..70 => held.extend(cache.hold(&key).map(|value| (key, value))),
            70..80 => {
                let removed = cache.remove(&key).inspect(|value| _ = value.0.of(key));
                if let Some(Ok(value)) = removed.map(|removed| removed.try_into_inner(cache)) {
                    value.0.of(key);
                }
            }
            80..90 => {
                let load = || if weight > 3 { Ok(value()) } else { Err(()) };
                _ = cache.get_or_insert_with(&key, load).map(|value| value.0.of(key));
            }
            90 => _ = cache.pin(&key),
            91..95 => _ = cache.unpin(&key),
            95 => clock.advance(Duration::from_millis(random.random_range(0..30))),
            100 => match random.random_range(0..16) {
                0 => _ = cache.freeze(1.0),
                1..4 => _ = cache.freeze(random.random()),
                4..6 => cache.thaw(),
                hides => floe_memory::bypass(cache, hides == 7),
            },
            96 if random.random_bool(0.1) => cache.resize(random.random_range(1..3000)),
            97 if random.random_bool(0.1) => cache.resize_weight(random.random_range(50..30_000)),
            98 if random.random_bool(0.1) => cache.clear(),
            99 if random.random_bool(0.1) => {
                cache.iter().for_each(|item| _ = item.value().0.of(*item.key()));
                cache.reclaim();
            }
            _ => _ = cache.contains_key(&key),
        }
        for (key, value) in &guards {
            value.0.of(*key);
        }
        if random.random_bool(0.1) {
            for (key, guard) in guards.drain(..) {
                // Some have left the cache by now, and others are seen by other threads.
                match guard.try_into_inner(cache) {
                    Ok(value) => _ = value.0.of(key),
                    Err(guard) => _ = guard.0.of(key),
                }
            }
        }
    }
    for (key, value) in held {
        value.0.of(key);
        if let Ok(value) = value.try_into_inner(cache) {
            value.0.of(key);
        }
    }
}

/// A value that needs no drop is not even touched when it goes; only another value in its place
/// shows that it went too early.
#[test]
fn values_that_own_nothing_stay_whole_while_the_places_of_others_are_used_again() {
    let seconds = number("FLOE_STRESS_SECONDS").unwrap_or(if cfg!(miri) { 0.0 } else { 3.0 });
    let seed =
        number("FLOE_STRESS_SEED").unwrap_or_else(|| std::hash::RandomState::new().hash_one(0));
    eprintln!("FLOE_STRESS_SEED={seed}");
    for (number, capacity) in [20, 300, 2000].into_iter().enumerate() {
        let cache = Cache::<u64, [u64; 8]>::new(capacity);
        let end = Instant::now() + Duration::from_secs_f64(seconds / 6.0);
        let churn = &|thread: u64| {
            let mut random = StdRng::seed_from_u64(seed ^ (number as u64 * THREADS + thread));
            loop {
                let mut guards = Vec::new();
                for _ in 0..200 {
                    let key = random.random_range(0..capacity as u64 * 2);
                    match cache.get(&key) {
                        Some(value) if random.random_bool(0.05) => guards.push((key, value)),
                        Some(value) => assert_eq!(*value, [key; 8]),
                        None => cache.insert(key, [key; 8]),
                    }
                    if random.random_bool(0.3) {
                        cache.insert(key, [key; 8]);
                    }
                    guards.iter().for_each(|(key, value)| assert_eq!(**value, [*key; 8]));
                }
                if Instant::now() >= end {
                    return;
                }
            }
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..THREADS).map(|thread| scope.spawn(move || churn(thread))).collect();
            threads.into_iter().for_each(|thread| thread.join().expect("a thread ends well"));
        });
        cache.reclaim();
        assert_eq!(cache.stats().waiting, 0);
    }
}
