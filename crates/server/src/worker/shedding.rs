//! Load shedding: the shed controller decides, from the counts of all workers, which share of the
//! cache device's hits each worker reads from the backing device instead.
//!
//! In every turn each worker stores the number and total time of its reads and writes in a cache
//! line of its own. When a decision is due, the first worker to notice makes it; none waits for
//! another. Without requests no worker runs, and there is nothing to decide.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use floe_block::{Shedder, shedding_options};

use crate::status::{SheddingDecisionStatus, SheddingStatus};

/// Number and total time of the requests that a worker has answered since the start.
#[derive(Debug, Default)]
#[repr(align(128))] // no line of it is another worker's, nor fetched along with one
struct Served {
    requests: AtomicU64,
    time_ns: AtomicU64,
}

/// The share of hits to shed, and the controller that decides it.
#[derive(Debug)]
pub(crate) struct ShedController {
    most: f64,
    begun: Instant,
    /// The share to shed, as the bits of an `f64`.
    share: AtomicU64,
    /// Time of the next decision, in nanoseconds since the start.
    due_ns: AtomicU64,
    served: Box<[Served]>,
    shedder: Mutex<Shedder>,
}

// All orderings are relaxed: no other memory depends on these numbers, and a short delay is
// harmless.
impl ShedController {
    /// Creates a controller for `workers` workers that sheds at most the share `most`.
    pub(crate) fn new(most: f64, workers: usize, begun: Instant) -> Self {
        Self {
            most,
            begun,
            share: AtomicU64::new(0),
            due_ns: AtomicU64::new(0),
            served: (0..workers).map(|_| Served::default()).collect(),
            shedder: Mutex::new(Shedder::new(shedding_options(most))),
        }
    }

    /// Stores a worker's number of answered requests and their total time, and makes a decision if
    /// one is due. Returns the share that the worker is to shed.
    pub(crate) fn turn(
        &self,
        worker: usize,
        (requests, time): (u64, Duration),
        now: Instant,
    ) -> f64 {
        let served = &self.served[worker];
        served.requests.store(requests, Ordering::Relaxed);
        served.time_ns.store(time.as_nanos() as u64, Ordering::Relaxed);
        let since = now.saturating_duration_since(self.begun);
        if since.as_nanos() as u64 >= self.due_ns.load(Ordering::Relaxed)
            && let Ok(mut shedder) = self.shedder.try_lock()
            && since >= shedder.due()
        {
            let sum = |of: fn(&Served) -> &AtomicU64| -> u64 {
                self.served.iter().map(|served| of(served).load(Ordering::Relaxed)).sum()
            };
            let time = Duration::from_nanos(sum(|served| &served.time_ns));
            let share = shedder.step(since, sum(|served| &served.requests), time);
            self.share.store(share.to_bits(), Ordering::Relaxed);
            self.due_ns.store(shedder.due().as_nanos() as u64, Ordering::Relaxed);
        }
        f64::from_bits(self.share.load(Ordering::Relaxed))
    }

    /// Returns the controller's status, without the bytes that workers have counted.
    pub(crate) fn status(&self) -> SheddingStatus {
        // whole at any time
        let shedder = self.shedder.lock().unwrap_or_else(PoisonError::into_inner);
        SheddingStatus {
            most: self.most,
            share: shedder.share(),
            share_now: shedder.share_now(),
            shed_bytes: 0,
            decisions: shedder.decisions().iter().map(SheddingDecisionStatus::of).collect(),
        }
    }
}

/// A worker's state in load shedding.
pub(crate) struct Shedding {
    /// The shed controller, if load shedding is configured.
    shed_controller: Option<Arc<ShedController>>,
    /// The share that the worker sheds at present.
    share: f64,
}

impl Shedding {
    pub(crate) fn new(shed_controller: Option<Arc<ShedController>>) -> Self {
        Self { shed_controller, share: 0.0 }
    }

    /// Reports the worker's answered requests. Returns the share to shed if it has changed.
    pub(crate) fn turn(
        &mut self,
        worker: usize,
        served: impl FnOnce() -> (u64, Duration),
        now: Instant,
    ) -> Option<f64> {
        let share = self.shed_controller.as_ref()?.turn(worker, served(), now);
        (share != std::mem::replace(&mut self.share, share)).then_some(share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_both_of_two_workers_have_served_decides_what_each_sheds() {
        let begun = Instant::now();
        let shed_controller = ShedController::new(0.25, 2, begun);
        let (mut now, mut served) = (begun, [(0, Duration::ZERO); 2]);
        // Requests of the first worker become slower the more is shed, those of the second faster
        // by more.
        for _ in 0..2000 {
            now += Duration::from_millis(10);
            let shares = [0, 1].map(|worker| shed_controller.turn(worker, served[worker], now));
            for (worker, change) in [0.5, -1.0].into_iter().enumerate() {
                served[worker].0 += 100;
                served[worker].1 += Duration::from_secs_f64(0.1 * (1.0 + change * shares[worker]));
            }
        }
        let facts = shed_controller.status();
        assert_eq!((facts.most, facts.share), (0.25, 0.25), "{facts:?}");
        assert!(facts.decisions.iter().any(|decision| decision.share == 0.25));
    }

    #[test]
    fn a_worker_whose_turn_it_is_while_another_decides_goes_on_as_before() {
        let begun = Instant::now();
        let shed_controller = ShedController::new(0.5, 2, begun);
        let _decides = shed_controller.shedder.lock().unwrap();
        assert_eq!(
            shed_controller.turn(1, (1, Duration::from_secs(1)), begun + Duration::from_secs(1)),
            0.0
        );
    }
}
