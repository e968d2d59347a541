//! Verifies that reads return the data that was written.
//!
//! Each write stores a pattern of its address and version ([`Pattern`]); [`Spans`] records which
//! versions each byte may have. The completion of a write ends all versions whose writes completed
//! before it began. A read may return the versions from its beginning and those written while it
//! was in flight. If several are possible, a read without concurrent writes fixes the version that
//! it returned: later reads must return it again.
//!
//! Bytes never written are checked where the volume was known to be zero. Trimmed ranges are not
//! checked at all.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use floe_device::{SECTOR_BYTES, Slice};
use floe_policy::mix;

/// Identifies a request in flight; chosen by the caller.
pub(super) type Ticket = u64;

/// Initial content of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// All bytes are zero.
    Zero,
    /// The content is unknown, so that unwritten bytes are not checked.
    Unknown,
}

/// Bit of versions with unknown content, which match any bytes.
const ANY: u64 = 1;
const ZERO: u64 = 0;

/// A read that returned unexpected data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// Index of the volume.
    pub volume: usize,
    /// Address of the first wrong byte.
    pub address: u64,
    /// Numbers of the requests, counted from 1, whose data was expected; 0 for the content at the
    /// start.
    pub wanted: Vec<u64>,
    /// The eight bytes found from `address` on, or as many as were read.
    pub found: Vec<u8>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let writer = |request: &u64| match request {
            0 => "zeros, because nothing was written there".to_owned(),
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

/// State of a request in flight.
#[derive(Debug)]
enum Under {
    /// A write or a trim: its version, and the versions of overlapping concurrent writes.
    Write { version: u64, beside: Vec<u64> },
    /// A read: the possible versions of each part, and whether no write overlapped it.
    Read { parts: Vec<(Range<u64>, Candidates)>, quiet: bool },
}

#[derive(Debug)]
struct Request {
    ticket: Ticket,
    volume: usize,
    range: Range<u64>,
    under: Under,
}

/// Fills the payloads of writes, and checks the data of reads.
#[derive(Debug)]
pub(super) struct Verifier {
    volumes: Vec<Spans>,
    under_way: Vec<Request>,
    scratch: Vec<u8>,
    checked_bytes: u64,
}

impl Verifier {
    /// Creates a verifier for volumes with this initial content.
    pub(super) fn new(volumes: impl IntoIterator<Item = Content>) -> Self {
        let spans = |content| Spans::new(if content == Content::Zero { ZERO } else { ANY });
        Self {
            volumes: volumes.into_iter().map(spans).collect(),
            under_way: Vec::new(),
            scratch: Vec::new(),
            checked_bytes: 0,
        }
    }

    /// Returns the number of bytes that were compared with the expected data.
    pub(super) fn checked_bytes(&self) -> u64 {
        self.checked_bytes
    }

    /// Begins a write, and fills its payload. `ticket` is the request's number in the trace, from
    /// 1.
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

    /// Begins a trim. The content of whole sectors becomes unknown.
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

    /// Begins a read, and notes the versions that it may return.
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

    /// Ends a request that has succeeded. For a read, checks the data in `payload`.
    ///
    /// # Errors
    /// The first wrong byte of a read.
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
                    self.volumes[request.volume].complete_write(&request.range, version, keep);
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

/// Fills the payload of a write with the pattern of request `number`; `scratch` is working memory.
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

/// Returns the index of the first byte that differs from a version.
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

/// Difference between the pattern words of neighbouring addresses. Odd, so that the words of a
/// volume are all different.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

const WORD_BYTES: u64 = 8;

/// The data of a volume in one version, as a function of the address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pattern(u64);

impl Pattern {
    fn new(volume: usize, version: u64) -> Self {
        Self(mix(mix(version) ^ volume as u64))
    }

    fn word(self, address: u64) -> [u8; 8] {
        (address / WORD_BYTES).wrapping_mul(STEP).wrapping_add(self.0).to_le_bytes()
    }

    /// Fills `bytes` with the data that begins at `address`.
    fn fill(self, address: u64, bytes: &mut [u8]) {
        let (head, words) = bytes.split_at_mut(Self::head(address, bytes.len()));
        if !head.is_empty() {
            let skew = (address % WORD_BYTES) as usize;
            head.copy_from_slice(&self.word(address)[skew..skew + head.len()]);
        }
        let mut at = address + head.len() as u64;
        let mut words = words.chunks_exact_mut(WORD_BYTES as usize);
        for word in &mut words {
            word.copy_from_slice(&self.word(at));
            at += WORD_BYTES;
        }
        let tail = words.into_remainder();
        tail.copy_from_slice(&self.word(at)[..tail.len()]);
    }

    /// Returns the index of the first byte that differs from the pattern.
    fn mismatch(self, address: u64, bytes: &[u8]) -> Option<usize> {
        let (head, words) = bytes.split_at(Self::head(address, bytes.len()));
        let skew = (address % WORD_BYTES) as usize;
        let mut at = address;
        let whole = std::iter::once(head).filter(|head| !head.is_empty());
        for part in whole.chain(words.chunks(WORD_BYTES as usize)) {
            let skew = if at == address { skew } else { 0 };
            let wanted = &self.word(at)[skew..skew + part.len()];
            if part != wanted {
                let inside = part.iter().zip(wanted).position(|(a, b)| a != b).unwrap_or(0);
                return Some((at - address) as usize + inside);
            }
            at += part.len() as u64;
        }
        None
    }

    /// Returns the number of bytes before the first aligned word of a range.
    fn head(address: u64, len: usize) -> usize {
        ((WORD_BYTES - address % WORD_BYTES) % WORD_BYTES).min(len as u64) as usize
    }
}

/// The versions that a byte may have. Nearly always one, which needs no allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Candidates {
    first: u64,
    others: Vec<u64>,
}

impl Candidates {
    fn one(version: u64) -> Self {
        Self { first: version, others: Vec::new() }
    }

    fn add(&mut self, version: u64) {
        self.others.push(version);
    }

    fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        std::iter::once(self.first).chain(self.others.iter().copied())
    }

    fn is_one(&self) -> bool {
        self.others.is_empty()
    }

    /// Keeps the versions for which `keep` is true, of which there must be one.
    fn retain(&mut self, keep: impl Fn(u64) -> bool) {
        self.others.retain(|&version| keep(version));
        if !keep(self.first) {
            self.first = self.others.remove(0);
        }
    }
}

