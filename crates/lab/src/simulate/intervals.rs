//! A simulation over time: what is counted in each interval.
//!
//! A simulator's loop stops at `Watch::next` only, where it stops at the end of warm-up anyway,
//! so intervals, deletions and new sizes cost other requests nothing.

use std::time::Duration;

use serde::Serialize;

use super::changes::Change;
use crate::interval::Interval;

/// One interval of a simulation of policies.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SimulatedInterval {
    /// Requests that were counted before it.
    pub after_requests: u64,
    /// Its requests.
    pub requests: u64,
    /// Its end in the trace's time, since the trace's begin; only of intervals of a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// The number of requests that found their object.
    pub hits: u64,
    /// The number of requests that did not.
    pub misses: u64,
    /// Share of requests that missed.
    pub miss_ratio: f64,
    /// Share of bytes that missed; the same as `miss_ratio` where objects have no sizes.
    pub byte_miss_ratio: f64,
    /// Objects put in, where an admission was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inserted: Option<u64>,
}

/// The end of an interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct End {
    /// The first request that is not in it.
    pub(super) at: usize,
    /// The trace's time.
    pub(super) seconds: Option<f64>,
}

/// Finds the ends of intervals of a time in a trace's requests.
#[derive(Debug, Clone)]
pub(super) struct Ends {
    every_ns: u64,
    began_ns: Option<u64>,
    /// Whole intervals since the trace's begin.
    passed: u64,
    pub(super) found: Vec<End>,
}

impl Ends {
    pub(super) fn new(every: Duration) -> Self {
        let every_ns = u64::try_from(every.as_nanos()).unwrap_or(u64::MAX).max(1);
        Self { every_ns, began_ns: None, passed: 0, found: Vec::new() }
    }

    /// Takes in the time of a request that is the first after `at` others. One that goes back
    /// belongs to the interval under way.
    pub(super) fn note(&mut self, time_ns: u64, at: usize) {
        let since = time_ns.saturating_sub(*self.began_ns.get_or_insert(time_ns));
        let passed = since / self.every_ns;
        if passed > self.passed {
            self.end(at);
            self.passed = passed;
        }
    }

    /// Ends the interval under way before request `at`.
    pub(super) fn end(&mut self, at: usize) {
        let seconds = (self.passed + 1) as f64 * self.every_ns as f64 / 1e9;
        self.found.push(End { at, seconds: Some(seconds) });
    }
}

/// Returns the ends of a trace's intervals, of which the first `warmup` requests have none.
pub(super) fn ends(
    times_ns: impl ExactSizeIterator<Item = u64>,
    warmup: usize,
    interval: Interval,
) -> Vec<End> {
    let requests = times_ns.len();
    match interval {
        Interval::Requests(every) => {
            let every = usize::try_from(every).unwrap_or(usize::MAX).max(1);
            let whole = (requests - warmup).div_ceil(every);
            let at = |number: usize| requests.min(warmup.saturating_add(number * every));
            (1..=whole).map(|number| End { at: at(number), seconds: None }).collect()
        }
        Interval::Time(every) => {
            let mut ends = Ends::new(every);
            times_ns.enumerate().for_each(|(at, time_ns)| ends.note(time_ns, at));
            ends.end(requests);
            ends.found.retain(|end| end.at > warmup);
            ends.found
        }
    }
}

/// Counts of a simulation since the end of warm-up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) hits: u64,
    pub(super) bytes: u64,
    pub(super) missed_bytes: u64,
    pub(super) inserted: Option<u64>,
}

/// Watches a simulation's loop over a stream.
#[derive(Debug)]
pub(super) struct Watch<'a> {
    /// The next request before which [`change`](Self::change) and [`turn`](Self::turn) are to be
    /// called.
    pub(super) next: usize,
    warmup: usize,
    /// Those to come.
    ends: &'a [End],
    changes: &'a [Change],
    begun: usize,
    before: Seen,
    past: Vec<SimulatedInterval>,
}

impl<'a> Watch<'a> {
    /// Watches from the first request on.
    pub(super) fn new(warmup: usize, ends: &'a [End], changes: &'a [Change]) -> Self {
        let (begun, before) = (warmup, Seen::default());
        Self { next: 0, warmup, ends, changes, begun, before, past: Vec::new() }
    }

    /// Returns the next change of an object that happens before a request.
    pub(super) fn change(&mut self, at: usize) -> Option<&'a Change> {
        let (change, rest) = self.changes.split_first()?;
        let is_due = change.at as usize == at;
        self.changes = if is_due { rest } else { self.changes };
        is_due.then_some(change)
    }

    /// Ends warm-up, or an interval. Returns whether counting begins anew.
    #[cold]
    pub(super) fn turn(&mut self, at: usize, seen: Seen) -> bool {
        if self.ends.first().is_some_and(|end| end.at == at) {
            self.end(seen);
        }
        let change = self.changes.first().map_or(usize::MAX, |change| change.at as usize);
        let end = self.ends.first().map_or(usize::MAX, |end| end.at);
        let warmed_up = if at < self.warmup { self.warmup } else { usize::MAX };
        self.next = change.min(end).min(warmed_up);
        at == self.warmup
    }

    fn end(&mut self, seen: Seen) {
        let Some((end, rest)) = self.ends.split_first() else { return };
        let before = std::mem::replace(&mut self.before, seen);
        let requests = (end.at - self.begun) as u64;
        let hits = seen.hits - before.hits;
        let bytes = (seen.bytes - before.bytes).max(1) as f64;
        self.past.push(SimulatedInterval {
            after_requests: (self.begun - self.warmup) as u64,
            requests,
            seconds: end.seconds,
            hits,
            misses: requests - hits,
            miss_ratio: (requests - hits) as f64 / requests.max(1) as f64,
            byte_miss_ratio: (seen.missed_bytes - before.missed_bytes) as f64 / bytes,
            inserted: seen.inserted.map(|now| now - before.inserted.unwrap_or_default()),
        });
        (self.begun, self.ends) = (end.at, rest);
    }

    /// Ends the last interval. Returns all.
    pub(super) fn finish(mut self, seen: Seen) -> Vec<SimulatedInterval> {
        self.end(seen);
        self.past
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(times_s: &[u64], warmup: usize, interval: Interval) -> Vec<(usize, Option<f64>)> {
        let times_ns = times_s.iter().map(|second| second * 1_000_000_000);
        ends(times_ns, warmup, interval).iter().map(|end| (end.at, end.seconds)).collect()
    }

    #[test]
    fn intervals_of_requests_begin_after_warm_up_and_the_last_is_what_is_left() {
        let of = |warmup| found(&[0; 10], warmup, Interval::Requests(4));
        assert_eq!(of(0), [(4, None), (8, None), (10, None)]);
        assert_eq!(of(2), [(6, None), (10, None)]);
    }

    #[test]
    fn intervals_of_a_time_begin_with_the_trace_and_none_is_empty() {
        let minute = Interval::Time(Duration::from_secs(60));
        let times = [1000, 1059, 1060, 1061, 1030, 1400, 1401];
        let expected = [(2, Some(60.0)), (5, Some(120.0)), (7, Some(420.0))];
        assert_eq!(found(&times, 0, minute), expected);
        assert_eq!(found(&times, 2, minute), expected[1..]);
    }
}
