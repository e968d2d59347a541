//! Measures the time of the cache's own code: the time in its driver, less that of its devices.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use floe_device::{Completion, Device, Operation};

/// Time measured so far; clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Meter {
    driver_ns: Rc<Cell<u64>>,
    device_ns: Rc<Cell<u64>>,
}

impl Meter {
    /// Does some of the driver's work on the clock.
    pub(super) fn driver<T>(&self, work: impl FnOnce() -> T) -> T {
        timed(&self.driver_ns, work)
    }

    /// Time in the driver and not in its devices.
    pub(super) fn processing(&self) -> Duration {
        Duration::from_nanos(self.driver_ns.get().saturating_sub(self.device_ns.get()))
    }
}

fn timed<T>(sum_ns: &Cell<u64>, work: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let done = work();
    sum_ns.set(sum_ns.get() + began.elapsed().as_nanos() as u64);
    done
}

/// A device whose work is not the cache's.
pub(super) struct Metered {
    device: Box<dyn Device>,
    meter: Meter,
}

impl Metered {
    pub(super) fn new(device: Box<dyn Device>, meter: &Meter) -> Self {
        Self { device, meter: meter.clone() }
    }
}

impl Device for Metered {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn submit(&mut self, operation: Operation) {
        timed(&self.meter.device_ns, || self.device.submit(operation));
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        timed(&self.meter.device_ns, || self.device.poll(done));
    }

    fn spun(&self) -> Duration {
        self.device.spun()
    }

    fn next_due(&self) -> Option<Instant> {
        self.device.next_due()
    }
}
