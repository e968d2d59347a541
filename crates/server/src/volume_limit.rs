//! The limits of a volume's requests and connections, and the token buckets that enforce those of
//! requests: one of the volume, and one of each of its clients.
//!
//! A bucket is a state machine without a clock. For each limited quantity it keeps the time until
//! which the volume or the client has used up its share. A request starts at the latest
//! `limit_burst_ms` before that time, and moves it on by its own share. So in any interval at most
//! the rate times the interval, and one burst, starts. One larger than the burst waits until the
//! bucket is full.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use floe_block::format_size;
use serde::{Deserialize, Deserializer, Serialize};

const NANOS: u128 = 1_000_000_000;

/// Default of the setting `limit-burst`, in milliseconds.
const BURST_MS: u64 = 100;

/// Largest burst, in milliseconds: an hour.
const BURST_MS_MAX: u64 = 3_600_000;

/// The problem of a burst without a limit that it applies to.
pub(crate) const BURST_NEEDS: &str =
    "limit-burst needs requests-per-second, bytes-per-second or one of them for each client";

/// Largest limit of requests per second.
const REQUESTS_MAX: u64 = 1_000_000_000;

/// Largest limit of connections.
pub(crate) const CONNECTIONS_MAX: u64 = 65_536;

/// Smallest limit of bytes per second, below which a typing error is likely.
const BYTES_MIN: u64 = 4096;

/// The limits of a volume's requests and connections, over all of its clients and for each of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestLimit {
    /// Most requests per second; `None` for no limit.
    #[serde(default)]
    pub requests_per_second: Option<u64>,
    /// Most bytes per second that are read, written, zeroed or prefetched; `None` for no limit.
    #[serde(default)]
    pub bytes_per_second: Option<u64>,
    /// Milliseconds' worth of the limits that may start at once after a pause.
    #[serde(default = "default_burst")]
    pub limit_burst_ms: u64,
    /// Most connections of NBD clients and controllers of NVMe hosts at one time; `None` for no
    /// limit.
    #[serde(default)]
    pub connections: Option<u64>,
    /// Most requests per second of each client; `None` for no limit.
    #[serde(default)]
    pub client_requests_per_second: Option<u64>,
    /// Most bytes per second of each client; `None` for no limit.
    #[serde(default)]
    pub client_bytes_per_second: Option<u64>,
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
        client_requests_per_second: None,
        client_bytes_per_second: None,
    };

    /// Returns whether there is any limit.
    pub fn is_any(&self) -> bool {
        self.has_rate() || self.connections.is_some()
    }

    /// Returns whether there is a limit of requests or bytes per second.
    pub fn has_rate(&self) -> bool {
        self.has_volume_rate() || self.has_client_rate()
    }

    /// Returns whether all clients together have a limit of requests or bytes per second.
    pub fn has_volume_rate(&self) -> bool {
        self.of_volume().is_any()
    }

    /// Returns whether each client has a limit of requests or bytes per second.
    pub(crate) fn has_client_rate(&self) -> bool {
        self.of_client().is_any()
    }

    /// Returns the rates of all clients together.
    fn of_volume(&self) -> Rates {
        Rates {
            requests: self.requests_per_second,
            bytes: self.bytes_per_second,
            burst_ns: self.burst_ns(),
        }
    }

    /// Returns the rates of each client.
    fn of_client(&self) -> Rates {
        Rates {
            requests: self.client_requests_per_second,
            bytes: self.client_bytes_per_second,
            burst_ns: self.burst_ns(),
        }
    }

    /// Returns the first value that is out of its range: the setting's name, and the problem.
    pub(crate) fn out_of_range(&self) -> Option<(&'static str, String)> {
        let Self { limit_burst_ms, connections, .. } = *self;
        let requests = [
            ("requests-per-second", self.requests_per_second),
            ("client-requests-per-second", self.client_requests_per_second),
        ];
        let requests = requests.into_iter().find_map(|(name, rate)| {
            let rate = rate.filter(|rate| !(1..=REQUESTS_MAX).contains(rate))?;
            Some((name, format!("{name} = {rate} is not between 1 and {REQUESTS_MAX}")))
        });
        let bytes = [
            ("bytes-per-second", self.bytes_per_second),
            ("client-bytes-per-second", self.client_bytes_per_second),
        ];
        let bytes = bytes.into_iter().find_map(|(name, rate)| {
            let (rate, least) = (rate.filter(|rate| *rate < BYTES_MIN)?, format_size(BYTES_MIN));
            let problem = format!("{name} = {rate} is less than {least}; write for example 100MiB");
            Some((name, problem))
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
}

/// The rates of one bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rates {
    /// Requests per second; `None` for no limit.
    requests: Option<u64>,
    /// Bytes per second; `None` for no limit.
    bytes: Option<u64>,
    burst_ns: u64,
}

impl Rates {
    fn is_any(&self) -> bool {
        self.requests.is_some() || self.bytes.is_some()
    }

    /// Returns the times that a request of so many bytes uses up: of the limit of requests, and of
    /// that of bytes.
    fn costs_ns(&self, bytes: u64) -> [Option<u64>; 2] {
        let cost =
            |amount: u64, rate: u64| (u128::from(amount) * NANOS).div_ceil(rate.into()) as u64;
        [self.requests.map(|rate| cost(1, rate)), self.bytes.map(|rate| cost(bytes, rate))]
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
    /// Milliseconds' worth of the limits that may start at once after a pause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_burst_ms: Option<u64>,
    /// Most connections at one time.
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub connections: Option<Option<u64>>,
    /// Most requests per second of each client.
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub client_requests_per_second: Option<Option<u64>>,
    /// Most bytes per second of each client.
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub client_bytes_per_second: Option<Option<u64>>,
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
            client_requests_per_second: self
                .client_requests_per_second
                .unwrap_or(before.client_requests_per_second),
            client_bytes_per_second: self
                .client_bytes_per_second
                .unwrap_or(before.client_bytes_per_second),
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
            return Err(BURST_NEEDS.to_owned());
        }
        Ok(limit)
    }
}

