//! Verifies that reads return the data that was written.
//!
//! Each write stores bytes made from their address and its version ([`pattern`]); [`spans`] knows
//! which versions each byte may have. A write that has been answered ends every version that was
//! answered before it began. A read may see what was there when it began and whatever was written
//! while it was under way. When several versions are possible and a read has seen one with no write
//! near, that one it stays: a cache may not change its mind about it.
//!
//! Bytes never written are checked where the volume was known to be zero. Trimmed ranges are not
//! checked at all.

mod pattern;
mod spans;

use std::fmt;
use std::ops::Range;

use floe_device::{SECTOR_BYTES, Slice};

use pattern::Pattern;
use spans::{Candidates, Spans};

/// A request under way, by the caller's name for it.
pub(super) type Ticket = u64;

/// The content of a volume at the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Zeros.
    Zero,
    /// Unknown content.
    Unknown,
}

/// Versions with this bit may be any bytes.
const ANY: u64 = 1;
const ZERO: u64 = 0;

/// Bytes that should not be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// The volume.
    pub volume: usize,
    /// The first wrong byte.
    pub address: u64,
    /// The requests of the trace, counted from 1, whose bytes it may hold; 0 is what was there
    /// before.
    pub wanted: Vec<u64>,
    /// The eight bytes found from there on, or as many as were read.
    pub found: Vec<u8>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let writer = |request: &u64| match request {
            0 => "zeros, as nobody wrote there".to_owned(),
            request => format!("what request {request} wrote"),
        };
        let wanted = self.wanted.iter().map(writer).collect::<Vec<_>>().join(" or ");
        let found =
            self.found.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ");
        write!(
            f,
            "byte {} of volume {} should be {wanted}, and is not: {found}",
            self.address, self.volume
        )
    }
}

impl std::error::Error for Mismatch {}

/// The operations under way.
#[derive(Debug)]
enum Under {
    /// A write or a trim: its version, and the versions of those it overlaps in place and time.
    Write { version: u64, beside: Vec<u64> },
    /// A read: what each part of it may be, and whether nothing has disturbed it.
    Read { parts: Vec<(Range<u64>, Candidates)>, quiet: bool },
}

#[derive(Debug)]
struct Request {
    ticket: Ticket,
    volume: usize,
    range: Range<u64>,
    under: Under,
}

/// Fills what is written, checks what is read.
#[derive(Debug)]
pub(super) struct Verifier {
    volumes: Vec<Spans>,
    under_way: Vec<Request>,
    scratch: Vec<u8>,
    checked_bytes: u64,
}

impl Verifier {
    /// A verifier of volumes with this content.
    pub(super) fn new(volumes: impl IntoIterator<Item = Content>) -> Self {
        let spans = |content| Spans::new(if content == Content::Zero { ZERO } else { ANY });
        Self {
            volumes: volumes.into_iter().map(spans).collect(),
            under_way: Vec::new(),
            scratch: Vec::new(),
            checked_bytes: 0,
        }
    }

    /// Bytes that were compared with what they should be.
    pub(super) fn checked_bytes(&self) -> u64 {
        self.checked_bytes
    }

    /// Begins the write of a payload, and makes its bytes. `ticket` is the request's number in the
    /// trace, from 1.
    pub(super) fn write_begins(
        &mut self,
        ticket: Ticket,
        volume: usize,
        offset: u64,
        payload: &Slice,
    ) {
        let version = ticket << 1;
        fill(ticket, volume, offset, payload, &mut self.scratch);
        self.change_begins(ticket, volume, offset..offset + payload.len() as u64, version);
    }

    /// Begins a trim: only whole sectors are forgotten.
    pub(super) fn trim_begins(&mut self, ticket: Ticket, volume: usize, range: Range<u64>) {
        let start = range.start.next_multiple_of(SECTOR_BYTES);
        // The last sector of a volume may be a short one: take it whole, which is checked less, not
        // wrongly.
        let end = range.end.next_multiple_of(SECTOR_BYTES).max(start);
        self.change_begins(ticket, volume, start..end, ticket << 1 | ANY);
    }

