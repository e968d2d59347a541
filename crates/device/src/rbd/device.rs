//! One thread's device of an image.
//!
//! The library reads into and writes from the operation's own slice, which is held in `flights`
//! until the library has called back. The ring polls the mailbox's bell. Dropping the device waits
//! for what the library is at; where the cluster does not answer, or has let an operation time out,
//! the slices are leaked, since the library may use them still.
//!
//! An operation without an answer for longer than the image's timeout fails, and its slice waits
//! for the library alone. Such a write may still arrive. It never overtakes a later one: the
//! library sends the operations on an object in their order.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::{opcode, types};

use super::image::RbdSource;
use super::library::{Handle, library};
use crate::buffer::Slice;
use crate::device::{Action, Completion, Device, Operation, clip};
use crate::mailbox::Mailbox;
use crate::ring::{Event, Owner, Ring};

/// The longest wait for operations in flight when the device is dropped.
const PATIENCE: Duration = Duration::from_secs(10);

/// An operation's slot, and what the library returned for it.
type Answer = (usize, isize);

/// A device of one thread.
#[derive(Debug)]
pub struct RbdDevice {
    source: RbdSource,
    size: u64,
    /// Operations fail that the cluster has not answered for so long.
    timeout: Option<Duration>,
    ring: Ring,
    owner: Owner,
    mailbox: Arc<Mailbox<Answer>>,
    flights: Vec<Option<Flight>>,
    free: Vec<usize>,
    /// When operations time out, the first one first: their numbers and slots.
    deadlines: VecDeque<(Instant, u64, usize)>,
    /// Operations so far.
    count: u64,
    /// The ring polls the bell.
    listens: bool,
    /// Finished without the library: refused, or nothing to do.
    early: Vec<Completion>,
    results: Vec<Answer>,
    events: Vec<Event>,
}

/// An operation that the library is at.
#[derive(Debug)]
struct Flight {
    /// Its number among all.
    number: u64,
    /// `None` once it has timed out.
    token: Option<u64>,
    /// The bytes that a read returns.
    expected: Option<u64>,
    /// The bytes to read into or write from.
    _slice: Option<Slice>,
}

/// The argument of the library's call when an operation ends.
struct Return {
    mailbox: Arc<Mailbox<Answer>>,
    slot: usize,
}

/// Called by a thread of the library.
///
/// # Safety
/// The argument is from `Box::into_raw` of a `Return`, and is given once.
unsafe extern "C" fn ended(completion: Handle, argument: *mut c_void) {
    // SAFETY: see above.
    let Return { mailbox, slot } = *unsafe { Box::from_raw(argument.cast::<Return>()) };
    let Ok(library) = library() else { return };
    // SAFETY: the completion has ended, and is not used after this.
    let result = unsafe {
        let result = (library.rbd_aio_get_return_value)(completion);
        (library.rbd_aio_release)(completion);
        result
    };
    mailbox.leave((slot, result));
}

impl RbdDevice {
    /// One thread's device of an image that is open.
    ///
    /// # Errors
    /// When the system has no eventfd left.
    pub fn new(ring: &Ring, source: &RbdSource) -> io::Result<RbdDevice> {
        Ok(RbdDevice {
            source: source.clone(),
            size: source.size_bytes(),
            timeout: source.name().timeout,
            mailbox: Arc::new(Mailbox::new()?),
            owner: ring.owner(),
            ring: ring.clone(),
            flights: Vec::new(),
            free: Vec::new(),
            deadlines: VecDeque::new(),
            count: 0,
            listens: false,
            early: Vec::new(),
            results: Vec::new(),
            events: Vec::new(),
        })
    }

    /// Operations the library has not finished.
    pub fn in_flight(&self) -> usize {
        self.flights.len() - self.free.len()
    }

    /// True if an operation has neither ended nor timed out.
    fn is_awaited(&self) -> bool {
        self.flights.iter().flatten().any(|flight| flight.token.is_some())
    }

