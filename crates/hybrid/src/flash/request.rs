//! A read in flight, and the future that waits for it.
//!
//! The engine that serves a request owns it, and its buffer, until the read has ended. The future
//! shares the request and owns nothing that the kernel writes to, so it may be dropped at any time.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::buffer::Buffer;

/// Number of forks between the first process and this one. A child has one thread when it writes
/// it, and every other thread of the child begins later: relaxed operations suffice.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// Returns a number that differs between a process and its forked children.
///
/// It is meaningful once [`watch_forks`] has been called.
pub(super) fn forks() -> u64 {
    FORKS.load(Ordering::Relaxed)
}

/// Makes the child of each later fork increase the number of forks.
pub(super) fn watch_forks() {
    #[cfg(unix)]
    {
        static WATCH: std::sync::Once = std::sync::Once::new();
        extern "C" fn in_the_child() {
            FORKS.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the handler only adds to an atomic, which a forked child may do.
        WATCH.call_once(|| unsafe {
            libc::pthread_atfork(None, None, Some(in_the_child));
        });
    }
}

/// A lock that ignores panics of other holders: each leaves the data whole.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One read, shared by its future and the engine that serves it.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) offset: u64,
    pub(super) len: usize,
    /// Number of the process that began the read, from [`forks`].
    forks: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    answer: Answer,
    transfer: Transfer,
}

/// The engine's progress with a request.
#[derive(Debug, Default)]
pub(super) struct Transfer {
    /// The memory that the kernel may be writing to. `None` before submission and after the end.
    pub(super) buffer: Option<Buffer>,
    /// Bytes already read.
    pub(super) done: usize,
    /// Number of times that the kernel returned the read unserved.
    pub(super) refusals: u32,
}

#[derive(Debug)]
enum Answer {
    /// The read has not ended; the waker is that of the last poll.
    Awaited(Option<Waker>),
    /// The read has ended, and the future has not fetched the result.
    Ready(io::Result<Buffer>),
    /// The future has fetched the result or was dropped.
    Closed,
}

impl Request {
    pub(super) fn new(offset: u64, len: usize) -> Arc<Request> {
        let state = State { answer: Answer::Awaited(None), transfer: Transfer::default() };
        Arc::new(Request { offset, len, forks: forks(), state: Mutex::new(state) })
    }

    /// Returns whether no future waits for the result any more.
    pub(super) fn is_abandoned(&self) -> bool {
        matches!(lock(&self.state).answer, Answer::Closed)
    }

    /// Returns whether the result is there and has not been fetched.
    #[cfg(test)]
    pub(super) fn is_answered(&self) -> bool {
        matches!(lock(&self.state).answer, Answer::Ready(_))
    }

    /// Runs `step` on the progress of the read.
    pub(super) fn transfer<T>(&self, step: impl FnOnce(&mut Transfer) -> T) -> T {
        step(&mut lock(&self.state).transfer)
    }

    /// Ends the read. Returns the waker of the future, to be woken outside of all locks. A second
    /// result is dropped.
    pub(super) fn complete(&self, result: io::Result<Buffer>) -> Option<Waker> {
        let mut state = lock(&self.state);
        match &mut state.answer {
            Answer::Awaited(waker) => {
                let waker = waker.take();
                state.answer = Answer::Ready(result);
                waker
            }
            Answer::Ready(_) | Answer::Closed => {
                drop(state);
                drop(result);
                None
            }
        }
    }
}

/// A read that has begun. Dropping it leaves the read to finish; its buffer returns to the pool.
///
/// # Panics
/// When polled again after it was ready.
#[must_use = "the result of a read is lost unless awaited"]
#[derive(Debug)]
pub(crate) struct Reading(Stage);

#[derive(Debug)]
enum Stage {
    Ended(Option<io::Result<Buffer>>),
    Pending(Arc<Request>),
}

impl Reading {
    /// Creates a read that has ended already.
    pub(crate) fn ready(result: io::Result<Buffer>) -> Reading {
        Reading(Stage::Ended(Some(result)))
    }

    pub(super) fn pending(request: Arc<Request>) -> Reading {
        Reading(Stage::Pending(request))
    }
}

impl Future for Reading {
    type Output = io::Result<Buffer>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<Buffer>> {
        let request = match &mut self.0 {
            Stage::Ended(result) => {
                return Poll::Ready(result.take().expect("a read is not polled after its end"));
            }
            Stage::Pending(request) => request,
        };
        if request.forks != forks() {
            // The threads that serve it are the parent's. One may have held the lock at the fork.
            return Poll::Ready(Err(io::Error::other("the process forked after the read began")));
        }
        // Old wakers are dropped after the lock is released: their drop may run a task's code.
        let _old;
        let mut state = lock(&request.state);
        match &mut state.answer {
            Answer::Awaited(Some(waker)) if waker.will_wake(context.waker()) => {}
            Answer::Awaited(waker) => _old = waker.replace(context.waker().clone()),
            Answer::Ready(_) => {
                let Answer::Ready(result) = std::mem::replace(&mut state.answer, Answer::Closed)
                else {
                    unreachable!("the lock is held");
                };
                return Poll::Ready(result);
            }
            Answer::Closed => panic!("a read is not polled after its end"),
        }
        drop(state);
        Poll::Pending
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        if let Stage::Pending(request) = &self.0
            && request.forks == forks()
        {
            let answer = std::mem::replace(&mut lock(&request.state).answer, Answer::Closed);
            drop(answer); // outside of the lock: a waker's drop may run a task's code
        }
    }
}

/// Wakes the futures of ended reads. A waker that panics harms neither the others nor the engine.
pub(super) fn wake_all(wakers: &mut Vec<Waker>) {
    for waker in wakers.drain(..) {
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| waker.wake()));
    }
}
