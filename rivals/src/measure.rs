//! How time is taken: all caches in turn, again and again, so that what disturbs the machine
//! disturbs them alike.
//!
//! Each round has caches that were built for it, so that the seeds of their hash functions are part
//! of what rounds differ by, and of the interval around the median. In each round every cache has a
//! turn on every thread: requests that are not counted, until its memory is near again, then
//! requests that are; all threads begin and end together. *Near again* takes requests, not time:
//! where all have had their turns, a set of ten megabytes comes back from memory in several
//! milliseconds, the same few nanoseconds a request for everyone, which would hide what they differ
//! by. So each turn begins with some times as many requests as there are keys. What is compared is
//! processor time of the threads; ratios are taken within a round. In some rows a third part of the
//! turn, as long as the second, times every request apart (`latency`): the second has no timer.

use std::sync::{Barrier, OnceLock};
use std::time::{Duration, Instant};

use crate::contender::{Contender, Counts};
use crate::latency::Histogram;
use crate::workload::{CHUNK, Ops, Request};

/// Chunks of a stream between the places where two rounds begin.
const PLACES_APART: usize = 97;

/// Parts of a turn: uncounted, counted, timed.
const PARTS: usize = 3;

/// A turn begins with this part of its time uncounted, at least.
const WARM_SHARE: f64 = 0.5;

/// A round, and how long to measure.
#[derive(Clone, Copy)]
pub struct Plan {
    /// The number of the round.
    pub round: usize,
    /// Of a turn.
    pub seconds: f64,
    /// Requests of all threads together before a turn counts.
    pub warm_requests: usize,
    /// Whether a third part of each turn times every request apart.
    pub is_timed: bool,
}

/// What all threads together did in a turn.
#[derive(Clone, Default)]
pub struct Turn {
    pub counts: Counts,
    /// Of the requests that were timed, which `counts` leaves out.
    pub latencies: Histogram,
    threads: usize,
    cpu_seconds: f64,
    wall_seconds: f64,
}

impl Turn {
    /// Nanoseconds of processor time a request.
    pub fn cpu_ns(&self) -> f64 {
        1e9 * self.cpu_seconds / self.counts.requests as f64
    }

    /// Nanoseconds a thread takes for a request, with its waiting.
    pub fn wall_ns(&self) -> f64 {
        1e9 * self.threads as f64 / self.requests_per_second()
    }

    pub fn requests_per_second(&self) -> f64 {
        self.counts.requests as f64 / self.wall_seconds
    }

    /// Adds what another thread did meanwhile.
    fn add(&mut self, other: &Turn) {
        self.counts.requests += other.counts.requests;
        self.counts.writes += other.counts.writes;
        self.counts.hits += other.counts.hits;
        self.counts.wrong = self.counts.wrong.wrapping_add(other.counts.wrong);
        self.latencies.merge(&other.latencies);
        self.threads += other.threads;
        self.cpu_seconds += other.cpu_seconds;
        self.wall_seconds = self.wall_seconds.max(other.wall_seconds);
    }
}

/// The turn of each contender in a round, with a thread for each stream. Where threads share cores,
/// turns are longer, so that every thread comes to run in each.
pub fn round(
    contenders: &[&dyn Contender],
    ops: Ops,
    streams: &[Vec<Request>],
    plan: Plan,
) -> Vec<Turn> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let length = Duration::from_secs_f64(plan.seconds)
        .mul_f64((streams.len() as f64 / cores as f64).max(1.0));
    let schedule = &Schedule {
        contenders,
        ops,
        round: plan.round,
        length,
        warm_requests: plan.warm_requests.div_ceil(streams.len()),
        together: Barrier::new(streams.len()),
        is_timed: plan.is_timed,
        begun: (0..PARTS * contenders.len()).map(|_| OnceLock::new()).collect(),
    };
    let by_thread: Vec<Vec<Turn>> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            streams.iter().map(|stream| scope.spawn(|| schedule.one_thread(stream))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no cache panics")).collect()
    });
    let mut all = vec![Turn::default(); contenders.len()];
    for turns in &by_thread {
        all.iter_mut().zip(turns).for_each(|(all, turn)| all.add(turn));
    }
    all
}

