//! [`SimulatedBucket`]: a volume in a bucket in virtual time, with the requests that it costs.
//!
//! The volume is that of `s3://BUCKET/PREFIX` (`floe_device`): a read is a GET for each object. A
//! write of part of an object reads the object, unless it is among the last ones put, and puts it;
//! writes that arrive during the read share the put. A flush costs nothing. All objects are taken
//! to be there at the start, as those of a volume that has data.
//!
//! The time of a request is an estimate, that of usual reports about S3: 30 ms to the first byte
//! and 75 MB/s a connection. No store was measured for it.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use std::time::Instant;

use floe_device::medium::{Direction, Medium, Model, Path, Timing};
use floe_device::{Action, Completion, Device, MEDIUM_SEED, MemoryDevice, Operation};
use serde::Serialize;

use super::virtual_clock::VirtualClock;

/// The requests of a connection: estimates, but for the number of requests in a second, which
/// Amazon's documentation gives for a prefix. A server has at most 64 requests under way.
const REQUESTS: Medium = Medium {
    name: "s3",
    description: "object storage (S3): 30 ms reads, 50 ms writes, 75 MB/s a connection",
    read: Path {
        median_ns: 30e6,
        p99_ns: 100e6,
        bytes_per_second: 1.25e9,
        operations_per_second: 5500.0,
    },
    write: Path {
        median_ns: 50e6,
        p99_ns: 150e6,
        bytes_per_second: 1.25e9,
        operations_per_second: 3500.0,
    },
    flush_ns: 0.0,
    servers: 64,
    half_duplex: false,
    interference: &[],
    timing: Timing::Latency,
};

/// Bytes a second of a connection.
const CONNECTION_BYTES_PER_SECOND: f64 = 75e6;

/// Bytes of the objects that were put last, which a write does not read again.
const RECENT_BYTES: u64 = 32 << 20;

/// Memory in bytes for objects that are being written, and the bounds of their number.
const WRITING_BYTES: u64 = 64 << 20;
const WRITERS: std::ops::RangeInclusive<u64> = 4..=48;

/// Requests to a bucket, and the bytes that they moved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct BucketRequests {
    /// Requests for bytes or metadata of an object: GET and HEAD.
    pub gets: u64,
    /// Requests that put an object.
    pub puts: u64,
    /// Requests that delete an object.
    pub deletes: u64,
    /// Bytes that the bucket sent.
    pub sent_bytes: u64,
    /// Bytes that were put.
    pub put_bytes: u64,
}

impl BucketRequests {
    /// Returns the requests since an earlier moment.
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            gets: self.gets - before.gets,
            puts: self.puts - before.puts,
            deletes: self.deletes - before.deletes,
            sent_bytes: self.sent_bytes - before.sent_bytes,
            put_bytes: self.put_bytes - before.put_bytes,
        }
    }
}

/// The requests of all buckets of a stage. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct BucketMeter(Rc<Cell<BucketRequests>>);

impl BucketMeter {
    pub(super) fn requests(&self) -> BucketRequests {
        self.0.get()
    }

    fn count(&self, add: impl FnOnce(&mut BucketRequests)) {
        let mut requests = self.0.get();
        add(&mut requests);
        self.0.set(requests);
    }
}

/// The end of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A part of an operation has been read, or its object deleted.
    Part(u64),
    /// The object's content has been read for a write, or its version for one of all of it.
    Base(u64),
    /// The object has been put.
    Put(u64),
}

/// The writes of an object.
#[derive(Debug, Default)]
struct ObjectState {
    /// Ranges of writes that wait, and their operations.
    waiting: Vec<(Range<u64>, u64)>,
    /// Operations of the put under way.
    putting: Vec<u64>,
    is_busy: bool,
    /// The object was read or written, so its version is known.
    is_known: bool,
}

/// An operation under way.
#[derive(Debug)]
struct Parts {
    token: u64,
    left: usize,
}

