//! Simulates an eviction policy over a trace, with or without an admission policy.
//!
//! The trace is in memory with dense keys ([`super::stream`]), so a run is a loop over plain
//! arrays: key to slot, a hit or a miss, the policy's own work. The loop is compiled three times
//! for each policy: for objects of one size, for objects with sizes, and with an admission policy.
//!
//! An admission policy is asked before each insertion. It receives counts every [`WINDOW_REQUESTS`]
//! requests, and objects that it orders are fetched at once. A write is served like a read; a write
//! that hits overwrites the object, which the admission policy sees as an insertion.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use floe_policy::admission::{Admission, Admissions, Orders, Room, Times, Traffic, Window};
use floe_policy::owner::{DenseIndex, SlotOwner, SlotWeights, UnitWeights};
use floe_policy::registry::Visitor;
use floe_policy::streams::Streams;
use floe_policy::{Access, Adaptation, Direction, Policy, Tick, mix};
use serde::{Deserialize, Serialize};

use super::stream::{Change, End, NEVER, Stream};

/// Times of a hit, a miss and an insertion, for an estimate of the mean latency.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Latency {
    /// Time of a hit in microseconds.
    pub hit_us: f64,
    /// Time of a miss in microseconds, without the insertion.
    pub miss_us: f64,
    /// Time of an insertion after a miss in microseconds, including the eviction that makes room.
    /// The request waits for it. Fetches that a policy orders run beside the requests, and cost
    /// them no time.
    pub insert_us: f64,
}

impl Latency {
    /// Returns the mean latency in microseconds, given the shares of requests that miss and that
    /// insert an object.
    pub(super) fn mean_us(&self, missed: f64, inserted: f64) -> f64 {
        self.hit_us + missed * (self.miss_us - self.hit_us) + inserted * self.insert_us
    }
}

/// Detects sequential streams in a trace, and maps positions ahead of them to keys for prefetches.
/// A position that several volumes have stands for the volume that used it first.
struct Positions<'a> {
    streams: Option<Streams>,
    numbers: &'a [u64],
    fetches_from: u64,
    keys: HashMap<u64, u32>,
}

impl<'a> Positions<'a> {
    fn of<P: Policy>(stream: &'a Stream, order: &P) -> Self {
        let mut keys = HashMap::new();
        let fetches_from = order.fetches_ahead();
        if fetches_from.is_some() {
            for (key, &number) in (0..).zip(&stream.numbers) {
                keys.entry(number).or_insert(key);
            }
        }
        Self {
            streams: P::INFO.streams.then(Streams::default),
            numbers: &stream.numbers,
            fetches_from: fetches_from.unwrap_or(u64::MAX),
            keys,
        }
    }

    /// Enables the detection of streams if `wanted`, for an admission policy that needs them.
    fn followed_if(mut self, wanted: bool) -> Self {
        self.streams = self.streams.or_else(|| wanted.then(Streams::default));
        self
    }

    /// Returns the number of consecutive positions up to that of a request; 0 where streams are not
    /// detected.
    #[inline]
    fn follow(&mut self, key: u32) -> u64 {
        let Some(streams) = &mut self.streams else { return 0 };
        let position = self.numbers[key as usize];
        position + 1 - streams.follow(&(position..position + 1))
    }

    /// Returns the keys to prefetch after the last request. Keys that the trace never requests are
    /// unknown, and not fetched.
    #[inline]
    fn ahead(&mut self) -> impl Iterator<Item = u32> + use<> {
        let ahead = self.streams.as_mut().and_then(|streams| streams.ahead(self.fetches_from));
        let keys =
            ahead.into_iter().flatten().filter_map(|position| self.keys.get(&position).copied());
        keys.collect::<Vec<u32>>().into_iter()
    }
}

/// Binary logarithm of the unit in bytes of the sizes that policies receive. The unit is a byte,
/// unless an object has 4 GiB or more: then it is the power of two at which the largest size fits
/// 32 bits. The cache itself counts in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scale(u32);