/// The token bucket of a volume or a client. Times are in nanoseconds from the same origin.
#[derive(Debug, Clone, Copy, Default)]
struct Bucket {
    /// Times until which the limits of requests and of bytes are used up.
    used_until: [u64; 2],
}

impl Bucket {
    /// Takes the share of a request that asks at the time `now`, and returns the time at which it
    /// may start. Requests start in the order of these calls.
    fn take(&mut self, rates: &Rates, bytes: u64, now: u64) -> u64 {
        let (burst, costs) = (rates.burst_ns, rates.costs_ns(bytes));
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
    fn give_back(&mut self, rates: &Rates, bytes: u64) {
        for (used, cost) in self.used_until.iter_mut().zip(rates.costs_ns(bytes)) {
            *used = used.saturating_sub(cost.unwrap_or(0));
        }
    }

    /// Returns whether anything is used up at the time `now`.
    fn has_debt(&self, now: u64) -> bool {
        self.used_until.iter().any(|used| *used > now)
    }

    /// Forgets the shares of requests that have not started.
    fn forgive(&mut self, now: u64) {
        self.used_until.iter_mut().for_each(|used| *used = (*used).min(now));
    }
}

/// Name of a client, by which all of its connections are known.
pub(crate) type ClientName = Arc<str>;

/// The bucket from which a request takes its share.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Scope<'a> {
    /// The bucket of the volume.
    Volume,
    /// The bucket of one client of the volume.
    Client(&'a ClientName),
}

/// The share of a bucket that a request has taken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Share {
    /// Time at which the request may start.
    pub(crate) start: Instant,
    /// Number of the changes that the rates of the bucket had had before.
    changes: u64,
    /// True if clients without a bucket of their own share the bucket.
    of_others: bool,
}

