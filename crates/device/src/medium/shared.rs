//! One imitated medium behind the devices of several threads.
//!
//! However many threads submit, there is one set of servers, one bus and one count of writers, as
//! on a real disk. A lock around the model is good enough: an imitation is no data path, and holds
//! it for some arithmetic.
//!
//! Invariant: the model's time never goes back, since the clock is read under the lock.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::model::{Direction, Medium, Model};

/// A medium for several [`MediumDevice`](super::MediumDevice)s to share. Clones are the same one.
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

    /// When the medium's time began.
    pub(super) fn epoch(&self) -> Instant {
        self.0.epoch
    }

    /// The time now.
    pub(super) fn now_ns(&self) -> u64 {
        self.0.epoch.elapsed().as_nanos() as u64
    }

    /// Starts an operation: when it began and when it is done.
    pub(super) fn start(&self, direction: Direction, bytes: u64) -> (u64, u64) {
        // A thread that panicked in the model left it usable: it is nothing but times.
        let mut model = self.0.model.lock().unwrap_or_else(PoisonError::into_inner);
        let now_ns = self.now_ns();
        (now_ns, model.start(now_ns, direction, bytes))
    }
}
