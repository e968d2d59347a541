//! Imitation of a slower medium on a fast device.
//!
//! [`Model`] computes when an operation would complete on a given [`Medium`]; it is pure and
//! seeded, so `simulate` and the server share it. [`MediumDevice`] wraps a real device and delays
//! completions until then; the devices of several threads can share one [`SharedMedium`]. The named
//! media are real products, each with its source.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::delegate_device;
use crate::device::{Completion, Device, Operation};
use crate::queue::Queue;

pub use model::{Direction, Interference, Medium, Model, Path, Timing};

mod model;

/// The latency in nanoseconds from which the device sleeps for the whole time instead of spinning.
const SLEEP_NS: u64 = 50_000;
/// The longest time in nanoseconds that `poll` spins. A short sleep ends this much before the
/// completion is due.
const SPIN_NS: u64 = 12_000;
/// The longest time in nanoseconds that `poll` spins after a long sleep that ended early.
const SPIN_AFTER_SLEEP_NS: u64 = 4_000;
/// Maximum time in nanoseconds by which a wake-up is requested ahead of the due time.
const LEAD_NS_MAX: u64 = 40_000;
/// The divisors of the steps by which the lead adapts: slowly up after a late wake-up, quickly down
/// after an early one, which costs more.
const LEAD_UP: u64 = 16;
const LEAD_DOWN: u64 = 2;
/// The longest lateness in nanoseconds that is recorded.
const ERROR_NS_MAX: u64 = 10_000_000_000;

/// A device slowed down to the speed of a [`Medium`].
///
/// The inner operation starts at once; its completion is delayed until the model's due time. For
/// latencies from 50 µs on the thread sleeps. A thread wakes late by a similar time each time, so
/// the device measures this delay and requests earlier wake-ups. For shorter latencies the sleep
/// ends a little early and `poll` spins for the rest. The device counts the time spent spinning and
/// records the lateness of each completion.
///
/// Invariants: no completion comes before it is due. If the inner operation was slower than the
/// medium, its completion is reported at once. Media with a bandwidth budget never spin.
#[derive(Debug)]
pub struct MediumDevice<D> {
    inner: D,
    medium: SharedMedium,
    operations: Queue<Held>,
    /// Operations that the inner device has finished, by due time.
    waiting: BinaryHeap<Reverse<(u64, usize)>>,
    finished: Vec<Completion>,
    lateness: Histogram<u64>,
    spun: Duration,
    /// The measured delay with which this thread wakes, in nanoseconds.
    lead_ns: u64,
    /// The due time of the last wake-up that was requested from the caller, until that wake-up.
    asked: Cell<Option<u64>>,
}

#[derive(Debug)]
struct Held {
    token: u64,
    due_ns: u64,
    /// True if `poll` may spin for the completion.
    short: bool,
    result: std::io::Result<()>,
}

/// The lateness of completions compared with their due times.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimingError {
    /// Completions measured.
    pub completions: u64,
    /// Mean lateness.
    pub mean: Duration,
    /// Median lateness.
    pub p50: Duration,
    /// 99th percentile of the lateness.
    pub p99: Duration,
}

impl<D: Device> MediumDevice<D> {
    /// Slows `inner` down to a medium. The seed determines the latencies. Sets the thread's timer
    /// slack to the minimum, since the kernel otherwise lets every sleep run 50 µs over.
    pub fn new(inner: D, medium: Medium, seed: u64) -> MediumDevice<D> {
        MediumDevice::sharing(inner, SharedMedium::new(medium, seed))
    }

    /// Slows `inner` down to a medium that other devices share. Otherwise it works like
    /// [`MediumDevice::new`].
    pub fn sharing(inner: D, medium: SharedMedium) -> MediumDevice<D> {
        // SAFETY: only changes how precisely this thread's timers fire.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
        MediumDevice {
            inner,
            medium,
            operations: Queue::default(),
            waiting: BinaryHeap::new(),
            finished: Vec::new(),
            lateness: Histogram::new_with_bounds(1, ERROR_NS_MAX, 2)
                .expect("the bounds are in order"),
            spun: Duration::ZERO,
            lead_ns: 0,
            asked: Cell::new(None),
        }
    }

    /// Returns the imitated medium.
    pub fn medium(&self) -> &Medium {
        self.medium.medium()
    }

    /// Returns the wrapped device.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Returns the lateness of all completions so far.
    pub fn timing_error(&self) -> TimingError {
        TimingError {
            completions: self.lateness.len(),
            mean: Duration::from_nanos(self.lateness.mean() as u64),
            p50: Duration::from_nanos(self.lateness.value_at_quantile(0.5)),
            p99: Duration::from_nanos(self.lateness.value_at_quantile(0.99)),
        }
    }

    /// Collects the completions of the inner device.
    fn collect(&mut self) {
        self.inner.poll(&mut self.finished);
        for Completion { token: slot, result } in self.finished.drain(..) {
            let slot = slot as usize;
            self.operations[slot].result = result;
            self.waiting.push(Reverse((self.operations[slot].due_ns, slot)));
        }
    }

