//! A trace in the form that simulations need: keys are numbered densely once, so that every policy
//! and size runs over plain arrays.
//!
//! With a sampling rate below 1 only the requests of a random part of the keys are kept (SHARDS,
//! Waldspurger et al., FAST '15). A hash chooses the keys, so all requests of a key stay together,
//! and a cache of `rate` times the size sees `rate` of the misses.
//!
//! A deletion, and a request that gives an object another size, is a `Change` between two requests.
//! Loops stop at changes only, so that traces without any pay nothing for them.

use std::time::Duration;

use floe_policy::mix;
pub use floe_trace::NEVER;
use floe_trace::{Kind, Numbering, Op, Request};

use crate::interval::Interval;

/// Number of hash values, by which a sampling rate is scaled to a threshold.
const HASH_RANGE: f64 = 18_446_744_073_709_551_616.0; // 2^64

/// Salt of the hash that samples keys, which makes it independent of the hashes in policies.
const SAMPLE_SALT: u64 = 0x5eed_5a3b_1e00_0001;

/// Salt of the hash that divides keys into parts, which makes it independent of sampling and
/// policies.
const PART_SALT: u64 = 0x5eed_5a3b_1e00_0002;

/// The parts of a trace to keep.
#[derive(Debug, Clone, Copy)]
pub struct Keep {
    /// Share of keys to keep, above 0 and at most 1.
    pub rate: f64,
    /// True to keep the sizes of objects, for capacities in bytes.
    pub sizes: bool,
    /// True to keep the next use of each key, for Belady's policy.
    pub next_use: bool,
}

/// A trace in memory, or a sample of its keys.
#[derive(Debug, Clone, Default)]
pub struct Stream {
    /// The key of each request, from 0 to `distinct - 1` in order of appearance.
    pub keys: Vec<u32>,
    /// Number of distinct keys.
    pub distinct: usize,
    /// The trace's own number of each dense key.
    pub numbers: Vec<u64>,
    /// The size of each request's object in bytes; `None` where sizes are not kept.
    pub sizes: Option<Vec<u64>>,
    /// The largest object size in bytes.
    pub(super) largest: u64,
    /// Deletions and changes of size, in the order of the trace.
    pub(super) changes: Vec<Change>,
    /// The index of the next request for each request's key, or [`NEVER`]; `None` where next uses
    /// are not kept.
    pub next_use: Option<Vec<u32>>,
    /// Bitmap of the requests that write.
    writes: Vec<u64>,
    /// Number of requests of the whole trace, sampled or not. A disk request counts once per block.
    pub requests: u64,
    /// Number of requests of the whole trace. A disk request counts once, even for several blocks.
    pub trace_requests: u64,
    /// Bytes that the requests of the whole trace ask for; 0 where sizes are not kept.
    pub asked_bytes: u64,
    /// Number of requests at the start that warm the cache and are not counted; 0 in a sample.
    pub warmup: usize,
    /// Ends of all intervals; empty without a time series.
    pub(super) ends: Vec<End>,
    /// Share of the keys that was kept.
    pub rate: f64,
    /// Footprint of the trace as in `floe trace info`: bytes of all objects at their largest size,
    /// or the number of keys without sizes.
    pub footprint: u64,
}

/// Errors of making a stream from a trace.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum StreamError {
    /// The trace has more requests than 32-bit indices.
    #[error("the trace has more than {} requests or keys; sample it with --sample 0.01", u32::MAX)]
    TooLong,
    /// The trace has no requests, or sampling has left none.
    #[error("no request is left of the trace; a larger --sample or a wider --filter keeps more")]
    Empty,
}

/// Builds a stream from the requests of a trace, one at a time.
#[derive(Debug)]
pub struct Builder {
    keep: Keep,
    threshold: u64,
    numbering: Numbering,
    /// Index of the last request for each key, or [`NEVER`] if the key was deleted since. Empty
    /// unless next uses are kept.
    last_use: Vec<u32>,
    /// Last and largest size of each key in bytes. Empty unless sizes are kept.
    known: Vec<(u64, u64)>,
    stream: Stream,
    block_bytes: Option<u64>,
    /// Ends of the intervals of a time; `None` without such intervals.
    ends: Option<Ends>,
}

impl Builder {
    /// Creates a builder for a trace of a kind. Block traces are cut into blocks of `block_bytes`,
    /// each with its key.
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

    /// Divides the stream into intervals of equal time, by the trace's clock.
    pub fn by_time(mut self, every: Duration) -> Self {
        self.ends = Some(Ends::new(every));
        self
    }

    /// Adds a request of the trace. A deletion removes objects, on disks the blocks that it covers
    /// whole, and does not count as a request. A disk request without length is ignored.
    ///
    /// # Errors
    /// When the stream has too many requests.
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

    /// Returns the index of the next request.
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

    /// Returns the size of an object at request `at`, and notes a change of size. A read of 0
    /// bytes, as logs record for a miss, leaves the size unchanged.
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

    /// Returns the finished stream.
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
    /// Excludes the first `warmup` requests from the counts, and divides the others into intervals
    /// of `every` requests. With `None`, intervals of a time stay.
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

    /// Estimates the number of objects in a cache of this capacity, by the mean size of an object.
    pub fn objects_in(&self, capacity: u64) -> usize {
        let objects =
            u128::from(capacity) * self.distinct as u128 / u128::from(self.footprint.max(1));
        objects.clamp(1, self.distinct.max(1) as u128) as usize
    }

    /// Divides the stream into `parts` streams by a hash of the keys. Next uses keep their indices
    /// in the whole stream.
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

    /// Adds a request for a key that already has its dense number.
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

    /// Returns a stream of the requests at these indices, in this order. Next uses and changes of
    /// objects are left out, because they no longer hold.
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

/// A deletion or a change of size of an object, between two requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Change {
    /// Index of the request before which the change happens.
    pub(super) at: u32,
    pub(super) key: u32,
    /// New size of the object in bytes; `None` for a deletion.
    pub(super) size: Option<u64>,
}

/// The end of an interval of a time series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct End {
    /// Index of the first request after the interval.
    pub(super) at: usize,
    /// End of the interval in seconds since the beginning of the trace; `None` for intervals of a
    /// number of requests.
    pub(super) seconds: Option<f64>,
}

/// Finds the ends of intervals of equal time in a trace.
#[derive(Debug, Clone)]
pub(super) struct Ends {
    every_ns: u64,
    began_ns: Option<u64>,
    /// Number of whole intervals since the beginning of the trace.
    passed: u64,
    pub(super) found: Vec<End>,
}

impl Ends {
    pub(super) fn new(every: Duration) -> Self {
        let every_ns = u64::try_from(every.as_nanos()).unwrap_or(u64::MAX).max(1);
        Self { every_ns, began_ns: None, passed: 0, found: Vec::new() }
    }

    /// Notes the time of request `at`, and ends the current interval if the request is after it. A
    /// request with an earlier time than the one before belongs to the current interval.
    pub(super) fn note(&mut self, time_ns: u64, at: usize) {
        let since = time_ns.saturating_sub(*self.began_ns.get_or_insert(time_ns));
        let passed = since / self.every_ns;
        if passed > self.passed {
            self.end(at);
            self.passed = passed;
        }
    }

    /// Ends the current interval before request `at`.
    pub(super) fn end(&mut self, at: usize) {
        let seconds = (self.passed + 1) as f64 * self.every_ns as f64 / 1e9;
        self.found.push(End { at, seconds: Some(seconds) });
    }
}

/// Returns the ends of a trace's intervals, which begin after the first `warmup` requests.
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
