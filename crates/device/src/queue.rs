//! Common parts of devices: the operations in flight, and results delivered by other threads.
//!
//! A [`Queue`] has a device's operations by slots, and those that ended at once. Threads leave
//! results in a [`Mailbox`]: a list under a lock, whose first message also wakes the owner's ring
//! by an eventfd. The list is emptied after the eventfd was read, so no message stays behind
//! without a wake-up. An [`Inbox`] is the owner's side: its ring polls the eventfd.

use std::io;
use std::ops::{Index, IndexMut};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use io_uring::{opcode, types};
use rustix::event::{EventfdFlags, eventfd};

use crate::device::Completion;
use crate::ring::{Event, Owner, Ring};

/// The polling interval of a mailbox that the ring does not poll.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// The operations of a device: those in flight, by slot, and those that ended without I/O.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    slots: Vec<Option<T>>,
    free: Vec<usize>,
    ended: Vec<Completion>,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), ended: Vec::new() }
    }
}

impl<T> Queue<T> {
    /// Returns the number of operations in flight.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Adds an operation and returns its slot.
    #[inline]
    pub(crate) fn insert(&mut self, operation: T) -> usize {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[slot] = Some(operation);
        slot
    }

    /// Removes and returns an operation; its slot is reused.
    #[inline]
    pub(crate) fn remove(&mut self, slot: usize) -> T {
        let operation = self.slots[slot].take().expect("the slot has an operation");
        self.free.push(slot);
        operation
    }

    pub(crate) fn get_mut(&mut self, slot: usize) -> Option<&mut T> {
        self.slots.get_mut(slot)?.as_mut()
    }

    /// Returns the operations in flight with their slots.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        self.slots.iter().enumerate().filter_map(|(slot, it)| Some((slot, it.as_ref()?)))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().flatten()
    }

    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> {
        self.free.clear();
        std::mem::take(&mut self.slots).into_iter().flatten()
    }

    /// Leaks all operations, because the kernel or a library may still use their memory.
    pub(crate) fn leak(&mut self) {
        std::mem::forget(std::mem::take(&mut self.slots));
        self.free.clear();
    }

    /// Completes an operation without I/O, because it is refused or there is nothing to do.
    pub(crate) fn end(&mut self, token: u64, result: io::Result<()>) {
        self.ended.push(Completion { token, result });
    }

    /// Moves the completions without I/O to `done`.
    #[inline]
    pub(crate) fn take_ended(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.ended);
    }

    /// Returns the current time if an operation has ended without I/O, so that the device is polled
    /// at once.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        (!self.ended.is_empty()).then(Instant::now)
    }
}

impl<T> Index<usize> for Queue<T> {
    type Output = T;

    #[inline]
    fn index(&self, slot: usize) -> &T {
        self.slots[slot].as_ref().expect("the slot has an operation")
    }
}

impl<T> IndexMut<usize> for Queue<T> {
    #[inline]
    fn index_mut(&mut self, slot: usize) -> &mut T {
        self.slots[slot].as_mut().expect("the slot has an operation")
    }
}

/// Checks a handle's new size: a multiple of 512, and no more than the device has.
///
/// # Errors
/// Names the new size, the device, and the size of the device.
pub(crate) fn check_resize(device: &str, bytes: u64, there: u64) -> io::Result<()> {
    if bytes == 0 || bytes > there || !bytes.is_multiple_of(512) {
        let message = format!("{bytes} bytes cannot be its size: the {device} has {there}");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    Ok(())
}

/// Checks a measured size: it must be a positive multiple of 512.
///
/// # Errors
/// Names the size.
pub(crate) fn check_measured(size: u64) -> io::Result<()> {
    if size == 0 || !size.is_multiple_of(512) {
        let message = format!("{size} bytes are not a positive multiple of 512");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    Ok(())
}

/// Messages for a thread, and the eventfd that wakes its ring.
#[derive(Debug)]
pub(crate) struct Mailbox<T> {
    wake_up: OwnedFd,
    messages: Mutex<Vec<T>>,
}

impl<T> Mailbox<T> {
    pub(crate) fn new() -> io::Result<Self> {
        let wake_up = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { wake_up, messages: Mutex::default() })
    }

    fn messages(&self) -> MutexGuard<'_, Vec<T>> {
        // A list is whole at any time.
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a message, and wakes the owner if the mailbox was empty.
    pub(crate) fn leave(&self, message: T) {
        let mut messages = self.messages();
        messages.push(message);
        let is_first = messages.len() == 1;
        drop(messages);
        if is_first {
            self.wake();
        }
    }

    /// Wakes the owner's ring.
    pub(crate) fn wake(&self) {
        // It fails only when the count is full; then the owner wakes anyway.
        let _ = rustix::io::write(&self.wake_up, &1u64.to_ne_bytes());
    }

    /// Moves all messages to `to`.
    pub(crate) fn take(&self, to: &mut Vec<T>) {
        to.append(&mut self.messages());
    }

    /// Returns a duplicate of the eventfd's descriptor.
    pub(crate) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.wake_up.try_clone()
    }

    /// Resets the eventfd. Must come before [`Mailbox::take`], or a wake-up may be lost.
    pub(crate) fn silence(&self) {
        let _ = rustix::io::read(&self.wake_up, &mut [0; 8]); // empty if somebody has read it
    }
}