impl Scale {
    /// Returns the scale for objects of up to `largest` bytes.
    pub(super) fn of(largest: u64) -> Self {
        Self((u64::BITS - largest.leading_zeros()).saturating_sub(u32::BITS))
    }

    /// Converts a size in bytes to the policy's unit; at least 1.
    #[inline]
    fn told(self, size: u64) -> u32 {
        ((size >> self.0) as u32).max(1)
    }

    /// Converts a capacity in bytes to the policy's unit.
    fn room(self, capacity: u64) -> u64 {
        capacity >> self.0
    }

    /// Sets a policy's capacity in its unit, if that is not bytes.
    fn set_capacity<P: Policy>(self, policy: &mut P, capacity: u64) {
        if self.0 > 0 {
            policy.set_capacity(self.room(capacity));
        }
    }
}

/// Results of one interval of a simulation of policies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SimulatedInterval {
    /// Number of counted requests before the interval.
    pub after_requests: u64,
    /// Number of requests in the interval.
    pub requests: u64,
    /// End of the interval in seconds since the beginning of the trace, by its clock; `None` for
    /// intervals of a number of requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// Number of requests whose object was cached.
    pub hits: u64,
    /// Number of requests whose object was not cached.
    pub misses: u64,
    /// Share of requests that missed.
    pub miss_ratio: f64,
    /// Share of bytes that missed; equal to `miss_ratio` where objects have no sizes.
    pub byte_miss_ratio: f64,
    /// Number of objects inserted; `None` without an admission policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inserted: Option<u64>,
}

/// Counts of a simulation since the end of the warm-up.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Counts {
    /// Number of requests whose object was cached.
    pub(super) hits: u64,
    /// Bytes requested, or the number of requests where objects have no sizes.
    pub(super) bytes: u64,
    /// Bytes of requests that missed.
    pub(super) missed_bytes: u64,
    /// Number of objects inserted, after misses and by order of a policy.
    pub(super) inserted: u64,
    /// Number of objects inserted after a miss.
    pub(super) demanded: u64,
    /// Number of objects fetched by order of the admission policy, or prefetched by the eviction
    /// policy.
    pub(super) fetched: u64,
    /// Additional misses per additional request, by a regression over the keys of a sample; 0 with
    /// an admission policy.
    pub(super) slope: f64,
    /// Bytes of memory that both policies held at the end.
    pub(super) policy_bytes: usize,
    /// Maximum number of objects cached at one time.
    pub(super) most_objects: usize,
}

/// Ends warm-up and intervals, and delivers changes of objects, at the right requests of a
/// simulation.
#[derive(Debug)]
struct Watch<'a> {
    /// Index of the next request before which the loop must call [`change`](Self::change) and
    /// [`turn`](Self::turn).
    next: usize,
    warmup: usize,
    /// Ends of the current and later intervals.
    ends: &'a [End],
    changes: &'a [Change],
    begun: usize,
    before: Counts,
    /// True if the intervals tell the number of insertions.
    admits: bool,
    past: Vec<SimulatedInterval>,
}

impl<'a> Watch<'a> {
    fn new(stream: &'a Stream, admits: bool) -> Self {
        Self {
            next: 0,
            warmup: stream.warmup,
            ends: &stream.ends,
            changes: &stream.changes,
            begun: stream.warmup,
            before: Counts::default(),
            admits,
            past: Vec::new(),
        }
    }

