//! Safe socket operations on the thread's ring.
//!
//! A [`Sockets`] performs accepts, receives and sends for any number of sockets and reports the
//! completion of each, like a [`Device`](crate::Device) does for a disk. A send gathers several
//! slices (a header and its payload) and is continued until all bytes are sent.
//! [`Sockets::readable`] waits for other descriptors that can be polled, such as the eventfd
//! through which another thread wakes this one.
//!
//! Invariants: slices, message headers and descriptors are held in `queue` from submission to
//! completion, so neither memory nor a descriptor's number is reused while the kernel uses it.
//! Sends on one socket go out in order only if the next is begun after the last completed. A socket
//! operation may never end by itself, so dropping cancels what is in flight and then waits for it.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::rc::Rc;
use std::time::Instant;

use io_uring::{opcode, squeue, types};

use crate::buffer::Slice;
use crate::queue::Queue;
use crate::ring::{Event, Owner, Ring};

/// Maximum number of slices that one ring entry sends; the rest follows in further entries.
const GATHER_MAX: usize = 64;

/// Accepts, receives, sends and polls in flight on one ring.
#[derive(Debug)]
pub struct Sockets {
    ring: Ring,
    owner: Owner,
    queue: Queue<SocketOperation>,
    /// Message records of finished sends, kept for reuse.
    #[expect(
        clippy::vec_box,
        reason = "a message moves from here into an operation without being copied"
    )]
    spare: Vec<Box<Message>>,
    /// Completions of operations that could not be started.
    early: Vec<SocketCompletion>,
    events: Vec<Event>,
}

/// The completion of a socket operation.
#[derive(Debug)]
pub struct SocketCompletion {
    /// The operation's token.
    pub token: u64,
    /// The outcome of the operation, or the error.
    pub result: io::Result<SocketOutcome>,
}

/// The outcome of a successful socket operation.
#[derive(Debug)]
pub enum SocketOutcome {
    /// A new connection.
    Accepted(OwnedFd),
    /// The number of bytes received; zero means that the peer has closed the connection.
    Received(usize),
    /// All bytes were passed to the network. The list of slices is returned empty, for reuse.
    Sent(Vec<Slice>),
    /// The descriptor can be read without blocking.
    Readable,
}

#[derive(Debug)]
struct SocketOperation {
    token: u64,
    socket: Rc<OwnedFd>,
    work: Work,
}

#[derive(Debug)]
enum Work {
    Accept,
    Receive {
        into: Slice,
        whole: bool,
    },
    Send {
        left: Vec<Slice>,
        message: Box<Message>,
    },
    Readable,
    /// Cancellation of the operation in this slot.
    Cancel {
        slot: usize,
    },
}

/// The message record of a gathering send, which the kernel reads. Boxed, since it must not move.
struct Message {
    header: libc::msghdr,
    vectors: [libc::iovec; GATHER_MAX],
}

impl Sockets {
    /// Creates a set without operations.
    pub fn new(ring: &Ring) -> Sockets {
        Sockets {
            ring: ring.clone(),
            owner: ring.owner(),
            queue: Queue::default(),
            spare: Vec::new(),
            early: Vec::new(),
            events: Vec::new(),
        }
    }

    /// Accepts one connection. Shutting the listener down ends the wait with an error.
    pub fn accept(&mut self, token: u64, listener: &Rc<OwnedFd>) {
        self.begin(token, listener, Work::Accept);
    }

    /// Receives at least one byte or, with `whole`, the whole slice. Fewer bytes arrive only when
    /// the peer closes the connection.
    pub fn receive(&mut self, token: u64, socket: &Rc<OwnedFd>, into: Slice, whole: bool) {
        self.begin(token, socket, Work::Receive { into, whole });
    }

    /// Sends all the slices, in order.
    pub fn send(&mut self, token: u64, socket: &Rc<OwnedFd>, mut from: Vec<Slice>) {
        from.retain(|slice| !slice.is_empty());
        let message = self.spare.pop().unwrap_or_else(Message::empty);
        self.begin(token, socket, Work::Send { left: from, message });
    }

    /// Waits until a descriptor (an eventfd, a signalfd, a pipe) can be read.
    pub fn readable(&mut self, token: u64, descriptor: &Rc<OwnedFd>) {
        self.begin(token, descriptor, Work::Readable);
    }

