//! How long devices take, on a sample of their operations: what decides who comes in weighs one device against the other.
//!
//! Only a cache with such an admission is timed, and only by a clock that the driver was given: the machine's, or a simulated
//! one. An operation's time is from when it is handed to the device until it is known to have ended, so waiting in the device's queue
//! is part of it, as it is for whoever waits for it.

use std::time::Instant;

use floe_device::Action;
use floe_policy::Ranked;
use floe_policy::admission::Times;

use super::Driver;
use crate::order::DeviceId;

/// One of so many operations is timed, and the means of so many are told at once.
const TIMED_OF: u32 = 8;
const TOLD_AT_ONCE: u32 = 64;

/// What is told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    CacheRead,
    CacheWrite,
    BackingRead,
    BackingWrite,
}

/// The times of operations since they were last told.
pub(super) struct Timing {
    clock: Box<dyn Fn() -> Instant>,
    /// Operations until one is timed.
    skipped: u32,
    under_way: Vec<(u64, What, Instant)>,
    /// By [`What`]: nanoseconds, and how many operations took them.
    sums: [(f64, u32); 4],
    timed: u32,
}

impl Timing {
    /// An operation begins.
    pub(super) fn begin(&mut self, device: DeviceId, token: u64, action: &Action) {
        let what = match (device, action) {
            (DeviceId::Cache, Action::Read(_)) => What::CacheRead,
            (DeviceId::Cache, Action::Write { .. }) => What::CacheWrite,
            (DeviceId::Backing(_), Action::Read(_)) => What::BackingRead,
            (DeviceId::Backing(_), Action::Write { .. }) => What::BackingWrite,
            _ => return,
        };
        self.skipped += 1;
        if self.skipped == TIMED_OF {
            self.skipped = 0;
            self.under_way.push((token, what, (self.clock)()));
        }
    }

    /// An operation has ended. Answers with the means when there are enough new ones; one that failed says nothing.
    pub(super) fn end(&mut self, token: u64, ok: bool) -> Option<Times> {
        let at = self.under_way.iter().position(|(timed, ..)| *timed == token)?;
        let (_, what, begun) = self.under_way.swap_remove(at);
        if !ok {
            return None;
        }
        let sum = &mut self.sums[what as usize];
        sum.0 += (self.clock)().saturating_duration_since(begun).as_nanos() as f64;
        sum.1 += 1;
        self.timed += 1;
        if self.timed < TOLD_AT_ONCE {
            return None;
        }
        self.timed = 0;
        let sums = std::mem::take(&mut self.sums);
        let mean = |what: What| {
            let (ns, count) = sums[what as usize];
            (count > 0).then(|| ns / f64::from(count))
        };
        Some(Times {
            hit_ns: mean(What::CacheRead),
            backing_read_ns: mean(What::BackingRead),
            backing_write_ns: mean(What::BackingWrite),
            insert_ns: mean(What::CacheWrite),
            write_cost: None,
        })
    }
}

impl<E: Ranked + Default> Driver<E> {
    /// An operation has ended: its time may be what is missing to tell the cache how long things take.
    pub(super) fn took(&mut self, token: u64, ok: bool) {
        if let Some(timing) = &mut self.timing
            && let Some(times) = timing.end(token, ok)
        {
            self.cache.observe(&times);
        }
    }

    /// With a clock, by which devices are timed where somebody decides by it what comes into the cache.
    #[must_use]
    pub fn with_clock(mut self, clock: impl Fn() -> Instant + 'static) -> Self {
        self.timing = self.cache.admission().is_some().then(|| Timing {
            clock: Box::new(clock),
            skipped: 0,
            under_way: Vec::new(),
            sums: [(0.0, 0); 4],
            timed: 0,
        });
        self
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;
    use std::time::Duration;

    use floe_device::Pool;

    use super::*;
    use crate::geometry::VolumeId;

    #[test]
    fn means_are_of_what_was_timed_and_of_each_device_apart() {
        let (epoch, passed) = (Instant::now(), Rc::new(Cell::new(0)));
        let clock = Rc::clone(&passed);
        let mut timing = Timing {
            clock: Box::new(move || epoch + Duration::from_nanos(clock.get())),
            skipped: 0,
            under_way: Vec::new(),
            sums: [(0.0, 0); 4],
            timed: 0,
        };
        let read = Action::Read(Pool::new(0).allocate(4096).whole());
        let mut told = Vec::new();
        // As many reads of each; those of the cache take 10 ns, the others 300, and every third fails.
        for token in 0..u64::from(2 * TOLD_AT_ONCE * TIMED_OF) {
            let (device, ns) = match token / u64::from(TIMED_OF) % 2 {
                0 => (DeviceId::Cache, 10),
                _ => (DeviceId::Backing(VolumeId(0)), 300),
            };
            timing.begin(device, token, &read);
            passed.set(passed.get() + ns);
            told.extend(timing.end(token, !token.is_multiple_of(3)));
        }
        let [times] = told[..] else { panic!("enough of them went well for one time: {told:?}") };
        let expected = Times { hit_ns: Some(10.0), backing_read_ns: Some(300.0), ..Times::default() };
        assert_eq!(times, expected);
    }
}
