//! A device that fails on purpose, for tests.
//!
//! [`FaultDevice`] wraps a device and behaves like a disk with a volatile write cache: a write is
//! answered once it is in that cache (held here, in memory), a flush moves the cache's content to
//! the inner device, a durable write moves its own. So the inner device always holds what would
//! survive, and a *power cut* is forgetting the cache. On top of that a [`FaultPlan`] fails,
//! delays, tears or drops chosen operations. [`Faults`] is the test's handle: it counts, injects
//! and cuts the power.
//!
//! After a cut every operation, also those in flight, fails with EIO until [`Faults::power_on`]. A
//! flush that was in progress may have stored some of its writes, as on a real disk. Discarded
//! ranges read as zeros.
//!
//! Invariants: without faults it answers exactly as the inner device would; a read sees every write
//! completed before it was submitted; what a completed flush covered is in the inner device; what
//! was written after the last flush, and not durably, is not (unless a cut is told to keep some of
//! it).

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use floe_device::{
    Action, Completion, Device, Dirty, Operation, Pool, SECTOR_BYTES, Slice, UNIT_BYTES,
    WriteCache, clip,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::io::Errno;

/// A device that fails on purpose.
#[derive(Debug)]
pub struct FaultDevice<D> {
    inner: D,
    shared: Rc<RefCell<Shared>>,
    pool: Pool,
    cache: WriteCache,
    storing: Storing,
    /// The operations of the inner device, by inner token.
    inside: HashMap<u64, Inside>,
    next_inside: u64,
    /// Answers for the next poll, and how many polls later than that.
    done: Vec<(u32, Completion)>,
    delayed: Vec<(u32, Completion)>,
    finished: Vec<Completion>,
    /// Counts power cuts: an answer belongs to the life its operation was submitted in.
    life: u64,
}

#[derive(Debug)]
enum Inside {
    Read { token: u64, into: Slice, newer: Vec<Dirty>, delay: u32, life: u64 },
    Store(StoreStep),
}

/// The test's handle on a [`FaultDevice`]. Clones share it.
#[derive(Debug, Clone)]
pub struct Faults(Rc<RefCell<Shared>>);

#[derive(Debug)]
struct Shared {
    plan: FaultPlan,
    counts: Counts,
    off: bool,
    /// A cut that was asked for and not carried out yet; with a seed, some writes survive.
    cut: Option<Option<u64>>,
    stored: bool,
}

/// Operations submitted so far and what was done to them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Zeroings and discards.
    pub zeros: u64,
    /// Flushes.
    pub flushes: u64,
    /// Operations a fault was injected into.
    pub faults: u64,
    /// Power cuts.
    pub power_cuts: u64,
}

impl Faults {
    /// The counts of all events so far.
    pub fn counts(&self) -> Counts {
        self.0.borrow().counts
    }

    /// Applies `fault` to the next operation of a kind.
    pub fn inject(&self, kind: OperationKind, fault: Fault) {
        let mut shared = self.0.borrow_mut();
        let nth = shared.counts.of(kind);
        shared.plan.set(kind, nth, fault);
    }

    /// Cuts the power: all that was not flushed is lost.
    pub fn power_cut(&self) {
        self.cut(None);
    }

    /// Cuts the power while the disk was writing its cache out in some order of its own: of the
    /// unflushed 512-byte units, each survives with probability one half, drawn from `seed`.
    pub fn power_cut_keeping(&self, seed: u64) {
        self.cut(Some(seed));
    }

    /// Power comes back: new operations work again.
    pub fn power_on(&self) {
        self.0.borrow_mut().off = false;
    }

    /// True once the power is cut.
    pub fn is_off(&self) -> bool {
        self.0.borrow().off
    }

    /// True if nothing is on its way to the inner device. After a cut, poll until this is true
    /// before looking there.
    pub fn is_settled(&self) -> bool {
        let shared = self.0.borrow();
        shared.stored && shared.cut.is_none()
    }

    fn cut(&self, keep: Option<u64>) {
        let mut shared = self.0.borrow_mut();
        shared.cut = Some(keep);
        shared.off = true;
        shared.counts.power_cuts += 1;
    }
}

