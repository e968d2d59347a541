//! The disk's own half: the cache its handles share, and the thread that writes it out.
//!
//! The thread has a handle of the inner device for itself and does what it is asked in sequence,
//! flushes and durable writes that have gathered meanwhile together. It keeps no claim on the disk:
//! with the last handle its work ends, and what was not written out by then is lost.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::buffer::{Pool, Slice};
use crate::ring::Ring;
use crate::write_cache::{Dirty, WriteCache};
use crate::{Action, Completion, Device, Operation, SECTOR_BYTES};

/// The longest run written out at once, in sectors.
const RUN_SECTORS: usize = 64;
/// Writes the inner device has to do at a time.
const WRITES: usize = 32;
/// Looks at an inner device that does not wake the ring when it is done.
const PATIENCE: Duration = Duration::from_millis(1);

/// The writes that a disk stores without being asked to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Habit {
    /// Nothing, unless there is no more room.
    Lazy,
    /// A quarter of its sectors, chosen at random, at random times that are at most so far apart.
    Restless {
        /// The longest it does nothing.
        at_most: Duration,
        /// Fixes times and choices.
        seed: u64,
    },
}

/// A disk that loses what was not flushed when the process ends. Clones are the same disk; each
/// thread uses it by a [`VolatileDevice`](super::VolatileDevice).
#[derive(Debug, Clone)]
pub struct VolatileDisk(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    cache: Arc<Mutex<WriteCache>>,
    /// Both until the end, when the thread learns that nobody will ask any more and is waited for.
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

/// Something to do, and who waits for it.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) what: What,
    pub(super) waiter: Option<Waiter>,
}

#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) token: u64,
    pub(super) answers: Sender<Completion>,
}

#[derive(Debug)]
pub(super) enum What {
    /// Bring everything to the device, durably.
    Flush,
    /// Bring a range there, durably.
    Store { offset: u64, len: u64 },
    /// Bring everything there.
    MakeRoom,
    /// Zero a range, given whether it may be unmapped and must be fast, or else discard it; `stale`
    /// is what the cache had of it then.
    Zero { offset: u64, len: u64, zeroing: Option<(bool, bool)>, stale: Vec<Dirty> },
    /// Take a new size.
    Resize { bytes: u64 },
}

impl VolatileDisk {
    /// A disk over a device of which `open` gives a handle, for a thread of its own.
    ///
    /// # Errors
    /// When there is no thread or ring for it.
    pub fn start<D: Device>(
        habit: Habit,
        open: impl FnOnce(&Ring, &Pool) -> D + Send + 'static,
    ) -> io::Result<VolatileDisk> {
        let cache = Arc::new(Mutex::new(WriteCache::default()));
        let (jobs, todo) = channel();
        let (began, has_begun) = channel();
        let shared = Arc::clone(&cache);
        let thread =
            std::thread::Builder::new().name("write-cache".to_owned()).spawn(move || {
                let ring = match Ring::new(WRITES as u32) {
                    Ok(ring) => ring,
                    Err(error) => return drop(began.send(Err(error))),
                };
                let _ = began.send(Ok(())); // it is waited for
                let pool = Pool::new(0);
                let inner = open(&ring, &pool);
                Writer { inner, ring, pool, cache: shared, open: 0, failed: None }
                    .run(&todo, habit);
            })?;
        has_begun
            .recv()
            .expect("the thread says whether it could begin")
            .map_err(io::Error::other)?;
        Ok(VolatileDisk(Arc::new(Shared { cache, jobs: Some(jobs), thread: Some(thread) })))
    }

    /// The data that was not written out yet.
    pub(super) fn cache(&self) -> MutexGuard<'_, WriteCache> {
        lock(&self.0.cache)
    }

    /// The power fails: what was not written out is lost.
    pub(crate) fn lose_unflushed(&self) {
        self.cache().clear();
    }

    pub(super) fn give(&self, job: Job) {
        let jobs = self.0.jobs.as_ref().expect("there until the end");
        jobs.send(job).expect("the thread takes jobs as long as there are handles");
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // its panic has been printed
        }
    }
}

/// A thread that panicked left the cache whole: each change to it is one insertion or removal.
fn lock(cache: &Mutex<WriteCache>) -> MutexGuard<'_, WriteCache> {
    cache.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The state of the disk's thread.
struct Writer<D> {
    inner: D,
    ring: Ring,
    pool: Pool,
    cache: Arc<Mutex<WriteCache>>,
    /// Operations the inner device has not ended.
    open: usize,
    /// The first of them that failed.
    failed: Option<io::Error>,
}

