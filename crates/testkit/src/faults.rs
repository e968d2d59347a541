//! A device that fails on purpose, for tests.
//!
//! [`FaultDevice`] wraps a device and behaves like a disk with a volatile write cache. A write
//! completes once it is in that cache (here: in memory). A flush moves the content of the cache to
//! the inner device; a durable write moves only its own data. So the inner device always holds what
//! would survive, and a *power cut* discards the cache. In addition, a [`FaultPlan`] fails, delays,
//! tears or drops chosen operations. With [`Faults`] a test counts operations, injects faults and
//! cuts the power.
//!
//! After a cut every operation, also those in flight, fails with EIO until [`Faults::power_on`]. A
//! flush that was in progress may have stored some of its writes, as on a real disk. Discarded
//! ranges read as zeros.
//!
//! Invariants: without faults, the device answers exactly as the inner device would. A read sees
//! every write that completed before the read was submitted. Data covered by a completed flush is
//! in the inner device. Data written after the last flush, and not durably, is not, unless a power
//! cut was told to keep some of it.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::rc::Rc;
use std::time::Instant;

use floe_device::{
    Action, Completion, Device, Dirty, Operation, Pool, SECTOR_BYTES, Slice, UNIT_BYTES,
    WriteCache, clip, delegate_device,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::io::Errno;

/// A device with a volatile write cache that fails on purpose.
#[derive(Debug)]
pub struct FaultDevice<D> {
    inner: D,
    shared: Rc<RefCell<Shared>>,
    pool: Pool,
    cache: WriteCache,
    storing: Storing,
    /// Operations in flight on the inner device, by their token there.
    inside: HashMap<u64, Inside>,
    next_inside: u64,
    /// Completions for later polls, each with the number of polls by which it is delayed beyond the
    /// next one.
    done: Vec<(u32, Completion)>,
    delayed: Vec<(u32, Completion)>,
    finished: Vec<Completion>,
    /// Number of power cuts so far. A completion counts only if its operation was submitted since
    /// the last cut.
    life: u64,
}

#[derive(Debug)]
enum Inside {
    Read { token: u64, into: Slice, newer: Vec<Dirty>, delay: u32, life: u64 },
    Store(StoreStep),
}

/// The handle by which a test controls a [`FaultDevice`]. Clones control the same device.
#[derive(Debug, Clone)]
pub struct Faults(Rc<RefCell<Shared>>);

#[derive(Debug)]
struct Shared {
    plan: FaultPlan,
    counts: Counts,
    off: bool,
    /// A power cut that was requested but not carried out yet. With a seed, some unflushed writes
    /// survive.
    cut: Option<Option<u64>>,
    stored: bool,
}

/// Numbers of submitted operations, injected faults and power cuts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads submitted.
    pub reads: u64,
    /// Writes submitted.
    pub writes: u64,
    /// Zeroings and discards submitted.
    pub zeros: u64,
    /// Flushes submitted.
    pub flushes: u64,
    /// Operations with an injected fault.
    pub faults: u64,
    /// Power cuts.
    pub power_cuts: u64,
}

impl Faults {
    /// Returns the counts so far.
    pub fn counts(&self) -> Counts {
        self.0.borrow().counts
    }

    /// Applies `fault` to the next operation of this kind.
    pub fn inject(&self, kind: OperationKind, fault: Fault) {
        let mut shared = self.0.borrow_mut();
        let nth = shared.counts.of(kind);
        shared.plan.set(kind, nth, fault);
    }

    /// Cuts the power: all data that was not flushed is lost.
    pub fn power_cut(&self) {
        self.cut(None);
    }

    /// Cuts the power while the disk writes out its cache in an order of its own. Each unflushed
    /// unit of 512 bytes survives with probability one half, drawn from `seed`.
    pub fn power_cut_keeping(&self, seed: u64) {
        self.cut(Some(seed));
    }

    /// Switches the power on again: new operations succeed.
    pub fn power_on(&self) {
        self.0.borrow_mut().off = false;
    }

    /// Returns whether the power is off.
    pub fn is_off(&self) -> bool {
        self.0.borrow().off
    }

    /// Returns whether nothing is on its way to the inner device and no power cut is pending. After
    /// a cut, poll until this is true before you examine the inner device.
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
    /// Wraps `inner` in a device that fails as `plan` says. Returns the device and the test's
    /// handle.
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

    /// Returns the inner device, which holds what would survive a power cut now.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    fn answer(&mut self, token: u64, result: io::Result<()>, delay: u32) {
        self.done.push((delay, Completion { token, result }));
    }

    /// Submits an operation to the inner device.
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

    /// Submits the pending operations of the current store job to the inner device, and completes
    /// jobs that are done.
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

    /// Discards the cache, except that `survivors` reach the medium, and fails all operations in
    /// flight.
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

    /// Carries out a power cut that the test has requested.
    fn obey(&mut self) {
        let cut = self.shared.borrow().cut;
        if let Some(keep) = cut {
            let survivors = keep.map_or_else(Vec::new, |seed| self.cache.survivors(seed));
            self.lose_power(survivors);
        }
    }
}