impl Counts {
    fn of(&mut self, kind: OperationKind) -> u64 {
        *self.slot(kind)
    }

    fn slot(&mut self, kind: OperationKind) -> &mut u64 {
        match kind {
            OperationKind::Read => &mut self.reads,
            OperationKind::Write => &mut self.writes,
            OperationKind::Zero => &mut self.zeros,
            OperationKind::Flush => &mut self.flushes,
        }
    }
}

impl<D: Device> FaultDevice<D> {
    /// Wraps `inner`, to fail as `plan` says; the handle is for the test.
    pub fn new(inner: D, plan: FaultPlan) -> (FaultDevice<D>, Faults) {
        let shared =
            Shared { plan, counts: Counts::default(), off: false, cut: None, stored: true };
        let shared = Rc::new(RefCell::new(shared));
        let device = FaultDevice {
            inner,
            shared: Rc::clone(&shared),
            pool: Pool::new(0),
            cache: WriteCache::default(),
            storing: Storing::default(),
            inside: HashMap::new(),
            next_inside: 0,
            delayed: Vec::new(),
            done: Vec::new(),
            finished: Vec::new(),
            life: 0,
        };
        (device, Faults(shared))
    }

    /// The device within: what would survive a power cut now.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    fn answer(&mut self, token: u64, result: io::Result<()>, delay: u32) {
        self.done.push((delay, Completion { token, result }));
    }

    /// Starts an operation of the inner device.
    fn start_inside(&mut self, offset: u64, action: Action, what: Inside) {
        let token = self.next_inside;
        self.next_inside += 1;
        self.inside.insert(token, what);
        self.inner.submit(Operation { token, offset, action });
    }

    fn begin(&mut self, operation: Operation, len: u64) {
        let Operation { token, offset, action } = operation;
        let kind = match &action {
            Action::Read(_) => OperationKind::Read,
            Action::Write { .. } => OperationKind::Write,
            Action::Zero { .. } | Action::Discard { .. } => OperationKind::Zero,
            Action::Flush => OperationKind::Flush,
        };
        let fault = {
            let mut shared = self.shared.borrow_mut();
            let nth = shared.counts.of(kind);
            *shared.counts.slot(kind) += 1;
            let fault = shared.plan.decide(kind, nth, len / UNIT_BYTES as u64);
            shared.counts.faults += u64::from(fault.is_some());
            fault
        };
        let delay = match fault {
            Some(Fault::Fail) => return self.answer(token, Err(broken()), 0),
            Some(Fault::Drop) => return self.answer(token, Ok(()), 0),
            Some(Fault::Tear { units, then }) => {
                if let Action::Write { from, .. } = &action {
                    let stored = len.min(units.saturating_mul(UNIT_BYTES as u64)) as usize;
                    self.cache.write(offset, &from.slice(0..stored));
                    if then == AfterTear::PowerCut {
                        // What the torn write reached is on the medium; all else in the cache is
                        // lost.
                        let torn = self.cache.take_range(offset, stored as u64);
                        Faults(Rc::clone(&self.shared)).power_cut();
                        self.lose_power(torn);
                    }
                }
                return self.answer(token, Err(broken()), 0);
            }
            Some(Fault::Delay { polls }) => polls,
            None => 0,
        };
        match action {
            Action::Read(into) => {
                let newer = self.cache.overlapping(offset, len);
                let what =
                    Inside::Read { token, into: into.clone(), newer, delay, life: self.life };
                self.start_inside(offset, Action::Read(into), what);
            }
            Action::Write { from, durable } => {
                self.cache.write(offset, &from.slice(0..len as usize));
                if durable {
                    let what = self.cache.overlapping(offset, len);
                    self.storing.push(StoreJob { token: Some(token), what, flush: true, delay });
                } else {
                    self.answer(token, Ok(()), delay);
                }
            }
            Action::Zero { .. } | Action::Discard { .. } => {
                self.cache.zero(offset, len);
                self.answer(token, Ok(()), delay);
            }
            Action::Flush => {
                let what = self.cache.all();
                self.storing.push(StoreJob { token: Some(token), what, flush: true, delay });
            }
        }
        self.store();
    }

    /// Gives the inner device what the job at hand wants done next.
    fn store(&mut self) {
        loop {
            while let Some((offset, action, step)) = self.storing.next(&self.pool) {
                self.start_inside(offset, action, Inside::Store(step));
            }
            let Some((job, result)) = self.storing.take_finished() else { break };
            if result.is_ok() {
                self.cache.clean(&job.what);
            }
            if let Some(token) = job.token {
                self.answer(token, result, job.delay);
            }
        }
        self.shared.borrow_mut().stored = self.storing.is_idle();
    }

    /// Forgets the cache, except that `survivors` reach the medium, and fails whatever was under
    /// way.
    fn lose_power(&mut self, survivors: Vec<Dirty>) {
        self.shared.borrow_mut().cut = None;
        self.life += 1;
        self.cache.clear();
        for token in self.storing.abandon() {
            self.answer(token, Err(broken()), 0);
        }
        self.done.append(&mut self.delayed);
        for (delay, completion) in &mut self.done {
            (*delay, completion.result) = (0, Err(broken()));
        }
        if !survivors.is_empty() {
            self.storing.push(StoreJob { token: None, what: survivors, flush: false, delay: 0 });
        }
        self.store();
    }

    /// Carries out a cut the test asked for.
    fn obey(&mut self) {
        let cut = self.shared.borrow().cut;
        if let Some(keep) = cut {
            let survivors = keep.map_or_else(Vec::new, |seed| self.cache.survivors(seed));
            self.lose_power(survivors);
        }
    }
}

