//! A block device in memory.
//!
//! The bytes are anonymous memory, so a large device uses no memory until written. An operation is
//! carried out when submitted and reported at the next poll. Clones share the bytes, each with its
//! own completions: a test keeps one to inspect what a server wrote, and every thread of a server
//! has its own. Nothing survives a power cut; [`Action::Flush`] succeeds.
//!
//! A device grows by further mappings behind the first, which all handles share. A mapping never
//! moves, so other threads may go on meanwhile. Each handle keeps a list of its own, which it
//! extends when it adopts the new size.
//!
//! Invariants: all access is by raw copies within `size`; no reference into the bytes exists. The
//! mappings of a handle cover its `size`, and all but the last end at a page boundary.
//! Threads that read and write one sector at the same time get what a file opened with O_DIRECT
//! would give: an unspecified mixture of old and new bytes, and nothing else.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use std::{fmt, io};

use crate::buffer::{Mapping, Pool, SECTOR_BYTES};
use crate::device::{Action, Completion, Device, Operation, clip};
use crate::file::OpenError;
use crate::queue::check_resize;
use crate::ring::Ring;
use crate::source::{PreparedDevice, Source};
use crate::spec::{DeviceSpec, Exact, Setting, SpecError, Wanted, parse_size};
use crate::system::MemoryLimit;

/// A block device in memory, initially zero.
#[derive(Debug)]
pub struct MemoryDevice {
    bytes: Arc<Mapping>,
    /// Mappings behind the first, of a device that has grown.
    more: Vec<Arc<Mapping>>,
    size: u64,
    grown: Arc<Mutex<Grown>>,
    done: Vec<Completion>,
}

/// The part of a memory device that changes for all handles.
#[derive(Debug)]
struct Grown {
    /// Size of the device in bytes; handles may have adopted less.
    size: u64,
    /// Mappings behind the first, and the bytes of all mappings.
    more: Vec<Arc<Mapping>>,
    mapped: usize,
}

