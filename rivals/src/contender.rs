//! Caches with their content, and the loops that ask them: made for each cache, so that its lookup
//! can be inlined.

use std::slice;

use crate::latency::{Histogram, timed};
use crate::subjects::{Cache, Fixed, Lookup};
use crate::workload::{BATCH, CHUNK, Keys, Load, Ops, Request};

const _: () = assert!(CHUNK.is_multiple_of(BATCH));

/// What came of some requests.
#[derive(Clone, Copy, Default)]
pub struct Counts {
    pub requests: u64,
    /// Requests that replaced a value: neither hits nor misses.
    pub writes: u64,
    pub hits: u64,
    /// Values read less values expected: 0, or a value was another key's.
    pub wrong: u64,
}

/// A cache with its content, ready for requests.
pub trait Contender: Send + Sync {
    /// Carries out requests one after the other.
    fn run(&self, ops: Ops, requests: &[Request], counts: &mut Counts);

    /// The same, with the time of each request counted.
    fn run_timed(
        &self,
        ops: Ops,
        requests: &[Request],
        counts: &mut Counts,
        latencies: &mut Histogram,
    );

    /// Entries it was made for.
    fn capacity(&self) -> usize;
}

struct Filled<T> {
    subject: T,
    capacity: usize,
}

#[inline]
fn reads(subject: &impl Lookup, requests: &[Request], counts: &mut Counts, absent: impl Fn(u64)) {
    for request in requests {
        let key = request.key();
        if let Some(value) = subject.get(key) {
            counts.hits += 1;
            counts.wrong = counts.wrong.wrapping_add(value.wrapping_sub(2 * key));
        } else {
            absent(key);
        }
    }
}

fn batches(subject: &impl Lookup, requests: &[Request], counts: &mut Counts) {
    let (batches, rest) = requests.as_chunks::<BATCH>();
    assert!(rest.is_empty(), "requests come in whole batches");
    for batch in batches {
        let keys = batch.map(Request::key);
        let (mut hits, mut read) = (0, 0u64);
        subject.get_many(&keys, |value| {
            hits += 1;
            read = read.wrapping_add(value);
        });
        counts.hits += hits;
        if hits == BATCH as u64 {
            counts.wrong =
                counts.wrong.wrapping_add(read.wrapping_sub(2 * keys.iter().sum::<u64>()));
        }
    }
}

fn writes(cache: &impl Cache, share: u32, requests: &[Request], counts: &mut Counts) {
    for request in requests {
        let key = request.key();
        if request.writes(share) {
            counts.writes += 1;
            cache.insert(key);
        } else if let Some(value) = cache.get(key) {
            counts.hits += 1;
            counts.wrong = counts.wrong.wrapping_add(value.wrapping_sub(2 * key));
        } else {
            cache.insert(key);
        }
    }
}

impl<C: Cache> Contender for Filled<C> {
    fn run(&self, ops: Ops, requests: &[Request], counts: &mut Counts) {
        counts.requests += requests.len() as u64;
        match ops {
            Ops::Read => reads(&self.subject, requests, counts, |key| self.subject.insert(key)),
            Ops::Write(share) => writes(&self.subject, share, requests, counts),
            Ops::Batch => batches(&self.subject, requests, counts),
        }
    }

    fn run_timed(
        &self,
        ops: Ops,
        requests: &[Request],
        counts: &mut Counts,
        latencies: &mut Histogram,
    ) {
        timed(requests, latencies, |request| self.run(ops, slice::from_ref(request), counts));
    }

    fn capacity(&self) -> usize {
        self.capacity
    }
}

struct ReadOnly<T>(T, usize);

impl<T: Fixed> Contender for ReadOnly<T> {
    fn run(&self, ops: Ops, requests: &[Request], counts: &mut Counts) {
        counts.requests += requests.len() as u64;
        match ops {
            Ops::Read => reads(&self.0, requests, counts, |_| {}),
            Ops::Batch => batches(&self.0, requests, counts),
            Ops::Write(_) => unreachable!("what is only read takes no part in rows that write"),
        }
    }

    fn run_timed(
        &self,
        ops: Ops,
        requests: &[Request],
        counts: &mut Counts,
        latencies: &mut Histogram,
    ) {
        timed(requests, latencies, |request| self.run(ops, slice::from_ref(request), counts));
    }

    fn capacity(&self) -> usize {
        self.1
    }
}

/// Fills a cache: with all keys when all requests are to hit, else with the most popular ones,
/// these last.
pub fn fill<C: Cache>(load: &Load, keys: &Keys) -> Box<dyn Contender> {
    let Some(capacity) = load.capacity else {
        return fill_all::<C>(load.keys);
    };
    fill_to::<C>(capacity, keys)
}

fn fill_to<C: Cache>(capacity: usize, keys: &Keys) -> Box<dyn Contender> {
    let subject = C::new(capacity);
    for &key in keys.ranked[..capacity].iter().rev() {
        subject.insert(key.into());
    }
    subject.settle();
    Box::new(Filled { subject, capacity })
}

/// Doubles the capacity until the cache hits at least as often as the cache `R` with the capacity
/// of the load: for a cache that rounds up to powers of two this is the least that suffices.
pub fn fill_to_hits_of<R: Cache, C: Cache>(load: &Load, keys: &Keys) -> Box<dyn Contender> {
    let stream = &keys.streams[0];
    let aim = hit_ratio(&*fill::<R>(load, keys), stream);
    let mut capacity = load.capacity.expect("such a cache takes part where there are misses");
    loop {
        let contender = fill_to::<C>(capacity, keys);
        if capacity == load.keys || hit_ratio(&*contender, stream) >= aim {
            return contender;
        }
        capacity = load.keys.min(2 * capacity);
    }
}

/// The share of hits in the second half of a stream that one thread asks for, the same for every
/// cache; the first half makes it steady.
pub fn hit_ratio(contender: &dyn Contender, stream: &[Request]) -> f64 {
    let (first, second) = stream.split_at(stream.len() / 2);
    contender.run(Ops::Read, first, &mut Counts::default());
    let mut counts = Counts::default();
    contender.run(Ops::Read, second, &mut counts);
    counts.hits as f64 / counts.requests as f64
}

/// Shards are not equally full, so there is room to spare: twice the number of keys, more when that
/// does not hold them.
fn fill_all<C: Cache>(keys: usize) -> Box<dyn Contender> {
    let mut capacity = 2 * keys;
    loop {
        let subject = C::new(capacity);
        (0..keys as u64).for_each(|key| subject.insert(key));
        subject.settle();
        if (0..keys as u64).all(|key| subject.get(key).is_some()) {
            return Box::new(Filled { subject, capacity });
        }
        capacity *= 2;
    }
}

pub fn fixed<T: Fixed>(load: &Load, _: &Keys) -> Box<dyn Contender> {
    Box::new(ReadOnly(T::new(load.keys), load.keys))
}
