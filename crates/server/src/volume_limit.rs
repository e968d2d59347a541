//! The limits of a volume's requests and connections, and the token bucket that enforces them.
//!
//! The bucket is a state machine without a clock. For each limited quantity it keeps the time until
//! which the volume has used up its share. A request starts at the latest `limit_burst_ms` before
//! that time, and moves it on by its own share. So in any interval at most the rate times the
//! interval, and one burst, starts. One larger than the burst waits until the bucket is full.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use floe_block::format_size;
use serde::{Deserialize, Deserializer, Serialize};

const NANOS: u128 = 1_000_000_000;

/// Default of the setting `limit-burst`, in milliseconds.
const BURST_MS: u64 = 100;

/// Largest burst, in milliseconds: an hour.
const BURST_MS_MAX: u64 = 3_600_000;

/// Largest limit of requests per second.
const REQUESTS_MAX: u64 = 1_000_000_000;

/// Largest limit of connections.
pub(crate) const CONNECTIONS_MAX: u64 = 65_536;

/// Smallest limit of bytes per second, below which a typing error is likely.
const BYTES_MIN: u64 = 4096;

/// The limits of a volume's requests and connections, over all of its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestLimit {
    /// Most requests per second; `None` for no limit.
    #[serde(default)]
    pub requests_per_second: Option<u64>,
    /// Most bytes per second that are read, written, zeroed or prefetched; `None` for no limit.
    #[serde(default)]
    pub bytes_per_second: Option<u64>,
    /// Milliseconds' worth of both limits that may start at once after a pause.
    #[serde(default = "default_burst")]
    pub limit_burst_ms: u64,
    /// Most connections of NBD clients and controllers of NVMe hosts at one time; `None` for no
    /// limit.
    #[serde(default)]
    pub connections: Option<u64>,
}

fn default_burst() -> u64 {
    BURST_MS
}

impl Default for RequestLimit {
    fn default() -> Self {
        Self::NONE
    }
}

impl RequestLimit {
    /// No limit.
    pub const NONE: Self = Self {
        requests_per_second: None,
        bytes_per_second: None,
        limit_burst_ms: BURST_MS,
        connections: None,
    };

    /// Returns whether there is any limit.
    pub fn is_any(&self) -> bool {
        self.has_rate() || self.connections.is_some()
    }

    /// Returns whether there is a limit of requests or bytes per second.
    pub fn has_rate(&self) -> bool {
        self.requests_per_second.is_some() || self.bytes_per_second.is_some()
    }

    /// Returns the first value that is out of its range: the setting's name, and the problem.
    pub(crate) fn out_of_range(&self) -> Option<(&'static str, String)> {
        let Self { requests_per_second, bytes_per_second, limit_burst_ms, connections } = *self;
        let requests = requests_per_second.filter(|it| !(1..=REQUESTS_MAX).contains(it));
        let requests = requests.map(|it| {
            let problem = format!("requests-per-second = {it} is not between 1 and {REQUESTS_MAX}");
            ("requests-per-second", problem)
        });
        let bytes = bytes_per_second.filter(|bytes| *bytes < BYTES_MIN).map(|bytes| {
            let least = format_size(BYTES_MIN);
            let problem = format!(
                "bytes-per-second = {bytes} is less than {least}; write for example 100MiB"
            );
            ("bytes-per-second", problem)
        });
        let is_burst = (1..=BURST_MS_MAX).contains(&limit_burst_ms);
        let burst = (!is_burst).then(|| {
            let problem = format!(
                "limit-burst = {limit_burst_ms}ms is not between 1ms and 1h; write for example \
                 100ms"
            );
            ("limit-burst", problem)
        });
        let connections = connections.filter(|it| !(1..=CONNECTIONS_MAX).contains(it)).map(|it| {
            let problem = format!("connections = {it} is not between 1 and {CONNECTIONS_MAX}");
            ("connections", problem)
        });
        requests.or(bytes).or(burst).or(connections)
    }

    fn burst_ns(&self) -> u64 {
        self.limit_burst_ms * 1_000_000
    }

