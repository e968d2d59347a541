//! Policies over a trace: who would have hit how often, with the policy code that the caches run.
//!
//! The trace is in memory with dense keys ([`super::stream`]), so a run is a loop over plain arrays: key to slot, a hit or a
//! miss, the policy's own work. Each pair of policy and size is a run of its own; runs share the trace and are spread over
//! all cores. The loop is compiled once per policy.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use floe_policy::registry::{Choice, Visitor};
use floe_policy::{Access, Direction, Policy, Slot, Tick, mix};
use serde::Serialize;

use super::stream::{NEVER, Stream};

/// No slot.
const NONE: u32 = u32::MAX;

/// Requests between two reports of progress, as a mask.
const PROGRESS_MASK: usize = (1 << 16) - 1;

/// What a hit and a miss take, to turn hits into latency.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Latency {
    /// A hit, in microseconds.
    pub hit_us: f64,
    /// A miss, in microseconds.
    pub miss_us: f64,
}

/// A run: which policy, and how much it holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// The policy.
    pub policy: Choice,
    /// Capacity in the unit of the stream: bytes where it has sizes, else objects. Of the whole cache, not of a sample.
    pub size: u64,
}

/// What a run found: the fields of `floe simulate --policy`.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// The trace's name.
    pub trace: String,
    /// The policy with its parameters.
    pub policy: String,
    /// Capacity, in objects or bytes.
    pub size: u64,
    /// Requests; of the sample, if one was taken.
    pub requests: u64,
    /// How many found their object.
    pub hits: u64,
    /// How many did not.
    pub misses: u64,
    /// Share of requests that missed; for a sample, the estimate for the whole trace.
    pub miss_ratio: f64,
    /// Standard error of `miss_ratio`, when it is estimated from a sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub miss_ratio_error: Option<f64>,
    /// Share of bytes that missed; the same as `miss_ratio` where objects have no sizes.
    pub byte_miss_ratio: f64,
    /// Mean latency with the given times for a hit and a miss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_latency_us: Option<f64>,
    /// Time the run took.
    pub seconds: f64,
    /// Requests a second, on one core.
    pub requests_per_second: f64,
    /// Memory the policy held for each object there was room for.
    pub policy_bytes_per_object: f64,
}

/// Runs one policy at one size. `progress` is advanced by the number of requests done.
pub fn simulate(
    trace: &str,
    stream: &Stream,
    run: &Run,
    latency: Option<Latency>,
    progress: &AtomicU64,
) -> Outcome {
    let capacity = ((run.size as f64 * stream.rate).round() as u64).max(1);
    let begun = Instant::now();
    let counts = floe_policy::with(&run.policy, Simulation { stream, capacity, progress });
    let seconds = begun.elapsed().as_secs_f64();
    let requests = stream.keys.len() as u64;
    let misses = requests - counts.hits;
    // A sample has more or fewer requests than its share; they count as hits that are there or not (SHARDS-adj).
    let expected = stream.requests as f64 * stream.rate;
    let miss_ratio = (misses as f64 / expected).min(1.0);
    let bytes_ratio =
        if counts.bytes == 0 { miss_ratio } else { counts.missed_bytes as f64 / counts.bytes as f64 };
    Outcome {
        trace: trace.to_owned(),
        policy: run.policy.to_string(),
        size: run.size,
        requests,
        hits: counts.hits,
        misses,
        miss_ratio,
        miss_ratio_error: counts.error,
        byte_miss_ratio: bytes_ratio,
        mean_latency_us: latency.map(|Latency { hit_us, miss_us }| hit_us + miss_ratio * (miss_us - hit_us)),
        seconds,
        requests_per_second: requests as f64 / seconds,
        policy_bytes_per_object: counts.policy_bytes as f64 / counts.most_objects.max(1) as f64,
    }
}

#[derive(Debug, Default)]
struct Counts {
    hits: u64,
    bytes: u64,
    missed_bytes: u64,
    error: Option<f64>,
    policy_bytes: usize,
    most_objects: usize,
}

struct Simulation<'a> {
    stream: &'a Stream,
    capacity: u64,
    progress: &'a AtomicU64,
}

impl Visitor for Simulation<'_> {
    type Out = Counts;

    fn visit<P: Policy>(self, make: impl Fn() -> P + Send + Sync) -> Counts {
        let mut order = make();
        let mut counts = match &self.stream.sizes {
            Some(sizes) => self.by_size(&mut order, sizes),
            None => self.by_count(&mut order),
        };
        counts.policy_bytes = order.memory_bytes();
        counts
    }
}