#[derive(Debug, Clone)]
struct Span {
    end: u64,
    candidates: Candidates,
}

/// The possible versions of each byte of a volume.
#[derive(Debug)]
struct Spans {
    /// Version of all bytes outside the spans.
    initial: u64,
    spans: BTreeMap<u64, Span>,
}

impl Spans {
    fn new(initial: u64) -> Self {
        Self { initial, spans: BTreeMap::new() }
    }

    /// Returns the parts of a range with their possible versions, in order and without gaps.
    fn of(&self, range: &Range<u64>) -> Vec<(Range<u64>, Candidates)> {
        let mut parts = Vec::new();
        let mut at = range.start;
        let before = self.spans.range(..range.start).next_back();
        for (&start, span) in before.into_iter().chain(self.spans.range(range.clone())) {
            let (start, end) = (start.max(range.start), span.end.min(range.end));
            if start >= end {
                continue;
            }
            if at < start {
                parts.push((at..start, Candidates::one(self.initial)));
            }
            parts.push((start..end, span.candidates.clone()));
            at = end;
        }
        if at < range.end {
            parts.push((at..range.end, Candidates::one(self.initial)));
        }
        parts
    }

    /// Adds a version to a range, when its write begins.
    fn may_become(&mut self, range: &Range<u64>, version: u64) {
        self.cover(range);
        for (_, span) in self.spans.range_mut(range.clone()) {
            span.candidates.add(version);
        }
    }

    /// Completes a write of a range: only `version` and versions for which `keep` is true remain
    /// possible.
    fn complete_write(&mut self, range: &Range<u64>, version: u64, keep: impl Fn(u64) -> bool) {
        let mut is_certain = true;
        for (_, span) in self.spans.range_mut(range.clone()) {
            span.candidates.retain(&keep);
            is_certain &= span.candidates.is_one();
        }
        if is_certain {
            self.set(range, version);
        }
    }