    /// Returns the next change of an object that is due before request `at`. Call until it returns
    /// `None`.
    fn change(&mut self, at: usize) -> Option<&'a Change> {
        let (change, rest) = self.changes.split_first()?;
        let is_due = change.at as usize == at;
        self.changes = if is_due { rest } else { self.changes };
        is_due.then_some(change)
    }

    /// Ends the warm-up or an interval that ends before request `at`. Returns whether the caller
    /// must reset its counts, at the end of the warm-up.
    #[cold]
    fn turn(&mut self, at: usize, counts: &Counts) -> bool {
        if self.ends.first().is_some_and(|end| end.at == at) {
            self.end(counts);
        }
        let change = self.changes.first().map_or(usize::MAX, |change| change.at as usize);
        let end = self.ends.first().map_or(usize::MAX, |end| end.at);
        let warmed_up = if at < self.warmup { self.warmup } else { usize::MAX };
        self.next = change.min(end).min(warmed_up);
        at == self.warmup
    }

    fn end(&mut self, now: &Counts) {
        let Some((end, rest)) = self.ends.split_first() else { return };
        let before = std::mem::replace(&mut self.before, *now);
        let requests = (end.at - self.begun) as u64;
        let hits = now.hits - before.hits;
        let bytes = (now.bytes - before.bytes).max(1) as f64;
        self.past.push(SimulatedInterval {
            after_requests: (self.begun - self.warmup) as u64,
            requests,
            seconds: end.seconds,
            hits,
            misses: requests - hits,
            miss_ratio: (requests - hits) as f64 / requests.max(1) as f64,
            byte_miss_ratio: (now.missed_bytes - before.missed_bytes) as f64 / bytes,
            inserted: self.admits.then(|| now.inserted - before.inserted),
        });
        (self.begun, self.ends) = (end.at, rest);
    }

    /// Ends the last interval, and returns all.
    fn finish(mut self, counts: &Counts) -> Vec<SimulatedInterval> {
        self.end(counts);
        self.past
    }
}

/// Misses of each key; `None` unless the stream is a sample.
struct PerKey(Option<Vec<u32>>);

impl PerKey {
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
        slope(misses.into_iter().zip(requests))
    }
}

/// Returns the additional misses per additional request, by a regression over pairs of the misses
/// of a key and its requests.
fn slope(keys: impl Iterator<Item = (u32, u32)>) -> f64 {
    let (mut together, mut squares) = (0.0, 0.0);
    for (missed, asked) in keys {
        together += f64::from(missed) * f64::from(asked);
        squares += f64::from(asked) * f64::from(asked);
    }
    if squares > 0.0 { together / squares } else { 0.0 }
}

/// Requests between two reports of progress, as a mask.
const PROGRESS_MASK: usize = (1 << 16) - 1;

/// Number of requests after which the admission policy receives counts. Divides 200, the interval
/// of FussyCache's checks, so that these are on time.
const WINDOW_REQUESTS: usize = 100;

/// Simulation of one eviction policy at one capacity; started by [`super::objects::simulate`].
pub(super) struct Simulation<'a> {
    pub(super) stream: &'a Stream,
    pub(super) capacity: u64,
    pub(super) scale: Scale,
    pub(super) admission: Option<Admissions>,
    pub(super) latency: Option<Latency>,
    pub(super) progress: &'a AtomicU64,
}

/// The results of a simulation.
pub(super) struct Simulated {
    pub(super) counts: Counts,
    pub(super) series: Vec<SimulatedInterval>,
    /// The settings that the policy chose from; `None` if its settings do not change.
    pub(super) adaptation: Option<Adaptation>,
}

impl Visitor for Simulation<'_> {
    type Out = Simulated;

    fn visit<P: Policy>(mut self, make: impl Fn() -> P + Send + Sync) -> Self::Out {
        let sizes = self.stream.sizes.as_ref();
        match (self.admission.take(), sizes) {
            (Some(admission), _) => {
                let admission = AdmissionState::new(&self, admission);
                let size_at = |at| sizes.map_or(1, |sizes| sizes[at]);
                self.run::<P, Vec<u64>, true>(make(), Some(admission), size_at)
            }
            (None, Some(sizes)) => self.run::<P, Vec<u64>, false>(make(), None, |at| sizes[at]),
            (None, None) => self.run::<P, UnitWeights, false>(make(), None, |_| 1),
        }
    }
}

