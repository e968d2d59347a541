//! One thread's device of a Ceph image.
//!
//! The library reads into and writes from the operation's own slice, which is held in `queue` until
//! the library has called back. Dropping the device waits for operations in the library. If the
//! cluster does not answer, or has let an operation time out, the slices are leaked, since the
//! library may still use them.
//!
//! An operation without an answer for longer than the image's timeout fails, and its slice is kept
//! only for the library. Such a write may still arrive. It never overtakes a later one: the library
//! sends the operations on an object in their order.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::image::RbdSource;
use super::library::{Handle, library};
use crate::buffer::Slice;
use crate::device::{Action, Completion, Device, Operation, clip};
use crate::queue::{Inbox, Mailbox, Queue, check_resize};
use crate::ring::Ring;
use crate::source::PreparedDevice;

/// The time limit for operations in flight when the device is dropped.
const PATIENCE: Duration = Duration::from_secs(10);

/// The slot of an operation, and the library's return value for it.
type Answer = (usize, isize);

/// One thread's handle of a Ceph image.
#[derive(Debug)]
pub struct RbdDevice {
    source: RbdSource,
    size: u64,
    /// The time after which an operation that the cluster has not answered fails.
    timeout: Option<Duration>,
    ring: Ring,
    inbox: Inbox<Answer>,
    queue: Queue<RbdOperation>,
    /// Deadlines in order, with the numbers and slots of their operations.
    deadlines: VecDeque<(Instant, u64, usize)>,
    /// The number of operations submitted so far.
    count: u64,
    results: Vec<Answer>,
}

/// An operation that the library has not finished.
#[derive(Debug)]
struct RbdOperation {
    /// The number of the operation, in the order of submission.
    number: u64,
    /// The caller's token; `None` once the operation has timed out.
    token: Option<u64>,
    /// The number of bytes that a complete read returns.
    expected: Option<u64>,
    /// The memory to read into or write from.
    _slice: Option<Slice>,
}

/// The argument that the library passes to the callback at the end of an operation.
struct Return {
    mailbox: Arc<Mailbox<Answer>>,
    slot: usize,
}

/// Callback for the end of an operation, on a thread of the library.
///
/// # Safety
/// The argument is from `Box::into_raw` of a `Return`, and is passed once.
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
    /// Creates a thread's device for an open image.
    ///
    /// # Errors
    /// When the system has no eventfd left.
    pub fn new(ring: &Ring, source: &RbdSource) -> io::Result<RbdDevice> {
        Ok(RbdDevice {
            source: source.clone(),
            size: source.size_bytes(),
            timeout: RbdSource::name(source).timeout,
            inbox: Inbox::new(ring)?,
            ring: ring.clone(),
            queue: Queue::default(),
            deadlines: VecDeque::new(),
            count: 0,
            results: Vec::new(),
        })
    }

    /// Returns the number of operations that the library has not finished.
    pub fn in_flight(&self) -> usize {
        self.queue.len()
    }

    /// Returns whether an operation has neither ended nor timed out.
    fn is_awaited(&self) -> bool {
        self.queue.iter().any(|(_, operation)| operation.token.is_some())
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
            self.queue.end(token, Ok(()));
            return Ok(());
        }
        self.inbox.listen()?;
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
        let token = Some(token);
        let slot = self.queue.insert(RbdOperation { number, token, expected, _slice: slice });
        let begun = self.start(slot, offset, left, &action);
        begun.inspect_err(|_| drop(self.queue.remove(slot)))?;
        if let Some(timeout) = self.timeout {
            self.deadlines.push_back((Instant::now() + timeout, number, slot));
        }
        Ok(())
    }

    /// Passes an operation, whose slice is in the queue, to the library.
    fn start(&self, slot: usize, offset: u64, bytes: u64, action: &Action) -> io::Result<()> {
        const THICK: i32 = 1; // RBD_WRITE_ZEROES_FLAG_THICK_PROVISION
        let (library, image) = (self.source.functions(), self.source.handle());
        let back = Box::new(Return { mailbox: Arc::clone(&self.inbox.mailbox), slot });
        let back = Box::into_raw(back);
        let mut completion = std::ptr::null_mut();
        let length = bytes as usize;
        // SAFETY: the image is open while `source` is; the slice has `length` bytes and stays in
        // `queue` until the library has called back, or is leaked; `ended` gets its argument once.
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

    /// Fails the operations that have timed out, and drops the deadlines of those that have ended.
    fn expire(&mut self, done: &mut Vec<Completion>) {
        while let Some(&(due, number, slot)) = self.deadlines.front() {
            let operation = self.queue.get_mut(slot).filter(|it| it.number == number);
            if let Some(operation) = operation {
                if due > Instant::now() {
                    break;
                }
                let timeout = self.timeout.unwrap_or_default();
                let message = format!(
                    "image {} has not answered for {timeout:?}",
                    RbdSource::name(&self.source)
                );
                let result = Err(io::Error::new(io::ErrorKind::TimedOut, message));
                let token = operation.token.take().expect("it has not timed out before");
                done.push(Completion { token, result });
            }
            self.deadlines.pop_front();
        }
    }
}

impl Device for RbdDevice {
    fn size_bytes(&self) -> u64 {
        self.size
    }

    fn submit(&mut self, operation: Operation) {
        let token = operation.token;
        if let Err(error) = self.begin(operation) {
            self.queue.end(token, Err(error));
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.queue.take_ended(done);
        self.inbox.collect(&mut self.results, self.queue.len());
        for (slot, result) in self.results.drain(..) {
            let operation = self.queue.remove(slot);
            let result = match (result, operation.expected) {
                (error, _) if error < 0 => Err(io::Error::from_raw_os_error(-error as i32)),
                (read, Some(expected)) if read as u64 != expected => {
                    let message = format!("the image gave {read} of {expected} bytes");
                    Err(io::Error::new(io::ErrorKind::UnexpectedEof, message))
                }
                _ => Ok(()),
            };
            done.extend(operation.token.map(|token| Completion { token, result }));
        }
        self.expire(done);
    }

    fn set_size(&mut self, bytes: u64) -> io::Result<()> {
        check_resize("image", bytes, self.source.size_bytes())?;
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
        for (slot, operation) in self.queue.iter() {
            if operation.token.is_some() && kept.is_none_or(|kept| kept < operation.number) {
                self.deadlines.push_back((due, operation.number, slot));
            }
        }
    }

    fn next_due(&self) -> Option<Instant> {
        let look = self.inbox.next_due(self.queue.len());
        let timeout = self.deadlines.front().map(|(due, _, _)| *due);
        self.queue.next_due().into_iter().chain(look).chain(timeout).min()
    }
}

impl Drop for RbdDevice {
    fn drop(&mut self) {
        let begun = Instant::now();
        let mut done = Vec::new();
        while self.is_awaited() && begun.elapsed() < PATIENCE {
            self.poll(&mut done);
            let wait = Duration::from_millis(if self.inbox.listens() { 100 } else { 1 });
            if self.is_awaited() && self.ring.wait(Some(wait)).is_err() {
                break;
            }
        }
        if self.in_flight() > 0 {
            self.queue.leak();
        }
    }
}
