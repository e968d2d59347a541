//! The loop of one thread: the clients of [`Clients`] use a subject as fast as they can.
//!
//! Between two readings of the clock there is nothing but the subject and the load. Latencies are
//! sampled, 1 in 100 at random distances, and the command to stop is checked once per chunk of the
//! load. Where misses park their clients, the clock is read once per miss, when it begins, and else
//! when [`Looks`] expects a client to be due.

use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU64};
use std::time::{Duration, Instant};

use floe_policy::mix;
use hdrhistogram::Histogram;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::time::{ClockId, clock_gettime};

use super::disturbance::waited_ns;
use super::load::{CHUNK, Feed, Load, Operation};
use super::subject::Subject;

/// Mean number of operations per timed operation.
pub const SAMPLED: usize = 100;

/// Phase in which threads run without counting.
const RAMP: u8 = 0;
/// Phase in which operations count.
const COUNT: u8 = 1;
/// Phase in which threads stop.
const STOP: u8 = 2;

/// Interval at which threads are checked for having begun to count. They begin after a chunk of the
/// load or a part of a sleep.
const LOOK_AGAIN: Duration = Duration::from_micros(100);

/// State shared by the threads of a run: its phase, and the progress of each thread.
#[derive(Debug)]
pub(super) struct Board {
    phase: AtomicU8,
    counters: Vec<Counter>,
}

/// Counters of a thread since it began, on cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Counter {
    hits: AtomicU64,
    misses: AtomicU64,
    writes: AtomicU64,
    /// The phase that the thread has entered.
    phase: AtomicU8,
}

// All of it is relaxed: numbers to look at and a word that is acted on soon. Results travel by
// joining the threads.
impl Board {
    pub(super) fn new(threads: usize) -> Self {
        let counters = (0..threads).map(|_| Counter::default()).collect();
        Self { phase: AtomicU8::new(RAMP), counters }
    }

    /// Begins the counted phase, and returns when every thread has entered it. Otherwise a thread
    /// that the machine delays would count for less than the run's time, or not at all.
    pub(super) fn count(&self) {
        self.phase.store(COUNT, Relaxed);
        while self.counters.iter().any(|counter| counter.phase.load(Relaxed) == RAMP) {
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Tells the threads to stop, without waiting for them.
    pub(super) fn stop(&self) {
        self.phase.store(STOP, Relaxed);
    }

    /// Returns the hits, misses and writes of all threads so far.
    pub(super) fn so_far(&self) -> [u64; 3] {
        self.counters.iter().fold([0; 3], |[hits, misses, writes], counter| {
            let [h, m, w] =
                [&counter.hits, &counter.misses, &counter.writes].map(|count| count.load(Relaxed));
            [hits + h, misses + m, writes + w]
        })
    }
}

/// Latency distribution of the emulated disk.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Disk {
    /// Mean latency in nanoseconds; 0 for no disk, so that no client is ever parked.
    pub mean_ns: u64,
    /// True for exponentially distributed latencies, false for constant ones.
    pub exponential: bool,
}

impl Disk {
    /// No disk: misses are filled at once.
    pub const NONE: Self = Self { mean_ns: 0, exponential: false };

    /// Draws the latency of an access in nanoseconds.
    fn draw_ns(self, random: &mut impl Rng) -> u64 {
        let Self { mean_ns, exponential } = self;
        if exponential {
            let share: f64 = random.random();
            (-(1.0 - share).ln() * mean_ns as f64) as u64
        } else {
            mean_ns
        }
    }
}

/// Everything that a thread needs for a run.
pub(super) struct Job<'a, S> {
    pub(super) subject: &'a S,
    pub(super) load: &'a Load,
    pub(super) feed: &'a Feed,
    pub(super) board: &'a Board,
    /// Index of the thread.
    pub(super) thread: usize,
    /// Number of clients of the thread.
    pub(super) clients: usize,
    pub(super) disk: Disk,
    pub(super) clock: Clock,
    /// Nanoseconds of reading the clock, which are subtracted from each latency.
    pub(super) reading_ns: u64,
    /// True if there are more threads than processors, so that waiting threads yield.
    pub(super) yielding: bool,
    /// Rounds of arithmetic after each operation, before anything else happens; 0 for none. Takes
    /// effect only with a disk.
    pub(super) pause: u32,
}

