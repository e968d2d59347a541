//! A file or block device, accessed through the thread's io_uring.
//!
//! Reads and writes bypass the page cache (O_DIRECT) where the file system allows it, and use the
//! ring's registered arena when their slice lies in it. Transfers the kernel cuts short are
//! continued until the whole range is done. Zeroing and discarding are `fallocate`, with written
//! zeros as the fallback unless that would be too slow.
//!
//! Invariants: an operation's slice is held in `queue` from submission to its last completion, so
//! the kernel never writes to memory that was given back. Dropping the device submits the queued
//! operations and waits for them: disk I/O always ends, and closing a ring would not wait for the
//! disk. If waiting fails, the slices are leaked instead.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::time::Instant;

use io_uring::{opcode, squeue, types};
use libc::{FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use crate::buffer::{Pool, SECTOR_BYTES, Slice};
use crate::device::{Action, Completion, Device, Extent, Operation, check_inside, clip};
use crate::queue::{Queue, check_resize};
use crate::ring::{Event, Owner, Ring};

pub use open::{FileOptions, FileSource, OpenError};
pub(crate) use spec::FileSpec;

mod open;
mod spec;

/// Memory alignment in bytes that direct I/O accepts everywhere.
const DIRECT_ALIGNMENT: usize = 512;

/// One thread's handle of a file or block device.
#[derive(Debug)]
pub struct FileDevice {
    ring: Ring,
    owner: Owner,
    pool: Pool,
    source: FileSource,
    size: u64,
    queue: Queue<FileOperation>,
    events: Vec<Event>,
}

impl FileDevice {
    /// Opens the file at `path`, or creates it with `options.create`, and locks it against a second
    /// user.
    ///
    /// # Errors
    /// Names the path and the reason.
    pub fn open(
        ring: &Ring,
        pool: &Pool,
        path: impl AsRef<Path>,
        options: FileOptions,
    ) -> Result<FileDevice, OpenError> {
        Ok(FileDevice::new(ring, pool, &FileSource::prepare(path, &options)?))
    }

    /// Creates a thread's device for an open file.
    pub fn new(ring: &Ring, pool: &Pool, source: &FileSource) -> FileDevice {
        FileDevice {
            ring: ring.clone(),
            owner: ring.owner(),
            pool: pool.clone(),
            source: source.clone(),
            size: source.size_bytes(),
            queue: Queue::default(),
            events: Vec::new(),
        }
    }

    /// Returns whether I/O bypasses the page cache: false if that was not requested or the file
    /// system refused.
    pub fn is_direct(&self) -> bool {
        self.source.is_direct()
    }

    /// Returns the number of operations that the kernel has not finished.
    pub fn in_flight(&self) -> usize {
        self.queue.len()
    }

    /// Returns a slice that direct I/O accepts in place of `slice`: the slice itself, or an aligned
    /// one of equal length.
    fn aligned(&self, slice: &Slice) -> Option<Slice> {
        let askew = self.is_direct() && !(slice.as_ptr() as usize).is_multiple_of(DIRECT_ALIGNMENT);
        askew.then(|| self.pool.allocate(slice.len()).whole())
    }

    fn begin(&mut self, operation: Operation) -> io::Result<()> {
        let Operation { token, offset, .. } = operation;
        let left = clip(&operation, self.size)?;
        let work = match operation.action {
            Action::Flush => Work::Flush,
            Action::Read(into) => {
                into.slice(left as usize..into.len()).fill_zero();
                let wanted = into.slice(0..left as usize);
                match self.aligned(&wanted) {
                    Some(bounce) => Work::Read { into: bounce, target: Some(wanted) },
                    None => Work::Read { into: wanted, target: None },
                }
            }
            Action::Write { from, durable } => {
                let from = from.slice(0..left as usize);
                let bounce = self.aligned(&from).inspect(|bounce| Slice::copy(&from, bounce));
                Work::Write { from: bounce.unwrap_or(from), durable }
            }
            // On a block device the kernel would write zeros by itself where it may not unmap.
            Action::Zero { may_unmap: false, fast: true, .. } if self.source.is_block_device() => {
                return Err(not_fast());
            }
            Action::Zero { may_unmap, fast, .. } => Work::Zero { may_unmap, fast },
            Action::Discard { .. } => Work::Discard,
        };
        if left == 0 && !matches!(work, Work::Flush) {
            self.queue.end(token, Ok(()));
            return Ok(());
        }
        let slot = self.queue.insert(FileOperation { token, offset, left, work });
        self.push(slot).inspect_err(|_| drop(self.queue.remove(slot)))
    }

    /// Pushes the unfinished part of an operation to the ring.
    fn push(&mut self, slot: usize) -> io::Result<()> {
        let entry = self.queue[slot].entry(types::Fd(self.source.fd()), &self.ring);
        // SAFETY: the slices the entry points into stay in `queue`, and the file open, until its
        // completion was taken; `drop` sees to that too.
        unsafe { self.ring.push(self.owner, slot as u64, entry) }
    }

    /// Processes a result from the kernel. Returns the result of the operation, or `None` if a part
    /// of it remains.
    fn advance(&mut self, slot: usize, result: i32) -> Option<io::Result<()>> {
        match self.queue[slot].advance(result, &self.pool) {
            Progress::Done(Err(error)) if self.source.is_block_device() => {
                Some(Err(self.queue[slot].unless_past(error, self.source.size_now())))
            }
            Progress::Done(result) => Some(result),
            Progress::More => self.push(slot).err().map(Err),
        }
    }
}

impl Device for FileDevice {
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
        let mut events = std::mem::take(&mut self.events);
        self.ring.take(self.owner, &mut events);
        for (slot, result, _) in events.drain(..) {
            let slot = slot as usize;
            if let Some(result) = self.advance(slot, result) {
                let token = self.queue.remove(slot).token;
                done.push(Completion { token, result });
            }
        }
        self.events = events;
    }

    fn set_size(&mut self, bytes: u64) -> io::Result<()> {
        check_resize("file", bytes, self.source.size_bytes())?;
        self.size = bytes;
        Ok(())
    }

    fn allocation(&mut self, range: Range<u64>, extents: &mut Vec<Extent>) {
        check_inside(&range, self.size);
        find(self.source.file(), range, extents);
    }

    fn next_due(&self) -> Option<Instant> {
        self.queue.next_due()
    }
}

