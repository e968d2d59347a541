//! Imitation of a disk with a volatile write cache, above a device that has none: for tests that
//! kill the program.
//!
//! Data written to a file outlives the process that wrote it, so `kill -9` alone loses nothing and
//! detects few bugs. Here a write is acknowledged once it is in memory that all handles of the disk
//! share ([`VolatileDisk`]). A flush writes all of that to the inner device, a durable write its
//! own sectors. Data still in memory when the process ends is lost, as in a power cut. As a real
//! disk does, it also writes out arbitrary sectors at arbitrary times ([`Habit`]), so later writes
//! may survive when earlier ones do not.
//!
//! Zeroing and discarding go through at once. Invariants, for any number of handles on any threads:
//! a read sees every write completed before it was submitted; the data that a completed flush or
//! durable write covered is in the inner device; an older version of a sector never overtakes a
//! newer one, since one thread writes them all out.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::buffer::{Pool, SECTOR_BYTES, Slice};
use crate::delegate_device;
use crate::device::{Action, Completion, Device, Extent, Operation, clip};
use crate::queue::Queue;
use crate::ring::Ring;

/// Bytes of unflushed data from which a write waits until some have been written out.
const FULL_BYTES: u64 = 64 << 20;

/// The interval at which a handle checks for completions of the disk's thread.
const LOOK: Duration = Duration::from_micros(50);

/// A thread's handle of a [`VolatileDisk`], above a handle of the inner device.
#[derive(Debug)]
pub struct VolatileDevice<D> {
    inner: D,
    disk: VolatileDisk,
    /// Reads in flight on the inner device, with the cached sectors that overlap them.
    reads: Queue<Read>,
    /// The channel for completions from the disk's thread, of which `asked` are outstanding.
    answers: (Sender<Completion>, Receiver<Completion>),
    asked: usize,
    finished: Vec<Completion>,
}

#[derive(Debug)]
struct Read {
    token: u64,
    into: Slice,
    newer: Vec<Dirty>,
}

impl<D: Device> VolatileDevice<D> {
    /// Creates a handle of `disk`. `inner` must be a handle of the device with which the disk was
    /// started.
    pub fn new(inner: D, disk: VolatileDisk) -> VolatileDevice<D> {
        VolatileDevice {
            inner,
            disk,
            reads: Queue::default(),
            answers: channel(),
            asked: 0,
            finished: Vec::new(),
        }
    }

    fn ask(&mut self, token: u64, what: DiskTask) {
        self.asked += 1;
        self.disk.give(DiskJob {
            task: what,
            waiter: Some(Waiter { token, answers: self.answers.0.clone() }),
        });
    }

    fn begin(&mut self, operation: Operation) -> io::Result<()> {
        let Operation { token, offset, action } = operation;
        let len = clip(&Operation { token, offset, action: action.clone() }, self.size_bytes())?;
        match action {
            Action::Flush => self.ask(token, DiskTask::Flush),
            _ if len == 0 => self.reads.end(token, Ok(())),
            Action::Read(into) => {
                let newer = self.disk.cache().overlapping(offset, len);
                let slot = self.reads.insert(Read { token, into: into.clone(), newer });
                let action = Action::Read(into);
                self.inner.submit(Operation { token: slot as u64, offset, action });
            }
            Action::Write { from, durable } => {
                let mut cache = self.disk.cache();
                cache.write(offset, &from.slice(0..len as usize));
                let is_full = cache.bytes() > FULL_BYTES;
                drop(cache);
                match (durable, is_full) {
                    (true, _) => self.ask(token, DiskTask::Store { offset, len }),
                    (false, true) => self.ask(token, DiskTask::MakeRoom),
                    (false, false) => self.reads.end(token, Ok(())),
                }
            }
            Action::Zero { .. } | Action::Discard { .. } => {
                let stale = self.disk.cache().overlapping(offset, len);
                let zeroing = match action {
                    Action::Zero { may_unmap, fast, .. } => Some((may_unmap, fast)),
                    _ => None,
                };
                self.ask(token, DiskTask::Zero { offset, len, zeroing, stale });
            }
        }
        Ok(())
    }
}

impl<D: Device> Device for VolatileDevice<D> {
    delegate_device!(this => this.inner; size_bytes set_timeout spun);

