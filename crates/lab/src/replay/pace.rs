//! When the next request begins.
//!
//! A *closed loop* keeps a number of requests in flight, each end followed by the next beginning,
//! as a program does that waits for its disk. *Recorded times* begin each request when the trace
//! says, as a program does that does not care how the disk copes; where the disk falls behind, a
//! request's latency counts from when it should have begun, or the slowest moments would hide
//! themselves.

use std::time::{Duration, Instant};

/// The pace of requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    /// So many at a time.
    Closed {
        /// Requests in flight.
        in_flight: usize,
    },
    /// When the trace says.
    Recorded {
        /// The factor of the recorded speed.
        speed: f64,
        /// Most requests in flight.
        in_flight: usize,
    },
}

/// The answer to a request that wants to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// At once; its latency counts from the moment given.
    Now(Instant),
    /// Not before this moment.
    At(Instant),
    /// When another has ended.
    Full,
}

/// Paces one run.
#[derive(Debug)]
pub(super) struct Pacer {
    pace: Pace,
    /// The moment of time zero in the trace.
    start: Instant,
    /// Traces step back now and then; requests do not.
    latest: Duration,
    /// The moment the next request was said to wait for.
    waited: bool,
    late_most: Duration,
}

impl Pacer {
    pub(super) fn new(pace: Pace, now: Instant) -> Self {
        Self { pace, start: now, latest: Duration::ZERO, waited: false, late_most: Duration::ZERO }
    }

    /// Returns whether the next request, recorded at `time_ns`, may begin `now` with so many in
    /// flight.
    pub(super) fn turn(&mut self, time_ns: u64, now: Instant, under_way: usize) -> Turn {
        let (speed, in_flight) = match self.pace {
            Pace::Closed { in_flight } if under_way < in_flight => return Turn::Now(now),
            Pace::Closed { .. } => return Turn::Full,
            Pace::Recorded { speed, in_flight } => (speed, in_flight),
        };
        let recorded = Duration::from_nanos((time_ns as f64 / speed) as u64).max(self.latest);
        let due = self.start + recorded;
        if under_way >= in_flight {
            self.waited = false;
            return Turn::Full;
        }
        if now < due {
            self.waited = true;
            return Turn::At(due);
        }
        self.latest = recorded;
        // A timer that fires late is no fault of the disk.
        if std::mem::take(&mut self.waited) {
            return Turn::Now(now);
        }
        self.late_most = self.late_most.max(now - due);
        Turn::Now(due)
    }

    /// After a pause that is not the trace's, the request recorded at `time_ns` is due now at the
    /// earliest.
    pub(super) fn resume(&mut self, time_ns: u64, now: Instant) {
        if let Pace::Recorded { speed, .. } = self.pace {
            let recorded = Duration::from_nanos((time_ns as f64 / speed) as u64).max(self.latest);
            self.start += now.saturating_duration_since(self.start + recorded);
            self.late_most = Duration::ZERO;
        }
    }

    /// Returns the longest delay of a request's begin.
    pub(super) fn late_most(&self) -> Duration {
        self.late_most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_requests_wait_for_their_time_and_count_from_it() {
        let start = Instant::now();
        let at = |ns| start + Duration::from_nanos(ns);
        let mut pacer = Pacer::new(Pace::Recorded { speed: 2.0, in_flight: 2 }, start);
        assert_eq!(pacer.turn(1000, at(0), 0), Turn::At(at(500)));
        assert_eq!(pacer.turn(1000, at(510), 0), Turn::Now(at(510)));
        assert_eq!(pacer.turn(2000, at(900), 2), Turn::Full);
        assert_eq!(pacer.turn(2000, at(1300), 1), Turn::Now(at(1000)));
        assert_eq!(pacer.turn(1500, at(1300), 1), Turn::Now(at(1000)), "a step back");
        assert_eq!(pacer.late_most(), Duration::from_nanos(300));
        pacer.resume(4000, at(5000));
        assert_eq!(pacer.turn(4000, at(5000), 0), Turn::Now(at(5000)));
        assert_eq!(pacer.turn(5000, at(5000), 0), Turn::At(at(5500)));
    }
}
