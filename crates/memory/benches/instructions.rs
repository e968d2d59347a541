//! Counts the instructions of a hit, of an insertion that evicts, and of a replacement, in seconds.
//!
//!     cargo bench -p floe-memory --bench instructions
//!
//! Valgrind's callgrind runs this program again and counts. The load is Zipf 0.99 over 10,000 keys
//! on one thread. A hit is one of those in [`hits`], with the loop around it. An insertion or a
//! replacement is all within [`insertion`]. The benchmark `count` says more, of what hits write as
//! well, and takes a quarter of an hour.

use std::process::Command;

use floe_memory::Cache;
use floe_memory::policy::{Clock, Fifo, Lru, QdClock, Replacement, S3Fifo, Sieve};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const POLICIES: [&str; 6] = ["qd-clock", "s3-fifo", "sieve", "clock", "fifo", "lru"];
/// For a hit, an insertion and a replacement, with `--check`.
const MOST: [f64; 3] = [94.0, 655.0, 305.0];
const KEYS: u64 = 10_000;
const LOOKUPS: usize = 20_000;

fn main() {
    let words: Vec<String> = std::env::args().collect();
    if let Some(at) = words.iter().position(|word| word == "--one") {
        return one(&words[at + 1], &words[at + 2]);
    }
    let checks = words.iter().any(|word| word == "--check");
    println!("{:<10} {:>6} {:>10} {:>12}", "policy", "hit", "insertion", "replacement");
    for policy in &POLICIES[..if checks { 1 } else { POLICIES.len() }] {
        let counted =
            [("hits", "hits"), ("insertions", "insertion"), ("replacements", "insertion")]
                .map(|(what, within)| count(policy, what, within));
        let [Some(hit), Some(inserted), Some(replaced)] = counted else {
            println!("not counted: valgrind is not installed");
            return;
        };
        println!("{policy:<10} {hit:>6.1} {inserted:>10.1} {replaced:>12.1}");
        let is_more = [hit, inserted, replaced].iter().zip(MOST).any(|(count, most)| *count > most);
        assert!(!checks || !is_more, "more instructions than {MOST:?}");
    }
}

/// Runs a policy under callgrind. Returns the instructions within a function for each request that
/// it told of; `None` without valgrind.
fn count(policy: &str, what: &str, within: &str) -> Option<f64> {
    let run = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(format!("--toggle-collect=instructions::{within}*"))
        .arg(std::env::current_exe().ok()?)
        .args(["--one", policy, what])
        .output()
        .ok()?;
    assert!(run.status.success(), "valgrind: {policy}, {what}");
    let said = String::from_utf8_lossy(&run.stderr);
    let collected = said.split_once("Collected : ").expect("callgrind says what it collected").1;
    let number = |text: &str| text.split_whitespace().next()?.parse::<f64>().ok();
    let requests = number(&String::from_utf8_lossy(&run.stdout)).expect("a number of requests");
    Some(number(collected).expect("a number of instructions") / requests)
}

/// The program that is counted.
fn one(policy: &str, what: &str) {
    match policy {
        "qd-clock" => ask(QdClock::default(), what),
        "s3-fifo" => ask(S3Fifo::default(), what),
        "sieve" => ask(Sieve::default(), what),
        "clock" => ask(Clock::default(), what),
        "fifo" => ask(Fifo::default(), what),
        "lru" => ask(Lru::default(), what),
        other => panic!("no such policy here: {other}"),
    }
}

fn ask<P: Replacement>(policy: P, what: &str) {
    let capacity = if what == "insertions" { KEYS / 10 } else { 2 * KEYS } as usize;
    let cache = Cache::<u64, u64>::builder().capacity(capacity).policy(policy).build();
    let keys = zipf();
    let mut requests = 0;
    let mut insert = |key| {
        insertion(&cache, key);
        requests += 1;
    };
    match what {
        "hits" => {
            (0..KEYS).for_each(|key| cache.insert(key, key));
            // Often enough that no policy counts any more.
            let found: usize = (0..16).map(|_| warm_up(&cache, &keys)).sum();
            assert_eq!((found, hits(&cache, &keys)), (16 * keys.len(), keys.iter().sum()));
            requests = keys.len();
        }
        "replacements" => {
            (0..KEYS).for_each(|key| cache.insert(key, key));
            keys.iter().for_each(|key| insert(*key));
        }
        _ => {
            // Full at first: how shards and indexes grow depends on the seed of the hasher.
            (0..KEYS).for_each(|key| cache.insert(key, key));
            keys.iter().filter(|key| cache.get(*key).is_none()).for_each(|key| insert(*key));
        }
    }
    println!("{requests}");
}

fn zipf() -> Vec<u64> {
    let mut sums = Vec::new();
    let mut sum = 0.0;
    for rank in 1..=KEYS {
        sum += (rank as f64).powf(-0.99);
        sums.push(sum);
    }
    let mut random = SmallRng::seed_from_u64(1);
    let mut next = || {
        let drawn = random.random::<f64>() * sum; // once: a search compares it many times
        sums.partition_point(|&up_to| up_to < drawn) as u64
    };
    (0..LOOKUPS).map(|_| next()).collect()
}

/// Other code than [`hits`]: the compiler makes one function of two that are the same.
#[inline(never)]
fn warm_up<P: Replacement>(cache: &Cache<u64, u64, P>, keys: &[u64]) -> usize {
    keys.iter().filter(|key| cache.get(*key).is_some()).count()
}

#[inline(never)]
fn hits<P: Replacement>(cache: &Cache<u64, u64, P>, keys: &[u64]) -> u64 {
    keys.iter().filter_map(|key| cache.get(key).map(|value| *value)).sum()
}

#[inline(never)]
fn insertion<P: Replacement>(cache: &Cache<u64, u64, P>, key: u64) {
    cache.insert(key, key);
}