impl Simulation<'_> {
    fn access(&self, at: usize, key: u32, weight: u32) -> Access {
        let next_use = match &self.stream.next_use {
            Some(next) if next[at] != NEVER => u64::from(next[at]),
            _ => Access::NEVER,
        };
        let direction = if self.stream.writes(at) { Direction::Write } else { Direction::Read };
        let position = self.stream.numbers[key as usize];
        Access { hash: mix(u64::from(key)), weight, direction, position, next_use }
    }

    /// The loop that speed is measured on: every object counts one.
    fn by_count<P: Policy>(&self, order: &mut P) -> Counts {
        let slots = self.capacity.min(self.stream.distinct as u64) as usize;
        order.reserve(slots);
        order.set_capacity(self.capacity);
        let mut slot_of = vec![NONE; self.stream.distinct];
        let mut key_of = vec![NONE; slots];
        let mut used = 0;
        let mut hits = 0;
        let mut misses_of = PerKey::new(self.stream);
        for (at, &key) in self.stream.keys.iter().enumerate() {
            let slot = slot_of[key as usize];
            if slot != NONE {
                hits += 1;
                if self.stream.next_use.is_some() {
                    order.hit(Slot(slot), &self.access(at, key, 1));
                } else {
                    order.access(Slot(slot));
                }
            } else {
                misses_of.add(key);
                let access = self.access(at, key, 1);
                let slot = if used < slots {
                    used += 1;
                    used as u32 - 1
                } else {
                    let Some(victim) = order.evict(Some(&access)) else { continue };
                    slot_of[key_of[victim.index()] as usize] = NONE;
                    victim.0
                };
                slot_of[key as usize] = slot;
                key_of[slot as usize] = key;
                order.insert(Slot(slot), &access);
                order.tick(Tick(at as u64));
            }
            if at & PROGRESS_MASK == PROGRESS_MASK {
                self.progress.fetch_add(PROGRESS_MASK as u64 + 1, Relaxed); // only a number to show
            }
        }
        Counts { hits, error: misses_of.error(self.stream), most_objects: slots, ..Counts::default() }
    }

    /// Objects take their size; one larger than the cache is not cached.
    fn by_size<P: Policy>(&self, order: &mut P, sizes: &[u32]) -> Counts {
        order.reserve(self.stream.distinct);
        order.set_capacity(self.capacity);
        let mut slot_of = vec![NONE; self.stream.distinct];
        let mut held: Vec<(u32, u32)> = Vec::new(); // key and size of each slot
        let mut free: Vec<u32> = Vec::new();
        let mut weight = 0u64;
        let mut counts = Counts::default();
        let mut misses_of = PerKey::new(self.stream);
        for (at, &key) in self.stream.keys.iter().enumerate() {
            let size = sizes[at];
            counts.bytes += u64::from(size);
            let slot = slot_of[key as usize];
            if slot != NONE {
                counts.hits += 1;
                order.hit(Slot(slot), &self.access(at, key, held[slot as usize].1));
                continue;
            }
            counts.missed_bytes += u64::from(size);
            misses_of.add(key);
            if u64::from(size) > self.capacity {
                continue;
            }
            let access = self.access(at, key, size);
            while weight + u64::from(size) > self.capacity {
                let Some(victim) = order.evict(Some(&access)) else { break };
                let (victim_key, victim_size) = held[victim.index()];
                slot_of[victim_key as usize] = NONE;
                weight -= u64::from(victim_size);
                free.push(victim.0);
            }
            let slot = free.pop().unwrap_or_else(|| {
                held.push((NONE, 0));
                held.len() as u32 - 1
            });
            held[slot as usize] = (key, size);
            slot_of[key as usize] = slot;
            weight += u64::from(size);
            order.insert(Slot(slot), &access);
            order.tick(Tick(at as u64));
            if at & PROGRESS_MASK == PROGRESS_MASK {
                self.progress.fetch_add(PROGRESS_MASK as u64 + 1, Relaxed); // only a number to show
            }
        }
        Counts { error: misses_of.error(self.stream), most_objects: held.len(), ..counts }
    }
}

/// Misses of each sampled key, from which the error of the estimate follows; nothing when there is no sample.
struct PerKey(Option<Vec<u32>>);

impl PerKey {
    fn new(stream: &Stream) -> Self {
        Self((stream.rate < 1.0).then(|| vec![0; stream.distinct]))
    }

    #[inline]
    fn add(&mut self, key: u32) {
        if let Some(misses) = &mut self.0 {
            misses[key as usize] += 1;
        }
    }

    /// Standard error of a total estimated from keys drawn with equal chance, as a ratio of all requests. Keys not drawn
    /// vary as those drawn do.
    fn error(&self, stream: &Stream) -> Option<f64> {
        let misses = self.0.as_ref()?;
        let variance: f64 = misses.iter().map(|&misses| f64::from(misses) * f64::from(misses)).sum();
        let expected = stream.requests as f64 * stream.rate;
        Some((variance * (1.0 - stream.rate)).sqrt() / expected)
    }
}