    /// Sets the only possible version of a range.
    fn set(&mut self, range: &Range<u64>, version: u64) {
        self.cover(range);
        let starts: Vec<u64> = self.spans.range(range.clone()).map(|(&start, _)| start).collect();
        starts.iter().for_each(|start| drop(self.spans.remove(start)));
        self.spans
            .insert(range.start, Span { end: range.end, candidates: Candidates::one(version) });
    }

    /// Splits spans at the ends of a range, and creates spans for its gaps.
    fn cover(&mut self, range: &Range<u64>) {
        self.split(range.start);
        self.split(range.end);
        for (part, candidates) in self.of(range) {
            self.spans.entry(part.start).or_insert(Span { end: part.end, candidates });
        }
    }

    fn split(&mut self, at: u64) {
        let Some((_, span)) = self.spans.range_mut(..at).next_back() else { return };
        if span.end > at {
            let rest = Span { end: span.end, candidates: span.candidates.clone() };
            span.end = at;
            self.spans.insert(at, rest);
        }
    }
}

#[cfg(test)]
mod pattern_tests {
    use super::*;

    #[test]
    fn any_part_of_the_bytes_is_recognised_and_any_change_is_found() {
        let pattern = Pattern::new(3, 7);
        let mut whole = [0; 64];
        pattern.fill(40, &mut whole);
        for start in 0..20 {
            for end in start..64 {
                let mut part = vec![0; end - start];
                pattern.fill(40 + start as u64, &mut part);
                assert_eq!(part, whole[start..end]);
                assert_eq!(pattern.mismatch(40 + start as u64, &part), None);
                if let Some(byte) = part.last_mut() {
                    *byte ^= 1;
                    assert_eq!(pattern.mismatch(40 + start as u64, &part), Some(part.len() - 1));
                }
            }
        }
    }

    #[test]
    fn another_version_volume_or_address_has_other_bytes() {
        let mut bytes = [0; 4096];
        Pattern::new(0, 1).fill(8192, &mut bytes);
        assert!(Pattern::new(0, 2).mismatch(8192, &bytes).is_some());
        assert!(Pattern::new(1, 1).mismatch(8192, &bytes).is_some());
        assert!(Pattern::new(0, 1).mismatch(4096, &bytes).is_some());
    }
}

#[cfg(test)]
mod spans_tests {
    use super::*;

    fn parts(spans: &Spans, range: Range<u64>) -> Vec<(Range<u64>, Vec<u64>)> {
        spans
            .of(&range)
            .into_iter()
            .map(|(part, candidates)| (part, candidates.iter().collect()))
            .collect()
    }

    #[test]
    fn overlapping_writes_leave_what_each_may_have_left() {
        let mut spans = Spans::new(0);
        spans.may_become(&(10..20), 2);
        assert_eq!(parts(&spans, 5..15), [(5..10, vec![0]), (10..15, vec![0, 2])]);
        spans.may_become(&(15..30), 4);
        spans.complete_write(&(10..20), 2, |version| version >= 2);
        assert_eq!(
            parts(&spans, 0..40),
            [
                (0..10, vec![0]),
                (10..15, vec![2]),
                (15..20, vec![2, 4]),
                (20..30, vec![0, 4]),
                (30..40, vec![0])
            ]
        );
        spans.complete_write(&(15..30), 4, |version| version >= 4);
        assert_eq!(parts(&spans, 12..30), [(12..15, vec![2]), (15..30, vec![4])]);
    }

    #[test]
    fn what_is_written_over_and_over_stays_one_span() {
        let mut spans = Spans::new(0);
        for version in 1..100 {
            let range = version..version + 1;
            spans.may_become(&range, version);
            spans.complete_write(&range, version, |other| other == version);
        }
        spans.may_become(&(0..200), 100);
        spans.complete_write(&(0..200), 100, |other| other == 100);
        assert_eq!(spans.spans.len(), 1);
        assert_eq!(parts(&spans, 3..7), [(3..7, vec![100])]);
    }
}
