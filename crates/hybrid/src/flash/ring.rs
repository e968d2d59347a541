//! Reads through one io_uring that all threads of a process share.
//!
//! The thread that begins a read submits it, and one thread, the reaper, waits for completions and
//! wakes futures. While many reads are with the kernel, the reaper submits new ones, too, with its
//! next wait: that saves a system call a read, and threads that wait for each other in the kernel.
//! The lock of `Queue` covers the submission queue and the count of reads in flight,
//! never a system call except where the submission queue is full. The reaper alone touches the
//! completion queue.
//!
//! Invariants: the user data of a read's entry is one reference to its [`Request`], which holds the
//! buffer. The reaper takes the reference back with the completion, so the kernel never writes to
//! freed memory. At most [`MOST_IN_FLIGHT`] reads are with the kernel, and its completion queue has
//! room for twice as many.
//!
//! A request belongs to the task that submitted it, and completes in its context: the kernel
//! interrupts that thread, or wakes it from a sleep, for a moment. A thread in an uninterruptible
//! system call, such as a blocking read, delays the completions of its own reads until it returns.
//! When a thread exits, what its workers have not begun is cancelled, and what would be tried again
//! in its context fails (`ECANCELED`, `EFAULT`). The reaper submits such reads on its own account.

use std::collections::VecDeque;
use std::io;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::Duration;
use std::{fmt, thread};

use io_uring::{IoUring, opcode, squeue, types};

use super::buffer::{Buffer, Buffers};
use super::request::{Request, forks, lock, wake_all};
use super::target::Target;

/// Number of entries of the submission queue.
const ENTRIES: u32 = 256;

/// Maximum number of reads in the kernel at a time. Further ones wait in the backlog.
const MOST_IN_FLIGHT: usize = 1024;

/// Number of reads with the kernel, for each that waits for the next completion to be submitted.
const NEAR: usize = 4;

/// Number of attempts to submit entries while the kernel is short of resources.
const ATTEMPTS: usize = 16;

/// Number of times that the kernel may return a read unserved before the reaper reads it itself.
const MOST_REFUSALS: u32 = 3;

/// Maximum length of one entry in bytes; longer reads are continued.
const MOST_BYTES: usize = 1 << 30;

/// The user data of the entry that wakes the reaper.
const WAKE_UP: u64 = 0;

/// An io_uring and its reaper. Dropping it waits for the reads in flight.
#[derive(Debug)]
pub(super) struct Ring {
    shared: ManuallyDrop<Arc<Shared>>,
    reaper: ManuallyDrop<JoinHandle<()>>,
    /// Number of the process that owns the ring, from [`forks`].
    forks: u64,
}

struct Shared {
    uring: IoUring,
    target: Arc<Target>,
    buffers: Buffers,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    /// Reads begun while too many were in flight.
    backlog: VecDeque<Arc<Request>>,
    in_flight: usize,
    /// Reads left to the reaper since it last began to wait.
    left: Vec<Arc<Request>>,
    ending: bool,
}

/// The consequence of a completion.
enum Progress {
    Ended(io::Result<Buffer>),
    /// The rest of the read is to be submitted again.
    Unfinished,
    /// The kernel keeps refusing the read, so a blocking read is tried.
    Refused,
}

impl Ring {
    /// Sets up a ring and starts its reaper.
    ///
    /// # Errors
    /// When the kernel forbids io_uring or is older than 5.7, or no thread could be started.
    pub(super) fn new(target: Arc<Target>, buffers: Buffers) -> io::Result<Ring> {
        let base = || {
            let mut builder = IoUring::builder();
            builder.dontfork().setup_clamp().setup_cqsize(2 * MOST_IN_FLIGHT as u32);
            builder
        };
        let uring = base().setup_submit_all().build(ENTRIES).or_else(|_| base().build(ENTRIES))?;
        let features = uring.params();
        if !features.is_feature_nodrop() || !features.is_feature_fast_poll() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let shared = Arc::new(Shared { uring, target, buffers, queue: Mutex::default() });
        let reaper = thread::Builder::new().name("floe-flash".to_owned()).spawn({
            let shared = Arc::clone(&shared);
            move || shared.reap()
        })?;
        let (shared, reaper) = (ManuallyDrop::new(shared), ManuallyDrop::new(reaper));
        Ok(Ring { shared, reaper, forks: forks() })
    }

