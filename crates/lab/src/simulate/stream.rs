//! A trace as a simulator wants it: keys made dense once, so that every policy and size runs over
//! plain arrays.
//!
//! With a sampling rate below 1 only the requests of a random part of the keys are kept (SHARDS,
//! Waldspurger et al., FAST '15): which keys is decided by a hash, so all requests of a key stay
//! together, and a cache of `rate` times the size sees `rate` of the misses.
//!
//! A deletion, and a request that gives an object another size, is a `Change` between two
//! requests: loops stop there only, so that traces without any pay nothing for it.

use std::time::Duration;

use floe_policy::mix;
pub use floe_trace::NEVER;
use floe_trace::{Kind, Numbering, Op, Request};

use crate::interval::Interval;

/// Scales a hash to the share of keys below it.
const HASH_RANGE: f64 = 18_446_744_073_709_551_616.0; // 2^64

/// A change of the hash, so that which keys are sampled does not depend on what policies hash.
const SAMPLE_SALT: u64 = 0x5eed_5a3b_1e00_0001;

/// Another, so that which part a key falls into does not depend on either.
const PART_SALT: u64 = 0x5eed_5a3b_1e00_0002;

/// The parts of a trace to keep.
#[derive(Debug, Clone, Copy)]
pub struct Keep {
    /// Share of keys, above 0 and at most 1.
    pub rate: f64,
    /// Sizes of objects, for sizes in bytes.
    pub sizes: bool,
    /// When each key comes back, for Belady.
    pub next_use: bool,
}

/// A trace in memory.
#[derive(Debug, Clone, Default)]
pub struct Stream {
    /// The key of each request, from 0 to `distinct - 1` in order of appearance.
    pub keys: Vec<u32>,
    /// The number of distinct keys.
    pub distinct: usize,
    /// The number of each dense key in the trace.
    pub numbers: Vec<u64>,
    /// The size of each request's object in bytes, where sizes are kept.
    pub sizes: Option<Vec<u64>>,
    /// The largest of these sizes.
    pub(super) largest: u64,
    /// Deletions and new sizes, in the order of the trace.
    pub(super) changes: Vec<Change>,
    /// The request at which each request's key comes back, or [`NEVER`], where that is kept.
    pub next_use: Option<Vec<u32>>,
    /// The requests that write, one bit each.
    writes: Vec<u64>,
    /// Requests of the whole trace, sampled or not; of disk I/O, one for each block.
    pub requests: u64,
    /// The same, with a request for several blocks as one.
    pub trace_requests: u64,
    /// Bytes that they ask for, where sizes are kept.
    pub asked_bytes: u64,
    /// Requests at the start that fill the cache and are not counted; 0 in a sample.
    pub warmup: usize,
    /// The ends of intervals, the last one's too; none where no series is wanted.
    pub(super) ends: Vec<End>,
    /// Share of keys kept.
    pub rate: f64,
    /// Bytes in the distinct objects at the largest size each was seen with, or the number of keys
    /// without sizes: the footprint of `floe trace info`.
    pub footprint: u64,
}

/// Why a trace cannot be made a stream.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum StreamError {
    /// More requests than numbers for them.
    #[error("the trace has more than {} requests or keys; sample it with --sample 0.01", u32::MAX)]
    TooLong,
    /// Nothing is left.
    #[error("no request is left of the trace; a larger --sample or a wider --filter keeps more")]
    Empty,
}

/// Makes a stream of requests, one at a time.
#[derive(Debug)]
pub struct Builder {
    keep: Keep,
    threshold: u64,
    numbering: Numbering,
    /// The last request of each key, unless it was deleted since; kept with `next_use`.
    last_use: Vec<u32>,
    /// The last and the largest size of each key; kept with `sizes`.
    known: Vec<(u64, u64)>,
    stream: Stream,
    block_bytes: Option<u64>,
    /// Those of a time, where wanted.
    ends: Option<Ends>,
}

