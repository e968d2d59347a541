//! The clock of a measurement: nanoseconds since it began, what reading it costs, and the processor
//! time of a thread.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// A sleep may end so much too late; what is left is waited for by looking at the clock.
const OVERSLEEP_NS: u64 = 100_000;

/// Shorter sleeps are not worth the call.
const NAP_NS: u64 = 50_000;

/// The longest sleep, so that other waiting clients are checked now and then.
const SLEEP_NS_MAX: u64 = 5_000_000;

/// Readings from which the cost of one is taken.
const READINGS: usize = 10_001;

/// A clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    start: Instant,
}

impl Clock {
    /// One that begins now.
    pub(super) fn new() -> Self {
        Self { start: Instant::now() }
    }

    /// Nanoseconds since it began.
    #[inline]
    pub(super) fn now(self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Waits for a moment, and returns the time it is then. It sleeps for a part of a long wait, at
    /// most some milliseconds, and the caller waits again. A short wait is precise, by reading the
    /// clock again and again. With `yielding` other threads get the processor between two reads.
    pub(super) fn wait_towards(self, due_ns: u64, yielding: bool) -> u64 {
        let mut now = self.now();
        let left_ns = due_ns.saturating_sub(now);
        if left_ns > OVERSLEEP_NS + NAP_NS {
            std::thread::sleep(Duration::from_nanos((left_ns - OVERSLEEP_NS).min(SLEEP_NS_MAX)));
            return self.now();
        }
        while now < due_ns {
            if yielding {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
            now = self.now();
        }
        now
    }
}

/// Returns the time that one reading of the clock adds to a time between two: the median of many.
pub(super) fn reading_ns() -> u64 {
    let clock = Clock::new();
    let mut times: Vec<u64> = (0..READINGS)
        .map(|_| {
            let before = clock.now();
            clock.now() - before
        })
        .collect();
    *times.select_nth_unstable(READINGS / 2).1
}

/// Processor time that the calling thread has used.
pub(super) fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
