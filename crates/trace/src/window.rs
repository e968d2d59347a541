//! A window that slides over the decompressed bytes of a trace.
//!
//! Invariant: `offset_bytes` is the place of the window's first byte in the decompressed stream.

use std::io::{ErrorKind, Read, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Room for decompressed bytes. A record longer than this cannot be read.
pub(crate) const WINDOW_BYTES: usize = 256 << 10;

/// The window.
pub(crate) struct Window {
    reader: Box<dyn Read + Send>,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    offset_bytes: u64,
    ended: bool,
}

impl Window {
    /// An empty window at the start of `reader`.
    pub(crate) fn new(reader: Box<dyn Read + Send>) -> Self {
        let buffer = vec![0; WINDOW_BYTES].into_boxed_slice();
        Self { reader, buffer, start: 0, end: 0, offset_bytes: 0, ended: false }
    }

    /// The bytes in the window.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Where the window starts in the stream.
    pub(crate) fn offset_bytes(&self) -> u64 {
        self.offset_bytes
    }

    /// Returns whether the stream ends where the window does.
    pub(crate) fn ended(&self) -> bool {
        self.ended
    }

    /// Moves the window's start forward.
    pub(crate) fn consume(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.end - self.start);
        self.start += bytes;
        self.offset_bytes += bytes as u64;
    }

    /// Reads on until the window holds at least `wanted_bytes`, is full, or the stream ends.
    pub(crate) fn fill(&mut self, wanted_bytes: usize) -> Result<()> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        while !self.ended && self.end < wanted_bytes.min(self.buffer.len()) {
            match self.reader.read(&mut self.buffer[self.end..]) {
                Ok(0) => self.ended = true,
                Ok(read) => self.end += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Counts what is read from the file as it is on disk.
pub(crate) struct Counted<R> {
    pub(crate) reader: R,
    pub(crate) bytes_read: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let read = self.reader.read(buffer)?;
        self.bytes_read.fetch_add(read as u64, Relaxed);
        Ok(read)
    }
}
