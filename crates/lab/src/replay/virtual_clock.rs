//! [`VirtualClock`]: the time of simulated devices.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// A clock that advances only when it is set.
#[derive(Debug, Clone)]
pub struct VirtualClock {
    epoch: Instant,
    passed_ns: Rc<Cell<u64>>,
    /// Time until which the simulated processor is occupied.
    busy_until_ns: Rc<Cell<u64>>,
}

impl Default for VirtualClock {
    fn default() -> Self {
        Self { epoch: Instant::now(), passed_ns: Rc::default(), busy_until_ns: Rc::default() }
    }
}

impl VirtualClock {
    /// Returns the nanoseconds since the clock was created.
    pub fn passed_ns(&self) -> u64 {
        self.passed_ns.get()
    }

    /// Returns the instant `passed_ns` nanoseconds after the clock was created.
    pub fn at(&self, passed_ns: u64) -> Instant {
        self.epoch + Duration::from_nanos(passed_ns)
    }

    /// Occupies the simulated processor for `ns`, once it is free. Returns the time at which that
    /// ends, in nanoseconds since the clock was created. It never decreases.
    pub(super) fn occupy(&self, ns: u64) -> u64 {
        let free = self.passed_ns().max(self.busy_until_ns.get()) + ns;
        self.busy_until_ns.set(free);
        free
    }

    pub(super) fn set(&self, moment: Instant) {
        let passed = moment.saturating_duration_since(self.epoch).as_nanos() as u64;
        self.passed_ns.set(self.passed_ns.get().max(passed));
    }
}
