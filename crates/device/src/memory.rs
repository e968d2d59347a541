//! A block device in memory.
//!
//! The bytes are anonymous memory, so a large device uses no memory until written. An operation is
//! carried out when submitted and reported at the next poll. Clones share the bytes, each with its
//! own completions: a test keeps one to inspect what a server wrote, and every thread of a server
//! has its own. Nothing survives a power cut; [`Action::Flush`] succeeds.
//!
//! Invariants: all access is by raw copies within `size`; no reference into the bytes exists.
//! Threads that read and write one sector at the same time get what a file opened with O_DIRECT
//! would give: an unspecified mixture of old and new bytes, and nothing else.

use std::sync::Arc;
use std::time::Instant;
use std::{fmt, io};

use crate::buffer::{Mapping, Pool, SECTOR_BYTES};
use crate::device::{Action, Completion, Device, Operation, clip};
use crate::file::OpenError;
use crate::ring::Ring;
use crate::source::{PreparedDevice, Source};
use crate::spec::{DeviceSpec, Exact, Role, Setting, SpecError, Wanted, parse_size};
use crate::system::MemoryLimit;

/// A block device in memory, initially zero.
#[derive(Debug)]
pub struct MemoryDevice {
    bytes: Arc<Mapping>,
    size: u64,
    done: Vec<Completion>,
}

impl MemoryDevice {
    /// Creates a device of `size` zero bytes.
    ///
    /// # Panics
    /// When `size` is not a multiple of 512 or the address space has no room for it.
    pub fn new(size: u64) -> MemoryDevice {
        MemoryDevice::try_new(size)
            .unwrap_or_else(|error| panic!("cannot make a memory device of {size} bytes: {error}"))
    }

    /// Creates a device of `size` zero bytes.
    ///
    /// # Errors
    /// When `size` is not a multiple of 512 or the address space has no room for it.
    pub fn try_new(size: u64) -> io::Result<MemoryDevice> {
        if !size.is_multiple_of(512) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the size is not a multiple of 512",
            ));
        }
        let len = usize::try_from(size).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let mapped = len
            .checked_next_multiple_of(SECTOR_BYTES as usize)
            .ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(MemoryDevice { bytes: Arc::new(Mapping::new(mapped)?), size, done: Vec::new() })
    }

    /// Copies bytes out of the device directly, without an operation.
    ///
    /// # Panics
    /// When the range reaches outside the device.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) {
        let from = self.at(offset, into.len());
        // SAFETY: `at` checked the range; `into` is Rust memory and cannot overlap the mapping.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) }
    }

    /// Copies bytes into the device directly, without an operation.
    ///
    /// # Panics
    /// When the range reaches outside the device.
    pub fn write_at(&self, offset: u64, from: &[u8]) {
        let to = self.at(offset, from.len());
        // SAFETY: `at` checked the range; `from` is Rust memory and cannot overlap the mapping.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) }
    }

    fn at(&self, offset: u64, len: usize) -> *mut u8 {
        let end = offset.checked_add(len as u64);
        assert!(
            end.is_some_and(|end| end <= self.size),
            "{len} bytes at {offset} of {}",
            self.size
        );
        // SAFETY: the offset is within the mapping, which is at least `size` long.
        unsafe { self.bytes.start().as_ptr().add(offset as usize) }
    }

    fn zero(&self, offset: u64, len: u64) -> io::Result<()> {
        let whole = len / SECTOR_BYTES * SECTOR_BYTES;
        self.bytes.forget(offset as usize, whole as usize)?;
        let (tail, tail_len) = (offset + whole, (len - whole) as usize);
        // SAFETY: `at` checks the range.
        unsafe { std::ptr::write_bytes(self.at(tail, tail_len), 0, tail_len) };
        Ok(())
    }

    fn carry_out(&self, operation: &Operation) -> io::Result<()> {
        let len = clip(operation, self.size)?;
        let at = self.at(operation.offset.min(self.size), len as usize);
        match &operation.action {
            Action::Read(into) => {
                // SAFETY: `at` covers `len` bytes of the mapping, `into` at least as many of a
                // buffer; a buffer is never inside a device's mapping.
                unsafe { std::ptr::copy_nonoverlapping(at, into.as_ptr(), len as usize) };
                into.slice(len as usize..into.len()).fill_zero();
            }
            Action::Write { from, .. } => {
                // SAFETY: as above, the other way round.
                unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), at, len as usize) };
            }
            Action::Zero { .. } | Action::Discard { .. } => self.zero(operation.offset, len)?,
            Action::Flush => {}
        }
        Ok(())
    }
}

impl Clone for MemoryDevice {
    /// Creates another handle to the device's bytes, with separate completions.
    fn clone(&self) -> MemoryDevice {
        MemoryDevice { bytes: Arc::clone(&self.bytes), size: self.size, done: Vec::new() }
    }
}

impl Device for MemoryDevice {
    fn size_bytes(&self) -> u64 {
        self.size
    }

    fn submit(&mut self, operation: Operation) {
        let result = self.carry_out(&operation);
        self.done.push(Completion { token: operation.token, result });
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.done);
    }

    fn next_due(&self) -> Option<Instant> {
        (!self.done.is_empty()).then(Instant::now)
    }
}

/// A memory device's specification, before the device is created.
#[derive(Debug)]
pub(crate) struct MemorySpec {
    size: u64,
}

impl MemorySpec {
    pub(crate) fn parse(spec: &str, size: &str) -> Result<Box<dyn DeviceSpec>, SpecError> {
        if size.is_empty() {
            return Err(SpecError::NoSize(spec.to_owned()));
        }
        Ok(Box::new(MemorySpec { size: parse_size(spec, size, SECTOR_BYTES)? }))
    }
}

impl DeviceSpec for MemorySpec {
    fn kind(&self) -> &'static str {
        "memory"
    }

    fn title(&self) -> String {
        format!("memory:{}", Exact(self.size))
    }

    fn write_settings(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }

    fn settings(&self) -> &'static str {
        "medium=NAME, interference=off, iops=N and bandwidth=SIZE"
    }

    fn set(&mut self, _: &Setting<'_>) -> Result<bool, SpecError> {
        Ok(false)
    }

    fn size_bytes(&self) -> Option<u64> {
        Some(self.size)
    }

    fn names(&self) -> Vec<String> {
        Vec::new()
    }

    fn prepare(&self, wanted: &Wanted<'_>) -> Result<Source, OpenError> {
        let size = self.size;
        if let Some(wanted) = wanted.size.filter(|&wanted| wanted != size) {
            return Err(OpenError::WrongMemorySize { actual: size, wanted });
        }
        // A cache fills up; of a backing device in memory only what is written takes any.
        if let (Role::Cache { .. }, Some(limit)) =
            (wanted.role, MemoryLimit::here().filter(|limit| size > limit.bytes))
        {
            return Err(OpenError::TooMuchMemory { size, limit });
        }
        let device =
            MemoryDevice::try_new(size).map_err(|source| OpenError::Memory { size, source })?;
        Ok(Source::new(device, wanted.imitation, wanted.number))
    }
}

impl PreparedDevice for MemoryDevice {
    fn size_bytes(&self) -> u64 {
        self.size
    }

    fn name(&self) -> String {
        "memory".to_owned()
    }

    fn refresh(&self) -> io::Result<u64> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "a memory device cannot be resized"))
    }

    fn open(&self, _: &Ring, _: &Pool) -> Result<Box<dyn Device>, OpenError> {
        Ok(Box::new(self.clone()))
    }
}