    /// Returns the times that a request of so many bytes uses up: of the limit of requests, and of
    /// that of bytes.
    fn costs_ns(&self, bytes: u64) -> [Option<u64>; 2] {
        let cost =
            |amount: u64, rate: u64| (u128::from(amount) * NANOS).div_ceil(rate.into()) as u64;
        [
            self.requests_per_second.map(|rate| cost(1, rate)),
            self.bytes_per_second.map(|rate| cost(bytes, rate)),
        ]
    }
}

/// The request body that changes the limits of a volume. A field that is left out stays as it is,
/// and `null` lifts a limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitChange {
    /// Most requests per second.
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub requests_per_second: Option<Option<u64>>,
    /// Most bytes per second.
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<Option<u64>>,
    /// Milliseconds' worth of both limits that may start at once after a pause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_burst_ms: Option<u64>,
    /// Most connections at one time.
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub connections: Option<Option<u64>>,
}

/// Deserialises a field that is there, even if it is null.
fn given<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Option<u64>>, D::Error> {
    Option::deserialize(from).map(Some)
}

impl LimitChange {
    /// Returns whether nothing is to change.
    pub(crate) fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the first value that no volume can have, as an error message.
    pub fn out_of_range(&self) -> Option<String> {
        self.of(RequestLimit::default()).out_of_range().map(|(_, problem)| problem)
    }

    fn of(&self, before: RequestLimit) -> RequestLimit {
        RequestLimit {
            requests_per_second: self.requests_per_second.unwrap_or(before.requests_per_second),
            bytes_per_second: self.bytes_per_second.unwrap_or(before.bytes_per_second),
            limit_burst_ms: self.limit_burst_ms.unwrap_or(before.limit_burst_ms),
            connections: self.connections.unwrap_or(before.connections),
        }
    }

    /// Returns the limits after the change.
    ///
    /// # Errors
    /// The value that cannot be used.
    pub(crate) fn applied(&self, before: RequestLimit) -> Result<RequestLimit, String> {
        if let Some(problem) = self.out_of_range() {
            return Err(problem);
        }
        let limit = self.of(before);
        if self.limit_burst_ms.is_some() && !limit.has_rate() {
            return Err("limit-burst needs requests-per-second or bytes-per-second".to_owned());
        }
        Ok(limit)
    }
}

/// The token bucket of a volume. Times are in nanoseconds from the same origin.
#[derive(Debug, Clone, Copy, Default)]
struct Bucket {
    /// Times until which the limits of requests and of bytes are used up.
    used_until: [u64; 2],
}

impl Bucket {
    /// Takes the share of a request that asks at the time `now`, and returns the time at which it
    /// may start. Requests start in the order of these calls.
    fn take(&mut self, limit: &RequestLimit, bytes: u64, now: u64) -> u64 {
        let (burst, costs) = (limit.burst_ns(), limit.costs_ns(bytes));
        let shares = || self.used_until.iter().zip(costs);
        let starts = shares().filter_map(|(used, cost)| {
            Some(used.saturating_add(cost?.min(burst)).saturating_sub(burst))
        });
        let start = starts.fold(now, u64::max);
        for (used, cost) in self.used_until.iter_mut().zip(costs) {
            if let Some(cost) = cost {
                // A bucket that is full takes no more.
                *used = (*used).max(start).saturating_add(cost);
            }
        }
        start
    }

    /// Gives back the share of a request that will not start.
    fn give_back(&mut self, limit: &RequestLimit, bytes: u64) {
        for (used, cost) in self.used_until.iter_mut().zip(limit.costs_ns(bytes)) {
            *used = used.saturating_sub(cost.unwrap_or(0));
        }
    }

    /// Forgets the shares of requests that have not started.
    fn forgive(&mut self, now: u64) {
        self.used_until.iter_mut().for_each(|used| *used = (*used).min(now));
    }
}

/// The limits of a volume and its bucket, which all workers share.
///
/// Only requests to a volume with a limit take the lock, each once and for some nanoseconds.
#[derive(Debug)]
pub struct VolumeLimit {
    origin: Instant,
    state: Mutex<(RequestLimit, Bucket)>,
}

impl VolumeLimit {
    pub(crate) fn new(limit: RequestLimit) -> Self {
        Self::since(limit, Instant::now())
    }

    /// Creates a full bucket for these limits, whose times count from `origin`.
    pub fn since(limit: RequestLimit, origin: Instant) -> Self {
        Self { origin, state: Mutex::new((limit, Bucket::default())) }
    }