    fn change_begins(&mut self, ticket: Ticket, volume: usize, range: Range<u64>, version: u64) {
        let mut beside = Vec::new();
        for other in self.under_way.iter_mut().filter(|other| other.volume == volume) {
            let common = range.start.max(other.range.start)..range.end.min(other.range.end);
            if common.is_empty() {
                continue;
            }
            match &mut other.under {
                Under::Write { version, .. } => beside.push(*version),
                Under::Read { parts, quiet } => {
                    *quiet = false;
                    for (part, candidates) in parts {
                        if part.start < common.end && common.start < part.end {
                            candidates.add(version);
                        }
                    }
                }
            }
        }
        if !range.is_empty() {
            self.volumes[volume].may_become(&range, version);
        }
        self.under_way.push(Request {
            ticket,
            volume,
            range,
            under: Under::Write { version, beside },
        });
    }

    /// Begins a read.
    pub(super) fn read_begins(&mut self, ticket: Ticket, volume: usize, range: Range<u64>) {
        let parts = self.volumes[volume].of(&range);
        let writes = |other: &Request| {
            matches!(other.under, Under::Write { .. })
                && other.volume == volume
                && other.range.start < range.end
                && range.start < other.range.end
        };
        let quiet = !self.under_way.iter().any(writes);
        self.under_way.push(Request { ticket, volume, range, under: Under::Read { parts, quiet } });
    }

    /// Ends a request that has succeeded; a read brings what it read.
    ///
    /// # Errors
    /// The first byte that should not be there.
    ///
    /// # Panics
    /// When no such request has begun.
    pub(super) fn ends(&mut self, ticket: Ticket, payload: Option<&Slice>) -> Result<(), Mismatch> {
        let at = self.under_way.iter().position(|request| request.ticket == ticket);
        let request = self.under_way.swap_remove(at.expect("what ends has begun"));
        match request.under {
            Under::Write { version, beside } => {
                let keep = |other: u64| other >= version || beside.contains(&other);
                if !request.range.is_empty() {
                    self.volumes[request.volume].settle(&request.range, version, keep);
                }
                Ok(())
            }
            Under::Read { parts, quiet } => {
                let payload = payload.expect("a read brings what it read");
                let mut bytes = std::mem::take(&mut self.scratch);
                bytes.resize(payload.len(), 0);
                payload.copy_to(&mut bytes);
                let checked =
                    self.check(request.volume, request.range.start, &bytes, &parts, quiet);
                self.scratch = bytes;
                checked
            }
        }
    }

    fn check(
        &mut self,
        volume: usize,
        offset: u64,
        bytes: &[u8],
        parts: &[(Range<u64>, Candidates)],
        quiet: bool,
    ) -> Result<(), Mismatch> {
        for (part, candidates) in parts {
            if candidates.iter().any(|version| version & ANY != 0) {
                continue;
            }
            self.checked_bytes += part.end - part.start;
            let mut sector = part.clone();
            while sector.start < part.end {
                // Requests are torn at sectors, so of several versions each sector may have
                // another.
                sector.end = match candidates.is_one() {
                    true => part.end,
                    false => (sector.start + 1).next_multiple_of(SECTOR_BYTES).min(part.end),
                };
                let found =
                    &bytes[(sector.start - offset) as usize..(sector.end - offset) as usize];
                let fits = candidates
                    .iter()
                    .find(|&version| wrong(volume, version, sector.start, found).is_none());
                match fits {
                    None => return Err(mismatch(volume, sector.start, found, candidates)),
                    Some(version) if quiet && !candidates.is_one() => {
                        self.volumes[volume].set(&sector, version);
                    }
                    Some(_) => {}
                }
                sector.start = sector.end;
            }
        }
        Ok(())
    }
}

/// Makes the bytes that request `number` of a trace writes; `scratch` is memory to work in.
pub(super) fn fill(
    number: u64,
    volume: usize,
    offset: u64,
    payload: &Slice,
    scratch: &mut Vec<u8>,
) {
    scratch.resize(payload.len(), 0);
    Pattern::new(volume, number << 1).fill(offset, scratch);
    payload.copy_from(scratch);
}

/// Where the first byte is that a version does not have.
fn wrong(volume: usize, version: u64, address: u64, bytes: &[u8]) -> Option<usize> {
    match version {
        ZERO => bytes.iter().position(|&byte| byte != 0),
        version => Pattern::new(volume, version).mismatch(address, bytes),
    }
}

fn mismatch(volume: usize, address: u64, bytes: &[u8], candidates: &Candidates) -> Mismatch {
    let newest = candidates.iter().max().unwrap_or(ZERO);
    let at = wrong(volume, newest, address, bytes).unwrap_or(0);
    Mismatch {
        volume,
        address: address + at as u64,
        wanted: candidates.iter().map(|version| version >> 1).collect(),
        found: bytes[at..].iter().take(8).copied().collect(),
    }
}