impl<D: Device> Device for FaultDevice<D> {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn submit(&mut self, operation: Operation) {
        self.obey();
        let token = operation.token;
        match clip(&operation, self.size_bytes()) {
            Err(error) => self.answer(token, Err(error), 0),
            Ok(_) if self.shared.borrow().off => self.answer(token, Err(broken()), 0),
            Ok(len) => self.begin(operation, len),
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.obey();
        self.delayed.iter_mut().for_each(|(polls, _)| *polls -= 1);
        done.extend(
            self.delayed.extract_if(.., |(polls, _)| *polls == 0).map(|(_, completion)| completion),
        );
        self.inner.poll(&mut self.finished);
        for Completion { token, result } in std::mem::take(&mut self.finished) {
            match self.inside.remove(&token).expect("the inner device answers what it was asked") {
                Inside::Read { token, life, .. } if life != self.life => {
                    self.answer(token, Err(broken()), 0);
                }
                Inside::Read { token, into, newer, delay, .. } => {
                    newer.iter().for_each(|dirty| dirty.patch(&into));
                    self.answer(token, result, delay);
                }
                Inside::Store(step) => self.storing.finished(step, result),
            }
        }
        self.store();
        for (delay, completion) in self.done.drain(..) {
            match delay {
                0 => done.push(completion),
                polls => self.delayed.push((polls, completion)),
            }
        }
    }

    fn set_size(&mut self, bytes: u64) -> io::Result<()> {
        self.inner.set_size(bytes)
    }

    fn set_timeout(&mut self, timeout: Duration) {
        self.inner.set_timeout(timeout);
    }

    fn spun(&self) -> Duration {
        self.inner.spun()
    }

    fn next_due(&self) -> Option<Instant> {
        let busy =
            !self.done.is_empty() || !self.delayed.is_empty() || self.shared.borrow().cut.is_some();
        if busy { Some(Instant::now()) } else { self.inner.next_due() }
    }
}

fn broken() -> io::Error {
    Errno::IO.into()
}

/// The longest delay a seeded plan draws, in polls.
const DELAY_POLLS_MAX: u32 = 8;

/// OperationKinds of operations, as plans count them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OperationKind {
    /// Reads.
    Read,
    /// Writes, durable or not.
    Write,
    /// Zeroings and discards.
    Zero,
    /// Flushes.
    Flush,
}

/// A fault, applied to one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Fail with EIO, without effect.
    Fail,
    /// Take effect, but complete only after `polls` further polls.
    Delay {
        /// The number of polls by which it is later than usual.
        polls: u32,
    },
    /// Store only the first units of a write, then fail. Any other operation just fails.
    Tear {
        /// The number of units of 512 bytes that are stored.
        units: u64,
        /// The consequence of the tear.
        then: AfterTear,
    },
    /// Report success without effect: a write is lost, a read leaves its slice as it was, a flush
    /// keeps nothing.
    Drop,
}

