//! The journal's own I/O, for opening and creating a cache. Operations run one after the other, but
//! a long read is divided into parts, several of them in flight.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;

use floe_device::{Action, Completion, Device, Operation, Pool, Slice};

use super::error::StoreError;

/// Size of the parts of a long read, and the most parts in flight.
const PIECE_BYTES: u64 = 1 << 20;
const IN_FLIGHT: usize = 8;

/// A cache device on which nothing else is under way.
pub struct Io<'a> {
    /// The device.
    pub device: &'a mut dyn Device,
    /// Source of buffers.
    pub pool: &'a Pool,
    /// Waits until the device may have finished something.
    pub wait: &'a mut dyn FnMut() -> io::Result<()>,
}

/// A part of a long read.
struct Piece {
    range: Range<u64>,
    into: Slice,
    result: Option<io::Result<()>>,
}

impl Io<'_> {
    /// Carries one operation out.
    fn run(&mut self, offset: u64, action: Action) -> io::Result<()> {
        self.device.submit(Operation { token: 0, offset, action });
        let mut done = Vec::new();
        self.poll(&mut done)?;
        done.pop().map_or(Ok(()), |completion| completion.result)
    }

    /// Waits until at least one operation has finished.
    fn poll(&mut self, done: &mut Vec<Completion>) -> io::Result<()> {
        loop {
            self.device.poll(done);
            if !done.is_empty() {
                return Ok(());
            }
            (self.wait)()?;
        }
    }

    /// Writes bytes, a multiple of a sector; once it is answered, `durable` ones survive a power
    /// cut.
    pub(crate) fn write(
        &mut self,
        offset: u64,
        bytes: &[u8],
        durable: bool,
    ) -> Result<(), StoreError> {
        let from = self.pool.allocate(bytes.len()).whole();
        from.copy_from(bytes);
        let result = self.run(offset, Action::Write { from, durable });
        result.map_err(|source| StoreError::Io {
            doing: "writing",
            bytes: bytes.len() as u64,
            offset,
            source,
        })
    }

    /// Writes bytes, a multiple of a sector, so that they survive a power cut.
    ///
    /// # Errors
    /// When the device fails.
    pub fn write_durably(&mut self, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        self.write(offset, bytes, true)
    }

    /// Makes everything written so far survive a power cut.
    pub(super) fn flush(&mut self) -> Result<(), StoreError> {
        let bytes = self.device.size_bytes();
        let result = self.run(0, Action::Flush);
        result.map_err(|source| StoreError::Io { doing: "flushing", bytes, offset: 0, source })
    }

    /// Reads a short range.
    ///
    /// # Errors
    /// When the device fails.
    pub fn read(&mut self, range: Range<u64>) -> Result<Vec<u8>, StoreError> {
        let mut bytes = Vec::new();
        self.stream(range, |_, piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(bytes)
    }

    /// Reads a range and passes it to `each` in order, in parts with their offsets. All parts but
    /// the last are a multiple of a page long. Ends with the first error of `each`.
    pub(super) fn stream(
        &mut self,
        range: Range<u64>,
        mut each: impl FnMut(u64, &[u8]) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let mut pieces: VecDeque<Piece> = VecDeque::new();
        let (mut next, mut first_token) = (range.start, 0);
        let (mut done, mut scratch) = (Vec::new(), Vec::new());
        let mut outcome = Ok(());
        loop {
            while outcome.is_ok() && pieces.len() < IN_FLIGHT && next < range.end {
                let piece = next..range.end.min(next + PIECE_BYTES);
                let into = self.pool.allocate((piece.end - piece.start) as usize).whole();
                let token = first_token + pieces.len() as u64;
                self.device.submit(Operation {
                    token,
                    offset: next,
                    action: Action::Read(into.clone()),
                });
                next = piece.end;
                pieces.push_back(Piece { range: piece, into, result: None });
            }
            let Some(front) = pieces.front_mut() else { return outcome };
            let (offset, bytes) = (front.range.start, front.range.end - front.range.start);
            let failed = |source| StoreError::Io { doing: "reading", bytes, offset, source };
            match front.result.take() {
                Some(result) => {
                    // Reads in flight are awaited even after a failure: their completions would be
                    // taken for those of another operation.
                    if outcome.is_ok() {
                        scratch.resize(bytes as usize, 0);
                        front.into.copy_to(&mut scratch);
                        outcome = result.map_err(failed).and_then(|()| each(offset, &scratch));
                    }
                    pieces.pop_front();
                    first_token += 1;
                }
                None => {
                    self.poll(&mut done).map_err(failed)?;
                    for Completion { token, result } in done.drain(..) {
                        pieces[(token - first_token) as usize].result = Some(result);
                    }
                }
            }
        }
    }
}
