//! Several devices as one, chunk by chunk in turn (RAID-0).
//!
//! A request is split at chunk borders and its parts go to the members; it ends when the last part
//! has, with the first error if there was one. A flush goes to every member. Nothing is redundant:
//! a member that fails takes its share of the bytes with it.
//!
//! Invariants: a flight's `left` is the number of parts whose completion has not come, so a slot is
//! used again only when no member can still name it; members get aligned ranges, since chunks and
//! the stripe's size are whole sectors.

use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::range::clip;
use crate::{Action, Completion, Device, Extent, Operation, SECTOR_BYTES, check_inside};

mod layout;

pub(crate) use layout::Layout;

/// Bytes in a row on one member unless told otherwise: the largest block the cache keeps, so that
/// an aligned block is one operation on one member, while larger requests and neighbouring blocks
/// keep several members busy.
pub const CHUNK_BYTES: u64 = 256 << 10;

/// The number of chunks that one look at the allocation covers.
const ALLOCATION_PARTS_MAX: usize = 64;

/// A device made of equal shares of others.
#[derive(Debug)]
pub struct StripeDevice<D> {
    members: Vec<D>,
    layout: Layout,
    size: u64,
    flights: Vec<Flight>,
    free: Vec<usize>,
    /// Ended without any member: refused, or nothing to do.
    early: Vec<Completion>,
    finished: Vec<Completion>,
    extents: Vec<Extent>,
}

#[derive(Debug)]
struct Flight {
    token: u64,
    left: usize,
    result: io::Result<()>,
}

impl<D: Device> StripeDevice<D> {
    /// Stripes `members` in chunks of `chunk` bytes. Each member counts with the whole chunks of
    /// the smallest.
    ///
    /// # Panics
    /// When there is no member, or `chunk` is not a positive multiple of [`SECTOR_BYTES`].
    pub fn new(members: Vec<D>, chunk: u64) -> StripeDevice<D> {
        assert!(chunk > 0 && chunk.is_multiple_of(SECTOR_BYTES), "chunks of {chunk} bytes");
        let smallest = members.iter().map(D::size_bytes).min().expect("a stripe has members");
        let layout = Layout { members: members.len() as u64, chunk };
        StripeDevice {
            members,
            layout,
            size: layout.capacity(smallest),
            flights: Vec::new(),
            free: Vec::new(),
            early: Vec::new(),
            finished: Vec::new(),
            extents: Vec::new(),
        }
    }

    /// The same, of its first `size` bytes only.
    ///
    /// # Panics
    /// When there are fewer, or `size` is not a multiple of [`SECTOR_BYTES`].
    pub fn cut_to(self, size: u64) -> StripeDevice<D> {
        assert!(size <= self.size && size.is_multiple_of(SECTOR_BYTES), "{size} of {}", self.size);
        StripeDevice { size, ..self }
    }

    /// A slot for an operation in no parts yet.
    fn take_off(&mut self, token: u64) -> usize {
        let flight = Flight { token, left: 0, result: Ok(()) };
        match self.free.pop() {
            Some(slot) => {
                self.flights[slot] = flight;
                slot
            }
            None => {
                self.flights.push(flight);
                self.flights.len() - 1
            }
        }
    }

    fn start(&mut self, slot: usize, member: usize, offset: u64, action: Action) {
        self.flights[slot].left += 1;
        self.members[member].submit(Operation { token: slot as u64, offset, action });
    }

    fn begin(&mut self, operation: Operation) -> io::Result<()> {
        let Operation { token, offset, .. } = operation;
        let len = clip(&operation, self.size)?;
        let (layout, range) = (self.layout, offset..offset.saturating_add(len));
        if len == 0 && !matches!(operation.action, Action::Flush) {
            self.early.push(Completion { token, result: Ok(()) });
            return Ok(());
        }
        let slot = self.take_off(token);
        match operation.action {
            Action::Read(into) => {
                let mut done = 0;
                for part in layout.parts(range) {
                    let slice = into.slice(done..done + part.len as usize);
                    done += part.len as usize;
                    self.start(slot, part.member, part.offset, Action::Read(slice));
                }
            }
            Action::Write { from, durable } => {
                let mut done = 0;
                for part in layout.parts(range) {
                    let from = from.slice(done..done + part.len as usize);
                    done += part.len as usize;
                    self.start(slot, part.member, part.offset, Action::Write { from, durable });
                }
            }
            Action::Zero { may_unmap, fast, .. } => {
                for span in layout.spans(range) {
                    let action = Action::Zero { len: span.len, may_unmap, fast };
                    self.start(slot, span.member, span.offset, action);
                }
            }
            Action::Discard { .. } => {
                for span in layout.spans(range) {
                    self.start(slot, span.member, span.offset, Action::Discard { len: span.len });
                }
            }
            Action::Flush => {
                for member in 0..self.members.len() {
                    self.start(slot, member, 0, Action::Flush);
                }
            }
        }
        Ok(())
    }
}

impl<D: Device> Device for StripeDevice<D> {
    fn size_bytes(&self) -> u64 {
        self.size
    }

    fn submit(&mut self, operation: Operation) {
        let token = operation.token;
        if let Err(error) = self.begin(operation) {
            self.early.push(Completion { token, result: Err(error) });
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.early);
        for member in &mut self.members {
            member.poll(&mut self.finished);
        }
        for Completion { token: slot, result } in self.finished.drain(..) {
            let flight = &mut self.flights[slot as usize];
            flight.left -= 1;
            if flight.result.is_ok() {
                flight.result = result;
            }
            if flight.left == 0 {
                let result = std::mem::replace(&mut flight.result, Ok(()));
                done.push(Completion { token: flight.token, result });
                self.free.push(slot as usize);
            }
        }
    }

    fn set_size(&mut self, bytes: u64) -> io::Result<()> {
        if bytes == 0 || !bytes.is_multiple_of(SECTOR_BYTES) {
            let message =
                format!("a stripe of {bytes} bytes is not a positive multiple of {SECTOR_BYTES}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let needed = self.layout.member_bytes(bytes);
        for member in self.members.iter_mut().filter(|member| member.size_bytes() < needed) {
            member.set_size(needed)?;
        }
        self.size = bytes;
        Ok(())
    }

    fn allocation(&mut self, range: Range<u64>, extents: &mut Vec<Extent>) {
        check_inside(&range, self.size);
        let first = extents.len();
        for part in self.layout.parts(range).take(ALLOCATION_PARTS_MAX) {
            let before = self.extents.len();
            self.members[part.member]
                .allocation(part.offset..part.offset + part.len, &mut self.extents);
            let known: u64 = self.extents[before..].iter().map(|extent| extent.bytes).sum();
            if known < part.len {
                break;
            }
        }
        for extent in self.extents.drain(..) {
            match extents[first..].last_mut() {
                Some(last) if (last.allocated, last.zero) == (extent.allocated, extent.zero) => {
                    last.bytes += extent.bytes;
                }
                _ => extents.push(extent),
            }
        }
    }

    fn set_timeout(&mut self, timeout: Duration) {
        self.members.iter_mut().for_each(|member| member.set_timeout(timeout));
    }

    fn spun(&self) -> Duration {
        self.members.iter().map(D::spun).sum()
    }

    fn next_due(&self) -> Option<Instant> {
        let early = (!self.early.is_empty()).then(Instant::now);
        self.members.iter().filter_map(D::next_due).chain(early).min()
    }
}