impl<S: Subject> Job<'_, S> {
    /// Runs the clients until the board says to stop, and returns the thread's counters.
    pub(super) fn work(self) -> WorkerCounts {
        let mut worker = Worker {
            clients: Clients::new(self.clients),
            looks: Looks::default(),
            random: SmallRng::seed_from_u64(mix(self.thread as u64)),
            counts: WorkerCounts::default(),
            done: [0; 3],
            until_sample: SAMPLED,
            rest: &[],
            phase: RAMP,
            began_ns: self.clock.now(),
            cpu_began_ns: thread_cpu_ns(),
            waited_before_ns: waited_ns().unwrap_or_default(),
            job: self,
        };
        if worker.job.disk.mean_ns == 0 {
            worker.without_disk()
        } else {
            worker.with_disk()
        }
        worker.counts.wall_ns = worker.job.clock.now() - worker.began_ns;
        worker.counts.cpu_ns = thread_cpu_ns() - worker.cpu_began_ns;
        let waited_ns = waited_ns().unwrap_or_default();
        worker.counts.waited_ns = waited_ns.saturating_sub(worker.waited_before_ns);
        std::mem::take(&mut worker.counts)
    }
}

struct Worker<'a, S> {
    job: Job<'a, S>,
    clients: Clients,
    looks: Looks,
    random: SmallRng,
    counts: WorkerCounts,
    /// Hits, misses and writes from before the counted phase.
    done: [u64; 3],
    until_sample: usize,
    /// Operations taken from the feed and not yet done.
    rest: &'a [Operation],
    phase: u8,
    began_ns: u64,
    cpu_began_ns: u64,
    waited_before_ns: u64,
}

/// A lookup that missed.
struct Miss {
    key: u64,
    began_ns: Option<u64>,
}

