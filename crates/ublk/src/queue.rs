//! One hardware queue of a device, served on a thread's ring.
//!
//! Each tag of the queue has one command in the kernel, which completes with a request, or one
//! request under way here. Completing a request submits the tag's command again with the result
//! (`COMMIT_AND_FETCH`). All commands of a queue come from the thread that began it.
//!
//! Invariant: a tag is in the kernel, or under way, or over. The kernel changes the descriptor of a
//! tag only while it is in the kernel.

use std::io;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::Arc;

use floe_device::{Event, Owner, Ring, Slice};
use io_uring::opcode::UringCmd16;
use io_uring::types::Fd;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::abi::{COMMIT_AND_FETCH_REQ, Descriptor, FETCH_REQ, IoCommand, MOST_DEPTH};
use crate::character::Character;
use crate::error::UblkError;
use crate::request::Request;

/// The unit of mappings.
const PAGE: usize = 4096;

/// A queue of a device. Its requests come by [`Queue::poll`], and each is completed once.
#[derive(Debug)]
pub struct Queue {
    character: Option<Arc<Character>>,
    ring: Ring,
    owner: Owner,
    number: u16,
    descriptors: Mapping,
    tags: Vec<Tag>,
    events: Vec<Event>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tag {
    InKernel,
    UnderWay,
    Over,
}

/// The kernel's descriptors of a queue's requests.
#[derive(Debug)]
struct Mapping {
    start: NonNull<Descriptor>,
    bytes: NonZeroUsize,
}

impl Queue {
    /// Begins to take requests, up to `depth` at a time, which is the device's.
    ///
    /// # Errors
    /// When the descriptors cannot be mapped, or commands cannot be submitted.
    pub fn begin(
        ring: &Ring,
        character: &Arc<Character>,
        number: u16,
        depth: u16,
    ) -> Result<Self, UblkError> {
        let descriptors = Mapping::new(character, number, depth);
        let mut queue = Self {
            character: Some(Arc::clone(character)),
            ring: ring.clone(),
            owner: ring.owner(),
            number,
            descriptors: descriptors.map_err(|source| character.problem("mapped", source))?,
            tags: vec![Tag::Over; usize::from(depth)],
            events: Vec::new(),
        };
        for tag in 0..depth {
            queue
                .submit(FETCH_REQ, tag, 0)
                .map_err(|source| character.problem("served", source))?;
        }
        Ok(queue)
    }

    /// Appends the requests that have come since the last call.
    pub fn poll(&mut self, requests: &mut Vec<Request>) {
        let mut events = std::mem::take(&mut self.events);
        self.ring.take(self.owner, &mut events);
        for (tag, result, _) in events.drain(..) {
            let state = &mut self.tags[tag as usize];
            debug_assert_eq!(*state, Tag::InKernel, "a command that has completed was submitted");
            *state = if result == 0 { Tag::UnderWay } else { Tag::Over };
            if result == 0 {
                let descriptor = self.descriptors.read(tag as usize);
                requests.push(Request::of(tag as u16, &descriptor));
            }
        }
        self.events = events;
        if self.is_over() {
            self.character = None;
        }
    }

    /// Copies the data of a write request into a slice.
    ///
    /// # Errors
    /// When the kernel refuses, as it does when the device is being removed.
    pub fn take_data(&self, tag: u16, into: &Slice) -> io::Result<()> {
        self.character().take_data(self.number, tag, into)
    }

    /// Copies a slice into the memory of a read request.
    ///
    /// # Errors
    /// When the kernel refuses, as it does when the device is being removed.
    pub fn give_data(&self, tag: u16, from: &Slice) -> io::Result<()> {
        self.character().give_data(self.number, tag, from)
    }

    /// Completes a request with its number of bytes, or a negative error number, and waits for the
    /// next one.
    pub fn complete(&mut self, tag: u16, result: i32) {
        debug_assert_eq!(self.tags[usize::from(tag)], Tag::UnderWay, "a request completes once");
        if self.submit(COMMIT_AND_FETCH_REQ, tag, result).is_err() {
            self.tags[usize::from(tag)] = Tag::Over; // the device's next server has it again
        }
    }

    /// Completes all requests under way, as [`Queue::complete`] does one.
    pub fn complete_all(&mut self, result: i32) {
        for tag in 0..self.tags.len() {
            if self.tags[tag] == Tag::UnderWay {
                self.complete(tag as u16, result);
            }
        }
    }

    /// Returns whether the device has ended: no request will come, and none is under way.
    pub fn is_over(&self) -> bool {
        self.tags.iter().all(|tag| *tag == Tag::Over)
    }

    fn character(&self) -> &Character {
        self.character.as_ref().expect("a queue with a request under way has its device open")
    }

    fn submit(&mut self, command: u32, tag: u16, result: i32) -> io::Result<()> {
        let argument = IoCommand { queue: self.number, tag, result, address: 0 };
        let descriptor = Fd(self.character().descriptor());
        let entry = UringCmd16::new(descriptor, command).cmd(argument.to_bytes()).build();
        // SAFETY: the command points to nothing but its file, which is open until all commands have
        // completed; a queue that is dropped before leaves it open.
        unsafe { self.ring.push(self.owner, u64::from(tag), entry) }?;
        self.tags[usize::from(tag)] = Tag::InKernel;
        Ok(())
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.tags.contains(&Tag::InKernel) {
            // Commands that were pushed and not yet submitted name the descriptor by its number.
            std::mem::forget(self.character.take());
        }
    }
}

impl Mapping {
    fn new(character: &Character, queue: u16, depth: u16) -> io::Result<Self> {
        let whole = |requests: usize| (requests * size_of::<Descriptor>()).next_multiple_of(PAGE);
        let bytes =
            NonZeroUsize::new(whole(usize::from(depth))).ok_or(io::ErrorKind::InvalidInput)?;
        let offset = (usize::from(queue) * whole(MOST_DEPTH)) as u64;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a null hint lets the kernel choose a free range, so no mapping is touched; the
        // file is borrowed for the call.
        let start = unsafe {
            let file = std::os::fd::BorrowedFd::borrow_raw(character.descriptor());
            mmap(std::ptr::null_mut(), bytes.get(), ProtFlags::READ, flags, file, offset)?
        };
        let start = NonNull::new(start.cast()).expect("mmap never maps the null page");
        Ok(Self { start, bytes })
    }

    /// Reads a descriptor that the kernel has written.
    fn read(&self, tag: usize) -> Descriptor {
        assert!((tag + 1) * size_of::<Descriptor>() <= self.bytes.get(), "a tag of the queue");
        // SAFETY: the descriptor is inside the mapping, and any bytes are a valid one. The kernel
        // wrote it before the command completed, and leaves it alone until the next command.
        unsafe { self.start.as_ptr().add(tag).read_volatile() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new` and is unmapped once; nothing points into it.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes.get()) };
    }
}
