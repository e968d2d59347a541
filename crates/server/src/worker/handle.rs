//! Handles of the workers for other threads, which start them, send them messages, and wait for
//! their end.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, mpsc};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use floe_block::WakeUp;

use crate::messages::{Asker, Done, Event, Mailbox, Message, Notice, Problem, Ticket, WorkerReply};
use crate::setup::ServeError;
use crate::worker::{Beginning, Worker};

/// Interval between checks for the end of a thread.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// The running worker threads. Dropping this stops them and waits for their end; a thread that
/// hangs is reported and left behind.
pub(crate) struct Team {
    threads: Vec<JoinHandle<()>>,
    workers: Workers,
    /// Time limit for the threads to end.
    patience: Duration,
}

impl Team {
    /// Starts the worker threads, and waits until all have opened their devices.
    ///
    /// # Errors
    /// When a worker cannot start; the others are stopped.
    pub(crate) fn begin(
        beginnings: Vec<Beginning>,
        workers: Workers,
        patience: Duration,
    ) -> Result<Self, ServeError> {
        let threads = workers.len();
        let mut team = Self { threads: Vec::new(), workers, patience };
        let (ready, begun) = mpsc::channel();
        for beginning in beginnings {
            let ready = ready.clone();
            let builder = Builder::new().name(format!("floe-{}", beginning.number));
            let thread =
                builder.spawn(move || serve(beginning, &ready)).map_err(ServeError::Thread)?;
            team.threads.push(thread);
        }
        drop(ready);
        for number in 0..threads {
            // One that says nothing has panicked, and the panic has been reported.
            begun.recv().unwrap_or(Err(ServeError::Panicked(number)))?;
        }
        Ok(team)
    }

    /// Stops the workers, and waits until their threads have ended.
    ///
    /// # Errors
    /// When a thread hangs.
    pub(crate) fn end(mut self) -> Result<(), ServeError> {
        self.stop()
    }

    fn stop(&mut self) -> Result<(), ServeError> {
        self.workers.tell_all(|| Message::Stop);
        let until = Instant::now() + self.patience;
        let mut ended = Ok(());
        for (number, thread) in self.threads.drain(..).enumerate() {
            while !thread.is_finished() && Instant::now() < until {
                std::thread::sleep(LOOK_AGAIN);
            }
            if thread.is_finished() {
                let _ = thread.join(); // a panic has been told
            } else {
                tracing::error!(thread = number, "a thread hangs; the server ends without it");
                ended = Err(ServeError::Hangs(number));
            }
        }
        ended
    }
}

fn serve(beginning: Beginning, ready: &mpsc::Sender<Result<(), ServeError>>) {
    let outbox = beginning.outbox.clone();
    let mut watch = Watch { outbox, ready, over: false };
    // The receiver is gone when another worker could not begin.
    let ended = match Worker::begin(beginning) {
        Ok(worker) => {
            let _ = ready.send(Ok(()));
            worker.run()
        }
        Err(error) => {
            let _ = ready.send(Err(error));
            Ok(())
        }
    };
    watch.over = true;
    if let Err(error) = ended {
        watch.outbox.died(error);
    }
}

/// Reports the panic of a worker thread to the acceptor, and to the thread that waits for workers
/// to start.
struct Watch<'a> {
    outbox: WorkerOutbox,
    ready: &'a mpsc::Sender<Result<(), ServeError>>,
    over: bool,
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if !self.over {
            // The receiver is gone once all workers have begun.
            let _ = self.ready.send(Err(ServeError::Panicked(self.outbox.worker)));
            self.outbox.died(ServeError::Panicked(self.outbox.worker));
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        let _ = self.stop(); // it is in the log
    }
}

/// The mailbox and the load of a worker, for other threads.
#[derive(Debug, Clone)]
pub(crate) struct WorkerHandle {
    pub(crate) mailbox: Arc<Mailbox<Message>>,
    /// Number of the worker's clients, including those on their way to it.
    pub(crate) connections: Arc<AtomicUsize>,
}

/// Handles of all workers, by number.
#[derive(Debug, Clone)]
pub(crate) struct Workers(pub(crate) Vec<WorkerHandle>);

impl Workers {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn post(&self, worker: usize, message: Message) {
        self.0[worker].mailbox.post(message);
    }

    /// Posts a message to each worker.
    pub(crate) fn tell_all(&self, message: impl Fn() -> Message) {
        self.0.iter().for_each(|worker| worker.mailbox.post(message()));
    }

    pub(crate) fn wake_ups(&self) -> Vec<Arc<WakeUp>> {
        self.0.iter().map(|worker| Arc::clone(worker.mailbox.wake_up())).collect()
    }

    /// Returns the approximate number of clients of all workers.
    pub(crate) fn connections(&self) -> usize {
        self.0.iter().map(WorkerHandle::count).sum()
    }

    /// Returns the worker with the fewest clients.
    pub(crate) fn idlest(&self) -> &WorkerHandle {
        self.0.iter().min_by_key(|worker| worker.count()).expect("there are workers")
    }

    /// Returns [`Problem::Silent`] for the first worker that has taken no message for `limit` or
    /// longer, if there is one.
    pub(crate) fn silent(&self, now: Instant, limit: Duration) -> Option<Problem> {
        (0..self.len()).find_map(|worker| {
            let seconds = self.silence(worker, now, limit)?.as_secs();
            Some(Problem::Silent { worker, seconds })
        })
    }

    /// Returns how long a worker has taken no message, if that is `limit` or longer. If its mailbox
    /// is empty, a probe is posted, so that a later check notices if the worker hangs.
    fn silence(&self, worker: usize, now: Instant, limit: Duration) -> Option<Duration> {
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

/// Sends a worker's replies and events to the acceptor and the control thread.
#[derive(Debug, Clone)]
pub(crate) struct WorkerOutbox {
    pub(crate) worker: usize,
    pub(crate) control: Sender<Event>,
    pub(crate) acceptor: Arc<Mailbox<Notice>>,
}

impl WorkerOutbox {
    pub(crate) fn reply(&self, ticket: Ticket, result: Result<Done, Problem>) {
        let reply = WorkerReply { worker: self.worker, number: ticket.number, result };
        match ticket.asker {
            Asker::Control => self.send(Event::Replied(reply)),
            Asker::Acceptor => self.acceptor.post(Notice::Replied(reply)),
        }
    }

    pub(crate) fn send(&self, event: Event) {
        let _ = self.control.send(event); // the control thread may have ended
    }

    pub(crate) fn died(&self, error: ServeError) {
        self.acceptor.post(Notice::Died(error));
    }
}