/// What the threads go through together.
struct Schedule<'a> {
    contenders: &'a [&'a dyn Contender],
    ops: Ops,
    round: usize,
    length: Duration,
    /// Requests of a thread before a turn counts.
    warm_requests: usize,
    together: Barrier,
    is_timed: bool,
    /// When the first thread began with each part of a turn: for all of them it ends by the same
    /// clock.
    begun: Vec<OnceLock<Instant>>,
}

impl Schedule<'_> {
    /// The turn of each contender on one thread.
    fn one_thread(&self, stream: &[Request]) -> Vec<Turn> {
        let (count, round) = (self.contenders.len(), self.round);
        let mut turns = vec![Turn::default(); count];
        // All begin at the same place, another one each round.
        let begin = round * PLACES_APART * CHUNK % stream.len();
        for step in 0..count {
            // Nobody always comes after the same one.
            let index = (round + step * coprime(count, round)) % count;
            let (parts, mut place) = (&self.begun[PARTS * step..][..PARTS], begin);
            turns[index] = self.turn(self.contenders[index], parts, stream, &mut place);
        }
        turns
    }

    fn turn(
        &self,
        contender: &dyn Contender,
        parts: &[OnceLock<Instant>],
        stream: &[Request],
        place: &mut usize,
    ) -> Turn {
        let mut latencies = Histogram::default();
        let mut run_until = |least: usize, end: Instant, mut times: Option<&mut Histogram>| {
            let mut counts = Counts::default();
            let used = cpu_time();
            loop {
                let requests = &stream[*place..][..CHUNK];
                match &mut times {
                    None => contender.run(self.ops, requests, &mut counts),
                    Some(times) => contender.run_timed(self.ops, requests, &mut counts, times),
                }
                *place = (*place + CHUNK) % stream.len();
                if counts.requests >= least as u64 && Instant::now() >= end {
                    return (counts, (cpu_time() - used).as_secs_f64());
                }
            }
        };
        let together = |part: usize| {
            self.together.wait();
            *parts[part].get_or_init(Instant::now)
        };
        run_until(self.warm_requests, together(0) + self.length.mul_f64(WARM_SHARE), None);
        let (begun, length) = (together(1), self.length.mul_f64(1.0 - WARM_SHARE));
        let (mut counts, cpu_seconds) = run_until(0, begun + length, None);
        let wall_seconds = begun.elapsed().as_secs_f64();
        if self.is_timed {
            latencies = Histogram::new();
            let (timed, _) = run_until(0, together(2) + length, Some(&mut latencies));
            counts.wrong = counts.wrong.wrapping_add(timed.wrong);
        }
        Turn { counts, latencies, threads: 1, cpu_seconds, wall_seconds }
    }
}

/// A step that reaches all of `count` places, another one each round.
fn coprime(count: usize, round: usize) -> usize {
    let steps: Vec<usize> = (1..count.max(2)).filter(|&step| gcd(step, count) == 1).collect();
    steps[round % steps.len()]
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// What this thread has used of the processor.
fn cpu_time() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
}

/// A median with the interval that holds the true one in 95 of 100 cases.
#[derive(Clone, Copy)]
pub struct Median {
    pub middle: f64,
    pub low: f64,
    pub high: f64,
}

impl Median {
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let last = values.len() - 1;
        let (middle, reach) = (last as f64 / 2.0, 0.98 * (values.len() as f64).sqrt());
        Self {
            middle: (values[last / 2] + values[last.div_ceil(2)]) / 2.0,
            low: values[(middle - reach).floor().max(0.0) as usize],
            high: values[((middle + reach).ceil() as usize).min(last)],
        }
    }
}