    pub(crate) fn limit(&self) -> RequestLimit {
        self.lock().0
    }

    /// Changes the limits. Requests that wait for their start must ask again.
    pub(crate) fn change(&self, limit: RequestLimit, now: Instant) {
        let now = self.nanos(now);
        let mut state = self.lock();
        state.0 = limit;
        state.1.forgive(now);
    }

    /// Takes the share of a request, and returns the time at which it may start.
    pub fn take(&self, bytes: u64, now: Instant) -> Instant {
        let since = self.nanos(now);
        let (limit, bucket) = &mut *self.lock();
        match bucket.take(limit, bytes, since) {
            start if start <= since => now,
            start => self.origin + Duration::from_nanos(start),
        }
    }

    /// Gives back the share of a request that was taken and will not start.
    pub(crate) fn give_back(&self, bytes: u64) {
        let (limit, bucket) = &mut *self.lock();
        bucket.give_back(limit, bytes);
    }

    fn nanos(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.origin).as_nanos() as u64
    }

    fn lock(&self) -> MutexGuard<'_, (RequestLimit, Bucket)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
            let mut limit = RequestLimit {
                requests_per_second: Some([1, 7, 1000, 1_000_000][random.below(4)]),
                bytes_per_second: Some([4096, 1 << 20, 10 << 30][random.below(3)]),
                limit_burst_ms: [1, 100, 5000][random.below(3)],
                connections: None,
            };
            match random.below(4) {
                0 => limit.requests_per_second = None,
                1 => limit.bytes_per_second = None,
                _ => {}
            }
            let (mut bucket, burst) = (Bucket::default(), limit.burst_ns());
            let rates = [limit.requests_per_second, limit.bytes_per_second];
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
                let start = bucket.take(&limit, bytes, now);
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
        let limit = RequestLimit { bytes_per_second: Some(BYTES_MIN), ..RequestLimit::default() };
        let mut bucket = Bucket { used_until: [u64::MAX - 1; 2] };
        let start = bucket.take(&limit, u32::MAX.into(), 0);
        assert_eq!(start, u64::MAX - limit.burst_ns());
        assert_eq!(bucket.used_until, [u64::MAX - 1, u64::MAX]);
        bucket.give_back(&limit, 1 << 40);
        bucket.give_back(&RequestLimit { bytes_per_second: None, ..limit }, 1);
        let cost = (1 << 40) / BYTES_MIN * NANOS as u64;
        assert_eq!(bucket.used_until, [u64::MAX - 1, u64::MAX - cost]);
    }

    #[test]
    fn a_change_keeps_what_is_given_and_forgives_what_waits() {
        let change: LimitChange = serde_json::from_str(r#"{"requests_per_second": 5}"#).unwrap();
        let first = change.applied(RequestLimit::default()).unwrap();
        assert_eq!((first.requests_per_second, first.bytes_per_second), (Some(5), None));
        let lift: LimitChange =
            serde_json::from_str(r#"{"requests_per_second": null, "bytes_per_second": 8192}"#)
                .unwrap();
        let second = lift.applied(first).unwrap();
        assert_eq!((second.requests_per_second, second.bytes_per_second), (None, Some(8192)));
        let none = RequestLimit::default();
        for (text, why) in [
            (r#"{"requests_per_second": 0}"#, "requests-per-second"),
            (r#"{"bytes_per_second": 4095}"#, "4KiB"),
            (r#"{"bytes_per_second": 4096, "limit_burst_ms": 0}"#, "limit-burst"),
            (r#"{"limit_burst_ms": 5}"#, "needs"),
        ] {
            let change: LimitChange = serde_json::from_str(text).unwrap();
            assert!(change.applied(none).unwrap_err().contains(why), "{text}");
        }
        let slow = RequestLimit { bytes_per_second: Some(4096), ..none };
        let (volume, begun) = (VolumeLimit::new(slow), Instant::now());
        assert_eq!(volume.take(1 << 20, begun), begun);
        assert!(volume.take(1, begun) > begun + Duration::from_secs(200));
        volume.change(RequestLimit { bytes_per_second: Some(1 << 30), ..none }, begun);
        assert!(volume.take(1, begun) <= begun + Duration::from_millis(1));
    }
}
