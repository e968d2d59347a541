//! What all devices of a simulated machine share: the time, the power, and chance.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::SmallRng;

/// More events than any life has.
const NEVER: u64 = u64::MAX;

/// A machine. Time is a number that only its owner moves on; everything random comes from one seed.
pub struct Machine {
    now: Cell<u64>,
    epoch: Instant,
    /// Events, which are beginnings and ends of operations of devices, until the power fails.
    events_left: Cell<u64>,
    rng: RefCell<SmallRng>,
}

impl Machine {
    pub fn new(seed: u64) -> Rc<Machine> {
        let rng = RefCell::new(SmallRng::seed_from_u64(seed));
        let (now, events_left) = (Cell::new(0), Cell::new(NEVER));
        Rc::new(Machine { now, epoch: Instant::now(), events_left, rng })
    }

    pub fn now(&self) -> u64 {
        self.now.get()
    }

    /// The instant at which the machine's time is 0; a unit of time is a microsecond.
    pub fn epoch(&self) -> Instant {
        self.epoch
    }

    /// When an instant is.
    pub fn moment(&self, instant: Instant) -> u64 {
        let passed = instant.saturating_duration_since(self.epoch);
        passed.as_nanos().div_ceil(Duration::from_micros(1).as_nanos()) as u64
    }

    /// Moves time on.
    pub fn pass_until(&self, moment: u64) {
        assert!(moment >= self.now.get(), "time does not run backwards");
        self.now.set(moment);
    }

    /// There is power again: for ever, or for so many events.
    pub fn power_on(&self, events: Option<u64>) {
        self.events_left.set(events.unwrap_or(NEVER));
    }

    pub fn has_power(&self) -> bool {
        self.events_left.get() > 0
    }

    /// Something is to happen at a device; answers whether it does.
    pub fn happens(&self) -> bool {
        let left = self.events_left.get();
        if left != NEVER {
            self.events_left.set(left.saturating_sub(1));
        }
        left > 0
    }

    /// Asks chance.
    pub fn draw<T>(&self, ask: impl FnOnce(&mut SmallRng) -> T) -> T {
        ask(&mut self.rng.borrow_mut())
    }
}
