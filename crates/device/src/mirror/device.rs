//! One thread's device of a mirror.
//!
//! An operation asks the state machine before it is sent to the halves, and again before it is
//! acknowledged. Where it must wait, the mailbox wakes the thread after a state change.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::layout::HEAD_BYTES;
use super::shared::{Core, Opened, no_answer};
use super::state::{Begin, Span};
use super::threads::Running;
use crate::buffer::Pool;
use crate::device::{Action, Completion, Device, Halves, Judge, Operation, clip};
use crate::queue::{Inbox, Queue};
use crate::ring::Ring;

/// The interval at which the mailbox is checked if the ring has no room to poll it.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// One thread's handle of a mirror.
pub struct MirrorDevice {
    /// The thread's device of each half, by number; `None` until the half is used.
    halves: Vec<Option<Opened>>,
    running: Arc<Running>,
    inbox: Inbox<()>,
    pool: Pool,
    ring: Ring,
    queue: Queue<MirrorOperation>,
    /// Slots of operations that wait for a state change.
    waiting: Vec<usize>,
    parts: Queue<Part>,
    done: Vec<Completion>,
}

/// An operation on the mirror, sent to one or more halves.
struct MirrorOperation {
    operation: Operation,
    span: Option<Span>,
    /// The half that a read of one particular copy is for; `None` for all other operations.
    copy: Option<usize>,
    stage: OperationStage,
    /// The state's refusal count when the operation was submitted. A held operation fails once the
    /// count has grown.
    refusals: u64,
}

#[derive(Clone, Copy)]
enum OperationStage {
    Held,
    Running {
        left: usize,
        sent: Halves,
        missed: Halves,
    },
    /// The operation has ended, but these halves missed it. It is acknowledged once they have
    /// certainly left the mirror.
    Confirming(Halves),
}

/// An operation on one half, as part of an operation on the mirror.
#[derive(Clone, Copy)]
struct Part {
    half: usize,
    begun: Instant,
    /// Slot of the mirror operation; `None` once the part has been abandoned.
    operation: Option<usize>,
}

impl MirrorDevice {
    pub(super) fn new(
        ring: &Ring,
        pool: &Pool,
        running: &Arc<Running>,
    ) -> io::Result<MirrorDevice> {
        let inbox = Inbox::new(ring)?;
        running.shared.lock().add_handle(Arc::clone(&inbox.mailbox));
        Ok(MirrorDevice {
            halves: running.shared.places.iter().map(|_| None).collect(),
            running: Arc::clone(running),
            inbox,
            pool: pool.clone(),
            ring: ring.clone(),
            queue: Queue::default(),
            waiting: Vec::new(),
            parts: Queue::default(),
            done: Vec::new(),
        })
    }

    fn begin(&mut self, operation: Operation, copy: Option<usize>) -> io::Result<()> {
        let shape = self.running.shared.shape;
        let len = clip(&operation, shape.bytes)?;
        let is_flush = matches!(operation.action, Action::Flush);
        if matches!(operation.action, Action::Zero { fast: true, .. }) {
            // One half might do it and another not.
            return Err(io::Error::new(io::ErrorKind::Unsupported, "zeros would be written"));
        }
        if len == 0 && !is_flush {
            self.queue.end(operation.token, Ok(()));
            return Ok(());
        }
        let span = (!is_flush).then(|| shape.span(operation.offset, len));
        let refusals = self.running.shared.lock().state.refusals();
        let stage = OperationStage::Held;
        let slot = self.queue.insert(MirrorOperation { operation, span, copy, stage, refusals });
        self.proceed(slot);
        Ok(())
    }

    fn submit_to(&mut self, operation: Operation, copy: Option<usize>) {
        let token = operation.token;
        let _ = self.inbox.listen(); // else the clock looks
        if let Err(error) = self.begin(operation, copy) {
            self.queue.end(token, Err(error));
        }
    }

    /// Advances an operation as far as the mirror's state allows.
    fn proceed(&mut self, slot: usize) {
        let running = Arc::clone(&self.running);
        let mut core = running.shared.lock();
        let waiting = &self.queue[slot];
        let state = &mut core.state;
        let refused = state.refusals() != waiting.refusals;
        match waiting.stage {
            OperationStage::Held => {
                let begin = match (&waiting.operation.action, waiting.span.clone(), waiting.copy) {
                    (_, Some(span), Some(half)) => state.begin_read_copy(half, span),
                    (Action::Read(_), Some(span), None) => Some(state.begin_read(span)),
                    (_, Some(span), None) => Some(state.begin_write(span)),
                    (_, None, _) => Some(state.begin_flush()),
                };
                let Some(begin) = begin else {
                    return self.end(slot, Err(io::ErrorKind::NotConnected.into()));
                };
                match begin {
                    Begin::Go(halves) => self.start(&mut core, slot, halves),
                    Begin::Hold if !refused => {
                        running.shared.wake_lanes();
                        self.waiting.push(slot);
                    }
                    Begin::Hold => self.end(slot, Err(refusal(&core))),
                    Begin::Fenced => self.end(slot, Err(fenced())),
                }
            }
            OperationStage::Confirming(_) if state.is_fenced() => self.end(slot, Err(fenced())),
            OperationStage::Confirming(missed) if state.may_acknowledge(missed) => {
                self.end(slot, Ok(()))
            }
            OperationStage::Confirming(_) if refused => self.end(slot, Err(refusal(&core))),
            OperationStage::Confirming(_) => self.waiting.push(slot),
            OperationStage::Running { .. } => unreachable!("an operation that runs does not wait"),
        }
    }