    /// Begins reads. If the kernel does not accept them, the calling thread serves them at once.
    pub(super) fn begin(&self, requests: &[Arc<Request>]) {
        let mut wakers = Vec::new();
        let mut pushed = false;
        for request in requests {
            match self.shared.admit(request) {
                Ok(now) => pushed |= now,
                Err(_) => self.shared.serve(request, &mut wakers),
            }
        }
        if pushed && !self.shared.leave_to_reaper(requests) && self.shared.submit().is_err() {
            // Should the kernel take the entries later, it fills buffers that nobody waits for.
            requests.iter().for_each(|request| self.shared.serve(request, &mut wakers));
        }
        wake_all(&mut wakers);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.forks != forks() {
            return; // ring and reaper are the parent's, and the lock may have been held at the fork
        }
        // SAFETY: dropped here only.
        let (shared, reaper) =
            unsafe { (ManuallyDrop::take(&mut self.shared), ManuallyDrop::take(&mut self.reaper)) };
        lock(&shared.queue).ending = true;
        let told = shared.push(&opcode::Nop::new().build().user_data(WAKE_UP));
        let told = told.and_then(|()| shared.submit());
        // A waker may drop the last handle on the reaper, which then ends by itself.
        if told.is_ok() && reaper.thread().id() != thread::current().id() {
            drop(reaper.join());
        }
    }
}

impl Shared {
    /// Adds a read to the submission queue, or to the backlog if too many are in flight. Returns
    /// whether the queue has to be submitted.
    fn admit(&self, request: &Arc<Request>) -> io::Result<bool> {
        {
            let mut queue = lock(&self.queue);
            if queue.in_flight >= MOST_IN_FLIGHT {
                queue.backlog.push_back(Arc::clone(request));
                return Ok(false);
            }
            queue.in_flight += 1;
        }
        let pushed = self.push_read(request);
        if pushed.is_err() {
            lock(&self.queue).in_flight -= 1;
        }
        pushed.map(|()| true)
    }

    /// Pushes an entry for the rest of a read that counts as in flight.
    fn push_read(&self, request: &Arc<Request>) -> io::Result<()> {
        let entry = request.transfer(|transfer| {
            let buffer = transfer.buffer.get_or_insert_with(|| self.buffers.take(request.len));
            let rest = (request.len - transfer.done).min(MOST_BYTES);
            let memory = buffer.address(transfer.done);
            opcode::Read::new(types::Fd(self.target.fd()), memory, rest as u32)
                .offset(request.offset + transfer.done as u64)
                .build()
        });
        let reference = Arc::into_raw(Arc::clone(request));
        let pushed = self.push(&entry.user_data(reference as u64));
        if pushed.is_err() {
            // SAFETY: from `into_raw` above, and the kernel has not got it.
            drop(unsafe { Arc::from_raw(reference) });
        }
        pushed
    }

    /// Pushes an entry. If the queue is full, its entries are submitted first.
    fn push(&self, entry: &squeue::Entry) -> io::Result<()> {
        let _queue = lock(&self.queue);
        loop {
            // SAFETY: the lock is held, so that no other thread has the submission queue.
            let mut submissions = unsafe { self.uring.submission_shared() };
            // SAFETY: a read's memory is kept by the request that the entry refers to, and its file
            // by `target`, until the reaper has seen the completion.
            let pushed = unsafe { submissions.push(entry) };
            drop(submissions);
            match pushed {
                Ok(()) => return Ok(()),
                Err(_) => self.submit()?,
            }
        }
    }