impl<S: Subject> Worker<'_, S> {
    /// Publishes the thread's progress, enters the current phase, and returns whether to go on.
    fn goes_on(&mut self) -> bool {
        let counter = &self.job.board.counters[self.job.thread];
        let [hits, misses, writes] = self.done;
        counter.hits.store(hits + self.counts.hits, Relaxed);
        counter.misses.store(misses + self.counts.misses, Relaxed);
        counter.writes.store(writes + self.counts.writes, Relaxed);
        let phase = self.job.board.phase.load(Relaxed);
        // A run begins where the feed is, not where the run before ended, so its first operations
        // find what does not belong to their place in the load. They are the ramp's, also where the
        // machine let the ramp pass before the thread ran.
        let may_enter = phase != COUNT || self.counts.taken > 0;
        if phase != self.phase && may_enter {
            self.enter(phase);
        }
        phase != STOP
    }

    #[cold]
    fn enter(&mut self, phase: u8) {
        self.phase = phase;
        if phase == COUNT {
            let WorkerCounts { hits, misses, writes, .. } = self.counts;
            self.done = [self.done[0] + hits, self.done[1] + misses, self.done[2] + writes];
            self.counts.clear();
            self.waited_before_ns = waited_ns().unwrap_or_default();
            self.cpu_began_ns = thread_cpu_ns();
            self.began_ns = self.job.clock.now();
        }
        self.job.board.counters[self.job.thread].phase.store(phase, Relaxed);
    }

    /// Runs without a disk: every client resumes at once, so that clients need not be
    /// distinguished.
    fn without_disk(&mut self) {
        while self.goes_on() {
            let mut left = CHUNK as u32;
            while left > 0 {
                let (done, missed) = self.burst(left);
                left -= done;
                if let Some(Miss { key, began_ns }) = missed {
                    self.job.subject.fill(key);
                    self.counts.misses += 1;
                    self.record_miss(began_ns);
                }
            }
        }
    }

    fn with_disk(&mut self) {
        let mut now = self.job.clock.now();
        while self.goes_on() {
            if let (0, Some(due)) = (self.clients.ready(), self.clients.next_due()) {
                let from = now;
                now = self.job.clock.wait_towards(due, self.job.yielding);
                // The last look may have been before anything counted, long before on a machine
                // that is busy.
                self.counts.idle_ns += now - from.max(self.began_ns);
            }
            now = self.answer(now);
            if self.clients.ready() == 0 {
                continue;
            }
            let pause = self.job.pause;
            let most =
                if pause == 0 { self.looks.lookups(now, self.clients.next_due()) } else { 1 };
            let (lookups, missed) = self.burst(most);
            black_box((0..u64::from(pause)).fold(now, |number, round| mix(number ^ round)));
            let after = self.job.clock.now();
            self.looks.observe(lookups, after - now);
            now = after;
            if let Some(Miss { key, began_ns }) = missed {
                let due_ns = now + self.job.disk.draw_ns(&mut self.random);
                self.clients.park(Parked { key, since_ns: now, due_ns, began_ns });
            }
        }
    }

    /// Resumes the clients whose disk access had completed at `look_ns`, and returns the current
    /// time. Clients count as parked until they resume: waiting for other due clients is the
    /// processor's doing, not the disk's.
    fn answer(&mut self, look_ns: u64) -> u64 {
        let mut has_answered = false;
        while let Some(parked) = self.clients.wake(look_ns) {
            // Whatever it takes to record, bounded: a client cannot be parked for longer than the
            // measurement.
            self.counts.park_ns.saturating_record(look_ns - parked.since_ns);
            self.job.subject.fill(parked.key);
            self.counts.misses += 1;
            self.record_miss(parked.began_ns);
            has_answered = true;
        }
        if has_answered { self.job.clock.now() } else { look_ns }
    }

    /// Runs up to `most` operations, until the first miss. Returns how many were done, and the
    /// miss.
    #[inline]
    fn burst(&mut self, most: u32) -> (u32, Option<Miss>) {
        let mut left = most as usize;
        while left > 0 {
            if self.rest.is_empty() {
                self.rest = self.job.feed.next(self.job.load);
            }
            let (done, missed) = if self.until_sample == 0 {
                (1, self.timed(self.rest[0]))
            } else {
                let stretch = &self.rest[..left.min(self.until_sample).min(self.rest.len())];
                let (done, missed) = self.untimed(stretch);
                self.until_sample -= done;
                (done, missed)
            };
            self.rest = &self.rest[done..];
            self.counts.taken += done as u64;
            left -= done;
            if missed.is_some() {
                return (most - left as u32, missed);
            }
        }
        (most, None)
    }

    /// Runs operations without timing, up to the first miss. Returns how many were done, the
    /// missing lookup included.
    #[inline]
    fn untimed(&mut self, operations: &[Operation]) -> (usize, Option<Miss>) {
        let subject = self.job.subject;
        let (mut writes, mut missed) = (0, None);
        let mut done = 0;
        for operation in operations {
            let key = operation.key();
            done += 1;
            if operation.writes() {
                subject.update(key);
                writes += 1;
            } else if !subject.lookup(key) {
                missed = Some(Miss { key, began_ns: None });
                break;
            }
        }
        self.counts.writes += writes;
        self.counts.hits += done as u64 - writes - u64::from(missed.is_some());
        (done, missed)
    }

    /// Runs an operation and records its latency; returns a miss, whose latency is recorded after
    /// the fill.
    #[cold]
    fn timed(&mut self, operation: Operation) -> Option<Miss> {
        // From half to one and a half of the mean distance, so that no rhythm of the load is met.
        self.until_sample = self.random.random_range(SAMPLED / 2..SAMPLED + SAMPLED / 2) - 1;
        let (hits, writes) = (self.counts.hits, self.counts.writes);
        let began_ns = self.job.clock.now();
        let (_, missed) = self.untimed(&[operation]);
        let took_ns = (self.job.clock.now() - began_ns).saturating_sub(self.job.reading_ns);
        if self.counts.hits > hits {
            self.counts.hit_ns.saturating_record(took_ns);
        } else if self.counts.writes > writes {
            self.counts.write_ns.saturating_record(took_ns);
        }
        missed.map(|Miss { key, .. }| Miss { key, began_ns: Some(began_ns) })
    }

    /// Records the latency of a miss that began at `began_ns`, if it is timed.
    #[inline]
    fn record_miss(&mut self, began_ns: Option<u64>) {
        if let Some(began_ns) = began_ns {
            let took_ns = self.job.clock.now() - began_ns;
            self.counts.miss_ns.saturating_record(took_ns.saturating_sub(self.job.reading_ns));
        }
    }
}