    fn begin(&mut self, operation: Operation) -> io::Result<()> {
        let Operation { token, offset, action } = operation;
        let left = clip(&Operation { token, offset, action: action.clone() }, self.size)?;
        let zeroes_slowly = matches!(action, Action::Zero { may_unmap: false, fast: true, .. });
        if zeroes_slowly {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "zeros would be written"));
        }
        if left == 0 && !matches!(action, Action::Flush) {
            if let Action::Read(into) = action {
                into.fill_zero();
            }
            self.early.push(Completion { token, result: Ok(()) });
            return Ok(());
        }
        self.listen()?;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.flights.push(None);
            self.flights.len() - 1
        });
        let slice = match &action {
            Action::Read(into) => {
                into.slice(left as usize..into.len()).fill_zero();
                Some(into.clone())
            }
            Action::Write { from, .. } => Some(from.clone()),
            _ => None,
        };
        let expected = matches!(action, Action::Read(_)).then_some(left);
        let number = self.count;
        self.count += 1;
        self.flights[slot] = Some(Flight { number, token: Some(token), expected, _slice: slice });
        self.launch(slot, offset, left, &action).inspect_err(|_| self.land(slot))?;
        if let Some(timeout) = self.timeout {
            self.deadlines.push_back((Instant::now() + timeout, number, slot));
        }
        Ok(())
    }

    /// Gives an operation, whose slice is in its flight, to the library.
    fn launch(&self, slot: usize, offset: u64, bytes: u64, action: &Action) -> io::Result<()> {
        const THICK: i32 = 1; // RBD_WRITE_ZEROES_FLAG_THICK_PROVISION
        let (library, image) = (self.source.functions(), self.source.handle());
        let back = Box::new(Return { mailbox: Arc::clone(&self.mailbox), slot });
        let back = Box::into_raw(back);
        let mut completion = std::ptr::null_mut();
        let length = bytes as usize;
        // SAFETY: the image is open while `source` is; the slice has `length` bytes and stays in
        // `flights` until the library has called back, or is leaked; `ended` gets its argument
        // once.
        let result = unsafe {
            let made = (library.rbd_aio_create_completion)(back.cast(), ended, &mut completion);
            if made < 0 {
                drop(Box::from_raw(back));
                return Err(io::Error::from_raw_os_error(-made));
            }
            let begun = match action {
                Action::Read(into) => {
                    let to = into.as_ptr().cast();
                    (library.rbd_aio_read)(image, offset, length, to, completion)
                }
                Action::Write { from, .. } => {
                    let from = from.as_ptr().cast();
                    (library.rbd_aio_write)(image, offset, length, from, completion)
                }
                Action::Zero { may_unmap, .. } => {
                    let how = if *may_unmap { 0 } else { THICK };
                    (library.rbd_aio_write_zeroes)(image, offset, length, completion, how, 0)
                }
                Action::Discard { .. } => {
                    (library.rbd_aio_discard)(image, offset, bytes, completion)
                }
                Action::Flush => (library.rbd_aio_flush)(image, completion),
            };
            if begun < 0 {
                // It will not call back.
                (library.rbd_aio_release)(completion);
                drop(Box::from_raw(back));
            }
            begun
        };
        if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(()) }
    }

    /// Has the ring poll the bell.
    fn listen(&mut self) -> io::Result<()> {
        if self.listens {
            return Ok(());
        }
        let entry = opcode::PollAdd::new(types::Fd(self.mailbox.bell()), libc::POLLIN as u32);
        // SAFETY: the mailbox lives until the poll has ended: `drop` rings its bell and waits.
        unsafe { self.ring.push(self.owner, 0, entry.build()) }?;
        self.listens = true;
        Ok(())
    }

    /// Forgets a flight that no longer concerns the library.
    fn land(&mut self, slot: usize) {
        self.flights[slot] = None;
        self.free.push(slot);
    }

    /// Fails what has waited for too long, and forgets the deadlines of what has ended.
    fn expire(&mut self, done: &mut Vec<Completion>) {
        while let Some(&(due, number, slot)) = self.deadlines.front() {
            let flight = self.flights[slot].as_mut().filter(|flight| flight.number == number);
            if let Some(flight) = flight {
                if due > Instant::now() {
                    break;
                }
                let timeout = self.timeout.unwrap_or_default();
                let message =
                    format!("image {} has not answered for {timeout:?}", self.source.name());
                let result = Err(io::Error::new(io::ErrorKind::TimedOut, message));
                let token = flight.token.take().expect("it has not timed out before");
                done.push(Completion { token, result });
            }
            self.deadlines.pop_front();
        }
    }

    /// Takes the results that have been left.
    fn collect(&mut self) -> io::Result<()> {
        self.ring.take(self.owner, &mut self.events);
        if self.events.is_empty() {
            return Ok(());
        }
        self.events.clear();
        self.listens = false;
        self.mailbox.answer(&mut self.results);
        if self.in_flight() > self.results.len() { self.listen() } else { Ok(()) }
    }
}

