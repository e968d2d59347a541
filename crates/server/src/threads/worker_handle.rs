//! The workers as the control thread and the acceptor know them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use floe_block::Bell;

use super::mailbox::Mailbox;
use super::messages::Message;

/// A worker as other threads know it.
#[derive(Debug, Clone)]
pub(super) struct WorkerHandle {
    pub(super) mailbox: Arc<Mailbox<Message>>,
    /// Clients it has, those on their way to it included.
    pub(super) connections: Arc<AtomicUsize>,
}

/// All workers, by number.
#[derive(Debug, Clone)]
pub(super) struct Workers(pub(super) Vec<WorkerHandle>);

impl Workers {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn post(&self, worker: usize, message: Message) {
        self.0[worker].mailbox.post(message);
    }

    /// Posts such a message to each worker.
    pub(super) fn tell_all(&self, message: impl Fn() -> Message) {
        self.0.iter().for_each(|worker| worker.mailbox.post(message()));
    }

    pub(super) fn wake_ups(&self) -> Vec<Arc<Bell>> {
        self.0.iter().map(|worker| Arc::clone(worker.mailbox.wake_up())).collect()
    }

    /// Clients of all workers, roughly.
    pub(super) fn connections(&self) -> usize {
        self.0.iter().map(WorkerHandle::count).sum()
    }

    /// The worker with the fewest clients.
    pub(super) fn idlest(&self) -> &WorkerHandle {
        self.0.iter().min_by_key(|worker| worker.count()).expect("there are workers")
    }

    /// The time in which a worker has not taken a message, if that is `limit` or longer. A worker
    /// that has taken all is given one more, so that a later look finds out whether it still does.
    pub(super) fn silence(&self, worker: usize, now: Instant, limit: Duration) -> Option<Duration> {
        let mailbox = &self.0[worker].mailbox;
        match mailbox.waiting_since() {
            Some(since) => {
                Some(now.saturating_duration_since(since)).filter(|silent| *silent >= limit)
            }
            None => {
                mailbox.post(Message::Probe);
                None
            }
        }
    }
}

impl WorkerHandle {
    fn count(&self) -> usize {
        self.connections.load(Ordering::Relaxed) // roughly is good enough
    }
}