    fn submit(&mut self, operation: Operation) {
        let token = operation.token;
        if let Err(error) = self.begin(operation) {
            self.reads.end(token, Err(error));
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.reads.take_ended(done);
        self.inner.poll(&mut self.finished);
        for Completion { token, result } in self.finished.drain(..) {
            let read = self.reads.remove(token as usize);
            read.newer.iter().for_each(|dirty| dirty.patch(&read.into));
            done.push(Completion { token: read.token, result });
        }
        if self.asked > 0 {
            let before = done.len();
            done.extend(self.answers.1.try_iter());
            self.asked -= done.len() - before;
        }
    }

    fn set_size(&mut self, bytes: u64) -> io::Result<()> {
        self.inner.set_size(bytes)?;
        self.disk.give(DiskJob { task: DiskTask::Resize { bytes }, waiter: None });
        Ok(())
    }

    fn allocation(&mut self, range: Range<u64>, extents: &mut Vec<Extent>) {
        let bytes = range.end.saturating_sub(range.start);
        if bytes == 0 || self.disk.cache().overlapping(range.start, bytes).is_empty() {
            return self.inner.allocation(range, extents);
        }
        extents.push(Extent::data(bytes));
    }

    fn next_due(&self) -> Option<Instant> {
        let look = (self.asked > 0).then(|| Instant::now() + LOOK);
        [self.reads.next_due(), look, self.inner.next_due()].into_iter().flatten().min()
    }
}

/// Maximum number of adjacent sectors written in one operation.
const RUN_SECTORS: usize = 64;
/// Maximum number of writes in flight on the inner device.
const WRITES: usize = 32;
/// The polling interval of an inner device that does not wake the ring.
const PATIENCE: Duration = Duration::from_millis(1);

/// The writes that a disk stores without a flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Habit {
    /// The disk stores data only when its cache is full.
    Lazy,
    /// The disk stores a quarter of its cached sectors, chosen at random. It does so at random
    /// intervals of at most `at_most`.
    Restless {
        /// The longest time between two such writes.
        at_most: Duration,
        /// The seed of the random times and choices.
        seed: u64,
    },
}

/// A disk that loses unflushed data when the process ends. Clones share the disk; each thread uses
/// it through a [`VolatileDevice`].
#[derive(Debug, Clone)]
pub struct VolatileDisk(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    cache: Arc<Mutex<WriteCache>>,
    /// The channel to the disk's thread. It and `thread` are `None` once the disk ends: dropping
    /// the channel stops the thread, which is then joined.
    jobs: Option<Sender<DiskJob>>,
    thread: Option<JoinHandle<()>>,
}

/// A job for the disk's thread, and the handle that waits for its end.
#[derive(Debug)]
struct DiskJob {
    task: DiskTask,
    waiter: Option<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    token: u64,
    answers: Sender<Completion>,
}

#[derive(Debug)]
enum DiskTask {
    /// Write out all sectors, durably.
    Flush,
    /// Write out the sectors of a range, durably.
    Store { offset: u64, len: u64 },
    /// Write out all sectors to make room in the cache.
    MakeRoom,
    /// Zero a range, or discard it if `zeroing` is `None`. `zeroing` says whether the range may be
    /// unmapped, and whether zeroing must be fast. `stale` are the sectors that were cached for it
    /// before.
    Zero { offset: u64, len: u64, zeroing: Option<(bool, bool)>, stale: Vec<Dirty> },
    /// Change the size of the device.
    Resize { bytes: u64 },
}

impl VolatileDisk {
    /// Starts a disk and its thread. `open` gives that thread its handle of the inner device.
    ///
    /// # Errors
    /// When the system cannot provide a thread or a ring.
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

