//! A stripe (RAID-0): one device whose chunks lie on several devices in turn.
//!
//! A request is split at chunk borders and its parts go to the members. It ends when the last part
//! has, with the first error if there was one. A flush goes to every member. There is no
//! redundancy: if a member fails, its share of the bytes is lost.
//!
//! Invariants: a slot is reused only when no member can still refer to it. Members get aligned
//! ranges, since chunks and the stripe's size are whole sectors.

use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use std::{fmt, io};

use crate::buffer::{Pool, SECTOR_BYTES};
use crate::device::{Action, Completion, Device, Extent, Operation, check_inside, clip};
use crate::file::{FileSpec, OpenError};
use crate::identity::Identity;
use crate::nbd::{NbdName, is_export};
use crate::queue::Queue;
use crate::rbd::RbdName;
use crate::ring::Ring;
use crate::source::{Imitation, PreparedDevice, Source};
use crate::spec::{DeviceSpec, Exact, Setting, SpecError, Wanted};

/// The default chunk size in bytes. It is the largest block of the cache, so an aligned block is
/// one operation on one member. Larger requests and neighbouring blocks keep several members busy.
pub const CHUNK_BYTES: u64 = 256 << 10;

/// Maximum number of chunks that one allocation query covers.
const ALLOCATION_PARTS_MAX: usize = 64;

/// A device striped over equal shares of other devices.
#[derive(Debug)]
pub struct StripeDevice<D> {
    members: Vec<D>,
    layout: Layout,
    size: u64,
    queue: Queue<StripeOperation>,
    finished: Vec<Completion>,
    extents: Vec<Extent>,
}

#[derive(Debug)]
struct StripeOperation {
    token: u64,
    /// The number of parts not yet completed.
    left: usize,
    result: io::Result<()>,
}

impl<D: Device> StripeDevice<D> {
    /// Stripes `members` in chunks of `chunk` bytes. Of each member, as many whole chunks are used
    /// as the smallest member has.
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
            queue: Queue::default(),
            finished: Vec::new(),
            extents: Vec::new(),
        }
    }

    /// Limits the stripe to its first `size` bytes.
    ///
    /// # Panics
    /// When the stripe is smaller, or `size` is not a multiple of [`SECTOR_BYTES`].
    pub fn cut_to(self, size: u64) -> StripeDevice<D> {
        assert!(size <= self.size && size.is_multiple_of(SECTOR_BYTES), "{size} of {}", self.size);
        StripeDevice { size, ..self }
    }

    fn start(&mut self, slot: usize, member: usize, offset: u64, action: Action) {
        self.queue[slot].left += 1;
        self.members[member].submit(Operation { token: slot as u64, offset, action });
    }

    fn begin(&mut self, operation: Operation) -> io::Result<()> {
        let Operation { token, offset, .. } = operation;
        let len = clip(&operation, self.size)?;
        let (layout, range) = (self.layout, offset..offset.saturating_add(len));
        if len == 0 && !matches!(operation.action, Action::Flush) {
            self.queue.end(token, Ok(()));
            return Ok(());
        }
        let slot = self.queue.insert(StripeOperation { token, left: 0, result: Ok(()) });
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
            self.queue.end(token, Err(error));
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.queue.take_ended(done);
        for member in &mut self.members {
            member.poll(&mut self.finished);
        }
        for Completion { token: slot, result } in self.finished.drain(..) {
            let operation = &mut self.queue[slot as usize];
            operation.left -= 1;
            if operation.result.is_ok() {
                operation.result = result;
            }
            if operation.left == 0 {
                let StripeOperation { token, result, .. } = self.queue.remove(slot as usize);
                done.push(Completion { token, result });
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
        self.members.iter().filter_map(D::next_due).chain(self.queue.next_due()).min()
    }
}

/// The layout of a stripe (RAID-0): its chunks lie on the members in turn. A range of the stripe is
/// one contiguous range on every member that it touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Layout {
    members: u64,
    chunk: u64,
}

/// A contiguous part of a range, on one member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    member: usize,
    /// The first byte on that member.
    offset: u64,
    len: u64,
}

impl Layout {
    /// Returns the size in bytes of a stripe whose smallest member has `member_bytes`, in whole
    /// chunks.
    fn capacity(self, member_bytes: u64) -> u64 {
        (member_bytes / self.chunk * self.chunk).saturating_mul(self.members)
    }

    /// Returns the bytes that each member needs for a stripe of `bytes`.
    fn member_bytes(self, bytes: u64) -> u64 {
        bytes.div_ceil(self.chunk.saturating_mul(self.members)).saturating_mul(self.chunk)
    }

    /// Splits a range into chunks, in order.
    fn parts(self, range: Range<u64>) -> impl Iterator<Item = Part> {
        let mut at = range.start;
        std::iter::from_fn(move || {
            let (chunk, into) = (at / self.chunk, at % self.chunk);
            let len = (self.chunk - into).min(range.end.checked_sub(at).filter(|&left| left > 0)?);
            at += len;
            let member = (chunk % self.members) as usize;
            Some(Part { member, offset: chunk / self.members * self.chunk + into, len })
        })
    }