impl Drop for FileDevice {
    fn drop(&mut self) {
        let mut events = Vec::new();
        while self.in_flight() > 0 {
            if self.ring.wait(None).is_err() {
                return self.queue.leak();
            }
            self.ring.take(self.owner, &mut events);
            for (slot, _, _) in events.drain(..) {
                self.queue.remove(slot as usize);
            }
        }
        self.ring.retire(self.owner);
    }
}

/// Maximum number of bytes that one ring entry transfers; the rest follows in further entries.
const TRANSFER_BYTES_MAX: u64 = 1 << 30;
/// Bytes of zeros written at a time where the file system cannot zero a range itself.
const ZEROS_BYTES: u64 = 256 << 10;

/// An operation that the kernel has not finished.
#[derive(Debug)]
struct FileOperation {
    token: u64,
    /// Offset of the first byte that is not done.
    offset: u64,
    /// Bytes that are not done.
    left: u64,
    work: Work,
}

#[derive(Debug)]
enum Work {
    /// The kernel reads into `into`. `target` is the caller's slice, where that is not aligned for
    /// direct I/O.
    Read {
        into: Slice,
        target: Option<Slice>,
    },
    Write {
        from: Slice,
        durable: bool,
    },
    Zero {
        may_unmap: bool,
        fast: bool,
    },
    /// Zeroing on a file system that does not support it, by writing `zeros` repeatedly.
    ZeroByWriting {
        zeros: Slice,
    },
    Discard,
    Flush,
}

fn not_fast() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "zeros would have to be written")
}

fn ended(at: u64) -> io::Error {
    let message = format!("the file ends at {at}, inside the device");
    io::Error::new(io::ErrorKind::UnexpectedEof, message)
}

enum Progress {
    Done(io::Result<()>),
    More,
}