    /// Sends an operation to these halves.
    fn start(&mut self, core: &mut Core, slot: usize, halves: Halves) {
        let started = &mut self.queue[slot];
        let none = Halves::NONE;
        started.stage = OperationStage::Running { left: halves.len(), sent: halves, missed: none };
        let Operation { offset, action, .. } = started.operation.clone();
        let offset = if started.span.is_some() { offset + HEAD_BYTES } else { 0 };
        // Halves would differ after a discard.
        let action = match action {
            Action::Discard { len } => Action::Zero { len, may_unmap: true, fast: false },
            other => other,
        };
        let mut failed = Vec::new();
        for half in halves.iter() {
            if self.halves[half].as_ref().is_some_and(|opened| core.is_stale(half, opened)) {
                self.halves[half] = None;
                core.closed(half);
            }
            if self.halves[half].is_none() {
                match core.open(half, &self.ring, &self.pool) {
                    Ok(opened) => self.halves[half] = Some(opened),
                    Err(error) => {
                        failed.push((half, error));
                        continue;
                    }
                }
            }
            let opened = self.halves[half].as_mut().expect("it was opened");
            let part = Part { half, begun: Instant::now(), operation: Some(slot) };
            let token = self.parts.insert(part);
            opened.busy += 1;
            let action = action.clone();
            opened.device.submit(Operation { token: token as u64, offset, action });
        }
        for (half, error) in failed {
            self.ended(core, slot, half, Err(error));
        }
    }

    /// Handles the end of an operation on one half.
    fn ended(&mut self, core: &mut Core, slot: usize, half: usize, result: io::Result<()>) {
        let running = &mut self.queue[slot];
        let OperationStage::Running { left, sent, missed } = &mut running.stage else {
            unreachable!("an operation that ends on a half runs")
        };
        *left -= 1;
        if let Err(error) = &result {
            *missed = missed.with(Halves::one(half));
            core.halves[half].error = Some(error.to_string());
        }
        if *left > 0 {
            return;
        }
        let (sent, missed, span) = (*sent, *missed, running.span.clone());
        let is_of_copy = running.copy.is_some();
        let is_read = matches!(running.operation.action, Action::Read(_));
        let done = match span {
            Some(span) if is_read => {
                if missed.is_empty() {
                    return self.end(slot, result);
                }
                let goes_on = core.state.read_failed(half, span);
                if is_of_copy {
                    self.running.shared.wake(core);
                }
                if is_of_copy || !goes_on {
                    return self.end(slot, result);
                }
                running.stage = OperationStage::Held;
                true
            }
            Some(span) => core.state.end_write(span, sent, missed),
            None => core.state.end_flush(sent, missed),
        };
        if !missed.is_empty() {
            self.running.shared.wake(core);
        } else if core.state.regions_left() > 0 {
            self.running.shared.wake_lanes();
        }
        match done {
            true if is_read => self.waiting.push(slot),
            true if core.state.may_acknowledge(missed) => self.end(slot, Ok(())),
            true => {
                running.stage = OperationStage::Confirming(missed);
                self.waiting.push(slot);
            }
            false => {
                let error = || io::Error::other("no half in sync has it");
                self.end(slot, Err(result.err().unwrap_or_else(error)));
            }
        }
    }

    fn end(&mut self, slot: usize, result: io::Result<()>) {
        let token = self.queue.remove(slot).operation.token;
        self.queue.end(token, result);
    }

