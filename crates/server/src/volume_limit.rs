//! The limits of a volume's requests and connections, and the token buckets that enforce those of
//! requests: one of the volume, and one of each of its clients.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::client_name::ClientName;
use crate::named_clients::{ClientChanges, NamedClients, given_clients};
use crate::rate::SharedRate;
use crate::rate::{
    BURST_MS, Bucket, Rates, WEIGHT, Wrong, burst_out_of_range, bytes_out_of_range,
    number_out_of_range, requests_out_of_range, weight_out_of_range,
};
use crate::total_limit::given;

/// The problem of a burst without a limit that it applies to.
pub(crate) const BURST_NEEDS: &str =
    "limit-burst needs requests-per-second, bytes-per-second or one of them for each client";

/// Largest limit of connections.
pub(crate) const CONNECTIONS_MAX: u64 = 65_536;

/// The limits of a volume's requests and connections, over all of its clients and for each of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Clients that have limits of their own instead.
    #[serde(default)]
    pub clients: NamedClients,
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
        clients: NamedClients::NONE,
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

    /// Returns whether requests may have to wait, or are counted by name.
    pub(crate) fn concerns_requests(&self) -> bool {
        self.has_rate() || self.clients != NamedClients::NONE
    }

    /// Returns whether all clients together have a limit of requests or bytes per second.
    pub fn has_volume_rate(&self) -> bool {
        self.of_volume().is_any()
    }

    /// Returns whether the clients of the volume share its limits by weight.
    fn is_shared_by_weight(&self) -> bool {
        self.has_volume_rate() && self.clients.has_weight()
    }

    /// Returns whether any client has a limit of requests or bytes per second.
    pub(crate) fn has_client_rate(&self) -> bool {
        self.limits_each_client() || self.clients.has_rate()
    }

    /// Returns whether each client without limits of its own has a limit.
    pub(crate) fn limits_each_client(&self) -> bool {
        self.of_each_client().is_any()
    }

    /// Returns the rates of all clients together.
    fn of_volume(&self) -> Rates {
        Rates {
            requests: self.requests_per_second,
            bytes: self.bytes_per_second,
            burst_ns: self.burst_ns(),
        }
    }

    /// Returns the rates of each client without limits of its own.
    fn of_each_client(&self) -> Rates {
        Rates {
            requests: self.client_requests_per_second,
            bytes: self.client_bytes_per_second,
            burst_ns: self.burst_ns(),
        }
    }

    /// Returns the rates of a client.
    fn of_client(&self, client: &ClientName) -> Rates {
        match self.clients.get(client) {
            None => self.of_each_client(),
            Some(limit) => Rates {
                requests: limit.requests_per_second,
                bytes: limit.bytes_per_second,
                burst_ns: self.burst_ns(),
            },
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
            .or_else(|| weight_out_of_range(self.weight))
            .or_else(|| {
                let problem = self.clients.problem(self.limits_each_client())?;
                Some(("clients", problem))
            })
    }

    fn burst_ns(&self) -> u64 {
        self.limit_burst_ms * 1_000_000
    }
}

/// The request body that changes the limits of a volume. A field that is left out stays as it is,
/// and `null` lifts a limit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Clients that get limits of their own, and those that have none any more (`null`).
    #[serde(deserialize_with = "given_clients", skip_serializing_if = "BTreeMap::is_empty")]
    pub clients: ClientChanges,
    /// The volume's weight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u64>,
}

impl LimitChange {
    /// Returns whether nothing is to change.
    pub(crate) fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the first value that no volume can have, as an error message.
    pub fn out_of_range(&self) -> Option<String> {
        self.of(&RequestLimit::NONE).out_of_range().map(|(_, problem)| problem)
    }

    fn of(&self, before: &RequestLimit) -> RequestLimit {
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
            clients: before.clients.changed(&self.clients),
            weight: self.weight.unwrap_or(before.weight),
        }
    }

    /// Returns the limits after the change.
    ///
    /// # Errors
    /// The value that cannot be used.
    pub(crate) fn applied(&self, before: &RequestLimit) -> Result<RequestLimit, String> {
        let limit = self.of(before);
        if let Some((_, problem)) = limit.out_of_range() {
            return Err(problem);
        }
        if self.limit_burst_ms.is_some() && !limit.has_rate() {
            return Err(BURST_NEEDS.to_owned());
        }
        Ok(limit)
    }
}

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
    /// The rate of the volume instead of its bucket, if its clients share it by weight.
    by_weight: Option<Arc<SharedRate>>,
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
    /// Returns the bucket of a client, and whether that is the one of clients beyond the most. A
    /// named client always has its own.
    fn of(&mut self, client: &ClientName, is_named: bool, now: u64) -> (&mut Bucket, bool) {
        if !self.buckets.contains_key(client) {
            let is_full = self.buckets.len() >= CLIENTS_MOST;
            if self.buckets.len() >= self.most && (!is_full || now >= self.search_at) {
                self.buckets.retain(|_, bucket| bucket.has_debt(now));
                self.most = (2 * self.buckets.len()).clamp(CLIENTS_KEPT, CLIENTS_MOST);
                self.buckets.shrink_to(self.most);
                self.search_at = now + SEARCH_INTERVAL_NS;
            }
            if self.buckets.len() >= CLIENTS_MOST && !is_named {
                return (&mut self.others, true);
            }
            self.buckets.insert(client.clone(), Bucket::default());
        }
        (self.buckets.get_mut(client).expect("it was inserted if it was missing"), false)
    }
}

