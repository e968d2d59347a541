//! One thread's device of an export: operations go to the hub, and their results come back.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::source::Event;
use super::source::NbdSource;
use super::work::{Answer, Job, JobAction};
use crate::buffer::Slice;
use crate::mailbox::Mailbox;
use crate::range::clip;
use crate::ring::Ring;
use crate::socket::{SocketCompletion, Sockets};
use crate::{Action, Completion, Device, Operation};

/// A device of one thread.
#[derive(Debug)]
pub struct NbdDevice {
    source: NbdSource,
    size: u64,
    /// Operations fail that the server has not answered for so long.
    timeout: Option<Duration>,
    mailbox: Arc<Mailbox<Answer>>,
    /// Waits for the mailbox's bell.
    sockets: Sockets,
    bell: Rc<OwnedFd>,
    listens: bool,
    flights: Vec<Option<Flight>>,
    free: Vec<usize>,
    /// Finished without the hub: refused, or nothing to do.
    early: Vec<Completion>,
    answers: Vec<Answer>,
    woken: Vec<SocketCompletion>,
}

/// An operation that the hub is at.
#[derive(Debug)]
struct Flight {
    token: u64,
    /// The bytes to read into or write from, which the hub has borrowed.
    _slice: Option<Slice>,
}

impl NbdDevice {
    /// One thread's device of an export that is open.
    ///
    /// # Errors
    /// When the system has no eventfd left.
    pub fn new(ring: &Ring, source: &NbdSource) -> io::Result<NbdDevice> {
        let mailbox = Arc::new(Mailbox::new()?);
        Ok(NbdDevice {
            source: source.clone(),
            size: source.size_bytes(),
            timeout: source.name().timeout,
            bell: Rc::new(mailbox.descriptor()?),
            mailbox,
            sockets: Sockets::new(ring),
            listens: false,
            flights: Vec::new(),
            free: Vec::new(),
            early: Vec::new(),
            answers: Vec::new(),
            woken: Vec::new(),
        })
    }

    /// Operations the hub has not finished.
    pub fn in_flight(&self) -> usize {
        self.flights.len() - self.free.len()
    }

    fn begin(&mut self, operation: Operation) -> io::Result<()> {
        let bytes = clip(&operation, self.size)?;
        let Operation { token, offset, action } = operation;
        if self.source.is_read_only() && !matches!(action, Action::Read(_) | Action::Flush) {
            let message = format!("export {} was opened for reading only", self.source.name());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
        }
        let slice = match &action {
            Action::Read(into) => {
                into.slice(bytes as usize..into.len()).fill_zero();
                Some(into.slice(0..bytes as usize))
            }
            Action::Write { from, .. } => Some(from.slice(0..bytes as usize)),
            _ => None,
        };
        if bytes == 0 && !matches!(action, Action::Flush) {
            self.early.push(Completion { token, result: Ok(()) });
            return Ok(());
        }
        let lend = || slice.as_ref().expect("it has one").lend();
        let action = match action {
            Action::Read(_) => JobAction::Read(lend()),
            Action::Write { durable, .. } => JobAction::Write { from: lend(), durable },
            Action::Zero { may_unmap, fast, .. } => JobAction::Zero { may_unmap, fast },
            Action::Discard { .. } => JobAction::Discard,
            Action::Flush => JobAction::Flush,
        };
        let slot = self.free.pop().unwrap_or(self.flights.len());
        if slot == self.flights.len() {
            self.flights.push(None);
        }
        self.flights[slot] = Some(Flight { token, _slice: slice });
        let due = self.timeout.map(|timeout| Instant::now() + timeout);
        let to = Arc::clone(&self.mailbox);
        self.source.tell(Event::Job(Job { to, slot, offset, bytes, action, due }));
        self.listen();
        Ok(())
    }

    /// Has the ring wait for the bell.
    fn listen(&mut self) {
        if !std::mem::replace(&mut self.listens, true) {
            self.sockets.readable(0, &self.bell);
        }
    }
}

impl Device for NbdDevice {
    fn size_bytes(&self) -> u64 {
        self.size
    }

    fn submit(&mut self, operation: Operation) {
        let token = operation.token;
        if let Err(error) = self.begin(operation) {
            self.early.push(Completion { token, result: Err(error) });
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.early);
        self.sockets.poll(&mut self.woken);
        if self.woken.drain(..).count() == 0 {
            return;
        }
        self.listens = false;
        self.mailbox.answer(&mut self.answers);
        for (slot, result) in self.answers.drain(..) {
            let flight = self.flights[slot].take().expect("an answer belongs to a flight");
            self.free.push(slot);
            done.push(Completion { token: flight.token, result });
        }
        if self.in_flight() > 0 {
            self.listen();
        }
    }

    fn set_size(&mut self, bytes: u64) -> io::Result<()> {
        let there = self.source.size_bytes();
        if bytes == 0 || bytes > there || !bytes.is_multiple_of(512) {
            let message = format!("{bytes} bytes cannot be its size: the export has {there}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        self.size = bytes;
        Ok(())
    }

    fn set_timeout(&mut self, timeout: Duration) {
        let timeout = self.timeout.map_or(timeout, |own| own.min(timeout));
        self.timeout = Some(timeout);
        // The hub has several devices' operations, and what holds for one holds for all.
        self.source.tell(Event::Timeout(timeout));
    }

    fn next_due(&self) -> Option<Instant> {
        let early = (!self.early.is_empty()).then(Instant::now);
        self.sockets.next_due().into_iter().chain(early).min()
    }
}