impl<D: Device> Writer<D> {
    fn run(&mut self, todo: &Receiver<Job>, habit: Habit) {
        let mut random = SmallRng::seed_from_u64(match habit {
            Habit::Lazy => 0,
            Habit::Restless { seed, .. } => seed,
        });
        loop {
            let found = match habit {
                Habit::Restless { at_most, .. } if lock(&self.cache).bytes() > 0 => {
                    todo.recv_timeout(at_most.mul_f64(random.random()))
                }
                _ => todo.recv().map_err(RecvTimeoutError::from),
            };
            match found {
                Ok(job) => self.carry_out(std::iter::once(job).chain(todo.try_iter())),
                Err(RecvTimeoutError::Timeout) => {
                    let mut some = lock(&self.cache).all();
                    some.retain(|_| random.random_ratio(1, 4));
                    let _ = self.store(some); // they stay, and who flushes will hear of it
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Does what has gathered; in sequence, but all that is to be brought to the device at once.
    fn carry_out(&mut self, jobs: impl Iterator<Item = Job>) {
        let mut gathered = Vec::new();
        for job in jobs {
            let result = match job.what {
                What::Flush | What::Store { .. } | What::MakeRoom => {
                    gathered.push(job);
                    continue;
                }
                What::Zero { offset, len, zeroing, stale } => {
                    self.bring(&mut gathered);
                    self.zero(offset, len, zeroing, &stale)
                }
                What::Resize { bytes } => {
                    self.bring(&mut gathered);
                    lock(&self.cache).truncate(bytes);
                    self.inner.set_size(bytes)
                }
            };
            job.waiter.into_iter().for_each(|waiter| waiter.answer(&result));
        }
        self.bring(&mut gathered);
    }

    /// Brings to the device what any of the jobs wants there.
    fn bring(&mut self, jobs: &mut Vec<Job>) {
        if jobs.is_empty() {
            return;
        }
        let mut what = Vec::new();
        let cache = lock(&self.cache);
        if jobs.iter().any(|job| !matches!(job.what, What::Store { .. })) {
            what = cache.all();
        } else {
            for job in jobs.iter() {
                if let What::Store { offset, len } = job.what {
                    what.extend(cache.overlapping(offset, len));
                }
            }
            what.sort_by_key(|dirty| dirty.offset);
            what.dedup_by_key(|dirty| dirty.offset);
        }
        drop(cache);
        let mut result = self.store(what);
        if result.is_ok() && jobs.iter().any(|job| !matches!(job.what, What::MakeRoom)) {
            self.submit(0, Action::Flush);
            result = self.finish();
        }
        jobs.drain(..).filter_map(|job| job.waiter).for_each(|waiter| waiter.answer(&result));
    }

    /// Writes sectors, given in order, and forgets those that were not written again meanwhile.
    fn store(&mut self, what: Vec<Dirty>) -> io::Result<()> {
        for run in what.chunk_by(|one, next| one.offset + SECTOR_BYTES == next.offset) {
            for run in run.chunks(RUN_SECTORS) {
                let from = self.pool.allocate(run.len() * SECTOR_BYTES as usize).whole();
                from.fill_zero(); // past the end of the device, if it ends inside a sector
                run.iter()
                    .enumerate()
                    .for_each(|(at, dirty)| dirty.alone().patch(&sector(&from, at)));
                self.submit(run[0].offset, Action::Write { from, durable: false });
            }
        }
        self.finish()?;
        lock(&self.cache).clean(&what);
        Ok(())
    }

    fn zero(
        &mut self,
        offset: u64,
        len: u64,
        zeroing: Option<(bool, bool)>,
        stale: &[Dirty],
    ) -> io::Result<()> {
        let action = match zeroing {
            Some((may_unmap, fast)) => Action::Zero { len, may_unmap, fast },
            None => Action::Discard { len },
        };
        self.submit(offset, action);
        self.finish()?;
        lock(&self.cache).clean(stale);
        Ok(())
    }

    /// Starts an operation of the inner device, when it has not too many.
    fn submit(&mut self, offset: u64, action: Action) {
        self.wait_until_open_are(WRITES - 1);
        self.inner.submit(Operation { token: 0, offset, action });
        self.open += 1;
    }

    /// Waits for all operations, and says how they went.
    fn finish(&mut self) -> io::Result<()> {
        self.wait_until_open_are(0);
        self.failed.take().map_or(Ok(()), Err)
    }

    fn wait_until_open_are(&mut self, few: usize) {
        let mut done = Vec::new();
        while self.open > few {
            self.inner.poll(&mut done);
            if done.is_empty()
                && let Err(error) = self.ring.wait(Some(PATIENCE))
            {
                self.failed.get_or_insert(error);
            }
            self.open -= done.len();
            let failed = done.drain(..).find_map(|completion| completion.result.err());
            self.failed = self.failed.take().or(failed);
        }
    }
}

fn sector(run: &Slice, at: usize) -> Slice {
    let sector = SECTOR_BYTES as usize;
    run.slice(at * sector..(at + 1) * sector)
}

impl Waiter {
    fn answer(self, result: &io::Result<()>) {
        let copy = |error: &io::Error| match error.raw_os_error() {
            Some(code) => io::Error::from_raw_os_error(code),
            None => io::Error::new(error.kind(), error.to_string()),
        };
        let result = result.as_ref().copied().map_err(copy);
        // unless its handle is gone
        let _ = self.answers.send(Completion { token: self.token, result });
    }
}