/// Number of clients from which on the buckets of those without debt are removed.
const CLIENTS_KEPT: usize = 64;

/// Most clients of a volume that have a bucket of their own.
const CLIENTS_MOST: usize = 65_536;

/// Shortest time between two searches for clients without debt while there are [`CLIENTS_MOST`]: a
/// second, in nanoseconds.
const SEARCH_INTERVAL_NS: u64 = 1_000_000_000;

/// The limits of a volume and its buckets, which all workers share.
///
/// Only requests to a volume with a limit take the lock, once for each of their buckets and for
/// some nanoseconds. A search for clients without debt takes longer: milliseconds while there are
/// 65,536, at most once a second.
#[derive(Debug)]
pub struct VolumeLimit {
    origin: Instant,
    state: Mutex<LimitState>,
}

#[derive(Debug, Default)]
struct LimitState {
    limit: RequestLimit,
    volume: Bucket,
    clients: ClientBuckets,
    /// Number of changes of the volume's rates.
    volume_changes: u64,
    /// Number of changes of the clients' rates.
    client_changes: u64,
}

/// The buckets of a volume's clients. A bucket that is missing is full, so a client that comes back
/// finds its bucket as it left it.
#[derive(Debug)]
struct ClientBuckets {
    buckets: HashMap<ClientName, Bucket>,
    /// Number of buckets at which those without debt are removed.
    most: usize,
    /// Time of the next search for clients without debt, if there are [`CLIENTS_MOST`].
    search_at: u64,
    /// The bucket that all clients beyond [`CLIENTS_MOST`] share.
    others: Bucket,
}

impl Default for ClientBuckets {
    fn default() -> Self {
        let (buckets, others) = Default::default();
        Self { buckets, most: CLIENTS_KEPT, search_at: 0, others }
    }
}

impl ClientBuckets {
    /// Returns the bucket of a client, and whether that is the one of all others.
    fn of(&mut self, client: &ClientName, now: u64) -> (&mut Bucket, bool) {
        if !self.buckets.contains_key(client) {
            let is_full = self.buckets.len() >= CLIENTS_MOST;
            if self.buckets.len() >= self.most && (!is_full || now >= self.search_at) {
                self.buckets.retain(|_, bucket| bucket.has_debt(now));
                self.most = (2 * self.buckets.len()).clamp(CLIENTS_KEPT, CLIENTS_MOST);
                self.buckets.shrink_to(self.most);
                self.search_at = now + SEARCH_INTERVAL_NS;
            }
            if self.buckets.len() >= CLIENTS_MOST {
                return (&mut self.others, true);
            }
            self.buckets.insert(Arc::clone(client), Bucket::default());
        }
        (self.buckets.get_mut(client).expect("it was inserted if it was missing"), false)
    }
}

impl LimitState {
    /// Returns the number of changes of a bucket's rates.
    fn changes(&self, scope: Scope<'_>) -> u64 {
        match scope {
            Scope::Volume => self.volume_changes,
            Scope::Client(_) => self.client_changes,
        }
    }

    /// Returns the rates of a bucket, the bucket, and whether clients without one share it.
    fn of(&mut self, scope: Scope<'_>, now: u64) -> (Rates, &mut Bucket, bool) {
        match scope {
            Scope::Volume => (self.limit.of_volume(), &mut self.volume, false),
            Scope::Client(client) => {
                let (bucket, of_others) = self.clients.of(client, now);
                (self.limit.of_client(), bucket, of_others)
            }
        }
    }
}

impl VolumeLimit {
    pub(crate) fn new(limit: RequestLimit) -> Self {
        Self::since(limit, Instant::now())
    }

    /// Creates full buckets for these limits, whose times count from `origin`.
    pub fn since(limit: RequestLimit, origin: Instant) -> Self {
        Self { origin, state: Mutex::new(LimitState { limit, ..LimitState::default() }) }
    }

    pub(crate) fn limit(&self) -> RequestLimit {
        self.lock().limit
    }