    /// Returns the contiguous part of the range on each member that has some of it.
    fn spans(self, range: Range<u64>) -> impl Iterator<Item = Part> {
        (0..self.members).filter_map(move |member| {
            let (start, end) = (self.before(member, range.start), self.before(member, range.end));
            (start < end).then_some(Part {
                member: member as usize,
                offset: start,
                len: end - start,
            })
        })
    }

    /// Returns how many of the stripe's first `bytes` bytes lie on a member.
    fn before(self, member: u64, bytes: u64) -> u64 {
        let row = self.chunk * self.members;
        let into = (bytes % row).saturating_sub(member * self.chunk).min(self.chunk);
        bytes / row * self.chunk + into
    }
}

/// The specification of a stripe of paths, Ceph images or exports.
#[derive(Debug)]
pub(crate) struct StripeSpec {
    members: Vec<Box<dyn DeviceSpec>>,
    chunk: u64,
    size: Option<u64>,
    /// The files and disks among the members.
    paths: Vec<PathBuf>,
}

impl StripeSpec {
    pub(crate) fn parse(spec: &str, text: &str) -> Result<Box<dyn DeviceSpec>, SpecError> {
        let texts = split_members(text);
        if texts.len() < 2 || texts.iter().any(|text| text.is_empty()) {
            return Err(SpecError::FewPaths(spec.to_owned()));
        }
        for (at, path) in texts.iter().enumerate() {
            if texts[..at].contains(path) {
                return Err(SpecError::SamePath(spec.to_owned(), (*path).to_owned()));
            }
        }
        let images = texts.iter().filter(|text| text.starts_with("rbd:")).count();
        let exports = texts.iter().filter(|text| is_export(text)).count();
        if [images, exports].iter().any(|count| ![0, texts.len()].contains(count)) {
            return Err(SpecError::MixedMembers(spec.to_owned()));
        }
        let parse = |text: &&str| match text.strip_prefix("rbd:") {
            Some(image) => RbdName::parse_spec(spec, image),
            None if is_export(text) => NbdName::parse_spec(spec, text),
            None => FileSpec::parse(spec, text),
        };
        let members = texts.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
        let paths = members.iter().flat_map(|member| member.paths()).cloned().collect();
        Ok(Box::new(StripeSpec { members, chunk: CHUNK_BYTES, size: None, paths }))
    }

    fn layout(&self) -> Layout {
        Layout { members: self.members(), chunk: self.chunk }
    }
}

/// Splits a text at each `+` into members of a stripe or halves of a mirror. The `+` in
/// `nbd+unix://` does not count.
pub(crate) fn split_members(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut begin = 0;
    for (at, _) in text.match_indices('+') {
        let is_scheme = matches!(&text[begin..at], "nbd" | "nbds");
        if !(is_scheme && text[at + 1..].starts_with("unix://")) {
            parts.push(&text[begin..at]);
            begin = at + 1;
        }
    }
    parts.push(&text[begin..]);
    parts
}

impl DeviceSpec for StripeSpec {
    fn kind(&self) -> &'static str {
        "stripe"
    }

    fn title(&self) -> String {
        let names = self.members.iter().map(|member| match member.paths() {
            [path] => path.display().to_string(),
            _ => member.title(),
        });
        format!("stripe:{}", names.collect::<Vec<_>>().join("+"))
    }

    fn write_settings(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, ",chunk={}", Exact(self.chunk))?;
        self.size.map_or(Ok(()), |size| write!(f, ",size={}", Exact(size)))?;
        self.members[0].write_settings(f)
    }

    fn settings(&self) -> &'static str {
        match self.members[0].kind() {
            "nbd" => {
                "chunk=SIZE, size=SIZE, timeout=TIME, medium=NAME, interference=off, iops=N and \
                 bandwidth=SIZE"
            }
            "rbd" => {
                "chunk=SIZE, size=SIZE, id=USER, conf=FILE, timeout=TIME, medium=NAME, \
                 interference=off, iops=N and bandwidth=SIZE"
            }
            _ => {
                "chunk=SIZE, size=SIZE, write-cache=volatile, medium=NAME, interference=off, \
                 iops=N and bandwidth=SIZE"
            }
        }
    }

    fn set(&mut self, setting: &Setting<'_>) -> Result<bool, SpecError> {
        match setting.name {
            "size" => self.size = Some(setting.size(SECTOR_BYTES)?),
            "chunk" => self.chunk = setting.size(SECTOR_BYTES)?,
            _ => {
                for member in &mut self.members {
                    if !member.set(setting)? {
                        return Ok(false);
                    }
                }
            }
        }
        Ok(true)
    }

    fn size_bytes(&self) -> Option<u64> {
        self.size
    }

    fn size_found(&self) -> Option<u64> {
        let found = || {
            let sizes = self.members.iter().map(|member| member.size_found());
            let smallest = sizes.collect::<Option<Vec<_>>>()?.into_iter().min()?;
            Some(self.layout().capacity(smallest)).filter(|&bytes| bytes > 0)
        };
        self.size.or_else(found)
    }

    fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    fn names(&self) -> Vec<String> {
        self.members.iter().flat_map(|member| member.names()).collect()
    }

    fn is_remote(&self) -> bool {
        self.members[0].is_remote()
    }

    fn members(&self) -> u64 {
        self.members.len() as u64
    }

    fn chunk_bytes(&self) -> Option<u64> {
        Some(self.chunk)
    }

    fn prepare(&self, wanted: &Wanted<'_>) -> Result<Source, OpenError> {
        let (layout, chunk) = (self.layout(), self.chunk);
        if let (Some(room), Some(wanted)) = (self.size, wanted.size)
            && room != wanted
        {
            return Err(OpenError::StripeSize { room, wanted, chunk });
        }
        if let Some(size) = wanted.size
            && !size.is_multiple_of(SECTOR_BYTES)
        {
            return Err(OpenError::StripeUnit(size));
        }
        let members = (0..).zip(&self.members).map(|(number, member)| {
            let is_made = member.paths().iter().any(|path| !path.exists());
            let size = wanted.size.filter(|_| is_made).map(|size| layout.member_bytes(size));
            let Wanted { role, imitation, witness, .. } = *wanted;
            member.prepare(&Wanted { size, role, imitation, number, witness })
        });
        let members = members.collect::<Result<Vec<_>, _>>()?;
        let stripe = StripeSource { members, layout, size: wanted.size };
        let needed = wanted.size.unwrap_or(SECTOR_BYTES);
        if stripe.room() < needed {
            return Err(OpenError::StripeSize { room: stripe.room(), wanted: needed, chunk });
        }
        // Each member imitates what the text says.
        Ok(Source::new(stripe, &Imitation::default(), 0))
    }
}