impl<S> Drop for Worker<'_, S> {
    /// Marks the thread as stopped, so that none waits for it, even after a panic of its subject.
    fn drop(&mut self) {
        self.job.board.counters[self.job.thread].phase.store(STOP, Relaxed);
    }
}

/// A client that waits for the emulated disk after a miss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parked {
    /// The key that the client waits for.
    pub key: u64,
    /// Time in nanoseconds at which the client was parked.
    pub since_ns: u64,
    /// Time in nanoseconds at which the disk access completes.
    pub due_ns: u64,
    /// Time in nanoseconds at which the lookup began; `None` if the miss is not timed.
    pub began_ns: Option<u64>,
}

/// The clients of a thread, ready or parked.
#[derive(Debug, Clone)]
pub struct Clients {
    ready: usize,
    /// Parked clients, ordered by due time.
    parked: VecDeque<Parked>,
}

impl Clients {
    /// Creates `count` clients, all of them ready.
    pub fn new(count: usize) -> Self {
        Self { ready: count, parked: VecDeque::with_capacity(count) }
    }

    /// Returns the number of clients that are ready.
    pub fn ready(&self) -> usize {
        self.ready
    }

    /// Returns the time of the next disk completion; `None` if no client is parked.
    pub fn next_due(&self) -> Option<u64> {
        self.parked.front().map(|parked| parked.due_ns)
    }

    /// Parks one of the ready clients.
    ///
    /// # Panics
    /// When no client is ready.
    pub fn park(&mut self, parked: Parked) {
        self.ready = self.ready.checked_sub(1).expect("only a client that could go on can miss");
        // Where the disk's times are equal, the newest client is due last and passes none.
        let after =
            self.parked.iter().rev().take_while(|other| other.due_ns > parked.due_ns).count();
        self.parked.insert(self.parked.len() - after, parked);
    }

    /// Resumes the first client whose disk access has completed by `now_ns`, and returns it.
    pub fn wake(&mut self, now_ns: u64) -> Option<Parked> {
        if self.next_due()? > now_ns {
            return None;
        }
        self.ready += 1;
        self.parked.pop_front()
    }
}

/// Longest delay, in nanoseconds, with which a sleep may end. Sleeps end that much early, and the
/// rest is waited for by reading the clock.
const OVERSLEEP_NS: u64 = 100_000;

/// Nanoseconds below which a sleep is not worth the system call.
const NAP_NS: u64 = 50_000;

/// Longest sleep in nanoseconds, so that the command to stop is checked now and then.
const SLEEP_NS_MAX: u64 = 5_000_000;

/// Number of readings from which the cost of reading the clock is taken.
const READINGS: usize = 10_001;

/// A monotonic clock that counts nanoseconds from its creation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    start: Instant,
}

impl Clock {
    pub(super) fn new() -> Self {
        Self { start: Instant::now() }
    }