    /// Submits the entries pushed so far, including those of other threads.
    ///
    /// # Errors
    /// When it does not take them even after several attempts.
    fn submit(&self) -> io::Result<()> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            match self.uring.submit() {
                Ok(_) => return Ok(()),
                Err(error) if is_transient(&error) && attempt < ATTEMPTS => thread::yield_now(),
                Err(error) => return Err(error),
            }
        }
    }

    /// Leaves the submission of reads to the reaper, unless its next wait may be far. Returns
    /// whether it did.
    ///
    /// The reaper submits all entries when it begins to wait. It does so again after a completion,
    /// so one read has to be with the kernel. With many, the next completion is near.
    fn leave_to_reaper(&self, requests: &[Arc<Request>]) -> bool {
        let mut queue = lock(&self.queue);
        // SAFETY: the lock is held, so that no other thread has the submission queue.
        let waiting = unsafe { self.uring.submission_shared() }.len();
        let in_kernel = queue.in_flight.saturating_sub(waiting);
        let is_near = in_kernel >= NEAR * waiting.max(1);
        if is_near {
            queue.left.extend(requests.iter().cloned());
        }
        is_near
    }

    /// Handles the result of the reaper's wait, at whose beginning these reads were left to it.
    fn after_wait(
        &self,
        waited: io::Result<usize>,
        left: Vec<Arc<Request>>,
        wakers: &mut Vec<Waker>,
    ) {
        match waited {
            Ok(_) => {}
            // They may be submitted by now or not.
            Err(error) if is_transient(&error) => lock(&self.queue).left.extend(left),
            Err(_) => {
                // Should the kernel take the entries later, it fills buffers that nobody waits for.
                left.iter().for_each(|request| self.serve(request, wakers));
                thread::sleep(Duration::from_millis(10)); // forbidden since; completions still come
            }
        }
    }

    /// Serves a read on the calling thread.
    fn serve(&self, request: &Request, wakers: &mut Vec<Waker>) {
        wakers.extend(request.complete(self.target.read_new(&self.buffers, request)));
    }

    /// Runs the reaper until the ring is dropped and no read is in flight.
    fn reap(&self) {
        let (mut ended, mut wakers) = (Vec::new(), Vec::new());
        loop {
            let left = std::mem::take(&mut lock(&self.queue).left);
            let waited = self.uring.submit_and_wait(1);
            self.after_wait(waited, left, &mut wakers);
            // SAFETY: the reaper alone has the completion queue.
            let completions = unsafe { self.uring.completion_shared() };
            ended.extend(completions.map(|entry| (entry.user_data(), entry.result())));
            let mut served = 0;
            for (token, result) in ended.drain(..).filter(|(token, _)| *token != WAKE_UP) {
                // SAFETY: the user data of a read's entry is a reference from `push_read`, and each
                // entry completes once.
                let request = unsafe { Arc::from_raw(token as *const Request) };
                served += usize::from(self.advance(&request, result, &mut wakers));
            }
            let over = self.refill(served, &mut wakers);
            wake_all(&mut wakers);
            if over {
                return;
            }
        }
    }

    /// Handles the completion of a read: ends or continues it. Returns whether it has ended.
    fn advance(&self, request: &Arc<Request>, result: i32, wakers: &mut Vec<Waker>) -> bool {
        match self.progress(request, result) {
            Progress::Ended(result) => wakers.extend(request.complete(result)),
            Progress::Unfinished if self.push_read(request).is_ok() => return false,
            Progress::Unfinished | Progress::Refused => self.serve(request, wakers),
        }
        true
    }

    fn progress(&self, request: &Request, result: i32) -> Progress {
        request.transfer(|transfer| {
            let ended = match u32::try_from(result) {
                Ok(0) => Err(self.target.shortened(request.offset + transfer.done as u64)),
                Ok(read) => {
                    transfer.done += read as usize;
                    if transfer.done < request.len {
                        return Progress::Unfinished;
                    }
                    Ok(())
                }
                Err(_) if is_unserved(-result) => {
                    transfer.refusals += 1;
                    return match transfer.refusals {
                        ..=MOST_REFUSALS => Progress::Unfinished,
                        _ => Progress::Refused,
                    };
                }
                Err(_) => {
                    let error = io::Error::from_raw_os_error(-result);
                    Err(self.target.refused(error, request.offset, transfer.done))
                }
            };
            let buffer = transfer.buffer.take().expect("a read in flight has a buffer");
            Progress::Ended(ended.map(|()| buffer))
        })
    }

    /// Submits reads from the backlog after `served` reads have ended. Returns whether the reaper
    /// has nothing left to do, for ever.
    fn refill(&self, served: usize, wakers: &mut Vec<Waker>) -> bool {
        let mut next = Vec::new();
        let over = {
            let mut queue = lock(&self.queue);
            queue.in_flight -= served;
            while queue.in_flight < MOST_IN_FLIGHT
                && let Some(request) = queue.backlog.pop_front()
            {
                if !request.is_abandoned() {
                    queue.in_flight += 1;
                    next.push(request);
                }
            }
            queue.ending && queue.in_flight == 0
        };
        let mut unserved = 0;
        for request in &next {
            if self.push_read(request).is_err() {
                self.serve(request, wakers);
                unserved += 1;
            }
        }
        if unserved > 0 {
            lock(&self.queue).in_flight -= unserved;
        }
        if !next.is_empty() {
            // A failure is repeated by the wait that follows. Wakers may take long, the disk first.
            let _ = self.submit();
        }
        over
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("target", &self.target).finish_non_exhaustive()
    }
}