impl Builder {
    /// A builder for a trace of a kind. Block traces become keys of `block_bytes` each.
    pub fn new(kind: Kind, keep: Keep, block_bytes: u64) -> Self {
        let threshold = if keep.rate >= 1.0 { u64::MAX } else { (keep.rate * HASH_RANGE) as u64 };
        let stream = Stream {
            sizes: keep.sizes.then(Vec::new),
            next_use: keep.next_use.then(Vec::new),
            rate: keep.rate.min(1.0),
            ..Stream::default()
        };
        let block_bytes = (kind == Kind::Block).then_some(block_bytes);
        Self {
            keep,
            threshold,
            numbering: Numbering::new(),
            last_use: Vec::new(),
            known: Vec::new(),
            stream,
            block_bytes,
            ends: None,
        }
    }

    /// Divides the stream into intervals of a time, by the trace's clock.
    pub fn by_time(mut self, every: Duration) -> Self {
        self.ends = Some(Ends::new(every));
        self
    }

    /// Takes in a request of the trace. A deletion takes objects out, and counts as no request; one
    /// of disk I/O those blocks that it covers whole. Disk I/O without length touches nothing.
    ///
    /// # Errors
    /// When there are too many.
    #[inline]
    pub fn add(&mut self, request: &Request) -> Result<(), StreamError> {
        if request.op == Op::Delete {
            return self.delete(request);
        }
        if self.block_bytes.is_some() && request.bytes == 0 {
            return Ok(());
        }
        if let Some(ends) = &mut self.ends {
            ends.note(request.time_ns, self.stream.keys.len());
        }
        self.stream.trace_requests += 1;
        let writes = request.op == Op::Write;
        let Some(block_bytes) = self.block_bytes else {
            return self.add_key(0, request.key, request.bytes, writes);
        };
        let first = request.key / block_bytes;
        let last = (request.key + request.bytes - 1) / block_bytes;
        (first..=last)
            .try_for_each(|block| self.add_key(request.volume, block, block_bytes, writes))
    }

    #[cold]
    fn delete(&mut self, request: &Request) -> Result<(), StreamError> {
        let (volume, keys) = match self.block_bytes {
            None => (0, request.key..=request.key),
            Some(block_bytes) => match floe_trace::covered_blocks(request, block_bytes) {
                Some(blocks) => (request.volume, blocks),
                None => return Ok(()),
            },
        };
        let at = self.next_request()?;
        for key in keys.filter_map(|key| self.numbering.find(volume, key)) {
            self.stream.changes.push(Change { at, key, size: None });
            if let Some(last_use) = self.last_use.get_mut(key as usize) {
                *last_use = NEVER;
            }
        }
        Ok(())
    }

    /// The number of the request that comes next.
    fn next_request(&self) -> Result<u32, StreamError> {
        u32::try_from(self.stream.keys.len())
            .ok()
            .filter(|at| *at != NEVER)
            .ok_or(StreamError::TooLong)
    }

    #[inline]
    fn add_key(
        &mut self,
        volume: u32,
        number: u64,
        bytes: u64,
        writes: bool,
    ) -> Result<(), StreamError> {
        self.stream.requests += 1;
        let salted = || number ^ u64::from(volume).rotate_right(16) ^ SAMPLE_SALT;
        if self.threshold != u64::MAX && mix(salted()) > self.threshold {
            // The size that a read does not tell is known of sampled keys only.
            self.stream.asked_bytes += if self.keep.sizes { bytes } else { 0 };
            return Ok(());
        }
        let at = self.next_request()?;
        let fresh = self.stream.numbers.len() as u32;
        let key = self.numbering.number(volume, number).ok_or(StreamError::TooLong)?;
        if key == fresh {
            self.stream.numbers.push(number);
            self.stream.footprint += u64::from(!self.keep.sizes);
        }
        let size = if self.keep.sizes { self.size(at, key, bytes, writes) } else { 1 };
        self.stream.push(key, Some(size), Some(NEVER), writes);
        if let Some(next_use) = &mut self.stream.next_use {
            if key == fresh {
                self.last_use.push(at);
            } else {
                let before = std::mem::replace(&mut self.last_use[key as usize], at);
                if let Some(next_use) = next_use.get_mut(before as usize) {
                    *next_use = at;
                }
            }
        }
        Ok(())
    }