    /// Updates the wake-up lead from the lateness of the first poll after a sleep.
    fn learn(&mut self) {
        let Some(due_ns) = self.asked.take() else { return };
        let now_ns = self.medium.now_ns();
        if now_ns > due_ns {
            let late_ns = (now_ns - due_ns).min(LEAD_NS_MAX);
            self.lead_ns = (self.lead_ns + late_ns / LEAD_UP).min(LEAD_NS_MAX);
        } else {
            let early_ns = (due_ns - now_ns).saturating_sub(SPIN_AFTER_SLEEP_NS / 2);
            if early_ns < self.lead_ns {
                self.lead_ns -= early_ns / LEAD_DOWN;
            } // else something else has woken it
        }
    }

    /// Reports the completions that are due. Returns the nanoseconds until the next one is due, and
    /// whether to spin for it.
    fn release(&mut self, done: &mut Vec<Completion>) -> Option<(u64, bool)> {
        while let Some(&Reverse((due_ns, slot))) = self.waiting.peek() {
            let now_ns = self.medium.now_ns();
            let held = &self.operations[slot];
            if due_ns > now_ns {
                return Some((due_ns - now_ns, held.short));
            }
            self.lateness.saturating_record(now_ns - due_ns);
            let Held { token, result, .. } = self.operations.remove(slot);
            done.push(Completion { token, result });
            self.waiting.pop();
        }
        None
    }
}

impl<D: Device> Device for MediumDevice<D> {
    delegate_device!(this => this.inner; size_bytes set_size allocation set_timeout);

    fn submit(&mut self, operation: Operation) {
        let (direction, bytes) = Direction::of(&operation.action);
        let (now_ns, due_ns) = self.medium.start(direction, bytes);
        let short = self.medium().timing == Timing::Latency && due_ns - now_ns < SLEEP_NS;
        let held = Held { token: operation.token, due_ns, short, result: Ok(()) };
        let slot = self.operations.insert(held);
        self.inner.submit(Operation { token: slot as u64, ..operation });
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        let before = done.len();
        self.collect();
        self.learn();
        let mut next = self.release(done);
        let worth_spinning = |(left_ns, short): (u64, bool)| {
            left_ns <= if short { SPIN_NS } else { SPIN_AFTER_SLEEP_NS }
        };
        let sleeps = self.medium().timing == Timing::Latency;
        if done.len() > before || !sleeps || !next.is_some_and(worth_spinning) {
            return;
        }
        let began = Instant::now();
        while done.len() == before && next.is_some() {
            std::hint::spin_loop();
            next = self.release(done);
        }
        self.spun += began.elapsed();
    }

    fn spun(&self) -> Duration {
        self.spun + self.inner.spun()
    }

    fn next_due(&self) -> Option<Instant> {
        let own = self.waiting.peek().map(|&Reverse((due_ns, slot))| {
            let early_ns = if self.operations[slot].short { SPIN_NS } else { self.lead_ns };
            let mut wake_ns = due_ns.saturating_sub(early_ns);
            if !self.operations[slot].short {
                // Who woke too early to spin sleeps the rest, however late that ends.
                if wake_ns <= self.medium.now_ns() {
                    wake_ns = due_ns;
                }
                self.asked.set(Some(due_ns));
            }
            self.medium.epoch() + Duration::from_nanos(wake_ns)
        });
        self.inner.next_due().into_iter().chain(own).min()
    }
}

/// A medium for several [`MediumDevice`]s to share: one set of servers, one bus, one count of
/// writers. Clones share its state.
///
/// The time never goes back, since the clock is read under the model's lock.
#[derive(Debug, Clone)]
pub struct SharedMedium(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    medium: Medium,
    epoch: Instant,
    model: Mutex<Model>,
}

impl SharedMedium {
    /// Creates an idle medium. The seed determines the latencies.
    pub fn new(medium: Medium, seed: u64) -> SharedMedium {
        let model = Mutex::new(Model::new(medium.clone(), seed));
        SharedMedium(Arc::new(Shared { medium, epoch: Instant::now(), model }))
    }

    /// Returns the imitated medium.
    pub fn medium(&self) -> &Medium {
        &self.0.medium
    }

    fn epoch(&self) -> Instant {
        self.0.epoch
    }

    fn now_ns(&self) -> u64 {
        self.0.epoch.elapsed().as_nanos() as u64
    }

    /// Starts an operation. Returns its start and completion times in nanoseconds.
    fn start(&self, direction: Direction, bytes: u64) -> (u64, u64) {
        // A thread that panicked in the model left it usable: it is nothing but times.
        let mut model = self.0.model.lock().unwrap_or_else(PoisonError::into_inner);
        let now_ns = self.now_ns();
        (now_ns, model.start(now_ns, direction, bytes))
    }
}