impl FileOperation {
    fn entry(&self, fd: types::Fd, ring: &Ring) -> squeue::Entry {
        let (offset, left) = (self.offset, self.left);
        let len = left.min(TRANSFER_BYTES_MAX) as u32;
        let write = |from: &Slice, len: u32, flags: i32| match ring.fixed_buffer(from) {
            Some(index) => opcode::WriteFixed::new(fd, from.as_ptr(), len, index)
                .offset(offset)
                .rw_flags(flags)
                .build(),
            None => {
                opcode::Write::new(fd, from.as_ptr(), len).offset(offset).rw_flags(flags).build()
            }
        };
        let allocate = |mode| {
            opcode::Fallocate::new(fd, left).offset(offset).mode(mode | FALLOC_FL_KEEP_SIZE).build()
        };
        match &self.work {
            Work::Read { into, .. } => match ring.fixed_buffer(into) {
                Some(index) => {
                    opcode::ReadFixed::new(fd, into.as_ptr(), len, index).offset(offset).build()
                }
                None => opcode::Read::new(fd, into.as_ptr(), len).offset(offset).build(),
            },
            Work::Write { from, durable } => {
                write(from, len, if *durable { libc::RWF_DSYNC } else { 0 })
            }
            Work::ZeroByWriting { zeros } => write(zeros, left.min(zeros.len() as u64) as u32, 0),
            Work::Zero { may_unmap: true, .. } | Work::Discard => allocate(FALLOC_FL_PUNCH_HOLE),
            Work::Zero { may_unmap: false, .. } => allocate(FALLOC_FL_ZERO_RANGE),
            Work::Flush => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
        }
    }

    /// Replaces a misleading "no space" error by one that names the device's end. The kernel
    /// reports "no space" for a write past the end of a block device that has shrunk to `now`
    /// bytes.
    fn unless_past(&self, error: io::Error, now: io::Result<u64>) -> io::Error {
        match now {
            Ok(now)
                if error.kind() == io::ErrorKind::StorageFull && now < self.offset + self.left =>
            {
                ended(now)
            }
            _ => error,
        }
    }

    /// Processes a result from the kernel.
    fn advance(&mut self, result: i32, pool: &Pool) -> Progress {
        match (-result, &self.work) {
            (libc::EINTR | libc::EAGAIN, _) => return Progress::More,
            (libc::EOPNOTSUPP, Work::Discard) => return Progress::Done(Ok(())),
            (libc::EOPNOTSUPP, Work::Zero { fast: true, .. }) => {
                return Progress::Done(Err(not_fast()));
            }
            (libc::EOPNOTSUPP, Work::Zero { .. }) => {
                let zeros = pool.allocate(self.left.min(ZEROS_BYTES) as usize).whole();
                zeros.fill_zero();
                self.work = Work::ZeroByWriting { zeros };
                return Progress::More;
            }
            _ if result < 0 => return Progress::Done(Err(io::Error::from_raw_os_error(-result))),
            _ => {}
        }
        let moved = result as u64;
        match &mut self.work {
            Work::Zero { .. } | Work::Discard | Work::Flush => return Progress::Done(Ok(())),
            _ if moved == 0 => return Progress::Done(Err(ended(self.offset))),
            Work::Read { into, target } => {
                let moved = moved as usize;
                if let Some(target) = target {
                    Slice::copy(&into.slice(0..moved), &target.slice(0..moved));
                    *target = target.slice(moved..target.len());
                }
                *into = into.slice(moved..into.len());
            }
            Work::Write { from, .. } => *from = from.slice(moved as usize..from.len()),
            Work::ZeroByWriting { .. } => {}
        }
        self.offset += moved;
        self.left -= moved;
        if self.left == 0 { Progress::Done(Ok(())) } else { Progress::More }
    }
}

/// Maximum number of extents that one query returns, so that a fragmented file does not stall the
/// thread.
const EXTENTS_MAX: usize = 64;

