//! Token buckets of requests and bytes per second, and rates that are shared by weight.
//!
//! A bucket is a state machine without a clock. For each limited quantity it keeps the time until
//! which its share is used up. A request starts at the latest a burst before that time, and moves
//! it on by its own share. So in any interval at most the rate times the interval, and one burst,
//! starts. One larger than the burst waits until the bucket is full.

mod weighted_queue;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use floe_block::format_size;

use self::weighted_queue::WeightedQueue;

pub(crate) use self::weighted_queue::{Flow, Grant};

const NANOS: u128 = 1_000_000_000;

/// Milliseconds' worth of a rate that may start at once after a pause, unless set otherwise.
pub(crate) const BURST_MS: u64 = 100;

/// Weight of a volume or a client without a weight of its own.
pub(crate) const WEIGHT: u64 = 100;

/// Largest weight.
const WEIGHT_MAX: u64 = 1000;

/// Largest burst, in milliseconds: an hour.
const BURST_MS_MAX: u64 = 3_600_000;

/// Largest limit of requests per second.
const REQUESTS_MAX: u64 = 1_000_000_000;

/// Smallest limit of bytes per second, below which a typing error is likely.
const BYTES_MIN: u64 = 4096;

/// A setting that is out of its range: its name, and the problem.
pub(crate) type Wrong = (&'static str, String);

/// Returns the problem of a limit of requests per second that is out of its range.
pub(crate) fn requests_out_of_range(name: &'static str, rate: Option<u64>) -> Option<Wrong> {
    number_out_of_range(name, rate, REQUESTS_MAX)
}

/// Returns the problem of a limit of bytes per second that is out of its range.
pub(crate) fn bytes_out_of_range(name: &'static str, rate: Option<u64>) -> Option<Wrong> {
    let (rate, least) = (rate.filter(|rate| *rate < BYTES_MIN)?, format_size(BYTES_MIN));
    Some((name, format!("{name} = {rate} is less than {least}; write for example 100MiB")))
}

/// Returns the problem of a burst in milliseconds that is out of its range.
pub(crate) fn burst_out_of_range(name: &'static str, burst_ms: u64) -> Option<Wrong> {
    let is_outside = !(1..=BURST_MS_MAX).contains(&burst_ms);
    is_outside.then(|| {
        let problem =
            format!("{name} = {burst_ms}ms is not between 1ms and 1h; write for example 100ms");
        (name, problem)
    })
}

/// Returns the problem of a weight that is out of its range.
pub(crate) fn weight_out_of_range(weight: u64) -> Option<Wrong> {
    number_out_of_range("weight", Some(weight), WEIGHT_MAX)
}

/// Returns the problem of a number that is not between 1 and `most`.
pub(crate) fn number_out_of_range(
    name: &'static str,
    number: Option<u64>,
    most: u64,
) -> Option<Wrong> {
    let number = number.filter(|number| !(1..=most).contains(number))?;
    Some((name, format!("{name} = {number} is not between 1 and {most}")))
}

/// The rates of one bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rates {
    /// Requests per second; `None` for no limit.
    pub(crate) requests: Option<u64>,
    /// Bytes per second; `None` for no limit.
    pub(crate) bytes: Option<u64>,
    pub(crate) burst_ns: u64,
}

impl Rates {
    /// Returns whether anything is limited.
    pub(crate) fn is_any(&self) -> bool {
        self.requests.is_some() || self.bytes.is_some()
    }

    /// Returns the times that a request of so many bytes uses up: of the limit of requests, and of
    /// that of bytes.
    pub(crate) fn costs_ns(&self, bytes: u64) -> [Option<u64>; 2] {
        let cost =
            |amount: u64, rate: u64| (u128::from(amount) * NANOS).div_ceil(rate.into()) as u64;
        [self.requests.map(|rate| cost(1, rate)), self.bytes.map(|rate| cost(bytes, rate))]
    }
}

/// The token bucket of a volume, a client or the server. Times are in nanoseconds from the same
/// origin.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Bucket {
    /// Times until which the limits of requests and of bytes are used up.
    used_until: [u64; 2],
}

impl Bucket {
    /// Returns the time at which a request of so many bytes that asks at the time `now` may start.
    pub(crate) fn start(&self, rates: &Rates, bytes: u64, now: u64) -> u64 {
        let (burst, costs) = (rates.burst_ns, rates.costs_ns(bytes));
        let shares = self.used_until.iter().zip(costs);
        let starts = shares.filter_map(|(used, cost)| {
            Some(used.saturating_add(cost?.min(burst)).saturating_sub(burst))
        });
        starts.fold(now, u64::max)
    }