impl Simulation<'_> {
    /// Runs the loop, whose speed is measured without an admission policy. An object larger than
    /// the cache is not cached.
    fn run<P: Policy, W: SlotWeights, const ADMITS: bool>(
        &self,
        policy: P,
        admission: Option<AdmissionState>,
        size_at: impl Fn(usize) -> u64,
    ) -> Simulated {
        let stream = self.stream;
        // Objects of size 1 are as many as fit; the number of others shows later.
        let slots = if stream.sizes.is_none() { stream.objects_in(self.capacity) } else { 0 };
        let estimates = stream.rate < 1.0 && !ADMITS;
        let mut misses_of = PerKey(estimates.then(|| vec![0; stream.distinct]));
        let needs_streams =
            admission.as_ref().is_some_and(|admission| admission.policy.needs().streams);
        let mut positions = Positions::of(stream, &policy).followed_if(needs_streams);
        let index = DenseIndex::new(stream.distinct);
        let mut cache = Cache::<P, W, ADMITS> {
            owner: SlotOwner::new(policy, index, self.capacity, slots),
            admission,
            stream,
            scale: self.scale,
            counts: Counts::default(),
        };
        self.scale.set_capacity(cache.owner.policy_mut(), self.capacity);
        let mut watch = Watch::new(stream, ADMITS);
        for (at, &key) in stream.keys.iter().enumerate() {
            if at == watch.next {
                while let Some(change) = watch.change(at) {
                    cache.change(change);
                }
                if watch.turn(at, &cache.counts) {
                    cache.counts = Counts::default();
                }
            }
            let size = size_at(at);
            let in_a_row = if P::INFO.streams || ADMITS { positions.follow(key) } else { 0 };
            if !cache.request(at, key, size, in_a_row) {
                misses_of.add(key);
            }
            if P::INFO.streams {
                // The object next to another is taken to be as large.
                positions.ahead().for_each(|ahead| cache.fetch(ahead, size, true));
            }
            if ADMITS && (at + 1).is_multiple_of(WINDOW_REQUESTS) {
                cache.end_window(Tick(at as u64));
            }
            if at & PROGRESS_MASK == PROGRESS_MASK {
                self.progress.fetch_add(PROGRESS_MASK as u64 + 1, Relaxed); // only a number to show
            }
        }
        let of_admission =
            cache.admission.as_ref().map_or(0, |admission| admission.policy.memory_bytes());
        let counts = Counts {
            slope: misses_of.slope(stream),
            policy_bytes: cache.owner.memory_bytes() + of_admission,
            most_objects: cache.owner.most(),
            ..cache.counts
        };
        let adaptation = cache.owner.policy().adaptation();
        Simulated { series: watch.finish(&counts), counts, adaptation }
    }
}

/// An admission policy, its inputs and its last orders.
struct AdmissionState {
    policy: Admissions,
    /// True if the admission policy must know the victim of each insertion.
    names_victims: bool,
    /// Size of each key in bytes at its last request, 0 before.
    size_of: Vec<u64>,
    /// Key of each hash, for fetches.
    key_of: HashMap<u64, u32>,
    times: Times,
    window: Window,
    orders: Orders,
}

impl AdmissionState {
    fn new(simulation: &Simulation<'_>, mut admission: Admissions) -> Self {
        let Simulation { stream, capacity, scale, latency, .. } = *simulation;
        let (entries, weight) = (stream.objects_in(capacity), scale.room(capacity));
        admission.reserve(&Room { entries, weight, above: 0 });
        let times = latency.map_or(Times::default(), |latency| Times {
            hit_ns: Some(latency.hit_us * 1e3),
            backing_read_ns: Some(latency.miss_us * 1e3),
            backing_write_ns: Some(latency.miss_us * 1e3),
            insert_ns: Some(latency.insert_us * 1e3),
            ..Times::default()
        });
        let mut orders = Orders::default();
        let names_victims = admission.needs().victims;
        admission.tick(Tick(0), &mut orders);
        Self {
            policy: admission,
            names_victims,
            size_of: vec![0; stream.distinct],
            key_of: (0..stream.distinct as u32).map(|key| (mix(u64::from(key)), key)).collect(),
            times,
            window: Window { times, ..Window::default() },
            orders,
        }
    }