    fn cache(&self) -> MutexGuard<'_, WriteCache> {
        lock(&self.0.cache)
    }

    /// Drops all unflushed data, as a power cut does.
    pub(crate) fn lose_unflushed(&self) {
        self.cache().clear();
    }

    fn give(&self, job: DiskJob) {
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

/// Locks the cache, even after a panic of another thread. That leaves the cache consistent, since
/// each change is a single insertion or removal.
fn lock(cache: &Mutex<WriteCache>) -> MutexGuard<'_, WriteCache> {
    cache.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The disk's thread, which owns a handle of the inner device. It carries out jobs in order, and
/// combines flushes and durable writes. It ends with the last handle of the disk.
struct Writer<D> {
    inner: D,
    ring: Ring,
    pool: Pool,
    cache: Arc<Mutex<WriteCache>>,
    /// The number of operations in flight on the inner device.
    open: usize,
    /// The first error of these operations.
    failed: Option<io::Error>,
}

impl<D: Device> Writer<D> {
    fn run(&mut self, todo: &Receiver<DiskJob>, habit: Habit) {
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

    /// Carries out jobs in order. Consecutive stores and flushes are combined.
    fn carry_out(&mut self, jobs: impl Iterator<Item = DiskJob>) {
        let mut gathered = Vec::new();
        for job in jobs {
            let result = match job.task {
                DiskTask::Flush | DiskTask::Store { .. } | DiskTask::MakeRoom => {
                    gathered.push(job);
                    continue;
                }
                DiskTask::Zero { offset, len, zeroing, stale } => {
                    self.bring(&mut gathered);
                    self.zero(offset, len, zeroing, &stale)
                }
                DiskTask::Resize { bytes } => {
                    self.bring(&mut gathered);
                    lock(&self.cache).truncate(bytes);
                    self.inner.set_size(bytes)
                }
            };
            job.waiter.into_iter().for_each(|waiter| waiter.answer(&result));
        }
        self.bring(&mut gathered);
    }

    /// Writes out the sectors that any of the jobs covers, and flushes if one requires it.
    fn bring(&mut self, jobs: &mut Vec<DiskJob>) {
        if jobs.is_empty() {
            return;
        }
        let mut what = Vec::new();
        let cache = lock(&self.cache);
        if jobs.iter().any(|job| !matches!(job.task, DiskTask::Store { .. })) {
            what = cache.all();
        } else {
            for job in jobs.iter() {
                if let DiskTask::Store { offset, len } = job.task {
                    what.extend(cache.overlapping(offset, len));
                }
            }
            what.sort_by_key(|dirty| dirty.offset);
            what.dedup_by_key(|dirty| dirty.offset);
        }
        drop(cache);
        let mut result = self.store(what);
        if result.is_ok() && jobs.iter().any(|job| !matches!(job.task, DiskTask::MakeRoom)) {
            self.submit(0, Action::Flush);
            result = self.finish();
        }
        jobs.drain(..).filter_map(|job| job.waiter).for_each(|waiter| waiter.answer(&result));
    }

    /// Writes out sectors, given in order, and removes them from the cache unless they were written
    /// again meanwhile.
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

    /// Starts an operation on the inner device, once fewer than the maximum are in flight.
    fn submit(&mut self, offset: u64, action: Action) {
        self.wait_until_open_are(WRITES - 1);
        self.inner.submit(Operation { token: 0, offset, action });
        self.open += 1;
    }

    /// Waits for all operations in flight. Returns the first error.
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

/// The unit in bytes that a disk stores entirely or not at all.
pub const UNIT_BYTES: usize = 512;

const SECTOR: usize = SECTOR_BYTES as usize;

/// Sectors in a volatile write cache that are not on the medium.
///
/// Sectors are immutable and shared: a snapshot keeps the content of its moment while a newer write
/// replaces the sector in the map. A sector records which of its 512-byte units are written, since
/// a torn write leaves the others to the medium.
#[derive(Debug, Default)]
pub struct WriteCache {
    sectors: BTreeMap<u64, Arc<Sector>>,
}

#[derive(Debug, Clone)]
struct Sector {
    bytes: [u8; SECTOR],
    /// A bitmap of the units that are written.
    written: u8,
}

/// A snapshot of a cached sector, as part of a requested range.
#[derive(Debug, Clone)]
pub struct Dirty {
    /// The sector's byte offset on the device.
    pub offset: u64,
    /// The sector's byte offset in the requested range.
    position: usize,
    sector: Arc<Sector>,
}

impl Dirty {
    /// Returns whether all units are written, so that the medium's content is not needed.
    pub fn is_whole(&self) -> bool {
        self.sector.written == u8::MAX
    }

    /// Copies the written units over the older content of the requested range.
    pub fn patch(&self, range: &Slice) {
        for unit in (0..8).filter(|unit| self.sector.written >> unit & 1 == 1) {
            let from = unit * UNIT_BYTES;
            let to = self.position + from;
            // A range may end inside the device's last sector.
            if to + UNIT_BYTES <= range.len() {
                range
                    .slice(to..to + UNIT_BYTES)
                    .copy_from(&self.sector.bytes[from..][..UNIT_BYTES]);
            }
        }
    }

    /// Returns the sector as a requested range of its own.
    pub fn alone(&self) -> Dirty {
        Dirty { position: 0, ..self.clone() }
    }
}

impl WriteCache {
    /// Writes whole units to the cache at `offset`, which is the start of a sector.
    pub fn write(&mut self, offset: u64, from: &Slice) {
        for at in (0..from.len()).step_by(SECTOR) {
            let part = from.slice(at..from.len().min(at + SECTOR));
            let key = offset + at as u64;
            let mut sector = match self.sectors.get(&key) {
                Some(older) => Sector::clone(older),
                None => Sector { bytes: [0; SECTOR], written: 0 },
            };
            part.copy_to(&mut sector.bytes[..part.len()]);
            sector.written |= units(part.len());
            self.sectors.insert(key, Arc::new(sector));
        }
    }

    /// Sets a range of the cache to zero.
    pub fn zero(&mut self, offset: u64, len: u64) {
        let zeros = Arc::new(Sector { bytes: [0; SECTOR], written: u8::MAX });
        for at in (0..len).step_by(SECTOR) {
            self.sectors.insert(offset + at, Arc::clone(&zeros));
        }
    }

    /// Returns the cached sectors that overlap a range.
    pub fn overlapping(&self, offset: u64, len: u64) -> Vec<Dirty> {
        let found = self.sectors.range(offset..offset + len);
        let dirty = |(&at, sector): (&u64, &Arc<Sector>)| Dirty {
            offset: at,
            position: (at - offset) as usize,
            sector: Arc::clone(sector),
        };
        found.map(dirty).collect()
    }

    /// Returns all cached sectors.
    pub fn all(&self) -> Vec<Dirty> {
        self.overlapping(0, u64::MAX)
    }

    /// Returns the cached sectors of a range, with only the units that lie in the range.
    pub fn take_range(&self, offset: u64, len: u64) -> Vec<Dirty> {
        let mut found = self.overlapping(offset, len);
        for dirty in &mut found {
            let inside = (len as usize - dirty.position).min(SECTOR);
            let written = dirty.sector.written & units(inside);
            dirty.sector = Arc::new(Sector { bytes: dirty.sector.bytes, written });
        }
        found
    }

    /// Returns the sectors that reached the medium by chance before a power cut: each written unit
    /// survives with probability one half.
    pub fn survivors(&self, seed: u64) -> Vec<Dirty> {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut found = self.all();
        for dirty in &mut found {
            let written = dirty.sector.written & random.random::<u8>();
            dirty.sector = Arc::new(Sector { bytes: dirty.sector.bytes, written });
        }
        found
    }

    /// Removes sectors that are now on the medium, unless they were written again since.
    pub fn clean(&mut self, stored: &[Dirty]) {
        for dirty in stored {
            if self.sectors.get(&dirty.offset).is_some_and(|now| Arc::ptr_eq(now, &dirty.sector)) {
                self.sectors.remove(&dirty.offset);
            }
        }
    }

    /// Returns the size of the cached data in bytes, in whole sectors.
    pub fn bytes(&self) -> u64 {
        self.sectors.len() as u64 * SECTOR_BYTES
    }

    /// Removes the sectors that begin at or after the byte `size`.
    pub fn truncate(&mut self, size: u64) {
        self.sectors.split_off(&size);
    }

    /// Removes all sectors.
    pub fn clear(&mut self) {
        self.sectors.clear();
    }
}

/// Returns a bitmap of the first units, which are `len` bytes together.
fn units(len: usize) -> u8 {
    ((1u16 << (len / UNIT_BYTES)) - 1) as u8
}

const _: () =
    assert!(SECTOR / UNIT_BYTES == u8::BITS as usize, "a sector's units fit a mask of 8 bits");
