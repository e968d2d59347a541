//! The largest rates of all volumes together, which volumes share by weight.

mod weighted_queue;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use floe_block::VolumeId;
use serde::{Deserialize, Serialize};

use self::weighted_queue::WeightedQueue;
use crate::rate::Rates;
use crate::volume_limit::{
    BURST_MS, burst_out_of_range, bytes_out_of_range, given, requests_out_of_range,
};

pub(crate) use self::weighted_queue::Grant;

/// The problem of a burst without a rate that it applies to.
pub(crate) const TOTAL_BURST_NEEDS: &str =
    "total-burst needs total-requests-per-second or total-bytes-per-second";

/// The limits of the requests of all volumes of a server together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TotalLimit {
    /// Most requests per second; `None` for no limit.
    #[serde(default)]
    pub total_requests_per_second: Option<u64>,
    /// Most bytes per second that are read, written, zeroed or prefetched; `None` for no limit.
    #[serde(default)]
    pub total_bytes_per_second: Option<u64>,
    /// Milliseconds' worth of the limits that may start at once after a pause.
    #[serde(default = "default_burst")]
    pub total_burst_ms: u64,
}

fn default_burst() -> u64 {
    BURST_MS
}

impl Default for TotalLimit {
    fn default() -> Self {
        Self::NONE
    }
}

impl TotalLimit {
    /// No limit.
    pub const NONE: Self = Self {
        total_requests_per_second: None,
        total_bytes_per_second: None,
        total_burst_ms: BURST_MS,
    };

    /// Returns whether there is any limit.
    pub fn is_any(&self) -> bool {
        self.rates().is_any()
    }

    fn rates(&self) -> Rates {
        Rates {
            requests: self.total_requests_per_second,
            bytes: self.total_bytes_per_second,
            burst_ns: self.total_burst_ms * 1_000_000,
        }
    }

    /// Returns the first value that is out of its range: the setting's name, and the problem.
    pub(crate) fn out_of_range(&self) -> Option<(&'static str, String)> {
        requests_out_of_range("total-requests-per-second", self.total_requests_per_second)
            .or_else(|| bytes_out_of_range("total-bytes-per-second", self.total_bytes_per_second))
            .or_else(|| burst_out_of_range("total-burst", self.total_burst_ms))
    }
}

/// The request body that changes the limits of all volumes together. A field that is left out stays
/// as it is, and `null` lifts a limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TotalLimitChange {
    /// Most requests per second.
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub total_requests_per_second: Option<Option<u64>>,
    /// Most bytes per second.
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub total_bytes_per_second: Option<Option<u64>>,
    /// Milliseconds' worth of the limits that may start at once after a pause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_burst_ms: Option<u64>,
}

impl TotalLimitChange {
    /// Returns the first value that no server can have, as an error message.
    pub fn out_of_range(&self) -> Option<String> {
        self.of(TotalLimit::NONE).out_of_range().map(|(_, problem)| problem)
    }

    fn of(&self, before: TotalLimit) -> TotalLimit {
        TotalLimit {
            total_requests_per_second: self
                .total_requests_per_second
                .unwrap_or(before.total_requests_per_second),
            total_bytes_per_second: self
                .total_bytes_per_second
                .unwrap_or(before.total_bytes_per_second),
            total_burst_ms: self.total_burst_ms.unwrap_or(before.total_burst_ms),
        }
    }

    /// Returns the limits after the change.
    ///
    /// # Errors
    /// The value that cannot be used.
    pub(crate) fn applied(&self, before: TotalLimit) -> Result<TotalLimit, String> {
        if let Some(problem) = self.out_of_range() {
            return Err(problem);
        }
        let limit = self.of(before);
        if self.total_burst_ms.is_some() && !limit.is_any() {
            return Err(TOTAL_BURST_NEEDS.to_owned());
        }
        Ok(limit)
    }
}

/// The rate of all volumes together, and the order of the requests that wait for it. All workers
/// share it.
///
/// Only a server with such a rate takes the lock: once for a request that need not wait. A request
/// that waits takes it several times, at each look of its thread.
#[derive(Debug)]
pub(crate) struct TotalRate {
    origin: Instant,
    state: Mutex<RateState>,
}

#[derive(Debug)]
struct RateState {
    limit: TotalLimit,
    queue: WeightedQueue,
}

impl TotalRate {
    pub(crate) fn new(limit: TotalLimit) -> Self {
        Self::since(limit, Instant::now())
    }

    /// Creates a full bucket, whose times count from `origin`.
    pub(crate) fn since(limit: TotalLimit, origin: Instant) -> Self {
        let queue = WeightedQueue::new(limit.rates());
        Self { origin, state: Mutex::new(RateState { limit, queue }) }
    }

    pub(crate) fn limit(&self) -> TotalLimit {
        self.lock().limit
    }

    /// Changes the limits, also for requests that wait.
    pub(crate) fn change(&self, limit: TotalLimit, now: Instant) {
        let now = self.nanos(now);
        let mut state = self.lock();
        state.limit = limit;
        state.queue.set_rates(limit.rates(), now);
    }

    /// Sets the weight of a volume, also for requests that wait.
    pub(crate) fn set_weight(&self, volume: VolumeId, weight: u64, now: Instant) {
        let now = self.nanos(now);
        self.lock().queue.set_weight(volume.0, weight, now);
    }

    /// Takes the share of a request that may start at once. Otherwise the request waits, as the
    /// first of the thread's line. Returns whether it may start.
    pub(crate) fn take_or_enter(
        &self,
        thread: usize,
        volume: u16,
        bytes: u64,
        now: Instant,
    ) -> bool {
        let now = self.nanos(now);
        self.lock().queue.take_or_enter((thread, volume), bytes, now)
    }

    /// Has the first request of a thread's line wait.
    pub(crate) fn enter(&self, thread: usize, volume: u16, bytes: u64, now: Instant) {
        let now = self.nanos(now);
        self.lock().queue.enter((thread, volume), bytes, now);
    }

    /// Removes the first request of a thread's line, which waits.
    pub(crate) fn leave(&self, thread: usize, volume: u16, now: Instant) {
        let now = self.nanos(now);
        self.lock().queue.leave((thread, volume), now);
    }

    /// Lets the first request of one of a thread's lines start, if it is its turn.
    pub(crate) fn grant(&self, thread: usize, now: Instant) -> Option<Grant> {
        let now = self.nanos(now);
        self.lock().queue.grant(thread, now)
    }

    /// Gives up the place that a thread keeps for its next request.
    pub(crate) fn give_up(&self, thread: usize, now: Instant) {
        let now = self.nanos(now);
        self.lock().queue.give_up(thread, now);
    }

    /// Gives back the share of a request that was granted, and will not start.
    pub(crate) fn give_back(&self, grant: Grant) {
        self.lock().queue.give_back(grant);
    }

    /// Returns the time at which the thread is to ask for a grant again; `None` if nothing waits.
    pub(crate) fn next_due(&self, thread: usize, now: Instant) -> Option<Instant> {
        let since = self.nanos(now);
        let due = self.lock().queue.next_due(thread, since)?;
        Some(now + Duration::from_nanos(due.saturating_sub(since)))
    }

    fn nanos(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.origin).as_nanos() as u64
    }

    fn lock(&self) -> MutexGuard<'_, RateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
