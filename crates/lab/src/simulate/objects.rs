//! Simulates policies over a trace with the policy code that the caches run.
//!
//! The trace is in memory with dense keys ([`super::stream`]), so a run is a loop over plain
//! arrays: key to slot, a hit or a miss, the policy's own work. Each pair of policy and size is a
//! run of its own; runs share the trace and are spread over all cores. The loop is compiled once
//! per policy. Behind an admission another loop runs (`admitted`).

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use floe_policy::owner::{DenseIndex, SlotOwner, SlotWeights, UnitWeights};
use floe_policy::registry::{Choice, Visitor};
use floe_policy::{Access, Direction, Policy, admission, mix};
use serde::Serialize;

use super::admitted;
use super::changes::Scale;
use super::intervals::{Seen, SimulatedInterval, Watch};
use super::positions::Positions;
use super::sample::{self, Estimate, Missed};
use super::stream::{NEVER, Stream};

pub use super::latency::Latency;

/// Requests between two reports of progress, as a mask.
const PROGRESS_MASK: usize = (1 << 16) - 1;

/// A run: which policy, and how much it holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// The policy.
    pub policy: Choice,
    /// Capacity in the unit of the stream: bytes where it has sizes, else objects. Of the whole
    /// cache, not of a sample.
    pub size: u64,
    /// The admissions that are asked; empty to admit everything.
    pub admit: Vec<admission::registry::Choice>,
}

/// The results of a run: the fields of `floe simulate --policy`.
#[derive(Debug, Clone, Serialize)]
pub struct SimulationResult {
    /// The trace's name.
    pub trace: String,
    /// The policy with its parameters, and the admission.
    pub policy: String,
    /// Capacity, in objects or bytes.
    pub size: u64,
    /// Requests of the trace that were counted.
    pub requests: u64,
    /// Requests before them that filled the cache and were not counted.
    #[serde(skip_serializing_if = "is_zero")]
    pub warmup_requests: u64,
    /// Those that were simulated, if only a sample was: what else is counted is estimated from
    /// them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampled_requests: Option<u64>,
    /// The number of requests that found their object.
    pub hits: u64,
    /// The number of requests that did not.
    pub misses: u64,
    /// Objects put in, where an admission was asked: what is written to the cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inserted: Option<u64>,
    /// Objects fetched because the policy or the admission ordered it, before they were asked for:
    /// neither hits nor misses.
    #[serde(skip_serializing_if = "is_zero")]
    pub prefetches: u64,
    /// Share of requests that missed.
    pub miss_ratio: f64,
    /// The error of `miss_ratio` when it is estimated from a sample: in 19 of 20 cases no larger.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub miss_ratio_ci95: Option<f64>,
    /// Share of bytes that missed; the same as `miss_ratio` where objects have no sizes.
    pub byte_miss_ratio: f64,
    /// The same for `byte_miss_ratio`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub byte_miss_ratio_ci95: Option<f64>,
    /// Mean latency with the given times of a hit, a miss and an insertion.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_latency_us: Option<f64>,
    /// Time the run took.
    pub seconds: f64,
    /// Requests a second, on one core.
    pub requests_per_second: f64,
    /// Memory the policy held for each object there was room for.
    pub policy_bytes_per_object: f64,
    /// The run over time, where asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<SimulatedInterval>,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Runs one policy at one size. `progress` is advanced by the number of requests done.
pub fn simulate(
    trace: &str,
    stream: &Stream,
    run: &Run,
    latency: Option<Latency>,
    progress: &AtomicU64,
) -> SimulationResult {
    let begun = Instant::now();
    let counts = count(stream, run, run.size as f64 * stream.rate, latency, progress);
    let seconds = begun.elapsed().as_secs_f64();
    let simulated = stream.keys.len() as u64;
    let warmup = stream.warmup as u64;
    let requests = stream.requests - warmup;
    let (misses, bytes) = if stream.rate < 1.0 {
        counts.estimated(stream, run, latency)
    } else {
        let exact = |missed: Missed| Estimate {
            ratio: missed.missed / missed.asked.max(f64::MIN_POSITIVE),
            bound: 0.0,
        };
        (exact(counts.requests(stream)), stream.sizes.as_ref().map(|_| exact(counts.bytes())))
    };
    let is_sample = |bound: f64| (stream.rate < 1.0).then_some(bound);
    let missed = (misses.ratio * requests as f64).round() as u64;
    let of_all = |counted: u64| (counted as f64 / stream.rate).round() as u64;
    let bytes = bytes.unwrap_or(misses);
    SimulationResult {
        trace: trace.to_owned(),
        policy: match &counts.admission {
            Some(admission) => format!("{} with {admission}", run.policy),
            None => run.policy.to_string(),
        },
        size: run.size,
        requests,
        warmup_requests: warmup,
        sampled_requests: (stream.rate < 1.0).then_some(simulated),
        hits: requests - missed,
        misses: missed,
        inserted: counts.admission.as_ref().map(|_| counts.inserted),
        prefetches: of_all(counts.prefetches),
        miss_ratio: misses.ratio,
        miss_ratio_ci95: is_sample(misses.bound),
        byte_miss_ratio: bytes.ratio,
        byte_miss_ratio_ci95: is_sample(bytes.bound),
        mean_latency_us: latency.map(|latency| {
            latency.mean_us(misses.ratio, counts.demanded as f64 / (simulated - warmup) as f64)
        }),
        seconds,
        requests_per_second: simulated as f64 / seconds,
        policy_bytes_per_object: counts.policy_bytes as f64 / counts.most_objects.max(1) as f64,
        series: counts.series,
    }
}

/// Runs a cache that holds so much over a stream as it is.
fn count(
    stream: &Stream,
    run: &Run,
    capacity: f64,
    latency: Option<Latency>,
    progress: &AtomicU64,
) -> Counts {
    let capacity = (capacity.round() as u64).max(1);
    let scale = Scale::of(stream.largest);
    if run.admit.is_empty() {
        return floe_policy::with(&run.policy, Simulation { stream, capacity, scale, progress });
    }
    let admission = admission::Admissions::new(&run.admit);
    let name = admission.to_string();
    let simulation = admitted::Simulation { stream, capacity, scale, admission, latency, progress };
    let (counts, series) = floe_policy::with(&run.policy, simulation);
    Counts { admission: Some(name), series, ..counts.into() }
}

#[derive(Debug, Default)]
struct Counts {
    hits: u64,
    prefetches: u64,
    bytes: u64,
    missed_bytes: u64,
    /// By how much misses rise with requests from key to key, in a sample.
    slope: f64,
    policy_bytes: usize,
    most_objects: usize,
    /// The admission that was asked, and what it let in.
    admission: Option<String>,
    inserted: u64,
    /// Objects that requests put in.
    demanded: u64,
    series: Vec<SimulatedInterval>,
}

impl Counts {
    fn seen(&self) -> Seen {
        let Self { hits, bytes, missed_bytes, .. } = *self;
        Seen { hits, bytes, missed_bytes, inserted: None }
    }