    /// Changes the limits. Requests that wait for a rate that changes must ask again
    /// ([`VolumeLimit::is_current`]). Other rates keep their buckets as they are.
    pub(crate) fn change(&self, limit: RequestLimit, now: Instant) {
        let now = self.nanos(now);
        let mut state = self.lock();
        let before = std::mem::replace(&mut state.limit, limit);
        if before.of_volume() != limit.of_volume() {
            state.volume.forgive(now);
            state.volume_changes += 1;
        }
        let mut clients = None;
        if before.of_client() != limit.of_client() {
            clients = Some(std::mem::take(&mut state.clients));
            state.client_changes += 1;
        }
        drop(state);
        drop(clients); // many names take a while, and no request waits for that
    }

    /// Takes the share of a request from the volume's bucket, and returns the time at which it may
    /// start.
    pub fn take(&self, bytes: u64, now: Instant) -> Instant {
        self.reserve(Scope::Volume, bytes, now).start
    }

    /// Takes the share of a request from a bucket.
    pub(crate) fn reserve(&self, scope: Scope<'_>, bytes: u64, now: Instant) -> Share {
        let since = self.nanos(now);
        let mut state = self.lock();
        let changes = state.changes(scope);
        let (rates, bucket, of_others) = state.of(scope, since);
        let start = match bucket.take(&rates, bytes, since) {
            start if start <= since => now,
            start => self.origin + Duration::from_nanos(start),
        };
        Share { start, changes, of_others }
    }

    /// Returns whether the rates of a bucket are those by which the share was taken.
    pub(crate) fn is_current(&self, scope: Scope<'_>, share: Share) -> bool {
        self.lock().changes(scope) == share.changes
    }

    /// Gives back the share of a request that will not start. After a change of the bucket's rates
    /// there is nothing to give back.
    pub(crate) fn give_back(&self, scope: Scope<'_>, bytes: u64, share: Share) {
        let mut state = self.lock();
        if state.changes(scope) != share.changes {
            return;
        }
        let LimitState { limit, volume, clients, .. } = &mut *state;
        let (rates, bucket) = match scope {
            Scope::Volume => (limit.of_volume(), Some(volume)),
            Scope::Client(_) if share.of_others => (limit.of_client(), Some(&mut clients.others)),
            Scope::Client(client) => (limit.of_client(), clients.buckets.get_mut(client)),
        };
        bucket.into_iter().for_each(|bucket| bucket.give_back(&rates, bytes));
    }