    /// Collects completions from the halves, and abandons operations that exceed the timeout.
    fn collect(&mut self) {
        let running = Arc::clone(&self.running);
        for half in 0..self.halves.len() {
            let Some(opened) = &mut self.halves[half] else { continue };
            opened.device.poll(&mut self.done);
            opened.busy -= self.done.len();
            for Completion { token, result } in std::mem::take(&mut self.done) {
                let part = self.parts.remove(token as usize);
                if let Some(slot) = part.operation {
                    self.ended(&mut running.shared.lock(), slot, half, result);
                }
            }
        }
        let timeout = running.shared.pace.timeout;
        let is_late = |(_, part): &(usize, &Part)| part.begun.elapsed() > timeout;
        let late = self.parts.iter().filter(is_late).map(|(at, part)| (at, *part));
        for (at, Part { half, operation, .. }) in late.collect::<Vec<_>>() {
            let Some(slot) = operation else { continue };
            let mut core = running.shared.lock();
            let error = no_answer(timeout);
            if running.shared.fail(&mut core, half, &error) {
                self.parts[at].operation = None;
                self.ended(&mut core, slot, half, Err(error));
            }
        }
    }

    /// Closes the devices of halves that have left the mirror.
    fn release(&mut self) {
        let running = Arc::clone(&self.running);
        for (half, slot) in self.halves.iter_mut().enumerate() {
            let mut core = running.shared.lock();
            if slot.take_if(|opened| core.is_stale(half, opened)).is_some() {
                core.closed(half);
                running.shared.wake_lanes();
            }
        }
    }
}

fn fenced() -> io::Error {
    io::Error::other("another server owns the mirror")
}

fn refusal(core: &Core) -> io::Error {
    let why = core.witness_error.as_deref().unwrap_or("its headers cannot be written");
    io::Error::other(format!("the mirror takes no changes: {why}"))
}

impl Device for MirrorDevice {
    fn size_bytes(&self) -> u64 {
        self.running.shared.shape.bytes
    }

    fn submit(&mut self, operation: Operation) {
        self.submit_to(operation, None);
    }

    fn copies(&self) -> Halves {
        let core = self.running.shared.lock();
        core.state.members().with(core.state.returning())
    }

    fn read_copy(&mut self, copy: usize, operation: Operation) {
        self.submit_to(operation, Some(copy));
    }

    fn may_differ(&self, range: Range<u64>) -> bool {
        let span = self.running.shared.shape.span(range.start, range.end - range.start);
        self.running.shared.lock().state.may_differ(span)
    }

    fn mend(&mut self, wrong: Halves, mut operation: Operation) {
        if let Action::Write { from, durable } = &mut operation.action {
            // A power cut would show the damage again, after a write over the intact copy.
            *durable = true;
            let bytes = from.len() as u64;
            self.running.shared.lock().count_wrong(wrong, bytes);
        }
        self.submit(operation);
    }

    fn set_judge(&mut self, judge: Option<Arc<dyn Judge>>) {
        let mut core = self.running.shared.lock();
        core.judge = judge;
        core.state.await_judge(false);
        self.running.shared.wake_lanes();
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        let is_woken = !self.inbox.listens() || self.inbox.was_woken();
        let _ = self.inbox.listen(); // else the clock looks
        let waiting = self.waiting.len();
        self.collect();
        if is_woken {
            self.release();
        }
        if is_woken || self.waiting.len() > waiting {
            for slot in std::mem::take(&mut self.waiting) {
                self.proceed(slot);
            }
        }
        self.queue.take_ended(done);
    }

    fn next_due(&self) -> Option<Instant> {
        if let Some(now) = self.queue.next_due() {
            return Some(now);
        }
        let timeout = self.running.shared.pace.timeout;
        let begun = self.parts.iter().filter(|(_, part)| part.operation.is_some());
        let late = begun.map(|(_, part)| part.begun + timeout).min();
        // The last half is waited for, however long it takes.
        let late = late.map(|due| due.max(Instant::now() + LOOK_AGAIN));
        let looks = (!self.inbox.listens()).then(|| Instant::now() + LOOK_AGAIN);
        let devices = self.halves.iter().flatten().filter_map(|opened| opened.device.next_due());
        devices.chain(late).chain(looks).min()
    }

    fn set_timeout(&mut self, timeout: Duration) {
        self.halves.iter_mut().flatten().for_each(|half| half.device.set_timeout(timeout));
    }

    fn spun(&self) -> Duration {
        self.halves.iter().flatten().map(|opened| opened.device.spun()).sum()
    }
}

impl Drop for MirrorDevice {
    fn drop(&mut self) {
        for half in 0..self.halves.len() {
            // This waits for what is under way.
            if self.halves[half].take().is_some() {
                self.running.shared.lock().closed(half);
            }
        }
        // Writes that were under way have ended for the state too.
        for running in self.queue.drain() {
            let OperationStage::Running { sent, .. } = running.stage else { continue };
            let is_read = matches!(running.operation.action, Action::Read(_));
            if let Some(span) = running.span.filter(|_| !is_read) {
                self.running.shared.lock().state.end_write(span, sent, Halves::NONE);
            }
        }
        self.running.shared.lock().remove_handle(&self.inbox.mailbox);
    }
}