/// A volume in a bucket whose requests complete by a [`VirtualClock`].
#[derive(Debug)]
pub struct SimulatedBucket {
    clock: VirtualClock,
    meter: BucketMeter,
    model: Model,
    size_bytes: u64,
    object_bytes: u64,
    /// Stored data; `None` where no data is stored.
    content: Option<MemoryDevice>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    requests: u64,
    operations: HashMap<u64, Parts>,
    next_operation: u64,
    objects: HashMap<u64, ObjectState>,
    /// The objects that were put last, the newest at the end.
    recent: VecDeque<u64>,
    /// Objects that are written, and those that wait for their turn.
    writers: u64,
    turns: VecDeque<u64>,
    ended: Vec<Completion>,
}

impl SimulatedBucket {
    /// Creates a volume of `size_bytes` in objects of `object_bytes`, whose requests `meter`
    /// counts. Data is stored in `content`, if given.
    pub fn new(
        clock: VirtualClock,
        meter: BucketMeter,
        size_bytes: u64,
        object_bytes: u64,
        content: Option<MemoryDevice>,
    ) -> Self {
        Self {
            clock,
            meter,
            model: Model::new(REQUESTS, MEDIUM_SEED),
            size_bytes,
            object_bytes,
            content,
            events: BinaryHeap::new(),
            requests: 0,
            operations: HashMap::new(),
            next_operation: 0,
            objects: HashMap::new(),
            recent: VecDeque::new(),
            writers: 0,
            turns: VecDeque::new(),
            ended: Vec::new(),
        }
    }

    /// Returns the objects of a range of the volume, each with the range in it.
    fn parts(&self, offset: u64, bytes: u64) -> Vec<(u64, Range<u64>)> {
        let (object, end) = (self.object_bytes, offset + bytes);
        let part = |number: u64| {
            let start = number * object;
            (number, offset.max(start) - start..end.min(start + object) - start)
        };
        (offset / object..end.div_ceil(object)).map(part).collect()
    }

    fn object_len(&self, number: u64) -> u64 {
        (self.size_bytes - number * self.object_bytes).min(self.object_bytes)
    }

    fn is_whole(&self, (number, range): &(u64, Range<u64>)) -> bool {
        *range == (0..self.object_len(*number))
    }

    /// Sends a request, which ends with an event.
    fn request(&mut self, direction: Direction, bytes: u64, event: Event) {
        let connection_ns = (bytes as f64 / CONNECTION_BYTES_PER_SECOND * 1e9) as u64;
        let due_ns = self.model.start(self.clock.passed_ns(), direction, bytes) + connection_ns;
        self.events.push(Reverse((due_ns, self.requests, event)));
        self.requests += 1;
    }

    fn get(&mut self, bytes: u64, event: Event) {
        self.meter.count(|it| (it.gets, it.sent_bytes) = (it.gets + 1, it.sent_bytes + bytes));
        self.request(Direction::Read, bytes, event);
    }

    /// Adds a write to an object, and begins to write the object unless it is being written.
    fn change(&mut self, number: u64, range: Range<u64>, operation: u64) {
        let object = self.objects.entry(number).or_default();
        object.waiting.push((range, operation));
        if !std::mem::replace(&mut object.is_busy, true) {
            self.turns.push_back(number);
        }
    }

    /// Begins the turns for which there is room.
    fn begin_turns(&mut self) {
        let most = (WRITING_BYTES / self.object_bytes).clamp(*WRITERS.start(), *WRITERS.end());
        while self.writers < most
            && let Some(number) = self.turns.pop_front()
        {
            self.writers += 1;
            let len = self.object_len(number);
            let object = self.objects.entry(number).or_default();
            let is_recent = self.recent.contains(&number);
            match covers(len, object.waiting.iter().map(|(range, _)| range.clone())) {
                true if object.is_known => self.put(number),
                true => self.get(0, Event::Base(number)),
                false if is_recent => self.put(number),
                false => self.get(len, Event::Base(number)),
            }
        }
    }

    /// Puts an object with all writes that wait for it.
    fn put(&mut self, number: u64) {
        let object = self.objects.entry(number).or_default();
        object.putting = object.waiting.drain(..).map(|(_, operation)| operation).collect();
        let bytes = self.object_len(number);
        self.meter.count(|it| (it.puts, it.put_bytes) = (it.puts + 1, it.put_bytes + bytes));
        self.request(Direction::Write, bytes, Event::Put(number));
    }

