//! Simulates policies over a trace behind an admission, and counts writes to the cache.
//!
//! As [`super::objects`], with a question before each insertion, so in a loop of its own: the other
//! one is what speed is measured on. The admission is told counts every [`WINDOW_REQUESTS`]
//! requests, and what it orders to be fetched is there at once. A write is served as a read is;
//! where it hits, it overwrites, which the admission sees as an insertion.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use floe_policy::admission::{Admission, Admissions, Fetch, Orders, Room, Times, Traffic, Window};
use floe_policy::owner::{DenseIndex, SlotOwner};
use floe_policy::registry::Visitor;
use floe_policy::{Access, Direction, Policy, Tick, mix};

use super::changes::{Change, Scale};
use super::intervals::{Seen, SimulatedInterval, Watch};
use super::latency::Latency;
use super::positions::Positions;
use super::stream::{NEVER, Stream};

/// Requests between two windows: divides the 200 between checks of FussyCache, so that these come
/// when they are due.
pub(super) const WINDOW_REQUESTS: usize = 100;

/// The counts of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Requests that found their object.
    pub(super) hits: u64,
    /// Bytes asked for, or requests where objects have no sizes.
    pub(super) bytes: u64,
    /// Bytes of requests that did not.
    pub(super) missed_bytes: u64,
    /// Objects put in, by requests and by orders.
    pub(super) inserted: u64,
    /// Those put in because it was ordered: by the admission, or as a prefetch by the policy.
    pub(super) fetched: u64,
    /// Bytes of memory held by the policy and the admission.
    pub(super) policy_bytes: usize,
    /// The most objects held.
    pub(super) most_objects: usize,
}

impl Counts {
    fn seen(&self) -> Seen {
        let Self { hits, bytes, missed_bytes, inserted, .. } = *self;
        Seen { hits, bytes, missed_bytes, inserted: Some(inserted) }
    }
}

/// One policy at one size behind one admission; made by [`super::objects::simulate`].
pub(super) struct Simulation<'a> {
    pub(super) stream: &'a Stream,
    pub(super) capacity: u64,
    pub(super) scale: Scale,
    pub(super) admission: Admissions,
    pub(super) latency: Option<Latency>,
    pub(super) progress: &'a AtomicU64,
}

impl Visitor for Simulation<'_> {
    type Out = (Counts, Vec<SimulatedInterval>);

    fn visit<P: Policy>(self, make: impl Fn() -> P + Send + Sync) -> Self::Out {
        let distinct = self.stream.distinct;
        let entries = self.stream.objects_in(self.capacity);
        // Objects of size 1 are as many as fit; the number of others shows later.
        let slots = if self.stream.sizes.is_none() { entries } else { 0 };
        let mut admission = self.admission;
        admission.reserve(&Room { entries, weight: self.scale.room(self.capacity), above: 0 });
        let times = self.latency.map_or(Times::default(), |latency| Times {
            hit_ns: Some(latency.hit_us * 1e3),
            backing_read_ns: Some(latency.miss_us * 1e3),
            backing_write_ns: Some(latency.miss_us * 1e3),
            insert_ns: Some(latency.insert_us * 1e3),
            ..Times::default()
        });
        let mut cache = Cache {
            owner: SlotOwner::new(make(), DenseIndex::new(distinct), self.capacity, slots),
            names_victims: admission.needs().victims,
            admission,
            stream: self.stream,
            size_of: vec![0; distinct],
            scale: self.scale,
            last_size: 1,
            counts: Counts::default(),
            window: Window { times, ..Window::default() },
            orders: Orders::default(),
        };
        self.scale.set_capacity(cache.owner.policy_mut(), self.capacity);
        cache.admission.tick(Tick(0), &mut cache.orders);
        let needs = cache.admission.needs();
        let mut positions =
            Positions::of(self.stream, cache.owner.policy()).followed_if(needs.streams);
        let key_of: HashMap<u64, u32> =
            (0..distinct as u32).map(|key| (mix(u64::from(key)), key)).collect();
        let mut watch = Watch::new(self.stream.warmup, &self.stream.ends, &self.stream.changes);
        for (at, &key) in self.stream.keys.iter().enumerate() {
            if at == watch.next {
                while let Some(change) = watch.change(at) {
                    cache.change(change);
                }
                if watch.turn(at, cache.counts.seen()) {
                    cache.counts = Counts::default();
                }
            }
            cache.request(at, key, positions.follow(key));
            if P::INFO.streams {
                positions.ahead().for_each(|key| cache.fetch(key, cache.last_size, true));
            }
            if (at + 1).is_multiple_of(WINDOW_REQUESTS) {
                cache.window.entries = cache.owner.len() as u64;
                cache.admission.observe(&cache.window);
                cache.window = Window { times, ..Window::default() };
                let mut orders = std::mem::take(&mut cache.orders);
                cache.admission.tick(Tick(at as u64), &mut orders);
                for Fetch { hash, .. } in &orders.fetch {
                    let key = key_of[hash];
                    cache.fetch(key, cache.size_of[key as usize], false);
                }
                cache.orders = orders;
                self.progress.fetch_add(WINDOW_REQUESTS as u64, Relaxed); // only a number to show
            }
        }
        let policy_bytes = cache.owner.memory_bytes() + cache.admission.memory_bytes();
        let series = watch.finish(cache.counts.seen());
        (Counts { policy_bytes, most_objects: cache.owner.most(), ..cache.counts }, series)
    }
}