/// Returns the bytes to map for a device of `size` bytes.
fn mapped(size: u64) -> io::Result<usize> {
    if !size.is_multiple_of(512) {
        let problem = "the size is not a multiple of 512";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
    }
    let len = usize::try_from(size).map_err(|_| io::ErrorKind::OutOfMemory)?;
    let mapped = len.checked_next_multiple_of(SECTOR_BYTES as usize);
    mapped.ok_or_else(|| io::ErrorKind::OutOfMemory.into())
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
        let mapped = mapped(size)?;
        let bytes = Arc::new(Mapping::new(mapped)?);
        let grown = Arc::new(Mutex::new(Grown { size, more: Vec::new(), mapped }));
        Ok(MemoryDevice { bytes, more: Vec::new(), size, grown, done: Vec::new() })
    }

    /// Locks what all handles share, even after a panic of another thread: it is always consistent.
    fn grown(&self) -> MutexGuard<'_, Grown> {
        self.grown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds zero bytes behind the last, until there are `size`; does nothing if there are as many.
    /// This handle and the others adopt the new size with [`Device::set_size`].
    ///
    /// # Errors
    /// When `size` is not a multiple of 512 or the address space has no room for it; the device
    /// stays as it is.
    pub fn grow(&self, size: u64) -> io::Result<()> {
        let wanted = mapped(size)?;
        let mut grown = self.grown();
        if wanted > grown.mapped {
            let more = Mapping::new(wanted - grown.mapped)?;
            grown.more.push(Arc::new(more));
            grown.mapped = wanted;
        }
        grown.size = grown.size.max(size);
        Ok(())
    }

    /// Copies bytes out of the device directly, without an operation.
    ///
    /// # Panics
    /// When the range reaches outside the device.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) {
        let to = into.as_mut_ptr();
        self.each(offset, into.len(), |from, done, len| {
            // SAFETY: `each` covers `len` bytes of a mapping and `done + len` of `into`, which is
            // Rust memory and cannot overlap a mapping.
            unsafe { std::ptr::copy_nonoverlapping(from, to.add(done), len) }
        });
    }

    /// Copies bytes into the device directly, without an operation.
    ///
    /// # Panics
    /// When the range reaches outside the device.
    pub fn write_at(&self, offset: u64, from: &[u8]) {
        self.each(offset, from.len(), |to, done, len| {
            // SAFETY: `each` covers `len` bytes of a mapping and `done + len` of `from`, which is
            // Rust memory and cannot overlap a mapping.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr().add(done), to, len) }
        });
    }

    /// Calls `act` for each part of a range that lies in one mapping, with its address, its
    /// position in the range, and its length.
    ///
    /// # Panics
    /// When the range reaches outside the device.
    #[inline]
    fn each(&self, offset: u64, len: usize, mut act: impl FnMut(*mut u8, usize, usize)) {
        let end = offset.checked_add(len as u64);
        assert!(
            end.is_some_and(|end| end <= self.size),
            "{len} bytes at {offset} of {}",
            self.size
        );
        let offset = offset as usize;
        if offset + len <= self.bytes.len() {
            // SAFETY: the range is within the mapping.
            return act(unsafe { self.bytes.start().as_ptr().add(offset) }, 0, len);
        }
        for (mapping, at, done, len) in self.parts(offset, len) {
            // SAFETY: `parts` returns ranges within their mappings.
            act(unsafe { mapping.start().as_ptr().add(at) }, done, len);
        }
    }

    /// Returns the parts of a range within the device: each with its mapping, the position there,
    /// the position in the range, and the length.
    fn parts(
        &self,
        offset: usize,
        len: usize,
    ) -> impl Iterator<Item = (&Mapping, usize, usize, usize)> {
        let mut start = 0;
        let mappings = std::iter::once(&self.bytes).chain(&self.more);
        mappings.filter_map(move |mapping| {
            let (from, to) = (offset.max(start), (offset + len).min(start + mapping.len()));
            let at = from.saturating_sub(start);
            start += mapping.len();
            (from < to).then(|| (&**mapping, at, from - offset, to - from))
        })
    }

    fn zero(&self, offset: u64, len: u64) -> io::Result<()> {
        let whole = len / SECTOR_BYTES * SECTOR_BYTES;
        for (mapping, at, _, len) in self.parts(offset as usize, whole as usize) {
            mapping.forget(at, len)?;
        }
        self.each(offset + whole, (len - whole) as usize, |tail, _, len| {
            // SAFETY: `each` covers `len` bytes of a mapping.
            unsafe { std::ptr::write_bytes(tail, 0, len) };
        });
        Ok(())
    }

    fn carry_out(&self, operation: &Operation) -> io::Result<()> {
        let len = clip(operation, self.size)?;
        let (offset, bytes) = (operation.offset.min(self.size), len as usize);
        match &operation.action {
            Action::Read(into) => {
                self.each(offset, bytes, |at, done, len| {
                    // SAFETY: `each` covers `len` bytes of a mapping, `into` at least `done + len`
                    // of a buffer; a buffer is never inside a device's mapping.
                    unsafe { std::ptr::copy_nonoverlapping(at, into.as_ptr().add(done), len) };
                });
                into.slice(bytes..into.len()).fill_zero();
            }
            Action::Write { from, .. } => {
                self.each(offset, bytes, |at, done, len| {
                    // SAFETY: as above, the other way round.
                    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr().add(done), at, len) };
                });
            }
            Action::Zero { .. } | Action::Discard { .. } => self.zero(operation.offset, len)?,
            Action::Flush => {}
        }
        Ok(())
    }

    /// Adopts the size and the mappings of the device.
    fn adopt(&mut self, bytes: u64) -> io::Result<()> {
        let shared = Arc::clone(&self.grown);
        let grown = shared.lock().unwrap_or_else(PoisonError::into_inner);
        check_resize("memory device", bytes, grown.size)?;
        self.more.extend_from_slice(&grown.more[self.more.len()..]);
        self.size = bytes;
        Ok(())
    }
}

