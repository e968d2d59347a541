//! Making a fast device behave like a slower medium.
//!
//! [`Model`] says when an operation would be done on a given [`Medium`]; it is pure and seeded, so
//! `simulate` and the server use the same one. [`MediumDevice`] wraps a real device and holds
//! completions back until then; the devices of several threads can share one [`SharedMedium`]. The
//! media that can be asked for by name are real products, each with its source.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::device::{Completion, Device, Extent, Operation};
use crate::queue::Queue;

pub use model::{Direction, Interference, Medium, Model, Path, Timing};

mod model;

/// Latencies from here on are slept in full.
const SLEEP_NS: u64 = 50_000;
/// The longest `poll` spins, and how much earlier than due a short sleep ends.
const SPIN_NS: u64 = 12_000;
/// The longest `poll` spins after a long sleep that ended early.
const SPIN_AFTER_SLEEP_NS: u64 = 4_000;
/// Waking is asked for at most so much earlier than due.
const LEAD_NS_MAX: u64 = 40_000;
/// The divisors by which the lead follows a late and an early waking: slowly up and quickly down,
/// since an early one costs more.
const LEAD_UP: u64 = 16;
const LEAD_DOWN: u64 = 2;
/// Lateness is recorded up to here.
const ERROR_NS_MAX: u64 = 10_000_000_000;

/// A device slowed down to a [`Medium`].
///
/// The inner operation starts at once; its completion is held back until the model says it is due.
/// Latencies from 50 µs on are slept: a thread wakes late by much the same time each, so the device
/// learns by how much and asks to be woken earlier. For shorter ones the sleep ends a little early
/// and `poll` spins the rest. The time spent spinning and the lateness of each completion are
/// counted.
///
/// Invariants: no completion comes before it is due. One whose inner operation was slower than the
/// medium comes as soon as it can. Media with a bandwidth budget never spin.
#[derive(Debug)]
pub struct MediumDevice<D> {
    inner: D,
    medium: SharedMedium,
    operations: Queue<Held>,
    /// Finished inside, by due time.
    waiting: BinaryHeap<Reverse<(u64, usize)>>,
    finished: Vec<Completion>,
    lateness: Histogram<u64>,
    spun: Duration,
    /// The delay with which this thread wakes, as learnt.
    lead_ns: u64,
    /// The due time of the last wake-up that the caller was told, until it has come.
    asked: Cell<Option<u64>>,
}

#[derive(Debug)]
struct Held {
    token: u64,
    due_ns: u64,
    /// Worth spinning for.
    short: bool,
    result: std::io::Result<()>,
}

/// The delay of completions, compared with when they were due.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimingError {
    /// Completions counted.
    pub completions: u64,
    /// Mean lateness.
    pub mean: Duration,
    /// Median lateness.
    pub p50: Duration,
    /// 99th percentile.
    pub p99: Duration,
}

impl<D: Device> MediumDevice<D> {
    /// Slows `inner` down; the seed fixes the latencies drawn. Sets the thread's timer slack to the
    /// least, since the kernel otherwise lets every sleep run 50 µs over.
    pub fn new(inner: D, medium: Medium, seed: u64) -> MediumDevice<D> {
        MediumDevice::sharing(inner, SharedMedium::new(medium, seed))
    }

    /// Slows `inner` down to a medium that other devices share; otherwise as [`MediumDevice::new`].
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

    /// The medium it imitates.
    pub fn medium(&self) -> &Medium {
        self.medium.medium()
    }

    /// The device within.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// The delay of all completions so far.
    pub fn timing_error(&self) -> TimingError {
        TimingError {
            completions: self.lateness.len(),
            mean: Duration::from_nanos(self.lateness.mean() as u64),
            p50: Duration::from_nanos(self.lateness.value_at_quantile(0.5)),
            p99: Duration::from_nanos(self.lateness.value_at_quantile(0.99)),
        }
    }

    /// Takes in what the inner device finished.
    fn collect(&mut self) {
        self.inner.poll(&mut self.finished);
        for Completion { token: slot, result } in self.finished.drain(..) {
            let slot = slot as usize;
            self.operations[slot].result = result;
            self.waiting.push(Reverse((self.operations[slot].due_ns, slot)));
        }
    }

    /// Learns from the first look after a sleep how late this thread wakes.
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

    /// Hands out what is due, and says how long until the next is.
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
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

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

    fn set_size(&mut self, bytes: u64) -> std::io::Result<()> {
        self.inner.set_size(bytes)
    }

    fn allocation(&mut self, range: Range<u64>, extents: &mut Vec<Extent>) {
        self.inner.allocation(range, extents);
    }

    fn set_timeout(&mut self, timeout: Duration) {
        self.inner.set_timeout(timeout);
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
/// writers. Clones are the same medium.
///
/// Its time never goes back, since the clock is read under the model's lock.
#[derive(Debug, Clone)]
pub struct SharedMedium(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    medium: Medium,
    epoch: Instant,
    model: Mutex<Model>,
}

impl SharedMedium {
    /// An idle medium; the seed fixes the latencies drawn.
    pub fn new(medium: Medium, seed: u64) -> SharedMedium {
        let model = Mutex::new(Model::new(medium.clone(), seed));
        SharedMedium(Arc::new(Shared { medium, epoch: Instant::now(), model }))
    }

    /// The medium it imitates.
    pub fn medium(&self) -> &Medium {
        &self.0.medium
    }

    fn epoch(&self) -> Instant {
        self.0.epoch
    }

    /// The time now.
    fn now_ns(&self) -> u64 {
        self.0.epoch.elapsed().as_nanos() as u64
    }

    /// Starts an operation: when it began and when it is done.
    fn start(&self, direction: Direction, bytes: u64) -> (u64, u64) {
        // A thread that panicked in the model left it usable: it is nothing but times.
        let mut model = self.0.model.lock().unwrap_or_else(PoisonError::into_inner);
        let now_ns = self.now_ns();
        (now_ns, model.start(now_ns, direction, bytes))
    }
}