    fn nanos(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.origin).as_nanos() as u64
    }

    fn lock(&self) -> MutexGuard<'_, LimitState> {
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
                ..RequestLimit::NONE
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
                let start = bucket.take(&limit.of_volume(), bytes, now);
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
        let start = bucket.take(&limit.of_volume(), u32::MAX.into(), 0);
        assert_eq!(start, u64::MAX - limit.burst_ns());
        assert_eq!(bucket.used_until, [u64::MAX - 1, u64::MAX]);
        bucket.give_back(&limit.of_volume(), 1 << 40);
        bucket.give_back(&Rates { bytes: None, ..limit.of_volume() }, 1);
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

    /// Limits each client to one request a second, and as many at once.
    const ONE_EACH: RequestLimit = RequestLimit {
        client_requests_per_second: Some(1),
        limit_burst_ms: 1000,
        ..RequestLimit::NONE
    };

    const SECOND: Duration = Duration::from_secs(1);

    fn name(number: usize) -> ClientName {
        number.to_string().into()
    }

    #[test]
    fn each_client_has_a_bucket_and_keeps_it_while_it_is_away() {
        let (volume, begun) = (VolumeLimit::new(ONE_EACH), Instant::now());
        let take = |number, now| volume.reserve(Scope::Client(&name(number)), 0, now);
        for number in 0..1000 {
            assert_eq!(take(number, begun).start, begun);
            assert_eq!(volume.take(0, begun), begun, "it has no limit");
        }
        let buckets = || volume.lock().clients.buckets.len();
        assert_eq!(buckets(), 1000, "none is full again");
        let share = take(3, begun);
        assert_eq!(share.start, begun + SECOND, "also after others came");
        volume.give_back(Scope::Client(&name(3)), 0, share);
        assert_eq!(take(3, begun).start, begun + SECOND);
        // Those that are full again are forgotten when many more come.
        let later = begun + 2 * SECOND;
        for number in 1000..2000 {
            assert_eq!(take(number, later).start, later);
        }
        assert!(buckets() <= 1100, "{}", buckets());
        assert_eq!(take(1500, later).start, later + SECOND);
    }

    #[test]
    fn clients_beyond_the_most_share_a_bucket_until_others_have_no_debt() {
        let (volume, begun) = (VolumeLimit::new(ONE_EACH), Instant::now());
        let take = |number, now| volume.reserve(Scope::Client(&name(number)), 0, now);
        let buckets = || volume.lock().clients.buckets.len();
        for number in 0..CLIENTS_MOST {
            assert_eq!(take(number, begun).start, begun);
        }
        let [first, second, third] = [1, 2, 3].map(|more| take(CLIENTS_MOST + more, begun));
        assert_eq!(
            [first, second, third].map(|share| share.start),
            [begun, begun + SECOND, begun + 2 * SECOND]
        );
        assert_eq!(buckets(), CLIENTS_MOST);
        // They give back to the bucket that they took from, and the others have their own.
        volume.give_back(Scope::Client(&name(CLIENTS_MOST + 3)), 0, third);
        assert_eq!(take(CLIENTS_MOST + 4, begun).start, begun + 2 * SECOND);
        assert_eq!(take(5, begun).start, begun + SECOND);
        // Of the names that are known, one has debt by then.
        let later = begun + SECOND * 3 / 2;
        assert_eq!(take(CLIENTS_MOST + 2, later).start, later, "a bucket of its own");
        assert_eq!(buckets(), 2);
        assert_eq!(take(5, later).start, begun + 2 * SECOND);
        volume.give_back(Scope::Client(&name(CLIENTS_MOST + 2)), 0, second);
        assert_eq!(take(CLIENTS_MOST + 2, later).start, later + SECOND, "taken from the others'");
    }

    #[test]
    fn a_change_forgives_only_the_debts_of_the_rates_that_it_changes() {
        let limit = RequestLimit { requests_per_second: Some(1), ..ONE_EACH };
        let (volume, begun) = (VolumeLimit::new(limit), Instant::now());
        let client = name(1);
        let scopes = [Scope::Volume, Scope::Client(&client)];
        let starts = || scopes.map(|scope| volume.reserve(scope, 0, begun).start);
        assert_eq!(starts(), [begun; 2]);
        let shares = scopes.map(|scope| volume.reserve(scope, 0, begun));
        assert_eq!(shares.map(|share| share.start), [begun + SECOND; 2]);
        let current = || [0, 1].map(|at| volume.is_current(scopes[at], shares[at]));

        volume.change(RequestLimit { connections: Some(5), ..limit }, begun);
        assert_eq!(current(), [true, true]);
        assert_eq!(starts(), [begun + 2 * SECOND; 2]);

        volume.change(RequestLimit { requests_per_second: Some(2), ..limit }, begun);
        assert_eq!(current(), [false, true]);
        assert_eq!(starts(), [begun, begun + 3 * SECOND]);

        let both = RequestLimit { client_requests_per_second: Some(2), ..limit };
        volume.change(RequestLimit { requests_per_second: Some(2), ..both }, begun);
        assert_eq!(current(), [false, false]);
        let second = starts();
        assert_eq!(second[1], begun);
        // What was taken before is not given back to the new buckets.
        (0..2).for_each(|at| volume.give_back(scopes[at], 0, shares[at]));
        assert_eq!(starts(), [second[0] + SECOND / 2, begun]);
        assert_eq!(starts(), [second[0] + SECOND, begun + SECOND / 2]);
    }
}