    /// Takes the share of a request that asks at the time `now`, and returns the time at which it
    /// may start. Requests start in the order of these calls.
    pub(crate) fn take(&mut self, rates: &Rates, bytes: u64, now: u64) -> u64 {
        let (costs, start) = (rates.costs_ns(bytes), self.start(rates, bytes, now));
        for (used, cost) in self.used_until.iter_mut().zip(costs) {
            if let Some(cost) = cost {
                // A bucket that is full takes no more.
                *used = (*used).max(start).saturating_add(cost);
            }
        }
        start
    }

    /// Gives back the share of a request that will not start.
    pub(crate) fn give_back(&mut self, rates: &Rates, bytes: u64) {
        for (used, cost) in self.used_until.iter_mut().zip(rates.costs_ns(bytes)) {
            *used = used.saturating_sub(cost.unwrap_or(0));
        }
    }

    /// Returns whether anything is used up at the time `now`.
    pub(crate) fn has_debt(&self, now: u64) -> bool {
        self.used_until.iter().any(|used| *used > now)
    }

    /// Forgets the shares of requests that have not started.
    pub(crate) fn forgive(&mut self, now: u64) {
        self.used_until.iter_mut().for_each(|used| *used = (*used).min(now));
    }
}

/// A rate, and the order of the requests that wait for it. All workers share it. The rate of the
/// server has a flow for each volume and each client that it names; that of a volume has one for
/// each of its clients.
///
/// Only requests with such a rate take the lock: once for a request that need not wait. A request
/// that waits takes it several times, at each look of its thread.
#[derive(Debug)]
pub(crate) struct SharedRate {
    origin: Instant,
    queue: Mutex<WeightedQueue>,
}

impl SharedRate {
    pub(crate) fn new(rates: Rates) -> Self {
        Self::since(rates, Instant::now())
    }

    /// Creates a full bucket, whose times count from `origin`.
    pub(crate) fn since(rates: Rates, origin: Instant) -> Self {
        Self { origin, queue: Mutex::new(WeightedQueue::new(rates)) }
    }

    pub(crate) fn rates(&self) -> Rates {
        self.lock().rates()
    }

    /// Changes the rates, also for requests that wait.
    pub(crate) fn change(&self, rates: Rates, now: Instant) {
        let now = self.nanos(now);
        self.lock().set_rates(rates, now);
    }

    /// Sets the weights of a volume and of its clients by number, also for requests that wait.
    pub(crate) fn set_weights(&self, volume: u16, weight: u64, clients: Vec<u64>, now: Instant) {
        let now = self.nanos(now);
        self.lock().set_weights(volume, weight, clients, now);
    }

    /// Takes the share of a request that may start at once. Otherwise the request waits, as the
    /// first of the thread's line. Returns the share if it may start.
    pub(crate) fn take_or_enter(
        &self,
        thread: usize,
        flow: Flow,
        bytes: u64,
        now: Instant,
    ) -> Option<Grant> {
        let now = self.nanos(now);
        self.lock().take_or_enter((thread, flow), bytes, now)
    }

    /// Has the first request of a thread's line wait.
    pub(crate) fn enter(&self, thread: usize, flow: Flow, bytes: u64, now: Instant) {
        let now = self.nanos(now);
        self.lock().enter((thread, flow), bytes, now);
    }

    /// Removes the first request of a thread's line, which waits.
    pub(crate) fn leave(&self, thread: usize, flow: Flow, now: Instant) {
        let now = self.nanos(now);
        self.lock().leave((thread, flow), now);
    }

    /// Lets the first request of one of a thread's lines start, if it is its turn.
    pub(crate) fn grant(&self, thread: usize, now: Instant) -> Option<Grant> {
        let now = self.nanos(now);
        self.lock().grant(thread, now)
    }

    /// Gives up the place that a thread keeps for its next request.
    pub(crate) fn give_up(&self, thread: usize, now: Instant) {
        let now = self.nanos(now);
        self.lock().give_up(thread, now);
    }

    /// Gives back the share of a request that was granted, and will not start.
    pub(crate) fn give_back(&self, grant: Grant, now: Instant) {
        let now = self.nanos(now);
        self.lock().give_back(grant, now);
    }

    /// Returns the time at which the thread is to ask for a grant again; `None` if nothing waits.
    pub(crate) fn next_due(&self, thread: usize, now: Instant) -> Option<Instant> {
        let since = self.nanos(now);
        let due = self.lock().next_due(thread, since)?;
        Some(now + Duration::from_nanos(due.saturating_sub(since)))
    }

