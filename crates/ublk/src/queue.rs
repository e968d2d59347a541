//! One hardware queue of a device, served on a thread's ring.
//!
//! Each tag of the queue has either one command in the kernel, which completes with a request, or
//! one request in flight here. Completing a request submits the tag's command again with the result
//! (`COMMIT_AND_FETCH`). All commands of a queue must come from the thread that started it.
//!
//! Invariant: a tag is in the kernel, in flight here, or finished. The kernel changes the
//! descriptor of a tag only while the tag is in the kernel.

use std::fs::{File, OpenOptions};
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use floe_device::{Event, Owner, Ring, Slice};
use io_uring::opcode::UringCmd16;
use io_uring::types::Fd;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::abi::{
    COMMIT_AND_FETCH_REQ, Descriptor, FETCH_REQ, IoCommand, MOST_DEPTH, OP_DISCARD, OP_FLUSH,
    OP_NO_UNMAP, OP_READ, OP_WRITE, OP_WRITE_ZEROES, UblkError, data_offset,
};

/// Size of a memory page in bytes, the unit of mappings.
const PAGE: usize = 4096;

/// A hardware queue of a device. [`Queue::poll`] returns its requests, each of which must be
/// completed once.
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

/// The mapped memory with the kernel's descriptors of a queue's requests.
#[derive(Debug)]
struct Mapping {
    start: NonNull<Descriptor>,
    bytes: NonZeroUsize,
}

impl Queue {
    /// Starts to fetch requests, up to `depth` at a time. `depth` must be that of the device.
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

    /// Appends the requests that have arrived since the last call.
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

    /// Completes a request with the number of its bytes or a negative error number. The tag then
    /// waits for another request.
    pub fn complete(&mut self, tag: u16, result: i32) {
        debug_assert_eq!(self.tags[usize::from(tag)], Tag::UnderWay, "a request completes once");
        if self.submit(COMMIT_AND_FETCH_REQ, tag, result).is_err() {
            self.tags[usize::from(tag)] = Tag::Over; // the device's next server has it again
        }
    }

    /// Completes all requests in flight with this result.
    pub fn complete_all(&mut self, result: i32) {
        for tag in 0..self.tags.len() {
            if self.tags[tag] == Tag::UnderWay {
                self.complete(tag as u16, result);
            }
        }
    }

    /// Returns whether the device has ended: no request will arrive, and none is in flight.
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

/// A request from the kernel to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Number of the request among those in flight on the queue.
    pub tag: u16,
    /// Action to perform; `None` if this version does not know the action.
    pub action: Option<Action>,
    /// Offset of the range in bytes.
    pub offset: u64,
    /// Length of the range in bytes.
    pub bytes: u32,
}

/// The action that a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Read the range.
    Read,
    /// Write the range. The kernel can ask for durability before completion (force unit access);
    /// Floe treats every write that way.
    Write,
    /// Make all completed writes survive a power cut.
    Flush,
    /// Discard the content of the range.
    Discard,
    /// Make the range read as zeros.
    Zero {
        /// The range's space may be freed.
        may_unmap: bool,
    },
}

impl Request {
    pub(crate) fn of(tag: u16, descriptor: &Descriptor) -> Self {
        let flag = |flag: u32| descriptor.operation & flag != 0;
        let action = match descriptor.operation & 0xff {
            OP_READ => Some(Action::Read),
            OP_WRITE => Some(Action::Write),
            OP_FLUSH => Some(Action::Flush),
            OP_DISCARD => Some(Action::Discard),
            OP_WRITE_ZEROES => Some(Action::Zero { may_unmap: !flag(OP_NO_UNMAP) }),
            _ => None,
        };
        Self {
            tag,
            action,
            offset: descriptor.first_sector << 9,
            bytes: descriptor.sectors.saturating_mul(512),
        }
    }
}

/// Maximum time to wait until the character file can be opened.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// The open character file of a device. Only one server can have it open.
#[derive(Debug)]
pub struct Character {
    file: File,
    device: u32,
}

impl Character {
    /// Opens the character file of a device that was just created, or whose server has ended.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn open(device: u32) -> Result<Self, UblkError> {
        let path = path(device);
        let until = Instant::now() + PATIENCE;
        loop {
            match OpenOptions::new().read(true).write(true).open(&path) {
                Ok(file) => return Ok(Self { file, device }),
                // udev may still be making it, and an earlier server closing it.
                Err(_) if Instant::now() < until => sleep(LOOK_AGAIN),
                Err(source) => return Err(UblkError::Character { what: "opened", device, source }),
            }
        }
    }

    /// Returns whether some process has the device's character file open.
    pub fn is_open(device: u32) -> bool {
        let opened = OpenOptions::new().read(true).write(true).open(path(device));
        opened.is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY))
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    pub(crate) fn problem(&self, what: &'static str, source: io::Error) -> UblkError {
        UblkError::Character { what, device: self.device, source }
    }

    /// Copies the data of a write request into a slice.
    pub(crate) fn take_data(&self, queue: u16, tag: u16, into: &Slice) -> io::Result<()> {
        move_all(into.len(), |done| {
            let part = into.slice(done..into.len());
            let offset = data_offset(queue, tag) + done as u64;
            // SAFETY: the slice keeps its memory alive, and no reference into it exists.
            unsafe {
                libc::pread(
                    self.file.as_raw_fd(),
                    part.as_ptr().cast(),
                    part.len(),
                    offset as libc::off_t,
                )
            }
        })
    }

    /// Copies a slice into the memory of a read request.
    pub(crate) fn give_data(&self, queue: u16, tag: u16, from: &Slice) -> io::Result<()> {
        move_all(from.len(), |done| {
            let part = from.slice(done..from.len());
            let offset = data_offset(queue, tag) + done as u64;
            // SAFETY: the slice keeps its memory alive.
            unsafe {
                libc::pwrite(
                    self.file.as_raw_fd(),
                    part.as_ptr().cast(),
                    part.len(),
                    offset as libc::off_t,
                )
            }
        })
    }
}

fn path(device: u32) -> String {
    format!("/dev/ublkc{device}")
}

/// Repeats a call that moves a part of the bytes until all are moved.
fn move_all(bytes: usize, mut some: impl FnMut(usize) -> isize) -> io::Result<()> {
    let mut done = 0;
    while done < bytes {
        match some(done) {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            moved if moved > 0 => done += moved as usize,
            _ => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod request_tests {
    use super::*;

    #[test]
    fn a_descriptor_is_read_with_its_flags() {
        let read = |operation| {
            let descriptor = Descriptor { operation, sectors: 8, first_sector: 3, address: 0 };
            let request = Request::of(7, &descriptor);
            assert_eq!((request.tag, request.offset, request.bytes), (7, 1536, 4096));
            request.action
        };
        // The lowest byte is the operation; failfast (bit 8) and others do not matter.
        assert_eq!(read(0x100), Some(Action::Read));
        assert_eq!(read(1), Some(Action::Write));
        assert_eq!(read(1 | 1 << 13), Some(Action::Write));
        assert_eq!(read(2), Some(Action::Flush));
        assert_eq!(read(3), Some(Action::Discard));
        assert_eq!(read(5), Some(Action::Zero { may_unmap: true }));
        assert_eq!(read(5 | 1 << 15), Some(Action::Zero { may_unmap: false }));
        assert_eq!(read(15), None);
    }
}
