//! The character file of a device, through which its server maps descriptors and copies data.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::thread::sleep;
use std::time::{Duration, Instant};

use floe_device::Slice;

use crate::abi::data_offset;
use crate::error::UblkError;

/// The time that the file may take to appear, and between looks at it.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// An open character file. A device has at most one server that has it open.
#[derive(Debug)]
pub struct Character {
    file: File,
    device: u32,
}

impl Character {
    /// Opens the file of a device that was just made, or whose server has ended.
    ///
    /// # Errors
    /// When it cannot be opened.
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

    /// Returns whether a device's file is open.
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

/// Repeats a call that moves some bytes until all are moved.
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