    /// Cancels the receives with this token. A receive that has no bytes yet ends with `ECANCELED`;
    /// received bytes are not lost.
    pub fn cancel_receive(&mut self, token: u64) {
        let is_meant = |(_, it): &(usize, &SocketOperation)| {
            it.token == token && matches!(it.work, Work::Receive { .. })
        };
        let meant = self.queue.iter().filter(is_meant);
        let meant: Vec<_> = meant.map(|(slot, it)| (slot, Rc::clone(&it.socket))).collect();
        for (slot, socket) in meant {
            self.begin(token, &socket, Work::Cancel { slot });
        }
    }

    /// Returns the number of unfinished operations.
    pub fn in_flight(&self) -> usize {
        self.queue.len()
    }

    /// Appends the operations that have finished since the last call to `done`.
    pub fn poll(&mut self, done: &mut Vec<SocketCompletion>) {
        done.append(&mut self.early);
        let mut events = std::mem::take(&mut self.events);
        self.ring.take(self.owner, &mut events);
        for (slot, result, _) in events.drain(..) {
            let slot = slot as usize;
            let outcome = match self.queue[slot].advance(result) {
                Some(outcome) => outcome,
                None => match self.push(slot) {
                    Ok(()) => continue,
                    Err(error) => Err(error),
                },
            };
            let token = self.queue[slot].token;
            if self.end(slot) {
                done.push(SocketCompletion { token, result: outcome });
            }
        }
        self.events = events;
    }

    /// Returns when to call [`Sockets::poll`] even if the ring reports nothing.
    pub fn next_due(&self) -> Option<Instant> {
        (!self.early.is_empty()).then(Instant::now)
    }

    fn begin(&mut self, token: u64, socket: &Rc<OwnedFd>, work: Work) {
        let slot = self.queue.insert(SocketOperation { token, socket: Rc::clone(socket), work });
        if let Err(error) = self.push(slot)
            && self.end(slot)
        {
            self.early.push(SocketCompletion { token, result: Err(error) });
        }
    }

    fn push(&mut self, slot: usize) -> io::Result<()> {
        let operation = &mut self.queue[slot];
        let entry = match operation.work {
            Work::Cancel { slot } => {
                let target = self.ring.user_data(self.owner, slot as u64);
                opcode::AsyncCancel::new(target).build()
            }
            _ => operation.entry(),
        };
        // SAFETY: slices, message and descriptor stay in `queue` until the completion was taken,
        // also in `drop`.
        unsafe { self.ring.push(self.owner, slot as u64, entry) }
    }

    /// Ends an operation. Returns whether its completion is reported to the caller.
    fn end(&mut self, slot: usize) -> bool {
        match self.queue.remove(slot).work {
            Work::Send { message, .. } => self.spare.push(message),
            Work::Cancel { .. } => return false,
            _ => {}
        }
        true
    }
}

impl SocketOperation {
    fn entry(&mut self) -> squeue::Entry {
        let fd = types::Fd(self.socket.as_raw_fd());
        match &mut self.work {
            Work::Accept => opcode::Accept::new(fd, std::ptr::null_mut(), std::ptr::null_mut())
                .flags(libc::SOCK_CLOEXEC)
                .build(),
            Work::Receive { into, whole } => {
                let flags = if *whole { libc::MSG_WAITALL } else { 0 };
                let len = into.len().min(1 << 30) as u32;
                opcode::Recv::new(fd, into.as_ptr(), len).flags(flags).build()
            }
            Work::Send { left, message } => {
                message.gather(left);
                let flags = (libc::MSG_NOSIGNAL | libc::MSG_WAITALL) as u32;
                opcode::SendMsg::new(fd, &raw const message.header).flags(flags).build()
            }
            Work::Readable => opcode::PollAdd::new(fd, libc::POLLIN as u32).build(),
            Work::Cancel { .. } => unreachable!("a cancellation names an operation, not a socket"),
        }
    }