    fn requests(&self, stream: &Stream) -> Missed {
        let asked = (stream.keys.len() - stream.warmup) as f64;
        Missed { asked, missed: asked - self.hits as f64 }
    }

    fn bytes(&self) -> Missed {
        Missed { asked: self.bytes as f64, missed: self.missed_bytes as f64 }
    }

    /// Estimates the misses of requests and, where there are sizes, of bytes of the whole trace.
    fn estimated(
        &self,
        stream: &Stream,
        run: &Run,
        latency: Option<Latency>,
    ) -> (Estimate, Option<Estimate>) {
        let share = stream.rate;
        let objects = stream.objects_in((run.size as f64 * share) as u64) as u64;
        let groups = (objects / sample::OBJECTS).clamp(sample::LEAST_GROUPS, sample::MOST_GROUPS);
        let capacity = run.size as f64 * share / groups as f64;
        let unseen = AtomicU64::new(0);
        let of_groups: Vec<(Missed, Missed)> = (stream.parted(groups).iter())
            .map(|group| {
                let counts = count(group, run, capacity, latency, &unseen);
                (counts.requests(group), counts.bytes())
            })
            .collect();
        let (requests, bytes): (Vec<_>, Vec<_>) = of_groups.into_iter().unzip();
        let asked = stream.requests as f64 * share;
        let of_bytes = || {
            sample::estimate(
                self.bytes(),
                &bytes,
                self.slope,
                stream.asked_bytes as f64 * share,
                share,
            )
        };
        (
            sample::estimate(self.requests(stream), &requests, self.slope, asked, share),
            stream.sizes.as_ref().map(|_| of_bytes()),
        )
    }
}

impl From<admitted::Counts> for Counts {
    fn from(counts: admitted::Counts) -> Self {
        Self {
            hits: counts.hits,
            prefetches: counts.fetched,
            bytes: counts.bytes,
            missed_bytes: counts.missed_bytes,
            policy_bytes: counts.policy_bytes,
            most_objects: counts.most_objects,
            inserted: counts.inserted,
            demanded: counts.inserted - counts.fetched,
            ..Self::default()
        }
    }
}

struct Simulation<'a> {
    stream: &'a Stream,
    capacity: u64,
    scale: Scale,
    progress: &'a AtomicU64,
}

impl Visitor for Simulation<'_> {
    type Out = Counts;

    fn visit<P: Policy>(self, make: impl Fn() -> P + Send + Sync) -> Counts {
        match &self.stream.sizes {
            Some(sizes) => self.run::<P, Vec<u64>>(make(), 0, |at| sizes[at]),
            None => {
                let slots = self.capacity.min(self.stream.distinct as u64) as usize;
                self.run::<P, UnitWeights>(make(), slots, |_| 1)
            }
        }
    }
}