/// A prepared stripe with its members.
#[derive(Debug)]
struct StripeSource {
    members: Vec<Source>,
    layout: Layout,
    /// The requested size in bytes, which may be less than the members have room for.
    size: Option<u64>,
}

impl StripeSource {
    /// Returns the size in bytes of the largest stripe that the members have room for.
    fn room(&self) -> u64 {
        let smallest = self.members.iter().map(Source::size_bytes).min().unwrap_or(0);
        self.layout.capacity(smallest)
    }
}

impl PreparedDevice for StripeSource {
    fn size_bytes(&self) -> u64 {
        self.size.unwrap_or_else(|| self.room())
    }

    fn name(&self) -> String {
        self.members.iter().map(Source::name).collect::<Vec<_>>().join("+")
    }

    fn identity(&self) -> Identity {
        Identity::of_stripe(&self.members.iter().map(Source::identity).collect::<Vec<_>>())
    }

    fn has_kernel_name(&self) -> bool {
        self.members.iter().any(Source::has_kernel_name)
    }

    fn refresh(&self) -> io::Result<u64> {
        self.members.iter().try_for_each(|member| member.refresh().map(drop))?;
        let room = self.room();
        if room < self.size.unwrap_or(SECTOR_BYTES) {
            let message = format!("the stripe's members have room for {room} bytes only");
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        Ok(self.size_bytes())
    }

    fn open(&self, ring: &Ring, pool: &Pool) -> Result<Box<dyn Device>, OpenError> {
        let members = self.members.iter().map(|member| member.open(ring, pool));
        let members = members.collect::<Result<Vec<_>, _>>()?;
        let stripe = StripeDevice::new(members, self.layout.chunk);
        Ok(Box::new(stripe.cut_to(self.size_bytes())))
    }
}

#[cfg(test)]
mod layout_tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn spans_and_parts_are_the_same_bytes_and_every_byte_has_its_own_place(
            members in 1u64..6, chunk in 1u64..9, start in 0u64..200, len in 0u64..100,
        ) {
            let layout = Layout { members, chunk };
            let bytes = |part: Part| {
                (part.offset..part.offset + part.len).map(move |at| (part.member, at))
            };
            let parts: Vec<_> = layout.parts(start..start + len).flat_map(bytes).collect();
            for (at, place) in (start..).zip(&parts) {
                let (chunk_number, into) = (at / chunk, at % chunk);
                let (row, member) = (chunk_number / members, chunk_number % members);
                prop_assert_eq!(*place, (member as usize, row * chunk + into));
                prop_assert!(place.1 < layout.member_bytes(start + len));
            }
            prop_assert_eq!(parts.len() as u64, len);
            let mut sorted = parts;
            sorted.sort_unstable();
            let spans: Vec<_> = layout.spans(start..start + len).flat_map(bytes).collect();
            prop_assert_eq!(spans, sorted);
        }

        #[test]
        fn a_stripe_fits_on_members_of_the_size_it_asks_for(
            members in 1u64..6, chunk in 1u64..9, bytes in 0u64..999,
        ) {
            let layout = Layout { members, chunk };
            prop_assert!(layout.capacity(layout.member_bytes(bytes)) >= bytes);
            let less = layout.member_bytes(bytes).saturating_sub(1);
            prop_assert!(bytes == 0 || layout.capacity(less) < bytes);
        }
    }
}