    /// The size of the object of request `at`. A read of nothing, as logs have it for a miss, does
    /// not tell it: the object has the size it had.
    fn size(&mut self, at: u32, key: u32, bytes: u64, writes: bool) -> u64 {
        let stream = &mut self.stream;
        let (last, largest) = match self.known.get_mut(key as usize) {
            Some(known) => known,
            None => {
                self.known.push((bytes, 0));
                self.known.last_mut().expect("it was just pushed")
            }
        };
        if bytes != *last && (bytes > 0 || writes) {
            stream.changes.push(Change { at: at + 1, key, size: Some(bytes) });
            *last = bytes;
        }
        stream.footprint += last.saturating_sub(*largest);
        *largest = (*largest).max(*last);
        stream.largest = stream.largest.max(*last);
        stream.asked_bytes += *last;
        *last
    }

    /// The stream.
    ///
    /// # Errors
    /// When no request is left.
    pub fn finish(mut self) -> Result<Stream, StreamError> {
        self.stream.distinct = self.stream.numbers.len();
        if let Some(mut ends) = self.ends {
            ends.end(self.stream.keys.len());
            self.stream.ends = ends.found;
        }
        if self.stream.keys.is_empty() { Err(StreamError::Empty) } else { Ok(self.stream) }
    }
}

impl Stream {
    /// Does not count so many requests at the start, and divides the others into intervals of so
    /// many; `None` leaves those of a time.
    pub fn count_from(&mut self, warmup: usize, every: Option<u64>) {
        self.warmup = warmup;
        self.ends.retain(|end| end.at > warmup);
        if let Some(every) = every {
            let times = self.keys.iter().map(|_| 0);
            self.ends = ends(times, warmup, Interval::Requests(every));
        }
    }

    /// Returns whether a request writes.
    #[inline]
    pub fn writes(&self, request: usize) -> bool {
        self.writes[request / 64] >> (request % 64) & 1 == 1
    }

    /// About how many objects fit into a cache that holds so much: what it holds by the size of an
    /// object in the mean.
    pub fn objects_in(&self, capacity: u64) -> usize {
        let objects =
            u128::from(capacity) * self.distinct as u128 / u128::from(self.footprint.max(1));
        objects.clamp(1, self.distinct.max(1) as u128) as usize
    }

    /// The stream in so many parts, each with all requests of the keys that a hash gives it. Times
    /// of next use stay as they are.
    pub(super) fn parted(&self, parts: u64) -> Vec<Self> {
        let part_of = |key: u32| (mix(u64::from(key) ^ PART_SALT) % parts) as usize;
        let empty = Self {
            keys: Vec::new(),
            changes: Vec::new(),
            distinct: 0,
            numbers: Vec::new(),
            sizes: self.sizes.as_ref().map(|_| Vec::new()),
            next_use: self.next_use.as_ref().map(|_| Vec::new()),
            writes: Vec::new(),
            ends: Vec::new(),
            footprint: 0,
            ..*self
        };
        let mut streams = vec![empty; parts as usize];
        let mut dense = vec![u32::MAX; self.distinct];
        let mut changes = self.changes.iter().peekable();
        for (at, &key) in self.keys.iter().enumerate() {
            while let Some(change) = changes.next_if(|change| change.at as usize == at) {
                let stream = &mut streams[part_of(change.key)];
                let (at, key) = (stream.keys.len() as u32, dense[change.key as usize]);
                stream.changes.push(Change { at, key, ..*change });
            }
            let stream = &mut streams[part_of(key)];
            let size = self.sizes.as_ref().map(|sizes| sizes[at]);
            let new = &mut dense[key as usize];
            if *new == u32::MAX {
                *new = stream.distinct as u32;
                stream.distinct += 1;
                stream.numbers.push(self.numbers[key as usize]);
                stream.footprint += size.unwrap_or(1);
            }
            stream.push(*new, size, self.next_use.as_ref().map(|next| next[at]), self.writes(at));
        }
        streams
    }

