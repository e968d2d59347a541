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
use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::buffer::{Pool, Slice};
use crate::range::clip;
use crate::write_cache::{Dirty, UNIT_BYTES, WriteCache};
use crate::{Action, Completion, Device, Operation};

mod plan;
mod script;

pub use plan::{AfterTear, Fault, FaultPlan, Kind, Rates};

pub use script::Script;
pub(crate) use script::ScriptedDevice;

mod settle;

use settle::{Job, Settling, Step};

/// A device that fails on purpose.
#[derive(Debug)]
pub struct FaultDevice<D> {
    inner: D,
    shared: Rc<RefCell<Shared>>,
    pool: Pool,
    cache: WriteCache,
    settling: Settling,
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
    Settle(Step),
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
    settled: bool,
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

    /// Does `fault` to the next operation of that kind.
    pub fn inject(&self, kind: Kind, fault: Fault) {
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
        shared.settled && shared.cut.is_none()
    }

    fn cut(&self, keep: Option<u64>) {
        let mut shared = self.0.borrow_mut();
        shared.cut = Some(keep);
        shared.off = true;
        shared.counts.power_cuts += 1;
    }
}

impl Counts {
    fn of(&mut self, kind: Kind) -> u64 {
        *self.slot(kind)
    }

    fn slot(&mut self, kind: Kind) -> &mut u64 {
        match kind {
            Kind::Read => &mut self.reads,
            Kind::Write => &mut self.writes,
            Kind::Zero => &mut self.zeros,
            Kind::Flush => &mut self.flushes,
        }
    }
}

impl<D: Device> FaultDevice<D> {
    /// Wraps `inner`, to fail as `plan` says; the handle is for the test.
    pub fn new(inner: D, plan: FaultPlan) -> (FaultDevice<D>, Faults) {
        let shared =
            Shared { plan, counts: Counts::default(), off: false, cut: None, settled: true };
        let shared = Rc::new(RefCell::new(shared));
        let device = FaultDevice {
            inner,
            shared: Rc::clone(&shared),
            pool: Pool::new(0),
            cache: WriteCache::default(),
            settling: Settling::default(),
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
            Action::Read(_) => Kind::Read,
            Action::Write { .. } => Kind::Write,
            Action::Zero { .. } | Action::Discard { .. } => Kind::Zero,
            Action::Flush => Kind::Flush,
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
                    self.settling.push(Job { token: Some(token), what, flush: true, delay });
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
                self.settling.push(Job { token: Some(token), what, flush: true, delay });
            }
        }
        self.settle();
    }

    /// Gives the inner device what the job at hand wants done next.
    fn settle(&mut self) {
        loop {
            while let Some((offset, action, step)) = self.settling.next(&self.pool) {
                self.start_inside(offset, action, Inside::Settle(step));
            }
            let Some((job, result)) = self.settling.take_finished() else { break };
            if result.is_ok() {
                self.cache.clean(&job.what);
            }
            if let Some(token) = job.token {
                self.answer(token, result, job.delay);
            }
        }
        self.shared.borrow_mut().settled = self.settling.is_idle();
    }

    /// Forgets the cache, except that `survivors` reach the medium, and fails whatever was under
    /// way.
    fn lose_power(&mut self, survivors: Vec<Dirty>) {
        self.shared.borrow_mut().cut = None;
        self.life += 1;
        self.cache.clear();
        for token in self.settling.abandon() {
            self.answer(token, Err(broken()), 0);
        }
        self.done.append(&mut self.delayed);
        for (delay, completion) in &mut self.done {
            (*delay, completion.result) = (0, Err(broken()));
        }
        if !survivors.is_empty() {
            self.settling.push(Job { token: None, what: survivors, flush: false, delay: 0 });
        }
        self.settle();
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
                Inside::Settle(step) => self.settling.finished(step, result),
            }
        }
        self.settle();
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
    io::Error::from_raw_os_error(libc::EIO)
}