/// The consequence of a torn write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterTear {
    /// The write fails with EIO.
    Error,
    /// The power fails: the torn part is on the medium, everything else unflushed is lost.
    PowerCut,
}

/// Probabilities of faults, each between 0 and 1, for every operation.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Rates {
    /// Probability of failing.
    pub fail: f64,
    /// Probability of completing late, and so out of order.
    pub delay: f64,
    /// Probability of being torn (writes only).
    pub tear: f64,
    /// Probability of being lost without an error (writes only).
    pub drop: f64,
}

/// The operations that fail, with their faults: named ones ("the third write"), or drawn from a
/// seed.
///
/// Operations count from zero, each kind by itself, in the order of submission. The same seed and
/// the same operations give the same faults.
#[derive(Debug, Clone, Default)]
pub struct FaultPlan {
    named: HashMap<(OperationKind, u64), Fault>,
    seeded: Option<(SmallRng, Rates)>,
}

impl FaultPlan {
    /// Makes a plan without faults.
    pub fn none() -> FaultPlan {
        FaultPlan::default()
    }

    /// Faults drawn from a seed.
    pub fn seeded(seed: u64, rates: Rates) -> FaultPlan {
        FaultPlan { named: HashMap::new(), seeded: Some((SmallRng::seed_from_u64(seed), rates)) }
    }

    /// Adds a fault of the `nth` operation of a kind, counted from zero.
    pub fn on(mut self, kind: OperationKind, nth: u64, fault: Fault) -> FaultPlan {
        self.set(kind, nth, fault);
        self
    }

    fn set(&mut self, kind: OperationKind, nth: u64, fault: Fault) {
        self.named.insert((kind, nth), fault);
    }

    /// Chooses the fault of this operation of `units` units. Draws the same amount of randomness
    /// for every operation, so that one more read does not change the fate of a later write beyond
    /// shifting it.
    fn decide(&mut self, kind: OperationKind, nth: u64, units: u64) -> Option<Fault> {
        let drawn = self.seeded.as_mut().and_then(|(random, rates)| {
            let (which, how): (f64, f64) = (random.random(), random.random());
            draw(kind, units, which, how, rates)
        });
        self.named.remove(&(kind, nth)).or(drawn)
    }
}

fn draw(kind: OperationKind, units: u64, which: f64, how: f64, rates: &Rates) -> Option<Fault> {
    let write = kind == OperationKind::Write;
    let faults = [
        (rates.fail, Fault::Fail),
        (rates.delay, Fault::Delay { polls: 1 + (how * f64::from(DELAY_POLLS_MAX)) as u32 }),
        (
            if write { rates.tear } else { 0.0 },
            Fault::Tear { units: (how * units as f64) as u64, then: AfterTear::Error },
        ),
        (if write { rates.drop } else { 0.0 }, Fault::Drop),
    ];
    let mut reach = 0.0;
    faults.into_iter().find_map(|(rate, fault)| {
        reach += rate;
        (which < reach).then_some(fault)
    })
}

/// Sectors that shall reach the medium, and who waits for it.
#[derive(Debug)]
struct StoreJob {
    token: Option<u64>,
    what: Vec<Dirty>,
    flush: bool,
    delay: u32,
}

/// A job's present operation on the inner device.
#[derive(Debug)]
enum StoreStep {
    Fetch { dirty: Dirty, into: Slice },
    Store,
    Flush,
}

/// Jobs that move cached sectors to the medium, one at a time: an older version of a sector never
/// overtakes a newer one. It says which operation of the inner device is next, and is told how that
/// ended.
#[derive(Debug, Default)]
struct Storing {
    queue: VecDeque<StoreJob>,
    current: Option<RunningJob>,
}

#[derive(Debug)]
struct RunningJob {
    job: StoreJob,
    /// Sectors of the job already begun.
    begun: usize,
    /// Fetched and patched, to be stored.
    fetched: Vec<(u64, Slice)>,
    /// Steps the inner device has not finished.
    open: usize,
    flushed: bool,
    result: io::Result<()>,
}

