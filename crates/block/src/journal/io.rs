//! The journal's own I/O, for opening and creating a cache. Operations run one after the other, but
//! a long read is divided into parts, several of them in flight.
//!
//! A mirror has copies that may differ: by a crash in the middle of a write, or by damage. Before a
//! cache is opened, nothing has made the copies equal. So each reader that can detect damaged bytes
//! reads all copies and takes an intact one.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;

use floe_device::{Action, Completion, Device, Halves, Operation, Pool, Slice};

use super::layout::StoreError;
use crate::geometry::SECTOR_BYTES;

/// Size of the parts of a long read, and the most parts in flight.
const PIECE_BYTES: u64 = 1 << 20;
const SECTOR: usize = SECTOR_BYTES as usize;
const IN_FLIGHT: usize = 8;

/// Maximum number of units recorded for mending: 256 MiB at most.
const MOST_MENDS: usize = 8192;

/// Copies that differ in at most this many bytes differ by damage, not by a crash.
const FEW_BYTES: usize = 8;

/// A repair: the right bytes of a range that some copy of a device, or the device itself, lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mend {
    /// Offset on the cache device, in bytes.
    pub(crate) offset: u64,
    /// The right content of the range.
    pub(crate) bytes: Vec<u8>,
    /// The copies that are damaged in this range. Empty if intact copies differ, or the device has
    /// one copy.
    pub(crate) wrong: Halves,
}

/// A cache device without other I/O, with all that is needed to read and write it.
pub struct Io<'a> {
    /// The cache device.
    pub device: &'a mut dyn Device,
    /// Pool from which buffers are taken.
    pub pool: &'a Pool,
    /// Function that waits until the device may have finished an operation.
    pub wait: &'a mut dyn FnMut() -> io::Result<()>,
}

/// The units in which copies of a device are compared.
#[derive(Debug, Clone, Copy)]
pub(super) struct Units {
    pub(super) bytes: usize,
    /// Set if all copies are read, even where the first one is intact.
    pub(super) thorough: bool,
}

/// A part of a long read.
struct Piece {
    range: Range<u64>,
    reads: Vec<Read>,
}

/// A read of a part, from one copy where there are several.
struct Read {
    copy: Option<usize>,
    into: Slice,
    result: Option<io::Result<()>>,
}

impl Piece {
    /// Returns the bytes of each copy that could be read.
    fn found(&mut self) -> io::Result<Vec<(Option<usize>, Vec<u8>)>> {
        let (mut found, mut failure) = (Vec::new(), None);
        for Read { copy, into, result } in &mut self.reads {
            match result.take().expect("it has ended") {
                Ok(()) => found.push((*copy, into.to_vec())),
                Err(error) => failure = Some(error),
            }
        }
        match failure {
            Some(error) if found.is_empty() => Err(error),
            _ => Ok(found),
        }
    }
}