    /// Returns the nanoseconds since the clock was created.
    #[inline]
    pub(super) fn now(self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Waits until `due_ns`, or for a part of a long wait, and returns the current time. A long
    /// wait sleeps for some milliseconds at most, and the caller waits again. A short wait is
    /// precise, by reading the clock again and again; with `yielding`, other threads get the
    /// processor in between.
    pub(super) fn wait_towards(self, due_ns: u64, yielding: bool) -> u64 {
        let mut now = self.now();
        let left_ns = due_ns.saturating_sub(now);
        if left_ns > OVERSLEEP_NS + NAP_NS {
            std::thread::sleep(Duration::from_nanos((left_ns - OVERSLEEP_NS).min(SLEEP_NS_MAX)));
            return self.now();
        }
        while now < due_ns {
            if yielding {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
            now = self.now();
        }
        now
    }
}

/// Returns the nanoseconds that reading the clock adds to a measured time: the median of many
/// readings.
pub(super) fn reading_ns() -> u64 {
    let clock = Clock::new();
    let mut times: Vec<u64> = (0..READINGS)
        .map(|_| {
            let before = clock.now();
            clock.now() - before
        })
        .collect();
    *times.select_nth_unstable(READINGS / 2).1
}

/// Returns the processor time of the calling thread in nanoseconds.
pub(super) fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Minimum number of lookups between two readings of the clock, so that they share its cost.
const FEWEST: u32 = 4;

/// Maximum number of lookups between two readings of the clock, so that a thread reports its
/// progress now and then.
const MOST: u32 = 1024;

/// Estimated nanoseconds of a lookup before any was timed.
const FIRST_GUESS_NS: f64 = 50.0;

/// Weight of a new observation in the moving average of the lookup time.
const WEIGHT: f64 = 1.0 / 16.0;

/// Largest observation, as a multiple of the estimate. A thread that was interrupted for a while
/// has not become slow.
const SURPRISE: f64 = 4.0;

/// Chooses the number of lookups between two readings of the clock.
#[derive(Debug, Clone)]
pub struct Looks {
    lookup_ns: f64,
}

impl Default for Looks {
    fn default() -> Self {
        Self { lookup_ns: FIRST_GUESS_NS }
    }
}

impl Looks {
    /// Returns the number of lookups before the next reading of the clock, when the next client is
    /// due at `due_ns`.
    pub fn lookups(&self, now_ns: u64, due_ns: Option<u64>) -> u32 {
        due_ns.map_or(MOST, |due| {
            ((due.saturating_sub(now_ns)) as f64 / self.lookup_ns)
                .clamp(f64::from(FEWEST), f64::from(MOST)) as u32
        })
    }

    /// Updates the estimate of the lookup time: `lookups` lookups took `took_ns`.
    pub fn observe(&mut self, lookups: u32, took_ns: u64) {
        if lookups > 0 {
            let each = (took_ns as f64 / f64::from(lookups)).min(SURPRISE * self.lookup_ns);
            self.lookup_ns = (self.lookup_ns + WEIGHT * (each - self.lookup_ns)).max(1.0);
        }
    }
}

/// Longest latency that histograms distinguish: a minute, in nanoseconds.
const LONGEST_NS: u64 = 60_000_000_000;

/// Counters and latencies of a thread, or of several together.
#[derive(Debug, Clone)]
pub struct WorkerCounts {
    /// Operations taken from the load. Those of clients that were still parked at the end are
    /// neither hits nor misses.
    pub taken: u64,
    /// Lookups that hit.
    pub hits: u64,
    /// Lookups that missed and whose entries were filled.
    pub misses: u64,
    /// Number of writes.
    pub writes: u64,
    /// Latencies of sampled hits in nanoseconds.
    pub hit_ns: Histogram<u64>,
    /// Latencies of sampled misses in nanoseconds, from before the lookup to after the fill.
    pub miss_ns: Histogram<u64>,
    /// Latencies of sampled writes in nanoseconds.
    pub write_ns: Histogram<u64>,
    /// Times that clients were parked, in nanoseconds.
    pub park_ns: Histogram<u64>,
    /// Nanoseconds in which all clients of the thread were parked.
    pub idle_ns: u64,
    /// Wall-clock time of the thread in nanoseconds.
    pub wall_ns: u64,
    /// Processor time of the thread in nanoseconds, including busy waiting.
    pub cpu_ns: u64,
    /// Nanoseconds for which the thread could have run and waited for a processor; 0 where the
    /// system does not say.
    pub waited_ns: u64,
}

impl Default for WorkerCounts {
    fn default() -> Self {
        let histogram =
            || Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("the bounds are in order");
        Self {
            taken: 0,
            hits: 0,
            misses: 0,
            writes: 0,
            hit_ns: histogram(),
            miss_ns: histogram(),
            write_ns: histogram(),
            park_ns: histogram(),
            idle_ns: 0,
            wall_ns: 0,
            cpu_ns: 0,
            waited_ns: 0,
        }
    }
}

impl WorkerCounts {
    /// Returns the number of operations done.
    pub fn operations(&self) -> u64 {
        self.hits + self.misses + self.writes
    }

    /// Returns the share of lookups that hit; 0 without lookups.
    pub fn hit_ratio(&self) -> f64 {
        self.hits as f64 / (self.hits + self.misses).max(1) as f64
    }

    /// Adds the counters and latencies of another thread or run.
    pub fn add(&mut self, other: &WorkerCounts) {
        self.taken += other.taken;
        self.hits += other.hits;
        self.misses += other.misses;
        self.writes += other.writes;
        self.idle_ns += other.idle_ns;
        self.wall_ns += other.wall_ns;
        self.cpu_ns += other.cpu_ns;
        self.waited_ns += other.waited_ns;
        for (sum, more) in [
            (&mut self.hit_ns, &other.hit_ns),
            (&mut self.miss_ns, &other.miss_ns),
            (&mut self.write_ns, &other.write_ns),
            (&mut self.park_ns, &other.park_ns),
        ] {
            sum.add(more).expect("all histograms have the same bounds");
        }
    }

    /// Resets all counters and latencies.
    pub(super) fn clear(&mut self) {
        let Self { hit_ns, miss_ns, write_ns, park_ns, .. } = self;
        for histogram in [hit_ns, miss_ns, write_ns, park_ns] {
            histogram.reset();
        }
        (self.taken, self.hits, self.misses, self.writes) = (0, 0, 0, 0);
        (self.idle_ns, self.wall_ns, self.cpu_ns, self.waited_ns) = (0, 0, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponential_disks_have_the_mean_that_was_asked_for_and_others_no_other_time() {
        const DRAWS: usize = 10_000;
        let mut random = SmallRng::seed_from_u64(1);
        let mut draws =
            |disk: Disk| -> Vec<u64> { (0..DRAWS).map(|_| disk.draw_ns(&mut random)).collect() };
        assert!(draws(Disk { mean_ns: 7000, exponential: false }).iter().all(|ns| *ns == 7000));
        let drawn = draws(Disk { mean_ns: 20_000, exponential: true });
        let error = 4.0 / (DRAWS as f64).sqrt(); // four standard errors of a mean of 1
        let mean = drawn.iter().sum::<u64>() as f64 / DRAWS as f64 / 20_000.0;
        assert!((mean - 1.0).abs() < error, "{mean}");
        let below_mean = drawn.iter().filter(|ns| **ns < 20_000).count() as f64 / DRAWS as f64;
        // a share's is smaller
        assert!((below_mean - (1.0 - (-1.0f64).exp())).abs() < error, "{below_mean}");
    }
}

#[cfg(test)]
mod clients_tests {
    use super::*;

    fn parked(key: u64, since_ns: u64, due_ns: u64) -> Parked {
        Parked { key, since_ns, due_ns, began_ns: None }
    }

    #[test]
    fn a_parked_client_goes_on_when_the_disk_has_answered_and_not_before() {
        let mut clients = Clients::new(2);
        clients.park(parked(7, 100, 5100));
        assert_eq!((clients.ready(), clients.next_due()), (1, Some(5100)));
        assert_eq!(clients.wake(5099), None);
        assert_eq!(clients.wake(5100).map(|parked| parked.key), Some(7));
        assert_eq!((clients.ready(), clients.next_due()), (2, None));
    }

    #[test]
    fn clients_go_on_in_the_order_their_disks_answer() {
        let mut clients = Clients::new(5);
        let dues = [40, 10, 30, 10, 20];
        for (key, due) in (0..).zip(dues) {
            clients.park(parked(key, 0, due));
        }
        assert_eq!(clients.ready(), 0);
        let order: Vec<u64> =
            std::iter::from_fn(|| clients.wake(100)).map(|parked| parked.key).collect();
        assert_eq!(order, [1, 3, 4, 2, 0]); // the two due at 10 in the order they came
    }

    #[test]
    fn a_closed_loop_has_the_throughput_that_theory_says() {
        // Four clients, every lookup misses and takes 1 µs, the disk 9: four operations every 10
        // µs. Time is stepped.
        let mut clients = Clients::new(4);
        let (mut now, mut done) = (0, 0);
        while now < 10_000_000 {
            while clients.wake(now).is_some() {
                done += 1;
            }
            if clients.ready() == 0 {
                now = clients.next_due().expect("all are parked");
                continue;
            }
            now += 1000;
            clients.park(parked(0, now, now + 9000));
        }
        assert_eq!(done, 4 * (10_000_000 / 10_000 - 1)); // the last four are still parked
    }

    #[test]
    #[should_panic(expected = "only a client that could go on")]
    fn nobody_can_miss_when_all_are_parked() {
        let mut clients = Clients::new(1);
        clients.park(parked(0, 0, 1));
        clients.park(parked(0, 0, 1));
    }
}

#[cfg(test)]
mod look_tests {
    use super::*;

    /// Returns the number of clock readings until a due client is seen, and the delay in
    /// nanoseconds, if a lookup takes `lookup_ns`.
    fn until_seen(looks: &mut Looks, due_ns: u64, lookup_ns: u64) -> (u32, u64) {
        let (mut now, mut count) = (0, 0);
        while now < due_ns {
            let lookups = looks.lookups(now, Some(due_ns));
            let took = u64::from(lookups) * lookup_ns;
            looks.observe(lookups, took);
            now += took;
            count += 1;
        }
        (count, now - due_ns)
    }

    #[test]
    fn what_is_due_is_seen_within_a_few_lookups_and_a_few_looks() {
        for lookup_ns in [5, 20, 50, 300] {
            let mut looks = Looks::default();
            for round in 0..200 {
                let (count, late) = until_seen(&mut looks, 5_000, lookup_ns);
                if round > 100 {
                    assert!(
                        late <= u64::from(FEWEST) * lookup_ns,
                        "{lookup_ns} ns: {late} ns late"
                    );
                    assert!(
                        count <= 3 + 5_000 / (lookup_ns as u32 * MOST),
                        "{lookup_ns} ns: {count} looks"
                    );
                }
            }
        }
    }

    #[test]
    fn a_thread_that_was_stopped_is_not_taken_for_slow() {
        let mut looks = Looks::default();
        (0..100).for_each(|_| looks.observe(100, 2_000));
        looks.observe(4, 50_000_000);
        (0..20).for_each(|_| looks.observe(100, 2_000));
        let lookups = looks.lookups(0, Some(5_000));
        assert!((200..=250).contains(&lookups), "{lookups}");
    }

    #[test]
    fn a_thread_is_heard_of_even_when_nobody_waits() {
        assert_eq!(Looks::default().lookups(0, None), MOST);
        assert_eq!(Looks::default().lookups(0, Some(u64::MAX)), MOST);
        assert_eq!(Looks::default().lookups(10, Some(5)), FEWEST);
    }
}