    fn evicted(&mut self, victim: &Access, size: u64) {
        self.window.removed += traffic(size);
        self.policy.evicted(victim);
    }
}

/// A cache of objects, with or without sizes. With `ADMITS` it asks an admission policy about each
/// miss.
struct Cache<'a, P, W, const ADMITS: bool> {
    owner: SlotOwner<P, DenseIndex, W>,
    admission: Option<AdmissionState>,
    stream: &'a Stream,
    scale: Scale,
    counts: Counts,
}

/// Returns the access to a key with the fields that the policies read: filling in others would cost
/// a cache miss. `at` is the index of the request, or `None` for an ordered fetch.
#[inline]
fn access<P: Policy, const ADMITS: bool>(
    stream: &Stream,
    at: Option<usize>,
    key: u32,
    weight: u32,
) -> Access {
    let next_use = match (&stream.next_use, at) {
        (Some(next), Some(at)) if (P::INFO.next_uses || ADMITS) && next[at] != NEVER => {
            u64::from(next[at])
        }
        _ => Access::NEVER,
    };
    let writes = at.is_some_and(|at| stream.writes(at));
    Access {
        weight,
        position: if ADMITS { stream.numbers[key as usize] } else { 0 },
        direction: if writes { Direction::Write } else { Direction::Read },
        next_use,
        ..Access::new(mix(u64::from(key)))
    }
}