impl Clone for MemoryDevice {
    /// Creates another handle to the device's bytes, with separate completions.
    fn clone(&self) -> MemoryDevice {
        let Self { bytes, more, size, grown, .. } = self;
        MemoryDevice {
            bytes: Arc::clone(bytes),
            more: more.clone(),
            size: *size,
            grown: Arc::clone(grown),
            done: Vec::new(),
        }
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

    fn is_immediate(&self) -> bool {
        true
    }

    fn set_size(&mut self, bytes: u64) -> io::Result<()> {
        self.adopt(bytes)
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
        if wanted.role.is_cache() {
            check_memory(size)?;
        }
        let device =
            MemoryDevice::try_new(size).map_err(|source| OpenError::Memory { size, source })?;
        Ok(Source::new(device, wanted.imitation, wanted.number))
    }
}

/// Checks that a device of this size, once it is full, fits into the memory of this process.
fn check_memory(size: u64) -> Result<(), OpenError> {
    match MemoryLimit::here().filter(|limit| size > limit.bytes) {
        Some(limit) => Err(OpenError::TooMuchMemory { size, limit }),
        None => Ok(()),
    }
}

impl PreparedDevice for MemoryDevice {
    fn size_bytes(&self) -> u64 {
        self.grown().size
    }

    fn name(&self) -> String {
        "memory".to_owned()
    }

    fn refresh(&self) -> io::Result<u64> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "a memory device cannot be resized"))
    }

    fn grow(&self, size: u64) -> Result<(), OpenError> {
        check_memory(size)?;
        MemoryDevice::grow(self, size).map_err(|source| OpenError::Memory { size, source })
    }

    fn open(&self, _: &Ring, _: &Pool) -> Result<Box<dyn Device>, OpenError> {
        let (mut device, size) = (self.clone(), PreparedDevice::size_bytes(self));
        device.adopt(size).map_err(|source| OpenError::Memory { size, source })?;
        Ok(Box::new(device))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = SECTOR_BYTES;

    #[test]
    fn a_range_may_lie_in_several_mappings() {
        let mut device = MemoryDevice::new(2 * PAGE - 512);
        let mut other = device.clone();
        device.grow(3 * PAGE).expect("there is memory");
        device.grow(5 * PAGE).expect("there is memory");
        device.grow(PAGE).expect("it is as large");
        assert!(other.set_size(5 * PAGE).is_ok() && other.set_size(6 * PAGE).is_err());
        assert_eq!(Device::size_bytes(&device), 2 * PAGE - 512, "it has adopted nothing yet");
        device.set_size(5 * PAGE).expect("the device has grown");
        let bytes: Vec<u8> = (0..5 * PAGE).map(|at| (at % 251) as u8).collect();
        device.write_at(0, &bytes);
        let read = |device: &MemoryDevice, offset: usize, len: usize| {
            let mut into = vec![0; len];
            device.read_at(offset as u64, &mut into);
            into
        };
        for (offset, len) in [(0, 5 * PAGE), (PAGE, 3 * PAGE), (3 * PAGE + 1, 0), (8191, 2)] {
            let (offset, len) = (offset as usize, len as usize);
            assert_eq!(read(&other, offset, len), bytes[offset..offset + len]);
        }
        other.zero(PAGE, 3 * PAGE).expect("it can be forgotten");
        assert!(read(&device, 4096, 3 * 4096).iter().all(|&byte| byte == 0));
        assert_eq!(read(&device, 0, 4096), bytes[..4096]);
        assert_eq!(read(&device, 4 * 4096, 4096), bytes[4 * 4096..]);
    }

    /// Returns the number of pages of the first mapping that take memory.
    fn resident(device: &MemoryDevice) -> usize {
        let mapping = &device.bytes;
        let mut pages = vec![0u8; mapping.len() / SECTOR_BYTES as usize];
        // SAFETY: the range is the mapping's own, and `pages` has a byte for each of its pages.
        let result = unsafe {
            libc::mincore(mapping.start().as_ptr().cast(), mapping.len(), pages.as_mut_ptr())
        };
        assert_eq!(result, 0);
        pages.iter().filter(|&page| page & 1 == 1).count()
    }

    #[test]
    fn a_discard_gives_memory_back() {
        let mut device = MemoryDevice::new(64 * PAGE);
        assert_eq!(resident(&device), 0);
        device.write_at(0, &[7; 64 * PAGE as usize]);
        assert_eq!(resident(&device), 64);
        let action = Action::Discard { len: 48 * PAGE };
        device.submit(Operation { token: 0, offset: 8 * PAGE, action });
        assert_eq!(resident(&device), 16);
    }
}