    fn nanos(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.origin).as_nanos() as u64
    }

    fn lock(&self) -> MutexGuard<'_, WeightedQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use floe_testkit::Random;

    use super::*;

    /// Tokens of one limit, in units of a token for 1 ns at a rate of 1 per second.
    struct Tokens {
        rate: i128,
        most: i128,
        left: i128,
        at: u64,
    }

    impl Tokens {
        fn full(rate: u64, burst_ns: u64) -> Self {
            let most = i128::from(rate) * i128::from(burst_ns);
            Self { rate: rate.into(), most, left: most, at: 0 }
        }

        fn refill(&mut self, now: u64) {
            self.left += self.rate * i128::from(now.saturating_sub(self.at));
            (self.left, self.at) = (self.left.min(self.most), self.at.max(now));
        }

        /// The first time from which there is enough for so much, or for a full burst.
        fn enough(&self, amount: u64) -> u64 {
            let lacks = (i128::from(amount) * NANOS as i128).min(self.most) - self.left;
            let wait = if lacks > 0 { (lacks + self.rate - 1) / self.rate } else { 0 };
            self.at + wait as u64
        }
    }

    #[test]
    fn requests_start_when_a_count_of_tokens_says_so() {
        for seed in 0..300 {
            let mut random = Random(seed);
            let mut limit = Rates {
                requests: Some([1, 7, 1000, 1_000_000][random.below(4)]),
                bytes: Some([BYTES_MIN, 1 << 20, 10 << 30][random.below(3)]),
                burst_ns: [1, 100, 5000][random.below(3)] * 1_000_000,
            };
            match random.below(4) {
                0 => limit.requests = None,
                1 => limit.bytes = None,
                _ => {}
            }
            let (mut bucket, burst) = (Bucket::default(), limit.burst_ns);
            let rates = [limit.requests, limit.bytes];
            let mut model = rates.map(|rate| rate.map(|rate| Tokens::full(rate, burst)));
            let (mut now, mut started) = (0, Vec::new());
            for step in 0..200u64 {
                let (pause, most) = (random.below(3), random.below(3));
                now += random.below([1, 1000, 2_000_000_000][pause]) as u64;
                let bytes = random.below([1, 4097, 64 << 20][most]) as u64;
                let mut expected = now.max(started.last().map_or(0, |(start, _)| *start));
                let first = now;
                for (tokens, amount) in model.iter_mut().zip([1, bytes]) {
                    if let Some(tokens) = tokens {
                        tokens.refill(first);
                        expected = expected.max(tokens.enough(amount));
                    }
                }
                for (tokens, amount) in model.iter_mut().zip([1, bytes]) {
                    if let Some(tokens) = tokens {
                        tokens.refill(expected);
                        tokens.left -= i128::from(amount) * NANOS as i128;
                    }
                }
                let earliest = bucket.start(&limit, bytes, now);
                let start = bucket.take(&limit, bytes, now);
                assert_eq!(start, earliest);
                // Each share is rounded up to a nanosecond.
                let late = start.saturating_sub(expected);
                assert!(start >= now.min(expected) && late <= step + 1, "seed {seed}, {step}");
                assert!(start + 1 + step >= expected, "seed {seed}, {step}: {start}, {expected}");
                started.push((start, bytes));
            }
            // No interval has more than the rate allows, and one burst or one larger request.
            for first in 0..started.len() {
                let mut sums = [0u128; 2];
                for &(start, bytes) in &started[first..] {
                    sums = [sums[0] + 1, sums[1] + u128::from(bytes)];
                    let time = u128::from(start - started[first].0 + burst);
                    for ((sum, rate), most) in sums.iter().zip(rates).zip([1, 64 << 20]) {
                        let Some(rate) = rate else { continue };
                        let allowed = time * u128::from(rate) / NANOS;
                        let larger = if u128::from(burst) * u128::from(rate) / NANOS < most {
                            most
                        } else {
                            0
                        };
                        assert!(*sum <= allowed + larger, "seed {seed}: {sum} over {allowed}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_bucket_used_up_for_ever_overflows_nowhere() {
        let rates = Rates { requests: None, bytes: Some(BYTES_MIN), burst_ns: 100_000_000 };
        let mut bucket = Bucket { used_until: [u64::MAX - 1; 2] };
        let start = bucket.take(&rates, u32::MAX.into(), 0);
        assert_eq!(start, u64::MAX - rates.burst_ns);
        assert_eq!(bucket.used_until, [u64::MAX - 1, u64::MAX]);
        bucket.give_back(&rates, 1 << 40);
        bucket.give_back(&Rates { bytes: None, ..rates }, 1);
        let cost = (1 << 40) / BYTES_MIN * NANOS as u64;
        assert_eq!(bucket.used_until, [u64::MAX - 1, u64::MAX - cost]);
    }
}