impl Simulation<'_> {
    /// The fields of an access that the policy looks at: reading others would cost a cache miss.
    #[inline]
    fn access<P: Policy>(&self, at: usize, key: u32, size: u64, in_a_row: u64) -> Access {
        let weight = self.scale.told(size);
        let next_use = match &self.stream.next_use {
            Some(next) if P::INFO.next_uses && next[at] != NEVER => u64::from(next[at]),
            _ => Access::NEVER,
        };
        let direction = if self.stream.writes(at) { Direction::Write } else { Direction::Read };
        Access { direction, next_use, in_a_row, weight, ..Access::new(mix(u64::from(key))) }
    }

    /// The loop that speed is measured on. An object larger than the cache is not cached.
    fn run<P: Policy, W: SlotWeights>(
        &self,
        policy: P,
        slots: usize,
        size_at: impl Fn(usize) -> u64,
    ) -> Counts {
        let mut misses_of = PerKey::new(self.stream);
        let mut positions = Positions::of(self.stream, &policy);
        let index = DenseIndex::new(self.stream.distinct);
        let mut owner = SlotOwner::<P, DenseIndex, W>::new(policy, index, self.capacity, slots);
        self.scale.set_capacity(owner.policy_mut(), self.capacity);
        let mut counts = Counts::default();
        let mut watch = Watch::new(self.stream.warmup, &self.stream.ends, &self.stream.changes);
        for (at, &key) in self.stream.keys.iter().enumerate() {
            if at == watch.next {
                while let Some(change) = watch.change(at) {
                    self.scale.apply(change, &mut owner, |_, _, _| ());
                }
                if watch.turn(at, counts.seen()) {
                    counts = Counts::default();
                }
            }
            let size = size_at(at);
            counts.bytes += size;
            let in_a_row = if P::INFO.streams { positions.follow(key) } else { 0 };
            if let Some(slot) = owner.find(key) {
                counts.hits += 1;
                if P::INFO.next_uses {
                    let access = self.access::<P>(at, key, owner.weight(slot), in_a_row);
                    owner.hit(slot, &access);
                } else {
                    owner.access(slot);
                }
            } else {
                counts.missed_bytes += size;
                misses_of.add(key);
                let access = self.access::<P>(at, key, size, in_a_row);
                let inserted = owner.insert_weighing(size, key, &access, |_, _, _| ());
                counts.demanded += u64::from(inserted.is_some());
            }
            if P::INFO.streams {
                for ahead in positions.ahead() {
                    if owner.find(ahead).is_none() {
                        // The object next to another is taken to be as large.
                        let fetch = Access::new(mix(u64::from(ahead)));
                        let weight = self.scale.told(size);
                        let fetch = Access { weight, ahead: true, ..fetch };
                        counts.prefetches += 1;
                        owner.insert_weighing(size, ahead, &fetch, |_, _, _| ());
                    }
                }
            }
            if at & PROGRESS_MASK == PROGRESS_MASK {
                self.progress.fetch_add(PROGRESS_MASK as u64 + 1, Relaxed); // only a number to show
            }
        }
        Counts {
            slope: misses_of.slope(self.stream),
            policy_bytes: owner.policy().memory_bytes(),
            most_objects: owner.most(),
            series: watch.finish(counts.seen()),
            ..counts
        }
    }
}

/// Misses of each key, where the stream is a sample.
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

    fn slope(self, stream: &Stream) -> f64 {
        let Some(misses) = self.0 else { return 0.0 };
        let mut requests = vec![0; stream.distinct];
        stream.keys.iter().for_each(|&key| requests[key as usize] += 1);
        sample::slope(misses.into_iter().zip(requests))
    }
}

#[cfg(test)]
mod tests {
    use super::super::stream::{Builder, Keep};
    use super::*;
    use floe_trace::{Kind, Op, Request};

    fn misses(policy: &str, sizes: bool) -> (u64, u64) {
        const RUN: u64 = 1000;
        let keep = Keep { rate: 1.0, sizes, next_use: false };
        let mut builder = Builder::new(Kind::Key, keep, 4096);
        for position in 0..RUN {
            let read = Request { time_ns: 0, key: position, bytes: 10, volume: 0, op: Op::Read };
            builder.add(&read).expect("there is room");
        }
        let stream = builder.finish().expect("there are requests");
        let run = Run {
            policy: policy.parse().expect("the policy is registered"),
            size: 640,
            admit: Vec::new(),
        };
        let outcome = simulate("run", &stream, &run, None, &AtomicU64::new(0));
        assert_eq!(outcome.hits + outcome.misses, RUN);
        (outcome.misses, outcome.prefetches)
    }

    #[test]
    fn what_sarc_orders_is_fetched_and_hits() {
        for sizes in [false, true] {
            let (missed, prefetches) = misses("sarc", sizes);
            assert!(
                missed < 10 && missed + prefetches == 1000,
                "{missed} misses, {prefetches} prefetches"
            );
            assert_eq!(misses("lru", sizes), (1000, 0));
        }
    }
}