/// Returns whether an error of `io_uring_enter` means "try again later".
fn is_transient(error: &io::Error) -> bool {
    let transient = [libc::EINTR, libc::EAGAIN, libc::EBUSY, libc::ENOMEM];
    error.raw_os_error().is_some_and(|number| transient.contains(&number))
}

/// Returns whether a completion's error says that the read was not attempted.
fn is_unserved(number: i32) -> bool {
    [libc::ECANCELED, libc::EINTR, libc::EAGAIN, libc::EFAULT].contains(&number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring() -> (tempfile::TempDir, Ring) {
        let folder = tempfile::tempdir().unwrap();
        let target = Target::open(&folder.path().join("flash"), Some(4 * 4096), true).unwrap();
        let ring = Ring::new(Arc::new(target), Buffers::new(0));
        (folder, ring.expect("this kernel has io_uring"))
    }

    #[test]
    fn a_read_is_continued_and_repeated() {
        let (_folder, ring) = ring();
        let request = Request::new(0, 8192);
        request.transfer(|transfer| transfer.buffer = Some(ring.shared.buffers.take(8192)));
        for refusal in [libc::ECANCELED, libc::EFAULT, libc::EINTR] {
            assert!(matches!(ring.shared.progress(&request, -refusal), Progress::Unfinished));
        }
        assert!(matches!(ring.shared.progress(&request, 4096), Progress::Unfinished));
        assert!(matches!(ring.shared.progress(&request, -libc::EAGAIN), Progress::Refused));
        assert!(matches!(ring.shared.progress(&request, 4096), Progress::Ended(Ok(_))));
    }

    #[test]
    fn the_errors_of_a_read_are_those_of_the_disk() {
        let (_folder, ring) = ring();
        for (before, result, kind) in [
            (0, 0, io::ErrorKind::UnexpectedEof),
            (512, -libc::EINVAL, io::ErrorKind::UnexpectedEof),
            (0, -libc::EINVAL, io::ErrorKind::InvalidInput),
            (0, -libc::EACCES, io::ErrorKind::PermissionDenied),
        ] {
            let request = Request::new(0, 8192);
            let buffer = Some(ring.shared.buffers.take(8192));
            request.transfer(|transfer| {
                (transfer.buffer, transfer.done) = (buffer, before);
            });
            let Progress::Ended(Err(error)) = ring.shared.progress(&request, result) else {
                panic!("{result} ends a read");
            };
            assert_eq!(error.kind(), kind);
        }
    }

    #[test]
    fn reads_left_to_the_reaper_are_served_though_the_kernel_refuses() {
        let (_folder, ring) = ring();
        let requests: Vec<_> = (0..3).map(|page| Request::new(page * 4096, 4096)).collect();
        assert!(!ring.shared.leave_to_reaper(&requests), "no read is with the kernel");
        lock(&ring.shared.queue).in_flight = NEAR;
        assert!(ring.shared.leave_to_reaper(&requests));
        let left = std::mem::take(&mut lock(&ring.shared.queue).left);
        let mut wakers = Vec::new();
        let interrupted = io::Error::from_raw_os_error(libc::EINTR);
        ring.shared.after_wait(Err(interrupted), left, &mut wakers);
        let left = std::mem::take(&mut lock(&ring.shared.queue).left);
        assert_eq!(left.len(), 3, "they wait for the next");
        let forbidden = io::Error::from_raw_os_error(libc::EPERM);
        ring.shared.after_wait(Err(forbidden), left, &mut wakers);
        lock(&ring.shared.queue).in_flight = 0;
        for request in requests {
            assert!(request.is_answered(), "the page at {}", request.offset);
        }
    }

    #[test]
    fn a_read_refused_by_the_kernel_is_served_by_the_reaper() {
        let (_folder, ring) = ring();
        let request = Request::new(0, 8192);
        request.transfer(|transfer| transfer.buffer = Some(ring.shared.buffers.take(8192)));
        request.transfer(|transfer| transfer.refusals = MOST_REFUSALS);
        assert!(ring.shared.advance(&request, -libc::ECANCELED, &mut Vec::new()));
        assert!(!request.is_abandoned());
        assert!(request.complete(Ok(ring.shared.buffers.take(4096))).is_none());
    }
}