/// The owner's side of a mailbox, which the owner's ring polls.
#[derive(Debug)]
pub(crate) struct Inbox<T> {
    pub(crate) mailbox: Arc<Mailbox<T>>,
    ring: Ring,
    owner: Owner,
    /// True while the ring polls the eventfd.
    listens: bool,
    events: Vec<Event>,
}

impl<T> Inbox<T> {
    /// Creates a mailbox whose owner uses this ring.
    ///
    /// # Errors
    /// When the system has no eventfd left.
    pub(crate) fn new(ring: &Ring) -> io::Result<Self> {
        let mailbox = Arc::new(Mailbox::new()?);
        let (ring, owner) = (ring.clone(), ring.owner());
        Ok(Self { mailbox, ring, owner, listens: false, events: Vec::new() })
    }

    pub(crate) fn listens(&self) -> bool {
        self.listens
    }

    /// Makes the ring poll the eventfd.
    ///
    /// # Errors
    /// When the ring has no room.
    pub(crate) fn listen(&mut self) -> io::Result<()> {
        if !self.listens {
            let fd = types::Fd(self.mailbox.wake_up.as_raw_fd());
            let entry = opcode::PollAdd::new(fd, libc::POLLIN as u32);
            // SAFETY: the mailbox lives until the poll has ended: `drop` wakes it and waits.
            unsafe { self.ring.push(self.owner, 0, entry.build()) }?;
            self.listens = true;
        }
        Ok(())
    }

    /// Returns whether the owner was woken since the last call. If so, the ring no longer polls the
    /// eventfd.
    pub(crate) fn was_woken(&mut self) -> bool {
        self.ring.take(self.owner, &mut self.events);
        let is_woken = !self.events.is_empty();
        if is_woken {
            self.events.clear();
            self.listens = false;
            self.mailbox.silence();
        }
        is_woken
    }

    /// Appends the results that have arrived for some of `in_flight` operations, and keeps polling
    /// for the others. If the ring has no room, a timer replaces the poll ([`Inbox::next_due`]).
    pub(crate) fn collect(&mut self, results: &mut Vec<T>, in_flight: usize) {
        if in_flight == 0 || !self.was_woken() && self.listens {
            return;
        }
        self.mailbox.take(results);
        if in_flight > results.len() {
            let _ = self.listen();
        }
    }

    /// Returns when to check the mailbox if the ring does not poll it.
    pub(crate) fn next_due(&self, in_flight: usize) -> Option<Instant> {
        (in_flight > 0 && !self.listens).then(|| Instant::now() + LOOK_AGAIN)
    }
}

impl<T> Drop for Inbox<T> {
    fn drop(&mut self) {
        self.mailbox.wake();
        while self.listens {
            if self.ring.wait(None).is_err() {
                // The kernel may look at the eventfd still.
                std::mem::forget(Arc::clone(&self.mailbox));
                return;
            }
            self.was_woken();
        }
        self.ring.retire(self.owner);
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    /// Returns whether the mailbox wakes its owner within this many milliseconds.
    fn rings(mailbox: &Mailbox<usize>, within_ms: i64) -> bool {
        let time = rustix::event::Timespec { tv_sec: 0, tv_nsec: within_ms * 1_000_000 };
        poll(&mut [PollFd::new(&mailbox.wake_up, PollFlags::IN)], Some(&time)).expect("it polls")
            > 0
    }

    #[test]
    fn no_message_stays_behind_without_a_wake_up() {
        const THREADS: usize = 4;
        const MESSAGES: usize = 2_000;
        let mailbox = Arc::new(Mailbox::new().expect("there are eventfds"));
        let leave = |thread: usize| {
            let mailbox = Arc::clone(&mailbox);
            move || (0..MESSAGES).for_each(|at| mailbox.leave(thread * MESSAGES + at))
        };
        let threads: Vec<_> = (0..THREADS).map(|at| std::thread::spawn(leave(at))).collect();
        let mut found = Vec::new();
        while found.len() < THREADS * MESSAGES {
            let time = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
            let woken = poll(&mut [PollFd::new(&mailbox.wake_up, PollFlags::IN)], Some(&time));
            assert!(woken.expect("it polls") > 0, "{} messages came", found.len());
            mailbox.silence();
            mailbox.take(&mut found);
        }
        threads.into_iter().for_each(|thread| thread.join().expect("it leaves messages"));
        found.sort_unstable();
        assert!(found.iter().copied().eq(0..THREADS * MESSAGES));
        assert!(!rings(&mailbox, 0), "the bell rings for nothing");
    }

    #[test]
    fn a_slot_is_used_again_once_its_operation_is_out() {
        let mut queue = Queue::default();
        let (one, two) = (queue.insert('a'), queue.insert('b'));
        assert_eq!((queue.remove(one), queue.insert('c'), queue.len()), ('a', one, 2));
        assert_eq!((queue[two], queue[one]), ('b', 'c'));
        assert!(queue.iter().map(|(slot, _)| slot).eq([one, two]));
    }
}