impl LimitState {
    /// Has clients share the volume's rate by their weights, if it has any. A rate whose clients
    /// have the same numbers as before stays.
    fn set_weights(&mut self, before: &RequestLimit, origin: Instant, now: Instant) {
        let limit = &self.limit;
        let by_weight = self.by_weight.take();
        if !limit.is_shared_by_weight() {
            return;
        }
        let by_weight = by_weight.filter(|_| before.clients.have_names_of(&limit.clients));
        let rate =
            by_weight.unwrap_or_else(|| Arc::new(SharedRate::since(limit.of_volume(), origin)));
        rate.change(limit.of_volume(), now);
        rate.set_weights(0, WEIGHT, limit.clients.weights(), now);
        self.by_weight = Some(rate);
    }

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
                let is_named = self.limit.clients.get(client).is_some();
                let (bucket, of_others) = self.clients.of(client, is_named, now);
                (self.limit.of_client(client), bucket, of_others)
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
        let mut state = LimitState { limit, ..LimitState::default() };
        state.set_weights(&RequestLimit::NONE, origin, origin);
        Self { origin, state: Mutex::new(state) }
    }

    pub(crate) fn limit(&self) -> RequestLimit {
        self.lock().limit.clone()
    }

    /// Returns the limits, and the rate that clients share by weight: each has the number by which
    /// [`NamedClients::numbered`] names it.
    pub(crate) fn shared(&self) -> (RequestLimit, Option<Arc<SharedRate>>) {
        let state = self.lock();
        (state.limit.clone(), state.by_weight.clone())
    }

    /// Changes the limits. Requests that wait for a rate that changes must ask again
    /// ([`VolumeLimit::is_current`]). Other rates keep their buckets as they are.
    pub(crate) fn change(&self, limit: RequestLimit, now: Instant) {
        let (time, now) = (now, self.nanos(now));
        let mut state = self.lock();
        let before = std::mem::replace(&mut state.limit, limit);
        state.set_weights(&before, self.origin, time);
        let LimitState { limit, .. } = &*state;
        let changes_volume = before.of_volume() != limit.of_volume();
        let changes_clients = before.of_each_client() != limit.of_each_client()
            || !before.clients.have_rates_of(&limit.clients);
        if changes_volume {
            state.volume.forgive(now);
            state.volume_changes += 1;
        }
        let mut clients = None;
        if changes_clients {
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
        if let Scope::Client(client) = scope
            && !state.limit.of_client(client).is_any()
        {
            return Share { start: now, changes, of_others: false };
        }
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
            Scope::Client(client) => {
                let bucket = match share.of_others {
                    true => Some(&mut clients.others),
                    false => clients.buckets.get_mut(client),
                };
                (limit.of_client(client), bucket)
            }
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
        let first = change.applied(&RequestLimit::NONE).unwrap();
        assert_eq!((first.requests_per_second, first.bytes_per_second), (Some(5), None));
        let lift: LimitChange =
            serde_json::from_str(r#"{"requests_per_second": null, "bytes_per_second": 8192}"#)
                .unwrap();
        let second = lift.applied(&first).unwrap();
        assert_eq!((second.requests_per_second, second.bytes_per_second), (None, Some(8192)));
        let none = RequestLimit::NONE;
        for (text, why) in [
            (r#"{"requests_per_second": 0}"#, "requests-per-second"),
            (r#"{"bytes_per_second": 4095}"#, "4KiB"),
            (r#"{"bytes_per_second": 4096, "limit_burst_ms": 0}"#, "limit-burst"),
            (r#"{"limit_burst_ms": 5}"#, "needs"),
        ] {
            let change: LimitChange = serde_json::from_str(text).unwrap();
            assert!(change.applied(&none).unwrap_err().contains(why), "{text}");
        }
        let slow = RequestLimit { bytes_per_second: Some(4096), ..RequestLimit::NONE };
        let (volume, begun) = (VolumeLimit::new(slow), Instant::now());
        assert_eq!(volume.take(1 << 20, begun), begun);
        assert!(volume.take(1, begun) > begun + Duration::from_secs(200));
        volume.change(RequestLimit { bytes_per_second: Some(1 << 30), ..none }, begun);
        assert!(volume.take(1, begun) <= begun + Duration::from_millis(1));
    }

    /// Limits each client to one request a second, and as many at once.
    fn one_each() -> RequestLimit {
        RequestLimit {
            client_requests_per_second: Some(1),
            limit_burst_ms: 1000,
            ..RequestLimit::NONE
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    fn name(number: usize) -> ClientName {
        ClientName::Host(number.to_string().into())
    }

    #[test]
    fn each_client_has_a_bucket_and_keeps_it_while_it_is_away() {
        let (volume, begun) = (VolumeLimit::new(one_each()), Instant::now());
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
        let (volume, begun) = (VolumeLimit::new(one_each()), Instant::now());
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
        let limit = RequestLimit { requests_per_second: Some(1), ..one_each() };
        let (volume, begun) = (VolumeLimit::new(limit.clone()), Instant::now());
        let client = name(1);
        let scopes = [Scope::Volume, Scope::Client(&client)];
        let starts = || scopes.map(|scope| volume.reserve(scope, 0, begun).start);
        assert_eq!(starts(), [begun; 2]);
        let shares = scopes.map(|scope| volume.reserve(scope, 0, begun));
        assert_eq!(shares.map(|share| share.start), [begun + SECOND; 2]);
        let current = || [0, 1].map(|at| volume.is_current(scopes[at], shares[at]));

        volume.change(RequestLimit { connections: Some(5), ..limit.clone() }, begun);
        assert_eq!(current(), [true, true]);
        assert_eq!(starts(), [begun + 2 * SECOND; 2]);

        volume.change(RequestLimit { requests_per_second: Some(2), ..limit.clone() }, begun);
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

    fn named(text: &str) -> RequestLimit {
        let change: LimitChange = serde_json::from_str(text).unwrap();
        change.applied(&one_each()).unwrap()
    }

    #[test]
    fn a_named_client_has_its_own_limit_also_among_many_others() {
        let slow = named(r#"{"clients": {"user:1": {"requests_per_second": 2}, "user:2": {}}}"#);
        let (volume, begun) = (VolumeLimit::new(slow.clone()), Instant::now());
        let take = |client: &ClientName| volume.reserve(Scope::Client(client), 0, begun).start;
        for number in 0..CLIENTS_MOST {
            assert_eq!(take(&name(number)), begun);
        }
        let users = [1, 2].map(ClientName::User);
        (0..1000).for_each(|_| assert_eq!(take(&users[1]), begun, "it has no limit"));
        assert_eq!([take(&users[0]), take(&users[0])], [begun; 2]);
        assert_eq!(take(&users[0]), begun + SECOND / 2);
        assert_eq!(volume.lock().clients.buckets.len(), CLIENTS_MOST + 1);
        // Another weight is no other limit. Without its name it has that of each client.
        let heavy = r#"{"clients": {"user:1": {"requests_per_second": 2, "weight": 7}}}"#;
        let heavy: LimitChange = serde_json::from_str(heavy).unwrap();
        volume.change(heavy.applied(&slow).unwrap(), begun);
        assert_eq!(take(&users[0]), begun + SECOND);
        volume.change(one_each(), begun);
        assert_eq!([take(&users[0]), take(&users[0])], [begun, begun + SECOND]);
    }

    #[test]
    fn clients_share_by_weight_while_the_volume_has_a_limit_and_they_have_weights() {
        let change = |volume: &VolumeLimit, text: &str| {
            let change: LimitChange = serde_json::from_str(text).unwrap();
            volume.change(change.applied(&volume.limit()).unwrap(), Instant::now());
            volume.shared().1
        };
        let volume = VolumeLimit::new(RequestLimit::NONE);
        let heavy = r#"{"clients": {"user:1": {"weight": 300}}}"#;
        assert!(change(&volume, heavy).is_none(), "there is nothing to share");
        let first = change(&volume, r#"{"requests_per_second": 5}"#).unwrap();
        let more = r#"{"requests_per_second": 7, "clients": {"user:1": {"weight": 7}}}"#;
        let second = change(&volume, more).unwrap();
        assert!(Arc::ptr_eq(&first, &second) && second.rates().requests == Some(7));
        let third = change(&volume, r#"{"clients": {"user:0": {}}}"#).unwrap();
        assert!(!Arc::ptr_eq(&second, &third), "numbers have changed");
        assert!(change(&volume, r#"{"clients": {"user:1": null}}"#).is_none());
    }
}