impl<P: Policy, W: SlotWeights, const ADMITS: bool> Cache<'_, P, W, ADMITS> {
    /// Returns the state of the admission policy; `None`, known to the compiler, without `ADMITS`.
    #[inline(always)]
    fn admission(&mut self) -> Option<&mut AdmissionState> {
        if ADMITS { self.admission.as_mut() } else { None }
    }

    #[inline(always)]
    fn access(&self, at: Option<usize>, key: u32, size: u64) -> Access {
        access::<P, ADMITS>(self.stream, at, key, self.scale.told(size))
    }

    /// Serves a request, and returns whether it hits.
    #[inline(always)]
    fn request(&mut self, at: usize, key: u32, size: u64, in_a_row: u64) -> bool {
        self.counts.bytes += size;
        if let Some(admission) = self.admission() {
            admission.size_of[key as usize] = size;
            admission.window.lookups += traffic(size);
        }
        let Some(slot) = self.owner.find(key) else {
            self.counts.missed_bytes += size;
            let access = Access { in_a_row, ..self.access(Some(at), key, size) };
            let admitted = !ADMITS || self.admits(&access, size);
            let admitted = admitted && self.insert(key, size, &access);
            self.counts.demanded += u64::from(admitted);
            return false;
        };
        self.counts.hits += 1;
        if ADMITS || P::INFO.next_uses {
            let access = Access { in_a_row, ..self.access(Some(at), key, self.owner.weight(slot)) };
            self.owner.hit(slot, &access);
            if let Some(admission) = self.admission() {
                admission.window.hits += traffic(size);
                if access.direction == Direction::Write {
                    admission.window.inserted += traffic(size);
                    admission.window.replaced += traffic(size);
                }
                admission.policy.used(&access);
            }
        } else {
            self.owner.access(slot);
        }
        true
    }

    /// Asks the admission policy about a key that is not cached.
    #[inline(always)]
    fn admits(&mut self, candidate: &Access, size: u64) -> bool {
        let Self { owner, admission: Some(admission), .. } = self else { return true };
        let asked = (admission.names_victims, admission.orders.hold);
        owner.admits(candidate, size, &mut admission.policy, asked, |key| mix(u64::from(key)))
    }

    /// Inserts a key that is not cached. Returns false for an object larger than the cache.
    #[inline(always)]
    fn insert(&mut self, key: u32, size: u64, candidate: &Access) -> bool {
        let Self { owner, admission, stream, scale, .. } = self;
        let slot = owner.insert_weighing(size, key, candidate, |_, victim, size| {
            if ADMITS && let Some(admission) = admission {
                admission
                    .evicted(&access::<P, ADMITS>(stream, None, victim, scale.told(size)), size);
            }
        });
        let is_inserted = slot.is_some();
        self.counts.inserted += u64::from(is_inserted);
        if let Some(admission) = self.admission().filter(|_| is_inserted) {
            admission.window.inserted += traffic(size);
        }
        is_inserted
    }

    /// Inserts an object by order of a policy, unless it is cached.
    fn fetch(&mut self, key: u32, size: u64, ahead: bool) {
        if self.owner.find(key).is_none() {
            let fetched = Access { ahead, ..self.access(None, key, size) };
            let is_inserted = self.insert(key, size, &fetched);
            // Without an admission policy, an object counts even if it is larger than the cache.
            self.counts.fetched += u64::from(is_inserted || !ADMITS);
        }
    }

    /// Deletes or resizes an object, if it is cached.
    #[cold]
    fn change(&mut self, change: &Change) {
        let Self { owner, admission, stream, scale, .. } = self;
        match (owner.find(change.key), change.size) {
            (None, _) => {}
            (Some(slot), None) => owner.remove(slot),
            (Some(slot), Some(size)) => {
                owner.reweigh(slot, size, scale.told(size), |_, victim, size| {
                    if ADMITS && let Some(admission) = admission {
                        let victim = access::<P, ADMITS>(stream, None, victim, scale.told(size));
                        admission.evicted(&victim, size);
                    }
                });
            }
        }
    }

    /// Reports the counts of a window to the admission policy, and carries out its orders.
    fn end_window(&mut self, now: Tick) {
        let Self { owner, admission: Some(admission), .. } = self else { return };
        admission.window.entries = owner.len() as u64;
        admission.policy.observe(&admission.window);
        admission.window = Window { times: admission.times, ..Window::default() };
        admission.policy.tick(now, &mut admission.orders);
        let fetches: Vec<(u32, u64)> = (admission.orders.fetch.iter())
            .map(|fetch| admission.key_of[&fetch.hash])
            .map(|key| (key, admission.size_of[key as usize]))
            .collect();
        fetches.into_iter().for_each(|(key, size)| self.fetch(key, size, false));
    }
}