impl Storing {
    fn push(&mut self, job: StoreJob) {
        self.queue.push_back(job);
    }

    fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.current.is_none()
    }

    /// The next thing to ask of the inner device, if anything can be asked now.
    fn next(&mut self, pool: &Pool) -> Option<(u64, Action, StoreStep)> {
        if self.current.is_none() {
            let job = self.queue.pop_front()?;
            let fetched = Vec::new();
            self.current = Some(RunningJob {
                job,
                begun: 0,
                fetched,
                open: 0,
                flushed: false,
                result: Ok(()),
            });
        }
        let current = self.current.as_mut()?;
        let step = current.step(pool)?;
        current.open += 1;
        Some(step)
    }

    fn finished(&mut self, step: StoreStep, result: io::Result<()>) {
        let current = self.current.as_mut().expect("a step belongs to the current job");
        current.open -= 1;
        match (step, result) {
            (StoreStep::Fetch { .. }, Ok(())) if current.result.is_err() => {}
            (StoreStep::Fetch { dirty, into }, Ok(())) => {
                dirty.patch(&into);
                current.fetched.push((dirty.offset, into));
            }
            (_, Err(error)) => current.result = Err(error),
            (StoreStep::Store | StoreStep::Flush, Ok(())) => {}
        }
    }

    /// The current job, once nothing is left to do for it.
    fn take_finished(&mut self) -> Option<(StoreJob, io::Result<()>)> {
        let current = self.current.take_if(|current| current.is_finished())?;
        Some((current.job, current.result))
    }

    /// Drops the jobs nobody began, and lets the current one run out unanswered. Returns who
    /// waited.
    fn abandon(&mut self) -> Vec<u64> {
        let mut waiting: Vec<u64> = self.queue.drain(..).filter_map(|job| job.token).collect();
        if let Some(current) = &mut self.current {
            waiting.extend(current.job.token.take());
            // The power is gone: nothing more is begun.
            current.begun = current.job.what.len();
            current.fetched.clear();
            current.result = Err(io::ErrorKind::BrokenPipe.into());
        }
        waiting
    }
}

impl RunningJob {
    fn step(&mut self, pool: &Pool) -> Option<(u64, Action, StoreStep)> {
        if let Some((offset, from)) = self.fetched.pop() {
            return Some((offset, Action::Write { from, durable: false }, StoreStep::Store));
        }
        if let Some(dirty) = self.job.what.get(self.begun) {
            self.begun += 1;
            let slice = pool.allocate(SECTOR_BYTES as usize).whole();
            let dirty = dirty.alone();
            if dirty.is_whole() {
                dirty.patch(&slice);
                let store = Action::Write { from: slice, durable: false };
                return Some((dirty.offset, store, StoreStep::Store));
            }
            let fetch = Action::Read(slice.clone());
            return Some((dirty.offset, fetch, StoreStep::Fetch { dirty, into: slice }));
        }
        if self.open == 0 && self.job.flush && !self.flushed && self.result.is_ok() {
            self.flushed = true;
            return Some((0, Action::Flush, StoreStep::Flush));
        }
        None
    }

    fn is_finished(&self) -> bool {
        let all_begun = self.begun == self.job.what.len() && self.fetched.is_empty();
        let flushed = !self.job.flush || self.flushed || self.result.is_err();
        self.open == 0 && all_begun && flushed
    }
}

/// A device of which a function sees each operation first. Where the function returns a result, the
/// operation ends with it, and the device never sees it.
pub struct Intercepted<D, F> {
    device: D,
    intercept: F,
    ended: Vec<Completion>,
}

impl<D: Device, F: FnMut(&Operation) -> Option<io::Result<()>>> Intercepted<D, F> {
    /// Puts `intercept` before a device.
    pub fn new(device: D, intercept: F) -> Self {
        Self { device, intercept, ended: Vec::new() }
    }
}

impl<D: Device, F: FnMut(&Operation) -> Option<io::Result<()>>> Device for Intercepted<D, F> {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn set_size(&mut self, bytes: u64) -> io::Result<()> {
        self.device.set_size(bytes)
    }