impl Device for RbdDevice {
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
        if self.collect().is_err() {
            // The ring is out of room for a moment: the results are fetched by the clock.
            self.mailbox.take(&mut self.results);
        }
        let mut results = std::mem::take(&mut self.results);
        for (slot, result) in results.drain(..) {
            let flight = self.flights[slot].take().expect("a result belongs to a flight");
            self.free.push(slot);
            let result = match (result, flight.expected) {
                (error, _) if error < 0 => Err(io::Error::from_raw_os_error(-error as i32)),
                (read, Some(expected)) if read as u64 != expected => {
                    let message = format!("the image gave {read} of {expected} bytes");
                    Err(io::Error::new(io::ErrorKind::UnexpectedEof, message))
                }
                _ => Ok(()),
            };
            done.extend(flight.token.map(|token| Completion { token, result }));
        }
        self.results = results;
        self.expire(done);
    }

    fn set_size(&mut self, bytes: u64) -> io::Result<()> {
        let there = self.source.size_bytes();
        if bytes == 0 || bytes > there || !bytes.is_multiple_of(512) {
            let message = format!("{bytes} bytes cannot be its size: the image has {there}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        self.size = bytes;
        Ok(())
    }

    fn set_timeout(&mut self, timeout: Duration) {
        let timeout = self.timeout.map_or(timeout, |own| own.min(timeout));
        self.timeout = Some(timeout);
        let due = Instant::now() + timeout;
        // Earlier deadlines stay; they are those of the first operations.
        self.deadlines.retain(|(sooner, _, _)| *sooner < due);
        let kept = self.deadlines.back().map(|(_, number, _)| *number);
        for (slot, flight) in self.flights.iter().enumerate() {
            let Some(flight) = flight else { continue };
            if flight.token.is_some() && kept.is_none_or(|kept| kept < flight.number) {
                self.deadlines.push_back((due, flight.number, slot));
            }
        }
    }

    fn next_due(&self) -> Option<Instant> {
        const AGAIN: Duration = Duration::from_millis(1);
        if !self.early.is_empty() {
            return Some(Instant::now());
        }
        let again = (self.in_flight() > 0 && !self.listens).then(|| Instant::now() + AGAIN);
        let timeout = self.deadlines.front().map(|(due, _, _)| *due);
        again.into_iter().chain(timeout).min()
    }
}

impl Drop for RbdDevice {
    fn drop(&mut self) {
        let begun = Instant::now();
        let mut done = Vec::new();
        while self.is_awaited() && begun.elapsed() < PATIENCE {
            self.poll(&mut done);
            let wait = Duration::from_millis(if self.listens { 100 } else { 1 });
            if self.is_awaited() && self.ring.wait(Some(wait)).is_err() {
                break;
            }
        }
        if self.in_flight() > 0 {
            std::mem::forget(std::mem::take(&mut self.flights));
        }
        self.mailbox.ring();
        while self.listens {
            if self.ring.wait(Some(PATIENCE)).is_err() {
                // The kernel may look at the bell still.
                std::mem::forget(Arc::clone(&self.mailbox));
                return;
            }
            self.ring.take(self.owner, &mut self.events);
            self.listens &= self.events.is_empty();
        }
        self.ring.retire(self.owner);
    }
}
