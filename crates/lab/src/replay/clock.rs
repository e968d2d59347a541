//! The two clocks a replay can run by.
//!
//! In real time a replay waits on the ring, as a server does. In virtual time nothing waits: when
//! nothing more can be done at a moment, the clock jumps to the next one at which something is due.
//! Devices say when that is as [`Instant`]s either way, so the driver between them does not know
//! the difference.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use floe_device::Ring;

/// A clock that stands still until it is set forward.
#[derive(Debug, Clone)]
pub struct VirtualClock {
    epoch: Instant,
    passed_ns: Rc<Cell<u64>>,
}

impl Default for VirtualClock {
    fn default() -> Self {
        Self { epoch: Instant::now(), passed_ns: Rc::default() }
    }
}

impl VirtualClock {
    /// Nanoseconds since it was made.
    pub fn passed_ns(&self) -> u64 {
        self.passed_ns.get()
    }

    /// The moment so many nanoseconds after it was made.
    pub fn at(&self, passed_ns: u64) -> Instant {
        self.epoch + Duration::from_nanos(passed_ns)
    }

    fn set(&self, moment: Instant) {
        let passed = moment.saturating_duration_since(self.epoch).as_nanos() as u64;
        self.passed_ns.set(self.passed_ns.get().max(passed));
    }
}

/// The clock of a replay.
#[derive(Debug)]
pub enum Clock {
    /// The machine's clock, and the ring that real devices answer through.
    Real(Ring),
    /// A clock of its own.
    Virtual(VirtualClock),
}

impl Clock {
    /// This moment.
    pub fn now(&self) -> Instant {
        match self {
            Self::Real(_) => Instant::now(),
            Self::Virtual(clock) => clock.at(clock.passed_ns()),
        }
    }

    /// Waits until a device has something to say or the moment has come.
    ///
    /// # Errors
    /// When the ring fails.
    ///
    /// # Panics
    /// In virtual time when nothing is due: nothing would ever happen again.
    pub(crate) fn wait_until(&self, due: Option<Instant>) -> io::Result<()> {
        match self {
            Self::Real(ring) => ring.wait_until(due).map(drop),
            Self::Virtual(clock) => {
                clock.set(due.expect("something under way is due at some time"));
                Ok(())
            }
        }
    }
}