fn traffic(bytes: u64) -> Traffic {
    Traffic { blocks: 1, bytes }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use floe_block::{AdmissionConfig, Config, WriteMode};
    use floe_trace::{GeneratorSpec, Kind, Request, Trace};

    use super::super::blocks::{self, Setup};
    use super::super::objects::{Latency, Run, SimulationResult, simulate};
    use super::super::stream::{Builder, Keep, Stream};

    fn stream(text: &str, sizes: bool) -> Stream {
        let spec: GeneratorSpec = text.parse().expect("the trace is well written");
        let mut builder = Builder::new(Kind::Key, Keep { rate: 1.0, sizes, next_use: true }, 4096);
        for request in Trace::generate(&spec).expect("the trace is possible") {
            let mut request = request.expect("a generated trace is well formed");
            if sizes {
                request.bytes = 1 + request.key % 7;
            }
            builder.add(&request).expect("there is room");
        }
        builder.finish().expect("there are requests")
    }

    fn run(policy: &str, admit: &str, stream: &Stream, size: u64) -> SimulationResult {
        let admit = floe_policy::admission::registry::choices(admit).expect("it is registered");
        let run = Run { policy: policy.parse().expect("it is registered"), size, admit };
        let latency = Latency { hit_us: 1.0, miss_us: 101.0, insert_us: 0.0 };
        simulate("trace", stream, &run, Some(latency), &AtomicU64::new(0))
    }

    fn plain(policy: &str, stream: &Stream, size: u64) -> SimulationResult {
        let policy = policy.parse().expect("it is registered");
        let run = Run { policy, size, admit: Vec::new() };
        simulate("trace", stream, &run, None, &AtomicU64::new(0))
    }

    #[test]
    fn who_admits_everything_changes_nothing() {
        for sizes in [false, true] {
            let stream =
                stream("scan:keys=2000,every=500,length=300,scanned=3000,requests=30000", sizes);
            for policy in ["lru", "s3-fifo", "sieve", "arc", "belady", "sarc", "w-tinylfu"] {
                let (with, without) =
                    (run(policy, "always", &stream, 400), plain(policy, &stream, 400));
                assert_eq!(
                    (with.hits, with.prefetches),
                    (without.hits, without.prefetches),
                    "{policy}"
                );
                assert_eq!(with.byte_miss_ratio, without.byte_miss_ratio, "{policy}");
                assert_eq!(with.inserted, Some(with.misses + with.prefetches), "{policy}");
                assert_eq!(without.inserted, None);
            }
        }
    }

    #[test]
    fn objects_of_one_size_are_admitted_as_those_that_are_counted() {
        const BYTES: u64 = 1000;
        let counted = stream("zipf:keys=5000,requests=60000", false);
        let mut weighed = counted.clone();
        weighed.sizes = Some(vec![BYTES; counted.keys.len()]);
        weighed.footprint *= BYTES;
        for policy in ["lru", "fifo", "sieve"] {
            for admit in ["second-access", "duel", "obp", "fussy", "probability", "until-full"] {
                let (by_count, by_bytes) =
                    (run(policy, admit, &counted, 500), run(policy, admit, &weighed, 500 * BYTES));
                assert_eq!(
                    (by_count.hits, by_count.inserted),
                    (by_bytes.hits, by_bytes.inserted),
                    "{policy} with {admit}"
                );
            }
        }
    }

    #[test]
    fn who_evicts_nothing_keeps_what_came_first() {
        let stream = stream("loop:keys=1000,requests=10000", false);
        assert_eq!(run("lru", "always", &stream, 500).hits, 0);
        let outcome = run("lru", "until-full", &stream, 500);
        assert_eq!((outcome.hits, outcome.inserted), (9 * 500, Some(500)));
    }

    #[test]
    fn an_insertion_costs_what_a_request_waits_for_it() {
        let stream = stream("zipf:keys=5000,requests=60000", false);
        let requests = stream.keys.len() as f64;
        let mean = |admit: &str, insert_us| {
            let choices = floe_policy::admission::registry::choices;
            let admit = match admit {
                "" => Vec::new(),
                admit => choices(admit).expect("it is registered"),
            };
            let run = Run { policy: "lru".parse().expect("it is registered"), size: 500, admit };
            let latency = Latency { hit_us: 1.0, miss_us: 101.0, insert_us };
            simulate("trace", &stream, &run, Some(latency), &AtomicU64::new(0))
        };
        for admit in ["", "always", "until-full", "fussy:tune=0"] {
            let (free, paid) = (mean(admit, 0.0), mean(admit, 10.0));
            assert_eq!(free.hits, paid.hits, "{admit}");
            let demanded = paid.inserted.map_or(paid.misses, |inserted| inserted - paid.prefetches);
            let added = paid.mean_latency_us.unwrap() - free.mean_latency_us.unwrap();
            let expected = 10.0 * demanded as f64 / requests;
            assert!((added - expected).abs() < 1e-9, "{admit}: {added} µs, not {expected}");
        }
        assert!(mean("fussy:tune=0", 0.0).prefetches > 0, "FussyCache fetches what is popular");
    }

    #[test]
    fn a_duel_keeps_what_is_popular_from_a_scan() {
        let stream =
            stream("scan:keys=2000,every=500,length=300,scanned=3000,requests=100000", false);
        for policy in ["lru", "fifo", "sieve"] {
            let (plain, duel) = (plain(policy, &stream, 400), run(policy, "duel", &stream, 400));
            assert!(duel.hits > plain.hits, "{policy}: {} {}", duel.hits, plain.hits);
        }
        for policy in floe_policy::registry::names() {
            let duel = run(policy, "duel", &stream, 400);
            assert!(duel.inserted < Some(duel.misses / 2 + duel.prefetches), "{policy}: {duel:?}");
        }
    }

    /// Tests the admission `duel` with policies that can name their victim, policies that make it
    /// pending, and the block cache.
    #[test]
    fn a_duel_admits_as_much_as_in_the_block_cache() {
        const BLOCK: u64 = 4096;
        let load = "zipf:keys=4000,theta=0.8,requests=60000";
        let requests: Vec<_> = (Trace::generate(&load.parse().expect("the trace is well written")))
            .expect("the trace is possible")
            .map(|request| request.expect("a generated trace is well formed"))
            .map(|request| Request { key: request.key * BLOCK, bytes: BLOCK, ..request })
            .collect();
        let stream = stream(load, false);
        for policy in ["arc", "lirs", "w-tinylfu", "lhd", "lru"] {
            let setup = Setup {
                cache: Config {
                    sizes: "4KiB".parse().expect("a size"),
                    cache_bytes: 400 * BLOCK,
                    mode: WriteMode::Back,
                    gate: AdmissionConfig::new("duel".parse().expect("it is registered")),
                    shards: Some(1),
                    evict: policy.parse().expect("it is registered"),
                    ..Config::default()
                },
                warmup: 0,
                interval: None,
                clean_every_ns: u64::MAX,
            };
            let blocks =
                blocks::simulate("trace", &requests, &setup).expect("the cache is possible");
            let objects = run(policy, "duel", &stream, 400);
            let (there, here) =
                (blocks.blocks_allocated as f64, objects.inserted.unwrap_or(0) as f64);
            assert!((there / here - 1.0).abs() < 0.2, "{policy}: {there} blocks, {here} objects");
            let (there, here) = (blocks.read_hits as f64, objects.hits as f64);
            assert!(
                (there / here - 1.0).abs() < 0.03,
                "{policy}: {there} hits of blocks, {here} of objects"
            );
        }
    }

    #[test]
    fn who_admits_nothing_hits_nothing() {
        let stream = stream("zipf:keys=100,requests=1000", false);
        let outcome = run("lru", "never", &stream, 50);
        assert_eq!(
            (outcome.hits, outcome.inserted, outcome.mean_latency_us),
            (0, Some(0), Some(101.0))
        );
        assert_eq!(outcome.policy, "lru with never");
    }

    #[test]
    fn obp_writes_a_tenth_of_what_is_looked_up() {
        let stream = stream("zipf:keys=20000,theta=0.8,requests=200000", false);
        let (eager, obp) =
            (plain("lru", &stream, 2000), run("lru", "obp:target=0.1:fill=0", &stream, 2000));
        let inserted = obp.inserted.expect("an admission was asked");
        // Each insertion into a full cache is a removal, too.
        assert!((9_000..=11_500).contains(&inserted), "{inserted}");
        assert!(
            eager.misses > 100_000 && obp.misses < eager.misses + 20_000,
            "{} {}",
            eager.misses,
            obp.misses
        );
    }

    #[test]
    fn fussy_fetches_what_is_popular_and_leaves_the_rest_out() {
        let stream = stream(
            "mix:requests=100000+zipf:keys=500,weight=1+uniform:keys=1000000,weight=1",
            false,
        );
        let (lru, fussy) = (plain("lru", &stream, 300), run("lru", "fussy", &stream, 300));
        assert!(fussy.prefetches > 0 && fussy.hits > lru.hits, "{fussy:?}");
    }
}
