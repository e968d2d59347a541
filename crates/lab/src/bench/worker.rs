//! The loop on one thread: the clients of [`Clients`] at work on a subject, as fast as they can.
//!
//! Between two looks at the clock there is nothing but the subject and the load: latencies are
//! sampled, 1 in 100 at random distances, and whether to go on is asked once a chunk of the load.
//! Where misses park their clients, the clock is read once a miss, when it begins, and else when
//! [`Looks`] expects a client to be due.

use std::hint::black_box;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use floe_policy::mix;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::clients::{Clients, Parked};
use super::clock::{Clock, thread_cpu_ns};
use super::load::{Feed, Load, Operation};
use super::look::Looks;
use super::order::CHUNK;
use super::subject::Subject;
use super::tally::Tally;

/// One of so many operations is timed.
pub const SAMPLED: usize = 100;

/// Threads run, and nothing counts yet.
const RAMP: u8 = 0;
/// The flag of phases in which operations count.
const COUNT: u8 = 1;
/// Threads stop.
const STOP: u8 = 2;

/// Between two looks at whether all threads count: they do after a chunk of the load, or a part of
/// a sleep.
const LOOK_AGAIN: Duration = Duration::from_micros(100);

/// The board on which threads read their task and report their progress.
#[derive(Debug)]
pub(super) struct Board {
    phase: AtomicU8,
    counters: Vec<Counter>,
}

/// The operations of a thread since it began, on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Counter {
    hits: AtomicU64,
    misses: AtomicU64,
    writes: AtomicU64,
    /// The phase that the thread has seen.
    phase: AtomicU8,
}

// All of it is relaxed: numbers to look at and a word that is acted on soon. Results travel by
// joining the threads.
impl Board {
    pub(super) fn new(threads: usize) -> Self {
        let counters = (0..threads).map(|_| Counter::default()).collect();
        Self { phase: AtomicU8::new(RAMP), counters }
    }

    /// From now on it counts. Returns when every thread knows: one that the machine keeps waiting
    /// would else count for less than the time that follows, or not at all.
    pub(super) fn count(&self) {
        self.phase.store(COUNT, Relaxed);
        while self.counters.iter().any(|counter| counter.phase.load(Relaxed) == RAMP) {
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// The threads end soon.
    pub(super) fn stop(&self) {
        self.phase.store(STOP, Relaxed);
    }

    /// Hits, misses and writes of all threads so far.
    pub(super) fn so_far(&self) -> [u64; 3] {
        self.counters.iter().fold([0; 3], |[hits, misses, writes], counter| {
            let [h, m, w] =
                [&counter.hits, &counter.misses, &counter.writes].map(|count| count.load(Relaxed));
            [hits + h, misses + m, writes + w]
        })
    }
}

/// The latency of the emulated disk.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Disk {
    /// The mean time, in nanoseconds; with 0 there is no disk, and no client is ever parked.
    pub mean_ns: u64,
    /// True if times are exponentially distributed instead of all equal.
    pub exponential: bool,
}

impl Disk {
    /// No disk.
    pub const NONE: Self = Self { mean_ns: 0, exponential: false };

    /// Draws the time of one access.
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

/// The task of a thread.
pub(super) struct Job<'a, S> {
    pub(super) subject: &'a S,
    pub(super) load: &'a Load,
    pub(super) feed: &'a Feed,
    pub(super) board: &'a Board,
    /// The number of this thread.
    pub(super) thread: usize,
    /// The number of its clients.
    pub(super) clients: usize,
    pub(super) disk: Disk,
    pub(super) clock: Clock,
    /// The time that reading the clock adds to a latency.
    pub(super) reading_ns: u64,
    /// True if there are more threads than processors.
    pub(super) yielding: bool,
    /// With a disk, rounds of arithmetic after each operation, before anything else happens; 0 for
    /// none.
    pub(super) pause: u32,
}

impl<S: Subject> Job<'_, S> {
    /// Works until it is told to stop.
    pub(super) fn work(self) -> Tally {
        let mut worker = Worker {
            clients: Clients::new(self.clients),
            looks: Looks::default(),
            random: SmallRng::seed_from_u64(mix(self.thread as u64)),
            tally: Tally::default(),
            done: [0; 3],
            until_sample: SAMPLED,
            rest: &[],
            phase: RAMP,
            began_ns: self.clock.now(),
            cpu_began_ns: thread_cpu_ns(),
            job: self,
        };
        if worker.job.disk.mean_ns == 0 {
            worker.without_disk()
        } else {
            worker.with_disk()
        }
        worker.tally.wall_ns = worker.job.clock.now() - worker.began_ns;
        worker.tally.cpu_ns = thread_cpu_ns() - worker.cpu_began_ns;
        std::mem::take(&mut worker.tally)
    }
}

