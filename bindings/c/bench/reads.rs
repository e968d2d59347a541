//! A hit from Rust, for comparison with reads.c: the same cache, keys and values.
//!
//!     cargo bench -p floe-c --bench reads -- ROUNDS LOOKUPS
//!
//! `bytes` has keys and values as C's cache has them, on the heap; `inline` has them in the entry.

use std::hash::Hash;

use floe_memory::policy::AnyPolicy;
use floe_memory::{Cache, Equivalent};
use rustix::time::{ClockId, clock_gettime};

const KEYS: u64 = 1000;

/// Nanoseconds of processor time of this thread.
fn now() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// A cache as C's default.
fn filled<K, V>(make: impl Fn(u64) -> (K, V)) -> Cache<K, V, AnyPolicy>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    let builder = Cache::<K, V>::builder().policy_named("qd-clock").expect("a policy");
    let cache = builder.capacity(2 * KEYS as usize).build();
    (0..KEYS).map(make).for_each(|(key, value)| cache.insert(key, value));
    cache
}

/// Nanoseconds a lookup, each of which finds a value whose first byte is 1.
fn run(lookups: u64, look_up: impl Fn(u64) -> Option<u8>) -> f64 {
    let begun = now();
    let found: u64 = (0..lookups).map(|at| u64::from(look_up(at * 7919 % KEYS).unwrap_or(0))).sum();
    let taken = now() - begun;
    assert_eq!(found, lookups, "not all values were found");
    taken / lookups as f64
}

/// A key of bytes that are not the cache's.
struct Asked<'a>(&'a [u8]);

impl Hash for Asked<'_> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl Equivalent<Box<[u8]>> for Asked<'_> {
    fn equivalent(&self, key: &Box<[u8]>) -> bool {
        *self.0 == **key
    }
}

fn main() {
    // Cargo adds --bench.
    let mut words = std::env::args().skip(1).filter_map(|word| word.parse().ok());
    let (rounds, lookups) = (words.next().unwrap_or(3), words.next().unwrap_or(20_000));
    let bytes =
        filled(|key| (Box::<[u8]>::from(key.to_ne_bytes()), vec![1; 64].into_boxed_slice()));
    let inline = filled(|key| (key, [1; 64]));
    let mut taken = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        taken[0].push(run(lookups, |key| bytes.read(&Asked(&key.to_ne_bytes()), |value| value[0])));
        taken[1].push(run(lookups, |key| inline.read(&key, |value| value[0])));
    }
    for (name, mut times) in ["bytes", "inline"].into_iter().zip(taken) {
        times.sort_by(f64::total_cmp);
        println!("{name:14} {:6.1} ns", times[times.len() / 2]);
    }
}
