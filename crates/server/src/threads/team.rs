//! The threads that serve: started together, and waited for at the end.

use std::sync::mpsc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use super::messages::Message;
use super::setup::ServeError;
use super::worker::{Beginning, Worker};
use super::worker_handle::Workers;
use super::worker_outbox::WorkerOutbox;

/// Between looks at a thread that is to end.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// The running workers. Dropping it ends them, whatever they do, and waits until they have; one
/// that hangs is reported and left behind.
pub(super) struct Team {
    threads: Vec<JoinHandle<()>>,
    workers: Workers,
    /// The time a thread has to end.
    patience: Duration,
}

impl Team {
    /// Starts a thread for each, and waits until all have opened their devices.
    ///
    /// # Errors
    /// When one of them cannot begin; the others are ended.
    pub(super) fn begin(
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

    /// Ends the workers, and waits until they have ended.
    ///
    /// # Errors
    /// When one of them hangs.
    pub(super) fn end(mut self) -> Result<(), ServeError> {
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
                tracing::error!(thread = number, "a thread hangs, and is left behind");
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

/// Reports a worker's thread that unwinds to the acceptor, or to the thread that waits for workers
/// to begin.
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