struct Worker<'a, S> {
    job: Job<'a, S>,
    clients: Clients,
    looks: Looks,
    random: SmallRng,
    tally: Tally,
    /// Hits, misses and writes before what the tally counts.
    done: [u64; 3],
    until_sample: usize,
    /// Operations taken from the feed and not done yet.
    rest: &'a [Operation],
    phase: u8,
    began_ns: u64,
    cpu_began_ns: u64,
}

/// A lookup that found nothing.
struct Miss {
    key: u64,
    began_ns: Option<u64>,
}

impl<S: Subject> Worker<'_, S> {
    /// Tells how far it is, and whether to go on.
    fn goes_on(&mut self) -> bool {
        let counter = &self.job.board.counters[self.job.thread];
        let [hits, misses, writes] = self.done;
        counter.hits.store(hits + self.tally.hits, Relaxed);
        counter.misses.store(misses + self.tally.misses, Relaxed);
        counter.writes.store(writes + self.tally.writes, Relaxed);
        let phase = self.job.board.phase.load(Relaxed);
        // A run begins where the feed is, not where the run before ended, so its first operations
        // find what does not belong to their place in the load. They are the ramp's, also where the
        // machine let the ramp pass before the thread ran.
        let may_enter = phase != COUNT || self.tally.taken > 0;
        if phase != self.phase && may_enter {
            self.enter(phase);
        }
        phase != STOP
    }

    #[cold]
    fn enter(&mut self, phase: u8) {
        self.phase = phase;
        if phase == COUNT {
            let Tally { hits, misses, writes, .. } = self.tally;
            self.done = [self.done[0] + hits, self.done[1] + misses, self.done[2] + writes];
            self.tally.clear();
            self.cpu_began_ns = thread_cpu_ns();
            self.began_ns = self.job.clock.now();
        }
        self.job.board.counters[self.job.thread].phase.store(phase, Relaxed);
    }

    /// Every client goes on at once, so they need not be told apart.
    fn without_disk(&mut self) {
        while self.goes_on() {
            let mut left = CHUNK as u32;
            while left > 0 {
                let (done, missed) = self.burst(left);
                left -= done;
                if let Some(Miss { key, began_ns }) = missed {
                    self.job.subject.fill(key);
                    self.tally.misses += 1;
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
                self.tally.idle_ns += now - from.max(self.began_ns);
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

    /// Resumes the clients to which the disk has answered by a look at the clock, and returns the
    /// time then. Clients not seen to be due are parked: their wait for other due clients is the
    /// processor's doing, not the disk's.
    fn answer(&mut self, look_ns: u64) -> u64 {
        let mut has_answered = false;
        while let Some(parked) = self.clients.wake(look_ns) {
            // Whatever it takes to record, bounded: a client cannot be parked for longer than the
            // measurement.
            self.tally.park_ns.saturating_record(look_ns - parked.since_ns);
            self.job.subject.fill(parked.key);
            self.tally.misses += 1;
            self.record_miss(parked.began_ns);
            has_answered = true;
        }
        if has_answered { self.job.clock.now() } else { look_ns }
    }

    /// Up to so many operations, ended by a miss; how many there were.
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
            self.tally.taken += done as u64;
            left -= done;
            if missed.is_some() {
                return (most - left as u32, missed);
            }
        }
        (most, None)
    }

    /// Operations, up to the first that misses, and nothing else; how many, that one included.
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
        self.tally.writes += writes;
        self.tally.hits += done as u64 - writes - u64::from(missed.is_some());
        (done, missed)
    }

    /// An operation on the clock.
    #[cold]
    fn timed(&mut self, operation: Operation) -> Option<Miss> {
        // From half to one and a half of the mean distance, so that no rhythm of the load is met.
        self.until_sample = self.random.random_range(SAMPLED / 2..SAMPLED + SAMPLED / 2) - 1;
        let (hits, writes) = (self.tally.hits, self.tally.writes);
        let began_ns = self.job.clock.now();
        let (_, missed) = self.untimed(&[operation]);
        let took_ns = (self.job.clock.now() - began_ns).saturating_sub(self.job.reading_ns);
        if self.tally.hits > hits {
            self.tally.hit_ns.saturating_record(took_ns);
        } else if self.tally.writes > writes {
            self.tally.write_ns.saturating_record(took_ns);
        }
        missed.map(|Miss { key, .. }| Miss { key, began_ns: Some(began_ns) })
    }

    /// The end of a miss, if it is one that is timed.
    #[inline]
    fn record_miss(&mut self, began_ns: Option<u64>) {
        if let Some(began_ns) = began_ns {
            let took_ns = self.job.clock.now() - began_ns;
            self.tally.miss_ns.saturating_record(took_ns.saturating_sub(self.job.reading_ns));
        }
    }
}

impl<S> Drop for Worker<'_, S> {
    /// No thread may wait for one that has ended, also by a panic of its subject.
    fn drop(&mut self) {
        self.job.board.counters[self.job.thread].phase.store(STOP, Relaxed);
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