    /// Ends a part of an operation.
    fn end_part(&mut self, operation: u64) {
        let parts = self.operations.get_mut(&operation).expect("a part is left");
        parts.left -= 1;
        if parts.left == 0 {
            let Parts { token, .. } = self.operations.remove(&operation).expect("it was there");
            self.ended.push(Completion { token, result: Ok(()) });
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Part(operation) => self.end_part(operation),
            Event::Base(number) => self.put(number),
            Event::Put(number) => {
                let object = self.objects.entry(number).or_default();
                object.is_known = true;
                object.is_busy = !object.waiting.is_empty();
                if object.is_busy {
                    self.turns.push_back(number);
                }
                for operation in std::mem::take(&mut object.putting) {
                    self.end_part(operation);
                }
                self.writers -= 1;
                self.recent.retain(|recent| *recent != number);
                self.recent.push_back(number);
                if self.recent.len() as u64 > (RECENT_BYTES / self.object_bytes).max(1) {
                    self.recent.pop_front();
                }
                self.begin_turns();
            }
        }
    }
}

/// Returns whether ranges cover all `len` bytes of an object.
fn covers(len: u64, ranges: impl Iterator<Item = Range<u64>>) -> bool {
    let mut ranges: Vec<Range<u64>> = ranges.collect();
    ranges.sort_unstable_by_key(|range| range.start);
    let reached =
        |end: u64, range: &Range<u64>| if range.start <= end { end.max(range.end) } else { end };
    ranges.iter().fold(0, reached) >= len
}

impl Device for SimulatedBucket {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn submit(&mut self, operation: Operation) {
        let Operation { token, offset, ref action } = operation;
        let mut parts = match action {
            Action::Read(into) => self.parts(offset, into.len() as u64),
            Action::Write { from, .. } => self.parts(offset, from.len() as u64),
            Action::Zero { len, .. } | Action::Discard { len } => self.parts(offset, *len),
            Action::Flush => Vec::new(),
        };
        if matches!(action, Action::Discard { .. }) {
            parts.retain(|part| self.is_whole(part));
        }
        let number = self.next_operation;
        self.next_operation += 1;
        match parts.len() {
            0 => self.ended.push(Completion { token, result: Ok(()) }),
            left => drop(self.operations.insert(number, Parts { token, left })),
        }
        for part in parts {
            match action {
                Action::Read(_) => {
                    self.objects.entry(part.0).or_default().is_known = true;
                    self.get(part.1.end - part.1.start, Event::Part(number));
                }
                Action::Zero { .. } | Action::Discard { .. } if self.is_whole(&part) => {
                    self.meter.count(|it| it.deletes += 1);
                    self.request(Direction::Write, 0, Event::Part(number));
                }
                _ => self.change(part.0, part.1, number),
            }
        }
        self.begin_turns();
        if let Some(content) = &mut self.content {
            content.submit(operation);
            let mut done = Vec::new();
            content.poll(&mut done);
            // The cache asks for nothing outside of a device, and memory refuses nothing else.
            done.into_iter().for_each(|done| done.result.expect("memory does what it is asked"));
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        while let Some(&Reverse((due_ns, _, event))) = self.events.peek()
            && due_ns <= self.clock.passed_ns()
        {
            self.events.pop();
            self.happen(event);
        }
        done.append(&mut self.ended);
    }

