//! Reads by a few blocking threads, for systems without io_uring.

use std::collections::VecDeque;
use std::io;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::buffer::Buffers;
use super::request::{Request, forks, lock, wake_all};
use super::target::Target;

/// Number of threads, and so of reads at a time.
const THREADS: usize = 4;

/// A pool of threads that serve reads. Dropping it waits for all of them.
#[derive(Debug)]
pub(super) struct Threads {
    shared: ManuallyDrop<Arc<Shared>>,
    workers: ManuallyDrop<Vec<JoinHandle<()>>>,
    /// Number of the process that owns the threads, from [`forks`].
    forks: u64,
}

#[derive(Debug)]
struct Shared {
    target: Arc<Target>,
    buffers: Buffers,
    queue: Mutex<Queue>,
    /// Signalled after each change of `queue`.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Arc<Request>>,
    ending: bool,
}

impl Threads {
    /// Starts the threads; fewer if the system refuses some.
    ///
    /// # Errors
    /// When not one thread could be started.
    pub(super) fn new(target: Arc<Target>, buffers: Buffers) -> io::Result<Threads> {
        let (queue, changed) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { target, buffers, queue, changed });
        let mut workers = Vec::new();
        for _ in 0..THREADS {
            let shared = Arc::clone(&shared);
            let builder = std::thread::Builder::new().name("floe-flash".to_owned());
            match builder.spawn(move || shared.serve()) {
                Ok(worker) => workers.push(worker),
                Err(error) if workers.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        let (shared, workers) = (ManuallyDrop::new(shared), ManuallyDrop::new(workers));
        Ok(Threads { shared, workers, forks: forks() })
    }

    /// Begins reads.
    pub(super) fn begin(&self, requests: &[Arc<Request>]) {
        lock(&self.shared.queue).waiting.extend(requests.iter().cloned());
        for _ in requests.iter().take(THREADS) {
            self.shared.changed.notify_one();
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if self.forks != forks() {
            return; // the threads are the parent's, and one may have held the lock at the fork
        }
        // SAFETY: dropped here only.
        let (shared, workers) = unsafe {
            (ManuallyDrop::take(&mut self.shared), ManuallyDrop::take(&mut self.workers))
        };
        lock(&shared.queue).ending = true;
        shared.changed.notify_all();
        // A waker may drop the last handle on a worker, which then ends by itself.
        let here = std::thread::current().id();
        if workers.iter().all(|worker| worker.thread().id() != here) {
            workers.into_iter().for_each(|worker| drop(worker.join()));
        }
    }
}

impl Shared {
    /// Serves reads until the pool is dropped and no read waits.
    fn serve(&self) {
        let mut wakers = Vec::new();
        while let Some(request) = self.next() {
            if !request.is_abandoned() {
                wakers.extend(request.complete(self.target.read_new(&self.buffers, &request)));
                drop(request);
                wake_all(&mut wakers);
            }
        }
    }

    fn next(&self) -> Option<Arc<Request>> {
        let mut queue = lock(&self.queue);
        loop {
            match queue.waiting.pop_front() {
                None if queue.ending => return None,
                None => {
                    queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                }
                request => return request,
            }
        }
    }
}
