//! A cache of several shards has the hit ratio of one shard, less a point, however unequal its
//! entries are: the shards' shares of the capacity do not drift apart. Popularity is static (Zipf),
//! so a hit ratio that falls is the cache's own doing.

use floe_memory::Cache;
use floe_memory::policy::AnyPolicy;
use foldhash::fast::FixedState;
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Tells what a cache of several shards may lose to one of a single shard.
const POINT: f64 = 0.01;

/// Tells how heavy keys are, each of them always the same.
#[derive(Debug, Clone, Copy)]
enum Weights {
    One,
    Uniform {
        from: u32,
        to: u32,
    },
    /// Each power of two as often as the others.
    Doubling {
        from: u32,
        times: u32,
    },
    /// Nearly all are light and a few a hundred times as heavy.
    TwoKinds {
        light: u32,
    },
}

impl Weights {
    fn of(self, key: u64, seed: u64) -> u32 {
        let mut random = SmallRng::seed_from_u64(seed ^ key.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        match self {
            Self::One => 1,
            Self::Uniform { from, to } => random.random_range(from..=to),
            Self::Doubling { from, times } => from << random.random_range(0..=times),
            Self::TwoKinds { light } if random.random_ratio(1, 500) => 100 * light,
            Self::TwoKinds { light } => random.random_range(light..=2 * light),
        }
    }
}

#[derive(Debug, Clone)]
struct Load {
    policy: &'static str,
    weights: Weights,
    /// Entries of mean weight that the cache holds.
    entries: u64,
    keys: u64,
    exponent: f64,
    seed: u64,
}

impl Load {
    fn weights(&self) -> Vec<u32> {
        (0..self.keys).map(|key| self.weights.of(key, self.seed)).collect()
    }

    /// The hit ratio over `lookups`, of which the first quarter is not counted.
    fn hit_ratio(&self, shards: usize, lookups: u64) -> f64 {
        let weights = self.weights();
        let mean = weights.iter().map(|&weight| u64::from(weight)).sum::<u64>() / self.keys;
        let cache = Cache::builder()
            .weight_capacity(self.entries * mean)
            .weigher(|_: &u32, weight: &u32| *weight)
            .policy_named(self.policy)
            .expect("the policy is registered")
            .hasher(FixedState::with_seed(self.seed))
            .shards(shards)
            .build();
        self.run(&cache, &weights, lookups)
    }

    fn run(
        &self,
        cache: &Cache<u32, u32, AnyPolicy, FixedState>,
        weights: &[u32],
        lookups: u64,
    ) -> f64 {
        let mut sum = 0.0;
        let sums: Vec<f64> = (1..=self.keys)
            .map(|rank| {
                sum += (rank as f64).powf(-self.exponent);
                sum
            })
            .collect();
        let mut random = SmallRng::seed_from_u64(self.seed);
        let mut hits = 0;
        for at in 0..lookups {
            let drawn = random.random::<f64>() * sum;
            let key = sums.partition_point(|&up_to| up_to < drawn).min(sums.len() - 1) as u32;
            match cache.get(&key) {
                Some(_) => hits += u64::from(at >= lookups / 4),
                None => cache.insert(key, weights[key as usize]),
            }
        }
        hits as f64 / (lookups - lookups / 4) as f64
    }

    fn check(&self, shards: usize, lookups: u64) {
        let (one, several) = (self.hit_ratio(1, lookups), self.hit_ratio(shards, lookups));
        eprintln!("{self:?}: one shard {one:.4}, {shards} shards {several:.4}");
        assert!(
            several > one - POINT,
            "{self:?}: {shards} shards hit {several:.4}, one hits {one:.4}"
        );
    }
}

/// The load of which was complained: 16 MiB of 1 to 3 KiB.
fn of_kilobytes(policy: &'static str) -> Load {
    let weights = Weights::Uniform { from: 1024, to: 3072 };
    Load { policy, weights, entries: 8192, keys: 100_000, exponent: 0.8, seed: 1 }
}

#[test]
fn shards_keep_their_shares() {
    for (policy, shards) in [("qd-clock", 64), ("s3-fifo", 8), ("lru", 8)] {
        let load = Load {
            entries: 128 * shards as u64,
            keys: 1000 * shards as u64,
            ..of_kilobytes(policy)
        };
        load.check(shards, 400_000);
    }
}

/// A policy that is blind to weight gives a heavy entry as long a stay as any other, and its shard
/// would lose a third of its entries for that time.
#[test]
fn heavy_entries_are_at_the_expense_of_all_shards() {
    for policy in ["sieve", "clock", "lru"] {
        let load = Load {
            weights: Weights::TwoKinds { light: 10 },
            entries: 150 * 16,
            keys: 1000 * 16,
            ..of_kilobytes(policy)
        };
        load.check(16, 300_000);
    }
}

fn loads() -> impl Strategy<Value = (Load, usize)> {
    let weights = prop_oneof![
        1 => Just(Weights::One),
        3 => (1u32..2000, 1u32..8)
            .prop_map(|(from, times)| Weights::Uniform { from, to: from * times }),
        2 => (1u32..100, 1u32..6).prop_map(|(from, times)| Weights::Doubling { from, times }),
        1 => (1u32..100).prop_map(|light| Weights::TwoKinds { light }),
    ];
    let policy = prop::sample::select(vec![
        "qd-clock", "s3-fifo", "lru", "clock", "sieve", "fifo", "slru", "lfu",
    ]);
    let shards = (1u32..6).prop_map(|doublings| 1usize << doublings);
    (policy, weights, shards, 128u64..400, 3u64..20, 0.6..1.1f64, any::<u64>()).prop_map(
        |(policy, weights, shards, share, spread, exponent, seed)| {
            let entries = share * shards as u64;
            (Load { policy, weights, entries, keys: entries * spread, exponent, seed }, shards)
        },
    )
}

/// The same loads each time.
fn check_random_loads(cases: u32, lookups: u64) {
    let config = ProptestConfig {
        rng_seed: RngSeed::Fixed(1),
        failure_persistence: None,
        cases,
        ..ProptestConfig::default()
    };
    TestRunner::new(config)
        .run(&loads(), |(load, shards)| {
            load.check(shards, lookups);
            Ok(())
        })
        .unwrap();
}

#[test]
fn shards_hit_as_often_as_one_does() {
    check_random_loads(10, 150_000);
}

/// `cargo test --release -p floe-memory --test it -- --ignored --nocapture shares`, as the next
/// one.
#[test]
#[ignore = "takes minutes"]
fn shards_hit_as_often_as_one_does_with_many_loads() {
    check_random_loads(200, 2_000_000);
}

#[test]
#[ignore = "takes minutes"]
fn shards_keep_their_shares_for_a_hundred_million_lookups() {
    for (policy, shards) in [("qd-clock", 8), ("qd-clock", 64), ("s3-fifo", 64), ("lru", 64)] {
        of_kilobytes(policy).check(shards, 100_000_000);
    }
}