    fn next_due(&self) -> Option<Instant> {
        let due_ns = match self.ended.is_empty() {
            true => self.events.peek().map(|&Reverse((due_ns, ..))| due_ns),
            false => Some(self.clock.passed_ns()),
        };
        due_ns.map(|due_ns| self.clock.at(due_ns))
    }
}

#[cfg(test)]
mod tests {
    use floe_device::Pool;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// Carries operations out that are submitted at once. Returns their requests and milliseconds.
    fn run(bucket: &mut SimulatedBucket, operations: Vec<(u64, Action)>) -> (BucketRequests, u64) {
        let (before, begun_ns) = (bucket.meter.requests(), bucket.clock.passed_ns());
        let mut left = operations.len();
        for (offset, action) in operations {
            bucket.submit(Operation { token: 1, offset, action });
        }
        let mut done = Vec::new();
        while left > 0 {
            bucket.clock.set(bucket.next_due().expect("something is under way"));
            bucket.poll(&mut done);
            left -= done.drain(..).count();
        }
        let ms = (bucket.clock.passed_ns() - begun_ns) / 1_000_000;
        (bucket.meter.requests().since(before), ms)
    }

    fn bucket() -> (Pool, SimulatedBucket) {
        let (clock, meter) = (VirtualClock::default(), BucketMeter::default());
        // The last object has half a MiB.
        let size = 64 * MIB + MIB / 2;
        (Pool::new(4 << 20), SimulatedBucket::new(clock, meter, size, MIB, None))
    }

    fn write(pool: &Pool, bytes: u64) -> Action {
        Action::Write { from: pool.allocate(bytes as usize).whole(), durable: false }
    }

    #[test]
    fn a_read_is_a_request_for_each_object() {
        let (pool, mut bucket) = bucket();
        let read = Action::Read(pool.allocate(1 << 20).whole());
        let (requests, ms) = run(&mut bucket, vec![(MIB / 2, read)]);
        let wanted = BucketRequests { gets: 2, sent_bytes: MIB, ..BucketRequests::default() };
        assert_eq!(requests, wanted);
        assert!((15..500).contains(&ms), "{ms} ms");
        let flush = run(&mut bucket, vec![(0, Action::Flush)]);
        assert_eq!(flush, (BucketRequests::default(), 0));
    }

    #[test]
    fn a_write_of_part_of_an_object_reads_and_puts_it_and_shares_the_put() {
        let (pool, mut bucket) = bucket();
        let some = |at: u64| (at * 4096, write(&pool, 4096));
        let one = BucketRequests {
            gets: 1,
            puts: 1,
            sent_bytes: MIB,
            put_bytes: MIB,
            ..BucketRequests::default()
        };
        assert_eq!(run(&mut bucket, (0..8).map(some).collect()).0, one);
        let known = BucketRequests { gets: 0, sent_bytes: 0, ..one };
        assert_eq!(run(&mut bucket, vec![some(9)]).0, known, "the object was put just now");
        // Another 32 objects are put: of all of them only the version is unknown.
        let whole = (1..33).map(|at| (at * MIB, write(&pool, MIB))).collect();
        let (requests, _) = run(&mut bucket, whole);
        assert_eq!((requests.gets, requests.sent_bytes, requests.puts), (32, 0, 32));
        assert_eq!(run(&mut bucket, vec![some(9)]).0, one, "it is forgotten");
        let last = run(&mut bucket, vec![(64 * MIB, write(&pool, MIB / 2))]).0;
        assert_eq!((last.puts, last.put_bytes, last.sent_bytes), (1, MIB / 2, 0));
    }

    #[test]
    fn whole_objects_are_deleted_and_parts_of_them_kept() {
        let (_, mut bucket) = bucket();
        let discard = |len| Action::Discard { len };
        let (requests, _) = run(&mut bucket, vec![(MIB / 2, discard(2 * MIB))]);
        assert_eq!(requests, BucketRequests { deletes: 1, ..BucketRequests::default() });
        let zero = Action::Zero { len: 2 * MIB, may_unmap: true, fast: false };
        let (requests, _) = run(&mut bucket, vec![(MIB / 2, zero)]);
        assert_eq!((requests.deletes, requests.puts), (1, 2));
    }

    #[test]
    fn ranges_cover_an_object_without_a_gap() {
        let covers = |ranges: &[Range<u64>]| covers(10, ranges.iter().cloned());
        assert!(covers(&[5..10, 0..5]) && covers(&[0..10, 2..3]));
        assert!(!covers(&[0..5, 6..10]) && !covers(&[0..4, 4..9]) && !covers(&[]));
    }
}