    /// Adds a request for a key that has its number.
    fn push(&mut self, key: u32, size: Option<u64>, next_use: Option<u32>, writes: bool) {
        let at = self.keys.len();
        self.keys.push(key);
        if let (Some(sizes), Some(size)) = (&mut self.sizes, size) {
            sizes.push(size);
        }
        if let (Some(uses), Some(next)) = (&mut self.next_use, next_use) {
            uses.push(next);
        }
        if at.is_multiple_of(64) {
            self.writes.push(0);
        }
        self.writes[at / 64] |= u64::from(writes) << (at % 64);
    }

    /// The requests at these places, in this order. Next uses, deletions and new sizes are left
    /// out: they would be others.
    pub fn rearranged(&self, places: impl ExactSizeIterator<Item = usize> + Clone) -> Self {
        let mut writes = vec![0; places.len().div_ceil(64)];
        for (at, _) in places.clone().enumerate().filter(|&(_, place)| self.writes(place)) {
            writes[at / 64] |= 1 << (at % 64);
        }
        Self {
            keys: places.clone().map(|place| self.keys[place]).collect(),
            numbers: self.numbers.clone(),
            sizes: self
                .sizes
                .as_ref()
                .map(|sizes| places.clone().map(|place| sizes[place]).collect()),
            next_use: None,
            changes: Vec::new(),
            writes,
            ends: Vec::new(),
            requests: places.len() as u64,
            ..*self
        }
    }
}

/// A change of an object between two requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Change {
    /// The request before which it happens.
    pub(super) at: u32,
    pub(super) key: u32,
    /// Its new size in bytes; `None` if it is deleted.
    pub(super) size: Option<u64>,
}

/// The end of an interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct End {
    /// The first request that is not in it.
    pub(super) at: usize,
    /// The trace's time.
    pub(super) seconds: Option<f64>,
}

/// Finds the ends of intervals of a time in a trace's requests.
#[derive(Debug, Clone)]
pub(super) struct Ends {
    every_ns: u64,
    began_ns: Option<u64>,
    /// Whole intervals since the trace's begin.
    passed: u64,
    pub(super) found: Vec<End>,
}

impl Ends {
    pub(super) fn new(every: Duration) -> Self {
        let every_ns = u64::try_from(every.as_nanos()).unwrap_or(u64::MAX).max(1);
        Self { every_ns, began_ns: None, passed: 0, found: Vec::new() }
    }

    /// Takes in the time of a request that is the first after `at` others. One that goes back
    /// belongs to the interval under way.
    pub(super) fn note(&mut self, time_ns: u64, at: usize) {
        let since = time_ns.saturating_sub(*self.began_ns.get_or_insert(time_ns));
        let passed = since / self.every_ns;
        if passed > self.passed {
            self.end(at);
            self.passed = passed;
        }
    }

    /// Ends the interval under way before request `at`.
    pub(super) fn end(&mut self, at: usize) {
        let seconds = (self.passed + 1) as f64 * self.every_ns as f64 / 1e9;
        self.found.push(End { at, seconds: Some(seconds) });
    }
}