    /// Processes a result from the kernel. Returns the outcome, or `None` if a part of the
    /// operation remains.
    fn advance(&mut self, result: i32) -> Option<io::Result<SocketOutcome>> {
        if matches!(-result, libc::EINTR | libc::EAGAIN) {
            return None;
        }
        if result < 0 {
            return Some(Err(io::Error::from_raw_os_error(-result)));
        }
        let moved = result as usize;
        match &mut self.work {
            Work::Accept => {
                // SAFETY: the kernel just made this descriptor for us, and nobody else knows it.
                let socket = unsafe { OwnedFd::from_raw_fd(result) };
                Some(Ok(SocketOutcome::Accepted(socket)))
            }
            Work::Receive { .. } => Some(Ok(SocketOutcome::Received(moved))),
            Work::Readable | Work::Cancel { .. } => Some(Ok(SocketOutcome::Readable)),
            Work::Send { left, .. } => {
                advance(left, moved);
                left.is_empty().then(|| Ok(SocketOutcome::Sent(std::mem::take(left))))
            }
        }
    }
}

/// Removes the first `moved` bytes from a list of slices.
fn advance(left: &mut Vec<Slice>, mut moved: usize) {
    let whole = left
        .iter()
        .take_while(|slice| {
            let gone = slice.len() <= moved;
            moved -= if gone { slice.len() } else { 0 };
            gone
        })
        .count();
    left.drain(..whole);
    if let Some(first) = left.first_mut() {
        *first = first.slice(moved..first.len());
    }
}

impl Message {
    fn empty() -> Box<Message> {
        let nothing = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        // SAFETY: a message header of zeros is valid: no address, no vectors, no control data.
        let header = unsafe { std::mem::zeroed() };
        Box::new(Message { header, vectors: [nothing; GATHER_MAX] })
    }

    fn gather(&mut self, slices: &[Slice]) {
        let count = slices.len().min(GATHER_MAX);
        for (vector, slice) in self.vectors.iter_mut().zip(slices) {
            *vector = libc::iovec { iov_base: slice.as_ptr().cast(), iov_len: slice.len() };
        }
        self.header.msg_iov = self.vectors.as_mut_ptr();
        self.header.msg_iovlen = count as _;
    }
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Message({} vectors)", self.header.msg_iovlen)
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        let canceller = self.ring.owner();
        let running: Vec<usize> = self.queue.iter().map(|(slot, _)| slot).collect();
        for &slot in &running {
            let target = self.ring.user_data(self.owner, slot as u64);
            // SAFETY: a cancellation points to nothing.
            let _ =
                unsafe { self.ring.push(canceller, 0, opcode::AsyncCancel::new(target).build()) };
        }
        let (mut events, mut cancelled) = (Vec::new(), 0);
        while self.in_flight() > 0 || cancelled < running.len() {
            if self.ring.wait(None).is_err() {
                // Better to lose the memory than to free what the kernel may still write to.
                return self.queue.leak();
            }
            self.ring.take(canceller, &mut events);
            cancelled += events.drain(..).count();
            self.ring.take(self.owner, &mut events);
            for (slot, result, _) in events.drain(..) {
                if matches!(self.queue[slot as usize].work, Work::Accept) && result >= 0 {
                    // SAFETY: a connection accepted too late; the descriptor is ours to close.
                    drop(unsafe { OwnedFd::from_raw_fd(result) });
                }
                self.end(slot as usize);
            }
        }
        self.ring.retire(self.owner);
        self.ring.retire(canceller);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Pool;

    #[test]
    fn a_send_cut_short_continues_inside_a_slice() {
        let pool = Pool::new(0);
        let slice = |bytes: &[u8]| {
            let slice = pool.allocate(bytes.len()).whole();
            slice.copy_from(bytes);
            slice
        };
        let mut left = vec![slice(b"head"), slice(b"payload"), slice(b"tail")];
        let bytes = |left: &[Slice]| left.iter().map(Slice::to_vec).collect::<Vec<_>>().concat();
        advance(&mut left, 0);
        assert_eq!(bytes(&left), b"headpayloadtail");
        advance(&mut left, 6);
        assert_eq!((left.len(), bytes(&left)), (2, b"yloadtail".to_vec()));
        advance(&mut left, 5);
        assert_eq!((left.len(), bytes(&left)), (1, b"tail".to_vec()));
        advance(&mut left, 4);
        assert!(left.is_empty());
    }
}