    fn submit(&mut self, operation: Operation) {
        match (self.intercept)(&operation) {
            Some(result) => self.ended.push(Completion { token: operation.token, result }),
            None => self.device.submit(operation),
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.ended);
        self.device.poll(done);
    }

    fn next_due(&self) -> Option<Instant> {
        self.device.next_due()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fates(seed: u64) -> Vec<Option<Fault>> {
        let rates = Rates { fail: 0.1, delay: 0.1, tear: 0.1, drop: 0.1 };
        let mut plan = FaultPlan::seeded(seed, rates);
        (0..1000).map(|nth| plan.decide(OperationKind::Write, nth, 64)).collect()
    }

    #[test]
    fn a_seed_always_gives_the_same_faults_and_another_seed_others() {
        assert_eq!(fates(7), fates(7));
        assert_ne!(fates(7), fates(8));
    }

    #[test]
    fn faults_come_as_often_as_their_rates_say() {
        let fates = fates(1);
        let count =
            |is: fn(&Fault) -> bool| fates.iter().flatten().filter(|fault| is(fault)).count();
        for found in [
            count(|fault| *fault == Fault::Fail),
            count(|fault| matches!(fault, Fault::Delay { polls: 1..=8 })),
            count(|fault| matches!(fault, Fault::Tear { units: 0..64, .. })),
            count(|fault| *fault == Fault::Drop),
        ] {
            assert!((60..140).contains(&found), "{found} of about 100");
        }
    }

    #[test]
    fn a_named_operation_fails_once() {
        let mut plan = FaultPlan::none().on(OperationKind::Flush, 1, Fault::Fail);
        assert_eq!(plan.decide(OperationKind::Flush, 0, 0), None);
        assert_eq!(plan.decide(OperationKind::Write, 1, 8), None);
        assert_eq!(plan.decide(OperationKind::Flush, 1, 0), Some(Fault::Fail));
        assert_eq!(plan.decide(OperationKind::Flush, 2, 0), None);
    }
}

#[cfg(test)]
mod store_tests {
    use super::*;

    #[test]
    fn a_job_flushes_once_all_it_stored_has_arrived_and_the_next_waits_for_it() {
        let pool = Pool::new(0);
        let mut cache = WriteCache::default();
        cache.write(0, &pool.allocate(2 * SECTOR_BYTES as usize).whole());
        let mut storing = Storing::default();
        for token in [1, 2] {
            storing.push(StoreJob { token: Some(token), what: cache.all(), flush: true, delay: 0 });
        }
        for token in [1, 2] {
            let stores = [storing.next(&pool), storing.next(&pool)];
            assert!(stores.iter().all(|step| matches!(step, Some((_, _, StoreStep::Store)))));
            assert!(storing.next(&pool).is_none(), "nothing to do until the stores are done");
            storing.finished(StoreStep::Store, Ok(()));
            assert!(storing.next(&pool).is_none(), "one store is still under way");
            storing.finished(StoreStep::Store, Ok(()));
            assert!(storing.take_finished().is_none(), "not flushed yet");
            assert!(matches!(storing.next(&pool), Some((_, Action::Flush, StoreStep::Flush))));
            assert!(storing.take_finished().is_none(), "the flush is under way");
            storing.finished(StoreStep::Flush, Ok(()));
            assert_eq!(storing.take_finished().and_then(|(job, _)| job.token), Some(token));
        }
        assert!(storing.is_idle());
    }

    #[test]
    fn a_job_whose_store_failed_fails_without_a_flush() {
        let pool = Pool::new(0);
        let mut cache = WriteCache::default();
        cache.zero(0, SECTOR_BYTES);
        let mut storing = Storing::default();
        storing.push(StoreJob { token: Some(1), what: cache.all(), flush: true, delay: 0 });
        assert!(storing.next(&pool).is_some());
        storing.finished(StoreStep::Store, Err(io::ErrorKind::Other.into()));
        assert!(storing.next(&pool).is_none());
        assert!(storing.take_finished().is_some_and(|(_, result)| result.is_err()));
    }
}