/// Returns the ends of a trace's intervals, of which the first `warmup` requests have none.
pub(super) fn ends(
    times_ns: impl ExactSizeIterator<Item = u64>,
    warmup: usize,
    interval: Interval,
) -> Vec<End> {
    let requests = times_ns.len();
    match interval {
        Interval::Requests(every) => {
            let every = usize::try_from(every).unwrap_or(usize::MAX).max(1);
            let whole = (requests - warmup).div_ceil(every);
            let at = |number: usize| requests.min(warmup.saturating_add(number * every));
            (1..=whole).map(|number| End { at: at(number), seconds: None }).collect()
        }
        Interval::Time(every) => {
            let mut ends = Ends::new(every);
            times_ns.enumerate().for_each(|(at, time_ns)| ends.note(time_ns, at));
            ends.end(requests);
            ends.found.retain(|end| end.at > warmup);
            ends.found
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(keys: &[u64], keep: Keep) -> Stream {
        let mut builder = Builder::new(Kind::Key, keep, 4096);
        for &key in keys {
            builder.add(&Request { time_ns: 0, key, bytes: 1, volume: 0, op: Op::Read }).unwrap();
        }
        builder.finish().unwrap()
    }

    #[test]
    fn keys_become_dense_and_know_when_they_come_back() {
        let stream = stream(&[70, 5, 70, 9, 5], Keep { rate: 1.0, sizes: false, next_use: true });
        assert_eq!(stream.keys, [0, 1, 0, 2, 1]);
        assert_eq!(stream.numbers, [70, 5, 9]);
        assert_eq!(stream.next_use.unwrap(), [2, 4, NEVER, NEVER, NEVER]);
        assert_eq!((stream.distinct, stream.footprint, stream.requests), (3, 3, 5));
    }

    #[test]
    fn requests_can_be_rearranged() {
        let mut builder =
            Builder::new(Kind::Key, Keep { rate: 1.0, sizes: true, next_use: true }, 4096);
        for (key, op) in [(7, Op::Write), (9, Op::Read), (7, Op::Read)] {
            builder.add(&Request { time_ns: 0, key, bytes: key, volume: 0, op }).unwrap();
        }
        let stream = builder.finish().unwrap().rearranged([1, 0, 2, 0].into_iter());
        assert_eq!(stream.keys, [1, 0, 0, 0]);
        assert_eq!(stream.sizes.as_deref(), Some(&[9, 7, 7, 7][..]));
        let writes: Vec<bool> = (0..4).map(|at| stream.writes(at)).collect();
        assert_eq!(writes, [false, true, false, true]);
        assert_eq!(
            (stream.distinct, stream.requests, stream.footprint, stream.next_use),
            (2, 4, 16, None)
        );
    }

    #[test]
    fn a_sample_keeps_all_requests_of_a_share_of_the_keys() {
        let keys: Vec<u64> = (0..40_000).map(|at| at % 10_000).collect();
        let stream = stream(&keys, Keep { rate: 0.1, sizes: false, next_use: false });
        assert_eq!(stream.requests, 40_000);
        assert_eq!(stream.keys.len(), 4 * stream.distinct);
        assert!((900..1100).contains(&stream.distinct), "{}", stream.distinct);
    }

    #[test]
    fn a_block_request_becomes_the_blocks_it_touches() {
        let mut builder =
            Builder::new(Kind::Block, Keep { rate: 1.0, sizes: false, next_use: false }, 4096);
        builder
            .add(&Request { time_ns: 0, key: 4000, bytes: 8192, volume: 0, op: Op::Write })
            .unwrap();
        builder.add(&Request { time_ns: 0, key: 8192, bytes: 1, volume: 0, op: Op::Read }).unwrap();
        let stream = builder.finish().unwrap();
        assert_eq!(stream.keys, [0, 1, 2, 2]);
        assert_eq!(
            (0..4).map(|at| stream.writes(at)).collect::<Vec<_>>(),
            [true, true, true, false]
        );
    }
}

#[cfg(test)]
mod intervals_tests {
    use super::*;

    fn found(times_s: &[u64], warmup: usize, interval: Interval) -> Vec<(usize, Option<f64>)> {
        let times_ns = times_s.iter().map(|second| second * 1_000_000_000);
        ends(times_ns, warmup, interval).iter().map(|end| (end.at, end.seconds)).collect()
    }

    #[test]
    fn intervals_of_requests_begin_after_warm_up_and_the_last_is_what_is_left() {
        let of = |warmup| found(&[0; 10], warmup, Interval::Requests(4));
        assert_eq!(of(0), [(4, None), (8, None), (10, None)]);
        assert_eq!(of(2), [(6, None), (10, None)]);
    }

    #[test]
    fn intervals_of_a_time_begin_with_the_trace_and_none_is_empty() {
        let minute = Interval::Time(Duration::from_secs(60));
        let times = [1000, 1059, 1060, 1061, 1030, 1400, 1401];
        let expected = [(2, Some(60.0)), (5, Some(120.0)), (7, Some(420.0))];
        assert_eq!(found(&times, 0, minute), expected);
        assert_eq!(found(&times, 2, minute), expected[1..]);
    }
}