/// A cache of objects, with sizes or not, that asks an admission about each miss.
struct Cache<'a, P> {
    owner: SlotOwner<P, DenseIndex, Vec<u64>>,
    scale: Scale,
    /// True if the admission needs the victim of each insertion.
    names_victims: bool,
    admission: Admissions,
    stream: &'a Stream,
    /// The size of each key when it was last asked for, 0 before; and that of the last request.
    size_of: Vec<u64>,
    last_size: u64,
    counts: Counts,
    window: Window,
    /// The last.
    orders: Orders,
}

/// The access to a key; `at` is the request, if it is one.
fn access(stream: &Stream, at: Option<usize>, key: u32, weight: u32) -> Access {
    let next_use = at.and_then(|at| stream.next_use.as_ref().map(|next| next[at]));
    let writes = at.is_some_and(|at| stream.writes(at));
    Access {
        weight,
        position: stream.numbers[key as usize],
        direction: if writes { Direction::Write } else { Direction::Read },
        next_use: next_use.filter(|&next| next != NEVER).map_or(Access::NEVER, u64::from),
        ..Access::new(mix(u64::from(key)))
    }
}

impl<P: Policy> Cache<'_, P> {
    fn request(&mut self, at: usize, key: u32, in_a_row: u64) {
        let size = self.stream.sizes.as_ref().map_or(1, |sizes| sizes[at]);
        (self.size_of[key as usize], self.last_size) = (size, size);
        self.counts.bytes += size;
        self.window.lookups += traffic(size);
        if let Some(slot) = self.owner.find(key) {
            self.counts.hits += 1;
            self.window.hits += traffic(size);
            let weight = self.scale.told(self.owner.weight(slot));
            let access = Access { in_a_row, ..access(self.stream, Some(at), key, weight) };
            if access.direction == Direction::Write {
                self.window.inserted += traffic(size);
                self.window.replaced += traffic(size);
            }
            self.owner.hit(slot, &access);
            self.admission.used(&access);
        } else {
            self.counts.missed_bytes += size;
            let told = self.scale.told(size);
            let access = Access { in_a_row, ..access(self.stream, Some(at), key, told) };
            let asked = (self.names_victims, self.orders.hold);
            let hash = |key| mix(u64::from(key));
            if self.owner.admits(&access, size, &mut self.admission, asked, hash) {
                self.insert(key, size, &access);
            }
        }
    }

    /// Inserts an object that was ordered, unless it is held.
    fn fetch(&mut self, key: u32, size: u64, ahead: bool) {
        if self.owner.find(key).is_none() {
            let fetched = Access { ahead, ..access(self.stream, None, key, self.scale.told(size)) };
            self.counts.fetched += u64::from(self.insert(key, size, &fetched));
        }
    }

    /// Deletes an object or gives it another size.
    fn change(&mut self, change: &Change) {
        let Self { owner, admission, window, scale, stream, .. } = self;
        scale.apply(change, owner, |_, victim, size| {
            window.removed += traffic(size);
            admission.evicted(&access(stream, None, victim, scale.told(size)));
        });
    }

    /// Inserts a key that is not held; false for an object larger than the cache.
    fn insert(&mut self, key: u32, size: u64, candidate: &Access) -> bool {
        let slot = self.owner.insert_weighing(size, key, candidate, |_, victim, size| {
            self.window.removed += traffic(size);
            let told = self.scale.told(size);
            self.admission.evicted(&access(self.stream, None, victim, told));
        });
        if slot.is_some() {
            self.counts.inserted += 1;
            self.window.inserted += traffic(size);
        }
        slot.is_some()
    }
}

fn traffic(bytes: u64) -> Traffic {
    Traffic { blocks: 1, bytes }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use floe_block::{Config, Gate, WriteMode};
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

    /// Some policies can say their victim, others make it pending; the block cache asks none.
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
                    gate: Gate::new("duel".parse().expect("it is registered")),
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
