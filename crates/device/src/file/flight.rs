//! An operation on its way through the kernel: the entries it needs, and what their results mean.

use std::io;

use io_uring::{opcode, squeue, types};
use libc::{FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE};

use crate::buffer::{Pool, Slice};
use crate::ring::Ring;

/// The most bytes one entry moves; the rest follows as a continuation.
const TRANSFER_BYTES_MAX: u64 = 1 << 30;
/// Zeros written at a time where the file system cannot zero a range itself.
const ZEROS_BYTES: u64 = 256 << 10;

/// An operation the kernel has not finished.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) token: u64,
    /// Where the part still to do begins.
    pub(super) offset: u64,
    /// The bytes still to do.
    pub(super) left: u64,
    pub(super) work: Work,
}

#[derive(Debug)]
pub(super) enum Work {
    /// `into` is what the kernel fills; `target` what the caller asked to have filled, if that is
    /// not aligned.
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
    /// Zeroing on a file system that cannot: `zeros` written over and over.
    ZeroByWriting {
        zeros: Slice,
    },
    Discard,
    Flush,
}

pub(super) fn not_fast() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "zeros would have to be written")
}

fn ended(at: u64) -> io::Error {
    let message = format!("the file ends at {at}, inside the device");
    io::Error::new(io::ErrorKind::UnexpectedEof, message)
}

pub(super) enum Progress {
    Done(io::Result<()>),
    More,
}

impl Flight {
    pub(super) fn entry(&self, fd: types::Fd, ring: &Ring) -> squeue::Entry {
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

    /// A block device that has `now` bytes: where one writes past the end of what is left of it, it
    /// says that there is no space, which sounds as if giving some back would help.
    pub(super) fn unless_past(&self, error: io::Error, now: io::Result<u64>) -> io::Error {
        match now {
            Ok(now)
                if error.kind() == io::ErrorKind::StorageFull && now < self.offset + self.left =>
            {
                ended(now)
            }
            _ => error,
        }
    }

    /// Takes in one result of the kernel's.
    pub(super) fn advance(&mut self, result: i32, pool: &Pool) -> Progress {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn flight(left: u64, work: Work) -> Flight {
        Flight { token: 1, offset: 8192, left, work }
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