impl Io<'_> {
    /// Runs one operation to its end.
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

    /// Writes bytes, a multiple of a sector; with `durable`, waits until they survive a power cut.
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

    /// Writes the right content of a range, durably.
    pub(crate) fn mend(&mut self, mend: &Mend) -> Result<(), StoreError> {
        let Mend { offset, bytes, wrong } = mend;
        let from = self.pool.allocate(bytes.len()).slice(0..bytes.len());
        from.copy_from(bytes);
        let action = Action::Write { from, durable: true };
        self.device.mend(*wrong, Operation { token: 0, offset: *offset, action });
        let mut done = Vec::new();
        let result = self.poll(&mut done);
        let result = result.and_then(|()| done.pop().map_or(Ok(()), |it| it.result));
        let bytes = bytes.len() as u64;
        result.map_err(|source| StoreError::Io { doing: "writing", bytes, offset: *offset, source })
    }

    /// Reads a short range.
    ///
    /// # Errors
    /// When the device fails.
    pub fn read(&mut self, range: Range<u64>) -> Result<Vec<u8>, StoreError> {
        self.read_intact(range, |_, _| true)
    }

    /// Reads a short range, each sector from the first copy in which `is_intact` holds for the
    /// sector and its offset. A sector that is intact in no copy is read from the first.
    ///
    /// # Errors
    /// When no copy can be read.
    pub(crate) fn read_intact(
        &mut self,
        range: Range<u64>,
        is_intact: impl Fn(u64, &[u8]) -> bool,
    ) -> Result<Vec<u8>, StoreError> {
        let copies: Vec<Option<usize>> = self.copies();
        let (mut bytes, mut failure) = (None::<Vec<u8>>, None);
        for copy in copies {
            let mut found = Vec::new();
            let read = self.pieces(range.clone(), &[copy], |_, piece| {
                found.extend_from_slice(&piece[0].1);
                Ok(())
            });
            match (read, &mut bytes) {
                (Err(error), _) => failure = Some(error),
                (Ok(()), None) => bytes = Some(found),
                (Ok(()), Some(bytes)) => {
                    let offsets = (range.start..).step_by(SECTOR);
                    let sectors = bytes.chunks_mut(SECTOR).zip(found.chunks(SECTOR));
                    for (offset, (taken, other)) in offsets.zip(sectors) {
                        if !is_intact(offset, taken) && is_intact(offset, other) {
                            taken.copy_from_slice(other);
                        }
                    }
                }
            }
            let offsets = (range.start..).step_by(SECTOR);
            let is_whole = |bytes: &Vec<u8>| {
                bytes.chunks(SECTOR).zip(offsets).all(|(sector, offset)| is_intact(offset, sector))
            };
            if bytes.as_ref().is_some_and(is_whole) {
                break;
            }
        }
        bytes.ok_or_else(|| failure.expect("there is a copy"))
    }

    /// Reads a range of all copies. Adds to `mends` each sector that is damaged in some copies and
    /// not in others. `is_intact` returns `None` for a sector that cannot be checked.
    ///
    /// # Errors
    /// When no copy can be read.
    pub(crate) fn damaged_copies(
        &mut self,
        range: Range<u64>,
        is_intact: impl Fn(u64, &[u8]) -> Option<bool>,
        mends: &mut Vec<Mend>,
    ) -> Result<(), StoreError> {
        let copies = self.copies();
        self.pieces(range, &copies, |offset, found| {
            for at in (0..found[0].1.len()).step_by(SECTOR) {
                let (place, within) = (offset + at as u64, at..at + SECTOR);
                let told = |bytes: &Vec<u8>| is_intact(place, &bytes[within.clone()]);
                let wrong = found.iter().filter(|(_, bytes)| told(bytes) == Some(false));
                let wrong = wrong.filter_map(|(copy, _)| *copy).map(Halves::one);
                let wrong = wrong.fold(Halves::NONE, Halves::with);
                let good = found.iter().find(|(_, bytes)| told(bytes) == Some(true));
                if let Some((_, bytes)) = good.filter(|_| wrong != Halves::NONE) {
                    let bytes = bytes[within].to_vec();
                    mends.push(Mend { offset: place, bytes, wrong });
                }
            }
            Ok(())
        })
    }

    /// Returns the numbers of the device's copies, to be read in turn; a device with one copy
    /// yields `None` alone.
    fn copies(&self) -> Vec<Option<usize>> {
        match self.device.copies() {
            Halves::NONE => vec![None],
            copies => copies.iter().map(Some).collect(),
        }
    }

    /// Reads a range and passes it to `each` in order, in parts with their offsets. All parts but
    /// the last are a multiple of 1 MiB long. Ends with the first error of `each`.
    ///
    /// Where the first copy is damaged, or copies may differ, or `thorough` is set, all copies are
    /// read. Each unit is taken from the first copy in which `is_intact` holds for it; without any,
    /// from the first copy. Adds to `mends` what the other copies lack.
    pub(super) fn stream(
        &mut self,
        range: Range<u64>,
        Units { bytes: unit, thorough }: Units,
        is_intact: impl Fn(&[u8]) -> bool,
        mends: &mut Vec<Mend>,
        mut each: impl FnMut(u64, &[u8]) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let copies = self.copies();
        if copies.len() == 1 {
            return self.pieces(range, &copies, |offset, found| each(offset, &found[0].1));
        }
        let mut start = range.start;
        while start < range.end {
            let window = start..range.end.min(start + IN_FLIGHT as u64 * PIECE_BYTES);
            start = window.end;
            let differ = thorough || self.device.may_differ(window.clone());
            let (mut parts, mut is_whole) = (Vec::new(), !differ);
            let first = self.pieces(window.clone(), &copies[..1], |offset, found| {
                let bytes = std::mem::take(&mut found[0].1);
                is_whole &= bytes.chunks(unit).all(&is_intact);
                parts.push((offset, bytes));
                Ok(())
            });
            if first.is_ok() && is_whole {
                parts.iter().try_for_each(|(offset, bytes)| each(*offset, bytes))?;
                continue;
            }
            let mut found_mends = Vec::new();
            self.pieces(window, &copies, |offset, found| {
                choose(offset, found, unit, &is_intact, &mut found_mends);
                each(offset, &found[0].1)
            })?;
            for (mut mend, may_be_torn) in found_mends {
                let range = mend.offset..mend.offset + mend.bytes.len() as u64;
                if may_be_torn && self.device.may_differ(range) {
                    mend.wrong = Halves::NONE; // a crash came while it was written
                }
                if mends.len() < MOST_MENDS {
                    mends.push(mend);
                }
            }
        }
        Ok(())
    }

    /// Reads a range of all copies in parts, and passes the content of each part to `each`, in
    /// order. Ends with the first error of `each`.
    fn pieces(
        &mut self,
        range: Range<u64>,
        copies: &[Option<usize>],
        mut each: impl FnMut(u64, &mut [(Option<usize>, Vec<u8>)]) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let mut pieces: VecDeque<Piece> = VecDeque::new();
        let (mut next, mut first_token) = (range.start, 0);
        let (mut done, mut outcome) = (Vec::new(), Ok(()));
        let count = copies.len() as u64;
        loop {
            while outcome.is_ok() && pieces.len() < IN_FLIGHT && next < range.end {
                let piece = next..range.end.min(next + PIECE_BYTES);
                let token = first_token + pieces.len() as u64 * count;
                let begin = |(number, copy): (u64, &Option<usize>)| {
                    let into = self.pool.allocate((piece.end - piece.start) as usize).whole();
                    let (token, action) = (token + number, Action::Read(into.clone()));
                    let operation = Operation { token, offset: piece.start, action };
                    match copy {
                        Some(copy) => self.device.read_copy(*copy, operation),
                        None => self.device.submit(operation),
                    }
                    Read { copy: *copy, into, result: None }
                };
                let reads = (0..).zip(copies).map(begin).collect();
                next = piece.end;
                pieces.push_back(Piece { range: piece, reads });
            }
            let Some(front) = pieces.front_mut() else { return outcome };
            let (offset, bytes) = (front.range.start, front.range.end - front.range.start);
            let failed = |source| StoreError::Io { doing: "reading", bytes, offset, source };
            if front.reads.iter().all(|read| read.result.is_some()) {
                // Reads in flight are awaited even after a failure: their completions would be
                // taken for those of another operation.
                if outcome.is_ok() {
                    let found = front.found().map_err(failed);
                    outcome = found.and_then(|mut found| each(offset, &mut found));
                }
                pieces.pop_front();
                first_token += count;
                continue;
            }
            self.poll(&mut done).map_err(failed)?;
            for Completion { token, result } in done.drain(..) {
                let at = token - first_token;
                let read = &mut pieces[(at / count) as usize].reads[(at % count) as usize];
                read.result = Some(result);
            }
        }
    }
}