/// Appends the extents of a range of `file`, as [`Device::allocation`]
/// requires. Extents begin and end at sector boundaries, or where the range does.
///
/// File systems may report a hole as data, never data as a hole. Block devices report everything as
/// data.
fn find(file: &File, range: Range<u64>, extents: &mut Vec<Extent>) {
    let (mut at, end) = (range.start, range.end);
    for _ in 0..EXTENTS_MAX / 2 {
        if at >= end {
            return;
        }
        let data = match seek(file, SeekFrom::Data(at)) {
            Ok(data) => data.min(end),
            Err(Errno::NXIO) => end, // no data any more
            Err(_) => return extents.push(Extent::data(end - at)),
        };
        // A sector that is part hole, part data is data.
        let data = if data == end { end } else { (data / SECTOR_BYTES * SECTOR_BYTES).max(at) };
        if data > at {
            extents.push(Extent::hole(data - at));
            at = data;
        }
        if at < end {
            // The data may have become a hole meanwhile: it is called data all the same, for one
            // sector.
            let hole = seek(file, SeekFrom::Hole(at)).unwrap_or(end).max(at + 1);
            let hole = hole.next_multiple_of(SECTOR_BYTES).min(end);
            extents.push(Extent::data(hole - at));
            at = hole;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flight(left: u64, work: Work) -> FileOperation {
        FileOperation { token: 1, offset: 8192, left, work }
    }

    fn more(progress: Progress) -> bool {
        matches!(progress, Progress::More)
    }

    #[test]
    fn a_transfer_cut_short_continues_where_it_stopped() {
        let pool = Pool::new(0);
        let (into, target) = (pool.allocate(8192).whole(), pool.allocate(8192).whole());
        into.copy_from(&[7; 8192]);
        target.fill_zero();
        let start = into.as_ptr() as usize;
        let mut read = flight(8192, Work::Read { into, target: Some(target.clone()) });
        assert!(more(read.advance(4096, &pool)));
        let Work::Read { into: rest, .. } = &read.work else { panic!("still a read") };
        assert_eq!((read.offset, read.left, rest.as_ptr() as usize - start), (12288, 4096, 4096));
        assert_eq!(target.to_vec(), [[7; 4096], [0; 4096]].concat());
        assert!(more(read.advance(-libc::EINTR, &pool)));
        assert!(matches!(read.advance(4096, &pool), Progress::Done(Ok(()))));
        assert_eq!(target.to_vec(), [7; 8192]);

        let mut write = flight(8192, Work::Write { from: target, durable: true });
        assert!(more(write.advance(512, &pool)));
        let Work::Write { from, .. } = &write.work else { panic!("still a write") };
        assert_eq!((write.offset, write.left, from.len()), (8704, 7680, 7680));
    }

    #[test]
    fn zeros_are_written_where_the_file_system_cannot_zero() {
        let pool = Pool::new(0);
        let len = ZEROS_BYTES + 4096;
        let mut zero = flight(len, Work::Zero { may_unmap: true, fast: false });
        assert!(more(zero.advance(-libc::EOPNOTSUPP, &pool)));
        let Work::ZeroByWriting { zeros } = &zero.work else { panic!("now writes zeros") };
        assert_eq!(zeros.to_vec(), vec![0; ZEROS_BYTES as usize]);
        assert!(more(zero.advance(ZEROS_BYTES as i32, &pool)));
        assert_eq!((zero.offset, zero.left), (8192 + ZEROS_BYTES, 4096));
        assert!(matches!(zero.advance(4096, &pool), Progress::Done(Ok(()))));

        let mut fast = flight(len, Work::Zero { may_unmap: true, fast: true });
        let Progress::Done(Err(error)) = fast.advance(-libc::EOPNOTSUPP, &pool) else {
            panic!("an error")
        };
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
    }

    #[test]
    fn a_discard_the_file_system_does_not_know_succeeds_and_other_errors_arrive() {
        let pool = Pool::new(0);
        let discard = |errno: i32| flight(4096, Work::Discard).advance(-errno, &pool);
        assert!(matches!(discard(libc::EOPNOTSUPP), Progress::Done(Ok(()))));
        let Progress::Done(Err(error)) = discard(libc::EIO) else { panic!("an error") };
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
    }

    #[test]
    fn a_block_device_that_shrank_is_not_full() {
        let pool = Pool::new(0);
        let write = || {
            let from = pool.allocate(4096).whole();
            flight(4096, Work::Write { from, durable: false })
        };
        let kind = |errno: i32, now| {
            let Progress::Done(Err(error)) = write().advance(-errno, &pool) else {
                panic!("an error")
            };
            write().unless_past(error, now).kind()
        };
        assert_eq!(kind(libc::ENOSPC, Ok(8192)), io::ErrorKind::UnexpectedEof);
        assert_eq!(kind(libc::ENOSPC, Ok(8192 + 4096)), io::ErrorKind::StorageFull);
        assert_eq!(
            kind(libc::ENOSPC, Err(io::ErrorKind::Other.into())),
            io::ErrorKind::StorageFull
        );
        assert_eq!(kind(libc::ENOMEM, Ok(0)), io::ErrorKind::OutOfMemory);
    }
}
