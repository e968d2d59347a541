//! Times lookups while another thread freezes and thaws a million entries: the longest that a hit
//! or an insertion waits for it.
//!
//! `cargo run --release --locked -p floe-lab --example freeze_stall`
//!
//! One thread looks up keys by Zipf's law, and inserts every twentieth, which replaces it. The
//! other computes, freezes nine entries in ten, or thaws them. A virtual core that is taken away
//! shows in all three, so each row is the run with the shortest worst time of several.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use floe_memory::Cache;
use floe_policy::{AnyPolicy, mix};
use hdrhistogram::Histogram;

const ENTRIES: u64 = 1_000_000;
const SHARE: f64 = 0.9;
const RUNS: usize = 5;
/// Lookups between two insertions.
const EVERY: u64 = 20;

/// The work of the other thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beside {
    Computing,
    Freezing,
    Thawing,
    Over,
}

const WORK: [Beside; 3] = [Beside::Computing, Beside::Freezing, Beside::Thawing];

/// Latencies beside one kind of work.
struct Latencies {
    hits_ns: Histogram<u64>,
    inserts_ns: Histogram<u64>,
    took: Duration,
}

fn main() {
    println!(
        "{:<9} {:>6}  {:<9} {:>8} {:>8} {:>9} {:>9} {:>9} {:>9}",
        "policy",
        "shards",
        "beside",
        "took ms",
        "hit p50",
        "hit p99.9",
        "hit max",
        "ins p99.9",
        "ins max"
    );
    for policy in ["lru", "qd-clock"] {
        for shards in [None, Some(1)] {
            let runs: Vec<_> = (0..RUNS).map(|_| run(policy, shards)).collect();
            for (at, beside) in WORK.iter().enumerate() {
                let of = runs.iter().map(|(_, rows)| &rows[at]);
                let worst = |row: &&Latencies| row.hits_ns.max().max(row.inserts_ns.max());
                let row = of.min_by_key(worst).expect("there are runs");
                let us = |ns: u64| format!("{:.1}", ns as f64 / 1e3);
                println!(
                    "{policy:<9} {:>6}  {:<9} {:>8.2} {:>8} {:>9} {:>9} {:>9} {:>9}",
                    runs[0].0,
                    format!("{beside:?}").to_lowercase(),
                    row.took.as_secs_f64() * 1e3,
                    us(row.hits_ns.value_at_quantile(0.5)),
                    us(row.hits_ns.value_at_quantile(0.999)),
                    us(row.hits_ns.max()),
                    us(row.inserts_ns.value_at_quantile(0.999)),
                    us(row.inserts_ns.max()),
                );
            }
        }
    }
}

/// Fills a cache and times lookups beside each kind of work.
fn run(policy: &str, shards: Option<usize>) -> (usize, Vec<Latencies>) {
    let builder = Cache::<u64, u64>::builder().capacity(ENTRIES as usize);
    let builder = builder.policy_named(policy).expect("the policy is registered");
    let builder = if let Some(shards) = shards { builder.shards(shards) } else { builder };
    let cache = builder.build();
    (0..ENTRIES).for_each(|key| cache.insert(key, key));
    let beside = AtomicU8::new(Beside::Computing as u8);
    let mut took = Vec::new();
    let mut rows = std::thread::scope(|scope| {
        let client = scope.spawn(|| client(&cache, &beside));
        for work in WORK {
            let begun = Instant::now();
            // Relaxed: the other thread only counts by it.
            beside.store(work as u8, Ordering::Relaxed);
            match work {
                Beside::Computing => {
                    while begun.elapsed() < Duration::from_millis(200) {
                        std::hint::spin_loop();
                    }
                }
                Beside::Freezing => drop(cache.freeze(SHARE)),
                _ => cache.thaw(),
            }
            took.push(begun.elapsed());
        }
        beside.store(Beside::Over as u8, Ordering::Relaxed); // as above
        client.join().expect("the client does not panic")
    });
    rows.iter_mut().zip(took).for_each(|(row, took)| row.took = took);
    (cache.stats().shards as usize, rows)
}

/// Looks up and inserts until all is over.
fn client(cache: &Cache<u64, u64, AnyPolicy>, beside: &AtomicU8) -> Vec<Latencies> {
    let histogram = || Histogram::new(3).expect("three digits");
    let mut rows: Vec<Latencies> = WORK
        .iter()
        .map(|_| Latencies { hits_ns: histogram(), inserts_ns: histogram(), took: Duration::ZERO })
        .collect();
    for at in 0u64.. {
        let work = beside.load(Ordering::Relaxed); // a late answer counts for the work before
        let Some(row) = rows.get_mut(usize::from(work)) else { break };
        // Skewed: the smaller of two draws.
        let draw = mix(at);
        let key = (draw % ENTRIES).min((draw >> 32) % ENTRIES);
        let begun = Instant::now();
        let into = if at.is_multiple_of(EVERY) {
            cache.insert(key, key);
            &mut row.inserts_ns
        } else {
            assert_eq!(cache.get(&key).as_deref(), Some(&key));
            &mut row.hits_ns
        };
        into.record(begun.elapsed().as_nanos() as u64).expect("it grows");
    }
    rows
}