/// Replaces each unit of the first copy by the one from the first copy in which it is intact. Adds
/// to `mends` the differences, and whether a crash may be the cause.
fn choose(
    offset: u64,
    found: &mut [(Option<usize>, Vec<u8>)],
    unit: usize,
    is_intact: impl Fn(&[u8]) -> bool,
    mends: &mut Vec<(Mend, bool)>,
) {
    for at in (0..found[0].1.len()).step_by(unit) {
        let within = at..found[0].1.len().min(at + unit);
        let part = |copy: usize| &found[copy].1[within.clone()];
        if (1..found.len()).all(|copy| part(copy) == part(0)) {
            continue;
        }
        let intact: Vec<bool> = (0..found.len()).map(|copy| is_intact(part(copy))).collect();
        let Some(chosen) = intact.iter().position(|intact| *intact) else { continue };
        let bytes = part(chosen).to_vec();
        let is_far = |copy: usize| {
            let pairs = part(copy).iter().zip(&bytes);
            pairs.filter(|(one, other)| one != other).count() > FEW_BYTES
        };
        let may_be_torn = (0..found.len()).any(|copy| !intact[copy] && is_far(copy));
        let damaged = found.iter().zip(&intact).filter(|(_, intact)| !**intact);
        let wrong = damaged.filter_map(|((copy, _), _)| *copy).map(Halves::one);
        let wrong = wrong.fold(Halves::NONE, Halves::with);
        found[0].1[within].copy_from_slice(&bytes);
        mends.push((Mend { offset: offset + at as u64, bytes, wrong }, may_be_torn));
    }
}
