//! The limits of a volume's requests and connections, and the token buckets that enforce those of
//! requests: one of the volume, and one of each of its clients.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use floe_block::format_size;
use serde::{Deserialize, Deserializer, Serialize};

use crate::rate::{Bucket, Rates};

/// Default of the setting `limit-burst`, in milliseconds.
pub(crate) const BURST_MS: u64 = 100;

/// Largest burst, in milliseconds: an hour.
const BURST_MS_MAX: u64 = 3_600_000;

/// The problem of a burst without a limit that it applies to.
pub(crate) const BURST_NEEDS: &str =
    "limit-burst needs requests-per-second, bytes-per-second or one of them for each client";

/// Largest limit of requests per second.
const REQUESTS_MAX: u64 = 1_000_000_000;

/// Largest limit of connections.
pub(crate) const CONNECTIONS_MAX: u64 = 65_536;

/// Weight of a volume without a weight of its own.
pub(crate) const WEIGHT: u64 = 100;

/// Largest weight of a volume.
const WEIGHT_MAX: u64 = 1000;

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
    /// The volume's part of the limits of the server, in proportion to the weights of other
    /// volumes: 1 to 1000.
    #[serde(default = "default_weight")]
    pub weight: u64,
}

fn default_weight() -> u64 {
    WEIGHT
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
        weight: WEIGHT,
    };

    /// Returns whether there is any limit.
    pub fn is_any(&self) -> bool {
        self.has_rate() || self.connections.is_some()
    }

    /// Returns whether the weight is not that of a volume without one.
    pub fn has_weight(&self) -> bool {
        self.weight != WEIGHT
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
    pub(crate) fn out_of_range(&self) -> Option<Wrong> {
        let [requests, of_client] = [self.requests_per_second, self.client_requests_per_second];
        let [bytes, bytes_of_client] = [self.bytes_per_second, self.client_bytes_per_second];
        requests_out_of_range("requests-per-second", requests)
            .or_else(|| requests_out_of_range("client-requests-per-second", of_client))
            .or_else(|| bytes_out_of_range("bytes-per-second", bytes))
            .or_else(|| bytes_out_of_range("client-bytes-per-second", bytes_of_client))
            .or_else(|| burst_out_of_range("limit-burst", self.limit_burst_ms))
            .or_else(|| number_out_of_range("connections", self.connections, CONNECTIONS_MAX))
            .or_else(|| number_out_of_range("weight", Some(self.weight), WEIGHT_MAX))
    }

    fn burst_ns(&self) -> u64 {
        self.limit_burst_ms * 1_000_000
    }
}

/// A setting that is out of its range: its name, and the problem.
type Wrong = (&'static str, String);

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

/// Returns the problem of a number that is not between 1 and `most`.
fn number_out_of_range(name: &'static str, number: Option<u64>, most: u64) -> Option<Wrong> {
    let number = number.filter(|number| !(1..=most).contains(number))?;
    Some((name, format!("{name} = {number} is not between 1 and {most}")))
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
    /// The volume's weight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u64>,
}

/// Deserialises a field that is there, even if it is null.
pub(crate) fn given<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Option<u64>>, D::Error> {
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
            weight: self.weight.unwrap_or(before.weight),
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
    use super::*;

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