impl<D: Device> Device for FaultDevice<D> {
    delegate_device!(this => this.inner; size_bytes set_size set_timeout spun);

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

    fn next_due(&self) -> Option<Instant> {
        let busy =
            !self.done.is_empty() || !self.delayed.is_empty() || self.shared.borrow().cut.is_some();
        if busy { Some(Instant::now()) } else { self.inner.next_due() }
    }
}

fn broken() -> io::Error {
    Errno::IO.into()
}

/// Maximum delay that a seeded plan draws, in polls.
const DELAY_POLLS_MAX: u32 = 8;

/// Kinds of operations. A plan counts each kind separately.
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
    /// Fail with EIO, without any effect.
    Fail,
    /// Take effect, but complete only after `polls` more polls.
    Delay {
        /// Number of polls by which the completion is delayed.
        polls: u32,
    },
    /// Store only the first units of a write. Any other operation fails.
    Tear {
        /// Number of 512-byte units that are stored.
        units: u64,
        /// Event that follows the torn write.
        then: AfterTear,
    },
    /// Report success without any effect: a write is lost, a read leaves its buffer unchanged, a
    /// flush makes nothing durable.
    Drop,
}

/// The event that follows a torn write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterTear {
    /// The write fails with EIO.
    Error,
    /// The power fails: the torn part is on the medium, and all other unflushed data is lost.
    PowerCut,
}

/// Probabilities of faults, each between 0 and 1, for every operation.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Rates {
    /// Probability that the operation fails.
    pub fail: f64,
    /// Probability that the completion is delayed, and so comes out of order.
    pub delay: f64,
    /// Probability that a write is torn.
    pub tear: f64,
    /// Probability that a write is lost without an error.
    pub drop: f64,
}

/// The faults of a device: assigned to certain operations ("the third write"), or drawn from a
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
    /// Returns a plan without faults.
    pub fn none() -> FaultPlan {
        FaultPlan::default()
    }

    /// Returns a plan that draws faults from a seed with these probabilities.
    pub fn seeded(seed: u64, rates: Rates) -> FaultPlan {
        FaultPlan { named: HashMap::new(), seeded: Some((SmallRng::seed_from_u64(seed), rates)) }
    }

    /// Adds a fault for the `nth` operation of a kind, counted from zero.
    pub fn on(mut self, kind: OperationKind, nth: u64, fault: Fault) -> FaultPlan {
        self.set(kind, nth, fault);
        self
    }

    fn set(&mut self, kind: OperationKind, nth: u64, fault: Fault) {
        self.named.insert((kind, nth), fault);
    }

    /// Chooses the fault of an operation of `units` units. Each operation draws the same amount of
    /// randomness, so an additional read only shifts the fates of later writes.
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

/// A job that moves sectors from the cache to the medium, with the token of the operation that
/// waits for it.
#[derive(Debug)]
struct StoreJob {
    token: Option<u64>,
    what: Vec<Dirty>,
    flush: bool,
    delay: u32,
}

/// The operation of a store job that is in flight on the inner device.
#[derive(Debug)]
enum StoreStep {
    Fetch { dirty: Dirty, into: Slice },
    Store,
    Flush,
}

/// The queue of store jobs, which move cached sectors to the medium. Jobs run one at a time, so an
/// older version of a sector never overtakes a newer one.
#[derive(Debug, Default)]
struct Storing {
    queue: VecDeque<StoreJob>,
    current: Option<RunningJob>,
}

#[derive(Debug)]
struct RunningJob {
    job: StoreJob,
    /// Number of the job's sectors that were started.
    begun: usize,
    /// Sectors that were read, patched and still have to be stored.
    fetched: Vec<(u64, Slice)>,
    /// Operations of the job in flight on the inner device.
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

    /// Returns the next operation to submit to the inner device, if one can be submitted now.
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

    /// Removes and returns the current job with its result, if it is finished.
    fn take_finished(&mut self) -> Option<(StoreJob, io::Result<()>)> {
        let current = self.current.take_if(|current| current.is_finished())?;
        Some((current.job, current.result))
    }

    /// Drops the jobs that were not started, and lets the current one end without a completion.
    /// Returns the tokens of the operations that waited.
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

/// A device whose operations pass through a function first. If the function returns a result, the
/// operation completes with it and never reaches the device.
pub struct Intercepted<D, F> {
    device: D,
    intercept: F,
    ended: Vec<Completion>,
}

impl<D: Device, F: FnMut(&Operation) -> Option<io::Result<()>>> Intercepted<D, F> {
    /// Wraps `device` so that `intercept` sees each operation first.
    pub fn new(device: D, intercept: F) -> Self {
        Self { device, intercept, ended: Vec::new() }
    }
}

impl<D: Device, F: FnMut(&Operation) -> Option<io::Result<()>>> Device for Intercepted<D, F> {
    delegate_device!(this => this.device; size_bytes set_size next_due);

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
